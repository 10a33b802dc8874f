//! Bulk loading: builds a tree from ascending records, left to right, level by level, beside the
//! empty tree that clients see, and publishes it at the end.
//!
//! *Thread safety*: a load belongs to one thread at a time. Of several concurrent loads, the first
//! to end is published, and the others are refused.

use super::descend::restarting;
use super::{Fail, Tree};
use crate::page::{Layout, LeafInsert, OwnedKey, OwnedValue, Page};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, GlobalAddr};

/// A load in progress.
#[derive(Debug)]
pub struct Loader<L: Layout> {
    /// Entries per page.
    fill: usize,
    /// The page under construction on each level, leaves first.
    open: Vec<GlobalAddr>,
    nodes: Vec<GlobalAddr>,
    last: Option<OwnedKey<L>>,
}

impl<L: Layout> Tree<L> {
    /// Starts a load with pages filled to `fill_permille` thousandths.
    ///
    /// # Errors
    /// [`Refusal`] if the tree is not empty, or the fill is not from 100 to 1000.
    pub fn load_begin(&self, fill_permille: u16) -> Result<Loader<L>, Refusal> {
        if !(100..=1000).contains(&fill_permille) {
            return Err(Refusal::Malformed);
        }
        if !self.is_empty()? {
            return Err(Refusal::NotEmpty);
        }
        let fill = (L::CAPACITY * usize::from(fill_permille) / 1000).clamp(2, L::CAPACITY);
        Ok(Loader { fill, open: Vec::new(), nodes: Vec::new(), last: None })
    }

    fn is_empty(&self) -> Result<bool, Refusal> {
        let root = self.page(self.root()).ok_or(Refusal::NoTree)?;
        Ok(root.level() == 0 && root.count() == 0)
    }

    /// Adds records, with keys above all previous ones.
    ///
    /// # Errors
    /// [`Refusal`] if they do not ascend, or there is no memory. The caller must abort the load
    /// then.
    pub fn load_append(
        &self,
        loader: &mut Loader<L>,
        records: &[(OwnedKey<L>, OwnedValue<L>)],
    ) -> Result<(), Refusal> {
        for (key, value) in records {
            if loader.last.as_ref().is_some_and(|last| last >= key) {
                return Err(Refusal::NotSorted);
            }
            if loader.open.is_empty() {
                self.load_node(loader, 0, L::key(&L::min_key()))?;
            }
            let mut leaf = self.page(loader.open[0]).ok_or(Refusal::Damaged)?;
            if leaf.count() >= loader.fill {
                leaf = self.load_next(loader, L::key(key))?;
            }
            if L::leaf_insert(leaf, L::key(key), L::value(value)) != LeafInsert::Inserted {
                return Err(Refusal::Damaged);
            }
            loader.last = Some(key.clone());
        }
        Ok(())
    }

    /// Opens a new, empty page on `level` whose keys begin at `low`.
    fn load_node(
        &self,
        loader: &mut Loader<L>,
        level: usize,
        low: &L::Key,
    ) -> Result<Page<'_, L>, Refusal> {
        let at = self.nodes.take(1).ok_or(Refusal::OutOfMemory)?[0];
        loader.nodes.push(at);
        let page = self.page(at).ok_or(Refusal::Damaged)?;
        page.format_empty(at, u8::try_from(level).map_err(|_| Refusal::Damaged)?, low, None);
        match loader.open.get_mut(level) {
            Some(open) => *open = at,
            None => loader.open.push(at),
        }
        Ok(page)
    }

    /// Closes the open leaf at `low` and opens the next, and likewise on each level above whose
    /// open page is full.
    fn load_next(&self, loader: &mut Loader<L>, low: &L::Key) -> Result<Page<'_, L>, Refusal> {
        let leaf = self.load_sibling(loader, 0, low)?;
        let mut child = loader.open[0];
        let mut level = 1;
        loop {
            if level == loader.open.len() {
                // The first page of a level starts with the leftmost page of the level below.
                let first = self.load_first(loader, level - 1)?;
                let parent = self.load_node(loader, level, L::key(&L::min_key()))?;
                L::inner_insert(parent, L::key(&L::min_key()), first);
            }
            let parent = self.page(loader.open[level]).ok_or(Refusal::Damaged)?;
            if parent.count() < loader.fill {
                L::inner_insert(parent, low, child);
                return Ok(leaf);
            }
            let parent = self.load_sibling(loader, level, low)?;
            L::inner_insert(parent, low, child);
            child = loader.open[level];
            level += 1;
        }
    }

    /// The leftmost page of a level that has just got its second page.
    fn load_first(&self, loader: &Loader<L>, level: usize) -> Result<GlobalAddr, Refusal> {
        let is_first = |&&at: &&GlobalAddr| {
            self.page(at).is_some_and(|page| usize::from(page.level()) == level)
        };
        loader.nodes.iter().find(is_first).copied().ok_or(Refusal::Damaged)
    }

    fn load_sibling(
        &self,
        loader: &mut Loader<L>,
        level: usize,
        low: &L::Key,
    ) -> Result<Page<'_, L>, Refusal> {
        let left = self.page(loader.open[level]).ok_or(Refusal::Damaged)?;
        let right = self.load_node(loader, level, low)?;
        L::split_link(left, low, loader.open[level]);
        Ok(right)
    }

    /// Publishes the loaded tree in place of the empty one.
    ///
    /// # Errors
    /// [`Refusal`] if the tree is not empty any more; the load is aborted then.
    pub async fn load_end<C: Cpu>(&self, cpu: &C, mut loader: Loader<L>) -> Result<(), Refusal> {
        let Some(top_at) = loader.open.last().copied() else { return Ok(()) };
        let shown = restarting!(self, cpu, self.show(cpu, top_at));
        if shown.is_err() {
            self.load_abort(loader);
            return shown;
        }
        // The root has the top page's content; no client has ever reached the top page itself.
        loader.nodes.retain(|&at| at == top_at);
        self.load_abort(loader);
        Ok(())
    }

    async fn show<C: Cpu>(&self, cpu: &C, top_at: GlobalAddr) -> Result<(), Fail> {
        let root = self.page(self.root()).ok_or(Refusal::NoTree)?;
        let top = self.page(top_at).ok_or(Refusal::Damaged)?;
        let _guard = self.lock_any(cpu, root).await?;
        if !self.is_empty()? {
            return Err(Refusal::NotEmpty.into());
        }
        root.copy_content(top);
        Ok(())
    }

    /// Aborts a load and frees its nodes.
    pub fn load_abort(&self, loader: Loader<L>) {
        self.nodes.give_back(loader.nodes);
    }
}
