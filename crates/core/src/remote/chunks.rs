//! Requests for chunks, the first step of the two-step allocation.
//!
//! *Thread safety*: belongs to one endpoint's thread; tasks of that thread share it.

use super::{RemoteError, RpcClient};
use crate::page::{Layout, NodeCarver};
use crate::wire::{PoolRequest, Reply};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// What a chunk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// For nodes. The chunk can be smaller than asked for, such as the server's last chunk, or a
    /// node that was given back.
    Nodes,
    /// For anything else. No node was ever there, and it has this many bytes at least, except for a
    /// chunk of a request of unknown outcome that wanted less.
    Whole(u64),
    /// The same with all bytes, in the lease of an owner, with a term in milliseconds.
    Leased(u64, u32),
}

/// Requests chunks from every memory server, for one endpoint.
#[derive(Debug)]
pub(super) struct ChunkClient<F: Fabric, L: Layout> {
    client: RpcClient<F, L>,
    tokens: ChunkTokens,
}

impl<F: Fabric, L: Layout> ChunkClient<F, L> {
    /// A client of this endpoint.
    pub(super) fn new(fabric: F) -> Self {
        let tokens = ChunkTokens::default();
        tokens.next_token.set(Some(fabric.unique()));
        Self { client: RpcClient::new(fabric), tokens }
    }

    /// RPCs over the same endpoint.
    pub(super) fn rpc(&self) -> &RpcClient<F, L> {
        &self.client
    }

    /// As [`ChunkTokens::allocate`].
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(super) async fn allocate(
        &self,
        server: ServerId,
        bytes: u64,
        purpose: Purpose,
    ) -> Result<(GlobalAddr, u64), RemoteError> {
        self.tokens.allocate(&self.client, server, bytes, purpose).await
    }
}

/// The tokens of the requests of one endpoint.
#[derive(Debug, Default)]
pub(super) struct ChunkTokens {
    /// By server: tokens of requests of unknown outcome, which the next requests reuse.
    in_doubt: RefCell<BTreeMap<u16, Vec<u64>>>,
    /// The next unused token.
    next_token: Cell<Option<u64>>,
}

impl ChunkTokens {
    /// Allocates a chunk of `bytes` bytes on `server`, which exists. A request that is repeated, or
    /// arrives late, gets the same chunk.
    ///
    /// # Errors
    /// [`RemoteError`]; after an unknown outcome, the next request asks for the same chunk.
    pub(super) async fn allocate<F: Fabric, L: Layout>(
        &self,
        rpc: &RpcClient<F, L>,
        server: ServerId,
        bytes: u64,
        purpose: Purpose,
    ) -> Result<(GlobalAddr, u64), RemoteError> {
        let (token, is_first) = self.token(rpc.fabric(), server);
        // A request that is dropped on the way may have allocated a chunk, too.
        let mut doubt = TokenInDoubt { tokens: &self.in_doubt, server, token: Some(token) };
        let request = match purpose {
            Purpose::Nodes => PoolRequest::AllocateChunk { bytes, token },
            Purpose::Whole(least) => PoolRequest::AllocateWhole { bytes, least, token },
            Purpose::Leased(owner, term_ms) => PoolRequest::Lease { owner, term_ms, bytes, token },
        };
        // Retries are safe: all requests with the same token get the same chunk.
        let answer = rpc.ask_harmless(server, &request).await;
        if !matches!(answer, Err(RemoteError::Indeterminate(_))) {
            doubt.token = None;
        }
        let least = match purpose {
            Purpose::Nodes => 0,
            Purpose::Whole(least) => least,
            Purpose::Leased(..) => bytes,
        };
        let Reply::Chunk { at, bytes } = answer? else {
            return Err(RemoteError::BadReply { server });
        };
        // An earlier request with this token may have wanted less.
        let least = if is_first { least } else { 0 };
        let sensible = at == GlobalAddr::new(server, at.offset())
            && at.offset().is_multiple_of(NodeCarver::NODE_ALIGN)
            && at.offset() > 0
            && bytes >= least
            && bytes < GlobalAddr::OFFSET_LIMIT - at.offset();
        if sensible { Ok((at, bytes)) } else { Err(RemoteError::BadReply { server }) }
    }

    /// The token for the next request to `server`, and whether this is the first one with it.
    fn token<F: Fabric>(&self, fabric: &F, server: ServerId) -> (u64, bool) {
        let known = self.in_doubt.borrow_mut().get_mut(&server.number()).and_then(Vec::pop);
        if let Some(token) = known {
            return (token, false);
        }
        // Start at a unique 64-bit number, so that the tokens of all endpoints differ, including
        // those of previous lives: a memory server still remembers the chunks allocated under them.
        let token = self.next_token.get().unwrap_or_else(|| fabric.unique());
        self.next_token.set(Some(token.wrapping_add(1)));
        (token, true)
    }
}

/// The token of a request. Unless it is taken out, the next request to the server uses it again.
struct TokenInDoubt<'c> {
    tokens: &'c RefCell<BTreeMap<u16, Vec<u64>>>,
    server: ServerId,
    token: Option<u64>,
}

impl Drop for TokenInDoubt<'_> {
    fn drop(&mut self) {
        let mut tokens = self.tokens.borrow_mut();
        if let Some(token) = self.token {
            tokens.entry(self.server.number()).or_default().push(token);
        }
    }
}
