//! `farleaf compute-server`: one compute server.

use super::{Common, WRITE_BACK_MS, address, duration};
use crate::units;
use clap::{Args, ValueEnum};
use farleaf::cache::{CacheOptions, OffloadName};
use farleaf_cluster::catalog::CatalogAddress;
use farleaf_cluster::compute::{self, ComputeServerOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What is left to memory servers.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Offload {
    /// Nothing
    Never,
    /// Whatever they can do below a missing node
    Always,
    /// What is cheaper there, as measured
    CostAware,
}

/// The options of `farleaf compute-server`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  farleaf compute-server --number 0 --listen 10.0.0.8:7500 \
    --cache-bytes 16Gi --threads 8 \\\n    --catalog 10.0.0.6:7400 --token-file /etc/farleaf/token\n\nIt ends on SIGTERM and \
    SIGINT, when it has written everything back."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// The server's number among the compute servers, from 0
    #[arg(long, value_name = "N")]
    number: u16,
    /// Where clients reach it; the operating system chooses a port for 0
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = address)]
    listen: SocketAddr,
    /// Where clients reach it, if not where it listens
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    /// Threads that work on requests, each with connections of its own to the memory servers
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    threads: u16,
    /// Threads that receive requests and send answers
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 64))]
    io_threads: u16,
    /// Bytes of its cache, such as 16Gi
    #[arg(long, value_name = "BYTES", default_value = "64Mi", value_parser = units::bytes)]
    cache_bytes: u64,
    /// Nodes are written back before they have been dirty for so many milliseconds: a crash loses no more than what was
    /// changed since; 0 is never
    #[arg(long, value_name = "MS", default_value_t = WRITE_BACK_MS)]
    write_back_ms: u32,
    /// What is left to memory servers where a node is missing
    #[arg(long, value_name = "POLICY", default_value = "never")]
    offload: Offload,
    /// Where each compute server's keys begin but the first's, if this program makes the first partition map
    #[arg(long, value_name = "KEY,KEY", value_delimiter = ',', value_parser = units::count)]
    boundaries: Vec<u64>,
    /// The longest that one request to a memory server may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = duration)]
    request_seconds: Duration,
    /// Where the catalog is: ADDRESS of an embedded one, or etcd:HOST:PORT,HOST:PORT
    #[arg(long, value_name = "CATALOG")]
    catalog: CatalogAddress,
    /// The cluster's token, in a file that only its owner can read
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Serve /metrics and /healthz over HTTP here
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// After how many seconds without a sign of life it is taken for dead
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = duration)]
    term_seconds: Duration,
}

/// Runs a compute server until a signal ends it.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let stop = arguments.common.start()?;
    let offload = match arguments.offload {
        Offload::Never => OffloadName::Never,
        Offload::Always => OffloadName::Always,
        Offload::CostAware => OffloadName::CostAware,
    };
    let cache = CacheOptions {
        bytes: arguments.cache_bytes,
        offload,
        write_back_ns: u64::from(arguments.write_back_ms) * 1_000_000,
        ..CacheOptions::default()
    };
    let options = ComputeServerOptions {
        number: arguments.number,
        cluster: arguments.cluster,
        listen: arguments.listen,
        advertise: arguments.advertise,
        threads: arguments.threads.into(),
        io_threads: arguments.io_threads.into(),
        cache,
        catalog: arguments.catalog,
        token_file: arguments.token_file,
        term: arguments.term_seconds,
        request_timeout: arguments.request_seconds,
        boundaries: arguments.boundaries,
        metrics: arguments.metrics,
    };
    Ok(compute::run(&options, &stop)?)
}
