//! One handle's access to its compute server's cache: the operations that need the network.
//!
//! *Invariants*
//! - C16. An operation acquires all frames that it may need before it marks a node as I/O or
//!   latches one. So an operation that waits for frames holds nothing that others wait for.
//! - C17. A frame that a READ may still land in is not reused. If the outcome of the READ is
//!   unknown, the connection is reset first, and the frame stays out of use until the reset
//!   succeeds.
//! - C25. An operation that cannot get a frame probes the unreachable memory servers, in case they
//!   answer again.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::transfers::{DependentFrame, UnresolvedFrame};
use super::{
    AttachOutcome, CoolOutcome, CoolingName, FrameCache, FrameId, FreeFrame, LeafAdmission,
    MappedNode, MovingAverage, OffloadMark, OffloadName, OptimisticRef, RemoteIoMark, Restart,
    UnwrittenChange, is_clean, mark_clean,
};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, FabricError, GlobalAddr, Section, ServerId, Work};
use farleaf_index::{AcknowledgeName, CacheCounters, LiveCounters, OwnedRange, Ownership};
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, FencePosition, Layout, LeafOutcome, OwnedKey, Page, PageWords, slot_range,
};
use farleaf_pool::remote::{Backoff, MissCause, PageClient, RemoteError, TimedPointer};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Number of attempts (about 1.5 ms) between two probes of the unreachable memory servers.
const OUTAGE_ATTEMPTS: u32 = 64;
/// Maximum number of frames of one handle that late READs from one memory server may land in. At
/// this limit, the handle posts no more READs to the server until it answers.
const MAX_LANDINGS: usize = 4;
/// How many times a READ is posted.
const READ_RETRIES: u32 = 16;
/// One hit in this many marks its leaf. A leaf worth keeping gets so many hits between two samples
/// that it is almost certainly marked; other leaves hardly ever are.
const MARK_EVERY: u64 = 8;
/// Rounds of sampling that may fail before a cooling frame is evicted regardless of its age.
const SAMPLES: u32 = 8;

/// One handle's access to a cache.
pub struct CacheClient<F: Fabric, L: Layout> {
    pub(super) cache: Arc<FrameCache<L>>,
    pages: Rc<PageClient<F, L>>,
    /// Free frames that this handle keeps. They are locked.
    kept: RefCell<Vec<FrameId>>,
    pub(crate) counters: LiveCounters,
    /// Frames with a last WRITE through this endpoint that may still land (C15).
    pub(super) in_doubt: RefCell<Vec<UnresolvedFrame>>,
    /// Frames that a READ through this endpoint may still land in, with the memory server it came
    /// from (C17).
    pub(super) landings: RefCell<Vec<(FrameId, ServerId)>>,
    /// Leaves with a WRITE of a value that may still land: their ids, and their memory servers
    /// (C33).
    pub(super) marked_writes: RefCell<Vec<(u64, ServerId)>>,
    /// When operations next try to settle the lists above and `held`, and the length of the
    /// pause after the last failure, both in nanoseconds.
    pub(super) settle_due: Cell<(u64, u64)>,
    /// Whether a task is settling them now.
    pub(super) settling: Cell<bool>,
    /// Frames that are written only after their parents (C24).
    pub(super) held: RefCell<Vec<DependentFrame>>,
    /// When changes are answered.
    pub(super) acknowledge: AcknowledgeName,
    /// The owned range as this handle has last seen it, and its number of changes then.
    pub(super) owned_seen: RefCell<(u64, OwnedRange<OwnedKey<L>>)>,
    /// Average duration of recent READs of nodes, if the offloading policy needs it.
    pub(crate) read_ns: Option<MovingAverage>,
}

