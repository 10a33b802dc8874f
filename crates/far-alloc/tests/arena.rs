//! Arenas over memory servers of this process and over TCP, and the counts that far memory is
//! judged by.

use allocator_api2::alloc::Allocator;
use allocator_api2::vec::Vec as FarVec;
use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::{Arc, AtomicBool, Ordering};
use farleaf_fabric::tcp::TcpConfig;
use farleaf_far_alloc::{ArenaConfig, FarAllocError, FarArena, MAX_ALIGN, Metadata};
use farleaf_far_memory::{
    AccessAdvice, ClusterEndpoints, EndpointSource, FarConfig, FarRegion, FaultProvider, Reserved,
};
use std::alloc::Layout;
use std::ptr::NonNull;

const MIB: usize = 1 << 20;
const PINNED: Metadata = Metadata::Pinned { bytes: 16 * MIB };
const ALL: [Metadata; 3] = [Metadata::Together, Metadata::Separated, PINNED];

fn far_config(region_bytes: usize, page_bytes: usize, buffer_pages: u32) -> FarConfig {
    FarConfig::new(region_bytes, page_bytes, buffer_pages)
}

fn space(config: &FarConfig) -> Reserved {
    Reserved::first(config.region_bytes)
}

/// A region over a memory server of this process.
fn region(config: &FarConfig) -> FarRegion {
    let service = TestService::new(config.region_bytes);
    let cluster = Arc::new(LocalConfig::default().start(vec![service]));
    FarRegion::new(config.clone(), ClusterEndpoints::new(cluster, 0, 0), space(config)).unwrap()
}

fn arena(config: &FarConfig, metadata: Metadata) -> FarArena {
    FarArena::new(region(config), ArenaConfig { metadata, ..ArenaConfig::default() }).unwrap()
}

/// A small generator, so that all runs are the same.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % limit
    }
}

struct Block {
    memory: NonNull<u8>,
    layout: Layout,
    value: u8,
}

impl Block {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the block is live, so its memory is valid and was written as a whole.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.layout.size()) }
    }
}

/// Allocates, resizes, frees and compares blocks of all sizes, many times the buffer.
fn churn(arena: &FarArena, seed: u64, rounds: usize) {
    let (mut dice, mut blocks) = (Dice(seed), Vec::<Block>::new());
    for _ in 0..rounds {
        let is_full = blocks.len() >= 60;
        if is_full || (!blocks.is_empty() && dice.below(3) == 0) {
            let block = blocks.swap_remove(dice.below(blocks.len()));
            assert!(block.bytes().iter().all(|byte| *byte == block.value));
            // SAFETY: the block is from this arena, and no longer in the list.
            unsafe { arena.dealloc(block.memory, block.layout) };
            continue;
        }
        let size = 1 << dice.below(18);
        let layout = Layout::from_size_align(size + dice.below(size), 1 << dice.below(14)).unwrap();
        let is_zeroed = dice.below(2) == 0;
        let memory = arena.alloc(layout, is_zeroed).unwrap();
        assert!(memory.as_ptr().addr().is_multiple_of(layout.align()));
        let mut block = Block { memory, layout, value: dice.below(256) as u8 };
        if is_zeroed {
            assert!(block.bytes().iter().all(|byte| *byte == 0), "{layout:?}");
        }
        // SAFETY: the memory is valid for so many bytes.
        unsafe { memory.as_ptr().write_bytes(block.value, layout.size()) };
        if dice.below(4) == 0 {
            let size = 1 + dice.below(2 * layout.size());
            // SAFETY: the memory is from this arena, with this layout.
            block.memory = unsafe { arena.realloc(memory, layout, size) }.unwrap();
            block.layout = Layout::from_size_align(size, layout.align()).unwrap();
            if size > layout.size() {
                // SAFETY: the memory is valid for `size` bytes now.
                let rest = unsafe { block.memory.as_ptr().add(layout.size()) };
                // SAFETY: as above.
                unsafe { rest.write_bytes(block.value, size - layout.size()) };
            }
        }
        blocks.push(block);
    }
    for block in blocks {
        assert!(block.bytes().iter().all(|byte| *byte == block.value));
        // SAFETY: the block is from this arena, and the list ends here.
        unsafe { arena.dealloc(block.memory, block.layout) };
    }
}

