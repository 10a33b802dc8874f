//! A program's way to a cluster: finds the compute servers in the catalog, and runs one task as a
//! client of theirs. Where one of them is lost, a thread looks into the catalog again, and clients
//! go on with what it finds.
//!
//! *Invariants*: at most one look at the catalog is under way for a connection, and the next begins
//! no sooner than `LOOK_AGAIN_AFTER` later.
//!
//! *Thread safety*: [`Connection`] is for any number of threads; a client belongs to the thread
//! that it runs on.

use crate::catalog::{self, Catalog, CatalogAddress};
use crate::clock::Clock;
use crate::config::ConfigError;
use crate::error::ProgramError;
use crate::records::{
    self, ComputeRecord, IndexRecord, IndexState, Keys, MapRecord, SettingsRecord,
};
use crate::status::ClusterStatus;
use crate::stop::Stop;
use farleaf::client::{ClientIndex, ClientOptions, Directory};
use farleaf::index::IndexError;
use farleaf::page::Fixed8;
use farleaf::partition::PartitionMap;
use farleaf_fabric::handshake::{Role, Token};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpFabric};
use farleaf_fabric::{Cluster, ServerId};
use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

/// A client of a cluster of processes.
pub type Client = ClientIndex<TcpFabric, Fixed8>;

/// How a program reaches a cluster.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// The cluster's name.
    pub cluster: String,
    /// Where its catalog is.
    pub catalog: CatalogAddress,
    /// Its secret.
    pub token: Token,
    /// The longest that one operation may take.
    pub deadline: Duration,
    /// How many requests a client may have in flight.
    pub depth: usize,
}

/// The least time between two looks at the catalog for servers that were lost.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The compute servers of a cluster, as the catalog has them.
pub struct Connection {
    places: Arc<Places>,
    options: ClientOptions,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("cluster", &self.places.cluster).finish_non_exhaustive()
    }
}

/// What all clients of a connection share.
struct Places {
    cluster: TcpCluster,
    catalog: Arc<dyn Catalog>,
    keys: Keys,
    compute_servers: u16,
    clock: Clock,
    known: Mutex<Known>,
}

/// What the catalog said last.
struct Known {
    map: PartitionMap<u64>,
    /// The compute servers that are registered, by number.
    found: Vec<ComputeRecord>,
    /// Compute servers that are not registered.
    absent: BTreeSet<u16>,
    /// A look is under way.
    is_looking: bool,
    /// When the next may begin, since the clock's start.
    not_before: Duration,
}

/// The compute servers that are registered, and those that are not.
fn registered(
    catalog: &dyn Catalog,
    keys: &Keys,
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

fn map_of(record: MapRecord) -> Result<PartitionMap<u64>, ProgramError> {
    let MapRecord { epoch, boundaries, owners } = record;
    PartitionMap::of_owners::<Fixed8>(epoch, boundaries, owners)
        .map_err(|error| ProgramError::Failed(error.to_string()))
}

impl Places {
    /// Looks where the compute servers are now; connections that are opened from then on go there.
    fn look(&self) -> Result<(), ProgramError> {
        let catalog = &*self.catalog;
        let (found, absent) = registered(catalog, &self.keys, self.compute_servers)?;
        for record in &found {
            self.cluster.relocate(ServerId::new(record.number), resolve(&record.address)?);
        }
        let map = records::get::<MapRecord>(catalog, &self.keys.map())?;
        let map = map.map(|(record, _)| map_of(record)).transpose()?;
        let mut known = lock(&self.known);
        (known.found, known.absent) = (found, absent);
        if let Some(map) = map.filter(|map| map.epoch() > known.map.epoch()) {
            known.map = map;
        }
        Ok(())
    }
}

/// The connection, as one of its clients asks it.
#[derive(Clone)]
struct OneDirectory(Arc<Places>);

impl std::fmt::Debug for OneDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OneDirectory")
    }
}

impl Directory<u64> for OneDirectory {
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
            // The catalog may be gone too: then everything stays as it was, and a later loss looks
            // again.
            let _ = places.look();
            let mut known = lock(&places.known);
            known.is_looking = false;
            known.not_before = places.clock.elapsed() + LOOK_AGAIN_AFTER;
        };
        let thread = std::thread::Builder::new().name("catalog".to_owned());
        known.is_looking = thread.spawn(look).is_ok();
    }

    fn newer_map(&self, epoch: u64) -> Option<PartitionMap<u64>> {
        let known = lock(&self.0.known);
        (known.map.epoch() > epoch).then(|| known.map.clone())
    }
}

