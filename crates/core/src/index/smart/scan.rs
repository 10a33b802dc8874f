//! Scans: the nodes of a range are READ anew, and their leaves with them.
//!
//! Every key below a node's path is below the node (radix.B1), so a scan begins at the deepest
//! cached node of its first key, and goes on at that of the first key behind the node. The READs
//! of the leaves that the cached copy of a node leads to are posted with the READ of the node; what
//! the copy lacks is READ next.
//!
//! *Invariant* smart.S1. A node that a slot of another node leads to is opened only if its path
//! begins with the other's and the slot's byte, and a node has at most one slot for a byte. So a
//! scan is at most eight nodes deep and opens no node twice, whatever the words say.

use super::SmartIndex;
use super::cache::KnownNode;
use crate::index::{IndexError, Scan};
use crate::page::{Child, KeyPath, Layout, LeafCopy, NodeCopy, NodeSize, Slot};
use crate::remote::{Miss, node_of};
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, Work};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// The rest of a scan: keys from `low` to `high`, both included.
#[derive(Clone, Copy, Debug)]
struct Rest {
    low: u64,
    high: u64,
    reverse: bool,
}

impl Rest {
    /// `None` if no key is within the bounds.
    fn of(scan: &Scan<u64>) -> Option<Self> {
        let low = match scan.lower {
            Bound::Unbounded => 0,
            Bound::Included(key) => key,
            Bound::Excluded(key) => key.checked_add(1)?,
        };
        let high = match scan.upper {
            Bound::Unbounded => u64::MAX,
            Bound::Included(key) => key,
            Bound::Excluded(key) => key.checked_sub(1)?,
        };
        (low <= high).then_some(Self { low, high, reverse: scan.reverse })
    }

    /// The first key.
    fn first(&self) -> u64 {
        if self.reverse { self.high } else { self.low }
    }

    fn has(&self, key: u64) -> bool {
        (self.low..=self.high).contains(&key)
    }

    /// What remains behind `low..=high`, which has the first key.
    fn behind(self, low: u64, high: u64) -> Option<Self> {
        let rest = match self.reverse {
            true => Self { high: low.checked_sub(1)?, ..self },
            false => Self { low: high.checked_add(1)?, ..self },
        };
        (rest.low <= rest.high).then_some(rest)
    }

    /// Whether a node with this path may have keys of the range below `byte`.
    fn wants(&self, path: KeyPath, byte: u8) -> bool {
        let (low, high) = path.range_of(byte);
        low <= self.high && high >= self.low
    }

    /// Where a byte is in the order of the scan.
    fn place_of(&self, byte: u8) -> u8 {
        if self.reverse { !byte } else { byte }
    }

    /// The children of a node that may have keys of the range, in the order of the scan.
    ///
    /// # Errors
    /// [`Miss::Restart`] if two slots are for the same byte, which only a damaged node has
    /// (smart.N2).
    fn children(&self, node: &NodeCopy) -> Result<Vec<Slot>, Miss> {
        let path = node.header.path;
        let slots = node.in_use().map(|(_, slot)| slot);
        let mut slots: Vec<Slot> = slots.filter(|slot| self.wants(path, slot.byte())).collect();
        slots.sort_unstable_by_key(|slot| self.place_of(slot.byte()));
        match slots.windows(2).any(|pair| pair[0].byte() == pair[1].byte()) {
            true => Err(Miss::Restart),
            false => Ok(slots),
        }
    }

    /// Those of a node's leaves that may have keys of the range, in the order of the scan.
    fn wanted(&self, path: KeyPath, mut leaves: Vec<(u8, GlobalAddr)>) -> Vec<GlobalAddr> {
        leaves.retain(|(byte, _)| self.wants(path, *byte));
        leaves.sort_unstable_by_key(|(byte, _)| self.place_of(*byte));
        leaves.into_iter().map(|(_, leaf)| leaf).collect()
    }
}

/// What is next in a scan.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// A node, and the node and the byte of the slot that leads to it.
    Node(GlobalAddr, NodeSize, Option<(KeyPath, u8)>),
    Leaf(GlobalAddr),
    Record(u64, u64),
}

