//! READs and WRITEs of pages, repeated until they succeed or count as failed.
//!
//! *Invariants*
//! - far.T1. After an operation of unknown outcome, nothing more is posted to that memory server
//!   before a reset has succeeded (F9 of the fabric). So a WRITE that is repeated, or given up and
//!   begun again later, is not overtaken by its first attempt.
//! - far.T2. An operation is repeated for a bounded time, and then fails. It may still take effect
//!   until the next reset, or until the fabric has given its buffer up: it is *astray*.
//! - far.T3. Only a restart of its memory server loses content. A refusal may be for a moment.
//!
//! *Thread safety*: one thread.

use crate::FarError;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, Region, ServerId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// First and longest wait between two attempts, in nanoseconds.
pub(crate) const FIRST_WAIT_NS: u64 = 20_000;
pub(crate) const MAX_WAIT_NS: u64 = 50_000_000;
/// Longest time between two looks whether another task has completed a reset, in nanoseconds.
const RESET_POLL_NS: u64 = 2_000_000;
/// A server is avoided twice as long after each failed READ, this many times.
const MAX_DOUBLINGS: u32 = 6;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransferFailure {
    /// The memory server does not answer; it may come back with its content.
    Unreachable(FabricError),
    /// The content cannot come back.
    Gone(FabricError),
}

impl TransferFailure {
    fn new(cause: FabricError) -> Self {
        match cause {
            FabricError::Restarted { .. } => Self::Gone(cause), // T3
            _ => Self::Unreachable(cause),
        }
    }

