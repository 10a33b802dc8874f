//! Operations as plain values, which are passed between a caller and an engine.

use crate::data::KeyKind;
use crate::error::{Error, ErrorCause};
use farleaf_cluster::client::ClusterClient;
use farleaf_cluster::layouts::ClusterLayout;
use farleaf_dex::blocks::BlockIndex;
use farleaf_fabric::Fabric;
use farleaf_index::partition::RoutedIndex;
use farleaf_index::{Exchange, IndexError, OwnedForm, Partitioned, RangeIndex, ScanRequest};
use farleaf_page::{Layout, check_records};
use std::borrow::Borrow;
use std::fmt;
use std::future::Future;

/// The source of a bulk load's records.
pub(crate) type RecordSource<K> = Box<dyn Iterator<Item = Result<KeyedRecord<K>, Error>> + Send>;

/// A key with its value.
pub(crate) type KeyedRecord<K> = (OwnedForm<K>, OwnedForm<K>);

/// One operation.
pub(crate) enum IndexRequest<K: ?Sized + KeyKind> {
    Get(K::Owned),
    Insert(K::Owned, K::Owned),
    Update(K::Owned, K::Owned),
    Upsert(K::Owned, K::Owned),
    Remove(K::Owned),
    CompareExchange { key: K::Owned, expected: K::Owned, new: K::Owned },
    MultiGet(Vec<K::Owned>),
    UpsertAll(Vec<KeyedRecord<K>>),
    BulkLoad(RecordSource<K>),
    Scan(ScanRequest<K::Owned>),
    Flush,
}

impl<K: ?Sized + KeyKind> fmt::Debug for IndexRequest<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexRequest").finish_non_exhaustive()
    }
}

/// The result of a successful operation.
#[derive(Debug)]
pub(crate) enum IndexResponse<K: ?Sized + KeyKind> {
    Value(Option<K::Owned>),
    Applied(bool),
    Done,
    Exchange(Exchange<K::Owned>),
    Values(Vec<Option<K::Owned>>),
    Records(Vec<KeyedRecord<K>>),
    Count(u64),
}

pub(crate) type RequestOutcome<K> = Result<IndexResponse<K>, Error>;

/// An index that serves requests.
pub(crate) trait RequestServer<K: ?Sized + KeyKind>:
    RangeIndex<Key = K, Value = K> + 'static
{
    /// Upserts many records, not atomically.
    fn upsert_all(
        &self,
        records: Vec<KeyedRecord<K>>,
    ) -> impl Future<Output = Result<(), IndexError>>;
}

impl<K: ?Sized + KeyKind, L: ClusterLayout<Key = K, Value = K>> RequestServer<K>
    for ClusterClient<L>
{
    async fn upsert_all(&self, records: Vec<KeyedRecord<K>>) -> Result<(), IndexError> {
        ClusterClient::upsert_all(self, records).await
    }
}

impl<K, D, F, L> RequestServer<K> for RoutedIndex<D, F, L>
where
    K: ?Sized + KeyKind,
    D: Partitioned,
    F: Fabric,
    L: Layout<Key = K, Value = K>,
{
    async fn upsert_all(&self, records: Vec<KeyedRecord<K>>) -> Result<(), IndexError> {
        check_records::<L>(&records)?;
        for (key, value) in &records {
            self.upsert(key.borrow(), value.borrow()).await?;
        }
        Ok(())
    }
}

impl<F, L> RequestServer<[u8]> for BlockIndex<F, L>
where
    F: Fabric,
    L: Layout<Key = [u8], Value = [u8]>,
{
    async fn upsert_all(&self, records: Vec<KeyedRecord<[u8]>>) -> Result<(), IndexError> {
        records.iter().try_for_each(|(key, value)| Self::check(key, value))?;
        for (key, value) in &records {
            self.upsert(key, value).await?;
        }
        Ok(())
    }
}

/// Fill of the pages of a bulk load: leaves room for insertions.
const FILL: f64 = 0.7;

/// Executes one request.
pub(crate) async fn serve<K: ?Sized + KeyKind>(
    index: &impl RequestServer<K>,
    request: IndexRequest<K>,
) -> RequestOutcome<K> {
    Ok(match request {
        IndexRequest::Get(key) => IndexResponse::Value(index.get(key.borrow()).await?),
        IndexRequest::Insert(key, value) => {
            IndexResponse::Applied(index.insert(key.borrow(), value.borrow()).await?)
        }
        IndexRequest::Update(key, value) => {
            IndexResponse::Applied(index.update(key.borrow(), value.borrow()).await?)
        }
        IndexRequest::Upsert(key, value) => {
            index.upsert(key.borrow(), value.borrow()).await?;
            IndexResponse::Done
        }
        IndexRequest::Remove(key) => IndexResponse::Applied(index.remove(key.borrow()).await?),
        IndexRequest::CompareExchange { key, expected, new } => {
            let (key, expected, new) = (key.borrow(), expected.borrow(), new.borrow());
            IndexResponse::Exchange(index.compare_exchange(key, expected, new).await?)
        }
        IndexRequest::MultiGet(keys) => IndexResponse::Values(index.multi_get(&keys).await?),
        IndexRequest::UpsertAll(records) => {
            RequestServer::upsert_all(index, records).await.map_err(|error| match error {
                // All records are checked before the first is set.
                IndexError::TooLong(_) => error.into(),
                // After any other error, some of the records may be set.
                _ => Error::Indeterminate(ErrorCause::text(format!(
                    "some records may be set: {error}"
                ))),
            })?;
            IndexResponse::Done
        }
        IndexRequest::BulkLoad(source) => {
            IndexResponse::Count(index.try_bulk_load(source, FILL).await?)
        }
        IndexRequest::Scan(scan) => IndexResponse::Records(index.scan(&scan).await?),
        IndexRequest::Flush => {
            index.flush().await?;
            IndexResponse::Done
        }
    })
}
