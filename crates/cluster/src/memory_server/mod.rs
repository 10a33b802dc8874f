//! `farleaf memory-server`: runs one memory server as a program.
//!
//! *Generations*: an index spans all memory servers, so a restart of one of them loses the whole
//! index. The compute servers then raise the generation in the catalog. Every memory server whose
//! memory was used for a lower generation discards that memory: it creates a new, empty region and
//! a new listener at the same address, which draws a new epoch. The epoch tells endpoints that
//! their knowledge of the old region is invalid.
//!
//! *Invariants*: memory_server.Y1. A region serves one generation, and the record that names that
//! generation also names the epoch of the listener that serves the region. memory_server.Y2. A
//! region to which no endpoint was ever admitted is empty, and may serve the next generation.
//!
//! *Thread safety*: [`run`] occupies the calling thread.

mod listening;

use crate::catalog::{Catalog, CatalogAddress, EmbeddedCatalog, EmbeddedConfig, open};
use crate::config::{self, ConfigError};
use crate::error::ProgramError;
use crate::layouts::{ClusterLayout, LayoutName};
use crate::membership::ClusterMember;
use crate::metrics::{MetricKind, Metrics, MetricsServer};
use crate::records::{
    self, CatalogKeys, IndexName, IndexRecord, MemoryRecord, PoolTransport, SettingsRecord,
};
use crate::settings;
use crate::stop::StopSignal;
use crate::with_layout;
use farleaf_fabric::ServerId;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_page::Layout;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_pool::wire::Usage;
use listening::{ListenAddress, ListenerCounters, PoolListener};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

/// Poll interval of the generation.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long to wait, beyond the lease term, for a catalog that does not answer yet or for the
/// server's number to become free.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of connections to an embedded catalog.
const CATALOG_CONNECTIONS: usize = 4096;

/// Where the catalog is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogPlace {
    /// In another process, or in etcd.
    At(CatalogAddress),
    /// Embedded in this program.
    Here {
        /// The address to listen on; with port 0 the operating system chooses the port.
        listen: SocketAddr,
        /// The file that holds its state.
        state: PathBuf,
        /// A file to write its address to.
        address_file: Option<PathBuf>,
    },
}

/// Options of a memory server.
#[derive(Clone, Debug)]
pub struct MemoryServerOptions {
    /// The name of the cluster.
    pub cluster: String,
    /// The server's number, from 0.
    pub number: u16,
    /// How compute servers reach it.
    pub transport: PoolTransport,
    /// The address to listen on over tcp, or to set up connections over verbs; with port 0 the
    /// operating system chooses the port.
    pub listen: SocketAddr,
    /// The path of its socket over shm.
    pub socket: Option<PathBuf>,
    /// The address that compute servers should use, if it is not `listen`.
    pub advertise: Option<String>,
    /// Size of its pool, in bytes.
    pub pool_bytes: usize,
    /// Each subtree of this level lies entirely on one memory server.
    pub placement_level: u8,
    /// Threads that serve connections.
    pub threads: usize,
    /// Maximum number of connections.
    pub connections: usize,
    pub catalog: CatalogPlace,
    /// The file with the cluster's token.
    pub token_file: PathBuf,
    /// The address to serve metrics on, if any.
    pub metrics: Option<SocketAddr>,
    /// Term of its lease in the catalog.
    pub term: Duration,
    /// Settings for the new cluster, if this program may create it.
    pub creates: Option<CreatorSettings>,
}

/// Settings of a cluster that only its creator chooses.
#[derive(Clone, Copy, Debug)]
pub struct CreatorSettings {
    pub memory_servers: u16,
    pub compute_servers: u16,
    pub layout: LayoutName,
    pub index: IndexName,
}

/// A memory server's region with any layout.
trait AnyLayoutRegion: Send + Sync {
    fn usage(&self) -> Usage;
    /// The nodes in use, and the free ones.
    fn nodes(&self) -> (u64, u64);
}

impl<L: Layout> AnyLayoutRegion for MemoryServer<L> {
    fn usage(&self) -> Usage {
        self.usage()
    }

    fn nodes(&self) -> (u64, u64) {
        self.nodes()
    }
}

