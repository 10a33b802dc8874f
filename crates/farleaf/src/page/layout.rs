//! What a layout of pages must be able to do. Indexes and servers are generic over it; keys and values
//! of another kind are another implementation of [`Layout`] and change nothing else.

use super::view::Page;
use farleaf_fabric::{GlobalAddr, Message};
use std::fmt::Debug;
use std::ops::{Bound, Range};

/// What a descent looks for.
#[derive(Debug)]
pub enum Probe<'k, K> {
    /// The node that covers this key.
    At(&'k K),
    /// The node that covers the keys just below this one. There is none below the smallest key.
    Before(&'k K),
    /// The rightmost node.
    Last,
}

// Derived, these would ask for a copyable key.
impl<K> Clone for Probe<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Probe<'_, K> {}

/// Where a probe lies with respect to a page's fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencePosition {
    /// Left of the low fence: whoever came here was misled.
    Below,
    /// Between the fences.
    Inside,
    /// At or right of the high fence: the right sibling knows more.
    Beyond,
}

/// What became of an insertion into a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafInsert {
    /// The record is in.
    Inserted,
    /// The key is there already; nothing changed.
    Exists,
    /// There is no room, even without the deleted records; nothing changed.
    Full,
}

/// Which records of a leaf a scan wants.
#[derive(Clone, Debug)]
pub struct ScanWindow<'k, K> {
    /// The lower bound.
    pub lower: Bound<&'k K>,
    /// The upper bound.
    pub upper: Bound<&'k K>,
    /// Descending instead of ascending.
    pub reverse: bool,
    /// At most so many.
    pub limit: usize,
}

impl<K: Ord> ScanWindow<'_, K> {
    /// Whether there can be wanted records behind a leaf that ends at this fence: its high one, or descending its low
    /// one.
    pub(crate) fn goes_behind(&self, fence: &K) -> bool {
        match (self.reverse, self.lower, self.upper) {
            (false, _, Bound::Included(end)) => fence <= end,
            (false, _, Bound::Excluded(end)) => fence < end,
            (true, Bound::Included(start) | Bound::Excluded(start), _) => fence > start,
            (false, _, Bound::Unbounded) | (true, Bound::Unbounded, _) => true,
        }
    }
}

/// The part of a scan's bounds that lies between `low`, inclusive, and `high`, exclusive (`None`: infinite).
pub fn clipped<'k, K: Ord>(
    (lower, upper): (Bound<&'k K>, Bound<&'k K>),
    (low, high): (&'k K, Option<&'k K>),
) -> (Bound<&'k K>, Bound<&'k K>) {
    let lower = match lower {
        Bound::Included(key) | Bound::Excluded(key) if key >= low => lower,
        _ => Bound::Included(low),
    };
    let upper = match (upper, high) {
        (_, None) => upper,
        (Bound::Included(key), Some(high)) if key < high => upper,
        (Bound::Excluded(key), Some(high)) if key <= high => upper,
        (_, Some(high)) => Bound::Excluded(high),
    };
    (lower, upper)
}

/// Whether the keys from a low one, inclusive, to a high one, exclusive (`None`: infinite), lie within others.
pub fn lies_within<K: Ord>(keys: (&K, Option<&K>), others: (&K, Option<&K>)) -> bool {
    let ends = match (keys.1, others.1) {
        (_, None) => true,
        (Some(high), Some(end)) => high <= end,
        (None, Some(_)) => false,
    };
    keys.0 >= others.0 && ends
}

/// What a message can have as a field.
pub trait Wire: Sized {
    /// Appends it to a message.
    fn put(&self, to: &mut Message);
    /// Takes one off the front of a message; `None` if there is none. Any bytes may be there: it
    /// never panics, and never allocates more than the message is long.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

/// The bytes of one kind of page.
///
/// Functions that read accept pages that change under them: they may return nonsense then, which
/// validation discards, but never read outside the page, loop for ever or panic. Functions that change a
/// page are for its exclusive holder, and keep P1–P6 of `docs/internals/page-format.md`.
pub trait Layout: Copy + Debug + Send + Sync + 'static {
    /// Keys, in their order.
    type Key: Clone + Ord + Debug + Wire + Send + Sync + 'static;
    /// Values.
    type Value: Clone + Eq + Debug + Wire + Send + Sync + 'static;

    /// Words of a page, header included.
    const PAGE_WORDS: usize;
    /// The most entries that a page can ever have.
    const CAPACITY: usize;
    /// The format's number, in every page and superblock.
    const FORMAT: u8;

    /// The smallest key.
    fn min_key() -> Self::Key;

    /// A hash of the key that spreads over all 64 bits.
    fn hash(key: &Self::Key) -> u64;

