//! Scenarios as data: a cluster, a design, faults and a workload.
//!
//! The files are in `scenarios/` and compiled in ([`SCENARIOS`]). Options have their units in their
//! names.

use crate::process_spec::MAX_THREADS;
pub use crate::process_spec::{DeathSpec, ProcessesSpec, TakeoverSpec};
use crate::registry::SCENARIOS;
use farleaf_dex::DexOptions;
use farleaf_dex::cache::CacheOptions;
use farleaf_dlsm::{DlsmOptions, MemTableOptions};
use farleaf_fabric::CostModel;
use farleaf_fabric::sim::{Faults, NetworkModel, Outage, Slow, Verb};
use farleaf_index::option_schema::{deserialize_onto, serialize_onto};
use farleaf_index::{AcknowledgeName, BalanceOptions, OptionSchema};
use farleaf_page::rules::{KnownRule, RULES};
use farleaf_trees::chime::ChimeOptions;
use farleaf_trees::coarse::CoarseScheme;
use farleaf_trees::fine::FineOptions;
use farleaf_trees::hybrid::HybridOptions;
use farleaf_trees::one_sided::entrywise::EntrywiseOptions;
use farleaf_trees::smart::SmartOptions;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Page sizes that scenarios can choose, in words.
pub const PAGE_WORDS: &[usize] = &[16, 24, 40, 128];
/// Page sizes that scenarios over byte strings can choose, in words.
pub const BYTES_PAGE_WORDS: &[usize] = &[64];

/// Why a scenario cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("scenario {name}: {what}")]
pub struct ScenarioError {
    /// The scenario's name.
    pub name: String,
    /// What is wrong with the scenario, on one line.
    pub what: String,
}

/// A cluster, a design, a workload and faults for the simulator to run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name in reports; not in the file.
    #[serde(skip)]
    pub name: String,
    /// What the scenario is for.
    pub description: String,
    /// A planted bug that the checkers must find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Errors that operations may end with; any other error is a violation.
    #[serde(default)]
    pub allowed_errors: Vec<ErrorKind>,
    /// Servers and clients.
    pub cluster: ClusterSpec,
    /// The index design and its options.
    pub design: DesignSpec,
    /// The network model.
    #[serde(default)]
    pub network: NetworkSpec,
    /// Upper bound of the factor by which each kind of memory server work is slowed down; the seed
    /// draws a factor for each kind. Slow work interleaves more often with other work.
    #[serde(default = "usual")]
    pub max_work_factor: u64,
    /// Faults to inject.
    #[serde(default)]
    pub faults: FaultSpec,
    /// Operations of the clients.
    pub workload: WorkloadSpec,
    /// How compute servers die together, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash: Option<CrashSpec>,
    /// If set, compute servers are separate processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<ProcessesSpec>,
}

/// Compute servers that die together and restart with empty caches. The checks after a crash: every
/// path to a key gives the same answer, and no change is lost that was acknowledged before a
/// completed flush.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CrashSpec {
    /// Number of crashes. After the last one, the compute servers stay alive.
    pub rounds: u16,
    /// The crash happens at one of the first `max_writes` WRITEs of the dying compute servers,
    /// drawn from the seed. If they post fewer, the crash happens when their clients have ended.
    pub max_writes: u64,
    /// The compute servers that die; all of them if empty. If some survive, each client only uses
    /// keys of its own compute server, and the dead ones begin their next lives while the survivors
    /// work.
    #[serde(default)]
    pub servers: Vec<u16>,
    /// Acknowledged changes without a later flush may be lost only if they were made within this
    /// time before the crash, in nanoseconds. If it is not set, they may be lost at any age. For
    /// scenarios that write back by age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loses_ns: Option<u64>,
}

fn usual() -> u64 {
    1
}

/// A planted bug, by its name in [`farleaf_page::rules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Canary(pub &'static KnownRule);

impl From<Canary> for String {
    fn from(canary: Canary) -> Self {
        canary.0.bug.to_owned()
    }
}

impl TryFrom<String> for Canary {
    type Error = String;

