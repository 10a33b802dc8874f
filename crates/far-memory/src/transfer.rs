//! READs and WRITEs of pages, repeated until they succeed or count as failed.
//!
//! *Invariants*
//! - far.T1. After an operation of unknown outcome, nothing more is posted to that memory server
//!   before a reset has succeeded (F9 of the fabric). So a WRITE that is repeated, or given up and
//!   begun again later, is not overtaken by its first attempt.
//! - far.T2. An operation is repeated for a bounded time, and then fails. It may still take effect
//!   until the next reset.
//!
//! *Thread safety*: one thread.

use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, ServerId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// First and longest wait between two attempts, in nanoseconds.
const FIRST_WAIT_NS: u64 = 20_000;
const LONGEST_WAIT_NS: u64 = 50_000_000;
/// How often a task looks whether another one has completed a reset, in nanoseconds.
const RESET_POLL_NS: u64 = 20_000;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The memory server does not answer; it may come back with its content.
    Unreachable(FabricError),
    /// The content cannot come back.
    Gone(FabricError),
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// A READ.
    In,
    /// A WRITE.
    Out,
}

/// What is known of a memory server.
#[derive(Debug, Default)]
struct Server {
    /// An operation of unknown outcome may still take effect.
    is_unsettled: bool,
    is_being_reset: bool,
    /// Number of resets that have succeeded.
    resets: u64,
    /// Whether the last operation failed for good.
    has_failed: bool,
    /// Until when changed pages are not written back there.
    rests_until_ns: u64,
}

/// The operations of one endpoint.
#[derive(Debug)]
pub(crate) struct Transfers<F> {
    fabric: F,
    patience_ns: u64,
    rest_ns: u64,
    servers: RefCell<BTreeMap<u16, Server>>,
    retries: Cell<u64>,
}

impl<F: Fabric> Transfers<F> {
    /// Operations over `fabric`, repeated for `patience_ns`. A server that has failed rests for
    /// `rest_ns`.
    pub(crate) fn new(fabric: F, patience_ns: u64, rest_ns: u64) -> Self {
        let servers = RefCell::default();
        Self { fabric, patience_ns, rest_ns, servers, retries: Cell::new(0) }
    }

    pub(crate) fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Number of operations that were repeated.
    pub(crate) fn retries(&self) -> u64 {
        self.retries.get()
    }

    /// Whether pages should not be written back to `server` now.
    pub(crate) fn rests(&self, server: ServerId) -> bool {
        let now_ns = self.fabric.now_ns();
        self.servers.borrow().get(&server.number()).is_some_and(|it| now_ns < it.rests_until_ns)
    }

    /// Whether an operation on `server` may still take effect although it has ended (T2).
    pub(crate) fn is_unsettled(&self, server: ServerId) -> bool {
        self.servers.borrow().get(&server.number()).is_some_and(|it| it.is_unsettled)
    }

    /// Transfers the content of a buffer that `buffer` makes anew for each attempt.
    ///
    /// # Errors
    /// [`Failed`] after the last attempt (T2).
    pub(crate) async fn run(
        &self,
        direction: Direction,
        at: GlobalAddr,
        buffer: impl Fn() -> Buffer,
    ) -> Result<(), Failed> {
        let number = at.server().number();
        // A server that has just failed gets one attempt: the next page would only wait again.
        let patience_ns = if self.with(number, |it| it.has_failed) { 0 } else { self.patience_ns };
        let give_up_ns = self.fabric.now_ns().saturating_add(patience_ns);
        let mut wait_ns = FIRST_WAIT_NS;
        loop {
            let cause = match self.attempt(direction, at, buffer()).await {
                Ok(()) => {
                    self.with(number, |it| (it.has_failed, it.rests_until_ns) = (false, 0));
                    return Ok(());
                }
                Err(cause) => cause,
            };
            let is_final = !may_pass(&cause);
            let now_ns = self.fabric.now_ns();
            if is_final || now_ns >= give_up_ns {
                let rests_until_ns = now_ns.saturating_add(self.rest_ns);
                self.with(number, |it| {
                    (it.has_failed, it.rests_until_ns) = (true, rests_until_ns);
                });
                return Err(if is_final {
                    Failed::Gone(cause)
                } else {
                    Failed::Unreachable(cause)
                });
            }
            self.retries.set(self.retries.get() + 1);
            self.fabric.counters().count_retry();
            self.fabric.sleep(wait_ns).await;
            wait_ns = (wait_ns * 2).min(LONGEST_WAIT_NS);
        }
    }

    async fn attempt(
        &self,
        direction: Direction,
        at: GlobalAddr,
        buffer: Buffer,
    ) -> Result<(), FabricError> {
        let server = at.server();
        self.settle(server).await?;
        let resets = self.with(server.number(), |it| it.resets);
        let outcome = match direction {
            Direction::In => self.fabric.read(at, buffer).await,
            Direction::Out => self.fabric.write(at, buffer).await,
        };
        if let Err(FabricError::Indeterminate { .. }) = outcome {
            // A reset since the operation was posted has settled it.
            self.with(server.number(), |it| it.is_unsettled |= it.resets == resets);
        }
        outcome.map(drop)
    }

    /// Resets the connection to `server` if an operation may still take effect (T1).
    pub(crate) async fn settle(&self, server: ServerId) -> Result<(), FabricError> {
        let number = server.number();
        while self.with(number, |it| it.is_being_reset) {
            self.fabric.sleep(RESET_POLL_NS).await;
        }
        if !self.with(number, |it| it.is_unsettled) {
            return Ok(());
        }
        self.with(number, |it| it.is_being_reset = true);
        let outcome = self.fabric.reset(server).await;
        self.with(number, |it| {
            it.is_being_reset = false;
            if outcome.is_ok() {
                it.is_unsettled = false;
                it.resets += 1;
            }
        });
        outcome
    }

    fn with<T>(&self, server: u16, change: impl FnOnce(&mut Server) -> T) -> T {
        change(self.servers.borrow_mut().entry(server).or_default())
    }
}

/// Whether an operation that failed this way can succeed later.
fn may_pass(error: &FabricError) -> bool {
    matches!(
        error,
        FabricError::Indeterminate { .. }
            | FabricError::NotSent { .. }
            | FabricError::QueueFull { .. }
            | FabricError::NoBuffer { .. }
    )
}
