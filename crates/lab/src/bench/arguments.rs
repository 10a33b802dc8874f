//! Options of `farleaf-lab bench`.

use super::model::{self, ModelChange};
use super::moments;
use crate::designs::DesignName;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use farleaf_bench::driver::{MeasurementMoment, PlannedChange};
use farleaf_bench::strings::KeyForm;
use farleaf_bench::trace::FORMATS;
use farleaf_bench::workload::{Distribution, OperationMix};
use farleaf_command_line::units;
use farleaf_index::OptionChange;
use std::ops::RangeInclusive;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  farleaf-lab bench --workload ycsb-a --keys 10M --operations 5M --threads 2
  farleaf-lab bench --workload insert-intensive --distribution uniform --seconds 10
  farleaf-lab bench --memory-servers 4 --placement 80,12,5,3 --fabric sim --compute-servers 4
  farleaf-lab bench --index local --workload ycsb-a    (the same tree without a network)
  farleaf-lab bench --trace block-io.csv.gz --json -
  zstd -dc cluster26.0.zst | farleaf-lab bench --trace - --trace-format twitter --trace-requests 1M
  farleaf-lab bench --index dex --compute-servers 4 --fabric sim --seconds 0.05 --clustered \
    --shift-hotspot-at 50% --timeline shift    (throughput over time, as popular keys change)
  farleaf-lab bench --index dex --compute-servers 3 --spare-compute-servers 1 --fabric sim --seconds 0.05 \
    --move 0:3:50@40% --timeline join    (a fourth compute server takes half of the first one's keys)

Workloads (in percent; updates, lookups and scans take loaded keys, insertions add new ones):
  read-only         100 lookups                       ycsb-a  50 lookups, 50 updates
  read-intensive    95 lookups, 5 updates             ycsb-b  95 lookups, 5 updates
  write-intensive   50 lookups, 50 updates            ycsb-c  100 lookups
  insert-intensive  50 lookups, 50 insertions         ycsb-d  95 lookups of the latest, 5 insertions
  scan-intensive    95 scans of 100, 5 insertions     ycsb-e  95 scans of 1 to 100, 5 insertions
  scan-only         100 scans of 100                  ycsb-f  50 lookups, 50 read-modify-writes
  update-only       100 updates                       scan:N  100 scans of N
  fill-random       each key once, from empty         insert:P  P insertions, otherwise lookups
  full-scan         100 scans of all records
  random-read-random-write:P                          P lookups, otherwise upserts

DEX as in its paper, with its harness:
  farleaf-lab bench --index dex --compute-servers 4 --threads 1 --cache-percent 32 --fill 0.5 \
    --set dex.admission=coin:0.1,dex.victims=random,dex.write_back=pages \
    --dense --keep-values --scan-intervals --own-keys

Forms of traces (docs/traces.md says what is read as what, and where they are from):
  csv             a header with `key` or `lbn`, and perhaps `op`     msr       MSR Cambridge
  libcachesim-csv time, op, size and lbn                             alibaba   Alibaba's block traces
  oracle-general  libCacheSim's binary records                       tencent   Tencent's block traces
  twitter         Twitter's cache clusters (keys are text)           wikimedia Wikimedia of 2019
  meta-kvcache    Meta's key-value cache                             ibm       IBM's object store
  ycsb            what YCSB and go-ycsb print with `basic`           keys      a number on each line
                                                                     words     a text on each line

Numbers may have `_` between digits and a suffix k, M or G; bytes also Ki, Mi or Gi.
Keys and values are 8 bytes each unless --key-form says otherwise.

Exit codes: 0 success, 1 failure, 2 invalid command line or input file.";

/// The form of byte strings; `None` for numbers.
type BenchKeyForm = Option<KeyForm>;

/// Options of `farleaf-lab bench`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchArguments {
    /// Run this index design
    #[arg(long, value_enum, default_value = "coarse")]
    pub(crate) index: DesignName,
    /// Run this mix of operations, see below
    #[arg(long, value_name = "NAME", default_value = "read-only", value_parser = OperationMix::named)]
    pub(super) workload: OperationMix,
    /// Draw keys from this distribution: `uniform`, `zipfian:THETA` or `latest:THETA` [default:
    /// zipfian:0.99, for ycsb-d latest:0.99]
    #[arg(long, value_name = "KIND")]
    pub(super) distribution: Option<Distribution>,
    /// Keep popular keys next to each other instead of scattering them by a hash
    #[arg(long)]
    pub(super) clustered: bool,
    /// Load this many keys, evenly spread over all 64-bit numbers
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    pub(super) keys: u64,
    /// Load the dense keys 0, 1, 2 and so on instead
    #[arg(long)]
    pub(super) dense: bool,
    /// Take keys of this form: `u64`, or byte strings: `ycsb` (user and 19 digits), `dlsm` (20
    /// digits), `urls` (generated), or the lines of `file:PATH`, with numbers appended if there are
    /// more keys than lines
    #[arg(
        long,
        value_name = "FORM",
        default_value = "u64",
        value_parser = units::key_form,
        conflicts_with = "dense"
    )]
    pub(super) key_form: BenchKeyForm,
    /// Give byte strings values of N bytes, or of A to B bytes [default: 8]
    #[arg(long, value_name = "N|A-B", value_parser = units::value_bytes)]
    pub(super) value_bytes: Option<RangeInclusive<usize>>,
    /// Keep byte strings in pages of this size: 1k, 2k or 4k
    #[arg(long, value_name = "SIZE", default_value = "1k", value_parser = units::page_bytes)]
    pub(super) page_bytes: u64,
    /// With --index dex, keep values of more bytes in blocks beside the leaves
    #[arg(long, value_name = "N", value_parser = units::inline_bytes)]
    pub(super) inline_bytes: Option<usize>,
    /// With --inline-bytes, use this percentage of the caches for blocks
    #[arg(long, value_name = "P", default_value = "50", requires = "inline_bytes",
        value_parser = units::limited::<u8>(0, 100))]
    pub(super) block_cache_percent: u8,
    /// Replace insertions by upserts, drawn like lookups but from the loaded keys and the N keys
    /// after them
    #[arg(long, value_name = "N", value_parser = units::positive)]
    pub(super) upserts_among_more: Option<u64>,
    /// Update keys to the value that they were loaded with
    #[arg(long)]
    pub(super) keep_values: bool,
    /// Scan the key interval of N loaded keys instead of N records
    #[arg(long)]
    pub(super) scan_intervals: bool,
    /// Measure this many operations, of all clients together, after a warm-up of a twentieth of
    /// them
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    pub(super) operations: u64,
    /// Measure for this many seconds of the fabric's time instead, after a warm-up of a twentieth
    #[arg(long, value_name = "S", value_parser = units::seconds, conflicts_with = "operations")]
    pub(super) seconds: Option<f64>,
    /// Run this many operations before that warm-up, to fill large caches
    #[arg(long, value_name = "N", value_parser = units::positive)]
    pub(super) warm_up: Option<u64>,
    /// Run this many clients of each compute server [default: 2, for a trace 1]
    #[arg(long, value_name = "N", value_parser = units::limited::<u16>(1, 1024))]
    pub(super) threads: Option<u16>,
    /// Give the index up to this many consecutive single-key operations of a client in one call
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    pub(super) batch: u16,
    /// Run this many memory servers
    #[arg(
        long,
        value_name = "N",
        default_value = "4",
        value_parser = units::limited::<u16>(1, 1024)
    )]
    pub(super) memory_servers: u16,
    /// Run this many compute servers
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = units::limited::<u16>(1, 1024)
    )]
    pub(super) compute_servers: u16,
    /// Load the keys sorted, in `bulk`, by single writes in `random` order, after which flushes and
    /// merges end, or `none` of them [default: bulk, for fill-random none]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) load: Option<LoadName>,
    /// Flush and merge by this many threads of each compute server of the design `dlsm`, instead
    /// of by its clients
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::limited::<u16>(0, 64))]
    pub(super) background: u16,
    /// Make tables of the design `dlsm` so large that the loaded records fill this many, with all
    /// sizes in proportion [default: about 160]
    #[arg(long, value_name = "N", value_parser = units::limited::<u32>(1, 1_000_000))]
    pub(super) tables: Option<u32>,
    /// Set options of the design, such as `dex.admission=hot`; --help-options lists them. Can be
    /// given several times
    #[arg(long, value_name = "DESIGN.OPTION=VALUE,…", value_delimiter = ',')]
    pub(super) set: Vec<OptionChange>,
    /// Print the options of all designs, which --set takes, and end
    #[arg(long)]
    pub(super) help_options: bool,
    /// Fill pages to this share when loading, from 0.1 to 1.0
    #[arg(long, value_name = "SHARE", default_value = "0.7", value_parser = units::fill)]
    pub(super) fill: f64,
    /// Give each compute server a cache of this size
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, conflicts_with = "cache_percent")]
    pub(super) cache_bytes: Option<u64>,
    /// Give all compute servers together a cache of this percentage of the loaded records' keys and
    /// values (16 bytes each), or of the records that a trace touches. About 200 hold all of them,
    /// because pages also have free space and separators
    #[arg(long, value_name = "PERCENT", value_parser = units::cache_percent)]
    pub(super) cache_percent: Option<f64>,
    /// Write changed nodes of the design `dex` back within this many milliseconds, which costs
    /// WRITEs [default: when they are evicted]
    #[arg(long, value_name = "MS")]
    pub(super) write_back_ms: Option<u32>,
    /// Give each compute server this many LSM trees in the design `dlsm`, each for a part of the
    /// keys that it owns; with 1, all compute servers share one
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 64))]
    pub(super) shards: u16,
    /// Weight the shares of the memory servers under range partitioning [default: equal]
    #[arg(long, value_name = "W,W,…", value_delimiter = ',', value_parser = units::weight)]
    pub(super) placement: Vec<u64>,
    /// Connect clients and memory servers by this fabric
    #[arg(long, visible_alias = "transport", value_enum, default_value = "local")]
    pub(super) fabric: FabricName,
    /// Add a round trip time of this many nanoseconds [default: none on `local`, 1700 and the NICs'
    /// time on `sim`]
    #[arg(long, value_name = "NS", value_parser = units::count)]
    pub(super) network_latency_ns: Option<u64>,
    /// Change what `sim` models: ports=N of each NIC, message=NS that a message takes a port for at
    /// least, atomic-unit=NS and atomic-word=NS for which atomics on one server and on one word
    /// take turns, cooling-queue=NS for which threads take turns with cooling=queue, numa=FACTOR
    /// by which that takes longer after a thread of the other socket, co-located for servers of
    /// both kinds on one machine
    #[arg(long, value_name = "KEY[=VALUE],…", value_delimiter = ',', value_parser = model::change)]
    pub(super) model: Vec<ModelChange>,
    /// Serve RPCs with this many cores of each memory server, on `sim` [default: 4]
    #[arg(long, value_name = "N", value_parser = units::limited::<u16>(1, 1024))]
    pub(super) server_cores: Option<u16>,
    /// Serve RPCs with this many threads of each memory server, on `local` and `verbs`; on `local`,
    /// 0 serves them in the caller [default: 0 on `local`, 1 on `verbs`]
    #[arg(long, value_name = "N", value_parser = units::limited::<u16>(0, 256))]
    pub(super) server_threads: Option<u16>,
    /// Give each memory server a pool of this size, allocated on first use. The design `local` has
    /// all of them in one place [default: enough for the keys and the insertions]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub(super) pool_bytes: Option<u64>,
    /// Seed the random numbers; on `sim` it determines the whole run
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::seed)]
    pub(super) seed: u64,
    /// Replay a trace instead of a workload, by one client: plain, gzip or zstd, or with `-` from
    /// stdin. A read is a lookup, a write sets the key's value
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "workload", "distribution", "clustered", "keys", "operations", "seconds", "warm_up",
            "shift_hotspot_at", "timeline", "balance", "moves", "add_memory_server_at",
            "load", "background", "own_keys", "batch", "dense", "key_form", "upserts_among_more", "keep_values", "scan_intervals",
        ]
    )]
    pub(super) trace: Option<PathBuf>,
    /// Read the trace in this form, see below
    #[arg(
        long,
        value_name = "NAME",
        default_value = "csv",
        requires = "trace",
        value_parser = PossibleValuesParser::new(FORMATS.map(|(name, ..)| name))
    )]
    pub(super) trace_format: String,
    /// Change these parts of that form: key=COLUMN, op=COLUMN, volume=COLUMN (equal keys of several
    /// volumes differ), count=COLUMN (of requests in a row), by the header's name or by place, from
    /// 1; keys=number, signed, hex, digits or text; read=TEXT, write=TEXT, remove=TEXT, with `|`
    /// between several; separator=comma, tab, space or words; columns=N if further separators
    /// belong to the key
    #[arg(long, value_name = "PART=VALUE,…", requires = "trace")]
    pub(super) trace_columns: Option<String>,
    /// Take the keys from this column of the trace: as `--trace-columns key=NAME`
    #[arg(long, value_name = "NAME", requires = "trace")]
    pub(super) trace_key_column: Option<String>,
    /// Take the operations from this column of the trace: as `--trace-columns op=NAME`
    #[arg(long, value_name = "NAME", requires = "trace")]
    pub(super) trace_op_column: Option<String>,
    /// Treat this text in that column as a read: as `--trace-columns read=TEXT`
    #[arg(long, value_name = "TEXT", requires = "trace")]
    pub(super) trace_read: Option<String>,
    /// Treat this text in that column as a write: as `--trace-columns write=TEXT`
    #[arg(long, value_name = "TEXT", requires = "trace")]
    pub(super) trace_write: Option<String>,
    /// Replay on an index that has all keys of the trace (`loaded`) or none (`empty`) at first
    #[arg(long, value_enum, value_name = "HOW", default_value = "loaded", requires = "trace")]
    pub(super) trace_start: TraceStart,
    /// Replay at most this many requests of the trace
    #[arg(long, value_name = "N", default_value = "50M", requires = "trace", value_parser = units::positive)]
    pub(super) trace_requests: u64,
    /// Replace each key of the trace by a 64-bit hash of its text, so that textual keys become
    /// numbers
    #[arg(long, requires = "trace")]
    pub(super) hash_keys: bool,
    /// Make other keys popular during the run: at a fraction of it, such as `50%`, or after this
    /// many seconds of the fabric's time, such as `2.5`. For zipfian distributions; with
    /// --clustered, the hotspot moves from one range of keys to another
    #[arg(long, value_name = "PERCENT%|S", value_parser = units::moment)]
    pub(super) shift_hotspot_at: Option<MeasurementMoment>,
    /// Move popular keys up by this percentage of the keys, wrapping around
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "50",
        value_parser = units::part,
        requires = "shift_hotspot_at"
    )]
    pub(super) shift_hotspot_by: f64,
    /// Balance load among the compute servers of the design `dex` during the measurement: move keys
    /// away from overloaded ones
    #[arg(long)]
    pub(super) balance: bool,
    /// Compare loads at intervals of this many milliseconds of the fabric's time [default: 100]
    #[arg(long, value_name = "MS", value_parser = moments::interval, requires = "balance")]
    pub(super) balance_window_ms: Option<f64>,
    /// Move keys between compute servers of the design `dex` during the measurement: all keys of
    /// FROM or, with PERCENT, that part of its range, to its neighbour TO or to a compute server
    /// without keys, at a moment as for --shift-hotspot-at. Can be given several times
    #[arg(long = "move", value_name = "FROM:TO[:PERCENT]@MOMENT", value_parser = moments::planned_move)]
    pub(super) moves: Vec<PlannedChange>,
    /// Add this many compute servers of the design `dex` that have no keys and no clients at first,
    /// numbered after the others
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::limited::<u16>(0, 256))]
    pub(super) spare_compute_servers: u16,
    /// Let clients of the design `dex` use only keys of their own compute server, as if requests
    /// were sent to the owner. Spare compute servers then have clients too, which wait until theirs
    /// owns keys; this needs --seconds
    #[arg(long)]
    pub(super) own_keys: bool,
    /// Keep this many of the memory servers, the last ones, free of nodes of the design `dex` at
    /// first
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::limited::<u16>(0, 256))]
    pub(super) spare_memory_servers: u16,
    /// From this moment on, allocate new nodes on one more of those memory servers. Can be given
    /// several times
    #[arg(long, value_name = "PERCENT%|S", value_parser = units::moment)]
    pub(super) add_memory_server_at: Vec<MeasurementMoment>,
    /// Show throughput over time, and write it to `timeline.csv` and `timeline.svg` in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(super) timeline: Option<PathBuf>,
    /// Divide the timeline into intervals of this many milliseconds of the fabric's time, at most
    /// 2,000 of them [default: a sixtieth of the run]
    #[arg(long, value_name = "MS", value_parser = moments::interval, requires = "timeline")]
    pub(super) interval_ms: Option<f64>,
    /// Add the distribution of latencies to the JSON
    #[arg(long, requires = "json")]
    pub(super) latencies: bool,
    /// Write the report as JSON to this file, or with `-` to stdout (the table then goes to stderr)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// How an index gets its records before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LoadName {
    /// Sorted, at once
    Bulk,
    /// One by one, in random order
    Random,
    /// Not at all
    None,
}

/// What an index has when the replay of a trace starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TraceStart {
    /// All keys of the trace
    Loaded,
    /// Nothing
    Empty,
}

/// The fabric between clients and memory servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FabricName {
    /// Threads of this process, in real time
    Local,
    /// A simulated network and simulated processors, in virtual time
    Sim,
    /// Threads of this process, with this machine's RDMA device between clients and memory servers
    #[cfg(feature = "verbs")]
    Verbs,
}
