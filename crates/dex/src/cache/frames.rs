//! The cache of one compute server: the operations on frames that need no network.
//!
//! *Invariants*
//! - C9. If a parent in the cache points to a hot node, exactly one child word does so, and the
//!   node's header names that parent. This parent hint changes only under the latch of the parent
//!   that it names, or under the node's own latch while it names none.
//! - C10. A node with swizzled children does not cool, so hot nodes form paths from the root.
//! - C11. A cooling node is clean, and no WRITE of it is in flight.
//! - C12. Latches are tried here, never waited for. If one is taken, the caller retries.
//!
//! *Thread safety*: any number of threads.

use super::{
    AdmissionPolicy, CacheOptions, CacheTurns, ClearedInParts, Cooling, CurrentOwnedRange,
    DirtyAges, FrameArena, FrameId, FrameState, HotRecords, LeafOutlines, MappedNode, MappingTable,
    OffloadName, RemoteIoMark, Swip, VictimPolicy, is_clean,
};
use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{GlobalAddr, RegionError};
use farleaf_index::{OwnedRange, Ownership};
use farleaf_page::{
    DescentProbe, ExclusiveLatch, LatchVersion, Layout, MAX_LEVEL, OwnedKey, Page, lies_within,
    slot_range,
};
use farleaf_pool::remote::FailureDetector;
use farleaf_pool::remote::PageImage;
use std::collections::{BTreeMap, BTreeSet};

/// The frames of one compute server, with the structures that find them.
pub struct FrameCache<L: Layout> {
    arena: FrameArena<L>,
    pub(super) mapping: MappingTable,
    pub(super) cooling: Box<dyn Cooling>,
    pub(super) victims: Box<dyn VictimPolicy>,
    pub(super) admission: Box<dyn AdmissionPolicy>,
    /// Free frames that no handle keeps. They are locked (C2).
    free: Mutex<Vec<FrameId>>,
    /// Frames from this number on have never been used.
    fresh: AtomicU64,
    /// The keys whose leaves may be cached here (C20).
    owned: CurrentOwnedRange<OwnedKey<L>>,
    /// When each dirty node became dirty.
    ages: DirtyAges,
    /// Turns for operations that have lost their frames too often (C23).
    turns: CacheTurns,
    /// What is known of leaves that are only in the pool, if lookups READ parts of them.
    outlines: Option<LeafOutlines>,
    records: Option<HotRecords>,
    /// Which memory servers can be reached.
    detector: FailureDetector,
    options: CacheOptions,
}

/// A node that was found, and the version of its latch at that moment.
#[derive(Debug)]
pub struct OptimisticRef<'a, L: Layout> {
    /// The frame that holds it.
    pub frame: FrameId,
    /// Its words. Trust what you read only after validating the version ([`Self::is_valid`]).
    pub page: Page<'a, L>,
    version: LatchVersion,
}

impl<L: Layout> Clone for OptimisticRef<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Layout> Copy for OptimisticRef<'_, L> {}

impl<'a, L: Layout> OptimisticRef<'a, L> {
    /// Whether everything read from the page since it was found is consistent and still current.
    #[inline]
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.page.latch().validate(self.version)
    }

    /// Latches the node, unless it has changed since it was found.
    #[inline]
    pub fn lock(&self) -> Option<ExclusiveLatch<'a>> {
        self.page.latch().try_lock(self.version, 0)
    }
}

/// The changes in a cache that the pool does not have yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyStats {
    /// Total size of the dirty pages, in bytes.
    pub bytes: u64,
    /// Time since the oldest dirty page became dirty, in nanoseconds. 0 if nodes are not written
    /// back by age.
    pub oldest_ns: u64,
}

/// A free frame reserved for one operation. Dropping it returns it to the free frames.
pub struct FreeFrame<'a, L: Layout> {
    cache: &'a FrameCache<L>,
    frame: FrameId,
}

impl<'a, L: Layout> FreeFrame<'a, L> {
    /// The reserved frame.
    pub fn frame(&self) -> FrameId {
        self.frame
    }

    /// Its page, which no other thread reads or changes.
    pub fn page(&self) -> Page<'a, L> {
        self.cache.arena.page(self.frame)
    }

    /// Transfers the frame to the caller, which becomes responsible for it. It is still locked.
    pub fn into_frame(self) -> FrameId {
        let frame = self.frame;
        std::mem::forget(self);
        frame
    }
}

