//! The memory of a log's rings on the memory servers, and their words.
//!
//! *Thread safety*: belongs to one endpoint's thread.

use super::log::Wal;
use crate::remote::pieces::{Pieces, pieces, until_landed};
use crate::remote::{Backoff, READ_RETRIES, RemoteError, RpcClient};
use crate::wire::{MAX_RING_BYTES, MAX_RINGS, MIN_RING_BYTES, PoolRequest, Reply};
use farleaf_fabric::sync::Ordering;
use farleaf_fabric::{BUFFER_BYTES, Fabric, FabricError, GlobalAddr, ServerId};
use farleaf_page::Layout;

/// Maximum number of rings of a log, with those that have been replaced by larger ones.
const MAX_LISTED: usize = 4 * MAX_RINGS as usize;
/// Maximum number of READs at a time.
const MAX_CONCURRENT: usize = 16;

/// The memory server of a ring of a compute server.
fn server_of(compute_server: u16, ring: u16, memory_servers: u16) -> ServerId {
    let place = (u32::from(compute_server) + u32::from(ring)) % u32::from(memory_servers.max(1));
    ServerId::new(place as u16)
}

/// The rings of a compute server; that with the life's number comes first.
pub(super) async fn rings<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    compute_server: u16,
) -> Result<Vec<(GlobalAddr, u64)>, RemoteError> {
    let first = server_of(compute_server, 0, rpc.fabric().memory_servers());
    let mut all = Vec::new();
    for server in std::iter::once(first).chain(rpc.servers().filter(|other| *other != first)) {
        let bad_reply = RemoteError::BadReply { server };
        let answer = rpc.ask_idempotent(server, &PoolRequest::LogRings { compute_server }).await?;
        let Reply::Chunks { more: false, chunks } = answer else { return Err(bad_reply) };
        if !chunks.iter().all(|chunk| is_ring(server, *chunk)) {
            return Err(bad_reply);
        }
        if server == first && chunks.is_empty() {
            return Ok(Vec::new()); // no life had a log
        }
        all.extend(chunks);
        if all.len() > MAX_LISTED {
            return Err(bad_reply);
        }
    }
    Ok(all)
}

/// The memory of a ring.
pub(super) async fn ring_of<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    wal: &Wal,
    (compute_server, ring): (u16, u16),
) -> Result<(GlobalAddr, u64), RemoteError> {
    let server = server_of(compute_server, ring, rpc.fabric().memory_servers());
    let request = PoolRequest::LogRing { compute_server, ring, bytes: wal.ring_bytes() };
    match rpc.ask_idempotent(server, &request).await? {
        Reply::Chunk { at, bytes } if is_ring(server, (at, bytes)) => Ok((at, bytes)),
        _ => Err(RemoteError::BadReply { server }),
    }
}

/// Whether `server` can have a ring there.
fn is_ring(server: ServerId, (at, bytes): (GlobalAddr, u64)) -> bool {
    at == GlobalAddr::new(server, at.offset())
        && at.offset() > 0
        && at.offset().is_multiple_of(64)
        && (MIN_RING_BYTES..=MAX_RING_BYTES).contains(&bytes)
        && bytes < GlobalAddr::OFFSET_LIMIT - at.offset()
}

/// Writes the words at `at`, piece by piece.
pub(super) async fn write_words<F: Fabric>(
    fabric: &F,
    at: GlobalAddr,
    words: &[u64],
) -> Result<(), FabricError> {
    let write = async || {
        for piece in pieces(words.len()).rev() {
            let buffer = fabric.buffer(piece.len() * 8)?;
            let mut posted = Pieces::none();
            posted.post(fabric, (at, words), piece, buffer);
            posted.done().await?;
        }
        Ok(())
    };
    until_landed(fabric, at.server(), write).await?
}

/// READs `words` words.
pub(super) async fn read_words<F: Fabric>(
    fabric: &F,
    at: GlobalAddr,
    words: usize,
) -> Result<Vec<u64>, FabricError> {
    const READ_WORDS: usize = BUFFER_BYTES / 8;
    let mut read = Vec::with_capacity(words);
    let mut backoff = Backoff::default();
    let mut failed = 0;
    while read.len() < words {
        let mut posted = Vec::new();
        while posted.len() < MAX_CONCURRENT && read.len() + posted.len() * READ_WORDS < words {
            let from = read.len() + posted.len() * READ_WORDS;
            let Ok(buffer) = fabric.buffer((words - from).min(READ_WORDS) * 8) else { break };
            posted.push(fabric.read(at.plus(from as u64 * 8), buffer));
        }
        let mut outcome = match posted.is_empty() {
            true => Err(FabricError::NoBuffer { bytes: BUFFER_BYTES }),
            false => Ok(()),
        };
        for operation in posted {
            match (operation.await, &outcome) {
                (Ok(buffer), Ok(())) => {
                    read.extend(buffer.words().iter().map(|word| word.load(Ordering::Relaxed)));
                }
                (Err(error), Ok(())) => outcome = Err(error),
                (_, Err(_)) => {}
            }
        }
        if let Err(error) = outcome {
            failed += 1;
            if failed > READ_RETRIES {
                return Err(error);
            }
            fabric.counters().count_retry();
            backoff.count();
            backoff.wait(fabric).await;
        }
    }
    Ok(read)
}
