//! Where an arena's metadata is, what that costs, and which page size is best: small forms of the
//! experiments of "Separated Allocator Metadata in Disaggregated In-Memory Databases", over TCP on
//! the loopback interface.
//!
//! Counts of misses and bytes are of one run, and hardly change. Minor faults are those of the
//! whole process by the kernel's count; the pager's own and those of memory servers are among them.
//! CPU times and elapsed times depend on the machine and on what else it does. The experiments that
//! need an engine are in `crates/far-tpch`.
//!
//! ```text
//! cargo run --release -p farleaf-far-alloc --example study [-- MIB]
//! ```

use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::TcpConfig;
use farleaf_far_alloc::{ArenaConfig, FarArena, Metadata};
use farleaf_far_memory::{ClusterEndpoints, FarConfig, FarRegion, FarStats, Reserved};
use rustix::time::{ClockId, clock_gettime};
use std::alloc::Layout;
use std::error::Error;
use std::ptr::NonNull;

const MIB: usize = 1 << 20;

/// A small generator, so that all runs are the same.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % limit
    }
}

fn arena(
    region_bytes: usize,
    page_bytes: usize,
    buffer_bytes: usize,
    ahead: bool,
    config: ArenaConfig,
) -> Result<FarArena, Box<dyn Error>> {
    let buffer_pages = (buffer_bytes / page_bytes).max(8) as u32;
    let mut far = FarConfig::new(region_bytes, page_bytes, buffer_pages);
    if !ahead {
        far.ahead_pages = 0;
    }
    let service = TestService::new(region_bytes);
    let cluster = Arc::new(TcpConfig::default().start(vec![service]));
    let space = Reserved::first(region_bytes);
    Ok(FarArena::new(FarRegion::new(far, ClusterEndpoints::new(cluster, 0, 0), space)?, config)?)
}

/// What a phase costs.
struct Cost {
    far: FarStats,
    elapsed_ns: u64,
    cpu_ns: u64,
    minor_faults: u64,
}

/// Faults of this process so far that the kernel served from memory.
fn minor_faults() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // The second field is a name in parentheses, which may have spaces. The tenth is the count.
    let (_, fields) = text.rsplit_once(')').ok_or("an unknown format of /proc/self/stat")?;
    let count = fields.split_whitespace().nth(7).ok_or("too few fields in /proc/self/stat")?;
    Ok(count.parse()?)
}

fn now_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
}

fn measure(arena: &FarArena, phase: impl FnOnce()) -> Result<Cost, Box<dyn Error>> {
    let (before, minor_before) = (arena.far_stats()?, minor_faults()?);
    let clocks = [ClockId::Monotonic, ClockId::ProcessCPUTime];
    let began = clocks.map(now_ns);
    phase();
    let ended = clocks.map(now_ns);
    Ok(Cost {
        far: arena.far_stats()?.since(&before),
        elapsed_ns: ended[0] - began[0],
        cpu_ns: ended[1] - began[1],
        minor_faults: minor_faults()? - minor_before,
    })
}

fn print(label: &str, cost: &Cost) {
    let Cost { far, elapsed_ns, cpu_ns, minor_faults } = cost;
    println!(
        "{label:<44} {:>8} {:>8} {:>8} {:>9.1} {minor_faults:>8} {:>8} {:>8}",
        far.fills,
        far.fills_ahead,
        far.write_backs,
        (far.bytes_in + far.bytes_out) as f64 / MIB as f64,
        elapsed_ns / 1_000_000,
        cpu_ns / 1_000_000,
    );
}

fn head(title: &str) {
    println!("\n{title}");
    println!(
        "{:<44} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}",
        "", "misses", "ahead", "written", "MiB moved", "minor", "ms", "CPU ms"
    );
}

/// The columns of a table: chunks of numbers, as an engine allocates them.
struct Columns<'a> {
    arena: &'a FarArena,
    layout: Layout,
    chunks: Vec<NonNull<u64>>,
}

