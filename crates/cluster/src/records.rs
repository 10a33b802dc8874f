//! What the catalog holds about a cluster: JSON under `farleaf/<cluster>/`.
//!
//! | key | under a lease | written by |
//! | --- | --- | --- |
//! | `memory/<n>` | yes | memory server `n` |
//! | `compute/<n>` | yes | compute server `n` |
//! | `index` | no | the compute servers |
//! | `map` | no | the compute servers |
//! | `settings` | no | the first program |
//!
//! Unknown fields are skipped, so that an older program can read what a newer one has written.
//!
//! *Thread safety*: plain values.

use crate::catalog::{Catalog, CatalogError, Lease, Version};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// How compute servers reach memory servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Transport {
    /// Framed requests over TCP, on any network.
    Tcp,
    /// Mapped memory, between processes of one host.
    Shm,
    /// RDMA verbs.
    Verbs,
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "shm" => Ok(Self::Shm),
            "verbs" => Ok(Self::Verbs),
            _ => Err("expected tcp, shm or verbs".to_owned()),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
        })
    }
}

/// A memory server that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRecord {
    /// Its number.
    pub number: u16,
    /// Its process, on the machine that it runs on.
    pub pid: u32,
    /// How it is reached.
    pub transport: Transport,
    /// Where: an address and a port, or the path of a socket.
    pub address: String,
    /// What it says of itself in the handshake; another one is another memory.
    pub epoch: u64,
    /// The generation of the index that its memory is for ([`IndexRecord::generation`]).
    pub generation: u64,
    /// Where its metrics are, if anywhere: an address and a port.
    pub metrics: Option<String>,
}

/// A compute server that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeRecord {
    /// Its number.
    pub number: u16,
    /// Its process, on the machine that it runs on.
    pub pid: u32,
    /// Where clients reach it: an address and a port.
    pub address: String,
    /// What it says of itself in the handshake.
    pub epoch: u64,
    /// The generation of the index that it serves; 0 while it does not serve.
    pub generation: u64,
    /// The memory servers that it cannot reach: as long as there are any, it acknowledges no
    /// change.
    #[serde(default)]
    pub unreachable: Vec<u16>,
    /// Where its metrics are, if anywhere: an address and a port.
    pub metrics: Option<String>,
}

/// Whether the index can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexState {
    /// It is being made.
    Making,
    /// It is there.
    Ready,
}

impl fmt::Display for IndexState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Making => "making",
            Self::Ready => "ready",
        })
    }
}

/// The index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRecord {
    /// Raised when the index is made anew: a memory server whose memory is for a lower one makes a
    /// new, empty memory.
    pub generation: u64,
    /// Whether it can be used.
    pub state: IndexState,
    /// The epochs of the memory servers that it is made on, by number.
    pub memory_epochs: Vec<u64>,
}

/// The owners of keys; see `farleaf::partition::PartitionMap`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRecord {
    /// The higher, the newer.
    pub epoch: u64,
    /// The lowest key of each range but the first.
    pub boundaries: Vec<u64>,
    /// The compute server that owns each range.
    pub owners: Vec<u16>,
}

/// What all programs of a cluster agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsRecord {
    /// How many memory servers there are.
    pub memory_servers: u16,
    /// How many compute servers there are.
    pub compute_servers: u16,
    /// How memory servers are reached.
    pub transport: Transport,
    /// Subtrees of this level lie whole on one memory server.
    pub placement_level: u8,
}

/// Why a record could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The catalog did not give it.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// What is there is none.
    #[error("invalid catalog entry {key}: {why}")]
    Malformed {
        /// Its key.
        key: String,
        /// Why.
        why: String,
    },
}

/// The keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

/// A name is no cluster's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a cluster's name has from 1 to 64 letters, digits, `-` or `_`")]
pub struct BadName;

impl Keys {
    /// Those of the cluster of this name.
    ///
    /// # Errors
    /// [`BadName`] if a cluster cannot be called that.
    pub fn new(cluster: &str) -> Result<Self, BadName> {
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !(1..=64).contains(&cluster.len()) || !cluster.bytes().all(sound) {
            return Err(BadName);
        }
        Ok(Self { prefix: format!("farleaf/{cluster}/") })
    }

    /// Where a memory server registers.
    pub fn memory(&self, number: u16) -> String {
        format!("{}memory/{number}", self.prefix)
    }

    /// What all memory servers' keys begin with.
    pub fn memory_prefix(&self) -> String {
        format!("{}memory/", self.prefix)
    }

    /// Where a compute server registers.
    pub fn compute(&self, number: u16) -> String {
        format!("{}compute/{number}", self.prefix)
    }

    /// What all compute servers' keys begin with.
    pub fn compute_prefix(&self) -> String {
        format!("{}compute/", self.prefix)
    }

    /// The index.
    pub fn index(&self) -> String {
        format!("{}index", self.prefix)
    }

    /// The partition map.
    pub fn map(&self) -> String {
        format!("{}map", self.prefix)
    }

    /// The settings.
    pub fn settings(&self) -> String {
        format!("{}settings", self.prefix)
    }
}

fn decode<T: DeserializeOwned>(key: &str, value: &str) -> Result<T, RecordError> {
    let malformed = |why: serde_json::Error| RecordError::Malformed {
        key: key.to_owned(),
        why: why.to_string(),
    };
    serde_json::from_str(value).map_err(malformed)
}

/// A record as the catalog holds it.
///
/// # Panics
/// Never: every record is JSON.
pub fn encode(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("a record is JSON")
}

/// The record of a key and its version, if there is one.
///
/// # Errors
/// [`RecordError`].
pub fn get<T: DeserializeOwned>(
    catalog: &dyn Catalog,
    key: &str,
) -> Result<Option<(T, Version)>, RecordError> {
    match catalog.get(key)? {
        Some(entry) => Ok(Some((decode(key, &entry.value)?, entry.version))),
        None => Ok(None),
    }
}

/// The records of all keys with a prefix, by key.
///
/// # Errors
/// [`RecordError`].
pub fn list<T: DeserializeOwned>(
    catalog: &dyn Catalog,
    prefix: &str,
) -> Result<Vec<T>, RecordError> {
    catalog.list(prefix)?.iter().map(|entry| decode(&entry.key, &entry.value)).collect()
}

/// Puts a record as [`Catalog::put_if`] does.
///
/// # Errors
/// [`CatalogError`].
pub fn put_if(
    catalog: &dyn Catalog,
    key: &str,
    expected: Option<Version>,
    record: &impl Serialize,
    lease: Option<Lease>,
) -> Result<bool, CatalogError> {
    catalog.put_if(key, expected, &encode(record), lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let record = IndexRecord {
            generation: 3,
            state: IndexState::Making,
            memory_epochs: vec![u64::MAX, 0],
        };
        let text = encode(&record);
        assert_eq!(
            text,
            r#"{"generation":3,"state":"making","memory_epochs":[18446744073709551615,0]}"#
        );
        assert_eq!(decode::<IndexRecord>("index", &text).unwrap(), record);
        // A newer program's.
        let newer = text.replace("\"state\"", "\"colour\":\"blue\",\"state\"");
        assert_eq!(decode::<IndexRecord>("index", &newer).unwrap(), record);
        assert!(decode::<IndexRecord>("index", "{}").is_err());
    }

    #[test]
    fn names_cannot_leave_their_place() {
        assert_eq!(Keys::new("one").unwrap().memory(3), "farleaf/one/memory/3");
        for name in ["", "a/b", "a b", "ü", &"x".repeat(65)] {
            assert_eq!(Keys::new(name), Err(BadName), "{name}");
        }
    }
}