    fn try_from(bug: String) -> Result<Self, String> {
        let known = || RULES.iter().map(|known| known.bug).collect::<Vec<_>>().join(", ");
        KnownRule::with_bug(&bug)
            .map(Self)
            .ok_or_else(|| format!("unknown bug `{bug}`; expected one of {}", known()))
    }
}

/// Kinds of errors that a scenario can allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The outcome of the operation is unknown.
    Indeterminate,
    /// A memory server has no memory left.
    OutOfMemory,
    /// The operation lost too often against concurrent ones, or its key moved so often that its
    /// deadline passed while it was redirected.
    Contended,
    /// A page is damaged.
    Damaged,
    /// The compute server was declared dead.
    DeclaredDead,
    /// A memory server was restarted, and its memory is lost.
    Restarted,
    /// The compute server serves nothing, because it has lost a memory server.
    NotServed,
    /// A compute server has died with changes that were not flushed.
    ChangesLost,
}

/// The servers and clients of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Number of memory servers.
    pub memory_servers: u16,
    /// Cores of each memory server that serve RPCs.
    pub cores_per_memory_server: usize,
    /// Number of compute servers.
    pub compute_servers: u16,
    pub clients_per_compute_server: u16,
    /// Operations that each client keeps in flight.
    #[serde(default = "one")]
    pub in_flight_per_client: u16,
    /// Whether a client executes the operations that it keeps in flight as one group.
    #[serde(default)]
    pub in_groups: bool,
    /// Handles that each client opens and closes in sequence.
    #[serde(default = "one")]
    pub handles_per_client: u16,
    /// The kind of keys and values.
    #[serde(default)]
    pub keys: KeysSpec,
    /// For byte strings in DEX: values longer than this are in blocks. If it is not set, there are
    /// no blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_bytes: Option<usize>,
    /// Words per page, one of [`PAGE_WORDS`], or of [`BYTES_PAGE_WORDS`] for byte strings.
    pub page_words: usize,
    /// Bytes of each memory server's pool.
    pub pool_bytes: usize,
    /// Bytes of the chunks that memory servers allocate from it.
    pub chunk_bytes: u64,
}

/// The kind of keys and values in a scenario. Histories always use their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeysSpec {
    /// Keys and values of 8 bytes.
    #[default]
    U64,
    /// Byte strings of different lengths.
    Bytes,
}

fn one() -> u16 {
    1
}

/// An index design with its options: those of its [`OptionSchema`], by their names, and those of
/// the scenario.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum DesignSpec {
    /// The coarse-grained design. Ranges are equal parts of the scenario's key space.
    Coarse(CoarseScheme),
    /// The fine-grained design.
    Fine(FineOptions),
    /// The hybrid design. Ranges are equal parts of the scenario's key space.
    Hybrid(HybridOptions<()>),
    /// Sherman.
    Sherman {
        /// Parents of leaves that each compute server caches, instead of `cache_bytes`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cache_nodes: Option<u32>,
        #[serde(flatten)]
        tree: EntrywiseOptions,
    },
    /// CHIME.
    Chime {
        /// Parents of leaves that each compute server caches, instead of `cache_bytes`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cache_nodes: Option<u32>,
        #[serde(flatten)]
        options: ChimeOptions,
    },
    /// SMART.
    Smart {
        /// Whether neighbouring keys differ in several bytes, so that the tree is high.
        #[serde(default)]
        spread: bool,
        /// Whether compute servers own equal parts of the scenario's key space, which is P-SMART.
        #[serde(default)]
        divided: bool,
        #[serde(flatten, deserialize_with = "read_options", serialize_with = "write_options")]
        tree: SmartOptions,
    },
    /// DEX. Compute servers own equal parts of the scenario's key space.
    Dex {
        /// Frames of each compute server's cache, instead of `cache_bytes`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cache_frames: Option<u32>,
        /// Moves of keys between compute servers during a run, at random moments.
        #[serde(default)]
        moves: u16,
        /// Tasks that move keys; each makes `moves` moves.
        #[serde(default = "one")]
        movers: u16,
        /// Additional compute servers that own no keys at first.
        #[serde(default)]
        spare_compute_servers: u16,
        /// Memory servers that hold no nodes at first and join at random moments.
        #[serde(default)]
        spare_memory_servers: u16,
        /// If its `balance_window_ns` is 0, nothing is balanced.
        #[serde(flatten, deserialize_with = "read_options", serialize_with = "write_options")]
        tree: DexOptions<()>,
    },
    /// dLSM: one tree, which all compute servers share, or several of each compute server.
    Dlsm {
        /// The shards of each compute server, which is a process; with 0, all share one tree.
        #[serde(default)]
        shards: u16,
        /// Moves of shards between compute servers.
        #[serde(default)]
        moves: u16,
        /// Most shards of a compute server that divides shards to move a part; with 0, none does.
        #[serde(default)]
        most_shards: usize,
        /// Tasks that flush and merge; without any, the writers do.
        #[serde(default)]
        workers: u16,
        /// Without `level0_stop`, writers wait at twice `level0_tables`.
        #[serde(flatten, deserialize_with = "read_options", serialize_with = "write_options")]
        tree: DlsmOptions,
    },
}

