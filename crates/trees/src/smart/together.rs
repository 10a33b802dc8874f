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
//!   changed nothing, and each of its operations is executed by itself. A handle is settled only
//!   when the leaders of its own unknown outcomes are ([`UnresolvedChanges`]).
//! - smart.T4. A group has at most [`MAX_GROUP`] operations, and waits for a bounded time, which is
//!   longer than the pauses of its leader's operation.
//!
//! After Luo et al., *SMART* (OSDI 2023), which calls it read delegation and write combining.
//!
//! *Thread safety*: shared by all threads of a compute server.

use farleaf_fabric::sync::{Arc, AtomicBool, Mutex, Ordering, lock};
use farleaf_fabric::{Fabric, ServerId};
use farleaf_index::IndexError;
use farleaf_page::Octets;
use farleaf_page::rules;
use farleaf_pool::remote::RemoteError;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Maximum number of operations of a group.
const MAX_GROUP: usize = 64;
/// Maximum number of times that an operation checks for the outcome of its group. The first checks
/// are close together, because a group takes a few round trips. All of them take a second; an
/// operation gives up after 0.8 s of pauses.
const LOOKS: u32 = 131_072;
const CLOSE_LOOKS: u32 = 64;
const NEAR_POLL_INTERVAL_NS: u64 = 500;
const FAR_POLL_INTERVAL_NS: u64 = 8_000;

/// The answers of a group, in the order of its operations.
pub(super) type GroupAnswers<A> = SmallVec<[A; 1]>;

/// Where an operation that another one executes finds its outcome.
type OutcomeSlot<A> = Arc<Mutex<Option<GroupOutcome<A>>>>;

#[derive(Clone, Debug)]
enum GroupOutcome<A> {
    Answer(A),
    /// Nothing has changed.
    Nothing,
    /// The change may have happened, or may still happen while the leader has doubts.
    Unknown(Option<UnresolvedFlag>),
}

/// Whether a handle may have an unsettled outcome.
type UnresolvedFlag = Arc<AtomicBool>;

/// Changes of one handle whose outcomes are unknown.
#[derive(Debug)]
pub(super) struct UnresolvedChanges<A> {
    /// Shared with those whose changes this handle has executed.
    own: UnresolvedFlag,
    /// Leaders of changes of this handle that had doubts. Each is there once.
    leaders: RefCell<Vec<UnresolvedFlag>>,
    /// Changes that other handles were executing when this one stopped waiting.
    under_way: RefCell<Vec<OutcomeSlot<A>>>,
}

impl<A> UnresolvedChanges<A> {
    pub(super) fn new() -> Self {
        let (leaders, under_way) = (RefCell::default(), RefCell::default());
        Self { own: Arc::new(AtomicBool::new(false)), leaders, under_way }
    }

    /// Notes that this handle has no doubts.
    pub(super) fn settled(&self) {
        self.own.store(false, Ordering::Release);
    }

    /// Whether another handle may still make a change of this one.
    pub(super) fn waits_for_others(&self) -> bool {
        self.look();
        !self.leaders.borrow().is_empty() || !self.under_way.borrow().is_empty()
    }

    fn note(&self, seat: OutcomeSlot<A>) {
        self.under_way.borrow_mut().push(seat);
        self.look();
    }

    /// Drops what is settled.
    fn look(&self) {
        let mut leaders = self.leaders.borrow_mut();
        self.under_way.borrow_mut().retain(|seat| match &*lock(seat) {
            None => true,
            Some(GroupOutcome::Unknown(Some(leader))) => {
                if !leaders.iter().any(|known| Arc::ptr_eq(known, leader)) {
                    leaders.push(leader.clone());
                }
                false
            }
            Some(_) => false,
        });
        leaders.retain(|leader| leader.load(Ordering::Acquire));
    }
}

/// The keys on which clients of a compute server have operations in progress.
#[derive(Debug)]
pub(super) struct KeyGroups<O, A> {
    /// Whether the operations change their key.
    are_changes: bool,
    keys: Mutex<BTreeMap<Octets, GroupKey<O, A>>>,
}

