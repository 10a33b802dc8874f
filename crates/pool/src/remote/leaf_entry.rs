//! Log entries of leaves, for transports on which the death of a client can cut a WRITE short
//! ([`Fabric::tears`]): whatever a leaf was left as, it is completed before anyone reads it.
//!
//! ```text
//! one doorbell:  the entry, with the whole leaf   a mark instead of the leaf's stamp
//!                the changed words, with the mark  the stamp
//! ```
//!
//! The mark is the entry's checksum. So a leaf that was left half written names the entry that
//! completes it, whichever entries of other contents there are, and a leaf without such a mark is
//! whole, even if its entry is still there: what was written to it since then is not undone.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - ack.A2. A WRITE that could damage a leaf lands behind its entry and its mark, and before its
//!   stamp. The entry stays until the leaf is whole.
//! - ack.A3. Before anything of a leaf with a mark is served, the leaf gets the content of the
//!   entry. This WRITE, too, has the mark among its words, and the stamp comes last.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::identity::{MAX_SLOT_WAITS, RedoSlot, SLOT_WAIT_NS, WAITS_BEFORE_LOOK};
use super::pieces::{Pieces, pieces};
use super::redo::{Redo, RedoPage};
use super::{PageClient, PageImage, RemoteError};
use crate::wire::log_slot_bytes;
use farleaf_fabric::sync::Ordering;
use farleaf_fabric::{Fabric, FabricError, GlobalAddr};
use farleaf_page::rules;
use farleaf_page::{Layout, SIBLING_WORD};
use smallvec::SmallVec;
use std::ops::Range;

/// A page that a dead client has left half written, with its intended content.
#[derive(Debug)]
pub struct HalfWritten<L> {
    /// Its address.
    pub at: GlobalAddr,
    /// The content that it must get.
    pub image: PageImage<L>,
    /// Of a leaf: the mark that it has instead of its stamp.
    pub mark: Option<u64>,
}

/// WRITEs of a leaf, each with its address: `mark` in place of its stamp; `words` of it, with the
/// mark among them; its stamp.
fn marked<L: Layout>(
    at: GlobalAddr,
    after: &PageImage<L>,
    words: Range<usize>,
    mark: u64,
) -> [(GlobalAddr, Vec<u64>); 3] {
    let word = |index: usize| after.words()[index].load(Ordering::Relaxed);
    let with_mark = |index| if index == SIBLING_WORD { mark } else { word(index) };
    let place = |word: usize| at.plus(word as u64 * 8);
    [
        (place(SIBLING_WORD), vec![mark]),
        (place(words.start), words.map(with_mark).collect()),
        (place(SIBLING_WORD), vec![word(SIBLING_WORD)]),
    ]
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Takes a slot of this client's log for the entry of the leaf at `at`, without waiting. `None`
    /// if all are in use, or if there is no log. One slot is left for leaves that have one already,
    /// because their last WRITE has failed: their entries are never overwritten before they are
    /// whole, and such leaves can always be written again.
    pub fn try_leaf_slot(&self, at: GlobalAddr) -> Option<RedoSlot<'_>> {
        let spare = usize::from(!self.identity.is_pinned_for_leaf(at.server(), at));
        self.identity.take(at.server(), log_slot_bytes::<L>(), spare)
    }

    /// Takes such a slot; this client must have a log on the leaf's server. Waits while all are in
    /// use.
    ///
    /// # Errors
    /// [`RemoteError::Contended`] if they stay in use for too long.
    pub async fn leaf_slot(&self, at: GlobalAddr) -> Result<RedoSlot<'_>, RemoteError> {
        for waits in 0..MAX_SLOT_WAITS {
            if let Some(slot) = self.try_leaf_slot(at) {
                return Ok(slot);
            }
            match waits.is_multiple_of(WAITS_BEFORE_LOOK) {
                true => self.unpin_whole(at.server()).await?,
                false => self.fabric().sleep(SLOT_WAIT_NS).await,
            }
        }
        Err(RemoteError::Contended { retries: MAX_SLOT_WAITS })
    }

    /// Posts the WRITEs of `words` of a leaf that no other client reads or changes, behind an entry
    /// in `slot` (ack.A2). `after` has the leaf's stamp in word 5. The slot stays pinned until it
    /// is done.
    ///
    /// # Errors
    /// [`FabricError`] if too few buffers are free; nothing is posted in that case.
    pub fn post_leaf_logged(
        &self,
        slot: &mut RedoSlot<'_>,
        at: GlobalAddr,
        after: &PageImage<L>,
        words: Range<usize>,
    ) -> Result<Pieces<F>, FabricError> {
        let pages = vec![RedoPage::of_leaf(at, after.page())];
        let entry = Redo { owner: slot.owner(), pages }.words();
        let mark = entry[0];
        let logged = pieces(entry.len()).rev().map(|piece| {
            (slot.at.plus(piece.start as u64 * 8), entry[piece].to_vec()) // R4
        });
        let mut writes: SmallVec<[_; 6]> = logged.collect();
        if self.fabric().breaks(rules::LEAVES_MARKED) {
            let [_, body, _] = marked(at, after, words, after.page().stamp());
            writes.push(body);
        } else {
            writes.extend(marked(at, after, words, mark));
        }
        let posted = self.post_each(writes)?;
        slot.pin_marked(at, mark);
        Ok(posted)
    }

    /// Posts the WRITEs of `words` of a leaf that no other client reads or changes. It has `mark`
    /// in place of its stamp until all of them have landed. `after` has the stamp in word 5.
    ///
    /// # Errors
    /// As [`PageClient::post_leaf_logged`].
    pub fn post_marked(
        &self,
        at: GlobalAddr,
        after: &PageImage<L>,
        words: Range<usize>,
        mark: u64,
    ) -> Result<Pieces<F>, FabricError> {
        self.post_each(marked(at, after, words, mark))
    }

    /// Posts all of `writes` in this order, or none.
    fn post_each(
        &self,
        writes: impl IntoIterator<Item = (GlobalAddr, Vec<u64>)>,
    ) -> Result<Pieces<F>, FabricError> {
        let with_buffer = |(at, words): (GlobalAddr, Vec<u64>)| {
            Ok((self.fabric().buffer(words.len() * 8)?, at, words))
        };
        let writes = writes.into_iter().map(with_buffer);
        let writes = writes.collect::<Result<SmallVec<[_; 6]>, FabricError>>()?;
        let mut posted = Pieces::none();
        for (buffer, at, words) in writes {
            posted.post(self.fabric(), (at, &words), 0..words.len(), buffer);
        }
        Ok(posted)
    }
}
