//! Regions that threads access like other memory, over memory servers of this process and over TCP.
//!
//! Each test runs with each provider of faults, and names it. Where the machine does not allow the
//! provider, the test says so in one line.

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_fabric::{Cluster, GlobalAddr, Provider, ServerId};
use farleaf_far_memory::{
    AccessAdvice, ClusterEndpoints, EndpointSource, FarConfig, FarError, FarRegion, FaultMode,
    FaultProvider, Policy, Reserved,
};

const BUFFER_PAGES: u32 = 16;
const THREADS: usize = 8;
/// Pages whose words all threads use, each its own words.
const SHARED_PAGES: usize = 64;
/// Pages of each thread alone, which it also discards.
const OWN_PAGES: usize = 8;
const PAGES: usize = SHARED_PAGES + THREADS * OWN_PAGES;

fn config(page_bytes: usize) -> FarConfig {
    FarConfig {
        chunk_bytes: 8 * page_bytes,
        ..FarConfig::new(PAGES * page_bytes, page_bytes, BUFFER_PAGES)
    }
}

/// Two memory servers with room for the region.
fn services(config: &FarConfig) -> Vec<Arc<TestService>> {
    let bytes = config.region_bytes.next_multiple_of(2 << 20);
    (0..2).map(|_| TestService::new(bytes)).collect()
}

fn space(config: &FarConfig) -> Reserved {
    let chunk = config.chunk_bytes as u64;
    let parts = (0..config.region_bytes as u64 / chunk).map(|number| {
        (GlobalAddr::new(ServerId::new((number % 2) as u16), number / 2 * chunk), chunk)
    });
    Reserved::new(parts.collect())
}

