//! One handle's access to its compute server's cache: what needs the network.
//!
//! *Invariants*
//! - C16. An operation has the frames that it may need before it marks a node as I/O or latches one, so that
//!   operations which wait for frames hold nothing that others wait for.
//! - C17. A frame that a READ may still land in is used for nothing else: if the outcome is unknown, the
//!   connection is reset first, and until that succeeds the frame is out of use.
//! - C25. What waits for frames, and does not get through, asks whether a memory server that was missing answers.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::write_back::{Held, InDoubt};
use super::{
    Admit, Attached, Cache, CacheCounters, Cooled, FrameId, FreeFrame, IoMark, LiveCounters,
    Mapped, MovingAverage, OffloadMark, OffloadName, OptimisticRef, OwnedRange, Ownership,
    is_clean, mark_clean,
};
use crate::page::{FencePosition, Layout, LeafOutcome, Page, Probe, slot_range};
use crate::remote::{Backoff, Miss, PageClient, Pointer, RemoteError};
use crate::rules;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, FabricError, GlobalAddr, ServerId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Why an attempt of an operation did not get through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Somebody is at a node: try again, after a while.
    Busy,
    /// Something was brought or made: go on from the root at once.
    Again,
    /// The shared nodes on the way are old: read them again, then try again.
    Refresh,
    /// The memory server will not do it: go on from the root, without asking it.
    Here,
    /// The page here is not of one piece. Unless the way to it is old, a WRITE of it stopped half-way.
    Torn(GlobalAddr),
    /// The keys are another compute server's by now.
    Moved,
    /// It cannot succeed.
    Failed(RemoteError),
}

impl From<RemoteError> for Restart {
    fn from(error: RemoteError) -> Self {
        Self::Failed(error)
    }
}

impl From<FabricError> for Restart {
    fn from(error: FabricError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Miss> for Restart {
    fn from(miss: Miss) -> Self {
        match miss {
            Miss::Restart => Self::Busy,
            Miss::Failed(error) => Self::Failed(error),
        }
    }
}

/// After how many attempts, and then again after so many, an operation asks whether a memory server that did
/// not answer does so now: about 1.5 ms.
const OUTAGE_ATTEMPTS: u32 = 64;
/// Frames of one handle that late READs from one memory server may land in, before it has to answer again.
const MOST_LANDINGS: usize = 4;
/// How often a READ is posted again.
const READ_RETRIES: u32 = 16;
/// One hit in so many marks its leaf: a leaf that is worth keeping is used so often between two samples that
/// it is marked almost certainly, another one hardly ever.
const MARK_EVERY: u64 = 8;
/// How many samples in a row may fail before a cooling frame is taken whatever its age.
const SAMPLES: u32 = 8;

/// One handle's access to a cache.
#[derive(Debug)]
pub struct CacheClient<F: Fabric, L: Layout> {
    pub(super) cache: Arc<Cache<L>>,
    pages: Rc<PageClient<F, L>>,
    /// Free frames that this handle keeps; locked.
    kept: RefCell<Vec<FrameId>>,
    pub(crate) counters: LiveCounters,
    /// Frames whose last WRITE through this endpoint may still land (C15).
    pub(super) in_doubt: RefCell<Vec<InDoubt>>,
    /// Frames that READs through this endpoint may still land in, of which memory servers (C17).
    pub(super) landings: RefCell<Vec<(FrameId, ServerId)>>,
    /// When operations try again to settle these, and for how long they leave them alone after they could not.
    pub(super) settle_due: Cell<(u64, u64)>,
    /// Whether a task settles these.
    pub(super) settling: Cell<bool>,
    /// Frames that are written only after their parents.
    pub(super) held: RefCell<Vec<Held>>,
    /// How long READs of nodes took lately, if that is of interest.
    pub(crate) read_ns: Option<MovingAverage>,
}

impl<F: Fabric, L: Layout> CacheClient<F, L> {
    /// Access to `cache` over the endpoint of `pages`.
    pub fn new(cache: Arc<Cache<L>>, pages: Rc<PageClient<F, L>>) -> Self {
        let timed = cache.options().offload == OffloadName::CostAware;
        Self {
            read_ns: timed.then(MovingAverage::default),
            cache,
            pages,
            kept: RefCell::default(),
            counters: LiveCounters::default(),
            in_doubt: RefCell::default(),
            landings: RefCell::default(),
            settle_due: Cell::new((0, 0)),
            settling: Cell::new(false),
            held: RefCell::default(),
        }
    }

    /// The cache.
    #[inline]
    pub fn cache(&self) -> &Cache<L> {
        &self.cache
    }

    /// The endpoint.
    #[inline]
    pub fn fabric(&self) -> &F {
        self.pages.fabric()
    }

    /// One-sided access to shared pages, and nodes.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.pages
    }

    /// What the cache did for this handle.
    pub fn counters(&self) -> CacheCounters {
        self.counters.snapshot()
    }

    /// Marks a leaf as used, every now and then.
    #[inline]
    pub fn mark_use(&self, page: Page<'_, L>) {
        let hits = self.counters.leaf_hits.get();
        if hits.is_multiple_of(MARK_EVERY) && !page.is_marked() {
            page.set_mark(true);
        }
    }

    /// A free frame; makes others cool and leave if there is none (Lu et al., §5.1, §5.2).
    ///
    /// # Errors
    /// [`Restart::Failed`] if there is none to be had, because so many operations hold the others.
    pub async fn spare(&self) -> Result<FreeFrame<'_, L>, Restart> {
        match self.free_now() {
            Some(spare) => Ok(spare),
            None => self.make_room().await,
        }
    }

