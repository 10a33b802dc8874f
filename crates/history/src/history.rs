//! The invocations and outcomes of all client operations in a run: the only evidence of the
//! checkers.
//!
//! *Invariants*
//! - history.H1. Every invocation and every return has its own order number, larger than those of
//!   all earlier events of the run. An operation that returned before another was invoked has the
//!   smaller return number, even within one nanosecond.
//! - history.H2. Operations are ordered by their invocations.
//! - history.H3. The hash is a function of the operations alone, the same on every machine.
//!
//! *Thread safety*: all clients share a [`HistoryRecorder`]; a [`History`] is plain data.

use farleaf_fabric::sync::{Mutex, lock};
use farleaf_index::{EditAnswer, Exchange, IndexError, LeafEdit, ScanRequest};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

/// An operation of a client. Keys and values are those of the fixed 8-byte layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAction {
    /// Looks a key up.
    Get(u64),
    /// Inserts a key with its value.
    Insert(u64, u64),
    /// Updates a key to a new value.
    Update(u64, u64),
    /// Upserts a key with a new value.
    Upsert(u64, u64),
    /// Removes a key.
    Remove(u64),
    /// Exchanges a value if it is the expected one.
    CompareExchange {
        key: u64,
        /// The value that the key must have.
        expected: u64,
        /// The new value.
        new: u64,
    },
    /// Looks up several keys.
    MultiGet(Vec<u64>),
    /// Scans a range.
    Scan(ScanRequest<u64>),
    /// Collects garbage; changes no contents.
    Collect,
    /// Writes back everything acknowledged earlier, so that it survives a crash.
    Flush,
}

impl ClientAction {
    /// The action as an operation on one key, if it is one.
    pub fn as_edit(&self) -> Option<LeafEdit<&u64, &u64>> {
        use farleaf_index::EditAction as On;
        Some(match self {
            Self::Get(key) => LeafEdit { key, action: On::Get },
            Self::Insert(key, value) => LeafEdit { key, action: On::Insert(value) },
            Self::Update(key, value) => LeafEdit { key, action: On::Update(value) },
            Self::Upsert(key, value) => LeafEdit { key, action: On::Upsert(value) },
            Self::Remove(key) => LeafEdit { key, action: On::Remove },
            Self::CompareExchange { key, expected, new } => {
                LeafEdit { key, action: On::CompareExchange(expected, new) }
            }
            _ => return None,
        })
    }

