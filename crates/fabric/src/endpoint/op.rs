//! The future of a posted operation, the same over every transport.
//!
//! *Thread safety*: an endpoint's thread.

use super::slots::Body;
use super::{Inner, Transport};
use crate::{Buffer, FabricError};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

const ONCE: &str = "a completed operation is not polled again";

/// A READ that is carried out when its future is polled first, by transports that map the memory.
pub trait HeldRead: std::fmt::Debug {
    /// Carries it out, if its connection still exists.
    fn copy(&mut self) -> Option<Buffer>;

    /// What it ends as if its connection does not.
    fn lost(&self) -> FabricError;
}

/// What transports have that carry nothing out themselves.
#[derive(Debug)]
pub enum NoHeldRead {}

impl HeldRead for NoHeldRead {
    fn copy(&mut self) -> Option<Buffer> {
        match *self {}
    }

    fn lost(&self) -> FabricError {
        match *self {}
    }
}

/// A posted operation.
#[derive(Debug)]
#[must_use = "an operation is only known to have happened once it is awaited"]
pub struct Op<T, X: Transport> {
    state: State<T, X>,
}

#[derive(Debug)]
enum State<T, X: Transport> {
    // Not one `Result`: what moves a value and an error through the same places does so in pieces,
    // and reading those as a whole afterwards stalls the processor until the copy before has been
    // fetched from memory.
    Done(Option<T>),
    Failed(Option<FabricError>),
    /// `finish` makes the result of the buffer.
    Held {
        read: X::HeldRead,
        finish: fn(Buffer) -> T,
    },
    /// `finish` takes the value out of the ended operation.
    Posted {
        endpoint: Rc<Inner<X>>,
        id: u64,
        finish: fn(Body) -> T,
    },
}

impl<T, X: Transport> Op<T, X> {
    /// An operation that was done when it was posted.
    #[inline(always)]
    pub fn done(value: T) -> Self {
        Self { state: State::Done(Some(value)) }
    }

    /// An operation that was refused when it was posted.
    #[cold]
    #[inline(never)]
    pub fn failed(error: FabricError) -> Self {
        Self { state: State::Failed(Some(error)) }
    }

    /// A READ that is carried out later.
    #[inline(always)]
    pub fn held(read: X::HeldRead, finish: fn(Buffer) -> T) -> Self {
        Self { state: State::Held { read, finish } }
    }

    #[inline]
    pub(super) fn posted(endpoint: Rc<Inner<X>>, id: u64, finish: fn(Body) -> T) -> Self {
        Self { state: State::Posted { endpoint, id, finish } }
    }
}

impl<T, X: Transport> Unpin for Op<T, X> {}

impl<T, X: Transport> Future for Op<T, X> {
    type Output = Result<T, FabricError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (body, outcome, finish) = match &mut self.state {
            State::Done(value) => return Poll::Ready(Ok(value.take().expect(ONCE))),
            State::Failed(error) => return Poll::Ready(Err(error.take().expect(ONCE))),
            State::Held { read, finish } => {
                return Poll::Ready(match read.copy() {
                    Some(into) => Ok(finish(into)),
                    None => Err(read.lost()),
                });
            }
            State::Posted { endpoint, id, finish } => {
                endpoint.resources.close_batch();
                let mut core = endpoint.core.borrow_mut();
                match core.slots.poll(*id, context.waker(), &endpoint.resources) {
                    None => return Poll::Pending,
                    Some((body, outcome)) => (body, outcome.expect("it has ended"), *finish),
                }
            }
        };
        // The slot is another operation's from now on: dropping this must not abandon it.
        self.state = State::Done(None);
        Poll::Ready(outcome.map(|()| finish(body)))
    }
}

impl<T, X: Transport> Drop for Op<T, X> {
    #[inline]
    fn drop(&mut self) {
        if let State::Posted { endpoint, id, .. } = &self.state {
            endpoint.core.borrow_mut().slots.abandon(*id, &endpoint.resources);
        }
    }
}
