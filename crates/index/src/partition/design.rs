//! Partitioned designs as index designs: creates an index and opens handles on it.

use super::{ComputePool, PartitionMap, RoutedIndex};
use crate::{Design, IndexError, PartitionOptions, Partitioned};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_page::Layout;

impl<L: Layout, D: Partitioned> Design<L> for D {
    const NAME: &'static str = <D as Partitioned>::NAME;
    type Options = D::Options<L>;
    type Compute = Arc<ComputePool<D, L>>;
    type Index<F: Fabric> = RoutedIndex<D, F, L>;

    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError> {
        Ok(Arc::new(ComputePool::new(options)?))
    }

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        PartitionMap::new::<L>(1, options.boundaries().to_vec())?;
        D::create_pool(fabric, options).await
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<RoutedIndex<D, F, L>, IndexError> {
        Ok(RoutedIndex::open(compute, D::open_pool(fabric).await?).await?)
    }

    fn cached_bytes(compute: &Self::Compute) -> u64 {
        compute.cached_bytes()
    }
}
