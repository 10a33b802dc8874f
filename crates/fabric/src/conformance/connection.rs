//! F9 and F10: resets settle posted operations, and fences affect the right endpoints.

use super::{at, fill, read, start};
use crate::{Cluster, Fabric, FabricError, Provider, ServerId};

/// F9: when the reset returns, each operation in flight has happened or never will; the endpoint
/// still works.
pub fn a_reset_settles_what_was_posted<P: Provider>(provider: &P) {
    let cluster = start(provider, 2);
    super::alone(&cluster, |fabric| async move {
        for round in 1..=10_u64 {
            let pause_ns = fabric.random() % 3_000;
            let write = fill(&fabric, at(0, 0), 64, round);
            let swap = fabric.compare_swap(at(0, 4096), round - 1, round);
            let other = fill(&fabric, at(1, 0), 8, round);
            fabric.sleep(pause_ns).await;
            fabric.reset(ServerId::new(0)).await.unwrap();
            let page = read(&fabric, at(0, 0), 64).await.unwrap();
            let word = read(&fabric, at(0, 4096), 1).await.unwrap();
            fabric.sleep(100_000).await;
            assert_eq!(read(&fabric, at(0, 0), 64).await.unwrap(), page, "a late WRITE");
            assert_eq!(read(&fabric, at(0, 4096), 1).await.unwrap(), word, "a late CAS");
            if write.await.is_ok() {
                assert!(page.iter().all(|word| *word == round), "a completed WRITE is whole");
            }
            if let Ok(found) = swap.await {
                assert_eq!((found, word[0]), (round - 1, round), "a completed CAS has happened");
            }
            other.await.expect("a reset concerns one server");
            // The connection works as before.
            fill(&fabric, at(0, 4096), 1, round).await.unwrap();
            assert_eq!(read(&fabric, at(0, 4096), 1).await.unwrap(), [round]);
        }
        let nowhere = ServerId::new(9);
        assert_eq!(fabric.reset(nowhere).await, Err(FabricError::NoSuchServer(nowhere)));
    });
    cluster.kill_memory_server(ServerId::new(1));
    super::alone(&cluster, |fabric| async move {
        let outcome = fabric.reset(ServerId::new(1)).await;
        assert!(matches!(outcome, Err(FabricError::Indeterminate { .. })), "{outcome:?}");
        fabric.reset(ServerId::new(0)).await.unwrap();
    });
}

/// F10: a fence affects only the compute server it names.
pub fn a_fence_shuts_out_one_compute_server<P: Provider>(provider: &P) {
    let cluster = start(provider, 2);
    cluster.run(&[0, 1], |fabric, client| async move {
        for round in 1..=10_u64 {
            let mine = at(0, client as u64 * 4096);
            if client == 0 && round == 5 {
                fabric.fence(ServerId::new(0), 7).await.unwrap();
            }
            fill(&fabric, mine, 64, round).await.unwrap();
            assert!(read(&fabric, mine, 64).await.unwrap().iter().all(|word| *word == round));
        }
        let nowhere = ServerId::new(9);
        assert_eq!(fabric.fence(nowhere, 7).await, Err(FabricError::NoSuchServer(nowhere)));
    });
}
