//! Random scenarios: a design, a cluster, a network, faults and a workload, all drawn from one
//! seed.
//!
//! The allowed errors follow from the faults: lost messages and deaths may make outcomes
//! indeterminate, but no operation may end as contended. A run has at most about 1,500 operations,
//! so that the checkers can keep up.
//!
//! *Thread safety*: plain functions.

use crate::process_spec::{ProcessesSpec, TakeoverSpec};
use crate::run::{RunOutcome, run_seed};
use crate::scenario::{
    ClusterSpec, CrashSpec, DeathSpec, DesignSpec, DistributionSpec, ErrorKind, FaultSpec,
    KeysSpec, LoadSpec, NetworkSpec, OutageSpec, Scenario, ScenarioOptions, Weights, WorkloadSpec,
};
use crate::workload;
use farleaf_dex::DexOptions;
use farleaf_dex::cache::{AdmissionName, CoolingName, OffloadName, VictimName};
use farleaf_dlsm::{CompactionPlace, DlsmOptions};
use farleaf_index::AcknowledgeName;
use farleaf_index::OptionType;
use farleaf_page::table::IndexKind;
use farleaf_trees::chime::ChimeOptions;
use farleaf_trees::coarse::{CoarseScheme, PartitioningName};
use farleaf_trees::fine::FineOptions;
use farleaf_trees::hybrid::HybridOptions;
use farleaf_trees::one_sided::entrywise::EntrywiseOptions;
use farleaf_trees::smart::SmartOptions;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

/// A restriction of random scenarios to a design, a fault, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScenarioKind {
    /// The design, by its name in scenario files.
    pub design: Option<&'static str>,
    /// The fault, one of [`ScenarioKind::FAULTS`].
    pub faults: Option<&'static str>,
}

impl ScenarioKind {
    /// The designs. `sherman`, `chime`, `smart` and `dlsm` are drawn only by name.
    pub const DESIGNS: [&str; 8] =
        ["coarse", "fine", "hybrid", "dex", "sherman", "chime", "smart", "dlsm"];
    /// The faults. All kinds have torn verbs and slow messages. In addition, messages are lost or
    /// late, memory servers are unreachable, compute servers pause, compute servers die, live
    /// compute servers are declared dead, a memory server dies or restarts empty, or compute
    /// servers of DEX die together and restart. With `processes`, those of DEX and dLSM are
    /// processes that die, return and take keys over, and answers wait until they are written.
    /// `restarts` and `processes` are drawn only by name.
    pub const FAULTS: [&str; 10] = [
        "slow",
        "lossy",
        "cut",
        "paused",
        "deaths",
        "buried",
        "memory",
        "restarts",
        "crash",
        "processes",
    ];

    /// Parses `design`, `design-faults` or `faults`.
    pub fn of(text: &str) -> Option<Self> {
        let find =
            |all: &[&'static str], wanted: &str| all.iter().copied().find(|name| *name == wanted);
        let mut kind = Self::default();
        for part in text.split('-') {
            match (find(&Self::DESIGNS, part), find(&Self::FAULTS, part)) {
                (Some(design), _) if kind.design.is_none() => kind.design = Some(design),
                (_, Some(faults)) if kind.faults.is_none() => kind.faults = Some(faults),
                _ => return None,
            }
        }
        Some(kind)
    }
}

struct ScenarioRandom(Xoshiro256PlusPlus);

impl ScenarioRandom {
    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.random_range(0..choices.len())].clone()
    }

    fn up_to(&mut self, most: u64) -> u64 {
        self.0.random_range(0..=most)
    }

    fn one_in(&mut self, many: u32) -> bool {
        self.0.random_range(0..many) == 0
    }
}