    /// The error of one page.
    pub(crate) fn of(&self, page: u32, server: ServerId) -> FarError {
        match self.clone() {
            Self::Unreachable(cause) => FarError::Unreachable { page, server, cause },
            Self::Gone(cause) => FarError::Lost { page, server, cause },
        }
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferDirection {
    /// A READ.
    In,
    /// A WRITE.
    Out,
}

/// What is known of a memory server.
#[derive(Debug, Default)]
struct TransferServer {
    /// An operation of unknown outcome may still take effect.
    is_unsettled: bool,
    is_being_reset: bool,
    /// Number of resets that have succeeded.
    resets: u64,
    /// Number of resets that have failed, and why the last one did.
    failed_resets: u64,
    refusal: Option<FabricError>,
    /// Whether the last operation failed for good.
    has_failed: bool,
    /// Until when changed pages are not written back there.
    rests_until_ns: u64,
    /// Until when pages are read elsewhere first, if they have a second copy.
    avoided_until_ns: u64,
    /// READs in one attempt that have failed since the last success.
    failed_reads: u32,
}

/// The operations of one endpoint.
#[derive(Debug)]
pub(crate) struct Transfers<F> {
    fabric: F,
    patience_ns: u64,
    rest_ns: u64,
    servers: RefCell<BTreeMap<u16, TransferServer>>,
    retries: Cell<u64>,
    /// The memory of all buffers.
    view: Arc<Region>,
    /// References to it besides those of buffers.
    handles: usize,
    /// Operations that are awaited, each with one buffer.
    posted: Cell<usize>,
}

impl<F: Fabric> Transfers<F> {
    /// Operations over `fabric` on buffers of `view`, repeated for `patience_ns`. A server that has
    /// failed rests for `rest_ns`.
    pub(crate) fn new(fabric: F, view: Arc<Region>, patience_ns: u64, rest_ns: u64) -> Self {
        Self {
            fabric,
            patience_ns,
            rest_ns,
            servers: RefCell::default(),
            retries: Cell::new(0),
            handles: Arc::strong_count(&view),
            view,
            posted: Cell::new(0),
        }
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

    /// Whether the last operation on `server` has failed for good.
    pub(crate) fn has_failed(&self, server: ServerId) -> bool {
        self.servers.borrow().get(&server.number()).is_some_and(|it| it.has_failed)
    }

    /// Whether that is so for any server.
    pub(crate) fn has_failures(&self) -> bool {
        self.servers.borrow().values().any(|it| it.has_failed)
    }

    /// Whether an operation that has ended still has its buffer, which it may access (T2).
    pub(crate) fn is_any_astray(&self) -> bool {
        Arc::strong_count(&self.view) > self.handles + self.posted.get()
    }

    /// Whether an operation on `server` may still take effect although it has ended (T2).
    pub(crate) fn is_unsettled(&self, server: ServerId) -> bool {
        self.servers.borrow().get(&server.number()).is_some_and(|it| it.is_unsettled)
    }

    /// Transfers the content of a buffer that `buffer` makes anew for each attempt.
    ///
    /// # Errors
    /// [`TransferFailure`] after the last attempt (T2).
    pub(crate) async fn run(
        &self,
        direction: TransferDirection,
        at: GlobalAddr,
        buffer: impl Fn() -> Buffer,
    ) -> Result<(), TransferFailure> {
        let number = at.server().number();
        let began_ns = self.fabric.now_ns();
        // A server that has just failed gets one attempt: the next page would only wait again. A
        // WRITE loses nothing by that, so it gets no more before the server is back.
        let is_hopeless = self.with(number, |it| {
            it.has_failed && (direction == TransferDirection::Out || began_ns < it.rests_until_ns)
        });
        let patience_ns = if is_hopeless { 0 } else { self.patience_ns };
        let give_up_ns = began_ns.saturating_add(patience_ns);
        let mut wait_ns = FIRST_WAIT_NS;
        loop {
            let cause = match self.attempt(direction, at, &buffer).await {
                Ok(()) => {
                    self.succeed(number);
                    return Ok(());
                }
                Err(cause) => cause,
            };
            let now_ns = self.fabric.now_ns();
            if !may_pass(&cause) || now_ns >= give_up_ns {
                self.give_up(at.server());
                return Err(TransferFailure::new(cause));
            }
            self.retries.set(self.retries.get() + 1);
            self.fabric.counters().count_retry();
            self.fabric.sleep(wait_ns).await;
            wait_ns = (wait_ns * 2).min(MAX_WAIT_NS);
        }
    }

    /// READs in one attempt. If it fails, the server does not count as failed, because its copies
    /// would miss WRITEs, but is avoided for a while, which doubles with each failure: there is a
    /// second copy.
    ///
    /// # Errors
    /// [`TransferFailure`].
    pub(crate) async fn read_once(
        &self,
        at: GlobalAddr,
        buffer: impl Fn() -> Buffer,
    ) -> Result<(), TransferFailure> {
        let number = at.server().number();
        match self.attempt(TransferDirection::In, at, &buffer).await {
            Ok(()) => {
                self.succeed(number);
                Ok(())
            }
            Err(cause) => {
                let now_ns = self.fabric.now_ns();
                self.with(number, |it| {
                    let doublings = it.failed_reads.min(MAX_DOUBLINGS);
                    let avoided_ns = self.rest_ns.saturating_mul(1 << doublings);
                    it.avoided_until_ns = now_ns.saturating_add(avoided_ns);
                    it.failed_reads = doublings + 1;
                });
                self.retries.set(self.retries.get() + 1);
                self.fabric.counters().count_retry();
                Err(TransferFailure::new(cause))
            }
        }
    }

    /// Whether pages should be read elsewhere first.
    pub(crate) fn avoids(&self, server: ServerId) -> bool {
        let now_ns = self.fabric.now_ns();
        let servers = self.servers.borrow();
        servers
            .get(&server.number())
            .is_some_and(|it| it.has_failed || now_ns < it.avoided_until_ns)
    }

    /// A WRITE of a page that has another copy is about to try `server`. If that has failed, other
    /// such WRITEs leave it alone meanwhile: they would all wait for it.
    pub(crate) fn begin_probe(&self, server: ServerId) {
        if self.has_failed(server) {
            self.give_up(server);
        }
    }

    /// Notes that an operation on `server` has failed for good.
    pub(crate) fn give_up(&self, server: ServerId) {
        let rests_until_ns = self.fabric.now_ns().saturating_add(self.rest_ns);
        self.with(server.number(), |it| {
            (it.has_failed, it.rests_until_ns) = (true, rests_until_ns);
        });
    }

    fn succeed(&self, server: u16) {
        self.with(server, |it| {
            (it.has_failed, it.rests_until_ns, it.avoided_until_ns) = (false, 0, 0);
            it.failed_reads = 0;
        });
    }

    /// How long operations are repeated, in nanoseconds.
    pub(crate) fn patience_ns(&self) -> u64 {
        self.patience_ns
    }

    async fn attempt(
        &self,
        direction: TransferDirection,
        at: GlobalAddr,
        buffer: &impl Fn() -> Buffer,
    ) -> Result<(), FabricError> {
        let server = at.server();
        self.settle(server).await?;
        let resets = self.with(server.number(), |it| it.resets);
        self.posted.set(self.posted.get() + 1);
        let outcome = match direction {
            TransferDirection::In => self.fabric.read(at, buffer()).await.map(drop),
            TransferDirection::Out => self.fabric.write(at, buffer()).await.map(drop),
        };
        self.posted.set(self.posted.get() - 1);
        if let Err(FabricError::Indeterminate { .. }) = outcome {
            // A reset since the operation was posted has settled it.
            self.with(server.number(), |it| it.is_unsettled |= it.resets == resets);
        }
        outcome
    }

    /// Resets the connection to `server` if an operation may still take effect (T1). Tasks that
    /// wait for another one's reset share its outcome.
    pub(crate) async fn settle(&self, server: ServerId) -> Result<(), FabricError> {
        let number = server.number();
        let failed_resets = self.with(number, |it| it.failed_resets);
        let mut wait_ns = FIRST_WAIT_NS;
        while self.with(number, |it| it.is_being_reset) {
            self.fabric.sleep(wait_ns).await;
            wait_ns = (wait_ns * 2).min(RESET_POLL_NS);
        }
        let shared = self.with(number, |it| match &it.refusal {
            _ if !it.is_unsettled => Some(Ok(())),
            Some(error) if it.failed_resets != failed_resets => Some(Err(error.clone())),
            _ => None,
        });
        if let Some(outcome) = shared {
            return outcome;
        }
        self.with(number, |it| it.is_being_reset = true);
        let outcome = self.fabric.reset(server).await;
        self.with(number, |it| {
            it.is_being_reset = false;
            match &outcome {
                Ok(()) => {
                    it.is_unsettled = false;
                    it.resets += 1;
                }
                Err(error) => {
                    it.failed_resets += 1;
                    it.refusal = Some(error.clone());
                }
            }
        });
        outcome
    }

    fn with<T>(&self, server: u16, change: impl FnOnce(&mut TransferServer) -> T) -> T {
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
            | FabricError::NotLetIn { .. }
    )
}
