//! Checks that scans return everything they must, and nothing they cannot have seen.
//!
//! For each answered scan [I, R] (its invocation and return) this checks:
//! - scan.S1. Form: keys strictly in the scan's order, within its bounds, at most `limit` of them.
//! - scan.S2. Nothing is missing: the scan returns every key of the covered range (up to the last
//!   record, if the limit ended the scan) that was certainly present from I to R.
//! - scan.S3. No ghosts: each returned record may have been present at some moment between I and R.
//!
//! *Certainly present*: an answered operation A that returned before I leaves the key present at a
//! moment p between A's invocation and return. The key can be absent before the scan ends only if a
//! removal took effect after p and before R. Such a removal was invoked before R, and did not
//! return before A was invoked. If no removal that may have taken effect meets both conditions, the
//! key was present from A's return to R. The best A is the one invoked last.
//!
//! *Ghosts*: the value must have been written to the key. Either it was there initially, or a write
//! W that may have taken effect was invoked before R. W's value is certainly gone before I if an
//! answered operation X found or left the key in another state, and X was invoked after W returned,
//! and returned before I. If there is such an X for every W, no scan [I, R] can have seen the
//! value. An uncertain W never returns.
//!
//! Both checks consider only one scan and one key at a time, so they never raise a false alarm, but
//! they can miss what only several operations together disprove. The linearizability checker, which
//! treats scans as reads of each key, finds those cases; these checks explain their findings
//! better.
//!
//! A scan reads each leaf atomically. If all keys fit one leaf, [`check_snapshots`] checks that:
//! - scan.S4. One moment: some moment between I and R explains every key of the covered range,
//!   present or absent.

use super::CheckVerdict;
use super::observations::{
    CoveredKeys, KeyChange, KeyFact, ObservationStep, ObservedState, Precondition, facts_by_key,
    within,
};
use crate::{ClientAction, ClientOperation, History, OperationOutcome};
use farleaf_index::ScanRequest;
use std::collections::BTreeMap;

/// Checks scan.S1 to scan.S3 of every scan; reports the first that fails.
pub fn check_scans(history: &History) -> CheckVerdict {
    each_scan(history, |keys, operation, scan, records| {
        form(scan, records)
            .or_else(|| missing(keys, operation, scan, records))
            .or_else(|| ghost(keys, history, operation, records))
    })
}

/// Checks scan.S4 of every scan of an index that has one leaf; reports the first that fails.
pub fn check_snapshots(history: &History) -> CheckVerdict {
    each_scan(history, no_moment)
}

/// Judges each answered scan by what all other operations establish about each key.
fn each_scan(
    history: &History,
    judge: impl Fn(
        &BTreeMap<u64, KeyFacts>,
        &ClientOperation,
        &ScanRequest<u64>,
        &[(u64, u64)],
    ) -> Option<String>,
) -> CheckVerdict {
    let scans: Vec<_> = history
        .operations
        .iter()
        .filter_map(|operation| match (&operation.action, &operation.outcome) {
            (ClientAction::Scan(scan), OperationOutcome::Records(records)) => {
                Some((operation, scan, records))
            }
            _ => None,
        })
        .collect();
    if scans.is_empty() {
        return CheckVerdict::Holds;
    }
    let keys: BTreeMap<u64, KeyFacts> = facts_by_key(history, false)
        .into_iter()
        .map(|(key, facts)| (key, KeyFacts::new(history.initial.get(&key).copied(), facts)))
        .collect();
    for (operation, scan, records) in scans {
        if let Some(fault) = judge(&keys, operation, scan, records) {
            return CheckVerdict::Violated(format!("{fault}\n> {operation}\n"));
        }
    }
    CheckVerdict::Holds
}

