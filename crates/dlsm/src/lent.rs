//! Tables of a shard that other shards have borrowed (lsm.L1): the lease of each is here as well,
//! so that it goes on without a version that has the table.
//!
//! *Thread safety*: plain values, behind the tree's mutex.

use crate::remote::ExtentLease;
use farleaf_fabric::sync::Arc;
use std::collections::{BTreeMap, BTreeSet};

/// How often an idle tree looks which tables have come back, in nanoseconds.
const POLL_INTERVAL_NS: u64 = 1_000_000_000;

/// What a tree has lent, by table.
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

    /// Keeps only these tables. Returns the others, whose memory is free once the tree does not
    /// have them either.
    pub(super) fn keep(&mut self, lent: &BTreeSet<u64>) -> Vec<(u64, Arc<ExtentLease>)> {
        self.tables.extract_if(.., |id, _| !lent.contains(id)).collect()
    }

    /// Whether an idle tree is to look now. It then is not before a while has passed.
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = !self.is_empty() && now_ns >= self.due_ns;
        if is_due {
            self.due_ns = now_ns + POLL_INTERVAL_NS;
        }
        is_due
    }
}
