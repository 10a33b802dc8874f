//! F5 to F8, and everything besides the verbs: counters, time and randomness.

use super::{
    REGION_BYTES, TestService, at, completes_later, fill, read, start, start_with, wait_until,
};
use crate::region::Region;
use crate::sync::{Arc, AtomicBool, Ordering};
use crate::{
    Buffer, Cluster, CounterSnapshot, Fabric, FabricError, GlobalAddr, Provider, RpcService,
    ServerId,
};

/// F5: a bad address makes every verb fail with the right error, and changes nothing.
pub fn bad_addresses_are_refused<P: Provider>(provider: &P) {
    let service = TestService::new(REGION_BYTES);
    for (index, word) in (0..).zip(service.region().words()) {
        word.store(index ^ 0x5555, Ordering::Relaxed);
    }
    let cluster = start_with(provider, &service);
    let end = REGION_BYTES as u64;
    let huge_bytes = 4 << 20;
    let swizzled = GlobalAddr::from_bits(1 << 63 | 64);
    let outside = [
        (at(0, end), 8),
        (at(0, end - 8), 16),
        (at(0, end - 2048), 4096),
        (at(0, GlobalAddr::OFFSET_LIMIT - 8), 8),
        (at(0, 0), huge_bytes),
        (at(0, 64), huge_bytes),
    ];
    let unaligned =
        [(at(0, 4), 8), (at(0, end - 4), 8), (at(0, 1), 1024), (swizzled, 8), (swizzled, 64)];
    let nowhere = [(at(1, 64), 8), (at(0x7fff, 0), 1024)];
    let cases: Vec<(GlobalAddr, usize)> =
        outside.iter().chain(&unaligned).chain(&nowhere).copied().collect();
    let expected = |place: GlobalAddr, bytes| match () {
        () if unaligned.iter().any(|case| case.0 == place) => {
            FabricError::Unaligned { at: place, bytes }
        }
        () if nowhere.iter().any(|case| case.0 == place) => {
            FabricError::NoSuchServer(place.server())
        }
        () => FabricError::OutOfBounds { at: place, bytes, region_bytes: REGION_BYTES },
    };
    let (cases, expected) = (&cases, &expected);
    super::alone(&cluster, |fabric| async move {
        let huge = Arc::new(Region::new(huge_bytes).expect("memory for a huge buffer"));
        for &(place, bytes) in cases {
            let buffer = || Buffer::over(Arc::clone(&huge), 0, bytes / 8);
            let error = fabric.read(place, buffer()).await.unwrap_err();
            assert_eq!(error, expected(place, bytes), "READ");
            let error = fabric.write(place, buffer()).await.unwrap_err();
            assert_eq!(error, expected(place, bytes), "WRITE");
            if bytes == 8 {
                let error = fabric.compare_swap(place, 0, 1).await.unwrap_err();
                assert_eq!(error, expected(place, 8), "CAS");
                let error = fabric.fetch_add(place, 1).await.unwrap_err();
                assert_eq!(error, expected(place, 8), "FETCH-ADD");
            }
        }
        for bytes in [0, 12, 1 << 30] {
            assert_eq!(fabric.buffer(bytes).unwrap_err(), FabricError::NoBuffer { bytes });
        }
    });
    for (index, word) in (0..).zip(service.region().words()) {
        assert_eq!(word.load(Ordering::Relaxed), index ^ 0x5555, "word {index} was changed");
    }
}

/// F6: an operation beyond the depth is refused and does not happen; when others have completed,
/// there is room again.
pub fn depth_is_bounded<P: Provider>(provider: &P) {
    let cluster = start(provider, 1);
    super::alone(&cluster, |fabric| async move {
        let (depth, strict) = (fabric.depth(), completes_later(&fabric).await);
        for round in 0..2 {
            let ops: Vec<_> = (0..depth + 3).map(|_| fabric.fetch_add(at(0, 8), 1)).collect();
            let mut refused = 0;
            for op in ops {
                match op.await {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error, FabricError::QueueFull { depth });
                        refused += 1;
                    }
                }
            }
            assert_eq!(refused, if strict { 3 } else { 0 });
            let done = read(&fabric, at(0, 8), 1).await.unwrap()[0];
            assert_eq!(done, (round + 1) * (depth as u64 + 3 - refused), "refused is not done");
        }
    });
}

