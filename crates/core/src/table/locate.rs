//! A static function from keys to their positions: which record of its group is a key's newest
//! version, and a fingerprint that rejects most absent keys.
//!
//! ```text
//! word 0  [segments that a first slot can lie in:32][0:24][binary logarithm of their slots:8]
//! word 1  seed
//! word 2  [keys:32][colliding hashes:32]
//! then    the colliding hashes, ascending
//! then    slots of 12 bits, without gaps, zero-padded to a word
//! ```
//!
//! A hash names three slots in segments next to each other, and the XOR of the three is
//! [fingerprint:8][place:4]. The construction is that of 3-wise binary fuse filters (Graf and
//! Lemire, 2022), with values: peel slots that a single key uses, then assign in reverse order.
//!
//! No seed can distinguish keys with equal hashes. Their hashes are listed, and lookups of them
//! read the whole group: an adversary who constructs such keys makes reads longer, but never wrong.
//!
//! *Invariants*
//! - lsm.B5. No key of the table is reported as absent, and a key whose hash is not listed gets its
//!   position in its group.
//!
//! *Thread safety*: plain values, over private copies of words.

use super::packed::{halves, joined, take};
use std::ops::Range;

/// Where to look for a key in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The table does not have the key.
    Absent,
    /// If the table has the key, its newest version is this record of the group.
    At(u8),
    /// Read the whole group.
    Anywhere,
}

/// Places below this fit into a slot.
pub(super) const PLACES: u32 = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 4;
const SLOT_BITS: usize = 12;
const FIXED_WORDS: usize = 3;
/// The largest segment that the paper recommends for a 3-wise function.
const MAX_SEGMENT_BITS: u32 = 18;

/// How a hash is mapped to its slots.
#[derive(Clone, Copy, Debug)]
struct Shape {
    seed: u64,
    segments: u64,
    segment_bits: u32,
}

impl Shape {
    /// A shape with enough room for `keys` keys, according to the formulas of the paper.
    fn for_keys(keys: usize, seed: u64) -> Self {
        let ln = (keys.max(2) as f64).ln();
        let segment_bits = ((ln / 3.33_f64.ln() + 2.25) as u32).min(MAX_SEGMENT_BITS);
        let factor = (0.875 + 0.25 * 1e6_f64.ln() / ln).max(1.125);
        let slots = (keys as f64 * factor).ceil() as u64;
        let segments = slots.div_ceil(1 << segment_bits).saturating_sub(2).max(1);
        Self { seed, segments, segment_bits }
    }

    fn slots(self) -> usize {
        ((self.segments + 2) as usize) << self.segment_bits
    }