pub fn random_scenario(kind: ScenarioKind, seed: u64) -> Scenario {
    let mut dice = ScenarioRandom(workload::rng(seed, u64::MAX / 11));
    let design =
        kind.design.unwrap_or_else(|| dice.of(&["coarse", "fine", "hybrid", "dex", "dex"]));
    let is_dex = design == "dex";
    let usual: &[&str] = match is_dex {
        true => &["slow", "slow", "lossy", "cut", "paused", "memory", "crash"],
        false => &["slow", "lossy", "cut", "paused", "deaths", "deaths", "buried", "memory"],
    };
    let what = kind.faults.unwrap_or_else(|| dice.of(usual));
    let cluster = cluster(&mut dice, is_dex);
    let mut scenario = Scenario {
        name: format!("random-{design}-{what}"),
        description: format!("Random: {design}, {what}."),
        canary: None,
        allowed_errors: Vec::new(),
        design: self::design(&mut dice, design, cluster.memory_servers),
        network: NetworkSpec {
            one_way_ns: Some(dice.of(&[100, 300, 850, 2_000])),
            ..NetworkSpec::default()
        },
        max_work_factor: dice.of(&[1, 8, 32]),
        faults: slow(&mut dice),
        workload: self::workload(&mut dice, &cluster, is_dex || design == "dlsm"),
        crash: None,
        processes: None,
        cluster,
    };
    if what == "processes" {
        processes(&mut dice, &mut scenario);
        return scenario;
    }
    go_wrong(&mut dice, what, &mut scenario);
    scenario.cluster.in_groups =
        scenario.cluster.in_flight_per_client > 1 && dice.of(&[true, false]);
    if is_dex && dice.one_in(4) {
        acknowledge_written(&mut scenario);
    }
    read_parts(&mut dice, &mut scenario);
    scenario
}

/// Makes the compute servers of DEX or dLSM processes, which die, move keys and take them over, and
/// whose answers wait until they are written.
fn processes(dice: &mut ScenarioRandom, scenario: &mut Scenario) {
    let Scenario { cluster, faults, workload, allowed_errors, design, .. } = scenario;
    cluster.compute_servers = dice.of(&[2, 3]);
    cluster.clients_per_compute_server = dice.of(&[1, 2]);
    cluster.in_flight_per_client = dice.of(&[1, 3]);
    cluster.handles_per_client = 1;
    workload.in_groups = cluster.in_flight_per_client > 1 && dice.one_in(2);
    workload.operations_per_client = dice.of(&[30, 60, 120]);
    workload.weights.flush = 0;
    if dice.one_in(4) {
        workload.load = LoadSpec::Bulk;
    }
    let slowest = scenario.network.one_way_ns.map(|ns| ns.min(850));
    scenario.network.one_way_ns = slowest;
    scenario.max_work_factor = scenario.max_work_factor.min(8);
    // A right to answer is compared by clocks that differ by a percent at most.
    faults.clock_drift_ppm = dice.of(&[0, 200]);
    faults.max_delay_ns = faults.max_delay_ns.min(20_000);
    faults.drop_probability = dice.of(&[0.0, 0.0, 0.01]);
    faults.timeout_ns = dice.of(&[200_000, 2_000_000]);
    match design {
        DesignSpec::Dex { tree, moves, spare_compute_servers, movers, .. } => {
            tree.cache.acknowledge = AcknowledgeName::Written;
            if tree.cache.admission == AdmissionName::Never {
                tree.cache.admission = AdmissionName::Cold;
            }
            (*moves, *movers) = (dice.of(&[0, 6, 20]), 1);
            *spare_compute_servers = dice.of(&[0, 1]);
        }
        DesignSpec::Dlsm { tree, shards, moves, workers, .. } => {
            tree.acknowledge = AcknowledgeName::Written;
            tree.log_ring_bytes = dice.of(&[8_192, 16_384]);
            (*shards, *moves, *workers) = (dice.of(&[1, 2, 3]), dice.of(&[0, 6, 20]), 0);
        }
        _ => {}
    }
    let kills_in_loads = if workload.load == LoadSpec::Bulk { dice.of(&[0, 2]) } else { 0 };
    let takeover = TakeoverSpec {
        right_ns: dice.of(&[300_000, 1_000_000]),
        poll_ns: dice.of(&[60_000, 1_000_000]),
        term_ns: dice.of(&[400_000, 3_000_000]),
        suspects: dice.of(&[0, 0, 3]),
        suspected_until_ns: 20_000_000,
    };
    scenario.processes = Some(ProcessesSpec {
        deadline_ns: 5_000_000_000,
        kills: Vec::new(),
        kills_in_moves: dice.of(&[0, 4]),
        kills_in_loads,
        // Long enough for a life to begin: it ends the last one, over a network with losses.
        lives_ns: dice.of(&[40_000_000, 200_000_000]),
        forgets: false,
        threads: dice.of(&[1, 1, 2]),
        restart_after_ns: dice.of(&[400_000, 6_000_000]),
        record_fails_one_in: dice.of(&[0, 0, 8]),
        takeover: dice.one_in(2).then_some(takeover),
    });
    allowed_errors.extend([ErrorKind::Indeterminate, ErrorKind::Contended]);
    read_parts(dice, scenario);
}

