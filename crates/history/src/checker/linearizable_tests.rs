//! Valid and invalid histories of one key, hand-written and generated.

use super::super::fixtures::{history, unknown};
use super::*;
use crate::OperationOutcome;
use farleaf_index::{Exchange, ScanRequest};
use proptest::prelude::*;

type HistoryLine = (u32, u64, u64, ClientAction, OperationOutcome);

const K: u64 = 7;

fn get(from: u64, to: u64, value: Option<u64>) -> HistoryLine {
    (0, from, to, ClientAction::Get(K), OperationOutcome::Value(value))
}

fn upsert(from: u64, to: u64, value: u64) -> HistoryLine {
    (1, from, to, ClientAction::Upsert(K, value), OperationOutcome::Done)
}

fn insert(from: u64, to: u64, value: u64, done: bool) -> HistoryLine {
    (2, from, to, ClientAction::Insert(K, value), OperationOutcome::Applied(done))
}

fn update(from: u64, to: u64, value: u64, done: bool) -> HistoryLine {
    (3, from, to, ClientAction::Update(K, value), OperationOutcome::Applied(done))
}

fn remove(from: u64, to: u64, done: bool) -> HistoryLine {
    (4, from, to, ClientAction::Remove(K), OperationOutcome::Applied(done))
}

fn exchange(from: u64, to: u64, expected: u64, new: u64, outcome: Exchange<u64>) -> HistoryLine {
    let action = ClientAction::CompareExchange { key: K, expected, new };
    (5, from, to, action, OperationOutcome::Exchange(outcome))
}

fn lost((client, from, to, action, _): HistoryLine) -> HistoryLine {
    (client, from, to, action, unknown())
}

fn never_returned((client, from, to, action, _): HistoryLine) -> HistoryLine {
    (client, from, to, action, OperationOutcome::NoReturn)
}

fn verdict(initial: Option<u64>, lines: impl IntoIterator<Item = HistoryLine>) -> CheckVerdict {
    let initial: Vec<(u64, u64)> = initial.map(|value| (K, value)).into_iter().collect();
    check_linearizable(&history(&initial, lines), DEFAULT_BUDGET)
}

#[track_caller]
fn holds(initial: Option<u64>, lines: impl IntoIterator<Item = HistoryLine>) {
    assert_eq!(verdict(initial, lines), CheckVerdict::Holds);
}

