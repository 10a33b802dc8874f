//! The turns of one compute server's clients at the entry locks of leaves, and the hand-over of a
//! lock from one to the next.
//!
//! Clients of a compute server lock under one number, which is registered once and never used
//! again: a lock that is handed over names its compute server whichever client holds it. Each
//! acquisition has a word of its own, so that a client can tell its lock from a later one.
//!
//! *Invariants*
//! - entries.H1. Of the clients of a compute server, only the one whose turn it is tries to lock a
//!   free leaf or changes it. Another one may have the lock without changing records: it takes it
//!   over from a dead client, or left it in doubt, and mends the leaf before it releases the lock.
//! - entries.H2. A lock is handed over only to a client that waits, and only a bounded number of
//!   times in a row, so that clients of other compute servers get it too.
//!
//! After Wang et al., *Sherman* (SIGMOD 2022), §4.3.
//!
//! *Thread safety*: shared by all threads of a compute server.

use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_page::LockWord;
use std::collections::{BTreeMap, VecDeque};

/// A lock that is handed over, and how many times it was.
pub(super) type HandedLock = (LockWord, u32);

/// The entry locks as clients of one compute server see them.
#[derive(Debug, Default)]
pub struct EntryLocks {
    /// The number under which they lock; 0 until it is registered.
    owner: AtomicU64,
    sequence: AtomicU64,
    /// How many clients in a row can get a lock by hand-over.
    most_in_a_row: u32,
    /// Whether no other compute server changes the leaves, so that a turn is as good as the lock.
    is_exclusive: bool,
    /// Whether a free lock has the word of its last acquisition, instead of 0 (entries.V1).
    has_versions: bool,
    queues: Mutex<BTreeMap<GlobalAddr, LockQueue>>,
}

/// The clients that want a leaf's lock, by ticket.
#[derive(Debug)]
struct LockQueue {
    turn: u64,
    waiting: VecDeque<u64>,
    /// The lock, for the client whose turn it is.
    handed: Option<HandedLock>,
}

impl EntryLocks {
    /// Locks that at most this many clients in a row get by hand-over.
    pub(crate) fn new(most_in_a_row: u32) -> Self {
        Self { most_in_a_row, ..Self::default() }
    }

    /// Locks of leaves that only the clients of one compute server change: a turn is enough.
    pub(crate) fn exclusive() -> Self {
        Self { is_exclusive: true, ..Self::default() }
    }

    /// The same locks, with words that show whether a leaf has changed (entries.V1).
    #[must_use]
    pub(crate) fn with_versions(self) -> Self {
        Self { has_versions: true, ..self }
    }

    /// Whether the word of a free lock shows whether the leaf has changed.
    pub(super) fn has_versions(&self) -> bool {
        self.has_versions
    }

    /// The word of the lock once this acquisition of it has ended.
    pub(super) fn free_after(&self, word: LockWord) -> LockWord {
        match self.has_versions {
            true => word.unlocked_by(word.owner()),
            false => LockWord::from_bits(0),
        }
    }

    /// Whether a turn is enough.
    pub(super) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// The number, if it is registered.
    pub(super) fn owner(&self) -> Option<u16> {
        Some(self.owner.load(Ordering::Relaxed) as u16).filter(|owner| *owner != 0)
    }

