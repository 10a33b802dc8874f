//! Pages whose leaves are written entry by entry: `u64` keys and values with checks between them.
//! Inner pages are those of [`Fixed8`]. There are two kinds of leaves: those of Sherman, where any
//! entry can hold any key, and those of CHIME, which are hopscotch tables (`places.rs`).
//!
//! ```text
//! leaf   word 6: the entry lock           word 7: the checksum of words 0 to 5
//! check  [live:1 for each entry][hash of place, page version, keys and values]
//!        (the key and value of a free entry count as 0; of the version, those of hopscotch
//!        leaves hash the low 24 bits)
//! ```
//!
//! The holder of a leaf's entry lock (`EntryHold`) adds a record by a WRITE of its key and
//! value and another one of its check, replaces a value by one WRITE of value and check, and
//! deletes a record by a WRITE of the check. Word 0 changes only with the whole page.
//!
//! *Invariants*
//! - entries.N1. A copy whose checks all match its version has all entries of one version of the
//!   page, and each entry in a state that it had while it was read.
//! - entries.N2. A key is live in at most one entry of a leaf. A copy may show it twice, if it was
//!   deleted and added again meanwhile; either value was current.
//! - entries.N3. A check in which an entry is not live says nothing about the key and the value of
//!   that entry. So a record may be added below it, and a WRITE that stops half-way leaves either
//!   an entry that is free, or a live one whose key is right and whose value is the old or the new
//!   one.
//! - hops.P3. The replica in a window that is whole has the high fence and the version of the leaf
//!   at its address, and all entries of the window are of this version.
//!
//! After Wang et al., *Sherman* (SIGMOD 2022), §4.4, with a check of 63 bits in place of two
//! versions of 4 bits.
//!
//! *Thread safety*: the same as for [`super::Page`].

use super::checksum::{chained_sum, sum_of};
use super::fixed8::Fixed8;
use super::layout::{
    DescentProbe, FencePosition, Layout, LeafDelete, LeafInsert, LeafReplace, OverflowEntry,
    ScanWindow, SplitPlan,
};
use super::lock_word::LockWord;
use super::places::EntryPlaces;
use super::trend::ends_a_run;
use super::view::{HEADER_WORDS, HIGH_WORD, LOW_WORD, META_WORD, Page, SELF_WORD};
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::AtomicU64;
use std::ops::{Range, RangeBounds};

/// [`Fixed8`] with leaves that are written entry by entry; with `HOPS`, leaves are hopscotch
/// tables. A page of 128 words (1 KB) holds 40 records, or 42 with `HOPS`, or 60 children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries8<const WORDS: usize = 128, const HOPS: bool = false>;

/// Records that arrived one after the other are at most this many entries apart, with others of as
/// many clients between them.
const RUN_STEP: usize = 4;
/// So many such steps are a run.
const RUN_STEPS: usize = 4;

/// In a replica and in the checks of a hopscotch leaf, the version has its low 24 bits: far more
/// whole pages than can be written during one READ.
const TAG_BITS: u32 = 24;
const TAG: u64 = (1 << TAG_BITS) - 1;

type EntriesPage<'a, const WORDS: usize, const HOPS: bool> = Page<'a, Entries8<WORDS, HOPS>>;

/// The same page as one of [`Fixed8`], for inner pages and headers.
#[inline]
fn plain<const WORDS: usize, const HOPS: bool>(
    page: EntriesPage<'_, WORDS, HOPS>,
) -> Page<'_, Fixed8<WORDS>> {
    Page::new(page.words())
}

impl<const WORDS: usize, const HOPS: bool> Entries8<WORDS, HOPS> {
    #[inline]
    fn places() -> EntryPlaces {
        EntryPlaces::new(Fixed8::<WORDS>::page_words(), HOPS)
    }

    /// Maximum number of records of a leaf.
    #[inline]
    fn most_records() -> usize {
        Self::places().entries()
    }

    /// The live bit of an entry in its check.
    #[inline]
    fn live_bit(entry: usize) -> u64 {
        1 << (63 - entry % Self::places().per_check())
    }

    /// The word of the check of an entry.
    #[inline]
    fn check_word(entry: usize) -> usize {
        Self::places().check(entry / Self::places().per_check())
    }

    #[inline]
    fn is_live(page: EntriesPage<'_, WORDS, HOPS>, entry: usize) -> bool {
        page.load(Self::check_word(entry)) & Self::live_bit(entry) != 0
    }

    #[inline]
    fn record(page: EntriesPage<'_, WORDS, HOPS>, entry: usize) -> (u64, u64) {
        let (key, value) = Self::places().record(entry);
        (page.load(key), page.load(value))
    }

