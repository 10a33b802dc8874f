//! The fixed 8-byte layout: `u64` keys, `u64` values, pages of `WORDS` words.
//!
//! ```text
//! leaf   words 8…  key 0, value 0, key 1, value 1, …      (side by side: one record, one message)
//! inner  words 8…  key 0 … key C-1, child 0 … child C-1    (key 0 is the page's low fence)
//! ```
//!
//! *Invariants*
//! - P3. Keys ascend strictly, and all lie within the fences.
//! - P4. Bit `i` of word 6 is set if record `i` is deleted. No bit at or above `count` is set.
//! - P5. An inner page's key 0 is its low fence, and it has at least one child.
//! - P6. Every `u64` is a valid key and a valid value.
//!
//! *Thread safety*: the same as for [`super::Page`].

use super::checksum::chained_sum;
use super::chosen::{CHOSEN, is_sensible, words_of};
use super::entries8::Entries8;
use super::layout::{
    DescentProbe, FencePosition, Layout, LeafDelete, LeafInsert, LeafReplace, OverflowEntry,
    ScanWindow, SplitPlan,
};
use super::outline::{LeafOutline, WindowLookup};
use super::view::{DELETED_WORD, HEADER_WORDS, HIGH_WORD, LOW_WORD, META_WORD, Page, SELF_WORD};
use super::words::PageWords;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::Ordering;
use std::ops::{Bound, Range};

/// `u64` keys and values in pages of `WORDS` words, or of the size that the thread has chosen
/// ([`CHOSEN`]). A page of 128 words (1 KB) holds 60 records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed8<const WORDS: usize = 128>;

const _: () = assert!(capacity_of(128) == 60);
const _: () = assert!(HEADER_WORDS + 2 * capacity_of(128) == 128);

/// Number of entries that a page of `words` words can hold.
const fn capacity_of(words: usize) -> usize {
    (words - HEADER_WORDS) / 2
}

type FixedPage<'a, const WORDS: usize> = Page<'a, Fixed8<WORDS>>;

impl<const WORDS: usize> Fixed8<WORDS> {
    const IS_SENSIBLE: () = assert!(WORDS == CHOSEN || is_sensible(WORDS));

    #[inline]
    fn record_key(page: FixedPage<'_, WORDS>, slot: usize) -> u64 {
        page.load(HEADER_WORDS + 2 * slot)
    }

    #[inline]
    fn record_value(page: FixedPage<'_, WORDS>, slot: usize) -> u64 {
        page.load(HEADER_WORDS + 2 * slot + 1)
    }

    /// The count, the deleted bits, and all entries.
    #[inline]
    fn inserted_words(page: FixedPage<'_, WORDS>) -> PageWords {
        (META_WORD..HEADER_WORDS + 2 * page.count()).into()
    }

    fn set_record(page: FixedPage<'_, WORDS>, slot: usize, key: u64, value: u64) {
        page.store(HEADER_WORDS + 2 * slot, key);
        page.store(HEADER_WORDS + 2 * slot + 1, value);
    }

