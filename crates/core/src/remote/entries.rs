//! Changes of single entries of a leaf, under its entry lock.
//!
//! The lock is word 6 of the leaf: 0, or the word of the holder. A client takes it by a CAS from 0,
//! then READs the leaf, then posts the WRITEs of an entry and the WRITE of the unlock together.
//! There is no log entry: a WRITE that stopped half-way leaves the leaf so that any client can mend
//! it ([`Layout::mended_entries`]).
//!
//! *Invariants*
//! - entries.E1. The holder READs the leaf after it has the lock, and acts on that copy.
//! - entries.E2. The lock is released, or handed over, only after the WRITEs of the entry: the
//!   unlock is posted after them to the same server (F3), and a hand-over awaits them.
//! - entries.E3. A change of the whole leaf (`split.rs`) happens under the entry lock too. The body
//!   that it writes keeps the lock, except where a root becomes an inner page.
//! - entries.E4. An outcome that stays unknown leaves a doubt with the word of the acquisition,
//!   which later operations of this client settle: if the leaf still has that word, the entries are
//!   mended, then the lock is released.
//! - entries.E5. A dead holder's lock is taken over by a CAS from its word, after its compute
//!   server was fenced. The entries are mended before the lock is released.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::entry_locks::EntryLocks;
use super::identity::REGISTRAR;
use super::pages::{BUSY_WAIT_NS, BUSY_WAITS, READ_RETRIES};
use super::{Image, Miss, PageClient, PageCopy, RemoteError};
use crate::page::{ENTRY_LOCK_WORD, Layout, LockWord};
use crate::rules;
use crate::wire::{OwnerRequest, Reply};
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::Range;

/// CASes of one attempt to take a lock, before the operation starts again.
const SWAPS: u32 = 8;
/// Longest pause between them, in nanoseconds.
const SWAP_PAUSE_NS: u64 = 4_000;

/// An entry lock that this client may hold without an operation that will release it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryDoubt {
    at: GlobalAddr,
    word: LockWord,
}

/// The right to change the entries of a leaf, or the turn to ask for it.
#[derive(Debug)]
pub struct EntryHold<'a> {
    locks: &'a EntryLocks,
    doubts: &'a RefCell<Vec<EntryDoubt>>,
    at: GlobalAddr,
    ticket: u64,
    /// The word that the leaf has, or may have, because of this hold.
    word: Option<LockWord>,
    in_a_row: u32,
}

impl Drop for EntryHold<'_> {
    /// Passes the turn on. What was neither released nor handed over is in doubt (entries.E4).
    fn drop(&mut self) {
        let untaken = self.locks.leave(self.at, self.ticket).map(|(word, _)| word);
        if let Some(word) = self.word.or(untaken) {
            self.doubts.borrow_mut().push(EntryDoubt { at: self.at, word });
        }
    }
}

impl EntryHold<'_> {
    /// Whether the lock should go to the next client of this compute server.
    fn is_for_next(&self) -> bool {
        self.locks.is_for_next(self.at, self.in_a_row)
    }

    /// Hands the lock over, if another client still waits.
    fn hand_over(&mut self) -> bool {
        let Some(word) = self.word else { return false };
        let handed = self.locks.hand_over(self.at, (word, self.in_a_row + 1));
        if handed {
            self.word = None;
        }
        handed
    }
}

