//! dLSM beside LSM engines of one process, and its MemTable beside a skip list: what a record of 20
//! + 400 bytes, the paper's, costs in each phase of an engine's life.
//!
//! Each round creates every engine anew, in rotating order, and takes it through all phases: fill
//! it in a scattered order, look keys up, scan everything, and merge everything. Costs are
//! processor time of the whole process, with all threads of the engine and the system calls that
//! they make, so that other work on the machine and the number of its cores count little. The rates
//! beside them are of the clock. The first scan of an engine is not measured: it checks every
//! record, and fills the engine's cache.
//!
//! Two things favor dLSM. Its memory server has its memory before the measurement, but the files of
//! other engines get theirs while they are written. And its fill ends with the last flush, while
//! that of an engine with threads of its own ends when these have nothing left to do.
//!
//! *Invariants*
//! - lsm.N1. A lookup or a scan that finds something else than what was written ends the whole
//!   comparison.
//! - lsm.N2. All engines get the same records, in the same order, and tables of the same size.
//!
//! *Thread safety*: the engines run threads of their own.

mod engines;
mod memtables;
mod records;
#[cfg(feature = "rocksdb")]
mod rocks;

use crate::{count, median};
use anyhow::{Context, ensure};
use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use records::WrittenRecords;
use serde::Serialize;
use std::time::Instant;

/// Compare dLSM with other LSM engines: records of 20 + 400 bytes, no sync, no compression.
#[derive(Debug, Args)]
pub(crate) struct LsmArguments {
    /// Write and read this many records; k, M and G may follow the number
    #[arg(long, value_name = "N", default_value = "1M", value_parser = count)]
    records: u64,
    /// Give tables and MemTables this many MiB
    #[arg(long, value_name = "MIB", default_value = "16", value_parser = clap::value_parser!(u64).range(1..=256))]
    table_mib: u64,
    /// Run each engine in this many rounds
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Fill and look up with each of these numbers of threads
    #[arg(
        long,
        value_name = "N,N,…",
        value_delimiter = ',',
        default_value = "1,2",
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    threads: Vec<u16>,
    /// Run only these engines; `dlsm` is always one of them
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Write one JSON object to stdout instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Sizes that all engines have.
#[derive(Clone, Copy, Debug)]
struct EngineSizes {
    /// Bytes of keys and values.
    data_bytes: u64,
    /// Bytes of a table, and of a MemTable.
    table_bytes: u64,
}

/// An engine without records.
trait EmptyEngine {
    /// Writes all records from `threads` threads, and returns once they are in tables and no merge
    /// is under way.
    fn fill(&self, records: &WrittenRecords, threads: usize) -> anyhow::Result<()>;

    /// Looks all keys up from `threads` threads.
    fn get(&self, records: &WrittenRecords, threads: usize) -> anyhow::Result<()>;

    /// Scans all records, on one thread.
    fn scan(&self, records: &WrittenRecords) -> anyhow::Result<()>;

