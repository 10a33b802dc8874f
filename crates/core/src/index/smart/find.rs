//! Descents: where a key's leaf is, or where it would be.
//!
//! A descent begins at the deepest cached node on the way. What a cached slot leads to is used if
//! it is for the key; otherwise the slot is read again (smart.N3).

use super::SmartIndex;
use super::cache::{SlotOf, Start};
use crate::page::{
    Child, Layout, LeafCopy, NodeCopy, NodeSize, Search, Slot, common_bytes, slot_place,
};
use crate::remote::{Miss, reverse_of_leaf};
use crate::rules;
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
    /// Whether this operation has read the slot.
    is_fresh: bool,
}

impl Place {
    /// A slot that was free when this operation read it.
    pub(super) fn free(at: GlobalAddr, of: SlotOf) -> Self {
        Self { at, slot: Slot::FREE, of: Some(of), is_fresh: true }
    }
}

/// The result of a descent.
#[derive(Debug)]
pub(super) enum Found {
    /// The key's leaf.
    Leaf(LeafCopy),
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
        /// The number of bytes that the key has in common with these.
        common: usize,
        /// The lowest of these keys.
        other: u64,
        /// The word of the slot's child that says where its slot is.
        reverse: GlobalAddr,
    },
}

impl<F: Fabric, L: Layout> SmartIndex<F, L> {
    /// Looks for the leaf of `key`.
    ///
    /// # Errors
    /// [`Miss::Restart`] if a leaf stays torn, or if the tree grows too fast.
    pub(super) async fn find(&self, key: u64) -> Result<Found, Miss> {
        self.fabric().charge(Work::VisitNode).await;
        let mut place = match self.cache.start(key) {
            Start::Slot(at, slot, of) => Place { at, slot, of: Some(of), is_fresh: false },
            Start::Root(slot) => Place { at: self.root, slot, of: None, is_fresh: false },
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
                    let leaf = self.radix.read_leaf(place.slot.at()).await?;
                    let reverse = reverse_of_leaf(leaf.at);
                    self.check_reverse(&place, reverse, leaf.reverse);
                    if leaf.key == key {
                        return Ok(Found::Leaf(leaf));
                    }
                    // Its key is the same for ever, so it need not be read again (radix.B2).
                    let again = self.read_again(place).await?;
                    if again.slot.at() == place.slot.at() {
                        let (common, other) = (common_bytes(key, leaf.key), leaf.key);
                        let place = again;
                        return Ok(Found::None(Gap::Above { place, common, other, reverse }));
                    }
                    place = again;
                }
                Child::Node(size) => {
                    let node = self.radix.read_radix_node(place.slot.at(), size).await?;
                    self.check_reverse(&place, node.at, node.reverse);
                    let path = node.header.path;
                    if !path.is_of(key) {
                        let again = self.read_again(place).await?;
                        if again.slot.at() == place.slot.at() {
                            let (other, reverse) = (path.low(), node.at);
                            let (place, common) = (again, common_bytes(key, other));
                            return Ok(Found::None(Gap::Above { place, common, other, reverse }));
                        }
                        place = again;
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

    /// The slot for `key` in a node that has just been read, or where it would be.
    async fn in_node(&self, key: u64, node: NodeCopy) -> Result<Result<Place, Gap>, Miss> {
        let mut node = node;
        while node.slots.len() < node.header.size.slots() {
            // It has grown (smart.N5).
            node = self.radix.read_radix_node(node.at, node.header.size).await?;
        }
        self.cache.admit(&node);
        let path = node.header.path;
        Ok(match node.search(path.next_byte(key)) {
            Search::At(number, slot) => Ok(Place {
                at: slot_place(node.at, number),
                slot,
                of: Some(SlotOf { path, number }),
                is_fresh: true,
            }),
            Search::Free(number) => {
                let is_next_free = node.slots.get(number + 1) == Some(&0);
                let skips = self.fabric().breaks(rules::FIRST_FREE_SLOT) && is_next_free;
                let number = number + usize::from(skips);
                let of = SlotOf { path, number };
                Err(Gap::Free(Place::free(slot_place(node.at, number), of)))
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
            Some(of) => self.cache.patch(of, slot),
            None => self.cache.note_root(slot),
        }
    }

    /// Drops the cached copy of the node that has a slot.
    pub(super) fn forget(&self, place: &Place) {
        match place.of {
            Some(of) => self.cache.forget(of.path),
            None => self.cache.note_root(Slot::FREE),
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