#[derive(Debug)]
struct GroupKey<O, A> {
    /// Whether a group is being executed.
    is_led: bool,
    waiting: Vec<(O, OutcomeSlot<A>)>,
}

/// What an operation does about its group.
enum GroupRole<'a, O, A> {
    Lead(GroupLead<'a, O, A>),
    Wait(GroupWaiter<'a, O, A>),
    /// Execute itself alone.
    Alone,
}

/// The right to execute a group. The leader's own operation is not in there.
struct GroupLead<'a, O, A> {
    groups: &'a KeyGroups<O, A>,
    key: Octets,
    others: Vec<(O, OutcomeSlot<A>)>,
    /// How many of them have come before the leader.
    earlier: usize,
    /// Whether a change may have been posted.
    may_change: Cell<bool>,
    /// The leader's handle.
    leader: Option<UnresolvedFlag>,
}

impl<O, A> Drop for GroupLead<'_, O, A> {
    /// Tells those that have no answer, and lets another operation lead.
    fn drop(&mut self) {
        let may_change = self.may_change.get();
        if let Some(leader) = self.leader.as_ref().filter(|_| may_change) {
            leader.store(true, Ordering::Release);
        }
        for (_, seat) in self.others.drain(..) {
            lock(&seat).get_or_insert_with(|| match may_change {
                true => GroupOutcome::Unknown(self.leader.clone()),
                false => GroupOutcome::Nothing,
            });
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
struct GroupWaiter<'a, O, A> {
    groups: &'a KeyGroups<O, A>,
    key: Octets,
    seat: OutcomeSlot<A>,
    /// Of its handle; `None` if the operation changes nothing.
    unsettled: Option<&'a UnresolvedChanges<A>>,
}

impl<O, A> Drop for GroupWaiter<'_, O, A> {
    /// Leaves the group. If it is closed, its leader may make the change (smart.T3).
    fn drop(&mut self) {
        if !self.withdraw()
            && let Some(unsettled) = self.unsettled
        {
            unsettled.note(self.seat.clone());
        }
    }
}

impl<'a, O, A> GroupWaiter<'a, O, A> {
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
    fn lead(&self) -> Option<GroupLead<'a, O, A>> {
        let mut keys = lock(&self.groups.keys);
        let key = keys.get_mut(&self.key).filter(|key| !key.is_led)?;
        let earlier = key.waiting.iter().position(|(_, seat)| Arc::ptr_eq(seat, &self.seat))?;
        key.is_led = true;
        *lock(&self.seat) = Some(GroupOutcome::Nothing); // it executes itself
        let mut others = std::mem::take(&mut key.waiting);
        others.remove(earlier);
        let (groups, key) = (self.groups, self.key.clone());
        Some(GroupLead { groups, key, others, earlier, may_change: Cell::new(false), leader: None })
    }
}

impl<O: Clone, A: Clone> KeyGroups<O, A> {
    pub(super) fn new(are_changes: bool) -> Self {
        Self { are_changes, keys: Mutex::new(BTreeMap::new()) }
    }

