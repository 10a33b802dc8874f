//! Runs clients, compute servers and memory servers over real sockets in one process, through the
//! suite of all designs.

use super::design::ClusterDesign;
use super::front::ReplyHandle;
use super::index;
use super::map_store::CatalogMap;
use super::reach::MemoryCluster;
use super::threads::{GenerationThreads, RequestTally, WorkerThreads};
use crate::catalog::{
    Catalog, CatalogEntry, CatalogError, CatalogLease, EntryVersion, GrantedLease,
};
use crate::error::ProgramError;
use crate::records::{self, CatalogKeys, MapRecord};
use farleaf_dex::cache::{CacheOptions, OffloadName};
use farleaf_dex::{Dex, DexOptions};
use farleaf_dlsm::{DlsmOptions, DlsmServerOptions, MemTableOptions, ShardedDlsm, ShardedOptions};
use farleaf_fabric::handshake::{PeerRole, Token};
use farleaf_fabric::sync::{Arc, AtomicBool, Mutex, Ordering, lock};
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpServerConfig};
use farleaf_fabric::{AnyFabric, ClientTask, Cluster, Fabric, Provider, RpcService, ServerId};
use farleaf_index::client::{ClientIndex, ClientOptions, RemoteDesign};
use farleaf_index::partition::{ComputeServer, MapState, PartitionMap};
use farleaf_index::{IndexError, RangeIndex, ScanRequest, ValueForm};
use farleaf_page::Fixed8;
use farleaf_pool::server::MemoryServerConfig;
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode};
use farleaf_suites::conformance::{self, SuiteBackground, SuiteSetup};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A catalog that contains only the map record.
struct OneRecord {
    record: Mutex<(String, u64)>,
    /// While this is set, no read is answered.
    hangs: AtomicBool,
}

fn pause(duration: Duration) {
    let (_sender, receiver) = channel::<()>();
    let _ = receiver.recv_timeout(duration);
}

impl Catalog for OneRecord {
    fn get(&self, key: &str) -> Result<Option<CatalogEntry>, CatalogError> {
        while self.hangs.load(Ordering::Acquire) {
            pause(Duration::from_millis(1));
        }
        let (value, version) = lock(&self.record).clone();
        Ok(Some(CatalogEntry { key: key.to_owned(), value, version: EntryVersion(version) }))
    }

    fn put_if(
        &self,
        _key: &str,
        expected: Option<EntryVersion>,
        value: &str,
        _lease: Option<CatalogLease>,
    ) -> Result<bool, CatalogError> {
        let mut held = lock(&self.record);
        if expected != Some(EntryVersion(held.1)) {
            return Ok(false);
        }
        *held = (value.to_owned(), held.1 + 1);
        Ok(true)
    }

    fn list(&self, _prefix: &str) -> Result<Vec<CatalogEntry>, CatalogError> {
        unreachable!("only one record is read")
    }

    fn delete_if(&self, _key: &str, _expected: EntryVersion) -> Result<bool, CatalogError> {
        unreachable!("the record stays")
    }

    fn grant(&self, _term: Duration) -> Result<GrantedLease, CatalogError> {
        unreachable!("the record is under no lease")
    }

    fn keep_alive(&self, _lease: CatalogLease) -> Result<bool, CatalogError> {
        unreachable!("the record is under no lease")
    }

    fn revoke(&self, _lease: CatalogLease) -> Result<(), CatalogError> {
        unreachable!("the record is under no lease")
    }
}

/// A design whose compute servers these tests start.
trait Tested: ClusterDesign<Fixed8, Values: ValueForm<Fixed8, Shared = ()>> {
    fn new_index(boundaries: Vec<u64>, server: Self::ServerOptions) -> Self::Options<Fixed8>;
}

impl Tested for Dex {
    fn new_index(boundaries: Vec<u64>, server: CacheOptions) -> DexOptions<u64> {
        DexOptions { placement_level: 1, ..DexOptions::with_boundaries(boundaries, server) }
    }
}

/// Compute servers in front of the memory servers.
#[derive(Clone, Debug)]
struct Tiers<D: Tested> {
    compute_servers: u16,
    threads: usize,
    server: D::ServerOptions,
}

