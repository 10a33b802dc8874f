//! When to merge, rebalance or fill pages: policies that all designs share. They use weights, so
//! they work for entries of any size.
//!
//! *Thread safety*: plain functions. If the page changes concurrently, the results are guesses.

use super::layout::Layout;
use super::view::Page;

/// Whether a page of this weight is so empty that it should be merged.
pub fn is_sparse<L: Layout>(weight: usize) -> bool {
    weight < L::full() / 2
}

/// Whether one of two neighbours is less than half full, and the two can be merged, or differ
/// enough to be rebalanced.
pub fn are_too_empty<L: Layout>(left: Page<'_, L>, right: Page<'_, L>) -> bool {
    let (lefts, rights) = (L::weight(left), L::weight(right));
    is_sparse::<L>(lefts.min(rights))
        && (L::fits_merged(left, right) || lefts.abs_diff(rights) > L::full() / 4)
}

/// The weight of a page that a bulk load fills to `permille` thousandths.
pub fn filled_weight<L: Layout>(permille: usize) -> usize {
    (L::full() * permille / 1000).clamp(2, L::full())
}
