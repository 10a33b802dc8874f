//! Moving keys from one compute server to another while operations run (Lu et al., §4).
//!
//! Data does not move. The releasing server writes back its changes and drops its copies. Then the
//! server that takes over drops its old copies and rereads the root. In between, no server serves
//! the keys.
//!
//! *Why nothing is lost or done twice.* An operation at the releasing server either finds its leaf
//! in a frame or fetches it. A frame is dropped only when it is clean, and under its latch. So a
//! change in the frame is written back first, and a later operation finds the frame gone. An
//! operation that fetches a leaf has marked it while this server owned its keys (C20). The
//! releasing server first gives up the keys, then waits for the existing marks; no new ones can
//! follow. Only after that does the other server begin.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - H1. A boundary is always a fence between leaves. The releasing server checks this again after
//!   it has given up the keys, because from then on leaves do not merge across the boundary.
//! - H2. A node that was exclusive and will be shared is clean before the other server begins. A
//!   copy of a node that was shared and will be exclusive is dropped before the node counts as
//!   exclusive.
//! - H3. Only a server that owns part of a node restructures it; ownership is checked under the
//!   latch of the node's frame (`latched.rs`). The releasing server waits for latched frames, and a
//!   thread that latches later sees that the keys are gone.
//!
//! *Thread safety*: belongs to its endpoint's thread. The caller must run one move at a time.

use super::{DexIndex, FRAMES_PER_BATCH};
use crate::cache::{ClearedInParts, FrameId, FrameState, Restart, is_clean};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::together::all;
use farleaf_index::{OwnedRange, Ownership};
use farleaf_index::{PartState, ReleasedKeys};
use farleaf_page::rules;
use farleaf_page::{DescentProbe, Layout, LockWord, OwnedKey, Page};
use farleaf_pool::remote::{MissCause, RemoteError, TimedPointer};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Keys that this server has given up and no other server owns yet. Dropping this restores the
/// previous range, after an error and when the move's future is dropped, unless
/// [`ReleasedKeys::for_good`] was called.
#[must_use]
pub struct UnownedKeys<'a, F: Fabric, L: Layout> {
    index: &'a DexIndex<F, L>,
    before: Option<OwnedRange<OwnedKey<L>>>,
}

impl<F: Fabric, L: Layout> ReleasedKeys for UnownedKeys<'_, F, L> {
    fn for_good(mut self) {
        self.before = None;
    }
}

impl<F: Fabric, L: Layout> Drop for UnownedKeys<'_, F, L> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            // Nobody else has changed these leaves: what is known of them is kept.
            self.index.server.cache().owned().set(before);
        }
    }
}

