//! What a run was and what it cost, as one JSON object.
//!
//! The names are a contract: scripts read them. New ones may be added at the end.
//!
//! *Thread safety*: plain values.

use crate::driver::{Made, Measurement};
use crate::timeline::Timeline;
use farleaf::index::Reshaped;
use farleaf::wire::Usage;
use serde::{Deserialize, Serialize};

/// What was measured on what. Figures that the machine decides are `seconds`, `throughput_ops_per_s`,
/// `latency_ns` and `load_seconds`, except in the simulator; all others depend on the settings alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The design.
    pub index: String,
    /// The workload, or `trace`.
    pub workload: String,
    /// How often which key was asked for.
    pub distribution: String,
    /// The provider.
    pub fabric: String,
    /// Keys that were loaded; for a trace, those in the index at the end.
    pub keys: u64,
    /// Operations that were measured, failed ones included.
    pub operations: u64,
    /// Clients of each compute server.
    pub threads: u16,
    /// Memory servers.
    pub memory_servers: u16,
    /// Compute servers.
    pub compute_servers: u16,
    /// The cache of each compute server; 0 for designs that have none.
    pub cache_bytes_per_compute_server: u64,
    /// Where randomness started.
    pub seed: u64,
    /// How long the measured operations took, all clients together.
    pub seconds: f64,
    /// Operations that did not fail, per second, of all clients together.
    pub throughput_ops_per_s: f64,
    /// Latencies of operations that did not fail.
    pub latency_ns: Latency,
    /// What an operation cost on average.
    pub per_operation: PerOperation,
    /// The cache, at the end.
    pub cache: Cache,
    /// The index's memory, at the end.
    pub memory: Memory,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that found no record, or for an insertion one that was there.
    pub misses: u64,
    /// What the first error was.
    pub first_error: Option<String>,
    /// How full pages were made by the load.
    pub fill: f64,
    /// Whether popular keys lay side by side.
    pub clustered: bool,
    /// How keys were split among memory servers.
    pub partitioning: String,
    /// The memory servers' shares under range partitioning, as weights.
    pub placement: Vec<u64>,
    /// A round trip, without what NICs and processors take.
    pub network_latency_ns: u64,
    /// Simulated cores of each memory server; none on other fabrics.
    pub server_cores: Option<usize>,
    /// Threads of each memory server, 0 being inline in the caller; none in the simulator.
    pub server_threads: Option<usize>,
    /// How long the load took, in the fabric's time.
    pub load_seconds: f64,
    /// Subtrees of this level lie whole on one memory server, in designs that place subtrees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_level: Option<u8>,
    /// The change of the popular keys during the run, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotspot_shift: Option<HotspotShifted>,
    /// The parts of the operations that each compute server did, from 0 to 1, where that was counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute_server_shares: Vec<f64>,
    /// What changed during the run beside the clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Changed>,
    /// What was done over time, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// A change of the popular keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotspotShifted {
    /// When it came, for the first client, from the start of the measurement; none if the run ended before.
    pub at_ns: Option<u64>,
    /// How far all keys moved, in percent of the keys.
    pub by_percent: f64,
}

/// Keys that moved, or a memory server that came.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// When it began, from the start of the measurement.
    pub at_ns: u64,
    /// What it was, or why it was not, in a few words.
    pub what: String,
    /// Whether a balancer did it.
    pub by_balancer: bool,
    /// Who let go of keys, and who took them over; none if it was something else, or did not come about.
    pub moved: Option<(u16, u16)>,
    /// How long it took.
    pub took_ns: u64,
    /// WRITEs of changed nodes.
    pub writes: u64,
    /// Their payload.
    pub bytes_written: u64,
    /// Whether it came about.
    pub done: bool,
}

impl From<&Made> for Changed {
    fn from(made: &Made) -> Self {
        let done = made.outcome.as_ref().ok().copied();
        let Reshaped { took_ns, writes, bytes_written, moved, .. } = done.unwrap_or_default();
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
    /// The median.
    pub p50: u64,
    /// 99% were shorter.
    pub p99: u64,
    /// 99.9% were shorter.
    pub p999: u64,
    /// The average.
    pub mean: f64,
    /// The longest.
    pub max: u64,
}

/// Costs on the network, divided by the index operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerOperation {
    /// One-sided READs.
    pub reads: f64,
    /// One-sided WRITEs.
    pub writes: f64,
    /// CAS and FETCH-ADD.
    pub atomics: f64,
    /// RPCs.
    pub rpcs: f64,
    /// Payload of READs.
    pub bytes_read: f64,
    /// Payload of WRITEs.
    pub bytes_written: f64,
    /// Requests and replies of RPCs.
    pub rpc_bytes: f64,
    /// Operations done again.
    pub retries: f64,
    /// Batches that went out together.
    pub doorbells: f64,
}

