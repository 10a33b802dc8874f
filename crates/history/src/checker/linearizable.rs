//! Checks that the single-key operations of a history are linearizable, key by key.
//!
//! Linearizability is local (Herlihy and Wing): a history is linearizable if its part about each
//! key is. The search for one key is the just-in-time variant of Wing and Gong's (G. Lowe, "Testing
//! for linearizability", 2017), breadth first. It processes invocations and returns in order and
//! keeps every *configuration* that explains all returns so far: the key's state, the open
//! operations that have already taken effect, and the uncertain writes that have been used. An
//! operation takes effect only when a return, its own or a later one, requires it. When no
//! configuration is left, no order of the operations explains the answers.
//!
//! These rules keep the set small and lose no explanation:
//! - linearizable.L1. An operation that only observes takes effect as soon as the state matches.
//!   The search loses no options by this.
//! - linearizable.L2. An uncertain write is used only where it changes the state. Anywhere else,
//!   using it is equivalent to it never having happened. A write that is never needed is never
//!   used.
//! - linearizable.L3. Values that appear in no answer and no compare-exchange are
//!   indistinguishable, so they are treated as one value. Uncertain writes with the same effect
//!   then differ only in their invocations, so the search counts how many of each kind are used.
//! - linearizable.L4. Of two configurations with equal states and equal open operations, one that
//!   has used no more of any kind of uncertain write explains everything that the other can.

use super::CheckVerdict;
use super::observations::{
    KeyChange, KeyFact, ObservationStep, ObservedState, Precondition, facts_by_key,
};
use crate::history::StateFormatter;
use crate::{ClientAction, History};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Number of configurations that the search examines for one key before it gives up.
pub const DEFAULT_BUDGET: u64 = 2_000_000;

/// Operations on one key that may be open at the same time.
const MAX_OPEN: usize = 128;

/// The state of an absent key.
const ABSENT: u32 = 0;
/// The state of a key whose value appears in no answer (linearizable.L3).
const UNNAMED: u32 = 1;

/// Checks every key and reports the smallest one that fails. `budget` bounds the work for one key.
pub fn check_linearizable(history: &History, budget: u64) -> CheckVerdict {
    let mut gave_up = None;
    for (_, verdict) in unexplained_keys(history, budget) {
        match verdict {
            CheckVerdict::GaveUp(_) => _ = gave_up.get_or_insert(verdict),
            verdict => return verdict,
        }
    }
    gave_up.unwrap_or(CheckVerdict::Holds)
}

/// The keys, in ascending order, that are not shown to be linearizable, each with its verdict.
/// `budget` bounds the work for one key.
pub fn unexplained_keys(
    history: &History,
    budget: u64,
) -> impl Iterator<Item = (u64, CheckVerdict)> {
    facts_by_key(history, true).into_iter().filter_map(move |(key, facts)| {
        let initial = history.initial.get(&key).copied();
        let verdict = match LinearizationSearch::new(initial, &facts).run(budget) {
            Ok(()) => return None,
            Err(SearchStop::Unexplained(at, states)) => {
                CheckVerdict::Violated(report(history, key, &facts, at, &states))
            }
            Err(SearchStop::TooLarge(why)) => CheckVerdict::GaveUp(format!("key {key}: {why}")),
        };
        Some((key, verdict))
    })
}

/// Why a search ended early.
enum SearchStop {
    /// No order explains the fact at this position. Also holds the states that the key could have
    /// had before its return; `None` stands for a value that appears in no answer.
    Unexplained(usize, Vec<Option<Option<u64>>>),
    TooLarge(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    state: u32,
    /// The open operations that have taken effect, by slot.
    done: u128,
    /// Number of used uncertain writes of each kind.
    used: Vec<u16>,
}

/// A fact, translated for the search.
#[derive(Clone, Copy, Debug)]
enum SearchMove {
    Observe(StateCondition),
    Write(StateCondition, u32),
    /// An uncertain write, by its kind.
    Uncertain(usize),
}

/// A condition on a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StateCondition {
    Anything,
    Present,
    State(u32),
}

