//! Key moves between compute servers in separate processes.
//!
//! A client asks the giver to release keys ([`Worker::release`]), and meanwhile repeatedly asks the
//! taker to take them over ([`Worker::take_over`]). The two coordinate through the map record
//! (`record.rs`):
//!
//! 1. The giver writes its changes back, chooses a boundary, releases the keys, and then puts the
//!    pending move into the record.
//! 2. The taker drops its old copies and puts the map of the next epoch. Then it serves the keys.
//! 3. The giver reads the new map. If the taker does not respond, the giver removes the move from
//!    the record and serves the keys again.
//!
//! The client only speeds this up: without it, the taker finds the pending move when it next reads
//! the record. Whatever happened before, [`Worker::reconcile`] carries out what the record says.
//!
//! *Thread safety*: belongs to its endpoint's thread. One thread of a compute server at a time
//! takes part in a move or reconciles.

use super::life::fence_former_incarnation;
use super::worker::Worker;
use super::{KeyMove, MapState, PendingMove, PutOutcome};
use crate::{IndexError, PartIndex, PartState, PartValues, Partitioned, ReleasedKeys, ValueForm};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_page::rules;
use farleaf_page::{Layout, OwnedKey};
use farleaf_pool::remote::RemoteError;
use farleaf_pool::wire::{ClientResponse, ErrorCode};

/// Number of boundaries to try, in case leaves merge across the chosen one before the keys are
/// released.
const BOUNDARIES_TRIED: u32 = 16;
/// How long a giver waits for the taker: long enough for a taker to find the move in the record by
/// itself, and short enough that operations on the keys end before their deadline.
const TAKER_PATIENCE_NS: u64 = 1_500_000_000;
/// How long a giver waits for a decision. After that, `follow_map` continues the move.
const DECISION_PATIENCE_NS: u64 = 3_000_000_000;
/// Interval at which the record is read during a move: the first, and the longest.
const MIN_POLL_INTERVAL_NS: u64 = 500_000;
const MAX_POLL_INTERVAL_NS: u64 = 10_000_000;
/// Interval at which the record is read while no move is known.
const FOLLOW_NS: u64 = 200_000_000;

/// The result of reconciling with the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reconciled {
    /// The range and the map are those of the record, which has no pending move of this server.
    Settled,
    /// A move is pending, with this server as the giver.
    Waits,
    /// Something could not be read or written: try again.
    Again,
}

