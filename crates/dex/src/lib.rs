//! DEX on one compute server: a B+-tree with its nodes in the memory pool. This compute server owns
//! a range of keys and caches the paths to them (Lu et al., *DEX: Scalable Range Indexing on
//! Disaggregated Memory*, VLDB 2024).
//!
//! [`farleaf_index::partition`] tracks the owner of each key and routes each operation to it; this
//! module implements the owner's side. The tree has no sibling links: every node is reached through
//! its parents, and its fences tell whether it is the right one.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - D1. A node with fences inside the owned range is *exclusive*: only this compute server reads
//!   or changes it, under the latch of its frame. All leaves are exclusive. Other nodes are
//!   *shared*: changed only under the remote lock, by a CAS that expects the cached version, and
//!   written through at once.
//! - D2. The pool's tree is well-formed at every instant: a node is written before a parent in the
//!   pool points to it; a node that loses keys is written after the parents that route them
//!   elsewhere; a node is freed only after the last parent that pointed to it was written.
//! - D3. Shared nodes are split, never merged. A half that is no longer shared can be merged, so an
//!   old copy of a shared node may point to a node that was freed and reused. Its level, fences or
//!   checksum reveal this. When the node is reused here, a copy of the former node is removed from
//!   the cache.
//! - D4. Restructuring latches from the top down and left before right, and backs off instead of
//!   waiting.
//! - D7. Keys in a leaf or an exclusive inner node outside the range that its parent routes to it
//!   do not count: the operation that fetches such a node trims it. So even if a compute server
//!   died in the middle of a sequence of D2, every path to a key gives the same answer.
//! - D8. A leaf whose stamp does not match is damaged: a WRITE of it stopped half-way.
//! - D9. An exclusive inner node is written to the pool only after a log entry with the same
//!   content, unless nothing points to it yet. The next incarnation of its compute server completes
//!   half-written nodes before it serves (`mend.rs`).
//!
//! *Thread safety*: the threads of a compute server share a [`DexServer`]. A [`DexIndex`] belongs
//! to its endpoint's thread, and its operations may overlap.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod background;
pub mod blocks;
pub mod cache;
mod change;
mod descend;
mod design;
mod group;
mod hand_over;
mod latched;
mod load;
mod mend;
mod merge;
mod nodes;
mod offload;
mod options;
mod part;
mod placement;
mod pool;
mod refresh;
mod replace;
mod scan;
mod scan_range;
mod server;
mod split;
mod uncached;

use offload::Offloading;
use placement::NodePlacement;
use scan::LeafSizes;

pub use design::Dex;
pub use hand_over::UnownedKeys;
pub use load::{BuiltTree, DexTreeBuilder, EntryWeights, spreading_level};
pub use options::DexOptions;
pub use pool::DexPool;
pub use server::DexServer;

use crate::cache::{AdmissionName, CacheClient, CacheTurn, FrameId, Restart};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId, Work};
use farleaf_index::CacheCounters;
use farleaf_index::together::all;
use farleaf_page::rules;
use farleaf_page::{DescentProbe, Layout};
use farleaf_pool::remote::{Backoff, RemoteError, TimedPointer};
use std::rc::Rc;

/// Frames processed at a time, so that their WRITEs and READs are in flight together.
const FRAMES_PER_BATCH: usize = 64;

/// A handle on one compute server's part of the index.
pub struct DexIndex<F: Fabric, L: Layout> {
    server: Arc<DexServer<L>>,
    client: CacheClient<F, L>,
    root: GlobalAddr,
    root_frame: FrameId,
    placement_level: u8,
    placement: NodePlacement,
    offload: Offloading,
    leaf_sizes: LeafSizes,
    /// Maximum number of leaves that a scan reads together.
    leaves_together: u32,
    /// Single-key operations bypass the cache and descend in the pool.
    uncached: bool,
}

/// Retry state of one operation.
#[derive(Debug)]
struct DescentRetries<'a> {
    backoff: Backoff,
    turn: Option<CacheTurn<'a>>,
    again: u32,
    busy: u32,
    torn: u32,
}

