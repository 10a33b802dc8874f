//! Contenders of the comparison: indexes that are loaded and then used through sessions, one per
//! thread.
//!
//! Every contender runs the same loop, [`ContenderRound::work`], over the same operations; only the
//! index differs. Operations are drawn before the clock starts, so drawing them does not count.
//!
//! *Invariants*
//! - contender.N1. An operation that fails or does not find its key ends the whole comparison, so
//!   that no contender benefits from missing keys.
//! - contender.N2. All contenders of a round get the same operations.
//!
//! *Thread safety*: a contender runs the sessions of a round on its own threads. A session belongs
//! to one thread.

use crate::keys::{BorrowedKey, LoadedKeys, OwnedLoadedKey};
use anyhow::ensure;
use farleaf_bench::workload::{InsertedCounts, OperationStream, StreamConfig, WorkloadOperation};
use farleaf_fabric::sync::Arc;
use farleaf_index::IndexError;
use std::borrow::Borrow;
use std::future::Future;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// An index that takes part in the comparison.
pub(crate) trait Contender<K: LoadedKeys> {
    /// The name in the table.
    fn name(&self) -> &'static str;

    /// Loads all keys of the space. Called once, before any other operation.
    fn load(&mut self, keys: &K) -> anyhow::Result<()>;

    /// Looks up keys in order, in a single session.
    fn look_up(&self, keys: &[OwnedLoadedKey<K>]) -> anyhow::Result<Vec<Option<K::Value>>>;

    /// Whether it has batch operations that are faster than single ones.
    fn has_groups(&self) -> bool {
        false
    }

    /// Runs `round` with a session per thread, and returns each thread's tally.
    fn run(&self, round: &ContenderRound<K>) -> anyhow::Result<Vec<ThreadTally>>;
}

/// One thread's access to an index. The futures of in-memory indexes are ready at once.
pub(crate) trait ContenderSession<K: LoadedKeys> {
    /// Looks `key` up.
    fn get(
        &self,
        key: &BorrowedKey<K>,
    ) -> impl Future<Output = Result<Option<K::Value>, IndexError>>;

    /// Changes the value of `key`. Returns `false` if the index can tell that the key is missing.
    fn update(
        &self,
        key: &BorrowedKey<K>,
        value: K::Value,
    ) -> impl Future<Output = Result<bool, IndexError>>;

    /// Executes a step alone. Returns whether it found its key.
    #[inline(always)]
    fn execute(
        &self,
        step: &CompactOperation<K>,
    ) -> impl Future<Output = Result<bool, IndexError>> {
        async move {
            match step.value == K::LOOKUP {
                true => Ok(self.get(step.key.borrow()).await?.is_some()),
                false => self.update(step.key.borrow(), step.value).await,
            }
        }
    }

    /// Executes several steps. Returns how many did not find their key.
    #[inline]
    fn execute_all(
        &self,
        steps: &[CompactOperation<K>],
    ) -> impl Future<Output = Result<u64, IndexError>> {
        async move {
            let mut missed = 0;
            for step in steps {
                missed += u64::from(!self.execute(step).await?);
            }
            Ok(missed)
        }
    }
}

/// The work of one thread in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadTally {
    /// Number of operations.
    pub(crate) operations: u64,
    /// Number of lookups and updates that did not find their key.
    pub(crate) missed: u64,
    /// How long they took.
    pub(crate) elapsed: Duration,
}

/// An operation in compact form: the loop reads many of them in order while it searches the index.
#[derive(Debug)]
pub(crate) struct CompactOperation<K: LoadedKeys> {
    pub(crate) key: OwnedLoadedKey<K>,
    /// The new value, or [`LoadedKeys::LOOKUP`]. (Values drawn from a stream are never 0.)
    pub(crate) value: K::Value,
}

/// Steps between two readings of the clock.
const STEPS_PER_CLOCK: usize = 64;

/// The work that each contender does in turn.
#[derive(Debug)]
pub(crate) struct ContenderRound<K: LoadedKeys> {
    /// The steps of each thread.
    steps: Vec<Vec<CompactOperation<K>>>,
    duration: Duration,
    /// Number of steps that a session executes in one call.
    batch: usize,
    /// Lets all threads start together.
    start: Barrier,
}

