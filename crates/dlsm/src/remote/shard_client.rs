//! A shard's directory on the memory servers, as a process that opens the shard uses it.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.H4. Before a process uses the memory of a shard that another one had, that one gets no
//!   more chunks, its compute servers are fenced at all memory servers, and its merges there are
//!   closed.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::extent_space::JobId;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_page::Layout;
use farleaf_page::rules::OWNERS_FENCED;
use farleaf_pool::remote::ChunkClient;
use farleaf_pool::remote::{RemoteError, RpcClient};
use farleaf_pool::wire::{DirectoryRequest, Reply};
use std::collections::{BTreeMap, BTreeSet};

/// Words of one part of a change: 96 KiB.
const PART_WORDS: usize = 12 << 10;
/// Words of all tables of a shard.
const MAX_WORDS: usize = 1 << 24;

/// What a directory knows of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardState {
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
    /// The tables that it has borrowed, and those that it has lent.
    pub loans: u64,
    /// Compute servers that changed it in earlier epochs, and are not known to be fenced.
    pub unfenced: Vec<u16>,
}

/// What a shard has borrowed and lent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardLoans {
    /// The ids of the tables that it has borrowed.
    pub borrowed: BTreeSet<u64>,
    /// The words of the tables that it has lent, by id.
    pub lent: BTreeMap<u64, Vec<u64>>,
}

impl ShardLoans {
    /// Adds what a reply has. Returns the last id.
    fn add(&mut self, mut words: &[u64]) -> Option<u64> {
        let mut last = None;
        while let Some((&[id, count], rest)) = words.split_first_chunk() {
            let (table, rest) = rest.split_at_checked(usize::try_from(count).ok()?)?;
            match table.is_empty() {
                true => _ = self.borrowed.insert(id),
                false => _ = self.lent.insert(id, table.to_vec()),
            }
            (last, words) = (Some(id), rest);
        }
        last.filter(|_| words.is_empty())
    }
}

