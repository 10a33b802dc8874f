//! Model checking of the latch, the versioned page, the epochs, the parts of the cache and the
//! MemTable, under every interleaving and every allowed reordering that `loom` models:
//! `RUSTFLAGS="--cfg loom" cargo test -p farleaf-suites --release --test loom`
#![cfg(loom)]

#[path = "loom/memtable.rs"]
mod memtable;

use farleaf_dex::cache::{
    CacheOptions, ClearedInParts, CoolOutcome, CoolingBucket, FrameArena, FrameCache, FrameId,
    FrameState, HotRecords, LeafOutlines, MappedNode, MappingTable, Swip,
};
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering};
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_index::OwnedRange;
use farleaf_page::{DescentProbe, FencePosition, Fixed8, Latch, Layout, LeafOutline, Page};
use farleaf_pool::server::Epochs;
use loom::thread;

/// Explores a model with at most this many preemptions.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn words<const N: usize>() -> Arc<[AtomicU64; N]> {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
}

/// inv. L3: a validated read sees both or neither of two words that every writer changes together.
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

/// inv. L2: of two writers that read the same version, one gets the lock, and no change is lost.
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
        assert!(Tiny::leaf_insert(page, key, value).is_inserted());
    }
    shared
}

/// A reader of a leaf never validates a wrong result while an insertion shifts the leaf.
#[test]
fn a_lookup_beside_an_insertion() {
    check(3, || {
        let shared = tiny_leaf(&[(10, 1), (20, 2)]);
        let writer = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let page = Page::<Tiny>::new(&writer[..]);
            let version = page.latch().optimistic().unwrap();
            let _guard = page.latch().try_lock(version, 1).unwrap();
            assert!(Tiny::leaf_insert(page, &5, &3).is_inserted());
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
    check(2, || {
        let left = tiny_leaf(&[(10, 1), (20, 2), (30, 3), (40, 4)]);
        let writer = Arc::clone(&left);
        let thread = thread::spawn(move || {
            let right_words = words::<16>();
            let right_at = GlobalAddr::new(ServerId::new(0), 2048);
            let (left, right) =
                (Page::<Tiny>::new(&writer[..]), Page::<Tiny>::new(&right_words[..]));
            let version = left.latch().optimistic().unwrap();
            let _guard = left.latch().try_lock(version, 1).unwrap();
            let plan = Tiny::split_plan(left, None);
            let separator = plan.separator;
            Tiny::split_copy(left, right, right_at, &plan);
            Tiny::split_truncate(left, &plan);
            Tiny::split_link(left, &separator, right_at);
        });
        let page = Page::<Tiny>::new(&left[..]);
        if let Some(version) = page.latch().optimistic() {
            let reach = Tiny::reach(page, DescentProbe::At(&30));
            let value = Tiny::leaf_get(page, &30);
            if page.latch().validate(version) {
                match reach {
                    FencePosition::Inside => assert_eq!(value, Some(3)),
                    FencePosition::Beyond => assert_eq!(page.sibling().offset(), 2048),
                    FencePosition::Below => panic!("the low fence never moved"),
                }
            }
        }
        thread.join().unwrap();
    });
}

/// inv. E2: a node that a reader can reach is not freed while it reads.
#[test]
fn epochs_hold_back_what_is_being_read() {
    check(3, || {
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

/// Asserts that each frame was taken out of the bucket exactly once.
fn one_taker_each(frames: u32, taken: &[Option<FrameId>], bucket: &CoolingBucket) {
    let mut takers = vec![0; frames as usize];
    let left: Vec<FrameId> = std::iter::from_fn(|| bucket.pop()).collect();
    for frame in taken.iter().flatten().chain(&left) {
        takers[frame.index()] += 1;
    }
    assert!(takers.iter().all(|takers| *takers == 1), "{takers:?}");
}

/// inv. C7, C8: one thread cools a frame into a full bucket and takes out the oldest, while the
/// other thread reheats the same frames.
#[test]
fn a_cooling_frame_has_one_taker() {
    loom::model(|| {
        let frame = FrameId::new;
        let bucket = Arc::new(CoolingBucket::default());
        for number in 0..6 {
            assert_eq!(bucket.push(frame(number)), None);
        }
        let theirs = Arc::clone(&bucket);
        let thread = thread::spawn(move || {
            let reheated = [0, 6, 1].map(|number| {
                let frame = frame(number);
                theirs.remove(frame).then_some(frame)
            });
            reheated.to_vec()
        });
        let mut taken = vec![bucket.push(frame(6)), bucket.pop()];
        taken.extend(thread.join().unwrap());
        one_taker_each(7, &taken, &bucket);
    });
}

/// inv. C29: whoever has the mark of a leaf finds its outline or none, while two other threads note
/// outlines of other leaves in the same full bucket.
#[test]
fn an_outline_is_that_of_the_leaf() {
    check(3, || {
        let leaf = |number: u64| GlobalAddr::new(ServerId::new(0), number * 1024);
        let outline = |records| LeafOutline::new(records, |slot| slot as u64, (0, Some(64)));
        let outlines = Arc::new(LeafOutlines::new(1, 1 << 40));
        (1..=4).for_each(|number| outlines.note(leaf(number), outline(number as usize)));
        let theirs = [5, 6].map(|number| {
            let outlines = Arc::clone(&outlines);
            thread::spawn(move || outlines.note(leaf(number), outline(number as usize)))
        });
        if let Some(found) = outlines.outline(leaf(1)) {
            assert_eq!(found.records(), 1);
        }
        theirs.into_iter().for_each(|thread| thread.join().unwrap());
        for number in 1..=6 {
            if let Some(found) = outlines.outline(leaf(number)) {
                assert_eq!(found.records(), number as usize);
            }
        }
    });
}

/// inv. C31: a lookup that finds a hot record finds the value that the leaf has, while a change and
/// a lookup that READs are under way. The leaf is one word here.
#[test]
fn a_hot_record_is_that_of_its_leaf() {
    check(3, || {
        const KEY: u64 = 9;
        let records = Arc::new(HotRecords::new(1));
        let leaf = words::<1>();
        leaf[0].store(1, Ordering::Release);
        records.put(records.ticket(KEY, false).unwrap(), KEY, 1);
        let (theirs, words) = (Arc::clone(&records), Arc::clone(&leaf));
        let writer = thread::spawn(move || {
            let change = theirs.begin_change(KEY, false);
            words[0].store(2, Ordering::Release);
            change.end(Some(2));
        });
        let (theirs, words) = (Arc::clone(&records), Arc::clone(&leaf));
        let reader = thread::spawn(move || {
            if let Some(ticket) = theirs.ticket(KEY, false) {
                theirs.put(ticket, KEY, words[0].load(Ordering::Acquire));
            }
        });
        let before = leaf[0].load(Ordering::Acquire);
        if let Some(found) = records.look(KEY) {
            assert!(found >= before, "an old record after a new leaf");
        }
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(records.look(KEY).is_none_or(|found| found == 2));
        assert!(records.ticket(KEY, false).is_some(), "no change is in progress");
    });
}

/// inv. C31: of two changes that overlap, neither puts back what the leaf no longer has.
#[test]
fn overlapping_changes_keep_no_old_record() {
    check(3, || {
        const KEY: u64 = 9;
        let records = Arc::new(HotRecords::new(1));
        let leaf = words::<1>();
        records.put(records.ticket(KEY, false).unwrap(), KEY, 0);
        let threads = [1, 2].map(|value| {
            let (records, leaf) = (Arc::clone(&records), Arc::clone(&leaf));
            thread::spawn(move || {
                let change = records.begin_change(KEY, false);
                leaf[0].store(value, Ordering::Release);
                change.end(Some(value));
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let held = leaf[0].load(Ordering::Acquire);
        assert!(records.look(KEY).is_none_or(|found| found == held));
    });
}

/// inv. C32: after the table was cleared, it keeps nothing that was read before, while a change
/// ends and a lookup puts another record of the bucket in.
#[test]
fn a_cleared_table_has_no_old_record() {
    check(3, || {
        let records = Arc::new(HotRecords::new(1));
        records.put(records.ticket(9, false).unwrap(), 9, 1);
        let ticket = records.ticket(10, false).unwrap();
        let change = Arc::clone(&records);
        let changer = thread::spawn(move || change.begin_change(9, false).end(Some(1)));
        let put = Arc::clone(&records);
        let reader = thread::spawn(move || put.put(ticket, 10, 1));
        records.clear();
        // A change that begins now is of the new owner.
        assert!(records.look(10).is_none());
        changer.join().unwrap();
        reader.join().unwrap();
        assert!(records.look(10).is_none());
        assert!(records.ticket(9, false).is_some(), "no change is in progress");
    });
}

/// inv. C5, C6: if two threads want the same node, only one has the mark at a time. It publishes
/// the node or drops the mark, and no extra entry is left.
#[test]
fn one_mark_at_a_time() {
    check(3, || {
        const NODE: u64 = 1024;
        let mapping = Arc::new(MappingTable::new(2));
        let shared = words::<1>();
        // One thread's work on a node: fetches it and evicts it again, or gives up.
        let work = |mapping: &MappingTable, holders: &AtomicU64, frame: FrameId, admits: bool| {
            for _ in 0..2 {
                match mapping.begin_io(NODE, || true) {
                    Ok(mark) => {
                        assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two marks");
                        holders.fetch_sub(1, Ordering::Relaxed);
                        if admits {
                            mark.publish(frame);
                        }
                    }
                    Err(MappedNode::Frame(found)) => drop(mapping.remove(NODE, found)),
                    Err(MappedNode::Io) => {}
                    Err(MappedNode::Absent) => panic!("it is said to be there"),
                }
            }
        };
        let (their_mapping, theirs) = (Arc::clone(&mapping), Arc::clone(&shared));
        let thread = thread::spawn(move || work(&their_mapping, &theirs[0], FrameId::new(1), true));
        work(&mapping, &shared[0], FrameId::new(2), false);
        thread.join().unwrap();
        if let MappedNode::Frame(frame) = mapping.get(NODE) {
            assert_eq!(frame, FrameId::new(1), "the other one publishes nothing");
            assert!(mapping.remove(NODE, frame));
        }
        assert_eq!(mapping.get(NODE), MappedNode::Absent, "it was there once");
    });
}

/// inv. C6: a node is merged away, freed and reused, while another thread with the old parent tries
/// to fetch it. That thread must never get the mark. Found by reading the code: a mark that was set
/// first, and dropped when the parent turned out to have changed, affected the reused node, and
/// removed its entry or left two.
#[test]
fn a_freed_node_is_marked_by_nobody() {
    loom::model(|| {
        const NODE: u64 = 1024;
        let mapping = Arc::new(MappingTable::new(2));
        mapping.begin_io(NODE, || true).unwrap().publish(FrameId::new(1));
        // The parent's latch.
        let shared = words::<1>();
        let (their_mapping, theirs) = (Arc::clone(&mapping), Arc::clone(&shared));
        let thread = thread::spawn(move || {
            let parent = Latch::new(&theirs[0]);
            let guard = parent.try_lock(parent.optimistic().unwrap(), 0).unwrap();
            assert!(their_mapping.remove(NODE, FrameId::new(1)));
            drop(guard);
            let mark = their_mapping.begin_io(NODE, || true).expect("no other thread marks it");
            mark.publish(FrameId::new(2));
        });
        let parent = Latch::new(&shared[0]);
        if let Some(version) = parent.optimistic() {
            drop(mapping.begin_io(NODE, || parent.validate(version)));
        }
        thread.join().unwrap();
        assert!(mapping.remove(NODE, FrameId::new(2)));
        assert_eq!(mapping.get(NODE), MappedNode::Absent, "it was there once");
    });
}

/// inv. C3, C14: a write-back ends while another thread makes the node hot. A thread that sees no
/// WRITE in flight any more finds the frame's words in the pool, and the end of the write-back is
/// not undone. Found by reading the code: if state and flag share one word that both threads load
/// and store, one of the two updates is lost.
#[test]
fn the_end_of_a_write_back_is_not_lost() {
    loom::model(|| {
        let frame = FrameId::new(0);
        let arena = Arc::new(FrameArena::<Tiny>::new(1).unwrap());
        arena.set_state(frame, FrameState::Hot);
        arena.set_writing(frame, true);
        let pool = words::<1>();
        let (their_arena, theirs) = (Arc::clone(&arena), Arc::clone(&pool));
        let thread = thread::spawn(move || {
            theirs[0].store(7, Ordering::Relaxed);
            their_arena.set_writing(frame, false);
        });
        arena.set_state(frame, FrameState::Hot);
        if !arena.is_writing(frame) {
            assert_eq!(pool[0].load(Ordering::Relaxed), 7, "the WRITE is not there yet");
        }
        thread.join().unwrap();
        assert!(!arena.is_writing(frame));
        assert_eq!(arena.state(frame), FrameState::Hot);
    });
}

const ROOT: u64 = 1024;
const LEFT: u64 = 2048;
const RIGHT: u64 = 3072;

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId::new(0), offset)
}

fn everything() -> OwnedRange<u64> {
    OwnedRange { low: 0, high: None }
}

/// A root with a hot left leaf, which has key 10. The right leaf, which starts at key 50, is only
/// in the pool.
fn two_leaves() -> (Arc<FrameCache<Tiny>>, FrameId, FrameId) {
    let cache = Arc::new(
        FrameCache::<Tiny>::new(&CacheOptions { bytes: 0, ..Default::default() }, everything())
            .unwrap(),
    );
    let (root, left) = (cache.take_free().unwrap(), cache.take_free().unwrap());
    root.page().format_empty(at(ROOT), 1, &0, None);
    assert!(Tiny::inner_insert(root.page(), &0, at(LEFT)));
    assert!(Tiny::inner_insert(root.page(), &50, at(RIGHT)));
    let mark = cache.mapping().begin_io(ROOT, || true).unwrap();
    let root = cache.publish_root(root, mark);
    left.page().format_empty(at(LEFT), 0, &0, Some(&50));
    assert!(Tiny::leaf_insert(left.page(), &10, &1).is_inserted());
    let mark = cache.mapping().begin_io(LEFT, || true).unwrap();
    let frame = left.frame();
    assert!(cache.publish_hot(left, mark, cache.seen(root).unwrap(), 0).is_ok());
    (cache, root, frame)
}

/// inv. C1, C2, D5: a reader goes from the root to the left leaf, while that leaf cools and is
/// evicted, and its frame is reused for the right leaf. The reader does not check fences here: the
/// order of version checks alone must suffice.
#[test]
fn a_descent_beside_an_eviction() {
    check(3, || {
        let (cache, root, left) = two_leaves();
        let theirs = Arc::clone(&cache);
        let thread = thread::spawn(move || {
            assert_eq!(theirs.cool(left, true), CoolOutcome::Done(None));
            assert_eq!(theirs.cooling().pop(0), Some(left));
            let free = theirs.evict(left, false).unwrap();
            let parent = theirs.seen(root).unwrap();
            let mark = theirs.mapping().begin_io(RIGHT, || parent.is_valid()).unwrap();
            free.page().format_empty(at(RIGHT), 0, &50, None);
            assert!(Tiny::leaf_insert(free.page(), &60, &2).is_inserted());
            assert!(theirs.publish_hot(free, mark, parent, 1).is_ok());
        });
        if let Some(parent) = cache.seen(root) {
            let slot = Tiny::inner_slot(parent.page, DescentProbe::At(&10));
            if let Some(Swip::Frame(frame)) = cache.swip(parent.page, slot)
                && let Some(child) = cache.seen(frame)
                && parent.is_valid()
            {
                let value = Tiny::leaf_get(child.page, &10);
                if child.is_valid() {
                    assert_eq!(value, Some(1), "the page of another node");
                }
            }
        }
        thread.join().unwrap();
    });
}
