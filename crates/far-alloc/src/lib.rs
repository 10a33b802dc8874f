//! An allocator whose memory is far memory: an arena of jemalloc over a
//! [`FarRegion`](farleaf_far_memory::FarRegion).
//!
//! A [`FarArena`] allocates for `allocator_api2` collections, or by hand. Where jemalloc keeps the
//! arena's metadata is a choice ([`Metadata`]): in far memory with the data, in ordinary memory, or
//! in local memory of a fixed size. [`FarGlobal`] is a global allocator that sends large
//! allocations of threads that are in a [`FarScope`] to an arena. `docs/far-memory.md` is the page
//! for users.
//!
//! The program's other memory stays with its usual allocator: this jemalloc is a second one.
//!
//! *Thread safety*: an arena is for any thread.

#![deny(missing_docs)]

mod arena;
#[cfg(feature = "arrow")]
mod arrow;
mod c;
mod control;
mod current;
mod error;
mod extents;
mod hooks;
mod pinned;
mod scope;

pub use arena::{ArenaConfig, ArenaHold, ArenaStats, FarArena, MAX_ALIGN, Metadata};
pub use error::FarAllocError;
pub use scope::{FarGlobal, FarScope, MAX_ARENAS, MIN_FAR_BYTES, ProgramArena};
