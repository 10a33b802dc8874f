//! A program's own entry in the catalog, kept there by a lease.
//!
//! *Invariants*: membership.N1. while the program runs and the catalog answers, its entry is there
//! and says what was last published; when the program ends or dies, the entry goes, at the latest a
//! term later. membership.N2. an entry of another program is never overwritten: a program whose
//! number is taken waits until it is free. membership.N3. nothing is retried without a pause.
//!
//! *Thread safety*: any number of threads.

use crate::catalog::{Catalog, CatalogError, Lease};
use crate::clock::Clock;
use crate::stop::Stop;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Default term of a lease.
pub const DEFAULT_TERM: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Published {
    /// What the entry shall say.
    value: String,
    lease: Lease,
}

struct Shared {
    catalog: Arc<dyn Catalog>,
    key: String,
    term: Duration,
    /// Held during every exchange about the entry: it has one writer at a time.
    published: Mutex<Published>,
    stop: Stop,
}

/// A program's place in the cluster; dropping it gives the place up.
pub struct Member {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("key", &self.shared.key).finish_non_exhaustive()
    }
}

/// Puts `value` under `key` unless another program's is there; whether it is there now. `mine` is
/// what this program has put there before.
fn put(
    catalog: &dyn Catalog,
    key: &str,
    value: &str,
    mine: Option<&str>,
    lease: Lease,
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
        // It may be there all the same: under this lease or not at all, since no other program
        // writes this value.
        Err(CatalogError::Indeterminate { .. }) => {
            Ok(catalog.get(key)?.is_some_and(|entry| entry.value == value))
        }
        put => put,
    }
}

impl Shared {
    /// A whole term more; or, if it has ended, a new lease and the entry again.
    fn keep(&self) -> Result<(), CatalogError> {
        let mut published = lock(&self.published);
        if self.catalog.keep_alive(published.lease)? {
            return Ok(());
        }
        tracing::warn!("{}: the lease has ended; registering again", self.key);
        let lease = self.catalog.grant(self.term)?;
        let (value, mine) = (&published.value, Some(published.value.as_str()));
        if put(&*self.catalog, &self.key, value, mine, lease)? {
            published.lease = lease;
            tracing::info!("{}: registered again", self.key);
            return Ok(());
        }
        // The next attempt grants another one.
        self.catalog.revoke(lease)?;
        Err(CatalogError::Refused(format!("{} now belongs to another program", self.key)))
    }

    fn run(&self) {
        let mut fails = false;
        while !self.stop.wait(self.term / 3) {
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

impl Member {
    /// Registers `value` under `key`. If an entry is there, it is that of a program that lives or
    /// has died a short time ago: waits for its end, for `patience` at most, or until `stop`; and
    /// so for a catalog that does not answer.
    ///
    /// # Errors
    /// [`CatalogError`], the last one if time has run out.
    pub fn register(
        catalog: Arc<dyn Catalog>,
        key: String,
        value: String,
        term: Duration,
        patience: Duration,
        stop: &Stop,
    ) -> Result<Self, CatalogError> {
        let clock = Clock::start();
        let mut waits = false;
        let lease = loop {
            let attempt = catalog.grant(term).and_then(|lease| {
                if put(&*catalog, &key, &value, None, lease)? {
                    return Ok(lease);
                }
                catalog.revoke(lease)?;
                Err(CatalogError::Refused(format!("{key} is registered by another program")))
            });
            match attempt {
                Ok(lease) => break lease,
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
        tracing::info!("{key}: registered");
        let published = Mutex::new(Published { value, lease });
        let shared = Arc::new(Shared { catalog, key, term, published, stop: Stop::default() });
        let keeper = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("membership".into())
            .spawn(move || keeper.run())
            .map_err(|error| CatalogError::Refused(format!("cannot start a thread: {error}")))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Changes what the entry says. After an error the entry says the one or the other; publishing
    /// again is safe.
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

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.stop.raise();
        if let Some(thread) = lock(&self.thread).take() {
            // If it has panicked, that has been said already.
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