impl<'a> Columns<'a> {
    fn new(arena: &'a FarArena, bytes: usize, chunk_bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(chunk_bytes, 64).ok()?;
        let mut chunks = Vec::new();
        for number in 0..bytes / chunk_bytes {
            let memory = arena.alloc(layout, false)?.cast::<u64>();
            for word in 0..chunk_bytes / 8 {
                // SAFETY: the memory has so many words.
                let place = unsafe { memory.add(word) };
                // SAFETY: as above, and it is aligned.
                unsafe { place.write((number + word) as u64) };
            }
            chunks.push(memory);
        }
        Some(Self { arena, layout, chunks })
    }

    fn words(&self, chunk: usize) -> &[u64] {
        // SAFETY: the chunk is live, and was written as a whole.
        unsafe { std::slice::from_raw_parts(self.chunks[chunk].as_ptr(), self.layout.size() / 8) }
    }

    /// A scan of every fourth chunk, which is one column of four, and some lookups elsewhere.
    fn query(&self, dice: &mut Dice) -> u64 {
        let mut sum = 0;
        for chunk in (0..self.chunks.len()).step_by(4) {
            sum += self.words(chunk).iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)) >> 8;
        }
        for _ in 0..500 {
            let words = self.words(dice.below(self.chunks.len()));
            sum += words[dice.below(words.len())];
        }
        sum
    }
}

impl Drop for Columns<'_> {
    fn drop(&mut self) {
        for memory in &self.chunks {
            // SAFETY: the memory is from this arena, with this layout.
            unsafe { self.arena.dealloc(memory.cast(), self.layout) };
        }
    }
}

const NO_ROOM: &str = "the arena has no room for the columns";

/// The page size, with a fifth of the data local: many faults, or many bytes that are not used.
fn page_sizes(mib: usize) -> Result<(), Box<dyn Error>> {
    head(&format!("page size: scans and lookups on {mib} MiB, a fifth local"));
    for page_kib in [4, 16, 64, 256, 1024] {
        for ahead in [false, true] {
            let (bytes, page_bytes) = (mib * MIB, page_kib << 10);
            let config = ArenaConfig::default();
            let arena = arena(2 * bytes + 64 * MIB, page_bytes, bytes / 5, ahead, config)?;
            let columns = Columns::new(&arena, bytes, 64 << 10).ok_or(NO_ROOM)?;
            let mut sums = [0; 2];
            let cost = measure(&arena, || {
                let mut dice = Dice(1);
                sums = [columns.query(&mut dice), columns.query(&mut dice)];
            })?;
            let how = if ahead { "read ahead" } else { "on demand" };
            print(&format!("{page_kib} KiB, {how}, checksum {:x}", sums[0] ^ sums[1]), &cost);
        }
    }
    Ok(())
}

/// Reading ahead, where it is at its best: all chunks one after the other.
fn scans(mib: usize) -> Result<(), Box<dyn Error>> {
    head(&format!("a scan of {mib} MiB from its start to its end, a fifth local"));
    for page_kib in [4, 16, 64, 256] {
        for ahead in [false, true] {
            let (bytes, config) = (mib * MIB, ArenaConfig::default());
            let arena = arena(2 * bytes, page_kib << 10, bytes / 5, ahead, config)?;
            let columns = Columns::new(&arena, bytes, 64 << 10).ok_or(NO_ROOM)?;
            let mut sum = 0_u64;
            let cost = measure(&arena, || {
                sum = (0..columns.chunks.len()).flat_map(|chunk| columns.words(chunk)).sum();
            })?;
            let how = if ahead { "read ahead" } else { "on demand" };
            print(&format!("{page_kib} KiB, {how}, checksum {sum:x}"), &cost);
        }
    }
    Ok(())
}

/// Copying columns into the arena (figure 7b).
fn migration(mib: usize) -> Result<(), Box<dyn Error>> {
    head(&format!("migration of {mib} MiB in columns of 64 KiB, a fifth local"));
    for page_kib in [4, 256] {
        for metadata in [Metadata::Together, Metadata::Separated] {
            let config = ArenaConfig { metadata, ..ArenaConfig::default() };
            let bytes = mib * MIB;
            let arena = arena(2 * bytes + 8 * MIB, page_kib << 10, bytes / 5, true, config)?;
            let mut columns = None;
            let cost = measure(&arena, || columns = Columns::new(&arena, bytes, 64 << 10))?;
            columns.ok_or(NO_ROOM)?;
            let label = format!("{page_kib} KiB, {metadata:?}, {} touches", cost.far.touches);
            print(&label, &cost);
        }
    }
    Ok(())
}

