//! `farleaf status`: how a cluster stands.

use clap::Args;
use comfy_table::{Table, presets};
use farleaf_cluster::catalog::{CatalogAddress, open};
use farleaf_cluster::config::{ConfigError, read_token};
use farleaf_cluster::error::ProgramError;
use farleaf_cluster::launch::Folder;
use farleaf_cluster::records::Keys;
use farleaf_cluster::status::{Row, Standing};
use std::io::Write;
use std::path::PathBuf;

/// The options of `farleaf status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farleaf status --dir /tmp/farleaf\n  farleaf status --catalog \
    10.0.0.6:7400 --token-file /etc/farleaf/token\n\nExit codes: 0 it serves, 1 it does not, 2 the command line or a \
    file makes no sense."
)]
pub(crate) struct Arguments {
    /// The folder that `farleaf cluster` was given
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["catalog", "token_file"], required_unless_present = "catalog")]
    dir: Option<PathBuf>,
    /// Where the catalog is: ADDRESS of an embedded one, or etcd:HOST:PORT,HOST:PORT
    #[arg(long, value_name = "CATALOG", requires = "token_file")]
    catalog: Option<CatalogAddress>,
    /// The cluster's token, in a file that only its owner can read
    #[arg(long, value_name = "FILE", requires = "catalog")]
    token_file: Option<PathBuf>,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
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
    let (address, token_file) = match (&arguments.dir, &arguments.catalog, &arguments.token_file) {
        (Some(dir), ..) => {
            let folder = Folder(dir.clone());
            // A folder without a running cluster is a cluster that does not serve.
            let running = folder.catalog().map_err(|error| match error {
                ConfigError::File { .. } if dir.is_dir() => {
                    ProgramError::Failed(format!("no cluster runs in {}", dir.display()))
                }
                error => error.into(),
            });
            (running?, folder.token())
        }
        (None, Some(address), Some(token_file)) => (address.clone(), token_file.clone()),
        _ => return crate::usage("use --dir, or --catalog and --token-file"),
    };
    let token = read_token(&token_file)?;
    let keys = Keys::new(&arguments.cluster);
    let keys =
        keys.map_err(|bad| ConfigError::Settings(format!("`{}`: {bad}", arguments.cluster)))?;
    let standing = Standing::read(&*open(&address, &token)?, &keys)?;
    let missing = standing.missing();
    let mut out = std::io::stdout().lock();
    if arguments.json {
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