/// Lets lookups of half of the scenarios of DEX READ windows of leaves, and half use hot records.
fn read_parts(dice: &mut ScenarioRandom, scenario: &mut Scenario) {
    if let DesignSpec::Dex { tree, .. } = &mut scenario.design
        && dice.one_in(2)
    {
        tree.cache.outlines_percent = dice.of(&[5, 20, 50]);
        tree.cache.outlines_soon_percent = dice.of(&[1, 10, 100]);
    }
    if let DesignSpec::Dex { tree, .. } = &mut scenario.design
        && dice.one_in(2)
    {
        tree.cache.records_percent = dice.of(&[5, 20, 40]);
    }
}

/// Lets the answers of DEX wait until they are written. A death then loses nothing, and leaves no
/// leaf damaged.
fn acknowledge_written(scenario: &mut Scenario) {
    let DesignSpec::Dex { tree, .. } = &mut scenario.design else { return };
    tree.cache.acknowledge = AcknowledgeName::Written;
    if scenario.crash.is_some() {
        scenario.allowed_errors.retain(|error| *error != ErrorKind::Damaged);
    }
}

fn cluster(dice: &mut ScenarioRandom, is_dex: bool) -> ClusterSpec {
    ClusterSpec {
        memory_servers: dice.of(&[1, 2, 2, 3, 5]),
        cores_per_memory_server: dice.of(&[1, 2, 4]),
        compute_servers: if is_dex { dice.of(&[1, 2, 2, 3, 5]) } else { dice.of(&[2, 3]) },
        clients_per_compute_server: dice.of(&[1, 2, 3]),
        in_flight_per_client: dice.of(&[1, 2, 5]),
        in_groups: false,
        handles_per_client: dice.of(&[1, 1, 3, 8]),
        keys: KeysSpec::U64,
        inline_bytes: None,
        page_words: dice.of(&[16, 16, 16, 24, 24, 40, 128]),
        pool_bytes: 8 << 20,
        chunk_bytes: dice.of(&[4_096, 16_384, 65_536]),
    }
}

fn design(dice: &mut ScenarioRandom, design: &str, memory_servers: u16) -> DesignSpec {
    let chunk_nodes_log2 = dice.of(&[0, 3, 5]);
    match design {
        "coarse" => DesignSpec::Coarse(CoarseScheme {
            partitioning: dice.of(&[PartitioningName::Hash, PartitioningName::Range]),
        }),
        "fine" => DesignSpec::Fine(FineOptions {
            chunk_nodes_log2,
            leaves_per_head: dice.of(&[0, 1, 2, 3, 4, 8]),
            ..FineOptions::default()
        }),
        "hybrid" => {
            DesignSpec::Hybrid(HybridOptions { chunk_nodes_log2, ..HybridOptions::default() })
        }
        "dlsm" => dlsm(dice),
        "sherman" => {
            let (cache_nodes, tree) = entrywise(dice, chunk_nodes_log2);
            let by_versions = dice.of(&[false, false, true]);
            DesignSpec::Sherman { cache_nodes, tree: EntrywiseOptions { by_versions, ..tree } }
        }
        "chime" => {
            let (cache_nodes, tree) = entrywise(dice, chunk_nodes_log2);
            let hot_bytes = dice.of(&[0, 200, 4_000]);
            DesignSpec::Chime { cache_nodes, options: ChimeOptions { tree, hot_bytes } }
        }
        "smart" => {
            let (chunk_bytes, cache_bytes) =
                (dice.of(&[2_112, 4_096, 16_384]), dice.of(&[0, 100, 500, 4_000, 1 << 20]));
            let spread = dice.of(&[true, true, false]);
            let tree = SmartOptions { chunk_bytes, cache_bytes, combines: dice.of(&[true, false]) };
            DesignSpec::Smart { spread, divided: false, tree }
        }
        _ => dex(dice, chunk_nodes_log2, memory_servers),
    }
}

