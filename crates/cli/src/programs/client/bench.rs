//! `farleaf client bench`: closed loops of clients, several operations of each in flight.

use super::{Abandon, Patience, connect};
use crate::output;
use crate::programs::Place;
use anyhow::Context;
use clap::Args;
use comfy_table::{Table, presets};
use farleaf::index::{IndexError, RangeIndex};
use farleaf_bench::driver::execute;
use farleaf_bench::keys::KeySpace;
use farleaf_bench::workload::{Distribution, Inserted, Mix, OperationStream, StreamConfig};
use farleaf_cluster::client::Client;
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use hdrhistogram::Histogram;
use std::cell::RefCell;

/// The options of `farleaf client bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  farleaf client --dir /tmp/farleaf bench --load --workload ycsb-b --keys 1M \
    --operations 1M --in-flight 64\n\nLatencies are those of a closed loop: a client asks for the next thing when it has \
    the answer."
)]
pub(crate) struct Arguments {
    /// The mix of operations: `farleaf bench --help` lists the names
    #[arg(long, value_name = "NAME", default_value = "ycsb-b", value_parser = mix)]
    workload: Mix,
    /// How many keys there are
    #[arg(long, value_name = "N", default_value = "1M", value_parser = crate::units::positive)]
    keys: u64,
    /// Load the keys first, into an empty index
    #[arg(long)]
    load: bool,
    /// How often which key: uniform, zipfian:THETA, ..
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    distribution: Distribution,
    /// Operations of all clients together
    #[arg(long, value_name = "N", default_value = "1M", value_parser = crate::units::positive)]
    operations: u64,
    /// Clients, each on a thread and connections of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// Operations that each client has in flight
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=1024))]
    in_flight: u16,
    /// Where randomness starts
    #[arg(long, value_name = "SEED", default_value = "1")]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn mix(name: &str) -> Result<Mix, String> {
    Mix::named(name).map_err(|error| error.to_string())
}

/// What one client brings home.
struct Measured {
    latency_ns: Histogram<u64>,
    missed: u64,
    failed: u64,
    indeterminate: u64,
    start_ns: u64,
    end_ns: u64,
}

impl Measured {
    fn record(&mut self, outcome: Result<bool, IndexError>, ns: u64) {
        match outcome {
            Ok(true) => {}
            Ok(false) => self.missed += 1,
            Err(IndexError::Indeterminate(_)) => self.indeterminate += 1,
            Err(_) => self.failed += 1,
        }
        self.latency_ns.saturating_record(ns);
    }
}

/// One of the loops that share a client.
async fn work(
    client: &Client,
    stream: &RefCell<OperationStream>,
    left: &RefCell<u64>,
    measured: &RefCell<Measured>,
    abandon: &Abandon,
    count: &dyn Fn(u64),
) {
    let fabric = client.fabric();
    loop {
        if *left.borrow() == 0 || abandon.is_wished() {
            return;
        }
        *left.borrow_mut() -= 1;
        let next = stream.borrow_mut().next();
        let Some(operation) = next else {
            let full = IndexError::InvalidArgument("the key space has no room for a new key");
            measured.borrow_mut().record(Err(full), 0);
            continue;
        };
        let batch = stream.borrow().batch().to_vec();
        let begin_ns = fabric.now_ns();
        let outcome = execute(client, operation, &batch).await;
        let ns = fabric.now_ns() - begin_ns;
        measured.borrow_mut().record(outcome, ns);
        count(1);
    }
}

