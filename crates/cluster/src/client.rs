//! A program's way to a cluster: finds the compute servers in the catalog, and runs one task as a client of theirs.
//!
//! *Thread safety*: [`Connection`] is for any number of threads; a client belongs to the thread that it runs on.

use crate::catalog::{self, Catalog, CatalogAddress};
use crate::config::ConfigError;
use crate::error::ProgramError;
use crate::records::{self, ComputeRecord, Keys, MapRecord, SettingsRecord};
use farleaf::client::{ClientIndex, ClientOptions};
use farleaf::index::IndexError;
use farleaf::page::Fixed8;
use farleaf::partition::PartitionMap;
use farleaf_fabric::Cluster;
use farleaf_fabric::handshake::{Role, Token};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpFabric};
use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
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

/// The compute servers of a cluster, as the catalog had them.
pub struct Connection {
    cluster: TcpCluster,
    options: ClientOptions,
    map: PartitionMap<u64>,
    /// The compute servers that are registered.
    found: Vec<ComputeRecord>,
    /// Compute servers that are not registered.
    absent: BTreeSet<u16>,
    catalog: Arc<dyn Catalog>,
    keys: Keys,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// The address of a server, of whose host the catalog may have the name.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, ProgramError> {
    let what = format!("{address} leads nowhere");
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
        let unknown = || ProgramError::Failed(format!("there is no cluster {}", config.cluster));
        let (settings, _) = settings.ok_or_else(unknown)?;
        let mut found: Vec<ComputeRecord> = records::list(&*catalog, &keys.compute_prefix())?;
        found.sort_by_key(|record| record.number);
        // Who is not there has no address, and is asked nothing.
        let numbers = 0..settings.compute_servers;
        let place = |number: &u16| found.binary_search_by_key(number, |record| record.number);
        let absent: BTreeSet<u16> =
            numbers.clone().filter(|number| place(number).is_err()).collect();
        let addresses = numbers.map(|number| match place(&number) {
            Ok(place) => resolve(&found[place].address),
            Err(_) => Ok(SocketAddr::from(([0, 0, 0, 0], 0))),
        });
        let addresses = addresses.collect::<Result<Vec<_>, ProgramError>>()?;
        let record = records::get::<MapRecord>(&*catalog, &keys.map())?;
        let no_map = || ProgramError::Failed("the cluster has never served: it has no map".into());
        let (MapRecord { epoch, boundaries, owners }, _) = record.ok_or_else(no_map)?;
        let map = PartitionMap::of_owners::<Fixed8>(epoch, boundaries, owners)
            .map_err(|error| ProgramError::Failed(error.to_string()))?;
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
        Ok(Self { cluster, options, map, found, absent, catalog, keys })
    }

    /// The catalog, and the cluster's keys in it.
    pub fn catalog(&self) -> (&dyn Catalog, &Keys) {
        (&*self.catalog, &self.keys)
    }

    /// Whether `other` leads to the same compute servers as this one: none was started again, has come or gone.
    pub fn leads_where(&self, other: &Self) -> bool {
        let same = |(one, other): (&ComputeRecord, &ComputeRecord)| {
            (one.number, &one.address, one.epoch) == (other.number, &other.address, other.epoch)
        };
        self.found.len() == other.found.len() && self.found.iter().zip(&other.found).all(same)
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
        let outcomes = self.cluster.run(&vec![0; clients], async |fabric, number| {
            let (map, absent) = (self.map.clone(), self.absent.clone());
            body(ClientIndex::with_map(fabric, self.options, map, absent), number).await
        });
        let ended = |outcome: Option<_>| {
            outcome.unwrap_or(Err(IndexError::InvalidArgument("a client did not end").into()))
        };
        outcomes.into_iter().map(ended).collect()
    }
}
