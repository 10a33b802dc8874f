//! Memory servers that fail at a chosen moment: for a while, slowly, by refusing, or so late that
//! the pager has given the operation up. And a planted bug, which the simulator must notice.

use farleaf_fabric::AnyFabric;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::handshake::{HandshakeError, HandshakeRefusal};
use farleaf_fabric::sim::{Faults, SimConfig};
use farleaf_fabric::{
    Buffer, Cluster, Fabric, FabricError, GlobalAddr, Message, Provider, ServerId, Uncertainty,
};
use farleaf_far_memory::{
    AccessKind, FarConfig, FarError, ManualRegion, PageState, Pager, Reserved,
};
use futures_util::StreamExt;
use futures_util::future::{FutureExt, LocalBoxFuture, join, join_all};
use futures_util::stream::FuturesUnordered;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Mutex;

const PAGE_WORDS: usize = 512;
const PAGE_BYTES: usize = PAGE_WORDS * 8;
const PAGES: u32 = 64;
const CHUNK_PAGES: u32 = 8;
const BUFFER_PAGES: u32 = 16;

/// What a memory server does wrong.
#[derive(Default)]
struct Trouble {
    /// READs and WRITEs that are refused before others are served.
    refusals: Cell<u32>,
    /// READs and WRITEs whose outcome is unknown before others are served.
    unknown: Cell<u32>,
    /// How long a reset takes, which then fails; 0 lets it succeed.
    slow_reset_ns: Cell<u64>,
    resets: Cell<u32>,
    /// The planted bug: WRITEs are confirmed when they are posted, so pages are freed too early.
    confirms_early: Cell<bool>,
}

/// An endpoint over another one, with [`Trouble`] at one memory server.
#[derive(Clone)]
struct Troubled<F> {
    inner: F,
    server: ServerId,
    trouble: Rc<Trouble>,
}

impl<F: Fabric> Troubled<F> {
    fn new(inner: F, server: ServerId) -> Self {
        Self { inner, server, trouble: Rc::default() }
    }

    fn fault(&self, server: ServerId) -> Result<(), FabricError> {
        let takes = |count: &Cell<u32>| count.replace(count.get().saturating_sub(1)) > 0;
        if server != self.server {
            return Ok(());
        }
        if takes(&self.trouble.refusals) {
            return Err(FabricError::NotLetIn {
                server,
                why: HandshakeError::Refused(HandshakeRefusal::Full),
            });
        }
        if takes(&self.trouble.unknown) {
            return Err(unknown(server));
        }
        Ok(())
    }

    /// An operation that fails after a moment.
    fn fail<T: 'static>(
        &self,
        error: FabricError,
    ) -> LocalBoxFuture<'static, Result<T, FabricError>> {
        let inner = self.inner.clone();
        let failed = async move {
            inner.sleep(1_000).await;
            Err(error)
        };
        failed.boxed_local()
    }
}

fn unknown(server: ServerId) -> FabricError {
    FabricError::Indeterminate { server, why: Uncertainty::ConnectionLost }
}

impl<F: Fabric> Fabric for Troubled<F> {
    type Op<T: 'static> = LocalBoxFuture<'static, Result<T, FabricError>>;

    fn read(&self, at: GlobalAddr, into: Buffer) -> Self::Op<Buffer> {
        match self.fault(at.server()) {
            Ok(()) => self.inner.read(at, into).boxed_local(),
            Err(error) => self.fail(error),
        }
    }

    fn write(&self, at: GlobalAddr, from: Buffer) -> Self::Op<Buffer> {
        if self.trouble.confirms_early.get() {
            let on_its_way = self.inner.write(at, from);
            let confirmed = self.inner.buffer(8);
            return async move {
                drop(on_its_way);
                confirmed
            }
            .boxed_local();
        }
        match self.fault(at.server()) {
            Ok(()) => self.inner.write(at, from).boxed_local(),
            Err(error) => self.fail(error),
        }
    }

    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Self::Op<u64> {
        self.inner.compare_swap(at, expected, new).boxed_local()
    }

    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> Self::Op<u64> {
        self.inner.fetch_add(at, delta).boxed_local()
    }

    fn call(&self, server: ServerId, request: Message) -> Self::Op<Message> {
        self.inner.call(server, request).boxed_local()
    }

