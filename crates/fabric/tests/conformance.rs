//! Runs the conformance suite over every provider that needs only this process.

use farleaf_fabric::AnyConfig;
use farleaf_fabric::conformance::{self, LateService};
use farleaf_fabric::handshake::Token;
use farleaf_fabric::local::{LocalCluster, LocalConfig};
use farleaf_fabric::shm::{ShmConfig, ShmServerConfig};
use farleaf_fabric::sim::{Faults, SimCluster, SimConfig};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpServer, TcpServerConfig};
use farleaf_fabric::{AnyFabric, ClientTask, Cluster, Provider, RpcService, ServerId};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// A provider, by endpoints of another form.
struct Through<P>(P, fn(AnyFabric) -> AnyFabric);
struct ThroughCluster<C>(C, fn(AnyFabric) -> AnyFabric);

impl<P: Provider> Provider for Through<P> {
    type Cluster<S: RpcService> = ThroughCluster<P::Cluster<S>>;

    fn try_start<S: RpcService>(&self, services: Vec<Arc<S>>) -> io::Result<Self::Cluster<S>> {
        Ok(ThroughCluster(self.0.try_start(services)?, self.1))
    }
}

impl<C: Cluster> Cluster for ThroughCluster<C> {
    fn run_clients<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
    ) -> io::Result<()> {
        let form = self.1;
        self.0.run_clients(compute_servers, &|fabric, number| start(form(fabric), number))
    }

    fn kill_memory_server(&self, server: ServerId) {
        self.0.kill_memory_server(server);
    }
}

#[test]
fn any_endpoint_conforms_as_one_of_another_provider() {
    let with_threads = LocalConfig { server_threads: 2, ..LocalConfig::default() };
    conformance::run(&Through(LocalConfig::default(), AnyFabric::other));
    conformance::run(&Through(with_threads, AnyFabric::other));
}

#[test]
fn transports_outside_the_crate_conform() {
    let detach = |fabric| match fabric {
        AnyFabric::Tcp(endpoint) => AnyFabric::detached(endpoint),
        other => panic!("{other:?} is not an endpoint of tcp"),
    };
    conformance::run(&Through(TcpConfig::default(), detach));
}

#[test]
fn any_configuration_conforms() {
    conformance::run(&AnyConfig::from(LocalConfig::default()));
    conformance::run(&AnyConfig::from(SimConfig::default()));
    conformance::run(&AnyConfig::from(TcpConfig::default()));
    conformance::run(&AnyConfig::from(ShmConfig::default()));
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
        conformance::answers_may_come_later(&LocalCluster::start(config, service()).unwrap());
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
