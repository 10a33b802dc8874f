//! The layout of a new cluster, and conversion of rows of files to records of any layout.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use farleaf_bench::InputError;
use farleaf_bench::input::{CsvOptions, InputRows, TextRow};
use farleaf_cluster::config::ConfigError;
use farleaf_cluster::layouts::{BlockSettings, ClusterLayout, LayoutName};
use farleaf_cluster::records::IndexName;
use farleaf_cluster::text::{Notation, Textual};
use farleaf_command_line::{units, usage};
use farleaf_dex::blocks::BlockOptions;
use farleaf_page::{Bytes, Fixed8, Layout, OwnedKey, OwnedValue};
use farleaf_pool::wire::check_sent;
use std::path::Path;

/// The layout of a new cluster.
#[derive(Debug, Args)]
pub(super) struct LayoutArguments {
    /// Create the cluster for keys and values of this kind: u64, or bytes for byte strings
    #[arg(
        long,
        value_name = "KIND",
        default_value = "u64",
        value_parser = ["u64", "bytes"],
        requires = "memory_servers"
    )]
    keys: String,
    /// Create it with pages of this size: 1k, 2k or 4k; larger ones take longer keys
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1k",
        value_parser = units::page_bytes,
        requires = "memory_servers"
    )]
    page_bytes: u64,
    /// Create it with this index: dex, or dlsm, whose compute servers move whole shards
    #[arg(
        long,
        value_name = "DESIGN",
        default_value_t = IndexName::default(),
        value_parser = PossibleValuesParser::new(IndexName::NAMES)
            .try_map(|name| name.parse::<IndexName>()),
        requires = "memory_servers"
    )]
    pub(super) index: IndexName,
}

impl LayoutArguments {
    pub(super) fn name(&self) -> Result<LayoutName, ConfigError> {
        LayoutName::new(&self.keys, self.page_bytes)
    }
}

/// How compute servers keep the values of byte strings.
#[derive(Debug, Args)]
pub(super) struct BlockArguments {
    /// Keep longer values of byte strings in blocks beside the leaves, if a page has room for this
    /// many bytes at all
    #[arg(long, value_name = "N", default_value_t = INLINE_BYTES, value_parser = units::inline_bytes)]
    inline_bytes: usize,
    /// Use this part of the cache for values in blocks, if keys are byte strings
    #[arg(long, value_name = "P", default_value = "50", value_parser = units::limited::<u8>(0, 95))]
    block_cache_percent: u8,
}

/// The usual length of the longest values in leaves.
pub(super) const INLINE_BYTES: usize = BlockOptions::<()>::INLINE_BYTES;

impl BlockArguments {
    pub(super) fn settings(&self) -> BlockSettings {
        let Self { inline_bytes, block_cache_percent: cache_percent } = *self;
        BlockSettings { inline_bytes, cache_percent }
    }
}

/// How to read a CSV file of records.
#[derive(Debug)]
pub(super) struct RowReading {
    pub(super) csv: CsvOptions,
    /// Whether the first row is a header. For files of numbers, this is detected.
    pub(super) has_header: bool,
}

/// The next record of a file; `None` at its end.
type NextRecord<L> = Result<Option<(OwnedKey<L>, OwnedValue<L>)>, InputError>;

/// A layout whose records are read from files.
pub(super) trait FromRows: ClusterLayout {
    fn open(path: &Path, reading: &RowReading) -> anyhow::Result<InputRows>;

    fn next(rows: &mut InputRows, notation: Notation) -> NextRecord<Self>;
}

impl FromRows for Fixed8 {
    fn open(path: &Path, reading: &RowReading) -> anyhow::Result<InputRows> {
        if !reading.has_header {
            return usage("--no-header is for byte strings: files of numbers need no header");
        }
        Ok(InputRows::open(path, &reading.csv)?)
    }

    fn next(rows: &mut InputRows, _notation: Notation) -> Result<Option<(u64, u64)>, InputError> {
        rows.next_record()
    }
}

impl<const WORDS: usize> FromRows for Bytes<WORDS>
where
    Self: ClusterLayout + Layout<Key = [u8], Value = [u8]>,
{
    fn open(path: &Path, reading: &RowReading) -> anyhow::Result<InputRows> {
        Ok(InputRows::open_text(path, &reading.csv, reading.has_header)?)
    }

    fn next(
        rows: &mut InputRows,
        notation: Notation,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>, InputError> {
        let Some(TextRow { key, value, number }) = rows.next_text()? else { return Ok(None) };
        let key = <[u8]>::parse(key, notation);
        let value = match value {
            Some(value) => <[u8]>::parse(value, notation),
            None => Ok(number.to_string().into_bytes()),
        };
        // A compute server refuses what is too long, too, but cannot name the line.
        let record = key.and_then(|key| Ok((key, value?))).and_then(|(key, value)| {
            check_sent::<Self>(&key, &value).map_err(|error| error.to_string())?;
            Ok((key, value))
        });
        record.map(Some).map_err(|problem| rows.bad_row(problem))
    }
}

/// Parses a key from the command line.
pub(super) fn key<L: ClusterLayout>(text: &str, notation: Notation) -> anyhow::Result<OwnedKey<L>> {
    L::Key::parse(text, notation).or_else(|why| usage(format!("the key {why}")))
}

/// Parses a value from the command line.
pub(super) fn value<L: ClusterLayout>(
    text: &str,
    notation: Notation,
) -> anyhow::Result<OwnedValue<L>> {
    L::Value::parse(text, notation).or_else(|why| usage(format!("the value {why}")))
}
