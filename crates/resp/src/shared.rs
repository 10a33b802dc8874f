//! What all sessions of a server share: its configuration, the cursors of SCAN, who is connected,
//! the last count of keys, and counters.
//!
//! *Invariants*
//! - resp.S1. A cursor is never 0, never given twice by one server, and continues behind the key
//!   that it was given for. It is forgotten, and then refused, when the one of the next page is
//!   used, and as the oldest for the 16,385th.
//! - resp.S2. Passwords are compared in constant time, by their digests.
//!
//! *Thread safety*: any number of threads; no lock is held while something is awaited.

use crate::limits::RespLimits;
use crate::reply::RespVersion;
use crate::store::StoreError;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
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

/// The cursors of SCAN.
#[derive(Debug)]
struct CursorRing {
    next: u64,
    given: BTreeMap<u64, GivenCursor>,
}

#[derive(Debug)]
struct GivenCursor {
    /// The key that it continues behind.
    behind: Vec<u8>,
    /// The cursor of the page that it was given with; 0 for the first page.
    former: u64,
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

/// A count of all keys that has ended.
#[derive(Clone, Debug)]
pub(crate) struct EndedCount {
    /// How many, or why it is unknown.
    pub(crate) keys: Result<u64, StoreError>,
    pub(crate) begun: Duration,
    pub(crate) ended: Duration,
}

impl EndedCount {
    /// Whether it may be used for a reply at `now`: if it took long, and is at most ten times as
    /// old as that, or if the next one has begun.
    fn is_usable(&self, now: Duration, is_counting: bool) -> bool {
        let took = self.ended.saturating_sub(self.begun);
        let is_new = is_counting || now.saturating_sub(self.ended) <= took * 10;
        self.keys.is_ok() && took >= SHORT_COUNT && is_new
    }
}

/// The last count of all keys, and who counts.
#[derive(Debug, Default)]
struct KeyCount {
    last: Option<EndedCount>,
    /// The last one, if it failed. Those who waited for it get its error.
    failed: Option<EndedCount>,
    is_counting: bool,
    /// Whether all keys have been removed since the running count began.
    is_forgotten: bool,
    next_waiter: u64,
    waiters: BTreeMap<u64, Waker>,
}

/// Waits for a running count.
#[derive(Debug)]
struct CountWaiter<'a> {
    shared: &'a RespShared,
    id: u64,
}

impl Future for CountWaiter<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut count = lock(&self.shared.count);
        if !count.is_counting {
            return Poll::Ready(());
        }
        let former = count.waiters.insert(self.id, context.waker().clone());
        // A waker that is dropped may have a lot to do, and not under the lock.
        drop(count);
        drop(former);
        Poll::Pending
    }
}

impl Drop for CountWaiter<'_> {
    fn drop(&mut self) {
        let waker = lock(&self.shared.count).waiters.remove(&self.id);
        drop(waker);
    }
}

/// The right to count. Dropped, it lets another one count.
#[derive(Debug)]
pub(crate) struct CountGuard<'a> {
    shared: &'a RespShared,
    ended: Option<EndedCount>,
}

