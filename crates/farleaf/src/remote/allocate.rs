//! Allocation on the compute side: chunks by RPC, nodes carved from them without the network.
//!
//! *Invariants*: A1. a node is handed out to one holder at a time. A2. a freed node goes back to the free
//! list of the server that it lives on, and is the first to be taken there again. A3. the metadata never
//! leaves this compute server's memory. A4. a request for a chunk that is sent again, or arrives late, gets
//! the same chunk: an outage does not empty the pool.
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
    /// Tokens of requests for chunks whose answers got lost: the next request asks for the same chunk.
    in_doubt: Vec<RefCell<Vec<u64>>>,
    /// The next token.
    next_token: Cell<u64>,
    next_server: Cell<u16>,
    /// Nodes that go anywhere go to the first so many.
    used_servers: Cell<u16>,
}

impl<F: Fabric, L: Layout> NodeAllocator<F, L> {
    /// An allocator without any chunk yet, which asks for chunks of `chunk_bytes`.
    pub fn new(fabric: F, chunk_bytes: u64) -> Self {
        let servers = fabric.memory_servers();
        let carvers = (0..servers).map(|_| RefCell::new(NodeCarver::new(L::PAGE_WORDS * 8)));
        let random = fabric.random();
        Self {
            carvers: carvers.collect(),
            in_doubt: (0..servers).map(|_| RefCell::default()).collect(),
            // Random numbers of 64 bits are far enough apart for all tokens of an endpoint.
            next_token: Cell::new(random),
            // Endpoints start at different servers, so that their first nodes do not pile up on one.
            next_server: Cell::new((random % u64::from(servers.max(1))) as u16),
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
            let token = self.token(server);
            let request = PoolRequest::AllocateChunk { bytes: self.chunk_bytes, token }.into();
            // It can be sent again: the token makes it one chunk.
            let (at, bytes) = match self.client.ask_harmless(server, &request).await {
                Ok(Reply::Chunk { at, bytes }) => (at, bytes),
                Ok(_) => return Err(RemoteError::BadReply { server }),
                Err(error) => {
                    if let RemoteError::Indeterminate(_) = error {
                        self.in_doubt[server.index()].borrow_mut().push(token);
                    }
                    return Err(error);
                }
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

    /// The token of the next request for a chunk on `server`.
    fn token(&self, server: ServerId) -> u64 {
        self.in_doubt[server.index()].borrow_mut().pop().unwrap_or_else(|| {
            let token = self.next_token.get();
            self.next_token.set(token.wrapping_add(1));
            token
        })
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
