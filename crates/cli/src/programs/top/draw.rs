//! Renders the figures as text.

use super::figures::{ServerNumber, ServerRow, ServerState};
use comfy_table::{CellAlignment, Table, presets};
use farleaf_cluster::status::ClusterStatus;
use farleaf_cluster::text::KeyRecord;

/// Maximum number of partitions shown.
const PARTITIONS: usize = 64;

/// Formats a number with `k`, `M` and so on for thousands, with at least three digits.
fn short(number: f64) -> String {
    let sizes = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match sizes.into_iter().find(|(size, _)| number >= *size) {
        Some((size, name)) => format!("{:.1}{name}", number / size),
        None => format!("{number:.0}"),
    }
}

/// Formats bytes with their unit.
fn bytes(number: f64) -> String {
    let sizes = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let size = |bits: u32| (1_u64 << bits) as f64;
    match sizes.into_iter().find(|(bits, _)| number >= size(*bits)) {
        Some((bits, name)) => format!("{:.1} {name}B", number / size(bits)),
        None => format!("{number:.0} B"),
    }
}

fn or_none(number: Option<f64>, text: impl Fn(f64) -> String) -> String {
    number.map_or_else(|| "-".to_owned(), text)
}

fn table(header: &[&str], right_from: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for column in table.column_iter_mut().skip(right_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Spaces between two columns of a [`WideTable`] table.
const GAP: usize = 2;

/// A table with a line for each server, without borders. If it is wider than the terminal, the
/// columns that do not fit follow in further tables, so that none is hidden.
pub(super) struct WideTable {
    /// The columns: a header and a cell for each server. The first one names the servers.
    columns: Vec<Vec<String>>,
}

impl WideTable {
    fn new<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Self {
        let mut columns: Vec<Vec<String>> =
            header.iter().map(|name| vec![(*name).to_owned()]).collect();
        for row in rows {
            columns.iter_mut().zip(row).for_each(|(column, cell)| column.push(cell));
        }
        Self { columns }
    }

    /// Whether it has no lines.
    fn is_empty(&self) -> bool {
        self.columns.iter().all(|column| column.len() <= 1)
    }

    /// The tables, none wider than `width` unless a single column is.
    pub(super) fn text(&self, width: usize) -> String {
        let size = |column: &[String]| column.iter().map(|cell| cell.chars().count()).max();
        let size = |column: &[String]| size(column).unwrap_or(0);
        let Some((servers, figures)) = self.columns.split_first() else { return String::new() };
        let (mut tables, mut used) = (vec![vec![servers]], size(servers));
        for column in figures {
            let needed = GAP + size(column);
            let has_figures = tables.last().is_some_and(|table| table.len() > 1);
            if has_figures && used + needed > width {
                tables.push(vec![servers]);
                used = size(servers);
            }
            used += needed;
            if let Some(table) = tables.last_mut() {
                table.push(column);
            }
        }
        let mut lines = Vec::new();
        for table in &tables {
            for place in 0..servers.len() {
                let mut line = format!("{:<1$}", servers[place], size(servers));
                for column in &table[1..] {
                    line.push_str(&format!("{:>1$}", column[place], GAP + size(column)));
                }
                lines.push(line.trim_end().to_owned());
            }
        }
        lines.join("\n")
    }
}

/// Formats how much of a compute server's cache is dirty, and for how long.
fn dirt(row: &ServerRow) -> String {
    match (row.dirty_bytes, row.dirty_ms) {
        (Some(0.0), _) => "0 B".to_owned(),
        (Some(dirty), Some(ms)) if ms > 0.0 => format!("{}, {:.1} s", bytes(dirty), ms / 1e3),
        (dirty, _) => or_none(dirty, bytes),
    }
}

/// Formats a part of a whole in the unit of the whole.
fn part_of(part: Option<f64>, whole: f64) -> String {
    let text = bytes(whole);
    let Some((number, unit)) = text.split_once(' ') else { return text };
    let scale = number.parse::<f64>().ok().filter(|number| *number > 0.0).map(|n| whole / n);
    match (part, scale) {
        (Some(part), Some(scale)) => format!("{:.1} of {number} {unit}", part / scale),
        _ => format!("- of {text}"),
    }
}

/// The first columns are those to look at when a server is slow.
fn servers(rows: &[ServerRow]) -> WideTable {
    let header = [
        "server",
        "op/s",
        "hits",
        "bytes/op",
        "memory in use",
        "dirty",
        "remote/op",
        "share",
        "state",
        "connections",
        "address",
    ];
    let line = |row: &ServerRow| {
        let state = match row.state {
            ServerState::Live => "live",
            ServerState::Silent(_) => "no answer",
            ServerState::NoMetrics => "no metrics",
            ServerState::Gone => "gone",
        };
        let memory = match row.pool_bytes {
            Some(pool) => part_of(row.memory_bytes, pool),
            None => or_none(row.memory_bytes, bytes),
        };
        [
            row.server.to_string(),
            or_none(row.operations_per_s, short),
            or_none(row.hit_ratio, |ratio| format!("{:.1}%", ratio * 100.0)),
            or_none(row.bytes_per_operation, short),
            memory,
            dirt(row),
            or_none(row.remote_per_operation, |number| format!("{number:.3}")),
            or_none(row.share, |share| format!("{:.0}%", share * 100.0)),
            state.to_owned(),
            or_none(row.connections, |number| format!("{number:.0}")),
            row.address.clone(),
        ]
    };
    WideTable::new(header, rows.iter().map(line))
}

/// The LSM trees of the compute servers that have any. `None` if no server has.
pub(super) fn trees(rows: &[ServerRow]) -> Option<WideTable> {
    let header = [
        "server",
        "shards",
        "level 0",
        "waiting",
        "merges",
        "stalls",
        "failures",
        "flushed/s",
        "merged/s",
        "levels",
        "tables",
        "records",
        "MemTables",
        "indexes",
    ];
    let whole = |number: Option<f64>| or_none(number, |number| format!("{number:.0}"));
    let line = |row: &ServerRow| {
        let trees = row.trees?;
        Some([
            row.server.to_string(),
            short(trees.shards),
            whole(trees.level0_tables),
            whole(trees.waiting),
            whole(trees.merges),
            or_none(trees.stalls, short),
            or_none(trees.failures, short),
            or_none(trees.flushed_bytes_per_s, bytes),
            or_none(trees.merged_bytes_per_s, bytes),
            whole(trees.levels),
            or_none(trees.tables, short),
            or_none(trees.table_bytes, bytes),
            or_none(trees.memtable_bytes, bytes),
            or_none(trees.index_bytes, bytes),
        ])
    };
    let table = WideTable::new(header, rows.iter().filter_map(line));
    (!table.is_empty()).then_some(table)
}

fn partitions(standing: &ClusterStatus, rows: &[ServerRow]) -> String {
    let Some(map) = &standing.map else { return "no partition map yet".to_owned() };
    let mut table = table(&["keys", "owner", "epoch"], 2);
    let key = |place: Option<usize>| {
        let key = place.and_then(|place| map.boundaries.get(place));
        key.map_or(String::new(), KeyRecord::to_string)
    };
    for (place, owner) in map.owners.iter().enumerate().take(PARTITIONS) {
        let server = ServerNumber::Compute(*owner);
        let known = rows.iter().find(|row| row.server == server).and_then(|row| row.map_epoch);
        let epoch = match known {
            Some(known) if known != map.epoch as f64 => {
                format!("{} (its owner has {known:.0})", map.epoch)
            }
            _ => map.epoch.to_string(),
        };
        let range = format!("{}..{}", key(place.checked_sub(1)), key(Some(place)));
        let owner = match standing.taker_of(*owner) {
            Some(taker) => format!("{server}; {} takes over", ServerNumber::Compute(taker)),
            None => server.to_string(),
        };
        table.add_row([range, owner, epoch]);
    }
    match map.owners.len().checked_sub(PARTITIONS) {
        None | Some(0) => table.to_string(),
        Some(more) => format!("{table}\n{more} more partitions"),
    }
}

/// The sum of rates. An empty sum of floating-point numbers is -0, and was shown so.
fn total(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, |sum, rate| sum + rate)
}

/// Renders the whole view for a terminal of `width` columns, without a line feed at the end.
pub(super) fn text(
    standing: &ClusterStatus,
    catalog: Option<&str>,
    rows: &[ServerRow],
    width: usize,
) -> String {
    let compute = |row: &&ServerRow| matches!(row.server, ServerNumber::Compute(_));
    let loads = rows.iter().filter(compute).filter_map(|row| row.operations_per_s);
    let takeovers = total(rows.iter().filter_map(|row| row.takeovers));
    let taken = match takeovers {
        0.0 => String::new(),
        1.0 => "; 1 takeover".to_owned(),
        many => format!("; {many:.0} takeovers"),
    };
    let loads = short(total(loads));
    let mut lines = vec![format!("{}; {loads} operations/s{taken}", standing.summary())];
    lines.extend(catalog.map(|why| format!("cannot read the catalog: {why}")));
    lines.push(servers(rows).text(width));
    for row in rows {
        match &row.state {
            ServerState::Silent(why) => lines.push(format!("{}: {why}", row.server)),
            ServerState::NoMetrics => {
                lines.push(format!("{}: started without --metrics", row.server));
            }
            ServerState::Live | ServerState::Gone => {}
        }
    }
    lines.extend(trees(rows).map(|trees| trees.text(width)));
    lines.push(partitions(standing, rows));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::figures::LsmTreeFigures;
    use super::*;
    use farleaf_cluster::records::{MapRecord, MovingRecord};

    /// An idle cluster had *-0 operations/s*, and a figure below 0 has no place here at all.
    #[test]
    fn nothing_is_zero() {
        assert_eq!(short(total(std::iter::empty())), "0");
        assert_eq!(short(total([0.0, 2.0, 3.0].into_iter())), "5");
    }

    /// A dead compute server's keys looked as if nobody cared for them.
    #[test]
    fn takeovers_are_shown() {
        let moving = MovingRecord { id: 7, from: 0, to: 1, at: None, dead: true };
        let map = MapRecord {
            epoch: 3,
            boundaries: vec![KeyRecord::Number(500)],
            owners: vec![0, 1],
            generation: None,
            moving: Some(moving),
            replacing: None,
        };
        let standing = ClusterStatus {
            settings: None,
            memory: Vec::new(),
            compute: Vec::new(),
            index: None,
            map: Some(map),
        };
        let taker = ServerRow {
            takeovers: Some(2.0),
            ..ServerRow::without_figures(ServerNumber::Compute(1), ServerState::Live, String::new())
        };
        let shown = text(&standing, None, &[taker], 80);
        assert!(shown.contains("compute 0; compute 1 takes over"), "{shown}");
        assert!(shown.lines().next().unwrap().ends_with("; 2 takeovers"), "{shown}");
    }

    /// On a terminal of 80 columns the columns behind the 80th were cut off: bytes an operation,
    /// memory and dirty bytes, and the table of LSM trees needs 133.
    #[test]
    fn no_column_is_hidden_on_80_columns() {
        let tree = LsmTreeFigures { shards: 12.0, ..full_trees() };
        let compute = |number| ServerRow {
            operations_per_s: Some(123_456.0),
            share: Some(0.5),
            hit_ratio: Some(1.0),
            remote_per_operation: Some(1.234),
            bytes_per_operation: Some(12_345.0),
            connections: Some(1234.0),
            memory_bytes: Some(1e9),
            dirty_bytes: Some(1023.9 * 1024.0),
            dirty_ms: Some(12_300.0),
            trees: Some(tree),
            ..ServerRow::without_figures(
                ServerNumber::Compute(number),
                ServerState::Live,
                "10.20.30.40:7401".into(),
            )
        };
        let memory = ServerRow {
            operations_per_s: Some(1.0),
            memory_bytes: Some(1e9),
            pool_bytes: Some(64e9),
            ..ServerRow::without_figures(
                ServerNumber::Memory(0),
                ServerState::Gone,
                "tcp 10.20.30.40:7400".into(),
            )
        };
        let rows = [memory, compute(0), compute(12)];
        for (text, all) in [
            (servers(&rows).text(80), &servers(&rows)),
            (trees(&rows).unwrap().text(80), &trees(&rows).unwrap()),
        ] {
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= 80, "{widest}\n{text}");
            for cell in all.columns.iter().flatten() {
                assert!(text.contains(cell.as_str()), "{cell}\n{text}");
            }
        }
        // What tells why a server is slow is in the first lines.
        let text = servers(&rows).text(80);
        let first = text.lines().next().unwrap();
        assert!(first.contains("bytes/op") && first.contains("memory in use"), "{text}");
        assert!(first.contains("dirty"), "{text}");
        // With its 12 lines of partitions and servers, this fits 24 lines.
        let lines = text.lines().count() + trees(&rows).unwrap().text(80).lines().count();
        assert!(lines <= 14, "{lines}");
        // In one piece if there is room.
        assert_eq!(servers(&rows).text(200).lines().count(), 4);
        assert!(text.contains("0.9 of 59.6 GiB"), "{text}");
    }

    fn full_trees() -> LsmTreeFigures {
        let number = Some(123.0);
        let bytes = Some(1023.9 * 1024.0);
        LsmTreeFigures {
            shards: 1.0,
            levels: number,
            tables: Some(12_345.0),
            level0_tables: number,
            table_bytes: bytes,
            memtable_bytes: bytes,
            index_bytes: bytes,
            waiting: number,
            merges: number,
            stalls: Some(12_345.0),
            failures: number,
            flushed_bytes_per_s: bytes,
            merged_bytes_per_s: bytes,
        }
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 999.0, 1000.0, 12_345.0, 9.9e6].map(short);
        assert_eq!(texts, ["0", "999", "1.0k", "12.3k", "9.9M"]);
        let texts = [1023.0, 1024.0, 1.5 * 1048576.0, 3.0 * 1073741824.0].map(bytes);
        assert_eq!(texts, ["1023 B", "1.0 KiB", "1.5 MiB", "3.0 GiB"]);
    }
}
