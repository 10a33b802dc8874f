//! Tables of the LSM index against a `BTreeMap`: records, indexes, cursors and merges; measured
//! sizes and false positives; and every reading function over damaged and arbitrary words, which
//! must neither panic nor return a wrong value (lsm.B8, lsm.J8).
#![cfg(not(any(loom, shuttle)))]

mod merges;

use farleaf_page::table::{
    BloomFilter, Compaction, CompactionError, CompactionOptions, CompactionProgress,
    DamagedSsTable, ExtentRun, FullIndex, GroupPlace, IndexKind, KeyBuf, LocateFunction,
    LowerLevels, MAX_SEQUENCE, MAX_VALUE_BYTES, RecordCursor, RecordKind, RecordRun, RefusedRecord,
    SsTableBuilder, SsTableClip, SsTableFences, SsTableFooter, SsTableIndex, SsTableLookup,
    SsTableMeta, SsTableRecord, TableKey, VisibleVersion, build_locate, pick, record_words,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::Index as Choice;
use proptest::test_runner::RngSeed;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

type Version = (Vec<u8>, Reverse<u64>);
/// `None` is a tombstone.
type Value = Option<Vec<u8>>;
/// Versions in table order.
type Versions = BTreeMap<Version, Value>;

const KINDS: [IndexKind; 4] = [
    IndexKind::Compact,
    IndexKind::Full { bloom_bits: 10 },
    IndexKind::Blocks { block_bytes: 512, bloom_bits: 10 },
    // One block per key.
    IndexKind::Blocks { block_bytes: 0, bloom_bits: 10 },
];

/// A table's words in remote memory, and the metadata that a compute server keeps.
struct Table {
    words: Vec<u64>,
    meta: SsTableMeta,
    index: SsTableIndex,
}

fn build(id: u64, kind: IndexKind, versions: &Versions) -> Option<Table> {
    let (mut builder, mut words) = (SsTableBuilder::new(id, 3, kind), Vec::new());
    for ((key, sequence), value) in versions {
        let kind = if value.is_some() { RecordKind::Value } else { RecordKind::Tombstone };
        let value = value.as_deref().unwrap_or(&[]);
        let key = KeyBuf::from_bytes(key);
        builder.add(key.key(), sequence.0, kind, value, &mut words).unwrap();
    }
    Table::finish(builder, words)
}

impl Table {
    fn finish(builder: SsTableBuilder, mut words: Vec<u64>) -> Option<Self> {
        let id = builder.table();
        let meta = builder.finish(1, &mut words)?;
        assert_eq!(words.len(), meta.footer.table_words() as usize);
        let sections = words[meta.footer.data_words as usize..].to_vec();
        let index = SsTableIndex::open(sections, id).unwrap();
        assert_eq!(*index.footer(), meta.footer);
        Some(Self { words, meta, index })
    }

    fn data(&self) -> &[u64] {
        &self.words[..self.meta.footer.data_words as usize]
    }

    /// Looks a key up like a compute server, and counts the READs that this would take.
    /// `Some(None)` is a tombstone.
    fn get(&self, key: &[u8], bound: u64) -> Result<(Option<Value>, u32), DamagedSsTable> {
        let (id, key) = (self.meta.footer.table, KeyBuf::from_bytes(key));
        let key = key.key();
        let read = |words: std::ops::Range<u32>| {
            pick(&self.words[words.start as usize..words.end as usize], id, key, bound)
        };
        let (picked, reads) = match self.index.find(key, key.hash(), bound)? {
            SsTableLookup::Absent => (VisibleVersion::Absent, 0),
            SsTableLookup::Group(words) => (read(words)?, 1),
            SsTableLookup::Record { words, end } => match read(words.clone())? {
                VisibleVersion::TooNew => (read(words.end..end)?, 2),
                picked => (picked, 1),
            },
        };
        Ok((
            if let VisibleVersion::Record(record) = picked { Some(value_of(record)) } else { None },
            reads,
        ))
    }
}

fn value_of(record: SsTableRecord<'_>) -> Value {
    let mut value = Vec::new();
    record.append_value(&mut value);
    assert_eq!(value.len(), record.value_bytes());
    (record.kind() == RecordKind::Value).then_some(value)
}

fn version_of(record: SsTableRecord<'_>) -> (Version, Value) {
    ((record.key().to_vec(), Reverse(record.sequence())), value_of(record))
}

fn expected(versions: &Versions, key: &[u8], bound: u64) -> Option<Value> {
    let newest = versions.range((key.to_vec(), Reverse(bound))..).next();
    newest.filter(|(version, _)| version.0 == key).map(|(_, value)| value.clone())
}

/// Keys that collide, share prefixes shorter or longer than a fence's head, or end in zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0_u8), Just(1), Just(255), any::<u8>()];
    let tail = vec(byte, 0..12);
    let prefix = prop_oneof![
        6 => Just(Vec::new()),
        3 => Just(b"warehouse/".to_vec()),
        1 => Just(vec![7; 300]),
    ];
    (prefix, tail).prop_map(|(mut key, tail)| {
        key.extend(tail);
        key
    })
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => Just(None),
        6 => vec(any::<u8>(), 0..40).prop_map(Some),
        1 => vec(any::<u8>(), 400..401).prop_map(Some),
    ]
}

