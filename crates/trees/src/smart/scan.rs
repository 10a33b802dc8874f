//! Scans: the nodes of a range are READ anew, and their leaves with them.
//!
//! Every key below a node's path is below the node (radix.B1), so a scan begins at the deepest
//! cached node of its first key, and goes on at that of the first key behind the node. The READs
//! of the leaves that the cached copy of a node leads to are posted with the READ of the node; what
//! the copy lacks is READ next.
//!
//! *Invariant* smart.S1. A node that a slot of another node leads to is opened only if its path
//! begins with the other's and the slot's byte, and a node has at most one slot for a byte. So a
//! scan is at most as deep as the longest path and opens no node twice, whatever the words say.

use super::SmartIndex;
use super::cache::KnownNode;
use super::radix::node_of;
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, Work};
use farleaf_index::{IndexError, ScanRequest};
use farleaf_page::{
    Layout, LeafCopy, LeafMemory, NodeCopy, NodeSize, Octets, RadixChild, RadixSlot, just_after,
    just_before,
};
use farleaf_pool::remote::MissCause;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// The rest of a scan: keys from `low`, to those that begin with `high`, included.
#[derive(Clone, Debug)]
struct RestOfScan {
    low: Octets,
    high: Octets,
    reverse: bool,
}

/// Whether keys that begin with `low` can be at most those that begin with `high`.
fn is_up_to(low: &[u8], high: &[u8]) -> bool {
    let both = low.len().min(high.len());
    low[..both] <= high[..both]
}

impl RestOfScan {
    /// `None` if no key is within the bounds.
    fn of(scan: &ScanRequest<Octets>) -> Option<Self> {
        let low = match &scan.lower {
            Bound::Unbounded => Octets::new(),
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => just_after(key)?,
        };
        let high = match &scan.upper {
            Bound::Unbounded => Octets::new(),
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => just_before(key)?,
        };
        is_up_to(&low, &high).then_some(Self { low, high, reverse: scan.reverse })
    }

    /// A lower bound of the remaining range in scan order; it need not be a key of the index.
    fn first(&self) -> Octets {
        let (mut first, filler) = match self.reverse {
            true => (self.high.clone(), u8::MAX),
            false => (self.low.clone(), 0),
        };
        if first.len() < 8 {
            first.resize(8, filler);
        }
        first
    }

    /// The first key in scan order among those of the range that begin with `path`.
    fn nearest(&self, path: &[u8]) -> Octets {
        let first = self.first();
        let filler: &[u8] = if first[..] < *path { &[] } else { &[u8::MAX; 8] };
        match first.starts_with(path) {
            true => first,
            false => path.iter().chain(filler).copied().collect(),
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        is_up_to(&self.low, key) && is_up_to(key, &self.high)
    }

    /// What remains behind the keys that begin with `path`, which has the first key.
    fn behind(&self, path: &[u8]) -> Option<Self> {
        let mut rest = self.clone();
        match self.reverse {
            true => rest.high = just_before(path)?,
            false => rest.low = just_after(path)?,
        }
        is_up_to(&rest.low, &rest.high).then_some(rest)
    }

    /// Whether a node with this path may have keys of the range below `byte`.
    fn wants(&self, path: &[u8], byte: u8) -> bool {
        let below: Octets = path.iter().copied().chain([byte]).collect();
        self.has(&below)
    }

    /// The rank of a byte in scan order.
    fn place_of(&self, byte: u8) -> u8 {
        if self.reverse { !byte } else { byte }
    }

    /// The children of a node that may have keys of the range, in the order of the scan.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if two slots are for the same byte, which only a damaged node has
    /// (smart.N2).
    fn children(&self, node: &NodeCopy) -> Result<Vec<RadixSlot>, MissCause> {
        let slots = node.in_use().map(|(_, slot)| slot);
        let wanted = slots.filter(|slot| self.wants(&node.path, slot.byte()));
        let mut slots: Vec<RadixSlot> = wanted.collect();
        slots.sort_unstable_by_key(|slot| self.place_of(slot.byte()));
        match slots.windows(2).any(|pair| pair[0].byte() == pair[1].byte()) {
            true => Err(MissCause::Restart),
            false => Ok(slots),
        }
    }

    /// Those of a node's leaves that may have keys of the range, in the order of the scan.
    fn wanted(&self, path: &[u8], mut leaves: Vec<RadixSlot>) -> Vec<LeafMemory> {
        leaves.retain(|slot| self.wants(path, slot.byte()));
        leaves.sort_unstable_by_key(|slot| self.place_of(slot.byte()));
        leaves.into_iter().map(RadixSlot::leaf_room).collect()
    }
}

/// What is next in a scan.
#[derive(Clone, Debug)]
enum NextInScan {
    /// A node, and the prefix that its path must have.
    Node(GlobalAddr, NodeSize, Octets),
    Leaf(LeafMemory),
    Record(Octets, Octets),
}

impl NextInScan {
    /// What a slot leads to; `None` if it is free. `parent` is the path of the slot's node.
    fn of(slot: RadixSlot, parent: Option<&[u8]>) -> Option<Self> {
        match slot.child() {
            RadixChild::None => None,
            RadixChild::Leaf => Some(Self::Leaf(slot.leaf_room())),
            RadixChild::Node(size) => {
                let known = parent.map(|path| path.iter().copied().chain([slot.byte()]).collect());
                Some(Self::Node(slot.at(), size, known.unwrap_or_default()))
            }
        }
    }

