//! Operations on one key that the clients of a compute server execute together: lookups share a
//! READ, and changes share a lock and a WRITE.
//!
//! While operations on a key are executed, those that come wait. Then one of them executes all that
//! have waited: it *leads* the group.
//!
//! *Invariants*
//! - smart.T1. A group is closed before its first READ is posted. So what the READ finds was there
//!   after each operation of the group had begun, and no operation gets an answer that was out of
//!   date when it began.
//! - smart.T2. Changes of a group take effect at once, by the WRITE or the CAS of its leader. Their
//!   answers are those of one after the other, in the order in which they came.
//! - smart.T3. If the leader's outcome is unknown, or if it is dropped after it may have posted a
//!   change, the outcome of each change of the group is unknown. Otherwise a group that fails has
//!   changed nothing, and each of its operations is executed by itself.
//! - smart.T4. A group has at most [`MOST`] operations, and waits for a bounded time.
//!
//! After Luo et al., *SMART* (OSDI 2023), which calls it read delegation and write combining.
//!
//! *Thread safety*: shared by all threads of a compute server.

use crate::index::IndexError;
use crate::remote::RemoteError;
use crate::rules;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Fabric, ServerId};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::BTreeMap;

/// Maximum number of operations of a group.
const MOST: usize = 64;
/// Looks at the outcome of a group. The first ones are close together, because a group takes a few
/// round trips; all of them take a quarter of a second.
const LOOKS: u32 = 32_768;
const CLOSE_LOOKS: u32 = 64;
const CLOSE_LOOK_NS: u64 = 500;
const FAR_LOOK_NS: u64 = 8_000;

/// The answers of a group, in the order of its operations.
pub(super) type Answers<A> = SmallVec<[A; 1]>;

/// Where an operation that another one executes finds its outcome.
type Seat<A> = Arc<Mutex<Option<Outcome<A>>>>;

#[derive(Clone, Debug)]
enum Outcome<A> {
    Answer(A),
    /// Nothing has changed.
    Nothing,
    /// The change may have happened.
    Unknown,
}

/// The keys that clients of a compute server are at.
#[derive(Debug)]
pub(super) struct Groups<O, A> {
    /// Whether the operations change their key.
    are_changes: bool,
    keys: Mutex<BTreeMap<u64, Key<O, A>>>,
}

#[derive(Debug)]
struct Key<O, A> {
    /// Whether a group is being executed.
    is_led: bool,
    waiting: Vec<(O, Seat<A>)>,
}

/// What an operation can do.
enum Role<'a, O, A> {
    Lead(Lead<'a, O, A>),
    Wait(Waiter<'a, O, A>),
    /// Execute itself alone.
    Alone,
}

/// The right to execute a group. The leader's own operation is not in there.
struct Lead<'a, O, A> {
    groups: &'a Groups<O, A>,
    key: u64,
    others: Vec<(O, Seat<A>)>,
    /// How many of them have come before the leader.
    earlier: usize,
    /// Whether a change may have been posted.
    may_change: Cell<bool>,
}

impl<O, A> Drop for Lead<'_, O, A> {
    /// Tells those that have no answer, and lets another operation lead.
    fn drop(&mut self) {
        for (_, seat) in self.others.drain(..) {
            let outcome = if self.may_change.get() { Outcome::Unknown } else { Outcome::Nothing };
            lock(&seat).get_or_insert(outcome);
        }
        let mut keys = lock(&self.groups.keys);
        if let Some(key) = keys.get_mut(&self.key) {
            key.is_led = false;
            if key.waiting.is_empty() {
                keys.remove(&self.key);
            }
        }
    }
}

/// An operation that waits for its outcome, or for its turn to lead.
struct Waiter<'a, O, A> {
    groups: &'a Groups<O, A>,
    key: u64,
    seat: Seat<A>,
}

impl<O, A> Drop for Waiter<'_, O, A> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl<'a, O, A> Waiter<'a, O, A> {
    /// Leaves the group, if it is not closed. Returns whether it was not.
    fn withdraw(&self) -> bool {
        let mut keys = lock(&self.groups.keys);
        let Some(key) = keys.get_mut(&self.key) else { return false };
        let before = key.waiting.len();
        key.waiting.retain(|(_, seat)| !Arc::ptr_eq(seat, &self.seat));
        let was_open = key.waiting.len() < before;
        if key.waiting.is_empty() && !key.is_led {
            keys.remove(&self.key);
        }
        was_open
    }

    /// Closes the group and leads it, if none is being executed (smart.T1).
    fn lead(&self) -> Option<Lead<'a, O, A>> {
        let mut keys = lock(&self.groups.keys);
        let key = keys.get_mut(&self.key).filter(|key| !key.is_led)?;
        let earlier = key.waiting.iter().position(|(_, seat)| Arc::ptr_eq(seat, &self.seat))?;
        key.is_led = true;
        let mut others = std::mem::take(&mut key.waiting);
        others.remove(earlier);
        let (groups, key) = (self.groups, self.key);
        Some(Lead { groups, key, others, earlier, may_change: Cell::new(false) })
    }
}

impl<O: Copy, A: Clone> Groups<O, A> {
    pub(super) fn new(are_changes: bool) -> Self {
        Self { are_changes, keys: Mutex::new(BTreeMap::new()) }
    }

