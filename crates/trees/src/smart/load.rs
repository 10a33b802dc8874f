//! Bulk loads: the tree is built from ascending records, and published by the CAS of the root slot.
//!
//! Only the nodes on the path to the last key are open. A node or a leaf is written once its place
//! in its parent is known.
//!
//! *Invariant* smart.L1. No slot of the index leads to any part of the tree before all parts are
//! written, and the root slot is free until then.

use super::SmartIndex;
use super::radix::SlotSwap;
use super::radix_space::NodeMemory;
use farleaf_fabric::{Buffer, Fabric, GlobalAddr};
use farleaf_index::{IndexError, check_fill};
use farleaf_page::{
    Layout, LeafCopy, LeafMemory, NodeCopy, NodeSize, Octets, RadixSlot, common_bytes,
};
use farleaf_pool::remote::{MissCause, RemoteError};
use farleaf_pool::wire::Refusal;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A node whose last child may still come.
#[derive(Debug)]
struct OpenRadixNode {
    room: NodeMemory,
    path: Octets,
    slots: Vec<u64>,
}

/// A subtree whose parent is not known yet.
#[derive(Debug)]
enum UnlinkedSubtree {
    Leaf(LeafMemory, (Octets, Octets)),
    Node(OpenRadixNode),
}

type NodeWords = SmallVec<[u64; 8]>;

struct RadixLoad<'a, F: Fabric, L: Layout> {
    index: &'a SmartIndex<F, L>,
    open: Vec<OpenRadixNode>,
    /// The subtree with the last key.
    last: Option<UnlinkedSubtree>,
    in_flight: VecDeque<(GlobalAddr, NodeWords, F::Op<Buffer>)>,
    /// The memory that the load has taken, except what a WRITE that is no longer in `in_flight` may
    /// still change (radix.M2).
    leaves: Vec<LeafMemory>,
    nodes: Vec<NodeMemory>,
    /// Whether the root slot may lead to the tree.
    may_be_shown: bool,
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    pub(super) async fn load(
        &self,
        records: impl Iterator<Item = Result<(Octets, Octets), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        // Nodes have room for all slots whatever the fill is.
        check_fill(fill)?;
        self.check_free().await?;
        let (open, last, in_flight) = (Vec::new(), None, VecDeque::new());
        let (leaves, nodes) = (Vec::new(), Vec::new());
        let may_be_shown = false;
        let mut load =
            RadixLoad { index: self, open, last, in_flight, leaves, nodes, may_be_shown };
        let outcome = load.all(records).await;
        // Once the root slot may lead there, the memory belongs to the tree.
        let in_doubt = load.may_be_shown && matches!(outcome, Err(IndexError::Indeterminate(_)));
        if outcome.is_err() && !in_doubt {
            load.abort().await;
        }
        outcome
    }

    /// Fails if the index has ever had a key: removed keys keep their leaves (smart.N4), which
    /// other compute servers may have in their caches.
    async fn check_free(&self) -> Result<(), RemoteError> {
        match self.radix.read_slot(self.root).await? {
            RadixSlot::FREE => Ok(()),
            _ => Err(self.not_empty()),
        }
    }

    fn not_empty(&self) -> RemoteError {
        RemoteError::Refused { server: self.root.server(), refusal: Refusal::NotEmpty }
    }
}

