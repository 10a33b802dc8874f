//! Compares Farleaf with well-maintained in-memory ordered indexes: one process, the same keys,
//! operations and threads.
//!
//! ```console
//! $ cargo run --release -p farleaf-compare -- --keys 2M --threads 1,2 --workload write-intensive
//! ```
//!
//! `local` is the tree of Farleaf's memory servers, called directly. Compared with other indexes,
//! it shows the quality of the pages and latches. Compared with `local`, the other designs show the
//! cost of their protocols on a free network. (`farleaf-lab bench --fabric sim` shows their cost on
//! a realistic one.) Each round runs every contender once, in rotating order, so that other load on
//! the machine affects all of them. Figures are medians over the rounds; only their ratios are
//! reliable.
//!
//! Contenders:
//!
//! - `local`, `coarse`, `fine`, `hybrid`: Farleaf's designs. To add one, add a line to
//!   `designs.rs`.
//! - [`bf-tree`](https://docs.rs/bf-tree): Bf-Tree in memory, cache-only, with a buffer that holds
//!   all records.
//! - [`congee`](https://docs.rs/congee): an adaptive radix tree with optimistic lock coupling.
//! - [`crossbeam-skiplist`](https://docs.rs/crossbeam-skiplist): a lock-free skip list.
//! - `RwLock<BTreeMap>`: the standard library's map behind one lock.
//! - [`redb`](https://docs.rs/redb): a transactional store of byte strings, in memory.
//!
//! With `--key-form`, keys are byte strings, and the contenders are `local`, `dex`, Bf-Tree, redb,
//! the skip list and the locked map. congee only supports keys of 8 bytes.
//!
//! `farleaf-compare lsm` compares dLSM with LSM engines instead; see `lsm/`.
//!
//! All of them build on the stable toolchain that the workspace pins. This crate is a member of the
//! workspace, so that the lints cover it, but not a default member, so that ordinary builds skip
//! the other indexes.

#![forbid(unsafe_code)]

mod contender;
mod designs;
mod keys;
mod lsm;
mod maps;

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use contender::{Contender, ContenderRound, measure, verify};
use farleaf_bench::keys::KeySpace;
use farleaf_bench::strings::KeyForm;
use farleaf_bench::workload::{
    Distribution, HarnessDeviations, OperationKind, OperationMix, StreamConfig,
};
use keys::{ByteKeys, LoadedKeys};
use serde::Serialize;
use std::io::Write;
use std::time::Duration;

/// Compare Farleaf's tree and designs with other ordered indexes in memory.
#[derive(Debug, Parser)]
#[command(
    name = "farleaf-compare",
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct CompareArguments {
    #[command(subcommand)]
    other: Option<OtherComparison>,
    /// Load this many keys, evenly spread over all 64-bit numbers; k, M and G may follow the number
    #[arg(long, value_name = "N", default_value = "2M", value_parser = count)]
    keys: u64,
    /// Take byte strings as keys: `ycsb` (user and 19 digits), `dlsm` (20 digits), `urls`
    /// (generated), or the lines of `file:PATH`, with numbers appended if there are more keys than
    /// lines. Values have 8 bytes
    #[arg(long, value_name = "FORM")]
    key_form: Option<KeyForm>,
    /// Run each contender for this many seconds in each round
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Run each contender in this many rounds
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run with each of these numbers of threads, one table row for each
    #[arg(
        long,
        value_name = "N,N,…",
        value_delimiter = ',',
        default_value = "1,2",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    threads: Vec<u16>,
    /// Give the designs this many operations in one call, one table row for each; the other indexes
    /// have only single operations
    #[arg(
        long,
        value_name = "N,N,…",
        value_delimiter = ',',
        default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    batch: Vec<u16>,
    /// Let threads run `read-only`, `write-intensive` (50 lookups, 50 updates), or another workload
    /// of `farleaf-lab bench` that has only lookups and updates
    #[arg(long, value_name = "NAME", default_value = "read-only", value_parser = lookups_and_updates)]
    workload: OperationMix,
    /// Draw keys from this distribution: `uniform` or `zipfian:THETA`
    #[arg(long, value_name = "KIND", default_value = "uniform")]
    distribution: Distribution,
    /// Run only these contenders; `local` is always one of them
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Seed the random numbers
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Write one JSON object to stdout instead of the table
    #[arg(long)]
    json: bool,
}

