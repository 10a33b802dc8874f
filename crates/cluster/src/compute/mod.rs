//! The compute server program. It answers clients for the keys that the partition map assigns to
//! it, through a cache of the memory servers' nodes.
//!
//! It serves one generation of the index at a time. A restarted memory server has lost some of the
//! index's nodes, so the whole index is lost. The live compute server with the lowest number then
//! raises the generation, the memory servers empty their memory, that compute server creates a new
//! index, and all compute servers serve it (decision 033).
//!
//! It waits for the cluster's settings, which name the layout, before it receives any request.
//!
//! *Thread safety*: [`run`] occupies one thread of the program; the modules that it starts describe
//! their own thread safety.

mod design;
mod front;
mod index;
mod map_store;
mod metrics;
mod reach;
mod takeover;
#[cfg(test)]
mod tests;
mod threads;

use crate::catalog::{self, CatalogAddress};
use crate::config::{self, ConfigError};
use crate::error::ProgramError;
use crate::layouts::{BlockSettings, ClusterLayout, LayoutName};
use crate::membership::ClusterMember;
use crate::records::{
    self, CatalogKeys, ComputeRecord, IndexName, IndexRecord, IndexState, MapRecord, MemoryRecord,
    SettingsRecord,
};
use crate::settings;
use crate::stop::StopSignal;
use crate::text::{KeyRecord, Notation, Textual};
use crate::with_layout;
use design::{ClusterDesign, ServerTrees};
use farleaf_dex::Dex;
use farleaf_dex::blocks::BlockUsage;
use farleaf_dex::cache::{CacheOptions, DirtyStats};
use farleaf_dlsm::{DlsmOptions, ShardedDlsm};
use farleaf_fabric::handshake::{PeerRole, Token};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::tcp::TcpServerConfig;
use farleaf_index::partition::{ComputeServer, MapState, PartitionMap, TakeoverOptions};
use farleaf_index::{IndexError, PartState};
use farleaf_page::OwnedKey;
use map_store::CatalogMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;
use takeover::TakeoverThread;
use threads::{GenerationThreads, RequestTally, ThreadCounters, WorkerThreads};

/// Options of a compute server.
#[derive(Clone, Debug)]
pub struct ComputeServerOptions {
    /// Its number among the compute servers.
    pub number: u16,
    /// The name of the cluster.
    pub cluster: String,
    /// The address to listen on for clients.
    pub listen: SocketAddr,
    /// Number of its threads. Each receives requests, executes them and sends the answers.
    pub threads: usize,
    /// Its cache, of nodes and of values outside leaves. An LSM index has MemTables and indexes of
    /// tables instead.
    pub cache: CacheOptions,
    /// Its LSM trees, if the index has any.
    pub tree: DlsmOptions,
    /// Shards of each compute server, if the index is an LSM index. Only the server that creates
    /// the index uses it.
    pub shards: u16,
    /// Most shards of a compute server that divides a shard to move a part of it, if the index is
    /// an LSM index. With 0, shards move whole.
    pub most_shards: usize,
    /// How it keeps values that are byte strings.
    pub blocks: BlockSettings,
    pub catalog: CatalogAddress,
    /// The file with the cluster's token.
    pub token_file: PathBuf,
    /// The address that clients should use, if it is not `listen`.
    pub advertise: Option<String>,
    /// Term of its lease.
    pub term: Duration,
    /// Timeout of one request to a memory server.
    pub request_timeout: Duration,
    /// The lowest key of each range but the first, as text. Only the server that creates the first
    /// partition map uses it. If empty, that server uses [`Textual::first_boundaries`].
    pub boundaries: Vec<String>,
    /// The address to serve metrics on, if any.
    pub metrics: Option<SocketAddr>,
    /// Whether it takes over the keys of dead compute servers, and others its own; if unset, it
    /// does not.
    pub takeover: Option<bool>,
    /// How long it may answer after the posting of its latest answered probe of a memory server.
    pub right: Duration,
}

