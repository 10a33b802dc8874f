//! Reading a page in place: header fields, slots, and searching the slots. All values that are read
//! are clamped (bytes.Y5).
//!
//! *Thread safety*: the same as for [`crate::Page`].

use crate::Layout;
use crate::chosen::{CHOSEN, choose_for_process};
use crate::view::{HEADER_WORDS, HIGH_WORD, LOW_WORD, Page};
#[cfg(test)]
use std::cell::Cell;
use std::cmp::Ordering;

#[cfg(test)]
thread_local! {
    /// Searches of pages by this thread.
    pub(super) static SEARCHES: Cell<u64> = const { Cell::new(0) };
}

/// Byte-string keys and values in pages of `WORDS` words, or of as many as the program has chosen
/// ([`CHOSEN`]): 128, 256 or 512, and 32 in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes<const WORDS: usize = 128>;

pub(super) type BytesPage<'a, const WORDS: usize> = Page<'a, Bytes<WORDS>>;

/// Word 2, the front.
pub(super) const FRONT_WORD: usize = LOW_WORD;
/// Word 3, the heap.
pub(super) const HEAP_WORD: usize = HIGH_WORD;
/// Byte offset of the low fence in a page.
const FENCE_BYTE: usize = HEADER_WORDS * 8;

/// Number of bytes of a suffix that its slot holds.
pub(super) const HEAD_BYTES: usize = 4;
/// Words of the largest page: offsets must fit a slot.
pub(super) const MAX_PAGE_WORDS: usize = 512;
/// The largest value in a record. A slot with a larger length would mean a block outside the page.
pub(super) const MAX_VALUE: usize = 1022;

impl<const WORDS: usize> Bytes<WORDS> {
    pub(super) const IS_SENSIBLE: () = assert!(WORDS == CHOSEN || is_size(WORDS));

    /// Words of this page.
    #[inline]
    pub(super) fn size(page: BytesPage<'_, WORDS>) -> usize {
        // Not asked of the page if it is a constant, so that programs compute with the constant.
        if WORDS == CHOSEN { page.words().len() } else { WORDS }
    }

    /// Most bytes of a key. Neighbours that share more would have separators that fit no inner
    /// page.
    #[inline]
    pub fn max_key() -> usize {
        Self::page_words().min(256)
    }

    /// Most words of an entry: three of them, and two fences, fit a page.
    #[inline]
    pub(super) fn most_words() -> usize {
        (Self::page_words() - HEADER_WORDS - 2 * Self::max_key() / 8) / 3
    }

    /// Most bytes of a value beside a key of this length: the record must fit a third of a page,
    /// even if nothing of the key is cut off.
    pub fn longest_value_beside(key: usize) -> usize {
        let most = (Self::most_words() - 1) * 8 - key.saturating_sub(HEAD_BYTES);
        most.min(MAX_VALUE)
    }

    #[inline]
    pub(super) fn word(page: BytesPage<'_, WORDS>, index: usize) -> u64 {
        page.load(index & (Self::size(page) - 1))
    }

    /// Reads eight bytes, starting at byte `at`, as a big-endian number.
    #[inline]
    fn eight_bytes(page: BytesPage<'_, WORDS>, at: usize) -> u64 {
        let (index, shift) = (at / 8, at % 8 * 8);
        let low = Self::word(page, index);
        let bytes = match shift {
            0 => low,
            _ => low >> shift | Self::word(page, index + 1) << (64 - shift),
        };
        bytes.swap_bytes()
    }

