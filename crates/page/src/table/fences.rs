//! Groups of records, and the fences between them: the sparse half of an index.
//!
//! ```text
//! word 0  [groups:32][records:32]
//! word 1  [data words:32][words of every record, or 0:32]
//! word 2  [prefix bytes:16][bits of a length: 0, 16 or 32:16][tail words:32]
//! prefix  what all fences but the first have in common, zero-padded to words
//! heads   a word for each group: [first 7 bytes of its fence:56][its length, 8 if it is longer:8]
//! starts  a word for each group: [first record:32][first word:32]
//! tails   only if a fence is longer than 7 bytes: half a word for each group, where its tail ends,
//!         zero-padded to a word; then the tails, which are the fences from byte 7 on
//! lengths of records, in words; none if all are equal, or if lookups read whole groups
//! ```
//!
//! Fences are stored without the prefix. The fence of group 0 is empty. Heads order fences that
//! differ in their first seven bytes or are shorter than eight bytes; only others compare tails.
//!
//! *Invariants*
//! - lsm.B4. All versions of a key are in one group. The fence of a group is above the last key of
//!   the previous group, and not above its own first key; it is the shortest such string.
//! - lsm.B8. Every count, position and length that is read from words is clamped before use:
//!   arbitrary words lead to `None` or to a wrong group, but never to a panic or an endless loop.
//!
//! *Thread safety*: plain values, over private copies of words.

use super::key::{KeyBuf, TableKey};
use super::packed::{self, BytePacker, half, halves, joined, take};
use std::cmp::Ordering;
use std::ops::Range;

/// Where a new group begins; always at a new key (lsm.B4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FenceGrouping {
    /// After this number of records.
    Records(u32),
    /// Before the record that would exceed this number of words.
    Words(u32),
}

const FIXED_WORDS: usize = 3;
/// Number of bytes of a fence in its head.
const HEAD_BYTES: usize = 7;
const LONGER: u64 = 8;

/// The head of a string of `bytes` bytes that begins with the big-endian `first`.
#[inline]
fn head_of(first: u64, bytes: usize) -> u64 {
    first & !0xff | (bytes as u64).min(LONGER)
}

/// Collects fences while records are written.
#[derive(Debug)]
pub(super) struct FenceWriter {
    grouping: FenceGrouping,
    keeps_lengths: bool,
    /// The fences of all groups but the first, and where each ends.
    fences: Vec<u8>,
    ends: Vec<u32>,
    starts: Vec<u64>,
    lengths: Vec<u32>,
    records: u32,
    words: u32,
}

impl FenceWriter {
    pub(super) fn new(grouping: FenceGrouping, keeps_lengths: bool) -> Self {
        Self {
            grouping,
            keeps_lengths,
            fences: Vec::new(),
            ends: Vec::new(),
            starts: Vec::new(),
            lengths: Vec::new(),
            records: 0,
            words: 0,
        }
    }

    /// Returns the position of a record of `words` words in its group. `previous` is the preceding
    /// key.
    pub(super) fn push(
        &mut self,
        previous: Option<TableKey<'_>>,
        key: TableKey<'_>,
        words: u32,
    ) -> u32 {
        let (group_record, group_word) = halves(self.starts.last().copied().unwrap_or(0));
        let is_full = match self.grouping {
            FenceGrouping::Records(records) => self.records - group_record >= records,
            FenceGrouping::Words(limit) => self.words - group_word + words > limit,
        };
        match previous {
            None => self.starts.push(0),
            Some(previous) if is_full && previous != key => {
                let bytes = previous.common_bytes(key) + 1;
                self.fences.extend_from_slice(&key.first(bytes).to_vec());
                self.ends.push(self.fences.len() as u32);
                self.starts.push(joined(self.records, self.words));
            }
            Some(_) => {}
        }
        if self.keeps_lengths {
            self.lengths.push(words);
        }
        self.records += 1;
        self.words += words;
        self.records - 1 - halves(self.starts.last().copied().unwrap_or(0)).0
    }

