//! Tables in far memory, and what they cost.

use crate::data::TpchTable;
use crate::engine::QueryEngine;
use crate::{Setting, TpchTransport};
use anyhow::{Context, Result};
use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::shm::ShmConfig;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig};
use farleaf_far_alloc::{ArenaConfig, FarArena, ProgramArena};
use farleaf_far_memory::{
    ClusterEndpoints, EndpointSource, FarConfig, FarError, FarRegion, FarStats, Reserved,
};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

pub(crate) const MIB: f64 = (1 << 20) as f64;

/// What the memory server of another process is asked for.
pub(crate) const TOKEN: &[u8] = b"farleaf-far-tpch, on this host";

/// What some work cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkCost {
    /// Of the tables' arena.
    pub(crate) tables: FarStats,
    /// Of the arena of what queries make.
    pub(crate) intermediates: FarStats,
    pub(crate) ms: f64,
    /// Of all threads of the process, with those that are memory servers.
    pub(crate) cpu_ms: f64,
}

impl WorkCost {
    fn sum(&self, count: impl Fn(&FarStats) -> u64) -> f64 {
        (count(&self.tables) + count(&self.intermediates)) as f64
    }

    /// Pages read because they were touched.
    pub(crate) fn misses(&self) -> f64 {
        self.sum(|it| it.fills)
    }

    /// Pages read ahead.
    pub(crate) fn ahead(&self) -> f64 {
        self.sum(|it| it.fills_ahead)
    }

    /// Bytes moved, in MiB.
    pub(crate) fn moved_mib(&self) -> f64 {
        self.sum(|it| it.bytes_in + it.bytes_out) / MIB
    }
}

fn clock_ms(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// A moment, from which costs are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostMark {
    ms: f64,
    cpu_ms: f64,
}

impl CostMark {
    pub(crate) fn now() -> Self {
        let cpu_ms = clock_ms(ClockId::ProcessCPUTime);
        Self { ms: clock_ms(ClockId::Monotonic), cpu_ms }
    }

    /// The time since then.
    pub(crate) fn cost(&self) -> WorkCost {
        let now = Self::now();
        WorkCost { ms: now.ms - self.ms, cpu_ms: now.cpu_ms - self.cpu_ms, ..WorkCost::default() }
    }
}

/// An arena of `region_bytes`, with a buffer of at least 8 pages whatever the setting says.
fn arena(setting: Setting, region_bytes: usize, footprint: usize) -> Result<FarArena> {
    let page_bytes = setting.page << 10;
    let pages = footprint as u64 * u64::from(setting.buffer) / 100 / page_bytes.max(1) as u64;
    // Extents are split from ones of the next size class. What is left over is free, but mostly too
    // small for others, so a buffer that has room for all pages needs more. Those that must stay
    // free are on top.
    let keeps_all = setting.buffer >= 100;
    let more = if keeps_all { footprint as u64 / 4 / page_bytes.max(1) as u64 + 8 } else { 0 };
    let buffer_pages = (pages + more).max(8).try_into()?;
    let mut config = FarConfig::new(region_bytes, page_bytes, buffer_pages);
    config.patience_ns = setting.patience * 1_000_000;
    if keeps_all {
        (config.low_water_pages, config.high_water_pages) = (1, 2);
    }
    if setting.no_ahead {
        config.ahead_pages = 0;
    }
    let service = || vec![TestService::new(region_bytes)];
    let region = match (setting.server, setting.transport) {
        (Some(address), _) => {
            // A server that is stopped is an error soon.
            let ns = setting.patience * 1_000_000 / 4;
            let tcp = TcpConfig { timeout_ns: ns, connect_timeout_ns: ns, ..Default::default() };
            let cluster = TcpCluster::connect(vec![address], &Token::new(TOKEN)?, tcp);
            region(setting, config, ClusterEndpoints::new(Arc::new(cluster), 0, 0))
        }
        (None, TpchTransport::Local) => {
            let cluster = LocalConfig::default().start(service());
            region(setting, config, ClusterEndpoints::new(Arc::new(cluster), 0, 0))
        }
        (None, TpchTransport::Tcp) => {
            let cluster = TcpConfig::default().start(service());
            region(setting, config, ClusterEndpoints::new(Arc::new(cluster), 0, 0))
        }
        (None, TpchTransport::Shm) => {
            let cluster = ShmConfig::default().start(service());
            region(setting, config, ClusterEndpoints::new(Arc::new(cluster), 0, 0))
        }
    };
    let metadata = setting.metadata.metadata(footprint);
    let (decay_ms, retain) = (setting.decay, setting.retain);
    Ok(FarArena::new(region?, ArenaConfig { metadata, decay_ms, retain, grow_bytes: None })?)
}

fn region<R: EndpointSource>(
    setting: Setting,
    config: FarConfig,
    reach: R,
) -> Result<FarRegion, FarError> {
    let space = Reserved::first(config.region_bytes);
    match setting.provider {
        None => FarRegion::new(config, reach, space),
        Some(provider) => FarRegion::by(provider.into(), config, reach, space),
    }
}

/// An engine on far tables.
pub(crate) struct FarEngine {
    pub(crate) engine: QueryEngine,
    pub(crate) arena: Arc<FarArena>,
    /// The arena of what queries make.
    intermediates: Option<ProgramArena>,
    /// What copying the tables there cost.
    pub(crate) migration: WorkCost,
}

impl FarEngine {
    /// Copies the tables into an arena of their own.
    pub(crate) fn new(setting: Setting, tables: &[TpchTable]) -> Result<Self> {
        let footprint = tables.iter().map(TpchTable::footprint).sum::<usize>();
        // The rest is for what is freed and stays, for metadata, and for growing extents.
        let spare = if setting.retain { footprint } else { footprint / 8 };
        let region_bytes = (footprint + spare + (64 << 20)).next_multiple_of(1 << 20);
        let arena = arena(setting, region_bytes, footprint).context("cannot make the arena")?;
        let arena = Arc::new(arena);
        let intermediates = match setting.intermediates {
            true => {
                let setting = Setting { server: None, ..setting };
                let region_bytes = 2 * region_bytes + (256 << 20);
                let arena = self::arena(setting, region_bytes, footprint);
                Some(arena.and_then(|arena| Ok(arena.serve_program()?)))
            }
            false => None,
        };
        let intermediates =
            intermediates.transpose().context("cannot make the arena of intermediates")?;
        let began = CostMark::now();
        let tables = tables
            .iter()
            .map(|table| table.migrate(&arena, setting.layout))
            .collect::<Result<Vec<_>>>()?;
        let migration = WorkCost { tables: arena.far_stats()?, ..began.cost() };
        let engine = QueryEngine::new(&tables, Some((&arena, setting.batches)), intermediates)?;
        Ok(Self { engine, arena, intermediates, migration })
    }

    /// The counts of both arenas.
    pub(crate) fn counts(&self) -> Result<[FarStats; 2]> {
        let intermediates = self.intermediates.map(|arena| arena.far_stats()).transpose()?;
        Ok([self.arena.far_stats()?, intermediates.unwrap_or_default()])
    }

    /// Metadata in percent of what is allocated.
    pub(crate) fn metadata_percent(&self) -> Result<f64> {
        let stats = self.arena.stats()?;
        Ok(100.0 * stats.metadata_bytes as f64 / stats.allocated_bytes as f64)
    }
}