#[track_caller]
fn violated(initial: Option<u64>, lines: impl IntoIterator<Item = HistoryLine>) -> String {
    match verdict(initial, lines) {
        CheckVerdict::Violated(report) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plain_life_of_a_key() {
    holds(
        None,
        [
            get(1, 2, None),
            insert(3, 4, 1, true),
            insert(5, 6, 2, false),
            get(7, 8, Some(1)),
            update(9, 10, 3, true),
            exchange(11, 12, 3, 4, Exchange::Exchanged),
            exchange(13, 14, 3, 5, Exchange::Differs(Some(4))),
            remove(15, 16, true),
            remove(17, 18, false),
            update(19, 20, 6, false),
            exchange(21, 22, 4, 5, Exchange::Differs(None)),
            upsert(23, 24, 8),
            get(25, 26, Some(8)),
        ],
    );
}

#[test]
fn a_lost_update_is_found() {
    violated(
        Some(1),
        [exchange(1, 10, 1, 2, Exchange::Exchanged), exchange(2, 9, 1, 3, Exchange::Exchanged)],
    );
    violated(None, [insert(1, 10, 1, true), insert(2, 9, 2, true)]);
    violated(Some(1), [remove(1, 10, true), remove(2, 9, true)]);
}

#[test]
fn a_stale_read_after_a_completed_write_is_found() {
    let report = violated(Some(1), [upsert(1, 2, 5), get(3, 4, Some(1))]);
    assert!(report.contains("key 7 is not linearizable"), "{report}");
    assert!(report.contains(">       300 ..       400 ns  client 0  get 7 => 0x1"), "{report}");
    holds(Some(1), [upsert(1, 3, 5), get(3, 4, Some(1))]);
    holds(Some(1), [upsert(1, 3, 5), get(2, 4, Some(5))]);
}

#[test]
fn reads_that_go_back_in_time_are_found() {
    violated(Some(1), [upsert(1, 20, 5), get(2, 4, Some(5)), get(5, 7, Some(1))]);
}

#[test]
fn a_resurrected_key_is_found() {
    violated(Some(1), [remove(1, 2, true), get(3, 4, Some(1))]);
    violated(Some(1), [remove(1, 2, true), update(3, 4, 2, true)]);
    violated(Some(1), [remove(1, 2, true), insert(3, 4, 2, false)]);
}

#[test]
fn a_value_nobody_wrote_is_found() {
    violated(Some(1), [get(1, 2, Some(9))]);
    violated(None, [get(1, 2, Some(9))]);
}

#[test]
fn an_uncertain_write_may_land_late_or_never() {
    holds(Some(1), [lost(upsert(1, 2, 5)), get(3, 4, Some(1)), get(5, 6, Some(5))]);
    holds(Some(1), [lost(upsert(1, 2, 5)), get(3, 4, Some(1)), get(5, 6, Some(1))]);
    holds(Some(1), [never_returned(remove(1, 0, true)), get(3, 4, Some(1)), get(5, 6, None)]);
    // Later operations of the same client do not stop an uncertain write from taking effect.
    holds(Some(1), [lost(upsert(1, 2, 5)), upsert(3, 4, 6), get(5, 6, Some(5))]);
}

#[test]
fn an_uncertain_write_once_seen_stays() {
    violated(
        Some(1),
        [lost(upsert(1, 2, 5)), get(3, 4, Some(5)), get(5, 6, Some(1)), get(7, 8, Some(5))],
    );
    // An uncertain write takes effect at most once.
    violated(
        Some(1),
        [lost(upsert(1, 2, 5)), get(3, 4, Some(5)), upsert(5, 6, 6), get(7, 8, Some(5))],
    );
    // An uncertain write does not take effect before its invocation.
    violated(Some(1), [get(1, 2, Some(5)), lost(upsert(3, 4, 5))]);
}

#[test]
fn uncertain_writes_build_on_each_other() {
    let chain = || {
        let step = |from, expected, new| {
            lost(exchange(from, from + 1, expected, new, Exchange::Exchanged))
        };
        [step(1, 1, 2), step(3, 2, 3), step(5, 3, 4)]
    };
    holds(Some(1), chain().into_iter().chain([get(7, 8, Some(4))]));
    violated(Some(1), chain().into_iter().chain([get(7, 8, Some(4)), get(9, 10, Some(3))]));
    violated(Some(9), chain().into_iter().chain([get(7, 8, Some(4))]));
}

#[test]
fn a_definite_failure_has_no_effect() {
    let failed = |(client, from, to, action, _): HistoryLine| {
        (client, from, to, action, OperationOutcome::Failed("out of memory".to_owned()))
    };
    holds(Some(1), [failed(upsert(1, 2, 5)), get(3, 4, Some(1))]);
    violated(Some(1), [failed(upsert(1, 2, 5)), get(3, 4, Some(5))]);
}

#[test]
fn multi_gets_and_scans_are_reads() {
    let several = |values: Vec<Option<u64>>| {
        (6, 3, 4, ClientAction::MultiGet(vec![K, 8]), OperationOutcome::Values(values))
    };
    holds(Some(1), [upsert(1, 2, 5), several(vec![Some(5), None])]);
    violated(Some(1), [upsert(1, 2, 5), several(vec![Some(1), None])]);
    let scan = |from, records| {
        (
            6,
            from,
            from + 1,
            ClientAction::Scan(ScanRequest::range(..)),
            OperationOutcome::Records(records),
        )
    };
    holds(Some(1), [upsert(1, 9, 5), scan(2, vec![(K, 1)]), scan(4, vec![(K, 5)])]);
    let report = violated(Some(1), [upsert(1, 9, 5), scan(2, vec![(K, 5)]), scan(4, vec![(K, 1)])]);
    assert!(report.contains("1 records, 7: 0x1"), "{report}");
}

#[test]
fn many_uncertain_writes_do_not_blow_the_search_up() {
    // A hundred removals and upserts of unknown outcome, between answered inserts and reads.
    let mut lines = Vec::new();
    for round in 0..100 {
        let at = round * 20;
        lines.push(lost(remove(at + 1, at + 2, true)));
        lines.push(lost(upsert(at + 3, at + 4, 1000 + round)));
        lines.push(lost(insert(at + 5, at + 6, 2000 + round, true)));
        lines.push(upsert(at + 7, at + 8, 3000 + round));
        lines.push(get(at + 9, at + 10, Some(3000 + round)));
        lines.push(remove(at + 11, at + 12, true));
        lines.push(get(at + 13, at + 14, None));
    }
    holds(None, lines.clone());
    lines.push(get(9000, 9001, Some(3000)));
    violated(None, lines);
}

#[test]
fn a_search_beyond_its_budget_gives_up() {
    let lines: Vec<HistoryLine> =
        (0..12).map(|n| upsert(n + 1, 100, n)).chain([get(101, 102, Some(99))]).collect();
    let history = history(&[], lines);
    assert!(matches!(check_linearizable(&history, 50), CheckVerdict::GaveUp(_)));
    assert!(matches!(check_linearizable(&history, DEFAULT_BUDGET), CheckVerdict::Violated(_)));
}

/// Applies an operation to a state and returns its answer.
fn answer(action: &ClientAction, state: &mut Option<u64>) -> OperationOutcome {
    let there = state.is_some();
    match *action {
        ClientAction::Get(_) => OperationOutcome::Value(*state),
        ClientAction::Insert(_, value) => {
            if !there {
                *state = Some(value);
            }
            OperationOutcome::Applied(!there)
        }
        ClientAction::Update(_, value) => {
            if there {
                *state = Some(value);
            }
            OperationOutcome::Applied(there)
        }
        ClientAction::Upsert(_, value) => {
            *state = Some(value);
            OperationOutcome::Done
        }
        ClientAction::Remove(_) => {
            *state = None;
            OperationOutcome::Applied(there)
        }
        ClientAction::CompareExchange { expected, new, .. } if *state == Some(expected) => {
            *state = Some(new);
            OperationOutcome::Exchange(Exchange::Exchanged)
        }
        ClientAction::CompareExchange { .. } => {
            OperationOutcome::Exchange(Exchange::Differs(*state))
        }
        ClientAction::MultiGet(_)
        | ClientAction::Scan(_)
        | ClientAction::Collect
        | ClientAction::Flush => {
            unreachable!("single keys only")
        }
    }
}

fn action() -> impl Strategy<Value = ClientAction> {
    let value = || 0..4_u64;
    prop_oneof![
        Just(ClientAction::Get(K)),
        value().prop_map(|value| ClientAction::Insert(K, value)),
        value().prop_map(|value| ClientAction::Update(K, value)),
        value().prop_map(|value| ClientAction::Upsert(K, value)),
        Just(ClientAction::Remove(K)),
        (value(), value()).prop_map(|(expected, new)| ClientAction::CompareExchange {
            key: K,
            expected,
            new
        }),
    ]
}

/// The course of a generated operation: how long before its effect it is invoked, how long after it
/// it returns, and whether it answers, loses its answer, or never takes effect.
fn course() -> impl Strategy<Value = (ClientAction, u64, u64, u8)> {
    (action(), 1..60_u64, 1..60_u64, 0..12_u8)
}

/// A history of a real register: operations take effect 10 apart, with arbitrary overlaps.
fn real(
    initial: Option<u64>,
    courses: &[(ClientAction, u64, u64, u8)],
    width: u64,
) -> Vec<HistoryLine> {
    let mut state = initial;
    let mut lines = Vec::new();
    for (number, (action, before, after, fate)) in courses.iter().enumerate() {
        let effect = 1_000 + 10 * number as u64;
        let (from, to) = (effect - before % width, effect + after % width);
        let outcome = match fate {
            0 => {
                answer(action, &mut state);
                unknown()
            }
            1 => OperationOutcome::NoReturn,
            2 => OperationOutcome::Failed("no".to_owned()),
            _ => answer(action, &mut state),
        };
        lines.push((number as u32, from, to, action.clone(), outcome));
    }
    lines
}

/// Tries every order, as the definition of linearizability does. For small histories.
fn by_definition(initial: Option<u64>, lines: &[HistoryLine]) -> bool {
    fn search(state: Option<u64>, lines: &[HistoryLine], left: &mut Vec<usize>) -> bool {
        let certain = |place: &usize| !lines[*place].4.is_uncertain();
        if !left.iter().any(certain) {
            return true;
        }
        for position in 0..left.len() {
            let place = left[position];
            let (_, from, _, action, outcome) = &lines[place];
            let first_end =
                left.iter().filter(|place| certain(place)).map(|place| lines[*place].2).min();
            if first_end.is_some_and(|end| end < *from) {
                continue;
            }
            let mut next = state;
            let answered = answer(action, &mut next);
            if outcome.is_uncertain() || answered == *outcome {
                left.remove(position);
                let found = search(next, lines, left);
                left.insert(position, place);
                if found {
                    return true;
                }
            }
        }
        false
    }
    let mut left: Vec<usize> = (0..lines.len())
        .filter(|place| !matches!(lines[*place].4, OperationOutcome::Failed(_)))
        .collect();
    search(initial, lines, &mut left)
}

proptest! {
    #[test]
    fn histories_of_a_real_register_are_accepted(
        initial in proptest::option::of(0..4_u64),
        courses in proptest::collection::vec(course(), 1..80),
    ) {
        prop_assert_eq!(verdict(initial, real(initial, &courses, 60)), CheckVerdict::Holds);
    }

    /// Mixing the times and outcomes of two different histories produces nearly every case.
    #[test]
    fn small_histories_are_judged_as_the_definition_does(
        initial in proptest::option::of(0..4_u64),
        courses in proptest::collection::vec(course(), 1..8),
        changed in proptest::collection::vec((any::<bool>(), 0..4_u64), 8),
    ) {
        let mut lines = real(initial, &courses, 60);
        for ((.., outcome), (change, value)) in lines.iter_mut().zip(changed) {
            if !change {
                continue;
            }
            match outcome {
                OperationOutcome::Value(seen) => *seen = (value > 0).then_some(value),
                OperationOutcome::Applied(done) => *done = !*done,
                OperationOutcome::Exchange(exchange) if value == 0 => *exchange = Exchange::Exchanged,
                _ => {}
            }
        }
        let expected = by_definition(initial, &lines);
        let found = verdict(initial, lines.clone());
        prop_assert_eq!(found == CheckVerdict::Holds, expected, "{:?} for {:?}", found, lines);
    }

    /// Without overlaps and losses, every answer follows from the previous operations.
    #[test]
    fn a_changed_answer_of_a_sequential_history_is_refused(
        initial in proptest::option::of(0..4_u64),
        courses in proptest::collection::vec(course(), 1..60),
        victim in any::<prop::sample::Index>(),
    ) {
        let courses: Vec<_> = courses.into_iter().map(|(a, b, c, _)| (a, b, c, 9)).collect();
        let mut lines = real(initial, &courses, 4);
        let place = victim.index(lines.len());
        let changed = match &mut lines[place].4 {
            OperationOutcome::Value(seen) => {
                *seen = if seen.is_some() { None } else { Some(1) };
                true
            }
            OperationOutcome::Applied(done) => {
                *done = !*done;
                true
            }
            OperationOutcome::Exchange(exchange @ Exchange::Differs(_)) => {
                *exchange = Exchange::Exchanged;
                true
            }
            _ => false,
        };
        prop_assert_eq!(verdict(initial, lines) == CheckVerdict::Holds, !changed);
    }
}
