//! The facts that each operation establishes about each of its keys.
//!
//! An answered operation establishes the key's state at one moment between its invocation and its
//! return, and how it changed that state. An uncertain write establishes that it may have changed
//! the key in that time or later. Reads without an answer and operations that certainly failed
//! establish nothing.
//!
//! A scan is not a snapshot. But for each key in the range that it covered, it saw the state at
//! some moment between its invocation and its return. (If a key is present throughout, the scan
//! must return it; if not, there is a moment at which it is absent. A record that the scan returns
//! was present at some moment.) So a scan is a read of every such key, like a multi-get.

use crate::{ClientAction, History, OperationOutcome};
use farleaf_index::{Exchange, ScanRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The observed state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObservedState {
    /// Absent, or present with this value.
    Exactly(Option<u64>),
    /// The key is present, with any value.
    Present,
}

/// The precondition for a write to change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precondition {
    Nothing,
    Absent,
    Present,
    Value(u64),
}

/// A change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyChange {
    pub(super) requires: Precondition,
    pub(super) becomes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObservationStep {
    /// The operation saw this state and changed nothing.
    Sees(ObservedState),
    /// The operation changed the key.
    Changes(KeyChange),
    /// The operation may have changed the key, or may do so later.
    MayChange(KeyChange),
}

/// A fact that one operation establishes about one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyFact {
    /// The operation's index in the history.
    pub(super) operation: usize,
    /// The order numbers between which it took effect.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) step: ObservationStep,
}

/// The facts about every key in the history, ordered by invocation. Includes the facts from scans
/// if `with_scans` is set.
pub(super) fn facts_by_key(history: &History, with_scans: bool) -> BTreeMap<u64, Vec<KeyFact>> {
    let mut facts: BTreeMap<u64, Vec<KeyFact>> =
        named_keys(history).into_iter().map(|key| (key, Vec::new())).collect();
    for (number, operation) in history.operations.iter().enumerate() {
        let (start, end) = operation.span();
        let mut add = |key: u64, step: ObservationStep| {
            let fact = KeyFact { operation: number, start, end, step };
            facts.get_mut(&key).expect("all keys of the history are named").push(fact);
        };
        match (&operation.action, &operation.outcome) {
            (ClientAction::MultiGet(keys), OperationOutcome::Values(values)) => {
                for (key, value) in keys.iter().zip(values) {
                    add(*key, ObservationStep::Sees(ObservedState::Exactly(*value)));
                }
            }
            (ClientAction::Scan(scan), OperationOutcome::Records(records)) if with_scans => {
                let returned: BTreeMap<u64, u64> = records.iter().copied().collect();
                let covered = CoveredKeys::by(scan, records);
                for (key, facts) in &mut facts {
                    let value = returned.get(key).copied();
                    if value.is_some() || covered.contains(*key) {
                        let step = ObservationStep::Sees(ObservedState::Exactly(value));
                        facts.push(KeyFact { operation: number, start, end, step });
                    }
                }
            }
            (action, outcome) => {
                if let Some((key, step)) = single(action, outcome) {
                    add(key, step);
                }
            }
        }
    }
    facts
}

fn named_keys(history: &History) -> BTreeSet<u64> {
    let mut keys: BTreeSet<u64> = history.initial.keys().copied().collect();
    for operation in &history.operations {
        match &operation.action {
            ClientAction::Get(key)
            | ClientAction::Insert(key, _)
            | ClientAction::Update(key, _)
            | ClientAction::Upsert(key, _)
            | ClientAction::Remove(key)
            | ClientAction::CompareExchange { key, .. } => {
                keys.insert(*key);
            }
            ClientAction::MultiGet(several) => keys.extend(several),
            ClientAction::Scan(_) | ClientAction::Collect | ClientAction::Flush => {}
        }
        if let OperationOutcome::Records(records) = &operation.outcome {
            keys.extend(records.iter().map(|(key, _)| *key));
        }
    }
    keys
}

/// The fact that a single-key operation establishes.
fn single(action: &ClientAction, outcome: &OperationOutcome) -> Option<(u64, ObservationStep)> {
    use ObservedState::{Exactly, Present};
    let change = |requires, becomes| KeyChange { requires, becomes };
    let (key, change, otherwise) = match *action {
        ClientAction::Get(key) => {
            let OperationOutcome::Value(value) = outcome else { return None };
            return Some((key, ObservationStep::Sees(Exactly(*value))));
        }
        ClientAction::Insert(key, value) => {
            (key, change(Precondition::Absent, Some(value)), Present)
        }
        ClientAction::Update(key, value) => {
            (key, change(Precondition::Present, Some(value)), Exactly(None))
        }
        ClientAction::Upsert(key, value) => {
            (key, change(Precondition::Nothing, Some(value)), Present)
        }
        ClientAction::Remove(key) => (key, change(Precondition::Present, None), Exactly(None)),
        ClientAction::CompareExchange { key, expected, new } => {
            (key, change(Precondition::Value(expected), Some(new)), Present)
        }
        ClientAction::MultiGet(_)
        | ClientAction::Scan(_)
        | ClientAction::Collect
        | ClientAction::Flush => return None,
    };
    let step = match outcome {
        OperationOutcome::Applied(true)
        | OperationOutcome::Done
        | OperationOutcome::Exchange(Exchange::Exchanged) => ObservationStep::Changes(change),
        OperationOutcome::Applied(false) => ObservationStep::Sees(otherwise),
        OperationOutcome::Exchange(Exchange::Differs(value)) => {
            ObservationStep::Sees(Exactly(*value))
        }
        OperationOutcome::NoReturn | OperationOutcome::Indeterminate(_) => {
            ObservationStep::MayChange(change)
        }
        OperationOutcome::Failed(_)
        | OperationOutcome::Value(_)
        | OperationOutcome::Values(_)
        | OperationOutcome::Records(_) => {
            return None;
        }
    };
    Some((key, step))
}

/// The keys that a scan's answer covers: its range, up to the last record if the limit ended the
/// scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoveredKeys {
    lower: Bound<u64>,
    upper: Bound<u64>,
    nothing: bool,
}

impl CoveredKeys {
    pub(super) fn by(scan: &ScanRequest<u64>, records: &[(u64, u64)]) -> Self {
        let mut covered = Self { lower: scan.lower, upper: scan.upper, nothing: scan.limit == 0 };
        if records.len() >= scan.limit
            && let Some((last, _)) = records.last()
        {
            let end = if scan.reverse { &mut covered.lower } else { &mut covered.upper };
            *end = Bound::Included(*last);
        }
        covered
    }

    pub(super) fn contains(&self, key: u64) -> bool {
        !self.nothing && within(self.lower, self.upper, key)
    }
}

/// Whether a key lies between two bounds.
pub(super) fn within(lower: Bound<u64>, upper: Bound<u64>, key: u64) -> bool {
    let above = match lower {
        Bound::Unbounded => true,
        Bound::Included(bound) => key >= bound,
        Bound::Excluded(bound) => key > bound,
    };
    let below = match upper {
        Bound::Unbounded => true,
        Bound::Included(bound) => key <= bound,
        Bound::Excluded(bound) => key < bound,
    };
    above && below
}
