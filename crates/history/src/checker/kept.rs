//! Checks that a crash lost only what it may lose: changes that compute servers had acknowledged
//! and not yet written back.
//!
//! After all compute servers have died, each key must hold the result of a write that took effect
//! or may have, or its initial state. This result must not be older than the last completed flush:
//! no other write of the key lies entirely between that write and the invocation of a flush that
//! returned. With write-back by age, the moment `loses_ns` before the end also counts as a flush.

use super::CheckVerdict;
use super::linearizable::{DEFAULT_BUDGET, check_linearizable};
use super::observations::{ObservationStep, facts_by_key};
use crate::history::StateFormatter;
use crate::{ClientAction, ClientOperation, History, HistoryMoment, OperationOutcome};
use std::collections::{BTreeMap, BTreeSet};

/// Checks the contents `found` after a crash that ended `history`, except for the keys of `damaged`
/// pages. If pages can be torn, a leaf may give a key any value that the leaf ever held (D8), so
/// any value that was ever `written` passes. Keys of compute servers that have not `died` must have
/// lost nothing. A client's flush covers the keys that it `flushes`. Changes acknowledged
/// `loses_ns` before the last event of the history must also be kept.
pub fn check_kept(
    history: &History,
    found: &BTreeMap<u64, u64>,
    damaged: &BTreeSet<u64>,
    written: Option<&BTreeSet<u64>>,
    died: impl Fn(u64) -> bool,
    flushes: impl Fn(u32, u64) -> bool,
    loses_ns: Option<u64>,
) -> CheckVerdict {
    let completed = |operation: &&ClientOperation| {
        operation.action == ClientAction::Flush && operation.outcome == OperationOutcome::Done
    };
    let completed: Vec<&ClientOperation> = history.operations.iter().filter(completed).collect();
    let old = loses_ns.map_or(0, |loses_ns| first_order_within(history, loses_ns));
    let mut facts = facts_by_key(history, false);
    found.keys().for_each(|key| _ = facts.entry(*key).or_default());
    let mut writes_by_key = BTreeMap::new();
    for (key, facts) in &facts {
        // The result of each write, its order numbers, and whether it certainly took effect.
        let mut writes = vec![(history.initial.get(key).copied(), 0, 0, true)];
        for fact in facts {
            let (change, sure) = match fact.step {
                ObservationStep::Sees(_) => continue,
                ObservationStep::Changes(change) => (change, true),
                ObservationStep::MayChange(change) => (change, false),
            };
            writes.push((change.becomes, fact.start, fact.end, sure));
        }
        writes_by_key.insert(*key, writes);
    }
    for (key, writes) in &writes_by_key {
        let held = found.get(key).copied();
        let of_key = completed.iter().filter(|flush| flushes(flush.client, *key));
        let flushed = match died(*key) {
            true => of_key.map(|flush| flush.invoked.order).max().unwrap_or(0).max(old),
            false => u64::MAX,
        };
        if damaged.contains(key) {
            continue;
        }
        let mut by_some = false;
        let is_kept = writes.iter().any(|(becomes, _, end, _)| {
            let overwritten = |&(_, start, other_end, sure): &(_, u64, u64, bool)| {
                sure && start > *end && other_end < flushed
            };
            by_some |= *becomes == held;
            *becomes == held && !writes.iter().any(overwritten)
        });
        let is_torn = held.is_some_and(|value| written.is_some_and(|all| all.contains(&value)));
        if is_kept || is_torn {
            continue;
        }
        let why =
            if by_some { "older than what must be kept" } else { "not the result of any write" };
        return CheckVerdict::Violated(format!(
            "after the crash key {key} is {}: {why}",
            StateFormatter(held)
        ));
    }
    CheckVerdict::Holds
}

/// Checks that a crash that ended `history` has lost nothing that was answered, not even what only
/// a lookup has seen: reading `found` afterwards must be linearizable with the history.
pub fn check_all_kept(history: &History, found: &BTreeMap<u64, u64>) -> CheckVerdict {
    let mut whole = history.clone();
    let keys: BTreeSet<u64> =
        facts_by_key(history, true).into_keys().chain(found.keys().copied()).collect();
    let moments = |it: &ClientOperation| [Some(it.invoked), it.returned];
    let last = history.operations.iter().flat_map(moments).flatten().max();
    let last = last.unwrap_or(HistoryMoment { order: 0, at_ns: 0 });
    let client = history.operations.iter().map(|it| it.client + 1).max().unwrap_or(0);
    for (number, key) in (1..).zip(keys) {
        let moment = |order| HistoryMoment { order: last.order + order, ..last };
        whole.operations.push(ClientOperation {
            client,
            action: ClientAction::Get(key),
            invoked: moment(2 * number),
            returned: Some(moment(2 * number + 1)),
            outcome: OperationOutcome::Value(found.get(&key).copied()),
        });
    }
    check_linearizable(&whole, DEFAULT_BUDGET)
}

/// The order number of the first event within `loses_ns` before the last one.
fn first_order_within(history: &History, loses_ns: u64) -> u64 {
    let moments =
        || history.operations.iter().flat_map(|it| [Some(it.invoked), it.returned]).flatten();
    let end_ns = moments().map(|moment| moment.at_ns).max().unwrap_or(0);
    let recent = moments().filter(|moment| moment.at_ns.saturating_add(loses_ns) > end_ns);
    recent.map(|moment| moment.order).min().unwrap_or(0)
}

