//! The future of a posted operation, which is the same over every transport.
//!
//! *Thread safety*: an endpoint's thread.

use super::{EndpointInner, Transport};
use crate::body::OpBody;
use crate::{Buffer, FabricError};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const ONCE: &str = "a completed operation is not polled again";

/// A READ that is executed when its future is first polled, for transports that map the memory.
pub trait HeldRead: std::fmt::Debug {
    /// Executes the READ; `None` if its connection is gone.
    fn copy(&mut self) -> Option<Buffer>;

    /// The error of the READ if its connection is gone.
    fn lost(&self) -> FabricError;
}

/// For transports without held READs.
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
pub struct EndpointOp<T, X: Transport> {
    state: EndpointOpState<T, X>,
}

#[derive(Debug)]
enum EndpointOpState<T, X: Transport> {
    // Not a single `Result`: moving a value or an error through the same memory copies it in
    // pieces, and reading these as a whole stalls the processor until the pieces have left its
    // store buffer.
    Done(Option<T>),
    Failed(Option<FabricError>),
    /// `finish` turns the buffer into the result.
    Held {
        read: X::HeldRead,
        finish: fn(Buffer) -> T,
    },
    /// `finish` extracts the value from the ended operation.
    Posted {
        endpoint: Rc<EndpointInner<X>>,
        id: u64,
        finish: fn(OpBody) -> T,
    },
}

impl<T, X: Transport> EndpointOp<T, X> {
    /// An operation that completed when it was posted.
    #[inline(always)]
    pub fn done(value: T) -> Self {
        Self { state: EndpointOpState::Done(Some(value)) }
    }

    /// An operation that was refused when it was posted.
    #[cold]
    #[inline(never)]
    pub fn failed(error: FabricError) -> Self {
        Self { state: EndpointOpState::Failed(Some(error)) }
    }

    /// A READ that is executed later.
    #[inline(always)]
    pub fn held(read: X::HeldRead, finish: fn(Buffer) -> T) -> Self {
        Self { state: EndpointOpState::Held { read, finish } }
    }

    #[inline]
    pub(super) fn posted(endpoint: Rc<EndpointInner<X>>, id: u64, finish: fn(OpBody) -> T) -> Self {
        Self { state: EndpointOpState::Posted { endpoint, id, finish } }
    }
}

/// An endpoint that has posted operations, whatever its transport is.
trait Posts: std::fmt::Debug {
    /// What a posted operation ended with; wakes `waker` if it has not ended.
    fn poll(&self, id: u64, waker: &Waker) -> Option<(OpBody, Result<(), FabricError>)>;

    /// Nobody waits for an operation any more.
    fn abandon(&self, id: u64);
}

impl<X: Transport> Posts for EndpointInner<X> {
    #[inline]
    fn poll(&self, id: u64, waker: &Waker) -> Option<(OpBody, Result<(), FabricError>)> {
        self.resources.close_batch();
        let mut core = self.core.borrow_mut();
        let (body, outcome) = core.slots.poll(id, waker, &self.resources)?;
        Some((body, outcome.expect("it has ended")))
    }

    #[inline]
    fn abandon(&self, id: u64) {
        self.core.borrow_mut().slots.abandon(id, &self.resources);
    }
}

/// A posted operation of a transport that is not known.
#[derive(Debug)]
pub struct DetachedOp<T>(DetachedState<T>);

#[derive(Debug)]
enum DetachedState<T> {
    Ended(Option<Result<T, FabricError>>),
    Posted { endpoint: Rc<dyn Posts>, id: u64, finish: fn(OpBody) -> T },
}

impl<T, X: Transport<HeldRead = NoHeldRead>> EndpointOp<T, X> {
    /// The operation without its transport's type.
    pub(crate) fn detach(mut self) -> DetachedOp<T> {
        DetachedOp(match std::mem::replace(&mut self.state, EndpointOpState::Done(None)) {
            EndpointOpState::Done(value) => DetachedState::Ended(value.map(Ok)),
            EndpointOpState::Failed(error) => DetachedState::Ended(error.map(Err)),
            EndpointOpState::Held { read, .. } => match read {},
            EndpointOpState::Posted { endpoint, id, finish } => {
                DetachedState::Posted { endpoint, id, finish }
            }
        })
    }
}

impl<T> Unpin for DetachedOp<T> {}

impl<T> Future for DetachedOp<T> {
    type Output = Result<T, FabricError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (body, outcome, finish) = match &mut self.0 {
            DetachedState::Ended(ended) => return Poll::Ready(ended.take().expect(ONCE)),
            DetachedState::Posted { endpoint, id, finish } => {
                match endpoint.poll(*id, context.waker()) {
                    None => return Poll::Pending,
                    Some((body, outcome)) => (body, outcome, *finish),
                }
            }
        };
        // As for `EndpointOp`: the slot may be reused from now on.
        self.0 = DetachedState::Ended(None);
        Poll::Ready(outcome.map(|()| finish(body)))
    }
}

impl<T> Drop for DetachedOp<T> {
    fn drop(&mut self) {
        if let DetachedState::Posted { endpoint, id, .. } = &self.0 {
            endpoint.abandon(*id);
        }
    }
}

impl<T, X: Transport> Unpin for EndpointOp<T, X> {}

impl<T, X: Transport> Future for EndpointOp<T, X> {
    type Output = Result<T, FabricError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (body, outcome, finish) = match &mut self.state {
            EndpointOpState::Done(value) => return Poll::Ready(Ok(value.take().expect(ONCE))),
            EndpointOpState::Failed(error) => return Poll::Ready(Err(error.take().expect(ONCE))),
            EndpointOpState::Held { read, finish } => {
                return Poll::Ready(match read.copy() {
                    Some(into) => Ok(finish(into)),
                    None => Err(read.lost()),
                });
            }
            EndpointOpState::Posted { endpoint, id, finish } => {
                match endpoint.poll(*id, context.waker()) {
                    None => return Poll::Pending,
                    Some((body, outcome)) => (body, outcome, *finish),
                }
            }
        };
        // The slot may be reused from now on, so dropping this future must not abandon it.
        self.state = EndpointOpState::Done(None);
        Poll::Ready(outcome.map(|()| finish(body)))
    }
}

impl<T, X: Transport> Drop for EndpointOp<T, X> {
    #[inline]
    fn drop(&mut self) {
        if let EndpointOpState::Posted { endpoint, id, .. } = &self.state {
            endpoint.abandon(*id);
        }
    }
}