impl StateCondition {
    fn fits(self, state: u32) -> bool {
        match self {
            Self::Anything => true,
            Self::Present => state != ABSENT,
            Self::State(expected) => state == expected,
        }
    }
}

/// The open operation in a slot.
#[derive(Clone, Copy, Debug)]
struct OpenOperation {
    expect: StateCondition,
    /// The state after it, if it writes.
    becomes: Option<u32>,
}

struct LinearizationSearch {
    /// Values that appear in answers; the value of state `n` is at `n - 2`.
    values: Vec<u64>,
    /// Invocations and returns: (order, whether it is a return, place of the fact).
    events: Vec<(u64, bool, usize)>,
    moves: Vec<SearchMove>,
    /// The kinds of uncertain writes; `invoked` counts the invocations of each.
    kinds: Vec<(StateCondition, u32)>,
    invoked: Vec<u16>,
    slot_of: Vec<u8>,
    open: Vec<Option<OpenOperation>>,
    configurations: Vec<Configuration>,
    looked_at: u64,
}

impl LinearizationSearch {
    fn new(initial: Option<u64>, facts: &[KeyFact]) -> Self {
        let mut named = BTreeSet::new();
        for fact in facts {
            match fact.step {
                ObservationStep::Sees(ObservedState::Exactly(Some(value)))
                | ObservationStep::Changes(KeyChange {
                    requires: Precondition::Value(value),
                    ..
                })
                | ObservationStep::MayChange(KeyChange {
                    requires: Precondition::Value(value),
                    ..
                }) => {
                    named.insert(value);
                }
                _ => {}
            }
        }
        let values: Vec<u64> = named.into_iter().collect();
        let state = |value: Option<u64>| match value {
            None => ABSENT,
            Some(value) => values.binary_search(&value).map_or(UNNAMED, |place| place as u32 + 2),
        };
        let expect = |requires| match requires {
            Precondition::Nothing => StateCondition::Anything,
            Precondition::Absent => StateCondition::State(ABSENT),
            Precondition::Present => StateCondition::Present,
            Precondition::Value(value) => StateCondition::State(state(Some(value))),
        };
        // Uncertain writes invoked after the last return cannot explain anything.
        let last_return = facts
            .iter()
            .filter(|fact| !matches!(fact.step, ObservationStep::MayChange(_)))
            .map(|fact| fact.end)
            .max()
            .unwrap_or(0);
        let mut kinds = BTreeMap::new();
        let mut moves = Vec::with_capacity(facts.len());
        let mut events = Vec::with_capacity(2 * facts.len());
        for (place, fact) in facts.iter().enumerate() {
            moves.push(match fact.step {
                ObservationStep::Sees(ObservedState::Present) => {
                    SearchMove::Observe(StateCondition::Present)
                }
                ObservationStep::Sees(ObservedState::Exactly(value)) => {
                    SearchMove::Observe(StateCondition::State(state(value)))
                }
                ObservationStep::Changes(change) => {
                    SearchMove::Write(expect(change.requires), state(change.becomes))
                }
                ObservationStep::MayChange(change) => {
                    let next = kinds.len();
                    let kind = (expect(change.requires), state(change.becomes));
                    if fact.start < last_return {
                        SearchMove::Uncertain(*kinds.entry(kind).or_insert(next))
                    } else {
                        SearchMove::Uncertain(usize::MAX)
                    }
                }
            });
            events.push((fact.start, false, place));
            if !matches!(fact.step, ObservationStep::MayChange(_)) {
                events.push((fact.end, true, place));
            }
        }
        // Invocations sort before returns of the same moment, as these operations may have
        // overlapped.
        events.sort_unstable();
        let mut by_number = vec![(StateCondition::Anything, ABSENT); kinds.len()];
        for (kind, number) in kinds {
            by_number[number] = kind;
        }
        let used = vec![0; by_number.len()];
        Self {
            configurations: vec![Configuration {
                state: state(initial),
                done: 0,
                used: used.clone(),
            }],
            slot_of: vec![0; facts.len()],
            values,
            events,
            moves,
            kinds: by_number,
            invoked: used,
            open: Vec::new(),
            looked_at: 0,
        }
    }

