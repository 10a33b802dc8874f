//! The compute side's cache of pages (Lu et al., *DEX: Scalable Range Indexing on Disaggregated
//! Memory*, VLDB 2024, §5): the frames, the mapping table that finds them, the cooling structure
//! that holds candidates for eviction, and the policies.
//!
//! The life of a cached node: [`CacheClient::fetch_leaf`] or [`CacheClient::bring_inner`] READs it
//! into a frame. [`FrameCache::attach`] makes its parent point to the frame, which makes the node
//! hot. [`CacheClient::free_frame`] samples hot nodes, writes them back and cools them, and evicts
//! the oldest cooling nodes. `docs/internals/cache.md` draws this and numbers the invariants
//! (C1 …).

mod ages;
mod average;
mod client;
mod cooling;
mod dirty;
mod frame;
mod frames;
mod mapping;
mod options;
mod outlines;
mod owned;
mod parts;
mod policy;
mod record_access;
mod records;
mod restart;
mod swip;
mod transfers;
mod turns;
mod windows;
mod write_back;
mod written;

pub(crate) use ages::DirtyAges;
pub use average::MovingAverage;
pub use client::CacheClient;
pub use cooling::{Cooling, CoolingBucket, CoolingMap, CoolingQueue};
pub(crate) use dirty::is_in_pool;
use dirty::mark_in_flight;
pub use dirty::{dirty_words, is_clean, mark_clean, mark_dirty};
pub use frame::{FrameArena, FrameChange, FrameId, FrameState};
pub use frames::{AttachOutcome, CoolOutcome, DirtyStats, FrameCache, FreeFrame, OptimisticRef};
pub(crate) use mapping::OffloadMark;
pub use mapping::{MappedNode, MappingTable, RemoteIoMark};
pub use options::{
    AdmissionName, CacheOptions, CoolingName, OffloadName, VictimName, WriteBackName,
};
pub use outlines::{LeafOutlines, LeafRead};
pub use owned::CurrentOwnedRange;
pub use parts::ClearedInParts;
pub use policy::{
    AdmissionPolicy, ClockVictims, FixedAdmission, LeafAdmission, ProbabilisticAdmission,
    RandomVictims, UnusedVictims, VictimPolicy,
};
pub(crate) use record_access::end_record_change;
pub use records::{HotRecords, RecordChange, RecordTicket};
pub use restart::Restart;
pub use swip::Swip;
pub(crate) use transfers::UnwrittenChange;
pub(crate) use turns::{CacheTurn, CacheTurns};
