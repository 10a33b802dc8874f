//! MemTables of dLSM as used by one shard: operations against a model, and threads that write,
//! close and read concurrently.
#![cfg(not(any(loom, shuttle)))]

mod model;
mod shard;
mod threads;

use farleaf_dlsm::{
    EditStep, LinkOutcome, MemTable, MemTableEdit, MemTableError, MemTableOptions, MemTableWriter,
    SearchKey, Sequences, VersionKind, WriterSlot,
};
use farleaf_fabric::sync::Arc;
use farleaf_index::{EditAction, EditAnswer};

fn options() -> MemTableOptions {
    MemTableOptions { bytes: 16 << 10, filter_bytes: 1 << 10, ..Default::default() }
}

#[test]
fn records_over_the_limits_are_refused_with_both_numbers() {
    let options = options();
    let (key, value) = (vec![1; 4097], vec![2; 4097]);
    let error = MemTableEdit::new(&key, EditAction::Get, &options).unwrap_err();
    assert!(matches!(error, MemTableError::KeyTooLong { bytes: 4097, most: 4096 }), "{error}");
    let error = MemTableEdit::new(&key[1..], EditAction::CompareExchange(&[], &value), &options)
        .unwrap_err();
    assert!(matches!(error, MemTableError::ValueTooLong { bytes: 4097, most: 4096 }), "{error}");
    let large = MemTableOptions { bytes: 1 << 20, ..options };
    let error = large.check(65_536, 0).unwrap_err();
    assert!(matches!(error, MemTableError::KeyTooLong { bytes: 65_536, most: 65_535 }), "{error}");
    let huge = MemTableOptions { bytes: (1 << 34) + 4096, ..options }.memory().unwrap_err();
    assert!(matches!(huge, MemTableError::BadSize { .. }), "{huge}");
}

/// A full table refuses a record before the record gets a number, and a new table has room for the
/// longest record.
#[test]
fn a_full_table_is_closed_and_the_next_one_has_room() {
    let options = options();
    let sequences = Arc::new(Sequences::new(1));
    let mut writer = MemTableWriter::new(WriterSlot::take(&sequences).unwrap(), 1);
    let table = MemTable::new(&sequences, options.memory().unwrap(), options);
    let (key, value) = (SearchKey::new(&[7; 4096]), vec![9; 4096]);
    let mut written = 0;
    let refused = loop {
        match table.upsert(&mut writer, &key, VersionKind::Value, &value) {
            LinkOutcome::Done(number) => written = number,
            other => break other,
        }
    };
    // One node of the key and two versions take three quarters.
    assert_eq!((refused, written), (LinkOutcome::Closed, 2));
    // Closing took number 3, which belongs to the range but to no version.
    assert_eq!((table.first(), table.last(), table.bytes() <= options.bytes), (1, Some(3), true));
    assert_eq!(sequences.settled(), 3);
    let next = table.next(&sequences, options.memory().unwrap(), options);
    assert_eq!(next.upsert(&mut writer, &key, VersionKind::Value, &value), LinkOutcome::Done(4));
    assert_eq!((next.first(), next.last()), (4, None));
}

/// A range that closes by count takes the version that closes it, however far the counter is ahead:
/// other shards of the compute server take numbers too. So no table stays empty.
#[test]
fn a_range_closed_by_count_keeps_up_with_the_counter() {
    for (most_numbers, others) in [(1, 0), (2, 0), (3, 0), (10, 1000), (1, 7)] {
        let shard = shard::Shard::new(2, MemTableOptions { most_numbers, ..options() });
        let mut writer = shard.writer(1);
        let mut other_shard = WriterSlot::take(&shard.sequences).unwrap();
        const WRITES: usize = 50;
        for write in 0..WRITES {
            (0..others).for_each(|_| _ = other_shard.announce().take());
            assert!(shard.execute(&mut writer, &[write as u8], EditAction::Upsert(b"v")).applied);
        }
        let tables = shard.tables();
        let (_, closed) = tables.split_last().unwrap();
        assert!(closed.len() < WRITES, "{most_numbers}, {others}: {}", closed.len());
        let is_empty = |table: &MemTable| {
            let mut cursor = table.cursor(u64::MAX);
            cursor.seek_first();
            cursor.key().is_none()
        };
        assert!(!closed.iter().any(|table| is_empty(table)), "{most_numbers}, {others}");
        let reached = |table: &MemTable| table.last().unwrap() - table.first() >= most_numbers - 1;
        assert!(closed.iter().all(|table| reached(table)), "{most_numbers}, {others}");
    }
}

