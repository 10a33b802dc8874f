//! The options of a cache, and the names of their values.

use super::mapping::MAX_FRAMES;
use super::{
    AdmissionPolicy, ClockVictims, Cooling, CoolingMap, CoolingQueue, FixedAdmission, HotRecords,
    LeafAdmission, LeafOutlines, ProbabilisticAdmission, RandomVictims, UnusedVictims,
    VictimPolicy,
};
use farleaf_fabric::RegionError;
use farleaf_index::{
    AcknowledgeName, DEFAULT_CACHE_BYTES, UnknownName, design_options, named, named_option,
};
use farleaf_page::Layout;
use std::fmt;
use std::str::FromStr;

/// How a leaf enters the cache after a READ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AdmissionName {
    /// As a candidate for eviction, unless it is requested again in time.
    #[default]
    Cold,
    /// Hot with this probability, otherwise not at all. The paper uses 0.1.
    Coin(f64),
    /// Always hot.
    Hot,
    /// Not at all. Operations on single keys also ignore cached inner nodes: they READ every node
    /// from the pool. For comparison only.
    Never,
}

impl FromStr for AdmissionName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match text {
            "cold" => Ok(Self::Cold),
            "hot" => Ok(Self::Hot),
            "never" => Ok(Self::Never),
            _ => text
                .strip_prefix("coin:")
                .and_then(|probability| probability.parse().ok())
                .filter(|probability| (0.0..=1.0).contains(probability))
                .map(Self::Coin)
                .ok_or(UnknownName::among("cold, hot, never, or coin:P with P from 0 to 1")),
        }
    }
}

impl fmt::Display for AdmissionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cold => f.pad("cold"),
            Self::Coin(probability) => write!(f, "coin:{probability}"),
            Self::Hot => f.pad("hot"),
            Self::Never => f.pad("never"),
        }
    }
}

named_option!(AdmissionName, "cold, hot, never, or coin:P with P from 0 to 1");

/// The data structure of cooling frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoolingName {
    /// Buckets of a cache line.
    #[default]
    Map,
    /// One queue behind one lock.
    Queue,
}

named!(CoolingName, "map or queue", { Map: "map", Queue: "queue", });

/// How frames to cool are picked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimName {
    /// At random, but sparing leaves in use.
    #[default]
    Unused,
    /// At random, as in the paper.
    Random,
    /// Frames in order, round-robin.
    Clock,
}

named!(VictimName, "unused, random or clock", {
    Unused: "unused",
    Random: "random",
    Clock: "clock",
});

/// Which operations are offloaded to memory servers when a node on their path is missing (Lu et
/// al., §6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadName {
    /// None.
    #[default]
    Never,
    /// Every operation that can be offloaded: "Offload-only" in the paper.
    Always,
    /// Operations that take less time when offloaded, as estimated from recent operations of both
    /// kinds.
    CostAware,
}

named!(OffloadName, "never, always or cost-aware", {
    Never: "never",
    Always: "always",
    CostAware: "cost-aware",
});

/// How much of a changed leaf is written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBackName {
    /// The words that changed.
    #[default]
    Words,
    /// The whole page, as in the paper.
    Pages,
}

named!(WriteBackName, "words or pages", { Words: "words", Pages: "pages", });

/// A scan READs at most one leaf per this many frames at a time.
const FRAMES_PER_LEAF_AHEAD: u32 = 8;

