//! A page's entries in private memory, and how they are laid out in a page.
//!
//! *Thread safety*: plain values. Laying entries out needs exclusive access to the page.

use super::slots::{
    Bytes, BytesPage, FrontWord, HEAD_BYTES, HeapWord, RecordSlot, entry_words, fence_words,
    head_of, record_words,
};
use crate::view::HEADER_WORDS;
use std::ops::Range;

/// An entry's position in [`PageContent::bytes`].
#[derive(Clone, Debug)]
struct EntryItem {
    key: Range<usize>,
    value: Range<usize>,
    deleted: bool,
}

/// Entries in ascending order.
#[derive(Clone, Debug, Default)]
pub(super) struct PageContent {
    bytes: Vec<u8>,
    items: Vec<EntryItem>,
}

/// The fences of a page to be laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageFences<'k> {
    pub(super) low: &'k [u8],
    pub(super) high: Option<&'k [u8]>,
}

impl PageFences<'_> {
    /// The length of the prefix (bytes.Y2).
    pub(super) fn prefix(self) -> usize {
        match self.high {
            Some(high) if high > self.low => shared(self.low, high),
            _ => 0,
        }
    }

    /// Words of the header and the fences.
    pub(super) fn words(self) -> usize {
        let high_rest = self.high.map_or(0, |high| high.len() - self.prefix());
        HEADER_WORDS + fence_words(self.low.len(), high_rest)
    }
}

/// The length of the common prefix of two strings, in bytes.
pub(super) fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

impl PageContent {
    /// Copies a page's entries, including deleted ones.
    pub(super) fn of<const WORDS: usize>(page: BytesPage<'_, WORDS>) -> Self {
        let mut content = Self::default();
        content.append(page);
        content
    }

    /// Appends a copy of a page's entries.
    pub(super) fn append<const WORDS: usize>(&mut self, page: BytesPage<'_, WORDS>) {
        let (front, count) = (FrontWord::of(page), page.count());
        for number in 0..count {
            let slot = RecordSlot::at(page, front.first, number);
            let begin = self.bytes.len();
            if number == 0 && is_inner(page) {
                Bytes::<WORDS>::copy_low(page, front.low, &mut self.bytes);
            } else {
                Bytes::<WORDS>::copy_low(page, front.prefix, &mut self.bytes);
                slot.copy_suffix(page, &mut self.bytes);
            }
            let middle = self.bytes.len();
            slot.copy_value(page, &mut self.bytes);
            let end = self.bytes.len();
            self.items.push(EntryItem {
                key: begin..middle,
                value: middle..end,
                deleted: slot.deleted,
            });
        }
    }

    /// Inserts an entry at a position, in place of `replaced` entries there.
    pub(super) fn splice(&mut self, at: usize, replaced: usize, key: &[u8], value: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let item =
            EntryItem { key: begin..middle, value: middle..self.bytes.len(), deleted: false };
        self.items.splice(at..at + replaced, [item]);
    }