impl<L: Layout> Drop for FreeFrame<'_, L> {
    fn drop(&mut self) {
        self.cache.give_free(self.frame);
    }
}

/// Whether a child lies within the key range of its slot in the parent.
fn fits_slot<L: Layout>(parent: Page<'_, L>, slot: usize, child: Page<'_, L>) -> bool {
    let (from, to) = slot_range(parent, slot);
    let (low, high) = (L::low(child), L::high(child));
    lies_within((&low, high.as_ref()), (&from, to.as_ref()))
}

/// Outcome of an attempt to cool a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoolOutcome {
    /// The node is cooling. A frame in the result was the oldest one cooling, and must be evicted
    /// to make room.
    Done(Option<FrameId>),
    /// The node must be written back first.
    Dirty,
    /// Another thread is using the node, or it is in a state that cannot cool.
    NotNow,
}

/// Outcome of an attempt to make a parent point to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachOutcome {
    /// The node is hot now.
    Hot {
        /// Whether it was cooling before.
        reheated: bool,
    },
    /// The frame holds a node of the wrong level, or one that reaches beyond its slot in the
    /// parent: the copy of the parent or of the child is stale.
    Other,
    /// Another thread is using the parent or the child, or one of them has changed. Try again.
    NotNow,
}

impl<L: Layout> FrameCache<L> {
    /// Creates an empty cache for the leaves of the keys in `owned`.
    ///
    /// # Errors
    /// [`RegionError`] if the arena's memory cannot be allocated.
    pub fn new(
        options: &CacheOptions,
        owned: OwnedRange<OwnedKey<L>>,
    ) -> Result<Self, RegionError> {
        let frames = options.frames::<L>();
        Ok(Self {
            arena: FrameArena::new(frames)?,
            mapping: MappingTable::new(frames as usize),
            cooling: options.new_cooling(frames),
            victims: options.new_victims(),
            admission: options.new_admission(),
            free: Mutex::default(),
            fresh: AtomicU64::new(0),
            owned: CurrentOwnedRange::new(owned),
            ages: DirtyAges::new(options.write_back_ns, frames),
            turns: CacheTurns::new(frames),
            outlines: options.new_outlines::<L>(frames)?,
            records: options.new_records::<L>()?,
            detector: FailureDetector::default(),
            options: *options,
        })
    }

    /// The frames.
    #[inline]
    pub fn arena(&self) -> &FrameArena<L> {
        &self.arena
    }

    /// The keys whose leaves may be cached here (C20).
    #[inline]
    pub fn owned(&self) -> &CurrentOwnedRange<OwnedKey<L>> {
        &self.owned
    }

    /// The mapping table, from node ids to frames.
    pub fn mapping(&self) -> &MappingTable {
        &self.mapping
    }

    /// The structure of cooling frames.
    pub fn cooling(&self) -> &dyn Cooling {
        &*self.cooling
    }

    /// When nodes became dirty, if they are written back by age.
    pub(crate) fn ages(&self) -> &DirtyAges {
        &self.ages
    }

    /// Turns for operations that have lost their frames too often (C23).
    pub(crate) fn turns(&self) -> &CacheTurns {
        &self.turns
    }

    /// What is known of leaves that are only in the pool, if lookups READ parts of them.
    #[inline]
    pub(crate) fn outlines(&self) -> Option<&LeafOutlines> {
        self.outlines.as_ref()
    }

    /// Copies of hot records, if there are any.
    #[inline]
    pub(crate) fn records(&self) -> Option<&HotRecords> {
        self.records.as_ref()
    }

    /// Changes the keys whose leaves may be cached here. When this server gains keys, it first
    /// forgets what it knew of leaves (C30, C32).
    pub(crate) fn set_owned(&self, range: OwnedRange<OwnedKey<L>>) {
        let gains =
            !range.is_empty() && !self.owned.range().covers(&range.low, range.high.as_ref());
        if gains {
            self.forget_known();
        }
        self.owned.set(range);
    }

