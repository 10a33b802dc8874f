//! The cached parents of leaves of one compute server: copies by which an operation finds its leaf
//! without a READ.
//!
//! *Invariants*
//! - entrywise.C1. A cached node is a hint: a leaf's fences show whether it covers a key. If it
//!   does not, the node is forgotten.
//! - entrywise.C2. The nodes take at most the given bytes. To make room, the cache evicts the less
//!   recently used of two nodes chosen at random.
//!
//! *Thread safety*: shared by all threads of a compute server.

use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{Mutex, Ordering, lock};
use farleaf_index::ScanRequest;
use farleaf_page::{DescentProbe, FencePosition, Layout, OwnedKey, Page};
use farleaf_pool::remote::PageImage;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Leaves that a parent names, each with its lowest key.
pub(super) type ParentLeaves<L> = Vec<(OwnedKey<L>, GlobalAddr)>;

/// The cached nodes.
#[derive(Debug)]
pub(super) struct NodeCache<L: Layout> {
    /// Maximum number of nodes.
    most: usize,
    nodes: Mutex<CachedNodes<L>>,
}

#[derive(Debug)]
struct CachedNodes<L: Layout> {
    /// The place of each node in `held`, by its low fence.
    by_low: BTreeMap<OwnedKey<L>, usize>,
    held: Vec<CachedNode<L>>,
    clock: u64,
}

#[derive(Debug)]
struct CachedNode<L: Layout> {
    low: OwnedKey<L>,
    image: PageImage<L>,
    /// The clock when it was last used.
    used: u64,
}

impl<L: Layout> CachedNodes<L> {
    /// The place of the node that covers the probe.
    fn covering(&self, probe: DescentProbe<'_, L::Key>) -> Option<usize> {
        let below = |end: Bound<&L::Key>| {
            let lows = (Bound::Unbounded, end);
            self.by_low.range::<L::Key, _>(lows).next_back().map(|(_, place)| *place)
        };
        let place = match probe {
            DescentProbe::At(key) => below(Bound::Included(key)),
            DescentProbe::Before(key) => below(Bound::Excluded(key)),
            DescentProbe::Last => below(Bound::Unbounded),
        };
        let covers = |place: &usize| {
            L::reach(self.held[*place].image.page(), probe) == FencePosition::Inside
        };
        place.filter(covers)
    }

    /// The node that covers the probe, which counts as used.
    fn used(&mut self, probe: DescentProbe<'_, L::Key>) -> Option<Page<'_, L>> {
        let place = self.covering(probe)?;
        self.clock += 1;
        let node = &mut self.held[place];
        node.used = self.clock;
        Some(node.image.page())
    }

    fn remove(&mut self, place: usize) {
        let gone = self.held.swap_remove(place);
        self.by_low.remove(L::key(&gone.low));
        if let Some(moved) = self.held.get(place) {
            self.by_low.insert(moved.low.clone(), place);
        }
    }
}

impl<L: Layout> NodeCache<L> {
    pub(super) fn new(bytes: u64) -> Self {
        let most = bytes / (L::page_words() as u64 * 8);
        let nodes = CachedNodes { by_low: BTreeMap::new(), held: Vec::new(), clock: 0 };
        Self { most: usize::try_from(most).unwrap_or(usize::MAX), nodes: Mutex::new(nodes) }
    }

    /// Size of the cached nodes, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        (lock(&self.nodes).held.len() * L::page_words() * 8) as u64
    }

    /// The leaf that covers the probe, or lies to the left of the one that does.
    pub(super) fn leaf(&self, probe: DescentProbe<'_, L::Key>) -> Option<GlobalAddr> {
        let mut nodes = lock(&self.nodes);
        let page = nodes.used(probe)?;
        Some(L::inner_child(page, L::inner_slot(page, probe)))
    }

    /// As [`named_up`], if the parent of the first leaf is cached.
    pub(super) fn up(
        &self,
        start: &L::Key,
        most: usize,
        scan: &ScanRequest<OwnedKey<L>>,
    ) -> Option<(Vec<GlobalAddr>, Option<OwnedKey<L>>)> {
        let mut nodes = lock(&self.nodes);
        Some(named_up(nodes.used(DescentProbe::At(start))?, start, most, scan))
    }

    /// As [`named_down`], if the parent of the first leaf is cached.
    pub(super) fn down(
        &self,
        probe: DescentProbe<'_, L::Key>,
        most: usize,
    ) -> Option<ParentLeaves<L>> {
        let mut nodes = lock(&self.nodes);
        Some(named_down(nodes.used(probe)?, probe, most))
    }

    /// Caches a copy of a parent of leaves. `random` chooses what leaves if there is no room
    /// (entrywise.C2).
    pub(super) fn admit(&self, page: Page<'_, L>, random: impl Fn() -> u64) {
        if self.most == 0 || page.level() != 1 {
            return;
        }
        let mut nodes = lock(&self.nodes);
        let nodes = &mut *nodes;
        nodes.clock += 1;
        let low = L::low(page);
        let held = nodes.by_low.get(L::key(&low)).copied();
        if let Some(node) = held.map(|place| &mut nodes.held[place])
            && is_same_version(node.image.page(), page)
        {
            node.used = nodes.clock;
            return;
        }
        let node = CachedNode { low, image: PageImage::of(page), used: nodes.clock };
        if let Some(place) = held {
            nodes.held[place] = node;
            return;
        }
        if nodes.held.len() == self.most {
            let [one, other] = [(); 2].map(|()| (random() % self.most as u64) as usize);
            let used = |place: usize| nodes.held[place].used;
            nodes.remove(if used(one) < used(other) { one } else { other });
        }
        nodes.by_low.insert(node.low.clone(), nodes.held.len());
        nodes.held.push(node);
    }

