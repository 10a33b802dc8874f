//! Batches of records, as words.
//!
//! *Thread safety*: plain values.

use farleaf_fabric::GlobalAddr;
use farleaf_page::sum_of;

/// Words before the records of a batch.
pub(super) const BATCH_HEADER_WORDS: usize = 4;
/// Words before the key of a record.
const RECORD_HEADER_WORDS: usize = 2;
/// In the upper 16 bits of a batch's word 1.
const MAGIC: u64 = 0xf10b;
/// Maximum number of records of a batch.
const MAX_RECORDS: u64 = u16::MAX as u64;

/// Kinds of records.
const PUT: u8 = 1;
const TOMBSTONE: u8 = 2;
const BARRIER: u8 = 3;
const ENDLESS_BARRIER: u8 = 4;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalRecord<'r> {
    /// The key has this value.
    Put {
        /// The key.
        key: &'r [u8],
        /// Its value.
        value: &'r [u8],
    },
    /// The key has no value.
    Tombstone {
        /// The key.
        key: &'r [u8],
    },
    /// Records of the range with numbers below a bound do not count any more (log.L5).
    Barrier {
        /// The bound, which is below the barrier's own number.
        below: u64,
        /// The lowest key of the range.
        low: &'r [u8],
        /// The end of the range, which is not in it. `None` if it has no end.
        high: Option<&'r [u8]>,
    },
}

impl<'r> WalRecord<'r> {
    fn parts(&self) -> (u8, &'r [u8], &'r [u8]) {
        match self {
            Self::Put { key, value } => (PUT, key, value),
            Self::Tombstone { key } => (TOMBSTONE, key, &[]),
            Self::Barrier { low, high: Some(high), .. } => (BARRIER, low, high),
            Self::Barrier { low, high: None, .. } => (ENDLESS_BARRIER, low, &[]),
        }
    }

    /// The bound of a barrier.
    fn below(&self) -> Option<u64> {
        match self {
            Self::Barrier { below, .. } => Some(*below),
            Self::Put { .. } | Self::Tombstone { .. } => None,
        }
    }

    /// Words that it takes in a batch.
    pub(super) fn words(&self) -> u64 {
        let (_, key, value) = self.parts();
        let bytes = key.len().div_ceil(8) + value.len().div_ceil(8);
        (RECORD_HEADER_WORDS + bytes) as u64 + u64::from(self.below().is_some())
    }
}

fn push_bytes(bytes: &[u8], to: &mut Vec<u64>) {
    to.extend(bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    }));
}

fn take_bytes(words: &mut &[u64], bytes: usize) -> Option<Vec<u8>> {
    let (own, rest) = words.split_at_checked(bytes.div_ceil(8))?;
    *words = rest;
    let mut taken: Vec<u8> = own.iter().flat_map(|word| word.to_le_bytes()).collect();
    taken.truncate(bytes);
    Some(taken)
}

/// A batch that still takes records.
#[derive(Debug)]
pub(super) struct OpenBatch {
    words: Vec<u64>,
    records: u64,
    /// The lowest and the highest number of its records.
    pub(super) numbers: (u64, u64),
}

impl OpenBatch {
    pub(super) fn new() -> Self {
        Self { words: vec![0; BATCH_HEADER_WORDS], records: 0, numbers: (u64::MAX, 0) }
    }

    /// The records of a sealed batch, to be sealed again elsewhere.
    pub(super) fn of_sealed(batch: &[u64], numbers: (u64, u64)) -> Self {
        Self { words: batch.to_vec(), records: batch[1] >> 32 & 0xffff, numbers }
    }

    pub(super) fn words(&self) -> u64 {
        self.words.len() as u64
    }

    pub(super) fn has_records(&self) -> bool {
        self.records > 0
    }

    /// Whether a record of `words` words fits, in a batch of at most `most` words. One that is
    /// longer has a batch of its own.
    pub(super) fn has_room(&self, words: u64, most: u64) -> bool {
        self.records == 0 || (self.words() + words <= most && self.records < MAX_RECORDS)
    }

    pub(super) fn push(&mut self, number: u64, record: &WalRecord<'_>) {
        let (kind, key, value) = record.parts();
        let lengths = (key.len() as u64) << 8 | (value.len() as u64) << 32;
        self.words.extend([u64::from(kind) | lengths, number]);
        push_bytes(key, &mut self.words);
        self.words.extend(record.below());
        push_bytes(value, &mut self.words);
        self.records += 1;
        self.numbers = (self.numbers.0.min(number), self.numbers.1.max(number));
    }

    /// The complete words of the batch at `position` of the ring at `ring`, which tells `low`.
    pub(super) fn seal(mut self, seed: u64, position: u64, low: u64) -> Vec<u64> {
        self.words[1] = MAGIC << 48 | self.records << 32 | self.words.len() as u64;
        (self.words[2], self.words[3]) = (position, low);
        self.words[0] = sum(seed, &self.words);
        self.words
    }
}