/// Poll interval of the catalog.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long to wait for the server's number and for the catalog, beyond the lease term.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(20);

/// Sources of a compute server's metrics.
#[derive(Default)]
struct MetricSources {
    tally: Arc<RequestTally>,
    serving: Mutex<Option<Arc<dyn WatchedGeneration>>>,
}

/// The generation being served, with any layout.
trait WatchedGeneration: Send + Sync {
    fn look(&self) -> ComputeServerSnapshot;
}

/// A snapshot of a compute server's state.
#[derive(Clone, Debug, Default)]
struct ComputeServerSnapshot {
    /// The work of each of its threads since it began to serve this generation.
    done: Vec<ThreadCounters>,
    /// The epoch of its map; 0 while it does not serve.
    map_epoch: u64,
    /// Its key range: the lowest key, and the first key beyond it.
    range: Option<(KeyRecord, Option<KeyRecord>)>,
    /// Bytes of nodes in its cache.
    cached_bytes: u64,
    /// The part of the cache that is not written back yet.
    dirt: DirtyStats,
    /// Number of memory servers that it cannot reach.
    unreachable: u64,
    /// Takeovers that it has completed.
    takeovers: u64,
    /// The space of its value blocks, and the bytes of cached ones, if the cluster has blocks.
    blocks: Option<(BlockUsage, u64)>,
    /// Its LSM trees, if the index has any.
    trees: Option<ServerTrees>,
}

impl MetricSources {
    /// Takes a snapshot.
    fn look(&self) -> ComputeServerSnapshot {
        let serving = lock(&self.serving).clone();
        serving.map_or_else(ComputeServerSnapshot::default, |serving| serving.look())
    }
}

impl<L: ClusterLayout, D: ClusterDesign<L>> WatchedGeneration for threads::GenerationShared<L, D> {
    fn look(&self) -> ComputeServerSnapshot {
        let range = self.server.map().range_of(self.server.number());
        let record = |key: &OwnedKey<L>| L::key(key).to_record();
        ComputeServerSnapshot {
            done: self.done.iter().map(|done| *lock(done)).collect(),
            map_epoch: self.server.epoch(),
            range: Some((record(&range.low), range.high.as_ref().map(record))),
            cached_bytes: self.server.state().cached_bytes(),
            dirt: self.dirt(),
            unreachable: self.server.detector().missing().len() as u64,
            takeovers: self.server.takeovers(),
            blocks: D::blocks_of(&self.values),
            trees: D::trees(self.server.state()),
        }
    }
}

/// One generation being served.
struct ServedGeneration<L: ClusterLayout, D: ClusterDesign<L>> {
    generation: u64,
    threads: GenerationThreads<L, D>,
}

struct ComputeProgram<'a, L: ClusterLayout, D: ClusterDesign<L>> {
    options: &'a ComputeServerOptions,
    /// Whether it takes over the keys of dead compute servers.
    takes_over: bool,
    /// [`ComputeServerOptions::boundaries`], as keys.
    given: Vec<OwnedKey<L>>,
    token: Token,
    keys: CatalogKeys,
    catalog: Arc<dyn catalog::Catalog>,
    watched: Arc<MetricSources>,
    /// Declared before the crew, so that it is dropped first: dropping the crew waits for this
    /// work.
    serving: Option<ServedGeneration<L, D>>,
    crew: WorkerThreads<L>,
    /// Whether this machine is known to support the cluster's transport.
    is_reachable: bool,
    /// The last reported reason for not serving.
    said: String,
}

