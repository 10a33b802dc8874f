//! The settings and results of a run, as one JSON object.
//!
//! Field names are a contract with the scripts that read them. New fields are added at the end.
//!
//! *Thread safety*: plain values.

use crate::driver::{AppliedChange, Measurement};
use crate::timeline::Timeline;
use farleaf_index::ReshapeCost;
use farleaf_pool::wire::Usage;
use serde::{Deserialize, Serialize};

/// The settings and results of one run. Outside the simulator, `seconds`, `throughput_ops_per_s`,
/// `latency_ns`, `load_seconds` and the processor time depend on the machine. All other figures
/// depend only on the settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the index design.
    pub index: String,
    /// Name of the workload, or `trace`.
    pub workload: String,
    /// Distribution of the keys of operations.
    pub distribution: String,
    /// Name of the fabric provider.
    pub fabric: String,
    /// Keys loaded; for a trace, keys in the index at the end.
    pub keys: u64,
    /// Operations measured, including failed ones.
    pub operations: u64,
    /// Clients per compute server.
    pub threads: u16,
    /// Number of memory servers.
    pub memory_servers: u16,
    /// Number of compute servers.
    pub compute_servers: u16,
    /// Cache size of each compute server; 0 for designs without a cache.
    pub cache_bytes_per_compute_server: u64,
    /// Seed of all randomness.
    pub seed: u64,
    /// Duration of the measurement, from the first client's start to the last one's end.
    pub seconds: f64,
    /// Successful operations per second, over all clients.
    pub throughput_ops_per_s: f64,
    /// Latencies of successful operations.
    pub latency_ns: Latency,
    /// Average cost of an operation.
    pub per_operation: PerOperation,
    /// The caches' counters, and their size at the end.
    pub cache: CacheReport,
    /// Memory of the index, at the end.
    pub memory: MemoryReport,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that found no record or, for insertions, an existing one.
    pub misses: u64,
    /// Message of the first error.
    pub first_error: Option<String>,
    /// Fill factor of pages in the bulk load.
    pub fill: f64,
    /// Whether popular keys are neighbours.
    pub clustered: bool,
    /// How keys were partitioned among memory servers.
    pub partitioning: String,
    /// Weights of the memory servers under range partitioning.
    pub placement: Vec<u64>,
    /// Network round trip, excluding the time of NICs and processors.
    pub network_latency_ns: u64,
    /// Simulated cores of each memory server; `None` on other fabrics.
    pub server_cores: Option<usize>,
    /// Threads of each memory server, 0 if requests run inline in the caller; `None` in the
    /// simulator.
    pub server_threads: Option<usize>,
    /// Duration of the load, in the fabric's time.
    pub load_seconds: f64,
    /// The distribution of latencies, if asked for: fractions of the operations from 0 to 1, and
    /// the nanoseconds within which they ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<(f64, u64)>,
    /// Each subtree of this level lies entirely on one memory server, in designs that place
    /// subtrees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_level: Option<u8>,
    /// The shift of the popular keys during the run, if one was planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotspot_shift: Option<HotspotShifted>,
    /// Each compute server's fraction of the operations, from 0 to 1, if counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute_server_shares: Vec<f64>,
    /// Changes made while the clients ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<ReshapeReport>,
    /// Operations over time, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Maximum number of single-key operations that a client passed to the index in one call;
    /// `None` if each had its own call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u16>,
    /// Processor time of the clients' threads during the measurement, without drawing operations.
    /// `None` in the simulator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// `cpu_seconds` divided by the operations, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_operation: Option<f64>,
    /// The harness's part of `cpu_ns_per_operation`, measured over an index that does nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness_cpu_ns_per_operation: Option<f64>,
    /// For byte strings: the form of the keys; `None` for numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_form: Option<String>,
    /// For byte strings: average length of a loaded key, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_bytes: Option<f64>,
    /// For byte strings: average length of a value, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_bytes: Option<f64>,
    /// For byte strings: the size of pages, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<u64>,
    /// Value blocks, of byte strings, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<ValueBlockReport>,
    /// Successful lookups and scans among the operations.
    #[serde(default)]
    pub lookups: u64,
    /// The fraction of them that found a record, from 0 to 1; `None` without lookups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_ratio: Option<f64>,
    /// For a trace: `loaded` if the index had the trace's keys at first, otherwise `empty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_start: Option<String>,
}