/// A region being served.
struct ServedPool {
    listening: Box<dyn PoolListener>,
    service: Arc<dyn AnyLayoutRegion>,
    generation: u64,
}

impl ServedPool {
    fn start(
        options: &MemoryServerOptions,
        layout: LayoutName,
        token: &Token,
        place: &ListenAddress,
        generation: u64,
    ) -> Result<Self, ProgramError> {
        with_layout!(layout, L => Self::start_with::<L>(options, token, place, generation))
    }

    fn start_with<L: ClusterLayout>(
        options: &MemoryServerOptions,
        token: &Token,
        place: &ListenAddress,
        generation: u64,
    ) -> Result<Self, ProgramError> {
        let config = MemoryServerConfig {
            pool_bytes: options.pool_bytes,
            placement_level: options.placement_level,
            backing: place.backing(),
            ..MemoryServerConfig::default()
        };
        let service = MemoryServer::<L>::new(ServerId::new(options.number), &config)
            .map_err(|error| ProgramError::Failed(format!("the pool: {error}")))?;
        let service = Arc::new(service);
        let listening = place.serve(options, &service, token)?;
        Ok(Self { listening, service, generation })
    }

    /// Whether an endpoint was ever admitted.
    fn was_used(&self) -> bool {
        self.listening.counted().welcomed > 0
    }
}

/// The pool; `None` while one pool replaces another.
type SharedPool = Arc<Mutex<Option<ServedPool>>>;

fn fill(metrics: &Metrics, pool: &SharedPool) {
    let counters = |look: fn(&ListenerCounters) -> u64| {
        let pool = Arc::clone(pool);
        move || lock(&pool).as_ref().map_or(0, |pool| look(&pool.listening.counted()))
    };
    let usage = |look: fn(&Usage) -> u64| {
        let pool = Arc::clone(pool);
        move || lock(&pool).as_ref().map_or(0, |pool| look(&pool.service.usage()))
    };
    let one = |name, help, kind, look: Box<dyn Fn() -> u64 + Send + Sync>| {
        metrics.add_one(name, help, kind, look);
    };
    use MetricKind::{Counter, Gauge};
    one("connections", "Open connections", Gauge, Box::new(counters(|c| c.connections)));
    one(
        "welcomed",
        "Connections accepted by the handshake",
        Counter,
        Box::new(counters(|c| c.welcomed)),
    );
    one(
        "refused",
        "Connections refused by the handshake",
        Counter,
        Box::new(counters(|c| c.refused)),
    );
    one("requests", "Requests served", Counter, Box::new(counters(|c| c.requests)));
    one("pool_bytes", "Bytes of the pool", Gauge, Box::new(usage(|u| u.pool_bytes)));
    let help = "Allocated bytes of the pool";
    one("allocated_bytes", help, Gauge, Box::new(usage(|u| u.allocated_bytes)));
    let nodes = |look: fn((u64, u64)) -> u64| {
        let pool = Arc::clone(pool);
        move || lock(&pool).as_ref().map_or(0, |pool| look(pool.service.nodes()))
    };
    let help = "Nodes allocated in chunks and not known to be free";
    one("nodes_in_use", help, Gauge, Box::new(nodes(|(in_use, _)| in_use)));
    let help = "Freed nodes that wait for reuse on this server";
    one("nodes_free", help, Gauge, Box::new(nodes(|(_, free)| free)));
    let look = Arc::clone(pool);
    let generation = move || lock(&look).as_ref().map_or(0, |pool| pool.generation);
    let help = "The generation of the index that the memory is for";
    one("generation", help, Gauge, Box::new(generation));
}

/// The generation in the catalog; 0 before the first index exists.
fn generation(catalog: &dyn Catalog, keys: &CatalogKeys) -> Result<u64, ProgramError> {
    let index = records::get::<IndexRecord>(catalog, &keys.index())?;
    Ok(index.map_or(0, |(index, _)| index.generation))
}

struct MemoryProgram<'a> {
    options: &'a MemoryServerOptions,
    layout: LayoutName,
    token: Token,
    keys: CatalogKeys,
    catalog: Arc<dyn Catalog>,
    pool: SharedPool,
    /// The place where the pool is served. It is valid even while there is no pool.
    place: ListenAddress,
    advertised: String,
    metrics: Option<String>,
}

