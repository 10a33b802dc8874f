//! Tables in far memory, and what they cost.

use crate::data::Table;
use crate::engine::Engine;
use crate::{Setting, Transport};
use anyhow::{Context, Result};
use farleaf_fabric::Provider;
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::shm::ShmConfig;
use farleaf_fabric::tcp::TcpConfig;
use farleaf_far_alloc::{ArenaConfig, FarArena};
use farleaf_far_memory::{FarConfig, FarRegion, FarStats, Over, Reserved};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

pub(crate) const MIB: f64 = (1 << 20) as f64;

/// What some work cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) far: FarStats,
    pub(crate) ms: f64,
}

impl Cost {
    /// Bytes moved, in MiB.
    pub(crate) fn moved_mib(&self) -> f64 {
        (self.far.bytes_in + self.far.bytes_out) as f64 / MIB
    }
}

/// The time on a clock that only goes forward.
pub(crate) fn now_ms() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// An arena for tables of `bytes` bytes, with a buffer of at least 8 pages whatever the setting
/// says.
fn arena(setting: Setting, bytes: usize) -> Result<FarArena> {
    let page_bytes = setting.page << 10;
    // Rounded up to size classes, that is a fifth more at most. The rest is for what is freed and
    // stays, and for metadata.
    let region_bytes = (2 * bytes + (64 << 20)).next_multiple_of(1 << 20);
    let buffer_bytes = bytes as u64 * u64::from(setting.buffer) / 100;
    let buffer_pages = (buffer_bytes / page_bytes.max(1) as u64).max(8).try_into()?;
    let config = FarConfig::new(region_bytes, page_bytes, buffer_pages);
    let (service, space) = (TestService::new(region_bytes), Reserved::first(region_bytes));
    let region = match setting.transport {
        Transport::Local => {
            let cluster = Arc::new(LocalConfig::default().start(vec![service]));
            FarRegion::new(config, Over::new(cluster, 0, 0), space)
        }
        Transport::Tcp => {
            let cluster = Arc::new(TcpConfig::default().start(vec![service]));
            FarRegion::new(config, Over::new(cluster, 0, 0), space)
        }
        Transport::Shm => {
            let cluster = Arc::new(ShmConfig::default().start(vec![service]));
            FarRegion::new(config, Over::new(cluster, 0, 0), space)
        }
    };
    let metadata = setting.metadata.metadata(bytes);
    let (decay_ms, retain) = (setting.decay, setting.retain);
    Ok(FarArena::new(region?, ArenaConfig { metadata, decay_ms, retain, grow_bytes: None })?)
}

/// An engine on far tables.
pub(crate) struct Far {
    pub(crate) engine: Engine,
    pub(crate) arena: Arc<FarArena>,
    /// What copying the tables there cost.
    pub(crate) migration: Cost,
}

impl Far {
    /// Copies the tables into an arena of their own.
    pub(crate) fn new(setting: Setting, tables: &[Table]) -> Result<Self> {
        let bytes = tables.iter().map(Table::bytes).sum();
        let arena = Arc::new(arena(setting, bytes).context("cannot make the arena")?);
        let began_ms = now_ms();
        let tables =
            tables.iter().map(|table| table.migrate(&arena)).collect::<Result<Vec<_>>>()?;
        let migration = Cost { far: arena.far_stats()?, ms: now_ms() - began_ms };
        let asked = (!setting.faults_only).then_some(&arena);
        let engine = Engine::new(&tables, asked)?;
        Ok(Self { engine, arena, migration })
    }

    /// Metadata in percent of what is allocated.
    pub(crate) fn metadata_percent(&self) -> Result<f64> {
        let stats = self.arena.stats()?;
        Ok(100.0 * stats.metadata_bytes as f64 / stats.allocated_bytes as f64)
    }
}