fn versions() -> impl Strategy<Value = Versions> {
    let one = (key(), vec((1..60_u64, value()), 1..4));
    let many = (key(), vec((1..60_u64, value()), 20..40));
    vec(prop_oneof![12 => one, 1 => many], 0..120).prop_map(|keys| {
        let of_key = |(key, versions): (Vec<u8>, Vec<(u64, Value)>)| {
            versions
                .into_iter()
                .map(move |(sequence, value)| ((key.clone(), Reverse(sequence)), value))
        };
        keys.into_iter().flat_map(of_key).collect()
    })
}

/// The dLSM paper's record, number `number`, with the key in digits.
fn paper_key(number: u64) -> KeyBuf {
    KeyBuf::from_bytes(format!("{:020}", number * 7919 % 1_000_000_007).as_bytes())
}

/// A table of records with keys of 20 bytes, and values with the lengths that `value_bytes`
/// returns.
fn paper_table(kind: IndexKind, records: u64, value_bytes: impl Fn(u64) -> usize) -> Table {
    let mut keys: Vec<KeyBuf> = (0..records).map(paper_key).collect();
    keys.sort();
    let (mut builder, mut words) = (SsTableBuilder::new(1, 0, kind), Vec::new());
    for (number, key) in (0..).zip(&keys) {
        let value = vec![number as u8; value_bytes(number)];
        builder.add(key.key(), number, RecordKind::Value, &value, &mut words).unwrap();
    }
    Table::finish(builder, words).unwrap()
}

/// Words that are damaged in a few places, or completely arbitrary.
fn damage(words: &mut [u64], damages: &[(Choice, u64)]) {
    for (place, word) in damages {
        if !words.is_empty() {
            let place = place.index(words.len());
            // Small changes too: a count or a length that is slightly off.
            words[place] = if word % 3 == 0 { *word } else { words[place] ^ 1 << (word % 64) };
        }
    }
}

