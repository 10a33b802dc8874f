//! The operations of the slotted layout.
//!
//! *Thread safety*: the same as for [`crate::Page`].

use super::content::{PageContent, PageFences, is_inner, store_record};
use super::fill::Filling;
use super::plan::{divide, divide_at, fence_beyond, halves};
use super::slots::{
    Bytes, BytesPage, FRONT_WORD, FrontWord, HEAD_BYTES, HEAP_WORD, HeapWord, MAX_PAGE_WORDS,
    RecordSlot, head_of, record_words,
};
use crate::checksum::chained_sum;
use crate::chosen::words_of;
use crate::layout::{
    DescentProbe, FencePosition, Layout, LeafDelete, LeafInsert, LeafReplace, OverflowEntry,
    ScanWindow, SplitPlan,
};
use crate::limits::LengthError;
use crate::stored::REFERENCE_BYTES;
use crate::view::{HEADER_WORDS, META_WORD, SELF_WORD};
use crate::words::PageWords;
use farleaf_fabric::GlobalAddr;
use std::cmp::Ordering;
use std::ops::{Bound, Range};

/// Size of a string's length field in a message, in bytes.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Where a record can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordSpace {
    /// In the words of the old record, which begin here.
    InPlace(usize),
    /// At the top of the heap.
    OnTop,
    /// In the page once it is compacted: laid out again without deleted entries and garbage.
    AfterCleaning,
    /// Nowhere in this page: it has too little space.
    Nowhere,
}

/// Copies of a page's fences.
struct OwnFences {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl OwnFences {
    fn of<const WORDS: usize>(page: BytesPage<'_, WORDS>) -> Self {
        Self { low: Bytes::low(page), high: Bytes::high(page) }
    }

    fn as_ref(&self) -> PageFences<'_> {
        PageFences { low: &self.low, high: self.high.as_deref() }
    }
}

impl<const WORDS: usize> Bytes<WORDS> {
    /// Number of words that deleted entries take.
    fn deleted_entry_words(page: BytesPage<'_, WORDS>, front: FrontWord, heap: HeapWord) -> usize {
        if heap.deleted == 0 {
            return 0;
        }
        let slots = (0..page.count()).map(|number| RecordSlot::at(page, front.first, number));
        slots.filter(|slot| slot.deleted).map(|slot| 1 + slot.words()).sum()
    }

    /// Number of words in use, from the first fence on.
    fn used(page: BytesPage<'_, WORDS>) -> usize {
        let (front, heap) = (FrontWord::of(page), HeapWord::of(page));
        let records = Self::size(page) - heap.top - heap.garbage;
        let all = front.first - HEADER_WORDS + page.count() + records;
        all.saturating_sub(Self::deleted_entry_words(page, front, heap))
    }

    /// Where a record of these lengths fits, for an existing slot or for a new one.
    fn room_for(
        page: BytesPage<'_, WORDS>,
        at: Result<usize, usize>,
        value: usize,
        suffix: usize,
    ) -> RecordSpace {
        let (front, heap) = (FrontWord::of(page), HeapWord::of(page));
        let needed = record_words(value, suffix);
        let (slots, old) = match at {
            Ok(number) => (0, Some(RecordSlot::at(page, front.first, number))),
            Err(_) => (1, None),
        };
        // Only if the value is one word: then neither a reader nor a crash can observe half of it.
        let same = |old: RecordSlot| old.value == value && old.suffix == suffix && value <= 8;
        if let Some(old) = old.filter(|old| same(*old)) {
            return RecordSpace::InPlace(old.record);
        }
        if page.count() + slots > Self::size(page) - HEADER_WORDS {
            return RecordSpace::Nowhere;
        }
        if heap.top.saturating_sub(front.first + page.count()) >= needed + slots {
            return RecordSpace::OnTop;
        }
        if let Some(old) = old.filter(|old| needed <= old.words()) {
            return RecordSpace::InPlace(old.record);
        }
        let freed = old.filter(|old| !old.deleted).map_or(0, |old| 1 + old.words());
        match HEADER_WORDS + Self::used(page) + needed < Self::size(page) + freed {
            true => RecordSpace::AfterCleaning,
            false => RecordSpace::Nowhere,
        }
    }

