//! The inspector reads the memory servers' regions directly, bypassing the network, at random
//! moments of a run and at its end. It checks the structure that the index guarantees.
//!
//! *Invariants at every moment*, for each design: no page points to a node that is unused, that is
//! marked dead, or whose header has a different address. No node is reachable twice. The modules of
//! the designs add their own invariants ([`dex`], [`coarse`], [`one_sided`]); dLSM has tables
//! instead of pages ([`lsm`]), and SMART nodes and leaves of other sizes ([`radix`]). All designs
//! of pages but DEX guarantee these only while no page on the path is held or half written
//! (`server::tree` T1, `index::fine` G2): an inspection that meets such a page ends there without
//! an error.
//!
//! A value block that a leaf in the pool refers to is there at every moment (blocks.X1, blocks.X4),
//! unless WRITEs tear: then a reference may be half written, and blocks are read at the end only.
//!
//! *Invariants at the end of a run* without uncertain outcomes: no page is held, and the pool holds
//! exactly the records that a scan returns.
//!
//! *Thread safety*: plain functions over atomics, called between two steps of the simulator.

mod coarse;
mod dex;
mod lsm;
mod one_sided;
mod radix;
#[cfg(test)]
mod tests;
mod walk;

use crate::client::RunBoard;
use crate::scenario::{DesignSpec, ErrorKind, Scenario};
use crate::spread::SpreadNames;
use crate::workload;
use farleaf_fabric::sim::SimCluster;
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::{Cluster, Fabric, GlobalAddr, RpcService};
use farleaf_index::{AnyCompute, ByName, RangeIndex, ScanRequest};
use farleaf_page::{Layout, NamedLayout, NodeCarver, OwnedKey, OwnedValue, Page};
use farleaf_pool::server::MemoryServer;
use rand::RngExt;
use std::collections::BTreeSet;
use walk::{Inspection, WalkStop};

pub(crate) use lsm::{InspectedTree, ProcessShards};

/// Longest time between two inspections, in nanoseconds; it grows with the length of the run.
const MAX_PAUSE_NS: u64 = 20_000;

/// Records as (key, value) by their names, ordered by key.
pub(crate) type NamedRecords = Vec<(u64, u64)>;

/// How the value for what a leaf has is found in a pool.
type ValueIn<L> = fn(&InspectedPool<L>, &<L as Layout>::Value) -> Option<OwnedValue<L>>;

/// The state that an inspection expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedState {
    /// A tree in the middle of changes.
    WellFormed,
    /// A tree with no changes in progress or waiting for write-back.
    Exact,
    /// Like [`ExpectedState::Exact`], for DEX after a crash: nodes that no compute server has
    /// fetched since then may hold more keys than their parents route to them.
    Settled,
}

/// Adds to a fault that it was found at the end of the run.
pub(crate) fn at_the_end(fault: String) -> String {
    format!("at the end, in the pool: {fault}")
}

/// Calls `look` repeatedly until the run is over.
pub(crate) async fn watch(
    fabric: impl Fabric,
    board: &RunBoard,
    seed: u64,
    look: impl Fn() -> Result<(), String>,
) {
    let mut rng = workload::rng(seed, u64::MAX / 2);
    let began_ns = fabric.now_ns();
    while !board.is_over() {
        // Inspect long runs less often, or the inspections would dominate their run time.
        let pause_ns = MAX_PAUSE_NS + fabric.now_ns().saturating_sub(began_ns) / 64;
        fabric.sleep(rng.random_range(1..=pause_ns)).await;
        if let Err(fault) = look() {
            board.report(format!("at {} ns, in the pool: {fault}", fabric.now_ns()));
            return;
        }
    }
}

/// The memory servers' regions, as one index.
pub(crate) struct InspectedPool<L: Layout> {
    servers: Vec<Arc<MemoryServer<L>>>,
    design: DesignSpec,
    names: SpreadNames,
    /// Lower bounds of the memory servers' key ranges, except the first; meaningful under range
    /// partitioning.
    boundaries: Vec<OwnedKey<L>>,
    /// Memory servers that may be dead; the inspector ignores their nodes.
    dying: BTreeSet<u16>,
    /// Whether compute servers die and may leave pages locked that no client has used since.
    clients_die: bool,
    /// Whether parents and memory servers always learn of a split.
    tells_all: bool,
    /// Whether late messages may land after the end, and failed operations may be half done.
    is_uncertain: bool,
    /// How long requests of dead clients may stay in flight, in nanoseconds.
    last_words_ns: u64,
    /// With value blocks: the value for what a leaf has; `None` if there is none.
    blocks: Option<ValueIn<L>>,
    /// Whether a WRITE lands in parts, so that a value in a leaf may be half old and half new.
    tears: bool,
}

