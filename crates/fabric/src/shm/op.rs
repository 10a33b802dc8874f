//! Posted operations over shared memory: WRITEs and atomics are done when they are posted, calls await their reply, and a
//! READ that was posted asks for the memory to come closer and copies it when it is looked at first. So the READs of a
//! batch wait for memory together; one after the other, each would wait alone.
//!
//! *Thread safety*: one thread.

use super::connection::{CallSlot, Connection};
use super::endpoint::InFlight;
use crate::region::copy_words;
use crate::{Buffer, FabricError, Message, Uncertainty};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A posted operation over shared memory.
#[derive(Debug)]
#[must_use = "an operation is only known to have happened once it is awaited"]
pub struct ShmOp<T> {
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    // Not one `Result`: what moves a value and an error through the same places does so in pieces, and reading those
    // as a whole afterwards stalls the processor until the copy before has been fetched from memory.
    Done(Option<T>),
    Failed(Option<FabricError>),
    /// `finish` makes the result of the buffer.
    Read {
        read: PostedRead,
        finish: fn(Buffer) -> T,
    },
    /// `finish` makes the result of the reply.
    Call {
        call: Call,
        finish: fn(Message) -> T,
    },
}

/// A READ whose address has been checked.
#[derive(Debug)]
pub(super) struct PostedRead {
    into: Option<Buffer>,
    offset: u64,
    connection: Rc<Connection>,
    in_flight: Rc<InFlight>,
    /// How often the connection had been reset: nothing that was posted before a reset is done after it (F9).
    resets: u64,
}

impl PostedRead {
    #[inline]
    pub(super) fn new(
        into: Buffer,
        offset: u64,
        connection: &Rc<Connection>,
        in_flight: &Rc<InFlight>,
    ) -> Self {
        in_flight.count.set(in_flight.count.get() + 1);
        let (connection, in_flight) = (Rc::clone(connection), Rc::clone(in_flight));
        Self { into: Some(into), offset, resets: connection.resets.get(), connection, in_flight }
    }

    /// Copies; `None` if the connection was lost or reset meanwhile.
    #[inline]
    fn copy(&mut self) -> Option<Buffer> {
        let into = self.into.take().expect(ONCE);
        let words = self.connection.region.slice(self.offset, into.words().len())?;
        if self.resets != self.connection.resets.get() {
            return None;
        }
        let _inside = self.connection.gate.enter()?;
        copy_words(words, into.words());
        Some(into)
    }

    #[cold]
    fn lost(&self) -> FabricError {
        self.in_flight.counters.count_indeterminate();
        self.connection.lost()
    }
}

impl Drop for PostedRead {
    #[inline]
    fn drop(&mut self) {
        self.in_flight.count.set(self.in_flight.count.get() - 1);
    }
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: u64,
    pub(super) slot: Rc<CallSlot>,
    pub(super) connection: Rc<Connection>,
    pub(super) deadline_ns: u64,
    pub(super) armed: bool,
    pub(super) in_flight: Rc<InFlight>,
}

const ONCE: &str = "a completed operation is not polled again";

impl<T> ShmOp<T> {
    #[inline(always)]
    pub(super) fn done(value: T) -> Self {
        Self { state: State::Done(Some(value)) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn failed(error: FabricError) -> Self {
        Self { state: State::Failed(Some(error)) }
    }

    #[inline(always)]
    pub(super) fn read(read: PostedRead, finish: fn(Buffer) -> T) -> Self {
        Self { state: State::Read { read, finish } }
    }

    pub(super) fn call(call: Call, finish: fn(Message) -> T) -> Self {
        Self { state: State::Call { call, finish } }
    }
}

impl<T> Unpin for ShmOp<T> {}

impl<T> Future for ShmOp<T> {
    type Output = Result<T, FabricError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            State::Done(value) => Poll::Ready(Ok(value.take().expect(ONCE))),
            State::Failed(error) => Poll::Ready(Err(error.take().expect(ONCE))),
            State::Read { read, finish } => Poll::Ready(match read.copy() {
                Some(into) => Ok(finish(into)),
                None => Err(read.lost()),
            }),
            State::Call { call, finish } => call.poll(context).map(|reply| reply.map(*finish)),
        }
    }
}

impl Call {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, FabricError>> {
        let in_flight = &self.in_flight;
        in_flight.batch_open.set(false);
        if let Some(outcome) = self.slot.outcome.take() {
            match &outcome {
                Ok(reply) => in_flight.counters.count_rpc_reply(reply.len()),
                Err(FabricError::Indeterminate { .. }) => in_flight.counters.count_indeterminate(),
                Err(_) => {}
            }
            return Poll::Ready(outcome);
        }
        if in_flight.reactor.timers.now_ns() >= self.deadline_ns {
            self.connection.forget(self.id);
            in_flight.counters.count_indeterminate();
            let why = Uncertainty::TimedOut;
            let server = self.connection.server;
            return Poll::Ready(Err(FabricError::Indeterminate { server, why }));
        }
        *self.slot.waker.borrow_mut() = Some(context.waker().clone());
        if !std::mem::replace(&mut self.armed, true) {
            in_flight.reactor.timers.wake_at(self.deadline_ns, context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.connection.forget(self.id);
        self.in_flight.count.set(self.in_flight.count.get() - 1);
    }
}
