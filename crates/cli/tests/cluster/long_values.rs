//! Clusters of byte strings with values of up to 60 KiB, which compute servers keep in blocks.
//! Every answer is compared with a map in this process.

use crate::ending::{metrics, number};
use crate::launched::{Launched, farleaf};
use crate::moving::{must, owners};
use crate::serving::{DEADLINE, compute, connect_to, serving};
use crate::strings::{
    Model, assert_comes_back_from_a_file, assert_same, client, next_incarnation, work_with,
};
use farleaf_index::{IndexError, RangeIndex};
use farleaf_page::{Bytes, LengthError};
use farleaf_pool::wire::MAX_VALUE_BYTES;
use rand::RngExt;
use rand::rngs::SmallRng;
use rustix::process::Signal;

const OPERATIONS: usize = 400;
/// Lengths around each limit: of references, of leaves, of pieces, of messages.
const LENGTHS: [usize; 13] =
    [0, 8, 18, 19, 20, 99, 100, 101, 1_000, 4_096, 4_097, 30_000, MAX_VALUE_BYTES];

/// A value of any of the lengths, of the same bytes if it is long.
fn value(rng: &mut SmallRng) -> Vec<u8> {
    let length = LENGTHS[rng.random_range(0..LENGTHS.len())];
    match length {
        0..100 => (0..length).map(|_| rng.random()).collect(),
        _ => vec![rng.random(); length],
    }
}

fn work(cluster: &Launched, model: &mut Model, seed: u64) {
    work_with(cluster, model, seed, OPERATIONS, &value);
}

fn flush(cluster: &Launched) {
    assert_eq!(client(cluster, &["flush"]).0, Some(0));
}

fn long_values_are_served(transport: &str) {
    let bytes = ["--keys", "bytes", "--boundaries", "m"];
    let blocks = ["--inline-bytes", "100", "--pool-bytes", "256Mi", "--cache-bytes", "2Mi"];
    let flags = [&bytes[..], &blocks, &["--restart", "--metrics"]].concat();
    let mut cluster = serving(transport, &flags);
    let mut model = Model::new();
    work(&cluster, &mut model, 1);
    assert!(model.values().any(|value| value.len() == MAX_VALUE_BYTES));
    assert_same(&cluster, &model);
    for server in [0, 1] {
        let seen = metrics(&compute(&cluster, server).unwrap().metrics.unwrap()).unwrap();
        assert!(number(&seen, "farleaf_block_chunk_bytes") > 0, "{seen}");
        assert!(number(&seen, "farleaf_cached_block_bytes") <= 1 << 20, "{seen}");
    }

    // Keys move, with blocks that the other server has written; then it replaces and frees these.
    must(&cluster, &["move", "1", "0"]);
    assert_eq!(owners(&cluster), [0]);
    assert_same(&cluster, &model);
    work(&cluster, &mut model, 2);
    assert_same(&cluster, &model);

    // What was flushed outlives a kill.
    flush(&cluster);
    next_incarnation(&mut cluster, 0, Signal::KILL);
    assert_same(&cluster, &model);
    work(&cluster, &mut model, 3);
    next_incarnation(&mut cluster, 0, Signal::TERM);
    assert_same(&cluster, &model);

    assert_comes_back_from_a_file(&cluster, &model);
    work(&cluster, &mut model, 4);
    assert_same(&cluster, &model);
    // The launcher reports the one that was killed by its exit code.
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

#[test]
fn long_values_are_served_over_tcp() {
    long_values_are_served("tcp");
}

#[test]
fn long_values_are_served_over_shm() {
    long_values_are_served("shm");
}

/// Two compute servers are killed again and again. Each life finds the free blocks of those before
/// it, so the memory that they have for blocks does not grow.
#[test]
fn killed_compute_servers_leave_no_blocks_behind() {
    let bytes = ["--keys", "bytes", "--boundaries", "m", "--restart", "--metrics"];
    let blocks = ["--inline-bytes", "100", "--pool-bytes", "256Mi", "--cache-bytes", "2Mi"];
    let mut cluster = serving("tcp", &[&bytes[..], &blocks].concat());
    let mut model = Model::new();
    let chunk_bytes = |cluster: &Launched| {
        [0, 1].map(|server| {
            let seen = metrics(&compute(cluster, server).unwrap().metrics.unwrap()).unwrap();
            number(&seen, "farleaf_block_chunk_bytes")
        })
    };
    let mut taken = Vec::new();
    // The launcher restarts a server five times in a minute.
    for life in 0..5 {
        work(&cluster, &mut model, 100 + life);
        flush(&cluster);
        taken.push(chunk_bytes(&cluster));
        for server in [0, 1] {
            next_incarnation(&mut cluster, server, Signal::KILL);
        }
        assert!(chunk_bytes(&cluster).iter().all(|bytes| *bytes > 0), "they are taken over");
        assert_same(&cluster, &model);
    }
    // Without that, each life would take as much again.
    for server in [0, 1] {
        let later = taken[1..].iter().map(|taken| taken[server]).max();
        assert!(later < Some(2 * taken[0][server]), "{taken:?}");
    }
    assert_eq!(cluster.end(Signal::TERM), Some(1));
}

/// What is longer than a message has is refused by the client, with the limit.
#[test]
fn a_value_that_no_message_has_is_refused() {
    let mut cluster = serving("tcp", &["--keys", "bytes", "--boundaries", "m"]);
    let connection = connect_to::<Bytes>(&cluster, DEADLINE);
    let refused = connection.run(async |client| {
        let (bytes, most) = (MAX_VALUE_BYTES + 1, MAX_VALUE_BYTES);
        let (long, error) = (vec![1; bytes], IndexError::from(LengthError::Value { bytes, most }));
        assert!(error.to_string().contains("61440"), "{error}");
        assert_eq!(client.upsert(b"a", &long).await, Err(error.clone()));
        assert_eq!(client.compare_exchange(b"a", b"", &long).await, Err(error.clone()));
        let records = || vec![(b"a".to_vec(), vec![]), (b"b".to_vec(), long.clone())];
        assert_eq!(client.upsert_all(records()).await, Err(error.clone()));
        assert_eq!(client.bulk_load(records().into_iter(), 0.7).await, Err(error));
        // Two of the longest in one message.
        let (one, two) = (vec![1; most], vec![2; most]);
        client.upsert(b"a", &one).await?;
        let exchanged = client.compare_exchange(b"a", &one, &two).await?;
        assert_eq!(exchanged, farleaf_index::Exchange::Exchanged);
        client.get(b"a").await
    });
    assert_eq!(refused, Ok(Some(vec![2; MAX_VALUE_BYTES])));
    let dir = cluster.dir().to_owned();
    let bench = |values: &str| {
        let words = ["client", "--dir", &dir, "bench", "--load", "--keys", "300", "--value-bytes"];
        farleaf(&[&words[..], &[values, "--operations", "500", "--workload", "ycsb-a"]].concat())
    };
    let output = bench("70000");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("61440"), "{output:?}");
    assert_eq!(client(&cluster, &["clear"]).0, Some(0));
    let output = bench("8-20000");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(cluster.end(Signal::TERM), Some(0));
}
