//! Turns options into a plan. All errors of a command line are found here, before the run starts.

use super::arguments::{BenchArguments, FabricName, LoadName, TraceStart};
use super::form::KeysAndValues;
use super::{over_time, reshaping};
use crate::designs::{self, DesignName, FabricConfig, IndexOptions, ValueBlockOptions};
use clap::ValueEnum;
use farleaf_bench::driver::{BenchRun, HotspotShift, WorkAmount};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::report::{self, HotspotShifted, Report};
use farleaf_bench::sizing::{
    MAX_POOL_BYTES, PoolSizeError, lsm_options, pool_bytes, whole_pool_bytes,
};
use farleaf_bench::timeline::Interval;
use farleaf_bench::trace::{Trace, TraceFormat, read_trace};
use farleaf_bench::workload::{HarnessDeviations, StreamConfig, WorkloadOperation};
use farleaf_command_line::output;
use farleaf_command_line::usage;
use farleaf_dex::DexOptions;
use farleaf_dex::blocks::MAX_LOST;
use farleaf_dex::cache::CacheOptions;
use farleaf_fabric::local::LocalConfig;
#[cfg(feature = "verbs")]
use farleaf_fabric_verbs::VerbsConfig;
use farleaf_index::{DEFAULT_CACHE_BYTES, OptionChange, OptionType};
use farleaf_trees::chime::ChimeOptions;
use farleaf_trees::coarse::PartitioningName;
use farleaf_trees::sherman::ShermanOptions;
use farleaf_trees::smart::SmartOptions;
use std::path::Path;

/// Maximum number of clients that are real threads of this process.
const MAX_LOCAL_CLIENTS: u32 = 1024;

/// Maximum number of simulated clients; each has its own histogram of latencies.
const MAX_SIM_CLIENTS: u32 = 16_384;

/// Maximum number of endpoints of a memory server.
#[cfg(feature = "verbs")]
const MAX_VERBS_CLIENTS: u32 = 128;

/// A run, ready to start.
pub(super) struct BenchPlan {
    /// The part of the report that is known before the run.
    pub(super) report: Report,
    pub(super) form: KeysAndValues,
    pub(super) design: DesignName,
    pub(super) index: IndexOptions,
    pub(super) fabric: FabricConfig,
    pub(super) work: MeasuredWork,
    pub(super) load: LoadName,
    /// Operations before the usual warm-up.
    pub(super) warm_up: Option<u64>,
    pub(super) pool_bytes: usize,
    /// The intervals of the timeline, if the options ask for one.
    pub(super) interval: Option<Interval>,
    /// Whether the report has the distribution of latencies.
    pub(super) latencies: bool,
    /// Whether a cache was requested for a design that has none.
    pub(super) ignores_cache: bool,
}

/// The work to measure.
pub(super) enum MeasuredWork {
    Workload(Box<BenchRun>),
    /// The requests of a trace, and the keys to load before them.
    Trace(Vec<WorkloadOperation>, Option<KeySpace>),
}

