//! `farleaf demo`: runs a few workloads in an embedded cluster, on the indexes that clusters serve
//! and on one machine's tree, and prints one table. `farleaf-lab bench` has all designs.

use crate::heartbeat::Heartbeat;
use clap::Args;
use farleaf_bench::driver::{
    BenchRun, KeyValueForm, NumberForm, Reshaping, Testbed, WorkAmount, memory_servers,
};
use farleaf_bench::input::{CsvOptions, read_records};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::report::Report;
use farleaf_bench::single_machine::{SingleMachine, SingleMachineOptions};
use farleaf_bench::sizing::{
    NUMBERS_IN_PAGE, RecordBytes, lsm_options, pool_bytes, string_bytes_in_page, string_weights,
};
use farleaf_bench::strings::{KeyForm, StringForm};
use farleaf_bench::table::narrow_table;
use farleaf_bench::workload::{HarnessDeviations, OperationKind, OperationMix, StreamConfig};
use farleaf_command_line::exit::check_errors;
use farleaf_command_line::output::{JsonTarget, grouped};
use farleaf_command_line::{units, usage};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions, EntryWeights, spreading_level};
use farleaf_dlsm::Dlsm;
use farleaf_fabric::local::LocalConfig;
use farleaf_index::{AnyDesign, Naming, ScanRequest};
use farleaf_page::{Bytes, CHOSEN};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The form of byte strings; `None` for numbers.
type DemoKeyForm = Option<KeyForm>;

/// The size of pages of byte strings.
const PAGE_BYTES: usize = 1024;

/// Options of `farleaf demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farleaf demo\n  farleaf demo --keys 10M\n  \
    farleaf demo --input orders.csv --key-column id --value-column amount\n  \
    farleaf demo --key-form ycsb --value-bytes 8-100\n\n\
    The cluster is embedded: 4 memory servers and 1 compute server with 2 threads, in this process.\n\
    The costs per operation hold on any network; the times are those of this machine's memory. With byte\n\
    strings they include making keys of numbers, and checking what is found.\n\n\
    Exit codes: 0 success, 1 failure, 2 invalid command line or input file.")]
pub(crate) struct DemoArguments {
    /// Load this many generated records
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    keys: u64,
    /// Take keys of this form: `u64`, or byte strings in pages of 1 KiB: `ycsb` (user and 19
    /// digits), `dlsm` (20 digits), `urls` (generated), or the lines of `file:PATH`
    #[arg(
        long,
        value_name = "FORM",
        default_value = "u64",
        value_parser = units::key_form,
        conflicts_with = "input"
    )]
    key_form: DemoKeyForm,
    /// Give byte strings values of N bytes, or of A to B bytes [default: 8]
    #[arg(long, value_name = "N|A-B", value_parser = units::value_bytes)]
    value_bytes: Option<RangeInclusive<usize>>,
    /// Load the records of this CSV file instead, plain, gzip or zstd, in any order; of rows with
    /// the same key the last one counts
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

/// Measured operations of each workload: enough for the 99.9th percentile, and together done within
/// 15 seconds of processor time.
const OPERATIONS: u64 = 100_000;
const OPERATIONS_WITH_SCANS: u64 = 5_000;