#[test]
fn records_lie_on_words_and_take_their_bytes() {
    assert_eq!(record_words(20, 400) * 8, 440);
    assert_eq!(record_words(0, 0) * 8, 16);
    let (mut builder, mut words) =
        (SsTableBuilder::new(0x1_0005, 0, IndexKind::Compact), Vec::new());
    let key = KeyBuf::from_bytes(b"0123456789");
    builder.add(key.key(), 0x77, RecordKind::Value, b"abcdefg", &mut words).unwrap();
    assert_eq!(words[0] & u64::MAX >> 16, 10 << 32 | 7);
    assert_eq!(words[1], 0x77 << 8);
    let bytes: Vec<u8> = words[2..].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(bytes, b"0123456789abcdefg\0\0\0\0\0\0\0");
    // Tables are distinguished by the low 16 bits of their ids, and only by those.
    assert!(
        SsTableRecord::parse(&words, 0x1_0005).is_ok()
            && SsTableRecord::parse(&words, 0x0_0005).is_ok()
    );
    assert!((0..0x1_0000).filter(|&id| SsTableRecord::parse(&words, id).is_ok()).eq([5]));
    for bit in 0..words.len() * 64 {
        words[bit / 64] ^= 1 << (bit % 64);
        assert!(SsTableRecord::parse(&words, 0x1_0005).is_err(), "bit {bit}");
        words[bit / 64] ^= 1 << (bit % 64);
    }
    assert!(SsTableRecord::parse(&words[..words.len() - 1], 0x1_0005).is_err());
    let error = SsTableRecord::parse(&[], 9).unwrap_err().to_string();
    assert_eq!(error, "table 9: a record is damaged; read it again by the shard's current version");
}

#[test]
fn a_builder_refuses_what_does_not_belong_into_its_table() {
    let (mut builder, mut out) = (SsTableBuilder::new(1, 0, IndexKind::Compact), Vec::new());
    let [a, b] = [b"a", b"b"].map(|bytes| KeyBuf::from_bytes(bytes));
    builder.add(b.key(), 5, RecordKind::Value, b"x", &mut out).unwrap();
    let (records, words) = (builder.records(), out.clone());
    let mut add = |key: &KeyBuf, sequence, kind, value: &[u8]| {
        builder.add(key.key(), sequence, kind, value, &mut out)
    };
    assert_eq!(add(&b, 5, RecordKind::Value, b""), Err(RefusedRecord::OutOfOrder));
    assert_eq!(add(&b, 6, RecordKind::Value, b""), Err(RefusedRecord::OutOfOrder));
    assert_eq!(add(&a, 1, RecordKind::Value, b""), Err(RefusedRecord::OutOfOrder));
    assert_eq!(add(&b, 4, RecordKind::Tombstone, b"x"), Err(RefusedRecord::Malformed));
    assert_eq!(add(&b, MAX_SEQUENCE + 1, RecordKind::Value, b""), Err(RefusedRecord::Malformed));
    let long = KeyBuf::from_bytes(&vec![200; 65_536]);
    assert_eq!(
        add(&long, 9, RecordKind::Value, b""),
        Err(RefusedRecord::KeyTooLong { bytes: 65_536 })
    );
    let bytes = MAX_VALUE_BYTES + 1;
    let value = vec![0; bytes];
    assert_eq!(add(&b, 4, RecordKind::Value, &value), Err(RefusedRecord::ValueTooLong { bytes }));
    assert_eq!((builder.records(), out), (records, words), "nothing has changed");
    assert!(SsTableBuilder::new(1, 0, IndexKind::Compact).finish(0, &mut Vec::new()).is_none());
}

/// The longest key, and a value whose length in words exceeds 16 bits, among small records.
#[test]
fn the_longest_keys_and_values_are_found() {
    let long = |last: u8| [vec![9; 65_534], vec![last]].concat();
    let versions: Versions = (0..40)
        .flat_map(|number| {
            let value = vec![number; if number == 20 { 600_000 } else { 9 }];
            let small = ((vec![number], Reverse(1)), Some(value.clone()));
            [((long(number), Reverse(1)), Some(value)), small]
        })
        .collect();
    for kind in KINDS {
        let table = build(1, kind, &versions).unwrap();
        for (version, value) in &versions {
            assert_eq!(table.get(&version.0, 1).unwrap().0, Some(value.clone()));
        }
        assert_eq!(table.get(&long(77), 1).unwrap().0, None);
    }
}

