//! `farleaf demo`: runs a few workloads on every design in an embedded cluster, and prints one
//! table.

use crate::bench::{NUMBERS_IN_PAGE, memory_servers, pool_bytes, warn_of_errors};
use crate::designs::{self, DesignName, FabricConfig, IndexOptions, PartitioningName, Task};
use crate::output::{JsonTarget, bar, grouped};
use crate::units;
use clap::{Args, ValueEnum};
use farleaf_bench::driver::{Amount, Reshaping, Run, Testbed};
use farleaf_bench::input::{ColumnNames, read_records};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::report::Report;
use farleaf_bench::table::narrow_table;
use farleaf_bench::workload::{Harness, Mix, OperationKind, StreamConfig};
use farleaf_core::cache::CacheOptions;
use farleaf_core::index::dex::{DexOptions, EntryWeights, spreading_level};
use farleaf_core::index::fine::FineOptions;
use farleaf_core::index::{Design, Scan};
use farleaf_core::page::Fixed8;
use farleaf_fabric::Provider;
use farleaf_fabric::local::LocalConfig;
use std::path::PathBuf;

/// Options of `farleaf demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farleaf demo\n  farleaf demo --keys 10M\n  \
    farleaf demo --input orders.csv --key-column id --value-column amount\n\n\
    The cluster is embedded: 4 memory servers and 1 compute server with 2 threads, in this process.\n\
    The costs per operation hold on any network; the times are those of this machine's memory.\n\n\
    Exit codes: 0 success, 1 failure, 2 invalid command line or input file.")]
pub(crate) struct Arguments {
    /// Load this many generated records
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    keys: u64,
    /// Load the records of this CSV file instead, plain or gzip, in any order; of rows with the
    /// same key the last one counts
    #[arg(long, value_name = "FILE", conflicts_with = "keys")]
    input: Option<PathBuf>,
    /// Take the keys, unsigned 64-bit numbers, from this column [default: `key`, or the first of a
    /// file without a header]
    #[arg(long, value_name = "NAME", requires = "input")]
    key_column: Option<String>,
    /// Take the values, unsigned 64-bit numbers, from this column [default: `value`, or the second
    /// of a file without a header, or row numbers from 0]
    #[arg(long, value_name = "NAME", requires = "input")]
    value_column: Option<String>,
    /// Seed the random numbers
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::seed)]
    seed: u64,
    /// Write the reports as a JSON array to this file, or with `-` to stdout (the rest then goes to
    /// stderr)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const WORKLOADS: [&str; 5] =
    ["read-only", "read-intensive", "write-intensive", "insert-intensive", "scan-intensive"];

const MEMORY_SERVERS: u16 = 4;
const THREADS: u16 = 2;
const FILL: f64 = 0.7;

/// Measured operations of each workload: enough for the 99.9th percentile, and done within seconds.
const OPERATIONS: u64 = 200_000;
const OPERATIONS_WITH_SCANS: u64 = 20_000;

/// Runs the demo.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut json = JsonTarget::open(arguments.json.as_deref())?;
    let keys = match &arguments.input {
        Some(path) => {
            let (key, value) = (arguments.key_column.clone(), arguments.value_column.clone());
            let input = read_records(path, &ColumnNames { key, value })?;
            json.say(&format!(
                "{} records from {}, {} more rows repeated a key: the last row of each key wins",
                grouped(input.records.len() as u64),
                path.display(),
                grouped(input.duplicates),
            ))?;
            KeySpace::listed(&input.records).expect("the input is sorted and not empty")
        }
        None => KeySpace::spread(arguments.keys),
    };
    let weights = vec![1; usize::from(MEMORY_SERVERS)];
    let inserts = OPERATIONS * WORKLOADS.len() as u64;
    let demo = Demo {
        keys: &keys,
        seed: arguments.seed,
        pool_bytes: pool_bytes(keys.len(), NUMBERS_IN_PAGE, FILL, inserts, &weights)?,
        design: DesignName::Coarse,
        json: &json,
    };
    json.say(&format!(
        "{} keys on {MEMORY_SERVERS} memory servers, 1 compute server with {THREADS} threads, all in \
         this process",
        grouped(keys.len())
    ))?;
    let options = IndexOptions {
        partitioning: PartitioningName::Range,
        boundaries: keys.boundaries(&weights),
        fine: FineOptions::default(),
        dex: DexOptions {
            placement_level: spreading_level::<Fixed8>(
                keys.len(),
                EntryWeights::default(),
                FILL,
                MEMORY_SERVERS,
            ),
            ..DexOptions::with_boundaries(Vec::new(), cache_of(keys.len()))
        },
        single_pool_bytes: pool_bytes(keys.len(), NUMBERS_IN_PAGE, FILL, inserts, &[1])?,
    };
    let fabric =
        FabricConfig::Local(LocalConfig { seed: arguments.seed, ..LocalConfig::default() });
    let mut reports = Vec::new();
    for design in DesignName::value_variants() {
        let demo = Demo { design: *design, ..demo };
        reports.extend(designs::run(*design, &options, &fabric, demo)?);
    }
    json.say(&narrow_table(&reports))?;
    json.say(
        "reads, writes, CAS (and FETCH-ADD), RPCs and bytes are those of one operation on average",
    )?;
    json.write(&serde_json::to_string_pretty(&reports)?)?;
    reports.iter().try_for_each(warn_of_errors)
}