    /// The check of a bucket whose live bits are those of `bits`.
    #[inline]
    fn check_with(page: EntriesPage<'_, WORDS, HOPS>, bucket: usize, bits: u64) -> u64 {
        let per_check = Self::places().per_check();
        let entries = bucket * per_check..(bucket + 1) * per_check;
        let fields = entries.clone().flat_map(|entry| match bits & Self::live_bit(entry) {
            0 => [0, 0],
            _ => <[u64; 2]>::from(Self::record(page, entry)),
        });
        let version = page.lock_word().version() & if HOPS { TAG } else { u64::MAX };
        let live = entries.fold(0, |live, entry| live | bits & Self::live_bit(entry));
        sum_of(fields.chain([version, bucket as u64])) >> per_check | live
    }

    /// The check that a bucket should have with its records and its live bits.
    #[inline]
    fn due_check(page: EntriesPage<'_, WORDS, HOPS>, bucket: usize) -> u64 {
        Self::check_with(page, bucket, page.load(Self::places().check(bucket)))
    }

    #[inline]
    fn is_whole(page: EntriesPage<'_, WORDS, HOPS>, bucket: usize) -> bool {
        page.load(Self::places().check(bucket)) == Self::due_check(page, bucket)
    }

    /// Whether the entry has a record that is not torn.
    #[inline]
    fn is_sound(page: EntriesPage<'_, WORDS, HOPS>, entry: usize) -> bool {
        Self::is_live(page, entry) && Self::is_whole(page, entry / Self::places().per_check())
    }

    /// The entry of a record. A torn one counts as absent.
    #[inline]
    fn find(page: EntriesPage<'_, WORDS, HOPS>, key: u64) -> Option<usize> {
        Self::places().entries_of(Fixed8::<WORDS>::hash(&key)).find(|&entry| {
            page.load(Self::places().record(entry).0) == key && Self::is_sound(page, entry)
        })
    }

    fn set_live(page: EntriesPage<'_, WORDS, HOPS>, entry: usize, live: bool) {
        let (word, bit) = (Self::check_word(entry), Self::live_bit(entry));
        let bits = if live { page.load(word) | bit } else { page.load(word) & !bit };
        page.store(word, Self::check_with(page, entry / Self::places().per_check(), bits));
    }

    fn set_record(page: EntriesPage<'_, WORDS, HOPS>, entry: usize, (key, value): (u64, u64)) {
        let (key_word, value_word) = Self::places().record(entry);
        page.store(key_word, key);
        page.store(value_word, value);
        Self::set_live(page, entry, true);
    }

    fn live_entries(page: EntriesPage<'_, WORDS, HOPS>) -> impl Iterator<Item = usize> {
        (0..Self::most_records()).filter(move |&entry| Self::is_live(page, entry))
    }

    fn sound_entries(page: EntriesPage<'_, WORDS, HOPS>) -> impl Iterator<Item = usize> {
        (0..Self::most_records()).filter(move |&entry| Self::is_sound(page, entry))
    }

    /// The records, by key, each key once.
    fn records(page: EntriesPage<'_, WORDS, HOPS>) -> Vec<(u64, u64)> {
        let sound = Self::sound_entries(page);
        let mut records: Vec<_> = sound.map(|entry| Self::record(page, entry)).collect();
        records.sort_unstable();
        records.dedup_by_key(|record| record.0);
        records
    }

    /// Makes these the records of a leaf, if they have room.
    fn set_records(page: EntriesPage<'_, WORDS, HOPS>, records: &[(u64, u64)]) -> bool {
        Self::retain(page, |_| false);
        records.iter().all(|(key, value)| Self::leaf_insert(page, key, value).is_inserted())
    }

    /// Whether a leaf has room for these records.
    fn has_room_for(records: &[(u64, u64)]) -> bool {
        let words: Vec<AtomicU64> = (0..Self::page_words()).map(|_| AtomicU64::new(0)).collect();
        let page = Page::<Self>::new(&words);
        page.format_empty(GlobalAddr::NULL, 0, &0, None);
        Self::set_records(page, records)
    }

    /// Frees the entries of the keys for which `keep` is false.
    fn retain(page: EntriesPage<'_, WORDS, HOPS>, keep: impl Fn(u64) -> bool) {
        for entry in Self::live_entries(page) {
            if !keep(Self::record(page, entry).0) {
                Self::set_live(page, entry, false);
            }
        }
    }

    /// The moves that make room for a new key among the records whose keys `keep` accepts.
    fn moves(
        page: EntriesPage<'_, WORDS, HOPS>,
        key: u64,
        keep: impl Fn(u64) -> bool,
    ) -> Option<Vec<usize>> {
        let hash_of = |entry: usize| {
            let (held, _) = Self::record(page, entry);
            (Self::is_live(page, entry) && keep(held)).then(|| Fixed8::<WORDS>::hash(&held))
        };
        Self::places().moves(Fixed8::<WORDS>::hash(&key), hash_of)
    }

