//! Far memory on the memory servers of an index: its chunks are in a lease there.

use farleaf_fabric::AnyFabric;
use farleaf_fabric::executor::Executor;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::shm::ShmConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_fabric::{Cluster, Fabric, Provider, RegionBacking, ServerId};
use farleaf_far_memory::{
    AccessAdvice, AccessKind, ChunkSpace, ClusterEndpoints, EndpointSource, FarConfig, FarError,
    FarRegion, Leased, ManualRegion, PageState, Pager, TERM_MS,
};
use farleaf_page::Fixed8;
use farleaf_pool::remote::RpcClient;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_pool::wire::{PoolRequest, Reply};
use futures_util::future::{join, select};
use std::pin::pin;

const PAGE_BYTES: usize = 4096;
const PAGES: usize = 512;
/// The term of leases that end in a test.
const SHORT_TERM_MS: u32 = 2_000;

/// Three memory servers of an index, two of which have room for half of the region each.
fn servers() -> Vec<Arc<MemoryServer<Fixed8>>> {
    let pool_bytes = PAGES * PAGE_BYTES / 2 + (64 << 10);
    let backing = RegionBacking::Shared { huge_pages: false };
    let config = MemoryServerConfig { pool_bytes, backing, ..MemoryServerConfig::default() };
    (0..3)
        .map(|number| MemoryServer::new(ServerId::new(number), &config).unwrap())
        .map(Arc::new)
        .collect()
}

fn tcp() -> TcpConfig {
    TcpConfig { timeout_ns: 200_000_000, connect_timeout_ns: 200_000_000, ..TcpConfig::default() }
}

fn space() -> Leased<Fixed8> {
    Leased::new(TERM_MS).unwrap()
}

fn config() -> FarConfig {
    let chunk_bytes = PAGES * PAGE_BYTES / 8;
    FarConfig { chunk_bytes, ..FarConfig::new(PAGES * PAGE_BYTES, PAGE_BYTES, 32) }
}

fn write_and_compare<R: EndpointSource>(reach: R, servers: &[Arc<MemoryServer<Fixed8>>]) {
    let allocated = || servers.iter().map(|server| server.usage().allocated_bytes).sum::<u64>();
    let before = allocated();
    let region = FarRegion::new(config(), reach, space()).unwrap();
    println!("provider: {}", region.mode());
    for round in 1..3 {
        for (number, word) in (0..).zip(region.words()) {
            word.store(number * round, Ordering::Relaxed);
        }
        for (number, word) in (0..).zip(region.words()) {
            assert_eq!(word.load(Ordering::Relaxed), number * round);
        }
    }
    region.advise(0..region.bytes(), AccessAdvice::DontNeed).unwrap();
    let bytes = (PAGES * PAGE_BYTES) as u64;
    assert_eq!(region.stats().unwrap().remote_bytes, bytes);
    let metrics = region.metrics("a region").unwrap();
    let line = format!("farleaf_far_remote_bytes{{region=\"a region\"}} {bytes}");
    assert!(metrics.lines().any(|one| one == line), "{metrics}");
    assert!(allocated() - before >= bytes, "{} of {bytes} bytes", allocated() - before);
    assert_eq!(region.local_bytes(), 0);
}

#[test]
fn chunks_of_memory_servers_hold_far_memory_over_tcp() {
    let servers = servers();
    let cluster = Arc::new(TcpConfig::default().start(servers.clone()));
    write_and_compare(ClusterEndpoints::new(cluster, 0, 0), &servers);
}

#[test]
fn chunks_of_memory_servers_hold_far_memory_over_shm() {
    let servers = servers();
    let cluster = Arc::new(ShmConfig::default().start(servers.clone()));
    write_and_compare(ClusterEndpoints::new(cluster, 0, 0), &servers);
}

/// Servers without room are an error that says so.
#[test]
fn full_memory_servers_are_an_error() {
    let servers = servers();
    let cluster = TcpConfig::default().start(servers);
    let driver = cluster.driver().unwrap();
    let fabric = driver.open(0, 0).unwrap();
    let mut executor = Executor::new();
    executor.spawn(0, async move {
        let bytes = (PAGES * PAGE_BYTES) as u64;
        assert_eq!(space().take(&fabric, bytes).await, Err(FarError::NoSpace { bytes }));
    });
    assert!(executor.run(&driver));
}

/// First copies are on the servers in turn, wherever the second ones are: READs prefer them.
#[test]
fn second_copies_take_no_turns() {
    LocalConfig::default().start(servers()).run_one(|fabric| async move {
        let (space, bytes) = (space(), 64 << 10);
        for number in [0, 1, 2, 0] {
            let first = space.take(&fabric, bytes).await.unwrap().server();
            let others = |server| server != first;
            let second = space.take_second(&fabric, bytes, others).await.unwrap().server();
            assert_eq!(first, ServerId::new(number));
            assert_ne!(second, first);
        }
        // Also while one server has failed: the others take turns, or one would get all READs.
        let works = |server| server != ServerId::new(1);
        for number in [2, 0, 2, 0] {
            let first = space.take_first(&fabric, bytes, works).await.unwrap().server();
            assert_eq!(first, ServerId::new(number));
        }
    });
}

