//! One compute server. It serves only the keys that the map assigns to it, and nothing while it is
//! halted.
//!
//! *Invariant* Q3: once a caller has halted a compute server and has then seen no operation in
//! flight, none begins before the server resumes. For this, an operation first counts itself and
//! then checks whether it may begin.
//!
//! *Thread safety*: any number of threads.

use super::right::{RightToAnswer, TakeoverOptions};
use super::{LoadSamples, MapState, PartitionMap};
use crate::{IndexError, PartState, Partitioned};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use farleaf_page::{Layout, OwnedKey};
use farleaf_pool::remote::FailureDetector;
use farleaf_pool::wire::NO_LOAD;

/// One incarnation of a compute server: from the moment when its first thread opens the index until
/// it dies, ends or serves another index. What it has not written back dies with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    /// A number that no other incarnation has.
    pub(super) number: u64,
    /// When it began, on the clock of its endpoints.
    pub(super) began_ns: u64,
}

/// A compute server and its current map.
#[derive(Debug)]
pub struct ComputeServer<D: Partitioned, L: Layout> {
    number: u16,
    state: Arc<D::State<L>>,
    map: Mutex<Arc<PartitionMap<OwnedKey<L>>>>,
    /// The epoch of `map`, for checking cheaply whether the map has changed.
    epoch: AtomicU64,
    /// Known once a thread has opened the index.
    incarnation: Mutex<Option<Incarnation>>,
    samples: LoadSamples<OwnedKey<L>>,
    /// One operation in this many is a load sample.
    sampled_one_in: u32,
    /// Whether a thread is taking part in a move of keys.
    moving: AtomicBool,
    /// Number of operations in flight for clients in other processes.
    under_way: AtomicU64,
    /// [`SERVES`], [`HALTED`] or [`RESUMES`]. Changes under the lock of `halt`.
    mode: AtomicU64,
    /// The latest halt.
    halt: Mutex<HaltedServer>,
    /// Whether a thread may be replacing the tree by a bulk load.
    replacing: AtomicBool,
    /// Whether a memory server had little memory left when it was last asked.
    is_memory_low: AtomicBool,
    /// Its right to answer, where keys of dead compute servers are taken over.
    right: Option<RightToAnswer>,
}

/// Default of how many operations there are per load sample.
const SAMPLED_ONE_IN: u32 = 64;

const SERVES: u64 = 0;
const HALTED: u64 = 1;
const RESUMES: u64 = 2;

/// A halt of a compute server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HaltedServer {
    /// The bulk load that asked for it, or [`NO_LOAD`].
    pub(super) load: u64,
    /// The highest version of the map record at which a load may replace the tree meanwhile. Only a
    /// later version lets the server resume (record.MR3).
    pub(super) version: u64,
    /// The server resumes by itself after this time.
    until_ns: u64,
}

/// The result of [`ComputeServer::halt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HaltOutcome {
    Halted,
    /// It is being resumed: try again.
    Resumes,
    /// It has halted for another load, which has time left.
    Another,
}

/// The right to move keys. Dropping it permits the next move.
#[derive(Debug)]
pub(super) struct MoveRight<'a>(&'a AtomicBool);

impl<'a> MoveRight<'a> {
    /// Claims the right. `None` while another caller has it, unless it may be shared.
    pub(super) fn begin(moving: &'a AtomicBool, is_shared: bool) -> Option<Self> {
        // Not `then_some`: it would create a guard and drop it, which ends the move in progress.
        let is_free = !moving.swap(true, Ordering::Acquire);
        (is_free || is_shared).then(|| Self(moving))
    }
}

impl Drop for MoveRight<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// One operation in flight. Dropping it ends the operation.
#[derive(Debug)]
pub(super) struct OperationInFlight<'a>(&'a AtomicU64);

impl Drop for OperationInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<D: Partitioned, L: Layout> ComputeServer<D, L> {
    pub(super) fn new(
        number: u16,
        state: D::State<L>,
        map: Arc<PartitionMap<OwnedKey<L>>>,
    ) -> Self {
        let epoch = AtomicU64::new(map.epoch());
        Self {
            number,
            state: Arc::new(state),
            map: Mutex::new(map),
            epoch,
            incarnation: Mutex::new(None),
            samples: LoadSamples::default(),
            sampled_one_in: SAMPLED_ONE_IN,
            moving: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
            mode: AtomicU64::new(SERVES),
            halt: Mutex::default(),
            replacing: AtomicBool::new(false),
            is_memory_low: AtomicBool::new(false),
            right: None,
        }
    }

