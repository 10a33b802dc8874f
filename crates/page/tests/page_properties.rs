//! Properties of page operations, checked against a `BTreeMap`, on tiny pages and on real ones.
#![cfg(not(any(loom, shuttle)))]

use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_page::{
    DescentProbe, FencePosition, Fixed8, Layout, LeafDelete, LeafInsert, LeafReplace, Page,
    ScanWindow,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;

struct OwnedPage(Vec<AtomicU64>);

impl OwnedPage {
    fn new<const W: usize>() -> Self {
        Self((0..W).map(|_| AtomicU64::new(0)).collect())
    }

    fn page<const W: usize>(&self) -> Page<'_, Fixed8<W>> {
        Page::new(&self.0)
    }
}

fn at(number: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId::new(0), number * 1024)
}

#[derive(Clone, Debug)]
enum Change {
    Insert(u64, u64),
    Replace(u64, u64),
    Delete(u64),
    Compact,
}

/// Few keys, so that operations collide; the extreme keys are among them.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0..100u64).prop_map(|k| k * 1_000), 1 => Just(u64::MAX), 1 => Just(u64::MAX - 1)]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (key(), any::<u64>()).prop_map(|(k, v)| Change::Insert(k, v)),
        2 => (key(), any::<u64>()).prop_map(|(k, v)| Change::Replace(k, v)),
        3 => key().prop_map(Change::Delete),
        1 => Just(Change::Compact),
    ]
}

type Model = BTreeMap<u64, u64>;

fn apply<const W: usize>(page: Page<'_, Fixed8<W>>, model: &mut Model, change: &Change) {
    match *change {
        Change::Insert(key, value) => {
            let there = model.contains_key(&key);
            match Fixed8::<W>::leaf_insert(page, &key, &value) {
                LeafInsert::Inserted(_) => assert_eq!(model.insert(key, value), None),
                LeafInsert::Exists => assert!(there),
                LeafInsert::Full => {
                    assert!(!there);
                    assert_eq!(model.len(), Fixed8::<W>::capacity(), "full only without garbage");
                }
            }
        }
        Change::Replace(key, value) => {
            let replaced = Fixed8::<W>::leaf_replace(page, &key, &value);
            assert_eq!(replaced != LeafReplace::Absent, model.contains_key(&key));
            model.entry(key).and_modify(|held| *held = value);
        }
        Change::Delete(key) => {
            let deleted = Fixed8::<W>::leaf_delete(page, &key);
            assert_eq!(deleted != LeafDelete::Absent, model.remove(&key).is_some());
        }
        Change::Compact => {
            let deleted = page.deleted_count();
            assert_eq!(Fixed8::<W>::leaf_compact(page), deleted);
            assert_eq!(page.deleted_count(), 0);
        }
    }
}

fn contents<const W: usize>(page: Page<'_, Fixed8<W>>) -> Vec<(u64, u64)> {
    let window =
        ScanWindow { lower: Bound::Unbounded, upper: Bound::Unbounded, reverse: false, limit: 999 };
    let mut out = Vec::new();
    Fixed8::<W>::leaf_collect(page, &window, &mut out);
    out
}

fn leaf_matches<const W: usize>(page: Page<'_, Fixed8<W>>, model: &Model) {
    assert_eq!(contents(page), model.iter().map(|(&k, &v)| (k, v)).collect::<Vec<_>>());
    assert_eq!(page.live_count(), model.len());
    for key in (0..100).map(|k| k * 1_000).chain([u64::MAX, u64::MAX - 1, 1]) {
        assert_eq!(Fixed8::<W>::leaf_get(page, &key), model.get(&key).copied());
    }
}

fn grown<const W: usize>(changes: &[Change]) -> (OwnedPage, Model) {
    let owned = OwnedPage::new::<W>();
    owned.page::<W>().format_empty(at(1), 0, &0, None);
    let mut model = Model::new();
    for change in changes {
        apply(owned.page::<W>(), &mut model, change);
    }
    (owned, model)
}