    /// Compares `length` bytes of the page, starting at byte `at`, with `other`.
    #[inline]
    fn compare(page: BytesPage<'_, WORDS>, at: usize, length: usize, other: &[u8]) -> Ordering {
        let both = length.min(other.len());
        for (number, chunk) in other[..both].chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            let mask = u64::MAX << (64 - 8 * chunk.len());
            let ours = Self::eight_bytes(page, at + 8 * number) & mask;
            match ours.cmp(&u64::from_be_bytes(padded)) {
                Ordering::Equal => {}
                differs => return differs,
            }
        }
        length.cmp(&other.len())
    }

    /// Appends `length` bytes of the page, starting at byte `at`.
    pub(super) fn copy_bytes(
        page: BytesPage<'_, WORDS>,
        at: usize,
        length: usize,
        to: &mut Vec<u8>,
    ) {
        let length = length.min(Self::size(page) * 8);
        let end = to.len() + length;
        for number in 0..length.div_ceil(8) {
            to.extend_from_slice(&Self::eight_bytes(page, at + 8 * number).to_be_bytes());
        }
        to.truncate(end);
    }
}

/// Whether pages can have this number of words.
const fn is_size(words: usize) -> bool {
    words.is_power_of_two() && words >= 32 && words <= MAX_PAGE_WORDS
}

impl Bytes<CHOSEN> {
    /// Chooses the size of pages for all threads of this process.
    ///
    /// # Panics
    /// If pages cannot have this number of words, or if the process has chosen another one.
    pub fn choose(words: usize) {
        assert!(is_size(words), "a page of byte strings has 32 to 512 words, a power of two");
        choose_for_process(words);
    }
}

/// Words of the heap that a record takes.
#[inline]
pub(super) fn record_words(value: usize, suffix: usize) -> usize {
    (value + suffix.saturating_sub(HEAD_BYTES)).div_ceil(8)
}

/// Words that an entry takes.
#[inline]
pub(super) fn entry_words(value: usize, suffix: usize) -> usize {
    1 + record_words(value, suffix)
}

/// Words that the fences take.
#[inline]
pub(super) fn fence_words(low: usize, high_rest: usize) -> usize {
    low.div_ceil(8) + high_rest.div_ceil(8)
}

/// The first four bytes of a suffix.
#[inline]
pub(super) fn head_of(suffix: &[u8]) -> u32 {
    let mut padded = [0; HEAD_BYTES];
    let length = suffix.len().min(HEAD_BYTES);
    padded[..length].copy_from_slice(&suffix[..length]);
    u32::from_be_bytes(padded)
}

/// Word 2: lengths in bytes, and the position of the first slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrontWord {
    pub(super) low: usize,
    pub(super) high_rest: usize,
    pub(super) prefix: usize,
    pub(super) first: usize,
}

impl FrontWord {
    #[inline]
    pub(super) fn of<const WORDS: usize>(page: BytesPage<'_, WORDS>) -> Self {
        let word = page.load(FRONT_WORD);
        let field = |shift: u32| (word >> shift) as u16 as usize;
        let low = field(48).min(Bytes::<WORDS>::max_key());
        Self {
            low,
            high_rest: field(32).min(Bytes::<WORDS>::max_key()),
            prefix: field(16).min(low),
            first: field(0).clamp(HEADER_WORDS, Bytes::size(page)),
        }
    }

    pub(super) fn store<const WORDS: usize>(self, page: BytesPage<'_, WORDS>) {
        let Self { low, high_rest, prefix, first } = self;
        let word = (low as u64) << 48 | (high_rest as u64) << 32 | (prefix as u64) << 16;
        page.store(FRONT_WORD, word | first as u64);
    }

    /// Offset of the rest of the high fence, in bytes.
    #[inline]
    pub(super) fn high_byte(self) -> usize {
        FENCE_BYTE + self.low.next_multiple_of(8)
    }
}

/// Word 3.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapWord {
    pub(super) top: usize,
    pub(super) garbage: usize,
    pub(super) deleted: usize,
}

impl HeapWord {
    #[inline]
    pub(super) fn of<const WORDS: usize>(page: BytesPage<'_, WORDS>) -> Self {
        let word = page.load(HEAP_WORD);
        let field = |shift: u32| (word >> shift) as u16 as usize;
        let top = field(48).clamp(HEADER_WORDS, Bytes::size(page));
        Self {
            top,
            garbage: field(32).min(Bytes::size(page) - top),
            deleted: field(16).min(page.count()),
        }
    }

