//! Answers that wait until what they report is in the pool (`--acknowledge written`), so that the
//! death of the compute server loses nothing that it has answered.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - ack.A1. An answer leaves only when every change that it reports or has seen is in the memory
//!   servers. So lookups and scans wait, too: also for a removal that they have seen.
//! - ack.A4. At most one WRITE of a leaf is in flight (C13). A waiter is released by a WRITE that
//!   began after the change it waits for, and that carries all changes until then: many waiters of
//!   one leaf share a WRITE.
//!
//! Who waits holds no latch. A waiter takes the number of the frame's last change while the page's
//! version is known to be valid or under the latch. It posts the WRITE itself if none is in flight.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::dirty::{is_in_pool, mark_arrived, mark_in_flight};
use super::transfers::UnwrittenChange;
use super::write_back::{LeafLogSlot, LeafWrite};
use super::{CacheClient, FrameCache, FrameChange, FrameId, OptimisticRef, Restart};
use farleaf_fabric::Fabric;
use farleaf_index::AcknowledgeName;
use farleaf_page::{Layout, PageWords, rules};
use farleaf_pool::remote::RemoteError;

impl<L: Layout> FrameCache<L> {
    /// A WRITE of a frame has ended: all changes up to `change` are in the pool. Only the thread
    /// that has marked the frame as being written calls this.
    pub(super) fn has_arrived(&self, frame: FrameId, change: FrameChange) {
        self.arena().set_written(frame, change);
        mark_arrived(self.arena().page(frame));
        self.arena().set_writing(frame, false);
    }

    /// Marks a latched node as one that is written only after its parent (C24). What it holds may
    /// not be answered before, even if the node itself is clean. `counts_as_written` is the planted
    /// bug that answers it.
    pub(super) fn hold_back(&self, frame: FrameId, counts_as_written: bool) {
        let page = self.arena().page(frame);
        if is_in_pool(page) && !counts_as_written {
            mark_in_flight(page);
            self.arena().count_change(frame);
        }
        self.arena().set_writing(frame, true);
    }

    /// Lets go of a node that was held back: its parent is written.
    pub(super) fn let_go(&self, frame: FrameId) {
        let change = self.arena().last_change(frame);
        if mark_arrived(self.arena().page(frame)) {
            self.arena().set_written(frame, change);
        }
        self.arena().set_writing(frame, false);
    }

    /// Whether all changes of a node are in the pool.
    fn is_frame_in_pool(&self, frame: FrameId) -> bool {
        self.seen(frame).is_some_and(|node| is_in_pool(node.page) && node.is_valid())
    }
}

impl<F: Fabric, L: Layout> CacheClient<F, L> {
    /// Whether answers wait until what they report is in the pool.
    #[inline]
    pub(crate) fn acknowledges_written(&self) -> bool {
        self.acknowledge == AcknowledgeName::Written
    }

    /// What an answer from `leaf` has to wait for, if it was read and not changed. Call it before
    /// the leaf's version is validated, or under its latch.
    #[inline]
    pub(crate) fn unwritten_seen(&self, leaf: OptimisticRef<'_, L>) -> Option<UnwrittenChange> {
        let waits = self.acknowledges_written() && !is_in_pool(leaf.page);
        (waits && !self.fabric().breaks(rules::READS_AWAIT_WRITES))
            .then(|| self.last_change_in(leaf.frame, false))
    }

    /// Marks `words` of a latched leaf as changed. Returns what the answer has to wait for.
    #[inline]
    pub(crate) fn mark_changed(
        &self,
        leaf: OptimisticRef<'_, L>,
        words: PageWords,
    ) -> Option<UnwrittenChange> {
        if !self.acknowledges_written() || self.fabric().breaks(rules::ANSWERS_AWAIT_WRITES) {
            self.mark_dirty(leaf.frame, leaf.page, words);
            return None;
        }
        self.mark_to_write(leaf.frame, leaf.page, words);
        Some(self.last_change_in(leaf.frame, true))
    }

    /// Posts the WRITE of a change, unless one of its leaf is in flight or must not be posted now.
    #[inline]
    pub(crate) fn begin_to_write(&self, unwritten: UnwrittenChange) -> Option<LeafWrite<'_, F, L>> {
        let UnwrittenChange { frame, change, .. } = unwritten;
        let node = self.cache.seen(frame)?;
        let is_leaf = node.page.level() == 0 && node.is_valid();
        (is_leaf && !self.cache.arena().is_written(frame, change))
            .then(|| self.begin_leaf_write(node, LeafLogSlot::NotAsked).ok())
            .flatten()
    }

    /// The last change of a leaf.
    pub(super) fn last_change_in(&self, frame: FrameId, is_own: bool) -> UnwrittenChange {
        let change = self.cache.arena().last_change(frame);
        let server = self.cache.arena().page(frame).address().server();
        UnwrittenChange { frame, change, is_own, server }
    }

    /// Whether a change is known to be in the pool.
    #[inline]
    pub(crate) fn is_written(&self, unwritten: UnwrittenChange) -> bool {
        self.cache.arena().is_written(unwritten.frame, unwritten.change)
    }

    /// Waits until a change is in the pool; posts its WRITE if none of its leaf is in flight.
    ///
    /// # Errors
    /// [`RemoteError`] if the memory server does not accept the WRITE; it is `Indeterminate` if the
    /// operation has made the change itself. The leaf stays dirty and is written later.
    pub(crate) async fn await_written(
        &self,
        unwritten: UnwrittenChange,
    ) -> Result<(), RemoteError> {
        let UnwrittenChange { frame, change, is_own, server } = unwritten;
        let written = self.await_change(frame, change).await;
        written.map_err(|error| if is_own { error.after_a_change(server) } else { error })
    }

    async fn await_change(&self, frame: FrameId, change: FrameChange) -> Result<(), RemoteError> {
        let mut backoff = self.pages().backoff();
        loop {
            if self.cache.arena().is_written(frame, change) || self.cache.is_frame_in_pool(frame) {
                return Ok(());
            }
            match self.write_back(frame).await {
                Ok(()) => continue,
                Err(Restart::Failed(error)) => return Err(error),
                Err(_) => {}
            }
            if self.cache.arena().is_written(frame, change) {
                return Ok(());
            }
            // A WRITE of the leaf is in flight, a thread has it latched, or its parent comes first.
            if self.has_doubts() {
                self.pages().settle_doubts().await;
                self.settle_if_due().await;
            }
            self.before_retry(&mut backoff).await?;
        }
    }
}
