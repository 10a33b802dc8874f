//! Scans: leaf by leaf through the fences (Lu et al., §7), with several leaves read together.
//!
//! If a leaf is not cached, the level-1 node above it lists where the next leaves begin. The scan
//! reads as many as it is likely to need, all in flight together and each by an operation of its
//! own. It takes their records in order, as long as each leaf begins where the previous one ended.
//! If a leaf was split or merged meanwhile, the run ends and the scan continues from there. If an
//! inner node is missing, the scan below it can be offloaded to its memory server instead.
//!
//! Each leaf is read atomically, but a scan is not a snapshot. It never goes back to keys that it
//! has passed. Each read of a run has its own frame and mark, so that none of them waits for
//! another (C16).
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::descend::{LeafLocation, OffloadOffer};
use super::offload::OffloadedScan;
use super::scan_range::{first, last, next_fence, within};
use crate::cache::{OptimisticRef, Restart};
use farleaf_fabric::{Fabric, Work};
use farleaf_index::OwnedRange;
use farleaf_index::together::all;
use farleaf_index::{KeyedRecords, PartState, ScanRequest};
use farleaf_page::{DescentProbe, Layout, OwnedKey, OwnedValue, Page, ScanWindow};
use farleaf_pool::remote::RemoteError;
use std::cell::{Cell, RefCell};
use std::ops::Bound;

/// The records found so far.
type ScannedRecords<L> = RefCell<KeyedRecords<OwnedKey<L>, OwnedValue<L>>>;

/// Maximum number of records for which a scan reserves space in advance.
const MAX_RESERVED: usize = 1024;

/// Moving average of the records per leaf, in sixteenths.
#[derive(Debug, Default)]
pub(super) struct LeafSizes {
    sixteenths: Cell<usize>,
}

impl LeafSizes {
    /// Adds a leaf of this many records, with a weight of one eighth unless it is the first.
    fn add(&self, records: usize) {
        let (now, seen) = (records * 16, self.sixteenths.get());
        self.sixteenths.set(if seen == 0 { now } else { seen - seen / 8 + now / 8 });
    }

    /// Estimates the leaves needed for this many records. Errs on the low side before any leaf has
    /// been read, and where leaves seem to be almost empty.
    fn leaves<L: Layout>(&self, records: usize) -> usize {
        match self.sixteenths.get() {
            0 => 1,
            seen => records.saturating_mul(16).div_ceil(seen.max(L::capacity() * 4)),
        }
    }
}

/// A part of a scan.
#[derive(Debug)]
struct ScanPart<'s, L: Layout> {
    scan: &'s ScanRequest<OwnedKey<L>>,
    /// The range that this server owned when the scan began.
    range: &'s OwnedRange<OwnedKey<L>>,
    /// Locates the part's first leaf. Ascending: the leaf of this key. Descending: the leaf of this
    /// key, or of the keys just before it.
    place: Bound<OwnedKey<L>>,
    /// Whether records before the place were scanned already. If so, never return to keys before
    /// the place, even if a leaf now reaches further.
    moved: bool,
    limit: usize,
}

impl<L: Layout> ScanPart<'_, L> {
    /// Where the scan continues after a node that ends at this fence; `None` if no more records can
    /// follow.
    fn behind(&self, fence: Option<OwnedKey<L>>) -> Option<Bound<OwnedKey<L>>> {
        let fence = fence?;
        let inside = match self.scan.reverse {
            true => fence > self.range.low,
            false => self.range.high.as_ref().is_none_or(|end| fence < *end),
        };
        (inside && self.window().goes_behind(L::key(&fence))).then_some(match self.scan.reverse {
            true => Bound::Excluded(fence),
            false => Bound::Included(fence),
        })
    }

    fn window(&self) -> ScanWindow<'_, L::Key> {
        let ScanRequest { lower, upper, reverse, .. } = self.scan;
        let (lower, upper) = match (self.moved, *reverse) {
            (false, _) => (lower, upper),
            (true, true) => (lower, &self.place),
            (true, false) => (&self.place, upper),
        };
        let (lower, upper) = (lower.as_ref().map(L::key), upper.as_ref().map(L::key));
        ScanWindow { lower, upper, reverse: *reverse, limit: self.limit }
    }

    fn probe(&self) -> DescentProbe<'_, L::Key> {
        match self.place.as_ref().map(L::key) {
            Bound::Included(key) => DescentProbe::At(key),
            // An ascending scan continues in the leaf of the last record returned.
            Bound::Excluded(key) if !self.scan.reverse => DescentProbe::At(key),
            Bound::Excluded(key) => DescentProbe::Before(key),
            Bound::Unbounded => DescentProbe::Last,
        }
    }

    /// Truncates `out` to `had` records, then appends those that the part finds in `leaf`.
    fn collect(
        &self,
        leaf: Page<'_, L>,
        had: usize,
        out: &ScannedRecords<L>,
    ) -> LeafEnd<OwnedKey<L>> {
        let mut out = out.borrow_mut();
        // `leaf` may be inconsistent at first; then this runs again.
        out.truncate(had);
        L::leaf_collect(leaf, &self.window(), &mut out);
        let fence = if self.scan.reverse { Some(L::low(leaf)) } else { L::high(leaf) };
        LeafEnd { records: leaf.count(), fence }
    }
}

