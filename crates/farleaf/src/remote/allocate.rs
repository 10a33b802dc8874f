//! Allocation on the compute side: chunks by RPC, nodes carved from them without the network.
//!
//! *Invariants*: A1. a node is handed out to one holder at a time. A2. a freed node goes back to the free
//! list of the server that it lives on, and is the first to be taken there again. A3. the metadata never
//! leaves this compute server's memory.
//!
//! *Thread safety*: belongs to one endpoint's thread; tasks of that thread share it.

use super::{RemoteError, RpcClient};
use crate::page::{Layout, NodeCarver};
use crate::wire::{GIVE_BACK_NODES, PoolRequest, Reply, Request};
use farleaf_fabric::{Fabric, FabricError, GlobalAddr, ServerId};
use std::cell::{Cell, RefCell};

/// The nodes that one endpoint can hand out, on every memory server.
#[derive(Debug)]
pub struct NodeAllocator<F: Fabric, L: Layout> {
    client: RpcClient<F, L>,
    chunk_bytes: u64,
    carvers: Vec<RefCell<NodeCarver>>,
    next_server: Cell<u16>,
    /// Nodes that go anywhere go to the first so many.
    used_servers: Cell<u16>,
}

impl<F: Fabric, L: Layout> NodeAllocator<F, L> {
    /// An allocator without any chunk yet, which asks for chunks of `chunk_bytes`.
    pub fn new(fabric: F, chunk_bytes: u64) -> Self {
        let servers = fabric.memory_servers();
        let carvers = (0..servers).map(|_| RefCell::new(NodeCarver::new(L::PAGE_WORDS * 8)));
        Self {
            carvers: carvers.collect(),
            // Endpoints start at different servers, so that their first nodes do not pile up on one.
            next_server: Cell::new((fabric.random() % u64::from(servers.max(1))) as u16),
            used_servers: Cell::new(servers.max(1)),
            client: RpcClient::new(fabric),
            chunk_bytes,
        }
    }

    /// A node on `server`; one RPC if there is neither a freed node nor room in the chunk.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if the server has no chunk left.
    pub async fn take(&self, server: ServerId) -> Result<GlobalAddr, RemoteError> {
        let unknown = FabricError::NoSuchServer(server);
        let carver = self.carvers.get(server.index()).ok_or(RemoteError::Fabric(unknown))?;
        loop {
            if let Some(node) = carver.borrow_mut().take() {
                return Ok(node);
            }
            // Asked again after an unknown outcome, this wastes a chunk and nothing else.
            let request = Request::from(PoolRequest::AllocateChunk { bytes: self.chunk_bytes });
            let Reply::Chunk { at, bytes } = self.client.ask_harmless(server, &request).await?
            else {
                return Err(RemoteError::BadReply { server });
            };
            let node_bytes = carver.borrow().node_bytes();
            let sensible = at.server() == server
                && at.offset().is_multiple_of(NodeCarver::NODE_ALIGN)
                && at.offset() > 0;
            if !sensible {
                return Err(RemoteError::BadReply { server });
            }
            if bytes < node_bytes {
                return Err(RemoteError::OutOfMemory { server });
            }
            let mut carver = carver.borrow_mut();
            if carver.wants_chunk() {
                carver.add_chunk(at, bytes);
            } else {
                // Another task of this thread got a chunk meanwhile: keep this one as free nodes.
                let nodes = bytes / node_bytes;
                (0..nodes).for_each(|number| carver.give_back(at.plus(number * node_bytes)));
            }
        }
    }

    /// From now on nodes that go anywhere go to the first `servers` memory servers; one at least.
    pub fn use_servers(&self, servers: u16) {
        self.used_servers.set(servers.clamp(1, self.carvers.len().max(1) as u16));
    }

    /// How many memory servers nodes go to that go anywhere.
    pub fn used_servers(&self) -> u16 {
        self.used_servers.get()
    }

    /// A node on the next server in turn that has room.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if no server has any.
    pub async fn take_anywhere(&self) -> Result<GlobalAddr, RemoteError> {
        let servers = self.used_servers.get();
        let mut outcome = Err(RemoteError::OutOfMemory { server: ServerId::new(0) });
        for _ in 0..servers {
            let server = ServerId::new(self.next_server.get() % servers);
            self.next_server.set((server.number() + 1) % servers);
            outcome = self.take(server).await;
            if !matches!(outcome, Err(RemoteError::OutOfMemory { .. })) {
                break;
            }
        }
        outcome
    }

    /// Takes back a node that nobody can reach any more, from whichever endpoint.
    ///
    /// # Panics
    /// If the node is on a server that does not exist.
    pub fn give_back(&self, node: GlobalAddr) {
        self.carvers[node.server().index()].borrow_mut().give_back(node);
    }

    /// Gives free nodes on `server` beyond `keep` to that server, for others to take.
    ///
    /// # Errors
    /// [`RemoteError`] if it does not take them. If it may have, they are lost: a node in two lists would be
    /// worse (A1).
    pub async fn share(&self, server: ServerId, keep: usize) -> Result<(), RemoteError> {
        loop {
            let nodes = {
                let mut carver = self.carvers[server.index()].borrow_mut();
                let surplus = carver.free_nodes().saturating_sub(keep).min(GIVE_BACK_NODES);
                (0..surplus).filter_map(|_| carver.take()).collect::<Vec<_>>()
            };
            if nodes.is_empty() {
                return Ok(());
            }
            let request = Request::from(PoolRequest::GiveBack { nodes });
            match self.client.expect_done(server, &request).await {
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

    /// Nodes that can be taken on `server` without an RPC.
    pub fn available(&self, server: ServerId) -> usize {
        self.carvers.get(server.index()).map_or(0, |carver| carver.borrow().available())
    }
}