    /// Whether the page has only the window of a key (`open_window`).
    fn is_window(page: EntriesPage<'_, WORDS, HOPS>) -> bool {
        HOPS && page.count() == 0
    }

    /// An entry for a new key, and whether records had to move for it.
    fn make_room(page: EntriesPage<'_, WORDS, HOPS>, key: u64) -> Option<(usize, bool)> {
        let mut entries = Self::places().entries_of(Fixed8::<WORDS>::hash(&key));
        if let Some(free) = entries.find(|&entry| !Self::is_live(page, entry)) {
            return Some((free, false));
        }
        if !HOPS || Self::is_window(page) {
            return None;
        }
        let moves = Self::moves(page, key, |_| true)?;
        for pair in moves.windows(2) {
            Self::set_record(page, pair[0], Self::record(page, pair[1]));
            Self::set_live(page, pair[1], false);
        }
        moves.last().map(|&free| (free, true))
    }

    /// Where to split a full leaf so that a run of insertions leaves it full: the number of records
    /// in the lower half. `slot` records are below the pending one.
    ///
    /// The header does not change with an entry, so it has no trend. But new records take the first
    /// free entry: those that arrived one after the other, perhaps with a few others between them,
    /// are in entries one after the other. In a hopscotch leaf, entries tell nothing, so the keys
    /// have to ([`ends_a_run`]).
    fn run_at(
        page: EntriesPage<'_, WORDS, HOPS>,
        records: &[(u64, u64)],
        (slot, key): (usize, u64),
    ) -> Option<usize> {
        let most = records.len().checked_sub(1).filter(|most| *most > 0)?;
        if HOPS {
            return ends_a_run(records, slot, key).then(|| slot.clamp(1, most));
        }
        let entry_of = |at: usize| Self::find(page, records.get(at)?.0);
        let is_after = |new: usize, old: usize| match (entry_of(new), entry_of(old)) {
            (Some(new), Some(old)) => (1..=RUN_STEP).contains(&new.wrapping_sub(old)),
            _ => false,
        };
        let below = |back: usize| slot.wrapping_sub(back);
        let ascends = (1..=RUN_STEPS).all(|back| is_after(below(back), below(back + 1)));
        let descends = (0..RUN_STEPS).all(|on| is_after(slot + on, slot + on + 1));
        // The pending record goes below a separator that it is next to.
        (ascends || descends).then(|| slot.clamp(1, most))
    }

    /// The words of a replica of the high fence and the version.
    fn due_replica(page: EntriesPage<'_, WORDS, HOPS>, place: usize) -> [u64; 2] {
        let high = Self::high(page).unwrap_or(0);
        let tag = page.lock_word().version() & TAG;
        let fields = [high, page.load(SELF_WORD), tag, place as u64];
        [high, tag << (64 - TAG_BITS) | sum_of(fields.into_iter()) >> TAG_BITS]
    }

    fn replica(page: EntriesPage<'_, WORDS, HOPS>, place: usize) -> [u64; 2] {
        [page.load(place), page.load(place + 1)]
    }

    /// The part of the weight of a full page that a full leaf has.
    fn leaf_fill(fill: usize) -> usize {
        (fill * Self::most_records() / Self::full()).max(1)
    }
}

impl<const WORDS: usize, const HOPS: bool> Layout for Entries8<WORDS, HOPS> {
    type Key = u64;
    type Value = u64;
    type Entries = Entries8<WORDS>;
    type Hops = Entries8<WORDS, true>;

    const HAS_HEAP: bool = false;
    const FORMAT: u8 = Fixed8::<WORDS>::FORMAT;
    const BY_ENTRIES: bool = true;
    const WINDOWS: bool = HOPS;

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
    fn low(page: EntriesPage<'_, WORDS, HOPS>) -> u64 {
        Fixed8::low(plain(page))
    }

    #[inline]
    fn high(page: EntriesPage<'_, WORDS, HOPS>) -> Option<u64> {
        Fixed8::high(plain(page))
    }

    fn format_entries(page: EntriesPage<'_, WORDS, HOPS>, low: &u64, high: Option<&u64>) {
        Self::set_low(page, low);
        Self::set_high(page, high);
        if page.level() == 0 {
            page.set_count(Self::most_records());
            Self::retain(page, |_| false);
            Self::seal_entries(page);
        }
    }

    fn set_low(page: EntriesPage<'_, WORDS, HOPS>, low: &u64) {
        Fixed8::set_low(plain(page), low);
    }

    fn set_high(page: EntriesPage<'_, WORDS, HOPS>, high: Option<&u64>) {
        Fixed8::set_high(plain(page), high);
    }