    #[inline]
    fn records(
        page: FixedPage<'_, WORDS>,
        slots: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = (u64, u64)> + ExactSizeIterator {
        let words = &page.words()[HEADER_WORDS + 2 * slots.start..HEADER_WORDS + 2 * slots.end];
        let (pairs, _) = words.as_chunks::<2>();
        pairs
            .iter()
            .map(|[key, value]| (key.load(Ordering::Relaxed), value.load(Ordering::Relaxed)))
    }

    #[inline]
    fn separator(page: FixedPage<'_, WORDS>, slot: usize) -> u64 {
        page.load(HEADER_WORDS + slot)
    }

    #[inline]
    fn child(page: FixedPage<'_, WORDS>, slot: usize) -> u64 {
        page.load(HEADER_WORDS + Self::capacity() + slot)
    }

    fn set_entry(page: FixedPage<'_, WORDS>, slot: usize, key: u64, child: u64) {
        page.store(HEADER_WORDS + slot, key);
        page.store(HEADER_WORDS + Self::capacity() + slot, child);
    }

    /// The number of entries whose key satisfies `left_of`, which must hold exactly for the first
    /// ones. The search does not branch on keys, because such branches would be unpredictable.
    #[inline]
    fn partition(
        count: usize,
        key_at: impl Fn(usize) -> u64,
        left_of: impl Fn(u64) -> bool,
    ) -> usize {
        if count == 0 {
            return 0;
        }
        let (mut base, mut left) = (0, count);
        while left > 1 {
            let half = left / 2;
            base = if left_of(key_at(base + half - 1)) { base + half } else { base };
            left -= half;
        }
        base + usize::from(left_of(key_at(base)))
    }

    /// The first slot of a leaf with a key that is not below `key`.
    #[inline]
    fn lower_bound(page: FixedPage<'_, WORDS>, key: u64) -> usize {
        Self::partition(page.count(), |slot| Self::record_key(page, slot), |k| k < key)
    }

    /// The slot of `key` if it is in the leaf, deleted or not.
    #[inline]
    fn find(page: FixedPage<'_, WORDS>, key: u64) -> Option<usize> {
        let slot = Self::lower_bound(page, key);
        (slot < page.count() && Self::record_key(page, slot) == key).then_some(slot)
    }

    #[inline]
    fn is_deleted(page: FixedPage<'_, WORDS>, slot: usize) -> bool {
        page.load(DELETED_WORD) >> slot & 1 != 0
    }

    fn set_deleted(page: FixedPage<'_, WORDS>, slot: usize, deleted: bool) {
        let bits = page.load(DELETED_WORD) & !(1 << slot);
        page.store(DELETED_WORD, bits | u64::from(deleted) << slot);
    }

    /// Copies entries of `from` to `to`, starting at slot `at`. Leaf and inner pages differ only in
    /// where the two words of an entry are.
    fn copy_entries(
        from: FixedPage<'_, WORDS>,
        slots: Range<usize>,
        to: FixedPage<'_, WORDS>,
        at: usize,
    ) {
        let leaf = from.level() == 0;
        for (offset, slot) in slots.enumerate() {
            if leaf {
                let (key, value) = (Self::record_key(from, slot), Self::record_value(from, slot));
                Self::set_record(to, at + offset, key, value);
            } else {
                let (key, child) = (Self::separator(from, slot), Self::child(from, slot));
                Self::set_entry(to, at + offset, key, child);
            }
        }
    }

    /// Opens a gap of `by` entries at the front.
    fn shift_up(page: FixedPage<'_, WORDS>, by: usize) {
        for slot in (0..page.count()).rev() {
            Self::copy_entries(page, slot..slot + 1, page, slot + by);
        }
    }

    /// The plan of a split if so many entries are below the pending one, if there is one.
    pub(super) fn split_plan_at(
        page: FixedPage<'_, WORDS>,
        pending: Option<usize>,
    ) -> SplitPlan<u64> {
        let count = page.count();
        let run = page.trend().divide(count, pending);
        let slot = run.unwrap_or(count / 2);
        SplitPlan { slot, separator: Self::key_of(page, slot) }
    }

    pub(super) fn key_of(page: FixedPage<'_, WORDS>, slot: usize) -> u64 {
        if page.level() == 0 { Self::record_key(page, slot) } else { Self::separator(page, slot) }
    }

    /// The slots of a leaf that lie in the window.
    fn window_slots(page: FixedPage<'_, WORDS>, window: &ScanWindow<'_, u64>) -> Range<usize> {
        let count = page.count();
        let prefix = |left_of: &dyn Fn(u64) -> bool| {
            Self::partition(count, |slot| Self::record_key(page, slot), left_of)
        };
        let first = match window.lower {
            Bound::Unbounded => 0,
            Bound::Included(&key) => prefix(&|k| k < key),
            Bound::Excluded(&key) => prefix(&|k| k <= key),
        };
        let end = match window.upper {
            Bound::Unbounded => count,
            Bound::Included(&key) => prefix(&|k| k <= key),
            Bound::Excluded(&key) => prefix(&|k| k < key),
        };
        first..end.max(first)
    }
}

impl<const WORDS: usize> Layout for Fixed8<WORDS> {
    type Key = u64;
    type Value = u64;
    type Entries = Entries8<WORDS>;
    type Hops = Entries8<WORDS, true>;

    const HAS_HEAP: bool = false;
    const OUTLINES: bool = true;
    const WORD_RECORDS: bool = true;
    const FORMAT: u8 = 1;

    /// Unused: entries go into the page at once.
    type Filling = ();

