//! Descents: where a key's leaf is, or where it would be.
//!
//! A descent begins at the deepest cached node on the way. What a cached slot leads to is used if
//! it is for the key; otherwise the slot is read again (smart.N3).

use super::SmartIndex;
use super::cache::{DescentStart, SlotOf};
use super::radix::reverse_of_leaf;
use crate::entry_lock::{EntryHold, EntryLocks};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_page::rules;
use farleaf_page::{
    Layout, LeafCopy, NodeCopy, NodeSize, PathMatch, RadixChild, RadixSlot, SlotSearch,
    common_bytes,
};
use farleaf_pool::remote::MissCause;

/// Maximum number of steps of a descent, besides one for each byte of the key. A step is repeated
/// if other clients have added nodes meanwhile.
const MAX_STEPS: usize = 64;

/// A slot, and what it leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotPlace<'k> {
    /// Where the slot is.
    pub(super) at: GlobalAddr,
    pub(super) slot: RadixSlot,
    /// Which slot of a node it is; `None` for the root slot.
    pub(super) of: Option<SlotOf>,
    /// The key that the descent is for.
    key: &'k [u8],
    /// Whether this operation has read the slot.
    is_fresh: bool,
}

impl<'k> SlotPlace<'k> {
    /// A slot that was free when this operation read it.
    pub(super) fn free(at: GlobalAddr, of: SlotOf, key: &'k [u8]) -> Self {
        Self { at, slot: RadixSlot::FREE, of: Some(of), key, is_fresh: true }
    }

    /// The first slot of a node that this operation has put into the slot.
    pub(super) fn below(self, node: &NodeCopy) -> Self {
        let slot = RadixSlot::from_bits(node.slots[0]);
        let of = Some(SlotOf { depth: node.path.len(), number: 0 });
        Self { at: node.slot_place(0), slot, of, ..self }
    }

    /// Number of leading bytes that all keys below the slot share with the key.
    pub(super) fn known(&self) -> usize {
        self.of.map_or(0, |of| of.depth + 1)
    }

    /// The byte of the key that the slot is for.
    pub(super) fn byte(&self) -> u8 {
        self.of.and_then(|of| self.key.get(of.depth).copied()).unwrap_or(0)
    }
}

/// The result of a descent.
#[derive(Debug)]
pub(super) enum RadixDescent<'a, 'k> {
    /// The key's leaf, and the turn to change it (smart.O1), if it was asked for.
    Leaf(LeafCopy, Option<EntryHold<'a>>, SlotPlace<'k>),
    /// The key has no leaf.
    None(LeafGap<'k>),
}

/// Where a leaf would be.
#[derive(Debug)]
pub(super) enum LeafGap<'k> {
    /// In a free slot.
    Free(SlotPlace<'k>),
    /// In a node of which all slots are in use.
    Full(NodeCopy),
    /// Below a new node in this slot, which leads to something with other keys.
    Above {
        place: SlotPlace<'k>,
        /// How many bytes the key has in common with these.
        common: usize,
        /// Their next byte.
        byte: u8,
        /// The word of the slot's child with its reverse pointer.
        reverse: GlobalAddr,
    },
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    /// Looks for the leaf of `key`. Takes the turn to change it before it READs it, if the turn at
    /// leaves is among `turns`.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if a leaf stays torn or in the turn of others, or if the tree grows
    /// too fast.
    pub(super) async fn find<'a, 'k>(
        &'a self,
        key: &'k [u8],
        turns: Option<&'a Arc<EntryLocks>>,
    ) -> Result<RadixDescent<'a, 'k>, MissCause> {
        self.fabric().charge(Work::VisitNode).await;
        let mut place = match self.cache(key).start(key) {
            DescentStart::Slot(at, slot, of) => {
                SlotPlace { at, slot, of: Some(of), key, is_fresh: false }
            }
            DescentStart::Root(slot) => {
                SlotPlace { at: self.root, slot, of: None, key, is_fresh: false }
            }
            DescentStart::Node(at, size, depth) => {
                let node = self.radix.read_radix_node(at, size).await?;
                if node.header.depth != depth || node.header.compare(key) != PathMatch::Same {
                    return Err(MissCause::Restart);
                }
                match self.in_node(key, node).await? {
                    Ok(place) => place,
                    Err(gap) => return Ok(RadixDescent::None(gap)),
                }
            }
        };
        for _ in 0..MAX_STEPS + key.len() {
            match place.slot.child() {
                RadixChild::None if place.is_fresh => {
                    return Ok(RadixDescent::None(LeafGap::Free(place)));
                }
                RadixChild::None => place = self.read_again(place).await?,
                RadixChild::Leaf => {
                    let room = place.slot.leaf_room();
                    let hold = match turns {
                        Some(turns) => {
                            Some(self.radix.turns().hold_entries_by(turns, room.at).await?)
                        }
                        None => None,
                    };
                    let leaf = self.radix.leaves().read_leaf(room).await?;
                    let reverse = reverse_of_leaf(room.at);
                    self.check_reverse(&place, reverse, leaf.reverse);
                    if leaf.key[..] != *key {
                        // Its key is the same for ever, so it need not be read again (radix.B2).
                        let common = common_bytes(&leaf.key, key);
                        let byte = *leaf.key.get(common).ok_or(MissCause::Restart)?;
                        match self.above(place, (common, byte), reverse).await? {
                            Ok(gap) => return Ok(RadixDescent::None(gap)),
                            Err(again) => place = again,
                        }
                        continue;
                    }
                    match leaf.moved() {
                        None => return Ok(RadixDescent::Leaf(leaf, hold, place)),
                        Some(larger) => place = self.follow(place, larger)?,
                    }
                }
                RadixChild::Node(size) => {
                    let node = self.radix.read_radix_node(place.slot.at(), size).await?;
                    self.check_reverse(&place, node.at, node.reverse);
                    match node.header.compare(key) {
                        PathMatch::Same if node.header.depth >= place.known() => {}
                        PathMatch::Differs(common, byte) => {
                            match self.above(place, (common, byte), node.at).await? {
                                Ok(gap) => return Ok(RadixDescent::None(gap)),
                                Err(again) => place = again,
                            }
                            continue;
                        }
                        _ => return Err(MissCause::Restart),
                    }
                    if node.header.size > size {
                        let grown = place.slot.with_size(node.header.size);
                        if place.is_fresh {
                            self.radix.post_hint(place.at, place.slot.to_bits(), grown.to_bits());
                        }
                        // The node may not be cached, and then the next descent begins here, too.
                        self.note(&place, grown);
                    }
                    match self.in_node(key, node).await? {
                        Ok(next) => place = next,
                        Err(gap) => return Ok(RadixDescent::None(gap)),
                    }
                }
            }
        }
        Err(MissCause::Restart)
    }

    /// The gap above a slot's child that has other keys. READs the slot again first; returns the
    /// slot instead if its child has changed.
    async fn above<'k>(
        &self,
        place: SlotPlace<'k>,
        (common, byte): (usize, u8),
        reverse: GlobalAddr,
    ) -> Result<Result<LeafGap<'k>, SlotPlace<'k>>, MissCause> {
        let again = self.read_again(place).await?;
        Ok(match again.slot.at() == place.slot.at() {
            true if !(again.known()..again.key.len()).contains(&common) => {
                return Err(MissCause::Restart);
            }
            true => Ok(LeafGap::Above { place: again, common, byte, reverse }),
            false => Err(again),
        })
    }

