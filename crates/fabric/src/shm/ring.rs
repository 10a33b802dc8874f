//! Rings in shared memory, which carry requests to a memory server and replies back.
//!
//! ```text
//! page 0   header, a cache line for each word:
//!          0 requests: tail
//!          1 requests: head
//!          2 requests: consumer sleeps
//!          3 requests: producer wants room
//!          4 to 7: the same for the replies
//! then     requests[32768 words], replies[32768 words]
//!
//! record   id, [kind:16][bytes:48], then the bytes, padded to whole words; it wraps around
//!          at the end of the ring
//! ```
//!
//! The other side is another process, which may be faulty or hostile.
//!
//! *Invariants*: ring.R1. Each side keeps a private copy of the index that it writes, and never
//! reads the shared one back. ring.R2. What comes from the other side (its index, a record's head)
//! is read once, then checked, and only then used; invalid values are [`BadRing`]. ring.R3. a
//! message is copied out, word by word and atomically, before any code looks at it. ring.R4. A side
//! that finds nothing to do announces so in the header and checks again before it sleeps; a side
//! that adds something checks the header afterwards. So no wake-up is lost.
//!
//! *Thread safety*: one producer and one consumer; each belongs to one thread at a time.

use crate::sync::{Arc, AtomicU64, Ordering, fence};
use crate::{MAX_MESSAGE_BYTES, Message, Region};

/// Words of one ring.
const RING_WORDS: usize = 32_768;
/// Words of the header's page.
const HEADER_WORDS: usize = 512;
/// Words of two cache lines, because the processor prefetches lines in pairs.
const LINE_WORDS: usize = 16;
/// Words of a record that precede its bytes.
const HEAD_WORDS: usize = 2;
/// Words of the longest record.
const RECORD_WORDS: usize = HEAD_WORDS + MAX_MESSAGE_BYTES / 8;

const _: () = assert!(RING_WORDS.is_power_of_two());
const _: () = assert!(8 * LINE_WORDS <= HEADER_WORDS);
const _: () = assert!(2 * RECORD_WORDS <= RING_WORDS + 2 * HEAD_WORDS, "two messages fit");

/// Size of the file with both rings of an endpoint.
pub(super) const FILE_BYTES: usize = (HEADER_WORDS + 2 * RING_WORDS) * 8;

/// The ring's state is invalid: its other side is faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadRing;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingRecordKind {
    /// A request, or the reply to one.
    Message,
    /// Replaces a reply that would have had this many bytes.
    TooLarge(usize),
}

/// One of the two rings of a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum RingDirection {
    Requests,
    Replies,
}

#[derive(Debug)]
struct Ring {
    file: Arc<Region>,
    direction: RingDirection,
}

impl Ring {
    fn header(&self, line: usize) -> &AtomicU64 {
        let lines = match self.direction {
            RingDirection::Requests => 0,
            RingDirection::Replies => 4,
        };
        &self.file.words()[(lines + line) * LINE_WORDS]
    }

    fn tail(&self) -> &AtomicU64 {
        self.header(0)
    }

    fn head(&self) -> &AtomicU64 {
        self.header(1)
    }

    fn consumer_sleeps(&self) -> &AtomicU64 {
        self.header(2)
    }

    fn wants_room(&self) -> &AtomicU64 {
        self.header(3)
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        let first = match self.direction {
            RingDirection::Requests => HEADER_WORDS,
            RingDirection::Replies => HEADER_WORDS + RING_WORDS,
        };
        &self.file.words()[first + index as usize % RING_WORDS]
    }
}

/// Clears the flag; returns whether it was set. Ordered after everything that this side published
/// earlier.
fn take_flag(flag: &AtomicU64) -> bool {
    fence(Ordering::SeqCst);
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::AcqRel) != 0
}

fn raise_flag(flag: &AtomicU64) {
    flag.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// The side of a ring that adds records.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Ring,
    tail: u64,
}

impl Producer {
    /// Creates the only producer of a new ring.
    pub(super) fn new(file: &Arc<Region>, direction: RingDirection) -> Self {
        Self { ring: Ring { file: Arc::clone(file), direction }, tail: 0 }
    }

    fn room(&self) -> Result<usize, BadRing> {
        let used = self.tail.wrapping_sub(self.ring.head().load(Ordering::Acquire));
        RING_WORDS.checked_sub(usize::try_from(used).map_err(|_| BadRing)?).ok_or(BadRing)
    }

