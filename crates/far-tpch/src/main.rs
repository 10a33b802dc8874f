//! TPC-H on DataFusion with the tables in far memory: the experiment of "Separated Allocator
//! Metadata in Disaggregated In-Memory Databases", with this project's allocator and pager in the
//! place of UMap and a memory appliance. As there, base tables are far, and what queries make is
//! local, unless `--intermediates` says otherwise; queries run on one thread.
//!
//! Memory servers are threads of this process, over one of three transports, or one of another
//! process (`memory-server`). Each answer is compared with that of the same query on tables in
//! DRAM, and at scale factor 1 with TPC-H's own.
//!
//! ```text
//! cd crates/far-tpch
//! cargo run --release -- run --page 64 --buffer 20
//! cargo run --release -- check --scale 1
//! cargo run --release -- figures --out figures
//! ```

mod answers;
mod data;
mod death;
mod engine;
mod far;
mod figures;
mod lab;
#[path = "../../lab/src/plot.rs"]
#[allow(dead_code, reason = "the program `farleaf-lab` draws more than this one")]
mod plot;
mod report;
mod table;

use clap::{Args, Parser, Subcommand, ValueEnum};
use farleaf_far_alloc::{FarGlobal, Metadata};
use farleaf_far_memory::FaultProvider;
use std::alloc::System;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Allocations of queries go to an arena only while the thread is in a scope, which the code begins
/// if `--intermediates` asks for it.
#[global_allocator]
static GLOBAL: FarGlobal<System> = FarGlobal::new(System, MIN_FAR_BYTES);

/// The least size of allocations of queries that can be far.
pub(crate) const MIN_FAR_BYTES: usize = 64 << 10;

/// Runs TPC-H with its tables in far memory.
#[derive(Parser, Debug)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: TpchCommand,
}

#[derive(Subcommand, Debug)]
enum TpchCommand {
    /// Runs the queries with one setting, and prints their costs beside those in DRAM.
    Run {
        #[command(flatten)]
        work: TpchWork,
        #[command(flatten)]
        setting: Setting,
    },
    /// Runs the queries over each transport, by each provider of faults, and compares the answers.
    Check {
        #[command(flatten)]
        work: TpchWork,
        #[command(flatten)]
        setting: Setting,
    },
    /// Runs the queries with many settings: the figures 5 to 7 of the paper, and what follows.
    Figures {
        #[command(flatten)]
        work: TpchWork,
        /// Figures to run, by their names; all if none is given.
        #[arg(long, value_delimiter = ',', value_enum)]
        only: Vec<figures::TpchFigure>,
        /// What is adjacent in far memory.
        #[arg(long, value_enum, default_value_t = TableOrder::Columns)]
        layout: TableOrder,
        /// Writes a CSV file and a plot of each figure to this folder.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Runs the queries on tables in DRAM alone, to compare them with the kernel's swap: limit the
    /// memory of the process's control group.
    Dram {
        #[command(flatten)]
        work: TpchWork,
    },
    /// Stops and kills the memory server of another process under running queries.
    Death {
        #[command(flatten)]
        work: TpchWork,
        #[command(flatten)]
        setting: Setting,
    },
    /// Is a memory server over TCP until its standard input ends, and prints its address.
    MemoryServer {
        /// Its memory in MiB.
        #[arg(long, default_value_t = 4096)]
        mib: usize,
    },
}

/// What is run.
#[derive(Args, Clone, Debug)]
pub(crate) struct TpchWork {
    /// Scale factor: about so many GB of data.
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Rounds of all queries that are measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Rounds before them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    warm_up: u32,
    /// Numbers of the queries, 1 to 22.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=22))]
    queries: Option<Vec<u8>>,
}

/// Where the tables are, and how.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Where the allocator's metadata is; `pinned` has room for twice as much as it takes.
    #[arg(long, value_enum, default_value_t = TpchPlace::Separated)]
    metadata: TpchPlace,
    /// Size of a page in KiB, a power of two from 4 to 1024.
    #[arg(long, default_value_t = 256)]
    page: usize,
    /// Local memory for the tables, in percent of what they take. With 100 or more, none leave.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    buffer: u32,
    /// Keeps the address space of freed extents.
    #[arg(long)]
    retain: bool,
    /// How long freed extents stay, in milliseconds.
    #[arg(long, default_value_t = 0)]
    decay: u32,
    /// How memory servers are reached.
    #[arg(long, value_enum, default_value_t = TpchTransport::Tcp)]
    transport: TpchTransport,
    /// How faults are noticed; if it is not given, as the machine allows.
    #[arg(long, value_enum)]
    provider: Option<FaultChoice>,
    /// What is adjacent in far memory.
    #[arg(long, value_enum, default_value_t = TableOrder::Columns)]
    layout: TableOrder,
    /// What is done with each batch of a table before the engine gets it.
    #[arg(long, value_enum, default_value_t = Batches::Load)]
    batches: Batches,
    /// Reads no pages ahead.
    #[arg(long)]
    no_ahead: bool,
    /// Keeps allocations of 64 KiB and more that queries make in far memory, too, with as much
    /// local memory again.
    #[arg(long)]
    intermediates: bool,
    /// Keeps the tables on the memory server at this address, over TCP.
    #[arg(long)]
    server: Option<SocketAddr>,
    /// How long reads and writes are repeated before they count as failed, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    patience: u64,
}

