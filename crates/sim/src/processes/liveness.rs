//! Takeovers in scenarios with processes: the list of registered compute servers, and what a taker
//! needs of its program.
//!
//! The list drops a process a term after its death. Each reader gets a list that is up to a poll
//! old. Some processes are dropped although they live, as if their renewals had been delayed.
//!
//! *Thread safety*: a run is one thread.

use super::{ProcessRun, sibling};
use crate::form::IndexForm;
use crate::process_spec::TakeoverSpec;
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_fabric::{AnyFabric, Fabric};
use farleaf_index::partition::{
    DeadServer, TakeoverHost, TakeoverOptions, end_dead_incarnation, probe_all,
};
use farleaf_index::{IndexError, PartitionOptions};
use farleaf_page::{NamedLayout, OwnedKey};
use futures_util::future::LocalBoxFuture;
use rand::RngExt;
use std::collections::BTreeSet;

/// The registered processes.
#[derive(Debug, Default)]
pub(super) struct LivenessList {
    /// For each process, when it was registered or dropped.
    changes: Mutex<Vec<Vec<(u64, bool)>>>,
    /// Processes that are dropped although they live, from when until when.
    suspected: Vec<(u16, u64, u64)>,
}

impl LivenessList {
    pub(super) fn new(spec: Option<&TakeoverSpec>, servers: u16, rng: &mut impl RngExt) -> Self {
        let changes = Mutex::new(vec![Vec::new(); usize::from(servers)]);
        let Some(spec) = spec else { return Self { changes, suspected: Vec::new() } };
        let suspected = (0..spec.suspects).map(|_| {
            let from_ns = rng.random_range(0..=spec.suspected_until_ns);
            let until_ns = from_ns + rng.random_range(1..=4 * spec.right_ns.max(spec.poll_ns));
            (rng.random_range(0..servers), from_ns, until_ns)
        });
        Self { changes, suspected: suspected.collect() }
    }

    /// Registers or drops a process at a moment, instead of what was to come after it.
    pub(super) fn set(&self, server: u16, at_ns: u64, is_registered: bool) {
        let changes = &mut lock(&self.changes)[usize::from(server)];
        if is_registered {
            changes.retain(|(ns, _)| *ns <= at_ns);
        }
        changes.push((at_ns, is_registered));
    }

    fn seen_at(&self, at_ns: u64) -> BTreeSet<u16> {
        let is_suspected = |server: u16| {
            self.suspected.iter().any(|(number, from_ns, until_ns)| {
                *number == server && (*from_ns..*until_ns).contains(&at_ns)
            })
        };
        let changes = lock(&self.changes);
        let is_there = |changes: &Vec<(u64, bool)>| {
            changes.iter().rfind(|(ns, _)| *ns <= at_ns).is_some_and(|(_, there)| *there)
        };
        let there = (0..)
            .zip(&*changes)
            .filter(|(server, changes)| is_there(changes) && !is_suspected(*server));
        there.map(|(server, _)| server).collect()
    }
}

/// The program of a process, as a taker needs it.
pub(super) struct SimTakeoverHost<'a, L: NamedLayout, V: IndexForm<L>> {
    pub(super) run: &'a ProcessRun<'a, L, V>,
    pub(super) fabric: AnyFabric,
    pub(super) spec: TakeoverSpec,
}

impl TakeoverSpec {
    pub(super) fn options(&self) -> TakeoverOptions {
        TakeoverOptions { right_ns: self.right_ns, poll_ns: self.poll_ns }
    }
}

impl<L: NamedLayout, V: IndexForm<L>> TakeoverHost<OwnedKey<L>> for SimTakeoverHost<'_, L, V> {
    fn registered(&self) -> LocalBoxFuture<'_, Option<BTreeSet<u16>>> {
        Box::pin(async {
            let store = self.run.store(&self.fabric);
            store.travel().await;
            let age_ns = self.fabric.random() % self.spec.poll_ns.max(1);
            let seen = self.run.liveness.seen_at(self.fabric.now_ns().saturating_sub(age_ns));
            store.travel().await;
            (!store.fails()).then_some(seen)
        })
    }

    fn end_life(
        &self,
        dead: DeadServer<OwnedKey<L>>,
    ) -> LocalBoxFuture<'_, Result<(), IndexError>> {
        Box::pin(async move {
            let fabric = self.run.as_compute_server(&sibling(&self.fabric, dead.number));
            let store = self.run.store(&self.fabric);
            let options = self.run.options.server();
            end_dead_incarnation::<V::Design, _, L, V::Values>(fabric, options, &*store, &dead)
                .await
        })
    }

    fn reaches_memory(&self) -> LocalBoxFuture<'_, bool> {
        Box::pin(async {
            let fabric = self.run.as_compute_server(&sibling(&self.fabric, self.run.nobody()));
            probe_all::<L>(&fabric).await.is_ok()
        })
    }
}
