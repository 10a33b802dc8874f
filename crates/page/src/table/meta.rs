//! A version's description of a table: enough to plan READs and merges, and to open the table.
//!
//! ```text
//! word 0       "FarMeta\1"
//! word 1       [all words:32][level:8][bits: 1 lower clip, 2 upper clip:8][0:16]
//! word 2       footer, 16 words
//! word 18      [extent runs:32][0:32], then a word each: [first extent:32][extents:32]
//! then         keys: smallest, largest, and the clip's bounds, each [bytes] and the key's words
//! last word    sum of the words before
//! ```
//!
//! A table is stored in extents of one size, in runs of adjacent extents. Word `o` of the table is
//! in extent `o / extent words`; a record may cross from one extent to the next. A clip restricts a
//! table to a range of keys without rewriting it; dLSM sets none, as a tree has one for all tables.
//!
//! *Thread safety*: plain values.

use super::damaged::{DamagedSsTable, SsTablePart};
use super::footer::{FOOTER_WORDS, SsTableFooter};
use super::key::{KeyBuf, MAX_KEY_BYTES, TableKey};
use super::packed::{halves, joined, sum_of, take};
use std::ops::Range;

const MAGIC: u64 = u64::from_le_bytes(*b"FarMeta\x01");
const FIXED_WORDS: usize = 2 + FOOTER_WORDS + 1;

/// Maximum number of runs of extents in a table.
pub const MAX_RUNS: usize = 4096;

/// Adjacent extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRun {
    /// The first extent's number.
    pub first: u32,
    /// Their number.
    pub count: u32,
}

/// The keys that a shard's version uses from a table: those from `lower` on and below `upper`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SsTableClip {
    /// The lowest key, inclusive; `None` if unbounded.
    pub lower: Option<KeyBuf>,
    /// The end of the keys, exclusive; `None` if unbounded.
    pub upper: Option<KeyBuf>,
}

impl SsTableClip {
    /// The keys that are in both.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        let lower = self.lower.iter().chain(&other.lower).max().cloned();
        let upper = self.upper.iter().chain(&other.upper).min().cloned();
        Self { lower, upper }
    }

    /// Whether it includes `key`.
    pub fn has(&self, key: TableKey<'_>) -> bool {
        self.lower.as_ref().is_none_or(|lower| lower.key() <= key)
            && self.upper.as_ref().is_none_or(|upper| key < upper.key())
    }
}

/// A version's description of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsTableMeta {
    /// The level of the tree that it is in.
    pub level: u8,
    /// The table's own description.
    pub footer: SsTableFooter,
    /// The smallest key.
    pub smallest: KeyBuf,
    /// The largest key.
    pub largest: KeyBuf,
    /// The keys of the table that count.
    pub clip: SsTableClip,
    /// Where the table is stored.
    pub extents: Vec<ExtentRun>,
}

/// Appends a key: its bytes, and its words.
pub fn push_key(key: &KeyBuf, out: &mut Vec<u64>) {
    let key = key.key();
    out.push(key.bytes() as u64);
    out.extend((0..key.words()).map(|index| key.word(index)));
}

/// The key at the beginning of `words`, which it passes.
pub fn take_key(words: &mut &[u64]) -> Option<KeyBuf> {
    let bytes = usize::try_from(take(words, 1)?[0]).ok()?;
    if bytes > MAX_KEY_BYTES {
        return None;
    }
    let words = take(words, bytes.div_ceil(8))?;
    let key = TableKey::new(words, bytes)?;
    // Equal descriptions must have equal words.
    let is_padded = words.last().is_none_or(|&last| last == key.word(words.len() - 1));
    is_padded.then(|| key.into())
}

impl SsTableMeta {
    /// Appends its words to `out`.
    pub fn encode(&self, out: &mut Vec<u64>) {
        let begin = out.len();
        let bits = u64::from(self.clip.lower.is_some()) | u64::from(self.clip.upper.is_some()) << 1;
        out.push(MAGIC);
        out.push(u64::from(self.level) << 24 | bits << 16);
        out.extend_from_slice(&self.footer.encode());
        out.push(joined(self.extents.len() as u32, 0));
        out.extend(self.extents.iter().map(|run| joined(run.first, run.count)));
        push_key(&self.smallest, out);
        push_key(&self.largest, out);
        for bound in [&self.clip.lower, &self.clip.upper].into_iter().flatten() {
            push_key(bound, out);
        }
        out[begin + 1] |= ((out.len() - begin + 1) as u64) << 32;
        out.push(sum_of(&out[begin..]));
    }

    /// Decodes a description at the beginning of `words`.
    pub fn decode(words: &mut &[u64]) -> Result<Self, DamagedSsTable> {
        // The id is in the footer. Words that are not a description have none.
        let table = words.get(4).copied().unwrap_or(0);
        let (meta, rest) =
            Self::decoded(words).ok_or(DamagedSsTable::new(table, SsTablePart::Meta))?;
        *words = rest;
        Ok(meta)
    }

    fn decoded(words: &[u64]) -> Option<(Self, &[u64])> {
        let (&[magic, head], _) = words.split_first_chunk()?;
        let (all, low) = halves(head);
        let (level, bits) = ((low >> 24) as u8, (low >> 16) as u8);
        let (words, behind) = words.split_at_checked(all as usize)?;
        let (&sum, words) = words.split_last()?;
        if magic != MAGIC || bits > 3 || low as u16 != 0 || sum != sum_of(words) {
            return None;
        }
        let mut rest = words;
        let fixed = take(&mut rest, FIXED_WORDS)?;
        let footer = SsTableFooter::decode_any(&fixed[2..2 + FOOTER_WORDS])?;
        let (runs, zero) = halves(fixed[FIXED_WORDS - 1]);
        if runs as usize > MAX_RUNS || zero != 0 {
            return None;
        }
        let runs = take(&mut rest, runs as usize)?.iter().map(|&word| {
            let (first, count) = halves(word);
            ExtentRun { first, count }
        });
        let extents = runs.collect();
        let (smallest, largest) = (take_key(&mut rest)?, take_key(&mut rest)?);
        let lower = if bits & 1 != 0 { Some(take_key(&mut rest)?) } else { None };
        let upper = if bits & 2 != 0 { Some(take_key(&mut rest)?) } else { None };
        let makes_sense = rest.is_empty() && smallest <= largest;
        let clip = SsTableClip { lower, upper };
        makes_sense.then_some((Self { level, footer, smallest, largest, clip, extents }, behind))
    }

    /// Whether the table may have `key`, by its bounds and its clip.
    pub fn covers(&self, key: TableKey<'_>) -> bool {
        self.smallest.key() <= key && key <= self.largest.key() && self.clip.has(key)
    }

    /// The extents that hold `words` of the table, in order, each with its words. Ends early if the
    /// table has fewer extents.
    pub fn pieces(
        &self,
        words: Range<u32>,
        extent_words: u32,
    ) -> impl Iterator<Item = (u32, Range<u32>)> {
        let mut next = words.start;
        std::iter::from_fn(move || {
            if next >= words.end || extent_words == 0 {
                return None;
            }
            let (extent, begin) = (self.extent(next / extent_words)?, next % extent_words);
            let end = extent_words.min(begin.saturating_add(words.end - next));
            next += end - begin;
            Some((extent, begin..end))
        })
    }

    /// The number of the table's extent at `index`.
    fn extent(&self, mut index: u32) -> Option<u32> {
        for run in &self.extents {
            if index < run.count {
                return run.first.checked_add(index);
            }
            index -= run.count;
        }
        None
    }
}
