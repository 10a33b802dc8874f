//! What the threads of one compute server share: its trees.
//!
//! A tree's gate is open while the compute server owns its shard. A tree whose shard has moved away
//! stays, without tables and almost without memory, for the handles that refer to it.
//!
//! *Thread safety*: any number of threads; a mutex that is never held across a wait.

use super::options::DlsmServerOptions;
use super::shard_map::ShardMap;
use crate::cache::OwnedRange;
use crate::index::dlsm::writers::Writers;
use crate::index::dlsm::{DlsmOptions, Shard};
use crate::index::{Encoded, IndexError, PartState};
use crate::page::{Layout, OwnedKey};
use crate::remote::{Detector, RemoteError};
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::collections::BTreeMap;
use std::ops::Range;

/// One compute server.
#[derive(Debug)]
pub struct DlsmServer<L: Layout> {
    options: DlsmServerOptions,
    detector: Detector,
    /// Counts the changes of the range.
    changes: AtomicU64,
    inner: Mutex<Inner<L>>,
}

#[derive(Debug)]
struct Inner<L: Layout> {
    range: OwnedRange<OwnedKey<L>>,
    /// Once a thread has read the map of the shards.
    known: Option<Known>,
}

impl<L: Layout> Inner<L> {
    fn owned(&self) -> Range<usize> {
        self.known.as_ref().map_or(0..0, |known| known.owned.clone())
    }
}

/// What a compute server knows of its index.
#[derive(Debug)]
struct Known {
    map: Arc<ShardMap>,
    /// Those of its range.
    owned: Range<usize>,
    /// Of each tree, with the smallest MemTables that it may have.
    options: DlsmOptions,
    writers: Arc<Writers>,
    /// The trees that it has, or had, by number.
    trees: BTreeMap<usize, Arc<Shard>>,
}

impl<L: Layout> DlsmServer<L> {
    pub(super) fn new(
        options: &DlsmServerOptions,
        range: OwnedRange<OwnedKey<L>>,
    ) -> Result<Self, IndexError> {
        options.tree.check()?;
        Ok(Self {
            options: options.clone(),
            detector: Detector::default(),
            changes: AtomicU64::new(0),
            inner: Mutex::new(Inner { range, known: None }),
        })
    }

    /// The trees that it owns, for tests and tools. None before a handle was opened.
    pub fn shards(&self) -> Vec<Arc<Shard>> {
        let inner = lock(&self.inner);
        let Some(Known { owned, trees, .. }) = &inner.known else { return Vec::new() };
        trees.range(owned.clone()).map(|(_, tree)| Arc::clone(tree)).collect()
    }

    /// Notes that the index's shards are as in `map`.
    pub(super) fn learn(&self, map: &Arc<ShardMap>) -> Result<(), IndexError> {
        let mut inner = lock(&self.inner);
        let owned = shards_of::<L>(map, &inner.range)?;
        match &inner.known {
            Some(known) if *known.map == **map => return Ok(()),
            Some(_) => {
                return Err(IndexError::InvalidArgument("this is not the index of before"));
            }
            None => {}
        }
        self.options.check(owned.len(), self.options.longest_value.unwrap_or(0))?;
        let options = self.options.smallest(owned.len())?;
        let writers = Arc::new(Writers::new(options.writers));
        let (map, trees) = (Arc::clone(map), BTreeMap::new());
        inner.known = Some(Known { map, owned, options, writers, trees });
        Ok(())
    }

    /// The numbers of the trees that it owns.
    pub(super) fn owned(&self) -> Range<usize> {
        lock(&self.inner).owned()
    }

    /// The range, and the numbers of the trees in it: those of one moment.
    pub(super) fn owned_range(&self) -> (OwnedRange<OwnedKey<L>>, Range<usize>) {
        let inner = lock(&self.inner);
        (inner.range.clone(), inner.owned())
    }

    /// Counts the changes of the range.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The tree of a shard that it owns, or has owned.
    ///
    /// # Errors
    /// [`RemoteError::Moved`] if there is none.
    pub(super) fn tree(&self, shard: usize) -> Result<Arc<Shard>, RemoteError> {
        let mut inner = lock(&self.inner);
        let known = inner.known.as_mut().ok_or(RemoteError::Moved)?;
        if let Some(tree) = known.trees.get(&shard) {
            return Ok(Arc::clone(tree));
        }
        if !known.owned.contains(&shard) {
            return Err(RemoteError::Moved);
        }
        let made = Shard::beside(shard as u64, &known.options, &known.writers);
        let tree = Arc::new(made.map_err(|error| RemoteError::from(IndexError::from(error)))?);
        if let Ok(options) = self.options.of_each(known.owned.len()) {
            tree.resize(&options.memtable);
        }
        tree.gate.set_open(true);
        known.trees.insert(shard, Arc::clone(&tree));
        Ok(tree)
    }

