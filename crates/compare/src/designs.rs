//! Farleaf's designs as contenders, over memory servers of this process with zero latency.
//!
//! *Thread safety*: the same as for [`Contender`].

use crate::contender::{
    CompactOperation, Contender, ContenderRound, ContenderSession, ThreadTally,
};
use crate::keys::{BorrowedKey, ByteKeys, InPage, LoadedKeys, OwnedLoadedKey};
use anyhow::Context;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::single_machine::{SingleMachine, SingleMachineOptions};
use farleaf_dex::cache::CacheOptions;
use farleaf_dex::{Dex, DexOptions};
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Cluster, Provider, ServerId};
use farleaf_index::{Design, EditAction, IndexError, LeafEdit, RangeIndex};
use farleaf_page::Layout;
use farleaf_pool::server::{MemoryServer, MemoryServerConfig};
use farleaf_trees::coarse::{Coarse, CoarseOptions, Partitioning};
use farleaf_trees::fine::{Fine, FineOptions};
use farleaf_trees::hybrid::{Hybrid, HybridOptions};
use std::borrow::Borrow;
use std::marker::PhantomData;

/// Number of memory servers of each design.
const MEMORY_SERVERS: u16 = 4;

/// Fill factor of pages in the load.
const FILL: f64 = 0.7;

/// A list of contenders.
type DesignContenders<K> = Vec<Box<dyn Contender<K>>>;

/// All designs, in one table. To add one, add a line with its options, including those of its
/// cache.
pub(crate) fn all(keys: &KeySpace) -> anyhow::Result<DesignContenders<KeySpace>> {
    let boundaries = keys.boundaries(&[1; MEMORY_SERVERS as usize]);
    let range = Partitioning::Range { boundaries: boundaries.clone() };
    Ok(vec![
        contender::<SingleMachine, _>(&single_machine(keys), keys)?,
        contender::<Coarse, _>(&CoarseOptions { partitioning: range }, keys)?,
        contender::<Fine, _>(&FineOptions::default(), keys)?,
        contender::<Dex, _>(&DexOptions::with_boundaries(Vec::new(), everything(keys)), keys)?,
        contender::<Hybrid, _>(&HybridOptions::with_boundaries(boundaries), keys)?,
    ])
}

/// The designs that are compared on byte strings: the tree, and the one that caches it.
pub(crate) fn of_bytes(keys: &ByteKeys) -> anyhow::Result<DesignContenders<ByteKeys>> {
    Ok(vec![
        contender::<SingleMachine, _>(&single_machine(keys), keys)?,
        contender::<Dex, _>(&DexOptions::with_boundaries(Vec::new(), everything(keys)), keys)?,
    ])
}

fn single_machine<K: LoadedKeys>(keys: &K) -> SingleMachineOptions {
    SingleMachineOptions::with_pool_bytes(pool_bytes(keys))
}

/// A cache that holds the whole index.
fn everything<K: LoadedKeys>(keys: &K) -> CacheOptions {
    let bytes = keys.space().len() * keys.most_bytes() + (1 << 20);
    CacheOptions { bytes, ..CacheOptions::default() }
}

/// Size of a pool that holds all keys at any fill, in bytes. The system provides memory when it is
/// used.
fn pool_bytes<K: LoadedKeys>(keys: &K) -> usize {
    let bytes = keys.space().len() * 2 * keys.most_bytes() + (64 << 20);
    (bytes as usize).next_multiple_of(1 << 21)
}

type CompareCluster<K> =
    <LocalConfig as Provider>::Cluster<MemoryServer<<K as LoadedKeys>::Layout>>;

/// An index of one design, with its own memory servers.
struct Farleaf<D: Design<K::Layout>, K: LoadedKeys> {
    cluster: CompareCluster<K>,
    compute: D::Compute,
}