    /// Translates the answer of an operation on one key into an outcome.
    pub fn outcome(&self, answer: EditAnswer<u64>) -> OperationOutcome {
        match self {
            Self::Get(_) => OperationOutcome::Value(answer.found),
            Self::Upsert(..) => OperationOutcome::Done,
            Self::CompareExchange { .. } => OperationOutcome::Exchange(answer.into()),
            _ => OperationOutcome::Applied(answer.applied),
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// The operation never returned: its client died, or the run ended first.
    NoReturn,
    /// The operation may have taken effect, or may do so later; holds the error's text.
    Indeterminate(String),
    /// The operation did not take effect and never will; holds the error's text.
    Failed(String),
    /// The answer of a get.
    Value(Option<u64>),
    /// The answer of an insert, update or remove: whether it changed anything.
    Applied(bool),
    /// The answer of an upsert, a collection or a flush.
    Done,
    /// The answer of a compare-exchange.
    Exchange(Exchange<u64>),
    /// The answer of a multi-get.
    Values(Vec<Option<u64>>),
    /// The answer of a scan.
    Records(Vec<(u64, u64)>),
}

impl OperationOutcome {
    /// The outcome that corresponds to an error.
    pub fn from_error(error: &IndexError) -> Self {
        match error {
            IndexError::Indeterminate(_) => Self::Indeterminate(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }

    /// Whether the client got an answer.
    pub fn is_answer(&self) -> bool {
        !matches!(self, Self::NoReturn | Self::Indeterminate(_) | Self::Failed(_))
    }

    /// Whether it is unknown if the operation took effect.
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::NoReturn | Self::Indeterminate(_))
    }
}

/// A moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HistoryMoment {
    /// Its position among all moments of the run.
    pub order: u64,
    /// The run's time, in nanoseconds; in the simulator it is virtual.
    pub at_ns: u64,
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOperation {
    /// The client, counted from 0. A client has at most one operation in flight.
    pub client: u32,
    /// The requested action.
    pub action: ClientAction,
    /// When it was invoked.
    pub invoked: HistoryMoment,
    /// When it returned, if it did.
    pub returned: Option<HistoryMoment>,
    /// What it returned.
    pub outcome: OperationOutcome,
}

impl ClientOperation {
    /// The order numbers between which the operation took effect, if it did so. An uncertain
    /// operation may take effect at any time after its invocation.
    pub fn span(&self) -> (u64, u64) {
        let end = match self.returned {
            Some(returned) if !self.outcome.is_uncertain() => returned.order,
            _ => u64::MAX,
        };
        (self.invoked.order, end)
    }
}

/// The operations of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Contents of the index before the first operation.
    pub initial: BTreeMap<u64, u64>,
    /// The operations, ordered by invocation.
    pub operations: Vec<ClientOperation>,
}

impl History {
    /// A digest of all events. Runs with the same events have equal hashes.
    pub fn hash(&self) -> u64 {
        let mut hash = FnvHasher::new();
        hash.word(self.initial.len() as u64);
        for (key, value) in &self.initial {
            hash.word(*key);
            hash.word(*value);
        }
        for operation in &self.operations {
            hash.word(u64::from(operation.client));
            hash.action(&operation.action);
            for moment in [Some(operation.invoked), operation.returned] {
                let HistoryMoment { order, at_ns } =
                    moment.unwrap_or(HistoryMoment { order: 0, at_ns: 0 });
                hash.word(order);
                hash.word(at_ns);
            }
            hash.outcome(&operation.outcome);
        }
        hash.0
    }
}

/// Records the history of a run in progress.
#[derive(Debug, Default)]
pub struct HistoryRecorder {
    state: Mutex<Recording>,
}

#[derive(Debug, Default)]
struct Recording {
    next_order: u64,
    history: History,
}

impl Recording {
    fn moment(&mut self, at_ns: u64) -> HistoryMoment {
        self.next_order += 1;
        HistoryMoment { order: self.next_order, at_ns }
    }
}

/// An operation that has been invoked but has not returned yet.
#[derive(Debug)]
#[must_use = "an operation that is not finished counts as one without a return"]
pub struct InvokedOperation(usize);

impl HistoryRecorder {
    /// Creates a recorder for a run on an index with these contents.
    pub fn new(initial: BTreeMap<u64, u64>) -> Self {
        let history = History { initial, operations: Vec::new() };
        Self { state: Mutex::new(Recording { next_order: 0, history }) }
    }

    /// Records that a client invokes an operation now.
    pub fn invoke(&self, client: u32, action: ClientAction, now_ns: u64) -> InvokedOperation {
        let mut recording = lock(&self.state);
        let invoked = recording.moment(now_ns);
        let outcome = OperationOutcome::NoReturn;
        let operation = ClientOperation { client, action, invoked, returned: None, outcome };
        recording.history.operations.push(operation);
        InvokedOperation(recording.history.operations.len() - 1)
    }

    /// Records that the operation returns now.
    pub fn finish(&self, ticket: InvokedOperation, outcome: OperationOutcome, now_ns: u64) {
        let mut recording = lock(&self.state);
        let returned = recording.moment(now_ns);
        let operation = &mut recording.history.operations[ticket.0];
        operation.returned = Some(returned);
        operation.outcome = outcome;
    }

