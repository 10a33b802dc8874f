//! The catalog in etcd: transactions that compare a key's modification revision, and etcd's own
//! leases.
//!
//! The etcd client is asynchronous. One thread runs its tasks, so connections stay open between
//! calls, and callers block until their call completes.
//!
//! *Invariants*: etcd.E1. Every call ends within [`CALL`], whatever number of members is dead: each
//! member gets an equal share of the time that is left. etcd.E2. A request that is known not to
//! have been sent is sent to the next member; so is any other one that is idempotent. etcd.E3. A
//! change that may have been sent is not sent again, and its outcome is indeterminate; one that was
//! not sent anywhere is not.
//!
//! There is one client for each member, because a client of several members
//! passes a failed connection of one on as the failure of the request.
//!
//! *Thread safety*: any number of threads, but not from inside an asynchronous runtime.

use super::{Catalog, CatalogEntry, CatalogError, CatalogLease, EntryVersion, GrantedLease, check};
use crate::clock::MonotonicClock;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, KeyValue, PutOptions, Txn, TxnOp,
};
use farleaf_fabric::listener::start_thread;
use farleaf_fabric::sync::{AtomicUsize, Ordering};
use futures_util::future::join_all;
use std::error::Error as _;
use std::future::Future;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tonic::{Code, ConnectError};

/// Timeout of a call.
const CALL: Duration = Duration::from_secs(3);
/// Pause before all members are asked again while they elect a leader.
const ELECTION: Duration = Duration::from_millis(100);
/// Entries that a list reads at once. Even with the longest values, they fit well within the 4 MiB
/// limit of an etcd message.
const PAGE_ENTRIES: i64 = 32;

pub struct EtcdCatalog {
    /// The members as one address, for messages.
    address: String,
    members: Vec<EtcdMember>,
    /// The member to ask first: the last one that answered.
    preferred: AtomicUsize,
    runtime: Handle,
    /// Dropping the sender ends the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A member of the etcd cluster, and its client.
struct EtcdMember {
    name: String,
    client: Client,
}

/// Whether a request may be sent again after it may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepeatPolicy {
    Idempotent,
    Never,
}

/// Why one member did not carry out a request.
#[derive(Debug)]
enum EtcdFailure {
    /// The lease does not exist.
    NoLease,
    /// etcd refused the request, as every member would.
    Refused(String),
    /// The member could not be reached: nothing was sent.
    NotSent(String),
    /// The member knows no leader, and refused the request for that reason.
    NoLeader,
    /// The request may have been carried out.
    Unknown(String),
}

impl EtcdFailure {
    fn of(error: &Error) -> Self {
        let status = match error {
            Error::GRpcStatus(status) => status,
            Error::LeaseKeepAliveError(why) if why.contains("lease not found") => {
                return Self::NoLease;
            }
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::Utf8Error(_) => {
                return Self::Refused(error.to_string());
            }
            _ => return Self::Unknown(error.to_string()),
        };
        let (mut cause, mut innermost) = (status.source(), status.message().to_owned());
        let mut was_sent = true;
        while let Some(error) = cause {
            was_sent &= !error.is::<ConnectError>();
            innermost = error.to_string();
            cause = error.source();
        }
        let message = status.message();
        match status.code() {
            _ if !was_sent => Self::NotSent(innermost),
            _ if message.contains("lease not found") => Self::NoLease,
            Code::Unavailable if message.contains("no leader") => Self::NoLeader,
            Code::ResourceExhausted if message.contains("database space exceeded") => {
                Self::Refused(FULL.to_owned())
            }
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => Self::Refused(message.to_owned()),
            _ if message.is_empty() => Self::Unknown(innermost),
            _ => Self::Unknown(message.to_owned()),
        }
    }
}

/// The refusal of a lease that does not exist.
const ENDED: &str = "the lease has ended";
/// What to do about an etcd with the alarm `NOSPACE`.
const FULL: &str = "etcd's database is full (alarm NOSPACE): it renews leases, and refuses new servers and new \
    partition maps; compact and defragment it, then run `etcdctl alarm disarm`";

