//! F1 to F4: checks of the one-sided verbs.

use super::{at, fill, read, start};
use crate::sync::{AtomicU64, Ordering};
use crate::{Cluster, Fabric, Provider};

/// A READ returns what a WRITE wrote, for any size and address.
pub fn what_is_written_is_read<P: Provider>(provider: &P) {
    let cluster = start(provider, 2);
    super::alone(&cluster, |fabric| async move {
        assert_eq!(fabric.memory_servers(), 2);
        for (round, bytes) in [8_usize, 16, 64, 1024, 4096].into_iter().enumerate() {
            for server in 0..2 {
                let place = at(server, 4096 + 8 * round as u64);
                let buffer = fabric.buffer(bytes).unwrap();
                let word = |index| ((index as u64) << 8) | (round as u64 + 1);
                (0..bytes / 8).for_each(|index| buffer.set(index, word(index)));
                let buffer = fabric.write(place, buffer).await.unwrap();
                assert_eq!(buffer.bytes(), bytes, "the buffer comes back");
                let found = read(&fabric, place, bytes / 8).await.unwrap();
                assert!(found.iter().enumerate().all(|(i, w)| *w == word(i)), "{found:x?}");
            }
        }
        let untouched = read(&fabric, at(0, 0), 512).await.unwrap();
        assert!(untouched.iter().all(|word| *word == 0), "nothing else was written");
    });
}

/// F1: each word that a READ returns was written as a whole, although the words may come from
/// several WRITEs.
pub fn words_are_never_torn<P: Provider>(provider: &P) {
    const WORDS: usize = 32;
    let cluster = start(provider, 1);
    // The two halves of a word must match.
    let word = |value: u64| value << 32 | (value ^ 0xffff_ffff);
    cluster.run(&[0, 0, 1, 1], |fabric, client| async move {
        for round in 1..=25_u64 {
            if client < 2 {
                let value = word(round * 2 + client as u64);
                fill(&fabric, at(0, 0), WORDS, value).await.unwrap();
                continue;
            }
            for found in read(&fabric, at(0, 0), WORDS).await.unwrap() {
                assert!(found == 0 || found == word(found >> 32), "a torn word: {found:#x}");
            }
        }
    });
}

/// F2: no FETCH-ADD and no CAS is lost among concurrent ones.
pub fn atomics_add_up<P: Provider>(provider: &P) {
    let cluster = start(provider, 1);
    let rounds = 30;
    cluster.run(&[0, 0, 1, 2], |fabric, client| async move {
        let mut last_seen = None;
        for _ in 0..rounds {
            let before = fabric.fetch_add(at(0, 64), 3).await.unwrap();
            assert!(last_seen < Some(before), "a counter only grows");
            last_seen = Some(before);
            let mut expected = 0;
            loop {
                let found = fabric.compare_swap(at(0, 128), expected, expected + 1).await.unwrap();
                if found == expected {
                    break;
                }
                expected = found;
                // Without random pauses, clients in lockstep would keep making each other fail.
                fabric.sleep(fabric.random() % 64 * (client as u64 + 1)).await;
            }
        }
    });
    super::alone(&cluster, |fabric| async move {
        assert_eq!(read(&fabric, at(0, 64), 1).await.unwrap(), [3 * 4 * rounds]);
        assert_eq!(read(&fabric, at(0, 128), 1).await.unwrap(), [4 * rounds]);
        assert_eq!(fabric.fetch_add(at(0, 128), u64::MAX).await.unwrap(), 4 * rounds);
        assert_eq!(read(&fabric, at(0, 128), 1).await.unwrap(), [4 * rounds - 1], "it wraps");
    });
}

/// F3: WRITE, CAS, FETCH-ADD and READ take effect after an earlier WRITE to the same server, with
/// all of them in flight together.
pub fn posting_order_is_kept<P: Provider>(provider: &P) {
    const WORDS: usize = 64;
    let cluster = start(provider, 2);
    super::alone(&cluster, |fabric| async move {
        for round in 0..12_u64 {
            let server = (round % 2) as u16;
            let (page, value) = (at(server, 0), round * 10 + 1);
            let first = fill(&fabric, page, WORDS, value);
            let second = fill(&fabric, page, WORDS, value + 1);
            let sees = fabric.read(page, fabric.buffer(WORDS * 8).unwrap());
            first.await.unwrap();
            second.await.unwrap();
            let seen = sees.await.unwrap();
            for index in 0..WORDS {
                assert_eq!(seen.get(index), value + 1, "WRITE, WRITE, READ: word {index}");
            }
            let found = read(&fabric, page, WORDS).await.unwrap();
            assert!(found.iter().all(|word| *word == value + 1), "WRITE then WRITE: {found:?}");

            let write = fill(&fabric, page, WORDS, value + 2);
            let last = page.plus(WORDS as u64 * 8 - 8);
            let swap = fabric.compare_swap(last, value + 2, value + 3);
            assert_eq!(swap.await.unwrap(), value + 2, "WRITE then CAS");
            write.await.unwrap();

            let write = fill(&fabric, page, WORDS, value + 4);
            let add = fabric.fetch_add(page, 1);
            assert_eq!(add.await.unwrap(), value + 4, "WRITE then FETCH-ADD");
            write.await.unwrap();
            assert_eq!(read(&fabric, page, 1).await.unwrap(), [value + 5]);
        }
    });
}

/// F4: an operation posted after a WRITE has completed sees all of it, at any endpoint.
pub fn completed_writes_are_visible<P: Provider>(provider: &P) {
    const WORDS: usize = 32;
    let cluster = start(provider, 1);
    let completed = AtomicU64::new(0);
    let completed = &completed;
    let rounds = 20;
    cluster.run(&[0, 1, 2], |fabric, client| async move {
        if client == 0 {
            for round in 1..=rounds {
                fill(&fabric, at(0, 512), WORDS, round).await.unwrap();
                completed.store(round, Ordering::Release);
                fabric.sleep(fabric.random() % 3_000).await;
            }
            return;
        }
        loop {
            let least = completed.load(Ordering::Acquire);
            let found = read(&fabric, at(0, 512), WORDS).await.unwrap();
            assert!(found.iter().all(|word| *word >= least), "{found:?} after WRITE {least}");
            if least == rounds {
                return;
            }
            fabric.sleep(0).await;
        }
    });
}

/// Many operations of every kind are in flight together, and each completes with its own result.
pub fn many_operations_in_flight<P: Provider>(provider: &P) {
    let cluster = start(provider, 2);
    super::alone(&cluster, |fabric| async move {
        let count = 24_u64;
        let place = |index: u64| at((index % 2) as u16, index * 16);
        let writes: Vec<_> = (0..count).map(|i| fill(&fabric, place(i), 2, i + 100)).collect();
        for write in writes {
            write.await.unwrap();
        }
        let reads: Vec<_> =
            (0..count).map(|i| fabric.read(place(i), fabric.buffer(16).unwrap())).collect();
        let adds: Vec<_> = (0..count).map(|i| fabric.fetch_add(place(i).plus(8), i)).collect();
        for (index, add) in (0..).zip(adds) {
            assert_eq!(add.await.unwrap(), index + 100);
        }
        for (index, read) in (0..).zip(reads) {
            assert_eq!(read.await.unwrap().get(0), index + 100);
        }
        // Await the completions in reverse order.
        let reads: Vec<_> =
            (0..count).map(|i| fabric.read(place(i), fabric.buffer(16).unwrap())).collect();
        for (index, read) in (0..count).rev().zip(reads.into_iter().rev()) {
            assert_eq!(read.await.unwrap().get(1), index + 100 + index);
        }
    });
}
