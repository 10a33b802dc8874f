//! A cluster whose servers are known by host names.
//!
//! Machines have names, and their addresses change. Only IP addresses were accepted, except in an
//! etcd's list of members.

use crate::launched::{eventually, farleaf, signal, text};
use farleaf::{ConnectOptions, Index, connect};
use rustix::process::Signal;
use std::process::{Child, Command, Stdio};

/// A program that this test has started; killed with it.
struct Program(Child);

impl Program {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farleaf"));
        command.args(words).args(["--log", "off"]).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_address_may_be_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    farleaf_cluster::config::make_token(folder.path().join("token").as_path()).unwrap();
    let token = path("token");
    let at = ["--listen", "localhost:0", "--advertise", "localhost:0", "--metrics", "localhost:0"];
    let memory = [
        &["memory-server", "--number", "0", "--transport", "tcp", "--pool-bytes", "16Mi"][..],
        &["--memory-servers", "1", "--compute-servers", "1", "--token-file", &token],
        &["--catalog-listen", "localhost:0", "--catalog-state", &path("catalog.json")],
        &["--catalog-address-file", &path("address")],
        &at,
    ];
    let mut memory = Program::start(&memory.concat());
    let address =
        eventually("the catalog's address", || std::fs::read_to_string(path("address")).ok());
    let catalog = format!("localhost:{}", address.trim().rsplit_once(':').unwrap().1);
    let reach = ["--catalog", &catalog, "--token-file", &token];
    let compute = [&["compute-server", "--number", "0", "--cache-bytes", "1Mi"][..], &reach, &at];
    let mut compute = Program::start(&compute.concat());
    let said = eventually("a cluster that serves", || {
        let status = farleaf(&[&["status"], &reach[..]].concat());
        status.status.success().then(|| text(&status.stdout))
    });
    assert!(said.contains("tcp localhost:"), "{said}");
    let put = farleaf(&[&["client"], &reach[..], &["put", "17", "4"]].concat());
    assert_eq!(put.status.code(), Some(0), "{put:?}");
    let index: Index = connect(ConnectOptions::new(&catalog).token_file(&token)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(index.get(17)).unwrap(), Some(4));
    drop(index);
    for server in [&mut compute, &mut memory] {
        signal(server.0.id(), Signal::TERM);
        assert_eq!(server.0.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_name_that_is_none_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    farleaf_cluster::config::make_token(&token).unwrap();
    let token = token.to_str().unwrap();
    let catalog = ["--catalog", "no-such-host.invalid:7400", "--token-file", token];
    let status = farleaf(&[&["status"], &catalog[..]].concat());
    let said = text(&status.stderr);
    assert_eq!(status.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot resolve no-such-host.invalid:7400"), "{said}");
    let listens = ["compute-server", "--number", "0", "--listen", "no-such-host.invalid:7500"];
    let refused = farleaf(&[&listens[..], &catalog].concat());
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot resolve no-such-host.invalid:7500"), "{said}");
}