/// Sizes of the index sections for records of 20 + 400 bytes: the paper's entry of 41 bytes and its
/// filter of 10 bits, and the compact index.
#[test]
fn an_index_takes_the_bytes_that_it_should() {
    let records = 50_000;
    let full = paper_table(IndexKind::Full { bloom_bits: 10 }, records, |_| 400);
    let in_words = |bytes: u64| bytes.next_multiple_of(8);
    // Head, offsets of entries, entries; head and bits of the filter; footer.
    let search = 8 + in_words(4 * records) + in_words(37 * records);
    let filter = 8 + (10 * records).next_multiple_of(64) / 8;
    assert_eq!(full.index.bytes() as u64, search + filter + 128);
    assert_eq!(full.data().len() as u64 * 8, 440 * records);

    let fixed = paper_table(IndexKind::Compact, records, |_| 400);
    let varied = paper_table(IndexKind::Compact, records, |number| 390 + (number % 20) as usize);
    let lengths = (2 * records).next_multiple_of(8);
    assert_eq!(varied.index.bytes() as u64, fixed.index.bytes() as u64 + lengths);
    let per_record = |table: &Table| table.index.bytes() as f64 / records as f64;
    assert_eq!((per_record(&fixed), per_record(&varied)), (2.84704, 4.84704));
    // A table of 640 KiB, a hundredth of the paper's size.
    let small = paper_table(IndexKind::Compact, 1_489, |_| 400);
    assert_eq!(small.index.bytes(), 4768);
    let kind = IndexKind::Blocks { block_bytes: 8192, bloom_bits: 10 };
    let blocks = paper_table(kind, records, |_| 400);
    // Head, the digits that all fences share, and two words for each block of 18 records.
    let fences = 24 + 16 + 16 * records.div_ceil(8192 / 440);
    assert_eq!(blocks.index.bytes() as u64, fences + filter + 128);
}

/// How many records a lookup reads: exactly one for a present key; for an absent key, one as often
/// as the fingerprints or the filter give false positives. All seeds are fixed, so the counts are
/// exact.
#[test]
fn lookups_read_one_record_or_nothing() {
    let records = 20_000;
    let mut counts = Vec::new();
    for kind in KINDS {
        let table = paper_table(kind, records, |number| (number % 90) as usize);
        let key = |number| paper_key(number).key().to_vec();
        for number in (0..records).step_by(7) {
            let (value, reads) = table.get(&key(number), MAX_SEQUENCE).unwrap();
            assert!(value.is_some() && reads == 1, "{kind:?}, {number}");
        }
        let absent = records..records + 100_000;
        let read = |number| table.get(&key(number), MAX_SEQUENCE).unwrap();
        let reads = absent.clone().map(|number| {
            let (value, reads) = read(number);
            assert_eq!(value, None);
            reads
        });
        let passed =
            absent.filter(|&number| table.index.may_have(paper_key(number).key().hash()).unwrap());
        counts.push((passed.count(), reads.sum::<u32>()));
    }
    // 0.37% for fingerprints, 0.86% for filters. A full index reads no record for these.
    assert_eq!(counts, [(367, 367), (862, 0), (862, 862), (862, 862)]);
}

/// With fingerprints every hash of a table is found, those that no seed can tell apart by reading
/// the whole group (lsm.B5).
/// Each index can cut its table into parts of about the same size.
#[test]
fn split_keys_cut_a_table_into_even_parts() {
    for kind in KINDS {
        let table = paper_table(kind, 2_000, |_| 400);
        let keys = table.index.split_keys(4).unwrap();
        assert_eq!(keys.len(), 3, "{kind:?}");
        let sizes = (0..=3).map(|part| {
            let begin = if part == 0 { 0 } else { table.index.seek(keys[part - 1].key()).unwrap() };
            let end = keys.get(part).map(|key| table.index.seek(key.key()).unwrap());
            end.unwrap_or(table.meta.footer.data_words) - begin
        });
        let fair = table.meta.footer.data_words / 4;
        for size in sizes {
            assert!((fair * 9 / 10..=fair * 11 / 10).contains(&size), "{kind:?}: {size} of {fair}");
        }
        assert!(table.index.split_keys(1).unwrap().is_empty());
        assert!(table.index.split_keys(0).unwrap().is_empty());
    }
}

