//! Head nodes: pages between leaves that list the leaves after them, so that a scan can READ those
//! together.
//!
//! A head stands in the chain of siblings before the leaves that it lists. Both of its fences are
//! the low key of the leaf after it: it covers no key, so a walk to the right passes it like any
//! page that ends too early, and no parent points to it. Its list is a hint, because leaves come
//! and go: a scan takes a listed leaf only if the chain leads to it.
//!
//! After Ziegler et al. (SIGMOD 2019), §4.3.

use super::Image;
use crate::page::{Layout, OwnedKey, Page};
use farleaf_fabric::GlobalAddr;

/// Maximum number of leaves that a head of `L` lists.
pub const fn head_leaves<L: Layout>() -> usize {
    L::CAPACITY
}

/// A head at `at` that stands before the first of `leaves`, each given by its low key and address.
/// It lists the first [`head_leaves`] of them, or as
/// many as it has room for.
///
/// # Panics
/// If `leaves` is empty.
pub fn head_image<L: Layout>(at: GlobalAddr, leaves: &[(OwnedKey<L>, GlobalAddr)]) -> Image<L> {
    let image = Image::<L>::empty();
    let (low, next) = leaves.first().expect("a head stands before a leaf");
    image.page().format_empty(at, 0, L::key(low), Some(L::key(low)));
    image.page().set_sibling(*next);
    image.page().set_head();
    for (low, leaf) in leaves.iter().take(head_leaves::<L>()) {
        if !L::inner_insert(image.page(), L::key(low), *leaf) {
            break;
        }
    }
    image
}

/// The leaves that a head lists.
pub(super) fn listed<L: Layout>(
    head: Page<'_, L>,
) -> impl Iterator<Item = (OwnedKey<L>, GlobalAddr)> {
    (0..head.count()).map(move |slot| (L::inner_key(head, slot), L::inner_child(head, slot)))
}
