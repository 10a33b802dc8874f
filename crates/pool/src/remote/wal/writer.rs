//! The writer of one endpoint: appends records to its ring, and waits until numbers are durable.
//!
//! Whoever waits writes: a task whose number is not durable takes the batch that is due, and the
//! others of its thread sleep until that batch has landed. So a group of changes is one WRITE, and
//! a single change needs no other task.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::batch::{BATCH_HEADER_WORDS, WalRecord};
use super::log::Wal;
use super::ring::{BatchToWrite, WalRing};
use super::rings::{ring_of, rings, write_words};
use crate::remote::{RemoteError, RpcClient};
use farleaf_fabric::executor::yield_now;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, ServerId};
use farleaf_page::{Layout, rules};
use std::cell::{Cell, RefCell};

/// For how long an operation waits until a number is durable, or for room, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;
/// The longest sleep in such a wait, in nanoseconds: other threads may have forgotten a batch.
const MAX_SLEEP_NS: u64 = 10_000_000;

/// The log of a compute server, over one endpoint.
#[derive(Debug)]
pub struct WalWriter<F: Fabric, L: Layout> {
    rpc: RpcClient<F, L>,
    wal: Arc<Wal>,
    /// Always there, until the writer is dropped.
    ring: RefCell<Option<WalRing>>,
    /// Words that operations have reserved.
    reserved: Cell<u64>,
    /// Operations that wait for room.
    waiting: Cell<usize>,
    /// Tasks that keep the writer.
    keepers: Cell<usize>,
}

/// A task in the background that keeps a writer.
#[derive(Debug)]
pub struct WalKeeper<'w> {
    keepers: &'w Cell<usize>,
    wal: &'w Wal,
}

impl WalKeeper<'_> {
    /// Lets all waits look again.
    pub fn look_again(&self) {
        self.wal.progress.raise();
    }
}

impl Drop for WalKeeper<'_> {
    fn drop(&mut self) {
        self.keepers.set(self.keepers.get() - 1);
        self.look_again();
    }
}

/// Room for a record (log.L6). Dropping it gives it back.
#[derive(Debug)]
pub struct WalRoom<'w> {
    reserved: &'w Cell<u64>,
    words: u64,
    /// Of the writer: who waits for room, and the signal that wakes them.
    waiting: &'w Cell<usize>,
    wal: &'w Wal,
}

impl Drop for WalRoom<'_> {
    fn drop(&mut self) {
        self.reserved.set(self.reserved.get() - self.words);
        if self.waiting.get() > 0 {
            self.wal.progress.raise();
        }
    }
}

/// An operation that waits for room.
struct RoomWaiter<'w>(&'w Cell<usize>);

impl Drop for RoomWaiter<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A batch that a task writes. Dropping it leaves the batch to another task.
struct DrivenBatch<'w> {
    ring: &'w RefCell<Option<WalRing>>,
    position: Option<u64>,
}

impl Drop for DrivenBatch<'_> {
    fn drop(&mut self) {
        if let (Some(position), Some(ring)) = (self.position, &mut *self.ring.borrow_mut()) {
            ring.dropped(position);
        }
    }
}

/// The error of a change that may have happened.
fn unknown(server: ServerId) -> RemoteError {
    RemoteError::Contended { retries: 0 }.after_a_change(server)
}

impl<F: Fabric, L: Layout> WalWriter<F, L> {
    /// Opens a ring of the log of `compute_server`. The first writer begins the log's life: the log
    /// of the former one has ended (log.L7).
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if a memory server has no room for the ring, and
    /// [`RemoteError::Contended`] if the log has as many writers as it can have.
    pub async fn open(fabric: F, wal: &Arc<Wal>, compute_server: u16) -> Result<Self, RemoteError> {
        let life = wal.life(fabric.unique());
        let rpc = RpcClient::<F, L>::new(fabric);
        let ring = match wal.take_ring() {
            Some(Ok(ring)) => ring,
            Some(Err(number)) => match new_ring(&rpc, wal, (compute_server, number), life).await {
                Ok(ring) => ring,
                Err(error) => {
                    wal.give_number(number);
                    return Err(error);
                }
            },
            None => return Err(RemoteError::Contended { retries: 0 }),
        };
        let ring = RefCell::new(Some(ring));
        let (reserved, waiting, keepers) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Ok(Self { rpc, wal: Arc::clone(wal), ring, reserved, waiting, keepers })
    }

