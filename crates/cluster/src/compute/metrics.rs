//! The metrics of a compute server.
//!
//! *Thread safety*: any number of threads.

use super::design::ServerTrees;
use super::threads::ThreadCounters;
use super::{ComputeServerSnapshot, MetricSources};
use crate::error::ProgramError;
use crate::metrics::{Family, MetricKind, MetricSample, Metrics, MetricsServer};
use crate::text::KeyRecord;
use farleaf_dex::blocks::BlockUsage;
use farleaf_fabric::sync::{Arc, Ordering};
use farleaf_fabric::tcp::TcpServer;
use std::net::{SocketAddr, TcpListener};

fn labelled(name: &'static str, values: Vec<(&'static str, u64)>) -> Vec<MetricSample> {
    let sample =
        |(label, value): (&str, u64)| MetricSample { labels: vec![(name, label.into())], value };
    values.into_iter().map(sample).collect()
}

fn sum(seen: &ComputeServerSnapshot, of: impl Fn(&ThreadCounters) -> u64) -> u64 {
    seen.done.iter().map(of).sum()
}

/// A figure of the space of value blocks, if there are any.
fn of_blocks(seen: &ComputeServerSnapshot, look: fn(&BlockUsage) -> u64) -> Vec<MetricSample> {
    seen.blocks.iter().map(|(usage, _)| look(usage).into()).collect()
}