    /// Puts an entry at a slot, or into a new one, if there is room for it.
    fn put(
        page: BytesPage<'_, WORDS>,
        at: Result<usize, usize>,
        (key, suffix): (&[u8], &[u8]),
        value: &[u8],
    ) -> Option<PageWords> {
        let needed = record_words(value.len(), suffix.len());
        let record = match Self::room_for(page, at, value.len(), suffix.len()) {
            RecordSpace::Nowhere => return None,
            RecordSpace::AfterCleaning => return Self::put_cleaning(page, at, key, value),
            RecordSpace::InPlace(record) => record,
            RecordSpace::OnTop => HeapWord::of(page).top - needed,
        };
        let (front_of, mut heap) = (FrontWord::of(page), HeapWord::of(page));
        let number = at.unwrap_or_else(|place| place);
        let place = front_of.first + number;
        let (mut front, mut heap_words) = (0..0, record..record + needed);
        let mut overwrites = false;
        store_record(page, record, value, suffix);
        match at {
            Ok(_) => {
                let old = RecordSlot::at(page, front_of.first, number);
                overwrites = record == old.record
                    && (value.len() > 8 || old.value != value.len() || old.suffix != suffix.len());
                // Words of the old record that the new one does not use.
                heap.garbage +=
                    if record == old.record { old.words() - needed } else { old.words() };
                heap.deleted -= usize::from(old.deleted);
            }
            Err(_) => {
                for above in (place..front_of.first + page.count()).rev() {
                    page.store(above + 1, page.load(above));
                }
                page.set_count(page.count() + 1);
                page.note_inserted(number);
            }
        }
        heap.top = heap.top.min(record);
        let (suffix_length, head) = (suffix.len(), head_of(suffix));
        let slot =
            RecordSlot { head, record, suffix: suffix_length, value: value.len(), deleted: false };
        if page.load(place) != slot.to_word() || at.is_err() {
            page.store(place, slot.to_word());
            heap.store(page);
            // The count, the heap word, and the slots up to this one (or up to the last, after an
            // insertion).
            front = HEAP_WORD..at.map_or(front_of.first + page.count(), |_| place + 1);
        } else if !is_inner(page) {
            // The slot is unchanged: same key, and a value of the same length.
            heap_words.end = record + value.len().div_ceil(8);
        }
        if overwrites {
            // The pool has a slot that refers to these words (bytes.Y9).
            return Some((FRONT_WORD..Self::size(page)).into());
        }
        if front.is_empty() && heap_words.is_empty() {
            front = place..place + 1; // some word must stand for the change
        }
        Some(PageWords::new(&front, &heap_words))
    }

    /// Lays the page out again, with the new entry.
    fn put_cleaning(
        page: BytesPage<'_, WORDS>,
        at: Result<usize, usize>,
        key: &[u8],
        value: &[u8],
    ) -> Option<PageWords> {
        let fences = OwnFences::of(page);
        let mut content = PageContent::of(page);
        match at {
            Ok(number) => content.splice(number, 1, key, value),
            Err(place) => content.splice(place, 0, key, value),
        }
        let with_deleted = content.len();
        content.drop_deleted();
        if !content.lay_out(0..content.len(), fences.as_ref(), page) {
            return None;
        }
        match at {
            _ if content.len() < with_deleted => page.forget_trend(),
            Ok(_) => {}
            Err(place) => page.note_inserted(place),
        }
        Some((FRONT_WORD..Self::size(page)).into())
    }

    /// Lays a page out again with other fences. Drops deleted entries if there is no room for them.
    fn lay_out_again(
        content: PageContent,
        range: Range<usize>,
        fences: PageFences<'_>,
        page: BytesPage<'_, WORDS>,
    ) {
        let there = Self::try_lay_out_again(content, range, fences, page);
        debug_assert!(there, "bytes.Y6: a change of fences asks for room first");
    }

    /// Like [`Bytes::lay_out_again`]; `false`, with the page unchanged, if there is no room.
    fn try_lay_out_again(
        mut content: PageContent,
        range: Range<usize>,
        fences: PageFences<'_>,
        page: BytesPage<'_, WORDS>,
    ) -> bool {
        if content.lay_out(range.clone(), fences, page) {
            return true;
        }
        content = content.part(range);
        content.drop_deleted();
        content.lay_out(0..content.len(), fences, page)
    }

