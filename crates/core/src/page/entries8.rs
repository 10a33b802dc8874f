//! Pages whose leaves are written entry by entry: `u64` keys and values, each record with a check
//! of its own, in no order. Inner pages are those of [`Fixed8`].
//!
//! ```text
//! leaf   word 6: the entry lock           word 7: the checksum of words 0 to 5
//!        words 8…: key 0, value 0, check 0, key 1, value 1, check 1, …
//! check  [live:1][hash of slot, page version, key and value:63]       (free: key and value as 0)
//! ```
//!
//! The holder of a leaf's entry lock (`remote::EntryHold`) adds a record by a WRITE of its key and
//! value and another one of its check, replaces a value by one WRITE of value and check, and
//! deletes a record by a WRITE of the check. Word 0 changes only with the whole page.
//!
//! *Invariants*
//! - entries.N1. A copy whose checks all match its version has all entries of one version of the
//!   page, and each entry in a state that it had while it was read.
//! - entries.N2. A key is live in at most one slot of a leaf. A copy may show it twice, if it was
//!   deleted and added again meanwhile; either value was current.
//! - entries.N3. A check that is not live says nothing about the key and the value beside it. So a
//!   record may be added below it, and a WRITE that stops half-way leaves either a slot that is
//!   free, or a live one whose key is right and whose value is the old or the new one.
//!
//! After Wang et al., *Sherman* (SIGMOD 2022), §4.4, with a check of 63 bits in place of two
//! versions of 4 bits.
//!
//! *Thread safety*: the same as for [`super::Page`].

use super::checksum::{chained_sum, sum_of};
use super::fixed8::Fixed8;
use super::layout::{
    Entry, FencePosition, Layout, LeafDelete, LeafInsert, LeafReplace, Probe, ScanWindow, SplitPlan,
};
use super::view::{HEADER_WORDS, HIGH_WORD, LOW_WORD, META_WORD, Page, SELF_WORD};
use farleaf_fabric::GlobalAddr;
use std::ops::{Range, RangeBounds};

/// [`Fixed8`] with leaves that are written entry by entry. A page of 128 words (1 KB) holds 40
/// records, or 60 children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries8<const WORDS: usize = 128>;

/// Words of an entry: key, value, check.
const ENTRY_WORDS: usize = 3;
const CHECK: usize = 2;
const LIVE: u64 = 1 << 63;

type View<'a, const WORDS: usize> = Page<'a, Entries8<WORDS>>;

