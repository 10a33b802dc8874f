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

use crate::history::{Action, History, Outcome};
use farleaf_index::{Exchange, Scan};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The observed state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Absent, or present with this value.
    Exactly(Option<u64>),
    /// The key is present, with any value.
    Present,
}

/// The precondition for a write to change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Requires {
    Nothing,
    Absent,
    Present,
    Value(u64),
}

/// A change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Change {
    pub(super) requires: Requires,
    pub(super) becomes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The operation saw this state and changed nothing.
    Sees(Seen),
    /// The operation changed the key.
    Changes(Change),
    /// The operation may have changed the key, or may do so later.
    MayChange(Change),
}

/// A fact that one operation establishes about one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fact {
    /// The operation's index in the history.
    pub(super) operation: usize,
    /// The order numbers between which it took effect.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) step: Step,
}

/// The facts about every key in the history, ordered by invocation. Includes the facts from scans
/// if `with_scans` is set.
pub(super) fn facts_by_key(history: &History, with_scans: bool) -> BTreeMap<u64, Vec<Fact>> {
    let mut facts: BTreeMap<u64, Vec<Fact>> =
        named_keys(history).into_iter().map(|key| (key, Vec::new())).collect();
    for (number, operation) in history.operations.iter().enumerate() {
        let (start, end) = operation.span();
        let mut add = |key: u64, step: Step| {
            let fact = Fact { operation: number, start, end, step };
            facts.get_mut(&key).expect("all keys of the history are named").push(fact);
        };
        match (&operation.action, &operation.outcome) {
            (Action::MultiGet(keys), Outcome::Values(values)) => {
                for (key, value) in keys.iter().zip(values) {
                    add(*key, Step::Sees(Seen::Exactly(*value)));
                }
            }
            (Action::Scan(scan), Outcome::Records(records)) if with_scans => {
                let returned: BTreeMap<u64, u64> = records.iter().copied().collect();
                let covered = Covered::by(scan, records);
                for (key, facts) in &mut facts {
                    let value = returned.get(key).copied();
                    if value.is_some() || covered.contains(*key) {
                        let step = Step::Sees(Seen::Exactly(value));
                        facts.push(Fact { operation: number, start, end, step });
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
            Action::Get(key)
            | Action::Insert(key, _)
            | Action::Update(key, _)
            | Action::Upsert(key, _)
            | Action::Remove(key)
            | Action::CompareExchange { key, .. } => {
                keys.insert(*key);
            }
            Action::MultiGet(several) => keys.extend(several),
            Action::Scan(_) | Action::Collect | Action::Flush => {}
        }
        if let Outcome::Records(records) = &operation.outcome {
            keys.extend(records.iter().map(|(key, _)| *key));
        }
    }
    keys
}

/// The fact that a single-key operation establishes.
fn single(action: &Action, outcome: &Outcome) -> Option<(u64, Step)> {
    use Seen::{Exactly, Present};
    let change = |requires, becomes| Change { requires, becomes };
    let (key, change, otherwise) = match *action {
        Action::Get(key) => {
            let Outcome::Value(value) = outcome else { return None };
            return Some((key, Step::Sees(Exactly(*value))));
        }
        Action::Insert(key, value) => (key, change(Requires::Absent, Some(value)), Present),
        Action::Update(key, value) => (key, change(Requires::Present, Some(value)), Exactly(None)),
        Action::Upsert(key, value) => (key, change(Requires::Nothing, Some(value)), Present),
        Action::Remove(key) => (key, change(Requires::Present, None), Exactly(None)),
        Action::CompareExchange { key, expected, new } => {
            (key, change(Requires::Value(expected), Some(new)), Present)
        }
        Action::MultiGet(_) | Action::Scan(_) | Action::Collect | Action::Flush => return None,
    };
    let step = match outcome {
        Outcome::Applied(true) | Outcome::Done | Outcome::Exchange(Exchange::Exchanged) => {
            Step::Changes(change)
        }
        Outcome::Applied(false) => Step::Sees(otherwise),
        Outcome::Exchange(Exchange::Differs(value)) => Step::Sees(Exactly(*value)),
        Outcome::NoReturn | Outcome::Indeterminate(_) => Step::MayChange(change),
        Outcome::Failed(_) | Outcome::Value(_) | Outcome::Values(_) | Outcome::Records(_) => {
            return None;
        }
    };
    Some((key, step))
}

/// The keys that a scan's answer covers: its range, up to the last record if the limit ended the
/// scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Covered {
    lower: Bound<u64>,
    upper: Bound<u64>,
    nothing: bool,
}

impl Covered {
    pub(super) fn by(scan: &Scan<u64>, records: &[(u64, u64)]) -> Self {
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
