//! Shared nodes that have become old, read again from the root down (Lu et al., §4).
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - D6. A copy never replaces a newer one. Children that are hot stay where they are: those that the new copy
//!   points to are pointed to by it, the others have no parent until somebody comes by.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use crate::cache::{Detour, Discipline, FrameId, LiveCounters, Swip};
use crate::page::{Layout, LockWord, Page, Probe};
use crate::remote::Pointer;
use farleaf_fabric::{Fabric, GlobalAddr};
use std::collections::BTreeMap;

impl<F: Fabric, L: Layout, D: Discipline> DexIndex<F, L, D> {
    /// Reads the shared nodes on the way of `probe` again; says whether one had changed.
    pub(super) async fn refresh(&self, probe: Probe<'_, L::Key>) -> Result<bool, Detour> {
        let cache = self.client.cache();
        let mut changed = false;
        let mut frame = self.root_frame;
        loop {
            let node = cache.seen(frame).ok_or(Detour::Busy)?;
            let address = node.page.address();
            let shared = self.server.shares(node.page);
            if !node.is_valid() {
                return Err(Detour::Busy);
            }
            // An exclusive node is as we have it, but an old copy of a shared one can be below it: another has
            // split that since, and what is left of it is exclusive.
            if shared {
                let copy = self.client.pages().read(Pointer::fixed(address)).await?;
                if self.install(frame, address, copy.page(), copy.word())? {
                    LiveCounters::count(&self.client.counters.refreshes);
                    changed = true;
                }
            }
            let node = cache.seen(frame).ok_or(Detour::Busy)?;
            let level = node.page.level();
            let slot = L::inner_slot(node.page, probe);
            let child = cache.swip(node.page, slot);
            if !node.is_valid() {
                return Err(Detour::Busy);
            }
            match child {
                Some(Swip::Frame(child)) if level > 1 => frame = child,
                _ => return Ok(changed),
            }
        }
    }

    /// Puts a copy of a shared node into its frame, if it is newer than what is there (D6).
    pub(super) fn install(
        &self,
        frame: FrameId,
        address: GlobalAddr,
        copy: Page<'_, L>,
        word: LockWord,
    ) -> Result<bool, Detour> {
        let cache = self.client.cache();
        let node = cache.seen(frame).ok_or(Detour::Busy)?;
        let _guard = node.lock().ok_or(Detour::Busy)?;
        if node.page.address() != address || !cache.is_held(frame) {
            return Err(Detour::Busy);
        }
        let held = LockWord::from_bits(cache.arena().remote_word(frame));
        if word.version() < held.version() || word == held {
            return Ok(false);
        }
        let mut hot: BTreeMap<GlobalAddr, FrameId> = cache
            .swizzled(node.page)
            .map(|(_, child)| (cache.arena().page(child).address(), child))
            .collect();
        let newer = word.version() > held.version();
        node.page.copy_all_but_latch(copy);
        node.page.set_note(0);
        cache.arena().set_remote_word(frame, word.to_bits());
        for slot in 0..node.page.count() {
            if let Some(child) = hot.remove(&L::inner_child(node.page, slot)) {
                L::inner_set_child(node.page, slot, Swip::Frame(child).to_word());
            }
        }
        for child in hot.into_values() {
            cache.arena().set_parent(child, None);
        }
        Ok(newer)
    }
}
