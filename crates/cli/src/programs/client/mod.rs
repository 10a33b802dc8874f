//! `farleaf client`: reads and changes a cluster's index from the command line.

mod bench;
mod commands;
mod export;
mod load;
mod sending;
mod tally;

pub(crate) use commands::{CommandOutcome, OperationLine};

use commands::run_line;

use super::ClusterLocation;
use anyhow::Context;
use clap::{Args, Subcommand};
use farleaf_cluster::client::{ClusterConnection, ConnectionConfig, LocatedCluster};
use farleaf_cluster::layouts::{ClusterLayout, LayoutName};
use farleaf_cluster::text::Notation;
use farleaf_cluster::with_layout;
use farleaf_command_line::usage;
use farleaf_index::client::Acknowledged;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Options of `farleaf client`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf client --dir /tmp/farleaf put 17 4\n  farleaf client --dir /tmp/farleaf \
    scan 10 --end 20 --limit 5\n  farleaf client --dir /tmp/farleaf load records.csv\n  farleaf client --dir /tmp/farleaf put \
    'user\\x00' Ada\n\nKeys and values are whole numbers from 0 to 2^64 - 1, or, in a cluster with --keys bytes, byte \
    strings: text, with \\xNN for bytes that are no printable character and \\\\ for a backslash. Quote \
    backslashes for the shell. Exit codes: 0 success, 1 failure, or the key is absent or, for insert, present, or has another value than \
    expected, 2 invalid command line or \
    file."
)]
pub(crate) struct ClientArguments {
    #[command(flatten)]
    access: ClusterAccess,
    #[command(subcommand)]
    command: ClientCommand,
}

/// How to reach a cluster, and how to write its keys and values.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterAccess {
    #[command(flatten)]
    pub(super) place: ClusterLocation,
    #[command(flatten)]
    pub(super) timeout: OperationTimeout,
    /// Read and write byte strings as hexadecimal digits, on the command line and in files
    #[arg(long, global = true)]
    hex: bool,
}

impl ClusterAccess {
    /// Finds the cluster. Clients of its connection have at most `depth` requests in flight.
    pub(super) fn locate(&self, depth: usize) -> anyhow::Result<LocatedCluster> {
        let located = locate(&self.place, &self.timeout, depth)?;
        if self.hex && located.layout() == LayoutName::Numbers {
            return usage("--hex is for byte strings, and this cluster has u64 keys");
        }
        Ok(located)
    }

    pub(super) fn notation(&self) -> Notation {
        if self.hex { Notation::Hex } else { Notation::Escaped }
    }
}

/// Timeout for emptying an index.
const CLEAR_WITHIN: Duration = Duration::from_secs(60);

/// How long a client waits.
#[derive(Clone, Debug, Args)]
pub(crate) struct OperationTimeout {
    /// Give up an operation after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = super::duration)]
    deadline_seconds: Duration,
}

impl OperationTimeout {
    /// Sets the time after which an operation is abandoned.
    pub(super) fn new(deadline_seconds: Duration) -> Self {
        Self { deadline_seconds }
    }

    /// The time after which an operation is abandoned.
    pub(super) fn seconds(&self) -> Duration {
        self.deadline_seconds
    }
}