impl BenchPlan {
    pub(super) fn new(arguments: &BenchArguments) -> anyhow::Result<Self> {
        let threads = arguments.threads.unwrap_or(if arguments.trace.is_some() { 1 } else { 2 });
        let format = trace_format(arguments)?;
        let has_strings = arguments.key_form.is_some()
            || (format.has_text() && !arguments.hash_keys && arguments.trace.is_some());
        check(arguments, threads)?;
        let fabric = fabric(arguments);
        let mut trace = arguments.trace.as_deref().map(|path| read(path, &format, arguments));
        let mut trace = trace.take().transpose()?;
        let form = KeysAndValues::new(arguments, trace.as_mut())?;
        let interval = over_time::intervals(arguments)?;
        let distribution = arguments.distribution.unwrap_or(arguments.workload.distribution);
        over_time::check_shift(arguments, distribution)?;
        let (mut work, keys, inserts) = match trace {
            Some(trace) => {
                let keys = form.keys().cloned().unwrap_or_else(|| trace.keys());
                let is_loaded = arguments.trace_start == TraceStart::Loaded;
                let inserts = keys.len();
                (
                    MeasuredWork::Trace(trace.operations, is_loaded.then(|| keys.clone())),
                    keys,
                    inserts,
                )
            }
            None => {
                let keys = match (form.keys(), arguments.dense) {
                    (Some(keys), _) => keys.clone(),
                    (None, true) => KeySpace::dense(arguments.keys),
                    (None, false) => KeySpace::spread(arguments.keys),
                };
                let stream = StreamConfig {
                    mix: arguments.workload.clone(),
                    distribution,
                    clustered: arguments.clustered,
                    keys: keys.clone(),
                    seed: arguments.seed,
                    harness: HarnessDeviations {
                        upserts_among_more: arguments.upserts_among_more,
                        keeps_values: arguments.keep_values,
                        scans_intervals: arguments.scan_intervals,
                    },
                };
                let amount = amount(arguments);
                let compute_servers = arguments.compute_servers;
                let share = arguments.workload.insert_share();
                let warm_up = WorkAmount::Operations(arguments.warm_up.unwrap_or(0));
                let inserts = expected_inserts(amount, share) + expected_inserts(warm_up, share);
                let by = arguments.shift_hotspot_by / 100.0;
                let shift = arguments.shift_hotspot_at.map(|at| HotspotShift { at, by });
                let own_keys = arguments.own_keys;
                let reshaping = reshaping::of(arguments)?;
                // Balancing and planned changes require counting load over time.
                let is_counted = reshaping.balance || !reshaping.changes.is_empty();
                let timeline = interval.or(is_counted.then_some(over_time::USUAL));
                let run = BenchRun {
                    stream,
                    compute_servers,
                    threads,
                    amount,
                    shift,
                    timeline,
                    batch: arguments.batch.into(),
                    own_keys,
                    reshaping,
                };
                (MeasuredWork::Workload(Box::new(run)), keys, inserts)
            }
        };
        let weights = match &*arguments.placement {
            [] => vec![1; usize::from(arguments.memory_servers)],
            weights => weights.to_vec(),
        };
        let loaded = match &work {
            MeasuredWork::Trace(_, loaded) => loaded.as_ref().map_or(0, KeySpace::len),
            MeasuredWork::Workload(_) => arguments.keys,
        };
        let (pool_bytes, single_pool_bytes) = match arguments.pool_bytes {
            Some(bytes) => {
                (whole_pool_bytes(bytes)?, bytes_of_all(bytes, arguments.memory_servers)?)
            }
            None => {
                let (in_page, key_bytes) = (form.bytes_in_page(), form.string_bytes());
                let record = arguments.index.record_bytes(loaded, in_page, key_bytes);
                let of =
                    |weights: &[u64]| pool_bytes(loaded, record, arguments.fill, inserts, weights);
                // Replaced blocks cannot be freed until their leaves are written back.
                let records = loaded + 2 * inserts + MAX_LOST;
                let blocks = form.bytes_in_blocks() * records as f64 * 1.1;
                let blocks = blocks / f64::from(arguments.memory_servers);
                (whole_pool_bytes((of(&weights)? as f64 + blocks) as u64)?, of(&[1])?)
            }
        };
        let by_trace = |text: String| if arguments.trace.is_some() { "trace".into() } else { text };
        let raw_bytes = keys.len() as f64 * form.record_bytes();
        let cache_bytes = cache_bytes(arguments, raw_bytes)?;
        let in_cache = cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES);
        let part = u64::from(arguments.block_cache_percent);
        let of_blocks = arguments.inline_bytes.map_or(0, |_| in_cache / 100 * part);
        let blocks = arguments.inline_bytes.map(|inline_bytes| ValueBlockOptions {
            inline_bytes,
            cache_bytes: of_blocks * u64::from(arguments.compute_servers),
        });
        let blocks_reported = blocks.map(|blocks| report::ValueBlockReport {
            inline_bytes: blocks.inline_bytes as u64,
            cache_percent: arguments.block_cache_percent,
            cache_bytes: blocks.cache_bytes,
            ..report::ValueBlockReport::default()
        });
        let used_servers = arguments.memory_servers.saturating_sub(arguments.spare_memory_servers);
        let placement_level = form.spreading_level(keys.len(), arguments.fill, used_servers.max(1));
        let for_nodes = in_cache - of_blocks;
        let mut cache = CacheOptions { bytes: for_nodes, ..CacheOptions::default() };
        if let Some(ms) = arguments.write_back_ms {
            cache.write_back_ns = u64::from(ms) * 1_000_000;
        }
        let sherman = ShermanOptions { cache_bytes: for_nodes, ..ShermanOptions::default() };
        let servers = keys.boundaries(&vec![1; usize::from(arguments.compute_servers)]);
        let mut index = IndexOptions {
            boundaries: keys.boundaries(&weights),
            sherman,
            chime: ChimeOptions { tree: sherman, ..ChimeOptions::default() },
            smart: SmartOptions { cache_bytes: for_nodes, ..SmartOptions::default() },
            dex: DexOptions {
                placement_level,
                spare_compute_servers: arguments.spare_compute_servers,
                spare_memory_servers: arguments.spare_memory_servers,
                balance: reshaping::balance(arguments),
                ..DexOptions::with_boundaries(servers, cache)
            },
            dlsm: lsm_options(raw_bytes, arguments.tables),
            shards: match usize::from(arguments.shards) {
                1 => Vec::new(),
                each => keys.boundaries(&vec![1; each * usize::from(arguments.compute_servers)]),
            },
            single_pool_bytes,
            blocks,
            ..IndexOptions::default()
        };
        for change in arguments.set.iter().filter(|change| change.option != CACHE_BYTES) {
            change_option(&mut index, arguments.index, change)?;
        }
        check_options(arguments, &index, has_strings)?;
        if index.dex.cache.write_back_ns > 0
            && let MeasuredWork::Workload(run) = &mut work
        {
            run.reshaping.write_back = run.reshaping.write_back.max(1);
        }
        let partitioning = index.coarse.partitioning;
        let mut plan = Self {
            report: Report {
                index: arguments.index.name().to_owned(),
                workload: by_trace(arguments.workload.name.to_string()),
                distribution: by_trace(distribution.to_string()),
                fabric: name(arguments.fabric).to_owned(),
                keys: loaded,
                threads,
                memory_servers: arguments.memory_servers,
                compute_servers: arguments.compute_servers,
                cache_bytes_per_compute_server: match arguments.index.has_cache() {
                    true => cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES),
                    false => 0,
                },
                seed: arguments.seed,
                batch: (arguments.batch > 1).then_some(arguments.batch),
                fill: arguments.fill,
                clustered: arguments.clustered,
                partitioning: partitioning.to_string(),
                placement: match partitioning {
                    PartitioningName::Range => weights.clone(),
                    PartitioningName::Hash => Vec::new(),
                },
                network_latency_ns: match &fabric {
                    FabricConfig::Local(config) => config.network_latency_ns,
                    FabricConfig::Sim(config) => 2 * config.network.one_way_ns,
                    #[cfg(feature = "verbs")]
                    FabricConfig::Verbs(_) => 0,
                },
                server_cores: match &fabric {
                    FabricConfig::Local(_) => None,
                    FabricConfig::Sim(config) => Some(config.cores_per_memory_server),
                    #[cfg(feature = "verbs")]
                    FabricConfig::Verbs(_) => None,
                },
                server_threads: match &fabric {
                    FabricConfig::Local(config) => Some(config.server_threads),
                    FabricConfig::Sim(_) => None,
                    #[cfg(feature = "verbs")]
                    FabricConfig::Verbs(config) => Some(config.server.threads),
                },
                placement_level: (arguments.index == DesignName::Dex)
                    .then_some(index.dex.placement_level),
                hotspot_shift: arguments.shift_hotspot_at.map(|_| HotspotShifted {
                    at_ns: None,
                    by_percent: arguments.shift_hotspot_by,
                }),
                blocks: blocks_reported,
                trace_start: arguments.trace.as_ref().map(|_| match arguments.trace_start {
                    TraceStart::Loaded => "loaded".to_owned(),
                    TraceStart::Empty => "empty".to_owned(),
                }),
                ..Report::default()
            },
            design: arguments.index,
            index,
            fabric,
            work,
            load: arguments.load.unwrap_or(match arguments.workload.starts_empty() {
                true => LoadName::None,
                false => LoadName::Bulk,
            }),
            warm_up: arguments.warm_up,
            pool_bytes,
            interval,
            latencies: arguments.latencies,
            ignores_cache: cache_bytes.is_some() && !arguments.index.has_cache(),
            form,
        };
        plan.form.say(arguments, &mut plan.report);
        Ok(plan)
    }
}

