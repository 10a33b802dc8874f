//! `farleaf cluster`: a whole cluster on this host.

use super::{Common, WRITE_BACK_MS, duration, servers};
use crate::{units, usage};
use anyhow::Context;
use clap::Args;
use farleaf_bench::input::{ColumnNames, sample_keys};
use farleaf_cluster::launch::{self, LaunchOptions};
use farleaf_cluster::records::Transport;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The options of `farleaf cluster`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  farleaf cluster --dir /tmp/farleaf \
    --transport tcp --memory-servers 2 --compute-servers 2\n\nIt says `ready` when the cluster serves, and ends \
    it on SIGTERM and SIGINT. Everything that it needs is in the folder: token, logs, process numbers, the catalog's \
    state.\n\nExit codes: 0 ended as asked, 1 a server died or the cluster never served, 2 the command line or a \
    file makes no sense."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    common: Common,
    /// The folder of everything; made if it is not there
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// How compute servers reach memory servers: tcp, shm or verbs
    #[arg(long, value_name = "TRANSPORT")]
    transport: Transport,
    /// How many memory servers
    #[arg(long, value_name = "M", value_parser = servers)]
    memory_servers: u16,
    /// How many compute servers
    #[arg(long, value_name = "C", value_parser = servers)]
    compute_servers: u16,
    /// Bytes of each memory server's pool, such as 4Gi; memory is taken as it is used, over verbs at once
    #[arg(long, value_name = "BYTES", default_value = "1Gi", value_parser = units::bytes)]
    pool_bytes: u64,
    /// Threads of each memory server
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    threads: u16,
    /// Bytes of each compute server's cache, such as 1Gi
    #[arg(long, value_name = "BYTES", default_value = "64Mi", value_parser = units::bytes)]
    cache_bytes: u64,
    /// Compute servers write nodes back before they have been dirty for so many milliseconds; 0 is never
    #[arg(long, value_name = "MS", default_value_t = WRITE_BACK_MS)]
    write_back_ms: u32,
    /// Threads of each compute server that work on requests
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    compute_threads: u16,
    /// Where each compute server's keys begin but the first's, when the cluster begins; evenly, unless said otherwise
    #[arg(long, value_name = "KEY,KEY", value_delimiter = ',', value_parser = units::count)]
    boundaries: Vec<u64>,
    /// Choose the boundaries so that all compute servers get equal parts of the keys of this CSV file, plain or gzip
    #[arg(long, value_name = "FILE", conflicts_with = "boundaries")]
    boundaries_from: Option<PathBuf>,
    /// That file's column of keys [default: `key`, or the first of a file without a header]
    #[arg(long, value_name = "NAME", requires = "boundaries_from")]
    key_column: Option<String>,
    /// After how many seconds without a sign of life a server is taken for dead
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = duration)]
    term_seconds: Duration,
    /// Start a server again that has died
    #[arg(long)]
    restart: bool,
    /// Serve metrics of each server, on ports that the operating system chooses
    #[arg(long)]
    metrics: bool,
    /// How many seconds the cluster may take until it serves
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = duration)]
    ready_seconds: Duration,
    /// How many seconds a server may take to end before it is killed
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = duration)]
    end_seconds: Duration,
}

fn flag(name: &str, value: impl ToString) -> [OsString; 2] {
    [name.into(), value.to_string().into()]
}

impl Arguments {
    /// Where each compute server's keys begin but the first's; nothing if that was not said.
    fn boundaries(&self) -> anyhow::Result<Vec<u64>> {
        let Some(path) = &self.boundaries_from else { return Ok(self.boundaries.clone()) };
        let names = ColumnNames { key: self.key_column.clone(), value: None };
        let keys = sample_keys(path, &names)?;
        let servers = usize::from(self.compute_servers);
        if keys.len() < servers as u64 {
            let (path, count) = (path.display(), keys.len());
            return usage(format!(
                "{path} has {count} keys: too few for {servers} compute servers"
            ));
        }
        Ok(keys.boundaries(&vec![1; servers]))
    }
}

/// Runs a cluster until a signal ends it; whether all went well.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
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
    let boundaries = arguments.boundaries()?;
    if !boundaries.is_empty() {
        let boundaries: Vec<_> = boundaries.iter().map(u64::to_string).collect();
        compute_flags.extend(flag("--boundaries", boundaries.join(",")));
    }
    let options = LaunchOptions {
        dir: arguments.dir.clone(),
        cluster: arguments.cluster.clone(),
        transport: arguments.transport,
        memory_servers: arguments.memory_servers,
        compute_servers: arguments.compute_servers,
        memory_flags: [&common[..], &pool, &threads].concat(),
        compute_flags,
        restart: arguments.restart,
        ready_within: arguments.ready_seconds,
        end_within: arguments.end_seconds,
        program: std::env::current_exe().context("this program does not know where it is")?,
    };
    Ok(launch::run(&options, &stop, &mut std::io::stdout())?)
}
