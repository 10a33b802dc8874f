//! One operation, as a future.

use crate::error::Error;
use crate::request::{Reply, Request};
use crate::shared::{Shared, Stage};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Sleep;

/// An operation of a [`crate::Handle`]. It begins when it is first polled: await it in a task of
/// tokio, or call [`Call::wait`] on a plain thread.
///
/// The task that polls it also drives the connection: there is no thread behind it. The runtime
/// needs its I/O and time drivers (`enable_all`). In another executor it works too, but occupies
/// its thread while it waits.
///
/// # Dropping it
/// An operation that was polled may go on without its caller, whenever another operation of the
/// same handle drives the connection. So a change whose future was dropped, say by a timeout, may
/// have happened, and may happen later. One that was never polled does not happen.
#[must_use = "an operation begins only when it is awaited, or by `wait()`"]
pub struct Call<T> {
    shared: Arc<Shared>,
    stage: Stage,
    timer: Option<Pin<Box<Sleep>>>,
    answer: fn(Reply) -> Option<T>,
}

impl<T> std::fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl<T> Call<T> {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        request: Request,
        answer: fn(Reply) -> Option<T>,
    ) -> Self {
        let stage = Stage::New(Some(request));
        Self { shared: Arc::clone(shared), stage, timer: None, answer }
    }

    /// Blocks the thread until the operation has ended. Do not call this from a task: it blocks its
    /// runtime's thread too.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait(mut self) -> Result<T, Error> {
        let outcome = self.shared.wait(&mut self.stage);
        outcome.map(|reply| self.convert(reply))
    }

    fn convert(&self, reply: Reply) -> T {
        (self.answer)(reply).expect("each request has one kind of reply")
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let polled = this.shared.poll(&mut this.stage, &mut this.timer, context);
        polled.map(|outcome| outcome.map(|reply| this.convert(reply)))
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        self.shared.abandon(&self.stage);
    }
}
