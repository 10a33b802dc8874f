//! Fuzzes tables of the LSM index: arbitrary words as records, sections and descriptions, and
//! merges of small tables in any steps, whose words may be damaged, against a `BTreeMap`.
#![no_main]

use farleaf_page::table::{
    BloomFilter, Compaction, CompactionError, CompactionOptions, CompactionProgress, FullIndex,
    IndexKind, KeyBuf, LocateFunction, LowerLevels, RecordCursor, RecordKind, RecordRun,
    SsTableBuilder, SsTableClip, SsTableFences, SsTableFooter, SsTableIndex, SsTableLookup,
    SsTableMeta, SsTableRecord, VisibleVersion, pick,
};
use libfuzzer_sys::fuzz_target;
use std::cmp::Reverse;
use std::collections::BTreeMap;

type Versions = BTreeMap<(Vec<u8>, Reverse<u64>), Option<Vec<u8>>>;

fn read_arbitrary(words: &[u64], key: &KeyBuf) {
    let key = key.key();
    let _ = SsTableRecord::parse(words, 1);
    let _ = pick(words, 1, key, 5);
    let _ = SsTableFooter::decode(words, 1);
    let mut rest = words;
    if let Ok(meta) = SsTableMeta::decode(&mut rest) {
        let mut again = Vec::new();
        meta.encode(&mut again);
        assert_eq!(again, words[..words.len() - rest.len()]);
    }
    if let Ok(run) = RecordRun::new(words, 1) {
        let mut cursor = RecordCursor::at_start(&run);
        let _ = cursor.seek(key, 7);
        while let Ok(Some(_)) = cursor.next() {}
    }
    if let Ok(index) = SsTableIndex::open(words.to_vec(), 1) {
        let _ = index.find(key, key.hash(), 7);
        let _ = (index.split_keys(3), index.seek_behind(key));
        if let Ok(word) = index.seek(key) {
            let _ = (index.after(word, 99), index.before(word, 99));
        }
    }
    if let Some(fences) = SsTableFences::open(words) {
        let group = fences.group_of(key);
        fences.fence(group);
        fences.record_words(group, 3);
    }
    if let Some(index) = FullIndex::open(words) {
        index.find(key, 7);
    }
    if let Some(locate) = LocateFunction::open(words) {
        locate.find(key.hash());
    }
    if let Some(bloom) = BloomFilter::open(words) {
        bloom.may_have(key.hash());
    }
}

fn version_of(record: SsTableRecord<'_>) -> ((Vec<u8>, Reverse<u64>), Option<Vec<u8>>) {
    let mut value = Vec::new();
    record.append_value(&mut value);
    let value = (record.kind() == RecordKind::Value).then_some(value);
    ((record.key().to_vec(), Reverse(record.sequence())), value)
}

fn kind_of(byte: u8) -> IndexKind {
    match byte % 3 {
        0 => IndexKind::Compact,
        1 => IndexKind::Full { bloom_bits: 10 },
        _ => IndexKind::Blocks { block_bytes: u32::from(byte) * 4, bloom_bits: 10 },
    }
}

/// Looks up every version of a table that was written whole.
fn check(words: &[u64], meta: &SsTableMeta, versions: &Versions) {
    let (data, id) = (meta.footer.data_words as usize, meta.footer.table);
    let index = SsTableIndex::open(words[data..].to_vec(), id).unwrap();
    for (version, value) in versions {
        let (key, bound) = (KeyBuf::from_bytes(&version.0), version.1.0);
        let key = key.key();
        let found = match index.find(key, key.hash(), bound).unwrap() {
            SsTableLookup::Absent => panic!("a key of the table is called absent"),
            SsTableLookup::Group(words) => words,
            SsTableLookup::Record { words, end } => words.start..end,
        };
        let words = &words[found.start as usize..found.end as usize];
        let VisibleVersion::Record(record) = pick(words, id, key, bound).unwrap() else {
            panic!("a version is not found")
        };
        assert_eq!(version_of(record), (version.clone(), value.clone()));
    }
}

