//! Hand-written histories for the checkers' tests.

use crate::{ClientAction, ClientOperation, History, HistoryMoment, OperationOutcome};

/// Builds a history from (client, invoked, returned, action, outcome). Each time is also the
/// event's order number.
pub(super) fn history(
    initial: &[(u64, u64)],
    operations: impl IntoIterator<Item = (u32, u64, u64, ClientAction, OperationOutcome)>,
) -> History {
    let moment = |time| HistoryMoment { order: time, at_ns: time * 100 };
    let mut operations: Vec<ClientOperation> = operations
        .into_iter()
        .map(|(client, invoked, returned, action, outcome)| ClientOperation {
            client,
            action,
            invoked: moment(invoked),
            returned: (outcome != OperationOutcome::NoReturn).then(|| moment(returned)),
            outcome,
        })
        .collect();
    operations.sort_by_key(|operation| operation.invoked);
    History { initial: initial.iter().copied().collect(), operations }
}

/// An uncertain outcome.
pub(super) fn unknown() -> OperationOutcome {
    OperationOutcome::Indeterminate("unknown outcome".to_owned())
}
