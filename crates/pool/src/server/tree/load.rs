//! Bulk loading: builds a tree from ascending records, left to right and level by level, beside the
//! empty tree that clients see, and publishes it at the end.
//!
//! *Thread safety*: a load belongs to one thread at a time. Of several concurrent loads, the first
//! to end is published, and the others are refused.

use super::descend::restarting;
use super::{ServerTree, TreeFailure};
use crate::wire::Refusal;
use farleaf_fabric::{Cpu, GlobalAddr};
use farleaf_page::{
    CarriedEntry, Layout, NextPage, OwnedKey, OwnedValue, Page, fill_end, filled_weight,
};

/// A load in progress.
#[derive(Debug)]
pub struct TreeLoader<L: Layout> {
    /// Target weight of a page.
    fill: usize,
    /// The page under construction on each level, leaves first.
    open: Vec<(GlobalAddr, L::Filling)>,
    nodes: Vec<GlobalAddr>,
    /// Nodes reserved for the end of the load, so that memory cannot run out at that point: other
    /// servers may have published their trees by then. A page that ends without a high fence loses
    /// its prefix and may move its last entry to a new page, which is too empty to do the same. So
    /// this takes one node for each level, and one for a new top.
    spare: Vec<GlobalAddr>,
    last: Option<OwnedKey<L>>,
    /// The result of ending the pages, which happens once.
    ended: Option<Result<(), Refusal>>,
}

impl<L: Layout> ServerTree<L> {
    /// Starts a load with pages filled to `fill_permille` thousandths.
    ///
    /// # Errors
    /// [`Refusal`] if the tree is not empty, or if the fill is not between 100 and 1000.
    pub fn load_begin(&self, fill_permille: u16) -> Result<TreeLoader<L>, Refusal> {
        if !(100..=1000).contains(&fill_permille) {
            return Err(Refusal::Malformed);
        }
        if !self.is_empty()? {
            return Err(Refusal::NotEmpty);
        }
        let fill = filled_weight::<L>(fill_permille.into());
        Ok(TreeLoader {
            fill,
            open: Vec::new(),
            nodes: Vec::new(),
            spare: Vec::new(),
            last: None,
            ended: None,
        })
    }

    fn is_empty(&self) -> Result<bool, Refusal> {
        let root = self.page(self.root()).ok_or(Refusal::NoTree)?;
        Ok(root.level() == 0 && root.count() == 0)
    }

