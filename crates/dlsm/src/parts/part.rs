//! One endpoint's handle on a compute server's trees.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::server::{DlsmServer, OwnedShards, shards_of};
use super::shard_map::{MAX_SHARDS, ShardMap};
use crate::directory::check_no_owner;
use crate::gate::TreeVisit;
use crate::handle::DlsmIndex;
use crate::operations::{decoded_records, encoded_scan};
use crate::remote::{ExtentClient, ExtentSpace, divided_shards};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::together::{all, join};
use farleaf_index::{CacheCounters, OwnedRange};
use farleaf_index::{
    EditAnswer, Encoded, IndexError, KeyedRecords, LeafEdit, PartIndex, PartState, ReleasedKeys,
    ScanRequest,
};
use farleaf_page::rules::{DIVISIONS_SETTLED, LEAVING_COVERED, ONE_BOUND, PIECES_REREAD};
use farleaf_page::table::KeyBuf;
use farleaf_page::{Layout, OwnedKey, OwnedValue};
use farleaf_pool::remote::{ChangeSignal, RemoteError, RpcClient, WalRecord, WalRoom, WalWriter};
use farleaf_pool::wire::Refusal;
use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::ops::Bound;
use std::rc::Rc;

/// Interval at which background tasks check whether they have ended, in nanoseconds. It is long,
/// because each tree has such a task on each thread.
const POLL_INTERVAL_NS: u64 = 20_000_000;
/// The pause of a task whose flushes have made no room, in nanoseconds.
const RELIEF_PAUSE_NS: u64 = 1_000_000;
/// Interval at which a thread settles the extents of the tables that it has given up, in
/// nanoseconds.
const SETTLE_NS: u64 = 50_000_000;

/// The trees of a compute server, over one endpoint.
#[derive(Debug)]
pub(super) struct PartTrees<F: Fabric, L: Layout> {
    pub(super) fabric: F,
    pub(super) server: Arc<DlsmServer<L>>,
    /// The shard map, and the server's number of changes when it was copied.
    map: RefCell<(u64, Arc<ShardMap>)>,
    /// A handle of each tree that it has used, by number. They stay, so that others can refer to
    /// them.
    handles: Box<[TreeHandle<F, L>]>,
    /// The write-ahead log, if answers wait for it.
    pub(super) log: Option<Rc<WalWriter<F, L>>>,
    /// Raised when the log needs room.
    pressure: ChangeSignal,
    /// Whether a task flushes so that the log gets room.
    relieves: Cell<bool>,
}

/// A handle of a tree, once it has been used.
type TreeHandle<F, L> = OnceCell<Box<DlsmIndex<F, L>>>;

/// One endpoint's handle on a compute server's trees.
#[derive(Debug)]
pub struct DlsmPart<F: Fabric, L: Layout> {
    part: Rc<PartTrees<F, L>>,
}

/// A tree that an operation uses, and its visit there.
pub(super) type EnteredTree<'t, F, L> = (&'t DlsmIndex<F, L>, TreeVisit<'t>);

impl<F: Fabric, L: Layout> PartTrees<F, L> {
    pub(super) fn new(
        fabric: F,
        server: &Arc<DlsmServer<L>>,
        log: Option<Rc<WalWriter<F, L>>>,
    ) -> Self {
        let owned = server.owned();
        let handles = (0..MAX_SHARDS).map(|_| OnceCell::new()).collect();
        let map = RefCell::new((owned.changes, owned.map));
        let relieves = Cell::new(false);
        let (server, pressure) = (Arc::clone(server), ChangeSignal::default());
        Self { fabric, server, map, handles, log, pressure, relieves }
    }

