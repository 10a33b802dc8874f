//! The catalog: a few small records that say what a cluster consists of. Control plane only;
//! decision 033.
//!
//! Two back ends keep the same promises, and one suite checks both: [`embedded`](EmbeddedCatalog),
//! one process with one file, and etcd (feature `etcd`).
//!
//! *Invariants*: catalog.A1. what [`Catalog::put_if`] and [`Catalog::delete_if`] say about the
//! version and what they do is one step. catalog.A2. an entry under a lease is gone no sooner than
//! its lease's term after the last [`Catalog::keep_alive`], and some time after it. catalog.A3.
//! what was answered survives the catalog's restart, but for leases without entries; leases get a
//! whole term then. catalog.A4. every call ends within a bounded time. catalog.A5. versions of one
//! key never repeat.
//!
//! *Thread safety*: a catalog is for any number of threads; calls block the thread.

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

use farleaf_fabric::handshake::{HandshakeError, Token};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 256;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 60 * 1024;

/// The version of an entry: it grows with every change of it, and never comes again. Nothing else
/// is to be read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version(pub(crate) u64);

/// A lease: entries that were put under it go when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lease(pub(crate) u64);

/// What the catalog holds under a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// Its version.
    pub version: Version,
}

/// Why the catalog did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// It cannot be reached, or did not answer in time. Nothing was changed.
    #[error("the catalog at {address} cannot be reached: {why}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// Why.
        why: String,
    },
    /// It did not answer a request for a change, which may have been made.
    #[error("the catalog at {address} did not answer; the request may have taken effect: {why}")]
    Indeterminate {
        /// Where it should be.
        address: String,
        /// Why.
        why: String,
    },
    /// It does not let this program in.
    #[error("the catalog at {address} cannot be used: {why}")]
    NotLetIn {
        /// Where it is.
        address: String,
        /// Why not.
        why: HandshakeError,
    },
    /// It said no. Nothing was changed.
    #[error("the catalog refused the request: {0}")]
    Refused(String),
}

/// The catalog of a cluster.
pub trait Catalog: Send + Sync {
    /// The entry of a key, if there is one.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn get(&self, key: &str) -> Result<Option<Entry>, CatalogError>;

    /// The entries of all keys that begin with `prefix`, by key. Each is as it was at some time
    /// during the call; together they need not be.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn list(&self, prefix: &str) -> Result<Vec<Entry>, CatalogError>;

    /// Puts an entry if that of the key is of version `expected`, or if there is none and none is
    /// expected; whether it did. Under a lease the entry goes with it; without one it stays, even
    /// if it was under one before.
    ///
    /// # Errors
    /// [`CatalogError`]; a lease that has ended is refused.
    fn put_if(
        &self,
        key: &str,
        expected: Option<Version>,
        value: &str,
        lease: Option<Lease>,
    ) -> Result<bool, CatalogError>;

    /// Deletes the entry of a key if it is of this version; whether it did.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn delete_if(&self, key: &str, expected: Version) -> Result<bool, CatalogError>;

    /// A lease that ends a term after it was last kept alive. Back ends round the term up, to
    /// seconds at most.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn grant(&self, term: Duration) -> Result<Lease, CatalogError>;

    /// Gives a lease a whole term again; `false` if it has ended.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn keep_alive(&self, lease: Lease) -> Result<bool, CatalogError>;

    /// Ends a lease, and with it its entries; nothing happens if it has ended already.
    ///
    /// # Errors
    /// [`CatalogError`].
    fn revoke(&self, lease: Lease) -> Result<(), CatalogError>;
}

/// Refuses what no back end holds.
fn check(key: &str, value: &str) -> Result<(), CatalogError> {
    let refuse = |why: String| Err(CatalogError::Refused(why));
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return refuse(format!("a key has from 1 to {MAX_KEY_BYTES} bytes"));
    }
    if value.len() > MAX_VALUE_BYTES {
        return refuse(format!("a value has at most {MAX_VALUE_BYTES} bytes, not {}", value.len()));
    }
    Ok(())
}

/// Where a catalog is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogAddress {
    /// `HOST:PORT`: embedded in the program of a memory server.
    Embedded(SocketAddr),
    /// `etcd:HOST:PORT,HOST:PORT,..`: an etcd.
    Etcd(Vec<String>),
}

impl FromStr for CatalogAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("etcd:") {
            Some(list) => {
                let members: Vec<String> = list.split(',').map(str::to_owned).collect();
                let sound = |member: &String| {
                    let port =
                        member.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
                    matches!(port, Some((host, Ok(_))) if !host.is_empty() && !host.contains('/'))
                };
                if members.iter().all(sound) {
                    Ok(Self::Etcd(members))
                } else {
                    Err("expected etcd:HOST:PORT, with more members after commas".to_owned())
                }
            }
            None => text.parse().map(Self::Embedded).map_err(|_| {
                "expected an address and a port such as 127.0.0.1:7400, or etcd:HOST:PORT"
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

/// A handle on the catalog at an address. Connects to nobody yet. An etcd is not shown the token:
/// who may use it is its own affair.
///
/// # Errors
/// [`CatalogError::Refused`] if this program was built without that back end; what the operating
/// system says.
pub fn open(address: &CatalogAddress, token: &Token) -> Result<Arc<dyn Catalog>, CatalogError> {
    match address {
        CatalogAddress::Embedded(address) => Ok(Arc::new(RemoteCatalog::new(*address, token))),
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
        for text in ["127.0.0.1:7400", "[::1]:1", "etcd:localhost:2379", "etcd:a:1,b:2"] {
            assert_eq!(text.parse::<CatalogAddress>().unwrap().to_string(), text);
        }
        for text in
            ["", "localhost", "127.0.0.1", "etcd:", "etcd:a", "etcd:http://a:1", "etcd:a:1,"]
        {
            assert!(text.parse::<CatalogAddress>().is_err(), "{text}");
        }
    }
}