fn split_and_join<const W: usize>(changes: &[Change]) {
    let (left, model) = grown::<W>(changes);
    let left = left.page::<W>();
    Fixed8::<W>::leaf_compact(left);
    if left.count() < 2 {
        return;
    }
    let right = OwnedPage::new::<W>();
    let right = right.page::<W>();
    let plan = Fixed8::<W>::split_plan(left, None);
    let separator = plan.separator;
    Fixed8::<W>::split_copy(left, right, at(2), &plan);
    Fixed8::<W>::split_truncate(left, &plan);
    Fixed8::<W>::split_link(left, &separator, at(2));
    let halves: Vec<_> = contents(left).into_iter().chain(contents(right)).collect();
    assert_eq!(halves, model.iter().map(|(&k, &v)| (k, v)).collect::<Vec<_>>());
    assert_eq!((left.sibling(), right.sibling()), (at(2), GlobalAddr::NULL));
    assert_eq!(Fixed8::<W>::high(left), Some(Fixed8::<W>::low(right)));
    for key in model.keys() {
        let expected = if *key < separator { FencePosition::Inside } else { FencePosition::Beyond };
        assert_eq!(Fixed8::<W>::reach(left, DescentProbe::At(key)), expected);
    }
    // Unbalance them, rebalance them, and merge them again.
    while left.count() > 1 {
        let (last, _) = contents(left)[left.count() - 1];
        Fixed8::<W>::leaf_delete(left, &last);
        Fixed8::<W>::leaf_compact(left);
        let expected: Vec<_> = contents(left).into_iter().chain(contents(right)).collect();
        if left.count().abs_diff(right.count()) > 1 {
            let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
            let words =
                || [left, right].map(|page| page.words().iter().map(load).collect::<Vec<_>>());
            let before = words();
            assert_eq!(Fixed8::<W>::rebalance(left, right, |_| false), None);
            assert_eq!(words(), before, "Y8: a refused change changes nothing");
            let separator = Fixed8::<W>::rebalance(left, right, |_| true).unwrap();
            assert!(left.count().abs_diff(right.count()) <= 1);
            assert_eq!(Fixed8::<W>::high(left), Some(separator));
            assert_eq!(Fixed8::<W>::low(right), separator);
        }
        if left.count().abs_diff(right.count()) <= 1 {
            assert_eq!(Fixed8::<W>::rebalance(left, right, |_| true), None, "nothing to even out");
        }
        let both: Vec<_> = contents(left).into_iter().chain(contents(right)).collect();
        assert_eq!(both, expected);
        if Fixed8::<W>::fits_merged(left, right) {
            Fixed8::<W>::merge(left, right);
            assert_eq!(contents(left), expected);
            assert!(left.high_is_infinite());
            assert!(left.sibling().is_null());
            return;
        }
    }
}

fn inner_entries<const W: usize>(keys: &std::collections::BTreeSet<u64>) {
    let owned = OwnedPage::new::<W>();
    let page = owned.page::<W>();
    page.format_empty(at(1), 1, &0, None);
    assert!(Fixed8::<W>::inner_insert(page, &0, at(1_000_000)));
    let mut model: BTreeMap<u64, GlobalAddr> = [(0, at(1_000_000))].into();
    for (number, &key) in keys.iter().rev().enumerate().filter(|&(_, &key)| key > 0) {
        let child = at(number as u64 + 2);
        let fits = Fixed8::<W>::inner_insert(page, &key, child);
        assert_eq!(fits, model.len() < Fixed8::<W>::capacity());
        if fits {
            model.insert(key, child);
        }
    }
    fn child<const W: usize>(
        page: Page<'_, Fixed8<W>>,
        probe: DescentProbe<'_, u64>,
    ) -> GlobalAddr {
        Fixed8::<W>::inner_child(page, Fixed8::<W>::inner_slot(page, probe))
    }
    for key in keys.iter().flat_map(|&k| [k.saturating_sub(1), k, k.saturating_add(1)]) {
        let expected = *model.range(..=key).next_back().unwrap().1;
        assert_eq!(child(page, DescentProbe::At(&key)), expected);
        if key > 0 {
            assert_eq!(
                child(page, DescentProbe::Before(&key)),
                *model.range(..key).next_back().unwrap().1
            );
        }
    }
    assert_eq!(child(page, DescentProbe::Last), *model.values().next_back().unwrap());
    while page.count() > 1 {
        let slot = page.count() / 2;
        model.remove(&Fixed8::<W>::inner_key(page, slot));
        Fixed8::<W>::inner_remove(page, slot);
        let left: Vec<_> = (0..page.count())
            .map(|slot| (Fixed8::<W>::inner_key(page, slot), Fixed8::<W>::inner_child(page, slot)))
            .collect();
        assert_eq!(left, model.clone().into_iter().collect::<Vec<_>>());
    }
}

