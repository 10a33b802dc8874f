//! What a region counts.
//!
//! *Thread safety*: plain values, copied from the pager's thread.

/// Counts of a region since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FarStats {
    /// Touches: faults, or explicit ones, and those by `ensure` and `hold`.
    pub touches: u64,
    /// Pages that began as zeros, without a READ.
    pub zero_fills: u64,
    /// Pages read because they were touched.
    pub fills: u64,
    /// Pages read ahead of their touch.
    pub fills_ahead: u64,
    /// Pages read ahead that were touched before they left.
    pub ahead_hits: u64,
    /// READs posted.
    pub reads: u64,
    /// WRITEs posted.
    pub writes: u64,
    /// Bytes of READs that succeeded.
    pub bytes_in: u64,
    /// Bytes of WRITEs that succeeded.
    pub bytes_out: u64,
    /// Pages that left without a WRITE.
    pub clean_evictions: u64,
    /// Pages that left after a WRITE.
    pub write_backs: u64,
    /// Pages that stayed after their WRITE, because they were touched meanwhile.
    pub kept: u64,
    /// Pages that were passed over by [`Policy::Clock`](crate::Policy::Clock).
    pub passed_over: u64,
    /// Pages discarded.
    pub discards: u64,
    /// Discarded pages that would have been written back.
    pub write_backs_saved: u64,
    /// Touches that found the buffer full.
    pub waits_for_room: u64,
    /// Operations repeated.
    pub retries: u64,
    /// Pages whose READ failed for good.
    pub failed_fills: u64,
    /// Pages whose WRITE failed; they stay.
    pub failed_write_backs: u64,
    /// Copies of chunks that are missing: there was no second memory server with room, or it has
    /// failed.
    pub lost_copies: u64,
    /// Bytes taken from memory servers.
    pub remote_bytes: u64,
    /// Pages in local memory now.
    pub resident: u32,
    /// The most pages in local memory at the same time.
    pub peak_resident: u32,
    /// Pages of the buffer.
    pub buffer_pages: u32,
    /// Pages held in the buffer now.
    pub held: u32,
}

impl FarStats {
    /// What was counted since `before`, which are earlier counts of the same region. What does not
    /// only grow is as it is now.
    pub fn since(&self, before: &Self) -> Self {
        let since = |count: fn(&Self) -> u64| count(self) - count(before);
        Self {
            touches: since(|it| it.touches),
            zero_fills: since(|it| it.zero_fills),
            fills: since(|it| it.fills),
            fills_ahead: since(|it| it.fills_ahead),
            ahead_hits: since(|it| it.ahead_hits),
            reads: since(|it| it.reads),
            writes: since(|it| it.writes),
            bytes_in: since(|it| it.bytes_in),
            bytes_out: since(|it| it.bytes_out),
            clean_evictions: since(|it| it.clean_evictions),
            write_backs: since(|it| it.write_backs),
            kept: since(|it| it.kept),
            passed_over: since(|it| it.passed_over),
            discards: since(|it| it.discards),
            write_backs_saved: since(|it| it.write_backs_saved),
            waits_for_room: since(|it| it.waits_for_room),
            retries: since(|it| it.retries),
            failed_fills: since(|it| it.failed_fills),
            failed_write_backs: since(|it| it.failed_write_backs),
            lost_copies: since(|it| it.lost_copies),
            remote_bytes: self.remote_bytes,
            resident: self.resident,
            peak_resident: self.peak_resident,
            buffer_pages: self.buffer_pages,
            held: self.held,
        }
    }
}
