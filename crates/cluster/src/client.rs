//! A program's connection to a cluster. It finds the compute servers in the catalog and runs tasks
//! as clients of them. When a client loses a compute server, a background thread reads the catalog
//! again, and clients continue with the addresses that it finds.
//!
//! *Invariants*: per connection, at most one read of the catalog for lost servers is in progress,
//! and the next one begins at least `LOOKUP_INTERVAL` later.
//!
//! *Thread safety*: any number of threads may share a [`ClusterConnection`]; a client belongs to
//! the thread that runs it.

use crate::address::HostPort;
use crate::catalog::{self, Catalog, CatalogAddress};
use crate::clock::MonotonicClock;
use crate::config::ConfigError;
use crate::error::ProgramError;
use crate::layouts::{ClusterLayout, LayoutName};
use crate::records::{
    self, CatalogKeys, ComputeRecord, IndexRecord, IndexState, MapRecord, SettingsRecord,
};
use crate::settings::MAX_COMPUTE_SERVERS;
use crate::status::ClusterStatus;
use crate::stop::StopSignal;
use farleaf_fabric::handshake::{PeerRole, Token};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpDriver};
use farleaf_fabric::{AnyFabric, Cluster, ServerId};
use farleaf_index::IndexError;
use farleaf_index::client::{Acknowledged, ClientIndex, ClientOptions, ServerDirectory};
use farleaf_index::partition::PartitionMap;
use farleaf_page::{Fixed8, OwnedKey};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// A client of a cluster of processes.
pub type ClusterClient<L = Fixed8> = ClientIndex<AnyFabric, L>;

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// The name of the cluster.
    pub cluster: String,
    pub catalog: CatalogAddress,
    /// The cluster's shared secret.
    pub token: Token,
    /// Deadline of one operation.
    pub deadline: Duration,
    /// Maximum number of requests that a client has in flight.
    pub depth: usize,
}

/// Minimum time between two reads of the catalog for lost servers.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(50);

/// A cluster that was found in the catalog. It knows the kind of keys, so a program can choose
/// which [`ClusterConnection`] to open.
pub struct LocatedCluster {
    config: ConnectionConfig,
    catalog: Arc<dyn Catalog>,
    keys: CatalogKeys,
    settings: SettingsRecord,
    layout: LayoutName,
    acknowledged: Arc<Acknowledged>,
}

impl LocatedCluster {
    /// Looks the cluster up in the catalog.
    ///
    /// # Errors
    /// [`ProgramError`] if the catalog cannot be read, or has no such cluster.
    /// [`ProgramError::Config`] if this program has no such layout.
    pub fn find(config: &ConnectionConfig) -> Result<Self, ProgramError> {
        let catalog = catalog::open(&config.catalog, &config.token)?;
        let keys = CatalogKeys::new(&config.cluster)
            .map_err(|bad| ConfigError::Settings(format!("`{}`: {bad}", config.cluster)))?;
        let settings = records::get::<SettingsRecord>(&*catalog, &keys.settings())?;
        let unknown =
            || ProgramError::Failed(format!("no cluster {} in the catalog", config.cluster));
        let (settings, _) = settings.ok_or_else(unknown)?;
        let layout = settings.layout()?;
        let acknowledged = Arc::default();
        Ok(Self { config: config.clone(), catalog, keys, settings, layout, acknowledged })
    }

    /// Continues an earlier connection of this program ([`ClusterConnection::acknowledged`]): a
    /// flush covers its changes, too.
    #[must_use]
    pub fn continuing(self, acknowledged: Arc<Acknowledged>) -> Self {
        Self { acknowledged, ..self }
    }

    /// The layout of the cluster.
    pub fn layout(&self) -> LayoutName {
        self.layout
    }

