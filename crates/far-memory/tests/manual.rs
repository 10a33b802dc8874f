//! The pager over the provider `manual`, compared with a plain buffer: random reads, writes,
//! discards, evictions and holds by tasks that share a buffer of 16 pages, in this process and in
//! the simulator with lost and late messages and with memory servers that die.

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_fabric::{Cluster, Fabric, GlobalAddr, Provider, ServerId};
use farleaf_far_memory::{
    AccessKind, ChunkSpace, FarConfig, FarError, FarStats, ManualRegion, PageState, Pager, Policy,
    Reserved,
};
use futures_util::future::{join, join_all};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const PAGE_WORDS: usize = 512;
const PAGES: u32 = 64;
const BUFFER_PAGES: u32 = 16;
const CHUNK_PAGES: u64 = 8;
const SERVER_BYTES: usize = 1 << 20;

type TestPager<F> = Pager<F, ManualRegion, Reserved>;

fn config() -> FarConfig {
    FarConfig {
        chunk_bytes: CHUNK_PAGES as usize * PAGE_WORDS * 8,
        ..FarConfig::new(PAGES as usize * PAGE_WORDS * 8, PAGE_WORDS * 8, BUFFER_PAGES)
    }
}

/// A pager whose chunks lie on `servers` servers in turn.
fn pager<F: Fabric>(fabric: &F, config: FarConfig, servers: u16) -> TestPager<F> {
    let (chunk, copies) = (config.chunk_bytes as u64, 1 + u64::from(config.mirror));
    let parts = (0..copies * config.region_bytes as u64 / chunk).map(|number| {
        let server = ServerId::new((number % u64::from(servers)) as u16);
        (GlobalAddr::new(server, 4096 + number * chunk), chunk)
    });
    let space = Reserved::new(parts.collect());
    let memory = ManualRegion::new(&config).unwrap();
    Pager::new(config, fabric.clone(), memory, space).unwrap()
}

fn services(count: usize) -> Vec<std::sync::Arc<TestService>> {
    (0..count).map(|_| TestService::new(SERVER_BYTES)).collect()
}

/// Runs `body` beside the pager's task.
async fn beside<F: Fabric, S: ChunkSpace<F>, T>(
    pager: &Pager<F, ManualRegion, S>,
    body: impl Future<Output = T>,
) -> T {
    let body = async {
        let outcome = body.await;
        pager.stop();
        outcome
    };
    join(pager.run(), body).await.1
}

/// Pseudo-random numbers (splitmix64).
struct Numbers(Cell<u64>);

impl Numbers {
    fn below(&self, limit: u64) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

/// The plain buffer, and the pages that a task is discarding: what others find there meanwhile is
/// not settled.
struct Plain {
    words: RefCell<Vec<u64>>,
    unsettled: RefCell<Vec<bool>>,
    failures: Cell<u64>,
    compared: Cell<u64>,
}

impl Plain {
    fn new() -> Self {
        Self {
            words: RefCell::new(vec![0; PAGES as usize * PAGE_WORDS]),
            unsettled: RefCell::new(vec![false; PAGES as usize]),
            failures: Cell::new(0),
            compared: Cell::new(0),
        }
    }

    fn is_unsettled(&self, page: u32) -> bool {
        self.unsettled.borrow()[page as usize]
    }

    fn failed(&self, error: &FarError, may_fail: bool) {
        assert!(may_fail, "{error}");
        self.failures.set(self.failures.get() + 1);
    }

