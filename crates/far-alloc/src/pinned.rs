//! Local memory of a fixed size for metadata, which has its pages from the beginning on.
//!
//! *Thread safety*: any thread; it belongs to its arena, which locks its parts.

use crate::FarAllocError;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::NonNull;

/// The alignment of jemalloc's blocks of metadata, by which they are told from data.
pub(crate) const BLOCK_ALIGN: usize = 2 << 20;

/// A mapping whose first block is aligned.
#[derive(Debug)]
pub(crate) struct PinnedMapping {
    mapping: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the value owns its mapping, and only makes system calls on it.
unsafe impl Send for PinnedMapping {}
// SAFETY: as above.
unsafe impl Sync for PinnedMapping {}

impl PinnedMapping {
    /// Maps memory for blocks of `bytes` bytes, which are rounded up to whole ones.
    pub(crate) fn new(bytes: usize) -> Result<Self, FarAllocError> {
        let bytes = bytes.max(1).next_multiple_of(BLOCK_ALIGN);
        let refused =
            |errno| FarAllocError::Pinned { bytes, cause: std::io::Error::from(errno).to_string() };
        let whole = bytes + BLOCK_ALIGN;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), whole, rights, MapFlags::PRIVATE) };
        let mapping = NonNull::new(mapped.map_err(refused)?);
        let mapping = mapping.expect("the kernel maps nothing at address 0");
        let pinned = Self { mapping, bytes: whole };
        let start = std::ptr::with_exposed_provenance_mut(pinned.start());
        // SAFETY: the range is inside the mapping, and the advice changes no content.
        let populated = unsafe { madvise(start, bytes, Advice::LinuxPopulateWrite) };
        populated.map_err(refused)?;
        Ok(pinned)
    }

    /// The address of the first block.
    pub(crate) fn start(&self) -> usize {
        self.mapping.as_ptr().expose_provenance().next_multiple_of(BLOCK_ALIGN)
    }

    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes - BLOCK_ALIGN
    }
}

impl Drop for PinnedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and the arena that used it has ended.
        let unmapped = unsafe { munmap(self.mapping.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping metadata");
    }
}
