//! Tables that other shards have borrowed from this one (lsm.L1). Their leases are kept here, so
//! that the extents stay in use even when no version has the table any more.
//!
//! *Thread safety*: plain values, behind the tree's mutex.

use crate::remote::ExtentLease;
use farleaf_fabric::sync::Arc;
use std::collections::{BTreeMap, BTreeSet};

/// Interval at which an idle tree asks which tables have come back, in nanoseconds.
const POLL_INTERVAL_NS: u64 = 1_000_000_000;

/// The leases of the tables that a tree has lent, by table id.
#[derive(Debug, Default)]
pub(super) struct SharedSsTables {
    tables: BTreeMap<u64, Arc<ExtentLease>>,
    due_ns: u64,
}

impl SharedSsTables {
    pub(super) fn new(tables: BTreeMap<u64, Arc<ExtentLease>>) -> Self {
        Self { tables, due_ns: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Arc<ExtentLease>> {
        self.tables.values()
    }

    /// Keeps only the leases of the tables in `lent`. Returns the others: their extents are free
    /// once no version of the tree has the table either.
    pub(super) fn keep(&mut self, lent: &BTreeSet<u64>) -> Vec<(u64, Arc<ExtentLease>)> {
        self.tables.extract_if(.., |id, _| !lent.contains(id)).collect()
    }

    /// Whether an idle tree should ask now which tables have come back. If so, the next time is due
    /// one interval later.
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = !self.is_empty() && now_ns >= self.due_ns;
        if is_due {
            self.due_ns = now_ns + POLL_INTERVAL_NS;
        }
        is_due
    }
}
