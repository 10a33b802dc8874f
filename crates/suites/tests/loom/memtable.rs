//! dLSM's MemTable: linking versions, closing a range, announcing and settling numbers.
//!
//! The list has two levels here, and the models bound preemptions, because each operation makes
//! dozens of accesses. Loom runs the main thread first, and derives other orders from what the
//! second thread does after it. So threads that only load are the second ones.

use super::check;
use farleaf_dlsm::{
    EditStep, LinkOutcome, MemTable, MemTableEdit, MemTableOptions, MemTableVersion,
    MemTableWriter, SearchKey, Sequences, VersionKind, WriterSlot,
};
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_index::EditAction;
use loom::thread;

const OPTIONS: MemTableOptions =
    MemTableOptions { bytes: 4096, most_numbers: u64::MAX, filter_bytes: 8 };

fn table(sequences: &Sequences) -> Arc<MemTable> {
    Arc::new(MemTable::new(sequences, OPTIONS.memory().unwrap(), OPTIONS))
}

fn writer(sequences: &Arc<Sequences>, seed: u64) -> MemTableWriter {
    MemTableWriter::new(WriterSlot::take(sequences).unwrap(), seed)
}

fn upsert(table: &MemTable, writer: &mut MemTableWriter, key: &[u8], value: u8) -> LinkOutcome {
    table.upsert(writer, &SearchKey::new(key), VersionKind::Value, &[value])
}

/// The numbers of all versions by key, as seen by a cursor.
fn contents(table: &MemTable) -> Vec<(Vec<u8>, Vec<u64>)> {
    let mut cursor = table.cursor(u64::MAX);
    cursor.seek_first();
    let mut all = Vec::new();
    while let Some(key) = cursor.key() {
        let chain = std::iter::successors(cursor.version(), MemTableVersion::older);
        all.push((key.to_vec(), chain.map(|version| version.number()).collect()));
        cursor.next();
    }
    all
}

/// inv. M4, Q4: two writers of a new key get one node, with a chain of both versions, newest first.
#[test]
fn versions_of_one_key_are_linked_in_the_order_of_their_numbers() {
    check(3, || {
        let sequences = Arc::new(Sequences::new(2));
        let table = table(&sequences);
        let (mut one, mut two) = (writer(&sequences, 1), writer(&sequences, 2));
        let theirs = Arc::clone(&table);
        let thread = thread::spawn(move || upsert(&theirs, &mut one, b"k", 1));
        let mine = upsert(&table, &mut two, b"k", 2);
        let (LinkOutcome::Done(mine), LinkOutcome::Done(other)) = (mine, thread.join().unwrap())
        else {
            panic!("the table is open");
        };
        let numbers = vec![mine.max(other), mine.min(other)];
        assert_eq!(contents(&table), [(b"k".to_vec(), numbers)]);
    });
}

/// inv. M3: two writers insert different keys into one gap, on both levels.
#[test]
fn neighbours_are_both_linked() {
    check(3, || {
        let sequences = Arc::new(Sequences::new(2));
        let table = table(&sequences);
        // The first node of this writer has two levels.
        let (mut one, mut two) = (writer(&sequences, TALL), writer(&sequences, TALL));
        let theirs = Arc::clone(&table);
        let thread = thread::spawn(move || upsert(&theirs, &mut one, b"a", 1));
        let mine = upsert(&table, &mut two, b"b", 2);
        let (LinkOutcome::Done(mine), LinkOutcome::Done(other)) = (mine, thread.join().unwrap())
        else {
            panic!("the table is open");
        };
        assert_eq!(contents(&table), [(b"a".to_vec(), vec![other]), (b"b".to_vec(), vec![mine])]);
        for key in [b"a", b"b"] {
            assert!(table.newest(&SearchKey::new(key)).is_some());
        }
    });
}

/// A seed with which a writer's first node has two levels.
const TALL: u64 = 3;

/// A reader that meets a version sees its number and value.
#[test]
fn a_linked_version_is_complete() {
    check(3, || {
        let sequences = Arc::new(Sequences::new(1));
        let table = table(&sequences);
        let mut one = writer(&sequences, 1);
        let theirs = Arc::clone(&table);
        let thread = thread::spawn(move || {
            if let Some(version) = theirs.newest(&SearchKey::new(b"k")) {
                assert_eq!((version.number(), version.value()), (1, Some(vec![7])));
            }
        });
        upsert(&table, &mut one, b"k", 7);
        thread.join().unwrap();
    });
}

/// inv. Q2, Q3: a range closed by count takes the version that closes it, and of two writers whose
/// numbers are beyond the limit at least one writes to the table.
#[test]
fn a_range_of_one_number_takes_a_version() {
    check(2, || {
        let sequences = Arc::new(Sequences::new(2));
        let options = MemTableOptions { most_numbers: 1, ..OPTIONS };
        let table = Arc::new(MemTable::new(&sequences, options.memory().unwrap(), options));
        // Another shard has taken the only number.
        assert_eq!(WriterSlot::take(&sequences).unwrap().announce().take(), 1);
        let (mut one, mut two) = (writer(&sequences, 1), writer(&sequences, 1));
        let theirs = Arc::clone(&table);
        let thread = thread::spawn(move || upsert(&theirs, &mut one, b"a", 1));
        let links = [upsert(&table, &mut two, b"b", 2), thread.join().unwrap()];
        let last = table.last().expect("a number beyond the limit closes the range");
        let mut written = 0;
        for link in links {
            match link {
                LinkOutcome::Done(number) => {
                    written += 1;
                    assert!(number < last);
                }
                link => assert_eq!(link, LinkOutcome::Closed),
            }
        }
        assert!(written > 0);
        assert_eq!(contents(&table).len(), written);
    });
}

