//! The part of collection that all one-sided designs share: which sparse neighbours are joined,
//! how, and collection in the background.

use super::LeafLocator;
use farleaf_fabric::{Fabric, Work};
use farleaf_index::IndexError;
use farleaf_page::rules;
use farleaf_page::{Layout, OwnedKey, Page, merge};
use farleaf_pool::remote::{LockedPage, MissCause, PageChange, PageClient, PageCopy, PageImage};

/// How a design collects: removes deleted records, joins sparse nodes, and frees nodes.
pub trait Collect: LeafLocator {
    /// Runs the collection to completion.
    ///
    /// # Errors
    /// As [`IndexAdmin::collect`](farleaf_index::IndexAdmin::collect).
    fn collect_all(&self) -> impl Future<Output = Result<(), IndexError>>;

    /// Collects a few neighbours. Returns where to continue, or `None` at the end of a pass.
    ///
    /// # Errors
    /// [`IndexError::Contended`] if concurrent operations interfered too often.
    fn collect_step(
        &self,
        cursor: CollectCursor<OwnedKey<Self::Layout>>,
    ) -> impl Future<Output = Result<Option<CollectCursor<OwnedKey<Self::Layout>>>, IndexError>>;

    /// Completes a pass of a background collection.
    ///
    /// # Errors
    /// [`IndexError`]; contention with other operations is not an error.
    fn end_pass(&self) -> impl Future<Output = Result<(), IndexError>>;

    /// Aborts what clients of a dead compute server have begun at the memory servers, other than
    /// changes of pages.
    ///
    /// # Errors
    /// [`IndexError`] if a memory server does not answer.
    fn abandon(&self, compute_server: u16) -> impl Future<Output = Result<(), IndexError>> {
        let _ = compute_server;
        async { Ok(()) }
    }
}

/// The position of a collection that runs step by step.
#[derive(Clone, Debug)]
pub struct CollectCursor<K> {
    /// The level being collected.
    pub(crate) level: u8,
    /// A key of the next node; `None` at the beginning of a level.
    pub(crate) key: Option<K>,
    /// Nodes merged in this pass.
    pub(crate) merged: u64,
}

impl<K> Default for CollectCursor<K> {
    fn default() -> Self {
        Self { level: 0, key: None, merged: 0 }
    }
}

/// The new content of two neighbours.
pub(crate) struct JoinedNodes<L: Layout> {
    pub(crate) left: PageImage<L>,
    pub(crate) right: PageImage<L>,
    /// The new low end of the right node. `None` if the left node gets all entries and the right
    /// one is dead.
    pub(crate) separator: Option<OwnedKey<L>>,
    /// Whether the left node loses keys, so that it must be written first.
    pub(crate) left_loses: bool,
}

/// Merges or rebalances two neighbours; `None` if they should stay unchanged. `fits` tells whether
/// their parent has room for a new separator.
pub(crate) fn join<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    left: Page<'_, L>,
    right: Page<'_, L>,
    fits: impl Fn(&L::Key) -> bool,
) -> Option<JoinedNodes<L>> {
    let (lower, upper) = (PageImage::of(left), PageImage::of(right));
    if left.level() == 0 {
        L::leaf_compact(lower.page());
        L::leaf_compact(upper.page());
    }
    let before = lower.page().count();
    // Fences of one size always fit, and nothing moves.
    let is_empty = !L::HAS_HEAP && upper.page().live_count() == 0;
    let separator = if is_empty || L::fits_merged(lower.page(), upper.page()) {
        let keeps_prefix = pages.fabric().breaks(rules::PREFIXES_SHARED);
        merge(lower.page(), upper.page(), keeps_prefix);
        if !pages.fabric().breaks(rules::FREED_ARE_DEAD) {
            upper.page().set_dead();
        }
        None
    } else {
        Some(L::rebalance(lower.page(), upper.page(), fits)?)
    };
    let left_loses = lower.page().count() < before;
    Some(JoinedNodes { left: lower, right: upper, separator, left_loses })
}

