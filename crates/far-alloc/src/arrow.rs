//! Arrow arrays in an arena: their buffers are allocations that go back with their last user.
//!
//! *Invariants*: falloc.B1. A buffer owns its arena, so the arena lives as long as the last one of
//! its buffers, in whatever array or query that is.
//!
//! *Thread safety*: arrays are for any thread, as ever; one that reads it waits for its pages.

use crate::FarArena;
use crate::current::Suspended;
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use arrow_data::ArrayData;
use farleaf_fabric::sync::Arc;
use farleaf_far_memory::FarError;
use std::alloc::Layout;
use std::ops::Range;
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;

/// The alignment that Arrow asks for.
const ALIGN: usize = 64;

/// An allocation that a buffer uses (B1).
struct BufferAllocation {
    arena: Arc<FarArena>,
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its memory, and only frees it. Arenas are for any thread.
unsafe impl Send for BufferAllocation {}
// SAFETY: as above; nothing can be done with a reference.
unsafe impl Sync for BufferAllocation {}
impl RefUnwindSafe for BufferAllocation {}

impl Drop for BufferAllocation {
    fn drop(&mut self) {
        // SAFETY: the memory is from this arena, with this layout, and its last user has ended.
        unsafe { self.arena.dealloc(self.memory, self.layout) };
    }
}

impl FarArena {
    /// A buffer with this content; `None` if the arena has no room. A memory server that fails
    /// while the content is copied ends the process, as with every access to the arena's memory.
    pub fn buffer(self: &Arc<Self>, content: &[u8]) -> Option<Buffer> {
        let layout = Layout::from_size_align(content.len(), ALIGN).ok()?;
        let memory = self.alloc(layout, false)?;
        // SAFETY: the memory is valid for so many bytes, and nothing else has it.
        unsafe { memory.as_ptr().copy_from_nonoverlapping(content.as_ptr(), content.len()) };
        let owner = Arc::new(BufferAllocation { arena: Arc::clone(self), memory, layout });
        // SAFETY: the memory was written as a whole, and is not changed as long as the owner lives.
        Some(unsafe { Buffer::from_custom_allocation(memory, content.len(), owner) })
    }

    /// A copy of `array` whose buffers are all in this arena; `None` if it has no room. A buffer
    /// that several arrays share is copied for each. A memory server that fails meanwhile ends the
    /// process, as in [`FarArena::buffer`].
    pub fn array(self: &Arc<Self>, array: &ArrayData) -> Option<ArrayData> {
        let copy = |buffer: &Buffer| self.buffer(buffer).ok_or(());
        // SAFETY: the copy has the same content, and Arrow's own alignment.
        unsafe { rebuild(array, &copy) }.ok()
    }

    /// A copy of `array` in the program's other memory, also within a [`FarScope`]. The pages are
    /// held while they are copied, so a memory server that fails is always an error, and what
    /// works on the copy never waits for a page. At most four threads should do this at a time,
    /// each holds up to a quarter of [`FarConfig::held_pages`].
    ///
    /// [`FarScope`]: crate::FarScope
    /// [`FarConfig::held_pages`]: farleaf_far_memory::FarConfig::held_pages
    ///
    /// # Errors
    /// [`FarError`] if a page cannot be had, or too many are held.
    pub fn near_array(&self, array: &ArrayData) -> Result<ArrayData, FarError> {
        let _near = Suspended::new();
        let copy = |buffer: &Buffer| self.near_buffer(buffer);
        // SAFETY: the copy has the same content, and Arrow's own alignment.
        unsafe { rebuild(array, &copy) }
    }

    fn near_buffer(&self, buffer: &Buffer) -> Result<Buffer, FarError> {
        let from = buffer.as_ptr().addr();
        if buffer.is_empty() || !self.addresses().contains(&from) {
            return Ok(buffer.clone());
        }
        let from = from - self.addresses().start;
        let (page_bytes, pages) = self.held_at_a_time();
        let step = page_bytes * pages;
        let mut copy = MutableBuffer::new(buffer.len());
        while copy.len() < buffer.len() {
            let at = from + copy.len();
            let end = (at / step * step + step).min(from + buffer.len());
            let _held = self.hold(at..end)?;
            copy.extend_from_slice(&buffer[at - from..end - from]);
        }
        Ok(copy.into())
    }

    /// Loads the pages of those buffers of `array` that are in this arena, so that the engine gets
    /// an error if a memory server fails, before it accesses the array. Arrays of more bytes than
    /// the region's buffer are loaded, too, but do not stay.
    ///
    /// # Errors
    /// [`FarError`] if a page cannot be had.
    pub fn ensure_array(&self, array: &ArrayData) -> Result<(), FarError> {
        self.ensure_arrays([array])
    }

    /// The same for several arrays, such as the columns of a batch, by one request to the pager's
    /// thread.
    ///
    /// # Errors
    /// As there.
    pub fn ensure_arrays<'a>(
        &self,
        arrays: impl IntoIterator<Item = &'a ArrayData>,
    ) -> Result<(), FarError> {
        let mut ranges = Vec::new();
        arrays.into_iter().for_each(|array| self.ranges(array, &mut ranges));
        if ranges.is_empty() { Ok(()) } else { self.ensure_all(ranges) }
    }

    /// Adds the ranges of the region's bytes that `array` uses.
    fn ranges(&self, array: &ArrayData, ranges: &mut Vec<Range<usize>>) {
        let nulls = array.nulls().map(NullBuffer::buffer);
        for buffer in array.buffers().iter().chain(nulls) {
            // All of the allocation would be too much of a slice.
            let from = buffer.as_ptr().addr();
            if !buffer.is_empty() && self.addresses().contains(&from) {
                let from = from - self.addresses().start;
                ranges.push(from..from + buffer.len());
            }
        }
        array.child_data().iter().for_each(|child| self.ranges(child, ranges));
    }
}

/// An array with other buffers, which `copy` makes.
///
/// # Safety
/// They have the same content, and the alignment that Arrow asks for.
unsafe fn rebuild<E>(
    array: &ArrayData,
    copy: &impl Fn(&Buffer) -> Result<Buffer, E>,
) -> Result<ArrayData, E> {
    let buffers = array.buffers().iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    let children = array.child_data().iter();
    // SAFETY: the caller's contract is the same.
    let children = children.map(|child| unsafe { rebuild(child, copy) });
    let children = children.collect::<Result<Vec<_>, _>>()?;
    let nulls = match array.nulls() {
        None => None,
        Some(nulls) => {
            let bits = BooleanBuffer::new(copy(nulls.buffer())?, nulls.offset(), nulls.len());
            // SAFETY: these are the bits that were counted.
            Some(unsafe { NullBuffer::new_unchecked(bits, nulls.null_count()) })
        }
    };
    let copied = array.clone().into_builder().buffers(buffers).child_data(children).nulls(nulls);
    // SAFETY: the content is that of a valid array, by the caller's contract.
    Ok(unsafe { copied.build_unchecked() })
}