/// Checks combinations of options.
fn check(arguments: &BenchArguments, threads: u16) -> anyhow::Result<()> {
    let BenchArguments { placement, memory_servers, compute_servers, .. } = arguments;
    let clients = u32::from(threads) * u32::from(*compute_servers);
    if arguments.trace.is_some() && clients != 1 {
        return usage(
            "--trace is replayed by one client: leave --threads and --compute-servers out",
        );
    }
    let most = match arguments.fabric {
        FabricName::Local => MAX_LOCAL_CLIENTS,
        FabricName::Sim => MAX_SIM_CLIENTS,
        #[cfg(feature = "verbs")]
        FabricName::Verbs => MAX_VERBS_CLIENTS,
    };
    if clients > most {
        let fabric = name(arguments.fabric);
        return usage(format!(
            "--threads times --compute-servers is {clients}: at most {most} on the {fabric} fabric"
        ));
    }
    if arguments.write_back_ms.is_some() && arguments.index != DesignName::Dex {
        return usage("--write-back-ms needs --index dex");
    }
    if arguments.shards > 1 && arguments.index != DesignName::Dlsm {
        return usage("--shards needs --index dlsm");
    }
    if arguments.index != DesignName::Dlsm
        && (arguments.background > 0 || arguments.tables.is_some())
    {
        return usage("--background and --tables need --index dlsm");
    }
    if arguments.own_keys && arguments.seconds.is_none() && arguments.spare_compute_servers > 0 {
        return usage("--own-keys with --spare-compute-servers needs --seconds");
    }
    if !placement.is_empty() && placement.len() != usize::from(*memory_servers) {
        return usage(format!(
            "--placement has {} weights, expected {memory_servers}, one for each memory server",
            placement.len()
        ));
    }
    if arguments.fabric != FabricName::Sim && !arguments.model.is_empty() {
        return usage("--model needs --fabric sim");
    }
    if arguments.fabric != FabricName::Sim && arguments.server_cores.is_some() {
        return usage("--server-cores needs --fabric sim");
    }
    if arguments.fabric == FabricName::Sim && arguments.server_threads.is_some() {
        return usage("--server-threads needs --fabric local");
    }
    #[cfg(feature = "verbs")]
    if arguments.fabric == FabricName::Verbs {
        if arguments.network_latency_ns.is_some() {
            return usage("--network-latency-ns needs --fabric local or sim");
        }
        if arguments.server_threads == Some(0) {
            return usage("--server-threads must be at least 1 on the verbs fabric");
        }
    }
    if arguments.network_latency_ns.is_some_and(|ns| ns > 1_000_000_000) {
        return usage("--network-latency-ns must be at most 1G, one second");
    }
    Ok(())
}

