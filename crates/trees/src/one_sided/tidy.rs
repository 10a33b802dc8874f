//! Joining a leaf that a removal has emptied with a neighbour, by the client that has emptied it.
//! Otherwise a queue would leave a chain of empty leaves, which every scan of its head would READ.
//!
//! It is work beside an operation that has already succeeded, so it gives up after a few attempts:
//! then an empty leaf stays, until the leaf on its right is emptied too or a collection comes by.
//!
//! *Invariants*
//! - tidy.T1. Two nodes are joined under the locks of their parent and both nodes, and only if the
//!   parent has separators for both and the left one's sibling is the right one (fine.G1).
//! - tidy.T2. A parent that keeps one child is joined with its own neighbour, level by level. So of
//!   the leaves below a parent at most one is empty for long.
//!
//! *Thread safety*: that of the handle.

use super::{BlinkTree, LeafLocator, TreeKey};
use farleaf_fabric::Fabric;
use farleaf_page::{DescentProbe, Layout, are_too_empty};
use farleaf_pool::remote::{MissCause, PageCopy};

/// Attempts to join one leaf.
const ATTEMPTS: u32 = 8;
/// Joins after one removal, up and down the levels.
const MAX_JOINS: u32 = 16;

/// Joins the leaf of `key` with a neighbour, if nothing is in the way.
#[cold]
pub(crate) async fn tidy<I: LeafLocator>(index: &I, key: &TreeKey<I>) {
    let mut backoff = index.pages().backoff();
    for _ in 0..ATTEMPTS {
        match index.emptied(key).await {
            Err(MissCause::Restart) if index.pages().before_retry(&mut backoff).await.is_ok() => {}
            // The removal has succeeded. A commit of unknown outcome is a doubt of the handle,
            // which its next operation settles.
            _ => return,
        }
    }
}

/// An index all of whose nodes are one-sided.
pub(crate) trait JoinPair: LeafLocator {
    fn tree(&self) -> &BlinkTree<Self::Fabric, Self::Layout>;

    /// Joins the children of a parent at `slot` and behind it. Returns whether it has.
    async fn join_pair(
        &self,
        parent: &PageCopy<Self::Layout>,
        slot: usize,
    ) -> Result<bool, MissCause>;
}

/// Joins the node of `key` at the lowest level where its parent has another child, and then those
/// below (tidy.T2).
pub(crate) async fn tidy_path<I: JoinPair>(index: &I, key: &TreeKey<I>) -> Result<(), MissCause> {
    let (tree, mut level) = (index.tree(), 0);
    if tree.root_level() == 0 {
        // Leaves may have been found by cached parents alone.
        tree.note_root(&index.pages().read(tree.root_pointer()).await?);
    }
    for _ in 0..MAX_JOINS {
        if level >= tree.root_level() {
            return Ok(());
        }
        let parent = tree.descend(DescentProbe::At(key), level + 1).await?;
        let count = parent.page().count();
        if count < 2 {
            level += 1;
            continue;
        }
        // The left neighbour, if there is one: joining an empty node with it moves nothing.
        let slot = I::Layout::inner_slot(parent.page(), DescentProbe::At(key)).saturating_sub(1);
        let joined = index.join_pair(&parent, slot).await?;
        match (joined, level) {
            (true, _) if count == 2 => level += 1,
            (true, 1..) => level -= 1,
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Two children of a parent, at `slot` and behind it, if they should be joined.
pub(crate) async fn sparse_pair<I: JoinPair>(
    index: &I,
    parent: &PageCopy<I::Layout>,
    slot: usize,
) -> Result<Option<[PageCopy<I::Layout>; 2]>, MissCause> {
    let pages = index.pages();
    let child = |slot| parent.pointer(I::Layout::inner_child(parent.page(), slot));
    let posted = [pages.post_together(child(slot))?, pages.post_together(child(slot + 1))?];
    let [left, right] = posted.map(|read| pages.finish_read(read));
    let (left, right) = (left.await?, right.await?);
    pages.fabric().charge(farleaf_fabric::Work::VisitNode).await;
    let level = parent.page().level().wrapping_sub(1);
    if [&left, &right].iter().any(|copy| copy.page().level() != level) {
        return Err(MissCause::Restart);
    }
    let sparse = are_too_empty(left.page(), right.page());
    Ok(sparse.then_some([left, right]))
}