/// An index that is written in steps is the same, and a step is about as long as it should.
#[test]
fn an_index_is_written_in_bounded_steps() {
    const RECORDS: u64 = 3_000;
    for kind in KINDS {
        let builder = || {
            let (mut builder, mut words) = (SsTableBuilder::new(1, 0, kind), Vec::new());
            for number in 0..RECORDS {
                let key = KeyBuf::from_number(number);
                builder.add(key.key(), number, RecordKind::Value, b"", &mut words).unwrap();
            }
            builder
        };
        let mut whole = Vec::new();
        let meta = builder().finish(2, &mut whole).unwrap();
        let (mut finishing, mut words, mut steps) = (builder().finishing(2), Vec::new(), 1);
        let stepwise = loop {
            match finishing.step(100, &mut words) {
                Some(meta) => break meta.unwrap(),
                None => steps += 1,
            }
        };
        assert_eq!((stepwise, words), (meta, whole));
        // Each key is entered, peeled and filled, and each slot looked at.
        let least = if kind == IndexKind::Compact { 4 * RECORDS / 100 } else { 2 };
        assert!(steps >= least, "{steps} steps");
    }
}

#[test]
fn a_static_function_survives_equal_hashes() {
    let hash = |number: u64| KeyBuf::from_number(number).key().hash();
    for keys in (0..100).chain([1_000, 30_000]) {
        let mut entries: Vec<(u64, u8)> =
            (0..keys).map(|number| (hash(number), (number % 16) as u8)).collect();
        let words = build_locate(&entries, 0..64).unwrap();
        let locate = LocateFunction::open(&words).unwrap();
        for &(hash, place) in &entries {
            assert_eq!(locate.find(hash), GroupPlace::At(place));
        }
        // Three keys with one hash, and two with another.
        let twice = [(hash(0), 3), (hash(0), 4), (hash(1), 15)];
        entries.extend(twice.iter().take(if keys > 1 { 3 } else { 0 }));
        let words = build_locate(&entries, 0..64).unwrap();
        let locate = LocateFunction::open(&words).unwrap();
        for (number, &(hash, place)) in entries.iter().enumerate().take(keys as usize) {
            let expected =
                if keys > 1 && number < 2 { GroupPlace::Anywhere } else { GroupPlace::At(place) };
            assert_eq!(locate.find(hash), expected, "{number} of {keys}");
        }
    }
    assert_eq!(build_locate(&[(1, 0)], 0..0), None, "the caller then builds a filter");
}

