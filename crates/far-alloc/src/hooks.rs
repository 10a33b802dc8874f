//! jemalloc's way to the memory of a region: extents come from it, and go back to it.
//!
//! *Invariants*
//! - falloc.H1. A pager's page that is free as a whole was discarded since it was last used: it has
//!   no memory here or on a memory server, is not written back, and is zeros.
//! - falloc.H2. Metadata is told from data by its alignment, which no data has ([`MAX_ALIGN`]).
//! - falloc.H3. The hooks run under jemalloc's locks. They wait for the pager's thread, which calls
//!   no jemalloc and takes no lock of theirs; they allocate nothing from an arena.
//!
//! [`MAX_ALIGN`]: crate::MAX_ALIGN
//!
//! *Thread safety*: jemalloc calls the hooks from any thread.

use crate::current::Suspended;
use crate::extents::Extents;
use crate::pinned::{BLOCK_ALIGN, PinnedMapping};
use farleaf_fabric::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use farleaf_far_memory::FarRegion;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use tikv_jemalloc_sys::extent_hooks_t;

/// Where an arena's extents come from. The first field is what jemalloc knows of it.
#[repr(C)]
pub(crate) struct ExtentSource {
    hooks: extent_hooks_t,
    pub(crate) region: FarRegion,
    /// The address of the region's first byte.
    base: usize,
    /// Extents that are freed stay with the arena.
    retain: bool,
    /// jemalloc destroys the arena.
    is_ending: AtomicBool,
    extents: Mutex<Extents>,
    /// Local memory for metadata, and its free parts.
    pinned: Option<(PinnedMapping, Mutex<Extents>)>,
    pub(crate) counts: HookCounts,
}

/// What the hooks have done.
#[derive(Debug, Default)]
pub(crate) struct HookCounts {
    pub(crate) taken: AtomicU64,
    pub(crate) given_back: AtomicU64,
    pub(crate) metadata_bytes: AtomicU64,
    pub(crate) purged_bytes: AtomicU64,
}

impl std::fmt::Debug for ExtentSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtentSource").field("region", &self.region).finish_non_exhaustive()
    }
}

impl ExtentSource {
    pub(crate) fn new(region: FarRegion, retain: bool, pinned: Option<PinnedMapping>) -> Self {
        let hooks = extent_hooks_t {
            alloc: Some(alloc),
            dalloc: Some(dalloc),
            destroy: Some(destroy),
            commit: None,
            decommit: None,
            purge_lazy: None,
            purge_forced: Some(purge),
            split: Some(split),
            merge: Some(merge),
        };
        let base = region.base().as_ptr().expose_provenance();
        let extents = Mutex::new(Extents::new(base..base + region.bytes()));
        let pinned = pinned.map(|pinned| {
            let blocks = pinned.start()..pinned.start() + pinned.bytes();
            (pinned, Mutex::new(Extents::new(blocks)))
        });
        let counts = HookCounts::default();
        let is_ending = AtomicBool::new(false);
        Self { hooks, region, base, retain, is_ending, extents, pinned, counts }
    }