    /// Whether a lookup that misses a leaf may need a part of it only, or put its record in.
    #[inline]
    pub(crate) fn reads_parts(&self) -> bool {
        self.outlines.is_some() || self.records.is_some()
    }

    /// Forgets all outlines and hot records.
    fn forget_known(&self) {
        self.outlines.iter().for_each(ClearedInParts::clear);
        self.records.iter().for_each(ClearedInParts::clear);
    }

    /// The memory servers that this cache considers reachable.
    pub fn detector(&self) -> &FailureDetector {
        &self.detector
    }

    /// The changes that are not in the pool yet at time `now_ns` of the fabric's clock.
    pub fn dirt(&self, now_ns: u64) -> DirtyStats {
        let page_bytes = L::page_words() as u64 * 8;
        if self.ages.limit_ns() == 0 {
            let frames = self.unwritten_frames().len() as u64;
            return DirtyStats { bytes: frames * page_bytes, oldest_ns: 0 };
        }
        let queued = self.ages.queued().into_iter();
        let dirty =
            queued.filter(|(_, frame)| self.is_unwritten(*frame)).map(|(since_ns, _)| since_ns);
        let (frames, oldest) = dirty.fold((0, now_ns), |(count, oldest): (u64, u64), since_ns| {
            (count + 1, oldest.min(since_ns))
        });
        DirtyStats { bytes: frames * page_bytes, oldest_ns: now_ns - oldest }
    }

    /// The options that the cache was created with.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// How many free frames a handle may keep for itself. The limit is low, so that all handles
    /// together hold only a small part of the cache.
    pub(super) fn keep_limit(&self) -> usize {
        (self.arena.frames() as usize / 1024).min(8)
    }

    /// Bytes of frames that are in use, and of the tables of outlines and hot records.
    pub fn used_bytes(&self) -> u64 {
        let free = lock(&self.free).len() as u64;
        let frames = self.touched().saturating_sub(free);
        frames * L::page_words() as u64 * 8 + self.options.tables_bytes::<L>()
    }

    /// Number of frames that have ever been used.
    fn touched(&self) -> u64 {
        self.fresh.load(Ordering::Relaxed).min(self.arena.frames().into())
    }

    /// Whether some frames have never been used.
    pub(super) fn is_filling(&self) -> bool {
        self.touched() < self.arena.frames().into()
    }

