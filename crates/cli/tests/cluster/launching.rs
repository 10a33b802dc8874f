//! Launchers that are killed and started again, signals, and machines that have run out of
//! something.
//!
//! A start right after the death of a launcher failed, because the former servers still had the
//! catalog's state and the sockets. Servers that an operator asked to end counted as crashes, and
//! after six of them one was not restarted. SIGHUP ended a compute server like a crash. A restart
//! that failed, for a full disk, ended the whole cluster, and with it the index.

use crate::launched::{Launched, eventually, farleaf, is_running, signal, text};
use crate::serving::{compute, serving};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use std::fs::File;
use std::process::{Command, Stdio};

fn put(cluster: &Launched, key: &str, value: &str) {
    let put = farleaf(&["client", "--dir", cluster.dir(), "put", key, value]);
    assert_eq!(put.status.code(), Some(0), "{put:?}");
}

/// Waits until no server runs, and then stands for one that takes long to end, by the lock that
/// each of them holds. To stop a server would not do: the kernel continues it when its launcher
/// dies.
fn hold(cluster: &Launched) -> File {
    let lock = File::open(cluster.folder.path().join("servers.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    lock
}

fn pid_of(cluster: &Launched, server: &str) -> u32 {
    let path = cluster.folder.path().join(format!("{server}.pid"));
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

#[test]
fn a_start_right_after_the_death_of_a_launcher_waits_for_its_servers() {
    for transport in ["shm", "tcp"] {
        let flags = ["--memory-servers", "1", "--compute-servers", "1", "--transport", transport];
        let mut cluster = Launched::start(&flags);
        let pids = ["memory-0", "compute-0"].map(|server| pid_of(&cluster, server));
        assert_eq!(cluster.end(Signal::KILL), None);
        let slow = hold(&cluster);
        cluster.begin_again(&flags);
        cluster.await_line("waiting for the servers of a former launcher to end");
        drop(slow);
        cluster.await_line("ready");
        assert!(pids.iter().all(|pid| !is_running(*pid)), "the former servers have ended");
        assert!(cluster.status().status.success());
        put(&cluster, "1", "2");
        // Without a pause, the servers of the former launcher end while the next one starts.
        for _ in 0..3 {
            assert_eq!(cluster.end(Signal::KILL), None);
            cluster.begin_again(&flags);
            cluster.await_line("ready");
        }
        assert_eq!(cluster.end(Signal::TERM), Some(0));
    }
}

#[test]
fn servers_of_a_dead_launcher_that_never_end_are_named() {
    let flags = ["--memory-servers", "1", "--transport", "tcp", "--end-seconds", "0.1"];
    let mut cluster = Launched::start(&flags);
    assert_eq!(cluster.end(Signal::TERM), Some(0));
    let (pid, slow) = (std::process::id(), hold(&cluster));
    std::fs::write(cluster.folder.path().join("memory-0.pid"), format!("{pid}\n")).unwrap();
    let all = [&["cluster", "--dir", cluster.dir(), "--compute-servers", "0"], &flags[..]].concat();
    let failed = farleaf(&all);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let said = text(&failed.stderr);
    assert!(said.contains("servers of a former launcher still run in"), "{said}");
    assert!(said.contains(&pid.to_string()), "{said}");
    drop(slow);
    cluster.begin_again(&flags);
    cluster.await_line("ready");
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}

/// An operator ends a server again and again, to change its machine or for a test: not once is that
/// a server that cannot run.
#[test]
fn servers_that_end_on_request_are_restarted_without_end() {
    let flags = ["--memory-servers", "1", "--compute-servers", "1", "--transport", "tcp"];
    let mut cluster = Launched::start(&[&flags[..], &["--restart"]].concat());
    let mut before = compute(&cluster, 0).unwrap().epoch;
    for _ in 0..7 {
        signal(compute(&cluster, 0).unwrap().pid, Signal::TERM);
        cluster.await_line("compute server 0 has ended on request");
        let next = cluster.await_line("compute server 0");
        assert_eq!(next, "compute server 0 has been restarted");
        before = eventually("its registration", || {
            compute(&cluster, 0).map(|record| record.epoch).filter(|epoch| *epoch != before)
        });
    }
    assert_eq!(cluster.end(Signal::TERM), Some(0), "nothing has died");
}

/// The hang-up of a terminal, or of a service manager that means *read your settings again*.
#[test]
fn a_hang_up_is_a_clean_end() {
    // Only a flush or a clean end writes a change back.
    let mut cluster = serving("tcp", &["--write-back-ms", "0", "--restart"]);
    put(&cluster, "1", "2");
    let before = compute(&cluster, 0).unwrap();
    signal(before.pid, Signal::HUP);
    assert_eq!(cluster.await_line("compute server 0 "), "compute server 0 has ended on request");
    cluster.await_line("compute server 0 has been restarted");
    eventually("its next life", || compute(&cluster, 0).filter(|now| now.epoch != before.epoch));
    eventually("its keys", || {
        let got = farleaf(&["client", "--dir", cluster.dir(), "get", "1"]);
        (got.status.code() == Some(0)).then(|| assert_eq!(text(&got.stdout), "2\n"))
    });
    // The launcher ends its servers in order, as by SIGTERM.
    let pid = pid_of(&cluster, "compute-0");
    assert_eq!(cluster.end(Signal::HUP), Some(0));
    assert!(!is_running(pid));
}

/// A cluster that `nohup` has started outlives its terminal.
#[test]
fn a_hang_up_that_is_ignored_stays_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    farleaf_cluster::config::make_token(folder.path().join("token").as_path()).unwrap();
    let mut server = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_farleaf"))
        .args(["memory-server", "--number", "0", "--transport", "tcp", "--pool-bytes", "16Mi"])
        .args(["--memory-servers", "1", "--compute-servers", "0", "--token-file", &path("token")])
        .args(["--catalog-listen", "127.0.0.1:0", "--catalog-state", &path("catalog.json")])
        .args(["--catalog-address-file", &path("address"), "--log", "off"])
        .spawn()
        .unwrap();
    let address =
        eventually("the catalog's address", || std::fs::read_to_string(path("address")).ok());
    let reach = ["status", "--catalog", address.trim(), "--token-file", &path("token")];
    let serves = || eventually("its answer", || farleaf(&reach).status.success().then_some(()));
    serves();
    signal(server.id(), Signal::HUP);
    serves();
    assert_eq!(server.try_wait().unwrap(), None, "it has ended");
    // Twice is as good as once.
    signal(server.id(), Signal::TERM);
    signal(server.id(), Signal::TERM);
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// The restart of a server fails, as on a full disk. Its log cannot be opened here, because there
/// is a folder at its place.
#[test]
fn a_restart_that_fails_ends_no_other_server() {
    let mut cluster = serving("tcp", &["--restart"]);
    put(&cluster, "1", "2");
    let (log, dead) = (cluster.folder.path().join("compute-1.log"), compute(&cluster, 1).unwrap());
    std::fs::rename(&log, cluster.folder.path().join("old.log")).unwrap();
    std::fs::create_dir(&log).unwrap();
    signal(dead.pid, Signal::KILL);
    cluster.await_line("compute server 1 has died: signal 9");
    let said = cluster.await_line("cannot start compute server 1");
    assert!(said.contains("directory"), "{said}");
    let got = farleaf(&["client", "--dir", cluster.dir(), "get", "1"]);
    assert_eq!(text(&got.stdout), "2\n", "{got:?}");
    // It is tried again, and starts once there is room.
    std::fs::remove_dir(&log).unwrap();
    cluster.await_line("compute server 1 has been restarted");
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

/// A server that cannot start its threads said that the catalog refused it, named no thread at all,
/// or panicked.
#[test]
fn running_out_of_threads_is_called_by_its_name() {
    for transport in ["tcp", "shm"] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        farleaf_cluster::config::make_token(folder.path().join("token").as_path()).unwrap();
        // The stacks of a thousand threads do not fit into this address space.
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 1000000; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_farleaf"))
            .args(["memory-server", "--number", "0", "--pool-bytes", "16Mi", "--threads", "1000"])
            .args(["--transport", transport, "--socket", &path("socket"), "--log", "off"])
            .args(["--memory-servers", "1", "--compute-servers", "0"])
            .args(["--token-file", &path("token"), "--catalog-listen", "127.0.0.1:0"])
            .args(["--catalog-state", &path("catalog.json")])
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("error: ") && said.lines().count() == 1, "{said}");
        assert!(said.contains("cannot start a thread"), "{said}");
    }
}

/// A client without file descriptors for its sockets panicked, with exit code 101.
#[test]
fn running_out_of_descriptors_is_an_error_and_no_panic() {
    let cluster = serving("tcp", &[]);
    let file = cluster.folder.path().join("two.csv");
    std::fs::write(&file, "1,2\n3,4\n").unwrap();
    let (file, export) = (file.to_str().unwrap(), cluster.folder.path().join("export.csv"));
    let commands: [&[&str]; 6] = [
        &["client", "--deadline-seconds", "1", "put", "1", "2"],
        &["client", "--deadline-seconds", "1", "load", file],
        &["client", "bench", "--keys", "10", "--clients", "2", "--operations", "10"],
        &["client", "export", export.to_str().unwrap()],
        &["shell"],
        &["move", "--deadline-seconds", "2", "0", "1"],
    ];
    let mut failed = 0;
    for (limit, command) in (4..8).flat_map(|limit| commands.map(|command| (limit, command))) {
        let (name, rest) = command.split_first().unwrap();
        let output = Command::new("sh")
            .args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_farleaf"))
            .args([name, "--dir", cluster.dir()])
            .args(rest)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        let code = output.status.code();
        assert!(matches!(code, Some(0..3)), "{limit}: {command:?}: {code:?}: {said}");
        if code != Some(0) {
            failed += 1;
            assert!(said.starts_with("error: ") && said.lines().count() == 1, "{said}");
        }
    }
    assert!(failed > commands.len(), "{failed}");
}