impl Tested for ShardedDlsm {
    /// Two shards each, of two compute servers.
    fn new_index(boundaries: Vec<u64>, server: DlsmServerOptions) -> ShardedOptions<u64> {
        let within = vec![u64::MAX / 4, u64::MAX / 4 * 3];
        ShardedOptions { within, ..ShardedOptions::with_boundaries(boundaries, server) }
    }
}

struct ComputeServerHere<D: Tested> {
    threads: Option<GenerationThreads<Fixed8, D>>,
    crew: WorkerThreads<Fixed8>,
}

struct TiersCluster<D: Tested> {
    catalog: Arc<OneRecord>,
    clients: TcpCluster,
    compute: Vec<ComputeServerHere<D>>,
    /// The memory servers behind the compute servers; stopped after them.
    _memory: MemoryCluster,
}

impl<D: Tested<ServerOptions: Clone + Sync + Send>> Provider for Tiers<D> {
    type Cluster<S: RpcService> = TiersCluster<D>;

    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> std::io::Result<TiersCluster<D>> {
        let memory = MemoryCluster::Tcp(TcpConfig::default().try_start(services)?);
        let step = u64::MAX / u64::from(self.compute_servers);
        let boundaries: Vec<u64> =
            (1..self.compute_servers).map(|number| step * u64::from(number)).collect();
        let new = <D as Tested>::new_index(boundaries.clone(), self.server.clone());
        index::create::<Fixed8, D, _>(&memory, &new).unwrap();
        let token = Token::draw().unwrap();
        let map = PartitionMap::new::<Fixed8>(1, boundaries).unwrap();
        let record = MapRecord::new::<Fixed8>(&MapState::settled(map), None);
        let record = Mutex::new((records::encode(&record), 1));
        let catalog = Arc::new(OneRecord { record, hangs: AtomicBool::new(false) });
        let keys = CatalogKeys::new("tests").unwrap();
        let store = CatalogMap::<Fixed8>::start(Arc::clone(&catalog) as _, &keys, 1).unwrap();
        let mut compute = Vec::new();
        for number in 0..self.compute_servers {
            let map = index::begin_incarnation::<_, D, _>(&memory, (number, &self.server), &store);
            let map = map.unwrap();
            let server = Arc::new(ComputeServer::start(number, &self.server, map).unwrap());
            let tally = Arc::new(RequestTally::default());
            let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let config = TcpServerConfig {
                role: PeerRole::ComputeServer,
                number,
                accepts: &[PeerRole::Client],
                io_threads: self.threads,
                ..TcpServerConfig::default()
            };
            let crew = WorkerThreads::start(socket, &token, config).unwrap();
            let threads =
                GenerationThreads::start(&crew, (server, ()), &memory, (&store, None), tally)
                    .unwrap();
            crew.serve(Some(&threads));
            compute.push(ComputeServerHere { crew, threads: Some(threads) });
        }
        let addresses = compute.iter().map(|server| server.crew.server().local_address()).collect();
        let config = TcpConfig {
            role: PeerRole::Client,
            server_role: PeerRole::ComputeServer,
            ..TcpConfig::default()
        };
        let clients = TcpCluster::connect(addresses, &token, config);
        Ok(TiersCluster { catalog, clients, compute, _memory: memory })
    }
}

impl<D: Tested> Drop for TiersCluster<D> {
    fn drop(&mut self) {
        for server in &mut self.compute {
            let threads = server.threads.take().unwrap();
            assert_eq!(threads.flush(), Ok(()), "what was changed is written back");
            threads.stop();
        }
    }
}

impl<D: Tested> Cluster for TiersCluster<D> {
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> std::io::Result<()> {
        self.clients.run_clients(compute_servers, start)
    }

    fn kill_memory_server(&self, _server: ServerId) {
        unreachable!("the suite of the designs kills nobody");
    }
}

