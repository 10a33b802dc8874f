//! Operations of one writer against a `BTreeMap` that keeps every version.

use crate::shard::{Shard, newest_of};
use farleaf_dlsm::{MemTableCursor, MemTableOptions, SearchKey};
use farleaf_index::{EditAction, EditAnswer};
use proptest::prelude::*;
use std::collections::BTreeMap;

type Bytes = Vec<u8>;

#[derive(Clone, Debug)]
enum Do {
    Run(Bytes, EditAction<Bytes>),
    /// Closes the table.
    Close,
    /// Remembers a bound, for reading at it later.
    Snapshot,
}

fn key() -> impl Strategy<Value = Bytes> {
    // Keys that share words, or differ in trailing zeros.
    let few = proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(255)], 0..10);
    (prop_oneof![Just(vec![]), Just(b"customer".to_vec())], few)
        .prop_map(|(front, rest)| [front, rest].concat())
}

fn value() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => proptest::collection::vec(0_u8..3, 0..3),
        1 => proptest::collection::vec(any::<u8>(), 0..600),
    ]
}

fn action() -> impl Strategy<Value = EditAction<Bytes>> {
    prop_oneof![
        Just(EditAction::Get),
        value().prop_map(EditAction::Insert),
        value().prop_map(EditAction::Update),
        value().prop_map(EditAction::Upsert),
        Just(EditAction::Remove),
        (value(), value()).prop_map(|(old, new)| EditAction::CompareExchange(old, new)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let step = prop_oneof![
        30 => (key(), action()).prop_map(|(key, action)| Do::Run(key, action)),
        1 => Just(Do::Close),
        2 => Just(Do::Snapshot),
    ];
    proptest::collection::vec(step, 0..200)
}

/// All versions of all keys: `None` for a tombstone.
#[derive(Debug, Default)]
struct Model(BTreeMap<Bytes, BTreeMap<u64, Option<Bytes>>>);

impl Model {
    fn at(&self, key: &[u8], bound: u64) -> Option<(u64, Option<Bytes>)> {
        let (number, value) = self.0.get(key)?.range(..=bound).next_back()?;
        Some((*number, value.clone()))
    }

    /// The expected answer, and the new version of the key.
    fn decide(
        &self,
        key: &[u8],
        action: &EditAction<Bytes>,
    ) -> (EditAnswer<Bytes>, Option<Option<Bytes>>) {
        let now = self.at(key, u64::MAX).and_then(|(_, value)| value);
        let answer = |applied, found| EditAnswer { applied, found };
        match (action.clone(), now) {
            (EditAction::Get, now) => (answer(now.is_some(), now), None),
            (EditAction::Upsert(value), _)
            | (EditAction::Insert(value), None)
            | (EditAction::Update(value), Some(_)) => (answer(true, None), Some(Some(value))),
            (EditAction::Remove, Some(_)) => (answer(true, None), Some(None)),
            (EditAction::CompareExchange(old, new), Some(now)) if old == now => {
                (answer(true, None), Some(Some(new)))
            }
            (EditAction::CompareExchange(..), now) => (answer(false, now), None),
            _ => (answer(false, None), None),
        }
    }
}

fn borrowed(action: &EditAction<Bytes>) -> EditAction<&[u8]> {
    match action {
        EditAction::Get => EditAction::Get,
        EditAction::Insert(value) => EditAction::Insert(value),
        EditAction::Update(value) => EditAction::Update(value),
        EditAction::Upsert(value) => EditAction::Upsert(value),
        EditAction::Remove => EditAction::Remove,
        EditAction::CompareExchange(old, new) => EditAction::CompareExchange(old, new),
    }
}

type Seen = (Bytes, u64, Option<Bytes>);

fn under(cursor: &MemTableCursor<'_>) -> Option<Seen> {
    let (key, version) = (cursor.key()?, cursor.version()?);
    Some((key.to_vec(), version.number(), version.value()))
}

/// Moves the cursor to the end.
fn walk<'t>(
    mut cursor: MemTableCursor<'t>,
    mut step: impl FnMut(&mut MemTableCursor<'t>),
) -> Vec<Seen> {
    let all = std::iter::from_fn(|| {
        let seen = under(&cursor)?;
        step(&mut cursor);
        Some(seen)
    });
    all.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn operations_answer_like_the_model(steps in steps(), probes in prop::collection::vec(key(), 4), by_count in prop_oneof![Just(None), Just(Some(20)), (1..4_u64).prop_map(Some)]) {
        let most_numbers = by_count.unwrap_or(u64::MAX);
        let options = MemTableOptions { bytes: 8 << 10, most_numbers, filter_bytes: 256 };
        let shard = Shard::new(1, options);
        let mut writer = shard.writer(1);
        let (mut model, mut bounds) = (Model::default(), vec![0]);
        for step in &steps {
            match step {
                Do::Close => shard.switch(shard.tables().last().unwrap()),
                Do::Snapshot => bounds.push(shard.sequences.settled()),
                Do::Run(key, action) => {
                    let (expected, change) = model.decide(key, action);
                    let (answer, number) =
                        shard.execute_numbered(&mut writer, key, borrowed(action));
                    prop_assert_eq!(answer, expected, "{:?} {:?}", key, action);
                    prop_assert_eq!(number.is_some(), change.is_some());
                    if let Some((number, value)) = number.zip(change) {
                        model.0.entry(key.clone()).or_default().insert(number, value);
                    }
                }
            }
        }
        let tables = shard.tables();
        for pair in tables.windows(2) {
            prop_assert_eq!(pair[0].last().unwrap() + 1, pair[1].first(), "no gap (Q2)");
        }
        bounds.push(shard.sequences.settled());
        for bound in bounds {
            for key in model.0.keys() {
                let found = newest_of(&tables, &SearchKey::new(key), bound);
                let found = found.map(|version| (version.number(), version.value()));
                prop_assert_eq!(found, model.at(key, bound), "{:?} at {}", key, bound);
            }
            for table in &tables {
                let (first, last) = (table.first(), table.last().unwrap_or(u64::MAX));
                // By key: the newest version of this table up to the bound.
                let here = |(key, versions): (&Bytes, &BTreeMap<u64, Option<Bytes>>)| {
                    let top = bound.min(last);
                    let mut range = (first <= top).then(|| versions.range(first..=top))?;
                    range.next_back().map(|(number, value)| (key.clone(), *number, value.clone()))
                };
                let mut expected: Vec<Seen> = model.0.iter().filter_map(here).collect();
                let mut cursor = table.cursor(bound);
                cursor.seek_first();
                prop_assert_eq!(&walk(cursor, MemTableCursor::next), &expected);
                for probe in &probes {
                    let at = expected.partition_point(|(key, ..)| key < probe);
                    cursor.seek(&SearchKey::new(probe));
                    prop_assert_eq!(under(&cursor), expected.get(at).cloned());
                    cursor.seek_below(&SearchKey::new(probe));
                    prop_assert_eq!(under(&cursor), expected[..at].last().cloned());
                }
                cursor.seek_last();
                expected.reverse();
                prop_assert_eq!(&walk(cursor, MemTableCursor::prev), &expected);
            }
        }
    }
}
