//! Locating leaves: descents through the levels above, which also name the leaves that a scan will
//! need.
//!
//! The parent of a scan's first leaf names the leaves after it. Their READs are posted together
//! with that of the first leaf. Past the parent's last child, an ascending scan follows the
//! siblings, and reads ahead using the heads that it passes. A descending scan goes from parent to
//! parent.

use super::FineIndex;
use crate::one_sided::{LeafLocator, tidy_path};
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::{IndexError, ScanRequest};
use farleaf_page::{DescentProbe, Layout, OverflowEntry, OwnedKey, OwnedValue};
use farleaf_pool::remote::{LeafStream, MissCause, PageClient, PageCopy, TimedPointer};
use std::borrow::Borrow;

impl<F: Fabric, L: Layout> LeafLocator for FineIndex<F, L> {
    type Fabric = F;
    type Layout = L;
    type Ahead = ();

    fn pages(&self) -> &PageClient<F, L> {
        &self.tree.pages
    }

    async fn find(&self, probe: DescentProbe<'_, L::Key>) -> Result<PageCopy<L>, MissCause> {
        self.tree.descend(probe, 0).await
    }

    async fn find_from(
        &self,
        from: TimedPointer,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<PageCopy<L>, MissCause> {
        self.tree.walk(from, probe, 0).await
    }

    /// Descends for many keys together, level by level, and shares the READs of common nodes.
    async fn get_together<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<Option<OwnedValue<L>>>>, IndexError> {
        let root = self.tree.root_pointer();
        self.tree.get_together(keys, |_| root, |_, _, _| ()).await
    }

    async fn emptied(&self, key: &L::Key) -> Result<(), MissCause> {
        tidy_path(self, key).await?;
        Ok(self.tree.pages.share_many_free_nodes().await?)
    }

    async fn split_and_add(
        &self,
        full: &PageCopy<L>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(), MissCause> {
        self.tree.split_leaf(full, entry, spare).await
    }

    async fn locate_up(
        &self,
        start: &L::Key,
        scan: &ScanRequest<OwnedKey<L>>,
        window: usize,
        stream: &mut LeafStream<'_, F, L>,
    ) -> Result<(Option<PageCopy<L>>, ()), MissCause> {
        if self.tree.root_level() == 0 {
            let leaf = self.tree.descend(DescentProbe::At(start), 0).await?;
            if self.tree.root_level() == 0 {
                return Ok((Some(leaf), ()));
            }
        }
        let parent = self.tree.descend(DescentProbe::At(start), 1).await?;
        let page = parent.page();
        let slot = L::inner_slot(page, DescentProbe::At(start));
        for next in slot..page.count() {
            let beyond =
                next > slot && (next - slot > window || scan.is_above(&L::inner_key(page, next)));
            if beyond {
                break;
            }
            stream.read_ahead(parent.pointer(L::inner_child(page, next)), true);
        }
        Ok((None, ()))
    }

    fn go_ahead(
        &self,
        (): &mut (),
        window: usize,
        _cursor: Option<&L::Key>,
        stream: &mut LeafStream<'_, F, L>,
    ) -> bool {
        stream.set_window(window);
        true
    }

    async fn locate_down(
        &self,
        probe: DescentProbe<'_, L::Key>,
        window: usize,
    ) -> Result<Vec<(OwnedKey<L>, TimedPointer)>, MissCause> {
        if self.tree.root_level() == 0 {
            // The only leaf is the root. If the root has grown meanwhile, the scan rejects the
            // page.
            return Ok(vec![(L::min_key(), self.tree.root_pointer())]);
        }
        let parent = self.tree.descend(probe, 1).await?;
        let page = parent.page();
        let named = (0..=L::inner_slot(page, probe))
            .rev()
            .take(window + 1)
            .map(|slot| (L::inner_key(page, slot), parent.pointer(L::inner_child(page, slot))));
        Ok(named.collect())
    }

    async fn load_all(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        self.tree.load(source, fill, self.options.leaves_per_head, None).await
    }
}