fn play(data: &[u8]) {
    let Some((&[head, piece, budget, place, flip], rest)) = data.split_first_chunk() else {
        return;
    };
    let mut parts = vec![Versions::new(); 3];
    for (number, step) in rest.chunks_exact(4).enumerate() {
        let mut key = vec![step[0] % 32; usize::from(step[0] % 5)];
        key.push(step[1]);
        let value = (step[2] % 4 > 0).then(|| vec![step[3]; usize::from(step[2])]);
        let sequence = Reverse(number as u64 + 1);
        parts[usize::from(step[3] % 3)].insert((key, sequence), value);
    }
    let mut tables: Vec<(u64, Vec<u64>)> = Vec::new();
    for (id, versions) in (1..).zip(&parts) {
        let (mut builder, mut words) = (SsTableBuilder::new(id, 9, kind_of(head)), Vec::new());
        for ((key, sequence), value) in versions {
            let kind = if value.is_some() { RecordKind::Value } else { RecordKind::Tombstone };
            let (key, value) = (KeyBuf::from_bytes(key), value.as_deref().unwrap_or(&[]));
            builder.add(key.key(), sequence.0, kind, value, &mut words).unwrap();
        }
        if let Some(meta) = builder.finish(1, &mut words) {
            check(&words, &meta, versions);
            words.truncate(meta.footer.data_words as usize);
        }
        tables.push((id, words));
    }
    let damaged = &mut tables[usize::from(head % 3)].1;
    let is_damaged = flip > 0 && !damaged.is_empty();
    if is_damaged {
        let place = usize::from(place) % damaged.len();
        damaged[place] ^= 1 << (flip % 64);
    }
    let options = CompactionOptions {
        range: SsTableClip::default(),
        snapshots: if head & 64 > 0 { vec![u64::from(place)] } else { Vec::new() },
        below: if head & 128 > 0 { LowerLevels::everything() } else { LowerLevels::nothing() },
        cuts: vec![KeyBuf::from_bytes(&[piece % 32])],
        table_words: u32::from(budget) * 8,
    };
    let all: Versions = parts.into_iter().flatten().collect();
    let mut expected = all.clone();
    let is_seen = |version: &(Vec<u8>, Reverse<u64>), bound: u64| {
        let newest = all.range((version.0.clone(), Reverse(bound))..).next();
        newest.is_some_and(|(newest, _)| newest == version)
    };
    expected.retain(|version, value| {
        let seen = is_seen(version, u64::MAX)
            || options.snapshots.iter().any(|&bound| is_seen(version, bound));
        let hides = head & 128 > 0 || options.snapshots.iter().any(|&bound| bound < version.1.0);
        seen && (value.is_some() || hides)
    });

    let mut merge = Compaction::new(tables.len(), options);
    let (mut builder, mut words) = (SsTableBuilder::new(10, 9, kind_of(piece)), Vec::new());
    for (source, (id, _)) in tables.iter().enumerate() {
        merge.begin(source, *id, &SsTableClip::default()).unwrap();
    }
    let mut fed = [0; 3];
    let mut merged = Versions::new();
    let mut step = || -> Result<(), CompactionError> {
        loop {
            match merge.step(u64::from(budget) + 1, &mut builder, &mut words)? {
                CompactionProgress::Spent => {}
                CompactionProgress::NeedsInput(source) => {
                    let data = &tables[source].1;
                    let end = data.len().min(fed[source] + usize::from(piece) + 1);
                    match &data[fed[source]..end] {
                        [] => merge.end(source)?,
                        words => merge.feed(source, words)?,
                    }
                    fed[source] = end;
                }
                progress => {
                    let next = SsTableBuilder::new(builder.table() + 1, 9, kind_of(piece));
                    let done = std::mem::replace(&mut builder, next);
                    if let Some(meta) = done.finish(2, &mut words) {
                        let id = meta.footer.table;
                        let run =
                            RecordRun::new(&words[..meta.footer.data_words as usize], id).unwrap();
                        let mut cursor = RecordCursor::at_start(&run);
                        let mut found = Versions::new();
                        while let Some(record) = cursor.next().unwrap() {
                            found.extend([version_of(record)]);
                        }
                        check(&words, &meta, &found);
                        merged.extend(found);
                    }
                    words.clear();
                    if progress == CompactionProgress::Done {
                        return Ok(());
                    }
                }
            }
        }
    };
    match step() {
        // A check has 16 bits: one damage of 65,536 is not seen, and a fuzzer finds it.
        Ok(()) => assert!(is_damaged || merged == expected),
        Err(error) => assert!(is_damaged, "{error}"),
    }
}

fuzz_target!(|data: &[u8]| {
    let words: Vec<u64> =
        data.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    read_arbitrary(&words, &KeyBuf::from_bytes(&data[..data.len().min(20)]));
    play(data);
});
