//! Write-back: changes on their way from frames to the pool.
//!
//! *Invariants*
//! - C13. At most one WRITE of a page is in flight; a flag of the frame marks it.
//! - C14. A node counts as clean only once its WRITE has completed: until then `writing` keeps it
//!   from cooling.
//! - C15. After a WRITE of unknown outcome, the connection is reset before the node is written
//!   again, so that the old WRITE cannot land late. If the reset fails, the node is not written
//!   until the memory server can be reached again.
//! - C24. A node that lost keys is not written to the pool until its parent in the pool routes
//!   those keys elsewhere. A node that gained keys is not written as a parent of other nodes before
//!   its own parent points to it. Until the WRITE or the commit of their parent has finished, both
//!   nodes count as being written.
//!
//! Of a leaf, only the ranges of words that changed are written, with the stamp if they contain
//! keys (D8): by one WRITE, or by one for the heap followed by one for the front (bytes.Y9). When
//! the layout of a leaf with a heap has changed, an invalid stamp goes first, because slots of one
//! layout could match records of another under a valid stamp.
//! Answers may wait for a WRITE that the death of this compute server can cut short. Then the leaf
//! gets a log entry in the same doorbell (ack.A2).
//! An inner node is written whole and sealed, after a log entry unless nothing points to it yet
//! (D9).
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::transfers::{DependentFrame, UnresolvedFrame};
use super::{
    CacheClient, FrameChange, FrameId, MappedNode, OptimisticRef, Restart, WriteBackName,
    dirty_words, is_clean, mark_dirty, mark_in_flight,
};
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, ServerId};
use farleaf_index::LiveCounters;
use farleaf_page::rules;
use farleaf_page::{ExclusiveLatch, Layout, LockWord, MARK_WORD, Page, PageWords, SIBLING_WORD};
use farleaf_pool::remote::{LogSlot, PageImage, Pieces, RemoteError, SettleRight, both};
use std::collections::BTreeSet;
use std::ops::Range;

/// How many times a WRITE is posted.
const WRITE_RETRIES: u32 = 16;
/// First and longest pause between attempts to settle transfers in doubt, in nanoseconds.
const MIN_PAUSE_NS: u64 = 1_000_000;
const MAX_PAUSE_NS: u64 = 32_000_000;

/// The WRITEs of a leaf's words, posted.
enum PostedWords<'a, F: Fabric> {
    /// Only of the words.
    Plain(F::Op<Buffer>),
    /// Several, in order: the heap first, or an invalid stamp.
    Several(Pieces<F>),
    /// Behind a log entry (ack.A2).
    Logged(Box<(LogSlot<'a>, Pieces<F>)>),
}

/// A slot for the log entry of a leaf.
pub(super) enum LeafLogSlot<'a> {
    /// It was not needed when it could have been waited for.
    NotAsked,
    /// The memory server has no room for a log.
    NoRoom,
    /// It was taken.
    Taken(LogSlot<'a>),
}

/// The WRITE of a leaf's dirty words, posted.
pub(crate) struct LeafWrite<'a, F: Fabric, L: Layout> {
    posted: PostedWords<'a, F>,
    under_way: FrameWriteInFlight<'a, F, L>,
}

/// A WRITE of a frame in flight. If this is dropped before the WRITE has ended, the WRITE is in
/// doubt (C15).
struct FrameWriteInFlight<'a, F: Fabric, L: Layout> {
    client: &'a CacheClient<F, L>,
    write: UnresolvedFrame,
    /// The last change that it carries.
    change: FrameChange,
}

impl<F: Fabric, L: Layout> FrameWriteInFlight<'_, F, L> {
    /// No part of the WRITE can still land.
    fn has_ended(self) {
        std::mem::forget(self);
    }

    /// All of the WRITE has landed.
    fn has_arrived(self) {
        self.client.cache.has_arrived(self.write.frame, self.change);
        self.has_ended();
    }
}

impl<F: Fabric, L: Layout> Drop for FrameWriteInFlight<'_, F, L> {
    fn drop(&mut self) {
        if !self.client.fabric().breaks(rules::DROPPED_WRITES_DOUBTED) {
            self.client.doubt(self.write.clone());
        }
    }
}