    /// Merges all tables, on one thread.
    fn merge(&self, records: &WrittenRecords) -> anyhow::Result<()>;
}

/// A list of engines: their names, and how to create one.
type Engines = Vec<(&'static str, fn(&EngineSizes) -> anyhow::Result<Box<dyn EmptyEngine>>)>;

/// The name of the baseline.
const DLSM: &str = "dlsm";
/// That of its MemTable, and of what it is compared with.
const MEMTABLE: &str = "dlsm's MemTable";
const SKIPLIST: &str = "crossbeam-skiplist";

fn all_engines() -> Engines {
    vec![
        (DLSM, |sizes| Ok(Box::new(engines::InMemory::new(sizes)?))),
        ("fjall", |sizes| Ok(Box::new(engines::Fjall::new(sizes)?))),
        #[cfg(feature = "rocksdb")]
        ("rocksdb", |sizes| Ok(Box::new(rocks::RocksDb::new(sizes)?))),
    ]
}

/// What a phase took.
#[derive(Clone, Copy, Debug)]
struct PhaseCost {
    processor_seconds: f64,
    seconds: f64,
}

/// Processor time of this process so far, in seconds: that of all its threads, also ended ones.
fn processor_seconds() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").context("cannot read processor time")?;
    // The name of the program, in parentheses, may have spaces.
    let fields = text.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
    let ticks = fields.into_iter().flatten().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<_, _>>().context("cannot read processor time")?;
    // Linux shows hundredths of a second on all architectures.
    Ok(ticks as f64 / 100.0)
}

#[expect(clippy::disallowed_methods, reason = "this measures real time")]
fn measured(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<PhaseCost> {
    let (began, processor) = (Instant::now(), processor_seconds()?);
    work()?;
    let processor_seconds = processor_seconds()? - processor;
    Ok(PhaseCost { processor_seconds, seconds: began.elapsed().as_secs_f64() })
}

/// What one engine takes for one record in one phase.
#[derive(Debug, Serialize)]
struct LsmRow {
    phase: &'static str,
    threads: u16,
    engine: &'static str,
    /// Processor time.
    median_ns: f64,
    min_ns: f64,
    max_ns: f64,
    median_m_records_per_s: f64,
    /// Its processor time divided by that of dLSM.
    times_dlsm: f64,
}

/// The measured results and the settings that produced them.
#[derive(Debug, Serialize)]
pub(crate) struct LsmComparison {
    records: u64,
    table_bytes: u64,
    rounds: u32,
    rows: Vec<LsmRow>,
}

/// The samples of a phase with some number of threads, by engine.
#[derive(Debug)]
struct PhaseSamples {
    name: &'static str,
    threads: u16,
    samples: Vec<(&'static str, Vec<PhaseCost>)>,
}

/// All phases so far, in the order in which they were first measured.
#[derive(Debug, Default)]
struct Phases(Vec<PhaseSamples>);

impl Phases {
    fn add(&mut self, name: &'static str, threads: u16, engine: &'static str, cost: PhaseCost) {
        let is_it = |phase: &&mut PhaseSamples| phase.name == name && phase.threads == threads;
        let phase = match self.0.iter_mut().find(is_it) {
            Some(phase) => phase,
            None => self.0.push_mut(PhaseSamples { name, threads, samples: Vec::new() }),
        };
        match phase.samples.iter_mut().find(|(other, _)| *other == engine) {
            Some((_, costs)) => costs.push(cost),
            None => phase.samples.push((engine, vec![cost])),
        }
    }

    fn rows(mut self, records: u64, order: &[&'static str]) -> Vec<LsmRow> {
        let mut rows: Vec<LsmRow> = Vec::new();
        for PhaseSamples { name, threads, samples } in &mut self.0 {
            samples.sort_by_key(|(engine, _)| order.iter().position(|other| other == engine));
            let mut first_ns = f64::NAN;
            for (engine, costs) in samples {
                let sorted = |of: fn(&PhaseCost) -> f64| {
                    let mut each: Vec<_> = costs.iter().map(of).collect();
                    each.sort_by(f64::total_cmp);
                    each
                };
                let each_ns = sorted(|cost| cost.processor_seconds).into_iter();
                let each_ns: Vec<_> = each_ns.map(|all| all * 1e9 / records as f64).collect();
                let median_ns = median(&each_ns);
                if first_ns.is_nan() {
                    first_ns = median_ns;
                }
                rows.push(LsmRow {
                    phase: name,
                    threads: *threads,
                    engine,
                    median_ns,
                    min_ns: each_ns[0],
                    max_ns: each_ns[each_ns.len() - 1],
                    median_m_records_per_s: records as f64
                        / median(&sorted(|cost| cost.seconds))
                        / 1e6,
                    times_dlsm: median_ns / first_ns,
                });
            }
        }
        rows
    }
}

/// Takes one new engine through all phases.
fn live(
    engine: &dyn EmptyEngine,
    name: &'static str,
    records: &WrittenRecords,
    threads: u16,
    phases: &mut Phases,
) -> anyhow::Result<()> {
    let mut phase = |phase, threads, work: &dyn Fn() -> anyhow::Result<()>| {
        let cost = measured(work).with_context(|| format!("{name}: cannot {phase}"))?;
        phases.add(phase, threads, name, cost);
        anyhow::Ok(())
    };
    phase("fill", threads, &|| engine.fill(records, threads.into()))?;
    engine.scan(records).with_context(|| format!("{name}: cannot scan"))?;
    phase("get", threads, &|| engine.get(records, threads.into()))?;
    phase("scan", 1, &|| engine.scan(records))?;
    phase("merge", 1, &|| engine.merge(records))?;
    engine.scan(records).with_context(|| format!("{name}: cannot scan after the merge"))
}

pub(crate) fn compare(arguments: &LsmArguments) -> anyhow::Result<LsmComparison> {
    let mut engines = all_engines();
    let names: Vec<_> = engines.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = arguments.only.iter().find(|name| !names.contains(&name.as_str())) {
        anyhow::bail!("unknown engine {unknown}: expected one of {}", names.join(", "));
    }
    engines.retain(|(name, _)| {
        arguments.only.is_empty() || *name == DLSM || arguments.only.iter().any(|one| one == name)
    });
    let records = WrittenRecords::new(arguments.records)?;
    let table_bytes = arguments.table_mib << 20;
    let sizes = EngineSizes { data_bytes: records.bytes(), table_bytes };
    let mut phases = Phases::default();
    for threads in &arguments.threads {
        for round in 0..arguments.rounds as usize {
            for turn in 0..engines.len() {
                let (name, create) = engines[(turn + round) % engines.len()];
                let engine = create(&sizes).with_context(|| format!("cannot create {name}"))?;
                live(&*engine, name, &records, *threads, &mut phases)?;
            }
            memtables::live(&records, *threads, round % 2 == 1, &mut phases)?;
            eprintln!("{threads} threads: round {} of {} done", round + 1, arguments.rounds);
        }
    }
    let order: Vec<_> = names.into_iter().chain([MEMTABLE, SKIPLIST]).collect();
    let rows = phases.rows(arguments.records, &order);
    ensure!(!rows.is_empty(), "nothing was measured");
    Ok(LsmComparison { records: arguments.records, table_bytes, rounds: arguments.rounds, rows })
}

pub(crate) fn render(comparison: &LsmComparison) -> String {
    let LsmComparison { records, table_bytes, rounds, rows } = comparison;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let times = "x dlsm";
    table.set_header(["phase", "threads", "engine", "ns a record", "min", "max", times, "M/s"]);
    for row in rows {
        table.add_row([
            row.phase.to_owned(),
            row.threads.to_string(),
            row.engine.to_owned(),
            format!("{:.0}", row.median_ns),
            format!("{:.0}", row.min_ns),
            format!("{:.0}", row.max_ns),
            format!("{:.2}", row.times_dlsm),
            format!("{:.3}", row.median_m_records_per_s),
        ]);
    }
    for column in [1, 3, 4, 5, 6, 7] {
        let column = table.column_mut(column).expect("there are eight columns");
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mib = table_bytes >> 20;
    format!(
        "{records} records of 20 + 400 bytes, tables of {mib} MiB, medians of {rounds} rounds; \
         processor time, and records a second by the clock\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct LsmResultLine {
        #[command(flatten)]
        lsm: LsmArguments,
    }

    fn parsed(more: &[&str]) -> LsmArguments {
        let few = ["lsm", "--records", "20k", "--table-mib", "1", "--rounds", "1"];
        LsmResultLine::parse_from(few.iter().chain(more)).lsm
    }

    #[test]
    fn all_engines_keep_all_records() {
        let comparison = compare(&parsed(&["--threads", "1,2"])).unwrap();
        let engines = all_engines().len();
        // Scans and merges have one thread, fills and lookups two numbers of them.
        assert_eq!(comparison.rows.len(), 6 * engines + 8, "{comparison:?}");
        assert!(comparison.rows.iter().all(|row| row.median_m_records_per_s > 0.0));
        for phase in ["fill", "get", "scan", "merge", "insert", "find"] {
            assert!(render(&comparison).contains(phase), "{comparison:?}");
        }
        assert!(compare(&parsed(&["--only", "leveldb"])).is_err());
    }

    /// An engine that loses or damages a record ends the comparison (lsm.N1).
    #[test]
    fn a_lost_or_damaged_record_is_noticed() {
        let records = WrittenRecords::new(100).unwrap();
        let value = records.value(7);
        let check = |place: usize, value: &[u8]| records.check(place, value);
        assert!(check(7, &value[..]).is_ok());
        assert!(check(8, &value[..]).is_err() && check(7, &value[..399]).is_err());
        let mut sorted: Vec<_> = (0..100).map(|place| records.key(place)).collect();
        sorted.sort();
        let scan = |keys: &[&[u8; 20]]| {
            let mut scanned = records.scanned();
            for key in keys {
                let place = (0..100).find(|place| records.key(*place) == *key).unwrap();
                scanned.see(*key, &records.value(place)[..])?;
            }
            scanned.end()
        };
        assert!(scan(&sorted).is_ok());
        assert!(scan(&sorted[1..]).is_err(), "one is missing");
        sorted.swap(3, 4);
        assert!(scan(&sorted).is_err(), "out of order");
        sorted[3] = sorted[4];
        assert!(scan(&sorted).is_err(), "twice");
    }
}