    /// Empties the index, and waits until the compute servers serve the new one. The memory servers
    /// free all memory of the old index at once. Operations in flight fail as not served, or with
    /// an unknown outcome. If this program dies meanwhile, the servers complete the change by
    /// themselves.
    ///
    /// # Errors
    /// [`ProgramError`] if there is no index to empty, if another program is emptying it, or if the
    /// compute servers do not serve the new one in time.
    pub fn clear(&self, within: Duration) -> Result<(), ProgramError> {
        let (catalog, keys) = (&*self.catalog, &self.keys);
        let failed = |why: &str| Err(ProgramError::Failed(why.to_owned()));
        let Some((index, version)) = records::get::<IndexRecord>(catalog, &keys.index())? else {
            return failed("there is no index yet");
        };
        if index.state != IndexState::Ready {
            return failed("the cluster is already making a new index");
        }
        let generation = index.generation + 1;
        let state = IndexState::Making;
        let making = IndexRecord { generation, state, memory_epochs: Vec::new() };
        if !records::put_if(catalog, &keys.index(), Some(version), &making, None)? {
            return failed("the cluster is already making a new index");
        }
        let (clock, never) = (MonotonicClock::start(), StopSignal::default());
        let mut missing = "the catalog has not answered".to_owned();
        while clock.elapsed() < within {
            match ClusterStatus::read(catalog, keys) {
                Ok(standing) => {
                    let made = standing.index.as_ref().map_or(0, |index| index.generation);
                    match standing.missing().into_iter().next() {
                        None if made >= generation => return Ok(()),
                        None => {}
                        Some(first) => missing = first,
                    }
                }
                Err(error) => missing = error.to_string(),
            }
            never.wait(LOOKUP_INTERVAL);
        }
        Err(ProgramError::Failed(format!(
            "the index is empty, but the cluster does not serve the new one in time: {missing}"
        )))
    }

    /// Looks up the compute servers. Connects to them only when a client sends a request.
    ///
    /// # Errors
    /// [`ProgramError`] if the catalog cannot be read, or if the cluster has never served.
    /// [`ProgramError::Config`] if the cluster has another layout than `L`.
    pub fn connect<L: ClusterLayout>(self) -> Result<ClusterConnection<L>, ProgramError> {
        let Self { config, catalog, keys, settings, layout, acknowledged } = self;
        if layout != L::name() {
            let text = format!("this cluster has {layout}, and this needs {}", L::name());
            return Err(ConfigError::Settings(text).into());
        }
        let compute_servers = settings.compute_servers.max(MAX_COMPUTE_SERVERS);
        let (found, absent) = registered(&*catalog, &keys, compute_servers)?;
        // An unregistered server has a placeholder address; it is in `absent`, so clients send it
        // nothing.
        let mut addresses = vec![SocketAddr::from(([0, 0, 0, 0], 0)); usize::from(compute_servers)];
        for record in &found {
            addresses[usize::from(record.number)] = resolve(&record.address)?;
        }
        let record = records::get::<MapRecord>(&*catalog, &keys.map())?;
        let no_map = || {
            ProgramError::Failed("the cluster has not served yet: it has no partition map".into())
        };
        let map = map_of::<L>(record.ok_or_else(no_map)?.0)?;
        // Leave time to retry an operation that changes nothing.
        let request = config.deadline * 2 / 5;
        let tcp = TcpConfig {
            role: PeerRole::Client,
            server_role: PeerRole::ComputeServer,
            timeout_ns: ns(request),
            connect_timeout_ns: ns(request),
            depth: config.depth,
            ..TcpConfig::default()
        };
        let cluster = TcpCluster::connect(addresses, &config.token, tcp);
        let options = ClientOptions { deadline_ns: ns(config.deadline), request_ns: ns(request) };
        let (is_looking, not_before) = (false, Duration::ZERO);
        let known = Mutex::new(LastCatalogRead { map, found, absent, is_looking, not_before });
        let clock = MonotonicClock::start();
        let places = ConnectionShared {
            cluster,
            catalog,
            keys,
            compute_servers,
            clock,
            known,
            acknowledged,
        };
        Ok(ClusterConnection { places: Arc::new(places), options })
    }
}