/// The commands of a client.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Print the value of a key
    Get {
        /// The key
        key: String,
    },
    /// Set the value of a key
    Put {
        /// The key
        key: String,
        /// Its value
        value: String,
    },
    /// Add a key; fail if it is present
    Insert {
        /// The key
        key: String,
        /// Its value
        value: String,
    },
    /// Change the value of a key; fail if it is absent
    Update {
        /// The key
        key: String,
        /// Its new value
        value: String,
    },
    /// Remove a key
    Remove {
        /// The key
        key: String,
    },
    /// Change the value of a key if it is the expected one; fail if it is another or the key is
    /// absent
    CompareExchange {
        /// The key
        key: String,
        /// The value that it must have
        expected: String,
        /// Its new value
        new: String,
    },
    /// Print records, one `key,value` per line, quoted as in CSV
    Scan(ScanArguments),
    /// Count the records of a range by scanning it
    ///
    /// The count is no snapshot: it may miss or contain records that are added or removed
    /// meanwhile.
    Count(RangeArguments),
    /// Set the records of a CSV file
    Load(load::LoadArguments),
    /// Write all records to a CSV file that `load --bulk` reads
    ///
    /// The export is a scan, not a snapshot: it may contain some of the changes that happen
    /// meanwhile.
    Export(export::ExportArguments),
    /// Write all acknowledged changes to the memory servers: a crash of a compute server then loses
    /// none of them
    Flush,
    /// Empty the index; operations under way are retried on the new index or fail
    Clear,
    /// Measure throughput and latency of the cluster
    Bench(Box<bench::ClientBenchArguments>),
}

/// A range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct RangeArguments {
    /// Begin at this key [default: the lowest key, or the highest of a scan downwards]
    pub(crate) start: Option<String>,
    /// End before this key, without it
    #[arg(long, value_name = "KEY")]
    pub(crate) end: Option<String>,
    /// Take only keys that begin with these bytes, for byte strings
    #[arg(long, value_name = "BYTES")]
    pub(crate) prefix: Option<String>,
}

/// Options of `farleaf client scan`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub(crate) struct ScanArguments {
    #[command(flatten)]
    pub(crate) range: RangeArguments,
    /// Print at most this many records
    #[arg(long, value_name = "N", default_value = "100", value_parser = farleaf_command_line::units::count)]
    pub(crate) limit: u64,
    /// Scan downwards
    #[arg(long)]
    pub(crate) reverse: bool,
}

/// Finds the cluster.
pub(crate) fn locate(
    place: &ClusterLocation,
    timeout: &OperationTimeout,
    depth: usize,
) -> anyhow::Result<LocatedCluster> {
    let (catalog, token) = place.find()?;
    let deadline = timeout.deadline_seconds;
    let cluster = place.cluster.clone();
    let config = ConnectionConfig { cluster, catalog, token, deadline, depth };
    Ok(LocatedCluster::find(&config)?)
}

/// A request to end a long command early; never raised by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbandonSignal(Arc<AtomicBool>);

impl AbandonSignal {
    /// Creates a request that Ctrl-C raises. From then on Ctrl-C has no other effect in this
    /// process.
    pub(crate) fn on_interrupt() -> std::io::Result<Self> {
        let abandon = Self::default();
        signal_hook::flag::register(SIGINT, Arc::clone(&abandon.0))?;
        Ok(abandon)
    }

    /// Creates a request that any signal to end the program raises, so that the command can clean
    /// up first.
    fn on_end() -> std::io::Result<Self> {
        let abandon = Self::on_interrupt()?;
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&abandon.0))?;
        }
        Ok(abandon)
    }

    /// Clears the request before the next command.
    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_wished(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.is_wished(), "abandoned");
        Ok(())
    }
}

impl ClientCommand {
    /// The command as a single operation, if it is one; a shell runs these over its existing
    /// connection.
    pub(crate) fn line(&self) -> Option<OperationLine> {
        Some(match self.clone() {
            Self::Get { key } => OperationLine::Get { key },
            Self::Put { key, value } => OperationLine::Put { key, value },
            Self::Insert { key, value } => OperationLine::Insert { key, value },
            Self::Update { key, value } => OperationLine::Update { key, value },
            Self::Remove { key } => OperationLine::Remove { key },
            Self::CompareExchange { key, expected, new } => {
                OperationLine::CompareExchange { key, expected, new }
            }
            Self::Scan(scan) => OperationLine::Scan(scan),
            Self::Count(range) => OperationLine::Count(range),
            Self::Flush => OperationLine::Flush,
            Self::Load(_) | Self::Export(_) | Self::Clear | Self::Bench(_) => return None,
        })
    }