impl<F: Fabric, L: Layout> CacheClient<F, L> {
    /// Waits for the WRITEs of the leaf at `at`.
    async fn landed(&self, at: GlobalAddr, posted: PostedWords<'_, F>) -> Result<(), FabricError> {
        match posted {
            PostedWords::Plain(words) => words.await.map(drop),
            PostedWords::Several(posted) => posted.done().await,
            PostedWords::Logged(logged) => {
                let (slot, posted) = *logged;
                posted.done().await?;
                self.has_landed(at, slot);
                Ok(())
            }
        }
    }

    /// The node at `at` is whole in the pool: no entry of it is needed any more.
    fn has_landed(&self, at: GlobalAddr, mut slot: LogSlot<'_>) {
        slot.is_done();
        drop(slot);
        self.pages().unpin(at);
    }

    /// Whether the death of this compute server within a WRITE of `words` of a leaf could damage
    /// what it has answered (ack.A2).
    fn can_damage(&self, words: PageWords) -> bool {
        if !self.acknowledges_written() || !self.fabric().tears() {
            return false;
        }
        // Words of values in a leaf without a heap are values each, old or new.
        let several = match L::HAS_HEAP {
            true => !words.is_empty() && !words.is_one_word(),
            false => words.contains(SIBLING_WORD),
        };
        several && !self.fabric().breaks(rules::LEAVES_LOGGED)
    }