/// Checks scan.S1.
fn form(scan: &ScanRequest<u64>, records: &[(u64, u64)]) -> Option<String> {
    if records.len() > scan.limit {
        return Some(format!("a scan returned {} records, more than its limit", records.len()));
    }
    if let Some((key, _)) = records.iter().find(|(key, _)| !within(scan.lower, scan.upper, *key)) {
        return Some(format!("a scan returned key {key}, outside its bounds"));
    }
    let in_order = |pair: &&[(u64, u64)]| match scan.reverse {
        false => pair[0].0 < pair[1].0,
        true => pair[0].0 > pair[1].0,
    };
    records.windows(2).find(|pair| !in_order(pair)).map(|pair| match pair[0].0 == pair[1].0 {
        true => format!("a scan returned key {} twice", pair[0].0),
        false => format!("a scan returned key {} before key {}", pair[0].0, pair[1].0),
    })
}

/// Checks scan.S2.
fn missing(
    keys: &BTreeMap<u64, KeyFacts>,
    operation: &ClientOperation,
    scan: &ScanRequest<u64>,
    records: &[(u64, u64)],
) -> Option<String> {
    let covered = CoveredKeys::by(scan, records);
    let (start, end) = operation.span();
    // Every returned key is among `keys`, and both ascend.
    let mut returned: Vec<u64> = records.iter().map(|(key, _)| *key).collect();
    if scan.reverse {
        returned.reverse();
    }
    let mut returned = returned.into_iter().peekable();
    for (key, facts) in keys {
        if returned.next_if_eq(key).is_some() {
            continue;
        }
        if covered.contains(*key) && facts.certainly_there(start, end) {
            return Some(format!("a scan missed key {key}, which was there all the time"));
        }
    }
    None
}

/// Checks scan.S3.
fn ghost(
    keys: &BTreeMap<u64, KeyFacts>,
    history: &History,
    operation: &ClientOperation,
    records: &[(u64, u64)],
) -> Option<String> {
    let (start, end) = operation.span();
    for (key, value) in records {
        let facts = &keys[key];
        let Some(gone) = facts.certainly_gone(*value, start, end) else { continue };
        let mut text = format!("a scan returned key {key} = {value:#x}, ");
        match gone {
            ImpossibleValue::NeverWritten => text += "which no operation had written",
            ImpossibleValue::Replaced(by) => {
                let by = &history.operations[by];
                text += &format!("which was certainly gone by then:\n  {by}");
            }
        }
        return Some(text);
    }
    None
}

/// Checks scan.S4.
fn no_moment(
    keys: &BTreeMap<u64, KeyFacts>,
    operation: &ClientOperation,
    scan: &ScanRequest<u64>,
    records: &[(u64, u64)],
) -> Option<String> {
    let covered = CoveredKeys::by(scan, records);
    let returned: BTreeMap<u64, u64> = records.iter().copied().collect();
    let (start, end) = operation.span();
    // Nothing changes between two events of the history, so one moment after each of them is
    // enough.
    let explains = |moment: u64| {
        keys.iter().filter(|(key, _)| covered.contains(**key)).all(|(key, facts)| {
            match returned.get(key) {
                Some(value) => facts.certainly_gone(*value, moment, moment).is_none(),
                None => !facts.certainly_there(moment, moment),
            }
        })
    };
    let explained = (start + 1..=end).any(explains);
    (!explained).then(|| "a scan of one leaf returned records of different moments".to_owned())
}

/// An operation after which the key was certainly in this state.
#[derive(Debug)]
struct KnownState {
    operation: usize,
    start: u64,
    end: u64,
    state: ObservedState,
}

/// Why a scan cannot have seen a value.
enum ImpossibleValue {
    NeverWritten,
    /// The operation that found or left the key in another state.
    Replaced(usize),
}