/// The option that `--cache-bytes` and `--cache-percent` set, less the part for value blocks.
const CACHE_BYTES: &str = "cache_bytes";

/// Sets an option of the design that runs.
pub(super) fn change_option(
    index: &mut IndexOptions,
    design: DesignName,
    change: &OptionChange,
) -> anyhow::Result<()> {
    let asked = &change.design;
    let names = DesignName::value_variants().iter().map(|design| design.name());
    if names.clone().all(|name| name != asked) {
        let names = names.collect::<Vec<_>>().join(", ");
        return usage(format!("--set {change}: unknown design `{asked}`: expected one of {names}"));
    }
    if design.name() != asked {
        return usage(format!("--set {change} needs --index {asked}"));
    }
    match index.of_design(design) {
        Some(options) => options
            .set(&change.option, &change.value)
            .or_else(|error| usage(format!("--set {change}: {error}"))),
        None => usage(format!("--set {change}: this design has no options")),
    }
}

/// Checks combinations of options of the design and others.
fn check_options(
    arguments: &BenchArguments,
    index: &IndexOptions,
    has_strings: bool,
) -> anyhow::Result<()> {
    let IndexOptions { coarse, sherman, chime, dex, .. } = index;
    if sherman.by_versions && has_strings {
        return usage("by_versions of sherman needs keys that are numbers");
    }
    if chime.hot_bytes > 0 && has_strings {
        return usage("hot_bytes of chime needs keys that are numbers");
    }
    if chime.hot_bytes > chime.tree.cache_bytes {
        return usage(format!(
            "hot_bytes of chime must be at most the cache of a compute server, {} bytes",
            chime.tree.cache_bytes
        ));
    }
    if coarse.partitioning == PartitioningName::Hash && !arguments.placement.is_empty() {
        return usage("--placement needs coarse.partitioning=range");
    }
    if dex.cache.write_back_ns > 0 && arguments.trace.is_some() {
        return usage("write-back by age cannot be combined with --trace");
    }
    if dex.balance.window_ns == 0 && arguments.balance {
        return usage("--balance needs a balance_window_ns above 0");
    }
    Ok(())
}

fn name(fabric: FabricName) -> &'static str {
    match fabric {
        FabricName::Local => "local",
        FabricName::Sim => "sim",
        #[cfg(feature = "verbs")]
        FabricName::Verbs => "verbs",
    }
}

