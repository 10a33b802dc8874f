//! `farleaf cluster`: runs a whole cluster on this host.

use super::client::{OperationTimeout, locate};
use super::layout::{BlockArguments, FromRows, LayoutArguments, RowReading};
use super::{
    ClusterLocation, CommonOptions, DEFAULT_CACHE, OptionArguments, WRITE_BACK_MS, duration,
    on_off, servers,
};
use anyhow::Context;
use clap::Args;
use farleaf_bench::InputError;
use farleaf_bench::input::{CsvOptions, sample};
use farleaf_cluster::balance::balance_until;
use farleaf_cluster::compute::{boundaries_of, first_map};
use farleaf_cluster::launch::{self, LaunchOptions};
use farleaf_cluster::layouts::BlockSettings;
use farleaf_cluster::records::{IndexName, PoolTransport};
use farleaf_cluster::settings::{acknowledge_of, takes_over};
use farleaf_cluster::stop::StopSignal;
use farleaf_cluster::text::{Notation, Textual};
use farleaf_cluster::with_layout;
use farleaf_command_line::{units, usage};
use farleaf_dex::cache::CacheOptions;
use farleaf_dlsm::{DlsmOptions, MAX_SHARDS};
use farleaf_index::{AcknowledgeName, OptionChange};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Timeout of a move by the balancer.
const MOVE_WITHIN: Duration = Duration::from_secs(30);

/// Options of `farleaf cluster`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  farleaf cluster --dir /tmp/farleaf \
    --transport tcp --memory-servers 2 --compute-servers 2\n\nIt prints `ready` when the cluster serves, and stops \
    it on SIGTERM and SIGINT. The folder holds all files: token, logs, process numbers, the catalog's \
    state.\n\nExit codes: 0 success, 1 a server died or the cluster did not serve in time, 2 invalid command line or \
    file."
)]
pub(crate) struct ClusterArguments {
    #[command(flatten)]
    common: CommonOptions,
    /// Keep all files of the cluster in this folder, created if missing
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
    /// Name the cluster
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// Connect compute servers to memory servers over tcp, shm or verbs
    #[arg(long, value_name = "TRANSPORT")]
    transport: PoolTransport,
    /// Run this many memory servers
    #[arg(long, value_name = "M", value_parser = servers)]
    memory_servers: u16,
    /// Run this many compute servers
    #[arg(long, value_name = "C", value_parser = servers)]
    compute_servers: u16,
    /// Give each memory server a pool of this size, such as 4Gi; allocated on first use, over verbs
    /// at once
    #[arg(long, value_name = "BYTES", default_value = "1Gi", value_parser = units::bytes)]
    pool_bytes: u64,
    /// Run this many threads in each memory server
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    threads: u16,
    /// Give each compute server a cache of this size, such as 1Gi
    #[arg(long, value_name = "BYTES", default_value = DEFAULT_CACHE.as_str(), value_parser = units::bytes)]
    cache_bytes: u64,
    /// Write changed nodes back within this many milliseconds; 0 waits until they are evicted or
    /// flushed
    #[arg(long, value_name = "MS", default_value_t = WRITE_BACK_MS)]
    write_back_ms: u32,
    /// Answer changes when they are `cached`, or when they are `written` to the memory servers, so
    /// that the death of a compute server loses none [default: cached]
    #[arg(long, value_name = "LEVEL")]
    acknowledge: Option<AcknowledgeName>,
    /// Let living compute servers take over the keys of those that die: on or off [default:
    /// on with --acknowledge written and several compute servers, which it needs]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    takeover: Option<bool>,
    /// Let compute servers answer only for this many milliseconds after a probe of a memory server;
    /// a takeover waits as long
    #[arg(long, value_name = "MS", default_value = "500", value_parser = units::limited::<u16>(50, 60_000))]
    right_ms: u16,
    #[command(flatten)]
    options: OptionArguments,
    /// Run this many worker threads in each compute server
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    compute_threads: u16,
    #[command(flatten)]
    layout: LayoutArguments,
    /// Divide the keys of each compute server into this many shards, with --index dlsm: numbers
    /// evenly, byte strings by their first bytes
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 64))]
    shards: u16,
    /// Divide a shard where keys are to move from its middle, until the compute server has this
    /// many shards, with --index dlsm; with 0, shards move whole
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::limited::<u16>(0, 1024))]
    most_shards: u16,
    #[command(flatten)]
    blocks: BlockArguments,
    /// Set the first key of each compute server but the first, for a new cluster; \x2c is a comma
    /// in a byte string [default: equal parts of all numbers; with --keys bytes all keys below \xff
    /// belong to the first, until a bulk load, the balancer or `farleaf move` moves some]
    #[arg(long, value_name = "KEY,KEY", value_delimiter = ',')]
    boundaries: Vec<String>,
    /// Choose the boundaries so that compute servers get equal parts of the keys in this CSV file,
    /// plain, gzip or zstd
    #[arg(long, value_name = "FILE", conflicts_with = "boundaries")]
    boundaries_from: Option<PathBuf>,
    /// Take the keys from this column of that file [default: `key`, or the first of a file without
    /// a header]
    #[arg(long, value_name = "NAME", requires = "boundaries_from")]
    key_column: Option<String>,
    /// Treat the first row of that file as a record, for byte strings
    #[arg(long, requires = "boundaries_from", conflicts_with = "key_column")]
    no_header: bool,
    /// Treat a server as dead after this many seconds without a lease renewal
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = duration)]
    term_seconds: Duration,
    /// Restart servers that die
    #[arg(long)]
    restart: bool,
    /// Give a server up that has died more often than this within a minute
    #[arg(long, value_name = "N", default_value = "5", value_parser = units::limited::<usize>(1, 1000))]
    max_restarts: usize,
    /// Move keys away from busy compute servers
    #[arg(long)]
    balance: bool,
    /// Serve metrics of each server on ports chosen by the system
    #[arg(long)]
    metrics: bool,
    /// Give up if the cluster does not serve within this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = duration)]
    ready_seconds: Duration,
    /// Kill a server that takes longer than this many seconds to stop
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = duration)]
    end_seconds: Duration,
}

