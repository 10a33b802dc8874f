//! An embedded index of byte strings, compared with a map.

use farleaf::{Embedded, EmbeddedOptions, Error, Exchange, Index};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Bound;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(page_bytes: usize) -> Index<[u8]> {
    let options = EmbeddedOptions::default().memory_bytes(64 << 20).cache_bytes(1 << 20);
    Embedded::open_bytes(options.page_bytes(page_bytes)).unwrap()
}

/// Keys of any bytes, with lengths up to `most`, that often share a prefix.
fn key(dice: &mut SmallRng, most: usize) -> Vec<u8> {
    let mut key =
        [&b""[..], b"user/", b"user/long/prefix/", b"\xff"][dice.random_range(0..4)].to_vec();
    let longest = most - key.len();
    let more = if dice.random_ratio(1, 20) { longest } else { dice.random_range(0..3) };
    key.extend((0..more).map(|_| [0, b'/', b'u', 0xff][dice.random_range(0..4)]));
    key
}

fn value(dice: &mut SmallRng, most: usize) -> Vec<u8> {
    let mut value = vec![0; dice.random_range(0..=most)];
    dice.fill_bytes(&mut value);
    value
}

/// One random operation on the index and on the model; both must agree.
fn step(index: &Index<[u8]>, model: &mut Model, dice: &mut SmallRng, most: (usize, usize)) {
    let (key, value) = (key(dice, most.0), value(dice, most.1));
    let held = model.get(&key).cloned();
    match dice.random_range(0..9) {
        0 => {
            assert_eq!(index.insert(&key, &value).wait().unwrap(), held.is_none());
            model.entry(key).or_insert(value);
        }
        1 => {
            assert_eq!(index.update(&key, &value).wait().unwrap(), held.is_some());
            model.entry(key).and_modify(|held| *held = value);
        }
        2 | 3 => {
            index.upsert(&key, &value).wait().unwrap();
            model.insert(key, value);
        }
        4 => {
            assert_eq!(index.remove(&key).wait().unwrap(), held.is_some());
            model.remove(&key);
        }
        5 => {
            let expected = held.clone().unwrap_or_default();
            let outcome = index.compare_exchange(&key, &expected, &value).wait().unwrap();
            match held {
                Some(_) => {
                    assert_eq!(outcome, Exchange::Exchanged);
                    model.insert(key, value);
                }
                None => assert_eq!(outcome, Exchange::Differs(None)),
            }
        }
        6 => {
            let keys: Vec<_> = (0..20).map(|_| self::key(dice, most.0)).collect();
            let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
            assert_eq!(index.multi_get(keys).wait().unwrap(), expected);
        }
        7 => {
            let record = |_| (self::key(dice, most.0), vec![7; 9]);
            let records: Vec<_> = (0..20).map(record).collect();
            index.upsert_all(records.clone()).wait().unwrap();
            model.extend(records);
        }
        _ => assert_eq!(index.get(&key).wait().unwrap(), held),
    }
}

fn assert_same(index: &Index<[u8]>, model: &Model) {
    let all: Model = index.scan(..).map(Result::unwrap).collect();
    assert!(all == *model, "{} of {}", all.len(), model.len());
    let down = index.scan(..).reverse().map(Result::unwrap);
    assert!(down.eq(model.iter().rev().map(|(key, value)| (key.clone(), value.clone()))));
    for prefix in ["", "user/", "user/long", "none"] {
        let found = index.scan_prefix(prefix).map(|record| record.unwrap().0);
        let expected = model.keys().filter(|key| key.starts_with(prefix.as_bytes()));
        assert!(found.eq(expected.cloned()), "{prefix}");
    }
    let range = (Bound::Excluded(b"user/".to_vec()), Bound::Excluded(vec![0xff]));
    let found = index.scan(range.clone()).limit(50).map(|record| record.unwrap().0);
    assert!(found.eq(model.range(range).take(50).map(|(key, _)| key.clone())));
}

