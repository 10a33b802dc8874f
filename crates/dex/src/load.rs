//! Bulk loading. Leaves and inner nodes are built left to right in private memory and written to
//! the pool with many WRITEs in flight. The root comes last and publishes them all.
//!
//! *Invariants*
//! - Z1. A leaf ends at every boundary between compute servers.
//! - Z2. Nodes at level M and below go to one memory server until a node of level M is complete,
//!   then to the next. Nodes above are placed round robin.
//! - Z3. Nothing reachable points to a node before all nodes are written.
//!
//! *Thread safety*: private to one task.

use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_index::{BuiltContent, BulkBuilder};
use farleaf_page::{Layout, MAX_LEVEL, OwnedKey};
use farleaf_pool::remote::{FreshNode, FreshWriter, PageClient, PageImage, RemoteError};

/// Minimum fill of inner nodes.
const INNER_FILL: f64 = 0.9;

/// Subtrees per memory server that a placement level needs to spread a tree evenly.
const SUBTREES_EACH: u64 = 16;

/// The average weights of a tree's entries ([`Layout::weight`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryWeights {
    /// Weight of a record in a leaf.
    pub record: usize,
    /// Weight of a child with its separator in an inner node.
    pub child: usize,
}

/// Defaults for a layout whose entries all have the same weight.
impl Default for EntryWeights {
    fn default() -> Self {
        Self { record: 1, child: 1 }
    }
}

/// The largest placement level that still spreads a bulk-loaded tree over the memory servers, with
/// at least 16 subtrees of that level per server. Returns 0, which places each leaf separately, if
/// there are too few records.
pub fn spreading_level<L: Layout>(
    records: u64,
    weights: EntryWeights,
    fill: f64,
    memory_servers: u16,
) -> u8 {
    let each = |in_node: usize, weight: usize| (in_node / weight.max(1)).max(2) as u64;
    let mut subtrees = records / each(records_per_leaf::<L>(fill), weights.record);
    let mut level = 0;
    while level < MAX_LEVEL {
        subtrees /= each(children_per_node::<L>(fill), weights.child);
        if subtrees < SUBTREES_EACH * u64::from(memory_servers) {
            break;
        }
        level += 1;
    }
    level
}

/// The given fraction of a full page's weight.
fn weight_of(full: usize, fill: f64) -> usize {
    ((full as f64 * fill) as usize).clamp(2, full)
}

fn records_per_leaf<L: Layout>(fill: f64) -> usize {
    weight_of(L::full(), fill)
}

fn children_per_node<L: Layout>(fill: f64) -> usize {
    weight_of(L::full(), fill.max(INNER_FILL))
}

/// A node under construction.
struct OpenTreeNode<F: Fabric, L: Layout> {
    node: FreshNode<F>,
    image: PageImage<L>,
    filling: L::Filling,
}

/// A tree under construction.
pub struct DexTreeBuilder<'a, F: Fabric, L: Layout> {
    pages: &'a PageClient<F, L>,
    writer: FreshWriter<'a, F, L>,
    /// Target weight of a leaf.
    fill: usize,
    /// Target weight of an inner node. Inner nodes are filled well because they see few insertions
    /// and every compute server caches them.
    inner_fill: usize,
    placement_level: u8,
    /// Number of subtrees of the placement level completed, and of nodes above it begun.
    subtrees: u64,
    upper_nodes: u64,
    /// The boundaries at which leaves must end, after `next_boundary`.
    boundaries: std::vec::IntoIter<OwnedKey<L>>,
    next_boundary: Option<OwnedKey<L>>,
    /// The open node of each level, and how many nodes of the level are closed.
    levels: Vec<(Option<OpenTreeNode<F, L>>, u64)>,
    /// The low end of each leaf, and the number of records before it.
    leaves: Vec<(OwnedKey<L>, u64)>,
    records: u64,
}

