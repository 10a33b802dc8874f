//! Reading a leaf that is written entry by entry without its checks: by its lock's word, before and
//! after.
//!
//! *Invariant* entries.V1. Where entry locks have versions, the word of a free lock is that of the
//! last acquisition without its locked bit, which no other acquisition has. So if a READ of the
//! lock before that of the leaf and one after it find the same free word, no client had the lock in
//! between, and none has changed the leaf. The three READs follow one another.
//!
//! A root that is a leaf may become an inner page, which clears its entry lock. So the root is read
//! by its checks.
//!
//! After Lu et al., *DEX* (VLDB 2024), whose copy of Sherman reads leaves like this, but accepts
//! one that has changed if its lock is free at the end.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::EntryTree;
use crate::entry_lock::entry_lock_of;
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_page::rules;
use farleaf_page::{Layout, LockWord};
use farleaf_pool::remote::{Backoff, MissCause, PageCopy, REREADS};

impl<F: Fabric, L: Layout> EntryTree<F, L> {
    /// READs the leaf at `at`, which is no root: three READs, unless it changes meanwhile. An inner
    /// page is not expected there, and is not returned.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the leaf keeps changing, or if there is none.
    pub(super) async fn read_between_versions(
        &self,
        at: GlobalAddr,
    ) -> Result<PageCopy<L>, MissCause> {
        let pages = &self.tree.pages;
        let mut backoff = Backoff::default();
        for _ in 0..REREADS {
            let before = pages.read_words(entry_lock_of(at), 8).await?.get(0);
            let copy = pages.read_raw(at).await?;
            let after = pages.read_words(entry_lock_of(at), 8).await?.get(0);
            let changed = before != after;
            let held = [before, after].map(LockWord::from_bits);
            let held = held.into_iter().find(|word| word.is_locked());
            let refused = match pages.fabric().breaks(rules::VERSIONS_OR_LOCKS) {
                true => changed && held.is_some(),
                false => changed || held.is_some(),
            };
            let page = copy.page();
            let is_leaf = page.level() == 0 && page.has_whole_header() && page.address() == at;
            if is_leaf && !refused {
                return Ok(copy);
            }
            if let Some(word) = held {
                pages.note_suspect(at, word);
            }
            pages.fabric().counters().count_retry();
            backoff.count();
            backoff.wait(pages.fabric()).await;
        }
        Err(MissCause::Restart)
    }
}