    /// Creates a compute server with an empty cache, which uses all memory servers.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the cache's memory cannot be allocated.
    pub fn start(
        number: u16,
        options: &D::ServerOptions,
        map: PartitionMap<OwnedKey<L>>,
    ) -> Result<Self, IndexError> {
        let state = D::start(options, number, map.range_of(number), Arc::default())?;
        Ok(Self::new(number, state, Arc::new(map)))
    }

    /// Makes one operation in `one_in` a load sample.
    #[must_use]
    pub fn sampling(self, one_in: u32) -> Self {
        Self { sampled_one_in: one_in, ..self }
    }

    /// Takes over the keys of dead compute servers, and answers only while no other one can have
    /// taken over its own.
    #[must_use]
    pub fn taking_over(self, options: Option<TakeoverOptions>) -> Self {
        Self { right: options.map(RightToAnswer::new), ..self }
    }

    /// Its right to answer; `None` where keys are not taken over.
    #[inline]
    pub(super) fn right(&self) -> Option<&RightToAnswer> {
        self.right.as_ref()
    }

    /// Whether it knows that it was declared dead. Then it must end: only another life can serve.
    pub fn was_declared_dead(&self) -> bool {
        self.right().is_some_and(RightToAnswer::is_lost)
    }

    /// Whether a record takes keys from it that it has not released: then its life was declared
    /// dead. A life looks once more when all of its endpoints are open, before it serves: the fence
    /// of a later takeover cuts them off (over.T3).
    pub fn lost_keys_by(&self, state: &MapState<OwnedKey<L>>) -> bool {
        if state.moving.as_ref().is_some_and(|pending| pending.dead && pending.from == self.number)
        {
            return true;
        }
        let (owns, held) = (state.map.range_of(self.number), self.state.range());
        state.map.epoch() > self.epoch()
            && !held.is_empty()
            && !owns.covers(&held.low, held.high.as_ref())
    }

    /// Takeovers that it has completed.
    pub fn takeovers(&self) -> u64 {
        self.right().map_or(0, |right| right.takeovers.load(Ordering::Relaxed))
    }

    /// One operation in this many is a load sample.
    pub(super) fn sampled_one_in(&self) -> u32 {
        self.sampled_one_in
    }

