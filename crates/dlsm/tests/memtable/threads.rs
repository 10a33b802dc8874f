//! Threads that write to one shard while other threads close its tables.

use crate::shard::{Shard, newest_of, yield_now};
use farleaf_dlsm::{
    LinkOutcome, MemTable, MemTableCursor, MemTableOptions, MemTableVersion, MemTableWriter,
    SearchKey, Snapshot, VersionKind,
};
use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU64, Ordering, thread};
use farleaf_index::EditAction;
use std::collections::BTreeMap;

const WRITERS: u64 = 4;

fn small() -> MemTableOptions {
    MemTableOptions { bytes: 32 << 10, filter_bytes: 1 << 10, ..Default::default() }
}

/// Pseudo-random numbers from a seed.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Writes `value` to `key`, in the table that accepts it. Returns its number.
fn put(shard: &Shard, writer: &mut MemTableWriter, key: &[u8], value: &[u8]) -> u64 {
    loop {
        let tables = shard.tables();
        let table = tables.last().unwrap();
        match table.upsert(writer, &SearchKey::new(key), VersionKind::Value, value) {
            LinkOutcome::Done(number) => return number,
            LinkOutcome::Closed => shard.switch(table),
            other => panic!("{other:?}"),
        }
    }
}

/// All versions in a table, by number, with their keys.
fn versions(table: &MemTable) -> BTreeMap<u64, (Vec<u8>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut cursor = table.cursor(u64::MAX);
    cursor.seek_first();
    let mut before: Option<Vec<u8>> = None;
    while let Some(key) = cursor.key() {
        let key = key.to_vec();
        assert!(before.as_ref().is_none_or(|before| *before < key), "keys ascend (M3)");
        let chain: Vec<_> =
            std::iter::successors(cursor.version(), MemTableVersion::older).collect();
        assert!(chain.is_sorted_by(|newer, older| newer.number() > older.number()), "Q4");
        for version in chain {
            let value = (key.clone(), version.value().expect("no tombstones"));
            assert!(all.insert(version.number(), value).is_none(), "a number twice");
        }
        before = Some(key);
        cursor.next();
    }
    all
}

/// inv. Q2, Q3: in any order of writing and closing, each version is in the table of its number,
/// and none is lost.
#[test]
fn every_version_is_in_the_table_of_its_number() {
    const WRITES: u64 = 6_000;
    for most_numbers in [u64::MAX, 100, 20] {
        let shard = Shard::new(WRITERS as usize, MemTableOptions { most_numbers, ..small() });
        let written: BTreeMap<u64, (Vec<u8>, Vec<u8>)> = thread::scope(|scope| {
            let write = |number: u64| {
                let shard = &shard;
                scope.spawn(move || {
                    let (mut writer, mut state) = (shard.writer(number), number);
                    let one = |write: u64| {
                        if write % 97 == number {
                            shard.switch(shard.tables().last().unwrap());
                        }
                        let key = (random(&mut state) % 50).to_be_bytes().to_vec();
                        let value = [number.to_be_bytes(), write.to_be_bytes()].concat();
                        (put(shard, &mut writer, &key, &value), (key, value))
                    };
                    (0..WRITES).map(one).collect::<Vec<_>>()
                })
            };
            let threads: Vec<_> = (0..WRITERS).map(write).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(written.len() as u64, WRITERS * WRITES, "no number twice");
        let tables = shard.tables();
        assert!(tables.len() > 100, "{}", tables.len());
        let mut found = BTreeMap::new();
        for (index, table) in tables.iter().enumerate() {
            let here = versions(table);
            let last = table.last().unwrap_or(u64::MAX);
            assert!(here.keys().all(|number| (table.first()..=last).contains(number)), "Q2");
            if let Some(next) = tables.get(index + 1) {
                assert_eq!(last + 1, next.first(), "no gap (Q2)");
            }
            found.extend(here);
        }
        assert!(found == written, "versions are lost");
        assert_eq!(shard.sequences.settled(), shard.sequences.latest());
    }
}

/// inv. Q5: every increment is based on the newest value, even if that lies in an older table to
/// which another thread is still writing.
#[test]
fn no_increment_is_lost() {
    const INCREMENTS: u64 = 4_000;
    const COUNTERS: u64 = 3;
    let shard = Shard::new(1 + WRITERS as usize, small());
    let mut writer = shard.writer(99);
    for counter in 0..COUNTERS {
        let zero = 0_u64.to_be_bytes();
        assert!(shard.execute(&mut writer, &[counter as u8], EditAction::Insert(&zero)).applied);
    }
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let shard = &shard;
            scope.spawn(move || {
                let (mut writer, mut state) = (shard.writer(number), number);
                for _ in 0..INCREMENTS {
                    let key = [(random(&mut state) % COUNTERS) as u8];
                    let mut now = shard.execute(&mut writer, &key, EditAction::Get).found.unwrap();
                    loop {
                        if random(&mut state).is_multiple_of(64) {
                            shard.switch(shard.tables().last().unwrap());
                        }
                        let next = u64::from_be_bytes(now[..].try_into().unwrap()) + 1;
                        let next = next.to_be_bytes();
                        let action = EditAction::CompareExchange(&now[..], &next[..]);
                        let answer = shard.execute(&mut writer, &key, action);
                        match answer.found {
                            Some(found) => now = found,
                            None => break assert!(answer.applied),
                        }
                    }
                }
            });
        }
    });
    let count = |counter: u64| {
        let value = shard.execute(&mut writer, &[counter as u8], EditAction::Get).found.unwrap();
        u64::from_be_bytes(value.try_into().unwrap())
    };
    assert_eq!((0..COUNTERS).map(count).sum::<u64>(), WRITERS * INCREMENTS);
    assert!(shard.tables().len() > 100);
}

