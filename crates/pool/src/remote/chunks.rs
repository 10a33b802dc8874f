//! Requests for chunks, the first step of the two-step allocation.
//!
//! *Thread safety*: belongs to one endpoint's thread; tasks of that thread share it.

use super::{RemoteError, RpcClient};
use crate::wire::{DirectoryRequest, PoolRequest, Reply, Request};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_page::{Layout, NodeCarver};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Maximum number of listed chunks on one memory server, rounded up to a whole reply.
const MAX_CHUNKS: u32 = 1 << 22;

/// How long to wait before the first look whether another task's request has ended.
const FIRST_WAIT_NS: u64 = 20_000;
/// The longest wait between two looks.
const MAX_WAIT_NS: u64 = 1_000_000;
/// Looks until a task gives up: ten seconds, longer than any request lasts.
const MAX_LOOKS: u32 = 10_000;

/// Checks a chunk that `server` lists: it must consist of whole nodes, at `from` or behind it.
/// Returns the offset of its end.
fn end_of_listed(server: ServerId, from: u64, (at, bytes): (GlobalAddr, u64)) -> Option<u64> {
    let end = at.offset().checked_add(bytes)?;
    let is_sensible = at == GlobalAddr::new(server, at.offset())
        && at.offset() >= from
        && bytes > 0
        && end < GlobalAddr::OFFSET_LIMIT
        && [at.offset(), bytes].iter().all(|part| part.is_multiple_of(NodeCarver::NODE_ALIGN));
    is_sensible.then_some(end)
}

/// What a chunk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkUse {
    /// Nodes. The chunk can be smaller, such as the server's last chunk, or a node that was given
    /// back.
    Nodes,
    /// Anything else. No node was ever there.
    Whole {
        /// The least size.
        least: u64,
    },
    /// Anything, in memory that was never used: all words are zero.
    Unused,
    /// As [`ChunkUse::Whole`] with all bytes, in the lease of an owner, with a term in
    /// milliseconds.
    Lease {
        /// The owner of the lease.
        owner: u64,
        /// Its term.
        term_ms: u32,
    },
    /// The tables of a shard.
    Shard {
        /// The shard and its epoch.
        shard: (u64, u64),
        /// The least size.
        least: u64,
    },
}

/// Requests chunks from every memory server, for one endpoint.
#[derive(Debug)]
pub struct ChunkClient<F: Fabric, L: Layout> {
    client: RpcClient<F, L>,
    tokens: ChunkTokens,
    /// By memory server.
    shared: Vec<SharedRequest>,
}

/// Requests for chunks that all tasks of an endpoint may use: one at a time.
#[derive(Debug, Default)]
struct SharedRequest {
    is_under_way: Cell<bool>,
    /// Number of requests that have ended.
    ended: Cell<u64>,
    /// Why the last one failed, unless there was no memory.
    failure: RefCell<Option<RemoteError>>,
}

/// A request under way. It ends when this is dropped.
struct ChunkRequest<'a>(&'a SharedRequest);

impl SharedRequest {
    fn begin(&self) -> ChunkRequest<'_> {
        self.is_under_way.set(true);
        self.failure.replace(None);
        ChunkRequest(self)
    }
}

impl Drop for ChunkRequest<'_> {
    fn drop(&mut self) {
        self.0.is_under_way.set(false);
        self.0.ended.set(self.0.ended.get() + 1);
    }
}

impl<F: Fabric, L: Layout> ChunkClient<F, L> {
    /// A client of this endpoint.
    pub fn new(fabric: F) -> Self {
        let tokens = ChunkTokens::default();
        tokens.next_token.set(Some(fabric.unique()));
        let shared = (0..fabric.memory_servers()).map(|_| SharedRequest::default()).collect();
        Self { client: RpcClient::new(fabric), tokens, shared }
    }

    /// As [`ChunkClient::allocate`], for a chunk that all tasks of the endpoint may use. While
    /// another task has such a request under way, waits for its end and returns `None`: look at
    /// what there is again. If each asked for a chunk of its own, 64 tasks would take 64, which
    /// fills a small pool.
    ///
    /// # Errors
    /// As [`ChunkClient::allocate`], also if the other task's request has failed for another reason
    /// than memory: if a memory server does not answer, the tasks must not find out one after the
    /// other.
    ///
    /// # Panics
    /// If there is no such server.
    pub async fn allocate_for_all(
        &self,
        server: ServerId,
        bytes: u64,
        purpose: ChunkUse,
    ) -> Result<Option<(GlobalAddr, u64)>, RemoteError> {
        let shared = &self.shared[server.index()];
        if shared.is_under_way.get() {
            let (seen, mut wait_ns) = (shared.ended.get(), FIRST_WAIT_NS);
            for _ in 0..MAX_LOOKS {
                self.rpc().fabric().sleep(wait_ns).await;
                if shared.ended.get() != seen {
                    return shared.failure.borrow().clone().map_or(Ok(None), Err);
                }
                wait_ns = (wait_ns * 2).min(MAX_WAIT_NS);
            }
            return Err(RemoteError::Contended { retries: MAX_LOOKS });
        }
        let _under_way = shared.begin();
        let outcome = self.allocate(server, bytes, purpose).await;
        let is_failure = |error: &&RemoteError| !matches!(error, RemoteError::OutOfMemory { .. });
        shared.failure.replace(outcome.as_ref().err().filter(is_failure).cloned());
        outcome.map(Some)
    }