    async fn reset(&self, server: ServerId) -> Result<(), FabricError> {
        let slow_ns = self.trouble.slow_reset_ns.get();
        if server != self.server || slow_ns == 0 {
            return self.inner.reset(server).await;
        }
        self.trouble.resets.set(self.trouble.resets.get() + 1);
        self.inner.sleep(slow_ns).await;
        Err(unknown(server))
    }

    async fn fence(&self, server: ServerId, compute_server: u16) -> Result<(), FabricError> {
        self.inner.fence(server, compute_server).await
    }

    farleaf_fabric::forward_fabric!(inner);
}

type TestPager<F> = Pager<F, ManualRegion, Reserved>;

fn config() -> FarConfig {
    FarConfig {
        chunk_bytes: CHUNK_PAGES as usize * PAGE_BYTES,
        patience_ns: 1,
        rest_ns: 1_000_000,
        ahead_pages: 0,
        ..FarConfig::new(PAGES as usize * PAGE_BYTES, PAGE_BYTES, BUFFER_PAGES)
    }
}

/// A pager whose chunks are placed on two memory servers in turn.
fn pager<F: Fabric>(fabric: &F, config: FarConfig) -> TestPager<F> {
    let (chunk, copies) = (config.chunk_bytes as u64, 1 + u64::from(config.mirror));
    let parts = (0..copies * u64::from(PAGES / CHUNK_PAGES)).map(|number| {
        (GlobalAddr::new(ServerId::new((number % 2) as u16), 4096 + number * chunk), chunk)
    });
    let space = Reserved::new(parts.collect());
    let memory = ManualRegion::new(&config).unwrap();
    Pager::new(config, fabric.clone(), memory, space).unwrap()
}

type Endpoint = Troubled<AnyFabric>;

/// Runs `body` in the simulator beside a pager, with trouble at memory server 1. Returns the number
/// of slow resets at the end of the region.
fn in_sim<B>(config: &FarConfig, sim: SimConfig, body: B) -> u32
where
    B: AsyncFn(&TestPager<Endpoint>, &Endpoint) + Sync,
{
    let services = (0..2).map(|_| TestService::new(1 << 20)).collect();
    let sim = SimConfig { give_up_after_ns: 60_000_000_000, ..sim };
    sim.start(services).run_one(|fabric| {
        let body = &body;
        async move {
            let fabric = Troubled::new(fabric, ServerId::new(1));
            let pager = pager(&fabric, config.clone());
            let tested = async {
                // Chunks get their places in the order of their first WRITEs.
                for page in (0..PAGES).step_by(CHUNK_PAGES as usize) {
                    store(&pager, page, 1).await;
                    while pager.state(page) != PageState::Remote {
                        pager.evict(page..page + 1).await;
                    }
                    pager.discard(page..page + 1).await.unwrap();
                }
                body(&pager, &fabric).await;
                pager.check();
                pager.stop();
            };
            let resets = join(pager.run(), async {
                tested.await;
                fabric.trouble.resets.get()
            });
            let (_, before) = resets.await;
            fabric.trouble.resets.get() - before
        }
    })
}

/// Stores `value` in the first word of a page.
async fn store(pager: &TestPager<Endpoint>, page: u32, value: u64) {
    pager.touch(page, AccessKind::Write).await.unwrap();
    pager.memory().store(page as usize * PAGE_WORDS, value);
}

async fn load(pager: &TestPager<Endpoint>, page: u32) -> Result<u64, FarError> {
    pager.touch(page, AccessKind::Read).await?;
    Ok(pager.memory().load(page as usize * PAGE_WORDS))
}

