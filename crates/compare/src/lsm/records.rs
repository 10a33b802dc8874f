//! The records of a comparison: keys of 20 digits in a scattered order, and values of 400 bytes
//! that begin with the number of their record.
//!
//! *Thread safety*: plain values, drawn before anything is measured.

use anyhow::ensure;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::strings::{KeyForm, StringForm};
use farleaf_bench::workload::Permutation;
use farleaf_index::Naming;
use std::ops::Range;

pub(super) const KEY_BYTES: usize = 20;
pub(super) const VALUE_BYTES: usize = 400;

/// Seeds of the orders in which records are written and looked up.
const WRITTEN: u64 = 1;
const LOOKED_UP: u64 = 2;

/// Keys in the order in which they are written. The place of a key is the number in its value.
#[derive(Debug)]
pub(super) struct WrittenRecords {
    keys: Vec<[u8; KEY_BYTES]>,
    /// Places, in the order in which they are looked up.
    lookups: Vec<u32>,
}

impl WrittenRecords {
    pub(super) fn new(count: u64) -> anyhow::Result<Self> {
        ensure!(count <= 1 << 28, "at most 2^28 records are compared");
        let strings = StringForm::<128>::new(&KeyForm::Dlsm, count, 8..=8, false)?; // for its keys
        let (numbers, written) = (KeySpace::spread(count), Permutation::new(count, WRITTEN));
        let key = |place| strings.key_named(numbers.key(written.apply(place)));
        let keys = (0..count).map(|place| Ok(key(place)[..].try_into()?));
        let looked_up = Permutation::new(count, LOOKED_UP);
        let lookups = (0..count).map(|place| looked_up.apply(place) as u32).collect();
        Ok(Self { keys: keys.collect::<anyhow::Result<_>>()?, lookups })
    }

    /// Bytes of all keys and values.
    pub(super) fn bytes(&self) -> u64 {
        (self.keys.len() * (KEY_BYTES + VALUE_BYTES)) as u64
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    #[inline]
    pub(super) fn key(&self, place: usize) -> &[u8; KEY_BYTES] {
        &self.keys[place]
    }

    #[inline]
    pub(super) fn value(&self, place: usize) -> [u8; VALUE_BYTES] {
        let mut value = [7; VALUE_BYTES];
        value[..8].copy_from_slice(&(place as u64).to_le_bytes());
        value
    }

    /// The places that one of several threads writes, or looks up.
    pub(super) fn share(&self, thread: usize, threads: usize) -> Range<usize> {
        let begin = |thread| self.len() * thread / threads;
        begin(thread)..begin(thread + 1)
    }

    /// The places that a thread looks up, in order.
    pub(super) fn lookups(&self, thread: usize, threads: usize) -> impl Iterator<Item = usize> {
        self.lookups[self.share(thread, threads)].iter().map(|place| *place as usize)
    }

    /// Checks the value that was found for a place.
    #[inline]
    pub(super) fn check(&self, place: usize, value: &[u8]) -> anyhow::Result<()> {
        let number = value.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let is_it = number == Some(place as u64) && value.len() == VALUE_BYTES;
        ensure!(is_it, "{} bytes were found for record {place}: {number:?}", value.len());
        Ok(())
    }

    /// A scan that has seen nothing so far.
    pub(super) fn scanned(&self) -> ScanTally<'_> {
        ScanTally { records: self, count: 0, last: [0; KEY_BYTES] }
    }
}

/// What a scan has seen.
#[derive(Debug)]
pub(super) struct ScanTally<'r> {
    records: &'r WrittenRecords,
    count: usize,
    last: [u8; KEY_BYTES],
}

impl ScanTally<'_> {
    /// Checks the next record: its key is above the last one, and its value is its own.
    #[inline]
    pub(super) fn see(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let place = value.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let of_value = place.and_then(|place| self.records.keys.get(place as usize));
        let is_it = of_value.is_some_and(|own| own == key) && value.len() == VALUE_BYTES;
        ensure!(is_it && key > &self.last[..], "scanned {key:?}, with the value of {place:?}");
        self.last.copy_from_slice(key);
        self.count += 1;
        Ok(())
    }

    /// The last key.
    pub(super) fn last(&self) -> &[u8] {
        &self.last
    }

    /// Checks that nothing was missing.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let all = self.records.len();
        ensure!(self.count == all, "scanned {} of {all} records", self.count);
        Ok(())
    }
}
