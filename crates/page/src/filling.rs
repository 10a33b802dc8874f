//! How a bulk load ends a page and begins the next one.
//!
//! *Thread safety*: plain functions. The page must be private.

use super::layout::{Layout, OwnedKey, OwnedValue};
use super::view::Page;
use farleaf_fabric::GlobalAddr;

/// The first entry of a page: the last entry of the previous page, if that page had no room for it
/// together with its high fence.
#[derive(Debug)]
pub enum CarriedEntry<L: Layout> {
    /// No entry yet.
    Nothing,
    /// A record of a leaf.
    Record(OwnedKey<L>, OwnedValue<L>),
    /// A child of an inner page. Its key is the low fence of the page.
    Child(GlobalAddr),
}

/// The low fence of the next page, and its first entry.
pub type NextPage<L> = (OwnedKey<L>, CarriedEntry<L>);

/// Ends a page at `high` (`None`: infinite), or before its last entry. Returns the beginning of the
/// next page; `None` if this was the last page.
pub fn fill_end<L: Layout>(
    filling: &mut L::Filling,
    page: Page<'_, L>,
    high: Option<&L::Key>,
) -> Option<NextPage<L>> {
    let filling = std::mem::take(filling);
    let back = match page.level() {
        0 => L::fill_leaf_end(filling, page, high)
            .map(|(low, (key, value))| (low, CarriedEntry::Record(key, value))),
        _ => L::fill_inner_end(filling, page, high)
            .map(|(low, child)| (low, CarriedEntry::Child(child))),
    };
    back.or_else(|| high.map(|high| (high.to_owned(), CarriedEntry::Nothing)))
}
