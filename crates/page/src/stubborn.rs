//! A layout for tests: [`Fixed8`], but it refuses changes that a layout may refuse, as layouts with
//! entries of different sizes do.
//!
//! Whether a page refuses depends, through a hash, on its low fence and its number of entries. So a
//! page in a frame and its image in the pool refuse alike (layout.Y7), and a page keeps refusing
//! until it changes. A page that is at most half full accepts every entry, so layout.Y6 holds.
//!
//! *Thread safety*: the same as for [`super::Page`].

use super::layout::{
    DescentProbe, FencePosition, Layout, LeafDelete, LeafInsert, LeafReplace, OverflowEntry,
    ScanWindow, SplitPlan,
};
use super::{Fixed8, Page};
use farleaf_fabric::GlobalAddr;
use std::ops::Range;

/// [`Fixed8`] that refuses one change in [`RefusingLayout::ONE_IN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusingLayout<const WORDS: usize = 128, const SEED: u64 = 1>;

type RefusingPage<'a, const WORDS: usize, const SEED: u64> = Page<'a, RefusingLayout<WORDS, SEED>>;

/// The same page as one of [`Fixed8`].
fn plain<const WORDS: usize, const SEED: u64>(
    page: RefusingPage<'_, WORDS, SEED>,
) -> Page<'_, Fixed8<WORDS>> {
    Page::new(page.words())
}

impl<const WORDS: usize, const SEED: u64> RefusingLayout<WORDS, SEED> {
    /// One change in this many is refused.
    pub const ONE_IN: u64 = 3;

    fn refuses(page: RefusingPage<'_, WORDS, SEED>) -> bool {
        let low = Fixed8::<WORDS>::low(plain(page));
        let state = Fixed8::<WORDS>::hash(&(low ^ SEED << 56)) ^ page.count() as u64;
        Fixed8::<WORDS>::hash(&state).is_multiple_of(Self::ONE_IN)
    }

    /// Whether the page refuses another entry, or another value.
    fn refuses_entry(page: RefusingPage<'_, WORDS, SEED>) -> bool {
        page.count() > Self::capacity() / 2 + 1 && Self::refuses(page)
    }
}

impl<const WORDS: usize, const SEED: u64> Layout for RefusingLayout<WORDS, SEED> {
    type Key = u64;
    type Value = u64;
    type Entries = Self;
    type Hops = Self;

    const HAS_HEAP: bool = false;
    const FORMAT: u8 = Fixed8::<WORDS>::FORMAT;

    type Filling = ();

    fn page_words() -> usize {
        Fixed8::<WORDS>::page_words()
    }

    fn capacity() -> usize {
        Fixed8::<WORDS>::capacity()
    }

    fn full() -> usize {
        Fixed8::<WORDS>::full()
    }

    fn most_message_bytes() -> usize {
        Fixed8::<WORDS>::most_message_bytes()
    }

    fn min_key() -> u64 {
        Fixed8::<WORDS>::min_key()
    }

    fn key_bytes(key: &u64) -> usize {
        Fixed8::<WORDS>::key_bytes(key)
    }

    fn value_bytes(value: &u64) -> usize {
        Fixed8::<WORDS>::value_bytes(value)
    }

    fn value_of_address(at: GlobalAddr) -> u64 {
        Fixed8::<WORDS>::value_of_address(at)
    }

    fn address_of_value(value: &u64) -> GlobalAddr {
        Fixed8::<WORDS>::address_of_value(value)
    }

    fn hash(key: &u64) -> u64 {
        Fixed8::<WORDS>::hash(key)
    }

    fn low(page: RefusingPage<'_, WORDS, SEED>) -> u64 {
        Fixed8::low(plain(page))
    }

    fn high(page: RefusingPage<'_, WORDS, SEED>) -> Option<u64> {
        Fixed8::high(plain(page))
    }

    fn set_low(page: RefusingPage<'_, WORDS, SEED>, low: &u64) {
        Fixed8::set_low(plain(page), low);
    }

