//! `farleaf memory-server`: one memory server as a program.
//!
//! *Generations*: an index lies on all memory servers together, so when one of them is restarted
//! all of it is lost. The compute side then raises the generation in the catalog, and every memory
//! server whose memory has been used for a lower one throws it away: a new, empty region, and a new
//! listener at the same address that draws a new epoch, by which endpoints see that what they knew
//! is gone.
//!
//! *Invariants*: memory_server.Y1. a region serves one generation, and the record that names that
//! generation names the epoch of the listener that serves the region. memory_server.Y2. a region
//! that no endpoint was ever let into may serve the next generation; it is empty.
//!
//! *Thread safety*: [`run`] has the calling thread for itself.

mod listening;

use crate::catalog::{Catalog, CatalogAddress, EmbeddedCatalog, EmbeddedConfig, open};
use crate::config::{self, ConfigError};
use crate::error::ProgramError;
use crate::membership::Member;
use crate::metrics::{Kind, Metrics, MetricsServer};
use crate::records::{self, IndexRecord, Keys, MemoryRecord, SettingsRecord, Transport};
use crate::settings;
use crate::stop::Stop;
use farleaf::page::Fixed8;
use farleaf::server::{MemoryServer, MemoryServerConfig};
use farleaf::wire::Usage;
use farleaf_fabric::ServerId;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use listening::{Counted, Listening, Place};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

/// How often the generation is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long a program waits for a catalog that does not answer yet, or for its number to become
/// free, beyond the term.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many connections an embedded catalog takes.
const CATALOG_CONNECTIONS: usize = 4096;

/// Where the catalog is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogPlace {
    /// Elsewhere.
    At(CatalogAddress),
    /// Embedded in this program.
    Here {
        /// Where it listens; with port 0 the operating system chooses.
        listen: SocketAddr,
        /// The file of its state.
        state: PathBuf,
        /// A file that is to say where it listens.
        address_file: Option<PathBuf>,
    },
}

/// What a memory server's program is told.
#[derive(Clone, Debug)]
pub struct MemoryServerOptions {
    /// The cluster's name.
    pub cluster: String,
    /// The server's number, from 0.
    pub number: u16,
    /// How compute servers reach it.
    pub transport: Transport,
    /// Where it listens over tcp, and where connections are brought up over verbs; with port 0 the
    /// operating system chooses.
    pub listen: SocketAddr,
    /// The socket that it is reached by over shm.
    pub socket: Option<PathBuf>,
    /// Where others reach that, if not where it listens.
    pub advertise: Option<String>,
    /// Bytes of its pool.
    pub pool_bytes: usize,
    /// Subtrees of this level lie whole on one memory server.
    pub placement_level: u8,
    /// Threads that serve connections.
    pub threads: usize,
    /// How many connections there may be.
    pub connections: usize,
    /// Where the catalog is.
    pub catalog: CatalogPlace,
    /// The file of the cluster's token.
    pub token_file: PathBuf,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The term of its lease in the catalog.
    pub term: Duration,
    /// How many memory and compute servers the cluster has, if it is this program that says so.
    pub servers: Option<(u16, u16)>,
}

/// A region that is served.
struct Pool {
    listening: Box<dyn Listening>,
    service: Arc<MemoryServer<Fixed8>>,
    generation: u64,
}

impl Pool {
    fn start(
        options: &MemoryServerOptions,
        token: &Token,
        place: &Place,
        generation: u64,
    ) -> Result<Self, ProgramError> {
        let config = MemoryServerConfig {
            pool_bytes: options.pool_bytes,
            placement_level: options.placement_level,
            backing: place.backing(),
            ..MemoryServerConfig::default()
        };
        let service = MemoryServer::<Fixed8>::new(ServerId::new(options.number), &config)
            .map_err(|error| ProgramError::Failed(format!("the pool: {error}")))?;
        let service = Arc::new(service);
        let listening = place.serve(options, &service, token)?;
        Ok(Self { listening, service, generation })
    }

    /// Whether an endpoint was ever let in.
    fn was_used(&self) -> bool {
        self.listening.counted().welcomed > 0
    }
}

/// The pool; none while one takes another's place.
type Shared = Arc<Mutex<Option<Pool>>>;

fn fill(metrics: &Metrics, pool: &Shared) {
    let counters = |look: fn(&Counted) -> u64| {
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
    use Kind::{Counter, Gauge};
    one("connections", "Connections that are open", Gauge, Box::new(counters(|c| c.connections)));
    one("welcomed", "Connections that were let in", Counter, Box::new(counters(|c| c.welcomed)));
    one("refused", "Connections that were not let in", Counter, Box::new(counters(|c| c.refused)));
    one("requests", "Requests", Counter, Box::new(counters(|c| c.requests)));
    one("pool_bytes", "Bytes of the pool", Gauge, Box::new(usage(|u| u.pool_bytes)));
    let help = "Allocated bytes of the pool";
    one("allocated_bytes", help, Gauge, Box::new(usage(|u| u.allocated_bytes)));
    let nodes = |look: fn((u64, u64)) -> u64| {
        let pool = Arc::clone(pool);
        move || lock(&pool).as_ref().map_or(0, |pool| look(pool.service.nodes()))
    };
    let help = "Nodes that were given away in chunks and are not known to be free";
    one("nodes_in_use", help, Gauge, Box::new(nodes(|(in_use, _)| in_use)));
    let help = "Nodes that were freed and wait for reuse on this server";
    one("nodes_free", help, Gauge, Box::new(nodes(|(_, free)| free)));
    let look = Arc::clone(pool);
    let generation = move || lock(&look).as_ref().map_or(0, |pool| pool.generation);
    let help = "The generation of the index that the memory is for";
    one("generation", help, Gauge, Box::new(generation));
}

/// The generation that the catalog says; 0 before there was an index.
fn generation(catalog: &dyn Catalog, keys: &Keys) -> Result<u64, ProgramError> {
    let index = records::get::<IndexRecord>(catalog, &keys.index())?;
    Ok(index.map_or(0, |(index, _)| index.generation))
}

struct Program<'a> {
    options: &'a MemoryServerOptions,
    token: Token,
    keys: Keys,
    catalog: Arc<dyn Catalog>,
    pool: Shared,
    /// Where the pool is served, also while it is not.
    place: Place,
    advertised: String,
    metrics: Option<String>,
}

