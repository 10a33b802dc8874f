//! Fuzzes operations on one leaf and its sibling against a `BTreeMap`: insertions, deletions,
//! compaction, splits, rebalancing and merges, in any order, on pages of four and of sixty records.
#![no_main]

use farleaf_fabric::sync::AtomicU64;
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_page::{Fixed8, Layout, LeafDelete, LeafInsert, LeafReplace, Page, ScanWindow};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::ops::Bound;

fn contents<const W: usize>(page: Page<'_, Fixed8<W>>) -> Vec<(u64, u64)> {
    let window =
        ScanWindow { lower: Bound::Unbounded, upper: Bound::Unbounded, reverse: false, limit: 99 };
    let mut out = Vec::new();
    Fixed8::<W>::leaf_collect(page, &window, &mut out);
    out
}

fn play<const W: usize>(data: &[u8]) {
    let words = || (0..W).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let (left_words, right_words) = (words(), words());
    let (left, right) = (Page::<Fixed8<W>>::new(&left_words), Page::<Fixed8<W>>::new(&right_words));
    let at = |number: u64| GlobalAddr::new(ServerId::new(0), number * 1024);
    left.format_empty(at(1), 0, &0, None);
    let mut separator: Option<u64> = None;
    let mut model = BTreeMap::new();
    for step in data.chunks_exact(3) {
        let key = u64::from(step[1]) * (u64::MAX / 255);
        let value = u64::from(step[2]);
        let page = if separator.is_some_and(|low| key >= low) { right } else { left };
        match step[0] % 8 {
            0..=2 => match Fixed8::<W>::leaf_insert(page, &key, &value) {
                LeafInsert::Inserted(_) => assert_eq!(model.insert(key, value), None),
                LeafInsert::Exists => assert!(model.contains_key(&key)),
                LeafInsert::Full => {
                    assert_eq!(page.live_count(), Fixed8::<W>::capacity());
                    if separator.is_none() {
                        let plan = Fixed8::<W>::split_plan(left, None);
                        Fixed8::<W>::split_copy(left, right, at(2), &plan);
                        Fixed8::<W>::split_truncate(left, &plan);
                        Fixed8::<W>::split_link(left, &plan.separator, at(2));
                        separator = Some(plan.separator);
                    }
                }
            },
            3 => {
                let there = model.contains_key(&key);
                let replaced = Fixed8::<W>::leaf_replace(page, &key, &value);
                assert_eq!(replaced != LeafReplace::Absent, there);
                model.entry(key).and_modify(|held| *held = value);
            }
            4 | 5 => {
                let there = model.remove(&key).is_some();
                let deleted = Fixed8::<W>::leaf_delete(page, &key);
                assert_eq!(deleted != LeafDelete::Absent, there);
            }
            6 => assert_eq!(Fixed8::<W>::leaf_get(page, &key), model.get(&key).copied()),
            _ => {
                Fixed8::<W>::leaf_compact(left);
                if separator.is_some() {
                    Fixed8::<W>::leaf_compact(right);
                    if Fixed8::<W>::fits_merged(left, right) {
                        Fixed8::<W>::merge(left, right);
                        separator = None;
                    } else if let Some(low) = Fixed8::<W>::rebalance(left, right, |_| true) {
                        separator = Some(low);
                    }
                }
            }
        }
        let mut all = contents(left);
        if separator.is_some() {
            all.extend(contents(right));
        }
        assert!(all.iter().copied().eq(model.iter().map(|(&key, &value)| (key, value))));
    }
}

fuzz_target!(|data: &[u8]| {
    play::<16>(data);
    play::<128>(data);
});
