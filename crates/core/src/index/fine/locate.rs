//! Locating leaves: descents through the levels above, which also name the leaves that a scan will
//! need.
//!
//! The parent of a scan's first leaf names the leaves after it. Their READs are posted together
//! with that of the first leaf. Past the parent's last child, an ascending scan follows the
//! siblings, and reads ahead using the heads that it passes. A descending scan goes from parent to
//! parent.

use super::FineIndex;
use crate::index::one_sided::Locate;
use crate::index::{IndexError, Scan};
use crate::page::{Entry, Layout, OwnedKey, OwnedValue, Probe, Step, step};
use crate::remote::{LeafStream, Miss, PageClient, PageCopy, Pointer};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use std::borrow::Borrow;
use std::collections::BTreeMap;

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

    /// Descends for many keys together, level by level, and shares the READs of common nodes.
    async fn get_together<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<Option<OwnedValue<L>>>>, IndexError> {
        self.pages.fabric().charge(Work::Client).await;
        let mut found = vec![None; keys.len()];
        let mut frontier: BTreeMap<GlobalAddr, (Pointer, Vec<usize>)> = BTreeMap::new();
        frontier.insert(self.root, (self.root_pointer(), (0..keys.len()).collect()));
        while !frontier.is_empty() {
            let mut posted = Vec::with_capacity(frontier.len());
            for (_, (pointer, of)) in std::mem::take(&mut frontier) {
                match self.pages.post_together(pointer) {
                    Ok(read) => posted.push((read, of)),
                    Err(Miss::Restart) => {}
                    Err(Miss::Failed(error)) => return Err(error.into()),
                }
            }
            for (read, of) in posted {
                let copy = match self.pages.finish_read(read).await {
                    Ok(copy) => copy,
                    Err(Miss::Restart) => continue,
                    Err(Miss::Failed(error)) => return Err(error.into()),
                };
                for number in of {
                    let key = &keys[number];
                    self.pages.fabric().charge(Work::VisitNode).await;
                    match step(copy.page(), Probe::At(key.borrow()), 0) {
                        Step::Here => found[number] = Some(L::leaf_get(copy.page(), key.borrow())),
                        Step::Child(to) | Step::Right(to) => {
                            let next = || (copy.pointer(to), Vec::new());
                            frontier.entry(to).or_insert_with(next).1.push(number);
                        }
                        Step::Lost => {}
                    }
                }
            }
        }
        Ok(found)
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
        scan: &Scan<OwnedKey<L>>,
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
    ) -> Result<Vec<(OwnedKey<L>, Pointer)>, Miss> {
        if self.root_level.get() == 0 {
            // The only leaf is the root. If the root has grown meanwhile, the scan rejects the
            // page.
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
        records: impl Iterator<Item = (OwnedKey<L>, OwnedValue<L>)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        self.load_records(records, fill).await
    }
}
