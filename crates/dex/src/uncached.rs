//! Single-key operations without a cache, for comparison only: the effect of logical partitioning
//! by itself (Lu et al., §8.3). Selected by [`crate::cache::AdmissionName::Never`].
//!
//! A descent is one READ per level in the pool, including the root. The pool's tree is well-formed
//! at every instant (D2) and no other server changes the leaves of the owned range (D1), so no lock
//! is needed: handles of this compute server exclude each other on a leaf by its mark in the
//! mapping table (C6). Restructuring still goes through frames, and a leaf that is in a frame
//! because of it is used there.
//!
//! *A dead page*: a node that was merged away keeps its fences, so the fences alone do not stop a
//! walk that began before the merge. Each merge is counted before the node leaves the mapping
//! table. A walk that marks a leaf checks, under the table's lock, that no merge was counted since
//! it began.
//!
//! *A lookup without a mark*: a READ that overlaps a WRITE of one word, a value, finds the old
//! value or the new one. [`UncachedChanges`] counts larger changes while they last, and operations
//! that fetch leaves into frames, where they can change. A lookup that overlaps one of these takes
//! the mark and reads again.
//!
//! *Cost*: with the branches that lead here compiled out, a `get` from the cache takes as long as
//! with them (`get_cost` with 200,000 keys: 216 and 218 ns, in runs up to 7 ns apart).
//!
//! *Thread safety*: any number of threads may use [`UncachedChanges`]; the rest belongs to its
//! endpoint's thread.

use super::DexIndex;
use crate::cache::{MappedNode, RemoteIoMark, Restart, is_clean};
use farleaf_fabric::sync::{AtomicU64, Ordering, fence};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::{LiveCounters, OwnedRange};
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, FencePosition, Layout, LeafOutcome, OwnedKey, OwnedValue, Page, slot_range,
};
use farleaf_pool::remote::TimedPointer;

/// Number of times a walk polls another operation's mark before it starts over.
const MAX_WAITS: u32 = 10_000;
/// Pause between two polls.
const WAIT_NS: u64 = 100;

/// Counts the changes in progress on a compute server that a READ of a leaf could see partially.
#[derive(Debug, Default)]
pub(super) struct UncachedChanges {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Number of nodes merged away.
    merged: AtomicU64,
}

impl UncachedChanges {
    /// The number of changes that have begun, if all of them have ended.
    fn settled(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) == ended).then_some(ended)
    }

    /// Whether no change has begun since the count was `begun`. The memory fences match those of
    /// the latches.
    fn is_still(&self, begun: u64) -> bool {
        fence(Ordering::Acquire);
        self.begun.load(Ordering::Relaxed) == begun
    }

    fn begin(&self) -> UncachedChange<'_> {
        self.begun.fetch_add(1, Ordering::Acquire);
        fence(Ordering::Release);
        UncachedChange(self)
    }

    /// Counts a merge. Call it before the merged node leaves the mapping table.
    pub(super) fn note_merged(&self) {
        self.merged.fetch_add(1, Ordering::AcqRel);
    }

    fn merged(&self) -> u64 {
        self.merged.load(Ordering::Acquire)
    }
}

/// A change in progress, until this is dropped.
#[derive(Debug)]
pub(super) struct UncachedChange<'a>(&'a UncachedChanges);