impl MemoryProgram<'_> {
    fn record(&self) -> Result<String, ProgramError> {
        let pool = lock(&self.pool);
        let pool =
            pool.as_ref().ok_or_else(|| ProgramError::Failed("the pool is not ready".into()))?;
        Ok(records::encode(&MemoryRecord {
            number: self.options.number,
            pid: std::process::id(),
            transport: self.options.transport,
            address: self.advertised.clone(),
            epoch: pool.listening.epoch(),
            generation: pool.generation,
            metrics: self.metrics.clone(),
        }))
    }

    /// Prepares the memory for `generation`: keeps it if it is unused, otherwise replaces it.
    fn renew(&self, generation: u64) -> Result<(), ProgramError> {
        let mut place = lock(&self.pool);
        if let Some(pool) = place.as_mut().filter(|pool| !pool.was_used()) {
            pool.generation = generation;
            tracing::info!("generation {generation}: keeping the unused memory");
            return Ok(());
        }
        // Drop the old pool first: it holds the address, and there may not be enough memory for
        // both.
        *place = None;
        let pool =
            ServedPool::start(self.options, self.layout, &self.token, &self.place, generation)?;
        let epoch = pool.listening.epoch();
        *place = Some(pool);
        tracing::info!("generation {generation}: new memory, epoch {epoch:016x}");
        Ok(())
    }

    /// Follows the generation until `stop` is raised.
    fn serve(&self, member: &ClusterMember, stop: &StopSignal) -> Result<(), ProgramError> {
        let (mut published, mut fails) = (true, false);
        while !stop.wait(POLL_INTERVAL) {
            let step = generation(&*self.catalog, &self.keys).and_then(|generation| {
                let mine = lock(&self.pool).as_ref().map(|pool| pool.generation);
                if mine.is_none_or(|mine| mine < generation) {
                    self.renew(generation)?;
                    published = false;
                }
                if !published {
                    member.publish(self.record()?)?;
                    published = true;
                }
                Ok(())
            });
            match step {
                Ok(()) if fails => {
                    tracing::info!("the catalog is back");
                    fails = false;
                }
                Ok(()) => {}
                // Programs that are already connected do not need the catalog.
                Err(error @ (ProgramError::Catalog(_) | ProgramError::Record(_))) => {
                    if !fails {
                        tracing::warn!("{error}");
                    }
                    fails = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Retries a request to the catalog that must succeed before the server can start.
fn patiently<T>(
    stop: &StopSignal,
    mut ask: impl FnMut() -> Result<T, ProgramError>,
) -> Result<T, ProgramError> {
    use crate::catalog::CatalogError::{Indeterminate, Unreachable};
    let clock = crate::clock::MonotonicClock::start();
    loop {
        match ask() {
            Err(ProgramError::Catalog(Unreachable { .. } | Indeterminate { .. }))
                if clock.elapsed() < REGISTER_TIMEOUT && !stop.wait(Duration::from_millis(100)) => {
            }
            Err(ProgramError::Record(records::RecordError::Catalog(Unreachable { .. })))
                if clock.elapsed() < REGISTER_TIMEOUT && !stop.wait(Duration::from_millis(100)) => {
            }
            answer => return answer,
        }
    }
}

/// Waits for the settings of the cluster, which name its layout; `None` if `stop` was raised.
fn await_settings(
    catalog: &dyn Catalog,
    keys: &CatalogKeys,
    stop: &StopSignal,
) -> Result<Option<SettingsRecord>, ProgramError> {
    let mut waits = false;
    while !stop.is_raised() {
        let read = || Ok(records::get::<SettingsRecord>(catalog, &keys.settings())?);
        if let Some((settings, _)) = patiently(stop, read)? {
            return Ok(Some(settings));
        }
        if !std::mem::replace(&mut waits, true) {
            tracing::info!("waiting for the cluster's settings");
        }
        stop.wait(POLL_INTERVAL);
    }
    Ok(None)
}

/// Runs a memory server until `stop` is raised.
///
/// # Errors
/// [`ProgramError`] if the server could not start, or could not continue.
pub fn run(options: &MemoryServerOptions, stop: &StopSignal) -> Result<(), ProgramError> {
    let token = config::read_token(&options.token_file)?;
    let keys = CatalogKeys::new(&options.cluster)
        .map_err(|bad| ConfigError::Settings(format!("`{}`: {bad}", options.cluster)))?;
    let wanted = ListenAddress::wanted(options)?;
    // Report an address that cannot be published before the cluster is created.
    wanted.advertised(options)?;
    let (embedded, place) = match &options.catalog {
        CatalogPlace::At(address) => (None, address.clone()),
        CatalogPlace::Here { listen, state, address_file } => {
            let what = format!("the catalog cannot listen at {listen}");
            let listener = TcpListener::bind(listen).map_err(ProgramError::system(what))?;
            let config = EmbeddedConfig { state: state.clone(), connections: CATALOG_CONNECTIONS };
            let catalog = EmbeddedCatalog::start(listener, &token, &config)
                .map_err(ProgramError::system("the catalog"))?;
            let address = catalog.local_address();
            tracing::info!("the catalog is at {address}, its state in {}", state.display());
            if let Some(file) = address_file {
                config::replace_file(file, &format!("{address}\n"))?;
            }
            (Some(catalog), CatalogAddress::Embedded(address.into()))
        }
    };
    let catalog = open(&place, &token)?;
    let (memory_servers, layout) = match &options.creates {
        Some(creates) => (creates.memory_servers, creates.layout),
        None => match await_settings(&*catalog, &keys, stop)? {
            Some(settings) => (settings.memory_servers, settings.layout()?),
            None => return Ok(()),
        },
    };
    settings::check_number("memory", options.number, memory_servers)?;
    let generation = patiently(stop, || generation(&*catalog, &keys))?;
    // Start the pool before writing the settings, so that settings that cannot be served are never
    // written.
    let pool = ServedPool::start(options, layout, &token, &wanted, generation)?;
    if let Some(CreatorSettings { memory_servers, compute_servers, layout, index }) =
        options.creates
    {
        let mine = SettingsRecord {
            memory_servers,
            compute_servers,
            transport: options.transport,
            placement_level: options.placement_level,
            keys: layout.recorded_keys().to_owned(),
            page_bytes: layout.page_bytes(),
            index,
        };
        patiently(stop, || settings::agree(&*catalog, &keys, &mine))?;
    }
    let (place, epoch) = (pool.listening.place(), pool.listening.epoch());
    let advertised = place.advertised(options)?;
    let pool = Arc::new(Mutex::new(Some(pool)));
    let metrics = options.metrics.map(|listen| start_metrics(listen, &pool)).transpose()?;
    let program = MemoryProgram {
        options,
        layout,
        token,
        keys,
        catalog: Arc::clone(&catalog),
        pool,
        place,
        advertised,
        metrics: metrics.as_ref().map(|metrics| metrics.local_address().to_string()),
    };
    let patience = options.term + REGISTER_TIMEOUT;
    let key = program.keys.memory(options.number);
    let member =
        ClusterMember::register(catalog, key, program.record()?, options.term, patience, stop);
    let member = match member {
        Err(_) if stop.is_raised() => return Ok(()),
        member => member?,
    };
    tracing::info!(
        "memory server {} serves {} bytes over {} at {}, epoch {epoch:016x}, generation {generation}",
        options.number,
        options.pool_bytes,
        options.transport,
        program.advertised
    );
    let ended = program.serve(&member, stop);
    // Unregister first, then stop serving; the catalog ends last.
    drop(member);
    drop(metrics);
    drop(program);
    drop(embedded);
    ended
}

fn start_metrics(listen: SocketAddr, pool: &SharedPool) -> Result<MetricsServer, ProgramError> {
    let metrics = Metrics::default();
    fill(&metrics, pool);
    let what = format!("metrics cannot be served at {listen}");
    let listener = TcpListener::bind(listen).map_err(ProgramError::system(what))?;
    let look = Arc::clone(pool);
    MetricsServer::start(listener, metrics, move || lock(&look).is_some())
        .map_err(ProgramError::system("metrics"))
}