/// inv. M1: what the memory held before does not show.
#[test]
fn memory_is_used_again() {
    let options = options();
    let sequences = Arc::new(Sequences::new(1));
    let mut writer = MemTableWriter::new(WriterSlot::take(&sequences).unwrap(), 1);
    let mut memory = options.memory().unwrap();
    for round in 0_u8..5 {
        let table = MemTable::new(&sequences, memory, options);
        let mut cursor = table.cursor(u64::MAX);
        cursor.seek_first();
        assert!(cursor.key().is_none(), "an empty table");
        for key in (round..200).step_by(5) {
            let value = vec![key; usize::from(key) % 40];
            let link =
                table.upsert(&mut writer, &SearchKey::new(&[key]), VersionKind::Value, &value);
            assert!(matches!(link, LinkOutcome::Done(_)));
        }
        cursor.seek_first();
        for key in (round..200).step_by(5) {
            assert_eq!(cursor.key().unwrap().to_vec(), [key]);
            let value = cursor.version().unwrap().value().unwrap();
            assert_eq!(value, vec![key; usize::from(key) % 40]);
            cursor.next();
        }
        assert!(cursor.key().is_none());
        memory = table.into_memory();
    }
}

/// inv. Q3, Q5: a version whose number was taken before its table was closed still belongs there.
/// Until it is linked, no decision is made below the next table.
#[test]
fn a_straggler_holds_back_decisions_in_the_next_table() {
    let options = options();
    let sequences = Arc::new(Sequences::new(2));
    let writer = |seed| MemTableWriter::new(WriterSlot::take(&sequences).unwrap(), seed);
    let (mut slow, mut fast) = (writer(1), writer(2));
    let old = MemTable::new(&sequences, options.memory().unwrap(), options);
    let key = SearchKey::new(b"k");
    let seen = old.look(&mut slow, &key);
    let straggler = old.prepare(&mut slow, &key, &seen, VersionKind::Value, b"old").unwrap();
    let new = old.next(&sequences, options.memory().unwrap(), options);
    let mut insert = MemTableEdit::new(b"k", EditAction::Insert(b"new"), &options).unwrap();
    assert!(matches!(insert.run(&new, &mut fast), EditStep::NeedBelow));
    assert!(!sequences.is_settled(new.first() - 1), "the straggler is announced");
    assert_eq!(straggler.link(), LinkOutcome::Done(1));
    assert!(sequences.is_settled(new.first() - 1));
    insert.found_below(&new, old.newest(&key).and_then(|version| version.value()));
    let refused = EditAnswer { applied: false, found: None };
    assert!(matches!(insert.run(&new, &mut fast), EditStep::Done(answer) if answer == refused));
}

/// inv. Q5: a value found below one table may be outdated below the next one.
#[test]
fn what_lies_below_is_asked_again_after_a_switch() {
    let options = options();
    let sequences = Arc::new(Sequences::new(2));
    let writer = |seed| MemTableWriter::new(WriterSlot::take(&sequences).unwrap(), seed);
    let (mut one, mut two) = (writer(1), writer(2));
    let old = MemTable::new(&sequences, options.memory().unwrap(), options);
    let mut exchange =
        MemTableEdit::new(b"k", EditAction::CompareExchange(b"0", b"1"), &options).unwrap();
    assert!(matches!(exchange.run(&old, &mut one), EditStep::NeedBelow));
    exchange.found_below(&old, Some(b"0".to_vec()));
    let link = old.upsert(&mut two, &SearchKey::new(b"k"), VersionKind::Value, b"5");
    assert!(matches!(link, LinkOutcome::Done(_)));
    let new = old.next(&sequences, options.memory().unwrap(), options);
    assert!(matches!(exchange.run(&new, &mut one), EditStep::NeedBelow));
    exchange.found_below(&new, Some(b"5".to_vec()));
    let EditStep::Done(answer) = exchange.run(&new, &mut one) else { panic!("all is known") };
    assert_eq!(answer, EditAnswer { applied: false, found: Some(b"5".to_vec()) });
}
