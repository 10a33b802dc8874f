//! The other ordered indexes, used as their users would use them, with numbers or byte strings as
//! keys and values of 8 bytes.
//!
//! None has a bulk load, so all are loaded in a scattered order. This makes trees about as full as
//! Farleaf's after a load at 70%.
//!
//! *Thread safety*: all threads of a round use a map through `&self`, without further locking.

use crate::contender::{Contender, ContenderRound, ContenderSession, ThreadTally};
use crate::keys::{BorrowedKey, ByteKeys, InPage, LoadedKeys, OwnedLoadedKey};
use bf_tree::{BfTree, LeafInsertResult, LeafReadResult, StorageBackend};
use congee::Congee;
use crossbeam_skiplist::SkipMap;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::workload::Permutation;
use farleaf_fabric::now_or_never;
use farleaf_index::IndexError;
use farleaf_page::Layout;
use redb::backends::InMemoryBackend;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// A list of contenders.
type MapContenders<K> = Vec<Box<dyn Contender<K>>>;

/// All maps of numbers, in the order of the table.
pub(crate) fn all() -> MapContenders<KeySpace> {
    vec![
        Box::new(LoadedMap::<BfTreeMap>::new()),
        Box::new(LoadedMap::<CongeeArtMap>::new()),
        Box::new(LoadedMap::<CrossbeamSkipMap<u64>>::new()),
        Box::new(LoadedMap::<LockedMap<u64, u64>>::new()),
    ]
}

/// All maps of byte strings, in the order of the table.
pub(crate) fn of_bytes() -> MapContenders<ByteKeys> {
    vec![
        Box::new(LoadedMap::<BfTreeMap>::new()),
        Box::new(LoadedMap::<Redb>::new()),
        Box::new(LoadedMap::<CrossbeamSkipMap<Vec<u8>>>::new()),
        Box::new(LoadedMap::<LockedMap<Vec<u8>, Vec<u8>>>::new()),
    ]
}

/// An ordered map that threads can share.
trait OrderedMap<K: LoadedKeys>: Sync + Sized {
    const NAME: &'static str;

    /// An empty map with room for these keys.
    fn new(keys: &K) -> anyhow::Result<Self>;

    /// Inserts a new key.
    fn insert(&self, key: &BorrowedKey<K>, value: K::Value) -> anyhow::Result<()>;

    /// Inserts all keys of an empty map.
    fn fill(
        &self,
        records: impl Iterator<Item = (OwnedLoadedKey<K>, K::Value)>,
    ) -> anyhow::Result<()> {
        for (key, value) in records {
            self.insert(K::Layout::key(&key), value)?;
        }
        Ok(())
    }

    fn get(&self, key: &BorrowedKey<K>) -> Option<K::Value>;

    /// Changes the value of an existing key.
    fn update(&self, key: &BorrowedKey<K>, value: K::Value) -> bool;
}

/// A map as a contender.
struct LoadedMap<M> {
    /// `None` until it is loaded.
    map: Option<M>,
}

impl<M> LoadedMap<M> {
    fn new() -> Self {
        Self { map: None }
    }

    fn map(&self) -> &M {
        self.map.as_ref().expect("a contender is loaded first")
    }
}

impl<K: LoadedKeys, M: OrderedMap<K>> Contender<K> for LoadedMap<M> {
    fn name(&self) -> &'static str {
        M::NAME
    }

    fn load(&mut self, keys: &K) -> anyhow::Result<()> {
        let (map, numbers) = (M::new(keys)?, keys.space());
        let order = Permutation::new(numbers.len(), 1);
        let places = (0..numbers.len()).map(|number| order.apply(number));
        let record = |place| (keys.key(numbers.key(place)), K::value(numbers.value(place)));
        map.fill(places.map(record))?;
        self.map = Some(map);
        Ok(())
    }

    fn look_up(&self, keys: &[OwnedLoadedKey<K>]) -> anyhow::Result<Vec<Option<K::Value>>> {
        Ok(keys.iter().map(|key| self.map().get(K::Layout::key(key))).collect())
    }

    fn run(&self, round: &ContenderRound<K>) -> anyhow::Result<Vec<ThreadTally>> {
        let map = MapSession(self.map());
        std::thread::scope(|scope| {
            let start = |thread| scope.spawn(move || now_or_never(round.work(&map, thread)));
            let threads: Vec<_> = (0..round.threads()).map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                let result: Result<ThreadTally, IndexError> = thread.join().expect("no map panics");
                Ok(result?)
            };
            threads.into_iter().map(join).collect()
        })
    }
}

