//! `farleaf status`: how a cluster stands.

use super::Place;
use clap::Args;
use comfy_table::{Table, presets};
use farleaf_cluster::catalog::open;
use farleaf_cluster::status::{Row, Standing};
use std::io::Write;

/// The options of `farleaf status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf status --dir /tmp/farleaf\n  farleaf status --catalog \
    10.0.0.6:7400 --token-file /etc/farleaf/token\n\nExit codes: 0 it serves, 1 it does not, 2 the command line or a \
    file makes no sense."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["server", "state", "address", "epoch", "holds", "metrics"]);
    for row in rows {
        let state = if row.is_live { "live" } else { "gone" };
        table.add_row([
            &*row.server,
            state,
            &*row.address,
            &*row.epoch,
            &*row.holds,
            &*row.metrics,
        ]);
    }
    table
}

/// Prints how a cluster stands; whether it serves.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    show(&arguments.place, arguments.json)
}

/// Prints how a cluster stands, for people or as JSON; whether it serves.
pub(crate) fn show(place: &Place, is_json: bool) -> anyhow::Result<bool> {
    let (address, token) = place.find()?;
    let keys = place.keys()?;
    let standing = Standing::read(&*open(&address, &token)?, &keys)?;
    let missing = standing.missing();
    let mut out = std::io::stdout().lock();
    if is_json {
        let mut json = serde_json::to_value(&standing)?;
        json["serves"] = missing.is_empty().into();
        json["missing"] = missing.clone().into();
        writeln!(out, "{}", serde_json::to_string_pretty(&json)?)?;
        return Ok(missing.is_empty());
    }
    writeln!(out, "{}", table(&standing.rows()))?;
    match &standing.index {
        Some(index) => writeln!(out, "index: generation {}, {}", index.generation, index.state)?,
        None => writeln!(out, "index: none")?,
    }
    if let Some(map) = &standing.map {
        writeln!(out, "partition map: epoch {}, {} ranges", map.epoch, map.owners.len())?;
    }
    match missing.as_slice() {
        [] => writeln!(out, "serves")?,
        missing => writeln!(out, "does not serve: {}", missing.join("; "))?,
    }
    Ok(missing.is_empty())
}
