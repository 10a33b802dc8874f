//! The slotted layout against `BTreeMap`, its invariants (bytes.Y1 …), its reading functions over
//! arbitrary words, and the bytes that a record takes.

use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_page::{
    Bytes, DescentProbe, FencePosition, Layout, LeafDelete, LeafInsert, LeafReplace, OverflowEntry,
    Page, PageWords, REFERENCE_BYTES, ScanWindow, SplitPlan,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;
type View<'a, const W: usize> = Page<'a, Bytes<W>>;

struct OwnedPage(Vec<AtomicU64>);

impl OwnedPage {
    /// A page that held something else before.
    fn new<const W: usize>() -> Self {
        Self(
            (0..W as u64)
                .map(|word| AtomicU64::new(word.wrapping_mul(0x0101_0101_0101_0101)))
                .collect(),
        )
    }

    fn leaf<const W: usize>(low: &[u8], high: Option<&[u8]>) -> Self {
        let owned = Self::new::<W>();
        owned.page::<W>().format_empty(at(1), 0, low, high);
        owned
    }

    fn page<const W: usize>(&self) -> View<'_, W> {
        Page::new(&self.0)
    }

    fn words(&self) -> Vec<u64> {
        self.0.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

fn at(number: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId::new(1), number * 1024)
}

fn all<const W: usize>(page: View<'_, W>, reverse: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
    let window = ScanWindow { lower, upper, reverse, limit: usize::MAX };
    let mut out = Vec::new();
    Bytes::<W>::leaf_collect(page, &window, &mut out);
    out
}

fn children<const W: usize>(page: View<'_, W>) -> Vec<(Vec<u8>, GlobalAddr)> {
    let child = |slot| (Bytes::<W>::inner_key(page, slot), Bytes::<W>::inner_child(page, slot));
    (0..page.count()).map(child).collect()
}

/// Checks bytes.Y1 to bytes.Y3 on the words, with code independent of the layout's.
fn check<const W: usize>(page: View<'_, W>) {
    let word = |index: usize| page.words()[index].load(Ordering::Relaxed);
    let field = |index: usize, shift: u32| (word(index) >> shift) as u16 as usize;
    let (low_length, rest_length) = (field(2, 48), field(2, 32));
    let (prefix, first) = (field(2, 16), field(2, 0));
    let (top, garbage, deleted) = (field(3, 48), field(3, 32), field(3, 16));
    let count = page.count();
    assert!(8 <= first && first + count <= top && top <= W, "Y1: {first} {count} {top}");
    assert_eq!(first, 8 + low_length.div_ceil(8) + rest_length.div_ceil(8));
    let byte = |index: usize| (word(index / 8) >> (index % 8 * 8)) as u8;
    let (low, high) = (Bytes::<W>::low(page), Bytes::<W>::high(page));
    assert_eq!(low, (64..64 + low_length).map(byte).collect::<Vec<_>>());
    let shared = |high: &Vec<u8>| low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let expected = high.as_ref().filter(|high| **high > low).map_or(0, shared);
    assert_eq!(prefix, expected, "Y2");
    let padding = (64 + low_length..(64 + low_length).next_multiple_of(8))
        .chain(first * 8 - (rest_length.next_multiple_of(8) - rest_length)..first * 8);
    let mut used = vec![false; W];
    let (mut live, mut dead) = (0, 0);
    let mut before: Option<Vec<u8>> = None;
    for slot in 0..count {
        let bits = word(first + slot);
        let (record, suffix, value) =
            ((bits >> 21 & 0x7ff) as usize, (bits >> 11 & 0x3ff) as usize, bits >> 1 & 0x3ff);
        let value = value as usize;
        let in_record = value + suffix.saturating_sub(4);
        let words = record..record + in_record.div_ceil(8);
        assert!(words.is_empty() || (top <= words.start && words.end <= W), "Y1: {words:?}");
        for index in words.clone() {
            assert!(!std::mem::replace(&mut used[index], true), "Y1: records overlap");
        }
        (record * 8 + in_record..words.end * 8).for_each(|index| assert_eq!(byte(index), 0, "Y3"));
        let head = ((bits >> 32) as u32).to_be_bytes();
        assert!(head[suffix.min(4)..].iter().all(|byte| *byte == 0), "Y3");
        let mut key = head[..suffix.min(4)].to_vec();
        key.extend((record * 8 + value..record * 8 + in_record).map(byte));
        assert!(before.as_ref().is_none_or(|before| *before < key), "Y1: slots ascend");
        before = Some(key);
        live += words.len();
        dead += (bits & 1) as usize;
    }
    padding.for_each(|index| assert_eq!(byte(index), 0, "Y3"));
    assert_eq!((W - top, deleted), (live + garbage, dead), "words of the heap, deleted entries");
    if dead == 0 {
        assert_eq!(Bytes::<W>::weight(page), first - 8 + count + live);
    }
}

#[derive(Clone, Debug)]
enum Change {
    Insert(Vec<u8>, Vec<u8>),
    Replace(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Compact,
}

/// Keys that share much, share nothing, differ only in the last byte, are prefixes of each other,
/// or have maximum length.
fn keys(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let shared =
        (0_usize..3, prop::collection::vec(0_u8..3, 0..6)).prop_map(move |(kind, tail)| {
            let length = [0, most / 2, most - 6][kind];
            let mut key = vec![b'p'; length];
            key.extend(tail);
            key
        });
    prop_oneof![
        6 => shared,
        2 => prop::collection::vec(any::<u8>(), 0..6),
        1 => prop::collection::vec(any::<u8>(), most),
    ]
}

fn values(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 8),
        2 => prop::collection::vec(any::<u8>(), 0..4),
        1 => prop::collection::vec(any::<u8>(), 0..most),
        2 => prop::collection::vec(any::<u8>(), REFERENCE_BYTES),
    ]
}

