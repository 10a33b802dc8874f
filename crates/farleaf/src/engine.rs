//! An engine: one executor with its driver, and the index handle of its endpoint.
//!
//! *Thread safety*: none; [`crate::confined`] makes it safe to use from several threads.

use crate::alarm::TimerAlarm;
use crate::data::KeyKind;
use crate::error::Error;
use crate::request::{IndexRequest, RequestServer, serve};
use crate::slot::CallerReply;
use farleaf_fabric::AnyFabric;
use farleaf_fabric::endpoint::FOREIGN;
use farleaf_fabric::executor::{Driver, DriverProgress, Executor, ExecutorRequests, TurnState};
use farleaf_fabric::local::LocalDriver;
use farleaf_fabric::provider::WakeFd;
use farleaf_fabric::tcp::TcpDriver;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Maximum number of task polls in one turn, so that a turn ends even if its tasks only yield to
/// each other.
const MAX_POLLS: usize = 256;
/// If the sockets have not been polled for this long, in nanoseconds, they are polled before an
/// operation begins, so that a connection that its server has closed is reopened first.
const STALE_NS: u64 = 1_000_000;

/// The state after a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnOutcome {
    /// Whether all tasks wait.
    pub(crate) is_idle: bool,
    /// Whether the turn received nothing.
    pub(crate) is_quiet: bool,
    /// Number of tasks that have not ended.
    pub(crate) live: usize,
}

/// An engine of any kind.
pub(crate) trait AnyEngine<K: ?Sized + KeyKind> {
    /// Begins an operation, then turns the engine.
    fn start(&mut self, request: IndexRequest<K>, reply: CallerReply<K>) -> TurnOutcome;

    /// Receives everything that has arrived, and runs tasks until they wait.
    fn turn(&mut self) -> TurnOutcome;

    /// The descriptor that is readable when a turn is due.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Makes the descriptor readable.
    fn unparker(&self) -> Waker;
}

/// A driver that waits for a single descriptor.
pub(crate) trait ParkedDriver: Driver {
    /// An epoll descriptor that is readable when the driver has something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

impl ParkedDriver for TcpDriver {
    fn descriptor(&self) -> BorrowedFd<'_> {
        TcpDriver::descriptor(self)
    }
}

/// Ends a wait for an engine without sockets.
#[derive(Debug)]
struct EngineUnparker {
    descriptor: WakeFd,
    is_set: AtomicBool,
}

impl Wake for EngineUnparker {
    fn wake(self: Arc<Self>) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.descriptor.wake();
        }
    }
}

/// The driver of an engine without sockets: its operations complete when they are posted, and its
/// tasks wait only for timers.
#[derive(Debug)]
pub(crate) struct InProcessDriver {
    driver: LocalDriver,
    epoll: OwnedFd,
    unparker: Arc<EngineUnparker>,
}

impl InProcessDriver {
    pub(crate) fn new(driver: LocalDriver) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let unparker =
            EngineUnparker { descriptor: WakeFd::new()?, is_set: AtomicBool::new(false) };
        let data = epoll::EventData::new_u64(FOREIGN);
        epoll::add(&epoll, &unparker.descriptor, data, epoll::EventFlags::IN)?;
        Ok(Self { driver, epoll, unparker: Arc::new(unparker) })
    }

    pub(crate) fn open(&self, number: usize) -> io::Result<AnyFabric> {
        self.driver.open(0, number).map(AnyFabric::Local)
    }
}

impl Driver for InProcessDriver {
    fn requests(&self) -> Option<ExecutorRequests> {
        None
    }

    fn progress(&self) -> DriverProgress {
        let EngineUnparker { descriptor, is_set } = &*self.unparker;
        if is_set.load(Ordering::Acquire) {
            // In this order, a wake in between is not lost, because the executor checks for woken
            // tasks once more before it waits.
            descriptor.clear();
            is_set.store(false, Ordering::Release);
        }
        self.driver.progress()
    }

    fn unparker(&self) -> Option<Waker> {
        Some(Waker::from(Arc::clone(&self.unparker)))
    }
}

impl ParkedDriver for InProcessDriver {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// An engine over one driver.
#[derive(Debug)]
pub(crate) struct DriverEngine<K: ?Sized + KeyKind, I, D> {
    // Dropped first, because the tasks use the index, and the index uses its driver.
    executor: Executor<'static>,
    index: Rc<I>,
    driver: D,
    alarm: TimerAlarm,
    looked_ns: u64,
    /// Maximum number of operations that run concurrently; the others wait in order. Without a
    /// limit, more operations than the endpoint's depth would all retry until their deadlines.
    most_live: usize,
    waiting: VecDeque<(IndexRequest<K>, CallerReply<K>)>,
}

impl<K: ?Sized + KeyKind, I: RequestServer<K>, D: ParkedDriver> DriverEngine<K, I, D> {
    pub(crate) fn new(
        executor: Executor<'static>,
        index: I,
        driver: D,
        most_live: usize,
    ) -> Result<Self, Error> {
        let alarm = TimerAlarm::new(driver.descriptor());
        let alarm = alarm.map_err(|error| Error::system("cannot create a timer", error))?;
        let (index, waiting) = (Rc::new(index), VecDeque::new());
        Ok(Self { executor, index, driver, alarm, looked_ns: 0, most_live, waiting })
    }

    fn advance(&mut self) -> TurnOutcome {
        self.alarm.clear();
        let mut is_quiet = true;
        let turn = loop {
            let turn = self.executor.turn(&self.driver, MAX_POLLS);
            is_quiet &= matches!(turn, TurnState::Idle { has_advanced: false, .. });
            if !self.spawn_waiting() || turn == TurnState::Busy {
                break turn;
            }
        };
        if let TurnState::Idle { ns, .. } = turn
            && ns < u64::MAX
        {
            self.alarm.set(ns);
        }
        let live = self.executor.live() + self.waiting.len();
        TurnOutcome { is_idle: turn != TurnState::Busy, is_quiet, live }
    }

    /// Spawns waiting operations while there is room. Returns whether any were spawned.
    fn spawn_waiting(&mut self) -> bool {
        let mut has_spawned = false;
        while self.executor.live() < self.most_live
            && let Some((request, reply)) = self.waiting.pop_front()
        {
            let index = Rc::clone(&self.index);
            self.executor.spawn(0, async move { reply.send(serve(&*index, request).await) });
            has_spawned = true;
        }
        has_spawned
    }
}

impl<K: ?Sized + KeyKind, I: RequestServer<K>, D: ParkedDriver> AnyEngine<K>
    for DriverEngine<K, I, D>
{
    fn start(&mut self, request: IndexRequest<K>, reply: CallerReply<K>) -> TurnOutcome {
        let now_ns = self.alarm.now_ns();
        if now_ns.saturating_sub(self.looked_ns) > STALE_NS {
            self.turn();
        }
        self.waiting.push_back((request, reply));
        self.spawn_waiting();
        self.advance()
    }

    fn turn(&mut self) -> TurnOutcome {
        self.looked_ns = self.alarm.now_ns();
        self.driver.wait(0);
        self.advance()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.driver.descriptor()
    }

    fn unparker(&self) -> Waker {
        self.driver.unparker().unwrap_or_else(|| Waker::noop().clone())
    }
}
