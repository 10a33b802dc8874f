//! One step of a descent, the same on the compute side and on a memory server.

use super::layout::{DescentProbe, FencePosition, Layout, OwnedKey};
use super::view::Page;
use farleaf_fabric::GlobalAddr;

/// The key range of `slot` in `parent`: from the first key, inclusive, to the second, exclusive
/// (`None`: infinite).
pub fn slot_range<L: Layout>(
    parent: Page<'_, L>,
    slot: usize,
) -> (OwnedKey<L>, Option<OwnedKey<L>>) {
    let low = if slot == 0 { L::low(parent) } else { L::inner_key(parent, slot) };
    (low, L::inner_end(parent, slot))
}

/// The keys that are in both ranges. A path leads to a node for the keys that all of its slots
/// cover.
pub fn narrowed<K: Ord>(one: (K, Option<K>), other: (K, Option<K>)) -> (K, Option<K>) {
    let high = match (one.1, other.1) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    (one.0.max(other.0), high)
}

/// Where a descent goes from a page. Trust it only once the page's version has been validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep {
    /// This is the target node.
    Here,
    /// Down to this child.
    Child(GlobalAddr),
    /// Right to this sibling: the node was split, and its parent does not point to the sibling yet.
    Right(GlobalAddr),
    /// The descent is on the wrong page: start again.
    Lost,
}

/// The step from `page` towards the node of level `target` that covers `probe`.
#[inline]
pub fn step<L: Layout>(page: Page<'_, L>, probe: DescentProbe<'_, L::Key>, target: u8) -> WalkStep {
    if page.is_dead() || page.level() < target {
        return WalkStep::Lost;
    }
    match L::reach(page, probe) {
        FencePosition::Below => WalkStep::Lost,
        FencePosition::Beyond => WalkStep::Right(page.sibling()),
        FencePosition::Inside if page.level() == target => WalkStep::Here,
        FencePosition::Inside => WalkStep::Child(L::inner_child(page, L::inner_slot(page, probe))),
    }
}