    fn join<'a>(
        &'a self,
        number: &Octets,
        operation: O,
        unsettled: Option<&'a UnresolvedChanges<A>>,
    ) -> GroupRole<'a, O, A> {
        let mut keys = lock(&self.keys);
        let Some(key) = keys.get_mut(number) else {
            keys.insert(number.clone(), GroupKey { is_led: true, waiting: Vec::new() });
            let (others, may_change, leader) = (Vec::new(), Cell::new(false), None);
            let (groups, key, earlier) = (self, number.clone(), 0);
            return GroupRole::Lead(GroupLead { groups, key, others, earlier, may_change, leader });
        };
        if key.waiting.len() == MAX_GROUP - 1 {
            return GroupRole::Alone;
        }
        let seat: OutcomeSlot<A> = Arc::new(Mutex::new(None));
        key.waiting.push((operation, seat.clone()));
        GroupRole::Wait(GroupWaiter { groups: self, key: number.clone(), seat, unsettled })
    }

    /// Executes an operation on `key`, alone or with others. `execute` gets the operations of a
    /// group, and a flag to set before it posts a change. `server` has the index's root;
    /// `unsettled` is the handle's, if they are changes.
    ///
    /// # Errors
    /// Those of `execute`, and [`IndexError::Indeterminate`] if another client has executed the
    /// change and does not know the outcome (smart.T3).
    pub(super) async fn execute<F: Fabric>(
        &self,
        fabric: &F,
        (key, operation): (Octets, O),
        (server, unsettled): (ServerId, Option<&UnresolvedChanges<A>>),
        execute: impl AsyncFn(&[O], &Cell<bool>) -> Result<GroupAnswers<A>, IndexError>,
    ) -> Result<A, IndexError> {
        let alone = async || {
            let alone = std::slice::from_ref(&operation);
            let answers = execute(alone, &Cell::new(false)).await?;
            only(answers, server)
        };
        let lead = async |mut lead: GroupLead<'_, O, A>| {
            lead.leader = unsettled.map(|unsettled| unsettled.own.clone());
            self.led(fabric, lead, operation.clone(), server, &execute).await
        };
        let waiter = match self.join(&key, operation.clone(), unsettled) {
            GroupRole::Alone => return alone().await,
            GroupRole::Lead(first) => return lead(first).await,
            GroupRole::Wait(waiter) => waiter,
        };
        let mut is_open = false;
        for look in 0..=LOOKS {
            // The last check comes after the operation has left the group, for an outcome from
            // before.
            is_open = look == LOOKS && waiter.withdraw();
            let outcome = lock(&waiter.seat).clone();
            match outcome {
                None => {}
                Some(GroupOutcome::Answer(answer)) => return Ok(answer),
                Some(GroupOutcome::Nothing) => return alone().await,
                Some(GroupOutcome::Unknown(_)) => return Err(unknown(server)),
            }
            if look == LOOKS {
                break;
            }
            if let Some(next) = waiter.lead() {
                return lead(next).await;
            }
            let far = look >= CLOSE_LOOKS;
            fabric.sleep(if far { FAR_POLL_INTERVAL_NS } else { NEAR_POLL_INTERVAL_NS }).await;
        }
        match is_open || !self.are_changes {
            true => alone().await,
            false => Err(unknown(server)),
        }
    }

    async fn led<F: Fabric>(
        &self,
        fabric: &F,
        mut lead: GroupLead<'_, O, A>,
        own: O,
        server: ServerId,
        execute: &impl AsyncFn(&[O], &Cell<bool>) -> Result<GroupAnswers<A>, IndexError>,
    ) -> Result<A, IndexError> {
        let mut operations = SmallVec::<[O; 1]>::new();
        operations.extend(lead.others.iter().map(|(operation, _)| operation.clone()));
        operations.insert(lead.earlier, own);
        let outcome = execute(&operations, &lead.may_change).await;
        if !matches!(outcome, Err(IndexError::Indeterminate(_)))
            || fabric.breaks(rules::GROUPS_IN_DOUBT)
        {
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
                *lock(&seat) = Some(GroupOutcome::Answer(own.clone()));
            }
        }
        for ((_, seat), answer) in lead.others.drain(..).zip(answers) {
            *lock(&seat) = Some(GroupOutcome::Answer(answer));
        }
        Ok(own)
    }
}

/// The answer of a group of one.
pub(super) fn only<A>(answers: GroupAnswers<A>, server: ServerId) -> Result<A, IndexError> {
    answers.into_iter().next().ok_or_else(|| unknown(server))
}

