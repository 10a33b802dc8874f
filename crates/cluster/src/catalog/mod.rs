//! The catalog: a few small records that describe a cluster. It is control plane only; see decision
//! 033.
//!
//! Two back ends give the same guarantees, and one suite checks both:
//! [`embedded`](EmbeddedCatalog), one process with one file, and etcd (feature `etcd`).
//!
//! *Invariants*: catalog.A1. [`Catalog::put_if`] and [`Catalog::delete_if`] check the version and
//! change the entry in one atomic step. catalog.A2. An entry under a lease is deleted no sooner
//! than one lease term after the last [`Catalog::keep_alive`], and eventually after that.
//! catalog.A3. An acknowledged change survives a restart of the catalog, except for leases without
//! entries; every surviving lease gets a whole term after the restart. catalog.A4. Every call ends
//! within a bounded time. catalog.A5. Versions of one key never repeat.
//!
//! *Thread safety*: any number of threads may share a catalog; calls block the calling thread.

mod client;
#[cfg(feature = "etcd")]
mod etcd;
mod messages;
mod server;
mod store;

pub use client::RemoteCatalog;
#[cfg(feature = "etcd")]
pub use etcd::EtcdCatalog;
pub use server::{EmbeddedCatalog, EmbeddedConfig};

use crate::address::HostPort;
use farleaf_fabric::handshake::{HandshakeError, Token};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Maximum length of a key, in bytes.
pub const MAX_KEY_BYTES: usize = 256;
/// Maximum length of a value, in bytes.
pub const MAX_VALUE_BYTES: usize = 60 * 1024;

/// The version of an entry. It grows with every change of the entry and never repeats; it has no
/// other meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryVersion(pub(crate) u64);

/// A lease: when it ends, the catalog deletes the entries that were put under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CatalogLease(pub(crate) u64);

/// A lease as the catalog has granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedLease {
    pub lease: CatalogLease,
    /// Its term, which may be longer than the requested one.
    pub term: Duration,
}

/// An entry of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogEntry {
    pub key: String,
    pub value: String,
    /// Its version, which every change of the entry raises.
    pub version: EntryVersion,
}

/// Why a call to the catalog failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// The catalog could not be reached or did not answer in time. Nothing was changed.
    #[error("the catalog at {address} cannot be reached: {why}")]
    Unreachable {
        /// The address of the catalog.
        address: String,
        /// Why it cannot be reached.
        why: String,
    },
    /// The catalog did not answer a change, which may have taken effect.
    #[error("the catalog at {address} did not answer; the request may have taken effect: {why}")]
    Indeterminate {
        /// The address of the catalog.
        address: String,
        /// The reason.
        why: String,
    },
    /// The catalog rejected this program's handshake.
    #[error("the catalog at {address} cannot be used: {why}")]
    NotLetIn {
        /// The address of the catalog.
        address: String,
        /// The reason.
        why: HandshakeError,
    },
    /// The catalog refused the request. Nothing was changed.
    #[error("the catalog refused the request: {0}")]
    Refused(String),
    /// The operating system refused this program what it needs for a call. Nothing was sent.
    #[error("{0}")]
    System(String),
}

impl CatalogError {
    #[cfg(feature = "etcd")]
    fn unreachable(address: String, why: String) -> Self {
        Self::Unreachable { address, why }
    }

    #[cfg(feature = "etcd")]
    fn indeterminate(address: String, why: String) -> Self {
        Self::Indeterminate { address, why }
    }
}

/// The catalog of a cluster.
pub trait Catalog: Send + Sync {
    /// Reads the entry of a key; `None` if the key has none.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn get(&self, key: &str) -> Result<Option<CatalogEntry>, CatalogError>;

    /// Lists the entries of all keys that begin with `prefix`, in key order. Each entry was current
    /// at some time during the call; the list as a whole need not be a snapshot.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn list(&self, prefix: &str) -> Result<Vec<CatalogEntry>, CatalogError>;

