//! The options of `farleaf bench`.

use super::{cache, over_time, reshaping};
use crate::designs::{DesignName, PartitioningName};
use crate::units;
use clap::{Args, ValueEnum};
use farleaf::cache::{AdmissionName, CoolingName, OffloadName, VictimName, WriteBackName};
use farleaf::index::dex::Boundaries;
use farleaf_bench::driver::{Moment, PlannedChange};
use farleaf_bench::workload::{Distribution, Mix};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  farleaf bench --workload ycsb-a --keys 10M --operations 5M --threads 2
  farleaf bench --workload insert-intensive --distribution uniform --seconds 10
  farleaf bench --memory-servers 4 --placement 80,12,5,3 --fabric sim --compute-servers 4
  farleaf bench --index local --workload ycsb-a    (what the same tree does without a network)
  farleaf bench --trace block-io.csv.gz --json -
  farleaf bench --index dex --compute-servers 4 --fabric sim --seconds 0.05 --clustered \
    --shift-hotspot-at 50% --timeline shift    (throughput over time, as popular keys change)
  farleaf bench --index dex --compute-servers 3 --spare-compute-servers 1 --fabric sim --seconds 0.05 \
    --move 0:3:50@40% --timeline join    (a fourth compute server takes half of the first one's keys)

Workloads (in percent; updates, lookups and scans take loaded keys, insertions add new ones):
  read-only         100 lookups                       ycsb-a  50 lookups, 50 updates
  read-intensive    95 lookups, 5 updates             ycsb-b  95 lookups, 5 updates
  write-intensive   50 lookups, 50 updates            ycsb-c  100 lookups
  insert-intensive  50 lookups, 50 insertions         ycsb-d  95 lookups of the latest, 5 insertions
  scan-intensive    95 scans of 100, 5 insertions     ycsb-e  95 scans of 1 to 100, 5 insertions
  scan-only         100 scans of 100                  ycsb-f  50 lookups, 50 read-modify-writes
  update-only       100 updates

DEX as in its paper, with its harness:
  farleaf bench --index dex --compute-servers 4 --threads 1 --cache-percent 32 --admission coin:0.1 \
    --victims random --write-back pages --dense --keep-values --scan-intervals --own-keys --fill 0.5

Numbers may have `_` between digits and a suffix k, M or G; bytes also Ki, Mi or Gi.
Keys and values are 8 bytes each.

Exit codes: 0 done, 1 something failed on the way, 2 the command line or an input file makes no sense.";

/// The options of `farleaf bench`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The index design
    #[arg(long, value_enum, default_value = "coarse")]
    pub(crate) index: DesignName,
    /// What clients do, see below
    #[arg(long, value_name = "NAME", default_value = "read-only", value_parser = Mix::named)]
    pub(super) workload: Mix,
    /// How often which key: `uniform`, `zipfian:THETA` or `latest:THETA` [default: zipfian:0.99, for
    /// ycsb-d latest:0.99]
    #[arg(long, value_name = "KIND")]
    pub(super) distribution: Option<Distribution>,
    /// Leave popular keys side by side instead of scattering them over the key space by a hash
    #[arg(long)]
    pub(super) clustered: bool,
    /// How many keys to load, evenly spread over all 64-bit numbers
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    pub(super) keys: u64,
    /// Load the keys 0, 1, 2 and so on instead, side by side
    #[arg(long)]
    pub(super) dense: bool,
    /// Let insertions set keys instead, drawn like those of lookups but from the loaded keys and N that follow them
    #[arg(long, value_name = "N", value_parser = units::positive)]
    pub(super) upserts_among_more: Option<u64>,
    /// Let updates set the value that the key was loaded with
    #[arg(long)]
    pub(super) keep_values: bool,
    /// Let scans of N records read the interval of keys that N loaded keys take, however many are in it
    #[arg(long)]
    pub(super) scan_intervals: bool,
    /// How many operations to measure, of all clients together, after a warm-up of a twentieth of them
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    pub(super) operations: u64,
    /// How long to measure instead, in seconds of the fabric's time, after a warm-up of a twentieth
    #[arg(long, value_name = "S", value_parser = units::seconds, conflicts_with = "operations")]
    pub(super) seconds: Option<f64>,
    /// More operations before that warm-up, to fill large caches
    #[arg(long, value_name = "N", value_parser = units::positive)]
    pub(super) warm_up: Option<u64>,
    /// Clients of each compute server [default: 2, for a trace 1]
    #[arg(long, value_name = "N", value_parser = units::limited::<u16>(1, 1024))]
    pub(super) threads: Option<u16>,
    /// Memory servers
    #[arg(
        long,
        value_name = "N",
        default_value = "4",
        value_parser = units::limited::<u16>(1, 1024)
    )]
    pub(super) memory_servers: u16,
    /// Compute servers
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = units::limited::<u16>(1, 1024)
    )]
    pub(super) compute_servers: u16,
    /// How full the load makes pages, from 0.1 to 1.0
    #[arg(long, value_name = "SHARE", default_value = "0.7", value_parser = units::fill)]
    pub(super) fill: f64,
    /// Cache of each compute server, in bytes
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, conflicts_with = "cache_percent")]
    pub(super) cache_bytes: Option<u64>,
    /// Cache of all compute servers together, in percent of the loaded records' bytes, 16 each; for a trace,
    /// of the records that it touches. Pages have free space and keys of their own: some 200 hold everything
    #[arg(long, value_name = "PERCENT", value_parser = units::cache_percent)]
    pub(super) cache_percent: Option<f64>,
    /// How leaves that were read enter the cache: `cold`, `hot`, `coin:P`, hot with probability P, or `never`:
    /// then nothing is cached, and all nodes on the way are read
    #[arg(long, value_name = "KIND", default_value = "cold", value_parser = cache::admission)]
    pub(super) admission: AdmissionName,
    /// How cooling frames are kept: a `map` of small buckets, or one `queue` behind one lock
    #[arg(long, value_name = "KIND", default_value = "map", value_parser = cache::cooling)]
    pub(super) cooling: CoolingName,
    /// The part of the frames that cool, in percent
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "10",
        value_parser = units::limited::<u32>(1, 90)
    )]
    pub(super) cooling_percent: u32,
    /// How frames are found that are made to cool: at random those that are `unused`, at `random` whatever they
    /// are, or one after the other, as a `clock`
    #[arg(long, value_name = "KIND", default_value = "unused", value_parser = cache::victims)]
    pub(super) victims: VictimName,
    /// What of a changed leaf is written back: the `words` that changed, or whole `pages`, as in the paper
    #[arg(long, value_name = "KIND", default_value = "words", value_parser = cache::write_back)]
    pub(super) write_back: WriteBackName,
    /// Which operations are left to memory servers when a node on their way is missing: `never` any, `always` those
    /// that can be, or `cost-aware`, those that seem to take less time there
    #[arg(long, value_name = "KIND", default_value = "never", value_parser = cache::offload)]
    pub(super) offload: OffloadName,
    /// The design `dex` writes nodes back before they have been dirty for so many milliseconds, which costs WRITEs;
    /// 0 is never
    #[arg(long, value_name = "MS", default_value = "0")]
    pub(super) write_back_ms: u32,
    /// How many leaves a scan of the design `dex` reads together at most; with 1 it reads one after the other
    #[arg(long, value_name = "N", default_value = "16", value_parser = units::limited::<u32>(1, 1024))]
    pub(super) scan_ahead: u32,
    /// What all compute servers have equal parts of: the `keys` that can be, or the `records` that are loaded
    #[arg(long, value_name = "KIND", default_value = "keys", value_parser = cache::boundaries)]
    pub(super) boundaries: Boundaries,
    /// Subtrees of this level lie whole on one memory server, in the design `dex` [default: the largest level with 16
    /// subtrees for each memory server]
    #[arg(long, value_name = "LEVEL", value_parser = units::limited::<u8>(0, 8))]
    pub(super) placement_level: Option<u8>,
    /// How keys are split among memory servers
    #[arg(long, value_enum, default_value = "range")]
    pub(super) partitioning: PartitioningName,
    /// The memory servers' shares of the keys under range partitioning, as weights [default: equal]
    #[arg(long, value_name = "W,W,…", value_delimiter = ',', value_parser = units::weight)]
    pub(super) placement: Vec<u64>,
    /// What the clients and the memory servers run on
    #[arg(long, visible_alias = "transport", value_enum, default_value = "local")]
    pub(super) fabric: FabricName,
    /// A round trip, in nanoseconds [default: none on `local`, 1700 and what NICs take on `sim`]
    #[arg(long, value_name = "NS", value_parser = units::count)]
    pub(super) network_latency_ns: Option<u64>,
    /// Cores of each memory server that serve RPCs, on `sim` [default: 4]
    #[arg(long, value_name = "N", value_parser = units::limited::<u16>(1, 1024))]
    pub(super) server_cores: Option<u16>,
    /// Threads of each memory server that serve RPCs, on `local` and `verbs`; on `local`, 0 serves them in the caller
    /// [default: 0 on `local`, 1 on `verbs`]
    #[arg(long, value_name = "N", value_parser = units::limited::<u16>(0, 256))]
    pub(super) server_threads: Option<u16>,
    /// Memory of each memory server, in bytes; taken from the system as it is used. The design `local` has
    /// that of all of them in one place [default: what the keys and the insertions can need]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub(super) pool_bytes: Option<u64>,
    /// Where randomness starts; on `sim` it settles the whole run
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::seed)]
    pub(super) seed: u64,
    /// Replay a trace instead of a workload, by one client from an empty index: CSV with a header, plain
    /// or gzip; a read is a lookup, a write sets the key's value
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "workload", "distribution", "clustered", "keys", "operations", "seconds", "fill", "warm_up",
            "shift_hotspot_at", "timeline", "balance", "moves", "add_memory_server_at",
            "own_keys", "dense", "upserts_among_more", "keep_values", "scan_intervals",
        ]
    )]
    pub(super) trace: Option<PathBuf>,
    /// The trace's column of keys
    #[arg(long, value_name = "NAME", default_value = "lbn", requires = "trace")]
    pub(super) trace_key_column: String,
    /// The trace's column that tells reads from writes
    #[arg(long, value_name = "NAME", default_value = "op", requires = "trace")]
    pub(super) trace_op_column: String,
    /// What that column says for a read
    #[arg(long, value_name = "TEXT", default_value = "28", requires = "trace")]
    pub(super) trace_read: String,
    /// What that column says for a write
    #[arg(long, value_name = "TEXT", default_value = "2a", requires = "trace")]
    pub(super) trace_write: String,
    /// Make other keys popular during the run: at a part of it, such as `50%`, or after so many seconds of the
    /// fabric's time, such as `2.5`. For zipfian distributions; with --clustered, popular keys are one range
    /// of the key space before and another one afterwards
    #[arg(long, value_name = "PERCENT%|S", value_parser = over_time::moment)]
    pub(super) shift_hotspot_at: Option<Moment>,
    /// How far popular keys then move up in the key space, round its end, in percent of the keys
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "50",
        value_parser = over_time::part,
        requires = "shift_hotspot_at"
    )]
    pub(super) shift_hotspot_by: f64,
    /// Balance load among the compute servers of the design `dex` during the measurement: keys move from who does much more
    /// than others
    #[arg(long)]
    pub(super) balance: bool,
    /// How long loads are counted for that before they are looked at, in milliseconds of the fabric's time
    #[arg(long, value_name = "MS", default_value = "100", value_parser = over_time::interval, requires = "balance")]
    pub(super) balance_window_ms: f64,
    /// Move keys between compute servers of the design `dex` during the measurement: all that FROM owns or, with PERCENT,
    /// that part of its range, to its neighbour TO or to one that owns nothing, at a moment as for --shift-hotspot-at. Can
    /// be given several times
    #[arg(long = "move", value_name = "FROM:TO[:PERCENT]@MOMENT", value_parser = reshaping::planned_move)]
    pub(super) moves: Vec<PlannedChange>,
    /// Compute servers of the design `dex` that own nothing at first, and have no clients; numbered after the others
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::limited::<u16>(0, 256))]
    pub(super) spare_compute_servers: u16,
    /// Clients ask only for keys that their compute server owns, as where requests are sent to the owner, in the design `dex`.
    /// Then spare compute servers have clients as well, which wait until theirs owns something; with those it needs --seconds
    #[arg(long)]
    pub(super) own_keys: bool,
    /// The last so many memory servers hold no nodes of the design `dex` at first
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::limited::<u16>(0, 256))]
    pub(super) spare_memory_servers: u16,
    /// Let new nodes go to one of those too from a moment on. Can be given several times
    #[arg(long, value_name = "PERCENT%|S", value_parser = over_time::moment)]
    pub(super) add_memory_server_at: Vec<Moment>,
    /// Show throughput over time, and write it to `timeline.csv` and `timeline.svg` in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(super) timeline: Option<PathBuf>,
    /// How long its intervals are, in milliseconds of the fabric's time, for at most 2,000 of them [default: a
    /// sixtieth of the run]
    #[arg(long, value_name = "MS", value_parser = over_time::interval, requires = "timeline")]
    pub(super) interval_ms: Option<f64>,
    /// Write the report as JSON to this file, or with `-` to stdout (the table then goes to stderr)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// What clients and memory servers run on.
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