/// The value, if an edit that takes it away returns it.
fn reference(value: Option<&Vec<u8>>) -> Option<&Vec<u8>> {
    value.filter(|value| value.len() == REFERENCE_BYTES)
}

fn changes<const W: usize>() -> impl Strategy<Value = Vec<Change>> {
    let (most, value) = (Bytes::<W>::max_key(), W);
    let change = prop_oneof![
        6 => (keys(most), values(value)).prop_map(|(key, value)| Change::Insert(key, value)),
        3 => (keys(most), values(value)).prop_map(|(key, value)| Change::Replace(key, value)),
        2 => keys(most).prop_map(Change::Delete),
        1 => Just(Change::Compact),
    ];
    prop::collection::vec(change, 0..300)
}

/// Splits a leaf for a record that it refused, checks the halves, and returns the half of the
/// record.
fn split<const W: usize>(
    full: &OwnedPage,
    model: &Records,
    record: (&[u8], &[u8]),
) -> (OwnedPage, Records) {
    let left = full.page::<W>();
    let high = Bytes::<W>::high(left);
    let pending = OverflowEntry::<Bytes<W>>::Record(record.0.to_vec(), record.1.to_vec());
    let plan = Bytes::<W>::split_plan(left, Some(&pending));
    let SplitPlan { separator, .. } = &plan;
    let other = OwnedPage::new::<W>();
    let right = other.page::<W>();
    Bytes::<W>::split_copy(left, right, at(2), &plan);
    Bytes::<W>::split_truncate(left, &plan);
    let half = if record.0 < &separator[..] { left } else { right };
    assert!(pending.add_to(half), "Y6");
    Bytes::<W>::split_link(left, separator, at(2));
    check(left);
    check(right);
    assert_eq!(
        (Bytes::<W>::high(left).as_ref(), &Bytes::<W>::low(right)),
        (Some(separator), separator)
    );
    assert_eq!(Bytes::<W>::high(right), high);
    assert_eq!((left.sibling(), right.address()), (at(2), at(2)));
    let mut expected = model.clone();
    expected.insert(record.0.to_vec(), record.1.to_vec());
    // Y7, computed from its definition.
    let below = expected.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&separator[..])));
    let above = expected.range::<[u8], _>((Bound::Included(&separator[..]), Bound::Unbounded));
    let (last, first) = (below.clone().next_back(), above.clone().next());
    if let (Some((last, _)), Some((first, _))) = (last, first) {
        assert!(last < separator && separator <= first, "Y7");
        assert!(separator[..separator.len() - 1] <= last[..], "Y7: there is a shorter separator");
    } else {
        // A fence beyond a run of insertions at this end: the other half is empty.
        let end =
            if first.is_none() { expected.last_key_value() } else { expected.first_key_value() };
        assert_eq!(end.map(|(key, _)| &key[..]), Some(record.0), "Y6");
    }
    let collected = |part: std::collections::btree_map::Range<'_, Vec<u8>, Vec<u8>>| -> Vec<_> {
        part.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    assert_eq!(all(left, false), collected(below.clone()));
    assert_eq!(all(right, false), collected(above.clone()));
    match record.0 < &separator[..] {
        true => (OwnedPage(clone(full)), collected(below).into_iter().collect()),
        false => (other, collected(above).into_iter().collect()),
    }
}

