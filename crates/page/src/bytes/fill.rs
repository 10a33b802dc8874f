//! Bulk loads. Entries are collected, and laid out once their page's high fence is known, because
//! entries do not repeat the prefix that the two fences share.
//!
//! *Invariant*: the entries without the last one fit the page if its high fence lies between the
//! last two entries. So a page never has to give back more than one entry.
//!
//! *Thread safety*: plain values. Ending a page needs exclusive access to it.

use super::content::{PageContent, PageFences, is_inner, shared};
use super::plan::shortest;
use super::slots::{Bytes, BytesPage, entry_words};
use crate::layout::{Layout, OwnedRecord};
use farleaf_fabric::GlobalAddr;

/// The entries of a page that a bulk load fills.
#[derive(Debug, Default)]
pub struct Filling {
    content: PageContent,
    low: Vec<u8>,
    /// The prefix that the low fence shares with the last key. A high fence above that key cannot
    /// share more.
    prefix: usize,
    /// Words of the entries with this prefix.
    words: usize,
}

impl Filling {
    /// Adds an entry, unless the page would then have more than `fill` words. While there are fewer
    /// than `least` entries, adds any entry.
    pub(super) fn add<const WORDS: usize>(
        &mut self,
        page: BytesPage<'_, WORDS>,
        (key, value): (&[u8], &[u8]),
        fill: usize,
        least: usize,
    ) -> bool {
        let (count, inner) = (self.content.len(), is_inner(page));
        if count == 0 {
            self.low = Bytes::low(page);
        }
        let prefix = shared(&self.low, key);
        let before = match prefix == self.prefix {
            true => self.words,
            false => self.content.entries_words(&(0..count), prefix, inner),
        };
        let suffix = if inner && count == 0 { 0 } else { key.len() - prefix };
        let words = before + entry_words(value.len(), suffix);
        if count >= least && self.low_words() + words > fill.min(Bytes::<WORDS>::full()) {
            return false;
        }
        self.content.splice(count, 0, key, value);
        (self.prefix, self.words) = (prefix, words);
        true
    }

    pub(super) fn is_filled<const WORDS: usize>(&self, fill: usize) -> bool {
        self.low_words() + self.words >= fill.min(Bytes::<WORDS>::full())
    }

    fn low_words(&self) -> usize {
        self.low.len().div_ceil(8)
    }

    /// The shortest separator between the last entry and `next`.
    pub(super) fn separator(&self, next: &[u8]) -> Vec<u8> {
        match self.content.len() {
            0 => next.to_vec(),
            count => shortest(self.content.key(count - 1), next).to_vec(),
        }
    }

    /// Ends a leaf, as described for [`Layout::fill_leaf_end`].
    pub(super) fn end_leaf<const WORDS: usize>(
        self,
        page: BytesPage<'_, WORDS>,
        high: Option<&[u8]>,
    ) -> Option<(Vec<u8>, OwnedRecord<Bytes<WORDS>>)> {
        let last = self.end(page, high, |below, last| shortest(below, last).to_vec())?;
        let record = (self.content.key(last.0).to_vec(), self.content.value(last.0).to_vec());
        Some((last.1, record))
    }

    /// Ends an inner page, as described for [`Layout::fill_inner_end`].
    pub(super) fn end_inner<const WORDS: usize>(
        self,
        page: BytesPage<'_, WORDS>,
        high: Option<&[u8]>,
    ) -> Option<(Vec<u8>, GlobalAddr)> {
        let (number, low) = self.end(page, high, |_, last| last.to_vec())?;
        Some((low, Bytes::<WORDS>::address_of_value(self.content.value(number))))
    }

    /// Lays the entries out. If they do not fit, lays out all but the last one, and returns its
    /// number and the high fence before it.
    fn end<const WORDS: usize>(
        &self,
        page: BytesPage<'_, WORDS>,
        high: Option<&[u8]>,
        between: impl Fn(&[u8], &[u8]) -> Vec<u8>,
    ) -> Option<(usize, Vec<u8>)> {
        let low = Bytes::low(page);
        let count = self.content.len();
        if self.content.lay_out(0..count, PageFences { low: &low, high }, page) {
            return None;
        }
        let last = count.saturating_sub(1);
        let high = between(self.content.key(last.saturating_sub(1)), self.content.key(last));
        let fences = PageFences { low: &low, high: Some(&high) };
        let there = self.content.lay_out(0..last, fences, page);
        assert!(there, "the invariant of this file");
        Some((last, high))
    }
}
