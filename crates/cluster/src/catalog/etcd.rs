//! The catalog in an etcd: transactions that compare a key's revision of its last change, and
//! etcd's own leases.
//!
//! The client of etcd is asynchronous: one thread runs its tasks, so that connections live between
//! calls too, and callers wait for theirs. *Invariant*: every call ends within [`CALL`]; a change
//! that was not answered by then is indeterminate.
//!
//! *Thread safety*: any number of threads, but none that is inside an asynchronous runtime.

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

/// The longest that a call may take, and that a connection may take to open.
const CALL: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(2);
/// How many entries a list takes at once: with the longest values, well below the 4 MiB that a
/// message of etcd may have.
const PAGE_ENTRIES: i64 = 32;

/// A handle on an etcd.
#[derive(Debug)]
pub struct EtcdCatalog {
    members: String,
    client: ClientHandle,
    runtime: Handle,
    /// Dropped, it ends the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The client, which cannot be printed.
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

/// The least key above `key`.
fn next_key(key: &str) -> Vec<u8> {
    [key.as_bytes(), &[0]].concat()
}

/// The least key above all that begin with `prefix`; etcd takes a zero byte for no end.
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

/// The version of a key that is expected; that of a key that is not there is 0.
fn is_version(key: &str, expected: Option<Version>) -> Compare {
    let revision = expected.map_or(0, |version| version.0 as i64);
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

/// Whether etcd says that there is no such lease.
fn is_no_lease(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => status.message().contains("lease not found"),
        Error::LeaseKeepAliveError(why) => why.contains("lease not found"),
        _ => false,
    }
}

impl EtcdCatalog {
    /// A handle on the etcd with these members, each `HOST:PORT`. Connects when it is first used.
    ///
    /// # Errors
    /// [`CatalogError::Unreachable`] with what the operating system or the client says.
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
                // It ends by the sender's end.
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

    /// A change: without an answer its outcome is unknown.
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
        // To open the stream is to keep alive once.
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
            // If it has panicked, that has been said already.
            let _ = thread.join();
        }
    }
}
