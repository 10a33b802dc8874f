//! What the threads of one compute server share: its trees.
//!
//! *Thread safety*: any number of threads; two mutexes, neither of which is held across a wait or
//! has the other inside.

use super::options::DlsmServerOptions;
use super::shard_map::ShardMap;
use crate::cache::OwnedRange;
use crate::index::dlsm::Shard;
use crate::index::dlsm::writers::Writers;
use crate::index::{Encoded, IndexError, PartState};
use crate::page::{Layout, OwnedKey};
use crate::remote::Detector;
use farleaf_fabric::sync::{Arc, Mutex, lock};

/// One compute server.
#[derive(Debug)]
pub struct DlsmServer<L: Layout> {
    options: DlsmServerOptions,
    range: Mutex<OwnedRange<OwnedKey<L>>>,
    detector: Detector,
    /// Its trees, once a thread has read the map of the shards.
    trees: Mutex<Option<Arc<Trees>>>,
}

/// The trees of a compute server.
#[derive(Debug)]
pub(super) struct Trees {
    pub(super) map: Arc<ShardMap>,
    /// The number of the first one.
    pub(super) first: usize,
    /// With ascending keys.
    pub(super) shards: Vec<Arc<Shard>>,
}

impl<L: Layout> DlsmServer<L> {
    pub(super) fn new(
        options: &DlsmServerOptions,
        range: OwnedRange<OwnedKey<L>>,
    ) -> Result<Self, IndexError> {
        options.tree.check()?;
        Ok(Self {
            options: options.clone(),
            range: Mutex::new(range),
            detector: Detector::default(),
            trees: Mutex::default(),
        })
    }

    /// The trees, for tests and tools. None before a handle was opened.
    pub fn shards(&self) -> Vec<Arc<Shard>> {
        lock(&self.trees).as_ref().map(|trees| trees.shards.clone()).unwrap_or_default()
    }

    /// The trees, of an index whose shards are as in `map`.
    pub(super) fn trees(&self, map: &Arc<ShardMap>) -> Result<Arc<Trees>, IndexError> {
        let shards = shards_of::<L>(map, &self.range())?;
        let mut trees = lock(&self.trees);
        match &*trees {
            Some(trees) if *trees.map == **map => return Ok(Arc::clone(trees)),
            Some(_) => {
                return Err(IndexError::InvalidArgument("this is not the index of before"));
            }
            None => {}
        }
        let options = self.options.of_each(shards.len())?;
        let writers = Arc::new(Writers::new(options.writers));
        let first = shards.start;
        let new = |shard| Ok(Arc::new(Shard::beside(shard as u64, &options, &writers)?));
        let shards = shards.map(new).collect::<Result<_, IndexError>>()?;
        let made = Arc::new(Trees { map: Arc::clone(map), first, shards });
        *trees = Some(Arc::clone(&made));
        Ok(made)
    }
}

/// The shards of a range of keys.
pub(super) fn shards_of<L: Layout>(
    map: &ShardMap,
    range: &OwnedRange<OwnedKey<L>>,
) -> Result<std::ops::Range<usize>, IndexError> {
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
        lock(&self.range).clone()
    }

    fn set_range(&self, range: OwnedRange<OwnedKey<L>>) {
        *lock(&self.range) = range;
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
