//! `farleaf client load`: records from a CSV file.

use super::{Abandon, Patience, connect};
use crate::output;
use crate::programs::Place;
use anyhow::Context;
use clap::Args;
use farleaf::index::{IndexError, RangeIndex};
use farleaf_cluster::client::Client;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// The options of `farleaf client load`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The file, or - for stdin; a first line that is no record is a header
    pub(crate) file: PathBuf,
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
/// The longest line, in bytes: two numbers, a comma and some spaces.
const LINE_BYTES: u64 = 256;

/// Records from the lines of a file. The first error ends them, and is kept.
struct Records {
    lines: Box<dyn BufRead + Send>,
    name: String,
    number: u64,
    error: Option<anyhow::Error>,
    abandon: Abandon,
}

impl Records {
    fn open(path: &Path, abandon: Abandon) -> anyhow::Result<Self> {
        let (lines, name): (Box<dyn BufRead + Send>, _) = if path == Path::new("-") {
            (Box::new(BufReader::new(io::stdin())), "stdin".to_owned())
        } else {
            let name = path.display().to_string();
            let file = File::open(path)
                .map_err(|why| crate::UsageError(format!("{name} cannot be read: {why}")))?;
            (Box::new(BufReader::with_capacity(1 << 20, file)), name)
        };
        Ok(Self { lines, name, number: 0, error: None, abandon })
    }

    /// The next record.
    fn read(&mut self) -> anyhow::Result<Option<(u64, u64)>> {
        use std::io::Read;
        loop {
            self.abandon.check()?;
            let mut line = Vec::new();
            let read = (&mut self.lines).take(LINE_BYTES).read_until(b'\n', &mut line);
            if read.with_context(|| format!("{} cannot be read", self.name))? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let text = String::from_utf8_lossy(&line);
            let text = text.trim();
            if text.is_empty() {
                continue;
            }
            let fields = text.split_once(',');
            let parsed = fields.and_then(|(key, value)| {
                Some((key.trim().parse().ok()?, value.trim().parse().ok()?))
            });
            match parsed {
                Some(record) => return Ok(Some(record)),
                None if self.number == 1 && line.ends_with(b"\n") => {} // a header
                None => {
                    let what = format!("{}:{}: expected `key,value`", self.name, self.number);
                    return crate::usage(what);
                }
            }
        }
    }
}

impl Iterator for Records {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.error.is_some() {
            return None;
        }
        match self.read() {
            Ok(record) => record,
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

async fn upsert(
    client: &Client,
    records: &RefCell<Records>,
    count: &dyn Fn(u64),
) -> anyhow::Result<()> {
    loop {
        let together: Vec<_> = records.borrow_mut().by_ref().take(RECORDS_TOGETHER).collect();
        if together.is_empty() {
            return Ok(());
        }
        let sent = together.len() as u64;
        client.upsert_all(together).await?;
        count(sent);
    }
}

/// Loads the file; true unless that failed.
pub(super) fn run(
    place: &Place,
    patience: &Patience,
    arguments: &Arguments,
    abandon: &Abandon,
) -> anyhow::Result<bool> {
    let records = Records::open(&arguments.file, abandon.clone())?;
    let records = std::sync::Mutex::new(Some(records));
    let connection = connect(place, patience, 256)?;
    let bar = output::bar("records", None);
    let loaded = connection.run(async |client| {
        let taken = records.lock().ok().and_then(|mut records| records.take());
        let records = RefCell::new(taken.context("the file is read once")?);
        let outcome = if arguments.bulk {
            let counted =
                std::iter::from_fn(|| records.borrow_mut().next()).inspect(|_| bar.inc(1));
            let outcome = client.bulk_load(counted, arguments.fill).await;
            outcome.map(drop).map_err(|error| match error {
                IndexError::NotSorted { position } => {
                    anyhow::Error::from(crate::UsageError(format!(
                        "with --bulk keys ascend strictly, and record {} does not",
                        position + 1
                    )))
                }
                error => error.into(),
            })
        } else {
            let count = |sent| bar.inc(sent);
            let all = (0..REQUESTS).map(|_| upsert(&client, &records, &count));
            futures_util::future::try_join_all(all).await.map(drop)
        };
        // What is wrong with the file comes first: it may be why the rest failed.
        match records.into_inner().error {
            Some(error) => Err(error),
            None => outcome.map(|()| bar.position()),
        }
    })?;
    bar.finish_and_clear();
    println!("{loaded} records");
    Ok(true)
}
