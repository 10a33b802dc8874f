//! Operations on single keys and ranges, for the command line and the shell.

use super::Abandon;
use farleaf_cluster::client::Client;
use farleaf_core::index::{RangeIndex, Scan};
use std::io::Write;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Get { key: u64 },
    Put { key: u64, value: u64 },
    Insert { key: u64, value: u64 },
    Update { key: u64, value: u64 },
    Remove { key: u64 },
    Scan { start: u64, limit: u64, reverse: bool },
    Flush,
}

impl Line {
    /// Whether it changes nothing.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::Scan { .. } | Self::Flush)
    }
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The command succeeded.
    Done,
    /// Its condition did not hold; the text says why.
    No(String),
}

/// Records that one part of a long scan requests.
const RECORDS_TOGETHER: u64 = 65_536;

fn done_if(applied: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if applied { Outcome::Done } else { Outcome::No(otherwise()) }
}

/// Executes one operation and prints its results. A scan stops with an error when the user abandons
/// it; an operation on one key ends by its deadline.
pub(crate) async fn run_line(
    client: &Client,
    line: Line,
    abandon: &Abandon,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let absent = |key: u64| move || format!("key {key} is absent");
    Ok(match line {
        Line::Get { key } => match client.get(&key).await? {
            Some(value) => {
                writeln!(out, "{value}")?;
                Outcome::Done
            }
            None => Outcome::No(absent(key)()),
        },
        Line::Put { key, value } => {
            client.upsert(&key, &value).await?;
            Outcome::Done
        }
        Line::Insert { key, value } => {
            done_if(client.insert(&key, &value).await?, || format!("key {key} is there already"))
        }
        Line::Update { key, value } => done_if(client.update(&key, &value).await?, absent(key)),
        Line::Remove { key } => done_if(client.remove(&key).await?, absent(key)),
        Line::Scan { start, limit, reverse } => {
            print_scan(client, (start, limit, reverse), abandon, out, |_| {}).await?;
            Outcome::Done
        }
        Line::Flush => {
            client.flush().await?;
            Outcome::Done
        }
    })
}

/// Prints a scan part by part, because its result may not fit into memory. Calls `count` for each
/// part.
pub(super) async fn print_scan(
    client: &Client,
    (start, limit, reverse): (u64, u64, bool),
    abandon: &Abandon,
    out: &mut impl Write,
    count: impl Fn(u64),
) -> anyhow::Result<()> {
    let (mut from, mut left) = (Some(start), limit);
    while let Some(start) = from
        && left > 0
    {
        let together = left.min(RECORDS_TOGETHER) as usize;
        let scan = match reverse {
            false => Scan::range(start..),
            true => Scan::range(..=start).reverse(),
        };
        let records = client.scan(&scan.limit(together)).await?;
        for (key, value) in &records {
            abandon.check()?;
            writeln!(out, "{key},{value}")?;
        }
        left -= records.len() as u64;
        count(records.len() as u64);
        let last = records.last().filter(|_| records.len() == together);
        from = last.and_then(|(key, _)| match reverse {
            false => key.checked_add(1),
            true => key.checked_sub(1),
        });
    }
    Ok(())
}
