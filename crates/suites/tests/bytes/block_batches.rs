//! Batches of operations on values in blocks: what they cost, and that their outcomes are those of
//! the operations one after the other.

use super::blocks::with_blocks;
use super::designs::{caches, dex};
use farleaf_dex::blocks::{BlockIndex, DexWithBlocks};
use farleaf_dex::cache::{AdmissionName, CacheOptions};
use farleaf_fabric::sim::SimConfig;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, IndexError, RangeIndex, ScanRequest};
use farleaf_page::{Bytes, EditAction, EditAnswer, LeafEdit, LengthError};
use farleaf_suites::providers::{sim, spent};
use farleaf_suites::strings::StringModel;

type Small = Bytes<128>;
type Edit<'a> = LeafEdit<&'a [u8], &'a [u8]>;

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// All blocks of a batch are WRITTEN at the same time, and then all of its leaves that are not
/// cached are READ at the same time. It is the same work as one by one, and takes few round trips.
#[test]
fn the_blocks_of_a_batch_are_written_and_its_leaves_read_together() {
    let provider = &sim(SimConfig::default());
    let cache = CacheOptions { admission: AdmissionName::Hot, ..caches()[1] };
    let mut setup = with_blocks(dex(provider, cache));
    (setup.options.cache_bytes, setup.options.most_lost) = (0, 1_000);
    setup.options.design.boundaries = vec![];
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = || <DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    let [loader, batched, single] = &[compute(), compute(), compute()];
    cluster.run_one(|fabric| async move {
        let open =
            async |compute| <DexWithBlocks as Design<Small>>::open(fabric.clone(), compute).await;
        let index = open(loader).await.unwrap();
        let records = (0..400).map(|number| (key(number), vec![1; 300]));
        assert_eq!(index.bulk_load(records, 0.7).await, Ok(400));
        index.flush().await.unwrap();

        let keys: Vec<Vec<u8>> = (0..16).map(|number| key(number * 24 + 12)).collect();
        let edit = |key| LeafEdit { key, action: EditAction::Upsert(&[2; 400][..]) };
        let edits: Vec<Edit<'_>> = keys.iter().map(|key| edit(&key[..])).collect();
        // The inner nodes are cached, and each memory server has given a chunk for blocks.
        let warm = async |index: &BlockIndex<_, Small>| {
            for number in 396..400 {
                index.upsert(&key(number), &[3; 400]).await.unwrap();
            }
        };
        let index = open(batched).await.unwrap();
        warm(&index).await;
        let begin_ns = fabric.now_ns();
        let cost = spent(&fabric, async {
            for outcome in index.execute_all(&edits).await {
                assert_eq!(outcome, Ok(EditAnswer::from_change(true)));
            }
        });
        let together = (cost.await, fabric.now_ns() - begin_ns);

        let index = open(single).await.unwrap();
        warm(&index).await;
        let begin_ns = fabric.now_ns();
        let cost = spent(&fabric, async {
            for edit in &edits {
                assert_eq!(index.execute(*edit).await, Ok(EditAnswer::from_change(true)));
            }
        });
        let single = (cost.await, fabric.now_ns() - begin_ns);
        for (cost, _) in [&together, &single] {
            // A leaf that was not cached is written through, its heap and its front.
            let (of_blocks, of_leaves) = (16 * 400, 16 * 162);
            assert_eq!((cost.writes, cost.bytes_written), (16 + 2 * 16, of_blocks + of_leaves));
            assert_eq!((cost.reads, cost.bytes_read), (16, 16 * 1016));
            assert_eq!((cost.rpcs, cost.atomics), (0, 0));
        }
        // In virtual time, three round trips each: of the block, of the leaf, and of its change.
        // Posting 64 verbs takes longer than a round trip, so those of a batch are not just three.
        let round_trip_ns = 2 * SimConfig::default().network.one_way_ns;
        assert!(single.1 >= 16 * 3 * round_trip_ns, "{single:?}");
        assert!(together.1 < single.1 / 4, "{together:?} {single:?}");
    });
}

