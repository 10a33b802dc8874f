//! What all clones of a handle share. Callers drive it: a caller that waits for an operation runs
//! everything that is ready, then waits for the descriptor of the endpoint, if it has one, or for
//! the next deadline.
//!
//! *Invariants*: door.W1. no caller holds a lock while it waits, wakes another caller, or drops
//! another caller's waker. door.W2. while operations have callers, one caller waits for the
//! descriptor, or has just been woken to do so: one that stops waiting wakes another. door.W3. as a
//! caller may stop polling its future without dropping it, each of the others looks by itself after
//! a while ([`TICK_NS`]).
//!
//! *Thread safety*: any number of threads.

use crate::confined::{Confined, Engine, Outcome};
use crate::error::Error;
use crate::request::Request;
use crate::waiting::{Parker, Watches, wait_readable};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::runtime;
use tokio::task::coop;
use tokio::time::Sleep;

/// The longest wait of a task or of the thread that polls.
const TICK_NS: u64 = 10_000_000;
/// The longest wait of a thread while another one polls.
const PARK_NS: u64 = 1_000_000;
/// Without a descriptor, a thread yields its core instead of waiting for less than this.
const SHORT_NS: u64 = 100_000;
/// A task yields instead of sleeping for less than this: timers of tokio are no finer.
const TIMER_NS: u64 = 1_000_000;
/// How often a task looks again at once before it gives other tasks a turn.
const ROUNDS: usize = 8;

#[derive(Debug)]
pub(crate) struct Shared {
    core: Mutex<Confined>,
    descriptor: Option<OwnedFd>,
    unparker: Option<Waker>,
    watches: Watches,
    /// Whether a plain thread polls.
    is_polled: AtomicBool,
}

/// An operation of one caller.
#[derive(Debug)]
pub(crate) enum Stage {
    New(Option<Request>),
    Begun(u64),
    Ended,
}

impl Shared {
    /// Opens an index.
    pub(crate) fn open(
        make: impl FnOnce() -> Result<Box<dyn Engine>, Error> + Send,
    ) -> Result<Arc<Self>, Error> {
        let core = Confined::new(make)?;
        let descriptor = core.descriptor().map_err(|error| Error::Open(error.to_string()))?;
        Ok(Arc::new(Self {
            unparker: core.unparker(),
            descriptor,
            core: Mutex::new(core),
            watches: Watches::default(),
            is_polled: AtomicBool::new(false),
        }))
    }

    /// Runs everything that is ready. Returns the operation's outcome, or for how long nothing will
    /// be ready, in nanoseconds.
    fn crank(&self, stage: &mut Stage, waker: &Waker) -> Result<Outcome, u64> {
        let waker = waker.clone();
        let Ok(mut core) = self.core.lock() else {
            *stage = Stage::Ended;
            return Ok(Err(Error::Broken));
        };
        let (id, before) = match stage {
            Stage::New(request) => {
                let request = request.take().expect("an operation begins once");
                (core.begin(request), None)
            }
            // This caller is awake already.
            Stage::Begun(id) => (*id, core.set_waker(*id, None)),
            Stage::Ended => panic!("an operation is not polled after its end"),
        };
        *stage = Stage::Begun(id);
        let ns = core.turn();
        let outcome = core.take(id);
        let mut to_wake = core.take_wakers();
        let mut left = None;
        if outcome.is_some() {
            *stage = Stage::Ended;
            let (own, others) = self.stop_watching(id);
            left = own;
            if !others {
                to_wake.extend(core.any_waiting());
            }
        } else {
            core.set_waker(id, Some(waker));
        }
        drop(core);
        drop((before, left));
        to_wake.into_iter().for_each(Waker::wake);
        outcome.ok_or(ns)
    }

    /// Stops watching the descriptor for an operation; returns its waker, and whether another
    /// caller still watches.
    fn stop_watching(&self, id: u64) -> (Option<Waker>, bool) {
        let (own, others) = self.watches.leave(id);
        (own, others || self.is_polled.load(Ordering::SeqCst))
    }

    /// Forgets an operation whose caller has dropped its future.
    pub(crate) fn abandon(&self, stage: &Stage) {
        let Stage::Begun(id) = *stage else { return };
        let Ok(mut core) = self.core.lock() else { return };
        let before = core.abandon(id);
        let (own, others) = self.stop_watching(id);
        let next = if others { None } else { core.any_waiting() };
        drop(core);
        drop((before, own));
        if let Some(next) = next {
            next.wake();
        }
    }

    /// Blocks the thread until the operation has ended.
    pub(crate) fn wait(&self, stage: &mut Stage) -> Outcome {
        let parker = Arc::new(Parker::new(self.unparker.clone()));
        let waker = Waker::from(Arc::clone(&parker));
        loop {
            let ns = match self.crank(stage, &waker) {
                Ok(outcome) => return outcome,
                Err(0) => continue,
                Err(ns) => ns,
            };
            match &self.descriptor {
                Some(_) if self.is_polled.swap(true, Ordering::SeqCst) => {
                    parker.park(ns.min(PARK_NS));
                }
                Some(descriptor) => {
                    parker.poll(descriptor, ns.min(TICK_NS));
                    self.is_polled.store(false, Ordering::SeqCst);
                }
                None if ns < SHORT_NS => {
                    #[expect(clippy::disallowed_methods, reason = "there is nothing else to do")]
                    std::thread::yield_now();
                }
                None => parker.park(ns.min(PARK_NS)),
            }
        }
    }

    /// Polls the operation as part of a task.
    pub(crate) fn poll(
        &self,
        stage: &mut Stage,
        timer: &mut Option<Pin<Box<Sleep>>>,
        context: &mut Context<'_>,
    ) -> Poll<Outcome> {
        // A task whose operations all end at once must give way now and then, too.
        let budget = ready!(coop::poll_proceed(context));
        for _ in 0..ROUNDS {
            let ns = match self.crank(stage, context.waker()) {
                Ok(outcome) => {
                    budget.made_progress();
                    return Poll::Ready(outcome);
                }
                Err(ns) => ns,
            };
            let Ok(runtime) = runtime::Handle::try_current() else {
                // Without a runtime there is nothing to register with.
                if let Some(descriptor) = &self.descriptor {
                    wait_readable(descriptor, ns.min(PARK_NS));
                }
                break;
            };
            match (&self.descriptor, &*stage) {
                (Some(descriptor), Stage::Begun(id)) if ns > 0 => {
                    let Ok(watch) = self.watches.of(runtime.id(), descriptor) else { break };
                    if watch.is_readable(*id, context.waker()) {
                        continue;
                    }
                }
                _ if ns < TIMER_NS => break,
                _ => {}
            }
            let timer =
                timer.insert(Box::pin(tokio::time::sleep(Duration::from_nanos(ns.min(TICK_NS)))));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
