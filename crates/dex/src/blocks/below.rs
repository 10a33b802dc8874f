//! What value blocks require of the index below them, which is a whole index or one compute
//! server's part of one.
//!
//! *Thread safety*: that of the index below.

use crate::Dex;
use farleaf_fabric::Fabric;
use farleaf_index::partition::RoutedIndex;
use farleaf_index::{EditAnswer, IndexError, LeafEdit, PartIndex, RangeIndex};
use farleaf_page::Layout;
use farleaf_pool::remote::RemoteError;
use std::marker::PhantomData;

/// The index whose leaves refer to blocks.
pub(super) trait BlockReferences {
    type Error: From<RemoteError>;

    /// Whether the operation may have happened, or may still happen.
    fn is_unknown(error: &Self::Error) -> bool;

    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Self::Error>;

    async fn execute(
        &self,
        edit: LeafEdit<&[u8], &[u8]>,
    ) -> Result<EditAnswer<Vec<u8>>, Self::Error>;

    /// Executes several operations as concurrent ones. When one ends, calls `done` with its
    /// position and outcome.
    async fn execute_all(
        &self,
        edits: &[LeafEdit<&[u8], &[u8]>],
        done: impl Fn(usize, Result<EditAnswer<Vec<u8>>, Self::Error>),
    );

    /// Returns when the pool has every change that was made before the call.
    async fn flush(&self) -> Result<(), Self::Error>;
}

/// A whole index.
pub(super) struct WholeIndex<'a, F: Fabric, L: Layout>(pub(super) &'a RoutedIndex<Dex, F, L>);

impl<F: Fabric, L: Layout<Key = [u8], Value = [u8]>> BlockReferences for WholeIndex<'_, F, L> {
    type Error = IndexError;

    fn is_unknown(error: &IndexError) -> bool {
        matches!(error, IndexError::Indeterminate(_) | IndexError::BadReply { .. })
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        self.0.get(key).await
    }

    async fn execute(
        &self,
        edit: LeafEdit<&[u8], &[u8]>,
    ) -> Result<EditAnswer<Vec<u8>>, IndexError> {
        self.0.execute(edit).await
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&[u8], &[u8]>],
        done: impl Fn(usize, Result<EditAnswer<Vec<u8>>, IndexError>),
    ) {
        let outcomes = self.0.execute_all(edits).await;
        outcomes.into_iter().enumerate().for_each(|(place, outcome)| done(place, outcome));
    }

    async fn flush(&self) -> Result<(), IndexError> {
        self.0.flush().await
    }
}

/// One compute server's part of an index.
pub(super) struct PartOfIndex<'a, P, F, L> {
    part: &'a P,
    of: PhantomData<fn(F, L)>,
}

impl<'a, P, F, L> PartOfIndex<'a, P, F, L> {
    pub(super) fn new(part: &'a P) -> Self {
        Self { part, of: PhantomData }
    }
}

impl<P, F, L> BlockReferences for PartOfIndex<'_, P, F, L>
where
    P: PartIndex<F, L>,
    F: Fabric,
    L: Layout<Key = [u8], Value = [u8]>,
{
    type Error = RemoteError;

    /// If the key has moved, nothing has happened.
    fn is_unknown(error: &RemoteError) -> bool {
        matches!(error, RemoteError::Indeterminate(_) | RemoteError::BadReply { .. })
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RemoteError> {
        self.part.get(key).await
    }

    async fn execute(
        &self,
        edit: LeafEdit<&[u8], &[u8]>,
    ) -> Result<EditAnswer<Vec<u8>>, RemoteError> {
        self.part.execute(edit).await
    }

    async fn execute_all(
        &self,
        edits: &[LeafEdit<&[u8], &[u8]>],
        done: impl Fn(usize, Result<EditAnswer<Vec<u8>>, RemoteError>),
    ) {
        self.part.execute_all(edits, done).await;
    }

    async fn flush(&self) -> Result<(), RemoteError> {
        self.part.flush().await
    }
}
