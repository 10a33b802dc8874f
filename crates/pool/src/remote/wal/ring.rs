//! The space of one ring: which positions are free, which batches are in it, and which records wait
//! for a batch.
//!
//! *Thread safety*: belongs to one writer at a time.

use super::RING_HEADER_WORDS;
use super::batch::{BATCH_HEADER_WORDS, OpenBatch, WalRecord, seed};
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::Arc;
use std::collections::VecDeque;

/// Maximum size of a batch of several records, in words: a buffer of an endpoint, and one of this
/// many parts of the ring.
const BATCH_WORDS: u64 = 512;
const BATCH_PART: u64 = 8;
/// The longest record has at most one of this many parts of the ring.
const RECORD_PARTS: u64 = 4;
/// Maximum number of batches of a ring that are written at the same time.
const MAX_IN_FLIGHT: usize = 2;
/// A ring is pressed when more than one of this many parts is in use.
const PRESSED_PART: u64 = 2;
/// Batches without records for which a ring keeps room.
const LOW_BATCHES: u64 = 3;
/// The low is asked for again after one of this many parts of the ring.
const LOW_PART: u64 = 64;

/// A batch in the ring.
#[derive(Debug)]
struct LiveBatch {
    position: u64,
    highest: u64,
    is_durable: bool,
}

/// A batch that has its place, and is not durable.
#[derive(Debug)]
struct PlacedBatch {
    position: u64,
    words: Arc<Vec<u64>>,
    numbers: (u64, u64),
    low: u64,
    /// How often the low was asked for until this batch.
    lows: u64,
    /// Whether a task writes it.
    is_driven: bool,
    /// Whether a task has written it that did not see the end.
    is_doubtful: bool,
}

/// A batch to write.
#[derive(Clone, Debug)]
pub(super) struct BatchToWrite {
    pub(super) position: u64,
    pub(super) at: GlobalAddr,
    pub(super) words: Arc<Vec<u64>>,
    /// Whether an earlier WRITE of it may still land: the connection must be reset first.
    pub(super) is_doubtful: bool,
}

/// One ring.
#[derive(Debug)]
pub(super) struct WalRing {
    pub(super) number: u16,
    /// Of its header.
    at: GlobalAddr,
    /// Words for batches.
    words: u64,
    /// Words of the smallest ring of this log, on which the longest batch depends: a batch may have
    /// to go to another ring.
    least_words: u64,
    seed: u64,
    /// The position of the next batch.
    head: u64,
    in_ring: VecDeque<LiveBatch>,
    placed: Vec<PlacedBatch>,
    /// Batches without a place; the last one takes records.
    open: VecDeque<OpenBatch>,
    /// The position at which the low was asked for, and the answer.
    low: (u64, u64),
    /// How often the low was wanted, asked for by a batch, and told by a durable one.
    lows: (u64, u64, u64),
}

impl WalRing {
    /// A ring of `bytes` bytes or more, without batches of this life.
    pub(super) fn new(
        number: u16,
        (at, all_bytes): (GlobalAddr, u64),
        bytes: u64,
        life: u64,
    ) -> Self {
        let words = |bytes: u64| (bytes / 8).saturating_sub(RING_HEADER_WORDS);
        Self {
            number,
            at,
            words: words(all_bytes),
            least_words: words(bytes.min(all_bytes)),
            seed: seed(life, at),
            head: 0,
            in_ring: VecDeque::new(),
            placed: Vec::new(),
            open: VecDeque::new(),
            low: (0, 0),
            lows: (0, 0, 0),
        }
    }

    /// The memory server's address of its header.
    pub(super) fn at(&self) -> GlobalAddr {
        self.at
    }

    fn batch_words(&self) -> u64 {
        BATCH_WORDS.min(self.least_words / BATCH_PART)
    }

    /// Words in use, from the oldest batch that counts to the last record.
    fn used(&self) -> u64 {
        let tail = self.in_ring.front().map_or(self.head, |batch| batch.position);
        self.head - tail + self.open.iter().map(OpenBatch::words).sum::<u64>()
    }