    /// Size of the fences and starts so far, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.fences.len() + self.starts.len() * 20
    }

    fn fence(&self, group: usize) -> &[u8] {
        let begin = if group == 1 { 0 } else { self.ends[group - 2] as usize };
        &self.fences[begin..self.ends[group - 1] as usize]
    }

    pub(super) fn finish(self, out: &mut Vec<u64>) {
        let groups = self.starts.len();
        let (first, last) = match groups {
            0 | 1 => (&[][..], &[][..]),
            _ => (self.fence(1), self.fence(groups - 1)),
        };
        let prefix = first.iter().zip(last).take_while(|(one, two)| one == two).count();
        let mut prefix_words = Vec::new();
        let mut packer = BytePacker::new(&mut prefix_words);
        packer.push_bytes(&first[..prefix]);
        packer.finish();
        let (mut heads, mut ends) = (vec![0; groups.min(1)], vec![0; groups.min(1)]);
        let mut tail_bytes = Vec::new();
        for group in 1..groups {
            let fence = &self.fence(group)[prefix..];
            let mut eight = [0; 8];
            let shown = fence.len().min(8);
            eight[..shown].copy_from_slice(&fence[..shown]);
            heads.push(head_of(u64::from_be_bytes(eight), fence.len()));
            tail_bytes.extend_from_slice(fence.get(HEAD_BYTES..).unwrap_or(&[]));
            ends.push(tail_bytes.len() as u32);
        }
        let mut tails = Vec::new();
        if !tail_bytes.is_empty() {
            push_halves(&ends, &mut tails);
            let mut packer = BytePacker::new(&mut tails);
            packer.push_bytes(&tail_bytes);
            packer.finish();
        }
        let fixed = self.lengths.first().copied().unwrap_or(0);
        let is_fixed = self.lengths.iter().all(|&length| length == fixed);
        let longest = self.lengths.iter().max().copied().unwrap_or(0);
        let bits = match (is_fixed, longest) {
            (true, _) => 0,
            (false, ..=0xffff) => 16,
            (false, _) => 32,
        };
        out.push(joined(groups as u32, self.records));
        out.push(joined(self.words, if is_fixed { fixed } else { 0 }));
        out.push((prefix as u64) << 48 | bits << 32 | tails.len() as u64);
        for section in [prefix_words, heads, self.starts, tails] {
            out.extend_from_slice(&section);
        }
        match bits {
            0 => {}
            16 => {
                let mut packer = BytePacker::new(out);
                self.lengths.iter().for_each(|&length| packer.push(length.into(), 2));
                packer.finish();
            }
            _ => push_halves(&self.lengths, out),
        }
    }
}

fn push_halves(numbers: &[u32], out: &mut Vec<u64>) {
    let mut packer = BytePacker::new(out);
    numbers.iter().for_each(|&number| packer.push(number.into(), 4));
    packer.finish();
}

#[derive(Clone, Copy, Debug)]
enum FenceLengths<'a> {
    Unknown,
    Equal(u32),
    Each16(&'a [u64]),
    Each32(&'a [u64]),
}

/// The fences in a section's words.
#[derive(Clone, Copy, Debug)]
pub struct SsTableFences<'a> {
    records: u32,
    data_words: u32,
    prefix: TableKey<'a>,
    heads: &'a [u64],
    starts: &'a [u64],
    /// The end of each group's tail, and the tails.
    tails: (&'a [u64], &'a [u64]),
    lengths: FenceLengths<'a>,
}

impl<'a> SsTableFences<'a> {
    /// Opens the fences of a section that consists of exactly these words. The cost does not depend
    /// on the size.
    pub fn open(words: &'a [u64]) -> Option<Self> {
        let mut rest = words;
        let fixed = take(&mut rest, FIXED_WORDS)?;
        let (groups, records) = halves(fixed[0]);
        let (data_words, each) = halves(fixed[1]);
        let groups = groups as usize;
        if (groups == 0) != (records == 0) || groups > records as usize {
            return None;
        }
        let prefix_bytes = (fixed[2] >> 48) as usize;
        let prefix = TableKey::new(take(&mut rest, prefix_bytes.div_ceil(8))?, prefix_bytes)?;
        let heads = take(&mut rest, groups)?;
        let starts = take(&mut rest, groups)?;
        let tails = match fixed[2] as u32 as usize {
            0 => (&[][..], &[][..]),
            count => take(&mut rest, count)?.split_at_checked(groups.div_ceil(2))?,
        };
        let lengths = match ((fixed[2] >> 32) as u16, each) {
            (0, 0) => FenceLengths::Unknown,
            (0, each) => FenceLengths::Equal(each),
            (16, 0) => FenceLengths::Each16(take(&mut rest, (records as usize).div_ceil(4))?),
            (32, 0) => FenceLengths::Each32(take(&mut rest, (records as usize).div_ceil(2))?),
            _ => return None,
        };
        rest.is_empty().then_some(Self {
            records,
            data_words,
            prefix,
            heads,
            starts,
            tails,
            lengths,
        })
    }