    /// Appends the operations of a round that was recorded separately.
    pub fn append(&self, round: &History) {
        lock(&self.state).history.operations.extend_from_slice(&round.operations);
    }

    /// The history recorded so far.
    pub fn so_far(&self) -> History {
        lock(&self.state).history.clone()
    }

    /// Takes the history recorded so far.
    pub fn take(&self) -> History {
        std::mem::take(&mut lock(&self.state).history)
    }
}

/// FNV-1a over bytes: small, and the same on every machine.
struct FnvHasher(u64);

impl FnvHasher {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn word(&mut self, word: u64) {
        self.bytes(&word.to_le_bytes());
    }

    fn words(&mut self, tag: u64, words: &[u64]) {
        self.word(tag);
        words.iter().for_each(|word| self.word(*word));
    }

    fn text(&mut self, tag: u64, text: &str) {
        self.words(tag, &[text.len() as u64]);
        self.bytes(text.as_bytes());
    }

    fn optional(&mut self, value: Option<u64>) {
        self.words(u64::from(value.is_some()), &[value.unwrap_or(0)]);
    }

    fn bound(&mut self, bound: Bound<u64>) {
        match bound {
            Bound::Unbounded => self.words(0, &[0]),
            Bound::Included(key) => self.words(1, &[key]),
            Bound::Excluded(key) => self.words(2, &[key]),
        }
    }

    fn action(&mut self, action: &ClientAction) {
        match action {
            ClientAction::Get(key) => self.words(1, &[*key]),
            ClientAction::Insert(key, value) => self.words(2, &[*key, *value]),
            ClientAction::Update(key, value) => self.words(3, &[*key, *value]),
            ClientAction::Upsert(key, value) => self.words(4, &[*key, *value]),
            ClientAction::Remove(key) => self.words(5, &[*key]),
            ClientAction::CompareExchange { key, expected, new } => {
                self.words(6, &[*key, *expected, *new]);
            }
            ClientAction::MultiGet(keys) => {
                self.words(7, &[keys.len() as u64]);
                keys.iter().for_each(|key| self.word(*key));
            }
            ClientAction::Scan(scan) => {
                self.words(8, &[u64::from(scan.reverse), scan.limit as u64]);
                self.bound(scan.lower);
                self.bound(scan.upper);
            }
            ClientAction::Collect => self.word(9),
            ClientAction::Flush => self.word(10),
        }
    }

    fn outcome(&mut self, outcome: &OperationOutcome) {
        match outcome {
            OperationOutcome::NoReturn => self.word(1),
            OperationOutcome::Indeterminate(error) => self.text(2, error),
            OperationOutcome::Failed(error) => self.text(3, error),
            OperationOutcome::Value(value) => {
                self.word(4);
                self.optional(*value);
            }
            OperationOutcome::Applied(changed) => self.words(5, &[u64::from(*changed)]),
            OperationOutcome::Done => self.word(6),
            OperationOutcome::Exchange(Exchange::Exchanged) => self.word(7),
            OperationOutcome::Exchange(Exchange::Differs(value)) => {
                self.word(8);
                self.optional(*value);
            }
            OperationOutcome::Values(values) => {
                self.words(9, &[values.len() as u64]);
                values.iter().for_each(|value| self.optional(*value));
            }
            OperationOutcome::Records(records) => {
                self.words(10, &[records.len() as u64]);
                records.iter().for_each(|(key, value)| self.words(*key, &[*value]));
            }
        }
    }
}

impl fmt::Display for ClientAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get(key) => write!(f, "get {key}"),
            Self::Insert(key, value) => write!(f, "insert {key} = {value:#x}"),
            Self::Update(key, value) => write!(f, "update {key} = {value:#x}"),
            Self::Upsert(key, value) => write!(f, "upsert {key} = {value:#x}"),
            Self::Remove(key) => write!(f, "remove {key}"),
            Self::CompareExchange { key, expected, new } => {
                write!(f, "compare-exchange {key}: {expected:#x} -> {new:#x}")
            }
            Self::MultiGet(keys) => write!(f, "multi-get of {} keys", keys.len()),
            Self::Scan(scan) => {
                f.write_str(if scan.reverse { "reverse scan " } else { "scan " })?;
                match scan.lower {
                    Bound::Unbounded => f.write_str("(..")?,
                    Bound::Included(key) => write!(f, "[{key}..")?,
                    Bound::Excluded(key) => write!(f, "({key}..")?,
                }
                match scan.upper {
                    Bound::Unbounded => f.write_str(")")?,
                    Bound::Included(key) => write!(f, "{key}]")?,
                    Bound::Excluded(key) => write!(f, "{key})")?,
                }
                match scan.limit {
                    usize::MAX => Ok(()),
                    limit => write!(f, " limit {limit}"),
                }
            }
            Self::Collect => f.write_str("collect"),
            Self::Flush => f.write_str("flush"),
        }
    }
}

