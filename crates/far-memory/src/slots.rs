//! The places of the buffer, and the order in which their pages leave.
//!
//! *Invariants*
//! - far.S1. Every slot is free or belongs to one page.
//! - far.S2. The order is a list of slots that belong to pages; a slot is in it at most once.
//!
//! *Thread safety*: one thread.

/// No slot, and no page.
pub(crate) const NONE: u32 = u32::MAX;

/// The slots of a buffer.
#[derive(Debug)]
pub(crate) struct BufferSlots {
    slots: Vec<BufferSlot>,
    free: Vec<u32>,
    head: u32,
    tail: u32,
    linked: u32,
}

#[derive(Clone, Copy, Debug)]
struct BufferSlot {
    page: u32,
    next: u32,
    before: u32,
    is_linked: bool,
}

impl BufferSlots {
    /// `count` free slots.
    pub(crate) fn new(count: u32) -> Self {
        let vacant = BufferSlot { page: NONE, next: NONE, before: NONE, is_linked: false };
        Self {
            slots: vec![vacant; count as usize],
            free: (0..count).rev().collect(),
            head: NONE,
            tail: NONE,
            linked: 0,
        }
    }

    /// Number of free slots.
    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Number of slots.
    pub(crate) fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Number of slots in the order.
    pub(crate) fn linked(&self) -> u32 {
        self.linked
    }

    /// Gives a slot to `page`, outside the order. `None` if all are taken.
    pub(crate) fn take(&mut self, page: u32) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize].page = page;
        Some(slot)
    }

    /// Frees a slot, which leaves the order.
    pub(crate) fn release(&mut self, slot: u32) {
        self.unlink(slot);
        let owner = std::mem::replace(&mut self.slots[slot as usize].page, NONE);
        assert_ne!(owner, NONE, "a free slot is not released (far.S1)");
        self.free.push(slot);
    }

    /// The page that owns `slot`.
    pub(crate) fn page(&self, slot: u32) -> u32 {
        self.slots[slot as usize].page
    }

    /// The first slot of the order.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Moves `slot` to the end of the order, into which it comes if it was not there.
    pub(crate) fn link_last(&mut self, slot: u32) {
        self.unlink(slot);
        let before = std::mem::replace(&mut self.tail, slot);
        match before {
            NONE => self.head = slot,
            before => self.slots[before as usize].next = slot,
        }
        let entry = &mut self.slots[slot as usize];
        (entry.before, entry.next, entry.is_linked) = (before, NONE, true);
        self.linked += 1;
    }

    /// Takes `slot` out of the order, if it is there.
    pub(crate) fn unlink(&mut self, slot: u32) {
        let BufferSlot { next, before, is_linked, .. } = self.slots[slot as usize];
        if !is_linked {
            return;
        }
        match before {
            NONE => self.head = next,
            before => self.slots[before as usize].next = next,
        }
        match next {
            NONE => self.tail = before,
            next => self.slots[next as usize].before = before,
        }
        self.slots[slot as usize].is_linked = false;
        self.linked -= 1;
    }

    /// The pages of the order, first to last.
    #[cfg(test)]
    pub(crate) fn order(&self) -> Vec<u32> {
        let mut pages = Vec::new();
        let mut slot = self.head;
        while slot != NONE {
            pages.push(self.page(slot));
            slot = self.slots[slot as usize].next;
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_out_once_and_keep_their_order() {
        let mut slots = BufferSlots::new(3);
        let taken: Vec<u32> = (10..13).map(|page| slots.take(page).unwrap()).collect();
        assert_eq!(slots.take(13), None);
        taken.iter().for_each(|slot| slots.link_last(*slot));
        assert_eq!(slots.order(), [10, 11, 12]);
        slots.link_last(taken[0]);
        assert_eq!(slots.order(), [11, 12, 10]);
        slots.unlink(taken[2]);
        slots.unlink(taken[2]);
        assert_eq!((slots.order(), slots.linked()), (vec![11, 10], 2));
        slots.release(taken[1]);
        assert_eq!((slots.order(), slots.free()), (vec![10], 1));
        assert_eq!(slots.first(), Some(taken[0]));
        slots.release(taken[0]);
        slots.release(taken[2]);
        assert_eq!((slots.first(), slots.free(), slots.linked()), (None, 3, 0));
    }
}
