//! The cached nodes of one compute server: copies by which an operation finds a leaf without a READ
//! of a node.
//!
//! *Invariants*
//! - smart.C1. A cached slot is a hint: it leads to something that is in the tree below it, but
//!   perhaps not directly any more, and it may be missing (smart.N1, smart.N3).
//! - smart.C2. The copies take at most the given bytes. To make room, the cache evicts those that
//!   came first.
//!
//! *Thread safety*: shared by all threads of a compute server.

use crate::page::{Child, KeyPath, NodeCopy, NodeHeader, NodeSize, Search, Slot, slot_place};
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use std::collections::{BTreeMap, VecDeque};

/// The cached nodes, and the root slot.
#[derive(Debug)]
pub(super) struct SmartCache {
    most_bytes: u64,
    /// The root slot as it was last read.
    root: AtomicU64,
    nodes: Mutex<Nodes>,
}

#[derive(Debug, Default)]
struct Nodes {
    /// By the number of the path.
    held: BTreeMap<u64, Held>,
    /// Paths in the order of their admissions, some of which have left since.
    queue: VecDeque<(u64, u64)>,
    bytes: u64,
    admissions: u64,
    /// How many nodes with a path of so many bytes there are.
    of_length: [u32; KeyPath::MOST_BYTES + 1],
}

#[derive(Debug)]
struct Held {
    node: NodeCopy,
    /// The number of its admission.
    admission: u64,
}

/// A slot of a cached node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotOf {
    /// The path of the node.
    pub(super) path: KeyPath,
    /// The number of the slot.
    pub(super) number: usize,
}

/// Where a descent begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// At a slot of the deepest cached node on the way.
    Slot(GlobalAddr, Slot, SlotOf),
    /// At the deepest cached node on the way, which has no slot for the key.
    Node(GlobalAddr, NodeSize),
    /// At the root slot, as it was last read.
    Root(Slot),
}

/// A cached node, for a scan.
#[derive(Debug)]
pub(super) struct KnownNode {
    pub(super) at: GlobalAddr,
    pub(super) size: NodeSize,
    pub(super) path: KeyPath,
    /// The leaves that it led to, each with the byte that leads there.
    pub(super) leaves: Vec<(u8, GlobalAddr)>,
}

fn bytes_of(node: &NodeCopy) -> u64 {
    node.words().len() as u64 * 8
}

impl Nodes {
    /// The deepest node whose path `key` begins with.
    fn deepest(&self, key: u64) -> Option<&NodeCopy> {
        let lengths = (0..=KeyPath::MOST_BYTES).rev().filter(|length| self.of_length[*length] > 0);
        let held = |length| self.held.get(&KeyPath::of(key, length).number());
        lengths.filter_map(held).next().map(|held| &held.node)
    }

    fn remove(&mut self, path: KeyPath) {
        if let Some(gone) = self.held.remove(&path.number()) {
            self.bytes -= bytes_of(&gone.node);
            self.of_length[path.length()] -= 1;
        }
    }

    /// Drops places in the queue whose nodes have left, once they are the most.
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
                let path = held.node.header.path;
                self.remove(path);
            }
        }
    }
}

impl SmartCache {
    pub(super) fn new(most_bytes: u64) -> Self {
        Self { most_bytes, root: AtomicU64::new(0), nodes: Mutex::new(Nodes::default()) }
    }