fn suite<D: Tested<ServerOptions: Clone + Sync + Send>>(tiers: &Tiers<D>) {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..Default::default() };
    let beside = &SuiteBackground::nothing();
    let setup = SuiteSetup { provider: tiers, options: (), memory_servers: 2, server };
    conformance::single_operations::<Fixed8, RemoteDesign, _>(&setup, beside);
    conformance::scans::<Fixed8, RemoteDesign, _>(&setup, beside);
    conformance::bulk_load::<Fixed8, RemoteDesign, _>(&setup, beside);
    conformance::concurrent_owners::<Fixed8, RemoteDesign, _>(&setup, beside);
    conformance::concurrent_counters::<Fixed8, RemoteDesign, _>(&setup, beside);
}

#[test]
fn the_suite_through_two_compute_servers() {
    suite::<Dex>(&Tiers { compute_servers: 2, threads: 2, server: CacheOptions::default() });
}

#[test]
fn the_suite_through_few_frames_and_offloading() {
    let offload = OffloadName::Always;
    let server = CacheOptions { bytes: 1 << 16, offload, ..CacheOptions::default() };
    suite::<Dex>(&Tiers { compute_servers: 2, threads: 1, server });
}

fn lsm() -> DlsmServerOptions {
    let memtable =
        MemTableOptions { bytes: 16 << 10, filter_bytes: 512, ..MemTableOptions::default() };
    let tree = DlsmOptions {
        memtable,
        level0_tables: 2,
        level1_bytes: 24 << 10,
        level_ratio: 3,
        ..DlsmOptions::with_table_bytes(16 << 10)
    };
    DlsmServerOptions { tree, ..DlsmServerOptions::default() }
}

#[test]
fn the_suite_through_compute_servers_with_lsm_trees() {
    suite::<ShardedDlsm>(&Tiers { compute_servers: 2, threads: 2, server: lsm() });
}

/// Each compute server has loaded its own part. Shards move whole, and back.
#[test]
fn compute_servers_with_lsm_trees_move_whole_shards() {
    let tiers = Tiers::<ShardedDlsm> { compute_servers: 2, threads: 1, server: lsm() };
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..Default::default() };
    let setup = SuiteSetup { provider: &tiers, options: (), memory_servers: 2, server };
    let cluster = setup.start::<Fixed8>();
    let records = || (0..4_000).map(|number| (number * (u64::MAX / 4_000), number));
    cluster.run_one(|fabric| async move {
        let options = ClientOptions { deadline_ns: 10_000_000_000, request_ns: 0 };
        let index = ClientIndex::<_, Fixed8>::open(fabric.clone(), options).await.unwrap();
        assert_eq!(index.bulk_load(records(), 0.7).await, Ok(4_000));
        // A key of the first shard, whose end is its only boundary, and one of the third.
        let (first, third) = (5, u64::MAX / 8 * 5);
        for (from, to, near) in [(0, 1, Some(&first)), (1, 0, None), (0, 1, Some(&third))] {
            index.move_keys(from, to, near).await.unwrap();
            assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(records().collect()));
            assert_eq!(index.upsert(&0, &0).await, Ok(()));
        }
        index.upsert(&7, &8).await.unwrap();
        let again = index.bulk_load(records(), 0.7).await;
        assert!(matches!(again, Err(IndexError::Refused { .. })), "{again:?}");
        assert_eq!(index.get(&7).await, Ok(Some(8)));
        assert_eq!(index.get(&(u64::MAX / 4_000)).await, Ok(Some(1)));
    });
    for server in &cluster.compute {
        let server = &server.threads.as_ref().unwrap().shared.server;
        let trees = <ShardedDlsm as ClusterDesign<Fixed8>>::trees(server.state()).unwrap();
        assert_eq!(trees.shards, 2);
        // The boundary between them is one record above the middle.
        assert!(trees.table_bytes >= 1_999 * 32, "{trees:?}");
    }
}

