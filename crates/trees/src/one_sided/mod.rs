//! Indexes whose leaves clients read, lock and write by one-sided verbs: everything except locating
//! a leaf.
//!
//! Leaves are B-link nodes: each has its key range and its right sibling. A design defines how it
//! locates leaves ([`LeafLocator`]), what follows from a split, and how it collects ([`Collect`]).
//! Lookups, changes, scans in both directions, and joining sparse leaves are the same for all such
//! designs, and are implemented here. So are descents, splits and loads of a tree all of whose
//! nodes are one-sided (`tree.rs`, `load.rs`).
//!
//! *Invariants*
//! - A located leaf is not trusted: its page states which keys it covers (`page::step`).
//! - Of two neighbours, the left one is locked first.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

mod change;
mod collect;
pub mod entrywise;
mod heads;
mod load;
mod scan;
mod tidy;
mod tree;

pub(crate) use change::change as change_whole_leaf;
#[doc(hidden)]
pub use change::get_all;
pub use collect::{Collect, CollectCursor, collect_in_background};
pub(crate) use collect::{CollectOutcome, JoinedNodes, compact, join, join_below, lock_all};
pub(crate) use heads::{head_image, head_leaves};
#[doc(hidden)]
pub use scan::scan_all;
pub(crate) use tidy::{JoinPair, sparse_pair, tidy, tidy_path};
pub(crate) use tree::BlinkTree;

use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::{IndexError, ScanRequest};
use farleaf_page::{
    DescentProbe, EditAnswer, Layout, LeafEdit, OverflowEntry, OwnedKey, OwnedRecord, OwnedValue,
};
use farleaf_pool::remote::{LeafStream, MissCause, PageClient, PageCopy, TimedPointer};
use std::borrow::Borrow;
use std::future::Future;

type TreeKey<I> = <<I as LeafLocator>::Layout as Layout>::Key;
type TreeValue<I> = <<I as LeafLocator>::Layout as Layout>::Value;
/// The value of each key, if it has one; the outer `None` means that the key's leaf was not found.
type FoundValues<I> = Vec<Option<Option<OwnedValue<<I as LeafLocator>::Layout>>>>;
/// The lowest key of a leaf, and its location.
type LocatedLeaf<I> = (OwnedKey<<I as LeafLocator>::Layout>, TimedPointer);
/// A leaf that has been read.
type FetchedLeaf<I> = PageCopy<<I as LeafLocator>::Layout>;
/// Where an ascending scan starts (at this leaf, or at the first one in flight), and its state for
/// the following leaves.
type ScanStart<I> = (Option<FetchedLeaf<I>>, <I as LeafLocator>::Ahead);

/// A handle on an index with one-sided leaves: how the design locates leaves, and how it updates
/// the level above them.
pub trait LeafLocator: Sized {
    /// The provider of remote operations.
    type Fabric: Fabric;
    /// The layout of nodes.
    type Layout: Layout;
    /// What an ascending scan remembers about the leaves ahead.
    type Ahead;

    /// The client for the index's pages.
    fn pages(&self) -> &PageClient<Self::Fabric, Self::Layout>;

    /// The leaf that covers the probe.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if concurrent changes are on the path.
    fn find(
        &self,
        probe: DescentProbe<'_, TreeKey<Self>>,
    ) -> impl Future<Output = Result<FetchedLeaf<Self>, MissCause>>;

    /// Like [`LeafLocator::find`], but starts at the leaf at `from`. That leaf once covered the
    /// probe, or lies to the left of the leaf that does.
    ///
    /// # Errors
    /// As [`LeafLocator::find`].
    fn find_from(
        &self,
        from: TimedPointer,
        probe: DescentProbe<'_, TreeKey<Self>>,
    ) -> impl Future<Output = Result<FetchedLeaf<Self>, MissCause>>;

