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
pub enum GroupPlace {
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
struct SlotShape {
    seed: u64,
    segments: u64,
    segment_bits: u32,
}

impl SlotShape {
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
    let (mut building, mut words) = (LocateBuilder::new(entries.to_vec(), seeds), Vec::new());
    loop {
        match building.step(usize::MAX, &mut words) {
            None => {}
            Some(is_built) => return is_built.then_some(words),
        }
    }
}

/// A function that is built in steps.
#[derive(Debug)]
pub(super) struct LocateBuilder {
    entries: Vec<(u64, u8)>,
    seeds: Range<u64>,
    colliding: Vec<u64>,
    attempt: Option<BuildAttempt>,
}

/// Building with one seed.
#[derive(Debug)]
struct BuildAttempt {
    shape: SlotShape,
    stage: BuildStage,
    /// Keys or slots of the stage that are done.
    done: usize,
    /// For each slot, the keys that use it. What a peeled key is comes from here, because looking
    /// its entry up would be another access to memory.
    users: Vec<SlotUsers>,
    /// Slots that may have a single user.
    open: Vec<u32>,
    /// Keys with their positions and their own slots, as they were peeled.
    order: Vec<(u64, u8, u32)>,
    slots: Vec<u16>,
}

/// The keys that use a slot.
#[derive(Clone, Copy, Debug, Default)]
struct SlotUsers {
    /// The XOR of their hashes, and of their positions.
    hash: u64,
    place: u8,
    count: u32,
}

impl SlotUsers {
    /// Enters a key, or takes it away, which leaves `count` keys.
    #[inline]
    fn change(&mut self, hash: u64, place: u8, count: u32) {
        *self = Self { hash: self.hash ^ hash, place: self.place ^ place, count };
    }
}

#[derive(Clone, Copy, Debug)]
enum BuildStage {
    /// Enter each key into its slots.
    Enter,
    /// Find the slots with a single user.
    Find,
    /// Peel keys that have a slot of their own.
    Peel,
    /// Fill the slots, in reverse order.
    Fill,
}

/// How a step of an attempt ended.
enum AttemptEnd {
    Spent,
    Failed,
    Filled,
}

impl LocateBuilder {
    pub(super) fn new(entries: Vec<(u64, u8)>, seeds: Range<u64>) -> Self {
        Self { entries, seeds, colliding: Vec::new(), attempt: None }
    }

    /// Goes on with about `budget` keys or slots. Returns whether there is a function, whose words
    /// are then appended to `out`, once that is known. Looking for equal hashes is one step.
    pub(super) fn step(&mut self, budget: usize, out: &mut Vec<u64>) -> Option<bool> {
        let Some(attempt) = &mut self.attempt else {
            let Some(seed) = self.seeds.next() else { return Some(false) };
            let seed = seed.wrapping_add(1).wrapping_mul(0xa076_1d64_78bd_642f);
            self.attempt = Some(BuildAttempt::new(SlotShape::for_keys(self.entries.len(), seed)));
            return None;
        };
        match attempt.step(&self.entries, budget) {
            AttemptEnd::Spent => None,
            AttemptEnd::Failed => {
                self.attempt = None;
                self.set_colliding_apart();
                None
            }
            AttemptEnd::Filled => {
                let SlotShape { seed, segments, segment_bits } = attempt.shape;
                out.push(joined(segments as u32, segment_bits));
                out.push(seed);
                out.push(joined(self.entries.len() as u32, self.colliding.len() as u32));
                out.extend_from_slice(&self.colliding);
                pack(&attempt.slots, out);
                Some(true)
            }
        }
    }

