//! Tables that shards have lent to others, and the shards that divisions have made.
//!
//! When a shard is divided, the new one uses the tables of the old one that have its keys, as they
//! are. The memory stays the old one's: the lender uses it for nothing else until all borrowers
//! have returned the table. All shards that come from one are on one memory server, so that a
//! division is one change.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.L1. A table that a shard has lent keeps its memory until every borrower has returned it.
//! - lsm.L2. A borrower returns a table after it has left its list, and once nothing of the
//!   borrower can READ it any more.
//!
//! *Thread safety*: plain values, behind the directory's mutex.

use farleaf_fabric::GlobalAddr;
use farleaf_page::table::{KeyBuf, push_key};
use std::collections::{BTreeMap, BTreeSet};

/// The words of a table, and the pieces of memory in which it lies.
#[derive(Clone, Debug)]
pub(super) struct ListedSsTable {
    pub(super) words: Vec<u64>,
    pub(super) pieces: Vec<(GlobalAddr, u64)>,
}

/// A table that is lent.
#[derive(Debug)]
struct SsTableLoan {
    table: ListedSsTable,
    borrowers: BTreeSet<u64>,
}

/// The loans of a memory server, by lender and table.
#[derive(Debug, Default)]
pub(super) struct SsTableLoans {
    by_table: BTreeMap<(u64, u64), SsTableLoan>,
    /// Of all tables.
    words: usize,
}

impl SsTableLoans {
    /// Words in memory.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Lends a table of `lender`, or one that it has lent before.
    pub(super) fn lend(&mut self, lender: u64, id: u64, table: &ListedSsTable, borrower: u64) {
        let words = &mut self.words;
        let loan = self.by_table.entry((lender, id)).or_insert_with(|| {
            *words += table.words.len();
            SsTableLoan { table: table.clone(), borrowers: BTreeSet::new() }
        });
        loan.borrowers.insert(borrower);
    }

    /// Notes that `borrower` has returned a table.
    pub(super) fn take_back(&mut self, lender: u64, id: u64, borrower: u64) {
        let Some(loan) = self.by_table.get_mut(&(lender, id)) else { return };
        loan.borrowers.remove(&borrower);
        if loan.borrowers.is_empty() {
            self.words -= loan.table.words.len();
            self.by_table.remove(&(lender, id));
        }
    }

    /// What `lender` has lent, by table.
    pub(super) fn of(&self, lender: u64) -> impl Iterator<Item = (u64, &ListedSsTable)> {
        let loans = self.by_table.range((lender, 0)..=(lender, u64::MAX));
        loans.map(|((_, id), loan)| (*id, &loan.table))
    }

    /// Encodes what `shard` has lent and what it has `borrowed`, from table `from` on: for each
    /// table its id, the number of its words (0 if it is borrowed), and these words. Returns as
    /// many whole tables as fit `most` words, but at least one, and whether there are more. The
    /// position is an id, so tables that are returned between two requests shift no others.
    pub(super) fn list(
        &self,
        shard: u64,
        borrowed: &BTreeMap<u64, u64>,
        from: u64,
        most: usize,
    ) -> (Vec<u64>, bool) {
        let mut tables: BTreeMap<u64, &[u64]> =
            self.of(shard).map(|(id, t)| (id, &t.words[..])).collect();
        tables.extend(borrowed.keys().map(|id| (*id, &[][..])));
        let mut words = Vec::new();
        for (id, table) in tables.range(from..) {
            if !words.is_empty() && words.len() + 2 + table.len() > most {
                return (words, true);
            }
            words.extend([*id, table.len() as u64]);
            words.extend_from_slice(table);
        }
        (words, false)
    }

    /// Whether a table that is lent has this piece.
    pub(super) fn has(&self, lender: u64, id: u64, piece: (GlobalAddr, u64)) -> bool {
        let loan = self.by_table.get(&(lender, id));
        loan.is_some_and(|loan| loan.table.pieces.contains(&piece))
    }

    /// Whether a table that `lender` has lent, other than `id`, has a part of this piece (L1).
    pub(super) fn overlaps(&self, lender: u64, id: u64, (at, bytes): (GlobalAddr, u64)) -> bool {
        let meets = |(start, size): &(GlobalAddr, u64)| {
            start.server() == at.server() && start.plus(*size) > at && *start < at.plus(bytes)
        };
        self.of(lender).any(|(other, table)| other != id && table.pieces.iter().any(meets))
    }
}

/// A shard that a division has made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoanPiece {
    /// The shard that was divided.
    pub(super) from: u64,
    /// The lowest key.
    pub(super) low: KeyBuf,
}

/// The words that say which shards divisions have made.
pub(super) fn words_of_pieces(pieces: &BTreeMap<u64, LoanPiece>) -> Vec<u64> {
    let mut words = Vec::new();
    for (number, piece) in pieces {
        let mut low = Vec::new();
        push_key(&piece.low, &mut low);
        words.extend([*number, low.len() as u64]);
        words.extend(low);
    }
    words
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn a_loan_ends_with_its_last_borrower() {
        let at = |offset| GlobalAddr::new(ServerId::new(0), offset);
        let table = ListedSsTable { words: vec![1, 2, 3], pieces: vec![(at(1024), 1024)] };
        let mut loans = SsTableLoans::default();
        loans.lend(7, 1, &table, 8);
        loans.lend(7, 1, &table, 9);
        assert_eq!((loans.words(), loans.of(7).count(), loans.of(8).count()), (3, 1, 0));
        assert!(loans.has(7, 1, (at(1024), 1024)) && !loans.has(7, 1, (at(2048), 1024)));
        assert!(loans.overlaps(7, 2, (at(0), 1025)) && loans.overlaps(7, 2, (at(2047), 8)));
        assert!(!loans.overlaps(7, 2, (at(0), 1024)) && !loans.overlaps(7, 2, (at(2048), 8)));
        assert!(!loans.overlaps(7, 1, (at(1024), 1024)), "it is the table itself");
        let borrowed = BTreeMap::from([(4, 3)]);
        assert_eq!(loans.list(7, &borrowed, 0, 100), (vec![1, 3, 1, 2, 3, 4, 0], false));
        assert_eq!(loans.list(7, &borrowed, 0, 6), (vec![1, 3, 1, 2, 3], true));
        assert_eq!(loans.list(7, &borrowed, 2, 1), (vec![4, 0], false));
        loans.take_back(7, 1, 8);
        loans.take_back(7, 1, 8);
        assert_eq!(loans.of(7).count(), 1);
        loans.take_back(7, 1, 9);
        assert_eq!((loans.words(), loans.of(7).count()), (0, 0));
    }
}
