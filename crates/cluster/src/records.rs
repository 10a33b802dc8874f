//! The records of a cluster in the catalog: JSON under `farleaf/<cluster>/`.
//!
//! | key | under a lease | written by |
//! | --- | --- | --- |
//! | `memory/<n>` | yes | memory server `n` |
//! | `compute/<n>` | yes | compute server `n` |
//! | `index` | no | the compute servers |
//! | `map` | no | the compute servers |
//! | `settings` | no | the first program |
//!
//! Readers skip unknown fields, so an older program can read the records of a newer one.
//!
//! *Thread safety*: plain values.

use crate::catalog::{Catalog, CatalogError, CatalogLease, EntryVersion};
use crate::config::ConfigError;
use crate::layouts::{ClusterLayout, LayoutName};
use crate::text::{KeyRecord, Textual};
use farleaf_index::IndexError;
use farleaf_index::partition::{MapState, PartitionMap, PendingMove, Replacement};
use farleaf_page::OwnedKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// How compute servers reach memory servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PoolTransport {
    /// Framed requests over TCP, on any network.
    Tcp,
    /// Mapped memory, between processes of one host.
    Shm,
    /// RDMA verbs.
    Verbs,
}

impl FromStr for PoolTransport {
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

impl fmt::Display for PoolTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
        })
    }
}

/// A memory server that is serving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRecord {
    pub number: u16,
    /// Its process id on its machine.
    pub pid: u32,
    /// How compute servers reach it.
    pub transport: PoolTransport,
    /// Its address and port, or the path of its socket.
    pub address: String,
    /// The epoch that it sends in the handshake; a different epoch means different memory.
    pub epoch: u64,
    /// The generation of the index that its memory serves ([`IndexRecord::generation`]).
    pub generation: u64,
    /// The address and port of its metrics, if it serves any.
    pub metrics: Option<String>,
}

/// A compute server that is running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeRecord {
    pub number: u16,
    /// Its process id on its machine.
    pub pid: u32,
    /// Its address and port for clients.
    pub address: String,
    /// The epoch that it sends in the handshake.
    pub epoch: u64,
    /// The generation of the index that it serves; 0 while it does not serve.
    pub generation: u64,
    /// Memory servers that it cannot reach. While there are any, it acknowledges no changes.
    #[serde(default)]
    pub unreachable: Vec<u16>,
    /// The address and port of its metrics, if it serves any.
    pub metrics: Option<String>,
    /// How long it may answer after a probe, if others may take its keys over when it dies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_ms: Option<u32>,
}

/// Whether the index can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexState {
    /// A compute server is creating it.
    Making,
    /// It is ready for use.
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

/// The state of the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRecord {
    /// Raised whenever the index is created anew. A memory server whose memory served a lower
    /// generation then starts over with new, empty memory.
    pub generation: u64,
    /// Whether it can be used.
    pub state: IndexState,
    /// The epochs of the memory servers that hold it, by server number.
    pub memory_epochs: Vec<u64>,
}

/// The partition map; see `farleaf_index::partition::PartitionMap`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRecord {
    /// The version of the map: a higher epoch is newer.
    pub epoch: u64,
    /// The lowest key of each range but the first.
    pub boundaries: Vec<KeyRecord>,
    /// The compute server that owns each range.
    pub owners: Vec<u16>,
    /// The generation of the index that the boundaries belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The pending move of keys, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<MovingRecord>,
    /// The bulk load that is replacing the tree, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacing: Option<ReplacingRecord>,
}

/// A bulk load that is replacing the tree; see `farleaf_index::partition::Replacement`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacingRecord {
    /// The number of the load.
    pub load: u64,
    /// The compute server that built the new tree.
    pub by: u16,
}

/// A pending move of keys; see `farleaf_index::partition::PendingMove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingRecord {
    /// A random number that identifies the move.
    pub id: u64,
    /// The compute server that has released the keys.
    pub from: u16,
    /// The compute server that takes them over.
    pub to: u16,
    /// The boundary between the keys that move and those that stay; none if all move.
    pub at: Option<KeyRecord>,
    /// Whether `from` is dead and has released nothing. Older programs write none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dead: bool,
}

/// Decodes a key from the catalog.
fn key_of<L: ClusterLayout>(record: &KeyRecord) -> Result<OwnedKey<L>, IndexError> {
    let what = "the partition map has keys of another kind than the cluster";
    L::Key::of_record(record).ok_or(IndexError::InvalidArgument(what))
}