    /// The current shard map. It stays valid for every shard that the caller has entered.
    #[inline]
    pub(super) fn map(&self) -> Ref<'_, ShardMap> {
        if self.map.borrow().0 != self.server.changes() {
            let owned = self.server.owned();
            *self.map.borrow_mut() = (owned.changes, owned.map);
        }
        Ref::map(self.map.borrow(), |(_, map)| &**map)
    }

    /// The handle of a tree that the compute server owns, or has owned.
    pub(super) fn tree(&self, shard: usize) -> Result<&DlsmIndex<F, L>, RemoteError> {
        let handle = &self.handles[shard];
        if let Some(tree) = handle.get() {
            return Ok(tree);
        }
        let shard = self.server.tree(shard)?;
        let chunk_bytes = shard.options.chunk_bytes;
        let extents = ExtentClient::new(self.fabric.clone(), &shard.space, chunk_bytes);
        Ok(handle.get_or_init(|| Box::new(DlsmIndex::new(&shard, extents, self.log.clone()))))
    }

    /// Enters the tree of a shard that the compute server owns. Until the visit ends, the shard is
    /// neither left nor split. The first handle opens the tree from its directory.
    #[inline]
    pub(super) async fn enter(&self, shard: usize) -> Result<EnteredTree<'_, F, L>, RemoteError> {
        let tree = self.tree(shard)?;
        let Some(visit) = tree.shard.gate.enter() else {
            return Err(self.closed(shard).await);
        };
        match tree.ready().await {
            Ok(()) => Ok((tree, visit)),
            Err(_) if !tree.shard.gate.is_open() => Err(RemoteError::Moved),
            Err(error) => Err(error.into()),
        }
    }

    /// The reason why a tree cannot be entered. First settles a split that has ended, because the
    /// operation will try again.
    #[cold]
    async fn closed(&self, shard: usize) -> RemoteError {
        if self.server.ended_division().is_some_and(|(divided, _)| divided == shard) {
            // If that fails, the next operation tries it.
            let _ = self.settle_split().await;
        }
        RemoteError::Moved
    }

    /// The tree that has `key`.
    #[inline]
    async fn enter_of(&self, key: &L::Key) -> Result<EnteredTree<'_, F, L>, RemoteError> {
        Ok(self.enter_at(key.encoded().as_ref()).await?.1)
    }

    /// The tree that has the key with these bytes, and its number.
    #[inline]
    pub(super) async fn enter_at(
        &self,
        key: &[u8],
    ) -> Result<(usize, EnteredTree<'_, F, L>), RemoteError> {
        loop {
            let shard = self.map().shard_of(key);
            let entered = self.enter(shard).await?;
            // It may have been divided just before.
            if self.map().shard_of(key) == shard {
                return Ok((shard, entered));
            }
        }
    }

    /// Asks the directories which shards splits have created (L5). `ended` is the number of a split
    /// that had ended before, if there was one.
    pub(super) async fn look_for_splits(&self, ended: Option<u64>) -> Result<(), RemoteError> {
        let rpc = RpcClient::<F, L>::new(self.fabric.clone());
        Ok(self.server.learn_divisions(&divided_shards(&rpc).await?, ended)?)
    }

    /// Finds out the outcome of a split that has ended, if there is one (L4).
    async fn settle_split(&self) -> Result<(), RemoteError> {
        let Some((shard, number)) = self.server.ended_division() else { return Ok(()) };
        if !self.fabric.breaks(DIVISIONS_SETTLED) {
            self.tree(shard)?.end_leaving().await?;
        }
        self.look_for_splits(Some(number)).await
    }

    /// Splits the shard around `low`, so that another one begins there. Returns false if it cannot
    /// be split there, such as when the compute server has its maximum number of shards.
    async fn split_shard_at(&self, low: &[u8]) -> Result<bool, RemoteError> {
        self.settle_split().await?;
        let servers = self.fabric.memory_servers();
        if !self.server.can_divide(low, servers) {
            return Ok(false);
        }
        // Needed to choose a number that no other compute server has taken.
        self.look_for_splits(None).await?;
        // A tree is in a directory only once it has been opened.
        drop(self.enter_at(low).await?);
        let Some((shard, into)) = self.server.begin_division(low, servers) else {
            return Err(RemoteError::Contended { retries: 0 });
        };
        let dividing = SplitInFlight(&self.server);
        let divided = self.tree(shard)?.divide((into as u64, &KeyBuf::from_bytes(low))).await;
        drop(dividing);
        self.settle_split().await?;
        match divided.map_err(RemoteError::from) {
            // Even if the outcome was unknown, the map shows it now.
            _ if self.map().ends(low).0 == Some(low) => Ok(true),
            // Another compute server has just taken the number, or this one has lost the shard.
            Ok(()) | Err(RemoteError::Refused { refusal: Refusal::OtherOwner, .. }) => {
                Err(RemoteError::Contended { retries: 0 })
            }
            Err(error) => Err(error),
        }
    }

    /// Enters the trees that may have keys of `scan`. Returns them, and what the compute server
    /// owned while all of them were entered.
    pub(super) async fn enter_for_scan(
        &self,
        scan: &ScanRequest<Vec<u8>>,
    ) -> Result<(OwnedShards<L>, Vec<EnteredTree<'_, F, L>>), RemoteError> {
        loop {
            let owned = self.server.owned();
            let places = owned.places.clone();
            let wanted = places.filter(|place| overlaps(owned.map.ends_at(*place), scan));
            let shards = wanted.flat_map(|place| owned.map.shards(place..place + 1));
            let entered = all(shards.map(|shard| self.enter(*shard))).await;
            let entered = entered.into_iter().collect::<Result<Vec<_>, _>>()?;
            // Otherwise the scan could answer for keys of a shard that has left, or that was split
            // off, without its records.
            if self.server.changes() == owned.changes {
                return Ok((owned, entered));
            }
        }
    }

    /// The handles that it has used.
    fn used(&self) -> impl Iterator<Item = &DlsmIndex<F, L>> {
        self.handles.iter().filter_map(OnceCell::get).map(|tree| &**tree)
    }

    /// Runs `work` on all trees that this process has opened, also on those that it is about to
    /// leave, whichever thread has opened them: they may have MemTables (L6). Returns the first
    /// failure.
    pub(super) async fn on_all<'t, Fut: Future<Output = Result<(), IndexError>>>(
        &'t self,
        work: impl Fn(&'t DlsmIndex<F, L>) -> Fut,
    ) -> Result<(), RemoteError> {
        let shards = match self.fabric.breaks(LEAVING_COVERED) {
            true => self.server.owned().shards().to_vec(),
            false => self.server.with_trees(),
        };
        for shard in shards {
            match self.tree(shard) {
                // A shard that has left since then, and was never opened here, has no MemTable.
                Ok(_) | Err(RemoteError::Moved) => {}
                Err(error) => return Err(error),
            }
        }
        let on_open = async |tree: &'t DlsmIndex<F, L>| {
            // A tree that is not open has no MemTable. If a tree cannot be joined, it is being
            // left.
            if tree.shard.epoch() == 0 {
                return Ok(());
            }
            match tree.ready().await {
                Err(_) if !tree.shard.gate.is_open() && tree.shard.epoch() == 0 => Ok(()),
                Ok(()) => work(tree).await,
                failed => failed,
            }
        };
        let outcomes = all(self.used().map(on_open)).await;
        Ok(outcomes.into_iter().collect::<Result<(), _>>()?)
    }

    /// Room in the log for the record of a change. `None` where there is no log, and for an
    /// operation that changes nothing.
    pub(super) async fn room_for(
        &self,
        edit: &LeafEdit<&L::Key, &L::Value>,
    ) -> Result<Option<WalRoom<'_>>, RemoteError> {
        let Some(log) = self.log.as_ref().filter(|_| edit.changes()) else { return Ok(None) };
        let key = edit.key.encoded();
        let value = edit.action.new_value().map(|value| value.encoded());
        let value = value.as_ref().map(AsRef::as_ref).unwrap_or_default();
        let record = WalRecord::Put { key: key.as_ref(), value };
        if log.is_pressed() {
            self.pressure.raise();
            if !log.is_kept() {
                // Whatever it fails with, there may be room.
                let _ = self.relieve().await;
            }
        }
        match log.reserve(&record) {
            Ok(Some(room)) => return Ok(Some(room)),
            Ok(None) => {}
            // The tree's own limit says more than that of the ring.
            Err(error) => {
                let (tree, _visit) = self.enter_of(edit.key).await?;
                let checked = tree.shard.options.memtable.check(key.as_ref().len(), value.len());
                return Err(checked.map_err(IndexError::from).err().map_or(error, Into::into));
            }
        }
        // Keys that have moved need no room.
        drop(self.enter_of(edit.key).await?);
        let began_ns = self.fabric.now_ns();
        loop {
            let seen = log.changes();
            if let Some(room) = log.reserve(&record)? {
                return Ok(Some(room));
            }
            if !log.is_kept() {
                let _ = self.relieve().await;
            }
            log.until_progress(seen, began_ns).await?;
        }
    }

    /// Flushes what keeps more than half of this endpoint's ring of the log in use, unless another
    /// task does.
    async fn relieve(&self) -> Result<(), RemoteError> {
        let Some(log) = self.log.as_ref().filter(|log| log.is_pressed()) else { return Ok(()) };
        if self.relieves.replace(true) {
            return Ok(());
        }
        let _relieving = Relieving(&self.relieves);
        let number = log.pressing_number();
        let flushed = self.on_all(|tree| tree.flush_up_to(number)).await;
        // Also what some trees have flushed makes room.
        let told = log.tell_low().await;
        flushed.and(told)
    }

    /// Relieves the log, and writes what waits there although no operation does, until `ended`
    /// returns true.
    async fn keep_log(&self, ended: &dyn Fn() -> bool) {
        let Some(log) = &self.log else { return };
        let keeper = log.keep();
        let relieving = async {
            while !ended() {
                let seen = self.pressure.count();
                // What has failed is tried again.
                let _ = self.relieve().await;
                let pause_ns = match log.is_pressed() {
                    true => RELIEF_PAUSE_NS,
                    false => POLL_INTERVAL_NS,
                };
                self.pressure.sleep(&self.fabric, seen, pause_ns).await;
            }
        };
        let writing = async {
            while !ended() {
                self.fabric.sleep(POLL_INTERVAL_NS).await;
                keeper.look_again();
                let _ = log.write_waiting().await;
            }
        };
        join(relieving, writing).await;
    }

    /// Flushes and merges in a tree until `is_over` returns true, once it can be opened.
    async fn work_on(&self, shard: usize, is_over: &dyn Fn() -> bool) {
        while !is_over() {
            if let Ok((tree, visit)) = self.enter(shard).await {
                drop(visit);
                return tree.work_until(POLL_INTERVAL_NS, is_over, &|_| {}).await;
            }
            self.fabric.sleep(POLL_INTERVAL_NS).await;
        }
    }

    fn key_at(bytes: &[u8]) -> Result<OwnedKey<L>, RemoteError> {
        let bad_map = RemoteError::InvalidArgument("a boundary between shards is no key");
        L::Key::decoded(bytes.to_vec()).ok_or(bad_map)
    }
}

