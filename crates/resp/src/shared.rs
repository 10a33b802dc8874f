//! What all sessions of a server share: its configuration, the cursors of SCAN, who is connected,
//! the last count of keys, and counters.
//!
//! *Invariants*
//! - resp.S1. A cursor is never 0, never given twice by one server, and continues behind the key
//!   that it was given for. The oldest is forgotten for the 16,385th, and then refused.
//! - resp.S2. Passwords are compared in constant time, by their digests.
//!
//! *Thread safety*: any number of threads; no lock is held while something is awaited.

use crate::limits::RespLimits;
use crate::reply::RespVersion;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The digest of a password.
#[derive(Clone)]
pub struct RespPassword([u8; 32]);

impl fmt::Debug for RespPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RespPassword(secret)")
    }
}

impl RespPassword {
    /// The digest of this password.
    pub fn new(password: &[u8]) -> Self {
        Self(Sha256::digest(password).into())
    }

    /// Whether it is this password.
    pub(crate) fn is(&self, attempt: &[u8]) -> bool {
        let attempt = Self::new(attempt);
        let difference =
            self.0.iter().zip(attempt.0).fold(0, |sum, (left, right)| sum | (left ^ right));
        std::hint::black_box(difference) == 0
    }
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct RespConfig {
    /// The name of the index for the commands `RI.*`.
    pub index_name: String,
    /// Without one, every client may do everything.
    pub password: Option<RespPassword>,
    pub limits: RespLimits,
    /// The version of this program.
    pub version: &'static str,
    pub port: u16,
    pub max_clients: usize,
    /// A number that no other run of the server draws, for cursors.
    pub seed: u64,
    /// For so long a command that changes keys begins operations, each of which ends after as long.
    pub deadline: Duration,
}

/// Number of cursors that are remembered.
const MAX_CURSORS: usize = 16_384;
/// A count that takes no longer is repeated for each DBSIZE.
const SHORT_COUNT: Duration = Duration::from_millis(20);
/// Cursors stay below 2^53, the integers that a double has.
const FIRST_CURSOR: u64 = 1 << 51;

/// The cursors of SCAN, with the key that each continues behind.
#[derive(Debug)]
struct CursorRing {
    next: u64,
    behind: BTreeMap<u64, Vec<u8>>,
}

/// One client, for CLIENT LIST.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientEntry {
    pub(crate) address: String,
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) version: RespVersion,
    pub(crate) last_command: &'static str,
    pub(crate) since: Duration,
}

/// The last count of all keys.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyCount {
    /// How many, when counting ended, and how long it took.
    pub(crate) last: Option<(u64, Duration, Duration)>,
    pub(crate) is_counting: bool,
}

/// The shared state of a server's sessions.
#[derive(Debug)]
pub struct RespShared {
    pub(crate) config: RespConfig,
    cursors: Mutex<CursorRing>,
    clients: Mutex<BTreeMap<u64, ClientEntry>>,
    count: Mutex<KeyCount>,
    next_client: AtomicU64,
    connections: AtomicU64,
    rejected: AtomicU64,
    commands: AtomicU64,
    uptime_ms: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Consistent at every step, even if a thread panicked while holding it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RespShared {
    /// The state of a server that begins.
    pub fn new(config: RespConfig) -> Self {
        let next = FIRST_CURSOR + config.seed % FIRST_CURSOR;
        Self {
            config,
            cursors: Mutex::new(CursorRing { next, behind: BTreeMap::new() }),
            clients: Mutex::default(),
            count: Mutex::default(),
            next_client: AtomicU64::new(1),
            connections: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            uptime_ms: AtomicU64::new(0),
        }
    }

    /// Sets the time since the server began; call it about once a second.
    pub fn set_uptime(&self, uptime: Duration) {
        let uptime_ms = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
        self.uptime_ms.store(uptime_ms, Ordering::Relaxed);
    }

    pub(crate) fn uptime(&self) -> Duration {
        Duration::from_millis(self.uptime_ms.load(Ordering::Relaxed))
    }

    /// Number of connected clients.
    pub fn connected(&self) -> usize {
        lock(&self.clients).len()
    }

    /// Counts a connection that was refused because there are too many.
    pub fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_command(&self) {
        self.commands.fetch_add(1, Ordering::Relaxed);
    }

    /// All connections so far, refused ones, and commands.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.connections), load(&self.rejected), load(&self.commands))
    }

    /// Enters a client; returns its number.
    pub(crate) fn enter(&self, address: &str) -> u64 {
        let id = self.next_client.fetch_add(1, Ordering::Relaxed);
        self.connections.fetch_add(1, Ordering::Relaxed);
        let (address, since) = (address.to_owned(), self.uptime());
        let entry = ClientEntry { address, since, ..ClientEntry::default() };
        lock(&self.clients).insert(id, entry);
        id
    }

