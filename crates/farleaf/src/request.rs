//! Operations as plain values, which are passed between a caller and an engine.

use crate::data::Data;
use crate::error::{Cause, Error};
use farleaf_cluster::client::Client;
use farleaf_cluster::layouts::ClusterLayout;
use farleaf_fabric::Fabric;
use farleaf_index::blocks::BlockIndex;
use farleaf_index::partition::RoutedIndex;
use farleaf_index::{Exchange, IndexAdmin, IndexError, Owned, Partitioned, RangeIndex, Scan};
use farleaf_page::{Layout, check_records};
use std::borrow::Borrow;
use std::fmt;
use std::future::Future;

/// The source of a bulk load's records.
pub(crate) type Source<K> = Box<dyn Iterator<Item = Result<Record<K>, Error>> + Send>;

/// A key with its value.
pub(crate) type Record<K> = (Owned<K>, Owned<K>);

/// One operation.
pub(crate) enum Request<K: ?Sized + Data> {
    Get(K::Owned),
    Insert(K::Owned, K::Owned),
    Update(K::Owned, K::Owned),
    Upsert(K::Owned, K::Owned),
    Remove(K::Owned),
    CompareExchange { key: K::Owned, expected: K::Owned, new: K::Owned },
    MultiGet(Vec<K::Owned>),
    UpsertAll(Vec<Record<K>>),
    BulkLoad(Source<K>),
    Scan(Scan<K::Owned>),
    Flush,
}

impl<K: ?Sized + Data> fmt::Debug for Request<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

/// The result of a successful operation.
#[derive(Debug)]
pub(crate) enum Response<K: ?Sized + Data> {
    Value(Option<K::Owned>),
    Applied(bool),
    Done,
    Exchange(Exchange<K::Owned>),
    Values(Vec<Option<K::Owned>>),
    Records(Vec<Record<K>>),
    Count(u64),
}

pub(crate) type Outcome<K> = Result<Response<K>, Error>;

/// An index that serves requests.
pub(crate) trait Served<K: ?Sized + Data>: RangeIndex<Key = K, Value = K> + 'static {
    /// Upserts many records, not atomically.
    fn upsert_all(&self, records: Vec<Record<K>>) -> impl Future<Output = Result<(), IndexError>>;
}

impl<K: ?Sized + Data, L: ClusterLayout<Key = K, Value = K>> Served<K> for Client<L> {
    async fn upsert_all(&self, records: Vec<Record<K>>) -> Result<(), IndexError> {
        Client::upsert_all(self, records).await
    }
}

impl<K, D, F, L> Served<K> for RoutedIndex<D, F, L>
where
    K: ?Sized + Data,
    D: Partitioned,
    F: Fabric,
    L: Layout<Key = K, Value = K>,
{
    async fn upsert_all(&self, records: Vec<Record<K>>) -> Result<(), IndexError> {
        check_records::<L>(&records)?;
        for (key, value) in &records {
            self.upsert(key.borrow(), value.borrow()).await?;
        }
        Ok(())
    }
}

impl<I, F, L> Served<[u8]> for BlockIndex<I, F, L>
where
    I: IndexAdmin<Key = [u8], Value = [u8]> + 'static,
    F: Fabric,
    L: Layout<Key = [u8], Value = [u8]>,
{
    async fn upsert_all(&self, records: Vec<Record<[u8]>>) -> Result<(), IndexError> {
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
pub(crate) async fn serve<K: ?Sized + Data>(
    index: &impl Served<K>,
    request: Request<K>,
) -> Outcome<K> {
    Ok(match request {
        Request::Get(key) => Response::Value(index.get(key.borrow()).await?),
        Request::Insert(key, value) => {
            Response::Applied(index.insert(key.borrow(), value.borrow()).await?)
        }
        Request::Update(key, value) => {
            Response::Applied(index.update(key.borrow(), value.borrow()).await?)
        }
        Request::Upsert(key, value) => {
            index.upsert(key.borrow(), value.borrow()).await?;
            Response::Done
        }
        Request::Remove(key) => Response::Applied(index.remove(key.borrow()).await?),
        Request::CompareExchange { key, expected, new } => {
            let (key, expected, new) = (key.borrow(), expected.borrow(), new.borrow());
            Response::Exchange(index.compare_exchange(key, expected, new).await?)
        }
        Request::MultiGet(keys) => Response::Values(index.multi_get(&keys).await?),
        Request::UpsertAll(records) => {
            Served::upsert_all(index, records).await.map_err(|error| match error {
                // All records are checked before the first is set.
                IndexError::TooLong(_) => error.into(),
                // After any other error, some of the records may be set.
                _ => Error::Indeterminate(Cause::text(format!("some records may be set: {error}"))),
            })?;
            Response::Done
        }
        Request::BulkLoad(source) => Response::Count(index.try_bulk_load(source, FILL).await?),
        Request::Scan(scan) => Response::Records(index.scan(&scan).await?),
        Request::Flush => {
            index.flush().await?;
            Response::Done
        }
    })
}