    fn set_high(page: RefusingPage<'_, WORDS, SEED>, high: Option<&u64>) {
        Fixed8::set_high(plain(page), high);
    }

    fn reach(page: RefusingPage<'_, WORDS, SEED>, probe: DescentProbe<'_, u64>) -> FencePosition {
        Fixed8::reach(plain(page), probe)
    }

    fn leaf_get(page: RefusingPage<'_, WORDS, SEED>, key: &u64) -> Option<u64> {
        Fixed8::leaf_get(plain(page), key)
    }

    fn leaf_collect(
        page: RefusingPage<'_, WORDS, SEED>,
        window: &ScanWindow<'_, u64>,
        out: &mut Vec<(u64, u64)>,
    ) -> usize {
        Fixed8::leaf_collect(plain(page), window, out)
    }

    fn leaf_insert(page: RefusingPage<'_, WORDS, SEED>, key: &u64, value: &u64) -> LeafInsert {
        if Self::refuses_entry(page) && Self::leaf_get(page, key).is_none() {
            return LeafInsert::Full;
        }
        Fixed8::leaf_insert(plain(page), key, value)
    }

    fn leaf_replace(
        page: RefusingPage<'_, WORDS, SEED>,
        key: &u64,
        value: &u64,
    ) -> LeafReplace<u64> {
        if Self::refuses_entry(page) && Self::leaf_get(page, key).is_some() {
            return LeafReplace::Full;
        }
        Fixed8::leaf_replace(plain(page), key, value)
    }

    fn leaf_has_room(page: RefusingPage<'_, WORDS, SEED>, key: &u64, value: &u64) -> bool {
        !Self::refuses_entry(page) && Fixed8::leaf_has_room(plain(page), key, value)
    }

    fn leaf_delete(page: RefusingPage<'_, WORDS, SEED>, key: &u64) -> LeafDelete<u64> {
        Fixed8::leaf_delete(plain(page), key)
    }

    fn leaf_compact(page: RefusingPage<'_, WORDS, SEED>) -> usize {
        Fixed8::leaf_compact(plain(page))
    }

    fn record_window(key: &u64) -> Range<usize> {
        Fixed8::<WORDS>::record_window(key)
    }

    fn deleted_count(page: RefusingPage<'_, WORDS, SEED>) -> usize {
        Fixed8::deleted_count(plain(page))
    }

    fn search_words(page: RefusingPage<'_, WORDS, SEED>) -> Range<usize> {
        Fixed8::search_words(plain(page))
    }

    fn inner_child_word(page: RefusingPage<'_, WORDS, SEED>, slot: usize) -> usize {
        Fixed8::inner_child_word(plain(page), slot)
    }

    fn inner_slot(page: RefusingPage<'_, WORDS, SEED>, probe: DescentProbe<'_, u64>) -> usize {
        Fixed8::inner_slot(plain(page), probe)
    }

    fn inner_child(page: RefusingPage<'_, WORDS, SEED>, slot: usize) -> GlobalAddr {
        Fixed8::inner_child(plain(page), slot)
    }

    fn inner_set_child(page: RefusingPage<'_, WORDS, SEED>, slot: usize, child: GlobalAddr) {
        Fixed8::inner_set_child(plain(page), slot, child);
    }

    fn inner_key(page: RefusingPage<'_, WORDS, SEED>, slot: usize) -> u64 {
        Fixed8::inner_key(plain(page), slot)
    }

    fn inner_insert(page: RefusingPage<'_, WORDS, SEED>, key: &u64, child: GlobalAddr) -> bool {
        !Self::refuses_entry(page) && Fixed8::inner_insert(plain(page), key, child)
    }

    fn inner_has_room(page: RefusingPage<'_, WORDS, SEED>, key: &u64) -> bool {
        !Self::refuses_entry(page) && Fixed8::inner_has_room(plain(page), key)
    }

    fn inner_remove(page: RefusingPage<'_, WORDS, SEED>, slot: usize) {
        Fixed8::inner_remove(plain(page), slot);
    }