    /// Puts an entry if the key's current version is `expected`, or if the key has no entry and
    /// `expected` is `None`. Returns whether it did. An entry that is put under a lease is deleted
    /// when the lease ends. An entry that is put without a lease stays, even if it was previously
    /// under a lease.
    ///
    /// # Errors
    /// [`CatalogError`]; refused if the lease has ended.
    fn put_if(
        &self,
        key: &str,
        expected: Option<EntryVersion>,
        value: &str,
        lease: Option<CatalogLease>,
    ) -> Result<bool, CatalogError>;

    /// Deletes the entry of a key if it has this version. Returns whether it did.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn delete_if(&self, key: &str, expected: EntryVersion) -> Result<bool, CatalogError>;

    /// Grants a lease that ends one term after the last keep-alive. The granted term may be longer
    /// than `term`: etcd counts whole seconds, and grants no less than 1.5 times its election
    /// timeout.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn grant(&self, term: Duration) -> Result<GrantedLease, CatalogError>;

    /// Extends a lease by a whole term from now; `false` if it has ended.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn keep_alive(&self, lease: CatalogLease) -> Result<bool, CatalogError>;

    /// Ends a lease and deletes its entries. Does nothing if it has already ended.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn revoke(&self, lease: CatalogLease) -> Result<(), CatalogError>;

    /// What is wrong with the catalog itself although it answers, one line each: dead members, or
    /// an alarm. Only etcd reports any.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Refuses keys and values that are too long for any back end, and empty keys.
fn check(key: &str, value: &str) -> Result<(), CatalogError> {
    let refuse = |why: String| Err(CatalogError::Refused(why));
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return refuse(format!("a key must have 1 to {MAX_KEY_BYTES} bytes"));
    }
    if value.len() > MAX_VALUE_BYTES {
        return refuse(format!(
            "a value must have at most {MAX_VALUE_BYTES} bytes, not {}",
            value.len()
        ));
    }
    Ok(())
}

/// The address of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogAddress {
    /// `HOST:PORT`: embedded in the program of a memory server.
    Embedded(HostPort),
    /// `etcd:HOST:PORT,HOST:PORT,..`: an etcd cluster.
    Etcd(Vec<String>),
}

impl FromStr for CatalogAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("etcd:") {
            Some(list) => {
                let members: Vec<String> = list.split(',').map(str::to_owned).collect();
                if members.iter().all(|member| member.parse::<HostPort>().is_ok()) {
                    Ok(Self::Etcd(members))
                } else {
                    Err("expected etcd:HOST:PORT, with more members after commas".to_owned())
                }
            }
            None => text.parse().map(Self::Embedded).map_err(|_| {
                "expected a host and a port such as 127.0.0.1:7400 or db6:7400, or etcd:HOST:PORT"
                    .to_owned()
            }),
        }
    }
}

impl fmt::Display for CatalogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(address) => address.fmt(f),
            Self::Etcd(members) => write!(f, "etcd:{}", members.join(",")),
        }
    }
}

/// Creates a handle on the catalog at an address, without connecting yet. The token is not sent to
/// etcd, which has its own access control.
///
/// # Errors
/// [`CatalogError::Refused`] if this program was built without that back end; otherwise the error
/// of the operating system.
pub fn open(address: &CatalogAddress, token: &Token) -> Result<Arc<dyn Catalog>, CatalogError> {
    match address {
        CatalogAddress::Embedded(address) => {
            Ok(Arc::new(RemoteCatalog::new(address.clone(), token)))
        }
        #[cfg(feature = "etcd")]
        CatalogAddress::Etcd(members) => Ok(Arc::new(EtcdCatalog::new(members)?)),
        #[cfg(not(feature = "etcd"))]
        CatalogAddress::Etcd(_) => {
            Err(CatalogError::Refused("this program was built without etcd".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["127.0.0.1:7400", "[::1]:1", "db6:7400", "etcd:localhost:2379", "etcd:a:1,b:2"]
        {
            assert_eq!(text.parse::<CatalogAddress>().unwrap().to_string(), text);
        }
        for text in
            ["", "localhost", "127.0.0.1", "etcd:", "etcd:a", "etcd:http://a:1", "etcd:a:1,"]
        {
            assert!(text.parse::<CatalogAddress>().is_err(), "{text}");
        }
    }
}