    /// RPCs over the same endpoint.
    pub fn rpc(&self) -> &RpcClient<F, L> {
        &self.client
    }

    /// Allocates a chunk of `bytes` bytes on `server`, which exists. A request that is repeated, or
    /// arrives late, gets the same chunk.
    ///
    /// # Errors
    /// [`RemoteError`]; after an unknown outcome, the next request asks for the same chunk.
    pub async fn allocate(
        &self,
        server: ServerId,
        bytes: u64,
        purpose: ChunkUse,
    ) -> Result<(GlobalAddr, u64), RemoteError> {
        self.tokens.allocate(&self.client, server, bytes, purpose).await
    }

    /// The chunks that `server` lists in the replies to `ask`, which gets the number of the first
    /// one wanted. Those beyond the first 2^22 are left out.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn listed(
        &self,
        server: ServerId,
        ask: impl Fn(u32) -> Request<L>,
    ) -> Result<Vec<(GlobalAddr, u64)>, RemoteError> {
        let bad_reply = RemoteError::BadReply { server };
        let (mut chunks, mut behind) = (Vec::new(), NodeCarver::NODE_ALIGN);
        let mut from = 0;
        while from < MAX_CHUNKS {
            let told = self.client.ask_idempotent(server, &ask(from)).await?;
            let Reply::Chunks { more, chunks: listed } = told else { return Err(bad_reply) };
            for chunk in &listed {
                behind = end_of_listed(server, behind, *chunk).ok_or(bad_reply.clone())?;
            }
            from += listed.len() as u32;
            let is_none = listed.is_empty();
            chunks.extend(listed);
            match more {
                true if is_none => return Err(bad_reply),
                true => {}
                false => break,
            }
        }
        Ok(chunks)
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
        purpose: ChunkUse,
    ) -> Result<(GlobalAddr, u64), RemoteError> {
        let (token, is_first) = self.token(rpc.fabric(), server);
        // A request that is dropped on the way may have allocated a chunk, too.
        let mut doubt = UnresolvedToken { tokens: &self.in_doubt, server, token: Some(token) };
        let (request, least): (Request<L>, _) = match purpose {
            ChunkUse::Nodes => (PoolRequest::AllocateChunk { bytes, token }.into(), 0),
            ChunkUse::Whole { least } => {
                (PoolRequest::AllocateWhole { bytes, least, token }.into(), least)
            }
            ChunkUse::Unused => (PoolRequest::AllocateUnused { bytes, token }.into(), bytes),
            ChunkUse::Lease { owner, term_ms } => {
                (PoolRequest::Lease { owner, term_ms, bytes, token }.into(), bytes)
            }
            ChunkUse::Shard { shard: (shard, epoch), least } => {
                let request = DirectoryRequest::Allocate { shard, epoch, bytes, least, token };
                (request.into(), least)
            }
        };
        // Retries are safe: all requests with the same token get the same chunk.
        let answer = rpc.ask_idempotent(server, &request).await;
        if !matches!(answer, Err(RemoteError::Indeterminate(_))) {
            doubt.token = None;
        }
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

    /// Forgets the requests of unknown outcome to `server`: their chunks are free there, or will
    /// be.
    pub(super) fn forget(&self, server: ServerId) {
        self.in_doubt.borrow_mut().remove(&server.number());
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
struct UnresolvedToken<'c> {
    tokens: &'c RefCell<BTreeMap<u16, Vec<u64>>>,
    server: ServerId,
    token: Option<u64>,
}

impl Drop for UnresolvedToken<'_> {
    fn drop(&mut self) {
        let mut tokens = self.tokens.borrow_mut();
        if let Some(token) = self.token {
            tokens.entry(self.server.number()).or_default().push(token);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_chunks_can_contain_anything() {
        let server = ServerId::new(2);
        let end = |from, at, bytes| end_of_listed(server, from, (at, bytes));
        let at = |offset| GlobalAddr::new(server, offset);
        assert_eq!(end(1024, at(1024), 4096), Some(5120));
        assert_eq!(end(1024, at(2048), 1024), Some(3072));
        assert_eq!(end(2048, at(1024), 4096), None, "it overlaps the one before it");
        assert_eq!(end(1024, GlobalAddr::NULL, 4096), None);
        assert_eq!(end(1024, GlobalAddr::new(ServerId::new(1), 1024), 4096), None);
        assert_eq!(end(1024, GlobalAddr::from_bits(at(1024).to_bits() | 1 << 63), 4096), None);
        assert_eq!((end(1024, at(1024), 0), end(1024, at(1024), 1000)), (None, None));
        assert_eq!(end(1024, at(1536), 1024), None, "it begins within a node");
        let last = GlobalAddr::OFFSET_LIMIT - 1024;
        assert_eq!(end(1024, at(1024), last), None, "no address is behind it");
        assert_eq!(end(1024, at(1024), last - 1024), Some(last));
        assert_eq!(end(1024, at(last), u64::MAX - 1023), None);
    }
}
