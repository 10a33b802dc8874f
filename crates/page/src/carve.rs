//! Carves nodes from chunks: the second step of the two-step allocation. It uses no network.
//!
//! *Invariants*: carve.C1. A node is either in use or free, and is not handed out again before it
//! was given back. carve.C2. Nodes are aligned to [`NodeCarver::NODE_ALIGN`], so the low 10 bits of
//! their addresses are zero.
//!
//! *Thread safety*: none; callers that share a carver lock it.

use farleaf_fabric::GlobalAddr;

/// Allocates nodes of one size on one memory server.
#[derive(Debug)]
pub struct NodeCarver {
    node_bytes: u64,
    next: GlobalAddr,
    left: u64,
    free: Vec<GlobalAddr>,
}

impl NodeCarver {
    /// Minimum alignment of a node. The address bits below it are free for use in a child word.
    pub const NODE_ALIGN: u64 = 1024;

    /// Creates a carver without a chunk, for nodes of `page_bytes` bytes.
    pub fn new(page_bytes: usize) -> Self {
        let node_bytes = (page_bytes as u64).next_multiple_of(Self::NODE_ALIGN);
        Self { node_bytes, next: GlobalAddr::NULL, left: 0, free: Vec::new() }
    }

    /// Size of one node in bytes.
    pub fn node_bytes(&self) -> u64 {
        self.node_bytes
    }

    /// Whether the current chunk is used up, so that another one can be added.
    pub fn wants_chunk(&self) -> bool {
        self.left < self.node_bytes
    }

    /// Continues with another chunk. The rest of the current one, less than a node, is lost.
    ///
    /// # Panics
    /// If the current chunk still has room for a node, or if `at` is not aligned to nodes.
    pub fn add_chunk(&mut self, at: GlobalAddr, bytes: u64) {
        assert!(self.wants_chunk(), "the current chunk is used up first");
        assert!(at.offset().is_multiple_of(Self::NODE_ALIGN), "C2");
        self.next = at;
        self.left = bytes;
    }

    /// Takes an unused node. Freed nodes are reused first.
    pub fn take(&mut self) -> Option<GlobalAddr> {
        if let Some(node) = self.free.pop() {
            return Some(node);
        }
        if self.wants_chunk() {
            return None;
        }
        let node = self.next;
        self.left -= self.node_bytes;
        if !self.wants_chunk() {
            self.next = node.plus(self.node_bytes);
        }
        Some(node)
    }

    /// Frees a node that nothing points to.
    pub fn give_back(&mut self, node: GlobalAddr) {
        debug_assert!(!self.free.contains(&node), "C1");
        self.free.push(node);
    }

    /// Number of nodes that were freed and not taken again.
    pub fn free_nodes(&self) -> usize {
        self.free.len()
    }

    /// The nodes that can be taken without another chunk, in no particular order.
    pub fn unused(&self) -> impl Iterator<Item = GlobalAddr> + '_ {
        let untouched = self.left / self.node_bytes;
        let of_chunk = (0..untouched).map(|number| self.next.plus(number * self.node_bytes));
        self.free.iter().copied().chain(of_chunk)
    }

    /// Number of nodes that can be taken without another chunk.
    pub fn available(&self) -> usize {
        self.free.len() + (self.left / self.node_bytes) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn nodes_are_carved_reused_and_bounded() {
        let mut carver = NodeCarver::new(1024);
        assert_eq!(carver.take(), None);
        let chunk = GlobalAddr::new(ServerId::new(3), 4096);
        carver.add_chunk(chunk, 2500);
        let first = carver.take().unwrap();
        let second = carver.take().unwrap();
        assert_eq!((first, second), (chunk, chunk.plus(1024)));
        assert_eq!(carver.take(), None);
        carver.give_back(first);
        assert_eq!(carver.available(), 1);
        assert_eq!(carver.unused().collect::<Vec<_>>(), [first]);
        assert_eq!(carver.take(), Some(first));
    }

    #[test]
    fn small_pages_are_still_aligned() {
        let mut carver = NodeCarver::new(128);
        carver.add_chunk(GlobalAddr::new(ServerId::new(0), 1024), 4096);
        let unused: Vec<u64> = carver.unused().map(|node| node.offset()).collect();
        assert_eq!(unused, [1024, 2048, 3072, 4096]);
        let offsets: Vec<u64> = std::iter::from_fn(|| carver.take()).map(|n| n.offset()).collect();
        assert_eq!(offsets, [1024, 2048, 3072, 4096]);
    }
}