fn entrywise(dice: &mut ScenarioRandom, chunk_nodes_log2: u8) -> (Option<u32>, EntrywiseOptions) {
    let cache_nodes = Some(dice.of(&[0, 1, 2, 4, 100]));
    let hand_overs = dice.of(&[0, 1, 8, 8]);
    (cache_nodes, EntrywiseOptions { chunk_nodes_log2, hand_overs, ..EntrywiseOptions::default() })
}

fn dlsm(dice: &mut ScenarioRandom) -> DesignSpec {
    let mut tree = DlsmOptions::base();
    tree.memtable.bytes = dice.of(&[4_096, 4_096, 8_192]);
    tree.memtable.most_numbers = dice.of(&[0, 1, 3, 10, 30]);
    tree.most_immutables = dice.of(&[1, 2, 4]);
    let index = dice.of(&["compact", "compact", "full", "blocks"]);
    tree.index = IndexKind::of_value(&index.into()).unwrap_or(tree.index);
    tree.table_bytes = dice.of(&[1_024, 2_048]);
    tree.level0_tables = dice.of(&[1, 2, 4]);
    tree.level1_bytes = dice.of(&[1, 1_024, 4_096]);
    tree.level_ratio = dice.of(&[2, 3]);
    tree.levels = dice.of(&[1, 2, 4]);
    tree.writers = dice.of(&[1, 3, 1_024]);
    let workers = dice.of(&[0, 0, 1, 3]);
    tree.merges =
        dice.of(&[CompactionPlace::Compute, CompactionPlace::Memory, CompactionPlace::ByCost]);
    tree.workers = dice.of(&[1, 2, 4]);
    DesignSpec::Dlsm { shards: 0, moves: 0, most_shards: 0, workers, tree }
}

fn dex(dice: &mut ScenarioRandom, chunk_nodes_log2: u8, memory_servers: u16) -> DesignSpec {
    let mut tree = DexOptions { chunk_nodes_log2, ..DexOptions::base() };
    tree.placement_level = dice.of(&[0, 1, 1, 2]);
    let cache_frames = Some(dice.of(&[24, 32, 48, 64, 128]));
    tree.cache.admission = dice.of(&[
        AdmissionName::Cold,
        AdmissionName::Cold,
        AdmissionName::Coin(0.5),
        AdmissionName::Hot,
        AdmissionName::Never,
    ]);
    tree.cache.cooling = dice.of(&[CoolingName::Map, CoolingName::Queue]);
    tree.cache.cooling_percent = dice.of(&[10, 30, 60, 90]);
    tree.cache.victims = dice.of(&[VictimName::Unused, VictimName::Random, VictimName::Clock]);
    tree.cache.offload = dice.of(&[
        OffloadName::Never,
        OffloadName::Never,
        OffloadName::Always,
        OffloadName::CostAware,
    ]);
    let moves = dice.of(&[0, 4, 20, 60, 120]);
    let movers = dice.of(&[1, 1, 2]);
    let spare_compute_servers = dice.of(&[0, 0, 1, 2]);
    let spare_memory_servers = dice.up_to(u64::from(memory_servers) - 1) as u16;
    tree.cache.write_back_ns = dice.of(&[0, 0, 50_000]);
    tree.balance.window_ns = dice.of(&[0, 0, 20_000, 50_000]);
    DesignSpec::Dex {
        cache_frames,
        moves,
        movers,
        spare_compute_servers,
        spare_memory_servers,
        tree,
    }
}

