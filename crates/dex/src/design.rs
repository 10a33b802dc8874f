//! DEX as an index design.

use super::load::DexTreeBuilder;
use super::pool::DexPool;
use super::{DexIndex, DexOptions, DexServer};
use crate::cache::CacheOptions;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::OwnedRange;
use farleaf_index::{BulkBuilder, IndexError, MemoryUse, Partitioned};
use farleaf_page::{Layout, OwnedKey};
use farleaf_pool::remote::{PageClient, PageImage, RemoteError};

/// The DEX design. [`farleaf_index::partition`] makes it a [`farleaf_index::Design`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Dex;

/// Fill of the inner nodes in a new, empty index.
const EMPTY_FILL: f64 = 0.7;
/// The largest share of a cache, in percent, that is not for frames.
const MAX_TABLES_PERCENT: u32 = 90;

impl Partitioned for Dex {
    const NAME: &'static str = "dex";
    type Options<L: Layout> = DexOptions<OwnedKey<L>>;
    type ServerOptions = CacheOptions;
    type State<L: Layout> = DexServer<L>;
    type Pool<F: Fabric, L: Layout> = DexPool<F, L>;
    type Index<F: Fabric, L: Layout> = DexIndex<F, L>;

    async fn create_pool<F: Fabric, L: Layout>(
        fabric: &F,
        options: &DexOptions<OwnedKey<L>>,
    ) -> Result<(), IndexError> {
        let pages = PageClient::<F, L>::new(fabric.clone(), options.chunk_bytes());
        pages.use_servers(
            MemoryUse::all_but(options.spare_memory_servers).used(fabric.memory_servers()),
        );
        let make = async |roots: &[GlobalAddr]| {
            let boundaries = options.boundaries.clone();
            let mut builder =
                DexTreeBuilder::new(&pages, EMPTY_FILL, options.placement_level, boundaries);
            let built = builder.finish().await?;
            let image = PageImage::<L>::empty();
            let level = built.root.page().level();
            image.page().format_empty(roots[0], level, L::key(&L::min_key()), None);
            image.page().copy_content(built.root.page());
            Ok::<_, IndexError>(vec![image])
        };
        let roots = pages.write_roots(1, make).await?;
        Ok(pages.rpc().claim_all(options.to_word(), &roots).await?)
    }

    fn open_pool<F: Fabric, L: Layout>(
        fabric: F,
    ) -> impl Future<Output = Result<DexPool<F, L>, IndexError>> {
        DexPool::open(fabric)
    }

    fn start<L: Layout>(
        options: &CacheOptions,
        _number: u16,
        range: OwnedRange<OwnedKey<L>>,
        memory: Arc<MemoryUse>,
    ) -> Result<DexServer<L>, IndexError> {
        if options.outlines_percent + options.records_percent > MAX_TABLES_PERCENT {
            return Err(IndexError::InvalidArgument(
                "dex.outlines_percent and dex.records_percent are at most 90 together",
            ));
        }
        let what = "cannot allocate memory for a cache of this size";
        let server = DexServer::new(options, range, memory);
        server.map_err(|_| IndexError::InvalidArgument(what))
    }

    fn open_part<F: Fabric, L: Layout>(
        state: &Arc<DexServer<L>>,
        pool: &DexPool<F, L>,
    ) -> impl Future<Output = Result<DexIndex<F, L>, RemoteError>> {
        DexIndex::open(Arc::clone(state), pool)
    }
}