    /// The value of a key.
    ///
    /// # Errors
    /// As [`LeafLocator::find`].
    fn get_one(
        &self,
        key: &TreeKey<Self>,
    ) -> impl Future<Output = Result<Option<OwnedValue<Self::Layout>>, MissCause>> {
        async move {
            let leaf = self.find(DescentProbe::At(key)).await?;
            Ok(Self::Layout::leaf_get(leaf.page(), key))
        }
    }

    /// The values of a few keys, with as few round trips as the design allows.
    ///
    /// # Errors
    /// [`IndexError`] if a memory server does not answer.
    fn get_together<Q: Borrow<TreeKey<Self>>>(
        &self,
        keys: &[Q],
    ) -> impl Future<Output = Result<FoundValues<Self>, IndexError>>;

    /// Executes an operation that may change a leaf.
    ///
    /// # Errors
    /// As [`farleaf_index::RangeIndex::execute`].
    fn change(
        &self,
        edit: LeafEdit<&TreeKey<Self>, &TreeValue<Self>>,
    ) -> impl Future<Output = Result<EditAnswer<OwnedValue<Self::Layout>>, IndexError>> {
        change::change(self, edit)
    }

    /// A removal has left the leaf of `key` without records: joins it with a neighbour, if nothing
    /// is in the way.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if concurrent changes are in the way; nothing has changed in that
    /// case.
    fn emptied(&self, key: &TreeKey<Self>) -> impl Future<Output = Result<(), MissCause>>;

    /// Splits a full leaf, adds `entry`, and updates the level above. Takes nodes from `spare`, and
    /// puts back unused ones.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the leaf has changed since it was read.
    fn split_and_add(
        &self,
        full: &FetchedLeaf<Self>,
        entry: &OverflowEntry<Self::Layout>,
        spare: &mut Vec<GlobalAddr>,
    ) -> impl Future<Output = Result<(), MissCause>>;

    /// For an ascending scan: posts READs of the leaf of `start` and of about `window` leaves after
    /// it. If locating it has already read the leaf, returns the leaf.
    ///
    /// # Errors
    /// As [`LeafLocator::find`].
    fn locate_up(
        &self,
        start: &TreeKey<Self>,
        scan: &ScanRequest<OwnedKey<Self::Layout>>,
        window: usize,
        stream: &mut LeafStream<'_, Self::Fabric, Self::Layout>,
    ) -> impl Future<Output = Result<ScanStart<Self>, MissCause>>;

    /// Posts READs of leaves ahead until `window` are in flight. Returns `false` if the scan, which
    /// has reached `cursor`, should locate leaves again.
    fn go_ahead(
        &self,
        ahead: &mut Self::Ahead,
        window: usize,
        cursor: Option<&TreeKey<Self>>,
        stream: &mut LeafStream<'_, Self::Fabric, Self::Layout>,
    ) -> bool;

    /// The leaf that covers the probe and about `window` leaves before it, in descending order,
    /// each with its lowest key.
    ///
    /// # Errors
    /// As [`LeafLocator::find`].
    fn locate_down(
        &self,
        probe: DescentProbe<'_, TreeKey<Self>>,
        window: usize,
    ) -> impl Future<Output = Result<Vec<LocatedLeaf<Self>>, MissCause>>;