fn workload(dice: &mut ScenarioRandom, cluster: &ClusterSpec, flushes: bool) -> WorkloadSpec {
    let key_space = dice.of(&[32, 96, 160, 320, 1_000]);
    let streams =
        cluster.compute_servers * cluster.clients_per_compute_server * cluster.in_flight_per_client;
    let longest = (1_500 / u32::from(streams)).clamp(10, 250);
    let weights = dice.of(&[
        Weights {
            get: 20,
            insert: 15,
            update: 15,
            upsert: 10,
            remove: 15,
            compare_exchange: 25,
            multi_get: 4,
            scan: 2,
            reverse_scan: 2,
            collect: 1,
            flush: 0,
        },
        Weights {
            get: 10,
            insert: 40,
            remove: 36,
            upsert: 4,
            scan: 3,
            reverse_scan: 3,
            collect: 6,
            ..Weights::default()
        },
        Weights {
            get: 10,
            insert: 40,
            remove: 36,
            upsert: 4,
            scan: 3,
            reverse_scan: 3,
            collect: 30,
            ..Weights::default()
        },
        Weights {
            get: 40,
            insert: 25,
            remove: 10,
            multi_get: 10,
            scan: 15,
            reverse_scan: 15,
            ..Weights::default()
        },
        Weights { get: 10, insert: 80, remove: 5, scan: 2, reverse_scan: 2, ..Weights::default() },
    ]);
    WorkloadSpec {
        in_groups: false,
        key_space,
        one_leaf: false,
        initial_keys: dice.up_to(key_space),
        load: LoadSpec::Insert,
        operations_per_client: dice.0.random_range(longest / 2..=longest),
        weights: Weights { flush: u32::from(flushes), ..weights },
        distribution: match dice.up_to(2) {
            0 => DistributionSpec::Uniform,
            1 => DistributionSpec::Hot { keys: dice.of(&[3, 8]), probability: 0.5 },
            _ => DistributionSpec::Sliding { keys: key_space / 3 },
        },
        max_pause_ns: dice.of(&[0, 1_000, 4_000, 20_000, 200_000]),
        max_scan_keys: dice.of(&[8, 32, key_space]),
        max_multi_get_keys: 8,
    }
}

/// Faults that the fabric's contract allows at any time.
fn slow(dice: &mut ScenarioRandom) -> FaultSpec {
    // With many messages delayed by milliseconds, a collection would take seconds.
    let (delay_probability, max_delay_ns) =
        dice.of(&[(0.0, 0), (0.05, 5_000), (0.2, 20_000), (0.2, 200_000), (0.02, 4_000_000)]);
    FaultSpec {
        tear_probability: dice.of(&[0.0, 0.5, 1.0]),
        tear_window_ns: dice.of(&[500, 3_000, 20_000]),
        jitter_ns: dice.of(&[0, 300, 2_000, 8_000]),
        delay_probability,
        max_delay_ns,
        detect_death_ns: 10_000,
        clock_offset_ns: dice.of(&[0, 1_000_000_000]),
        clock_drift_ppm: dice.of(&[0, 0, 200, 200_000]),
        ..FaultSpec::default()
    }
}

fn death(dice: &mut ScenarioRandom, server: u16) -> DeathSpec {
    let earliest_ns = dice.up_to(1_000_000);
    DeathSpec { server, earliest_ns, latest_ns: earliest_ns + dice.of(&[0, 100_000, 2_000_000]) }
}

fn outage(dice: &mut ScenarioRandom, servers: u16, longest: &[u64]) -> OutageSpec {
    let server = dice.0.random_range(0..servers);
    let DeathSpec { earliest_ns, latest_ns, .. } = death(dice, server);
    OutageSpec { server, earliest_ns, latest_ns, for_ns: dice.of(longest) }
}

