//! The replaceable decisions: which frame to cool, and whether a leaf that was read enters the cache.
//!
//! Each is a trait with its simplest implementation beside the one that is the default.
//!
//! *Thread safety*: any number of threads.

use super::FrameId;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use std::fmt::Debug;

/// How a leaf that had to be read enters the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Not at all: it is dropped after use.
    Private,
    /// As a candidate for eviction: it stays if it is asked for again in time.
    Cold,
    /// As if it had been there for long.
    Hot,
}

/// Decides about leaves; inner nodes are always admitted, hot.
pub trait Admission: Debug + Send + Sync {
    /// About one leaf; `random` are 64 random bits.
    fn leaf(&self, random: u64) -> Admit;
}

/// Always the same: `Cold` makes a probation queue of the cooling structure, `Hot` is eager admission.
#[derive(Clone, Copy, Debug)]
pub struct Always(pub Admit);

impl Admission for Always {
    fn leaf(&self, _random: u64) -> Admit {
        self.0
    }
}

/// Lazy admission (Lu et al., §5.4): hot with this probability, else not at all.
#[derive(Clone, Copy, Debug)]
pub struct Coin {
    /// From 0 to 1; 0.1 in the paper.
    pub probability: f64,
}

impl Admission for Coin {
    fn leaf(&self, random: u64) -> Admit {
        // 53 bits are what a double can hold.
        let drawn = (random >> 11) as f64 / (1_u64 << 53) as f64;
        if drawn < self.probability { Admit::Hot } else { Admit::Private }
    }
}

/// Picks frames to cool. Those that cannot cool, for whatever reason, are passed over by the caller.
pub trait Victims: Debug + Send + Sync {
    /// A frame of an arena of `frames` frames.
    fn pick(&self, random: u64, frames: u32) -> FrameId;

    /// Whether a leaf that has been used since it was last picked is passed over this time.
    fn spares_used(&self) -> bool {
        false
    }
}

/// Any frame, at random, but a leaf that is marked as used loses its mark instead. Uses are marked now and then
/// ([`super::CacheClient::mark_use`]), so that a mark tells of many.
#[derive(Clone, Copy, Debug)]
pub struct UnusedVictims;

impl Victims for UnusedVictims {
    fn pick(&self, random: u64, frames: u32) -> FrameId {
        RandomVictims.pick(random, frames)
    }

    fn spares_used(&self) -> bool {
        true
    }
}

/// Any frame, at random, as in the paper.
#[derive(Clone, Copy, Debug)]
pub struct RandomVictims;

impl Victims for RandomVictims {
    fn pick(&self, random: u64, frames: u32) -> FrameId {
        FrameId::new(((u128::from(random) * u128::from(frames)) >> 64) as u32)
    }
}

/// One frame after the other, round and round.
#[derive(Debug, Default)]
pub struct ClockVictims {
    hand: AtomicU64,
}

impl Victims for ClockVictims {
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
        assert_eq!(Always(Admit::Cold).leaf(u64::MAX), Admit::Cold);
        let coin = Coin { probability: 0.25 };
        assert_eq!(coin.leaf(u64::MAX / 5), Admit::Hot);
        assert_eq!(coin.leaf(u64::MAX / 3), Admit::Private);
        assert_eq!(RandomVictims.pick(u64::MAX, 10), FrameId::new(9));
        assert_eq!(RandomVictims.pick(0, 10), FrameId::new(0));
        let clock = ClockVictims::default();
        let picked: Vec<u32> = (0..4).map(|_| clock.pick(7, 3).number()).collect();
        assert_eq!(picked, [0, 1, 2, 0]);
    }
}