    fn compare<F: Fabric>(&self, pager: &TestPager<F>, word: usize) {
        let (found, expected) = (pager.memory().load(word), self.words.borrow()[word]);
        assert_eq!(found, expected, "word {word} of page {}", word / PAGE_WORDS);
        self.compared.set(self.compared.get() + 1);
    }
}

/// One task's random operations.
async fn play<F: Fabric>(
    pager: &TestPager<F>,
    plain: &Plain,
    seed: u64,
    steps: usize,
    may_fail: bool,
) {
    let numbers = Numbers(Cell::new(seed));
    for step in 0..steps {
        let hot = numbers.below(10) < 7;
        let page = numbers.below(if hot { 8 } else { u64::from(PAGES) }) as u32;
        let word = page as usize * PAGE_WORDS + numbers.below(PAGE_WORDS as u64) as usize;
        if plain.is_unsettled(page) {
            continue;
        }
        match numbers.below(100) {
            0..48 => match pager.touch(page, AccessKind::Read).await {
                Ok(()) if plain.is_unsettled(page) => {}
                Ok(()) => plain.compare(pager, word),
                Err(error) => plain.failed(&error, may_fail),
            },
            48..88 => match pager.touch(page, AccessKind::Write).await {
                Ok(()) if plain.is_unsettled(page) => {}
                Ok(()) => {
                    let value = seed << 32 | step as u64;
                    pager.memory().store(word, value);
                    plain.words.borrow_mut()[word] = value;
                }
                Err(error) => plain.failed(&error, may_fail),
            },
            88..92 => {
                plain.unsettled.borrow_mut()[page as usize] = true;
                match pager.discard(page..page + 1).await {
                    Ok(()) => {
                        let first = page as usize * PAGE_WORDS;
                        plain.words.borrow_mut()[first..first + PAGE_WORDS].fill(0);
                    }
                    Err(error) => assert_eq!(error, FarError::Held { page }),
                }
                plain.unsettled.borrow_mut()[page as usize] = false;
            }
            92..96 => pager.evict(page..(page + 3).min(PAGES)).await,
            96..98 => pager.will_need(page..(page + 4).min(PAGES)),
            _ => {
                let pages = page..(page + 2).min(PAGES);
                match pager.hold(pages.clone()).await {
                    Ok(()) => {
                        pager.evict(pages.clone()).await;
                        for page in pages.clone() {
                            let state = pager.state(page);
                            assert!(
                                matches!(state, PageState::Clean | PageState::Dirty),
                                "{state:?}"
                            );
                        }
                        pager.release(pages);
                    }
                    Err(FarError::TooManyHeld { .. }) => {}
                    Err(error) => plain.failed(&error, may_fail),
                }
            }
        }
        if step % 64 == 0 {
            pager.check();
        }
    }
}

/// Lets 8 tasks play, and compares the whole region in the end.
async fn game<F: Fabric>(
    pager: &TestPager<F>,
    plain: &Plain,
    seed: u64,
    steps: usize,
    may_fail: bool,
) -> FarStats {
    beside(pager, async {
        let task = |number| play(pager, plain, seed * 8 + number, steps / 8, may_fail);
        join_all((0..8).map(task)).await;
        for page in 0..PAGES {
            match pager.touch(page, AccessKind::Read).await {
                Ok(()) => {
                    let first = page as usize * PAGE_WORDS;
                    (first..first + PAGE_WORDS).for_each(|word| plain.compare(pager, word));
                }
                Err(error) => plain.failed(&error, may_fail),
            }
        }
        pager.check();
        pager.stats()
    })
    .await
}

fn assert_paged(stats: &FarStats) {
    assert!(stats.peak_resident <= BUFFER_PAGES, "{stats:?}");
    assert_eq!(stats.peak_resident, BUFFER_PAGES, "the buffer was full at times: {stats:?}");
    for count in [stats.fills, stats.zero_fills, stats.write_backs, stats.clean_evictions] {
        assert!(count > 0, "{stats:?}");
    }
    for count in [stats.kept, stats.discards, stats.write_backs_saved, stats.fills_ahead] {
        assert!(count > 0, "{stats:?}");
    }
}

#[test]
fn a_million_operations_equal_a_plain_buffer() {
    for (seed, policy) in [(1, Policy::Fifo), (2, Policy::Clock)] {
        // With a latency, operations overlap with what other tasks do.
        let provider = LocalConfig { network_latency_ns: 1, ..LocalConfig::default() };
        let cluster = provider.start(services(2));
        let stats = cluster.run_one(|fabric| async move {
            let pager = pager(&fabric, FarConfig { policy, ..config() }, 2);
            let plain = Plain::new();
            let stats = game(&pager, &plain, seed, 500_000, false).await;
            assert!(plain.compared.get() > 200_000);
            stats
        });
        assert_paged(&stats);
        assert_eq!(stats.failed_fills + stats.failed_write_backs + stats.retries, 0);
    }
}

#[test]
fn over_tcp_the_contents_are_the_same() {
    let cluster = TcpConfig::default().start(services(2));
    let stats = cluster.run_one(|fabric| async move {
        game(&pager(&fabric, config(), 2), &Plain::new(), 3, 30_000, false).await
    });
    assert_paged(&stats);
}

#[test]
fn lost_and_late_messages_change_no_content() {
    let mut retries = 0;
    for seed in 0..20 {
        let faults = Faults {
            drop_probability: 0.02,
            late_probability: 0.02,
            max_late_ns: 300_000,
            timeout_ns: 100_000,
            ..Faults::rough()
        };
        let sim =
            SimConfig { seed, faults, give_up_after_ns: 60_000_000_000, ..Default::default() };
        let cluster = sim.start(services(2));
        let stats = cluster.run_one(|fabric| async move {
            game(&pager(&fabric, config(), 2), &Plain::new(), seed, 4_000, false).await
        });
        assert_paged(&stats);
        retries += stats.retries;
    }
    assert!(retries > 1_000, "{retries} retries");
}

#[test]
fn a_memory_server_that_dies_is_an_error_of_its_pages() {
    for seed in 0..20 {
        let faults = Faults {
            drop_probability: 0.01,
            timeout_ns: 100_000,
            kill_memory_server_at_ns: vec![(1, 300_000 + seed * 100_000)],
            ..Faults::rough()
        };
        let sim =
            SimConfig { seed, faults, give_up_after_ns: 60_000_000_000, ..Default::default() };
        let cluster = sim.start(services(2));
        cluster.run_one(|fabric| async move {
            let config = FarConfig { patience_ns: 2_000_000, rest_ns: 500_000, ..config() };
            let (pager, plain) = (pager(&fabric, config, 2), Plain::new());
            let stats = game(&pager, &plain, seed, 4_000, true).await;
            assert!(plain.failures.get() > 0 && plain.compared.get() > 1_000);
            assert!(stats.peak_resident <= BUFFER_PAGES);
            assert!(stats.failed_fills > 0, "{stats:?}");
            // A page that was read is used before it leaves, however few slots are left.
            assert!(stats.fills <= 2 * 4_000, "{stats:?}");
        });
    }
}

/// With a second copy of each page, one server may die, with messages lost and late besides.
#[test]
fn a_memory_server_that_dies_is_no_error_with_a_mirror() {
    for seed in 0..20 {
        let faults = Faults {
            drop_probability: 0.01,
            late_probability: 0.01,
            max_late_ns: 300_000,
            timeout_ns: 100_000,
            kill_memory_server_at_ns: vec![(seed as u16 % 2, 300_000 + seed * 100_000)],
            ..Faults::rough()
        };
        let sim =
            SimConfig { seed, faults, give_up_after_ns: 60_000_000_000, ..Default::default() };
        let cluster = sim.start(services(2));
        cluster.run_one(|fabric| async move {
            let config =
                FarConfig { mirror: true, patience_ns: 2_000_000, rest_ns: 500_000, ..config() };
            let (pager, plain) = (pager(&fabric, config, 2), Plain::new());
            let stats = game(&pager, &plain, seed, 4_000, false).await;
            assert_paged(&stats);
            assert!(stats.lost_copies > 0 && stats.lost_copies <= 8, "{stats:?}");
            assert!(plain.compared.get() > 1_000);
        });
    }
}

/// Each page is written twice and read once, and a chunk without a second server is counted.
#[test]
fn a_mirror_costs_a_write_and_no_read() {
    for servers in [1, 2] {
        let cluster = LocalConfig::default().start(services(2));
        cluster.run_one(|fabric| async move {
            let config = FarConfig { mirror: true, ahead_pages: 0, ..config() };
            let pager = pager(&fabric, config, servers);
            beside(&pager, async {
                for page in [0, CHUNK_PAGES as u32] {
                    pager.touch(page, AccessKind::Write).await.unwrap();
                    pager.memory().store(page as usize * PAGE_WORDS, 5);
                }
                pager.evict(0..PAGES).await;
                pager.ensure(0..1).await.unwrap();
                assert_eq!(pager.memory().load(0), 5);
            })
            .await;
            let (stats, copies) = (pager.stats(), u64::from(servers));
            let page_bytes = PAGE_WORDS as u64 * 8;
            assert_eq!((stats.writes, stats.write_backs, stats.reads), (2 * copies, 2, 1));
            assert_eq!((stats.bytes_out, stats.bytes_in), (2 * copies * page_bytes, page_bytes));
            assert_eq!(stats.remote_bytes, 2 * copies * CHUNK_PAGES * page_bytes);
            assert_eq!(stats.lost_copies, 4 - 2 * copies);
        });
    }
}

#[test]
fn a_mirror_needs_two_memory_servers() {
    let cluster = LocalConfig::default().start(services(1));
    cluster.run_one(|fabric| async move {
        let config = FarConfig { mirror: true, ..config() };
        let (memory, space) = (ManualRegion::new(&config).unwrap(), Reserved::first(SERVER_BYTES));
        let refused = Pager::new(config, fabric, memory, space).err();
        assert!(matches!(refused, Some(FarError::Config { .. })), "{refused:?}");
    });
}

/// Changed pages of a dead memory server stay readable. When they fill the buffer, other pages find
/// no room, which is an error and not a hang.
#[test]
fn changed_pages_that_cannot_leave_stay() {
    let cluster = LocalConfig::default().start(services(1));
    cluster.run_one(|fabric| {
        let cluster = &cluster;
        async move {
            let config =
                FarConfig { patience_ns: 1_000_000, rest_ns: 1_000_000_000_000, ..config() };
            let pager = pager(&fabric, config, 1);
            beside(&pager, async {
                for page in 0..10 {
                    pager.touch(page, AccessKind::Write).await.unwrap();
                    pager.memory().store(page as usize * PAGE_WORDS, u64::from(page) + 1);
                }
                pager.evict(0..1).await;
                assert_eq!(pager.state(0), PageState::Remote);
                cluster.kill_memory_server(ServerId::new(0));
                let mut refused = None;
                for page in 10..40 {
                    if let Err(error) = pager.touch(page, AccessKind::Write).await {
                        refused = Some(error);
                        break;
                    }
                }
                assert!(matches!(refused, Some(FarError::NoRoom { .. })), "{refused:?}");
                for page in 1..10 {
                    pager.touch(page, AccessKind::Read).await.unwrap();
                    assert_eq!(
                        pager.memory().load(page as usize * PAGE_WORDS),
                        u64::from(page) + 1
                    );
                }
                // Discarding makes room again, but the page that is only remote stays unreachable.
                pager.discard(1..9).await.unwrap();
                pager.touch(50, AccessKind::Write).await.unwrap();
                let error = pager.ensure(0..1).await.unwrap_err();
                assert!(matches!(error, FarError::Unreachable { page: 0, .. }), "{error}");
                assert_eq!(pager.stats().peak_resident, BUFFER_PAGES);
            })
            .await;
        }
    });
}

/// A space that the test can look into.
struct Watched(Rc<Reserved>);

impl<F: Fabric> ChunkSpace<F> for Watched {
    async fn take(&self, fabric: &F, bytes: u64) -> Result<GlobalAddr, FarError> {
        self.0.take(fabric, bytes).await
    }

