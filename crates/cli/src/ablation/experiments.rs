//! The experiments as data: what each one varies, and the results that the paper reports.
//!
//! Lu et al., *DEX: Scalable Range Indexing on Disaggregated Memory* (VLDB 2024), §8.3. A new step
//! is a new row.

use farleaf_bench::report::Report;

/// Parts that can be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// Figure 8: a plain one-sided B+-tree, with logical partitions, with a cache
    Steps,
    /// Figure 9: how eviction candidates are kept, and how leaves are admitted to the cache
    Cache,
    /// Figure 12: offloading, with an increasing number of threads on each memory server
    Offload,
    /// The cache's policies on a recorded trace
    Trace,
}

/// A row's name, and its arguments for `farleaf bench`.
pub(super) type Words = (&'static str, &'static str);

/// One row of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The row on which it builds.
    pub(super) after: Option<&'static str>,
    pub(super) words: &'static str,
    /// The cache of all compute servers together, in percent of the data; `None` if the arguments
    /// or the setting define it.
    pub(super) cache_percent: Option<f64>,
}

/// The machines of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machines {
    pub(super) name: &'static str,
    pub(super) words: &'static str,
    /// The fraction of the whole cache that these machines have.
    pub(super) cache_share: f64,
    /// Number of runs, of which the one with the median throughput is reported; simulated runs are
    /// deterministic.
    pub(super) runs: usize,
}

/// A figure of a report.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) value: fn(&Report) -> String,
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// One experiment: a table for each setting, with one line per row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experiment {
    pub(super) part: Part,
    pub(super) title: &'static str,
    pub(super) words: &'static str,
    pub(super) settings: &'static [Words],
    pub(super) rows: &'static [Row],
    /// The figures come from the first machines; for the others only the throughput is shown.
    pub(super) machines: &'static [Machines],
    pub(super) shows_throughput: bool,
    pub(super) columns: &'static [Column],
    pub(super) paper: &'static str,
}

const fn row(name: &'static str, words: &'static str) -> Row {
    Row { name, after: None, words, cache_percent: None }
}

const fn step(
    name: &'static str,
    after: &'static str,
    words: &'static str,
    cache_percent: Option<f64>,
) -> Row {
    Row { name, after: Some(after), words, cache_percent }
}

/// The paper's setup: four compute servers with 36 threads each.
const ALL: Machines = Machines {
    name: "144 threads",
    words: "--fabric sim --compute-servers 4 --threads 36",
    cache_share: 1.0,
    runs: 1,
};
/// The paper fills one compute server after the other. The first one has a quarter of the whole
/// cache.
const TWO_THREADS: Machines = Machines {
    name: "2 threads",
    words: "--fabric sim --compute-servers 1 --threads 2",
    cache_share: 0.25,
    runs: 1,
};
/// Real threads on one compute server, to measure its locks. Its cache holds the same fraction of
/// its data as with four.
const REAL_TWO: Machines = Machines {
    name: "2 real threads",
    words: "--fabric local --compute-servers 1 --threads 2",
    cache_share: 1.0,
    runs: 7,
};
const REAL_EIGHT: Machines = Machines {
    name: "8 real threads",
    words: "--fabric local --compute-servers 1 --threads 8",
    cache_share: 1.0,
    runs: 7,
};
const ONE_CLIENT: Machines = Machines { name: "one client", words: "", cache_share: 1.0, runs: 1 };

const READS: Column = Column { name: "reads", value: |r| three(r.per_operation.reads) };
const WRITES: Column = Column { name: "writes", value: |r| three(r.per_operation.writes) };
const ATOMICS: Column = Column { name: "atomics", value: |r| three(r.per_operation.atomics) };
const RPCS: Column = Column { name: "RPCs", value: |r| three(r.per_operation.rpcs) };
const BYTES: Column =
    Column { name: "bytes", value: |r| format!("{:.0}", r.per_operation.bytes()) };
const RETRIES: Column = Column { name: "retries", value: |r| three(r.per_operation.retries) };
const HIT_RATIO: Column = Column { name: "hit ratio", value: |r| three(r.cache.hit_ratio) };
const EVICTED: Column = Column { name: "evicted", value: |r| three(r.cache.evictions) };
const REMOTE: Column =
    Column { name: "remote operations", value: |r| three(r.per_operation.remote()) };

fn three(value: f64) -> String {
    format!("{value:.3}")
}