    #[inline]
    fn page_words() -> usize {
        const { Self::IS_SENSIBLE };
        words_of(WORDS)
    }

    #[inline]
    fn capacity() -> usize {
        capacity_of(Self::page_words())
    }

    #[inline]
    fn full() -> usize {
        Self::capacity()
    }

    #[inline]
    fn most_message_bytes() -> usize {
        16
    }

    fn min_key() -> u64 {
        0
    }

    #[inline]
    fn key_bytes(_key: &u64) -> usize {
        8
    }

    #[inline]
    fn value_bytes(_value: &u64) -> usize {
        8
    }

    #[inline]
    fn value_of_address(at: GlobalAddr) -> u64 {
        at.to_bits()
    }

    #[inline]
    fn address_of_value(value: &u64) -> GlobalAddr {
        GlobalAddr::from_bits(*value)
    }

    #[inline]
    fn hash(key: &u64) -> u64 {
        // The finaliser of MurmurHash3, a bijection in which every output bit depends on every
        // input bit.
        let mut hash = *key;
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ hash >> 33
    }

    #[inline]
    fn low(page: FixedPage<'_, WORDS>) -> u64 {
        page.load(LOW_WORD)
    }

    #[inline]
    fn high(page: FixedPage<'_, WORDS>) -> Option<u64> {
        (!page.high_is_infinite()).then(|| page.load(HIGH_WORD))
    }

    fn set_low(page: FixedPage<'_, WORDS>, low: &u64) {
        page.store(LOW_WORD, *low);
    }

    fn set_high(page: FixedPage<'_, WORDS>, high: Option<&u64>) {
        page.store(HIGH_WORD, high.copied().unwrap_or(u64::MAX));
        page.set_high_infinite(high.is_none());
    }

    #[inline]
    fn reach(page: FixedPage<'_, WORDS>, probe: DescentProbe<'_, u64>) -> FencePosition {
        let low = page.load(LOW_WORD);
        let high = page.load(HIGH_WORD);
        let (below, beyond) = match probe {
            DescentProbe::At(&key) => (key < low, key >= high && !page.high_is_infinite()),
            DescentProbe::Before(&key) => (key <= low, key > high && !page.high_is_infinite()),
            DescentProbe::Last => (false, !page.high_is_infinite()),
        };
        match (below, beyond) {
            (true, _) => FencePosition::Below,
            (false, true) => FencePosition::Beyond,
            (false, false) => FencePosition::Inside,
        }
    }

    #[inline]
    fn leaf_get(page: FixedPage<'_, WORDS>, key: &u64) -> Option<u64> {
        let slot = Self::find(page, *key)?;
        (!Self::is_deleted(page, slot)).then(|| Self::record_value(page, slot))
    }

    fn leaf_outline(page: FixedPage<'_, WORDS>) -> Option<LeafOutline> {
        let fences = (Self::low(page), Self::high(page));
        (page.level() == 0 && page.load(DELETED_WORD) == 0)
            .then(|| LeafOutline::new(page.count(), |slot| Self::record_key(page, slot), fences))
            .flatten()
    }

    #[inline]
    fn outlined_slots(
        outline: LeafOutline,
        key: &u64,
        (low, high): (&u64, Option<&u64>),
    ) -> Range<usize> {
        outline.slots(*key, (*low, high.copied()))
    }

    #[inline]
    fn slot_words(slots: &Range<usize>) -> Range<usize> {
        HEADER_WORDS + 2 * slots.start..HEADER_WORDS + 2 * slots.end
    }

    #[inline]
    fn outlined_get(
        page: FixedPage<'_, WORDS>,
        outline: LeafOutline,
        slots: &Range<usize>,
        key: &u64,
    ) -> WindowLookup<u64> {
        let record = |slot| (Self::record_key(page, slot), Self::record_value(page, slot));
        outline.look(slots, record, *key)
    }

    fn window_value_word(
        page: FixedPage<'_, WORDS>,
        slots: &Range<usize>,
        key: &u64,
    ) -> Option<usize> {
        let mut slots = slots.clone();
        slots
            .find(|slot| Self::record_key(page, *slot) == *key)
            .map(|slot| HEADER_WORDS + 2 * slot + 1)
    }