    /// The number by which directories know this process, if it has ever had the shard.
    pub(super) fn owner_of(&self, shard: usize) -> Option<u64> {
        let inner = lock(&self.inner);
        let owner = inner.known.as_ref()?.trees.get(&shard)?.owner(0);
        (owner > 0).then_some(owner)
    }

    /// Checks that it can have the shards of `range`. Returns those that it does not own yet.
    pub(super) fn check_range(
        &self,
        range: &OwnedRange<OwnedKey<L>>,
    ) -> Result<Vec<usize>, IndexError> {
        let inner = lock(&self.inner);
        let Some(known) = &inner.known else {
            return Err(IndexError::InvalidArgument("the compute server has not opened the index"));
        };
        let shards = shards_of::<L>(&known.map, range)?;
        let memtable = self.options.of_each(shards.len())?.memtable;
        if memtable.bytes < known.options.memtable.bytes {
            return Err(IndexError::InvalidArgument(
                "too little memory for MemTables of more shards; give the compute server more, or \
                 move fewer of them",
            ));
        }
        Ok(shards.filter(|shard| !known.owned.contains(shard)).collect())
    }
}

/// The shards of a range of keys.
pub(super) fn shards_of<L: Layout>(
    map: &ShardMap,
    range: &OwnedRange<OwnedKey<L>>,
) -> Result<Range<usize>, IndexError> {
    if range.is_empty() {
        return Ok(0..0);
    }
    let low = (range.low > L::min_key()).then(|| L::Key::of_owned(&range.low));
    let high = range.high.as_ref().map(L::Key::of_owned);
    let shards = map.between(low.as_deref(), high.as_deref());
    shards.ok_or(IndexError::InvalidArgument(
        "compute servers of this index own whole shards, and this one's range ends within one",
    ))
}

impl<L: Layout> PartState<OwnedKey<L>> for DlsmServer<L> {
    fn range(&self) -> OwnedRange<OwnedKey<L>> {
        lock(&self.inner).range.clone()
    }

    /// Opens the gates of its shards, and closes those of all others. The next MemTables have the
    /// size that the number of shards leaves.
    fn set_range(&self, range: OwnedRange<OwnedKey<L>>) {
        let mut inner = lock(&self.inner);
        inner.range = range;
        let Inner { range, known } = &mut *inner;
        let Some(known) = known else { return };
        // Nothing is served of a range that ends within a shard.
        known.owned = shards_of::<L>(&known.map, range).unwrap_or(0..0);
        let sizes = self.options.of_each(known.owned.len());
        for (number, tree) in &known.trees {
            if let Ok(options) = &sizes {
                tree.resize(&options.memtable);
            }
            tree.gate.set_open(known.owned.contains(number));
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    fn detector(&self) -> &Detector {
        &self.detector
    }

    fn cached_bytes(&self) -> u64 {
        let bytes = |shard: &Arc<Shard>| {
            let (memtables, indexes) = shard.local_bytes();
            memtables + indexes
        };
        self.shards().iter().map(bytes).sum()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::page::Fixed8;
    use farleaf_fabric::sync::thread;

    /// A scan that took the range before a shard left, and the shards after it, missed the shard's
    /// records and answered for its keys.
    #[test]
    fn a_range_comes_with_its_shards() {
        type Layout = Fixed8<128>;
        let lows = [100_u64, 200].map(|low| u64::of_owned(&low));
        let map = Arc::new(ShardMap::new(lows.to_vec()).unwrap());
        let all = OwnedRange { low: 0, high: None };
        let some = OwnedRange { low: 0, high: Some(100) };
        let server =
            &DlsmServer::<Layout>::new(&DlsmServerOptions::default(), all.clone()).unwrap();
        server.learn(&map).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..50_000 {
                    server.set_range(some.clone());
                    server.set_range(all.clone());
                }
            });
            for _ in 0..50_000 {
                let (range, owned) = server.owned_range();
                assert_eq!(shards_of::<Layout>(&map, &range).unwrap(), owned);
            }
        });
        assert_eq!((server.owned(), server.changes()), (0..3, 100_000));
    }
}