/// All words of an answer that comes in several parts.
async fn all_words<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    server: ServerId,
    ask: impl Fn(u64) -> DirectoryRequest,
) -> Result<Vec<u64>, RemoteError> {
    let mut all = Vec::new();
    while all.len() < MAX_WORDS {
        match rpc.ask_idempotent(server, &ask(all.len() as u64)).await? {
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

/// The shards that divisions have made, on all memory servers: the number of each, and the words of
/// its lowest key.
///
/// # Errors
/// [`RemoteError`].
pub(crate) async fn divided_shards<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
) -> Result<Vec<(u64, Vec<u64>)>, RemoteError> {
    let mut shards = Vec::new();
    for server in rpc.servers() {
        let bad_reply = RemoteError::BadReply { server };
        let words = all_words(rpc, server, |from| DirectoryRequest::Pieces { from }).await?;
        let mut rest = &words[..];
        while let Some((&[shard, count], behind)) = rest.split_first_chunk() {
            let parts =
                usize::try_from(count).ok().and_then(|count| behind.split_at_checked(count));
            let (low, behind) = parts.ok_or(bad_reply.clone())?;
            shards.push((shard, low.to_vec()));
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(bad_reply);
        }
    }
    Ok(shards)
}

/// One endpoint's access to the directory of one shard.
#[derive(Debug)]
pub(crate) struct ShardClient<'c, F: Fabric, L: Layout> {
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
        match self.rpc().ask_idempotent(server, &request).await? {
            Reply::Shard { epoch, owner, edit, highest_table, extent_bytes, loans, unfenced } => {
                Ok(ShardState { epoch, owner, edit, highest_table, extent_bytes, loans, unfenced })
            }
            _ => Err(RemoteError::BadReply { server }),
        }
    }

    async fn expect_done(&self, request: DirectoryRequest) -> Result<(), RemoteError> {
        self.rpc().expect_done_idempotent(self.home(), &request).await
    }

    /// What the directory knows of the shard.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) async fn state(&self) -> Result<ShardState, RemoteError> {
        self.ask_state(DirectoryRequest::State { shard: self.shard }).await
    }

    /// Makes `owner` the process that has the shard, if its epoch is `after`.
    ///
    /// # Errors
    /// [`RemoteError`]; the process may have the shard if the outcome is unknown.
    pub(crate) async fn open(
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
    pub(crate) async fn join(&self, owner: u64) -> Result<ShardState, RemoteError> {
        self.ask_state(DirectoryRequest::Join { shard: self.shard, owner }).await
    }

    /// Ends the epoch of `owner`, which has settled everything (H8). Afterwards any process can
    /// open the shard, and fences nothing.
    ///
    /// # Errors
    /// [`RemoteError`]; the shard may be left if the outcome is unknown. Call it again then.
    pub(crate) async fn leave(&self, owner: u64, epoch: u64) -> Result<(), RemoteError> {
        self.expect_done(DirectoryRequest::Leave { shard: self.shard, owner, epoch }).await
    }

    /// As [`ShardClient::leave`], and splits the shard: shard `into`, whose number must be free,
    /// gets the keys from `low` on. The request is not repeated. If its outcome is unknown, call
    /// [`ShardClient::leave`]; then [`divided_shards`] shows whether the shard was split.
    ///
    /// # Errors
    /// [`RemoteError`]; the shard may be left and divided if the outcome is unknown.
    pub(crate) async fn divide(
        &self,
        owner: u64,
        epoch: u64,
        (into, low): (u64, Vec<u64>),
    ) -> Result<(), RemoteError> {
        let shard = self.shard;
        let request = DirectoryRequest::Divide { shard, owner, epoch, into, at: low };
        self.rpc().expect_done(self.home(), &request).await
    }

    /// What the shard has borrowed, and what it has lent.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) async fn loans(&self, epoch: u64) -> Result<ShardLoans, RemoteError> {
        let (shard, server, mut from) = (self.shard, self.home(), 0);
        let bad_reply = RemoteError::BadReply { server };
        let (mut loans, mut held) = (ShardLoans::default(), 0);
        while held < MAX_WORDS {
            let request = DirectoryRequest::Loans { shard, epoch, from };
            let told = self.rpc().ask_idempotent(server, &request).await?;
            let Reply::Tables { more, words } = told else { return Err(bad_reply) };
            held += words.len();
            let last = if words.is_empty() { None } else { loans.add(&words) };
            match last {
                Some(last) if more => {
                    from =
                        last.checked_add(1).filter(|next| *next > from).ok_or(bad_reply.clone())?;
                }
                None if more || !words.is_empty() => return Err(bad_reply),
                _ => return Ok(loans),
            }
        }
        Err(bad_reply)
    }

    /// Returns borrowed tables, which the shard does not list any more, and which nothing of this
    /// process READs (L2). Repeated, it changes nothing.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) async fn give_back(&self, epoch: u64, tables: &[u64]) -> Result<(), RemoteError> {
        let (shard, tables) = (self.shard, tables.to_vec());
        self.expect_done(DirectoryRequest::Return { shard, epoch, tables }).await
    }

    /// Makes sure that nothing of earlier epochs is written to the shard's memory (H4). This
    /// endpoint's own compute server must have been fenced before it began this life.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) async fn end_former_lives(&self, state: &ShardState) -> Result<(), RemoteError> {
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
    pub(crate) async fn chunks(&self, epoch: u64) -> Result<Vec<(GlobalAddr, u64)>, RemoteError> {
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
    pub(crate) async fn tables(&self, epoch: u64) -> Result<Vec<u64>, RemoteError> {
        let (shard, server) = (self.shard, self.home());
        let ask = |from| DirectoryRequest::Tables { shard, epoch, from };
        all_words(self.rpc(), server, ask).await
    }

    /// Changes the tables. `number` is above those of all changes before; the same change can be
    /// made again.
    ///
    /// # Errors
    /// [`RemoteError`]; unless the outcome is unknown, nothing has changed.
    pub(crate) async fn edit(
        &self,
        epoch: u64,
        number: u64,
        words: &[u64],
    ) -> Result<(), RemoteError> {
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