/// Comparisons of other things than ordered indexes in memory.
#[derive(Debug, Subcommand)]
enum OtherComparison {
    Lsm(lsm::LsmArguments),
}

/// Parses a positive integer with an optional suffix k, M or G.
fn count(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().next_back() {
        Some((end, 'k')) => (&text[..end], 1_000),
        Some((end, 'M')) => (&text[..end], 1_000_000),
        Some((end, 'G')) => (&text[..end], 1_000_000_000),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    number.filter(|number| *number > 0).ok_or_else(|| "expected a number such as 500k or 2M".into())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected from 0.001 to 3600".into())
}

fn lookups_and_updates(name: &str) -> Result<OperationMix, String> {
    let mix = OperationMix::named(name).map_err(|error| error.to_string())?;
    let simple = |(kind, _): &(OperationKind, u32)| {
        matches!(kind, OperationKind::Get | OperationKind::Update)
    };
    match mix.operations.iter().all(simple) {
        true => Ok(mix),
        false => Err(format!("{name} has operations other than lookups and updates")),
    }
}

/// The measured results and the settings that produced them.
#[derive(Debug, Serialize)]
struct Comparison {
    keys: u64,
    /// The form of byte strings; `u64` for numbers.
    key_form: String,
    workload: String,
    distribution: String,
    seconds: f64,
    rounds: u32,
    seed: u64,
    rows: Vec<ContenderRow>,
}

/// The result of one contender at one number of threads.
#[derive(Debug, Serialize)]
struct ContenderRow {
    contender: &'static str,
    threads: u16,
    /// Number of operations in one call.
    batch: u16,
    median_m_ops_per_s: f64,
    min_m_ops_per_s: f64,
    max_m_ops_per_s: f64,
    /// Its median divided by that of `local` with single operations.
    ratio_to_local: f64,
}

/// The baseline's name.
const LOCAL: &str = "local";

/// A contender's measurement is preceded by a warm-up of one part in this many of its time, because
/// its predecessor has filled the processor's caches with its own data.
const WARM_UP_PART: u32 = 10;

fn main() -> anyhow::Result<()> {
    let arguments = CompareArguments::parse();
    let text = match &arguments.other {
        Some(OtherComparison::Lsm(arguments)) => {
            let comparison = lsm::compare(arguments)?;
            match arguments.json {
                true => serde_json::to_string_pretty(&comparison)?,
                false => lsm::render(&comparison),
            }
        }
        None => {
            let comparison = compare(&arguments)?;
            match arguments.json {
                true => serde_json::to_string_pretty(&comparison)?,
                false => render(&comparison),
            }
        }
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}

fn compare(arguments: &CompareArguments) -> anyhow::Result<Comparison> {
    match &arguments.key_form {
        None => {
            let keys = KeySpace::spread(arguments.keys);
            let all = designs::all(&keys)?.into_iter().chain(maps::all());
            compare_on(arguments, &keys, all.collect())
        }
        Some(form) => {
            // The keys that must be absent are longer than loaded ones.
            let keys = ByteKeys::new(form, arguments.keys, 8..=8, true)?;
            let all = designs::of_bytes(&keys)?.into_iter().chain(maps::of_bytes());
            compare_on(arguments, &keys, all.collect())
        }
    }
}

fn compare_on<K: LoadedKeys>(
    arguments: &CompareArguments,
    keys: &K,
    all: Vec<Box<dyn Contender<K>>>,
) -> anyhow::Result<Comparison> {
    let contenders = contenders(arguments, keys, all)?;
    let entries = entries(arguments, &contenders);
    let mut rows = Vec::new();
    for threads in &arguments.threads {
        let samples = rounds(arguments, keys, *threads, &entries)?;
        let mut local = f64::NAN;
        for ((contender, batch), mut samples) in entries.iter().zip(samples) {
            samples.sort_by(f64::total_cmp);
            let median = median(&samples);
            if contender.name() == LOCAL && *batch == 1 {
                local = median;
            }
            rows.push(ContenderRow {
                contender: contender.name(),
                threads: *threads,
                batch: *batch,
                median_m_ops_per_s: median,
                min_m_ops_per_s: samples[0],
                max_m_ops_per_s: samples[samples.len() - 1],
                ratio_to_local: median / local,
            });
        }
    }
    Ok(Comparison {
        keys: arguments.keys,
        key_form: arguments.key_form.as_ref().map_or("u64".to_owned(), KeyForm::to_string),
        workload: arguments.workload.name.to_string(),
        distribution: arguments.distribution.to_string(),
        seconds: arguments.seconds.as_secs_f64(),
        rounds: arguments.rounds,
        seed: arguments.seed,
        rows,
    })
}

/// Loads and checks the requested contenders, `local` first.
fn contenders<K: LoadedKeys>(
    arguments: &CompareArguments,
    keys: &K,
    mut all: Vec<Box<dyn Contender<K>>>,
) -> anyhow::Result<Vec<Box<dyn Contender<K>>>> {
    ensure!(all[0].name() == LOCAL, "the baseline must come first");
    let names: Vec<_> = all.iter().map(|contender| contender.name()).collect();
    if let Some(unknown) = arguments.only.iter().find(|name| !names.contains(&name.as_str())) {
        anyhow::bail!("unknown contender {unknown}: expected one of {}", names.join(", "));
    }
    all.retain(|contender| {
        let name = contender.name();
        arguments.only.is_empty() || name == LOCAL || arguments.only.iter().any(|one| one == name)
    });
    for contender in &mut all {
        let name = contender.name();
        contender.load(keys).with_context(|| format!("cannot load {name}"))?;
        verify(&**contender, keys)?;
        eprintln!("{name}: {} keys loaded and checked", keys.space().len());
    }
    Ok(all)
}

/// A contender, and the number of operations that it gets in one call.
type ContenderEntry<'a, K> = (&'a dyn Contender<K>, u16);

/// The entries of a round: each contender with single operations and, where supported, with groups.
fn entries<'a, K: LoadedKeys>(
    arguments: &CompareArguments,
    contenders: &'a [Box<dyn Contender<K>>],
) -> Vec<ContenderEntry<'a, K>> {
    let batches = || [1].into_iter().chain(arguments.batch.iter().copied().filter(|n| *n > 1));
    let of = |contender: &'a dyn Contender<K>| {
        let batches = batches().filter(|batch| *batch == 1 || contender.has_groups());
        batches.map(move |batch| (contender, batch))
    };
    contenders.iter().map(AsRef::as_ref).flat_map(of).collect()
}

