//! The replaceable policies of a cache: which frame to cool, and whether to admit a leaf after a
//! READ.
//!
//! Each policy is a trait with two kinds of implementations: the default, and the simplest one.
//!
//! *Thread safety*: any number of threads.

use super::FrameId;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use std::fmt::Debug;

/// How a leaf that was READ enters the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafAdmission {
    /// Not at all: the leaf is dropped after use.
    Private,
    /// As a candidate for eviction. The leaf stays if it is requested again in time.
    Cold,
    /// Hot, like a node that has been in use for a long time.
    Hot,
}

/// Decides how leaves are admitted. Inner nodes are always admitted hot.
pub trait AdmissionPolicy: Debug + Send + Sync {
    /// Decides about one leaf. `random` is 64 random bits.
    fn leaf(&self, random: u64) -> LeafAdmission;
}

/// Always the same decision. With `Cold` the cooling structure acts as a probation queue; `Hot` is
/// eager admission.
#[derive(Clone, Copy, Debug)]
pub struct FixedAdmission(pub LeafAdmission);

impl AdmissionPolicy for FixedAdmission {
    fn leaf(&self, _random: u64) -> LeafAdmission {
        self.0
    }
}

/// Lazy admission (Lu et al., §5.4): hot with a fixed probability, otherwise not at all.
#[derive(Clone, Copy, Debug)]
pub struct ProbabilisticAdmission {
    /// From 0 to 1. The paper uses 0.1.
    pub probability: f64,
}

impl AdmissionPolicy for ProbabilisticAdmission {
    fn leaf(&self, random: u64) -> LeafAdmission {
        // A double holds 53 bits.
        let drawn = (random >> 11) as f64 / (1_u64 << 53) as f64;
        if drawn < self.probability { LeafAdmission::Hot } else { LeafAdmission::Private }
    }
}

/// Picks frames to cool. The caller passes over frames that cannot cool.
pub trait VictimPolicy: Debug + Send + Sync {
    /// Picks one of the frames 0 to `frames` - 1.
    fn pick(&self, random: u64, frames: u32) -> FrameId;

    /// Whether to spare a leaf that was used since it was last picked.
    fn spares_used(&self) -> bool {
        false
    }
}

/// Any frame at random, except that a leaf marked as used loses its mark instead. Only some uses
/// set the mark ([`super::CacheClient::mark_use`]), so a mark means many uses.
#[derive(Clone, Copy, Debug)]
pub struct UnusedVictims;

impl VictimPolicy for UnusedVictims {
    fn pick(&self, random: u64, frames: u32) -> FrameId {
        RandomVictims.pick(random, frames)
    }

    fn spares_used(&self) -> bool {
        true
    }
}

/// Any frame at random, as in the paper.
#[derive(Clone, Copy, Debug)]
pub struct RandomVictims;

impl VictimPolicy for RandomVictims {
    fn pick(&self, random: u64, frames: u32) -> FrameId {
        FrameId::new(((u128::from(random) * u128::from(frames)) >> 64) as u32)
    }
}

/// Frames in order, round-robin.
#[derive(Debug, Default)]
pub struct ClockVictims {
    hand: AtomicU64,
}

impl VictimPolicy for ClockVictims {
    fn pick(&self, _random: u64, frames: u32) -> FrameId {
        let hand = self.hand.fetch_add(1, Ordering::Relaxed);
        FrameId::new((hand % u64::from(frames)) as u32)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn policies_do_what_they_say() {
        assert_eq!(FixedAdmission(LeafAdmission::Cold).leaf(u64::MAX), LeafAdmission::Cold);
        let coin = ProbabilisticAdmission { probability: 0.25 };
        assert_eq!(coin.leaf(u64::MAX / 5), LeafAdmission::Hot);
        assert_eq!(coin.leaf(u64::MAX / 3), LeafAdmission::Private);
        assert_eq!(RandomVictims.pick(u64::MAX, 10), FrameId::new(9));
        assert_eq!(RandomVictims.pick(0, 10), FrameId::new(0));
        let clock = ClockVictims::default();
        let picked: Vec<u32> = (0..4).map(|_| clock.pick(7, 3).number()).collect();
        assert_eq!(picked, [0, 1, 2, 0]);
    }
}
