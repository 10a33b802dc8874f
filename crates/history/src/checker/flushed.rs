//! Checks the flushes of clients whose compute servers are processes: a crash loses nothing that a
//! completed flush covers.
//!
//! Processes may die at any time and lose what they have not written back. In the end all of them
//! die, and each key must then hold the result of a write, or its initial state. No other write of
//! the key that a flush covers may lie entirely after that write. A completed flush covers the
//! writes that were acknowledged before it began
//! - to its own handle, except those from before an earlier flush of the handle that has failed:
//!   that one has reported them as lost, or the next one has to;
//! - to any handle, if no process has died between the invocation of the write and the beginning of
//!   the flush: what was lost before a flush it cannot save.

use super::CheckVerdict;
use crate::history::StateFormatter;
use crate::{ClientAction, ClientOperation, History, OperationOutcome};
use std::collections::BTreeMap;

/// A write of a key.
struct FlushedWrite {
    becomes: Option<u64>,
    /// Its order numbers.
    start: u64,
    end: u64,
    /// Whether a flush covers it.
    is_covered: bool,
}

/// Checks the contents `found` after all processes have died at the end of `history`. Processes
/// died at the times `deaths_ns`, in any order. `handle_of` names the handle of a client.
pub fn check_flushed(
    history: &History,
    found: &BTreeMap<u64, u64>,
    deaths_ns: &[u64],
    handle_of: impl Fn(u32) -> u32,
) -> CheckVerdict {
    let flushes = || history.operations.iter().filter(|it| it.action == ClientAction::Flush);
    let has_died_between = |from_ns: u64, until_ns: u64| {
        deaths_ns.iter().any(|at_ns| (from_ns..=until_ns).contains(at_ns))
    };
    let covers = |flush: &ClientOperation, write: &ClientOperation| {
        let is_own = handle_of(flush.client) == handle_of(write.client);
        let has_failed_between = || {
            flushes().any(|other| {
                handle_of(other.client) == handle_of(write.client)
                    && other.outcome != OperationOutcome::Done
                    && other.invoked.order < flush.invoked.order
                    && write.span().1 < other.invoked.order
            })
        };
        flush.outcome == OperationOutcome::Done
            && write.span().1 < flush.invoked.order
            && ((is_own && !has_failed_between())
                || !has_died_between(write.invoked.at_ns, flush.invoked.at_ns))
    };
    let mut writes_by_key: BTreeMap<u64, Vec<FlushedWrite>> = BTreeMap::new();
    let initial = |key| {
        let becomes = history.initial.get(&key).copied();
        vec![FlushedWrite { becomes, start: 0, end: 0, is_covered: true }]
    };
    for write in &history.operations {
        let (key, value) = match (&write.action, &write.outcome) {
            (_, OperationOutcome::Failed(_))
            | (ClientAction::Insert(..), OperationOutcome::Applied(false)) => continue,
            (ClientAction::Insert(key, value) | ClientAction::Upsert(key, value), _) => {
                (*key, *value)
            }
            (
                ClientAction::Remove(_)
                | ClientAction::Update(..)
                | ClientAction::CompareExchange { .. },
                _,
            ) => {
                return CheckVerdict::GaveUp(format!("{} may fail after a loss", write.action));
            }
            _ => continue,
        };
        let (start, end) = write.span();
        let is_covered = write.outcome.is_answer() && flushes().any(|flush| covers(flush, write));
        let write = FlushedWrite { becomes: Some(value), start, end, is_covered };
        writes_by_key.entry(key).or_insert_with(|| initial(key)).push(write);
    }
    for key in found.keys() {
        writes_by_key.entry(*key).or_insert_with(|| initial(*key));
    }
    for (key, writes) in &writes_by_key {
        let held = found.get(key).copied();
        let is_kept = |write: &FlushedWrite| {
            !writes.iter().any(|later| later.is_covered && later.start > write.end)
        };
        let of_value: Vec<&FlushedWrite> =
            writes.iter().filter(|write| write.becomes == held).collect();
        let why = match of_value.iter().any(|write| is_kept(write)) {
            true => continue,
            false if of_value.is_empty() => "not the result of any write",
            false => "older than what was flushed",
        };
        return CheckVerdict::Violated(format!(
            "after the crash key {key} is {}: {why}",
            StateFormatter(held)
        ));
    }
    CheckVerdict::Holds
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::history;
    use super::*;
    use OperationOutcome::{Done, Failed, NoReturn};

    fn upsert(value: u64) -> ClientAction {
        ClientAction::Upsert(1, value)
    }

    /// Whether each of the values may be found after `operations` and deaths at these orders.
    fn may_be<const N: usize>(
        operations: Vec<(u32, u64, u64, ClientAction, OperationOutcome)>,
        deaths: &[u64],
        values: [u64; N],
    ) -> [bool; N] {
        let deaths: Vec<u64> = deaths.iter().map(|order| order * 100 + 50).collect();
        values.map(|value| {
            let history = history(&[(1, 10)], operations.clone());
            let found = BTreeMap::from([(1, value)]);
            check_flushed(&history, &found, &deaths, |client| client / 2) == CheckVerdict::Holds
        })
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_began() {
        let flush = |outcome| (2, 5, 8, ClientAction::Flush, outcome);
        let operations = |outcome| {
            vec![
                (0, 1, 2, upsert(20), Done),
                (1, 3, 4, upsert(30), Done),
                flush(outcome),
                (0, 6, 7, upsert(40), Done),
                (0, 9, 10, upsert(50), NoReturn),
            ]
        };
        let values = [10, 20, 30, 40, 50, 60];
        let kept = [false, false, true, true, true, false];
        assert_eq!(may_be(operations(Done), &[11], values), kept);
        let anything = [true, true, true, true, true, false];
        assert_eq!(may_be(operations(Failed("no".into())), &[11], values), anything);
    }

    #[test]
    fn a_flush_cannot_save_what_others_had_lost_before() {
        let operations =
            |client| vec![(client, 1, 2, upsert(20), Done), (0, 5, 6, ClientAction::Flush, Done)];
        assert_eq!(may_be(operations(2), &[3], [10, 20]), [true, true], "lost before");
        assert_eq!(may_be(operations(2), &[5], [10, 20]), [false, true], "lost meanwhile");
        // Its own changes it must not believe to be flushed.
        assert_eq!(may_be(operations(1), &[3], [10, 20]), [false, true]);
    }

    #[test]
    fn a_loss_is_reported_once() {
        let operations = vec![
            (0, 1, 2, upsert(20), Done),
            (1, 4, 5, ClientAction::Flush, Failed("lost".into())),
            (0, 6, 7, ClientAction::Flush, Done),
        ];
        assert_eq!(may_be(operations, &[3], [10, 20]), [true, true]);
    }
}