/// A finished tree. Everything but the root has been written.
#[derive(Debug)]
pub struct BuiltTree<L: Layout> {
    /// The root's content, not yet written to an address.
    pub(super) root: PageImage<L>,
    /// The low end of each leaf, and the number of records before it.
    leaves: Vec<(OwnedKey<L>, u64)>,
    records: u64,
}

impl<L: Layout> BuiltContent<OwnedKey<L>> for BuiltTree<L> {
    fn equal_boundaries(&self, parts: usize) -> Option<Vec<OwnedKey<L>>> {
        equal_boundaries(&self.leaves, self.records, parts)
    }
}

impl<'a, F: Fabric, L: Layout> DexTreeBuilder<'a, F, L> {
    /// Creates a builder without leaves. `fill` is a fraction; `boundaries` ascend.
    pub(super) fn new(
        pages: &'a PageClient<F, L>,
        fill: f64,
        placement_level: u8,
        boundaries: Vec<OwnedKey<L>>,
    ) -> Self {
        let mut boundaries = boundaries.into_iter();
        Self {
            pages,
            writer: FreshWriter::new(pages),
            fill: weight_of(L::full(), fill),
            inner_fill: weight_of(L::full(), fill.max(INNER_FILL)),
            placement_level,
            subtrees: 0,
            upper_nodes: 0,
            next_boundary: boundaries.next(),
            boundaries,
            levels: Vec::new(),
            leaves: Vec::new(),
            records: 0,
        }
    }

    fn next_server(&mut self, level: u8) -> ServerId {
        let number = if level <= self.placement_level {
            self.subtrees
        } else {
            self.upper_nodes += 1;
            self.upper_nodes
        };
        ServerId::new((number % u64::from(self.pages.used_servers())) as u16)
    }

    async fn open(&mut self, level: u8, low: &L::Key) -> Result<(), RemoteError> {
        let server = self.next_server(level);
        let node = self.writer.take_near(server).await?;
        let image = PageImage::<L>::empty();
        image.page().format_empty(node.at(), level, low, None);
        while self.levels.len() <= usize::from(level) {
            self.levels.push((None, 0));
        }
        let filling = L::Filling::default();
        self.levels[usize::from(level)].0 = Some(OpenTreeNode { node, image, filling });
        if level == 0 {
            self.leaves.push((low.to_owned(), self.records));
        }
        Ok(())
    }

    /// Takes the open node of a level, which is now complete.
    fn take(&mut self, level: u8) -> Option<OpenTreeNode<F, L>> {
        let (open, closed) = &mut self.levels[usize::from(level)];
        let open = open.take()?;
        *closed += 1;
        if level == self.placement_level {
            self.subtrees += 1;
        }
        Some(open)
    }

    /// Writes a complete node. Returns its low fence and address, for the level above.
    async fn write(
        &mut self,
        node: FreshNode<F>,
        image: PageImage<L>,
    ) -> Result<(OwnedKey<L>, GlobalAddr), RemoteError> {
        let entry = (L::low(image.page()), node.at());
        self.writer.write(node, image).await?;
        Ok(entry)
    }

    /// Ends the open leaf at `high`. If its last record does not fit with this fence, moves the
    /// record to a new open leaf and returns `false`.
    async fn end_leaf(&mut self, high: Option<&L::Key>) -> Result<bool, RemoteError> {
        let Some(OpenTreeNode { node, image, filling }) = self.take(0) else { return Ok(true) };
        let back = L::fill_leaf_end(filling, image.page(), high);
        image.page().set_stamp();
        let (low, at) = self.write(node, image).await?;
        self.add_child(1, low, at).await?;
        let Some((low, (key, value))) = back else { return Ok(true) };
        self.open(0, L::key(&low)).await?;
        if let Some((_, records_before)) = self.leaves.last_mut() {
            *records_before -= 1; // this one was counted
        }
        match self.add_record((L::key(&key), L::value(&value))) {
            true => Ok(false),
            false => Err(RemoteError::Contended { retries: 0 }),
        }
    }