fn contender<D: Design<K::Layout>, K: LoadedKeys>(
    options: &D::Options,
    keys: &K,
) -> anyhow::Result<Box<dyn Contender<K>>> {
    let config = MemoryServerConfig { pool_bytes: pool_bytes(keys), ..Default::default() };
    let server = |number| MemoryServer::new(ServerId::new(number), &config).map(Arc::new);
    let servers = (0..MEMORY_SERVERS).map(server).collect::<Result<_, _>>();
    let cluster = LocalConfig::default().start(servers.context("cannot start memory servers")?);
    cluster.run_one(|fabric| async move { D::create(&fabric, options).await })?;
    let compute = D::compute(options)?;
    Ok(Box::new(Farleaf::<D, K> { cluster, compute }))
}

impl<D: Design<K::Layout>, K: LoadedKeys> Contender<K> for Farleaf<D, K> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn load(&mut self, keys: &K) -> anyhow::Result<()> {
        let compute = &self.compute;
        self.cluster.run_one(async |fabric| {
            let value = |number| Borrow::<InPage<K>>::borrow(&K::value(number)).to_owned();
            let records = keys.space().records();
            let records = records.map(|(number, held)| (keys.key(number), value(held)));
            D::open(fabric, compute).await?.bulk_load(records, FILL).await
        })?;
        Ok(())
    }

    fn look_up(&self, keys: &[OwnedLoadedKey<K>]) -> anyhow::Result<Vec<Option<K::Value>>> {
        let compute = &self.compute;
        let found: Result<_, IndexError> = self.cluster.run_one(async |fabric| {
            let index = D::open(fabric, compute).await?;
            let mut values = Vec::with_capacity(keys.len());
            for key in keys {
                let value = index.get(K::Layout::key(key)).await?;
                values.push(value.and_then(|value| K::found(K::Layout::value(&value))));
            }
            Ok(values)
        });
        Ok(found?)
    }

    fn has_groups(&self) -> bool {
        true
    }

    fn run(&self, round: &ContenderRound<K>) -> anyhow::Result<Vec<ThreadTally>> {
        let compute = &self.compute;
        let compute_servers = vec![0; round.threads()];
        let tallies = self.cluster.run(&compute_servers, async |fabric, thread| {
            // Returning an error here would leave the other threads waiting at the start barrier.
            let index = D::open(fabric, compute).await.expect("the index was opened before");
            round.work(&IndexSession(index, PhantomData), thread).await
        });
        let alive = tallies.into_iter().map(|tally| tally.context("a client has died"));
        alive.map(|tally| Ok(tally??)).collect()
    }
}

/// An index handle as a session.
struct IndexSession<I, K>(I, PhantomData<K>);

impl<K, I> ContenderSession<K> for IndexSession<I, K>
where
    K: LoadedKeys,
    I: RangeIndex<Key = BorrowedKey<K>, Value = InPage<K>>,
{
    #[inline(always)]
    async fn get(&self, key: &BorrowedKey<K>) -> Result<Option<K::Value>, IndexError> {
        let value = self.0.get(key).await?;
        Ok(value.and_then(|value| K::found(K::Layout::value(&value))))
    }

    #[inline(always)]
    async fn update(&self, key: &BorrowedKey<K>, value: K::Value) -> Result<bool, IndexError> {
        self.0.update(key, value.borrow()).await
    }

    async fn execute_all(&self, steps: &[CompactOperation<K>]) -> Result<u64, IndexError> {
        let edits: Vec<_> = steps.iter().map(edit_of).collect();
        let mut missed = 0;
        for answer in self.0.execute_all(&edits).await {
            missed += u64::from(!answer?.applied);
        }
        Ok(missed)
    }
}

fn edit_of<K: LoadedKeys>(step: &CompactOperation<K>) -> LeafEdit<&BorrowedKey<K>, &InPage<K>> {
    let key = K::Layout::key(&step.key);
    match step.value == K::LOOKUP {
        true => LeafEdit { key, action: EditAction::Get },
        false => LeafEdit { key, action: EditAction::Update(step.value.borrow()) },
    }
}
