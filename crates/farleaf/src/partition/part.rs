//! One handle's access to one compute server of this process.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::ComputeServer;
use crate::cache::{Discipline, OwnedRange, Sound};
use crate::index::IndexError;
use crate::index::dex::DexIndex;
use crate::page::Layout;
use crate::remote::{PageClient, RemoteError};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One compute server, as a handle of this process reaches it.
#[derive(Debug)]
pub(super) struct Part<F: Fabric, L: Layout, D: Discipline = Sound> {
    pub(super) server: Arc<ComputeServer<L>>,
    pub(super) index: DexIndex<F, L, D>,
    /// Its range as of this epoch.
    range: RefCell<OwnedRange<L::Key>>,
    epoch: Cell<u64>,
}

impl<F: Fabric, L: Layout, D: Discipline> Part<F, L, D> {
    /// A handle on `server`'s part of the index with its root at `root`.
    pub(super) async fn open(
        server: &Arc<ComputeServer<L>>,
        pages: &Rc<PageClient<F, L>>,
        root: GlobalAddr,
        placement_level: u8,
    ) -> Result<Self, RemoteError> {
        let dex = Arc::clone(server.dex());
        let index = DexIndex::open(dex, Rc::clone(pages), root, placement_level).await?;
        let map = server.map();
        Ok(Self {
            server: Arc::clone(server),
            index,
            range: RefCell::new(map.range_of(server.number())),
            epoch: Cell::new(map.epoch()),
        })
    }

    /// Accepts an operation on a key, or says whose it is.
    #[inline]
    pub(super) fn accept(&self, key: &L::Key) -> Result<(), IndexError> {
        if self.server.epoch() == self.epoch.get() && self.range.borrow().has(key) {
            return Ok(());
        }
        self.accept_by_the_map(key)
    }

    #[cold]
    fn accept_by_the_map(&self, key: &L::Key) -> Result<(), IndexError> {
        self.server.accept(key)?;
        let map = self.server.map();
        *self.range.borrow_mut() = map.range_of(self.server.number());
        self.epoch.set(map.epoch());
        Ok(())
    }
}