    /// Whether there is room for `reserved` words and `words` more (log.L6). What is left has room
    /// for batches that tell the low, and for what the longest batch may leave unused at the end of
    /// the ring, whichever comes there.
    pub(super) fn has_room(&self, words: u64, reserved: u64) -> bool {
        let spare = self.words / RECORD_PARTS + LOW_BATCHES * BATCH_HEADER_WORDS as u64;
        self.used() + reserved + words + spare <= self.words
    }

    /// Whether the ring takes records of `words` words, with the head of a batch of their own.
    pub(super) fn can_hold(&self, words: u64) -> bool {
        words + LOW_BATCHES * BATCH_HEADER_WORDS as u64 <= self.least_words / RECORD_PARTS
    }

    /// Whether so much is in use that MemTables should be flushed, however little is in them.
    pub(super) fn is_pressed(&self) -> bool {
        self.used() > self.words / PRESSED_PART
    }

    /// The highest number that must be in the pool for half of what is in use to become free.
    pub(super) fn pressing_number(&self) -> u64 {
        let middle = self.head.saturating_sub(self.used() / 2);
        let oldest = self.in_ring.iter().take_while(|batch| batch.position <= middle);
        oldest.map(|batch| batch.highest).max().unwrap_or(0)
    }

    /// Adds a record.
    pub(super) fn push(&mut self, number: u64, record: &WalRecord<'_>) {
        let (words, most) = (record.words(), self.batch_words());
        if !self.open.back().is_some_and(|open| open.has_room(words, most)) {
            self.open.push_back(OpenBatch::new());
        }
        if let Some(open) = self.open.back_mut() {
            open.push(number, record);
        }
    }

    /// Lets the next batch tell the low. Adds one without records if there is none. Returns a
    /// number for [`Self::has_told`].
    pub(super) fn push_low(&mut self) -> u64 {
        if self.lows.0 == self.lows.1 {
            self.lows.0 += 1;
        }
        if self.open.is_empty() {
            self.open.push_back(OpenBatch::new());
        }
        self.lows.0
    }

    /// Whether a durable batch tells a low that was asked for after this [`Self::push_low`].
    pub(super) fn has_told(&self, low: u64) -> bool {
        self.lows.2 >= low
    }

    /// Adds batches of other writers, as many as there is room for beside `reserved` words.
    pub(super) fn adopt(&mut self, batches: &mut Vec<OpenBatch>, reserved: u64) {
        let has_room = |ring: &Self, batch: &OpenBatch| {
            ring.can_hold(batch.words()) && ring.has_room(batch.words(), reserved)
        };
        while let Some(batch) = batches.pop_if(|batch| has_room(self, batch)) {
            self.open.push_back(batch);
        }
    }

    /// The lowest number that is not durable.
    pub(super) fn lowest_pending(&self) -> Option<u64> {
        let placed = self.placed.iter().map(|batch| batch.numbers.0);
        placed.chain(self.open.iter().map(|batch| batch.numbers.0)).min()
    }

    /// Whether there is a batch that no task writes, and that may be written now.
    pub(super) fn has_work(&self) -> bool {
        self.placed.iter().any(|batch| !batch.is_driven)
            || (self.placed.len() < MAX_IN_FLIGHT && self.next_position().is_some())
    }

    /// The position of the next batch. `None` if there is no batch, or, whatever was reserved, no
    /// room: nothing that counts is ever overwritten.
    fn next_position(&self) -> Option<u64> {
        let words = self.open.front()?.words();
        let left = self.words - self.head % self.words;
        // No batch crosses the end.
        let position = if words > left { self.head + left } else { self.head };
        let tail = self.in_ring.front().map_or(position, |batch| batch.position);
        (position + words - tail <= self.words).then_some(position)
    }