    /// Adds records, with keys above all previous ones.
    ///
    /// # Errors
    /// [`Refusal`] if they do not ascend, or if there is not enough memory. The caller must then
    /// abort the load.
    pub fn load_append(
        &self,
        loader: &mut TreeLoader<L>,
        records: &[(OwnedKey<L>, OwnedValue<L>)],
    ) -> Result<(), Refusal> {
        if loader.ended.is_some() {
            return Err(Refusal::NotLoading);
        }
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
            // A leaf that begins with the last record of the previous one may have no room for this
            // record.
            let mut is_added = L::fill_leaf(filling, leaf, record, fill);
            for _ in 0..3 {
                if is_added {
                    break;
                }
                let (_, filling) = self.load_page(loader, 0)?;
                let low = L::fill_separator(filling, L::key(key));
                self.load_next(loader, L::key(&low))?;
                let (leaf, filling) = self.load_page(loader, 0)?;
                is_added = L::fill_leaf(filling, leaf, record, fill);
            }
            if !is_added {
                return Err(Refusal::Damaged); // an empty leaf takes any record
            }
            loader.last = Some(key.clone());
        }
        let missing = (loader.open.len() + 1).saturating_sub(loader.spare.len());
        if missing > 0 {
            loader.spare.extend(self.nodes.take(missing).ok_or(Refusal::OutOfMemory)?);
        }
        Ok(())
    }

    /// The open page of a level.
    fn load_page<'a>(
        &self,
        loader: &'a mut TreeLoader<L>,
        level: usize,
    ) -> Result<(Page<'_, L>, &'a mut L::Filling), Refusal> {
        let (at, filling) = loader.open.get_mut(level).ok_or(Refusal::Damaged)?;
        Ok((self.page(*at).ok_or(Refusal::Damaged)?, filling))
    }

    /// Adds a child to the open page of a level; `false` if the page is full.
    fn load_child(
        &self,
        loader: &mut TreeLoader<L>,
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
        loader: &mut TreeLoader<L>,
        level: usize,
        low: &L::Key,
    ) -> Result<Option<GlobalAddr>, Refusal> {
        let fresh = self.nodes.take(1).and_then(|mut nodes| nodes.pop());
        let at = fresh.or_else(|| loader.spare.pop()).ok_or(Refusal::OutOfMemory)?;
        loader.nodes.push(at);
        let page = self.page(at).ok_or(Refusal::Damaged)?;
        page.format_empty(at, u8::try_from(level).map_err(|_| Refusal::Damaged)?, low, None);
        let open = (at, L::Filling::default());
        match loader.open.get_mut(level) {
            Some(held) => Ok(Some(std::mem::replace(held, open).0)),
            None => {
                loader.open.push(open);
                Ok(None)
            }
        }
    }

    /// Ends the open leaf at `low` and opens the next one.
    fn load_next(&self, loader: &mut TreeLoader<L>, low: &L::Key) -> Result<(), Refusal> {
        match self.load_end_page(loader, 0, Some(low))? {
            Some(next) => self.load_open(loader, 0, next),
            None => Ok(()),
        }
    }

    /// Ends the open page of a level, as [`fill_end`] does.
    fn load_end_page(
        &self,
        loader: &mut TreeLoader<L>,
        level: usize,
        high: Option<&L::Key>,
    ) -> Result<Option<NextPage<L>>, Refusal> {
        let (page, filling) = self.load_page(loader, level)?;
        Ok(fill_end(filling, page, high))
    }

    /// Opens a page after the ended one of a level, and likewise on each level above whose open
    /// page is full.
    fn load_open(
        &self,
        loader: &mut TreeLoader<L>,
        mut level: usize,
        (mut low, mut back): NextPage<L>,
    ) -> Result<(), Refusal> {
        // The page that was opened on the level below.
        let mut below: Option<(OwnedKey<L>, GlobalAddr)> = None;
        loop {
            let left = self.load_node(loader, level, L::key(&low))?.ok_or(Refusal::Damaged)?;
            let opened = loader.open[level].0;
            self.page(left).ok_or(Refusal::Damaged)?.set_sibling(opened);
            match back {
                CarriedEntry::Nothing => {}
                CarriedEntry::Record(key, value) => {
                    let fill = loader.fill;
                    let (leaf, filling) = self.load_page(loader, level)?;
                    let record = (L::key(&key), L::value(&value));
                    if !L::fill_leaf(filling, leaf, record, fill) {
                        return Err(Refusal::Damaged);
                    }
                }
                CarriedEntry::Child(child) => {
                    self.load_first(loader, level, (L::key(&low), child))?
                }
            }
            if let Some((key, child)) = below.take() {
                self.load_first(loader, level, (L::key(&key), child))?;
            }
            level += 1;
            if level == loader.open.len() {
                // The first page of a level starts with the leftmost page of the level below.
                let first = self.load_leftmost(loader, level - 1)?;
                let min = L::min_key();
                self.load_node(loader, level, L::key(&min))?;
                self.load_first(loader, level, (L::key(&min), first))?;
            }
            if self.load_child(loader, level, (L::key(&low), opened))? {
                return Ok(());
            }
            let next = self.load_end_page(loader, level, Some(L::key(&low)))?;
            below = Some((low, opened));
            (low, back) = next.ok_or(Refusal::Damaged)?;
        }
    }

    /// Adds the first or second child to the open page of a level.
    fn load_first(
        &self,
        loader: &mut TreeLoader<L>,
        level: usize,
        child: (&L::Key, GlobalAddr),
    ) -> Result<(), Refusal> {
        match self.load_child(loader, level, child)? {
            true => Ok(()),
            false => Err(Refusal::Damaged),
        }
    }

    /// The leftmost page of a level to which a second page has just been added.
    fn load_leftmost(&self, loader: &TreeLoader<L>, level: usize) -> Result<GlobalAddr, Refusal> {
        let is_first = |&&at: &&GlobalAddr| {
            self.page(at).is_some_and(|page| usize::from(page.level()) == level)
        };
        loader.nodes.iter().find(is_first).copied().ok_or(Refusal::Damaged)
    }

    /// Ends the open pages of all levels.
    fn load_end_pages(&self, loader: &mut TreeLoader<L>) -> Result<(), Refusal> {
        let mut level = 0;
        while level < loader.open.len() {
            match self.load_end_page(loader, level, None)? {
                Some(next) => self.load_open(loader, level, next)?,
                None => level += 1,
            }
        }
        Ok(())
    }

    /// Publishes the loaded tree in place of the empty one. Afterwards the load has no nodes.
    ///
    /// # Errors
    /// [`Refusal`] if the tree is no longer empty, or if other clients keep its root busy, but
    /// never for lack of memory. The load is unchanged in that case: end it again, or abort it.
    pub async fn load_end<C: Cpu>(
        &self,
        cpu: &C,
        loader: &mut TreeLoader<L>,
    ) -> Result<(), Refusal> {
        if loader.ended.is_none() {
            loader.ended = Some(self.load_end_pages(loader));
        }
        loader.ended.unwrap_or(Ok(()))?;
        if let Some((top_at, _)) = loader.open.last() {
            let top_at = *top_at;
            restarting!(self, cpu, self.show(cpu, top_at))?;
            // The top page's content is now in the root; no client has ever reached the top page
            // itself.
            loader.nodes.retain(|&at| at == top_at);
        }
        let (nodes, spare) = (std::mem::take(&mut loader.nodes), std::mem::take(&mut loader.spare));
        self.nodes.give_back(nodes.into_iter().chain(spare));
        Ok(())
    }

    async fn show<C: Cpu>(&self, cpu: &C, top_at: GlobalAddr) -> Result<(), TreeFailure> {
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
    pub fn load_abort(&self, loader: TreeLoader<L>) {
        self.nodes.give_back(loader.nodes.into_iter().chain(loader.spare));
    }
}