/// All experiments.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        part: Part::Steps,
        title: "What each part of DEX brings (Figure 8), write-intensive",
        words: "--workload write-intensive",
        settings: &[
            ("zipfian 0.99, scattered", "--distribution zipfian:0.99"),
            ("uniform", "--distribution uniform"),
        ],
        rows: &[
            row("baseline: one-sided B+-tree", "--index fine"),
            // The frames are only buffers through which nodes pass, for all clients at once; no
            // node stays cached.
            step(
                "+ partitions",
                "baseline: one-sided B+-tree",
                "--index dex --admission never --cache-bytes 512Ki",
                None,
            ),
            step("+ cache of 1%", "+ partitions", "--index dex", Some(4.0)),
            step("+ offloading", "+ cache of 1%", "--index dex --offload cost-aware", Some(4.0)),
            step("+ cache of 8%", "+ partitions", "--index dex", Some(32.0)),
        ],
        machines: &[ALL, TWO_THREADS],
        shows_throughput: true,
        columns: &[READS, WRITES, ATOMICS, RPCS, BYTES, RETRIES, HIT_RATIO],
        paper: "the paper (cache of 1%): + partitions 2.4 x with 2 threads and little with 144; + cache 21.2 x \
                skewed, 6.9 x uniform; + offloading 1.55 x and 1.34 x",
    },
    Experiment {
        part: Part::Cache,
        title: "The design of the cache (Figure 9), read-intensive, zipfian 0.99",
        words: "--index dex --workload read-intensive --distribution zipfian:0.99",
        settings: &[
            ("cache of 2% a compute server", "--cache-percent 8"),
            ("cache of 8% a compute server", "--cache-percent 32"),
        ],
        rows: &[
            row("one queue, eager", "--cooling queue --admission hot --victims random"),
            step(
                "+ cooling map",
                "one queue, eager",
                "--cooling map --admission hot --victims random",
                None,
            ),
            step(
                "+ lazy admission (coin 0.1)",
                "+ cooling map",
                "--cooling map --admission coin:0.1 --victims random",
                None,
            ),
            step(
                "instead: cold admission",
                "+ cooling map",
                "--cooling map --admission cold --victims random",
                None,
            ),
            step(
                "+ used leaves spared (default)",
                "+ cooling map",
                "--cooling map --admission cold --victims unused",
                None,
            ),
        ],
        machines: &[ALL, REAL_TWO, REAL_EIGHT],
        shows_throughput: true,
        columns: &[HIT_RATIO, READS, WRITES, EVICTED],
        paper: "the paper: + cooling map 12 x and 10 x, + lazy admission 25% and 21%, with 2% and 8%",
    },
    Experiment {
        part: Part::Offload,
        title: "Offloading against the threads of each of 4 memory servers (Figure 12), zipfian 0.99, a cache of 1% of the \
                data altogether",
        words: "--index dex --memory-servers 4 --distribution zipfian:0.99 --cache-percent 1",
        settings: &[
            ("read-intensive", "--workload read-intensive"),
            ("write-intensive", "--workload write-intensive"),
        ],
        rows: &[
            row("1 thread, never", "--server-cores 1 --offload never"),
            step(
                "1 thread, cost-aware",
                "1 thread, never",
                "--server-cores 1 --offload cost-aware",
                None,
            ),
            row("2 threads, never", "--server-cores 2 --offload never"),
            step(
                "2 threads, cost-aware",
                "2 threads, never",
                "--server-cores 2 --offload cost-aware",
                None,
            ),
            row("3 threads, never", "--server-cores 3 --offload never"),
            step(
                "3 threads, cost-aware",
                "3 threads, never",
                "--server-cores 3 --offload cost-aware",
                None,
            ),
            row("4 threads, never", "--server-cores 4 --offload never"),
            step(
                "4 threads, cost-aware",
                "4 threads, never",
                "--server-cores 4 --offload cost-aware",
                None,
            ),
        ],
        machines: &[ALL],
        shows_throughput: true,
        columns: &[READS, WRITES, RPCS, REMOTE, HIT_RATIO],
        paper: "the paper (§8.4): with all threads 56% and 49% fewer remote operations, 40% and 55% more throughput",
    },
    Experiment {
        part: Part::Trace,
        title: "The policies of the cache on the trace",
        words: "--index dex",
        settings: &[
            ("cache of 8%", "--cache-percent 8"),
            ("cache of 32%", "--cache-percent 32"),
            ("cache of 50%", "--cache-percent 50"),
        ],
        rows: &[
            row("cold, unused (default)", "--admission cold --victims unused"),
            row("cold, random", "--admission cold --victims random"),
            row("cold, clock", "--admission cold --victims clock"),
            row("coin 0.1, unused", "--admission coin:0.1 --victims unused"),
            row("coin 0.1, random (the paper's)", "--admission coin:0.1 --victims random"),
            row("coin 0.1, clock", "--admission coin:0.1 --victims clock"),
            row("hot, unused", "--admission hot --victims unused"),
            row("hot, random", "--admission hot --victims random"),
            row("hot, clock", "--admission hot --victims clock"),
        ],
        machines: &[ONE_CLIENT],
        shows_throughput: false,
        columns: &[HIT_RATIO, REMOTE, READS, WRITES, EVICTED],
        paper: "",
    },
];
