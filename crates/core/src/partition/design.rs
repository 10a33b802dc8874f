//! DEX as an index design: creates an index and opens handles on it.

use super::{ComputePool, RoutedIndex};
use crate::index::dex::{Builder, DexOptions, MemoryUse, from_word};
use crate::index::{Design, IndexError};
use crate::page::{DesignId, Layout};
use crate::remote::{Image, PageClient, ROOT_SERVER, RpcClient};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr};

/// The DEX design.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dex;

/// Fill of the inner nodes of a new, empty index.
const EMPTY_FILL: f64 = 0.7;

/// Opens the index that the memory servers hold: access to its pages, the root's address, and the
/// placement level.
pub(super) async fn open_pool<F: Fabric, L: Layout>(
    fabric: F,
) -> Result<(PageClient<F, L>, GlobalAddr, u8), IndexError> {
    let rpc = RpcClient::<F, L>::new(fabric.clone());
    let (found, word) = rpc.claimed(ROOT_SERVER, DesignId::Dex).await?;
    let (chunk_bytes, placement_level) = from_word(word);
    Ok((PageClient::new(fabric, chunk_bytes), found.root, placement_level))
}

impl<L: Layout> Design<L> for Dex {
    const NAME: &'static str = "dex";
    type Options = DexOptions<L::Key>;
    type Compute = Arc<ComputePool<L>>;
    type Index<F: Fabric> = RoutedIndex<F, L>;

    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError> {
        Ok(Arc::new(ComputePool::new(options)?))
    }

    async fn create<F: Fabric>(fabric: &F, options: &Self::Options) -> Result<(), IndexError> {
        super::PartitionMap::new::<L>(1, options.boundaries.clone())?;
        let pages = PageClient::<F, L>::new(fabric.clone(), options.chunk_bytes());
        pages.use_servers(
            MemoryUse::all_but(options.spare_memory_servers).used(fabric.memory_servers()),
        );
        let make = async |roots: &[GlobalAddr]| {
            let boundaries = options.boundaries.clone();
            let mut builder = Builder::new(&pages, EMPTY_FILL, options.placement_level, boundaries);
            let built = builder.finish().await?;
            let image = Image::<L>::empty();
            let level = built.root.page().level();
            image.page().format_empty(roots[0], level, &L::min_key(), None);
            image.page().copy_content(built.root.page());
            Ok::<_, IndexError>(vec![image])
        };
        let roots = pages.write_roots(1, make).await?;
        Ok(pages.rpc().claim_all(options.to_word(), &roots).await?)
    }

    async fn open<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> Result<RoutedIndex<F, L>, IndexError> {
        let (pages, root, placement_level) = open_pool(fabric).await?;
        Ok(RoutedIndex::open(compute, pages, root, placement_level).await?)
    }

    fn cached_bytes(compute: &Self::Compute) -> u64 {
        compute.cached_bytes()
    }
}
