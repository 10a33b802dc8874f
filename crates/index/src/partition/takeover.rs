//! Takeovers: a living compute server serves the keys of a dead one.
//!
//! A takeover is a pending move whose giver is dead. [`next`] decides who takes the keys; programs
//! and the simulator share it. The taker then ends the dead server's life, and puts the map of the
//! next epoch. Clients that miss the dead server find that map.
//!
//! *Invariants* (`docs/internals/takeover.md`)
//! - over.T1. Before another compute server serves a dead one's keys, the dead one is fenced at
//!   every memory server, its half-done writes are finished, and a right to answer has passed since
//!   the last fence.
//! - over.T2. A compute server sends an answer only within its right, checked after the read
//!   (`right.rs`).
//! - over.T3. One put decides who takes the keys, and one that they are taken (record.MR1, MR2).
//!   What a taker does for the dead server goes over endpoints of that server, connected before the
//!   record is read once more: the fence of a later taker, and that of the server's next life,
//!   follow their own puts, and cut them off.
//! - over.T4. Nothing of the dead server is deleted before the second put.
//! - over.T5. When the taker serves, no list of the dead server has chunks that a taken leaf refers
//!   to.
//!
//! *Thread safety*: [`next`] is pure; the rest belongs to its endpoint's thread.

use super::life::end_life_in;
use super::probe::{probe, probe_all};
use super::transfer::fence_and_wait;
use super::{MapState, MapStore, PendingMove, PutOutcome, Worker};
use crate::{IndexError, OwnedRange, PartIndex, PartState, Partitioned, ValueForm};
use farleaf_fabric::sync::Ordering;
use farleaf_fabric::{Fabric, ServerId};
use farleaf_page::rules;
use farleaf_page::{Layout, OwnedKey};
use futures_util::future::LocalBoxFuture;
use std::collections::{BTreeMap, BTreeSet};

/// For how many rights the compute server whose turn it is may stay idle, until the next one may
/// take the keys.
const RIGHTS_IN_A_TURN: u64 = 6;
/// For how many rights a compute server that was never seen counts as one that still starts.
const RIGHTS_UNTIL_MISSED: u64 = 20;

/// Which compute servers were registered, as one compute server has seen it.
#[derive(Clone, Debug)]
pub(super) struct LivenessView {
    right_ns: u64,
    began_ns: u64,
    registered: BTreeSet<u16>,
    /// When each server that was seen was found to be gone.
    gone_ns: BTreeMap<u16, u64>,
    seen: BTreeSet<u16>,
    /// The pending move, and since when it was seen.
    moving: Option<(u64, u64)>,
}

impl LivenessView {
    /// A view that has seen nothing.
    pub(super) fn new(right_ns: u64, now_ns: u64) -> Self {
        Self {
            right_ns,
            began_ns: now_ns,
            registered: BTreeSet::new(),
            gone_ns: BTreeMap::new(),
            seen: BTreeSet::new(),
            moving: None,
        }
    }

    /// Notes a list of the registered compute servers, and the record's pending move.
    pub(super) fn note<K>(&mut self, state: &MapState<K>, registered: BTreeSet<u16>, now_ns: u64) {
        for server in self.registered.difference(&registered) {
            self.gone_ns.insert(*server, now_ns);
        }
        self.gone_ns.retain(|server, _| !registered.contains(server));
        self.seen.extend(&registered);
        self.registered = registered;
        let id = state.moving.as_ref().map(|moving| moving.id);
        if self.moving.map(|(id, _)| id) != id {
            self.moving = id.map(|id| (id, now_ns));
        }
    }

    /// For how long a server has counted as dead; `None` if it does not.
    fn dead_ns(&self, server: u16, now_ns: u64) -> Option<u64> {
        if self.registered.contains(&server) {
            return None;
        }
        let since_ns = match self.gone_ns.get(&server) {
            Some(gone_ns) => *gone_ns,
            None if self.seen.contains(&server) => return None,
            // It may not have started yet.
            None => self.began_ns + self.right_ns * RIGHTS_UNTIL_MISSED,
        };
        now_ns.checked_sub(since_ns)
    }

    /// Which of several candidates has its turn after this time.
    fn turn(&self, candidates: &[u16], waited_ns: u64) -> Option<u16> {
        let turns = waited_ns / (self.right_ns * RIGHTS_IN_A_TURN).max(1);
        let place = (turns % candidates.len().max(1) as u64) as usize;
        candidates.get(place).copied()
    }
}

