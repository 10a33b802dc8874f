//! The local side of a region: the memory that programs see, and the rights to its pages.
//!
//! *Thread safety*: the pager's thread calls it; programs access the memory from any thread.

use crate::table::AccessKind;
use farleaf_fabric::Region;
use farleaf_fabric::sync::Arc;
use std::ops::Range;

/// A provider of faults: it makes pages accessible and inaccessible. An access that a page does not
/// allow waits, and the provider reports it to the pager as a touch.
///
/// The pager never allows more than the state of the page does. A provider may be stricter at any
/// time: the access is then reported again.
pub trait PageAccessProvider {
    /// The pager's view of the whole region, by which it reads and writes pages that are
    /// inaccessible to the program. The pager counts the references to it, so the number of those
    /// that are kept elsewhere must not change while there is a pager.
    fn view(&self) -> &Arc<Region>;

    /// Makes sure that the page is all zeros and has memory. No access is allowed yet.
    fn zero(&self, page: u32);

    /// Whether the access is allowed already. If so, only a fault still needs
    /// [`PageAccessProvider::allow`], which wakes its thread.
    fn is_allowed(&self, page: u32, access: AccessKind) -> bool;

    /// Allows an access to a page whose content is in place, and wakes what waits for it.
    fn allow(&self, page: u32, access: AccessKind);

    /// Takes the right to write away from pages, and wakes nothing. When it returns, no write to
    /// them is in progress.
    fn protect(&self, pages: Range<u32>);

    /// Makes the next access to the page fault, and keeps its content.
    fn hide(&self, page: u32);

    /// Takes all rights and the content of pages away.
    fn remove(&self, pages: Range<u32>);
}
