//! A compaction job for a memory server, as words: its inputs, what to keep of them, and where the
//! outputs go.
//!
//! ```text
//! word 0   [words of an extent:32][level:8][index:8][bits:8][0:8]     1 [block bytes:32][0:32]
//! word 2   words after which an output ends                           3 the first output's id
//! word 4   [outputs:32][extents:32]                                   5 [sources:32][snapshots:32]
//! word 6   [ranges below:32][bounds of the range:32]
//! then     where each extent lies, and the snapshots
//!          for each range below its smallest and its largest key, each its bytes and its words
//!          the lower bound of the range (bit 0) and the upper one (bit 1), if it has them
//!          for each source [tables:32][0:32], and for each of its tables
//!              its id, [words of records:32][pieces:32], [first word to merge:32][the end:32]
//!              of each piece where it lies, and its words
//! ```
//!
//! Places are offsets in the memory server's region.
//!
//! *Thread safety*: plain values.

use super::builder::IndexKind;
use super::filter::MAX_BLOOM_BITS;
use super::key::KeyBuf;
use super::meta::{SsTableClip, push_key, take_key};
use super::packed::{halves, joined, take};
use std::ops::Range;

/// Maximum number of sources of a job.
const MAX_SOURCES: u32 = 1_024;

/// A table that a job merges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSsTable {
    /// Its id.
    pub id: u64,
    /// Number of words of its records.
    pub data_words: u32,
    /// The words that may have keys of the job's range: whole groups of records.
    pub words: Range<u32>,
    /// Where all of its words and its index lie: offsets, and the number of words at each.
    pub pieces: Vec<(u64, u64)>,
}

/// A compaction job for a memory server. All keys of its tables that are in the range take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionOrder {
    /// The sources: each is a run of tables with ascending keys.
    pub sources: Vec<Vec<JobSsTable>>,
    /// The keys that are merged.
    pub range: SsTableClip,
    /// The bounds of the snapshots in use.
    pub snapshots: Vec<u64>,
    /// The smallest and largest keys of the tables in deeper levels.
    pub below: Vec<(KeyBuf, KeyBuf)>,
    /// Outputs end at the first key beyond this number of words.
    pub table_words: u32,
    /// The index of each output.
    pub index: IndexKind,
    /// The level of the outputs.
    pub level: u8,
    /// The id of the first output; the others follow.
    pub first_output: u64,
    /// Number of outputs at most.
    pub outputs: u32,
    /// Words of an extent.
    pub extent_words: u32,
    /// Where the extents for the outputs lie. Each output begins with the next one.
    pub extents: Vec<u64>,
}

impl CompactionOrder {
    /// Its words.
    pub fn encode(&self) -> Vec<u64> {
        let (index, bits, block) = match self.index {
            IndexKind::Compact => (0, 0, 0),
            IndexKind::Full { bloom_bits } => (1, bloom_bits, 0),
            IndexKind::Blocks { block_bytes, bloom_bits } => (2, bloom_bits, block_bytes),
        };
        let kinds = u32::from(self.level) << 24 | index << 16 | u32::from(bits) << 8;
        let count = |length: usize| length as u32;
        let SsTableClip { lower, upper } = &self.range;
        let bounds = u32::from(lower.is_some()) | u32::from(upper.is_some()) << 1;
        let mut out = vec![
            joined(self.extent_words, kinds),
            joined(block, 0),
            u64::from(self.table_words),
            self.first_output,
            joined(self.outputs, count(self.extents.len())),
            joined(count(self.sources.len()), count(self.snapshots.len())),
            joined(count(self.below.len()), bounds),
        ];
        out.extend_from_slice(&self.extents);
        out.extend_from_slice(&self.snapshots);
        for (smallest, largest) in &self.below {
            push_key(smallest, &mut out);
            push_key(largest, &mut out);
        }
        lower.iter().chain(upper).for_each(|bound| push_key(bound, &mut out));
        for tables in &self.sources {
            out.push(joined(count(tables.len()), 0));
            for table in tables {
                out.push(table.id);
                out.push(joined(table.data_words, count(table.pieces.len())));
                out.push(joined(table.words.start, table.words.end));
                out.extend(table.pieces.iter().flat_map(|&(at, words)| [at, words]));
            }
        }
        out
    }

