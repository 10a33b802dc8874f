//! Value blocks in a pool that is nearly full.
//!
//! The story: 500 values of 4,000 bytes were loaded 30 times into 8 MiB, and 8 of the loads failed
//! with *no memory left*, at most a quarter of the memory in use. The blocks that leaves had lost
//! come back by a flush, and the operations beside the one that flushed did not wait for it. Nor
//! did they wait for operations that had new blocks in hand and were about to free the old ones.
//! And free blocks of one size never became larger ones.

use super::blocks::with_blocks;
use super::designs::{caches, dex};
use farleaf_dex::blocks::DexWithBlocks;
use farleaf_fabric::Cluster;
use farleaf_fabric::local::LocalConfig;
use farleaf_fabric::sim::SimConfig;
use farleaf_index::{Design, IndexError, RangeIndex};
use farleaf_page::{Bytes, EditAction, LeafEdit};
use farleaf_pool::remote::RpcClient;
use farleaf_suites::conformance::SuiteSetup;
use farleaf_suites::providers::{AnyProvider, local, sim};

type Small = Bytes<128>;

type Setup<'a> = SuiteSetup<'a, AnyProvider, <DexWithBlocks as Design<Small>>::Options>;

fn small(provider: &AnyProvider) -> Setup<'_> {
    let mut setup = with_blocks(dex(provider, caches()[1]));
    (setup.memory_servers, setup.server.pool_bytes) = (1, 1 << 20);
    setup.options.chunk_bytes = 1 << 16;
    setup.options.most_lost = 1 << 20;
    setup.options.design.boundaries = vec![];
    setup
}

/// 40 values of 4,000 bytes in 1 MiB; no number of lost blocks makes a flush due.
fn replaces_at_the_brim(setup: &Setup<'_>, together: usize) {
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    cluster.run(&[0; 16], |fabric, client| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric, compute).await.unwrap();
        for round in 0..60_usize {
            let value = vec![(client * 60 + round) as u8; 4_000];
            let keys: Vec<[u8; 1]> =
                (0..together).map(|at| [((client * 7 + round + at) % 40) as u8]).collect();
            let edit = |key: &'_ [u8; 1]| (*key, EditAction::Upsert(&value[..]));
            let edits: Vec<_> = keys.iter().map(edit).collect();
            let edits: Vec<_> = edits
                .iter()
                .map(|(key, action)| LeafEdit { key: &key[..], action: *action })
                .collect();
            for outcome in index.execute_all(&edits).await {
                outcome.unwrap();
            }
        }
    });
    assert_eq!(compute.usage().blocks_in_use, 40);
}

#[test]
fn operations_wait_for_the_flush_that_frees_memory() {
    let (sim, local) = (sim(SimConfig::default()), local(LocalConfig::default()));
    replaces_at_the_brim(&small(&sim), 1);
    replaces_at_the_brim(&small(&local), 1);
    // 16 clients want 8 blocks at a time: two thirds of the pool. Not with 16 threads on few cores:
    // one that does not run for a while uses up the time that it may wait for memory.
    replaces_at_the_brim(&small(&sim), 8);
}

/// The story: the next incarnation of a compute server that was killed inserted 64 values at a time
/// into a pool of 16 MiB, two thirds of which were free. Each operation that found no node, or no
/// place for its block, requested a chunk for itself: the first of them took all memory for blocks,
/// the others found none for nodes, and every insertion was refused from then on.
#[test]
fn operations_beside_one_another_share_a_chunk() {
    for provider in [sim(SimConfig::default()), local(LocalConfig::default())] {
        let mut setup = small(&provider);
        setup.server.pool_bytes = 32 << 20;
        let cluster = setup.with_index::<Small, DexWithBlocks>();
        let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
        let allocated: u64 = cluster.run_one(|fabric| async move {
            let rpc = RpcClient::<_, Small>::new(fabric.clone());
            let index = <DexWithBlocks as Design<Small>>::open(fabric, compute).await.unwrap();
            let keys: Vec<[u8; 2]> = (0..128_u16).map(u16::to_be_bytes).collect();
            for keys in keys.chunks(64) {
                let action = EditAction::Insert(&[7; 3_000][..]);
                let edits: Vec<_> =
                    keys.iter().map(|key| LeafEdit { key: &key[..], action }).collect();
                for outcome in index.execute_all(&edits).await {
                    outcome.unwrap();
                }
            }
            let usages = rpc.usages().await.unwrap();
            usages.iter().map(|usage| usage.allocated_bytes).sum()
        });
        // Two chunks of 256 nodes, one of them of the creator, and seven of 64 KiB for 128 blocks.
        assert!(allocated <= 1 << 20, "{allocated}");
    }
}

/// All of the memory is free, as blocks of 1,024 bytes. Values of 30,000 bytes have room.
#[test]
fn free_blocks_become_larger_ones() {
    let provider = &sim(SimConfig::default());
    let setup = small(provider);
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric, compute).await.unwrap();
        let mut number = 0_u16;
        loop {
            match index.insert(&number.to_be_bytes(), &[7; 1_000]).await {
                Ok(inserted) => assert!(inserted),
                Err(IndexError::OutOfMemory { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            number += 1;
        }
        assert!(number > 500, "{number}");
        for key in 0..number {
            assert!(index.remove(&key.to_be_bytes()).await.unwrap());
        }
        for key in 0..10_u16 {
            assert_eq!(index.insert(&key.to_be_bytes(), &[8; 30_000]).await, Ok(true));
        }
    });
}
