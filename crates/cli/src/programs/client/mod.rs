//! `farleaf client`: a cluster's index from the command line.

mod bench;
mod commands;
mod load;

pub(crate) use commands::{Line, Outcome, run_line};

use super::Place;
use anyhow::Context;
use clap::{Args, Subcommand};
use farleaf_cluster::client::{Connection, ConnectionConfig};
use std::io::Write;
use std::time::Duration;

/// The options of `farleaf client`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf client --dir /tmp/farleaf put 17 4\n  farleaf client --dir /tmp/farleaf \
    scan 10 --limit 5\n  farleaf client --dir /tmp/farleaf load records.csv\n\nKeys and values are whole numbers from 0 to \
    2^64 - 1. Exit codes: 0 done, 1 the key is absent, or there (insert), or something failed, 2 the command line or a \
    file makes no sense."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    patience: Patience,
    #[command(subcommand)]
    command: Command,
}

/// How long a client waits, and how much it asks for at the same time.
#[derive(Debug, Args)]
pub(crate) struct Patience {
    /// The longest that one operation may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = super::duration)]
    deadline_seconds: Duration,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    /// Add a key that is absent
    Insert {
        /// The key
        key: u64,
        /// Its value
        value: u64,
    },
    /// Change the value of a key that is there
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
    /// Print records from a key on, a line `key,value` for each
    Scan {
        /// Where to start
        start: u64,
        /// How many records at most
        #[arg(long, value_name = "N", default_value = "100")]
        limit: u64,
        /// From there downwards
        #[arg(long)]
        reverse: bool,
    },
    /// Set the records of a CSV file, a line `key,value` for each
    Load(load::Arguments),
    /// Measure what the cluster does for clients
    Bench(bench::Arguments),
}

/// Connects to the cluster.
pub(crate) fn connect(
    place: &Place,
    patience: &Patience,
    depth: usize,
) -> anyhow::Result<Connection> {
    let (catalog, token) = place.find()?;
    let deadline = patience.deadline_seconds;
    let cluster = place.cluster.clone();
    let config = ConnectionConfig { cluster, catalog, token, deadline, depth };
    Ok(Connection::open(&config)?)
}

/// Runs one command; whether it did what it was for.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let line = match arguments.command {
        Command::Get { key } => Line::Get { key },
        Command::Put { key, value } => Line::Put { key, value },
        Command::Insert { key, value } => Line::Insert { key, value },
        Command::Update { key, value } => Line::Update { key, value },
        Command::Remove { key } => Line::Remove { key },
        Command::Scan { start, limit, reverse } => Line::Scan { start, limit, reverse },
        Command::Load(ref load) => return load::run(&arguments.place, &arguments.patience, load),
        Command::Bench(ref bench) => {
            return bench::run(&arguments.place, &arguments.patience, bench);
        }
    };
    let connection = connect(&arguments.place, &arguments.patience, 256)?;
    let outcome = connection.run(async |client| {
        let mut out = std::io::stdout().lock();
        let outcome = run_line(&client, line, &mut out).await?;
        out.flush().context("stdout cannot be written")?;
        Ok::<_, anyhow::Error>(outcome)
    })?;
    match outcome {
        Outcome::Done => Ok(true),
        Outcome::No(why) => {
            crate::output::note(&why);
            Ok(false)
        }
    }
}