    pub(crate) fn leave(&self, id: u64) {
        lock(&self.clients).remove(&id);
    }

    pub(crate) fn change_client(&self, id: u64, change: impl FnOnce(&mut ClientEntry)) {
        if let Some(entry) = lock(&self.clients).get_mut(&id) {
            change(entry);
        }
    }

    pub(crate) fn client(&self, id: u64) -> ClientEntry {
        lock(&self.clients).get(&id).cloned().unwrap_or_default()
    }

    /// The first clients whose numbers are larger than `id`.
    pub(crate) fn clients_behind(&self, id: u64, limit: usize) -> Vec<(u64, ClientEntry)> {
        let clients = lock(&self.clients);
        let behind = clients.range((Bound::Excluded(id), Bound::Unbounded)).take(limit);
        behind.map(|(id, entry)| (*id, entry.clone())).collect()
    }

    /// A cursor that continues behind `key`.
    pub(crate) fn give_cursor(&self, key: Vec<u8>) -> u64 {
        let mut ring = lock(&self.cursors);
        let cursor = ring.next;
        ring.next += 1;
        ring.behind.insert(cursor, key);
        if ring.behind.len() > MAX_CURSORS {
            ring.behind.pop_first();
        }
        cursor
    }

    /// The key that a cursor continues behind. It can be used again, for a repeated request.
    pub(crate) fn cursor(&self, cursor: u64) -> Option<Vec<u8>> {
        lock(&self.cursors).behind.get(&cursor).cloned()
    }

    /// The last count, if it may be used for a reply at `now`: if counting took long, and it is at
    /// most ten times as old as that, or if someone is counting. Otherwise the caller counts, and
    /// says so by [`RespShared::end_count`].
    pub(crate) fn begin_count(&self, now: Duration, is_exact: bool) -> Option<u64> {
        let mut count = lock(&self.count);
        let usable = count.last.filter(|(_, at, took)| {
            let is_new = now.saturating_sub(*at) <= *took * 10;
            *took >= SHORT_COUNT && (count.is_counting || is_new)
        });
        match usable {
            Some((keys, ..)) if !is_exact => Some(keys),
            _ => {
                count.is_counting = true;
                None
            }
        }
    }

    pub(crate) fn end_count(&self, counted: Option<(u64, Duration, Duration)>) {
        let mut count = lock(&self.count);
        count.is_counting = false;
        count.last = counted.or(count.last);
    }

    /// Forgets the last count, because all keys have been removed.
    pub(crate) fn forget_count(&self) {
        lock(&self.count).last = None;
    }

    pub(crate) fn last_count(&self) -> KeyCount {
        *lock(&self.count)
    }

    /// Whether an index of the commands `RI.*` is this one.
    pub(crate) fn is_index(&self, name: &[u8]) -> bool {
        self.config.index_name.as_bytes() == name
    }
}

#[cfg(test)]
pub(crate) fn shared_for_tests(password: Option<&str>) -> RespShared {
    RespShared::new(RespConfig {
        index_name: "default".to_owned(),
        password: password.map(|password| RespPassword::new(password.as_bytes())),
        limits: RespLimits::default(),
        version: "0",
        port: 0,
        max_clients: 10,
        seed: u64::MAX,
        deadline: Duration::from_secs(3),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_forgotten_in_order() {
        let shared = shared_for_tests(None);
        let first = shared.give_cursor(b"first".to_vec());
        assert_eq!(shared.cursor(first).as_deref(), Some(&b"first"[..]));
        let second = shared.give_cursor(b"second".to_vec());
        for _ in 0..MAX_CURSORS - 1 {
            assert!(shared.give_cursor(Vec::new()) < 1 << 53);
        }
        assert_eq!(shared.cursor(first), None);
        assert_eq!(shared.cursor(second).as_deref(), Some(&b"second"[..]));
        assert_eq!(shared.cursor(0), None);
    }

    #[test]
    fn a_count_is_used_for_as_long_as_it_is_worth() {
        let shared = shared_for_tests(None);
        let second = Duration::from_secs(1);
        assert_eq!(shared.begin_count(second, false), None);
        shared.end_count(Some((7, second * 2, second)));
        assert_eq!(shared.begin_count(second * 12, false), Some(7));
        assert_eq!(shared.begin_count(second * 12, true), None);
        // Someone counts, so others take the last count.
        assert_eq!(shared.begin_count(second * 99, false), Some(7));
        shared.end_count(None);
        assert_eq!(shared.begin_count(second * 99, false), None);
        shared.end_count(Some((7, second * 99, second / 100)));
        assert_eq!(shared.begin_count(second * 99, false), None);
    }

    #[test]
    fn a_password_is_the_same_or_another() {
        let password = RespPassword::new(b"secret");
        assert!(password.is(b"secret") && !password.is(b"secret ") && !password.is(b""));
        assert_eq!(format!("{password:?}"), "RespPassword(secret)");
    }
}
