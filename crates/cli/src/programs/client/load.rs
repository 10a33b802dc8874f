//! `farleaf client load`: loads records from a CSV file.

use super::{AbandonSignal, CommandOutcome, sending};
use crate::programs::layout::{FromRows, RowReading};
use clap::Args;
use farleaf_bench::input::{CsvOptions, InputRows};
use farleaf_cluster::client::{ClusterClient, ClusterConnection};
use farleaf_cluster::text::Notation;
use farleaf_command_line::exit::UsageError;
use farleaf_command_line::output;
use farleaf_command_line::units;
use farleaf_index::partition::PartitionMap;
use farleaf_index::{IndexError, RangeIndex};
use farleaf_page::{Layout, OwnedKey, OwnedRecord};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Options of `farleaf client load`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadArguments {
    /// Load this CSV file, plain, gzip or zstd, or - for stdin
    pub(crate) file: PathBuf,
    /// Treat the first row as a record, for byte strings; files of numbers need no header
    #[arg(long, conflicts_with_all = ["key_column", "value_column"])]
    no_header: bool,
    /// Take keys from this column [default: `key`, or the first of a file without a header]
    #[arg(long, value_name = "NAME")]
    key_column: Option<String>,
    /// Take values from this column [default: `value`, or the second of a file without a header, or
    /// row numbers from 0]
    #[arg(long, value_name = "NAME")]
    value_column: Option<String>,
    /// Refuse rows with a longer field, whatever its column; bounds the memory for a row
    #[arg(long, value_name = "N", default_value = "1Mi", value_parser = units::field_bytes)]
    max_field_bytes: usize,
    /// Load strictly ascending keys into an empty index that no other program uses meanwhile
    #[arg(long)]
    bulk: bool,
    /// Fill pages to this share with --bulk, from 0.1 to 1.0
    #[arg(long, value_name = "FILL", default_value = "0.7", value_parser = units::fill, requires = "bulk")]
    fill: f64,
}

/// A load of at least this many records prints a warning if one of several compute servers receives
/// more than the fraction below.
const ENOUGH_RECORDS: u64 = 1_000;
const FILLED: f64 = 0.9;

/// Records from the rows of a file. The first error ends those of [`Iterator::next`] and is kept in
/// `error`.
struct LoadRecords<L: Layout> {
    rows: InputRows,
    notation: Notation,
    error: Option<anyhow::Error>,
    abandon: AbandonSignal,
    owners: RecordsPerOwner<L>,
}

/// Counts the records that each compute server received.
struct RecordsPerOwner<L: Layout> {
    map: Arc<PartitionMap<OwnedKey<L>>>,
    /// Number of records, by compute server.
    records: BTreeMap<u16, u64>,
}

impl<L: Layout> RecordsPerOwner<L> {
    fn count(&mut self, key: &L::Key) {
        *self.records.entry(self.map.owner_of(key)).or_default() += 1;
    }

    /// Returns a warning if nearly all records went to one of several compute servers.
    fn warning(&self) -> Option<String> {
        let all: u64 = self.records.values().sum();
        let (server, most) = self.records.iter().max_by_key(|(_, records)| **records)?;
        let is_uneven = self.map.owners().len() > 1 && all >= ENOUGH_RECORDS;
        (is_uneven && *most as f64 > FILLED * all as f64).then(|| {
            format!(
                "warning: {:.1}% of the records went to compute server {server}, which serves them alone: spread them with \
                 `farleaf move`, or begin a cluster with `--balance` or with `--boundaries-from` this file",
                *most as f64 / all as f64 * 100.0
            )
        })
    }
}

impl<L: FromRows> LoadRecords<L> {
    /// The next record; `None` at the end of the file. An error is not its end.
    fn read(&mut self) -> anyhow::Result<Option<OwnedRecord<L>>> {
        self.abandon.check()?;
        let record = L::next(&mut self.rows, self.notation)?;
        if let Some((key, _)) = &record {
            self.owners.count(L::key(key));
        }
        Ok(record)
    }
}

impl<L: FromRows> Iterator for LoadRecords<L> {
    type Item = OwnedRecord<L>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.error.is_some() {
            return None;
        }
        self.read().unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }
}

async fn bulk<L: FromRows>(
    client: &ClusterClient<L>,
    records: &RefCell<LoadRecords<L>>,
    fill: f64,
    count: &dyn Fn(u64),
) -> Result<(), anyhow::Error> {
    let counted = std::iter::from_fn(|| records.borrow_mut().read().transpose());
    let counted = counted.inspect(|record| count(u64::from(record.is_ok())));
    let loaded = client.try_bulk_load(counted, fill).await;
    loaded.map(drop).map_err(|error| match error.downcast_ref() {
        Some(IndexError::NotSorted { position }) => UsageError(format!(
            "--bulk needs strictly ascending keys: record {} is out of order; nothing was loaded",
            position + 1
        ))
        .into(),
        Some(IndexError::Indeterminate(_)) => error,
        _ => error.context("nothing was loaded"),
    })
}

/// Loads the file.
pub(super) fn run<L: FromRows>(
    connection: &ClusterConnection<L>,
    notation: Notation,
    arguments: &LoadArguments,
    abandon: &AbandonSignal,
) -> anyhow::Result<CommandOutcome> {
    let (key, value) = (arguments.key_column.clone(), arguments.value_column.clone());
    let csv = CsvOptions { key, value, max_field_bytes: arguments.max_field_bytes };
    let reading = RowReading { csv, has_header: !arguments.no_header };
    let bar = output::bar("records", None);
    let (loaded, warning) = connection.run(async |client| {
        let rows = L::open(&arguments.file, &reading)?;
        let owners = RecordsPerOwner { map: client.map(), records: BTreeMap::new() };
        let abandon = abandon.clone();
        let records = LoadRecords { rows, notation, error: None, abandon, owners };
        let records = RefCell::new(records);
        let count = |sent| bar.inc(sent);
        if arguments.bulk {
            bulk(&client, &records, arguments.fill, &count).await?;
        } else {
            let loaded =
                sending::send(&client, &mut || records.borrow_mut().next(), &count).await?;
            if let Some(error) = records.borrow_mut().error.take() {
                return Err(error.context(sending::before(loaded, 0)));
            }
        }
        // After a bulk load, the boundaries match the records.
        let warning = (!arguments.bulk).then(|| records.into_inner().owners.warning());
        Ok((bar.position(), warning.flatten()))
    })?;
    bar.finish_and_clear();
    println!("{loaded} records");
    if let Some(warning) = warning {
        output::note(&warning);
    }
    Ok(CommandOutcome::Done)
}