    fn set_fences(page: BytesPage<'_, WORDS>, fences: PageFences<'_>) {
        let content = PageContent::of(page);
        let all = 0..content.len();
        Self::lay_out_again(content, all, fences, page);
    }

    /// The number of slots with keys below `key`, or not above it.
    fn slots_below(page: BytesPage<'_, WORDS>, key: &[u8], or_equal: bool) -> usize {
        match Self::find(page, FrontWord::of(page), key) {
            Ok(slot) => slot + usize::from(or_equal),
            Err(place) => place,
        }
    }

    fn window_slots(page: BytesPage<'_, WORDS>, window: &ScanWindow<'_, [u8]>) -> Range<usize> {
        let first = match window.lower {
            Bound::Unbounded => 0,
            Bound::Included(key) => Self::slots_below(page, key, false),
            Bound::Excluded(key) => Self::slots_below(page, key, true),
        };
        let end = match window.upper {
            Bound::Unbounded => page.count(),
            Bound::Included(key) => Self::slots_below(page, key, true),
            Bound::Excluded(key) => Self::slots_below(page, key, false),
        };
        first..end.max(first)
    }

    fn live_slot(page: BytesPage<'_, WORDS>, key: &[u8]) -> Option<(usize, RecordSlot)> {
        let front = FrontWord::of(page);
        let number = Self::find(page, front, key).ok()?;
        let slot = RecordSlot::at(page, front.first, number);
        (!slot.deleted).then_some((number, slot))
    }

    /// The value of a slot, if it can be a reference to a value block.
    fn reference(page: BytesPage<'_, WORDS>, slot: RecordSlot) -> Option<Vec<u8>> {
        if slot.value != REFERENCE_BYTES {
            return None;
        }
        let mut reference = Vec::with_capacity(REFERENCE_BYTES.next_multiple_of(8));
        slot.copy_value(page, &mut reference);
        Some(reference)
    }

    fn mark(page: BytesPage<'_, WORDS>, number: usize, deleted: bool) {
        let (front, mut heap) = (FrontWord::of(page), HeapWord::of(page));
        let slot = RecordSlot { deleted, ..RecordSlot::at(page, front.first, number) };
        page.store(front.first + number, slot.to_word());
        heap.deleted = if deleted { heap.deleted + 1 } else { heap.deleted - 1 };
        heap.store(page);
    }

    /// Number of words that the merged page would take.
    fn merged_words(left: BytesPage<'_, WORDS>, right: BytesPage<'_, WORDS>) -> usize {
        let mut content = PageContent::of(left);
        content.append(right);
        content.drop_deleted();
        let (low, high) = (Self::low(left), Self::high(right));
        let fences = PageFences { low: &low, high: high.as_deref() };
        content.words(&(0..content.len()), fences, is_inner(left))
    }
}

impl<const WORDS: usize> Layout for Bytes<WORDS> {
    type Key = [u8];
    type Value = [u8];
    type Entries = Self;
    type Hops = Self;

    const HAS_HEAP: bool = true;
    const FORMAT: u8 = 3;

    type Filling = Filling;

    #[inline]
    fn page_words() -> usize {
        const { Self::IS_SENSIBLE };
        words_of(WORDS)
    }

    #[inline]
    fn capacity() -> usize {
        Self::page_words() - HEADER_WORDS
    }

    #[inline]
    fn full() -> usize {
        Self::capacity()
    }

    /// Two lengths, and what a page can hold. The key's head is in the slot.
    fn most_message_bytes() -> usize {
        2 * LENGTH_BYTES + HEAD_BYTES + (Self::most_words() - 1) * 8
    }

    fn min_key() -> Vec<u8> {
        Vec::new()
    }

    #[inline]
    fn check_key(key: &[u8]) -> Result<(), LengthError> {
        let (bytes, most) = (key.len(), Self::max_key());
        if bytes <= most { Ok(()) } else { Err(LengthError::Key { bytes, most }) }
    }

    #[inline]
    fn check_record(key: &[u8], value: &[u8]) -> Result<(), LengthError> {
        Self::check_key(key)?;
        let (bytes, most) = (value.len(), Self::longest_value_beside(key.len()));
        if bytes <= most { Ok(()) } else { Err(LengthError::Value { bytes, most }) }
    }

