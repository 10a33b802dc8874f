//! The command `farleaf-lab`: what is for research. Benchmarks of all index designs, the papers'
//! experiments, and simulations. What people deploy is the program `farleaf` (`crates/cli`).
//!
//! Exit codes: 0 success, 1 failure, 2 invalid command line or input file. An error is one line on
//! stderr.

#![forbid(unsafe_code)]

mod bench;
mod designs;
mod plot;
mod reproduce;
mod sim;

use clap::{Parser, Subcommand};
use farleaf_command_line::exit;
use std::process::ExitCode;

/// Benchmarks, experiments and simulations of ordered indexes in the memory of other machines.
#[derive(Debug, Parser)]
#[command(
    name = "farleaf-lab",
    version,
    max_term_width = 100,
    after_help = "Examples:\n  farleaf-lab bench --workload ycsb-a --keys 10M --threads 2\n  \
                  farleaf-lab bench --help\n  farleaf-lab sim --scenario all --seed 1 --count 100\n\n\
                  Exit codes: 0 success, 1 failure, 2 invalid command line or input file."
)]
struct LabArguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Run one index design on one workload or trace, and report throughput, latency and costs
    Bench(Box<bench::BenchArguments>),
    /// Repeat the papers' experiments on the simulator, and report which statements hold
    Reproduce(reproduce::ReproduceArguments),
    /// The same as `reproduce trees`
    Figures(reproduce::ExperimentOptions),
    /// The same as `reproduce dex --figure 8,9,12,trace`, or with `--part lsm` as `reproduce dlsm
    /// --figure 11,12,13`: what each part of a design contributes
    Ablation(reproduce::Ablation),
    /// Check scenarios of workloads and faults on a simulated cluster
    Sim(sim::SimArguments),
}

fn main() -> ExitCode {
    let arguments = match LabArguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let missing = "a command is missing: bench, reproduce or sim; see `farleaf-lab --help`";
            return exit::explain(&error, missing);
        }
    };
    let outcome = match arguments.command {
        LabCommand::Bench(arguments) => bench::run(&arguments).map(|()| true),
        LabCommand::Reproduce(arguments) => reproduce::run(&arguments),
        LabCommand::Figures(options) => reproduce::run(&options.figures()),
        LabCommand::Ablation(options) => reproduce::run(&options.figures()),
        LabCommand::Sim(arguments) => sim::run(&arguments),
    };
    exit::end(outcome, exit::is_callers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        LabArguments::command().debug_assert();
    }
}
