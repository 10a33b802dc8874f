//! What the threads of one compute server share: its trees.
//!
//! A tree's gate is open while the compute server owns its shard, and does not divide it. A tree
//! whose shard has moved away stays, without tables and almost without memory, for the handles that
//! refer to it.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.L4. After a division of unknown outcome, its epoch has ended before the process asks which
//!   shards there are, and the gate stays closed until it knows.
//! - lsm.L5. A process that gets shards asks first which ones there are.
//! - lsm.L6. A flush or a collection covers the shards that the process is leaving, as long as it
//!   has not left them: the leave may fail, and then it keeps their MemTables.
//!
//! *Thread safety*: any number of threads; a mutex that is never held across a wait.

use super::options::DlsmServerOptions;
use super::shard_map::ShardMap;
use crate::wal::LoggedTrees;
use crate::writers::IdleWriters;
use crate::{DlsmOptions, LsmShard};
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{Arc, AtomicU64, Mutex, ObjectArc, Ordering, lock};
use farleaf_index::OwnedRange;
use farleaf_index::{AcknowledgeName, Encoded, IndexError, PartState};
use farleaf_page::{Layout, OwnedKey};
use farleaf_pool::remote::{FailureDetector, RemoteError, Wal, WalSource};
use std::collections::BTreeMap;
use std::ops::Range;

/// One compute server.
#[derive(Debug)]
pub struct DlsmServer<L: Layout> {
    /// Its number in the partition map.
    number: u16,
    /// The options as given, before they are adapted to the pool's size.
    options: DlsmServerOptions,
    detector: FailureDetector,
    /// Counts the changes of the range.
    changes: AtomicU64,
    inner: Mutex<DlsmServerInner<L>>,
}

#[derive(Debug)]
struct DlsmServerInner<L: Layout> {
    range: OwnedRange<OwnedKey<L>>,
    /// `None` until a thread has read the shard map.
    known: Option<KnownShards>,
}

/// A split of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardSplit {
    /// A thread is splitting this shard.
    Now(usize),
    /// The split of this shard has ended, but the process does not know yet which shards there are.
    /// The second field is the split's number.
    Ended(usize, u64),
}

/// What a compute server owns at one moment.
#[derive(Clone, Debug)]
pub(super) struct OwnedShards<L: Layout> {
    pub(super) range: OwnedRange<OwnedKey<L>>,
    pub(super) map: Arc<ShardMap>,
    /// The positions of its shards in the map.
    pub(super) places: Range<usize>,
    /// [`DlsmServer::changes`].
    pub(super) changes: u64,
}

impl<L: Layout> OwnedShards<L> {
    /// The numbers of its shards, in the order of their keys.
    pub(super) fn shards(&self) -> &[usize] {
        self.map.shards(self.places.clone())
    }
}

/// What a compute server knows of its index.
#[derive(Debug)]
struct KnownShards {
    map: Arc<ShardMap>,
    /// The positions in the map of the shards of its range.
    owned: Range<usize>,
    dividing: Option<ShardSplit>,
    /// Number of splits so far.
    divisions: u64,
    /// The options of the compute server, adapted to this pool.
    server: DlsmServerOptions,
    /// The options of each tree, with the smallest MemTables that it may get.
    options: DlsmOptions,
    writers: Arc<IdleWriters>,
    /// The write-ahead log, if answers wait for it, and what the log knows of the trees.
    log: Option<(Arc<Wal>, ObjectArc<LoggedTrees>)>,
    /// The trees that it has, or had, by number.
    trees: BTreeMap<usize, Arc<LsmShard>>,
}

impl<L: Layout> DlsmServer<L> {
    pub(super) fn new(
        options: &DlsmServerOptions,
        number: u16,
        range: OwnedRange<OwnedKey<L>>,
    ) -> Result<Self, IndexError> {
        options.tree.check()?;
        Ok(Self {
            number,
            options: options.clone(),
            detector: FailureDetector::default(),
            changes: AtomicU64::new(0),
            inner: Mutex::new(DlsmServerInner { range, known: None }),
        })
    }

    /// The trees that it owns, for tests and tools. None before a handle was opened.
    pub fn shards(&self) -> Vec<Arc<LsmShard>> {
        let inner = lock(&self.inner);
        let Some(known) = &inner.known else { return Vec::new() };
        known.shards().iter().filter_map(|shard| known.trees.get(shard)).map(Arc::clone).collect()
    }