    /// Runs the command over new connections, and returns its outcome.
    pub(crate) fn run(
        &self,
        access: &ClusterAccess,
        abandon: &AbandonSignal,
    ) -> anyhow::Result<CommandOutcome> {
        match self {
            Self::Load(load) => {
                let located = access.locate(256)?;
                with_layout!(located.layout(), L => {
                    load::run::<L>(&located.connect()?, access.notation(), load, abandon)
                })
            }
            Self::Export(export) => export::run(access, export, abandon),
            Self::Clear => {
                access.locate(256)?.clear(CLEAR_WITHIN)?;
                Ok(CommandOutcome::Done)
            }
            Self::Bench(bench) => bench::run(access, bench, abandon),
            line => {
                let line = line.line().context("it is an operation")?;
                open(access, 256, None)?.run(&line, access.notation(), abandon).0
            }
        }
    }
}

/// A connection to a cluster of any layout.
pub(crate) trait OpenedConnection {
    /// Executes one operation and prints its results. Also returns whether it has printed anything.
    fn run(
        &self,
        line: &OperationLine,
        notation: Notation,
        abandon: &AbandonSignal,
    ) -> (anyhow::Result<CommandOutcome>, bool);

    /// The registered compute servers ([`ClusterConnection::servers`]).
    fn servers(&self) -> Vec<(u16, String, u64)>;

    /// The changes that were acknowledged to it ([`ClusterConnection::acknowledged`]).
    fn acknowledged(&self) -> Arc<Acknowledged>;
}

/// Connects to the cluster, in place of the connection `former` if there is one.
pub(crate) fn open(
    access: &ClusterAccess,
    depth: usize,
    former: Option<&dyn OpenedConnection>,
) -> anyhow::Result<Box<dyn OpenedConnection>> {
    let mut located = access.locate(depth)?;
    if let Some(former) = former {
        located = located.continuing(former.acknowledged());
    }
    Ok(with_layout!(located.layout(), L => Box::new(located.connect::<L>()?)))
}

impl<L: ClusterLayout> OpenedConnection for ClusterConnection<L> {
    fn run(
        &self,
        line: &OperationLine,
        notation: Notation,
        abandon: &AbandonSignal,
    ) -> (anyhow::Result<CommandOutcome>, bool) {
        let ran = ClusterConnection::run(self, async |client| {
            let mut out = PrintedWriter { out: std::io::stdout().lock(), is_printed: false };
            let outcome = run_line::<L>(&client, line, notation, abandon, &mut out).await;
            let flushed = out.flush().context("cannot write stdout");
            let outcome = outcome.and_then(|outcome| flushed.map(|()| outcome));
            Ok::<_, anyhow::Error>((outcome, out.is_printed))
        });
        ran.unwrap_or_else(|error| (Err(error), false))
    }

    fn acknowledged(&self) -> Arc<Acknowledged> {
        ClusterConnection::acknowledged(self)
    }

    fn servers(&self) -> Vec<(u16, String, u64)> {
        ClusterConnection::servers(self)
    }
}

/// A writer that records whether anything was written.
struct PrintedWriter<W> {
    out: W,
    is_printed: bool,
}

impl<W: Write> Write for PrintedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.is_printed |= !bytes.is_empty();
        self.out.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Runs one command; returns whether it succeeded.
pub(crate) fn run(arguments: &ClientArguments) -> anyhow::Result<bool> {
    let ClientArguments { access, command } = arguments;
    let abandon = match command {
        // An export has a temporary file to remove.
        ClientCommand::Export(_) => AbandonSignal::on_end().context("cannot catch signals")?,
        _ => AbandonSignal::default(),
    };
    match command.run(access, &abandon)? {
        CommandOutcome::Done => Ok(true),
        CommandOutcome::No(why) => {
            farleaf_command_line::output::note(&why);
            Ok(false)
        }
    }
}