impl<F: Fabric, L: Layout> DlsmPart<F, L> {
    pub(super) fn new(part: Rc<PartTrees<F, L>>) -> Self {
        Self { part }
    }
}

/// A task that relieves the log. Dropping it lets another one.
struct Relieving<'p>(&'p Cell<bool>);

impl Drop for Relieving<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A shard split in flight. Dropping this ends it.
struct SplitInFlight<'s, L: Layout>(&'s DlsmServer<L>);

impl<L: Layout> Drop for SplitInFlight<'_, L> {
    fn drop(&mut self) {
        self.0.end_division();
    }
}

/// Whether a shard with these ends, the lower inclusive, may have keys of `scan`.
fn overlaps((low, high): (Option<&[u8]>, Option<&[u8]>), scan: &ScanRequest<Vec<u8>>) -> bool {
    let is_above = match (&scan.upper, low) {
        (Bound::Included(upper), Some(low)) => low > &upper[..],
        (Bound::Excluded(upper), Some(low)) => low >= &upper[..],
        _ => false,
    };
    let is_below = match (&scan.lower, high) {
        (Bound::Included(lower) | Bound::Excluded(lower), Some(high)) => high <= &lower[..],
        _ => false,
    };
    !is_above && !is_below
}

/// Shards that a compute server has left and no other one owns yet. Dropping this restores the
/// range: the next operation opens them again.
#[must_use]
#[derive(Debug)]
pub struct LeftShards<'a, L: Layout> {
    server: &'a DlsmServer<L>,
    before: Option<OwnedRange<OwnedKey<L>>>,
}