    /// About how many records it stands for.
    fn weight(&self) -> usize {
        match self {
            Self::Node(_, size, _) => size.slots() / 2,
            Self::Leaf(_) | Self::Record(..) => 1,
        }
    }
}

/// A copy of what is next.
#[derive(Debug)]
enum CopiedNode {
    Node(NodeCopy),
    Leaf(LeafCopy),
}

/// Leaves that were read together with the node that leads to them.
type EarlyLeaves = BTreeMap<GlobalAddr, LeafCopy>;

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    pub(super) async fn records(
        &self,
        scan: &ScanRequest<Octets>,
    ) -> Result<Vec<(Octets, Octets)>, IndexError> {
        let (mut rest, mut records) = (RestOfScan::of(scan), Vec::new());
        let attempt = async || self.go_on(&mut rest, scan.limit, &mut records).await;
        self.radix.attempts(attempt).await?;
        Ok(records)
    }

    /// Scans until nothing of `rest` is left or there are `limit` records.
    async fn go_on(
        &self,
        rest: &mut Option<RestOfScan>,
        limit: usize,
        records: &mut Vec<(Octets, Octets)>,
    ) -> Result<(), MissCause> {
        while let Some(range) = rest.clone()
            && records.len() < limit
        {
            let first = range.first();
            let (path, mut ahead, leaves) = match self.cache(&first).node_of(&first) {
                Some(KnownNode { at, size, path, leaves }) => {
                    let leaves = range.wanted(&path, leaves);
                    let node = NextInScan::Node(at, size, path.clone());
                    (path, VecDeque::from([node]), leaves)
                }
                None => {
                    let slot = self.radix.read_slot(self.root).await?;
                    self.cache(&first).note_root(slot);
                    (Octets::new(), NextInScan::of(slot, None).into_iter().collect(), Vec::new())
                }
            };
            let mut leaves = Some(leaves);
            while !ahead.is_empty() && records.len() < limit {
                let room = limit - records.len();
                let leaves = leaves.take().unwrap_or_default();
                self.read_ahead(&range, room, &mut ahead, leaves).await?;
                while records.len() < limit
                    && let Some(NextInScan::Record(key, value)) =
                        ahead.pop_front_if(|next| matches!(next, NextInScan::Record(..)))
                {
                    *rest = range.behind(&key);
                    records.push((key, value));
                }
            }
            if ahead.is_empty() {
                *rest = range.behind(&path);
            }
        }
        Ok(())
    }

