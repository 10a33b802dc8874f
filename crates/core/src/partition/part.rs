//! One handle's access to one compute server in this process.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::ComputeServer;
use crate::cache::OwnedRange;
use crate::index::IndexError;
use crate::index::dex::DexIndex;
use crate::page::Layout;
use crate::remote::{PageClient, RemoteError};
use crate::rules;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A compute server as a handle in this process reaches it.
#[derive(Debug)]
pub(super) struct OwnerHandle<F: Fabric, L: Layout> {
    pub(super) server: Arc<ComputeServer<L>>,
    pub(super) index: DexIndex<F, L>,
    /// The range of the server in the map of `epoch`.
    range: RefCell<OwnedRange<L::Key>>,
    epoch: Cell<u64>,
    /// Operations until the next sample. Counted here, so that operations do not write to shared
    /// memory for it.
    until_sample: Cell<u32>,
    one_in: u32,
}

impl<F: Fabric, L: Layout> OwnerHandle<F, L> {
    /// Opens a handle on `server`'s part of the index with the root at `root`.
    pub(super) async fn open(
        server: &Arc<ComputeServer<L>>,
        pages: &Rc<PageClient<F, L>>,
        (root, placement_level): (GlobalAddr, u8),
        sampled_one_in: u32,
    ) -> Result<Self, RemoteError> {
        let one_in = sampled_one_in.max(1) - 1;
        let dex = Arc::clone(server.dex());
        let index = DexIndex::open(dex, Rc::clone(pages), root, placement_level).await?;
        let map = server.map();
        Ok(Self {
            server: Arc::clone(server),
            index,
            range: RefCell::new(map.range_of(server.number())),
            epoch: Cell::new(map.epoch()),
            until_sample: Cell::new(one_in),
            one_in,
        })
    }

    /// Accepts an operation on a key, or names the owner.
    #[inline]
    pub(super) fn accept(&self, key: &L::Key) -> Result<(), IndexError> {
        let is_old = self.server.epoch() != self.epoch.get()
            && !self.index.fabric().breaks(rules::EPOCHS_COMPARED);
        if is_old || !self.range.borrow().has(key) {
            self.accept_by_the_map(key)?;
        }
        self.sample(key);
        Ok(())
    }

    /// Counts an operation, and records one in `one_in + 1` as a sample.
    #[inline]
    pub(super) fn sample(&self, key: &L::Key) {
        match self.until_sample.get() {
            0 => {
                self.until_sample.set(self.one_in);
                self.server.samples().note(key);
            }
            more => self.until_sample.set(more - 1),
        }
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
