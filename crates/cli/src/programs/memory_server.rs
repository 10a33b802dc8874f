//! `farleaf memory-server`: runs one memory server.

use super::layout::LayoutArguments;
use super::{CommonOptions, address, duration, servers};
use clap::Args;
use farleaf_cluster::catalog::CatalogAddress;
use farleaf_cluster::memory_server::{self, CatalogPlace, CreatorSettings, MemoryServerOptions};
use farleaf_cluster::records::PoolTransport;
use farleaf_command_line::units;
use farleaf_page::DEFAULT_PLACEMENT_LEVEL;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `farleaf memory-server`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  farleaf memory-server --number 1 \
    --transport tcp --listen 10.0.0.7:7401 --pool-bytes 64Gi \\\n    --catalog 10.0.0.6:7400 \
    --token-file /etc/farleaf/token\n\nIt ends on SIGTERM and SIGINT, and its content is lost then."
)]
pub(crate) struct MemoryServerArguments {
    #[command(flatten)]
    common: CommonOptions,
    /// Join the cluster of this name
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// Run as the memory server of this number, from 0
    #[arg(long, value_name = "N", value_parser = units::limited::<u16>(0, 1023))]
    pub(super) number: u16,
    /// Serve compute servers over tcp, shm or verbs
    #[arg(long, value_name = "TRANSPORT")]
    transport: PoolTransport,
    /// Listen at this host and port, a name or an IP address, over tcp or to set up RDMA
    /// connections; port 0 lets the system choose
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = address)]
    listen: SocketAddr,
    /// Listen for shm connections on the Unix socket at this path
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Publish this host and port for compute servers instead of the one of --listen
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    /// Serve a memory pool of this size, such as 64Gi; allocated on first use, over verbs at once
    #[arg(long, value_name = "BYTES", default_value = "1Gi", value_parser = units::bytes)]
    pub(super) pool_bytes: u64,
    /// Keep subtrees of this level on one memory server each
    #[arg(long, value_name = "LEVEL", default_value_t = DEFAULT_PLACEMENT_LEVEL, value_parser = units::limited::<u8>(1, 15))]
    placement_level: u8,
    /// Run this many threads for connections
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    threads: u16,
    /// Accept at most this many connections
    #[arg(long, value_name = "N", default_value = "1024", value_parser = units::limited::<u32>(1, 1_000_000))]
    connections: u32,
    /// Use this catalog: HOST:PORT of an embedded one, or etcd:HOST:PORT,HOST:PORT
    #[arg(
        long,
        value_name = "CATALOG",
        required_unless_present = "catalog_listen",
        conflicts_with = "catalog_listen"
    )]
    catalog: Option<CatalogAddress>,
    /// Run the catalog in this process, listening at this address
    #[arg(long, value_name = "ADDRESS", value_parser = address, requires = "catalog_state")]
    catalog_listen: Option<SocketAddr>,
    /// Keep the state of the catalog in this process in this file
    #[arg(long, value_name = "FILE", requires = "catalog_listen")]
    catalog_state: Option<PathBuf>,
    /// Write the address of the catalog in this process to this file
    #[arg(long, value_name = "FILE", requires = "catalog_listen")]
    catalog_address_file: Option<PathBuf>,
    /// Read the cluster's token from this file, which only its owner can read
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Serve /metrics and /healthz over HTTP at this address
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Treat this server as dead after this many seconds without a lease renewal
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = duration)]
    term_seconds: Duration,
    /// Create a cluster of this many memory servers; the first program to pass it decides
    #[arg(long, value_name = "M", value_parser = servers, requires = "compute_servers")]
    memory_servers: Option<u16>,
    /// Create a cluster of this many compute servers; the first program to pass it decides
    #[arg(long, value_name = "C", value_parser = servers, requires = "memory_servers")]
    compute_servers: Option<u16>,
    #[command(flatten)]
    layout: LayoutArguments,
}

/// Runs a memory server until a signal ends it.
pub(crate) fn run(arguments: MemoryServerArguments) -> anyhow::Result<()> {
    let stop = arguments.common.start()?;
    let catalog = match (arguments.catalog, arguments.catalog_listen, arguments.catalog_state) {
        (None, Some(listen), Some(state)) => {
            CatalogPlace::Here { listen, state, address_file: arguments.catalog_address_file }
        }
        (Some(address), ..) => CatalogPlace::At(address),
        _ => return farleaf_command_line::usage("no catalog: use --catalog or --catalog-listen"),
    };
    let Some(pool_bytes) = usize::try_from(arguments.pool_bytes)
        .ok()
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(4096))
    else {
        return farleaf_command_line::usage("--pool-bytes must be a multiple of 4096");
    };
    let creates = match arguments.memory_servers.zip(arguments.compute_servers) {
        Some((memory_servers, compute_servers)) => {
            let (layout, index) = (arguments.layout.name()?, arguments.layout.index);
            Some(CreatorSettings { memory_servers, compute_servers, layout, index })
        }
        None => None,
    };
    let options = MemoryServerOptions {
        cluster: arguments.cluster,
        number: arguments.number,
        transport: arguments.transport,
        listen: arguments.listen,
        socket: arguments.socket,
        advertise: arguments.advertise,
        pool_bytes,
        placement_level: arguments.placement_level,
        threads: arguments.threads.into(),
        connections: arguments.connections as usize,
        catalog,
        token_file: arguments.token_file,
        metrics: arguments.metrics,
        term: arguments.term_seconds,
        creates,
    };
    Ok(memory_server::run(&options, &stop)?)
}