    /// Takes a batch to write: one whose task was dropped, or else the next one. `low` is asked for
    /// what is in the pool.
    pub(super) fn take(&mut self, low: impl FnOnce() -> u64) -> Option<BatchToWrite> {
        if let Some(batch) = self.placed.iter_mut().find(|batch| !batch.is_driven) {
            batch.is_driven = true;
            let (position, is_doubtful) = (batch.position, batch.is_doubtful);
            let words = Arc::clone(&batch.words);
            return Some(BatchToWrite { position, at: self.place(position), words, is_doubtful });
        }
        if self.placed.len() >= MAX_IN_FLIGHT {
            return None;
        }
        let position = self.next_position()?;
        let open = self.open.pop_front()?;
        self.head = position + open.words();
        let is_due = position >= self.low.0 + self.words / LOW_PART;
        if self.lows.1 < self.lows.0 || is_due {
            self.low = (position, self.low.1.max(low()));
            self.lows.1 = self.lows.0;
        }
        let (numbers, low, lows) = (open.numbers, self.low.1, self.lows.1);
        let words = Arc::new(open.seal(self.seed, position, low));
        self.in_ring.push_back(LiveBatch { position, highest: numbers.1, is_durable: false });
        let at = self.place(position);
        let (is_driven, is_doubtful) = (true, false);
        let batch = BatchToWrite { position, at, words: Arc::clone(&words), is_doubtful };
        self.placed.push(PlacedBatch {
            position,
            words,
            numbers,
            low,
            lows,
            is_driven,
            is_doubtful,
        });
        Some(batch)
    }

    fn place(&self, position: u64) -> GlobalAddr {
        self.at.plus((RING_HEADER_WORDS + position % self.words) * 8)
    }

    /// No task writes the batch at `position` any more, which may not be durable.
    pub(super) fn dropped(&mut self, position: u64) {
        for batch in self.placed.iter_mut().filter(|batch| batch.position == position) {
            (batch.is_driven, batch.is_doubtful) = (false, true);
        }
    }

    /// The batch at `position` is durable. Returns the low that it has told.
    pub(super) fn landed(&mut self, position: u64) -> u64 {
        if let Ok(place) = self.in_ring.binary_search_by_key(&position, |batch| batch.position) {
            self.in_ring[place].is_durable = true;
        }
        let told = self.placed.iter().find(|batch| batch.position == position);
        let (low, lows) = told.map_or((0, 0), |batch| (batch.low, batch.lows));
        self.lows.2 = self.lows.2.max(lows);
        self.placed.retain(|batch| batch.position != position);
        low
    }

    /// Frees the batches whose records are all below `low`, which a durable batch has told, but not
    /// the latest durable one (log.L4).
    pub(super) fn release(&mut self, low: u64) {
        let Some(latest) = self.in_ring.iter().rposition(|batch| batch.is_durable) else { return };
        let is_free = |batch: &LiveBatch| batch.is_durable && batch.highest < low;
        let free = self.in_ring.iter().take(latest).take_while(|batch| is_free(batch)).count();
        self.in_ring.drain(..free);
    }

