//! The page table: the state of each page, and the decisions that follow from it. It does no I/O
//! and knows no addresses; the pager carries out what it decides.
//!
//! ```text
//!            touch                 filled                touch to write
//!   Remote ────────▶ Filling ────────────────▶ Clean ────────────────────▶ Dirty
//!     ▲ ▲               │ failed: Remote         │ │ ▲                       │ ▲
//!     │ │               │ gone: Lost             │ │ │ touch to read         │ │ kept: touched to
//!     │ └───────────────┼── evict, with a copy ──┘ │ │ Empty                 │ │ write, or WRITE
//!     │                 │                          │ │                 evict │ │ failed
//!     │                 │        evict, without: Empty                       ▼ │
//!     └─────────────────┼─────────────── left ─────────────────────────── Leaving
//!                       └ forgotten: Empty                    forgotten: Empty
//! ```
//!
//! An Empty page that is touched to write becomes Dirty at once.
//!
//! *Invariants*
//! - far.P1. A page has a slot of the buffer if and only if it is Filling, Clean, Dirty or Leaving.
//!   So the pages in local memory are never more than the slots.
//! - far.P2. The order of eviction has exactly the Clean and Dirty pages that are neither held nor
//!   awaited. A page is awaited from when its operation ends until the touches that waited for it
//!   have ended, so that it does not leave before it was used.
//! - far.P3. The remote copy of a page is its content if the page is Remote, or Clean with a copy.
//!   Nothing reads the remote copy in any other state but Filling.
//! - far.P4. A page that is Filling or Leaving changes its state only when its operation has ended,
//!   because the operation owns the memory.
//! - far.P5. A page that was discarded is Empty, or becomes Empty when its operation ends. No WRITE
//!   of it begins, except one that was queued before.
//!
//! *Thread safety*: one thread, the pager's. No other thread sees a state, so there is nothing for
//! a model checker of threads to try.

use crate::config::Policy;
use crate::slots::{BufferSlots, NONE};

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageState {
    /// All zeros, nowhere stored.
    Empty,
    /// On a memory server only.
    Remote,
    /// Being read from its memory server.
    Filling,
    /// In local memory and unchanged.
    Clean,
    /// In local memory and changed.
    Dirty,
    /// Being written to its memory server; it can still be read.
    Leaving,
    /// Lost with its memory server.
    Lost,
}

/// A kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessKind {
    /// Only reads.
    Read,
    /// Reads and writes.
    Write,
}

/// What an access to a page requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Allow this access: the content is in place.
    Allow(AccessKind),
    /// Fill the page with zeros, and allow this access.
    Zero(AccessKind),
    /// Read the content, then touch again.
    Fill,
    /// Wait until the page's operation has ended, then touch again.
    Wait,
    /// Wait until a slot is free, then touch again.
    NoRoom,
    /// The content is lost.
    Lost,
}

/// What the eviction of a page requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// The page has left: remove its content.
    Drop(u32),
    /// The page is leaving: protect it against writes, and write it back.
    Write(u32),
    /// The page stays, for now: let its next access fault.
    Hide(u32),
}

/// How the READ of a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Read,
    Failed,
    Gone,
}

/// What a discard requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discard {
    /// The page is Empty, and was not in local memory.
    Done,
    /// The page is Empty: remove its content.
    Remove {
        /// Whether that saves a WRITE.
        was_dirty: bool,
    },
    /// Wait until the page's operation has ended.
    Wait,
    /// The page is held.
    Held,
}

/// The remote copy is the content of this Clean page; without it the content is zeros.
const HAS_COPY: u8 = 1;
/// Keep the page when its WRITE has ended.
const KEEP: u8 = 2;
/// Forget the page when its operation has ended.
const FORGET: u8 = 4;
/// Used since it came, or since it was passed over.
const USED: u8 = 8;
/// Passed over by `Policy::Clock`.
const PASSED_OVER: u8 = 16;
/// Read ahead of its first touch.
const AHEAD: u8 = 32;
/// Touches that waited for it have not ended.
const AWAITED: u8 = 64;

#[derive(Clone, Copy, Debug)]
struct PageEntry {
    slot: u32,
    holds: u16,
    state: PageState,
    flags: u8,
}

