//! The clients of `farleaf torture`, and the reads at the end.
//!
//! *Invariants*: every value is written at most once, so an answer names the operation whose value
//! it saw. Invocations and returns of all clients are recorded on one clock.
//!
//! *Thread safety*: all clients share a [`TortureRun`].

use farleaf_cluster::clock::MonotonicClock;
use farleaf_cluster::stop::StopSignal;
use farleaf_command_line::output::grouped;
use farleaf_history::{ClientAction, History, HistoryRecorder, OperationOutcome};
use farleaf_index::{IndexError, Naming, RangeIndex, ScanRequest};
use farleaf_page::{NamedLayout, OwnedKey, OwnedValue};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of operations of a history: about 300 bytes each while they are checked.
const MAX_OPERATIONS: u64 = 2_000_000;
/// Pause of a client after an operation that failed without effect.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);
/// Maximum pause of a client whose operations are paced, and the time for which it looks ahead.
const PACE_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of records of a scan between other operations.
const MAX_SCANNED: usize = 20;
/// Maximum number of records of one scan at the end.
const RECORDS_PER_SCAN: usize = 1000;
/// How long a read at the end is repeated if it fails.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// The name of a key or a value that no client has written. The checker finds it as one that
/// appears from nowhere.
const FOREIGN: u64 = u64::MAX;

/// Names of keys and values ([`NamedLayout`]), in which damaged keys and values have a name, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct TortureNames;

impl<L: NamedLayout> Naming<L> for TortureNames {
    fn key_named(&self, name: u64) -> OwnedKey<L> {
        L::key_named(name)
    }

    fn name_of_key(&self, key: &L::Key) -> Option<u64> {
        L::name_of_key(key).or(Some(FOREIGN))
    }

    fn value_named(&self, name: u64) -> OwnedValue<L> {
        L::value_named(name)
    }

    fn name_of_value(&self, value: &L::Value) -> Option<u64> {
        L::name_of_value(value).or(Some(FOREIGN))
    }
}

/// What all clients of a run share.
#[derive(Debug)]
pub(super) struct TortureRun {
    keys: Vec<u64>,
    seed: u64,
    seconds: Duration,
    clock: MonotonicClock,
    over: StopSignal,
    recorder: HistoryRecorder,
    begun: AtomicU64,
    unknown: AtomicU64,
    failed: AtomicU64,
    /// Reads of unknown outcome.
    unread: AtomicU64,
    was_paced: AtomicBool,
    last_error: Mutex<Option<String>>,
}

