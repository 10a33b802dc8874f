//! The operations of one client: a stream determined by the scenario, the seed, the client's
//! number, and the values that the client has seen.
//!
//! *Invariants*
//! - workload.W1. No two writes of a run write the same value, so a value identifies its writer:
//!   the upper half holds the client, the lower half a count. The initial contents have 0 in the
//!   upper half.
//! - workload.W2. Every key space includes the smallest and the largest possible key.

use crate::scenario::{DistributionSpec, Weights, WorkloadSpec};
use farleaf_history::{ClientAction, OperationOutcome};
use farleaf_index::{Exchange, ScanRequest};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Number of groups of names whose byte strings share a prefix ([`farleaf_page::NamedLayout`]).
const GROUPS: u64 = 16;

/// The key at a position in the key space.
pub(crate) fn key_at(place: u64, spec: &WorkloadSpec) -> u64 {
    match (place + 1 == spec.key_space, spec.in_groups) {
        (true, _) => u64::MAX,
        (false, false) => place,
        (false, true) => (place * GROUPS / spec.key_space) << 60 | place,
    }
}

/// The initial contents of the index.
pub(crate) fn initial_contents(spec: &WorkloadSpec) -> BTreeMap<u64, u64> {
    (0..spec.initial_keys)
        .map(|number| number * spec.key_space / spec.initial_keys)
        .map(|place| (key_at(place, spec), place))
        .collect()
}

/// The keys at which range partitioning splits the key space among `servers` servers.
pub(crate) fn boundaries(spec: &WorkloadSpec, servers: u16) -> Vec<u64> {
    (1..u64::from(servers))
        .map(|server| key_at(server * spec.key_space / u64::from(servers), spec))
        .collect()
}

/// A random generator for one purpose in one run. (`SmallRng` differs between machines.)
pub(crate) fn rng(seed: u64, purpose: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed ^ (purpose + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The stream of one client's operations.
#[derive(Debug)]
pub(crate) struct SimOperationStream {
    spec: WorkloadSpec,
    rng: Xoshiro256PlusPlus,
    client: u32,
    done: u32,
    written: u64,
    /// The last known value of each key, so that compare-exchanges can succeed.
    known: BTreeMap<u64, u64>,
}

impl SimOperationStream {
    pub(crate) fn new(spec: &WorkloadSpec, seed: u64, client: u32) -> Self {
        let rng = rng(seed, 1 + u64::from(client));
        Self { spec: spec.clone(), rng, client, done: 0, written: 0, known: initial_contents(spec) }
    }

    /// Returns the next operation, or `None` at the end.
    pub(crate) fn next(&mut self) -> Option<ClientAction> {
        if self.done == self.spec.operations_per_client {
            return None;
        }
        let Weights {
            get,
            insert,
            update,
            upsert,
            remove,
            compare_exchange,
            multi_get,
            scan,
            reverse_scan,
            collect,
            flush,
        } = self.spec.weights;
        let weights = [
            get,
            insert,
            update,
            upsert,
            remove,
            compare_exchange,
            multi_get,
            scan,
            reverse_scan,
            collect,
            flush,
        ];
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut ticket = self.rng.random_range(0..total);
        let kind = weights.iter().position(|weight| {
            let mine = ticket < u64::from(*weight);
            ticket = ticket.saturating_sub(u64::from(*weight));
            mine
        });
        let action = match kind.expect("the ticket is below the sum") {
            0 => ClientAction::Get(self.key()),
            1 => ClientAction::Insert(self.key(), self.value()),
            2 => ClientAction::Update(self.key(), self.value()),
            3 => ClientAction::Upsert(self.key(), self.value()),
            4 => ClientAction::Remove(self.key()),
            5 => {
                let key = self.key();
                let expected = self.known.get(&key).copied().unwrap_or_default();
                ClientAction::CompareExchange { key, expected, new: self.value() }
            }
            6 => {
                let count = self.rng.random_range(1..=self.spec.max_multi_get_keys);
                ClientAction::MultiGet((0..count).map(|_| self.key()).collect())
            }
            7 => ClientAction::Scan(self.scan()),
            8 => ClientAction::Scan(self.scan().reverse()),
            9 => ClientAction::Collect,
            _ => ClientAction::Flush,
        };
        self.done += 1;
        Some(action)
    }

    /// The stream's client number in the history.
    pub(crate) fn client(&self) -> u32 {
        self.client
    }

    /// Time to wait before the next operation, in nanoseconds.
    pub(crate) fn pause_ns(&mut self) -> u64 {
        match self.spec.max_pause_ns {
            0 => 0,
            // Half of the pauses are 0, so that some operations follow each other immediately.
            longest => self.rng.random_range(0..=longest).saturating_sub(longest / 2),
        }
    }

    /// Learns values from an operation's outcome.
    pub(crate) fn learn(&mut self, action: &ClientAction, outcome: &OperationOutcome) {
        let known = match (action, outcome) {
            (ClientAction::Get(key), OperationOutcome::Value(Some(value)))
            | (
                ClientAction::Insert(key, value) | ClientAction::Update(key, value),
                OperationOutcome::Applied(true),
            )
            | (ClientAction::Upsert(key, value), OperationOutcome::Done)
            | (
                ClientAction::CompareExchange { key, .. },
                OperationOutcome::Exchange(Exchange::Differs(Some(value))),
            )
            | (
                ClientAction::CompareExchange { key, new: value, .. },
                OperationOutcome::Exchange(Exchange::Exchanged),
            ) => (*key, *value),
            _ => return,
        };
        self.known.insert(known.0, known.1);
    }

    fn value(&mut self) -> u64 {
        self.written += 1;
        u64::from(self.client + 1) << 32 | self.written
    }

    fn place(&mut self) -> u64 {
        let all = self.spec.key_space;
        match self.spec.distribution {
            DistributionSpec::Uniform => self.rng.random_range(0..all),
            DistributionSpec::Hot { keys, probability } => {
                if self.rng.random_bool(probability) {
                    (all - keys) / 2 + self.rng.random_range(0..keys)
                } else {
                    self.rng.random_range(0..all)
                }
            }
            DistributionSpec::Sliding { keys } => {
                let way = all - keys;
                let start = way * u64::from(self.done) / u64::from(self.spec.operations_per_client);
                start + self.rng.random_range(0..keys)
            }
        }
    }

    fn key(&mut self) -> u64 {
        let place = self.place();
        key_at(place, &self.spec)
    }

    /// A range of any shape: bounds of every kind, occasionally in the wrong order, with or without
    /// a limit.
    fn scan(&mut self) -> ScanRequest<u64> {
        let all = self.spec.key_space;
        let low = self.place();
        let high = (low + self.rng.random_range(0..self.spec.max_scan_keys)).min(all - 1);
        let (low, high) = (key_at(low, &self.spec), key_at(high, &self.spec));
        let (low, high) = if self.rng.random_ratio(1, 50) { (high, low) } else { (low, high) };
        let limit = match self.rng.random_range(0..40_u32) {
            0 => 0,
            1..20 => self.rng.random_range(1..=self.spec.max_scan_keys) as usize,
            _ => usize::MAX,
        };
        let (lower, upper) = (self.bound(low), self.bound(high));
        ScanRequest { lower, upper, reverse: false, limit }
    }

    fn bound(&mut self, key: u64) -> Bound<u64> {
        match self.rng.random_range(0..16_u32) {
            0 => Bound::Unbounded,
            1..9 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    }
}