impl Next {
    /// What a slot leads to; `None` if it is free. `parent` is the path of the slot's node.
    fn of(slot: Slot, parent: Option<KeyPath>) -> Option<Self> {
        match slot.child() {
            Child::None => None,
            Child::Leaf => Some(Self::Leaf(slot.at())),
            Child::Node(size) => {
                Some(Self::Node(slot.at(), size, parent.map(|path| (path, slot.byte()))))
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
enum Copied {
    Node(NodeCopy),
    Leaf(LeafCopy),
}

/// Leaves that were read together with the node that leads to them.
type Early = BTreeMap<GlobalAddr, LeafCopy>;

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    pub(super) async fn records(&self, scan: &Scan<u64>) -> Result<Vec<(u64, u64)>, IndexError> {
        let (mut rest, mut records) = (Rest::of(scan), Vec::new());
        let attempt = async || self.go_on(&mut rest, scan.limit, &mut records).await;
        self.radix.attempts(attempt).await?;
        Ok(records)
    }

    /// Scans until nothing of `rest` is left or there are `limit` records.
    async fn go_on(
        &self,
        rest: &mut Option<Rest>,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Miss> {
        while let Some(range) = *rest
            && records.len() < limit
        {
            let known = self.cache(range.first()).node_of(range.first());
            let (low, high, mut ahead, leaves) = match known {
                Some(KnownNode { at, size, path, leaves }) => {
                    let leaves = range.wanted(path, leaves);
                    (path.low(), path.high(), VecDeque::from([Next::Node(at, size, None)]), leaves)
                }
                None => {
                    let slot = self.radix.read_slot(self.root).await?;
                    self.cache(range.first()).note_root(slot);
                    (0, u64::MAX, Next::of(slot, None).into_iter().collect(), Vec::new())
                }
            };
            let mut leaves = Some(leaves);
            while !ahead.is_empty() && records.len() < limit {
                let room = limit - records.len();
                let leaves = leaves.take().unwrap_or_default();
                self.read_ahead(&range, room, &mut ahead, leaves).await?;
                while let Some(Next::Record(key, value)) = ahead.front().copied()
                    && records.len() < limit
                {
                    ahead.pop_front();
                    records.push((key, value));
                    *rest = range.behind(key, key);
                }
            }
            if ahead.is_empty() {
                *rest = range.behind(low, high);
            }
        }
        Ok(())
    }

    /// READs what is next, about `room` records of it, and replaces it by its content. READs
    /// `leaves` with it, which the first node is likely to lead to.
    async fn read_ahead(
        &self,
        range: &Rest,
        room: usize,
        ahead: &mut VecDeque<Next>,
        leaves: Vec<GlobalAddr>,
    ) -> Result<(), Miss> {
        let most = room.min((self.fabric().depth() / 2).max(1));
        let (mut posted, mut weight) = (Vec::new(), 0);
        while weight < most
            && let Some(next) = ahead.front().copied()
        {
            let operation = match next {
                Next::Node(at, size, _) => self.post_node(at, size).map(Some),
                Next::Leaf(at) => self.radix.post_leaf(at).map(Some),
                Next::Record(..) => Ok(None),
            };
            // Without a buffer, the first READ waits for one.
            let operation = match operation {
                Ok(operation) => operation,
                Err(_) if posted.is_empty() => None,
                Err(_) => break,
            };
            posted.push((next, operation));
            ahead.pop_front();
            weight += next.weight();
        }
        let mut early_posted = Vec::new();
        for at in leaves.into_iter().take(most) {
            let Ok(operation) = self.radix.post_leaf(at) else { break };
            early_posted.push((at, operation));
        }
        let mut read = Vec::with_capacity(posted.len());
        for (next, operation) in posted {
            let buffer = match operation {
                Some(operation) => outcome_of(operation.await)?,
                None => None,
            };
            // No buffer is kept while a READ that is repeated may wait for one (R5).
            let copy = match (next, buffer) {
                (Next::Leaf(at), Some(buffer)) => self.radix.leaf_in(at, &buffer).map(Copied::Leaf),
                (Next::Node(at, ..), Some(buffer)) => node_of(at, &buffer).map(Copied::Node),
                _ => None,
            };
            read.push((next, copy));
        }
        let mut early = Early::new();
        for (at, operation) in early_posted {
            if let Some(buffer) = outcome_of(operation.await)?
                && let Some(leaf) = self.radix.leaf_in(at, &buffer)
            {
                early.insert(at, leaf);
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
        range: &Rest,
        next: Next,
        copy: Option<Copied>,
        early: &Early,
        content: &mut Vec<Next>,
    ) -> Result<(), Miss> {
        let of_leaf = |leaf: &LeafCopy| {
            let value = leaf.found().filter(|_| range.has(leaf.key))?;
            Some(Next::Record(leaf.key, value))
        };
        match (next, copy) {
            (Next::Record(..), _) => content.push(next),
            (Next::Leaf(_), Some(Copied::Leaf(leaf))) => content.extend(of_leaf(&leaf)),
            (Next::Leaf(at), _) => content.extend(of_leaf(&self.radix.read_leaf(at).await?)),
            (Next::Node(at, size, slot), copy) => {
                let mut node = match copy {
                    Some(Copied::Node(node)) => node,
                    _ => self.radix.read_radix_node(at, size).await?,
                };
                while node.slots.len() < node.header.size.slots() {
                    node = self.radix.read_radix_node(at, node.header.size).await?;
                }
                let path = node.header.path;
                if slot.is_some_and(|(parent, byte)| !parent.leads_to(byte, path)) {
                    return Err(Miss::Restart); // smart.S1
                }
                self.cache(range.first().clamp(path.low(), path.high())).admit(&node);
                for slot in range.children(&node)? {
                    match early.get(&slot.at()) {
                        Some(leaf) if slot.child() == Child::Leaf => content.extend(of_leaf(leaf)),
                        _ => content.extend(Next::of(slot, Some(path))),
                    }
                }
            }
        }
        Ok(())
    }

    fn post_node(&self, at: GlobalAddr, size: NodeSize) -> Result<F::Op<Buffer>, FabricError> {
        Ok(self.fabric().read(at, self.fabric().buffer(size.words() * 8)?))
    }
}

/// What was read; `None` if that has to be repeated.
fn outcome_of(outcome: Result<Buffer, FabricError>) -> Result<Option<Buffer>, Miss> {
    match outcome {
        Ok(buffer) => Ok(Some(buffer)),
        Err(FabricError::Indeterminate { .. } | FabricError::QueueFull { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