proptest! {
    #[test]
    fn keys_are_ordered_as_their_bytes(one in key(), two in key(), dirt in any::<u64>()) {
        let [a, b] = [&one, &two].map(|bytes| KeyBuf::from_bytes(bytes));
        prop_assert_eq!(a.key().cmp(&b.key()), one.cmp(&two));
        prop_assert_eq!(a.key().to_vec(), one.clone());
        // lsm.B1: the bytes after a key in its last word do not matter.
        let mut words: Vec<u64> = (0..a.key().words()).map(|index| a.key().word(index)).collect();
        if let Some(last) = words.last_mut() && one.len() % 8 > 0 {
            *last |= dirt << (one.len() % 8 * 8);
        }
        let dirty = TableKey::new(&words, one.len()).unwrap();
        prop_assert!(dirty == a.key() && dirty.hash() == a.key().hash());
        prop_assert_eq!(dirty.cmp(&b.key()), one.cmp(&two));
        prop_assert_eq!(a.key().hash() == b.key().hash(), one == two);
        prop_assert!(one >= two || a.key().head() <= b.key().head());
    }

    #[test]
    fn keys_of_numbers_are_ordered_as_numbers(one: u64, two: u64) {
        let [a, b] = [one, two].map(KeyBuf::from_number);
        prop_assert_eq!(a.key().cmp(&b.key()), one.cmp(&two));
        prop_assert_eq!(a.key().number(), Some(one));
        prop_assert_eq!(a.key().to_vec(), one.to_be_bytes().to_vec());
    }

    /// Every version, read at every bound, with every kind of index, and absent keys.
    #[test]
    fn tables_answer_like_a_map(versions in versions(), absent in vec(key(), 0..30)) {
        for kind in KINDS {
            let Some(table) = build(5, kind, &versions) else {
                prop_assert!(versions.is_empty());
                continue;
            };
            let footer = &table.meta.footer;
            let tombstones = versions.values().filter(|value| value.is_none()).count() as u64;
            let keys: BTreeSet<&Vec<u8>> = versions.keys().map(|version| &version.0).collect();
            prop_assert_eq!(footer.records, versions.len() as u64);
            prop_assert_eq!((footer.keys, footer.tombstones), (keys.len() as u64, tombstones));
            let sequences = versions.keys().map(|version| version.1.0);
            prop_assert_eq!(Some(footer.lowest), sequences.clone().min());
            prop_assert_eq!(Some(footer.highest), sequences.max());
            for key in keys.into_iter().chain(&absent) {
                for bound in [0, 1, 20, 30, 45, 59, MAX_SEQUENCE] {
                    let (value, reads) = table.get(key, bound).unwrap();
                    prop_assert_eq!(value, expected(&versions, key, bound), "{:?} {}", key, bound);
                    prop_assert!(reads <= 2);
                }
                let covers = table.meta.covers(KeyBuf::from_bytes(key).key());
                prop_assert!(covers || expected(&versions, key, MAX_SEQUENCE).is_none());
            }
        }
    }

    #[test]
    fn cursors_move_like_iterators_of_a_map(
        versions in versions(),
        moves in vec((0..3_u8, key(), 0..60_u64), 1..60),
    ) {
        let table = build(5, IndexKind::Compact, &versions);
        let data = table.as_ref().map_or(&[][..], Table::data);
        let run = RecordRun::new(data, 5).unwrap();
        prop_assert_eq!(run.len(), versions.len());
        let all: Vec<_> = versions.clone().into_iter().collect();
        let (mut cursor, mut at) = (RecordCursor::at_start(&run), 0);
        for (what, key, sequence) in moves {
            let found = match what {
                0 => {
                    let (words, target) = (KeyBuf::from_bytes(&key), (key, Reverse(sequence)));
                    cursor.seek(words.key(), sequence).unwrap();
                    at = all.partition_point(|(version, _)| *version < target);
                    continue;
                }
                1 => (cursor.next().unwrap().map(version_of), all.get(at).cloned()),
                _ => {
                    let before = at.checked_sub(1).map(|before| all[before].clone());
                    (cursor.prev().unwrap().map(version_of), before)
                }
            };
            prop_assert_eq!(&found.0, &found.1);
            at = if what == 1 { all.len().min(at + 1) } else { at.saturating_sub(1) };
        }
        let mut cursor = RecordCursor::at_end(&run);
        for version in all.iter().rev() {
            let found = cursor.prev().unwrap().map(version_of);
            prop_assert_eq!(found.as_ref(), Some(version));
        }
        prop_assert!(cursor.prev().unwrap().is_none());
    }

    /// Scans in both directions read pieces that begin and end between keys, and skip nothing.
    #[test]
    fn pieces_of_a_table_follow_each_other(
        versions in versions(),
        from in key(),
        at_most in prop_oneof![Just(0_u32), 1..200_u32, Just(u32::MAX)],
    ) {
        for kind in KINDS {
            let Some(table) = build(5, kind, &versions) else { continue };
            let read = |words: std::ops::Range<u32>| {
                let words = &table.words[words.start as usize..words.end as usize];
                let run = RecordRun::new(words, 5).unwrap();
                let mut cursor = RecordCursor::at_start(&run);
                let mut found = Vec::new();
                while let Some(record) = cursor.next().unwrap() {
                    found.push(version_of(record));
                }
                found
            };
            let begin = table.index.seek(KeyBuf::from_bytes(&from).key()).unwrap();
            let (mut right, mut at) = (Vec::new(), begin);
            loop {
                let words = table.index.after(at, at_most).unwrap();
                if words.is_empty() {
                    break;
                }
                prop_assert!(at_most != u32::MAX || words.end as usize == table.data().len());
                right.extend(read(words.clone()));
                at = words.end;
            }
            prop_assert_eq!(at as usize, table.data().len());
            right.retain(|(version, _)| version.0 >= from);
            let expected: Versions = versions.range((from.clone(), Reverse(u64::MAX))..)
                .map(|(version, value)| (version.clone(), value.clone())).collect();
            prop_assert_eq!(right, expected.into_iter().collect::<Vec<_>>());

            let (mut left, mut at) = (Vec::new(), table.data().len() as u32);
            while at > 0 {
                let words = table.index.before(at, at_most).unwrap();
                prop_assert!(words.start < at && words.end == at);
                let mut piece = read(words.clone());
                piece.reverse();
                left.extend(piece);
                at = words.start;
            }
            prop_assert!(table.index.before(0, at_most).unwrap().is_empty());
            // All of `from` and below lies before it, and reading down may begin there.
            let behind = table.index.seek_behind(KeyBuf::from_bytes(&from).key()).unwrap();
            prop_assert!(read(behind..table.data().len() as u32)
                .iter().all(|(version, _)| version.0 > from));
            prop_assert_eq!(table.index.before(behind, u32::MAX).unwrap(), 0..behind);
            let above = read(0..behind).into_iter().filter(|(version, _)| version.0 > from).count();
            prop_assert!(kind != KINDS[1] || above == 0, "a full index knows each record");
            prop_assert_eq!(left, versions.clone().into_iter().rev().collect::<Vec<_>>());
        }
    }

    #[test]
    fn descriptions_are_read_as_they_were_written(
        versions in versions(),
        extents in vec((0..u32::MAX / 2, 1..9_u32), 0..9),
        clip in (any::<bool>(), any::<bool>(), key(), key()),
        words in (0..500_u32, 0..500_u32, 1..90_u32),
        damages in vec((any::<Choice>(), any::<u64>()), 1..4),
    ) {
        let Some(table) = build(9, IndexKind::Compact, &versions) else { return Ok(()) };
        let mut meta = table.meta;
        meta.extents = extents.iter().map(|&(first, count)| ExtentRun { first, count }).collect();
        meta.clip.lower = clip.0.then(|| KeyBuf::from_bytes(&clip.2));
        meta.clip.upper = clip.1.then(|| KeyBuf::from_bytes(&clip.3));
        for key in [&clip.2, &clip.3] {
            let inside = (!clip.0 || *key >= clip.2) && (!clip.1 || *key < clip.3);
            prop_assert_eq!(meta.clip.has(KeyBuf::from_bytes(key).key()), inside);
        }
        let mut encoded = vec![];
        meta.encode(&mut encoded);
        meta.encode(&mut encoded);
        let mut rest = &encoded[..];
        prop_assert_eq!(&SsTableMeta::decode(&mut rest).unwrap(), &meta);
        prop_assert_eq!(&SsTableMeta::decode(&mut rest).unwrap(), &meta);
        prop_assert!(rest.is_empty());

        // The extents of the words, one word at a time.
        let numbers: Vec<u32> =
            extents.iter().flat_map(|&(first, count)| first..first + count).collect();
        let (begin, count, extent_words) = words;
        let pieces = meta.pieces(begin..begin + count, extent_words);
        let found: Vec<(u32, u32)> = pieces
            .flat_map(|(extent, words)| words.map(move |word| (extent, word)))
            .collect();
        let place = |word: u32| {
            Some((*numbers.get((word / extent_words) as usize)?, word % extent_words))
        };
        let expected: Vec<_> = (begin..begin + count).map_while(place).collect();
        prop_assert_eq!(found, expected);

        let half = encoded.len() / 2;
        let intact = encoded[..half].to_vec();
        damage(&mut encoded[..half], &damages);
        let decoded = SsTableMeta::decode(&mut &encoded[..half]);
        prop_assert!(decoded.is_err() || encoded[..half] == intact[..]);
        prop_assert!(SsTableMeta::decode(&mut &intact[..half - 1]).is_err());
    }
}