impl TortureRun {
    /// Begins a run on this many keys.
    pub(super) fn new(keys: u64, seed: u64, seconds: Duration) -> Self {
        let step = u64::MAX / keys;
        Self {
            keys: (0..keys).map(|number| step / 2 + number * step).collect(),
            seed,
            seconds,
            clock: MonotonicClock::start(),
            over: StopSignal::default(),
            recorder: HistoryRecorder::new(BTreeMap::new()),
            begun: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            was_paced: AtomicBool::new(false),
            last_error: Mutex::new(None),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Lets the clients end after the operations that they have in flight.
    pub(super) fn end(&self) {
        self.over.raise();
    }

    /// Waits until the history has room for another operation; `false` if the run is over. The
    /// room grows with time, so that a long run is not over early.
    fn admit(&self) -> bool {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        while !self.over.is_raised() {
            let share = (self.elapsed() + PACE_PAUSE).as_secs_f64() / self.seconds.as_secs_f64();
            if (number as f64) < MAX_OPERATIONS as f64 * share.min(1.0) {
                return true;
            }
            self.was_paced.store(true, Ordering::Relaxed);
            self.over.wait(PACE_PAUSE);
        }
        self.begun.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Does random operations, one after the other, until the run is over.
    pub(super) async fn work(
        &self,
        index: &impl RangeIndex<Key = u64, Value = u64>,
        number: usize,
    ) {
        let mut choice = ActionChoice::new(&self.keys, self.seed, number);
        while self.admit() {
            let action = choice.next();
            let outcome = self.record(index, number, &action).await;
            choice.observe(&action, &outcome);
            if matches!(outcome, OperationOutcome::Failed(_)) {
                self.over.wait(FAILURE_PAUSE);
            }
        }
    }

    /// Does one operation and records it.
    async fn record(
        &self,
        index: &impl RangeIndex<Key = u64, Value = u64>,
        number: usize,
        action: &ClientAction,
    ) -> OperationOutcome {
        let client = u32::try_from(number).unwrap_or(u32::MAX);
        let ticket = self.recorder.invoke(client, action.clone(), self.clock.now_ns());
        let outcome = perform(index, action).await;
        let outcome = outcome.unwrap_or_else(|error| OperationOutcome::from_error(&error));
        self.recorder.finish(ticket, outcome.clone(), self.clock.now_ns());
        let (count, error) = match &outcome {
            OperationOutcome::Failed(error) => (&self.failed, error),
            OperationOutcome::Indeterminate(error) if is_read(action) => (&self.unread, error),
            OperationOutcome::Indeterminate(error) => (&self.unknown, error),
            _ => return outcome,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut last) = self.last_error.lock() {
            *last = Some(error.clone());
        }
        outcome
    }

    /// Does a read, and repeats it for a while if it fails.
    async fn read(
        &self,
        index: &impl RangeIndex<Key = u64, Value = u64>,
        number: usize,
        action: ClientAction,
    ) -> Result<OperationOutcome, IndexError> {
        let (begun, never) = (self.elapsed(), StopSignal::default());
        loop {
            let outcome = self.record(index, number, &action).await;
            if outcome.is_answer() {
                return Ok(outcome);
            }
            if self.elapsed().saturating_sub(begun) > READ_WITHIN {
                return Err(IndexError::InvalidArgument("the reads at the end are not answered"));
            }
            never.wait(FAILURE_PAUSE);
        }
    }

    /// Reads every key by get, and all records by scans in both directions.
    pub(super) async fn read_all(
        &self,
        index: &impl RangeIndex<Key = u64, Value = u64>,
        number: usize,
    ) -> Result<ContentsRead, IndexError> {
        let mut contents = ContentsRead { keys: self.keys.len(), ..ContentsRead::default() };
        for key in &self.keys {
            let outcome = self.read(index, number, ClientAction::Get(*key)).await?;
            if let OperationOutcome::Value(Some(value)) = outcome {
                contents.gets.insert(*key, value);
            }
        }
        for (reverse, found) in [(false, &mut contents.up), (true, &mut contents.down)] {
            let mut scan = ScanRequest::range(..).limit(RECORDS_PER_SCAN);
            scan.reverse = reverse;
            loop {
                let outcome = self.read(index, number, ClientAction::Scan(scan.clone())).await?;
                let OperationOutcome::Records(records) = outcome else { break };
                found.extend_from_slice(&records);
                let Some((last, _)) = records.last().filter(|_| records.len() >= RECORDS_PER_SCAN)
                else {
                    break;
                };
                let behind = if reverse { &mut scan.upper } else { &mut scan.lower };
                *behind = Bound::Excluded(*last);
            }
        }
        contents.down.reverse();
        Ok(contents)
    }

    /// The history, without what establishes nothing.
    pub(super) fn take(&self) -> History {
        without_idle(self.recorder.take())
    }

    /// The history while clients still wait for answers.
    pub(super) fn so_far(&self) -> History {
        without_idle(self.recorder.so_far())
    }

    /// What has been done so far.
    pub(super) fn progress(&self) -> String {
        let count = |count: &AtomicU64| grouped(count.load(Ordering::Relaxed));
        format!("{} operations, {} unknown", count(&self.begun), count(&self.unknown))
    }

    /// What is not in the history.
    pub(super) fn dropped(&self) -> String {
        let count = |count: &AtomicU64| grouped(count.load(Ordering::Relaxed));
        format!(
            "not in the history: {} operations that failed without effect, {} reads without an answer",
            count(&self.failed),
            count(&self.unread)
        )
    }

    /// Says that the limit of the history was reached, if it was.
    pub(super) fn paced(&self) -> Option<String> {
        let most = grouped(MAX_OPERATIONS);
        let line = format!("the clients were slowed down: a history has at most {most} operations");
        self.was_paced.load(Ordering::Relaxed).then_some(line)
    }

    /// The error of the last operation that had one.
    pub(super) fn last_error(&self) -> String {
        let last = self.last_error.lock().ok().and_then(|last| last.clone());
        last.unwrap_or_else(|| "the time was too short".to_owned())
    }
}

/// A history without the operations that establish nothing: those that failed without effect, and
/// reads of unknown outcome.
fn without_idle(mut history: History) -> History {
    history.operations.retain(|operation| match &operation.outcome {
        OperationOutcome::Failed(_) => false,
        outcome => !(outcome.is_uncertain() && is_read(&operation.action)),
    });
    history
}

fn is_read(action: &ClientAction) -> bool {
    matches!(action, ClientAction::Get(_) | ClientAction::Scan(_))
}

async fn perform(
    index: &impl RangeIndex<Key = u64, Value = u64>,
    action: &ClientAction,
) -> Result<OperationOutcome, IndexError> {
    Ok(match action {
        ClientAction::Get(key) => OperationOutcome::Value(index.get(key).await?),
        ClientAction::Scan(scan) => OperationOutcome::Records(index.scan(scan).await?),
        ClientAction::CompareExchange { key, expected, new } => {
            OperationOutcome::Exchange(index.compare_exchange(key, expected, new).await?)
        }
        action => {
            let other = IndexError::InvalidArgument("no client does such an operation");
            action.outcome(index.execute(action.as_edit().ok_or(other)?).await?)
        }
    })
}

/// Chooses the operations of one client.
struct ActionChoice<'a> {
    keys: &'a [u64],
    rng: SmallRng,
    /// The next value: the client in the upper half, a count in the lower.
    value: u64,
    /// The last key that the client knows the value of.
    known: Option<(u64, u64)>,
}

impl<'a> ActionChoice<'a> {
    fn new(keys: &'a [u64], seed: u64, number: usize) -> Self {
        let client = number as u64 + 1;
        let rng = SmallRng::seed_from_u64(seed ^ client.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { keys, rng, value: client << 32, known: None }
    }

    fn next(&mut self) -> ClientAction {
        let key = self.keys[self.rng.random_range(0..self.keys.len())];
        self.value += 1;
        let new = self.value;
        match (self.rng.random_range(0..100), self.known) {
            (0..30, _) => ClientAction::Get(key),
            (30..52, _) => ClientAction::Upsert(key, new),
            (52..62, _) => ClientAction::Insert(key, new),
            (62..72, _) => ClientAction::Update(key, new),
            (72..84, _) => ClientAction::Remove(key),
            (84..97, Some((key, expected))) => ClientAction::CompareExchange { key, expected, new },
            (84..97, None) => ClientAction::Get(key),
            _ => {
                let limit = self.rng.random_range(1..=MAX_SCANNED);
                ClientAction::Scan(match self.rng.random_range(0..2) {
                    0 => ScanRequest::range(key..).limit(limit),
                    _ => ScanRequest::range(..=key).limit(limit).reverse(),
                })
            }
        }
    }

    /// Remembers what the client knows of a key.
    fn observe(&mut self, action: &ClientAction, outcome: &OperationOutcome) {
        self.known = match (action, outcome) {
            (ClientAction::Get(key), OperationOutcome::Value(Some(value))) => Some((*key, *value)),
            (ClientAction::Upsert(key, value), OperationOutcome::Done)
            | (
                ClientAction::Insert(key, value) | ClientAction::Update(key, value),
                OperationOutcome::Applied(true),
            ) => Some((*key, *value)),
            (ClientAction::Remove(_) | ClientAction::CompareExchange { .. }, _) => None,
            _ => self.known,
        };
    }
}

/// What the reads at the end have found.
#[derive(Clone, Debug, Default)]
pub(super) struct ContentsRead {
    /// Number of keys that were asked for.
    pub(super) keys: usize,
    pub(super) gets: BTreeMap<u64, u64>,
    /// The records of the scan upwards, and of the one downwards; both ascend.
    pub(super) up: Vec<(u64, u64)>,
    pub(super) down: Vec<(u64, u64)>,
}

impl ContentsRead {
    /// The first difference between the ways to read, as a line.
    pub(super) fn difference(&self) -> Option<String> {
        let text =
            |value: Option<&u64>| value.map_or("absent".to_owned(), |value| format!("{value:#x}"));
        for (direction, records) in [("upwards", &self.up), ("downwards", &self.down)] {
            let scanned: BTreeMap<u64, u64> = records.iter().copied().collect();
            let mut keys = self.gets.keys().chain(scanned.keys());
            if let Some(key) = keys.find(|key| self.gets.get(key) != scanned.get(key)) {
                let (get, scan) = (text(self.gets.get(key)), text(scanned.get(key)));
                return Some(format!(
                    "key {key} is {get} by get, and {scan} by a scan {direction}"
                ));
            }
            let (count, found) = (records.len(), self.gets.len());
            if count != found {
                return Some(format!(
                    "gets find {found} keys, and a scan {direction} counts {count}"
                ));
            }
        }
        None
    }

    /// What is there, as a line.
    pub(super) fn summary(&self) -> String {
        let [present, keys] = [self.gets.len(), self.keys].map(|count| grouped(count as u64));
        format!(
            "{present} of {keys} keys are present at the end, read by get and by scans in both directions"
        )
    }
}
