//! The last 16 words of a table.
//!
//! ```text
//! word 0   "FarLSM\0\1"          word 1   [format:8][search:8][membership:8][0:8][unit:32]
//! word 2   table                 word 3   shard
//! word 4   records               word 5   keys            word 6   tombstones
//! word 7   data words            word 8   [start of the membership section:32][of the footer:32]
//! word 9   sum of the search section                      word 10  of the membership section
//! word 11  lowest sequence       word 12  highest sequence
//! word 13  0                     word 14  0               word 15  sum of words 0 to 14
//! ```
//!
//! The search section begins after the data. The unit is a group's records, or a block's words.
//!
//! *Thread safety*: plain values.

use super::damaged::{DamagedSsTable, SsTablePart};
use super::packed::{halves, joined, sum_of};

/// Words of a footer.
pub const FOOTER_WORDS: usize = 16;

/// Maximum size of a table with its sections: 2 GiB.
pub const MAX_TABLE_WORDS: u32 = 1 << 28;

const MAGIC: u64 = u64::from_le_bytes(*b"FarLSM\0\x01");
const FORMAT: u64 = 1;

/// How to find a table's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchMethod {
    Fences,
    Full,
}

/// How a table tells which keys it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    Locate,
    Bloom,
}

/// A table's description of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsTableFooter {
    pub(super) search: SearchMethod,
    pub(super) membership: Membership,
    pub(super) unit: u32,
    /// The table's id.
    pub table: u64,
    /// The shard that the table belongs to.
    pub shard: u64,
    /// Number of records.
    pub records: u64,
    /// Number of keys. A key may have several records.
    pub keys: u64,
    /// Number of records that are tombstones.
    pub tombstones: u64,
    /// Number of words of the records, which is also the first word of the search section.
    pub data_words: u32,
    pub(super) membership_start: u32,
    /// The first word of the footer.
    pub footer_start: u32,
    pub(super) sums: [u64; 2],
    /// The lowest sequence number of a record.
    pub lowest: u64,
    /// The highest sequence number of a record.
    pub highest: u64,
}

impl SsTableFooter {
    /// Number of words of the whole table.
    pub fn table_words(&self) -> u32 {
        self.footer_start + FOOTER_WORDS as u32
    }

    /// Encodes the footer as words.
    pub fn encode(&self) -> [u64; FOOTER_WORDS] {
        let search = match self.search {
            SearchMethod::Fences => 1,
            SearchMethod::Full => 2,
        };
        let membership = match self.membership {
            Membership::Locate => 1,
            Membership::Bloom => 2,
        };
        let kinds = FORMAT << 56 | search << 48 | membership << 40 | u64::from(self.unit);
        let mut words = [
            MAGIC,
            kinds,
            self.table,
            self.shard,
            self.records,
            self.keys,
            self.tombstones,
            self.data_words.into(),
            joined(self.membership_start, self.footer_start),
            self.sums[0],
            self.sums[1],
            self.lowest,
            self.highest,
            0,
            0,
            0,
        ];
        words[15] = sum_of(&words[..15]);
        words
    }

    /// Decodes the footer of `table` in exactly these words.
    pub fn decode(words: &[u64], table: u64) -> Result<Self, DamagedSsTable> {
        let footer = Self::decode_any(words).filter(|footer| footer.table == table);
        footer.ok_or(DamagedSsTable::new(table, SsTablePart::Footer))
    }

    pub(super) fn decode_any(words: &[u64]) -> Option<Self> {
        let words: &[u64; FOOTER_WORDS] = words.try_into().ok()?;
        if words[0] != MAGIC || words[15] != sum_of(&words[..15]) {
            return None;
        }
        let search = match words[1] >> 48 {
            0x0101 => SearchMethod::Fences,
            0x0102 => SearchMethod::Full,
            _ => return None,
        };
        let membership = match words[1] >> 32 & 0xffff {
            0x0100 => Membership::Locate,
            0x0200 => Membership::Bloom,
            _ => return None,
        };
        let (membership_start, footer_start) = halves(words[8]);
        let footer = Self {
            search,
            membership,
            unit: words[1] as u32,
            table: words[2],
            shard: words[3],
            records: words[4],
            keys: words[5],
            tombstones: words[6],
            data_words: u32::try_from(words[7]).ok()?,
            membership_start,
            footer_start,
            sums: [words[9], words[10]],
            lowest: words[11],
            highest: words[12],
        };
        let starts = [footer.data_words, membership_start, footer_start, MAX_TABLE_WORDS];
        let makes_sense = starts.is_sorted()
            && footer.keys <= footer.records
            && footer.tombstones <= footer.records
            && footer.records <= footer.data_words.into()
            && footer.lowest <= footer.highest
            && [words[13], words[14]] == [0, 0];
        makes_sense.then_some(footer)
    }
}