/// Runs a compute server until `stop` is raised, then writes back its cache.
///
/// # Errors
/// [`ProgramError`] if it cannot serve at all, or cannot end cleanly.
pub fn run(options: &ComputeServerOptions, stop: &StopSignal) -> Result<(), ProgramError> {
    let token = config::read_token(&options.token_file)?;
    let keys = CatalogKeys::new(&options.cluster)
        .map_err(|bad| ConfigError::Settings(format!("`{}`: {bad}", options.cluster)))?;
    let catalog = catalog::open(&options.catalog, &token)?;
    let what = format!("cannot listen at {}", options.listen);
    let listener = TcpListener::bind(options.listen).map_err(ProgramError::system(what))?;
    let settings = await_settings(options, &*catalog, &keys, stop)?;
    let Some((layout, index, takes_over)) = settings else { return Ok(()) };
    let start = ComputeServerStart { token, keys, catalog, listener, takes_over };
    with_layout!(layout, L => match index {
        IndexName::Dex => run_with::<L, Dex>(options, start, stop),
        IndexName::Dlsm => run_with::<L, ShardedDlsm>(options, start, stop),
    })
}

/// Waits for the settings of the cluster, and returns its layout, its index design, and whether
/// this server takes keys over; `None` if `stop` was raised.
fn await_settings(
    options: &ComputeServerOptions,
    catalog: &dyn catalog::Catalog,
    keys: &CatalogKeys,
    stop: &StopSignal,
) -> Result<Option<(LayoutName, IndexName, bool)>, ProgramError> {
    let mut said = String::new();
    while !stop.is_raised() {
        let waits_for = match records::get::<SettingsRecord>(catalog, &keys.settings()) {
            Ok(Some((settings, _))) => {
                settings::check_compute_number(options.number, settings.compute_servers)?;
                let SettingsRecord { index, compute_servers, .. } = settings;
                let acknowledge = settings::acknowledge_of(index, &options.cache, &options.tree);
                let asked = options.takeover;
                let takes_over = settings::takes_over(asked, acknowledge, compute_servers)?;
                return Ok(Some((settings.layout()?, settings.index, takes_over)));
            }
            Ok(None) => "waiting for the cluster's settings".to_owned(),
            Err(error) => error.to_string(),
        };
        if said != waits_for {
            tracing::info!("{waits_for}");
            said = waits_for;
        }
        stop.wait(POLL_INTERVAL);
    }
    Ok(None)
}

/// The state of a compute server before it knows its layout.
struct ComputeServerStart {
    token: Token,
    keys: CatalogKeys,
    catalog: Arc<dyn catalog::Catalog>,
    listener: TcpListener,
    takes_over: bool,
}

fn run_with<L: ClusterLayout, D: ClusterDesign<L>>(
    options: &ComputeServerOptions,
    start: ComputeServerStart,
    stop: &StopSignal,
) -> Result<(), ProgramError> {
    let ComputeServerStart { token, keys, catalog, listener, takes_over } = start;
    let given = boundaries_of::<L>(&options.boundaries)?;
    let config = TcpServerConfig {
        role: PeerRole::ComputeServer,
        number: options.number,
        accepts: &[PeerRole::Client, PeerRole::ComputeServer],
        io_threads: options.threads,
        ..TcpServerConfig::default()
    };
    let crew = WorkerThreads::<L>::start(listener, &token, config)?;
    let watched = Arc::new(MetricSources::default());
    let look = Arc::clone(&watched);
    let metrics = options
        .metrics
        .map(|listen| metrics::start(listen, crew.server(), look, options.number))
        .transpose()?;
    let address = crew.server().local_address();
    let record = ComputeRecord {
        number: options.number,
        pid: std::process::id(),
        address: config::advertised(address, options.advertise.as_deref())?,
        epoch: crew.server().identity().epoch,
        generation: 0,
        unreachable: Vec::new(),
        right_ms: takes_over.then(|| right_ms(options)),
        metrics: metrics.as_ref().map(|metrics| metrics.local_address().to_string()),
    };
    let (key, value) = (keys.compute(options.number), records::encode(&record));
    let mut published = record.clone();
    let patience = options.term + REGISTER_TIMEOUT;
    let member =
        ClusterMember::register(Arc::clone(&catalog), key, value, options.term, patience, stop);
    let member = match member {
        Err(_) if stop.is_raised() => return Ok(()),
        member => member?,
    };
    tracing::info!("compute server {} listens at {address}", options.number);
    let mut program = ComputeProgram::<L, D> {
        options,
        takes_over,
        given,
        token,
        keys,
        catalog,
        crew,
        watched,
        serving: None,
        is_reachable: false,
        said: String::new(),
    };
    let mut outcome = Ok(());
    while !stop.wait(POLL_INTERVAL) {
        if !program.crew.are_alive() {
            return failed(format!("a thread of compute server {} failed", options.number));
        }
        if program.was_declared_dead() {
            return failed(format!(
                "compute server {} was declared dead, and others serve its keys: start it again",
                options.number
            ));
        }
        match program.look() {
            Ok(()) => {}
            // Waiting does not fix these errors.
            Err(error @ (ProgramError::Transport(_) | ProgramError::Config(_))) => {
                outcome = Err(error);
                break;
            }
            Err(error) => program.say(error.to_string()),
        }
        let record = program.standing(&record);
        if record != published {
            match member.publish(records::encode(&record)) {
                Ok(()) => published = record,
                Err(error) => program.say(error.to_string()),
            }
        }
    }
    // While it ends, clients are told that this server does not serve.
    let ended = program.end();
    drop(member);
    drop(metrics);
    drop(program);
    outcome.and(ended)
}

