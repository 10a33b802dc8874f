//! One memory server: answers the requests of [`crate::wire`] over its region.
//!
//! *Invariants*
//! - M1. No request, whatever its bytes, can make the server crash or touch memory outside its
//!   region.
//! - M2. A refused request has changed nothing, with two exceptions: if a load's next records are
//!   refused, the load is aborted; a step of a merge that finds damage or no room has written to
//!   the extents lent to it, and ends the merge.
//!
//! *Thread safety*: any number of threads, through `&self`.

use super::chunks::ChunkAllocator;
use super::directory::ShardDirectory;
use super::log_rings::LogRings;
use super::merges::{JobMemory, ServerCompactions, StepOutcome};
use super::offloads::{Offloads, ScanBounds};
use super::owners::{ClientRegistry, RegisteredClient};
use super::tree::{ServerTree, TreeLoader};
use super::whole::WholeChunks;
use crate::wire::{
    CompactionRequest, DEAD_OWNERS, DirectoryRequest, GIVE_BACK_NODES, LISTED_CHUNKS,
    OffloadRequest, OwnerRequest, PoolRequest, Refusal, Reply, Request, TreeRequest, TreeShare,
    Usage,
};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{
    Cpu, GlobalAddr, Message, Region, RegionBacking, RegionError, RpcService, ServerId,
};
use farleaf_page::rules;
use farleaf_page::table::PlacedSsTable;
use farleaf_page::{
    DEFAULT_PLACEMENT_LEVEL, DesignId, Layout, NodeCarver, OwnedKey, OwnedValue, Page, Superblock,
};
use std::collections::{BTreeSet, VecDeque};
use std::sync::OnceLock;

/// How many allocated chunks a memory server remembers: more than all clients allocate while one of
/// them repeats a request.
const LATEST_CHUNKS: usize = 1024;

/// A chunk that was allocated.
#[derive(Clone, Copy, Debug)]
struct LatestChunk {
    /// The compute server and the token of the request.
    asked: (u16, u64),
    at: GlobalAddr,
    bytes: u64,
}

/// Where the memory of a chunk comes from.
#[derive(Clone, Copy, Debug)]
enum ChunkSource {
    /// Nodes that clients have returned, or else memory that was never used.
    Nodes,
    /// Pieces that came back, of this size or more, or else memory that was never used.
    Pieces { least: u64 },
    /// Memory that was never used.
    Unused,
}

/// Settings of a memory server.
#[derive(Clone, Debug)]
pub struct MemoryServerConfig {
    /// Size of its region in bytes, a multiple of 4096. The operating system provides the memory
    /// when it is first touched.
    pub pool_bytes: usize,
    /// Size of the chunks that the server's own tree allocates, in bytes.
    pub chunk_bytes: u64,
    /// Each subtree of this level lies entirely on one memory server.
    pub placement_level: u8,
    /// How the region is allocated: [`RegionBacking::Shared`] if other processes need to map it.
    pub backing: RegionBacking,
}

impl Default for MemoryServerConfig {
    fn default() -> Self {
        Self {
            pool_bytes: 1 << 30,
            chunk_bytes: 1 << 20,
            placement_level: DEFAULT_PLACEMENT_LEVEL,
            backing: RegionBacking::default(),
        }
    }
}

/// A memory server with pages of layout `L`.
#[derive(Debug)]
pub struct MemoryServer<L: Layout> {
    id: ServerId,
    region: Arc<Region>,
    chunks: Arc<ChunkAllocator>,
    tree: ServerTree<L>,
    share: OnceLock<TreeShare<OwnedKey<L>>>,
    loads: Mutex<BulkLoads<L>>,
    owners: ClientRegistry,
    offloads: Offloads<L>,
    merges: ServerCompactions,
    directory: ShardDirectory,
    /// Nodes that clients have returned. As a set, it cannot outgrow the region.
    given_back: Mutex<BTreeSet<GlobalAddr>>,
    /// The latest chunks allocated. Without them, a client that gets no replies and repeats its
    /// requests would exhaust the pool.
    latest_chunks: Mutex<VecDeque<LatestChunk>>,
    /// Chunks that are not for nodes.
    whole: Mutex<WholeChunks>,
    log_rings: LogRings,
    /// Held while the superblock's options and root are set.
    claim: Mutex<()>,
}

