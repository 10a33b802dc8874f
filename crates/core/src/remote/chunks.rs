//! Requests for chunks, the first step of the two-step allocation.
//!
//! *Thread safety*: belongs to one endpoint's thread; tasks of that thread share it.

use super::{RemoteError, RpcClient};
use crate::page::{Layout, NodeCarver};
use crate::wire::{PoolRequest, Reply};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use std::cell::{Cell, RefCell};

/// Requests chunks from every memory server, for one endpoint.
#[derive(Debug)]
pub(super) struct ChunkClient<F: Fabric, L: Layout> {
    client: RpcClient<F, L>,
    /// By server: tokens of requests of unknown outcome, which the next requests reuse.
    in_doubt: Vec<RefCell<Vec<u64>>>,
    /// The next unused token.
    next_token: Cell<u64>,
}

impl<F: Fabric, L: Layout> ChunkClient<F, L> {
    /// A client of this endpoint.
    pub(super) fn new(fabric: F) -> Self {
        Self {
            in_doubt: (0..fabric.memory_servers()).map(|_| RefCell::default()).collect(),
            // Start at a unique 64-bit number, so that the tokens of all endpoints differ,
            // including those of previous lives: a memory server still remembers the chunks
            // allocated under them.
            next_token: Cell::new(fabric.unique()),
            client: RpcClient::new(fabric),
        }
    }

    /// RPCs over the same endpoint.
    pub(super) fn rpc(&self) -> &RpcClient<F, L> {
        &self.client
    }

    /// Allocates a chunk of `bytes` bytes on `server`, which exists. For nodes (`least` is `None`)
    /// the chunk can be smaller, such as the server's last chunk, or a node that was given back.
    /// Otherwise no node was ever there, and it has `least` bytes at least, except for a chunk of a
    /// request of unknown outcome that wanted less. A request that is repeated, or arrives late,
    /// gets the same chunk.
    ///
    /// # Errors
    /// [`RemoteError`]; after an unknown outcome, the next request asks for the same chunk.
    pub(super) async fn allocate(
        &self,
        server: ServerId,
        bytes: u64,
        least: Option<u64>,
    ) -> Result<(GlobalAddr, u64), RemoteError> {
        let (token, is_first) = self.token(server);
        // A request that is dropped on the way may have allocated a chunk, too.
        let mut doubt = TokenInDoubt { tokens: &self.in_doubt[server.index()], token: Some(token) };
        let request = match least {
            None => PoolRequest::AllocateChunk { bytes, token },
            Some(least) => PoolRequest::AllocateWhole { bytes, least, token },
        };
        // Retries are safe: all requests with the same token get the same chunk.
        let answer = self.client.ask_harmless(server, &request).await;
        if !matches!(answer, Err(RemoteError::Indeterminate(_))) {
            doubt.token = None;
        }
        let Reply::Chunk { at, bytes } = answer? else {
            return Err(RemoteError::BadReply { server });
        };
        // An earlier request with this token may have wanted less.
        let least = if is_first { least.unwrap_or(0) } else { 0 };
        let sensible = at == GlobalAddr::new(server, at.offset())
            && at.offset().is_multiple_of(NodeCarver::NODE_ALIGN)
            && at.offset() > 0
            && bytes >= least
            && bytes < GlobalAddr::OFFSET_LIMIT - at.offset();
        if sensible { Ok((at, bytes)) } else { Err(RemoteError::BadReply { server }) }
    }

    /// The token for the next request to `server`, and whether this is the first one with it.
    fn token(&self, server: ServerId) -> (u64, bool) {
        if let Some(token) = self.in_doubt[server.index()].borrow_mut().pop() {
            return (token, false);
        }
        let token = self.next_token.get();
        self.next_token.set(token.wrapping_add(1));
        (token, true)
    }
}

/// The token of a request. Unless it is taken out, the next request to the server uses it again.
struct TokenInDoubt<'c> {
    tokens: &'c RefCell<Vec<u64>>,
    token: Option<u64>,
}

impl Drop for TokenInDoubt<'_> {
    fn drop(&mut self) {
        self.tokens.borrow_mut().extend(self.token);
    }
}