fn entry_of(found: &KeyValue) -> Result<CatalogEntry, Error> {
    let (key, value) = (found.key_str()?.to_owned(), found.value_str()?.to_owned());
    Ok(CatalogEntry { key, value, version: EntryVersion(found.mod_revision() as u64) })
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
fn is_version(key: &str, expected: Option<EntryVersion>) -> Compare {
    let revision = expected.map_or(0, |version| version.0 as i64);
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

/// Each attempt's share of a call when `left` of its time is left and this many members are left.
fn share(left: Duration, members: usize) -> Duration {
    left / u32::try_from(members.max(1)).unwrap_or(u32::MAX)
}

impl EtcdCatalog {
    /// Creates a handle on the etcd cluster with these members, each `HOST:PORT`. It connects on
    /// its first call.
    ///
    /// # Errors
    /// [`CatalogError::System`], or [`CatalogError::Unreachable`] with the error of the client.
    pub fn new(members: &[String]) -> Result<Self, CatalogError> {
        let address = format!("etcd:{}", members.join(","));
        let system =
            |error: io::Error| CatalogError::System(format!("the client of etcd: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(system)?;
        let handle = runtime.handle().clone();
        // Shorter than the attempt, so that a host that does not answer is known to have got
        // nothing.
        let connect_within = share(CALL, members.len()) * 2 / 3;
        // A member without a leader refuses at once instead of waiting for one.
        let options = ConnectOptions::new()
            .with_connect_timeout(connect_within)
            .with_timeout(CALL)
            .with_require_leader(true);
        let connect = |name: &String| {
            let client = runtime.block_on(Client::connect([name], Some(options.clone())));
            client.map(|client| EtcdMember { name: name.clone(), client })
        };
        let members: Result<Vec<_>, _> = members.iter().map(connect).collect();
        let members = members
            .map_err(|error| CatalogError::unreachable(address.clone(), error.to_string()))?;
        // Spread the processes over the members.
        let preferred = AtomicUsize::new(std::process::id() as usize % members.len().max(1));
        let (end, ended) = oneshot::channel();
        let run = move || {
            // Dropping the sender ends this wait.
            let _ = runtime.block_on(ended);
        };
        let thread = start_thread("etcd".into(), run).map_err(system)?;
        Ok(Self {
            address,
            members,
            preferred,
            runtime: handle,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Asks the members in turn, beginning with the preferred one, until one carries the request
    /// out, refuses it, or may have carried out what must not be repeated.
    async fn ask<T, W: Future<Output = Result<T, Error>>>(
        &self,
        repeat: RepeatPolicy,
        work: impl Fn(Client) -> W,
    ) -> Result<T, CatalogError> {
        let (clock, count) = (MonotonicClock::start(), self.members.len());
        let (mut failures, mut was_sent) = (Vec::new(), false);
        loop {
            let mut elects = false;
            let first = self.preferred.load(Ordering::Relaxed);
            failures.clear();
            for step in 0..count {
                let place = (first + step) % count;
                let member = &self.members[place];
                let within = share(CALL.saturating_sub(clock.elapsed()), count - step);
                let failure = match timeout(within, work(member.client.clone())).await {
                    Ok(Ok(value)) => {
                        self.preferred.store(place, Ordering::Relaxed);
                        return Ok(value);
                    }
                    Ok(Err(error)) => EtcdFailure::of(&error),
                    Err(_) => EtcdFailure::Unknown("it took too long".to_owned()),
                };
                // The next call begins with another member.
                self.preferred.store((place + 1) % count, Ordering::Relaxed);
                let why = match failure {
                    EtcdFailure::NoLease => {
                        return Err(CatalogError::Refused(ENDED.to_owned()));
                    }
                    EtcdFailure::Refused(why) => return Err(CatalogError::Refused(why)),
                    EtcdFailure::NotSent(why) => why,
                    EtcdFailure::NoLeader => {
                        elects = true;
                        "it knows no leader".to_owned()
                    }
                    EtcdFailure::Unknown(why) => {
                        was_sent = true;
                        why
                    }
                };
                failures.push(format!("{}: {why}", member.name));
                if was_sent && repeat == RepeatPolicy::Never {
                    return Err(self.failed(CatalogError::indeterminate, &failures));
                }
            }
            if !elects || clock.elapsed() + ELECTION * 2 >= CALL {
                return Err(self.failed(CatalogError::unreachable, &failures));
            }
            sleep(ELECTION).await;
        }
    }

    fn failed(
        &self,
        how: impl Fn(String, String) -> CatalogError,
        failures: &[String],
    ) -> CatalogError {
        how(self.address.clone(), failures.join("; "))
    }

    fn call<T, W: Future<Output = Result<T, Error>>>(
        &self,
        work: impl Fn(Client) -> W,
    ) -> Result<T, CatalogError> {
        self.runtime.block_on(self.ask(RepeatPolicy::Idempotent, work))
    }

    /// Runs a transaction that changes an entry. If it may have been sent and was not answered, its
    /// outcome is unknown.
    fn change(&self, transaction: &Txn) -> Result<bool, CatalogError> {
        let work = |mut client: Client| async move { client.txn(transaction.clone()).await };
        let done = self.runtime.block_on(self.ask(RepeatPolicy::Never, work))?;
        Ok(done.succeeded())
    }
}

impl Catalog for EtcdCatalog {
    fn get(&self, key: &str) -> Result<Option<CatalogEntry>, CatalogError> {
        self.call(|mut client| async move {
            let found = client.get(key, None).await?;
            found.kvs().first().map(entry_of).transpose()
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<CatalogEntry>, CatalogError> {
        let (mut all, end) = (Vec::new(), end_of(prefix));
        let mut start = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE_ENTRIES);
            let found = self.call(|mut client| {
                let (start, options) = (start.clone(), options.clone());
                async move { client.get(start, Some(options)).await }
            })?;
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
        expected: Option<EntryVersion>,
        value: &str,
        lease: Option<CatalogLease>,
    ) -> Result<bool, CatalogError> {
        check(key, value)?;
        let options = lease.map(|lease| PutOptions::new().with_lease(lease.0 as i64));
        let put = TxnOp::put(key, value, options);
        self.change(&Txn::new().when([is_version(key, expected)]).and_then([put]))
    }

    fn delete_if(&self, key: &str, expected: EntryVersion) -> Result<bool, CatalogError> {
        let delete = TxnOp::delete(key, None);
        self.change(&Txn::new().when([is_version(key, Some(expected))]).and_then([delete]))
    }

    /// A lease that was granted without an answer ends unused.
    fn grant(&self, term: Duration) -> Result<GrantedLease, CatalogError> {
        let seconds = term.as_secs() + u64::from(term.subsec_nanos() > 0);
        let granted =
            self.call(|mut client| async move { client.lease_grant(seconds as i64, None).await })?;
        let term = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(seconds));
        Ok(GrantedLease { lease: CatalogLease(granted.id() as u64), term })
    }

    fn keep_alive(&self, lease: CatalogLease) -> Result<bool, CatalogError> {
        // Opening the stream already sends one keep-alive.
        let kept =
            self.call(|mut client| async move { client.lease_keep_alive(lease.0 as i64).await });
        match kept {
            Ok(_) => Ok(true),
            Err(CatalogError::Refused(why)) if why == ENDED => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn revoke(&self, lease: CatalogLease) -> Result<(), CatalogError> {
        let revoked =
            self.call(|mut client| async move { client.lease_revoke(lease.0 as i64).await });
        match revoked {
            Err(CatalogError::Refused(why)) if why == ENDED => Ok(()),
            revoked => revoked.map(drop),
        }
    }

    /// Asks all members at once.
    fn warnings(&self) -> Vec<String> {
        let ask = |member: &EtcdMember| {
            let (name, mut client) = (member.name.clone(), member.client.clone());
            async move {
                let status = timeout(share(CALL, self.members.len()), client.status()).await;
                let failure = match status {
                    Ok(Ok(status)) => return (name, Ok(status.errors().to_vec())),
                    Ok(Err(error)) => EtcdFailure::of(&error),
                    Err(_) => EtcdFailure::Unknown("it took too long".to_owned()),
                };
                let why = match failure {
                    EtcdFailure::NoLease | EtcdFailure::NoLeader => "it knows no leader".to_owned(),
                    EtcdFailure::Refused(why)
                    | EtcdFailure::NotSent(why)
                    | EtcdFailure::Unknown(why) => why,
                };
                (name, Err(why))
            }
        };
        let answers = self.runtime.block_on(join_all(self.members.iter().map(ask)));
        let mut warnings = Vec::new();
        for (name, answer) in answers {
            let lines = match answer {
                Ok(errors) => errors
                    .into_iter()
                    .map(|error| match error.contains("NOSPACE") {
                        true => FULL.to_owned(),
                        false => format!("etcd member {name}: {error}"),
                    })
                    .collect(),
                Err(why) => vec![format!("etcd member {name} does not answer: {why}")],
            };
            // Each member names the alarms of all.
            for line in lines {
                if !warnings.contains(&line) {
                    warnings.push(line);
                }
            }
        }
        warnings
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
