//! Arenas, and what they can be told.
//!
//! *Invariant*: falloc.A1. The region, and the hooks that know it, live until jemalloc has
//! destroyed the arena.
//!
//! *Thread safety*: an arena is for any thread. jemalloc has its locks, which a thread that waits
//! for far memory keeps: with [`Metadata::Together`] all threads of the arena can wait with it.

use crate::current::Suspended;
use crate::hooks::ExtentSource;
use crate::pinned::{BLOCK_ALIGN, PinnedMapping};
use crate::{FarAllocError, control};
use allocator_api2::alloc::{AllocError, Allocator};
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_far_memory::{AccessAdvice, FarError, FarRegion, FarStats, FaultMode};
use std::alloc::Layout;
use std::ffi::c_int;
use std::ops::Range;
use std::ptr::NonNull;
use tikv_jemalloc_sys::{
    MALLOCX_ALIGN, MALLOCX_ARENA, MALLOCX_TCACHE_NONE, MALLOCX_ZERO, extent_hooks_t, mallocx,
    rallocx, sdallocx,
};

/// The largest alignment of an allocation: half of what tells metadata from data.
pub const MAX_ALIGN: usize = BLOCK_ALIGN / 2;

/// Where an arena's metadata is: jemalloc's blocks that describe its extents and size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metadata {
    /// In far memory, so it is paged in and out like data. A child process of the program, which
    /// has no far memory, ends in `fork`: jemalloc's handler accesses its metadata there.
    Together,
    /// In the program's other memory, as much as it takes.
    #[default]
    Separated,
    /// In local memory of this many bytes, rounded up to blocks of 2 MiB, which is there from the
    /// beginning on. When it is full, allocations fail.
    Pinned {
        /// Its size.
        bytes: usize,
    },
}

/// Settings of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaConfig {
    /// Where its metadata is.
    pub metadata: Metadata,
    /// How long freed extents stay before they are discarded, in milliseconds. With 0, the default,
    /// they are never written back. Longer times save faults of allocations that come soon after.
    /// jemalloc looks when the arena is used, and not at other times.
    pub decay_ms: u32,
    /// Keeps the address space of freed extents for the arena, and takes ever larger extents from
    /// the region. Otherwise, extents go back to the region when they decay.
    pub retain: bool,
    /// With `retain`, the largest extent that is taken from the region ahead of demand, in bytes;
    /// `None` for no limit.
    pub grow_bytes: Option<usize>,
}

/// Counts of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes of live allocations, rounded up to size classes.
    pub allocated_bytes: usize,
    /// Bytes of pages that have live allocations.
    pub active_bytes: usize,
    /// Bytes of freed extents whose address space the arena keeps.
    pub retained_bytes: usize,
    /// Bytes of metadata in use.
    pub metadata_bytes: usize,
    /// Bytes of that which describe extents.
    pub extent_metadata_bytes: usize,
    /// Bytes of the region that were handed to jemalloc for metadata.
    pub far_metadata_bytes: u64,
    /// Bytes of address space that were used so far, up to the highest one.
    pub reached_bytes: usize,
    /// Extents taken from the region.
    pub extents_taken: u64,
    /// Extents given back to the region.
    pub extents_given_back: u64,
    /// Bytes of extents that the arena has kept, but discarded.
    pub purged_bytes: u64,
}

/// jemalloc's `arena_config_t`.
#[repr(C)]
struct Creation {
    hooks: *mut extent_hooks_t,
    metadata_use_hooks: bool,
}

/// An arena of far memory, which is an allocator for collections of `allocator_api2`, by reference.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let region: farleaf_far_memory::FarRegion = unimplemented!();
/// use allocator_api2::vec::Vec;
/// use farleaf_far_alloc::{ArenaConfig, FarArena};
///
/// let arena = FarArena::new(region, ArenaConfig::default())?;
/// let mut numbers = Vec::new_in(&arena);
/// numbers.extend(0..1_000_000_u64);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FarArena {
    number: u32,
    // Dropped after the arena is destroyed (A1).
    source: Arc<ExtentSource>,
}