design_options! {
    /// The options for the cache of one compute server.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct CacheOptions {
        /// Size of the cache in bytes: of all frames, and of the outlines of leaves and the hot
        /// records, if there are any. It has at least [`CacheOptions::MIN_FRAMES`] frames.
        pub bytes as "cache_bytes": u64 = DEFAULT_CACHE_BYTES;
        /// Share of the frames that cool, in percent. The paper uses 10.
        pub cooling_percent: u32 = 10, in 1..=90;
        /// How many frames are sampled at a time. The paper uses 2.
        pub sampled: u32 = 2, in 1..=64;
        /// How leaves enter the cache.
        pub admission: AdmissionName = AdmissionName::default();
        /// The data structure of cooling frames: buckets of a cache line, or one queue behind one
        /// lock.
        pub cooling: CoolingName = CoolingName::default();
        /// How frames to cool are picked: random unused ones, any at random, or in turn.
        pub victims: VictimName = VictimName::default();
        /// Which operations are offloaded to memory servers when a node is missing.
        pub offload: OffloadName = OffloadName::default();
        /// How much of a changed leaf is written back: its changed words, or whole pages as in the
        /// paper.
        pub write_back: WriteBackName = WriteBackName::default();
        /// Limit for write-back by age, in nanoseconds; 0 means no limit. Tasks that run
        /// [`farleaf_index::Background::WriteBack`] write nodes back before they have been dirty
        /// for this long. Without it, dirty nodes stay until their frames are needed.
        pub write_back_ns: u64 = 0;
        /// When changes are answered: when they are in the cache, or when they are in the pool.
        pub acknowledge: AcknowledgeName = AcknowledgeName::default();
        /// Share of the cache, in percent, for outlines of leaves, taken at once: with them a
        /// lookup READs only the records that can have its key. No effect on byte strings, or with
        /// `admission=never`.
        pub outlines_percent: u32 = 0, in 0..=50;
        /// A leaf that is missed again within so many misses, in percent of the frames, or within
        /// up to twice as many, is READ whole and admitted.
        pub outlines_soon_percent: u32 = 25, in 1..=1_000;
        /// Share of the cache, in percent, for copies of single hot records, taken at once: their
        /// lookups need no leaf. No effect on byte strings, or with `admission=never`.
        pub records_percent: u32 = 0, in 0..=90;
        /// Maximum number of leaves that a scan READs together, if it needs that many and enough
        /// frames are free. With 1 it READs them one after the other.
        pub scan_ahead: u32 = 16, in 1..=1_024;
    }
}

/// Without room for a table, an error instead of the end of the program.
fn fits_into_memory(bytes: u64) -> Result<(), RegionError> {
    if Vec::<u8>::new().try_reserve_exact(bytes as usize).is_ok() {
        return Ok(());
    }
    let source = std::io::ErrorKind::OutOfMemory.into();
    Err(RegionError::Map { bytes: bytes as usize, source })
}

impl CacheOptions {
    /// Minimum number of frames. With fewer, the path of one operation and the nodes of a split
    /// would not fit.
    pub const MIN_FRAMES: u32 = 24;

    /// Bytes for what is known of leaves that are not in the cache.
    fn outlines_bytes<L: Layout>(&self) -> u64 {
        let looks_up_parts = L::OUTLINES && self.admission != AdmissionName::Never;
        let percent = if looks_up_parts { self.outlines_percent } else { 0 };
        self.bytes / 100 * u64::from(percent)
    }

    /// Bytes for copies of hot records.
    fn records_bytes<L: Layout>(&self) -> u64 {
        let copies_records = L::WORD_RECORDS && self.admission != AdmissionName::Never;
        let percent = if copies_records { self.records_percent } else { 0 };
        self.bytes / 100 * u64::from(percent)
    }

    /// Bytes for outlines and hot records, which are taken at once.
    pub(super) fn tables_bytes<L: Layout>(&self) -> u64 {
        self.outlines_bytes::<L>() + self.records_bytes::<L>()
    }

    /// Number of frames.
    pub fn frames<L: Layout>(&self) -> u32 {
        let frames =
            self.bytes.saturating_sub(self.tables_bytes::<L>()) / (L::page_words() as u64 * 8);
        (frames.min(u64::from(MAX_FRAMES)) as u32).max(Self::MIN_FRAMES)
    }

    /// Maximum number of leaves that a scan READs together in a cache of `frames` frames. Each leaf
    /// takes one frame.
    pub(crate) fn leaves_together(&self, frames: u32) -> u32 {
        self.scan_ahead.min(frames / FRAMES_PER_LEAF_AHEAD).max(1)
    }