    /// The low fence, inclusive.
    fn low(page: Page<'_, Self>) -> Self::Key;
    /// The high fence, exclusive; `None` is infinite.
    fn high(page: Page<'_, Self>) -> Option<Self::Key>;
    /// Sets the low fence.
    fn set_low(page: Page<'_, Self>, low: &Self::Key);
    /// Sets the high fence.
    fn set_high(page: Page<'_, Self>, high: Option<&Self::Key>);
    /// Where the probe lies.
    fn reach(page: Page<'_, Self>, probe: Probe<'_, Self::Key>) -> FencePosition;

    /// Leaf: the value of a key that is there and not deleted.
    fn leaf_get(page: Page<'_, Self>, key: &Self::Key) -> Option<Self::Value>;
    /// Leaf: appends the wanted records to `out`, in the wanted order; says how many.
    fn leaf_collect(
        page: Page<'_, Self>,
        window: &ScanWindow<'_, Self::Key>,
        out: &mut Vec<(Self::Key, Self::Value)>,
    ) -> usize;
    /// Leaf: adds a record; throws deleted ones out first if it must.
    fn leaf_insert(page: Page<'_, Self>, key: &Self::Key, value: &Self::Value) -> LeafInsert;
    /// Leaf: replaces the value of a key that is there; says whether it is.
    fn leaf_replace(page: Page<'_, Self>, key: &Self::Key, value: &Self::Value) -> bool {
        Self::leaf_replace_at(page, key, value).is_some()
    }
    /// The same, and says which words of the page it is that changed.
    fn leaf_replace_at(
        page: Page<'_, Self>,
        key: &Self::Key,
        value: &Self::Value,
    ) -> Option<Range<usize>>;
    /// Leaf: marks a key as deleted; says whether it was there.
    fn leaf_delete(page: Page<'_, Self>, key: &Self::Key) -> bool;
    /// Leaf: throws the deleted records out; says how many.
    fn leaf_compact(page: Page<'_, Self>) -> usize;

    /// Leaf: the words that can hold the record of `key`, whatever the leaf's content: what a READ must
    /// bring to answer for it.
    fn record_window(key: &Self::Key) -> Range<usize>;
    /// The words in use: the header and the entries.
    fn used_words(page: Page<'_, Self>) -> usize;

    /// Inner: the slot whose subtree the probe is in.
    fn inner_slot(page: Page<'_, Self>, probe: Probe<'_, Self::Key>) -> usize;
    /// Inner: the child at a slot; null if there is none.
    fn inner_child(page: Page<'_, Self>, slot: usize) -> GlobalAddr;
    /// Inner: sets the child at a slot that has one.
    fn inner_set_child(page: Page<'_, Self>, slot: usize, child: GlobalAddr);
    /// Inner: the lowest key of the subtree at a slot.
    fn inner_key(page: Page<'_, Self>, slot: usize) -> Self::Key;
    /// Inner: where the keys of the subtree at a slot end, exclusive (`None`: infinite).
    fn inner_end(page: Page<'_, Self>, slot: usize) -> Option<Self::Key> {
        match slot + 1 < page.count() {
            true => Some(Self::inner_key(page, slot + 1)),
            false => Self::high(page),
        }
    }
    /// Inner: adds a child that covers the keys from `key` on; `false` if there is no room.
    fn inner_insert(page: Page<'_, Self>, key: &Self::Key, child: GlobalAddr) -> bool;
    /// Inner: takes the entry at a slot out.
    fn inner_remove(page: Page<'_, Self>, slot: usize);
    /// Inner: changes the lowest key of the subtree at a slot.
    fn inner_set_key(page: Page<'_, Self>, slot: usize, key: &Self::Key);

    /// Makes the words that no entry uses zero. So pages with equal entries have equal words, wherever they have been.
    fn clear_unused(page: Page<'_, Self>);

    /// The first third of a split: fills `right`, formatted by this, with the upper half of `left` and
    /// returns the separator. `left` stays as it is.
    fn split_copy(left: Page<'_, Self>, right: Page<'_, Self>, right_at: GlobalAddr) -> Self::Key;
    /// The second third: takes the upper half out of `left`, whose fence still covers it.
    fn split_truncate(left: Page<'_, Self>);
    /// The last third: `left` ends at the separator, and `right` is its sibling.
    fn split_link(left: Page<'_, Self>, separator: &Self::Key, right_at: GlobalAddr) {
        Self::set_high(left, Some(separator));
        left.set_sibling(right_at);
    }
    /// Takes out everything that does not lie between `low`, inclusive, and `high`, exclusive (`None`: infinite), and
    /// makes these the fences. Some key between them must lie within the old fences.
    fn trim(page: Page<'_, Self>, low: &Self::Key, high: Option<&Self::Key>);
    /// Leaf: a sum over everything but the values, which change alone: the header, with which records are deleted, and the
    /// keys. A leaf that is a mixture of two states that differ in these does not have the sum of either.
    fn leaf_sum(page: Page<'_, Self>) -> u64;
    /// Whether the live entries of both fit one page.
    fn fits_merged(left: Page<'_, Self>, right: Page<'_, Self>) -> bool;
    /// Appends all of `right` to `left`, its neighbour to the left, which then covers both and is
    /// linked past `right`. Nothing of either may be marked as deleted.
    fn merge(left: Page<'_, Self>, right: Page<'_, Self>);
    /// Evens out two neighbours; returns the new separator. Nothing of either may be marked as deleted.
    fn rebalance(left: Page<'_, Self>, right: Page<'_, Self>) -> Self::Key;
}
