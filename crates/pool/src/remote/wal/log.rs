//! What the writers of one compute server share: which numbers are durable, and the rings that no
//! writer uses.
//!
//! *Thread safety*: any number of threads; a mutex that is never held across a wait.

use super::batch::OpenBatch;
use super::ring::WalRing;
use crate::remote::ChangeSignal;
use crate::wire::MAX_RINGS;
use farleaf_fabric::sync::{AtomicU64, Mutex, ObjectArc, Ordering, lock};
use std::fmt::Debug;

/// A ring without pending records.
const NOTHING: u64 = u64::MAX;
/// The pending records of writers that have ended, which no ring has yet.
const ORPHANS: usize = MAX_RINGS as usize;

/// What a log needs to know of the numbers of its records.
pub trait WalSource: Debug + Send + Sync {
    /// The highest number up to which every record is in a batch, or will never be (log.L1).
    fn settled(&self) -> u64;

    /// The number below which everything is in the pool (log.L4).
    fn low(&self) -> u64;
}

/// On a cache line of its own: each ring's writer changes it with each record.
#[derive(Debug)]
#[repr(align(128))]
struct PendingLine(AtomicU64);

/// The log of one compute server.
#[derive(Debug)]
pub struct Wal {
    source: ObjectArc<dyn WalSource>,
    ring_bytes: u64,
    /// 0 before the first writer was opened.
    life: AtomicU64,
    /// The lowest number of each ring that is not durable, and of the orphans. Those of rings that
    /// were used are read under the mutex, under which numbers move from one to another.
    pending: Box<[PendingLine]>,
    durable: AtomicU64,
    /// The highest low that a durable batch has told.
    durable_low: AtomicU64,
    /// Raised when a batch has become durable, and when room was given back that others wait for.
    pub(super) progress: ChangeSignal,
    inner: Mutex<WalInner>,
}

#[derive(Debug, Default)]
struct WalInner {
    /// Number of rings that were used so far.
    rings: u16,
    /// Rings at rest.
    idle: Vec<WalRing>,
    /// Numbers of rings that could not be opened.
    free: Vec<u16>,
    /// Batches of writers that have ended before these were durable.
    orphans: Vec<OpenBatch>,
}

impl WalInner {
    fn lowest_orphan(&self) -> u64 {
        self.orphans.iter().map(|batch| batch.numbers.0).min().unwrap_or(NOTHING)
    }
}

impl Wal {
    /// A log whose writers have rings of `ring_bytes` bytes each, a multiple of 4096.
    pub fn new(source: ObjectArc<dyn WalSource>, ring_bytes: u64) -> Self {
        Self {
            source,
            ring_bytes,
            life: AtomicU64::new(super::NO_LIFE),
            pending: (0..=ORPHANS).map(|_| PendingLine(AtomicU64::new(NOTHING))).collect(),
            durable: AtomicU64::new(0),
            durable_low: AtomicU64::new(0),
            progress: ChangeSignal::default(),
            inner: Mutex::default(),
        }
    }

    /// Bytes of each ring.
    pub(super) fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// The number of the compute server's life: `drawn`, unless there is one already.
    pub(super) fn life(&self, drawn: u64) -> u64 {
        let (none, drawn) = (super::NO_LIFE, drawn.max(super::NO_LIFE + 1));
        let set = self.life.compare_exchange(none, drawn, Ordering::AcqRel, Ordering::Acquire);
        set.map_or_else(|life| life, |_| drawn)
    }

    /// A ring at rest, or the number of a new one. `None` if there are no more.
    pub(super) fn take_ring(&self) -> Option<Result<WalRing, u16>> {
        let mut inner = lock(&self.inner);
        if let Some(ring) = inner.idle.pop() {
            return Some(Ok(ring));
        }
        if let Some(number) = inner.free.pop() {
            return Some(Err(number));
        }
        let number = inner.rings;
        (number < MAX_RINGS).then(|| {
            inner.rings += 1;
            Err(number)
        })
    }

    /// Takes back the number of a ring that could not be opened.
    pub(super) fn give_number(&self, number: u16) {
        lock(&self.inner).free.push(number);
    }

    /// Takes back the ring of a writer that has ended. A WRITE that has not completed may still
    /// land there: such a ring is not used again in this life, and what is not durable in it goes
    /// to the next writer.
    pub(super) fn give_ring(&self, ring: WalRing) {
        let number = usize::from(ring.number);
        let mut inner = lock(&self.inner);
        match ring.into_unfinished() {
            Ok(ring) => inner.idle.push(ring),
            Err(unfinished) => inner.orphans.extend(unfinished),
        }
        self.pending[ORPHANS].0.store(inner.lowest_orphan(), Ordering::Release);
        self.pending[number].0.store(NOTHING, Ordering::Release);
        drop(inner);
        self.progress.raise();
    }

    /// Gives the batches of writers that have ended to the ring of another one.
    pub(super) fn adopt_orphans(&self, ring: &mut WalRing, reserved: u64) {
        if self.pending[ORPHANS].0.load(Ordering::Acquire) == NOTHING {
            return;
        }
        let mut inner = lock(&self.inner);
        ring.adopt(&mut inner.orphans, reserved);
        self.note_pending(ring);
        self.pending[ORPHANS].0.store(inner.lowest_orphan(), Ordering::Release);
    }

    /// Notes the lowest number of `ring` that is not durable.
    pub(super) fn note_pending(&self, ring: &WalRing) {
        let lowest = ring.lowest_pending().unwrap_or(NOTHING);
        self.pending[usize::from(ring.number)].0.store(lowest, Ordering::Release);
    }

    /// The highest number that is known to be durable with all below it.
    #[inline]
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Finds out the durable bound. Each bound that was found stays right: a number up to it is in
    /// no batch that is still to be made.
    pub(super) fn advance(&self) -> u64 {
        // First the numbers, then the rings: a record is in a ring before its number is settled.
        let settled = self.source.settled();
        let inner = lock(&self.inner);
        let used = &self.pending[..usize::from(inner.rings)];
        let pending = used.iter().chain([&self.pending[ORPHANS]]);
        let pending = pending.map(|ring| ring.0.load(Ordering::Acquire));
        let bound = pending.fold(settled.saturating_add(1), u64::min).saturating_sub(1);
        drop(inner);
        self.durable.fetch_max(bound, Ordering::AcqRel).max(bound)
    }

    /// Finds out the durable bound, and wakes whoever waits for it.
    pub(super) fn progressed(&self) {
        self.advance();
        self.progress.raise();
    }

    /// The number below which everything is in the pool now.
    pub(super) fn low(&self) -> u64 {
        self.source.low()
    }

    /// Notes that a durable batch has told `low`.
    pub(super) fn note_durable_low(&self, low: u64) {
        self.durable_low.fetch_max(low, Ordering::AcqRel);
    }

    /// The highest low that a durable batch has told.
    pub(super) fn durable_low(&self) -> u64 {
        self.durable_low.load(Ordering::Acquire)
    }
}
