//! Descents, by swizzled pointers and optimistic latch coupling (Lu et al., Algorithm 1).
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - D5. A descent takes the child's version, then validates the parent, and only then trusts the
//!   child. A frame is never unmapped, so a stale pointer leads to a changed version, other fences,
//!   or another level.
//!
//! Rare paths are boxed: a future's size costs time wherever it is moved, and these paths would be
//! most of it.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use crate::cache::{OptimisticRef, Restart, Swip};
use farleaf_fabric::{Fabric, GlobalAddr, Work, prefetch};
use farleaf_index::{LiveCounters, OwnedRange};
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, FencePosition, Layout, LeafOutcome, MAX_LEVEL, OwnedKey, Page, slot_range,
};
use farleaf_pool::remote::RemoteError;

/// A node and the child word that led to it. The root has no parent.
#[derive(Debug)]
pub(super) struct DescentNode<'a, L: Layout> {
    /// The parent, and the slot that points to the node.
    pub(super) parent: Option<(OptimisticRef<'a, L>, usize)>,
    pub(super) node: OptimisticRef<'a, L>,
}

/// Where a descent to the leaves ended.
#[derive(Debug)]
pub(super) enum LeafLocation<'a, L: Layout> {
    /// At a leaf in a hot frame.
    Hot(OptimisticRef<'a, L>),
    /// At a leaf that is not hot: in the pool at this address, or in a cooling frame.
    Elsewhere { parent: OptimisticRef<'a, L>, slot: usize, address: GlobalAddr },
    /// At a missing node below which the memory server should continue.
    Offered(MissingNode<'a, L>),
}

/// A node that its hot parent points to by address, not by frame.
#[derive(Debug)]
pub(super) struct MissingNode<'a, L: Layout> {
    pub(super) parent: OptimisticRef<'a, L>,
    pub(super) slot: usize,
    pub(super) address: GlobalAddr,
    pub(super) level: u8,
}

/// What the operation could offload to the memory server of a missing node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OffloadOffer {
    /// The operation runs here.
    Nothing,
    /// A single-key operation.
    Edit,
    /// A scan that needs about this many leaves.
    Scan { leaves: u64 },
}