/// A connection to the compute servers that the catalog lists.
pub struct ClusterConnection<L: ClusterLayout = Fixed8> {
    places: Arc<ConnectionShared<L>>,
    options: ClientOptions,
}

/// State that all clients of a connection share.
struct ConnectionShared<L: ClusterLayout> {
    cluster: TcpCluster,
    catalog: Arc<dyn Catalog>,
    keys: CatalogKeys,
    /// Maximum number of compute servers.
    compute_servers: u16,
    clock: MonotonicClock,
    known: Mutex<LastCatalogRead<L>>,
    acknowledged: Arc<Acknowledged>,
}

/// Result of the last read of the catalog.
struct LastCatalogRead<L: ClusterLayout> {
    map: PartitionMap<OwnedKey<L>>,
    /// The registered compute servers, by number.
    found: Vec<ComputeRecord>,
    /// Numbers of the compute servers that are not registered.
    absent: BTreeSet<u16>,
    /// Whether a read of the catalog is in progress.
    is_looking: bool,
    /// The earliest time of the next read, relative to the clock's start.
    not_before: Duration,
}

/// Splits the compute servers into registered records and unregistered numbers.
fn registered(
    catalog: &dyn Catalog,
    keys: &CatalogKeys,
    compute_servers: u16,
) -> Result<(Vec<ComputeRecord>, BTreeSet<u16>), ProgramError> {
    let mut found: Vec<ComputeRecord> = records::list(catalog, &keys.compute_prefix())?;
    found.retain(|record| record.number < compute_servers);
    found.sort_by_key(|record| record.number);
    let is_absent =
        |number: &u16| found.binary_search_by_key(number, |record| record.number).is_err();
    let absent = (0..compute_servers).filter(is_absent).collect();
    Ok((found, absent))
}

fn map_of<L: ClusterLayout>(record: MapRecord) -> Result<PartitionMap<OwnedKey<L>>, ProgramError> {
    record
        .state::<L>()
        .map(|state| state.map)
        .map_err(|error| ProgramError::Failed(error.to_string()))
}

impl<L: ClusterLayout> ConnectionShared<L> {
    /// Reads the current addresses of the compute servers; connections opened from then on use
    /// them.
    fn look(&self) -> Result<(), ProgramError> {
        let catalog = &*self.catalog;
        let (found, absent) = registered(catalog, &self.keys, self.compute_servers)?;
        for record in &found {
            // While a name cannot be resolved, its server keeps the address that it had.
            if let Ok(address) = resolve(&record.address) {
                self.cluster.relocate(ServerId::new(record.number), address);
            }
        }
        let map = records::get::<MapRecord>(catalog, &self.keys.map())?;
        let map = map.map(|(record, _)| map_of::<L>(record)).transpose()?;
        let mut known = lock(&self.known);
        (known.found, known.absent) = (found, absent);
        if let Some(map) = map.filter(|map| map.epoch() > known.map.epoch()) {
            known.map = map;
        }
        Ok(())
    }
}

/// The connection as a directory for its clients.
struct OneDirectory<L: ClusterLayout>(Arc<ConnectionShared<L>>);

impl<L: ClusterLayout> ServerDirectory<OwnedKey<L>> for OneDirectory<L> {
    fn is_absent(&self, compute_server: u16) -> bool {
        lock(&self.0.known).absent.contains(&compute_server)
    }

    fn look_again(&self) {
        let places = Arc::clone(&self.0);
        let mut known = lock(&self.0.known);
        if known.is_looking || places.clock.elapsed() < known.not_before {
            return;
        }
        let look = move || {
            // If the catalog fails too, keep the old addresses; the next loss triggers another
            // read.
            let _ = places.look();
            let mut known = lock(&places.known);
            known.is_looking = false;
            known.not_before = places.clock.elapsed() + LOOKUP_INTERVAL;
        };
        let thread = std::thread::Builder::new().name("catalog".to_owned());
        known.is_looking = thread.spawn(look).is_ok();
    }

    fn newer_map(&self, epoch: u64) -> Option<PartitionMap<OwnedKey<L>>> {
        let known = lock(&self.0.known);
        (known.map.epoch() > epoch).then(|| known.map.clone())
    }

