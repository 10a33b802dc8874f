//! Renders the figures as text.

use super::figures::{Row, Server, State};
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
    let sizes = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    match sizes.into_iter().find(|(bits, _)| number >= f64::from(1u32 << bits)) {
        Some((bits, name)) => format!("{:.1} {name}B", number / f64::from(1u32 << bits)),
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

/// Formats how much of a compute server's cache is dirty, and for how long.
fn dirt(row: &Row) -> String {
    match (row.dirty_bytes, row.dirty_ms) {
        (Some(0.0), _) => "0 B".to_owned(),
        (Some(dirty), Some(ms)) if ms > 0.0 => format!("{}, {:.1} s", bytes(dirty), ms / 1e3),
        (dirty, _) => or_none(dirty, bytes),
    }
}

fn servers(rows: &[Row]) -> Table {
    let header = [
        "server",
        "state",
        "address",
        "operations/s",
        "share",
        "hits",
        "remote/op",
        "bytes/op",
        "connections",
        "memory in use",
        "dirty",
    ];
    let mut table = table(&header, 3);
    for row in rows {
        let state = match row.state {
            State::Live => "live",
            State::Silent(_) => "no answer",
            State::NoMetrics => "no metrics",
            State::Gone => "gone",
        };
        let memory = or_none(row.memory_bytes, bytes);
        let memory = match row.pool_bytes {
            Some(pool) => format!("{memory} of {}", bytes(pool)),
            None => memory,
        };
        table.add_row([
            row.server.to_string(),
            state.to_owned(),
            row.address.clone(),
            or_none(row.operations_per_s, short),
            or_none(row.share, |share| format!("{:.0}%", share * 100.0)),
            or_none(row.hit_ratio, |ratio| format!("{:.1}%", ratio * 100.0)),
            or_none(row.remote_per_operation, |number| format!("{number:.3}")),
            or_none(row.bytes_per_operation, short),
            or_none(row.connections, |number| format!("{number:.0}")),
            memory,
            dirt(row),
        ]);
    }
    table
}

/// The LSM trees of the compute servers that have any. `None` if no server has.
pub(super) fn trees(rows: &[Row]) -> Option<Table> {
    let header = [
        "server",
        "shards",
        "levels",
        "tables",
        "level 0",
        "records",
        "flushed/s",
        "merged/s",
        "merges",
        "waiting",
        "stalls",
        "failures",
        "MemTables",
        "indexes",
    ];
    let mut table = table(&header, 1);
    let whole = |number: Option<f64>| or_none(number, |number| format!("{number:.0}"));
    for row in rows {
        let Some(trees) = row.trees else { continue };
        table.add_row([
            row.server.to_string(),
            short(trees.shards),
            whole(trees.levels),
            or_none(trees.tables, short),
            whole(trees.level0_tables),
            or_none(trees.table_bytes, bytes),
            or_none(trees.flushed_bytes_per_s, bytes),
            or_none(trees.merged_bytes_per_s, bytes),
            whole(trees.merges),
            whole(trees.waiting),
            or_none(trees.stalls, short),
            or_none(trees.failures, short),
            or_none(trees.memtable_bytes, bytes),
            or_none(trees.index_bytes, bytes),
        ]);
    }
    (!table.is_empty()).then_some(table)
}

fn partitions(standing: &ClusterStatus, rows: &[Row]) -> String {
    let Some(map) = &standing.map else { return "no partition map yet".to_owned() };
    let mut table = table(&["keys", "owner", "epoch"], 2);
    let key = |place: Option<usize>| {
        let key = place.and_then(|place| map.boundaries.get(place));
        key.map_or(String::new(), KeyRecord::to_string)
    };
    for (place, owner) in map.owners.iter().enumerate().take(PARTITIONS) {
        let server = Server::Compute(*owner);
        let known = rows.iter().find(|row| row.server == server).and_then(|row| row.map_epoch);
        let epoch = match known {
            Some(known) if known != map.epoch as f64 => {
                format!("{} (its owner has {known:.0})", map.epoch)
            }
            _ => map.epoch.to_string(),
        };
        let range = format!("{}..{}", key(place.checked_sub(1)), key(Some(place)));
        table.add_row([range, server.to_string(), epoch]);
    }
    match map.owners.len().checked_sub(PARTITIONS) {
        None | Some(0) => table.to_string(),
        Some(more) => format!("{table}\n{more} more partitions"),
    }
}

/// Renders the whole view, without a line feed at the end.
pub(super) fn text(standing: &ClusterStatus, catalog: Option<&str>, rows: &[Row]) -> String {
    let missing = standing.missing();
    let serves = match missing.as_slice() {
        [] => "serves".to_owned(),
        missing => format!("does not serve: {}", missing.join("; ")),
    };
    let compute = |row: &&Row| matches!(row.server, Server::Compute(_));
    let loads = rows.iter().filter(compute).filter_map(|row| row.operations_per_s);
    let mut lines = vec![format!("{serves}; {} operations/s", short(loads.sum()))];
    lines.extend(catalog.map(|why| format!("cannot read the catalog: {why}")));
    lines.push(servers(rows).to_string());
    for row in rows {
        match &row.state {
            State::Silent(why) => lines.push(format!("{}: {why}", row.server)),
            State::NoMetrics => {
                lines.push(format!("{}: started without --metrics", row.server));
            }
            State::Live | State::Gone => {}
        }
    }
    lines.extend(trees(rows).map(|trees| trees.to_string()));
    lines.push(partitions(standing, rows));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 999.0, 1000.0, 12_345.0, 9.9e6].map(short);
        assert_eq!(texts, ["0", "999", "1.0k", "12.3k", "9.9M"]);
        let texts = [1023.0, 1024.0, 1.5 * 1048576.0, 3.0 * 1073741824.0].map(bytes);
        assert_eq!(texts, ["1023 B", "1.0 KiB", "1.5 MiB", "3.0 GiB"]);
    }
}