fn clone(page: &OwnedPage) -> Vec<AtomicU64> {
    page.words().into_iter().map(AtomicU64::new).collect()
}

/// Checks that a change has touched only the words that it reports. If only the new words of the
/// heap have reached the pool, the page there must still have its old content (bytes.Y9).
fn check_words<const W: usize>(before: &[u64], after: &[u64], words: PageWords) {
    let differs = |index: &usize| before[*index] != after[*index];
    assert!((0..W).filter(differs).all(|index| words.contains(index)));
    assert!(!words.is_empty());
    let (heap, _) = words.writes();
    let top = (before[3] >> 48) as usize;
    // If there is no other room, a record replaces the old one in place.
    if let Some(heap) = heap.filter(|heap| heap.start < top) {
        let page = |words: &[u64]| OwnedPage(words.iter().copied().map(AtomicU64::new).collect());
        let (old, between) = (page(before), page(before));
        for index in heap {
            between.0[index].store(after[index], Ordering::Relaxed);
        }
        assert_eq!(all(between.page::<W>(), false), all(old.page::<W>(), false), "Y9");
    }
}

fn leaf_is_a_map<const W: usize>(changes: Vec<Change>) {
    let mut owned = OwnedPage::leaf::<W>(&[], None);
    let mut model = Records::new();
    for change in changes {
        let page = owned.page::<W>();
        let inside =
            |key: &[u8]| Bytes::<W>::reach(page, DescentProbe::At(key)) == FencePosition::Inside;
        let before = owned.words();
        let mut refused = None;
        match &change {
            Change::Insert(key, value)
                if inside(key) && Bytes::<W>::check_record(key, value).is_ok() =>
            {
                let room = Bytes::<W>::leaf_has_room(page, key, value);
                match Bytes::<W>::leaf_insert(page, key, value) {
                    LeafInsert::Inserted(words) => {
                        assert!(room, "asking beforehand says the same");
                        check_words::<W>(&before, &owned.words(), words);
                        assert_eq!(model.insert(key.clone(), value.clone()), None);
                    }
                    LeafInsert::Exists => assert!(model.contains_key(key)),
                    LeafInsert::Full => {
                        assert!(!room && !model.contains_key(key));
                        refused = Some((key, value));
                    }
                }
            }
            Change::Replace(key, value)
                if inside(key) && Bytes::<W>::check_record(key, value).is_ok() =>
            {
                let room = Bytes::<W>::leaf_has_room(page, key, value);
                match Bytes::<W>::leaf_replace(page, key, value) {
                    LeafReplace::Replaced(words, lost) => {
                        assert!(room);
                        assert_eq!(lost.as_ref(), reference(model.get(key)));
                        check_words::<W>(&before, &owned.words(), words);
                        assert!(model.insert(key.clone(), value.clone()).is_some());
                    }
                    LeafReplace::Absent => assert!(!model.contains_key(key)),
                    LeafReplace::Full => {
                        assert!(!room && model.contains_key(key));
                        refused = Some((key, value));
                    }
                }
            }
            Change::Delete(key) => match Bytes::<W>::leaf_delete(page, key) {
                LeafDelete::Deleted(words, lost) => {
                    let removed = model.remove(key);
                    assert!(removed.is_some());
                    assert_eq!(lost.as_ref(), reference(removed.as_ref()));
                    check_words::<W>(&before, &owned.words(), words);
                }
                LeafDelete::Absent => {
                    assert!(!model.contains_key(key));
                    assert_eq!(before, owned.words());
                }
            },
            Change::Compact => {
                let deleted = page.deleted_count();
                assert_eq!(Bytes::<W>::leaf_compact(page), deleted);
                assert_eq!((page.deleted_count(), page.count()), (0, model.len()));
            }
            _ => {}
        }
        check(page);
        assert_eq!(page.live_count(), model.len());
        if let Some((key, value)) = refused {
            assert_eq!(owned.words(), before, "Y8");
            (owned, model) = split::<W>(&owned, &model, (key, value));
        }
        let page = owned.page::<W>();
        let mut expected: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(all(page, false), expected);
        expected.reverse();
        assert_eq!(all(page, true), expected);
        for (key, value) in &model {
            assert_eq!(Bytes::<W>::leaf_get(page, key).as_ref(), Some(value));
            assert_eq!(Bytes::<W>::reach(page, DescentProbe::At(key)), FencePosition::Inside);
        }
    }
}

