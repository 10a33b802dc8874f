//! The verdict on a history: which keys have operations that no order explains.
//!
//! *Thread safety*: plain functions.

use farleaf_command_line::output::grouped;
use farleaf_history::History;
use farleaf_history::checker::{
    CheckVerdict, DEFAULT_BUDGET, check_answers, check_scans, unexplained_keys,
};

/// Configurations that the search for one key may examine, for each operation of the history: a run
/// on few keys has many operations on each.
const BUDGET_PER_OPERATION: u64 = 64;

/// What the checkers say of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TortureVerdict {
    /// Operations of the history, and those of unknown outcome among them.
    pub(super) operations: u64,
    unknown: u64,
    /// Keys with operations that no order explains.
    lost: u64,
    /// Keys whose search was too large.
    undecided: u64,
    /// Whether an answer is wrong in itself, or a scan missed keys or returned wrong ones.
    is_malformed: bool,
    /// What was found, one text for each key.
    pub(super) explanations: Vec<String>,
}

/// Checks a history with all checkers.
pub(super) fn judge(history: &History) -> TortureVerdict {
    let uncertain = history.operations.iter().filter(|operation| operation.outcome.is_uncertain());
    let mut verdict = TortureVerdict {
        operations: history.operations.len() as u64,
        unknown: uncertain.count() as u64,
        ..TortureVerdict::default()
    };
    let budget = DEFAULT_BUDGET.max(verdict.operations.saturating_mul(BUDGET_PER_OPERATION));
    for (_, found) in unexplained_keys(history, budget) {
        match found {
            CheckVerdict::Holds => {}
            CheckVerdict::Violated(why) => {
                verdict.lost += 1;
                verdict.explanations.push(why);
            }
            CheckVerdict::GaveUp(why) => {
                verdict.undecided += 1;
                verdict.explanations.push(why);
            }
        }
    }
    for check in [check_answers, check_scans] {
        if let CheckVerdict::Violated(why) | CheckVerdict::GaveUp(why) = check(history) {
            verdict.is_malformed = true;
            verdict.explanations.push(why);
        }
    }
    verdict
}

impl TortureVerdict {
    /// Whether a correct index could have given all answers.
    pub(super) fn holds(&self) -> bool {
        self.lost == 0 && self.undecided == 0 && !self.is_malformed
    }

    /// The last line of the program. `has_trouble` says that the cluster does not serve at the end,
    /// or that its keys read differently in different ways.
    pub(super) fn last_line(&self, kills: u64, has_trouble: bool) -> String {
        let Self { operations, unknown, lost, undecided, .. } = self;
        let end = match () {
            () if *lost > 0 || self.is_malformed => "not linearizable".to_owned(),
            () if *undecided > 0 => format!("{} keys not decided", grouped(*undecided)),
            () if has_trouble => "linearizable, but not well at the end".to_owned(),
            () => "linearizable".to_owned(),
        };
        let [operations, kills, unknown, lost] = [*operations, kills, *unknown, *lost].map(grouped);
        format!("{operations} operations, {kills} kills, {unknown} unknown, {lost} lost: {end}")
    }
}