impl Drop for UncachedChange<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Announces that leaves enter frames and may change there, until the guard is dropped.
    pub(super) fn unsettle(&self) -> Option<UncachedChange<'_>> {
        self.uncached.then(|| self.server.unsettled().begin())
    }

    /// The value of `key`, by READs alone; `None` if they do not give a reliable answer.
    pub(super) async fn get_in_pool(&self, key: &L::Key) -> Option<Option<OwnedValue<L>>> {
        let probe = DescentProbe::At(key);
        let before = self.server.unsettled().settled()?;
        let (at, _) = self.walk(probe).await.ok()?;
        if let MappedNode::Frame(_) = self.client.cache().mapping().get(at.to_bits()) {
            return None;
        }
        let buffer = self.fabric().buffer(L::page_words() * 8).ok()?;
        let buffer = self.fabric().read(at, buffer).await.ok()?;
        LiveCounters::count(&self.client.counters.leaf_misses);
        self.charge(Work::VisitNode).await;
        let page = Page::<L>::new(buffer.words());
        let fits = page.address() == at
            && page.level() == 0
            && page.stamp_fits()
            && (L::reach(page, probe) == FencePosition::Inside
                || self.fabric().breaks(rules::FENCES));
        let found = L::leaf_get(page, key);
        (fits && self.server.unsettled().is_still(before)).then_some(found)
    }

    /// Applies `read` to the leaf that covers the probe; `None` if the leaf is in a frame.
    pub(super) async fn read_in_pool<T>(
        &self,
        probe: DescentProbe<'_, L::Key>,
        read: &impl Fn(Page<'_, L>) -> T,
    ) -> Result<Option<T>, Restart> {
        let work = |page: Page<'_, L>| LeafOutcome::Nothing(read(page));
        match self.change_in_pool(probe, &work).await? {
            Some(LeafOutcome::Nothing(value) | LeafOutcome::Changed { answer: value, .. }) => {
                Ok(Some(value))
            }
            Some(LeafOutcome::Full) | None => Ok(None),
        }
    }

    /// Applies `edit` to the leaf that covers the probe, and WRITEs the changed words; `None` if
    /// the leaf is in a frame.
    pub(super) async fn change_in_pool<T>(
        &self,
        probe: DescentProbe<'_, L::Key>,
        edit: &dyn Fn(Page<'_, L>) -> LeafOutcome<T>,
    ) -> Result<Option<LeafOutcome<T>>, Restart> {
        let unsettled = self.server.unsettled();
        let merged = unsettled.merged();
        let (at, keys) = self.walk(probe).await?;
        let free = self.client.free_frame().await?; // C16
        let Some(mark) = self.mark_leaf(at, merged).await? else { return Ok(None) };
        self.charge(Work::VisitNode).await;
        let mut change = None;
        let work = |page: Page<'_, L>| {
            let was_trimmed = !is_clean(page); // then the whole page is written
            let outcome = edit(page);
            if let LeafOutcome::Changed { words, .. } = &outcome
                && (was_trimmed || !words.is_one_word())
            {
                change = Some(unsettled.begin());
            }
            outcome
        };
        let place = (at, &keys);
        let outcome = self.client.bring_marked_leaf((free, mark), None, place, probe, work).await;
        drop(change);
        match outcome {
            Ok(outcome) => Ok(Some(outcome)),
            // The walk itself read the pool, so its path is not old: another thread is
            // restructuring.
            Err(Restart::Refresh) => Err(Restart::Busy),
            Err(restart) => Err(restart),
        }
    }

    /// The address of the leaf that covers the probe, and the range of keys that the nodes above
    /// route to it.
    async fn walk(
        &self,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<(GlobalAddr, OwnedRange<OwnedKey<L>>), Restart> {
        let mut at = self.root;
        let mut keys = OwnedRange { low: L::min_key(), high: None };
        let mut expected = None;
        loop {
            let copy = self.client.pages().read(TimedPointer::fixed(at)).await?;
            LiveCounters::count(&self.client.counters.inner_misses);
            self.charge(Work::VisitNode).await;
            let page = copy.page();
            let level = page.level();
            let fits = expected.map_or(level > 0, |expected| level == expected)
                && (L::reach(page, probe) == FencePosition::Inside
                    || self.fabric().breaks(rules::FENCES));
            if !fits {
                return Err(Restart::Busy);
            }
            let slot = L::inner_slot(page, probe);
            let (low, high) = slot_range(page, slot);
            keys = OwnedRange { low, high }.within(&keys);
            at = L::inner_child(page, slot);
            if level == 1 {
                return Ok((at, keys));
            }
            expected = Some(level - 1);
        }
    }

    /// Marks a leaf found by a walk that began when `merged` merges were counted; `None` if the
    /// leaf is in a frame.
    async fn mark_leaf(
        &self,
        at: GlobalAddr,
        merged: u64,
    ) -> Result<Option<RemoteIoMark<'_>>, Restart> {
        let mapping = self.client.cache().mapping();
        for _ in 0..MAX_WAITS {
            match mapping.begin_io(at.to_bits(), || self.server.unsettled().merged() == merged) {
                Ok(mark) => return Ok(Some(mark)),
                Err(MappedNode::Frame(_)) => return Ok(None),
                Err(MappedNode::Absent) => return Err(Restart::Again),
                Err(MappedNode::Io) => self.fabric().sleep(WAIT_NS).await,
            }
        }
        Err(Restart::Busy)
    }
}
