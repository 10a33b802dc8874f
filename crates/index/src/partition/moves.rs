//! Moving keys between compute servers while operations run (Lu et al., §4): the order of the
//! steps.
//!
//! 1. Choose a boundary that is a fence between leaves.
//! 2. The owner releases the keys: it writes back its changes to them and evicts them from its
//!    cache.
//! 3. The new owner rereads every node of which it has a stale copy. Then it owns the keys.
//! 4. Publish the map of the next epoch. Operations on these keys have been waiting for it since
//!    step 2.
//!
//! *Thread safety*: belongs to its endpoint's thread; moves of several handles exclude each other.

use super::{BalanceTarget, PartitionMap, PoolOwners, RoutedIndex, SampledLoad};
use crate::{
    IndexError, PartIndex, PartPool, PartitionOptions, Partitioned, RangeIndex, ReleasedKeys,
    ReshapeCost,
};
use farleaf_fabric::Fabric;
use farleaf_page::{Layout, OwnedKey};
use farleaf_pool::remote::RemoteError;
use std::pin::pin;

/// Number of boundaries to try, in case leaves merge across the chosen one before the keys are
/// released.
const ATTEMPTS: u32 = 16;
/// Shortest and longest pause after a failed move, in nanoseconds, before keys may move again.
/// Operations look for a new map every millisecond.
const MIN_REST_NS: u64 = 2_000_000;
const MAX_REST_NS: u64 = 100_000_000;

impl<D: Partitioned, F: Fabric, L: Layout> RoutedIndex<D, F, L> {
    /// Moves keys from one compute server to a neighbour, or to one that owns nothing: either all
    /// keys, or those beyond the leaf boundary that is nearest to `near`. Other operations continue
    /// meanwhile; those on the moving keys wait.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the two are not neighbours, or if there is no boundary
    /// near `near` inside the range; [`IndexError::Contended`] if other keys are moving. After any
    /// error nothing has moved.
    pub async fn move_keys(
        &self,
        from: u16,
        to: u16,
        near: Option<&L::Key>,
    ) -> Result<ReshapeCost, IndexError> {
        self.owners().while_settling(pin!(self.try_move(from, to, near))).await
    }

    async fn try_move(
        &self,
        from: u16,
        to: u16,
        near: Option<&L::Key>,
    ) -> Result<ReshapeCost, IndexError> {
        let PoolOwners { compute, pool, parts } = self.owners();
        let fabric = pool.fabric();
        let (started_ns, before) = (fabric.now_ns(), fabric.counters().snapshot());
        let known = |number: u16| usize::from(number) < parts.len();
        if !known(from) || !known(to) {
            return Err(IndexError::InvalidArgument("there is no such compute server"));
        }
        compute.options().check_moves()?;
        let _moving = compute.begin_move(fabric).ok_or(IndexError::Contended { retries: 0 })?;
        let (giver, taker) = (&parts[usize::from(from)], &parts[usize::from(to)]);
        for _ in 0..ATTEMPTS {
            let map = compute.map();
            let at = match near {
                None => None,
                Some(near) => {
                    map.plan(from, to, Some(&near.to_owned()))?;
                    let boundary = giver.index.boundary_near(near).await?;
                    let what = "there is no boundary between leaves or shards near this key";
                    Some(boundary.ok_or(IndexError::InvalidArgument(what))?)
                }
            };
            let planned = map.plan(from, to, at.as_ref())?;
            let after = map.checked_after::<L>(&planned)?;
            let begun_ns = fabric.now_ns();
            let handed_over = async {
                let given_up = giver.index.release_range(&planned.keys, &planned.rest).await?;
                if given_up.is_some() {
                    taker.index.take_over(&planned.grown).await?;
                }
                Ok::<_, RemoteError>(given_up)
            };
            let given_up = match handed_over.await {
                Ok(Some(given_up)) => given_up,
                Ok(None) => continue,
                Err(error) => {
                    // No compute server has served the keys meanwhile. Let the owner serve them for
                    // just as long before they may move again.
                    let rest_ns = (fabric.now_ns() - begun_ns).clamp(MIN_REST_NS, MAX_REST_NS);
                    fabric.sleep(rest_ns).await;
                    return Err(error.into());
                }
            };
            // No await since `take_over` returned, so this future cannot be dropped in between.
            given_up.for_good();
            compute.publish(after);
            self.learn_map();
            let did = fabric.counters().snapshot() - before;
            return Ok(ReshapeCost {
                started_ns,
                took_ns: fabric.now_ns() - started_ns,
                writes: did.writes,
                bytes_written: did.bytes_written,
                moved: Some((from, to)),
            });
        }
        Err(IndexError::Contended { retries: ATTEMPTS })
    }
}

impl<D: Partitioned, F: Fabric, L: Layout> BalanceTarget for RoutedIndex<D, F, L> {
    type Fabric = F;
    type Key = OwnedKey<L>;

    fn fabric(&self) -> &F {
        Self::fabric(self)
    }

    fn newest_map(&self) -> PartitionMap<OwnedKey<L>> {
        (*self.owners().compute.map()).clone()
    }

    async fn settle_all(&self) {
        let _ = self.settle().await;
    }

    async fn loads(&self) -> Option<Vec<SampledLoad<OwnedKey<L>>>> {
        Some(self.owners().compute.servers().iter().map(|server| server.samples().take()).collect())
    }

    async fn fences(
        &self,
        owner: u16,
        key: &OwnedKey<L>,
    ) -> Result<(OwnedKey<L>, Option<OwnedKey<L>>), IndexError> {
        Ok(self.part(owner).fences(L::key(key)).await?)
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
