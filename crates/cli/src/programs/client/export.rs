//! `farleaf client export`: all records into a file, as `farleaf client load --bulk` reads them.
//!
//! *Invariant*: the file has all records or is as it was before: they are written to another beside
//! it, which then takes its name.

use super::commands::print_scan;
use super::{Abandon, Outcome, Patience, connect};
use crate::output;
use crate::programs::ClusterLocation;
use anyhow::Context;
use clap::Args;
use std::fs::{OpenOptions, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Links that are followed.
const MOST_LINKS: usize = 16;

/// The options of `farleaf client export`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The file to write; - or none for stdout
    file: Option<PathBuf>,
}

impl Arguments {
    /// The file, if it is not stdout.
    fn path(&self) -> Option<&Path> {
        self.file.as_deref().filter(|file| *file != Path::new("-"))
    }
}

/// Writes all records; how many there were.
fn write(
    place: &ClusterLocation,
    patience: &Patience,
    abandon: &Abandon,
    out: impl Write + Send,
) -> anyhow::Result<u64> {
    let connection = connect(place, patience, 256)?;
    let bar = output::bar("records", None);
    let out = std::sync::Mutex::new(Some(out));
    let written = connection.run(async |client| {
        let taken = out.lock().ok().and_then(|mut out| out.take());
        let mut out = BufWriter::with_capacity(1 << 20, taken.context("it is written once")?);
        let everything = (0, u64::MAX, false);
        print_scan(&client, everything, abandon, &mut out, |count| bar.inc(count)).await?;
        out.flush()?;
        Ok::<_, anyhow::Error>(bar.position())
    });
    bar.finish_and_clear();
    written
}

/// Writes all records to a file; what is none, such as a pipe, is written to as it is.
fn to_file(
    place: &ClusterLocation,
    patience: &Patience,
    abandon: &Abandon,
    path: &Path,
) -> anyhow::Result<u64> {
    let name = path.display();
    let cannot = || format!("{name} cannot be written");
    // Behind a link there is a file, too, or will be.
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(behind) = std::fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(behind);
    }
    let before = std::fs::metadata(&path).ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        let file = OpenOptions::new().write(true).open(&path).with_context(cannot)?;
        return write(place, patience, abandon, file).with_context(cannot);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".export-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))
        .with_context(cannot)?;
    if let Some(before) = before {
        file.as_file().set_permissions(before.permissions()).with_context(cannot)?;
    }
    let records = write(place, patience, abandon, file.as_file_mut()).with_context(cannot)?;
    file.as_file().sync_all().with_context(cannot)?;
    file.persist(&path).map_err(|error| error.error).with_context(cannot)?;
    Ok(records)
}

/// Exports; a failure says so.
pub(super) fn run(
    place: &ClusterLocation,
    patience: &Patience,
    arguments: &Arguments,
    abandon: &Abandon,
) -> anyhow::Result<Outcome> {
    let records = match arguments.path() {
        None => write(place, patience, abandon, std::io::stdout())?,
        Some(path) => to_file(place, patience, abandon, path)?,
    };
    output::note(&format!("{records} records"));
    Ok(Outcome::Done)
}