/// What a compute server has to do about dead ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeoverStep {
    /// Nothing now.
    Nothing,
    /// Put a takeover of this server's keys into the record, by itself.
    Begin {
        /// The dead server.
        dead: u16,
    },
    /// Continue the pending takeover, which is this server's.
    Continue,
}

/// The servers that can take the keys of `dead`: those without keys, then its neighbours.
fn candidates<K: Clone + Ord>(state: &MapState<K>, view: &LivenessView, dead: u16) -> Vec<u16> {
    let owners = state.map.owners();
    let Some(place) = owners.iter().position(|owner| *owner == dead) else { return Vec::new() };
    let spares = view.registered.iter().copied().filter(|server| !owners.contains(server));
    let beside = [place.checked_sub(1), Some(place + 1)].into_iter().flatten();
    let beside = beside.filter_map(|at| owners.get(at).copied());
    let beside = beside.filter(|server| view.registered.contains(server));
    spares.chain(beside).collect()
}

/// What `me` has to do, by the record and what it has seen of the others. Each server only ever
/// decides for itself; two that decide at the same time put, and one put fails.
pub(super) fn next<K: Clone + Ord>(
    state: &MapState<K>,
    view: &LivenessView,
    me: u16,
    now_ns: u64,
) -> TakeoverStep {
    // A replacement whose builder is dead ends with the builder's next life (record.MR4).
    if state.replacing.is_some() {
        return TakeoverStep::Nothing;
    }
    let dead_ns = |server| view.dead_ns(server, now_ns);
    let begins = |dead: u16, without: Option<u16>, waited_ns: u64| {
        let mut candidates = candidates(state, view, dead);
        candidates.retain(|server| Some(*server) != without);
        view.turn(&candidates, waited_ns) == Some(me)
    };
    let anyone = || {
        let owners = state.map.owners().iter().copied().filter(|owner| *owner != me);
        let mut dead = owners.filter_map(|owner| dead_ns(owner).map(|ns| (owner, ns)));
        let mine = dead.find(|(owner, waited_ns)| begins(*owner, None, *waited_ns));
        mine.map_or(TakeoverStep::Nothing, |(dead, _)| TakeoverStep::Begin { dead })
    };
    // The pending move of two dead servers. If the giver has no living neighbour, the keys of
    // another dead one have to be taken first: then it has one.
    let given_up = |pending: &PendingMove<K>, waited_ns: u64| {
        let from = pending.from;
        match begins(from, Some(pending.to), waited_ns) {
            true => TakeoverStep::Begin { dead: from },
            false if candidates(state, view, from).is_empty() => anyone(),
            false => TakeoverStep::Nothing,
        }
    };
    match &state.moving {
        Some(pending) if pending.dead && pending.to == me => TakeoverStep::Continue,
        Some(pending) if pending.dead => {
            let idle_ns = view.moving.map_or(0, |(_, since_ns)| now_ns.saturating_sub(since_ns));
            let late_ns = idle_ns.checked_sub(view.right_ns * RIGHTS_IN_A_TURN);
            match dead_ns(pending.to).or(late_ns) {
                Some(waited_ns) => given_up(pending, waited_ns),
                None => TakeoverStep::Nothing,
            }
        }
        // The keys of an ordinary move are clean, and its taker needs nothing of the giver.
        Some(pending) => match (dead_ns(pending.from), dead_ns(pending.to)) {
            (Some(waited_ns), Some(_)) => given_up(pending, waited_ns),
            _ => TakeoverStep::Nothing,
        },
        None => anyone(),
    }
}

/// A dead compute server whose life its taker ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadServer<K> {
    /// Its number.
    pub number: u16,
    /// The pending move that names it.
    pub move_id: u64,
    /// The keys that it owned.
    pub range: OwnedRange<K>,
}

/// What a taker needs of its program.
pub trait TakeoverHost<K> {
    /// The compute servers that are registered; `None` if that cannot be found out now. The list
    /// may be old.
    fn registered(&self) -> LocalBoxFuture<'_, Option<BTreeSet<u16>>>;

    /// Runs [`end_dead_incarnation`] over a new endpoint of the dead server.
    fn end_life(&self, dead: DeadServer<K>) -> LocalBoxFuture<'_, Result<(), IndexError>>;

    /// Whether all memory servers answer a new endpoint of no compute server.
    fn reaches_memory(&self) -> LocalBoxFuture<'_, bool>;
}