    /// The number of groups.
    pub fn groups(self) -> usize {
        self.heads.len()
    }

    /// The number of records.
    pub fn records(self) -> u32 {
        self.records
    }

    /// The only group that may have `key`. For keys below the table's first key, this is the first
    /// group.
    pub fn group_of(self, key: TableKey<'_>) -> usize {
        let prefix_bytes = self.prefix.bytes();
        match key.first(prefix_bytes).cmp(&self.prefix) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.heads.len().saturating_sub(1),
            Ordering::Equal => {}
        }
        let rest = key.bytes() - prefix_bytes;
        let head = head_of(key.eight_from(prefix_bytes), rest);
        let (mut low, mut high) = (1, self.heads.len());
        while low < high {
            let middle = low.midpoint(high);
            let order = self.heads[middle]
                .cmp(&head)
                .then_with(|| self.order_of_tail(middle, key, prefix_bytes + HEAD_BYTES, head));
            if order.is_gt() { high = middle } else { low = middle + 1 }
        }
        low - 1
    }

    /// Compares the tail of a group's fence with `key`, starting at byte `at`, if the heads are
    /// equal.
    #[cold]
    fn order_of_tail(self, group: usize, key: TableKey<'_>, at: usize, head: u64) -> Ordering {
        if head & 0xff != LONGER {
            return Ordering::Equal;
        }
        let begin = half(self.tails.0, group.saturating_sub(1)) as usize;
        let end = half(self.tails.0, group) as usize;
        let (tail, rest) = (end.saturating_sub(begin), key.bytes().saturating_sub(at));
        for done in (0..tail.min(rest)).step_by(8) {
            let eight = packed::load(self.tails.1, begin + done);
            let eight = packed::lowest(eight, tail - done).swap_bytes();
            let order = eight.cmp(&key.eight_from(at + done));
            if order.is_ne() {
                return order;
            }
        }
        tail.cmp(&rest)
    }

    /// The first record of `group`, and its first word.
    fn start(self, group: usize) -> (u32, u32) {
        match self.starts.get(group) {
            Some(&start) => halves(start),
            None => (self.records, self.data_words),
        }
    }

    /// The words of `group`.
    pub fn group_words(self, group: usize) -> Option<Range<u32>> {
        let (begin, end) = (self.start(group).1, self.start(group + 1).1);
        (group < self.groups() && begin < end && end <= self.data_words).then_some(begin..end)
    }

    /// The words of the record at `place` in `group`. `None` if there is no such record, or if
    /// lengths are not stored.
    pub fn record_words(self, group: usize, place: u8) -> Option<Range<u32>> {
        let words = self.group_words(group)?;
        let (first, end) = (self.start(group).0, self.start(group + 1).0);
        let record = first.checked_add(place.into())?;
        if record >= end || end > self.records {
            return None;
        }
        let length = |record: u32| match self.lengths {
            FenceLengths::Unknown => 0,
            FenceLengths::Equal(each) => each,
            FenceLengths::Each16(words) => packed::load(words, record as usize * 2) as u16 as u32,
            FenceLengths::Each32(words) => half(words, record as usize),
        };
        let before: u64 = match self.lengths {
            FenceLengths::Equal(each) => u64::from(each) * u64::from(place),
            _ => (first..record).map(|record| u64::from(length(record))).sum(),
        };
        let begin = u64::from(words.start) + before;
        let end = begin + u64::from(length(record));
        let lies_inside = begin < end && end <= u64::from(words.end);
        lies_inside.then_some(begin as u32..end as u32)
    }

    /// The fence of `group`.
    pub fn fence(self, group: usize) -> KeyBuf {
        let head = self.heads.get(group).copied().unwrap_or(0);
        let mut bytes = if group == 0 { Vec::new() } else { self.prefix.to_vec() };
        let shown = ((head & 0xff) as usize).min(HEAD_BYTES);
        bytes.extend_from_slice(&head.to_be_bytes()[..shown]);
        if head & 0xff == LONGER {
            let begin = half(self.tails.0, group.saturating_sub(1)) as usize;
            let tail = (half(self.tails.0, group) as usize).saturating_sub(begin);
            packed::copy_out(self.tails.1, begin, tail.min(self.tails.1.len() * 8), &mut bytes);
        }
        KeyBuf::from_bytes(&bytes)
    }
}
