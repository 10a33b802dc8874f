//! The remote lock: one CAS on word 0, from the version of a validated copy to the same version
//! with the lock bit set.
//!
//! *Invariants*
//! - K1. The CAS succeeds only if the page still equals the copy, so the holder need not read it
//!   again.
//! - K2. Within one client, a page has at most one holder. So a word that names this client as its
//!   owner means that holder, or a page in doubt that has no holder.
//! - K3. A lock is released by the WRITE of the page's next version or, if nothing changed, by
//!   restoring the previous word.
//! - K4. An operation that ends without knowing whether it holds a page leaves a doubt, which later
//!   operations of this client settle. They also finish unfinished commits (W4). One task at a time
//!   does so.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::leaf_protocol::LeafHook;
use super::pages::READ_RETRIES;
use super::{Backoff, MissCause, PageClient, PageCopy, RemoteError};
use farleaf_fabric::{Fabric, FabricError, GlobalAddr};
use farleaf_page::rules;
use farleaf_page::{Layout, LockWord};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// A page that this client may hold or may have half written, without being certain.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnresolvedLock {
    pub(super) at: GlobalAddr,
}

/// A page that this client holds.
#[derive(Debug)]
pub struct LockedPage<'a> {
    pub(super) at: GlobalAddr,
    /// Word 0 while this client holds the page.
    pub(super) word: LockWord,
    /// Word 0 before the lock.
    pub(super) before: LockWord,
    hold: PageHold<'a>,
}

impl LockedPage<'_> {
    /// The page's address.
    pub fn at(&self) -> GlobalAddr {
        self.at
    }

    /// Word 0 while this client holds the page.
    pub fn word(&self) -> LockWord {
        self.word
    }

    /// Records that the page is unlocked and nothing is left to settle.
    pub fn settled(mut self) {
        self.hold.in_doubt = false;
    }

    /// Keeps the page marked as held: it will be written later (W4).
    pub(super) fn stays(self) {
        std::mem::forget(self.hold);
    }
}

/// The mark of a page in `PageClient::held`. Dropping it leaves a doubt if the outcome is unknown
/// (K4).
#[derive(Debug)]
pub struct PageHold<'a> {
    at: GlobalAddr,
    held: &'a RefCell<BTreeSet<GlobalAddr>>,
    doubts: &'a RefCell<Vec<UnresolvedLock>>,
    in_doubt: bool,
}

