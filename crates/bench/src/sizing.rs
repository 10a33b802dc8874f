//! How many bytes records take, and how large pools and tables must be for them.
//!
//! *Thread safety*: plain functions.

use farleaf_dex::EntryWeights;
use farleaf_dlsm::DlsmOptions;
use thiserror::Error;

/// Bytes that a record of numbers takes in a full page.
pub const NUMBERS_IN_PAGE: f64 = 1024.0 / 60.0;

/// Bytes that a record of byte strings takes in a full page, including its slot and the padding of
/// both fields to words.
pub fn string_bytes_in_page(record_bytes: f64) -> f64 {
    record_bytes + 24.0
}

/// Weights of a page's entries if a record of byte strings takes `bytes_in_page`. Separators are as
/// short as possible: a slot, a child, and a few bytes.
pub fn string_weights(bytes_in_page: f64) -> EntryWeights {
    EntryWeights { record: (bytes_in_page / 8.0) as usize, child: 4 }
}

/// An LSM tree for records of so many bytes in all, which make this many tables. By default small
/// trees have small tables, so that they have levels too.
pub fn lsm_options(bytes: f64, tables: Option<u32>) -> DlsmOptions {
    const TABLES: f64 = 160.0;
    let table_bytes = match tables {
        // The smallest tables still have some records.
        Some(tables) => {
            ((bytes / f64::from(tables)) as u64).clamp(16 << 10, 1 << 30).next_multiple_of(1 << 10)
        }
        None => ((bytes / TABLES) as u64).clamp(256 << 10, 64 << 20).next_power_of_two(),
    };
    DlsmOptions::with_table_bytes(table_bytes)
}

/// How many bytes records take in the pool on average, apart from free space.
#[derive(Clone, Copy, Debug)]
pub struct RecordBytes {
    /// A loaded record.
    pub loaded: f64,
    /// A record that is inserted later.
    pub inserted: f64,
}

impl RecordBytes {
    /// Records that all take the same.
    pub fn all(bytes: f64) -> Self {
        Self { loaded: bytes, inserted: bytes }
    }
}

/// Maximum size of a pool: offsets on a memory server have 48 bits.
pub const MAX_POOL_BYTES: u64 = 1 << 47;

/// Minimum size of a pool: a smaller one has no room for the superblock and a few chunks.
const MIN_POOL_BYTES: u64 = 4 << 20;

/// The records or the options ask for a pool that no memory server can have.
#[derive(Clone, Copy, Debug, Error)]
#[error(
    "a memory server's pool of {bytes} bytes is out of range: {MIN_POOL_BYTES} to \
     {MAX_POOL_BYTES}"
)]
pub struct PoolSizeError {
    /// The size.
    pub bytes: u64,
}

/// The memory that each server needs for its share of `keys` and for all of `inserts`, which may
/// all fall into one share. The estimate is generous, because memory is only allocated when it is
/// used. Server `n` gets the share `weights[n]` of the keys.
///
/// # Errors
/// [`PoolSizeError`].
pub fn pool_bytes(
    keys: u64,
    record: RecordBytes,
    fill: f64,
    inserts: u64,
    weights: &[u64],
) -> Result<usize, PoolSizeError> {
    let total: f64 = weights.iter().map(|weight| *weight as f64).sum();
    let most = weights.iter().copied().max().unwrap_or(1) as f64;
    // After splits a page is half full; another tenth is for inner nodes.
    let loaded = keys as f64 * most / total * record.loaded / fill * 2.2;
    let inserted = inserts as f64 * record.inserted * 2.0 * 1.1;
    // The conversion saturates; the result is then far above the limit.
    whole_pool_bytes(((loaded + inserted) as u64).saturating_add(64 << 20))
}

/// The next size that a pool can have.
///
/// # Errors
/// [`PoolSizeError`].
pub fn whole_pool_bytes(bytes: u64) -> Result<usize, PoolSizeError> {
    let error = PoolSizeError { bytes };
    if !(MIN_POOL_BYTES..=MAX_POOL_BYTES).contains(&bytes) {
        return Err(error);
    }
    usize::try_from(bytes.next_multiple_of(1 << 20)).map_err(|_| error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_the_number_of_tables() {
        let options = lsm_options(420.0 * 1e6, Some(656));
        assert_eq!((options.table_bytes, options.level0_stop), (641_024, 36));
        assert!(options.level1_bytes < 3 << 20);
        assert_eq!(lsm_options(420.0, Some(656)).table_bytes, 16 << 10);
    }
}