    /// READs what is next, about `room` records of it, and replaces it by its content. READs
    /// `leaves` with it, which the first node is likely to lead to.
    async fn read_ahead(
        &self,
        range: &RestOfScan,
        room: usize,
        ahead: &mut VecDeque<NextInScan>,
        leaves: Vec<LeafMemory>,
    ) -> Result<(), MissCause> {
        let most = room.min((self.fabric().depth() / 2).max(1));
        let (mut posted, mut weight) = (Vec::new(), 0);
        while weight < most
            && let Some(next) = ahead.front()
        {
            let operation = match next {
                NextInScan::Node(at, size, _) => self.post_node(*at, *size).map(Some),
                NextInScan::Leaf(leaf) => self.radix.leaves().post_leaf(*leaf).map(Some),
                NextInScan::Record(..) => Ok(None),
            };
            // Without a buffer, the first READ waits for one.
            let operation = match operation {
                Ok(operation) => operation,
                Err(_) if posted.is_empty() => None,
                Err(_) => break,
            };
            weight += next.weight();
            posted.extend(ahead.pop_front().map(|next| (next, operation)));
        }
        let mut early_posted = Vec::new();
        for at in leaves.into_iter().take(most) {
            let Ok(operation) = self.radix.leaves().post_leaf(at) else { break };
            early_posted.push((at, operation));
        }
        let mut read = Vec::with_capacity(posted.len());
        for (next, operation) in posted {
            let buffer = match operation {
                Some(operation) => outcome_of(operation.await)?,
                None => None,
            };
            // No buffer is kept while a READ that is repeated may wait for one (R5).
            let copy = match (&next, buffer) {
                (NextInScan::Leaf(leaf), Some(buffer)) => {
                    self.radix.leaves().leaf_in(*leaf, &buffer).map(CopiedNode::Leaf)
                }
                (NextInScan::Node(at, ..), Some(buffer)) => {
                    node_of(self.form, *at, &buffer).map(CopiedNode::Node)
                }
                _ => None,
            };
            read.push((next, copy));
        }
        let mut early = EarlyLeaves::new();
        for (at, operation) in early_posted {
            if let Some(buffer) = outcome_of(operation.await)?
                && let Some(leaf) = self.radix.leaves().leaf_in(at, &buffer)
            {
                early.insert(at.at, leaf);
            }
        }
        self.fabric().charge(Work::CopyRecords((read.len() + early.len()) as u32)).await;
        let mut content = Vec::new();
        for (next, copy) in read {
            self.open(range, next, copy, &early, &mut content).await?;
        }
        content.into_iter().rev().for_each(|next| ahead.push_front(next));
        Ok(())
    }

    /// Appends to `content` what a node or a leaf has of the range. READs it if there is no copy.
    async fn open(
        &self,
        range: &RestOfScan,
        next: NextInScan,
        copy: Option<CopiedNode>,
        early: &EarlyLeaves,
        content: &mut Vec<NextInScan>,
    ) -> Result<(), MissCause> {
        match (next, copy) {
            (record @ NextInScan::Record(..), _) => content.push(record),
            (NextInScan::Leaf(_), Some(CopiedNode::Leaf(leaf))) => {
                content.extend(self.record_of(range, leaf).await?);
            }
            (NextInScan::Leaf(at), _) => {
                let leaf = self.radix.leaves().read_leaf(at).await?;
                content.extend(self.record_of(range, leaf).await?);
            }
            (NextInScan::Node(at, size, known), copy) => {
                let mut node = match copy {
                    Some(CopiedNode::Node(node)) => node,
                    _ => self.radix.read_radix_node(at, size).await?,
                };
                while node.slots.len() < node.header.size.slots() {
                    node = self.radix.read_radix_node(at, node.header.size).await?;
                }
                node.path = node.header.path_below(&known).ok_or(MissCause::Restart)?; // smart.S1
                self.cache(&range.nearest(&node.path)).admit(&node);
                for slot in range.children(&node)? {
                    match early.get(&slot.at()) {
                        Some(leaf) if slot.child() == RadixChild::Leaf => {
                            content.extend(self.record_of(range, leaf.clone()).await?);
                        }
                        _ => content.extend(NextInScan::of(slot, Some(&node.path))),
                    }
                }
            }
        }
        Ok(())
    }

