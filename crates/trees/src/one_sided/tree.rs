//! A B-link tree whose nodes clients read, lock and write by one-sided verbs, from a root that
//! keeps its address: descents, and splits with separators for the levels above.
//!
//! Descents READ from the root down, and to the right where a split is not in the parent yet.
//!
//! *Invariants*
//! - blink.B1. Following child words and siblings from the root reaches every record at every
//!   instant, even after clients have died: a node is written before anything points to it.
//! - blink.B2. Locks are taken from the top down and left before right, and the holder of a leaf's
//!   lock waits only for new nodes.
//!
//! *Thread safety*: a handle belongs to its endpoint's thread; operations of one handle may
//! overlap.

use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_index::IndexError;
use farleaf_page::{DescentProbe, Layout, OverflowEntry, OwnedKey, OwnedValue, WalkStep, step};
use farleaf_pool::remote::{
    MissCause, PageClient, PageCopy, PageImage, PendingSeparator, RemoteError, TimedPointer,
};
use std::borrow::Borrow;
use std::cell::Cell;
use std::collections::BTreeMap;

/// Maximum number of siblings that one descent follows on a level. A longer chain would mean that
/// clients do not install separators.
const MAX_STEPS: usize = 10_000;

/// A handle on a tree.
#[derive(Debug)]
pub(crate) struct BlinkTree<F: Fabric, L: Layout> {
    pub(crate) pages: PageClient<F, L>,
    root: GlobalAddr,
    /// The root's level when it was last read, if it was.
    root_level: Cell<Option<u8>>,
}

impl<F: Fabric, L: Layout> BlinkTree<F, L> {
    pub(crate) fn new(pages: PageClient<F, L>, root: GlobalAddr) -> Self {
        Self { pages, root, root_level: Cell::new(None) }
    }

    pub(crate) fn root(&self) -> GlobalAddr {
        self.root
    }

    pub(crate) fn root_pointer(&self) -> TimedPointer {
        TimedPointer::fixed(self.root)
    }

    /// The root's level when it was last read; 0 before that.
    pub(crate) fn root_level(&self) -> u8 {
        self.root_level.get().unwrap_or(0)
    }

    /// Whether this handle has read the root.
    pub(crate) fn knows_root(&self) -> bool {
        self.root_level.get().is_some()
    }

    pub(crate) fn set_root_level(&self, level: u8) {
        self.root_level.set(Some(level));
    }

    /// Notes the root's level, if this is the root.
    pub(crate) fn note_root(&self, copy: &PageCopy<L>) {
        if copy.at() == self.root {
            self.set_root_level(copy.page().level());
        }
    }

    /// The node at level `target` that covers the probe: one READ per level.
    #[inline]
    pub(crate) async fn descend(
        &self,
        probe: DescentProbe<'_, L::Key>,
        target: u8,
    ) -> Result<PageCopy<L>, MissCause> {
        self.walk(self.root_pointer(), probe, target).await
    }

    /// Like [`BlinkTree::descend`], but from the page at `from`.
    pub(crate) async fn walk(
        &self,
        from: TimedPointer,
        probe: DescentProbe<'_, L::Key>,
        target: u8,
    ) -> Result<PageCopy<L>, MissCause> {
        let mut copy = self.pages.read(from).await?;
        self.note_root(&copy);
        for _ in 0..MAX_STEPS {
            self.pages.fabric().charge(Work::VisitNode).await;
            copy = match step(copy.page(), probe, target) {
                WalkStep::Here => return Ok(copy),
                WalkStep::Child(to) | WalkStep::Right(to) => {
                    self.pages.read(copy.pointer(to)).await?
                }
                WalkStep::Lost => return Err(MissCause::Restart),
            };
        }
        Err(MissCause::Restart)
    }

