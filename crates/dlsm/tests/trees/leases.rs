//! Leases: memory comes back when its owner ends, is fenced, or stays silent.

use super::tree::{setup, tiny};
use farleaf_dlsm::Dlsm;
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{Cluster, Fabric, ServerId};
use farleaf_page::Bytes;
use farleaf_page::table::IndexKind;
use farleaf_pool::remote::{ENDLESS, Leases, RemoteError, RpcClient, end_leases_of};
use farleaf_pool::server::MemoryServerConfig;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::{sim, tcp};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

type Small = Bytes<128>;

const SERVER: ServerId = ServerId::new(0);
/// The size of a piece, and how many one owner has.
const PIECE: u64 = 64 << 10;
const HELD: u64 = 4;

/// Takes pieces until there are no more. Returns their bytes.
async fn take_all<F: Fabric>(leases: &Leases, rpc: &RpcClient<F, Small>, bytes: u64) -> u64 {
    let mut taken = 0;
    loop {
        match leases.take(rpc, SERVER, bytes).await {
            Ok(_) => taken += bytes,
            Err(RemoteError::OutOfMemory { .. }) => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}

/// An owner that did not get the answer to a request renews the lease that it may have, and ends it
/// without getting the chunk later, when that is another owner's.
#[test]
fn a_request_of_unknown_outcome_may_have_begun_a_lease() {
    for provider in &[sim(SimConfig::default()), tcp()] {
        let setup = setup(provider, tiny(IndexKind::Compact));
        let server = MemoryServerConfig { pool_bytes: 2 << 20, ..setup.server.clone() };
        let setup = SuiteSetup { memory_servers: 1, server, ..setup };
        let cluster = setup.with_index::<Small, Dlsm>();
        cluster.run(&[0], async |fabric, _| {
            let rpc = &RpcClient::<_, Small>::new(fabric.clone());
            let leases = Leases::new(1_000);
            {
                // It is given up when it has been posted.
                let mut taking = pin!(leases.take(rpc, SERVER, PIECE));
                let posted = || fabric.counters().snapshot().remote_operations();
                let before = posted();
                while posted() == before {
                    fabric.sleep(1_000).await;
                    let step = poll_fn(|context| Poll::Ready(taking.as_mut().poll(context)));
                    assert!(step.await.is_pending());
                }
                fabric.sleep(50_000_000).await;
            }
            assert_eq!(leases.servers(), [SERVER]);
            leases.renew(rpc, SERVER).await.expect("the lease has begun");
            leases.end(rpc, SERVER).await.unwrap();
            assert_eq!(leases.servers(), []);
            let other = Leases::new(ENDLESS);
            assert!(take_all(&other, rpc, PIECE).await > 0);
            let outcome = leases.take(rpc, SERVER, PIECE).await;
            assert_eq!(outcome, Err(RemoteError::OutOfMemory { server: SERVER }));
            assert_eq!(leases.servers(), [], "it has certainly none");
            other.end(rpc, SERVER).await.unwrap();
        });
    }
}

#[test]
fn the_lease_of_a_fenced_compute_server_comes_back() {
    for provider in &[sim(SimConfig::default()), tcp()] {
        let setup = setup(provider, tiny(IndexKind::Compact));
        let server = MemoryServerConfig { pool_bytes: 2 << 20, ..setup.server.clone() };
        let setup = SuiteSetup { memory_servers: 1, server, ..setup };
        let cluster = setup.with_index::<Small, Dlsm>();
        let stage = &AtomicU64::new(0);
        cluster.run(&[0, 1], async |fabric, number| {
            let reach = async |wanted| {
                while stage.load(Ordering::Acquire) < wanted {
                    fabric.sleep(1_000).await;
                }
            };
            let rpc = &RpcClient::<_, Small>::new(fabric.clone());
            if number == 0 {
                let endless = Leases::new(ENDLESS);
                for _ in 0..HELD {
                    endless.take(rpc, SERVER, PIECE).await.unwrap();
                }
                stage.store(1, Ordering::Release);
                reach(2).await;
                // Its memory is another owner's, so it gets no more.
                let outcome = endless.take(rpc, SERVER, PIECE).await;
                assert!(outcome.is_err(), "{outcome:?}");
                return;
            }
            reach(1).await;
            let leases = Leases::new(1);
            assert!(take_all(&leases, rpc, PIECE).await > 0);
            for _ in 0..3 {
                fabric.sleep(10_000_000).await;
                assert_eq!(leases.reclaim(rpc, SERVER).await, Ok(0), "the lease has no term");
            }
            let freed = end_leases_of(rpc, SERVER, 0).await.unwrap();
            assert_eq!(freed, HELD * PIECE);
            stage.store(2, Ordering::Release);
            assert_eq!(end_leases_of(rpc, SERVER, 0).await, Ok(0));
            let again = take_all(&leases, rpc, 1 << 10).await;
            assert!(again >= freed, "{again} of {freed} bytes");
            leases.end(rpc, SERVER).await.unwrap();
            let other = Leases::new(ENDLESS);
            assert!(take_all(&other, rpc, 1 << 10).await > again, "pieces of both came back");
            other.end(rpc, SERVER).await.unwrap();
        });
    }
}