/// The options of a design that scenarios start from.
pub(crate) trait ScenarioOptions: OptionSchema {
    fn base() -> Self;
}

fn read_options<'de, O, D>(deserializer: D) -> Result<O, D::Error>
where
    O: ScenarioOptions,
    D: Deserializer<'de>,
{
    deserialize_onto(O::base(), deserializer)
}

fn write_options<O: ScenarioOptions, S: Serializer>(
    options: &O,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serialize_onto(&O::base(), options, serializer)
}

impl ScenarioOptions for SmartOptions {
    fn base() -> Self {
        Self { combines: false, ..Self::default() }
    }
}

impl ScenarioOptions for DexOptions<()> {
    /// Runs are short: sample every operation, and act after a single window.
    fn base() -> Self {
        let balance = BalanceOptions {
            one_in: 1,
            window_ns: 0,
            least_samples: 16,
            windows: 1,
            rest_windows: 0,
            no_return_windows: 1,
            ..BalanceOptions::default()
        };
        Self { balance, ..Self::default() }
    }
}

impl ScenarioOptions for DlsmOptions {
    /// A chunk has four extents.
    fn base() -> Self {
        const EXTENT_BYTES: u64 = 1_024;
        Self {
            memtable: MemTableOptions { filter_bytes: 64, ..MemTableOptions::default() },
            extent_bytes: EXTENT_BYTES,
            chunk_bytes: 4 * EXTENT_BYTES,
            level0_stop: 0,
            workers: 2,
            most_hidden: 16,
            ..Self::default()
        }
    }
}

impl DesignSpec {
    /// Whether a balancer runs.
    pub(crate) fn balances(&self) -> bool {
        matches!(self, Self::Dex { tree, .. } if tree.balance.window_ns > 0)
    }
}

/// The network. Missing fields default to those of [`NetworkModel`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSpec {
    pub one_way_ns: Option<u64>,
    pub bandwidth_bytes_per_s: Option<u64>,
    pub ns_per_message: Option<u64>,
    pub remote_access_ns: Option<u64>,
}

impl NetworkSpec {
    pub(crate) fn model(&self) -> NetworkModel {
        let usual = NetworkModel::default();
        NetworkModel {
            one_way_ns: self.one_way_ns.unwrap_or(usual.one_way_ns),
            bandwidth_bytes_per_s: self
                .bandwidth_bytes_per_s
                .unwrap_or(usual.bandwidth_bytes_per_s),
            ns_per_message: self.ns_per_message.unwrap_or(usual.ns_per_message),
            remote_access_ns: self.remote_access_ns.unwrap_or(usual.remote_access_ns),
            ..usual
        }
    }
}