/// An inner page with random children, and with the leaves' separators.
fn inner_is_a_map<const W: usize>(keys: &[Vec<u8>], probes: &[Vec<u8>]) {
    let owned = OwnedPage::new::<W>();
    let page = owned.page::<W>();
    page.format_empty(at(1), 1, &[], None);
    assert!(Bytes::<W>::inner_insert(page, &[], at(3)));
    let mut model = BTreeMap::from([(vec![], at(3))]);
    for (number, key) in keys.iter().enumerate().filter(|(_, key)| !key.is_empty()) {
        if model.contains_key(key) {
            continue;
        }
        let (child, before) = (at(number as u64 + 4), owned.words());
        let room = Bytes::<W>::inner_has_room(page, key);
        assert_eq!(Bytes::<W>::inner_insert(page, key, child), room);
        match room {
            true => _ = model.insert(key.clone(), child),
            false => assert_eq!(owned.words(), before, "Y8"),
        }
        check(page);
    }
    let compare = |model: &BTreeMap<Vec<u8>, GlobalAddr>| {
        assert_eq!(children(page), model.clone().into_iter().collect::<Vec<_>>());
        for probe in probes.iter().chain(model.keys()) {
            let slot = Bytes::<W>::inner_slot(page, DescentProbe::At(probe));
            let at_or_below = model.range::<Vec<u8>, _>(..=probe).count();
            assert_eq!(slot, at_or_below - 1);
            let before = Bytes::<W>::inner_slot(page, DescentProbe::Before(probe));
            assert_eq!(before, model.range::<Vec<u8>, _>(..probe).count().saturating_sub(1));
        }
        assert_eq!(Bytes::<W>::inner_slot(page, DescentProbe::Last), model.len() - 1);
    };
    compare(&model);
    // Move boundaries within their gaps.
    for probe in probes.iter().filter(|probe| !probe.is_empty()) {
        let slot = Bytes::<W>::inner_slot(page, DescentProbe::At(probe));
        let held = Bytes::<W>::inner_key(page, slot);
        if slot == 0 || model.contains_key(probe) {
            continue;
        }
        let before = owned.words();
        let can = Bytes::<W>::inner_can_set_key(page, slot, probe);
        assert_eq!(Bytes::<W>::inner_set_key(page, slot, probe), can);
        match can {
            true => {
                let child = model.remove(&held).unwrap();
                model.insert(probe.clone(), child);
            }
            false => assert_eq!(owned.words(), before, "Y8"),
        }
        check(page);
        compare(&model);
    }
    if model.len() < 4 {
        return;
    }
    // Split it, rebalance the halves after removals, and merge them again.
    let plan = Bytes::<W>::split_plan(page, None);
    let other = OwnedPage::new::<W>();
    let right = other.page::<W>();
    Bytes::<W>::split_copy(page, right, at(2), &plan);
    Bytes::<W>::split_truncate(page, &plan);
    Bytes::<W>::split_link(page, &plan.separator, at(2));
    let both = || [children(page), children(right)].concat();
    assert_eq!(both(), model.clone().into_iter().collect::<Vec<_>>());
    while page.count() > 1 {
        check(page);
        check(right);
        let slot = page.count() - 1;
        model.remove(&Bytes::<W>::inner_key(page, slot));
        Bytes::<W>::inner_remove(page, slot);
        let before = (owned.words(), other.words());
        assert_eq!(Bytes::<W>::rebalance(page, right, |_| false), None);
        assert_eq!((owned.words(), other.words()), before, "Y8");
        if let Some(separator) = Bytes::<W>::rebalance(page, right, |_| true) {
            assert_eq!(Bytes::<W>::high(page), Some(separator.clone()));
            assert_eq!(Bytes::<W>::low(right), separator);
        }
        assert_eq!(both(), model.clone().into_iter().collect::<Vec<_>>());
        if Bytes::<W>::fits_merged(page, right) {
            Bytes::<W>::merge(page, right);
            check(page);
            assert!(page.high_is_infinite());
            return compare(&model);
        }
    }
}