/// A READ that was given up arrives after its page was discarded and written again. The page must
/// not get its old content back.
#[test]
fn late_reads_do_not_reach_younger_content() {
    let (mut failures, mut discards) = (0, 0);
    for seed in 0..20 {
        let faults = Faults {
            late_probability: 0.3,
            max_late_ns: 200_000,
            timeout_ns: 20_000,
            ..Faults::default()
        };
        let counts = Mutex::new((0, 0));
        in_sim(
            &config(),
            SimConfig { seed, faults, ..Default::default() },
            async |pager, fabric| {
                for round in 0..60_u32 {
                    let page = round % 3;
                    store(pager, page, 1).await;
                    while pager.state(page) != PageState::Remote {
                        pager.evict(page..page + 1).await;
                    }
                    if load(pager, page).await.is_ok() {
                        continue;
                    }
                    pager.discard(page..page + 1).await.unwrap();
                    pager.touch(page, AccessKind::Write).await.unwrap();
                    assert_eq!(pager.memory().load(page as usize * PAGE_WORDS), 0, "page {page}");
                    store(pager, page, 7).await;
                    fabric.sleep(400_000).await;
                    assert_eq!(load(pager, page).await, Ok(7), "page {page} in round {round}");
                }
                let stats = pager.stats();
                *counts.lock().unwrap() = (stats.failed_fills, stats.discards);
            },
        );
        let (fills, discarded) = counts.into_inner().unwrap();
        (failures, discards) = (failures + fills, discards + discarded);
    }
    assert!(failures > 100 && discards > 100, "{failures} failures, {discards} discards");
}

/// A server that is at its limit of connections for a moment has not lost anything.
#[test]
fn a_refusal_for_a_moment_loses_no_page() {
    let config = FarConfig { patience_ns: 10_000_000, ..config() };
    in_sim(&config, SimConfig::default(), async |pager, fabric| {
        store(pager, 8, 5).await;
        pager.evict(8..9).await;
        fabric.trouble.refusals.set(3);
        assert_eq!(load(pager, 8).await, Ok(5));
        assert_eq!(pager.stats().retries, 3);
        // Beyond the patience it is an error, and still not a loss.
        pager.evict(8..9).await;
        fabric.trouble.refusals.set(u32::MAX);
        let error = load(pager, 8).await.unwrap_err();
        assert!(matches!(error, FarError::Unreachable { page: 8, .. }), "{error}");
        fabric.trouble.refusals.set(0);
        assert_eq!(load(pager, 8).await, Ok(5));
    });
}

/// The last slot goes to a page that is held at once. A touch that waited for a slot meanwhile
/// hears that none will become free.
#[test]
fn a_touch_beside_holds_and_stuck_pages_ends() {
    let config = FarConfig { rest_ns: 1_000_000_000_000, ..config() };
    in_sim(&config, SimConfig::default(), async |pager, fabric| {
        store(pager, 0, 3).await;
        pager.evict(0..1).await;
        fabric.trouble.refusals.set(u32::MAX);
        for page in 8..16 {
            store(pager, page, 4).await;
        }
        pager.evict(8..16).await;
        assert!((8..16).all(|page| pager.state(page) == PageState::Dirty));
        pager.hold(16..23).await.unwrap();
        // Each is polled only when it is woken.
        let both =
            [pager.hold(0..1).boxed_local(), pager.touch(40, AccessKind::Write).boxed_local()];
        let both: FuturesUnordered<_> = both.into_iter().collect();
        let outcomes: Vec<_> = both.collect().await;
        assert_eq!(outcomes[0], Ok(()), "the page is held");
        assert!(matches!(outcomes[1], Err(FarError::NoRoom { page: 40, .. })), "{outcomes:?}");
        pager.release(0..1);
        pager.touch(40, AccessKind::Write).await.unwrap();
    });
}

/// The WRITE of one run fails. The runs behind it, to the same server, do not fail in turn.
#[test]
fn runs_behind_a_dead_server_stay() {
    let config = FarConfig { write_back_bytes: PAGE_BYTES, ..config() };
    in_sim(&config, SimConfig::default(), async |pager, fabric| {
        let others = [8, 10, 12, 14];
        for page in others.into_iter().chain([0]) {
            store(pager, page, 2).await;
        }
        let before = pager.stats();
        fabric.trouble.refusals.set(u32::MAX);
        pager.evict(0..16).await;
        assert_eq!(others.map(|page| pager.state(page)), [PageState::Dirty; 4]);
        assert_eq!(pager.state(0), PageState::Remote, "the other server takes its pages");
        let after = pager.stats();
        assert_eq!(after.writes - before.writes, 2, "{after:?}");
        // After a rest, one page at a time tries again.
        fabric.sleep(config.rest_ns * 2).await;
        for page in 24..32 {
            store(pager, page, 1).await;
        }
        for page in 32..39 {
            store(pager, page, 1).await;
            assert!(
                others.iter().filter(|page| pager.state(**page) == PageState::Leaving).count() <= 1
            );
        }
        fabric.trouble.refusals.set(0);
        pager.evict(8..16).await;
        assert!(others.iter().all(|page| pager.state(*page) == PageState::Remote));
    });
}