#[derive(Debug)]
struct KeyFacts {
    /// Ordered by end.
    known: Vec<KnownState>,
    /// For each of `known`, the latest start of an operation, up to this one, that leaves the key
    /// present.
    there_since: Vec<Option<u64>>,
    /// Removals that may have taken effect, ordered by start: the start, and the latest end of any
    /// removal up to this one.
    removals: Vec<(u64, u64)>,
    /// Writes that may have taken effect: value, start, end.
    writes: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl KeyFacts {
    fn new(initial: Option<u64>, facts: Vec<KeyFact>) -> Self {
        let mut known = Vec::with_capacity(facts.len());
        let mut removals: Vec<(u64, u64)> = Vec::new();
        let mut writes: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        if let Some(value) = initial {
            writes.entry(value).or_default().push((0, 0));
        }
        for KeyFact { operation, start, end, step } in facts {
            match step {
                ObservationStep::Sees(state) => {
                    known.push(KnownState { operation, start, end, state })
                }
                ObservationStep::Changes(KeyChange { becomes, .. }) => {
                    let state = ObservedState::Exactly(becomes);
                    known.push(KnownState { operation, start, end, state });
                }
                ObservationStep::MayChange(_) => {}
            }
            if let ObservationStep::Changes(change) | ObservationStep::MayChange(change) = step {
                match change.becomes {
                    Some(value) => writes.entry(value).or_default().push((start, end)),
                    None => {
                        let latest = removals.last().map_or(end, |(_, latest)| end.max(*latest));
                        removals.push((start, latest));
                    }
                }
                // A successful exchange also implies that the expected value was there before. That
                // adds nothing here.
                debug_assert!(change.becomes.is_some() || change.requires == Precondition::Present);
            }
        }
        known.sort_by_key(|known| known.end);
        let mut since = initial.map(|_| 0);
        let there_since = known
            .iter()
            .map(|known| {
                if known.state != ObservedState::Exactly(None) {
                    since = since.max(Some(known.start));
                }
                since
            })
            .collect();
        Self { known, there_since, removals, writes }
    }

    /// Number of `known` that ended before `moment`.
    fn known_before(&self, moment: u64) -> usize {
        self.known.partition_point(|known| known.end < moment)
    }

    fn certainly_there(&self, start: u64, end: u64) -> bool {
        let since = match self.known_before(start) {
            // Nothing has been answered yet, so use the initial state. `there_since` starts from
            // it, too.
            0 => self.writes.values().flatten().any(|write| *write == (0, 0)).then_some(0),
            ended => self.there_since[ended - 1],
        };
        let Some(since) = since else { return false };
        match self.removals.partition_point(|(invoked, _)| *invoked < end) {
            0 => true,
            invoked => self.removals[invoked - 1].1 < since,
        }
    }

    fn certainly_gone(&self, value: u64, start: u64, end: u64) -> Option<ImpossibleValue> {
        let mut gone = ImpossibleValue::NeverWritten;
        let writes = self.writes.get(&value).map_or(&[][..], |writes| writes);
        let other = |state: ObservedState| match state {
            ObservedState::Exactly(state) => state != Some(value),
            ObservedState::Present => false,
        };
        let ended = &self.known[..self.known_before(start)];
        for (_, written) in writes.iter().filter(|(invoked, _)| *invoked < end) {
            // The latest answer is the most likely to have been invoked after the write returned.
            let by = ended.iter().rev().find(|x| x.start > *written && other(x.state))?;
            gone = ImpossibleValue::Replaced(by.operation);
        }
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{history, unknown};
    use super::*;
    use std::ops::Bound;

    fn scan(lower: u64, upper: u64) -> ScanRequest<u64> {
        ScanRequest::range(lower..upper)
    }

    fn verdict(
        initial: &[(u64, u64)],
        others: &[(u32, u64, u64, ClientAction, OperationOutcome)],
        (from, to): (u64, u64),
        scan: ScanRequest<u64>,
        records: &[(u64, u64)],
    ) -> CheckVerdict {
        let mut all = others.to_vec();
        all.push((
            9,
            from,
            to,
            ClientAction::Scan(scan),
            OperationOutcome::Records(records.to_vec()),
        ));
        check_scans(&history(initial, all))
    }

    fn refused(verdict: &CheckVerdict, why: &str) {
        assert!(
            matches!(verdict, CheckVerdict::Violated(text) if text.contains(why)),
            "{verdict:?}"
        );
    }

    const FULL: &[(u64, u64)] = &[(1, 10), (2, 20), (3, 30)];

    #[test]
    fn form_is_checked_in_both_directions() {
        let holds = |scan: ScanRequest<u64>, records: &[(u64, u64)]| {
            assert_eq!(verdict(FULL, &[], (1, 2), scan, records), CheckVerdict::Holds);
        };
        holds(scan(0, 9), FULL);
        holds(scan(0, 9).reverse(), &[(3, 30), (2, 20), (1, 10)]);
        holds(scan(0, 9).limit(2), &[(1, 10), (2, 20)]);
        holds(scan(0, 9).reverse().limit(2), &[(3, 30), (2, 20)]);
        holds(scan(0, 9).limit(0), &[]);
        holds(scan(1, 3), &[(1, 10), (2, 20)]);
        let bad = |scan: ScanRequest<u64>, records: &[(u64, u64)], why: &str| {
            refused(&verdict(FULL, &[], (1, 2), scan, records), why);
        };
        bad(scan(0, 9), &[(1, 10), (1, 10), (2, 20), (3, 30)], "key 1 twice");
        bad(scan(0, 9), &[(2, 20), (1, 10), (3, 30)], "key 2 before key 1");
        bad(scan(0, 9).reverse(), FULL, "key 1 before key 2");
        bad(scan(0, 3), FULL, "key 3, outside");
        bad(scan(0, 9).limit(2), FULL, "more than its limit");
        let above = ScanRequest { lower: Bound::Excluded(1), ..scan(0, 9) };
        bad(above, FULL, "key 1, outside");
    }

    #[test]
    fn a_key_that_is_there_throughout_must_be_seen() {
        let bad = |scan: ScanRequest<u64>, records: &[(u64, u64)], key: &str| {
            refused(&verdict(FULL, &[], (1, 2), scan, records), key);
        };
        bad(scan(0, 9), &[(1, 10), (3, 30)], "missed key 2");
        bad(scan(0, 9).limit(2), &[(1, 10), (3, 30)], "missed key 2");
        bad(scan(0, 9).reverse().limit(1), &[(2, 20)], "missed key 3");
        bad(scan(0, 9).reverse(), &[(3, 30), (2, 20)], "missed key 1");
        let inserted = (0, 1, 5, ClientAction::Insert(4, 40), OperationOutcome::Applied(true));
        let rest = FULL;
        let after = verdict(FULL, std::slice::from_ref(&inserted), (6, 8), scan(0, 9), rest);
        refused(&after, "missed key 4");
        let during = verdict(FULL, &[inserted], (4, 8), scan(0, 9), rest);
        assert_eq!(during, CheckVerdict::Holds, "it may have come after the scan passed");
    }

    #[test]
    fn a_key_that_may_have_been_removed_need_not_be_seen() {
        let without = &[(1, 10), (3, 30)];
        let remove = |from, to, outcome| (0, from, to, ClientAction::Remove(2), outcome);
        let verdict_with = |others: &[_]| verdict(FULL, others, (10, 20), scan(0, 9), without);
        let removed = OperationOutcome::Applied(true);
        assert_eq!(verdict_with(&[remove(1, 5, removed.clone())]), CheckVerdict::Holds);
        assert_eq!(verdict_with(&[remove(15, 30, removed.clone())]), CheckVerdict::Holds);
        assert_eq!(
            verdict_with(&[remove(1, 2, unknown())]),
            CheckVerdict::Holds,
            "it may land late"
        );
        assert_eq!(verdict_with(&[remove(1, 0, OperationOutcome::NoReturn)]), CheckVerdict::Holds);
        refused(&verdict_with(&[remove(21, 30, removed.clone())]), "missed key 2");
        refused(
            &verdict_with(&[remove(1, 2, OperationOutcome::Failed("no".into()))]),
            "missed key 2",
        );
        // The key came back before the scan.
        let back = (1, 6, 8, ClientAction::Insert(2, 21), OperationOutcome::Applied(true));
        refused(&verdict_with(&[remove(1, 5, removed.clone()), back.clone()]), "missed key 2");
        // The removal may have come after the insertion.
        assert_eq!(verdict_with(&[remove(1, 7, removed), back]), CheckVerdict::Holds);
    }

    #[test]
    fn a_scan_of_one_leaf_is_of_one_moment() {
        let set = |key, from, to, value| {
            (0, from, to, ClientAction::Upsert(key, value), OperationOutcome::Done)
        };
        let verdict_with = |others: &[_], records: &[(u64, u64)]| {
            let scan = (
                9,
                1,
                20,
                ClientAction::Scan(scan(0, 9)),
                OperationOutcome::Records(records.to_vec()),
            );
            let all = others.iter().cloned().chain([scan]);
            check_snapshots(&history(FULL, all))
        };
        let one_after_the_other = [set(1, 2, 4, 11), set(3, 6, 8, 31)];
        for (one, three) in [(10, 30), (11, 30), (11, 31)] {
            let records = [(1, one), (2, 20), (3, three)];
            assert_eq!(verdict_with(&one_after_the_other, &records), CheckVerdict::Holds);
        }
        let mixed = [(1, 10), (2, 20), (3, 31)];
        refused(&verdict_with(&one_after_the_other, &mixed), "different moments");
        let together = [set(1, 2, 7, 11), set(3, 6, 8, 31)];
        assert_eq!(verdict_with(&together, &mixed), CheckVerdict::Holds);
        let removed =
            [(0, 2, 4, ClientAction::Remove(1), OperationOutcome::Applied(true)), set(3, 6, 8, 31)];
        refused(&verdict_with(&removed, &mixed), "different moments");
        assert_eq!(verdict_with(&removed, &[(2, 20), (3, 30)]), CheckVerdict::Holds);
        let inserted = [
            set(3, 2, 4, 31),
            (0, 6, 8, ClientAction::Insert(4, 40), OperationOutcome::Applied(true)),
        ];
        assert_eq!(verdict_with(&inserted, &[(1, 10), (2, 20), (3, 31)]), CheckVerdict::Holds);
        let before = [(1, 10), (2, 20), (3, 30), (4, 40)];
        refused(&verdict_with(&inserted, &before), "different moments");
    }

    #[test]
    fn ghosts_are_found() {
        let with = |value| vec![(1, 10), (2, value), (3, 30)];
        let write =
            |from, to, value, outcome| (0, from, to, ClientAction::Upsert(2, value), outcome);
        let verdict_with =
            |others: &[_], value| verdict(FULL, others, (10, 20), scan(0, 9), &with(value));
        refused(&verdict_with(&[], 77), "no operation had written");
        let early = write(1, 2, 21, OperationOutcome::Done);
        assert_eq!(verdict_with(std::slice::from_ref(&early), 21), CheckVerdict::Holds);
        refused(&verdict_with(std::slice::from_ref(&early), 20), "certainly gone");
        assert_eq!(
            verdict_with(&[write(15, 25, 21, OperationOutcome::Done)], 21),
            CheckVerdict::Holds
        );
        assert_eq!(
            verdict_with(&[write(15, 25, 21, OperationOutcome::Done)], 20),
            CheckVerdict::Holds
        );
        refused(
            &verdict_with(&[write(21, 25, 21, OperationOutcome::Done)], 21),
            "no operation had written",
        );
        assert_eq!(
            verdict_with(
                &[write(1, 2, 21, unknown()), write(3, 4, 22, OperationOutcome::Done)],
                21
            ),
            CheckVerdict::Holds,
            "an uncertain write may land late"
        );
        // A read of another value proves as much as a write.
        let read = (1, 5, 6, ClientAction::Get(2), OperationOutcome::Value(Some(21)));
        refused(&verdict_with(&[write(1, 2, 21, unknown()), read], 20), "certainly gone");
        let removed = (1, 5, 6, ClientAction::Remove(2), OperationOutcome::Applied(true));
        refused(&verdict_with(&[removed], 20), "certainly gone");
    }
}