    /// Three different slots.
    #[inline]
    fn slots_of(self, hash: u64) -> [usize; 3] {
        let mut mixed = (hash ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^= mixed >> 32;
        let segment = 1 << self.segment_bits;
        let first_slots = u128::from(self.segments << self.segment_bits);
        let first = ((u128::from(mixed) * first_slots) >> 64) as u64;
        let second = (first + segment) ^ (mixed >> 18 & (segment - 1));
        let third = (first + 2 * segment) ^ (mixed & (segment - 1));
        [first as usize, second as usize, third as usize]
    }
}

#[inline]
fn content(hash: u64, place: u8) -> u16 {
    ((hash >> 56) as u16) << PLACE_BITS | u16::from(place)
}

/// The words of a function from these hashes to these positions, each below 16. `None` if every
/// seed fails. Fewer than one in a million tables needs more than three seeds.
pub fn build_locate(entries: &[(u64, u8)], seeds: Range<u64>) -> Option<Vec<u64>> {
    let mut entries = std::borrow::Cow::Borrowed(entries);
    let mut colliding = Vec::new();
    for seed in seeds {
        let seed = seed.wrapping_add(1).wrapping_mul(0xa076_1d64_78bd_642f);
        let shape = Shape::for_keys(entries.len(), seed);
        if let Some(slots) = assign(&entries, shape) {
            let mut words = vec![
                joined(shape.segments as u32, shape.segment_bits),
                shape.seed,
                joined(entries.len() as u32, colliding.len() as u32),
            ];
            words.extend_from_slice(&colliding);
            pack(&slots, &mut words);
            return Some(words);
        }
        // Equal hashes fail with every seed. Sort only in this rare case.
        if colliding.is_empty() {
            let mut hashes: Vec<u64> = entries.iter().map(|entry| entry.0).collect();
            hashes.sort_unstable();
            let twice = hashes.array_windows().filter(|[one, two]| one == two);
            colliding = twice.map(|[one, _]| *one).collect();
            colliding.dedup();
            let alone = |entry: &(u64, u8)| colliding.binary_search(&entry.0).is_err();
            entries = entries.iter().copied().filter(alone).collect();
        }
    }
    None
}

/// The content of all slots. `None` if some keys cannot be peeled.
fn assign(entries: &[(u64, u8)], shape: Shape) -> Option<Vec<u16>> {
    // For each slot: [number of keys that use it:32][XOR of their indices:32].
    let mut users = vec![0_u64; shape.slots()];
    let one = 1_u64 << 32;
    for (index, entry) in entries.iter().enumerate() {
        for slot in shape.slots_of(entry.0) {
            users[slot] = (users[slot] + one) ^ index as u64;
        }
    }
    let mut order: Vec<(u32, u32)> = Vec::with_capacity(entries.len());
    let mut open: Vec<u32> =
        (0..users.len() as u32).filter(|&slot| users[slot as usize] >> 32 == 1).collect();
    while let Some(slot) = open.pop() {
        let (count, index) = halves(users[slot as usize]);
        if count != 1 {
            continue;
        }
        order.push((index, slot));
        for other in shape.slots_of(entries[index as usize].0) {
            users[other] = (users[other] - one) ^ u64::from(index);
            if users[other] >> 32 == 1 {
                open.push(other as u32);
            }
        }
    }
    if order.len() < entries.len() {
        return None;
    }
    let mut slots = vec![0_u16; shape.slots()];
    for &(index, slot) in order.iter().rev() {
        let (hash, place) = entries[index as usize];
        let [one, two, three] = shape.slots_of(hash);
        // The slot itself is still zero at this point.
        slots[slot as usize] = content(hash, place) ^ slots[one] ^ slots[two] ^ slots[three];
    }
    Some(slots)
}

fn pack(slots: &[u16], out: &mut Vec<u64>) {
    let begin = out.len();
    out.resize(begin + (slots.len() * SLOT_BITS).div_ceil(64), 0);
    for (index, &slot) in slots.iter().enumerate() {
        let (word, shift) = (begin + index * SLOT_BITS / 64, index * SLOT_BITS % 64);
        out[word] |= u64::from(slot) << shift;
        if shift + SLOT_BITS > 64 {
            out[word + 1] |= u64::from(slot) >> (64 - shift);
        }
    }
}

/// The function in a section's words.
#[derive(Clone, Copy, Debug)]
pub struct Locate<'a> {
    shape: Shape,
    keys: u32,
    colliding: &'a [u64],
    slots: &'a [u64],
}

impl<'a> Locate<'a> {
    /// Opens the function of a section that consists of exactly these words. The cost does not
    /// depend on the size.
    pub fn open(words: &'a [u64]) -> Option<Self> {
        let mut rest = words;
        let fixed = take(&mut rest, FIXED_WORDS)?;
        let (segments, segment_bits) = halves(fixed[0]);
        let (keys, colliding) = halves(fixed[2]);
        if segments == 0 || segment_bits > MAX_SEGMENT_BITS {
            return None;
        }
        let shape = Shape { seed: fixed[1], segments: segments.into(), segment_bits };
        let colliding = take(&mut rest, colliding as usize)?;
        let fits = rest.len() == (shape.slots() * SLOT_BITS).div_ceil(64);
        fits.then_some(Self { shape, keys, colliding, slots: rest })
    }

    /// Where to look for a key with this hash.
    #[inline]
    pub fn find(self, hash: u64) -> Place {
        if !self.colliding.is_empty() && self.colliding.binary_search(&hash).is_ok() {
            return Place::Anywhere;
        }
        if self.keys == 0 {
            return Place::Absent;
        }
        let slot = |index: usize| {
            let (word, shift) = (index * SLOT_BITS / 64, index * SLOT_BITS % 64);
            let at = |word: usize| self.slots.get(word).copied().unwrap_or(0);
            let high = if shift + SLOT_BITS > 64 { at(word + 1) << (64 - shift) } else { 0 };
            ((at(word) >> shift | high) & ((1 << SLOT_BITS) - 1)) as u16
        };
        let [one, two, three] = self.shape.slots_of(hash);
        let found = slot(one) ^ slot(two) ^ slot(three);
        let place = (found & (PLACES as u16 - 1)) as u8;
        if found == content(hash, place) { Place::At(place) } else { Place::Absent }
    }
}