/// Runs the demo.
pub(crate) fn run(arguments: &DemoArguments) -> anyhow::Result<()> {
    let mut json = JsonTarget::open(arguments.json.as_deref())?;
    let heartbeat = Heartbeat::begin("making keys");
    let keys = match &arguments.input {
        Some(path) => {
            let (key, value) = (arguments.key_column.clone(), arguments.value_column.clone());
            let input = read_records(path, &CsvOptions { key, value, ..Default::default() })?;
            json.say(&format!(
                "{} records from {}, {} more rows repeated a key: the last row of each key wins",
                grouped(input.records.len() as u64),
                path.display(),
                grouped(input.duplicates),
            ))?;
            match KeySpace::listed(&input.records) {
                Some(keys) => keys,
                None => return json.write("[]"),
            }
        }
        None => KeySpace::spread(arguments.keys),
    };
    let reports = match &arguments.key_form {
        Some(form) => {
            let values = arguments.value_bytes.clone().unwrap_or(8..=8);
            Bytes::choose(PAGE_BYTES / 8);
            let strings = StringForm::<CHOSEN>::new(form, keys.len(), values, true)
                .or_else(|error| usage(error.to_string()))?;
            let (key_bytes, value_bytes) = strings.record_bytes();
            let bytes_in_page = string_bytes_in_page(key_bytes + value_bytes);
            let demo = Demo {
                keys: strings.keys(),
                form: &strings,
                bytes_in_page,
                weights: string_weights(bytes_in_page),
                record_bytes: key_bytes + value_bytes,
                name: &|report| {
                    report.key_form = Some(form.to_string());
                    report.key_bytes = Some(key_bytes);
                    report.value_bytes = Some(value_bytes);
                    report.page_bytes = Some(PAGE_BYTES as u64);
                },
                key: &|number| strings.key_named(number).escape_ascii().to_string(),
                value: &|number| strings.value_named(number).escape_ascii().to_string(),
                seed: arguments.seed,
                json: &json,
                heartbeat: &heartbeat,
            };
            demo.of_all_designs()?
        }
        None if arguments.value_bytes.is_some() => {
            return usage("--value-bytes needs byte strings: --key-form");
        }
        None => {
            let demo = Demo {
                keys: &keys,
                form: &NumberForm,
                bytes_in_page: NUMBERS_IN_PAGE,
                record_bytes: 16.0,
                weights: EntryWeights::default(),
                name: &|_| (),
                key: &|number| number.to_string(),
                value: &|number| number.to_string(),
                seed: arguments.seed,
                json: &json,
                heartbeat: &heartbeat,
            };
            demo.of_all_designs()?
        }
    };
    json.say(&narrow_table(&reports))?;
    json.say(
        "reads, writes, CAS (and FETCH-ADD), RPCs and bytes are those of one operation on average",
    )?;
    json.write(&serde_json::to_string_pretty(&reports)?)?;
    reports.iter().try_for_each(check_errors)
}

/// A demo on all its designs.
struct Demo<'a, O> {
    keys: &'a KeySpace,
    form: &'a O,
    /// Bytes that a record takes in a full page.
    bytes_in_page: f64,
    /// Size of a key and its value, in bytes.
    record_bytes: f64,
    weights: EntryWeights,
    /// Completes the settings in a report.
    name: &'a dyn Fn(&mut Report),
    /// Keys and values as text.
    key: &'a dyn Fn(u64) -> String,
    value: &'a dyn Fn(u64) -> String,
    seed: u64,
    json: &'a JsonTarget,
    heartbeat: &'a Heartbeat,
}

