//! What the door costs: gets one after another through a kept handle, beside the same gets by a
//! client that owns its thread. Needs a cluster:
//!
//! ```console
//! $ farleaf cluster --dir /tmp/farleaf --memory-servers 1 --compute-servers 1
//! $ cargo run --release -p farleaf --example latency -- /tmp/farleaf
//! ```

use farleaf::Index;
use farleaf_cluster::client::{Connection, ConnectionConfig};
use farleaf_cluster::config::read_token;
use farleaf_cluster::launch::Folder;
use farleaf_core::index::{IndexError, RangeIndex};
use farleaf_fabric::provider::Clock;
use std::time::Duration;

const GETS: u64 = 1_000;
const ROUNDS: usize = 21;

/// The median of several rounds, in nanoseconds for each get.
fn median(mut round: impl FnMut() -> u64) -> f64 {
    let mut rounds: Vec<u64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_unstable();
    rounds[ROUNDS / 2] as f64 / GETS as f64
}

async fn gets(index: &Index, clock: &Clock) -> u64 {
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
    let clock = Clock::start();
    let index = farleaf::connect(&dir)?;
    index.upsert_all((0..GETS).map(|key| (key, key)).collect::<Vec<_>>()).wait()?;

    let folder = Folder(dir.into());
    let connection = Connection::open(&ConnectionConfig {
        cluster: "default".to_owned(),
        catalog: folder.catalog()?,
        token: read_token(&folder.token())?,
        deadline: Duration::from_secs(5),
        depth: 256,
    })?;
    let direct_ns = median(|| {
        let took = connection.run(async |client| {
            client.get(&0).await?; // connects
            let start_ns = clock.now_ns();
            for key in 0..GETS {
                assert_eq!(client.get(&key).await?, Some(key));
            }
            Ok::<_, IndexError>(clock.now_ns() - start_ns)
        });
        took.expect("the cluster serves")
    });
    let say = |name: &str, ns: f64| {
        println!("{name:<38} {:>7.1} us a get, {:.2} x", ns / 1e3, ns / direct_ns);
    };
    say("Connection::run, its own thread", direct_ns);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    say("a kept handle, tokio current-thread", median(|| runtime.block_on(gets(&index, &clock))));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let spawned = || {
        let (index, clock) = (index.clone(), clock.clone());
        let task = runtime.spawn(async move { gets(&index, &clock).await });
        runtime.block_on(task).expect("the task ends")
    };
    say("a kept handle, tokio multi-thread", median(spawned));
    let blocking = || {
        let start_ns = clock.now_ns();
        for key in 0..GETS {
            assert_eq!(index.get(key).wait().expect("the cluster serves"), Some(key));
        }
        clock.now_ns() - start_ns
    };
    say("a kept handle, a plain thread", median(blocking));
    let embedded = farleaf::Embedded::open(farleaf::EmbeddedOptions::default())?;
    embedded.bulk_load((0..GETS).map(|key| (key, key))).wait()?;
    let cached = || {
        let start_ns = clock.now_ns();
        for key in 0..GETS {
            assert_eq!(embedded.get(key).wait().expect("it is here"), Some(key));
        }
        clock.now_ns() - start_ns
    };
    println!("{:<38} {:>7.3} us a get", "embedded, a plain thread", median(cached) / 1e3);
    Ok(())
}