/// inv. Q2, Q3: a table that is closed under a writer has its version only if the number belongs to
/// the range.
#[test]
fn a_closed_table_has_only_numbers_of_its_range() {
    check(3, || {
        let sequences = Arc::new(Sequences::new(1));
        let table = table(&sequences);
        let mut one = writer(&sequences, 1);
        let theirs = Arc::clone(&table);
        let their_sequences = Arc::clone(&sequences);
        let thread = thread::spawn(move || theirs.close(&their_sequences));
        let link = upsert(&table, &mut one, b"k", 1);
        let last = thread.join().unwrap();
        let linked = contents(&table);
        match link {
            LinkOutcome::Done(number) => {
                assert!(number <= last, "{number} in a table up to {last}");
                assert_eq!(linked, [(b"k".to_vec(), vec![number])]);
            }
            other => {
                assert_eq!(other, LinkOutcome::Closed);
                assert!(linked.is_empty(), "{linked:?}");
            }
        }
        assert_eq!(table.last(), Some(last), "it is fixed once");
    });
}

/// inv. Q3: two threads that close a table agree on its last number, even while a writer helps.
#[test]
fn all_that_close_a_table_agree() {
    check(2, || {
        let sequences = Arc::new(Sequences::new(1));
        let table = table(&sequences);
        let mut one = writer(&sequences, 1);
        let close = || {
            let (table, sequences) = (Arc::clone(&table), Arc::clone(&sequences));
            thread::spawn(move || table.close(&sequences))
        };
        let (first, second) = (close(), close());
        let link = upsert(&table, &mut one, b"k", 1);
        let last = first.join().unwrap();
        assert_eq!(second.join().unwrap(), last);
        if let LinkOutcome::Done(number) = link {
            assert!(number <= last, "{number} in a table up to {last}");
        }
    });
}

/// inv. Q1, Q7: reads at a settled bound always give the same result, which includes every write
/// that ended before the bound was taken.
#[test]
fn a_settled_bound_never_changes() {
    check(2, || {
        let sequences = Arc::new(Sequences::new(2));
        let table = table(&sequences);
        let mut one = writer(&sequences, 1);
        let (theirs, their_sequences) = (Arc::clone(&table), Arc::clone(&sequences));
        let number_at = |table: &MemTable, bound| {
            let version = table.newest_up_to(&SearchKey::new(b"k"), bound);
            version.map_or(0, |version| version.number())
        };
        let thread = thread::spawn(move || {
            let bound = their_sequences.latest();
            let is_settled = their_sequences.is_settled(bound);
            (bound, is_settled.then(|| number_at(&theirs, bound)))
        });
        upsert(&table, &mut one, b"k", 1);
        upsert(&table, &mut one, b"k", 2);
        let (bound, seen) = thread.join().unwrap();
        if let Some(seen) = seen {
            // A writer that has no competitor uses every number.
            assert_eq!((seen, number_at(&table, bound)), (bound, bound));
        }
    });
}

/// inv. Q1, Q7: every version up to the current settled bound is linked. Here a version is a store.
#[test]
fn nothing_appears_below_the_settled_bound() {
    check(5, || {
        let sequences = Arc::new(Sequences::new(1));
        let linked = Arc::new(AtomicU64::new(0));
        let mut seat = WriterSlot::take(&sequences).unwrap();
        let (theirs, their_linked) = (Arc::clone(&sequences), Arc::clone(&linked));
        let thread = thread::spawn(move || {
            let bound = theirs.settled();
            let seen = their_linked.load(Ordering::Relaxed);
            assert!(seen >= bound, "{bound} is settled, but only {seen} is linked");
        });
        for _ in 0..2 {
            let announcement = seat.announce();
            linked.store(announcement.take(), Ordering::Relaxed);
        }
        thread.join().unwrap();
    });
}

/// inv. Q5: an insert into a new table finds versions that a writer is still linking into the old
/// one.
#[test]
fn a_conditional_operation_sees_stragglers_of_older_tables() {
    check(3, || {
        let sequences = Arc::new(Sequences::new(2));
        let old = table(&sequences);
        let (mut one, mut two) = (writer(&sequences, 1), writer(&sequences, 2));
        let (theirs, their_sequences) = (Arc::clone(&old), Arc::clone(&sequences));
        let thread = thread::spawn(move || {
            let (old, sequences) = (theirs, their_sequences);
            let new = old.next(&sequences, OPTIONS.memory().unwrap(), OPTIONS);
            let mut edit = MemTableEdit::new(b"k", EditAction::Insert(&[2]), &OPTIONS).unwrap();
            let step = edit.run(&new, &mut two);
            assert!(matches!(step, EditStep::NeedBelow), "the new table is empty");
            if !sequences.is_settled(new.first() - 1) {
                return None;
            }
            let below = old.newest(edit.key()).and_then(|version| version.value());
            edit.found_below(&new, below);
            let EditStep::Done(answer) = edit.run(&new, &mut two) else {
                panic!("nothing is missing")
            };
            Some(answer.applied)
        });
        let straggler = matches!(upsert(&old, &mut one, b"k", 1), LinkOutcome::Done(_));
        if let Some(inserted) = thread.join().unwrap() {
            assert_ne!(inserted, straggler, "an insert of a key that was there");
        }
    });
}
