//! The programs of a cluster as used by an operator: real signals, and one line for each mistake.

use crate::launched::{Launched, eventually, farleaf, is_running, signal, text};
use farleaf_cluster::launch::LauncherFolder;
use farleaf_cluster::records::{self, CatalogKeys, IndexRecord, IndexState};
use farleaf_fabric::tcp::{TcpCluster, TcpConfig};
use farleaf_fabric::{Cluster, Fabric, FabricError, GlobalAddr, ServerId};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn a_cluster_starts_says_how_it_stands_and_ends() {
    for (by, transport) in [(Signal::TERM, "tcp"), (Signal::INT, "shm")] {
        let mut cluster =
            Launched::start(&["--transport", transport, "--memory-servers", "2", "--metrics"]);
        assert_eq!(cluster.said.len(), 4, "{:?}", cluster.said);
        let status = cluster.status();
        let said = text(&status.stdout);
        assert_eq!(status.status.code(), Some(0), "{said}");
        for part in ["memory server 0", "memory server 1", "generation 0", "index: none", "serves"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("gone"), "{said}");
        let records: Vec<_> = (0..2).map(|number| cluster.memory(number).unwrap()).collect();
        assert_ne!(records[0].epoch, records[1].epoch);
        assert!(records.iter().all(|record| record.transport.to_string() == transport));

        let metrics = records[1].metrics.as_ref().unwrap();
        let mut socket = TcpStream::connect(metrics).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\nfarleaf_pool_bytes 16777216\n"), "{answer}");

        let second = farleaf(&[
            "cluster",
            "--dir",
            cluster.dir(),
            "--transport",
            transport,
            "--memory-servers",
            "2",
            "--compute-servers",
            "0",
        ]);
        assert_eq!(second.status.code(), Some(2));
        assert!(text(&second.stderr).contains("another launcher is using"), "{second:?}");

        assert_eq!(cluster.end(by), Some(0));
        assert!(records.iter().all(|record| !is_running(record.pid)));
        let status = cluster.status();
        assert_eq!(status.status.code(), Some(1));
        assert!(text(&status.stderr).contains("no cluster runs in"), "{status:?}");
    }
}

#[test]
fn a_cluster_starts_again_in_its_folder_but_not_as_another() {
    let mut cluster = Launched::start(&["--transport", "tcp", "--memory-servers", "1"]);
    let (token, epoch) = (cluster.token(), cluster.memory(0).unwrap().epoch);
    assert_eq!(cluster.end(Signal::TERM), Some(0));
    let folder = std::mem::replace(&mut cluster.folder, tempfile::tempdir().unwrap());
    let mut again = Launched::start_in(folder, &["--transport", "tcp", "--memory-servers", "1"]);
    assert_eq!(again.token(), token);
    assert_ne!(again.memory(0).unwrap().epoch, epoch);
    assert_eq!(again.end(Signal::TERM), Some(0));
    let other = farleaf(&[
        "cluster",
        "--dir",
        again.dir(),
        "--transport",
        "tcp",
        "--memory-servers",
        "2",
        "--compute-servers",
        "0",
    ]);
    assert_eq!(other.status.code(), Some(1));
    let said = text(&other.stdout);
    assert!(said.contains("made with 1 as the number of memory servers, not 2"), "{said}");
}

/// Reads the first word of a memory server's memory.
fn read(cluster: &TcpCluster, server: u16) -> Result<(), FabricError> {
    cluster.run_one(|fabric| async move {
        let buffer = fabric.buffer(8).unwrap();
        fabric.read(GlobalAddr::new(ServerId::new(server), 0), buffer).await.map(drop)
    })
}

