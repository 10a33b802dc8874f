//! Changes of single entries of a leaf, under its entry lock.
//!
//! The lock is word 6 of the leaf: 0, or the word of the holder. (Where locks have versions, a free
//! one has another word than 0, entries.V1.) A client takes it by a CAS from the free word, then
//! READs the leaf, then posts the WRITEs of an entry and the WRITE of the unlock together. There is
//! no log entry: a WRITE that stopped half-way leaves the leaf so that any client can mend it
//! ([`Layout::mended_entries`]).
//!
//! *Invariants*
//! - entries.E1. The holder READs the leaf after it has the lock, and acts on that copy.
//! - entries.E2. The lock is released, or handed over, only after the WRITEs of the entry: the
//!   unlock is posted after them to the same server (F3), and a hand-over awaits them.
//! - entries.E3. A change of the whole leaf (`remote/split.rs`) happens under the entry lock too.
//!   The body that it writes keeps the lock, except where a root becomes an inner page.
//! - entries.E4. An outcome that stays unknown leaves a doubt with the word of the acquisition,
//!   which later operations of this client settle: if the leaf still has that word, the entries are
//!   mended, then the lock is released.
//! - entries.E5. A dead holder's lock is taken over by a CAS from its word, after its compute
//!   server was fenced. The entries are mended before the lock is released.
//! - entries.E6. Where only one compute server changes a leaf, its turn is the lock: there is no
//!   CAS and no release. The turn is passed on only when no WRITE to the leaf can land any more.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::EntryLocks;
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr};
use farleaf_page::rules;
use farleaf_page::{ENTRY_LOCK_WORD, Layout, LockWord};
use farleaf_pool::remote::{
    BUSY_WAIT_NS, Backoff, HookFuture, LeafProtocol, MissCause, PageClient, PageCopy, PageImage,
    REGISTRAR, RemoteError, SETTLES, UnresolvedCount, all_done,
};
use farleaf_pool::wire::{OwnerRequest, Refusal, Reply};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::ops::{Deref, Range};

/// CASes of one attempt to take a lock, before the operation starts again.
const SWAPS: u32 = 8;
/// Polls for the turn of one attempt. The first ones are close together, because a lock is held for
/// some round trips; the others are far apart, so that an attempt takes half a millisecond.
const TURN_WAITS: u32 = 128;
const CLOSE_TURN_WAITS: u32 = 64;
const FAR_TURN_WAIT_NS: u64 = 8_000;
/// Longest pause between two CASes, in nanoseconds.
const SWAP_PAUSE_NS: u64 = 4_000;

/// An entry lock that this client may hold without an operation that will release it.
#[derive(Clone, Debug)]
pub(crate) struct UnresolvedEntry {
    at: GlobalAddr,
    lock: UnresolvedEntryLock,
}

#[derive(Clone, Debug)]
enum UnresolvedEntryLock {
    /// The leaf has this word, or had it.
    Word(LockWord),
    /// This client has the turn (entries.E6).
    Turn(Arc<EntryLocks>, u64),
}

impl UnresolvedEntry {
    /// The leaf.
    pub(crate) fn at(&self) -> GlobalAddr {
        self.at
    }

    /// Whether both are about the same acquisition.
    fn is(&self, other: &Self) -> bool {
        let same = match (&self.lock, &other.lock) {
            (UnresolvedEntryLock::Word(one), UnresolvedEntryLock::Word(other)) => one == other,
            (UnresolvedEntryLock::Turn(_, one), UnresolvedEntryLock::Turn(_, other)) => {
                one == other
            }
            _ => false,
        };
        same && self.at == other.at
    }
}

/// The doubts of one client. Their number is kept where the page client looks.
#[derive(Debug, Default)]
struct UnresolvedEntries {
    all: RefCell<Vec<UnresolvedEntry>>,
    count: UnresolvedCount,
}

