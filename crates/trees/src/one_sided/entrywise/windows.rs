//! READs of parts of leaves: the window of a key ([`Layout::record_window`]), and the place of one
//! record ([`Layout::record_place`]).
//!
//! A window has what a lookup needs: the entries that can hold the key, and a replica of the leaf's
//! version and high fence. If it is torn, or from another page, the caller READs the whole leaf,
//! which also finds out about locks and dead holders.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::EntryTree;
use farleaf_fabric::sync::Ordering;
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr};
use farleaf_page::rules;
use farleaf_page::{Layout, LockWord, OwnedValue};
use farleaf_pool::remote::{PageImage, RemoteError};
use std::ops::Range;

/// A READ of some words of a leaf in flight.
pub(super) struct PendingPart<F: Fabric> {
    at: GlobalAddr,
    words: Range<usize>,
    operation: F::Op<Buffer>,
}

/// Where a record was in a version of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordPlace {
    /// The leaf.
    pub(super) leaf: GlobalAddr,
    /// Its words.
    pub(super) words: Range<usize>,
    /// The leaf's word 0 when the record was there.
    pub(super) version: LockWord,
}

impl<F: Fabric, L: Layout> EntryTree<F, L> {
    /// Posts a READ of some words of the leaf at `at`. `None` if no buffer is free.
    fn post_part(
        &self,
        at: GlobalAddr,
        words: Range<usize>,
    ) -> Result<Option<PendingPart<F>>, RemoteError> {
        match self.tree.pages.fabric().buffer(words.len() * 8) {
            Ok(buffer) => {
                let operation =
                    self.tree.pages.fabric().read(at.plus(words.start as u64 * 8), buffer);
                Ok(Some(PendingPart { at, words, operation }))
            }
            Err(FabricError::NoBuffer { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a READ, and puts its words at their places in a page of zeros. `None` if the
    /// outcome is unknown.
    async fn finish_part(
        &self,
        pending: PendingPart<F>,
    ) -> Result<Option<PageImage<L>>, RemoteError> {
        let buffer = match pending.operation.await {
            Ok(buffer) => buffer,
            Err(FabricError::Indeterminate { .. } | FabricError::QueueFull { .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let image = PageImage::empty();
        for (to, word) in image.words()[pending.words].iter().zip(buffer.words()) {
            to.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(Some(image))
    }

    /// Posts a READ of the window of `key` in the leaf at `at`. `None` if no buffer is free.
    pub(super) fn post_window(
        &self,
        at: GlobalAddr,
        key: &L::Key,
    ) -> Result<Option<PendingPart<F>>, RemoteError> {
        self.post_part(at, L::record_window(key))
    }

    /// Waits for a READ of the window of `key`, and makes a page of it. `None` if the window is not
    /// whole, or if the outcome is unknown.
    pub(super) async fn finish_window(
        &self,
        pending: PendingPart<F>,
        key: &L::Key,
    ) -> Result<Option<PageImage<L>>, RemoteError> {
        let at = pending.at;
        let Some(image) = self.finish_part(pending).await? else { return Ok(None) };
        let unchecked = self.tree.pages.fabric().breaks(rules::ENTRIES_CHECKED);
        let is_whole = L::open_window(image.page(), at, key, unchecked);
        if !is_whole {
            self.tree.pages.fabric().counters().count_retry();
        }
        Ok(is_whole.then_some(image))
    }

    /// READs the window of `key` in the leaf at `at`, as [`EntryTree::finish_window`].
    pub(super) async fn read_window(
        &self,
        at: GlobalAddr,
        key: &L::Key,
    ) -> Result<Option<PageImage<L>>, RemoteError> {
        match self.post_window(at, key)? {
            Some(pending) => self.finish_window(pending, key).await,
            None => Ok(None),
        }
    }

    /// READs the place of a record. Returns its value if the record is still there, in the same
    /// version of the leaf: then that leaf is still the key's.
    pub(super) async fn read_record(
        &self,
        place: &RecordPlace,
        key: &L::Key,
    ) -> Result<Option<OwnedValue<L>>, RemoteError> {
        let Some(pending) = self.post_part(place.leaf, place.words.clone())? else {
            return Ok(None);
        };
        let Some(image) = self.finish_part(pending).await? else { return Ok(None) };
        image.words()[0].store(place.version.to_bits(), Ordering::Relaxed);
        if self.tree.pages.fabric().breaks(rules::HOT_CHECKED) {
            L::seal_entries(image.page());
        }
        Ok(L::leaf_get(image.page(), key))
    }
}
