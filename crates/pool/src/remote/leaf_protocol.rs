//! What a design adds to a client of pages if its leaves are locked and mended in another way than
//! pages: one hook, behind which the state of that design stays in its own crate.
//!
//! A client without a hook has pages alone. The hook is called only where something has gone wrong:
//! to settle what an operation has left in doubt (K4), and to recover what a dead client has left.
//! So its boxed futures cost an operation nothing, and neither do the READs of pages and the WRITEs
//! of leaves, which do not pass here.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::{MissCause, PageClient, PageCopy};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_page::Layout;
use std::cell::Cell;
use std::fmt::Debug;
use std::pin::Pin;
use std::rc::Rc;

/// A future of a hook.
pub type HookFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// How a design settles and recovers its leaves.
pub trait LeafProtocol<F: Fabric, L: Layout>: Debug {
    /// Settles what operations of this client have left in doubt. What cannot be settled stays, and
    /// stays counted.
    fn settle<'a>(&'a self, pages: &'a PageClient<F, L>) -> HookFuture<'a, ()>;

    /// Recovers what is at `at` from the client with the number `gone`, which posts nothing any
    /// more. Returns what it has read there if that is a page, and the page client's to recover.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if another client is at it, or something else has to come first.
    fn recover<'a>(
        &'a self,
        pages: &'a PageClient<F, L>,
        gone: u16,
        at: GlobalAddr,
    ) -> HookFuture<'a, Result<Option<PageCopy<L>>, MissCause>>;
}

/// How much a design's hook has to settle: the hook counts, and the page client looks before every
/// change, without a call.
#[derive(Clone, Debug, Default)]
pub struct UnresolvedCount(Rc<Cell<usize>>);

impl UnresolvedCount {
    /// Says how much there is.
    pub fn set(&self, count: usize) {
        self.0.set(count);
    }

    #[inline]
    fn is_zero(&self) -> bool {
        self.0.get() == 0
    }
}

/// The hook of a page client.
#[derive(Debug)]
pub(super) struct LeafHook<F: Fabric, L: Layout> {
    pub(super) protocol: Rc<dyn LeafProtocol<F, L>>,
    unresolved: UnresolvedCount,
}

impl<F: Fabric, L: Layout> LeafHook<F, L> {
    /// Whether there is something to settle.
    #[inline]
    pub(super) fn has_unresolved(&self) -> bool {
        !self.unresolved.is_zero()
    }
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Leaves are locked and mended by `protocol`, which counts in `unresolved` what it has to
    /// settle.
    #[must_use]
    pub fn with_leaf_protocol(
        mut self,
        protocol: Rc<dyn LeafProtocol<F, L>>,
        unresolved: UnresolvedCount,
    ) -> Self {
        self.leaf_hook = Some(LeafHook { protocol, unresolved });
        self
    }
}
