//! The cached nodes of one compute server: copies by which an operation finds a leaf without a READ
//! of a node.
//!
//! *Invariants*
//! - smart.C1. A cached slot is a hint. What it leads to is still in the tree below the slot, but
//!   other nodes may lie between by now, and newer slots may be missing (smart.N1, smart.N3).
//! - smart.C2. The copies take at most the given bytes. To make room, the cache evicts those that
//!   came first.
//!
//! *Thread safety*: shared by all threads of a compute server.

use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_page::{LeafMemory, NodeCopy, NodeSize, Octets, RadixChild, RadixSlot, SlotSearch};
use std::collections::{BTreeMap, VecDeque};

/// The cached nodes, and the root slot.
#[derive(Debug)]
pub(super) struct SmartCache {
    most_bytes: u64,
    /// The root slot as it was last read.
    root: AtomicU64,
    nodes: Mutex<RadixNodes>,
}

#[derive(Debug, Default)]
struct RadixNodes {
    /// By path.
    held: BTreeMap<Octets, HeldNode>,
    /// The eviction queue: paths in the order of admission. Some of their nodes were evicted since.
    queue: VecDeque<(Octets, u64)>,
    bytes: u64,
    admissions: u64,
    /// Number of cached nodes by the length of their path, in bytes.
    of_length: BTreeMap<usize, u32>,
}

#[derive(Debug)]
struct HeldNode {
    node: NodeCopy,
    /// The number of its admission.
    admission: u64,
}

/// The position of a slot in a cached node on the way to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotOf {
    /// Length of the node's path, in bytes of the key.
    pub(super) depth: usize,
    /// The number of the slot.
    pub(super) number: usize,
}

/// Where a descent begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum DescentStart {
    /// At a slot of the deepest cached node on the way.
    Slot(GlobalAddr, RadixSlot, SlotOf),
    /// At the deepest cached node on the way, which has no slot for the key. The last field is the
    /// length of its path, in bytes.
    Node(GlobalAddr, NodeSize, usize),
    /// At the root slot, as it was last read.
    Root(RadixSlot),
}

/// A cached node, for a scan.
#[derive(Debug)]
pub(super) struct KnownNode {
    pub(super) at: GlobalAddr,
    pub(super) size: NodeSize,
    pub(super) path: Octets,
    /// Its slots that led to leaves.
    pub(super) leaves: Vec<RadixSlot>,
}

/// Size of a cached node in bytes: the copy, and the part of its path that the copy lacks.
fn bytes_of(node: &NodeCopy) -> u64 {
    (node.words().len() * 8 + node.path.len().saturating_sub(node.form.most_tail())) as u64
}

impl RadixNodes {
    /// The deepest node whose path `key` begins with.
    fn deepest(&self, key: &[u8]) -> Option<&NodeCopy> {
        let mut lengths = self.of_length.range(..=key.len()).rev().map(|(length, _)| *length);
        lengths.find_map(|length| self.held.get(&key[..length])).map(|held| &held.node)
    }

    fn remove(&mut self, path: &[u8]) {
        if let Some(gone) = self.held.remove(path) {
            self.bytes -= bytes_of(&gone.node);
            if let Some(nodes) = self.of_length.get_mut(&path.len()) {
                *nodes -= 1;
                if *nodes == 0 {
                    self.of_length.remove(&path.len());
                }
            }
        }
    }

    /// Drops entries of evicted nodes from the queue, once they are the majority.
    fn tidy_queue(&mut self) {
        if self.queue.len() > 2 * self.held.len() + 16 {
            let held = &self.held;
            self.queue.retain(|(path, admission)| {
                held.get(path).is_some_and(|held| held.admission == *admission)
            });
        }
    }

    /// Evicts the nodes that came first until `bytes` more fit.
    fn make_room(&mut self, bytes: u64, most_bytes: u64) {
        while self.bytes + bytes > most_bytes {
            let Some((path, admission)) = self.queue.pop_front() else { return };
            if let Some(held) = self.held.get(&path)
                && held.admission == admission
            {
                self.remove(&path);
            }
        }
    }
}