/// The memory of an owner that has died reaches a region at the first write-back that finds no
/// room: the page waits until the term is over. One server is down all the time.
#[test]
fn a_region_waits_for_the_memory_of_a_dead_owner() {
    let config = FarConfig { patience_ns: 300_000_000, ..config() };
    let servers = servers();
    let cluster = Arc::new(tcp().start(servers));
    let driver = cluster.driver().unwrap();
    let dead = driver.open(1, 0).unwrap();
    let mut executor = Executor::new();
    executor.spawn(0, async move {
        let space = Leased::<Fixed8>::new(SHORT_TERM_MS).unwrap();
        while space.take(&dead, config.chunk_bytes as u64).await.is_ok() {}
    });
    assert!(executor.run(&driver));
    drop((executor, driver));
    cluster.kill_memory_server(ServerId::new(2));

    let space = Leased::<Fixed8>::new(SHORT_TERM_MS).unwrap();
    let bytes = 2 * config.chunk_bytes;
    let config = FarConfig { region_bytes: bytes, ..config };
    let region = FarRegion::new(config, ClusterEndpoints::new(cluster, 2, 0), space).unwrap();
    for (page, word) in (1..).zip(region.words().iter().step_by(PAGE_BYTES / 8)) {
        word.store(page, Ordering::Relaxed);
    }
    region.advise(0..region.bytes(), AccessAdvice::DontNeed).unwrap();
    let stats = region.stats().unwrap();
    assert_eq!((stats.remote_bytes, stats.failed_write_backs), (bytes as u64, 0), "{stats:?}");
    for (page, word) in (1..).zip(region.words().iter().step_by(PAGE_BYTES / 8)) {
        assert_eq!(word.load(Ordering::Relaxed), page);
    }
    region.check().unwrap();
}

/// A memory server that never answers does not keep the leases on others from being renewed: a
/// round of renewals ends by the time of the next one.
#[test]
fn renewals_do_not_wait_for_a_silent_server() {
    let (dies_at_ns, detect_death_ns) = (100_000_000, 5_000_000_000);
    let kill_memory_server_at_ns = vec![(0, dies_at_ns)];
    let faults = Faults { detect_death_ns, kill_memory_server_at_ns, ..Faults::default() };
    let cluster = SimConfig { faults, ..SimConfig::default() }.start(servers());
    cluster.run_one(|fabric| async move {
        let space = Leased::<Fixed8>::new(SHORT_TERM_MS).unwrap();
        let every_ns = ChunkSpace::<AnyFabric>::renew_every_ns(&space).unwrap();
        for number in 0..2 {
            let at = space.take(&fabric, 64 << 10).await.unwrap();
            assert_eq!(at.server(), ServerId::new(number));
        }
        assert!(fabric.now_ns() < dies_at_ns, "both have a lease");
        fabric.sleep(dies_at_ns).await;
        let rpc = RpcClient::<_, Fixed8>::new(fabric.clone());
        let renewals = async || {
            let asked = rpc.ask_idempotent(ServerId::new(1), &PoolRequest::ListLeases).await;
            let Ok(Reply::Leases(leases)) = asked else { panic!("{asked:?}") };
            leases.iter().map(|lease| lease.renewals).collect::<Vec<_>>()
        };
        assert_eq!(renewals().await, [1], "by the request for the chunk");
        let began_ns = fabric.now_ns();
        space.renew(&fabric).await;
        assert!(fabric.now_ns() - began_ns <= every_ns, "in virtual time");
        assert_eq!(renewals().await, [2]);
    });
}

/// A region that ends does not wait for the memory of others any more.
#[test]
fn a_region_that_ends_asks_for_no_more_memory() {
    let give_up_after_ns = 10_000_000 * u64::from(TERM_MS);
    let cluster = SimConfig { give_up_after_ns, ..SimConfig::default() }.start(servers());
    cluster.run(&[0, 1], async |fabric, number| {
        if number == 0 {
            while space().take(&fabric, 64 << 10).await.is_ok() {}
            return;
        }
        fabric.sleep(1_000_000_000).await;
        let memory = ManualRegion::new(&config()).unwrap();
        let pager = Pager::new(config(), fabric.clone(), memory, space()).unwrap();
        let body = async {
            pager.touch(0, AccessKind::Write).await.unwrap();
            let leaving = pager.evict(0..1);
            let looking = fabric.sleep(1_000_000_000);
            select(pin!(leaving), pin!(looking)).await;
            assert_eq!(
                pager.state(0),
                PageState::Leaving,
                "it waits for the term of the other one"
            );
            pager.stop();
            fabric.now_ns()
        };
        let ((), stopped_ns) = join(pager.run(), body).await;
        let ended_ns = fabric.now_ns() - stopped_ns;
        assert!(ended_ns < 1_000_000 * u64::from(TERM_MS) / 8, "{ended_ns} ns of virtual time");
    });
}

/// Each region takes all of the memory servers' memory, so the second one could not have any if the
/// first one's did not come back.
#[test]
fn regions_give_their_memory_back() {
    let servers = servers();
    let cluster = Arc::new(LocalConfig::default().start(servers.clone()));
    let allocated = || servers.iter().map(|server| server.usage().allocated_bytes).sum::<u64>();
    let mut after_first = None;
    for round in 1..=12 {
        let region =
            FarRegion::new(config(), ClusterEndpoints::new(Arc::clone(&cluster), 0, 0), space());
        let region = region.unwrap();
        for word in region.words().iter().step_by(PAGE_BYTES / 8) {
            word.store(round, Ordering::Relaxed);
        }
        region.advise(0..region.bytes(), AccessAdvice::DontNeed).unwrap();
        assert_eq!(region.stats().unwrap().remote_bytes, (PAGES * PAGE_BYTES) as u64);
        drop(region);
        let first = *after_first.get_or_insert(allocated());
        assert_eq!(allocated(), first, "round {round} has taken more");
    }
    const { assert!(2 * PAGES * PAGE_BYTES > 3 * (PAGES * PAGE_BYTES / 2 + (64 << 10))) };
}