    fn leaf_collect(
        page: FixedPage<'_, WORDS>,
        window: &ScanWindow<'_, u64>,
        out: &mut Vec<(u64, u64)>,
    ) -> usize {
        let before = out.len();
        let deleted = page.load(DELETED_WORD);
        let mut slots = Self::window_slots(page, window);
        let mut room = window.limit;
        // Copies one run of live records after the other. Nearly always, all of them form one run.
        while !slots.is_empty() && room > 0 {
            let live = match window.reverse {
                true => (deleted << (64 - slots.end)).leading_zeros(),
                false => (deleted >> slots.start).trailing_zeros(),
            };
            let length = slots.len().min(live as usize);
            let taken = length.min(room);
            if window.reverse {
                out.extend(Self::records(page, slots.end - taken..slots.end).rev());
                slots.end = (slots.end - length).saturating_sub(1);
            } else {
                out.extend(Self::records(page, slots.start..slots.start + taken));
                slots.start += length + 1;
            }
            room -= taken;
        }
        out.len() - before
    }

    fn leaf_insert(page: FixedPage<'_, WORDS>, key: &u64, value: &u64) -> LeafInsert {
        let mut slot = Self::lower_bound(page, *key);
        if slot < page.count() && Self::record_key(page, slot) == *key {
            if !Self::is_deleted(page, slot) {
                return LeafInsert::Exists;
            }
            Self::set_record(page, slot, *key, *value);
            Self::set_deleted(page, slot, false);
            return LeafInsert::Inserted(Self::inserted_words(page));
        }
        if page.count() == Self::capacity() {
            if Self::leaf_compact(page) == 0 {
                return LeafInsert::Full;
            }
            slot = Self::lower_bound(page, *key);
        }
        let count = page.count();
        for above in (slot..count).rev() {
            Self::copy_entries(page, above..above + 1, page, above + 1);
        }
        // The deleted bits from `slot` on move up with their records.
        let deleted = page.load(DELETED_WORD);
        let below = deleted & ((1 << slot) - 1);
        page.store(DELETED_WORD, below | (deleted ^ below) << 1);
        Self::set_record(page, slot, *key, *value);
        page.set_count(count + 1);
        page.note_inserted(slot);
        LeafInsert::Inserted(Self::inserted_words(page))
    }

    #[inline]
    fn leaf_replace(page: FixedPage<'_, WORDS>, key: &u64, value: &u64) -> LeafReplace<u64> {
        match Self::find(page, *key) {
            Some(slot) if !Self::is_deleted(page, slot) => {
                let word = HEADER_WORDS + 2 * slot + 1;
                page.store(word, *value);
                LeafReplace::Replaced((word..word + 1).into(), None)
            }
            _ => LeafReplace::Absent,
        }
    }

    fn leaf_has_room(page: FixedPage<'_, WORDS>, key: &u64, _value: &u64) -> bool {
        !Self::is_full(page) || Self::find(page, *key).is_some()
    }

    fn leaf_delete(page: FixedPage<'_, WORDS>, key: &u64) -> LeafDelete<u64> {
        match Self::find(page, *key) {
            Some(slot) if !Self::is_deleted(page, slot) => {
                Self::set_deleted(page, slot, true);
                // The bits of deleted records are in the header.
                LeafDelete::Deleted((META_WORD..HEADER_WORDS).into(), None)
            }
            _ => LeafDelete::Absent,
        }
    }

    #[inline]
    fn deleted_count(page: FixedPage<'_, WORDS>) -> usize {
        (page.load(DELETED_WORD).count_ones() as usize).min(page.count())
    }

    fn leaf_compact(page: FixedPage<'_, WORDS>) -> usize {
        let count = page.count();
        let mut kept = 0;
        for slot in 0..count {
            if !Self::is_deleted(page, slot) {
                Self::copy_entries(page, slot..slot + 1, page, kept);
                kept += 1;
            }
        }
        page.store(DELETED_WORD, 0);
        page.set_count(kept);
        if kept < count {
            page.forget_trend();
        }
        count - kept
    }

    fn record_window(_key: &u64) -> Range<usize> {
        HEADER_WORDS..Self::page_words()
    }

    #[inline]
    fn search_words(page: FixedPage<'_, WORDS>) -> Range<usize> {
        let (level, count) = page.level_and_count();
        HEADER_WORDS..HEADER_WORDS + if level > 0 { count } else { 2 * count }
    }