/// Faults to inject, with the fields of [`Faults`]. Missing fields inject nothing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultSpec {
    pub tear_probability: f64,
    pub tear_window_ns: u64,
    pub jitter_ns: u64,
    pub delay_probability: f64,
    pub max_delay_ns: u64,
    /// Additional delays of some messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowSpec>,
    pub drop_probability: f64,
    pub drop_burst_ns: u64,
    pub late_probability: f64,
    pub max_late_ns: u64,
    pub timeout_ns: u64,
    pub detect_death_ns: u64,
    /// Memory servers that die.
    pub kill_memory_server: Vec<DeathSpec>,
    /// Memory servers whose process ends and is replaced by another one with empty memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restart_memory_server: Vec<DeathSpec>,
    /// Compute servers that die.
    pub kill_compute_server: Vec<DeathSpec>,
    /// Time from a compute server's death until the observer declares it dead.
    pub declare_dead_after_ns: u64,
    pub clock_offset_ns: u64,
    pub clock_drift_ppm: u64,
    /// Compute servers that pause for a while.
    pub pause_compute_server: Vec<OutageSpec>,
    /// Memory servers that are unreachable for a while.
    pub cut_memory_server: Vec<OutageSpec>,
    /// Compute servers that the observer declares dead while they live.
    pub declare_live_dead: Vec<DeathSpec>,
}

/// Delays individual messages, so that others overtake them: the fields are those of [`Slow`].
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SlowSpec {
    /// The operations whose messages are delayed; all if empty.
    #[serde(default)]
    pub verbs: Vec<VerbSpec>,
    /// The compute servers whose messages are delayed; all if empty.
    #[serde(default)]
    pub compute_servers: Vec<u16>,
    /// Whether replies are delayed, instead of requests.
    #[serde(default)]
    pub replies: bool,
    /// Share of the messages that are delayed, from 0 to 1.
    pub probability: f64,
    /// The longest delay, in nanoseconds.
    pub max_ns: u64,
}

/// The kinds of operations that a message can belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerbSpec {
    Read,
    Write,
    /// A CAS.
    Atomic,
    Call,
}

impl SlowSpec {
    fn slow(&self) -> Slow {
        let verb = |verb: &VerbSpec| match verb {
            VerbSpec::Read => Verb::Read,
            VerbSpec::Write => Verb::Write,
            VerbSpec::Atomic => Verb::Atomic,
            VerbSpec::Call => Verb::Call,
        };
        Slow {
            verbs: self.verbs.iter().map(verb).collect(),
            compute_servers: self.compute_servers.clone(),
            replies: self.replies,
            probability: self.probability,
            max_ns: self.max_ns,
        }
    }
}

/// A temporary outage of a server; the seed draws its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OutageSpec {
    /// The server's number.
    pub server: u16,
    /// Earliest beginning, in nanoseconds.
    pub earliest_ns: u64,
    /// Latest beginning, in nanoseconds.
    pub latest_ns: u64,
    /// Duration, in nanoseconds.
    pub for_ns: u64,
}

impl FaultSpec {
    /// Draws the faults of one run; `moment` draws a number up to its argument.
    pub(crate) fn faults(
        &self,
        compute_servers: u16,
        mut moment: impl FnMut(u64) -> u64,
    ) -> Faults {
        let mut deaths = |all: &[DeathSpec]| {
            all.iter()
                .map(|d| (d.server, d.earliest_ns + moment(d.latest_ns - d.earliest_ns)))
                .collect()
        };
        let kill_memory_server_at_ns = deaths(&self.kill_memory_server);
        let kill_compute_server_at_ns = deaths(&self.kill_compute_server);
        let restart_memory_server_at_ns = deaths(&self.restart_memory_server);
        let mut outages = |all: &[OutageSpec]| {
            let outage = |spec: &OutageSpec| {
                let from_ns = spec.earliest_ns + moment(spec.latest_ns - spec.earliest_ns);
                Outage { server: spec.server, from_ns, until_ns: from_ns + spec.for_ns }
            };
            all.iter().map(outage).collect()
        };
        Faults {
            tear_probability: self.tear_probability,
            tear_window_ns: self.tear_window_ns,
            jitter_ns: self.jitter_ns,
            delay_probability: self.delay_probability,
            max_delay_ns: self.max_delay_ns,
            slow: self.slow.iter().map(SlowSpec::slow).collect(),
            drop_probability: self.drop_probability,
            late_probability: self.late_probability,
            max_late_ns: self.max_late_ns,
            timeout_ns: self.timeout_ns,
            detect_death_ns: self.detect_death_ns,
            kill_memory_server_at_ns,
            restart_memory_server_at_ns,
            kill_compute_server_at_ns,
            drop_burst_ns: self.drop_burst_ns,
            clock_offset_ns: self.clock_offset_ns,
            clock_drift_ppm: self.clock_drift_ppm,
            // The observer's clock is exact, because it times events.
            clocks: compute_servers,
            pause_compute_server: outages(&self.pause_compute_server),
            cut_memory_server: outages(&self.cut_memory_server),
        }
    }

