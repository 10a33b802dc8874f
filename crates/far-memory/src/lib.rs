//! Far memory: a region of address space whose pages live on memory servers. Code in user space
//! reads a page when it is accessed, and writes changed pages back, within a buffer of fixed size.
//!
//! Programs use a [`FarRegion`]. Its pager's thread runs a [`Pager`], which decides and moves pages
//! over any [`farleaf_fabric::Fabric`]. A provider of faults ([`PageAccessProvider`]) tells it
//! about accesses: `userfaultfd`, signals, or [`ManualRegion`] by explicit touches, for tests and
//! the simulator. A [`ChunkSpace`] gives out the memory of memory servers.
//! `docs/internals/far-memory.md` has the states of a page and the invariants.
//!
//! *Thread safety*: a [`FarRegion`] is for any thread; a pager and all that it uses belong to one.

#![deny(missing_docs)]

mod arena;
mod chunks;
mod config;
mod error;
mod leased;
mod manual;
mod memory;
mod metrics;
mod mode;
mod pager;
mod reach;
mod region;
mod signal;
mod slots;
mod space;
mod stats;
mod streams;
mod table;
mod thread;
mod transfer;
mod userfault;

pub use config::{FarConfig, MAX_PAGES, MIN_BUFFER_PAGES, PAGE_BYTES, Policy};
pub use error::FarError;
pub use leased::{Leased, TERM_MS};
pub use manual::{JUNK, ManualRegion};
pub use memory::PageAccessProvider;
pub use mode::{FaultMode, FaultProvider};
pub use pager::Pager;
pub use reach::{ClusterEndpoints, EndpointSource};
pub use region::{AccessAdvice, FarRegion, RegionHold};
pub use space::{ChunkSpace, Reserved};
pub use stats::FarStats;
pub use table::{AccessKind, PageState};
