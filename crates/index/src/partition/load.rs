//! Bulk loading of an empty index. The new content replaces the former one in a single change, and
//! the caches of all compute servers drop the former one. No other client may use the index
//! meanwhile.
//!
//! *Thread safety*: private to one task.

use super::routed::no_owner;
use super::{PartitionMap, PoolOwners, RoutedIndex, UnservedReason};
use crate::{
    AscendingCheck, Boundaries, BuiltContent, BulkBuilder, IndexError, PartIndex, PartPool,
    PartitionOptions, Partitioned, RangeIndex, ScanRequest, check_fill,
};
use farleaf_fabric::{Fabric, FabricError, Uncertainty};
use farleaf_page::{Layout, OwnedKey, OwnedValue};
use farleaf_pool::remote::{ROOT_SERVER, RemoteError};
use farleaf_pool::wire::Refusal;
use std::cell::Cell;

/// The finished content of a bulk load of design `D`.
type BuiltOf<D, F, L> = <<D as Partitioned>::Pool<F, L> as PartPool<F, L>>::Built;

impl<D: Partitioned, F: Fabric, L: Layout> RoutedIndex<D, F, L> {
    pub(super) async fn load_all(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        // The new leaves end at the current boundaries, so these must not move.
        let PoolOwners { compute, pool, .. } = self.owners();
        let mut attempts = self.attempts();
        let _moving = loop {
            match compute.begin_move(pool.fabric()) {
                Some(moving) => break moving,
                None => self.after(0, no_owner(), &mut attempts).await?,
            }
        };
        let boundaries = match compute.options().at_load() {
            Boundaries::Kept => compute.map().boundaries().to_vec(),
            Boundaries::EqualRecords => Vec::new(),
        };
        pool.use_servers(compute.memory().used(pool.fabric().memory_servers()));
        let mut builder = pool.builder(fill, boundaries);
        let is_shown = Cell::new(false);
        let outcome = async {
            let mut order = AscendingCheck::<L>::default();
            for record in source {
                let (key, value) = record?;
                order.take(&key, &value)?;
                builder.append(L::key(&key), L::value(&value)).await?;
            }
            self.check_empty().await?;
            let built = builder.finish().await?;
            self.show(&built, &is_shown).await?;
            Ok(order.count())
        }
        .await;
        match outcome {
            Ok(count) => Ok(count),
            // The new nodes may be part of the index.
            Err(IndexError::Indeterminate(error)) => Err(IndexError::Indeterminate(error)),
            // They are part of it, but not every compute server knows that.
            Err(_) if is_shown.get() => {
                let why = Uncertainty::NotKnownThere;
                Err(FabricError::Indeterminate { server: ROOT_SERVER, why }.into())
            }
            Err(error) => {
                builder.abort().await;
                Err(error)
            }
        }
    }

    async fn check_empty(&self) -> Result<(), IndexError> {
        if self.scan(&ScanRequest::range(..).limit(1)).await?.is_empty() {
            return Ok(());
        }
        Err(IndexError::Refused { server: ROOT_SERVER, refusal: Refusal::NotEmpty })
    }

    /// Replaces the content, and sets `is_shown` as soon as the replacement has happened.
    async fn show(
        &self,
        built: &BuiltOf<D, F, L>,
        is_shown: &Cell<bool>,
    ) -> Result<(), IndexError> {
        let PoolOwners { compute, pool, parts } = self.owners();
        let map = match compute.options().at_load() {
            Boundaries::Kept => None,
            Boundaries::EqualRecords => {
                let few = "there are too few leaves to give each compute server one";
                let boundaries = built.equal_boundaries(parts.len());
                let boundaries = boundaries.ok_or(IndexError::InvalidArgument(few))?;
                Some(PartitionMap::new::<L>(compute.map().epoch() + 1, boundaries)?)
            }
        };
        for part in parts {
            part.index.flush().await?;
        }
        let former = pool.occupied().await?;
        pool.replace(built).await?;
        is_shown.set(true);
        if let Some(map) = map {
            compute.publish(map);
            self.learn_map();
        }
        for part in parts {
            let mut attempts = self.attempts();
            // A thread that writes back by age may have latched a node for a moment.
            while let Err(error) = part.index.forget().await {
                let unserved = match error {
                    RemoteError::Contended { .. } => UnservedReason::Again(error.into()),
                    error => UnservedReason::Failed(error.into()),
                };
                self.after(0, unserved, &mut attempts).await?;
            }
        }
        pool.give_back(former);
        Ok(())
    }
}