/// The settings of value blocks, and how their cache was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueBlockReport {
    /// Longer values are in blocks.
    pub inline_bytes: u64,
    /// The part of `cache_bytes_per_compute_server` that is for blocks, in percent; 0 for designs
    /// without a cache.
    pub cache_percent: u8,
    /// Bytes of this part, of all compute servers together, which share it.
    pub cache_bytes: u64,
    /// Values found in the cache, per operation.
    pub hits: f64,
    /// Values that were not, per operation. Each is read from a memory server.
    pub misses: f64,
    /// Share of the lookups of blocks that found the value in the cache.
    pub hit_ratio: f64,
}

/// A shift of the popular keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotspotShifted {
    /// When the first client's hotspot shifted, relative to the start of the measurement; `None` if
    /// the run ended earlier.
    pub at_ns: Option<u64>,
    /// How far all ranks moved, in percent of the keys.
    pub by_percent: f64,
}

/// A move of keys or the addition of a memory server, made or attempted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReshapeReport {
    /// When it began, from the start of the measurement.
    pub at_ns: u64,
    /// A short description, or the error.
    pub what: String,
    /// Whether the balancer made it.
    pub by_balancer: bool,
    /// The compute servers that gave up and received keys; `None` for other or failed changes.
    pub moved: Option<(u16, u16)>,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// WRITEs of changed nodes.
    pub writes: u64,
    /// Payload bytes of these WRITEs.
    pub bytes_written: u64,
    /// Whether it succeeded.
    pub done: bool,
}

impl From<&AppliedChange> for ReshapeReport {
    fn from(made: &AppliedChange) -> Self {
        let done = made.outcome.as_ref().ok().copied();
        let ReshapeCost { took_ns, writes, bytes_written, moved, .. } = done.unwrap_or_default();
        Self {
            at_ns: made.at_ns,
            what: made.label(),
            by_balancer: made.by_balancer,
            moved,
            took_ns,
            writes,
            bytes_written,
            done: done.is_some(),
        }
    }
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Maximum.
    pub max: u64,
}

/// Network costs, divided by the number of index operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerOperation {
    /// One-sided READs.
    pub reads: f64,
    /// One-sided WRITEs.
    pub writes: f64,
    /// CAS and FETCH-ADD.
    pub atomics: f64,
    pub rpcs: f64,
    /// Payload bytes of READs.
    pub bytes_read: f64,
    /// Payload bytes of WRITEs.
    pub bytes_written: f64,
    /// Payload bytes of RPC requests and replies.
    pub rpc_bytes: f64,
    /// Operations that were retried.
    pub retries: f64,
    /// Doorbells: batches of operations that were posted together.
    pub doorbells: f64,
}

impl PerOperation {
    /// All payload bytes, in both directions; an atomic moves 8.
    pub fn bytes(&self) -> f64 {
        self.bytes_read + self.bytes_written + self.rpc_bytes + 8.0 * self.atomics
    }

    /// All network operations.
    pub fn remote(&self) -> f64 {
        self.reads + self.writes + self.atomics + self.rpcs
    }
}

/// Cache counters and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Fraction of leaf lookups that found the leaf in the cache.
    pub hit_ratio: f64,
    /// Bytes in use, over all compute servers.
    pub bytes_used: u64,
    /// Leaves found in a frame, per operation.
    pub leaf_hits: f64,
    /// Leaf hits on cooling frames, per operation.
    pub cooling_hits: f64,
    /// Leaves read from a memory server, per operation.
    pub leaf_misses: f64,
    /// Leaf misses for which only a window of the leaf was read, per operation.
    #[serde(default)]
    pub leaf_windows: f64,
    /// Lookups answered by a copy of a hot record, per operation.
    #[serde(default)]
    pub record_hits: f64,
    /// Inner nodes read from a memory server, per operation.
    pub inner_misses: f64,
    /// Cooling nodes that became hot again, per operation.
    pub reheats: f64,
    /// Nodes evicted, per operation.
    pub evictions: f64,
    /// WRITEs of changed nodes on eviction, per operation.
    pub write_backs: f64,
    /// WRITEs of single changes, per operation.
    pub write_throughs: f64,
    /// Operations that memory servers executed below an uncached node, per operation.
    pub offloads: f64,
    /// Operations offloaded to memory servers that refused them, per operation.
    pub offload_refusals: f64,
}