    #[inline]
    fn key_bytes(key: &[u8]) -> usize {
        LENGTH_BYTES + key.len()
    }

    #[inline]
    fn value_bytes(value: &[u8]) -> usize {
        LENGTH_BYTES + value.len()
    }

    #[inline]
    fn value_length(value: &[u8]) -> usize {
        value.len()
    }

    fn value_of_address(at: GlobalAddr) -> Vec<u8> {
        at.to_bits().to_le_bytes().to_vec()
    }

    /// Null for a value of another length.
    fn address_of_value(value: &[u8]) -> GlobalAddr {
        value
            .try_into()
            .map_or(GlobalAddr::NULL, |bytes| GlobalAddr::from_bits(u64::from_le_bytes(bytes)))
    }

    fn hash(key: &[u8]) -> u64 {
        let chunks = key.chunks(8).map(|chunk| {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(padded)
        });
        let mut hash = chained_sum(chunks) ^ key.len() as u64;
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ hash >> 33
    }

    fn low(page: BytesPage<'_, WORDS>) -> Vec<u8> {
        let mut low = Vec::new();
        Self::copy_low(page, FrontWord::of(page).low, &mut low);
        low
    }

    fn high(page: BytesPage<'_, WORDS>) -> Option<Vec<u8>> {
        if page.high_is_infinite() {
            return None;
        }
        let (front, mut high) = (FrontWord::of(page), Vec::new());
        Self::copy_low(page, front.prefix, &mut high);
        Self::copy_bytes(page, front.high_byte(), front.high_rest, &mut high);
        high.truncate(Self::max_key());
        Some(high)
    }

    fn format_entries(page: BytesPage<'_, WORDS>, low: &[u8], high: Option<&[u8]>) {
        let there = PageContent::default().lay_out(0..0, PageFences { low, high }, page);
        debug_assert!(there, "two fences fit a page");
    }

    fn set_low(page: BytesPage<'_, WORDS>, low: &[u8]) {
        let high = Self::high(page);
        Self::set_fences(page, PageFences { low, high: high.as_deref() });
    }

    fn set_high(page: BytesPage<'_, WORDS>, high: Option<&[u8]>) {
        if Self::high(page).as_deref() == high {
            return;
        }
        let low = Self::low(page);
        Self::set_fences(page, PageFences { low: &low, high });
    }

    #[inline]
    fn reach(page: BytesPage<'_, WORDS>, probe: DescentProbe<'_, [u8]>) -> FencePosition {
        let front = FrontWord::of(page);
        let beyond = |at_least: Ordering| {
            let key = match probe {
                _ if page.high_is_infinite() => return false,
                DescentProbe::Last => return true,
                DescentProbe::At(key) | DescentProbe::Before(key) => key,
            };
            Self::compare_high(page, front, key) <= at_least
        };
        let (below, beyond) = match probe {
            DescentProbe::At(key) => {
                let below = Self::compare_low(page, front, key) == Ordering::Greater;
                (below, beyond(Ordering::Equal))
            }
            DescentProbe::Before(key) => {
                let below = Self::compare_low(page, front, key) != Ordering::Less;
                (below, beyond(Ordering::Less))
            }
            DescentProbe::Last => (false, beyond(Ordering::Equal)),
        };
        match (below, beyond) {
            (true, _) => FencePosition::Below,
            (false, true) => FencePosition::Beyond,
            (false, false) => FencePosition::Inside,
        }
    }

    fn leaf_get(page: BytesPage<'_, WORDS>, key: &[u8]) -> Option<Vec<u8>> {
        let (_, slot) = Self::live_slot(page, key)?;
        let mut value =
            Vec::with_capacity(slot.value.min(Self::most_words() * 8).next_multiple_of(8));
        slot.copy_value(page, &mut value);
        Some(value)
    }

    fn leaf_reference(page: BytesPage<'_, WORDS>, key: &[u8]) -> Option<Vec<u8>> {
        let (_, slot) = Self::live_slot(page, key)?;
        Self::reference(page, slot)
    }