/// A cache for about a third of the records.
fn cache_of(records: u64) -> CacheOptions {
    CacheOptions { bytes: records * 16 / 3, ..CacheOptions::default() }
}

#[derive(Clone, Copy)]
struct Demo<'a> {
    keys: &'a KeySpace,
    seed: u64,
    pool_bytes: usize,
    design: DesignName,
    json: &'a JsonTarget,
}

impl Task for Demo<'_> {
    type Output = anyhow::Result<Vec<Report>>;

    fn run<D: Design<Fixed8>, P: Provider>(
        self,
        provider: &P,
        options: &D::Options,
    ) -> anyhow::Result<Vec<Report>> {
        let name = self.design.name();
        let services = memory_servers(MEMORY_SERVERS, self.pool_bytes)?;
        let mut testbed = Testbed::<D, P>::start(provider, services, options)?;
        let loading = bar(&format!("{name}: load"), Some(self.keys.len()));
        let load_ns = testbed.load(self.keys, FILL, &|done| loading.inc(done))?;
        loading.finish_and_clear();
        let load_seconds = load_ns as f64 / 1e9;
        self.json.say(&format!(
            "{name}: {} records loaded in {load_seconds:.2} s",
            grouped(testbed.records())
        ))?;
        self.show(&testbed)?;
        let mut reports = Vec::new();
        for workload in WORKLOADS {
            let mix = Mix::named(workload)?;
            let distribution = mix.distribution;
            let scans =
                mix.operations.iter().any(|(kind, _)| matches!(kind, OperationKind::Scan { .. }));
            let operations = if scans { OPERATIONS_WITH_SCANS } else { OPERATIONS };
            let run = Run {
                stream: StreamConfig {
                    mix,
                    distribution,
                    clustered: false,
                    keys: self.keys.clone(),
                    seed: self.seed,
                    harness: Harness::default(),
                },
                compute_servers: 1,
                threads: THREADS,
                amount: Amount::Operations(operations),
                shift: None,
                timeline: None,
                batch: 1,
                own_keys: false,
                reshaping: Reshaping::default(),
            };
            let running = bar(&format!("{name}: {workload}"), Some(operations + operations / 20));
            let measured = testbed.measure(&run, &|done| running.inc(done))?;
            running.finish_and_clear();
            let report = Report {
                index: name.to_owned(),
                workload: workload.to_owned(),
                distribution: distribution.to_string(),
                fabric: "local".to_owned(),
                keys: self.keys.len(),
                threads: THREADS,
                memory_servers: MEMORY_SERVERS,
                compute_servers: 1,
                seed: self.seed,
                fill: FILL,
                server_threads: Some(0),
                partitioning: PartitioningName::Range.name().to_owned(),
                placement: vec![1; usize::from(MEMORY_SERVERS)],
                load_seconds,
                ..Report::default()
            };
            let report =
                report.with_measurement(&measured).with_cached_bytes(testbed.cached_bytes());
            let (usage, local_bytes) = (testbed.usage(), testbed.local_bytes());
            reports.push(report.with_memory(&usage, local_bytes, testbed.records()));
        }
        Ok(reports)
    }
}

impl Demo<'_> {
    /// Prints one lookup and one small scan from the middle of the keys.
    fn show<D: Design<Fixed8>, P: Provider>(&self, testbed: &Testbed<D, P>) -> anyhow::Result<()> {
        let key = self.keys.key(self.keys.len() / 2);
        let value = testbed.get(key)?.map_or("nothing".to_owned(), |value| value.to_string());
        self.json.say(&format!("  get({key}) = {value}"))?;
        let records = testbed.scan(&Scan::range(key..).limit(3))?;
        let records: Vec<_> =
            records.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        self.json.say(&format!("  scan({key}.., limit 3) = {{ {} }}", records.join(", ")))
    }
}
