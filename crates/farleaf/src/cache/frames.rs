//! The cache of one compute server: what can be done to frames without the network.
//!
//! *Invariants*
//! - C9. A hot node that a parent in the cache points to is pointed to by one child word only; its header names
//!   that parent. The hint changes only under the latch of the parent that it names, or under the node's own
//!   while it names none.
//! - C10. A node with swizzled children does not cool: hot nodes form paths from the root.
//! - C11. A cooling node is clean, and no WRITE of it is in flight.
//! - C12. All latches here are tried, never waited for; what cannot be had now is for the caller to try again.
//!
//! *Thread safety*: any number of threads.

use super::{
    Admission, Ages, Arena, CacheOptions, Cooling, FrameId, FrameState, IoMark, Mapped, Mapping,
    OffloadName, Owned, OwnedRange, Ownership, Swip, Turns, Victims, is_clean,
};
use crate::page::{Exclusive, Layout, MAX_LEVEL, Page, Probe, Version, lies_within, slot_range};
use crate::remote::Detector;
use crate::remote::Image;
use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{GlobalAddr, RegionError};
use std::collections::{BTreeMap, BTreeSet};

/// The frames of one compute server, and what finds them.
#[derive(Debug)]
pub struct Cache<L: Layout> {
    arena: Arena<L>,
    pub(super) mapping: Mapping,
    pub(super) cooling: Box<dyn Cooling>,
    pub(super) victims: Box<dyn Victims>,
    pub(super) admission: Box<dyn Admission>,
    /// Free frames that no handle keeps; locked (C2).
    free: Mutex<Vec<FrameId>>,
    /// Frames from here on have never been used.
    fresh: AtomicU64,
    /// The keys whose leaves may come here (C20).
    owned: Owned<L::Key>,
    /// Since when nodes have been dirty.
    ages: Ages,
    /// Of operations that have lost too often.
    turns: Turns,
    /// Which memory servers can be reached.
    detector: Detector,
    options: CacheOptions,
}

/// A node that was found, with the version that it was found under.
#[derive(Debug)]
pub struct OptimisticRef<'a, L: Layout> {
    /// Its frame.
    pub frame: FrameId,
    /// Its words. What is read is to be trusted only once the version has been validated.
    pub page: Page<'a, L>,
    version: Version,
}

impl<L: Layout> Clone for OptimisticRef<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Layout> Copy for OptimisticRef<'_, L> {}

impl<'a, L: Layout> OptimisticRef<'a, L> {
    /// Whether all that was read of the page since is of one piece and was still so just now.
    #[inline]
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.page.latch().validate(self.version)
    }

    /// Latches the node, if it is still as it was seen.
    #[inline]
    pub fn lock(&self) -> Option<Exclusive<'a>> {
        self.page.latch().try_lock(self.version, 0)
    }
}

/// What of a cache the pool does not have yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dirt {
    /// The bytes of the nodes that have changed.
    pub bytes: u64,
    /// For how long one of them has been dirty at most, in nanoseconds; 0 if nodes are not written back by age.
    pub oldest_ns: u64,
}

/// A free frame in the hands of one operation; dropped, it is free for others.
#[derive(Debug)]
pub struct FreeFrame<'a, L: Layout> {
    cache: &'a Cache<L>,
    frame: FrameId,
}

impl<'a, L: Layout> FreeFrame<'a, L> {
    /// The frame.
    pub fn frame(&self) -> FrameId {
        self.frame
    }

    /// Its page, which nobody else reads or changes.
    pub fn page(&self) -> Page<'a, L> {
        self.cache.arena.page(self.frame)
    }

    /// The frame, which whoever asks is responsible for now: locked, as it was.
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

/// Whether a child lies within what its parent leads to it for.
fn fits_slot<L: Layout>(parent: Page<'_, L>, slot: usize, child: Page<'_, L>) -> bool {
    let (from, to) = slot_range(parent, slot);
    let (low, high) = (L::low(child), L::high(child));
    lies_within((&low, high.as_ref()), (&from, to.as_ref()))
}

/// What came of an attempt to let a node cool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooled {
    /// It cools; this frame, the oldest, has to go for it.
    Done(Option<FrameId>),
    /// It must be written back first.
    Dirty,
    /// Somebody is at it, or it is no node that can cool.
    NotNow,
}