#[test]
fn a_memory_server_that_dies_is_missed_and_comes_back_as_another() {
    let mut cluster =
        Launched::start(&["--transport", "tcp", "--memory-servers", "2", "--restart"]);
    let before = cluster.memory(1).unwrap();
    let addresses = [cluster.memory(0).unwrap(), before.clone()];
    let addresses = addresses.map(|record| record.address.parse().unwrap()).to_vec();
    let client = TcpCluster::connect(addresses, &cluster.token(), TcpConfig::default());
    assert_eq!((read(&client, 0), read(&client, 1)), (Ok(()), Ok(())));
    signal(before.pid, Signal::KILL);
    cluster.await_line("memory server 1 has died: signal 9");
    cluster.await_line("memory server 1 has been restarted");
    let after = eventually("the new one", || {
        cluster.memory(1).filter(|record| record.epoch != before.epoch)
    });
    assert_eq!((&after.address, after.pid != before.pid), (&before.address, true));
    // A client of the old memory gets an error instead of access to the new memory.
    let told = eventually("the news", || match read(&client, 1) {
        Err(FabricError::Indeterminate { .. }) => None,
        told => Some(told),
    });
    assert_eq!(told, Err(FabricError::Restarted { server: ServerId::new(1) }));
    assert_eq!(read(&client, 0), Ok(()));
    // A server has died, so the launcher exits with 1.
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

#[test]
fn without_restart_a_dead_server_stays_missing() {
    let mut cluster = Launched::start(&["--transport", "tcp", "--memory-servers", "2"]);
    signal(cluster.memory(1).unwrap().pid, Signal::KILL);
    cluster.await_line("memory server 1 has died: signal 9");
    let said = eventually("a status that misses it", || {
        let status = cluster.status();
        (status.status.code() == Some(1)).then(|| text(&status.stdout))
    });
    assert!(said.contains("does not serve: memory server 1 is not registered"), "{said}");
    assert!(said.contains("gone"), "{said}");
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

/// A memory server started with too high a number once made the others wait for the numbers in
/// between, and made `status` report the index as lost.
#[test]
fn a_server_whose_number_the_cluster_does_not_have_is_refused() {
    let servers = ["--memory-servers", "1", "--compute-servers", "1", "--transport", "tcp"];
    let mut cluster = Launched::start(&servers);
    let token = cluster.folder.path().join("token");
    let catalog = LauncherFolder(cluster.folder.path().to_owned()).catalog().unwrap().to_string();
    let reach = ["--token-file", token.to_str().unwrap(), "--catalog", &catalog];
    // Compute servers may join later.
    let memory = "--number 5 is out of range: the cluster has 1";
    let compute = "--number 64 is out of range: a cluster has at most 64";
    for (command, number, transport, why) in [
        ("memory-server", "5", &["--transport", "tcp"][..], memory),
        ("compute-server", "64", &[], compute),
    ] {
        let output = farleaf(&[&[command, "--number", number], &reach[..], transport].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains(why), "{said}");
    }
    assert!(cluster.status().status.success());
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

/// The catalog dies with memory server 0; the other servers continue, and register again.
#[test]
fn the_catalog_comes_back_with_what_it_knew() {
    let mut cluster =
        Launched::start(&["--transport", "tcp", "--memory-servers", "2", "--restart"]);
    let keys = CatalogKeys::new("default").unwrap();
    let catalog = cluster.catalog();
    assert!(catalog.put_if(&keys.map(), None, "{}", None).unwrap());
    let (first, other) = (cluster.memory(0).unwrap(), cluster.memory(1).unwrap());
    signal(first.pid, Signal::KILL);
    cluster.await_line("memory server 0 has been restarted");
    eventually("memory server 0", || cluster.memory(0).filter(|now| now.epoch != first.epoch));
    assert_eq!(cluster.memory(1), Some(other), "it was not restarted");
    assert_eq!(catalog.get(&keys.map()).unwrap().unwrap().value, "{}");
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

#[test]
fn memory_follows_the_generation_of_the_index() {
    let mut cluster = Launched::start(&["--transport", "tcp", "--memory-servers", "2"]);
    let (keys, catalog) = (CatalogKeys::new("default").unwrap(), cluster.catalog());
    let before = [cluster.memory(0).unwrap(), cluster.memory(1).unwrap()];
    let addresses = before.iter().map(|record| record.address.parse().unwrap()).collect();
    let client = TcpCluster::connect(addresses, &cluster.token(), TcpConfig::default());
    assert_eq!(read(&client, 0), Ok(()));
    let index = IndexRecord { generation: 1, state: IndexState::Making, memory_epochs: Vec::new() };
    assert!(records::put_if(&*catalog, &keys.index(), None, &index, None).unwrap());
    let of_generation = |number| {
        eventually("the generation", || {
            cluster.memory(number).filter(|record| record.generation == 1)
        })
    };
    let after = [of_generation(0), of_generation(1)];
    // The memory that was used is replaced at the same address; the unused one may stay, and does.
    assert_ne!(after[0].epoch, before[0].epoch);
    assert_eq!(after[0].address, before[0].address);
    assert_eq!(after[1].epoch, before[1].epoch);
    let told = eventually("the news", || match read(&client, 0) {
        Err(FabricError::Indeterminate { .. }) => None,
        told => Some(told),
    });
    assert_eq!(told, Err(FabricError::Restarted { server: ServerId::new(0) }));
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

/// A served index is lost, and the cluster creates the next one.
#[test]
fn a_whole_cluster_makes_its_index_anew_when_a_memory_server_has_died() {
    ["tcp", "shm"].into_iter().for_each(|transport| loses_its_index(transport, &[]));
}

pub(crate) fn loses_its_index(transport: &str, more: &[&str]) {
    let servers = ["--memory-servers", "2", "--compute-servers", "2", "--transport", transport];
    let flags = ["--cache-bytes", "1Mi", "--boundaries", "1000", "--restart"];
    let mut cluster = Launched::start(&[&servers[..], &flags, more].concat());
    let said = text(&cluster.status().stdout);
    for part in ["generation 1, ready", "..1000", "1000..", "compute server 1", "serves"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let before = cluster.memory(1).unwrap();
    signal(before.pid, Signal::KILL);
    cluster.await_line("memory server 1 has been restarted");
    let said = eventually("the next generation", || {
        let status = cluster.status();
        let said = text(&status.stdout);
        (status.status.success() && said.contains("generation 2, ready")).then_some(said)
    });
    assert!(said.contains("..1000"), "the map stays: {said}");
    assert_ne!(cluster.memory(1).unwrap().epoch, before.epoch);
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

#[test]
fn servers_end_with_a_launcher_that_is_killed() {
    let mut cluster = Launched::start(&["--transport", "tcp", "--memory-servers", "2"]);
    let pids = [cluster.memory(0).unwrap().pid, cluster.memory(1).unwrap().pid];
    assert_eq!(cluster.end(Signal::KILL), None);
    for pid in pids {
        eventually("its end", || (!is_running(pid)).then_some(()));
    }
}

fn write(folder: &Path, name: &str, content: &str, mode: u32) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_makes_no_sense_ends_with_one_line_and_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let secret = "0123456789abcdef0123456789abcdef";
    let token = write(folder.path(), "token", secret, 0o600);
    let open_token = write(folder.path(), "open", secret, 0o644);
    let short_token = write(folder.path(), "short", "secret", 0o600);
    let unknown = write(folder.path(), "unknown.toml", "pool_byte = \"1Gi\"\n", 0o644);
    let no_unit = write(folder.path(), "unit.toml", "pool_bytes = \"1 GB\"\n", 0o644);
    let broken = write(folder.path(), "broken.toml", "a = 1\nb = = 2\n", 0o644);
    let state = folder.path().join("catalog.json");
    let not_a_state = write(folder.path(), "notes.json", "[]", 0o644);
    let server = |more: &[&str]| {
        let first = ["memory-server", "--number", "0"].iter();
        first.chain(more).map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let made = folder.path().join("made").to_str().unwrap().to_owned();
    let cluster = |boundaries: &str| {
        let words = format!("cluster --dir {made} --transport tcp --memory-servers 1");
        let words = format!("{words} --compute-servers 2 --boundaries {boundaries}");
        words.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let here = ["--catalog-listen", "127.0.0.1:0", "--catalog-state", state.to_str().unwrap()];
    let with = |more: &[&str]| server(&[&here, more].concat());
    let tcp = ["--transport", "tcp"];
    let cases: Vec<(Vec<String>, i32, &str)> = vec![
        (with(&["--token-file", &token]), 2, "--transport"),
        (with(&["--token-file", &token, "--transport", "udp"]), 2, "expected tcp, shm or verbs"),
        (with(&["--token-file", &token, "--transport", "shm"]), 2, "--socket PATH"),
        (with(&[&tcp[..], &["--token-file", &open_token]].concat()), 2, "run chmod 600 on it"),
        (with(&[&tcp[..], &["--token-file", &short_token]].concat()), 2, "a token of 6 bytes"),
        (with(&[&tcp[..], &["--token-file", "/no/token"]].concat()), 2, "/no/token: No such file"),
        (
            with(&[&tcp[..], &["--token-file", &token, "--cluster", "a/b"]].concat()),
            2,
            "a cluster's name must have",
        ),
        (
            with(&[&tcp[..], &["--token-file", &token, "--listen", "0.0.0.0:0"]].concat()),
            2,
            "with --advertise",
        ),
        (
            with(&[&tcp[..], &["--token-file", &token, "--listen", "localhost"]].concat()),
            2,
            "expected a host and a port such as",
        ),
        (
            with(&[&tcp[..], &["--token-file", &token, "--pool-bytes", "5000"]].concat()),
            2,
            "multiple of 4096",
        ),
        (
            with(&[&tcp[..], &["--token-file", &token, "--memory-servers", "1"]].concat()),
            2,
            "--compute-servers",
        ),
        (server(&[&tcp[..], &["--token-file", &token]].concat()), 2, "--catalog"),
        (
            server(&[&tcp[..], &["--token-file", &token, "--catalog", "nowhere"]].concat()),
            2,
            "or db6:7400, or etcd:HOST:PORT",
        ),
        (
            server(
                &[
                    &tcp[..],
                    &[
                        "--token-file",
                        &token,
                        "--catalog-listen",
                        "127.0.0.1:0",
                        "--catalog-state",
                        &not_a_state,
                    ],
                ]
                .concat(),
            ),
            1,
            "is not a catalog's state file",
        ),
        (with(&["--config", &unknown]), 2, "unknown.toml: unknown setting `pool_byte`"),
        (with(&["--config", &no_unit]), 2, "expected a number of bytes such as 4096"),
        (with(&["--config", &broken]), 2, "broken.toml: line 2: "),
        (with(&["--config", "/no/file"]), 2, "/no/file: No such file"),
        (vec!["status".into()], 2, "--dir"),
        (vec!["status".into(), "--dir".into(), "/no/folder".into()], 2, "/no/folder"),
        (vec!["cluster".into(), "--dir".into(), "/tmp".into()], 2, "--transport"),
        (cluster("5,6"), 2, "2 compute servers need 1 boundaries, not 2"),
        (cluster("0"), 2, "boundaries must ascend strictly from above 0"),
    ];
    for (arguments, code, expected) in cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = farleaf(&[&arguments[..], &[]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{arguments:?}: {said}");
        assert!(errors[0].contains(expected), "{arguments:?}: {said}");
    }
    assert!(!Path::new(&made).exists(), "nothing was started");
}