/// A client that asks a compute server to halt and then dies leaves it halted for a limited time,
/// not forever. No client can replace a tree that other clients are using.
#[test]
fn nobody_is_served_while_halted_and_no_tree_is_replaced_while_served() {
    let tiers = Tiers::<Dex> { compute_servers: 1, threads: 2, server: CacheOptions::default() };
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..Default::default() };
    let setup = SuiteSetup { provider: &tiers, options: (), memory_servers: 1, server };
    let cluster = setup.start::<Fixed8>();
    cluster.run_one(|fabric| async move {
        let ask = async |ask: ClientRequest<Fixed8>| {
            let reply = fabric.call(ServerId::new(0), ask.encode()).await.unwrap();
            ClientResponse::<Fixed8>::decode(&reply).unwrap()
        };
        let options = ClientOptions { deadline_ns: 1_000_000, request_ns: 0 };
        let index = ClientIndex::<_, Fixed8>::open(fabric.clone(), options).await.unwrap();
        index.upsert(&1, &10).await.unwrap();
        let begin = |load| ClientRequest::LoadBegin { load, fill_permille: 700 };
        let refused_with = |code| ClientResponse::<Fixed8>::Error(code);
        assert_eq!(ask(begin(7)).await, ClientResponse::Done);
        assert_eq!(ask(begin(8)).await, refused_with(ErrorCode::Loading));
        let ready = ask(ClientRequest::LoadReady { load: 7 }).await;
        let ClientResponse::LoadReady { version, .. } = ready else { panic!("{ready:?}") };
        let halt = |load| ClientRequest::Halt { load, version };
        assert_eq!(ask(halt(7)).await, ClientResponse::Done);
        assert_eq!(ask(halt(8)).await, refused_with(ErrorCode::Loading), "it has halted for 7");
        let refused = index.upsert(&1, &11).await;
        let (compute_server, code) = (0, ErrorCode::Unavailable);
        assert_eq!(refused, Err(IndexError::NotServed { compute_server, code }));
        // A late request of another load.
        assert_eq!(ask(ClientRequest::Resume { load: 8 }).await, ClientResponse::Done);
        assert!(index.upsert(&1, &11).await.is_err(), "it is still halted");
        assert_eq!(ask(ClientRequest::Resume { load: 7 }).await, ClientResponse::Done);
        assert_eq!(index.get(&1).await, Ok(Some(10)));
        let end = |load| ClientRequest::LoadEnd { load, version };
        assert_eq!(ask(end(7)).await, refused_with(ErrorCode::Unavailable), "it serves");
        assert_eq!(ask(halt(7)).await, refused_with(ErrorCode::Contended), "too late");
        assert_eq!(index.get(&1).await, Ok(Some(10)), "it has not halted");
        assert_eq!(ask(end(8)).await, refused_with(ErrorCode::NoLoad));
        assert_eq!(ask(ClientRequest::LoadAbort { load: 7 }).await, ClientResponse::Done);
        assert_eq!(ask(begin(7)).await, refused_with(ErrorCode::NoLoad), "it has ended");
        assert_eq!(ask(end(7)).await, refused_with(ErrorCode::NoLoad));
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(vec![(1, 10)]));
        let garbage = fabric.call(ServerId::new(0), [9_u8, 9, 9].into_iter().collect()).await;
        let told = ClientResponse::<Fixed8>::decode(&garbage.unwrap());
        assert_eq!(told, Some(ClientResponse::Error(ErrorCode::Malformed)));
    });
}

/// A compute server that was stopped while its queue was full once wrote nothing back, because the
/// queue had no room for the write-back request either.
#[test]
fn changes_are_written_back_even_if_the_queue_is_full() {
    let tiers = Tiers::<Dex> { compute_servers: 1, threads: 1, server: CacheOptions::default() };
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..Default::default() };
    let setup = SuiteSetup { provider: &tiers, options: (), memory_servers: 1, server };
    let cluster = setup.start::<Fixed8>();
    let threads = cluster.compute[0].threads.as_ref().unwrap();
    let ask = |ask| -> Receiver<ClientResponse<Fixed8>> {
        let (sender, receiver) = channel();
        threads.shared.queues.push(ask, ReplyHandle::to_thread(sender), 0);
        receiver
    };
    // Every task waits for the catalog, and then the queue fills up.
    cluster.catalog.hangs.store(true, Ordering::Release);
    let taking: Vec<_> = (0..64).map(|_| ask(ClientRequest::TakeOver { from: 9 })).collect();
    let mut waiting = Vec::new();
    for _ in 0..2 {
        pause(Duration::from_millis(100));
        let refused = loop {
            let receiver = ask(ClientRequest::Map);
            if let Ok(told) = receiver.try_recv() {
                break told;
            }
            waiting.push(receiver);
        };
        assert_eq!(refused, ClientResponse::Error(ErrorCode::Unavailable));
    }
    let catalog = Arc::clone(&cluster.catalog);
    let recovery = std::thread::spawn(move || {
        pause(Duration::from_millis(100));
        catalog.hangs.store(false, Ordering::Release);
    });
    assert_eq!(threads.flush(), Ok(()));
    recovery.join().unwrap();
    for receiver in taking.iter().chain(&waiting) {
        assert!(receiver.recv_timeout(Duration::from_secs(10)).is_ok(), "all are answered");
    }
}