/// A map as a session.
struct MapSession<'a, M>(&'a M);

impl<M> Clone for MapSession<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for MapSession<'_, M> {}

impl<K: LoadedKeys, M: OrderedMap<K>> ContenderSession<K> for MapSession<'_, M> {
    #[inline(always)]
    async fn get(&self, key: &BorrowedKey<K>) -> Result<Option<K::Value>, IndexError> {
        Ok(self.0.get(key))
    }

    #[inline(always)]
    async fn update(&self, key: &BorrowedKey<K>, value: K::Value) -> Result<bool, IndexError> {
        Ok(self.0.update(key, value))
    }
}

/// Bf-Tree as a cache that holds everything, without base pages behind it, which is the faster of
/// its two in-memory modes. (If it evicted a record after all, contender.N1 would detect that.) Its
/// insertion replaces an existing value, so it also serves as update.
struct BfTreeMap(BfTree);

impl BfTreeMap {
    /// The size of the record buffer, as a multiple of the size of Farleaf's pages. It is several
    /// times what half-full pages take, so that nothing is evicted. The system provides memory when
    /// it is used.
    const BUFFER_TIMES: u64 = 4;
}

impl<K: LoadedKeys<Value: BytesOfValue>> OrderedMap<K> for BfTreeMap {
    const NAME: &'static str = "bf-tree";

    fn new(keys: &K) -> anyhow::Result<Self> {
        let bytes = keys.space().len().saturating_mul(keys.most_bytes() * Self::BUFFER_TIMES);
        let buffer_bytes = usize::try_from(bytes)?;
        let mut config = bf_tree::Config::default();
        config
            .storage_backend(StorageBackend::Memory)
            .cache_only(true)
            .cb_size_byte(buffer_bytes.max(1 << 25).next_power_of_two())
            .cb_min_record_size(K::KEY_BYTES.0 + size_of::<K::Value>())
            // 16 is Bf-Tree's default.
            .cb_max_key_len(K::KEY_BYTES.1.max(16));
        let tree = BfTree::with_config(config, None);
        Ok(Self(tree.map_err(|error| anyhow::anyhow!("bf-tree: {error:?}"))?))
    }

    fn insert(&self, key: &BorrowedKey<K>, value: K::Value) -> anyhow::Result<()> {
        anyhow::ensure!(OrderedMap::<K>::update(self, key, value), "bf-tree refuses {key:?}");
        Ok(())
    }

    #[inline]
    fn get(&self, key: &BorrowedKey<K>) -> Option<K::Value> {
        let mut value = [0; 8];
        match self.0.read(K::key_bytes(key).as_ref(), &mut value) {
            LeafReadResult::Found(8) => Some(BytesOfValue::of(value)),
            _ => None,
        }
    }

    #[inline]
    fn update(&self, key: &BorrowedKey<K>, value: K::Value) -> bool {
        let result = self.0.insert(K::key_bytes(key).as_ref(), &value.bytes());
        matches!(result, LeafInsertResult::Success)
    }
}

/// A value as bytes.
trait BytesOfValue: Copy {
    fn bytes(self) -> [u8; 8];
    fn of(bytes: [u8; 8]) -> Self;
}

impl BytesOfValue for u64 {
    fn bytes(self) -> [u8; 8] {
        self.to_le_bytes()
    }

    fn of(bytes: [u8; 8]) -> u64 {
        u64::from_le_bytes(bytes)
    }
}

impl BytesOfValue for [u8; 8] {
    fn bytes(self) -> [u8; 8] {
        self
    }

    fn of(bytes: [u8; 8]) -> [u8; 8] {
        bytes
    }
}

/// congee, an adaptive radix tree with optimistic lock coupling.
struct CongeeArtMap(Congee<usize, usize>);

impl OrderedMap<KeySpace> for CongeeArtMap {
    const NAME: &'static str = "congee";

    fn new(_keys: &KeySpace) -> anyhow::Result<Self> {
        Ok(Self(Congee::default()))
    }

    fn insert(&self, key: &u64, value: u64) -> anyhow::Result<()> {
        let replaced = self.0.insert(*key as usize, value as usize, &self.0.pin());
        anyhow::ensure!(matches!(replaced, Ok(None)), "congee refuses {key}");
        Ok(())
    }

    #[inline]
    fn get(&self, key: &u64) -> Option<u64> {
        self.0.get(&(*key as usize), &self.0.pin()).map(|value| value as u64)
    }

    #[inline]
    fn update(&self, key: &u64, value: u64) -> bool {
        let new = |_| Some(value as usize);
        self.0.compute_if_present(&(*key as usize), new, &self.0.pin()).is_some()
    }
}

