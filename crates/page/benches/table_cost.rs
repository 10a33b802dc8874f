//! What tables of the LSM index cost one core: writing, merging, scanning and looking up records of
//! 20 + 400 bytes, all in local memory, for each kind of index. Times are processor time of the one
//! thread, so that other work on the machine counts little.
//!
//! `cargo bench -p farleaf-page --bench table_cost -- [RECORDS [TABLES [ROUNDS]]]`

use farleaf_page::table::{
    Compaction, CompactionOptions, CompactionProgress, IndexKind, KeyBuf, LowerLevels,
    MAX_SEQUENCE, RecordCursor, RecordKind, RecordRun, SsTableBuilder, SsTableClip, SsTableIndex,
    SsTableLookup, SsTableMeta, VisibleVersion, pick,
};
use std::hint::black_box;

const VALUE: [u8; 400] = [7; 400];
/// Words per input piece of a merge: 256 KiB.
const PIECE: usize = 32 * 1024;

fn key(number: u64) -> KeyBuf {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    KeyBuf::from_bytes(format!("{mixed:020}").as_bytes())
}

struct Table {
    words: Vec<u64>,
    meta: SsTableMeta,
}

fn build(id: u64, kind: IndexKind, keys: &[KeyBuf]) -> Table {
    let (mut builder, mut words) =
        (SsTableBuilder::new(id, 0, kind), Vec::with_capacity(keys.len() * 61));
    for key in keys {
        builder.add(key.key(), id, RecordKind::Value, &VALUE, &mut words).unwrap();
    }
    let meta = builder.finish(0, &mut words).unwrap();
    Table { words, meta }
}

impl Table {
    fn data(&self) -> &[u64] {
        &self.words[..self.meta.footer.data_words as usize]
    }
}

fn merge(tables: &[Table], kind: IndexKind) -> (u64, u64) {
    let options = CompactionOptions {
        range: SsTableClip::default(),
        snapshots: Vec::new(),
        below: LowerLevels::nothing(),
        cuts: Vec::new(),
        table_words: 8 << 20,
    };
    let mut merge = Compaction::new(tables.len(), options);
    for (source, table) in tables.iter().enumerate() {
        merge.begin(source, table.meta.footer.table, &SsTableClip::default()).unwrap();
    }
    let mut fed = vec![0; tables.len()];
    let (mut builder, mut out) =
        (SsTableBuilder::new(1000, 0, kind), Vec::with_capacity(PIECE * 2));
    loop {
        // A server would send the output to the pool; here it is discarded.
        match merge.step(PIECE as u64, &mut builder, &mut out).unwrap() {
            CompactionProgress::Spent => {
                black_box(&out);
                out.clear();
            }
            CompactionProgress::NeedsInput(source) => {
                let (data, begin) = (tables[source].data(), fed[source]);
                if begin == data.len() {
                    merge.end(source).unwrap();
                    continue;
                }
                let end = data.len().min(begin + PIECE);
                merge.feed(source, &data[begin..end]).unwrap();
                fed[source] = end;
            }
            progress => {
                let next = SsTableBuilder::new(builder.table() + 1, 0, kind);
                black_box(std::mem::replace(&mut builder, next).finish(1, &mut out));
                out.clear();
                if progress == CompactionProgress::Done {
                    return (merge.counts().words_in * 8, merge.counts().records_out);
                }
            }
        }
    }
}

fn lookups(table: &Table, index: &SsTableIndex, keys: &[KeyBuf]) -> usize {
    let mut found = 0;
    for key in keys {
        let key = key.key();
        let words = match index.find(key, key.hash(), MAX_SEQUENCE).unwrap() {
            SsTableLookup::Absent => continue,
            SsTableLookup::Group(words) | SsTableLookup::Record { words, .. } => words,
        };
        let words = &table.words[words.start as usize..words.end as usize];
        let picked = pick(words, table.meta.footer.table, key, MAX_SEQUENCE).unwrap();
        found += usize::from(matches!(black_box(picked), VisibleVersion::Record(_)));
    }
    found
}

/// Processor time of this thread, in seconds, from Linux.
fn processor_seconds() -> f64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("cannot read schedstat");
    let spent_ns: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap();
    spent_ns / 1e9
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let records = numbers.first().copied().unwrap_or(152_000);
    let tables = numbers.get(1).copied().unwrap_or(8);
    let rounds = numbers.get(2).copied().unwrap_or(5);
    let sorted = |table: u64| {
        let mut keys: Vec<KeyBuf> = (0..records).map(|n| key(n * tables + table)).collect();
        keys.sort();
        keys
    };
    let all: Vec<Vec<KeyBuf>> = (0..tables).map(sorted).collect();
    // Look keys up in random order. The keys of the next table are the absent ones.
    let order = |keys: &[KeyBuf]| -> Vec<KeyBuf> {
        (0..records).map(|n| keys[(n * 7919 % records) as usize].clone()).collect()
    };
    let (present, absent) = (order(&all[0]), order(&all[1 % all.len()]));
    for (name, kind) in [
        ("compact", IndexKind::Compact),
        ("full", IndexKind::Full { bloom_bits: 10 }),
        ("blocks of 8 KiB", IndexKind::Blocks { block_bytes: 8192, bloom_bits: 10 }),
    ] {
        let mut samples: [Vec<f64>; 5] = Default::default();
        for _ in 0..rounds {
            let time = processor_seconds();
            let built: Vec<Table> =
                (1..).zip(&all).map(|(id, keys)| build(id, kind, keys)).collect();
            samples[0].push((tables * records * 440) as f64 / (processor_seconds() - time) / 1e6);
            let time = processor_seconds();
            let (bytes, records_out) = merge(&built, kind);
            samples[1].push(bytes as f64 / (processor_seconds() - time) / 1e6);
            assert_eq!(records_out, records * tables);
            let table = &built[0];
            let time = processor_seconds();
            let run = RecordRun::new(table.data(), 1).unwrap();
            let mut cursor = RecordCursor::at_start(&run);
            while let Some(record) = cursor.next().unwrap() {
                black_box(record);
            }
            samples[2].push(records as f64 / (processor_seconds() - time) / 1e6);
            let sections = table.words[table.data().len()..].to_vec();
            let index = SsTableIndex::open(sections, 1).unwrap();
            for (place, keys, expected) in [(3, &present, records), (4, &absent, 0)] {
                let time = processor_seconds();
                let found = lookups(table, &index, keys);
                samples[place].push(records as f64 / (processor_seconds() - time) / 1e6);
                assert_eq!(found as u64, if tables > 1 { expected } else { records });
            }
        }
        let [write, merge, scan, present, absent] = samples.each_mut().map(|one| median(one));
        println!(
            "{name}: write {write:.0} MB/s, merge {merge:.0} MB/s of input, scan {scan:.2} M \
             records/s, get {present:.2} M/s, absent {absent:.2} M/s"
        );
    }
}