    /// The position of `key`, or the position where it would be inserted.
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.items.binary_search_by(|item| self.bytes[item.key.clone()].cmp(key))
    }

    /// The entries of a range.
    pub(super) fn part(mut self, range: Range<usize>) -> Self {
        self.items = self.items[range].to_vec();
        self
    }

    pub(super) fn drop_deleted(&mut self) {
        self.items.retain(|item| !item.deleted);
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn key(&self, number: usize) -> &[u8] {
        &self.bytes[self.items[number].key.clone()]
    }

    pub(super) fn value(&self, number: usize) -> &[u8] {
        &self.bytes[self.items[number].value.clone()]
    }

    /// The length of an entry's suffix in bytes. Slot 0 of an inner page has none.
    fn suffix_length(
        &self,
        number: usize,
        range: &Range<usize>,
        prefix: usize,
        inner: bool,
    ) -> usize {
        match inner && number == range.start {
            true => 0,
            false => self.items[number].key.len().saturating_sub(prefix),
        }
    }

    /// Number of words that the entries of `range` take in a page with these fences.
    pub(super) fn words(&self, range: &Range<usize>, fences: PageFences<'_>, inner: bool) -> usize {
        fences.words() + self.entries_words(range, fences.prefix(), inner)
    }

    /// Words that the entries of `range` take with a prefix of this length.
    pub(super) fn entries_words(&self, range: &Range<usize>, prefix: usize, inner: bool) -> usize {
        let entry = |number: usize| {
            let suffix = self.suffix_length(number, range, prefix, inner);
            entry_words(self.items[number].value.len(), suffix)
        };
        range.clone().map(entry).sum()
    }

    /// Words that one entry takes with a prefix of this length.
    pub(super) fn entry_words(&self, number: usize, prefix: usize) -> usize {
        let EntryItem { key, value, .. } = &self.items[number];
        entry_words(value.len(), key.len().saturating_sub(prefix))
    }

    /// Writes the entries of `range` and the fences to a page whose other header fields are already
    /// set. Returns `false`, with the page unchanged, if they do not fit.
    #[must_use]
    pub(super) fn lay_out<const WORDS: usize>(
        &self,
        range: Range<usize>,
        fences: PageFences<'_>,
        page: BytesPage<'_, WORDS>,
    ) -> bool {
        let inner = is_inner(page);
        if self.words(&range, fences, inner) > page.words().len() {
            return false;
        }
        let prefix = fences.prefix();
        let rest = fences.high.map_or(&[][..], |high| &high[prefix..]);
        let (low_words, rest_words) = (fences.low.len().div_ceil(8), rest.len().div_ceil(8));
        store_bytes(page, HEADER_WORDS, fences.low, &[]);
        store_bytes(page, HEADER_WORDS + low_words, rest, &[]);
        let first = HEADER_WORDS + low_words + rest_words;
        FrontWord { low: fences.low.len(), high_rest: rest.len(), prefix, first }.store(page);
        page.set_high_infinite(fences.high.is_none());
        let (mut top, mut deleted) = (page.words().len(), 0);
        for (place, number) in range.clone().enumerate() {
            let length = self.suffix_length(number, &range, prefix, inner);
            let key = self.key(number);
            let (suffix, value) = (&key[key.len() - length..], self.value(number));
            top -= record_words(value.len(), length);
            store_record(page, top, value, suffix);
            let flag = self.items[number].deleted;
            deleted += usize::from(flag);
            let slot = RecordSlot {
                head: head_of(suffix),
                record: top,
                suffix: length,
                value: value.len(),
                deleted: flag,
            };
            page.store(first + place, slot.to_word());
        }
        page.set_count(range.len());
        HeapWord { top, garbage: 0, deleted }.store(page);
        true
    }
}

/// Whether the entries of a page are children. Those of heads are, too.
pub(super) fn is_inner<const WORDS: usize>(page: BytesPage<'_, WORDS>) -> bool {
    page.level() > 0 || page.is_head()
}

/// Stores two strings one after the other, zero-padded to a word (bytes.Y3).
fn store_bytes<const WORDS: usize>(
    page: BytesPage<'_, WORDS>,
    at: usize,
    one: &[u8],
    other: &[u8],
) {
    let (mut word, mut filled, mut index) = (0_u64, 0, at);
    for byte in one.iter().chain(other) {
        word |= u64::from(*byte) << (8 * filled);
        filled += 1;
        if filled == 8 {
            page.store(index, word);
            (word, filled, index) = (0, 0, index + 1);
        }
    }
    if filled > 0 {
        page.store(index, word);
    }
}

/// Stores a record: the value, and the part of the suffix that is not in the slot.
pub(super) fn store_record<const WORDS: usize>(
    page: BytesPage<'_, WORDS>,
    at: usize,
    value: &[u8],
    suffix: &[u8],
) {
    store_bytes(page, at, value, suffix.get(HEAD_BYTES..).unwrap_or_default());
}
