//! The parts of a handle that belong to one thread at a time: an executor, the driver of its
//! endpoint, and the index. This is the only module with `unsafe` code.
//!
//! *Invariants*: door.N1. every `Rc` reachable from a [`Confined`] is created inside it, and no
//! clone of it leaves. door.N2. only values that are `Send` go in or out, and wakers. door.N3. a
//! task's result appears in `calls` only during [`Confined::turn`].
//!
//! *Thread safety*: a [`Confined`] is `Send` and not `Sync`; its owner keeps it behind a mutex.

use crate::error::Error;
use crate::request::{Reply, Request, execute};
use farleaf_core::index::RangeIndex;
use farleaf_fabric::executor::{Driver, Executor, Progress};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Waker;

/// Operations that run together; further ones wait. Below the depth of an endpoint, which a
/// multi-get needs several times.
const TOGETHER: usize = 256;
/// Steps of the executor before its caller lets other threads have it.
const STEPS: usize = 512;

/// The result of an operation.
pub(crate) type Outcome = Result<Reply, Error>;

/// An index with the driver of its endpoint, of any type.
pub(crate) trait Engine {
    fn start(&self, executor: &mut Executor<'static>, calls: &Rc<RefCell<Calls>>, job: Job);
    fn turn(&self, executor: &mut Executor<'static>) -> Progress;
    fn unparker(&self) -> Option<Waker>;
    /// A duplicate of the descriptor that is readable when there is something to do.
    fn descriptor(&self) -> io::Result<Option<OwnedFd>>;
}

/// An operation and its number.
pub(crate) struct Job {
    id: u64,
    request: Request,
}

/// The operations that have a caller.
#[derive(Default)]
pub(crate) struct Calls {
    by_id: BTreeMap<u64, Entry>,
    running: usize,
    /// Wakers of callers whose operations have ended.
    to_wake: Vec<Waker>,
}

#[derive(Default)]
struct Entry {
    waker: Option<Waker>,
    outcome: Option<Outcome>,
}

impl Calls {
    fn end(&mut self, id: u64, outcome: Outcome) {
        self.running -= 1;
        // Without an entry, the caller has dropped its future.
        if let Some(entry) = self.by_id.get_mut(&id) {
            entry.outcome = Some(outcome);
            self.to_wake.extend(entry.waker.take());
        }
    }
}

/// An index over a driver.
pub(crate) struct Over<D, I> {
    driver: D,
    index: Rc<I>,
    descriptor: fn(&D) -> io::Result<Option<OwnedFd>>,
}

impl<D, I> Over<D, I> {
    /// `descriptor` duplicates the driver's descriptor, if it has one.
    pub(crate) fn new(
        driver: D,
        index: I,
        descriptor: fn(&D) -> io::Result<Option<OwnedFd>>,
    ) -> Self {
        Self { driver, index: Rc::new(index), descriptor }
    }
}

impl<D, I> Engine for Over<D, I>
where
    D: Driver + 'static,
    I: RangeIndex<Key = u64, Value = u64> + 'static,
{
    fn start(&self, executor: &mut Executor<'static>, calls: &Rc<RefCell<Calls>>, job: Job) {
        let (index, calls) = (Rc::clone(&self.index), Rc::clone(calls));
        executor.spawn(0, async move {
            let outcome = execute(&*index, job.request).await;
            calls.borrow_mut().end(job.id, outcome);
        });
    }

    fn turn(&self, executor: &mut Executor<'static>) -> Progress {
        executor.turn(&self.driver, STEPS)
    }

    fn unparker(&self) -> Option<Waker> {
        self.driver.unparker()
    }

    fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        (self.descriptor)(&self.driver)
    }
}

/// An executor with its driver and index, which any one thread at a time may use.
pub(crate) struct Confined {
    // The tasks go first: they use the rest.
    executor: Executor<'static>,
    engine: Box<dyn Engine>,
    calls: Rc<RefCell<Calls>>,
    /// Operations that wait for others to end.
    queue: VecDeque<Job>,
    next_id: u64,
}

// SAFETY: What keeps a `Confined` from being `Send` is `Rc`, `Cell`, `RefCell` and the tasks that
// hold them. All of these are reachable only through it (door.N1): `new` takes a closure that is
// `Send`, so it brings in none that another thread has, and the methods take and return no type
// that has any (door.N2, checked by `crosses` below). The index and the driver put no such value
// into a thread-local variable or a static, and their tasks hold no guard of a lock while they
// wait. So the owner of the `Confined` has all clones of every `Rc` in it, and moving it moves them
// together. Wakers do leave, but those of tasks are `Arc`s around a locked queue.
unsafe impl Send for Confined {}

const fn crosses<T: Send>() {}
const _: () = crosses::<(Request, Outcome, Waker, OwnedFd, Progress, Error)>();

impl std::fmt::Debug for Confined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Confined").field("executor", &self.executor).finish_non_exhaustive()
    }
}

