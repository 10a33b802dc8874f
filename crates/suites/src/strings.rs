//! Random operations on byte strings, whose answers are compared with those of a `BTreeMap`.

use crate::conformance::SuiteSetup;
use crate::providers::AnyProvider;
use farleaf_fabric::{Cluster, Fabric};
use farleaf_index::{Design, Exchange, IndexAdmin, RangeIndex, ScanRequest};
use farleaf_page::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;

/// A key.
pub type StringKey = Vec<u8>;
/// The records that an index should have.
pub type StringModel = BTreeMap<StringKey, Vec<u8>>;

/// A key that shares a long prefix with others.
pub fn long_prefix(tail: &[u8]) -> StringKey {
    [b"https://example.org/a/path/that/all/of/them/share/", tail].concat()
}

/// A key of client `client`: empty for the first one, or of maximum length, or one of many that
/// share a prefix, or short.
pub fn key(number: u64, client: usize, most: usize) -> StringKey {
    let end = client as u8;
    match number % 16 {
        0 if number == 0 && client == 0 => Vec::new(),
        0 | 1 => {
            let mut long = vec![b'p'; most - 9];
            long.extend(number.to_be_bytes());
            long.push(end);
            long
        }
        2..=4 => vec![(number / 16) as u8, (number % 16) as u8, end],
        _ => {
            let mut key = long_prefix(format!("key-{number:010}").as_bytes());
            key.push(end);
            key
        }
    }
}

/// A value that reveals any mixture: one byte, repeated.
fn value(random: u64, most: u64) -> Vec<u8> {
    let length = match random % 4 {
        0 => 8,
        1 => random / 4 % 32,
        _ => random / 4 % most,
    };
    vec![(random >> 32) as u8; length as usize]
}

fn is_whole(value: &[u8]) -> bool {
    value.windows(2).all(|pair| pair[0] == pair[1])
}

/// One operation on a random key of this client, compared with the model.
async fn step<F: Fabric, I: RangeIndex<Key = [u8], Value = [u8]>>(
    fabric: &F,
    index: &I,
    model: &mut StringModel,
    (client, space, most_key, most_value): (usize, u64, usize, u64),
) {
    let key = key(fabric.random() % space, client, most_key);
    let new = value(fabric.random(), most_value);
    let held = model.get(&key).cloned();
    match fabric.random() % 8 {
        0 => {
            assert_eq!(index.insert(&key, &new).await.unwrap(), held.is_none());
            model.entry(key).or_insert(new);
        }
        1 => {
            assert_eq!(index.update(&key, &new).await.unwrap(), held.is_some());
            model.entry(key).and_modify(|value| *value = new);
        }
        2 => {
            assert_eq!(index.remove(&key).await.unwrap(), held.is_some());
            model.remove(&key);
        }
        3 => {
            let expected = held.clone().unwrap_or_else(|| b"absent".to_vec());
            let outcome = index.compare_exchange(&key, &expected, &new).await.unwrap();
            match held {
                Some(_) => {
                    assert_eq!(outcome, Exchange::Exchanged);
                    model.insert(key, new);
                }
                None => assert_eq!(outcome, Exchange::Differs(None)),
            }
        }
        4 => assert_eq!(index.get(&key).await.unwrap(), held),
        5 => {
            let scan = ScanRequest::range(key.clone()..).limit((fabric.random() % 40) as usize);
            let own = |(found, _): &(StringKey, Vec<u8>)| {
                found.is_empty() && client == 0 || found.last() == Some(&(client as u8))
            };
            let found = index.scan(&scan).await.unwrap();
            assert!(found.iter().all(|(_, value)| is_whole(value)));
            assert!(found.is_sorted_by(|a, b| a.0 < b.0));
            // Between this client's own keys there may be keys of other clients.
            let Some((last, _)) = found.last().cloned() else { return };
            let expected: Vec<_> = model
                .range((Bound::Included(key), Bound::Included(last)))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            assert_eq!(found.into_iter().filter(own).collect::<Vec<_>>(), expected);
        }
        _ => {
            index.upsert(&key, &new).await.unwrap();
            model.insert(key, new);
        }
    }
}

/// Compares an index with the model, by scans in both directions and by lookups.
///
/// # Panics
/// If they differ.
pub async fn check<I: RangeIndex<Key = [u8], Value = [u8]>>(index: &I, model: &StringModel) {
    let expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    assert_eq!(index.scan(&ScanRequest::range(..)).await.unwrap(), expected);
    let mut down = index.scan(&ScanRequest::range(..).reverse()).await.unwrap();
    down.reverse();
    assert_eq!(down, expected);
    let keys: Vec<StringKey> = model.keys().cloned().collect();
    let found = index.multi_get(&keys).await.unwrap();
    assert!(found.into_iter().eq(model.values().cloned().map(Some)));
}

/// Random operations of several clients, each with its own keys between those of the others, with
/// values of at most `most_value` bytes.
///
/// # Panics
/// If an answer is wrong.
pub fn random_operations<const W: usize, D>(
    setup: &SuiteSetup<'_, AnyProvider, D::Options>,
    operations: usize,
    most_value: u64,
) where
    D: Design<Bytes<W>>,
{
    let cluster = setup.with_index::<Bytes<W>, D>();
    let compute = &D::compute(&setup.options).unwrap();
    let limits = (Bytes::<W>::max_key(), most_value);
    let models = cluster.run(&[0, 0, 1, 2], |fabric, client| async move {
        let index = D::open(fabric.clone(), compute).await.unwrap();
        let mut model = StringModel::new();
        for number in 0..operations {
            step(&fabric, &index, &mut model, (client, 800, limits.0, limits.1)).await;
            if client == 3 && number % 200 == 199 {
                index.collect().await.unwrap();
            }
        }
        model
    });
    let mut model: StringModel = models.into_iter().flatten().flatten().collect();
    let model = &Mutex::new(&mut model);
    cluster.run_one(|fabric| async move {
        let index = D::open(fabric.clone(), compute).await.unwrap();
        let mut model = StringModel::clone(&model.lock().unwrap());
        check(&index, &model).await;
        index.collect().await.unwrap();
        check(&index, &model).await;
        let gone: Vec<_> = model.keys().filter(|key| key.len() % 8 != 0).cloned().collect();
        for key in gone {
            assert!(index.remove(&key).await.unwrap());
            model.remove(&key);
        }
        index.collect().await.unwrap();
        check(&index, &model).await;
    });
}

/// Bulk loads, and operations after them.
///
/// # Panics
/// If an answer is wrong.
pub fn loads<const W: usize, D>(setup: &SuiteSetup<'_, AnyProvider, D::Options>, most_value: u64)
where
    D: Design<Bytes<W>>,
{
    for fill in [0.5, 1.0] {
        let cluster = setup.with_index::<Bytes<W>, D>();
        let compute = &D::compute(&setup.options).unwrap();
        cluster.run_one(|fabric| async move {
            let index = D::open(fabric.clone(), compute).await.unwrap();
            let mut model = StringModel::new();
            for number in 0..4_000 {
                let value = value(fabric.random(), most_value);
                model.insert(key(number, 0, Bytes::<W>::max_key()), value);
            }
            let loaded = index.bulk_load(model.clone().into_iter(), fill).await.unwrap();
            assert_eq!(loaded, model.len() as u64);
            check(&index, &model).await;
            for _ in 0..500 {
                let limits = (0, 4_000, Bytes::<W>::max_key(), most_value);
                step(&fabric, &index, &mut model, limits).await;
            }
            index.collect().await.unwrap();
            check(&index, &model).await;
        });
    }
}