/// [`ComputeServerOptions::right`] in milliseconds.
fn right_ms(options: &ComputeServerOptions) -> u32 {
    u32::try_from(options.right.as_millis()).unwrap_or(u32::MAX)
}

fn failed<T>(what: impl Into<String>) -> Result<T, ProgramError> {
    Err(ProgramError::Failed(what.into()))
}

/// Wraps an error of the index or of the catalog's contents as the program's error.
fn because(error: impl std::fmt::Display) -> ProgramError {
    ProgramError::Failed(error.to_string())
}

/// Parses the boundaries between compute servers.
///
/// # Errors
/// [`ConfigError::Settings`] if one is not a key of this layout.
pub fn boundaries_of<L: ClusterLayout>(texts: &[String]) -> Result<Vec<OwnedKey<L>>, ConfigError> {
    let key = |text: &String| L::Key::parse(text, Notation::Escaped);
    let keys = texts.iter().map(key).collect::<Result<_, _>>();
    keys.map_err(|why| ConfigError::Settings(format!("--boundaries: {why}")))
}

/// The initial partition map of a cluster.
///
/// # Errors
/// [`ConfigError::Settings`] unless `boundaries` has one key fewer than there are servers, all of
/// them ascending strictly from above the lowest key, none too long, and all of them short enough
/// for a map.
pub fn first_map<L: ClusterLayout>(
    boundaries: Vec<OwnedKey<L>>,
    compute_servers: u16,
) -> Result<PartitionMap<OwnedKey<L>>, ConfigError> {
    let needed = usize::from(compute_servers.max(1)) - 1;
    if boundaries.len() != needed {
        let found = boundaries.len();
        let what =
            format!("{compute_servers} compute servers need {needed} boundaries, not {found}");
        return Err(ConfigError::Settings(what));
    }
    let lowest = L::min_key();
    let ascend = boundaries.is_sorted_by(|a, b| a < b)
        && boundaries.first().is_none_or(|first| *first > lowest);
    PartitionMap::new::<L>(1, boundaries).map_err(|error| {
        ConfigError::Settings(match error {
            IndexError::TooLong(_) => format!("a boundary is too long: {error}"),
            error if ascend => error.to_string(),
            _ => {
                let lowest = L::key(&lowest).text(Notation::Escaped);
                let lowest = if lowest.is_empty() { "the empty key".to_owned() } else { lowest };
                format!("boundaries must ascend strictly from above {lowest}")
            }
        })
    })
}

