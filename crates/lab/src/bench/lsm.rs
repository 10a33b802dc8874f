//! Parser of `--lsm`: changes to the tree of the design `dlsm`.

use farleaf_command_line::units;
use farleaf_dlsm::{CompactionPlace, DlsmOptions};
use farleaf_page::table::IndexKind;

/// Bits per key of the Bloom filters, those of the paper.
const BLOOM_BITS: u8 = 10;
/// The smallest table: flushes still have some records.
const MIN_TABLE_BYTES: u64 = 16 << 10;
const MAX_TABLE_BYTES: u64 = 1 << 30;

/// One change of the tree's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LsmChange {
    /// Tables of this size, and all other sizes in proportion.
    Table(u64),
    /// Tables so large that the loaded records make this many.
    Tables(u32),
    /// The index of each table.
    Index(IndexKind),
    /// Where merges run.
    Merges(CompactionPlace),
    /// Tables of level 0 at which writers wait.
    Level0Stop(usize),
    /// Closed MemTables that wait for their flush.
    Immutables(usize),
    /// Merges that run at a time.
    Workers(usize),
    /// Writers take turns.
    WriteQueue,
}

/// The tree that the changes make of `options`, for `bytes` of records. Sizes come first, because
/// they are those of a whole tree.
pub(super) fn changed(options: DlsmOptions, changes: &[LsmChange], bytes: f64) -> DlsmOptions {
    let sized = |options, change: &LsmChange| match *change {
        LsmChange::Table(bytes) => DlsmOptions::with_table_bytes(bytes),
        LsmChange::Tables(tables) => {
            let each = (bytes / f64::from(tables)) as u64;
            let each = each.clamp(MIN_TABLE_BYTES, MAX_TABLE_BYTES);
            DlsmOptions::with_table_bytes(each.next_multiple_of(1 << 10))
        }
        _ => options,
    };
    let mut options = changes.iter().fold(options, sized);
    for change in changes {
        match *change {
            LsmChange::Table(_) | LsmChange::Tables(_) => {}
            LsmChange::Index(index) => options.index = index,
            LsmChange::Merges(merges) => options.merges = merges,
            LsmChange::Level0Stop(tables) => options.level0_stop = tables,
            LsmChange::Immutables(tables) => options.most_immutables = tables,
            LsmChange::Workers(workers) => options.workers = workers,
            LsmChange::WriteQueue => options.write_queue = true,
        }
    }
    options
}

/// Parses one change, `KEY=VALUE` or `write-queue`.
pub(super) fn change(text: &str) -> Result<LsmChange, String> {
    let wrong = || {
        "expected table=BYTES (16Ki to 1Gi), tables=N (1 to 1M), index=compact, full or \
         blocks:BYTES (1 to 1Mi), merges=compute, memory or cost, level0-stop=N (4 to 1000), \
         immutables=N (1 to 64), workers=N (1 to 16) or write-queue"
            .to_owned()
    };
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let within = |least: u64, most: u64| {
        let number = units::bytes(value).ok();
        number.filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
    };
    Ok(match (key, value) {
        ("table", _) => LsmChange::Table(within(MIN_TABLE_BYTES, MAX_TABLE_BYTES)?),
        ("tables", _) => LsmChange::Tables(within(1, 1_000_000)? as u32),
        ("index", "compact") => LsmChange::Index(IndexKind::Compact),
        ("index", "full") => LsmChange::Index(IndexKind::Full { bloom_bits: BLOOM_BITS }),
        ("index", _) => {
            let bytes = value.strip_prefix("blocks:").and_then(|bytes| units::bytes(bytes).ok());
            let bytes = bytes.filter(|bytes| (1..=1 << 20).contains(bytes)).ok_or_else(wrong)?;
            let block_bytes = bytes as u32;
            LsmChange::Index(IndexKind::Blocks { block_bytes, bloom_bits: BLOOM_BITS })
        }
        ("merges", "compute") => LsmChange::Merges(CompactionPlace::Compute),
        ("merges", "memory") => LsmChange::Merges(CompactionPlace::Memory),
        ("merges", "cost") => LsmChange::Merges(CompactionPlace::ByCost),
        ("level0-stop", _) => LsmChange::Level0Stop(within(4, 1_000)? as usize),
        ("immutables", _) => LsmChange::Immutables(within(1, 64)? as usize),
        ("workers", _) => LsmChange::Workers(within(1, 16)? as usize),
        ("write-queue", "") => LsmChange::WriteQueue,
        _ => return Err(wrong()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_a_key_and_a_sensible_value() {
        let blocks = IndexKind::Blocks { block_bytes: 8192, bloom_bits: 10 };
        assert_eq!(change("index=blocks:8Ki"), Ok(LsmChange::Index(blocks)));
        assert_eq!(change("table=64Mi"), Ok(LsmChange::Table(64 << 20)));
        assert_eq!(change("merges=cost"), Ok(LsmChange::Merges(CompactionPlace::ByCost)));
        assert_eq!(change("write-queue"), Ok(LsmChange::WriteQueue));
        for wrong in [
            "",
            "table=0",
            "table=2Gi",
            "tables=0",
            "index=blocks:0",
            "index=tree",
            "merges=",
            "level0-stop=3",
            "level0-stop=1001",
            "immutables=0",
            "workers=17",
            "write-queue=1",
        ] {
            assert!(change(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_leave_other_changes_alone() {
        let changes = [LsmChange::WriteQueue, LsmChange::Level0Stop(100), LsmChange::Tables(656)];
        let options = changed(DlsmOptions::default(), &changes, 420.0 * 1e6);
        assert_eq!((options.table_bytes, options.level0_stop), (641_024, 100));
        assert!(options.write_queue && options.level1_bytes < 3 << 20);
        let tiny = changed(DlsmOptions::default(), &changes, 420.0);
        assert_eq!(tiny.table_bytes, MIN_TABLE_BYTES);
    }
}
