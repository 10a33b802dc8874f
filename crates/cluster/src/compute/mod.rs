//! The program of a compute server: it answers clients for the keys that the partition map gives it, over a cache of the
//! memory servers' nodes.
//!
//! It serves one generation of the index at a time. If a memory server was restarted, a part of the index's nodes is gone
//! and the index with it: the compute server of the lowest number that lives raises the generation, the memory servers
//! empty their memory, it makes a new index, and all serve that (decision 033).
//!
//! *Thread safety*: [`run`] is for one thread of the program; what it starts says for itself.

mod front;
mod index;
#[cfg(test)]
mod tests;
mod threads;

pub(crate) use threads::{Done, Tally};

use crate::catalog::{self, CatalogAddress};
use crate::membership::Member;
use crate::records::{
    self, ComputeRecord, IndexRecord, IndexState, Keys, MapRecord, MemoryRecord, SettingsRecord,
    Transport as TransportName,
};
use crate::stop::Stop;
use anyhow::Context;
use farleaf::cache::CacheOptions;
use farleaf::page::Fixed8;
use farleaf::partition::{ComputeServer, PartitionMap};
use farleaf_fabric::handshake::{Role, Token};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::tcp::{
    TcpCluster, TcpConfig, TcpDriver, TcpFabric, TcpServer, TcpServerConfig,
};
use front::Front;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use threads::{Threads, Transport};

/// What a compute server is like.
#[derive(Clone, Debug)]
pub struct ComputeServerConfig {
    /// Its number among the compute servers.
    pub number: u16,
    /// The cluster's name.
    pub cluster: String,
    /// Where clients reach it.
    pub listen: SocketAddr,
    /// Threads that work on requests.
    pub threads: usize,
    /// Threads that receive and send them.
    pub io_threads: usize,
    /// Its cache.
    pub cache: CacheOptions,
    /// Where the catalog is.
    pub catalog: CatalogAddress,
    /// The cluster's secret.
    pub token: Token,
    /// The term of its lease.
    pub term: Duration,
    /// The longest that one request to a memory server may take.
    pub request_timeout: Duration,
    /// Where each range of keys begins but the first, if this program makes the first map: evenly, if there are none.
    pub boundaries: Vec<u64>,
    /// Where its metrics are, if anywhere.
    pub metrics: Option<SocketAddr>,
}

/// How often the catalog is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How long a program waits for its number and the catalog.
const PATIENCE: Duration = Duration::from_secs(60);

impl Transport for TcpCluster {
    type Fabric = TcpFabric;
    type Driver = TcpDriver;

    fn driver(&self) -> io::Result<TcpDriver> {
        TcpCluster::driver(self)
    }

    fn open(driver: &TcpDriver, compute_server: u16, number: usize) -> io::Result<TcpFabric> {
        driver.open(compute_server, number)
    }
}

/// What the metrics of a compute server are made of.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) tally: Arc<Tally>,
    serving: Mutex<Option<Watching>>,
}

#[derive(Debug, Clone)]
struct Watching {
    shared: Arc<threads::Shared>,
}

/// What a compute server says of itself at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// What its threads have done since they began to serve this generation.
    pub(crate) done: Vec<Done>,
    /// The epoch of its map, 0 while it serves nobody.
    pub(crate) map_epoch: u64,
    /// Its range: the lowest key, and the first beyond.
    pub(crate) range: Option<(u64, Option<u64>)>,
    /// Bytes of nodes in its cache.
    pub(crate) cached_bytes: u64,
}

impl Watched {
    /// What there is to say now.
    pub(crate) fn look(&self) -> Seen {
        let Some(Watching { shared }) = lock(&self.serving).clone() else { return Seen::default() };
        let range = shared.server.map().range_of(shared.server.number());
        Seen {
            done: shared.done.iter().map(|done| *lock(done)).collect(),
            map_epoch: shared.server.epoch(),
            range: Some((range.low, range.high)),
            cached_bytes: shared.server.dex().cache().used_bytes(),
        }
    }
}

/// One generation, served.
struct Serving {
    generation: u64,
    threads: Threads,
}

struct Program<'a> {
    config: &'a ComputeServerConfig,
    keys: Keys,
    catalog: Arc<dyn catalog::Catalog>,
    front: Arc<Front>,
    watched: Arc<Watched>,
    serving: Option<Serving>,
    /// What was said last about why nobody is served.
    said: String,
}