/// Memory of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Bytes allocated as chunks, over all memory servers, or on the single machine.
    pub pool_bytes_allocated: u64,
    /// `pool_bytes_allocated` divided by the keys in the index.
    pub pool_bytes_per_key: f64,
    /// The part of `pool_bytes_allocated` that is the index's own memory on compute servers.
    #[serde(default)]
    pub local_bytes: u64,
    /// Peak memory of this process, if the system reports it. If everything runs in one process,
    /// nearly all of it is the pool.
    pub process_peak_bytes: Option<u64>,
}

/// The process's peak resident memory, in bytes.
fn process_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

impl Report {
    /// Fills in the results of a run. The caller fills in the settings.
    #[must_use]
    pub fn with_measurement(mut self, measured: &Measurement) -> Self {
        let latency = &measured.latency_ns;
        let counters = &measured.counters;
        let operations = measured.operations.max(1) as f64;
        let per_operation = |count: u64| count as f64 / operations;
        self.operations = measured.operations;
        self.seconds = measured.elapsed_ns as f64 / 1e9;
        if measured.cpu_ns > 0 && self.fabric != "sim" {
            self.cpu_seconds = Some(measured.cpu_ns as f64 / 1e9);
            self.cpu_ns_per_operation = Some(per_operation(measured.cpu_ns));
        }
        let succeeded = (measured.operations - measured.errors) as f64;
        self.throughput_ops_per_s = succeeded / measured.elapsed_ns.max(1) as f64 * 1e9;
        self.latency_ns = Latency {
            p50: latency.value_at_quantile(0.5),
            p99: latency.value_at_quantile(0.99),
            p999: latency.value_at_quantile(0.999),
            mean: latency.mean(),
            max: latency.max(),
        };
        self.per_operation = PerOperation {
            reads: per_operation(counters.reads),
            writes: per_operation(counters.writes),
            atomics: per_operation(counters.atomics),
            rpcs: per_operation(counters.rpcs),
            bytes_read: per_operation(counters.bytes_read),
            bytes_written: per_operation(counters.bytes_written),
            rpc_bytes: per_operation(counters.rpc_bytes),
            retries: per_operation(counters.retries),
            doorbells: per_operation(counters.doorbells),
        };
        let cache = &measured.cache;
        self.cache = CacheReport {
            hit_ratio: cache.hit_ratio(),
            bytes_used: self.cache.bytes_used,
            leaf_hits: per_operation(cache.leaf_hits),
            cooling_hits: per_operation(cache.cooling_hits),
            leaf_misses: per_operation(cache.leaf_misses),
            leaf_windows: per_operation(cache.leaf_windows),
            record_hits: per_operation(cache.record_hits),
            inner_misses: per_operation(cache.inner_misses),
            reheats: per_operation(cache.reheats),
            evictions: per_operation(cache.evictions),
            write_backs: per_operation(cache.write_backs),
            write_throughs: per_operation(cache.write_throughs),
            offloads: per_operation(cache.offloads),
            offload_refusals: per_operation(cache.offload_refusals),
        };
        if let Some(blocks) = &mut self.blocks {
            let found = (cache.block_hits + cache.block_misses).max(1);
            blocks.hits = per_operation(cache.block_hits);
            blocks.misses = per_operation(cache.block_misses);
            blocks.hit_ratio = cache.block_hits as f64 / found as f64;
        }
        self.errors = measured.errors;
        self.misses = measured.misses;
        self.lookups = measured.lookups;
        self.found_ratio =
            (measured.lookups > 0).then(|| measured.found as f64 / measured.lookups as f64);
        self.first_error = measured.first_error.as_ref().map(ToString::to_string);
        if let Some(shift) = &mut self.hotspot_shift {
            shift.at_ns = measured.shifted_at_ns;
        }
        self.compute_server_shares =
            measured.timeline.as_ref().map(Timeline::shares).unwrap_or_default();
        self.changes = measured.changes.iter().map(ReshapeReport::from).collect();
        self.timeline = measured.timeline.clone();
        self
    }

