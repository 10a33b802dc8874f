//! SMART over keys that differ in several bytes: the few keys of a scenario then make a high radix
//! tree, in which nodes come between nodes all the time.
//!
//! *Thread safety*: that of the index beneath.

use farleaf_fabric::Fabric;
use farleaf_index::{
    Design, EditAnswer, IndexAdmin, IndexError, LeafEdit, OwnedForm, RangeIndex, RecordOf,
    RecordsOf, ScanResult,
};
use farleaf_page::{Layout, NamedLayout, OwnedKey};
use farleaf_trees::smart::{PSmart, PSmartOptions, Smart, SmartCompute, SmartIndex, SmartOptions};
use std::ops::Bound;

/// Two bits of a name are the low bits of each byte of its key.
const DIGIT_BITS: u32 = 2;
const DIGITS: u32 = 8;

/// Higher than the numbers of all names of `DIGITS` digits. Of higher names, scenarios have the
/// very highest ones only, which stay as they are.
const ABOVE: u64 = 0x0404_0404_0404_0404;

/// The number of the key with this name.
pub(crate) fn spread(name: u64) -> u64 {
    match name >> (DIGIT_BITS * DIGITS) {
        0 => (0..DIGITS).map(|digit| (name >> (DIGIT_BITS * digit) & 3) << (8 * digit)).sum(),
        _ => name.max(ABOVE),
    }
}

/// The name of the key with this number; `None` if it has none.
pub(crate) fn gathered(number: u64) -> Option<u64> {
    if number > ABOVE {
        return Some(number);
    }
    let digits = (0..DIGITS).map(|digit| (number >> (8 * digit) & 3) << (DIGIT_BITS * digit));
    let name = digits.sum();
    (spread(name) == number).then_some(name)
}

/// SMART or P-SMART, with or without spread keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpreadSmart;

/// Its options.
#[derive(Clone, Debug)]
pub(crate) struct SpreadOptions {
    pub(crate) smart: SmartOptions,
    pub(crate) spread: bool,
    /// The names of the keys at which the compute servers' ranges begin; `None` if they share all
    /// keys.
    pub(crate) boundaries: Option<Vec<u64>>,
}

impl SpreadOptions {
    fn divided<L: NamedLayout>(&self) -> Option<PSmartOptions<OwnedKey<L>>> {
        let number = |name: &u64| L::key_named(if self.spread { spread(*name) } else { *name });
        let boundaries = self.boundaries.as_ref()?.iter().map(number).collect();
        Some(PSmartOptions { smart: self.smart, boundaries })
    }
}

/// A handle.
#[derive(Debug)]
pub(crate) struct SpreadIndex<F: Fabric, L: Layout> {
    index: SmartIndex<F, L>,
    spread: bool,
}

impl<L: NamedLayout> Design<L> for SpreadSmart {
    const NAME: &'static str = "smart";
    type Options = SpreadOptions;
    type Compute = (SmartCompute, bool);
    type Index<F: Fabric> = SpreadIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, options: &SpreadOptions) -> Result<(), IndexError> {
        match options.divided::<L>() {
            Some(options) => <PSmart as Design<L>>::create(fabric, &options).await,
            None => <Smart as Design<L>>::create(fabric, &options.smart).await,
        }
    }

    fn compute(options: &SpreadOptions) -> Result<Self::Compute, IndexError> {
        let compute = match options.divided::<L>() {
            Some(options) => <PSmart as Design<L>>::compute(&options),
            None => <Smart as Design<L>>::compute(&options.smart),
        };
        Ok((compute?, options.spread))
    }

    async fn open_handle<F: Fabric>(
        fabric: F,
        (compute, spread): &Self::Compute,
    ) -> Result<SpreadIndex<F, L>, IndexError> {
        // Both forms have the same handle, which knows from the compute side which it is.
        let index = <Smart as Design<L>>::open_handle(fabric, compute).await?;
        Ok(SpreadIndex { index, spread: *spread })
    }
}

impl<F: Fabric, L: NamedLayout> SpreadIndex<F, L> {
    fn inward(&self, key: &L::Key) -> OwnedKey<L> {
        match L::name_of_key(key) {
            Some(name) if self.spread => L::key_named(spread(name)),
            _ => key.to_owned(),
        }
    }

    fn outward(&self, key: OwnedKey<L>) -> OwnedKey<L> {
        match L::name_of_key(L::key(&key)).and_then(gathered) {
            Some(name) if self.spread => L::key_named(name),
            _ => key,
        }
    }

    fn bound(&self, bound: &Bound<OwnedKey<L>>) -> Bound<OwnedKey<L>> {
        bound.as_ref().map(|key| self.inward(L::key(key)))
    }
}

impl<F, L> RangeIndex for SpreadIndex<F, L>
where
    F: Fabric,
    L: NamedLayout,
{
    type Key = L::Key;
    type Value = L::Value;

    async fn get(&self, key: &L::Key) -> Result<Option<OwnedForm<L::Value>>, IndexError> {
        self.index.get(L::key(&self.inward(key))).await
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedForm<L::Value>>, IndexError> {
        let key = self.inward(edit.key);
        self.index.execute(LeafEdit { key: L::key(&key), action: edit.action }).await
    }

    async fn scan(
        &self,
        scan: &ScanResult<OwnedForm<L::Key>>,
    ) -> Result<RecordsOf<Self>, IndexError> {
        let (lower, upper) = (self.bound(&scan.lower), self.bound(&scan.upper));
        let records = self.index.scan(&ScanResult { lower, upper, ..*scan }).await?.into_iter();
        Ok(records.map(|(key, value)| (self.outward(key), value)).collect())
    }

    async fn multi_get<Q: std::borrow::Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<OwnedForm<L::Value>>>, IndexError> {
        let keys: Vec<OwnedKey<L>> = keys.iter().map(|key| self.inward(key.borrow())).collect();
        self.index.multi_get(&keys).await
    }

    async fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<RecordOf<Self>, IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        let inward = |(key, value): (OwnedKey<L>, _)| (self.inward(L::key(&key)), value);
        self.index.bulk_load_from(source.map(|record| record.map(inward)), fill).await
    }

    async fn flush(&self) -> Result<(), IndexError> {
        self.index.flush().await
    }

    async fn settle(&self) -> Result<(), IndexError> {
        self.index.settle().await
    }
}

impl<F, L> IndexAdmin for SpreadIndex<F, L>
where
    F: Fabric,
    L: NamedLayout,
{
    async fn collect(&self) -> Result<(), IndexError> {
        self.index.collect().await
    }

    async fn declare_dead(&self, compute_server: u16) -> Result<(), IndexError> {
        self.index.declare_dead(compute_server).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_keys_ascend_and_have_names() {
        let numbers: Vec<u64> = (0..1 << 16).map(spread).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next));
        assert!(numbers.iter().zip(0..).all(|(number, name)| gathered(*number) == Some(name)));
        assert_eq!((spread(0x1b), spread(u64::MAX - 1)), (0x00_01_02_03, u64::MAX - 1));
        assert_eq!((gathered(4), gathered(u64::MAX)), (None, Some(u64::MAX)));
        assert!(numbers.iter().all(|number| *number < ABOVE));
    }
}