/// Calls all functions that read sections, on words that may not be sections.
fn read_sections(words: &[u64], keys: &[Vec<u8>]) {
    let probes = keys.iter().map(|key| KeyBuf::from_bytes(key));
    for probe in probes {
        let (key, hash) = (probe.key(), probe.key().hash());
        if let Some(fences) = SsTableFences::open(words) {
            let group = fences.group_of(key);
            assert!(group < fences.groups().max(1));
            fences.fence(group);
            for place in [0, 3, 255] {
                if let Some(words) = fences.record_words(group, place) {
                    let all = fences.group_words(group).unwrap();
                    assert!(all.start <= words.start && words.end <= all.end);
                }
            }
            assert_eq!(fences.group_words(fences.groups()), None);
        }
        if let Some(index) = FullIndex::open(words) {
            assert!(index.seek(key, 7) <= index.records());
            index.find(key, 7);
            index.record_words(u32::MAX);
        }
        if let Some(locate) = LocateFunction::open(words) {
            locate.find(hash);
        }
        if let Some(bloom) = BloomFilter::open(words) {
            bloom.may_have(hash);
        }
    }
}

/// A record's check has 16 bits, so one damage in 65,536 goes unnoticed. These cases are fixed, so
/// that no run hits such a damage by chance.
fn fixed_cases() -> ProptestConfig {
    ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(fixed_cases())]

    /// lsm.B8 for sections, without the checksums that would reject them first (lsm.B7).
    #[test]
    fn damaged_sections_are_read_within_their_words(
        versions in versions(),
        keys in vec(key(), 1..9),
        damages in vec((any::<Choice>(), any::<u64>()), 0..6),
        arbitrary in vec(prop_oneof![any::<u64>(), 0..9_u64, Just(1 << 32 | 1)], 0..40),
    ) {
        read_sections(&arbitrary, &keys);
        prop_assert!(SsTableIndex::open(arbitrary, 5).is_err());
        for kind in KINDS {
            let Some(table) = build(5, kind, &versions) else { continue };
            let mut sections = table.words[table.data().len()..].to_vec();
            let intact = sections.clone();
            damage(&mut sections, &damages);
            let opened = SsTableIndex::open(sections.clone(), 5);
            prop_assert_eq!(opened.is_ok(), sections == intact);
            prop_assert!(SsTableIndex::open(intact, 6).is_err());
            // The search section and the membership section separately.
            let words = table.meta.footer.encode()[8];
            let middle = ((words >> 32) as usize) - table.data().len();
            let end = sections.len() - 16;
            read_sections(&sections[..middle], &keys);
            read_sections(&sections[middle..end], &keys);
            let footer = &sections[end..];
            let is_whole = footer == table.meta.footer.encode();
            prop_assert_eq!(SsTableFooter::decode(footer, 5).is_ok(), is_whole);
        }
    }

    /// With damaged records, a lookup or a cursor reports the damage or returns correct values.
    #[test]
    fn damaged_records_give_no_wrong_value(
        versions in versions(),
        damages in vec((any::<Choice>(), any::<u64>()), 1..6),
        arbitrary in vec(any::<u64>(), 0..40),
    ) {
        prop_assert!(SsTableRecord::parse(&arbitrary, 5).is_err());
        let run = RecordRun::new(&arbitrary[..], 5);
        prop_assert!(arbitrary.is_empty() || run.is_err());
        for kind in KINDS {
            let Some(mut table) = build(5, kind, &versions) else { continue };
            let data = table.data().len();
            damage(&mut table.words[..data], &damages);
            for version in versions.keys() {
                let expected = expected(&versions, &version.0, version.1.0);
                if let Ok((value, _)) = table.get(&version.0, version.1.0) {
                    prop_assert_eq!(value, expected);
                }
            }
            if let Ok(run) = RecordRun::new(table.data(), 5) {
                let mut cursor = RecordCursor::at_end(&run);
                while let Ok(Some(record)) = cursor.prev() {
                    let (version, value) = version_of(record);
                    prop_assert_eq!(versions.get(&version), Some(&value));
                }
            }
        }
    }
}