/// Compute server of a bulk load, and the load's number.
type LoadId = (u16, u64);

/// The server's state of a bulk load.
#[derive(Debug)]
enum LoadState<L: Layout> {
    None,
    Open(LoadId, TreeLoader<L>),
    /// A thread is publishing its tree.
    Ending(LoadId),
}

/// The load in progress, and how the latest ones ended. A request that arrives late or is sent
/// again must not restart a closed load, and needs the load's outcome.
#[derive(Debug)]
struct BulkLoads<L: Layout> {
    now: LoadState<L>,
    /// Whether the load was published.
    closed: VecDeque<(LoadId, bool)>,
}

/// Number of closed loads that a server remembers.
const CLOSED_LOADS: usize = 64;

impl<L: Layout> Default for BulkLoads<L> {
    fn default() -> Self {
        Self { now: LoadState::None, closed: VecDeque::new() }
    }
}

impl<L: Layout> BulkLoads<L> {
    /// Takes this load if it is open, and leaves `then` in its place.
    fn take(&mut self, id: LoadId, then: LoadState<L>) -> Result<TreeLoader<L>, Refusal> {
        match std::mem::replace(&mut self.now, then) {
            LoadState::Open(open, loader) if open == id => Ok(loader),
            other => {
                let is_ending = matches!(other, LoadState::Ending(ending) if ending == id);
                self.now = other;
                Err(if is_ending { Refusal::Contended } else { Refusal::NotLoading })
            }
        }
    }

    /// Closes the open load of a compute server, if there is one.
    fn take_of(&mut self, compute_server: u16) -> Result<Option<TreeLoader<L>>, Refusal> {
        match self.now {
            LoadState::Open(id, _) if id.0 == compute_server => {
                self.close(id, false);
                self.take(id, LoadState::None).map(Some)
            }
            LoadState::Ending(id) if id.0 == compute_server => Err(Refusal::Contended),
            _ => Ok(None),
        }
    }

    fn close(&mut self, id: LoadId, is_published: bool) {
        if self.closed.len() == CLOSED_LOADS {
            self.closed.pop_front();
        }
        self.closed.push_back((id, is_published));
    }

    /// Whether a closed load was published.
    fn was_published(&self, id: LoadId) -> Option<bool> {
        self.closed.iter().find(|(closed, _)| *closed == id).map(|(_, is_published)| *is_published)
    }
}

impl<L: Layout> MemoryServer<L> {
    /// Creates a memory server with an empty pool.
    ///
    /// # Errors
    /// [`RegionError`] if the region cannot be allocated.
    pub fn new(id: ServerId, config: &MemoryServerConfig) -> Result<Self, RegionError> {
        let region = Arc::new(Region::with_backing(config.pool_bytes, config.backing)?);
        let superblock = Superblock {
            root: GlobalAddr::NULL,
            placement_level: config.placement_level.into(),
            pool_bytes: region.bytes() as u64,
            options: 0,
            first_leaf: GlobalAddr::NULL,
            has_blocks: false,
        };
        superblock.write::<L>(region.words());
        let chunks = Arc::new(ChunkAllocator::new(id, region.bytes() as u64));
        let tree = ServerTree::new(
            id,
            Arc::clone(&region),
            Arc::clone(&chunks),
            config.chunk_bytes.max(1),
        );
        Ok(Self {
            id,
            region,
            chunks,
            tree,
            share: OnceLock::new(),
            loads: Mutex::new(BulkLoads::default()),
            owners: ClientRegistry::default(),
            offloads: Offloads::default(),
            given_back: Mutex::new(BTreeSet::new()),
            merges: ServerCompactions::default(),
            directory: ShardDirectory::default(),
            latest_chunks: Mutex::default(),
            whole: Mutex::default(),
            log_rings: LogRings::default(),
            claim: Mutex::new(()),
        })
    }

