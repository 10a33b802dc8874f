//! The command `farleaf-lab sim`: runs scenarios with consecutive seeds, and prints how to replay
//! failures.

use crate::death::DeathAt;
use crate::mutants::{AS_PUBLISHED, MUTANTS, Mutant, holds_without_bug};
use crate::random::{ScenarioKind, random_scenario, reduced};
use crate::registry::SCENARIOS;
use crate::run::{RunOutcome, RunReport, run_seed, run_with_death};
use crate::scenario::{Scenario, ScenarioError};
use crate::side_by_side::side_by_side;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use thiserror::Error;

/// Why the command cannot run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The scenario is unknown or invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario's file cannot be read.
    #[error("{path}: {error}")]
    File {
        /// The file's path.
        path: String,
        /// The operating system's error.
        error: io::Error,
    },
    /// The range of seeds exceeds `u64::MAX`.
    #[error("--seed {seed} --count {count}: seeds must not exceed {max}", max = u64::MAX)]
    TooManySeeds {
        /// The first seed.
        seed: u64,
        /// The number of seeds.
        count: u64,
    },
    /// A death was requested in a scenario without crashes.
    #[error("scenario {0} has no crashes at a WRITE: choose one whose name begins with dex-crash")]
    NobodyDies(String),
    /// The kind of random scenarios is unknown.
    #[error(
        "no random scenarios of the kind `{0}`: give a design ({designs}), a fault ({faults}), or both, as in dex-lossy",
        designs = ScenarioKind::DESIGNS.join(", "),
        faults = ScenarioKind::FAULTS.join(", ")
    )]
    NoSuchKind(String),
    /// The planted bug is unknown.
    #[error("unknown planted bug `{0}`: see the list in docs/internals/mutants.md")]
    NoSuchBug(String),
    /// The published protocol is unknown.
    #[error(
        "unknown published protocol `{0}`; expected one of {names}",
        names = AS_PUBLISHED.iter().map(|published| published.name).collect::<Vec<_>>().join(", ")
    )]
    NothingPublished(String),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Which seeds to run.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The first seed.
    pub first: u64,
    /// The number of seeds, counted up from the first.
    pub count: u64,
    /// The number of runs side by side, at least 1. The output is the same for any number.
    pub jobs: usize,
}

impl Seeds {
    /// `count` seeds from `first`, one run after the other.
    pub const fn new(first: u64, count: u64) -> Self {
        Self { first, count, jobs: 1 }
    }

    fn iter(self) -> Result<impl Iterator<Item = u64> + Clone, CommandError> {
        let Self { first: seed, count, .. } = self;
        let last = seed.checked_add(count.saturating_sub(1));
        let last = last.ok_or(CommandError::TooManySeeds { seed, count })?;
        Ok((seed..=last).take_while(move |_| count > 0))
    }
}

/// When compute servers die, in crash scenarios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeathSchedule {
    /// As the seed determines.
    #[default]
    AsSeeded,
    /// Once, at this moment.
    At(DeathAt),
    /// Once per run, at each WRITE in turn, with each possible fate of the messages in flight.
    Sweep,
}

/// Runs `seeds` with every scenario that `scenario` selects: the name of a registered one, a file
/// (with a `/` or the ending `.toml`), `all` for every registered scenario without a planted bug,
/// or `canary` for those with one, each of which must be caught.
///
/// Writes a line for each run: scenario, seed, the death if it was given or swept, history hash,
/// number of operations, `ok`. After a violation it writes the report and the command that replays
/// it, and continues with the next scenario.
///
/// Returns whether all runs passed.
///
/// # Errors
/// [`CommandError`]. In that case nothing has run, except after [`CommandError::Output`].
pub fn run_command(
    scenario: &str,
    seeds: Seeds,
    deaths: DeathSchedule,
    out: &mut impl Write,
) -> Result<bool, CommandError> {
    if scenario == "canary" {
        return catch_canaries(seeds, out);
    }
    let scenarios = select(scenario)?;
    let each = seeds.iter()?;
    if deaths != DeathSchedule::AsSeeded
        && let Some(calm) = scenarios.iter().find(|scenario| scenario.crash.is_none())
    {
        return Err(CommandError::NobodyDies(calm.name.clone()));
    }
    // A scenario ends with its first seed that fails.
    let failed = RefCell::new(BTreeSet::new());
    let runs = scenarios.iter().flat_map(|scenario| each.clone().map(move |seed| (scenario, seed)));
    let runs = runs.filter(|(scenario, _)| !failed.borrow().contains(&scenario.name));
    side_by_side(
        seeds.jobs,
        runs,
        |(scenario, seed), out| match deaths {
            DeathSchedule::AsSeeded => say(&run_seed(scenario, *seed), None, out),
            DeathSchedule::At(death) => {
                say(&run_with_death(scenario, *seed, death), Some(death), out)
            }
            DeathSchedule::Sweep => sweep(scenario, *seed, out),
        },
        |(scenario, _), is_well| {
            let counts = !failed.borrow().contains(&scenario.name);
            if !is_well {
                failed.borrow_mut().insert(scenario.name.clone());
            }
            counts
        },
        out,
    )?;
    Ok(failed.into_inner().is_empty())
}