    /// Claims the right to take part in a move of keys, which one thread at a time can hold.
    pub(super) fn begin_move(&self) -> Option<MoveRight<'_>> {
        MoveRight::begin(&self.moving, false)
    }

    /// Counts an operation as in flight, if the server is serving (Q3).
    pub(super) fn enter(&self) -> Option<OperationInFlight<'_>> {
        // SeqCst: either this thread sees the halt, or the halting thread sees this count.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let entered = OperationInFlight(&self.under_way);
        (self.mode.load(Ordering::SeqCst) == SERVES).then_some(entered)
    }

    /// Halts the server until `until_ns`, or until it is resumed, so that `load` may replace the
    /// tree at this version of the map record. After this, wait for [`ComputeServer::is_idle`]. A
    /// halt for another load counts until its time is over, however often others ask meanwhile.
    pub(super) fn halt(&self, load: u64, version: u64, now_ns: u64, until_ns: u64) -> HaltOutcome {
        let mut held = lock(&self.halt);
        let mode = self.mode.load(Ordering::SeqCst);
        if mode == RESUMES {
            return HaltOutcome::Resumes;
        }
        let is_halted = mode == HALTED;
        if is_halted && load != NO_LOAD && held.load != load && held.until_ns > now_ns {
            return HaltOutcome::Another;
        }
        // A late request must not take back a later version: a load may replace the tree at it.
        let version = if is_halted { version.max(held.version) } else { version };
        *held = HaltedServer { load, version, until_ns };
        self.mode.store(HALTED, Ordering::SeqCst);
        HaltOutcome::Halted
    }

    /// Whether no operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) == 0
    }

    /// Whether the server has halted so that `load` may replace the tree at `version`.
    pub(super) fn has_halted(&self, load: u64, version: u64) -> bool {
        let held = lock(&self.halt);
        let is_halted = self.mode.load(Ordering::SeqCst) == HALTED;
        is_halted && (held.load, held.version) == (load, version)
    }

    /// Claims the right to resume, which one caller at a time can hold. `None` if the server is
    /// serving, is being resumed, or is halted for another load than `load`, or without one until
    /// later than `now_ns`.
    pub(super) fn begin_resume(
        &self,
        load: Option<u64>,
        now_ns: u64,
    ) -> Option<ResumeRight<'_, D, L>> {
        if self.mode.load(Ordering::SeqCst) != HALTED {
            return None;
        }
        let held = lock(&self.halt);
        let is_over = load.map_or(held.until_ns <= now_ns, |load| held.load == load);
        if self.mode.load(Ordering::SeqCst) != HALTED || !is_over {
            return None;
        }
        self.mode.store(RESUMES, Ordering::SeqCst);
        Some(ResumeRight { server: self, halt: *held, then: HALTED })
    }

    /// Notes whether a memory server has little memory left.
    pub(super) fn note_memory(&self, is_low: bool) {
        self.is_memory_low.store(is_low, Ordering::Relaxed);
    }

    /// Whether a memory server had little memory left when it was last asked.
    pub(super) fn is_memory_low(&self) -> bool {
        self.is_memory_low.load(Ordering::Relaxed)
    }

    /// Claims the right to replace the tree, which one thread at a time can hold.
    pub(super) fn begin_replacing(&self) -> Option<ReplaceRight<'_>> {
        let is_free = !self.replacing.swap(true, Ordering::AcqRel);
        is_free.then(|| ReplaceRight(&self.replacing))
    }

    /// Whether a thread may be replacing the tree.
    pub(super) fn is_replacing(&self) -> bool {
        self.replacing.load(Ordering::Acquire)
    }

    /// Its number in the map.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The range that it owns, and its cache.
    pub fn state(&self) -> &Arc<D::State<L>> {
        &self.state
    }

    /// Samples of the operations on its keys.
    pub fn samples(&self) -> &LoadSamples<OwnedKey<L>> {
        &self.samples
    }

    /// Which memory servers it can reach.
    pub fn detector(&self) -> &FailureDetector {
        self.state.detector()
    }

    /// Its incarnation, which begins with the first call.
    pub(super) fn incarnation(&self, fabric: &impl Fabric) -> Incarnation {
        let begin = || Incarnation { number: fabric.unique(), began_ns: fabric.now_ns() };
        *lock(&self.incarnation).get_or_insert_with(begin)
    }

    /// The epoch of its map, if it serves exactly the range that this map gives it: no keys are
    /// moving to or from it.
    pub(super) fn settled_epoch(&self) -> Option<u64> {
        let map = self.map();
        let is_settled = self.state.range().is_same(&map.range_of(self.number));
        // Keys may have left and come back since the map was read.
        (is_settled && self.epoch() == map.epoch()).then(|| map.epoch())
    }

    /// The epoch of its current map.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Its current map.
    pub fn map(&self) -> Arc<PartitionMap<OwnedKey<L>>> {
        Arc::clone(&lock(&self.map))
    }

    /// Switches to `map` if it is newer. Call this only while no operation is in flight here, or if
    /// the server's range is already the one in `map`.
    pub fn set_map(&self, map: &Arc<PartitionMap<OwnedKey<L>>>) {
        let mut held = lock(&self.map);
        if map.epoch() > held.epoch() {
            *held = Arc::clone(map);
            let range = map.range_of(self.number);
            if self.state.range() != range {
                self.state.set_range(range);
            }
            self.epoch.store(map.epoch(), Ordering::Release);
        }
    }

    /// Accepts an operation on a key, or names the owner.
    ///
    /// # Errors
    /// [`IndexError::NotOwner`] if another compute server owns the key.
    pub fn accept(&self, key: &L::Key) -> Result<(), IndexError> {
        let map = lock(&self.map);
        match map.owner_of(key) {
            owner if owner == self.number => Ok(()),
            owner => Err(IndexError::NotOwner { owner, epoch: map.epoch() }),
        }
    }
}

/// The right to resume a halted compute server. Dropped without [`ResumeRight::serve`], it leaves
/// the server halted.
pub(super) struct ResumeRight<'a, D: Partitioned, L: Layout> {
    server: &'a ComputeServer<D, L>,
    /// The halt that it ends.
    pub(super) halt: HaltedServer,
    then: u64,
}

impl<D: Partitioned, L: Layout> ResumeRight<'_, D, L> {
    /// Lets the server serve from now on.
    pub(super) fn serve(mut self) {
        self.then = SERVES;
    }
}

impl<D: Partitioned, L: Layout> Drop for ResumeRight<'_, D, L> {
    fn drop(&mut self) {
        let _held = lock(&self.server.halt);
        self.server.mode.store(self.then, Ordering::SeqCst);
    }
}

/// The right to replace the tree.
#[derive(Debug)]
pub(super) struct ReplaceRight<'a>(&'a AtomicBool);

impl Drop for ReplaceRight<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