    /// The server's own tree, for direct calls.
    pub fn tree(&self) -> &ServerTree<L> {
        &self.tree
    }

    /// How much of the pool is allocated, and how large the tree is.
    pub fn usage(&self) -> Usage {
        let tree = self.tree.usage();
        Usage {
            pool_bytes: self.chunks.region_bytes(),
            allocated_bytes: self.chunks.allocated_bytes(),
            nodes_in_use: tree.nodes_in_use,
            nodes_free: tree.nodes_free,
            deleted_records: tree.deleted_records,
            height: tree.height,
        }
    }

    /// The number of nodes on this server, for all designs: the server counts those in use and
    /// those that it knows to be free. Nodes of a chunk that a client has not used yet count as in
    /// use.
    pub fn nodes(&self) -> (u64, u64) {
        let given = self.chunks.allocated_bytes() / NodeCarver::NODE_ALIGN - 1;
        let free = self.tree.usage().nodes_free + lock(&self.given_back).len() as u64;
        (given.saturating_sub(free), free)
    }

    /// The nodes that the server knows to be unused: free or retired nodes of its tree, and nodes
    /// that clients have returned. No page of any index may point to one of them. For inspection:
    /// the cost is proportional to their number.
    pub fn nodes_out_of_use(&self) -> BTreeSet<GlobalAddr> {
        let mut nodes = lock(&self.given_back).clone();
        nodes.extend(self.tree.unused_nodes());
        nodes.extend(self.tree.retired_nodes());
        nodes
    }

    /// The tables that the directory lists for a shard of an LSM index. For inspection.
    pub fn listed_tables(&self, shard: u64) -> Vec<PlacedSsTable> {
        self.directory.listed_tables(shard)
    }

    /// The epoch of a shard in the directory, 0 if no process has ever had it.
    pub fn shard_epoch(&self, shard: u64) -> u64 {
        self.directory.epoch_of(shard)
    }

    /// Refuses a key that belongs to another server.
    #[inline]
    fn mine(&self, key: &L::Key) -> Result<(), Refusal> {
        let mine = match self.share.get().ok_or(Refusal::NoTree)? {
            TreeShare::Range { low, high } => {
                key >= L::key(low) && high.as_ref().is_none_or(|high| key < L::key(high))
            }
            TreeShare::Hash { servers } => {
                L::hash(key) % u64::from(*servers) == u64::from(self.id.number())
            }
        };
        if mine { Ok(()) } else { Err(Refusal::NotMine) }
    }

    fn create(&self, share: TreeShare<OwnedKey<L>>) -> Result<Reply<L>, Refusal> {
        let sensible = match &share {
            TreeShare::Range { low, high } => high.as_ref().is_none_or(|high| low < high),
            TreeShare::Hash { servers } => *servers > self.id.number(),
        };
        if !sensible {
            return Err(Refusal::Malformed);
        }
        let _claim = lock(&self.claim);
        let superblock = &self.region.words()[..Superblock::WORDS];
        let found = Superblock::read::<L>(superblock).map_err(|_| Refusal::Damaged)?;
        // The hybrid design claims the pool for its pages and also creates a tree on each server.
        let claimed = found.options_of(DesignId::Hybrid).is_ok();
        if found.options != 0 && !claimed {
            return Err(Refusal::TreeExists);
        }
        self.tree.create()?;
        if !claimed {
            Superblock::set_options(superblock, DesignId::Coarse as u64);
        }
        self.share.set(share).map_err(|_| Refusal::TreeExists)?;
        Ok(Reply::Done)
    }