/// F7: a dead memory server's operations end as indeterminate; the other servers still work.
pub fn killed_server_is_indeterminate<P: Provider>(provider: &P) {
    let cluster = start(provider, 2);
    super::alone(&cluster, |fabric| async move {
        fill(&fabric, at(1, 0), 4, 9).await.unwrap();
    });
    cluster.kill_memory_server(ServerId::new(1));
    super::alone(&cluster, |fabric| async move {
        let dead = ServerId::new(1);
        let unknown = |error| match error {
            FabricError::Indeterminate { server, .. } => assert_eq!(server, dead),
            other => panic!("{other}"),
        };
        unknown(read(&fabric, at(1, 0), 4).await.unwrap_err());
        unknown(fill(&fabric, at(1, 0), 4, 1).await.unwrap_err());
        unknown(fabric.compare_swap(at(1, 0), 0, 1).await.unwrap_err());
        unknown(fabric.fetch_add(at(1, 0), 1).await.unwrap_err());
        unknown(fabric.call(dead, TestService::echo(b"?")).await.unwrap_err());
        assert_eq!(fabric.counters().snapshot().indeterminate, 5);
        fill(&fabric, at(0, 0), 4, 1).await.unwrap();
        assert_eq!(read(&fabric, at(0, 0), 4).await.unwrap(), [1; 4]);
        let alive = ServerId::new(0);
        assert_eq!(&fabric.call(alive, TestService::echo(b"!")).await.unwrap()[..], b"!");
    });
}

/// F8: an operation with a dropped future still happens, and its buffer is freed.
pub fn dropped_operations_still_happen<P: Provider>(provider: &P) {
    let cluster = start(provider, 1);
    super::alone(&cluster, |fabric| async move {
        let depth = fabric.depth().min(32);
        for index in 0..depth as u64 {
            drop(fill(&fabric, at(0, index * 64), 8, index + 1));
        }
        drop(fabric.fetch_add(at(0, 8192), 7));
        for index in 0..depth as u64 {
            let happened = async || {
                let found = read(&fabric, at(0, index * 64), 8).await.unwrap();
                found.iter().all(|word| *word == index + 1)
            };
            wait_until(&fabric, "a dropped WRITE", happened).await;
        }
        let happened = async || read(&fabric, at(0, 8192), 1).await.unwrap() == [7];
        wait_until(&fabric, "a dropped FETCH-ADD", happened).await;
        drop(fabric.call(ServerId::new(0), TestService::add_word(8200, 3)));
        let happened = async || read(&fabric, at(0, 8200), 1).await.unwrap() == [3];
        wait_until(&fabric, "a dropped call", happened).await;

        // A dropped READ must not write to a buffer that another operation has taken since.
        fill(&fabric, at(0, 4096), 64, u64::MAX).await.unwrap();
        for _ in 0..8 {
            drop(fabric.read(at(0, 4096), fabric.buffer(512).unwrap()));
            let mine = fabric.buffer(512).unwrap();
            (0..64).for_each(|index| mine.set(index, 5));
            fabric.sleep(10_000).await;
            assert!(
                (0..64).all(|index| mine.get(index) == 5),
                "a dropped READ wrote to a reused buffer"
            );
        }
        let mut lent = Vec::new();
        let all_back = async || {
            lent.clear();
            lent.extend((0..fabric.depth()).map_while(|_| fabric.buffer(8).ok()));
            lent.len() == fabric.depth()
        };
        wait_until(&fabric, "the return of all buffers", all_back).await;
        assert!(fabric.buffer(8).is_err(), "the pool is bounded");
    });
}

