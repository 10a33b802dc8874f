//! One operation: a future, or a call that blocks.

use crate::cores::{BegunOperation, EnginePool};
use crate::data::KeyKind;
use crate::error::Error;
use crate::request::{IndexRequest, IndexResponse};
use crate::runtime::ensure_task;
use crate::threads::{self, ensure_thread};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::task::coop::poll_proceed;

#[derive(Debug)]
enum OperationState<K: ?Sized + KeyKind> {
    New(IndexRequest<K>),
    Begun(BegunOperation<K>),
    Ended,
}

/// An operation on an [`crate::Index`] of keys `K`, with a result `T`: `.await` it, or call
/// [`Operation::wait`].
///
/// Nothing happens before the first poll. Dropping the operation later does not undo it: it
/// continues, and its result is lost.
#[must_use = "an operation does nothing until it is awaited or waited for"]
pub struct Operation<T, K: ?Sized + KeyKind = u64> {
    cores: Arc<EnginePool<K>>,
    state: OperationState<K>,
    take: fn(IndexResponse<K>) -> T,
}

impl<T, K: ?Sized + KeyKind> fmt::Debug for Operation<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("state", &self.state).finish_non_exhaustive()
    }
}

impl<T, K: ?Sized + KeyKind> Operation<T, K> {
    pub(crate) fn new(
        cores: &Arc<EnginePool<K>>,
        request: IndexRequest<K>,
        take: fn(IndexResponse<K>) -> T,
    ) -> Self {
        Self { cores: Arc::clone(cores), state: OperationState::New(request), take }
    }

    /// Begins the operation if it has not begun.
    fn begun(&mut self) -> &BegunOperation<K> {
        if let OperationState::New(_) = self.state {
            let OperationState::New(request) =
                std::mem::replace(&mut self.state, OperationState::Ended)
            else {
                unreachable!("it has just been looked at")
            };
            self.state = OperationState::Begun(self.cores.begin(request));
        }
        match &self.state {
            OperationState::Begun(begun) => begun,
            _ => panic!("an operation was polled after it had completed"),
        }
    }

    /// Blocks the thread until the operation has ended. It can be called anywhere, but in async
    /// code it stops the other tasks of the thread: `.await` the operation there.
    ///
    /// # Errors
    /// [`Error`], which tells what has happened.
    pub fn wait(mut self) -> Result<T, Error> {
        self.begun();
        let OperationState::Begun(begun) = &self.state else { unreachable!("it has begun") };
        threads::wait(&self.cores, begun).map(self.take)
    }
}

impl<T, K: ?Sized + KeyKind> Future for Operation<T, K> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let operation = &mut *self;
        let begun = operation.begun();
        // An operation on an embedded index is usually ready at once. Charge it to the task's
        // budget, so that a loop of operations lets the runtime's timers and other tasks run.
        let Poll::Ready(budget) = poll_proceed(context) else { return Poll::Pending };
        let Some(outcome) = begun.take_or_wake(context.waker()) else {
            let core = begun.core;
            // Other executors cannot wait for a descriptor.
            let waits = match Handle::try_current() {
                Ok(runtime) => ensure_task(&runtime, &operation.cores, core),
                Err(_) => ensure_thread(&operation.cores, core)
                    .map_err(|error| Error::system("cannot start a thread", error)),
            };
            // Nothing else would wake this task, so poll again at its next turn.
            if waits.is_err() {
                operation.cores.turn(core);
                context.waker().wake_by_ref();
            }
            return Poll::Pending;
        };
        operation.state = OperationState::Ended;
        budget.made_progress();
        Poll::Ready(outcome.map(operation.take))
    }
}
