//! Implements `RangeIndex` and `IndexAdmin` for [`DlsmIndex`]: converts keys and values to byte
//! strings and back.
//!
//! *Thread safety*: that of the handle.

use super::background::POLL_INTERVAL_NS;
use super::handle::DlsmIndex;
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::{
    Background, EditAction, EditAnswer, Encoded, IndexAdmin, IndexError, KeyedRecords, LeafEdit,
    OwnedForm, RangeIndex, RecordOf, RecordsOf, ReshapeCost, ScanRequest,
};
use farleaf_page::{Layout, OwnedKey, OwnedValue};
use std::ops::Bound;

/// A stored byte string as a key or a value.
fn decoded<T: Encoded + ?Sized>(bytes: Vec<u8>) -> Result<OwnedForm<T>, IndexError> {
    T::decoded(bytes).ok_or(IndexError::Damaged { at: GlobalAddr::NULL })
}

fn bound_of<T: Encoded + ?Sized>(bound: &Bound<OwnedForm<T>>) -> Bound<Vec<u8>> {
    bound.as_ref().map(T::of_owned)
}

/// The byte strings that bound a scan.
pub(super) fn encoded_scan<K: Encoded + ?Sized>(
    scan: &ScanRequest<OwnedForm<K>>,
) -> ScanRequest<Vec<u8>> {
    ScanRequest {
        lower: bound_of::<K>(&scan.lower),
        upper: bound_of::<K>(&scan.upper),
        reverse: scan.reverse,
        limit: scan.limit,
    }
}

impl<F: Fabric, L: Layout> DlsmIndex<F, L> {
    pub(super) async fn look_up(
        &self,
        key: &L::Key,
    ) -> Result<Option<OwnedForm<L::Value>>, IndexError> {
        let found = self.value_of(key.encoded().as_ref()).await?;
        found.map(decoded::<L::Value>).transpose()
    }

    pub(super) async fn perform(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedForm<L::Value>>, IndexError> {
        let key = edit.key.encoded();
        let key = key.as_ref();
        let change = async |action: EditAction<&[u8]>| self.change(LeafEdit { key, action }).await;
        let EditAnswer { applied, found } = match edit.action {
            EditAction::Get => EditAnswer::from_lookup(self.value_of(key).await?),
            EditAction::Insert(value) => {
                change(EditAction::Insert(value.encoded().as_ref())).await?
            }
            EditAction::Update(value) => {
                change(EditAction::Update(value.encoded().as_ref())).await?
            }
            EditAction::Upsert(value) => {
                change(EditAction::Upsert(value.encoded().as_ref())).await?
            }
            EditAction::Remove => change(EditAction::Remove).await?,
            EditAction::CompareExchange(expected, new) => {
                let (expected, new) = (expected.encoded(), new.encoded());
                change(EditAction::CompareExchange(expected.as_ref(), new.as_ref())).await?
            }
        };
        Ok(EditAnswer { applied, found: found.map(decoded::<L::Value>).transpose()? })
    }
}

/// Stored byte strings as records.
pub(super) fn decoded_records<L: Layout>(
    records: KeyedRecords<Vec<u8>, Vec<u8>>,
) -> Result<KeyedRecords<OwnedKey<L>, OwnedValue<L>>, IndexError> {
    let record = |(key, value)| Ok((decoded::<L::Key>(key)?, decoded::<L::Value>(value)?));
    records.into_iter().map(record).collect()
}

impl<F: Fabric, L: Layout> RangeIndex for DlsmIndex<F, L> {
    type Key = L::Key;
    type Value = L::Value;

    async fn get(&self, key: &L::Key) -> Result<Option<OwnedForm<L::Value>>, IndexError> {
        self.look_up(key).await
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedForm<L::Value>>, IndexError> {
        self.perform(edit).await
    }

    async fn scan(
        &self,
        scan: &ScanRequest<OwnedForm<L::Key>>,
    ) -> Result<RecordsOf<Self>, IndexError> {
        decoded_records::<L>(self.records(&encoded_scan::<L::Key>(scan)).await?)
    }

    async fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<RecordOf<Self>, IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        let bytes = |(key, value)| (L::Key::of_owned(&key), L::Value::of_owned(&value));
        self.load(source.map(|record| record.map(bytes)), fill).await
    }

    async fn flush(&self) -> Result<(), IndexError> {
        self.flush_everything().await
    }

    /// Gives back the extents of tables that were given up with WRITEs in flight.
    async fn settle(&self) -> Result<(), IndexError> {
        Ok(self.extents.settle().await?)
    }
}

impl<F: Fabric, L: Layout> IndexAdmin for DlsmIndex<F, L> {
    /// Compacts everything into the deepest level, which drops all tombstones, and all old versions
    /// that no snapshot needs.
    async fn collect(&self) -> Result<(), IndexError> {
        self.settle_tree().await
    }

    /// Flushes and merges. Any number of tasks may run this; one flushes at a time.
    async fn background(
        &self,
        work: Background,
        ended: &dyn Fn() -> bool,
        report: &dyn Fn(Result<ReshapeCost, IndexError>),
    ) -> Result<(), IndexError> {
        match work {
            Background::WriteBack => {
                self.work_until(POLL_INTERVAL_NS, ended, report).await;
                Ok(())
            }
            Background::Balance => {
                Err(IndexError::InvalidArgument("dLSM has one tree, which cannot be balanced"))
            }
        }
    }
}
