//! Measures READs of 1 KB at random offsets over TCP on the loopback interface, with a varying
//! number in flight. The server's I/O thread and the client's share the machine.
//!
//! `cargo bench -p farleaf-fabric --bench tcp -- [ROUNDS [LOOKS_BEFORE_WAITING [BYTES]]]`
#![expect(clippy::disallowed_methods, reason = "this measures real time")]

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpFabric, TcpServer, TcpServerConfig};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

const REGION_BYTES: usize = 64 << 20;
const ROUND: Duration = Duration::from_millis(400);

/// READs one after another until `end`; returns the number of READs.
async fn reader(fabric: TcpFabric, bytes: usize, end: Instant) -> u64 {
    let places = (REGION_BYTES / bytes) as u64;
    let mut buffer = fabric.buffer(bytes).unwrap();
    let mut done = 0;
    loop {
        for _ in 0..16 {
            let offset = fabric.random() % places * bytes as u64;
            buffer = fabric.read(GlobalAddr::new(ServerId::new(0), offset), buffer).await.unwrap();
            done += 1;
        }
        if Instant::now() >= end {
            return done;
        }
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let rounds = numbers.first().copied().unwrap_or(9);
    let looks_before_waiting = numbers.get(1).copied().unwrap_or(0) as u32;
    let bytes = numbers.get(2).copied().unwrap_or(1024) as usize;

    let token = Token::draw().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let service = TestService::new(REGION_BYTES);
    let server =
        TcpServer::start(listener, Arc::clone(&service), &token, TcpServerConfig::default())
            .unwrap();
    let config = TcpConfig { looks_before_waiting, ..TcpConfig::default() };
    let cluster = TcpCluster::connect(vec![server.local_address()], &token, config);

    let depths = [1, 4, 32, 128];
    let mut rates = depths.map(|_| Vec::new());
    for round in 0..=rounds {
        for (depth, rates) in depths.into_iter().zip(&mut rates) {
            let driver = cluster.driver().unwrap();
            let fabric = driver.open(0, 0).unwrap();
            let total = std::cell::Cell::new(0);
            let mut executor = Executor::new();
            let started = Instant::now();
            for _ in 0..depth {
                let (fabric, total) = (fabric.clone(), &total);
                executor.spawn(0, async move {
                    let done = reader(fabric, bytes, started + ROUND).await;
                    total.set(total.get() + done);
                });
            }
            assert!(executor.run(&driver));
            if round > 0 {
                rates.push(total.get() as f64 / started.elapsed().as_secs_f64());
            }
        }
    }
    println!("READs of {bytes} B on loopback, {looks_before_waiting} looks before waiting");
    for (depth, rates) in depths.into_iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        println!(
            "{depth:4} in flight: {:6.3} M/s ({:.3} to {:.3}), {:7.2} us each",
            median / 1e6,
            rates[0] / 1e6,
            rates[rates.len() - 1] / 1e6,
            depth as f64 / median * 1e6,
        );
    }
}
