//! Keys that move from one compute server to another while operations run (Lu et al., §4).
//!
//! Data does not move: who lets go writes back what it has changed and drops its copies, then who takes over reads what
//! it has old copies of. In between nobody serves the keys.
//!
//! *Why nothing is lost or done twice.* An operation at who lets go either finds its leaf in a frame, or brings it. A frame
//! leaves only clean and under its latch, so a change in it is written back before, and who comes later finds the
//! frame gone. What brings a leaf has marked it while its keys were owned (C20): who lets go first gives the keys up, then
//! waits for the marks that are there, and no others come. The other begins only after that.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - H1. A boundary is the fence of leaves: who lets go looks once more when the keys are given up, from when on leaves
//!   do not merge across it.
//! - H2. A node that was exclusive and will be shared is clean before the other begins; a copy of one that was shared and will
//!   be exclusive is dropped before it counts as exclusive.
//! - H3. A node is restructured only by who owns a part of it, which is looked at under its frame's latch (`latched.rs`): who
//!   lets go waits for frames that are latched, and who latches later sees that the keys are gone.
//!
//! *Thread safety*: belongs to its endpoint's thread. One move at a time is the caller's affair.

use super::{DexIndex, FRAMES_TOGETHER};
use crate::cache::{FrameId, FrameState, OwnedRange, Ownership, Restart, is_clean};
use crate::page::{Layout, LockWord, Page, Probe};
use crate::remote::{Miss, Pointer, RemoteError};
use crate::rules;
use crate::together::all;
use farleaf_fabric::{Fabric, GlobalAddr};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Keys that were given up, and that nobody owns yet. Unless another does in the end, they are owned as before: after an error, and
/// when the future of the move is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct GivenUp<'a, F: Fabric, L: Layout> {
    index: &'a DexIndex<F, L>,
    before: Option<OwnedRange<L::Key>>,
}

impl<F: Fabric, L: Layout> GivenUp<'_, F, L> {
    /// Another owns them now.
    pub(crate) fn for_good(mut self) {
        self.before = None;
    }
}

impl<F: Fabric, L: Layout> Drop for GivenUp<'_, F, L> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            self.index.server.set_range(before);
        }
    }
}