fn flag(name: &str, value: impl ToString) -> [OsString; 2] {
    [name.into(), value.to_string().into()]
}

impl ClusterArguments {
    /// The lowest key of each compute server but the first, as text without commas; empty if no
    /// option sets them.
    fn boundaries<L: FromRows>(&self) -> anyhow::Result<Vec<String>> {
        let servers = self.compute_servers;
        let keys = match &self.boundaries_from {
            None => boundaries_of::<L>(&self.boundaries)?,
            Some(path) => {
                let csv = CsvOptions { key: self.key_column.clone(), ..Default::default() };
                let notation = Notation::Escaped;
                let reading = RowReading { csv, has_header: !self.no_header };
                let mut rows = L::open(path, &reading)?;
                let keys =
                    sample(|| Ok::<_, InputError>(L::next(&mut rows, notation)?.map(first)))?;
                if keys.len() < usize::from(servers) {
                    let (path, count) = (path.display(), keys.len());
                    return usage(format!(
                        "{path} has {count} keys: too few for {servers} compute servers"
                    ));
                }
                // The parts have equal sizes, and the keys are distinct.
                let place = |part: u16| keys.len() * usize::from(part) / usize::from(servers);
                (1..servers).map(|part| keys[place(part)].clone()).collect()
            }
        };
        if !keys.is_empty()
            && let Err(error) = first_map::<L>(keys.clone(), servers)
        {
            return usage(error.to_string());
        }
        let text = |key| L::key(key).text(Notation::Escaped).replace(',', "\\x2c");
        Ok(keys.iter().map(text).collect())
    }
}

fn first<K, V>((key, _): (K, V)) -> K {
    key
}