const _: () = assert!(size_of::<PageEntry>() == 8);

/// Used pages that one search for a victim passes over at most.
const MAX_PASSED_OVER: u32 = 64;
/// Most holds of one page.
const MAX_HOLDS: u16 = u16::MAX;

/// The states of all pages.
#[derive(Debug)]
pub(crate) struct PageTable {
    pages: Vec<PageEntry>,
    slots: BufferSlots,
    policy: Policy,
    filling: u32,
    leaving: u32,
    held: u32,
    awaited: u32,
    peak: u32,
}

impl PageTable {
    /// `pages` Empty pages and a buffer of `slots` slots.
    pub(crate) fn new(pages: u32, slots: u32, policy: Policy) -> Self {
        let empty = PageEntry { slot: NONE, holds: 0, state: PageState::Empty, flags: 0 };
        Self {
            pages: vec![empty; pages as usize],
            slots: BufferSlots::new(slots),
            policy,
            filling: 0,
            leaving: 0,
            held: 0,
            awaited: 0,
            peak: 0,
        }
    }

    /// Free slots.
    pub(crate) fn free(&self) -> u32 {
        self.slots.free()
    }

    /// Pages in local memory (P1).
    pub(crate) fn resident(&self) -> u32 {
        self.slots.count() - self.slots.free()
    }

    /// The most pages that were in local memory at the same time.
    pub(crate) fn peak(&self) -> u32 {
        self.peak
    }

    /// Pages that are being written back.
    pub(crate) fn leaving(&self) -> u32 {
        self.leaving
    }

    /// Pages that are being read.
    pub(crate) fn filling(&self) -> u32 {
        self.filling
    }

    /// Pages that are held.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Pages that touches have waited for and not used yet.
    pub(crate) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// The state of `page`.
    pub(crate) fn state(&self, page: u32) -> PageState {
        self.pages[page as usize].state
    }

    /// Decides about an access. It takes a slot only if `may_take_slot`.
    pub(crate) fn touch(&mut self, page: u32, access: AccessKind, may_take_slot: bool) -> Touch {
        let entry = &mut self.pages[page as usize];
        match entry.state {
            PageState::Empty | PageState::Remote if !may_take_slot || self.slots.free() == 0 => {
                Touch::NoRoom
            }
            PageState::Empty => {
                self.take_slot(page);
                let entry = &mut self.pages[page as usize];
                entry.flags = USED;
                entry.state = match access {
                    AccessKind::Read => PageState::Clean,
                    AccessKind::Write => PageState::Dirty,
                };
                self.link(page);
                Touch::Zero(access)
            }
            PageState::Remote => {
                self.take_slot(page);
                let entry = &mut self.pages[page as usize];
                (entry.state, entry.flags) = (PageState::Filling, 0);
                self.filling += 1;
                Touch::Fill
            }
            PageState::Filling => Touch::Wait,
            PageState::Clean if access == AccessKind::Read => {
                entry.flags = (entry.flags | USED) & !PASSED_OVER;
                Touch::Allow(AccessKind::Read)
            }
            PageState::Clean | PageState::Dirty => {
                entry.flags = USED | (entry.flags & AWAITED);
                entry.state = PageState::Dirty;
                Touch::Allow(AccessKind::Write)
            }
            PageState::Leaving if access == AccessKind::Read => Touch::Allow(AccessKind::Read),
            PageState::Leaving => self.keep(page),
            PageState::Lost => Touch::Lost,
        }
    }

    /// Marks a Filling page as read ahead of its touch.
    pub(crate) fn mark_ahead(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        assert_eq!(entry.state, PageState::Filling, "a page is marked when its READ begins");
        entry.flags |= AHEAD;
    }

    /// Whether `page` was read ahead and has not been touched since; that ends with this call.
    pub(crate) fn take_ahead(&mut self, page: u32) -> bool {
        let entry = &mut self.pages[page as usize];
        let was_ahead = entry.flags & AHEAD != 0;
        entry.flags &= !AHEAD;
        was_ahead
    }

    /// Lets a page that is being written back stay afterwards.
    pub(crate) fn keep(&mut self, page: u32) -> Touch {
        let entry = &mut self.pages[page as usize];
        assert_eq!(entry.state, PageState::Leaving, "only a leaving page is kept");
        entry.flags |= KEEP;
        Touch::Wait
    }