    /// Notes that the index's shards are as in `map`, and the memory servers have `pool_bytes`.
    pub(super) fn learn(&self, map: &Arc<ShardMap>, pool_bytes: u64) -> Result<(), IndexError> {
        let mut inner = lock(&self.inner);
        match &inner.known {
            // The known map may include more splits.
            Some(known) if known.map.is_of_same_index(map) => return Ok(()),
            Some(_) => {
                return Err(IndexError::InvalidArgument("this is not the index of before"));
            }
            None => {}
        }
        let owned = shards_of::<L>(map, &inner.range)?;
        let shards = map.between(None, None).map_or(1, |all| all.len());
        let server = self.options.within(pool_bytes, shards);
        server.check(owned.len(), server.longest_value.unwrap_or(0))?;
        let options = server.smallest(owned.len())?;
        let writers = Arc::new(IdleWriters::new(options.writers));
        let log = match options.acknowledge {
            AcknowledgeName::Cached => None,
            AcknowledgeName::Written => {
                let ring_bytes = server.ring_bytes(pool_bytes, shards);
                let logged = ObjectArc::new(LoggedTrees::new(writers.sequences()));
                let source: ObjectArc<dyn WalSource> = ObjectArc::clone(&logged) as _;
                Some((Arc::new(Wal::new(source, ring_bytes)), logged))
            }
        };
        inner.known = Some(KnownShards {
            map: Arc::clone(map),
            owned,
            dividing: None,
            divisions: 0,
            server,
            options,
            writers,
            log,
            trees: BTreeMap::new(),
        });
        Ok(())
    }

    /// Notes which shards splits have created. Also opens the gate that a split has left closed, if
    /// its number is `ended`: the memory servers were asked after it had ended.
    ///
    /// # Errors
    /// [`IndexError::Damaged`] if they make no sense.
    pub(super) fn learn_divisions(
        &self,
        pieces: &[(u64, Vec<u64>)],
        ended: Option<u64>,
    ) -> Result<(), IndexError> {
        let mut inner = lock(&self.inner);
        let DlsmServerInner { range, known } = &mut *inner;
        let Some(known) = known else { return Ok(()) };
        let map = known.map.divided(pieces);
        let map = map.ok_or(IndexError::Damaged { at: GlobalAddr::NULL })?;
        // Another split may have ended since then.
        let is_settled = match known.dividing {
            Some(ShardSplit::Ended(_, number)) => Some(number) == ended,
            _ => false,
        };
        if is_settled {
            known.dividing = None;
        }
        if is_settled || map != *known.map {
            known.map = Arc::new(map);
            self.arrange(range, known);
        }
        Ok(())
    }

    /// Begins a split of the shard around `low`, and closes its gate. Returns the shard, and the
    /// number of the one that is to begin at `low`. `None` if the compute server cannot have
    /// another shard, or no shard can begin there, or another split has not ended.
    pub(super) fn begin_division(&self, low: &[u8], servers: u16) -> Option<(usize, usize)> {
        let mut inner = lock(&self.inner);
        let known = inner.known.as_mut()?;
        let (shard, into) = self.division(known, low, servers)?;
        known.trees.get(&shard)?.gate.set_open(false);
        known.dividing = Some(ShardSplit::Now(shard));
        Some((shard, into))
    }

    /// Whether a shard can begin at `low`, within one that the compute server owns.
    pub(super) fn can_divide(&self, low: &[u8], servers: u16) -> bool {
        let inner = lock(&self.inner);
        inner.known.as_ref().is_some_and(|known| self.division(known, low, servers).is_some())
    }

    fn division(&self, known: &KnownShards, low: &[u8], servers: u16) -> Option<(usize, usize)> {
        let shards = known.owned.len() + 1;
        let memtable = known.server.of_each(shards).ok()?.memtable;
        let has_room =
            shards <= self.options.most_shards && memtable.bytes >= known.options.memtable.bytes;
        let shard = known.map.shard_of(low);
        let is_inside = known.shards().contains(&shard) && known.map.ends(low).0 != Some(low);
        let is_lowest = low == &*L::Key::of_owned(&L::min_key());
        if !has_room || !is_inside || is_lowest || known.dividing.is_some() {
            return None;
        }
        Some((shard, known.map.free_number(shard, low, servers)?))
    }

    /// Ends the split. The gate stays closed until the process knows which shards there are.
    pub(super) fn end_division(&self) {
        let mut inner = lock(&self.inner);
        let Some(known) = &mut inner.known else { return };
        if let Some(ShardSplit::Now(shard)) = known.dividing {
            known.divisions += 1;
            known.dividing = Some(ShardSplit::Ended(shard, known.divisions));
        }
    }

    /// The shard and the number of a split that has ended, if the process does not know yet which
    /// shards there are.
    pub(super) fn ended_division(&self) -> Option<(usize, u64)> {
        match lock(&self.inner).known.as_ref()?.dividing? {
            ShardSplit::Ended(shard, number) => Some((shard, number)),
            ShardSplit::Now(_) => None,
        }
    }

    /// What it owns now: nothing before a handle was opened.
    pub(super) fn owned(&self) -> OwnedShards<L> {
        let inner = lock(&self.inner);
        let range = inner.range.clone();
        let (map, places) = match &inner.known {
            Some(known) => (Arc::clone(&known.map), known.owned.clone()),
            None => (Arc::default(), 0..0),
        };
        // Changed under the mutex only.
        let changes = self.changes.load(Ordering::Relaxed);
        OwnedShards { range, map, places, changes }
    }