impl MapRecord {
    /// The record of a map and its pending move.
    pub fn new<L: ClusterLayout>(state: &MapState<OwnedKey<L>>, generation: Option<u64>) -> Self {
        let record = |key: &OwnedKey<L>| L::key(key).to_record();
        let moving = state.moving.as_ref();
        Self {
            epoch: state.map.epoch(),
            boundaries: state.map.boundaries().iter().map(record).collect(),
            owners: state.map.owners().to_vec(),
            generation,
            moving: moving.map(|PendingMove { id, from, to, at, dead }| MovingRecord {
                id: *id,
                from: *from,
                to: *to,
                at: at.as_ref().map(record),
                dead: *dead,
            }),
            replacing: state.replacing.map(|Replacement { load, by }| ReplacingRecord { load, by }),
        }
    }

    /// The map and its pending move.
    ///
    /// # Errors
    /// [`IndexError`] if the record does not describe a valid map of this layout.
    pub fn state<L: ClusterLayout>(self) -> Result<MapState<OwnedKey<L>>, IndexError> {
        let boundaries = self.boundaries.iter().map(key_of::<L>).collect::<Result<_, _>>()?;
        let map = PartitionMap::from_owners::<L>(self.epoch, boundaries, self.owners)?;
        let moving = self.moving.map(|MovingRecord { id, from, to, at, dead }| {
            let at = at.as_ref().map(key_of::<L>).transpose()?;
            Ok::<_, IndexError>(PendingMove { id, from, to, at, dead })
        });
        let replacing = self.replacing.map(|ReplacingRecord { load, by }| Replacement { load, by });
        Ok(MapState { map, moving: moving.transpose()?, replacing })
    }
}

/// Settings that all programs of a cluster agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsRecord {
    /// Number of memory servers.
    pub memory_servers: u16,
    /// Number of compute servers.
    pub compute_servers: u16,
    /// How compute servers reach memory servers.
    pub transport: PoolTransport,
    /// Each subtree of this level lies entirely on one memory server.
    pub placement_level: u8,
    /// The kind of keys and values ([`crate::layouts::LayoutName::recorded_keys`]). Older clusters
    /// have none here, and `u64` keys in pages of 1 KiB.
    #[serde(default = "u64_keys")]
    pub keys: String,
    /// The size of pages, in bytes.
    #[serde(default = "one_kib")]
    pub page_bytes: u64,
    /// The index design. Clusters with DEX have none here, as older ones.
    #[serde(default, skip_serializing_if = "IndexName::is_default")]
    pub index: IndexName,
}

/// The index design of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexName {
    /// One tree, of which each compute server caches its part.
    #[default]
    Dex,
    /// LSM trees, of which each compute server has some.
    Dlsm,
}

impl IndexName {
    /// The names.
    pub const NAMES: [&str; 2] = ["dex", "dlsm"];

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for IndexName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl FromStr for IndexName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "dex" => Ok(Self::Dex),
            "dlsm" => Ok(Self::Dlsm),
            _ => Err(format!("`{name}` is neither dex nor dlsm")),
        }
    }
}

impl SettingsRecord {
    /// The layout of the cluster.
    ///
    /// # Errors
    /// As for [`LayoutName::recorded`].
    pub fn layout(&self) -> Result<LayoutName, ConfigError> {
        LayoutName::recorded(&self.keys, self.page_bytes)
    }
}

fn u64_keys() -> String {
    LayoutName::default().recorded_keys().to_owned()
}

fn one_kib() -> u64 {
    LayoutName::default().page_bytes()
}