/// Allocations alone, whose data is never touched (figure 8, and what figure 9 does without NUMA).
fn allocations(mib: usize) -> Result<(), Box<dyn Error>> {
    head("allocations, not touched: pages of 256 KiB, 10 MiB local, retain; medians of 5 by time");
    for (bytes, count) in [(1 << 10, mib * 4096), (16 << 10, mib * 512)] {
        let mut costs = [const { Vec::new() }; 2];
        for _ in 0..5 {
            for (metadata, costs) in
                [Metadata::Together, Metadata::Separated].into_iter().zip(&mut costs)
            {
                let config = ArenaConfig { metadata, retain: true, ..ArenaConfig::default() };
                let arena = arena(3 * bytes * count, 256 << 10, 10 * MIB, true, config)?;
                let layout = Layout::from_size_align(bytes, 8)?;
                let mut blocks = Some(Vec::with_capacity(count));
                costs.push(measure(&arena, || {
                    blocks = (0..count).map(|_| arena.alloc(layout, false)).collect();
                })?);
                for memory in blocks.ok_or(NO_ROOM)? {
                    // SAFETY: the memory is from this arena, with this layout.
                    unsafe { arena.dealloc(memory, layout) };
                }
            }
        }
        for (place, mut costs) in ["together", "separated"].into_iter().zip(costs) {
            costs.sort_by_key(|cost| cost.elapsed_ns);
            print(&format!("{count} of {} KiB, {place}", bytes >> 10), &costs[2]);
        }
    }
    Ok(())
}

/// The size of metadata, against 92 KiB and 128 bytes for each extent (figure 6).
fn shares(mib: usize) -> Result<(), Box<dyn Error>> {
    println!("\nmetadata of {mib} MiB, by the size of allocations");
    println!(
        "{:>8} {:>10} {:>14} {:>14} {:>8}",
        "KiB", "extents", "metadata", "expected", "% data"
    );
    for kib in [1, 16, 64, 256, 1024] {
        let (bytes, count) = (kib << 10, mib * 1024 / kib);
        let arena = arena(2 * mib * MIB, 64 << 10, MIB, true, ArenaConfig::default())?;
        let layout = Layout::from_size_align(bytes, 8)?;
        let blocks: Option<Vec<_>> = (0..count).map(|_| arena.alloc(layout, false)).collect();
        let blocks = blocks.ok_or(NO_ROOM)?;
        // Four small allocations of 1 KiB share an extent of 4 KiB.
        let extents = if kib == 1 { count / 4 } else { count };
        let (metadata, expected) = (arena.stats()?.metadata_bytes, (92 << 10) + 128 * extents);
        let share = 100.0 * metadata as f64 / (bytes * count) as f64;
        println!("{kib:>8} {extents:>10} {metadata:>14} {expected:>14} {share:>8.2}");
        for memory in blocks {
            // SAFETY: the memory is from this arena, with this layout.
            unsafe { arena.dealloc(memory, layout) };
        }
    }
    Ok(())
}

/// Churn: each round frees a block and allocates another. Blocks of about 1 KiB are written. Those
/// of 16 KiB are not touched, so that all faults are of metadata.
fn churn(arena: &FarArena, count: usize, rounds: usize, touches: bool) -> Option<()> {
    let mut dice = Dice(7);
    let layout = |dice: &mut Dice| {
        let bytes = if touches { 512 + dice.below(1024) } else { 16 << 10 };
        Layout::from_size_align(bytes, 8).ok()
    };
    let mut blocks = Vec::new();
    for round in 0..count + rounds {
        if round >= count {
            let (memory, layout) = blocks.swap_remove(dice.below(count));
            // SAFETY: the memory is from this arena, with this layout.
            unsafe { arena.dealloc(memory, layout) };
        }
        let layout = layout(&mut dice)?;
        let memory = arena.alloc(layout, false)?;
        if touches {
            // SAFETY: the memory is valid for so many bytes.
            unsafe { memory.as_ptr().write_bytes(1, layout.size()) };
        }
        blocks.push((memory, layout));
    }
    for (memory, layout) in blocks {
        // SAFETY: the memory is from this arena, with this layout.
        unsafe { arena.dealloc(memory, layout) };
    }
    Some(())
}

