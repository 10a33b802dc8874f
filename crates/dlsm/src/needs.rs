//! What a tree needs besides the compactions that its levels make due: memory, and compaction of
//! ranges that tombstones hide.
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
    /// Whether writers are stalled for lack of memory.
    is_room_wanted: bool,
    /// Until then the memory servers are not asked for chunks, because they had none left.
    full_until_ns: u64,
    /// Whether the memory servers had no chunks when they were last asked.
    is_refused: bool,
    /// Until then background tasks do not ask them, because they did not answer.
    unreached_until_ns: u64,
    /// The number of flushes when the last search for memory failed: everything was compacted, and
    /// memory was still short.
    exhausted: Option<u64>,
    /// Bytes that changes since then will free once they are compacted.
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
        inner.unreached_until_ns = 0;
    }

    /// A memory server did not answer, and tasks in the background ask again at `until_ns`. That
    /// does not say that the pool is full: a write that needs memory asks by itself, and fails if
    /// there is still no answer.
    pub(super) fn note_unreached(&self, until_ns: u64) {
        lock(&self.0).unreached_until_ns = until_ns;
    }

    /// Whether a memory server has just not answered.
    pub(super) fn is_unreached(&self, now_ns: u64) -> bool {
        now_ns < lock(&self.0).unreached_until_ns
    }

    /// Whether the memory servers had no more chunks when they were last asked. Unlike
    /// [`TreeNeeds::is_pool_full`], it compares no times: the handles of one tree may have
    /// different clocks, and one that takes the pool for full would keep another one asking for
    /// ever.
    pub(super) fn is_refused(&self) -> bool {
        lock(&self.0).is_refused
    }

    /// Notes that writers are stalled for lack of memory. Returns whether that is new.
    pub(super) fn ask_for_room(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).is_room_wanted, true)
    }

    /// Whether writers are stalled for lack of memory.
    pub(super) fn is_room_wanted(&self) -> bool {
        lock(&self.0).is_room_wanted
    }

    /// Notes the end of a search for memory. If it failed, `exhausted` is the number of flushes so
    /// far.
    pub(super) fn looked_for_room(&self, exhausted: Option<u64>) {
        let mut inner = lock(&self.0);
        inner.is_room_wanted = false;
        if exhausted.is_some() {
            (inner.exhausted, inner.gained) = (exhausted, 0);
        }
    }

    /// Whether a search for memory has failed, and no flush has ended since; `flushes` is their
    /// number now.
    pub(super) fn are_exhausted(&self, flushes: u64) -> bool {
        lock(&self.0).exhausted == Some(flushes)
    }

    /// Bytes that changes since that search will free once they are compacted.
    pub(super) fn gained(&self) -> u64 {
        lock(&self.0).gained
    }

    /// Notes that a change will free so many bytes once it is compacted.
    pub(super) fn note_gain(&self, bytes: u64) {
        lock(&self.0).gained += bytes;
    }

    /// Notes a range that tombstones hide. It replaces the range noted before.
    pub(super) fn note_hidden(&self, hidden: HiddenRange) {
        lock(&self.0).hidden = Some(hidden);
    }

    /// Takes what was noted last.
    pub(super) fn take_hidden(&self) -> Option<HiddenRange> {
        lock(&self.0).hidden.take()
    }

    /// Forgets everything, when the process leaves the shard.
    pub(super) fn forget(&self) {
        *lock(&self.0) = TreeNeedsInner::default();
    }
}
