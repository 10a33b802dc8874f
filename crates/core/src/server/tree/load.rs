//! Bulk loading: builds a tree from ascending records, left to right, level by level, next to the
//! empty tree that clients see, and publishes it at the end.
//!
//! *Thread safety*: a load belongs to one thread at a time. Of several concurrent loads, the first
//! to end is published, and the others are refused.

use super::descend::restarting;
use super::{Fail, Tree};
use crate::page::{Layout, OwnedKey, OwnedValue, Page, filled_weight};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, GlobalAddr};

/// A load in progress.
#[derive(Debug)]
pub struct Loader<L: Layout> {
    /// The weight up to which pages are filled.
    fill: usize,
    /// The page under construction on each level, leaves first.
    open: Vec<(GlobalAddr, L::Filling)>,
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
        let fill = filled_weight::<L>(fill_permille.into());
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
            let record = (L::key(key), L::value(value));
            let fill = loader.fill;
            let (leaf, filling) = self.load_page(loader, 0)?;
            if !L::fill_leaf(filling, leaf, record, fill) {
                let low = match &loader.last {
                    Some(last) => L::separator(L::key(last), L::key(key)),
                    None => return Err(Refusal::Damaged), // an empty leaf takes any record
                };
                self.load_next(loader, L::key(&low))?;
                let (leaf, filling) = self.load_page(loader, 0)?;
                if !L::fill_leaf(filling, leaf, record, fill) {
                    return Err(Refusal::Damaged);
                }
            }
            loader.last = Some(key.clone());
        }
        Ok(())
    }

    /// The open page of a level.
    fn load_page<'a>(
        &self,
        loader: &'a mut Loader<L>,
        level: usize,
    ) -> Result<(Page<'_, L>, &'a mut L::Filling), Refusal> {
        let (at, filling) = loader.open.get_mut(level).ok_or(Refusal::Damaged)?;
        Ok((self.page(*at).ok_or(Refusal::Damaged)?, filling))
    }

    /// Adds a child to the open page of a level; `false` if that is full.
    fn load_child(
        &self,
        loader: &mut Loader<L>,
        level: usize,
        child: (&L::Key, GlobalAddr),
    ) -> Result<bool, Refusal> {
        let fill = loader.fill;
        let (page, filling) = self.load_page(loader, level)?;
        Ok(L::fill_inner(filling, page, child, fill))
    }

    /// Opens a new, empty page on `level` whose keys begin at `low`. Returns the page that was open
    /// before.
    fn load_node(
        &self,
        loader: &mut Loader<L>,
        level: usize,
        low: &L::Key,
    ) -> Result<Option<(GlobalAddr, L::Filling)>, Refusal> {
        let at = self.nodes.take(1).ok_or(Refusal::OutOfMemory)?[0];
        loader.nodes.push(at);
        let page = self.page(at).ok_or(Refusal::Damaged)?;
        page.format_empty(at, u8::try_from(level).map_err(|_| Refusal::Damaged)?, low, None);
        let open = (at, L::Filling::default());
        match loader.open.get_mut(level) {
            Some(held) => Ok(Some(std::mem::replace(held, open))),
            None => {
                loader.open.push(open);
                Ok(None)
            }
        }
    }

    /// Closes the open leaf at `low` and opens the next, and likewise on each level above whose
    /// open page is full.
    fn load_next(&self, loader: &mut Loader<L>, low: &L::Key) -> Result<(), Refusal> {
        self.load_sibling(loader, 0, low)?;
        let mut child = loader.open[0].0;
        let mut level = 1;
        loop {
            if level == loader.open.len() {
                // The first page of a level starts with the leftmost page of the level below.
                let first = self.load_first(loader, level - 1)?;
                let min = L::min_key();
                self.load_node(loader, level, L::key(&min))?;
                if !self.load_child(loader, level, (L::key(&min), first))? {
                    return Err(Refusal::Damaged);
                }
            }
            if self.load_child(loader, level, (low, child))? {
                return Ok(());
            }
            self.load_sibling(loader, level, low)?;
            if !self.load_child(loader, level, (low, child))? {
                return Err(Refusal::Damaged);
            }
            child = loader.open[level].0;
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

    /// Closes the open page of a level at `low` and opens the next.
    fn load_sibling(
        &self,
        loader: &mut Loader<L>,
        level: usize,
        low: &L::Key,
    ) -> Result<(), Refusal> {
        let (left, filling) = self.load_node(loader, level, low)?.ok_or(Refusal::Damaged)?;
        let left = self.page(left).ok_or(Refusal::Damaged)?;
        L::fill_end(filling, left, Some(low));
        left.set_sibling(loader.open[level].0);
        Ok(())
    }

    /// Publishes the loaded tree in place of the empty one.
    ///
    /// # Errors
    /// [`Refusal`] if the tree is no longer empty; the load is aborted then.
    pub async fn load_end<C: Cpu>(&self, cpu: &C, mut loader: Loader<L>) -> Result<(), Refusal> {
        let Some((top_at, _)) = loader.open.last() else { return Ok(()) };
        let top_at = *top_at;
        for (at, filling) in std::mem::take(&mut loader.open) {
            L::fill_end(filling, self.page(at).ok_or(Refusal::Damaged)?, None);
        }
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