/// Runs a compute server until `stop`; then it writes everything back.
///
/// # Errors
/// What keeps it from serving at all, or from ending cleanly.
pub fn run(config: &ComputeServerConfig, stop: &Stop) -> anyhow::Result<()> {
    let keys = Keys::new(&config.cluster)?;
    let catalog = catalog::open(&config.catalog, &config.token)?;
    let listener = TcpListener::bind(config.listen)
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    let front = Arc::new(Front::default());
    let server_config = TcpServerConfig {
        role: Role::ComputeServer,
        number: config.number,
        accepts: &[Role::Client, Role::ComputeServer],
        io_threads: config.io_threads,
        ..TcpServerConfig::default()
    };
    let server = TcpServer::start(listener, Arc::clone(&front), &config.token, server_config)?;
    let watched = Arc::new(Watched::default());
    let record = ComputeRecord {
        number: config.number,
        pid: std::process::id(),
        address: server.local_address().to_string(),
        epoch: server.identity().epoch,
        metrics: None,
    };
    let (key, value) = (keys.compute(config.number), records::encode(&record));
    let member = Member::register(Arc::clone(&catalog), key, value, config.term, PATIENCE, stop)?;
    tracing::info!("compute server {} listens on {}", config.number, server.local_address());
    let (serving, said) = (None, String::new());
    let mut program = Program { config, keys, catalog, front, watched, serving, said };
    while !stop.wait(LOOK) {
        if program.serving.as_ref().is_some_and(|serving| !serving.threads.are_alive()) {
            anyhow::bail!("a thread of compute server {} has failed", config.number);
        }
        if let Err(error) = program.look() {
            program.say(format!("{error:#}"));
        }
    }
    // Clients hear that nobody serves here, as long as what is under way ends and everything is written back.
    let ended = program.end();
    drop(member);
    server.stop();
    ended
}

