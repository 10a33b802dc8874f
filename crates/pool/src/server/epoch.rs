//! Epochs: when a node that was removed from the tree can be reused.
//!
//! Every operation runs inside an epoch. A node is retired in the epoch that is current when
//! nothing in the tree points to it any more, and freed two epochs later: by then, every operation
//! that could have seen it has ended.
//!
//! *Invariants*
//! - E1. The epoch advances from `e` to `e + 1` only while no operation is inside `e - 1`.
//! - E2. So no operation is ever inside an epoch older than the previous one, and a node retired in
//!   epoch `r` is unreachable once the epoch is `r + 2`.
//!
//! *Thread safety*: any number of threads; entering and leaving touch one counter, spread over
//! cache lines by stripe. Checked by `tests/loom.rs`.

use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use std::collections::VecDeque;

#[cfg(not(loom))]
const STRIPES: usize = 8;
#[cfg(loom)]
const STRIPES: usize = 1;

#[derive(Debug)]
#[repr(align(128))]
struct InsideEpoch([AtomicU64; 3]);

/// A fence for the model checker only. The checker treats `SeqCst` accesses as `AcqRel`, but models
/// fences, so this restores the ordering that the adjacent accesses have in a normal build.
#[inline(always)]
fn sequentially_consistent() {
    #[cfg(loom)]
    farleaf_fabric::sync::fence(Ordering::SeqCst);
}

/// The epochs of one tree.
#[derive(Debug)]
pub struct Epochs {
    current: AtomicU64,
    inside: [InsideEpoch; STRIPES],
    retired: Mutex<VecDeque<(u64, GlobalAddr)>>,
}

impl Default for Epochs {
    fn default() -> Self {
        Self::new()
    }
}

/// One operation's presence in its epoch; dropping it leaves the epoch.
#[derive(Debug)]
pub struct EpochGuard<'a> {
    counter: &'a AtomicU64,
}

impl Drop for EpochGuard<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::Release);
    }
}

impl Epochs {
    /// Creates epochs without operations or retired nodes.
    pub fn new() -> Self {
        let counters = || InsideEpoch([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        Self {
            current: AtomicU64::new(2),
            inside: std::array::from_fn(|_| counters()),
            retired: Mutex::new(VecDeque::new()),
        }
    }

    /// Enters the current epoch.
    #[inline]
    pub fn enter(&self, stripe: usize) -> EpochGuard<'_> {
        loop {
            let epoch = self.current.load(Ordering::SeqCst);
            let counter = &self.inside[stripe % STRIPES].0[(epoch % 3) as usize];
            counter.fetch_add(1, Ordering::SeqCst);
            sequentially_consistent();
            // A thread that advanced the epoch in between may have missed this operation: try the
            // next epoch.
            if self.current.load(Ordering::SeqCst) == epoch {
                return EpochGuard { counter };
            }
            counter.fetch_sub(1, Ordering::Release);
        }
    }

    /// Retires `node`. Nothing in the tree may still point to it.
    pub fn retire(&self, node: GlobalAddr) {
        let mut retired = lock(&self.retired);
        sequentially_consistent();
        let epoch = self.current.load(Ordering::SeqCst);
        retired.push_back((epoch, node));
    }

    /// Advances the epoch if it can (E1), and returns the nodes that have become unreachable (E2).
    pub fn advance(&self) -> Vec<GlobalAddr> {
        let mut retired = lock(&self.retired);
        let epoch = self.current.load(Ordering::SeqCst);
        // Three counters suffice: operations are only inside `epoch` and `epoch - 1` (E2).
        let previous = ((epoch + 2) % 3) as usize;
        sequentially_consistent();
        let empty = |stripe: &InsideEpoch| stripe.0[previous].load(Ordering::SeqCst) == 0;
        if self.inside.iter().all(empty) {
            self.current.store(epoch + 1, Ordering::SeqCst);
        }
        let epoch = self.current.load(Ordering::SeqCst);
        let mut free = Vec::new();
        while let Some(&(since, node)) = retired.front()
            && since + 2 <= epoch
        {
            retired.pop_front();
            free.push(node);
        }
        free
    }

    /// The number of retired nodes that have not been returned yet.
    pub fn retired(&self) -> usize {
        lock(&self.retired).len()
    }

    /// The retired nodes, oldest first.
    pub fn retired_nodes(&self) -> Vec<GlobalAddr> {
        lock(&self.retired).iter().map(|(_, node)| *node).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_fabric::ServerId;

    #[test]
    fn a_reader_holds_back_what_was_retired_while_it_reads() {
        let epochs = Epochs::new();
        let node = GlobalAddr::new(ServerId::new(0), 1024);
        let reader = epochs.enter(0);
        epochs.retire(node);
        for _ in 0..5 {
            assert!(epochs.advance().is_empty());
        }
        assert_eq!(epochs.retired_nodes(), [node]);
        drop(reader);
        let freed: Vec<_> = (0..3).flat_map(|_| epochs.advance()).collect();
        assert_eq!(freed, [node]);
        assert_eq!(epochs.retired(), 0);
    }
}
