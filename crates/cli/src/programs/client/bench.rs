//! `farleaf client bench`: a closed loop per client, with several operations in flight.

use super::commands::{ScanOutputPart, parts};
use super::tally::{ClientProgress, ClientTally};
use super::{AbandonSignal, ClusterAccess, CommandOutcome};
use crate::programs::layout::INLINE_BYTES;
use anyhow::Context;
use clap::Args;
use farleaf_bench::InputError;
use farleaf_bench::driver::{
    DueMoment, KeyValueForm, MeasurementMoment, NumberForm, WorkAmount, execute, first_key,
};
use farleaf_bench::input::{CsvOptions, KeySample, read_records};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::strings::{KeyForm, StringForm};
use farleaf_bench::workload::{
    Distribution, HarnessDeviations, InsertedCounts, OperationMix, OperationStream, StreamConfig,
};
use farleaf_cluster::client::ClusterConnection;
use farleaf_cluster::layouts::{ClusterLayout, LayoutName};
use farleaf_command_line::{output, units, usage};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_index::{IndexAdmin, IndexError, RangeIndex};
use farleaf_page::{Bytes, CHOSEN, OwnedKey};
use farleaf_pool::wire::MAX_VALUE_BYTES;
use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The form of byte strings; `None` for numbers.
type ClientKeyForm = Option<KeyForm>;

/// Options of `farleaf client bench`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf client --dir /tmp/farleaf bench --load --workload ycsb-b --keys 1M \
    --operations 1M --in-flight 64\n  farleaf client --dir /tmp/farleaf bench --keys-from keys.csv --seconds 30 \
    --distribution zipfian:0.99\n  farleaf client --dir /tmp/farleaf bench --existing --seconds 10\n\nLatencies are those of a closed loop: a client sends the next operation when it has \
    the answer. They do not include failed operations.\n\nExit codes: 0 success, 1 failure, also of operations, \
    2 invalid command line or file."
)]
pub(crate) struct ClientBenchArguments {
    /// Run this mix of operations: `farleaf-lab bench --help` lists the names [default: ycsb-b,
    /// with --existing read-only]
    #[arg(long, value_name = "NAME", value_parser = mix)]
    workload: Option<OperationMix>,
    /// Use this many keys, evenly spread over all 64-bit numbers
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    keys: u64,
    /// Take keys of this form: `u64`, or in a cluster of byte strings `ycsb` (user and 19 digits),
    /// `dlsm` (20 digits), `urls` (generated), or the lines of `file:PATH`, with numbers behind
    /// them if they are fewer than the keys [default: what the cluster has: u64 or ycsb]
    #[arg(long, value_name = "FORM", value_parser = units::key_form)]
    key_form: Option<ClientKeyForm>,
    /// Give byte strings values of N bytes, or of A to B bytes [default: 8]
    #[arg(long, value_name = "N|A-B", value_parser = units::value_bytes)]
    value_bytes: Option<RangeInclusive<usize>>,
    /// Use the numbers of this CSV file as keys instead, plain, gzip or zstd, as for `farleaf
    /// client load`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["keys", "key_form"])]
    keys_from: Option<PathBuf>,
    /// Take the keys from this column of that file [default: `key`, or the first of a file without
    /// a header]
    #[arg(long, value_name = "NAME", requires = "keys_from")]
    key_column: Option<String>,
    /// Use keys that the index has instead, an even sample of up to --keys. It is scanned first.
    /// Workloads with changes change these records
    #[arg(long, conflicts_with_all = ["key_form", "keys_from", "load"])]
    existing: bool,
    /// Load the keys first, into an empty index
    #[arg(long)]
    load: bool,
    /// Draw keys from this distribution: uniform, zipfian:THETA or latest:THETA
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    distribution: Distribution,
    /// Keep popular keys next to each other instead of scattering them by a hash
    #[arg(long)]
    clustered: bool,
    /// Make other keys popular during the run: at a fraction of it, such as `50%`, or after this
    /// many seconds. For zipfian distributions
    #[arg(long, value_name = "PERCENT%|S", value_parser = units::moment)]
    shift_hotspot_at: Option<MeasurementMoment>,
    /// Move popular keys up by this percentage of the keys, wrapping around
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "50",
        value_parser = units::part,
        requires = "shift_hotspot_at"
    )]
    shift_hotspot_by: f64,
    /// Run this many operations, of all clients together
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::positive)]
    operations: u64,
    /// Run for this many seconds instead
    #[arg(long, value_name = "S", value_parser = units::seconds, conflicts_with = "operations")]
    seconds: Option<f64>,
    /// Give up after this many failures in a row between one client and one compute server
    #[arg(long, value_name = "N", default_value = "100", value_parser = units::positive)]
    most_failures: u64,
    /// Run this many clients, each with its own thread and connections
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 256))]
    clients: u16,
    /// Keep this many operations of each client in flight
    #[arg(long, value_name = "N", default_value = "64", value_parser = units::limited::<u16>(1, 1024))]
    in_flight: u16,
    /// Seed the random numbers
    #[arg(long, value_name = "SEED", default_value = "1", value_parser = units::seed)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn mix(name: &str) -> Result<OperationMix, String> {
    OperationMix::named(name).map_err(|error| error.to_string())
}

