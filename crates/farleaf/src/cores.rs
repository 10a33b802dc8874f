//! The cores of an index: engines behind locks, and how callers share them.
//!
//! A caller begins an operation on a core that no other thread is using, if there is one, and turns
//! that core once, which sends the request. A waiter turns the core again when its descriptor is
//! readable: a task of a tokio runtime ([`crate::runtime`]), or one of the waiting threads
//! ([`crate::threads`]).
//!
//! *Invariants*
//! - door.A1. No lock is held while a thread or a task waits.
//! - door.A2. While an operation is in flight and its caller waits, the core's descriptor has a
//!   waiter that does not depend on any other caller.
//! - door.A3. A core that panics is dropped; its operations in flight end as indeterminate, and
//!   later ones as unavailable.
//!
//! *Thread safety*: any number of threads.

use crate::confined::ConfinedEngine;
use crate::data::KeyKind;
use crate::engine::{AnyEngine, TurnOutcome};
use crate::error::{Error, ErrorCause};
use crate::request::{IndexRequest, RequestOutcome};
use crate::runtime::Runtimes;
use crate::slot::{CallerReply, CallerSlot};
use crate::threads::WaitingThreads;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;

/// Locks `mutex`, even if a thread panicked while holding it: the data behind the mutexes of this
/// crate is consistent at every step. An engine that panics is dropped (door.A3).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One engine, and its waiters.
#[derive(Debug)]
pub(crate) struct EngineSlot<K: ?Sized + KeyKind> {
    engine: Mutex<Option<ConfinedEngine<K>>>,
    /// Number of operations in flight after the last turn.
    live: AtomicUsize,
    /// Readable when a turn is due.
    pub(crate) descriptor: OwnedFd,
    unparker: Waker,
    pub(crate) threads: WaitingThreads,
    pub(crate) runtimes: Runtimes,
}

impl<K: ?Sized + KeyKind> EngineSlot<K> {
    /// Creates a core with the engine that `build` returns.
    pub(crate) fn new(
        build: impl FnOnce() -> Result<Box<dyn AnyEngine<K>>, Error> + Send,
    ) -> Result<Self, Error> {
        let mut engine = ConfinedEngine::new(build)?;
        let parts = engine.with(|engine| -> io::Result<_> {
            Ok((engine.descriptor().try_clone_to_owned()?, engine.unparker()))
        });
        let system = |error| Error::system("cannot open a descriptor", error);
        let (descriptor, unparker) = parts.map_err(system)?;
        Ok(Self {
            engine: Mutex::new(Some(engine)),
            live: AtomicUsize::new(0),
            descriptor,
            unparker,
            threads: WaitingThreads::new().map_err(system)?,
            runtimes: Runtimes::default(),
        })
    }

    /// Runs `act` on the engine; `None` if the engine fails or has failed before.
    fn with(
        &self,
        mut engine: MutexGuard<'_, Option<ConfinedEngine<K>>>,
        act: impl FnOnce(&mut dyn AnyEngine<K>) -> TurnOutcome + Send,
    ) -> Option<TurnOutcome> {
        let confined = engine.as_mut()?;
        let turned = catch_unwind(AssertUnwindSafe(|| confined.with(act)));
        match turned {
            Ok(turned) => {
                self.live.store(turned.live, Ordering::Release);
                drop(engine);
                if !turned.is_idle {
                    // This caller may never come back.
                    self.unparker.wake_by_ref();
                }
                Some(turned)
            }
            Err(_) => {
                let failed = engine.take();
                drop(engine);
                self.live.store(0, Ordering::Release);
                // Its destructors run in the state that the panic left.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(failed)));
                None
            }
        }
    }

    fn turn_with(&self, engine: MutexGuard<'_, Option<ConfinedEngine<K>>>) -> TurnOutcome {
        let nothing = TurnOutcome { is_idle: true, is_quiet: true, live: 0 };
        self.with(engine, |engine| engine.turn()).unwrap_or(nothing)
    }
}

/// An operation that has begun.
#[derive(Debug)]
pub(crate) struct BegunOperation<K: ?Sized + KeyKind> {
    pub(crate) core: usize,
    slot: Arc<CallerSlot<K>>,
}

/// The state that all clones of a handle share.
#[derive(Debug)]
pub(crate) struct EnginePool<K: ?Sized + KeyKind> {
    cores: Box<[EngineSlot<K>]>,
}

impl<K: ?Sized + KeyKind> EnginePool<K> {
    pub(crate) fn new(cores: Vec<EngineSlot<K>>) -> Self {
        Self { cores: cores.into() }
    }

    pub(crate) fn core(&self, number: usize) -> &EngineSlot<K> {
        &self.cores[number]
    }