    /// The place of the leaf that has replaced another one (radix.B4). Updates the slot if it still
    /// leads to the replaced leaf.
    pub(super) fn follow<'k>(
        &self,
        place: SlotPlace<'k>,
        larger: RadixSlot,
    ) -> Result<SlotPlace<'k>, MissCause> {
        if larger.child() != RadixChild::Leaf || larger.leaf_words() <= place.slot.leaf_words() {
            return Err(MissCause::Restart);
        }
        let larger = larger.with_byte(place.slot.byte());
        self.radix.post_hint(place.at, place.slot.to_bits(), larger.to_bits());
        self.note(&place, larger);
        Ok(SlotPlace { slot: larger, ..place })
    }

    /// The slot for `key` in a node that has just been read, or where it would be.
    async fn in_node<'k>(
        &self,
        key: &'k [u8],
        node: NodeCopy,
    ) -> Result<Result<SlotPlace<'k>, LeafGap<'k>>, MissCause> {
        let mut node = node;
        while node.slots.len() < node.header.size.slots() {
            // It has grown (smart.N5).
            node = self.radix.read_radix_node(node.at, node.header.size).await?;
        }
        let depth = node.header.depth;
        node.path = key[..depth].into();
        self.cache(key).admit(&node);
        Ok(match node.search(node.next_byte(key)) {
            SlotSearch::At(number, slot) => Ok(SlotPlace {
                at: node.slot_place(number),
                slot,
                of: Some(SlotOf { depth, number }),
                key,
                is_fresh: true,
            }),
            SlotSearch::Free(number) => {
                let is_next_free = node.slots.get(number + 1) == Some(&0);
                let skips = self.fabric().breaks(rules::FIRST_FREE_SLOT) && is_next_free;
                let number = number + usize::from(skips);
                let of = SlotOf { depth, number };
                Err(LeafGap::Free(SlotPlace::free(node.slot_place(number), of, key)))
            }
            SlotSearch::Full if node.header.size == NodeSize::LARGEST => {
                return Err(MissCause::Restart);
            }
            SlotSearch::Full => Err(LeafGap::Full(node)),
        })
    }

    /// READs a slot, unless this operation has read it.
    async fn read_again<'k>(&self, place: SlotPlace<'k>) -> Result<SlotPlace<'k>, MissCause> {
        if place.is_fresh || self.fabric().breaks(rules::ABSENCE_READ) {
            return Ok(SlotPlace { is_fresh: true, ..place });
        }
        let slot = self.radix.read_slot(place.at).await?;
        self.note(&place, slot);
        Ok(SlotPlace { slot, is_fresh: true, ..place })
    }

    /// Keeps in the cache what a slot is now.
    pub(super) fn note(&self, place: &SlotPlace<'_>, slot: RadixSlot) {
        match place.of {
            Some(of) => self.cache(place.key).patch(&place.key[..of.depth], of.number, slot),
            None => self.cache(place.key).note_root(slot),
        }
    }

    /// Drops the cached copy of the node that has a slot.
    pub(super) fn forget(&self, place: &SlotPlace<'_>) {
        match place.of {
            Some(of) => self.cache(place.key).forget(&place.key[..of.depth]),
            None => self.cache(place.key).note_root(RadixSlot::FREE),
        }
    }

    /// Compares a child's reverse pointer with the slot that the descent followed (smart.N6).
    /// Forgets a cached slot that is out of date, and corrects a reverse pointer that is.
    fn check_reverse(&self, place: &SlotPlace<'_>, word: GlobalAddr, says: GlobalAddr) {
        match (says == place.at, place.is_fresh) {
            (true, _) => {}
            (false, true) => self.radix.post_hint(word, says.to_bits(), place.at.to_bits()),
            (false, false) => self.forget(place),
        }
    }
}