/// The keys of a run.
struct ClientBenchKeys {
    /// The keys, by number.
    keys: KeySpace,
    /// The form's name, and the average bytes of a key and of a value.
    form: String,
    bytes: (f64, f64),
}

/// A sample of at most `most` keys of the index.
fn existing_keys<L: ClusterLayout>(
    connection: &ClusterConnection<L>,
    most: u64,
    abandon: &AbandonSignal,
) -> anyhow::Result<Vec<OwnedKey<L>>> {
    let bar = output::bar("records", None);
    let sampled = connection.run(async |client| {
        let mut sample = KeySample::new(usize::try_from(most).unwrap_or(usize::MAX));
        parts::<L>(&client, ScanOutputPart::everything(), |records| {
            records.iter().for_each(|(key, _)| sample.offer(key.clone()));
            bar.inc(records.len() as u64);
            abandon.check()
        })
        .await?;
        Ok::<_, anyhow::Error>(sample.into_sorted())
    })?;
    bar.finish_and_clear();
    anyhow::ensure!(!sampled.is_empty(), "--existing: the index is empty");
    Ok(sampled)
}

impl ClientBenchArguments {
    /// The mix of operations.
    fn mix(&self) -> anyhow::Result<OperationMix> {
        let default = if self.existing { "read-only" } else { "ycsb-b" };
        Ok(match &self.workload {
            Some(mix) => mix.clone(),
            None => OperationMix::named(default)?,
        })
    }

    fn numbers(
        &self,
        connection: &ClusterConnection,
        abandon: &AbandonSignal,
    ) -> anyhow::Result<ClientBenchKeys> {
        if !matches!(self.key_form, None | Some(None)) || self.value_bytes.is_some() {
            return usage(
                "--key-form of byte strings and --value-bytes are for byte strings, and this \
                 cluster has u64 keys",
            );
        }
        let keys = match self.existing {
            true => {
                let keys = existing_keys(connection, self.keys, abandon)?;
                let records: Vec<_> = keys.into_iter().map(|key| (key, 0)).collect();
                KeySpace::listed(&records).context("a scan ascends")?
            }
            false => self.key_space()?,
        };
        Ok(ClientBenchKeys { keys, form: "u64".to_owned(), bytes: (8.0, 8.0) })
    }

    fn strings(
        &self,
        connection: &ClusterConnection<Bytes<CHOSEN>>,
        abandon: &AbandonSignal,
    ) -> anyhow::Result<(ClientBenchKeys, StringForm<CHOSEN>)> {
        if self.keys_from.is_some() {
            return usage(
                "--keys-from is for numbers, and this cluster has byte strings: use --key-form \
                 file:PATH",
            );
        }
        let form = match &self.key_form {
            None => &KeyForm::Ycsb,
            Some(Some(form)) => form,
            Some(None) => {
                return usage("--key-form u64 is for numbers, and this cluster has byte strings");
            }
        };
        let values = self.value_bytes.clone().unwrap_or(8..=8);
        let grows = self.mix()?.insert_share() > 0.0;
        if *values.end() > MAX_VALUE_BYTES {
            return usage(format!(
                "--value-bytes: a message has values of at most {MAX_VALUE_BYTES} bytes"
            ));
        }
        let inline = Some(INLINE_BYTES);
        let (form, strings) = match self.existing {
            true => {
                let keys = existing_keys(connection, self.keys, abandon)?;
                ("existing".to_owned(), StringForm::listed(keys, values, inline, grows))
            }
            false => {
                (form.to_string(), StringForm::with_blocks(form, self.keys, values, inline, grows))
            }
        };
        let strings = strings.or_else(|error| usage(error.to_string()))?;
        let (keys, bytes) = (strings.keys().clone(), strings.record_bytes());
        Ok((ClientBenchKeys { keys, form, bytes }, strings.undecoded()))
    }

