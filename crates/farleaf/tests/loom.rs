//! Model checking of the latch, the versioned page and the epochs, under every interleaving and every
//! allowed reordering that `loom` knows:
//! `RUSTFLAGS="--cfg loom" cargo test -p farleaf --release --test loom`
#![cfg(loom)]

use farleaf::page::{Fixed8, Latch, Layout, LeafInsert, Page, Probe, Reach};
use farleaf::server::Epochs;
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_fabric::{GlobalAddr, ServerId};
use loom::thread;

fn words<const N: usize>() -> Arc<[AtomicU64; N]> {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
}

/// inv. L3: two words that every writer changes together are never validated apart.
#[test]
fn a_validated_read_is_of_one_piece() {
    loom::model(|| {
        let shared = words::<3>();
        let writer = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let latch = Latch::new(&writer[0]);
            let version = latch.optimistic().unwrap();
            let guard = latch.try_lock(version, 1).unwrap();
            writer[1].store(7, Ordering::Relaxed);
            writer[2].store(7, Ordering::Relaxed);
            drop(guard);
        });
        let latch = Latch::new(&shared[0]);
        if let Some(version) = latch.optimistic() {
            let first = shared[1].load(Ordering::Relaxed);
            let second = shared[2].load(Ordering::Relaxed);
            if latch.validate(version) {
                assert_eq!(first, second);
            }
        }
        thread.join().unwrap();
    });
}

/// inv. L2: of two writers that read the same version one gets the lock, and none loses a change.
#[test]
fn a_lock_is_taken_on_the_version_that_was_read() {
    loom::model(|| {
        let shared = words::<2>();
        let add_one = |shared: &[AtomicU64; 2]| {
            let latch = Latch::new(&shared[0]);
            let Some(version) = latch.optimistic() else { return 0 };
            let held = shared[1].load(Ordering::Relaxed);
            let Some(guard) = latch.try_lock(version, 1) else { return 0 };
            shared[1].store(held + 1, Ordering::Relaxed);
            drop(guard);
            1
        };
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || add_one(&other));
        let mine = add_one(&shared);
        let theirs = thread.join().unwrap();
        assert_eq!(shared[1].load(Ordering::Relaxed), mine + theirs);
        assert!(mine + theirs >= 1, "one of the two gets through");
    });
}

/// A page of four records, to keep the model small.
type Tiny = Fixed8<16>;

fn tiny_leaf(records: &[(u64, u64)]) -> Arc<[AtomicU64; 16]> {
    let shared = words::<16>();
    let page = Page::<Tiny>::new(&shared[..]);
    page.format_empty(GlobalAddr::new(ServerId::new(0), 1024), 0, &0, None);
    for (key, value) in records {
        assert_eq!(Tiny::leaf_insert(page, key, value), LeafInsert::Inserted);
    }
    shared
}

/// A reader of a leaf that an insertion shifts never validates a wrong answer.
#[test]
fn a_lookup_beside_an_insertion() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = tiny_leaf(&[(10, 1), (20, 2)]);
        let writer = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let page = Page::<Tiny>::new(&writer[..]);
            let version = page.latch().optimistic().unwrap();
            let _guard = page.latch().try_lock(version, 1).unwrap();
            assert_eq!(Tiny::leaf_insert(page, &5, &3), LeafInsert::Inserted);
        });
        let page = Page::<Tiny>::new(&shared[..]);
        if let Some(version) = page.latch().optimistic() {
            let value = Tiny::leaf_get(page, &20);
            if page.latch().validate(version) {
                assert_eq!(value, Some(2));
            }
        }
        thread.join().unwrap();
    });
}

/// A reader of a leaf that is split either finds the record or is sent to the right.
#[test]
fn a_lookup_beside_a_split() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let left = tiny_leaf(&[(10, 1), (20, 2), (30, 3), (40, 4)]);
        let writer = Arc::clone(&left);
        let thread = thread::spawn(move || {
            let right_words = words::<16>();
            let right_at = GlobalAddr::new(ServerId::new(0), 2048);
            let (left, right) =
                (Page::<Tiny>::new(&writer[..]), Page::<Tiny>::new(&right_words[..]));
            let version = left.latch().optimistic().unwrap();
            let _guard = left.latch().try_lock(version, 1).unwrap();
            let separator = Tiny::split_copy(left, right, right_at);
            Tiny::split_truncate(left);
            Tiny::split_link(left, &separator, right_at);
        });
        let page = Page::<Tiny>::new(&left[..]);
        if let Some(version) = page.latch().optimistic() {
            let reach = Tiny::reach(page, Probe::At(&30));
            let value = Tiny::leaf_get(page, &30);
            if page.latch().validate(version) {
                match reach {
                    Reach::Inside => assert_eq!(value, Some(3)),
                    Reach::Beyond => assert_eq!(page.sibling().offset(), 2048),
                    Reach::Below => panic!("the low fence never moved"),
                }
            }
        }
        thread.join().unwrap();
    });
}

/// inv. E2: what a reader can meet is not freed while it reads.
#[test]
fn epochs_hold_back_what_is_being_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        const NODE: u64 = 1024;
        let epochs = Arc::new(Epochs::new());
        // The pointer to a node, and whether the node has been freed.
        let shared = words::<2>();
        shared[0].store(NODE, Ordering::Relaxed);
        let (their_epochs, theirs) = (Arc::clone(&epochs), Arc::clone(&shared));
        let thread = thread::spawn(move || {
            theirs[0].store(0, Ordering::SeqCst);
            their_epochs.retire(GlobalAddr::new(ServerId::new(0), NODE));
            for _ in 0..3 {
                if !their_epochs.advance().is_empty() {
                    theirs[1].store(1, Ordering::SeqCst);
                }
            }
        });
        let guard = epochs.enter(0);
        if shared[0].load(Ordering::SeqCst) == NODE {
            assert_eq!(shared[1].load(Ordering::SeqCst), 0, "freed under a reader");
        }
        drop(guard);
        thread.join().unwrap();
    });
}