    /// Descends for many keys together, level by level, each from where `from` says, and shares the
    /// READs of common nodes. Tells `met` of each node that a key's descent meets, with the step
    /// from there. A key whose descent met a concurrent change has no result.
    pub(crate) async fn get_together<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
        from: impl Fn(&L::Key) -> TimedPointer,
        met: impl Fn(&PageCopy<L>, &L::Key, WalkStep),
    ) -> Result<Vec<Option<Option<OwnedValue<L>>>>, IndexError> {
        let mut found = vec![None; keys.len()];
        let mut frontier: BTreeMap<GlobalAddr, (TimedPointer, Vec<usize>)> = BTreeMap::new();
        for (number, key) in keys.iter().enumerate() {
            let pointer = from(key.borrow());
            frontier.entry(pointer.at).or_insert_with(|| (pointer, Vec::new())).1.push(number);
        }
        while !frontier.is_empty() {
            let mut posted = Vec::with_capacity(frontier.len());
            for (_, (pointer, of)) in std::mem::take(&mut frontier) {
                match self.pages.post_together(pointer) {
                    Ok(read) => posted.push((read, of)),
                    Err(MissCause::Restart) => {}
                    Err(MissCause::Failed(error)) => return Err(error.into()),
                }
            }
            for (read, of) in posted {
                let copy = match self.pages.finish_read(read).await {
                    Ok(copy) => copy,
                    Err(MissCause::Restart) => continue,
                    Err(MissCause::Failed(error)) => return Err(error.into()),
                };
                for number in of {
                    let key = keys[number].borrow();
                    self.pages.fabric().charge(Work::VisitNode).await;
                    let step = step(copy.page(), DescentProbe::At(key), 0);
                    met(&copy, key, step);
                    match step {
                        WalkStep::Here => found[number] = Some(L::leaf_get(copy.page(), key)),
                        WalkStep::Child(to) | WalkStep::Right(to) => {
                            let next = || (copy.pointer(to), Vec::new());
                            frontier.entry(to).or_insert_with(next).1.push(number);
                        }
                        WalkStep::Lost => {}
                    }
                }
            }
        }
        Ok(found)
    }

    /// Takes nodes until `spare` has `count`. Call it before the first change, for all splits that
    /// can follow from it.
    async fn provide(&self, spare: &mut Vec<GlobalAddr>, count: usize) -> Result<(), RemoteError> {
        while spare.len() < count {
            spare.push(self.pages.take_node_anywhere().await?);
        }
        Ok(())
    }

    /// Takes the nodes for a split of a leaf and those above it.
    pub(crate) async fn provide_all(&self, spare: &mut Vec<GlobalAddr>) -> Result<(), RemoteError> {
        // One node per level up to the root, two for the root, and one in case the root grows
        // meanwhile.
        self.provide(spare, usize::from(self.root_level()) + 3).await
    }

    pub(crate) async fn split_leaf(
        &self,
        full: &PageCopy<L>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(), MissCause> {
        self.provide_all(spare).await?;
        let separator = self.split_page(full, entry, spare).await?;
        self.install_all(separator, spare).await;
        Ok(())
    }

    /// Adds a separator at its level, and those that follow from it.
    pub(crate) async fn install_all(
        &self,
        mut separator: Option<PendingSeparator<OwnedKey<L>>>,
        spare: &mut Vec<GlobalAddr>,
    ) {
        while let Some(known) = separator {
            // The record is stored. If a separator cannot be installed, readers take one more step
            // to the right.
            separator = self
                .pages
                .attempts(async || self.install(&known, spare).await)
                .await
                .unwrap_or(None);
        }
    }

    /// Splits a page, which may be the root. Returns the separator to install in its parent.
    pub(crate) async fn split_page(
        &self,
        full: &PageCopy<L>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<Option<PendingSeparator<OwnedKey<L>>>, MissCause> {
        let needed = if full.at() == self.root { 2 } else { 1 };
        self.provide(spare, needed).await?;
        let nodes = spare.split_off(spare.len() - needed);
        let outcome = match nodes[..] {
            [left, right] => self.pages.split_root(full, [left, right], entry).await.map(|()| None),
            _ => self.pages.split(full, nodes[0], entry).await.map(Some),
        };
        if let Err(MissCause::Restart) = outcome {
            spare.extend(nodes);
        }
        outcome
    }

    /// Adds a separator at its level. If that splits a node, returns the next separator.
    async fn install(
        &self,
        separator: &PendingSeparator<OwnedKey<L>>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<Option<PendingSeparator<OwnedKey<L>>>, MissCause> {
        let PendingSeparator { level, key, child } = separator;
        let node = self.descend(DescentProbe::At(L::key(key)), *level).await?;
        let entry = OverflowEntry::Child(key.clone(), *child);
        if L::inner_key(node.page(), L::inner_slot(node.page(), DescentProbe::At(L::key(key))))
            == *key
        {
            return Ok(None); // another has installed it
        }
        let image = PageImage::of(node.page());
        if entry.add_to(image.page()) {
            self.pages.replace(&node, image).await?;
            return Ok(None);
        }
        self.split_page(&node, &entry, spare).await
    }
}
