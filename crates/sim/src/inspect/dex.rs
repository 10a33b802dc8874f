//! Inspects DEX's tree in the pool (invariant D2 of `farleaf_dex`).
//!
//! *Invariants at every moment*: for any key, each step from the root leads to a page at its own
//! address, one level lower, whose fences cover the keys routed to it, and no child word is a
//! reference into a cache. A node may hold too many keys, but never too few, so a page is checked
//! only for the keys that its parents route to it. Inner pages that are being written, and so have
//! a wrong checksum, are skipped, and so are leaves of byte strings with a wrong stamp.
//!
//! *Invariants once everything is written back*, unless there was a crash: fences match the
//! parents, keys lie within them, and no node is reachable twice.

use super::walk::{Inspection, WalkStop, named};
use super::{ExpectedState, NamedRecords};
use farleaf_fabric::{GlobalAddr, RpcService};
use farleaf_page::{NamedLayout, OwnedKey, ScanWindow, Superblock};
use std::ops::Bound;

/// A node to visit: its address, its level if known, and the keys routed to it.
type RoutedPage<L> = (GlobalAddr, Option<u8>, OwnedKey<L>, Option<OwnedKey<L>>);

impl<L: NamedLayout> Inspection<'_, L> {
    /// Inspects the whole tree and returns the records of all reachable leaves.
    pub(super) fn dex(&mut self) -> Result<NamedRecords, WalkStop> {
        let (pool, expect) = (self.pool, self.expect);
        let mut records = Vec::new();
        if pool.dying.contains(&0) {
            return Ok(NamedRecords::new());
        }
        let superblock = &pool.servers[0].region().words()[..Superblock::WORDS];
        let root = Superblock::root(superblock);
        // The leftmost node is last.
        let mut left: Vec<RoutedPage<L>> = vec![(root, None, L::min_key(), None)];
        while let Some((at, level, low, high)) = left.pop() {
            let path =
                || format!("the node at {at:?}, asked for the keys from {low:?} to {high:?}");
            let page = pool.page(at).map_err(|error| format!("{}: {error}", path()))?;
            if pool.dying.contains(&at.server().number()) {
                continue;
            }
            let wrong = |what: String| Err(WalkStop::Wrong(format!("{}: {what}", path())));
            if self.is_free(at) {
                return wrong("it is free".to_owned());
            }
            if !self.met.insert(at) {
                return wrong("it is reached twice".to_owned());
            }
            let is_inner = level.is_none_or(|level| level > 0);
            if is_inner && !page.is_of_one_piece() {
                if expect != ExpectedState::WellFormed {
                    return wrong("its checksum does not match".to_owned());
                }
                continue;
            }
            // The byte strings of a half-written leaf may be arbitrary.
            if L::HAS_HEAP && !is_inner && expect == ExpectedState::WellFormed && !page.stamp_fits()
            {
                continue;
            }
            if page.address() != at {
                return wrong(format!("it has the address {:?} in its header", page.address()));
            }
            if level.is_some_and(|level| page.level() != level) {
                return wrong(format!("level {} instead of {level:?}", page.level()));
            }
            let fences = (L::low(page), L::high(page));
            // A leaf has no checksum, so a torn WRITE may have changed only one of the two words of
            // an infinite fence.
            let is_half = |end: &OwnedKey<L>| {
                expect == ExpectedState::WellFormed && L::name_of_key(L::key(end)) == Some(u64::MAX)
            };
            let end = fences.1.as_ref().filter(|end| !is_half(end));
            let ends = |end| high.as_ref().is_some_and(|high| high <= end);
            let covers = fences.0 <= low && end.is_none_or(ends);
            if !covers || (expect == ExpectedState::Exact && fences != (low.clone(), high.clone()))
            {
                return wrong(format!("its fences are {fences:?}"));
            }
            if page.level() == 0 {
                if expect != ExpectedState::WellFormed && !page.stamp_fits() {
                    return wrong("its stamp does not match".to_owned());
                }
                let upper = high.as_ref().map_or(Bound::Unbounded, Bound::Excluded).map(L::key);
                let lower = Bound::Included(L::key(&low));
                let window = ScanWindow { lower, upper, reverse: false, limit: usize::MAX };
                let found = L::leaf_collect(page, &window, &mut records);
                if expect == ExpectedState::Exact && found != page.live_count() {
                    return wrong("it has keys beyond its fences".to_owned());
                }
                continue;
            }
            for slot in (0..page.count()).rev() {
                let from = L::inner_key(page, slot).max(low.clone());
                let next = (slot + 1 < page.count()).then(|| L::inner_key(page, slot + 1));
                let to = match (next, &high) {
                    (Some(next), Some(high)) => Some(next.min(high.clone())),
                    (next, high) => next.or_else(|| high.clone()),
                };
                if to.as_ref().is_none_or(|to| from < *to) {
                    left.push((L::inner_child(page, slot), Some(page.level() - 1), from, to));
                }
            }
        }
        let Some(value) = pool.blocks else { return named::<L>(records) };
        if expect == ExpectedState::WellFormed && pool.tears {
            return Ok(NamedRecords::new());
        }
        let resolved =
            records.into_iter().map(|(key, stored)| match value(pool, L::value(&stored)) {
                Some(value) => Ok((key, value)),
                None => Err(format!("{key:?} has {stored:?}, and no such block is there")),
            });
        named::<L>(resolved.collect::<Result<_, _>>()?)
    }
}
