//! How each design handles a pool whose pages have a different layout: a memory server of another
//! version, or one with the options of another cluster.

use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::{Cluster, Cpu, Message, Provider, Region, RpcService, ServerId};
use farleaf_index::{Design, IndexError};
use farleaf_page::Fixed8;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::chime::{Chime, ChimeOptions};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use farleaf_trees::sherman::{Sherman, ShermanOptions};
use std::sync::Arc;

type Ours = Fixed8;
type Other = Fixed8<16>;

/// A memory server of either layout.
enum Server {
    Ours(MemoryServer<Ours>),
    Other(MemoryServer<Other>),
}

impl RpcService for Server {
    fn region(&self) -> &Arc<Region> {
        match self {
            Self::Ours(server) => server.region(),
            Self::Other(server) => server.region(),
        }
    }

    async fn handle<C: Cpu>(&self, cpu: &C, client: u16, request: &[u8], reply: &mut Message) {
        match self {
            Self::Ours(server) => server.handle(cpu, client, request, reply).await,
            Self::Other(server) => server.handle(cpu, client, request, reply).await,
        }
    }

    async fn after_reply<C: Cpu>(&self, cpu: &C) {
        match self {
            Self::Ours(server) => server.after_reply(cpu).await,
            Self::Other(server) => server.after_reply(cpu).await,
        }
    }
}

/// Two memory servers. `other` has pages of the other layout.
fn servers(other: u16) -> Vec<Arc<Server>> {
    let config = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
    let server = |number| {
        let id = ServerId::new(number);
        Arc::new(match number == other {
            true => Server::Other(MemoryServer::new(id, &config).unwrap()),
            false => Server::Ours(MemoryServer::new(id, &config).unwrap()),
        })
    };
    (0..2).map(server).collect()
}

/// Whether an index is refused when it is created or, failing that, when it is opened.
fn is_refused<D: Design<Ours>>(options: &D::Options) {
    let compute = &D::compute(options).unwrap();
    for other in [0, 1] {
        LocalConfig::default().start(servers(other)).run_one(|fabric| async move {
            let outcome = match D::create(&fabric, options).await {
                Ok(()) => D::open(fabric, compute).await.map(drop),
                refused => refused,
            };
            let Err(IndexError::BadPool { server, .. }) = outcome else {
                panic!("server {other} has other pages: {outcome:?}")
            };
            assert_eq!(server, ServerId::new(other));
        });
    }
}

#[test]
fn there_is_no_index_over_pools_of_two_layouts() {
    let boundaries = || vec![1 << 63];
    let partitioning = Partitioning::Range { boundaries: boundaries() };
    is_refused::<Coarse>(&CoarseOptions { partitioning });
    is_refused::<Fine>(&FineOptions::default());
    is_refused::<Hybrid>(&HybridOptions::with_boundaries(boundaries()));
    is_refused::<Chime>(&ChimeOptions::default());
    is_refused::<Sherman>(&ShermanOptions::default());
    is_refused::<Dex>(&DexOptions::with_boundaries(vec![], Default::default()));
}

#[test]
fn a_client_refuses_a_pool_of_other_pages() {
    let config = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
    let server = Arc::new(MemoryServer::<Other>::new(ServerId::new(0), &config).unwrap());
    LocalConfig::default().start(vec![server]).run_one(|fabric| async move {
        let partitioning = Partitioning::Range { boundaries: vec![] };
        let options = CoarseOptions { partitioning };
        <Coarse as Design<Other>>::create(&fabric, &options).await.unwrap();
        let opened = <Coarse as Design<Ours>>::open(fabric, &()).await.map(|_| ());
        assert!(matches!(opened, Err(IndexError::BadPool { .. })), "{opened:?}");
    });
}
