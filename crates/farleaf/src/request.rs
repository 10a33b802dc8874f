//! Operations as plain values, which cross from a caller to an engine and back.

use crate::error::{Cause, Error};
use farleaf_cluster::client::Client;
use farleaf_core::index::{Exchange, IndexError, Partitioned, RangeIndex, Records, Scan};
use farleaf_core::page::Layout;
use farleaf_core::partition::RoutedIndex;
use farleaf_fabric::Fabric;
use std::fmt;
use std::future::Future;

/// The records of a bulk load.
pub(crate) type Source = Box<dyn Iterator<Item = (u64, u64)> + Send>;

/// One operation.
pub(crate) enum Request {
    Get(u64),
    Insert(u64, u64),
    Update(u64, u64),
    Upsert(u64, u64),
    Remove(u64),
    CompareExchange { key: u64, expected: u64, new: u64 },
    MultiGet(Vec<u64>),
    UpsertAll(Vec<(u64, u64)>),
    BulkLoad(Source),
    Scan(Scan<u64>),
    Flush,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

/// The result of an operation that did not fail.
#[derive(Debug)]
pub(crate) enum Response {
    Value(Option<u64>),
    Applied(bool),
    Done,
    Exchange(Exchange<u64>),
    Values(Vec<Option<u64>>),
    Records(Records<u64, u64>),
    Count(u64),
}

pub(crate) type Outcome = Result<Response, Error>;

/// An index that serves requests.
pub(crate) trait Served: RangeIndex<Key = u64, Value = u64> + 'static {
    /// Upserts many records, not atomically.
    fn upsert_all(&self, records: Vec<(u64, u64)>) -> impl Future<Output = Result<(), IndexError>>;
}

impl Served for Client {
    async fn upsert_all(&self, records: Vec<(u64, u64)>) -> Result<(), IndexError> {
        Client::upsert_all(self, records).await
    }
}

impl<D: Partitioned, F: Fabric, L: Layout<Key = u64, Value = u64>> Served for RoutedIndex<D, F, L> {
    async fn upsert_all(&self, records: Vec<(u64, u64)>) -> Result<(), IndexError> {
        for (key, value) in records {
            self.upsert(&key, &value).await?;
        }
        Ok(())
    }
}

/// Fill of the pages of a bulk load: leaves room for insertions.
const FILL: f64 = 0.7;

/// Executes one request.
pub(crate) async fn serve(index: &impl Served, request: Request) -> Outcome {
    Ok(match request {
        Request::Get(key) => Response::Value(index.get(&key).await?),
        Request::Insert(key, value) => Response::Applied(index.insert(&key, &value).await?),
        Request::Update(key, value) => Response::Applied(index.update(&key, &value).await?),
        Request::Upsert(key, value) => {
            index.upsert(&key, &value).await?;
            Response::Done
        }
        Request::Remove(key) => Response::Applied(index.remove(&key).await?),
        Request::CompareExchange { key, expected, new } => {
            Response::Exchange(index.compare_exchange(&key, &expected, &new).await?)
        }
        Request::MultiGet(keys) => Response::Values(index.multi_get(&keys).await?),
        Request::UpsertAll(records) => {
            // Whatever stopped it, some of the records may be set.
            Served::upsert_all(index, records).await.map_err(|error| {
                Error::Indeterminate(Cause::text(format!("some records may be set: {error}")))
            })?;
            Response::Done
        }
        Request::BulkLoad(records) => Response::Count(index.bulk_load(records, FILL).await?),
        Request::Scan(scan) => Response::Records(index.scan(&scan).await?),
        Request::Flush => {
            index.flush().await?;
            Response::Done
        }
    })
}