impl<K: LoadedKeys> ContenderRound<K> {
    /// Draws the operations of `threads` clients, each of which works for `duration`.
    ///
    /// # Errors
    /// If the mix has operations other than lookups and updates.
    pub(crate) fn new(
        keys: &K,
        config: &StreamConfig,
        threads: usize,
        duration: Duration,
    ) -> anyhow::Result<Self> {
        let inserted = Arc::new(InsertedCounts::new(threads, 0));
        let steps_of = |thread| {
            let mut stream = OperationStream::new(config, thread, &inserted);
            let step = |_| match stream.next() {
                Some(WorkloadOperation::Get { key }) => {
                    Ok(CompactOperation { key: keys.key(key), value: K::LOOKUP })
                }
                Some(WorkloadOperation::Update { key, value }) => {
                    Ok(CompactOperation { key: keys.key(key), value: K::value(value) })
                }
                other => anyhow::bail!("only lookups and updates are compared, not {other:?}"),
            };
            (0..K::STEPS).map(step).collect()
        };
        let steps = (0..threads).map(steps_of).collect::<anyhow::Result<_>>()?;
        Ok(Self { steps, duration, batch: 1, start: Barrier::new(threads) })
    }

    /// The same operations with another duration.
    pub(crate) fn lasting(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// The same operations, with `batch` of them in each call.
    pub(crate) fn in_calls_of(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.steps.len()
    }

    /// Runs the loop of thread number `thread`, the same code for all contenders.
    ///
    /// # Errors
    /// The error of the first operation that fails.
    #[expect(clippy::disallowed_methods, reason = "this measures real time")]
    pub(crate) async fn work<S: ContenderSession<K>>(
        &self,
        session: &S,
        thread: usize,
    ) -> Result<ThreadTally, IndexError> {
        let (mut operations, mut missed) = (0, 0);
        let mut first_error = None;
        self.start.wait();
        let started = Instant::now();
        'time: loop {
            for steps in self.steps[thread].chunks(STEPS_PER_CLOCK) {
                for call in steps.chunks(self.batch) {
                    let outcome = match call {
                        [step] => session.execute(step).await.map(|found| u64::from(!found)),
                        _ => session.execute_all(call).await,
                    };
                    match outcome {
                        Ok(count) => missed += count,
                        Err(error) => {
                            first_error = Some(error);
                            break 'time;
                        }
                    }
                }
                operations += steps.len() as u64;
                if started.elapsed() >= self.duration {
                    break 'time;
                }
            }
        }
        match first_error {
            Some(error) => Err(error),
            None => Ok(ThreadTally { operations, missed, elapsed: started.elapsed() }),
        }
    }
}

/// Runs a round and checks it. Returns millions of operations per second, summed over all threads.
///
/// # Errors
/// If an operation fails or does not find its key (contender.N1).
pub(crate) fn measure<K: LoadedKeys>(
    contender: &dyn Contender<K>,
    round: &ContenderRound<K>,
) -> anyhow::Result<f64> {
    let tallies = contender.run(round)?;
    let missed: u64 = tallies.iter().map(|tally| tally.missed).sum();
    ensure!(missed == 0, "{}: {missed} operations did not find their key", contender.name());
    let rate = |tally: &ThreadTally| tally.operations as f64 / tally.elapsed.as_secs_f64() / 1e6;
    Ok(tallies.iter().map(rate).sum())
}

/// One in this many keys is looked up after the load.
const VERIFY_EVERY: usize = 1_000;

/// Checks samples of a loaded index: loaded keys have their values, and other keys have none.
///
/// # Errors
/// If a sampled key has the wrong value.
pub(crate) fn verify<K: LoadedKeys>(contender: &dyn Contender<K>, keys: &K) -> anyhow::Result<()> {
    let (name, numbers) = (contender.name(), keys.space());
    let places = || (0..numbers.len()).step_by(VERIFY_EVERY);
    let loaded: Vec<_> = places().map(|place| keys.key(numbers.key(place))).collect();
    for ((place, key), found) in places().zip(&loaded).zip(contender.look_up(&loaded)?) {
        let expected = Some(K::value(numbers.value(place)));
        ensure!(found == expected, "{name}: the value of {key:?} is {found:?}");
    }
    let absent = places().filter_map(|place| numbers.new_key(place, 0));
    let absent: Vec<_> = absent.map(|number| keys.key(number)).collect();
    for (key, found) in absent.iter().zip(contender.look_up(&absent)?) {
        ensure!(found.is_none(), "{name}: {key:?}, never loaded, has a value");
    }
    Ok(())
}