impl CountGuard<'_> {
    /// Keeps what was counted.
    pub(crate) fn end(mut self, ended: EndedCount) {
        self.ended = Some(ended);
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        let mut count = lock(&self.shared.count);
        count.is_counting = false;
        match self.ended.take() {
            Some(ended) if ended.keys.is_err() => count.failed = Some(ended),
            Some(ended) if !count.is_forgotten => (count.last, count.failed) = (Some(ended), None),
            _ => {}
        }
        let waiters = std::mem::take(&mut count.waiters);
        drop(count);
        waiters.into_values().for_each(Waker::wake);
    }
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
            cursors: Mutex::new(CursorRing { next, given: BTreeMap::new() }),
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

    /// A cursor that continues behind `key`, for the page of the cursor `former`.
    pub(crate) fn give_cursor(&self, behind: Vec<u8>, former: u64) -> u64 {
        let mut ring = lock(&self.cursors);
        let cursor = ring.next;
        ring.next += 1;
        ring.given.insert(cursor, GivenCursor { behind, former });
        if ring.given.len() > MAX_CURSORS {
            ring.given.pop_first();
        }
        cursor
    }

    /// The key that a cursor continues behind. It can be used again, for a repeated request; the
    /// one before it is forgotten, because its page has arrived.
    pub(crate) fn cursor(&self, cursor: u64) -> Option<Vec<u8>> {
        let mut ring = lock(&self.cursors);
        let GivenCursor { behind, former } = ring.given.get(&cursor)?;
        let (behind, former) = (behind.clone(), *former);
        ring.given.remove(&former);
        Some(behind)
    }

    /// A count for a reply at `now`, or the right to count. While another one counts, waits for a
    /// count that has begun at `now` or later.
    pub(crate) async fn begin_count(
        &self,
        now: Duration,
        is_exact: bool,
    ) -> Result<Result<u64, StoreError>, CountGuard<'_>> {
        let mut has_waited = false;
        loop {
            let waiter = {
                let mut count = lock(&self.count);
                let is_counting = count.is_counting;
                let is_usable = |last: &&EndedCount| {
                    let is_own = has_waited && last.begun >= now;
                    is_own || (!is_exact && last.is_usable(now, is_counting))
                };
                let ended = [&count.last, &count.failed];
                if let Some(last) = ended.into_iter().flatten().find(is_usable) {
                    return Ok(last.keys.clone());
                }
                if !is_counting {
                    (count.is_counting, count.is_forgotten) = (true, false);
                    return Err(CountGuard { shared: self, ended: None });
                }
                count.next_waiter += 1;
                CountWaiter { shared: self, id: count.next_waiter }
            };
            waiter.await;
            has_waited = true;
        }
    }

    /// Forgets the last count, because all keys have been removed.
    pub(crate) fn forget_count(&self) {
        let mut count = lock(&self.count);
        (count.last, count.is_forgotten) = (None, true);
    }

    /// The last count, with the time when it ended.
    pub(crate) fn last_count(&self) -> Option<(u64, Duration)> {
        let count = lock(&self.count);
        count.last.as_ref().and_then(|last| Some((*last.keys.as_ref().ok()?, last.ended)))
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
    use futures_util::FutureExt;
    use std::pin::pin;

    #[test]
    fn cursors_are_forgotten_in_order() {
        let shared = shared_for_tests(None);
        let first = shared.give_cursor(b"first".to_vec(), 0);
        assert_eq!(shared.cursor(first).as_deref(), Some(&b"first"[..]));
        let second = shared.give_cursor(b"second".to_vec(), 0);
        for _ in 0..MAX_CURSORS - 1 {
            assert!(shared.give_cursor(Vec::new(), 0) < 1 << 53);
        }
        assert_eq!(shared.cursor(first), None);
        assert_eq!(shared.cursor(second).as_deref(), Some(&b"second"[..]));
        assert_eq!(shared.cursor(0), None);
    }

    #[test]
    fn an_iteration_has_the_cursors_of_two_pages() {
        let shared = shared_for_tests(None);
        let (mut former, mut cursor) = (0, shared.give_cursor(vec![0], 0));
        for page in 1..100 {
            // A client may repeat the page, and gets another cursor for the next one.
            let next = [(); 2].map(|()| {
                assert_eq!(shared.cursor(cursor), Some(vec![page - 1]));
                assert_eq!(shared.cursor(former), None);
                shared.give_cursor(vec![page], cursor)
            });
            (former, cursor) = (cursor, next[usize::from(page) % 2]);
        }
        assert!(lock(&shared.cursors).given.len() <= 2 + 99);
    }

    #[test]
    fn a_count_is_used_for_as_long_as_it_is_worth() {
        let shared = shared_for_tests(None);
        let s = Duration::from_secs;
        let begin = |now, is_exact| shared.begin_count(now, is_exact).now_or_never();
        let counts = |now, is_exact| begin(now, is_exact).unwrap().unwrap_err();
        let ended = |keys, begun, ended| EndedCount { keys: Ok(keys), begun, ended };
        counts(s(1), false).end(ended(7, s(1), s(2)));
        assert_eq!(begin(s(12), false).unwrap().unwrap(), Ok(7));
        let counting = counts(s(13), true);
        // Someone counts, so others take the last count, or wait.
        assert_eq!(begin(s(99), false).unwrap().unwrap(), Ok(7));
        assert!(begin(s(99), true).is_none());
        drop(counting);
        counts(s(99), false).end(ended(8, s(99), s(99)));
        // It took no time, so the next one counts.
        let keys = Err(StoreError::Unavailable(String::new()));
        counts(s(99), false).end(EndedCount { keys, begun: s(100), ended: s(103) });
        assert_eq!(shared.last_count(), Some((8, s(99))));
        let counting = counts(s(104), false);
        shared.forget_count();
        counting.end(ended(9, s(104), s(105)));
        assert_eq!(shared.last_count(), None);
    }

    #[test]
    fn one_counts_and_others_wait() {
        let shared = shared_for_tests(None);
        let at = Duration::from_millis;
        let waits = |begun| shared.begin_count(at(begun), true);
        let counting = waits(1).now_or_never().unwrap().unwrap_err();
        let (mut same, mut later, gone) = (pin!(waits(1)), pin!(waits(5)), waits(5));
        assert!(same.as_mut().now_or_never().is_none());
        assert!(later.as_mut().now_or_never().is_none());
        assert!(gone.now_or_never().is_none());
        assert_eq!(lock(&shared.count).waiters.len(), 2);
        counting.end(EndedCount { keys: Ok(3), begun: at(1), ended: at(6) });
        assert_eq!(same.now_or_never().unwrap().unwrap(), Ok(3));
        // That one began before it was asked, so another one begins.
        let counting = later.now_or_never().unwrap().unwrap_err();
        let mut last = pin!(waits(6));
        assert!(last.as_mut().now_or_never().is_none());
        drop(counting);
        let counting = last.now_or_never().unwrap().unwrap_err();
        let mut same = pin!(waits(7));
        assert!(same.as_mut().now_or_never().is_none());
        let keys = Err(StoreError::Unavailable("down".to_owned()));
        counting.end(EndedCount { keys: keys.clone(), begun: at(7), ended: at(9) });
        assert_eq!(same.now_or_never().unwrap().unwrap(), keys);
    }

    #[test]
    fn a_password_is_the_same_or_another() {
        let password = RespPassword::new(b"secret");
        assert!(password.is(b"secret") && !password.is(b"secret ") && !password.is(b""));
        assert_eq!(format!("{password:?}"), "RespPassword(secret)");
    }
}
