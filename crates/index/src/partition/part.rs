//! One handle's access to one compute server in this process.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

use super::ComputeServer;
use crate::OwnedRange;
use crate::{IndexError, PartIndex, Partitioned};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_page::rules;
use farleaf_page::{Layout, OwnedKey};
use farleaf_pool::remote::RemoteError;
use std::cell::{Cell, RefCell};

/// A compute server in this process, as seen by one handle.
pub(super) struct OwnerHandle<D: Partitioned, F: Fabric, L: Layout> {
    pub(super) server: Arc<ComputeServer<D, L>>,
    pub(super) index: D::Index<F, L>,
    /// The range of the server in the map of `epoch`.
    range: RefCell<OwnedRange<OwnedKey<L>>>,
    epoch: Cell<u64>,
    /// Operations until the next sample. The handle counts them itself, so that operations do not
    /// write to shared memory for it.
    until_sample: Cell<u32>,
    one_in: u32,
}

impl<D: Partitioned, F: Fabric, L: Layout> OwnerHandle<D, F, L> {
    /// Opens a handle on `server`'s part of the index.
    pub(super) async fn open(
        server: &Arc<ComputeServer<D, L>>,
        pool: &D::Pool<F, L>,
        sampled_one_in: u32,
    ) -> Result<Self, RemoteError> {
        let one_in = sampled_one_in.max(1) - 1;
        let index = D::open_part(server.state(), pool).await?;
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

    /// Counts an operation, and records every `one_in + 1`-th one as a sample.
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