    fn key_space(&self) -> anyhow::Result<KeySpace> {
        let Some(path) = &self.keys_from else { return Ok(KeySpace::spread(self.keys)) };
        let csv = CsvOptions { key: self.key_column.clone(), ..Default::default() };
        let input = read_records(path, &csv)?;
        let empty = || InputError::Empty { path: path.clone() };
        Ok(KeySpace::listed(&input.records).ok_or_else(empty)?)
    }

    fn amount(&self) -> WorkAmount {
        match self.seconds {
            Some(seconds) => WorkAmount::Nanoseconds((seconds * 1e9) as u64),
            None => WorkAmount::Operations(self.operations),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        let is_zipfian = matches!(self.distribution, Distribution::Zipfian { .. });
        if self.shift_hotspot_at.is_some() && !is_zipfian {
            return usage(format!(
                "--shift-hotspot-at needs --distribution zipfian:THETA: {} has no hotspot",
                self.distribution
            ));
        }
        Ok(())
    }
}

/// One client and its work.
struct BenchClientLoop<'a, I, F> {
    index: &'a I,
    fabric: &'a F,
    stream: RefCell<OperationStream>,
    tally: RefCell<ClientTally>,
    /// Remaining operations; below, the time after which no operation begins.
    left: Cell<u64>,
    until_ns: u64,
    begun: Cell<u64>,
    shift: Cell<Option<DueMoment>>,
    arguments: &'a ClientBenchArguments,
    abandon: &'a AbandonSignal,
    progress: &'a ClientProgress,
}

impl<I: IndexAdmin<Key = u64, Value = u64>, F: Fabric> BenchClientLoop<'_, I, F> {
    /// One of the concurrent tasks that share the client.
    async fn work(&self) {
        let fabric = self.fabric;
        loop {
            let begin_ns = fabric.now_ns();
            if self.left.get() == 0
                || begin_ns >= self.until_ns
                || self.abandon.is_wished()
                || self.progress.has_given_up()
            {
                return;
            }
            if let Some(due) = self.shift.get()
                && (self.begun.get() >= due.operations || begin_ns >= due.ns)
            {
                self.stream.borrow_mut().shift_hotspot(self.arguments.shift_hotspot_by / 100.0);
                self.shift.set(None);
            }
            self.left.set(self.left.get() - 1);
            self.begun.set(self.begun.get() + 1);
            let next = self.stream.borrow_mut().next();
            let Some(operation) = next else {
                self.progress.give_up("the key space has no room for another new key".to_owned());
                return;
            };
            let batch = self.stream.borrow().batch().to_vec();
            let owner = first_key(&operation, &batch)
                .and_then(|key| self.index.compute_server_of(&key))
                .unwrap_or_default();
            let outcome = execute(fabric, self.index, operation, &batch).await;
            let now_ns = fabric.now_ns();
            self.progress.count(outcome.is_err(), now_ns);
            let error = outcome.as_ref().err().map(IndexError::to_string).unwrap_or_default();
            let in_a_row =
                self.tally.borrow_mut().record(&operation, owner, outcome, now_ns - begin_ns);
            if in_a_row >= self.arguments.most_failures {
                self.progress.give_up(format!(
                    "gave up after {in_a_row} failures in a row at compute server {owner}: {error}"
                ));
            }
        }
    }
}