impl UnresolvedEntries {
    fn add(&self, doubt: UnresolvedEntry) {
        let mut all = self.all.borrow_mut();
        all.push(doubt);
        self.count.set(all.len());
    }

    fn remove(&self, doubt: &UnresolvedEntry) {
        let mut all = self.all.borrow_mut();
        all.retain(|other| !other.is(doubt));
        self.count.set(all.len());
    }
}

/// What one client knows of the entry locks that it takes. *Thread safety*: its endpoint's thread.
#[derive(Debug)]
pub struct EntryState {
    doubts: UnresolvedEntries,
    /// The turns at entry locks, which the clients of a compute server share.
    locks: Arc<EntryLocks>,
    /// The number of the compute server that this client has found alive; 0 before that.
    owner: Cell<u16>,
}

impl EntryState {
    /// Of a client that takes its turns among those that share `locks`.
    pub(crate) fn new(locks: Arc<EntryLocks>) -> Self {
        Self { doubts: UnresolvedEntries::default(), locks, owner: Cell::new(0) }
    }

    /// How many doubts there are.
    pub(crate) fn unresolved(&self) -> UnresolvedCount {
        self.doubts.count.clone()
    }

    /// Settles what this client has left in doubt (entries.E4): `mend` mends a leaf that nothing of
    /// this client is on its way to.
    pub(crate) async fn settle_all<F: Fabric, L: Layout>(
        &self,
        pages: &PageClient<F, L>,
        mend: impl AsyncFn(&UnresolvedEntry) -> Result<(), MissCause>,
    ) {
        let doubts = self.doubts.all.borrow().clone();
        for doubt in doubts {
            let settle = async || {
                pages.fabric().reset(doubt.at.server()).await?;
                mend(&doubt).await
            };
            if settle().await.is_ok() {
                if let UnresolvedEntryLock::Turn(locks, ticket) = &doubt.lock {
                    locks.leave(doubt.at, *ticket);
                }
                self.doubts.remove(&doubt);
            }
        }
    }
}

impl<F: Fabric, L: Layout> LeafProtocol<F, L> for EntryState {
    fn settle<'a>(&'a self, pages: &'a PageClient<F, L>) -> HookFuture<'a, ()> {
        let client = EntryClient::new(pages, self);
        Box::pin(self.settle_all(pages, async move |doubt| client.mend_entries(doubt).await))
    }

    fn recover<'a>(
        &'a self,
        pages: &'a PageClient<F, L>,
        gone: u16,
        at: GlobalAddr,
    ) -> HookFuture<'a, Result<Option<PageCopy<L>>, MissCause>> {
        Box::pin(async move {
            let found = pages.read_raw(at).await?;
            let entry_lock = found.page().entry_lock();
            if entry_lock.is_locked() && entry_lock.owner() == gone {
                return EntryClient::new(pages, self).recover_entries(&found).await.map(|()| None);
            }
            Ok(Some(found))
        })
    }
}

/// Leaves a doubt when it is dropped.
struct UnresolvedOnDrop<'a> {
    doubts: &'a UnresolvedEntries,
    doubt: Option<UnresolvedEntry>,
}

impl Drop for UnresolvedOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(doubt) = self.doubt.take() {
            self.doubts.add(doubt);
        }
    }
}

/// The right to change the entries of a leaf, or the turn to ask for it.
#[derive(Debug)]
pub struct EntryHold<'a> {
    locks: &'a Arc<EntryLocks>,
    doubts: &'a UnresolvedEntries,
    at: GlobalAddr,
    ticket: u64,
    /// The word that the leaf has, or may have, because of this hold.
    word: Option<LockWord>,
    /// Whether a WRITE to the leaf may be in flight that this hold has to outlast.
    may_land: bool,
    in_a_row: u32,
}