    fn inner_set_key(page: RefusingPage<'_, WORDS, SEED>, slot: usize, key: &u64) -> bool {
        !Self::refuses(page) && Fixed8::inner_set_key(plain(page), slot, key)
    }

    fn inner_can_set_key(page: RefusingPage<'_, WORDS, SEED>, slot: usize, key: &u64) -> bool {
        !Self::refuses(page) && Fixed8::inner_can_set_key(plain(page), slot, key)
    }

    fn weight(page: RefusingPage<'_, WORDS, SEED>) -> usize {
        Fixed8::weight(plain(page))
    }

    fn record_weight(page: RefusingPage<'_, WORDS, SEED>, key: &u64) -> usize {
        Fixed8::record_weight(plain(page), key)
    }

    fn is_full(page: RefusingPage<'_, WORDS, SEED>) -> bool {
        Fixed8::is_full(plain(page))
    }

    fn clear_unused(page: RefusingPage<'_, WORDS, SEED>) {
        Fixed8::clear_unused(plain(page));
    }

    fn split_plan(
        page: RefusingPage<'_, WORDS, SEED>,
        _pending: Option<&OverflowEntry<Self>>,
    ) -> SplitPlan<u64> {
        // The middle: a page of this layout refuses entries before it is full (layout.Y6).
        let slot = page.count() / 2;
        SplitPlan { slot, separator: Fixed8::key_of(plain(page), slot) }
    }

    fn split_copy(
        left: RefusingPage<'_, WORDS, SEED>,
        right: RefusingPage<'_, WORDS, SEED>,
        right_at: GlobalAddr,
        plan: &SplitPlan<u64>,
    ) {
        Fixed8::split_copy(plain(left), plain(right), right_at, plan);
    }

    fn split_truncate(left: RefusingPage<'_, WORDS, SEED>, plan: &SplitPlan<u64>) {
        Fixed8::split_truncate(plain(left), plan);
    }

    fn trim(page: RefusingPage<'_, WORDS, SEED>, low: &u64, high: Option<&u64>) -> bool {
        Fixed8::trim(plain(page), low, high)
    }

    fn leaf_sum(page: RefusingPage<'_, WORDS, SEED>) -> u64 {
        Fixed8::leaf_sum(plain(page))
    }

    fn fits_merged(
        left: RefusingPage<'_, WORDS, SEED>,
        right: RefusingPage<'_, WORDS, SEED>,
    ) -> bool {
        Fixed8::fits_merged(plain(left), plain(right))
    }

    fn merge(left: RefusingPage<'_, WORDS, SEED>, right: RefusingPage<'_, WORDS, SEED>) {
        Fixed8::merge(plain(left), plain(right));
    }

    fn rebalance(
        left: RefusingPage<'_, WORDS, SEED>,
        right: RefusingPage<'_, WORDS, SEED>,
        fits: impl Fn(&u64) -> bool,
    ) -> Option<u64> {
        match Self::refuses(left) {
            true => None,
            false => Fixed8::rebalance(plain(left), plain(right), fits),
        }
    }

    fn fill_leaf(
        filling: &mut (),
        page: RefusingPage<'_, WORDS, SEED>,
        record: (&u64, &u64),
        fill: usize,
    ) -> bool {
        !Self::refuses_entry(page) && Fixed8::fill_leaf(filling, plain(page), record, fill)
    }

    fn fill_inner(
        filling: &mut (),
        page: RefusingPage<'_, WORDS, SEED>,
        child: (&u64, GlobalAddr),
        fill: usize,
    ) -> bool {
        !Self::refuses_entry(page) && Fixed8::fill_inner(filling, plain(page), child, fill)
    }

    fn is_filled(filling: &(), page: RefusingPage<'_, WORDS, SEED>, fill: usize) -> bool {
        Self::refuses_entry(page) || Fixed8::is_filled(filling, plain(page), fill)
    }
}