/// Ends the life of a dead compute server, which is fenced at all memory servers and whose right
/// has ended, on behalf of its taker: everything that a taker does before its put of the new map.
/// `fabric` is an endpoint of the dead server that was opened after the fences. `options` are those
/// of the taker.
///
/// # Errors
/// [`IndexError::Contended`] if the record has another pending move by now; otherwise as
/// [`PartPool::end_former_incarnation`](crate::PartPool::end_former_incarnation). It can be
/// repeated.
pub async fn end_dead_incarnation<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>>(
    fabric: F,
    options: &D::ServerOptions,
    store: &dyn MapStore<OwnedKey<L>>,
    dead: &DeadServer<OwnedKey<L>>,
) -> Result<(), IndexError> {
    // Connected everywhere before the record is read: a fence that follows a later put cuts this
    // endpoint off (over.T3).
    probe_all::<L>(&fabric).await?;
    let pool = D::open_pool::<F, L>(fabric.clone()).await?;
    let is_pending = |state: &MapState<OwnedKey<L>>| {
        state.moving.as_ref().is_some_and(|moving| moving.dead && moving.id == dead.move_id)
    };
    match store.read().await {
        Some((state, _)) if is_pending(&state) => {}
        _ => return Err(IndexError::Contended { retries: 0 }),
    }
    end_life_in::<D, F, L>(&pool, options, dead.number, &dead.range).await?;
    if !fabric.breaks(rules::DEAD_CHUNKS_STRUCK) {
        V::disown(&fabric).await?; // over.T5
    }
    Ok(())
}

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> Worker<D, F, L, V> {
    /// Probes every memory server by itself, so that one that does not answer does not end the
    /// right to answer. Returns at once where keys are not taken over. One task of a compute server
    /// is enough.
    pub async fn keep_right(&self, ended: &dyn Fn() -> bool) {
        let Some(right) = self.server().right() else { return };
        let fabric = self.fabric();
        let probes = (0..fabric.memory_servers()).map(ServerId::new).map(async |server| {
            while !ended() {
                let posted_ns = fabric.now_ns();
                if probe::<L, _>(fabric, server).await.is_ok() {
                    right.renew(posted_ns);
                }
                fabric.sleep(right.probe_interval_ns()).await;
            }
        });
        crate::together::all(probes).await;
    }

    /// Looks for dead compute servers until `ended` returns true, and takes keys over when it is
    /// this server's turn. One task of a compute server is enough.
    pub async fn watch_takeovers(
        &self,
        host: &dyn TakeoverHost<OwnedKey<L>>,
        ended: &dyn Fn() -> bool,
    ) {
        let Some(right) = self.server().right() else { return };
        let began_ns = self.fabric().now_ns();
        let mut view = LivenessView::new(right.options.right_ns, began_ns);
        let mut ended_life = None;
        while !ended() {
            self.look_for_dead(host, &mut view, &mut ended_life).await;
            if right.is_doubtful(self.fabric().now_ns(), began_ns) && host.reaches_memory().await {
                right.lose(); // it is fenced: others reach the memory servers
            }
            self.fabric().sleep(right.options.poll_ns).await;
        }
    }

    async fn look_for_dead(
        &self,
        host: &dyn TakeoverHost<OwnedKey<L>>,
        view: &mut LivenessView,
        ended_life: &mut Option<u64>,
    ) -> Option<()> {
        let (server, me) = (self.server(), self.server().number());
        let mut registered = host.registered().await?;
        registered.insert(me);
        let (state, version) = self.store().read().await?;
        if server.lost_keys_by(&state) {
            server.right()?.lose();
            return None;
        }
        let now_ns = self.fabric().now_ns();
        view.note(&state, registered, now_ns);
        let pending = match next(&state, view, me, now_ns) {
            TakeoverStep::Nothing => return None,
            TakeoverStep::Continue => state.moving.clone()?,
            TakeoverStep::Begin { dead } => {
                let _moving = server.begin_move()?;
                let _entered = server.enter()?;
                let is_mine = state.map.range_of(me).is_same(&server.state().range());
                if !is_mine || state.map.epoch() != server.epoch() {
                    return None;
                }
                let id = self.fabric().unique();
                let begun = PendingMove { id, from: dead, to: me, at: None, dead: true };
                let planned = state.planned(&begun).ok()?;
                state.map.checked_after::<L>(&planned).ok()?;
                let pending = MapState { moving: Some(begun.clone()), ..state.clone() };
                if !self.store().takes(&pending)
                    || self.store().put_if(version, &pending).await != PutOutcome::Done
                {
                    return None;
                }
                begun
            }
        };
        self.take_dead_over(host, &pending, ended_life).await
    }

    async fn take_dead_over(
        &self,
        host: &dyn TakeoverHost<OwnedKey<L>>,
        pending: &PendingMove<OwnedKey<L>>,
        ended_life: &mut Option<u64>,
    ) -> Option<()> {
        let server = self.server();
        let right = server.right()?;
        let (state, _) = self.store().read().await?;
        if state.moving.as_ref() != Some(pending) {
            return None;
        }
        if *ended_life != Some(pending.id) {
            fence_and_wait(self.fabric(), pending.from, right.wait_ns()).await.ok()?; // over.T1
            let range = state.planned(pending).ok()?.keys;
            let dead = DeadServer { number: pending.from, move_id: pending.id, range };
            host.end_life(dead).await.ok()?;
            *ended_life = Some(pending.id);
        }
        let _moving = server.begin_move()?;
        let _entered = server.enter()?;
        let (state, version) = self.store().read().await?;
        if state.moving.as_ref() != Some(pending) {
            return None;
        }
        let planned = state.planned(pending).ok()?;
        self.index().prepare_take_over(&planned.grown).await.ok()?;
        let map = state.map.checked_after::<L>(&planned).ok()?;
        let decided = MapState { map, moving: None, ..state };
        if self.store().put_if(version, &decided).await != PutOutcome::Done {
            return None; // it may land later: the record tells
        }
        right.takeovers.fetch_add(1, Ordering::Relaxed);
        // If this fails, `follow_map` adopts the map.
        self.adopt(&decided.map).await.ok()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::partition::{PartitionMap, Replacement};
    use farleaf_page::Fixed8;
    use proptest::prelude::*;

    const RIGHT: u64 = 100;
    const TURN: u64 = RIGHT * RIGHTS_IN_A_TURN;

    fn settled(owners: &[u16]) -> MapState<u64> {
        let boundaries = (1..owners.len() as u64).map(|place| place * 10).collect();
        let map = PartitionMap::from_owners::<Fixed8>(3, boundaries, owners.to_vec());
        MapState::settled(map.unwrap())
    }

    fn moving(owners: &[u16], from: u16, to: u16, dead: bool) -> MapState<u64> {
        let moving = Some(PendingMove { id: 7, from, to, at: None, dead });
        MapState { moving, ..settled(owners) }
    }

    /// A view of servers that were all there at 0, before the pending move, and of which these were
    /// left at 1,000.
    fn view(state: &MapState<u64>, were: u16, left: &[u16]) -> LivenessView {
        let mut view = LivenessView::new(RIGHT, 0);
        view.note(&MapState::settled(state.map.clone()), (0..were).collect(), 0);
        view.note(state, left.iter().copied().collect(), 1_000);
        view
    }

    fn turns(state: &MapState<u64>, view: &LivenessView, now_ns: u64) -> Vec<(u16, TakeoverStep)> {
        let steps = view.registered.iter().map(|me| (*me, next(state, view, *me, now_ns)));
        steps.filter(|(_, step)| *step != TakeoverStep::Nothing).collect()
    }

    #[test]
    fn a_server_without_keys_comes_first_and_each_neighbour_in_its_turn() {
        let begin = |me, dead| vec![(me, TakeoverStep::Begin { dead })];
        let state = settled(&[0, 1, 2]);
        assert_eq!(turns(&state, &view(&state, 4, &[0, 1, 2, 3]), 9_999), []);
        let spare = view(&state, 4, &[0, 2, 3]);
        assert_eq!(turns(&state, &spare, 1_000), begin(3, 1));
        assert_eq!(turns(&state, &spare, 1_000 + TURN), begin(0, 1));
        assert_eq!(turns(&state, &spare, 1_000 + 2 * TURN), begin(2, 1));
        let neighbours = view(&state, 3, &[0, 2]);
        assert_eq!(turns(&state, &neighbours, 1_000), begin(0, 1));
        // The one beside a dead one can be dead, too: then the other end begins.
        let end = view(&state, 3, &[2]);
        assert_eq!(turns(&state, &end, 1_000), begin(2, 1));
    }

    /// With one server left between dead ones, a takeover was pending for good if its taker had
    /// been the only neighbour of the giver.
    #[test]
    fn the_keys_of_a_dead_taker_are_taken_first_if_the_giver_has_no_other_neighbour() {
        for dead in [true, false] {
            let state = moving(&[0, 1, 2], 2, 1, dead);
            let alone = view(&state, 3, &[0]);
            assert_eq!(turns(&state, &alone, 1_000), [(0, TakeoverStep::Begin { dead: 1 })]);
        }
    }

    /// Whoever dies, and whatever is pending between them: as long as anyone is left, someone has
    /// something to do.
    #[test]
    fn nobody_stays_dead_for_good() {
        let owners = [3, 0, 2, 1];
        let pending = owners.iter().flat_map(|from| owners.iter().map(move |to| (*from, *to)));
        let pending: Vec<_> = pending.filter(|(from, to)| from != to).collect();
        for left in 1..15_u16 {
            let left: Vec<u16> = (0..4).filter(|server| left >> server & 1 == 1).collect();
            let is_dead = |server: u16| !left.contains(&server);
            let between = pending.iter().filter(|(from, to)| is_dead(*from) && is_dead(*to));
            let states = between
                .flat_map(|(from, to)| [true, false].map(|dead| moving(&owners, *from, *to, dead)));
            for state in states.chain([settled(&owners)]) {
                let view = view(&state, 4, &left);
                let mut times = (0..8).map(|turn| 1_000 + turn * TURN);
                let acts = times.any(|now_ns| !turns(&state, &view, now_ns).is_empty());
                assert!(acts, "{left:?} with {:?}", state.moving);
            }
        }
    }

    #[test]
    fn one_that_was_never_there_may_still_start() {
        let state = settled(&[0, 1]);
        let mut view = LivenessView::new(RIGHT, 0);
        view.note(&state, BTreeSet::from([0]), 10);
        let late_ns = RIGHT * RIGHTS_UNTIL_MISSED;
        assert_eq!(next(&state, &view, 0, late_ns - 1), TakeoverStep::Nothing);
        assert_eq!(next(&state, &view, 0, late_ns), TakeoverStep::Begin { dead: 1 });
    }

    #[test]
    fn a_takeover_has_another_taker_if_its_own_is_dead_or_idle() {
        let state = moving(&[0, 1, 2], 1, 0, true);
        let all = view(&state, 3, &[0, 2]);
        assert_eq!(turns(&state, &all, 1_000), [(0, TakeoverStep::Continue)]);
        let idle = turns(&state, &all, 1_000 + TURN);
        let begins = (2, TakeoverStep::Begin { dead: 1 });
        assert_eq!(idle, [(0, TakeoverStep::Continue), begins]);
        assert_eq!(turns(&state, &view(&state, 3, &[2]), 1_000), [begins]);
    }

    #[test]
    fn an_ordinary_move_waits_for_its_taker_and_a_replacement_for_its_builder() {
        let state = moving(&[0, 1, 2], 1, 2, false);
        assert_eq!(turns(&state, &view(&state, 3, &[0, 2]), 99_999), []);
        let both = view(&state, 3, &[0]);
        assert_eq!(turns(&state, &both, 1_000), [(0, TakeoverStep::Begin { dead: 1 })]);
        let replacing = Some(Replacement { load: 1, by: 1 });
        let state = MapState { replacing, ..settled(&[0, 1]) };
        assert_eq!(turns(&state, &view(&state, 2, &[0]), 99_999), []);
    }

    proptest! {
        /// Whoever is dead and whatever is pending: at most one server begins for a dead one, only
        /// for one that is not registered, and every dead one has a taker in the end.
        #[test]
        fn dead_servers_are_taken_over_until_none_owns_keys(
            order in Just((0..6_u16).collect::<Vec<_>>()).prop_shuffle(),
            owns in 1..6_usize,
            lives in proptest::collection::btree_set(0..6_u16, 1..6),
            pause_ns in 0..3 * TURN,
        ) {
            let mut state = settled(&order[..owns]);
            let mut view = LivenessView::new(RIGHT, 0);
            view.note(&state, (0..6).collect(), 0);
            let mut now_ns = 1_000;
            for _ in 0..12 {
                view.note(&state, lives.clone(), now_ns);
                let turns = turns(&state, &view, now_ns);
                if let Some((me, TakeoverStep::Begin { dead })) = turns.first().copied() {
                    prop_assert!(!lives.contains(&dead) && lives.contains(&me));
                    let same = turns.iter().filter(|(_, step)| *step == turns[0].1);
                    prop_assert_eq!(same.count(), 1);
                    let pending = PendingMove { id: now_ns, from: dead, to: me, at: None, dead: true };
                    let map = state.map.after(&state.planned(&pending).unwrap());
                    state = MapState::settled(map);
                }
                now_ns += pause_ns;
            }
            prop_assert!(state.map.owners().iter().all(|owner| lives.contains(owner)));
        }
    }
}
