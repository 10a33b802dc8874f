//! Posted operations: the slots that they live in, and the futures that wait for them.
//!
//! *Invariants*: O1. an operation's buffer stays in its slot until the operation has ended, whether anybody still
//! waits for it or not (F8). O2. a slot is used again only when its operation has ended and its future has taken the result or
//! is gone; with each use its generation, and so the id on the wire, is another: what comes late for an
//! operation that has ended finds nobody. O3. `outcome` is set once.
//!
//! *Thread safety*: an endpoint's thread.

use super::endpoint::Endpoint;
use super::frame::{
    Completion, NotDone, PIECE_BYTES, Piece, Request, write_frame, write_frame_bytes,
};
use super::queue::ByteQueue;
use crate::region::{load_bytes, store_bytes};
use crate::{Buffer, FabricError, GlobalAddr, Message, ServerId};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What an operation is to do, and later what came of it.
#[derive(Debug)]
pub(super) enum Body {
    Read {
        at: GlobalAddr,
        into: Buffer,
    },
    Write {
        at: GlobalAddr,
        from: Buffer,
    },
    CompareSwap {
        at: GlobalAddr,
        expected: u64,
        new: u64,
    },
    FetchAdd {
        at: GlobalAddr,
        delta: u64,
    },
    /// The value that an atomic found.
    Found(u64),
    /// A request, and later its reply.
    Call(Message),
    Fence {
        compute_server: u16,
    },
    Taken,
}

/// What a completion has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Completed {
    /// Other pieces are still to come.
    InPart,
    Ended(Result<(), FabricError>),
    /// It answers something else.
    Mismatch,
}

#[derive(Debug)]
pub(super) struct Slot {
    generation: u32,
    pub(super) body: Body,
    pub(super) server: ServerId,
    pub(super) deadline_ns: u64,
    /// Bytes of the buffer that frames have been made for, and that completions have come for.
    sent: usize,
    arrived: usize,
    /// Whether all of its frames have been made.
    pub(super) is_sent: bool,
    pub(super) outcome: Option<Result<(), FabricError>>,
    pub(super) waker: Option<Waker>,
    /// Nobody waits for it any more.
    abandoned: bool,
    /// Not counted against the endpoint's depth.
    pub(super) is_control: bool,
}

impl Slot {
    /// Whether the operation is under way.
    pub(super) fn is_pending(&self) -> bool {
        self.outcome.is_none() && !matches!(self.body, Body::Taken)
    }

    /// Makes frames as long as there is room for one; whether all have been made now.
    pub(super) fn encode(&mut self, id: u64, outgoing: &mut ByteQueue) -> bool {
        loop {
            let sent = self.sent;
            let piece = |at: GlobalAddr, buffer: &Buffer| {
                let length = (buffer.bytes() - sent).min(PIECE_BYTES) as u32;
                Piece { at, whole: buffer.bytes() as u32, first: sent as u32, length }
            };
            let (request, piece, whole) = match &self.body {
                Body::Write { at, from } => {
                    let piece = piece(*at, from);
                    let (length, bytes) = (piece.length as usize, from.bytes());
                    if outgoing.space() < write_frame_bytes(length) {
                        return false;
                    }
                    let first = sent / 8;
                    let frame = outgoing.push(write_frame_bytes(length));
                    let words = &from.words()[first..first + length / 8];
                    load_bytes(words, write_frame(id, piece, frame));
                    self.sent += length;
                    if self.sent == bytes {
                        self.is_sent = true;
                        return true;
                    }
                    continue;
                }
                Body::Read { at, into } => {
                    let piece = piece(*at, into);
                    (Request::Read(piece), piece.length as usize, into.bytes())
                }
                Body::CompareSwap { at, expected, new } => {
                    (Request::CompareSwap { at: *at, expected: *expected, new: *new }, 0, 0)
                }
                Body::FetchAdd { at, delta } => {
                    (Request::FetchAdd { at: *at, delta: *delta }, 0, 0)
                }
                Body::Call(request) => (Request::Call(request), 0, 0),
                Body::Fence { compute_server } => {
                    (Request::Fence { compute_server: *compute_server }, 0, 0)
                }
                Body::Found(_) | Body::Taken => return true,
            };
            if outgoing.space() < request.frame_bytes() {
                return false;
            }
            request.encode(id, outgoing.push(request.frame_bytes()));
            self.sent += piece;
            if self.sent == whole {
                self.is_sent = true;
                return true;
            }
        }
    }

    /// Whether no frame of it has been made, so that the server cannot have seen any.
    pub(super) fn is_unsent(&self) -> bool {
        self.sent == 0 && !self.is_sent
    }

