//! The compute side's cache of pages (Lu et al., *DEX: Scalable Range Indexing on Disaggregated Memory*,
//! VLDB 2024, §5): frames, the table that finds them, the structure of those that cool, and the policies.
//!
//! The way of a node: [`CacheClient::fetch_leaf`] or [`CacheClient::bring_inner`] reads it into a frame;
//! [`Cache::attach`] lets its parent point to the frame, and it is hot; [`CacheClient::spare`] samples hot nodes,
//! writes them back and lets them cool; the oldest of those that cool leave. `docs/internals/cache.md` draws
//! it and numbers the invariants (C1 …).

mod ages;
mod average;
mod client;
mod cooling;
mod counters;
mod dirty;
mod frame;
mod frames;
mod mapping;
mod options;
mod owned;
mod policy;
mod swip;
mod turns;
mod write_back;

pub(crate) use ages::Ages;
pub use average::MovingAverage;
pub use client::{CacheClient, Restart};
pub use cooling::{Cooling, CoolingBucket, CoolingMap, CoolingQueue};
pub use counters::{CacheCounters, LiveCounters};
pub use dirty::{dirty_words, is_clean, mark_clean, mark_dirty};
pub use frame::{Arena, FrameId, FrameState};
pub use frames::{Attached, Cache, Cooled, Dirt, FreeFrame, OptimisticRef};
pub(crate) use mapping::OffloadMark;
pub use mapping::{IoMark, Mapped, Mapping};
pub use options::{
    AdmissionName, CacheOptions, CoolingName, OffloadName, VictimName, WriteBackName,
};
pub use owned::{Owned, OwnedRange, Ownership};
pub use policy::{
    Admission, Admit, Always, ClockVictims, Coin, RandomVictims, UnusedVictims, Victims,
};
pub use swip::Swip;
pub(crate) use turns::{Turn, Turns};
