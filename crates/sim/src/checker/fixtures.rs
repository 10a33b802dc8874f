//! Hand-written histories for the checkers' tests.

use crate::history::{Action, History, Moment, Operation, Outcome};

/// Builds a history from (client, invoked, returned, action, outcome). Each time is also the
/// event's order number.
pub(super) fn history(
    initial: &[(u64, u64)],
    operations: impl IntoIterator<Item = (u32, u64, u64, Action, Outcome)>,
) -> History {
    let moment = |time| Moment { order: time, at_ns: time * 100 };
    let mut operations: Vec<Operation> = operations
        .into_iter()
        .map(|(client, invoked, returned, action, outcome)| Operation {
            client,
            action,
            invoked: moment(invoked),
            returned: (outcome != Outcome::NoReturn).then(|| moment(returned)),
            outcome,
        })
        .collect();
    operations.sort_by_key(|operation| operation.invoked);
    History { initial: initial.iter().copied().collect(), operations }
}

/// An uncertain outcome.
pub(super) fn unknown() -> Outcome {
    Outcome::Indeterminate("unknown outcome".to_owned())
}
