//! Walks shared by the designs: to a page, along a level, and down a B-link tree.
//!
//! *Invariants while no page on the path is held*: each level is one chain of siblings from the
//! smallest key to the infinite fence. Each page begins where the previous one ends, and its
//! entries ascend within its fences. Parents point to pages of the chain, in order, by their low
//! fences. A page without a parent entry is reached from its left sibling; at the end of a run
//! without faults there is no such page.

use super::{ExpectedState, InspectedPool, NamedRecords};
use farleaf_fabric::GlobalAddr;
use farleaf_page::{Layout, MAX_LEVEL, NamedLayout, OwnedKey, OwnedValue, Page, ScanWindow};
use std::collections::BTreeSet;
use std::ops::Bound;

/// Why a walk ended early.
#[derive(Debug)]
pub(super) enum WalkStop {
    /// A page is held or half written, or its server may be dead. Pages after it may be in the
    /// middle of a change.
    Held,
    /// An invariant is violated.
    Wrong(String),
}

impl From<String> for WalkStop {
    fn from(fault: String) -> Self {
        Self::Wrong(fault)
    }
}

/// How pages are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageAccess {
    /// By clients with one-sided verbs: pages have a checksum, and there may be heads between
    /// leaves.
    OneSided,
    /// By the pages' own memory server.
    OnServer,
}

/// One inspection in progress.
pub(super) struct Inspection<'a, L: Layout> {
    pub(super) pool: &'a InspectedPool<L>,
    pub(super) expect: ExpectedState,
    /// Nodes that nothing may point to, in addition to memory that no server has allocated.
    out_of_use: BTreeSet<GlobalAddr>,
    /// Bytes that each server has allocated from its region.
    given_out: Vec<u64>,
    pub(super) met: BTreeSet<GlobalAddr>,
}

/// A page's low fence and its address.
pub(super) type PagePlace<L> = (OwnedKey<L>, GlobalAddr);

impl<'a, L: NamedLayout> Inspection<'a, L> {
    pub(super) fn new(pool: &'a InspectedPool<L>, expect: ExpectedState) -> Self {
        let out_of_use = pool.servers.iter().flat_map(|server| server.nodes_out_of_use());
        let given_out = pool.servers.iter().map(|server| server.usage().allocated_bytes);
        Self {
            pool,
            expect,
            out_of_use: out_of_use.collect(),
            given_out: given_out.collect(),
            met: BTreeSet::new(),
        }
    }

    /// Whether the memory servers count a node as free, so that nothing may point to it.
    pub(super) fn is_free(&self, at: GlobalAddr) -> bool {
        at.offset() >= self.given_out[at.server().index()] || self.out_of_use.contains(&at)
    }

    /// Returns a page that another page points to, after checking its header.
    pub(super) fn page(&self, at: GlobalAddr, access: PageAccess) -> Result<Page<'a, L>, WalkStop> {
        let page = self.pool.page(at)?;
        let wrong = |what: &str| Err(WalkStop::Wrong(format!("the node at {at:?} {what}")));
        if self.is_free(at) {
            return wrong("is reachable but free");
        }
        if self.pool.dying.contains(&at.server().number()) {
            return Err(WalkStop::Held);
        }
        let one_sided = access == PageAccess::OneSided;
        if one_sided && !page.is_of_one_piece() {
            return match self.expect {
                ExpectedState::WellFormed => Err(WalkStop::Held),
                _ => wrong("has a checksum that does not match"),
            };
        }
        if page.lock_word().is_locked() {
            match self.expect {
                ExpectedState::WellFormed => return Err(WalkStop::Held),
                _ if one_sided && self.pool.clients_die => {}
                _ => return wrong("is still locked"),
            }
        }
        let is_final = self.expect != ExpectedState::WellFormed;
        if page.entry_lock().is_locked() && is_final && !self.pool.clients_die {
            return wrong("has entries that are still locked");
        }
        if page.address() != at {
            return wrong(&format!("has the address {:?} in its header", page.address()));
        }
        if page.is_dead() {
            return wrong("is dead");
        }
        Ok(page)
    }

    /// Walks along a level from the page at `first`, and returns its pages without heads.
    pub(super) fn chain(
        &mut self,
        first: GlobalAddr,
        level: u8,
        access: PageAccess,
    ) -> Result<Vec<Page<'a, L>>, WalkStop> {
        let mut pages: Vec<Page<'a, L>> = Vec::new();
        let (mut at, mut low, mut from) = (first, L::min_key(), GlobalAddr::NULL);
        loop {
            let page = self.page(at, access).map_err(|stop| match stop {
                WalkStop::Held => WalkStop::Held,
                WalkStop::Wrong(fault) => WalkStop::Wrong(format!(
                    "on level {level}, after {from:?}, from {low:?} on: {fault}"
                )),
            })?;
            let wrong = |what: String| {
                Err(WalkStop::Wrong(format!(
                    "the node at {at:?}, on level {level} from {low:?} on: {what}"
                )))
            };
            if !self.met.insert(at) {
                return wrong("it is reached twice".to_owned());
            }
            if page.level() != level {
                return wrong(format!("its level is {}", page.level()));
            }
            let (begin, end) = (L::low(page), L::high(page));
            if page.is_head() {
                let may_be_here = access == PageAccess::OneSided && level == 0 && !pages.is_empty();
                if !may_be_here || begin != low || end != Some(low.clone()) {
                    return wrong(format!("it is a head with the fences {begin:?} and {end:?}"));
                }
                (from, at) = (at, page.sibling());
                continue;
            }
            if begin != low || end.as_ref().is_some_and(|end| *end <= begin) {
                return wrong(format!("its fences are {begin:?} and {end:?}"));
            }
            if let Err(fault) = check_entries(page) {
                return wrong(fault);
            }
            pages.push(page);
            match (end, page.sibling()) {
                (None, sibling) if sibling.is_null() => return Ok(pages),
                (Some(end), sibling) if !sibling.is_null() => {
                    (from, at, low) = (at, sibling, end);
                }
                (end, sibling) => {
                    return wrong(format!("it ends at {end:?}, and its sibling is {sibling:?}"));
                }
            }
        }
    }

    /// Returns the leaves of a B-link tree.
    pub(super) fn leaves(
        &mut self,
        root: GlobalAddr,
        access: PageAccess,
    ) -> Result<Vec<Page<'a, L>>, WalkStop> {
        let mut level = self.page(root, access)?.level();
        if level > MAX_LEVEL {
            return Err(WalkStop::Wrong(format!("the root at {root:?} is on level {level}")));
        }
        let mut known = vec![(L::min_key(), root)];
        loop {
            let chain = self.chain(known[0].1, level, access)?;
            self.check_known(&known, &chain, "a parent")?;
            if level == 0 {
                return Ok(chain);
            }
            level -= 1;
            known = chain.iter().flat_map(|page| children(*page)).collect();
        }
    }

    /// Checks that the pointers of `who` lead only to pages of the chain, in key order, and to all
    /// pages that they must cover.
    pub(super) fn check_known(
        &self,
        known: &[PagePlace<L>],
        chain: &[Page<'_, L>],
        who: &str,
    ) -> Result<(), WalkStop> {
        let mut left = known.iter().peekable();
        for (number, page) in chain.iter().enumerate() {
            let place = (L::low(*page), page.address());
            if left.next_if_eq(&&place).is_some() {
                continue;
            }
            if number == 0 || (self.expect != ExpectedState::WellFormed && self.pool.tells_all) {
                let (low, at) = place;
                return Err(WalkStop::Wrong(format!(
                    "{who} has no entry for {low:?}, which should lead to {at:?}"
                )));
            }
        }
        match left.next() {
            None => Ok(()),
            Some((key, at)) => {
                let what = self.pool.page(*at).map(|page| match page.is_dead() {
                    true => "is dead".to_owned(),
                    false => format!("begins at {:?} on level {}", L::low(page), page.level()),
                });
                let what = what.unwrap_or_else(|fault| fault);
                let from =
                    format!("{who} leads from {key:?} to {at:?}, which is not in the chain there");
                Err(WalkStop::Wrong(format!("{from}: it {what}")))
            }
        }
    }
}