/// Tasks that need the same reset share its failure, and the end of a region needs one for each
/// server.
#[test]
fn a_reset_that_fails_fails_for_all() {
    let config = config();
    let last_resets = in_sim(&config, SimConfig::default(), async |pager, fabric| {
        let pages = [8, 10, 12, 14, 24, 26, 28, 30];
        for page in pages {
            store(pager, page, u64::from(page)).await;
        }
        pager.evict(0..PAGES).await;
        let trouble = &fabric.trouble;
        trouble.slow_reset_ns.set(1_000_000);
        trouble.unknown.set(1);
        load(pager, 8).await.unwrap_err();
        assert_eq!(trouble.resets.get(), 0, "nothing waits for the outcome of the READ");
        for outcome in join_all(pages.map(|page| load(pager, page))).await {
            assert!(matches!(outcome, Err(FarError::Unreachable { .. })), "{outcome:?}");
        }
        assert_eq!(trouble.resets.get(), 1);
    });
    assert_eq!(last_resets, 1);
}

/// A server that has failed is given up at once as long as it rests. Later it gets the whole
/// patience again.
#[test]
fn a_server_that_has_rested_gets_patience_again() {
    let config = FarConfig { patience_ns: 10_000_000, ..config() };
    in_sim(&config, SimConfig::default(), async |pager, fabric| {
        store(pager, 8, 6).await;
        store(pager, 10, 6).await;
        pager.evict(8..11).await;
        let unknown = &fabric.trouble.unknown;
        unknown.set(u32::MAX);
        load(pager, 8).await.unwrap_err();
        unknown.set(3);
        load(pager, 10).await.unwrap_err();
        assert_eq!(unknown.get(), 2, "one attempt");
        fabric.sleep(config.rest_ns * 2).await;
        assert_eq!(load(pager, 10).await, Ok(6));
        assert_eq!(load(pager, 8).await, Ok(6));
    });
}

/// Counts of [`write_and_compare`].
#[derive(Debug, Default)]
struct Found {
    right: u32,
    wrong: u32,
    failed: u32,
}

/// Writes random pages, and compares each with what was stored there before.
async fn write_and_compare(pager: &TestPager<Endpoint>, fabric: &Endpoint) -> Found {
    let (mut stored, mut found) = ([0; PAGES as usize], Found::default());
    for step in 1..=2_000 {
        let page = (fabric.random() % u64::from(PAGES)) as u32;
        if pager.touch(page, AccessKind::Write).await.is_err() {
            found.failed += 1;
            continue;
        }
        let (last, word) = (&mut stored[page as usize], page as usize * PAGE_WORDS + 500);
        match pager.memory().load(word) == *last {
            true => found.right += 1,
            false => found.wrong += 1,
        }
        *last = step;
        pager.memory().store(word, step);
    }
    found
}

/// The pager is right with lost and late messages and a server that dies. If it freed pages before
/// their WRITEs are confirmed, most runs would show it.
#[test]
fn a_page_that_is_freed_before_its_write_is_confirmed_is_noticed() {
    let config = FarConfig { patience_ns: 3_000_000, ..config() };
    let mut caught = 0;
    for seed in 0..20 {
        let faults = Faults {
            drop_probability: 0.02,
            late_probability: 0.02,
            max_late_ns: 300_000,
            timeout_ns: 100_000,
            kill_memory_server_at_ns: vec![(1, 20_000_000)],
            ..Faults::rough()
        };
        let sim = SimConfig { seed, faults, ..Default::default() };
        for has_bug in [false, true] {
            let found = Mutex::new(Found::default());
            in_sim(&config, sim.clone(), async |pager, fabric| {
                fabric.trouble.confirms_early.set(has_bug);
                *found.lock().unwrap() = write_and_compare(pager, fabric).await;
            });
            let found = found.into_inner().unwrap();
            assert!(found.right > 200, "seed {seed}: {found:?}");
            if has_bug {
                caught += u32::from(found.wrong > 0);
            } else {
                assert!(found.wrong == 0 && found.failed > 0, "seed {seed}: {found:?}");
            }
        }
    }
    assert!(caught >= 15, "the bug was noticed in {caught} of 20 runs");
}