/// Runs a seed with each possible death. Returns whether all runs passed.
fn sweep(scenario: &Scenario, seed: u64, out: &mut impl Write) -> io::Result<bool> {
    for death in (0..).flat_map(DeathAt::each) {
        let report = run_with_death(scenario, seed, death);
        if !say(&report, Some(death), out)? {
            return Ok(false);
        }
        // The run ended before this WRITE.
        if report.deaths == 0 {
            break;
        }
    }
    Ok(true)
}

/// Writes the outcome of a run. Returns whether it passed.
fn say(report: &RunReport, death: Option<DeathAt>, out: &mut impl Write) -> io::Result<bool> {
    let RunReport { scenario, seed, .. } = report;
    let died = death.map(|death| format!(" --death {death}")).unwrap_or_default();
    let again = format!("farleaf-lab sim --scenario {scenario} --seed {seed} --count 1{died}");
    say_outcome(report, death, &again, out)
}

/// Same as [`say`], with the command `again` that replays the run.
fn say_outcome(
    report: &RunReport,
    death: Option<DeathAt>,
    again: &str,
    out: &mut impl Write,
) -> io::Result<bool> {
    let RunReport { scenario, seed, history_hash, operations, .. } = report;
    let died = death.map(|death| format!(" death {death}")).unwrap_or_default();
    let line =
        format!("{scenario} seed {seed}{died} hash {history_hash:016x} operations {operations}");
    let (what, text) = match &report.outcome {
        RunOutcome::Ok => {
            writeln!(out, "{line} ok")?;
            return Ok(true);
        }
        RunOutcome::Violation(text) => ("VIOLATION", text),
        RunOutcome::GaveUp(text) => ("GAVE UP", text),
    };
    writeln!(out, "{line} {what}")?;
    writeln!(out, "{}", text.trim_end())?;
    writeln!(out, "replay: {again}")?;
    Ok(false)
}

/// Runs a random scenario with each of `seeds`. After a violation, writes the report, the command
/// that replays it, and the scenario, reduced to a simpler one if one that still fails is found
/// quickly. Then continues.
///
/// Returns whether all runs passed.
///
/// # Errors
/// [`CommandError`].
pub fn run_random(kind: &str, seeds: Seeds, out: &mut impl Write) -> Result<bool, CommandError> {
    let no_kind = || CommandError::NoSuchKind(kind.to_owned());
    let drawn = if kind == "all" {
        ScenarioKind::default()
    } else {
        ScenarioKind::of(kind).ok_or_else(no_kind)?
    };
    let mut all_well = true;
    side_by_side(
        seeds.jobs,
        seeds.iter()?,
        |seed, out| random_run(kind, drawn, *seed, out),
        |_, is_well| {
            all_well &= is_well;
            true
        },
        out,
    )?;
    Ok(all_well)
}

/// One run of [`run_random`]. Returns whether it passed.
fn random_run(
    kind: &str,
    drawn: ScenarioKind,
    seed: u64,
    out: &mut impl Write,
) -> io::Result<bool> {
    let scenario = random_scenario(drawn, seed);
    let report = run_seed(&scenario, seed);
    let again = format!("farleaf-lab sim --random 1 --kind {kind} --seed {seed}");
    if say_outcome(&report, None, &again, out)? {
        return Ok(true);
    }
    if matches!(report.outcome, RunOutcome::GaveUp(_)) {
        return Ok(true); // Too much for the checkers: it proves nothing.
    }
    // Runs that do not make progress take long each time, so do not reduce them.
    let is_quick = !matches!(&report.outcome, RunOutcome::Violation(text) if text.contains("gave up") || text.contains("endless"));
    let shown = if is_quick { reduced(&scenario, seed) } else { scenario };
    writeln!(out, "the scenario, as simple as it still fails with this seed, for a file:")?;
    writeln!(out, "{}", shown.to_text())?;
    Ok(false)
}

/// Hunts each planted bug of the table, or only those in `bugs`. Runs the scenarios that should
/// show a bug in turn, at most as many as there are seeds, and writes how many runs it took.
///
/// Returns whether all bugs were caught, except those that no run can show according to the table.
///
/// # Errors
/// [`CommandError`].
pub fn run_mutants(
    bugs: &[String],
    seeds: Seeds,
    out: &mut impl Write,
) -> Result<bool, CommandError> {
    let unknown = |bug: &&String| !MUTANTS.iter().any(|mutant| mutant.bug == **bug);
    if let Some(bug) = bugs.iter().find(unknown) {
        return Err(CommandError::NoSuchBug(bug.clone()));
    }
    let wanted = |mutant: &&Mutant| bugs.is_empty() || bugs.iter().any(|bug| bug == mutant.bug);
    hunt_all(MUTANTS.iter().filter(wanted), seeds, out)
}

