//! Posted operations: the slots that hold them until they have ended.
//!
//! *Invariants*: endpoint.O1. An operation's buffer stays in its slot until the transport is done
//! with it, whether or not its future still exists (F8). endpoint.O2. A slot is reused only when
//! its operation has ended and its future has taken the result or is gone. Each use changes its
//! generation, and so the id on the wire: a late completion for an operation that has ended finds
//! no slot. endpoint.O3. `outcome` is set once.
//!
//! *Thread safety*: an endpoint's thread.

use crate::body::OpBody;
use crate::resources::EndpointResources;
use crate::{FabricError, ServerId};
use std::task::Waker;

/// One operation. `P` is its transport's progress.
#[derive(Debug)]
pub struct OpSlot<P> {
    generation: u32,
    /// Its parameters or result.
    pub body: OpBody,
    /// Its transport's progress.
    pub progress: P,
    /// The server that it is sent to.
    pub server: ServerId,
    /// Its deadline.
    pub deadline_ns: u64,
    outcome: Option<Result<(), FabricError>>,
    waker: Option<Waker>,
    /// Whether its future was dropped.
    abandoned: bool,
}

impl<P> OpSlot<P> {
    fn is_pending(&self) -> bool {
        self.outcome.is_none() && !matches!(self.body, OpBody::Taken)
    }

    /// Fences do not count against the depth.
    fn is_counted(body: &OpBody) -> bool {
        !matches!(body, OpBody::Fence { .. })
    }
}

/// An ended operation, taken out of its slot.
pub(super) type EndedOp = (OpBody, Option<Result<(), FabricError>>);

/// An endpoint's operations. Ids are `[generation:32][slot:32]`.
#[derive(Debug)]
pub struct OpSlots<P> {
    slots: Vec<OpSlot<P>>,
    vacant: Vec<u32>,
}

impl<P> Default for OpSlots<P> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<P: Default> OpSlots<P> {
    pub(super) fn insert(
        &mut self,
        body: OpBody,
        progress: P,
        server: ServerId,
        deadline_ns: u64,
        resources: &EndpointResources,
    ) -> u64 {
        if OpSlot::<P>::is_counted(&body) {
            resources.enter();
        }
        let fresh = OpSlot {
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
                *old = OpSlot { generation, ..fresh };
                slot
            }
            None => {
                self.slots.push(fresh);
                self.slots.len() as u32 - 1
            }
        };
        u64::from(self.slots[slot as usize].generation) << 32 | u64::from(slot)
    }

    /// The operation with this id, if it has not ended.
    #[inline]
    pub fn pending(&mut self, id: u64) -> Option<&mut OpSlot<P>> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        (u64::from(slot.generation) == id >> 32 && slot.is_pending()).then_some(slot)
    }

    /// The operation with this id, which its future still holds.
    #[inline]
    fn held(&mut self, id: u64) -> &mut OpSlot<P> {
        &mut self.slots[id as u32 as usize]
    }

    /// All operations that have not ended, with their ids.
    pub fn iter_pending(&self) -> impl Iterator<Item = (u64, &OpSlot<P>)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_pending())
            .map(|(index, slot)| (u64::from(slot.generation) << 32 | index as u64, slot))
    }

    /// The operations on `server` that have not ended.
    pub(super) fn pending_at(&self, server: ServerId) -> Vec<u64> {
        let theirs = self.iter_pending().filter(|(_, slot)| slot.server == server);
        theirs.map(|(id, _)| id).collect()
    }

    /// Whether the outcome of a WRITE to `server` is unknown and its task has not seen that yet.
    pub(super) fn has_unnoticed_write(&self, server: ServerId) -> bool {
        self.slots.iter().any(|slot| {
            slot.server == server
                && matches!(slot.body, OpBody::Write { .. })
                && matches!(slot.outcome, Some(Err(FabricError::Indeterminate { .. })))
        })
    }

    /// Ends an operation: sets its outcome and wakes its task. Counts an unknown outcome.
    #[inline]
    pub fn end(
        &mut self,
        id: u64,
        outcome: Result<(), FabricError>,
        resources: &EndpointResources,
    ) {
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

    /// The result of an ended operation; otherwise stores `waker` and returns `None`.
    #[inline]
    pub(super) fn poll(
        &mut self,
        id: u64,
        waker: &Waker,
        resources: &EndpointResources,
    ) -> Option<EndedOp> {
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

    /// Called when an operation's future is dropped: the operation still takes effect (F8).
    pub(super) fn abandon(&mut self, id: u64, resources: &EndpointResources) {
        let slot = self.held(id);
        slot.abandoned = true;
        if slot.outcome.is_some() {
            drop(self.free(id, resources));
        }
    }

    fn free(&mut self, id: u64, resources: &EndpointResources) -> EndedOp {
        let slot = self.held(id);
        // Whether a body counts never changes: no other kind of body becomes a fence, and no fence
        // becomes another kind.
        if OpSlot::<P>::is_counted(&slot.body) {
            resources.leave();
        }
        let body = std::mem::replace(&mut slot.body, OpBody::Taken);
        let outcome = slot.outcome.take();
        slot.progress = P::default();
        slot.waker = None;
        self.vacant.push(id as u32);
        (body, outcome)
    }
}
