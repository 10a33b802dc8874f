//! Runs the conformance suite over every provider that needs only this process.

use farleaf_fabric::Either;
use farleaf_fabric::conformance::{self, LateService};
use farleaf_fabric::handshake::Token;
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::shm::{ShmConfig, ShmServerConfig};
use farleaf_fabric::sim::{Faults, SimCluster, SimConfig};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpServer, TcpServerConfig};
use std::net::{Ipv4Addr, TcpListener};

#[test]
fn either_of_two_providers_conforms() {
    conformance::run(&Either::<_, ShmConfig>::Left(LocalConfig::default()));
    conformance::run(&Either::<LocalConfig, _>::Right(ShmConfig::default()));
}

#[test]
fn local_inline() {
    conformance::run(&LocalConfig::default());
}

#[test]
fn local_with_one_client_thread() {
    conformance::run(&LocalConfig { one_client_thread: true, ..LocalConfig::default() });
}

#[test]
fn local_with_server_threads() {
    conformance::run(&LocalConfig { server_threads: 2, ..LocalConfig::default() });
}

#[test]
fn local_with_a_network_model() {
    conformance::run(&LocalConfig {
        network_latency_ns: 2_000,
        bandwidth_bytes_per_s: 12_500_000_000,
        ..LocalConfig::default()
    });
}

#[test]
fn shm() {
    conformance::run(&ShmConfig::default());
}

#[test]
fn shm_with_one_client_thread() {
    conformance::run(&ShmConfig { one_client_thread: true, ..ShmConfig::default() });
}

#[test]
fn shm_with_several_server_threads() {
    let server = ShmServerConfig { threads: 3, ..ShmServerConfig::default() };
    conformance::run(&ShmConfig { server, ..ShmConfig::default() });
}

/// A check fails if it does not end within this time.
const GIVE_UP_AFTER_NS: u64 = 1_000_000_000;

#[test]
fn sim_without_faults() {
    conformance::run(&SimConfig { give_up_after_ns: GIVE_UP_AFTER_NS, ..SimConfig::default() });
}

#[test]
fn sim_that_tears_and_reorders() {
    for seed in 0..50 {
        println!("seed {seed}");
        let faults = Faults::rough();
        let give_up_after_ns = GIVE_UP_AFTER_NS;
        conformance::run(&SimConfig { seed, faults, give_up_after_ns, ..SimConfig::default() });
    }
}

#[test]
fn tcp() {
    conformance::run(&TcpConfig::default());
}

#[test]
fn tcp_with_one_client_thread() {
    conformance::run(&TcpConfig { one_client_thread: true, ..TcpConfig::default() });
}

#[test]
fn tcp_with_more_threads_that_look_before_they_wait() {
    let server = TcpServerConfig { io_threads: 3, ..TcpServerConfig::default() };
    conformance::run(&TcpConfig { server, looks_before_waiting: 5, ..TcpConfig::default() });
}

#[test]
fn tcp_with_a_window_of_one_piece() {
    conformance::run(&TcpConfig { window_bytes: 0, ..TcpConfig::default() });
}

#[test]
fn tcp_with_threads_that_each_accept() {
    let server =
        TcpServerConfig { io_threads: 3, each_thread_accepts: true, ..TcpServerConfig::default() };
    conformance::run(&TcpConfig { server, ..TcpConfig::default() });
}

#[test]
fn answers_may_come_later() {
    let service = || vec![Arc::new(LateService::default())];
    for server_threads in [0, 2] {
        let config = LocalConfig { server_threads, ..LocalConfig::default() };
        conformance::answers_may_come_later(&LocalCluster::start(config, service()));
    }
    for seed in 0..20 {
        println!("seed {seed}");
        let faults = Faults::rough();
        let config =
            SimConfig { seed, faults, give_up_after_ns: GIVE_UP_AFTER_NS, ..SimConfig::default() };
        conformance::answers_may_come_later(&SimCluster::start(config, service()));
    }
    let token = Token::draw().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = TcpServerConfig::default();
    let server = TcpServer::start(listener, service().remove(0), &token, config).unwrap();
    let addresses = vec![server.local_address()];
    let cluster = TcpCluster::connect(addresses, &token, TcpConfig::default());
    conformance::answers_may_come_later(&cluster);
}
