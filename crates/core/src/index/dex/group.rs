//! Lookups of several keys that descend together, one level at a time.
//!
//! A single descent waits for memory at every level: the child's lines are not in the processor's
//! caches. Here each key searches its node and asks for its child's lines, and only then does the
//! first key go on. So the keys wait together. Leaves that are not hot are fetched together.
//!
//! D5 holds for each key at each level, as in `descend.rs`. A key that meets anything unusual is
//! looked up alone, from the root.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::descend::{Child, LeafLocation};
use crate::cache::{LiveCounters, OptimisticRef, Swip};
use crate::page::{Layout, Page, Probe};
use crate::remote::RemoteError;
use crate::together::all;
use farleaf_fabric::{Fabric, Work, prefetch};
use smallvec::{SmallVec, smallvec};

/// Keys that descend together. More of them push each other's lines out of the nearest cache.
const GROUP: usize = 16;

/// How far the lookup of a key has come.
#[derive(Debug)]
enum Way<'a, L: Layout> {
    /// At a hot node of the group's level.
    At(OptimisticRef<'a, L>),
    /// At a child of it, which is asked for: its slot, and what the child word says.
    Step(OptimisticRef<'a, L>, usize, Swip),
    /// At a leaf that is not hot.
    Missing(LeafLocation<'a, L>),
    /// Something unusual: it has to be looked up alone.
    Alone,
    /// Found.
    Done,
}

type Ways<'a, L> = SmallVec<[Way<'a, L>; GROUP]>;

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Looks up several keys; `values` has a place for the value of each.
    ///
    /// # Errors
    /// [`RemoteError`] if a leaf cannot be read.
    pub async fn multi_get(
        &self,
        keys: &[&L::Key],
        values: &mut [Option<L::Value>],
    ) -> Result<(), RemoteError> {
        debug_assert_eq!(keys.len(), values.len(), "each key has a place for its value");
        for (keys, values) in keys.chunks(GROUP).zip(values.chunks_mut(GROUP)) {
            let mut ways: Ways<'_, L> = smallvec![];
            // Without a cache there is nothing to descend, and offloads go one by one.
            if !self.uncached && !self.offload.is_on() {
                ways = self.descend_together(keys).await;
            }
            ways.resize_with(keys.len(), || Way::Alone);
            self.read_hot(keys, values, &mut ways);
            self.read_missing(keys, values, &mut ways).await;
            for ((way, key), value) in ways.iter().zip(keys).zip(values) {
                if let Way::Alone = way {
                    *value = self.get(key).await?;
                }
            }
        }
        Ok(())
    }

    /// Takes all keys down to their leaves.
    async fn descend_together(&self, keys: &[&L::Key]) -> Ways<'_, L> {
        let Ok(root) = self.seen_root() else { return smallvec![] };
        let mut ways: Ways<'_, L> = keys.iter().map(|_| Way::At(root)).collect();
        for level in (1..=root.page.level()).rev() {
            for (way, key) in ways.iter_mut().zip(keys) {
                if let Way::At(node) = *way {
                    *way = self.ask_for_child(node, Probe::At(key));
                }
            }
            for (way, key) in ways.iter_mut().zip(keys) {
                if let Way::Step(node, slot, swip) = *way {
                    self.charge(Work::VisitNode).await;
                    *way = self.go_down(node, level, slot, swip, Probe::At(key));
                }
            }
        }
        ways
    }

    /// Searches a node, and asks for the lines of the child.
    #[inline(always)]
    fn ask_for_child<'a>(
        &'a self,
        node: OptimisticRef<'a, L>,
        probe: Probe<'_, L::Key>,
    ) -> Way<'a, L> {
        let cache = self.client.cache();
        let slot = L::inner_slot(node.page, probe);
        let Some(swip) = cache.swip(node.page, slot) else { return Way::Alone };
        if let Swip::Frame(frame) = swip {
            prefetch(cache.arena().page(frame).words());
        }
        Way::Step(node, slot, swip)
    }

    /// Steps from a node at `level` to the child: takes its version, and then validates the node
    /// (D5).
    #[inline(always)]
    fn go_down<'a>(
        &'a self,
        node: OptimisticRef<'a, L>,
        level: u8,
        slot: usize,
        swip: Swip,
        probe: Probe<'_, L::Key>,
    ) -> Way<'a, L> {
        match swip {
            Swip::Frame(frame) => {
                let Some(child) = self.client.cache().seen(frame) else { return Way::Alone };
                let step = self.confirm(node, level, Child::Hot(child), probe);
                step.map_or(Way::Alone, |()| Way::At(child))
            }
            Swip::Remote(address) if level == 1 && node.is_valid() => {
                Way::Missing(LeafLocation::Elsewhere { parent: node, slot, address })
            }
            Swip::Remote(_) => Way::Alone,
        }
    }

    /// Reads the hot leaves.
    fn read_hot(&self, keys: &[&L::Key], values: &mut [Option<L::Value>], ways: &mut Ways<'_, L>) {
        for ((way, key), value) in ways.iter_mut().zip(keys).zip(values) {
            let Way::At(leaf) = *way else { continue };
            let found = L::leaf_get(leaf.page, key);
            *way = match leaf.is_valid() {
                true => {
                    LiveCounters::count(&self.client.counters.leaf_hits);
                    self.client.mark_use(leaf.page);
                    *value = found;
                    Way::Done
                }
                false => Way::Alone,
            };
        }
    }

    /// Fetches the leaves that are not hot, together.
    async fn read_missing(
        &self,
        keys: &[&L::Key],
        values: &mut [Option<L::Value>],
        ways: &mut Ways<'_, L>,
    ) {
        for way in ways.iter() {
            if let Way::Missing(LeafLocation::Elsewhere { address, .. }) = way {
                self.client.expect_leaf(*address);
            }
        }
        let fetches = ways.iter_mut().zip(keys).zip(values).filter_map(|((way, key), value)| {
            if !matches!(way, Way::Missing(_)) {
                return None;
            }
            let Way::Missing(place) = std::mem::replace(way, Way::Alone) else { return None };
            Some(async move {
                let read = |page: Page<'_, L>| L::leaf_get(page, key);
                if let Ok(found) = self.read_place(place, Probe::At(key), &read).await {
                    *value = found;
                    *way = Way::Done;
                }
            })
        });
        all(fetches).await;
    }
}
