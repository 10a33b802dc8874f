//! Head nodes: pages between leaves that list the leaves after them, so that a scan can READ those
//! together.
//!
//! A head stands in the chain of siblings before the leaves that it lists. Both of its fences equal
//! the low key of the leaf after it. It covers no key, so a walk to the right passes it like any
//! page that ends too early, and no parent points to it. Its list is a hint, because leaves come
//! and go: a scan uses a listed leaf only if the chain leads to it (`remote/leaves.rs`).
//!
//! After Ziegler et al. (SIGMOD 2019), §4.3.

use farleaf_fabric::GlobalAddr;
use farleaf_page::{Layout, OwnedKey, Page};
use farleaf_pool::remote::PageImage;

/// Maximum number of leaves that a head of `L` lists. If their low keys are long, fewer fit.
pub(crate) fn head_leaves<L: Layout>() -> usize {
    L::capacity()
}

/// Creates a head at `at` before the leaf at `leaf`, which begins at `low`, and lists that leaf.
pub(crate) fn open_head<L: Layout>(at: GlobalAddr, low: &L::Key, leaf: GlobalAddr) -> PageImage<L> {
    let image = PageImage::<L>::empty();
    image.page().format_empty(at, 0, low, Some(low));
    image.page().set_sibling(leaf);
    image.page().set_head();
    // A head with an empty list is harmless.
    let _ = list_leaf(image.page(), low, leaf);
    image
}

/// Adds the next leaf to the list of a head. Returns `false` if it has no room.
#[must_use]
pub(crate) fn list_leaf<L: Layout>(head: Page<'_, L>, low: &L::Key, leaf: GlobalAddr) -> bool {
    L::inner_insert(head, low, leaf)
}

/// Creates a head at `at` before the first of `leaves`, each given by its low key and address. It
/// lists the first [`head_leaves`] of them, or as many as fit.
///
/// # Panics
/// If `leaves` is empty.
pub(crate) fn head_image<L: Layout>(
    at: GlobalAddr,
    leaves: &[(OwnedKey<L>, GlobalAddr)],
) -> PageImage<L> {
    let ((low, leaf), others) = leaves.split_first().expect("a head stands before a leaf");
    let image = open_head(at, L::key(low), *leaf);
    for (low, leaf) in others {
        if !list_leaf(image.page(), L::key(low), *leaf) {
            break;
        }
    }
    image
}
