//! The compute side of one index in this process: its compute servers and the map.
//!
//! *Thread safety*: any number of threads.

use super::{ComputeServer, PartitionMap};
use crate::index::IndexError;
use crate::index::dex::{DexOptions, DexServer};
use crate::page::Layout;
use farleaf_fabric::sync::{Arc, Mutex, lock};

/// All compute servers.
#[derive(Debug)]
pub struct ComputePool<L: Layout> {
    servers: Vec<Arc<ComputeServer<L>>>,
    /// The newest map.
    map: Mutex<Arc<PartitionMap<L::Key>>>,
    options: DexOptions<L::Key>,
}

impl<L: Layout> ComputePool<L> {
    /// Compute servers with empty caches, one more than there are boundaries.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the boundaries make no sense or there is no memory for the caches.
    pub fn new(options: &DexOptions<L::Key>) -> Result<Self, IndexError> {
        let map = Arc::new(PartitionMap::new::<L>(1, options.boundaries.clone())?);
        let servers = (0..map.compute_servers()).map(|number| {
            let dex = DexServer::new(&options.cache, map.range_of(number)).map_err(|_| {
                IndexError::InvalidArgument("there is no memory for a cache of this size")
            })?;
            Ok(Arc::new(ComputeServer::new(number, dex, Arc::clone(&map))))
        });
        Ok(Self {
            servers: servers.collect::<Result<_, IndexError>>()?,
            map: Mutex::new(map),
            options: options.clone(),
        })
    }

    /// The compute servers, by number.
    pub fn servers(&self) -> &[Arc<ComputeServer<L>>] {
        &self.servers
    }

    /// The newest map.
    pub fn map(&self) -> Arc<PartitionMap<L::Key>> {
        Arc::clone(&lock(&self.map))
    }

    /// Publishes a map to all compute servers. For when no operation is under way on any.
    pub(super) fn publish(&self, map: PartitionMap<L::Key>) {
        let map = Arc::new(map);
        for server in &self.servers {
            server.set_map(&map);
        }
        *lock(&self.map) = map;
    }

    /// The choices that it was made with.
    pub fn options(&self) -> &DexOptions<L::Key> {
        &self.options
    }

    /// Bytes of frames in use, of all compute servers.
    pub fn cached_bytes(&self) -> u64 {
        self.servers.iter().map(|server| server.dex().cache().used_bytes()).sum()
    }
}
