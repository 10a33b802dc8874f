//! The memory of a region that programs access directly: one file in memory, mapped twice.
//!
//! ```text
//! program's mapping   [ reserved address space: pages appear and disappear ]
//!                        │ faults, and may be inaccessible
//!                     the file: has memory for pages of the buffer only
//!                        │ never faults to the pager
//! pager's view        [ a region of the fabric, the same size ]
//! ```
//!
//! The pager accesses pages by its view alone, so it never waits for itself, and READs and WRITEs
//! need no copy.
//!
//! *Invariants*
//! - far.A1. Pages outside the buffer have no memory in the file: removing a page punches a hole.
//! - far.A2. A child process gets neither mapping: it would find zeros instead of pages that are on
//!   a memory server. Neither is in a core dump, which would fetch pages, or give the view memory.
//!
//! *Thread safety*: any thread; the mapping lives as long as the arena.

use crate::{FarConfig, FarError};
use farleaf_fabric::sync::{Arc, AtomicU64};
use farleaf_fabric::{Region, RegionBacking};
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// The size of the operating system's pages that the file is allocated in.
pub(crate) const SYSTEM_PAGE_BYTES: usize = 4096;

/// The two mappings.
#[derive(Debug)]
pub(crate) struct ArenaMappings {
    base: NonNull<c_void>,
    bytes: usize,
    page_bytes: usize,
    view: Arc<Region>,
}

// SAFETY: the value owns its mapping; all access to the memory goes through atomics, or through
// pointers whose users are responsible for it.
unsafe impl Send for ArenaMappings {}
// SAFETY: as above; the methods only make system calls, which the kernel orders.
unsafe impl Sync for ArenaMappings {}

pub(crate) fn refused(action: &'static str) -> impl Fn(Errno) -> FarError {
    move |errno| FarError::System { action, cause: std::io::Error::from(errno).to_string() }
}

impl ArenaMappings {
    /// Reserves the address space, all of it accessible by `rights`, and without memory.
    pub(crate) fn new(config: &FarConfig, rights: ProtFlags) -> Result<Self, FarError> {
        let system_page_bytes = rustix::param::page_size();
        if system_page_bytes != SYSTEM_PAGE_BYTES {
            return Err(FarError::System {
                action: "map far memory",
                cause: format!("the system's pages have {system_page_bytes} bytes, not 4096"),
            });
        }
        let bytes = config.region_bytes;
        let view = Region::with_backing(bytes, RegionBacking::Shared { huge_pages: false });
        let view = view.map_err(|error| FarError::System {
            action: "make a file in memory",
            cause: error.to_string(),
        })?;
        let file = view.memfd().expect("a shared region has a file");
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the file is as long as the
        // mapping and cannot shrink.
        let mapped = unsafe { mmap(std::ptr::null_mut(), bytes, rights, flags, file, 0) };
        let base = mapped.map_err(refused("reserve address space for far memory"))?;
        let base = NonNull::new(base).expect("the kernel maps nothing at address 0");
        let arena = Self { base, bytes, page_bytes: config.page_bytes, view: Arc::new(view) };
        let all = 0..config.pages();
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            arena.advise(all.clone(), advice)?; // A2
            arena.advise_view(advice)?;
        }
        // A huge page in the file would be memory outside the buffer. A kernel without huge pages
        // refuses this advice, and does not need it.
        let _ = arena.advise(all, Advice::LinuxNoHugepage);
        let _ = arena.advise_view(Advice::LinuxNoHugepage);
        Ok(arena)
    }

    /// The first byte of the program's mapping.
    pub(crate) fn base(&self) -> NonNull<c_void> {
        self.base
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The pager's view.
    pub(crate) fn view(&self) -> &Arc<Region> {
        &self.view
    }

    /// The words of the program's mapping.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let start = self.base.as_ptr().cast_const().cast();
        // SAFETY: the mapping has these bytes, aligned and initialized by the kernel or the pager,
        // and lives as long as `self`. Threads of the program access it through atomics here.
        unsafe { std::slice::from_raw_parts(start, self.bytes / 8) }
    }

    /// The address and the length of `pages`.
    pub(crate) fn span(&self, pages: &Range<u32>) -> (*mut c_void, usize) {
        let from = pages.start as usize * self.page_bytes;
        let bytes = (pages.end - pages.start) as usize * self.page_bytes;
        assert!(from + bytes <= self.bytes, "pages {pages:?} are inside the region");
        (self.base.as_ptr().wrapping_byte_add(from), bytes)
    }

    /// The page that has this address.
    pub(crate) fn page_at(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.base.as_ptr().addr())?;
        (offset < self.bytes).then(|| (offset / self.page_bytes) as u32)
    }

    /// Advises the kernel about the program's mapping.
    pub(crate) fn advise(&self, pages: Range<u32>, advice: Advice) -> Result<(), FarError> {
        let (start, bytes) = self.span(&pages);
        // SAFETY: the range is inside the program's mapping, of which the advice changes no
        // content: the file keeps it.
        let advised = unsafe { madvise(start, bytes, advice) };
        advised.map_err(refused("advise the kernel about far memory"))
    }

    /// Advises the kernel about the pager's view.
    fn advise_view(&self, advice: Advice) -> Result<(), FarError> {
        let start = self.view.words().as_ptr().cast_mut().cast();
        // SAFETY: the range is the view's mapping, and the advice changes no content.
        let advised = unsafe { madvise(start, self.bytes, advice) };
        advised.map_err(refused("advise the kernel about the pager's view of far memory"))
    }

    /// Makes sure that a page has memory, and that it is all zeros.
    pub(crate) fn zero(&self, page: u32) {
        let words = self.page_bytes / 8;
        let first = page as usize * words;
        // A hole reads as zeros: one store gives it memory.
        for word in (first..first + words).step_by(SYSTEM_PAGE_BYTES / 8) {
            self.view.words()[word].store(0, farleaf_fabric::sync::Ordering::Relaxed);
        }
    }

    /// Takes the memory of pages away, in both mappings (A1).
    pub(crate) fn remove(&self, pages: Range<u32>) {
        let from = u64::from(pages.start) * self.page_bytes as u64;
        let bytes = u64::from(pages.end - pages.start) * self.page_bytes as u64;
        let file = self.file();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match fallocate(file, flags, from, bytes) {
                Ok(()) => return,
                Err(Errno::INTR) => {}
                // The page would keep its content, and later count as zeros.
                Err(errno) => panic!("cannot take memory of far memory away: {errno}"),
            }
        }
    }

    /// Bytes of local memory that the file has now.
    pub(crate) fn local_bytes(&self) -> u64 {
        fstat(self.file()).map_or(0, |file| file.st_blocks.cast_unsigned() * 512)
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.view.memfd().expect("the view has a file")
    }
}

impl Drop for ArenaMappings {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no borrow outlives `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping far memory");
    }
}