/// Adds the faults of the kind `what`.
fn go_wrong(dice: &mut ScenarioRandom, what: &str, scenario: &mut Scenario) {
    let Scenario { cluster, faults, workload, allowed_errors, design, .. } = scenario;
    let (memory, compute) = (cluster.memory_servers, cluster.compute_servers);
    const PAUSES: &[u64] = &[100_000, 1_000_000, 6_000_000, 12_000_000];
    match what {
        "lossy" => {
            faults.drop_probability = dice.of(&[0.01, 0.05, 0.2]);
            // With bursts in close succession, nothing would get through.
            if faults.drop_probability < 0.1 {
                faults.drop_burst_ns = dice.of(&[0, 50_000, 400_000]);
            }
            faults.late_probability = dice.of(&[0.0, 0.02, 0.1]);
            faults.max_late_ns = dice.of(&[20_000, 300_000, 4_000_000]);
        }
        "cut" => {
            let cuts = 1 + dice.up_to(2);
            const CUTS: &[u64] = &[50_000, 500_000, 3_000_000, 20_000_000];
            faults.cut_memory_server = (0..cuts).map(|_| outage(dice, memory, CUTS)).collect();
        }
        "paused" => {
            let pauses = 1 + dice.up_to(3);
            faults.pause_compute_server =
                (0..pauses).map(|_| outage(dice, compute, PAUSES)).collect();
        }
        "deaths" | "buried" => {
            let dying: Vec<u16> = (0..compute).filter(|_| !dice.one_in(3)).collect();
            let deaths = dying.iter().map(|server| death(dice, *server)).collect();
            faults.declare_dead_after_ns = dice.of(&[1_000, 50_000, 1_000_000]);
            if what == "deaths" {
                faults.kill_compute_server = deaths;
            } else {
                faults.declare_live_dead = deaths;
                faults.pause_compute_server =
                    (0..dice.up_to(3)).map(|_| outage(dice, compute, PAUSES)).collect();
            }
        }
        "memory" | "restarts" => {
            // The first memory server stays alive, because it records which clients are dead.
            cluster.memory_servers = memory.max(2);
            let DeathSpec { server, earliest_ns, latest_ns } =
                death(dice, cluster.memory_servers - 1);
            // By then all clients have opened the index. Designs other than DEX ask the memory
            // servers one after the other.
            let asked = match design {
                DesignSpec::Dex { .. } => 1,
                _ => u64::from(cluster.memory_servers),
            };
            let opened_ns = asked * (200_000 + 8 * faults.max_delay_ns);
            let (earliest_ns, latest_ns) = (earliest_ns + opened_ns, latest_ns + opened_ns);
            let death = vec![DeathSpec { server, earliest_ns, latest_ns }];
            if what == "restarts" {
                faults.restart_memory_server = death;
                allowed_errors.push(ErrorKind::Restarted);
            } else {
                faults.kill_memory_server = death;
            }
            if let DesignSpec::Dlsm { .. } = design {
                // Flushes and merges that meet the lost server fail, and writers wait for room.
                allowed_errors.push(ErrorKind::Contended);
            }
            if let DesignSpec::Dex { .. } = design {
                // Moving keys wait for nodes that cannot be written back, and everything else waits
                // for the keys.
                allowed_errors.push(ErrorKind::Contended);
            }
            workload.operations_per_client = workload.operations_per_client.min(20);
            if let DesignSpec::Dex { cache_frames, .. } = design {
                *cache_frames = (*cache_frames).max(Some(128));
            }
        }
        "crash" => {
            allowed_errors.push(ErrorKind::Damaged);
            // Waiters check a lock's holder after a number of attempts, not after a time, so keep
            // delays short.
            faults.max_delay_ns = faults.max_delay_ns.min(20_000);
        }
        _ => {
            if dice.one_in(3) {
                workload.load = LoadSpec::Bulk;
            }
        }
    }
    let loses = matches!(what, "lossy" | "cut" | "memory" | "restarts");
    if loses {
        // A reply takes as long as the memory server's work.
        let answer_ns = 4 * faults.jitter_ns + 4_000 * scenario.max_work_factor;
        faults.timeout_ns = dice.of(&[20_000, 50_000, 200_000]) + answer_ns;
    }
    if loses || what == "buried" {
        allowed_errors.push(ErrorKind::Indeterminate);
    }
    if what == "buried" {
        allowed_errors.push(ErrorKind::DeclaredDead);
    }
    if let DesignSpec::Dex { tree, .. } = design
        && (loses || what == "crash")
        && tree.cache.admission == AdmissionName::Never
    {
        // DEX without a cache exists for comparison, on a network without losses.
        tree.cache.admission = AdmissionName::Cold;
    }
    if what == "crash" {
        let servers = match compute > 1 && dice.one_in(2) {
            true => vec![dice.0.random_range(0..compute)],
            false => Vec::new(),
        };
        if let (DesignSpec::Dex { moves, .. }, false) = (&mut scenario.design, servers.is_empty()) {
            // A move involves two compute servers, which are two processes in a deployment. Here it
            // is a single task, which would die as a whole.
            *moves = 0;
        }
        scenario.crash = Some(CrashSpec {
            rounds: 1 + dice.up_to(1) as u16,
            max_writes: dice.of(&[40, 160, 400]),
            servers,
            loses_ns: None,
        });
    }
}

