//! A radix tree's nodes and leaves over one-sided verbs (`page/radix/mod.rs` has the bytes).
//!
//! A leaf is changed in place: a CAS on its word 0, which expects the version of a copy, then a
//! WRITE of the value and the check, and a WRITE of the next version, which unlocks it. A slot is
//! changed by a CAS alone. So there is no log: a WRITE that stopped half-way leaves a leaf that any
//! client can mend.
//!
//! *Invariants*
//! - radix.L1. Only the client that a leaf's word 0 names as its holder changes value and check.
//!   The CAS that locks expects the version of the copy, so the copy is current (K1).
//! - radix.L2. The unlock lands after value and check (F3). Until then no copy of the next version
//!   is whole, and so no client has seen it.
//! - radix.L3. Where a leaf becomes live, the value lands before the check. So a torn leaf has the
//!   value that its check's live bit calls for: the old or the new one of a live leaf, or any of a
//!   dead one.
//! - radix.L4. A leaf that a dead client holds, or this client in doubt, is mended by a client that
//!   holds it: if the copy is not whole, by the check that fits the value that is there, in the
//!   next version. The change had no outcome that any client has seen, so either one is right.
//!   The leaf of a byte string has the old value or the new one (radix.B3), and is only unlocked.
//! - radix.L5. Nodes and leaves are whole before a slot leads to them: their WRITEs have completed
//!   before the CAS of the slot is posted.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::radix_space::{NodeMemory, RadixSpace};
use crate::entry_lock::{EntryClient, EntryHold, EntryLocks, EntryState, EntryWrites};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, ServerId, Work};
use farleaf_page::rules;
use farleaf_page::{
    LEAF_CHECK_WORD, LEAF_REVERSE_WORD, LEAF_VALUE_WORD, LEAF_WORDS, Layout, LeafCopy, LeafMemory,
    LockWord, NodeCopy, NodeSize, RadixForm, RadixSlot, STRING_CHECK_WORD,
};
use farleaf_pool::remote::{
    Backoff, HookFuture, LeafProtocol, LockedPage, MissCause, PageClient, PageCopy, READ_RETRIES,
    REREADS, RemoteError, all_done,
};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeSet;
use std::ops::Deref;
use std::rc::Rc;

/// What became of the CAS of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotSwap {
    /// The slot was as expected, and has been changed.
    Done,
    /// It was not, and has not been changed.
    Not,
    /// It is different now. It may have been changed all the same, and changed again by others.
    Unknown,
}

/// One client's access to a radix tree. The page client beneath has its identity, its locks and its
/// doubts.
#[derive(Debug)]
pub(super) struct RadixClient<F: Fabric, L: Layout> {
    pages: PageClient<F, L>,
    space: RadixSpace<F, L>,
    /// Shared with the hook of `pages`.
    turns: Rc<RadixTurns>,
}

/// The turns at leaves that one client takes, if its compute server alone changes them.
#[derive(Debug)]
struct RadixTurns(EntryState);

impl<F: Fabric, L: Layout> LeafProtocol<F, L> for RadixTurns {
    fn settle<'a>(&'a self, pages: &'a PageClient<F, L>) -> HookFuture<'a, ()> {
        let leaves = LeafClient { pages };
        Box::pin(
            self.0.settle_all(pages, async move |doubt| leaves.mend_leaf_in_turn(doubt.at()).await),
        )
    }

    /// What this client locks are leaves, not pages.
    fn recover<'a>(
        &'a self,
        pages: &'a PageClient<F, L>,
        gone: u16,
        at: GlobalAddr,
    ) -> HookFuture<'a, Result<Option<PageCopy<L>>, MissCause>> {
        let leaves = LeafClient { pages };
        Box::pin(async move { leaves.recover_leaf(gone, at).await.map(|()| None) })
    }
}

impl<F: Fabric, L: Layout> Deref for RadixClient<F, L> {
    type Target = PageClient<F, L>;

