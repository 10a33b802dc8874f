//! Compares two samples of a cluster: each server's load between them, and its current state.
//!
//! *Thread safety*: plain values.

use farleaf_cluster::scrape::{ScrapeFailure, Scraper, ServerSamples};
use farleaf_cluster::status::ClusterStatus;
use std::collections::BTreeMap;
use std::time::Duration;

/// The kind of a server, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServerNumber {
    Memory(u16),
    Compute(u16),
}

impl std::fmt::Display for ServerNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory(number) => write!(f, "memory {number}"),
            Self::Compute(number) => write!(f, "compute {number}"),
        }
    }
}

/// A sample of one server.
#[derive(Clone, Debug)]
pub(super) struct ServerSample {
    /// The epoch of its handshake; the counters of a new epoch start at 0.
    epoch: u64,
    address: String,
    /// `None` if it serves no metrics.
    answer: Option<Result<ServerSamples, ScrapeFailure>>,
}

/// A sample of all servers.
pub(super) type ClusterSample = BTreeMap<ServerNumber, ServerSample>;

/// Samples all servers that the catalog lists. Takes at most `within`, unless there are very many
/// servers.
pub(super) fn look(scraper: &Scraper, standing: &ClusterStatus, within: Duration) -> ClusterSample {
    let memory = standing.memory.iter().map(|record| {
        let server = ServerNumber::Memory(record.number);
        (server, record.epoch, format!("{} {}", record.transport, record.address), &record.metrics)
    });
    let compute = standing.compute.iter().map(|record| {
        (
            ServerNumber::Compute(record.number),
            record.epoch,
            record.address.clone(),
            &record.metrics,
        )
    });
    let servers: Vec<_> = memory.chain(compute).collect();
    let asked: Vec<_> = servers.iter().filter_map(|(.., metrics)| (*metrics).clone()).collect();
    let mut answers = scraper.ask(&asked, within).into_iter();
    let mut look = ClusterSample::new();
    for (server, epoch, address, metrics) in servers {
        let answer = metrics.as_ref().and_then(|_| answers.next());
        look.insert(server, ServerSample { epoch, address, answer });
    }
    look
}

/// The state of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ServerState {
    /// It answers.
    Live,
    /// It is registered but does not answer.
    Silent(String),
    /// It is registered, and serves no metrics.
    NoMetrics,
    /// It is not registered.
    Gone,
}

/// A server's row. Unknown values are `None`: rates before a second sample, ratios without
/// operations.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServerRow {
    pub(super) server: ServerNumber,
    pub(super) state: ServerState,
    pub(super) address: String,
    /// Clients' operations on a compute server, or requests to a memory server, per second.
    pub(super) operations_per_s: Option<f64>,
    /// The same operations or requests, as the total since the server's counters started.
    pub(super) operations: Option<f64>,
    /// A compute server's share of all operations since the previous sample, from 0 to 1, or of all
    /// operations so far if there were none since. A memory server's share of all allocated memory.
    pub(super) share: Option<f64>,
    /// Fraction of leaf lookups that the cache served, from 0 to 1.
    pub(super) hit_ratio: Option<f64>,
    pub(super) remote_per_operation: Option<f64>,
    pub(super) bytes_per_operation: Option<f64>,
    pub(super) connections: Option<f64>,
    /// Bytes of nodes in a compute server's cache, or allocated from a memory server's pool.
    pub(super) memory_bytes: Option<f64>,
    pub(super) pool_bytes: Option<f64>,
    /// Bytes that are not written back yet; below, the age of the oldest of them.
    pub(super) dirty_bytes: Option<f64>,
    pub(super) dirty_ms: Option<f64>,
    pub(super) map_epoch: Option<f64>,
    /// How often it has taken over keys of a dead compute server.
    pub(super) takeovers: Option<f64>,
    /// Its LSM trees, if it has any.
    pub(super) trees: Option<LsmTreeFigures>,
}

/// The LSM trees of a compute server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LsmTreeFigures {
    pub(super) shards: f64,
    /// Levels below level 0 that have tables, of the shard that has most.
    pub(super) levels: Option<f64>,
    pub(super) tables: Option<f64>,
    /// The most tables that a shard has in level 0.
    pub(super) level0_tables: Option<f64>,
    /// Bytes of records in tables.
    pub(super) table_bytes: Option<f64>,
    pub(super) memtable_bytes: Option<f64>,
    pub(super) index_bytes: Option<f64>,
    /// MemTables that wait for their flush.
    pub(super) waiting: Option<f64>,
    pub(super) merges: Option<f64>,
    /// Writers that found no room since the previous sample, and failures.
    pub(super) stalls: Option<f64>,
    pub(super) failures: Option<f64>,
    pub(super) flushed_bytes_per_s: Option<f64>,
    pub(super) merged_bytes_per_s: Option<f64>,
}