/// Reduces the scenario to a simpler one that still fails with the seed, as far as this is possible
/// quickly.
pub(crate) fn reduced(scenario: &Scenario, seed: u64) -> Scenario {
    type Simplification = fn(&mut Scenario);
    const SIMPLER: &[Simplification] = &[
        |s| s.faults.tear_probability = 0.0,
        |s| s.faults.delay_probability = 0.0,
        |s| s.faults.jitter_ns = 0,
        |s| (s.faults.clock_drift_ppm, s.faults.clock_offset_ns) = (0, 0),
        |s| s.faults.drop_burst_ns = 0,
        |s| s.faults.late_probability = 0.0,
        |s| s.faults.drop_probability = 0.0,
        |s| _ = s.faults.pause_compute_server.pop(),
        |s| _ = s.faults.cut_memory_server.pop(),
        |s| _ = s.faults.kill_compute_server.pop(),
        |s| _ = s.faults.declare_live_dead.pop(),
        |s| _ = s.faults.kill_memory_server.pop(),
        |s| _ = s.faults.restart_memory_server.pop(),
        |s| s.max_work_factor = 1,
        |s| s.cluster.in_groups = false,
        |s| s.cluster.in_flight_per_client = 1,
        |s| s.cluster.clients_per_compute_server = 1,
        |s| s.cluster.memory_servers = 1,
        |s| s.workload.operations_per_client = (s.workload.operations_per_client / 2).max(1),
        |s| s.workload.operations_per_client = (s.workload.operations_per_client / 2).max(1),
        |s| s.workload.distribution = DistributionSpec::Uniform,
        |s| s.workload.max_pause_ns = 0,
        |s| (s.workload.weights.scan, s.workload.weights.reverse_scan) = (0, 0),
        |s| (s.workload.weights.multi_get, s.workload.weights.get) = (0, 1),
        |s| (s.workload.weights.update, s.workload.weights.compare_exchange) = (0, 0),
        |s| (s.workload.weights.upsert, s.workload.weights.collect) = (0, 0),
    ];
    let mut simplest = scenario.clone();
    for simpler in SIMPLER {
        let mut tried = simplest.clone();
        simpler(&mut tried);
        let fails = tried != simplest
            && tried.check().is_ok()
            && matches!(run_seed(&tried, seed).outcome, RunOutcome::Violation(_));
        if fails {
            simplest = tried;
        }
    }
    simplest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_that_is_drawn_makes_sense_and_can_be_read_again() {
        let mut names = BTreeSet::new();
        let of_design = |design| (0..200).map(move |seed| (Some(design), seed));
        let of_designs = ScenarioKind::DESIGNS.into_iter().flat_map(of_design);
        for (design, seed) in (0..2_000).map(|seed| (None, seed)).chain(of_designs) {
            let scenario = random_scenario(ScenarioKind { design, faults: None }, seed);
            assert_eq!(scenario.check(), Ok(()), "seed {seed}:\n{}", scenario.to_text());
            let again = Scenario::parse(&scenario.name, &scenario.to_text()).unwrap();
            assert_eq!(again, scenario, "seed {seed}");
            names.insert(scenario.name);
        }
        assert!(names.len() > 25, "{names:?}");
    }

    #[test]
    fn kinds_are_named() {
        let dex = ScenarioKind { design: Some("dex"), faults: Some("crash") };
        assert_eq!(ScenarioKind::of("dex-crash"), Some(dex));
        assert_eq!(
            ScenarioKind::of("lossy"),
            Some(ScenarioKind { design: None, faults: Some("lossy") })
        );
        for nonsense in ["", "dex-dex", "quick", "dex-crash-fine"] {
            assert_eq!(ScenarioKind::of(nonsense), None, "{nonsense}");
        }
    }
}
