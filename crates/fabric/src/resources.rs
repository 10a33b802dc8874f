//! The parts of a real-time endpoint that do not depend on its transport: counters, scratch
//! buffers, randomness, timers, and the number of operations in flight.
//!
//! *Thread safety*: one thread.

use crate::handshake::{PeerRole, draw_epoch};
use crate::timers::Timers;
use crate::{BUFFER_BYTES, Buffer, BufferPool, Counters, FabricError, RegionError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// Settings of a cluster's endpoints.
#[derive(Clone, Copy, Debug)]
pub struct EndpointSettings {
    /// The role of the endpoints.
    pub role: PeerRole,
    /// Number of memory servers.
    pub memory_servers: u16,
    /// Limit on an endpoint's operations in flight.
    pub depth: usize,
    /// Time limit of an operation, in nanoseconds.
    pub timeout_ns: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The part of an endpoint that all transports share.
#[derive(Debug)]
pub struct EndpointResources {
    /// The endpoint's counters.
    pub counters: Counters,
    /// The clock, and the tasks of the thread that wait on it.
    pub timers: Rc<Timers>,
    /// Number of operations in flight that count against the depth.
    pub in_flight: Cell<usize>,
    /// Whether something was posted since the last wait: later operations then share its doorbell.
    pub batch_open: Cell<bool>,
    /// The endpoint's settings.
    pub settings: EndpointSettings,
    /// The compute server or client that it belongs to.
    pub compute_server: u16,
    buffers: BufferPool,
    rng: RefCell<SmallRng>,
}

impl EndpointResources {
    /// Creates the resources of a new endpoint; `number` selects its random stream.
    ///
    /// # Errors
    /// [`RegionError`] if there is not enough memory for scratch buffers.
    pub fn new(
        settings: EndpointSettings,
        compute_server: u16,
        number: usize,
        timers: &Rc<Timers>,
    ) -> Result<Self, RegionError> {
        let seed = settings.seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(Self {
            counters: Counters::default(),
            timers: Rc::clone(timers),
            in_flight: Cell::new(0),
            batch_open: Cell::new(false),
            buffers: BufferPool::new(settings.depth, BUFFER_BYTES)?,
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            settings,
            compute_server,
        })
    }

    /// The current time.
    pub fn now_ns(&self) -> u64 {
        self.timers.now_ns()
    }

    /// Counts a doorbell if an operation opens a batch.
    #[inline]
    pub fn ring(&self) {
        if !self.batch_open.replace(true) {
            self.counters.count_doorbell();
        }
    }

    /// Ends the batch, because its task waits.
    #[inline]
    pub fn close_batch(&self) {
        self.batch_open.set(false);
    }

    /// Checks whether one more operation may be in flight (F6).
    ///
    /// # Errors
    /// [`FabricError::QueueFull`] if not.
    #[inline]
    pub fn admit(&self) -> Result<(), FabricError> {
        let depth = self.settings.depth;
        if self.in_flight.get() >= depth {
            return Err(FabricError::QueueFull { depth });
        }
        Ok(())
    }

    /// Counts an operation as in flight.
    #[inline]
    pub fn enter(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Counts an operation as no longer in flight.
    #[inline]
    pub fn leave(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }

    /// Implements [`crate::Fabric::buffer`].
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError> {
        self.buffers.take(bytes).ok_or(FabricError::NoBuffer { bytes })
    }

    /// Implements [`crate::Fabric::random`].
    pub(crate) fn random(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }

    /// [`crate::Fabric::unique`]: the seed is the same in all processes, so the bits come from the
    /// operating system.
    pub(crate) fn unique() -> u64 {
        draw_epoch().expect("the operating system provides entropy")
    }

    /// Implements [`crate::Fabric::sleep`].
    pub async fn sleep(&self, ns: u64) {
        self.close_batch();
        let until_ns = self.now_ns().saturating_add(ns);
        let mut polled = false;
        poll_fn(|context| {
            if polled && self.now_ns() >= until_ns {
                return Poll::Ready(());
            }
            polled = true;
            self.timers.wake_at(until_ns, context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
