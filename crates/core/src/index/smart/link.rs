//! New leaves and nodes: written first, then linked by the CAS of a slot (radix.L5).
//!
//! An operation that does not know whether its CAS has taken effect looks for its key again. If it
//! finds its own leaf, it has; a leaf that was linked stays findable (smart.N1).

use super::SmartIndex;
use super::cache::SlotOf;
use super::find::{Gap, Place};
use crate::page::{
    KeyPath, Layout, LeafCopy, NodeCopy, NodeHeader, NodeSize, Slot, common_bytes, slot_place,
};
use crate::remote::{Miss, NodeRoom, RemoteError, Swapped};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use smallvec::SmallVec;

/// Memory that an operation has taken and no slot leads to, as far as it knows.
#[derive(Debug, Default)]
pub(super) struct Spare {
    pub(super) leaf: Option<GlobalAddr>,
    pub(super) node: Option<NodeRoom>,
    /// Whether a slot may lead there all the same.
    pub(super) in_doubt: bool,
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    /// Links a new leaf where a descent has found none. Uses `spare`, and leaves in it what it has
    /// not linked.
    ///
    /// # Errors
    /// [`Miss::Restart`] if another client was faster. [`RemoteError::Indeterminate`] if the leaf
    /// may be linked, now or later; `spare` is empty then.
    pub(super) async fn link(
        &self,
        record: (u64, u64),
        gap: Gap,
        spare: &mut Spare,
    ) -> Result<(), Miss> {
        let leaf = match spare.leaf {
            Some(leaf) => leaf,
            None => *spare.leaf.insert(self.radix.take_leaf().await?),
        };
        match gap {
            Gap::Free(place) => self.link_at(record, place, leaf, spare).await,
            Gap::Full(node) => {
                let place = self.grow(node, record.0).await?;
                self.link_at(record, place, leaf, spare).await
            }
            Gap::Above { place, other, reverse } => {
                let room = match spare.node {
                    Some(room) => room,
                    None => *spare.node.insert(self.radix.take_node_room().await?),
                };
                self.fabric().charge(Work::RestructureNode).await;
                let path = KeyPath::of(record.0, common_bytes(record.0, other));
                let header = NodeHeader { size: NodeSize::SMALLEST, path };
                let slots = vec![
                    place.slot.with_byte(path.next_byte(other)).to_bits(),
                    Slot::leaf(path.next_byte(record.0), leaf).to_bits(),
                    0,
                    0,
                ];
                let node = NodeCopy { at: room.at, reverse: place.at, header, slots };
                let first = slot_place(room.at, 0);
                let mut words: SmallVec<[u64; 8]> = node.words().collect();
                words.resize(words.len().max(room.used_words), 0);
                let new_leaf = LeafCopy::first(leaf, slot_place(room.at, 1), record);
                spare.node = Some(NodeRoom { used_words: words.len(), ..room });
                let parts = [(room.at, words), (leaf, SmallVec::from_slice(&new_leaf.words()))];
                self.write(&parts, spare).await?;
                let slot = Slot::node(place.slot.byte(), room.at, NodeSize::SMALLEST);
                self.swap(&place, slot, spare).await?;
                self.radix.post_hint(reverse, place.at.to_bits(), first.to_bits());
                self.cache(record.0).admit(&node);
                Ok(())
            }
        }
    }

    async fn link_at(
        &self,
        record: (u64, u64),
        place: Place,
        leaf: GlobalAddr,
        spare: &mut Spare,
    ) -> Result<(), Miss> {
        self.fabric().charge(Work::ChangeNode).await;
        let byte = place.of.map_or(0, |of| of.path.next_byte(record.0));
        let new_leaf = LeafCopy::first(leaf, place.at, record);
        let parts: [(_, SmallVec<[u64; 8]>); 1] = [(leaf, SmallVec::from_slice(&new_leaf.words()))];
        self.write(&parts, spare).await?;
        self.swap(&place, Slot::leaf(byte, leaf), spare).await
    }

    /// WRITEs what no slot leads to yet.
    async fn write(
        &self,
        parts: &[(GlobalAddr, SmallVec<[u64; 8]>)],
        spare: &mut Spare,
    ) -> Result<(), Miss> {
        let written = self.radix.write_unlinked(parts).await;
        if written.is_err() {
            // WRITEs to this memory may still land.
            *spare = Spare::default();
        }
        Ok(written?)
    }

    /// Makes a slot lead to a new leaf or node.
    async fn swap(&self, place: &Place, to: Slot, spare: &mut Spare) -> Result<(), Miss> {
        match self.radix.swap_slot(place.at, place.slot, to).await {
            Ok(Swapped::Done) => {
                if spare.node.is_some_and(|room| room.at == to.at()) {
                    spare.node = None;
                }
                spare.leaf = None;
                self.note(place, to);
                Ok(())
            }
            Ok(Swapped::Not) => {
                // Whatever is there now is not cached.
                self.forget(place);
                Err(Miss::Restart)
            }
            Ok(Swapped::Unknown) => {
                spare.in_doubt = true;
                Err(Miss::Restart)
            }
            Err(error) => {
                if let RemoteError::Indeterminate(_) = error {
                    *spare = Spare::default();
                }
                Err(error.into())
            }
        }
    }

    /// Makes room in a node of which all slots are in use: the first slot of the next size
    /// (smart.N5).
    async fn grow(&self, node: NodeCopy, key: u64) -> Result<Place, Miss> {
        let header = node.header;
        let size = header.size.grown().ok_or(Miss::Restart)?;
        let grown = NodeHeader { size, ..header };
        let place = node.at.plus(8);
        if self.radix.swap_word(place, header.to_bits(), grown.to_bits()).await? == Swapped::Not {
            return Err(Miss::Restart);
        }
        let number = header.size.slots();
        let mut slots = node.slots;
        slots.resize(size.slots(), 0);
        let node = NodeCopy { header: grown, slots, ..node };
        self.cache(key).admit(&node);
        let of = SlotOf { path: header.path, number };
        Ok(Place::free(slot_place(node.at, number), of, key))
    }

    /// Takes back what an operation has not linked (radix.M2).
    pub(super) fn give_back(&self, spare: Spare) {
        if spare.in_doubt {
            return;
        }
        spare.leaf.into_iter().for_each(|leaf| self.radix.give_back_leaf(leaf));
        spare.node.into_iter().for_each(|room| self.radix.give_back_node(room));
    }
}
