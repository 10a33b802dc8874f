//! How many records fit a message. Limiting both their number and their bytes keeps messages within
//! the fabric's limit for records of any size.
//!
//! *Thread safety*: plain values.

use farleaf_fabric::MAX_MESSAGE_BYTES;
use farleaf_page::{Layout, OwnedKey, OwnedValue};

/// Size of a record of two words, in bytes. Records of most layouts are at least this large.
const TWO_WORDS: usize = 16;

/// The room left in a message for records.
#[derive(Clone, Copy, Debug)]
pub struct RecordRoom {
    records: usize,
    bytes: usize,
    empty: bool,
}

impl RecordRoom {
    /// Room for `records` records if they are at most two words long, and for fewer if they are
    /// longer. There is always room for one record.
    pub const fn for_records(records: usize) -> Self {
        assert!(records * TWO_WORDS <= MAX_MESSAGE_BYTES / 2, "there must be room for the rest");
        Self { records, bytes: records * TWO_WORDS, empty: true }
    }

    /// The bytes that are left. The first record may have more.
    #[inline]
    pub const fn bytes(self) -> usize {
        self.bytes
    }

    /// How many records of any size fit; at least one.
    #[inline]
    pub fn records_of_any_size<L: Layout>(self) -> usize {
        let fit = self.bytes / L::most_message_bytes();
        if fit == 0 { 1 } else { fit }
    }

    /// Takes the room for a record. Once this has returned `false`, it never returns `true` again,
    /// so that records keep their order.
    #[inline]
    pub fn takes<L: Layout>(&mut self, key: &L::Key, value: &L::Value) -> bool {
        self.takes_bytes(L::key_bytes(key) + L::value_bytes(value))
    }

    /// Takes the room for a record of this many bytes.
    #[inline]
    fn takes_bytes(&mut self, bytes: usize) -> bool {
        if self.records == 0 || (bytes > self.bytes && !self.empty) {
            self.records = 0;
            return false;
        }
        self.records -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        self.empty = false;
        true
    }

    /// Takes the room for the records from number `from` on, and drops those that do not fit.
    /// Returns whether any were dropped.
    pub fn cut<L: Layout>(
        &mut self,
        records: &mut Vec<(OwnedKey<L>, OwnedValue<L>)>,
        from: usize,
    ) -> bool {
        self.cut_by::<L>(records, from, |key, value| L::key_bytes(key) + L::value_bytes(value))
    }

    /// As [`RecordRoom::cut`], for records that will have `bytes` bytes in the message.
    pub fn cut_by<L: Layout>(
        &mut self,
        records: &mut Vec<(OwnedKey<L>, OwnedValue<L>)>,
        from: usize,
        bytes: impl Fn(&L::Key, &L::Value) -> usize,
    ) -> bool {
        let bytes =
            |(key, value): &(OwnedKey<L>, OwnedValue<L>)| bytes(L::key(key), L::value(value));
        let added = &records[from..];
        let all: usize = added.iter().map(bytes).sum();
        if added.len() <= self.records && all <= self.bytes {
            self.records -= added.len();
            self.bytes -= all;
            self.empty &= added.is_empty();
            return false;
        }
        let kept = added.iter().take_while(|record| self.takes_bytes(bytes(record))).count();
        let cut = kept < added.len();
        records.truncate(from + kept);
        cut
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_page::{Bytes, Fixed8};

    #[test]
    fn records_of_two_words_are_bounded_by_their_number() {
        for most in [1, 1024, 2048, 4096] {
            let mut room = RecordRoom::for_records(most);
            let taken = (0..10_000).take_while(|key| room.takes::<Fixed8>(key, &0)).count();
            assert_eq!(taken, most);
            let mut records: Vec<_> = (0..10_000).map(|key| (key, 0)).collect();
            let mut room = RecordRoom::for_records(most);
            assert!(room.cut::<Fixed8>(&mut records, 0));
            assert_eq!(records.len(), most);
        }
    }

    #[test]
    fn larger_records_are_bounded_by_their_bytes() {
        let (key, value) = ([1; 100], [2; 92]);
        let mut room = RecordRoom::for_records(1000);
        let taken = (0..1000).take_while(|_| room.takes::<Bytes>(&key, &value)).count();
        assert_eq!(taken, 80, "16,000 bytes for records of 200");
        assert!(!room.takes::<Bytes>(&[], &[]), "a small one must not overtake a large one");

        let record = (key.to_vec(), value.to_vec());
        let mut room = RecordRoom::for_records(1000);
        let mut records = vec![record.clone(); 50];
        assert!(!room.cut::<Bytes>(&mut records, 0));
        records.extend(vec![record.clone(); 50]);
        assert!(room.cut::<Bytes>(&mut records, 50));
        assert_eq!(records.len(), 80);

        let mut room = RecordRoom::for_records(1);
        assert!(room.takes::<Bytes>(&key, &value), "the first record goes in any case");
        let mut records = vec![record; 2];
        assert!(RecordRoom::for_records(1).cut::<Bytes>(&mut records, 0));
        assert_eq!(records.len(), 1);
    }
}
