//! The conformance suite of all providers, over a device. On a host without one, run it in a
//! virtual machine: `scripts/soft-roce-vm` with this test's binary and `--ignored`.

use farleaf_fabric::conformance;
use farleaf_fabric_verbs::{VerbsConfig, VerbsServerConfig};

#[test]
#[ignore = "needs an RDMA device"]
fn verbs_keeps_the_contract() {
    conformance::run(&VerbsConfig::default());
}

#[test]
#[ignore = "needs an RDMA device"]
fn verbs_with_one_client_thread_keeps_the_contract() {
    let server = VerbsServerConfig { threads: 2, ..VerbsServerConfig::default() };
    let config = VerbsConfig { one_client_thread: true, server, ..VerbsConfig::default() };
    conformance::run(&config);
}