    /// The ring, if nothing of it is on its way. Otherwise the batches that are not durable, for
    /// another ring.
    pub(super) fn into_unfinished(self) -> Result<Self, Vec<OpenBatch>> {
        if self.placed.is_empty() && self.open.is_empty() {
            return Ok(self);
        }
        let placed =
            self.placed.iter().map(|batch| OpenBatch::of_sealed(&batch.words, batch.numbers));
        let open = self.open.into_iter().filter(|batch| batch.has_records());
        Err(placed.chain(open).collect())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    const PUT: WalRecord<'_> = WalRecord::Put { key: b"12345678", value: b"12345678" };

    fn ring(words: u64) -> WalRing {
        let at = GlobalAddr::new(ServerId::new(0), 4096);
        let bytes = (RING_HEADER_WORDS + words) * 8;
        WalRing::new(0, (at, bytes), bytes, 1)
    }

    #[test]
    fn records_gather_while_two_batches_are_written() {
        let mut ring = ring(4096);
        let mut taken = Vec::new();
        for number in 1..=4 {
            ring.push(number, &PUT);
            taken.extend(ring.take(|| 0));
        }
        assert_eq!(taken.len(), 2);
        assert_eq!((taken[0].position, taken[1].position), (0, 8));
        assert_eq!(ring.lowest_pending(), Some(1));
        ring.landed(8);
        assert_eq!(ring.lowest_pending(), Some(1), "the first one is not durable yet");
        let third = ring.take(|| 0).unwrap();
        assert_eq!((third.position, third.words.len()), (16, 12), "it has both records");
        ring.dropped(0);
        assert_eq!(ring.take(|| 0).unwrap().position, 0, "a dropped one is written again");
        ring.landed(0);
        ring.landed(16);
        assert_eq!(ring.lowest_pending(), None);
    }

    #[test]
    fn the_end_of_the_ring_is_skipped_and_the_latest_batch_stays() {
        let mut ring = ring(2048);
        let mut number = 0;
        while ring.has_room(BATCH_HEADER_WORDS as u64 + PUT.words(), 0) {
            number += 1;
            ring.push(number, &PUT);
            let batch = ring.take(|| 0).unwrap();
            ring.landed(batch.position);
            ring.release(0);
        }
        assert!(ring.is_pressed() && number > 100);
        let pressing = ring.pressing_number();
        assert!(pressing > number / 3 && pressing < number * 2 / 3);
        ring.release(u64::MAX);
        assert_eq!(ring.used(), 8, "the latest batch is still there");
        for _ in 0..200 {
            number += 1;
            ring.push(number, &PUT);
            let batch = ring.take(|| number).unwrap();
            assert!(batch.position % 2048 + batch.words.len() as u64 <= 2048);
            let low = ring.landed(batch.position);
            ring.release(low);
            assert!(low <= number);
        }
    }

    /// The longest records beside short ones, at the end of the ring, with all room reserved: once
    /// the space that a long batch leaves unused there was not counted, and the next batches
    /// overwrote the oldest ones.
    #[test]
    fn nothing_is_overwritten_before_it_is_free() {
        for seed in 0..200_u64 {
            let mut ring = ring(1_024);
            let (mut random, mut number, mut low) = (seed * 2 + 1, 0_u64, 0);
            for _ in 0..400 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let long = [7; 1_880];
                let value = &long[..if random % 5 == 0 { 1_880 } else { random as usize % 64 }];
                let record = WalRecord::Put { key: b"", value };
                let words = record.words() + BATCH_HEADER_WORDS as u64;
                assert!(ring.can_hold(words));
                if !ring.has_room(words, 0) {
                    low = (number + 1).saturating_sub(random % 2);
                    ring.push_low();
                } else {
                    number += 1;
                    ring.push(number, &record);
                }
                let Some(batch) = ring.take(|| low) else { panic!("no room, seed {seed}") };
                ring.landed(batch.position);
                let tail = ring.in_ring.front().unwrap().position;
                assert!(batch.position + batch.words.len() as u64 - tail <= 1_024);
                ring.release(low);
            }
        }
    }

    #[test]
    fn what_is_not_durable_goes_to_another_ring() {
        let mut first = ring(4096);
        for number in 1..=3 {
            first.push(number, &PUT);
            first.take(|| 0);
        }
        let mut unfinished = first.into_unfinished().unwrap_err();
        let mut other = ring(4096);
        other.adopt(&mut unfinished, 4096);
        assert_eq!(unfinished.len(), 3, "there is no room beside what is reserved");
        other.adopt(&mut unfinished, 0);
        let mut numbers = Vec::new();
        while let Some(batch) = other.take(|| 0) {
            let found = super::super::batch::FoundBatch::at(
                &[
                    &vec![0; batch.position as usize][..],
                    &batch.words,
                    &vec![0; 4096 - batch.position as usize - batch.words.len()],
                ]
                .concat(),
                batch.position as usize,
                other.seed,
            );
            numbers.extend(found.unwrap().records.into_iter().map(|(number, _)| number));
            other.landed(batch.position);
        }
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3]);
        assert!(other.into_unfinished().is_ok());
    }
}
