//! Far memory on the memory servers of an index: chunks come by the same request as its own.

use farleaf_core::page::Fixed8;
use farleaf_core::remote::{RemoteError, RpcClient};
use farleaf_core::server::{MemoryServer, MemoryServerConfig};
use farleaf_core::wire::{PoolRequest, Reply};
use farleaf_fabric::executor::Executor;
use farleaf_fabric::shm::ShmConfig;
use farleaf_fabric::sync::{Arc, Mutex, Ordering, lock};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_fabric::{Backing, Fabric, GlobalAddr, Provider, ServerId};
use farleaf_far_memory::{Advice, FarConfig, FarError, FarRegion, Over, Reach, Space};

/// Chunks of the memory servers' pools. What was taken stays taken: memory servers take chunks back
/// only when their pool ends.
struct Pool {
    /// A request of unknown outcome, to be repeated: its server, its size and its token.
    in_doubt: Mutex<Option<(ServerId, u64, u64)>>,
}

impl<F: Fabric> Space<F> for Pool {
    async fn take(&self, fabric: &F, bytes: u64) -> Result<GlobalAddr, FarError> {
        let client = RpcClient::<F, Fixed8>::new(fabric.clone());
        for number in 0..fabric.memory_servers() {
            let server = ServerId::new(number);
            let known = lock(&self.in_doubt).filter(|doubt| (doubt.0, doubt.1) == (server, bytes));
            let token = known.map_or_else(|| fabric.unique(), |(_, _, token)| token);
            let request = PoolRequest::AllocateWhole { bytes, least: bytes, token };
            match client.ask_harmless(server, &request).await {
                Ok(Reply::Chunk { at, .. }) => {
                    lock(&self.in_doubt).take_if(|doubt| doubt.2 == token);
                    return Ok(at);
                }
                Err(RemoteError::OutOfMemory { .. }) => {}
                outcome => {
                    *lock(&self.in_doubt) = Some((server, bytes, token));
                    let cause = format!("{:?}", outcome.err());
                    return Err(FarError::System { action: "take a chunk", cause });
                }
            }
        }
        Err(FarError::NoSpace { bytes })
    }

    async fn give_back(&self, _: &F, _: GlobalAddr, _: u64) {}
}

const PAGE_BYTES: usize = 4096;
const PAGES: usize = 512;

/// Three memory servers of an index, two of which have room for half of the region each.
fn servers() -> Vec<Arc<MemoryServer<Fixed8>>> {
    let pool_bytes = PAGES * PAGE_BYTES / 2 + (64 << 10);
    let backing = Backing::Shared { huge_pages: false };
    let config = MemoryServerConfig { pool_bytes, backing, ..MemoryServerConfig::default() };
    (0..3)
        .map(|number| MemoryServer::new(ServerId::new(number), &config).unwrap())
        .map(Arc::new)
        .collect()
}

fn write_and_compare<R: Reach>(reach: R, servers: &[Arc<MemoryServer<Fixed8>>]) {
    let allocated = || servers.iter().map(|server| server.usage().allocated_bytes).sum::<u64>();
    let before = allocated();
    let chunk_bytes = PAGES * PAGE_BYTES / 8;
    let config = FarConfig { chunk_bytes, ..FarConfig::new(PAGES * PAGE_BYTES, PAGE_BYTES, 32) };
    let region = FarRegion::new(config, reach, Pool { in_doubt: Mutex::new(None) }).unwrap();
    println!("provider: {}", region.mode());
    for round in 1..3 {
        for (number, word) in (0..).zip(region.words()) {
            word.store(number * round, Ordering::Relaxed);
        }
        for (number, word) in (0..).zip(region.words()) {
            assert_eq!(word.load(Ordering::Relaxed), number * round);
        }
    }
    region.advise(0..region.bytes(), Advice::DontNeed).unwrap();
    let bytes = (PAGES * PAGE_BYTES) as u64;
    assert_eq!(region.stats().unwrap().remote_bytes, bytes);
    assert!(allocated() - before >= bytes, "{} of {bytes} bytes", allocated() - before);
    assert_eq!(region.local_bytes(), 0);
}

#[test]
fn chunks_of_memory_servers_hold_far_memory_over_tcp() {
    let servers = servers();
    let cluster = Arc::new(TcpConfig::default().start(servers.clone()));
    write_and_compare(Over::new(cluster, 0, 0), &servers);
}

#[test]
fn chunks_of_memory_servers_hold_far_memory_over_shm() {
    let servers = servers();
    let cluster = Arc::new(ShmConfig::default().start(servers.clone()));
    write_and_compare(Over::new(cluster, 0, 0), &servers);
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
        let pool = Pool { in_doubt: Mutex::new(None) };
        let bytes = (PAGES * PAGE_BYTES) as u64;
        assert_eq!(pool.take(&fabric, bytes).await, Err(FarError::NoSpace { bytes }));
    });
    assert!(executor.run(&driver));
}