/// The first few boundaries, formatted for an error message.
fn listed(boundaries: &[KeyRecord]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = boundaries.iter().take(SHOWN).map(KeyRecord::to_string).collect();
    match boundaries.len().saturating_sub(SHOWN) {
        0 => shown.join(","),
        more => format!("{},… ({more} more)", shown.join(",")),
    }
}

impl<L: ClusterLayout, D: ClusterDesign<L>> ComputeProgram<'_, L, D> {
    /// The server's record with its current state.
    fn standing(&self, record: &ComputeRecord) -> ComputeRecord {
        let (generation, unreachable) = match &self.serving {
            Some(serving) => {
                (serving.generation, serving.threads.shared.server.detector().missing())
            }
            None => (0, Vec::new()),
        };
        ComputeRecord { generation, unreachable, ..record.clone() }
    }

    /// Whether the compute server knows that it was declared dead.
    fn was_declared_dead(&self) -> bool {
        let serving = self.serving.as_ref();
        serving.is_some_and(|serving| serving.threads.shared.server.was_declared_dead())
    }

    /// Logs a message, unless it was the last one logged.
    fn say(&mut self, what: String) {
        if self.said != what {
            tracing::info!("{what}");
            self.said = what;
        }
    }

    fn memory(&self, settings: &SettingsRecord) -> Result<Option<Vec<MemoryRecord>>, ProgramError> {
        let mut found: Vec<MemoryRecord> =
            records::list(&*self.catalog, &self.keys.memory_prefix())?;
        // A memory server with a number outside the cluster holds no part of the index.
        found.retain(|record| record.number < settings.memory_servers);
        found.sort_by_key(|record| record.number);
        let whole = found.len() == usize::from(settings.memory_servers)
            && (0..).zip(&found).all(|(number, record)| record.number == number);
        Ok(whole.then_some(found))
    }

    /// Reads the catalog and takes the next step that its state requires.
    fn look(&mut self) -> Result<(), ProgramError> {
        let settings = records::get::<SettingsRecord>(&*self.catalog, &self.keys.settings())?;
        let Some((settings, _)) = settings else {
            self.say("waiting for the cluster's settings".to_owned());
            return Ok(());
        };
        let layout = settings.layout()?;
        if layout != L::name() {
            let what =
                format!("the cluster has {layout} by now, and this server has {}", L::name());
            return Err(ConfigError::Settings(what).into());
        }
        if settings.index.to_string() != D::NAME {
            let what = format!(
                "the cluster has {} as its index by now, and this server has {}",
                settings.index,
                D::NAME
            );
            return Err(ConfigError::Settings(what).into());
        }
        if !self.is_reachable {
            reach::check(settings.transport, self.options)?;
            self.is_reachable = true;
        }
        let index = records::get::<IndexRecord>(&*self.catalog, &self.keys.index())?;
        let generation = index.as_ref().map_or(0, |(index, _)| index.generation);
        let is_ready = index.as_ref().is_some_and(|(index, _)| index.state == IndexState::Ready);
        if self.serving.as_ref().is_some_and(|serving| serving.generation != generation) {
            self.abandon();
        }
        let Some(memory) = self.memory(&settings)? else {
            if self.serving.is_none() {
                self.say("waiting for all memory servers".to_owned());
            }
            return Ok(());
        };
        let epochs: Vec<u64> = memory.iter().map(|record| record.epoch).collect();
        let is_whole = index.as_ref().is_some_and(|(index, _)| index.memory_epochs == epochs);
        if is_ready && is_whole {
            return match self.serving {
                Some(_) => Ok(()),
                None => self.serve(generation, &settings, &memory),
            };
        }
        if self.is_maker()? {
            self.make(index, &settings, &memory)?;
        } else if self.serving.is_none() {
            self.say(format!("waiting for generation {generation} of the index"));
        }
        Ok(())
    }

    /// Whether this server must create the index: it is the live compute server with the lowest
    /// number.
    fn is_maker(&self) -> Result<bool, ProgramError> {
        let compute: Vec<ComputeRecord> =
            records::list(&*self.catalog, &self.keys.compute_prefix())?;
        let first = compute.iter().map(|record| record.number).min();
        Ok(first == Some(self.options.number))
    }

    /// Refuses boundaries that differ from those of the first map. Later ones may have moved.
    fn check_boundaries(&self, record: &MapRecord) -> Result<(), ProgramError> {
        let given: Vec<KeyRecord> = self.given.iter().map(|key| L::key(key).to_record()).collect();
        if record.epoch > 1 || given.is_empty() || given == record.boundaries {
            return Ok(());
        }
        let (made, given) = (listed(&record.boundaries), listed(&given));
        let what = format!("this cluster was made with {made} as the boundaries, not {given}");
        Err(ConfigError::Settings(what).into())
    }

    /// The boundaries for creating generation `generation`: those of the catalog's map, without any
    /// pending move, or those of a first map.
    fn boundaries(
        &self,
        settings: &SettingsRecord,
        generation: u64,
    ) -> Result<Vec<OwnedKey<L>>, ProgramError> {
        let key = self.keys.map();
        let found = records::get::<MapRecord>(&*self.catalog, &key)?;
        let (map, version) = match found {
            Some((record, version)) => {
                self.check_boundaries(&record)?;
                if record.generation.is_some_and(|newer| newer > generation) {
                    return failed(format!("generation {generation} of the index is gone"));
                }
                (record.state::<L>().map_err(because)?.map, Some(version))
            }
            None => {
                let servers = settings.compute_servers.max(1);
                let boundaries = match self.given.is_empty() {
                    true => L::Key::first_boundaries(servers),
                    false => self.given.clone(),
                };
                (first_map::<L>(boundaries, servers)?, None)
            }
        };
        let boundaries = map.boundaries().to_vec();
        let record = MapRecord::new::<L>(&MapState::settled(map), Some(generation));
        // If another server was first, its map wins; the next read of the catalog finds it.
        match records::put_if(&*self.catalog, &key, version, &record, None)? {
            true => Ok(boundaries),
            false => failed("another compute server changed the partition map meanwhile"),
        }
    }

    /// Takes the next step towards a ready index.
    fn make(
        &mut self,
        index: Option<(IndexRecord, catalog::EntryVersion)>,
        settings: &SettingsRecord,
        memory: &[MemoryRecord],
    ) -> Result<(), ProgramError> {
        let key = self.keys.index();
        let version = index.as_ref().map(|(_, version)| *version);
        let making = |generation| IndexRecord {
            generation,
            state: IndexState::Making,
            memory_epochs: Vec::new(),
        };
        let Some((record, _)) = index else {
            records::put_if(&*self.catalog, &key, None, &making(1), None)?;
            return Ok(());
        };
        let generation = record.generation;
        if record.state == IndexState::Ready {
            tracing::warn!(
                "a memory server was restarted: generation {generation} of the index is lost; creating an empty one"
            );
            records::put_if(&*self.catalog, &key, version, &making(generation + 1), None)?;
            return Ok(());
        }
        if memory.iter().any(|record| record.generation != generation) {
            self.say(format!(
                "waiting for the memory servers to join generation {generation} of the index"
            ));
            return Ok(());
        }
        let boundaries = self.boundaries(settings, generation)?;
        let level = settings.placement_level;
        let cluster = reach::connect(settings.transport, memory, &self.token, self.options)?;
        let new = D::new_index(boundaries, level, self.options).map_err(|error| match error {
            // With the same options it always will be.
            IndexError::InvalidArgument(what) => ConfigError::Settings(what.to_owned()).into(),
            error => because(error),
        })?;
        if let Err(error) = index::create::<L, D, _>(&cluster, &new) {
            // Parts of an index may exist, so start again with empty memory.
            records::put_if(&*self.catalog, &key, version, &making(generation + 1), None)?;
            return Err(error);
        }
        let ready = IndexRecord {
            generation,
            state: IndexState::Ready,
            memory_epochs: memory.iter().map(|record| record.epoch).collect(),
        };
        records::put_if(&*self.catalog, &key, version, &ready, None)?;
        tracing::info!("generation {generation} of the index is ready");
        Ok(())
    }

    fn serve(
        &mut self,
        generation: u64,
        settings: &SettingsRecord,
        memory: &[MemoryRecord],
    ) -> Result<(), ProgramError> {
        if let Some((record, _)) = records::get::<MapRecord>(&*self.catalog, &self.keys.map())? {
            self.check_boundaries(&record)?;
        }
        let store = CatalogMap::start(Arc::clone(&self.catalog), &self.keys, generation)?;
        let cluster = reach::connect(settings.transport, memory, &self.token, self.options)?;
        let (of_server, values) = D::server(self.options).map_err(because)?;
        let number = self.options.number;
        let map = index::begin_incarnation::<L, D, _>(&cluster, (number, &of_server), &store)?;
        let server = ComputeServer::start(number, &of_server, map).map_err(because)?;
        // Otherwise it would find this out while it opens the index, and begin lives for ever.
        index::check_part::<L, D, _>(&cluster, server.state())?;
        index::adopt::<L, D, _>(&cluster, self.options.number, &values)?;
        let takeover = self.takes_over.then(|| TakeoverOptions {
            right_ns: u64::from(right_ms(self.options)) * 1_000_000,
            ..TakeoverOptions::default()
        });
        let server = (Arc::new(server.taking_over(takeover)), values);
        let cluster = Arc::new(cluster);
        let takeovers = takeover.map(|_| {
            let (catalog, right_ms) = (Arc::clone(&self.catalog), right_ms(self.options));
            let memory = Arc::clone(&cluster);
            let own = (right_ms, of_server.clone());
            TakeoverThread::start::<D>(catalog, &self.keys, memory, store.clone(), own)
        });
        let takeovers = takeovers.transpose()?;
        let tally = Arc::clone(&self.watched.tally);
        let threads =
            GenerationThreads::start(&self.crew, server, &cluster, (&store, takeovers), tally)?;
        if self.takes_over {
            // Its endpoints are open: the fence of a later takeover cuts them off (over.T3).
            let record = records::get::<MapRecord>(&*self.catalog, &self.keys.map())?;
            let state =
                record.map(|(record, _)| record.state::<L>().map_err(because)).transpose()?;
            if state.is_none_or(|state| threads.shared.server.lost_keys_by(&state)) {
                threads.stop();
                return failed("others took the keys over while this server was starting");
            }
        }
        *lock(&self.watched.serving) = Some(Arc::clone(&threads.shared) as _);
        self.crew.serve(Some(&threads));
        self.serving = Some(ServedGeneration { generation, threads });
        self.said.clear();
        tracing::info!("serving generation {generation} of the index");
        Ok(())
    }

    fn take_down(&mut self) -> Option<ServedGeneration<L, D>> {
        self.crew.serve::<D>(None);
        *lock(&self.watched.serving) = None;
        self.serving.take()
    }

    /// Stops serving an index that no longer exists.
    fn abandon(&mut self) {
        if let Some(serving) = self.take_down() {
            tracing::warn!("generation {} of the index is gone", serving.generation);
            serving.threads.stop();
        }
    }

    fn end(&mut self) -> Result<(), ProgramError> {
        let Some(serving) = self.take_down() else { return Ok(()) };
        let flushed = serving.threads.flush();
        serving.threads.stop();
        match flushed {
            Ok(()) => tracing::info!("everything is written back"),
            Err(why) => return failed(format!("cannot write everything back: {why}")),
        }
        Ok(())
    }
}
