//! The interface of a page layout. Indexes and servers are generic over it, so supporting another
//! kind of keys and values takes only another implementation of [`Layout`].

use super::encoded::Encoded;
use super::limits::LengthError;
use super::outline::{LeafOutline, WindowLookup};
use super::view::{HEADER_WORDS, Page};
use super::words::PageWords;
use farleaf_fabric::{GlobalAddr, Message};
use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::{Bound, Range};

/// The target of a descent.
#[derive(Debug)]
pub enum DescentProbe<'k, K: ?Sized> {
    /// The node that covers this key.
    At(&'k K),
    /// The node that covers the keys just below this one. No node covers keys below the smallest
    /// key.
    Before(&'k K),
    /// The rightmost node.
    Last,
}

// Not derived: the derives would require `K: Clone` and `K: Copy`.
impl<K: ?Sized> Clone for DescentProbe<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized> Copy for DescentProbe<'_, K> {}

/// Where a probe lies relative to a page's fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencePosition {
    /// Left of the low fence: the descent is on the wrong page.
    Below,
    /// Between the fences.
    Inside,
    /// At or right of the high fence: the descent continues at the right sibling.
    Beyond,
}

/// Outcome of an insertion into a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafInsert {
    /// The record was added. Only these words have changed.
    Inserted(PageWords),
    /// The key is present already. The leaf is unchanged.
    Exists,
    /// There is no room, even without the deleted records. The leaf is unchanged.
    Full,
}

impl LeafInsert {
    /// Whether the record was added.
    pub fn is_inserted(self) -> bool {
        matches!(self, Self::Inserted(_))
    }
}

/// Outcome of replacing a value in a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafReplace<V> {
    /// The value was replaced. No other words have changed. The old value is here too, if it can be
    /// a reference to a value block ([`super::BlockRef`]).
    Replaced(PageWords, Option<V>),
    /// The key is absent. The leaf is unchanged.
    Absent,
    /// There is no room for the new value. The leaf is unchanged.
    Full,
}

/// Outcome of deleting a key from a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafDelete<V> {
    /// The key was marked as deleted. No other words have changed. Its value is here too, if it can
    /// be a reference to a value block ([`super::BlockRef`]).
    Deleted(PageWords, Option<V>),
    /// The key is absent. The leaf is unchanged.
    Absent,
}

/// Where a page is split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitPlan<K> {
    /// The first slot of the upper half.
    pub slot: usize,
    /// The low fence of the upper half.
    pub separator: K,
}

/// The records of a leaf that a scan wants.
#[derive(Clone, Debug)]
pub struct ScanWindow<'k, K: ?Sized> {
    /// Where the range begins.
    pub lower: Bound<&'k K>,
    /// Where the range ends.
    pub upper: Bound<&'k K>,
    /// Descending instead of ascending.
    pub reverse: bool,
    /// Maximum number of records.
    pub limit: usize,
}

impl<K: ?Sized + Ord> ScanWindow<'_, K> {
    /// Whether the scan may find records beyond a leaf that ends at `fence`, which is the leaf's
    /// high fence, or its low fence in a descending scan.
    pub fn goes_behind(&self, fence: &K) -> bool {
        match (self.reverse, self.lower, self.upper) {
            (false, _, Bound::Included(end)) => fence <= end,
            (false, _, Bound::Excluded(end)) => fence < end,
            (true, Bound::Included(start) | Bound::Excluded(start), _) => fence > start,
            (false, _, Bound::Unbounded) | (true, Bound::Unbounded, _) => true,
        }
    }
}

/// The part of a scan's bounds that lies between `low`, inclusive, and `high`, exclusive (`None`:
/// infinite).
pub fn clipped<'k, K: ?Sized + Ord>(
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