    /// Ends the open inner node of a level at `high`. If its last child does not fit with this
    /// fence, moves the child to a new open node. Returns the entry for the level above.
    async fn end_inner(
        &mut self,
        level: u8,
        high: Option<&L::Key>,
    ) -> Result<Option<(OwnedKey<L>, GlobalAddr)>, RemoteError> {
        let Some(OpenTreeNode { node, image, filling }) = self.take(level) else { return Ok(None) };
        let back = L::fill_inner_end(filling, image.page(), high);
        let entry = self.write(node, image).await?;
        self.begin_with(level, back).await?;
        Ok(Some(entry))
    }

    /// Opens a node of a level, which begins with `child` if there is one.
    async fn begin_with(
        &mut self,
        level: u8,
        child: Option<(OwnedKey<L>, GlobalAddr)>,
    ) -> Result<(), RemoteError> {
        let Some((low, child)) = child else { return Ok(()) };
        self.open(level, L::key(&low)).await?;
        match self.add_to_open(level, (L::key(&low), child)) {
            true => Ok(()),
            false => Err(RemoteError::Contended { retries: 0 }),
        }
    }

    /// Adds a child to the open node of `level`; `false` if the node is full or does not exist.
    fn add_to_open(&mut self, level: u8, child: (&L::Key, GlobalAddr)) -> bool {
        let fill = self.inner_fill;
        match self.levels.get_mut(usize::from(level)) {
            Some((Some(OpenTreeNode { image, filling, .. }), _)) => {
                L::fill_inner(filling, image.page(), child, fill)
            }
            _ => false,
        }
    }

    /// Adds a record to the open leaf; `false` if it is full.
    fn add_record(&mut self, record: (&L::Key, &L::Value)) -> bool {
        let fill = self.fill;
        self.levels[0].0.as_mut().is_some_and(|OpenTreeNode { image, filling, .. }| {
            L::fill_leaf(filling, image.page(), record, fill)
        })
    }

    /// Adds a child to the open node of `level`, closing full nodes on the way up.
    async fn add_child(
        &mut self,
        level: u8,
        low: OwnedKey<L>,
        child: GlobalAddr,
    ) -> Result<(), RemoteError> {
        let (mut level, mut low, mut child) = (level, low, child);
        while level < MAX_LEVEL {
            if self.add_to_open(level, (L::key(&low), child)) {
                break;
            }
            let carried = match usize::from(level) < self.levels.len() {
                true => self.end_inner(level, Some(L::key(&low))).await?,
                false => None,
            };
            // A node that holds only a child moved from the previous node has room for any second
            // child.
            if !self.add_to_open(level, (L::key(&low), child)) {
                self.begin_with(level, Some((low, child))).await?;
            }
            match carried {
                Some((closed_low, closed)) => (level, low, child) = (level + 1, closed_low, closed),
                None => break,
            }
        }
        Ok(())
    }

    /// Ends the open leaf at `low` and opens the next one there.
    async fn next_leaf(&mut self, low: &L::Key) -> Result<(), RemoteError> {
        if !self.levels.is_empty() {
            while !self.end_leaf(Some(low)).await? {}
        }
        self.open(0, low).await
    }

    /// Starts a new leaf at each boundary up to `key` (Z1).
    async fn pass_boundaries(&mut self, key: Option<&L::Key>) -> Result<(), RemoteError> {
        if self.levels.is_empty() {
            self.open(0, L::key(&L::min_key())).await?;
        }
        while let Some(boundary) =
            self.next_boundary.take_if(|b| key.is_none_or(|key| L::key(b) <= key))
        {
            self.next_leaf(L::key(&boundary)).await?;
            self.next_boundary = self.boundaries.next();
        }
        Ok(())
    }
}

