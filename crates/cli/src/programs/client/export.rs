//! `farleaf client export`: all records into a file, as `farleaf client load --bulk` reads them.
//!
//! *Invariant*: the file has all records or is as it was before: they are written to another beside it, which then takes its
//! name.

use super::commands::print_scan;
use super::{Abandon, Patience, connect};
use crate::output;
use crate::programs::Place;
use anyhow::Context;
use clap::Args;
use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The options of `farleaf client export`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The file; stdout if there is none, or for -
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
    place: &Place,
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

/// Exports; a failure says so.
pub(super) fn run(
    place: &Place,
    patience: &Patience,
    arguments: &Arguments,
    abandon: &Abandon,
) -> anyhow::Result<bool> {
    let records = match arguments.path() {
        None => write(place, patience, abandon, std::io::stdout())?,
        Some(path) => {
            let name = path.display();
            let cannot = || format!("{name} cannot be written");
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            let mut file = tempfile::Builder::new()
                .prefix(".export-")
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(folder)
                .with_context(cannot)?;
            let records = write(place, patience, abandon, file.as_file_mut())
                .with_context(|| format!("{name} is not written"))?;
            file.as_file().sync_all().with_context(cannot)?;
            file.persist(path).map_err(|error| error.error).with_context(cannot)?;
            records
        }
    };
    output::note(&format!("{records} records"));
    Ok(true)
}
