//! The nodes of the memory server's own tree, carved from chunks that the server allocates to
//! itself.
//!
//! *Thread safety*: any number of threads. The mutex is never held across a wait, and only splits
//! and collections take it.

use super::chunks::ChunkAllocator;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_page::NodeCarver;

/// The allocator of the tree's nodes.
#[derive(Debug)]
pub struct NodePool {
    chunks: Arc<ChunkAllocator>,
    chunk_bytes: u64,
    inner: Mutex<NodePoolInner>,
}

#[derive(Debug)]
struct NodePoolInner {
    carver: NodeCarver,
    in_use: u64,
}

impl NodePool {
    /// Creates a pool of nodes of `page_bytes` bytes, which allocates chunks of `chunk_bytes` as
    /// needed.
    pub fn new(chunks: Arc<ChunkAllocator>, page_bytes: usize, chunk_bytes: u64) -> Self {
        let inner = NodePoolInner { carver: NodeCarver::new(page_bytes), in_use: 0 };
        Self { chunks, chunk_bytes, inner: Mutex::new(inner) }
    }

    /// Allocates `count` nodes, or none at all.
    pub fn take(&self, count: usize) -> Option<Vec<GlobalAddr>> {
        let mut inner = lock(&self.inner);
        let mut nodes = Vec::with_capacity(count);
        while nodes.len() < count {
            if let Some(node) = inner.carver.take() {
                nodes.push(node);
                continue;
            }
            let Some((at, bytes)) = self.chunks.allocate(self.chunk_bytes) else {
                nodes.into_iter().for_each(|node| inner.carver.give_back(node));
                return None;
            };
            inner.carver.add_chunk(at, bytes);
        }
        inner.in_use += count as u64;
        Some(nodes)
    }

    /// Frees nodes that operations can no longer reach.
    pub fn give_back(&self, nodes: impl IntoIterator<Item = GlobalAddr>) {
        let mut inner = lock(&self.inner);
        for node in nodes {
            inner.carver.give_back(node);
            inner.in_use -= 1;
        }
    }

    /// The number of nodes in use, and the number of freed nodes.
    pub fn usage(&self) -> (u64, u64) {
        let inner = lock(&self.inner);
        (inner.in_use, inner.carver.free_nodes() as u64)
    }

    /// The nodes of its chunks that are not in use: freed, or never allocated.
    pub fn unused(&self) -> Vec<GlobalAddr> {
        lock(&self.inner).carver.unused().collect()
    }
}