/// Where metadata matters: with equal local memory, so that separated metadata is charged.
fn metadata_places(count: usize) -> Result<(), Box<dyn Error>> {
    head(&format!("churn of {count} blocks, with equal local memory for data and metadata"));
    let data = [2, 10, 50].map(|percent| (true, "of the data", percent, count << 10));
    // What was separated is charged to the buffer, as far as that is more than the least one.
    let metadata = (92 << 10) + 128 * count;
    let alone = [25, 50, 100].map(|percent| (false, "of the metadata", percent, metadata));
    for (touches, of, percent, whole) in data.into_iter().chain(alone) {
        for page_kib in [4, 64] {
            let local = whole * percent / 100;
            let mut bytes = 0;
            for place in ["together", "separated", "pinned"] {
                let metadata = match place {
                    "together" => Metadata::Together,
                    "separated" => Metadata::Separated,
                    _ => Metadata::Pinned { bytes: 4 * bytes },
                };
                // The metadata of the first one, which the others keep out of the buffer.
                let buffer = local.saturating_sub(bytes);
                let config = ArenaConfig { metadata, ..ArenaConfig::default() };
                let arena = arena(512 * MIB, page_kib << 10, buffer, true, config)?;
                let mut outcome = None;
                let cost = measure(&arena, || outcome = churn(&arena, count, count, touches))?;
                outcome.ok_or(NO_ROOM)?;
                bytes = arena.stats()?.metadata_bytes;
                let label = format!("{page_kib} KiB, {percent}% {of} local, {place}");
                print(&label, &cost);
            }
        }
    }
    Ok(())
}

/// Retention and decay: address space, and write-backs of what was freed.
fn retain_and_decay() -> Result<(), Box<dyn Error>> {
    head("churn of 400 blocks of 64 to 192 KiB, written, a fifth local, pages of 64 KiB");
    for retain in [false, true] {
        for decay_ms in [0, 10_000] {
            let config = ArenaConfig { retain, decay_ms, ..ArenaConfig::default() };
            let arena = arena(1024 * MIB, 64 << 10, 10 * MIB, true, config)?;
            let cost = measure(&arena, || {
                let (mut dice, mut blocks) = (Dice(3), Vec::new());
                for _ in 0..6_000 {
                    if blocks.len() == 400 {
                        let (memory, layout) = blocks.swap_remove(dice.below(400));
                        // SAFETY: the memory is from this arena, with this layout.
                        unsafe { arena.dealloc(memory, layout) };
                    }
                    let bytes = (64 << 10) + dice.below(128 << 10);
                    let layout = Layout::from_size_align(bytes, 64).expect("a valid layout");
                    let memory = arena.alloc(layout, false).expect(NO_ROOM);
                    // SAFETY: the memory is valid for so many bytes.
                    unsafe { memory.as_ptr().write_bytes(1, bytes) };
                    blocks.push((memory, layout));
                }
            })?;
            let reached = arena.stats()?.reached_bytes / MIB;
            print(&format!("retain {retain}, decay {decay_ms} ms, {reached} MiB of space"), &cost);
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mib = std::env::args().nth(1).map_or(Ok(64), |number| number.parse())?;
    page_sizes(mib)?;
    scans(mib)?;
    shares(mib)?;
    migration(mib)?;
    allocations(mib)?;
    metadata_places(mib * 1024 / 2)?;
    retain_and_decay()?;
    println!(
        "\nnot reproduced: TPC-DS, whose 47 queries are not written here, and figure 9, which needs a \
         second NUMA node"
    );
    Ok(())
}