async fn load(
    client: &Client,
    keys: &KeySpace,
    abandon: &Abandon,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<u64> {
    let start_ns = client.fabric().now_ns();
    let records = keys.records().take_while(|_| !abandon.is_wished()).inspect(|_| bar.inc(1));
    client.bulk_load(records, 0.7).await.context("the keys cannot be loaded")?;
    abandon.check()?;
    Ok(client.fabric().now_ns() - start_ns)
}

/// Measures; true unless everything failed.
pub(super) fn run(
    place: &Place,
    patience: &Patience,
    arguments: &Arguments,
    abandon: &Abandon,
) -> anyhow::Result<bool> {
    let connection = connect(place, patience, usize::from(arguments.in_flight).max(64) * 2)?;
    let keys = KeySpace::spread(arguments.keys);
    let mut load_ns = None;
    if arguments.load {
        let bar = output::bar("records", None);
        load_ns = Some(connection.run(async |client| load(&client, &keys, abandon, &bar).await)?);
        bar.finish_and_clear();
    }
    let config = StreamConfig {
        mix: arguments.workload.clone(),
        distribution: arguments.distribution,
        clustered: false,
        keys,
        seed: arguments.seed,
    };
    let clients = usize::from(arguments.clients);
    let inserted = Arc::new(Inserted::new(clients, 0));
    let bar = output::bar("operations", Some(arguments.operations));
    let outcomes = connection.run_all(clients, async |client, number| {
        let share = arguments.operations / clients as u64;
        let extra = u64::from((number as u64) < arguments.operations % clients as u64);
        let left = RefCell::new(share + extra);
        let stream = RefCell::new(OperationStream::new(&config, number, &inserted));
        let start_ns = client.fabric().now_ns();
        let measured = RefCell::new(Measured {
            latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
            missed: 0,
            failed: 0,
            indeterminate: 0,
            start_ns,
            end_ns: start_ns,
        });
        let count = |done| bar.inc(done);
        let loops = (0..arguments.in_flight)
            .map(|_| work(&client, &stream, &left, &measured, abandon, &count));
        futures_util::future::join_all(loops).await;
        let mut measured = measured.into_inner();
        measured.end_ns = client.fabric().now_ns();
        Ok::<_, anyhow::Error>(measured)
    });
    bar.finish_and_clear();
    let measured = outcomes.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    report(arguments, load_ns, &measured)
}

fn report(
    arguments: &Arguments,
    load_ns: Option<u64>,
    measured: &[Measured],
) -> anyhow::Result<bool> {
    let mut latency_ns = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    for one in measured {
        latency_ns.add(&one.latency_ns)?;
    }
    let sum = |of: fn(&Measured) -> u64| measured.iter().map(of).sum::<u64>();
    let (missed, failed) = (sum(|one| one.missed), sum(|one| one.failed));
    let indeterminate = sum(|one| one.indeterminate);
    let start_ns = measured.iter().map(|one| one.start_ns).min().unwrap_or(0);
    let end_ns = measured.iter().map(|one| one.end_ns).max().unwrap_or(0);
    let seconds = end_ns.saturating_sub(start_ns) as f64 / 1e9;
    let per_second = latency_ns.len() as f64 / seconds.max(1e-9);
    let microseconds = |quantile| latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    if arguments.json {
        let json = serde_json::json!({
            "workload": arguments.workload.name,
            "keys": arguments.keys,
            "clients": arguments.clients,
            "in_flight": arguments.in_flight,
            "operations": latency_ns.len(),
            "operations_per_s": per_second,
            "missed": missed,
            "failed": failed,
            "indeterminate": indeterminate,
            "latency_p50_us": microseconds(0.5),
            "latency_p99_us": microseconds(0.99),
            "latency_p999_us": microseconds(0.999),
            "load_keys_per_s": load_ns.map(|ns| arguments.keys as f64 / (ns as f64 / 1e9)),
        });
        println!("{}", serde_json::to_string_pretty(&json)?);
    } else {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["", "figure"]);
        if let Some(ns) = load_ns {
            let rate = arguments.keys as f64 / (ns as f64 / 1e9);
            table.add_row(["keys loaded per second".into(), format!("{rate:.0}")]);
        }
        table.add_row(["operations".into(), latency_ns.len().to_string()]);
        table.add_row(["operations per second".into(), format!("{per_second:.0}")]);
        table.add_row(["found nothing, or something".into(), missed.to_string()]);
        table.add_row(["failed".into(), failed.to_string()]);
        table.add_row(["outcome unknown".into(), indeterminate.to_string()]);
        for (name, quantile) in [("median", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            table
                .add_row([format!("latency, {name}"), format!("{:.1} us", microseconds(quantile))]);
        }
        println!("{table}");
    }
    Ok(failed + indeterminate < latency_ns.len())
}