/// Trims a leaf to any range within its fences.
fn trimmed<const W: usize>(changes: Vec<Change>, low: &[u8], high: &[u8]) {
    let owned = OwnedPage::leaf::<W>(&[], None);
    let page = owned.page::<W>();
    for change in changes {
        match change {
            Change::Insert(key, value) => _ = Bytes::<W>::leaf_insert(page, &key, &value),
            Change::Delete(key) => _ = Bytes::<W>::leaf_delete(page, &key),
            _ => {}
        }
    }
    let mut expected = all(page, false);
    expected.retain(|(key, _)| key.as_slice() >= low && key.as_slice() < high);
    // Entries and fences that come from a split fit together, but these fences are arbitrary.
    let fits = || {
        let owned = OwnedPage::leaf::<W>(low, Some(high));
        let insert = |(key, value): &(Vec<u8>, Vec<u8>)| {
            Bytes::<W>::leaf_insert(owned.page(), key, value).is_inserted()
        };
        expected.iter().all(insert)
    };
    if low < high && fits() {
        assert!(Bytes::<W>::trim(page, low, Some(high)));
        check(page);
        assert_eq!(all(page, false), expected);
        assert_eq!(
            (Bytes::<W>::low(page), Bytes::<W>::high(page)),
            (low.to_vec(), Some(high.to_vec()))
        );
    }
}