impl PerOperation {
    /// All payload bytes, both ways; an atomic moves 8.
    pub fn bytes(&self) -> f64 {
        self.bytes_read + self.bytes_written + self.rpc_bytes + 8.0 * self.atomics
    }
}

/// A cache's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// Leaves that were found in the cache, of all that were asked for.
    pub hit_ratio: f64,
    /// Bytes in use, of all compute servers.
    pub bytes_used: u64,
    /// Leaves per operation that were found in a frame.
    pub leaf_hits: f64,
    /// Those of them that were cooling.
    pub cooling_hits: f64,
    /// Leaves per operation that were read from a memory server.
    pub leaf_misses: f64,
    /// Inner nodes per operation that were read from a memory server.
    pub inner_misses: f64,
    /// Cooling nodes per operation that became hot again.
    pub reheats: f64,
    /// Nodes per operation that left the cache.
    pub evictions: f64,
    /// WRITEs of changed nodes on their way out, per operation.
    pub write_backs: f64,
    /// WRITEs of single changes, per operation.
    pub write_throughs: f64,
    /// Operations that memory servers did below a missing node, per operation.
    pub offloads: f64,
    /// Operations that they were asked to do and would not, per operation.
    pub offload_refusals: f64,
}

/// The index's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes given out in chunks, of all memory servers, or of the one machine that the index is on.
    pub pool_bytes_allocated: u64,
    /// The same, divided by the keys in the index.
    pub pool_bytes_per_key: f64,
    /// The most memory that this process has had at any time, where the system tells: with everything in
    /// one process, the pool is nearly all of it.
    pub process_peak_bytes: Option<u64>,
}

/// The process's peak of resident memory, in bytes.
fn process_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

impl Report {
    /// Fills in what came out of a run; what the run was is for the caller to say.
    #[must_use]
    pub fn with_measurement(mut self, measured: &Measurement) -> Self {
        let latency = &measured.latency_ns;
        let counters = &measured.counters;
        let operations = measured.operations.max(1) as f64;
        let per_operation = |count: u64| count as f64 / operations;
        self.operations = measured.operations;
        self.seconds = measured.elapsed_ns as f64 / 1e9;
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
        self.cache = Cache {
            hit_ratio: cache.hit_ratio(),
            bytes_used: self.cache.bytes_used,
            leaf_hits: per_operation(cache.leaf_hits),
            cooling_hits: per_operation(cache.cooling_hits),
            leaf_misses: per_operation(cache.leaf_misses),
            inner_misses: per_operation(cache.inner_misses),
            reheats: per_operation(cache.reheats),
            evictions: per_operation(cache.evictions),
            write_backs: per_operation(cache.write_backs),
            write_throughs: per_operation(cache.write_throughs),
            offloads: per_operation(cache.offloads),
            offload_refusals: per_operation(cache.offload_refusals),
        };
        self.errors = measured.errors;
        self.misses = measured.misses;
        self.first_error = measured.first_error.as_ref().map(ToString::to_string);
        if let Some(shift) = &mut self.hotspot_shift {
            shift.at_ns = measured.shifted_at_ns;
        }
        self.compute_server_shares =
            measured.timeline.as_ref().map(Timeline::shares).unwrap_or_default();
        self.changes = measured.made.iter().map(Changed::from).collect();
        self.timeline = measured.timeline.clone();
        self
    }

    /// Fills in how many bytes of pages the caches of all compute servers hold.
    #[must_use]
    pub fn with_cached_bytes(mut self, bytes: u64) -> Self {
        self.cache.bytes_used = bytes;
        self
    }

    /// Fills in how much memory `records` records take: that of the memory servers, and `local_bytes` of
    /// the compute side.
    #[must_use]
    pub fn with_memory(mut self, usage: &[Usage], local_bytes: u64, records: u64) -> Self {
        let on_servers: u64 = usage.iter().map(|usage| usage.allocated_bytes).sum();
        let allocated = on_servers + local_bytes;
        self.memory = Memory {
            pool_bytes_allocated: allocated,
            pool_bytes_per_key: allocated as f64 / records.max(1) as f64,
            // A simulated run says the same every time.
            process_peak_bytes: (self.fabric != "sim").then(process_peak_bytes).flatten(),
        };
        self
    }

    /// The report as one JSON object of several lines.
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
        let asked = Report { timeline: Some(Timeline::default()), ..Report::default() };
        assert_eq!(serde_json::from_str::<Report>(&asked.to_json()).unwrap(), asked);
    }
}