    /// A core that is free, or otherwise the first one that this thread tries.
    fn pick(&self) -> (usize, MutexGuard<'_, Option<ConfinedEngine<K>>>) {
        let mut hasher = DefaultHasher::new();
        std::thread::current().id().hash(&mut hasher);
        let first = hasher.finish() as usize % self.cores.len();
        let order = (first..self.cores.len()).chain(0..first);
        for number in order {
            match self.cores[number].engine.try_lock() {
                Ok(engine) => return (number, engine),
                Err(TryLockError::Poisoned(poisoned)) => return (number, poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        (first, lock(&self.cores[first].engine))
    }

    /// Begins an operation and runs it until it has to wait.
    pub(crate) fn begin(&self, request: IndexRequest<K>) -> BegunOperation<K> {
        let slot = Arc::new(CallerSlot::default());
        let (number, engine) = self.pick();
        let core = &self.cores[number];
        if engine.is_none() {
            let why = "an earlier operation has panicked; open the index again";
            CallerReply::new(&slot).send(Err(Error::Unavailable(ErrorCause::text(why))));
            return BegunOperation { core: number, slot };
        }
        let reply = CallerReply::new(&slot);
        core.with(engine, move |engine| engine.start(request, reply));
        BegunOperation { core: number, slot }
    }

    /// Turns a core, and returns the result. If the core still has operations in flight, also turns
    /// the other cores: an operation may be waiting for one that was abandoned there.
    pub(crate) fn turn(&self, number: usize) -> TurnOutcome {
        let core = &self.cores[number];
        let turned = core.turn_with(lock(&core.engine));
        if turned.live > 0 {
            for (other, core) in self.cores.iter().enumerate() {
                if other != number
                    && core.live.load(Ordering::Acquire) > 0
                    && let Ok(engine) = core.engine.try_lock()
                {
                    core.turn_with(engine);
                }
            }
        }
        turned
    }

    /// Whether operations are in flight on a core.
    pub(crate) fn is_busy(&self, number: usize) -> bool {
        self.cores[number].live.load(Ordering::Acquire) > 0
    }
}

impl<K: ?Sized + KeyKind> BegunOperation<K> {
    pub(crate) fn take(&self) -> Option<RequestOutcome<K>> {
        self.slot.take()
    }

    pub(crate) fn take_or_wake(&self, waker: &Waker) -> Option<RequestOutcome<K>> {
        self.slot.take_or_wake(waker)
    }
}

impl<K: ?Sized + KeyKind> Drop for EnginePool<K> {
    fn drop(&mut self) {
        for core in &self.cores {
            core.runtimes.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;
    use rustix::event::epoll;
    use std::os::fd::{AsFd, BorrowedFd};

    /// An engine that panics on every operation except lookups of 1, which it never answers.
    struct PanickingEngine {
        epoll: OwnedFd,
        held: Vec<CallerReply<u64>>,
    }

    impl AnyEngine<u64> for PanickingEngine {
        fn start(&mut self, request: IndexRequest<u64>, reply: CallerReply<u64>) -> TurnOutcome {
            assert!(matches!(request, IndexRequest::Get(1)), "this engine fails");
            self.held.push(reply);
            self.turn()
        }

        fn turn(&mut self) -> TurnOutcome {
            TurnOutcome { is_idle: true, is_quiet: true, live: self.held.len() }
        }

        fn descriptor(&self) -> BorrowedFd<'_> {
            self.epoll.as_fd()
        }

        fn unparker(&self) -> Waker {
            Waker::noop().clone()
        }
    }

    #[test]
    fn an_engine_that_panics_answers_everything() {
        let core = EngineSlot::new(|| {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            Ok(Box::new(PanickingEngine { epoll, held: Vec::new() }))
        });
        let cores = EnginePool::new(vec![core.unwrap()]);
        let (first, second) =
            (cores.begin(IndexRequest::Get(1)), cores.begin(IndexRequest::Get(1)));
        let outcome = std::thread::scope(|scope| {
            let waits = scope.spawn(|| threads::wait(&cores, &first));
            let failed = cores.begin(IndexRequest::Flush);
            let outcome = threads::wait(&cores, &failed);
            for outcome in [waits.join().unwrap(), threads::wait(&cores, &second)] {
                assert!(matches!(outcome, Err(Error::Indeterminate(_))), "{outcome:?}");
            }
            outcome
        });
        assert!(outcome.unwrap_err().is_indeterminate());
        let later = threads::wait(&cores, &cores.begin(IndexRequest::Get(1)));
        assert!(matches!(later, Err(Error::Unavailable(_))), "{later:?}");
    }
}