async fn load(
    index: &impl RangeIndex<Key = u64, Value = u64>,
    fabric: &impl Fabric,
    keys: &KeySpace,
    abandon: &AbandonSignal,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<u64> {
    let start_ns = fabric.now_ns();
    let records = keys.records().map(|record| {
        abandon.check()?;
        bar.inc(1);
        Ok::<_, anyhow::Error>(record)
    });
    index.try_bulk_load(records, 0.7).await.context("cannot load the keys")?;
    Ok(fabric.now_ns() - start_ns)
}

/// Runs the benchmark; the outcome is `Done` only if no operation failed.
pub(super) fn run(
    access: &ClusterAccess,
    arguments: &ClientBenchArguments,
    abandon: &AbandonSignal,
) -> anyhow::Result<CommandOutcome> {
    arguments.check()?;
    let located = access.locate(usize::from(arguments.in_flight).max(64) * 2)?;
    match located.layout() {
        LayoutName::Numbers => {
            let connection = located.connect()?;
            let loaded = arguments.numbers(&connection, abandon)?;
            run_on(&connection, &NumberForm, loaded, arguments, abandon)
        }
        strings => {
            Bytes::choose(strings.page_words());
            let connection = located.connect()?;
            let (loaded, form) = arguments.strings(&connection, abandon)?;
            run_on(&connection, &form, loaded, arguments, abandon)
        }
    }
}

fn run_on<O: KeyValueForm<Layout: ClusterLayout>>(
    connection: &ClusterConnection<O::Layout>,
    form: &O,
    loaded: ClientBenchKeys,
    arguments: &ClientBenchArguments,
    abandon: &AbandonSignal,
) -> anyhow::Result<CommandOutcome> {
    let keys = &loaded.keys;
    let mut load_ns = None;
    if arguments.load {
        let bar = output::bar("records", None);
        load_ns = Some(connection.run(async |client| {
            let fabric = client.fabric().clone();
            load(&form.by_number(client), &fabric, keys, abandon, &bar).await
        })?);
        bar.finish_and_clear();
    }
    let config = StreamConfig {
        mix: arguments.mix()?,
        distribution: arguments.distribution,
        clustered: arguments.clustered,
        keys: keys.clone(),
        seed: arguments.seed,
        harness: HarnessDeviations::default(),
    };
    let clients = usize::from(arguments.clients);
    let inserted = Arc::new(InsertedCounts::new(clients, 0));
    let progress = ClientProgress::new(arguments.seconds.is_none().then_some(arguments.operations));
    let outcomes = connection.run_all(clients, async |client, number| {
        let fabric = client.fabric().clone();
        let index = form.by_number(client);
        let start_ns = fabric.now_ns();
        progress.start(start_ns);
        let amount = arguments.amount().share(number, clients);
        let (left, until_ns) = match amount {
            WorkAmount::Operations(operations) => (operations, u64::MAX),
            WorkAmount::Nanoseconds(ns) => (u64::MAX, start_ns.saturating_add(ns)),
        };
        let work = BenchClientLoop {
            index: &index,
            fabric: &fabric,
            stream: RefCell::new(OperationStream::new(&config, number, &inserted)),
            tally: RefCell::new(ClientTally::new(start_ns)?),
            left: Cell::new(left),
            until_ns,
            begun: Cell::new(0),
            shift: Cell::new(arguments.shift_hotspot_at.map(|at| at.due(amount, start_ns))),
            arguments,
            abandon,
            progress: &progress,
        };
        futures_util::future::join_all((0..arguments.in_flight).map(|_| work.work())).await;
        let mut tally = work.tally.into_inner();
        tally.end_ns = fabric.now_ns();
        Ok::<_, anyhow::Error>(tally)
    });
    let gave_up = progress.end();
    let mut tallies = outcomes.into_iter().collect::<anyhow::Result<Vec<_>>>()?.into_iter();
    let mut tally = tallies.next().context("a client has run")?;
    tallies.try_for_each(|other| tally.add(other))?;
    report(arguments, &loaded, load_ns, &tally)?;
    Ok(match gave_up.or_else(|| tally.trouble()) {
        Some(why) => CommandOutcome::No(why),
        None => CommandOutcome::Done,
    })
}

fn report(
    arguments: &ClientBenchArguments,
    loaded: &ClientBenchKeys,
    load_ns: Option<u64>,
    tally: &ClientTally,
) -> anyhow::Result<()> {
    let keys = loaded.keys.len();
    let load_keys_per_s = load_ns.map(|ns| keys as f64 / (ns as f64 / 1e9));
    if arguments.json {
        let json = serde_json::json!({
            "workload": arguments.mix()?.name,
            "keys": keys,
            "key_form": loaded.form,
            "key_bytes": loaded.bytes.0,
            "value_bytes": loaded.bytes.1,
            "clients": arguments.clients,
            "in_flight": arguments.in_flight,
            "operations": tally.operations(),
            "seconds": tally.seconds(),
            "operations_per_s": tally.done_per_second(),
            "absent": tally.absent,
            "present": tally.present,
            "missed": tally.absent + tally.present,
            "failed": tally.failed,
            "indeterminate": tally.unknown,
            "latency_p50_us": tally.microseconds(0.5),
            "latency_p99_us": tally.microseconds(0.99),
            "latency_p999_us": tally.microseconds(0.999),
            "load_keys_per_s": load_keys_per_s,
        });
        println!("{}", serde_json::to_string_pretty(&json)?);
    } else {
        println!("{}", tally.table(load_keys_per_s));
    }
    Ok(())
}