/// Whether the range `keys` lies within the range `others`. Both extend from a low key, inclusive,
/// to a high one, exclusive (`None`: infinite).
pub fn lies_within<K: ?Sized + Ord>(keys: (&K, Option<&K>), others: (&K, Option<&K>)) -> bool {
    let ends = match (keys.1, others.1) {
        (_, None) => true,
        (Some(high), Some(end)) => high <= end,
        (None, Some(_)) => false,
    };
    keys.0 >= others.0 && ends
}

/// A type that can be written as a field of a message. A borrowed form has the same bytes as its
/// owned form, so that a request can be encoded without copying its key.
pub trait PutField {
    /// Appends the value to a message.
    fn put(&self, to: &mut Message);
    /// Appends several values.
    #[inline]
    fn put_each(values: &[Self], to: &mut Message)
    where
        Self: Sized,
    {
        values.iter().for_each(|value| value.put(to));
    }
}

/// A type that can be a field of a message.
pub trait WireField: PutField + Sized {
    /// Takes a value off the front of a message, or returns `None` if there is none. The bytes may
    /// be arbitrary: this never panics and never allocates more than a
    /// few times the length of the message.
    fn take(from: &mut &[u8]) -> Option<Self>;
    /// Takes several values off the front.
    #[inline]
    fn take_each(count: usize, from: &mut &[u8]) -> Option<Vec<Self>> {
        // Bound the allocation: the count may be wrong.
        let room = from.len() / size_of::<Self>().max(1);
        let mut list = Vec::with_capacity(count.min(room));
        for _ in 0..count {
            list.push(Self::take(from)?);
        }
        Some(list)
    }
}

/// A key of layout `L` in its owned form.
pub type OwnedKey<L> = <<L as Layout>::Key as ToOwned>::Owned;
/// A value of layout `L` in its owned form.
pub type OwnedValue<L> = <<L as Layout>::Value as ToOwned>::Owned;
/// A record of layout `L` in its owned form.
pub type OwnedRecord<L> = (OwnedKey<L>, OwnedValue<L>);

