//! `farleaf client export`: writes all records to a file that `farleaf client load --bulk` can
//! read.
//!
//! *Invariant*: the file either has all records or is unchanged, because the records are written to
//! a temporary file in the same folder, which is then renamed.

use super::commands::{ScanOutputPart, print_scan};
use super::{AbandonSignal, ClusterAccess, CommandOutcome};
use anyhow::Context;
use clap::Args;
use farleaf_cluster::client::ClusterConnection;
use farleaf_cluster::layouts::{ClusterLayout, LayoutName};
use farleaf_cluster::text::Notation;
use farleaf_cluster::with_layout;
use farleaf_command_line::output;
use std::fs::{OpenOptions, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Maximum number of symbolic links to follow.
const MAX_LINKS: usize = 16;

/// Options of `farleaf client export`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExportArguments {
    /// Write to this file; - or no argument for stdout
    file: Option<PathBuf>,
    /// Leave out the header `key,value`, which files of byte strings have
    #[arg(long)]
    no_header: bool,
}

impl ExportArguments {
    /// The path of the file; `None` for stdout.
    fn path(&self) -> Option<&Path> {
        self.file.as_deref().filter(|file| *file != Path::new("-"))
    }
}

/// Writes all records, and returns their number.
fn write(
    access: &ClusterAccess,
    arguments: &ExportArguments,
    abandon: &AbandonSignal,
    mut out: impl Write + Send,
) -> anyhow::Result<u64> {
    let located = access.locate(256)?;
    // Numbers need no header: the program recognises a file of numbers without one.
    if located.layout() != LayoutName::Numbers && !arguments.no_header {
        out.write_all(b"key,value\n")?;
    }
    let out: &mut (dyn Write + Send) = &mut out;
    with_layout!(located.layout(), L => {
        write_records::<L>(&located.connect()?, access.notation(), abandon, out)
    })
}

fn write_records<L: ClusterLayout>(
    connection: &ClusterConnection<L>,
    notation: Notation,
    abandon: &AbandonSignal,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<u64> {
    let bar = output::bar("records", None);
    let out = std::sync::Mutex::new(Some(out));
    let written = connection.run(async |client| {
        let taken = out.lock().ok().and_then(|mut out| out.take());
        let mut out = BufWriter::with_capacity(1 << 20, taken.context("it is written once")?);
        let everything = ScanOutputPart::everything();
        let count = |count| bar.inc(count);
        print_scan::<L>(&client, everything, notation, abandon, &mut out, count).await?;
        out.flush()?;
        Ok::<_, anyhow::Error>(bar.position())
    });
    bar.finish_and_clear();
    written
}

/// Writes all records to a file. Writes directly to anything but a regular file, such as a pipe.
fn to_file(
    access: &ClusterAccess,
    arguments: &ExportArguments,
    abandon: &AbandonSignal,
    path: &Path,
) -> anyhow::Result<u64> {
    let name = path.display();
    let cannot = || format!("cannot write {name}");
    // Follow symbolic links, so that their target is replaced or created.
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(behind) = std::fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(behind);
    }
    let before = std::fs::metadata(&path).ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        let file = OpenOptions::new().write(true).open(&path).with_context(cannot)?;
        return write(access, arguments, abandon, file).with_context(cannot);
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
    let records = write(access, arguments, abandon, file.as_file_mut()).with_context(cannot)?;
    file.as_file().sync_all().with_context(cannot)?;
    file.persist(&path).map_err(|error| error.error).with_context(cannot)?;
    Ok(records)
}

/// Exports all records. Any error means that the export failed.
pub(super) fn run(
    access: &ClusterAccess,
    arguments: &ExportArguments,
    abandon: &AbandonSignal,
) -> anyhow::Result<CommandOutcome> {
    let records = match arguments.path() {
        None => write(access, arguments, abandon, std::io::stdout())?,
        Some(path) => to_file(access, arguments, abandon, path)?,
    };
    output::note(&format!("{records} records"));
    Ok(CommandOutcome::Done)
}