impl Drop for EntryHold<'_> {
    /// Passes the turn on. What was neither released nor handed over is in doubt (entries.E4).
    fn drop(&mut self) {
        let at = self.at;
        if self.may_land && self.locks.is_exclusive() {
            let lock = UnresolvedEntryLock::Turn(self.locks.clone(), self.ticket);
            return self.doubts.add(UnresolvedEntry { at, lock });
        }
        let untaken = self.locks.leave(at, self.ticket).map(|(word, _)| word);
        if let Some(word) = self.word.or(untaken) {
            self.doubts.add(UnresolvedEntry { at, lock: UnresolvedEntryLock::Word(word) });
        }
    }
}

impl EntryHold<'_> {
    /// Whether the lock should go to the next client of this compute server.
    fn is_for_next(&self) -> bool {
        self.locks.is_for_next(self.at, self.in_a_row)
    }

    /// Awaits a change of the whole leaf. If its outcome is unknown, or if it is dropped, the turn
    /// stays with the doubt about the leaf, which is settled first.
    pub async fn rewriting<T>(
        &mut self,
        change: impl Future<Output = Result<T, MissCause>>,
    ) -> Result<T, MissCause> {
        self.may_land = true;
        let outcome = change.await;
        self.may_land = matches!(outcome, Err(MissCause::Failed(RemoteError::Indeterminate(_))));
        outcome
    }

    /// The word that releases the lock.
    fn release_word(&self) -> Option<LockWord> {
        self.word.map(|word| self.locks.free_after(word))
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
pub(crate) type EntryWords = Range<usize>;

/// One client's access to leaves with entry locks.
#[derive(Debug)]
pub struct EntryClient<'a, F: Fabric, L: Layout> {
    pages: &'a PageClient<F, L>,
    state: &'a EntryState,
}

// Not derived: the derive would require more of `F` and `L`.
impl<F: Fabric, L: Layout> Clone for EntryClient<'_, F, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Fabric, L: Layout> Copy for EntryClient<'_, F, L> {}

impl<F: Fabric, L: Layout> Deref for EntryClient<'_, F, L> {
    type Target = PageClient<F, L>;

    fn deref(&self) -> &PageClient<F, L> {
        self.pages
    }
}

impl<'a, F: Fabric, L: Layout> EntryClient<'a, F, L> {
    /// Of the client of `pages`, whose hook has this state.
    pub(crate) fn new(pages: &'a PageClient<F, L>, state: &'a EntryState) -> Self {
        Self { pages, state }
    }

    /// The number under which a compute server's clients lock entries. The first call registers it
    /// by one RPC.
    async fn entry_owner(self, locks: &EntryLocks) -> Result<u16, RemoteError> {
        if let Some(owner) = locks.owner() {
            return self.living_owner(owner).await;
        }
        let owner = self.register().await?;
        let first = locks.set_owner(owner);
        self.state.owner.set(first);
        if first != owner {
            // Another client registered one meanwhile. If this request is lost, so is the number.
            drop(self.rpc().post(REGISTRAR, &OwnerRequest::Retire { owner }));
        }
        Ok(first)
    }

    /// The number that another client has registered, after a check that it was not declared dead:
    /// other clients take the locks of dead ones over. One RPC by each handle.
    async fn living_owner(self, owner: u16) -> Result<u16, RemoteError> {
        if self.state.owner.get() == owner {
            return Ok(owner);
        }
        match self.rpc().ask_idempotent(REGISTRAR, &OwnerRequest::OwnerState { owner }).await? {
            Reply::Owner { dead: false, .. } => {
                self.state.owner.set(owner);
                Ok(owner)
            }
            Reply::Owner { .. } => {
                let refusal = Refusal::DeclaredDead;
                Err(RemoteError::Refused { server: REGISTRAR, refusal })
            }
            _ => Err(RemoteError::BadReply { server: REGISTRAR }),
        }
    }