impl<F: Fabric, L: Layout> BulkBuilder<L> for DexTreeBuilder<'_, F, L> {
    type Built = BuiltTree<L>;

    async fn append(&mut self, key: &L::Key, value: &L::Value) -> Result<(), RemoteError> {
        self.pass_boundaries(Some(key)).await?;
        let mut ends = 0;
        while !self.add_record((key, value)) {
            // A leaf that begins with the last record of the previous one may have no room for this
            // record.
            ends += 1;
            let Some(OpenTreeNode { filling, .. }) =
                self.levels[0].0.as_ref().filter(|_| ends <= 3)
            else {
                return Err(RemoteError::Contended { retries: 0 });
            };
            let low = L::fill_separator(filling, key);
            if self.end_leaf(Some(L::key(&low))).await? {
                self.open(0, L::key(&low)).await?;
            }
        }
        self.records += 1;
        Ok(())
    }

    /// On return, all nodes but the root have been written.
    async fn finish(&mut self) -> Result<BuiltTree<L>, RemoteError> {
        self.pass_boundaries(None).await?;
        while !self.end_leaf(None).await? {}
        let mut level = 1;
        let (node, image) = loop {
            let index = usize::from(level);
            // The only node of a level above the leaves becomes the root.
            if self.levels[index].1 == 0 {
                let Some(OpenTreeNode { node, image, filling }) = self.take(level) else {
                    return Err(RemoteError::Contended { retries: 0 });
                };
                let back = L::fill_inner_end(filling, image.page(), None);
                if back.is_none() {
                    break (node, image);
                }
                let (low, at) = self.write(node, image).await?;
                self.begin_with(level, back).await?;
                self.add_child(level + 1, low, at).await?;
            }
            while let Some((low, at)) = self.end_inner(level, None).await? {
                self.add_child(level + 1, low, at).await?;
            }
            level += 1;
        };
        self.writer.finish().await?;
        self.writer.release(node).await;
        let leaves = std::mem::take(&mut self.leaves);
        Ok(BuiltTree { root: image, leaves, records: self.records })
    }

    async fn abort(self) {
        for (open, _) in self.levels {
            if let Some(open) = open {
                open.node.settle().await;
            }
        }
        self.writer.abort().await;
    }
}

/// Boundaries at leaves that give `parts` compute servers about the same number of records each;
/// `None` if there are too few leaves.
fn equal_boundaries<K: Clone + Ord>(
    leaves: &[(K, u64)],
    records: u64,
    parts: usize,
) -> Option<Vec<K>> {
    let mut boundaries: Vec<K> = Vec::with_capacity(parts - 1);
    for part in 1..parts {
        let before = (u128::from(records) * part as u128 / parts as u128) as u64;
        let leaf = leaves.partition_point(|(_, count)| *count < before).max(1);
        boundaries.push(leaves.get(leaf)?.0.clone());
    }
    boundaries.is_sorted_by(|a, b| a < b).then_some(boundaries)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_page::Fixed8;

    #[test]
    fn the_placement_level_grows_with_the_tree() {
        // With 42 records per leaf and 54 children per node, 2 M keys make 881 nodes of level 1 and
        // 16 of level 2.
        let each = EntryWeights::default();
        let levels = [(1_000, 4), (100_000, 4), (2_000_000, 4), (2_000_000, 1), (20_000_000, 4)];
        let found =
            levels.map(|(keys, servers)| spreading_level::<Fixed8>(keys, each, 0.7, servers));
        assert_eq!(found, [0, 0, 1, 2, 2]);
        assert_eq!(spreading_level::<Fixed8>(200_000_000, each, 0.7, 1), 3);
        assert!(spreading_level::<Fixed8>(u64::MAX, each, 0.1, 1) <= MAX_LEVEL);
    }

    #[test]
    fn boundaries_even_the_records_out() {
        let leaves: Vec<(u64, u64)> = (0..10).map(|n| (n * 100, n * 40)).collect();
        assert_eq!(equal_boundaries(&leaves, 400, 4), Some(vec![300, 500, 800]));
        assert_eq!(equal_boundaries(&leaves, 400, 1), Some(vec![]));
        assert_eq!(equal_boundaries(&leaves[..2], 80, 4), None, "too few leaves");
    }
}
