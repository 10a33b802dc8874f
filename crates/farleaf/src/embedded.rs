//! An index within this process.

use crate::confined::{Engine, Over};
use crate::error::Error;
use crate::handle::Handle;
use crate::shared::Shared;
use farleaf_core::cache::CacheOptions;
use farleaf_core::index::dex::DexOptions;
use farleaf_core::index::{Design, IndexError};
use farleaf_core::page::Fixed8;
use farleaf_core::partition::Dex;
use farleaf_core::server::{MemoryServer, MemoryServerConfig};
use farleaf_fabric::ServerId;
use farleaf_fabric::executor::Executor;
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Options of an embedded index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmbeddedOptions {
    /// Number of memory servers, from 1 to 1024. Default: 2.
    pub memory_servers: u16,
    /// Size of each memory server's pool in bytes, a multiple of 4096. The memory is allocated as
    /// it is used. Default: 256 MiB.
    pub pool_bytes: usize,
    /// Size of the compute server's cache in bytes. Default: 64 MiB.
    pub cache_bytes: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { memory_servers: 2, pool_bytes: 256 << 20, cache_bytes: 64 << 20 }
    }
}

impl EmbeddedOptions {
    /// Sets the number of memory servers.
    #[must_use]
    pub fn memory_servers(mut self, memory_servers: u16) -> Self {
        self.memory_servers = memory_servers;
        self
    }

    /// Sets the size of each memory server's pool, in bytes.
    #[must_use]
    pub fn pool_bytes(mut self, pool_bytes: usize) -> Self {
        self.pool_bytes = pool_bytes;
        self
    }

    /// Sets the size of the cache, in bytes.
    #[must_use]
    pub fn cache_bytes(mut self, cache_bytes: u64) -> Self {
        self.cache_bytes = cache_bytes;
        self
    }
}

/// An index of this process alone: memory servers and one compute server without a network, for
/// trying Farleaf out and for tests. It runs the code of a cluster, over the provider `local` and
/// the design DEX. Its content ends with the last clone of the handle.
#[derive(Clone, Copy, Debug)]
pub struct Embedded;

/// Each memory server holds whole subtrees of this level: about 40 leaves.
const PLACEMENT_LEVEL: u8 = 1;

impl Embedded {
    /// Starts the memory servers, and creates an empty index on them.
    ///
    /// Operations run on the threads that wait for them, one thread at a time.
    ///
    /// # Errors
    /// [`Error::Open`]: there is no memory, or an option is out of range.
    pub fn open(options: EmbeddedOptions) -> Result<Handle, Error> {
        Shared::open(move || make(&options)).map(Handle::new)
    }
}

fn make(options: &EmbeddedOptions) -> Result<Box<dyn Engine>, Error> {
    let failed = |why: &dyn std::fmt::Display| Error::Open(why.to_string());
    if !(1..=1024).contains(&options.memory_servers) {
        return Err(failed(&"expected a number of memory servers from 1 to 1024"));
    }
    let config =
        MemoryServerConfig { pool_bytes: options.pool_bytes, ..MemoryServerConfig::default() };
    let server = |number| MemoryServer::<Fixed8>::new(ServerId::new(number), &config).map(Arc::new);
    let servers: Result<Vec<_>, _> = (0..options.memory_servers).map(server).collect();
    let cluster =
        LocalCluster::start(LocalConfig::default(), servers.map_err(|error| failed(&error))?);
    let cache = CacheOptions { bytes: options.cache_bytes, ..CacheOptions::default() };
    let mut dex = DexOptions::with_boundaries(Vec::new(), cache);
    dex.placement_level = PLACEMENT_LEVEL;
    let driver = cluster.driver();
    let fabric = driver.open(0, 0);
    let opened = Rc::new(RefCell::new(None));
    let result = Rc::clone(&opened);
    let mut executor = Executor::new();
    executor.spawn(0, async move {
        let open = async {
            <Dex as Design<Fixed8>>::create(&fabric, &dex).await?;
            let compute = <Dex as Design<Fixed8>>::compute(&dex)?;
            <Dex as Design<Fixed8>>::open(fabric.clone(), &compute).await
        };
        let index: Result<_, IndexError> = open.await;
        *result.borrow_mut() = Some(index);
    });
    executor.run(&driver);
    let index = opened.take().ok_or_else(|| failed(&"the memory servers do not answer"))?;
    Ok(Box::new(Over::new(driver, index.map_err(|error| failed(&error))?, |_| Ok(None))))
}