/// The address of a server, of whose host the catalog may have the name.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, ProgramError> {
    let what = format!("cannot resolve {address}");
    let found = address.to_socket_addrs().map_err(ProgramError::system(&what))?.next();
    found.ok_or(ProgramError::Failed(what))
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Connection {
    /// Looks the compute servers up. Connects to them when there is something to ask.
    ///
    /// # Errors
    /// What the catalog says, or that the cluster has never served.
    pub fn open(config: &ConnectionConfig) -> Result<Self, ProgramError> {
        let catalog = catalog::open(&config.catalog, &config.token)?;
        let keys = Keys::new(&config.cluster)
            .map_err(|bad| ConfigError::Settings(format!("`{}`: {bad}", config.cluster)))?;
        let settings = records::get::<SettingsRecord>(&*catalog, &keys.settings())?;
        let unknown =
            || ProgramError::Failed(format!("no cluster {} in the catalog", config.cluster));
        let (settings, _) = settings.ok_or_else(unknown)?;
        let compute_servers = settings.compute_servers;
        let (found, absent) = registered(&*catalog, &keys, compute_servers)?;
        // What is not there has no address, and is asked nothing.
        let mut addresses = vec![SocketAddr::from(([0, 0, 0, 0], 0)); usize::from(compute_servers)];
        for record in &found {
            addresses[usize::from(record.number)] = resolve(&record.address)?;
        }
        let record = records::get::<MapRecord>(&*catalog, &keys.map())?;
        let no_map = || {
            ProgramError::Failed("the cluster has not served yet: it has no partition map".into())
        };
        let map = map_of(record.ok_or_else(no_map)?.0)?;
        // Time for a second attempt at what changes nothing.
        let request = config.deadline * 2 / 5;
        let tcp = TcpConfig {
            role: Role::Client,
            server_role: Role::ComputeServer,
            timeout_ns: ns(request),
            connect_timeout_ns: ns(request),
            depth: config.depth,
            ..TcpConfig::default()
        };
        let cluster = TcpCluster::connect(addresses, &config.token, tcp);
        let options = ClientOptions { deadline_ns: ns(config.deadline), request_ns: ns(request) };
        let (is_looking, not_before) = (false, Duration::ZERO);
        let known = Mutex::new(Known { map, found, absent, is_looking, not_before });
        let clock = Clock::start();
        let places = Places { cluster, catalog, keys, compute_servers, clock, known };
        Ok(Self { places: Arc::new(places), options })
    }

    /// The catalog, and the cluster's keys in it.
    pub fn catalog(&self) -> (&dyn Catalog, &Keys) {
        (&*self.places.catalog, &self.places.keys)
    }

    /// Empties the index, and waits until the compute servers serve the new one. All memory of the
    /// old index is given back at once; operations that are under way are told that they are not
    /// served, or that their outcome is unknown. If this program dies meanwhile, the servers go on
    /// by themselves.
    ///
    /// # Errors
    /// [`ProgramError`]: there is no index to empty, another program is emptying it, or the new one
    /// is not served in time.
    pub fn clear(&self, within: Duration) -> Result<(), ProgramError> {
        let (catalog, keys) = self.catalog();
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
        let (clock, never) = (Clock::start(), Stop::default());
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
            never.wait(LOOK_AGAIN_AFTER);
        }
        Err(ProgramError::Failed(format!(
            "the index is empty, but the cluster does not serve the new one in time: {missing}"
        )))
    }

    /// Whether `other` leads to the same compute servers as this one: none was started again, has
    /// come or gone.
    pub fn leads_where(&self, other: &Self) -> bool {
        let same = |(one, other): (&ComputeRecord, &ComputeRecord)| {
            (one.number, &one.address, one.epoch) == (other.number, &other.address, other.epoch)
        };
        let found = |connection: &Self| lock(&connection.places.known).found.clone();
        let (mine, theirs) = (found(self), found(other));
        mine.len() == theirs.len() && mine.iter().zip(&theirs).all(same)
    }

    /// Runs one task as a client, on the calling thread.
    ///
    /// # Errors
    /// What the task says.
    pub fn run<T: Send, E: Send + From<IndexError>>(
        &self,
        body: impl AsyncFn(Client) -> Result<T, E> + Sync,
    ) -> Result<T, E> {
        let mut outcomes = self.run_all(1, async |client, _| body(client).await);
        outcomes.pop().unwrap_or(Err(IndexError::InvalidArgument("no client ran").into()))
    }

    /// Runs as many tasks at the same time, each on a thread of its own; gives them their numbers.
    pub fn run_all<T: Send, E: Send + From<IndexError>>(
        &self,
        clients: usize,
        body: impl AsyncFn(Client, usize) -> Result<T, E> + Sync,
    ) -> Vec<Result<T, E>> {
        let outcomes = self.places.cluster.run(&vec![0; clients], async |fabric, number| {
            let map = lock(&self.places.known).map.clone();
            let directory = Rc::new(OneDirectory(Arc::clone(&self.places)));
            body(ClientIndex::with_map(fabric, self.options, map, directory), number).await
        });
        let ended = |outcome: Option<_>| {
            outcome.unwrap_or(Err(IndexError::InvalidArgument("a client did not end").into()))
        };
        outcomes.into_iter().map(ended).collect()
    }
}