fn fill(metrics: &Metrics, server: &Arc<TcpServer>, watched: &Arc<MetricSources>) {
    use MetricKind::{Counter, Gauge};
    let listener = |look: fn(&TcpServer) -> u64| {
        let server = Arc::clone(server);
        move || look(&server)
    };
    metrics.add_one(
        "connections",
        "Open connections",
        Gauge,
        listener(|s| s.counters().connections),
    );
    metrics.add_one(
        "welcomed",
        "Connections accepted by the handshake",
        Counter,
        listener(|s| s.counters().welcomed),
    );
    metrics.add_one(
        "refused",
        "Connections refused by the handshake",
        Counter,
        listener(|s| s.counters().refused),
    );
    let watch = Arc::clone(watched);
    metrics.add("operations", "Operations requested by clients", Counter, move || {
        let tally = &watch.tally;
        let count = |counter: &farleaf_fabric::sync::AtomicU64| counter.load(Ordering::Relaxed);
        let kinds = vec![
            ("lookup", count(&tally.lookups)),
            ("change", count(&tally.changes)),
            ("scan", count(&tally.scans)),
            ("other", count(&tally.others)),
        ];
        labelled("kind", kinds)
    });
    let watch = Arc::clone(watched);
    let help = "Operations refused: keys of other compute servers, or not served at present";
    metrics
        .add_one("refusals", help, Counter, move || watch.tally.refusals.load(Ordering::Relaxed));
    // All that follows is read from one look at the server.
    let mut families = Vec::new();
    let mut family =
        |name, help, kind, samples: fn(&ComputeServerSnapshot) -> Vec<MetricSample>| {
            families.push(Family { name, help, kind, samples });
        };
    let help = "Remote operations on memory servers, since this generation of the index is served";
    family("remote_operations", help, Counter, |seen| {
        let verbs = vec![
            ("read", sum(seen, |done| done.fabric.reads)),
            ("write", sum(seen, |done| done.fabric.writes)),
            ("atomic", sum(seen, |done| done.fabric.atomics)),
            ("rpc", sum(seen, |done| done.fabric.rpcs)),
        ];
        labelled("verb", verbs)
    });
    let help = "Bytes moved by remote operations, since this generation of the index is served";
    family("remote_bytes", help, Counter, |seen| {
        vec![
            sum(seen, |done| {
                done.fabric.bytes_read + done.fabric.bytes_written + done.fabric.rpc_bytes
            })
            .into(),
        ]
    });
    family("remote_retries", "Retries of remote operations", Counter, |seen| {
        vec![sum(seen, |done| done.fabric.retries).into()]
    });
    family("cache_leaf_hits", "Leaf lookups that the cache served", Counter, |seen| {
        vec![sum(seen, |done| done.cache.leaf_hits).into()]
    });
    family("cache_leaf_misses", "Leaf lookups that the cache did not serve", Counter, |seen| {
        vec![sum(seen, |done| done.cache.leaf_misses).into()]
    });
    family("cache_leaf_windows", "Leaf lookups served by a window of the leaf", Counter, |seen| {
        vec![sum(seen, |done| done.cache.leaf_windows).into()]
    });
    family("cache_record_hits", "Lookups served by a copy of a hot record", Counter, |seen| {
        vec![sum(seen, |done| done.cache.record_hits).into()]
    });
    family(
        "cache_inner_misses",
        "Inner node lookups that the cache did not serve",
        Counter,
        |seen| vec![sum(seen, |done| done.cache.inner_misses).into()],
    );
    family("block_hits", "Lookups of value blocks that the cache served", Counter, |seen| {
        vec![sum(seen, |done| done.cache.block_hits).into()]
    });
    family(
        "block_misses",
        "Lookups of value blocks that the cache did not serve",
        Counter,
        |seen| vec![sum(seen, |done| done.cache.block_misses).into()],
    );
    family("cached_block_bytes", "Bytes of value blocks in the cache", Gauge, |seen| {
        seen.blocks.iter().map(|(_, cached_bytes)| (*cached_bytes).into()).collect()
    });
    let help = "Bytes of the memory servers that this server has taken for value blocks";
    family("block_chunk_bytes", help, Gauge, |seen| of_blocks(seen, |usage| usage.chunk_bytes));
    let help = "Bytes of value blocks in use, counted where they were written and where they go";
    family("block_bytes", help, Gauge, |seen| of_blocks(seen, |usage| usage.bytes_in_use));
    let help = "Value blocks that leaves have lost and that cannot be used again yet";
    family("blocks_waiting", help, Gauge, |seen| of_blocks(seen, |usage| usage.blocks_waiting));
    family("cache_write_backs", "Nodes written back", Counter, |seen| {
        vec![sum(seen, |done| done.cache.write_backs).into()]
    });
    family("offloads", "Operations offloaded to memory servers", Counter, |seen| {
        vec![sum(seen, |done| done.cache.offloads).into()]
    });
    family("cached_bytes", "Bytes of nodes in the cache", Gauge, |seen| {
        vec![seen.cached_bytes.into()]
    });
    let help = "Bytes of changed nodes in the cache that are not written back yet";
    family("dirty_bytes", help, Gauge, |seen| vec![seen.dirt.bytes.into()]);
    let help = "Seconds since the oldest unwritten change; 0 if nothing is written back by age";
    family("oldest_dirty_seconds", help, MetricKind::Duration, |seen| {
        vec![seen.dirt.oldest_ns.into()]
    });
    let help = "Unreachable memory servers: while there are any, no change is acknowledged";
    family("unreachable_memory_servers", help, Gauge, |seen| vec![seen.unreachable.into()]);
    let help = "Dead compute servers whose keys this server has taken over";
    family("takeovers", help, Counter, |seen| vec![seen.takeovers.into()]);
    let help = "The epoch of the partition map; 0 while the server does not serve";
    family("map_epoch", help, Gauge, |seen| vec![seen.map_epoch.into()]);
    let help = "The keys that the compute server owns, as labels of the number 1";
    family("partition", help, Gauge, |seen| seen.range.as_ref().map_or(vec![], partition));
    of_trees(&mut family);
    let watch = Arc::clone(watched);
    metrics.add_together(families, move || watch.look());
}

/// A figure of all LSM trees. Without trees it has no samples.
macro_rules! of_trees {
    ($figure:expr) => {
        |seen: &ComputeServerSnapshot| {
            let figure: fn(&ServerTrees) -> u64 = $figure;
            seen.trees.iter().map(|trees| figure(trees).into()).collect()
        }
    };
}

