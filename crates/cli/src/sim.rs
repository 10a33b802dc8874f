//! `farleaf sim`: scenarios of workloads and faults on a simulated cluster.

use crate::{units, usage};
use clap::Args;

/// The options of `farleaf sim`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farleaf sim --scenario all --seed 1 --count 100\n  \
                        farleaf sim --scenario canary\n\n\
                        Exit codes: 0 done, 1 a scenario failed, 2 the command line makes no sense.")]
pub(crate) struct Arguments {
    /// A scenario's file, `all` for all that are built in, or `canary` for the one that must fail
    #[arg(long, value_name = "FILE|all|canary", default_value = "all")]
    scenario: String,
    /// The first seed
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::count)]
    seed: u64,
    /// How many seeds, one after the other
    #[arg(long, value_name = "K", default_value = "1", value_parser = units::positive)]
    count: u64,
}

/// Runs scenarios.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { scenario, seed, count } = arguments;
    usage(format!(
        "`sim` is not part of this build (scenario {scenario}, seeds from {seed}, {count} of them)"
    ))
}