/// Formats a key's state for reports. Values are hexadecimal, because workloads put the writer into
/// the upper half.
pub(crate) struct StateFormatter(pub(crate) Option<u64>);

impl fmt::Display for StateFormatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("absent"),
            Some(value) => write!(f, "{value:#x}"),
        }
    }
}

impl fmt::Display for OperationOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReturn => f.write_str("never returned"),
            Self::Indeterminate(error) | Self::Failed(error) => f.write_str(error),
            Self::Value(value) => StateFormatter(*value).fmt(f),
            Self::Applied(changed) => write!(f, "{changed}"),
            Self::Done => f.write_str("done"),
            Self::Exchange(Exchange::Exchanged) => f.write_str("exchanged"),
            Self::Exchange(Exchange::Differs(value)) => {
                write!(f, "differs: {}", StateFormatter(*value))
            }
            Self::Values(values) => write!(f, "{} values", values.len()),
            Self::Records(records) => write!(f, "{} records", records.len()),
        }
    }
}

impl fmt::Display for ClientOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let returned = match self.returned {
            Some(moment) => moment.at_ns.to_string(),
            None => "-".to_owned(),
        };
        write!(
            f,
            "{:>9} .. {:>9} ns  client {:<2} {} => {}",
            self.invoked.at_ns, returned, self.client, self.action, self.outcome
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(value: u64) -> History {
        let recorder = HistoryRecorder::new(BTreeMap::from([(1, 2)]));
        let first = recorder.invoke(0, ClientAction::Get(1), 10);
        let second = recorder.invoke(1, ClientAction::Upsert(1, value), 10);
        recorder.finish(first, OperationOutcome::Value(Some(2)), 20);
        let third = recorder.invoke(0, ClientAction::Remove(7), 20);
        recorder.finish(third, OperationOutcome::Applied(false), 30);
        drop(second);
        recorder.take()
    }

    #[test]
    fn order_numbers_tell_apart_what_happens_in_one_nanosecond() {
        let history = recorded(9);
        let [first, second, third] = &history.operations[..] else { panic!("three operations") };
        assert!(first.span().1 < third.span().0, "returned before the other was invoked");
        assert_eq!(second.span(), (second.invoked.order, u64::MAX));
        assert_eq!(second.outcome, OperationOutcome::NoReturn);
    }

    #[test]
    fn the_hash_is_pinned_and_depends_on_every_part() {
        let history = recorded(9);
        assert_eq!(history.hash(), recorded(9).hash());
        assert_ne!(history.hash(), recorded(8).hash());
        let mut other = history.clone();
        other.operations[0].outcome = OperationOutcome::Value(None);
        assert_ne!(history.hash(), other.hash());
        // Changing the encoding makes the hashes of earlier runs meaningless. Do it only on
        // purpose.
        assert_eq!(format!("{:016x}", history.hash()), "b17d2a16a4ee76d4");
    }
}
