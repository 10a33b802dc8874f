//! The command `farleaf`: the programs of a cluster, and a demo. What is for research is the
//! program `farleaf-lab` (`crates/lab`).
//!
//! Exit codes: 0 success, 1 failure, 2 invalid command line or input file. An error is one line on
//! stderr.

#![forbid(unsafe_code)]

mod demo;
mod heartbeat;
mod programs;

use clap::{Parser, Subcommand};
use farleaf_cluster::config::ConfigError;
use farleaf_cluster::error::ProgramError;
use farleaf_command_line::{exit, output};
use std::ffi::OsString;
use std::process::ExitCode;

/// Ordered key-value indexes whose nodes live in the memory of other machines.
#[derive(Debug, Parser)]
#[command(
    name = "farleaf",
    version,
    max_term_width = 100,
    after_help = "Examples:\n  farleaf demo\n  farleaf cluster --dir /tmp/farleaf --transport tcp \
                  --memory-servers 2 --compute-servers 2\n\n\
                  Benchmarks of all designs, the papers' experiments and simulations are in the program \
                  farleaf-lab.\n\n\
                  Exit codes: 0 success, 1 failure, 2 invalid command line or input file."
)]
struct FarleafArguments {
    #[command(subcommand)]
    command: FarleafCommand,
}

#[derive(Debug, Subcommand)]
enum FarleafCommand {
    /// Load records into an embedded cluster, and run a few workloads on its indexes
    Demo(demo::DemoArguments),
    /// Run one memory server
    MemoryServer(Box<programs::memory_server::MemoryServerArguments>),
    /// Run one compute server
    ComputeServer(Box<programs::compute_server::ComputeServerArguments>),
    /// Run a whole cluster on this host, one process per server
    Cluster(Box<programs::cluster::ClusterArguments>),
    /// Serve a cluster of byte strings to clients of Redis
    Gateway(Box<programs::gateway::GatewayArguments>),
    /// Move keys of a running cluster from one compute server to another
    Move(programs::moves::MoveArguments),
    /// Move all keys of a running cluster away from one compute server
    Drain(programs::moves::DrainArguments),
    /// Move keys of a running cluster away from busy compute servers, until a signal ends it
    Balance(programs::moves::BalanceArguments),
    /// Show the state of a cluster, and whether it serves
    Status(programs::status::StatusArguments),
    /// Read and change records of a cluster
    Client(Box<programs::client::ClientArguments>),
    /// Read and change records of a cluster from a prompt or a script
    Shell(programs::shell::ShellArguments),
    /// Show the load of a cluster live
    Top(programs::top::TopArguments),
    /// Change a cluster while its servers are killed, and check that nothing was lost
    Torture(Box<programs::torture::TortureArguments>),
}

/// Commands of the program for research, which this one had too.
const MOVED: [&str; 5] = ["bench", "reproduce", "figures", "ablation", "sim"];

/// Says where a command has gone, if it is one of [`MOVED`].
fn moved(words: &[OsString]) -> Option<String> {
    let name = MOVED.into_iter().find(|name| words.get(1).is_some_and(|word| word == name))?;
    Some(format!("`{name}` is a command of another program: run `farleaf-lab {name}`"))
}

/// Whether the user's input caused the error: the command line, or an input file.
fn is_callers(error: &anyhow::Error) -> bool {
    let is_config = |error: &ProgramError| matches!(error, ProgramError::Config(_));
    exit::is_callers(error)
        || error.is::<ConfigError>()
        || error.downcast_ref().is_some_and(is_config)
}

fn main() -> ExitCode {
    let words = match programs::with_file(std::env::args_os().collect()) {
        Ok(words) => words,
        Err(error) => {
            output::error_line(&error.to_string());
            return ExitCode::from(2);
        }
    };
    if let Some(line) = moved(&words) {
        output::error_line(&line);
        return ExitCode::from(2);
    }
    let arguments = match FarleafArguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let missing = "a command is missing: demo, memory-server, compute-server, cluster, gateway, \
                           status, client, shell, top or torture; see `farleaf --help`";
            return exit::explain(&error, missing);
        }
    };
    let outcome = match arguments.command {
        FarleafCommand::Demo(arguments) => demo::run(&arguments).map(|()| true),
        FarleafCommand::MemoryServer(arguments) => {
            programs::memory_server::run(*arguments).map(|()| true)
        }
        FarleafCommand::ComputeServer(arguments) => {
            programs::compute_server::run(*arguments).map(|()| true)
        }
        FarleafCommand::Gateway(arguments) => programs::gateway::run(&arguments).map(|()| true),
        FarleafCommand::Client(arguments) => programs::client::run(&arguments),
        FarleafCommand::Shell(arguments) => programs::shell::run(&arguments),
        FarleafCommand::Top(arguments) => programs::top::run(&arguments).map(|()| true),
        FarleafCommand::Torture(arguments) => programs::torture::run(&arguments),
        FarleafCommand::Cluster(arguments) => programs::cluster::run(&arguments),
        FarleafCommand::Move(arguments) => programs::moves::move_keys(&arguments).map(|()| true),
        FarleafCommand::Drain(arguments) => programs::moves::drain(&arguments).map(|()| true),
        FarleafCommand::Balance(arguments) => programs::moves::balance(&arguments).map(|()| true),
        FarleafCommand::Status(arguments) => programs::status::run(&arguments),
    };
    exit::end(outcome, is_callers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        FarleafArguments::command().debug_assert();
    }
}