    #[inline]
    fn inner_slot(page: FixedPage<'_, WORDS>, probe: DescentProbe<'_, u64>) -> usize {
        let count = page.count();
        let key_at = |slot| Self::separator(page, slot);
        let not_above = match probe {
            DescentProbe::At(&key) => Self::partition(count, key_at, |k| k <= key),
            DescentProbe::Before(&key) => Self::partition(count, key_at, |k| k < key),
            DescentProbe::Last => count,
        };
        not_above.saturating_sub(1)
    }

    #[inline]
    fn inner_child_word(_page: FixedPage<'_, WORDS>, slot: usize) -> usize {
        HEADER_WORDS + Self::capacity() + slot
    }

    #[inline]
    fn inner_child(page: FixedPage<'_, WORDS>, slot: usize) -> GlobalAddr {
        if slot >= page.count() {
            return GlobalAddr::NULL;
        }
        GlobalAddr::from_bits(Self::child(page, slot))
    }

    fn inner_set_child(page: FixedPage<'_, WORDS>, slot: usize, child: GlobalAddr) {
        page.store(Self::inner_child_word(page, slot), child.to_bits());
    }

    fn inner_key(page: FixedPage<'_, WORDS>, slot: usize) -> u64 {
        Self::separator(page, slot.min(Self::capacity() - 1))
    }

    fn inner_insert(page: FixedPage<'_, WORDS>, key: &u64, child: GlobalAddr) -> bool {
        let count = page.count();
        if count == Self::capacity() {
            return false;
        }
        let slot = Self::partition(count, |slot| Self::separator(page, slot), |k| k < *key);
        for above in (slot..count).rev() {
            Self::copy_entries(page, above..above + 1, page, above + 1);
        }
        Self::set_entry(page, slot, *key, child.to_bits());
        page.set_count(count + 1);
        page.note_inserted(slot);
        true
    }

    fn inner_has_room(page: FixedPage<'_, WORDS>, _key: &u64) -> bool {
        page.count() < Self::capacity()
    }

    fn inner_remove(page: FixedPage<'_, WORDS>, slot: usize) {
        let count = page.count();
        Self::copy_entries(page, slot + 1..count, page, slot);
        page.set_count(count - 1);
    }

    fn inner_set_key(page: FixedPage<'_, WORDS>, slot: usize, key: &u64) -> bool {
        page.store(HEADER_WORDS + slot, *key);
        true
    }

    fn inner_can_set_key(_page: FixedPage<'_, WORDS>, _slot: usize, _key: &u64) -> bool {
        true
    }

    #[inline]
    fn weight(page: FixedPage<'_, WORDS>) -> usize {
        page.live_count()
    }

    fn record_weight(page: FixedPage<'_, WORDS>, key: &u64) -> usize {
        usize::from(Self::leaf_get(page, key).is_some())
    }

    fn is_full(page: FixedPage<'_, WORDS>) -> bool {
        page.count() == Self::capacity() && (page.level() > 0 || page.deleted_count() == 0)
    }

    fn clear_unused(page: FixedPage<'_, WORDS>) {
        let set = if page.level() == 0 { Self::set_record } else { Self::set_entry };
        (page.count()..Self::capacity()).for_each(|slot| set(page, slot, 0, 0));
    }

    /// Next to a run of insertions, or else the middle: either half has room for another entry.
    fn split_plan(
        page: FixedPage<'_, WORDS>,
        pending: Option<&OverflowEntry<Self>>,
    ) -> SplitPlan<u64> {
        let below = |entry: &OverflowEntry<Self>| {
            Self::partition(page.count(), |slot| Self::key_of(page, slot), |k| k < *entry.key())
        };
        Self::split_plan_at(page, pending.map(below))
    }

    fn split_copy(
        left: FixedPage<'_, WORDS>,
        right: FixedPage<'_, WORDS>,
        right_at: GlobalAddr,
        &SplitPlan { slot, separator }: &SplitPlan<u64>,
    ) {
        let count = left.count();
        right.format_empty(right_at, left.level(), &separator, Self::high(left).as_ref());
        right.set_sibling(left.sibling());
        Self::copy_entries(left, slot..count, right, 0);
        right.set_count(count - slot);
        right.store(DELETED_WORD, left.load(DELETED_WORD) >> slot);
    }

    fn split_truncate(left: FixedPage<'_, WORDS>, plan: &SplitPlan<u64>) {
        left.store(DELETED_WORD, left.load(DELETED_WORD) & ((1 << plan.slot) - 1));
        left.set_count(plan.slot);
    }