/// Attempts that an operation makes before it begins to wait between them.
const EAGER: u32 = 3;
/// How often, and for how long each time, an operation that has repeatedly lost its frames waits
/// for a turn before it continues without one.
const TURN_WAITS: u32 = 2_000;
const TURN_WAIT_NS: u64 = 20_000;
/// A page counts as damaged after this many torn reads, with its path reread in between.
const MAX_TORN: u32 = 3;
/// Bound on the nodes that one operation fetches or creates during its descent.
const MAX_AGAIN: u32 = 20_000;

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Opens a handle on `server`'s part of the index.
    ///
    /// # Errors
    /// [`RemoteError`] if the root cannot be read.
    async fn open(server: Arc<DexServer<L>>, pool: &DexPool<F, L>) -> Result<Self, RemoteError> {
        let &DexPool { ref pages, root, placement_level } = pool;
        let client = CacheClient::new(Arc::clone(server.cache()), Rc::clone(pages));
        let root_frame = server.root_frame(&client, root).await?;
        client.pages().prepare_logs().await; // D9
        let options = server.cache().options();
        let offload = Offloading::new(options.offload);
        let uncached = options.admission == AdmissionName::Never;
        let leaves_together = options.leaves_together(server.cache().arena().frames());
        Ok(Self {
            server,
            client,
            root,
            root_frame,
            placement_level,
            placement: NodePlacement::default(),
            offload,
            leaf_sizes: LeafSizes::default(),
            leaves_together,
            uncached,
        })
    }

    /// The compute server, shared by all handles of its threads.
    pub fn server(&self) -> &Arc<DexServer<L>> {
        &self.server
    }

    /// The number of nodes that this handle can allocate without a request, for tests and tools.
    /// The parts of a routed index share them.
    pub fn available_nodes(&self) -> usize {
        let pages = self.client.pages();
        let servers = (0..pages.fabric().memory_servers()).map(ServerId::new);
        servers.map(|server| pages.available(server)).sum()
    }

    /// The cache's counters for this handle.
    pub fn cache_counters(&self) -> CacheCounters {
        self.client.counters()
    }

    /// Writes back all dirty nodes. On return the pool has every change that was made before the
    /// call.
    ///
    /// # Errors
    /// [`RemoteError`] if a node cannot be written.
    pub async fn flush(&self) -> Result<(), RemoteError> {
        let cache = self.client.cache();
        if self.fabric().breaks(rules::FLUSH_WRITES) {
            return Ok(());
        }
        self.client.settle_transfers().await?;
        // A frame that becomes dirty from here on has only later changes.
        let mut frames = cache.unwritten_frames();
        let mut attempts = self.attempts();
        loop {
            let mut left = Vec::new();
            for together in frames.chunks(FRAMES_PER_BATCH) {
                let written = together.iter().map(|frame| self.client.write_back(*frame));
                for (frame, outcome) in together.iter().zip(all(written).await) {
                    match outcome {
                        Ok(()) => {}
                        Err(Restart::Failed(error)) => return Err(error),
                        // The WRITE in flight may have begun before the last change. Once the frame
                        // is clean, the pool has every change.
                        Err(_) if cache.is_unwritten(*frame) => left.push(*frame),
                        Err(_) => {}
                    }
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            if left.len() < frames.len() {
                attempts = self.attempts();
            }
            frames = left;
            self.after(&mut attempts, Restart::Busy, DescentProbe::Last).await?;
        }
    }

    /// Empties the cache except for the root, which is read again. Call it only when no operation
    /// is running.
    async fn forget(&self) -> Result<(), RemoteError> {
        if !self.client.cache().clear() {
            return Err(RemoteError::Contended { retries: 0 });
        }
        let mut attempts = self.attempts();
        loop {
            let copy = self.client.pages().read(TimedPointer::fixed(self.root)).await;
            let installed = match copy {
                Ok(copy) => self.install(self.root_frame, self.root, copy.page(), copy.word()),
                Err(miss) => Err(miss.into()),
            };
            match installed {
                Ok(_) => return Ok(()),
                Err(restart) => self.after(&mut attempts, restart, DescentProbe::Last).await?,
            }
        }
    }

    #[inline]
    fn fabric(&self) -> &F {
        self.client.fabric()
    }

    #[inline(always)]
    fn charge(&self, work: Work) -> impl Future<Output = ()> {
        self.fabric().charge(work)
    }

    fn attempts(&self) -> DescentRetries<'_> {
        let backoff = self.client.pages().backoff();
        DescentRetries { backoff, turn: None, again: 0, busy: 0, torn: 0 }
    }

    /// Handles a failed attempt: returns `Ok` when the operation should try again, the error when
    /// it should end.
    #[cold]
    async fn after<'a>(
        &'a self,
        attempts: &mut DescentRetries<'a>,
        restart: Restart,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<(), RemoteError> {
        if let Restart::Torn(_) = restart {
            attempts.torn += 1;
        }
        match restart {
            Restart::Failed(error) => return Err(error),
            Restart::Again if attempts.again < MAX_AGAIN => {
                attempts.again += 1;
                return Ok(());
            }
            Restart::Torn(at) if attempts.torn >= MAX_TORN => {
                return Err(RemoteError::Damaged { at });
            }
            Restart::Refresh | Restart::Torn(_) => match self.refresh(probe).await {
                Err(Restart::Failed(error)) => return Err(error),
                // If the refresh changed nothing, another server is about to change the path: wait,
                // below.
                Ok(true) => return Ok(()),
                Ok(false) | Err(_) => {}
            },
            Restart::Here => return Ok(()),
            Restart::Moved => return Err(RemoteError::Moved),
            Restart::Busy | Restart::Again => {}
        }
        attempts.busy += 1;
        if attempts.busy > EAGER {
            self.settle_some().await;
            self.wait_for_turn(attempts).await;
            self.client.before_retry(&mut attempts.backoff).await?;
        }
        Ok(())
    }

    /// Waits for a turn (C23), within a bound.
    async fn wait_for_turn<'a>(&'a self, attempts: &mut DescentRetries<'a>) {
        if attempts.turn.is_some() || self.fabric().breaks(rules::TURNS_TAKEN) {
            return;
        }
        for _ in 0..TURN_WAITS {
            attempts.turn = self.client.cache().turns().take();
            if attempts.turn.is_some() {
                return;
            }
            self.fabric().sleep(TURN_WAIT_NS).await;
        }
    }

    /// Whether operations of this handle left an outcome unknown.
    fn has_doubts(&self) -> bool {
        self.client.has_doubts()
            || self.offload.has_open_tickets()
            || self.client.pages().has_doubts()
    }

    /// Settles unknown outcomes where that is possible now, unless this was just tried. Other
    /// threads may be waiting for them, and only this handle can settle them.
    async fn settle_some(&self) {
        if !self.has_doubts() {
            return;
        }
        self.client.pages().settle_doubts().await;
        if self.client.is_settling_due() {
            let tickets = self.close_tickets().await;
            let transfers = self.client.settle_transfers().await;
            self.client.has_settled(tickets.is_ok() && transfers.is_ok());
        }
    }

    /// Settles every unknown outcome of this handle's operations that can be settled. A failure of
    /// one does not stop the others.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server cannot be reached.
    async fn settle(&self) -> Result<(), RemoteError> {
        let tickets = self.close_tickets().await;
        // Nodes may be waiting for the commits of their parents.
        let pages = self.client.pages().settle_all().await;
        let writes = self.client.settle_transfers().await.map_err(RemoteError::from);
        // Even if every call succeeds, some outcomes may stay in doubt, for example that of a node
        // that another task holds.
        let all = match self.has_doubts() {
            true => Err(RemoteError::Contended { retries: 0 }),
            false => Ok(()),
        };
        tickets.and(writes).and(pages).and(all)
    }
}
