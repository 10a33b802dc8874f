//! Checks the form of every answer, before the other checkers look at its content.

use super::CheckVerdict;
use crate::{ClientAction, ClientOperation, History, OperationOutcome};
use farleaf_index::Exchange;

/// Checks that answers fit their operations: a multi-get answers for each key, and a
/// compare-exchange that differs reports a value other than the expected one.
pub fn check_answers(history: &History) -> CheckVerdict {
    match history.operations.iter().find_map(|operation| Some((operation, fault(operation)?))) {
        None => CheckVerdict::Holds,
        Some((operation, fault)) => CheckVerdict::Violated(format!("{fault}\n  {operation}")),
    }
}

fn fault(operation: &ClientOperation) -> Option<&'static str> {
    if !operation.outcome.is_answer() {
        return None;
    }
    let fits = match (&operation.action, &operation.outcome) {
        (ClientAction::MultiGet(keys), OperationOutcome::Values(values))
            if keys.len() != values.len() =>
        {
            return Some("a multi-get has more or fewer answers than keys");
        }
        (
            ClientAction::CompareExchange { expected, .. },
            OperationOutcome::Exchange(Exchange::Differs(Some(found))),
        ) if expected == found => {
            return Some("a compare-exchange found what it expected and did not exchange");
        }
        (ClientAction::Get(_), OperationOutcome::Value(_))
        | (
            ClientAction::Insert(..) | ClientAction::Update(..) | ClientAction::Remove(_),
            OperationOutcome::Applied(_),
        )
        | (
            ClientAction::Upsert(..) | ClientAction::Collect | ClientAction::Flush,
            OperationOutcome::Done,
        )
        | (ClientAction::CompareExchange { .. }, OperationOutcome::Exchange(_))
        | (ClientAction::MultiGet(_), OperationOutcome::Values(_))
        | (ClientAction::Scan(_), OperationOutcome::Records(_)) => true,
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
        let exchange = ClientAction::CompareExchange { key: 1, expected: 2, new: 3 };
        let refused = |found| OperationOutcome::Exchange(Exchange::Differs(found));
        let good = [
            (0, 1, 2, exchange.clone(), refused(Some(4))),
            (0, 3, 4, exchange.clone(), refused(None)),
            (
                0,
                5,
                6,
                ClientAction::MultiGet(vec![1, 2]),
                OperationOutcome::Values(vec![None, Some(1)]),
            ),
            (0, 7, 8, ClientAction::MultiGet(vec![1, 2]), OperationOutcome::NoReturn),
        ];
        assert_eq!(check_answers(&history(&[], good)), CheckVerdict::Holds);
        let bad = [
            (exchange, refused(Some(2))),
            (ClientAction::MultiGet(vec![1, 2]), OperationOutcome::Values(vec![None])),
            (ClientAction::Get(1), OperationOutcome::Done),
        ];
        for (action, outcome) in bad {
            let history = history(&[], [(0, 1, 2, action, outcome)]);
            assert!(matches!(check_answers(&history), CheckVerdict::Violated(_)));
        }
    }
}