    /// The job in exactly these words.
    pub fn decode(mut words: &[u64]) -> Option<Self> {
        let from = &mut words;
        let head = take(from, 7)?;
        let (extent_words, kinds) = halves(head[0]);
        let (level, index, bits) = ((kinds >> 24) as u8, (kinds >> 16) as u8, (kinds >> 8) as u8);
        let (block_bytes, zero) = halves(head[1]);
        let bits_fit = |least| (least..=MAX_BLOOM_BITS).contains(&bits);
        let index = match index {
            0 if bits == 0 && block_bytes == 0 => IndexKind::Compact,
            1 if bits_fit(1) && block_bytes == 0 => IndexKind::Full { bloom_bits: bits },
            2 if bits_fit(1) => IndexKind::Blocks { block_bytes, bloom_bits: bits },
            _ => return None,
        };
        let (outputs, extents) = halves(head[4]);
        let (sources, snapshots) = halves(head[5]);
        let (below, bounds) = halves(head[6]);
        if kinds as u8 != 0 || zero != 0 || bounds > 3 || sources > MAX_SOURCES {
            return None;
        }
        let extents = take(from, extents as usize)?.to_vec();
        let snapshots = take(from, snapshots as usize)?.to_vec();
        let range = |from: &mut &[u64]| Some((take_key(from)?, take_key(from)?));
        let below = (0..below).map(|_| range(from)).collect::<Option<_>>()?;
        let mut bound = |bit: u32| match bounds & bit {
            0 => Some(None),
            _ => take_key(from).map(Some),
        };
        let range = SsTableClip { lower: bound(1)?, upper: bound(2)? };
        let sources = (0..sources).map(|_| take_source(from)).collect::<Option<_>>()?;
        let table_words = u32::try_from(head[2]).ok()?;
        // The outputs' ids, and the one behind them.
        let has_ids = head[3].checked_add(u64::from(outputs) + 1).is_some();
        let is_sensible = from.is_empty() && extent_words > 0 && outputs > 0 && has_ids;
        is_sensible.then_some(Self {
            sources,
            range,
            snapshots,
            below,
            table_words,
            index,
            level,
            first_output: head[3],
            outputs,
            extent_words,
            extents,
        })
    }
}

fn take_source(from: &mut &[u64]) -> Option<Vec<JobSsTable>> {
    let (tables, zero) = halves(take(from, 1)?[0]);
    let table = |from: &mut &[u64]| {
        let head = take(from, 3)?;
        let (data_words, pieces) = halves(head[1]);
        let (first, end) = halves(head[2]);
        if first > end || end > data_words {
            return None;
        }
        let places = take(from, (pieces as usize).checked_mul(2)?)?;
        let pieces = places.chunks_exact(2).map(|piece| (piece[0], piece[1])).collect();
        Some(JobSsTable { id: head[0], data_words, words: first..end, pieces })
    };
    (zero == 0).then(|| (0..tables).map(|_| table(from)).collect())?
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn job(index: IndexKind) -> CompactionOrder {
        let key = KeyBuf::from_number;
        let pieces = vec![(4096, 20), (8192, 5)];
        let table = |id| JobSsTable { id, data_words: 9, words: 3..9, pieces: pieces.clone() };
        CompactionOrder {
            sources: vec![vec![table(1), table(2)], vec![], vec![table(7)]],
            range: SsTableClip {
                lower: Some(key(2)),
                upper: Some(KeyBuf::from_bytes(b"upper bound")),
            },
            snapshots: vec![3, 99],
            below: vec![(key(1), key(5)), (KeyBuf::from_bytes(b""), KeyBuf::from_bytes(b"abc"))],
            table_words: 1000,
            index,
            level: 3,
            first_output: 1 << 40,
            outputs: 4,
            extent_words: 128,
            extents: vec![1024, 5120],
        }
    }

    #[test]
    fn a_job_is_what_its_words_say() {
        for index in [
            IndexKind::Compact,
            IndexKind::Full { bloom_bits: 10 },
            IndexKind::Blocks { block_bytes: 512, bloom_bits: 20 },
        ] {
            let (job, words) = (job(index), job(index).encode());
            assert_eq!(CompactionOrder::decode(&words), Some(job.clone()));
            for length in 0..words.len() {
                assert_eq!(CompactionOrder::decode(&words[..length]), None, "{length} words");
            }
            assert_eq!(CompactionOrder::decode(&[&words[..], &[0]].concat()), None);
            for range in [SsTableClip::default(), SsTableClip { lower: None, ..job.range.clone() }]
            {
                let other = CompactionOrder { range, ..job.clone() };
                assert_eq!(CompactionOrder::decode(&other.encode()), Some(other));
            }
        }
    }

    /// Ids of tables are u64. A job whose outputs had ids beyond that once made a memory server
    /// panic when it counted them, and the job was never closed.
    #[test]
    fn ids_that_are_no_numbers_are_refused() {
        let with_first = |first_output| CompactionOrder { first_output, ..job(IndexKind::Compact) };
        assert_eq!(CompactionOrder::decode(&with_first(u64::MAX - 4).encode()), None);
        let last = with_first(u64::MAX - 5);
        assert_eq!(CompactionOrder::decode(&last.encode()), Some(last));
    }

    /// Counts that no message holds end the decoding, and allocate nothing for them.
    #[test]
    fn senseless_counts_are_refused() {
        let words = job(IndexKind::Compact).encode();
        for at in 0..words.len() {
            for bits in [1 << 63, 0xffff_ffff, 0xffff_ffff << 32] {
                let mut damaged = words.clone();
                damaged[at] ^= bits;
                if let Some(job) = CompactionOrder::decode(&damaged) {
                    assert_eq!(job.encode(), damaged, "word {at}");
                }
            }
        }
    }
}
