//! Walks to the right along the leaves, with READs ahead of the walk.
//!
//! A leaf that was read ahead becomes the next one if the walk would have reached it: either the
//! previous leaf points to it, or a fresh pointer of a parent does and it begins where the previous
//! leaf ends. (A head's list may be older than any grace period, so its leaves need the former.)
//! The leaf may have been read before the previous one. Scans permit that: they promise no
//! snapshot, only each leaf at some moment of the scan.
//!
//! *Thread safety*: private to one task.

use super::{MissCause, PageClient, PageCopy, PendingRead, TimedPointer};
use farleaf_fabric::{Fabric, GlobalAddr, Work};
use farleaf_page::rules;
use farleaf_page::{Layout, OwnedKey, Page};
use std::collections::VecDeque;

/// Maximum number of heads, and of siblings missing in their parents, between two leaves of a walk.
const MAX_STEPS: usize = 64;

/// A walk, and the leaves in flight for it.
pub struct LeafStream<'a, F: Fabric, L: Layout> {
    pages: &'a PageClient<F, L>,
    ahead: VecDeque<Ahead<F, L>>,
    /// Maximum number of leaves from a head's list that are in flight.
    window: usize,
}

enum LeafReadState<F: Fabric, L> {
    Pending(PendingRead<F>),
    Read(PageCopy<L>),
}

struct Ahead<F: Fabric, L> {
    at: GlobalAddr,
    state: LeafReadState<F, L>,
    /// Whether the pointer came from a parent's fresh copy, not from a head.
    fresh: bool,
}

impl<'a, F: Fabric, L: Layout> LeafStream<'a, F, L> {
    /// Creates a walk with nothing in flight.
    pub fn new(pages: &'a PageClient<F, L>) -> Self {
        Self { pages, ahead: VecDeque::new(), window: 0 }
    }

    /// Sets the maximum number of leaves in flight because of a head's list.
    pub fn set_window(&mut self, leaves: usize) {
        self.window = leaves;
    }

    /// Posts the READ of a leaf that comes after those posted so far. `fresh` if the pointer is
    /// from a parent's copy. Best effort: without a free buffer, the walk reads the leaf when it
    /// gets there.
    pub fn read_ahead(&mut self, pointer: TimedPointer, fresh: bool) {
        if let Ok(read) = self.pages.post_read(pointer) {
            self.ahead.push_back(Ahead {
                at: pointer.at,
                state: LeafReadState::Pending(read),
                fresh,
            });
        }
    }

    /// The number of leaves in flight.
    pub fn in_flight(&self) -> usize {
        self.ahead.len()
    }

    /// The first page in flight, unchecked: the caller must check that it is the right one.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if there is none, or it cannot be read.
    pub async fn first(&mut self) -> Result<PageCopy<L>, MissCause> {
        match self.ahead.pop_front().ok_or(MissCause::Restart)?.state {
            LeafReadState::Pending(read) => self.pages.finish_read(read).await,
            LeafReadState::Read(copy) => Ok(copy),
        }
    }

    /// The leaf after `leaf`; `None` after the last.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the walk is lost: restart at the root.
    pub async fn after(&mut self, leaf: &PageCopy<L>) -> Result<Option<PageCopy<L>>, MissCause> {
        let Some(wanted) = L::high(leaf.page()) else { return Ok(None) };
        let mut next = leaf.pointer(leaf.page().sibling());
        for _ in 0..MAX_STEPS {
            if let Some(copy) = self.take_ahead(L::key(&wanted), next.at).await? {
                return Ok(Some(copy));
            }
            let copy = self.pages.read(next).await?;
            let page = copy.page();
            if page.level() != 0 || L::low(page) != wanted {
                return Err(MissCause::Restart);
            }
            self.pages.fabric().charge(Work::VisitNode).await;
            if !page.is_head() {
                return Ok(Some(copy));
            }
            let listed: Vec<_> = listed(page).take(self.window).collect();
            if self.ahead.is_empty() {
                for (_, at) in listed {
                    // The list may be older than the copy: the chain decides whether the leaf
                    // counts.
                    let pointer = TimedPointer { at, since_ns: copy.read_ns };
                    self.read_ahead(pointer, false);
                }
            }
            next = copy.pointer(page.sibling());
        }
        Err(MissCause::Restart)
    }

    /// The leaf that begins at `wanted`, if it is in flight. `expected` is where the chain
    /// continues.
    async fn take_ahead(
        &mut self,
        wanted: &L::Key,
        expected: GlobalAddr,
    ) -> Result<Option<PageCopy<L>>, MissCause> {
        while let Some(front) = self.ahead.pop_front() {
            let copy = match front.state {
                LeafReadState::Read(copy) => copy,
                LeafReadState::Pending(read) => match self.pages.finish_read(read).await {
                    Ok(copy) => copy,
                    Err(MissCause::Restart) => continue,
                    Err(error) => return Err(error),
                },
            };
            let page = copy.page();
            // A page from a head's list may have been reused since: check that it is a leaf.
            let is_leaf = page.level() == 0 && !page.is_head();
            let low = L::low(page);
            if is_leaf
                && L::key(&low) == wanted
                && (front.fresh
                    || front.at == expected
                    || self.pages.fabric().breaks(rules::CHAIN_DECIDES))
            {
                self.pages.fabric().charge(Work::VisitNode).await;
                return Ok(Some(copy));
            }
            if is_leaf && L::key(&low) >= wanted {
                // A head comes first, or leaves that were not read ahead.
                self.ahead.push_front(Ahead { state: LeafReadState::Read(copy), ..front });
                return Ok(None);
            }
        }
        Ok(None)
    }
}

/// The leaves that a head lists (`one_sided/heads.rs` of the crate `trees` makes heads).
fn listed<L: Layout>(head: Page<'_, L>) -> impl Iterator<Item = (OwnedKey<L>, GlobalAddr)> {
    (0..head.count()).map(move |slot| (L::inner_key(head, slot), L::inner_child(head, slot)))
}