    /// One more free frame for an operation that has one already.
    ///
    /// # Errors
    /// [`Restart::Busy`] if there is none at the moment: it is not waited for, as all others who have one could
    /// be waiting too (C16).
    pub async fn another_spare(&self) -> Result<FreeFrame<'_, L>, Restart> {
        match self.free_now() {
            Some(spare) => Ok(spare),
            None => self.sample().await.ok_or(Restart::Busy),
        }
    }

    fn free_now(&self) -> Option<FreeFrame<'_, L>> {
        let kept = self.kept.borrow_mut().pop();
        kept.map(|frame| self.cache.spare(frame)).or_else(|| self.cache.take_spare())
    }

    #[cold]
    async fn make_room(&self) -> Result<FreeFrame<'_, L>, Restart> {
        let mut backoff = self.pages.backoff();
        loop {
            if let Some(spare) = self.sample().await {
                return Ok(spare);
            }
            if self.has_doubts() && self.is_settling_due() {
                // The cache may be full of what only this handle can settle.
                let settled = self.settle_transfers().await;
                self.has_settled(settled.is_ok());
            }
            self.before_retry(&mut backoff).await?;
        }
    }

    /// As [`PageClient::before_retry`], for what waits for frames, too: they may be full of what a memory server
    /// does not take.
    ///
    /// # Errors
    /// [`RemoteError`] that says which memory server does not answer, if one does not.
    pub(crate) async fn before_retry(&self, backoff: &mut Backoff) -> Result<(), RemoteError> {
        self.pages.before_retry(backoff).await?;
        let asks = !self.fabric().breaks(rules::MISSING_ASKED);
        if asks && backoff.attempts().is_multiple_of(OUTAGE_ATTEMPTS) {
            for server in self.cache.detector().missing() {
                // Any word will do.
                let word = GlobalAddr::new(ServerId::new(server), 0);
                self.pages.read_words(word, 8).await?;
            }
        }
        Ok(())
    }

    /// Lets hot nodes cool until one has to leave for it; if that does not come to anything, a cooling one
    /// leaves, whatever its age.
    async fn sample(&self) -> Option<FreeFrame<'_, L>> {
        for _ in 0..SAMPLES {
            for _ in 0..self.cache.options().sampled.max(1) {
                self.cool_one().await;
            }
            if let Some(spare) = self.free_now() {
                return Some(spare);
            }
        }
        let frame = self.cache.cooling.pop(self.fabric().random())?;
        Some(self.evict_frame(frame).await)
    }

    /// Lets one hot node cool, if the one that is picked can.
    async fn cool_one(&self) {
        let Some(frame) = self.cache.pick_victim(self.fabric().random()) else { return };
        self.cool(frame).await;
    }

    /// Lets a hot node cool, after writing it back if it is dirty; whether it does.
    pub async fn cool(&self, frame: FrameId) -> bool {
        let heeds_work_below = !self.fabric().breaks(rules::WORK_BELOW_HEEDED);
        let mut cooled = self.cache.cool(frame, heeds_work_below);
        if cooled == Cooled::Dirty {
            // A node that cannot be written stays where it is.
            if self.write_back(frame).await.is_err() {
                return false;
            }
            cooled = self.cache.cool(frame, heeds_work_below);
        }
        let Cooled::Done(oldest) = cooled else { return false };
        LiveCounters::count(&self.counters.coolings);
        self.drop_oldest(oldest).await;
        true
    }

    async fn drop_oldest(&self, oldest: Option<FrameId>) {
        if let Some(oldest) = oldest {
            let spare = self.evict_frame(oldest).await;
            self.keep(spare);
        }
    }

    /// Evicts a frame that this handle has taken out of the cooling structure (C8).
    async fn evict_frame(&self, frame: FrameId) -> FreeFrame<'_, L> {
        loop {
            if let Some(spare) = self.cache.evict(frame) {
                LiveCounters::count(&self.counters.evictions);
                return spare;
            }
            // Others hold a latch that they have no use for here only for a moment.
            self.fabric().sleep(0).await;
        }
    }

    /// Keeps a free frame for the next operation, or gives it to others.
    pub fn keep(&self, spare: FreeFrame<'_, L>) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < self.cache.keep_limit() {
            kept.push(spare.into_frame());
        }
    }

    /// The right to bring the node at `address` in, to which the child word at `slot` of `parent` points; and the keys
    /// that the parent leads to it for.
    async fn begin<'a>(
        &'a self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
    ) -> Result<(FreeFrame<'a, L>, IoMark<'a>, OwnedRange<L::Key>), Restart> {
        // Two cache misses at once, not one after the other; the second is used after the READ.
        self.cache.mapping.prefetch(address.to_bits());
        self.cache.cooling.prefetch(address.to_bits());
        match self.cache.mapping.get(address.to_bits()) {
            Mapped::Absent => {}
            Mapped::Io => return Err(Restart::Busy),
            Mapped::Frame(frame) => return Err(self.attach(parent, slot, address, frame)),
        }
        let spare = self.spare().await?; // C16
        let (low, high) = slot_range(parent.page, slot);
        // A node that is merged away or moved meanwhile changes the parent first.
        let is_there = || {
            (parent.is_valid() || self.fabric().breaks(rules::PARENT_LOOKED_AT))
                && self.may_bring(parent, slot).is_ok()
        };
        match self.cache.mapping.begin_io(address.to_bits(), is_there) {
            Ok(mark) => {
                // While the READ is on its way.
                if let Some(frame) = self.cache.cooling.next_to_go(address.to_bits()) {
                    self.cache.arena().prefetch(frame);
                }
                Ok((spare, mark, OwnedRange { low, high }))
            }
            Err(found) => {
                self.keep(spare);
                Err(match found {
                    Mapped::Frame(frame) => self.attach(parent, slot, address, frame),
                    Mapped::Io => Restart::Busy,
                    Mapped::Absent => self.why_not(parent, slot),
                })
            }
        }
    }

    /// Whether the node that the child word at `slot` leads to may come here: a leaf only if its keys are owned (C20).
    fn may_bring(&self, parent: OptimisticRef<'_, L>, slot: usize) -> Result<(), Restart> {
        if parent.page.level() > 1 {
            return Ok(());
        }
        let (low, high) = slot_range(parent.page, slot);
        match self.cache.owned().of(&low, high.as_ref()) {
            Ownership::All => Ok(()),
            // Leaves end at boundaries: the parent is old.
            Ownership::Part => Err(Restart::Refresh),
            Ownership::None => Err(Restart::Moved),
        }
    }

    /// What follows if a node was not where its parent had it, or may not come here.
    fn why_not(&self, parent: OptimisticRef<'_, L>, slot: usize) -> Restart {
        let allowed = self.may_bring(parent, slot);
        match allowed {
            Err(restart) if parent.is_valid() => restart,
            _ => Restart::Again,
        }
    }

    /// The right to let a memory server work below the node at `address`, to which the child word at `slot` of
    /// `parent` points.
    ///
    /// # Errors
    /// [`Restart`] if the node is here after all, or somebody is at it.
    pub(crate) fn begin_remote(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
    ) -> Result<OffloadMark<'_>, Restart> {
        let is_owned = || {
            let (low, high) = slot_range(parent.page, slot);
            self.cache.owned().of(&low, high.as_ref()) == Ownership::All // C20
        };
        let is_there = || parent.is_valid() && is_owned();
        let begun = self.cache.mapping.begin_offload(address.to_bits(), is_there);
        begun.map_err(|found| match found {
            Mapped::Frame(frame) => self.attach(parent, slot, address, frame),
            Mapped::Io => Restart::Busy,
            Mapped::Absent if parent.is_valid() => Restart::Here,
            Mapped::Absent => Restart::Again,
        })
    }

    /// Drops the copy of a leaf that a memory server has changed below a node that the caller has marked (C6).
    /// Nobody can make it hot meanwhile, so it cools, if it is here at all.
    pub(crate) async fn drop_copy(&self, leaf: GlobalAddr) {
        while let Mapped::Frame(frame) = self.cache.mapping.get(leaf.to_bits()) {
            if let Some(spare) = self.cache.drop_cooling(frame, leaf) {
                LiveCounters::count(&self.counters.invalidations);
                self.keep(spare);
                return;
            }
            self.fabric().sleep(0).await;
        }
    }

    /// When a READ was posted, if that is of interest.
    fn timed(&self) -> Option<u64> {
        self.read_ns.is_some().then(|| self.fabric().now_ns())
    }

    fn record(&self, posted_ns: Option<u64>) {
        if let (Some(read_ns), Some(posted_ns)) = (&self.read_ns, posted_ns) {
            read_ns.add(self.fabric().now_ns().saturating_sub(posted_ns));
        }
    }

    fn attach(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        frame: FrameId,
    ) -> Restart {
        match self.cache.attach(parent, slot, address, frame) {
            Attached::Hot { reheated } => {
                if reheated {
                    LiveCounters::count(&self.counters.reheats);
                    if parent.page.level() == 1 {
                        LiveCounters::count(&self.counters.cooling_hits);
                    }
                }
                Restart::Again
            }
            Attached::Other => {
                // If the copy is the old one, not the parent, reading the way again would not help.
                if let Some(spare) = self.cache.forget_lost(frame, address) {
                    self.keep(spare);
                }
                Restart::Refresh
            }
            Attached::NotNow => Restart::Busy,
        }
    }

    /// Brings the leaf at `address` in and does with it what `work` does, all in one: the change is written
    /// through, so that the leaf is clean when it enters the cache, if it does.
    ///
    /// # Errors
    /// [`Restart`]; nothing has changed then, and `work` was not called or changed nothing.
    pub async fn fetch_leaf<T>(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        probe: Probe<'_, L::Key>,
        work: impl FnOnce(Page<'_, L>) -> LeafOutcome<T>,
    ) -> Result<LeafOutcome<T>, Restart> {
        let (spare, mark, keys) = self.begin(parent, slot, address).await?;
        let place = (address, &keys);
        self.bring_marked_leaf((spare, mark), Some((parent, slot)), place, probe, work).await
    }

    /// Checks a leaf that was read into a frame, and takes out what does not count (D7): what it has beyond the keys that
    /// its parent leads to it for.
    fn accept_leaf(
        &self,
        spare: &FreeFrame<'_, L>,
        (address, keys): (GlobalAddr, &OwnedRange<L::Key>),
    ) -> Result<(), Restart> {
        let page = spare.page();
        if page.address() != address || page.level() != 0 {
            return Err(Restart::Refresh);
        }
        if !page.stamp_fits() && !self.fabric().breaks(rules::STAMPS_CHECKED) {
            return Err(Restart::Torn(address)); // D8
        }
        mark_clean(page);
        self.trim(spare, keys)
    }

    /// Takes out of an exclusive node what it has beyond the keys that its parent leads to it for (D7).
    fn trim(&self, spare: &FreeFrame<'_, L>, keys: &OwnedRange<L::Key>) -> Result<(), Restart> {
        let page = spare.page();
        let found = OwnedRange { low: L::low(page), high: L::high(page) };
        let fits = keys.covers(&found.low, found.high.as_ref());
        if fits || self.fabric().breaks(rules::STRAYS_TRIMMED) {
            return Ok(());
        }
        let counts = found.within(keys);
        if counts.is_empty() {
            return Err(Restart::Refresh); // another node by now
        }
        L::trim(page, &counts.low, counts.high.as_ref());
        self.mark_dirty(spare.frame(), page, 1..L::PAGE_WORDS);
        LiveCounters::count(&self.counters.trims);
        Ok(())
    }

    /// The same for who has the mark already. Without a parent the leaf does not become hot.
    pub(crate) async fn bring_marked_leaf<'a, T>(
        &'a self,
        (spare, mark): (FreeFrame<'a, L>, IoMark<'a>),
        below: Option<(OptimisticRef<'_, L>, usize)>,
        (address, keys): (GlobalAddr, &OwnedRange<L::Key>),
        probe: Probe<'_, L::Key>,
        work: impl FnOnce(Page<'_, L>) -> LeafOutcome<T>,
    ) -> Result<LeafOutcome<T>, Restart> {
        let spare = self.read_into(spare, address).await?;
        LiveCounters::count(&self.counters.leaf_misses);
        let page = spare.page();
        if let Some(frame) = self.cache.cooling.next_to_go(address.to_bits()) {
            let leaving = self.cache.arena().page(frame).address();
            self.cache.mapping.prefetch(leaving.to_bits());
        }
        self.accept_leaf(&spare, (address, keys))?;
        if L::reach(page, probe) != FencePosition::Inside && !self.fabric().breaks(rules::FENCES) {
            return Err(Restart::Refresh);
        }
        let outcome = work(page);
        if let LeafOutcome::Changed { words, .. } = &outcome {
            LiveCounters::count(&self.counters.write_throughs);
            // With what was taken out of it, if something was.
            let words = match is_clean(page) {
                true => self.to_write(words.clone()),
                false => 1..L::PAGE_WORDS,
            };
            mark_clean(page);
            if let Err(restart) = self.write_leaf(address, page, words.clone()).await {
                // The change is made here and nowhere else: the leaf stays, dirty.
                self.mark_dirty(spare.frame(), page, words);
                if let Restart::Failed(_) = restart {
                    self.may_land(spare.frame(), page);
                }
            }
        }
        let admit = match self.cache.admission.leaf(self.fabric().random()) {
            // Nothing has to leave for it yet.
            Admit::Cold if self.cache.is_filling() => Admit::Hot,
            admit => admit,
        };
        match (admit, &outcome, below) {
            _ if !is_clean(page) => self.admit_dirty(spare, mark, below),
            // Whoever will split it needs it.
            (Admit::Private, LeafOutcome::Full, _) | (Admit::Cold, ..) | (Admit::Hot, _, None) => {
                self.admit_cold(spare, mark).await;
            }
            (Admit::Private, ..) => {
                drop(mark);
                self.keep(spare);
            }
            (Admit::Hot, _, Some((parent, slot))) => {
                if let Err((spare, mark)) = self.cache.publish_hot(spare, mark, parent, slot) {
                    self.admit_cold(spare, mark).await;
                }
            }
        }
        Ok(outcome)
    }

    /// A dirty node can only be hot.
    fn admit_dirty<'a>(
        &'a self,
        spare: FreeFrame<'a, L>,
        mark: IoMark<'a>,
        below: Option<(OptimisticRef<'_, L>, usize)>,
    ) {
        let frame = spare.frame();
        let refused = match below {
            Some((parent, slot)) => self.cache.publish_hot(spare, mark, parent, slot).err(),
            None => Some((spare, mark)),
        };
        if let Some((spare, mark)) = refused {
            self.cache.publish_detached(spare, mark);
        }
        if self.cache.ages().limit_ns() > 0 {
            // Whoever took an entry of the frame before had no node to look at (C21).
            self.cache.ages().queue(frame);
        }
    }

    async fn admit_cold<'a>(&'a self, spare: FreeFrame<'a, L>, mark: IoMark<'a>) {
        let oldest = self.cache.publish_cold(spare, mark);
        self.drop_oldest(oldest).await;
    }

    /// Below its parent, if that is still as it was.
    async fn admit_hot<'a>(
        &'a self,
        spare: FreeFrame<'a, L>,
        mark: IoMark<'a>,
        below: (OptimisticRef<'_, L>, usize),
    ) {
        if !is_clean(spare.page()) {
            self.admit_dirty(spare, mark, Some(below));
        } else if let Err((spare, mark)) = self.cache.publish_hot(spare, mark, below.0, below.1) {
            self.admit_cold(spare, mark).await;
        }
    }

    /// Brings the inner node at `address` in, hot.
    ///
    /// # Errors
    /// Always: [`Restart::Again`] if all went well.
    pub async fn bring_inner(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        probe: Probe<'_, L::Key>,
    ) -> Result<(), Restart> {
        let level = parent.page.level().saturating_sub(1);
        let (spare, mark, keys) = self.begin(parent, slot, address).await?;
        let owned = self.cache.owned().of(&keys.low, keys.high.as_ref());
        if owned == Ownership::None {
            // Nobody trims it here (D7), and its keys may be taken over before it leaves.
            return Err(Restart::Moved);
        }
        let is_exclusive = owned == Ownership::All;
        let posted_ns = self.timed();
        let copy = match self.pages.read(Pointer::fixed(address)).await {
            Ok(copy) => {
                self.record(posted_ns);
                copy
            }
            // It was shared, and its holder has not finished it: that one is waited for, or looked after.
            Err(Miss::Restart) if self.pages.is_held_up_at(address) => return Err(Restart::Busy),
            // No inner node is there: the parent is old, and the node has been freed and used again (D3).
            Err(Miss::Restart) if is_exclusive => return Err(Restart::Torn(address)),
            Err(Miss::Restart) => return Err(Restart::Refresh),
            Err(miss) => return Err(miss.into()),
        };
        LiveCounters::count(&self.counters.inner_misses);
        let fits = copy.page().level() == level
            && (L::reach(copy.page(), probe) == FencePosition::Inside
                || self.fabric().breaks(rules::FENCES));
        if !fits {
            return Err(Restart::Refresh);
        }
        if is_exclusive && copy.word().is_locked() {
            // It was shared, and its holder is not done, or dead: nobody looks for the lock of an exclusive node.
            return Err(Restart::Busy);
        }
        let page = spare.page();
        page.copy_all_but_latch(copy.page());
        mark_clean(page);
        if is_exclusive {
            self.trim(&spare, &keys)?;
        }
        self.cache.arena().set_remote_word(spare.frame(), copy.word().to_bits());
        self.admit_hot(spare, mark, (parent, slot)).await;
        Err(Restart::Again)
    }

    /// Brings the leaf at `address` in, hot, for those who restructure.
    ///
    /// # Errors
    /// Always: [`Restart::Again`] if all went well.
    pub async fn bring_hot_leaf(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
    ) -> Result<(), Restart> {
        let (spare, mark, keys) = self.begin(parent, slot, address).await?;
        let spare = self.read_into(spare, address).await?;
        LiveCounters::count(&self.counters.leaf_misses);
        self.accept_leaf(&spare, (address, &keys))?;
        self.admit_hot(spare, mark, (parent, slot)).await;
        Err(Restart::Again)
    }

    /// READs the leaf at `address` into a frame, all but word 0.
    async fn read_into<'a>(
        &'a self,
        spare: FreeFrame<'a, L>,
        address: GlobalAddr,
    ) -> Result<FreeFrame<'a, L>, Restart> {
        let cache = &*self.cache;
        self.before_landing(address.server()).await?;
        let frame = spare.into_frame();
        let landing = Landing {
            frame,
            server: address.server(),
            landings: &self.landings,
            doubtful: self.pages.doubtful(),
        };
        let mut outcome = Err(Restart::Busy);
        for _ in 0..READ_RETRIES {
            let buffer = cache.arena().buffer(frame, 1..L::PAGE_WORDS);
            let posted_ns = self.timed();
            match self.fabric().read(address.plus(8), buffer).await {
                Ok(_) => {
                    self.record(posted_ns);
                    landing.has_ended();
                    return Ok(cache.spare(frame));
                }
                Err(FabricError::QueueFull { .. }) => self.fabric().sleep(0).await,
                Err(error @ FabricError::Indeterminate { .. }) => {
                    self.fabric().counters().count_retry();
                    cache.detector().learn(&error);
                    if !self.fabric().breaks(rules::READS_SETTLED) {
                        self.fabric().reset(address.server()).await?;
                    }
                    outcome = Err(error.into());
                }
                Err(error) => {
                    outcome = Err(error.into());
                    break;
                }
            }
        }
        landing.has_ended();
        drop(cache.spare(frame));
        outcome
    }

    /// A memory server that does not answer costs some frames (C17), not the cache.
    async fn before_landing(&self, server: ServerId) -> Result<(), Restart> {
        let are_many = || {
            let landings = self.landings.borrow();
            landings.iter().filter(|(_, from)| *from == server).count() >= MOST_LANDINGS
        };
        if are_many() {
            self.settle_transfers().await?;
            if are_many() {
                return Err(Restart::Busy); // another task is at it
            }
        }
        Ok(())
    }

    /// Of the oldest `many` frames that READs may still land in, those from `server` are free: its connection has been reset.
    pub(super) fn free_landed(&self, server: ServerId, many: usize) {
        let is_free = |landing: &mut (FrameId, ServerId)| landing.1 == server;
        let landed: Vec<_> = self.landings.borrow_mut().extract_if(..many, is_free).collect();
        landed.into_iter().for_each(|(frame, _)| drop(self.cache.spare(frame)));
    }
}

/// A frame that a READ is on its way to. Unless that has ended, it is out of use for a while, also if the READ's future is dropped (C17).
struct Landing<'a> {
    frame: FrameId,
    server: ServerId,
    landings: &'a RefCell<Vec<(FrameId, ServerId)>>,
    doubtful: &'a Cell<bool>,
}

impl Landing<'_> {
    /// Nothing of the READ lands any more.
    fn has_ended(self) {
        std::mem::forget(self);
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.landings.borrow_mut().push((self.frame, self.server));
        self.doubtful.set(true);
    }
}

impl<F: Fabric, L: Layout> Drop for CacheClient<F, L> {
    fn drop(&mut self) {
        for frame in self.kept.borrow_mut().drain(..) {
            self.cache.give_free(frame);
        }
    }
}