    pub(crate) fn loses_messages(&self) -> bool {
        self.drop_probability > 0.0
            || self.late_probability > 0.0
            || !self.cut_memory_server.is_empty()
    }
}

/// Operations of the clients.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// Number of keys. A small number makes clients collide. The keys include the smallest and the
    /// largest possible key.
    pub key_space: u64,
    /// Whether the keys form groups that share a prefix as byte strings, each group longer than the
    /// previous one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_groups: bool,
    /// Keys that exist at first, evenly spread.
    pub initial_keys: u64,
    /// Whether all keys fit one leaf, so that a scan is a snapshot and is checked as one. The index
    /// then has one partition. Scans of dLSM are snapshots of any number of keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_leaf: bool,
    /// How the initial keys are loaded.
    #[serde(default)]
    pub load: LoadSpec,
    /// Operations of each client, per operation that it keeps in flight.
    pub operations_per_client: u32,
    /// Relative weights of the kinds of operations.
    pub weights: Weights,
    /// Popularity of the keys.
    #[serde(default)]
    pub distribution: DistributionSpec,
    /// Longest pause of a client between two operations, in nanoseconds.
    #[serde(default)]
    pub max_pause_ns: u64,
    /// Widest range of a scan, in keys of the key space.
    #[serde(default = "default_scan_keys")]
    pub max_scan_keys: u64,
    /// Maximum number of keys in a multi-get.
    #[serde(default = "default_multi_get_keys")]
    pub max_multi_get_keys: u64,
}

fn default_scan_keys() -> u64 {
    32
}

fn default_multi_get_keys() -> u64 {
    8
}

/// How the initial keys are loaded into the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadSpec {
    /// By insertions, which are part of the history.
    #[default]
    Insert,
    /// By a bulk load.
    Bulk,
}

/// Relative weights of the kinds of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    pub get: u32,
    pub insert: u32,
    pub update: u32,
    pub upsert: u32,
    pub remove: u32,
    pub compare_exchange: u32,
    pub multi_get: u32,
    pub scan: u32,
    pub reverse_scan: u32,
    pub collect: u32,
    pub flush: u32,
}

/// Popularity of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DistributionSpec {
    /// All keys are equally popular.
    #[default]
    Uniform,
    /// A few neighbouring keys are drawn with this probability; otherwise all keys are equally
    /// popular.
    Hot {
        /// Number of popular keys.
        keys: u64,
        /// Probability of drawing one of them, from 0 to 1.
        probability: f64,
    },
    /// Keys within a window that slides over the key space once while the client runs, so that
    /// pages fill and empty.
    Sliding {
        /// Width of the window, in keys.
        keys: u64,
    },
}

impl Scenario {
    /// Whether an answer means that what it reports is in the memory servers.
    pub(crate) fn acknowledges_written(&self) -> bool {
        match &self.design {
            DesignSpec::Dex { tree, .. } => tree.cache.acknowledge == AcknowledgeName::Written,
            DesignSpec::Dlsm { tree, .. } => tree.acknowledge == AcknowledgeName::Written,
            _ => false,
        }
    }

