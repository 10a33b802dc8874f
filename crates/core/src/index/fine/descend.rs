//! Descents: READs from the root down, and to the right where a split is not in the parent yet.

use super::FineIndex;
use crate::page::{Layout, Probe, Step, step};
use crate::remote::{Miss, PageCopy, Pointer};
use farleaf_fabric::{Fabric, Work};

/// Maximum number of siblings that one descent follows on a level. A longer chain would mean that
/// clients do not install separators.
const MAX_STEPS: usize = 10_000;

impl<F: Fabric, L: Layout> FineIndex<F, L> {
    pub(super) fn root_pointer(&self) -> Pointer {
        Pointer::fixed(self.root)
    }

    fn note_root(&self, copy: &PageCopy<L>) {
        if copy.at() == self.root {
            self.root_level.set(copy.page().level());
        }
    }

    /// The node at level `target` that covers the probe: one READ per level.
    #[inline]
    pub(super) async fn descend(
        &self,
        probe: Probe<'_, L::Key>,
        target: u8,
    ) -> Result<PageCopy<L>, Miss> {
        self.pages.fabric().charge(Work::Client).await;
        self.walk(self.root_pointer(), probe, target).await
    }

    /// Like [`FineIndex::descend`], but from the page at `from`.
    pub(super) async fn walk(
        &self,
        from: Pointer,
        probe: Probe<'_, L::Key>,
        target: u8,
    ) -> Result<PageCopy<L>, Miss> {
        let mut copy = self.pages.read(from).await?;
        self.note_root(&copy);
        for _ in 0..MAX_STEPS {
            self.pages.fabric().charge(Work::VisitNode).await;
            copy = match step(copy.page(), probe, target) {
                Step::Here => return Ok(copy),
                Step::Child(to) | Step::Right(to) => self.pages.read(copy.pointer(to)).await?,
                Step::Lost => return Err(Miss::Restart),
            };
        }
        Err(Miss::Restart)
    }
}