    /// A slot for the log entry of a leaf, if a WRITE of `words` needs one.
    async fn leaf_slot(
        &self,
        at: GlobalAddr,
        words: PageWords,
    ) -> Result<LeafLogSlot<'_>, Restart> {
        if !self.can_damage(words) {
            return Ok(LeafLogSlot::NotAsked);
        }
        if !self.has_log(at.server()).await? {
            return Ok(LeafLogSlot::NoRoom);
        }
        if let Some(slot) = self.pages().try_leaf_slot(at) {
            return Ok(LeafLogSlot::Taken(slot));
        }
        self.write_failed_leaves(at).await;
        self.slot_or_busy(self.pages().leaf_slot(at).await).map(LeafLogSlot::Taken)
    }

    /// Writes leaves again whose last WRITE has failed, because a WRITE of the leaf at `at` waits
    /// for their slots, and perhaps nobody else writes them soon. Found by a newcomer: a client
    /// that was alone waited for seconds.
    async fn write_failed_leaves(&self, at: GlobalAddr) {
        let failed = self.pages().pinned_leaves(at.server());
        // Such a leaf has a slot, or gets the one that is left for it.
        if failed.contains(&at) {
            return;
        }
        for leaf in failed {
            if let MappedNode::Frame(frame) = self.cache.mapping.get(leaf.to_bits()) {
                // If it fails again, the wait for a slot is bounded.
                let _ = Box::pin(self.write_back(frame)).await;
            }
        }
    }

    /// What is dirty again if a WRITE of `words` of a leaf fails. The leaf may have the mark of its
    /// entry, which the next WRITE must replace even if there is no entry.
    pub(super) fn to_write_again(&self, words: PageWords) -> PageWords {
        match self.can_damage(words) {
            true => words.and((SIBLING_WORD..SIBLING_WORD + 1).into(), L::HAS_HEAP),
            false => words,
        }
    }

    /// The content that the pool's copy of a leaf will have.
    fn leaf_image(page: Page<'_, L>) -> PageImage<L> {
        let image = PageImage::of(page);
        image.page().set_note(L::leaf_sum(page));
        image.page().set_mark(false);
        image
    }

    /// Copies words of a leaf to a buffer of the endpoint. `None` if the endpoint has no buffer
    /// left.
    fn copy_out(&self, page: Page<'_, L>, words: Range<usize>) -> Option<Buffer> {
        let buffer = self.fabric().buffer(words.len() * 8).ok()?;
        buffer.copy_from(&page.words()[words.clone()]);
        // The note and the mark belong to the frame. Every change of the header or of a key marks
        // word 5 dirty too, so the stamp is written with it.
        if words.contains(&SIBLING_WORD) {
            buffer.set(SIBLING_WORD - words.start, L::leaf_sum(page));
        }
        if words.contains(&MARK_WORD) {
            buffer.set(MARK_WORD - words.start, 0);
        }
        Some(buffer)
    }

    /// Copies a whole page to a buffer of the endpoint. `None` if the endpoint has no buffer left.
    fn image_out(&self, image: &PageImage<L>) -> Option<Buffer> {
        let buffer = self.fabric().buffer(L::page_words() * 8).ok()?;
        buffer.copy_from(image.words());
        Some(buffer)
    }

    /// Posts the WRITEs of a leaf's words in one doorbell, behind a log entry in `slot`.
    fn post_logged_words<'a>(
        &self,
        mut slot: LogSlot<'a>,
        at: GlobalAddr,
        page: Page<'_, L>,
        words: PageWords,
    ) -> Option<PostedWords<'a, F>> {
        let image = Self::leaf_image(page);
        let posted = self.pages().post_leaf_logged(&mut slot, at, &image, words.whole()).ok()?;
        Some(PostedWords::Logged(Box::new((slot, posted))))
    }

    /// Posts the WRITEs of a leaf's words in one doorbell, without a log entry. Words of the heap
    /// precede those that refer to them (bytes.Y9). `None`, with nothing posted, if the endpoint
    /// has no buffers left.
    fn post_words(
        &self,
        at: GlobalAddr,
        page: Page<'_, L>,
        words: PageWords,
    ) -> Option<PostedWords<'static, F>> {
        let place = |words: &Range<usize>| at.plus(words.start as u64 * 8);
        let (heap, words) = words.writes();
        // The last slot of a full leaf without records also ends at the end of the page.
        let is_layout =
            L::HAS_HEAP && words.end == L::page_words() && words.contains(&SIBLING_WORD);
        // One WRITE that lands whole leaves no half of a layout, even if this server dies.
        let lands_whole = is_layout && self.acknowledges_written() && !self.fabric().tears();
        if is_layout && !lands_whole && !self.fabric().breaks(rules::LAYOUTS_MARKED) {
            return self.post_layout(at, page, words);
        }
        let Some(heap) = heap.filter(|_| !lands_whole) else {
            let buffer = self.copy_out(page, words.clone())?;
            return Some(PostedWords::Plain(self.fabric().write(place(&words), buffer)));
        };
        let (first, then) = match self.fabric().breaks(rules::HEAP_FIRST) {
            false => (heap, words),
            true => (words, heap),
        };
        let buffers = (self.copy_out(page, first.clone())?, self.copy_out(page, then.clone())?);
        let first = self.fabric().write(place(&first), buffers.0);
        let then = self.fabric().write(place(&then), buffers.1);
        Some(PostedWords::Several(Pieces::of(vec![first, then])))
    }

    /// Posts the WRITEs of a leaf whose layout has changed: an invalid stamp, then the words, which
    /// include this stamp, then the valid stamp (bytes.Y9).
    fn post_layout(
        &self,
        at: GlobalAddr,
        page: Page<'_, L>,
        words: Range<usize>,
    ) -> Option<PostedWords<'static, F>> {
        let image = Self::leaf_image(page);
        let wrong = !image.page().stamp();
        Some(PostedWords::Several(self.pages().post_marked(at, &image, words, wrong).ok()?))
    }

    /// WRITEs a leaf that nothing points to yet.
    ///
    /// # Errors
    /// As [`CacheClient::write_leaf`].
    pub(crate) async fn write_new_leaf(
        &self,
        at: GlobalAddr,
        page: Page<'_, L>,
    ) -> Result<(), Restart> {
        let post = async || {
            let buffer = self.copy_out(page, 1..L::page_words()).ok_or(Restart::Busy)?;
            Ok(self.fabric().write(at.plus(8), buffer).await.map(drop))
        };
        self.write_to_the_end(at, post).await
    }

    /// WRITEs words of a leaf that no other thread can change meanwhile.
    ///
    /// # Errors
    /// [`Restart::Failed`] if the WRITE may land later, [`Restart::Busy`] if there is no buffer.
    pub(crate) async fn write_leaf(
        &self,
        at: GlobalAddr,
        page: Page<'_, L>,
        words: impl Into<PageWords>,
    ) -> Result<(), Restart> {
        let words = words.into();
        let LeafLogSlot::Taken(mut slot) = self.leaf_slot(at, words).await? else {
            let post = async || {
                let posted = self.post_words(at, page, words).ok_or(Restart::Busy)?;
                Ok(self.landed(at, posted).await)
            };
            return self.write_to_the_end(at, post).await;
        };
        let image = Self::leaf_image(page);
        // All attempts write the same entry.
        let post = async || {
            let posted = self.pages().post_leaf_logged(&mut slot, at, &image, words.whole());
            Ok(posted.map_err(|_| Restart::Busy)?.done().await)
        };
        self.write_to_the_end(at, post).await?;
        self.has_landed(at, slot);
        Ok(())
    }

    /// WRITEs an inner node that nothing points to yet. Its version follows `found`, the word 0
    /// found in the page. Returns the new word 0.
    ///
    /// # Errors
    /// As [`CacheClient::write_leaf`].
    pub(crate) async fn write_new_inner(
        &self,
        at: GlobalAddr,
        image: &PageImage<L>,
        found: LockWord,
    ) -> Result<LockWord, Restart> {
        let word = found.next_by(found.owner());
        image.page().seal(word);
        self.write_image(at, image).await?;
        Ok(word)
    }

    /// Seals an image of an inner node as the version after `word`. The client of `slot` becomes
    /// the owner.
    pub(crate) fn seal(
        &self,
        image: &PageImage<L>,
        word: LockWord,
        slot: Option<&LogSlot<'_>>,
    ) -> LockWord {
        let next = word.next_by(slot.map_or(word.owner(), LogSlot::owner));
        image.page().seal(next);
        next
    }

    /// WRITEs a sealed inner node after a log entry in `slot`, and repeats both until they are
    /// known to have completed (D9). The entry stays until the node is complete in the pool.
    /// `before` is the pool's content of the node, if known.
    ///
    /// # Errors
    /// As [`CacheClient::write_leaf`].
    pub(crate) async fn write_logged(
        &self,
        slot: Option<LogSlot<'_>>,
        at: GlobalAddr,
        before: Option<&PageImage<L>>,
        image: &PageImage<L>,
    ) -> Result<(), Restart> {
        let Some(mut slot) = slot else {
            return self.write_image(at, image).await;
        };
        let post = async || {
            let posted = self.pages().post_logged(&slot, at, before.map(PageImage::page), image);
            let (entry, page) = posted.map_err(|_| Restart::Busy)?;
            // Pin the slot now, so that it is pinned even if this future is dropped.
            if !self.fabric().breaks(rules::SLOTS_PINNED) {
                slot.pin(at);
            }
            let (entry, page) = (entry.done().await, page.await);
            Ok(both(entry, page.map(drop)))
        };
        self.write_to_the_end(at, post).await?;
        self.has_landed(at, slot);
        Ok(())
    }

    /// Whether this endpoint has a log on `server`. If not, that server is full.
    async fn has_log(&self, server: ServerId) -> Result<bool, Restart> {
        match self.pages().prepare_log(server).await {
            Ok(_) => Ok(true),
            Err(RemoteError::OutOfMemory { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A slot, or [`Restart::Busy`] if all stay in use.
    fn slot_or_busy<'a>(
        &self,
        slot: Result<LogSlot<'a>, RemoteError>,
    ) -> Result<LogSlot<'a>, Restart> {
        slot.map_err(|error| match error {
            RemoteError::Contended { .. } => {
                // An entry is no longer needed if its node was merged away meanwhile.
                self.pages().unpin_unless(|at| self.is_unwritten_at(at));
                Restart::Busy
            }
            error => error.into(),
        })
    }

    /// Takes a slot of this endpoint's log on the server of the page at `at`. `None` if logging is
    /// off, or if that server is full and this endpoint has no log there. The caller writes the
    /// node anyway, because otherwise it could never leave the cache.
    pub(crate) async fn log_slot(&self, at: GlobalAddr) -> Result<Option<LogSlot<'_>>, Restart> {
        if self.fabric().breaks(rules::INNER_NODES_LOGGED) {
            return Ok(None);
        }
        if !self.has_log(at.server()).await? {
            return Ok(None);
        }
        self.slot_or_busy(self.pages().slot(at.server(), Some(at)).await).map(Some)
    }

    /// Whether the node at `at` is in the cache and the pool may lack some of its changes.
    fn is_unwritten_at(&self, at: GlobalAddr) -> bool {
        match self.cache.mapping().get(at.to_bits()) {
            MappedNode::Frame(frame) => self.cache.is_unwritten(frame),
            MappedNode::Io => true,
            MappedNode::Absent => false,
        }
    }

    /// Prepares for posting a WRITE again after it failed (C15).
    async fn before_rewrite(&self, place: GlobalAddr, error: FabricError) -> Result<(), Restart> {
        self.cache.detector().learn(&error);
        match error {
            FabricError::QueueFull { .. } => self.fabric().sleep(0).await,
            FabricError::Indeterminate { .. } => {
                self.fabric().counters().count_retry();
                if !self.fabric().breaks(rules::WRITES_SETTLED) {
                    self.fabric().reset(place.server()).await?;
                }
            }
            error => return Err(error.into()),
        }
        Ok(())
    }

    /// Repeats the WRITEs that `post` posts and awaits, until they are known to have completed
    /// (C15). `post` fails if it cannot post them.
    pub(super) async fn write_to_the_end(
        &self,
        at: GlobalAddr,
        mut post: impl AsyncFnMut() -> Result<Result<(), FabricError>, Restart>,
    ) -> Result<(), Restart> {
        for _ in 0..WRITE_RETRIES {
            match post().await? {
                Ok(()) => return Ok(()),
                Err(error) => self.before_rewrite(at, error).await?,
            }
        }
        Err(Restart::Busy)
    }

    /// WRITEs an image, repeatedly until it is known to have completed.
    async fn write_image(&self, at: GlobalAddr, image: &PageImage<L>) -> Result<(), Restart> {
        let post = async || {
            let buffer = self.image_out(image).ok_or(Restart::Busy)?;
            Ok(self.fabric().write(at, buffer).await.map(drop))
        };
        self.write_to_the_end(at, post).await
    }

    /// The words to write if `words` have changed.
    #[inline]
    pub(super) fn to_write(&self, words: PageWords) -> PageWords {
        match self.cache.options().write_back {
            WriteBackName::Words => words,
            WriteBackName::Pages => (1..L::page_words()).into(),
        }
    }

    /// Marks `words` of a latched leaf as newer than in the pool, for an operation that waits until
    /// they are written. So the age of the leaf is noted only if their WRITE fails.
    #[inline]
    pub(super) fn mark_to_write(&self, frame: FrameId, page: Page<'_, L>, words: PageWords) {
        mark_dirty(page, self.to_write(words));
        self.cache.arena().count_change(frame);
    }

    /// Marks `words` of a node in a frame as newer than in the pool. Call it under the frame's
    /// latch.
    #[inline]
    pub(crate) fn mark_dirty(
        &self,
        frame: FrameId,
        page: Page<'_, L>,
        words: impl Into<PageWords>,
    ) {
        let was_clean = is_clean(page);
        self.mark_to_write(frame, page, words.into());
        let ages = self.cache.ages();
        let forgets = self.fabric().breaks(rules::AGES_NOTED);
        if was_clean && ages.limit_ns() > 0 && !forgets {
            ages.note(frame, self.fabric().now_ns());
        }
    }

    /// Writes back a hot node that is dirty and not already being written. Other threads can read
    /// and change it meanwhile.
    ///
    /// # Errors
    /// [`Restart`] if the node was not written. It is dirty as before, or in doubt if the
    /// connection could not be reset (C15).
    pub async fn write_back(&self, frame: FrameId) -> Result<(), Restart> {
        let cache = &*self.cache;
        let node = cache.seen(frame).ok_or(Restart::Busy)?;
        let (at, level) = (node.page.address(), node.page.level());
        if !node.is_valid() {
            return Err(Restart::Busy);
        }
        if level > 0 {
            return self.write_back_inner(frame, at).await;
        }
        // Who finds the WRITE of another one in flight waits for no slot.
        self.words_to_write(node.frame, node.page)?;
        // Take the slot before the latch, because taking a slot may wait.
        let slot = self.leaf_slot(at, dirty_words(node.page)).await?;
        self.end_leaf_write(self.begin_leaf_write(node, slot)?).await
    }

    /// Posts the WRITE of a leaf's dirty words. `slot` is for its log entry, if one was taken.
    ///
    /// # Errors
    /// [`Restart::Busy`] if the leaf is clean or being written, latched or has changed, or if the
    /// endpoint has no buffer or no slot left. Nothing has been posted.
    pub(super) fn begin_leaf_write<'a>(
        &'a self,
        node: OptimisticRef<'a, L>,
        slot: LeafLogSlot<'a>,
    ) -> Result<LeafWrite<'a, F, L>, Restart> {
        // Most who wait for a popular leaf find that its WRITE is in flight. A latch would disturb
        // its readers.
        self.words_to_write(node.frame, node.page)?;
        let guard = node.lock().ok_or(Restart::Busy)?;
        let words = self.words_to_write(node.frame, node.page)?;
        let at = node.page.address();
        // Posted under the latch, awaited without it: `writing` keeps the node here (C14).
        let posted = match slot {
            _ if !self.can_damage(words) => self.post_words(at, node.page, words),
            LeafLogSlot::NoRoom => self.post_words(at, node.page, words),
            LeafLogSlot::Taken(slot) => self.post_logged_words(slot, at, node.page, words),
            LeafLogSlot::NotAsked => {
                let slot = self.pages().try_leaf_slot(at).ok_or(Restart::Busy)?;
                self.post_logged_words(slot, at, node.page, words)
            }
        };
        let posted = posted.ok_or(Restart::Busy)?;
        let again = self.to_write_again(words);
        let under_way = self.begin_write_back(node.frame, node.page, again, guard);
        Ok(LeafWrite { posted, under_way })
    }

    /// Waits for a WRITE of a leaf.
    ///
    /// # Errors
    /// As [`CacheClient::write_back`].
    pub(crate) async fn end_leaf_write(&self, write: LeafWrite<'_, F, L>) -> Result<(), Restart> {
        let LeafWrite { posted, under_way } = write;
        if !self.fabric().breaks(rules::WRITE_BACK_AWAITED)
            && let Err(error) = self.landed(under_way.write.at, posted).await
        {
            self.settle_write_back(under_way, &error).await?;
            return Err(Restart::Busy);
        }
        under_way.has_arrived();
        Ok(())
    }

    /// The dirty words of a node, if it can be written back now. Without the latch, a guess.
    fn words_to_write(&self, frame: FrameId, page: Page<'_, L>) -> Result<PageWords, Restart> {
        let words = dirty_words(page);
        let writing = self.cache.arena().is_writing(frame)
            && !self.fabric().breaks(rules::ONE_WRITE_AT_A_TIME);
        let is_free = self.cache.is_held(frame) && !writing;
        if is_free && !words.is_empty() { Ok(words) } else { Err(Restart::Busy) }
    }

    /// Marks a latched node as clean and being written, and releases the latch.
    fn begin_write_back<'a>(
        &'a self,
        frame: FrameId,
        page: Page<'_, L>,
        words: PageWords,
        guard: ExclusiveLatch<'_>,
    ) -> FrameWriteInFlight<'a, F, L> {
        let (at, since_ns) = (page.address(), self.cache.ages().since_ns(frame));
        let change = self.cache.arena().last_change(frame);
        mark_in_flight(page);
        self.cache.arena().set_writing(frame, true);
        drop(guard);
        LiveCounters::count(&self.counters.write_backs);
        let write = UnresolvedFrame { frame, at, words, since_ns };
        FrameWriteInFlight { client: self, write, change }
    }

    /// Marks a node dirty again after its WRITE failed or ended with an unknown outcome. The WRITE
    /// can no longer land.
    async fn is_dirty_again(&self, write: &UnresolvedFrame) {
        let (page, _guard) = self.lock_frame(write.frame).await;
        self.mark_dirty(write.frame, page, write.words);
        self.cache.ages().note_again(write.frame, write.since_ns);
        self.cache.arena().set_writing(write.frame, false);
    }

    /// Writes back an inner node whole and sealed, because another compute server may read it after
    /// boundaries have moved.
    async fn write_back_inner(&self, frame: FrameId, at: GlobalAddr) -> Result<(), Restart> {
        let cache = &*self.cache;
        // Take the slot before the latch, because taking a slot may wait.
        let slot = self.log_slot(at).await?;
        let node = cache.seen(frame).ok_or(Restart::Busy)?;
        let guard = node.lock().ok_or(Restart::Busy)?;
        let words = self.words_to_write(frame, node.page)?;
        if node.page.address() != at {
            return Err(Restart::Busy);
        }
        let image = cache.image(node.page);
        let before = LockWord::from_bits(cache.arena().remote_word(frame));
        let word = self.seal(&image, before, slot.as_ref());
        cache.arena().set_remote_word(frame, word.to_bits());
        let under_way = self.begin_write_back(frame, node.page, words, guard);
        // `before` is `None`: the frame has changed, so the content in the pool is unknown.
        if let Err(restart) = self.write_logged(slot, at, None, &image).await {
            // The next attempt uses a new version, so that no version is ever sealed with two
            // contents (D9).
            if restart == Restart::Busy {
                self.is_dirty_again(&under_way.write).await;
                under_way.has_ended();
            }
            return Err(restart);
        }
        under_way.has_arrived();
        Ok(())
    }

    /// Marks the node of a failed WRITE dirty again once the WRITE can no longer land.
    #[cold]
    async fn settle_write_back(
        &self,
        under_way: FrameWriteInFlight<'_, F, L>,
        error: &FabricError,
    ) -> Result<(), Restart> {
        self.cache.detector().learn(error);
        let unknown = matches!(error, FabricError::Indeterminate { .. });
        if unknown && !self.fabric().breaks(rules::WRITES_SETTLED) {
            self.fabric().counters().count_retry();
            self.fabric().reset(under_way.write.at.server()).await?; // C15
        }
        self.is_dirty_again(&under_way.write).await;
        under_way.has_ended();
        Ok(())
    }

    /// Records that a WRITE of a frame's words, other than a write-back, may land later. The frame
    /// is not written again until that is settled (C15).
    pub(crate) fn may_land(&self, frame: FrameId, page: Page<'_, L>) {
        if !self.fabric().breaks(rules::FAILED_WRITES_KEPT) {
            self.cache.arena().set_writing(frame, true);
            let (at, words) = (page.address(), (1..L::page_words()).into());
            let since_ns = self.cache.ages().since_ns(frame);
            self.doubt(UnresolvedFrame { frame, at, words, since_ns });
        }
    }

    fn doubt(&self, write: UnresolvedFrame) {
        self.in_doubt.borrow_mut().push(write);
        self.pages().doubtful().set(true);
    }

    /// Prevents a latched node from being written or leaving the cache until its parent is written
    /// (C24).
    pub(crate) fn hold_for(&self, frame: FrameId, parent: FrameId, parent_at: GlobalAddr) {
        if !self.fabric().breaks(rules::PARENTS_FIRST) {
            let counts_as_written = self.fabric().breaks(rules::HELD_CHANGES_AWAITED);
            self.cache.hold_back(frame, counts_as_written);
            self.held.borrow_mut().push(DependentFrame { frame, parent, parent_at });
            self.pages().doubtful().set(true);
        }
    }

    /// Whether unsettled WRITEs or READs of this handle keep frames out of use or nodes from being
    /// written.
    pub(crate) fn has_doubts(&self) -> bool {
        !self.in_doubt.borrow().is_empty()
            || !self.landings.borrow().is_empty()
            || !self.held.borrow().is_empty()
            || !self.marked_writes.borrow().is_empty()
    }

    /// Whether the pause between attempts to settle is over. Attempts are spaced because each can
    /// take as long as a request timeout.
    pub(crate) fn is_settling_due(&self) -> bool {
        self.fabric().now_ns() >= self.settle_due.get().0
    }

    /// Records whether everything could be settled. If not, starts a pause, twice as long as the
    /// last one, within the limits.
    pub(crate) fn has_settled(&self, all: bool) {
        let (_, pause_ns) = self.settle_due.get();
        let pause_ns = if all { 0 } else { (2 * pause_ns).clamp(MIN_PAUSE_NS, MAX_PAUSE_NS) };
        self.settle_due.set((self.fabric().now_ns() + pause_ns, pause_ns));
    }

    /// Settles what can be settled now, unless this was just tried.
    pub(super) async fn settle_if_due(&self) {
        if self.has_doubts() && self.is_settling_due() {
            let settled = self.settle_transfers().await;
            self.has_settled(settled.is_ok());
        }
    }

    /// Settles the WRITEs and READs that this endpoint has in doubt, for each memory server that
    /// can be reached again. After that no part of them can still land: pages that were being
    /// written are dirty again, and frames that were being READ into are free.
    ///
    /// # Errors
    /// [`FabricError`] if a memory server cannot be reached.
    pub(crate) async fn settle_transfers(&self) -> Result<(), FabricError> {
        if self.fabric().breaks(rules::DOUBTFUL_WRITES_SETTLED) {
            return Ok(());
        }
        // Only one task settles at a time, so the lists only grow meanwhile. Other tasks check
        // their own condition again.
        let Some(_settling) = SettleRight::begin(&self.settling) else { return Ok(()) };
        let written: Vec<_> =
            self.in_doubt.borrow().iter().map(|doubt| doubt.at.server()).collect();
        let read: Vec<_> = self.landings.borrow().iter().map(|(_, server)| *server).collect();
        let marked: Vec<_> =
            self.marked_writes.borrow().iter().map(|(_, server)| *server).collect();
        let mut outcome = Ok(());
        for server in BTreeSet::from_iter(written.into_iter().chain(read).chain(marked)) {
            // Transfers that may land after this reset are added to the lists behind these
            // positions.
            let before = self.in_doubt.borrow().len();
            let before_read = self.landings.borrow().len();
            let before_marked = self.marked_writes.borrow().len();
            if let Err(error) = self.fabric().reset(server).await {
                outcome = Err(error);
                continue;
            }
            self.free_landed(server, before_read);
            self.end_marked_writes(server, before_marked);
            self.settle_writes_to(server, before).await;
        }
        self.let_go_of_held().await;
        outcome
    }

    /// Marks the frames on `server` among the oldest `many` in doubt as dirty again: their WRITEs
    /// can no longer land. A frame leaves the list only afterwards, because this task may be
    /// dropped at any time.
    async fn settle_writes_to(&self, server: ServerId, many: usize) {
        let oldest: Vec<UnresolvedFrame> =
            self.in_doubt.borrow().iter().take(many).cloned().collect();
        for doubt in oldest.into_iter().filter(|doubt| doubt.at.server() == server) {
            self.is_dirty_again(&doubt).await;
            self.in_doubt.borrow_mut().retain(|other| *other != doubt);
        }
    }

    /// Releases held nodes once their parents are written (C24).
    async fn let_go_of_held(&self) {
        let held = self.held.borrow().clone();
        for DependentFrame { frame, parent, parent_at } in held {
            let waits = || {
                self.pages().is_unfinished(parent_at)
                    || (self.cache.arena().page(parent).address() == parent_at
                        && parent != frame
                        && self.cache.is_unwritten(parent))
            };
            if waits() {
                let _ = self.write_back(parent).await;
            }
            let mut left = self.held.borrow_mut();
            if !waits()
                && let Some(place) = left.iter().position(|other| other.frame == frame)
            {
                left.remove(place);
                self.cache.let_go(frame);
            }
        }
    }

    /// Latches a frame that cannot be evicted meanwhile. Waits for other threads.
    pub(crate) async fn lock_frame(&self, frame: FrameId) -> (Page<'_, L>, ExclusiveLatch<'_>) {
        loop {
            if let Some(node) = self.cache.seen(frame)
                && let Some(guard) = node.lock()
            {
                return (node.page, guard);
            }
            self.fabric().sleep(0).await;
        }
    }
}
