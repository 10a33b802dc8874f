//! What is compared: an index that can be loaded, and sessions on it that threads work through.
//!
//! Every contender runs the very same loop, [`Round::work`], over the same operations; what differs is the
//! index below. Operations are drawn before the clock starts, so that drawing them costs nobody anything.
//!
//! *Invariants*: N1. an operation that does not find its key, or fails, ends the whole comparison: nobody
//! wins by not finding keys. N2. all contenders of one round get the same operations.
//!
//! *Thread safety*: a contender's round runs its sessions on threads of its own; a session belongs to one.

use anyhow::ensure;
use farleaf::index::IndexError;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::workload::{Inserted, Operation, OperationStream, StreamConfig};
use farleaf_fabric::sync::Arc;
use std::future::Future;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// An index in the comparison.
pub(crate) trait Contender {
    /// What the table calls it.
    fn name(&self) -> &'static str;

    /// Fills it with all keys of the space. Called once, before all else.
    fn load(&mut self, keys: &KeySpace) -> anyhow::Result<()>;

    /// Looks keys up by one session, in their order.
    fn look_up(&self, keys: &[u64]) -> anyhow::Result<Vec<Option<u64>>>;

    /// Runs `round`, each thread with a session of its own; what each of them did.
    fn run(&self, round: &Round) -> anyhow::Result<Vec<Tally>>;
}

/// One thread's way to an index. The futures of indexes in memory are ready at once.
pub(crate) trait Session {
    /// The value of `key`.
    fn get(&self, key: u64) -> impl Future<Output = Result<Option<u64>, IndexError>>;

    /// Changes the value of `key`, which is there; `false` if it is not, as far as the index can tell.
    fn update(&self, key: u64, value: u64) -> impl Future<Output = Result<bool, IndexError>>;
}

/// One thread's work in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    /// Operations done.
    pub(crate) operations: u64,
    /// Of these, lookups and updates that did not find their key.
    pub(crate) missed: u64,
    /// How long they took.
    pub(crate) elapsed: Duration,
}

/// An operation, as small as can be: many of them are read in order while the index is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    key: u64,
    /// The new value; 0 is a lookup. (Values of a stream are never 0.)
    value: u64,
}

/// Steps of each thread; a fast index goes through them several times in a round.
const STEPS: usize = 1 << 21;

/// Steps between two looks at the clock.
const STEPS_PER_CLOCK: usize = 64;

/// The work that each contender gets in turn.
#[derive(Debug)]
pub(crate) struct Round {
    /// One list for each thread.
    steps: Vec<Vec<Step>>,
    duration: Duration,
    /// Where the threads wait for each other before they start.
    start: Barrier,
}

impl Round {
    /// The operations of `threads` clients, each for so long.
    ///
    /// # Errors
    /// If there are other operations than lookups and updates among them.
    pub(crate) fn new(
        config: &StreamConfig,
        threads: usize,
        duration: Duration,
    ) -> anyhow::Result<Self> {
        let inserted = Arc::new(Inserted::new(threads, 0));
        let steps_of = |thread| {
            let mut stream = OperationStream::new(config, thread, &inserted);
            let step = |_| match stream.next() {
                Some(Operation::Get { key }) => Ok(Step { key, value: 0 }),
                Some(Operation::Update { key, value }) => Ok(Step { key, value }),
                other => anyhow::bail!("only lookups and updates are compared, not {other:?}"),
            };
            (0..STEPS).map(step).collect()
        };
        let steps = (0..threads).map(steps_of).collect::<anyhow::Result<_>>()?;
        Ok(Self { steps, duration, start: Barrier::new(threads) })
    }

    /// The same operations, for so long.
    pub(crate) fn lasting(self, duration: Duration) -> Self {
        Self { duration, ..self }
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.steps.len()
    }

    /// The loop of thread number `thread`: the same code for all contenders.
    ///
    /// # Errors
    /// That of the first operation that fails.
    #[expect(clippy::disallowed_methods, reason = "this measures real time")]
    pub(crate) async fn work<S: Session>(
        &self,
        session: &S,
        thread: usize,
    ) -> Result<Tally, IndexError> {
        let (mut operations, mut missed) = (0, 0);
        let mut first_error = None;
        self.start.wait();
        let started = Instant::now();
        'time: loop {
            for steps in self.steps[thread].chunks(STEPS_PER_CLOCK) {
                for step in steps {
                    let found = match step.value {
                        0 => session.get(step.key).await.map(|value| value.is_some()),
                        value => session.update(step.key, value).await,
                    };
                    match found {
                        Ok(found) => missed += u64::from(!found),
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
            None => Ok(Tally { operations, missed, elapsed: started.elapsed() }),
        }
    }
}

/// Runs a round and checks it; millions of operations a second, of all threads together.
///
/// # Errors
/// If an operation fails or does not find its key (N1).
pub(crate) fn measure(contender: &dyn Contender, round: &Round) -> anyhow::Result<f64> {
    let tallies = contender.run(round)?;
    let missed: u64 = tallies.iter().map(|tally| tally.missed).sum();
    ensure!(missed == 0, "{}: {missed} operations did not find their key", contender.name());
    let rate = |tally: &Tally| tally.operations as f64 / tally.elapsed.as_secs_f64() / 1e6;
    Ok(tallies.iter().map(rate).sum())
}

/// Of so many keys one is looked up after the load.
const VERIFY_EVERY: usize = 1_000;

/// Checks that a loaded index has the keys, and no others.
///
/// # Errors
/// If it has not.
pub(crate) fn verify(contender: &dyn Contender, keys: &KeySpace) -> anyhow::Result<()> {
    let places = || (0..keys.len()).step_by(VERIFY_EVERY);
    let loaded: Vec<u64> = places().map(|place| keys.key(place)).collect();
    for (place, found) in places().zip(contender.look_up(&loaded)?) {
        let (name, key) = (contender.name(), keys.key(place));
        ensure!(found == Some(keys.value(place)), "{name}: the value of {key} is {found:?}");
    }
    let absent: Vec<u64> = places().filter_map(|place| keys.new_key(place, 0)).collect();
    for (key, found) in absent.iter().zip(contender.look_up(&absent)?) {
        ensure!(found.is_none(), "{}: {key}, never loaded, has a value", contender.name());
    }
    Ok(())
}
