//! Decides whether a history could have come from a correct index.
//!
//! [`check`] runs all checkers on a history. They see only what clients saw, so they apply to every
//! index design and every fabric.

mod answers;
#[cfg(test)]
mod fixtures;
mod flushed;
mod kept;
mod linearizable;
mod observations;
mod scan;

use crate::History;

pub use answers::check_answers;
pub use flushed::check_flushed;
pub use kept::{check_all_kept, check_kept, values_written};
pub use linearizable::{DEFAULT_BUDGET, check_linearizable, unexplained_keys};
pub use scan::{check_scans, check_snapshots};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckVerdict {
    /// A correct index could have produced this history.
    Holds,
    /// No correct index produces this history; holds the explanation.
    Violated(String),
    /// The search was too large. This says nothing about the index and must not count as success.
    GaveUp(String),
}

/// Checks the form of all answers, then all scans, then every key's linearizability.
pub fn check(history: &History) -> CheckVerdict {
    let checks = [answers::check_answers, check_scans, |history: &History| {
        check_linearizable(history, DEFAULT_BUDGET)
    }];
    checks
        .iter()
        .map(|check| check(history))
        .find(|v| *v != CheckVerdict::Holds)
        .unwrap_or(CheckVerdict::Holds)
}
