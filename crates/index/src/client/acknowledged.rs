//! Which incarnations of compute servers have acknowledged changes that are not flushed yet.
//!
//! A change that a compute server has acknowledged is in its cache until it is written back. If the
//! process dies before, the next incarnation has nothing of it, and its answer to a flush says
//! nothing about it. So a client compares the incarnation that answers with the one that has
//! acknowledged (client.N6).
//!
//! *Thread safety*: any number of threads; all handles of a program should share one, so that the
//! flush of one handle covers the changes of all.

use farleaf_fabric::sync::{Mutex, lock};
use std::collections::BTreeMap;

/// The acknowledged changes of a program.
#[derive(Debug, Default)]
pub struct Acknowledged(Mutex<BTreeMap<u16, AcknowledgedChanges>>);

/// What a program knows of the changes that a compute server has acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct AcknowledgedChanges {
    /// The incarnation of the latest acknowledgement.
    incarnation: u64,
    /// Number of acknowledged changes.
    acknowledged: u64,
    /// The first so many of them are flushed, or were reported as lost.
    flushed: u64,
    /// The last of the first so many of them was acknowledged by an earlier incarnation.
    earlier: u64,
}

/// The acknowledged changes at the time when a flush began.
#[derive(Debug)]
pub(super) struct ChangesBeforeFlush(BTreeMap<u16, AcknowledgedChanges>);

impl AcknowledgedChanges {
    fn has_unflushed(&self) -> bool {
        self.acknowledged > self.flushed
    }

    /// Whether everything that is not flushed was acknowledged by one incarnation, this one.
    fn are_all_of(&self, incarnation: u64) -> bool {
        !self.has_unflushed() || (self.incarnation == incarnation && self.earlier <= self.flushed)
    }
}

impl Acknowledged {
    /// Notes that a change was acknowledged by this incarnation of `compute_server`.
    #[inline]
    pub(super) fn note(&self, compute_server: u16, incarnation: u64) {
        let mut servers = lock(&self.0);
        let changes = servers.entry(compute_server).or_default();
        if changes.incarnation != incarnation {
            (changes.incarnation, changes.earlier) = (incarnation, changes.acknowledged);
        }
        changes.acknowledged += 1;
    }

    /// What was acknowledged until now.
    pub(super) fn before(&self) -> ChangesBeforeFlush {
        ChangesBeforeFlush(lock(&self.0).clone())
    }

    /// Notes that what `compute_server` had acknowledged `before` is flushed, or is reported as
    /// lost.
    pub(super) fn settle(&self, before: &ChangesBeforeFlush, compute_server: u16) {
        if let Some(before) = before.0.get(&compute_server)
            && let Some(changes) = lock(&self.0).get_mut(&compute_server)
        {
            changes.flushed = changes.flushed.max(before.acknowledged);
        }
    }
}

impl ChangesBeforeFlush {
    /// The compute servers with changes that are not flushed.
    pub(super) fn unflushed(&self) -> impl Iterator<Item = u16> {
        self.0.iter().filter(|(_, changes)| changes.has_unflushed()).map(|(server, _)| *server)
    }

    /// Whether `incarnation` of a compute server has acknowledged everything that is not flushed.
    pub(super) fn are_all_of(&self, compute_server: u16, incarnation: u64) -> bool {
        self.0.get(&compute_server).is_none_or(|changes| changes.are_all_of(incarnation))
    }

    /// Whether `incarnation` of a compute server has acknowledged changes.
    pub(super) fn knows(&self, compute_server: u16, incarnation: u64) -> bool {
        self.0.get(&compute_server).is_some_and(|changes| changes.incarnation == incarnation)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Each line: what happens, and which of the incarnations 10, 11 and 12 may then answer a
    /// flush.
    #[test]
    fn only_the_incarnation_that_has_acknowledged_may_answer() {
        let acknowledged = Acknowledged::default();
        let believed = || {
            let before = acknowledged.before();
            [10, 11, 12].map(|incarnation| before.are_all_of(3, incarnation))
        };
        assert_eq!(believed(), [true; 3], "nothing was acknowledged");
        acknowledged.note(3, 10);
        acknowledged.note(3, 10);
        assert_eq!(believed(), [true, false, false]);
        assert_eq!(acknowledged.before().unflushed().collect::<Vec<_>>(), [3]);
        acknowledged.settle(&acknowledged.before(), 3);
        assert_eq!(believed(), [true; 3], "everything is flushed");
        acknowledged.note(3, 11);
        assert_eq!(believed(), [false, true, false]);
        let before = acknowledged.before();
        acknowledged.note(3, 12);
        assert_eq!(believed(), [false; 3], "11 has died with what it acknowledged");
        acknowledged.settle(&before, 3);
        assert_eq!(believed(), [false, false, true], "11 had flushed it before");
        acknowledged.note(3, 10);
        acknowledged.note(3, 10);
        assert_eq!(believed(), [false; 3]);
        acknowledged.settle(&acknowledged.before(), 3);
        assert_eq!(believed(), [true; 3], "the loss was reported once");
        assert!(acknowledged.before().knows(3, 10) && !acknowledged.before().knows(3, 12));
        assert_eq!(acknowledged.before().unflushed().count(), 0);
    }
}