    fn join(&self, number: u64, operation: O) -> Role<'_, O, A> {
        let mut keys = lock(&self.keys);
        let Some(key) = keys.get_mut(&number) else {
            keys.insert(number, Key { is_led: true, waiting: Vec::new() });
            let (others, may_change) = (Vec::new(), Cell::new(false));
            return Role::Lead(Lead { groups: self, key: number, others, earlier: 0, may_change });
        };
        if key.waiting.len() == MOST - 1 {
            return Role::Alone;
        }
        let seat: Seat<A> = Arc::new(Mutex::new(None));
        key.waiting.push((operation, seat.clone()));
        Role::Wait(Waiter { groups: self, key: number, seat })
    }

    /// Executes an operation on `key`, alone or with others. `execute` gets the operations of a
    /// group, and a flag to set before it posts a change. `server` has the index's root.
    ///
    /// # Errors
    /// Those of `execute`, and [`IndexError::Indeterminate`] if another client has executed the
    /// change and does not know the outcome (smart.T3).
    pub(super) async fn execute<F: Fabric>(
        &self,
        fabric: &F,
        (key, operation): (u64, O),
        server: ServerId,
        execute: impl AsyncFn(&[O], &Cell<bool>) -> Result<Answers<A>, IndexError>,
    ) -> Result<A, IndexError> {
        let alone = async || {
            let answers = execute(&[operation], &Cell::new(false)).await?;
            only(answers, server)
        };
        let waiter = match self.join(key, operation) {
            Role::Alone => return alone().await,
            Role::Lead(lead) => return self.led(fabric, lead, operation, server, execute).await,
            Role::Wait(waiter) => waiter,
        };
        for look in 0..LOOKS {
            let outcome = lock(&waiter.seat).take();
            match outcome {
                None => {}
                Some(Outcome::Answer(answer)) => return Ok(answer),
                Some(Outcome::Nothing) => return alone().await,
                Some(Outcome::Unknown) => return Err(unknown(server)),
            }
            if let Some(lead) = waiter.lead() {
                return self.led(fabric, lead, operation, server, execute).await;
            }
            let far = look >= CLOSE_LOOKS;
            fabric.sleep(if far { FAR_LOOK_NS } else { CLOSE_LOOK_NS }).await;
        }
        match waiter.withdraw() || !self.are_changes {
            true => alone().await,
            false => Err(unknown(server)),
        }
    }

    async fn led<F: Fabric>(
        &self,
        fabric: &F,
        mut lead: Lead<'_, O, A>,
        own: O,
        server: ServerId,
        execute: impl AsyncFn(&[O], &Cell<bool>) -> Result<Answers<A>, IndexError>,
    ) -> Result<A, IndexError> {
        let mut operations = SmallVec::<[O; 1]>::new();
        operations.extend(lead.others.iter().map(|(operation, _)| *operation));
        operations.insert(lead.earlier, own);
        let outcome = execute(&operations, &lead.may_change).await;
        if !matches!(outcome, Err(IndexError::Indeterminate(_))) {
            lead.may_change.set(false);
        }
        let mut answers = outcome?;
        if answers.len() != operations.len() {
            lead.may_change.set(true);
            return Err(unknown(server));
        }
        let own = answers.remove(lead.earlier);
        if !self.are_changes && fabric.breaks(rules::GROUPS_CLOSED) {
            let mut keys = lock(&self.keys);
            let late = keys.get_mut(&lead.key).map(|key| std::mem::take(&mut key.waiting));
            for (_, seat) in late.into_iter().flatten() {
                *lock(&seat) = Some(Outcome::Answer(own.clone()));
            }
        }
        for ((_, seat), answer) in lead.others.drain(..).zip(answers) {
            *lock(&seat) = Some(Outcome::Answer(answer));
        }
        Ok(own)
    }
}

/// The answer of a group of one.
pub(super) fn only<A>(answers: Answers<A>, server: ServerId) -> Result<A, IndexError> {
    answers.into_iter().next().ok_or_else(|| unknown(server))
}

fn unknown(server: ServerId) -> IndexError {
    RemoteError::Contended { retries: 0 }.after_a_change(server).into()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    type Changes = Groups<u64, u64>;

    fn waiter(changes: &Changes, operation: u64) -> Waiter<'_, u64, u64> {
        match changes.join(7, operation) {
            Role::Wait(waiter) => waiter,
            _ => panic!("{operation} does not wait"),
        }
    }

    /// A group is closed when it is led. A leader that is dropped tells its group what it knows,
    /// and lets another operation lead (smart.T1, smart.T3).
    #[test]
    fn a_group_outlives_its_leader() {
        for changed in [false, true] {
            let changes = Changes::new(true);
            let Role::Lead(first) = changes.join(7, 1) else { panic!("none is before it") };
            let [second, third] = [2, 3].map(|operation| waiter(&changes, operation));
            assert!(third.lead().is_none(), "the first one is at it");
            drop(first);
            let lead = third.lead().unwrap();
            assert_eq!((lead.earlier, lead.others.iter().map(|other| other.0).sum()), (1, 2_u64));
            let fourth = waiter(&changes, 4);
            assert!(!second.withdraw() && second.lead().is_none(), "its group is closed");
            lead.may_change.set(changed);
            drop(lead);
            let outcome = lock(&second.seat).take();
            let expected = match changed {
                true => matches!(outcome, Some(Outcome::Unknown)),
                false => matches!(outcome, Some(Outcome::Nothing)),
            };
            assert!(expected, "{outcome:?}");
            assert!(lock(&fourth.seat).is_none() && fourth.lead().is_some());
            drop((second, third, fourth));
            assert!(lock(&changes.keys).is_empty(), "nothing is left behind");
        }
    }

    #[test]
    fn a_group_has_a_limit() {
        let changes = Changes::new(true);
        let Role::Lead(_first) = changes.join(7, 0) else { panic!("none is before it") };
        let waiters: Vec<_> = (1..MOST as u64).map(|number| waiter(&changes, number)).collect();
        assert!(matches!(changes.join(7, 0), Role::Alone));
        assert!(waiters[5].withdraw());
        assert!(matches!(changes.join(7, 0), Role::Wait(_)));
    }
}