impl<F: Fabric, L: Layout> CacheClient<F, L> {
    /// Gives access to `cache` over the endpoint of `pages`.
    pub fn new(cache: Arc<FrameCache<L>>, pages: Rc<PageClient<F, L>>) -> Self {
        let timed = cache.options().offload == OffloadName::CostAware;
        Self {
            read_ns: timed.then(MovingAverage::default),
            acknowledge: cache.options().acknowledge,
            owned_seen: RefCell::new((cache.owned().changes(), cache.owned().range())),
            cache,
            pages,
            kept: RefCell::default(),
            counters: LiveCounters::default(),
            in_doubt: RefCell::default(),
            landings: RefCell::default(),
            marked_writes: RefCell::default(),
            settle_due: Cell::new((0, 0)),
            settling: Cell::new(false),
            held: RefCell::default(),
        }
    }

    /// The cache that all threads of the compute server share.
    #[inline]
    pub fn cache(&self) -> &FrameCache<L> {
        &self.cache
    }

    /// The endpoint that this client posts its verbs to.
    #[inline]
    pub fn fabric(&self) -> &F {
        self.pages.fabric()
    }

    /// One-sided access to pages of the pool.
    pub fn pages(&self) -> &PageClient<F, L> {
        &self.pages
    }

    /// What the cache has done for this handle.
    pub fn counters(&self) -> CacheCounters {
        self.counters.snapshot()
    }

    /// Marks a leaf as used, once in `MARK_EVERY` hits.
    #[inline]
    pub fn mark_use(&self, page: Page<'_, L>) {
        let hits = self.counters.leaf_hits.get();
        if hits.is_multiple_of(MARK_EVERY) && !page.is_marked() {
            page.set_mark(true);
        }
    }

