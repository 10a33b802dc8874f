//! Replacing an empty tree with a bulk-loaded one, in a single change of the root.
//!
//! *Thread safety*: private to one task.

use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_page::{Layout, OwnedKey, Page, ScanWindow, clipped, narrowed, slot_range};
use farleaf_pool::remote::{
    MissCause, PageChange, PageClient, PageImage, RemoteError, TimedPointer,
};
use std::ops::Bound;

/// Replaces the root's content. Retries within bounds while others hold its lock.
pub(super) async fn replace_root<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
    content: &PageImage<L>,
) -> Result<(), RemoteError> {
    pages.attempts(async || try_replace_root(pages, root, content).await).await
}

async fn try_replace_root<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
    content: &PageImage<L>,
) -> Result<(), MissCause> {
    let copy = pages.read(TimedPointer::fixed(root)).await?;
    let locked = pages.lock(&copy).await?;
    let image = PageImage::<L>::empty();
    let level = content.page().level();
    image.page().format_empty(root, level, L::key(&L::min_key()), None);
    image.page().copy_content(content.page());
    Ok(pages.commit(PageChange::new(locked, &copy, image)).await?)
}

/// A node and the key range that its parents route to it. Entries outside this range do not count
/// (D7).
type RoutedNode<K> = (GlobalAddr, (K, Option<K>));

/// The children of an inner page that cover some of `keys`, each with its part of them.
fn children<L: Layout>(
    page: Page<'_, L>,
    keys: &(OwnedKey<L>, Option<OwnedKey<L>>),
) -> impl Iterator<Item = RoutedNode<OwnedKey<L>>> {
    (0..page.count()).filter_map(move |slot| {
        let keys = narrowed(slot_range(page, slot), keys.clone());
        let has_any = keys.1.as_ref().is_none_or(|high| keys.0 < *high);
        has_any.then(|| (L::inner_child(page, slot), keys))
    })
}

/// All nodes of the tree in the pool below the root.
pub(super) async fn nodes_below<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
) -> Result<Vec<GlobalAddr>, IndexError> {
    let mut nodes = Vec::new();
    let mut inner: Vec<RoutedNode<OwnedKey<L>>> = vec![(root, (L::min_key(), None))];
    while let Some((at, keys)) = inner.pop() {
        let copy = match pages.read(TimedPointer::fixed(at)).await {
            Ok(copy) => copy,
            Err(MissCause::Failed(error)) => return Err(error.into()),
            Err(MissCause::Restart) => return Err(RemoteError::Contended { retries: 1 }.into()),
        };
        let page = copy.page();
        for child in children(page, &keys) {
            nodes.push(child.0);
            if page.level() > 1 {
                inner.push(child);
            }
        }
    }
    Ok(nodes)
}

/// Whether the tree in the pool holds no record. Call it only while no client changes the tree.
pub(super) async fn is_empty<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
) -> Result<bool, IndexError> {
    let mut nodes: Vec<RoutedNode<OwnedKey<L>>> = vec![(root, (L::min_key(), None))];
    while let Some((at, keys)) = nodes.pop() {
        // A leaf that was only partly written back has no valid checksum, but it has a stamp.
        let copy = pages.read_raw(at).await?;
        let page = copy.page();
        if page.level() > 0 {
            nodes.extend(children(page, &keys));
            continue;
        }
        if !page.stamp_fits() {
            return Err(RemoteError::Damaged { at }.into());
        }
        let unbounded = (Bound::Unbounded, Bound::Unbounded);
        let (lower, upper) = clipped(unbounded, (L::key(&keys.0), keys.1.as_ref().map(L::key)));
        let window = ScanWindow { lower, upper, reverse: false, limit: 1 };
        if L::leaf_collect(page, &window, &mut Vec::new()) > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