impl Drop for PageHold<'_> {
    fn drop(&mut self) {
        if self.in_doubt {
            let mut doubts = self.doubts.borrow_mut();
            if doubts.iter().all(|doubt| doubt.at != self.at) {
                doubts.push(UnresolvedLock { at: self.at });
            }
        } else if self.doubts.borrow().iter().all(|doubt| doubt.at != self.at) {
            // A page in doubt stays marked until the doubt is settled, so no other operation of
            // this client can take it.
            self.held.borrow_mut().remove(&self.at);
        }
    }
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Marks a page as held by an operation of this client (K2).
    pub fn hold(&self, at: GlobalAddr) -> Option<PageHold<'_>> {
        // Not `then_some`: that would build a mark even on failure, and dropping it would remove
        // the other operation's mark.
        let marked = self.held.borrow_mut().insert(at);
        marked.then(|| PageHold { at, held: &self.held, doubts: &self.doubts, in_doubt: false })
    }

    /// Marks a page that is in doubt and therefore already marked. The caller takes over the doubt.
    pub fn hold_again(&self, at: GlobalAddr) -> PageHold<'_> {
        self.held.borrow_mut().insert(at);
        PageHold { at, held: &self.held, doubts: &self.doubts, in_doubt: false }
    }

    /// Puts the page in doubt, until `certain` reverts it.
    pub(super) fn doubt<'a>(&self, mut hold: PageHold<'a>) -> PageHold<'a> {
        hold.in_doubt = true;
        hold
    }

    /// Removes the doubt: the page is known to be unchanged.
    pub(super) fn certain<'a>(&self, mut hold: PageHold<'a>) -> PageHold<'a> {
        hold.in_doubt = false;
        hold
    }

    /// A page that is already locked in this client's name.
    pub fn already_locked<'a>(
        &self,
        mut hold: PageHold<'a>,
        at: GlobalAddr,
        word: LockWord,
    ) -> LockedPage<'a> {
        hold.in_doubt = true;
        LockedPage { at, word, before: word.unlocked_by(word.owner()), hold }
    }

    /// Locks the page that `copy` was read from, if the page still equals the copy.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the page has changed or is locked.
    pub async fn lock(&self, copy: &PageCopy<L>) -> Result<LockedPage<'_>, MissCause> {
        let (at, before) = (copy.at, copy.word());
        if before.is_locked() {
            self.suspect.set(Some((at, before)));
            return Err(MissCause::Restart);
        }
        // Prepare the log before locking: if the log has no room, nothing has changed yet.
        let owner = self.prepare_log(at.server()).await?;
        let hold = self.hold(at).ok_or(MissCause::Restart)?;
        let before = match self.fabric().breaks(rules::LOCKED_AS_COPIED) {
            true => LockWord::from_bits(self.read_words(at, 8).await?.get(0)),
            false => before,
        };
        self.swap_lock(hold, at, before, before.locked_by(owner)).await
    }

    /// Takes the lock by the CAS from `before` to `word`.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the word is not `before`.
    pub async fn swap_lock<'a>(
        &'a self,
        mut hold: PageHold<'a>,
        at: GlobalAddr,
        before: LockWord,
        word: LockWord,
    ) -> Result<LockedPage<'a>, MissCause> {
        hold.in_doubt = true;
        let swap = self.fabric().compare_swap(at, before.to_bits(), word.to_bits()).await;
        let mine = match swap {
            Ok(found) => found == before.to_bits(),
            Err(error @ FabricError::Indeterminate { .. }) => {
                self.find_out(at, word).await.map_err(|_| RemoteError::from(error))?
            }
            Err(FabricError::QueueFull { .. }) => false,
            Err(error) => {
                hold.in_doubt = false;
                return Err(error.into());
            }
        };
        if mine {
            return Ok(LockedPage { at, word, before, hold });
        }
        hold.in_doubt = false;
        Err(MissCause::Restart)
    }

    /// Finds out, after a CAS of unknown outcome, whether this client holds the page. No other
    /// client writes `word` there, and after the reset this client does not either.
    async fn find_out(&self, at: GlobalAddr, word: LockWord) -> Result<bool, RemoteError> {
        self.fabric().counters().count_retry();
        if !self.fabric().breaks(rules::LOCKS_SETTLED) {
            self.fabric().reset(at.server()).await?;
        }
        Ok(self.read_words(at, 8).await?.get(0) == word.to_bits())
    }

    /// Unlocks a page that did not change by restoring its previous word, so that copies of the
    /// page stay valid.
    pub async fn release(&self, locked: LockedPage<'_>) {
        if self.fabric().breaks(rules::LOCKS_RELEASED) {
            return locked.settled();
        }
        let mut outcome = self.write_word(locked.at, locked.before).await;
        for _ in 0..READ_RETRIES {
            if outcome.is_ok() {
                return locked.settled();
            }
            // The WRITE may have landed, and another client may hold the page by now, so check
            // before writing again.
            outcome = match self.find_out(locked.at, locked.word).await {
                Ok(true) => self.write_word(locked.at, locked.before).await,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
        }
    }

    async fn write_word(&self, at: GlobalAddr, word: LockWord) -> Result<(), RemoteError> {
        self.post_write(at, [word.to_bits()].into_iter()).await?.await?;
        Ok(())
    }

    /// Whether a client holds the page at `at`, and that page was the last one that could not be
    /// used.
    pub fn is_held_up_at(&self, at: GlobalAddr) -> bool {
        self.suspect.get().is_some_and(|(page, word)| page == at && word.is_locked())
    }

    /// Prepares another attempt of an operation: settles this client's doubts, which may be what
    /// blocks the operation, and waits. Every `LOOK_AFTER_ATTEMPTS` attempts, checks whether the
    /// owner of the blocking page is dead.
    ///
    /// # Errors
    /// After the last attempt, that of a memory server that has failed, or
    /// [`RemoteError::Contended`] if all are there.
    pub async fn before_retry(&self, backoff: &mut Backoff) -> Result<(), RemoteError> {
        if !backoff.count() {
            self.find_lost_server().await?;
            return Err(RemoteError::Contended { retries: backoff.attempts() });
        }
        self.fabric().counters().count_retry();
        self.settle_doubts().await;
        backoff.wait(self.fabric()).await;
        let attempts = backoff.attempts();
        if attempts >= LOOK_AFTER_ATTEMPTS
            && attempts.is_multiple_of(LOOK_AFTER_ATTEMPTS)
            && let Some((at, word)) = self.suspect.take()
        {
            self.look_after(at, word).await?;
        }
        Ok(())
    }

    /// Asks every memory server for a sign of life. A commit that a lost memory server stops keeps
    /// its pages on the others (W4): whoever waits for these waits for that server.
    #[cold]
    async fn find_lost_server(&self) -> Result<(), RemoteError> {
        for server in self.rpc.servers() {
            self.rpc.usage(server).await?;
        }
        Ok(())
    }

    /// Retries `attempt` while it restarts, within bounds.
    ///
    /// # Errors
    /// Those of the attempts and, after the last one, of [`PageClient::before_retry`].
    pub async fn attempts<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, MissCause>,
    ) -> Result<T, RemoteError> {
        let mut backoff = self.backoff();
        loop {
            match attempt().await {
                Ok(value) => return Ok(value),
                Err(MissCause::Failed(error)) => return Err(error),
                Err(MissCause::Restart) => self.before_retry(&mut backoff).await?,
            }
        }
    }

    /// Whether this client has doubts to settle or commits to finish.
    #[inline]
    pub fn has_doubts(&self) -> bool {
        !self.doubts.borrow().is_empty()
            || !self.unfinished.borrow().is_empty()
            || self.leaf_hook.as_ref().is_some_and(LeafHook::has_unresolved)
            || !self.unreset.is_empty()
    }

    /// Whether an unfinished commit (W4) has yet to write the page at `at`.
    pub fn is_unfinished(&self, at: GlobalAddr) -> bool {
        let unfinished = self.unfinished.borrow();
        unfinished.iter().any(|commit| commit.rewrites.iter().any(|page| page.at == at))
    }

    /// Settles what earlier operations of this client left in doubt, if anything is due. Best
    /// effort: an unreachable memory server is tried again later.
    pub async fn settle_doubts(&self) {
        let due = self.fabric().now_ns() >= self.doubts_due_ns.get();
        if !self.has_doubts() || !due || self.fabric().breaks(rules::DOUBTS_SETTLED) {
            return;
        }
        self.settle_doubts_now().await;
    }

    /// Settles everything that earlier operations of this client left in doubt.
    ///
    /// # Errors
    /// [`RemoteError::Contended`] if a page could not be settled: its memory server is unreachable.
    pub async fn settle_all(&self) -> Result<(), RemoteError> {
        for _ in 0..READ_RETRIES {
            if !self.has_doubts() {
                return Ok(());
            }
            self.settle_doubts_now().await;
            if self.settling.get() {
                self.fabric().sleep(DOUBT_PAUSE_NS / 16).await;
            }
        }
        Err(RemoteError::Contended { retries: READ_RETRIES })
    }

    #[cold]
    async fn settle_doubts_now(&self) {
        // Each entry stays in its list until it is settled, since this task may be dropped at any
        // time.
        let Some(_settling) = SettleRight::begin(&self.settling) else { return };
        self.doubts_due_ns.set(self.fabric().now_ns() + DOUBT_PAUSE_NS);
        let unfinished = self.unfinished.borrow().clone();
        for commit in unfinished {
            if self.finish(commit.slot.at, &commit.rewrites).await.is_ok() {
                self.unfinished.borrow_mut().retain(|other| !Rc::ptr_eq(other, &commit));
                self.identity.free_left(commit.slot);
                let mut held = self.held.borrow_mut();
                commit.rewrites.iter().for_each(|page| _ = held.remove(&page.at));
            }
        }
        let doubts = self.doubts.borrow().clone();
        for doubt in doubts {
            if self.recover_own(doubt.at).await.is_ok() {
                self.doubts.borrow_mut().retain(|other| other.at != doubt.at);
                self.held.borrow_mut().remove(&doubt.at);
            }
        }
        if let Some(hook) = self.leaf_hook.as_ref().filter(|hook| hook.has_unresolved()) {
            hook.protocol.settle(self).await;
        }
        self.unreset.settle(self.fabric()).await;
        if !self.has_doubts() {
            // Every kept slot belongs to a doubt, so none is needed any more.
            self.identity.free_kept();
        }
    }
}

/// The right to settle doubts, until it is dropped.
pub struct SettleRight<'a>(&'a Cell<bool>);

impl<'a> SettleRight<'a> {
    /// `None` while another task has the right.
    pub fn begin(settling: &'a Cell<bool>) -> Option<Self> {
        (!settling.replace(true)).then(|| Self(settling))
    }
}

impl Drop for SettleRight<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Number of attempts between two checks whether the owner of a blocking page is dead.
const LOOK_AFTER_ATTEMPTS: u32 = 8;
/// Pause before doubts that could not be settled are tried again, in nanoseconds.
const DOUBT_PAUSE_NS: u64 = 1_000_000;
