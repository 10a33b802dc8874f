//! Clients of a whole cluster of processes: their results, and their errors when a server dies or
//! hangs.

use crate::launched::{Launched, eventually, farleaf, signal, stop, text};
use farleaf_cluster::client::{ClusterConnection, ConnectionConfig};
use farleaf_cluster::clock::MonotonicClock;
use farleaf_cluster::launch::LauncherFolder;
use farleaf_cluster::layouts::ClusterLayout;
use farleaf_cluster::records::{self, CatalogKeys, ComputeRecord};
use farleaf_fabric::handshake::PeerRole;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig};
use farleaf_fabric::{AnyFabric, ClientTask, Cluster, Provider, RpcService, ServerId};
use farleaf_index::client::RemoteDesign;
use farleaf_index::{IndexError, RangeIndex};
use farleaf_page::{Bytes, Fixed8, NamedLayout};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::{self, SuiteBackground, SuiteSetup};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn serving(transport: &str, more: &[&str]) -> Launched {
    let servers = ["--memory-servers", "2", "--compute-servers", "2", "--transport", transport];
    let sizes = ["--pool-bytes", "64Mi", "--cache-bytes", "1Mi"];
    Launched::start(&[&servers[..], &sizes, more].concat())
}

pub(crate) fn compute(cluster: &Launched, number: u16) -> Option<ComputeRecord> {
    let key = CatalogKeys::new("default").unwrap().compute(number);
    records::get(&*cluster.catalog(), &key).ok()?.map(|(record, _)| record)
}