impl ServerRow {
    pub(super) fn without_figures(
        server: ServerNumber,
        state: ServerState,
        address: String,
    ) -> Self {
        Self {
            server,
            state,
            address,
            operations_per_s: None,
            operations: None,
            share: None,
            hit_ratio: None,
            remote_per_operation: None,
            bytes_per_operation: None,
            connections: None,
            memory_bytes: None,
            pool_bytes: None,
            dirty_bytes: None,
            dirty_ms: None,
            map_epoch: None,
            takeovers: None,
            trees: None,
        }
    }
}

/// The growth of a counter; `None` if it restarted in between.
fn grown(before: &ServerSamples, now: &ServerSamples, name: &str) -> Option<f64> {
    let grown = now.sum(name)? - before.sum(name)?;
    (grown >= 0.0).then_some(grown)
}

fn ratio(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    let whole = whole.filter(|whole| *whole > 0.0)?;
    Some(part? / whole)
}

fn row(server: ServerNumber, before: Option<&ServerSample>, now: &ServerSample) -> ServerRow {
    let address = now.address.clone();
    let numbers = match &now.answer {
        None => return ServerRow::without_figures(server, ServerState::NoMetrics, address),
        Some(Err(why)) => {
            return ServerRow::without_figures(
                server,
                ServerState::Silent(why.to_string()),
                address,
            );
        }
        Some(Ok(numbers)) => numbers,
    };
    // Another process with the same number has its own counters.
    let before = before.filter(|before| before.epoch == now.epoch);
    let before = before.and_then(|before| before.answer.as_ref()?.as_ref().ok());
    let grown = |name: &str| grown(before?, numbers, name);
    let ns = before.map(|before| numbers.at_ns.saturating_sub(before.at_ns));
    let seconds = ns.map(|ns| ns as f64 / 1e9);
    let bare = ServerRow::without_figures(server, ServerState::Live, address);
    let connections = numbers.sum("connections");
    match server {
        ServerNumber::Memory(_) => ServerRow {
            operations_per_s: ratio(grown("requests_total"), seconds),
            connections,
            memory_bytes: numbers.sum("allocated_bytes"),
            pool_bytes: numbers.sum("pool_bytes"),
            ..bare
        },
        ServerNumber::Compute(_) => {
            let operations = grown("operations_total");
            let hits = grown("cache_leaf_hits_total");
            let misses = grown("cache_leaf_misses_total");
            let looked = hits.zip(misses).map(|(hits, misses)| hits + misses);
            let trees = numbers.sum("dlsm_shards").map(|shards| LsmTreeFigures {
                shards,
                levels: numbers.sum("dlsm_levels"),
                tables: numbers.sum("dlsm_tables"),
                level0_tables: numbers.sum("dlsm_most_level0_tables"),
                table_bytes: numbers.sum("dlsm_table_bytes"),
                memtable_bytes: numbers.sum("dlsm_memtable_bytes"),
                index_bytes: numbers.sum("dlsm_index_bytes"),
                waiting: numbers.sum("dlsm_waiting_memtables"),
                merges: numbers.sum("dlsm_running_merges"),
                stalls: grown("dlsm_stalls_total"),
                failures: grown("dlsm_failures_total"),
                flushed_bytes_per_s: ratio(grown("dlsm_flushed_bytes_total"), seconds),
                merged_bytes_per_s: ratio(grown("dlsm_merged_bytes_total"), seconds),
            });
            ServerRow {
                operations_per_s: ratio(operations, seconds),
                operations: numbers.sum("operations_total"),
                hit_ratio: ratio(hits, looked),
                remote_per_operation: ratio(grown("remote_operations_total"), operations),
                bytes_per_operation: ratio(grown("remote_bytes_total"), operations),
                connections,
                memory_bytes: numbers.sum("cached_bytes"),
                dirty_bytes: numbers.sum("dirty_bytes"),
                dirty_ms: numbers.sum("oldest_dirty_seconds").map(|seconds| seconds * 1e3),
                map_epoch: numbers.sum("map_epoch"),
                takeovers: numbers.sum("takeovers"),
                trees,
                ..bare
            }
        }
    }
}

