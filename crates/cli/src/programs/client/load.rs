//! `farleaf client load`: records from a CSV file.

use super::{Abandon, Outcome, Patience, connect};
use crate::output::{self, grouped};
use crate::programs::Place;
use anyhow::Context;
use clap::Args;
use farleaf::index::{IndexError, RangeIndex};
use farleaf_bench::input::{ColumnNames, Rows};
use farleaf_cluster::client::Client;
use std::cell::RefCell;
use std::path::PathBuf;

/// The options of `farleaf client load`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The file, plain or gzip, or - for stdin
    pub(crate) file: PathBuf,
    /// Its column of keys [default: `key`, or the first of a file without a header]
    #[arg(long, value_name = "NAME")]
    key_column: Option<String>,
    /// Its column of values [default: `value`, or the second of a file without a header, or the number of the row,
    /// from 0]
    #[arg(long, value_name = "NAME")]
    value_column: Option<String>,
    /// Load into an empty index, from a file that ascends strictly: nobody else may use the index meanwhile
    #[arg(long)]
    bulk: bool,
    /// How full to make pages with --bulk
    #[arg(long, value_name = "FILL", default_value = "0.7", value_parser = crate::units::fill, requires = "bulk")]
    fill: f64,
}

/// Records of one request, and how many requests are in flight.
const RECORDS_TOGETHER: usize = 1024;
const REQUESTS: usize = 8;

/// Records from the rows of a file. The first error ends them, and is kept.
struct Records {
    rows: Rows,
    error: Option<anyhow::Error>,
    abandon: Abandon,
}

impl Iterator for Records {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.error.is_some() {
            return None;
        }
        let record = match self.abandon.check() {
            Ok(()) => self.rows.next_record().map_err(anyhow::Error::from),
            Err(abandoned) => Err(abandoned),
        };
        record.unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }
}

async fn upsert(client: &Client, records: &RefCell<Records>, count: &dyn Fn(u64)) {
    loop {
        let together: Vec<_> = records.borrow_mut().by_ref().take(RECORDS_TOGETHER).collect();
        if together.is_empty() {
            return;
        }
        let sent = together.len() as u64;
        match client.upsert_all(together).await {
            Ok(()) => count(sent),
            // The others end when they have their answers.
            Err(error) => {
                records.borrow_mut().error.get_or_insert(error.into());
            }
        }
    }
}

async fn bulk(
    client: &Client,
    records: &RefCell<Records>,
    fill: f64,
    count: &dyn Fn(u64),
) -> Result<(), anyhow::Error> {
    let counted = std::iter::from_fn(|| records.borrow_mut().next()).inspect(|_| count(1));
    let loaded = client.bulk_load(counted, fill).await;
    // What is wrong with the file comes first: it may be why the rest failed.
    if let Some(error) = records.borrow_mut().error.take() {
        return Err(error);
    }
    loaded.map(drop).map_err(|error| match error {
        IndexError::NotSorted { position } => anyhow::Error::from(crate::UsageError(format!(
            "with --bulk keys ascend strictly, and record {} does not",
            position + 1
        ))),
        error => error.into(),
    })
}

/// Loads the file.
pub(super) fn run(
    place: &Place,
    patience: &Patience,
    arguments: &Arguments,
    abandon: &Abandon,
) -> anyhow::Result<Outcome> {
    let (key, value) = (arguments.key_column.clone(), arguments.value_column.clone());
    let names = ColumnNames { key, value };
    let connection = connect(place, patience, 256)?;
    let bar = output::bar("records", None);
    let loaded = connection.run(async |client| {
        let rows = Rows::open(&arguments.file, &names)?;
        let records = Records { rows, error: None, abandon: abandon.clone() };
        let records = RefCell::new(records);
        let count = |sent| bar.inc(sent);
        if arguments.bulk {
            let outcome = bulk(&client, &records, arguments.fill, &count).await;
            outcome.context("records loaded before this: 0")?;
        } else {
            let all = (0..REQUESTS).map(|_| upsert(&client, &records, &count));
            futures_util::future::join_all(all).await;
            if let Some(error) = records.into_inner().error {
                let before = format!("records loaded before this: {}", grouped(bar.position()));
                return Err(error.context(before));
            }
        }
        Ok(bar.position())
    })?;
    bar.finish_and_clear();
    println!("{loaded} records");
    Ok(Outcome::Done)
}