impl FarArena {
    /// An arena over all of `region`, whose content is discarded.
    ///
    /// # Errors
    /// [`FarAllocError`] if jemalloc refuses a setting, there is no memory for metadata, or a page
    /// of the region is held. With [`Metadata::Together`] the region needs at least 4 MiB.
    pub fn new(region: FarRegion, config: ArenaConfig) -> Result<Self, FarAllocError> {
        // Extents count as zeros before their first use (H1). What was never touched is zeros.
        if region.stats()?.touches > 0 {
            region.discard(0..region.bytes())?;
        }
        let pinned = match config.metadata {
            Metadata::Pinned { bytes } => Some(PinnedMapping::new(bytes)?),
            Metadata::Together | Metadata::Separated => None,
        };
        let source = Arc::new(ExtentSource::new(region, config.retain, pinned));
        let mut creation = Creation {
            hooks: Arc::as_ptr(&source).cast_mut().cast(),
            metadata_use_hooks: config.metadata != Metadata::Separated,
        };
        let number = control::make("experimental.arenas_create_ext", &mut creation)?;
        let arena = Self { number, source };
        let decay_ms = isize::try_from(config.decay_ms).unwrap_or(isize::MAX);
        control::write(&arena.setting("dirty_decay_ms"), decay_ms)?;
        // There is no lazy way to discard far memory.
        control::write(&arena.setting("muzzy_decay_ms"), 0_isize)?;
        // Without `retain`, an extent from the region is no larger than the size class of what it
        // is for: with its own `retain`, which is on by default, jemalloc 5.3.1 asks for whole
        // classes of pages, such as 1.25 MiB for 1 MiB and 4 KiB, and keeps the rest for later.
        let grow = if config.retain { config.grow_bytes } else { Some(4096) };
        if let Some(grow) = grow {
            control::write(&arena.setting("retain_grow_limit"), grow)?;
        }
        Ok(arena)
    }

    fn setting(&self, name: &str) -> String {
        format!("arena.{}.{name}", self.number)
    }

    /// The region. Not for users: its words, and what it discards, are live allocations.
    fn region(&self) -> &FarRegion {
        &self.source.region
    }

    /// Loads several ranges of the region's bytes, as [`FarRegion::ensure_all`] does.
    ///
    /// # Errors
    /// As there.
    pub fn ensure_all(
        &self,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<(), FarError> {
        let _near = Suspended::new();
        self.region().ensure_all(ranges)
    }

    /// The size of a page, and the pages that one of a few threads may hold at a time.
    #[cfg(feature = "arrow")]
    pub(crate) fn held_at_a_time(&self) -> (usize, usize) {
        let config = self.region().config();
        (config.page_bytes, (config.held_pages as usize / 4).max(1))
    }

    /// How faults of the region are noticed.
    pub fn mode(&self) -> FaultMode {
        self.region().mode()
    }

    /// The size of the region in bytes.
    pub fn bytes(&self) -> usize {
        self.region().bytes()
    }

    /// Bytes of local memory that the region takes now, by the operating system's count.
    pub fn local_bytes(&self) -> u64 {
        self.region().local_bytes()
    }

    /// Loads a range of the region's bytes, as [`FarRegion::ensure`] does.
    ///
    /// # Errors
    /// As there.
    pub fn ensure(&self, bytes: Range<usize>) -> Result<(), FarError> {
        let _near = Suspended::new();
        self.region().ensure(bytes)
    }

    /// Loads a range of the region's bytes and holds its pages, as [`FarRegion::hold`] does. What
    /// is freed there stays in use until the pages are released and it is purged.
    ///
    /// # Errors
    /// As there.
    pub fn hold(&self, bytes: Range<usize>) -> Result<ArenaHold<'_>, FarError> {
        let _near = Suspended::new();
        self.region().hold(bytes).map(|held| ArenaHold(Some(held)))
    }

    /// Gives advice about a range of the region's bytes.
    ///
    /// # Errors
    /// As for [`FarRegion::advise`].
    pub fn advise(&self, bytes: Range<usize>, advice: AccessAdvice) -> Result<(), FarError> {
        let _near = Suspended::new();
        self.region().advise(bytes, advice)
    }

    /// The counts of the region.
    ///
    /// # Errors
    /// As for [`FarRegion::stats`].
    pub fn far_stats(&self) -> Result<FarStats, FarError> {
        let _near = Suspended::new();
        self.region().stats()
    }

    /// The counts of the region as text in Prometheus' format.
    ///
    /// # Errors
    /// As for [`FarRegion::metrics`].
    pub fn metrics(&self, name: &str) -> Result<String, FarError> {
        let _near = Suspended::new();
        self.region().metrics(name)
    }

    /// Checks the invariants of the region's page table, as [`FarRegion::check`] does.
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<(), FarError> {
        let _near = Suspended::new();
        self.region().check()
    }

    /// The addresses of its region.
    pub fn addresses(&self) -> Range<usize> {
        self.source.addresses()
    }

    /// Memory for `layout`, zeros if asked for; `None` if there is none, or the alignment is more
    /// than [`MAX_ALIGN`].
    pub fn alloc(&self, layout: Layout, is_zeroed: bool) -> Option<NonNull<u8>> {
        let zero = if is_zeroed { MALLOCX_ZERO } else { 0 };
        let flags = self.flags(layout.align())? | zero;
        // SAFETY: the size is not zero, and the flags name this arena.
        NonNull::new(unsafe { mallocx(layout.size().max(1), flags) }.cast())
    }