/// The target of a child word.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChildTarget<'a, L: Layout> {
    /// A node in a hot frame.
    Hot(OptimisticRef<'a, L>),
    /// A node in the pool at this address, or in a cooling frame.
    Elsewhere(GlobalAddr),
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// An optimistic reference to the root.
    #[inline]
    pub(super) fn seen_root(&self) -> Result<OptimisticRef<'_, L>, Restart> {
        self.client.cache().seen(self.root_frame).ok_or(Restart::Busy)
    }

    /// Resolves a child word. For a hot child, takes its version.
    #[inline(always)]
    pub(super) fn child(&self, swip: Swip) -> Result<ChildTarget<'_, L>, Restart> {
        Ok(match swip {
            Swip::Frame(frame) => {
                ChildTarget::Hot(self.client.cache().seen(frame).ok_or(Restart::Busy)?)
            }
            Swip::Remote(address) => ChildTarget::Elsewhere(address),
        })
    }

    /// The child of `node` on the path of `probe`, and its slot. Prefetches a hot child. Not
    /// validated yet.
    #[inline(always)]
    fn look_down<'a>(
        &'a self,
        node: OptimisticRef<'a, L>,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<(usize, ChildTarget<'a, L>), Restart> {
        let cache = self.client.cache();
        let slot = L::inner_slot(node.page, probe);
        let swip = cache.swip(node.page, slot).ok_or(Restart::Busy)?;
        if let Swip::Frame(frame) = swip {
            prefetch(cache.arena().page(frame).words());
        }
        Ok((slot, self.child(swip)?))
    }

    /// Validates the step from a node at `level` to its child (D5).
    #[inline(always)]
    pub(super) fn confirm(
        &self,
        node: OptimisticRef<'_, L>,
        level: u8,
        child: ChildTarget<'_, L>,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<(), Restart> {
        if !node.is_valid() {
            return Err(Restart::Busy);
        }
        match child {
            ChildTarget::Hot(child) => self.check(child, level - 1, probe),
            ChildTarget::Elsewhere(_) => Ok(()),
        }
    }

    /// Checks that a node has the expected level and covers the probe.
    #[inline(always)]
    fn check(
        &self,
        node: OptimisticRef<'_, L>,
        level: u8,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<(), Restart> {
        let fits = node.page.level() == level
            && (L::reach(node.page, probe) == FencePosition::Inside
                || self.fabric().breaks(rules::FENCES));
        if fits {
            return Ok(());
        }
        // If the node is consistent, the copy of its parent was stale.
        Err(if node.is_valid() { Restart::Refresh } else { Restart::Busy })
    }

    /// Descends to the leaf that covers the probe, or to the first missing node where offloading is
    /// better.
    #[inline]
    pub(super) async fn find_leaf(
        &self,
        probe: DescentProbe<'_, L::Key>,
        offer: OffloadOffer,
    ) -> Result<LeafLocation<'_, L>, Restart> {
        let mut node = self.seen_root()?;
        let mut level = node.page.level();
        loop {
            if level == 0 {
                return Ok(LeafLocation::Hot(node));
            }
            let (slot, child) = self.look_down(node, probe)?;
            self.charge(Work::VisitNode).await;
            self.confirm(node, level, child, probe)?;
            match child {
                ChildTarget::Hot(child) => node = child,
                ChildTarget::Elsewhere(address)
                    if offer != OffloadOffer::Nothing
                        && self.offers(node, slot, level - 1, offer) =>
                {
                    let missing = MissingNode { parent: node, slot, address, level: level - 1 };
                    return Ok(LeafLocation::Offered(missing));
                }
                ChildTarget::Elsewhere(address) if level == 1 => {
                    return Ok(LeafLocation::Elsewhere { parent: node, slot, address });
                }
                ChildTarget::Elsewhere(address) => {
                    let restart = Box::pin(self.client.bring_inner(node, slot, address, probe));
                    return Err(restart.await);
                }
            }
            level -= 1;
        }
    }

    /// The range of keys that the hot nodes above route to `target`, a node on the path of `probe`.
    pub(super) fn keys_led_to(
        &self,
        target: OptimisticRef<'_, L>,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<OwnedRange<OwnedKey<L>>, Restart> {
        let mut node = self.seen_root()?;
        let mut keys = OwnedRange { low: L::min_key(), high: None };
        for _ in 0..MAX_LEVEL {
            if node.frame == target.frame {
                break;
            }
            let (slot, child) = self.look_down(node, probe)?;
            let (low, high) = slot_range(node.page, slot);
            keys = OwnedRange { low, high }.within(&keys);
            match child {
                ChildTarget::Hot(child) if node.is_valid() => node = child,
                _ => return Err(Restart::Busy),
            }
        }
        if node.frame == target.frame && target.is_valid() { Ok(keys) } else { Err(Restart::Busy) }
    }

    /// Finds the hot node at `level` that covers the probe, and its parent. For restructuring.
    pub(super) async fn find_hot(
        &self,
        probe: DescentProbe<'_, L::Key>,
        level: u8,
    ) -> Result<DescentNode<'_, L>, Restart> {
        let mut below = DescentNode { parent: None, node: self.seen_root()? };
        let mut at = below.node.page.level();
        while at > level {
            let slot = self.hot_child(below.node, at, probe).await?;
            below = DescentNode { parent: Some((below.node, slot.0)), node: slot.1 };
            at -= 1;
        }
        Ok(below)
    }

    /// The child of `node` that covers the probe, and its slot. If the child is not hot, it is
    /// fetched and the descent starts again.
    pub(super) async fn hot_child<'a>(
        &'a self,
        node: OptimisticRef<'a, L>,
        level: u8,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<(usize, OptimisticRef<'a, L>), Restart> {
        let (slot, child) = self.look_down(node, probe)?;
        self.charge(Work::VisitNode).await;
        self.confirm(node, level, child, probe)?;
        Err(match child {
            ChildTarget::Hot(child) => return Ok((slot, child)),
            ChildTarget::Elsewhere(address) if level == 1 => {
                self.client.bring_hot_leaf(node, slot, address).await
            }
            ChildTarget::Elsewhere(address) => {
                self.client.bring_inner(node, slot, address, probe).await
            }
        })
    }

    /// Applies `read` to the leaf that covers the probe. `read` may also run on inconsistent
    /// leaves, but only the result for a consistent one is returned.
    #[inline]
    pub(super) async fn read_leaf<T>(
        &self,
        probe: DescentProbe<'_, L::Key>,
        read: impl Fn(Page<'_, L>) -> T,
    ) -> Result<T, RemoteError> {
        let restart = match self.try_read_leaf(probe, &read).await {
            Ok(value) => return Ok(value),
            Err(restart) => restart,
        };
        Box::pin(self.read_leaf_again(probe, read, restart)).await
    }

    #[cold]
    async fn read_leaf_again<T>(
        &self,
        probe: DescentProbe<'_, L::Key>,
        read: impl Fn(Page<'_, L>) -> T,
        mut restart: Restart,
    ) -> Result<T, RemoteError> {
        let mut attempts = self.attempts();
        loop {
            self.after(&mut attempts, restart, probe).await?;
            match self.try_read_leaf(probe, &read).await {
                Ok(value) => return Ok(value),
                Err(next) => restart = next,
            }
        }
    }

    #[inline]
    pub(super) async fn try_read_leaf<T>(
        &self,
        probe: DescentProbe<'_, L::Key>,
        read: &impl Fn(Page<'_, L>) -> T,
    ) -> Result<T, Restart> {
        if self.uncached
            && let Some(value) = Box::pin(self.read_in_pool(probe, read)).await?
        {
            return Ok(value);
        }
        let place = self.find_leaf(probe, OffloadOffer::Nothing).await?;
        self.read_place(place, probe, read).await
    }

    /// Applies `read` to the leaf that covers the probe, starting from a level-1 node on the path
    /// to it.
    pub(super) async fn try_read_below<T>(
        &self,
        above: OptimisticRef<'_, L>,
        probe: DescentProbe<'_, L::Key>,
        read: &impl Fn(Page<'_, L>) -> T,
    ) -> Result<T, Restart> {
        let (slot, child) = self.look_down(above, probe)?;
        self.charge(Work::VisitNode).await;
        self.confirm(above, 1, child, probe)?;
        let place = match child {
            ChildTarget::Hot(leaf) => LeafLocation::Hot(leaf),
            ChildTarget::Elsewhere(address) => {
                LeafLocation::Elsewhere { parent: above, slot, address }
            }
        };
        self.read_place(place, probe, read).await
    }

    /// Applies `read` to the leaf where a descent for `probe` ended.
    #[inline]
    pub(super) async fn read_place<T>(
        &self,
        place: LeafLocation<'_, L>,
        probe: DescentProbe<'_, L::Key>,
        read: &impl Fn(Page<'_, L>) -> T,
    ) -> Result<T, Restart> {
        match place {
            LeafLocation::Hot(leaf) => {
                let value = read(leaf.page);
                let unwritten = self.client.unwritten_seen(leaf);
                if !leaf.is_valid() {
                    return Err(Restart::Busy);
                }
                LiveCounters::count(&self.client.counters.leaf_hits);
                self.client.mark_use(leaf.page);
                if let Some(unwritten) = unwritten {
                    Box::pin(self.client.await_written(unwritten)).await?;
                }
                Ok(value)
            }
            LeafLocation::Elsewhere { parent, slot, address } => {
                let work = |page: Page<'_, L>| LeafOutcome::Nothing(read(page));
                let outcome = self.client.fetch_leaf(parent, slot, address, probe, work).await?;
                match outcome {
                    LeafOutcome::Nothing(value) | LeafOutcome::Changed { answer: value, .. } => {
                        Ok(value)
                    }
                    LeafOutcome::Full => Err(Restart::Busy),
                }
            }
            LeafLocation::Offered(_) => Err(Restart::Here),
        }
    }
}
