//! The mapping behind a region: anonymous and private, or a sealed memfd.
//!
//! *Invariants*: the mapping holds `words` aligned words from `start` on until it is dropped, and
//! every access to it anywhere goes through `AtomicU64`.
//!
//! *Thread safety*: shared access is atomic word access.

use super::{RegionBacking, RegionError};
use crate::sync::AtomicU64;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Seals that fix the file's size, so that an access inside the mapping always finds the file.
const SIZE_IS_SETTLED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Size of the huge pages that can be reserved, on every known system.
const HUGE_PAGE_BYTES: usize = 2 << 20;

pub(super) struct MappedMemory {
    start: NonNull<AtomicU64>,
    words: usize,
    memfd: Option<OwnedFd>,
}

impl MappedMemory {
    /// Maps zeroed memory; `bytes` is a positive multiple of 4096.
    pub(super) fn new(bytes: usize, backing: RegionBacking) -> Result<Self, RegionError> {
        match backing {
            RegionBacking::Private => Self::private(bytes),
            RegionBacking::Shared { huge_pages: true } if bytes.is_multiple_of(HUGE_PAGE_BYTES) => {
                Self::shared(bytes, MemfdFlags::HUGETLB)
                    .or_else(|_| Self::shared(bytes, MemfdFlags::empty()))
            }
            RegionBacking::Shared { .. } => Self::shared(bytes, MemfdFlags::empty()),
        }
    }

    fn private(bytes: usize) -> Result<Self, RegionError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, READ_WRITE, flags) };
        Self::adopt(mapped, bytes, None)
    }

    fn shared(bytes: usize, huge: MemfdFlags) -> Result<Self, RegionError> {
        let refused = |errno: Errno| RegionError::Map { bytes, source: errno.into() };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
        let memfd = memfd_create("farleaf-region", flags).map_err(refused)?;
        ftruncate(&memfd, bytes as u64).map_err(refused)?;
        // `SEAL` keeps a peer from sealing the file against writing, which would shut out later
        // clients.
        fcntl_add_seals(&memfd, SIZE_IS_SETTLED | SealFlags::SEAL).map_err(refused)?;
        Self::map_file(memfd, bytes, huge)
    }

    /// Maps a memfd from another process, after checking that it cannot shrink.
    pub(super) fn from_memfd(memfd: OwnedFd, bytes: usize) -> Result<Self, RegionError> {
        let sealed = fcntl_get_seals(&memfd).is_ok_and(|seals| seals.contains(SIZE_IS_SETTLED));
        // Check the size after the seals: from then on it cannot change.
        let sized =
            sealed && fstat(&memfd).is_ok_and(|file| usize::try_from(file.st_size) == Ok(bytes));
        if !sized {
            return Err(RegionError::NotSealed { bytes });
        }
        Self::map_file(memfd, bytes, MemfdFlags::empty())
    }

    fn map_file(memfd: OwnedFd, bytes: usize, huge: MemfdFlags) -> Result<Self, RegionError> {
        // Allocate huge pages now: if there were none left later, an access would fault.
        let flags =
            if huge.is_empty() { MapFlags::SHARED | MapFlags::NORESERVE } else { MapFlags::SHARED };
        // SAFETY: a fresh mapping at an address of the kernel's choice; the file is as long as the
        // mapping and cannot shrink, and all access is atomic, here as in the other processes.
        let mapped = unsafe { mmap(std::ptr::null_mut(), bytes, READ_WRITE, flags, &memfd, 0) };
        Self::adopt(mapped, bytes, Some(memfd))
    }

    fn adopt(
        mapped: Result<*mut c_void, Errno>,
        bytes: usize,
        memfd: Option<OwnedFd>,
    ) -> Result<Self, RegionError> {
        let start = mapped.map_err(|errno| RegionError::Map { bytes, source: errno.into() })?;
        // Tree walks touch a new page at every step; huge pages avoid most of the TLB misses. A
        // kernel without them refuses the advice, which is harmless. Small mappings are adjacent
        // and would share huge pages, and the first access to each would fill a whole one.
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the range is the mapping just made, and the advice changes no content.
            let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(start.cast()).ok_or(RegionError::BadSize { bytes })?;
        Ok(Self { start, words: bytes / 8, memfd })
    }

    pub(super) fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }

    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `words` aligned words, initialized by the kernel, lives as long
        // as `self`, and every access to it anywhere goes through `AtomicU64`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no borrow outlives `self`.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.words * 8) };
        debug_assert!(result.is_ok(), "unmapping a region");
    }
}

// SAFETY: the value owns its mapping; all access goes through atomics.
unsafe impl Send for MappedMemory {}
// SAFETY: shared access is atomic word access.
unsafe impl Sync for MappedMemory {}

#[cfg(test)]
mod tests {
    use crate::sync::Ordering;
    use crate::{Region, RegionBacking, RegionError};
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;

    fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
        let memfd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memfd, bytes).unwrap();
        fcntl_add_seals(&memfd, seals).unwrap();
        memfd
    }

    #[test]
    fn a_shared_region_is_one_memory_however_often_it_is_mapped() {
        for huge_pages in [false, true] {
            let region =
                Region::with_backing(2 << 20, RegionBacking::Shared { huge_pages }).unwrap();
            let memfd = region.memfd().unwrap().try_clone_to_owned().unwrap();
            assert!(ftruncate(&memfd, 4096).is_err(), "it cannot shrink");
            assert!(fcntl_add_seals(&memfd, SealFlags::WRITE).is_err(), "nor be sealed further");
            let again = Region::map_memfd(memfd, region.bytes()).unwrap();
            assert_eq!(again.bytes(), region.bytes());
            region.words()[77].store(7, Ordering::Relaxed);
            assert_eq!(again.words()[77].load(Ordering::Relaxed), 7);
            drop(region);
            assert_eq!(again.words()[77].load(Ordering::Relaxed), 7);
        }
        assert!(Region::new(4096).unwrap().memfd().is_none());
    }

    #[test]
    fn a_file_that_could_shrink_is_not_mapped() {
        let refused = |memfd: OwnedFd, bytes| {
            let outcome = Region::map_memfd(memfd, bytes);
            assert!(matches!(outcome, Err(RegionError::NotSealed { .. })), "{outcome:?}");
        };
        refused(memfd(8192, SealFlags::empty()), 8192);
        refused(memfd(8192, SealFlags::SHRINK), 8192);
        refused(memfd(8192, SealFlags::GROW), 8192);
        refused(memfd(4096, SealFlags::SHRINK | SealFlags::GROW), 8192);
        refused(std::fs::File::open("/dev/zero").unwrap().into(), 8192);
        let outcome = Region::map_memfd(memfd(4096, SealFlags::SHRINK | SealFlags::GROW), 100);
        assert!(matches!(outcome, Err(RegionError::BadSize { .. })), "{outcome:?}");
        Region::map_memfd(memfd(8192, SealFlags::SHRINK | SealFlags::GROW), 8192).unwrap();
    }
}
