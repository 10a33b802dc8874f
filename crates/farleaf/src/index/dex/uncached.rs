//! Operations on single keys without a cache, for comparison only: what logical partitions bring by themselves
//! (Lu et al., §8.3). Chosen by [`crate::cache::AdmissionName::Never`].
//!
//! The way down is one READ a level in the pool, the root included. The pool's tree is well-formed at every
//! instant (D2) and nobody else changes the leaves of the owned range (D1), so there is no lock: handles of this
//! compute server exclude each other on a leaf by its mark in the mapping table (C6). What restructures goes
//! the usual way, through frames, and a leaf that is in a frame because of that is used there.
//!
//! *A page that is dead*: a node that was merged away keeps its fences, so the fences alone do not tell a walk
//! that began before. The merge says so before the node leaves the mapping table ([`DexServer::note_merged`]),
//! and who marks a leaf looks, under the table's lock, whether there was a merge since its walk began.
//!
//! *Thread safety*: belongs to its endpoint's thread.
//!
//! [`DexServer::note_merged`]: super::DexServer::note_merged

use super::DexIndex;
use crate::cache::{Detour, Discipline, IoMark, LeafOutcome, LiveCounters, Mapped};
use crate::page::{Layout, Page, Probe, Reach};
use crate::remote::Pointer;
use farleaf_fabric::{Fabric, GlobalAddr, Work};

/// How often somebody else's mark is waited for before the walk begins again.
const MOST_WAITS: u32 = 10_000;
/// For how long each time.
const WAIT_NS: u64 = 100;

impl<F: Fabric, L: Layout, D: Discipline> DexIndex<F, L, D> {
    /// What `read` makes of the leaf that the probe lies in; nothing if that is in a frame.
    pub(super) async fn read_in_pool<T>(
        &self,
        probe: Probe<'_, L::Key>,
        read: &impl Fn(Page<'_, L>) -> T,
    ) -> Result<Option<T>, Detour> {
        let work = |page: Page<'_, L>| LeafOutcome::Nothing(read(page));
        match self.change_in_pool(probe, &work).await? {
            Some(LeafOutcome::Nothing(value) | LeafOutcome::Changed(value, _)) => Ok(Some(value)),
            Some(LeafOutcome::Full) | None => Ok(None),
        }
    }

    /// Applies `edit` to the leaf that the probe lies in, and WRITEs the words that it changed; nothing if the
    /// leaf is in a frame.
    pub(super) async fn change_in_pool<T>(
        &self,
        probe: Probe<'_, L::Key>,
        edit: &impl Fn(Page<'_, L>) -> LeafOutcome<T>,
    ) -> Result<Option<LeafOutcome<T>>, Detour> {
        let merged = self.server.merged();
        let at = self.walk(probe).await?;
        let spare = self.client.spare().await?; // C16
        let Some(mark) = self.mark_leaf(at, merged).await? else { return Ok(None) };
        self.charge(Work::VisitNode).await;
        let outcome = self.client.bring_marked_leaf((spare, mark), None, at, probe, edit).await;
        match outcome {
            Ok(outcome) => Ok(Some(outcome)),
            // A walk is never older than the pool: somebody is restructuring.
            Err(Detour::Refresh) => Err(Detour::Busy),
            Err(detour) => Err(detour),
        }
    }

    /// The address of the leaf that the probe lies in.
    async fn walk(&self, probe: Probe<'_, L::Key>) -> Result<GlobalAddr, Detour> {
        let mut at = self.root;
        let mut expected = None;
        loop {
            let copy = self.client.pages().read(Pointer::fixed(at)).await?;
            LiveCounters::count(&self.client.counters.inner_misses);
            self.charge(Work::VisitNode).await;
            let page = copy.page();
            let level = page.level();
            let fits = expected.map_or(level > 0, |expected| level == expected)
                && (!D::CHECKS_FENCES || L::reach(page, probe) == Reach::Inside);
            if !fits {
                return Err(Detour::Busy);
            }
            at = L::inner_child(page, L::inner_slot(page, probe));
            if level == 1 {
                return Ok(at);
            }
            expected = Some(level - 1);
        }
    }

    /// The right to work on a leaf that a walk has found, which began at `merged` merges; nothing if it is in a
    /// frame.
    async fn mark_leaf(&self, at: GlobalAddr, merged: u64) -> Result<Option<IoMark<'_>>, Detour> {
        let mapping = self.client.cache().mapping();
        for _ in 0..MOST_WAITS {
            match mapping.begin_io(at.to_bits(), || self.server.merged() == merged) {
                Ok(mark) => return Ok(Some(mark)),
                Err(Mapped::Frame(_)) => return Ok(None),
                Err(Mapped::Absent) => return Err(Detour::Again),
                Err(Mapped::Io) => self.fabric().sleep(WAIT_NS).await,
            }
        }
        Err(Detour::Busy)
    }
}