/// One row for each server that should exist or does exist.
pub(super) fn rows(
    standing: &ClusterStatus,
    before: &ClusterSample,
    now: &ClusterSample,
) -> Vec<ServerRow> {
    let settings = standing.settings.as_ref();
    let (memory, compute) =
        settings.map_or((0, 0), |settings| (settings.memory_servers, settings.compute_servers));
    let expected =
        (0..memory).map(ServerNumber::Memory).chain((0..compute).map(ServerNumber::Compute));
    let mut rows: BTreeMap<ServerNumber, ServerRow> = expected
        .map(|server| {
            (server, ServerRow::without_figures(server, ServerState::Gone, String::new()))
        })
        .collect();
    for (server, seen) in now {
        rows.insert(*server, row(*server, before.get(server), seen));
    }
    let mut rows: Vec<ServerRow> = rows.into_values().collect();
    share_out(&mut rows);
    rows
}

/// Computes the shares.
fn share_out(rows: &mut [ServerRow]) {
    let is_compute = |row: &ServerRow| matches!(row.server, ServerNumber::Compute(_));
    let sum = |of_compute: bool, of: fn(&ServerRow) -> Option<f64>| {
        rows.iter().filter(|row| is_compute(row) == of_compute).filter_map(of).sum::<f64>()
    };
    let memory = sum(false, |row| row.memory_bytes);
    let (now, ever) = (sum(true, |row| row.operations_per_s), sum(true, |row| row.operations));
    for row in rows {
        row.share = match (is_compute(row), now > 0.0) {
            (false, _) => ratio(row.memory_bytes, Some(memory)),
            (true, true) => ratio(row.operations_per_s, Some(now)),
            (true, false) => ratio(row.operations, Some(ever)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(epoch: u64, at_ns: u64, text: &str) -> ServerSample {
        let mut numbers = ServerSamples::parse(text).unwrap();
        numbers.at_ns = at_ns;
        ServerSample { epoch, address: "a".into(), answer: Some(Ok(numbers)) }
    }

    fn text(operations: u64, hits: u64, misses: u64, remote: u64) -> String {
        format!(
            "farleaf_operations_total{{kind=\"lookup\"}} {operations}\n\
             farleaf_operations_total{{kind=\"scan\"}} 1\nfarleaf_cache_leaf_hits_total {hits}\n\
             farleaf_cache_leaf_misses_total {misses}\nfarleaf_connections 3\n\
             farleaf_remote_operations_total{{verb=\"read\"}} {remote}\n\
             farleaf_remote_bytes_total {}\nfarleaf_cached_bytes 77\nfarleaf_dirty_bytes 8\n\
             farleaf_oldest_dirty_seconds 0.75\nfarleaf_map_epoch 1\n",
            remote * 100
        )
    }

    #[test]
    fn loads_are_differences() {
        let server = ServerNumber::Compute(1);
        let before = seen(5, 1_000_000_000, &text(100, 50, 50, 10));
        let now = seen(5, 3_000_000_000, &text(300, 200, 100, 60));
        let found = row(server, Some(&before), &now);
        assert_eq!(found.operations_per_s, Some(100.0));
        assert_eq!(found.hit_ratio, Some(0.75));
        assert_eq!(
            (found.remote_per_operation, found.bytes_per_operation),
            (Some(0.25), Some(25.0))
        );
        assert_eq!((found.connections, found.memory_bytes), (Some(3.0), Some(77.0)));
        assert_eq!((found.dirty_bytes, found.dirty_ms), (Some(8.0), Some(750.0)));
        assert_eq!(found.state, ServerState::Live);
        // Without operations there are no ratios.
        let idle = row(server, Some(&now), &ServerSample { ..now.clone() });
        assert_eq!((idle.operations_per_s, idle.hit_ratio), (None, None));
        let later = seen(5, 4_000_000_000, &text(300, 200, 100, 60));
        let idle = row(server, Some(&now), &later);
        assert_eq!((idle.operations_per_s, idle.hit_ratio), (Some(0.0), None));
        assert_eq!(idle.remote_per_operation, None);
    }

    /// Rates and stalls of LSM trees are differences between two samples; all other figures are
    /// those of the later one.
    #[test]
    fn trees_have_figures_of_their_own() {
        let text = |done: u64| {
            format!(
                "farleaf_dlsm_shards 3\nfarleaf_dlsm_levels 2\nfarleaf_dlsm_waiting_memtables 4\n\
                 farleaf_dlsm_running_merges 1\nfarleaf_dlsm_stalls_total {done}\n\
                 farleaf_dlsm_merged_bytes_total {}\n",
                done * 1000
            )
        };
        let server = ServerNumber::Compute(0);
        let (before, now) = (seen(5, 0, &text(10)), seen(5, 2_000_000_000, &text(30)));
        let found = row(server, Some(&before), &now);
        let trees = found.trees.unwrap();
        assert_eq!((trees.shards, trees.levels, trees.waiting), (3.0, Some(2.0), Some(4.0)));
        assert_eq!((trees.merges, trees.stalls), (Some(1.0), Some(20.0)));
        assert_eq!((trees.merged_bytes_per_s, trees.flushed_bytes_per_s), (Some(10_000.0), None));
        // A server without trees has none, and no table of them.
        let other = row(server, None, &seen(5, 1, "farleaf_connections 1\n"));
        assert_eq!(other.trees, None);
        assert!(crate::programs::top::draw::trees(&[other]).is_none());
        let drawn = crate::programs::top::draw::trees(&[found]).unwrap().text(200);
        assert!(drawn.contains("compute 0") && drawn.contains("9.8 KiB"), "{drawn}");
    }

    #[test]
    fn shares_are_parts_of_all_servers_of_a_kind() {
        let look = |at_ns, operations: [u64; 2]| {
            let seen = |count| seen(5, at_ns, &text(count, 1, 1, 1));
            let compute =
                [0, 1].map(|n| (ServerNumber::Compute(n), seen(operations[usize::from(n)])));
            let memory = [(0, 30), (1, 10)].map(|(number, bytes)| {
                let text = format!("farleaf_allocated_bytes {bytes}\n");
                (ServerNumber::Memory(number), self::seen(6, at_ns, &text))
            });
            compute.into_iter().chain(memory).collect::<ClusterSample>()
        };
        let standing = ClusterStatus {
            settings: None,
            memory: vec![],
            compute: vec![],
            index: None,
            map: None,
        };
        let shares = |before, now| {
            let rows = rows(&standing, &before, &now);
            rows.iter().map(|row| row.share).collect::<Vec<_>>()
        };
        let busy = shares(look(1, [99, 99]), look(1_000_000_001, [109, 129]));
        assert_eq!(busy, [Some(0.75), Some(0.25), Some(0.25), Some(0.75)]);
        let idle = shares(look(1, [99, 299]), look(1_000_000_001, [99, 299]));
        assert_eq!(idle[2..], [Some(0.25), Some(0.75)]);
    }

    #[test]
    fn what_was_started_again_has_no_load_yet() {
        let server = ServerNumber::Compute(0);
        let before = seen(5, 1, &text(100, 50, 50, 10));
        let restarted = row(server, Some(&before), &seen(6, 2_000_000_000, &text(300, 90, 90, 90)));
        assert_eq!((restarted.operations_per_s, restarted.connections), (None, Some(3.0)));
        // Some counters restart at 0 with a new generation of the index.
        let again = row(server, Some(&before), &seen(5, 2_000_000_001, &text(300, 3, 4, 5)));
        assert_eq!((again.hit_ratio, again.remote_per_operation), (None, None));
        assert_eq!(again.operations_per_s, Some(100.0));
        assert_eq!(row(server, None, &before).operations_per_s, None);
    }

    #[test]
    fn whoever_says_nothing_has_a_line() {
        let standing = ClusterStatus {
            settings: Some(farleaf_cluster::records::SettingsRecord {
                memory_servers: 1,
                compute_servers: 2,
                transport: farleaf_cluster::records::PoolTransport::Tcp,
                placement_level: 2,
                keys: "u64".into(),
                page_bytes: 1024,
                index: farleaf_cluster::records::IndexName::default(),
            }),
            memory: Vec::new(),
            compute: Vec::new(),
            index: None,
            map: None,
        };
        let silent = ServerSample { answer: Some(Err(ScrapeFailure::TimedOut)), ..seen(1, 1, "") };
        let plain = ServerSample { answer: None, ..seen(1, 1, "") };
        let now = ClusterSample::from([
            (ServerNumber::Compute(1), silent),
            (ServerNumber::Compute(7), plain),
        ]);
        let rows = rows(&standing, &ClusterSample::new(), &now);
        let states: Vec<_> = rows.iter().map(|row| (row.server, row.state.clone())).collect();
        assert_eq!(states[0], (ServerNumber::Memory(0), ServerState::Gone));
        assert_eq!(states[1], (ServerNumber::Compute(0), ServerState::Gone));
        assert!(matches!(states[2], (ServerNumber::Compute(1), ServerState::Silent(_))));
        assert_eq!(states[3], (ServerNumber::Compute(7), ServerState::NoMetrics));
    }
}