/// `trim` keeps exactly the records of a leaf between the bounds.
fn trimmed_leaf<const W: usize>(changes: &[Change], low: u64, high: Option<u64>) {
    let (owned, model) = grown::<W>(changes);
    let page = owned.page::<W>();
    assert!(Fixed8::<W>::trim(page, &low, high.as_ref()));
    let inside = |key: &u64| *key >= low && high.is_none_or(|high| *key < high);
    let expected: Model = model.into_iter().filter(|(key, _)| inside(key)).collect();
    leaf_matches(page, &expected);
    assert_eq!((Fixed8::<W>::low(page), Fixed8::<W>::high(page)), (low, high));
    Fixed8::<W>::leaf_compact(page);
    assert_eq!(page.count(), expected.len(), "what was deleted stays deleted");
}

/// After `trim`, an inner page still maps each key between the bounds to the same child.
fn trimmed_inner<const W: usize>(
    keys: &std::collections::BTreeSet<u64>,
    low: u64,
    high: Option<u64>,
) {
    let owned = OwnedPage::new::<W>();
    let page = owned.page::<W>();
    page.format_empty(at(1), 1, &0, None);
    assert!(Fixed8::<W>::inner_insert(page, &0, at(2)));
    for (number, key) in keys.iter().enumerate().filter(|(_, key)| **key > 0) {
        let _ = Fixed8::<W>::inner_insert(page, key, at(number as u64 + 3));
    }
    let probes: Vec<u64> = keys
        .iter()
        .flat_map(|key| [key.saturating_sub(1), *key])
        .chain([low, high.map_or(u64::MAX, |high| high - 1)])
        .filter(|key| *key >= low && high.is_none_or(|high| *key < high))
        .collect();
    let leads = || -> Vec<_> {
        let slot = |key| Fixed8::<W>::inner_slot(page, DescentProbe::At(key));
        probes.iter().map(|key| Fixed8::<W>::inner_child(page, slot(key))).collect()
    };
    let before = leads();
    assert!(Fixed8::<W>::trim(page, &low, high.as_ref()));
    assert_eq!(leads(), before);
    assert_eq!((Fixed8::<W>::low(page), Fixed8::<W>::high(page)), (low, high));
    assert_eq!(Fixed8::<W>::inner_key(page, 0), low, "P5");
    let inside = (1..page.count()).map(|slot| Fixed8::<W>::inner_key(page, slot));
    assert!(inside.is_sorted_by(|one, other| low < *one && one < other));
}