fn churn_on_threads<R: EndpointSource>(reach: R, config: &FarConfig, arena_config: ArenaConfig) {
    let region = FarRegion::new(config.clone(), reach, space(config)).unwrap();
    println!("{arena_config:?} by {}", region.mode());
    let arena = &FarArena::new(region, arena_config).unwrap();
    let is_over = &AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Acquire) {
                most = most.max(arena.local_bytes());
            }
            most
        });
        let threads = (0..3).map(|seed| scope.spawn(move || churn(arena, seed, 600)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        is_over.store(true, Ordering::Release);
        watch.join().unwrap()
    });
    let far = arena.far_stats().unwrap();
    assert!(far.write_backs > 0 && far.fills > 0, "the buffer is too small for all: {far:?}");
    assert!(far.peak_resident <= config.buffer_pages, "{far:?}");
    let buffer_bytes = config.buffer_pages as u64 * config.page_bytes as u64;
    assert!(most <= buffer_bytes, "{most} bytes were local");
    let stats = arena.stats().unwrap();
    assert_eq!(stats.allocated_bytes, 0, "{stats:?}");
    assert_eq!(stats.extents_given_back > 0, !arena_config.retain, "{stats:?}");
    arena.check().unwrap();
}

#[test]
fn blocks_keep_their_bytes_and_the_buffer_its_bound() {
    for page_bytes in [4096, 64 << 10] {
        let config = far_config(256 * MIB, page_bytes, (2 * MIB / page_bytes) as u32);
        let all = ALL.into_iter().flat_map(|metadata| [(metadata, false), (metadata, true)]);
        for (metadata, retain) in all {
            let service = TestService::new(config.region_bytes);
            let cluster = Arc::new(LocalConfig::default().start(vec![service]));
            let arena_config = ArenaConfig { metadata, retain, ..ArenaConfig::default() };
            churn_on_threads(ClusterEndpoints::new(cluster, 0, 0), &config, arena_config);
        }
    }
}

#[test]
fn blocks_keep_their_bytes_over_tcp() {
    let config = far_config(256 * MIB, 16 << 10, 128);
    let service = TestService::new(config.region_bytes);
    let cluster = Arc::new(TcpConfig::default().start(vec![service]));
    churn_on_threads(ClusterEndpoints::new(cluster, 0, 0), &config, ArenaConfig::default());
}

/// Allocates without a touch of the data, so that all touched pages are of metadata.
fn touched_by_metadata(metadata: Metadata, page_bytes: usize) {
    const COUNT: usize = 4_000;
    let config = far_config(512 * MIB, page_bytes, (8 * MIB / page_bytes) as u32);
    let arena = arena(&config, metadata);
    let layout = Layout::from_size_align(64 << 10, 64).unwrap();
    let blocks: Vec<_> = (0..COUNT).map(|_| arena.alloc(layout, false).unwrap()).collect();
    let (stats, far) = (arena.stats().unwrap(), arena.far_stats().unwrap());
    if metadata == Metadata::Together {
        // The base is in blocks, none of which is full but the first ones.
        let least = stats.metadata_bytes / page_bytes;
        assert!(far.zero_fills as usize >= least, "{} of {least}: {stats:?}", far.zero_fills);
        assert!(stats.far_metadata_bytes as usize >= stats.metadata_bytes);
    } else {
        assert_eq!((far.zero_fills, far.fills), (0, 0), "{metadata:?}");
        assert_eq!(stats.far_metadata_bytes, 0);
    }
    for memory in blocks {
        // SAFETY: the memory is from this arena, with this layout.
        unsafe { arena.dealloc(memory, layout) };
    }
    assert_eq!(arena.stats().unwrap().allocated_bytes, 0);
}

#[test]
fn metadata_is_in_the_region_only_if_it_is_together() {
    for metadata in ALL {
        for page_bytes in [4096, 64 << 10] {
            touched_by_metadata(metadata, page_bytes);
        }
    }
}