/// What came of an attempt to let a parent point to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// It is hot now; it was cooling before, or was not.
    Hot {
        /// Whether it was cooling.
        reheated: bool,
    },
    /// It is another node by now, or reaches beyond what the parent leads to it for: one of the two is old.
    Other,
    /// Somebody is at one of the two.
    NotNow,
}

impl<L: Layout> Cache<L> {
    /// An empty cache for leaves of these keys.
    ///
    /// # Errors
    /// [`RegionError`] if the memory is not to be had.
    pub fn new(options: &CacheOptions, owned: OwnedRange<L::Key>) -> Result<Self, RegionError> {
        let frames = options.frames(L::PAGE_WORDS * 8);
        Ok(Self {
            arena: Arena::new(frames)?,
            mapping: Mapping::new(frames as usize),
            cooling: options.new_cooling(frames),
            victims: options.new_victims(),
            admission: options.new_admission(),
            free: Mutex::default(),
            fresh: AtomicU64::new(0),
            owned: Owned::new(owned),
            ages: Ages::new(options.write_back_ns, frames),
            turns: Turns::new(frames),
            detector: Detector::default(),
            options: *options,
        })
    }

    /// The frames.
    #[inline]
    pub fn arena(&self) -> &Arena<L> {
        &self.arena
    }

    /// The keys whose leaves may come here.
    #[inline]
    pub fn owned(&self) -> &Owned<L::Key> {
        &self.owned
    }

    /// The table of nodes.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The structure of those that cool.
    pub fn cooling(&self) -> &dyn Cooling {
        &*self.cooling
    }

    /// Since when nodes have been dirty, if they are written back by age.
    pub(crate) fn ages(&self) -> &Ages {
        &self.ages
    }

    /// Turns of operations that have lost too often.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Which memory servers can be reached, as far as is known.
    pub fn detector(&self) -> &Detector {
        &self.detector
    }

    /// What the pool does not have yet, as of now by a fabric's clock.
    pub fn dirt(&self, now_ns: u64) -> Dirt {
        let page_bytes = L::PAGE_WORDS as u64 * 8;
        if self.ages.limit_ns() == 0 {
            let frames = self.unwritten_frames().len() as u64;
            return Dirt { bytes: frames * page_bytes, oldest_ns: 0 };
        }
        let queued = self.ages.queued().into_iter();
        let dirty =
            queued.filter(|(_, frame)| self.is_unwritten(*frame)).map(|(since_ns, _)| since_ns);
        let (frames, oldest) = dirty.fold((0, now_ns), |(count, oldest): (u64, u64), since_ns| {
            (count + 1, oldest.min(since_ns))
        });
        Dirt { bytes: frames * page_bytes, oldest_ns: now_ns - oldest }
    }

    /// The choices that it was made with.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// Free frames that a handle may keep for itself: few enough that all handles together never have
    /// more than a small part.
    pub(super) fn keep_limit(&self) -> usize {
        (self.arena.frames() as usize / 1024).min(8)
    }

    /// Bytes of frames that are in use.
    pub fn used_bytes(&self) -> u64 {
        let free = lock(&self.free).len() as u64;
        (self.touched().saturating_sub(free)) * L::PAGE_WORDS as u64 * 8
    }

    /// Frames that have ever been used.
    fn touched(&self) -> u64 {
        self.fresh.load(Ordering::Relaxed).min(self.arena.frames().into())
    }

    /// Whether some frames have never been used.
    pub(super) fn is_filling(&self) -> bool {
        self.touched() < self.arena.frames().into()
    }