    /// Locks the entries of the leaf at `at`: one CAS, or none if another client of this compute
    /// server hands the lock over.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if others hold the lock for too long.
    pub async fn hold_entries(self, at: GlobalAddr) -> Result<EntryHold<'a>, MissCause> {
        self.hold_entries_by(&self.state.locks, at).await
    }

    /// Like [`EntryClient::hold_entries`], among the clients that share `locks`.
    ///
    /// # Errors
    /// As [`EntryClient::hold_entries`].
    pub(crate) async fn hold_entries_by(
        self,
        locks: &'a Arc<EntryLocks>,
        at: GlobalAddr,
    ) -> Result<EntryHold<'a>, MissCause> {
        let owner = match locks.is_exclusive() {
            true => 0,
            false => self.entry_owner(locks).await?,
        };
        let (doubts, ticket) = (&self.state.doubts, locks.queue_up(at));
        let (word, may_land, in_a_row) = (None, false, 0);
        let mut hold = EntryHold { locks, doubts, at, ticket, word, may_land, in_a_row };
        if locks.is_exclusive() && self.fabric().breaks(rules::CHANGES_IN_TURN) {
            return Ok(hold);
        }
        let mut waits = 0;
        let handed = loop {
            match locks.turn(at, ticket) {
                Some(handed) => break handed,
                None if waits == TURN_WAITS => return Err(MissCause::Restart),
                None if waits < CLOSE_TURN_WAITS => self.fabric().sleep(BUSY_WAIT_NS).await,
                None => self.fabric().sleep(FAR_TURN_WAIT_NS).await,
            }
            waits += 1;
        };
        if let Some((word, in_a_row)) = handed {
            (hold.word, hold.in_a_row) = (Some(word), in_a_row);
            return Ok(hold);
        }
        if locks.is_exclusive() {
            return Ok(hold);
        }
        for _ in 0..SWAPS {
            let free = match locks.has_versions() {
                true => LockWord::from_bits(self.read_words(entry_lock_of(at), 8).await?.get(0)),
                false => LockWord::from_bits(0),
            };
            if free.is_locked() {
                self.note_suspect(at, free);
            } else {
                let word = locks.new_word(owner);
                hold.word = Some(word);
                if self.swap_entry_lock(at, free, word).await? {
                    return Ok(hold);
                }
                hold.word = None;
            }
            self.fabric().counters().count_retry();
            self.fabric().sleep(1 + self.fabric().random() % SWAP_PAUSE_NS).await;
        }
        Err(MissCause::Restart)
    }

    /// Changes a leaf's entry lock by a CAS. Returns whether it has `to` because of that.
    async fn swap_entry_lock(
        self,
        at: GlobalAddr,
        from: LockWord,
        to: LockWord,
    ) -> Result<bool, RemoteError> {
        let place = entry_lock_of(at);
        match self.fabric().compare_swap(place, from.to_bits(), to.to_bits()).await {
            Ok(found) if found == from.to_bits() => Ok(true),
            Ok(found) => {
                self.note_suspect(at, LockWord::from_bits(found));
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
    pub(crate) async fn write_entries(
        self,
        mut hold: EntryHold<'_>,
        image: &PageImage<L>,
        writes: &[EntryWords],
    ) -> Result<(), RemoteError> {
        if hold.locks.is_exclusive() {
            let at = hold.at;
            let post = async || self.post_entries(at, image, writes, None).await;
            return self.change_in_turn(hold, post).await;
        }
        let for_next = hold.is_for_next();
        if for_next && self.fabric().breaks(rules::HANDED_AFTER_WRITE) {
            return self.hand_over_early(hold, image, writes).await;
        }
        let release = hold.release_word().filter(|_| !for_next);
        let error = match self.post_entries(hold.at, image, writes, release).await {
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

    /// Changes a leaf that only this compute server changes (entries.E6), by the WRITEs that `post`
    /// posts, all or none, as often as needed.
    ///
    /// # Errors
    /// As [`EntryClient::write_entries`].
    pub(crate) async fn change_in_turn(
        self,
        mut hold: EntryHold<'_>,
        post: impl AsyncFn() -> Result<EntryWrites<F>, RemoteError>,
    ) -> Result<(), RemoteError> {
        let at = hold.at;
        let posted = post().await?;
        hold.may_land = true;
        let mut outcome = all_done(posted).await;
        let mut backoff = Backoff::default();
        for _ in 0..SETTLES {
            if outcome.is_ok() {
                break;
            }
            self.fabric().counters().count_retry();
            backoff.count();
            backoff.wait(self.fabric()).await;
            let again = async {
                self.fabric().reset(at.server()).await?;
                all_done(post().await?).await
            };
            outcome = again.await;
        }
        hold.may_land = outcome.is_err();
        outcome.map_err(|error: RemoteError| error.after_a_change(at.server()))
    }

    /// Finds out, after WRITEs of unknown outcome, whether they have landed, and repeats them if
    /// not. The last of them was the release.
    #[cold]
    async fn settle_entries(
        self,
        mut hold: EntryHold<'_>,
        image: &PageImage<L>,
        writes: &[EntryWords],
        error: RemoteError,
    ) -> Result<(), RemoteError> {
        let (at, Some(word)) = (hold.at, hold.word) else { return Err(error) };
        let again = async || {
            self.fabric().reset(at.server()).await?;
            if self.read_words(entry_lock_of(at), 8).await?.get(0) != word.to_bits() {
                return Ok(());
            }
            all_done(self.post_entries(at, image, writes, hold.release_word()).await?).await
        };
        if self.until_settled(again).await.is_ok() {
            hold.word = None;
            return Ok(());
        }
        Err(error.after_a_change(at.server()))
    }

    /// Releases the lock of a leaf that this client does not change any more, or hands it over.
    pub async fn release_entries(self, mut hold: EntryHold<'_>) {
        if hold.locks.is_exclusive() {
            return; // the turn passes on
        }
        if hold.is_for_next() && hold.hand_over() {
            return;
        }
        let image = PageImage::empty();
        let posted = match self.post_entries(hold.at, &image, &[], hold.release_word()).await {
            Ok(posted) => all_done(posted).await,
            Err(error) => Err(error),
        };
        match posted {
            Ok(()) => hold.word = None,
            // If it does not help, the lock is in doubt.
            Err(error) => _ = self.settle_entries(hold, &image, &[], error).await,
        }
    }

    /// Ends a hold under which the whole leaf was written: if the outcome is unknown, the lock or
    /// the turn is left with the doubt about it.
    pub(crate) async fn end_entries(self, hold: EntryHold<'_>) {
        if !hold.may_land {
            self.release_entries(hold).await;
        }
    }

    /// The planted bug: the next client begins while the WRITE is in flight.
    async fn hand_over_early(
        self,
        mut hold: EntryHold<'_>,
        image: &PageImage<L>,
        writes: &[EntryWords],
    ) -> Result<(), RemoteError> {
        let posted = self.post_entries(hold.at, image, writes, None).await?;
        if !hold.hand_over() {
            self.release_entries(hold).await;
        }
        all_done(posted).await
    }

    /// Posts the WRITEs of a change, and that of the word `release` (entries.E2). If it fails,
    /// nothing is posted.
    async fn post_entries(
        self,
        at: GlobalAddr,
        image: &PageImage<L>,
        writes: &[EntryWords],
        release: Option<LockWord>,
    ) -> Result<EntryWrites<F>, RemoteError> {
        // Get all buffers before the first post: no other verb may come between the WRITEs.
        let take_all = || {
            let of_entry = writes.iter().map(|words| self.fabric().buffer(words.len() * 8));
            of_entry.chain(release.map(|_| self.fabric().buffer(8))).collect()
        };
        let buffers: SmallVec<[Buffer; 4]> = self.buffers(take_all).await?;
        let mut posts = SmallVec::<[(GlobalAddr, Buffer); 4]>::new();
        let mut buffers = buffers.into_iter();
        for (words, buffer) in writes.iter().zip(&mut buffers) {
            for (place, word) in image.words()[words.clone()].iter().enumerate() {
                buffer.set(place, word.load(Ordering::Relaxed));
            }
            posts.push((at.plus(words.start as u64 * 8), buffer));
        }
        if let Some((word, buffer)) = release.zip(buffers.next()) {
            buffer.set(0, word.to_bits());
            posts.push((entry_lock_of(at), buffer));
            if self.fabric().breaks(rules::ENTRIES_BEFORE_UNLOCK) {
                posts.reverse();
            }
        }
        Ok(posts.into_iter().map(|(to, buffer)| self.fabric().write(to, buffer)).collect())
    }

    /// Takes over the entry lock of a leaf from a dead client, mends the leaf, and releases the
    /// lock (entries.E5).
    async fn recover_entries(self, found: &PageCopy<L>) -> Result<(), MissCause> {
        let (at, held) = (found.at(), found.page().entry_lock());
        if found.word().is_locked() {
            // The dead client was changing the whole leaf. That is to be finished first.
            self.note_suspect(at, found.word());
            return Err(MissCause::Restart);
        }
        let locks = &self.state.locks;
        let word = locks.new_word(self.entry_owner(locks).await?);
        let doubt = UnresolvedEntry { at, lock: UnresolvedEntryLock::Word(word) };
        // Until it ends: a task that settles a doubt resets the connection of all others.
        let mut unless_done =
            UnresolvedOnDrop { doubts: &self.state.doubts, doubt: Some(doubt.clone()) };
        let is_taken = self.swap_entry_lock(at, held, word).await?;
        if is_taken {
            // If messages are lost, the doubt remains, and is settled before a later attempt.
            self.mend_entries(&doubt).await.map_err(|_| MissCause::Restart)?;
        }
        unless_done.doubt = None;
        if is_taken { Ok(()) } else { Err(MissCause::Restart) }
    }

    /// Mends the leaf and releases its lock, if the leaf still has the word of the doubt. Nothing
    /// that this client has posted to the leaf may be in flight.
    async fn mend_entries(self, doubt: &UnresolvedEntry) -> Result<(), MissCause> {
        let at = doubt.at;
        let found = self.read_raw(at).await?;
        let page = found.page();
        let held = match doubt.lock {
            UnresolvedEntryLock::Word(word) if page.entry_lock() != word => return Ok(()),
            UnresolvedEntryLock::Word(word) => Some(word),
            UnresolvedEntryLock::Turn(..) => None,
        };
        // An unfinished commit of this client comes first.
        if page.lock_word().is_locked() || !page.has_whole_header() {
            return Err(MissCause::Restart);
        }
        let image = PageImage::of(page);
        let mut writes = SmallVec::<[EntryWords; 2]>::new();
        for (place, due) in L::mended_entries(page, self.fabric().breaks(rules::ENTRIES_MENDED)) {
            image.words()[place].store(due, Ordering::Relaxed);
            writes.push(place..place + 1);
        }
        all_done::<_, RemoteError>(self.post_entries(at, &image, &writes, None).await?).await?;
        if let Some(word) = held {
            // By a CAS: a late WRITE would release the lock of another client.
            let free = self.state.locks.free_after(word).to_bits();
            let swap = self.fabric().compare_swap(entry_lock_of(at), word.to_bits(), free);
            swap.await?;
        }
        Ok(())
    }
}

/// WRITEs of one change.
pub(crate) type EntryWrites<F> = SmallVec<[<F as Fabric>::Op<Buffer>; 4]>;

/// Where the entry lock of a leaf is.
pub(crate) fn entry_lock_of(leaf: GlobalAddr) -> GlobalAddr {
    leaf.plus(ENTRY_LOCK_WORD as u64 * 8)
}
