//! What can be chosen about a cache.

use super::mapping::MOST_FRAMES;
use super::{
    Admission, Admit, Always, ClockVictims, Coin, Cooling, CoolingMap, CoolingQueue, RandomVictims,
    UnusedVictims, Victims,
};

/// How leaves that were read enter the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AdmissionName {
    /// As candidates for eviction, to be asked for again in time.
    #[default]
    Cold,
    /// Hot with this probability, else not at all: 0.1 in the paper.
    Coin(f64),
    /// Hot, always.
    Hot,
    /// Not at all, and no inner node is looked for here either: operations on single keys go down in the pool.
    /// For comparison only.
    Never,
}

/// How the frames that cool are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoolingName {
    /// In buckets of a cache line.
    #[default]
    Map,
    /// In one queue behind one lock.
    Queue,
}

/// How the frames are found that are made to cool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimName {
    /// At random, those that are used spared.
    #[default]
    Unused,
    /// At random, whatever they are: the paper's.
    Random,
    /// One after the other.
    Clock,
}

/// Which operations are left to memory servers when a node on their way is missing (Lu et al., §6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadName {
    /// None.
    #[default]
    Never,
    /// All that can be: "Offload-only" in the paper.
    Always,
    /// Those that take less time there, as far as the last of both kinds tell.
    CostAware,
}

/// What of a changed leaf is written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBackName {
    /// The words that changed.
    #[default]
    Words,
    /// The whole page, as in the paper.
    Pages,
}

/// A scan takes at most one in so many frames at a time.
const FRAMES_PER_LEAF_AHEAD: u32 = 8;

/// The choices for the cache of one compute server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheOptions {
    /// Bytes of all frames; at least [`CacheOptions::LEAST_FRAMES`] frames are made.
    pub bytes: u64,
    /// The part of the frames that cool, in percent: 10 in the paper.
    pub cooling_percent: u32,
    /// How many frames are sampled at a time: 2 in the paper.
    pub sampled: u32,
    /// How leaves enter.
    pub admission: AdmissionName,
    /// How cooling frames are kept.
    pub cooling: CoolingName,
    /// How victims are found.
    pub victims: VictimName,
    /// What is left to memory servers.
    pub offload: OffloadName,
    /// What of a changed leaf is written back.
    pub write_back: WriteBackName,
    /// Nodes are written back before they have been dirty for so long, in nanoseconds, by those who run
    /// [`crate::index::Background::WriteBack`]; 0 is never: they stay until their frames are needed.
    pub write_back_ns: u64,
    /// How many leaves a scan reads together at most, as far as it needs so many and there are frames for them; with 1
    /// it reads one after the other.
    pub scan_ahead: u32,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            cooling_percent: 10,
            sampled: 2,
            admission: AdmissionName::default(),
            cooling: CoolingName::default(),
            victims: VictimName::default(),
            offload: OffloadName::default(),
            write_back: WriteBackName::default(),
            write_back_ns: 0,
            scan_ahead: 16,
        }
    }
}

impl CacheOptions {
    /// With fewer frames, the path of one operation and what a split needs would not fit.
    pub const LEAST_FRAMES: u32 = 24;

    /// The number of frames for pages of `page_bytes` bytes.
    pub fn frames(&self, page_bytes: usize) -> u32 {
        let frames = self.bytes / page_bytes as u64;
        (frames.min(u64::from(MOST_FRAMES)) as u32).max(Self::LEAST_FRAMES)
    }

    /// How many leaves a scan reads together at most in a cache of so many frames: each takes one.
    pub(crate) fn leaves_together(&self, frames: u32) -> u32 {
        self.scan_ahead.min(frames / FRAMES_PER_LEAF_AHEAD).max(1)
    }

    pub(super) fn new_admission(&self) -> Box<dyn Admission> {
        match self.admission {
            AdmissionName::Cold => Box::new(Always(Admit::Cold)),
            AdmissionName::Coin(probability) => Box::new(Coin { probability }),
            AdmissionName::Hot => Box::new(Always(Admit::Hot)),
            AdmissionName::Never => Box::new(Always(Admit::Private)),
        }
    }

    pub(super) fn new_cooling(&self, frames: u32) -> Box<dyn Cooling> {
        let capacity = (u64::from(frames) * u64::from(self.cooling_percent.min(90)) / 100) as usize;
        match self.cooling {
            CoolingName::Map => Box::new(CoolingMap::new(capacity)),
            CoolingName::Queue => Box::new(CoolingQueue::new(capacity, frames as usize)),
        }
    }

    pub(super) fn new_victims(&self) -> Box<dyn Victims> {
        match self.victims {
            VictimName::Unused => Box::new(UnusedVictims),
            VictimName::Random => Box::new(RandomVictims),
            VictimName::Clock => Box::new(ClockVictims::default()),
        }
    }
}