    fn trim(page: FixedPage<'_, WORDS>, low: &u64, high: Option<&u64>) -> bool {
        let count = page.count();
        let before =
            |key: u64| Self::partition(count, |slot| Self::key_of(page, slot), |k| k < key);
        let is_leaf = page.level() == 0;
        let first = match is_leaf {
            true => before(*low),
            false => Self::inner_slot(page, DescentProbe::At(low)),
        };
        let end = high.map_or(count, |high| before(*high)).max(first);
        Self::copy_entries(page, first..end, page, 0);
        let kept = end - first;
        page.set_count(kept);
        if first > 0 {
            page.forget_trend();
        }
        let bits = page.load(DELETED_WORD) >> first;
        page.store(DELETED_WORD, if kept == 0 { 0 } else { bits & u64::MAX >> (64 - kept) });
        Self::set_low(page, low);
        Self::set_high(page, high);
        if !is_leaf && kept > 0 {
            Self::inner_set_key(page, 0, low); // P5
        }
        true
    }

    fn leaf_sum(page: FixedPage<'_, WORDS>) -> u64 {
        let header = [SELF_WORD, LOW_WORD, HIGH_WORD, META_WORD, DELETED_WORD];
        let header = header.map(|word| page.load(word));
        let keys = (0..page.count()).map(|slot| Self::record_key(page, slot));
        chained_sum(header.into_iter().chain(keys))
    }

    fn fits_merged(left: FixedPage<'_, WORDS>, right: FixedPage<'_, WORDS>) -> bool {
        // Leave an eighth of a page free, so that the next insert does not split it at once.
        left.live_count() + right.live_count() <= Self::capacity() - Self::capacity() / 8
    }

    fn merge(left: FixedPage<'_, WORDS>, right: FixedPage<'_, WORDS>) {
        debug_assert_eq!(left.deleted_count() + right.deleted_count(), 0, "compacted first");
        let (kept, added) = (left.count(), right.count());
        Self::copy_entries(right, 0..added, left, kept);
        left.set_count(kept + added);
        left.forget_trend();
        Self::set_high(left, Self::high(right).as_ref());
        left.set_sibling(right.sibling());
    }

    fn rebalance(
        left: FixedPage<'_, WORDS>,
        right: FixedPage<'_, WORDS>,
        fits: impl Fn(&u64) -> bool,
    ) -> Option<u64> {
        debug_assert_eq!(left.deleted_count() + right.deleted_count(), 0, "compacted first");
        let (lefts, rights) = (left.count(), right.count());
        if lefts.abs_diff(rights) <= 1 {
            return None;
        }
        let target = (lefts + rights) / 2;
        let separator = match lefts < target {
            true => Self::key_of(right, target - lefts),
            false => Self::key_of(left, target),
        };
        if !fits(&separator) {
            return None;
        }
        if lefts < target {
            let moved = target - lefts;
            Self::copy_entries(right, 0..moved, left, lefts);
            Self::copy_entries(right, moved..rights, right, 0);
            right.set_count(rights - moved);
        } else {
            let moved = lefts - target;
            Self::shift_up(right, moved);
            Self::copy_entries(left, target..lefts, right, 0);
            right.set_count(rights + moved);
        }
        left.set_count(target);
        left.forget_trend();
        right.forget_trend();
        Self::set_high(left, Some(&separator));
        Self::set_low(right, &separator);
        Some(separator)
    }

    fn fill_leaf(
        _filling: &mut (),
        page: FixedPage<'_, WORDS>,
        (key, value): (&u64, &u64),
        fill: usize,
    ) -> bool {
        let is_filled = page.count() < fill && Self::leaf_insert(page, key, value).is_inserted();
        // A load says nothing about what comes later.
        page.forget_trend();
        is_filled
    }

    fn fill_inner(
        _filling: &mut (),
        page: FixedPage<'_, WORDS>,
        (key, child): (&u64, GlobalAddr),
        fill: usize,
    ) -> bool {
        let is_filled = page.count() < fill && Self::inner_insert(page, key, child);
        page.forget_trend();
        is_filled
    }

    fn is_filled(_filling: &(), page: FixedPage<'_, WORDS>, fill: usize) -> bool {
        page.count() >= fill
    }
}
