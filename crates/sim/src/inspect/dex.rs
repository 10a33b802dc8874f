//! The inspector of DEX's tree: it looks at the memory servers' regions directly, past the network, at random
//! instants of a run and at its end (invariant D2 of `farleaf::index::dex`).
//!
//! *What holds at every instant*: whichever key is looked for, each step from the root leads to a page at its
//! own address, one level lower, whose fences cover what led there; and no child word is a reference into a
//! cache. A node may have too much, never too little: so a page is asked only about the keys that its parents
//! route to it. An inner page that is just being written, so that its checksum does not fit, is passed over.
//!
//! *What holds when all is written back*, unless a crash came before: fences are exactly what the parents say, keys lie within them, and no
//! node is met twice.
//!
//! *Thread safety*: plain functions over atomics, between two steps of the simulator.

use crate::client::Board;
use crate::scenario::Scenario;
use crate::workload;
use farleaf::page::{Layout, NodeCarver, Page, ScanWindow, Superblock};
use farleaf::server::MemoryServer;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, RpcService};
use rand::RngExt;
use std::collections::BTreeSet;
use std::ops::Bound;

/// The longest time between two looks, in nanoseconds.
const MAX_PAUSE_NS: u64 = 20_000;

/// What one look is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// A tree in the middle of things.
    WellFormed,
    /// One to which nothing is added any more.
    Exact,
    /// The same after a crash: nodes that nobody has brought since may have more than their parents lead to them for.
    Settled,
}

/// The memory servers' regions, as one tree.
pub(crate) struct Pool<L: Layout> {
    servers: Vec<Arc<MemoryServer<L>>>,
    /// Servers that may be dead: what is on them counts no more.
    doomed: BTreeSet<u16>,
}

impl<L: Layout<Key = u64, Value = u64>> Pool<L> {
    pub(crate) fn new(servers: &[Arc<MemoryServer<L>>], scenario: &Scenario) -> Self {
        let doomed = scenario.faults.kill_memory_server.iter().map(|death| death.server).collect();
        Self { servers: servers.to_vec(), doomed }
    }

    /// Whether the page at an address says that it is a leaf.
    pub(crate) fn is_leaf(&self, at: GlobalAddr) -> bool {
        self.page(at).is_ok_and(|page| page.level() == 0)
    }

    /// The page at an address, if there can be one.
    fn page(&self, at: GlobalAddr) -> Result<Page<'_, L>, String> {
        let sensible = !at.is_null()
            && !at.is_swizzled()
            && at.offset().is_multiple_of(NodeCarver::NODE_ALIGN);
        let server = self.servers.get(at.server().index()).filter(|_| sensible);
        let words = server.and_then(|server| server.region().slice(at.offset(), L::PAGE_WORDS));
        words.map(Page::new).ok_or_else(|| format!("{at:?} is no address of a page"))
    }

    /// Looks at the whole tree; the records of all leaves, as far as parents lead to them.
    pub(crate) fn look(&self, expect: Expect) -> Result<Vec<(u64, u64)>, String> {
        let mut records = Vec::new();
        if self.doomed.contains(&0) {
            return Ok(records);
        }
        let superblock = &self.servers[0].region().words()[..Superblock::WORDS];
        let root = Superblock::root(superblock);
        let mut met = BTreeSet::new();
        // Node, level if it is known, and the keys that are routed to it; the leftmost last.
        let mut left: Vec<(GlobalAddr, Option<u8>, u64, Option<u64>)> = vec![(root, None, 0, None)];
        while let Some((at, level, low, high)) = left.pop() {
            let path = || format!("the node at {at:?}, asked for the keys from {low} to {high:?}");
            let page = self.page(at).map_err(|error| format!("{}: {error}", path()))?;
            if self.doomed.contains(&at.server().number()) {
                continue;
            }
            if !met.insert(at) {
                return Err(format!("{}: it is there twice", path()));
            }
            let is_inner = level.is_none_or(|level| level > 0);
            if is_inner && !page.is_of_one_piece() {
                if expect != Expect::WellFormed {
                    return Err(format!("{}: its checksum does not fit", path()));
                }
                continue;
            }
            if page.address() != at {
                return Err(format!("{}: it is at {:?} by its own words", path(), page.address()));
            }
            if level.is_some_and(|level| page.level() != level) {
                return Err(format!("{}: level {} instead of {level:?}", path(), page.level()));
            }
            let fences = (L::low(page), L::high(page));
            // A leaf has no checksum: half a WRITE can have changed one of the two words of an infinite fence.
            let end = fences.1.filter(|end| *end != u64::MAX || expect != Expect::WellFormed);
            let covers = fences.0 <= low && end.is_none_or(|end| high.is_some_and(|h| h <= end));
            if !covers || (expect == Expect::Exact && fences != (low, high)) {
                return Err(format!("{}: its fences are {fences:?}", path()));
            }
            if page.level() == 0 {
                if expect != Expect::WellFormed && !page.stamp_fits() {
                    return Err(format!("{}: its stamp does not fit", path()));
                }
                let upper = high.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let lower = Bound::Included(&low);
                let window = ScanWindow { lower, upper, reverse: false, limit: usize::MAX };
                let found = L::leaf_collect(page, &window, &mut records);
                if expect == Expect::Exact && found != page.live_count() {
                    return Err(format!("{}: it has keys beyond its fences", path()));
                }
                continue;
            }
            for slot in (0..page.count()).rev() {
                let from = L::inner_key(page, slot).max(low);
                let next = (slot + 1 < page.count()).then(|| L::inner_key(page, slot + 1));
                let to = match (next, high) {
                    (Some(next), Some(high)) => Some(next.min(high)),
                    (next, high) => next.or(high),
                };
                if to.is_none_or(|to| from < to) {
                    left.push((L::inner_child(page, slot), Some(page.level() - 1), from, to));
                }
            }
        }
        Ok(records)
    }

    /// Looks again and again until the run is over.
    pub(crate) async fn watch(&self, fabric: impl Fabric, board: &Board, seed: u64) {
        let mut rng = workload::rng(seed, u64::MAX / 2);
        while !board.is_over() {
            fabric.sleep(rng.random_range(1..=MAX_PAUSE_NS)).await;
            if let Err(fault) = self.look(Expect::WellFormed) {
                board.report(format!("at {} ns, in the pool: {fault}", fabric.now_ns()));
                return;
            }
        }
    }
}