/// Operations posted between two waits cost one doorbell, if the provider can keep them in flight
/// at all.
pub fn batches_ring_once<P: Provider>(provider: &P) {
    let cluster = start(provider, 2);
    super::alone(&cluster, |fabric| async move {
        let batched = completes_later(&fabric).await;
        for size in [1, 2, 9] {
            let before = fabric.counters().snapshot();
            let ops: Vec<_> =
                (0..size).map(|index| fabric.fetch_add(at((index % 2) as u16, 0), 1)).collect();
            for op in ops {
                op.await.unwrap();
            }
            let doorbells = (fabric.counters().snapshot() - before).doorbells;
            assert_eq!(doorbells, if batched { 1 } else { size }, "a batch of {size}");
        }
    });
}

/// Each operation counts once, with its payload.
pub fn counters_are_exact<P: Provider>(provider: &P) {
    let cluster = start(provider, 1);
    super::alone(&cluster, |fabric| async move {
        fill(&fabric, at(0, 0), 16, 1).await.unwrap();
        fill(&fabric, at(0, 0), 1, 1).await.unwrap();
        read(&fabric, at(0, 0), 128).await.unwrap();
        fabric.compare_swap(at(0, 0), 1, 2).await.unwrap();
        fabric.fetch_add(at(0, 0), 1).await.unwrap();
        fabric.call(ServerId::new(0), TestService::echo(b"seven b")).await.unwrap();
        fabric.counters().count_retry();
        // A failed operation counts too.
        read(&fabric, at(0, 4), 1).await.unwrap_err();
        let mut counted = fabric.counters().snapshot();
        counted.doorbells = 0; // `batches_ring_once` checks them
        let expected = CounterSnapshot {
            reads: 2,
            writes: 2,
            atomics: 2,
            rpcs: 1,
            bytes_read: 128 * 8 + 8,
            bytes_written: 17 * 8,
            rpc_bytes: 8 + 7,
            retries: 1,
            ..CounterSnapshot::default()
        };
        assert_eq!(counted, expected);
        assert_eq!(counted.remote_operations(), 7);
    });
}

/// Time never decreases; a sleep lasts at least as long as requested, and lets other tasks run.
pub fn time_passes<P: Provider>(provider: &P) {
    let cluster = start(provider, 1);
    let flag = AtomicBool::new(false);
    let flag = &flag;
    let ended = cluster.run(&[0, 0], |fabric, client| async move {
        let mut last_ns = fabric.now_ns();
        let mut look = || {
            let now_ns = fabric.now_ns();
            assert!(now_ns >= last_ns, "time went back");
            last_ns = now_ns;
            now_ns
        };
        if client == 0 {
            for ns in [1, 1_000, 20_000, 150_000] {
                let before_ns = look();
                fabric.sleep(ns).await;
                assert!(look() >= before_ns + ns, "a sleep of {ns} ns was too short");
            }
            read(&fabric, at(0, 0), 4).await.unwrap();
            fabric.charge(crate::Work::VisitNode).await;
            look();
            flag.store(true, Ordering::Release);
        } else {
            // This client only yields; the other client must still get its turns.
            while !flag.load(Ordering::Acquire) {
                fabric.sleep(0).await;
                look();
            }
        }
        look()
    });
    let first_run_ns = ended.into_iter().map(Option::unwrap).max().unwrap();
    let later_ns = cluster.run_one(|fabric| async move { fabric.now_ns() });
    assert!(later_ns >= first_run_ns, "time goes on from one run to the next");
}

/// The same seed gives each endpoint the same random stream, and endpoints have different streams.
pub fn randomness_follows_the_seed<P: Provider>(provider: &P) {
    let streams = || {
        let cluster = start(provider, 1);
        cluster.run(&[0, 0, 1], |fabric, _| async move {
            assert!(fabric.compute_server() < 2);
            let mut stream = Vec::new();
            for _ in 0..16 {
                stream.push(fabric.random());
                fabric.sleep(0).await;
            }
            stream
        })
    };
    let (first, second) = (streams(), streams());
    assert_eq!(first, second);
    assert_ne!(first[0], first[1]);
    assert_ne!(first[1], first[2]);
}
