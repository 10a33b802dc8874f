//! How leaves are located: by descents through the levels above, which also name the leaves that a scan
//! will want.
//!
//! The parent of a scan's first leaf names those after it, whose READs leave together with the first. Past
//! the parent's last child an ascending scan follows the siblings, and reads ahead through the heads that it
//! meets; a descending one goes from parent to parent.

use super::FineIndex;
use crate::index::one_sided::{CollectCursor, Locate};
use crate::index::{IndexError, Scan};
use crate::page::{Layout, Probe};
use crate::remote::{Entry, LeafStream, Miss, PageClient, PageCopy, Pointer};
use farleaf_fabric::{Fabric, GlobalAddr, Work};

impl<F: Fabric, L: Layout> Locate for FineIndex<F, L> {
    type Fabric = F;
    type Layout = L;
    type Ahead = ();

    fn pages(&self) -> &PageClient<F, L> {
        &self.pages
    }

    async fn find(&self, probe: Probe<'_, L::Key>) -> Result<PageCopy<L>, Miss> {
        self.descend(probe, 0).await
    }

    async fn find_from(
        &self,
        from: Pointer,
        probe: Probe<'_, L::Key>,
    ) -> Result<PageCopy<L>, Miss> {
        self.walk(from, probe, 0).await
    }

    async fn get_together(
        &self,
        keys: &[L::Key],
    ) -> Result<Vec<Option<Option<L::Value>>>, IndexError> {
        self.descend_together(keys).await
    }

    async fn split_and_add(
        &self,
        full: &PageCopy<L>,
        entry: &Entry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(), Miss> {
        self.split_leaf(full, entry, spare).await
    }

    async fn locate_up(
        &self,
        start: &L::Key,
        scan: &Scan<L::Key>,
        window: usize,
        stream: &mut LeafStream<'_, F, L>,
    ) -> Result<(Option<PageCopy<L>>, ()), Miss> {
        if self.root_level.get() == 0 {
            let leaf = self.descend(Probe::At(start), 0).await?;
            if self.root_level.get() == 0 {
                return Ok((Some(leaf), ()));
            }
        }
        let parent = self.descend(Probe::At(start), 1).await?;
        let page = parent.page();
        let slot = L::inner_slot(page, Probe::At(start));
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
        probe: Probe<'_, L::Key>,
        window: usize,
    ) -> Result<Vec<(L::Key, Pointer)>, Miss> {
        if self.root_level.get() == 0 {
            // The only leaf, unless the root has grown: then it is not what the scan looks for.
            self.pages.fabric().charge(Work::Client).await;
            return Ok(vec![(L::min_key(), self.root_pointer())]);
        }
        let parent = self.descend(probe, 1).await?;
        let page = parent.page();
        let named = (0..=L::inner_slot(page, probe))
            .rev()
            .take(window + 1)
            .map(|slot| (L::inner_key(page, slot), parent.pointer(L::inner_child(page, slot))));
        Ok(named.collect())
    }

    async fn load_all(
        &self,
        records: impl Iterator<Item = (L::Key, L::Value)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        self.load_records(records, fill).await
    }

    async fn collect_step(
        &self,
        cursor: CollectCursor<L::Key>,
    ) -> Result<Option<CollectCursor<L::Key>>, IndexError> {
        self.collect_some(cursor).await
    }

    async fn end_pass(&self) -> Result<(), IndexError> {
        self.finish_pass().await
    }

    async fn collect_all(&self) -> Result<(), IndexError> {
        self.collect_everything().await
    }
}