/// The entries of an inner page.
fn children<L: Layout>(page: Page<'_, L>) -> impl Iterator<Item = PagePlace<L>> + '_ {
    (0..page.count()).map(move |slot| (L::inner_key(page, slot), L::inner_child(page, slot)))
}

/// The undecoded records of leaves. In the hybrid design, the keys of a server's tree are fences of
/// leaves, and have no names.
pub(super) fn unnamed<L: Layout>(leaves: &[Page<'_, L>]) -> Vec<(OwnedKey<L>, OwnedValue<L>)> {
    let everything = ScanWindow {
        lower: Bound::Unbounded,
        upper: Bound::Unbounded,
        reverse: false,
        limit: usize::MAX,
    };
    let mut records = Vec::new();
    for leaf in leaves {
        L::leaf_collect(*leaf, &everything, &mut records);
    }
    records
}

/// The records of leaves by their names.
pub(super) fn records<L: NamedLayout>(leaves: &[Page<'_, L>]) -> Result<NamedRecords, WalkStop> {
    named::<L>(unnamed(leaves))
}

/// Records by their names.
pub(super) fn named<L: NamedLayout>(
    records: Vec<(OwnedKey<L>, OwnedValue<L>)>,
) -> Result<NamedRecords, WalkStop> {
    let name = |(key, value): (OwnedKey<L>, OwnedValue<L>)| {
        let names = (L::name_of_key(L::key(&key)), L::name_of_value(L::value(&value)));
        match names {
            (Some(key), Some(value)) => Ok((key, value)),
            _ => Err(WalkStop::Wrong(format!("no client has set {key:?} to {value:?}"))),
        }
    };
    records.into_iter().map(name).collect()
}

/// Checks P3, P4 and P5 of the page format.
fn check_entries<L: Layout>(page: Page<'_, L>) -> Result<(), String> {
    let keys: Vec<OwnedKey<L>> = match page.level() {
        0 => unnamed(&[page]).into_iter().map(|(key, _)| key).collect(),
        _ => children(page).map(|(key, _)| key).collect(),
    };
    let (low, high) = (L::low(page), L::high(page));
    let is_within = |key: &OwnedKey<L>| *key >= low && high.as_ref().is_none_or(|end| key < end);
    if !keys.is_sorted_by(|one, next| one < next) || !keys.iter().all(is_within) {
        return Err(format!("its keys are {keys:?}, its high fence {high:?}"));
    }
    if page.level() == 0 && keys.len() != page.live_count() {
        return Err("it marks missing records as deleted".to_owned());
    }
    if page.level() > 0 && keys.first() != Some(&low) {
        return Err(format!("its first child begins at {:?}", keys.first()));
    }
    Ok(())
}