/// The size of the metadata follows from the number of extents, which is that of the allocations:
/// 16 KiB and the 4 KiB that jemalloc adds are a size class. Where they are none, it splits each
/// extent that it takes, and has up to a third more descriptors than allocations.
#[test]
fn metadata_is_92_kib_and_128_bytes_for_each_extent() {
    for metadata in ALL {
        let config = far_config(2048 * MIB, 64 << 10, 256);
        let arena = arena(&config, metadata);
        let layout = Layout::from_size_align(16 << 10, 64).unwrap();
        let blocks: Vec<_> = (0..20_000).map(|_| arena.alloc(layout, false).unwrap()).collect();
        let stats = arena.stats().unwrap();
        let metadata_bytes = stats.metadata_bytes;
        let expected = (92 << 10) + 128 * blocks.len();
        println!("{metadata:?}: {metadata_bytes} bytes, {expected} expected, {stats:?}");
        let error = metadata_bytes.abs_diff(expected) as f64 / expected as f64;
        assert!(error <= 0.02, "{metadata_bytes} bytes, {expected} expected: {stats:?}");
    }
}

/// Freed extents are discarded at once with a decay of 0, so they are never written back.
#[test]
fn what_is_discarded_is_not_written_back() {
    let config = far_config(64 * MIB, 64 << 10, 64);
    for retain in [false, true] {
        let arena_config = ArenaConfig { retain, ..ArenaConfig::default() };
        let arena = FarArena::new(region(&config), arena_config).unwrap();
        let layout = Layout::from_size_align(256 << 10, 64 << 10).unwrap();
        for _ in 0..100 {
            let memory = arena.alloc(layout, false).unwrap();
            // SAFETY: the memory is valid for so many bytes.
            unsafe { memory.as_ptr().write_bytes(7, layout.size()) };
            // SAFETY: the memory is from this arena, with this layout.
            unsafe { arena.dealloc(memory, layout) };
        }
        arena.advise(0..arena.bytes(), AccessAdvice::DontNeed).unwrap();
        let far = arena.far_stats().unwrap();
        println!("retain {retain}: {far:?}");
        assert_eq!((far.writes, far.write_backs, far.bytes_out), (0, 0, 0), "{far:?}");
        assert!(far.write_backs_saved >= 400, "four pages, a hundred times: {far:?}");
        assert_eq!(far.remote_bytes, 0, "nothing was ever written: {far:?}");
    }
}

/// Without decay, freed extents wait for the next allocation, and may be written back.
#[test]
fn what_decays_late_stays_until_it_is_purged() {
    let config = far_config(64 * MIB, 64 << 10, 64);
    let arena_config = ArenaConfig { decay_ms: u32::MAX, ..ArenaConfig::default() };
    let arena = FarArena::new(region(&config), arena_config).unwrap();
    let layout = Layout::from_size_align(MIB, 64 << 10).unwrap();
    let memory = arena.alloc(layout, false).unwrap();
    // SAFETY: the memory is valid for so many bytes.
    unsafe { memory.as_ptr().write_bytes(7, layout.size()) };
    // SAFETY: the memory is from this arena, with this layout.
    unsafe { arena.dealloc(memory, layout) };
    assert_eq!(arena.far_stats().unwrap().write_backs_saved, 0);
    arena.purge().unwrap();
    assert!(arena.far_stats().unwrap().write_backs_saved >= 16);
}

/// Address space: what the paper's findings 1 and 2 are about.
#[test]
fn kept_address_space_grows_and_returned_space_does_not() {
    let config = far_config(1024 * MIB, 64 << 10, 64);
    let reached = [false, true].map(|retain| {
        let arena_config = ArenaConfig { retain, ..ArenaConfig::default() };
        let arena = FarArena::new(region(&config), arena_config).unwrap();
        let (mut dice, mut blocks) = (Dice(1), Vec::new());
        for _ in 0..20_000 {
            if blocks.len() >= 500 {
                let (memory, layout) = blocks.swap_remove(dice.below(blocks.len()));
                // SAFETY: the memory is from this arena, with this layout.
                unsafe { arena.dealloc(memory, layout) };
            }
            let layout = Layout::from_size_align((64 << 10) + dice.below(128 << 10), 64).unwrap();
            blocks.push((arena.alloc(layout, false).unwrap(), layout));
        }
        let stats = arena.stats().unwrap();
        println!("retain {retain}: {stats:?}");
        assert_eq!(stats.extents_given_back > 0, !retain);
        stats.reached_bytes
    });
    assert!(reached[1] > reached[0], "{reached:?}");
}