/// The result of processing two neighbours.
pub(crate) enum CollectOutcome<K> {
    Untouched,
    /// The right one is dead, and nothing points to it.
    Merged,
    /// The right one begins at this key.
    Rebalanced(K),
}

/// Merges or rebalances the children of a parent at `slot` and behind it, which are siblings.
/// Parent, left and right node change together or not at all; nodes that lose keys are written
/// first.
pub(crate) async fn join_below<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    parent: &PageCopy<L>,
    slot: usize,
    left: &PageCopy<L>,
    right: &PageCopy<L>,
) -> Result<CollectOutcome<OwnedKey<L>>, MissCause> {
    let above = PageImage::of(parent.page());
    let Some(JoinedNodes { left: lower, right: upper, separator, left_loses }) =
        join(pages, left.page(), right.page(), |separator| {
            L::inner_can_set_key(parent.page(), slot + 1, separator)
        })
    else {
        return Ok(CollectOutcome::Untouched);
    };
    match &separator {
        None => L::inner_remove(above.page(), slot + 1),
        Some(separator) if !L::inner_set_key(above.page(), slot + 1, L::key(separator)) => {
            return Ok(CollectOutcome::Untouched); // `join` has asked, so this does not happen
        }
        Some(_) => {}
    }
    let [parent_lock, left_lock, right_lock] = lock_all(pages, [parent, left, right]).await?;
    pages.fabric().charge(Work::RestructureNode).await;
    pages.fabric().charge(Work::ChangeNode).await;
    let above = PageChange::new(parent_lock, parent, above);
    let lower = PageChange::new(left_lock, left, lower);
    let upper = PageChange::new(right_lock, right, upper);
    let changes = if left_loses { vec![lower, above, upper] } else { vec![upper, above, lower] };
    pages.commit_together(changes).await?;
    Ok(match separator {
        Some(separator) => CollectOutcome::Rebalanced(separator),
        None => CollectOutcome::Merged,
    })
}

/// Removes deleted records from a leaf.
pub(crate) async fn compact<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    leaf: &PageCopy<L>,
) -> Result<(), MissCause> {
    let image = PageImage::of(leaf.page());
    if L::leaf_compact(image.page()) > 0 {
        pages.replace(leaf, image).await?;
    }
    Ok(())
}

/// Locks pages in the given order: all of them, or none.
pub(crate) async fn lock_all<'a, F: Fabric, L: Layout, const N: usize>(
    pages: &'a PageClient<F, L>,
    copies: [&PageCopy<L>; N],
) -> Result<[LockedPage<'a>; N], MissCause> {
    let mut locks = Vec::with_capacity(N);
    for copy in copies {
        match pages.lock(copy).await {
            Ok(lock) => locks.push(lock),
            Err(miss) => {
                for lock in locks {
                    pages.release(lock).await;
                }
                return Err(miss);
            }
        }
    }
    locks.try_into().map_err(|_| MissCause::Restart)
}

/// Collects alongside the operations of this and other clients until `stop` returns true, with a
/// pause of `pause_ns` nanoseconds after each step.
///
/// # Errors
/// [`IndexError`] if a step fails for a reason other than contention with other operations.
pub async fn collect_in_background<I: Collect>(
    index: &I,
    pause_ns: u64,
    stop: impl Fn() -> bool,
) -> Result<(), IndexError> {
    let mut cursor = CollectCursor::<OwnedKey<I::Layout>>::default();
    while !stop() {
        index.pages().settle_doubts().await;
        cursor = match index.collect_step(cursor).await {
            Ok(Some(next)) => next,
            Ok(None) => {
                index.end_pass().await?;
                CollectCursor::default()
            }
            Err(IndexError::Contended { .. }) => CollectCursor::default(),
            Err(error) => return Err(error),
        };
        index.pages().fabric().sleep(pause_ns).await;
    }
    Ok(())
}