    /// Takes a free frame. If there is none, cools hot nodes and evicts cooling ones (Lu et al.,
    /// §5.1, §5.2).
    ///
    /// # Errors
    /// [`Restart::Failed`] if no frame becomes free: other operations hold them all, or a memory
    /// server does not answer.
    pub async fn free_frame(&self) -> Result<FreeFrame<'_, L>, Restart> {
        match self.free_now() {
            Some(free) => Ok(free),
            None => self.make_room().await,
        }
    }

    /// Takes one more free frame for an operation that already has one.
    ///
    /// # Errors
    /// [`Restart::Busy`] if none is free now. This does not wait, because every operation that
    /// holds a frame might be waiting for another one (C16).
    pub async fn another_spare(&self) -> Result<FreeFrame<'_, L>, Restart> {
        match self.free_now() {
            Some(free) => Ok(free),
            None => self.sample().await.ok_or(Restart::Busy),
        }
    }

    fn free_now(&self) -> Option<FreeFrame<'_, L>> {
        let kept = self.kept.borrow_mut().pop();
        kept.map(|frame| self.cache.free_frame(frame)).or_else(|| self.cache.take_free())
    }

    #[cold]
    async fn make_room(&self) -> Result<FreeFrame<'_, L>, Restart> {
        let mut backoff = self.pages.backoff();
        loop {
            if let Some(free) = self.sample().await {
                return Ok(free);
            }
            // The cache may be full of frames that only this handle can settle.
            self.settle_if_due().await;
            self.before_retry(&mut backoff).await?;
        }
    }

    /// Like [`PageClient::before_retry`], for operations that wait for frames: the cache may be
    /// full of pages that a memory server does not accept (C25).
    ///
    /// # Errors
    /// [`RemoteError`] naming a memory server that does not answer.
    pub(crate) async fn before_retry(&self, backoff: &mut Backoff) -> Result<(), RemoteError> {
        self.pages.before_retry(backoff).await?;
        let asks = !self.fabric().breaks(rules::MISSING_ASKED);
        if asks && backoff.attempts().is_multiple_of(OUTAGE_ATTEMPTS) {
            for server in self.cache.detector().missing() {
                // Any word of the server serves as a probe.
                let word = GlobalAddr::new(ServerId::new(server), 0);
                self.pages.read_words(word, 8).await?;
            }
        }
        Ok(())
    }

    /// Cools hot nodes until that evicts one. If none is evicted, evicts a cooling node regardless
    /// of its age.
    async fn sample(&self) -> Option<FreeFrame<'_, L>> {
        for _ in 0..SAMPLES {
            for _ in 0..self.cache.options().sampled.max(1) {
                self.cool_one().await;
            }
            if let Some(free) = self.free_now() {
                return Some(free);
            }
        }
        self.charge_cooling().await;
        let frame = self.cache.cooling.pop(self.fabric().random())?;
        Some(self.evict_frame(frame).await)
    }

    /// Cools the hot node that the policy picks, if its state allows that.
    async fn cool_one(&self) {
        let Some(frame) = self.cache.pick_victim(self.fabric().random()) else { return };
        self.cool(frame).await;
    }

    /// Cools a hot node, writing it back first if it is dirty. Returns whether it is cooling now.
    pub async fn cool(&self, frame: FrameId) -> bool {
        let heeds_work_below = !self.fabric().breaks(rules::WORK_BELOW_HEEDED);
        let mut cooled = self.cache.cool(frame, heeds_work_below);
        if cooled == CoolOutcome::Dirty {
            // A node that cannot be written stays hot.
            if self.write_back(frame).await.is_err() {
                return false;
            }
            cooled = self.cache.cool(frame, heeds_work_below);
        }
        let CoolOutcome::Done(oldest) = cooled else { return false };
        LiveCounters::count(&self.counters.coolings);
        self.charge_cooling().await;
        self.drop_oldest(oldest).await;
        true
    }

    /// Charges for one access to the structure of cooling frames, if all threads share its lock.
    async fn charge_cooling(&self) {
        if self.cache.options().cooling == CoolingName::Queue {
            self.fabric().charge(Work::Enter(Section::CoolingQueue)).await;
        }
    }

    async fn drop_oldest(&self, oldest: Option<FrameId>) {
        if let Some(oldest) = oldest {
            let free = self.evict_frame(oldest).await;
            self.keep(free);
        }
    }

    /// Evicts a frame that this handle has taken out of the cooling structure (C8).
    async fn evict_frame(&self, frame: FrameId) -> FreeFrame<'_, L> {
        let keeps_outline = self.fabric().breaks(rules::OUTLINES_RENEWED);
        loop {
            if let Some(free) = self.cache.evict(frame, keeps_outline) {
                LiveCounters::count(&self.counters.evictions);
                return free;
            }
            // Another thread followed a stale reference to the frame and latched it. It releases
            // the latch soon.
            self.fabric().sleep(0).await;
        }
    }

    /// Keeps a free frame for this handle's next operation, or returns it to the cache.
    pub fn keep(&self, free: FreeFrame<'_, L>) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < self.cache.keep_limit() {
            kept.push(free.into_frame());
        }
    }

    /// Prefetches the lines that a fetch of the leaf at `address` will use.
    #[inline]
    pub(crate) fn prefetch_for_fetch(&self, address: GlobalAddr) {
        self.cache.mapping.prefetch(address.to_bits());
        self.cache.cooling.prefetch(address.to_bits());
        if let Some(outlines) = self.cache.outlines() {
            outlines.prefetch(address);
        }
        self.fabric().expect(address, L::page_words() * 8);
    }

    /// Claims the node at `address`, to which the child word at `slot` of `parent` points. Returns
    /// a frame, the I/O mark, and the slot's key range.
    pub(super) async fn begin_fetch<'a>(
        &'a self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
    ) -> Result<(FreeFrame<'a, L>, RemoteIoMark<'a>, OwnedRange<OwnedKey<L>>), Restart> {
        // Take both cache misses at once. The cooling bucket is used only after the READ.
        self.cache.mapping.prefetch(address.to_bits());
        self.cache.cooling.prefetch(address.to_bits());
        let free = match self.free_now() {
            Some(free) => free, // C16
            None => match self.cache.mapping.get(address.to_bits()) {
                // Do not evict a node if the requested one is in the cache after all.
                MappedNode::Absent => Box::pin(self.make_room()).await?, // keeps fetches small
                MappedNode::Io => return Err(Restart::Busy),
                MappedNode::Frame(frame) => {
                    return Err(self.attach(parent, slot, address, frame).await);
                }
            },
        };
        let (low, high) = slot_range(parent.page, slot);
        // If the node is merged away or moved meanwhile, its parent changes first.
        let is_there = || {
            (parent.is_valid() || self.fabric().breaks(rules::PARENT_LOOKED_AT))
                && self.may_bring(parent, slot).is_ok()
        };
        match self.cache.mapping.begin_io(address.to_bits(), is_there) {
            Ok(mark) => {
                // This prefetch overlaps with the READ.
                if let Some(frame) = self.cache.cooling.next_to_go(address.to_bits()) {
                    self.cache.arena().prefetch(frame);
                }
                Ok((free, mark, OwnedRange { low, high }))
            }
            Err(found) => {
                self.keep(free);
                Err(match found {
                    MappedNode::Frame(frame) => self.attach(parent, slot, address, frame).await,
                    MappedNode::Io => Restart::Busy,
                    MappedNode::Absent => self.why_not(parent, slot),
                })
            }
        }
    }

    /// Checks that the child at `slot` may enter this cache. A leaf may do so only if this server
    /// owns its keys (C20).
    fn may_bring(&self, parent: OptimisticRef<'_, L>, slot: usize) -> Result<(), Restart> {
        if parent.page.level() > 1 {
            return Ok(());
        }
        let (low, high) = slot_range(parent.page, slot);
        match self.cache.owned().of(&low, high.as_ref()) {
            Ownership::All => Ok(()),
            // Leaves end at boundaries between servers, so the parent is stale.
            Ownership::Part => Err(Restart::Refresh),
            Ownership::None => Err(Restart::Moved),
        }
    }

    /// What to do if the parent has changed, or if the node may not be fetched.
    fn why_not(&self, parent: OptimisticRef<'_, L>, slot: usize) -> Restart {
        let allowed = self.may_bring(parent, slot);
        match allowed {
            Err(restart) if parent.is_valid() => restart,
            _ => Restart::Again,
        }
    }

    /// Claims the subtree at `address`, to which the child word at `slot` of `parent` points, so
    /// that a memory server can work in it.
    ///
    /// # Errors
    /// [`Restart`] if the node is in the cache after all, or if another operation has marked it.
    pub(crate) async fn begin_remote(
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
        match begun {
            Ok(mark) => Ok(mark),
            Err(MappedNode::Frame(frame)) => Err(self.attach(parent, slot, address, frame).await),
            Err(MappedNode::Io) => Err(Restart::Busy),
            Err(MappedNode::Absent) if parent.is_valid() => Err(Restart::Here),
            Err(MappedNode::Absent) => Err(Restart::Again),
        }
    }

    /// Drops the copy of a leaf that a memory server has changed. The leaf lies below a node that
    /// the caller has marked (C6). The mark keeps other operations from making the leaf hot, so a
    /// cached copy is cooling.
    pub(crate) async fn drop_copy(&self, leaf: GlobalAddr) {
        while let MappedNode::Frame(frame) = self.cache.mapping.get(leaf.to_bits()) {
            self.charge_cooling().await;
            if let Some(free) = self.cache.drop_cooling(frame, leaf) {
                LiveCounters::count(&self.counters.invalidations);
                self.keep(free);
                break;
            }
            self.fabric().sleep(0).await;
        }
        // Last, because another thread may have evicted the copy, and noted its outline, meanwhile.
        if let Some(outlines) = self.cache.outlines() {
            outlines.note(leaf, None); // C29
        }
    }

    /// The current time, if the durations of READs are recorded.
    fn timed(&self) -> Option<u64> {
        self.read_ns.is_some().then(|| self.fabric().now_ns())
    }

    fn record(&self, posted_ns: Option<u64>) {
        if let (Some(read_ns), Some(posted_ns)) = (&self.read_ns, posted_ns) {
            read_ns.add(self.fabric().now_ns().saturating_sub(posted_ns));
        }
    }

    async fn attach(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        frame: FrameId,
    ) -> Restart {
        match self.cache.attach(parent, slot, address, frame) {
            AttachOutcome::Hot { reheated } => {
                if reheated {
                    self.charge_cooling().await;
                    LiveCounters::count(&self.counters.reheats);
                    if parent.page.level() == 1 {
                        if let Some(outlines) = self.cache.outlines() {
                            outlines.reheat(address);
                        }
                        LiveCounters::count(&self.counters.cooling_hits);
                    }
                }
                Restart::Again
            }
            AttachOutcome::Other => {
                // The cached copy of the node may be stale instead of the parent. Then a refresh of
                // the parent would not help.
                if let Some(free) = self.cache.forget_lost(frame, address) {
                    self.keep(free);
                }
                Restart::Refresh
            }
            AttachOutcome::NotNow => Restart::Busy,
        }
    }

    /// Fetches the leaf at `address` and applies `work` to it in one step. A change is written
    /// through, so that the leaf is clean when it is admitted.
    ///
    /// # Errors
    /// [`Restart`]. In this case nothing has changed: `work` was not called, or changed nothing.
    pub async fn fetch_leaf<T>(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        probe: DescentProbe<'_, L::Key>,
        work: impl FnOnce(Page<'_, L>) -> LeafOutcome<T>,
    ) -> Result<LeafOutcome<T>, Restart> {
        let (free, mark, keys) = self.begin_fetch(parent, slot, address).await?;
        let place = (address, &keys);
        self.bring_marked_leaf((free, mark), Some((parent, slot)), place, probe, work).await
    }

    /// Checks a leaf that was READ into a frame, and trims it to the key range of its slot (D7).
    fn accept_leaf(
        &self,
        free: &FreeFrame<'_, L>,
        (address, keys): (GlobalAddr, &OwnedRange<OwnedKey<L>>),
    ) -> Result<(), Restart> {
        let page = free.page();
        if page.address() != address || page.level() != 0 {
            return Err(Restart::Refresh);
        }
        if !page.stamp_fits() && !self.fabric().breaks(rules::STAMPS_CHECKED) {
            return Err(Restart::Torn(address)); // D8
        }
        mark_clean(page);
        self.trim(free, keys)
    }

    /// Removes entries of an exclusive node that lie outside the key range of its slot (D7).
    fn trim(&self, free: &FreeFrame<'_, L>, keys: &OwnedRange<OwnedKey<L>>) -> Result<(), Restart> {
        let page = free.page();
        let found = OwnedRange { low: L::low(page), high: L::high(page) };
        let fits = keys.covers(&found.low, found.high.as_ref());
        if fits || self.fabric().breaks(rules::STRAYS_TRIMMED) {
            return Ok(());
        }
        let counts = found.within(keys);
        if counts.is_empty() {
            return Err(Restart::Refresh); // another node by now
        }
        if !L::trim(page, L::key(&counts.low), counts.high.as_ref().map(L::key)) {
            // Not after a crash: `before_narrowing` writes the node first if this could happen.
            return Err(Restart::Torn(page.address()));
        }
        self.mark_dirty(free.frame(), page, 1..L::page_words());
        LiveCounters::count(&self.counters.trims);
        Ok(())
    }

    /// Like [`CacheClient::fetch_leaf`], for a caller that holds the mark. Without a parent the
    /// leaf does not become hot, unless it is dirty.
    pub(crate) async fn bring_marked_leaf<'a, T>(
        &'a self,
        (free, mark): (FreeFrame<'a, L>, RemoteIoMark<'a>),
        below: Option<(OptimisticRef<'_, L>, usize)>,
        (address, keys): (GlobalAddr, &OwnedRange<OwnedKey<L>>),
        probe: DescentProbe<'_, L::Key>,
        work: impl FnOnce(Page<'_, L>) -> LeafOutcome<T>,
    ) -> Result<LeafOutcome<T>, Restart> {
        // The code before and after `work` is in separate functions, so that it is compiled only
        // once.
        let free = self.read_marked_leaf(free, (address, keys), probe).await?;
        let outcome = work(free.page());
        let changed = match &outcome {
            LeafOutcome::Changed { words, .. } => Some(*words),
            LeafOutcome::Nothing(_) | LeafOutcome::Full => None,
        };
        let is_full = matches!(outcome, LeafOutcome::Full);
        if let Some(unwritten) = self.admit_marked_leaf((free, mark), below, changed, is_full).await
        {
            Box::pin(self.await_written(unwritten)).await?;
        }
        Ok(outcome)
    }

    async fn read_marked_leaf<'a>(
        &'a self,
        free: FreeFrame<'a, L>,
        (address, keys): (GlobalAddr, &OwnedRange<OwnedKey<L>>),
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<FreeFrame<'a, L>, Restart> {
        let free = self.read_into(free, address, 1..L::page_words()).await?;
        LiveCounters::count(&self.counters.leaf_misses);
        let page = free.page();
        if let Some(frame) = self.cache.cooling.next_to_go(address.to_bits()) {
            // A leaf that is admitted cold evicts this frame.
            let leaving = self.cache.arena().page(frame).address();
            self.cache.mapping.prefetch(leaving.to_bits());
        }
        self.accept_leaf(&free, (address, keys))?;
        if L::reach(page, probe) != FencePosition::Inside && !self.fabric().breaks(rules::FENCES) {
            return Err(Restart::Refresh);
        }
        Ok(free)
    }

    /// Writes the `changed` words of a leaf through, and admits it. If the WRITE failed and the
    /// answer must not leave before it has succeeded, returns what the answer waits for.
    async fn admit_marked_leaf<'a>(
        &'a self,
        (free, mark): (FreeFrame<'a, L>, RemoteIoMark<'a>),
        below: Option<(OptimisticRef<'_, L>, usize)>,
        changed: Option<PageWords>,
        is_full: bool,
    ) -> Option<UnwrittenChange> {
        let page = free.page();
        let mut unwritten = None;
        if let Some(words) = changed {
            LiveCounters::count(&self.counters.write_throughs);
            // If entries were trimmed, write the whole page.
            let words = match is_clean(page) {
                true => self.to_write(words),
                false => (1..L::page_words()).into(),
            };
            mark_clean(page);
            if let Some(outlines) = self.cache.outlines() {
                // The WRITE may land although this future is dropped.
                outlines.note(page.address(), None);
            }
            let written = Box::pin(self.write_leaf(page.address(), page, words)).await;
            if let Err(restart) = written {
                // The change exists only in this frame, so the leaf stays, dirty.
                self.mark_dirty(free.frame(), page, self.to_write_again(words));
                if let Restart::Failed(_) = restart {
                    self.may_land(free.frame(), page);
                }
                unwritten =
                    self.acknowledges_written().then(|| self.last_change_in(free.frame(), true));
            }
        }
        let admit = match self.cache.admission.leaf(self.fabric().random()) {
            // There are unused frames, so admitting the leaf evicts nothing.
            LeafAdmission::Cold if self.cache.is_filling() => LeafAdmission::Hot,
            LeafAdmission::Cold if changed.is_none() && !is_full && self.is_outlined(page) => {
                LeafAdmission::Private
            }
            admit => admit,
        };
        match (admit, is_full, below) {
            _ if !is_clean(page) => self.admit_dirty(free, mark, below),
            // The split that follows needs the leaf.
            (LeafAdmission::Private, true, _)
            | (LeafAdmission::Cold, ..)
            | (LeafAdmission::Hot, _, None) => {
                self.admit_cold(free, mark).await;
            }
            (LeafAdmission::Private, ..) => {
                if changed.is_some()
                    && let Some(outlines) = self.cache.outlines()
                {
                    outlines.note(page.address(), L::leaf_outline(page)); // C29
                }
                drop(mark);
                self.keep(free);
            }
            (LeafAdmission::Hot, _, Some((parent, slot))) => {
                if let Err((free, mark)) = self.cache.publish_hot(free, mark, parent, slot) {
                    self.admit_cold(free, mark).await;
                }
            }
        }
        unwritten
    }

    /// Notes the outline of a clean leaf that was READ whole because nothing was known of it.
    /// Returns whether that is enough, so that the leaf need not be admitted.
    fn is_outlined(&self, page: Page<'_, L>) -> bool {
        let outlines = self.cache.outlines().filter(|_| is_clean(page));
        outlines
            .zip(L::leaf_outline(page))
            .is_some_and(|(outlines, outline)| outlines.note_unknown(page.address(), outline))
    }

    /// Admits a dirty node: it must be hot (C11), with or without a parent.
    fn admit_dirty<'a>(
        &'a self,
        free: FreeFrame<'a, L>,
        mark: RemoteIoMark<'a>,
        below: Option<(OptimisticRef<'_, L>, usize)>,
    ) {
        let frame = free.frame();
        let refused = match below {
            Some((parent, slot)) => self.cache.publish_hot(free, mark, parent, slot).err(),
            None => Some((free, mark)),
        };
        if let Some((free, mark)) = refused {
            self.cache.publish_detached(free, mark);
        }
        if self.cache.ages().limit_ns() > 0 {
            // Before the node was published, `DirtyAges::take` may have dropped the frame's entry
            // (C21).
            self.cache.ages().queue(frame);
        }
    }

    async fn admit_cold<'a>(&'a self, free: FreeFrame<'a, L>, mark: RemoteIoMark<'a>) {
        self.charge_cooling().await;
        let oldest = self.cache.publish_cold(free, mark);
        self.drop_oldest(oldest).await;
    }

    /// Makes a node a hot child of its parent if the parent still points to it. Otherwise a clean
    /// node starts cooling, and a dirty one becomes hot without a parent.
    async fn admit_hot<'a>(
        &'a self,
        free: FreeFrame<'a, L>,
        mark: RemoteIoMark<'a>,
        below: (OptimisticRef<'_, L>, usize),
    ) {
        if !is_clean(free.page()) {
            self.admit_dirty(free, mark, Some(below));
        } else if let Err((free, mark)) = self.cache.publish_hot(free, mark, below.0, below.1) {
            self.admit_cold(free, mark).await;
        }
    }

    /// Fetches the inner node at `address` and admits it hot. The descent has to start again, after
    /// success with [`Restart::Again`].
    pub async fn bring_inner(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        probe: DescentProbe<'_, L::Key>,
    ) -> Restart {
        self.fetch_inner(parent, slot, address, probe).await.err().unwrap_or(Restart::Again)
    }

    async fn fetch_inner(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<(), Restart> {
        let level = parent.page.level().saturating_sub(1);
        let (free, mark, keys) = self.begin_fetch(parent, slot, address).await?;
        let owned = self.cache.owned().of(&keys.low, keys.high.as_ref());
        if owned == Ownership::None {
            // This compute server owns none of the node's keys. It would not trim the node (D7),
            // and could take over the keys while the node is still cached.
            return Err(Restart::Moved);
        }
        let is_exclusive = owned == Ownership::All;
        let posted_ns = self.timed();
        let copy = match self.pages.read(TimedPointer::fixed(address)).await {
            Ok(copy) => {
                self.record(posted_ns);
                copy
            }
            // The node was shared and its lock holder has not finished: wait for the holder, or
            // recover the lock if it is dead.
            Err(MissCause::Restart) if self.pages.is_held_up_at(address) => {
                return Err(Restart::Busy);
            }
            // No intact inner node is there. Either the parent is stale and the node was freed and
            // reused (D3), or a WRITE of it was torn.
            Err(MissCause::Restart) if is_exclusive => return Err(Restart::Torn(address)),
            Err(MissCause::Restart) => return Err(Restart::Refresh),
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
            // The node was shared, and the lock holder is still working or dead. Operations on an
            // exclusive cached node do not check its lock, so do not admit it yet.
            return Err(Restart::Busy);
        }
        let page = free.page();
        page.copy_all_but_latch(copy.page());
        mark_clean(page);
        if is_exclusive {
            self.trim(&free, &keys)?;
        }
        self.cache.arena().set_remote_word(free.frame(), copy.word().to_bits());
        self.admit_hot(free, mark, (parent, slot)).await;
        Ok(())
    }

    /// Fetches the leaf at `address` and admits it hot, for splits and merges. The descent has to
    /// start again, after success with [`Restart::Again`].
    pub async fn bring_hot_leaf(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
    ) -> Restart {
        self.fetch_hot_leaf(parent, slot, address).await.err().unwrap_or(Restart::Again)
    }

    async fn fetch_hot_leaf(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
    ) -> Result<(), Restart> {
        let (free, mark, keys) = self.begin_fetch(parent, slot, address).await?;
        let free = self.read_into(free, address, 1..L::page_words()).await?;
        LiveCounters::count(&self.counters.leaf_misses);
        self.accept_leaf(&free, (address, &keys))?;
        self.admit_hot(free, mark, (parent, slot)).await;
        Ok(())
    }

    /// READs these words of the leaf at `address`, word 0 never among them, into a frame.
    pub(super) async fn read_into<'a>(
        &'a self,
        free: FreeFrame<'a, L>,
        address: GlobalAddr,
        words: Range<usize>,
    ) -> Result<FreeFrame<'a, L>, Restart> {
        let cache = &*self.cache;
        self.before_landing(address.server()).await?;
        let frame = free.into_frame();
        // If this future is dropped after this point, the frame goes to `landings`.
        let landing = FrameReadInFlight {
            frame,
            server: address.server(),
            landings: &self.landings,
            doubtful: self.pages.doubtful(),
        };
        let mut outcome = Err(Restart::Busy);
        for _ in 0..READ_RETRIES {
            let buffer = cache.arena().buffer(frame, words.clone());
            let posted_ns = self.timed();
            match self.fabric().read(address.plus(8 * words.start as u64), buffer).await {
                Ok(_) => {
                    // The average is that of nodes.
                    if words.len() + 1 == L::page_words() {
                        self.record(posted_ns);
                    }
                    landing.has_ended();
                    return Ok(cache.free_frame(frame));
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
        drop(cache.free_frame(frame));
        outcome
    }

    /// Limits how many frames an unresponsive memory server can take out of use (C17).
    async fn before_landing(&self, server: ServerId) -> Result<(), Restart> {
        let are_many = || {
            let landings = self.landings.borrow();
            landings.iter().filter(|(_, from)| *from == server).count() >= MAX_LANDINGS
        };
        if are_many() {
            Box::pin(self.settle_transfers()).await?;
            if are_many() {
                return Err(Restart::Busy); // another task is settling them
            }
        }
        Ok(())
    }

    /// Frees those of the oldest `many` landings whose READs came from `server`. The connection to
    /// `server` has been reset.
    pub(super) fn free_landed(&self, server: ServerId, many: usize) {
        let is_free = |landing: &mut (FrameId, ServerId)| landing.1 == server;
        let landed: Vec<_> = self.landings.borrow_mut().extract_if(..many, is_free).collect();
        landed.into_iter().for_each(|(frame, _)| drop(self.cache.free_frame(frame)));
    }
}

/// A READ in flight into a frame. If this is dropped before the READ has ended, for example with
/// the READ's future, the frame stays out of use until the READ is settled (C17).
struct FrameReadInFlight<'a> {
    frame: FrameId,
    server: ServerId,
    landings: &'a RefCell<Vec<(FrameId, ServerId)>>,
    doubtful: &'a Cell<bool>,
}

impl FrameReadInFlight<'_> {
    /// No part of the READ can still land.
    fn has_ended(self) {
        std::mem::forget(self);
    }
}

impl Drop for FrameReadInFlight<'_> {
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