    /// Claims the pool for a design with pages that its clients access one-sided.
    fn claim(&self, options: u64, root: GlobalAddr) -> Result<Reply<L>, Refusal> {
        let _claim = lock(&self.claim);
        let superblock = &self.region.words()[..Superblock::WORDS];
        let found = Superblock::read::<L>(superblock).map_err(|_| Refusal::Damaged)?;
        let sensible = options as u8 != 0
            && options as u8 != DesignId::Coarse as u8
            && (root.is_null() || self.is_node(root));
        if !sensible {
            return Err(Refusal::Malformed);
        }
        let hybrid = options as u8 == DesignId::Hybrid as u8;
        let held = if hybrid { found.first_leaf } else { found.root };
        if found.options == options && held == root {
            return Ok(Reply::Done); // repeated by the client that claimed it
        }
        if found.options != 0 || !found.root.is_null() {
            return Err(Refusal::TreeExists);
        }
        if hybrid {
            // The superblock's root belongs to the server's own tree.
            Superblock::set_first_leaf(superblock, root);
        } else if !root.is_null() {
            Superblock::set_root(superblock, root);
        }
        Superblock::set_options(superblock, options);
        Ok(Reply::Done)
    }

    /// Whether `at` can be the address of a node on this server.
    fn is_node(&self, at: GlobalAddr) -> bool {
        let bytes = (L::page_words() as u64 * 8).next_multiple_of(NodeCarver::NODE_ALIGN);
        !at.is_swizzled()
            && at.server() == self.id
            && at.offset() >= NodeCarver::NODE_ALIGN
            && at.offset().is_multiple_of(NodeCarver::NODE_ALIGN)
            && at.offset() + bytes <= self.chunks.allocated_bytes()
    }

