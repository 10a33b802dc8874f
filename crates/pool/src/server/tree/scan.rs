//! Range scans: forward along the siblings, backward along the low fences.

use super::descend::{FoundNode, restarting};
use super::{ServerTree, TreeFailure};
use crate::wire::{RecordRoom, Refusal, SCAN_REPLY_RECORDS};
use farleaf_fabric::{Cpu, Work};
use farleaf_page::{DescentProbe, Layout, OwnedKey, OwnedValue, ScanWindow};
use std::ops::Bound;

/// One leaf's contribution to a scan.
struct LeafPart<'a, L: Layout> {
    leaf: FoundNode<'a, L>,
    /// Where the rest of the range begins, or, for a reverse scan, ends; `None` if nothing is left.
    rest: Option<OwnedKey<L>>,
}

/// A scan in progress. The near bound moves with every leaf, because records may move between
/// leaves during the scan and none may be returned twice.
struct TreeScanProgress<L: Layout> {
    lower: Bound<OwnedKey<L>>,
    upper: Bound<OwnedKey<L>>,
    reverse: bool,
    limit: usize,
    out: Vec<(OwnedKey<L>, OwnedValue<L>)>,
}

impl<L: Layout> ServerTree<L> {
    /// Up to `limit` records between the bounds, at most as many as fit one reply, and whether
    /// there may be more.
    ///
    /// # Errors
    /// [`Refusal`] if there is no tree, or if the operation lost too often to concurrent ones.
    pub async fn scan<C: Cpu>(
        &self,
        cpu: &C,
        lower: &Bound<OwnedKey<L>>,
        upper: &Bound<OwnedKey<L>>,
        reverse: bool,
        limit: usize,
    ) -> Result<(Vec<(OwnedKey<L>, OwnedValue<L>)>, bool), Refusal> {
        let _epoch = self.epochs.enter(cpu.stripe());
        let limit = limit.min(SCAN_REPLY_RECORDS);
        let min = L::min_key();
        let mut progress = TreeScanProgress::<L> {
            lower: lower.clone(),
            upper: upper.clone(),
            reverse,
            limit,
            out: Vec::with_capacity(limit.min(256)),
        };
        if limit == 0 || (reverse && matches!(upper, Bound::Excluded(key) if *key == min)) {
            return Ok((progress.out, false));
        }
        let mut known: Option<FoundNode<'_, L>> = None;
        let mut room = RecordRoom::for_records(SCAN_REPLY_RECORDS);
        loop {
            let had = progress.out.len();
            let near = if reverse { progress.upper.clone() } else { progress.lower.clone() };
            let probe = match (near.as_ref().map(L::key), reverse) {
                (Bound::Unbounded, false) => DescentProbe::At(L::key(&min)),
                (Bound::Unbounded, true) => DescentProbe::Last,
                (Bound::Excluded(key), true) => DescentProbe::Before(key),
                (Bound::Included(key) | Bound::Excluded(key), _) => DescentProbe::At(key),
            };
            let part =
                restarting!(self, cpu, self.scan_leaf(cpu, probe, known.take(), &mut progress))?;
            // Check the limit first: it may have cut the last leaf short.
            if room.cut::<L>(&mut progress.out, had) || progress.out.len() >= limit {
                return Ok((progress.out, true));
            }
            let Some(rest) = part.rest else { return Ok((progress.out, false)) };
            // If the leaf has not changed, go to its sibling without another descent.
            if !reverse {
                known = self.hand_over(cpu, &part.leaf, part.leaf.page.sibling()).await.ok();
            }
            if reverse {
                progress.upper = Bound::Excluded(rest);
            } else {
                progress.lower = Bound::Included(rest);
            }
        }
    }

    /// Collects from the leaf that covers `probe`; `known` is that leaf if the caller has it.
    async fn scan_leaf<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        probe: DescentProbe<'_, L::Key>,
        known: Option<FoundNode<'a, L>>,
        progress: &mut TreeScanProgress<L>,
    ) -> Result<LeafPart<'a, L>, TreeFailure> {
        let leaf = match known {
            Some(leaf) => {
                cpu.charge(Work::VisitNode).await;
                leaf
            }
            None => self.descend(cpu, probe, 0).await?,
        };
        let before = progress.out.len();
        let result = self.collect_leaf(cpu, leaf, progress).await;
        if result.is_err() {
            progress.out.truncate(before);
        }
        result
    }

    async fn collect_leaf<'a, C: Cpu>(
        &'a self,
        cpu: &C,
        leaf: FoundNode<'a, L>,
        progress: &mut TreeScanProgress<L>,
    ) -> Result<LeafPart<'a, L>, TreeFailure> {
        let TreeScanProgress { lower, upper, reverse, limit, out } = progress;
        let (lower, upper, reverse) = (lower.as_ref(), upper.as_ref(), *reverse);
        let page = leaf.page;
        if page.is_dead() || page.level() != 0 {
            return Err(TreeFailure::Restart);
        }
        let limit = *limit - out.len();
        let (lower, upper) = (lower.map(L::key), upper.map(L::key));
        let window = ScanWindow { lower, upper, reverse, limit };
        let copied = L::leaf_collect(page, &window, out);
        let rest = if reverse {
            let low = L::low(page);
            let ends = match lower {
                Bound::Unbounded => low == L::min_key(),
                Bound::Included(key) | Bound::Excluded(key) => key >= L::key(&low),
            };
            (!ends && low > L::min_key()).then_some(low)
        } else {
            L::high(page).filter(|high| match upper {
                Bound::Unbounded => true,
                Bound::Included(key) => key >= L::key(high),
                Bound::Excluded(key) => key > L::key(high),
            })
        };
        cpu.charge(Work::CopyRecords(copied as u32)).await;
        self.validate(cpu, &leaf)?;
        Ok(LeafPart { leaf, rest })
    }
}
