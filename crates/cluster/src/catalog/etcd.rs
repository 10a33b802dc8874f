//! The catalog in etcd: transactions that compare a key's modification revision, and etcd's own
//! leases.
//!
//! The etcd client is asynchronous. One thread runs its tasks, so connections stay open between
//! calls, and callers block until their call completes. *Invariant*: every call ends within
//! [`CALL`]; the outcome of a change without an answer by then is indeterminate.
//!
//! *Thread safety*: any number of threads, but not from inside an asynchronous runtime.

use super::{Catalog, CatalogError, Entry, Lease, Version, check};
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, KeyValue, PutOptions, Txn, TxnOp,
};
use std::future::Future;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Timeout of a call, and of opening a connection.
const CALL: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(2);
/// Entries that a list reads at once. Even with the longest values, they fit well within the 4 MiB
/// limit of an etcd message.
const PAGE_ENTRIES: i64 = 32;

#[derive(Debug)]
pub struct EtcdCatalog {
    members: String,
    client: ClientHandle,
    runtime: Handle,
    /// Dropping the sender ends the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The client, wrapped because it does not implement `Debug`.
struct ClientHandle(Client);

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

fn entry_of(found: &KeyValue) -> Result<Entry, Error> {
    let (key, value) = (found.key_str()?.to_owned(), found.value_str()?.to_owned());
    Ok(Entry { key, value, version: Version(found.mod_revision() as u64) })
}

/// The least key greater than `key`.
fn next_key(key: &str) -> Vec<u8> {
    [key.as_bytes(), &[0]].concat()
}

/// The end of the range of keys that begin with `prefix`. For etcd, a single zero byte means an
/// open end.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// Compares a key's version with `expected`; the version of a missing key is 0.
fn is_version(key: &str, expected: Option<Version>) -> Compare {
    let revision = expected.map_or(0, |version| version.0 as i64);
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

/// Whether etcd reports that the lease does not exist.
fn is_no_lease(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => status.message().contains("lease not found"),
        Error::LeaseKeepAliveError(why) => why.contains("lease not found"),
        _ => false,
    }
}

impl EtcdCatalog {
    /// Creates a handle on the etcd cluster with these members, each `HOST:PORT`. It connects on
    /// its first call.
    ///
    /// # Errors
    /// [`CatalogError::Unreachable`] with the error of the operating system or the client.
    pub fn new(members: &[String]) -> Result<Self, CatalogError> {
        let address = format!("etcd:{}", members.join(","));
        let failed = |why: String| CatalogError::Unreachable { address: address.clone(), why };
        let system = |error: io::Error| failed(error.to_string());
        let runtime = Builder::new_current_thread().enable_all().build().map_err(system)?;
        let handle = runtime.handle().clone();
        let options = ConnectOptions::new().with_connect_timeout(CONNECT).with_timeout(CALL);
        let client = runtime
            .block_on(Client::connect(members, Some(options)))
            .map_err(|error| failed(error.to_string()))?;
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("etcd".into())
            .spawn(move || {
                // Dropping the sender ends this wait.
                let _ = runtime.block_on(ended);
            })
            .map_err(system)?;
        Ok(Self {
            members: address,
            client: ClientHandle(client),
            runtime: handle,
            end: Some(end),
            thread: Some(thread),
        })
    }

    fn client(&self) -> Client {
        self.client.0.clone()
    }

    fn call<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, CatalogError> {
        let late = || "it took too long".to_owned();
        let address = || self.members.clone();
        match self.runtime.block_on(async { tokio::time::timeout(CALL, work).await }) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if is_no_lease(&error) => {
                Err(CatalogError::Refused("the lease has ended".to_owned()))
            }
            Ok(Err(error)) => {
                Err(CatalogError::Unreachable { address: address(), why: error.to_string() })
            }
            Err(_) => Err(CatalogError::Unreachable { address: address(), why: late() }),
        }
    }

    /// Runs a transaction that changes an entry. Without an answer, the outcome is unknown.
    fn change(&self, transaction: Txn) -> Result<bool, CatalogError> {
        let mut client = self.client();
        let done = self.call(async move { client.txn(transaction).await });
        match done {
            Ok(answer) => Ok(answer.succeeded()),
            Err(CatalogError::Unreachable { address, why }) => {
                Err(CatalogError::Indeterminate { address, why })
            }
            Err(other) => Err(other),
        }
    }
}

impl Catalog for EtcdCatalog {
    fn get(&self, key: &str) -> Result<Option<Entry>, CatalogError> {
        let mut client = self.client();
        self.call(async move {
            let found = client.get(key, None).await?;
            found.kvs().first().map(entry_of).transpose()
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, CatalogError> {
        let (mut all, end) = (Vec::new(), end_of(prefix));
        let mut start = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
        loop {
            let mut client = self.client();
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE_ENTRIES);
            let found = self.call(async { client.get(start.clone(), Some(options)).await })?;
            let entries: Result<Vec<_>, _> = found.kvs().iter().map(entry_of).collect();
            let entries = entries.map_err(|error| CatalogError::Refused(error.to_string()))?;
            all.extend(entries);
            match all.last() {
                Some(last) if found.more() => start = next_key(&last.key),
                _ => return Ok(all),
            }
        }
    }

    fn put_if(
        &self,
        key: &str,
        expected: Option<Version>,
        value: &str,
        lease: Option<Lease>,
    ) -> Result<bool, CatalogError> {
        check(key, value)?;
        let options = lease.map(|lease| PutOptions::new().with_lease(lease.0 as i64));
        let put = TxnOp::put(key, value, options);
        self.change(Txn::new().when([is_version(key, expected)]).and_then([put]))
    }

    fn delete_if(&self, key: &str, expected: Version) -> Result<bool, CatalogError> {
        let delete = TxnOp::delete(key, None);
        self.change(Txn::new().when([is_version(key, Some(expected))]).and_then([delete]))
    }

    fn grant(&self, term: Duration) -> Result<Lease, CatalogError> {
        let seconds = term.as_secs() + u64::from(term.subsec_nanos() > 0);
        let mut client = self.client();
        let granted = self.call(async move { client.lease_grant(seconds as i64, None).await })?;
        Ok(Lease(granted.id() as u64))
    }

    fn keep_alive(&self, lease: Lease) -> Result<bool, CatalogError> {
        let mut client = self.client();
        // Opening the stream already sends one keep-alive.
        let kept = self.call(async move { client.lease_keep_alive(lease.0 as i64).await });
        match kept {
            Ok(_) => Ok(true),
            Err(CatalogError::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn revoke(&self, lease: Lease) -> Result<(), CatalogError> {
        let mut client = self.client();
        match self.call(async move { client.lease_revoke(lease.0 as i64).await }) {
            Ok(_) | Err(CatalogError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for EtcdCatalog {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}