/// Writes a line past the harness, which keeps what tests print by macros to itself.
fn say(line: &str) {
    use std::io::Write;
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// A region by `provider`, unless that is not allowed here.
fn region<R: EndpointSource>(
    provider: FaultProvider,
    config: &FarConfig,
    reach: R,
) -> Option<FarRegion> {
    match FarRegion::by(provider, config.clone(), reach, space(config)) {
        Ok(region) => {
            say(&format!("provider: {}", region.mode()));
            assert_eq!(region.mode() == FaultMode::Signal, provider == FaultProvider::Signal);
            Some(region)
        }
        Err(error @ FarError::System { .. }) => {
            say(&format!("skipped: this machine does not allow {provider:?}: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn over_local(provider: FaultProvider, config: &FarConfig, body: impl FnOnce(&FarRegion)) {
    let cluster = Arc::new(LocalConfig::default().start(services(config)));
    if let Some(region) = region(provider, config, ClusterEndpoints::new(cluster, 0, 0)) {
        body(&region);
    }
}

/// Defines the tests with each provider.
macro_rules! with_each_provider {
    ($($name:ident,)*) => {
        mod userfaultfd {
            $(#[test] fn $name() { super::$name(super::FaultProvider::Userfaultfd); })*
        }
        mod signal {
            $(#[test] fn $name() { super::$name(super::FaultProvider::Signal); })*
        }
    };
}

/// Pseudo-random numbers (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// One thread's operations, compared with a plain buffer of the words that it alone uses.
fn play(region: &FarRegion, thread: usize, steps: usize) {
    let page_words = region.config().page_bytes / 8;
    let words = region.words();
    let mut plain = vec![0; words.len()];
    let mut numbers = Numbers(0x9e37_79b9 + thread as u64);
    let own = SHARED_PAGES + thread * OWN_PAGES;
    for step in 0..steps {
        let (is_own, is_hot) = (numbers.below(2) == 0, numbers.below(100) < 93);
        let page = match is_own {
            true => own + numbers.below(if is_hot { 1 } else { OWN_PAGES }),
            false => numbers.below(if is_hot { 4 } else { SHARED_PAGES }),
        };
        let place = numbers.below(page_words / THREADS) * THREADS + thread;
        let word = page * page_words + place;
        match numbers.below(1000) {
            0..500 => assert_eq!(words[word].load(Ordering::Relaxed), plain[word], "word {word}"),
            500..980 => {
                plain[word] = (thread << 32 | step) as u64;
                words[word].store(plain[word], Ordering::Relaxed);
            }
            980..990 if is_own => {
                let bytes = page * page_words * 8..(page + 1) * page_words * 8;
                assert_eq!(region.discard(bytes.clone()), Ok(bytes));
                plain[page * page_words..(page + 1) * page_words].fill(0);
            }
            980..994 => {
                let bytes = page * page_words * 8..(page + 1) * page_words * 8;
                region.advise(bytes, AccessAdvice::DontNeed).unwrap();
            }
            994..997 => {
                let end = (page + 4).min(PAGES);
                let bytes = page * page_words * 8..end * page_words * 8;
                region.advise(bytes, AccessAdvice::WillNeed).unwrap();
            }
            _ => {
                let byte = word * 8;
                match region.hold(byte..byte + 8) {
                    Ok(held) => {
                        assert_eq!(words[word].load(Ordering::Relaxed), plain[word]);
                        drop(held);
                    }
                    Err(error) => assert!(matches!(error, FarError::TooManyHeld { .. }), "{error}"),
                }
            }
        }
    }
    for (word, expected) in plain.iter().enumerate() {
        let page = word / page_words;
        let is_mine = if page < SHARED_PAGES {
            word % THREADS == thread
        } else {
            (own..own + OWN_PAGES).contains(&page)
        };
        if is_mine {
            assert_eq!(words[word].load(Ordering::Relaxed), *expected, "word {word}, last");
        }
    }
}

/// Lets 8 threads play, while another one watches the memory that the operating system counts.
fn game(region: &FarRegion, steps: usize) {
    let limit = u64::from(BUFFER_PAGES) * region.config().page_bytes as u64;
    let (is_over, looks, most) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                most.fetch_max(region.local_bytes(), Ordering::Relaxed);
                looks.fetch_add(1, Ordering::Relaxed);
                std::thread::park_timeout(std::time::Duration::from_micros(200));
            }
        });
        let players: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || play(region, thread, steps / THREADS)))
            .collect();
        let outcomes: Vec<_> = players.into_iter().map(|player| player.join()).collect();
        is_over.store(true, Ordering::Release);
        watch.join().unwrap();
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    let most = most.into_inner();
    assert!(most <= limit && looks.into_inner() > 0, "{most} bytes in a buffer of {limit}");
    assert!(most > limit / 2, "the buffer is used: {most} of {limit} bytes");
    region.check().unwrap();
    let stats = region.stats().unwrap();
    assert_eq!(stats.peak_resident, BUFFER_PAGES, "{stats:?}");
    for count in [stats.fills, stats.write_backs, stats.clean_evictions, stats.write_backs_saved] {
        assert!(count > 0, "{stats:?}");
    }
    assert_eq!(stats.failed_fills + stats.failed_write_backs, 0, "{stats:?}");
}

fn eight_threads_equal_a_plain_buffer(provider: FaultProvider) {
    over_local(provider, &config(4096), |region| game(region, 1_000_000));
}

fn the_clock_and_larger_pages_too(provider: FaultProvider) {
    let config = FarConfig { policy: Policy::Clock, ..config(64 << 10) };
    over_local(provider, &config, |region| {
        game(region, 60_000);
        assert!(region.stats().unwrap().passed_over > 0);
    });
}

fn over_tcp_too(provider: FaultProvider) {
    let config = config(16 << 10);
    let cluster = Arc::new(TcpConfig::default().start(services(&config)));
    if let Some(region) = region(provider, &config, ClusterEndpoints::new(cluster, 0, 0)) {
        game(&region, 40_000);
    }
}

/// With room for all pages, nothing faults after the first round.
fn a_full_buffer_never_faults_again(provider: FaultProvider) {
    let page_bytes = 16 << 10;
    let pages = 64;
    // The low water stays below what is free.
    let config = FarConfig {
        low_water_pages: 1,
        high_water_pages: 2,
        ..FarConfig::new(pages * page_bytes, page_bytes, pages as u32 + 2)
    };
    over_local(provider, &config, |region| {
        region.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
        let before = region.stats().unwrap();
        for round in 0..10 {
            assert!(region.words().iter().all(|word| word.load(Ordering::Relaxed) == 7 + round));
            region.words().iter().for_each(|word| word.store(8 + round, Ordering::Relaxed));
        }
        assert_eq!(region.stats().unwrap(), before);
        assert_eq!((before.fills, before.writes), (0, 0));
    });
}

fn system_calls_wait_for_pages_or_fail(provider: FaultProvider) {
    use std::io::{Read, Write};
    let config = config(4096);
    over_local(provider, &config, |region| {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        if region.mode() != (FaultMode::Userfaultfd { kernel_faults: true }) {
            region.words()[0].store(1, Ordering::Relaxed);
            region.advise(0..4096, AccessAdvice::DontNeed).unwrap();
            // SAFETY: nothing else uses the region while this slice lives.
            let part = unsafe { std::slice::from_raw_parts(region.base().as_ptr(), 4096) };
            let error = writer.write_all(part).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{}", region.mode());
            region.ensure(0..4096).unwrap();
            assert_eq!(part[0], 1);
            return writer.write_all(part).unwrap();
        }
        let bytes = 3 * 4096;
        for first in [0, 20 * 4096] {
            let start = region.base().as_ptr().wrapping_add(first);
            // SAFETY: nothing else uses the region while this slice lives, and its pages appear
            // when they are accessed.
            let part = unsafe { std::slice::from_raw_parts_mut(start, bytes) };
            writer.write_all(&vec![first as u8 + 3; bytes]).unwrap();
            // Into pages that are empty, and then into pages that are clean.
            reader.read_exact(part).unwrap();
            assert!(part.iter().all(|byte| *byte == first as u8 + 3));
            region.advise(first..first + bytes, AccessAdvice::DontNeed).unwrap();
            region.ensure(first..first + 4096).unwrap();
            writer.write_all(&vec![9; bytes]).unwrap();
            reader.read_exact(part).unwrap();
            region.advise(first..first + bytes, AccessAdvice::DontNeed).unwrap();
            // From pages that are on a memory server only.
            writer.write_all(part).unwrap();
            let mut copy = vec![0; bytes];
            reader.read_exact(&mut copy).unwrap();
            assert!(copy.iter().all(|byte| *byte == 9));
        }
        assert!(region.stats().unwrap().fills >= 6);
    });
}

/// The flags of the mappings of a region's file in `/proc/self/smaps`: the program's, and the
/// pager's view.
fn flags_of(region: &FarRegion) -> (String, Vec<String>) {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", region.base().as_ptr().addr());
    let own = maps.lines().find(|line| line.starts_with(&start)).expect("the region is mapped");
    // Mappings of one file have its number of a device and of an inode.
    let file = |line: &str| line.split_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" ");
    let (mut flags, mut views, mut now) = (String::new(), Vec::new(), "");
    for line in maps.lines() {
        if line.split_whitespace().next().is_some_and(|word| !word.ends_with(':')) {
            now = line;
        }
        match line.strip_prefix("VmFlags:") {
            Some(found) if now == own => flags = found.to_owned(),
            Some(found) if file(now) == file(own) => views.push(found.to_owned()),
            _ => {}
        }
    }
    (flags, views)
}

/// A child process would find zeros, and a core dump would fetch all pages.
fn the_region_is_neither_inherited_nor_dumped(provider: FaultProvider) {
    over_local(provider, &config(4096), |region| {
        let (flags, views) = flags_of(region);
        let has = |flags: &str, flag| flags.split_whitespace().any(|it| it == flag);
        assert_eq!(views.len(), 1, "the pager has one view");
        for flags in views.iter().chain([&flags]) {
            assert!(has(flags, "dc") && has(flags, "dd"), "{flags}");
        }
        let is_registered = has(&flags, "um") && has(&flags, "uw");
        assert_eq!(is_registered, provider == FaultProvider::Userfaultfd, "{flags}");
    });
}

/// A program that unmaps pages by itself loses nothing. The pages are few enough to stay in the
/// buffer.
fn pages_that_the_program_unmaps_keep_their_content(provider: FaultProvider) {
    over_local(provider, &config(16 << 10), |region| {
        for round in 0..4 {
            for page in 0..10 {
                region.words()[page * 2048 + 700].store(round + 5, Ordering::Relaxed);
            }
            let (start, bytes) = (region.base().as_ptr().cast(), region.bytes());
            // SAFETY: the region is mapped, and keeps its content elsewhere.
            unsafe { rustix::mm::madvise(start, bytes, rustix::mm::Advice::LinuxDontNeed) }
                .unwrap();
            for page in 0..10 {
                assert_eq!(region.words()[page * 2048 + 700].load(Ordering::Relaxed), round + 5);
            }
        }
        region.check().unwrap();
    });
}

fn errors_reach_the_program(provider: FaultProvider) {
    let config = FarConfig { patience_ns: 10_000_000, ..config(4096) };
    let cluster = Arc::new(LocalConfig::default().start(services(&config)));
    let Some(region) = region(provider, &config, ClusterEndpoints::new(Arc::clone(&cluster), 0, 0))
    else {
        return;
    };
    let bytes = region.bytes();
    let most = config.held_pages;
    let (pages, held) = (u64::from(most) + 1, region.hold(0..(most as usize + 1) * 4096));
    assert_eq!(held.err(), Some(FarError::TooManyHeld { pages, most }));
    assert_eq!(region.stats().unwrap().held, 0);
    let outside = FarError::Outside { from: bytes, bytes: 8, region_bytes: bytes };
    assert_eq!(region.ensure(bytes..bytes + 8), Err(outside));
    // Chunks of 8 pages lie on both servers in turn.
    region.words()[0].store(1, Ordering::Relaxed);
    region.words()[8 * 512].store(2, Ordering::Relaxed);
    region.advise(0..16 * 4096, AccessAdvice::DontNeed).unwrap();
    cluster.kill_memory_server(ServerId::new(0));
    let error = region.ensure(0..4096).unwrap_err();
    assert!(matches!(error, FarError::Unreachable { page: 0, .. }), "{error}");
    let error = region.hold(0..4096).unwrap_err();
    assert!(matches!(error, FarError::Unreachable { page: 0, .. }), "{error}");
    region.ensure(8 * 4096..9 * 4096).unwrap();
    assert_eq!(region.words()[8 * 512].load(Ordering::Relaxed), 2);
    // What is no longer wanted is no longer an error.
    assert_eq!(region.discard(0..4096), Ok(0..4096));
    assert_eq!(region.words()[0].load(Ordering::Relaxed), 0);
    assert_eq!(region.discard(1..4096 * 3 - 1), Ok(4096..2 * 4096));
    let held = region.hold(0..1).unwrap();
    assert_eq!(region.discard(0..4096), Err(FarError::Held { page: 0 }));
    drop(held);
    assert_eq!(region.discard(0..4096), Ok(0..4096));
}

/// A program that leaves the choice open gets the first provider that the machine allows, and can
/// say which and why.
#[test]
fn the_provider_is_chosen_and_the_reason_is_known() {
    let config = config(4096);
    let cluster = Arc::new(LocalConfig::default().start(services(&config)));
    let reach = ClusterEndpoints::new(Arc::clone(&cluster), 0, 0);
    let region = FarRegion::new(config.clone(), reach, space(&config)).unwrap();
    say(&format!("provider: {}; fallback: {:?}", region.mode(), region.fallback()));
    assert_eq!(region.mode() == FaultMode::Signal, region.fallback().is_some());
    region.words()[5].store(1, Ordering::Relaxed);
    // Several regions of one process.
    let reach = ClusterEndpoints::new(cluster, 0, 1);
    let other = FarRegion::by(FaultProvider::Signal, config.clone(), reach, space(&config));
    let other = other.unwrap();
    other.words()[5].store(2, Ordering::Relaxed);
    assert_eq!(region.words()[5].load(Ordering::Relaxed), 1);
    drop(region);
    assert_eq!(other.words()[5].load(Ordering::Relaxed), 2);
}

/// Regions by signals share the mappings that the kernel allows a process.
#[test]
fn buffers_by_signals_are_bounded_together() {
    let large = |pages| FarConfig { ..FarConfig::new(64 << 20, 4096, pages) };
    let make = |config: &FarConfig, number| {
        let cluster = Arc::new(LocalConfig::default().start(services(config)));
        let reach = ClusterEndpoints::new(cluster, 0, number);
        FarRegion::by(FaultProvider::Signal, config.clone(), reach, space(config))
    };
    let first = make(&large(15_000), 0).unwrap();
    let error = make(&large(15_001), 1).unwrap_err();
    assert!(matches!(error, FarError::Config { .. }), "{error}");
    drop(first);
    drop(make(&large(15_001), 1).unwrap());
}

with_each_provider! {
    eight_threads_equal_a_plain_buffer,
    the_clock_and_larger_pages_too,
    over_tcp_too,
    a_full_buffer_never_faults_again,
    system_calls_wait_for_pages_or_fail,
    the_region_is_neither_inherited_nor_dumped,
    pages_that_the_program_unmaps_keep_their_content,
    errors_reach_the_program,
}