/// A region may have been used before. Nothing of that is left, so zeros that the arena has not
/// written are zeros.
#[test]
fn a_used_region_is_emptied_or_refused() {
    let config = far_config(8 * MIB, 64 << 10, 16);
    let used = || {
        let region = region(&config);
        region.words().iter().step_by(512).for_each(|word| word.store(7, Ordering::Relaxed));
        region
    };
    let arena = FarArena::new(used(), ArenaConfig::default()).unwrap();
    let layout = Layout::from_size_align(4 * MIB, 64 << 10).unwrap();
    let memory = arena.alloc(layout, true).unwrap();
    let block = Block { memory, layout, value: 0 };
    assert!(block.bytes().iter().all(|byte| *byte == 0));

    let region = used();
    std::mem::forget(region.hold(0..1).unwrap());
    let refused = FarArena::new(region, ArenaConfig::default());
    assert!(matches!(refused, Err(FarAllocError::Region(_))), "{refused:?}");
}

#[test]
fn what_cannot_be_is_an_error() {
    // One buffer's worth of region: the first block of metadata does not fit.
    let config = far_config(MIB, 4096, 16);
    let together = ArenaConfig { metadata: Metadata::Together, ..ArenaConfig::default() };
    let refused = FarArena::new(region(&config), together);
    assert!(matches!(refused, Err(FarAllocError::Control { .. })), "{refused:?}");

    let arena = arena(&far_config(8 * MIB, 4096, 64), Metadata::Separated);
    let allocate = |bytes, align| {
        let layout = Layout::from_size_align(bytes, align).unwrap();
        (&arena).allocate(layout).map(|memory| memory.len())
    };
    assert!(allocate(64 * MIB, 64).is_err(), "it is larger than the region");
    assert!(allocate(64, 2 * MAX_ALIGN).is_err());
    assert_eq!(allocate(100, 8).ok(), Some(100));
    let mut numbers = FarVec::new_in(&arena);
    assert!(numbers.try_reserve(16 * MIB).is_err());
    numbers.extend(0..100_000_u64);
    assert!(numbers.iter().copied().eq(0..100_000));
}

/// Pinned metadata has a bound, beyond which allocations fail.
#[test]
fn pinned_metadata_ends() {
    let config = far_config(2048 * MIB, 64 << 10, 64);
    let arena = arena(&config, Metadata::Pinned { bytes: 1 });
    let layout = Layout::from_size_align(32 << 10, 64).unwrap();
    let mut blocks = 0;
    while arena.alloc(layout, false).is_some() {
        blocks += 1;
    }
    let stats = arena.stats().unwrap();
    assert!((12_000..17_000).contains(&blocks), "{blocks} blocks: {stats:?}");
    assert_eq!(stats.far_metadata_bytes, 0);
}

/// Both providers of faults serve arenas.
#[test]
fn signals_serve_arenas_too() {
    let config = far_config(64 * MIB, 64 << 10, 32);
    let service = TestService::new(config.region_bytes);
    let cluster = Arc::new(LocalConfig::default().start(vec![service]));
    let provider = FaultProvider::Signal;
    let reach = ClusterEndpoints::new(cluster, 0, 0);
    let region = FarRegion::by(provider, config.clone(), reach, space(&config)).unwrap();
    let together = ArenaConfig { metadata: Metadata::Together, ..ArenaConfig::default() };
    let arena = FarArena::new(region, together).unwrap();
    churn(&arena, 5, 600);
    assert!(arena.far_stats().unwrap().write_backs > 0);
}
