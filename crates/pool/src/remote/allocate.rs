//! Allocation on the compute side: chunks by RPC, nodes carved from them locally. The allocator
//! holds all free nodes of one endpoint, including those still in their grace period. Only a DEX
//! server has another list, because all threads of a compute server share it.
//!
//! *Invariants*
//! - A1. A node belongs to at most one holder at a time.
//! - A2. A freed node goes back to the free list of its server, and is the next to be allocated
//!   there.
//! - A3. The metadata never leaves this compute server's memory.
//! - A4. A request for a chunk that is repeated, or arrives late, gets the same chunk
//!   (`chunks.rs`), so an outage does not drain the pool.
//! - A5. A retired node is handed out only after its grace period.
//!
//! *Thread safety*: belongs to one endpoint's thread; tasks of that thread share it.

use super::RemoteError;
use super::chunks::{ChunkClient, ChunkUse};
use crate::wire::{GIVE_BACK_NODES, PoolRequest, Request};
use farleaf_fabric::{Fabric, FabricError, GlobalAddr, ServerId};
use farleaf_page::{Layout, NodeCarver};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// The nodes that one endpoint can allocate, on every memory server.
#[derive(Debug)]
pub struct NodeAllocator<F: Fabric, L: Layout> {
    chunks: ChunkClient<F, L>,
    chunk_bytes: u64,
    carvers: Vec<RefCell<NodeCarver>>,
    /// Retired nodes, each with the time from which it can be reused.
    resting: RefCell<VecDeque<(u64, GlobalAddr)>>,
    next_server: Cell<u16>,
    /// [`NodeAllocator::take_anywhere`] uses only this many servers, counted from the first.
    used_servers: Cell<u16>,
}

impl<F: Fabric, L: Layout> NodeAllocator<F, L> {
    /// Creates an allocator without chunks, which requests chunks of `chunk_bytes`.
    pub fn new(fabric: F, chunk_bytes: u64) -> Self {
        let servers = fabric.memory_servers();
        let carvers = (0..servers).map(|_| RefCell::new(NodeCarver::new(L::page_words() * 8)));
        let random = fabric.random();
        Self {
            carvers: carvers.collect(),
            resting: RefCell::default(),
            // Start at a random server, to spread the first nodes of many endpoints.
            next_server: Cell::new((random % u64::from(servers.max(1))) as u16),
            used_servers: Cell::new(servers.max(1)),
            chunks: ChunkClient::new(fabric),
            chunk_bytes,
        }
    }

    /// Allocates a node on `server`. Takes one RPC if there is no freed node and no room in the
    /// chunk. If the server is full, waits for the first retired node of this endpoint.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if there is no such node, or if it is on another server.
    pub async fn take(&self, server: ServerId) -> Result<GlobalAddr, RemoteError> {
        self.wake_rested();
        match self.take_at_once(server).await {
            Err(error @ RemoteError::OutOfMemory { .. }) => self.wait_for_rested(error).await?,
            outcome => return outcome,
        }
        self.take_at_once(server).await
    }

    async fn take_at_once(&self, server: ServerId) -> Result<GlobalAddr, RemoteError> {
        let unknown = FabricError::NoSuchServer(server);
        let carver = self.carvers.get(server.index()).ok_or(RemoteError::Fabric(unknown))?;
        loop {
            if let Some(node) = carver.borrow_mut().take() {
                return Ok(node);
            }
            let chunk = self.chunks.allocate_for_all(server, self.chunk_bytes, ChunkUse::Nodes);
            let Some((at, bytes)) = chunk.await? else { continue };
            let mut carver = carver.borrow_mut();
            if bytes < carver.node_bytes() {
                return Err(RemoteError::OutOfMemory { server });
            }
            carver.add_chunk(at, bytes);
        }
    }

    /// Restricts [`NodeAllocator::take_anywhere`] to the first `servers` memory servers; at least
    /// one.
    pub fn use_servers(&self, servers: u16) {
        self.used_servers.set(servers.clamp(1, self.carvers.len().max(1) as u16));
    }

    /// The number of memory servers that [`NodeAllocator::take_anywhere`] uses.
    pub fn used_servers(&self) -> u16 {
        self.used_servers.get()
    }

    /// Allocates a node on the next server in turn that has room. If none has, waits for the first
    /// retired node of this endpoint.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if there is no such node.
    pub async fn take_anywhere(&self) -> Result<GlobalAddr, RemoteError> {
        self.wake_rested();
        match self.take_anywhere_at_once().await {
            Err(error @ RemoteError::OutOfMemory { .. }) => self.wait_for_rested(error).await?,
            outcome => return outcome,
        }
        self.take_anywhere_at_once().await
    }