impl<L: Layout> ReleasedKeys for LeftShards<'_, L> {
    fn for_good(mut self) {
        self.before = None;
    }
}

impl<L: Layout> Drop for LeftShards<'_, L> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            self.server.set_range(before);
        }
    }
}

impl<F: Fabric, L: Layout> PartIndex<F, L> for DlsmPart<F, L> {
    type Released<'a>
        = LeftShards<'a, L>
    where
        Self: 'a;

    fn fabric(&self) -> &F {
        &self.part.fabric
    }

    async fn get(&self, key: &L::Key) -> Result<Option<OwnedValue<L>>, RemoteError> {
        let (tree, _visit) = self.part.enter_of(key).await?;
        Ok(tree.look_up(key).await?)
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, RemoteError> {
        let _room = self.part.room_for(&edit).await?;
        let (tree, _visit) = self.part.enter_of(edit.key).await?;
        Ok(tree.perform(edit).await?)
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&L::Key, &L::Value>],
        done: impl Fn(usize, Result<EditAnswer<OwnedValue<L>>, RemoteError>),
    ) {
        let execute = async |(place, edit)| done(place, self.execute(edit).await);
        all(edits.iter().copied().enumerate().map(execute)).await;
    }

    async fn scan(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> Result<OwnedRange<OwnedKey<L>>, RemoteError> {
        self.scan_some(scan, usize::MAX, out).await
    }

    /// All trees as of one moment.
    async fn scan_some(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
        most_bytes: usize,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> Result<OwnedRange<OwnedKey<L>>, RemoteError> {
        let part = &*self.part;
        if out.len() >= scan.limit {
            return Ok(part.server.range());
        }
        let wanted = encoded_scan::<L::Key>(scan);
        let (OwnedShards { range, .. }, mut entered) = part.enter_for_scan(&wanted).await?;
        let Some((first, _)) = entered.first() else { return Ok(range) };
        first.check_scan(&wanted)?;
        // After the trees were opened: the bound is above all numbers in them (H10). It is kept
        // until the last version is pinned.
        let mut view = first.view().await?;
        if scan.reverse {
            entered.reverse();
        }
        let (had, mut bytes) = (out.len(), 0);
        for (tree, _visit) in &entered {
            let rest = ScanRequest { limit: scan.limit - out.len(), ..wanted.clone() };
            if self.fabric().breaks(ONE_BOUND) {
                view = tree.view().await?;
            }
            let version = tree.shard.pin();
            let room = most_bytes.saturating_sub(bytes);
            let records = tree.records_in(&version, view.bound, &rest, room).await?;
            bytes += records.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            out.extend(decoded_records::<L>(records)?);
            if out.len() >= scan.limit || (out.len() >= had + 2 && bytes > most_bytes) {
                break;
            }
        }
        Ok(range)
    }

    async fn flush(&self) -> Result<(), RemoteError> {
        let flushed = self.part.on_all(DlsmIndex::flush_everything).await;
        match &self.part.log {
            Some(log) => flushed.and(log.tell_low().await),
            None => flushed,
        }
    }

    /// Nothing is cached that another compute server could have changed.
    async fn forget(&self) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn collect(&self) -> Result<(), RemoteError> {
        self.part.on_all(DlsmIndex::settle_tree).await
    }

    /// Flushes and merges in the trees that the compute server owns, also in those that come
    /// later. Writers that find no room learn of failures by themselves.
    async fn write_back_by_age(&self, ended: &dyn Fn() -> bool) {
        let part = &*self.part;
        let working = async {
            while !ended() {
                let owned = part.server.owned();
                let is_over = || ended() || part.server.changes() != owned.changes;
                if owned.shards().is_empty() {
                    part.fabric.sleep(POLL_INTERVAL_NS).await;
                }
                all(owned.shards().iter().map(|shard| part.work_on(*shard, &is_over))).await;
            }
        };
        let settling = async {
            while !ended() {
                self.settle_some().await;
                part.fabric.sleep(SETTLE_NS).await;
            }
        };
        join(join(working, settling), part.keep_log(ended)).await;
    }

    fn cache_counters(&self) -> CacheCounters {
        CacheCounters::default()
    }

    /// Always false: no operation on dLSM waits for one of unknown outcome.
    fn has_doubts(&self) -> bool {
        false
    }

    async fn settle_some(&self) {
        for tree in self.part.used() {
            tree.extents.settle_due().await;
        }
    }

    async fn settle(&self) -> Result<(), RemoteError> {
        let mut settled = Ok(());
        for tree in self.part.used() {
            settled = settled.and(tree.extents.settle().await);
        }
        settled
    }

    /// The bounds of the key's shard; or the key itself, if the shard can be split there.
    async fn fences(
        &self,
        key: &L::Key,
    ) -> Result<(OwnedKey<L>, Option<OwnedKey<L>>), RemoteError> {
        let part = &*self.part;
        let encoded = key.encoded();
        let map = part.map();
        let (low, high) = map.ends(encoded.as_ref());
        let low = low.map(PartTrees::<F, L>::key_at).transpose()?;
        let high = high.map(PartTrees::<F, L>::key_at).transpose()?;
        match part.server.can_divide(encoded.as_ref(), part.fabric.memory_servers()) {
            true => Ok((key.to_owned(), high)),
            false => Ok((low.unwrap_or_else(L::min_key), high)),
        }
    }

    /// The key itself, where its shard is divided if it can be. Otherwise the low end of its shard,
    /// or its high end if the range begins there.
    async fn boundary_near(&self, key: &L::Key) -> Result<Option<OwnedKey<L>>, RemoteError> {
        let range = self.part.server.range();
        let is_inside = |at: &OwnedKey<L>| *at > range.low && range.has(L::key(at));
        let own = key.to_owned();
        if is_inside(&own) && self.part.split_shard_at(key.encoded().as_ref()).await? {
            return Ok(Some(own));
        }
        let (low, high) = self.fences(key).await?;
        Ok(Some(low).filter(is_inside).or(high.filter(is_inside)))
    }

    /// Leaves the shards of `keys`, all together.
    async fn release_range(
        &self,
        keys: &OwnedRange<OwnedKey<L>>,
        rest: &OwnedRange<OwnedKey<L>>,
    ) -> Result<Option<LeftShards<'_, L>>, RemoteError> {
        let part = &*self.part;
        let map = Arc::clone(&part.server.owned().map);
        let leaving = map.shards(shards_of::<L>(&map, keys)?);
        shards_of::<L>(&map, rest)?;
        let before = Some(part.server.range());
        part.server.set_range(rest.clone());
        let left = LeftShards { server: &part.server, before };
        // A shard that was never opened here has no tree to leave.
        let trees = leaving.iter().filter_map(|shard| part.tree(*shard).ok());
        let outcomes = all(trees.map(DlsmIndex::leave)).await;
        outcomes.into_iter().collect::<Result<(), _>>()?;
        Ok(Some(left))
    }

    /// Checks that there is room for the shards, and that no other process has them. They are
    /// opened by the first operation after [`PartIndex::take_over`]: if they were opened before the
    /// compute server owns them, the one that has left them could not open them again.
    async fn prepare_take_over(&self, grown: &OwnedRange<OwnedKey<L>>) -> Result<(), RemoteError> {
        let part = &*self.part;
        // A map that has these ends may lack shards in between.
        if !part.fabric.breaks(PIECES_REREAD) || part.server.check_range(grown).is_err() {
            part.look_for_splits(None).await?;
        }
        let coming = part.server.check_range(grown)?;
        let check = async |shard| {
            let space = Arc::new(ExtentSpace::new(1));
            let client = ExtentClient::<F, L>::new(part.fabric.clone(), &space, 1);
            check_no_owner(&client.directory(shard as u64), part.server.owner_of(shard)).await
        };
        Ok(all(coming.into_iter().map(check)).await.into_iter().collect::<Result<(), _>>()?)
    }

    async fn take_over(&self, grown: &OwnedRange<OwnedKey<L>>) -> Result<(), RemoteError> {
        self.prepare_take_over(grown).await?;
        self.part.server.set_range(grown.clone());
        Ok(())
    }
}
