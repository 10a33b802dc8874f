//! A shard's directory on the memory servers, as a process that opens the shard uses it.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.H4. Before a process uses the memory of a shard that another one had, that one gets no
//!   more chunks, its compute servers are fenced at all memory servers, and its merges there are
//!   closed.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::chunks::ChunkClient;
use super::extent_space::JobId;
use super::{RemoteError, RpcClient};
use crate::page::Layout;
use crate::rules::OWNERS_FENCED;
use crate::wire::{DirectoryRequest, Reply};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};

/// Words of one part of a change: 96 KiB.
const PART_WORDS: usize = 12 << 10;
/// Words of all tables of a shard.
const MOST_WORDS: usize = 1 << 24;

/// What a directory knows of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardState {
    /// Its epoch; 0 if no process has ever had it.
    pub epoch: u64,
    /// The process that has it.
    pub owner: u64,
    /// The number of the latest change of its tables.
    pub edit: u64,
    /// The highest id of a table so far.
    pub highest_table: u64,
    /// The size of its extents.
    pub extent_bytes: u64,
    /// Compute servers that changed it in earlier epochs, and are not known to be fenced.
    pub unfenced: Vec<u16>,
}

/// One endpoint's access to the directory of one shard.
#[derive(Debug)]
pub struct ShardClient<'c, F: Fabric, L: Layout> {
    chunks: &'c ChunkClient<F, L>,
    shard: u64,
}

impl<'c, F: Fabric, L: Layout> ShardClient<'c, F, L> {
    pub(super) fn new(chunks: &'c ChunkClient<F, L>, shard: u64) -> Self {
        Self { chunks, shard }
    }

    fn rpc(&self) -> &'c RpcClient<F, L> {
        self.chunks.rpc()
    }

    /// The memory server that lists the shard's tables.
    fn home(&self) -> ServerId {
        let servers = u64::from(self.rpc().fabric().memory_servers().max(1));
        ServerId::new((self.shard % servers) as u16)
    }

    async fn ask_state(&self, request: DirectoryRequest) -> Result<ShardState, RemoteError> {
        let server = self.home();
        match self.rpc().ask_harmless(server, &request).await? {
            Reply::Shard { epoch, owner, edit, highest_table, extent_bytes, unfenced } => {
                Ok(ShardState { epoch, owner, edit, highest_table, extent_bytes, unfenced })
            }
            _ => Err(RemoteError::BadReply { server }),
        }
    }

    async fn expect_done(&self, request: DirectoryRequest) -> Result<(), RemoteError> {
        self.rpc().expect_done_harmless(self.home(), &request).await
    }

    /// What the directory knows of the shard.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn state(&self) -> Result<ShardState, RemoteError> {
        self.ask_state(DirectoryRequest::State { shard: self.shard }).await
    }

    /// Makes `owner` the process that has the shard, if its epoch is `after`.
    ///
    /// # Errors
    /// [`RemoteError`]; the process may have the shard if the outcome is unknown.
    pub async fn open(
        &self,
        owner: u64,
        after: u64,
        extent_bytes: u64,
    ) -> Result<ShardState, RemoteError> {
        let shard = self.shard;
        self.ask_state(DirectoryRequest::Open { shard, owner, after, extent_bytes }).await
    }

    /// Notes that this endpoint's compute server belongs to `owner`, which has the shard.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn join(&self, owner: u64) -> Result<ShardState, RemoteError> {
        self.ask_state(DirectoryRequest::Join { shard: self.shard, owner }).await
    }

    /// Ends the epoch of `owner`, which has settled everything (H8). Afterwards any process can
    /// open the shard, and fences nothing.
    ///
    /// # Errors
    /// [`RemoteError`]; the shard may be left if the outcome is unknown. Call it again then.
    pub async fn leave(&self, owner: u64, epoch: u64) -> Result<(), RemoteError> {
        self.expect_done(DirectoryRequest::Leave { shard: self.shard, owner, epoch }).await
    }

    /// Makes sure that nothing of earlier epochs is written to the shard's memory (H4). This
    /// endpoint's own compute server must have been fenced before it began this life.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn end_former_lives(&self, state: &ShardState) -> Result<(), RemoteError> {
        let fabric = self.rpc().fabric();
        let is_other = |compute_server: &&u16| **compute_server != fabric.compute_server();
        for server in self.rpc().servers() {
            for &compute_server in state.unfenced.iter().filter(is_other) {
                if !fabric.breaks(OWNERS_FENCED) {
                    fabric.fence(server, compute_server).await?;
                }
            }
            JobId::first(server, self.shard, state.epoch).close(self.rpc()).await?;
        }
        let fenced = DirectoryRequest::Fenced { shard: self.shard, epoch: state.epoch };
        self.expect_done(fenced).await
    }

    /// The chunks of the shard on all memory servers. Earlier epochs get no more of them.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn chunks(&self, epoch: u64) -> Result<Vec<(GlobalAddr, u64)>, RemoteError> {
        let shard = self.shard;
        let mut chunks = Vec::new();
        for server in self.rpc().servers() {
            let ask = |from| DirectoryRequest::Chunks { shard, epoch, from }.into();
            chunks.extend(self.chunks.listed(server, ask).await?);
        }
        Ok(chunks)
    }

    /// The words of all tables of the shard.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn tables(&self, epoch: u64) -> Result<Vec<u64>, RemoteError> {
        let (shard, server) = (self.shard, self.home());
        let mut all = Vec::new();
        while all.len() < MOST_WORDS {
            let request = DirectoryRequest::Tables { shard, epoch, from: all.len() as u64 };
            let told = self.rpc().ask_harmless(server, &request).await?;
            match told {
                Reply::Tables { more: true, words } if !words.is_empty() => all.extend(words),
                Reply::Tables { more: false, words } => {
                    all.extend(words);
                    return Ok(all);
                }
                _ => return Err(RemoteError::BadReply { server }),
            }
        }
        Err(RemoteError::BadReply { server })
    }

    /// Changes the tables. `number` is above those of all changes before; the same change can be
    /// made again.
    ///
    /// # Errors
    /// [`RemoteError`]; unless the outcome is unknown, nothing has changed.
    pub async fn edit(&self, epoch: u64, number: u64, words: &[u64]) -> Result<(), RemoteError> {
        let mut parts = (0_u32..).zip(words.chunks(PART_WORDS)).peekable();
        while let Some((part, words)) = parts.next() {
            let more = parts.peek().is_some();
            let (shard, words) = (self.shard, words.to_vec());
            let request = DirectoryRequest::Edit { shard, epoch, number, part, more, words };
            self.expect_done(request).await?;
        }
        Ok(())
    }
}