    /// Sets the number, unless another client has registered one meanwhile. Returns the number.
    pub(super) fn set_owner(&self, owner: u16) -> u16 {
        let new = u64::from(owner);
        match self.owner.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => owner,
            Err(other) => other as u16,
        }
    }

    /// A number that was not used before.
    pub(super) fn next(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The word of a new acquisition.
    pub(super) fn new_word(&self, owner: u16) -> LockWord {
        LockWord::from_bits(0).locked_by(owner).with_version(self.next())
    }

    /// Takes a ticket for a leaf.
    pub(super) fn queue_up(&self, at: GlobalAddr) -> u64 {
        let ticket = self.next();
        let mut queues = lock(&self.queues);
        match queues.get_mut(&at) {
            Some(queue) => queue.waiting.push_back(ticket),
            None => {
                let queue = LockQueue { turn: ticket, waiting: VecDeque::new(), handed: None };
                queues.insert(at, queue);
            }
        }
        ticket
    }

    /// Whether it is the ticket's turn, and the lock if it was handed over.
    pub(super) fn turn(&self, at: GlobalAddr, ticket: u64) -> Option<Option<HandedLock>> {
        let mut queues = lock(&self.queues);
        let queue = queues.get_mut(&at).filter(|queue| queue.turn == ticket)?;
        Some(queue.handed.take())
    }

    /// Whether a lock that was handed over `in_a_row` times should go to another client that waits
    /// (entries.H2).
    pub(super) fn is_for_next(&self, at: GlobalAddr, in_a_row: u32) -> bool {
        let is_wanted = |queue: &LockQueue| !queue.waiting.is_empty();
        in_a_row < self.most_in_a_row && lock(&self.queues).get(&at).is_some_and(is_wanted)
    }

    /// Gives the lock to the next client, if one waits.
    pub(super) fn hand_over(&self, at: GlobalAddr, handed: HandedLock) -> bool {
        let mut queues = lock(&self.queues);
        let Some(queue) = queues.get_mut(&at) else { return false };
        let Some(next) = queue.waiting.pop_front() else { return false };
        (queue.turn, queue.handed) = (next, Some(handed));
        true
    }

    /// Gives a ticket back. If the lock was handed to this ticket and not taken, the next client
    /// gets it; if none waits, it is returned.
    pub(super) fn leave(&self, at: GlobalAddr, ticket: u64) -> Option<HandedLock> {
        let mut queues = lock(&self.queues);
        let queue = queues.get_mut(&at)?;
        if queue.turn != ticket {
            queue.waiting.retain(|waiting| *waiting != ticket);
            return None;
        }
        match queue.waiting.pop_front() {
            Some(next) => {
                queue.turn = next;
                None
            }
            None => queues.remove(&at).and_then(|queue| queue.handed),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn turns_are_in_order_and_a_lock_that_is_not_taken_goes_on() {
        let (locks, at) = (EntryLocks::new(2), GlobalAddr::new(ServerId::new(0), 4096));
        let word = locks.new_word(locks.set_owner(7));
        assert_eq!((word.owner(), word.is_locked(), locks.set_owner(8)), (7, true, 7));
        assert_ne!(word, locks.new_word(7));
        let tickets = [(); 4].map(|()| locks.queue_up(at));
        assert_eq!(locks.turn(at, tickets[0]), Some(None));
        assert_eq!(locks.turn(at, tickets[1]), None);
        assert!(locks.is_for_next(at, 1) && !locks.is_for_next(at, 2));
        // The second client goes away while it waits.
        assert_eq!(locks.leave(at, tickets[1]), None);
        assert!(locks.hand_over(at, (word, 1)));
        assert_eq!(locks.turn(at, tickets[2]), Some(Some((word, 1))));
        assert_eq!(locks.turn(at, tickets[2]), Some(None), "taken once");
        assert!(locks.hand_over(at, (word, 2)));
        // It goes away before it takes the lock: the next one gets it, and counts as often.
        let later = [(); 2].map(|()| locks.queue_up(at));
        assert_eq!(locks.leave(at, tickets[3]), None);
        assert_eq!(locks.turn(at, later[0]), Some(Some((word, 2))));
        assert!(locks.hand_over(at, (word, 3)));
        assert_eq!(locks.leave(at, later[1]), Some((word, 3)), "none waits");
        assert!(!locks.is_for_next(at, 0) && !locks.hand_over(at, (word, 3)));
        let last = locks.queue_up(at);
        assert_eq!(locks.turn(at, last), Some(None));
        assert_eq!(locks.leave(at, last), None);
        assert!(lock(&locks.queues).is_empty());
    }
}