    pub(super) fn store<const WORDS: usize>(self, page: BytesPage<'_, WORDS>) {
        let Self { top, garbage, deleted } = self;
        page.store(HEAP_WORD, (top as u64) << 48 | (garbage as u64) << 32 | (deleted as u64) << 16);
    }
}

/// One slot, decoded: the start of the key, and the position and lengths of the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordSlot {
    pub(super) head: u32,
    pub(super) record: usize,
    pub(super) suffix: usize,
    pub(super) value: usize,
    pub(super) deleted: bool,
}

impl RecordSlot {
    #[inline]
    fn from_word(word: u64) -> Self {
        Self {
            head: (word >> 32) as u32,
            record: (word >> 21 & 0x7ff) as usize,
            suffix: (word >> 11 & 0x3ff) as usize,
            value: (word >> 1 & 0x3ff) as usize,
            deleted: word & 1 != 0,
        }
    }

    #[inline]
    pub(super) fn at<const WORDS: usize>(
        page: BytesPage<'_, WORDS>,
        first: usize,
        slot: usize,
    ) -> Self {
        Self::from_word(Bytes::<WORDS>::word(page, first + slot))
    }

    pub(super) fn to_word(self) -> u64 {
        let Self { head, record, suffix, value, deleted } = self;
        let lengths = (suffix as u64) << 11 | (value as u64) << 1;
        u64::from(head) << 32 | (record as u64) << 21 | lengths | u64::from(deleted)
    }

    /// Number of heap words that its record takes.
    pub(super) fn words(self) -> usize {
        record_words(self.value, self.suffix)
    }

    /// Offset of the part of the suffix that is not in the slot, in bytes.
    #[inline]
    fn rest_byte(self) -> usize {
        self.record * 8 + self.value
    }

    /// Compares the suffix with another one that has the same head.
    #[inline]
    fn compare_rest<const WORDS: usize>(
        self,
        page: BytesPage<'_, WORDS>,
        other: &[u8],
    ) -> Ordering {
        if self.suffix <= HEAD_BYTES || other.len() <= HEAD_BYTES {
            // The padding is zero, so with equal heads, one of these short suffixes is a prefix of
            // the other.
            return self.suffix.cmp(&other.len());
        }
        let rest = &other[HEAD_BYTES..];
        Bytes::<WORDS>::compare(page, self.rest_byte(), self.suffix - HEAD_BYTES, rest)
    }

    /// Appends the suffix.
    pub(super) fn copy_suffix<const WORDS: usize>(
        self,
        page: BytesPage<'_, WORDS>,
        to: &mut Vec<u8>,
    ) {
        let head = self.head.to_be_bytes();
        to.extend_from_slice(&head[..self.suffix.min(HEAD_BYTES)]);
        if self.suffix > HEAD_BYTES {
            let length = (self.suffix - HEAD_BYTES).min(Bytes::<WORDS>::max_key());
            Bytes::<WORDS>::copy_bytes(page, self.rest_byte(), length, to);
        }
    }

    /// Appends the value.
    pub(super) fn copy_value<const WORDS: usize>(
        self,
        page: BytesPage<'_, WORDS>,
        to: &mut Vec<u8>,
    ) {
        let length = self.value.min(Bytes::<WORDS>::most_words() * 8);
        Bytes::<WORDS>::copy_bytes(page, self.record * 8, length, to);
    }
}

/// Where a key lies relative to the keys that begin with a page's prefix.
enum PrefixRelation<'k> {
    Below,
    Above,
    /// It begins with the prefix, and this is the rest.
    Within(&'k [u8]),
}