/// The figures of LSM trees.
fn of_trees(
    family: &mut impl FnMut(
        &'static str,
        &'static str,
        MetricKind,
        fn(&ComputeServerSnapshot) -> Vec<MetricSample>,
    ),
) {
    use MetricKind::{Counter, Gauge};
    let help = "Shards, each of which is an LSM tree";
    family("dlsm_shards", help, Gauge, of_trees!(|trees| trees.shards));
    family("dlsm_tables", "Tables of all levels", Gauge, of_trees!(|trees| trees.tables));
    family(
        "dlsm_level0_tables",
        "Tables of level 0",
        Gauge,
        of_trees!(|trees| trees.level0_tables),
    );
    let help = "The most tables that one shard has in level 0; writers wait at 36";
    family("dlsm_most_level0_tables", help, Gauge, of_trees!(|trees| trees.most_level0_tables));
    let help = "Levels below level 0 that have tables, of the shard that has most";
    family("dlsm_levels", help, Gauge, of_trees!(|trees| trees.levels));
    let help = "Bytes of records in tables";
    family("dlsm_table_bytes", help, Gauge, of_trees!(|trees| trees.table_bytes));
    let help = "Memory of MemTables, used or not";
    family("dlsm_memtable_bytes", help, Gauge, of_trees!(|trees| trees.memtable_bytes));
    let help = "Closed MemTables that wait for their flush";
    family("dlsm_waiting_memtables", help, Gauge, of_trees!(|trees| trees.waiting_memtables));
    let help = "Bytes of the indexes of tables on this compute server";
    family("dlsm_index_bytes", help, Gauge, of_trees!(|trees| trees.index_bytes));
    let help = "Merges under way";
    family("dlsm_running_merges", help, Gauge, of_trees!(|trees| trees.running_compactions));
    let help = "Writers that found no room, and waited for flushes and merges or made them";
    family("dlsm_stalls", help, Counter, of_trees!(|trees| trees.counts.stalls));
    let help = "Flushes and merges that failed in the background; they are tried again";
    family("dlsm_failures", help, Counter, of_trees!(|trees| trees.failures));
    family("dlsm_flushes", "MemTables flushed", Counter, of_trees!(|trees| trees.counts.flushes));
    let help = "Bytes of tables flushed";
    family("dlsm_flushed_bytes", help, Counter, of_trees!(|trees| trees.counts.flushed_bytes));
    family("dlsm_merges", "Merges of tables", Counter, of_trees!(|trees| trees.counts.merges));
    let help = "Bytes of tables that merges wrote";
    family("dlsm_merged_bytes", help, Counter, of_trees!(|trees| trees.counts.merged_bytes));
    let help = "Merges that memory servers made";
    family("dlsm_near_merges", help, Counter, of_trees!(|trees| trees.counts.near_merges));
}

/// The range of a compute server. Byte strings are not numbers, and those above 2^53 are not exact
/// in Prometheus, so that keys are labels of the number 1.
fn partition((low, high): &(KeyRecord, Option<KeyRecord>)) -> Vec<MetricSample> {
    let last = match (low, high) {
        (_, Some(KeyRecord::Number(high))) => Some(("last", high.saturating_sub(1).to_string())),
        (KeyRecord::Number(_), None) => Some(("last", u64::MAX.to_string())),
        (_, high) => high.as_ref().map(|high| ("end", high.to_string())),
    };
    let labels = [("lowest", low.to_string())].into_iter().chain(last).collect();
    vec![MetricSample { labels, value: 1 }]
}

/// Starts serving the metrics.
pub(super) fn start(
    listen: SocketAddr,
    server: &Arc<TcpServer>,
    watched: Arc<MetricSources>,
    number: u16,
) -> Result<MetricsServer, ProgramError> {
    let metrics = Metrics::default();
    fill(&metrics, server, &watched);
    metrics.add_one(
        "compute_server",
        "Number of the compute server",
        MetricKind::Gauge,
        move || number.into(),
    );
    let what = format!("metrics cannot be served at {listen}");
    let listener = TcpListener::bind(listen).map_err(ProgramError::system(what))?;
    MetricsServer::start(listener, metrics, move || watched.look().map_epoch > 0)
        .map_err(ProgramError::system("metrics"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The boundaries were gauges, and as 64-bit floats not those of the map.
    #[test]
    fn boundaries_are_exact() {
        let labels = |low, high| {
            let samples = partition(&(low, high));
            assert_eq!((samples.len(), samples[0].value), (1, 1));
            let labels = samples[0].labels.iter().map(|(name, value)| format!("{name}={value}"));
            labels.collect::<Vec<_>>().join(" ")
        };
        let number = KeyRecord::Number;
        assert_eq!(
            labels(number(9_223_372_036_854_775_809), Some(number(u64::MAX))),
            "lowest=9223372036854775809 last=18446744073709551614"
        );
        assert_eq!(labels(number(0), None), "lowest=0 last=18446744073709551615");
    }
}