impl<L: Layout> InspectedPool<L> {
    /// The words at an address; `None` if they are not all in a server's region.
    pub(crate) fn words(&self, at: GlobalAddr, words: usize) -> Option<Vec<u64>> {
        let server = self.servers.get(at.server().index())?;
        let words = server.region().slice(at.offset(), words)?;
        Some(words.iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }
}

impl<L: NamedLayout> InspectedPool<L> {
    /// A memory server, unless it may be dead.
    fn living(&self, number: u16) -> Option<&MemoryServer<L>> {
        let server = self.servers.get(usize::from(number))?;
        (!self.dying.contains(&number)).then_some(server)
    }

    pub(crate) fn new(servers: &[Arc<MemoryServer<L>>], scenario: &Scenario) -> Self {
        let (faults, allowed) = (&scenario.faults, &scenario.allowed_errors);
        let deaths = faults.kill_memory_server.iter().chain(&faults.restart_memory_server);
        let dying: BTreeSet<u16> = deaths.map(|death| death.server).collect();
        let clients_die = !faults.kill_compute_server.is_empty();
        let boundaries = workload::boundaries(&scenario.workload, servers.len() as u16);
        Self {
            servers: servers.to_vec(),
            design: scenario.design.clone(),
            names: SpreadNames::of(scenario),
            boundaries: boundaries.into_iter().map(L::key_named).collect(),
            clients_die,
            tells_all: !clients_die && dying.is_empty() && allowed.is_empty(),
            last_words_ns: match clients_die {
                true => 1_000_000 + 2 * (faults.max_delay_ns + faults.jitter_ns),
                false => 0,
            },
            is_uncertain: !dying.is_empty() || allowed.contains(&ErrorKind::Indeterminate),
            dying,
            blocks: None,
            tears: faults.tear_probability > 0.0,
        }
    }

    /// Finds the value for what a leaf has by `value`, which returns `None` if there is none.
    pub(crate) fn with_blocks(mut self, value: ValueIn<L>) -> Self {
        self.blocks = Some(value);
        self
    }

    /// Whether the page at an address says that it is a leaf.
    pub(crate) fn is_leaf(&self, at: GlobalAddr) -> bool {
        self.page(at).is_ok_and(|page| page.level() == 0)
    }

    /// The page at an address, or an error if there cannot be a page at this address.
    fn page(&self, at: GlobalAddr) -> Result<Page<'_, L>, String> {
        let sensible = !at.is_null()
            && !at.is_swizzled()
            && at.offset().is_multiple_of(NodeCarver::NODE_ALIGN);
        let server = self.servers.get(at.server().index()).filter(|_| sensible);
        let words = server.and_then(|server| server.region().slice(at.offset(), L::page_words()));
        words.map(Page::new).ok_or_else(|| format!("{at:?} is not a page address"))
    }

    /// Inspects the whole index. Returns the records of all leaves that it reached.
    pub(crate) fn look(&self, expect: ExpectedState) -> Result<NamedRecords, String> {
        let mut walk = Inspection::new(self, expect);
        let seen = match self.design {
            DesignSpec::Coarse { .. } => walk.coarse(),
            DesignSpec::Fine { .. } | DesignSpec::Sherman { .. } | DesignSpec::Chime { .. } => {
                walk.blink()
            }
            DesignSpec::Hybrid { .. } => walk.hybrid(),
            DesignSpec::Smart { spread, .. } => walk.radix(spread),
            DesignSpec::Dex { .. } => walk.dex(),
            DesignSpec::Dlsm { .. } => Err(WalkStop::Wrong("tables are not pages".to_owned())),
        };
        match seen {
            Ok(records) => Ok(records),
            Err(WalkStop::Held) => Ok(Vec::new()),
            Err(WalkStop::Wrong(fault)) => Err(fault),
        }
    }

    /// Inspects the index repeatedly until the run is over.
    pub(crate) async fn watch(&self, fabric: impl Fabric, board: &RunBoard, seed: u64) {
        watch(fabric, board, seed, || self.look(ExpectedState::WellFormed).map(drop)).await;
    }

    /// Inspects a design without caches for the last time: it must hold the records that a scan
    /// from compute server `observer` returns.
    pub(crate) fn look_at_the_end(
        &self,
        cluster: &SimCluster<MemoryServer<L>>,
        compute: &AnyCompute<L>,
        observer: u16,
    ) -> Result<(), String> {
        if self.is_uncertain {
            return self.look(ExpectedState::WellFormed).map(drop).map_err(at_the_end);
        }
        let mut scanned = cluster.run(&[observer], async |fabric, _| {
            if self.last_words_ns > 0 {
                // A memory server executes the requests that a client sent before it died, however
                // late they arrive.
                fabric.sleep(self.last_words_ns).await;
            }
            let index = ByName::<L, _, _>::with(compute.open(fabric).await?, self.names);
            index.scan(&ScanRequest::range(..)).await
        });
        let records = match scanned.pop().flatten() {
            Some(Ok(records)) => records,
            other => return Err(format!("the index cannot be scanned at the end: {other:?}")),
        };
        let held = self.look(ExpectedState::Exact).map_err(at_the_end)?;
        if held != records {
            return Err(at_the_end(format!(
                "it holds {held:?}, but the index returns {records:?}"
            )));
        }
        Ok(())
    }
}