impl Program<'_> {
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

    /// Makes the memory one for `generation`.
    fn renew(&self, generation: u64) -> Result<(), ProgramError> {
        let mut place = lock(&self.pool);
        if let Some(pool) = place.as_mut().filter(|pool| !pool.was_used()) {
            pool.generation = generation;
            tracing::info!("generation {generation}: keeping the unused memory");
            return Ok(());
        }
        // First the old one: there may not be room for both, and it has the address.
        *place = None;
        let pool = Pool::start(self.options, &self.token, &self.place, generation)?;
        let epoch = pool.listening.epoch();
        *place = Some(pool);
        tracing::info!("generation {generation}: new memory, epoch {epoch:016x}");
        Ok(())
    }

    /// Follows the generation until the end is wished for.
    fn serve(&self, member: &Member, stop: &Stop) -> Result<(), ProgramError> {
        let (mut published, mut fails) = (true, false);
        while !stop.wait(LOOK) {
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
                // Without a catalog, connected programs go on.
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

/// Waits for what the catalog must say once before anything can begin.
fn patiently<T>(
    stop: &Stop,
    mut ask: impl FnMut() -> Result<T, ProgramError>,
) -> Result<T, ProgramError> {
    use crate::catalog::CatalogError::{Indeterminate, Unreachable};
    let clock = crate::clock::Clock::start();
    loop {
        match ask() {
            Err(ProgramError::Catalog(Unreachable { .. } | Indeterminate { .. }))
                if clock.elapsed() < PATIENCE && !stop.wait(Duration::from_millis(100)) => {}
            Err(ProgramError::Record(records::RecordError::Catalog(Unreachable { .. })))
                if clock.elapsed() < PATIENCE && !stop.wait(Duration::from_millis(100)) => {}
            answer => return answer,
        }
    }
}

/// Runs a memory server until `stop` is raised.
///
/// # Errors
/// [`ProgramError`]: it could not start, or could not go on.
pub fn run(options: &MemoryServerOptions, stop: &Stop) -> Result<(), ProgramError> {
    let token = config::read_token(&options.token_file)?;
    let keys = Keys::new(&options.cluster)
        .map_err(|bad| ConfigError::Settings(format!("`{}`: {bad}", options.cluster)))?;
    let wanted = Place::wanted(options)?;
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
            (Some(catalog), CatalogAddress::Embedded(address))
        }
    };
    let catalog = open(&place, &token)?;
    let memory_servers = match options.servers {
        Some((memory_servers, _)) => Some(memory_servers),
        None => patiently(stop, || {
            let settings = records::get::<SettingsRecord>(&*catalog, &keys.settings())?;
            Ok(settings.map(|(settings, _)| settings.memory_servers))
        })?,
    };
    if let Some(count) = memory_servers {
        settings::check_number("memory", options.number, count)?;
    }
    let generation = patiently(stop, || generation(&*catalog, &keys))?;
    // First this, then the settings: what cannot be served is not what the cluster is made with.
    let pool = Pool::start(options, &token, &wanted, generation)?;
    if let Some((memory_servers, compute_servers)) = options.servers {
        let mine = SettingsRecord {
            memory_servers,
            compute_servers,
            transport: options.transport,
            placement_level: options.placement_level,
        };
        patiently(stop, || settings::agree(&*catalog, &keys, &mine))?;
    }
    let (place, epoch) = (pool.listening.place(), pool.listening.epoch());
    let advertised = place.advertised(options)?;
    let pool = Arc::new(Mutex::new(Some(pool)));
    let metrics = options.metrics.map(|listen| start_metrics(listen, &pool)).transpose()?;
    let program = Program {
        options,
        token,
        keys,
        catalog: Arc::clone(&catalog),
        pool,
        place,
        advertised,
        metrics: metrics.as_ref().map(|metrics| metrics.local_address().to_string()),
    };
    let patience = options.term + PATIENCE;
    let key = program.keys.memory(options.number);
    let member = Member::register(catalog, key, program.record()?, options.term, patience, stop);
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
    // First it is not registered any more, then it does not serve; the catalog goes last.
    drop(member);
    drop(metrics);
    drop(program);
    drop(embedded);
    ended
}

fn start_metrics(listen: SocketAddr, pool: &Shared) -> Result<MetricsServer, ProgramError> {
    let metrics = Metrics::default();
    fill(&metrics, pool);
    let what = format!("metrics cannot be served at {listen}");
    let listener = TcpListener::bind(listen).map_err(ProgramError::system(what))?;
    let look = Arc::clone(pool);
    MetricsServer::start(listener, metrics, move || lock(&look).is_some())
        .map_err(ProgramError::system("metrics"))
}