/// Runs all rounds and returns the samples of each entry.
fn rounds<K: LoadedKeys>(
    arguments: &CompareArguments,
    keys: &K,
    threads: u16,
    entries: &[ContenderEntry<'_, K>],
) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut samples = vec![Vec::new(); entries.len()];
    for round in 0..arguments.rounds {
        let config = StreamConfig {
            mix: arguments.workload.clone(),
            distribution: arguments.distribution,
            clustered: false,
            keys: keys.space().clone(),
            seed: arguments.seed.wrapping_add(round.into()),
            harness: HarnessDeviations::default(),
        };
        let mut work = ContenderRound::new(keys, &config, threads.into(), arguments.seconds)?;
        for turn in 0..entries.len() {
            let which = (turn + round as usize) % entries.len();
            let (contender, batch) = entries[which];
            work = work.in_calls_of(batch.into()).lasting(arguments.seconds / WARM_UP_PART);
            measure(contender, &work)?;
            work = work.lasting(arguments.seconds);
            samples[which].push(measure(contender, &work)?);
        }
        eprintln!("{threads} threads: round {} of {} done", round + 1, arguments.rounds);
    }
    Ok(samples)
}

/// The middle one of sorted samples, or the mean of the middle two.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

fn render(comparison: &Comparison) -> String {
    let Comparison { keys, key_form, workload, distribution, seconds, rounds, .. } = comparison;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["contender", "threads", "batch", "M ops/s", "min", "max", "x local"]);
    for row in &comparison.rows {
        table.add_row([
            row.contender.to_owned(),
            row.threads.to_string(),
            row.batch.to_string(),
            format!("{:.3}", row.median_m_ops_per_s),
            format!("{:.3}", row.min_m_ops_per_s),
            format!("{:.3}", row.max_m_ops_per_s),
            format!("{:.2}", row.ratio_to_local),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "{workload} ({distribution}), {keys} keys ({key_form}), medians of {rounds} rounds of {seconds} s\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(more: &[&str]) -> CompareArguments {
        let few = ["farleaf-compare", "--keys", "20k", "--seconds", "0.01", "--rounds", "2"];
        CompareArguments::parse_from(few.iter().chain(more))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        CompareArguments::command().debug_assert();
        assert_eq!(count("3k"), Ok(3_000));
        assert!(count("0").is_err() && count("M").is_err() && count("99999999999G").is_err());
        assert!(lookups_and_updates("ycsb-d").is_err() && lookups_and_updates("ycsb-a").is_ok());
    }

    #[test]
    fn everybody_finds_every_key() {
        for workload in ["read-only", "write-intensive"] {
            let comparison = compare(&parsed(&["--workload", workload])).unwrap();
            assert_eq!(comparison.rows.len(), 18, "9 contenders, 2 numbers of threads");
            for row in &comparison.rows {
                assert!(row.min_m_ops_per_s > 0.0, "{row:?}");
                assert!(row.min_m_ops_per_s <= row.median_m_ops_per_s, "{row:?}");
                assert!(row.median_m_ops_per_s <= row.max_m_ops_per_s, "{row:?}");
                assert!(row.contender != LOCAL || row.ratio_to_local == 1.0, "{row:?}");
            }
            assert!(render(&comparison).contains("crossbeam-skiplist"));
        }
    }

    #[test]
    fn everybody_finds_every_byte_string() {
        for form in ["urls", "dlsm"] {
            let more = ["--workload", "write-intensive", "--threads", "2", "--key-form", form];
            let comparison = compare(&parsed(&more)).unwrap();
            let names: Vec<_> = comparison.rows.iter().map(|row| row.contender).collect();
            let skip = "crossbeam-skiplist";
            assert_eq!(names, ["local", "dex", "bf-tree", "redb", skip, "RwLock<BTreeMap>"]);
            assert!(comparison.rows.iter().all(|row| row.min_m_ops_per_s > 0.0));
            assert!(render(&comparison).contains(&format!("20000 keys ({form})")));
        }
    }

    #[test]
    fn designs_run_in_groups_too() {
        let more = ["--only", "congee,dex", "--threads", "1", "--batch", "1,16"];
        for workload in ["read-only", "write-intensive"] {
            let comparison =
                compare(&parsed(&[&more[..], &["--workload", workload]].concat())).unwrap();
            let rows = comparison.rows.iter().map(|row| (row.contender, row.batch));
            let expected = [("local", 1), ("local", 16), ("dex", 1), ("dex", 16), ("congee", 1)];
            assert!(rows.eq(expected), "{:?}", comparison.rows);
            assert!(comparison.rows.iter().all(|row| row.min_m_ops_per_s > 0.0));
        }
    }

    #[test]
    fn contenders_can_be_chosen() {
        let chosen = parsed(&["--only", "congee", "--threads", "1"]);
        let names: Vec<_> =
            compare(&chosen).unwrap().rows.iter().map(|row| row.contender).collect();
        assert_eq!(names, ["local", "congee"]);
        assert!(compare(&parsed(&["--only", "b-tree"])).is_err());
    }

    /// A contender that loads only half of its keys.
    struct HalfLoadedMap(Box<dyn Contender<KeySpace>>);

    impl Contender<KeySpace> for HalfLoadedMap {
        fn name(&self) -> &'static str {
            "forgetful"
        }

        fn load(&mut self, keys: &KeySpace) -> anyhow::Result<()> {
            self.0.load(&KeySpace::spread(keys.len() / 2))
        }

        fn look_up(&self, keys: &[u64]) -> anyhow::Result<Vec<Option<u64>>> {
            self.0.look_up(keys)
        }

        fn run(
            &self,
            round: &ContenderRound<KeySpace>,
        ) -> anyhow::Result<Vec<contender::ThreadTally>> {
            self.0.run(round)
        }
    }

    #[test]
    fn nobody_wins_by_not_finding_keys() {
        let arguments = parsed(&[]);
        let keys = KeySpace::spread(10_001);
        let mut forgetful = HalfLoadedMap(maps::all().remove(3));
        forgetful.load(&keys).unwrap();
        assert!(verify(&forgetful, &keys).is_err());
        let config = StreamConfig {
            mix: arguments.workload,
            distribution: arguments.distribution,
            clustered: false,
            keys: keys.clone(),
            seed: 1,
            harness: HarnessDeviations::default(),
        };
        let round = ContenderRound::new(&keys, &config, 1, arguments.seconds).unwrap();
        let error = measure(&forgetful, &round).unwrap_err().to_string();
        assert!(error.contains("did not find their key"), "{error}");
    }
}
