//! Invalid bytes, for tests of servers and decoders.
//!
//! *Thread safety*: plain functions.

use rand::{Rng, RngExt};

/// Changes up to three positions of `bytes` from index `from` on: flips a bit, replaces or inserts
/// a byte, or truncates the rest.
pub fn mutate(bytes: &mut Vec<u8>, from: usize, rng: &mut impl Rng) {
    for _ in 0..rng.random_range(1..4) {
        if bytes.len() <= from {
            return;
        }
        let place = rng.random_range(from..bytes.len());
        match rng.random_range(0..4) {
            0 => bytes[place] ^= 1 << rng.random_range(0..8),
            1 => bytes[place] = rng.random(),
            2 => bytes.truncate(place),
            _ => bytes.insert(place, [0, 1, 0x7f, 0x80, 0xff][rng.random_range(0..5)]),
        }
    }
}

/// Fewer than 300 bytes, uniformly distributed.
pub fn random_bytes(rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..300)];
    rng.fill_bytes(&mut bytes);
    bytes
}
