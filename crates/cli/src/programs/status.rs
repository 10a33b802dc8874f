//! `farleaf status`: shows the state of a cluster.

use super::ClusterLocation;
use clap::Args;
use comfy_table::{Table, presets};
use farleaf_cluster::catalog::open;
use farleaf_cluster::scrape::Scraper;
use farleaf_cluster::status::{ClusterStatus, StatusRow};
use serde_json::Value;
use std::io::Write;
use std::time::Duration;

/// Options of `farleaf status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf status --dir /tmp/farleaf\n  farleaf status --catalog \
    10.0.0.6:7400 --token-file /etc/farleaf/token\n\nExit codes: 0 the cluster serves, 1 it does not, 2 invalid command line or \
    file."
)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    place: ClusterLocation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Timeout for reading the servers' metrics.
const ASK: Duration = Duration::from_secs(1);
/// Minimum number of operations for a warning about uneven load; below, the share above which the
/// warning is printed.
const ENOUGH_OPERATIONS: f64 = 10_000.0;
const UNEVEN: f64 = 0.9;

/// Each server's share of the total of its kind, in the order of the rows: operations for compute
/// servers, allocated memory for memory servers. `None` for servers without metrics.
struct TotalShares {
    parts: Vec<Option<f64>>,
    warning: Option<String>,
}

impl TotalShares {
    fn ask(rows: &[StatusRow]) -> std::io::Result<Self> {
        let with_metrics = rows.iter().filter(|row| !row.metrics.is_empty());
        let addresses: Vec<String> = with_metrics.map(|row| row.metrics.clone()).collect();
        let mut answers = Scraper::new()?.ask(&addresses, ASK).into_iter();
        let numbers: Vec<Option<f64>> = rows
            .iter()
            .map(|row| {
                let answer = (!row.metrics.is_empty()).then(|| answers.next()).flatten()?.ok()?;
                let name = if row.is_memory() { "allocated_bytes" } else { "operations_total" };
                answer.sum(name)
            })
            .collect();
        let sum = |is_memory: bool| {
            let of_kind = rows.iter().zip(&numbers).filter(|(row, _)| row.is_memory() == is_memory);
            of_kind.filter_map(|(_, number)| *number).sum::<f64>()
        };
        let sums = [sum(false), sum(true)];
        let part = |(row, number): (&StatusRow, &Option<f64>)| {
            let whole = sums[usize::from(row.is_memory())];
            number.filter(|_| whole > 0.0).map(|number| number / whole)
        };
        let parts: Vec<Option<f64>> = rows.iter().zip(&numbers).map(part).collect();
        let compute = || rows.iter().zip(&parts).filter(|(row, _)| !row.is_memory());
        let most = compute().find(|(_, part)| part.is_some_and(|part| part > UNEVEN));
        let warning = most.filter(|_| compute().count() > 1 && sums[0] >= ENOUGH_OPERATIONS);
        let warning = warning.map(|(row, part)| {
            format!(
                "warning: {} has done {:.1}% of all operations: it owns nearly all keys that clients use",
                row.server,
                part.unwrap_or_default() * 100.0
            )
        });
        Ok(Self { parts, warning })
    }

    /// Reorders the shares to match another list of rows.
    fn of(self, asked: &[StatusRow], rows: &[StatusRow]) -> Self {
        let part = |row: &StatusRow| {
            let place = asked.iter().position(|asked| asked.server == row.server)?;
            self.parts[place]
        };
        Self { parts: rows.iter().map(part).collect(), warning: self.warning }
    }
}

fn table(rows: &[StatusRow], shares: &TotalShares) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["server", "state", "address", "epoch", "holds", "share", "metrics"]);
    for (row, share) in rows.iter().zip(&shares.parts) {
        let share = share.map_or("-".to_owned(), |share| format!("{:.0}%", share * 100.0));
        let state = if row.is_live { "live" } else { "gone" };
        table.add_row([
            &*row.server,
            state,
            &*row.address,
            &*row.epoch,
            &*row.holds,
            &*share,
            &*row.metrics,
        ]);
    }
    table
}

/// The state as JSON. Keys and epochs are strings, because they can reach 2^64 and JSON readers
/// lose digits of such numbers.
fn as_json(standing: &ClusterStatus) -> serde_json::Result<Value> {
    fn as_text(value: &mut Value) {
        match value {
            Value::Number(number) => *value = number.to_string().into(),
            Value::Array(values) => values.iter_mut().for_each(as_text),
            _ => {}
        }
    }
    let mut json = serde_json::to_value(standing)?;
    for kind in ["memory", "compute"] {
        for record in json[kind].as_array_mut().into_iter().flatten() {
            as_text(&mut record["epoch"]);
        }
    }
    for (record, field) in [("index", "memory_epochs"), ("map", "boundaries")] {
        if let Some(value) = json[record].get_mut(field) {
            as_text(value);
        }
    }
    Ok(json)
}

/// Prints the state of a cluster; returns whether it serves.
pub(crate) fn run(arguments: &StatusArguments) -> anyhow::Result<bool> {
    show(&arguments.place, arguments.json)
}

/// Prints the state of a cluster, for people or as JSON; returns whether it serves.
pub(crate) fn show(place: &ClusterLocation, is_json: bool) -> anyhow::Result<bool> {
    let (address, token) = place.find()?;
    let keys = place.keys()?;
    let catalog = open(&address, &token)?;
    let asked = ClusterStatus::read(&*catalog, &keys)?.rows();
    let shares = TotalShares::ask(&asked)?;
    // Read the catalog again after waiting for slow servers, so that state and shares are from
    // about the same time.
    let standing = ClusterStatus::read(&*catalog, &keys)?;
    let missing = standing.missing();
    let warnings = catalog.warnings();
    let rows = standing.rows();
    let shares = shares.of(&asked, &rows);
    let mut out = std::io::stdout().lock();
    if is_json {
        let mut json = as_json(&standing)?;
        let named = rows.iter().zip(&shares.parts);
        let named = named.filter_map(|(row, share)| Some((row.server.clone(), (*share)?.into())));
        json["shares"] = Value::Object(named.collect());
        if let Some(layout) = standing.settings.as_ref().and_then(|found| found.layout().ok()) {
            json["settings"]["keys"] = layout.keys().into();
        }
        json["serves"] = missing.is_empty().into();
        json["missing"] = missing.clone().into();
        json["warnings"] = warnings.into();
        writeln!(out, "{}", serde_json::to_string_pretty(&json)?)?;
        return Ok(missing.is_empty());
    }
    writeln!(out, "{}", table(&rows, &shares))?;
    match &standing.index {
        Some(index) => writeln!(out, "index: generation {}, {}", index.generation, index.state)?,
        None => writeln!(out, "index: none")?,
    }
    if let Some(settings) = &standing.settings {
        // A cluster of another version may have keys that this program does not know.
        let keys = settings.layout().map_or(&*settings.keys, |layout| layout.keys());
        writeln!(out, "keys: {keys}, in pages of {} bytes", settings.page_bytes)?;
    }
    if let Some(map) = &standing.map {
        writeln!(out, "partition map: epoch {}, {} ranges", map.epoch, map.owners.len())?;
    }
    if let Some(warning) = &shares.warning {
        writeln!(out, "{warning}")?;
    }
    for warning in warnings {
        writeln!(out, "warning: {warning}")?;
    }
    writeln!(out, "{}", standing.summary())?;
    Ok(missing.is_empty())
}