impl SmartCache {
    pub(super) fn new(most_bytes: u64) -> Self {
        Self { most_bytes, root: AtomicU64::new(0), nodes: Mutex::new(RadixNodes::default()) }
    }

    /// Size of the copies, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.nodes).bytes
    }

    /// Where a descent to `key` begins.
    pub(super) fn start(&self, key: &[u8]) -> DescentStart {
        let nodes = lock(&self.nodes);
        let Some(node) = nodes.deepest(key) else {
            return DescentStart::Root(RadixSlot::from_bits(self.root.load(Ordering::Relaxed)));
        };
        let depth = node.path.len();
        match node.search(node.next_byte(key)) {
            SlotSearch::At(number, slot) => {
                DescentStart::Slot(node.slot_place(number), slot, SlotOf { depth, number })
            }
            SlotSearch::Free(_) | SlotSearch::Full => {
                DescentStart::Node(node.at, node.header.size, depth)
            }
        }
    }

    /// The leaf that the way to `key` ends at, if the deepest node on it is cached.
    pub(super) fn leaf(&self, key: &[u8]) -> Option<LeafMemory> {
        match self.start(key) {
            DescentStart::Slot(_, slot, _) if slot.child() == RadixChild::Leaf => {
                Some(slot.leaf_room())
            }
            _ => None,
        }
    }

    /// The deepest node whose path `key` begins with.
    pub(super) fn node_of(&self, key: &[u8]) -> Option<KnownNode> {
        let nodes = lock(&self.nodes);
        let node = nodes.deepest(key)?;
        let slots = node.in_use().map(|(_, slot)| slot);
        let leaves = slots.filter(|slot| slot.child() == RadixChild::Leaf).collect();
        let (at, size, path) = (node.at, node.header.size, node.path.clone());
        Some(KnownNode { at, size, path, leaves })
    }

    /// Remembers the root slot.
    pub(super) fn note_root(&self, slot: RadixSlot) {
        self.root.store(slot.to_bits(), Ordering::Relaxed);
    }

    /// Caches a copy of a node, with all slots of its size (smart.C2). Drops the copy that was
    /// there even if this one does not fit.
    pub(super) fn admit(&self, node: &NodeCopy) {
        let bytes = bytes_of(node);
        if bytes > self.most_bytes {
            // With the copy of a smaller size, each descent would READ the node twice.
            self.forget(&node.path);
            return;
        }
        let node = node.clone();
        let path = node.path.clone();
        let mut nodes = lock(&self.nodes);
        nodes.make_room(bytes, self.most_bytes);
        nodes.admissions += 1;
        let mut admission = nodes.admissions;
        if let Some(held) = nodes.held.get(&path) {
            // It keeps its place in the queue.
            admission = held.admission;
            nodes.remove(&path);
        } else {
            nodes.queue.push_back((path.clone(), admission));
        }
        nodes.bytes += bytes;
        *nodes.of_length.entry(path.len()).or_default() += 1;
        nodes.held.insert(path, HeldNode { node, admission });
        nodes.tidy_queue();
    }

    /// Replaces a slot of the cached node with this path by what it is now.
    pub(super) fn patch(&self, path: &[u8], number: usize, slot: RadixSlot) {
        let mut nodes = lock(&self.nodes);
        if let Some(held) = nodes.held.get_mut(path) {
            match held.node.slots.get_mut(number) {
                Some(word) => *word = slot.to_bits(),
                None => nodes.remove(path),
            }
        }
    }

    /// Drops a node of which a slot is out of date (smart.C1).
    pub(super) fn forget(&self, path: &[u8]) {
        lock(&self.nodes).remove(path);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;
    use farleaf_page::RadixForm;

    fn at(number: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId::new(1), number * 64)
    }

    /// A node with one leaf, for the key that is its path with zeros behind.
    fn node(number: u64, path: &[u8]) -> NodeCopy {
        let leaf = RadixSlot::leaf(0, LeafMemory { at: at(number + 1), size: 0 }).to_bits();
        let content = (path, NodeSize::SMALLEST, vec![leaf, 0, 0, 0]);
        NodeCopy::made(RadixForm::Numbers, at(number), at(1), content)
    }

    const BYTES: u64 = (2 + 4) * 8;

    #[test]
    fn a_descent_begins_as_deep_as_possible() {
        let cache = SmartCache::new(1 << 20);
        let number = 0x1122_0000_0000_7700_u64;
        let [key, next, far] = [number, number + 1, number + 256].map(u64::to_be_bytes);
        assert!(matches!(cache.start(&key), DescentStart::Root(RadixSlot::FREE)));
        cache.admit(&node(10, &key[..2]));
        cache.admit(&node(20, &key[..7]));
        let DescentStart::Slot(place, slot, of) = cache.start(&key) else {
            panic!("the leaf is known")
        };
        assert_eq!((place, slot.at(), of.number), (at(20).plus(16), at(21), 0));
        assert!(matches!(cache.start(&next), DescentStart::Node(found, ..) if found == at(20)));
        assert!(
            matches!(cache.start(&far), DescentStart::Slot(place, ..) if place == at(10).plus(16))
        );
        let leaf = RadixSlot::leaf(1, LeafMemory { at: at(30), size: 0 });
        cache.patch(&key[..7], 1, leaf);
        assert!(
            matches!(cache.start(&next), DescentStart::Slot(_, slot, _) if slot.at() == at(30))
        );
        let known = cache.node_of(&key).unwrap();
        let leaves: Vec<_> = known.leaves.iter().map(|slot| (slot.byte(), slot.at())).collect();
        assert_eq!((known.at, leaves), (at(20), vec![(0, at(21)), (1, at(30))]));
        cache.forget(&key[..7]);
        assert!(
            matches!(cache.start(&next), DescentStart::Slot(place, ..) if place == at(10).plus(16))
        );
    }

    #[test]
    fn the_first_to_come_is_the_first_to_go() {
        let cache = SmartCache::new(3 * BYTES + 8);
        let path = |number: u64| (number << 8).to_be_bytes()[..7].to_vec();
        let is_held = |number: u64| {
            matches!(cache.start(&(number << 8).to_be_bytes()), DescentStart::Slot(..))
        };
        (1..=3).for_each(|number| cache.admit(&node(number, &path(number))));
        // Another copy of a node takes the place of the first one.
        cache.forget(&path(2));
        cache.admit(&node(1, &path(1)));
        assert_eq!(cache.bytes(), 2 * BYTES);
        (4..=5).for_each(|number| cache.admit(&node(number, &path(number))));
        let held: Vec<u64> = (1..=5).filter(|number| is_held(*number)).collect();
        assert_eq!((held, cache.bytes()), (vec![3, 4, 5], 3 * BYTES));
        let none = SmartCache::new(BYTES - 1);
        none.admit(&node(1, &path(1)));
        assert_eq!(none.bytes(), 0);
    }

    /// A node has 48 bytes of its path; the cache has all of them.
    #[test]
    fn a_long_path_takes_room() {
        let most_bytes = 2 * (8 + 4) * 8 + 52;
        let cache = SmartCache::new(most_bytes);
        for number in 1..=4 {
            let content = (&[number; 100][..], NodeSize::SMALLEST, vec![0; 4]);
            let at = at(number.into());
            cache.admit(&NodeCopy::made(RadixForm::Strings, at, at, content));
            assert_eq!(cache.bytes(), (8 + 4) * 8 + 52, "there is no room for two");
        }
        cache.forget(&[4; 100]);
        assert_eq!(cache.bytes(), 0);
    }
}