/// The place of words in an image.
pub type EntryWords = Range<usize>;

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Shares the turns at entry locks with the other clients of a compute server.
    #[must_use]
    pub fn with_entry_locks(mut self, locks: Arc<EntryLocks>) -> Self {
        self.entry_locks = locks;
        self
    }

    /// The number under which this client locks entries. The first call of a compute server
    /// registers it by one RPC.
    async fn entry_owner(&self) -> Result<u16, RemoteError> {
        if let Some(owner) = self.entry_locks.owner() {
            return Ok(owner);
        }
        // Retrying after an unknown outcome only wastes a number.
        match self.rpc.ask_harmless(REGISTRAR, &OwnerRequest::Register).await? {
            Reply::Owner { owner, .. } => Ok(self.entry_locks.set_owner(owner)),
            _ => Err(RemoteError::BadReply { server: REGISTRAR }),
        }
    }

    /// Locks the entries of the leaf at `at`: one CAS, or none if another client of this compute
    /// server hands the lock over.
    ///
    /// # Errors
    /// [`Miss::Restart`] if others hold the lock for too long.
    pub async fn hold_entries(&self, at: GlobalAddr) -> Result<EntryHold<'_>, Miss> {
        let owner = self.entry_owner().await?;
        let (locks, doubts) = (&*self.entry_locks, &self.entry_doubts);
        let ticket = locks.queue_up(at);
        let mut hold = EntryHold { locks, doubts, at, ticket, word: None, in_a_row: 0 };
        let mut waits = 0;
        let handed = loop {
            match locks.turn(at, ticket) {
                Some(handed) => break handed,
                None if waits == BUSY_WAITS => return Err(Miss::Restart),
                None => self.fabric().sleep(BUSY_WAIT_NS).await,
            }
            waits += 1;
        };
        if let Some((word, in_a_row)) = handed {
            (hold.word, hold.in_a_row) = (Some(word), in_a_row);
            return Ok(hold);
        }
        for _ in 0..SWAPS {
            let word = locks.new_word(owner);
            hold.word = Some(word);
            if self.swap_entry_lock(at, LockWord::from_bits(0), word).await? {
                return Ok(hold);
            }
            hold.word = None;
            self.fabric().counters().count_retry();
            self.fabric().sleep(1 + self.fabric().random() % SWAP_PAUSE_NS).await;
        }
        Err(Miss::Restart)
    }

    /// Changes a leaf's entry lock by a CAS. Returns whether it has `to` because of that.
    async fn swap_entry_lock(
        &self,
        at: GlobalAddr,
        from: LockWord,
        to: LockWord,
    ) -> Result<bool, RemoteError> {
        let place = entry_lock_of(at);
        match self.fabric().compare_swap(place, from.to_bits(), to.to_bits()).await {
            Ok(found) if found == from.to_bits() => Ok(true),
            Ok(found) => {
                self.suspect.set(Some((at, LockWord::from_bits(found))));
                Ok(false)
            }
            Err(FabricError::QueueFull { .. }) => Ok(false),
            Err(error @ FabricError::Indeterminate { .. }) => {
                // No other client writes `to` there, and after the reset this one does not either.
                self.fabric().counters().count_retry();
                let found = async {
                    self.fabric().reset(at.server()).await?;
                    Ok::<_, RemoteError>(self.read_words(place, 8).await?.get(0))
                };
                Ok(found.await.map_err(|_| RemoteError::from(error))? == to.to_bits())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes words of `image` to the leaf, in this order, and releases its lock or hands it over:
    /// one doorbell, and one WRITE for each range and one for the release.
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`] if the memory server is unreachable. With any other error
    /// nothing has changed.
    pub async fn write_entries(
        &self,
        mut hold: EntryHold<'_>,
        image: &Image<L>,
        writes: &[EntryWords],
    ) -> Result<(), RemoteError> {
        let for_next = hold.is_for_next();
        if for_next && self.fabric().breaks(rules::HANDED_AFTER_WRITE) {
            return self.hand_over_early(hold, image, writes).await;
        }
        let error = match self.post_entries(hold.at, image, writes, !for_next).await {
            Err(error) => {
                self.release_entries(hold).await;
                return Err(error);
            }
            Ok(posted) => match all_done(posted).await {
                Ok(()) if for_next => {
                    if !hold.hand_over() {
                        // The change is done; without the release, the lock is in doubt.
                        self.release_entries(hold).await;
                    }
                    return Ok(());
                }
                Ok(()) => {
                    hold.word = None;
                    return Ok(());
                }
                Err(error) => error,
            },
        };
        self.settle_entries(hold, image, writes, error).await
    }

    /// Finds out, after WRITEs of unknown outcome, whether they have landed, and repeats them if
    /// not. The last of them was the release.
    #[cold]
    async fn settle_entries(
        &self,
        mut hold: EntryHold<'_>,
        image: &Image<L>,
        writes: &[EntryWords],
        error: RemoteError,
    ) -> Result<(), RemoteError> {
        let (at, Some(word)) = (hold.at, hold.word) else { return Err(error) };
        for _ in 0..READ_RETRIES {
            self.fabric().counters().count_retry();
            let again = async {
                self.fabric().reset(at.server()).await?;
                if self.read_words(entry_lock_of(at), 8).await?.get(0) != word.to_bits() {
                    return Ok::<_, RemoteError>(());
                }
                all_done(self.post_entries(at, image, writes, true).await?).await
            };
            if again.await.is_ok() {
                hold.word = None;
                return Ok(());
            }
            self.fabric().sleep(BUSY_WAIT_NS).await;
        }
        Err(error.after_a_change(at.server()))
    }

    /// Releases the lock of a leaf that this client does not change any more, or hands it over.
    pub async fn release_entries(&self, mut hold: EntryHold<'_>) {
        if hold.is_for_next() && hold.hand_over() {
            return;
        }
        let image = Image::empty();
        let posted = match self.post_entries(hold.at, &image, &[], true).await {
            Ok(posted) => all_done(posted).await,
            Err(error) => Err(error),
        };
        match posted {
            Ok(()) => hold.word = None,
            // If it does not help, the lock is in doubt.
            Err(error) => _ = self.settle_entries(hold, &image, &[], error).await,
        }
    }

    /// The planted bug: the next client begins while the WRITE is in flight.
    async fn hand_over_early(
        &self,
        mut hold: EntryHold<'_>,
        image: &Image<L>,
        writes: &[EntryWords],
    ) -> Result<(), RemoteError> {
        let posted = self.post_entries(hold.at, image, writes, false).await?;
        if !hold.hand_over() {
            self.release_entries(hold).await;
        }
        all_done(posted).await
    }

    /// Posts the WRITEs of a change, and that of the release (entries.E2). If it fails, nothing is
    /// posted.
    async fn post_entries(
        &self,
        at: GlobalAddr,
        image: &Image<L>,
        writes: &[EntryWords],
        releases: bool,
    ) -> Result<Posted<F>, RemoteError> {
        // Get all buffers before the first post: no other verb may come between the WRITEs.
        let mut buffers = SmallVec::<[(GlobalAddr, Buffer); 4]>::new();
        for words in writes {
            let buffer = self.buffer(words.len() * 8).await?;
            for (place, word) in image.words()[words.clone()].iter().enumerate() {
                buffer.set(place, word.load(Ordering::Relaxed));
            }
            buffers.push((at.plus(words.start as u64 * 8), buffer));
        }
        if releases {
            let buffer = self.buffer(8).await?;
            buffer.set(0, 0);
            buffers.push((entry_lock_of(at), buffer));
            if self.fabric().breaks(rules::ENTRIES_BEFORE_UNLOCK) {
                buffers.reverse();
            }
        }
        Ok(buffers.into_iter().map(|(to, buffer)| self.fabric().write(to, buffer)).collect())
    }

    /// What to look after if the page of this copy cannot be used: its entry lock, unless the whole
    /// page is locked.
    pub(super) fn blocking_word(copy: &PageCopy<L>) -> LockWord {
        let (word, entries) = (copy.word(), copy.page().entry_lock());
        if entries.is_locked() && !word.is_locked() { entries } else { word }
    }

    /// Takes over the entry lock of a leaf from a dead client, mends the leaf, and releases the
    /// lock (entries.E5).
    pub(super) async fn recover_entries(&self, found: &PageCopy<L>) -> Result<(), Miss> {
        let (at, held) = (found.at(), found.page().entry_lock());
        if found.word().is_locked() {
            // The dead client was changing the whole leaf. That is to be finished first.
            self.suspect.set(Some((at, found.word())));
            return Err(Miss::Restart);
        }
        let word = self.entry_locks.new_word(self.entry_owner().await?);
        let doubt = EntryDoubt { at, word };
        self.entry_doubts.borrow_mut().push(doubt);
        let is_taken = self.swap_entry_lock(at, held, word).await?;
        if is_taken {
            self.mend_entries(doubt).await?;
        }
        self.entry_doubts.borrow_mut().retain(|other| *other != doubt);
        if is_taken { Ok(()) } else { Err(Miss::Restart) }
    }

    /// Settles a doubt about an entry lock (entries.E4).
    pub(super) async fn settle_entry(&self, doubt: EntryDoubt) -> Result<(), Miss> {
        self.fabric().reset(doubt.at.server()).await?;
        self.mend_entries(doubt).await
    }

    /// Mends the leaf and releases its lock, if the leaf still has the word of the doubt. Nothing
    /// that this client has posted to the leaf may be in flight.
    async fn mend_entries(&self, doubt: EntryDoubt) -> Result<(), Miss> {
        let EntryDoubt { at, word } = doubt;
        let found = self.read_raw(at).await?;
        let page = found.page();
        if page.entry_lock() != word {
            return Ok(());
        }
        // An unfinished commit of this client comes first.
        if page.lock_word().is_locked() || !page.has_whole_header() {
            return Err(Miss::Restart);
        }
        let image = Image::of(page);
        let mut writes = SmallVec::<[EntryWords; 2]>::new();
        if !self.fabric().breaks(rules::ENTRIES_MENDED) {
            for (place, due) in L::mended_entries(page) {
                image.words()[place].store(due, Ordering::Relaxed);
                writes.push(place..place + 1);
            }
        }
        Ok(all_done(self.post_entries(at, &image, &writes, true).await?).await?)
    }
}

type Posted<F> = SmallVec<[<F as Fabric>::Op<Buffer>; 4]>;

/// Waits for all WRITEs.
async fn all_done<O>(posted: SmallVec<[O; 4]>) -> Result<(), RemoteError>
where
    O: Future<Output = Result<Buffer, FabricError>>,
{
    let mut outcome = Ok(());
    for operation in posted {
        outcome = super::both(outcome, operation.await.map(drop));
    }
    Ok(outcome?)
}

/// Where the entry lock of a leaf is.
fn entry_lock_of(leaf: GlobalAddr) -> GlobalAddr {
    leaf.plus(ENTRY_LOCK_WORD as u64 * 8)
}