    /// A free frame, if there is one.
    pub fn take_spare(&self) -> Option<FreeFrame<'_, L>> {
        if let Some(frame) = lock(&self.free).pop() {
            return Some(self.spare(frame));
        }
        if self.touched() == u64::from(self.arena.frames()) {
            return None;
        }
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        let frame = FrameId::new(u32::try_from(number).ok().filter(|n| *n < self.arena.frames())?);
        let latch = self.arena.latch(frame);
        // Nobody knows the frame, but a sampler may look at it.
        let guard = latch.optimistic().and_then(|version| latch.try_lock(version, 0))?;
        guard.keep();
        Some(self.spare(frame))
    }

    /// A free, locked frame that the caller owns.
    pub(super) fn spare(&self, frame: FrameId) -> FreeFrame<'_, L> {
        debug_assert_eq!(self.arena.state(frame), FrameState::Free);
        FreeFrame { cache: self, frame }
    }

    pub(super) fn give_free(&self, frame: FrameId) {
        debug_assert_eq!(self.arena.state(frame), FrameState::Free);
        lock(&self.free).push(frame);
    }

    /// A frame's page and version; nothing while it is locked.
    #[inline]
    pub fn seen(&self, frame: FrameId) -> Option<OptimisticRef<'_, L>> {
        let page = self.arena.page(frame);
        let version = page.latch().optimistic()?;
        Some(OptimisticRef { frame, page, version })
    }

    /// Whether a frame holds a page that is not cooling; under its latch.
    pub(crate) fn is_held(&self, frame: FrameId) -> bool {
        matches!(self.arena.state(frame), FrameState::Hot | FrameState::Pinned)
    }

    /// What the child word at `slot` of an inner page says.
    #[inline]
    pub fn swip(&self, page: Page<'_, L>, slot: usize) -> Option<Swip> {
        Swip::of_word(L::inner_child(page, slot), self.arena.frames())
    }

    /// The frames of an inner page's swizzled children, with their slots. Under its latch.
    pub fn swizzled(&self, page: Page<'_, L>) -> impl Iterator<Item = (usize, FrameId)> {
        let count = if page.level() > 0 { page.count() } else { 0 };
        (0..count).filter_map(move |slot| match self.swip(page, slot) {
            Some(Swip::Frame(frame)) => Some((slot, frame)),
            _ => None,
        })
    }

    /// A copy of a page as the pool has it, or will: no frames in its child words, no note, and nothing left over where an
    /// inner page has no entries. Under its latch;
    /// word 0 is whatever the frame has.
    pub fn image(&self, page: Page<'_, L>) -> Image<L> {
        let image = Image::of(page);
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

    /// Lets all swizzled children of an inner page name `frame`, the page's, as their parent. Under its
    /// latch and that of the parent before.
    pub fn adopt(&self, frame: FrameId) {
        for (_, child) in self.swizzled(self.arena.page(frame)) {
            self.arena.set_parent(child, Some(frame));
        }
    }

    /// The slot of `parent` that points to `frame`, the frame of `page`. Under both latches.
    fn slot_of(&self, parent: Page<'_, L>, frame: FrameId, page: Page<'_, L>) -> Option<usize> {
        if parent.level() != page.level() + 1 {
            return None;
        }
        let low = L::low(page);
        let likely = L::inner_slot(parent, Probe::At(&low));
        let points_here = |slot: usize| self.swip(parent, slot) == Some(Swip::Frame(frame));
        if points_here(likely) {
            return Some(likely);
        }
        (0..parent.count()).find(|slot| points_here(*slot))
    }

    /// Lets `parent` point to the node at `address`, which is in `frame`, from `slot`.
    pub fn attach(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        frame: FrameId,
    ) -> Attached {
        self.try_attach(parent, slot, address, frame).unwrap_or(Attached::NotNow)
    }

    fn try_attach(
        &self,
        parent: OptimisticRef<'_, L>,
        slot: usize,
        address: GlobalAddr,
        frame: FrameId,
    ) -> Option<Attached> {
        let child = self.seen(frame)?;
        let _parent_guard = parent.lock()?;
        let _child_guard = child.lock()?;
        if child.page.address() != address || L::inner_child(parent.page, slot) != address {
            return None;
        }
        if child.page.level() + 1 != parent.page.level()
            || !fits_slot(parent.page, slot, child.page)
        {
            return Some(Attached::Other);
        }
        let reheated = match self.arena.state(frame) {
            FrameState::Cooling => {
                // C8: if it is not there, somebody is about to evict it.
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
        Some(Attached::Hot { reheated })
    }

    /// A hot node may still be pointed to by another parent, whose copy is old (C9).
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

    /// Publishes a page that has been brought into a spare frame, hot below `parent`, if that still points to it from
    /// this slot: other children may have come below it meanwhile.
    ///
    /// # Errors
    /// What it was given, untouched.
    pub fn publish_hot<'a>(
        &'a self,
        spare: FreeFrame<'a, L>,
        mark: IoMark<'a>,
        parent: OptimisticRef<'_, L>,
        slot: usize,
    ) -> Result<(), (FreeFrame<'a, L>, IoMark<'a>)> {
        let guard = parent.lock().or_else(|| self.lock_again(parent.frame, slot, spare.page()));
        let Some(_guard) = guard else { return Err((spare, mark)) };
        debug_assert_eq!(L::inner_child(parent.page, slot), spare.page().address());
        let frame = self.publish(spare, FrameState::Hot, Some(parent.frame), |frame| {
            mark.publish(frame);
        });
        L::inner_set_child(parent.page, slot, Swip::Frame(frame).to_word());
        Ok(())
    }

    /// Latches a node that has changed since it was seen, if it leads to `child` from this slot and can have hot
    /// children.
    fn lock_again(
        &self,
        parent: FrameId,
        slot: usize,
        child: Page<'_, L>,
    ) -> Option<Exclusive<'_>> {
        let seen = self.seen(parent)?;
        let guard = seen.lock()?;
        let leads = matches!(self.arena.state(parent), FrameState::Hot | FrameState::Pinned)
            && seen.page.level() == child.level() + 1
            && slot < seen.page.count()
            && L::inner_child(seen.page, slot) == child.address()
            && fits_slot(seen.page, slot, child);
        leads.then_some(guard)
    }

    /// Publishes a page as hot though no parent points to it: it is dirty, or its parent has changed. Whoever
    /// comes by will attach it.
    pub fn publish_detached<'a>(&'a self, spare: FreeFrame<'a, L>, mark: IoMark<'a>) {
        self.publish(spare, FrameState::Hot, None, |frame| mark.publish(frame));
    }

    /// Publishes a clean page as a candidate for eviction; returns the frame that has to go for it.
    pub fn publish_cold<'a>(
        &'a self,
        spare: FreeFrame<'a, L>,
        mark: IoMark<'a>,
    ) -> Option<FrameId> {
        debug_assert!(is_clean(spare.page()), "C11");
        let id = spare.page().address().to_bits();
        let frame = self.publish(spare, FrameState::Cooling, None, |frame| mark.publish(frame));
        self.cooling.insert(frame, id)
    }

    /// Publishes a page that nobody has known before, hot below the page in the frame `parent`, which is latched
    /// and made to point to it.
    pub fn publish_new<'a>(
        &'a self,
        spare: FreeFrame<'a, L>,
        mark: IoMark<'a>,
        parent: FrameId,
    ) -> FrameId {
        self.publish(spare, FrameState::Hot, Some(parent), |frame| mark.publish(frame))
    }

    /// Takes a node out of the cache that others have lost: they made it theirs alone while this compute server kept a
    /// copy from when it was shared, and freed it. Its children that are hot have no parent from then on. `None`
    /// while somebody is at it.
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
        let spare = self.remove_old(node, guard, address)?;
        if let Some(parent) = parent
            && let Some(slot) = self.slot_of(parent.page, frame, node.page)
        {
            L::inner_set_child(parent.page, slot, address);
        }
        Some(spare)
    }

    /// Takes a latched node out of the cache that is clean and that nobody works below. Its children that are hot have no
    /// parent from then on.
    fn remove_old(
        &self,
        node: OptimisticRef<'_, L>,
        guard: Exclusive<'_>,
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

    /// Whether a child of a latched node is being brought or worked on remotely (C19). Nobody can begin that meanwhile:
    /// who does looks whether the parent is as it was.
    pub(crate) fn is_worked_below(&self, page: Page<'_, L>) -> bool {
        let guarded = self.options.offload != OffloadName::Never && page.level() > 0;
        guarded && (0..page.count()).any(|slot| self.is_worked_on(L::inner_child(page, slot)))
    }

    fn is_worked_on(&self, child: GlobalAddr) -> bool {
        !child.is_swizzled() && self.mapping.get(child.to_bits()) == Mapped::Io
    }

    /// Replaces a latched node that has been shared by a newer copy (D6). Hot children stay where the copy still leads
    /// to them; others have no parent from then on, and those that are old themselves leave. `None` while somebody
    /// is at one of those.
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
            // What has left is not looked at again if another cannot.
            if let Some(at) = self.slot_of(node.page, frame, child.page) {
                L::inner_set_child(node.page, at, address);
            }
            match self.remove_old(child, guard, address) {
                Some(spare) => gone.push(spare),
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

    /// Takes a cooling node out of the cache; `None` while somebody is at it.
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
    pub fn publish_root<'a>(&'a self, spare: FreeFrame<'a, L>, mark: IoMark<'a>) -> FrameId {
        self.publish(spare, FrameState::Pinned, None, |frame| mark.publish(frame))
    }

    fn publish(
        &self,
        spare: FreeFrame<'_, L>,
        state: FrameState,
        parent: Option<FrameId>,
        map: impl FnOnce(FrameId),
    ) -> FrameId {
        let frame = spare.into_frame();
        self.arena.set_parent(frame, parent);
        self.arena.set_state(frame, state);
        map(frame);
        drop(self.arena.latch(frame).resume());
        frame
    }

    /// Where a request to cool goes from `frame`: down swizzled children to one that has none (Lu et al., §5.3).
    /// What it says is a guess.
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

    /// A frame to cool, picked by the policy; a guess.
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
        if self.victims.spares_used() && page.is_marked() && page.level() == 0 {
            page.set_mark(false);
            return None;
        }
        Some(victim)
    }

    /// Lets a clean hot node without swizzled children cool.
    ///
    /// With `heeds_work_below` it stays while one of its children is being brought or worked on (C19); only a planted
    /// bug asks otherwise.
    pub fn cool(&self, frame: FrameId, heeds_work_below: bool) -> Cooled {
        self.try_cool(frame, heeds_work_below).unwrap_or(Cooled::NotNow)
    }

    fn try_cool(&self, frame: FrameId, heeds_work_below: bool) -> Option<Cooled> {
        let node = self.seen(frame)?;
        if self.arena.state(frame) != FrameState::Hot || self.arena.is_writing(frame) {
            return None;
        }
        if !is_clean(node.page) {
            return Some(Cooled::Dirty);
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
        // What was looked at before the latches.
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
        Some(Cooled::Done(self.cooling.insert(frame, address.to_bits())))
    }

    /// Takes a node out of the cache whose frame has been taken out of the cooling structure (C8); `None` while
    /// somebody looks at it.
    pub fn evict(&self, frame: FrameId) -> Option<FreeFrame<'_, L>> {
        let node = self.seen(frame)?;
        let guard = node.lock()?;
        debug_assert_eq!(self.arena.state(frame), FrameState::Cooling);
        debug_assert!(is_clean(node.page), "C11");
        Some(self.discard(frame, guard))
    }

    /// Empties the cache of all but the root, which points to no frame any more. For when nothing is under way
    /// and all is clean; says whether that was so.
    pub(crate) fn clear(&self) -> bool {
        if !self.unwritten_frames().is_empty() {
            return false;
        }
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

    /// Every frame that holds a node, or is about to.
    pub(crate) fn held_frames(&self) -> Vec<FrameId> {
        let held = |frame: &FrameId| self.arena.state(*frame) != FrameState::Free;
        (0..self.touched() as u32).map(FrameId::new).filter(held).collect()
    }

    /// How much of the node in a frame lies in a range of keys; `None` while somebody is at it. The root is always
    /// taken to reach beyond.
    pub(crate) fn lies_in(
        &self,
        frame: FrameId,
        range: &OwnedRange<L::Key>,
    ) -> Option<(OptimisticRef<'_, L>, Ownership)> {
        let node = self.seen(frame)?;
        let lies = range.of(&L::low(node.page), L::high(node.page).as_ref());
        let pinned = self.arena.state(frame) == FrameState::Pinned;
        let lies = if pinned && lies == Ownership::All { Ownership::Part } else { lies };
        node.is_valid().then_some((node, lies))
    }

    /// Every frame whose node the pool does not have as it is, at this moment.
    pub(crate) fn unwritten_frames(&self) -> Vec<FrameId> {
        let unwritten = |frame: &FrameId| self.is_unwritten(*frame);
        (0..self.touched() as u32).map(FrameId::new).filter(unwritten).collect()
    }

    /// Whether the node in a frame is dirty, or a WRITE of it is in flight.
    pub(crate) fn is_unwritten(&self, frame: FrameId) -> bool {
        if !self.is_held(frame) {
            return false; // a node that cools is clean
        }
        // A latched one is about to be the one or the other.
        let Some(node) = self.seen(frame) else { return true };
        let unwritten = !is_clean(node.page) || self.arena.is_writing(frame);
        unwritten || !node.is_valid()
    }

    /// Takes a latched node out of the cache, whatever its state; its frame is free, and stays locked.
    pub fn discard(&self, frame: FrameId, guard: Exclusive<'_>) -> FreeFrame<'_, L> {
        let mapped = self.mapping.remove(self.arena.page(frame).address().to_bits(), frame);
        debug_assert!(mapped, "C5");
        self.arena.set_state(frame, FrameState::Free);
        self.arena.set_parent(frame, None);
        guard.keep();
        self.spare(frame)
    }
}
