//! Bulk loading of an empty index. The new content replaces the former one in a single change, and
//! the caches of all compute servers drop the former one. No other client may use the index
//! meanwhile.
//!
//! *Thread safety*: private to one task.

use super::{PartitionMap, RoutedIndex};
use crate::index::{
    Ascending, Boundaries, Built, BulkBuilder, IndexError, PartIndex, PartPool, PartitionOptions,
    Partitioned, RangeIndex, Scan, check_fill,
};
use crate::page::Layout;
use crate::remote::ROOT_SERVER;
use crate::wire::Refusal;
use farleaf_fabric::Fabric;

/// The finished content of a bulk load of design `D`.
type BuiltOf<D, F, L> = <<D as Partitioned>::Pool<F, L> as PartPool<F, L>>::Built;

impl<D: Partitioned, F: Fabric, L: Layout> RoutedIndex<D, F, L> {
    pub(super) async fn load_all(
        &self,
        records: impl Iterator<Item = (L::Key, L::Value)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        // The new leaves end at the current boundaries, so these must not move.
        let mut patience = self.patience();
        let _moving = loop {
            match self.compute.begin_move(self.pool.fabric()) {
                Some(moving) => break moving,
                None => self.wait_for_map(&mut patience).await?,
            }
        };
        let boundaries = match self.compute.options().at_load() {
            Boundaries::Kept => self.compute.map().boundaries().to_vec(),
            Boundaries::EqualRecords => Vec::new(),
        };
        self.pool.use_servers(self.compute.memory().used(self.pool.fabric().memory_servers()));
        let mut builder = self.pool.builder(fill, boundaries);
        let outcome = async {
            let mut order = Ascending::default();
            for (key, value) in records {
                order.take(&key)?;
                builder.append(&key, &value).await?;
            }
            self.check_empty().await?;
            let built = builder.finish().await?;
            self.show(&built).await?;
            Ok(order.count())
        }
        .await;
        match outcome {
            Ok(count) => Ok(count),
            // The new nodes may be part of the index.
            Err(IndexError::Indeterminate(error)) => Err(IndexError::Indeterminate(error)),
            Err(error) => {
                builder.abort().await;
                Err(error)
            }
        }
    }

    async fn check_empty(&self) -> Result<(), IndexError> {
        if self.scan(&Scan::range(..).limit(1)).await?.is_empty() {
            return Ok(());
        }
        Err(IndexError::Refused { server: ROOT_SERVER, refusal: Refusal::NotEmpty })
    }

    /// Replaces the content.
    async fn show(&self, built: &BuiltOf<D, F, L>) -> Result<(), IndexError> {
        let parts = self.parts.len();
        let boundaries = match self.compute.options().at_load() {
            Boundaries::Kept => None,
            Boundaries::EqualRecords => {
                Some(built.equal_boundaries(parts).ok_or(IndexError::InvalidArgument(
                    "there are too few leaves to give each compute server one",
                ))?)
            }
        };
        for part in &self.parts {
            part.index.flush().await?;
        }
        let former = self.pool.occupied().await?;
        self.pool.replace(built).await?;
        if let Some(boundaries) = boundaries {
            let epoch = self.compute.map().epoch() + 1;
            self.compute.publish(PartitionMap::new::<L>(epoch, boundaries)?);
            self.learn_map();
        }
        for part in &self.parts {
            part.index.forget().await?;
        }
        self.pool.give_back(former);
        Ok(())
    }
}