/// What the sums of a life's batches in the ring at `ring` are seeded with.
pub(super) fn seed(life: u64, ring: GlobalAddr) -> u64 {
    sum_of([life, ring.to_bits()].into_iter())
}

fn sum(seed: u64, batch: &[u64]) -> u64 {
    sum_of(std::iter::once(seed).chain(batch[1..].iter().copied()))
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundRecord {
    /// A key with its value, if it has one.
    Key(Vec<u8>, Option<Vec<u8>>),
    /// A barrier: its bound, and its range.
    Barrier(u64, Vec<u8>, Option<Vec<u8>>),
}

/// A batch as it was found.
#[derive(Debug)]
pub(super) struct FoundBatch {
    pub(super) low: u64,
    /// With their numbers.
    pub(super) records: Vec<(u64, FoundRecord)>,
}

impl FoundBatch {
    /// The batch that begins at word `place` of `ring`, the words of a ring behind its header.
    /// `None` if none with this seed does.
    pub(super) fn at(ring: &[u64], place: usize, seed: u64) -> Option<Self> {
        let head = *ring.get(place + 1)?;
        let words = (head & 0xffff_ffff) as usize;
        if head >> 48 != MAGIC || words < BATCH_HEADER_WORDS {
            return None;
        }
        let batch = ring.get(place..place.checked_add(words)?)?;
        if batch[2] % ring.len() as u64 != place as u64 || batch[0] != sum(seed, batch) {
            return None;
        }
        let mut rest = &batch[BATCH_HEADER_WORDS..];
        let records = (0..head >> 32 & 0xffff).map(|_| take_record(&mut rest));
        Some(Self { low: batch[3], records: records.collect::<Option<_>>()? })
    }
}

fn take_record(words: &mut &[u64]) -> Option<(u64, FoundRecord)> {
    let [head, number, ..] = **words else { return None };
    *words = &words[RECORD_HEADER_WORDS..];
    let key = take_bytes(words, (head >> 8 & 0xff_ffff) as usize)?;
    let mut below = 0;
    if [BARRIER, ENDLESS_BARRIER].contains(&(head as u8)) {
        let (bound, rest) = words.split_first()?;
        (below, *words) = (*bound, rest);
    }
    let value = take_bytes(words, (head >> 32) as usize)?;
    let record = match head as u8 {
        PUT => FoundRecord::Key(key, Some(value)),
        TOMBSTONE => FoundRecord::Key(key, None),
        BARRIER => FoundRecord::Barrier(below, key, Some(value)),
        ENDLESS_BARRIER => FoundRecord::Barrier(below, key, None),
        _ => return None,
    };
    Some((number, record))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn a_batch_is_found_where_it_was_written_and_nowhere_else() {
        let mut open = OpenBatch::new();
        open.push(7, &WalRecord::Put { key: b"key", value: b"nine bytes" });
        open.push(5, &WalRecord::Tombstone { key: b"" });
        open.push(8, &WalRecord::Barrier { below: 6, low: b"a", high: Some(b"b") });
        open.push(9, &WalRecord::Barrier { below: 7, low: b"c", high: None });
        assert_eq!(open.numbers, (5, 9));
        let at = GlobalAddr::new(ServerId::new(1), 4096);
        let (mut ring, of_life) = (vec![0; 64], seed(77, at));
        let batch = open.seal(of_life, 64 + 10, 3);
        ring[10..10 + batch.len()].copy_from_slice(&batch);
        let found = FoundBatch::at(&ring, 10, of_life).unwrap();
        let bytes = |bytes: &[u8]| bytes.to_vec();
        let records = vec![
            (7, FoundRecord::Key(bytes(b"key"), Some(bytes(b"nine bytes")))),
            (5, FoundRecord::Key(Vec::new(), None)),
            (8, FoundRecord::Barrier(6, bytes(b"a"), Some(bytes(b"b")))),
            (9, FoundRecord::Barrier(7, bytes(b"c"), None)),
        ];
        assert_eq!((found.low, found.records), (3, records));
        for other in [seed(78, at), seed(77, at.plus(8))] {
            assert!(FoundBatch::at(&ring, 10, other).is_none());
        }
        ring.copy_within(10..10 + batch.len(), 11);
        assert!((0..64).all(|place| FoundBatch::at(&ring, place, of_life).is_none()), "moved");
    }

    #[test]
    fn a_batch_with_any_other_word_is_none() {
        let mut open = OpenBatch::new();
        open.push(7, &WalRecord::Put { key: b"key", value: b"value" });
        let batch = open.seal(1, 0, 0);
        for place in 0..batch.len() {
            for bit in [0, 17, 40, 63] {
                let mut torn = batch.clone();
                torn.resize(32, 0);
                torn[place] ^= 1 << bit;
                assert!(FoundBatch::at(&torn, 0, 1).is_none(), "bit {bit} of word {place}");
            }
        }
        assert!(FoundBatch::at(&batch[..batch.len() - 1], 0, 1).is_none(), "cut off");
    }
}