    pub(super) fn new_outlines<L: Layout>(
        &self,
        frames: u32,
    ) -> Result<Option<LeafOutlines>, RegionError> {
        let soon = u64::from(frames) * u64::from(self.outlines_soon_percent) / 100;
        let bytes = self.outlines_bytes::<L>();
        fits_into_memory(bytes)?;
        Ok((bytes > 0).then(|| LeafOutlines::new(bytes, soon)))
    }

    pub(super) fn new_records<L: Layout>(&self) -> Result<Option<HotRecords>, RegionError> {
        let bytes = self.records_bytes::<L>();
        fits_into_memory(bytes)?;
        Ok((bytes > 0).then(|| HotRecords::new(bytes)))
    }

    pub(super) fn new_admission(&self) -> Box<dyn AdmissionPolicy> {
        match self.admission {
            AdmissionName::Cold => Box::new(FixedAdmission(LeafAdmission::Cold)),
            AdmissionName::Coin(probability) => Box::new(ProbabilisticAdmission { probability }),
            AdmissionName::Hot => Box::new(FixedAdmission(LeafAdmission::Hot)),
            AdmissionName::Never => Box::new(FixedAdmission(LeafAdmission::Private)),
        }
    }

    pub(super) fn new_cooling(&self, frames: u32) -> Box<dyn Cooling> {
        let capacity = (u64::from(frames) * u64::from(self.cooling_percent.min(90)) / 100) as usize;
        match self.cooling {
            CoolingName::Map => Box::new(CoolingMap::new(capacity)),
            CoolingName::Queue => Box::new(CoolingQueue::new(capacity, frames as usize)),
        }
    }

    pub(super) fn new_victims(&self) -> Box<dyn VictimPolicy> {
        match self.victims {
            VictimName::Unused => Box::new(UnusedVictims),
            VictimName::Random => Box::new(RandomVictims),
            VictimName::Clock => Box::new(ClockVictims::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_page::Fixed8;
    use std::fmt::{Debug, Display};

    fn named<T: Copy + Debug + Display + PartialEq + FromStr<Err = UnknownName>>(
        values: &[(&str, T)],
    ) {
        for (name, value) in values {
            assert_eq!(name.parse(), Ok(*value));
            assert_eq!(value.to_string(), *name);
        }
        for unknown in ["", "warm", "cost_aware", "Never", "coin", "coin:", "coin:2", "coin:NaN"] {
            let error = unknown.parse::<T>().unwrap_err().to_string();
            assert!(error.starts_with("expected ") && error.contains(values[0].0), "{error}");
        }
    }

    /// The program ended with a backtrace.
    #[test]
    fn outlines_that_do_not_fit_into_memory_are_an_error() {
        let bytes = u64::MAX;
        let options = CacheOptions { bytes, outlines_percent: 50, ..CacheOptions::default() };
        assert!(matches!(options.new_outlines::<Fixed8>(24), Err(RegionError::Map { .. })));
        let none = CacheOptions { bytes, ..CacheOptions::default() };
        assert!(none.new_outlines::<Fixed8>(24).unwrap().is_none());
    }

    #[test]
    fn options_have_the_names_that_they_print() {
        use AdmissionName::{Coin, Cold, Hot};
        let never = AdmissionName::Never;
        named(&[("cold", Cold), ("hot", Hot), ("coin:0.1", Coin(0.1)), ("never", never)]);
        named(&[("map", CoolingName::Map), ("queue", CoolingName::Queue)]);
        let (unused, random) = (VictimName::Unused, VictimName::Random);
        named(&[("unused", unused), ("random", random), ("clock", VictimName::Clock)]);
        let (always, cost_aware) = (OffloadName::Always, OffloadName::CostAware);
        named(&[("never", OffloadName::Never), ("always", always), ("cost-aware", cost_aware)]);
        named(&[("words", WriteBackName::Words), ("pages", WriteBackName::Pages)]);
        let (cached, written) = (AcknowledgeName::Cached, AcknowledgeName::Written);
        named(&[("cached", cached), ("written", written)]);
    }
}