/// All values that a history writes.
pub fn values_written(history: &History) -> impl Iterator<Item = u64> {
    history.operations.iter().filter_map(|operation| match operation.action {
        ClientAction::Insert(_, value)
        | ClientAction::Update(_, value)
        | ClientAction::Upsert(_, value) => Some(value),
        ClientAction::CompareExchange { new, .. } => Some(new),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::history;
    use super::*;

    fn upsert(value: u64) -> ClientAction {
        ClientAction::Upsert(1, value)
    }

    fn check(found: &[(u64, u64)], written: Option<&BTreeSet<u64>>) -> CheckVerdict {
        // 20 and then 30 were acknowledged before the flush began, and 40 after it; the outcome of
        // 50 is unknown.
        let history = history(
            &[(1, 10)],
            [
                (0, 1, 2, upsert(20), OperationOutcome::Done),
                (0, 3, 4, upsert(30), OperationOutcome::Done),
                (1, 5, 8, ClientAction::Flush, OperationOutcome::Done),
                (0, 6, 7, upsert(40), OperationOutcome::Done),
                (1, 9, 12, ClientAction::Flush, OperationOutcome::NoReturn),
                (0, 10, 11, upsert(50), OperationOutcome::NoReturn),
                (2, 10, 11, ClientAction::Upsert(2, 60), OperationOutcome::Done),
            ],
        );
        check_kept(
            &history,
            &found.iter().copied().collect(),
            &BTreeSet::new(),
            written,
            |_| true,
            |_, _| true,
            None,
        )
    }

    #[test]
    fn nothing_that_was_answered_or_seen_may_be_lost() {
        let history = history(
            &[(1, 10)],
            [
                (0, 1, 2, upsert(20), OperationOutcome::Done),
                (1, 3, 9, upsert(30), OperationOutcome::NoReturn),
                (0, 4, 5, ClientAction::Get(2), OperationOutcome::Value(None)),
                (1, 4, 9, ClientAction::Upsert(3, 40), OperationOutcome::NoReturn),
                (0, 5, 6, ClientAction::Get(3), OperationOutcome::Value(Some(40))),
            ],
        );
        let check =
            |found: &[(u64, u64)]| check_all_kept(&history, &found.iter().copied().collect());
        // It is unknown whether 30 was written, but 40 was seen.
        assert_eq!(check(&[(1, 20), (3, 40)]), CheckVerdict::Holds);
        assert_eq!(check(&[(1, 30), (3, 40)]), CheckVerdict::Holds);
        for lost in [&[(1, 10), (3, 40)][..], &[(3, 40)], &[(1, 20)], &[(1, 20), (2, 5), (3, 40)]] {
            assert!(matches!(check(lost), CheckVerdict::Violated(_)), "{lost:?}");
        }
    }

    #[test]
    fn what_was_flushed_is_kept_and_what_came_later_may_be() {
        for value in [30, 40, 50] {
            assert_eq!(check(&[(1, value)], None), CheckVerdict::Holds, "{value}");
        }
        for found in [&[(1, 10)][..], &[(1, 20)], &[], &[(1, 99)], &[(1, 60)], &[(1, 30), (7, 1)]] {
            assert!(matches!(check(found, None), CheckVerdict::Violated(_)), "{found:?}");
        }
        let written = BTreeSet::from([20, 30, 60]);
        assert_eq!(check(&[(1, 60)], Some(&written)), CheckVerdict::Holds, "a torn leaf");
        assert_eq!(check(&[(1, 20)], Some(&written)), CheckVerdict::Holds, "a torn leaf");
        for found in [&[(1, 99)][..], &[]] {
            let verdict = check(found, Some(&written));
            assert!(matches!(verdict, CheckVerdict::Violated(_)), "no leaf has {found:?}");
        }
    }

    #[test]
    fn without_a_flush_the_first_state_may_be_back() {
        let history = history(&[(1, 10)], [(0, 1, 2, upsert(20), OperationOutcome::Done)]);
        for value in [10, 20] {
            let found = BTreeMap::from([(1, value)]);
            let check = |died| {
                check_kept(&history, &found, &BTreeSet::new(), None, |_| died, |_, _| true, None)
            };
            assert_eq!(check(true), CheckVerdict::Holds, "{value}");
            assert_eq!(
                check(false) == CheckVerdict::Holds,
                value == 20,
                "a surviving compute server loses nothing"
            );
        }
    }

    #[test]
    fn what_is_old_enough_is_kept() {
        let history = history(
            &[(1, 10)],
            [
                (0, 1, 2, upsert(20), OperationOutcome::Done),
                (0, 5, 6, upsert(30), OperationOutcome::Done),
            ],
        );
        let check = |value, loses_ns| {
            let found = BTreeMap::from([(1, value)]);
            let none = BTreeSet::new();
            check_kept(&history, &found, &none, None, |_| true, |_, _| true, Some(loses_ns))
        };
        assert_eq!(check(20, 300), CheckVerdict::Holds);
        assert_eq!(check(30, 300), CheckVerdict::Holds);
        assert!(
            matches!(check(10, 300), CheckVerdict::Violated(_)),
            "20 was acknowledged 400 ns before"
        );
        assert_eq!(check(10, 500), CheckVerdict::Holds);
    }
}
