//! Tables with the places of their extents, and changes of a version, as words: what a shard's
//! directory keeps on its memory server.
//!
//! ```text
//! placed table   the words of its description, without extents
//!                [pieces:32][0:32], then of each piece where it lies, and its bytes
//! change         [removed:32][added:32], the ids of the removed tables, the added placed tables
//! ```
//!
//! A piece is adjacent extents. Pieces are in the order of the table's words.
//!
//! *Thread safety*: plain values.

use super::damaged::{DamagedSsTable, SsTablePart};
use super::meta::{MAX_RUNS, SsTableMeta};
use super::packed::{halves, joined, take};

/// Maximum number of tables that a change removes, and that it adds.
const MAX_CHANGED: u32 = 1 << 16;

/// A table, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedSsTable {
    /// Its description, without extents.
    pub meta: SsTableMeta,
    /// Addresses as words, and bytes at each.
    pub pieces: Vec<(u64, u64)>,
}

impl PlacedSsTable {
    /// Appends its words to `out`.
    pub fn encode(&self, out: &mut Vec<u64>) {
        SsTableMeta { extents: Vec::new(), ..self.meta.clone() }.encode(out);
        out.push(joined(self.pieces.len() as u32, 0));
        out.extend(self.pieces.iter().flat_map(|&(at, bytes)| [at, bytes]));
    }

    /// Decodes a placed table at the beginning of `words`.
    pub fn decode(words: &mut &[u64]) -> Result<Self, DamagedSsTable> {
        let mut rest = *words;
        let meta = SsTableMeta::decode(&mut rest)?;
        let damaged = DamagedSsTable::new(meta.footer.table, SsTablePart::Meta);
        let mut pieces = || {
            let (pieces, zero) = halves(take(&mut rest, 1)?[0]);
            let makes_sense = pieces as usize <= MAX_RUNS && zero == 0 && meta.extents.is_empty();
            let words = makes_sense.then(|| take(&mut rest, pieces as usize * 2))??;
            Some(words.chunks_exact(2).map(|piece| (piece[0], piece[1])).collect())
        };
        let pieces = pieces().ok_or(damaged)?;
        *words = rest;
        Ok(Self { meta, pieces })
    }
}

/// A change of a version's tables. One that is removed and added changes its level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionChange {
    /// Ids of tables.
    pub removed: Vec<u64>,
    /// Tables.
    pub added: Vec<PlacedSsTable>,
}

impl VersionChange {
    /// Its words.
    pub fn encode(&self) -> Vec<u64> {
        let mut out = vec![joined(self.removed.len() as u32, self.added.len() as u32)];
        out.extend_from_slice(&self.removed);
        self.added.iter().for_each(|table| table.encode(&mut out));
        out
    }

    /// The change in exactly these words.
    pub fn decode(mut words: &[u64]) -> Option<Self> {
        let (removed, added) = halves(take(&mut words, 1)?[0]);
        if removed > MAX_CHANGED || added > MAX_CHANGED {
            return None;
        }
        let removed = take(&mut words, removed as usize)?.to_vec();
        // Not with room for `added`: the words may have fewer.
        let mut tables = Vec::new();
        for _ in 0..added {
            tables.push(PlacedSsTable::decode(&mut words).ok()?);
        }
        words.is_empty().then_some(Self { removed, added: tables })
    }
}