/// Runs a cluster until a signal ends it. Returns whether no server died.
pub(crate) fn run(arguments: &ClusterArguments) -> anyhow::Result<bool> {
    let stop = arguments.common.start()?;
    let mut common = flag("--term-seconds", arguments.term_seconds.as_secs_f64()).to_vec();
    if arguments.metrics {
        common.extend(flag("--metrics", "127.0.0.1:0"));
    }
    let pool = flag("--pool-bytes", arguments.pool_bytes);
    let threads = flag("--threads", arguments.threads);
    let cache = flag("--cache-bytes", arguments.cache_bytes);
    let compute_threads = flag("--threads", arguments.compute_threads);
    let write_back = flag("--write-back-ms", arguments.write_back_ms);
    let mut compute_flags = [&common[..], &cache, &write_back, &compute_threads].concat();
    compute_flags
        .extend(arguments.acknowledge.into_iter().flat_map(|it| flag("--acknowledge", it)));
    let BlockSettings { inline_bytes, cache_percent } = arguments.blocks.settings();
    compute_flags.extend(flag("--inline-bytes", inline_bytes));
    compute_flags.extend(flag("--block-cache-percent", cache_percent));
    let (mut cache, mut tree) = (CacheOptions::default(), DlsmOptions::default());
    arguments.options.apply(&mut cache, &mut tree, arguments.acknowledge)?;
    compute_flags.extend(arguments.options.set.iter().flat_map(|change| flag("--set", change)));
    let index = arguments.layout.index;
    let others = |change: &&OptionChange| change.design != index.to_string();
    if let Some(change) = arguments.options.set.iter().find(others) {
        return usage(format!("--set {change}: this cluster has --index {index}"));
    }
    if index == IndexName::Dex && (arguments.shards > 1 || arguments.most_shards > 0) {
        return usage("--shards and --most-shards are for --index dlsm");
    }
    let acknowledge = acknowledge_of(index, &cache, &tree);
    let takes_over = takes_over(arguments.takeover, acknowledge, arguments.compute_servers);
    let takes_over = match takes_over {
        Ok(takes_over) => takes_over,
        Err(refusal) => return usage(refusal.to_string()),
    };
    compute_flags.extend(flag("--takeover", if takes_over { "on" } else { "off" }));
    compute_flags.extend(flag("--right-ms", arguments.right_ms));
    let shards = usize::from(arguments.shards) * usize::from(arguments.compute_servers);
    if index == IndexName::Dlsm && shards > MAX_SHARDS {
        return usage(format!(
            "--shards {} on {} compute servers are {shards}, and an index has at most {MAX_SHARDS}",
            arguments.shards, arguments.compute_servers
        ));
    }
    compute_flags.extend(flag("--shards", arguments.shards));
    compute_flags.extend(flag("--most-shards", arguments.most_shards));
    let layout = arguments.layout.name()?;
    let boundaries = with_layout!(layout, L => arguments.boundaries::<L>())?;
    if !boundaries.is_empty() {
        // Pass a single word, because a key may begin with a dash.
        compute_flags.push(format!("--boundaries={}", boundaries.join(",")).into());
    }
    let keys = flag("--keys", layout.keys());
    let page_bytes = flag("--page-bytes", layout.page_bytes());
    let index = flag("--index", index);
    let options = LaunchOptions {
        dir: arguments.dir.clone(),
        cluster: arguments.cluster.clone(),
        transport: arguments.transport,
        memory_servers: arguments.memory_servers,
        compute_servers: arguments.compute_servers,
        memory_flags: [&common[..], &pool, &threads, &keys, &page_bytes, &index].concat(),
        compute_flags,
        restart: arguments.restart,
        max_restarts: arguments.max_restarts,
        term: arguments.term_seconds,
        takeover: takes_over,
        ready_within: arguments.ready_seconds,
        end_within: arguments.end_seconds,
        program: std::env::current_exe().context("cannot find the path of this program")?,
    };
    std::thread::scope(|scope| {
        let over = StopSignal::default();
        let balance = || {
            let place = ClusterLocation::of_folder(&arguments.dir, &arguments.cluster);
            let over = over.clone();
            move || {
                let timeout = OperationTimeout::new(MOVE_WITHIN);
                with_layout!(layout, L => {
                    let connect = || Ok::<_, anyhow::Error>(locate(&place, &timeout, 64)?.connect::<L>()?);
                    balance_until(connect, &over);
                });
            }
        };
        let start = || std::thread::Builder::new().spawn_scoped(scope, balance());
        let balancer = arguments.balance.then(start).transpose();
        let balancer = balancer.context("cannot start the balancer's thread")?;
        let outcome = launch::run(&options, &stop, &mut std::io::stdout());
        over.raise();
        if balancer.is_some_and(|thread| thread.join().is_err()) {
            anyhow::bail!("the balancer failed");
        }
        Ok(outcome?)
    })
}