/// Calls everything that may run on a page that changes concurrently.
fn read_everything<const W: usize>(page: View<'_, W>, key: &[u8], other: &[u8]) {
    let most = W * 8 * 3;
    assert!(page.count() <= Bytes::<W>::capacity() && page.deleted_count() <= page.count());
    assert!(Bytes::<W>::low(page).len() <= Bytes::<W>::max_key());
    assert!(Bytes::<W>::high(page).is_none_or(|high| high.len() <= Bytes::<W>::max_key()));
    for probe in [DescentProbe::At(key), DescentProbe::Before(key), DescentProbe::Last] {
        let _ = Bytes::<W>::reach(page, probe);
        assert!(Bytes::<W>::inner_slot(page, probe) <= page.count());
    }
    let _ = Bytes::<W>::leaf_get(page, key);
    let words = Bytes::<W>::search_words(page);
    assert!(words.start <= words.end && words.end <= W);
    for reverse in [false, true] {
        let (lower, upper) = (Bound::Included(key), Bound::Excluded(other));
        let window = ScanWindow { lower, upper, reverse, limit: 1000 };
        let mut out = Vec::new();
        assert!(Bytes::<W>::leaf_collect(page, &window, &mut out) <= page.count());
        assert!(all(page, reverse).iter().all(|(key, value)| key.len() + value.len() < most));
    }
    for slot in [0, 1, page.count() / 2, page.count(), W, usize::from(u16::MAX)] {
        assert!(Bytes::<W>::inner_child_word(page, slot) < W);
        let _ = (Bytes::<W>::inner_child(page, slot), Bytes::<W>::inner_key(page, slot));
        let _ = Bytes::<W>::inner_end(page, slot);
        let _ = Bytes::<W>::inner_can_set_key(page, slot, key);
    }
    let _ = (Bytes::<W>::weight(page), Bytes::<W>::record_weight(page, key));
    let _ = (Bytes::<W>::is_full(page), Bytes::<W>::leaf_sum(page));
    let _ = (Bytes::<W>::leaf_has_room(page, key, other), Bytes::<W>::inner_has_room(page, key));
    let _ = Bytes::<W>::fits_merged(page, page);
    let pending = OverflowEntry::Record(key.to_vec(), other.to_vec());
    for pending in [None, Some(&pending)] {
        let _ = Bytes::<W>::split_plan(page, pending);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tiny_leaves_are_maps(changes in changes::<32>()) {
        leaf_is_a_map::<32>(changes);
    }

    #[test]
    fn leaves_are_maps(changes in changes::<128>()) {
        leaf_is_a_map::<128>(changes);
    }

    #[test]
    fn leaves_of_2_kb_are_maps(changes in changes::<256>()) {
        leaf_is_a_map::<256>(changes);
    }

    #[test]
    fn leaves_of_4_kb_are_maps(changes in changes::<512>()) {
        leaf_is_a_map::<512>(changes);
    }

    #[test]
    fn tiny_inner_pages_are_maps(
        inner in prop::collection::vec(keys(32), 0..60),
        probes in prop::collection::vec(keys(32), 0..20),
    ) {
        inner_is_a_map::<32>(&inner, &probes);
    }

    #[test]
    fn inner_pages_are_maps(
        inner in prop::collection::vec(keys(128), 0..160),
        probes in prop::collection::vec(keys(128), 0..20),
    ) {
        inner_is_a_map::<128>(&inner, &probes);
    }

    #[test]
    fn trimmed_leaves_keep_what_is_inside(
        changes in changes::<128>(), low in keys(128), high in keys(128),
    ) {
        trimmed::<128>(changes, &low, &high);
    }

    #[test]
    fn arbitrary_words_do_no_harm(
        words in prop::collection::vec(any::<u64>(), 128),
        header in prop::collection::vec(0_u64..200, 16),
        plausible in any::<bool>(),
        key in keys(128),
        other in keys(128),
    ) {
        let owned = OwnedPage(words.into_iter().map(AtomicU64::new).collect());
        if plausible {
            // Nearly valid lengths and offsets exercise more of the code.
            for (word, fields) in [2_usize, 3, 4].into_iter().zip(header.chunks(4)) {
                let bits = fields.iter().fold(0, |bits, field| bits << 16 | field);
                owned.0[word].store(bits, Ordering::Relaxed);
            }
        }
        read_everything::<128>(owned.page(), &key, &other);
    }

    #[test]
    fn damaged_pages_do_no_harm(
        changes in changes::<128>(),
        damage in prop::collection::vec((2_usize..128, 0_u32..64), 1..6),
        key in keys(128),
        other in keys(128),
    ) {
        let owned = OwnedPage::leaf::<128>(&[], None);
        for change in changes {
            if let Change::Insert(key, value) = change {
                let _ = Bytes::<128>::leaf_insert(owned.page(), &key, &value);
            }
        }
        for (word, bit) in damage {
            owned.0[word].fetch_xor(1 << bit, Ordering::Relaxed);
            read_everything::<128>(owned.page(), &key, &other);
        }
    }
}

#[test]
fn too_long_keys_and_values_are_refused() {
    let owned = OwnedPage::leaf::<128>(&[], None);
    let page = owned.page::<128>();
    assert_eq!(Bytes::<128>::max_key(), 128);
    assert_eq!((Bytes::<256>::max_key(), Bytes::<512>::max_key()), (256, 256));
    let before = owned.words();
    assert_eq!(Bytes::<128>::leaf_insert(page, &[7; 129], b""), LeafInsert::Full);
    assert_eq!(Bytes::<128>::leaf_insert(page, b"k", &[7; 300]), LeafInsert::Full);
    assert_eq!(owned.words(), before);
    assert!(Bytes::<128>::leaf_insert(page, &[7; 128], b"").is_inserted());
    assert!(Bytes::<128>::leaf_insert(page, b"", b"").is_inserted());
    assert_eq!(Bytes::<128>::leaf_get(page, b""), Some(vec![]));
    assert_eq!(Bytes::<128>::leaf_get(page, &[7; 128]), Some(vec![]));
}

#[test]
fn a_value_of_eight_bytes_is_replaced_by_one_store() {
    let owned = OwnedPage::leaf::<128>(b"user/0001", Some(b"user/0002"));
    let page = owned.page::<128>();
    let key = b"user/0001/with-a-long-tail";
    assert!(Bytes::<128>::leaf_insert(page, key, &[1; 8]).is_inserted());
    let before = owned.words();
    let replaced = Bytes::<128>::leaf_replace(page, key, &[2; 8]);
    let after = owned.words();
    let changed: Vec<usize> = (0..128).filter(|index| before[*index] != after[*index]).collect();
    assert_eq!(changed.len(), 1);
    let words = PageWords::new(&(0..0), &(changed[0]..changed[0] + 1));
    assert_eq!(replaced, LeafReplace::Replaced(words, None));
    assert!(words.is_one_word());
}

/// Sealing a node clears what former entries have left. These words differ between the frame, the
/// pool and other copies, and a log entry only has words that differ between two images.
#[test]
fn what_no_slot_names_is_cleared() {
    let built = |removed: u64| {
        let owned = OwnedPage::new::<128>();
        let page = owned.page::<128>();
        page.format_empty(at(1), 1, b"", None);
        for (key, child) in [(&b""[..], 3), (b"left neighbour", removed), (b"right neighbour", 4)] {
            assert!(Bytes::<128>::inner_insert(page, key, at(child)));
        }
        Bytes::<128>::inner_remove(page, 1);
        (owned.words(), owned)
    };
    let ((one, cleared), (other, other_cleared)) = (built(5), built(6));
    assert_ne!(one, other);
    let left = children(cleared.page::<128>());
    Bytes::<128>::clear_unused(cleared.page());
    Bytes::<128>::clear_unused(other_cleared.page());
    assert_eq!(cleared.words(), other_cleared.words());
    assert_eq!(children(cleared.page::<128>()), left);
    check(cleared.page::<128>());
}

/// Regression test: a simulated death tore the WRITE of a new slot. The pool kept the slot's old
/// word, a slot of the same key from an earlier layout. The stamp matched, but the record of this
/// slot belonged to another key by then. Or the pool kept the old top of the heap, and the next
/// record overwrote the new one.
#[test]
fn each_word_of_a_torn_insertion_shows_in_the_stamp() {
    let key = |number: u8| [b'k', number];
    let pool = OwnedPage::leaf::<64>(b"", None);
    let page = pool.page::<64>();
    for number in 0..8 {
        let value = [number; 12];
        assert!(Bytes::<64>::leaf_insert(page, &key(number), &value).is_inserted());
    }
    // The last slot moves down, and its old position is now between the slots and the heap.
    assert!(matches!(Bytes::<64>::leaf_delete(page, &key(3)), LeafDelete::Deleted(_, None)));
    assert_eq!(Bytes::<64>::leaf_compact(page), 1);
    page.set_stamp();
    let before = pool.words();
    assert!(Bytes::<64>::leaf_insert(page, &key(3), b"another").is_inserted());
    page.set_stamp();
    let after = pool.words();
    let differing: Vec<_> = (0..64).filter(|word| before[*word] != after[*word]).collect();
    let slot = *differing.iter().rfind(|word| **word < 30).expect("the new slot");
    for torn in differing {
        let word = &page.words()[torn];
        word.store(before[torn], Ordering::Relaxed);
        // The WRITE of the heap comes first, and is complete at this point.
        assert!(!page.stamp_fits() || torn > slot, "word {torn} of {slot}");
        word.store(after[torn], Ordering::Relaxed);
    }
    assert!(page.stamp_fits());
}

/// Bytes per record in pages of `W` words, over all levels, if each page is filled to `fill`.
fn bytes_per_record<const W: usize>(records: &[(Vec<u8>, Vec<u8>)], fill: f64) -> f64 {
    let most = (Bytes::<W>::full() as f64 * fill) as usize;
    let shortest = |below: &[u8], above: &[u8]| {
        let shared = below.iter().zip(above).take_while(|(a, b)| a == b).count();
        above[..(shared + 1).min(above.len())].to_vec()
    };
    // Fills a page with entries, starting at `begin`, as far as they fit together with their
    // fences.
    let fits = |level: u8, entries: &[(Vec<u8>, Vec<u8>)], low: &[u8], high: Option<&[u8]>| {
        let owned = OwnedPage::new::<W>();
        let page = owned.page::<W>();
        page.format_empty(at(1), level, low, high);
        let added = entries.iter().all(|(key, value)| match level {
            0 => Bytes::<W>::leaf_insert(page, key, value).is_inserted(),
            _ => Bytes::<W>::inner_insert(page, key, at(3)),
        });
        added && Bytes::<W>::weight(page) <= most
    };
    let (mut entries, mut pages, mut level) = (records.to_vec(), 0, 0);
    loop {
        let mut above = Vec::new();
        let (mut begin, mut low) = (0, Vec::new());
        while begin < entries.len() {
            let mut end = begin + 1 + usize::from(level > 0);
            let high_at = |end: usize| match level {
                _ if end >= entries.len() => None,
                0 => Some(shortest(&entries[end - 1].0, &entries[end].0)),
                _ => Some(entries[end].0.clone()),
            };
            while end < entries.len()
                && fits(level, &entries[begin..=end], &low, high_at(end + 1).as_deref())
            {
                end += 1;
            }
            above.push((low.clone(), vec![]));
            (begin, low) = (end, high_at(end).unwrap_or_default());
        }
        pages += above.len();
        if above.len() == 1 {
            return (pages * W * 8) as f64 / records.len() as f64;
        }
        (entries, level) = (above, level + 1);
    }
}

/// The expected sizes, for the data that can be generated offline. More than 5% above them fails.
#[test]
fn records_take_the_bytes_they_should() {
    let mut random = 7_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut spread: Vec<u64> = (0..200_000).map(|_| next()).collect();
    spread.sort_unstable();
    let record = |key: u64| (key.to_be_bytes().to_vec(), vec![1; 8]);
    let spread: Vec<_> = spread.into_iter().map(record).collect();
    let dense: Vec<_> = (1 << 40..(1 << 40) + 200_000).map(record).collect();
    let wide = |length: usize, value: usize, prefix: &str| -> Vec<_> {
        let digits = length - prefix.len();
        let key = |number: u64| format!("{prefix}{number:0digits$}").into_bytes();
        (0..20_000_u64).map(|number| (key(number * 7919), vec![1; value])).collect()
    };
    let found = [
        ("u64 spread", bytes_per_record::<128>(&spread, 0.7), 41.1),
        ("u64 dense", bytes_per_record::<128>(&dense, 0.7), 26.9),
        ("20 B to 400 B, 2 KB", bytes_per_record::<256>(&wide(20, 400, ""), 0.7), 689.0),
        ("20 B to 400 B, 4 KB", bytes_per_record::<512>(&wide(20, 400, ""), 0.7), 686.0),
        ("23 B to 1,000 B, 4 KB", bytes_per_record::<512>(&wide(23, 1000, "user"), 0.7), 2058.0),
    ];
    for (name, bytes, table) in found {
        println!("{name}: {bytes:.1} bytes a record, {table} in the table");
        assert!(bytes <= table * 1.05, "{name}: {bytes} instead of {table}");
    }
}

/// Strings like URLs: the pages of the toolchain's documentation. If it is not installed, the test
/// prints so.
#[test]
fn paths_take_the_bytes_they_should() {
    let sysroot = std::process::Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let root = std::path::PathBuf::from(sysroot.unwrap_or_default()).join("share/doc/rust/html");
    let (mut folders, mut paths) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|kind| kind == "html") => {
                    let path = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                    paths.push(format!("/rust/html/{path}").into_bytes());
                }
                false => {}
            }
        }
    }
    if paths.len() < 10_000 {
        return println!("skipped: the toolchain's documentation is not at {}", root.display());
    }
    paths.sort_unstable();
    let length = paths.iter().map(Vec::len).sum::<usize>() as f64 / paths.len() as f64;
    let records: Vec<_> = paths.into_iter().map(|path| (path, vec![1; 8])).collect();
    let bytes = bytes_per_record::<128>(&records, 0.7);
    let count = records.len();
    println!("{count} paths of {length:.1} B to 8 B: {bytes:.1} bytes a record, 60.3 in the table");
    assert!(bytes <= 60.3 * 1.05, "{bytes}");
}
