//! Memory for the nodes and leaves of a radix tree, in two steps as for pages: chunks by RPC, and
//! from these, nodes and leaves without the network.
//!
//! *Invariants*
//! - radix.M1. A node's slots are free when it is taken: chunks are memory that was never used
//!   (`AllocateUnused`), not of a lease that has ended, and what was written to a node that comes
//!   back is known.
//! - radix.M2. Nothing comes back that another client may be able to reach, or that a WRITE in
//!   flight may still change.
//!
//! *Thread safety*: belongs to one endpoint's thread; tasks of that thread share it.

use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_page::{LEAF_SPACE, Layout, LeafMemory, NODE_SPACE};
use farleaf_pool::remote::{ChunkClient, ChunkUse, RemoteError};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Memory for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeMemory {
    /// Where the node begins.
    pub(super) at: GlobalAddr,
    /// How many words were ever written there. The others are zero.
    pub(super) used_words: usize,
}

/// The memory of one endpoint on one memory server.
#[derive(Debug, Default)]
struct RadixMemory {
    /// The rest of the chunk.
    rest: Option<(GlobalAddr, u64)>,
    /// Leaves by the bytes that they take.
    leaves: BTreeMap<u64, Vec<GlobalAddr>>,
    nodes: Vec<NodeMemory>,
}

impl RadixMemory {
    fn carve(&mut self, bytes: u64) -> Option<GlobalAddr> {
        let (at, left) = self.rest.filter(|(_, left)| *left >= bytes)?;
        self.rest = Some((at.plus(bytes), left - bytes));
        Some(at)
    }

    fn leaf(&mut self, bytes: u64) -> Option<GlobalAddr> {
        let free = self.leaves.get_mut(&bytes).and_then(Vec::pop);
        free.or_else(|| self.carve(bytes))
    }

    fn add_leaf(&mut self, bytes: u64, at: GlobalAddr) {
        self.leaves.entry(bytes).or_default().push(at);
    }

    fn node(&mut self) -> Option<NodeMemory> {
        let room = |at| NodeMemory { at, used_words: 0 };
        self.nodes.pop().or_else(|| self.carve(NODE_SPACE).map(room))
    }

    /// Continues with another chunk. The rest of the current one is for the smallest leaves.
    fn add_chunk(&mut self, at: GlobalAddr, bytes: u64) {
        while let Some(leaf) = self.carve(LEAF_SPACE) {
            self.add_leaf(LEAF_SPACE, leaf);
        }
        self.rest = Some((at, bytes));
    }
}

/// Allocates nodes and leaves on every memory server in turn.
#[derive(Debug)]
pub(super) struct RadixSpace<F: Fabric, L: Layout> {
    chunks: ChunkClient<F, L>,
    chunk_bytes: u64,
    rooms: Vec<RefCell<RadixMemory>>,
    next_server: Cell<u16>,
}

impl<F: Fabric, L: Layout> RadixSpace<F, L> {
    /// Without chunks; requests chunks of `chunk_bytes`.
    pub(super) fn new(fabric: F, chunk_bytes: u64) -> Self {
        let servers = fabric.memory_servers();
        // Start at a random server, to spread the first nodes of many endpoints.
        let first = (fabric.random() % u64::from(servers.max(1))) as u16;
        Self {
            rooms: (0..servers).map(|_| RefCell::default()).collect(),
            next_server: Cell::new(first),
            chunks: ChunkClient::new(fabric),
            chunk_bytes: chunk_bytes.max(NODE_SPACE),
        }
    }

    /// Memory for a leaf of a size, on the next server in turn that has room.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if none has.
    pub(super) async fn leaf(&self, size: u8) -> Result<LeafMemory, RemoteError> {
        let bytes = LeafMemory::space(size);
        let at = self.take(bytes, |room| room.leaf(bytes)).await?;
        Ok(LeafMemory { at, size })
    }

    /// Memory for one of the smallest leaves on `server`.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if it has no room.
    pub(super) async fn leaf_on(&self, server: ServerId) -> Result<GlobalAddr, RemoteError> {
        self.take_on(server, LEAF_SPACE, &|room: &mut RadixMemory| room.leaf(LEAF_SPACE)).await
    }

    /// Memory for a node, on the next server in turn that has room.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if none has.
    pub(super) async fn node(&self) -> Result<NodeMemory, RemoteError> {
        self.take(NODE_SPACE, RadixMemory::node).await
    }

    async fn take<T>(
        &self,
        bytes: u64,
        from: impl Fn(&mut RadixMemory) -> Option<T>,
    ) -> Result<T, RemoteError> {
        let servers = self.rooms.len() as u16;
        let mut outcome = Err(RemoteError::OutOfMemory { server: ServerId::new(0) });
        for _ in 0..servers {
            let server = ServerId::new(self.next_server.get() % servers);
            self.next_server.set((server.number() + 1) % servers);
            outcome = self.take_on(server, bytes, &from).await;
            if !matches!(outcome, Err(RemoteError::OutOfMemory { .. })) {
                break;
            }
        }
        outcome
    }

    async fn take_on<T>(
        &self,
        server: ServerId,
        needed: u64,
        from: &impl Fn(&mut RadixMemory) -> Option<T>,
    ) -> Result<T, RemoteError> {
        let room = &self.rooms[server.index()];
        loop {
            if let Some(taken) = from(&mut room.borrow_mut()) {
                return Ok(taken);
            }
            // A chunk of at least what is needed, so that this ends: only the chunk of a request
            // whose outcome was unknown can be smaller, and there is a limited number of these.
            let wanted = self.chunk_bytes.max(needed);
            let chunk = self.chunks.allocate_for_all(server, wanted, ChunkUse::Unused);
            let Some((at, bytes)) = chunk.await? else { continue };
            room.borrow_mut().add_chunk(at, bytes);
        }
    }

    /// Takes a leaf's memory back (radix.M2).
    pub(super) fn give_back_leaf(&self, leaf: LeafMemory) {
        let mut room = self.rooms[leaf.at.server().index()].borrow_mut();
        room.add_leaf(LeafMemory::space(leaf.size), leaf.at);
    }

    /// Takes a node's memory back (radix.M2).
    pub(super) fn give_back_node(&self, room: NodeMemory) {
        self.rooms[room.at.server().index()].borrow_mut().nodes.push(room);
    }
}
