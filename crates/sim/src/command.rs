//! The command `farleaf sim`: plays scenarios with consecutive seeds, and says how to replay what fails.

use crate::crash::DeathAt;
use crate::run::{RunOutcome, RunReport, run_seed, run_with_death};
use crate::scenario::{SCENARIOS, Scenario, ScenarioError};
use std::io::{self, Write};
use std::path::Path;
use thiserror::Error;

/// Why the command cannot do what it was asked for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// There is no such scenario, or something is wrong with it.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario's file cannot be read.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// Seeds beyond the largest were asked for.
    #[error("--seed {seed} --count {count}: there are no seeds beyond {max}", max = u64::MAX)]
    TooManySeeds {
        /// The first seed.
        seed: u64,
        /// How many.
        count: u64,
    },
    /// A death was asked for where there is none.
    #[error(
        "in the scenario {0} nobody dies at a WRITE: take one whose name begins with dex-crash"
    )]
    NobodyDies(String),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// When compute servers die, in scenarios in which they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deaths {
    /// As the seed says.
    #[default]
    AsSeeded,
    /// Once, at this moment.
    At(DeathAt),
    /// Once in a run, at each WRITE in turn, each time with all that can become of what is on its way.
    Sweep,
}

/// Plays `count` consecutive seeds from `seed` on, each with every scenario that `scenario` stands for:
/// the name of a registered one, a file (with a `/` or the ending `.toml`), `all` for every registered
/// scenario without a planted bug, or `canary` for those with one.
///
/// Writes a line for each run: scenario, seed, the death if it is said or swept, history hash, how many operations, `ok`. After
/// a violation it writes the report and the command that replays it, and goes on with the next scenario.
///
/// Returns whether all runs went well.
///
/// # Errors
/// [`CommandError`]: nothing has been played then, but for [`CommandError::Output`].
pub fn run_command(
    scenario: &str,
    seed: u64,
    count: u64,
    deaths: Deaths,
    out: &mut impl Write,
) -> Result<bool, CommandError> {
    let scenarios = select(scenario)?;
    let last = seed.checked_add(count.saturating_sub(1));
    let last = last.ok_or(CommandError::TooManySeeds { seed, count })?;
    if deaths != Deaths::AsSeeded
        && let Some(calm) = scenarios.iter().find(|scenario| scenario.crash.is_none())
    {
        return Err(CommandError::NobodyDies(calm.name.clone()));
    }
    let mut all_well = true;
    for scenario in &scenarios {
        for seed in (seed..=last).take_while(|_| count > 0) {
            let is_well = match deaths {
                Deaths::AsSeeded => say(&run_seed(scenario, seed), None, out)?,
                Deaths::At(death) => say(&run_with_death(scenario, seed, death), Some(death), out)?,
                Deaths::Sweep => sweep(scenario, seed, out)?,
            };
            if !is_well {
                all_well = false;
                break;
            }
        }
    }
    Ok(all_well)
}

/// Plays a seed with each death there can be; whether all runs went well.
fn sweep(scenario: &Scenario, seed: u64, out: &mut impl Write) -> io::Result<bool> {
    for death in (0..).flat_map(DeathAt::each) {
        let report = run_with_death(scenario, seed, death);
        if !say(&report, Some(death), out)? {
            return Ok(false);
        }
        // There is no such WRITE.
        if report.deaths == 0 {
            break;
        }
    }
    Ok(true)
}

/// Writes what came of a run; whether it went well.
fn say(report: &RunReport, death: Option<DeathAt>, out: &mut impl Write) -> io::Result<bool> {
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
    let died = death.map(|death| format!(" --death {death}")).unwrap_or_default();
    writeln!(out, "replay: farleaf sim --scenario {scenario} --seed {seed} --count 1{died}")?;
    Ok(false)
}

fn select(scenario: &str) -> Result<Vec<Scenario>, CommandError> {
    let with_canary = match scenario {
        "all" => false,
        "canary" => true,
        file if file.contains('/') || file.ends_with(".toml") => {
            let text = std::fs::read_to_string(Path::new(file))
                .map_err(|error| CommandError::File { path: file.to_owned(), error })?;
            return Ok(vec![Scenario::parse(file, &text)?]);
        }
        name => return Ok(vec![Scenario::registered(name)?]),
    };
    let mut selected = Vec::new();
    for (name, text) in SCENARIOS {
        let scenario = Scenario::parse(name, text)?;
        if scenario.canary.is_some() == with_canary {
            selected.push(scenario);
        }
    }
    Ok(selected)
}