/// What came of looking at one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swept {
    /// There is nothing to do.
    Nothing,
    /// It is done.
    Done,
    /// Somebody is at it.
    Later,
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// The low fence of the leaf of `key`.
    ///
    /// # Errors
    /// [`RemoteError`] if the leaf cannot be read.
    pub async fn leaf_fence(&self, key: &L::Key) -> Result<L::Key, RemoteError> {
        self.read_leaf(Probe::At(key), |page| L::low(page)).await
    }

    /// Lets go of `keys`, keeping `rest`: nothing of them is here any more afterwards, until what is returned says otherwise.
    /// `None` if the leaves do not keep the boundary between the two; then nothing has changed.
    ///
    /// # Errors
    /// [`RemoteError`] if something cannot be written back; then nothing has changed, but copies may be gone.
    pub(crate) async fn release_range(
        &self,
        keys: &OwnedRange<L::Key>,
        rest: &OwnedRange<L::Key>,
    ) -> Result<Option<GivenUp<'_, F, L>>, RemoteError> {
        let before = self.server.range();
        self.server.set_range(rest.clone());
        let given_up = GivenUp { index: self, before: Some(before) };
        let looks = !rest.is_empty() && !self.fabric().breaks(rules::BOUNDARY_LOOKED_AT);
        if looks && !self.keeps_boundary(keys, rest).await? {
            return Ok(None); // H1
        }
        if !self.fabric().breaks(rules::MARKS_AWAITED) {
            self.wait_for_marks().await?;
        }
        self.sweep(|frame| self.clear(frame, keys)).await?;
        Ok(Some(given_up))
    }

    /// Whether a leaf of what is kept ends where the keys begin, or the other way round.
    async fn keeps_boundary(
        &self,
        keys: &OwnedRange<L::Key>,
        rest: &OwnedRange<L::Key>,
    ) -> Result<bool, RemoteError> {
        let (found, boundary) = if rest.high.as_ref() == Some(&keys.low) {
            (self.read_leaf(Probe::Before(&keys.low), |page| L::high(page)).await, &keys.low)
        } else {
            (self.read_leaf(Probe::At(&rest.low), |page| Some(L::low(page))).await, &rest.low)
        };
        match found {
            Ok(fence) => Ok(fence.as_ref() == Some(boundary)),
            Err(RemoteError::Moved | RemoteError::Contended { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Does `work` for each frame, again as long as that is left for later, and then for all once more, until a round finds
    /// nothing to do.
    async fn sweep<W: Future<Output = Result<Swept, RemoteError>>>(
        &self,
        work: impl Fn(FrameId) -> W,
    ) -> Result<(), RemoteError> {
        loop {
            let mut frames = self.client.cache().held_frames();
            let mut done = false;
            let mut backoff = self.client.pages().backoff();
            while !frames.is_empty() {
                let mut later = Vec::new();
                for together in frames.chunks(FRAMES_TOGETHER) {
                    let swept = all(together.iter().map(|frame| work(*frame))).await;
                    for (frame, swept) in together.iter().zip(swept) {
                        match swept? {
                            Swept::Nothing => {}
                            Swept::Done => done = true,
                            Swept::Later => later.push(*frame),
                        }
                    }
                }
                frames = later;
                if !frames.is_empty() {
                    self.settle_some().await;
                    // Nobody serves these keys: rather no move than one that waits for a memory server.
                    self.client.before_retry(&mut backoff).await?;
                }
            }
            if !done {
                return Ok(());
            }
        }
    }

    /// Writes a node back that reaches into `keys`, and drops it if all of it lies there.
    async fn clear(&self, frame: FrameId, keys: &OwnedRange<L::Key>) -> Result<Swept, RemoteError> {
        let cache = self.client.cache();
        if cache.arena().state(frame) == FrameState::Free {
            return Ok(Swept::Nothing);
        }
        let Some((node, lies)) = cache.lies_in(frame, keys) else { return Ok(Swept::Later) };
        if lies == Ownership::None {
            return Ok(Swept::Nothing);
        }
        let address = node.page.address();
        let clean = is_clean(node.page) && !cache.arena().is_writing(frame);
        if !node.is_valid() {
            return Ok(Swept::Later);
        }
        if !clean && !self.fabric().breaks(rules::GIVEN_UP_CLEAN) {
            return match self.client.write_back(frame).await {
                Err(Restart::Failed(error)) => Err(error),
                _ => Ok(Swept::Later),
            };
        }
        if lies == Ownership::Part {
            return Ok(Swept::Nothing);
        }
        let Some(spare) = cache.forget_lost(frame, address) else { return Ok(Swept::Later) };
        self.client.keep(spare);
        Ok(Swept::Done)
    }

    /// Owns `grown` from now on, which includes keys that another has let go of.
    ///
    /// # Errors
    /// [`RemoteError`] if a node cannot be read; then nothing has changed.
    pub(crate) async fn take_over(&self, grown: &OwnedRange<L::Key>) -> Result<(), RemoteError> {
        // READs that were posted before the other let go may bring what is old.
        if !self.fabric().breaks(rules::OLD_READS_AWAITED) {
            self.wait_for_marks().await?;
        }
        let (held, dropped) = (self.server.range(), RefCell::default());
        if !self.fabric().breaks(rules::OLD_COPIES_DROPPED) {
            self.sweep(|frame| self.renew(frame, (&held, grown), &dropped)).await?;
        }
        self.server.set_range(grown.clone()); // H2
        Ok(())
    }

    /// Drops a copy of a node that others may have changed, once: what is brought afterwards is as it is now. The root is
    /// read again instead. What an old copy says of its keys is old too: its node may have been freed, and be another one of the keys
    /// that are taken over, even one with the same fences. So reading it again would not do: only what the way down leads to
    /// counts, and only what lies in the range that was `held` is known to be as it is here.
    async fn renew(
        &self,
        frame: FrameId,
        (held, grown): (&OwnedRange<L::Key>, &OwnedRange<L::Key>),
        dropped: &RefCell<BTreeSet<GlobalAddr>>,
    ) -> Result<Swept, RemoteError> {
        let cache = self.client.cache();
        if cache.arena().state(frame) == FrameState::Free {
            return Ok(Swept::Nothing);
        }
        let Some((node, lies)) = cache.lies_in(frame, held) else { return Ok(Swept::Later) };
        let address = node.page.address();
        let then = grown.of(&L::low(node.page), L::high(node.page).as_ref());
        let is_locked = LockWord::from_bits(cache.arena().remote_word(frame)).is_locked();
        let pinned = cache.arena().state(frame) == FrameState::Pinned;
        if !node.is_valid() {
            return Ok(Swept::Later);
        }
        let fresh = dropped.borrow().contains(&address);
        // Whoever holds it is about to change it, or has died: nobody looks for its lock once it is exclusive.
        let waits = then == Ownership::All && (pinned || is_locked);
        if lies == Ownership::All || (fresh && !waits) {
            return Ok(Swept::Nothing);
        }
        if pinned || waits {
            match self.client.pages().read(Pointer::fixed(address)).await {
                Ok(copy) if copy.word().is_locked() && then == Ownership::All => {
                    return Ok(Swept::Later);
                }
                Ok(copy) if pinned => {
                    return match self.install(frame, address, copy.page(), copy.word()) {
                        Ok(_) if dropped.borrow_mut().insert(address) => Ok(Swept::Done),
                        Ok(_) => Ok(Swept::Nothing),
                        Err(Restart::Failed(error)) => Err(error),
                        Err(_) => Ok(Swept::Later),
                    };
                }
                Err(Miss::Failed(error)) => return Err(error),
                Ok(_) | Err(Miss::Restart) => {}
            }
        }
        let Some(spare) = cache.forget_lost(frame, address) else { return Ok(Swept::Later) };
        self.client.keep(spare);
        dropped.borrow_mut().insert(address);
        Ok(Swept::Done)
    }

    /// Waits until all that is marked now has ended.
    async fn wait_for_marks(&self) -> Result<(), RemoteError> {
        let mapping = self.client.cache().mapping();
        // A move that was given up, or dropped, has not waited to the end: its generation's number is needed now.
        self.wait_for_generation(mapping.last_generation()).await?;
        self.wait_for_generation(mapping.next_generation()).await
    }

    async fn wait_for_generation(&self, generation: u32) -> Result<(), RemoteError> {
        let mapping = self.client.cache().mapping();
        for id in mapping.marked_in(generation) {
            let mut backoff = self.client.pages().backoff();
            while mapping.is_marked(id, generation) {
                self.settle_some().await; // it may be this handle's
                self.client.before_retry(&mut backoff).await?;
            }
        }
        Ok(())
    }

    /// A key near `key` that leaves begin at, and that is inside the owned range: where a boundary can move to.
    pub(crate) async fn boundary_near(&self, key: &L::Key) -> Result<Option<L::Key>, RemoteError> {
        let range = self.server.range();
        if !range.has(key) {
            return Ok(None);
        }
        let (low, high) = self.fences(key).await?;
        let inside = |key: &L::Key| *key > range.low && range.has(key);
        Ok([Some(low), high].into_iter().flatten().find(inside))
    }

    /// Where the leaf of `key` begins, and where it ends if there are leaves behind it.
    ///
    /// # Errors
    /// [`RemoteError`] if the leaf cannot be read.
    pub(crate) async fn fences(
        &self,
        key: &L::Key,
    ) -> Result<(L::Key, Option<L::Key>), RemoteError> {
        let look = |page: Page<'_, L>| (L::low(page), L::high(page));
        self.read_leaf(Probe::At(key), look).await
    }
}