    /// Counts the changes of the range.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The tree of a shard that it owns, or has owned.
    ///
    /// # Errors
    /// [`RemoteError::Moved`] if there is none.
    pub(super) fn tree(&self, shard: usize) -> Result<Arc<LsmShard>, RemoteError> {
        let mut inner = lock(&self.inner);
        let known = inner.known.as_mut().ok_or(RemoteError::Moved)?;
        if let Some(tree) = known.trees.get(&shard) {
            return Ok(Arc::clone(tree));
        }
        if !known.shards().contains(&shard) {
            return Err(RemoteError::Moved);
        }
        let made = LsmShard::beside(shard as u64, &known.options, &known.writers);
        let tree = Arc::new(made.map_err(|error| RemoteError::from(IndexError::from(error)))?);
        if let Ok(options) = known.server.of_each(known.owned.len()) {
            tree.resize(&options.memtable);
        }
        tree.set_clip(known.map.clip(shard));
        tree.gate.set_open(true);
        if let Some((_, logged)) = &known.log {
            logged.add(&tree);
        }
        known.trees.insert(shard, Arc::clone(&tree));
        Ok(tree)
    }

    /// Its write-ahead log, if answers wait for one, and its number. `None` before a handle was
    /// opened.
    pub(super) fn log(&self) -> Option<(Arc<Wal>, u16)> {
        let inner = lock(&self.inner);
        let (wal, _) = inner.known.as_ref()?.log.as_ref()?;
        Some((Arc::clone(wal), self.number))
    }

    /// The numbers of the shards whose trees this process has, or had. The others have nothing
    /// here.
    pub(super) fn with_trees(&self) -> Vec<usize> {
        let inner = lock(&self.inner);
        inner.known.iter().flat_map(|known| known.trees.keys().copied()).collect()
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
        let memtable = known.server.of_each(shards.len())?.memtable;
        if memtable.bytes < known.options.memtable.bytes {
            return Err(IndexError::InvalidArgument(
                "too little memory for MemTables of more shards; give the compute server more, or \
                 move fewer of them",
            ));
        }
        let new = shards.filter(|place| !known.owned.contains(place));
        Ok(new.flat_map(|place| known.map.shards(place..place + 1)).copied().collect())
    }

    /// Arranges the trees for what the compute server owns now: opens the gates of its shards, and
    /// closes those of all others. The next MemTables have the size that the number of shards
    /// leaves.
    fn arrange(&self, range: &OwnedRange<OwnedKey<L>>, known: &mut KnownShards) {
        // Nothing is served of a range that ends within a shard.
        known.owned = shards_of::<L>(&known.map, range).unwrap_or(0..0);
        // Count the change before any gate opens, so that an operation that enters sees the new
        // map.
        self.changes.fetch_add(1, Ordering::AcqRel);
        let sizes = known.server.of_each(known.owned.len());
        for (number, tree) in &known.trees {
            if let Ok(options) = &sizes {
                tree.resize(&options.memtable);
            }
            tree.set_clip(known.map.clip(*number));
            let is_divided = match known.dividing {
                Some(ShardSplit::Now(shard) | ShardSplit::Ended(shard, _)) => shard == *number,
                None => false,
            };
            tree.gate.set_open(known.shards().contains(number) && !is_divided);
        }
    }
}

impl KnownShards {
    /// The numbers of the shards that it owns.
    fn shards(&self) -> &[usize] {
        self.map.shards(self.owned.clone())
    }
}

/// The places of the shards of a range of keys.
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

    fn set_range(&self, range: OwnedRange<OwnedKey<L>>) {
        let mut inner = lock(&self.inner);
        inner.range = range;
        let DlsmServerInner { range, known } = &mut *inner;
        if let Some(known) = known {
            self.arrange(range, known);
        }
    }

    fn detector(&self) -> &FailureDetector {
        &self.detector
    }

    fn cached_bytes(&self) -> u64 {
        let bytes = |shard: &Arc<LsmShard>| {
            let (memtables, indexes) = shard.local_bytes();
            memtables + indexes
        };
        self.shards().iter().map(bytes).sum()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::sync::thread;
    use farleaf_page::Fixed8;

    /// A scan that took the range before a shard left, and the shards after it, missed the shard's
    /// records and answered for its keys.
    #[test]
    fn a_range_comes_with_its_shards() {
        type ServerTestLayout = Fixed8<128>;
        let lows = [100_u64, 200].map(|low| u64::of_owned(&low));
        let map = Arc::new(ShardMap::new(lows.to_vec()).unwrap());
        let all = OwnedRange { low: 0, high: None };
        let some = OwnedRange { low: 0, high: Some(100) };
        let server =
            &DlsmServer::<ServerTestLayout>::new(&DlsmServerOptions::default(), 0, all.clone())
                .unwrap();
        server.learn(&map, 1 << 30).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..50_000 {
                    server.set_range(some.clone());
                    server.set_range(all.clone());
                }
            });
            for _ in 0..50_000 {
                let owned = server.owned();
                assert_eq!(
                    shards_of::<ServerTestLayout>(&map, &owned.range).unwrap(),
                    owned.places
                );
            }
        });
        assert_eq!((server.owned().places, server.changes()), (0..3, 100_000));
    }
}
