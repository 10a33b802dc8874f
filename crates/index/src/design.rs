//! The trait of index designs: how to create an index, and how to open handles on it.

use super::{InLeaves, IndexAdmin, IndexError, ValueForm};
use farleaf_fabric::Fabric;
use farleaf_page::Layout;
use std::fmt::Debug;
use std::future::Future;

/// An index design: how to create and open indexes over memory servers with pages of `L`.
pub trait Design<L: Layout>: Copy + Debug + Send + Sync + 'static {
    /// The design's name in commands and reports.
    const NAME: &'static str;

    /// Options of a new index.
    type Options: Clone + Debug + Send + Sync;

    /// State that all handles of an index in this process share, apart from the memory servers: the
    /// caches of its compute servers. `()` for designs that cache nothing.
    type Compute: Clone + Send + Sync + 'static;

    /// The type of handles.
    type Index<F: Fabric>: IndexAdmin<Key = L::Key, Value = L::Value>;

    /// Creates an empty index on memory servers that have none.
    fn create<F: Fabric>(
        fabric: &F,
        options: &Self::Options,
    ) -> impl Future<Output = Result<(), IndexError>>;

    /// Creates the compute side of one index. Call it once, and pass the result to every
    /// [`Design::open`].
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the options are invalid, or if there is not enough memory
    /// for a cache.
    fn compute(options: &Self::Options) -> Result<Self::Compute, IndexError>;

    /// Opens the index on the memory servers, after [`Design::check_values`].
    ///
    /// # Errors
    /// [`IndexError::BadPool`] if the memory servers hold no index of this design, or one whose
    /// values are elsewhere than this design expects them.
    fn open<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> impl Future<Output = Result<Self::Index<F>, IndexError>> {
        async move {
            Self::check_values(&fabric).await?;
            Self::open_handle(fabric, compute).await
        }
    }

    /// Opens the index on the memory servers, wherever its values are. For DEX with value blocks,
    /// which knows that, and for tools that do not look at values.
    fn open_handle<F: Fabric>(
        fabric: F,
        compute: &Self::Compute,
    ) -> impl Future<Output = Result<Self::Index<F>, IndexError>>;

    /// Checks that the index, if there is one, has its values where this design expects them: in
    /// leaves, unless the design says otherwise.
    ///
    /// # Errors
    /// [`IndexError::BadPool`] if it has not: references to value blocks would pass for values.
    fn check_values<F: Fabric>(fabric: &F) -> impl Future<Output = Result<(), IndexError>> {
        async move { Ok(<InLeaves as ValueForm<L>>::check_index(fabric).await?) }
    }

    /// Size of the pages in the caches of all compute servers, in bytes.
    fn cached_bytes(compute: &Self::Compute) -> u64 {
        let _ = compute;
        0
    }

    /// Bytes of the index's own memory on the compute side, not counting caches. 0 for designs that
    /// keep their nodes on the memory servers.
    fn local_bytes(compute: &Self::Compute) -> u64 {
        let _ = compute;
        0
    }
}
