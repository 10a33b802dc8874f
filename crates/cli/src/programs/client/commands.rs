//! Operations on single keys and ranges, for the command line and the shell.

use super::{AbandonSignal, RangeArguments, ScanArguments};
use crate::programs::layout::{key, value};
use farleaf_cluster::client::ClusterClient;
use farleaf_cluster::layouts::ClusterLayout;
use farleaf_cluster::text::{KeyBounds, Notation, Textual};
use farleaf_command_line::usage;
use farleaf_index::{Exchange, RangeIndex, ScanRequest};
use farleaf_page::{OwnedKey, OwnedRecord};
use std::cmp::Ordering;
use std::io::Write;
use std::ops::Bound;

/// One operation. Keys and values are text, which is parsed according to the cluster's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperationLine {
    Get { key: String },
    Put { key: String, value: String },
    Insert { key: String, value: String },
    Update { key: String, value: String },
    Remove { key: String },
    CompareExchange { key: String, expected: String, new: String },
    Scan(ScanArguments),
    Count(RangeArguments),
    Flush,
}

impl OperationLine {
    /// Whether it changes nothing.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::Scan(_) | Self::Count(_) | Self::Flush)
    }
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// The command succeeded.
    Done,
    /// Its condition did not hold; the text tells why.
    No(String),
}

/// Maximum number of records that one part of a long scan requests.
const RECORDS_PER_BATCH: u64 = 65_536;

fn done_if(applied: bool, otherwise: impl FnOnce() -> String) -> CommandOutcome {
    if applied { CommandOutcome::Done } else { CommandOutcome::No(otherwise()) }
}

/// Executes one operation and prints its results. A scan stops with an error when the user aborts
/// it; an operation on one key ends by its deadline.
pub(super) async fn run_line<L: ClusterLayout>(
    client: &ClusterClient<L>,
    line: &OperationLine,
    notation: Notation,
    abandon: &AbandonSignal,
    out: &mut impl Write,
) -> anyhow::Result<CommandOutcome> {
    let key_of = |text: &String| key::<L>(text, notation);
    let record = |key: &String, text: &String| Ok((key_of(key)?, value::<L>(text, notation)?));
    let record = |key, text| -> anyhow::Result<_> { record(key, text) };
    let named = |key: &OwnedKey<L>| format!("key {}", L::key(key).text(notation));
    let absent = |key| format!("{} is absent", named(key));
    Ok(match line {
        OperationLine::Get { key } => {
            let key = key_of(key)?;
            match client.get(L::key(&key)).await? {
                Some(value) => {
                    writeln!(out, "{}", L::value(&value).text(notation))?;
                    CommandOutcome::Done
                }
                None => CommandOutcome::No(absent(&key)),
            }
        }
        OperationLine::Put { key, value } => {
            let (key, value) = record(key, value)?;
            client.upsert(L::key(&key), L::value(&value)).await?;
            CommandOutcome::Done
        }
        OperationLine::Insert { key, value } => {
            let (key, value) = record(key, value)?;
            let is_new = client.insert(L::key(&key), L::value(&value)).await?;
            done_if(is_new, || format!("{} is there already", named(&key)))
        }
        OperationLine::Update { key, value } => {
            let (key, value) = record(key, value)?;
            done_if(client.update(L::key(&key), L::value(&value)).await?, || absent(&key))
        }
        OperationLine::Remove { key } => {
            let key = key_of(key)?;
            done_if(client.remove(L::key(&key)).await?, || absent(&key))
        }
        OperationLine::CompareExchange { key, expected, new } => {
            let (key, expected) = record(key, expected)?;
            let new = value::<L>(new, notation)?;
            let (expected, new) = (L::value(&expected), L::value(&new));
            match client.compare_exchange(L::key(&key), expected, new).await? {
                Exchange::Exchanged => CommandOutcome::Done,
                Exchange::Differs(None) => CommandOutcome::No(absent(&key)),
                Exchange::Differs(Some(found)) => {
                    let found = L::value(&found).text(notation);
                    CommandOutcome::No(format!("{} has the value {found}", named(&key)))
                }
            }
        }
        OperationLine::Count(range) => {
            let range = bounds::<L>(range, false, notation)?;
            let part = ScanOutputPart { range, limit: u64::MAX, reverse: false };
            let mut count = 0;
            parts::<L>(client, part, |records| {
                count += records.len() as u64;
                abandon.check()
            })
            .await?;
            writeln!(out, "{count}")?;
            CommandOutcome::Done
        }
        OperationLine::Scan(scan) => {
            let range = bounds::<L>(&scan.range, scan.reverse, notation)?;
            let part = ScanOutputPart { range, limit: scan.limit, reverse: scan.reverse };
            print_scan::<L>(client, part, notation, abandon, out, |_| {}).await?;
            CommandOutcome::Done
        }
        OperationLine::Flush => {
            client.flush().await?;
            CommandOutcome::Done
        }
    })
}

