//! The compute side of one index in this process: its compute servers and their map.
//!
//! *Thread safety*: any number of threads.

use super::compute_server::MoveRight;
use super::{ComputeServer, PartitionMap};
use crate::{IndexError, MemoryUse, PartState, PartitionOptions, Partitioned};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::{Arc, AtomicBool, Mutex, lock};
use farleaf_page::rules;
use farleaf_page::{Layout, OwnedKey};

/// All compute servers of an index in this process.
pub struct ComputePool<D: Partitioned, L: Layout> {
    servers: Vec<Arc<ComputeServer<D, L>>>,
    /// The newest map.
    map: Mutex<Arc<PartitionMap<OwnedKey<L>>>>,
    /// Whether keys are moving.
    moving: AtomicBool,
    memory: Arc<MemoryUse>,
    options: D::Options<L>,
}

impl<D: Partitioned, L: Layout> ComputePool<D, L> {
    /// Creates compute servers with empty caches: one more than there are boundaries, plus the
    /// spare ones, which own nothing yet.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the boundaries do not ascend strictly, or if the caches'
    /// memory cannot be allocated.
    pub fn new(options: &D::Options<L>) -> Result<Self, IndexError> {
        let map = Arc::new(PartitionMap::new::<L>(1, options.boundaries().to_vec())?);
        let servers = map.ranges() + options.spare_compute_servers();
        let memory = Arc::new(MemoryUse::all_but(options.spare_memory_servers()));
        Self::with_map(options, servers, map, memory)
    }

    /// Restarts some compute servers after their death: they get empty caches, and the map is the
    /// last one published. Call it only while no operation is in flight.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the caches' memory cannot be allocated.
    pub fn restarted(&self, dead: impl Fn(u16) -> bool) -> Result<Self, IndexError> {
        let servers = self.servers.len() as u16;
        let mut pool =
            Self::with_map(&self.options, servers, self.map(), Arc::clone(&self.memory))?;
        for (after, before) in pool.servers.iter_mut().zip(&self.servers) {
            if !dead(before.number()) {
                *after = Arc::clone(before);
            }
        }
        Ok(pool)
    }

    fn with_map(
        options: &D::Options<L>,
        servers: u16,
        map: Arc<PartitionMap<OwnedKey<L>>>,
        memory: Arc<MemoryUse>,
    ) -> Result<Self, IndexError> {
        let servers = (0..servers).map(|number| {
            let memory = Arc::clone(&memory);
            let state = D::start(options.server(), number, map.range_of(number), memory)?;
            Ok(Arc::new(ComputeServer::new(number, state, Arc::clone(&map))))
        });
        Ok(Self {
            servers: servers.collect::<Result<_, IndexError>>()?,
            map: Mutex::new(map),
            moving: AtomicBool::new(false),
            memory,
            options: options.clone(),
        })
    }

    /// The compute servers, indexed by number.
    pub fn servers(&self) -> &[Arc<ComputeServer<D, L>>] {
        &self.servers
    }

    /// The newest map.
    pub fn map(&self) -> Arc<PartitionMap<OwnedKey<L>>> {
        Arc::clone(&lock(&self.map))
    }

    /// Claims the right to move keys. `None` while another handle has it.
    pub(super) fn begin_move(&self, fabric: &impl Fabric) -> Option<MoveRight<'_>> {
        MoveRight::begin(&self.moving, fabric.breaks(rules::ONE_MOVE))
    }

    /// Publishes a map to all compute servers. Call it only while no operation is in flight on any
    /// of them, or if only the ranges of a move change.
    pub(super) fn publish(&self, map: PartitionMap<OwnedKey<L>>) {
        let map = Arc::new(map);
        for server in &self.servers {
            server.set_map(&map);
        }
        *lock(&self.map) = map;
    }

    /// The memory servers that take new nodes.
    pub(super) fn memory(&self) -> &MemoryUse {
        &self.memory
    }

    /// The options that the pool was created with.
    pub fn options(&self) -> &D::Options<L> {
        &self.options
    }

    /// Bytes of cached nodes on all compute servers.
    pub fn cached_bytes(&self) -> u64 {
        self.servers.iter().map(|server| server.state().cached_bytes()).sum()
    }
}