fn unknown(server: ServerId) -> IndexError {
    RemoteError::Contended { retries: 0 }.after_a_change(server).into()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    type NumberGroups = KeyGroups<u64, u64>;

    fn key() -> Octets {
        Octets::from_slice(b"key")
    }

    fn waiter<'a>(
        changes: &'a NumberGroups,
        operation: u64,
        unsettled: &'a UnresolvedChanges<u64>,
    ) -> GroupWaiter<'a, u64, u64> {
        match changes.join(&key(), operation, Some(unsettled)) {
            GroupRole::Wait(waiter) => waiter,
            _ => panic!("{operation} does not wait"),
        }
    }

    /// A group is closed when it is led. A leader that is dropped tells its group what it knows,
    /// and lets another operation lead (smart.T1, smart.T3).
    #[test]
    fn a_group_outlives_its_leader() {
        for changed in [false, true] {
            let (changes, leader, other) =
                (NumberGroups::new(true), UnresolvedChanges::new(), UnresolvedChanges::new());
            let GroupRole::Lead(first) = changes.join(&key(), 1, Some(&leader)) else {
                panic!("none before it")
            };
            let [second, third] = [2, 3].map(|operation| waiter(&changes, operation, &other));
            assert!(third.lead().is_none(), "the first one is at it");
            drop(first);
            let mut lead = third.lead().unwrap();
            lead.leader = Some(leader.own.clone());
            assert_eq!((lead.earlier, lead.others.iter().map(|other| other.0).sum()), (1, 2_u64));
            let fourth = waiter(&changes, 4, &other);
            assert!(!second.withdraw() && second.lead().is_none(), "its group is closed");
            lead.may_change.set(changed);
            drop(lead);
            let outcome = lock(&second.seat).clone();
            let expected = match changed {
                true => matches!(outcome, Some(GroupOutcome::Unknown(_))),
                false => matches!(outcome, Some(GroupOutcome::Nothing)),
            };
            assert!(expected, "{outcome:?}");
            assert!(lock(&fourth.seat).is_none() && fourth.lead().is_some());
            drop((second, third, fourth));
            assert!(lock(&changes.keys).is_empty(), "nothing is left behind");
            assert_eq!(other.waits_for_others(), changed, "the leader may be in doubt");
            leader.settled();
            assert!(!other.waits_for_others());
        }
    }

    /// A change that its handle waits for no longer may be made until its leader ends, or is
    /// settled (smart.T3).
    #[test]
    fn a_change_under_way_is_unsettled() {
        let groups = NumberGroups::new(true);
        let [leader, second, third, other] = [(); 4].map(|()| UnresolvedChanges::new());
        let GroupRole::Lead(first) = groups.join(&key(), 1, None) else {
            panic!("none is before it")
        };
        let [next, one, two] =
            [(2, &leader), (3, &second), (4, &third)].map(|(n, of)| waiter(&groups, n, of));
        drop(waiter(&groups, 5, &other));
        assert!(!other.waits_for_others(), "its group is open");
        drop(first);
        let mut lead = next.lead().unwrap();
        lead.leader = Some(leader.own.clone());
        drop((one, two));
        let waiting = || [&second, &third].map(UnresolvedChanges::waits_for_others);
        assert_eq!(waiting(), [true; 2]);
        let (_, seat) = lead.others.remove(0);
        *lock(&seat) = Some(GroupOutcome::Answer(0));
        assert_eq!(waiting(), [false, true], "one has an answer");
        lead.may_change.set(true);
        drop(lead);
        assert_eq!(waiting(), [false, true], "the leader is in doubt");
        leader.settled();
        assert_eq!(waiting(), [false; 2]);
        drop(next);
        assert!(!leader.waits_for_others(), "it has led");
    }

    #[test]
    fn a_group_has_a_limit() {
        let (changes, of) = (NumberGroups::new(true), &UnresolvedChanges::new());
        let GroupRole::Lead(_first) = changes.join(&key(), 0, None) else {
            panic!("none is before it")
        };
        let waiters: Vec<_> =
            (1..MAX_GROUP as u64).map(|number| waiter(&changes, number, of)).collect();
        assert!(matches!(changes.join(&key(), 0, None), GroupRole::Alone));
        assert!(waiters[5].withdraw());
        assert!(matches!(changes.join(&key(), 0, None), GroupRole::Wait(_)));
    }
}