/// The range of keys that is requested; downwards, it begins at its upper end.
fn bounds<L: ClusterLayout>(
    range: &RangeArguments,
    reverse: bool,
    notation: Notation,
) -> anyhow::Result<KeyBounds<OwnedKey<L>>> {
    let key_of = |text: &Option<String>| text.as_ref().map(|text| key::<L>(text, notation));
    let start = key_of(&range.start).transpose()?.map_or(Bound::Unbounded, Bound::Included);
    let end = key_of(&range.end).transpose()?.map_or(Bound::Unbounded, Bound::Excluded);
    let (lower, upper) = if reverse { (end, start) } else { (start, end) };
    let Some(prefix) = key_of(&range.prefix).transpose()? else { return Ok((lower, upper)) };
    match L::Key::with_prefix(prefix) {
        None => usage("--prefix is for byte strings, and this cluster has u64 keys"),
        Some((first, behind)) => {
            Ok((stricter(lower, first, Ordering::Greater), stricter(upper, behind, Ordering::Less)))
        }
    }
}

/// The bound that fewer keys are within: of two lower bounds the `Greater` one, of two upper bounds
/// the `Less`.
fn stricter<K: Ord>(one: Bound<K>, other: Bound<K>, wanted: Ordering) -> Bound<K> {
    use Bound::{Excluded, Included, Unbounded};
    let order = match (&one, &other) {
        (Unbounded, _) => return other,
        (_, Unbounded) => return one,
        (Included(one) | Excluded(one), Included(other) | Excluded(other)) => one.cmp(other),
    };
    let is_one = order == wanted || order.is_eq() && matches!(one, Excluded(_));
    if is_one { one } else { other }
}

/// A part of a scan's output.
pub(super) struct ScanOutputPart<K> {
    pub(super) range: KeyBounds<K>,
    pub(super) limit: u64,
    pub(super) reverse: bool,
}

impl<K> ScanOutputPart<K> {
    /// All records, ascending.
    pub(super) fn everything() -> Self {
        Self { range: (Bound::Unbounded, Bound::Unbounded), limit: u64::MAX, reverse: false }
    }
}

/// Appends a field of a CSV file. Text has no line breaks, and no white space at its ends
/// (text.TX2).
fn put_field(text: &str, line: &mut String) {
    if text.contains([',', '"']) {
        *line = format!("{line}\"{}\"", text.replace('"', "\"\""));
    } else {
        line.push_str(text);
    }
}

/// Prints a scan. Calls `count` for each part.
pub(super) async fn print_scan<L: ClusterLayout>(
    client: &ClusterClient<L>,
    part: ScanOutputPart<OwnedKey<L>>,
    notation: Notation,
    abandon: &AbandonSignal,
    out: &mut impl Write,
    count: impl Fn(u64),
) -> anyhow::Result<()> {
    let (mut line, mut field) = (String::new(), String::new());
    parts::<L>(client, part, |records| {
        for (key, value) in records {
            abandon.check()?;
            line.clear();
            field.clear();
            L::key(key).write(notation, &mut field);
            put_field(&field, &mut line);
            line.push(',');
            field.clear();
            L::value(value).write(notation, &mut field);
            put_field(&field, &mut line);
            writeln!(out, "{line}")?;
        }
        count(records.len() as u64);
        Ok(())
    })
    .await
}

/// Scans part by part, because the result may not fit into memory.
pub(super) async fn parts<L: ClusterLayout>(
    client: &ClusterClient<L>,
    ScanOutputPart { range: (mut lower, mut upper), limit, reverse }: ScanOutputPart<OwnedKey<L>>,
    mut take: impl FnMut(&[OwnedRecord<L>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut left = limit;
    while left > 0 {
        let together = left.min(RECORDS_PER_BATCH) as usize;
        let scan = ScanRequest::range((lower.clone(), upper.clone())).limit(together);
        let scan = if reverse { scan.reverse() } else { scan };
        let mut records = client.scan(&scan).await?;
        take(&records)?;
        left -= records.len() as u64;
        let is_full = records.len() == together;
        let Some((last, _)) = records.pop().filter(|_| is_full) else { break };
        let behind = if reverse { &mut upper } else { &mut lower };
        *behind = Bound::Excluded(last);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_all_of_its_bounds() {
        use Bound::{Excluded, Included, Unbounded};
        let (greater, less) = (Ordering::Greater, Ordering::Less);
        assert_eq!(stricter(Unbounded, Included(1), greater), Included(1));
        assert_eq!(stricter(Excluded(1), Unbounded, less), Excluded(1));
        assert_eq!(stricter(Included(1), Included(2), greater), Included(2));
        assert_eq!(stricter(Included(1), Excluded(2), less), Included(1));
        for (one, other) in [(Included(1), Excluded(1)), (Excluded(1), Included(1))] {
            assert_eq!(stricter(one, other, greater), Excluded(1));
            assert_eq!(stricter(one, other, less), Excluded(1));
        }
        assert_eq!(stricter::<u8>(Unbounded, Unbounded, less), Unbounded);
    }

    #[test]
    fn fields_are_quoted_if_they_must_be() {
        let line = |fields: [&str; 2]| {
            let mut line = String::new();
            put_field(fields[0], &mut line);
            line.push(',');
            put_field(fields[1], &mut line);
            line
        };
        assert_eq!(line(["a b", ""]), "a b,");
        assert_eq!(line(["a,b", "say \"x\""]), "\"a,b\",\"say \"\"x\"\"\"");
    }
}