    /// The record of a leaf, or of the one that took its place, if it is in the range.
    async fn record_of(
        &self,
        range: &RestOfScan,
        leaf: LeafCopy,
    ) -> Result<Option<NextInScan>, MissCause> {
        let mut leaf = leaf;
        while let Some(larger) = leaf.moved() {
            if larger.leaf_words() <= leaf.room.words() {
                return Err(MissCause::Restart); // radix.B4
            }
            leaf = self.radix.leaves().read_leaf(larger.leaf_room()).await?;
        }
        let value = leaf.found().filter(|_| range.has(&leaf.key));
        Ok(value.map(|value| NextInScan::Record(leaf.key, value)))
    }

    fn post_node(&self, at: GlobalAddr, size: NodeSize) -> Result<F::Op<Buffer>, FabricError> {
        Ok(self.fabric().read(at, self.fabric().buffer(NodeCopy::words_of(self.form, size) * 8)?))
    }
}

/// What was read; `None` if that has to be repeated.
fn outcome_of(outcome: Result<Buffer, FabricError>) -> Result<Option<Buffer>, MissCause> {
    match outcome {
        Ok(buffer) => Ok(Some(buffer)),
        Err(FabricError::Indeterminate { .. } | FabricError::QueueFull { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_page::{RadixForm, common_bytes};

    /// All strings of up to three of four bytes, as keys, ascending.
    fn keys() -> Vec<Octets> {
        let mut strings: Vec<Vec<u8>> = vec![Vec::new()];
        for length in 1..=3_u32 {
            for number in 0..4_usize.pow(length) {
                let byte = |place: u32| [0, 1, 2, 255][number >> (2 * place) & 3];
                strings.push((0..length).map(byte).collect());
            }
        }
        let mut keys: Vec<Octets> = strings.iter().map(|of| RadixForm::Strings.key(of)).collect();
        keys.sort();
        keys
    }

    /// A scan that goes on behind the deepest node it knows meets each key of its range once, in
    /// order, however deep that is.
    #[test]
    fn a_scan_goes_on_behind_each_node() {
        let keys = keys();
        let common = |pair: &[Octets]| pair[0][..common_bytes(&pair[0], &pair[1])].to_vec();
        let paths: Vec<Vec<u8>> = keys.windows(2).map(common).collect();
        let bounds = |key: &Octets| {
            [Bound::Unbounded, Bound::Included(key.clone()), Bound::Excluded(key.clone())]
        };
        let some: Vec<Bound<Octets>> = keys.iter().step_by(5).flat_map(bounds).collect();
        for (lower, upper) in some.iter().flat_map(|low| some.iter().map(move |high| (low, high))) {
            for (reverse, most) in [(false, 0), (true, 0), (false, 2), (true, 2), (true, 9)] {
                let (lower, upper) = (lower.clone(), upper.clone());
                let is_within = |key: &&Octets| {
                    std::ops::RangeBounds::contains(&(lower.clone(), upper.clone()), *key)
                };
                let mut expected: Vec<&Octets> = keys.iter().filter(is_within).collect();
                let scan =
                    ScanRequest { lower: lower.clone(), upper: upper.clone(), reverse, limit: 999 };
                let (mut rest, mut found) = (RestOfScan::of(&scan), Vec::new());
                while let Some(range) = rest {
                    let first = range.first();
                    let is_known = |path: &&Vec<u8>| path.len() <= most && first.starts_with(path);
                    let path = paths.iter().filter(is_known).max_by_key(|path| path.len()).unwrap();
                    let is_below = |key: &&Octets| key.starts_with(path) && range.has(key);
                    let mut below: Vec<&Octets> = keys.iter().filter(is_below).collect();
                    assert!(below.iter().all(|key| range.wants(path, key[path.len()])));
                    if reverse {
                        below.reverse();
                    }
                    found.extend(below);
                    rest = range.behind(path);
                }
                if reverse {
                    expected.reverse();
                }
                assert_eq!(found, expected, "{scan:?}");
            }
        }
    }
}
