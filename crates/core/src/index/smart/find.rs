//! Descents: where a key's leaf is, or where it would be.
//!
//! A descent begins at the deepest cached node on the way. What a cached slot leads to is used if
//! it is for the key; otherwise the slot is read again (smart.N3).

use super::SmartIndex;
use super::cache::{SlotOf, Start};
use crate::page::{Child, Layout, LeafCopy, NodeCopy, NodeSize, Search, Slot, slot_place};
use crate::remote::{EntryHold, EntryLocks, Miss, reverse_of_leaf};
use crate::rules;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr, Work};

/// Most steps of a descent. A key has eight levels, and each step may have to be repeated because
/// of what other clients add meanwhile.
const MAX_STEPS: usize = 64;

/// A slot, and what it leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Where the slot is.
    pub(super) at: GlobalAddr,
    pub(super) slot: Slot,
    /// Which slot of a node it is; `None` for the root slot.
    pub(super) of: Option<SlotOf>,
    /// The key that the descent is for.
    key: u64,
    /// Whether this operation has read the slot.
    is_fresh: bool,
}

impl Place {
    /// A slot that was free when this operation read it.
    pub(super) fn free(at: GlobalAddr, of: SlotOf, key: u64) -> Self {
        Self { at, slot: Slot::FREE, of: Some(of), key, is_fresh: true }
    }
}

/// The result of a descent.
#[derive(Debug)]
pub(super) enum Found<'a> {
    /// The key's leaf, and the turn to change it (smart.O1), if it was asked for.
    Leaf(LeafCopy, Option<EntryHold<'a>>),
    /// The key has no leaf.
    None(Gap),
}

/// Where a leaf would be.
#[derive(Debug)]
pub(super) enum Gap {
    /// In a free slot.
    Free(Place),
    /// In a node of which all slots are in use.
    Full(NodeCopy),
    /// Below a new node in this slot, which leads to something with other keys.
    Above {
        place: Place,
        /// The lowest of these keys.
        other: u64,
        /// The word of the slot's child that says where its slot is.
        reverse: GlobalAddr,
    },
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    /// Looks for the leaf of `key`. Takes the turn to change it before it READs it, if the turn at
    /// leaves is among `turns`.
    ///
    /// # Errors
    /// [`Miss::Restart`] if a leaf stays torn or in the turn of others, or if the tree grows too
    /// fast.
    pub(super) async fn find<'a>(
        &'a self,
        key: u64,
        turns: Option<&'a Arc<EntryLocks>>,
    ) -> Result<Found<'a>, Miss> {
        self.fabric().charge(Work::VisitNode).await;
        let mut place = match self.cache(key).start(key) {
            Start::Slot(at, slot, of) => Place { at, slot, of: Some(of), key, is_fresh: false },
            Start::Root(slot) => Place { at: self.root, slot, of: None, key, is_fresh: false },
            Start::Node(at, size) => {
                let node = self.radix.read_radix_node(at, size).await?;
                match self.in_node(key, node).await? {
                    Ok(place) => place,
                    Err(gap) => return Ok(Found::None(gap)),
                }
            }
        };
        for _ in 0..MAX_STEPS {
            match place.slot.child() {
                Child::None if place.is_fresh => return Ok(Found::None(Gap::Free(place))),
                Child::None => place = self.read_again(place).await?,
                Child::Leaf => {
                    let at = place.slot.at();
                    let hold = match turns {
                        Some(turns) => Some(self.radix.hold_entries_by(turns, at).await?),
                        None => None,
                    };
                    let leaf = self.radix.read_leaf(at).await?;
                    let reverse = reverse_of_leaf(leaf.at);
                    self.check_reverse(&place, reverse, leaf.reverse);
                    if leaf.key == key {
                        return Ok(Found::Leaf(leaf, hold));
                    }
                    // Its key is the same for ever, so it need not be read again (radix.B2).
                    match self.above(place, leaf.key, reverse).await? {
                        Ok(gap) => return Ok(Found::None(gap)),
                        Err(again) => place = again,
                    }
                }
                Child::Node(size) => {
                    let node = self.radix.read_radix_node(place.slot.at(), size).await?;
                    self.check_reverse(&place, node.at, node.reverse);
                    let path = node.header.path;
                    if !path.is_of(key) {
                        match self.above(place, path.low(), node.at).await? {
                            Ok(gap) => return Ok(Found::None(gap)),
                            Err(again) => place = again,
                        }
                        continue;
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
                        Err(gap) => return Ok(Found::None(gap)),
                    }
                }
            }
        }
        Err(Miss::Restart)
    }

    /// The gap above the child of a slot, which has other keys; the slot as it is now, if that has
    /// another child.
    async fn above(
        &self,
        place: Place,
        other: u64,
        reverse: GlobalAddr,
    ) -> Result<Result<Gap, Place>, Miss> {
        let again = self.read_again(place).await?;
        Ok(match again.slot.at() == place.slot.at() {
            true => Ok(Gap::Above { place: again, other, reverse }),
            false => Err(again),
        })
    }

    /// The slot for `key` in a node that has just been read, or where it would be.
    async fn in_node(&self, key: u64, node: NodeCopy) -> Result<Result<Place, Gap>, Miss> {
        let mut node = node;
        while node.slots.len() < node.header.size.slots() {
            // It has grown (smart.N5).
            node = self.radix.read_radix_node(node.at, node.header.size).await?;
        }
        self.cache(key).admit(&node);
        let path = node.header.path;
        Ok(match node.search(path.next_byte(key)) {
            Search::At(number, slot) => Ok(Place {
                at: slot_place(node.at, number),
                slot,
                of: Some(SlotOf { path, number }),
                key,
                is_fresh: true,
            }),
            Search::Free(number) => {
                let is_next_free = node.slots.get(number + 1) == Some(&0);
                let skips = self.fabric().breaks(rules::FIRST_FREE_SLOT) && is_next_free;
                let number = number + usize::from(skips);
                let of = SlotOf { path, number };
                Err(Gap::Free(Place::free(slot_place(node.at, number), of, key)))
            }
            Search::Full if node.header.size == NodeSize::LARGEST => return Err(Miss::Restart),
            Search::Full => Err(Gap::Full(node)),
        })
    }

    /// READs a slot, unless this operation has read it.
    async fn read_again(&self, place: Place) -> Result<Place, Miss> {
        if place.is_fresh || self.fabric().breaks(rules::ABSENCE_READ) {
            return Ok(Place { is_fresh: true, ..place });
        }
        let slot = self.radix.read_slot(place.at).await?;
        self.note(&place, slot);
        Ok(Place { slot, is_fresh: true, ..place })
    }

    /// Keeps in the cache what a slot is now.
    pub(super) fn note(&self, place: &Place, slot: Slot) {
        match place.of {
            Some(of) => self.cache(place.key).patch(of, slot),
            None => self.cache(place.key).note_root(slot),
        }
    }

    /// Drops the cached copy of the node that has a slot.
    pub(super) fn forget(&self, place: &Place) {
        match place.of {
            Some(of) => self.cache(place.key).forget(of.path),
            None => self.cache(place.key).note_root(Slot::FREE),
        }
    }

    /// Compares a child's reverse pointer with the slot that the descent followed (smart.N6).
    /// Forgets a cached slot that is out of date, and corrects a reverse pointer that is.
    fn check_reverse(&self, place: &Place, word: GlobalAddr, says: GlobalAddr) {
        match (says == place.at, place.is_fresh) {
            (true, _) => {}
            (false, true) => self.radix.post_hint(word, says.to_bits(), place.at.to_bits()),
            (false, false) => self.forget(place),
        }
    }
}