fn fabric(arguments: &BenchArguments) -> FabricConfig {
    match arguments.fabric {
        FabricName::Local => FabricConfig::Local(LocalConfig {
            server_threads: usize::from(arguments.server_threads.unwrap_or(0)),
            network_latency_ns: arguments.network_latency_ns.unwrap_or(0),
            seed: arguments.seed,
            ..LocalConfig::default()
        }),
        FabricName::Sim => {
            let only_reads = arguments.trace.is_none() && arguments.workload.only_reads();
            let mut config = designs::simulated(arguments.seed, only_reads);
            if let Some(round_trip_ns) = arguments.network_latency_ns {
                config.network.one_way_ns = round_trip_ns / 2;
            }
            for change in &arguments.model {
                change.apply(&mut config);
            }
            if let Some(cores) = arguments.server_cores {
                config.cores_per_memory_server = cores.into();
            }
            FabricConfig::Sim(Box::new(config))
        }
        #[cfg(feature = "verbs")]
        FabricName::Verbs => {
            let mut config = VerbsConfig { seed: arguments.seed, ..VerbsConfig::default() };
            config.server.threads = usize::from(arguments.server_threads.unwrap_or(1));
            FabricConfig::Verbs(Box::new(config))
        }
    }
}

fn trace_format(arguments: &BenchArguments) -> anyhow::Result<TraceFormat> {
    let mut format: TraceFormat = arguments.trace_format.parse()?;
    let single = [
        ("key", &arguments.trace_key_column),
        ("op", &arguments.trace_op_column),
        ("read", &arguments.trace_read),
        ("write", &arguments.trace_write),
    ];
    let single = single
        .into_iter()
        .filter_map(|(part, value)| value.as_ref().map(|value| format!("{part}={value}")));
    for changes in arguments.trace_columns.clone().into_iter().chain(single) {
        format = format
            .with(&changes)
            .or_else(|error| usage(format!("the form of the trace: {error}")))?;
    }
    Ok(format)
}

/// Reads the trace, and says what is left out of it or assumed about it.
fn read(path: &Path, format: &TraceFormat, arguments: &BenchArguments) -> anyhow::Result<Trace> {
    let most = arguments.trace_requests;
    let trace = read_trace(path, format, arguments.hash_keys, most)?;
    match trace.has_header {
        Some(true) => output::note("note: the first row of the trace is its header"),
        Some(false) => output::note("note: the trace has no header: its first row is a request"),
        None => {}
    }
    if trace.is_cut {
        output::note(&format!(
            "note: only the first {} requests of the trace are replayed: --trace-requests",
            output::grouped(most)
        ));
    }
    if trace.lacks_operations {
        output::note(
            "note: the trace has no column `op`: all its requests are lookups; --trace-op-column \
             names another",
        );
    }
    Ok(trace)
}

fn amount(arguments: &BenchArguments) -> WorkAmount {
    match arguments.seconds {
        Some(seconds) => WorkAmount::Nanoseconds((seconds * 1e9) as u64),
        None => WorkAmount::Operations(arguments.operations),
    }
}

/// Upper bound on the insertions of a run. A timed run is assumed to execute five million
/// operations per second, which is more than one process can.
fn expected_inserts(amount: WorkAmount, share: f64) -> u64 {
    let operations = match amount {
        WorkAmount::Operations(operations) => operations as f64,
        WorkAmount::Nanoseconds(ns) => ns as f64 / 1e9 * 5e6,
    };
    (operations * 1.05 * share).ceil() as u64
}

fn cache_bytes(arguments: &BenchArguments, raw_bytes: f64) -> anyhow::Result<Option<u64>> {
    if let Some(change) = arguments.set.iter().rfind(|change| change.option == CACHE_BYTES) {
        change_option(&mut IndexOptions::default(), arguments.index, change)?;
        return Ok(u64::of_value(&change.value));
    }
    let of_all = |percent: f64| raw_bytes * percent / 100.0;
    let percent = arguments.cache_percent.map(|p| of_all(p) / f64::from(arguments.compute_servers));
    Ok(arguments.cache_bytes.or(percent.map(|bytes| bytes as u64)))
}

/// The memory of all servers together, limited to the size of one region.
fn bytes_of_all(bytes_of_each: u64, memory_servers: u16) -> Result<usize, PoolSizeError> {
    whole_pool_bytes(bytes_of_each.saturating_mul(memory_servers.into()).min(MAX_POOL_BYTES))
}