/// The outcome of an edit of a map.
fn in_model(model: &mut StringModel, edit: &Edit<'_>) -> EditAnswer<Vec<u8>> {
    let held = model.get(edit.key).cloned();
    let new = match edit.action {
        EditAction::Get => return EditAnswer::from_lookup(held),
        EditAction::Insert(value) if held.is_none() => Some(value),
        EditAction::Update(value) if held.is_some() => Some(value),
        EditAction::Upsert(value) => Some(value),
        EditAction::Remove => return EditAnswer::from_change(model.remove(edit.key).is_some()),
        EditAction::CompareExchange(expected, value) => {
            if held.as_deref() != Some(expected) {
                return EditAnswer { applied: false, found: held };
            }
            Some(value)
        }
        _ => None,
    };
    if let Some(value) = new {
        model.insert(edit.key.to_vec(), value.to_vec());
    }
    EditAnswer::from_change(new.is_some())
}

/// Random batches on few keys, so that most have several edits of one key.
fn batches_are_like_single_operations(cache: CacheOptions) {
    let provider = &sim(SimConfig::default());
    let mut setup = with_blocks(dex(provider, cache));
    setup.options.most_lost = 5;
    let cluster = setup.with_index::<Small, DexWithBlocks>();
    let compute = &<DexWithBlocks as Design<Small>>::compute(&setup.options).unwrap();
    cluster.run_one(|fabric| async move {
        let index = <DexWithBlocks as Design<Small>>::open(fabric.clone(), compute).await.unwrap();
        let mut model = StringModel::new();
        // Some are stored in leaves, and some in blocks.
        let values: Vec<Vec<u8>> =
            (0..8_u8).map(|number| vec![number; [4, 300][usize::from(number % 2)]]).collect();
        let keys: Vec<Vec<u8>> = (0..12).map(key).collect();
        let too_long = vec![b'k'; Small::max_key() + 1];
        for round in 0..120 {
            let some = |of: &[Vec<u8>]| fabric.random() as usize % of.len();
            let edits: Vec<Edit<'_>> = (0..round)
                .map(|_| {
                    let (one, other) = (&values[some(&values)][..], &values[some(&values)][..]);
                    let key = &keys[some(&keys)][..];
                    let action = match fabric.random() % 7 {
                        0 => EditAction::Get,
                        1 => EditAction::Insert(one),
                        2 => EditAction::Update(one),
                        3 => EditAction::Remove,
                        4 | 5 => EditAction::CompareExchange(one, other),
                        _ => EditAction::Upsert(one),
                    };
                    LeafEdit { key, action }
                })
                .chain([LeafEdit { key: &too_long[..], action: EditAction::Get }])
                .collect();
            let outcomes = index.execute_all(&edits).await;
            assert_eq!(outcomes.len(), edits.len());
            for (edit, outcome) in edits.iter().zip(outcomes) {
                match edit.key.len() > Small::max_key() {
                    true => {
                        let is_refused =
                            matches!(outcome, Err(IndexError::TooLong(LengthError::Key { .. })));
                        assert!(is_refused, "{outcome:?}");
                    }
                    false => assert_eq!(outcome, Ok(in_model(&mut model, edit)), "{edit:?}"),
                }
            }
        }
        let all: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(index.scan(&ScanRequest::range(..)).await, Ok(all));
        let in_blocks = model.values().filter(|value| value.len() > 12).count() as u64;
        assert_eq!(
            compute.usage().blocks_in_use,
            in_blocks,
            "no block is lost, and none is there twice"
        );
    });
}

#[test]
fn the_outcomes_of_a_batch_are_those_of_its_operations_in_turn() {
    caches().into_iter().for_each(batches_are_like_single_operations);
}