impl Confined {
    /// Makes the engine here.
    pub(crate) fn new(
        make: impl FnOnce() -> Result<Box<dyn Engine>, Error> + Send,
    ) -> Result<Self, Error> {
        Ok(Self {
            executor: Executor::new(),
            engine: make()?,
            calls: Rc::default(),
            queue: VecDeque::new(),
            next_id: 0,
        })
    }

    /// [`Driver::unparker`].
    pub(crate) fn unparker(&self) -> Option<Waker> {
        self.engine.unparker()
    }

    /// A duplicate of the descriptor that is readable when there is something to do.
    pub(crate) fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        self.engine.descriptor()
    }

    /// Queues an operation for the next turn; returns its number.
    pub(crate) fn begin(&mut self, request: Request) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.calls.borrow_mut().by_id.insert(id, Entry::default());
        self.queue.push_back(Job { id, request });
        id
    }

    /// Runs what is ready; returns how long nothing will be, in nanoseconds.
    pub(crate) fn turn(&mut self) -> u64 {
        loop {
            self.start_some();
            let progress = self.engine.turn(&mut self.executor);
            // Operations may have ended and made room.
            if self.queue.is_empty() || self.calls.borrow().running >= TOGETHER {
                return match progress {
                    Progress::Advanced => 0,
                    Progress::Wait { ns } => ns,
                    Progress::Stuck => u64::MAX,
                };
            }
        }
    }

    fn start_some(&mut self) {
        while self.calls.borrow().running < TOGETHER
            && let Some(job) = self.queue.pop_front()
        {
            // What its caller abandoned before it began does not begin.
            if self.calls.borrow().by_id.contains_key(&job.id) {
                self.calls.borrow_mut().running += 1;
                self.engine.start(&mut self.executor, &self.calls, job);
            }
        }
    }

    /// The result of an operation; forgets the operation if there is one.
    pub(crate) fn take(&mut self, id: u64) -> Option<Outcome> {
        let calls = &mut *self.calls.borrow_mut();
        calls.by_id.get(&id)?.outcome.as_ref()?;
        calls.by_id.remove(&id)?.outcome
    }

    /// Sets the waker for the end of an operation; returns the one before.
    pub(crate) fn set_waker(&mut self, id: u64, waker: Option<Waker>) -> Option<Waker> {
        let mut calls = self.calls.borrow_mut();
        std::mem::replace(&mut calls.by_id.get_mut(&id)?.waker, waker)
    }

    /// Forgets an operation; one that has begun goes on without its caller. Returns its waker.
    pub(crate) fn abandon(&mut self, id: u64) -> Option<Waker> {
        self.calls.borrow_mut().by_id.remove(&id)?.waker
    }

    /// The wakers of callers whose operations have ended since the last call.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.calls.borrow_mut().to_wake)
    }

    /// The waker of any caller that waits.
    pub(crate) fn any_waiting(&self) -> Option<Waker> {
        self.calls.borrow().by_id.values().find_map(|entry| entry.waker.clone())
    }
}
