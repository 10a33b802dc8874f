//! The command `farleaf`: the programs of a cluster, a demo, benchmarks and simulations.
//!
//! Exit codes: 0 success, 1 failure, 2 invalid command line or input file. An error is one line on
//! stderr.

#![forbid(unsafe_code)]

mod bench;
mod demo;
mod designs;
mod output;
mod plot;
mod programs;
mod reproduce;
mod sim;
mod units;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use farleaf_bench::InputError;
use farleaf_cluster::config::ConfigError;
use farleaf_cluster::error::ProgramError;
use std::process::ExitCode;

/// Ordered key-value indexes whose nodes live in the memory of other machines.
#[derive(Debug, Parser)]
#[command(
    name = "farleaf",
    version,
    max_term_width = 100,
    after_help = "Examples:\n  farleaf demo\n  farleaf bench --workload ycsb-a --keys 10M --threads 2\n  \
                  farleaf bench --help\n\n\
                  Exit codes: 0 success, 1 failure, 2 invalid command line or input file."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load records into an embedded cluster and run a few workloads on every design
    Demo(demo::Arguments),
    /// Run one index design on one workload or trace, and report throughput, latency and costs
    Bench(Box<bench::Arguments>),
    /// Repeat the papers' experiments on the simulator, and report which statements hold
    Reproduce(reproduce::Arguments),
    /// The same as `reproduce trees`
    Figures(reproduce::Options),
    /// The same as `reproduce dex --figure 8,9,12,trace`, or with `--part lsm` as `reproduce dlsm
    /// --figure 11,12,13`: what each part of a design contributes
    Ablation(reproduce::Ablation),
    /// Check scenarios of workloads and faults on a simulated cluster
    Sim(sim::Arguments),
    /// Run one memory server
    MemoryServer(Box<programs::memory_server::Arguments>),
    /// Run one compute server
    ComputeServer(Box<programs::compute_server::Arguments>),
    /// Run a whole cluster on this host, one process per server
    Cluster(Box<programs::cluster::Arguments>),
    /// Move keys of a running cluster from one compute server to another
    Move(programs::moves::MoveArguments),
    /// Move all keys of a running cluster away from one compute server
    Drain(programs::moves::DrainArguments),
    /// Move keys of a running cluster away from busy compute servers, until a signal ends it
    Balance(programs::moves::BalanceArguments),
    /// Show the state of a cluster, and whether it serves
    Status(programs::status::Arguments),
    /// Read and change records of a cluster
    Client(Box<programs::client::Arguments>),
    /// Read and change records of a cluster from a prompt or a script
    Shell(programs::shell::Arguments),
    /// Show the load of a cluster live
    Top(programs::top::Arguments),
}

/// The command line is invalid: exit code 2.
#[derive(Debug)]
struct UsageError(String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Fails with this message and exit code 2.
fn usage<T>(message: impl Into<String>) -> anyhow::Result<T> {
    Err(UsageError(message.into()).into())
}

/// Whether the user's input caused the error: the command line, or an input file.
fn is_callers(error: &anyhow::Error) -> bool {
    let is_config = |error: &ProgramError| matches!(error, ProgramError::Config(_));
    error.is::<UsageError>()
        || error.is::<ConfigError>()
        || error.downcast_ref().is_some_and(is_config)
        || error.chain().any(|cause| cause.is::<InputError>())
}

fn main() -> ExitCode {
    let words = match programs::with_file(std::env::args_os().collect()) {
        Ok(words) => words,
        Err(error) => {
            output::error_line(&error.to_string());
            return ExitCode::from(2);
        }
    };
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    let result = match arguments.command {
        Command::Demo(arguments) => demo::run(&arguments).map(|()| true),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| true),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Figures(options) => reproduce::run(&options.figures()),
        Command::Ablation(options) => reproduce::run(&options.figures()),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::MemoryServer(arguments) => programs::memory_server::run(*arguments).map(|()| true),
        Command::ComputeServer(arguments) => {
            programs::compute_server::run(*arguments).map(|()| true)
        }
        Command::Client(arguments) => programs::client::run(&arguments),
        Command::Shell(arguments) => programs::shell::run(&arguments),
        Command::Top(arguments) => programs::top::run(&arguments).map(|()| true),
        Command::Cluster(arguments) => programs::cluster::run(&arguments),
        Command::Move(arguments) => programs::moves::move_keys(&arguments).map(|()| true),
        Command::Drain(arguments) => programs::moves::drain(&arguments).map(|()| true),
        Command::Balance(arguments) => programs::moves::balance(&arguments).map(|()| true),
        Command::Status(arguments) => programs::status::run(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader closed the output, for example a pager.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error_line(&output::causes(&error));
            ExitCode::from(if is_callers(&error) { 2 } else { 1 })
        }
    }
}

/// The description of a command-line error, without clap's hints.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\nUsage:", "\nFor more information"].map(|mark| text.find(mark));
    let end = end.into_iter().flatten().min().unwrap_or(text.len());
    text[..end].to_owned()
}

/// Prints help and version to stdout unchanged; prints an error as one line.
fn explain(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that has closed the pipe is not an error.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            output::error_line(
                "a command is missing: demo, bench, reproduce, sim, memory-server, compute-server, cluster, status, client, shell or top; see `farleaf --help`",
            );
            ExitCode::from(2)
        }
        _ => {
            output::error_line(&first_paragraph(error));
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