/// A server that was away for a WRITE has an old copy. It must not be read, even if the other
/// server dies; that is an error then. The chunks that missed nothing are still there.
#[test]
fn a_copy_that_has_missed_a_write_is_not_read() {
    let config = FarConfig { mirror: true, ..config() };
    let faults = Faults { kill_memory_server_at_ns: vec![(0, 50_000_000)], ..Faults::default() };
    in_sim(&config, SimConfig { faults, ..Default::default() }, async |pager, fabric| {
        store(pager, 0, 5).await;
        store(pager, 8, 7).await;
        pager.evict(0..PAGES).await;
        fabric.trouble.refusals.set(u32::MAX);
        store(pager, 0, 6).await;
        pager.evict(0..1).await;
        fabric.trouble.refusals.set(0);
        assert_eq!((pager.state(0), pager.stats().lost_copies), (PageState::Remote, 1));
        assert_eq!(load(pager, 0).await, Ok(6));
        pager.evict(0..1).await;
        fabric.sleep(60_000_000).await;
        let error = load(pager, 0).await.unwrap_err();
        assert!(matches!(error, FarError::Unreachable { page: 0, .. }), "{error}");
        assert_eq!(load(pager, 8).await, Ok(7));
    });
}

/// A server that was away for one WRITE mirrors again after its rest: chunks that have missed
/// nothing get their WRITEs on both servers, and survive the other one.
#[test]
fn a_server_that_returns_mirrors_again() {
    let config = FarConfig { mirror: true, ..config() };
    let faults = Faults { kill_memory_server_at_ns: vec![(0, 50_000_000)], ..Faults::default() };
    in_sim(&config, SimConfig { faults, ..Default::default() }, async |pager, fabric| {
        fabric.trouble.refusals.set(u32::MAX);
        store(pager, 0, 6).await;
        pager.evict(0..1).await;
        fabric.trouble.refusals.set(0);
        assert_eq!((pager.state(0), pager.stats().lost_copies), (PageState::Remote, 1));
        fabric.sleep(2 * config.rest_ns).await;
        for (page, value) in [(8, 7), (16, 9)] {
            let writes = pager.stats().writes;
            store(pager, page, value).await;
            pager.evict(page..page + 1).await;
            assert_eq!(pager.state(page), PageState::Remote);
            assert_eq!(pager.stats().writes - writes, 2);
        }
        assert_eq!(pager.stats().lost_copies, 1);
        fabric.sleep(60_000_000).await;
        assert_eq!((load(pager, 8).await, load(pager, 16).await), (Ok(7), Ok(9)));
    });
}

/// While a server rests, neither copy of a new chunk is there: two others have room. The first copy
/// was, once, and missed its first WRITE.
#[test]
fn new_copies_are_on_servers_that_work() {
    let config = FarConfig { mirror: true, rest_ns: 60_000_000_000, ..config() };
    let services = (0..3).map(|_| TestService::new(1 << 20)).collect();
    SimConfig::default().start(services).run_one(|fabric| {
        let config = config.clone();
        async move {
            let fabric = Troubled::new(fabric, ServerId::new(0));
            let bytes = 8 * config.chunk_bytes as u64;
            let part = |number| (GlobalAddr::new(ServerId::new(number), 4096), bytes);
            let space = Reserved::new((0..3).map(part).collect());
            let memory = ManualRegion::new(&config).unwrap();
            let pager = Pager::new(config, fabric.clone(), memory, space).unwrap();
            let tested = async {
                fabric.trouble.refusals.set(u32::MAX);
                for page in [0, CHUNK_PAGES, 2 * CHUNK_PAGES] {
                    store(&pager, page, 5).await;
                    pager.evict(page..page + 1).await;
                    assert_eq!(pager.state(page), PageState::Remote);
                    assert_eq!(pager.stats().lost_copies, 1, "of the first chunk alone");
                }
                pager.stop();
            };
            join(pager.run(), tested).await;
        }
    });
}
