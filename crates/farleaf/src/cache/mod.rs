//! The compute side's cache of pages (Lu et al., *DEX: Scalable Range Indexing on Disaggregated Memory*,
//! VLDB 2024, §5).

mod counters;

pub use counters::{CacheCounters, LiveCounters};
