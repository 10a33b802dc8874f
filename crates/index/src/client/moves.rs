//! Key moves between compute servers, driven by a client.

use super::{ClientIndex, MIN_WAIT_NS, bad_reply};
use crate::partition::{BalanceTarget, PartitionMap, RangeOwners, SampledLoad};
use crate::{IndexError, ReshapeCost};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_page::{Layout, OwnedKey};
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode};
use futures_util::future::{Either, select};
use std::pin::pin;

/// Longest pause before the taker of a move is polled again, in nanoseconds.
const MAX_ASK_NS: u64 = 5_000_000;
/// Number of such pauses for which the taker is polled after the giver was lost.
const LATE_ASKS: u64 = 20;
/// Why a giver may refuse to move keys beyond a boundary, if the map allows the move.
const NO_BOUNDARY: &str = "the range to move keys from has no boundary between leaves or shards \
                           near this key, or the map would be too large with the new boundary";
/// Why a giver may refuse to move all keys, if the map allows the move.
const TOO_LARGE: &str = "the record of the map would be too large with this move";

impl<F: Fabric, L: Layout> ClientIndex<F, L> {
    /// Moves keys from one compute server to a neighbour, or to one that owns nothing: either all
    /// keys, or those beyond the leaf boundary that is nearest to `near`. Other operations continue
    /// meanwhile; those on the moving keys wait.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the two are not neighbours, if there is no boundary near
    /// `near` inside the range, or if the map would be too large; [`IndexError::Contended`] if
    /// other keys are moving, or if either server did not complete its part; then nothing has
    /// moved.
    /// [`IndexError::Indeterminate`] if the keys may have moved. The taker's error if it does not
    /// answer; then nothing has moved.
    pub async fn move_keys(
        &self,
        from: u16,
        to: u16,
        near: Option<&L::Key>,
    ) -> Result<ReshapeCost, IndexError> {
        let started_ns = self.fabric().now_ns();
        self.owners().learn_known(self.route());
        let _ = self.learn_map(from).await;
        let near = near.map(ToOwned::to_owned);
        self.map().plan(from, to, near.as_ref())?;
        // If the taker did not answer, the keys would have no owner until the giver cancels the
        // move.
        self.learn_map(to).await?;
        let release = ClientRequest::Release { to, near: near.clone() };
        let released = pin!(self.owners().ask(from, &release));
        let (released, has_taken) = match select(released, pin!(self.let_take(to, from))).await {
            Either::Left((released @ Err(IndexError::Indeterminate(_)), taking)) => {
                // The giver may have died since it released the keys.
                let late = pin!(self.fabric().sleep(MAX_ASK_NS * LATE_ASKS));
                (released, matches!(select(taking, late).await, Either::Left(_)))
            }
            Either::Left((released, _)) => (released, false),
            Either::Right(((), released)) => (released.await, true),
        };
        // The giver knows the outcome of the move.
        let outcome = match released {
            Ok(ClientResponse::Map { epoch, boundaries, owners }) => {
                let map = PartitionMap::from_owners::<L>(epoch, boundaries, owners)?;
                self.route().adopt(Arc::new(map));
                Ok(())
            }
            Ok(ClientResponse::NotOwner { owner, epoch }) => {
                Err(IndexError::NotOwner { owner, epoch })
            }
            Ok(_) => Err(bad_reply(from)),
            // The code has no reason with it. If the newest map rules out the move, it names one.
            Err(IndexError::NotServed { code: ErrorCode::Malformed, .. }) => {
                let _ = self.learn_map(from).await;
                let why = if near.is_some() { NO_BOUNDARY } else { TOO_LARGE };
                let planned = self.map().plan(from, to, near.as_ref());
                planned.and(Err(IndexError::InvalidArgument(why)))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            // If the giver has died since, the taker may have the keys.
            if !(has_taken && matches!(error, IndexError::Indeterminate(_))) {
                return Err(error);
            }
        }
        let took_ns = self.fabric().now_ns() - started_ns;
        Ok(ReshapeCost { started_ns, took_ns, moved: Some((from, to)), ..ReshapeCost::default() })
    }

    /// Repeatedly asks `to` to take over the keys, until it has.
    async fn let_take(&self, to: u16, from: u16) {
        let mut wait_ns = MIN_WAIT_NS;
        loop {
            let taken = self.owners().ask(to, &ClientRequest::TakeOver { from }).await;
            if let Ok(ClientResponse::Map { .. }) = taken {
                return;
            }
            self.fabric().sleep(wait_ns).await;
            wait_ns = (wait_ns * 2).min(MAX_ASK_NS);
        }
    }

    /// Moves boundaries until each compute server that owns keys owns its range under `wanted`. The
    /// order of the owners does not change.
    ///
    /// # Errors
    /// Those of [`ClientIndex::move_keys`]; some boundaries may have moved then.
    pub async fn move_boundaries(&self, wanted: &[OwnedKey<L>]) -> Result<(), IndexError> {
        let map = self.map();
        if wanted.len() != map.boundaries().len() {
            return Err(IndexError::InvalidArgument(
                "there must be one boundary between two owners",
            ));
        }
        let places = || wanted.iter().enumerate();
        // A boundary that moves down must stay above its predecessor, which has already moved down
        // or will move up. Boundaries that move up are the mirror case.
        for (place, at) in places().filter(|(place, at)| **at < map.boundaries()[*place]) {
            self.move_keys(map.owners()[place], map.owners()[place + 1], Some(L::key(at))).await?;
        }
        for (place, at) in places().rev().filter(|(place, at)| **at > map.boundaries()[*place]) {
            self.move_keys(map.owners()[place + 1], map.owners()[place], Some(L::key(at))).await?;
        }
        Ok(())
    }
}

impl<F: Fabric, L: Layout> BalanceTarget for ClientIndex<F, L> {
    type Fabric = F;
    type Key = OwnedKey<L>;

