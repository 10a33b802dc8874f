//! The operations, as values that may cross threads.

use crate::error::{Error, seen};
use farleaf_core::index::{Answer, IndexError, LeafEdit, RangeIndex, Scan};

/// An operation.
#[derive(Debug)]
pub(crate) enum Request {
    Get(u64),
    Edit(LeafEdit<u64, u64>),
    MultiGet(Vec<u64>),
    Scan(Scan<u64>),
    Flush,
}

/// Its result.
#[derive(Debug)]
pub(crate) enum Reply {
    Value(Option<u64>),
    Answer(Answer<u64>),
    Values(Vec<Option<u64>>),
    Records(Vec<(u64, u64)>),
    Done,
}

/// Executes an operation.
pub(crate) async fn execute<I>(index: &I, request: Request) -> Result<Reply, Error>
where
    I: RangeIndex<Key = u64, Value = u64>,
{
    let reply: Result<Reply, IndexError> = match request {
        Request::Get(key) => index.get(&key).await.map(Reply::Value),
        Request::Edit(edit) => index.execute(edit.as_ref()).await.map(Reply::Answer),
        Request::MultiGet(keys) => index.multi_get(&keys).await.map(Reply::Values),
        Request::Scan(scan) => index.scan(&scan).await.map(Reply::Records),
        Request::Flush => index.flush().await.map(|()| Reply::Done),
    };
    reply.map_err(|error| seen(&error))
}
