//! An index in this process: its memory servers, its cache, and its engines.

use crate::cores::{EnginePool, EngineSlot};
use crate::data::KeyKind;
use crate::engine::{AnyEngine, DriverEngine, InProcessDriver};
use crate::error::{Error, ErrorCause};
use crate::index::Index;
use crate::request::RequestServer;
use farleaf_dex::blocks::{BlockOptions, DexWithBlocks};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::executor::Executor;
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::{AnyFabric, Cluster, ServerId};
use farleaf_index::DEFAULT_CACHE_BYTES;
use farleaf_index::Design;
use farleaf_page::{Bytes, Fixed8, Layout, OwnedKey};
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use std::num::NonZero;
use std::sync::Arc;

/// Options of an [`Embedded`] index.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    memory_bytes: u64,
    memory_servers: u16,
    cache_bytes: u64,
    engines: usize,
    page_bytes: usize,
}

impl Default for EmbeddedOptions {
    /// 1 GiB for nodes on one memory server, a cache of 64 MiB, one engine per hardware thread, and
    /// pages of 1 KiB.
    fn default() -> Self {
        let engines = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            memory_bytes: 1 << 30,
            memory_servers: 1,
            cache_bytes: DEFAULT_CACHE_BYTES,
            engines,
            page_bytes: PAGE_BYTES,
        }
    }
}

impl EmbeddedOptions {
    /// Sets the most memory for nodes and long values, in bytes, of all memory servers together.
    /// The operating system provides it as it is used. 1 GiB holds some 40 million records of
    /// `u64`.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Sets the number of memory servers. One is enough, except for testing the behavior of an
    /// index on several.
    #[must_use]
    pub fn memory_servers(mut self, servers: u16) -> Self {
        self.memory_servers = servers;
        self
    }

    /// Sets the size of the cache, in bytes. The cache is additional to the memory for nodes, and
    /// is allocated at once.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets how many threads can execute operations at the same time.
    #[must_use]
    pub fn engines(mut self, engines: usize) -> Self {
        self.engines = engines;
        self
    }

    /// Sets the size of pages for byte strings: 1024, 2048 or 4096 bytes. Larger pages take longer
    /// keys, and move more bytes for each operation.
    #[must_use]
    pub fn page_bytes(mut self, bytes: usize) -> Self {
        self.page_bytes = bytes;
        self
    }
}

/// An index whose memory servers are in this process. It needs no other process and no network, and
/// its data is lost when the handle is dropped.
#[derive(Debug)]
pub enum Embedded {}

/// The default page size, and the only one for numbers.
const PAGE_BYTES: usize = 1024;
/// Pools are whole multiples of this.
const POOL_ALIGN: u64 = 4096;
/// More threads than any machine has.
const MAX_ENGINES: usize = 4096;

fn invalid(why: &str) -> Error {
    Error::Invalid(ErrorCause::text(why))
}

impl Embedded {
    /// Creates an empty index of `u64` keys and values.
    ///
    /// # Errors
    /// [`Error::Invalid`] if an option is out of range or if there is not enough memory for it, and
    /// [`Error::System`] if the system has no more file descriptors.
    pub fn open(options: EmbeddedOptions) -> Result<Index, Error> {
        if options.page_bytes != PAGE_BYTES {
            return Err(invalid("an embedded index of u64 keys has pages of 1024 bytes"));
        }
        index_of::<Fixed8, Dex, u64>(options, |options| options)
    }

    /// Creates an empty index of byte strings. Values can have up to 1 MiB; longer ones are beside
    /// the pages, so their length does not depend on the size of pages.
    ///
    /// # Errors
    /// As for [`Embedded::open`].
    pub fn open_bytes(options: EmbeddedOptions) -> Result<Index<[u8]>, Error> {
        match options.page_bytes {
            1024 => index_of::<Bytes<128>, DexWithBlocks, [u8]>(options, BlockOptions::new),
            2048 => index_of::<Bytes<256>, DexWithBlocks, [u8]>(options, BlockOptions::new),
            4096 => index_of::<Bytes<512>, DexWithBlocks, [u8]>(options, BlockOptions::new),
            _ => Err(invalid("an embedded index has pages of 1024, 2048 or 4096 bytes")),
        }
    }
}

/// An index of design `D`, whose options `with` makes of those of DEX. Blocks are not cached: the
/// memory servers' memory is as near as a cache.
fn index_of<L, D, K>(
    options: EmbeddedOptions,
    with: fn(DexOptions<OwnedKey<L>>) -> D::Options,
) -> Result<Index<K>, Error>
where
    L: Layout<Key = K, Value = K>,
    D: Design<L, Index<AnyFabric>: RequestServer<K>>,
    K: ?Sized + KeyKind,
{
    let EmbeddedOptions { memory_bytes, memory_servers, cache_bytes, engines, .. } = options;
    if memory_servers == 0 || memory_servers > ServerId::LIMIT {
        return Err(invalid("an embedded index needs at least one memory server"));
    }
    if engines == 0 || engines > MAX_ENGINES {
        return Err(invalid("an embedded index needs 1 to 4096 engines"));
    }
    let pool_bytes = memory_bytes / u64::from(memory_servers) / POOL_ALIGN * POOL_ALIGN;
    let pool_bytes = usize::try_from(pool_bytes).map_err(|_| invalid("too much memory"))?;
    let config = MemoryServerConfig { pool_bytes, ..MemoryServerConfig::default() };
    let servers = (0..memory_servers).map(|number| {
        let server = MemoryServer::<L>::new(ServerId::new(number), &config);
        server.map(Arc::new).map_err(|error| Error::Invalid(ErrorCause::of(error)))
    });
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    let system = |error| Error::system("cannot create an embedded index", error);
    let cluster = LocalCluster::start(LocalConfig::default(), servers).map_err(system)?;
    let cluster = Arc::new(cluster);
    let cache = CacheOptions { bytes: cache_bytes, ..CacheOptions::default() };
    let options = with(DexOptions::with_boundaries(Vec::new(), cache));
    let compute = D::compute(&options)?;
    cluster.try_run_one(async |fabric| D::create(&fabric, &options).await).map_err(system)??;
    let core = |number| {
        let (cluster, compute) = (Arc::clone(&cluster), compute.clone());
        EngineSlot::new(move || engine::<L, D, K>(&cluster, &compute, number))
    };
    let cores = (0..engines).map(core).collect::<Result<_, _>>()?;
    Ok(Index::new(EnginePool::new(cores)))
}

fn engine<L, D, K>(
    cluster: &LocalCluster<MemoryServer<L>>,
    compute: &D::Compute,
    number: usize,
) -> Result<Box<dyn AnyEngine<K>>, Error>
where
    L: Layout<Key = K, Value = K>,
    D: Design<L, Index<AnyFabric>: RequestServer<K>>,
    K: ?Sized + KeyKind,
{
    let system = |error| Error::system("cannot create an engine", error);
    let driver = InProcessDriver::new(cluster.driver()).map_err(system)?;
    let (fabric, compute) = (driver.open(number).map_err(system)?, compute.clone());
    let mut executor = Executor::new();
    let opened = executor.complete(&driver, async move { D::open(fabric, &compute).await });
    let index = opened.ok_or_else(|| invalid("the index did not open"))??;
    Ok(Box::new(DriverEngine::new(executor, index, driver, usize::MAX)?))
}
