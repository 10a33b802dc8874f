//! New leaves and nodes: written first, then linked by the CAS of a slot (radix.L5).
//!
//! An operation that does not know whether its CAS has taken effect looks for its key again. If it
//! finds its own leaf, it has; a leaf that was linked stays findable (smart.N1).

use super::SmartIndex;
use super::cache::SlotOf;
use super::find::{LeafGap, SlotPlace};
use super::radix::SlotSwap;
use super::radix_space::NodeMemory;
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_page::{Layout, LeafCopy, LeafMemory, NodeCopy, NodeSize, RadixSlot};
use farleaf_pool::remote::{MissCause, RemoteError};
use smallvec::SmallVec;

/// Memory that an operation has taken and no slot leads to, as far as it knows.
#[derive(Debug, Default)]
pub(super) struct SpareMemory {
    pub(super) leaf: Option<LeafMemory>,
    pub(super) node: Option<NodeMemory>,
    /// Whether a slot may lead there nevertheless, because the outcome of a CAS is unknown.
    pub(super) in_doubt: bool,
}

const TOO_LARGE: RemoteError = RemoteError::InvalidArgument("a leaf has no room for the record");

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    /// Links a new leaf where a descent has found none. Uses `spare`, and leaves in it what it has
    /// not linked.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if another client was faster. [`RemoteError::Indeterminate`] if the
    /// leaf may be linked, now or later; `spare` is empty then.
    pub(super) async fn link(
        &self,
        record: (&[u8], &[u8]),
        gap: LeafGap<'_>,
        spare: &mut SpareMemory,
    ) -> Result<(), MissCause> {
        let leaf = self.spare_leaf(record, spare).await?;
        match gap {
            LeafGap::Free(place) => self.link_at(record, place, leaf, spare).await,
            LeafGap::Full(node) => {
                let place = self.grow(node, record.0).await?;
                self.link_at(record, place, leaf, spare).await
            }
            LeafGap::Above { mut place, common, byte, reverse } => {
                // A node has only so much of its path: others above it have the rest.
                while common - place.known() > self.form.most_tail() {
                    let depth = place.known() + self.form.most_tail();
                    let to = (depth, record.0[depth]);
                    let node = self.link_node(record, place, None, to, spare).await?;
                    self.radix.post_hint(reverse, place.at.to_bits(), node.slot_place(0).to_bits());
                    place = place.below(&node);
                }
                let new = Some(leaf);
                let node = self.link_node(record, place, new, (common, byte), spare).await?;
                let first = node.slot_place(0);
                self.radix.post_hint(reverse, place.at.to_bits(), first.to_bits());
                Ok(())
            }
        }
    }

    /// The leaf that an earlier attempt has taken and not linked, if the record fits; otherwise a
    /// new one.
    pub(super) async fn spare_leaf(
        &self,
        (key, value): (&[u8], &[u8]),
        spare: &mut SpareMemory,
    ) -> Result<LeafMemory, MissCause> {
        let size = LeafMemory::size_for(self.form, key, value).ok_or(TOO_LARGE)?;
        if let Some(leaf) = spare.leaf.take_if(|leaf| leaf.size < size) {
            self.radix.give_back_leaf(leaf);
        }
        Ok(match spare.leaf {
            Some(leaf) => leaf,
            None => *spare.leaf.insert(self.radix.take_leaf(size).await?),
        })
    }

    /// Inserts a node with a path of `depth` bytes between a slot and what it leads to. The node's
    /// first slot leads there, by `byte`; its second one leads to the new leaf, if there is one.
    async fn link_node(
        &self,
        record: (&[u8], &[u8]),
        place: SlotPlace<'_>,
        leaf: Option<LeafMemory>,
        (depth, byte): (usize, u8),
        spare: &mut SpareMemory,
    ) -> Result<NodeCopy, MissCause> {
        let room = match spare.node {
            Some(room) => room,
            None => *spare.node.insert(self.radix.take_node_room().await?),
        };
        self.fabric().charge(Work::RestructureNode).await;
        let slot = leaf.map_or(RadixSlot::FREE, |leaf| RadixSlot::leaf(record.0[depth], leaf));
        let slots = vec![place.slot.with_byte(byte).to_bits(), slot.to_bits(), 0, 0];
        let content = (&record.0[..depth], NodeSize::SMALLEST, slots);
        let node = NodeCopy::made(self.form, room.at, place.at, content);
        let mut words: SmallVec<[u64; 8]> = node.words().collect();
        words.resize(words.len().max(room.used_words), 0);
        spare.node = Some(NodeMemory { used_words: words.len(), ..room });
        let mut parts: SmallVec<[_; 2]> = SmallVec::new();
        parts.push((room.at, words));
        if let Some(leaf) = leaf {
            let new = LeafCopy::first(self.form, leaf, node.slot_place(1), record);
            parts.push((leaf.at, new.words()));
        }
        self.write(&parts, spare).await?;
        let slot = RadixSlot::node(place.slot.byte(), room.at, NodeSize::SMALLEST);
        self.swap(&place, slot, leaf.is_some(), spare).await?;
        self.cache(record.0).admit(&node);
        Ok(node)
    }

    async fn link_at(
        &self,
        record: (&[u8], &[u8]),
        place: SlotPlace<'_>,
        leaf: LeafMemory,
        spare: &mut SpareMemory,
    ) -> Result<(), MissCause> {
        self.fabric().charge(Work::ChangeNode).await;
        let new_leaf = LeafCopy::first(self.form, leaf, place.at, record);
        self.write(&[(leaf.at, new_leaf.words())], spare).await?;
        self.swap(&place, RadixSlot::leaf(place.byte(), leaf), true, spare).await
    }

    /// WRITEs new memory that no slot leads to yet.
    pub(super) async fn write(
        &self,
        parts: &[(GlobalAddr, SmallVec<[u64; 8]>)],
        spare: &mut SpareMemory,
    ) -> Result<(), MissCause> {
        let written = self.radix.write_unlinked(parts).await;
        if written.is_err() {
            // WRITEs to this memory may still land.
            *spare = SpareMemory::default();
        }
        Ok(written?)
    }

    /// Makes a slot lead to a new leaf or node, `with_leaf` if the new leaf is there.
    async fn swap(
        &self,
        place: &SlotPlace<'_>,
        to: RadixSlot,
        with_leaf: bool,
        spare: &mut SpareMemory,
    ) -> Result<(), MissCause> {
        match self.radix.swap_slot(place.at, place.slot, to).await {
            Ok(SlotSwap::Done) => {
                if spare.node.is_some_and(|room| room.at == to.at()) {
                    spare.node = None;
                }
                if with_leaf {
                    spare.leaf = None;
                }
                self.note(place, to);
                Ok(())
            }
            Ok(SlotSwap::Not) => {
                // The slot has changed: drop the cached copy of its node.
                self.forget(place);
                Err(MissCause::Restart)
            }
            Ok(SlotSwap::Unknown) if !with_leaf => {
                spare.node = None; // lost, or in the tree
                Err(MissCause::Restart)
            }
            Ok(SlotSwap::Unknown) => {
                spare.in_doubt = true;
                Err(MissCause::Restart)
            }
            Err(error) => {
                if let RemoteError::Indeterminate(_) = error {
                    *spare = SpareMemory::default();
                }
                Err(error.into())
            }
        }
    }

    /// Makes room in a node of which all slots are in use: the first slot of the next size
    /// (smart.N5).
    async fn grow<'k>(&self, node: NodeCopy, key: &'k [u8]) -> Result<SlotPlace<'k>, MissCause> {
        let header = node.header.clone();
        let size = header.size.grown().ok_or(MissCause::Restart)?;
        let mut grown = header.clone();
        grown.size = size;
        let place = node.at.plus(8);
        let (from, to) = (header.to_bits(self.form), grown.to_bits(self.form));
        if self.radix.swap_word(place, from, to).await? == SlotSwap::Not {
            return Err(MissCause::Restart);
        }
        let number = header.size.slots();
        let mut node = NodeCopy { header: grown, ..node };
        node.slots.resize(size.slots(), 0);
        self.cache(key).admit(&node);
        let of = SlotOf { depth: header.depth, number };
        Ok(SlotPlace::free(node.slot_place(number), of, key))
    }

    /// Takes back what an operation has not linked (radix.M2).
    pub(super) fn give_back(&self, spare: SpareMemory) {
        if spare.in_doubt {
            return;
        }
        spare.leaf.into_iter().for_each(|leaf| self.radix.give_back_leaf(leaf));
        spare.node.into_iter().for_each(|room| self.radix.give_back_node(room));
    }
}
