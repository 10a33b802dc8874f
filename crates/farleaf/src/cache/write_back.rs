//! Changes on their way from frames to the pool.
//!
//! *Invariants*
//! - C13. Two WRITEs of one page are never in flight together: the frame says that one is.
//! - C14. A node counts as clean only once its WRITE has completed: until then `writing` keeps it from cooling.
//! - C15. After a WRITE of unknown outcome the connection is reset before the node is written again, so that
//!   nothing can land late. If that fails the node stays as it is for good: the memory server is out of reach.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::{
    CacheClient, Detour, Discipline, FrameId, LiveCounters, dirty_words, mark_clean, mark_dirty,
};
use crate::page::{Exclusive, Layout, LockWord, MARK_WORD, Page, SIBLING_WORD};
use crate::remote::Image;
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr};
use std::ops::Range;

/// How often a WRITE of unknown outcome is posted again.
const WRITE_RETRIES: u32 = 16;

impl<F: Fabric, L: Layout, D: Discipline> CacheClient<F, L, D> {
    /// Copies words of a page to a buffer of the endpoint; nothing if it has none left.
    fn copy_out(&self, page: Page<'_, L>, words: Range<usize>) -> Option<Buffer> {
        let buffer = self.fabric().buffer(words.len() * 8).ok()?;
        buffer.copy_from(&page.words()[words.clone()]);
        // The note and the mark are the frame's own.
        for own in [SIBLING_WORD, MARK_WORD] {
            if words.contains(&own) {
                buffer.set(own - words.start, 0);
            }
        }
        Some(buffer)
    }

    /// Copies a whole page to a buffer of the endpoint; nothing if it has none left.
    fn image_out(&self, image: &Image<L>) -> Option<Buffer> {
        let buffer = self.fabric().buffer(L::PAGE_WORDS * 8).ok()?;
        buffer.copy_from(image.words());
        Some(buffer)
    }

    /// WRITEs words of a leaf that nobody else can change meanwhile.
    ///
    /// # Errors
    /// [`Detour::Failed`] if it may land later, [`Detour::Busy`] if there is no buffer.
    pub(crate) async fn write_leaf(
        &self,
        at: GlobalAddr,
        page: Page<'_, L>,
        words: Range<usize>,
    ) -> Result<(), Detour> {
        let place = at.plus(words.start as u64 * 8);
        self.write_to_the_end(place, || self.copy_out(page, words.clone())).await
    }

    /// WRITEs an exclusive inner node as it is in `page`, under its latch; it is the next version of itself,
    /// which is returned.
    ///
    /// # Errors
    /// As [`CacheClient::write_leaf`].
    pub(crate) async fn write_inner(
        &self,
        at: GlobalAddr,
        image: &Image<L>,
        before: LockWord,
    ) -> Result<LockWord, Detour> {
        let word = before.next_by(before.owner());
        image.page().seal(word);
        self.write_to_the_end(at, || self.image_out(image)).await?;
        Ok(word)
    }

    /// WRITEs what `copy` copies until that is known to have happened (C15).
    async fn write_to_the_end(
        &self,
        place: GlobalAddr,
        copy: impl Fn() -> Option<Buffer>,
    ) -> Result<(), Detour> {
        for _ in 0..WRITE_RETRIES {
            let buffer = copy().ok_or(Detour::Busy)?;
            match self.fabric().write(place, buffer).await {
                Ok(_) => return Ok(()),
                Err(FabricError::QueueFull { .. }) => self.fabric().sleep(0).await,
                Err(FabricError::Indeterminate { .. }) => {
                    self.fabric().counters().count_retry();
                    self.fabric().reset(place.server()).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Detour::Busy)
    }

    /// Writes a hot node back, if it is dirty and nobody else does. It can be read and changed meanwhile.
    ///
    /// # Errors
    /// [`Detour`] if it could not be written; it is dirty as before.
    pub async fn write_back(&self, frame: FrameId) -> Result<(), Detour> {
        let cache = &*self.cache;
        let node = cache.seen(frame).ok_or(Detour::Busy)?;
        let guard = node.lock().ok_or(Detour::Busy)?;
        let words = dirty_words(node.page);
        if !cache.is_held(frame) || cache.arena().is_writing(frame) || words.is_empty() {
            return Err(Detour::Busy);
        }
        let (at, level) = (node.page.address(), node.page.level());
        let posted = if level == 0 {
            let buffer = self.copy_out(node.page, words.clone()).ok_or(Detour::Busy)?;
            self.fabric().write(at.plus(words.start as u64 * 8), buffer)
        } else {
            // An inner node leaves whole and sealed: another may read it when the boundaries have moved.
            let before = LockWord::from_bits(cache.arena().remote_word(frame));
            let word = before.next_by(before.owner());
            let image = cache.image(node.page);
            image.page().seal(word);
            let buffer = self.image_out(&image).ok_or(Detour::Busy)?;
            cache.arena().set_remote_word(frame, word.to_bits());
            self.fabric().write(at, buffer)
        };
        mark_clean(node.page);
        cache.arena().set_writing(frame, true);
        drop(guard);
        LiveCounters::count(&self.counters.write_backs);
        if D::AWAITS_WRITE_BACK {
            match posted.await {
                Ok(_) => {}
                Err(error) => {
                    self.settle_write_back(frame, at, words, &error).await?;
                    return Err(Detour::Busy);
                }
            }
        }
        cache.arena().set_writing(frame, false);
        Ok(())
    }

    /// A WRITE did not end well: once it cannot land any more, the node is dirty again.
    #[cold]
    async fn settle_write_back(
        &self,
        frame: FrameId,
        at: GlobalAddr,
        words: Range<usize>,
        error: &FabricError,
    ) -> Result<(), Detour> {
        if matches!(error, FabricError::Indeterminate { .. }) {
            self.fabric().counters().count_retry();
            self.fabric().reset(at.server()).await?; // C15
        }
        let (page, _guard) = self.lock_frame(frame).await;
        mark_dirty(page, words);
        self.cache.arena().set_writing(frame, false);
        Ok(())
    }

    /// A WRITE of a frame's words that is not a write-back did not end well: if it may land later, no other follows
    /// it (C15).
    pub(crate) fn after_failed_write(&self, frame: FrameId, detour: &Detour) {
        if matches!(detour, Detour::Failed(_)) {
            self.cache.arena().set_writing(frame, true);
        }
    }

    /// Latches a frame that stays what it is, waiting for others.
    pub(crate) async fn lock_frame(&self, frame: FrameId) -> (Page<'_, L>, Exclusive<'_>) {
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