    #[inline]
    fn reach(page: EntriesPage<'_, WORDS, HOPS>, probe: DescentProbe<'_, u64>) -> FencePosition {
        Fixed8::reach(plain(page), probe)
    }

    #[inline]
    fn leaf_get(page: EntriesPage<'_, WORDS, HOPS>, key: &u64) -> Option<u64> {
        Self::find(page, *key).map(|slot| Self::record(page, slot).1)
    }

    fn leaf_collect(
        page: EntriesPage<'_, WORDS, HOPS>,
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

    fn leaf_insert(page: EntriesPage<'_, WORDS, HOPS>, key: &u64, value: &u64) -> LeafInsert {
        if Self::find(page, *key).is_some() {
            return LeafInsert::Exists;
        }
        let Some((entry, moved)) = Self::make_room(page, *key) else { return LeafInsert::Full };
        Self::set_record(page, entry, (*key, *value));
        let words =
            if moved { HEADER_WORDS..Self::page_words() } else { Self::places().words(entry) };
        LeafInsert::Inserted(words.into())
    }

    #[inline]
    fn leaf_replace(
        page: EntriesPage<'_, WORDS, HOPS>,
        key: &u64,
        value: &u64,
    ) -> LeafReplace<u64> {
        let Some(entry) = Self::find(page, *key) else { return LeafReplace::Absent };
        Self::set_record(page, entry, (*key, *value));
        LeafReplace::Replaced(Self::places().value_words(entry).into(), None)
    }

    fn leaf_has_room(page: EntriesPage<'_, WORDS, HOPS>, key: &u64, _value: &u64) -> bool {
        Self::find(page, *key).is_some() || Self::moves(page, *key, |_| true).is_some()
    }

    fn leaf_delete(page: EntriesPage<'_, WORDS, HOPS>, key: &u64) -> LeafDelete<u64> {
        let Some(entry) = Self::find(page, *key) else { return LeafDelete::Absent };
        Self::set_live(page, entry, false);
        let check = Self::check_word(entry);
        LeafDelete::Deleted((check..check + 1).into(), None)
    }

    /// The free entries of a leaf.
    #[inline]
    fn deleted_count(page: EntriesPage<'_, WORDS, HOPS>) -> usize {
        match page.level() {
            0 => page.count().saturating_sub(Self::live_entries(page).count()),
            _ => 0,
        }
    }

    /// Free entries are used again as they are.
    fn leaf_compact(_page: EntriesPage<'_, WORDS, HOPS>) -> usize {
        0
    }

    #[inline]
    fn record_window(key: &u64) -> Range<usize> {
        match HOPS {
            true => Self::places().window(Fixed8::<WORDS>::hash(key)).0,
            false => HEADER_WORDS..Self::page_words(),
        }
    }

    fn open_window(
        page: EntriesPage<'_, WORDS, HOPS>,
        at: GlobalAddr,
        key: &u64,
        unchecked: bool,
    ) -> bool {
        let (_, place) = Self::places().window(Fixed8::<WORDS>::hash(key));
        let replica @ [high, tag] = Self::replica(page, place);
        page.store(0, LockWord::from_bits(tag >> (64 - TAG_BITS)).to_bits());
        page.store(SELF_WORD, at.to_bits());
        Self::set_high(page, (high != 0).then_some(&high));
        let mut buckets = Self::places().neighbours(Fixed8::<WORDS>::hash(key));
        unchecked
            || replica == Self::due_replica(page, place)
                && buckets.all(|bucket| Self::is_whole(page, bucket))
    }

    fn record_place(page: EntriesPage<'_, WORDS, HOPS>, key: &u64) -> Option<Range<usize>> {
        Self::find(page, *key).map(|entry| Self::places().bucket_of(entry))
    }

    #[inline]
    fn entry_writes(words: Range<usize>) -> Option<(Range<usize>, Option<Range<usize>>)> {
        Self::places().writes(words)
    }

    #[inline]
    fn search_words(page: EntriesPage<'_, WORDS, HOPS>) -> Range<usize> {
        match page.level() {
            0 => HEADER_WORDS..Self::page_words(),
            _ => Fixed8::search_words(plain(page)),
        }
    }

    #[inline]
    fn inner_slot(page: EntriesPage<'_, WORDS, HOPS>, probe: DescentProbe<'_, u64>) -> usize {
        Fixed8::inner_slot(plain(page), probe)
    }

    #[inline]
    fn inner_child_word(page: EntriesPage<'_, WORDS, HOPS>, slot: usize) -> usize {
        Fixed8::inner_child_word(plain(page), slot)
    }

    #[inline]
    fn inner_child(page: EntriesPage<'_, WORDS, HOPS>, slot: usize) -> GlobalAddr {
        Fixed8::inner_child(plain(page), slot)
    }

    fn inner_set_child(page: EntriesPage<'_, WORDS, HOPS>, slot: usize, child: GlobalAddr) {
        Fixed8::inner_set_child(plain(page), slot, child);
    }

    fn inner_key(page: EntriesPage<'_, WORDS, HOPS>, slot: usize) -> u64 {
        Fixed8::inner_key(plain(page), slot)
    }

    fn inner_insert(page: EntriesPage<'_, WORDS, HOPS>, key: &u64, child: GlobalAddr) -> bool {
        Fixed8::inner_insert(plain(page), key, child)
    }

    fn inner_has_room(page: EntriesPage<'_, WORDS, HOPS>, key: &u64) -> bool {
        Fixed8::inner_has_room(plain(page), key)
    }

    fn inner_remove(page: EntriesPage<'_, WORDS, HOPS>, slot: usize) {
        Fixed8::inner_remove(plain(page), slot);
    }

    fn inner_set_key(page: EntriesPage<'_, WORDS, HOPS>, slot: usize, key: &u64) -> bool {
        Fixed8::inner_set_key(plain(page), slot, key)
    }

    fn inner_can_set_key(page: EntriesPage<'_, WORDS, HOPS>, slot: usize, key: &u64) -> bool {
        Fixed8::inner_can_set_key(plain(page), slot, key)
    }

    #[inline]
    fn weight(page: EntriesPage<'_, WORDS, HOPS>) -> usize {
        match page.level() {
            0 => page.live_count() * Self::full() / Self::most_records(),
            _ => Fixed8::weight(plain(page)),
        }
    }

    fn record_weight(page: EntriesPage<'_, WORDS, HOPS>, key: &u64) -> usize {
        usize::from(Self::find(page, *key).is_some()) * Self::full() / Self::most_records()
    }

    fn is_full(page: EntriesPage<'_, WORDS, HOPS>) -> bool {
        match page.level() {
            0 => Self::live_entries(page).count() == Self::most_records(),
            _ => Fixed8::is_full(plain(page)),
        }
    }

    fn clear_unused(page: EntriesPage<'_, WORDS, HOPS>) {
        if page.level() > 0 {
            Fixed8::clear_unused(plain(page));
        }
    }

    fn seal_entries(page: EntriesPage<'_, WORDS, HOPS>) {
        if page.level() > 0 {
            return;
        }
        for bucket in 0..Self::places().buckets() {
            page.store(Self::places().check(bucket), Self::due_check(page, bucket));
        }
        for place in Self::places().replicas() {
            let [high, tag] = Self::due_replica(page, place);
            page.store(place, high);
            page.store(place + 1, tag);
        }
    }

    #[inline]
    fn entries_are_whole(page: EntriesPage<'_, WORDS, HOPS>) -> bool {
        let is_due = |place| Self::replica(page, place) == Self::due_replica(page, place);
        page.level() > 0
            || (0..Self::places().buckets()).all(|bucket| Self::is_whole(page, bucket))
                && Self::places().replicas().all(is_due)
    }

    fn mended_entries(page: EntriesPage<'_, WORDS, HOPS>, drops: bool) -> Vec<(usize, u64)> {
        if page.level() > 0 {
            return Vec::new();
        }
        let torn = (0..Self::places().buckets()).filter(|&bucket| !Self::is_whole(page, bucket));
        let due = |bucket| match drops {
            true => Self::check_with(page, bucket, 0),
            false => Self::due_check(page, bucket),
        };
        torn.map(|bucket| (Self::places().check(bucket), due(bucket))).collect()
    }

    /// Next to a run of insertions, or else the middle; either half then has room for another
    /// entry. In a hopscotch leaf, the entries that can hold the pending key may all be in its
    /// half. Then the split is next to that key: those entries are not all below it and not all
    /// above it.
    fn split_plan(
        page: EntriesPage<'_, WORDS, HOPS>,
        pending: Option<&OverflowEntry<Self>>,
    ) -> SplitPlan<u64> {
        if page.level() > 0 {
            let probe = pending.map(|entry| DescentProbe::Before(entry.key()));
            let below = probe.map(|probe| Fixed8::inner_slot(plain(page), probe) + 1);
            return Fixed8::split_plan_at(plain(page), below);
        }
        let records = Self::records(page);
        let before = |slot: usize| SplitPlan { slot, separator: records[slot].0 };
        let middle = before(records.len() / 2);
        let Some(OverflowEntry::Record(key, _)) = pending else { return middle };
        let has_room = |plan: &SplitPlan<u64>| {
            let is_above = |other: u64| other >= plan.separator;
            !HOPS || Self::moves(page, *key, |other| is_above(other) == is_above(*key)).is_some()
        };
        let slot = records.partition_point(|(other, _)| other < key);
        if let Some(at) = Self::run_at(page, &records, (slot, *key))
            && has_room(&before(at))
        {
            return before(at);
        }
        if has_room(&middle) {
            return middle;
        }
        let is_below = |other: u64| other < *key;
        match slot < records.len() && Self::moves(page, *key, is_below).is_some() {
            true => before(slot),
            false => SplitPlan { slot, separator: *key },
        }
    }

    /// Records keep their entries, which are those of their keys in any leaf.
    fn split_copy(
        left: EntriesPage<'_, WORDS, HOPS>,
        right: EntriesPage<'_, WORDS, HOPS>,
        right_at: GlobalAddr,
        plan: &SplitPlan<u64>,
    ) {
        if left.level() > 0 {
            return Fixed8::split_copy(plain(left), plain(right), right_at, plan);
        }
        right.format_empty(right_at, 0, &plan.separator, Self::high(left).as_ref());
        right.set_sibling(left.sibling());
        for entry in Self::sound_entries(left) {
            let record = Self::record(left, entry);
            if record.0 >= plan.separator {
                Self::set_record(right, entry, record);
            }
        }
    }

    fn split_truncate(left: EntriesPage<'_, WORDS, HOPS>, plan: &SplitPlan<u64>) {
        match left.level() {
            0 => Self::retain(left, |key| key < plan.separator),
            _ => Fixed8::split_truncate(plain(left), plan),
        }
    }

    fn trim(page: EntriesPage<'_, WORDS, HOPS>, low: &u64, high: Option<&u64>) -> bool {
        if page.level() > 0 {
            return Fixed8::trim(plain(page), low, high);
        }
        Self::retain(page, |key| key >= *low && high.is_none_or(|high| key < *high));
        Self::set_low(page, low);
        Self::set_high(page, high);
        true
    }

    fn leaf_sum(page: EntriesPage<'_, WORDS, HOPS>) -> u64 {
        let header = [SELF_WORD, LOW_WORD, HIGH_WORD, META_WORD].map(|word| page.load(word));
        let entry = |entry| {
            let (key, _) = Self::record(page, entry);
            if Self::is_live(page, entry) { [1, key] } else { [0, 0] }
        };
        chained_sum(header.into_iter().chain((0..Self::most_records()).flat_map(entry)))
    }

    fn fits_merged(
        left: EntriesPage<'_, WORDS, HOPS>,
        right: EntriesPage<'_, WORDS, HOPS>,
    ) -> bool {
        match left.level() {
            0 => {
                let most = Self::most_records() - Self::most_records() / 8;
                left.live_count() + right.live_count() <= most
                    && Self::has_room_for(&[Self::records(left), Self::records(right)].concat())
            }
            _ => Fixed8::fits_merged(plain(left), plain(right)),
        }
    }

    fn merge(left: EntriesPage<'_, WORDS, HOPS>, right: EntriesPage<'_, WORDS, HOPS>) {
        if left.level() > 0 {
            return Fixed8::merge(plain(left), plain(right));
        }
        let records = [Self::records(left), Self::records(right)].concat();
        Self::set_records(left, &records);
        Self::set_high(left, Self::high(right).as_ref());
        left.set_sibling(right.sibling());
    }

    fn rebalance(
        left: EntriesPage<'_, WORDS, HOPS>,
        right: EntriesPage<'_, WORDS, HOPS>,
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
        if !fits(&separator) || !Self::has_room_for(lower) || !Self::has_room_for(upper) {
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
        page: EntriesPage<'_, WORDS, HOPS>,
        (key, value): (&u64, &u64),
        fill: usize,
    ) -> bool {
        page.live_count() < Self::leaf_fill(fill)
            && Self::leaf_insert(page, key, value).is_inserted()
    }

    fn fill_inner(
        filling: &mut (),
        page: EntriesPage<'_, WORDS, HOPS>,
        child: (&u64, GlobalAddr),
        fill: usize,
    ) -> bool {
        Fixed8::fill_inner(filling, plain(page), child, fill)
    }

    fn is_filled(filling: &(), page: EntriesPage<'_, WORDS, HOPS>, fill: usize) -> bool {
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

    type EntriesLeaf = Entries8<128>;
    type Hops = Entries8<128, true>;

    fn words() -> Vec<AtomicU64> {
        (0..128).map(|_| AtomicU64::new(0)).collect()
    }

    fn load(words: &[AtomicU64]) -> Vec<u64> {
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn leaf<const HOPS: bool>(words: &[AtomicU64], version: u64) -> Page<'_, Entries8<128, HOPS>> {
        let page = Page::<Entries8<128, HOPS>>::new(words);
        page.format_empty(GlobalAddr::new(ServerId::new(1), 4096), 0, &5, None);
        for key in 5..20 {
            assert!(Entries8::leaf_insert(page, &key, &(key * 3)).is_inserted());
        }
        page.seal(LockWord::from_bits(version).next_by(3));
        page
    }

    /// Each WRITE of a change, torn in every way: a reader refuses the leaf, or finds the old or
    /// the new record. What is mended is the old or the new leaf.
    fn torn_entries<const HOPS: bool>() {
        for change in 0..3 {
            let (old, new) = (words(), words());
            let (before, after) = (leaf::<HOPS>(&old, 0), leaf::<HOPS>(&new, 0));
            let changed = match change {
                0 => {
                    let LeafReplace::Replaced(words, None) = Entries8::leaf_replace(after, &9, &77)
                    else {
                        panic!("it is there")
                    };
                    words
                }
                1 => {
                    let LeafInsert::Inserted(words) = Entries8::leaf_insert(after, &50, &77) else {
                        panic!("there is room")
                    };
                    words
                }
                _ => {
                    let LeafDelete::Deleted(words, None) = Entries8::leaf_delete(after, &9) else {
                        panic!("it is there")
                    };
                    words
                }
            };
            let (first, second) =
                Entries8::<128, HOPS>::entry_writes(changed.front()).expect("nothing moved");
            let writes: Vec<_> = [first].into_iter().chain(second).collect();
            assert!(before.is_of_one_piece() && after.is_of_one_piece(), "change {change}");
            let key = if change == 1 { 50 } else { 9 };
            let outcomes = [Entries8::leaf_get(before, &key), Entries8::leaf_get(after, &key)];
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
                    let page = Page::<Entries8<128, HOPS>>::new(&torn);
                    if page.is_of_one_piece() {
                        assert!(outcomes.contains(&Entries8::leaf_get(page, &key)));
                        assert_eq!(Entries8::mended_entries(page, false), []);
                        continue;
                    }
                    let mends = Entries8::mended_entries(page, false);
                    assert_eq!(mends.len(), 1, "change {change}");
                    for (word, due) in mends {
                        torn[word].store(due, Ordering::Relaxed);
                    }
                    assert!(page.is_of_one_piece(), "change {change}, {subset:b} of {write:?}");
                    assert!(outcomes.contains(&Entries8::leaf_get(page, &key)), "change {change}");
                }
                landed[write.clone()].copy_from_slice(&new[write]);
            }
            assert_eq!(landed, new, "change {change}: these are all changed words");
        }
    }

    #[test]
    fn a_torn_entry_is_refused_and_mended() {
        torn_entries::<false>();
        torn_entries::<true>();
    }

    /// Two versions of a leaf with the same records differ in every check.
    #[test]
    fn entries_of_two_versions_do_not_mix() {
        let (one, other) = (words(), words());
        let (page, _) = (leaf::<false>(&one, 0), leaf::<false>(&other, 1));
        for word in [0, 7, EntriesLeaf::check_word(0), EntriesLeaf::check_word(30)] {
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
        let (left, right) = (leaf::<false>(&one, 0), Page::<EntriesLeaf>::new(&other));
        let mut keys: Vec<u64> = (5..20).collect();
        for key in (0..140).rev().map(|number| 20 + number * 7) {
            if EntriesLeaf::leaf_insert(left, &key, &(key * 3)) == LeafInsert::Full {
                break;
            }
            keys.push(key);
        }
        assert!(EntriesLeaf::is_full(left) && keys.len() == 40 && left.live_count() == 40);
        keys.sort_unstable();
        let plan = EntriesLeaf::split_plan(left, None);
        let at = GlobalAddr::new(ServerId::new(0), 8192);
        EntriesLeaf::split_copy(left, right, at, &plan);
        EntriesLeaf::split_truncate(left, &plan);
        EntriesLeaf::split_link(left, &plan.separator, at);
        let all = ScanWindow {
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            reverse: false,
            limit: 100,
        };
        let mut found = Vec::new();
        assert_eq!(EntriesLeaf::leaf_collect(left, &all, &mut found), 20);
        assert_eq!(EntriesLeaf::leaf_collect(right, &all, &mut found), 20);
        assert_eq!(found, keys.iter().map(|key| (*key, key * 3)).collect::<Vec<_>>());
        assert_eq!((EntriesLeaf::high(left), EntriesLeaf::low(right)), (Some(keys[20]), keys[20]));
        let mut downwards = Vec::new();
        let some = ScanWindow { reverse: true, limit: 3, upper: Bound::Excluded(&keys[39]), ..all };
        EntriesLeaf::leaf_collect(right, &some, &mut downwards);
        let expected = [38, 37, 36].map(|number| (keys[number], keys[number] * 3));
        assert_eq!(downwards, expected);
    }

    /// A copy of a leaf with nothing but the window of a key.
    fn window(leaf: Page<'_, Hops>, key: u64) -> Vec<AtomicU64> {
        let alone = words();
        for word in Hops::record_window(&key) {
            alone[word].store(leaf.load(word), Ordering::Relaxed);
        }
        alone
    }

    /// A window shows each key of the leaf, its high fence and its version, and refuses words of
    /// another version, of another address, and torn ones.
    #[test]
    fn a_window_is_of_one_version_of_its_leaf() {
        let (one, other) = (words(), words());
        let (page, newer) = (leaf::<true>(&one, 0), leaf::<true>(&other, 1));
        Hops::set_high(newer, Some(&17));
        newer.seal(newer.lock_word());
        let at = page.address();
        for key in 5..30 {
            let value = (key < 20).then_some(key * 3);
            let alone = window(page, key);
            let view = Page::<Hops>::new(&alone);
            assert!(Hops::open_window(view, at, &key, false));
            assert_eq!((Hops::leaf_get(view, &key), Hops::high(view)), (value, None));
            let of_newer = window(newer, key);
            let view_of_newer = Page::<Hops>::new(&of_newer);
            assert!(Hops::open_window(view_of_newer, at, &key, false));
            assert_eq!(Hops::high(view_of_newer), Some(17));
            assert!(!Hops::open_window(Page::new(&window(page, key)), at.plus(1024), &key, false));
            let mut differing = 0;
            for word in Hops::record_window(&key) {
                let mixed = window(page, key);
                mixed[word].store(newer.load(word), Ordering::Relaxed);
                let whole = Hops::open_window(Page::new(&mixed), at, &key, false);
                assert_eq!(whole, newer.load(word) == page.load(word), "word {word}");
                differing += usize::from(!whole);
            }
            assert_eq!(differing, 6, "the replica, and the checks of four buckets");
        }
    }

    /// Random keys until the leaf is full: they move, none is lost, and the leaf is nearly full.
    /// Then every record that has no room finds it after a split.
    #[test]
    fn a_full_hopscotch_leaf_splits_so_that_the_new_record_has_room() {
        let (mut held, mut moved, mut beside) = (0, 0, 0);
        for seed in 0..200_u64 {
            let (one, other) = (words(), words());
            let (left, right) = (Page::<Hops>::new(&one), Page::<Hops>::new(&other));
            left.format_empty(GlobalAddr::new(ServerId::new(1), 4096), 0, &0, None);
            left.seal(LockWord::from_bits(0).next_by(3));
            let key_of = |number: u64| Fixed8::<128>::hash(&(seed << 32 | number));
            let with = |low: bool| {
                (0..).map(key_of).filter(move |key| {
                    let home = Hops::places().neighbours(Fixed8::<128>::hash(key)).start;
                    // In every other leaf, all low keys are at home in one bucket.
                    seed.is_multiple_of(2)
                        || (if low { home == 0 } else { home > 5 }) && low == (key >> 63 == 0)
                })
            };
            let mut candidates = with(true).zip(with(false)).flat_map(|(low, high)| [low, high]);
            let mut keys = Vec::new();
            let pending = loop {
                let key = candidates.next().unwrap();
                match Hops::leaf_insert(left, &key, &!key) {
                    LeafInsert::Inserted(words) => {
                        keys.push(key);
                        moved += usize::from(Hops::entry_writes(words.front()).is_none());
                    }
                    LeafInsert::Exists => {}
                    LeafInsert::Full => break key,
                }
                assert!(keys.iter().all(|key| Hops::leaf_get(left, key) == Some(!key)));
            };
            assert!(!Hops::leaf_has_room(left, &pending, &0));
            held += if seed.is_multiple_of(2) { keys.len() } else { 0 };
            let record = OverflowEntry::<Hops>::Record(pending, !pending);
            let plan = Hops::split_plan(left, Some(&record));
            beside += usize::from(plan != Hops::split_plan(left, None));
            let at = GlobalAddr::new(ServerId::new(0), 8192);
            Hops::split_copy(left, right, at, &plan);
            Hops::split_truncate(left, &plan);
            Hops::split_link(left, &plan.separator, at);
            let half = if pending < plan.separator { left } else { right };
            assert!(record.add_to(half), "seed {seed}");
            for page in [left, right] {
                page.seal(page.lock_word().next_by(3));
                assert!(page.is_of_one_piece() && page.live_count() > 0);
            }
            keys.push(pending);
            for key in keys {
                let half = if key < plan.separator { left } else { right };
                assert_eq!(Hops::leaf_get(half, &key), Some(!key));
            }
        }
        assert!(held >= 100 * 36, "a leaf was full with {} of 42 records", held / 100);
        assert!(moved > 0 && beside > 0, "{moved} moves, {beside} splits beside the middle");
    }
}