    /// Equal hashes fail with every seed. Sorting is left to the rare case.
    fn set_colliding_apart(&mut self) {
        if !self.colliding.is_empty() {
            return;
        }
        let mut hashes: Vec<u64> = self.entries.iter().map(|entry| entry.0).collect();
        hashes.sort_unstable();
        let twice = hashes.array_windows().filter(|[one, two]| one == two);
        self.colliding = twice.map(|[one, _]| *one).collect();
        self.colliding.dedup();
        let Self { entries, colliding, .. } = self;
        entries.retain(|entry| colliding.binary_search(&entry.0).is_err());
    }
}

impl BuildAttempt {
    fn new(shape: SlotShape) -> Self {
        Self {
            shape,
            stage: BuildStage::Enter,
            done: 0,
            users: vec![SlotUsers::default(); shape.slots()],
            open: Vec::new(),
            order: Vec::new(),
            slots: vec![0; shape.slots()],
        }
    }

    fn step(&mut self, entries: &[(u64, u8)], budget: usize) -> AttemptEnd {
        let end = |all: usize, done: usize| all.min(done.saturating_add(budget.max(1)));
        match self.stage {
            BuildStage::Enter => {
                let end = end(entries.len(), self.done);
                for &(hash, place) in &entries[self.done..end] {
                    for slot in self.shape.slots_of(hash) {
                        let users = &mut self.users[slot];
                        users.change(hash, place, users.count + 1);
                    }
                }
                self.done = end;
                self.turn_to_if(end == entries.len(), BuildStage::Find);
            }
            BuildStage::Find => {
                let end = end(self.users.len(), self.done);
                let is_open = |slot: &u32| self.users[*slot as usize].count == 1;
                self.open.extend((self.done as u32..end as u32).filter(is_open));
                self.done = end;
                self.turn_to_if(end == self.users.len(), BuildStage::Peel);
            }
            BuildStage::Peel => {
                for _ in 0..budget.max(1) {
                    let Some(slot) = self.open.pop() else {
                        if self.order.len() < entries.len() {
                            return AttemptEnd::Failed;
                        }
                        self.turn_to_if(true, BuildStage::Fill);
                        break;
                    };
                    let SlotUsers { hash, place, count } = self.users[slot as usize];
                    if count != 1 {
                        continue;
                    }
                    self.order.push((hash, place, slot));
                    for other in self.shape.slots_of(hash) {
                        let users = &mut self.users[other];
                        users.change(hash, place, users.count - 1);
                        if users.count == 1 {
                            self.open.push(other as u32);
                        }
                    }
                }
            }
            BuildStage::Fill => {
                for _ in 0..budget.max(1) {
                    let Some((hash, place, slot)) = self.order.pop() else {
                        return AttemptEnd::Filled;
                    };
                    let [one, two, three] = self.shape.slots_of(hash);
                    // The slot itself is still zero.
                    self.slots[slot as usize] = content(hash, place)
                        ^ self.slots[one]
                        ^ self.slots[two]
                        ^ self.slots[three];
                }
            }
        }
        AttemptEnd::Spent
    }

    fn turn_to_if(&mut self, is_done: bool, next: BuildStage) {
        if is_done {
            (self.stage, self.done) = (next, 0);
        }
    }
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
pub struct LocateFunction<'a> {
    shape: SlotShape,
    keys: u32,
    colliding: &'a [u64],
    slots: &'a [u64],
}

impl<'a> LocateFunction<'a> {
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
        let shape = SlotShape { seed: fixed[1], segments: segments.into(), segment_bits };
        let colliding = take(&mut rest, colliding as usize)?;
        let fits = rest.len() == (shape.slots() * SLOT_BITS).div_ceil(64);
        fits.then_some(Self { shape, keys, colliding, slots: rest })
    }

    /// Where to look for a key with this hash.
    #[inline]
    pub fn find(self, hash: u64) -> GroupPlace {
        if !self.colliding.is_empty() && self.colliding.binary_search(&hash).is_ok() {
            return GroupPlace::Anywhere;
        }
        if self.keys == 0 {
            return GroupPlace::Absent;
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
        if found == content(hash, place) { GroupPlace::At(place) } else { GroupPlace::Absent }
    }
}