impl Setting {
    /// A buffer of 20% in pages of this size, and metadata in other memory.
    pub(crate) fn usual(page: usize) -> Self {
        Self {
            metadata: TpchPlace::Separated,
            page,
            buffer: 20,
            retain: false,
            decay: 0,
            transport: TpchTransport::Tcp,
            provider: None,
            layout: TableOrder::Columns,
            batches: Batches::Load,
            no_ahead: false,
            intermediates: false,
            server: None,
            patience: 10_000,
        }
    }
}

/// What happens to a batch of a far table before the engine gets it.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub(crate) enum Batches {
    /// Its pages are loaded. A memory server that dies is an error of the query, unless the engine
    /// still has a batch whose pages have left the buffer since: then it ends the process.
    Load,
    /// It is copied to local memory: a memory server that dies is always an error of the query.
    Copy,
    /// Nothing, as in the paper: the engine waits for pages as it reads them, and a memory server
    /// that dies ends the process.
    Fault,
}

/// The order in which tables are copied to far memory, and so their order there.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub(crate) enum TableOrder {
    /// One batch after the other, with all its columns, as in the paper.
    Batches,
    /// One column after the other, of all batches: a query reads whole sequences of pages.
    Columns,
}

/// A provider of faults.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub(crate) enum FaultChoice {
    Userfaultfd,
    Signal,
}

impl From<FaultChoice> for FaultProvider {
    fn from(faults: FaultChoice) -> Self {
        match faults {
            FaultChoice::Userfaultfd => Self::Userfaultfd,
            FaultChoice::Signal => Self::Signal,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub(crate) enum TpchPlace {
    Together,
    Separated,
    Pinned,
}

impl TpchPlace {
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
pub(crate) enum TpchTransport {
    Local,
    Tcp,
    Shm,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        match Cli::parse().command {
            TpchCommand::Run { work, setting } => figures::run(&work, setting).await,
            TpchCommand::Check { work, setting } => figures::check(&work, setting).await,
            TpchCommand::Figures { work, only, layout, out } => {
                let output = report::Output { folder: out, layout, caption: String::new() };
                figures::all(&work, &only, output).await
            }
            TpchCommand::Dram { work } => figures::dram(&work).await,
            TpchCommand::Death { work, setting } => death::run(&work, setting).await,
            TpchCommand::MemoryServer { mib } => death::be_server(mib),
        }
    })
}
