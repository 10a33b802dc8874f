//! Posted operations: the slots that they live in until they have ended.
//!
//! *Invariants*: O1. an operation's buffer stays in its slot until the transport is done with it,
//! whether its future still exists or not (F8). O2. a slot is used again only when its operation
//! has ended and its future has taken the result or is gone; with each use its generation, and so
//! the id on the wire, is another: what comes late for an operation that has ended finds no slot.
//! O3. `outcome` is set once.
//!
//! *Thread safety*: an endpoint's thread.

use crate::resources::Resources;
use crate::{Buffer, FabricError, GlobalAddr, Message, ServerId};
use std::task::Waker;

/// What an operation is to do, and later what came of it.
#[derive(Debug)]
pub enum Body {
    /// A READ.
    Read {
        /// From where.
        at: GlobalAddr,
        /// Into what.
        into: Buffer,
    },
    /// A WRITE.
    Write {
        /// To where.
        at: GlobalAddr,
        /// What.
        from: Buffer,
    },
    /// A CAS.
    CompareSwap {
        /// The word.
        at: GlobalAddr,
        /// What it must be.
        expected: u64,
        /// What it becomes then.
        new: u64,
    },
    /// A FETCH-ADD.
    FetchAdd {
        /// The word.
        at: GlobalAddr,
        /// What is added.
        delta: u64,
    },
    /// The value that an atomic found.
    Found(u64),
    /// A request, and later its reply.
    Call(Message),
    /// A fence.
    Fence {
        /// The compute server that is shut out.
        compute_server: u16,
    },
    /// The slot is free.
    Taken,
}

impl Body {
    /// Whether it is a one-sided verb.
    pub fn is_verb(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Write { .. }
                | Self::CompareSwap { .. }
                | Self::FetchAdd { .. }
        )
    }

    pub(super) fn into_buffer(self) -> Buffer {
        match self {
            Self::Read { into: buffer, .. } | Self::Write { from: buffer, .. } => buffer,
            other => unreachable!("a READ or a WRITE ends as one, not as {other:?}"),
        }
    }

    pub(super) fn into_value(self) -> u64 {
        match self {
            Self::Found(value) => value,
            other => unreachable!("an atomic ends with a value, not as {other:?}"),
        }
    }

    pub(super) fn into_reply(self) -> Message {
        match self {
            Self::Call(reply) => reply,
            other => unreachable!("a call ends with a reply, not as {other:?}"),
        }
    }
}

/// One operation. `P` is how far its transport has come with it.
#[derive(Debug)]
pub struct Slot<P> {
    generation: u32,
    /// What it is to do.
    pub body: Body,
    /// How far its transport has come.
    pub progress: P,
    /// Where.
    pub server: ServerId,
    /// When it must have ended.
    pub deadline_ns: u64,
    outcome: Option<Result<(), FabricError>>,
    waker: Option<Waker>,
    /// Its future was dropped.
    abandoned: bool,
}

impl<P> Slot<P> {
    fn is_pending(&self) -> bool {
        self.outcome.is_none() && !matches!(self.body, Body::Taken)
    }

    /// Fences do not count against the depth.
    fn is_counted(body: &Body) -> bool {
        !matches!(body, Body::Fence { .. })
    }
}

/// An operation that has ended, taken out of its slot.
pub(super) type Ended = (Body, Option<Result<(), FabricError>>);

/// An endpoint's operations. Ids are `[generation:32][slot:32]`.
#[derive(Debug)]
pub struct Slots<P> {
    slots: Vec<Slot<P>>,
    vacant: Vec<u32>,
}

impl<P> Default for Slots<P> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<P: Default> Slots<P> {
    pub(super) fn insert(
        &mut self,
        body: Body,
        progress: P,
        server: ServerId,
        deadline_ns: u64,
        resources: &Resources,
    ) -> u64 {
        if Slot::<P>::is_counted(&body) {
            resources.enter();
        }
        let fresh = Slot {
            generation: 0,
            body,
            progress,
            server,
            deadline_ns,
            outcome: None,
            waker: None,
            abandoned: false,
        };
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
    pub fn pending(&mut self, id: u64) -> Option<&mut Slot<P>> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        (u64::from(slot.generation) == id >> 32 && slot.is_pending()).then_some(slot)
    }

    /// The operation of this id, which its future still holds.
    #[inline]
    fn held(&mut self, id: u64) -> &mut Slot<P> {
        &mut self.slots[id as u32 as usize]
    }

    /// All operations that are under way, with their ids.
    pub fn iter_pending(&self) -> impl Iterator<Item = (u64, &Slot<P>)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_pending())
            .map(|(index, slot)| (u64::from(slot.generation) << 32 | index as u64, slot))
    }

    /// The operations towards `server` that are under way.
    pub(super) fn pending_at(&self, server: ServerId) -> Vec<u64> {
        let theirs = self.iter_pending().filter(|(_, slot)| slot.server == server);
        theirs.map(|(id, _)| id).collect()
    }

    /// Whether some task has yet to learn that the outcome of its WRITE to `server` is unknown.
    pub(super) fn has_unnoticed_write(&self, server: ServerId) -> bool {
        self.slots.iter().any(|slot| {
            slot.server == server
                && matches!(slot.body, Body::Write { .. })
                && matches!(slot.outcome, Some(Err(FabricError::Indeterminate { .. })))
        })
    }

    /// Ends an operation that is under way: sets its outcome and wakes its task. Counts an unknown
    /// outcome.
    #[inline]
    pub fn end(&mut self, id: u64, outcome: Result<(), FabricError>, resources: &Resources) {
        if matches!(outcome, Err(FabricError::Indeterminate { .. })) {
            resources.counters.count_indeterminate();
        }
        let slot = self.held(id);
        slot.outcome = Some(outcome);
        if slot.abandoned {
            self.free(id, resources);
        } else if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    /// What came of an operation whose future looks at it, or `None` and `waker` is kept.
    #[inline]
    pub(super) fn poll(&mut self, id: u64, waker: &Waker, resources: &Resources) -> Option<Ended> {
        let slot = self.held(id);
        if slot.outcome.is_none() {
            match &mut slot.waker {
                Some(kept) => kept.clone_from(waker),
                empty => *empty = Some(waker.clone()),
            }
            return None;
        }
        Some(self.free(id, resources))
    }

    /// The future of an operation is gone: what was posted happens all the same (F8).
    pub(super) fn abandon(&mut self, id: u64, resources: &Resources) {
        let slot = self.held(id);
        slot.abandoned = true;
        if slot.outcome.is_some() {
            drop(self.free(id, resources));
        }
    }

    fn free(&mut self, id: u64, resources: &Resources) -> Ended {
        let slot = self.held(id);
        // A fence that has ended is still one: nothing else changes the kind of a body to or from
        // it.
        if Slot::<P>::is_counted(&slot.body) {
            resources.leave();
        }
        let body = std::mem::replace(&mut slot.body, Body::Taken);
        let outcome = slot.outcome.take();
        slot.progress = P::default();
        slot.waker = None;
        self.vacant.push(id as u32);
        (body, outcome)
    }
}