    /// Serializes the scenario as a file's text.
    pub fn to_text(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| format!("# {error}\n"))
    }

    /// Returns the registered scenario with this name.
    ///
    /// # Errors
    /// [`ScenarioError`] if there is no such scenario.
    pub fn registered(name: &str) -> Result<Self, ScenarioError> {
        match SCENARIOS.iter().find(|(registered, _)| *registered == name) {
            Some((name, text)) => Self::parse(name, text),
            None => {
                let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
                let what = format!("not registered; expected one of {}", names.join(", "));
                Err(ScenarioError { name: name.to_owned(), what })
            }
        }
    }

    /// Parses a scenario.
    ///
    /// # Errors
    /// [`ScenarioError`], on one line.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScenarioError> {
        let error = |what: String| ScenarioError { name: name.to_owned(), what };
        let mut scenario: Self = toml::from_str(text).map_err(|wrong| {
            let line = wrong.span().map(|span| 1 + text[..span.start].matches('\n').count());
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            error(place + &wrong.message().replace('\n', "; "))
        })?;
        name.clone_into(&mut scenario.name);
        scenario.check().map_err(error)?;
        Ok(scenario)
    }

    /// The cost of work in one run; `draw` draws a number up to its argument.
    pub(crate) fn cost(&self, mut draw: impl FnMut(u64) -> u64) -> CostModel {
        let usual = CostModel::default();
        let mut stretch = |ns: u64| ns * (1 + draw(self.max_work_factor - 1));
        CostModel {
            dispatch_ns: stretch(usual.dispatch_ns),
            visit_node_ns: stretch(usual.visit_node_ns),
            change_node_ns: stretch(usual.change_node_ns),
            restructure_node_ns: stretch(usual.restructure_node_ns),
            copy_record_ps: stretch(usual.copy_record_ps),
            // Scenarios vary the order of events; in clusters this small, these would dominate it.
            search_memtable_ns: 0,
            merge_record_ns: 0,
            index_key_ns: 0,
            ..usual
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let (cluster, workload, faults) = (&self.cluster, &self.workload, &self.faults);
        let sizes = match cluster.keys {
            KeysSpec::U64 => PAGE_WORDS,
            KeysSpec::Bytes => BYTES_PAGE_WORDS,
        };
        if cluster.inline_bytes.is_some() {
            let is_dex = matches!(self.design, DesignSpec::Dex { .. }) && !self.design.balances();
            if cluster.keys != KeysSpec::Bytes || self.crash.is_some() || !is_dex {
                let what = "inline_bytes needs byte strings and DEX, without crashes and balancing";
                return Err(what.to_owned());
            }
        }
        if !sizes.contains(&cluster.page_words) {
            return Err(format!("page_words must be one of {sizes:?}"));
        }
        let positive = [
            ("memory_servers", u64::from(cluster.memory_servers)),
            ("cores_per_memory_server", cluster.cores_per_memory_server as u64),
            ("compute_servers", u64::from(cluster.compute_servers)),
            ("clients_per_compute_server", u64::from(cluster.clients_per_compute_server)),
            ("in_flight_per_client", u64::from(cluster.in_flight_per_client)),
            ("handles_per_client", u64::from(cluster.handles_per_client)),
            ("movers", self.movers()),
            ("operations_per_client", u64::from(workload.operations_per_client)),
            ("max_work_factor", self.max_work_factor),
            ("max_scan_keys", workload.max_scan_keys),
            ("max_multi_get_keys", workload.max_multi_get_keys),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must be at least 1"));
        }
        // A bulk load fills leaves only partly, and a leaf may split before it is full.
        let most = (cluster.page_words as u64 - 8) / 4;
        let is_lsm = matches!(self.design, DesignSpec::Dlsm { .. });
        if workload.one_leaf && workload.key_space > most && !is_lsm {
            return Err(format!("with one_leaf, key_space must be at most {most}"));
        }
        if workload.key_space < 2 || workload.key_space <= u64::from(cluster.memory_servers) {
            return Err("key_space must be at least 2 and more than memory_servers".to_owned());
        }
        if workload.key_space >= 1 << 32 || workload.initial_keys > workload.key_space {
            return Err(
                "initial_keys must not exceed key_space, which must be below 2^32".to_owned()
            );
        }
        if workload.weights == Weights::default() {
            return Err("at least one weight must be positive".to_owned());
        }
        let window = match workload.distribution {
            DistributionSpec::Uniform => 1,
            DistributionSpec::Hot { keys, .. } | DistributionSpec::Sliding { keys } => keys,
        };
        if window == 0 || window > workload.key_space {
            return Err("the keys of the distribution must be 1 to key_space".to_owned());
        }
        let hot = match workload.distribution {
            DistributionSpec::Hot { probability, .. } => probability,
            _ => 0.0,
        };
        let probabilities = [
            ("probability", hot),
            ("tear_probability", faults.tear_probability),
            ("delay_probability", faults.delay_probability),
            ("drop_probability", faults.drop_probability),
            ("late_probability", faults.late_probability),
        ];
        let slow = faults.slow.iter().map(|slow| ("slow.probability", slow.probability));
        let mut probabilities = probabilities.into_iter().chain(slow);
        if let Some((name, _)) = probabilities.find(|(_, p)| !(0.0..=1.0).contains(p)) {
            return Err(format!("{name} must be from 0 to 1"));
        }
        if faults.loses_messages() && faults.timeout_ns == 0 {
            return Err("lost and late messages need a timeout_ns".to_owned());
        }
        // Clients of processes repeat it.
        let repeats = self.processes.is_some();
        if faults.loses_messages() && workload.load == LoadSpec::Bulk && !repeats {
            return Err("a bulk load needs a network that loses nothing, or processes".to_owned());
        }
        if let Some(takeover) = self.processes.as_ref().and_then(|spec| spec.takeover) {
            if !self.acknowledges_written() {
                return Err("takeovers need acknowledge = \"written\"".to_owned());
            }
            if takeover.right_ns == 0 || takeover.poll_ns == 0 {
                return Err("a right to answer and a poll take some time".to_owned());
            }
        }
        if let Some(spec) = &self.processes
            && !(1..=MAX_THREADS).contains(&spec.threads)
        {
            return Err(format!("processes have 1 to {MAX_THREADS} threads"));
        }
        if faults.clock_drift_ppm >= 1_000_000 {
            return Err("clock_drift_ppm must be less than a million".to_owned());
        }
        let of_deaths = |all: &[DeathSpec]| -> Vec<_> {
            all.iter().map(|d| (d.server, d.earliest_ns, d.latest_ns)).collect()
        };
        let of_outages = |all: &[OutageSpec]| -> Vec<_> {
            all.iter().map(|o| (o.server, o.earliest_ns, o.latest_ns)).collect()
        };
        let (memory, compute) = (cluster.memory_servers, cluster.compute_servers);
        let events = [
            ("kill_memory_server", of_deaths(&faults.kill_memory_server), memory),
            ("restart_memory_server", of_deaths(&faults.restart_memory_server), memory),
            ("kill_compute_server", of_deaths(&faults.kill_compute_server), compute),
            ("declare_live_dead", of_deaths(&faults.declare_live_dead), compute),
            ("pause_compute_server", of_outages(&faults.pause_compute_server), compute),
            ("cut_memory_server", of_outages(&faults.cut_memory_server), memory),
        ];
        for (name, events, servers) in events {
            let fits = |(server, earliest, latest): &(u16, u64, u64)| {
                *server < servers && earliest <= latest
            };
            if !events.iter().all(fits) {
                return Err(format!(
                    "{name}: a server's number is too large, or earliest_ns after latest_ns"
                ));
            }
        }
        self.crash.as_ref().map_or(Ok(()), |crash| self.check_crash(crash))?;
        if let DesignSpec::Dlsm { shards, moves, .. } = self.design
            && ((shards > 0) != self.processes.is_some() || (shards == 0 && moves > 0))
        {
            return Err("dlsm needs [processes] for shards, shards for [processes], and both for \
                 moves"
                .to_owned());
        }
        self.check_smart()?;
        self.check_dex()
    }

    /// Tasks that move keys; 1 for designs that cannot move keys.
    fn movers(&self) -> u64 {
        match self.design {
            DesignSpec::Dex { movers, .. } => movers.into(),
            _ => 1,
        }
    }

    fn check_crash(&self, crash: &CrashSpec) -> Result<(), String> {
        if self.faults.loses_messages()
            || !self.faults.kill_memory_server.is_empty()
            || !self.faults.restart_memory_server.is_empty()
        {
            return Err(
                "[crash] needs a network that loses nothing and no kill_memory_server".to_owned()
            );
        }
        match self.design {
            DesignSpec::Dex { .. } => Ok(()),
            // A tree belongs to one process, which dies as a whole.
            DesignSpec::Dlsm { .. }
                if crash.servers.is_empty()
                    && crash.loses_ns.is_none()
                    && self.faults.kill_compute_server.is_empty() =>
            {
                Ok(())
            }
            DesignSpec::Dlsm { .. } => {
                let what = "[crash] of dlsm has no servers, loses_ns and kill_compute_server";
                Err(what.to_owned())
            }
            _ => Err("[crash] needs the design dex or dlsm".to_owned()),
        }
    }

    fn check_smart(&self) -> Result<(), String> {
        let faults = &self.faults;
        match self.design {
            DesignSpec::Smart { divided: true, .. }
                if !faults.kill_compute_server.is_empty()
                    || !faults.declare_live_dead.is_empty() =>
            {
                Err("a divided smart cannot lose compute servers".to_owned())
            }
            DesignSpec::Smart { divided: true, .. }
                if self.workload.key_space <= u64::from(self.cluster.compute_servers) =>
            {
                Err("key_space must be more than compute_servers".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn check_dex(&self) -> Result<(), String> {
        let DesignSpec::Dex { cache_frames, spare_memory_servers, .. } = &self.design else {
            return Ok(());
        };
        if *spare_memory_servers >= self.cluster.memory_servers {
            return Err("spare_memory_servers must be less than memory_servers".to_owned());
        }
        let faults = &self.faults;
        if !faults.kill_compute_server.is_empty() || !faults.declare_live_dead.is_empty() {
            // When a compute server dies, its unwritten changes are lost, which no checker can
            // distinguish from a bug. Also, the caches of all compute servers are in one process.
            return Err("dex cannot lose single compute servers; use [crash]".to_owned());
        }
        if let Some(crash) = &self.crash
            && crash.servers.iter().any(|server| *server >= self.cluster.compute_servers)
        {
            return Err("crash: a server's number is too large".to_owned());
        }
        if self.workload.key_space <= u64::from(self.cluster.compute_servers) {
            return Err("key_space must be more than compute_servers".to_owned());
        }
        if cache_frames.is_some_and(|frames| frames < CacheOptions::MIN_FRAMES) {
            return Err(format!("cache_frames must be at least {}", CacheOptions::MIN_FRAMES));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: (&str, &str)) -> String {
        let (_, text) = SCENARIOS.iter().find(|(name, _)| *name == "coarse-faults").unwrap();
        assert!(text.contains(change.0), "{}", change.0);
        let error = Scenario::parse("mine", &text.replacen(change.0, change.1, 1)).unwrap_err();
        let message = error.to_string();
        assert!(!message.contains('\n'), "{message}");
        message
    }

    #[test]
    fn mistakes_are_told_on_one_line() {
        assert!(refused(("page_words", "page_wrods")).contains("page_wrods"));
        assert!(refused(("page_words = 24", "page_words = 25")).contains("[16, 24, 40, 128]"));
        assert!(refused(("timeout_ns = 50000", "timeout_ns = 0")).contains("need a timeout_ns"));
        let rings = refused(("\"range\"", "\"rings\""));
        assert!(rings.contains("`partitioning` must be range or hash, not `rings`"), "{rings}");
        let unknown = refused(("partitioning =", "partition ="));
        assert!(unknown.contains("unknown option `partition`: expected one of"), "{unknown}");
        assert!(refused(("[workload]", "[workload")).contains("line "));
        let unknown = Scenario::registered("nope").unwrap_err().to_string();
        assert!(unknown.contains("coarse-range-calm"), "{unknown}");
    }
}