impl Program<'_> {
    /// Says something once.
    fn say(&mut self, what: String) {
        if self.said != what {
            tracing::info!("{what}");
            self.said = what;
        }
    }

    fn memory(&self, settings: &SettingsRecord) -> anyhow::Result<Option<Vec<MemoryRecord>>> {
        let mut found: Vec<MemoryRecord> =
            records::list(&*self.catalog, &self.keys.memory_prefix())?;
        found.sort_by_key(|record| record.number);
        let whole = found.len() == usize::from(settings.memory_servers)
            && (0..).zip(&found).all(|(number, record)| record.number == number);
        Ok(whole.then_some(found))
    }

    /// Looks at the catalog, and does what is to be done.
    fn look(&mut self) -> anyhow::Result<()> {
        let settings = records::get::<SettingsRecord>(&*self.catalog, &self.keys.settings())?;
        let Some((settings, _)) = settings else {
            self.say("waiting for the cluster's settings".to_owned());
            return Ok(());
        };
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
                Some(_) => self.learn_map(),
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

    /// Whether it falls to this compute server to make the index: to the first that lives.
    fn is_maker(&self) -> anyhow::Result<bool> {
        let compute: Vec<ComputeRecord> =
            records::list(&*self.catalog, &self.keys.compute_prefix())?;
        let first = compute.iter().map(|record| record.number).min();
        Ok(first == Some(self.config.number))
    }

    fn transport(
        &self,
        settings: &SettingsRecord,
        memory: &[MemoryRecord],
    ) -> anyhow::Result<TcpCluster> {
        anyhow::ensure!(
            settings.transport == TransportName::Tcp,
            "this program cannot reach memory servers over {}",
            settings.transport
        );
        let addresses: Result<Vec<SocketAddr>, _> =
            memory.iter().map(|record| record.address.parse()).collect();
        let timeout = self.config.request_timeout;
        let config = TcpConfig {
            timeout_ns: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
            ..TcpConfig::default()
        };
        Ok(TcpCluster::connect(addresses?, &self.config.token, config))
    }

    fn map(&self, settings: &SettingsRecord) -> anyhow::Result<PartitionMap<u64>> {
        let key = self.keys.map();
        if let Some((record, _)) = records::get::<MapRecord>(&*self.catalog, &key)? {
            let MapRecord { epoch, boundaries, owners } = record;
            return Ok(PartitionMap::of_owners::<Fixed8>(epoch, boundaries, owners)?);
        }
        let servers = settings.compute_servers.max(1);
        let boundaries = match self.config.boundaries.is_empty() {
            true => {
                let step = u64::MAX / u64::from(servers);
                (1..servers).map(|number| step * u64::from(number)).collect()
            }
            false => self.config.boundaries.clone(),
        };
        anyhow::ensure!(
            boundaries.len() + 1 == usize::from(servers),
            "{servers} compute servers need {} boundaries, and there are {}",
            servers - 1,
            boundaries.len()
        );
        let map = PartitionMap::new::<Fixed8>(1, boundaries)?;
        let record = MapRecord {
            epoch: map.epoch(),
            boundaries: map.boundaries().to_vec(),
            owners: map.owners().to_vec(),
        };
        // If another was first, it is that one's map; the next look finds it.
        let put = records::put_if(&*self.catalog, &key, None, &record, None)?;
        anyhow::ensure!(put, "the partition map was made by another");
        Ok(map)
    }

    /// Brings the index one step nearer to being there.
    fn make(
        &mut self,
        index: Option<(IndexRecord, catalog::Version)>,
        settings: &SettingsRecord,
        memory: &[MemoryRecord],
    ) -> anyhow::Result<()> {
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
                "a memory server was restarted: generation {generation} of the index is lost, and an empty one is made"
            );
            records::put_if(&*self.catalog, &key, version, &making(generation + 1), None)?;
            return Ok(());
        }
        if memory.iter().any(|record| record.generation != generation) {
            self.say(format!("waiting for memory for generation {generation} of the index"));
            return Ok(());
        }
        let boundaries = self.map(settings)?.boundaries().to_vec();
        let cluster = self.transport(settings, memory)?;
        if let Err(error) = index::create(&cluster, boundaries, settings.placement_level) {
            // Whatever there is of it: begin with empty memory.
            records::put_if(&*self.catalog, &key, version, &making(generation + 1), None)?;
            return Err(error);
        }
        let ready = IndexRecord {
            generation,
            state: IndexState::Ready,
            memory_epochs: memory.iter().map(|record| record.epoch).collect(),
        };
        records::put_if(&*self.catalog, &key, version, &ready, None)?;
        tracing::info!("generation {generation} of the index is made");
        Ok(())
    }

    fn serve(
        &mut self,
        generation: u64,
        settings: &SettingsRecord,
        memory: &[MemoryRecord],
    ) -> anyhow::Result<()> {
        let map = self.map(settings)?;
        let cluster = Arc::new(self.transport(settings, memory)?);
        index::end_former_life(&*cluster, self.config.number)?;
        let server = ComputeServer::start(self.config.number, &self.config.cache, map)?;
        let (server, tally) = (Arc::new(server), Arc::clone(&self.watched.tally));
        let threads = Threads::start(server, &cluster, self.config.threads, tally)?;
        let shared = Arc::clone(&threads.shared);
        *lock(&self.watched.serving) = Some(Watching { shared });
        self.front.set(Some(Arc::clone(&threads.shared.queues)));
        self.serving = Some(Serving { generation, threads });
        self.said.clear();
        tracing::info!("serving generation {generation} of the index");
        Ok(())
    }

    /// Goes by the catalog's map, if that is newer.
    fn learn_map(&mut self) -> anyhow::Result<()> {
        let Some(serving) = &self.serving else { return Ok(()) };
        let server = &serving.threads.shared.server;
        if let Some((record, _)) = records::get::<MapRecord>(&*self.catalog, &self.keys.map())?
            && record.epoch > server.epoch()
        {
            let MapRecord { epoch, boundaries, owners } = record;
            let map = PartitionMap::of_owners::<Fixed8>(epoch, boundaries, owners)?;
            anyhow::ensure!(
                map.range_of(server.number()) == server.dex().range(),
                "the map of epoch {epoch} gives this compute server other keys than it has taken over"
            );
            server.set_map(&Arc::new(map));
            tracing::info!("the partition map of epoch {epoch}");
        }
        Ok(())
    }

    fn take_down(&mut self) -> Option<Serving> {
        self.front.set(None);
        *lock(&self.watched.serving) = None;
        self.serving.take()
    }

    /// The index that was served is no more.
    fn abandon(&mut self) {
        if let Some(serving) = self.take_down() {
            tracing::warn!("generation {} of the index is gone", serving.generation);
            serving.threads.stop();
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let Some(serving) = self.take_down() else { return Ok(()) };
        let flushed = serving.threads.flush();
        serving.threads.stop();
        match flushed {
            Ok(()) => tracing::info!("everything is written back"),
            Err(why) => anyhow::bail!("not everything could be written back: {why}"),
        }
        Ok(())
    }
}
