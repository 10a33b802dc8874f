//! Background write-back: nodes that have been dirty for a long time are written back, so that a
//! crash loses only recent changes.
//!
//! Write-back takes nodes that have been dirty for three quarters of the limit, oldest first; the
//! rest of the limit is left for the WRITEs. If some node has been dirty for longer than the limit,
//! each operation that changes something first writes back a few nodes.
//!
//! *Thread safety*: belongs to its endpoint's thread. Any number of threads of a compute server may
//! run this.

use super::{DexIndex, FRAMES_PER_BATCH};
use farleaf_fabric::Fabric;
use farleaf_index::together::all;
use farleaf_page::Layout;

/// Nodes that an operation writes back before it changes another one, if the background tasks are
/// behind.
const NODES_TO_HELP: usize = 4;
/// The pause between two rounds is the age limit divided by [`LOOKS`], within the bounds below, in
/// nanoseconds.
const LOOKS: u64 = 16;
const MIN_PAUSE_NS: u64 = 200_000;
const MAX_PAUSE_NS: u64 = 50_000_000;

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// Writes nodes back by age until `ended` returns true. Returns at once if this cache has no
    /// age limit.
    pub(super) async fn write_back_by_age(&self, ended: &dyn Fn() -> bool) {
        let ages = self.client.cache().ages();
        let limit_ns = ages.limit_ns();
        let pause_ns = (limit_ns / LOOKS).clamp(MIN_PAUSE_NS, MAX_PAUSE_NS);
        while limit_ns > 0 && !ended() {
            // If something cannot be settled now, the next round tries again.
            let _ = self.settle().await;
            let written = self.write_oldest(limit_ns / 4 * 3, FRAMES_PER_BATCH).await;
            let now_ns = self.fabric().now_ns();
            let is_late = |since_ns: u64| now_ns.saturating_sub(since_ns) > limit_ns;
            ages.set_behind(ages.oldest_ns().is_some_and(is_late));
            if written < FRAMES_PER_BATCH {
                self.fabric().sleep(pause_ns).await;
            }
        }
        ages.set_behind(false);
    }

    /// Writes back some nodes that have been dirty for longer than the limit, if there are any.
    #[cold]
    pub(super) async fn help_to_write_back(&self) {
        let ages = self.client.cache().ages();
        if self.write_oldest(ages.limit_ns(), NODES_TO_HELP).await == 0 {
            ages.set_behind(false);
        }
    }

    /// Writes back at most `most` nodes that have been dirty for at least `age_ns`. Returns how
    /// many it wrote.
    async fn write_oldest(&self, age_ns: u64, most: usize) -> usize {
        let cache = self.client.cache();
        let until_ns = self.fabric().now_ns().saturating_sub(age_ns);
        let is_dirty = |frame| cache.is_unwritten(frame);
        let frames = cache.ages().take(until_ns, most, self.fabric().random(), is_dirty);
        let written = all(frames.iter().map(|frame| self.client.write_back(*frame))).await;
        for (frame, outcome) in frames.iter().zip(&written) {
            // The node is in use, or its memory server cannot be reached: queue it again.
            if outcome.is_err() && cache.is_unwritten(*frame) {
                cache.ages().queue(*frame);
            }
        }
        written.iter().filter(|outcome| outcome.is_ok()).count()
    }
}
