//! The other ordered indexes, as their users would apply them to keys and values of 8 bytes.
//!
//! None has a bulk load, so all are loaded in a scattered order. That leaves trees about as full as
//! Farleaf's are after a load at 70%.
//!
//! *Thread safety*: all threads of a round use a map through `&self`, without further locking.

use crate::contender::{Contender, Round, Session, Tally};
use bf_tree::{BfTree, LeafInsertResult, LeafReadResult, StorageBackend};
use congee::Congee;
use crossbeam_skiplist::SkipMap;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::workload::Permutation;
use farleaf_core::index::IndexError;
use farleaf_fabric::now_or_never;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// All maps, in the order of the table.
pub(crate) fn all() -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(Loaded::<Bf>::new()),
        Box::new(Loaded::<Art>::new()),
        Box::new(Loaded::<Skip>::new()),
        Box::new(Loaded::<Locked>::new()),
    ]
}

/// An ordered map that threads can share.
trait Map: Sync + Sized {
    const NAME: &'static str;

    /// An empty map with room for `keys` keys.
    fn new(keys: u64) -> anyhow::Result<Self>;

    /// Inserts a new key.
    fn insert(&self, key: u64, value: u64) -> anyhow::Result<()>;

    fn get(&self, key: u64) -> Option<u64>;

    /// Changes the value of an existing key.
    fn update(&self, key: u64, value: u64) -> bool;
}

/// A map as a contender.
struct Loaded<M> {
    /// `None` until it is loaded.
    map: Option<M>,
}

impl<M: Map> Loaded<M> {
    fn new() -> Self {
        Self { map: None }
    }

    fn map(&self) -> &M {
        self.map.as_ref().expect("a contender is loaded first")
    }
}

impl<M: Map> Contender for Loaded<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn load(&mut self, keys: &KeySpace) -> anyhow::Result<()> {
        let map = M::new(keys.len())?;
        let order = Permutation::new(keys.len(), 1);
        for place in (0..keys.len()).map(|number| order.apply(number)) {
            map.insert(keys.key(place), keys.value(place))?;
        }
        self.map = Some(map);
        Ok(())
    }

    fn look_up(&self, keys: &[u64]) -> anyhow::Result<Vec<Option<u64>>> {
        Ok(keys.iter().map(|key| self.map().get(*key)).collect())
    }

    fn run(&self, round: &Round) -> anyhow::Result<Vec<Tally>> {
        let map = self.map();
        std::thread::scope(|scope| {
            let start = |thread| scope.spawn(move || now_or_never(round.work(map, thread)));
            let threads: Vec<_> = (0..round.threads()).map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                let result: Result<Tally, IndexError> = thread.join().expect("no map panics");
                Ok(result?)
            };
            threads.into_iter().map(join).collect()
        })
    }
}

impl<M: Map> Session for M {
    #[inline(always)]
    async fn get(&self, key: u64) -> Result<Option<u64>, IndexError> {
        Ok(Map::get(self, key))
    }

    #[inline(always)]
    async fn update(&self, key: u64, value: u64) -> Result<bool, IndexError> {
        Ok(Map::update(self, key, value))
    }
}

/// Bf-Tree as a cache that holds everything, without base pages behind it: the faster of its two
/// modes in memory. (If it evicted a record after all, contender.N1 would catch that.) Its
/// insertion replaces an existing value and serves as update.
struct Bf(BfTree);

impl Bf {
    /// Bytes per key of the buffer of records: several times what half-full pages take, so that
    /// nothing is evicted. The system provides memory as it is used.
    const BUFFER_BYTES_PER_KEY: usize = 128;
}

impl Map for Bf {
    const NAME: &'static str = "bf-tree";

    fn new(keys: u64) -> anyhow::Result<Self> {
        let buffer_bytes = usize::try_from(keys)?.saturating_mul(Self::BUFFER_BYTES_PER_KEY);
        let mut config = bf_tree::Config::default();
        config
            .storage_backend(StorageBackend::Memory)
            .cache_only(true)
            .cb_size_byte(buffer_bytes.max(1 << 25).next_power_of_two())
            .cb_min_record_size(16);
        let tree = BfTree::with_config(config, None);
        Ok(Self(tree.map_err(|error| anyhow::anyhow!("bf-tree: {error:?}"))?))
    }

    fn insert(&self, key: u64, value: u64) -> anyhow::Result<()> {
        anyhow::ensure!(Map::update(self, key, value), "bf-tree refuses {key}");
        Ok(())
    }

    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        let mut value = [0; 8];
        match self.0.read(&key.to_be_bytes(), &mut value) {
            LeafReadResult::Found(8) => Some(u64::from_le_bytes(value)),
            _ => None,
        }
    }

    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        let result = self.0.insert(&key.to_be_bytes(), &value.to_le_bytes());
        matches!(result, LeafInsertResult::Success)
    }
}

/// congee, an adaptive radix tree with optimistic lock coupling.
struct Art(Congee<usize, usize>);

impl Map for Art {
    const NAME: &'static str = "congee";

    fn new(_keys: u64) -> anyhow::Result<Self> {
        Ok(Self(Congee::default()))
    }

    fn insert(&self, key: u64, value: u64) -> anyhow::Result<()> {
        let replaced = self.0.insert(key as usize, value as usize, &self.0.pin());
        anyhow::ensure!(matches!(replaced, Ok(None)), "congee refuses {key}");
        Ok(())
    }

    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&(key as usize), &self.0.pin()).map(|value| value as u64)
    }

    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        let new = |_| Some(value as usize);
        self.0.compute_if_present(&(key as usize), new, &self.0.pin()).is_some()
    }
}

/// crossbeam's skip list. Updates change values in place, as an insertion would replace the whole
/// node.
struct Skip(SkipMap<u64, AtomicU64>);

impl Map for Skip {
    const NAME: &'static str = "crossbeam-skiplist";

    fn new(_keys: u64) -> anyhow::Result<Self> {
        Ok(Self(SkipMap::new()))
    }

    fn insert(&self, key: u64, value: u64) -> anyhow::Result<()> {
        self.0.insert(key, AtomicU64::new(value));
        Ok(())
    }

    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|entry| entry.value().load(Ordering::Acquire))
    }

    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        self.0.get(&key).map(|entry| entry.value().store(value, Ordering::Release)).is_some()
    }
}

/// The standard library's map behind one lock.
struct Locked(RwLock<BTreeMap<u64, u64>>);

impl Map for Locked {
    const NAME: &'static str = "RwLock<BTreeMap>";

    fn new(_keys: u64) -> anyhow::Result<Self> {
        Ok(Self(RwLock::new(BTreeMap::new())))
    }

    fn insert(&self, key: u64, value: u64) -> anyhow::Result<()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(key, value);
        Ok(())
    }

    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        map.get_mut(&key).map(|held| *held = value).is_some()
    }
}