    /// Takes a completion.
    pub(super) fn complete(&mut self, completion: Completion<'_>) -> Completed {
        use super::frame::Kind;
        match (&mut self.body, completion) {
            (Body::Read { into, .. }, Completion::Read(bytes)) => {
                let due = (into.bytes() - self.arrived).min(PIECE_BYTES);
                if bytes.len() != due || self.arrived >= self.sent.max(1) {
                    return Completed::Mismatch;
                }
                let first = self.arrived / 8;
                store_bytes(bytes, &into.words()[first..first + due / 8]);
                self.arrived += due;
                if self.arrived < into.bytes() {
                    return Completed::InPart;
                }
            }
            (Body::Write { from, .. }, Completion::Written) => {
                self.arrived += (from.bytes() - self.arrived).min(PIECE_BYTES);
                if self.arrived > self.sent {
                    return Completed::Mismatch;
                }
                if self.arrived < from.bytes() {
                    return Completed::InPart;
                }
            }
            (Body::CompareSwap { .. }, Completion::Swapped(found))
            | (Body::FetchAdd { .. }, Completion::Added(found)) => self.body = Body::Found(found),
            (Body::Call(message), Completion::Reply(reply)) => {
                message.clear();
                message.extend_from_slice(reply);
            }
            (Body::Fence { .. }, Completion::Fenced) => {}
            (Body::Read { at, into: buffer }, Completion::NotDone(Kind::Read, why))
            | (Body::Write { at, from: buffer }, Completion::NotDone(Kind::Write, why)) => {
                return Completed::Ended(Err(not_done(why, *at, buffer.bytes(), self.server)));
            }
            (Body::CompareSwap { at, .. }, Completion::NotDone(Kind::CompareSwap, why))
            | (Body::FetchAdd { at, .. }, Completion::NotDone(Kind::FetchAdd, why)) => {
                return Completed::Ended(Err(not_done(why, *at, 8, self.server)));
            }
            (Body::Call(_), Completion::NotDone(Kind::Call, why)) => {
                return Completed::Ended(Err(not_done(why, GlobalAddr::NULL, 0, self.server)));
            }
            _ => return Completed::Mismatch,
        }
        Completed::Ended(Ok(()))
    }
}

fn not_done(why: NotDone, at: GlobalAddr, bytes: usize, server: ServerId) -> FabricError {
    match why {
        NotDone::Unaligned => FabricError::Unaligned { at, bytes },
        NotDone::OutOfBounds { region_bytes } => {
            let region_bytes = usize::try_from(region_bytes).unwrap_or(usize::MAX);
            FabricError::OutOfBounds { at, bytes, region_bytes }
        }
        NotDone::NoSuchServer => FabricError::NoSuchServer(at.server()),
        NotDone::TooLarge { bytes } => {
            FabricError::MessageTooLarge { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }
        }
        NotDone::Unanswered => {
            FabricError::Indeterminate { server, why: crate::Uncertainty::ConnectionLost }
        }
    }
}

/// An endpoint's operations. Ids are `[generation:32][slot:32]`.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Operations that count against the depth.
    pub(super) taken: usize,
}

impl Slots {
    pub(super) fn insert(
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
            sent: 0,
            arrived: 0,
            is_sent: false,
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
    pub(super) fn pending(&mut self, id: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        (u64::from(slot.generation) == id >> 32 && slot.is_pending()).then_some(slot)
    }

    /// The operation of this id, which its future still holds.
    #[inline]
    fn held(&mut self, id: u64) -> &mut Slot {
        &mut self.slots[id as u32 as usize]
    }

    pub(super) fn iter_pending(&self) -> impl Iterator<Item = (u64, &Slot)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_pending())
            .map(|(index, slot)| (u64::from(slot.generation) << 32 | index as u64, slot))
    }

    /// Whether somebody has yet to learn that it is not known what became of a WRITE of theirs to `server`.
    pub(super) fn has_unnoticed_write(&self, server: ServerId) -> bool {
        self.slots.iter().any(|slot| {
            slot.server == server
                && matches!(slot.body, Body::Write { .. })
                && matches!(slot.outcome, Some(Err(FabricError::Indeterminate { .. })))
        })
    }

    /// The operation has ended: sets its outcome and wakes who waits for it.
    #[inline]
    pub(super) fn end(&mut self, id: u64, outcome: Result<(), FabricError>) {
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

/// A posted operation over TCP.
#[derive(Debug)]
#[must_use = "an operation is only known to have happened once it is awaited"]
pub struct TcpOp<T> {
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

impl<T> TcpOp<T> {
    pub(super) fn refused(error: FabricError) -> Self {
        Self { state: State::Refused(Some(error)) }
    }

    /// `finish` takes the value out of the ended operation.
    pub(super) fn posted(endpoint: Rc<Endpoint>, id: u64, finish: fn(Body) -> T) -> Self {
        Self { state: State::Posted { endpoint, id, finish } }
    }
}

impl<T> Unpin for TcpOp<T> {}

impl<T> Future for TcpOp<T> {
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

impl<T> Drop for TcpOp<T> {
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