/// The bytes of one kind of page.
///
/// Functions that read a page accept that it changes meanwhile. They may then return meaningless
/// values, which validation discards, but they never read outside the page, loop forever or panic.
/// Functions that change a page require that the caller holds it exclusively, and preserve P1–P6 of
/// `docs/internals/page-format.md`.
///
/// Entries may differ in size, so a page can lack room for one entry and have room for another, and
/// `leaf_insert`, `leaf_replace`, `inner_insert`, `inner_set_key` and `rebalance` can refuse.
///
/// *Invariants*
/// - layout.Y6. An entry that was passed as pending to [`Layout::split_plan`] has room in the half
///   that covers its key.
/// - layout.Y7. A plan depends only on keys, on the sizes of values and on the header, never on
///   child words: a page in a frame and its image in the pool have the same plan, and the same
///   room.
/// - layout.Y8. A change that is refused changes nothing. A change of several pages checks that all
///   of them have room before the first WRITE.
pub trait Layout: Copy + Debug + Send + Sync + 'static {
    /// The keys in their borrowed form, with their order. Operations take references to it; a key
    /// that outlives its page or message is an [`OwnedKey`].
    type Key: ?Sized
        + Ord
        + Debug
        + Encoded
        + PutField
        + Send
        + Sync
        + ToOwned<Owned: Clone + Ord + Debug + WireField + Send + Sync + 'static>
        + 'static;
    /// The values in their borrowed form.
    type Value: ?Sized
        + Eq
        + Debug
        + Encoded
        + PutField
        + Send
        + Sync
        + ToOwned<Owned: Clone + Eq + Debug + WireField + Send + Sync + 'static>
        + 'static;

    /// The layout of pages whose leaves clients write entry by entry. The layout itself if it has
    /// no such form; its leaves are then written as a whole.
    type Entries: Layout<Key = Self::Key, Value = Self::Value>;
    /// Whether the leaves are written entry by entry, under an entry lock
    /// ([`Page::entry_lock`]). Word 7 is then the checksum of a leaf's header only.
    const BY_ENTRIES: bool = false;

    /// The layout of pages whose leaves are hopscotch tables, written entry by entry. The layout
    /// itself if it has no such form.
    type Hops: Layout<Key = Self::Key, Value = Self::Value>;
    /// Whether a lookup needs only a part of a leaf, its [`Layout::record_window`].
    const WINDOWS: bool = false;

    /// Whether a lookup needs only the part of a leaf that the leaf's outline names
    /// ([`Layout::leaf_outline`]).
    const OUTLINES: bool = false;

    /// Whether a record is two words: [`Layout::hash`] takes no two keys to the same word, and a
    /// value is the word of [`Layout::address_of_value`].
    const WORD_RECORDS: bool = false;

    /// Size of a page in words, including the header.
    fn page_words() -> usize;
    /// Maximum number of entries of a page.
    fn capacity() -> usize;
    /// Weight of a full page, in the unit of [`Layout::weight`].
    fn full() -> usize;
    /// The most bytes of a record in a message.
    fn most_message_bytes() -> usize;
    /// Whether records are in a heap, apart from what names them ([`PageWords::heap`]).
    const HAS_HEAP: bool;
    /// Number of the format, stored in every page and superblock.
    const FORMAT: u8;

    /// The smallest key.
    fn min_key() -> OwnedKey<Self>;

    /// The borrowed form of a key.
    #[inline]
    fn key(owned: &OwnedKey<Self>) -> &Self::Key {
        owned.borrow()
    }

    /// The borrowed form of a value.
    #[inline]
    fn value(owned: &OwnedValue<Self>) -> &Self::Value {
        owned.borrow()
    }

    /// Whether a page can hold the key.
    ///
    /// # Errors
    /// [`LengthError`] if no page can.
    #[inline]
    fn check_key(_key: &Self::Key) -> Result<(), LengthError> {
        Ok(())
    }
    /// Whether a page can hold the record.
    ///
    /// # Errors
    /// [`LengthError`] if no page can, because of the length of the key or of the value.
    #[inline]
    fn check_record(_key: &Self::Key, _value: &Self::Value) -> Result<(), LengthError> {
        Ok(())
    }
    /// Size of a key in a message, in bytes.
    fn key_bytes(key: &Self::Key) -> usize;
    /// Size of a value in a message, in bytes.
    fn value_bytes(value: &Self::Value) -> usize;
    /// The length of a value, for limits on it.
    fn value_length(value: &Self::Value) -> usize {
        Self::value_bytes(value)
    }
    /// A value that holds an address. The trees of the hybrid design map keys to leaves.
    fn value_of_address(at: GlobalAddr) -> OwnedValue<Self>;
    /// Decodes the address in a value. Any value decodes to some address; a reader must check that
    /// a node is there.
    fn address_of_value(value: &Self::Value) -> GlobalAddr;

    /// A hash of the key that spreads over all 64 bits.
    fn hash(key: &Self::Key) -> u64;

    /// The low fence, inclusive.
    fn low(page: Page<'_, Self>) -> OwnedKey<Self>;
    /// The high fence, exclusive; `None` is infinite.
    fn high(page: Page<'_, Self>) -> Option<OwnedKey<Self>>;
    /// Formats the entries of an empty page: no entries, and these fences.
    fn format_entries(page: Page<'_, Self>, low: &Self::Key, high: Option<&Self::Key>) {
        Self::set_low(page, low);
        Self::set_high(page, high);
    }
    /// Sets the low fence.
    fn set_low(page: Page<'_, Self>, low: &Self::Key);
    /// Sets the high fence.
    fn set_high(page: Page<'_, Self>, high: Option<&Self::Key>);
    /// Where `probe` lies relative to the page's fences.
    fn reach(page: Page<'_, Self>, probe: DescentProbe<'_, Self::Key>) -> FencePosition;

    /// Leaf: the value of a key that is present and not deleted.
    fn leaf_get(page: Page<'_, Self>, key: &Self::Key) -> Option<OwnedValue<Self>>;
    /// Leaf: what tells which of its records can have a key. `None` if a lookup needs the whole
    /// leaf.
    #[inline]
    fn leaf_outline(_page: Page<'_, Self>) -> Option<LeafOutline> {
        None
    }
    /// Leaf: the slots of the records that can have `key`, by the outline of the leaf between
    /// these fences.
    #[inline]
    fn outlined_slots(
        _outline: LeafOutline,
        _key: &Self::Key,
        _fences: (&Self::Key, Option<&Self::Key>),
    ) -> Range<usize> {
        0..0
    }
    /// Leaf: the words of these records.
    #[inline]
    fn slot_words(_slots: &Range<usize>) -> Range<usize> {
        HEADER_WORDS..HEADER_WORDS
    }
    /// Leaf: looks `key` up in a page of which only the records at `slots` are there.
    #[inline]
    fn outlined_get(
        _page: Page<'_, Self>,
        _outline: LeafOutline,
        _slots: &Range<usize>,
        _key: &Self::Key,
    ) -> WindowLookup<OwnedValue<Self>> {
        WindowLookup::Unknown
    }
    /// Leaf: the word of the value of `key`, which is one word, in a page of which only the records
    /// at `slots` are there. `None` if they do not have the key, or if a value is more than a word.
    #[inline]
    fn window_value_word(
        _page: Page<'_, Self>,
        _slots: &Range<usize>,
        _key: &Self::Key,
    ) -> Option<usize> {
        None
    }
    /// Leaf: appends the wanted records to `out` in the wanted order. Returns how many.
    fn leaf_collect(
        page: Page<'_, Self>,
        window: &ScanWindow<'_, Self::Key>,
        out: &mut Vec<(OwnedKey<Self>, OwnedValue<Self>)>,
    ) -> usize;
    /// Leaf: adds a record. Compacts the leaf first if that is necessary to make room.
    fn leaf_insert(page: Page<'_, Self>, key: &Self::Key, value: &Self::Value) -> LeafInsert;
    /// Leaf: replaces the value of a key that is present.
    fn leaf_replace(
        page: Page<'_, Self>,
        key: &Self::Key,
        value: &Self::Value,
    ) -> LeafReplace<OwnedValue<Self>>;
    /// Leaf: whether there is room for the record, which may replace one of the same key.
    fn leaf_has_room(page: Page<'_, Self>, key: &Self::Key, value: &Self::Value) -> bool;
    /// Leaf: the value of a key that is present, if it can be a reference to a value block
    /// ([`super::BlockRef`]).
    #[inline]
    fn leaf_reference(_page: Page<'_, Self>, _key: &Self::Key) -> Option<OwnedValue<Self>> {
        None
    }
    /// Leaf: marks a key as deleted.
    fn leaf_delete(page: Page<'_, Self>, key: &Self::Key) -> LeafDelete<OwnedValue<Self>>;
    /// The number of entries that are marked as deleted, never more than there are entries.
    fn deleted_count(page: Page<'_, Self>) -> usize;
    /// Leaf: removes the records marked as deleted. Returns how many.
    fn leaf_compact(page: Page<'_, Self>) -> usize;

    /// Leaf: the words that can hold the record of `key`, whatever the leaf contains. A READ must
    /// fetch these to look up the key.
    fn record_window(key: &Self::Key) -> Range<usize>;
    /// Makes a leaf without the other words of a page that has only the window of `key`, READ from
    /// the leaf at `at`: the leaf's version and high fence, and the entries that can hold the key.
    /// Returns whether no part of the window is torn, or from another version or another page than
    /// the rest of it. With `unchecked`, plants a bug: believes any window.
    fn open_window(
        _page: Page<'_, Self>,
        _at: GlobalAddr,
        _key: &Self::Key,
        _unchecked: bool,
    ) -> bool {
        false
    }
    /// Leaf, or its window: the words that, with the page's version, show the record of `key`.
    /// `None` if the key is absent.
    fn record_place(_page: Page<'_, Self>, _key: &Self::Key) -> Option<Range<usize>> {
        None
    }
    /// Leaf that is written entry by entry: the WRITEs of a change of these words, one after the
    /// other. `None` if the change has moved entries, so that the whole leaf has to be written.
    fn entry_writes(_words: Range<usize>) -> Option<(Range<usize>, Option<Range<usize>>)> {
        None
    }

    /// The words that a search of the page may read besides its header and its child words. The
    /// range lies within the page, whatever the page contains.
    fn search_words(page: Page<'_, Self>) -> Range<usize>;

    /// Inner: the slot of the subtree that covers the probe.
    fn inner_slot(page: Page<'_, Self>, probe: DescentProbe<'_, Self::Key>) -> usize;
    /// Inner: the position of the child word of a slot below the capacity. It lies within the page,
    /// whatever the page contains.
    fn inner_child_word(page: Page<'_, Self>, slot: usize) -> usize;
    /// Inner: the child at a slot. Null if there is none.
    fn inner_child(page: Page<'_, Self>, slot: usize) -> GlobalAddr;
    /// Inner: sets the child at a slot that has one.
    fn inner_set_child(page: Page<'_, Self>, slot: usize, child: GlobalAddr);
    /// Inner: the lowest key of the subtree at a slot.
    fn inner_key(page: Page<'_, Self>, slot: usize) -> OwnedKey<Self>;
    /// Inner: the end of the key range of a slot, exclusive (`None`: infinite).
    fn inner_end(page: Page<'_, Self>, slot: usize) -> Option<OwnedKey<Self>> {
        match slot + 1 < page.count() {
            true => Some(Self::inner_key(page, slot + 1)),
            false => Self::high(page),
        }
    }
    /// Inner: adds a child that covers the keys from `key` on. Returns `false` if there is no room.
    fn inner_insert(page: Page<'_, Self>, key: &Self::Key, child: GlobalAddr) -> bool;
    /// Inner: whether [`Layout::inner_insert`] has room for `key`.
    fn inner_has_room(page: Page<'_, Self>, key: &Self::Key) -> bool;
    /// Inner: removes the entry at a slot.
    fn inner_remove(page: Page<'_, Self>, slot: usize);
    /// Inner: changes the lowest key of the subtree at a slot. Returns `false` if there is no room.
    fn inner_set_key(page: Page<'_, Self>, slot: usize, key: &Self::Key) -> bool;
    /// Inner: whether [`Layout::inner_set_key`] has room for `key`.
    fn inner_can_set_key(page: Page<'_, Self>, slot: usize, key: &Self::Key) -> bool;

    /// The weight of the entries that are not deleted.
    fn weight(page: Page<'_, Self>) -> usize;
    /// Leaf: the part of [`Layout::weight`] that is due to the record of `key`; 0 if it is absent.
    fn record_weight(page: Page<'_, Self>, key: &Self::Key) -> usize;
    /// Whether the page should be split on the way down, before it has to refuse an entry.
    fn is_full(page: Page<'_, Self>) -> bool;

    /// Sets the unused words to zero, so that pages with equal entries have equal words, whatever
    /// those words held before.
    fn clear_unused(page: Page<'_, Self>);

    /// Sets the checks of a leaf's entries to what they are in the version of word 0, if leaves are
    /// written entry by entry.
    fn seal_entries(_page: Page<'_, Self>) {}
    /// Whether no entry of a leaf is torn, nor from another version than word 0's.
    #[inline]
    fn entries_are_whole(_page: Page<'_, Self>) -> bool {
        true
    }
    /// The words to write, each alone, so that no entry of a leaf is torn any more. Every entry
    /// then has its state before or after the WRITE that stopped half-way. With `drops`, plants a
    /// bug: torn entries are freed instead.
    fn mended_entries(_page: Page<'_, Self>, _drops: bool) -> Vec<(usize, u64)> {
        Vec::new()
    }

    /// Plans the split of a page with at least two entries, so that `pending` has room in the half
    /// that covers its key (layout.Y6).
    fn split_plan(
        page: Page<'_, Self>,
        pending: Option<&OverflowEntry<Self>>,
    ) -> SplitPlan<OwnedKey<Self>>;
    /// Plants a bug: the separator without its last byte. `None` if keys have one size.
    fn cut_separator(_separator: &Self::Key) -> Option<OwnedKey<Self>> {
        None
    }
    /// First step of a split: formats `right` and fills it with the upper half of `left`, which
    /// does not change.
    fn split_copy(
        left: Page<'_, Self>,
        right: Page<'_, Self>,
        right_at: GlobalAddr,
        plan: &SplitPlan<OwnedKey<Self>>,
    );
    /// Second step of a split: removes the upper half from `left`. Its high fence may still cover
    /// that half.
    fn split_truncate(left: Page<'_, Self>, plan: &SplitPlan<OwnedKey<Self>>);
    /// Last step of a split: `left` ends at the separator, and `right` becomes its sibling.
    fn split_link(left: Page<'_, Self>, separator: &Self::Key, right_at: GlobalAddr) {
        Self::set_high(left, Some(separator));
        left.set_sibling(right_at);
    }
    /// Removes everything outside the range from `low`, inclusive, to `high`, exclusive (`None`:
    /// infinite), and makes these the fences. Some key between them must lie within the old fences.
    /// Returns `false`, with the page unchanged, if the remaining entries do not fit with the new
    /// fences.
    #[must_use]
    fn trim(page: Page<'_, Self>, low: &Self::Key, high: Option<&Self::Key>) -> bool;
    /// Whether these fences, which lie within the page's, need more room than the page's fences do.
    fn fences_grow(_page: Page<'_, Self>, _low: &Self::Key, _high: Option<&Self::Key>) -> bool {
        false
    }
    /// Leaf: a sum over everything but the values, which may change alone. It covers the header,
    /// including the deleted bits, and the keys. If two states of a leaf differ in these, a mixture
    /// of them has the sum of neither.
    fn leaf_sum(page: Page<'_, Self>) -> u64;
    /// Whether the live entries of both pages fit in one.
    fn fits_merged(left: Page<'_, Self>, right: Page<'_, Self>) -> bool;
    /// Appends all of `right` to `left`, its left neighbour. `left` then covers both and is linked
    /// to the page after `right`. Neither page may contain deleted records.
    fn merge(left: Page<'_, Self>, right: Page<'_, Self>);
    /// Plants a bug: merges as [`Layout::merge`] does, but what keys have in common is as long as
    /// in `left` before. Layouts that share nothing among keys merge as usual.
    fn merge_keeping_prefix(left: Page<'_, Self>, right: Page<'_, Self>) {
        Self::merge(left, right);
    }
    /// Evens out two neighbours and returns the new separator, if they differ enough and their
    /// parent has room for it, which `fits` answers. Neither page may contain deleted records.
    fn rebalance(
        left: Page<'_, Self>,
        right: Page<'_, Self>,
        fits: impl Fn(&Self::Key) -> bool,
    ) -> Option<OwnedKey<Self>>;

    /// State that a bulk load keeps for a page while it fills the page, from the lowest entry up. A
    /// layout that needs the high fence to lay out entries collects the entries here.
    type Filling: Debug + Default + Send;
    /// Bulk load: adds a record to a leaf that was formatted empty. Returns `false` if the leaf is
    /// full to `fill`, out of [`Layout::full`], or has no room; the record then begins the next
    /// leaf. A leaf without records accepts any record.
    fn fill_leaf(
        filling: &mut Self::Filling,
        page: Page<'_, Self>,
        record: (&Self::Key, &Self::Value),
        fill: usize,
    ) -> bool;
    /// Bulk load: adds a child to an inner page, as [`Layout::fill_leaf`] does for records. A page
    /// with one child accepts any second child.
    fn fill_inner(
        filling: &mut Self::Filling,
        page: Page<'_, Self>,
        child: (&Self::Key, GlobalAddr),
        fill: usize,
    ) -> bool;
    /// Bulk load: whether the page will probably refuse another entry.
    fn is_filled(filling: &Self::Filling, page: Page<'_, Self>, fill: usize) -> bool;
    /// Bulk load: where a leaf should end before a record with key `next`.
    fn fill_separator(_filling: &Self::Filling, next: &Self::Key) -> OwnedKey<Self> {
        next.to_owned()
    }
    /// Bulk load: ends a leaf at `high` (`None`: infinite). With that fence, the leaf may have no
    /// room for its last record. It then ends before that record, and returns the record and the
    /// leaf's high fence. A page of fixed fields always has room.
    #[must_use]
    fn fill_leaf_end(
        filling: Self::Filling,
        page: Page<'_, Self>,
        high: Option<&Self::Key>,
    ) -> Option<(OwnedKey<Self>, OwnedRecord<Self>)> {
        let _ = filling;
        Self::set_high(page, high);
        None
    }
    /// Bulk load: ends an inner page, as [`Layout::fill_leaf_end`] does a leaf. What it may return
    /// is a child and its key, which is the page's high fence.
    #[must_use]
    fn fill_inner_end(
        filling: Self::Filling,
        page: Page<'_, Self>,
        high: Option<&Self::Key>,
    ) -> Option<(OwnedKey<Self>, GlobalAddr)> {
        let _ = filling;
        Self::set_high(page, high);
        None
    }
}

/// The entry that a page had no room for.
#[derive(Clone, Debug)]
pub enum OverflowEntry<L: Layout> {
    /// A record of a leaf. It replaces the record of its key, if there is one.
    Record(OwnedKey<L>, OwnedValue<L>),
    /// A child of an inner page.
    Child(OwnedKey<L>, GlobalAddr),
}

impl<L: Layout> OverflowEntry<L> {
    /// The key of the record, or the lowest key of the child.
    pub fn key(&self) -> &L::Key {
        match self {
            Self::Record(key, _) | Self::Child(key, _) => L::key(key),
        }
    }

    /// Adds the entry; `false` if there is no room, and the page is unchanged.
    #[must_use]
    pub fn add_to(&self, page: Page<'_, L>) -> bool {
        match self {
            Self::Record(key, value) => {
                let (key, value) = (L::key(key), L::value(value));
                match L::leaf_replace(page, key, value) {
                    LeafReplace::Replaced(..) => true,
                    LeafReplace::Full => false,
                    LeafReplace::Absent => L::leaf_insert(page, key, value).is_inserted(),
                }
            }
            Self::Child(key, child) => L::inner_insert(page, L::key(key), *child),
        }
    }
}

/// Whether a page can hold the keys that bound a range.
///
/// # Errors
/// [`LengthError`] if no page can.
#[inline]
pub fn check_bounds<L: Layout, K: Borrow<L::Key>>(
    bounds: [&Bound<K>; 2],
) -> Result<(), LengthError> {
    for bound in bounds {
        if let Bound::Included(key) | Bound::Excluded(key) = bound {
            L::check_key(key.borrow())?;
        }
    }
    Ok(())
}

/// Whether a page can hold each record.
///
/// # Errors
/// [`LengthError`] for the first that no page can hold.
pub fn check_records<L: Layout>(
    records: &[(OwnedKey<L>, OwnedValue<L>)],
) -> Result<(), LengthError> {
    records.iter().try_for_each(|(key, value)| L::check_record(L::key(key), L::value(value)))
}
