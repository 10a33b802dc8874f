//! A pseudo-random bijection of `0..n` that scatters popular ranks over the key space.
//!
//! YCSB (`ScrambledZipfianGenerator`) draws a rank out of 10^10 whatever `n` is, and takes its hash
//! modulo `n`. Every key can be drawn, but several popular ranks share a key, and how popular each
//! key is depends on the hash. This permutation uses cycle walking instead: it applies a mixer of
//! `k` bits, where `2^k` is the least power of two not below `n`, until the result is below `n`.
//! That takes fewer than two turns on average and reaches every key. The distribution over the keys
//! is exactly that over the ranks.
//!
//! *Thread safety*: a plain value.

use crate::keys::mix64;
/// A bijection of `0..n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    mask: u64,
    shift: u32,
    offset: u64,
}

impl Permutation {
    /// The bijection of `0..n` that `seed` determines.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn new(n: u64, seed: u64) -> Self {
        assert!(n > 0, "there is nothing to permute");
        let bits = u64::BITS - (n - 1).leading_zeros();
        let mask = u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0);
        Self { n, mask, shift: (bits / 2).max(1), offset: mix64(seed) }
    }

    /// Returns the position of `rank`, which is taken modulo `n`.
    #[inline]
    pub fn apply(&self, rank: u64) -> u64 {
        let mut x = if rank < self.n { rank } else { rank % self.n };
        // The walk follows the mixer's cycle through `x` on 0..=mask. `x` itself is below `n`, so
        // the walk ends no later than at `x`.
        loop {
            x = self.mix(x);
            if x < self.n {
                return x;
            }
        }
    }

    /// Mixes `k` bits. Each step is invertible: an addition, odd factors, shifts to the right.
    #[inline]
    fn mix(&self, x: u64) -> u64 {
        let mut x = x.wrapping_add(self.offset) & self.mask;
        x ^= x >> self.shift;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9) & self.mask;
        x ^= x >> self.shift;
        x = x.wrapping_mul(0x94d0_49bb_1331_11eb) & self.mask;
        x ^ (x >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_a_bijection() {
        for n in (1..=130).chain([255, 256, 257, 1000, 1 << 14, (1 << 14) + 1, 99_991]) {
            for seed in [0, 1, 77] {
                let permutation = Permutation::new(n, seed);
                let mut seen = vec![false; n as usize];
                for rank in 0..n {
                    let place = permutation.apply(rank) as usize;
                    assert!(!std::mem::replace(&mut seen[place], true), "n = {n}, rank {rank}");
                }
            }
        }
    }

    #[test]
    fn the_first_ranks_are_spread() {
        let n = 1_000_000;
        let permutation = Permutation::new(n, 1);
        let mut places: Vec<u64> = (0..100).map(|rank| permutation.apply(rank)).collect();
        places.sort_unstable();
        let quarters = places.chunk_by(|a, b| a / (n / 4) == b / (n / 4)).map(<[u64]>::len);
        assert!(quarters.clone().count() == 4 && quarters.min().unwrap() > 10, "{places:?}");
        assert!(places.windows(2).filter(|pair| pair[1] - pair[0] < 60).count() < 10);
    }

    #[test]
    fn sizes_at_the_edge_work() {
        assert_eq!(Permutation::new(1, 5).apply(0), 0);
        let permutation = Permutation::new(u64::MAX, 1);
        assert_ne!(permutation.apply(1), permutation.apply(2));
    }
}