    /// The page at an address, if a node of this server can be there.
    fn page(&self, at: GlobalAddr) -> Option<Page<'_, L>> {
        let words = self.is_node(at).then(|| self.region.slice(at.offset(), L::page_words()))?;
        words.map(Page::new)
    }

    /// Allocates a chunk from `source`. A repeated request gets the same one (A4). `list` lists a
    /// new chunk.
    fn allocate(
        &self,
        bytes: u64,
        asked: Option<(u16, u64)>,
        source: ChunkSource,
        list: impl FnOnce(GlobalAddr, u64),
    ) -> Result<(GlobalAddr, u64), Refusal> {
        let mut latest = lock(&self.latest_chunks);
        let same = latest.iter().find(|chunk| asked == Some(chunk.asked));
        if let Some(&LatestChunk { at, bytes, .. }) = same {
            return Ok((at, bytes));
        }
        let node_bytes = (L::page_words() as u64 * 8).next_multiple_of(NodeCarver::NODE_ALIGN);
        let chunk = match source {
            ChunkSource::Unused => self.chunks.allocate_whole(bytes),
            ChunkSource::Pieces { least } => lock(&self.whole)
                .take(bytes.max(least), least)
                .or_else(|| self.chunks.allocate_whole(bytes.max(least))),
            // Memory that was once a node stays a node, because clients may still CAS its word 0
            // (V3).
            ChunkSource::Nodes => {
                let given_back = lock(&self.given_back).pop_first();
                given_back.map(|at| (at, node_bytes)).or_else(|| self.chunks.allocate(bytes))
            }
        };
        let (at, bytes) = chunk.ok_or(Refusal::OutOfMemory)?;
        if let Some(asked) = asked {
            if latest.len() == LATEST_CHUNKS {
                latest.pop_front();
            }
            latest.push_back(LatestChunk { asked, at, bytes });
            list(at, bytes);
        }
        Ok((at, bytes))
    }

    fn give_back(&self, nodes: &[GlobalAddr]) -> Result<Reply<L>, Refusal> {
        if nodes.len() > GIVE_BACK_NODES || !nodes.iter().all(|node| self.is_node(*node)) {
            return Err(Refusal::Malformed);
        }
        lock(&self.given_back).extend(nodes);
        Ok(Reply::Done)
    }

    /// The bytes of a client's log on this server.
    fn log_bytes() -> u64 {
        crate::wire::LOG_SLOTS * crate::wire::log_slot_bytes::<L>()
    }

    /// Starts a load. Aborts an earlier load of the same compute server: its client has abandoned
    /// it, or died.
    fn load_begin(&self, id: LoadId, fill_permille: u16) -> Result<(), Refusal> {
        let mut loads = lock(&self.loads);
        if loads.was_published(id).is_some() {
            return Err(Refusal::NotLoading); // late
        }
        match loads.now {
            LoadState::Open(open, _) if open == id => return Ok(()), // repeated
            LoadState::Open((compute_server, _), _) if compute_server != id.0 => {
                return Err(Refusal::Loading);
            }
            LoadState::Ending(_) => return Err(Refusal::Loading),
            LoadState::None | LoadState::Open(..) => {}
        }
        if let Some(former) = loads.take_of(id.0)? {
            self.tree.load_abort(former);
        }
        loads.now = LoadState::Open(id, self.tree.load_begin(fill_permille)?);
        Ok(())
    }

    fn load_append(
        &self,
        id: LoadId,
        records: &[(OwnedKey<L>, OwnedValue<L>)],
    ) -> Result<Reply<L>, Refusal> {
        for (key, _) in records {
            self.mine(L::key(key))?;
        }
        let mut loads = lock(&self.loads);
        let mut loader = loads.take(id, LoadState::None)?;
        match self.tree.load_append(&mut loader, records) {
            Ok(()) => {
                loads.now = LoadState::Open(id, loader);
                Ok(Reply::Done)
            }
            Err(refusal) => {
                loads.close(id, false);
                self.tree.load_abort(loader);
                Err(refusal)
            }
        }
    }

    async fn answer<C: Cpu>(
        &self,
        cpu: &C,
        client: u16,
        request: Request<L>,
    ) -> Result<Reply<L>, Refusal> {
        match request {
            Request::Edit(edit) => {
                let edit = edit.as_ref();
                self.mine(edit.key)?;
                Ok(Reply::from_edit(edit, self.tree.execute(cpu, edit).await?))
            }
            Request::Tree(request) => self.answer_of_tree(cpu, client, request).await,
            Request::Pool(request) => self.answer_of_pool(cpu, client, request),
            Request::Owners(request) => self.answer_of_owners(client, request),
            Request::Offload(request) => self.answer_of_offload(cpu, request).await,
            Request::Merge(request) => self.answer_of_merge(cpu, request).await,
            Request::Directory(request) => self.answer_of_directory(cpu, client, request),
        }
    }

    async fn answer_of_tree<C: Cpu>(
        &self,
        cpu: &C,
        client: u16,
        request: TreeRequest<L>,
    ) -> Result<Reply<L>, Refusal> {
        match request {
            TreeRequest::Describe => return Ok(Reply::Description(self.share.get().cloned())),
            TreeRequest::Create { share } => return self.create(share),
            TreeRequest::Scan { lower, upper, reverse, limit } => {
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                let (records, more) = self.tree.scan(cpu, &lower, &upper, reverse, limit).await?;
                return Ok(Reply::Records { records, more });
            }
            TreeRequest::LoadBegin { load, fill_permille } => {
                self.load_begin((client, load), fill_permille)?;
            }
            TreeRequest::LoadAppend { load, records } => {
                return self.load_append((client, load), &records);
            }
            TreeRequest::LoadEnd { load } => {
                let id = (client, load);
                let taken = {
                    let mut loads = lock(&self.loads);
                    if loads.was_published(id) == Some(true) {
                        return Ok(Reply::Done); // repeated
                    }
                    loads.take(id, LoadState::Ending(id))
                };
                let mut loader = taken?;
                let ended = self.tree.load_end(cpu, &mut loader).await;
                let mut loads = lock(&self.loads);
                // Store the outcome, so that a repeated request gets the same answer.
                loads.now = match ended {
                    Ok(()) => {
                        loads.close(id, true);
                        LoadState::None
                    }
                    Err(_) => LoadState::Open(id, loader),
                };
                ended?;
            }
            TreeRequest::LoadAbort { load } => {
                let (id, mut loads) = ((client, load), lock(&self.loads));
                match loads.take(id, LoadState::None) {
                    Ok(loader) => self.tree.load_abort(loader),
                    Err(Refusal::NotLoading) => {}
                    Err(refusal) => return Err(refusal),
                }
                // Close the load even if the request that begins it has not arrived yet.
                if loads.was_published(id).is_none() {
                    loads.close(id, false);
                }
            }
            TreeRequest::LoadAbandon { compute_server } => {
                if let Some(loader) = lock(&self.loads).take_of(compute_server)? {
                    self.tree.load_abort(loader);
                }
            }
            TreeRequest::Collect => self.tree.collect(cpu).await?,
        }
        Ok(Reply::Done)
    }

    fn answer_of_pool<C: Cpu>(
        &self,
        cpu: &C,
        client: u16,
        request: PoolRequest,
    ) -> Result<Reply<L>, Refusal> {
        match request {
            PoolRequest::AllocateChunk { bytes, token } => {
                let once = !cpu.breaks(rules::CHUNKS_ONCE);
                let asked = once.then_some((client, token));
                let (at, bytes) = self.allocate(bytes, asked, ChunkSource::Nodes, |_, _| {})?;
                Ok(Reply::Chunk { at, bytes })
            }
            PoolRequest::AllocateWhole { bytes, least, token } => {
                let list = |at, bytes| lock(&self.whole).add(client, at, bytes);
                let source = ChunkSource::Pieces { least };
                let (at, bytes) = self.allocate(bytes, Some((client, token)), source, list)?;
                Ok(Reply::Chunk { at, bytes })
            }
            PoolRequest::AllocateUnused { bytes, token } => {
                let asked = Some((client, token));
                let (at, bytes) = self.allocate(bytes, asked, ChunkSource::Unused, |_, _| {})?;
                Ok(Reply::Chunk { at, bytes })
            }
            PoolRequest::Lease { owner, term_ms, bytes, token } => {
                lock(&self.whole).check_lease(owner, client)?;
                let list = |at, bytes| {
                    lock(&self.whole).lease((owner, client, term_ms), (at, bytes));
                };
                let source = ChunkSource::Pieces { least: bytes };
                let (at, bytes) = self.allocate(bytes, Some((client, token)), source, list)?;
                Ok(Reply::Chunk { at, bytes })
            }
            PoolRequest::Renew { owner } => {
                lock(&self.whole).renew(owner)?;
                Ok(Reply::Done)
            }
            PoolRequest::EndLease { owner } => {
                lock(&self.whole).end_lease(owner);
                Ok(Reply::Done)
            }
            PoolRequest::LogRing { compute_server, ring, bytes } => {
                let ring = (compute_server, ring);
                let (at, bytes) = self.log_rings.ring(ring, bytes, &self.chunks)?;
                Ok(Reply::Chunk { at, bytes })
            }
            PoolRequest::LogRings { compute_server } => {
                Ok(Reply::Chunks { more: false, chunks: self.log_rings.of(compute_server) })
            }
            PoolRequest::ListLeases => Ok(Reply::Leases(lock(&self.whole).leases())),
            PoolRequest::Usage => Ok(Reply::Usage(self.usage())),
            PoolRequest::Claim { options, root } => self.claim(options, root),
            PoolRequest::GiveBack { nodes } => self.give_back(&nodes),
            PoolRequest::ListChunks { from } => {
                let (chunks, more) = lock(&self.whole).list(client, from as usize, LISTED_CHUNKS);
                Ok(Reply::Chunks { more, chunks })
            }
            PoolRequest::ForgetChunks => {
                lock(&self.whole).forget(client);
                Ok(Reply::Done)
            }
            PoolRequest::ReturnPieces { pieces } => {
                if pieces.len() > LISTED_CHUNKS || !lock(&self.whole).give_back(client, &pieces) {
                    return Err(Refusal::Malformed);
                }
                Ok(Reply::Done)
            }
        }
    }

    /// Refuses a request if the pool is of another design than dLSM.
    fn check_lsm(&self) -> Result<(), Refusal> {
        let superblock = &self.region.words()[..Superblock::WORDS];
        let found = Superblock::read::<L>(superblock).map_err(|_| Refusal::Damaged)?;
        found.options_of(DesignId::Lsm).map(drop).map_err(|_| Refusal::NoTree)
    }

    fn answer_of_directory<C: Cpu>(
        &self,
        cpu: &C,
        client: u16,
        request: DirectoryRequest,
    ) -> Result<Reply<L>, Refusal> {
        self.check_lsm()?;
        // The directory lists the chunk, even if it was allocated before.
        let allocate = |bytes, least, token| {
            self.allocate(bytes, Some((client, token)), ChunkSource::Pieces { least }, |_, _| {})
        };
        self.directory.answer(cpu, self.id, client, request, allocate)
    }

    async fn answer_of_merge<C: Cpu>(
        &self,
        cpu: &C,
        request: CompactionRequest,
    ) -> Result<Reply<L>, Refusal> {
        self.check_lsm()?;
        let memory = JobMemory { region: &self.region, chunks: &self.chunks };
        match request {
            CompactionRequest::Begin { owner, job, words } => {
                self.merges.begin(memory, (owner, job), &words)?;
                Ok(Reply::Done)
            }
            CompactionRequest::Step { owner, job, step } => {
                let stepped = self.merges.step(cpu, memory, (owner, job), step).await?;
                let StepOutcome { done, outputs } = stepped;
                Ok(Reply::Merged { done, outputs })
            }
            CompactionRequest::Close { owner, job } => {
                self.merges.close((owner, job))?;
                Ok(Reply::Done)
            }
        }
    }

    fn answer_of_owners(&self, client: u16, request: OwnerRequest) -> Result<Reply<L>, Refusal> {
        Ok(match request {
            OwnerRequest::Register => {
                let owner = self.owners.register(client)?;
                Reply::Owner { owner, compute_server: client, dead: false, fenced: false }
            }
            OwnerRequest::Retire { owner } => {
                self.owners.retire(owner, client);
                Reply::Done
            }
            OwnerRequest::LogArea { owner, create } => {
                let chunks = create.then_some(&*self.chunks);
                let (at, bytes) = self.owners.log_area(owner, Self::log_bytes(), chunks)?;
                Reply::Chunk { at, bytes }
            }
            OwnerRequest::DeclareDead { compute_server, fenced } => {
                self.owners.declare_dead(compute_server, fenced);
                Reply::Done
            }
            OwnerRequest::DeadOwners { compute_server } => {
                Reply::Owners(self.owners.dead_of(compute_server, DEAD_OWNERS))
            }
            OwnerRequest::OwnerState { owner } => {
                let RegisteredClient { compute_server, dead, fenced, .. } =
                    self.owners.state(owner)?;
                Reply::Owner { owner, compute_server, dead, fenced }
            }
        })
    }

    async fn answer_of_offload<C: Cpu>(
        &self,
        cpu: &C,
        request: OffloadRequest<L>,
    ) -> Result<Reply<L>, Refusal> {
        let page_at = |at| self.page(at);
        match request {
            OffloadRequest::Edit { node, level, edit, ticket } => {
                self.offloads.edit(cpu, page_at, (node, level), edit.as_ref(), ticket).await
            }
            OffloadRequest::Scan { node, level, lower, upper, reverse, limit } => {
                let stretch = ScanBounds { lower, upper, reverse, limit };
                Offloads::scan(cpu, page_at, (node, level), stretch).await
            }
            OffloadRequest::CloseTicket { ticket } => Ok(self.offloads.close(ticket)),
        }
    }
}

impl<L: Layout> RpcService for MemoryServer<L> {
    fn region(&self) -> &Arc<Region> {
        &self.region
    }

    #[inline]
    async fn handle<C: Cpu>(&self, cpu: &C, client: u16, request: &[u8], reply: &mut Message) {
        let answer = match Request::decode(request) {
            Some(request) if request.check().is_ok() => self.answer(cpu, client, request).await,
            _ => Err(Refusal::Malformed),
        };
        answer.unwrap_or_else(Reply::Refused).encode(reply);
    }

    async fn after_reply<C: Cpu>(&self, cpu: &C) {
        self.tree.collect_if_due(cpu).await;
    }
}