/// Fences a dead giver at all memory servers, and waits until its right to answer has ended.
pub(super) async fn fence_and_wait<F: Fabric>(
    fabric: &F,
    dead: u16,
    wait_ns: u64,
) -> Result<(), IndexError> {
    if !fabric.breaks(rules::DEAD_FENCED) {
        fence_former_incarnation(fabric, dead).await?;
    }
    if !fabric.breaks(rules::RIGHTS_AWAITED) {
        fabric.sleep(wait_ns).await;
    }
    Ok(())
}

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> Worker<D, F, L, V> {
    /// Repeatedly carries out what the map record says until `ended` returns true. One task per
    /// compute server is enough.
    pub async fn follow_map(&self, ended: &dyn Fn() -> bool) {
        while !ended() {
            // Read before entering, so that a hanging catalog does not delay a halt.
            if let Some((state, version)) = self.store().read().await {
                self.end_replacement(&state, version).await;
                if let Some(_moving) = self.server().begin_move()
                    && let Some(_entered) = self.server().enter()
                {
                    let _ = self.try_reconcile(&state, version, None).await;
                }
            }
            self.fabric().sleep(FOLLOW_NS).await;
        }
    }

    /// Releases keys to `to`: all of them, or those on its side of a boundary near `near`. Answers
    /// once the move is decided, with the map that is then valid.
    pub(super) async fn release(&self, to: u16, near: Option<&L::Key>) -> ClientResponse<L> {
        let Some(_moving) = self.server().begin_move() else {
            return ClientResponse::Error(ErrorCode::Contended);
        };
        match self.try_release(to, near).await {
            Ok(()) => self.map_told(),
            Err(error) => self.no(&error),
        }
    }

    async fn try_release(&self, to: u16, near: Option<&L::Key>) -> Result<(), IndexError> {
        let contended = IndexError::Contended { retries: 0 };
        // Flush now, to leave less to write back after the release, while the keys have no owner.
        self.index().flush().await?;
        let read = self.store().read().await;
        let Some((state, version)) = read else { return Err(contended) };
        let me = self.server().number();
        let is_mine = state.map.range_of(me).is_same(&self.server().state().range());
        let is_changing = state.moving.is_some() || state.replacing.is_some();
        if is_changing || !is_mine || state.map.epoch() != self.server().epoch() {
            return Err(contended);
        }
        for _ in 0..BOUNDARIES_TRIED {
            let at = match near {
                None => None,
                Some(near) => {
                    state.map.plan(me, to, Some(&near.to_owned()))?;
                    let what = "there is no boundary between leaves or shards near this key";
                    let boundary = self.index().boundary_near(near).await?;
                    Some(boundary.ok_or(IndexError::InvalidArgument(what))?)
                }
            };
            let planned = state.map.plan(me, to, at.as_ref())?;
            let id = self.fabric().unique();
            let moving = Some(PendingMove { id, from: me, to, at, dead: false });
            let pending = MapState { moving, ..state.clone() };
            let decided = MapState::settled(state.map.checked_after::<L>(&planned)?);
            if !self.store().takes(&pending) || !self.store().takes(&decided) {
                let what = "the boundaries between compute servers are too long for the map record";
                return Err(IndexError::InvalidArgument(what));
            }
            self.values().keys_will_leave();
            let Some(given_up) = self.index().release_range(&planned.keys, &planned.rest).await?
            else {
                continue;
            };
            // If this fails, dropping the guard restores the range.
            self.values().share().await?;
            let put = self.store().put_if(version, &pending).await;
            if put == PutOutcome::Changed {
                return Err(contended); // dropping the guard restores the range
            }
            // From here on, the record decides which server owns the keys.
            if !self.fabric().breaks(rules::RELEASED_BEFORE_PUT) {
                given_up.for_good();
            }
            return self.await_decision(&planned).await;
        }
        Err(IndexError::Contended { retries: BOUNDARIES_TRIED })
    }

    /// Waits until the move that this server has put into the record is decided. If its put was
    /// lost, a later map may give the keys back to this server.
    async fn await_decision(&self, planned: &KeyMove<OwnedKey<L>>) -> Result<(), IndexError> {
        let since_ns = self.fabric().now_ns();
        let mut look_ns = MIN_POLL_INTERVAL_NS;
        loop {
            if self.reconcile(Some(since_ns)).await == Reconciled::Settled {
                return match self.server().state().range().is_same(&planned.rest) {
                    true => Ok(()),
                    false => Err(IndexError::Contended { retries: 0 }),
                };
            }
            // `follow_map` continues from here.
            if self.fabric().now_ns() - since_ns > DECISION_PATIENCE_NS {
                return Err(IndexError::Contended { retries: 0 });
            }
            self.fabric().sleep(look_ns).await;
            look_ns = (look_ns * 2).min(MAX_POLL_INTERVAL_NS);
        }
    }

    /// Takes over the keys that `from` has released to this server, if the record has that move.
    /// Answers with the map that is then valid.
    pub(super) async fn take_over(&self, from: u16) -> ClientResponse<L> {
        let me = self.server().number();
        let is_here = |state: &MapState<OwnedKey<L>>| {
            state.moving.as_ref().is_some_and(|move_| (move_.from, move_.to) == (from, me))
        };
        let refused = ClientResponse::Error(ErrorCode::Unavailable);
        let Some((state, version)) = self.store().read().await else { return refused };
        if !is_here(&state) {
            return refused;
        }
        let Some(_moving) = self.server().begin_move() else { return refused };
        match self.try_reconcile(&state, version, None).await {
            Ok(Reconciled::Settled) => self.map_told(),
            Ok(_) => refused,
            Err(error) => self.no(&error),
        }
    }

    /// Brings this server's range and map in line with the record, as far as possible now.
    /// `released_ns` is when this server released the keys of a pending move.
    async fn reconcile(&self, released_ns: Option<u64>) -> Reconciled {
        let Some((state, version)) = self.store().read().await else { return Reconciled::Again };
        match self.try_reconcile(&state, version, released_ns).await {
            Ok(reconciled) => reconciled,
            Err(_) => Reconciled::Again,
        }
    }

    async fn try_reconcile(
        &self,
        state: &MapState<OwnedKey<L>>,
        version: u64,
        released_ns: Option<u64>,
    ) -> Result<Reconciled, IndexError> {
        let (server, index) = (self.server(), self.index());
        let me = server.number();
        if state.map.epoch() < server.epoch() {
            return Ok(Reconciled::Again); // an old answer
        }
        match &state.moving {
            Some(pending) if pending.to == me && !pending.dead => {
                let planned = state.planned(pending)?;
                // If this is going to fail, let it fail here rather than after the put.
                index.prepare_take_over(&planned.grown).await?;
                let map = state.map.after(&planned);
                let decided = MapState { map, moving: None, ..state.clone() };
                if self.fabric().breaks(rules::TAKEN_AFTER_PUT) {
                    self.adopt(&decided.map).await?;
                }
                return match self.store().put_if(version, &decided).await {
                    PutOutcome::Done => {
                        self.adopt(&decided.map).await?;
                        Ok(Reconciled::Settled)
                    }
                    PutOutcome::Changed | PutOutcome::Unknown => Ok(Reconciled::Again),
                };
            }
            // Others think that this server is dead. It is fenced, or will be.
            Some(pending) if pending.from == me && pending.dead => return Ok(Reconciled::Waits),
            Some(pending) if pending.from == me => {
                let now_ns = self.fabric().now_ns();
                let since_ns = released_ns.unwrap_or(0);
                if now_ns.saturating_sub(since_ns) < TAKER_PATIENCE_NS {
                    return Ok(Reconciled::Waits);
                }
                return self.serve_again(state, version).await;
            }
            // The keys are released, but the record does not show it: the put may still be in
            // flight (MR2).
            _ if state.map.epoch() == server.epoch()
                && !state.map.range_of(me).is_same(&server.state().range()) =>
            {
                return self.serve_again(state, version).await;
            }
            _ => {}
        }
        self.adopt(&state.map).await?;
        Ok(Reconciled::Settled)
    }

    /// Cancels a move of this server that the taker has not completed, and serves the keys again.
    async fn serve_again(
        &self,
        state: &MapState<OwnedKey<L>>,
        version: u64,
    ) -> Result<Reconciled, IndexError> {
        let before = MapState { moving: None, ..state.clone() };
        if !self.fabric().breaks(rules::RECORD_DECIDES)
            && self.store().put_if(version, &before).await != PutOutcome::Done
        {
            return Ok(Reconciled::Again);
        }
        self.index().take_over(&state.map.range_of(self.server().number())).await?;
        Ok(Reconciled::Settled)
    }

    /// Switches to a map, which may give this server more keys than it serves.
    pub(super) async fn adopt(
        &self,
        map: &super::PartitionMap<OwnedKey<L>>,
    ) -> Result<(), IndexError> {
        let (server, index) = (self.server(), self.index());
        if map.epoch() <= server.epoch() {
            return Ok(());
        }
        let (grown, held) = (map.range_of(server.number()), server.state().range());
        if !grown.is_same(&held) {
            if !held.is_empty() && !grown.covers(&held.low, held.high.as_ref()) {
                // Keys that this server has not released cannot have gone to another one.
                let what = "the map record takes keys from a compute server that serves them";
                return Err(IndexError::InvalidArgument(what));
            }
            index.take_over(&grown).await.map_err(|error: RemoteError| IndexError::from(error))?;
        }
        server.set_map(&Arc::new(map.clone()));
        Ok(())
    }
}