impl<O: KeyValueForm> Demo<'_, O> {
    /// Runs all designs.
    fn of_all_designs(&self) -> anyhow::Result<Vec<Report>> {
        let keys = self.keys;
        let inserts = OPERATIONS * WORKLOADS.len() as u64;
        let record = RecordBytes::all(self.bytes_in_page);
        let pool = |weights: &[u64]| pool_bytes(keys.len(), record, FILL, inserts, weights);
        let pool_of_each = pool(&[1; MEMORY_SERVERS as usize])?;
        let single = SingleMachineOptions::with_pool_bytes(pool(&[1])?);
        self.json.say(&format!(
            "{} keys on {MEMORY_SERVERS} memory servers, 1 compute server with {THREADS} threads, \
             all in this process",
            grouped(keys.len())
        ))?;
        let raw_bytes = keys.len() as f64 * self.record_bytes;
        // A cache for about a third of the records.
        let cache = CacheOptions { bytes: (raw_bytes / 3.0) as u64, ..CacheOptions::default() };
        let placement_level =
            spreading_level::<O::Layout>(keys.len(), self.weights, FILL, MEMORY_SERVERS);
        let dex = DexOptions { placement_level, ..DexOptions::with_boundaries(Vec::new(), cache) };
        let designs = [
            AnyDesign::of::<Dlsm>(lsm_options(raw_bytes, None)),
            AnyDesign::of::<Dex>(dex),
            AnyDesign::of::<SingleMachine>(single),
        ];
        let reports = designs.iter().map(|design| self.of(pool_of_each, design));
        Ok(reports.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Runs one design.
    fn of(&self, pool_bytes: usize, design: &AnyDesign<O::Layout>) -> anyhow::Result<Vec<Report>> {
        let (demo, name) = (self, design.name());
        let provider = LocalConfig { seed: demo.seed, ..LocalConfig::default() };
        let services = memory_servers(MEMORY_SERVERS, pool_bytes)?;
        let form = demo.form.clone();
        let mut testbed = Testbed::start_with(&provider, services, design, form)?;
        let heartbeat = demo.heartbeat;
        let loading = heartbeat.bar(&format!("{name}: load"), Some(demo.keys.len()));
        let load_ns = testbed.load(demo.keys, FILL, &|done| loading.inc(done))?;
        loading.finish_and_clear();
        let load_seconds = load_ns as f64 / 1e9;
        demo.json.say(&format!(
            "{name}: {} records loaded in {load_seconds:.2} s",
            grouped(testbed.records())
        ))?;
        demo.show(&testbed)?;
        let mut reports = Vec::new();
        for workload in WORKLOADS {
            let mix = OperationMix::named(workload)?;
            let distribution = mix.distribution;
            let scans =
                mix.operations.iter().any(|(kind, _)| matches!(kind, OperationKind::Scan { .. }));
            let operations = if scans { OPERATIONS_WITH_SCANS } else { OPERATIONS };
            let run = BenchRun {
                stream: StreamConfig {
                    mix,
                    distribution,
                    clustered: false,
                    keys: demo.keys.clone(),
                    seed: demo.seed,
                    harness: HarnessDeviations::default(),
                },
                compute_servers: 1,
                threads: THREADS,
                amount: WorkAmount::Operations(operations),
                shift: None,
                timeline: None,
                batch: 1,
                own_keys: false,
                reshaping: Reshaping::default(),
            };
            let steps = operations + operations / 20;
            let running = heartbeat.bar(&format!("{name}: {workload}"), Some(steps));
            let measured = testbed.measure(&run, &|done| running.inc(done))?;
            running.finish_and_clear();
            let report = Report {
                index: name.to_owned(),
                workload: workload.to_owned(),
                distribution: distribution.to_string(),
                fabric: "local".to_owned(),
                keys: demo.keys.len(),
                threads: THREADS,
                memory_servers: MEMORY_SERVERS,
                compute_servers: 1,
                seed: demo.seed,
                fill: FILL,
                server_threads: Some(0),
                partitioning: "range".to_owned(),
                placement: vec![1; usize::from(MEMORY_SERVERS)],
                load_seconds,
                ..Report::default()
            };
            let report =
                report.with_measurement(&measured).with_cached_bytes(testbed.cached_bytes());
            let (usage, local_bytes) = (testbed.usage(), testbed.local_bytes());
            let mut report = report.with_memory(&usage, local_bytes, testbed.records());
            (demo.name)(&mut report);
            reports.push(report);
        }
        Ok(reports)
    }

    /// Prints one lookup and one small scan from the middle of the keys.
    fn show(&self, testbed: &Testbed<O>) -> anyhow::Result<()> {
        let key = self.keys.key(self.keys.len() / 2);
        let value = testbed.get(key)?.map_or("nothing".to_owned(), self.value);
        let text = (self.key)(key);
        self.json.say(&format!("  get({text}) = {value}"))?;
        let records = testbed.scan(&ScanRequest::range(key..).limit(3))?;
        let record =
            |(key, value): &(u64, u64)| format!("{}: {}", (self.key)(*key), (self.value)(*value));
        let records: Vec<_> = records.iter().map(record).collect();
        self.json.say(&format!("  scan({text}.., limit 3) = {{ {} }}", records.join(", ")))
    }
}