    fn run(&mut self, budget: u64) -> Result<(), SearchStop> {
        for (_, is_return, place) in std::mem::take(&mut self.events) {
            if is_return {
                self.completed(place, budget)?;
            } else {
                self.invoke(place)?;
            }
        }
        Ok(())
    }

    fn invoke(&mut self, place: usize) -> Result<(), SearchStop> {
        let open = match self.moves[place] {
            SearchMove::Uncertain(kind) => {
                if let Some(count) = self.invoked.get_mut(kind) {
                    *count = count.saturating_add(1);
                }
                return Ok(());
            }
            SearchMove::Observe(expect) => OpenOperation { expect, becomes: None },
            SearchMove::Write(expect, becomes) => OpenOperation { expect, becomes: Some(becomes) },
        };
        let slot = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        if slot == MAX_OPEN {
            let why = format!("more than {MAX_OPEN} operations are open at a time");
            return Err(SearchStop::TooLarge(why));
        }
        if slot == self.open.len() {
            self.open.push(None);
        }
        self.open[slot] = Some(open);
        self.slot_of[place] = slot as u8;
        if open.becomes.is_none() {
            for configuration in &mut self.configurations {
                if open.expect.fits(configuration.state) {
                    configuration.done |= 1 << slot;
                }
            }
        }
        Ok(())
    }

    /// Handles the return of the operation at `place`: keeps only configurations in which it has
    /// taken effect.
    fn completed(&mut self, place: usize, budget: u64) -> Result<(), SearchStop> {
        let slot = usize::from(self.slot_of[place]);
        let bit = 1_u128 << slot;
        if self.configurations.iter().any(|configuration| configuration.done & bit == 0) {
            let before = std::mem::take(&mut self.configurations);
            let mut states: Vec<u32> = before.iter().map(|one| one.state).collect();
            self.expand(before, bit, budget)?;
            if self.configurations.is_empty() {
                states.sort_unstable();
                states.dedup();
                let value = |state| self.values.get(state as usize - 2).copied();
                let named = |state| match state {
                    ABSENT => Some(None),
                    UNNAMED => None,
                    state => Some(value(state)),
                };
                return Err(SearchStop::Unexplained(
                    place,
                    states.into_iter().map(named).collect(),
                ));
            }
        }
        for configuration in &mut self.configurations {
            configuration.done &= !bit;
        }
        self.open[slot] = None;
        Ok(())
    }

    /// Expands `work` into every configuration in which the operation of `bit` has taken effect.
    fn expand(
        &mut self,
        work: Vec<Configuration>,
        bit: u128,
        budget: u64,
    ) -> Result<(), SearchStop> {
        let mut seen = Antichains::default();
        let mut work: Vec<Configuration> = work.into_iter().filter(|one| seen.add(one)).collect();
        while let Some(configuration) = work.pop() {
            self.looked_at += 1;
            if self.looked_at > budget {
                let why = format!("gave up after looking at {budget} configurations");
                return Err(SearchStop::TooLarge(why));
            }
            if configuration.done & bit != 0 {
                continue;
            }
            for (slot, open) in self.open.iter().enumerate() {
                if let Some(OpenOperation { expect, becomes: Some(becomes) }) = *open
                    && configuration.done & (1 << slot) == 0
                    && expect.fits(configuration.state)
                {
                    let done = configuration.done | 1 << slot;
                    let next = self.become_state(becomes, done, configuration.used.clone());
                    if seen.add(&next) {
                        work.push(next);
                    }
                }
            }
            for (kind, (expect, becomes)) in self.kinds.iter().enumerate() {
                if configuration.used[kind] < self.invoked[kind]
                    && configuration.state != *becomes
                    && expect.fits(configuration.state)
                {
                    let mut used = configuration.used.clone();
                    used[kind] += 1;
                    let next = self.become_state(*becomes, configuration.done, used);
                    if seen.add(&next) {
                        work.push(next);
                    }
                }
            }
        }
        self.configurations = seen.into_configurations(bit);
        Ok(())
    }

