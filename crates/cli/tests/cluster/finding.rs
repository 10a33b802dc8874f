//! Clients that lose a compute server: the errors that they get, and how they find it again at a
//! new address.
//!
//! A client once kept using the first address that it had found, and reported an unknown outcome
//! for operations that it had never sent.

use crate::launched::{Launched, eventually, farleaf, signal, text};
use crate::serving::{KEYS, compute, connect, serving, try_both};
use farleaf_cluster::client::ClusterConnection;
use farleaf_cluster::launch::LauncherFolder;
use farleaf_index::{IndexError, RangeIndex};
use rustix::process::Signal;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longer than a compute server takes to restart.
const LONG: Duration = Duration::from_secs(60);

fn upsert(connection: &ClusterConnection, key: u64, value: u64) -> Result<(), IndexError> {
    connection.run(async |client| client.upsert(&key, &value).await)
}

fn get(connection: &ClusterConnection, key: u64) -> Result<Option<u64>, IndexError> {
    connection.run(async |client| client.get(&key).await)
}

/// A compute server that the launcher did not start.
struct Foreign(Child);

impl Foreign {
    fn start(cluster: &Launched, number: u16) -> Self {
        let catalog = LauncherFolder(cluster.dir().into()).catalog().unwrap().to_string();
        let token = cluster.folder.path().join("token");
        let process = Command::new(env!("CARGO_BIN_EXE_farleaf"))
            .args(["compute-server", "--number", &number.to_string(), "--listen", "127.0.0.1:0"])
            .args(["--term-seconds", "1", "--cache-bytes", "1Mi", "--catalog", &catalog])
            .arg("--token-file")
            .arg(token)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(process)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_compute_server_that_came_back_at_another_port_is_found() {
    let mut cluster = serving("tcp", &[]);
    let connection = connect(&cluster, LONG);
    assert_eq!(upsert(&connection, KEYS[1], 5), Ok(()));
    let before = compute(&cluster, 1).unwrap();
    signal(before.pid, Signal::KILL);
    cluster.await_line("compute server 1 has died: signal 9");
    let _foreign = Foreign::start(&cluster, 1);
    // Only the new server can execute this operation, so it has to wait for that server.
    assert_eq!(upsert(&connection, KEYS[1], 6), Ok(()));
    assert_eq!(get(&connection, KEYS[1]), Ok(Some(6)));
    let after = compute(&cluster, 1).unwrap();
    assert!(after.pid != before.pid && after.address != before.address, "{after:?}");
    cluster.end(Signal::TERM);
}

#[test]
fn what_was_not_sent_is_done_by_the_next_incarnation_of_a_compute_server() {
    let mut cluster = serving("tcp", &["--restart"]);
    let connection = connect(&cluster, LONG);
    assert_eq!(try_both(&connection, KEYS[0]), [Ok(()), Ok(())]);
    for value in 0..3 {
        signal(compute(&cluster, 0).unwrap().pid, Signal::KILL);
        cluster.await_line("compute server 0 has died: signal 9");
        assert_eq!(upsert(&connection, KEYS[0], value), Ok(()));
        assert_eq!(get(&connection, KEYS[0]), Ok(Some(value)));
    }
    cluster.end(Signal::TERM);
}

#[test]
fn a_change_that_was_not_sent_is_not_called_unknown() {
    let mut cluster = serving("tcp", &[]);
    let connection = connect(&cluster, Duration::from_secs(2));
    for key in KEYS {
        assert_eq!(try_both(&connection, key), [Ok(()), Ok(())]);
    }
    let dir = cluster.dir().to_owned();
    signal(compute(&cluster, 1).unwrap().pid, Signal::KILL);
    cluster.await_line("compute server 1 has died: signal 9");
    let told = upsert(&connection, KEYS[1], 2).unwrap_err();
    assert!(!matches!(told, IndexError::Indeterminate(_)), "{told}");
    assert!(told.to_string().contains("compute server 1"), "{told}");
    assert_eq!(upsert(&connection, KEYS[0], 2), Ok(()), "the other one serves");
    let put = ["client", "--dir", &dir, "--deadline-seconds", "2", "put"];
    let put = farleaf(&[&put[..], &[&KEYS[1].to_string(), "3"]].concat());
    let said = text(&put.stderr);
    assert_eq!(put.status.code(), Some(1));
    assert!(!said.contains("unknown") && said.contains("compute server 1"), "{said}");
    // The catalog removes the server, and then the connection does.
    eventually("the end of its lease", || compute(&cluster, 1).is_none().then_some(()));
    let told = eventually("the news", || {
        upsert(&connection, KEYS[1], 4)
            .err()
            .filter(|told| told.to_string().contains("is not registered"))
    });
    assert!(matches!(told, IndexError::NotServed { compute_server: 1, .. }), "{told}");
    cluster.end(Signal::TERM);
}
