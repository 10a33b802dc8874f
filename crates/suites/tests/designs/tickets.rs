//! Offloaded changes of unknown outcome, and tickets that cannot be closed at first.

use farleaf_dex::cache::{CacheOptions, OffloadName};
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_fabric::{Cluster, Cpu, Message, Provider, Region, RpcService, ServerId, Work};
use farleaf_index::{Design, IndexError, RangeIndex};
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_pool::wire::{OffloadRequest, Refusal, Reply, Request};

type Tiny = Fixed8<16>;

/// The time limit of an operation.
const TIMEOUT_NS: u64 = 100_000;

/// A memory server that can keep quiet about an offloaded change, and refuse to close its ticket.
struct Server {
    server: MemoryServer<Tiny>,
    /// Requests to close a ticket that it still refuses. While there are any, a client learns
    /// nothing about its offloaded changes: the server makes them and sends no answer in time.
    refusals: AtomicU64,
    /// Changes made without an answer.
    unanswered: AtomicU64,
    /// Tickets closed.
    closed: AtomicU64,
}

impl RpcService for Server {
    fn region(&self) -> &Arc<Region> {
        self.server.region()
    }

    async fn handle<C: Cpu>(&self, cpu: &C, client: u16, request: &[u8], reply: &mut Message) {
        let refuses = self.refusals.load(Ordering::Relaxed) > 0;
        match Request::<Tiny>::decode(request) {
            Some(Request::Offload(OffloadRequest::CloseTicket { .. })) if refuses => {
                self.refusals.fetch_sub(1, Ordering::Relaxed);
                Reply::<Tiny>::Refused(Refusal::NotHere).encode(reply);
                return;
            }
            Some(Request::Offload(OffloadRequest::CloseTicket { .. })) => {
                self.closed.fetch_add(1, Ordering::Relaxed);
            }
            Some(Request::Offload(OffloadRequest::Edit { ticket: Some(_), .. })) if refuses => {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                self.server.handle(cpu, client, request, reply).await;
                for _ in 0..4 * TIMEOUT_NS / 500 {
                    cpu.charge(Work::RestructureNode).await;
                }
                return;
            }
            _ => {}
        }
        self.server.handle(cpu, client, request, reply).await;
    }

    async fn after_reply<C: Cpu>(&self, cpu: &C) {
        self.server.after_reply(cpu).await;
    }
}

/// A change that was made, and whose ticket the memory server refuses to close at first: its
/// outcome is unknown, so it is not made again by the compute server. Once the ticket is closed,
/// the nodes below can be used again.
#[test]
fn a_change_whose_ticket_cannot_be_closed_is_of_unknown_outcome() {
    let config = MemoryServerConfig { pool_bytes: 4 << 20, ..Default::default() };
    let server = Arc::new(Server {
        server: MemoryServer::new(ServerId::new(0), &config).unwrap(),
        refusals: AtomicU64::new(0),
        unanswered: AtomicU64::new(0),
        closed: AtomicU64::new(0),
    });
    let faults = Faults { timeout_ns: TIMEOUT_NS, ..Faults::default() };
    let give_up_after_ns = 10_000_000_000;
    let provider = SimConfig { faults, give_up_after_ns, ..SimConfig::default() };
    let cache = CacheOptions { bytes: 0, offload: OffloadName::Always, ..CacheOptions::default() };
    let options = &DexOptions {
        chunk_nodes_log2: 4,
        placement_level: 2,
        ..DexOptions::with_boundaries(vec![], cache)
    };
    let compute = || <Dex as Design<Tiny>>::compute(options).unwrap();
    let (first, second, server) = (&compute(), &compute(), &server);
    provider.start(vec![Arc::clone(server)]).run_one(|fabric| async move {
        <Dex as Design<Tiny>>::create(&fabric, options).await.unwrap();
        let index = <Dex as Design<Tiny>>::open(fabric.clone(), first).await.unwrap();
        index.bulk_load((0..1_000).map(|key| (key * 2, key)), 0.7).await.unwrap();
        drop(index);

        let index = <Dex as Design<Tiny>>::open(fabric, second).await.unwrap();
        let counts =
            || [&server.unanswered, &server.closed].map(|count| count.load(Ordering::Relaxed));
        server.refusals.store(1, Ordering::Relaxed);
        let inserted = index.insert(&501, &7).await;
        assert!(matches!(inserted, Err(IndexError::Indeterminate(_))), "{inserted:?}");
        assert_eq!(counts(), [1, 0], "the change was made once, and its ticket is open");

        assert_eq!(index.settle().await, Ok(()));
        assert_eq!(counts(), [1, 1]);
        assert_eq!(index.get(&501).await, Ok(Some(7)));
        // The node is not marked any more.
        assert_eq!(index.insert(&501, &8).await, Ok(false));
        assert_eq!(index.upsert(&503, &9).await, Ok(()));
        assert_eq!(index.get(&503).await, Ok(Some(9)));
        index.flush().await.unwrap();
    });
    assert_eq!(server.refusals.load(Ordering::Relaxed), 0);
}
