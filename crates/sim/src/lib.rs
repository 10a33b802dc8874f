//! Simulates a whole cluster on one thread, in virtual time, and checks the outcome.
//!
//! A [`Scenario`] is data: cluster, design, faults and workload. [`run_seed`] runs it once, and
//! [`run_design`] runs it on a design of another crate. Each run records every client's operations
//! and their answers as a [`farleaf_history::History`], and [`farleaf_history::checker`] decides
//! whether a correct index could have given these answers. [`run_command`] is the command
//! `farleaf-lab sim`.
//!
//! *Thread safety*: a run is one thread; runs share nothing, so they can go side by side.

#![forbid(unsafe_code)]

mod audit;
mod client;
mod command;
mod crash;
mod death;
mod form;
mod inspect;
mod mutants;
mod process_spec;
mod processes;
mod random;
mod registry;
mod reshaping;
mod rounds;
mod run;
pub mod scenario;
mod setup;
mod side_by_side;
mod spread;
mod takeover;
mod workload;

pub use command::{
    CommandError, DeathSchedule, Seeds, run_as_published, run_command, run_mutants, run_random,
};
pub use death::DeathAt;
pub use mutants::{AS_PUBLISHED, AsPublished, MUTANTS, Mutant};
pub use random::{ScenarioKind, random_scenario};
pub use registry::SCENARIOS;
pub use run::{RunOutcome, RunReport, run_and_keep, run_design, run_seed, run_with_death};
pub use scenario::{Scenario, ScenarioError};