    /// Notes how the READ of a Filling page ended. Returns whether its content is in place;
    /// otherwise the slot is free. `is_awaited` lets it stay until [`PageTable::end_wait`].
    pub(crate) fn filled(&mut self, page: u32, fill: Fill, is_awaited: bool) -> bool {
        let entry = &mut self.pages[page as usize];
        assert_eq!(entry.state, PageState::Filling, "a READ ends once (far.P4)");
        self.filling -= 1;
        entry.state = match fill {
            _ if entry.flags & FORGET != 0 => PageState::Empty,
            Fill::Read => PageState::Clean,
            Fill::Failed => PageState::Remote,
            Fill::Gone => PageState::Lost,
        };
        if entry.state == PageState::Clean {
            entry.flags = HAS_COPY | (entry.flags & AHEAD);
            self.link_or_await(page, is_awaited);
            return true;
        }
        self.release(page);
        false
    }

    /// Notes how the WRITE of a Leaving page ended. Returns whether the page stays; otherwise the
    /// slot is free. `is_awaited` lets it stay until [`PageTable::end_wait`].
    pub(crate) fn left(&mut self, page: u32, is_written: bool, is_awaited: bool) -> bool {
        let entry = &mut self.pages[page as usize];
        assert_eq!(entry.state, PageState::Leaving, "a WRITE ends once (far.P4)");
        self.leaving -= 1;
        let (forgets, keeps) = (entry.flags & FORGET != 0, entry.flags & KEEP != 0);
        if !forgets && (keeps || !is_written) {
            // The remote copy may be the content by now, but a write is expected.
            (entry.state, entry.flags) = (PageState::Dirty, USED);
            self.link_or_await(page, is_awaited);
            return true;
        }
        entry.state = if forgets { PageState::Empty } else { PageState::Remote };
        self.release(page);
        false
    }

    /// Lets a page leave again, as far as touches that waited for it are concerned.
    pub(crate) fn end_wait(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        if entry.flags & AWAITED != 0 {
            entry.flags &= !AWAITED;
            self.awaited -= 1;
            self.link(page);
        }
    }

    fn link_or_await(&mut self, page: u32, is_awaited: bool) {
        if is_awaited {
            self.pages[page as usize].flags |= AWAITED;
            self.awaited += 1;
        }
        self.link(page);
    }

    /// Chooses up to `most` pages to leave, and adds what that requires to `victims`. Changed pages
    /// for which `spare` holds stay.
    pub(crate) fn evict(
        &mut self,
        most: u32,
        spare: impl Fn(u32) -> bool,
        victims: &mut Vec<Victim>,
    ) {
        let (mut found, mut passed_over) = (0, 0);
        let mut left = self.slots.linked() + MAX_PASSED_OVER;
        while found < most
            && left > 0
            && let Some(slot) = self.slots.first()
        {
            left -= 1;
            let page = self.slots.page(slot);
            let entry = &mut self.pages[page as usize];
            if entry.state == PageState::Dirty && spare(page) {
                self.slots.link_last(slot);
                continue;
            }
            if self.policy == Policy::Clock
                && entry.flags & USED != 0
                && passed_over < MAX_PASSED_OVER
            {
                passed_over += 1;
                entry.flags = (entry.flags & !USED) | PASSED_OVER;
                self.slots.link_last(slot);
                victims.push(Victim::Hide(page));
                continue;
            }
            found += 1;
            victims.push(self.expel(page));
        }
    }

    /// Lets `page` leave now, whatever the order. `None` if it is not in local memory, held, or
    /// already leaving.
    pub(crate) fn evict_page(&mut self, page: u32) -> Option<Victim> {
        let entry = &self.pages[page as usize];
        let is_wanted = entry.holds > 0 || entry.flags & AWAITED != 0;
        let can_leave = matches!(entry.state, PageState::Clean | PageState::Dirty) && !is_wanted;
        can_leave.then(|| self.expel(page))
    }

