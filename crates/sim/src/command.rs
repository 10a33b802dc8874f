//! The command `farleaf sim`: plays scenarios with consecutive seeds, and says how to replay what fails.

use crate::run::{RunOutcome, run_seed};
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
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Plays `count` consecutive seeds from `seed` on, each with every scenario that `scenario` stands for:
/// the name of a registered one, a file (with a `/` or the ending `.toml`), `all` for every registered
/// scenario without a planted bug, or `canary` for those with one.
///
/// Writes a line for each run: scenario, seed, history hash, how many operations, `ok`. After a violation it
/// writes the report and the command that replays it, and goes on with the next scenario.
///
/// Returns whether all runs went well.
///
/// # Errors
/// [`CommandError`]: nothing has been played then, but for [`CommandError::Output`].
pub fn run_command(
    scenario: &str,
    seed: u64,
    count: u64,
    out: &mut impl Write,
) -> Result<bool, CommandError> {
    let scenarios = select(scenario)?;
    let last = seed.checked_add(count.saturating_sub(1));
    let last = last.ok_or(CommandError::TooManySeeds { seed, count })?;
    let mut all_well = true;
    for scenario in &scenarios {
        for seed in (seed..=last).take_while(|_| count > 0) {
            let report = run_seed(scenario, seed);
            let line = format!(
                "{} seed {seed} hash {:016x} operations {}",
                scenario.name, report.history_hash, report.operations
            );
            let (what, text) = match report.outcome {
                RunOutcome::Ok => {
                    writeln!(out, "{line} ok")?;
                    continue;
                }
                RunOutcome::Violation(text) => ("VIOLATION", text),
                RunOutcome::GaveUp(text) => ("GAVE UP", text),
            };
            all_well = false;
            writeln!(out, "{line} {what}")?;
            writeln!(out, "{}", text.trim_end())?;
            writeln!(
                out,
                "replay: farleaf sim --scenario {} --seed {seed} --count 1",
                scenario.name
            )?;
            break;
        }
    }
    Ok(all_well)
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