/// Why reading a record failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The call to the catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The entry is not a valid record.
    #[error("invalid catalog entry {key}: {why}")]
    Malformed {
        /// The key of the entry.
        key: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The catalog keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogKeys {
    prefix: String,
}

/// A string that is not a valid cluster name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a cluster's name must have 1 to 64 letters, digits, `-` or `_`")]
pub struct InvalidName;

impl CatalogKeys {
    /// The keys of the cluster with this name.
    ///
    /// # Errors
    /// [`InvalidName`] if the name is not a valid cluster name.
    pub fn new(cluster: &str) -> Result<Self, InvalidName> {
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !(1..=64).contains(&cluster.len()) || !cluster.bytes().all(sound) {
            return Err(InvalidName);
        }
        Ok(Self { prefix: format!("farleaf/{cluster}/") })
    }

    /// The key under which a memory server registers.
    pub fn memory(&self, number: u16) -> String {
        format!("{}memory/{number}", self.prefix)
    }

    /// The prefix of all memory servers' keys.
    pub fn memory_prefix(&self) -> String {
        format!("{}memory/", self.prefix)
    }

    /// The key under which a compute server registers.
    pub fn compute(&self, number: u16) -> String {
        format!("{}compute/{number}", self.prefix)
    }

    /// The prefix of all compute servers' keys.
    pub fn compute_prefix(&self) -> String {
        format!("{}compute/", self.prefix)
    }

    /// The key of the index record.
    pub fn index(&self) -> String {
        format!("{}index", self.prefix)
    }

    /// The key of the partition map.
    pub fn map(&self) -> String {
        format!("{}map", self.prefix)
    }

    /// The key of the settings.
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

/// Encodes a record for the catalog.
///
/// # Panics
/// Never: every record can be encoded as JSON.
pub fn encode(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("a record is JSON")
}

/// Reads the record of a key and its version; `None` if the key has no entry.
///
/// # Errors
/// [`RecordError`].
pub fn get<T: DeserializeOwned>(
    catalog: &dyn Catalog,
    key: &str,
) -> Result<Option<(T, EntryVersion)>, RecordError> {
    match catalog.get(key)? {
        Some(entry) => Ok(Some((decode(key, &entry.value)?, entry.version))),
        None => Ok(None),
    }
}

/// Reads the records of all keys with a prefix, in key order.
///
/// # Errors
/// [`RecordError`].
pub fn list<T: DeserializeOwned>(
    catalog: &dyn Catalog,
    prefix: &str,
) -> Result<Vec<T>, RecordError> {
    catalog.list(prefix)?.iter().map(|entry| decode(&entry.key, &entry.value)).collect()
}

/// Like [`Catalog::put_if`], for a record.
///
/// # Errors
/// [`CatalogError`].
pub fn put_if(
    catalog: &dyn Catalog,
    key: &str,
    expected: Option<EntryVersion>,
    record: &impl Serialize,
    lease: Option<CatalogLease>,
) -> Result<bool, CatalogError> {
    catalog.put_if(key, expected, &encode(record), lease)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_page::{Bytes, Fixed8};

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
        // A record written by a newer program.
        let newer = text.replace("\"state\"", "\"colour\":\"blue\",\"state\"");
        assert_eq!(decode::<IndexRecord>("index", &newer).unwrap(), record);
        assert!(decode::<IndexRecord>("index", "{}").is_err());
    }

    /// Clusters that are older than byte strings.
    #[test]
    fn an_old_catalog_is_read_as_u64() {
        let settings =
            r#"{"memory_servers":2,"compute_servers":1,"transport":"tcp","placement_level":3}"#;
        let settings: SettingsRecord = decode("settings", settings).unwrap();
        assert_eq!(settings.layout().unwrap(), LayoutName::Numbers);
        let map = r#"{"epoch":4,"boundaries":[7,18446744073709551615],"owners":[1,0,2],"moving":{"id":3,"from":0,"to":1,"at":9}}"#;
        let record: MapRecord = decode("map", map).unwrap();
        let state = record.clone().state::<Fixed8>().unwrap();
        assert_eq!(state.map.boundaries(), [7, u64::MAX]);
        assert_eq!(state.moving.as_ref().and_then(|moving| moving.at), Some(9));
        assert_eq!(encode(&MapRecord::new::<Fixed8>(&state, None)), map, "and it stays the same");
        assert!(record.state::<Bytes>().is_err(), "the keys are of another kind");
    }

    #[test]
    fn byte_keys_are_text_in_the_catalog() {
        let map = PartitionMap::from_owners::<Bytes>(
            4,
            vec![b"a\xff".to_vec(), "ß".into()],
            vec![1, 0, 2],
        )
        .unwrap();
        let moving = PendingMove { id: 3, from: 0, to: 1, at: Some(b"b".to_vec()), dead: false };
        let replacing = Some(Replacement { load: 5, by: 2 });
        let state = MapState { map, moving: Some(moving), replacing };
        let text = encode(&MapRecord::new::<Bytes>(&state, Some(1)));
        assert!(text.contains(r#""boundaries":["a\\xff","ß"]"#), "{text}");
        assert!(text.contains(r#""at":"b""#), "{text}");
        let record: MapRecord = decode("map", &text).unwrap();
        assert_eq!(record.clone().state::<Bytes>().unwrap(), state);
        assert!(record.state::<Fixed8>().is_err(), "the keys are of another kind");
        let long = MapRecord {
            boundaries: vec![KeyRecord::Text("k".repeat(129))],
            ..MapRecord::new::<Bytes>(&state, None)
        };
        assert!(MapRecord { owners: vec![0, 1], moving: None, ..long }.state::<Bytes>().is_err());
    }

    #[test]
    fn names_cannot_leave_their_place() {
        assert_eq!(CatalogKeys::new("one").unwrap().memory(3), "farleaf/one/memory/3");
        for name in ["", "a/b", "a b", "ü", &"x".repeat(65)] {
            assert_eq!(CatalogKeys::new(name), Err(InvalidName), "{name}");
        }
    }
}