impl<F: Fabric, L: Layout> RadixLoad<'_, F, L> {
    async fn all(
        &mut self,
        records: impl Iterator<Item = Result<(Octets, Octets), IndexError>>,
    ) -> Result<u64, IndexError> {
        let (mut before, mut count) = (None::<Octets>, 0);
        for record in records {
            let (key, value) = record?;
            if let Some(before) = &before {
                if *before >= key {
                    return Err(IndexError::NotSorted { position: count });
                }
                self.close_to(common_bytes(before, &key), &key).await?;
            }
            let size = LeafMemory::size_for(self.index.form, &key, &value);
            let size =
                size.ok_or(IndexError::InvalidArgument("a leaf has no room for a record"))?;
            let leaf = self.index.radix.take_leaf(size).await?;
            self.leaves.push(leaf);
            self.last = Some(UnlinkedSubtree::Leaf(leaf, (key.clone(), value)));
            (before, count) = (Some(key), count + 1);
        }
        while let Some(node) = self.close_last().await? {
            self.last = Some(UnlinkedSubtree::Node(node));
        }
        if let Some(top) = self.last.take() {
            let top = self.near(top, 0).await?;
            let slot = self.write(top, self.index.root, 0).await?;
            self.finish().await?;
            self.may_be_shown = true;
            self.show(slot).await?;
        }
        Ok(count)
    }

    /// Closes all open nodes whose paths are longer than `common` bytes, the length of the prefix
    /// that the next key shares with the last one. Then puts the last subtree into a node with this
    /// path.
    async fn close_to(&mut self, common: usize, key: &[u8]) -> Result<(), IndexError> {
        while self.open.last().is_some_and(|open| open.path.len() > common)
            && let Some(node) = self.close_last().await?
        {
            self.last = Some(UnlinkedSubtree::Node(node));
        }
        if self.open.last().is_none_or(|open| open.path.len() < common) {
            let room = self.index.radix.take_node_room().await?;
            let path = Octets::from_slice(&key[..common]);
            self.open.push(OpenRadixNode { room, path, slots: Vec::new() });
        }
        self.add_last().await
    }

    /// Puts the last subtree into the deepest open node.
    async fn add_last(&mut self) -> Result<(), IndexError> {
        let Some(depth) = self.open.last().map(|open| open.path.len()) else { return Ok(()) };
        let Some(last) = self.last.take() else { return Ok(()) };
        let last = self.near(last, depth + 1).await?;
        let Some(open) = self.open.last() else { return Ok(()) };
        let path = match &last {
            UnlinkedSubtree::Leaf(_, (key, _)) => key,
            UnlinkedSubtree::Node(node) => &node.path,
        };
        let byte = path.get(depth).copied().unwrap_or(0);
        let place = NodeCopy::place_in(self.index.form, open.room.at, open.slots.len());
        let slot = self.write(last, place, byte).await?;
        if let Some(open) = self.open.last_mut() {
            open.slots.push(slot.to_bits());
        }
        Ok(())
    }

    /// Inserts nodes above a subtree whose slot will be for keys with `known` bytes in common, as
    /// long as its root stores too little of its path for that slot.
    async fn near(
        &mut self,
        part: UnlinkedSubtree,
        known: usize,
    ) -> Result<UnlinkedSubtree, IndexError> {
        let mut part = part;
        let most = self.index.form.most_tail();
        while let UnlinkedSubtree::Node(node) = &part
            && node.path.len() > known + most
        {
            let depth = node.path.len() - most - 1;
            let (path, byte) = (Octets::from_slice(&node.path[..depth]), node.path[depth]);
            let room = match self.index.radix.take_node_room().await {
                Ok(room) => room,
                Err(error) => {
                    self.last = Some(part); // its memory comes back
                    return Err(error.into());
                }
            };
            let place = NodeCopy::place_in(self.index.form, room.at, 0);
            let slot = self.write(part, place, byte).await?;
            part = UnlinkedSubtree::Node(OpenRadixNode { room, path, slots: vec![slot.to_bits()] });
        }
        Ok(part)
    }

    /// Puts the last subtree into the deepest open node, and takes the node out: it is complete.
    async fn close_last(&mut self) -> Result<Option<OpenRadixNode>, IndexError> {
        self.add_last().await?;
        Ok(self.open.pop())
    }

    /// Posts the WRITE of a subtree's root whose slot will be at `place`. Returns the slot.
    async fn write(
        &mut self,
        part: UnlinkedSubtree,
        place: GlobalAddr,
        byte: u8,
    ) -> Result<RadixSlot, IndexError> {
        let (at, words, slot): (_, NodeWords, _) = match part {
            UnlinkedSubtree::Leaf(room, (key, value)) => {
                let leaf = LeafCopy::first(self.index.form, room, place, (&key, &value));
                (room.at, leaf.words(), RadixSlot::leaf(byte, room))
            }
            UnlinkedSubtree::Node(OpenRadixNode { room, path, slots }) => {
                let size = NodeSize::for_slots(slots.len());
                let node = NodeCopy::made(self.index.form, room.at, place, (&path, size, slots));
                let mut words: NodeWords = node.words().collect();
                words.resize(words.len().max(room.used_words), 0);
                self.nodes.push(NodeMemory { used_words: words.len(), ..room });
                (room.at, words, RadixSlot::node(byte, room.at, size))
            }
        };
        let most = (self.index.fabric().depth() / 3).max(1);
        let fabric = self.index.fabric();
        // Buffers of this load come back by finishing its WRITEs, not by waiting (R5).
        let buffer = loop {
            let is_full = self.in_flight.len() >= most;
            match fabric.buffer(words.len() * 8) {
                Ok(buffer) if !is_full => break Some(buffer),
                _ if self.in_flight.is_empty() => break None,
                _ => self.finish_oldest().await?,
            }
        };
        let operation = match buffer {
            Some(buffer) => self.index.radix.post_words_from(buffer, at, &words),
            None => self.index.radix.post_words(at, &words).await?,
        };
        self.in_flight.push_back((at, words, operation));
        Ok(slot)
    }

    async fn finish_oldest(&mut self) -> Result<(), IndexError> {
        if let Some((at, words, operation)) = self.in_flight.pop_front()
            && operation.await.is_err()
            && let Err(error) = self.write_again(at, words).await
        {
            self.lose(at);
            return Err(error.into());
        }
        Ok(())
    }

    /// WRITEs again what may still land from an earlier WRITE.
    async fn write_again(&self, at: GlobalAddr, words: NodeWords) -> Result<(), RemoteError> {
        let radix = &self.index.radix;
        radix.fabric().counters().count_retry();
        radix.fabric().reset(at.server()).await?;
        radix.write_unlinked(&[(at, words)]).await
    }

    /// Gives up memory that a WRITE may still change (radix.M2).
    fn lose(&mut self, at: GlobalAddr) {
        if let Some(lost) = self.leaves.iter().rposition(|leaf| leaf.at == at) {
            self.leaves.swap_remove(lost);
        }
        if let Some(lost) = self.nodes.iter().rposition(|room| room.at == at) {
            self.nodes.swap_remove(lost);
        }
    }

    async fn finish(&mut self) -> Result<(), IndexError> {
        while !self.in_flight.is_empty() {
            self.finish_oldest().await?;
        }
        Ok(())
    }

    /// Publishes the tree: makes the root slot lead to it.
    async fn show(&self, slot: RadixSlot) -> Result<(), IndexError> {
        let index = self.index;
        let swap = async || match index.radix.swap_slot(index.root, RadixSlot::FREE, slot).await? {
            SlotSwap::Done => Ok(()),
            SlotSwap::Not => match index.check_free().await {
                Ok(()) => Err(MissCause::Restart),
                Err(error) => Err(error.into()),
            },
            SlotSwap::Unknown => Err(index.not_empty().after_a_change(index.root.server()).into()),
        };
        index.radix.attempts(swap).await?;
        index.sides.note_root(slot);
        Ok(())
    }

    /// Takes the memory back, once no WRITE can land there any more.
    async fn abort(mut self) {
        let radix = &self.index.radix;
        for (at, _, operation) in std::mem::take(&mut self.in_flight) {
            if operation.await.is_err() && radix.fabric().reset(at.server()).await.is_err() {
                self.lose(at);
            }
        }
        let unwritten = self.open.into_iter().map(|open| open.room);
        let unwritten = unwritten.chain(match self.last {
            Some(UnlinkedSubtree::Node(open)) => Some(open.room),
            _ => None,
        });
        self.nodes.into_iter().chain(unwritten).for_each(|room| radix.give_back_node(room));
        self.leaves.into_iter().for_each(|leaf| radix.give_back_leaf(leaf));
    }
}