fn hunt_all<'a>(
    mutants: impl IntoIterator<Item = &'a Mutant>,
    seeds: Seeds,
    out: &mut impl Write,
) -> Result<bool, CommandError> {
    let count = seeds.count;
    let (mut all, mut caught, mut expected) = (0, 0, true);
    let mut unknown = None;
    side_by_side(
        seeds.jobs,
        mutants.into_iter(),
        |mutant, out| {
            let bug = mutant.bug;
            let found = mutant.hunt(seeds.first, count);
            match &found {
                Ok(Some(found)) => {
                    let what = found.report.lines().next().unwrap_or_default();
                    let (runs, scenario, seed) = (found.runs, &found.scenario, found.seed);
                    writeln!(out, "{bug} caught in run {runs} by {scenario} seed {seed}: {what}")?;
                }
                Ok(None) if mutant.survives.is_empty() => {
                    writeln!(out, "{bug} SURVIVED {count} runs")?;
                }
                Ok(None) => writeln!(out, "{bug} survives {count} runs: {}", mutant.survives)?,
                Err(_) => {}
            }
            Ok(found.map(|found| found.is_some()))
        },
        |mutant, is_caught| {
            all += 1;
            match is_caught {
                Ok(true) => caught += 1,
                Ok(false) => expected &= !mutant.survives.is_empty(),
                Err(error) => unknown = Some(error),
            }
            true
        },
        out,
    )?;
    if let Some(error) = unknown {
        return Err(error.into());
    }
    writeln!(out, "{caught} of {all} planted bugs were caught within {count} runs each")?;
    Ok(expected)
}

/// Does what published programs do, each of [`AS_PUBLISHED`] or only those in `names`, and hunts
/// for a run that shows why not, as [`run_mutants`] does.
///
/// Returns whether there was one for each.
///
/// # Errors
/// [`CommandError`].
pub fn run_as_published(
    names: &[String],
    seeds: Seeds,
    out: &mut impl Write,
) -> Result<bool, CommandError> {
    let unknown = |name: &&String| !AS_PUBLISHED.iter().any(|known| known.name == **name);
    if let Some(name) = names.iter().find(unknown) {
        return Err(CommandError::NothingPublished(name.clone()));
    }
    let mut all_caught = true;
    for published in AS_PUBLISHED {
        if names.is_empty() || names.iter().any(|name| name == published.name) {
            writeln!(out, "{}: {}", published.name, published.does)?;
            all_caught &= hunt_all([&published.mutant], seeds, out)?;
        }
    }
    Ok(all_caught)
}

/// Runs every scenario with a planted bug until the bug is caught. Returns whether all bugs are
/// caught within the seeds, by runs that are right without the bug.
fn catch_canaries(seeds: Seeds, out: &mut impl Write) -> Result<bool, CommandError> {
    let each = seeds.iter()?;
    let count = seeds.count;
    let mut all_caught = true;
    side_by_side(
        seeds.jobs,
        with_canary(true)?.into_iter(),
        |scenario, out| {
            let name = &scenario.name;
            let found = each.clone().find_map(|seed| match run_seed(scenario, seed).outcome {
                RunOutcome::Violation(report) => Some((seed, report)),
                _ => None,
            });
            let Some((seed, report)) = found else {
                writeln!(out, "{name} went UNNOTICED in {count} runs")?;
                return Ok(false);
            };
            let by_bug = holds_without_bug(scenario, seed);
            if by_bug {
                let what = report.lines().next().unwrap_or_default();
                writeln!(out, "{name} caught by seed {seed}: {what}")?;
            } else {
                writeln!(out, "{name} FAILS WITHOUT its bug as well, with seed {seed}")?;
            }
            Ok(by_bug)
        },
        |_, is_caught| {
            all_caught &= is_caught;
            true
        },
        out,
    )?;
    Ok(all_caught)
}

fn select(scenario: &str) -> Result<Vec<Scenario>, CommandError> {
    match scenario {
        "all" => with_canary(false),
        file if file.contains('/') || file.ends_with(".toml") => {
            let text = std::fs::read_to_string(Path::new(file))
                .map_err(|error| CommandError::File { path: file.to_owned(), error })?;
            Ok(vec![Scenario::parse(file, &text)?])
        }
        name => Ok(vec![Scenario::registered(name)?]),
    }
}

/// The registered scenarios with a planted bug, or those without.
fn with_canary(with_canary: bool) -> Result<Vec<Scenario>, CommandError> {
    let mut selected = Vec::new();
    for (name, text) in SCENARIOS {
        let scenario = Scenario::parse(name, text)?;
        if scenario.canary.is_some() == with_canary {
            selected.push(scenario);
        }
    }
    Ok(selected)
}