/// The same page as one of [`Fixed8`], for inner pages and headers.
#[inline]
fn plain<const WORDS: usize>(page: View<'_, WORDS>) -> Page<'_, Fixed8<WORDS>> {
    Page::new(page.words())
}

impl<const WORDS: usize> Entries8<WORDS> {
    /// Maximum number of records of a leaf.
    #[inline]
    fn most_records() -> usize {
        (Self::page_words() - HEADER_WORDS) / ENTRY_WORDS
    }

    /// The first word of an entry.
    #[inline]
    fn entry(slot: usize) -> usize {
        HEADER_WORDS + ENTRY_WORDS * slot
    }

    /// The check of a live record in a slot.
    #[inline]
    fn live_check(page: View<'_, WORDS>, slot: usize, key: u64, value: u64) -> u64 {
        let version = page.lock_word().version();
        sum_of([key, value, version, slot as u64].into_iter()) >> 1 | LIVE
    }

    /// The check of a free slot.
    #[inline]
    fn free_check(page: View<'_, WORDS>, slot: usize) -> u64 {
        Self::live_check(page, slot, 0, 0) & !LIVE
    }

    #[inline]
    fn is_live(page: View<'_, WORDS>, slot: usize) -> bool {
        page.load(Self::entry(slot) + CHECK) & LIVE != 0
    }

    #[inline]
    fn record(page: View<'_, WORDS>, slot: usize) -> (u64, u64) {
        (page.load(Self::entry(slot)), page.load(Self::entry(slot) + 1))
    }

    /// The check that the slot should have with its key, its value and its live bit.
    #[inline]
    fn due_check(page: View<'_, WORDS>, slot: usize) -> u64 {
        match Self::is_live(page, slot) {
            true => {
                let (key, value) = Self::record(page, slot);
                Self::live_check(page, slot, key, value)
            }
            false => Self::free_check(page, slot),
        }
    }

    /// Whether the slot has a record that is not torn.
    #[inline]
    fn is_sound(page: View<'_, WORDS>, slot: usize) -> bool {
        Self::is_live(page, slot)
            && page.load(Self::entry(slot) + CHECK) == Self::due_check(page, slot)
    }

    /// The slot of a record. A torn one counts as absent.
    #[inline]
    fn find(page: View<'_, WORDS>, key: u64) -> Option<usize> {
        (0..Self::most_records())
            .find(|&slot| page.load(Self::entry(slot)) == key && Self::is_sound(page, slot))
    }

    fn set_record(page: View<'_, WORDS>, slot: usize, key: u64, value: u64) {
        let entry = Self::entry(slot);
        page.store(entry, key);
        page.store(entry + 1, value);
        page.store(entry + CHECK, Self::live_check(page, slot, key, value));
    }

    fn free(page: View<'_, WORDS>, slot: usize) {
        page.store(Self::entry(slot) + CHECK, Self::free_check(page, slot));
    }

    fn live_slots(page: View<'_, WORDS>) -> impl Iterator<Item = usize> {
        (0..Self::most_records()).filter(move |&slot| Self::is_live(page, slot))
    }

    /// The records, by key, each key once.
    fn records(page: View<'_, WORDS>) -> Vec<(u64, u64)> {
        let sound = (0..Self::most_records()).filter(|&slot| Self::is_sound(page, slot));
        let mut records: Vec<_> = sound.map(|slot| Self::record(page, slot)).collect();
        records.sort_unstable();
        records.dedup_by_key(|record| record.0);
        records
    }

    /// Makes these the records of a leaf; there are not too many.
    fn set_records(page: View<'_, WORDS>, records: &[(u64, u64)]) {
        for slot in 0..Self::most_records() {
            match records.get(slot) {
                Some(&(key, value)) => Self::set_record(page, slot, key, value),
                None => Self::free(page, slot),
            }
        }
    }

    /// Frees the slots of the keys for which `keep` is false.
    fn retain(page: View<'_, WORDS>, keep: impl Fn(u64) -> bool) {
        for slot in Self::live_slots(page) {
            if !keep(Self::record(page, slot).0) {
                Self::free(page, slot);
            }
        }
    }

    /// The part of the weight of a full page that a full leaf has.
    fn leaf_fill(fill: usize) -> usize {
        (fill * Self::most_records() / Self::full()).max(1)
    }
}

impl<const WORDS: usize> Layout for Entries8<WORDS> {
    type Key = u64;
    type Value = u64;
    type Entries = Self;

    const HAS_HEAP: bool = false;
    const FORMAT: u8 = Fixed8::<WORDS>::FORMAT;
    const BY_ENTRIES: bool = true;

    type Filling = ();

    #[inline]
    fn page_words() -> usize {
        Fixed8::<WORDS>::page_words()
    }

    #[inline]
    fn capacity() -> usize {
        Fixed8::<WORDS>::capacity()
    }

    #[inline]
    fn full() -> usize {
        Fixed8::<WORDS>::full()
    }

    #[inline]
    fn most_message_bytes() -> usize {
        Fixed8::<WORDS>::most_message_bytes()
    }

    fn min_key() -> u64 {
        0
    }

    #[inline]
    fn key_bytes(key: &u64) -> usize {
        Fixed8::<WORDS>::key_bytes(key)
    }

    #[inline]
    fn value_bytes(value: &u64) -> usize {
        Fixed8::<WORDS>::value_bytes(value)
    }

    #[inline]
    fn value_of_address(at: GlobalAddr) -> u64 {
        Fixed8::<WORDS>::value_of_address(at)
    }

    #[inline]
    fn address_of_value(value: &u64) -> GlobalAddr {
        Fixed8::<WORDS>::address_of_value(value)
    }

    #[inline]
    fn hash(key: &u64) -> u64 {
        Fixed8::<WORDS>::hash(key)
    }

    #[inline]
    fn low(page: View<'_, WORDS>) -> u64 {
        Fixed8::low(plain(page))
    }

    #[inline]
    fn high(page: View<'_, WORDS>) -> Option<u64> {
        Fixed8::high(plain(page))
    }

    fn format_entries(page: View<'_, WORDS>, low: &u64, high: Option<&u64>) {
        Self::set_low(page, low);
        Self::set_high(page, high);
        if page.level() == 0 {
            page.set_count(Self::most_records());
            Self::set_records(page, &[]);
        }
    }

    fn set_low(page: View<'_, WORDS>, low: &u64) {
        Fixed8::set_low(plain(page), low);
    }

    fn set_high(page: View<'_, WORDS>, high: Option<&u64>) {
        Fixed8::set_high(plain(page), high);
    }

    #[inline]
    fn reach(page: View<'_, WORDS>, probe: Probe<'_, u64>) -> FencePosition {
        Fixed8::reach(plain(page), probe)
    }

    #[inline]
    fn leaf_get(page: View<'_, WORDS>, key: &u64) -> Option<u64> {
        Self::find(page, *key).map(|slot| Self::record(page, slot).1)
    }

    fn leaf_collect(
        page: View<'_, WORDS>,
        window: &ScanWindow<'_, u64>,
        out: &mut Vec<(u64, u64)>,
    ) -> usize {
        let before = out.len();
        let mut records = Self::records(page);
        records.retain(|(key, _)| (window.lower, window.upper).contains(key));
        match window.reverse {
            true => out.extend(records.into_iter().rev().take(window.limit)),
            false => out.extend(records.into_iter().take(window.limit)),
        }
        out.len() - before
    }

    /// The key and the value come before the check (entries.N3).
    fn leaf_insert(page: View<'_, WORDS>, key: &u64, value: &u64) -> LeafInsert {
        if Self::find(page, *key).is_some() {
            return LeafInsert::Exists;
        }
        let Some(slot) = (0..Self::most_records()).find(|&slot| !Self::is_live(page, slot)) else {
            return LeafInsert::Full;
        };
        Self::set_record(page, slot, *key, *value);
        LeafInsert::Inserted((Self::entry(slot)..Self::entry(slot + 1)).into())
    }

    #[inline]
    fn leaf_replace(page: View<'_, WORDS>, key: &u64, value: &u64) -> LeafReplace<u64> {
        let Some(slot) = Self::find(page, *key) else { return LeafReplace::Absent };
        Self::set_record(page, slot, *key, *value);
        LeafReplace::Replaced((Self::entry(slot) + 1..Self::entry(slot + 1)).into(), None)
    }

    fn leaf_has_room(page: View<'_, WORDS>, key: &u64, _value: &u64) -> bool {
        !Self::is_full(page) || Self::find(page, *key).is_some()
    }

    fn leaf_delete(page: View<'_, WORDS>, key: &u64) -> LeafDelete<u64> {
        let Some(slot) = Self::find(page, *key) else { return LeafDelete::Absent };
        Self::free(page, slot);
        let check = Self::entry(slot) + CHECK;
        LeafDelete::Deleted((check..check + 1).into(), None)
    }

    /// The free slots of a leaf.
    #[inline]
    fn deleted_count(page: View<'_, WORDS>) -> usize {
        match page.level() {
            0 => page.count().saturating_sub(Self::live_slots(page).count()),
            _ => 0,
        }
    }

    /// Free slots are used again as they are.
    fn leaf_compact(_page: View<'_, WORDS>) -> usize {
        0
    }

    fn record_window(_key: &u64) -> Range<usize> {
        HEADER_WORDS..Self::page_words()
    }

    #[inline]
    fn search_words(page: View<'_, WORDS>) -> Range<usize> {
        match page.level() {
            0 => HEADER_WORDS..Self::page_words(),
            _ => Fixed8::search_words(plain(page)),
        }
    }

    #[inline]
    fn inner_slot(page: View<'_, WORDS>, probe: Probe<'_, u64>) -> usize {
        Fixed8::inner_slot(plain(page), probe)
    }

    #[inline]
    fn inner_child_word(page: View<'_, WORDS>, slot: usize) -> usize {
        Fixed8::inner_child_word(plain(page), slot)
    }

    #[inline]
    fn inner_child(page: View<'_, WORDS>, slot: usize) -> GlobalAddr {
        Fixed8::inner_child(plain(page), slot)
    }

    fn inner_set_child(page: View<'_, WORDS>, slot: usize, child: GlobalAddr) {
        Fixed8::inner_set_child(plain(page), slot, child);
    }

    fn inner_key(page: View<'_, WORDS>, slot: usize) -> u64 {
        Fixed8::inner_key(plain(page), slot)
    }

    fn inner_insert(page: View<'_, WORDS>, key: &u64, child: GlobalAddr) -> bool {
        Fixed8::inner_insert(plain(page), key, child)
    }

    fn inner_has_room(page: View<'_, WORDS>, key: &u64) -> bool {
        Fixed8::inner_has_room(plain(page), key)
    }

    fn inner_remove(page: View<'_, WORDS>, slot: usize) {
        Fixed8::inner_remove(plain(page), slot);
    }

    fn inner_set_key(page: View<'_, WORDS>, slot: usize, key: &u64) -> bool {
        Fixed8::inner_set_key(plain(page), slot, key)
    }

    fn inner_can_set_key(page: View<'_, WORDS>, slot: usize, key: &u64) -> bool {
        Fixed8::inner_can_set_key(plain(page), slot, key)
    }

    #[inline]
    fn weight(page: View<'_, WORDS>) -> usize {
        match page.level() {
            0 => page.live_count() * Self::full() / Self::most_records(),
            _ => Fixed8::weight(plain(page)),
        }
    }

    fn record_weight(page: View<'_, WORDS>, key: &u64) -> usize {
        usize::from(Self::find(page, *key).is_some()) * Self::full() / Self::most_records()
    }

    fn is_full(page: View<'_, WORDS>) -> bool {
        match page.level() {
            0 => Self::live_slots(page).count() == Self::most_records(),
            _ => Fixed8::is_full(plain(page)),
        }
    }

    fn clear_unused(page: View<'_, WORDS>) {
        if page.level() > 0 {
            Fixed8::clear_unused(plain(page));
        }
    }

    fn seal_entries(page: View<'_, WORDS>) {
        if page.level() == 0 {
            for slot in 0..Self::most_records() {
                page.store(Self::entry(slot) + CHECK, Self::due_check(page, slot));
            }
        }
    }

    #[inline]
    fn entries_are_whole(page: View<'_, WORDS>) -> bool {
        let check = |slot| page.load(Self::entry(slot) + CHECK);
        page.level() > 0
            || (0..Self::most_records()).all(|slot| check(slot) == Self::due_check(page, slot))
    }

    fn mended_entries(page: View<'_, WORDS>, drops: bool) -> Vec<(usize, u64)> {
        if page.level() > 0 {
            return Vec::new();
        }
        let check = |slot| (Self::entry(slot) + CHECK, Self::due_check(page, slot));
        let checks = (0..Self::most_records()).map(check);
        let torn = checks.enumerate().filter(|(_, (word, due))| page.load(*word) != *due);
        torn.map(|(slot, (word, due))| {
            (word, if drops { Self::free_check(page, slot) } else { due })
        })
        .collect()
    }

    /// The middle, whatever is pending: either half has room for another entry.
    fn split_plan(page: View<'_, WORDS>, _pending: Option<&Entry<Self>>) -> SplitPlan<u64> {
        if page.level() > 0 {
            return Fixed8::split_plan(plain(page), None);
        }
        let records = Self::records(page);
        let slot = records.len() / 2;
        SplitPlan { slot, separator: records[slot].0 }
    }

    fn split_copy(
        left: View<'_, WORDS>,
        right: View<'_, WORDS>,
        right_at: GlobalAddr,
        plan: &SplitPlan<u64>,
    ) {
        if left.level() > 0 {
            return Fixed8::split_copy(plain(left), plain(right), right_at, plan);
        }
        right.format_empty(right_at, 0, &plan.separator, Self::high(left).as_ref());
        right.set_sibling(left.sibling());
        Self::set_records(right, &Self::records(left)[plan.slot..]);
    }

    fn split_truncate(left: View<'_, WORDS>, plan: &SplitPlan<u64>) {
        match left.level() {
            0 => Self::retain(left, |key| key < plan.separator),
            _ => Fixed8::split_truncate(plain(left), plan),
        }
    }

    fn trim(page: View<'_, WORDS>, low: &u64, high: Option<&u64>) -> bool {
        if page.level() > 0 {
            return Fixed8::trim(plain(page), low, high);
        }
        Self::retain(page, |key| key >= *low && high.is_none_or(|high| key < *high));
        Self::set_low(page, low);
        Self::set_high(page, high);
        true
    }

    fn leaf_sum(page: View<'_, WORDS>) -> u64 {
        let header = [SELF_WORD, LOW_WORD, HIGH_WORD, META_WORD].map(|word| page.load(word));
        let slot = |slot| {
            let (key, _) = Self::record(page, slot);
            if Self::is_live(page, slot) { [1, key] } else { [0, 0] }
        };
        chained_sum(header.into_iter().chain((0..Self::most_records()).flat_map(slot)))
    }

    fn fits_merged(left: View<'_, WORDS>, right: View<'_, WORDS>) -> bool {
        match left.level() {
            0 => {
                let most = Self::most_records() - Self::most_records() / 8;
                left.live_count() + right.live_count() <= most
            }
            _ => Fixed8::fits_merged(plain(left), plain(right)),
        }
    }

    fn merge(left: View<'_, WORDS>, right: View<'_, WORDS>) {
        if left.level() > 0 {
            return Fixed8::merge(plain(left), plain(right));
        }
        let records = [Self::records(left), Self::records(right)].concat();
        Self::set_records(left, &records);
        Self::set_high(left, Self::high(right).as_ref());
        left.set_sibling(right.sibling());
    }

    fn rebalance(
        left: View<'_, WORDS>,
        right: View<'_, WORDS>,
        fits: impl Fn(&u64) -> bool,
    ) -> Option<u64> {
        if left.level() > 0 {
            return Fixed8::rebalance(plain(left), plain(right), fits);
        }
        let (lower, upper) = (Self::records(left), Self::records(right));
        if lower.len().abs_diff(upper.len()) <= 1 {
            return None;
        }
        let records = [lower, upper].concat();
        let (lower, upper) = records.split_at(records.len() / 2);
        let separator = upper[0].0;
        if !fits(&separator) {
            return None;
        }
        Self::set_records(left, lower);
        Self::set_records(right, upper);
        Self::set_high(left, Some(&separator));
        Self::set_low(right, &separator);
        Some(separator)
    }

    fn fill_leaf(
        _filling: &mut (),
        page: View<'_, WORDS>,
        (key, value): (&u64, &u64),
        fill: usize,
    ) -> bool {
        page.live_count() < Self::leaf_fill(fill)
            && Self::leaf_insert(page, key, value).is_inserted()
    }

    fn fill_inner(
        filling: &mut (),
        page: View<'_, WORDS>,
        child: (&u64, GlobalAddr),
        fill: usize,
    ) -> bool {
        Fixed8::fill_inner(filling, plain(page), child, fill)
    }

    fn is_filled(filling: &(), page: View<'_, WORDS>, fill: usize) -> bool {
        match page.level() {
            0 => page.live_count() >= Self::leaf_fill(fill),
            _ => Fixed8::is_filled(filling, plain(page), fill),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::LockWord;
    use super::*;
    use farleaf_fabric::ServerId;
    use farleaf_fabric::sync::{AtomicU64, Ordering};
    use std::ops::Bound;

    type Leaf = Entries8<128>;

    fn words() -> Vec<AtomicU64> {
        (0..128).map(|_| AtomicU64::new(0)).collect()
    }

    fn load(words: &[AtomicU64]) -> Vec<u64> {
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn leaf(words: &[AtomicU64], version: u64) -> Page<'_, Leaf> {
        let page = Page::<Leaf>::new(words);
        page.format_empty(GlobalAddr::new(ServerId::new(1), 4096), 0, &5, None);
        for key in 5..20 {
            assert!(Leaf::leaf_insert(page, &key, &(key * 3)).is_inserted());
        }
        page.seal(LockWord::from_bits(version).next_by(3));
        page
    }

    /// Each WRITE of a change, torn in every way: a reader refuses the leaf, or finds the old or
    /// the new record. What is mended is the old or the new leaf.
    #[test]
    fn a_torn_entry_is_refused_and_mended() {
        for change in 0..3 {
            let (old, new) = (words(), words());
            let (before, after) = (leaf(&old, 0), leaf(&new, 0));
            let writes: Vec<Range<usize>> = match change {
                0 => {
                    let LeafReplace::Replaced(words, None) = Leaf::leaf_replace(after, &9, &77)
                    else {
                        panic!("it is there")
                    };
                    vec![words.front()]
                }
                1 => {
                    let LeafInsert::Inserted(words) = Leaf::leaf_insert(after, &50, &77) else {
                        panic!("there is room")
                    };
                    let all = words.front();
                    vec![all.start..all.end - 1, all.end - 1..all.end]
                }
                _ => {
                    let LeafDelete::Deleted(words, None) = Leaf::leaf_delete(after, &9) else {
                        panic!("it is there")
                    };
                    vec![words.front()]
                }
            };
            assert!(before.is_of_one_piece() && after.is_of_one_piece(), "change {change}");
            let key = if change == 1 { 50 } else { 9 };
            let outcomes = [Leaf::leaf_get(before, &key), Leaf::leaf_get(after, &key)];
            let (old, new) = (load(&old), load(&new));
            let mut landed = old.clone();
            for write in writes {
                for subset in 0..1_u32 << write.len() {
                    let mut torn = landed.clone();
                    for word in write.clone().filter(|word| subset >> (word - write.start) & 1 == 1)
                    {
                        torn[word] = new[word];
                    }
                    let torn: Vec<_> = torn.into_iter().map(AtomicU64::new).collect();
                    let page = Page::<Leaf>::new(&torn);
                    if page.is_of_one_piece() {
                        assert!(outcomes.contains(&Leaf::leaf_get(page, &key)));
                        assert_eq!(Leaf::mended_entries(page, false), []);
                        continue;
                    }
                    let mends = Leaf::mended_entries(page, false);
                    assert_eq!(mends.len(), 1, "change {change}");
                    for (word, due) in mends {
                        torn[word].store(due, Ordering::Relaxed);
                    }
                    assert!(page.is_of_one_piece(), "change {change}, {subset:b} of {write:?}");
                    assert!(outcomes.contains(&Leaf::leaf_get(page, &key)), "change {change}");
                }
                landed[write.clone()].copy_from_slice(&new[write]);
            }
            assert_eq!(landed, new, "change {change}: these are all changed words");
        }
    }

    /// Two versions of a leaf with the same records differ in every check.
    #[test]
    fn entries_of_two_versions_do_not_mix() {
        let (one, other) = (words(), words());
        let (page, _) = (leaf(&one, 0), leaf(&other, 1));
        let free = Leaf::entry(30) + CHECK;
        for word in [0, 7, Leaf::entry(0) + CHECK, free] {
            let held = one[word].swap(other[word].load(Ordering::Relaxed), Ordering::Relaxed);
            assert!(!page.is_of_one_piece(), "word {word}");
            one[word].store(held, Ordering::Relaxed);
        }
        one[6].store(u64::MAX, Ordering::Relaxed);
        assert!(page.is_of_one_piece(), "the entry lock does not count");
    }

    #[test]
    fn a_full_leaf_splits_in_two() {
        let (one, other) = (words(), words());
        let (left, right) = (leaf(&one, 0), Page::<Leaf>::new(&other));
        let mut keys: Vec<u64> = (5..20).collect();
        for key in (0..140).rev().map(|number| 20 + number * 7) {
            if Leaf::leaf_insert(left, &key, &(key * 3)) == LeafInsert::Full {
                break;
            }
            keys.push(key);
        }
        assert!(Leaf::is_full(left) && keys.len() == 40 && left.live_count() == 40);
        keys.sort_unstable();
        let plan = Leaf::split_plan(left, None);
        let at = GlobalAddr::new(ServerId::new(0), 8192);
        Leaf::split_copy(left, right, at, &plan);
        Leaf::split_truncate(left, &plan);
        Leaf::split_link(left, &plan.separator, at);
        let all = ScanWindow {
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            reverse: false,
            limit: 100,
        };
        let mut found = Vec::new();
        assert_eq!(Leaf::leaf_collect(left, &all, &mut found), 20);
        assert_eq!(Leaf::leaf_collect(right, &all, &mut found), 20);
        assert_eq!(found, keys.iter().map(|key| (*key, key * 3)).collect::<Vec<_>>());
        assert_eq!((Leaf::high(left), Leaf::low(right)), (Some(keys[20]), keys[20]));
        let mut downwards = Vec::new();
        let some = ScanWindow { reverse: true, limit: 3, upper: Bound::Excluded(&keys[39]), ..all };
        Leaf::leaf_collect(right, &some, &mut downwards);
        let expected = [38, 37, 36].map(|number| (keys[number], keys[number] * 3));
        assert_eq!(downwards, expected);
    }
}
