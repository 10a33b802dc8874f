//! Checks the form of every answer, before the other checkers look at its content.

use super::Verdict;
use crate::history::{Action, History, Operation, Outcome};
use farleaf_index::Exchange;

/// Checks that answers fit their operations: a multi-get answers for each key, and a
/// compare-exchange that differs reports a value other than the expected one.
pub(super) fn check_answers(history: &History) -> Verdict {
    match history.operations.iter().find_map(|operation| Some((operation, fault(operation)?))) {
        None => Verdict::Holds,
        Some((operation, fault)) => Verdict::Violated(format!("{fault}\n  {operation}")),
    }
}

fn fault(operation: &Operation) -> Option<&'static str> {
    if !operation.outcome.is_answer() {
        return None;
    }
    let fits = match (&operation.action, &operation.outcome) {
        (Action::MultiGet(keys), Outcome::Values(values)) if keys.len() != values.len() => {
            return Some("a multi-get has more or fewer answers than keys");
        }
        (
            Action::CompareExchange { expected, .. },
            Outcome::Exchange(Exchange::Differs(Some(found))),
        ) if expected == found => {
            return Some("a compare-exchange found what it expected and did not exchange");
        }
        (Action::Get(_), Outcome::Value(_))
        | (Action::Insert(..) | Action::Update(..) | Action::Remove(_), Outcome::Applied(_))
        | (Action::Upsert(..) | Action::Collect | Action::Flush, Outcome::Done)
        | (Action::CompareExchange { .. }, Outcome::Exchange(_))
        | (Action::MultiGet(_), Outcome::Values(_))
        | (Action::Scan(_), Outcome::Records(_)) => true,
        _ => false,
    };
    (!fits).then_some("an answer of another kind than the question")
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::history;
    use super::*;

    #[test]
    fn answers_that_contradict_their_question_are_found() {
        let exchange = Action::CompareExchange { key: 1, expected: 2, new: 3 };
        let refused = |found| Outcome::Exchange(Exchange::Differs(found));
        let good = [
            (0, 1, 2, exchange.clone(), refused(Some(4))),
            (0, 3, 4, exchange.clone(), refused(None)),
            (0, 5, 6, Action::MultiGet(vec![1, 2]), Outcome::Values(vec![None, Some(1)])),
            (0, 7, 8, Action::MultiGet(vec![1, 2]), Outcome::NoReturn),
        ];
        assert_eq!(check_answers(&history(&[], good)), Verdict::Holds);
        let bad = [
            (exchange, refused(Some(2))),
            (Action::MultiGet(vec![1, 2]), Outcome::Values(vec![None])),
            (Action::Get(1), Outcome::Done),
        ];
        for (action, outcome) in bad {
            let history = history(&[], [(0, 1, 2, action, outcome)]);
            assert!(matches!(check_answers(&history), Verdict::Violated(_)));
        }
    }
}