    fn leaf_collect(
        page: BytesPage<'_, WORDS>,
        window: &ScanWindow<'_, [u8]>,
        out: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> usize {
        let before = out.len();
        let front = FrontWord::of(page);
        let mut slots = Self::window_slots(page, window);
        while out.len() - before < window.limit
            && let Some(number) = if window.reverse { slots.next_back() } else { slots.next() }
        {
            let slot = RecordSlot::at(page, front.first, number);
            if slot.deleted {
                continue;
            }
            let (mut key, mut value) = (Vec::new(), Vec::new());
            Self::copy_low(page, front.prefix, &mut key);
            slot.copy_suffix(page, &mut key);
            slot.copy_value(page, &mut value);
            out.push((key, value));
        }
        out.len() - before
    }

    fn leaf_insert(page: BytesPage<'_, WORDS>, key: &[u8], value: &[u8]) -> LeafInsert {
        let front = FrontWord::of(page);
        let at = Self::find(page, front, key);
        if let Ok(number) = at
            && !RecordSlot::at(page, front.first, number).deleted
        {
            return LeafInsert::Exists;
        }
        if Self::check_record(key, value).is_err() {
            return LeafInsert::Full;
        }
        let Some(suffix) = Self::suffix_of(page, front, key) else { return LeafInsert::Full };
        match Self::put(page, at, (key, suffix), value) {
            Some(words) => LeafInsert::Inserted(words),
            None => LeafInsert::Full,
        }
    }

    fn leaf_replace(page: BytesPage<'_, WORDS>, key: &[u8], value: &[u8]) -> LeafReplace<Vec<u8>> {
        let front = FrontWord::of(page);
        let Some((number, slot)) = Self::live_slot(page, key) else { return LeafReplace::Absent };
        let Some(suffix) = Self::suffix_of(page, front, key) else { return LeafReplace::Absent };
        if Self::check_record(key, value).is_err() {
            return LeafReplace::Full;
        }
        // The new record may overwrite it.
        let reference = Self::reference(page, slot);
        match Self::put(page, Ok(number), (key, suffix), value) {
            Some(words) => LeafReplace::Replaced(words, reference),
            None => LeafReplace::Full,
        }
    }

    fn leaf_has_room(page: BytesPage<'_, WORDS>, key: &[u8], value: &[u8]) -> bool {
        let front = FrontWord::of(page);
        let at = Self::find(page, front, key);
        Self::check_record(key, value).is_ok()
            && Self::suffix_of(page, front, key).is_some_and(|suffix| {
                Self::room_for(page, at, value.len(), suffix.len()) != RecordSpace::Nowhere
            })
    }

    fn leaf_delete(page: BytesPage<'_, WORDS>, key: &[u8]) -> LeafDelete<Vec<u8>> {
        let Some((number, slot)) = Self::live_slot(page, key) else { return LeafDelete::Absent };
        Self::mark(page, number, true);
        let words = 3..(FrontWord::of(page).first + page.count()).min(Self::size(page));
        LeafDelete::Deleted(words.into(), Self::reference(page, slot))
    }

    fn leaf_compact(page: BytesPage<'_, WORDS>) -> usize {
        let (count, deleted) = (page.count(), HeapWord::of(page).deleted);
        if deleted == 0 {
            return 0;
        }
        let fences = OwnFences::of(page);
        let mut content = PageContent::of(page);
        content.drop_deleted();
        let there = content.lay_out(0..content.len(), fences.as_ref(), page);
        debug_assert!(there, "fewer entries need less room");
        page.forget_trend();
        count - page.count()
    }

    fn deleted_count(page: BytesPage<'_, WORDS>) -> usize {
        HeapWord::of(page).deleted
    }

    fn record_window(_key: &[u8]) -> Range<usize> {
        HEADER_WORDS..Self::page_words()
    }

    fn search_words(page: BytesPage<'_, WORDS>) -> Range<usize> {
        HEADER_WORDS..(FrontWord::of(page).first + page.count()).min(Self::size(page))
    }

    #[inline]
    fn inner_child_word(page: BytesPage<'_, WORDS>, slot: usize) -> usize {
        RecordSlot::at(page, FrontWord::of(page).first, slot).record % Self::size(page)
    }

    #[inline]
    fn inner_slot(page: BytesPage<'_, WORDS>, probe: DescentProbe<'_, [u8]>) -> usize {
        let not_above = match probe {
            DescentProbe::At(key) => Self::slots_below(page, key, true),
            DescentProbe::Before(key) => Self::slots_below(page, key, false),
            DescentProbe::Last => page.count(),
        };
        not_above.saturating_sub(1)
    }

    #[inline]
    fn inner_child(page: BytesPage<'_, WORDS>, slot: usize) -> GlobalAddr {
        if slot >= page.count() {
            return GlobalAddr::NULL;
        }
        GlobalAddr::from_bits(page.load(Self::inner_child_word(page, slot)))
    }

    fn inner_set_child(page: BytesPage<'_, WORDS>, slot: usize, child: GlobalAddr) {
        page.store(Self::inner_child_word(page, slot), child.to_bits());
    }

    fn inner_key(page: BytesPage<'_, WORDS>, slot: usize) -> Vec<u8> {
        if slot == 0 {
            return Self::low(page);
        }
        let (front, mut key) = (FrontWord::of(page), Vec::new());
        Self::copy_low(page, front.prefix, &mut key);
        RecordSlot::at(page, front.first, slot).copy_suffix(page, &mut key);
        key
    }

    fn inner_insert(page: BytesPage<'_, WORDS>, key: &[u8], child: GlobalAddr) -> bool {
        let front = FrontWord::of(page);
        let value = child.to_bits().to_le_bytes();
        if page.count() == 0 {
            return Self::put(page, Err(0), (key, &[]), &value).is_some();
        }
        let at = Err(Self::slots_below(page, key, false).max(1));
        Self::suffix_of(page, front, key)
            .is_some_and(|suffix| Self::put(page, at, (key, suffix), &value).is_some())
    }

    fn inner_has_room(page: BytesPage<'_, WORDS>, key: &[u8]) -> bool {
        let suffix = Self::suffix_of(page, FrontWord::of(page), key);
        suffix.is_some_and(|suffix| {
            Self::room_for(page, Err(page.count()), 8, suffix.len()) != RecordSpace::Nowhere
        })
    }

    fn inner_remove(page: BytesPage<'_, WORDS>, slot: usize) {
        let (front, mut heap, count) = (FrontWord::of(page), HeapWord::of(page), page.count());
        heap.garbage += RecordSlot::at(page, front.first, slot).words();
        for number in slot + 1..count {
            page.store(front.first + number - 1, page.load(front.first + number));
        }
        page.set_count(count - 1);
        if slot == 0 && count > 1 {
            let first = RecordSlot::at(page, front.first, 0);
            heap.garbage += first.words() - 1;
            page.store(front.first, RecordSlot { head: 0, suffix: 0, ..first }.to_word());
        }
        heap.store(page);
    }

    fn inner_set_key(page: BytesPage<'_, WORDS>, slot: usize, key: &[u8]) -> bool {
        if slot == 0 {
            return true; // P5: it is the low fence
        }
        let front = FrontWord::of(page);
        let child = Self::inner_child(page, slot).to_bits().to_le_bytes();
        Self::suffix_of(page, front, key)
            .is_some_and(|suffix| Self::put(page, Ok(slot), (key, suffix), &child).is_some())
    }

    fn inner_can_set_key(page: BytesPage<'_, WORDS>, slot: usize, key: &[u8]) -> bool {
        let suffix = Self::suffix_of(page, FrontWord::of(page), key);
        slot == 0
            || suffix.is_some_and(|suffix| {
                Self::room_for(page, Ok(slot), 8, suffix.len()) != RecordSpace::Nowhere
            })
    }

    fn weight(page: BytesPage<'_, WORDS>) -> usize {
        Self::used(page)
    }

    fn record_weight(page: BytesPage<'_, WORDS>, key: &[u8]) -> usize {
        Self::live_slot(page, key).map_or(0, |(_, slot)| 1 + slot.words())
    }

    /// Whether there is no room even for an entry without a record, or for a child with its word.
    fn is_full(page: BytesPage<'_, WORDS>) -> bool {
        let least = 1 + usize::from(is_inner(page));
        HEADER_WORDS + Self::used(page) + least > Self::size(page)
    }

    fn clear_unused(page: BytesPage<'_, WORDS>) {
        // Clear garbage in the heap too. Otherwise the same node could have different checksums in
        // the frame and in the pool (P10).
        let first = FrontWord::of(page).first;
        let end = (first + page.count()).min(Self::size(page));
        let mut is_used = [false; MAX_PAGE_WORDS];
        for slot in 0..end - first {
            let slot = RecordSlot::at(page, first, slot);
            let words = slot.record.min(Self::size(page))
                ..(slot.record + slot.words()).min(Self::size(page));
            is_used[words].fill(true);
        }
        (end..Self::size(page))
            .filter(|index| !is_used[*index])
            .for_each(|index| page.store(index, 0));
    }

    fn split_plan(
        page: BytesPage<'_, WORDS>,
        pending: Option<&OverflowEntry<Self>>,
    ) -> SplitPlan<Vec<u8>> {
        let fences = OwnFences::of(page);
        let inner = is_inner(page);
        let mut content = PageContent::of(page);
        content.drop_deleted();
        let place = pending.map(|entry| {
            let at = content.find(entry.key());
            let replaced = usize::from(at.is_ok());
            let place = at.unwrap_or_else(|place| place);
            let child = [0; 8];
            let value = match entry {
                OverflowEntry::Record(_, value) => value,
                OverflowEntry::Child(..) => &child[..],
            };
            content.splice(place, replaced, entry.key(), value);
            place
        });
        let run = match HeapWord::of(page).deleted {
            0 => page.trend().divide(page.count(), place),
            _ => None,
        };
        if !inner
            && let (Some(at), Some(place)) = (run, place)
            && (place == 0 && at == 1 || place == page.count() && at + 1 == page.count())
            && let Some(fence) = fence_beyond(&content, fences.as_ref(), place, Self::size(page))
        {
            return SplitPlan { slot: Self::slots_below(page, &fence, false), separator: fence };
        }
        // Of the entries with the pending one, which goes below a separator next to it.
        let run = run.map(|at| at + usize::from(place.is_some_and(|place| place <= at)));
        let room = Self::size(page);
        let divided =
            run.and_then(|at| divide_at(&content, fences.as_ref(), inner, (at, place), room));
        let divided =
            divided.or_else(|| divide(&content, fences.as_ref(), inner, place, room, |_| true));
        let separator = divided.map(|division| division.separator);
        // If the page changes concurrently, there may be no division; validation then discards the
        // plan.
        let separator = separator.unwrap_or_else(|| Self::inner_key(page, page.count() / 2));
        SplitPlan { slot: Self::slots_below(page, &separator, false), separator }
    }

    fn cut_separator(separator: &[u8]) -> Option<Vec<u8>> {
        separator.split_last().map(|(_, rest)| rest.to_vec())
    }

    fn split_copy(
        left: BytesPage<'_, WORDS>,
        right: BytesPage<'_, WORDS>,
        right_at: GlobalAddr,
        plan: &SplitPlan<Vec<u8>>,
    ) {
        let high = Self::high(left);
        right.format_empty(right_at, left.level(), &plan.separator, high.as_deref());
        right.set_sibling(left.sibling());
        let content = PageContent::of(left);
        let fences = PageFences { low: &plan.separator, high: high.as_deref() };
        let upper = plan.slot.min(content.len())..content.len();
        Self::lay_out_again(content, upper, fences, right);
    }

    fn split_truncate(left: BytesPage<'_, WORDS>, plan: &SplitPlan<Vec<u8>>) {
        let low = Self::low(left);
        let content = PageContent::of(left);
        let fences = PageFences { low: &low, high: Some(&plan.separator) };
        let lower = 0..plan.slot.min(content.len());
        Self::lay_out_again(content, lower, fences, left);
    }

    fn fences_grow(page: BytesPage<'_, WORDS>, low: &[u8], high: Option<&[u8]>) -> bool {
        PageFences { low, high }.words() > FrontWord::of(page).first
    }

    fn trim(page: BytesPage<'_, WORDS>, low: &[u8], high: Option<&[u8]>) -> bool {
        let first = match is_inner(page) {
            true => Self::inner_slot(page, DescentProbe::At(low)),
            false => Self::slots_below(page, low, false),
        };
        let end = high.map_or(page.count(), |high| Self::slots_below(page, high, false));
        let content = PageContent::of(page);
        let there =
            Self::try_lay_out_again(content, first..end.max(first), PageFences { low, high }, page);
        if there && first > 0 {
            page.forget_trend();
        }
        there
    }

    fn leaf_sum(page: BytesPage<'_, WORDS>) -> u64 {
        let front = FrontWord::of(page);
        // The sum covers more than the keys. With new slots and an old top of the heap, the next
        // record would overwrite theirs, and an old slot of the same key points to an old record.
        let header = [SELF_WORD, FRONT_WORD, HEAP_WORD, META_WORD].map(|word| page.load(word));
        let fences = (HEADER_WORDS..front.first).map(|word| page.load(word));
        let mut rest = Vec::new();
        let slots = (0..page.count()).map(|number| {
            let slot = RecordSlot::at(page, front.first, number);
            slot.copy_suffix(page, &mut rest);
            slot.to_word()
        });
        let sum = chained_sum(header.into_iter().chain(fences).chain(slots));
        sum ^ Self::hash(&rest)
    }

    fn fits_merged(left: BytesPage<'_, WORDS>, right: BytesPage<'_, WORDS>) -> bool {
        // Leave an eighth of a page free, so that the next insert does not split it at once.
        Self::merged_words(left, right) <= Self::size(left) - Self::full() / 8
    }

    fn merge(left: BytesPage<'_, WORDS>, right: BytesPage<'_, WORDS>) {
        let (low, high) = (Self::low(left), Self::high(right));
        let mut content = PageContent::of(left);
        content.append(right);
        let fences = PageFences { low: &low, high: high.as_deref() };
        let all = 0..content.len();
        Self::lay_out_again(content, all, fences, left);
        left.forget_trend();
        left.set_sibling(right.sibling());
    }

    fn merge_keeping_prefix(left: BytesPage<'_, WORDS>, right: BytesPage<'_, WORDS>) {
        let FrontWord { prefix, .. } = FrontWord::of(left);
        Self::merge(left, right);
        FrontWord { prefix, ..FrontWord::of(left) }.store(left);
    }

    fn rebalance(
        left: BytesPage<'_, WORDS>,
        right: BytesPage<'_, WORDS>,
        fits: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let (low, high) = (Self::low(left), Self::high(right));
        let (lefts, rights) = (Self::used(left), Self::used(right));
        let mut content = PageContent::of(left);
        content.append(right);
        let fences = PageFences { low: &low, high: high.as_deref() };
        let (inner, count) = (is_inner(left), content.len());
        let division = divide(&content, fences, inner, None, Self::size(left), fits)?;
        let (lower, upper) = halves(fences, &division.separator);
        let words = |range, fences| content.words(&range, fences, inner) - HEADER_WORDS;
        let after = words(0..division.at, lower).abs_diff(words(division.at..count, upper));
        if after >= lefts.abs_diff(rights) {
            return None;
        }
        let there = content.lay_out(0..division.at, lower, left)
            && content.lay_out(division.at..count, upper, right);
        debug_assert!(there, "the division leaves room for both");
        left.forget_trend();
        right.forget_trend();
        Some(division.separator)
    }

    fn fill_leaf(
        filling: &mut Filling,
        page: BytesPage<'_, WORDS>,
        (key, value): (&[u8], &[u8]),
        fill: usize,
    ) -> bool {
        Self::check_record(key, value).is_ok() && filling.add(page, (key, value), fill, 1)
    }

    fn fill_inner(
        filling: &mut Filling,
        page: BytesPage<'_, WORDS>,
        (key, child): (&[u8], GlobalAddr),
        fill: usize,
    ) -> bool {
        // An inner page needs two children, whatever their size; otherwise the number of levels
        // would be unbounded.
        Self::check_key(key).is_ok()
            && filling.add(page, (key, &child.to_bits().to_le_bytes()), fill, 2)
    }

    fn is_filled(filling: &Filling, _page: BytesPage<'_, WORDS>, fill: usize) -> bool {
        filling.is_filled::<WORDS>(fill)
    }

    fn fill_separator(filling: &Filling, next: &[u8]) -> Vec<u8> {
        filling.separator(next)
    }

    fn fill_leaf_end(
        filling: Filling,
        page: BytesPage<'_, WORDS>,
        high: Option<&[u8]>,
    ) -> Option<(Vec<u8>, (Vec<u8>, Vec<u8>))> {
        filling.end_leaf(page, high)
    }

    fn fill_inner_end(
        filling: Filling,
        page: BytesPage<'_, WORDS>,
        high: Option<&[u8]>,
    ) -> Option<(Vec<u8>, GlobalAddr)> {
        filling.end_inner(page, high)
    }
}
