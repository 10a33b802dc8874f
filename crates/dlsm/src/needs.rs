//! What a tree needs beside the compactions that its levels make due: memory, and merges of ranges
//! that tombstones hide.
//!
//! *Thread safety*: any number of threads; a mutex that is never held across a wait.

use farleaf_fabric::sync::{Mutex, lock};
use farleaf_page::table::KeyBuf;

/// The first key of a range that tombstones hide, its end, and how many records they hide there.
pub(super) type HiddenRange = (KeyBuf, KeyBuf, u64);

/// What a tree needs.
#[derive(Debug, Default)]
pub(super) struct TreeNeeds(Mutex<TreeNeedsInner>);

#[derive(Debug, Default)]
struct TreeNeedsInner {
    /// Writers wait for room.
    is_room_wanted: bool,
    /// Until when the memory servers are not asked for more chunks: they have none.
    full_until_ns: u64,
    /// They had none, or did not answer, when they were last asked.
    is_refused: bool,
    /// The number of flushes after which everything was merged, and there was too little room.
    exhausted: Option<u64>,
    /// Bytes that changes since then free.
    gained: u64,
    hidden: Option<HiddenRange>,
}

impl TreeNeeds {
    /// Whether the memory servers have just had no more chunks.
    pub(super) fn is_pool_full(&self, now_ns: u64) -> bool {
        now_ns < lock(&self.0).full_until_ns
    }

    /// The memory servers have no more chunks, and are asked again at `until_ns`.
    pub(super) fn note_full_pool(&self, until_ns: u64) {
        let mut inner = lock(&self.0);
        (inner.full_until_ns, inner.is_refused) = (until_ns, true);
    }

    /// The memory servers have given what was needed. A handle whose clock is behind must not take
    /// the pool for full after that.
    pub(super) fn note_room(&self) {
        let mut inner = lock(&self.0);
        (inner.full_until_ns, inner.is_refused) = (0, false);
    }

    /// Whether the memory servers had no more chunks when they were last asked. Unlike
    /// [`TreeNeeds::is_pool_full`], it compares no times: the handles of one tree may have
    /// different clocks, and one that takes the pool for full would keep another one asking for
    /// ever.
    pub(super) fn is_refused(&self) -> bool {
        lock(&self.0).is_refused
    }

    /// Notes that writers wait for room. Returns whether that is new.
    pub(super) fn ask_for_room(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).is_room_wanted, true)
    }

    /// Whether writers wait for room.
    pub(super) fn is_room_wanted(&self) -> bool {
        lock(&self.0).is_room_wanted
    }

    /// Room was looked for: in vain, after so many flushes.
    pub(super) fn looked_for_room(&self, exhausted: Option<u64>) {
        let mut inner = lock(&self.0);
        inner.is_room_wanted = false;
        if exhausted.is_some() {
            (inner.exhausted, inner.gained) = (exhausted, 0);
        }
    }

    /// Whether room was looked for in vain after so many flushes.
    pub(super) fn are_exhausted(&self, flushes: u64) -> bool {
        lock(&self.0).exhausted == Some(flushes)
    }

    /// Bytes that changes have freed since then, once they are merged.
    pub(super) fn gained(&self) -> u64 {
        lock(&self.0).gained
    }

    /// Notes that a change frees so many bytes, once it is merged.
    pub(super) fn note_gain(&self, bytes: u64) {
        lock(&self.0).gained += bytes;
    }

    /// Notes a range that tombstones hide, instead of the one of before.
    pub(super) fn note_hidden(&self, hidden: HiddenRange) {
        lock(&self.0).hidden = Some(hidden);
    }

    /// Takes what was noted last.
    pub(super) fn take_hidden(&self) -> Option<HiddenRange> {
        lock(&self.0).hidden.take()
    }

    /// Forgets everything: the shard is left.
    pub(super) fn forget(&self) {
        *lock(&self.0) = TreeNeedsInner::default();
    }
}
