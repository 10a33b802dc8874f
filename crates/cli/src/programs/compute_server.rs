//! `farleaf compute-server`: runs one compute server.

use super::layout::BlockArguments;
use super::{
    CommonOptions, DEFAULT_CACHE, OptionArguments, WRITE_BACK_MS, address, duration, on_off,
};
use clap::Args;
use farleaf_cluster::catalog::CatalogAddress;
use farleaf_cluster::compute::{self, ComputeServerOptions};
use farleaf_command_line::units;
use farleaf_dex::cache::{CacheOptions, OffloadName};
use farleaf_dlsm::DlsmOptions;
use farleaf_index::AcknowledgeName;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `farleaf compute-server`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  farleaf compute-server --number 0 --listen 10.0.0.8:7500 \
    --cache-bytes 16Gi --threads 8 \\\n    --catalog 10.0.0.6:7400 --token-file /etc/farleaf/token\n\nOn SIGTERM and SIGINT it writes \
    everything back and ends."
)]
pub(crate) struct ComputeServerArguments {
    #[command(flatten)]
    common: CommonOptions,
    /// Join the cluster of this name
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// Run as the compute server of this number, from 0
    #[arg(long, value_name = "N", value_parser = units::limited::<u16>(0, 1023))]
    number: u16,
    /// Listen for clients at this host and port, a name or an IP address; port 0 lets the system
    /// choose
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = address)]
    listen: SocketAddr,
    /// Publish this host and port for clients instead of the one of --listen
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    /// Run this many threads, each with its share of the clients and its own connections to the
    /// memory servers
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    threads: u16,
    /// Has no effect any more: --threads serve the sockets of clients too
    #[arg(long, value_name = "N", hide = true, value_parser = units::limited::<u16>(1, 64))]
    io_threads: Option<u16>,
    /// Cache nodes, and values of byte strings, in this much memory, such as 16Gi
    #[arg(long, value_name = "BYTES", default_value = DEFAULT_CACHE.as_str(), value_parser = units::bytes)]
    cache_bytes: u64,
    #[command(flatten)]
    blocks: BlockArguments,
    /// Write changed nodes back within this many milliseconds, which bounds what a crash loses; 0
    /// waits until they are evicted or flushed
    #[arg(long, value_name = "MS", default_value_t = WRITE_BACK_MS)]
    write_back_ms: u32,
    /// Answer changes when they are `cached`, or when they are `written` to the memory servers, so
    /// that a crash loses none [default: cached]
    #[arg(long, value_name = "LEVEL")]
    acknowledge: Option<AcknowledgeName>,
    /// Take over the keys of compute servers that die, and let others take over this one's:
    /// on or off [default: on with --acknowledge written and several compute servers, which it
    /// needs]
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    takeover: Option<bool>,
    /// Answer only for this many milliseconds after a probe of a memory server, the same for all
    /// compute servers; a takeover waits as long
    #[arg(long, value_name = "MS", default_value = "500", value_parser = units::limited::<u16>(50, 60_000))]
    right_ms: u16,
    /// Offload operations to memory servers when a node is not cached: never, always if they can,
    /// or cost-aware if that is measured to be cheaper
    #[arg(long, value_name = "POLICY", default_value_t)]
    offload: OffloadName,
    #[command(flatten)]
    options: OptionArguments,
    /// Divide the keys of each compute server into this many shards, with --index dlsm; only the
    /// server that creates the index uses it
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 64))]
    shards: u16,
    /// Divide a shard where keys are to move from its middle, until the compute server has this
    /// many shards, with --index dlsm; with 0, shards move whole
    #[arg(long, value_name = "N", default_value = "0", value_parser = units::limited::<u16>(0, 1024))]
    most_shards: u16,
    /// Set the first key of each compute server but the first; only the server that creates the
    /// first partition map uses it; \x2c is a comma in a byte string
    #[arg(long, value_name = "KEY,KEY", value_delimiter = ',')]
    boundaries: Vec<String>,
    /// Give up a request to a memory server after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = duration)]
    request_seconds: Duration,
    /// Use this catalog: HOST:PORT of an embedded one, or etcd:HOST:PORT,HOST:PORT
    #[arg(long, value_name = "CATALOG")]
    catalog: CatalogAddress,
    /// Read the cluster's token from this file, which only its owner can read
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Serve /metrics and /healthz over HTTP at this address
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Treat this server as dead after this many seconds without a lease renewal
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = duration)]
    term_seconds: Duration,
}

/// Runs a compute server until a signal ends it.
pub(crate) fn run(arguments: ComputeServerArguments) -> anyhow::Result<()> {
    let stop = arguments.common.start()?;
    if arguments.io_threads.is_some() {
        eprintln!(
            "warning: --io-threads has no effect: --threads serve the sockets of clients too"
        );
    }
    let mut cache = CacheOptions {
        bytes: arguments.cache_bytes,
        offload: arguments.offload,
        write_back_ns: u64::from(arguments.write_back_ms) * 1_000_000,
        ..CacheOptions::default()
    };
    let mut tree = DlsmOptions::default();
    arguments.options.apply(&mut cache, &mut tree, arguments.acknowledge)?;
    let options = ComputeServerOptions {
        number: arguments.number,
        cluster: arguments.cluster,
        listen: arguments.listen,
        advertise: arguments.advertise,
        threads: arguments.threads.into(),
        cache,
        tree,
        shards: arguments.shards,
        most_shards: arguments.most_shards.into(),
        blocks: arguments.blocks.settings(),
        catalog: arguments.catalog,
        token_file: arguments.token_file,
        term: arguments.term_seconds,
        request_timeout: arguments.request_seconds,
        boundaries: arguments.boundaries,
        metrics: arguments.metrics,
        takeover: arguments.takeover,
        right: Duration::from_millis(arguments.right_ms.into()),
    };
    Ok(compute::run(&options, &stop)?)
}
