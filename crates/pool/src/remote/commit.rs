//! Committing changes: the log entry first, then the pages, each by a WRITE of its body and a WRITE
//! that unlocks it.
//!
//! A change of one page is one doorbell: entry and page go to the same server, where WRITEs take
//! effect in posting order (contract F3). A change of several pages waits for its entry, then
//! writes the pages that lose keys before those that gain them. Otherwise a reader that reads
//! through a lock (V1) could find a key in the losing page after another client has changed it in
//! the gaining page.
//!
//! A page that only this client's compute server reads and changes needs no lock: its entry and the
//! page are posted together ([`PageClient::post_logged`]).
//!
//! *Invariants*
//! - W1. The entry is in the log before any word of a page changes.
//! - W2. No client can validate a page, and so none can lock it, before all words of its WRITE have
//!   landed.
//! - W3. When a commit returns `Ok`, every page is written.
//! - W4. A commit that has begun will complete if this client lives: unfinished parts are kept with
//!   the content of their pages, and finished later ([`PageClient::settle_doubts`]).

use super::identity::{RedoSlot, RetainedSlot};
use super::pieces::{Pieces, pieces};
use super::redo::{MAX_PAGES, Redo, RedoPage};
use super::{LockedPage, PageClient, PageCopy, PageImage, RemoteError};
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr};
use farleaf_page::rules;
use farleaf_page::{Layout, LockWord, Page};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

/// A page that this client holds, with its content before and after the change.
#[derive(Debug)]
pub struct PageChange<'a, L> {
    pub(super) locked: LockedPage<'a>,
    pub(super) rewrite: PageRewrite<L>,
}

/// The new content of a page that this client holds.
#[derive(Debug)]
pub(super) struct PageRewrite<L> {
    pub(super) at: GlobalAddr,
    /// Word 0 while the page is held.
    pub(super) held: LockWord,
    pub(super) after: PageImage<L>,
    pub(super) redo: RedoPage,
}

/// A commit that has begun and will be finished later (W4). Its pages stay marked as held, and its
/// slot stays in use.
#[derive(Debug)]
pub(super) struct UnresolvedCommit<L> {
    pub(super) slot: RetainedSlot,
    pub(super) rewrites: Vec<PageRewrite<L>>,
}

/// The state of a commit that is certain to happen (W4).
#[derive(Debug)]
pub enum CommitState {
    /// Every page is written.
    Now,
    /// A memory server is unreachable. No other client changes the pages until they are written.
    Later(RemoteError),
}

impl<'a, L: Layout> PageChange<'a, L> {
    /// A change of a locked page from `before`, the copy that the lock was taken with, to `after`.
    pub fn new(locked: LockedPage<'a>, before: &PageCopy<L>, after: PageImage<L>) -> Self {
        let owner = locked.word.owner();
        after.page().drop_needless_lock();
        after.page().seal(locked.word.next_by(owner));
        let redo = RedoPage::between(locked.at, before.page(), after.page());
        Self { rewrite: PageRewrite { at: locked.at, held: locked.word, after, redo }, locked }
    }