    /// Loads ascending records into an empty index. An error of `source` ends the load.
    ///
    /// # Errors
    /// As [`farleaf_index::RangeIndex::bulk_load_from`].
    fn load_all(
        &self,
        source: impl Iterator<Item = Result<OwnedRecord<Self::Layout>, IndexError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>>;
}

/// Implements [`RangeIndex`](farleaf_index::RangeIndex) and
/// [`IndexAdmin`](farleaf_index::IndexAdmin) for a handle `$index<F, L>` that implements
/// [`LeafLocator`] and [`Collect`]. The crate that uses it depends on `farleaf-fabric`,
/// `farleaf-page` and `farleaf-index`.
#[macro_export]
macro_rules! range_index_by_locating {
    ($index:ident) => {
        impl<F: farleaf_fabric::Fabric, L: farleaf_page::Layout> farleaf_index::RangeIndex
            for $index<F, L>
        {
            type Key = L::Key;
            type Value = L::Value;

            async fn get(
                &self,
                key: &L::Key,
            ) -> Result<Option<farleaf_page::OwnedValue<L>>, farleaf_index::IndexError> {
                $crate::one_sided::get(self, key).await
            }

            async fn execute(
                &self,
                edit: farleaf_page::LeafEdit<&L::Key, &L::Value>,
            ) -> Result<
                farleaf_page::EditAnswer<farleaf_page::OwnedValue<L>>,
                farleaf_index::IndexError,
            > {
                $crate::one_sided::execute(self, edit).await
            }

            async fn scan(
                &self,
                scan: &farleaf_index::ScanRequest<farleaf_page::OwnedKey<L>>,
            ) -> Result<farleaf_index::RecordsOf<Self>, farleaf_index::IndexError> {
                scan.check::<L>()?;
                $crate::one_sided::scan_all(self, scan).await
            }

            async fn multi_get<Q: std::borrow::Borrow<L::Key>>(
                &self,
                keys: &[Q],
            ) -> Result<Vec<Option<farleaf_page::OwnedValue<L>>>, farleaf_index::IndexError> {
                keys.iter().try_for_each(|key| L::check_key(key.borrow()))?;
                $crate::one_sided::get_all(self, keys).await
            }

            fn bulk_load_from(
                &self,
                source: impl Iterator<
                    Item = Result<farleaf_index::RecordOf<Self>, farleaf_index::IndexError>,
                >,
                fill: f64,
            ) -> impl Future<Output = Result<u64, farleaf_index::IndexError>> {
                $crate::one_sided::LeafLocator::load_all(self, source, fill)
            }

            /// Returns at once: clients write every change through.
            async fn flush(&self) -> Result<(), farleaf_index::IndexError> {
                Ok(())
            }

            async fn settle(&self) -> Result<(), farleaf_index::IndexError> {
                Ok($crate::one_sided::LeafLocator::pages(self).settle_all().await?)
            }
        }

        impl<F: farleaf_fabric::Fabric, L: farleaf_page::Layout> farleaf_index::IndexAdmin
            for $index<F, L>
        {
            fn collect(&self) -> impl Future<Output = Result<(), farleaf_index::IndexError>> {
                $crate::one_sided::Collect::collect_all(self)
            }

            async fn declare_dead(
                &self,
                compute_server: u16,
            ) -> Result<(), farleaf_index::IndexError> {
                $crate::one_sided::declare_dead(self, compute_server).await
            }
        }
    };
}
/// As [`farleaf_index::RangeIndex::get`].
#[doc(hidden)]
pub async fn get<I: LeafLocator>(
    index: &I,
    key: &TreeKey<I>,
) -> Result<Option<OwnedValue<I::Layout>>, IndexError> {
    I::Layout::check_key(key)?;
    Ok(index.pages().attempts(async || index.get_one(key).await).await?)
}

/// As [`farleaf_index::RangeIndex::execute`].
#[doc(hidden)]
pub async fn execute<I: LeafLocator>(
    index: &I,
    edit: LeafEdit<&TreeKey<I>, &TreeValue<I>>,
) -> Result<EditAnswer<OwnedValue<I::Layout>>, IndexError> {
    match edit.changes() {
        true => {
            edit.check::<I::Layout>()?;
            index.change(edit).await
        }
        false => Ok(EditAnswer::from_lookup(get(index, edit.key).await?)),
    }
}

/// As [`farleaf_index::IndexAdmin::declare_dead`].
#[doc(hidden)]
pub async fn declare_dead<I: Collect>(index: &I, compute_server: u16) -> Result<(), IndexError> {
    // Continue even if the registrar does not answer: each server ends its loads separately.
    let declared = index.pages().declare_dead(compute_server).await;
    let abandoned = index.abandon(compute_server).await;
    declared?;
    abandoned
}
