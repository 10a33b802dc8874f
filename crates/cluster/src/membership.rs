//! A program's own entry in the catalog, kept alive by a lease.
//!
//! *Invariants*: membership.N1. While the program runs and the catalog answers, its entry exists
//! and holds the last published value; when the program ends or dies, the entry disappears within
//! one term. membership.N2. A program never overwrites another program's entry: if its number is
//! taken, it waits until the number is free. membership.N3. There is a pause before every retry.
//!
//! *Thread safety*: any number of threads.

use crate::catalog::{Catalog, CatalogError, CatalogLease, GrantedLease};
use crate::clock::MonotonicClock;
use crate::stop::StopSignal;
use farleaf_fabric::listener::start_thread;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Default term of a lease.
pub const DEFAULT_TERM: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct PublishedRecord {
    /// The value that the entry should have.
    value: String,
    lease: CatalogLease,
    /// The term that the catalog has granted.
    term: Duration,
}

struct MembershipShared {
    catalog: Arc<dyn Catalog>,
    key: String,
    /// The term to ask for.
    term: Duration,
    /// Locked during every exchange about the entry, so that the entry has one writer at a time.
    published: Mutex<PublishedRecord>,
    stop: StopSignal,
}

/// A program's registration in the cluster; dropping it unregisters the program.
pub struct ClusterMember {
    shared: Arc<MembershipShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Puts `value` under `key` unless another program's entry is there. Returns whether the entry is
/// now `value`. `mine` is the value that this program last put there.
fn put(
    catalog: &dyn Catalog,
    key: &str,
    value: &str,
    mine: Option<&str>,
    lease: CatalogLease,
) -> Result<bool, CatalogError> {
    let found = catalog.get(key)?;
    let expected = match &found {
        Some(entry) if mine == Some(entry.value.as_str()) || entry.value == value => {
            Some(entry.version)
        }
        Some(_) => return Ok(false),
        None => None,
    };
    match catalog.put_if(key, expected, value, Some(lease)) {
        // The put may have succeeded. No other program writes this value, so if the entry has it,
        // it is under this lease.
        Err(CatalogError::Indeterminate { .. }) => {
            Ok(catalog.get(key)?.is_some_and(|entry| entry.value == value))
        }
        put => put,
    }
}

impl MembershipShared {
    /// Renews the lease. If it has ended, grants a new lease and puts the entry again.
    fn keep(&self) -> Result<(), CatalogError> {
        let mut published = lock(&self.published);
        if self.catalog.keep_alive(published.lease)? {
            return Ok(());
        }
        tracing::warn!("{}: the lease has ended; registering again", self.key);
        let GrantedLease { lease, term } = self.catalog.grant(self.term)?;
        let (value, mine) = (&published.value, Some(published.value.as_str()));
        if put(&*self.catalog, &self.key, value, mine, lease)? {
            (published.lease, published.term) = (lease, term);
            tracing::info!("{}: registered again", self.key);
            return Ok(());
        }
        // The next attempt grants another lease.
        self.catalog.revoke(lease)?;
        Err(CatalogError::Refused(format!("{} now belongs to another program", self.key)))
    }

    /// Pause between two renewals.
    fn interval(&self) -> Duration {
        lock(&self.published).term / 3
    }

    fn run(&self) {
        let mut fails = false;
        while !self.stop.wait(self.interval()) {
            match self.keep() {
                Err(error) if !fails => {
                    tracing::warn!("{}: cannot renew the lease: {error}", self.key);
                    fails = true;
                }
                Err(_) => {}
                Ok(()) if fails => {
                    tracing::info!("{}: renewed the lease", self.key);
                    fails = false;
                }
                Ok(()) => {}
            }
        }
    }
}

impl ClusterMember {
    /// Registers `value` under `key`. An existing entry belongs to a program that is alive or has
    /// died recently: waits until it disappears, for at most `patience`, or until `stop` is raised.
    /// Also waits for a catalog that does not answer.
    ///
    /// # Errors
    /// [`CatalogError`]: a rejected handshake immediately; otherwise the last error when `patience`
    /// runs out or `stop` is raised.
    pub fn register(
        catalog: Arc<dyn Catalog>,
        key: String,
        value: String,
        term: Duration,
        patience: Duration,
        stop: &StopSignal,
    ) -> Result<Self, CatalogError> {
        let clock = MonotonicClock::start();
        let (mut waits, mut patience) = (false, patience);
        let granted = loop {
            let attempt = catalog.grant(term).and_then(|granted| {
                // The holder of the number has such a lease, too.
                patience = patience.max(granted.term * 2);
                if put(&*catalog, &key, &value, None, granted.lease)? {
                    return Ok(granted);
                }
                catalog.revoke(granted.lease)?;
                Err(CatalogError::Refused(format!("{key} is registered by another program")))
            });
            match attempt {
                Ok(granted) => break granted,
                Err(error @ CatalogError::NotLetIn { .. }) => return Err(error),
                Err(error) => {
                    if !waits {
                        tracing::info!("{key}: waiting to register: {error}");
                        waits = true;
                    }
                    if clock.elapsed() >= patience || stop.wait(Duration::from_millis(100)) {
                        return Err(error);
                    }
                }
            }
        };
        let GrantedLease { lease, term: granted } = granted;
        tracing::info!("{key}: registered");
        if granted > term {
            tracing::warn!(
                "{key}: the catalog grants no lease of {} s; this server counts as live for {} s after its death",
                term.as_secs_f64(),
                granted.as_secs_f64()
            );
        }
        let published = Mutex::new(PublishedRecord { value, lease, term: granted });
        let shared = Arc::new(MembershipShared {
            catalog,
            key,
            term,
            published,
            stop: StopSignal::default(),
        });
        let keeper = Arc::clone(&shared);
        let thread = start_thread("membership".into(), move || keeper.run())
            .map_err(|error| CatalogError::System(error.to_string()))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Changes the value of the entry. After an error the entry may have the old or the new value;
    /// publishing again is safe.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn publish(&self, value: String) -> Result<(), CatalogError> {
        let shared = &*self.shared;
        let mut published = lock(&shared.published);
        let mine = Some(published.value.as_str());
        if put(&*shared.catalog, &shared.key, &value, mine, published.lease)? {
            published.value = value;
            return Ok(());
        }
        Err(CatalogError::Refused(format!("{} now belongs to another program", shared.key)))
    }
}

impl Drop for ClusterMember {
    fn drop(&mut self) {
        self.shared.stop.raise();
        if let Some(thread) = lock(&self.thread).take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
        let lease = lock(&self.shared.published).lease;
        match self.shared.catalog.revoke(lease) {
            Ok(()) => tracing::info!("{}: no longer registered", self.shared.key),
            Err(error) => {
                tracing::warn!(
                    "{}: cannot unregister, its lease ends a term later: {error}",
                    self.shared.key
                );
            }
        }
    }
}