    fn expel(&mut self, page: u32) -> Victim {
        let entry = &mut self.pages[page as usize];
        if entry.state == PageState::Dirty {
            (entry.state, entry.flags) = (PageState::Leaving, 0);
            self.slots.unlink(entry.slot);
            self.leaving += 1;
            return Victim::Write(page);
        }
        entry.state =
            if entry.flags & HAS_COPY != 0 { PageState::Remote } else { PageState::Empty };
        self.release(page);
        Victim::Drop(page)
    }

    /// Forgets the content of `page`, which becomes zeros.
    pub(crate) fn discard(&mut self, page: u32) -> Discard {
        let entry = &mut self.pages[page as usize];
        match entry.state {
            _ if entry.holds > 0 => Discard::Held,
            PageState::Empty | PageState::Remote | PageState::Lost => {
                entry.state = PageState::Empty;
                Discard::Done
            }
            PageState::Filling | PageState::Leaving => {
                entry.flags |= FORGET;
                Discard::Wait
            }
            PageState::Clean | PageState::Dirty => {
                let was_dirty = entry.state == PageState::Dirty;
                entry.state = PageState::Empty;
                self.release(page);
                Discard::Remove { was_dirty }
            }
        }
    }

    /// Holds a Clean or Dirty page in the buffer. Returns whether that was possible: a page has at
    /// most 65,535 holds.
    pub(crate) fn hold(&mut self, page: u32) -> bool {
        let entry = &mut self.pages[page as usize];
        assert!(
            matches!(entry.state, PageState::Clean | PageState::Dirty),
            "a held page is in place"
        );
        if entry.holds == MAX_HOLDS {
            return false;
        }
        entry.holds += 1;
        if entry.holds == 1 {
            self.slots.unlink(entry.slot);
            self.held += 1;
        }
        true
    }

    /// Ends one hold of `page`.
    pub(crate) fn release_hold(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        assert!(entry.holds > 0, "a hold ends once");
        entry.holds -= 1;
        if entry.holds == 0 {
            self.held -= 1;
            self.link(page);
        }
    }

    fn take_slot(&mut self, page: u32) {
        let slot = self.slots.take(page).expect("a slot is free");
        self.pages[page as usize].slot = slot;
        self.peak = self.peak.max(self.resident());
        assert!(self.resident() <= self.slots.count(), "the buffer is never exceeded (far.P1)");
    }

    /// Puts a page at the end of the order, unless it is held or awaited.
    fn link(&mut self, page: u32) {
        let entry = &self.pages[page as usize];
        if entry.holds == 0 && entry.flags & AWAITED == 0 {
            self.slots.link_last(entry.slot);
        }
    }

    fn release(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        self.awaited -= u32::from(entry.flags & AWAITED != 0);
        entry.flags = 0;
        let slot = std::mem::replace(&mut entry.slot, NONE);
        self.slots.release(slot);
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn check(&self) {
        let (mut resident, mut linked, mut filling, mut leaving) = (0, 0, 0, 0);
        let (mut held, mut awaited) = (0, 0);
        for (number, page) in (0..).zip(&self.pages) {
            let has_slot = matches!(
                page.state,
                PageState::Filling | PageState::Clean | PageState::Dirty | PageState::Leaving
            );
            assert_eq!(page.slot != NONE, has_slot, "far.P1: page {number} is {page:?}");
            if has_slot {
                assert_eq!(self.slots.page(page.slot), number, "far.S1");
            }
            let in_place = matches!(page.state, PageState::Clean | PageState::Dirty);
            assert!(page.holds == 0 || in_place, "page {number} is held and {:?}", page.state);
            resident += u32::from(has_slot);
            let is_awaited = page.flags & AWAITED != 0;
            assert!(!is_awaited || in_place, "page {number} is awaited and {:?}", page.state);
            linked += u32::from(in_place && page.holds == 0 && !is_awaited);
            awaited += u32::from(is_awaited);
            filling += u32::from(page.state == PageState::Filling);
            leaving += u32::from(page.state == PageState::Leaving);
            held += u32::from(page.holds > 0);
        }
        assert_eq!(resident, self.resident(), "far.P1");
        assert_eq!(linked, self.slots.linked(), "far.P2");
        assert_eq!((filling, leaving, held), (self.filling, self.leaving, self.held));
        assert_eq!(awaited, self.awaited, "far.P2");
        assert!(self.peak <= self.slots.count(), "far.P1");
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
