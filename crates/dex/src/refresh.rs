//! Refreshing outdated copies of shared nodes by rereading them from the root down (Lu et al., §4).
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - D6. A copy never replaces a newer one, nor a leaf that has since been created in its page. Hot
//!   children stay in their frames: the new copy adopts those that it points to; the others have no
//!   parent until an operation reaches them.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use crate::cache::{FrameId, Restart, Swip};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::LiveCounters;
use farleaf_page::rules;
use farleaf_page::{DescentProbe, Layout, LockWord, Page};
use farleaf_pool::remote::TimedPointer;

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Rereads the shared nodes on the path of `probe`. Returns whether one had changed.
    pub(super) async fn refresh(&self, probe: DescentProbe<'_, L::Key>) -> Result<bool, Restart> {
        let cache = self.client.cache();
        let mut changed = false;
        let mut frame = self.root_frame;
        loop {
            let node = cache.seen(frame).ok_or(Restart::Busy)?;
            let address = node.page.address();
            let shared = self.server.shares(node.page);
            if !node.is_valid() {
                return Err(Restart::Busy);
            }
            // An exclusive node is current, but continue below it: there may be an old copy of a
            // node that was shared before another server split it and left an exclusive half.
            if shared {
                let copy = self.client.pages().read(TimedPointer::fixed(address)).await?;
                if self.install(frame, address, copy.page(), copy.word())? {
                    LiveCounters::count(&self.client.counters.refreshes);
                    changed = true;
                }
            }
            let node = cache.seen(frame).ok_or(Restart::Busy)?;
            let level = node.page.level();
            let slot = L::inner_slot(node.page, probe);
            let child = cache.swip(node.page, slot);
            if !node.is_valid() {
                return Err(Restart::Busy);
            }
            match child {
                Some(Swip::Frame(child)) if level > 1 => frame = child,
                _ => return Ok(changed),
            }
        }
    }

    /// Installs a copy of a shared node in its frame if it is newer than the frame's content (D6).
    /// Returns whether it was.
    pub(super) fn install(
        &self,
        frame: FrameId,
        address: GlobalAddr,
        copy: Page<'_, L>,
        word: LockWord,
    ) -> Result<bool, Restart> {
        let cache = self.client.cache();
        let node = cache.seen(frame).ok_or(Restart::Busy)?;
        let _guard = node.lock().ok_or(Restart::Busy)?;
        if node.page.address() != address || !cache.is_held(frame) {
            return Err(Restart::Busy);
        }
        // While the copy was in flight, this server may have freed the node and reallocated its
        // page. An inner node continues the version numbers of its page, but a leaf has none. The
        // root is never a leaf.
        if node.page.level() == 0 && !self.fabric().breaks(rules::LEAVES_STAY) {
            return Err(Restart::Busy);
        }
        let held = LockWord::from_bits(cache.arena().remote_word(frame));
        let newer = word.version() > held.version();
        let older = word.version() < held.version() && !self.fabric().breaks(rules::NEWER_STAYS);
        if older || word == held {
            return Ok(false);
        }
        let gone = cache.replace(node, copy).ok_or(Restart::Busy)?;
        cache.arena().set_remote_word(frame, word.to_bits());
        gone.into_iter().for_each(|free| self.client.keep(free));
        Ok(newer)
    }
}