    /// Fills in the distribution of latencies.
    #[must_use]
    pub fn with_latencies(mut self, measured: &Measurement) -> Self {
        let percents = (1..=99).map(f64::from).chain([99.5, 99.9, 99.99, 100.0]);
        let at = |percent: f64| {
            (percent / 100.0, measured.latency_ns.value_at_quantile(percent / 100.0))
        };
        self.latencies = percents.map(at).collect();
        self
    }

    /// Fills in the bytes of pages in the caches of all compute servers.
    #[must_use]
    pub fn with_cached_bytes(mut self, bytes: u64) -> Self {
        self.cache.bytes_used = bytes;
        self
    }

    /// Fills in the memory that `records` records take: that of the memory servers, plus
    /// `local_bytes` on the compute side.
    #[must_use]
    pub fn with_memory(mut self, usage: &[Usage], local_bytes: u64, records: u64) -> Self {
        let on_servers: u64 = usage.iter().map(|usage| usage.allocated_bytes).sum();
        let allocated = on_servers + local_bytes;
        self.memory = MemoryReport {
            pool_bytes_allocated: allocated,
            pool_bytes_per_key: allocated as f64 / records.max(1) as f64,
            local_bytes,
            // A simulated run must always give the same report, so omit this.
            process_peak_bytes: (self.fabric != "sim").then(process_peak_bytes).flatten(),
        };
        self
    }

    /// Serializes the report as a pretty-printed JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain fields make JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_json_has_the_fields_of_the_contract() {
        let json: Value = serde_json::from_str(&Report::default().to_json()).unwrap();
        let texts = ["index", "workload", "distribution", "fabric"];
        let integers = [
            "keys",
            "operations",
            "threads",
            "memory_servers",
            "compute_servers",
            "cache_bytes_per_compute_server",
            "seed",
            "errors",
        ];
        let floats = ["seconds", "throughput_ops_per_s"];
        assert!(texts.iter().all(|name| json[name].is_string()));
        assert!(integers.iter().all(|name| json[name].is_u64()));
        assert!(floats.iter().all(|name| json[name].is_f64()));
        assert!(["p50", "p99", "p999"].iter().all(|name| json["latency_ns"][name].is_u64()));
        let per_operation = [
            "reads",
            "writes",
            "atomics",
            "rpcs",
            "bytes_read",
            "bytes_written",
            "rpc_bytes",
            "retries",
        ];
        assert!(per_operation.iter().all(|name| json["per_operation"][name].is_f64()));
        assert!(json["cache"]["hit_ratio"].is_f64() && json["cache"]["bytes_used"].is_u64());
        assert!(json["memory"]["pool_bytes_allocated"].is_u64());
        assert!(json["memory"]["pool_bytes_per_key"].is_f64());
        let read_back: Report = serde_json::from_value(json).unwrap();
        assert_eq!(read_back, Report::default());
    }

    #[test]
    fn what_was_not_asked_for_is_not_in_the_json() {
        let json = Report::default().to_json();
        assert!(!json.contains("timeline") && !json.contains("hotspot"), "{json}");
        assert!(!json.contains("blocks"), "{json}");
        let asked = Report {
            timeline: Some(Timeline::default()),
            blocks: Some(ValueBlockReport {
                inline_bytes: 200,
                hits: 0.5,
                ..ValueBlockReport::default()
            }),
            ..Report::default()
        };
        assert_eq!(serde_json::from_str::<Report>(&asked.to_json()).unwrap(), asked);
    }
}