impl<const WORDS: usize> Bytes<WORDS> {
    fn relative<'k>(
        page: BytesPage<'_, WORDS>,
        front: FrontWord,
        key: &'k [u8],
    ) -> PrefixRelation<'k> {
        let shared = front.prefix.min(key.len());
        match Self::compare(page, FENCE_BYTE, shared, &key[..shared]) {
            Ordering::Less => PrefixRelation::Above,
            Ordering::Greater => PrefixRelation::Below,
            Ordering::Equal if key.len() < front.prefix => PrefixRelation::Below,
            Ordering::Equal => PrefixRelation::Within(&key[front.prefix..]),
        }
    }

    /// The number of slots that satisfy `left_of`, which must hold exactly for the first ones.
    #[inline]
    fn partition(mut range: std::ops::Range<usize>, left_of: impl Fn(usize) -> bool) -> usize {
        while range.start < range.end {
            let middle = range.start + range.len() / 2;
            match left_of(middle) {
                true => range.start = middle + 1,
                false => range.end = middle,
            }
        }
        range.start
    }

    /// The slot with this suffix, or the position where it would be inserted.
    #[inline]
    fn find_suffix(
        page: BytesPage<'_, WORDS>,
        first: usize,
        suffix: &[u8],
    ) -> Result<usize, usize> {
        let (count, head) = (page.count(), head_of(suffix));
        let slot = |number| RecordSlot::at(page, first, number);
        // Equal heads form a run; only within it are records read.
        let begin = Self::partition(0..count, |number| slot(number).head < head);
        let end = Self::partition(begin..count, |number| slot(number).head <= head);
        let compare = |number| slot(number).compare_rest(page, suffix);
        let place = Self::partition(begin..end, |number| compare(number) == Ordering::Less);
        match place < end && compare(place) == Ordering::Equal {
            true => Ok(place),
            false => Err(place),
        }
    }

    /// The slot of `key`, deleted or not, or the position where it would be inserted.
    #[inline]
    pub(super) fn find(
        page: BytesPage<'_, WORDS>,
        front: FrontWord,
        key: &[u8],
    ) -> Result<usize, usize> {
        #[cfg(test)]
        SEARCHES.set(SEARCHES.get() + 1);
        match Self::relative(page, front, key) {
            PrefixRelation::Below => Err(0),
            PrefixRelation::Above => Err(page.count()),
            PrefixRelation::Within(suffix) => Self::find_suffix(page, front.first, suffix),
        }
    }

    /// The suffix of `key`; `None` if it does not begin with the page's prefix.
    pub(super) fn suffix_of<'k>(
        page: BytesPage<'_, WORDS>,
        front: FrontWord,
        key: &'k [u8],
    ) -> Option<&'k [u8]> {
        match Self::relative(page, front, key) {
            PrefixRelation::Within(suffix) => Some(suffix),
            _ => None,
        }
    }

    /// Compares the low fence with `key`.
    #[inline]
    pub(super) fn compare_low(
        page: BytesPage<'_, WORDS>,
        front: FrontWord,
        key: &[u8],
    ) -> Ordering {
        Self::compare(page, FENCE_BYTE, front.low, key)
    }

    /// Compares the high fence, which is not infinite, with `key`.
    #[inline]
    pub(super) fn compare_high(
        page: BytesPage<'_, WORDS>,
        front: FrontWord,
        key: &[u8],
    ) -> Ordering {
        match Self::relative(page, front, key) {
            PrefixRelation::Below => Ordering::Greater,
            PrefixRelation::Above => Ordering::Less,
            PrefixRelation::Within(rest) => {
                Self::compare(page, front.high_byte(), front.high_rest, rest)
            }
        }
    }

    /// Appends the first `length` bytes of the low fence.
    pub(super) fn copy_low(page: BytesPage<'_, WORDS>, length: usize, to: &mut Vec<u8>) {
        Self::copy_bytes(page, FENCE_BYTE, length, to);
    }
}