/// Starts clusters of processes over this transport and with these options, and ignores the memory
/// servers passed to it.
struct Processes(&'static str, &'static [&'static str]);

struct Running {
    clients: TcpCluster,
    _processes: Launched,
}

impl Provider for Processes {
    type Cluster<S: RpcService> = Running;

    fn try_start<S: RpcService>(&self, _services: Vec<Arc<S>>) -> std::io::Result<Running> {
        let processes = serving(self.0, self.1);
        let compute = [0, 1].map(|number| compute(&processes, number).unwrap());
        let addresses = compute.iter().map(|record| record.address.parse().unwrap()).collect();
        let config = TcpConfig {
            role: PeerRole::Client,
            server_role: PeerRole::ComputeServer,
            ..TcpConfig::default()
        };
        let clients = TcpCluster::connect(addresses, &processes.token(), config);
        Ok(Running { clients, _processes: processes })
    }
}

impl Cluster for Running {
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> std::io::Result<()> {
        self.clients.run_clients(compute_servers, start)
    }

    fn kill_memory_server(&self, _server: ServerId) {
        unreachable!("the suite of the designs kills nobody");
    }
}

#[test]
fn the_suite_of_all_designs_against_processes() {
    the_suite::<Fixed8>(&[]);
}

/// Most of the suite's values are in blocks.
#[test]
fn the_suite_of_all_designs_against_processes_with_blocks() {
    the_suite::<Bytes>(&["--keys", "bytes", "--inline-bytes", "12", "--boundaries", "m"]);
}

fn the_suite<L: NamedLayout>(flags: &'static [&'static str]) {
    let beside = &SuiteBackground::nothing();
    for transport in ["tcp", "shm"] {
        let provider = &Processes(transport, flags);
        let server = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
        let setup = SuiteSetup { provider, options: (), memory_servers: 0, server };
        conformance::single_operations::<L, RemoteDesign, _>(&setup, beside);
        conformance::scans::<L, RemoteDesign, _>(&setup, beside);
        conformance::concurrent_owners::<L, RemoteDesign, _>(&setup, beside);
        conformance::concurrent_counters::<L, RemoteDesign, _>(&setup, beside);
    }
    let server = MemoryServerConfig { pool_bytes: 1 << 20, ..Default::default() };
    let provider = &Processes("tcp", flags);
    let setup = SuiteSetup { provider, options: (), memory_servers: 0, server };
    conformance::bulk_load::<L, RemoteDesign, _>(&setup, beside);
}

pub(crate) fn connect(cluster: &Launched, deadline: Duration) -> ClusterConnection {
    connect_to(cluster, deadline)
}

/// Connects to a cluster of any layout.
pub(crate) fn connect_to<L: ClusterLayout>(
    cluster: &Launched,
    deadline: Duration,
) -> ClusterConnection<L> {
    let config = ConnectionConfig {
        cluster: "default".into(),
        catalog: LauncherFolder(cluster.dir().into()).catalog().unwrap(),
        token: cluster.token(),
        deadline,
        depth: 64,
    };
    ClusterConnection::open(&config).unwrap()
}

/// A key of each compute server.
pub(crate) const KEYS: [u64; 2] = [7, u64::MAX - 7];
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
/// Additional time for a loaded machine.
const LATE: Duration = Duration::from_secs(20);

/// Runs one lookup and one change of a key. Each must end in time, with any outcome.
pub(crate) fn try_both(connection: &ClusterConnection, key: u64) -> [Result<(), IndexError>; 2] {
    try_both_of(connection, &key, &1)
}

/// As [`try_both`], for any layout.
pub(crate) fn try_both_of<L: ClusterLayout>(
    connection: &ClusterConnection<L>,
    key: &L::Key,
    value: &L::Value,
) -> [Result<(), IndexError>; 2] {
    let clock = MonotonicClock::start();
    let outcomes = connection.run(async |client| {
        let read = client.get(key).await.map(drop);
        let write = client.upsert(key, value).await;
        Ok::<_, IndexError>([read, write])
    });
    assert!(clock.elapsed() < DEADLINE * 2 + LATE, "{:?}: {outcomes:?}", clock.elapsed());
    outcomes.unwrap()
}

/// Checks that each outcome is one of: done, known not to have happened, or unknown.
pub(crate) fn honest(outcomes: [Result<(), IndexError>; 2]) {
    for outcome in outcomes {
        let known = matches!(
            outcome,
            Ok(()) | Err(IndexError::Indeterminate(_) | IndexError::NotServed { .. })
        );
        assert!(known, "{outcome:?}");
    }
}

fn serves_again(cluster: &Launched, key: u64) {
    eventually("service", || {
        let connection = connect(cluster, DEADLINE);
        try_both(&connection, key).iter().all(Result::is_ok).then_some(())
    });
}

#[test]
fn a_compute_server_that_stands_still_or_dies_is_missed_alone() {
    let mut cluster = serving("tcp", &["--restart"]);
    let connection = connect(&cluster, DEADLINE);
    for key in KEYS {
        assert_eq!(try_both(&connection, key), [Ok(()), Ok(())]);
    }
    let first = compute(&cluster, 0).unwrap();
    stop(first.pid);
    let [read, write] = try_both(&connection, KEYS[0]);
    // The server accepts no connection, so nothing is sent. Once its lease has ended, it is not
    // registered.
    for outcome in [read, write] {
        let is_told = matches!(
            outcome,
            Err(IndexError::NotSent { compute_server: 0 }
                | IndexError::NotServed { compute_server: 0, .. })
        );
        assert!(is_told, "{outcome:?}");
    }
    assert_eq!(try_both(&connection, KEYS[1]), [Ok(()), Ok(())], "the other one serves");
    signal(first.pid, Signal::CONT);
    serves_again(&cluster, KEYS[0]);
    signal(compute(&cluster, 0).unwrap().pid, Signal::KILL);
    honest(try_both(&connection, KEYS[0]));
    assert_eq!(try_both(&connection, KEYS[1]), [Ok(()), Ok(())], "the other one serves");
    cluster.await_line("compute server 0 has been restarted");
    serves_again(&cluster, KEYS[0]);
    // The existing connection works with the restarted server.
    assert_eq!(try_both(&connection, KEYS[0]), [Ok(()), Ok(())]);
    cluster.end(Signal::TERM);
}

#[test]
fn a_memory_server_that_stands_still_or_dies_holds_nobody_for_ever() {
    let mut cluster = serving("tcp", &["--restart"]);
    let connection = connect(&cluster, DEADLINE);
    for key in KEYS {
        assert_eq!(try_both(&connection, key), [Ok(()), Ok(())]);
    }
    let pid = cluster.memory(0).unwrap().pid;
    stop(pid);
    for key in KEYS {
        honest(try_both(&connection, key));
    }
    signal(pid, Signal::CONT);
    for key in KEYS {
        serves_again(&cluster, key);
    }
    let pid = cluster.memory(1).unwrap().pid;
    signal(pid, Signal::KILL);
    for key in KEYS {
        honest(try_both(&connection, key));
    }
    cluster.await_line("memory server 1 has been restarted");
    for key in KEYS {
        serves_again(&cluster, key);
    }
    cluster.end(Signal::TERM);
}

/// Changes that were acknowledged before a compute server ends cleanly are written back, and
/// survive its restart.
#[test]
fn a_compute_server_that_ends_cleanly_loses_nothing() {
    let mut cluster = serving("tcp", &["--restart"]);
    let connection = connect(&cluster, DEADLINE);
    let written: Result<(), IndexError> = connection.run(async |client| {
        for key in 0..500 {
            client.insert(&key, &(key * 2)).await?;
        }
        Ok(())
    });
    assert_eq!(written, Ok(()));
    signal(compute(&cluster, 0).unwrap().pid, Signal::TERM);
    cluster.await_line("compute server 0 has been restarted");
    serves_again(&cluster, u64::MAX / 4);
    let found = connect(&cluster, DEADLINE).run(async |client| {
        let mut found = Vec::new();
        for key in 0..500 {
            found.push(client.get(&key).await?);
        }
        Ok::<_, IndexError>(found)
    });
    assert_eq!(found, Ok((0..500).map(|key| Some(key * 2)).collect()));
    cluster.end(Signal::TERM);
}

#[test]
fn the_commands_of_a_client() {
    let mut cluster = serving("tcp", &[]);
    let dir = cluster.dir().to_owned();
    let client = |words: &[&str]| {
        let output = farleaf(&[&["client", "--dir", &dir], words].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let done = |out: &str| (Some(0), out.to_owned(), String::new());
    let no = |why: &str| (Some(1), String::new(), why.to_owned());
    assert_eq!(client(&["get", "5"]), no("key 5 is absent\n"));
    assert_eq!(client(&["put", "5", "50"]), done(""));
    assert_eq!(client(&["insert", "5", "51"]), no("key 5 is there already\n"));
    assert_eq!(client(&["update", "6", "60"]), no("key 6 is absent\n"));
    assert_eq!(client(&["put", "18446744073709551615", "0"]), done(""));
    assert_eq!(client(&["scan", "0", "--limit", "9"]), done("5,50\n18446744073709551615,0\n"));
    assert_eq!(client(&["scan", "5", "--reverse"]), done("5,50\n"));
    assert_eq!(client(&["remove", "5"]), done(""));
    assert_eq!(client(&["get", "5"]), no("key 5 is absent\n"));
    let file = |name: &str, lines: &str| {
        let path = cluster.folder.path().join(name);
        std::fs::write(&path, lines).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let records: String = (0..5_000).map(|key| format!("{key},{}\n", key + 1)).collect();
    let good = file("good.csv", &format!("key,value\n{records}"));
    let bad = file("bad.csv", "1,2\n3\n");
    let (code, out, said) = client(&["load", &good]);
    assert_eq!((code, &*out), (Some(0), "5000 records\n"));
    assert!(said.starts_with("warning: 100.0% of the records went to compute server 0"), "{said}");
    assert_eq!(client(&["scan", "4998", "--limit", "2"]), done("4998,4999\n4999,5000\n"));
    let (code, _, said) = client(&["load", &bad]);
    let why = "the number of fields is 1, expected 2 as in the first row";
    let expected = format!("error: records loaded before this: 1: {bad}, line 2: {why}\n");
    assert_eq!((code, said), (Some(2), expected));
    let (code, _, said) = client(&["load", "--bulk", &good]);
    assert_eq!(code, Some(1), "it is not empty: {said}");
    assert!(said.contains("not empty"), "{said}");
    let words = ["bench", "--keys", "1000", "--operations", "2000", "--in-flight", "16", "--json"];
    let (code, json, _) = client(&words);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["operations"], &json["failed"]), (Some(0), &2000.into(), &0.into()));
    let stranger = cluster.folder.path().join("stranger");
    std::fs::write(&stranger, "0123456789abcdef0123456789abcdef").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&stranger, mode).unwrap();
    let catalog = LauncherFolder(cluster.dir().into()).catalog().unwrap().to_string();
    let token = stranger.to_str().unwrap();
    let words = ["client", "--catalog", &catalog, "--token-file", token, "get", "1"];
    let refused = farleaf(&words);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("cannot be used"), "{refused:?}");
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}