/// crossbeam's skip list. Updates change values in place, because an insertion would replace the
/// whole node.
struct CrossbeamSkipMap<Q>(SkipMap<Q, AtomicU64>);

impl<Q, K> OrderedMap<K> for CrossbeamSkipMap<Q>
where
    Q: Ord + Send + Borrow<BorrowedKey<K>> + 'static,
    K: LoadedKeys<Layout: Layout<Key: ToOwned<Owned = Q>>, Value: BytesOfValue>,
    Self: Sync,
{
    const NAME: &'static str = "crossbeam-skiplist";

    fn new(_keys: &K) -> anyhow::Result<Self> {
        Ok(Self(SkipMap::new()))
    }

    fn insert(&self, key: &BorrowedKey<K>, value: K::Value) -> anyhow::Result<()> {
        self.0.insert(key.to_owned(), AtomicU64::new(u64::from_le_bytes(value.bytes())));
        Ok(())
    }

    #[inline]
    fn get(&self, key: &BorrowedKey<K>) -> Option<K::Value> {
        let entry = self.0.get(key)?;
        Some(BytesOfValue::of(entry.value().load(Ordering::Acquire).to_le_bytes()))
    }

    #[inline]
    fn update(&self, key: &BorrowedKey<K>, value: K::Value) -> bool {
        let value = u64::from_le_bytes(value.bytes());
        self.0.get(key).map(|entry| entry.value().store(value, Ordering::Release)).is_some()
    }
}

/// The standard library's map behind one lock.
struct LockedMap<Q, V>(RwLock<BTreeMap<Q, V>>);

impl<Q, V, K> OrderedMap<K> for LockedMap<Q, V>
where
    Q: Ord + Send + Sync + Borrow<BorrowedKey<K>>,
    V: Borrow<InPage<K>> + Send + Sync,
    K: LoadedKeys<Layout: Layout<Key: ToOwned<Owned = Q>, Value: ToOwned<Owned = V>>>,
{
    const NAME: &'static str = "RwLock<BTreeMap>";

    fn new(_keys: &K) -> anyhow::Result<Self> {
        Ok(Self(RwLock::new(BTreeMap::new())))
    }

    fn insert(&self, key: &BorrowedKey<K>, value: K::Value) -> anyhow::Result<()> {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        map.insert(key.to_owned(), value.borrow().to_owned());
        Ok(())
    }

    #[inline]
    fn get(&self, key: &BorrowedKey<K>) -> Option<K::Value> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        map.get(key).and_then(|value| K::found(value.borrow()))
    }

    #[inline]
    fn update(&self, key: &BorrowedKey<K>, value: K::Value) -> bool {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        map.get_mut(key).map(|held| value.borrow().clone_into(held)).is_some()
    }
}

/// redb in memory. Each lookup is a separate read transaction, and each update a separate write
/// transaction without durability. Both are then linearizable, as in the other contenders.
struct Redb(Database);

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

impl Redb {
    fn write(&self, key: &[u8], value: [u8; 8]) -> Result<bool, redb::Error> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(Durability::None)?;
        let is_held = transaction.open_table(TABLE)?.insert(key, &value[..])?.is_some();
        transaction.commit()?;
        Ok(is_held)
    }

    fn read(&self, key: &[u8]) -> Result<Option<[u8; 8]>, redb::Error> {
        let value = self.0.begin_read()?.open_table(TABLE)?.get(key)?;
        Ok(value.and_then(|value| value.value().try_into().ok()))
    }
}

impl OrderedMap<ByteKeys> for Redb {
    const NAME: &'static str = "redb";

    fn new(_keys: &ByteKeys) -> anyhow::Result<Self> {
        let database = Database::builder().create_with_backend(InMemoryBackend::new())?;
        Ok(Self(database))
    }

    fn insert(&self, key: &[u8], value: [u8; 8]) -> anyhow::Result<()> {
        Ok(self.write(key, value).map(drop)?)
    }

    /// Loads in a single transaction, because a load with one per record takes minutes.
    fn fill(&self, records: impl Iterator<Item = (Vec<u8>, [u8; 8])>) -> anyhow::Result<()> {
        let transaction = self.0.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in records {
                table.insert(&key[..], &value[..])?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &[u8]) -> Option<[u8; 8]> {
        // A failed lookup counts as not finding its key, which ends the comparison.
        self.read(key).ok().flatten()
    }

    fn update(&self, key: &[u8], value: [u8; 8]) -> bool {
        self.write(key, value).unwrap_or(false)
    }
}
