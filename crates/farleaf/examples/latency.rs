//! The cost of this crate: gets one after another through a long-lived handle, beside the same gets
//! by a client that owns its thread. Needs a cluster:
//!
//! ```console
//! $ farleaf cluster --dir /tmp/farleaf --memory-servers 1 --compute-servers 1
//! $ cargo run --release -p farleaf --example latency -- /tmp/farleaf
//! ```

use farleaf::Index;
use farleaf_cluster::client::{ClusterConnection, ConnectionConfig};
use farleaf_cluster::config::read_token;
use farleaf_cluster::launch::LauncherFolder;
use farleaf_fabric::provider::ClusterClock;
use farleaf_index::{IndexError, RangeIndex};
use std::time::Duration;

const GETS: u64 = 1_000;
const ROUNDS: usize = 41;

/// The median of `values`.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One way to do the gets. Each call runs a round and returns its time in nanoseconds.
type Way<'a> = (&'a str, Box<dyn Fn() -> u64 + 'a>);

async fn gets(index: &Index, clock: &ClusterClock) -> u64 {
    let start_ns = clock.now_ns();
    for key in 0..GETS {
        assert_eq!(index.get(key).await.expect("the cluster serves"), Some(key));
    }
    clock.now_ns() - start_ns
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(dir) = std::env::args().nth(1) else {
        println!("give the folder of a running cluster: latency /tmp/farleaf");
        return Ok(());
    };
    let clock = ClusterClock::start();
    let index = farleaf::connect(&dir)?;
    index.upsert_all((0..GETS).map(|key| (key, key)).collect::<Vec<_>>()).wait()?;

    let folder = LauncherFolder(dir.into());
    let connection: ClusterConnection = ClusterConnection::open(&ConnectionConfig {
        cluster: "default".to_owned(),
        catalog: folder.catalog()?,
        token: read_token(&folder.token())?,
        deadline: Duration::from_secs(5),
        depth: 256,
    })?;
    let direct = || {
        let took = connection.run(async |client| {
            client.get(&0).await?; // connects
            let start_ns = clock.now_ns();
            for key in 0..GETS {
                assert_eq!(client.get(&key).await?, Some(key));
            }
            Ok::<_, IndexError>(clock.now_ns() - start_ns)
        });
        took.expect("the cluster serves")
    };
    let one_thread = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let several = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let spawned = || {
        let (index, clock) = (index.clone(), clock.clone());
        let task = several.spawn(async move { gets(&index, &clock).await });
        several.block_on(task).expect("the task ends")
    };
    let blocking = |index: &Index| {
        let start_ns = clock.now_ns();
        for key in 0..GETS {
            assert_eq!(index.get(key).wait().expect("it is there"), Some(key));
        }
        clock.now_ns() - start_ns
    };
    let embedded = farleaf::Embedded::open(farleaf::EmbeddedOptions::default())?;
    embedded.bulk_load((0..GETS).map(|key| (key, key))).wait()?;
    let ways: [Way<'_>; 5] = [
        ("ClusterConnection::run, its own thread", Box::new(direct)),
        (
            "a kept handle, tokio current-thread",
            Box::new(|| one_thread.block_on(gets(&index, &clock))),
        ),
        ("a kept handle, tokio multi-thread", Box::new(spawned)),
        ("a kept handle, a plain thread", Box::new(|| blocking(&index))),
        ("embedded, a plain thread", Box::new(|| blocking(&embedded))),
    ];
    // Interleaved, and compared round by round, so that a busy machine slows down all of them
    // alike.
    let rounds: Vec<Vec<f64>> =
        (0..ROUNDS).map(|_| ways.iter().map(|(_, way)| way() as f64).collect()).collect();
    for (number, (name, _)) in ways.iter().enumerate() {
        let us = median(rounds.iter().map(|round| round[number] / GETS as f64 / 1e3).collect());
        let times = median(rounds.iter().map(|round| round[number] / round[0]).collect());
        println!("{name:<38} {us:>8.2} us a get, {times:.3} x");
    }
    Ok(())
}