    /// The configuration with a new state. Every open observation that matches it takes effect
    /// (linearizable.L1).
    fn become_state(&self, state: u32, mut done: u128, used: Vec<u16>) -> Configuration {
        for (slot, open) in self.open.iter().enumerate() {
            if let Some(OpenOperation { expect, becomes: None }) = open
                && expect.fits(state)
            {
                done |= 1 << slot;
            }
        }
        Configuration { state, done, used }
    }
}

/// Configurations without those that others make redundant (linearizable.L4).
#[derive(Default)]
struct Antichains(BTreeMap<(u32, u128), Vec<Vec<u16>>>);

impl Antichains {
    /// Adds a configuration. Returns `false` if another one makes it redundant.
    fn add(&mut self, configuration: &Configuration) -> bool {
        let all = self.0.entry((configuration.state, configuration.done)).or_default();
        let covers = |less: &[u16], more: &[u16]| less.iter().zip(more).all(|(l, m)| l <= m);
        if all.iter().any(|used| covers(used, &configuration.used)) {
            return false;
        }
        all.retain(|used| !covers(&configuration.used, used));
        all.push(configuration.used.clone());
        true
    }

    /// The configurations in which the operation of `bit` has taken effect.
    fn into_configurations(self, bit: u128) -> Vec<Configuration> {
        let with_bit = self.0.into_iter().filter(|((_, done), _)| done & bit != 0);
        with_bit
            .flat_map(|((state, done), all)| {
                all.into_iter().map(move |used| Configuration { state, done, used })
            })
            .collect()
    }
}

/// Limit on each of two groups in a report: operations that precede those overlapping the
/// unexplained one, and uncertain operations.
const SHOWN_BEFORE: usize = 6;

fn report(
    history: &History,
    key: u64,
    facts: &[KeyFact],
    at: usize,
    states: &[Option<Option<u64>>],
) -> String {
    let stuck = &facts[at];
    let states: Vec<String> = states
        .iter()
        .map(|state| {
            state.map_or("a value that nothing names".to_owned(), |s| StateFormatter(s).to_string())
        })
        .collect();
    let mut text = format!(
        "key {key} is not linearizable: no order of the operations explains the one marked >.\n\
         Before its return the key could be: {}; at first it was {}.\n",
        states.join(", "),
        StateFormatter(history.initial.get(&key).copied()),
    );
    // Show the operations that returned before the stuck one was invoked, those that overlap it,
    // and uncertain writes, which overlap everything after their invocation.
    let mut before: Vec<usize> =
        (0..facts.len()).filter(|place| facts[*place].end < stuck.start).collect();
    before.sort_by_key(|place| facts[*place].end);
    let mut shown = before.split_off(before.len().saturating_sub(SHOWN_BEFORE));
    let overlapping = |fact: &KeyFact| fact.start <= stuck.end && fact.end >= stuck.start;
    let (uncertain, certain): (Vec<usize>, Vec<usize>) = (0..facts.len())
        .filter(|place| overlapping(&facts[*place]))
        .partition(|place| matches!(facts[*place].step, ObservationStep::MayChange(_)));
    shown.extend(certain);
    shown.extend(uncertain.iter().rev().take(SHOWN_BEFORE));
    shown.sort_by_key(|place| facts[*place].start);
    let hidden = facts.iter().filter(|fact| fact.start <= stuck.end).count() - shown.len();
    if hidden > 0 {
        let _ = writeln!(text, "  ({hidden} earlier operations on this key are not shown)");
    }
    for place in shown {
        let mark = if place == at { '>' } else { ' ' };
        let operation = &history.operations[facts[place].operation];
        let _ = write!(text, "{mark} {operation}");
        let is_read_of_many =
            matches!(operation.action, ClientAction::Scan(_) | ClientAction::MultiGet(_));
        if let (true, ObservationStep::Sees(ObservedState::Exactly(value))) =
            (is_read_of_many, facts[place].step)
        {
            let _ = write!(text, ", {key}: {}", StateFormatter(value));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
#[path = "linearizable_tests.rs"]
mod tests;