    /// Adds a record; returns `false` if there is no room for it.
    pub(super) fn push(
        &mut self,
        id: u64,
        kind: RingRecordKind,
        bytes: &[u8],
    ) -> Result<bool, BadRing> {
        debug_assert!(bytes.len() <= MAX_MESSAGE_BYTES, "a message is bounded");
        let words = HEAD_WORDS + bytes.len().div_ceil(8);
        if self.room()? < words {
            return Ok(false);
        }
        let about = match kind {
            RingRecordKind::Message => bytes.len() as u64,
            RingRecordKind::TooLarge(bytes) => 1 << 48 | (bytes as u64).min((1 << 48) - 1),
        };
        self.ring.word(self.tail).store(id, Ordering::Relaxed);
        self.ring.word(self.tail.wrapping_add(1)).store(about, Ordering::Relaxed);
        for (index, chunk) in (HEAD_WORDS as u64..).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let target = self.ring.word(self.tail.wrapping_add(index));
            target.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(words as u64);
        self.ring.tail().store(self.tail, Ordering::Release);
        Ok(true)
    }

    /// Whether the consumer is asleep, or about to sleep, and must be woken for the pushed records.
    pub(super) fn must_wake(&self) -> bool {
        take_flag(self.ring.consumer_sleeps())
    }

    /// Whether any record fits. If not, the consumer will wake the producer when it has made room.
    pub(super) fn has_room(&self) -> Result<bool, BadRing> {
        if self.room()? >= RECORD_WORDS {
            return Ok(true);
        }
        raise_flag(self.ring.wants_room());
        Ok(self.room()? >= RECORD_WORDS)
    }
}

/// The side of a ring that takes records.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Ring,
    head: u64,
}

impl Consumer {
    /// Creates the only consumer of a new ring.
    pub(super) fn new(file: &Arc<Region>, direction: RingDirection) -> Self {
        Self { ring: Ring { file: Arc::clone(file), direction }, head: 0 }
    }

    fn available(&self) -> Result<usize, BadRing> {
        let filled = self.ring.tail().load(Ordering::Acquire).wrapping_sub(self.head);
        usize::try_from(filled).ok().filter(|words| *words <= RING_WORDS).ok_or(BadRing)
    }

    /// Copies the next record's bytes to `message` and returns its id and kind; `None` if there is
    /// no record.
    pub(super) fn pop(
        &mut self,
        message: &mut Message,
    ) -> Result<Option<(u64, RingRecordKind)>, BadRing> {
        let available = self.available()?;
        if available == 0 {
            return Ok(None);
        }
        if available < HEAD_WORDS {
            return Err(BadRing);
        }
        let id = self.ring.word(self.head).load(Ordering::Relaxed);
        let about = self.ring.word(self.head.wrapping_add(1)).load(Ordering::Relaxed);
        let said = usize::try_from(about & ((1 << 48) - 1)).map_err(|_| BadRing)?;
        let (kind, bytes) = match about >> 48 {
            0 => (RingRecordKind::Message, said),
            1 => (RingRecordKind::TooLarge(said), 0),
            _ => return Err(BadRing),
        };
        if bytes > MAX_MESSAGE_BYTES || HEAD_WORDS + bytes.div_ceil(8) > available {
            return Err(BadRing);
        }
        message.clear();
        message.resize(bytes, 0);
        for (index, chunk) in (HEAD_WORDS as u64..).zip(message.chunks_mut(8)) {
            let word = self.ring.word(self.head.wrapping_add(index)).load(Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
        }
        self.head = self.head.wrapping_add((HEAD_WORDS + bytes.div_ceil(8)) as u64);
        self.ring.head().store(self.head, Ordering::Release);
        Ok(Some((id, kind)))
    }

    /// Whether there is a record.
    pub(super) fn has_more(&self) -> bool {
        self.available() != Ok(0)
    }

    /// Announces that this side will sleep. Returns whether it may, because there is still no
    /// record.
    pub(super) fn may_sleep(&self) -> bool {
        raise_flag(self.ring.consumer_sleeps());
        !self.has_more()
    }

    /// Whether the producer waits for room and must be woken.
    pub(super) fn must_wake(&self) -> bool {
        take_flag(self.ring.wants_room())
    }
}

/// What a faulty or hostile process can do to a ring that it has mapped.
#[cfg(test)]
pub(super) mod vandal {
    use super::*;

    impl Producer {
        /// Adds a record with head `about` that takes `words` words and is not a message.
        pub(in super::super) fn push_raw(&mut self, about: u64, words: u64) {
            self.ring.word(self.tail.wrapping_add(1)).store(about, Ordering::Relaxed);
            self.tail = self.tail.wrapping_add(words);
            self.ring.tail().store(self.tail, Ordering::Release);
        }

