//! A posted operation: the state shared by the endpoint's future and the simulated network.
//!
//! *Invariants*: sim.O1. The buffer stays in `body` until the operation has succeeded and its
//! future has taken it, or until neither the future nor any event holds the operation (contract
//! F8). sim.O2. `result` is set once; a later reply changes nothing.

use super::config::Verb;
use super::endpoint::EndpointState;
use crate::body::OpBody;
use crate::{FabricError, Message, ServerId};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What the simulated network asks of an operation. The simulator fences without one.
impl OpBody {
    pub(super) fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. })
    }

    pub(super) fn is_call(&self) -> bool {
        matches!(self, Self::Call(_))
    }

    /// The kind of operation that its messages belong to.
    fn verb(&self) -> Verb {
        match self {
            Self::Read { .. } => Verb::Read,
            Self::Write { .. } => Verb::Write,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } | Self::Found(_) => Verb::Atomic,
            Self::Call(_) | Self::Fence { .. } | Self::Taken => Verb::Call,
        }
    }

    /// The payload of the request, in bytes.
    pub(super) fn sent_bytes(&self) -> usize {
        match self {
            Self::Write { from, .. } => from.bytes(),
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => 16,
            Self::Call(request) => request.len(),
            _ => 0,
        }
    }

    /// The payload of the reply, in bytes.
    pub(super) fn received_bytes(&self) -> usize {
        match self {
            Self::Read { into, .. } => into.bytes(),
            Self::Call(reply) => reply.len(),
            Self::Found(_) => 8,
            _ => 0,
        }
    }

    /// Number of words that take effect one by one.
    pub(super) fn words(&self) -> usize {
        match self {
            Self::Read { into: buffer, .. } | Self::Write { from: buffer, .. } => {
                buffer.words().len()
            }
            _ => 1,
        }
    }
}

#[derive(Debug)]
pub(super) struct OpState {
    pub(super) body: OpBody,
    /// The piece that each word belongs to, and the number of pieces, if the verb is torn.
    pub(super) pieces: Option<(Box<[u8]>, u8)>,
    /// The outcome in the reply, once there is one.
    pub(super) reply: Result<(), FabricError>,
    /// The outcome of the operation.
    pub(super) result: Option<Result<(), FabricError>>,
    pub(super) waker: Option<Waker>,
}

/// An operation in the simulated fabric.
#[derive(Debug)]
pub(super) struct SimOpHandle {
    pub(super) endpoint: Rc<EndpointState>,
    pub(super) server: ServerId,
    pub(super) verb: Verb,
    /// The operation's deadline; `u64::MAX` for none.
    pub(super) deadline_ns: u64,
    /// The connection's generation when the operation was posted.
    pub(super) generation: u64,
    pub(super) state: RefCell<OpState>,
}

impl SimOpHandle {
    pub(super) fn new(
        endpoint: &Rc<EndpointState>,
        server: ServerId,
        deadline_ns: u64,
        body: OpBody,
    ) -> Rc<Self> {
        let verb = body.verb();
        let state = OpState { body, pieces: None, reply: Ok(()), result: None, waker: None };
        let endpoint = Rc::clone(endpoint);
        let generation = endpoint.connections.borrow()[server.index()].generation;
        let state = RefCell::new(state);
        Rc::new(Self { endpoint, server, verb, deadline_ns, generation, state })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.borrow().result.is_some()
    }

    /// Takes the request for a core.
    pub(super) fn take_request(&self) -> Message {
        match std::mem::replace(&mut self.state.borrow_mut().body, OpBody::Taken) {
            OpBody::Call(request) => request,
            other => unreachable!("only calls reach a core, not {other:?}"),
        }
    }
}

/// A posted operation of the simulator.
#[derive(Debug)]
#[must_use = "an operation is only known to have happened once it is awaited"]
pub struct SimOp<T>(SimOpStage<T>);

#[derive(Debug)]
enum SimOpStage<T> {
    /// Refused when posted.
    Refused(Option<FabricError>),
    InFlight {
        op: Rc<SimOpHandle>,
        finish: fn(OpBody) -> T,
    },
}

impl<T> Unpin for SimOp<T> {}

impl<T> SimOp<T> {
    pub(super) fn refused(error: FabricError) -> Self {
        Self(SimOpStage::Refused(Some(error)))
    }

    /// `finish` extracts the value from the ended operation.
    pub(super) fn in_flight(op: Rc<SimOpHandle>, finish: fn(OpBody) -> T) -> Self {
        Self(SimOpStage::InFlight { op, finish })
    }
}

impl<T> Future for SimOp<T> {
    type Output = Result<T, FabricError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            SimOpStage::Refused(error) => {
                Poll::Ready(Err(error.take().expect("a completed operation is not polled again")))
            }
            SimOpStage::InFlight { op, finish } => {
                op.endpoint.close_batch();
                let mut state = op.state.borrow_mut();
                match state.result.clone() {
                    Some(Ok(())) => {
                        let body = std::mem::replace(&mut state.body, OpBody::Taken);
                        Poll::Ready(Ok(finish(body)))
                    }
                    Some(Err(error)) => Poll::Ready(Err(error)),
                    None => {
                        match &mut state.waker {
                            Some(waker) => waker.clone_from(context.waker()),
                            empty => *empty = Some(context.waker().clone()),
                        }
                        Poll::Pending
                    }
                }
            }
        }
    }
}
