//! A global allocator that sends large allocations of some threads to an arena.
//!
//! *Invariants*
//! - falloc.G1. An allocation goes back to where its address says that it is from, whatever the
//!   scope of the thread that frees it. So arenas that serve the program live as long as it does.
//! - falloc.G2. The code of far memory allocates nothing in far memory: hooks suspend the scope,
//!   and the pager's thread is in none.
//!
//! *Thread safety*: any thread; a scope is one thread's.

use crate::current::{current, replace};
use crate::{FarAllocError, FarArena};
use std::alloc::{GlobalAlloc, Layout};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The least size of allocations that can be far. Smaller ones would share pages with those of
/// others, and the structures of the pager are smaller.
pub const MIN_FAR_BYTES: usize = 4096;
/// Limit on the arenas that serve a program.
pub const MAX_ARENAS: usize = 16;

static ARENAS: [OnceLock<FarArena>; MAX_ARENAS] = [const { OnceLock::new() }; MAX_ARENAS];

/// An arena that serves the program's global allocator, and lives as long as the program.
#[derive(Clone, Copy, Debug)]
pub struct ProgramArena {
    place: usize,
    arena: &'static FarArena,
}

impl Deref for ProgramArena {
    type Target = FarArena;

    fn deref(&self) -> &FarArena {
        self.arena
    }
}

impl FarArena {
    /// Lets [`FarGlobal`] use the arena.
    ///
    /// # Errors
    /// [`FarAllocError::TooManyArenas`].
    pub fn serve_program(self) -> Result<ProgramArena, FarAllocError> {
        let mut arena = self;
        for (place, holder) in ARENAS.iter().enumerate() {
            match holder.set(arena) {
                Ok(()) => {
                    let arena = holder.get().expect("the arena was just put there");
                    return Ok(ProgramArena { place, arena });
                }
                Err(refused) => arena = refused,
            }
        }
        Err(FarAllocError::TooManyArenas { most: MAX_ARENAS })
    }
}

/// The arena that an allocation is from.
fn arena_of(address: usize) -> Option<&'static FarArena> {
    let mut arenas = ARENAS.iter().map_while(OnceLock::get);
    arenas.find(|arena| arena.addresses().contains(&address))
}

/// While it lives, large allocations of this thread go to an arena, if [`FarGlobal`] is the
/// program's global allocator. Scopes can be nested: the innermost one counts. They end in the
/// reverse order, as blocks do.
///
/// In a scope, make no region, and call nothing of one: what the pager uses must not be far. The
/// methods of arenas are fine: they suspend the scope.
#[derive(Debug)]
pub struct FarScope {
    before: Option<usize>,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl FarScope {
    /// Begins a scope of the calling thread.
    pub fn enter(arena: ProgramArena) -> Self {
        Self { before: replace(Some(arena.place)), thread: PhantomData }
    }
}

impl Drop for FarScope {
    fn drop(&mut self) {
        replace(self.before);
    }
}

/// A global allocator: `A`, except for allocations of at least so many bytes of threads that are in
/// a [`FarScope`]. If the arena is full, `A` gets them as well.
#[derive(Debug)]
pub struct FarGlobal<A> {
    near: A,
    least_bytes: usize,
}

impl<A> FarGlobal<A> {
    /// An allocator whose far allocations have at least `least_bytes` bytes, and at least
    /// [`MIN_FAR_BYTES`].
    pub const fn new(near: A, least_bytes: usize) -> Self {
        let least_bytes = if least_bytes < MIN_FAR_BYTES { MIN_FAR_BYTES } else { least_bytes };
        Self { near, least_bytes }
    }

    fn allocate(&self, layout: Layout, is_zeroed: bool) -> Option<NonNull<u8>> {
        if layout.size() < self.least_bytes {
            return None;
        }
        ARENAS[current()?].get()?.alloc(layout, is_zeroed)
    }
}

// SAFETY: each call goes to the allocator that the memory is from, or to one of the two that
// fulfil the contract both (G1). Nothing here panics or allocates.
unsafe impl<A: GlobalAlloc> GlobalAlloc for FarGlobal<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout, false) {
            Some(memory) => memory.as_ptr(),
            // SAFETY: the caller's contract is the same.
            None => unsafe { self.near.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout, true) {
            Some(memory) => memory.as_ptr(),
            // SAFETY: the caller's contract is the same.
            None => unsafe { self.near.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let far = arena_of(memory.addr()).zip(NonNull::new(memory));
        match far {
            // SAFETY: the memory is from this arena, with this layout.
            Some((arena, memory)) => unsafe { arena.dealloc(memory, layout) },
            // SAFETY: it is from no arena, so it is from here.
            None => unsafe { self.near.dealloc(memory, layout) },
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let far = arena_of(memory.addr()).zip(NonNull::new(memory));
        if let Some((arena, memory)) = far
            && bytes >= self.least_bytes
        {
            // SAFETY: the memory is from this arena, with this layout; the caller's contract has
            // the rest.
            let grown = unsafe { arena.realloc(memory, layout, bytes) };
            if let Some(grown) = grown {
                return grown.as_ptr();
            }
        } else if far.is_none() && (bytes < self.least_bytes || current().is_none()) {
            // SAFETY: the memory is from here, and the caller's contract is the same.
            return unsafe { self.near.realloc(memory, layout, bytes) };
        }
        // It goes from one to the other, or the arena is full.
        // SAFETY: the caller guarantees that the new layout is valid.
        let new_layout = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: the caller guarantees that its size is not zero.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            let both = bytes.min(layout.size());
            // SAFETY: both are valid for so many bytes, and the new one is apart from the old one.
            unsafe { new.copy_from_nonoverlapping(memory, both) };
            // SAFETY: the memory is the caller's, with this layout.
            unsafe { self.dealloc(memory, layout) };
        }
        new
    }
}
