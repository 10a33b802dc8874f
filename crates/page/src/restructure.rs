//! Splits are planned and pages merged here, with the bugs that a simulated cluster can plant into
//! them. Pages know no fabric, so the caller asks whether a rule is broken.
//!
//! *Thread safety*: that of [`Page`].

use super::layout::{Layout, OverflowEntry, OwnedKey, SplitPlan};
use super::view::Page;

/// The plan of a split ([`Layout::split_plan`]). With `is_cut` the separator of leaves lacks its
/// last byte, so that it is not above all keys of the left one. A separator that would leave the
/// left one without any key stays whole: such a split would be repeated for ever.
#[inline]
pub fn split_plan<L: Layout>(
    page: Page<'_, L>,
    pending: Option<&OverflowEntry<L>>,
    is_cut: bool,
) -> SplitPlan<OwnedKey<L>> {
    let plan = L::split_plan(page, pending);
    if is_cut
        && page.level() == 0
        && let Some(separator) = L::cut_separator(L::key(&plan.separator))
        && separator > L::low(page)
    {
        return SplitPlan { separator, ..plan };
    }
    plan
}

/// Merges two pages ([`Layout::merge`]). With `keeps_prefix` the merged page claims the prefix of
/// the left one, although its new fences may share less.
#[inline]
pub fn merge<L: Layout>(left: Page<'_, L>, right: Page<'_, L>, keeps_prefix: bool) {
    match keeps_prefix {
        true => L::merge_keeping_prefix(left, right),
        false => L::merge(left, right),
    }
}