#[test]
fn random_operations_agree_with_a_map_in_every_size_of_pages() {
    for (page_bytes, most) in [(1024, (128, 80)), (2048, (256, 200)), (4096, (256, 600))] {
        let (index, mut model) = (open(page_bytes), Model::new());
        let mut dice = SmallRng::seed_from_u64(page_bytes as u64);
        for _ in 0..2_000 {
            step(&index, &mut model, &mut dice, most);
        }
        assert!(model.len() > 100, "{}", model.len());
        assert_same(&index, &model);
        let loaded = open(page_bytes);
        let records = model.clone().into_iter();
        assert_eq!(loaded.bulk_load(records).wait().unwrap(), model.len() as u64);
        assert_same(&loaded, &model);
    }
}

/// Values of up to a mebibyte are beside the pages, whose size does not matter.
#[test]
fn values_of_any_length_up_to_a_mebibyte() {
    for page_bytes in [1024, 2048, 4096] {
        let options = EmbeddedOptions::default().memory_bytes(256 << 20).cache_bytes(1 << 20);
        let index = Embedded::open_bytes(options.page_bytes(page_bytes)).unwrap();
        let mut model = Model::new();
        let mut dice = SmallRng::seed_from_u64(page_bytes as u64 + 1);
        for _ in 0..600 {
            // Few long ones, so that most operations meet some of other lengths.
            let most = [30, 300, 5_000, 300_000][dice.random_range(0..4)];
            step(&index, &mut model, &mut dice, (128, most));
        }
        assert_same(&index, &model);
        let longest = vec![9; 1 << 20];
        index.upsert("longest", &longest).wait().unwrap();
        assert_eq!(index.get("longest").wait().unwrap(), Some(longest));
        let too_long = vec![9; (1 << 20) + 1];
        let records = vec![(b"a".to_vec(), vec![]), (b"b".to_vec(), too_long.clone())];
        for refused in [index.upsert("longest", too_long).wait(), index.upsert_all(records).wait()]
        {
            let Err(Error::Invalid(why)) = refused else { panic!("{refused:?}") };
            assert!(why.to_string().contains("1048576"), "{why}");
        }
    }
}

/// Tasks of a runtime and plain threads share the handle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_threads_share_an_index() {
    let index = open(1024);
    let thread = {
        let index = index.clone();
        std::thread::spawn(move || {
            for number in 0..500 {
                index.upsert(format!("thread/{number:03}"), "of a thread").wait().unwrap();
            }
        })
    };
    for number in 0..500 {
        index.upsert(format!("task/{number:03}"), "of a task").await.unwrap();
    }
    thread.join().unwrap();
    for (prefix, value) in [("task/", "of a task"), ("thread/", "of a thread")] {
        let mut records = index.scan_prefix(prefix).reverse().stream();
        for number in (0..500).rev() {
            let record = records.next().await.unwrap().unwrap();
            assert_eq!(record, (format!("{prefix}{number:03}").into(), value.into()));
        }
        assert!(records.next().await.is_none());
    }
}

#[test]
fn what_is_too_long_is_refused_with_the_limit() {
    let index = open(1024);
    for refused in [
        index.get(vec![b'k'; 129]).wait().map(drop),
        index.upsert(vec![b'k'; 129], "").wait(),
        index.scan(vec![b'k'; 129]..).next().unwrap().map(drop),
        index.upsert_all(vec![(b"a".to_vec(), vec![]), (vec![b'k'; 129], vec![])]).wait(),
    ] {
        let Err(Error::Invalid(why)) = refused else { panic!("{refused:?}") };
        assert_eq!(why.to_string(), "the key has 129 bytes, and keys can have at most 128");
    }
    assert_eq!(index.scan(..).count(), 0, "nothing has changed");
    index.upsert(vec![b'k'; 128], "").wait().unwrap();
    assert_eq!(index.get(vec![b'k'; 128]).wait().unwrap(), Some(Vec::new()));
    let sizes = EmbeddedOptions::default().page_bytes(8192);
    assert!(matches!(Embedded::open_bytes(sizes), Err(Error::Invalid(_))));
    let sizes = EmbeddedOptions::default().page_bytes(2048);
    assert!(matches!(Embedded::open(sizes), Err(Error::Invalid(_))));
}
