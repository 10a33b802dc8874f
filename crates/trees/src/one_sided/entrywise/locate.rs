//! Locating leaves: by the cached parents of this compute server, else by a descent.
//!
//! No node that clients could reach is ever freed, and a leaf keeps its address and its lowest key.
//! So a cached parent leads to the leaf of a key, or to one on the left of it, however old it is.

use super::super::{LeafLocator, change_whole_leaf};
use super::EntryTree;
use super::cache::{named_down, named_up};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::{IndexError, ScanRequest};
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, EditAnswer, Layout, LeafEdit, OverflowEntry, OwnedKey, OwnedValue, WalkStep, step,
};
use farleaf_pool::remote::{LeafStream, MissCause, PageClient, PageCopy, TimedPointer};
use std::borrow::Borrow;

impl<F: Fabric, L: Layout> EntryTree<F, L> {
    fn is_only_a_leaf(&self) -> bool {
        self.tree.root_level() == 0
    }

    pub(super) fn admit(&self, parent: &PageCopy<L>, probe: DescentProbe<'_, L::Key>) {
        self.sides.cache(probe).admit(parent.page(), || self.tree.pages.fabric().random());
    }

    /// Drops the cached parent of the probe's leaf (entrywise.C1).
    pub(super) fn forget(&self, probe: DescentProbe<'_, L::Key>) {
        self.sides.cache(probe).forget(probe);
    }

    /// Reads the parent of the probe's leaf, and caches it.
    async fn parent(&self, probe: DescentProbe<'_, L::Key>) -> Result<PageCopy<L>, MissCause> {
        let parent = self.tree.walk(self.tree.root_pointer(), probe, 1).await?;
        self.admit(&parent, probe);
        Ok(parent)
    }

    /// The leaf that covers the probe, or lies to the left of the one that does. The root, while
    /// there seems to be no other node.
    pub(super) async fn leaf_of(
        &self,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<GlobalAddr, MissCause> {
        if let Some(leaf) = self.sides.cache(probe).leaf(probe) {
            self.tree.pages.fabric().charge(Work::VisitNode).await;
            return Ok(leaf);
        }
        if self.is_only_a_leaf() {
            return Ok(self.tree.root());
        }
        let parent = self.parent(probe).await?;
        Ok(L::inner_child(parent.page(), L::inner_slot(parent.page(), probe)))
    }
}

impl<F: Fabric, L: Layout> LeafLocator for EntryTree<F, L> {
    type Fabric = F;
    type Layout = L;
    /// Where the leaves end whose READs are posted; `None` if they reach the end of the index.
    type Ahead = Option<OwnedKey<L>>;

    fn pages(&self) -> &PageClient<F, L> {
        &self.tree.pages
    }

    async fn find(&self, probe: DescentProbe<'_, L::Key>) -> Result<PageCopy<L>, MissCause> {
        let at = self.leaf_of(probe).await?;
        let copy = self.read_unlocked(at).await?;
        match step(copy.page(), probe, 0) {
            WalkStep::Here => Ok(copy),
            _ if copy.page().level() == 0
                && self.tree.pages.fabric().breaks(rules::LEAF_FENCES) =>
            {
                Ok(copy)
            }
            WalkStep::Child(to) | WalkStep::Right(to) => {
                self.forget(probe);
                self.tree.walk(copy.pointer(to), probe, 0).await
            }
            WalkStep::Lost => {
                self.forget(probe);
                Err(MissCause::Restart)
            }
        }
    }

    async fn find_from(
        &self,
        from: TimedPointer,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<PageCopy<L>, MissCause> {
        self.tree.walk(from, probe, 0).await
    }

    async fn get_one(&self, key: &L::Key) -> Result<Option<OwnedValue<L>>, MissCause> {
        if L::WINDOWS
            && let Some(found) = self.get_by_window(key).await?
        {
            return Ok(found);
        }
        Ok(L::leaf_get(self.find(DescentProbe::At(key)).await?.page(), key))
    }

    /// Leaves whose parents are cached are read by one doorbell; the others are found level by
    /// level.
    async fn get_together<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<Option<OwnedValue<L>>>>, IndexError> {
        match L::WINDOWS {
            true => self.get_windows(keys).await,
            false => self.get_pages(keys).await,
        }
    }

    async fn change(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, IndexError> {
        match L::BY_ENTRIES {
            true => self.change_entry(edit).await,
            false => change_whole_leaf(self, edit).await,
        }
    }

    /// Empty leaves stay (entrywise.S1).
    async fn emptied(&self, _key: &L::Key) -> Result<(), MissCause> {
        Ok(())
    }

    async fn split_and_add(
        &self,
        full: &PageCopy<L>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(), MissCause> {
        let split = self.tree.split_leaf(full, entry, spare).await;
        self.forget(DescentProbe::At(entry.key()));
        split
    }

    async fn locate_up(
        &self,
        start: &L::Key,
        scan: &ScanRequest<OwnedKey<L>>,
        window: usize,
        stream: &mut LeafStream<'_, F, L>,
    ) -> Result<(Option<PageCopy<L>>, Self::Ahead), MissCause> {
        let wanted = window + 1;
        let mut found = self.sides.cache(DescentProbe::At(start)).up(start, wanted, scan);
        if found.is_none() && self.is_only_a_leaf() {
            let root = self.tree.root_pointer();
            let leaf = self.tree.walk(root, DescentProbe::At(start), 0).await?;
            if self.is_only_a_leaf() {
                return Ok((Some(leaf), None));
            }
        }
        if found.is_none() {
            let parent = self.parent(DescentProbe::At(start)).await?;
            found = Some(named_up(parent.page(), start, wanted, scan));
        }
        let (mut posted, mut next) = (0, None);
        while let Some((leaves, end)) = found.take() {
            posted += leaves.len();
            leaves.into_iter().for_each(|at| stream.read_ahead(TimedPointer::fixed(at), true));
            // The next parent may be cached too.
            if posted < wanted
                && let Some(end) = &end
                && !scan.is_above(end)
            {
                found = self.sides.cache(DescentProbe::At(L::key(end))).up(
                    L::key(end),
                    wanted - posted,
                    scan,
                );
            }
            next = end;
        }
        Ok((None, next))
    }

    fn go_ahead(
        &self,
        ahead: &mut Self::Ahead,
        _window: usize,
        cursor: Option<&L::Key>,
        _stream: &mut LeafStream<'_, F, L>,
    ) -> bool {
        match (ahead, cursor) {
            (Some(end), Some(cursor)) => cursor < L::key(end),
            _ => true,
        }
    }

    async fn locate_down(
        &self,
        probe: DescentProbe<'_, L::Key>,
        window: usize,
    ) -> Result<Vec<(OwnedKey<L>, TimedPointer)>, MissCause> {
        let named = match self.sides.cache(probe).down(probe, window + 1) {
            Some(named) => named,
            // The only leaf is the root. If the root has grown meanwhile, the scan rejects the
            // page.
            None if self.is_only_a_leaf() => vec![(L::min_key(), self.tree.root())],
            None => named_down(self.parent(probe).await?.page(), probe, window + 1),
        };
        Ok(named.into_iter().map(|(low, at)| (low, TimedPointer::fixed(at))).collect())
    }

    async fn load_all(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        let entries = L::BY_ENTRIES.then(|| self.entries());
        self.tree.load(source, fill, 0, entries).await
    }
}