    /// Word 0 of the page after the commit.
    pub fn next_word(&self) -> LockWord {
        self.rewrite.after.page().lock_word()
    }
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Writes and unlocks one page.
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`] if the memory server is unreachable.
    pub async fn commit(&self, change: PageChange<'_, L>) -> Result<(), RemoteError> {
        self.commit_together(vec![change]).await
    }

    /// Writes and unlocks up to three pages: all of them or, if this client dies too early, none.
    /// They are written in the given order; pages that lose keys must come first.
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`] if a memory server is unreachable: the commit happens later
    /// (W4).
    ///
    /// # Panics
    /// If there are no changes, or more than three.
    pub async fn commit_together(
        &self,
        changes: Vec<PageChange<'_, L>>,
    ) -> Result<(), RemoteError> {
        match self.commit_surely(changes).await? {
            CommitState::Now => Ok(()),
            CommitState::Later(error) => Err(error),
        }
    }

    /// Like [`PageClient::commit_together`], for callers that can continue once the commit is
    /// certain to happen, now or later.
    ///
    /// # Errors
    /// [`RemoteError`] if nothing has changed, and nothing will.
    ///
    /// # Panics
    /// As [`PageClient::commit_together`].
    pub async fn commit_surely(
        &self,
        mut changes: Vec<PageChange<'_, L>>,
    ) -> Result<CommitState, RemoteError> {
        assert!((1..=MAX_PAGES).contains(&changes.len()), "an entry has room for 1 to 3 pages");
        if self.fabric().breaks(rules::LOSERS_FIRST) {
            changes.reverse();
        }
        let mut slot = match self.slot(changes[0].locked.at.server(), None).await {
            Ok(slot) => slot,
            Err(error) => {
                for change in changes {
                    self.release(change.locked).await;
                }
                return Err(error);
            }
        };
        slot.keep = true;
        let (locks, rewrites): (Vec<LockedPage<'_>>, Vec<PageRewrite<L>>) =
            changes.into_iter().map(|change| (change.locked, change.rewrite)).unzip();
        let written = self.write_all(slot.at, &rewrites).await;
        Ok(self.finish_commit(written, slot, locks, rewrites).await)
    }

    /// Completes a commit after its WRITEs ended with `written`, or keeps it for later (W4).
    pub(super) async fn finish_commit(
        &self,
        written: Result<(), RemoteError>,
        mut slot: RedoSlot<'_>,
        locks: Vec<LockedPage<'_>>,
        rewrites: Vec<PageRewrite<L>>,
    ) -> CommitState {
        if written.is_err()
            && !self.fabric().breaks(rules::COMMITS_SETTLED)
            && let Err(error) = self.settle(slot.at, &rewrites).await
        {
            locks.into_iter().for_each(LockedPage::stays);
            // Finishing the commit also settles the doubts about its pages.
            let is_one = |at| rewrites.iter().any(|page| page.at == at);
            self.doubts.borrow_mut().retain(|doubt| !is_one(doubt.at));
            let server = slot.at.server();
            let unfinished = UnresolvedCommit { slot: slot.leave(), rewrites };
            self.unfinished.borrow_mut().push(Rc::new(unfinished));
            return CommitState::Later(error.after_a_change(server));
        }
        slot.keep = false;
        locks.into_iter().for_each(LockedPage::settled);
        CommitState::Now
    }

    async fn write_all(
        &self,
        slot: GlobalAddr,
        rewrites: &[PageRewrite<L>],
    ) -> Result<(), RemoteError> {
        if self.fabric().breaks(rules::CHANGES_LOGGED) {
            for page in rewrites {
                self.write_unlock(page.at, &page.after).await?;
            }
            return Ok(());
        }
        let entry = self.post_entry(slot, rewrites).await?;
        if let [only] = rewrites {
            let posted = self.post_unlock(only.at, &only.after).await;
            let entry = entry.done().await;
            let [body, word] = posted?;
            let (body, word) = (body.await, word.await);
            entry?;
            body?;
            word?;
            return Ok(());
        }
        if self.fabric().breaks(rules::ENTRIES_AWAITED) {
            drop(entry);
        } else {
            entry.done().await?;
        }
        for page in rewrites {
            self.write_unlock(page.at, &page.after).await?;
        }
        Ok(())
    }

    /// Posts the WRITEs of a page that no other client reads or changes: first an entry in `slot`,
    /// which is on the page's server, then the whole page. So a half-written page can be completed
    /// ([`PageClient::half_written`]). `before` is the pool's content of the page, if known.
    ///
    /// # Errors
    /// [`FabricError`] if too few buffers are free; nothing is posted in that case.
    pub fn post_logged(
        &self,
        slot: &RedoSlot<'_>,
        at: GlobalAddr,
        before: Option<Page<'_, L>>,
        after: &PageImage<L>,
    ) -> Result<(Pieces<F>, F::Op<Buffer>), FabricError> {
        let redo = match before {
            Some(before) => RedoPage::between(at, before, after.page()),
            None => RedoPage::whole(at, after.page()),
        };
        let owner = after.page().lock_word().owner();
        let words = Redo { owner, pages: vec![redo] }.words();
        // Get all buffers before the first post: no other verb may come between the WRITEs.
        let buffer = |piece: &Range<usize>| self.fabric().buffer(piece.len() * 8);
        let buffers = pieces(words.len()).map(|piece| Ok((buffer(&piece)?, piece)));
        let buffers = buffers.collect::<Result<SmallVec<[_; 1]>, FabricError>>()?;
        let page = self.fabric().buffer(Self::page_bytes())?;
        page.copy_from(after.words());
        let mut entry = Pieces::none();
        for (buffer, piece) in buffers.into_iter().rev() {
            entry.post(self.fabric(), (slot.at, &words), piece, buffer); // R4
        }
        Ok((entry, self.fabric().write(at, page)))
    }

    /// Posts a WRITE of `words`. Waits for buffers.
    ///
    /// # Errors
    /// [`RemoteError`] if no buffer becomes free, or an earlier piece failed.
    pub(super) async fn post_pieces(
        &self,
        at: GlobalAddr,
        words: &[u64],
    ) -> Result<Pieces<F>, RemoteError> {
        let mut posted = Pieces::none();
        for piece in pieces(words.len()).rev() {
            let bytes = piece.len() * 8;
            let buffer = match self.fabric().buffer(bytes) {
                Ok(buffer) => buffer,
                Err(_) => {
                    std::mem::replace(&mut posted, Pieces::none()).done().await?; // R5
                    self.buffer(bytes).await?
                }
            };
            posted.post(self.fabric(), (at, words), piece, buffer);
        }
        Ok(posted)
    }

    /// Posts the WRITE of the log entry.
    pub(super) async fn post_entry(
        &self,
        slot: GlobalAddr,
        rewrites: &[PageRewrite<L>],
    ) -> Result<Pieces<F>, RemoteError> {
        let owner = rewrites[0].held.owner();
        let pages = rewrites.iter().map(|page| page.redo.clone()).collect();
        let words = Redo { owner, pages }.words();
        self.post_pieces(slot, &words).await
    }
}