/// The result of processing one frame in a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SweepOutcome {
    /// Nothing to do for this frame.
    Nothing,
    /// The node was replaced or dropped.
    Done,
    /// The frame is in use: retry it.
    Later,
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// The low fence of the leaf of `key`.
    ///
    /// # Errors
    /// [`RemoteError`] if the leaf cannot be read.
    pub async fn leaf_fence(&self, key: &L::Key) -> Result<OwnedKey<L>, RemoteError> {
        self.read_leaf(DescentProbe::At(key), |page| L::low(page)).await
    }

    /// Releases `keys` and keeps `rest`. On success, this server holds nothing of `keys` until the
    /// returned guard is dropped. Returns `None`, with nothing changed, if the boundary between the
    /// two is not a fence between leaves.
    ///
    /// # Errors
    /// [`RemoteError`] if a node cannot be written back. Then this server still owns the keys, but
    /// some copies may be gone.
    pub(super) async fn release_range(
        &self,
        keys: &OwnedRange<OwnedKey<L>>,
        rest: &OwnedRange<OwnedKey<L>>,
    ) -> Result<Option<UnownedKeys<'_, F, L>>, RemoteError> {
        let before = self.server.range();
        self.server.set_range(rest.clone());
        let given_up = UnownedKeys { index: self, before: Some(before) };
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

    /// Whether the boundary between `rest` and `keys` is a fence of the adjacent leaf in `rest`.
    async fn keeps_boundary(
        &self,
        keys: &OwnedRange<OwnedKey<L>>,
        rest: &OwnedRange<OwnedKey<L>>,
    ) -> Result<bool, RemoteError> {
        let (found, boundary) = if rest.high.as_ref() == Some(&keys.low) {
            (
                self.read_leaf(DescentProbe::Before(L::key(&keys.low)), |page| L::high(page)).await,
                &keys.low,
            )
        } else {
            (
                self.read_leaf(DescentProbe::At(L::key(&rest.low)), |page| Some(L::low(page)))
                    .await,
                &rest.low,
            )
        };
        match found {
            Ok(fence) => Ok(fence.as_ref() == Some(boundary)),
            Err(RemoteError::Moved | RemoteError::Contended { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Applies `work` to each frame, repeating frames that return [`SweepOutcome::Later`]. Repeats
    /// the whole sweep until a round finds nothing to do.
    async fn sweep<W: Future<Output = Result<SweepOutcome, RemoteError>>>(
        &self,
        work: impl Fn(FrameId) -> W,
    ) -> Result<(), RemoteError> {
        loop {
            let mut frames = self.client.cache().held_frames();
            let mut done = false;
            let mut backoff = self.client.pages().backoff();
            while !frames.is_empty() {
                let mut later = Vec::new();
                for together in frames.chunks(FRAMES_PER_BATCH) {
                    let swept = all(together.iter().map(|frame| work(*frame))).await;
                    for (frame, swept) in together.iter().zip(swept) {
                        match swept? {
                            SweepOutcome::Nothing => {}
                            SweepOutcome::Done => done = true,
                            SweepOutcome::Later => later.push(*frame),
                        }
                    }
                }
                frames = later;
                if !frames.is_empty() {
                    self.settle_some().await;
                    // No server serves these keys meanwhile, so fail the move instead of waiting
                    // for a memory server that does not answer.
                    self.client.before_retry(&mut backoff).await?;
                }
            }
            if !done {
                return Ok(());
            }
        }
    }

    /// Writes back a node that overlaps `keys`, and drops it if all of its keys lie there.
    async fn clear(
        &self,
        frame: FrameId,
        keys: &OwnedRange<OwnedKey<L>>,
    ) -> Result<SweepOutcome, RemoteError> {
        let cache = self.client.cache();
        if cache.arena().state(frame) == FrameState::Free {
            return Ok(SweepOutcome::Nothing);
        }
        let Some((node, lies)) = cache.lies_in(frame, keys) else { return Ok(SweepOutcome::Later) };
        if lies == Ownership::None {
            return Ok(SweepOutcome::Nothing);
        }
        let address = node.page.address();
        let clean = is_clean(node.page) && !cache.arena().is_writing(frame);
        if !node.is_valid() {
            return Ok(SweepOutcome::Later);
        }
        if !clean && !self.fabric().breaks(rules::GIVEN_UP_CLEAN) {
            return match self.client.write_back(frame).await {
                Err(Restart::Failed(error)) => Err(error),
                _ => Ok(SweepOutcome::Later),
            };
        }
        if lies == Ownership::Part {
            return Ok(SweepOutcome::Nothing);
        }
        let Some(free) = cache.forget_lost(frame, address) else { return Ok(SweepOutcome::Later) };
        self.client.keep(free);
        Ok(SweepOutcome::Done)
    }

    /// Does most of the work of [`DexIndex::take_over`] in advance. Does not change the range.
    ///
    /// # Errors
    /// [`RemoteError`] if a node cannot be read.
    pub(super) async fn prepare_take_over(
        &self,
        grown: &OwnedRange<OwnedKey<L>>,
    ) -> Result<(), RemoteError> {
        // READs posted before the other server released the keys may return old content.
        if !self.fabric().breaks(rules::OLD_READS_AWAITED) {
            self.wait_for_marks().await?;
        }
        if let Some(outlines) = self.client.cache().outlines()
            && !self.fabric().breaks(rules::OUTLINES_FORGOTTEN)
        {
            // C30. No frame has a leaf that this server does not own, so none is noted afterwards.
            self.clear_in_parts(outlines).await;
        }
        if let Some(records) = self.client.cache().records()
            && !self.fabric().breaks(rules::RECORDS_FORGOTTEN)
        {
            // C32. A lookup of a key that this server does not own puts no record in.
            self.clear_in_parts(records).await;
        }
        let (held, dropped) = (self.server.range(), RefCell::default());
        if !self.fabric().breaks(rules::OLD_COPIES_DROPPED) {
            self.sweep(|frame| self.renew(frame, (&held, grown), &dropped)).await?;
        }
        Ok(())
    }

    /// Clears a table with a pause after each part.
    async fn clear_in_parts(&self, table: &impl ClearedInParts) {
        for part in table.parts() {
            table.clear_part(part);
            self.fabric().sleep(0).await;
        }
    }

    /// Makes `grown` the owned range; it includes keys that another server has released.
    ///
    /// # Errors
    /// [`RemoteError`] if a node cannot be read; then the range has not changed.
    pub(super) async fn take_over(
        &self,
        grown: &OwnedRange<OwnedKey<L>>,
    ) -> Result<(), RemoteError> {
        self.prepare_take_over(grown).await?;
        self.server.cache().owned().set(grown.clone()); // H2
        Ok(())
    }

    /// Drops a copy of a node that other servers may have changed, once per address: a copy fetched
    /// later is current. The root is reread instead.
    ///
    /// The fences in an old copy are old as well. The page may have been freed and reused for
    /// another node in the keys that are taken over, even one with the same fences. So rereading
    /// the node in place is not enough: only the path from the root decides which nodes count, and
    /// only nodes within the `held` range are known to be current here.
    async fn renew(
        &self,
        frame: FrameId,
        (held, grown): (&OwnedRange<OwnedKey<L>>, &OwnedRange<OwnedKey<L>>),
        dropped: &RefCell<BTreeSet<GlobalAddr>>,
    ) -> Result<SweepOutcome, RemoteError> {
        let cache = self.client.cache();
        if cache.arena().state(frame) == FrameState::Free {
            return Ok(SweepOutcome::Nothing);
        }
        let Some((node, lies)) = cache.lies_in(frame, held) else { return Ok(SweepOutcome::Later) };
        let address = node.page.address();
        let then = grown.of(&L::low(node.page), L::high(node.page).as_ref());
        let is_locked = LockWord::from_bits(cache.arena().remote_word(frame)).is_locked();
        let pinned = cache.arena().state(frame) == FrameState::Pinned;
        if !node.is_valid() {
            return Ok(SweepOutcome::Later);
        }
        let fresh = dropped.borrow().contains(&address);
        // The lock holder is about to change the node, or has died. Once the node is exclusive, no
        // server checks its lock.
        let waits = then == Ownership::All && (pinned || is_locked);
        if lies == Ownership::All || (fresh && !waits) {
            return Ok(SweepOutcome::Nothing);
        }
        if pinned || waits {
            match self.client.pages().read(TimedPointer::fixed(address)).await {
                Ok(copy) if copy.word().is_locked() && then == Ownership::All => {
                    return Ok(SweepOutcome::Later);
                }
                Ok(copy) if pinned => {
                    return match self.install(frame, address, copy.page(), copy.word()) {
                        Ok(_) if dropped.borrow_mut().insert(address) => Ok(SweepOutcome::Done),
                        Ok(_) => Ok(SweepOutcome::Nothing),
                        Err(Restart::Failed(error)) => Err(error),
                        Err(_) => Ok(SweepOutcome::Later),
                    };
                }
                Err(MissCause::Failed(error)) => return Err(error),
                Ok(_) | Err(MissCause::Restart) => {}
            }
        }
        let Some(free) = cache.forget_lost(frame, address) else { return Ok(SweepOutcome::Later) };
        self.client.keep(free);
        dropped.borrow_mut().insert(address);
        Ok(SweepOutcome::Done)
    }

    /// Waits for all marks that exist now.
    async fn wait_for_marks(&self) -> Result<(), RemoteError> {
        let mapping = self.client.cache().mapping();
        // A move that failed or was dropped may have left marks in the previous generation, whose
        // number is about to be reused.
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

    /// A fence between leaves near `key`, inside the owned range: a key to which a partition
    /// boundary can move.
    pub(super) async fn boundary_near(
        &self,
        key: &L::Key,
    ) -> Result<Option<OwnedKey<L>>, RemoteError> {
        let range = self.server.range();
        if !range.has(key) {
            return Ok(None);
        }
        let (low, high) = self.fences(key).await?;
        let inside = |key: &OwnedKey<L>| *key > range.low && range.has(L::key(key));
        Ok([Some(low), high].into_iter().flatten().find(inside))
    }

    /// The low fence of the leaf of `key`, and its high fence if it has one.
    ///
    /// # Errors
    /// [`RemoteError`] if the leaf cannot be read.
    pub(super) async fn fences(
        &self,
        key: &L::Key,
    ) -> Result<(OwnedKey<L>, Option<OwnedKey<L>>), RemoteError> {
        let look = |page: Page<'_, L>| (L::low(page), L::high(page));
        self.read_leaf(DescentProbe::At(key), look).await
    }
}
