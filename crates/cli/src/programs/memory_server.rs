//! `farleaf memory-server`: one memory server.

use super::{Common, address, duration, servers};
use crate::units;
use clap::Args;
use farleaf_cluster::catalog::CatalogAddress;
use farleaf_cluster::memory_server::{self, CatalogPlace, MemoryServerOptions};
use farleaf_cluster::records::Transport;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The options of `farleaf memory-server`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  farleaf memory-server --number 1 \
    --transport tcp --listen 10.0.0.7:7401 --pool-bytes 64Gi \\\n    --catalog 10.0.0.6:7400 \
    --token-file /etc/farleaf/token\n\nIt ends on SIGTERM and SIGINT. What it holds is gone then."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// The server's number among the memory servers, from 0
    #[arg(long, value_name = "N")]
    pub(super) number: u16,
    /// How compute servers reach it: tcp, shm or verbs
    #[arg(long, value_name = "TRANSPORT")]
    transport: Transport,
    /// Where it listens over tcp, or RDMA connections are brought up; the operating system chooses a port for 0
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = address)]
    listen: SocketAddr,
    /// The path of the socket that it is reached by over shm
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Where others reach that, if not where it listens
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    /// Bytes of its pool, such as 64Gi; memory is taken as it is used, over verbs at once
    #[arg(long, value_name = "BYTES", default_value = "1Gi", value_parser = units::bytes)]
    pub(super) pool_bytes: u64,
    /// Subtrees of this level lie whole on one memory server
    #[arg(long, value_name = "LEVEL", default_value = "3", value_parser = units::limited::<u8>(1, 15))]
    placement_level: u8,
    /// Threads that serve connections
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    threads: u16,
    /// How many connections there may be
    #[arg(long, value_name = "N", default_value = "1024", value_parser = units::limited::<u32>(1, 1_000_000))]
    connections: u32,
    /// Where the catalog is: ADDRESS of an embedded one, or etcd:HOST:PORT,HOST:PORT
    #[arg(
        long,
        value_name = "CATALOG",
        required_unless_present = "catalog_listen",
        conflicts_with = "catalog_listen"
    )]
    catalog: Option<CatalogAddress>,
    /// Have the catalog in this program, listening here
    #[arg(long, value_name = "ADDRESS", value_parser = address, requires = "catalog_state")]
    catalog_listen: Option<SocketAddr>,
    /// The file of the state of the catalog in this program
    #[arg(long, value_name = "FILE", requires = "catalog_listen")]
    catalog_state: Option<PathBuf>,
    /// Write to this file where the catalog in this program listens
    #[arg(long, value_name = "FILE", requires = "catalog_listen")]
    catalog_address_file: Option<PathBuf>,
    /// The cluster's token, in a file that only its owner can read
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Serve /metrics and /healthz over HTTP here
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// After how many seconds without a sign of life it is taken for dead
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = duration)]
    term_seconds: Duration,
    /// How many memory servers the cluster has; the first program that says so decides
    #[arg(long, value_name = "M", value_parser = servers, requires = "compute_servers")]
    memory_servers: Option<u16>,
    /// How many compute servers the cluster has; the first program that says so decides
    #[arg(long, value_name = "C", value_parser = servers, requires = "memory_servers")]
    compute_servers: Option<u16>,
}

/// Runs a memory server until a signal ends it.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let stop = arguments.common.start()?;
    let catalog = match (arguments.catalog, arguments.catalog_listen, arguments.catalog_state) {
        (None, Some(listen), Some(state)) => {
            CatalogPlace::Here { listen, state, address_file: arguments.catalog_address_file }
        }
        (Some(address), ..) => CatalogPlace::At(address),
        _ => return crate::usage("there is no catalog: use --catalog or --catalog-listen"),
    };
    let Some(pool_bytes) = usize::try_from(arguments.pool_bytes)
        .ok()
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(4096))
    else {
        return crate::usage("--pool-bytes must be a multiple of 4096");
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
        servers: arguments.memory_servers.zip(arguments.compute_servers),
    };
    Ok(memory_server::run(&options, &stop)?)
}