    /// Size of the copies, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.nodes).bytes
    }

    /// Where a descent to `key` begins.
    pub(super) fn start(&self, key: u64) -> Start {
        let nodes = lock(&self.nodes);
        let Some(node) = nodes.deepest(key) else {
            return Start::Root(Slot::from_bits(self.root.load(Ordering::Relaxed)));
        };
        let path = node.header.path;
        match node.search(path.next_byte(key)) {
            Search::At(number, slot) => {
                Start::Slot(slot_place(node.at, number), slot, SlotOf { path, number })
            }
            Search::Free(_) | Search::Full => Start::Node(node.at, node.header.size),
        }
    }

    /// The leaf that the way to `key` ends at, if the deepest node on it is cached.
    pub(super) fn leaf(&self, key: u64) -> Option<GlobalAddr> {
        match self.start(key) {
            Start::Slot(_, slot, _) if slot.child() == Child::Leaf => Some(slot.at()),
            _ => None,
        }
    }

    /// The deepest node whose path `key` begins with.
    pub(super) fn node_of(&self, key: u64) -> Option<KnownNode> {
        let nodes = lock(&self.nodes);
        let node = nodes.deepest(key)?;
        let leaves = node.in_use().filter(|(_, slot)| slot.child() == Child::Leaf);
        let leaves = leaves.map(|(_, slot)| (slot.byte(), slot.at())).collect();
        let NodeHeader { size, path } = node.header;
        Some(KnownNode { at: node.at, size, path, leaves })
    }

    /// Remembers the root slot.
    pub(super) fn note_root(&self, slot: Slot) {
        self.root.store(slot.to_bits(), Ordering::Relaxed);
    }

    /// Caches a copy of a node, with all slots of its size (smart.C2). Drops the copy that was
    /// there even if this one does not fit.
    pub(super) fn admit(&self, node: &NodeCopy) {
        let (bytes, path) = (bytes_of(node), node.header.path);
        if bytes > self.most_bytes {
            // A descent from a copy of an earlier size would read the node twice.
            self.forget(path);
            return;
        }
        let node = node.clone();
        let mut nodes = lock(&self.nodes);
        nodes.make_room(bytes, self.most_bytes);
        nodes.admissions += 1;
        let mut admission = nodes.admissions;
        if let Some(held) = nodes.held.get(&path.number()) {
            // It keeps its place in the queue.
            admission = held.admission;
            nodes.remove(path);
        } else {
            nodes.queue.push_back((path.number(), admission));
        }
        nodes.bytes += bytes;
        nodes.of_length[path.length()] += 1;
        nodes.held.insert(path.number(), Held { node, admission });
        nodes.tidy_queue();
    }

    /// Replaces a slot of a cached node by what it is now.
    pub(super) fn patch(&self, place: SlotOf, slot: Slot) {
        let mut nodes = lock(&self.nodes);
        if let Some(held) = nodes.held.get_mut(&place.path.number()) {
            match held.node.slots.get_mut(place.number) {
                Some(word) => *word = slot.to_bits(),
                None => nodes.remove(place.path),
            }
        }
    }

    /// Drops a node of which a slot is out of date (smart.C1).
    pub(super) fn forget(&self, path: KeyPath) {
        lock(&self.nodes).remove(path);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    fn at(number: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId::new(1), number * 64)
    }

    /// A node with one leaf, for the key that its path is of.
    fn node(number: u64, path: KeyPath) -> NodeCopy {
        let header = NodeHeader { size: NodeSize::SMALLEST, path };
        let leaf = Slot::leaf(path.next_byte(path.low()), at(number + 1)).to_bits();
        NodeCopy { at: at(number), reverse: at(1), header, slots: vec![leaf, 0, 0, 0] }
    }

    const BYTES: u64 = (2 + 4) * 8;

    #[test]
    fn a_descent_begins_as_deep_as_possible() {
        let cache = SmartCache::new(1 << 20);
        let key = 0x1122_3344_5566_7700;
        assert!(matches!(cache.start(key), Start::Root(Slot::FREE)));
        cache.admit(&node(10, KeyPath::of(key, 2)));
        cache.admit(&node(20, KeyPath::of(key, 7)));
        let Start::Slot(place, slot, of) = cache.start(key) else { panic!("the leaf is known") };
        assert_eq!((place, slot.at(), of.number), (slot_place(at(20), 0), at(21), 0));
        assert!(matches!(cache.start(key + 1), Start::Node(found, _) if found == at(20)));
        assert!(matches!(cache.start(key + 256), Start::Node(found, _) if found == at(10)));
        let path = KeyPath::of(key, 7);
        cache.patch(SlotOf { path, number: 1 }, Slot::leaf(1, at(30)));
        assert!(matches!(cache.start(key + 1), Start::Slot(_, slot, _) if slot.at() == at(30)));
        let known = cache.node_of(key).unwrap();
        assert_eq!((known.at, known.leaves), (at(20), vec![(0, at(21)), (1, at(30))]));
        cache.forget(path);
        assert!(matches!(cache.start(key + 1), Start::Node(found, _) if found == at(10)));
    }

    #[test]
    fn the_first_to_come_is_the_first_to_go() {
        let cache = SmartCache::new(3 * BYTES + 8);
        let path = |number: u64| KeyPath::of(number << 8, 7);
        let is_held = |number: u64| matches!(cache.start(number << 8), Start::Slot(..));
        (1..=3).for_each(|number| cache.admit(&node(number, path(number))));
        // Another copy of a node takes the place of the first one.
        cache.forget(path(2));
        cache.admit(&node(1, path(1)));
        assert_eq!(cache.bytes(), 2 * BYTES);
        (4..=5).for_each(|number| cache.admit(&node(number, path(number))));
        let held: Vec<u64> = (1..=5).filter(|number| is_held(*number)).collect();
        assert_eq!((held, cache.bytes()), (vec![3, 4, 5], 3 * BYTES));
        let none = SmartCache::new(BYTES - 1);
        none.admit(&node(1, path(1)));
        assert_eq!(none.bytes(), 0);
    }
}