/// A leaf whose WRITE stopped half-way: each word is old or new. If its stamp matches, only values
/// can be mixed.
fn torn_leaf<const W: usize>(changes: &[Change], later: &[Change], landed: &[bool]) {
    let (owned, mut model) = grown::<W>(changes);
    let page = owned.page::<W>();
    let words = |page: Page<'_, Fixed8<W>>| -> Vec<u64> {
        page.set_stamp();
        owned.0.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    };
    // Everything that the stamp covers.
    let keys = |page: Page<'_, Fixed8<W>>| {
        let records = contents(page).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        (records, page.count(), page.deleted_count())
    };
    let (old, old_keys) = (words(page), keys(page));
    later.iter().for_each(|change| apply(page, &mut model, change));
    let (new, new_keys) = (words(page), keys(page));
    let set = |words: &mut dyn Iterator<Item = u64>| {
        owned.0.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    };
    set(&mut (0..W).map(|place| if landed[place] { new[place] } else { old[place] }));
    if page.stamp_fits() {
        let torn_keys = keys(page);
        assert!(torn_keys == old_keys || torn_keys == new_keys, "{torn_keys:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_leaf_is_a_small_map(changes in prop::collection::vec(change(), 0..250)) {
        let (owned, model) = grown::<128>(&changes);
        leaf_matches(owned.page::<128>(), &model);
        let (owned, model) = grown::<16>(&changes);
        leaf_matches(owned.page::<16>(), &model);
    }

    #[test]
    fn a_window_of_a_leaf(
        changes in prop::collection::vec(change(), 0..120),
        low in key(), high in key(), kinds in (0..3u8, 0..3u8), reverse: bool, limit in 0..70usize,
    ) {
        let (owned, model) = grown::<128>(&changes);
        let bound = |kind, key| match kind {
            0 => Bound::Unbounded,
            1 => Bound::Included(key),
            _ => Bound::Excluded(key),
        };
        let (lower, upper) = (bound(kinds.0, &low), bound(kinds.1, &high));
        let window = ScanWindow { lower, upper, reverse, limit };
        let mut out = Vec::new();
        let count = Fixed8::<128>::leaf_collect(owned.page::<128>(), &window, &mut out);
        prop_assert_eq!(count, out.len());
        let above = |key: &u64| match lower { Bound::Unbounded => true, Bound::Included(low) => key >= low, Bound::Excluded(low) => key > low };
        let below = |key: &u64| match upper { Bound::Unbounded => true, Bound::Included(high) => key <= high, Bound::Excluded(high) => key < high };
        let mut expected: Vec<_> = model.into_iter().filter(|(k, _)| above(k) && below(k)).collect();
        if reverse { expected.reverse(); }
        expected.truncate(limit);
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn splits_merges_and_rebalancing_keep_every_record(changes in prop::collection::vec(change(), 0..200)) {
        split_and_join::<128>(&changes);
        split_and_join::<16>(&changes);
    }

    #[test]
    fn an_inner_page_leads_to_the_child_that_covers(keys in prop::collection::btree_set(any::<u64>(), 0..80)) {
        inner_entries::<128>(&keys);
        inner_entries::<16>(&keys);
    }

    #[test]
    fn a_trimmed_page_has_what_lies_between_the_bounds(
        changes in prop::collection::vec(change(), 0..150),
        keys in prop::collection::btree_set(key(), 0..80),
        bounds in (key(), prop::option::of(key())),
    ) {
        let (low, high) = match bounds {
            (one, Some(other)) if one < other => (one, Some(other)),
            (one, Some(other)) if other < one => (other, Some(one)),
            (one, _) => (one, None),
        };
        trimmed_leaf::<128>(&changes, low, high);
        trimmed_leaf::<16>(&changes, low, high);
        trimmed_inner::<128>(&keys, low, high);
        trimmed_inner::<16>(&keys, low, high);
    }

    #[test]
    fn a_torn_leaf_has_no_stamp_that_fits(
        changes in prop::collection::vec(change(), 0..120),
        later in prop::collection::vec(change(), 0..6),
        landed in prop::collection::vec(any::<bool>(), 128),
        from in 0..128usize,
    ) {
        torn_leaf::<128>(&changes, &later, &landed);
        torn_leaf::<16>(&changes, &later, &landed);
        // Only a prefix has landed, as with most interrupted WRITEs.
        let landed: Vec<bool> = (0..128).map(|place| place < from).collect();
        torn_leaf::<128>(&changes, &later, &landed);
        torn_leaf::<16>(&changes, &later, &landed);
    }

    #[test]
    fn what_no_entry_uses_is_cleared_and_nothing_else(changes in prop::collection::vec(change(), 0..150)) {
        let (owned, model) = grown::<16>(&changes);
        let page = owned.page::<16>();
        Fixed8::<16>::clear_unused(page);
        leaf_matches(page, &model);
        let unused = 8 + 2 * page.count()..16;
        prop_assert!(owned.0[unused].iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    /// Readers see pages that change under them, so no words may harm them.
    #[test]
    fn any_words_can_be_read(words in prop::collection::vec(any::<u64>(), 128), key: u64) {
        let owned = OwnedPage::new::<128>();
        for (word, value) in owned.0.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        let page = owned.page::<128>();
        prop_assert!(page.count() <= 60);
        let _ = Fixed8::<128>::leaf_get(page, &key);
        for probe in [DescentProbe::At(&key), DescentProbe::Before(&key), DescentProbe::Last] {
            let slot = Fixed8::<128>::inner_slot(page, probe);
            let _ = (Fixed8::<128>::inner_child(page, slot), Fixed8::<128>::inner_key(page, slot));
            let _ = farleaf_page::step(page, probe, 0);
        }
        prop_assert!(contents(page).len() <= 60);
    }
}
