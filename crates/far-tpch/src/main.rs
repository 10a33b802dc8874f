//! TPC-H on DataFusion with the tables in far memory: the experiment of "Separated Allocator
//! Metadata in Disaggregated In-Memory Databases", with this project's allocator and pager in the
//! place of UMap and a memory appliance. As there, base tables are far, and what queries make is
//! local; queries run on one thread.
//!
//! Memory servers are threads of this process, over one of three transports. Each answer is
//! compared with that of the same query on tables in DRAM, and at scale factor 1 with TPC-H's own.
//!
//! ```text
//! cd crates/far-tpch
//! cargo run --release -- run --page 64 --buffer 20
//! cargo run --release -- figures
//! ```

mod answers;
mod data;
mod engine;
mod far;
mod figures;
mod table;

use clap::{Args, Parser, Subcommand, ValueEnum};
use farleaf_far_alloc::Metadata;

/// Runs TPC-H with its tables in far memory.
#[derive(Parser, Debug)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Runs the queries with one setting, and prints their costs beside those in DRAM.
    Run {
        #[command(flatten)]
        work: Work,
        #[command(flatten)]
        setting: Setting,
    },
    /// Runs the queries with many settings: the figures 5 to 7 of the paper, and what follows.
    Figures {
        #[command(flatten)]
        work: Work,
    },
}

/// What is run.
#[derive(Args, Clone, Debug)]
pub(crate) struct Work {
    /// Scale factor: about so many GB of data.
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Rounds of all queries that are measured, after one that is not.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Numbers of the queries, 1 to 22.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=22))]
    queries: Option<Vec<u8>>,
}

/// Where the tables are, and how.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Where the allocator's metadata is; `pinned` has room for twice as much as it takes.
    #[arg(long, value_enum, default_value_t = Place::Separated)]
    metadata: Place,
    /// Size of a page in KiB, a power of two from 4 to 1024.
    #[arg(long, default_value_t = 256)]
    page: usize,
    /// Local memory for the tables, in percent of their size.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    buffer: u32,
    /// Keeps the address space of freed extents.
    #[arg(long)]
    retain: bool,
    /// How long freed extents stay, in milliseconds.
    #[arg(long, default_value_t = 0)]
    decay: u32,
    /// How memory servers are reached.
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Does not ask for each batch before it is read: a memory server that dies ends the process.
    #[arg(long)]
    faults_only: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
enum Place {
    Together,
    Separated,
    Pinned,
}

impl Place {
    /// The setting of an arena for this many bytes of columns, of 8 KiB or more each.
    fn metadata(self, bytes: usize) -> Metadata {
        match self {
            Self::Together => Metadata::Together,
            Self::Separated => Metadata::Separated,
            Self::Pinned => Metadata::Pinned { bytes: (1 << 20) + bytes / 100 },
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
enum Transport {
    Local,
    Tcp,
    Shm,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        match Cli::parse().command {
            Command::Run { work, setting } => figures::run(&work, setting).await,
            Command::Figures { work } => figures::all(&work).await,
        }
    })
}
