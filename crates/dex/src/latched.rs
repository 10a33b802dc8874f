//! Nodes held for restructuring: latched, with none of their WRITEs in flight.
//!
//! *Thread safety*: the latch is the right to change the node.

use super::DexIndex;
use crate::cache::{FrameId, OptimisticRef, Restart, dirty_words, is_clean, mark_clean};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::Ownership;
use farleaf_page::rules;
use farleaf_page::{ExclusiveLatch, Layout, LockWord, Page};
use farleaf_pool::remote::{PageCopy, PageImage};

/// A latched node.
#[derive(Debug)]
pub(super) struct LatchedNode<'a, L: Layout> {
    pub(super) frame: FrameId,
    pub(super) page: Page<'a, L>,
    pub(super) guard: ExclusiveLatch<'a>,
    /// Whether other compute servers use it too (D1).
    pub(super) shared: bool,
}

impl<L: Layout> LatchedNode<'_, L> {
    pub(super) fn at(&self) -> GlobalAddr {
        self.page.address()
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.page.level() == 0
    }
}

/// How often, and for how long each time in nanoseconds, a latched leaf is looked at until a WRITE
/// of it has ended: several round trips.
const WRITE_WAITS: u32 = 2_000;
const WRITE_WAIT_NS: u64 = 1_000;

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Latches a node that is to be restructured.
    pub(super) fn latch<'a>(
        &self,
        node: OptimisticRef<'a, L>,
    ) -> Result<LatchedNode<'a, L>, Restart> {
        self.latched(node, node.lock().ok_or(Restart::Busy)?)
    }

    /// Latches a node, usually a leaf, that is to be restructured. If answers wait until they are
    /// written, a WRITE of a popular leaf is nearly always in flight. So this waits for the end of
    /// the one that it meets: nobody can begin another one while the leaf is latched.
    pub(super) async fn latch_leaf<'a>(
        &self,
        node: OptimisticRef<'a, L>,
    ) -> Result<LatchedNode<'a, L>, Restart> {
        let guard = node.lock().ok_or(Restart::Busy)?;
        let is_writing = || self.client.cache().arena().is_writing(node.frame);
        for _ in 0..WRITE_WAITS {
            if !self.client.acknowledges_written() || !is_writing() {
                break;
            }
            self.fabric().sleep(WRITE_WAIT_NS).await;
        }
        self.latched(node, guard)
    }

    fn latched<'a>(
        &self,
        node: OptimisticRef<'a, L>,
        guard: ExclusiveLatch<'a>,
    ) -> Result<LatchedNode<'a, L>, Restart> {
        let cache = self.client.cache();
        if !cache.is_held(node.frame) || cache.arena().is_writing(node.frame) {
            // The WRITE in flight could land after those of the restructuring.
            return Err(Restart::Busy);
        }
        // Checked under the latch: a server that gives up keys either waits for this change, or its
        // new range is seen here (H3).
        let shared = match self.server.owns(node.page) {
            Ownership::All => false,
            Ownership::Part => true,
            Ownership::None if self.fabric().breaks(rules::LOST_KEYS_LEFT) => false,
            Ownership::None => return Err(Restart::Moved),
        };
        if shared && (node.page.level() == 0 || !is_clean(node.page)) {
            return Err(Restart::Busy); // its keys are about to move
        }
        Ok(LatchedNode { frame: node.frame, page: node.page, guard, shared })
    }

    /// The pool's word 0 of a latched inner node, as last seen here.
    pub(super) fn word_of(&self, node: &LatchedNode<'_, L>) -> LockWord {
        LockWord::from_bits(self.client.cache().arena().remote_word(node.frame))
    }

    pub(super) fn set_word(&self, node: &LatchedNode<'_, L>, word: LockWord) {
        self.client.cache().arena().set_remote_word(node.frame, word.to_bits());
    }

    /// The content of a latched shared node as last read from the pool. The remote lock's CAS
    /// compares against it.
    pub(super) fn cached_copy(&self, node: &LatchedNode<'_, L>) -> Result<PageCopy<L>, Restart> {
        let buffer = self.fabric().buffer(L::page_words() * 8).map_err(|_| Restart::Busy)?;
        let image = self.client.cache().image(node.page);
        let word = self.word_of(node);
        image.page().seal(word);
        buffer.copy_from(image.words());
        Ok(PageCopy::from_cached(node.at(), buffer, self.fabric().now_ns()))
    }

    /// Prepares a latched node that is about to lose keys. Writes it back if its copy in the pool
    /// might have no room for its new fences, `low` and `high`.
    ///
    /// The node itself is written later. If this server crashes first, its next incarnation finds
    /// the old copy and trims it to the new fences (D7). The copy always has room for them if they
    /// are no longer than the frame's current fences, or if its content equals the frame's: a split
    /// or a rebalancing leaves room in both halves.
    ///
    /// # Errors
    /// As [`DexIndex::write_exclusive`]. The frame is unchanged.
    pub(super) async fn before_narrowing(
        &self,
        node: &LatchedNode<'_, L>,
        low: &L::Key,
        high: Option<&L::Key>,
    ) -> Result<(), Restart> {
        let fits = is_clean(node.page) || node.shared || !L::fences_grow(node.page, low, high);
        if fits {
            return Ok(());
        }
        if node.is_leaf() {
            let may_land = UnresolvedFrameWrite { index: self, node };
            let words = dirty_words(node.page);
            let written = self.client.write_leaf(node.at(), node.page, words).await;
            may_land.has_ended(written)?;
        } else {
            self.write_exclusive(node, &self.client.cache().image(node.page)).await?;
        }
        mark_clean(node.page);
        Ok(())
    }

    /// WRITEs `image`, the next content of a latched exclusive node. The caller updates the frame.
    ///
    /// # Errors
    /// As [`crate::cache::CacheClient::write_leaf`]. The node's content in the pool is then
    /// unknown, so the frame is marked dirty.
    pub(super) async fn write_exclusive(
        &self,
        node: &LatchedNode<'_, L>,
        image: &PageImage<L>,
    ) -> Result<(), Restart> {
        debug_assert!(!node.shared, "D1");
        if node.is_leaf() {
            let may_land = UnresolvedFrameWrite { index: self, node };
            let all = 1..L::page_words();
            let written = self.client.write_leaf(node.at(), image.page(), all).await;
            return may_land.has_ended(written);
        }
        // If the frame is clean, its content equals the pool's.
        let before = is_clean(node.page).then(|| self.client.cache().image(node.page));
        // If this fails, nothing has been written yet.
        let slot = self.client.log_slot(node.at()).await?;
        let may_land = UnresolvedFrameWrite { index: self, node };
        let word = self.client.seal(image, self.word_of(node), slot.as_ref());
        // Set even if the WRITE fails: no version is ever sealed with two contents (D9).
        self.set_word(node, word);
        let written = self.client.write_logged(slot, node.at(), before.as_ref(), image).await;
        may_land.has_ended(written)
    }
}

/// A WRITE of a latched node in flight. If it fails, or its future is dropped, the pool may have
/// the content of the frame or the new one. No other WRITE follows until that is settled (C15).
struct UnresolvedFrameWrite<'a, 'b, F: Fabric, L: Layout> {
    index: &'a DexIndex<F, L>,
    node: &'a LatchedNode<'b, L>,
}

impl<F: Fabric, L: Layout> UnresolvedFrameWrite<'_, '_, F, L> {
    fn has_ended(self, written: Result<(), Restart>) -> Result<(), Restart> {
        match &written {
            Ok(()) => {}
            Err(restart) => self.has_failed(matches!(restart, Restart::Failed(_))),
        }
        std::mem::forget(self);
        written
    }

    fn has_failed(&self, may_land: bool) {
        let Self { index, node } = self;
        index.client.mark_dirty(node.frame, node.page, 1..L::page_words());
        if may_land {
            index.client.may_land(node.frame, node.page);
        }
    }
}

impl<F: Fabric, L: Layout> Drop for UnresolvedFrameWrite<'_, '_, F, L> {
    fn drop(&mut self) {
        self.has_failed(true);
    }
}