/// Threads that had opened the index once made the program wait for a thread that could not open
/// it.
#[test]
fn a_thread_that_has_ended_keeps_nothing_from_ending() {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let server = MemoryServerConfig { pool_bytes: 16 << 20, ..Default::default() };
        let memory = TcpConfig::default();
        let setup = SuiteSetup { provider: &memory, options: (), memory_servers: 1, server };
        let memory = MemoryCluster::Tcp(setup.start::<Fixed8>());
        let new = DexOptions::with_boundaries(Vec::new(), CacheOptions::default());
        index::create::<Fixed8, Dex, _>(&memory, &new).unwrap();
        let map = PartitionMap::new::<Fixed8>(1, Vec::new()).unwrap();
        let record = MapRecord::new::<Fixed8>(&MapState::settled(map), None);
        let record = Mutex::new((records::encode(&record), 1));
        let catalog = Arc::new(OneRecord { record, hangs: AtomicBool::new(false) });
        let store =
            CatalogMap::<Fixed8>::start(catalog, &CatalogKeys::new("tests").unwrap(), 1).unwrap();
        let cache = CacheOptions::default();
        let map = index::begin_incarnation::<_, Dex, _>(&memory, (0, &cache), &store).unwrap();
        let started = ComputeServer::<Dex, _>::start(0, &cache, map);
        let server = Arc::new(started.unwrap());
        let config =
            TcpServerConfig { role: PeerRole::ComputeServer, io_threads: 2, ..Default::default() };
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let crew = WorkerThreads::start(socket, &Token::draw().unwrap(), config).unwrap();
        crew.break_a_thread();
        let started =
            GenerationThreads::start(&crew, (server, ()), &memory, (&store, None), Arc::default());
        sender.send(started.is_err()).unwrap();
    });
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(true));
}

/// A compute server with less memory than the one that created the index once found this out while
/// it opened the index, and then began the next incarnation, for ever.
#[test]
fn too_little_memory_for_the_shards_ends_a_compute_server() {
    let server = MemoryServerConfig { pool_bytes: 16 << 20, ..Default::default() };
    let memory = TcpConfig::default();
    let setup = SuiteSetup { provider: &memory, options: (), memory_servers: 1, server };
    let memory = MemoryCluster::Tcp(setup.start::<Fixed8>());
    let of = |bytes, longest_value| DlsmServerOptions {
        memtable_bytes: Some(bytes),
        longest_value: Some(longest_value),
        ..DlsmServerOptions::default()
    };
    let new = ShardedOptions {
        within: vec![u64::MAX / 2],
        ..ShardedOptions::with_boundaries(Vec::new(), of(64 << 20, 8))
    };
    index::create::<Fixed8, ShardedDlsm, _>(&memory, &new).unwrap();
    for (options, suffices) in
        [(of(64 << 20, 8), true), (of(1 << 10, 8), false), (of(1 << 20, 60_000), false)]
    {
        let map = PartitionMap::new::<Fixed8>(1, Vec::new()).unwrap();
        let server = ComputeServer::<ShardedDlsm, Fixed8>::start(0, &options, map).unwrap();
        match index::check_part::<Fixed8, ShardedDlsm, _>(&memory, server.state()) {
            Ok(()) => assert!(suffices, "{options:?}"),
            Err(error @ ProgramError::Config(_)) => {
                assert!(!suffices && error.to_string().contains("too little memory"), "{error}");
            }
            Err(error) => panic!("it would begin another life: {error}"),
        }
    }
}