    /// Frees memory.
    ///
    /// # Safety
    /// It is from this arena, with this layout, and was not freed.
    pub unsafe fn dealloc(&self, memory: NonNull<u8>, layout: Layout) {
        let flags = MALLOCX_ALIGN(layout.align()) | MALLOCX_TCACHE_NONE;
        // SAFETY: the caller's contract; the size is what it was allocated with.
        unsafe { sdallocx(memory.as_ptr().cast(), layout.size().max(1), flags) };
    }

    /// Changes the size of memory to `bytes`, and moves it if need be. If there is no room, it
    /// stays as it is.
    ///
    /// # Safety
    /// The memory is from this arena, with this layout, and was not freed. With the alignment,
    /// `bytes` is a valid layout. After success, only the new address is valid.
    pub unsafe fn realloc(
        &self,
        memory: NonNull<u8>,
        layout: Layout,
        bytes: usize,
    ) -> Option<NonNull<u8>> {
        let flags = self.flags(layout.align())?;
        // SAFETY: the caller's contract; the size is not zero.
        NonNull::new(unsafe { rallocx(memory.as_ptr().cast(), bytes.max(1), flags) }.cast())
    }

    fn flags(&self, align: usize) -> Option<c_int> {
        // The caches of threads would outlive the arena, so there are none.
        let arena = MALLOCX_ARENA(self.number as usize) | MALLOCX_TCACHE_NONE;
        (align <= MAX_ALIGN).then(|| arena | MALLOCX_ALIGN(align))
    }

    /// Moves memory to another layout.
    ///
    /// # Safety
    /// As for [`FarArena::realloc`].
    unsafe fn resize(
        &self,
        memory: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // An alignment that the memory has by chance is not one that it keeps.
        let layout = Layout::from_size_align(old.size(), new.align()).map_err(|_| AllocError)?;
        // SAFETY: the caller's contract. jemalloc reads only the new alignment.
        sized(unsafe { self.realloc(memory, layout, new.size()) }, new.size())
    }

    /// Discards all freed extents now, whatever their time.
    ///
    /// # Errors
    /// [`FarAllocError`] if jemalloc refuses it.
    pub fn purge(&self) -> Result<(), FarAllocError> {
        control::run(&self.setting("purge"))
    }

    /// The counts so far.
    ///
    /// # Errors
    /// [`FarAllocError`] if jemalloc does not tell them.
    pub fn stats(&self) -> Result<ArenaStats, FarAllocError> {
        control::write("epoch", 1_u64)?;
        let read = |name| control::read(&format!("stats.arenas.{}.{name}", self.number));
        let counts = &self.source.counts;
        let extent_metadata_bytes = read("metadata_edata")?;
        Ok(ArenaStats {
            allocated_bytes: read("small.allocated")? + read("large.allocated")?,
            active_bytes: read("pactive")? * 4096,
            retained_bytes: read("retained")?,
            metadata_bytes: read("base")?,
            extent_metadata_bytes,
            far_metadata_bytes: counts.metadata_bytes.load(Ordering::Relaxed),
            reached_bytes: self.source.reached(),
            extents_taken: counts.taken.load(Ordering::Relaxed),
            extents_given_back: counts.given_back.load(Ordering::Relaxed),
            purged_bytes: counts.purged_bytes.load(Ordering::Relaxed),
        })
    }
}

impl Drop for FarArena {
    fn drop(&mut self) {
        if self.region().is_inherited() {
            // A child process has nothing to give back. Its jemalloc has the arena until it ends,
            // so the hooks stay (A1).
            std::mem::forget(Arc::clone(&self.source));
            return;
        }
        self.source.end();
        let destroyed = control::run(&self.setting("destroy"));
        // Otherwise jemalloc would go on to use the region, which is about to end.
        assert!(destroyed.is_ok(), "jemalloc must destroy an arena that no thread uses");
    }
}

/// Pages of an arena that are held in the buffer.
#[derive(Debug)]
pub struct ArenaHold<'a>(Option<farleaf_far_memory::RegionHold<'a>>);

impl Drop for ArenaHold<'_> {
    /// What releases the pages must not be far: the pager's thread reads it (falloc.G2).
    fn drop(&mut self) {
        let _near = Suspended::new();
        drop(self.0.take());
    }
}

/// The memory and the number of its bytes.
fn sized(memory: Option<NonNull<u8>>, bytes: usize) -> Result<NonNull<[u8]>, AllocError> {
    memory.map(|memory| NonNull::slice_from_raw_parts(memory, bytes)).ok_or(AllocError)
}

// SAFETY: memory stays valid until it is freed, or the arena ends, which the borrow outlives.
// Copies of the reference are the same arena.
unsafe impl Allocator for &FarArena {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        sized(self.alloc(layout, false), layout.size())
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        sized(self.alloc(layout, true), layout.size())
    }

    unsafe fn deallocate(&self, memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { self.dealloc(memory, layout) };
    }

    unsafe fn grow(
        &self,
        memory: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.resize(memory, old, new) }
    }

    unsafe fn shrink(
        &self,
        memory: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.resize(memory, old, new) }
    }
}