    /// Drops the node that covers the probe (entrywise.C1).
    pub(super) fn forget(&self, probe: DescentProbe<'_, L::Key>) {
        let mut nodes = lock(&self.nodes);
        if let Some(place) = nodes.covering(probe) {
            nodes.remove(place);
        }
    }
}

/// Whether two copies are of the same version of a node.
fn is_same_version<L: Layout>(one: Page<'_, L>, other: Page<'_, L>) -> bool {
    let version = |page: Page<'_, L>| (page.address(), page.words()[0].load(Ordering::Relaxed));
    version(one) == version(other)
}

/// The leaf of `start` and at most `most` - 1 leaves after it that a parent names and the scan
/// wants, and where the next leaf begins.
pub(super) fn named_up<L: Layout>(
    parent: Page<'_, L>,
    start: &L::Key,
    most: usize,
    scan: &ScanRequest<OwnedKey<L>>,
) -> (Vec<GlobalAddr>, Option<OwnedKey<L>>) {
    let first = L::inner_slot(parent, DescentProbe::At(start));
    let mut leaves = Vec::new();
    for slot in first..parent.count() {
        let low = L::inner_key(parent, slot);
        if slot > first && (leaves.len() >= most || scan.is_above(&low)) {
            return (leaves, Some(low));
        }
        leaves.push(L::inner_child(parent, slot));
    }
    (leaves, L::high(parent))
}

/// The leaf of the probe and at most `most` - 1 leaves before it that a parent names, downwards.
pub(super) fn named_down<L: Layout>(
    parent: Page<'_, L>,
    probe: DescentProbe<'_, L::Key>,
    most: usize,
) -> ParentLeaves<L> {
    let name = |slot| (L::inner_key(parent, slot), L::inner_child(parent, slot));
    (0..=L::inner_slot(parent, probe)).rev().take(most).map(name).collect()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;
    use farleaf_page::Entries8;

    type CacheTestLayout = Entries8<128>;

    /// The parent of leaves from `low` to `low` + 100, one in ten keys.
    fn parent(low: u64) -> PageImage<CacheTestLayout> {
        let image = PageImage::<CacheTestLayout>::empty();
        let at = GlobalAddr::new(ServerId::new(0), 1024 + low * 1024);
        image.page().format_empty(at, 1, &low, Some(&(low + 100)));
        for key in (low..low + 100).step_by(10) {
            let leaf = GlobalAddr::new(ServerId::new(1), key * 1024);
            assert!(CacheTestLayout::inner_insert(image.page(), &key, leaf));
        }
        image
    }

    #[test]
    fn a_cache_names_leaves_and_keeps_what_is_used() {
        let cache = NodeCache::<CacheTestLayout>::new(3 * 1024 + 1000);
        let leaf = |key: u64| GlobalAddr::new(ServerId::new(1), key * 1024);
        assert_eq!(cache.leaf(DescentProbe::At(&5)), None);
        for low in [0, 100, 300] {
            cache.admit(parent(low).page(), || unreachable!("there is room"));
        }
        assert_eq!(cache.bytes(), 3 * 1024);
        assert_eq!(cache.leaf(DescentProbe::At(&109)), Some(leaf(100)));
        assert_eq!(cache.leaf(DescentProbe::At(&110)), Some(leaf(110)));
        assert_eq!(cache.leaf(DescentProbe::Before(&100)), Some(leaf(90)));
        assert_eq!(cache.leaf(DescentProbe::At(&200)), None);
        assert_eq!(cache.leaf(DescentProbe::Last), None, "the last one does not end at infinity");
        let scan = ScanRequest::range(..145);
        let (named, next) = cache.up(&115, 10, &scan).unwrap();
        assert_eq!((named, next), ((110..150).step_by(10).map(leaf).collect(), Some(150)));
        let (named, next) = cache.up(&115, 2, &scan).unwrap();
        assert_eq!((named, next), (vec![leaf(110), leaf(120)], Some(130)));
        let named = cache.down(DescentProbe::At(&315), 5).unwrap();
        assert_eq!(named, [(310, leaf(310)), (300, leaf(300))]);
        // A newer copy of a node takes the place of the older one.
        cache.admit(parent(100).page(), || unreachable!("it is there"));
        assert_eq!(cache.bytes(), 3 * 1024);
        // Between nodes 0 and 2, the one leaves that was used less recently: that of 0.
        cache.leaf(DescentProbe::At(&300));
        let draws = std::cell::Cell::new(0);
        let random = || draws.replace(2);
        cache.admit(parent(500).page(), random);
        assert_eq!(cache.bytes(), 3 * 1024);
        for (key, found) in [(5, false), (105, true), (305, true), (505, true)] {
            assert_eq!(cache.leaf(DescentProbe::At(&key)).is_some(), found, "{key}");
        }
        cache.forget(DescentProbe::At(&105));
        assert_eq!((cache.leaf(DescentProbe::At(&105)), cache.bytes()), (None, 2 * 1024));
        for key in [305, 505] {
            assert_eq!(cache.leaf(DescentProbe::At(&key)), Some(leaf(key - 5)), "{key}");
        }
        let none = NodeCache::<CacheTestLayout>::new(1023);
        none.admit(parent(0).page(), || unreachable!());
        assert_eq!(none.bytes(), 0);
    }
}