    /// Takes a free frame, if there is one.
    pub fn take_free(&self) -> Option<FreeFrame<'_, L>> {
        if let Some(frame) = lock(&self.free).pop() {
            return Some(self.free_frame(frame));
        }
        if self.touched() == u64::from(self.arena.frames()) {
            return None;
        }
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        let frame = FrameId::new(u32::try_from(number).ok().filter(|n| *n < self.arena.frames())?);
        let latch = self.arena.latch(frame);
        // No operation uses this frame yet, but a sampler may have latched it for a moment.
        let guard = latch.optimistic().and_then(|version| latch.try_lock(version, 0))?;
        guard.keep();
        Some(self.free_frame(frame))
    }

    /// Wraps a free, locked frame that the caller owns.
    pub(super) fn free_frame(&self, frame: FrameId) -> FreeFrame<'_, L> {
        debug_assert_eq!(self.arena.state(frame), FrameState::Free);
        FreeFrame { cache: self, frame }
    }

    pub(super) fn give_free(&self, frame: FrameId) {
        debug_assert_eq!(self.arena.state(frame), FrameState::Free);
        lock(&self.free).push(frame);
    }

    /// A frame's page with its current version, or `None` while it is locked.
    #[inline]
    pub fn seen(&self, frame: FrameId) -> Option<OptimisticRef<'_, L>> {
        let page = self.arena.page(frame);
        let version = page.latch().optimistic()?;
        Some(OptimisticRef { frame, page, version })
    }

    /// Whether a frame holds a page that is not cooling. Call it under the frame's latch.
    pub(crate) fn is_held(&self, frame: FrameId) -> bool {
        matches!(self.arena.state(frame), FrameState::Hot | FrameState::Pinned)
    }

    /// Decodes the child word at `slot` of an inner page.
    #[inline]
    pub fn swip(&self, page: Page<'_, L>, slot: usize) -> Option<Swip> {
        Swip::from_word(L::inner_child(page, slot), self.arena.frames())
    }

    /// The frames of an inner page's swizzled children, with their slots. Call it under the page's
    /// latch.
    pub fn swizzled(&self, page: Page<'_, L>) -> impl Iterator<Item = (usize, FrameId)> {
        let count = if page.level() > 0 { page.count() } else { 0 };
        (0..count).filter_map(move |slot| match self.swip(page, slot) {
            Some(Swip::Frame(frame)) => Some((slot, frame)),
            _ => None,
        })
    }

    /// Copies a page in the form that the pool stores: addresses instead of frames in the child
    /// words, no note, and zeros in the unused entries of an inner page. Word 0 is the frame's
    /// latch word. Call it under the page's latch.
    pub fn image(&self, page: Page<'_, L>) -> PageImage<L> {
        let image = PageImage::of(page);
        image.page().set_note(0);
        if page.level() > 0 {
            L::clear_unused(image.page());
        }
        for (slot, child) in self.swizzled(page) {
            // The child stays in its frame as long as the parent points to it (C9).
            L::inner_set_child(image.page(), slot, self.arena.page(child).address());
        }
        image
    }

    /// Makes `frame` the parent of all swizzled children of the inner page in it. Call it under the
    /// latches of `frame` and of the children's former parent.
    pub fn adopt(&self, frame: FrameId) {
        for (_, child) in self.swizzled(self.arena.page(frame)) {
            self.arena.set_parent(child, Some(frame));
        }
    }

    /// The slot of `parent` that points to `frame`, which holds `page`. Call it under both latches.
    fn slot_of(&self, parent: Page<'_, L>, frame: FrameId, page: Page<'_, L>) -> Option<usize> {
        if parent.level() != page.level() + 1 {
            return None;
        }
        let low = L::low(page);
        let likely = L::inner_slot(parent, DescentProbe::At(L::key(&low)));
        let points_here = |slot: usize| self.swip(parent, slot) == Some(Swip::Frame(frame));
        if points_here(likely) {
            return Some(likely);
        }
        (0..parent.count()).find(|slot| points_here(*slot))
    }

    /// Makes `slot` of `parent` point to `frame`, which holds the node at `address`.
    pub fn attach(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        frame: FrameId,
    ) -> AttachOutcome {
        self.try_attach(parent, slot, address, frame).unwrap_or(AttachOutcome::NotNow)
    }

    fn try_attach(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        frame: FrameId,
    ) -> Option<AttachOutcome> {
        let child = self.seen(frame)?;
        let _parent_guard = parent.lock()?;
        let _child_guard = child.lock()?;
        if child.page.address() != address || L::inner_child(parent.page, slot) != address {
            return None;
        }
        if child.page.level() + 1 != parent.page.level()
            || !fits_slot(parent.page, slot, child.page)
        {
            return Some(AttachOutcome::Other);
        }
        let reheated = match self.arena.state(frame) {
            FrameState::Cooling => {
                // C8: if the frame is not there, another thread is about to evict it.
                if !self.cooling.remove(frame, address.to_bits()) {
                    return None;
                }
                true
            }
            FrameState::Hot => {
                self.detach_from_other(child, parent.frame)?;
                false
            }
            FrameState::Free | FrameState::Pinned => return None,
        };
        child.page.set_mark(reheated);
        self.arena.set_parent(frame, Some(parent.frame));
        self.arena.set_state(frame, FrameState::Hot);
        L::inner_set_child(parent.page, slot, Swip::Frame(frame).to_word());
        Some(AttachOutcome::Hot { reheated })
    }

    /// Unlinks a hot node from another parent, a stale copy that still points to it (C9).
    fn detach_from_other(&self, child: OptimisticRef<'_, L>, parent: FrameId) -> Option<()> {
        let Some(other) = self.arena.parent(child.frame).filter(|other| *other != parent) else {
            return Some(());
        };
        let other = self.seen(other)?;
        let _guard = other.lock()?;
        if self.arena.parent(child.frame) != Some(other.frame) {
            return None;
        }
        if let Some(slot) = self.slot_of(other.page, child.frame, child.page) {
            L::inner_set_child(other.page, slot, child.page.address());
        }
        Some(())
    }

    /// Publishes a page that has been READ into a free frame, and makes it a hot child of `parent`.
    /// If `parent` has changed, for example because it gained children, this still succeeds if the
    /// same slot points to the page.
    ///
    /// # Errors
    /// `free` and `mark`, unchanged, if `parent` cannot be latched or no longer leads to the page.
    pub fn publish_hot<'a>(
        &'a self,
        free: FreeFrame<'a, L>,
        mark: RemoteIoMark<'a>,
        parent: OptimisticRef<'_, L>,
        slot: usize,
    ) -> Result<(), (FreeFrame<'a, L>, RemoteIoMark<'a>)> {
        let guard = parent.lock().or_else(|| self.lock_again(parent.frame, slot, free.page()));
        let Some(_guard) = guard else { return Err((free, mark)) };
        debug_assert_eq!(L::inner_child(parent.page, slot), free.page().address());
        let frame = self.publish(free, FrameState::Hot, Some(parent.frame), |frame| {
            mark.publish(frame);
        });
        L::inner_set_child(parent.page, slot, Swip::Frame(frame).to_word());
        Ok(())
    }

    /// Latches a node that may have changed since `seen`, if its `slot` still points to `child` and
    /// the node can have hot children.
    fn lock_again(
        &self,
        parent: FrameId,
        slot: usize,
        child: Page<'_, L>,
    ) -> Option<ExclusiveLatch<'_>> {
        let seen = self.seen(parent)?;
        let guard = seen.lock()?;
        let leads = matches!(self.arena.state(parent), FrameState::Hot | FrameState::Pinned)
            && seen.page.level() == child.level() + 1
            && slot < seen.page.count()
            && L::inner_child(seen.page, slot) == child.address()
            && fits_slot(seen.page, slot, child);
        leads.then_some(guard)
    }

    /// Publishes a page as hot without a parent, because it is dirty or because its parent has
    /// changed. The next operation that passes its parent attaches it.
    pub fn publish_detached<'a>(&'a self, free: FreeFrame<'a, L>, mark: RemoteIoMark<'a>) {
        self.publish(free, FrameState::Hot, None, |frame| mark.publish(frame));
    }

    /// Publishes a clean page as a candidate for eviction. Returns the frame that must be evicted
    /// to make room for it.
    pub fn publish_cold<'a>(
        &'a self,
        free: FreeFrame<'a, L>,
        mark: RemoteIoMark<'a>,
    ) -> Option<FrameId> {
        debug_assert!(is_clean(free.page()), "C11");
        let id = free.page().address().to_bits();
        let frame = self.publish(free, FrameState::Cooling, None, |frame| mark.publish(frame));
        self.cooling.insert(frame, id)
    }

    /// Publishes a newly created page as a hot child of the page in `parent`. The caller holds the
    /// latch of `parent` and makes it point to the new page.
    pub fn publish_new<'a>(
        &'a self,
        free: FreeFrame<'a, L>,
        mark: RemoteIoMark<'a>,
        parent: FrameId,
    ) -> FrameId {
        self.publish(free, FrameState::Hot, Some(parent), |frame| mark.publish(frame))
    }

    /// Removes a stale copy of a node that other compute servers have freed. This server cached the
    /// node while it was shared; since then another server made it exclusive and freed it. Hot
    /// children of the copy lose their parent. `None` while another thread is using the node or its
    /// parent.
    pub(crate) fn forget_lost(
        &self,
        frame: FrameId,
        address: GlobalAddr,
    ) -> Option<FreeFrame<'_, L>> {
        let node = self.seen(frame)?;
        let named = self.arena.parent(frame);
        let parent = match named {
            Some(parent) => Some(self.seen(parent)?),
            None => None,
        };
        let _parent_guard = match &parent {
            Some(parent) => Some(parent.lock()?),
            None => None,
        };
        let guard = node.lock()?;
        if self.arena.parent(frame) != named {
            return None;
        }
        let free = self.remove_old(node, guard, address)?;
        if let Some(parent) = parent
            && let Some(slot) = self.slot_of(parent.page, frame, node.page)
        {
            L::inner_set_child(parent.page, slot, address);
        }
        Some(free)
    }

    /// Removes a latched node from the cache if it is clean and no operation works below it. Its
    /// hot children lose their parent.
    fn remove_old(
        &self,
        node: OptimisticRef<'_, L>,
        guard: ExclusiveLatch<'_>,
        address: GlobalAddr,
    ) -> Option<FreeFrame<'_, L>> {
        let frame = node.frame;
        let is_old = node.page.address() == address
            && is_clean(node.page)
            && !self.arena.is_writing(frame)
            && !self.is_worked_below(node.page);
        let can_go = is_old
            && match self.arena.state(frame) {
                FrameState::Hot => true,
                FrameState::Cooling => self.cooling.remove(frame, address.to_bits()), // C8
                FrameState::Free | FrameState::Pinned => false,
            };
        if !can_go {
            return None;
        }
        for (_, child) in self.swizzled(node.page) {
            self.arena.set_parent(child, None);
        }
        Some(self.discard(frame, guard))
    }

    /// Whether a child of a latched node is being fetched or worked on remotely (C19). No such work
    /// can begin while the latch is held: it starts with a check that the parent is unchanged.
    pub(crate) fn is_worked_below(&self, page: Page<'_, L>) -> bool {
        let guarded = self.options.offload != OffloadName::Never && page.level() > 0;
        guarded && (0..page.count()).any(|slot| self.is_worked_on(L::inner_child(page, slot)))
    }

    fn is_worked_on(&self, child: GlobalAddr) -> bool {
        !child.is_swizzled() && self.mapping.get(child.to_bits()) == MappedNode::Io
    }

    /// Replaces the content of a latched shared node with a newer copy (D6). Hot children to which
    /// the copy still points stay attached. The others lose their parent, and stale ones among them
    /// are removed. `None` while another thread is using one of the stale children.
    pub(crate) fn replace(
        &self,
        node: OptimisticRef<'_, L>,
        copy: Page<'_, L>,
    ) -> Option<Vec<FreeFrame<'_, L>>> {
        let mut hot: BTreeMap<GlobalAddr, FrameId> = self
            .swizzled(node.page)
            .map(|(_, child)| (self.arena.page(child).address(), child))
            .collect();
        let kept: BTreeSet<GlobalAddr> =
            (0..copy.count()).map(|slot| L::inner_child(copy, slot)).collect();
        let dropped_at_work = (0..node.page.count()).any(|slot| {
            let child = L::inner_child(node.page, slot);
            !kept.contains(&child) && self.is_worked_on(child)
        });
        if self.options.offload != OffloadName::Never && dropped_at_work {
            return None;
        }
        let mut gone = Vec::new();
        for slot in 0..copy.count() {
            let address = L::inner_child(copy, slot);
            let Some(&frame) = hot.get(&address) else { continue };
            let child = self.seen(frame)?;
            if fits_slot(copy, slot, child.page) && child.is_valid() {
                continue;
            }
            let guard = child.lock()?;
            // Unlink the child first, so that a retry skips it if a later child cannot be removed.
            if let Some(at) = self.slot_of(node.page, frame, child.page) {
                L::inner_set_child(node.page, at, address);
            }
            match self.remove_old(child, guard, address) {
                Some(free) => gone.push(free),
                None => {
                    self.arena.set_parent(frame, None);
                    return None;
                }
            }
            hot.remove(&address);
        }
        node.page.copy_all_but_latch(copy);
        node.page.set_note(0);
        for slot in 0..node.page.count() {
            if let Some(child) = hot.remove(&L::inner_child(node.page, slot)) {
                L::inner_set_child(node.page, slot, Swip::Frame(child).to_word());
            }
        }
        for child in hot.into_values() {
            self.arena.set_parent(child, None);
        }
        Some(gone)
    }

    /// Removes a cooling node from the cache. `None` while another thread is using it.
    pub(super) fn drop_cooling(
        &self,
        frame: FrameId,
        address: GlobalAddr,
    ) -> Option<FreeFrame<'_, L>> {
        let node = self.seen(frame)?;
        let guard = node.lock()?;
        let is_it =
            node.page.address() == address && self.arena.state(frame) == FrameState::Cooling;
        if !is_it || !self.cooling.remove(frame, address.to_bits()) {
            return None; // C8
        }
        Some(self.discard(frame, guard))
    }

    /// Publishes the root.
    pub fn publish_root<'a>(&'a self, free: FreeFrame<'a, L>, mark: RemoteIoMark<'a>) -> FrameId {
        self.publish(free, FrameState::Pinned, None, |frame| mark.publish(frame))
    }

    fn publish(
        &self,
        free: FreeFrame<'_, L>,
        state: FrameState,
        parent: Option<FrameId>,
        map: impl FnOnce(FrameId),
    ) -> FrameId {
        let frame = free.into_frame();
        self.arena.set_parent(frame, parent);
        self.arena.set_state(frame, state);
        map(frame);
        drop(self.arena.latch(frame).resume());
        frame
    }

    /// Redirects a request to cool `frame` to a descendant: it follows swizzled children to a node
    /// that has none (Lu et al., §5.3). It takes no latch, so the result is a guess.
    pub fn delegate(&self, frame: FrameId, random: u64) -> FrameId {
        let mut at = frame;
        let mut random = random;
        for _ in 0..MAX_LEVEL {
            let page = self.arena.page(at);
            let count = page.count();
            if page.level() == 0 || count == 0 {
                break;
            }
            let first = (random % count as u64) as usize;
            random = random.rotate_right(8);
            let child =
                (first..count).chain(0..first).find_map(|slot| match self.swip(page, slot) {
                    Some(Swip::Frame(child)) => Some(child),
                    _ => None,
                });
            match child {
                Some(child) => at = child,
                None => break,
            }
        }
        at
    }

    /// Lets the policy pick a frame to cool. The result is a guess.
    pub fn pick_victim(&self, random: u64) -> Option<FrameId> {
        let touched = self.touched() as u32;
        if touched == 0 {
            return None;
        }
        let frame = self.victims.pick(random, touched);
        let victim = match self.arena.state(frame) {
            FrameState::Hot | FrameState::Pinned => self.delegate(frame, random.rotate_left(32)),
            FrameState::Free | FrameState::Cooling => return None,
        };
        let page = self.arena.page(victim);
        // A leaf with the use mark is spared once: it loses the mark instead.
        if self.victims.spares_used() && page.is_marked() && page.level() == 0 {
            page.set_mark(false);
            return None;
        }
        Some(victim)
    }

    /// Lets a clean hot node without swizzled children cool.
    ///
    /// If `heeds_work_below` is true, the node stays hot while one of its children is being fetched
    /// or worked on remotely (C19). Only a planted bug passes false.
    pub fn cool(&self, frame: FrameId, heeds_work_below: bool) -> CoolOutcome {
        self.try_cool(frame, heeds_work_below).unwrap_or(CoolOutcome::NotNow)
    }

    fn try_cool(&self, frame: FrameId, heeds_work_below: bool) -> Option<CoolOutcome> {
        let node = self.seen(frame)?;
        if self.arena.state(frame) != FrameState::Hot || self.arena.is_writing(frame) {
            return None;
        }
        if !is_clean(node.page) {
            return Some(CoolOutcome::Dirty);
        }
        let named = self.arena.parent(frame);
        let parent = match named {
            Some(parent) => Some(self.seen(parent)?),
            None => None,
        };
        let parent_guard = match &parent {
            Some(parent) => Some(parent.lock()?),
            None => None,
        };
        let guard = node.lock()?;
        // Check again what was read before the latches were taken.
        if self.arena.parent(frame) != named || self.arena.is_writing(frame) {
            return None;
        }
        let has_hot_children = self.swizzled(node.page).next().is_some();
        if has_hot_children || (heeds_work_below && self.is_worked_below(node.page)) {
            return None; // C10, C19
        }
        let address = node.page.address();
        if let Some(parent) = parent
            && let Some(slot) = self.slot_of(parent.page, frame, node.page)
        {
            L::inner_set_child(parent.page, slot, address);
        }
        self.arena.set_state(frame, FrameState::Cooling);
        self.arena.set_parent(frame, None);
        drop(guard);
        drop(parent_guard);
        Some(CoolOutcome::Done(self.cooling.insert(frame, address.to_bits())))
    }

    /// Evicts the node in a frame that the caller has taken out of the cooling structure (C8).
    /// `None` while another thread has it latched. Notes the outline of a leaf, unless a planted
    /// bug `keeps_outline`.
    pub fn evict(&self, frame: FrameId, keeps_outline: bool) -> Option<FreeFrame<'_, L>> {
        let node = self.seen(frame)?;
        let guard = node.lock()?;
        debug_assert_eq!(self.arena.state(frame), FrameState::Cooling);
        debug_assert!(is_clean(node.page), "C11");
        if let Some(outlines) = &self.outlines
            && node.page.level() == 0
            && !keeps_outline
        {
            outlines.note(node.page.address(), L::leaf_outline(node.page));
        }
        Some(self.remove(frame, guard))
    }

    /// Removes every node but the root, and turns the root's child words back into addresses. Call
    /// it only when no operation is in flight and every node is clean. Returns whether that was the
    /// case.
    pub(crate) fn clear(&self) -> bool {
        if !self.unwritten_frames().is_empty() {
            return false;
        }
        self.forget_known();
        while self.cooling.pop(0).is_some() {}
        for number in 0..self.touched() as u32 {
            let frame = FrameId::new(number);
            let state = self.arena.state(frame);
            if state == FrameState::Free {
                continue;
            }
            let Some(node) = self.seen(frame) else { return false };
            let Some(guard) = node.lock() else { return false };
            if state == FrameState::Pinned {
                let swizzled: Vec<_> = self.swizzled(node.page).collect();
                for (slot, child) in swizzled {
                    L::inner_set_child(node.page, slot, self.arena.page(child).address());
                }
                continue;
            }
            drop(self.discard(frame, guard));
        }
        true
    }

    /// All frames that hold a node or are about to hold one.
    pub(crate) fn held_frames(&self) -> Vec<FrameId> {
        let held = |frame: &FrameId| self.arena.state(*frame) != FrameState::Free;
        (0..self.touched() as u32).map(FrameId::new).filter(held).collect()
    }

    /// Which part of the node in a frame lies in `range`, or `None` while another thread changes
    /// the node. The root always counts as reaching beyond the range.
    pub(crate) fn lies_in(
        &self,
        frame: FrameId,
        range: &OwnedRange<OwnedKey<L>>,
    ) -> Option<(OptimisticRef<'_, L>, Ownership)> {
        let node = self.seen(frame)?;
        let lies = range.of(&L::low(node.page), L::high(node.page).as_ref());
        let pinned = self.arena.state(frame) == FrameState::Pinned;
        let lies = if pinned && lies == Ownership::All { Ownership::Part } else { lies };
        node.is_valid().then_some((node, lies))
    }

    /// All frames with a node that is newer than the pool's copy at this moment.
    pub(crate) fn unwritten_frames(&self) -> Vec<FrameId> {
        let unwritten = |frame: &FrameId| self.is_unwritten(*frame);
        (0..self.touched() as u32).map(FrameId::new).filter(unwritten).collect()
    }

    /// Whether the node in a frame is dirty or a WRITE of it is in flight.
    pub(crate) fn is_unwritten(&self, frame: FrameId) -> bool {
        if !self.is_held(frame) {
            return false; // C11: a cooling node is clean
        }
        // A latched node is about to become dirty or to be written.
        let Some(node) = self.seen(frame) else { return true };
        let unwritten = !is_clean(node.page) || self.arena.is_writing(frame);
        unwritten || !node.is_valid()
    }

    /// Removes a latched node from the cache, whatever its state. Its frame becomes free and stays
    /// locked.
    pub fn discard(&self, frame: FrameId, guard: ExclusiveLatch<'_>) -> FreeFrame<'_, L> {
        if let Some(outlines) = &self.outlines {
            outlines.note(self.arena.page(frame).address(), None);
        }
        self.remove(frame, guard)
    }

    /// As [`FrameCache::discard`], when what is known of the leaf has been noted (C29).
    fn remove(&self, frame: FrameId, guard: ExclusiveLatch<'_>) -> FreeFrame<'_, L> {
        let mapped = self.mapping.remove(self.arena.page(frame).address().to_bits(), frame);
        debug_assert!(mapped, "C5");
        self.arena.set_state(frame, FrameState::Free);
        self.arena.set_parent(frame, None);
        // C11, or a merge that has written them elsewhere. Who waits for them need not look again.
        self.arena.set_written(frame, self.arena.last_change(frame));
        guard.keep();
        self.free_frame(frame)
    }
}