    async fn give_back(&self, fabric: &F, at: GlobalAddr, bytes: u64) {
        self.0.give_back(fabric, at, bytes).await;
    }
}

#[test]
fn memory_is_taken_when_needed_and_given_back() {
    let cluster = LocalConfig::default().start(services(1));
    cluster.run_one(|fabric| async move {
        let config = FarConfig { rest_ns: 1, ..config() };
        let chunk = config.chunk_bytes as u64;
        // Room for one chunk only.
        let reserved = Reserved::first(config.chunk_bytes);
        let space = Watched(Rc::new(reserved));
        let reserved = Rc::clone(&space.0);
        let memory = ManualRegion::new(&config).unwrap();
        let pager = Pager::new(config, fabric, memory, space).unwrap();
        beside(&pager, async {
            pager.touch(0, AccessKind::Read).await.unwrap();
            pager.evict(0..1).await;
            assert_eq!(pager.stats().remote_bytes, 0, "zeros need no memory");
            pager.touch(0, AccessKind::Write).await.unwrap();
            pager.evict(0..1).await;
            assert_eq!(pager.stats().remote_bytes, chunk);
            pager.touch(CHUNK_PAGES as u32, AccessKind::Write).await.unwrap();
            pager.evict(CHUNK_PAGES as u32..CHUNK_PAGES as u32 + 1).await;
            assert_eq!(pager.state(CHUNK_PAGES as u32), PageState::Dirty, "it cannot leave");
            let outcome = pager.ensure(0..PAGES).await;
            assert_eq!(outcome, Ok(()), "clean pages make room for each other");
            assert_eq!(pager.state(CHUNK_PAGES as u32), PageState::Dirty);
            assert_eq!(reserved.free_bytes(), 0);
        })
        .await;
        assert!(pager.stats().failed_write_backs > 0);
        assert_eq!(reserved.free_bytes(), chunk, "it was given back");
    });
}

#[test]
fn discarded_pages_are_never_written_back() {
    let cluster = LocalConfig::default().start(services(1));
    cluster.run_one(|fabric| async move {
        let pager = pager(&fabric, config(), 1);
        let stats = beside(&pager, async {
            for round in 0..20 {
                for page in 0..8 {
                    pager.touch(page, AccessKind::Write).await.unwrap();
                    let word = page as usize * PAGE_WORDS;
                    assert_eq!(pager.memory().load(word), 0, "discarded pages are zeros");
                    pager.memory().store(word, round + 1);
                }
                pager.discard(0..8).await.unwrap();
            }
            pager.stats()
        })
        .await;
        assert_eq!((stats.writes, stats.bytes_out, stats.reads), (0, 0, 0));
        assert_eq!((stats.discards, stats.write_backs_saved), (160, 160));
        assert_eq!(fabric.counters().snapshot().remote_operations(), 0);
    });
}

#[test]
fn adjacent_pages_move_together_and_ahead_of_demand() {
    let cluster = LocalConfig::default().start(services(1));
    cluster.run_one(|fabric| async move {
        let pager = pager(&fabric, FarConfig { ahead_pages: 0, ..config() }, 1);
        beside(&pager, async {
            for page in 0..8 {
                pager.touch(page, AccessKind::Write).await.unwrap();
                pager.memory().store(page as usize * PAGE_WORDS, 7);
            }
            pager.evict(0..8).await;
            assert_eq!((pager.stats().writes, pager.stats().write_backs), (1, 8));
            pager.ensure(0..4).await.unwrap();
            assert_eq!((pager.stats().reads, pager.stats().fills), (1, 4));
            pager.will_need(4..8);
            fabric.sleep(1_000_000).await;
            assert_eq!((pager.stats().reads, pager.stats().fills_ahead), (2, 4));
            for page in 4..8 {
                pager.touch(page, AccessKind::Read).await.unwrap();
                assert_eq!(pager.memory().load(page as usize * PAGE_WORDS), 7);
            }
            assert_eq!(pager.stats().reads, 2, "the pages were read ahead");
            assert_eq!(pager.stats().ahead_hits, 4);
        })
        .await;
    });
}

/// Two streams at the same time: most pages are there before they are touched, by fewer READs.
#[test]
fn streams_are_read_ahead() {
    let cluster = SimConfig::default().start(services(1));
    cluster.run_one(|fabric| async move {
        let config = FarConfig { ahead_pages: 4, ..config() };
        let pager = pager(&fabric, config, 1);
        beside(&pager, async {
            for page in 0..PAGES {
                pager.touch(page, AccessKind::Write).await.unwrap();
                pager.memory().store(page as usize * PAGE_WORDS, u64::from(page));
            }
            pager.evict(0..PAGES).await;
            let before = pager.stats();
            for step in 0..PAGES / 2 {
                for page in [step, PAGES / 2 + step] {
                    pager.touch(page, AccessKind::Read).await.unwrap();
                    assert_eq!(pager.memory().load(page as usize * PAGE_WORDS), u64::from(page));
                    fabric.sleep(5_000).await;
                }
            }
            let after = pager.stats();
            let (fills, hits) = (after.fills - before.fills, after.ahead_hits);
            assert_eq!(fills + hits, u64::from(PAGES), "{after:?}");
            assert!(hits >= u64::from(PAGES) - 8, "{after:?}");
            // The first stream goes on ahead into the second one's pages, by one window.
            assert!(after.fills_ahead - hits <= 4, "little was read in vain: {after:?}");
            assert!(after.reads - before.reads < u64::from(PAGES) * 3 / 4, "{after:?}");
        })
        .await;
    });
}

#[test]
fn holds_are_bounded_and_ranges_are_checked() {
    let cluster = LocalConfig::default().start(services(1));
    cluster.run_one(|fabric| async move {
        let pager = pager(&fabric, config(), 1);
        beside(&pager, async {
            let most = config().held_pages;
            pager.hold(0..most).await.unwrap();
            let error = pager.hold(most..most + 1).await.unwrap_err();
            let pages = u64::from(most) + 1;
            assert_eq!(error, FarError::TooManyHeld { pages, most });
            assert_eq!(pager.discard(0..1).await, Err(FarError::Held { page: 0 }));
            // Everything else goes through the other half of the buffer.
            for page in most..PAGES {
                pager.touch(page, AccessKind::Write).await.unwrap();
            }
            assert!((0..most).all(|page| pager.state(page) == PageState::Clean));
            pager.release(0..most);
            assert_eq!(pager.stats().held, 0);
            pager.hold(most..most + 1).await.unwrap();
        })
        .await;
        assert_eq!(pager.pages(&(4095..4097)), Ok(0..2));
        assert_eq!(pager.pages(&(4096..4096)), Ok(1..1));
        let region_bytes = pager.config().region_bytes;
        let outside = FarError::Outside { from: 8, bytes: region_bytes, region_bytes };
        assert_eq!(pager.pages(&(8..8 + region_bytes)), Err(outside));
    });
}
