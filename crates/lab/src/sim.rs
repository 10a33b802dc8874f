//! `farleaf-lab sim`: runs scenarios of workloads and faults on a simulated cluster.

use clap::Args;
use farleaf_command_line::{units, usage};
use farleaf_sim::{
    CommandError, DeathAt, DeathSchedule, Seeds, run_as_published, run_command, run_mutants,
    run_random,
};
use std::thread;

/// Options of `farleaf-lab sim`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farleaf-lab sim --scenario all --seed 1 --count 100\n  \
                        farleaf-lab sim --scenario canary\n  \
                        farleaf-lab sim --scenario dex-crash-sweep --sweep\n  \
                        farleaf-lab sim --random 1000 --seed 1\n  \
                        farleaf-lab sim --mutants --count 2000\n\n\
                        Exit codes: 0 success, 1 a run violated an invariant (the output has the command that replays it), 2 invalid command line or input file.")]
pub(crate) struct SimArguments {
    /// Run the scenario of this file or name, `all` for all built-in ones, or `canary` for those
    /// with a planted bug, each of which must be caught within the seeds
    #[arg(long, value_name = "FILE|all|canary", default_value = "all")]
    scenario: String,
    /// Begin with this seed
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::count)]
    seed: u64,
    /// Run this many seeds, counted up from the first
    #[arg(long, value_name = "K", default_value = "1", value_parser = units::positive)]
    count: u64,
    /// Make this many runs side by side, as many as there are processors by default; the output is
    /// the same for any number
    #[arg(long, value_name = "N", value_parser = units::limited::<usize>(1, 256))]
    jobs: Option<usize>,
    /// In a scenario with crashes: repeat each seed for every WRITE at which compute servers can
    /// die, and for every outcome of the WRITEs in flight
    #[arg(long, conflicts_with = "death")]
    sweep: bool,
    /// In a scenario with crashes: kill the compute servers once, at this WRITE; `none`, `some` or
    /// `all` of the WRITEs in flight take effect
    #[arg(long, value_name = "WRITE:WORDS")]
    death: Option<DeathAt>,
    /// Run this many random scenarios, each with a seed of its own, over all designs, faults and
    /// parameters
    #[arg(long, value_name = "N", value_parser = units::positive, conflicts_with_all = ["scenario", "count", "sweep", "death", "mutants"])]
    random: Option<u64>,
    /// Run only random scenarios of this kind: a design, a fault, or both, as in dex-lossy
    #[arg(long, value_name = "KIND", default_value = "all", requires = "random")]
    kind: String,
    /// Plant each bug in turn, or only those named, and count the runs that it takes to catch it,
    /// of --count at most
    #[arg(long, value_name = "BUG", num_args = 0.., conflicts_with_all = ["scenario", "sweep", "death"])]
    mutants: Option<Vec<String>>,
    /// Do what each published program does that a design here does otherwise, or only those named,
    /// and show a run that refutes it, of --count at most
    #[arg(long, value_name = "NAME", num_args = 0.., conflicts_with_all = ["scenario", "sweep", "death", "random", "mutants"])]
    as_published: Option<Vec<String>>,
}

/// Runs scenarios; `false` if one of them failed.
pub(crate) fn run(arguments: &SimArguments) -> anyhow::Result<bool> {
    let SimArguments { scenario, sweep, death, random, kind, mutants, .. } = arguments;
    let processors = || thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or_else(processors);
    let seeds = Seeds { first: arguments.seed, count: random.unwrap_or(arguments.count), jobs };
    let deaths = match (sweep, death) {
        (true, _) => DeathSchedule::Sweep,
        (false, Some(death)) => DeathSchedule::At(*death),
        (false, None) => DeathSchedule::AsSeeded,
    };
    let mut out = std::io::stdout().lock();
    if let Some(names) = &arguments.as_published {
        return ended(run_as_published(names, seeds, &mut out));
    }
    ended(match (random, mutants) {
        (Some(_), _) => run_random(kind, seeds, &mut out),
        (None, Some(bugs)) => run_mutants(bugs, seeds, &mut out),
        (None, None) => run_command(scenario, seeds, deaths, &mut out),
    })
}

fn ended(outcome: Result<bool, CommandError>) -> anyhow::Result<bool> {
    match outcome {
        Ok(all_well) => Ok(all_well),
        Err(CommandError::Output(error)) => Err(error.into()),
        Err(error) => usage(error.to_string()),
    }
}