    /// From now on, the arena keeps nothing. jemalloc asks for the blocks of metadata to be purged
    /// if they cannot go back, and reads them after that.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// The addresses of the region.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.base..self.base + self.region.bytes()
    }

    /// Bytes of address space that were used so far: up to the highest one.
    pub(crate) fn reached(&self) -> usize {
        lock(&self.extents).reached() - self.base
    }

    /// The first address of the pager's page that has this one.
    fn page_start(&self, address: usize) -> usize {
        let page_bytes = self.region.config().page_bytes;
        self.base + (address - self.base) / page_bytes * page_bytes
    }

    /// The first address of a pager's page from this one on.
    fn next_page(&self, address: usize) -> usize {
        self.base + (address - self.base).next_multiple_of(self.region.config().page_bytes)
    }

    /// Takes an extent. If `is_zero` is asked for, it is zeros. Returns whether it is.
    fn take(&self, bytes: usize, align: usize, is_zero: bool) -> Option<(usize, bool)> {
        let is_metadata = align >= BLOCK_ALIGN; // H2
        if let Some((_, blocks)) = self.pinned.as_ref().filter(|_| is_metadata) {
            // Blocks come back only with the arena, so these were never used.
            return Some((lock(blocks).take(bytes, align)?.start, true));
        }
        let taken = lock(&self.extents).take(bytes, align)?;
        self.counts.taken.fetch_add(1, Ordering::Relaxed);
        if is_metadata {
            self.counts.metadata_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        // Whole pages are zeros (H1). The first and the last one may be partly in use.
        let inner = self.next_page(taken.start)..self.page_start(taken.end);
        let edges = match inner.start < inner.end {
            true => [taken.start..inner.start, inner.end..taken.end],
            false => [taken.clone(), taken.end..taken.end],
        };
        let has_edges = edges.iter().any(|edge| !edge.is_empty());
        if is_zero && has_edges {
            for edge in edges {
                // SAFETY: the bytes are in the extent that was just taken, inside the mapping.
                unsafe { pointer(edge.start).cast::<u8>().write_bytes(0, edge.len()) };
            }
        }
        Some((taken.start, is_zero || !has_edges))
    }

    /// Takes an extent back. Returns whether it has.
    fn give_back(&self, extent: Range<usize>) -> bool {
        if !self.addresses().contains(&extent.start) {
            // Pinned metadata, which ends with the arena.
            return true;
        }
        // The pages that become free as a whole, some of which others have been parts of (H1).
        let mut extents = lock(&self.extents);
        let around = extents.around(&extent);
        let from = self.page_start(extent.start).max(around.start);
        let end = self.next_page(extent.end).min(around.end);
        if !self.discard(from..end) {
            return false;
        }
        extents.give_back(extent);
        self.counts.given_back.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Forgets the whole pages of a range. Returns false if one is held, or the pager has stopped.
    fn discard(&self, range: Range<usize>) -> bool {
        let discarded = self.region.discard(range.start - self.base..range.end - self.base);
        discarded.is_ok()
    }
}

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

/// The source of these hooks.
///
/// # Safety
/// jemalloc passes the pointer that it got when the arena was made.
unsafe fn source<'s>(hooks: *mut extent_hooks_t) -> &'s ExtentSource {
    // SAFETY: the hooks are the first field of a source, which outlives its arena, and is only
    // shared.
    unsafe { &*hooks.cast::<ExtentSource>().cast_const() }
}

unsafe extern "C" fn alloc(
    hooks: *mut extent_hooks_t,
    new_address: *mut c_void,
    bytes: usize,
    align: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    if !new_address.is_null() {
        return null_mut();
    }
    let _suspended = Suspended::new(); // H3
    // SAFETY: jemalloc passes its own hooks.
    let source = unsafe { source(hooks) };
    // SAFETY: jemalloc passes pointers to booleans, here and below.
    let is_zero = unsafe { *zero };
    let Some((at, is_zero)) = source.take(bytes, align, is_zero) else { return null_mut() };
    // SAFETY: as above.
    unsafe { *zero = is_zero };
    // SAFETY: as above.
    unsafe { *commit = true };
    pointer(at)
}

unsafe extern "C" fn dalloc(
    hooks: *mut extent_hooks_t,
    address: *mut c_void,
    bytes: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    let _suspended = Suspended::new(); // H3
    // SAFETY: jemalloc passes its own hooks.
    let source = unsafe { source(hooks) };
    let at = address.expose_provenance();
    let keeps = source.retain && !source.is_ending.load(Ordering::Acquire);
    keeps || !source.give_back(at..at + bytes)
}

unsafe extern "C" fn destroy(
    hooks: *mut extent_hooks_t,
    address: *mut c_void,
    bytes: usize,
    _committed: bool,
    _arena: c_uint,
) {
    let _suspended = Suspended::new(); // H3
    // SAFETY: jemalloc passes its own hooks.
    let source = unsafe { source(hooks) };
    let at = address.expose_provenance();
    // If a page is held, the extent stays taken; the region is about to end.
    let _ = source.give_back(at..at + bytes);
}

unsafe extern "C" fn purge(
    hooks: *mut extent_hooks_t,
    address: *mut c_void,
    _bytes: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    let _suspended = Suspended::new(); // H3
    // SAFETY: jemalloc passes its own hooks.
    let source = unsafe { source(hooks) };
    let at = address.expose_provenance() + offset;
    if !source.addresses().contains(&at) || !source.discard(at..at + length) {
        return true;
    }
    source.counts.purged_bytes.fetch_add(length as u64, Ordering::Relaxed);
    // Other bytes than those of whole pages are as they were, so not all of them are zeros.
    source.page_start(at) != at || source.page_start(at + length) != at + length
}

/// An extent can be split anywhere, and two extents that touch can be one.
unsafe extern "C" fn split(
    _hooks: *mut extent_hooks_t,
    _address: *mut c_void,
    _bytes: usize,
    _first: usize,
    _second: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

unsafe extern "C" fn merge(
    _hooks: *mut extent_hooks_t,
    _first: *mut c_void,
    _first_bytes: usize,
    _second: *mut c_void,
    _second_bytes: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_fabric::Provider;
    use farleaf_fabric::conformance::TestService;
    use farleaf_fabric::local::LocalConfig;
    use farleaf_fabric::sync::Arc;
    use farleaf_far_memory::{ClusterEndpoints, FarConfig, Reserved};

    const BYTES: usize = 1 << 20;
    const PAGE: usize = 64 << 10;

    fn source() -> ExtentSource {
        let cluster = Arc::new(LocalConfig::default().start(vec![TestService::new(2 * BYTES)]));
        let space = Reserved::first(BYTES);
        let config = FarConfig::new(BYTES, PAGE, 8);
        ExtentSource::new(
            FarRegion::new(config, ClusterEndpoints::new(cluster, 0, 0), space).unwrap(),
            false,
            None,
        )
    }

    fn words(source: &ExtentSource, extent: &Range<usize>) -> Vec<u64> {
        let words = source.region.words();
        let range = (extent.start - source.base) / 8..(extent.end - source.base) / 8;
        words[range].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn fill(source: &ExtentSource, extent: &Range<usize>, value: u64) {
        let range = (extent.start - source.base) / 8..(extent.end - source.base) / 8;
        source.region.words()[range].iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    /// Extents that share a page of the pager keep their content, whatever becomes of the others.
    #[test]
    fn shared_pages_are_discarded_with_their_last_extent() {
        let source = &source();
        let take = |bytes: usize, is_zero| {
            let (at, is_zero) = source.take(bytes, 4096, is_zero).unwrap();
            (at..at + bytes, is_zero)
        };
        let discarded = || source.region.stats().unwrap().write_backs_saved;
        let (first, is_zero) = take(3 * PAGE / 2, false);
        assert!(!is_zero, "its second page is shared");
        let (second, _) = take(PAGE / 2, false);
        assert_eq!((second.start, second.len()), (first.end, PAGE / 2));
        fill(source, &first, 7);
        fill(source, &second, 8);
        assert!(source.give_back(first.clone()));
        assert_eq!(discarded(), 1, "the second page is in use");
        assert!(words(source, &second).iter().all(|word| *word == 8));

        let (again, is_zero) = take(3 * PAGE / 2, true);
        assert_eq!((&again, is_zero), (&first, true));
        assert!(words(source, &again).iter().all(|word| *word == 0));
        assert!(words(source, &second).iter().all(|word| *word == 8));
        fill(source, &again, 9);
        assert!(source.give_back(second));
        assert_eq!(discarded(), 1, "the second page is still in use");
        assert!(source.give_back(again));
        assert_eq!(discarded(), 3);
        let (all, is_zero) = take(BYTES, false);
        assert!(is_zero && words(source, &all).iter().all(|word| *word == 0));
        assert!(source.take(4096, 4096, false).is_none());
    }
}