    fn fabric(&self) -> &F {
        self.rpc.fabric()
    }

    fn with_ring<T>(&self, act: impl FnOnce(&mut WalRing) -> T) -> Option<T> {
        self.ring.borrow_mut().as_mut().map(act)
    }

    fn server(&self) -> ServerId {
        self.with_ring(|ring| ring.at().server()).unwrap_or(ServerId::new(0))
    }

    /// Reserves room for a record. `None` if there is none now.
    ///
    /// # Errors
    /// [`RemoteError::InvalidArgument`] for a record that is too long for the ring.
    pub fn reserve(&self, record: &WalRecord<'_>) -> Result<Option<WalRoom<'_>>, RemoteError> {
        let words = record.words() + BATCH_HEADER_WORDS as u64;
        let reserved = self.reserved.get();
        let found = self.with_ring(|ring| {
            if !ring.has_room(words, reserved) {
                ring.release(self.released_low());
            }
            (ring.can_hold(words), ring.has_room(words, reserved))
        });
        match found.unwrap_or_default() {
            (false, _) => Err(RemoteError::InvalidArgument(
                "a record is too long for the write-ahead log; give the log larger rings",
            )),
            (_, false) => Ok(None),
            (_, true) => {
                self.reserved.set(reserved + words);
                let Self { reserved, waiting, wal, .. } = self;
                Ok(Some(WalRoom { reserved, words, waiting, wal }))
            }
        }
    }

    /// Whether the ring is more than half full.
    pub fn is_pressed(&self) -> bool {
        self.with_ring(|ring| {
            if ring.is_pressed() {
                ring.release(self.released_low());
            }
            ring.is_pressed()
        })
        .unwrap_or(false)
    }

    /// The number up to which everything should be flushed, so that half of what is in use becomes
    /// free.
    pub fn pressing_number(&self) -> u64 {
        self.with_ring(|ring| ring.pressing_number()).unwrap_or(0)
    }

    /// The low below which the space of records may be used again (log.L4).
    fn released_low(&self) -> u64 {
        match self.fabric().breaks(rules::LOG_SPACE_TOLD) {
            true => u64::MAX,
            false => self.wal.durable_low(),
        }
    }

    /// Appends a record that has reserved its room. Its number is announced (log.L1).
    pub fn append(&self, number: u64, record: &WalRecord<'_>) {
        self.with_ring(|ring| {
            ring.push(number, record);
            self.wal.note_pending(ring);
        });
    }

    /// Waits until the record with `number`, and all with lower ones, are durable.
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`] if the memory server of a ring does not answer: the records
    /// may become durable later.
    pub async fn until_durable(&self, number: u64) -> Result<(), RemoteError> {
        let (mut has_yielded, mut began_ns) = (false, None);
        loop {
            if self.wal.durable() >= number {
                return Ok(());
            }
            let seen = self.wal.progress.count();
            if self.has_work() {
                if !std::mem::replace(&mut has_yielded, true) {
                    // Records of the same group go into the same batch.
                    yield_now().await;
                    continue;
                }
                self.write_next().await?;
                continue;
            }
            // Whoever sees one of these records land finds out the bound.
            let lowest = self.with_ring(|ring| ring.lowest_pending()).flatten();
            if lowest.is_none_or(|lowest| lowest > number) && self.wal.advance() >= number {
                return Ok(());
            }
            let now_ns = self.fabric().now_ns();
            if now_ns.saturating_sub(*began_ns.get_or_insert(now_ns)) > PATIENCE_NS {
                return Err(unknown(self.server()));
            }
            self.until_change(seen).await;
        }
    }

    /// Waits until something of the log has changed. A timer for each wait would cost more than the
    /// wait, so there is one only where nobody keeps the writer.
    async fn until_change(&self, seen: u64) {
        match self.keepers.get() {
            0 => self.wal.progress.sleep(self.fabric(), seen, MAX_SLEEP_NS).await,
            _ => self.wal.progress.raised(seen).await,
        }
    }

    /// Keeps the writer: from now on waits look again only if something has changed, or if the
    /// keeper says so, which it must do now and then.
    pub fn keep(&self) -> WalKeeper<'_> {
        self.keepers.set(self.keepers.get() + 1);
        WalKeeper { keepers: &self.keepers, wal: &self.wal }
    }

    /// Whether someone keeps the writer.
    pub fn is_kept(&self) -> bool {
        self.keepers.get() > 0
    }

    /// Waits until something of the log has changed, for room: at most a while.
    ///
    /// # Errors
    /// [`RemoteError::Contended`] if the wait, which began at `began_ns`, has lasted too long.
    pub async fn until_progress(&self, seen: u64, began_ns: u64) -> Result<(), RemoteError> {
        self.waiting.set(self.waiting.get() + 1);
        let _waiter = RoomWaiter(&self.waiting);
        if self.fabric().now_ns().saturating_sub(began_ns) > PATIENCE_NS {
            return Err(RemoteError::Contended { retries: 0 });
        }
        self.until_change(seen).await;
        Ok(())
    }

    /// How often something of the log has changed, for [`Self::until_progress`].
    pub fn changes(&self) -> u64 {
        self.wal.progress.count()
    }

    fn has_work(&self) -> bool {
        self.with_ring(|ring| {
            self.wal.adopt_orphans(ring, self.reserved.get());
            ring.has_work()
        })
        .unwrap_or(false)
    }

    /// Writes the next batch that no task writes, if there is one.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn write_waiting(&self) -> Result<(), RemoteError> {
        match self.has_work() {
            true => self.write_next().await,
            false => Ok(()),
        }
    }

    /// Tells the low in a batch, and waits until that is durable, so that the space of what is in
    /// the pool becomes free (log.L4). What is told may be less than the low is now: a MemTable
    /// that was empty holds it down with its first record.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn tell_low(&self) -> Result<(), RemoteError> {
        if self.wal.low() > self.wal.durable_low() {
            let asked = self.with_ring(WalRing::push_low).unwrap_or_default();
            let began_ns = self.fabric().now_ns();
            loop {
                let seen = self.changes();
                if self.with_ring(|ring| ring.has_told(asked)).unwrap_or(true) {
                    break;
                }
                match self.has_work() {
                    true => self.write_next().await?,
                    false => self.until_progress(seen, began_ns).await?,
                }
            }
        }
        self.with_ring(|ring| ring.release(self.released_low()));
        Ok(())
    }

    /// Writes the batch that is due, if no other task does.
    async fn write_next(&self) -> Result<(), RemoteError> {
        let Some(batch) = self.with_ring(|ring| ring.take(|| self.wal.low())).flatten() else {
            return Ok(());
        };
        let BatchToWrite { position, at, words, is_doubtful } = batch;
        let mut driven = DrivenBatch { ring: &self.ring, position: Some(position) };
        let written = async {
            if is_doubtful {
                self.fabric().reset(at.server()).await?;
            }
            write_words(self.fabric(), at, &words).await
        };
        // After a failure another task tries, without haste: it may fail at once, too.
        let failed = |error| RemoteError::from(error).after_a_change(at.server());
        written.await.map_err(failed)?;
        driven.position = None;
        drop(driven);
        self.with_ring(|ring| {
            self.wal.note_durable_low(ring.landed(position));
            ring.release(self.released_low());
            self.wal.note_pending(ring);
        });
        self.wal.progressed();
        Ok(())
    }
}

impl<F: Fabric, L: Layout> Drop for WalWriter<F, L> {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.borrow_mut().take() {
            self.wal.give_ring(ring);
        }
    }
}

/// A ring of this life. Whoever opens one writes the number of the life first: no batch may land
/// before it.
async fn new_ring<F: Fabric, L: Layout>(
    rpc: &RpcClient<F, L>,
    wal: &Wal,
    (compute_server, number): (u16, u16),
    life: u64,
) -> Result<WalRing, RemoteError> {
    ring_of(rpc, wal, (compute_server, 0)).await?;
    let first = rings(rpc, compute_server).await?;
    let (first, _) = first.first().ok_or(RemoteError::Contended { retries: 0 })?;
    write_words(rpc.fabric(), *first, &[life]).await?;
    let ring = ring_of(rpc, wal, (compute_server, number)).await?;
    Ok(WalRing::new(number, ring, wal.ring_bytes(), life))
}