/// If several threads insert or remove one key, exactly one succeeds each time.
#[test]
fn one_insert_and_one_remove_succeed_in_turn() {
    const ATTEMPTS: u64 = 8_000;
    let shard = Shard::new(WRITERS as usize, small());
    let sum: i64 = thread::scope(|scope| {
        let run = |number: u64| {
            let shard = &shard;
            scope.spawn(move || {
                let (mut writer, mut state) = (shard.writer(number), number);
                let one = |_| {
                    if random(&mut state).is_multiple_of(128) {
                        shard.switch(shard.tables().last().unwrap());
                    }
                    let is_insert = random(&mut state).is_multiple_of(2);
                    let action =
                        if is_insert { EditAction::Insert(&b"x"[..]) } else { EditAction::Remove };
                    let applied = shard.execute(&mut writer, b"the key", action).applied;
                    i64::from(applied) * if is_insert { 1 } else { -1 }
                };
                (0..ATTEMPTS).map(one).sum::<i64>()
            })
        };
        let threads: Vec<_> = (0..WRITERS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let mut writer = shard.writer(7);
    let there = shard.execute(&mut writer, b"the key", EditAction::Get).applied;
    assert_eq!(sum, i64::from(there), "inserts that were applied less removes that were");
}

/// inv. Q1, Q7: a snapshot has all writes that ended before it was taken, and never changes.
#[test]
fn snapshots_stay_as_they_are_while_others_write() {
    const KEYS: u64 = 200;
    const MAX_WRITES: u64 = 30_000;
    let shard = Shard::new(WRITERS as usize, small());
    let ended = AtomicBool::new(false);
    // By writer: the last write that has ended.
    let done: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let read_all = |tables: &[Arc<MemTable>], bound: u64| {
        let read = |key: u64| {
            let version = newest_of(tables, &SearchKey::new(&key.to_be_bytes()), bound)?;
            Some((version.number(), version.value().unwrap()))
        };
        (0..KEYS).map(read).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let (shard, ended, done) = (&shard, &ended, &done[number as usize]);
            scope.spawn(move || {
                let (mut writer, mut state) = (shard.writer(number), number);
                let mut write = 0_u64;
                while write < MAX_WRITES && !ended.load(Ordering::Relaxed) {
                    write += 1;
                    // Each writer has its own keys.
                    let key = random(&mut state) % (KEYS / WRITERS) * WRITERS + number;
                    put(shard, &mut writer, &key.to_be_bytes(), &write.to_be_bytes());
                    done.store(write, Ordering::Release);
                }
            });
        }
        for _ in 0..60 {
            let before: Vec<_> = done.iter().map(|done| done.load(Ordering::Acquire)).collect();
            let snapshot = Snapshot::take(&shard.sequences);
            shard.wait_until_settled(snapshot.bound());
            let tables = shard.tables();
            let first = read_all(&tables, snapshot.bound());
            for (number, before) in (0_u64..).zip(before) {
                let of_writer = |(key, _): &(u64, _)| key % WRITERS == number;
                let seen = (0_u64..).zip(&first).filter(of_writer).filter_map(|(_, seen)| {
                    let (_, value) = seen.as_ref()?;
                    Some(u64::from_be_bytes(value[..].try_into().unwrap()))
                });
                let newest = seen.max().unwrap_or(0);
                assert!(newest >= before, "write {before} of {number} had ended, seen: {newest}");
            }
            yield_now();
            assert_eq!(read_all(&tables, snapshot.bound()), first, "the snapshot has changed");
            // Up and down through one table during writes.
            let table = tables.last().unwrap();
            let seen = |cursor: &MemTableCursor<'_>| {
                Some((cursor.key()?.to_vec(), cursor.version()?.number()))
            };
            let mut cursor = table.cursor(snapshot.bound());
            cursor.seek_first();
            let mut up = Vec::new();
            while let Some(here) = seen(&cursor) {
                up.push(here);
                cursor.next();
            }
            cursor.seek_last();
            while let Some(here) = seen(&cursor) {
                assert_eq!(up.pop(), Some(here), "down as up");
                cursor.prev();
            }
            assert!(up.is_empty());
        }
        ended.store(true, Ordering::Relaxed);
    });
}

/// inv. M3, M4: threads insert ascending and random keys next to each other.
#[test]
fn keys_inserted_by_many_threads_are_all_there_once() {
    const KEYS: u64 = 20_000;
    let options = MemTableOptions { bytes: 16 << 20, ..small() };
    let shard = Shard::new(WRITERS as usize, options);
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let shard = &shard;
            scope.spawn(move || {
                let (mut writer, mut state) = (shard.writer(number), number);
                for step in 0..KEYS {
                    let ascending = number % 2 == 0;
                    let key = if ascending { step } else { random(&mut state) % KEYS };
                    put(shard, &mut writer, &key.to_be_bytes(), &number.to_be_bytes());
                }
            });
        }
    });
    let tables = shard.tables();
    assert_eq!(tables.len(), 1);
    assert_eq!(versions(&tables[0]).len() as u64, WRITERS * KEYS);
    let mut cursor = tables[0].cursor(u64::MAX);
    cursor.seek_first();
    for key in 0..KEYS {
        assert_eq!(cursor.key().map(|key| key.to_vec()), Some(key.to_be_bytes().to_vec()));
        assert!(tables[0].newest(&SearchKey::new(&key.to_be_bytes())).is_some());
        cursor.next();
    }
    assert!(cursor.key().is_none());
}
