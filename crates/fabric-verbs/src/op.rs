//! Posted operations: the slots that they live in, and the futures that wait for them.
//!
//! *Invariants*: O1. an operation's buffer stays in its slot until the device is done with it, whether anybody still waits for
//! it or not (F8). O2. a slot is used again only when its operation has ended and its future has taken the result or is
//! gone; with each use its generation, and so its id, is another: what comes late for an operation that has ended finds
//! nobody. O3. `outcome` is set once.
//!
//! *Thread safety*: an endpoint's thread.

use crate::endpoint::Endpoint;
use farleaf_fabric::{Buffer, FabricError, GlobalAddr, Message, ServerId};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What an operation is to do, and later what came of it.
#[derive(Debug)]
pub(crate) enum Body {
    Read {
        at: GlobalAddr,
        into: Buffer,
    },
    Write {
        at: GlobalAddr,
        from: Buffer,
    },
    /// The device leaves what it found in `found`.
    CompareSwap {
        at: GlobalAddr,
        expected: u64,
        new: u64,
        found: Buffer,
    },
    FetchAdd {
        at: GlobalAddr,
        delta: u64,
        found: Buffer,
    },
    Call(Call),
    Fence {
        compute_server: u16,
    },
    Taken,
}

/// A call: its request, and what has come of its reply.
#[derive(Debug, Default)]
pub(crate) struct Call {
    pub(crate) request: Message,
    /// Bytes of the request that messages have been made for.
    pub(crate) sent: usize,
    pub(crate) reply: Message,
    /// Bytes of the reply that have been asked for, and all of them, once the first piece is there.
    pub(crate) asked: usize,
    pub(crate) whole: usize,
}

#[derive(Debug)]
pub(crate) struct Slot {
    generation: u32,
    pub(crate) body: Body,
    pub(crate) server: ServerId,
    pub(crate) deadline_ns: u64,
    outcome: Option<Result<(), FabricError>>,
    waker: Option<Waker>,
    /// Nobody waits for it any more.
    abandoned: bool,
    /// Not counted against the endpoint's depth.
    is_control: bool,
}

impl Slot {
    /// Whether the operation is under way.
    fn is_pending(&self) -> bool {
        self.outcome.is_none() && !matches!(self.body, Body::Taken)
    }

    /// Whether it is one that the device does alone.
    pub(crate) fn is_verb(&self) -> bool {
        !matches!(self.body, Body::Call(_) | Body::Fence { .. } | Body::Taken)
    }
}

/// An endpoint's operations. Ids are `[generation:32][slot:32]`.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Operations that count against the depth.
    pub(crate) taken: usize,
}

impl Slots {
    pub(crate) fn insert(
        &mut self,
        body: Body,
        server: ServerId,
        deadline_ns: u64,
        is_control: bool,
    ) -> u64 {
        let fresh = Slot {
            generation: 0,
            body,
            server,
            deadline_ns,
            outcome: None,
            waker: None,
            abandoned: false,
            is_control,
        };
        self.taken += usize::from(!is_control);
        let slot = match self.vacant.pop() {
            Some(slot) => {
                let old = &mut self.slots[slot as usize];
                let generation = old.generation.wrapping_add(1);
                *old = Slot { generation, ..fresh };
                slot
            }
            None => {
                self.slots.push(fresh);
                self.slots.len() as u32 - 1
            }
        };
        u64::from(self.slots[slot as usize].generation) << 32 | u64::from(slot)
    }

    /// The operation of this id, if it is under way.
    #[inline]
    pub(crate) fn pending(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        (u64::from(slot.generation) == id >> 32 && slot.is_pending()).then_some(slot)
    }

    /// The operation of this id, which its future still holds.
    #[inline]
    fn held(&mut self, id: u64) -> &mut Slot {
        &mut self.slots[id as u32 as usize]
    }

    pub(crate) fn iter_pending(&self) -> impl Iterator<Item = (u64, &Slot)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_pending())
            .map(|(index, slot)| (u64::from(slot.generation) << 32 | index as u64, slot))
    }

    /// Whether somebody has yet to learn that it is not known what became of a WRITE of theirs to `server`.
    pub(crate) fn has_unnoticed_write(&self, server: ServerId) -> bool {
        self.slots.iter().any(|slot| {
            slot.server == server
                && matches!(slot.body, Body::Write { .. })
                && matches!(slot.outcome, Some(Err(FabricError::Indeterminate { .. })))
        })
    }

    /// The operation has ended: sets its outcome and wakes who waits for it.
    #[inline]
    pub(crate) fn end(&mut self, id: u64, outcome: Result<(), FabricError>) {
        let slot = self.held(id);
        slot.outcome = Some(outcome);
        if slot.abandoned {
            self.free(id);
        } else if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    fn free(&mut self, id: u64) -> (Body, Option<Result<(), FabricError>>) {
        let slot = self.held(id);
        let body = std::mem::replace(&mut slot.body, Body::Taken);
        let outcome = slot.outcome.take();
        slot.waker = None;
        let counted = !slot.is_control;
        self.taken -= usize::from(counted);
        self.vacant.push(id as u32);
        (body, outcome)
    }
}

/// A posted operation over RDMA.
#[derive(Debug)]
#[must_use = "an operation is only known to have happened once it is awaited"]
pub struct VerbsOp<T> {
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    /// Refused when posted.
    Refused(Option<FabricError>),
    Posted {
        endpoint: Rc<Endpoint>,
        id: u64,
        finish: fn(Body) -> T,
    },
    Ended,
}

impl<T> VerbsOp<T> {
    pub(crate) fn refused(error: FabricError) -> Self {
        Self { state: State::Refused(Some(error)) }
    }

    /// `finish` takes the value out of the ended operation.
    pub(crate) fn posted(endpoint: Rc<Endpoint>, id: u64, finish: fn(Body) -> T) -> Self {
        Self { state: State::Posted { endpoint, id, finish } }
    }
}

impl<T> Unpin for VerbsOp<T> {}

impl<T> Future for VerbsOp<T> {
    type Output = Result<T, FabricError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (body, outcome, finish) = match &mut self.state {
            State::Refused(error) => {
                let error = error.take().expect("a completed operation is not polled again");
                return Poll::Ready(Err(error));
            }
            State::Posted { endpoint, id, finish } => {
                endpoint.close_batch();
                let mut core = endpoint.core.borrow_mut();
                let slot = core.slots.held(*id);
                if slot.outcome.is_none() {
                    match &mut slot.waker {
                        Some(waker) => waker.clone_from(context.waker()),
                        empty => *empty = Some(context.waker().clone()),
                    }
                    return Poll::Pending;
                }
                let (body, outcome) = core.slots.free(*id);
                (body, outcome.expect("it has just been seen"), *finish)
            }
            State::Ended => panic!("a completed operation is not polled again"),
        };
        self.state = State::Ended;
        Poll::Ready(outcome.map(|()| finish(body)))
    }
}

impl<T> Drop for VerbsOp<T> {
    fn drop(&mut self) {
        if let State::Posted { endpoint, id, .. } = &self.state {
            let mut core = endpoint.core.borrow_mut();
            let slot = core.slots.held(*id);
            slot.abandoned = true;
            if slot.outcome.is_some() {
                drop(core.slots.free(*id));
            }
        }
    }
}
