//! A region: the memory that one server lends to the fabric.
//!
//! *Invariants*: the words are never unmapped or moved while the region lives, and start as zeros.
//!
//! *Thread safety*: every access is an atomic access of one aligned 8-byte word, `Relaxed` unless said
//! otherwise; nobody ever forms `&[u8]` over a region. That is the whole promise of a READ or a WRITE:
//! a longer copy may mix old and new words.

use crate::sync::{AtomicU64, Ordering};
use thiserror::Error;

/// Why a region was not to be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The size is zero, or no multiple of 4 KiB.
    #[error("a region of {bytes} bytes: the size must be a positive multiple of 4096")]
    BadSize {
        /// The size asked for.
        bytes: usize,
    },
    /// The operating system refused the mapping.
    #[error("cannot map {bytes} bytes for a region: {source}")]
    Map {
        /// The size asked for.
        bytes: usize,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// Zeroed memory that is accessed word by word; pages of the operating system are taken when touched.
pub struct Region {
    #[cfg(not(any(loom, shuttle)))]
    start: std::ptr::NonNull<AtomicU64>,
    #[cfg(any(loom, shuttle))]
    storage: Box<[AtomicU64]>,
    words: usize,
}

impl Region {
    /// A region of `bytes` bytes, a multiple of 4096. Memory is taken as it is touched.
    ///
    /// # Errors
    /// [`RegionError`] if the size is not usable or the operating system refuses.
    pub fn new(bytes: usize) -> Result<Self, RegionError> {
        if bytes == 0 || !bytes.is_multiple_of(4096) {
            return Err(RegionError::BadSize { bytes });
        }
        Self::map(bytes)
    }

    #[cfg(any(loom, shuttle))]
    fn map(bytes: usize) -> Result<Self, RegionError> {
        let words = bytes / 8;
        #[cfg(loom)]
        let zero = || AtomicU64::new(0);
        // A region is most of what a run sets up: its words are copies of one that the compiler has made.
        #[cfg(shuttle)]
        let zero = || const { AtomicU64::new(0) };
        Ok(Self { storage: (0..words).map(|_| zero()).collect(), words })
    }

    #[cfg(not(any(loom, shuttle)))]
    fn map(bytes: usize) -> Result<Self, RegionError> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        let start = mapped.map_err(|errno| RegionError::Map { bytes, source: errno.into() })?;
        // Tree walks touch a new page at every step: huge pages save most of the TLB misses. A kernel
        // without them says no, and nothing is lost.
        // SAFETY: the range is the mapping just made, and the advice changes no content.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        let start = std::ptr::NonNull::new(start.cast::<AtomicU64>())
            .ok_or(RegionError::BadSize { bytes })?;
        Ok(Self { start, words: bytes / 8 })
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.words * 8
    }

    /// All words of the region.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        #[cfg(any(loom, shuttle))]
        return &self.storage;
        #[cfg(not(any(loom, shuttle)))]
        // SAFETY: the mapping holds `words` aligned words, initialised to zero, lives as long as
        // `self`, and every access to it anywhere goes through `AtomicU64`.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.words)
        }
    }

    /// The `count` words from byte `offset` on, or `None` if they are unaligned or not all inside.
    #[inline]
    pub fn slice(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        let first = usize::try_from(offset / 8).ok()?;
        self.words().get(first..first.checked_add(count)?)
    }
}

/// Copies `from` to `to` word by word, in ascending order.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub(crate) fn copy_words(from: &[AtomicU64], to: &[AtomicU64]) {
    assert_eq!(from.len(), to.len(), "both sides of a copy have one length");
    for (source, target) in from.iter().zip(to) {
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Copies words out as bytes, little-endian, in ascending order.
///
/// # Panics
/// If the lengths differ.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn load_bytes(from: &[AtomicU64], to: &mut [u8]) {
    assert_eq!(from.len() * 8, to.len(), "both sides of a copy have one length");
    for (source, target) in from.iter().zip(to.chunks_exact_mut(8)) {
        target.copy_from_slice(&source.load(Ordering::Relaxed).to_le_bytes());
    }
}

/// Copies bytes, little-endian, into words, in ascending order; each word changes at once.
///
/// # Panics
/// If the lengths differ.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn store_bytes(from: &[u8], to: &[AtomicU64]) {
    assert_eq!(from.len(), to.len() * 8, "both sides of a copy have one length");
    for (source, target) in from.chunks_exact(8).zip(to) {
        let word = u64::from_le_bytes(source.try_into().expect("8 bytes"));
        target.store(word, Ordering::Relaxed);
    }
}

/// Asks the processor to bring all of `what` close, in parallel, before it is read bit by bit. A search in a
/// page else waits for one cache line at a time.
#[inline(always)]
pub fn prefetch<T: ?Sized>(what: &T) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    for offset in (0..size_of_val(what)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::from_ref(what).cast::<i8>().wrapping_add(offset);
        // SAFETY: a prefetch reads nothing; the pointer is into a live value all the same.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
    let _ = what;
}

#[cfg(not(any(loom, shuttle)))]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` with this length, and no borrow outlives `self`.
        let result = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.words * 8) };
        debug_assert!(result.is_ok(), "unmapping a region");
    }
}

// SAFETY: the region owns its mapping; all access is through atomics.
#[cfg(not(any(loom, shuttle)))]
unsafe impl Send for Region {}
// SAFETY: as above: shared access is atomic word access.
#[cfg(not(any(loom, shuttle)))]
unsafe impl Sync for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        assert!(matches!(Region::new(0), Err(RegionError::BadSize { .. })));
        assert!(matches!(Region::new(4097), Err(RegionError::BadSize { .. })));
        let region = Region::new(8192).unwrap();
        assert_eq!(region.bytes(), 8192);
        assert!(region.words().iter().all(|w| w.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn slices_stay_inside() {
        let region = Region::new(4096).unwrap();
        assert!(region.slice(0, 512).is_some());
        assert!(region.slice(8, 512).is_none());
        assert!(region.slice(4, 1).is_none());
        assert!(region.slice(u64::MAX - 7, 1).is_none());
        assert!(region.slice(8, usize::MAX).is_none());
        assert!(region.slice(4096, 0).is_some());
    }
}