    fn acknowledged(&self) -> &Acknowledged {
        &self.0.acknowledged
    }
}

/// Resolves the address of a server, which may contain a host name.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, ProgramError> {
    let host: HostPort = address
        .parse()
        .map_err(|why| ProgramError::Failed(format!("cannot connect to `{address}`: {why}")))?;
    host.reach().map_err(|error| ProgramError::Failed(error.to_string()))
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<L: ClusterLayout> ClusterConnection<L> {
    /// Finds a cluster and connects to it.
    ///
    /// # Errors
    /// As for [`LocatedCluster::find`] and [`LocatedCluster::connect`].
    pub fn open(config: &ConnectionConfig) -> Result<Self, ProgramError> {
        LocatedCluster::find(config)?.connect()
    }

    /// The catalog, and the cluster's keys in it.
    pub fn catalog(&self) -> (&dyn Catalog, &CatalogKeys) {
        (&*self.places.catalog, &self.places.keys)
    }

    /// The registered compute servers: their numbers, addresses and epochs. These differ once a
    /// server has restarted, joined or left.
    pub fn servers(&self) -> Vec<(u16, String, u64)> {
        let of = |record: &ComputeRecord| (record.number, record.address.clone(), record.epoch);
        lock(&self.places.known).found.iter().map(of).collect()
    }

    /// The changes that compute servers have acknowledged to its clients.
    pub fn acknowledged(&self) -> Arc<Acknowledged> {
        Arc::clone(&self.places.acknowledged)
    }

    /// Creates a driver for clients of this connection, for programs that keep clients and drive
    /// them themselves.
    ///
    /// # Errors
    /// The operating system's error if there are no more file descriptors.
    pub fn driver(&self) -> io::Result<TcpDriver> {
        self.places.cluster.driver()
    }

    /// Creates a client over its own endpoint, which `driver` drives; `number` selects its random
    /// stream.
    ///
    /// # Errors
    /// An error if the system provides no entropy, or if the endpoint's buffers cannot be
    /// allocated.
    pub fn client(&self, driver: &TcpDriver, number: usize) -> io::Result<ClusterClient<L>> {
        Ok(self.client_over(AnyFabric::Tcp(driver.open(0, number)?)))
    }

    fn client_over(&self, fabric: AnyFabric) -> ClusterClient<L> {
        let map = lock(&self.places.known).map.clone();
        let directory = Rc::new(OneDirectory(Arc::clone(&self.places)));
        ClientIndex::with_map(fabric, self.options, map, directory)
    }

    /// Runs one task as a client on the calling thread.
    ///
    /// # Errors
    /// The task's error.
    pub fn run<T: Send, E: Send + From<IndexError>>(
        &self,
        body: impl AsyncFn(ClusterClient<L>) -> Result<T, E> + Sync,
    ) -> Result<T, E> {
        let mut outcomes = self.run_all(1, async |client, _| body(client).await);
        outcomes.pop().unwrap_or(Err(IndexError::InvalidArgument("no client ran").into()))
    }

    /// Runs the tasks concurrently, each on its own thread, and passes each task its number. All
    /// fail with [`IndexError::NotStarted`] unless all can run.
    pub fn run_all<T: Send, E: Send + From<IndexError>>(
        &self,
        clients: usize,
        body: impl AsyncFn(ClusterClient<L>, usize) -> Result<T, E> + Sync,
    ) -> Vec<Result<T, E>> {
        let outcomes = self.places.cluster.try_run(&vec![0; clients], async |fabric, number| {
            body(self.client_over(fabric), number).await
        });
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                let error = IndexError::not_started(&error);
                return (0..clients).map(|_| Err(error.clone().into())).collect();
            }
        };
        let ended = |outcome: Option<_>| {
            outcome.unwrap_or(Err(
                IndexError::InvalidArgument("a client's task did not complete").into()
            ))
        };
        outcomes.into_iter().map(ended).collect()
    }
}
