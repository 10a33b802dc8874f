//! A region: the memory that one server makes available over the fabric.
//!
//! *Invariants*: the words are never unmapped or moved while the region lives, and are zero at
//! first.
//!
//! *Thread safety*: every access is an atomic access to one aligned 8-byte word, `Relaxed` unless
//! stated otherwise; no code forms a `&[u8]` over a region. A READ or a WRITE guarantees no more
//! than that: a longer copy may mix old and new words.
//!
//! A region that other processes map ([`RegionBacking::Shared`]) is a memfd with a sealed size, so
//! an access inside a mapping finds memory whatever another process does to the file. A process
//! that has mapped it can change every word at any time, and can return pages to the operating
//! system (they then read as zeros). It cannot make our accesses fault, with one exception: if it
//! returns pages of a huge-page region while the system has no other huge page left. So a memfd is
//! only handed to peers that hold the token.

use crate::sync::AtomicU64;
use thiserror::Error;

mod copying;
#[cfg(not(any(loom, shuttle)))]
mod mapping;
mod table;
#[cfg(not(any(loom, shuttle)))]
use mapping::MappedMemory;

pub(crate) use copying::copy_words;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use copying::{load_bytes, store_bytes};
pub use table::table;

/// Kind of memory behind a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegionBacking {
    /// Private to this process.
    #[default]
    Private,
    /// A file in memory, which other processes of this host can map.
    Shared {
        /// Whether to try huge pages first, which exist only if the system's administrator has
        /// reserved them. Otherwise, huge pages are only requested as a hint.
        huge_pages: bool,
    },
}

/// Why a region could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The size is zero, not a multiple of 4 KiB, or larger than an address can name.
    #[error(
        "a region of {bytes} bytes: the size must be a positive multiple of 4096, at most 2^48"
    )]
    BadSize {
        /// The requested size.
        bytes: usize,
    },
    /// The operating system refused the mapping.
    #[error("cannot map {bytes} bytes for a region: {source}")]
    Map {
        /// The requested size.
        bytes: usize,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file handed over by another process is not a sealed memfd of the announced size.
    #[error("the file of a shared region is not a sealed memfd of {bytes} bytes")]
    NotSealed {
        /// The announced size.
        bytes: usize,
    },
}

impl From<RegionError> for std::io::Error {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Map { source, .. } => source,
            error => Self::other(error),
        }
    }
}

/// Zeroed memory, accessed word by word. The operating system allocates pages on first touch.
pub struct Region {
    #[cfg(not(any(loom, shuttle)))]
    mapping: MappedMemory,
    #[cfg(any(loom, shuttle))]
    storage: Box<[AtomicU64]>,
}

impl Region {
    /// Creates a private region of `bytes` bytes, a multiple of 4096. Memory is allocated on first
    /// touch.
    ///
    /// # Errors
    /// [`RegionError`] if the size is not usable or the operating system refuses.
    pub fn new(bytes: usize) -> Result<Self, RegionError> {
        Self::with_backing(bytes, RegionBacking::Private)
    }

    /// Creates a region of `bytes` bytes, a multiple of 4096. Memory is allocated on first touch,
    /// except reserved huge pages, which are allocated at once.
    ///
    /// # Errors
    /// [`RegionError`] if the size is not usable or the operating system refuses.
    pub fn with_backing(bytes: usize, backing: RegionBacking) -> Result<Self, RegionError> {
        check_size(bytes)?;
        #[cfg(not(any(loom, shuttle)))]
        return Ok(Self { mapping: MappedMemory::new(bytes, backing)? });
        #[cfg(any(loom, shuttle))]
        return Ok(Self::on_the_heap(bytes, backing));
    }

    /// Maps the region of another process by its memfd. The memfd must be sealed like those of
    /// [`RegionBacking::Shared`], and have the size that the other process announced.
    ///
    /// # Errors
    /// [`RegionError`] if the file is anything else, or the operating system refuses.
    #[cfg(not(any(loom, shuttle)))]
    pub fn map_memfd(memfd: std::os::fd::OwnedFd, bytes: usize) -> Result<Self, RegionError> {
        check_size(bytes)?;
        Ok(Self { mapping: MappedMemory::from_memfd(memfd, bytes)? })
    }

    /// The file to hand to other processes, if the region is shared.
    #[cfg(not(any(loom, shuttle)))]
    pub fn memfd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.mapping.memfd()
    }

    #[cfg(any(loom, shuttle))]
    fn on_the_heap(bytes: usize, _backing: RegionBacking) -> Self {
        #[cfg(loom)]
        let zero = || AtomicU64::new(0);
        // Copy the words from a constant, because creating a region dominates the setup of a run.
        #[cfg(shuttle)]
        let zero = || const { AtomicU64::new(0) };
        Self { storage: (0..bytes / 8).map(|_| zero()).collect() }
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.words())
    }

    /// All words of the region.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        #[cfg(any(loom, shuttle))]
        return &self.storage;
        #[cfg(not(any(loom, shuttle)))]
        return self.mapping.words();
    }

    /// The `count` words starting at byte `offset`, or `None` if they are unaligned or not all
    /// inside.
    #[inline]
    pub fn slice(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        let first = usize::try_from(offset / 8).ok()?;
        self.words().get(first..first.checked_add(count)?)
    }
}

/// Asks the processor to load all cache lines of `what` in parallel, before they are read one by
/// one. Without it, a search in a page waits for one cache line after another.
#[inline(always)]
pub fn prefetch<T: ?Sized>(what: &T) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    for offset in (0..size_of_val(what)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::from_ref(what).cast::<i8>().wrapping_add(offset);
        // SAFETY: a prefetch reads nothing, and the pointer is to a live value anyway.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
    let _ = what;
}

fn check_size(bytes: usize) -> Result<(), RegionError> {
    if bytes == 0 || !bytes.is_multiple_of(4096) || bytes as u64 > crate::GlobalAddr::OFFSET_LIMIT {
        return Err(RegionError::BadSize { bytes });
    }
    Ok(())
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::Ordering;

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