        pub(in super::super) fn flip_everything(&self) {
            for word in self.ring.file.words() {
                word.fetch_xor(u64::MAX, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionBacking;

    fn ring() -> (Arc<Region>, Producer, Consumer) {
        let backing = RegionBacking::Shared { huge_pages: false };
        let file = Arc::new(Region::with_backing(FILE_BYTES, backing).unwrap());
        let producer = Producer::new(&file, RingDirection::Replies);
        let consumer = Consumer::new(&file, RingDirection::Replies);
        (file, producer, consumer)
    }

    fn text(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index * 7 + seed) as u8).collect()
    }

    #[test]
    fn records_come_out_as_they_went_in_round_after_round() {
        let (_file, mut producer, mut consumer) = ring();
        let mut message = Message::new();
        let sizes = [0, 1, 7, 8, 9, 1000, 65_000, MAX_MESSAGE_BYTES];
        for round in 0..50_usize {
            let bytes = sizes[round % sizes.len()];
            let sent = text(bytes, round);
            assert!(producer.push(round as u64, RingRecordKind::Message, &sent).unwrap());
            assert!(producer.push(7, RingRecordKind::TooLarge(bytes), &[]).unwrap());
            assert_eq!(
                consumer.pop(&mut message),
                Ok(Some((round as u64, RingRecordKind::Message)))
            );
            assert_eq!(&message[..], &sent[..]);
            assert_eq!(consumer.pop(&mut message), Ok(Some((7, RingRecordKind::TooLarge(bytes)))));
            assert_eq!(consumer.pop(&mut message), Ok(None));
        }
    }

    #[test]
    fn a_full_ring_takes_no_more_until_there_is_room() {
        let (_file, mut producer, mut consumer) = ring();
        let mut message = Message::new();
        let (mut pushed, mut popped) = (0, 0);
        while producer.push(pushed, RingRecordKind::Message, &text(1000, pushed as usize)).unwrap()
        {
            pushed += 1;
        }
        assert!(pushed > 200);
        assert_eq!(producer.has_room(), Ok(false));
        while consumer.pop(&mut message).unwrap() == Some((popped, RingRecordKind::Message)) {
            assert_eq!(&message[..], &text(1000, popped as usize)[..]);
            popped += 1;
        }
        assert_eq!(popped, pushed);
        assert!(consumer.must_wake(), "the producer has asked for room");
        assert!(!consumer.must_wake(), "once");
        assert_eq!(producer.has_room(), Ok(true));
    }

    #[test]
    fn who_sleeps_is_woken_once() {
        let (_file, mut producer, mut consumer) = ring();
        producer.push(1, RingRecordKind::Message, b"awake").unwrap();
        assert!(!producer.must_wake());
        assert!(!consumer.may_sleep(), "there is something to do");
        consumer.pop(&mut Message::new()).unwrap();
        assert!(consumer.may_sleep());
        producer.push(2, RingRecordKind::Message, b"asleep").unwrap();
        assert!(producer.must_wake());
        assert!(!producer.must_wake());
    }

    #[test]
    fn nonsense_is_noticed_and_not_followed() {
        let set = |ring: &Ring, tail: u64, words: &[u64]| {
            for (index, word) in (0..).zip(words) {
                ring.word(index).store(*word, Ordering::Relaxed);
            }
            ring.tail().store(tail, Ordering::Release);
        };
        let cases: [(u64, &[u64]); 8] = [
            (RING_WORDS as u64 + 1, &[]),
            (u64::MAX, &[]),
            (1, &[0]),
            (2, &[0, 1]),
            (2, &[0, u64::MAX]),
            (2, &[0, 2 << 48]),
            (100, &[0, MAX_MESSAGE_BYTES as u64 + 1]),
            (RING_WORDS as u64, &[0, (1 << 48) - 1]),
        ];
        for (tail, words) in cases {
            let (_file, _, mut consumer) = ring();
            set(&consumer.ring, tail, words);
            assert_eq!(consumer.pop(&mut Message::new()), Err(BadRing), "{tail} {words:?}");
        }
        for head in [1, u64::MAX, 1 << 40] {
            let (_file, mut producer, _) = ring();
            producer.ring.head().store(head, Ordering::Release);
            // With tail 0, the head of an empty ring cannot be behind the tail; the check only
            // catches distances larger than the ring.
            assert_eq!(
                producer.push(0, RingRecordKind::Message, b""),
                if head == u64::MAX { Ok(true) } else { Err(BadRing) }
            );
        }
    }
}