    fn fabric(&self) -> &F {
        Self::fabric(self)
    }

    fn newest_map(&self) -> PartitionMap<OwnedKey<L>> {
        self.owners().learn_known(self.route());
        (*self.map()).clone()
    }

    async fn loads(&self) -> Option<Vec<SampledLoad<OwnedKey<L>>>> {
        let mut loads = Vec::new();
        for number in 0..self.fabric().memory_servers() {
            let asked = match self.owners().directory.is_absent(number) {
                true => None,
                false => self.owners().ask(number, &ClientRequest::Samples).await.ok(),
            };
            loads.push(match asked {
                Some(ClientResponse::Samples { samples, keys }) => SampledLoad { samples, keys },
                _ if self.map().owners().contains(&number) => return None,
                _ => SampledLoad::default(),
            });
        }
        // Only servers up to the last one that answers or owns keys take part.
        let last = self.map().owners().iter().copied().max().map_or(0, usize::from);
        let present = |number: usize| !self.owners().directory.is_absent(number as u16);
        while loads.len() > last + 1 && !present(loads.len() - 1) {
            loads.pop();
        }
        Some(loads)
    }

    fn is_present(&self, compute_server: u16) -> bool {
        !self.owners().directory.is_absent(compute_server)
    }

    async fn fences(
        &self,
        owner: u16,
        key: &OwnedKey<L>,
    ) -> Result<(OwnedKey<L>, Option<OwnedKey<L>>), IndexError> {
        match self.owners().ask(owner, &ClientRequest::Fences { key: key.clone() }).await? {
            ClientResponse::Fences { low, high } => Ok((low, high)),
            ClientResponse::NotOwner { owner, epoch } => Err(IndexError::NotOwner { owner, epoch }),
            _ => Err(bad_reply(owner)),
        }
    }

    async fn move_keys(
        &self,
        from: u16,
        to: u16,
        at: &OwnedKey<L>,
    ) -> Result<ReshapeCost, IndexError> {
        Self::move_keys(self, from, to, Some(L::key(at))).await
    }
}

/// The moves that leave a compute server without keys. They go to the neighbour that owns fewer
/// keys according to the map.
pub fn drain_to<K: Clone + Ord>(map: &PartitionMap<K>, compute_server: u16) -> Option<u16> {
    let owners = map.owners();
    let place = owners.iter().position(|owner| *owner == compute_server)?;
    let below = place.checked_sub(1).and_then(|below| owners.get(below));
    below.or_else(|| owners.get(place + 1)).copied()
}