/// What a scan learns from a leaf besides its records.
#[derive(Debug)]
struct LeafEnd<K> {
    /// Records in the whole leaf, not only those in the window.
    records: usize,
    /// Where the leaf ends in the direction of the scan.
    fence: Option<K>,
}

/// The result of one step of a scan.
#[derive(Debug)]
enum ScanStep<'a, L: Layout> {
    /// The leaf at the place was read.
    Read(LeafEnd<OwnedKey<L>>),
    /// Nothing was read yet: the leaves at these places, below this node, should be read together.
    Together(OptimisticRef<'a, L>, Vec<Bound<OwnedKey<L>>>),
    /// The memory server has found these records.
    Offloaded(OffloadedScan<L>),
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Appends the records of the owned range that `scan` asks for, until `out` has `scan.limit`
    /// records. Returns the owned range as it was when the scan began.
    ///
    /// # Errors
    /// [`RemoteError`] if a leaf cannot be read, for example because the range has shrunk. `out`
    /// then has the records found before.
    pub async fn scan(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> Result<OwnedRange<OwnedKey<L>>, RemoteError> {
        let range = self.server.range();
        // If the range grows meanwhile, leaves may extend beyond it. The caller continues the scan
        // there.
        let scan = &within(scan, &range);
        let begin = match scan.reverse {
            _ if range.is_empty() => None,
            true => last(scan, &range),
            false => Some(first(scan, &range)),
        };
        out.reserve(scan.limit.min(MAX_RESERVED).saturating_sub(out.len()));
        let found = RefCell::new(std::mem::take(out));
        let outcome = self.scan_from(begin, scan, &range, &found).await;
        *out = found.into_inner();
        outcome.map(|()| range)
    }

    async fn scan_from(
        &self,
        begin: Option<Bound<OwnedKey<L>>>,
        scan: &ScanRequest<OwnedKey<L>>,
        range: &OwnedRange<OwnedKey<L>>,
        found: &ScannedRecords<L>,
    ) -> Result<(), RemoteError> {
        let (mut at, mut moved) = (begin, false);
        let mut offer = self.offload.is_on() && !self.uncached;
        while let Some(place) = at.take() {
            let had = found.borrow().len();
            if had >= scan.limit {
                break;
            }
            let part = ScanPart { scan, range, place, moved, limit: scan.limit - had };
            moved = true;
            at = match self.step(&part, found, &mut offer).await? {
                ScanStep::Read(leaf) => {
                    let copied = found.borrow().len() - had;
                    self.charge(Work::CopyRecords(copied as u32)).await;
                    self.leaf_sizes.add(leaf.records);
                    part.behind(leaf.fence)
                }
                ScanStep::Together(above, places) => {
                    self.read_together(&part, (above, places), found).await?
                }
                ScanStep::Offloaded(below) => {
                    self.charge(Work::CopyRecords(below.records.len() as u32)).await;
                    let last = below.records.last().map(|(key, _)| key.clone());
                    found.borrow_mut().extend(below.records);
                    match below.more {
                        true => last.map(Bound::Excluded),
                        false => part.behind(below.fence),
                    }
                }
            };
        }
        Ok(())
    }

    /// Does the first step of a part, with retries. Once a memory server has refused, nothing more
    /// is offered to it.
    async fn step(
        &self,
        part: &ScanPart<'_, L>,
        found: &ScannedRecords<L>,
        offer: &mut bool,
    ) -> Result<ScanStep<'_, L>, RemoteError> {
        let had = found.borrow().len();
        let mut attempts = None;
        loop {
            let restart = match self.try_step(part, (found, had), *offer).await {
                Ok(step) => return Ok(step),
                Err(restart) => restart,
            };
            *offer &= restart != Restart::Here;
            let attempts = attempts.get_or_insert_with(|| self.attempts());
            self.after(attempts, restart, part.probe()).await?;
        }
    }

    async fn try_step(
        &self,
        part: &ScanPart<'_, L>,
        (found, had): (&ScannedRecords<L>, usize),
        offer: bool,
    ) -> Result<ScanStep<'_, L>, Restart> {
        // A failed attempt may have left records.
        found.borrow_mut().truncate(had);
        let probe = part.probe();
        let read = |leaf: Page<'_, L>| part.collect(leaf, had, found);
        if self.uncached {
            return self.try_read_leaf(probe, &read).await.map(ScanStep::Read);
        }
        let leaves = self.leaf_sizes.leaves::<L>(part.limit);
        let offer = match offer {
            true => OffloadOffer::Scan { leaves: leaves.min(L::capacity()) as u64 },
            false => OffloadOffer::Nothing,
        };
        let together = leaves.min(self.leaves_together as usize);
        let place = match self.find_leaf(probe, offer).await? {
            LeafLocation::Offered(missing) => {
                let below = Box::pin(self.offload_scan(missing, &part.window())).await?;
                return Ok(ScanStep::Offloaded(below));
            }
            LeafLocation::Elsewhere { parent, slot, address } if together > 1 => {
                // An old copy of a shared node may point to leaves that have been merged away below
                // its other half.
                let led = match self.server.shares(parent.page) {
                    true => self.keys_led_to(parent, probe)?,
                    false => OwnedRange { low: L::min_key(), high: None },
                };
                let places = self.next_places(part, (parent.page, slot), &led, together);
                if !parent.is_valid() {
                    return Err(Restart::Busy);
                }
                if places.len() > 1 {
                    return Ok(ScanStep::Together(parent, places));
                }
                LeafLocation::Elsewhere { parent, slot, address }
            }
            place => place,
        };
        self.read_place(place, probe, &read).await.map(ScanStep::Read)
    }

    /// The place of a part, and the places of the leaves that follow below the same level-1 node:
    /// at most `most`, within the scan and within the range of keys routed to the node (`led`).
    fn next_places(
        &self,
        part: &ScanPart<'_, L>,
        (parent, slot): (Page<'_, L>, usize),
        led: &OwnedRange<OwnedKey<L>>,
        most: usize,
    ) -> Vec<Bound<OwnedKey<L>>> {
        let mut places = Vec::with_capacity(most);
        places.push(part.place.clone());
        let mut at = slot;
        while places.len() < most {
            let is_last = if part.scan.reverse { at == 0 } else { at + 1 >= parent.count() };
            if is_last {
                break;
            }
            let is_led = |fence: &OwnedKey<L>| match part.scan.reverse {
                true => *fence > led.low,
                false => led.has(L::key(fence)),
            };
            let fence = next_fence(parent, at, part.scan.reverse).filter(is_led);
            let Some(place) = part.behind(fence) else { break };
            places.push(place);
            at = if part.scan.reverse { at - 1 } else { at + 1 };
        }
        places
    }

    /// Reads the leaves at consecutive places below a level-1 node. Returns where the scan
    /// continues.
    async fn read_together(
        &self,
        first: &ScanPart<'_, L>,
        (above, places): (OptimisticRef<'_, L>, Vec<Bound<OwnedKey<L>>>),
        found: &ScannedRecords<L>,
    ) -> Result<Option<Bound<OwnedKey<L>>>, RemoteError> {
        let &ScanPart { scan, range, moved, limit, .. } = first;
        let parts = places.into_iter().enumerate();
        let parts: Vec<_> = parts
            .map(|(number, place)| ScanPart {
                scan,
                range,
                place,
                moved: moved || number > 0,
                limit,
            })
            .collect();
        let read = all(parts.iter().map(|part| self.read_part(part, above))).await;
        let (mut at, mut missing) = (Some(first.place.clone()), limit);
        for (part, outcome) in parts.iter().zip(read) {
            // The previous leaf was split, or merged with this one, after its parent was read.
            if missing == 0 || at.as_ref() != Some(&part.place) {
                break;
            }
            let (mut records, leaf) = outcome?;
            records.truncate(missing);
            missing -= records.len();
            self.charge(Work::CopyRecords(records.len() as u32)).await;
            found.borrow_mut().append(&mut records);
            self.leaf_sizes.add(leaf.records);
            at = part.behind(leaf.fence);
        }
        Ok(at)
    }

    /// Reads one part: from the node above it if that has not changed, otherwise from the root.
    async fn read_part(
        &self,
        part: &ScanPart<'_, L>,
        above: OptimisticRef<'_, L>,
    ) -> Result<(KeyedRecords<OwnedKey<L>, OwnedValue<L>>, LeafEnd<OwnedKey<L>>), RemoteError> {
        let probe = part.probe();
        let records = RefCell::new(KeyedRecords::with_capacity(part.limit.min(L::capacity())));
        let read = |leaf: Page<'_, L>| part.collect(leaf, 0, &records);
        let leaf = match self.try_read_below(above, probe, &read).await {
            Ok(leaf) => leaf,
            Err(Restart::Failed(error)) => return Err(error),
            Err(_) => self.read_leaf(probe, read).await?,
        };
        Ok((records.into_inner(), leaf))
    }
}
