//! `farleaf client`: reads and changes a cluster's index from the command line.

mod bench;
mod commands;
mod export;
mod load;
mod tally;

pub(crate) use commands::{Line, Outcome, run_line};

use super::ClusterLocation;
use anyhow::Context;
use clap::{Args, Subcommand};
use farleaf_cluster::client::{Connection, ConnectionConfig};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Options of `farleaf client`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf client --dir /tmp/farleaf put 17 4\n  farleaf client --dir /tmp/farleaf \
    scan 10 --limit 5\n  farleaf client --dir /tmp/farleaf load records.csv\n\nKeys and values are whole numbers from 0 to \
    2^64 - 1. Exit codes: 0 success, 1 failure, or the key is absent or, for insert, present, 2 invalid command line or \
    file."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: ClusterLocation,
    #[command(flatten)]
    patience: Patience,
    #[command(subcommand)]
    command: Command,
}

/// Timeout for emptying an index.
const CLEAR_WITHIN: Duration = Duration::from_secs(60);

/// How long a client waits.
#[derive(Clone, Debug, Args)]
pub(crate) struct Patience {
    /// Give up an operation after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = super::duration)]
    deadline_seconds: Duration,
}

impl Patience {
    /// Gives up an operation after this time.
    pub(super) fn new(deadline_seconds: Duration) -> Self {
        Self { deadline_seconds }
    }
}

/// The commands of a client.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the value of a key
    Get {
        /// The key
        key: u64,
    },
    /// Set the value of a key
    Put {
        /// The key
        key: u64,
        /// Its value
        value: u64,
    },
    /// Add a key; fail if it is present
    Insert {
        /// The key
        key: u64,
        /// Its value
        value: u64,
    },
    /// Change the value of a key; fail if it is absent
    Update {
        /// The key
        key: u64,
        /// Its new value
        value: u64,
    },
    /// Remove a key
    Remove {
        /// The key
        key: u64,
    },
    /// Print records from a key on, one `key,value` per line
    Scan {
        /// The first key
        start: u64,
        /// Print at most this many records
        #[arg(long, value_name = "N", default_value = "100", value_parser = crate::units::count)]
        limit: u64,
        /// Scan downwards
        #[arg(long)]
        reverse: bool,
    },
    /// Set the records of a CSV file
    Load(load::Arguments),
    /// Write all records to a CSV file that `load --bulk` reads
    ///
    /// The export is a scan, not a snapshot: it may contain some of the changes that happen
    /// meanwhile.
    Export(export::Arguments),
    /// Write all acknowledged changes to the memory servers: a crash of a compute server then loses
    /// none of them
    Flush,
    /// Empty the index; operations under way are retried on the new index or fail
    Clear,
    /// Measure throughput and latency of the cluster
    Bench(Box<bench::Arguments>),
}

/// Connects to the cluster.
pub(crate) fn connect(
    place: &ClusterLocation,
    patience: &Patience,
    depth: usize,
) -> anyhow::Result<Connection> {
    let (catalog, token) = place.find()?;
    let deadline = patience.deadline_seconds;
    let cluster = place.cluster.clone();
    let config = ConnectionConfig { cluster, catalog, token, deadline, depth };
    Ok(Connection::open(&config)?)
}

/// A request to end a long command early; never raised by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abandon(Arc<AtomicBool>);

impl Abandon {
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

impl Command {
    /// The command as a single operation, if it is one; a shell runs these over its existing
    /// connection.
    pub(crate) fn line(&self) -> Option<Line> {
        Some(match *self {
            Self::Get { key } => Line::Get { key },
            Self::Put { key, value } => Line::Put { key, value },
            Self::Insert { key, value } => Line::Insert { key, value },
            Self::Update { key, value } => Line::Update { key, value },
            Self::Remove { key } => Line::Remove { key },
            Self::Scan { start, limit, reverse } => Line::Scan { start, limit, reverse },
            Self::Flush => Line::Flush,
            Self::Load(_) | Self::Export(_) | Self::Clear | Self::Bench(_) => return None,
        })
    }

    /// Runs the command over new connections, and returns its outcome.
    pub(crate) fn run(
        &self,
        place: &ClusterLocation,
        patience: &Patience,
        abandon: &Abandon,
    ) -> anyhow::Result<Outcome> {
        match self {
            Self::Load(load) => load::run(place, patience, load, abandon),
            Self::Export(export) => export::run(place, patience, export, abandon),
            Self::Clear => {
                connect(place, patience, 256)?.clear(CLEAR_WITHIN)?;
                Ok(Outcome::Done)
            }
            Self::Bench(bench) => bench::run(place, patience, bench, abandon),
            line => {
                let line = line.line().context("it is an operation")?;
                run_once(&connect(place, patience, 256)?, line, abandon).0
            }
        }
    }
}

/// Executes one operation and prints its results. Also returns whether it has printed anything.
pub(crate) fn run_once(
    connection: &Connection,
    line: Line,
    abandon: &Abandon,
) -> (anyhow::Result<Outcome>, bool) {
    let ran = connection.run(async |client| {
        let mut out = Printed { out: std::io::stdout().lock(), is_printed: false };
        let outcome = run_line(&client, line, abandon, &mut out).await;
        let flushed = out.flush().context("cannot write stdout");
        let outcome = outcome.and_then(|outcome| flushed.map(|()| outcome));
        Ok::<_, anyhow::Error>((outcome, out.is_printed))
    });
    ran.unwrap_or_else(|error| (Err(error), false))
}

/// A writer that records whether anything was written.
struct Printed<W> {
    out: W,
    is_printed: bool,
}

impl<W: Write> Write for Printed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.is_printed |= !bytes.is_empty();
        self.out.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Runs one command; returns whether it succeeded.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let Arguments { place, patience, command } = arguments;
    let abandon = match command {
        // An export has a temporary file to remove.
        Command::Export(_) => Abandon::on_end().context("cannot catch signals")?,
        _ => Abandon::default(),
    };
    match command.run(place, patience, &abandon)? {
        Outcome::Done => Ok(true),
        Outcome::No(why) => {
            crate::output::note(&why);
            Ok(false)
        }
    }
}
