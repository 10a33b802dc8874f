//! dLSM with several shards as an index design.

use super::options::{DlsmServerOptions, ShardedOptions};
use super::part::DlsmPart;
use super::pool::DlsmPool;
use super::recovery::recover;
use super::server::DlsmServer;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, ServerId};
use farleaf_index::OwnedRange;
use farleaf_index::{IndexError, MemoryUse, Partitioned};
use farleaf_page::{DesignId, Layout, OwnedKey};
use farleaf_pool::remote::{RemoteError, RpcClient};

/// dLSM whose compute servers own ranges of the keys, each divided into shards.
/// [`farleaf_index::partition`] makes it a [`farleaf_index::Design`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardedDlsm;

impl Partitioned for ShardedDlsm {
    const NAME: &'static str = "dlsm";
    const LOADS_OWN_KEYS: bool = true;
    type Options<L: Layout> = ShardedOptions<OwnedKey<L>>;
    type ServerOptions = DlsmServerOptions;
    type State<L: Layout> = DlsmServer<L>;
    type Pool<F: Fabric, L: Layout> = DlsmPool<F, L>;
    type Index<F: Fabric, L: Layout> = DlsmPart<F, L>;

    async fn create_pool<F: Fabric, L: Layout>(
        fabric: &F,
        options: &ShardedOptions<OwnedKey<L>>,
    ) -> Result<(), IndexError> {
        let map = options.map::<L>()?;
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        for number in (0..fabric.memory_servers()).rev() {
            rpc.check_unclaimed(ServerId::new(number)).await?;
        }
        let root = map.write::<F, L>(fabric).await?;
        Ok(rpc.claim_all(DesignId::Lsm as u64, &[root]).await?)
    }

    fn open_pool<F: Fabric, L: Layout>(
        fabric: F,
    ) -> impl Future<Output = Result<DlsmPool<F, L>, IndexError>> {
        DlsmPool::open(fabric)
    }

    /// The trees are made when the first handle is opened. All memory servers are used.
    fn start<L: Layout>(
        options: &DlsmServerOptions,
        number: u16,
        range: OwnedRange<OwnedKey<L>>,
        _memory: Arc<MemoryUse>,
    ) -> Result<DlsmServer<L>, IndexError> {
        DlsmServer::new(options, number, range)
    }

    fn check_part<F: Fabric, L: Layout>(
        state: &DlsmServer<L>,
        pool: &DlsmPool<F, L>,
    ) -> Result<(), IndexError> {
        pool.tell(state)
    }

    fn recover<F: Fabric, L: Layout>(
        pool: &DlsmPool<F, L>,
        options: &DlsmServerOptions,
        compute_server: u16,
        range: &OwnedRange<OwnedKey<L>>,
    ) -> impl Future<Output = Result<(), IndexError>> {
        recover(pool, options, compute_server, range)
    }

    async fn open_part<F: Fabric, L: Layout>(
        state: &Arc<DlsmServer<L>>,
        pool: &DlsmPool<F, L>,
    ) -> Result<DlsmPart<F, L>, RemoteError> {
        Ok(pool.open_part(state).await?)
    }
}