    async fn take_anywhere_at_once(&self) -> Result<GlobalAddr, RemoteError> {
        let servers = self.used_servers.get();
        let mut outcome = Err(RemoteError::OutOfMemory { server: ServerId::new(0) });
        for _ in 0..servers {
            let server = ServerId::new(self.next_server.get() % servers);
            self.next_server.set((server.number() + 1) % servers);
            outcome = self.take_at_once(server).await;
            if !matches!(outcome, Err(RemoteError::OutOfMemory { .. })) {
                break;
            }
        }
        outcome
    }

    /// Frees a node that clients can no longer reach. Any endpoint may have allocated it.
    ///
    /// # Panics
    /// If no such server exists.
    pub fn give_back(&self, node: GlobalAddr) {
        self.carvers[node.server().index()].borrow_mut().give_back(node);
    }

    /// Frees a node that clients may still read. It can be allocated again after `rest_ns`
    /// nanoseconds, the same for all nodes.
    pub fn retire(&self, node: GlobalAddr, rest_ns: u64) {
        self.resting.borrow_mut().push_back((self.now_ns() + rest_ns, node));
    }

    /// The number of retired nodes still in their grace period.
    pub fn resting(&self) -> usize {
        self.resting.borrow().len()
    }

    fn wake_rested(&self) {
        let mut resting = self.resting.borrow_mut();
        while let Some(&(due_ns, node)) = resting.front()
            && due_ns <= self.now_ns()
        {
            resting.pop_front();
            self.give_back(node);
        }
    }

    /// Out of memory: waits until the first of this endpoint's retired nodes can be reused.
    async fn wait_for_rested(&self, error: RemoteError) -> Result<(), RemoteError> {
        let first = self.resting.borrow().front().map(|(due_ns, _)| *due_ns);
        let due_ns = first.ok_or(error)?;
        self.chunks.rpc().fabric().sleep(due_ns.saturating_sub(self.now_ns())).await;
        self.wake_rested();
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.chunks.rpc().fabric().now_ns()
    }

    /// Returns as many nodes on `server` to that server as `surplus` says, for other clients.
    async fn share(
        &self,
        server: ServerId,
        surplus: &impl Fn(&NodeCarver) -> usize,
    ) -> Result<(), RemoteError> {
        loop {
            let nodes = {
                let mut carver = self.carvers[server.index()].borrow_mut();
                let surplus = surplus(&carver).min(GIVE_BACK_NODES);
                (0..surplus).filter_map(|_| carver.take()).collect::<Vec<_>>()
            };
            if nodes.is_empty() {
                return Ok(());
            }
            let request = Request::from(PoolRequest::GiveBack { nodes });
            match self.chunks.rpc().expect_done(server, &request).await {
                Ok(()) => {}
                Err(error @ RemoteError::Indeterminate(_)) => return Err(error),
                Err(error) => {
                    let Request::Pool(PoolRequest::GiveBack { nodes }) = request else {
                        return Err(error);
                    };
                    nodes.into_iter().for_each(|node| self.give_back(node));
                    return Err(error);
                }
            }
        }
    }

    /// Returns free nodes beyond `keep` on each server, including those whose grace period is over.
    ///
    /// # Errors
    /// [`RemoteError`] of the first server that does not accept them. If the outcome is unknown,
    /// the nodes are lost, because a node in two lists would be worse (A1).
    pub async fn share_all(&self, keep: usize) -> Result<(), RemoteError> {
        self.share_each(|carver| carver.free_nodes().saturating_sub(keep)).await
    }

    /// As [`NodeAllocator::share_all`], also what is left of chunks.
    ///
    /// # Errors
    /// As [`NodeAllocator::share_all`].
    pub async fn share_unused(&self, keep: usize) -> Result<(), RemoteError> {
        self.share_each(|carver| carver.available().saturating_sub(keep)).await
    }

    async fn share_each(&self, surplus: impl Fn(&NodeCarver) -> usize) -> Result<(), RemoteError> {
        self.wake_rested();
        for number in 0..self.chunks.rpc().fabric().memory_servers() {
            self.share(ServerId::new(number), &surplus).await?;
        }
        Ok(())
    }

    /// Whether more than `most` freed nodes of one server can be allocated again.
    pub fn has_free(&self, most: usize) -> bool {
        self.wake_rested();
        self.carvers.iter().any(|carver| carver.borrow().free_nodes() > most)
    }

    /// The number of nodes that can be allocated on `server` without an RPC.
    pub fn available(&self, server: ServerId) -> usize {
        self.wake_rested();
        self.carvers.get(server.index()).map_or(0, |carver| carver.borrow().available())
    }
}