    fn deref(&self) -> &PageClient<F, L> {
        &self.pages
    }
}

impl<F: Fabric, L: Layout> RadixClient<F, L> {
    /// Creates a client that allocates memory in chunks of `chunk_bytes`.
    pub(super) fn new(fabric: F, chunk_bytes: u64) -> Self {
        let space = RadixSpace::new(fabric.clone(), chunk_bytes);
        let turns = Rc::new(RadixTurns(EntryState::new(Arc::new(EntryLocks::default()))));
        let pages = PageClient::new(fabric, chunk_bytes);
        let pages = pages.with_leaf_protocol(turns.clone(), turns.0.unresolved());
        Self { pages, space, turns }
    }

    /// The client for the tree's leaves.
    pub(super) fn leaves(&self) -> LeafClient<'_, F, L> {
        LeafClient { pages: &self.pages }
    }

    /// The client for turns at leaves.
    pub(super) fn turns(&self) -> EntryClient<'_, F, L> {
        EntryClient::new(&self.pages, &self.turns.0)
    }

    /// Memory for a leaf of a size.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if no memory server has room.
    pub(super) async fn take_leaf(&self, size: u8) -> Result<LeafMemory, RemoteError> {
        self.space.leaf(size).await
    }

    /// Memory for one of the smallest leaves on `server`.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if it has no room.
    pub(super) async fn take_leaf_on(&self, server: ServerId) -> Result<GlobalAddr, RemoteError> {
        self.space.leaf_on(server).await
    }

    /// Memory for a node.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if no memory server has room.
    pub(super) async fn take_node_room(&self) -> Result<NodeMemory, RemoteError> {
        self.space.node().await
    }

    /// Takes back the memory of a leaf that no slot leads to (radix.M2).
    pub(super) fn give_back_leaf(&self, leaf: LeafMemory) {
        self.space.give_back_leaf(leaf);
    }

    /// Takes back the memory of a node that no slot leads to (radix.M2).
    pub(super) fn give_back_node(&self, room: NodeMemory) {
        self.space.give_back_node(room);
    }

    /// READs a node up to the last slot of `size`.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if there is no node.
    pub(super) async fn read_radix_node(
        &self,
        at: GlobalAddr,
        size: NodeSize,
    ) -> Result<NodeCopy, MissCause> {
        let form = RadixForm::of::<L>();
        let buffer = self.read_words(at, NodeCopy::words_of(form, size) * 8).await?;
        self.fabric().charge(Work::VisitNode).await;
        node_of(form, at, &buffer).ok_or(MissCause::Restart)
    }

    /// READs a slot.
    ///
    /// # Errors
    /// [`RemoteError`] if the memory server does not answer.
    pub(super) async fn read_slot(&self, at: GlobalAddr) -> Result<RadixSlot, RemoteError> {
        Ok(RadixSlot::from_bits(self.read_words(at, 8).await?.get(0)))
    }

    /// Changes a slot by a CAS.
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`] if the memory server is unreachable; then the slot may still
    /// change.
    pub(super) async fn swap_slot(
        &self,
        at: GlobalAddr,
        from: RadixSlot,
        to: RadixSlot,
    ) -> Result<SlotSwap, RemoteError> {
        self.swap_word(at, from.to_bits(), to.to_bits()).await
    }

    /// Changes a word by a CAS. No client ever puts `from` there again.
    ///
    /// # Errors
    /// As [`RadixClient::swap_slot`].
    pub(super) async fn swap_word(
        &self,
        at: GlobalAddr,
        from: u64,
        to: u64,
    ) -> Result<SlotSwap, RemoteError> {
        let in_flight = self.may_land(at.server());
        match self.fabric().compare_swap(at, from, to).await {
            Err(error @ FabricError::Indeterminate { .. }) => {
                self.fabric().counters().count_retry();
                // If this fails, the doubt stays, and the operation's outcome is unknown (K4).
                let reset = self.fabric().reset(at.server()).await;
                reset.map_err(|_| RemoteError::from(error.clone()))?;
                in_flight.landed();
                let found = self.read_words(at, 8).await.map_err(|_| RemoteError::from(error))?;
                match found.get(0) {
                    found if found == to => Ok(SlotSwap::Done),
                    found if found == from => Ok(SlotSwap::Not),
                    _ => Ok(SlotSwap::Unknown),
                }
            }
            outcome => {
                in_flight.landed();
                match outcome {
                    Ok(found) if found == from => Ok(SlotSwap::Done),
                    Ok(_) | Err(FabricError::QueueFull { .. }) => Ok(SlotSwap::Not),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// Posts a CAS of a word that is a hint, and does not wait for it.
    pub(super) fn post_hint(&self, at: GlobalAddr, from: u64, to: u64) {
        drop(self.fabric().compare_swap(at, from, to));
    }

    /// Posts a WRITE of a node or a leaf that no slot leads to yet.
    ///
    /// # Errors
    /// [`RemoteError`] if no buffer becomes free.
    pub(super) async fn post_words(
        &self,
        at: GlobalAddr,
        words: &[u64],
    ) -> Result<F::Op<Buffer>, RemoteError> {
        self.post_write(at, words.iter().copied()).await
    }

    /// As [`RadixClient::post_words`], from a buffer of their size.
    pub(super) fn post_words_from(
        &self,
        buffer: Buffer,
        at: GlobalAddr,
        words: &[u64],
    ) -> F::Op<Buffer> {
        self.write_from(buffer, at, words.iter().copied())
    }

    /// WRITEs nodes and leaves that no slot leads to yet, and retries until the WRITEs are known to
    /// have landed (radix.L5).
    ///
    /// # Errors
    /// [`RemoteError`] if that stays unknown; only the memory is lost.
    pub(super) async fn write_unlinked(
        &self,
        parts: &[(GlobalAddr, SmallVec<[u64; 8]>)],
    ) -> Result<(), RemoteError> {
        let mut outcome = Ok(());
        for _ in 0..READ_RETRIES {
            let take = |words: &SmallVec<[u64; 8]>| self.fabric().buffer(words.len() * 8);
            let take_all = || parts.iter().map(|(_, words)| take(words)).collect();
            let buffers: SmallVec<[_; 2]> = self.buffers(take_all).await?;
            let posted = parts
                .iter()
                .zip(buffers)
                .map(|((at, words), buffer)| self.write_from(buffer, *at, words.iter().copied()));
            let posted: SmallVec<[_; 2]> = posted.collect();
            outcome = all_done(posted).await;
            if outcome.is_ok() {
                break;
            }
            self.fabric().counters().count_retry();
            self.reset_for(parts.iter().map(|(at, _)| at.server())).await?;
        }
        outcome
    }

    async fn reset_for(&self, servers: impl Iterator<Item = ServerId>) -> Result<(), RemoteError> {
        for server in servers.collect::<BTreeSet<_>>() {
            self.fabric().reset(server).await?;
        }
        Ok(())
    }
}

/// What a change makes of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeafChange<'a> {
    /// It has this value.
    Value(&'a [u8]),
    /// Its key is absent.
    Absent,
    /// A larger leaf has taken its place (radix.B4).
    Leaf(LeafMemory),
}

/// The copy of a leaf in a buffer.
fn leaf_of<L: Layout>(room: LeafMemory, buffer: &Buffer) -> LeafCopy {
    let words: SmallVec<[u64; 8]> = (0..buffer.bytes() / 8).map(|word| buffer.get(word)).collect();
    LeafCopy::new(RadixForm::of::<L>(), room, &words)
}

/// The copy of a node in a buffer.
pub(super) fn node_of(form: RadixForm, at: GlobalAddr, buffer: &Buffer) -> Option<NodeCopy> {
    NodeCopy::new(form, at, (0..buffer.bytes() / 8).map(|word| buffer.get(word)))
}

/// One client's access to leaves.
#[derive(Debug)]
pub(super) struct LeafClient<'a, F: Fabric, L: Layout> {
    pages: &'a PageClient<F, L>,
}

// Not derived: the derive would require more of `F` and `L`.
impl<F: Fabric, L: Layout> Clone for LeafClient<'_, F, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Fabric, L: Layout> Copy for LeafClient<'_, F, L> {}

impl<F: Fabric, L: Layout> Deref for LeafClient<'_, F, L> {
    type Target = PageClient<F, L>;

    fn deref(&self) -> &PageClient<F, L> {
        self.pages
    }
}

impl<'a, F: Fabric, L: Layout> LeafClient<'a, F, L> {
    /// Posts a READ of a leaf; [`LeafClient::leaf_in`] looks at the result.
    ///
    /// # Errors
    /// [`FabricError`] if no buffer is free.
    pub(super) fn post_leaf(self, leaf: LeafMemory) -> Result<F::Op<Buffer>, FabricError> {
        Ok(self.fabric().read(leaf.at, self.fabric().buffer(leaf.words() * 8)?))
    }

    /// The leaf that was read, if the copy is whole (radix.B2).
    pub(super) fn leaf_in(self, room: LeafMemory, buffer: &Buffer) -> Option<LeafCopy> {
        let leaf = leaf_of::<L>(room, buffer);
        let is_whole = leaf.is_whole() || self.fabric().breaks(rules::LEAVES_CHECKED);
        if !is_whole && leaf.word.is_locked() {
            self.note_suspect(room.at, leaf.word);
        }
        is_whole.then_some(leaf)
    }

    /// READs a leaf: one READ, unless a WRITE tears it.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if it stays torn.
    pub(super) async fn read_leaf(self, room: LeafMemory) -> Result<LeafCopy, MissCause> {
        let mut backoff = Backoff::default();
        for _ in 0..REREADS {
            let buffer = self.read_words(room.at, room.words() * 8).await?;
            if let Some(leaf) = self.leaf_in(room, &buffer) {
                return Ok(leaf);
            }
            self.fabric().counters().count_retry();
            backoff.count();
            backoff.wait(self.fabric()).await;
        }
        Err(MissCause::Restart)
    }

    /// Locks a leaf that still equals the copy (radix.L1).
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the leaf has changed or is locked.
    pub(super) async fn lock_leaf(self, leaf: &LeafCopy) -> Result<LockedPage<'a>, MissCause> {
        if leaf.word.is_locked() {
            self.note_suspect(leaf.at(), leaf.word);
            return Err(MissCause::Restart);
        }
        let owner = self.owner().await?;
        let hold = self.pages.hold(leaf.at()).ok_or(MissCause::Restart)?;
        let mut before = leaf.word;
        if self.fabric().breaks(rules::LEAVES_LOCKED_AS_COPIED) {
            before = LockWord::from_bits(self.read_words(leaf.at(), 8).await?.get(0));
            if before.is_locked() {
                return Err(MissCause::Restart);
            }
        }
        self.pages.swap_lock(hold, leaf.at(), before, before.locked_by(owner)).await
    }

    /// Changes and unlocks a leaf that this client holds: one doorbell. `leaf` is the copy that it
    /// locked.
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`] if the memory server is unreachable.
    pub(super) async fn write_leaf(
        self,
        locked: LockedPage<'_>,
        leaf: &LeafCopy,
        to: LeafChange<'_>,
    ) -> Result<(), RemoteError> {
        let held = leaf.clone().with_word(locked.word());
        let (after, becomes_live) = match to {
            LeafChange::Value(value) => (held.next(value, true), !leaf.is_live()),
            LeafChange::Absent => (held.next(&leaf.value, false), false),
            LeafChange::Leaf(larger) => (held.next(&[], false).moved_to(larger), false),
        };
        let Err(first) = self.post_and_await(&after, becomes_live).await else {
            locked.settled();
            return Ok(());
        };
        if self.fabric().breaks(rules::LEAVES_SETTLED) {
            locked.settled();
            return Err(first.after_a_change(leaf.at().server()));
        }
        let again = async || {
            self.fabric().reset(leaf.at().server()).await?;
            // After the reset, no earlier WRITE can land. If the word is another one, the unlock
            // has landed, and so has all before it.
            if self.read_words(leaf.at(), 8).await?.get(0) != locked.word().to_bits() {
                return Ok(());
            }
            self.post_and_await(&after, becomes_live).await
        };
        if self.until_settled(again).await.is_ok() {
            locked.settled();
            return Ok(());
        }
        // Dropping the lock leaves a doubt (K4).
        Err(first.after_a_change(leaf.at().server()))
    }

    /// Changes a leaf in a turn of the only compute server that does (entries.E6). The leaf keeps
    /// its version.
    ///
    /// # Errors
    /// As [`LeafClient::write_leaf`].
    pub(super) async fn write_leaf_in_turn(
        self,
        (turns, hold): (EntryClient<'_, F, L>, EntryHold<'_>),
        leaf: &LeafCopy,
        to: LeafChange<'_>,
    ) -> Result<(), RemoteError> {
        let copy = leaf.clone();
        let (after, becomes_live) = match to {
            LeafChange::Value(value) => (copy.with_record(value, true), !leaf.is_live()),
            LeafChange::Absent => (copy.with_record(&leaf.value, false), false),
            LeafChange::Leaf(larger) => (copy.moved_to(larger), false),
        };
        let post = async || self.post_leaf_change(&after, becomes_live, false).await;
        turns.change_in_turn(hold, post).await
    }

    /// Mends the leaf at `at`, of which this client has the turn, if a WRITE has left it torn
    /// (radix.L4).
    async fn mend_leaf_in_turn(self, at: GlobalAddr) -> Result<(), MissCause> {
        if RadixForm::of::<L>() == RadixForm::Strings {
            return Ok(()); // radix.B3
        }
        let buffer = self.read_words(at, LEAF_WORDS * 8).await?;
        let leaf = leaf_of::<L>(LeafMemory { at, size: 0 }, &buffer);
        drop(buffer);
        if !leaf.is_whole() {
            let (value, live) = (leaf.value.clone(), leaf.is_live());
            let due = leaf.with_record(&value, live);
            let posted = self.post_leaf_change(&due, false, false).await?;
            all_done::<_, RemoteError>(posted).await?;
        }
        Ok(())
    }

    async fn post_and_await(self, after: &LeafCopy, becomes_live: bool) -> Result<(), RemoteError> {
        all_done(self.post_leaf_change(after, becomes_live, true).await?).await
    }

    /// Posts the WRITEs that change a leaf to `after`, and that of its word 0 if it `unlocks`. If
    /// that fails, nothing is posted.
    async fn post_leaf_change(
        self,
        after: &LeafCopy,
        becomes_live: bool,
        unlocks: bool,
    ) -> Result<EntryWrites<F>, RemoteError> {
        let (at, words) = (after.at(), after.words());
        let part = |from: u64, to: u64| (from, words[from as usize..to as usize].to_vec());
        let mut parts: SmallVec<[(u64, Vec<u64>); 3]> = match RadixForm::of::<L>() {
            RadixForm::Numbers => {
                let (value, check) = (LEAF_VALUE_WORD, LEAF_CHECK_WORD);
                let end = LEAF_WORDS as u64;
                match (becomes_live, after.is_live()) {
                    (true, _) => smallvec![part(value, check), part(check, end)], // radix.L3
                    (false, true) => smallvec![part(value, end)],
                    (false, false) => smallvec![part(check, end)],
                }
            }
            RadixForm::Strings => {
                let (check, value) =
                    ((STRING_CHECK_WORD, vec![after.check()]), after.value_words());
                // The value lands before the check that names its area (radix.B3).
                let has_value = after.is_live() && !after.value.is_empty();
                has_value.then_some(value).into_iter().chain([check]).collect()
            }
        };
        if unlocks {
            parts.push(part(0, 1));
        }
        if self.fabric().breaks(rules::LEAF_UNLOCKED_LAST) {
            parts.reverse();
        }
        if self.fabric().breaks(rules::LEAF_UNLOCKED_APART) {
            parts = smallvec![(0, words.to_vec())];
        }
        let is_string = RadixForm::of::<L>() == RadixForm::Strings;
        let has_value = parts.len() > 1 + usize::from(unlocks);
        if becomes_live
            && has_value
            && !is_string
            && self.fabric().breaks(rules::VALUES_BEFORE_LIFE)
        {
            parts.swap(0, 1);
        }
        if is_string && has_value && self.fabric().breaks(rules::VALUE_BEFORE_CHECK) {
            parts.swap(0, 1);
        }
        // Get all buffers before the first post: no other verb may come between the WRITEs.
        let take_all = || {
            let take = |(_, words): &(u64, Vec<u64>)| self.fabric().buffer(words.len() * 8);
            parts.iter().map(take).collect()
        };
        let buffers: SmallVec<[_; 3]> = self.buffers(take_all).await?;
        let posted = parts.iter().zip(buffers).map(|((from, words), buffer)| {
            self.write_from(buffer, at.plus(from * 8), words.iter().copied())
        });
        Ok(posted.collect())
    }

    /// Mends and unlocks the leaf at `at` if the client with the number `gone` holds it, which
    /// posts nothing any more (radix.L4).
    ///
    /// # Errors
    /// [`MissCause::Restart`] if another client is at it.
    async fn recover_leaf(self, gone: u16, at: GlobalAddr) -> Result<(), MissCause> {
        let mut room = LeafMemory { at, size: 0 };
        if RadixForm::of::<L>() == RadixForm::Strings {
            room.size = LeafCopy::size_in(self.read_words(at, 3 * 8).await?.get(2)).max(1);
        }
        let buffer = self.read_words(at, room.words() * 8).await?;
        let leaf = leaf_of::<L>(room, &buffer);
        if !leaf.word.is_locked() || leaf.word.owner() != gone {
            return Ok(());
        }
        if RadixForm::of::<L>() == RadixForm::Strings {
            // Its check has the change or not (radix.B3).
            let next = leaf.word.next_by(gone);
            let free = match leaf.moved().is_some() || leaf.is_whole_in(next.version()) {
                true => next,
                false if leaf.is_whole() => leaf.word.unlocked_by(gone),
                false => return Err(MissCause::Restart),
            };
            let swap = self.fabric().compare_swap(at, leaf.word.to_bits(), free.to_bits()).await;
            return swap.map(drop).map_err(|_| MissCause::Restart);
        }
        if leaf.is_whole() {
            let free = leaf.word.unlocked_by(gone);
            let swap = self.fabric().compare_swap(at, leaf.word.to_bits(), free.to_bits()).await;
            // If the outcome is unknown, the next attempt will find it out.
            return swap.map(drop).map_err(|_| MissCause::Restart);
        }
        let owner = self.owner().await?;
        let locked = if owner == gone {
            self.already_locked(self.hold_again(at), at, leaf.word)
        } else {
            let hold = self.hold(at).ok_or(MissCause::Restart)?;
            self.swap_lock(hold, at, leaf.word, leaf.word.locked_by(owner)).await?
        };
        let to = match leaf.is_live() && !self.fabric().breaks(rules::LEAVES_MENDED) {
            true => LeafChange::Value(&leaf.value),
            false => LeafChange::Absent,
        };
        Ok(self.write_leaf(locked, &leaf, to).await?)
    }
}

/// Where the word of a leaf is that says where its slot is.
pub(super) fn reverse_of_leaf(leaf: GlobalAddr) -> GlobalAddr {
    leaf.plus(LEAF_REVERSE_WORD * 8)
}
