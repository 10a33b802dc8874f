//! Tests of the state that handles share.

use super::DlsmOptions;
use super::claim::CompactionClaim;
use super::shard::{LsmShard, TreeRight};
use super::version::{Intake, SsTable, SwitchOutcome};
use crate::remote::ExtentSpace;
use farleaf_fabric::sync::Arc;
use farleaf_page::table::{IndexKind, KeyBuf, RecordKind, SsTableBuilder, SsTableIndex};

/// Flushed MemTables that operations pinned were once kept beside a full set of closed ones.
#[test]
fn flushed_memtables_take_the_place_of_closed_ones() {
    let shard = Arc::new(LsmShard::new(0, &DlsmOptions::default()).unwrap());
    let most = 1 + shard.options.most_immutables;
    let each = shard.local_bytes().0;
    let flushing = LsmShard::begin_flush(&shard).unwrap();
    let editing = LsmShard::begin_edit(&shard).unwrap();
    let mut pinned = Vec::new();
    for _ in 0..3 {
        while shard.switch(&shard.pin().active, Intake::Nothing).unwrap() == SwitchOutcome::Here {
            pinned.push(shard.pin());
        }
        while let Some(oldest) = shard.pin().immutables.last() {
            editing.make_unlisted(&flushing.flushed(oldest, Vec::new()));
            assert!(shard.local_bytes().0 <= most as u64 * each);
        }
        assert!(shard.local_bytes().0 <= most as u64 * each);
    }
    for _ in 0..most {
        let _ = shard.switch(&shard.pin().active, Intake::Nothing).unwrap();
        assert_eq!(shard.local_bytes().0, most as u64 * each);
    }
}

/// A task that has merged 16 times, and takes the right again at once because more is due, once
/// kept an operation that waited for it from ever getting it.
#[test]
fn a_right_is_left_to_operations_that_wait_for_it() {
    let options = DlsmOptions { workers: 2, ..DlsmOptions::default() };
    let shard = Arc::new(LsmShard::new(0, &options).unwrap());
    let claim = |keys: [u64; 2], into| {
        let [smallest, largest] = keys.map(KeyBuf::from_number);
        CompactionClaim { inputs: Vec::new(), into, keys: (smallest, largest) }
    };
    let begin = |claim| LsmShard::begin_merge_of(&shard, claim, &[], CompactionClaim::conflicts);
    let merging = begin(claim([1, 4], 1)).unwrap();
    assert!(begin(claim([4, 9], 1)).is_none(), "both would write key 4");
    let other = begin(claim([4, 9], 2)).expect("another level");
    assert!(begin(claim([10, 11], 1)).is_none(), "two are merging");
    assert_ne!(merging.lane, other.lane);
    drop(other);
    drop(begin(claim([10, 11], 1)).expect("other keys"));
    let waiting = LsmShard::begin_waiting(&shard, TreeRight::Merge);
    assert!(LsmShard::begin_compaction(&shard).is_none(), "it is not alone");
    let seen = shard.changed.count();
    drop(merging);
    assert!(shard.changed.count() > seen, "the operation is woken");
    assert!(begin(claim([1, 4], 1)).is_none());
    let flushing = LsmShard::begin_due(&shard, TreeRight::Flush, LsmShard::begin_flush);
    assert!(flushing.is_some(), "flushes go on beside it");
    let alone = LsmShard::begin_compaction(&shard).expect("they have gone");
    drop(alone);
    let seen = shard.changed.count();
    drop(waiting);
    assert!(shard.changed.count() > seen, "the task is woken");
    assert!(begin(claim([1, 4], 1)).is_some());
    let alone = LsmShard::begin_compaction(&shard).unwrap();
    assert!(begin(claim([1, 4], 1)).is_none(), "one merges alone");
    drop(alone);
}

fn table(shard: &LsmShard, id: u64) -> SsTable {
    let (mut builder, mut out) = (SsTableBuilder::new(id, 0, IndexKind::Compact), Vec::new());
    builder.add(KeyBuf::from_number(id).key(), 1, RecordKind::Value, b"", &mut out).unwrap();
    let mut finishing = builder.finishing(1);
    let meta = loop {
        if let Some(meta) = finishing.step(1_000, &mut out) {
            break meta.unwrap();
        }
    };
    let sections = out[meta.footer.data_words as usize..].to_vec();
    let index = Arc::new(SsTableIndex::open(sections, id).unwrap());
    let lease = Arc::new(ExtentSpace::lease_at(&shard.space, &[]).unwrap());
    SsTable { meta, index, lease }
}

/// Two tasks picked a table, and one moved it to the next level before the other claimed it.
/// The other once moved it again, because the version had its id: then it was there twice.
#[test]
fn a_table_that_has_moved_is_not_claimed_where_it_was() {
    let shard = Arc::new(LsmShard::new(0, &DlsmOptions::default()).unwrap());
    let editing = LsmShard::begin_edit(&shard).unwrap();
    let merging = LsmShard::begin_compaction(&shard).unwrap();
    editing.make_unlisted(&merging.merged(&[], 1, vec![table(&shard, 7)]));
    drop(merging);
    let begin = |picked: &[Vec<Arc<SsTable>>], into| {
        let keys = (KeyBuf::from_number(7), KeyBuf::from_number(7));
        let claim = CompactionClaim { inputs: vec![7], into, keys };
        LsmShard::begin_merge_of(&shard, claim, picked, CompactionClaim::conflicts)
    };
    let picked = [shard.pin().levels[1].clone()];
    let merging = begin(&picked, 2).expect("it is in level 1");
    editing.make_unlisted(&merging.moved(&picked[0][0], 2));
    drop(merging);
    assert!(begin(&picked, 2).is_none(), "it is in level 2");
    assert!(begin(&[shard.pin().levels[2].clone()], 3).is_some());
}
