//! Farleaf's designs as contenders, over memory servers of this process with zero latency.
//!
//! *Thread safety*: as [`Contender`].

use crate::contender::{Contender, Round, Session, Step, Tally};
use anyhow::Context;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::single_machine::{SingleMachine, SingleMachineOptions};
use farleaf_core::cache::CacheOptions;
use farleaf_core::index::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_core::index::dex::{Dex, DexOptions};
use farleaf_core::index::fine::{Fine, FineOptions};
use farleaf_core::index::hybrid::{Hybrid, HybridOptions};
use farleaf_core::index::{Action, Design, IndexError, LeafEdit, RangeIndex};
use farleaf_core::page::Fixed8;
use farleaf_core::server::{MemoryServer, MemoryServerConfig};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Provider, ServerId};

/// Memory servers of each design.
const MEMORY_SERVERS: u16 = 4;

/// Fill factor of pages in the load.
const FILL: f64 = 0.7;

/// All designs, in one table. To add one, add a line with its options, including those of its
/// cache.
pub(crate) fn all(keys: &KeySpace) -> anyhow::Result<Vec<Box<dyn Contender>>> {
    let boundaries = keys.boundaries(&[1; MEMORY_SERVERS as usize]);
    let range = Partitioning::Range { boundaries: boundaries.clone() };
    Ok(vec![
        contender::<SingleMachine>(&SingleMachineOptions::with_pool_bytes(pool_bytes(keys)), keys)?,
        contender::<Coarse>(&CoarseOptions { partitioning: range }, keys)?,
        contender::<Fine>(&FineOptions::default(), keys)?,
        contender::<Dex>(&DexOptions::with_boundaries(Vec::new(), everything(keys)), keys)?,
        contender::<Hybrid>(&HybridOptions::with_boundaries(boundaries), keys)?,
    ])
}

/// A cache that holds the whole index: records take 1.6 times their bytes at 70% fill, and this is
/// twice as much.
fn everything(keys: &KeySpace) -> CacheOptions {
    CacheOptions { bytes: keys.len() * 32 + (1 << 20), ..CacheOptions::default() }
}

/// Bytes of a pool that holds all keys at any fill. The system provides memory as it is used.
fn pool_bytes(keys: &KeySpace) -> usize {
    (keys.len() as usize * 64 + (64 << 20)).next_multiple_of(1 << 21)
}

type LocalCluster = <LocalConfig as Provider>::Cluster<MemoryServer<Fixed8>>;

/// An index of one design with memory servers of its own.
struct Farleaf<D: Design<Fixed8>> {
    cluster: LocalCluster,
    compute: D::Compute,
}

fn contender<D: Design<Fixed8>>(
    options: &D::Options,
    keys: &KeySpace,
) -> anyhow::Result<Box<dyn Contender>> {
    let config = MemoryServerConfig { pool_bytes: pool_bytes(keys), ..Default::default() };
    let server = |number| MemoryServer::new(ServerId::new(number), &config).map(Arc::new);
    let servers = (0..MEMORY_SERVERS).map(server).collect::<Result<_, _>>();
    let cluster = LocalConfig::default().start(servers.context("cannot start memory servers")?);
    cluster.run_one(|fabric| async move { D::create(&fabric, options).await })?;
    let compute = D::compute(options)?;
    Ok(Box::new(Farleaf::<D> { cluster, compute }))
}

impl<D: Design<Fixed8>> Contender for Farleaf<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn load(&mut self, keys: &KeySpace) -> anyhow::Result<()> {
        let compute = &self.compute;
        self.cluster.run_one(async |fabric| {
            D::open(fabric, compute).await?.bulk_load(keys.records(), FILL).await
        })?;
        Ok(())
    }

    fn look_up(&self, keys: &[u64]) -> anyhow::Result<Vec<Option<u64>>> {
        let compute = &self.compute;
        let found: Result<_, IndexError> = self.cluster.run_one(async |fabric| {
            let index = D::open(fabric, compute).await?;
            let mut values = Vec::with_capacity(keys.len());
            for key in keys {
                values.push(index.get(key).await?);
            }
            Ok(values)
        });
        Ok(found?)
    }

    fn has_groups(&self) -> bool {
        true
    }

    fn run(&self, round: &Round) -> anyhow::Result<Vec<Tally>> {
        let compute = &self.compute;
        let compute_servers = vec![0; round.threads()];
        let tallies = self.cluster.run(&compute_servers, async |fabric, thread| {
            // Returning an error here would leave the other threads waiting at the start barrier.
            let index = D::open(fabric, compute).await.expect("the index was opened before");
            round.work(&Handle(index), thread).await
        });
        let alive = tallies.into_iter().map(|tally| tally.context("a client has died"));
        alive.map(|tally| Ok(tally??)).collect()
    }
}

/// An index handle as a session.
struct Handle<I>(I);

impl<I: RangeIndex<Key = u64, Value = u64>> Session for Handle<I> {
    #[inline(always)]
    async fn get(&self, key: u64) -> Result<Option<u64>, IndexError> {
        self.0.get(&key).await
    }

    #[inline(always)]
    async fn update(&self, key: u64, value: u64) -> Result<bool, IndexError> {
        self.0.update(&key, &value).await
    }

    async fn execute_all(&self, steps: &[Step]) -> Result<u64, IndexError> {
        let edits: Vec<_> = steps.iter().map(edit_of).collect();
        let mut missed = 0;
        for answer in self.0.execute_all(&edits).await {
            missed += u64::from(!answer?.applied);
        }
        Ok(missed)
    }
}

fn edit_of(Step { key, value }: &Step) -> LeafEdit<&u64, &u64> {
    match value {
        0 => LeafEdit { key, action: Action::Get },
        value => LeafEdit { key, action: Action::Update(value) },
    }
}
