//! The layouts that clusters can have. The layout is a setting of the cluster, from which each
//! program chooses its types once, by [`with_layout`](crate::with_layout).
//!
//! *Thread safety*: plain values.

use crate::config::ConfigError;
use crate::text::Textual;
use farleaf_dex::blocks::{BlockOptions, BlockUsage, InBlocks, SharedBlocks};
use farleaf_index::{InLeaves, IndexError, ValueForm};
use farleaf_page::{Bytes, Fixed8, Layout};
use farleaf_pool::wire::MAX_VALUE_BYTES;
use std::fmt;

/// A layout by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayoutName {
    /// `u64` keys and values in pages of 1 KiB.
    #[default]
    Numbers,
    /// Byte strings in pages of 1 KiB.
    Bytes1K,
    /// Byte strings in pages of 2 KiB.
    Bytes2K,
    /// Byte strings in pages of 4 KiB.
    Bytes4K,
}

impl LayoutName {
    const ALL: [Self; 4] = [Self::Numbers, Self::Bytes1K, Self::Bytes2K, Self::Bytes4K];

    /// The layout of these settings: the kind of keys, and the size of pages in bytes.
    ///
    /// # Errors
    /// [`ConfigError::Settings`] if this program has no such layout.
    pub fn new(keys: &str, page_bytes: u64) -> Result<Self, ConfigError> {
        let is_wanted = |name: &Self| (name.keys(), name.page_bytes()) == (keys, page_bytes);
        Self::ALL.into_iter().find(is_wanted).ok_or_else(|| {
            ConfigError::Settings(format!(
                "this program has no {keys} keys in pages of {page_bytes} bytes: it has u64 keys \
                 in pages of 1024 bytes, and bytes keys in pages of 1024, 2048 and 4096"
            ))
        })
    }

    /// The kind of keys and values: `u64` or `bytes`.
    pub fn keys(self) -> &'static str {
        match self {
            Self::Numbers => "u64",
            Self::Bytes1K | Self::Bytes2K | Self::Bytes4K => "bytes",
        }
    }

    /// The kind of keys and values in the cluster's settings. Byte strings are not called `bytes`
    /// there: clusters of that name have no value blocks, and a program without value blocks would
    /// take references for values.
    pub fn recorded_keys(self) -> &'static str {
        match self {
            Self::Numbers => "u64",
            Self::Bytes1K | Self::Bytes2K | Self::Bytes4K => "bytes-blocks",
        }
    }

    /// The layout of a cluster with these settings.
    ///
    /// # Errors
    /// [`ConfigError::Settings`] if this program has no such layout.
    pub fn recorded(keys: &str, page_bytes: u64) -> Result<Self, ConfigError> {
        if keys == Self::Bytes1K.keys() {
            let text = "this cluster was made by an older version, which keeps all values of byte \
                        strings in leaves: make a new cluster, and load its records there";
            return Err(ConfigError::Settings(text.to_owned()));
        }
        let is_wanted =
            |name: &Self| (name.recorded_keys(), name.page_bytes()) == (keys, page_bytes);
        match Self::ALL.into_iter().find(is_wanted) {
            Some(name) => Ok(name),
            None => Self::new(keys, page_bytes),
        }
    }

    /// The size of pages, in bytes.
    pub fn page_bytes(self) -> u64 {
        match self {
            Self::Numbers | Self::Bytes1K => 1024,
            Self::Bytes2K => 2048,
            Self::Bytes4K => 4096,
        }
    }

    /// The size of pages, in words of 8 bytes.
    pub fn page_words(self) -> usize {
        self.page_bytes() as usize / 8
    }
}

impl fmt::Display for LayoutName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys in pages of {} bytes", self.keys(), self.page_bytes())
    }
}

/// How a compute server keeps values that are not in leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSettings {
    /// Longer values are in blocks.
    pub inline_bytes: usize,
    /// The part of the cache for blocks, in percent.
    pub cache_percent: u8,
}

/// A layout that a cluster can have.
pub trait ClusterLayout: Layout<Key: Textual, Value: Textual> {
    /// Its name.
    ///
    /// # Panics
    /// If no cluster has pages of this size.
    fn name() -> LayoutName;

    /// The longest value that clients can send, in bytes.
    fn most_value_bytes() -> usize;

    /// How compute servers keep values, if records are in pages.
    type Values: ValueForm<Self>;

    /// The part of a compute server's cache that is for values outside leaves, in percent.
    fn cache_percent(settings: &BlockSettings) -> u8;

    /// What the threads of a compute server share, which caches values in `cache_bytes`.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if a setting is out of range.
    fn shared_values(
        settings: &BlockSettings,
        cache_bytes: u64,
    ) -> Result<<Self::Values as ValueForm<Self>>::Shared, IndexError>;

    /// The space of blocks, and the bytes of cached ones; `None` if this layout has no blocks.
    fn blocks_of(shared: &<Self::Values as ValueForm<Self>>::Shared) -> Option<(BlockUsage, u64)>;
}

impl ClusterLayout for Fixed8 {
    type Values = InLeaves;

    fn name() -> LayoutName {
        LayoutName::Numbers
    }

    fn most_value_bytes() -> usize {
        8
    }

    fn cache_percent(_settings: &BlockSettings) -> u8 {
        0
    }

    fn shared_values(_settings: &BlockSettings, _cache_bytes: u64) -> Result<(), IndexError> {
        Ok(())
    }

    fn blocks_of((): &()) -> Option<(BlockUsage, u64)> {
        None
    }
}

/// Byte strings: longer values are in blocks.
impl<const WORDS: usize> ClusterLayout for Bytes<WORDS>
where
    Self: Layout<Key = [u8], Value = [u8]>,
{
    type Values = InBlocks;

    fn name() -> LayoutName {
        let page_bytes = Self::page_words() as u64 * 8;
        LayoutName::new("bytes", page_bytes).expect("clusters have pages of this size")
    }

    fn most_value_bytes() -> usize {
        MAX_VALUE_BYTES
    }

    fn cache_percent(settings: &BlockSettings) -> u8 {
        settings.cache_percent
    }

    fn shared_values(
        settings: &BlockSettings,
        cache_bytes: u64,
    ) -> Result<SharedBlocks, IndexError> {
        let inline_bytes = settings.inline_bytes;
        let options = BlockOptions::new(());
        SharedBlocks::new(&BlockOptions { inline_bytes, cache_bytes, ..options })
    }

    fn blocks_of(shared: &SharedBlocks) -> Option<(BlockUsage, u64)> {
        Some((shared.usage(), shared.cached_bytes()))
    }
}

/// Evaluates an expression with the type of a [`LayoutName`] in the place of `$layout`. Each use
/// compiles what it calls once for numbers and once for byte strings.
///
/// # Panics
/// If the process has used byte strings in pages of another size.
#[macro_export]
macro_rules! with_layout {
    ($name:expr, $layout:ident => $body:expr) => {
        match $name {
            $crate::layouts::LayoutName::Numbers => {
                type $layout = $crate::layouts::types::NumberLayout;
                $body
            }
            name => {
                type $layout = $crate::layouts::types::StringLayout;
                $layout::choose(name.page_words());
                $body
            }
        }
    };
}

/// The types of the layouts, for [`with_layout`](crate::with_layout).
pub mod types {
    use farleaf_page::{Bytes, CHOSEN, Fixed8};

    pub type NumberLayout = Fixed8;
    pub type StringLayout = Bytes<CHOSEN>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_type_of_its_name() {
        for name in LayoutName::ALL {
            assert_eq!(LayoutName::new(name.keys(), name.page_bytes()).unwrap(), name);
            let recorded = LayoutName::recorded(name.recorded_keys(), name.page_bytes());
            assert_eq!(recorded.unwrap(), name);
        }
        assert_eq!(Bytes::<128>::name(), LayoutName::Bytes1K);
        assert_eq!(Bytes::<256>::name(), LayoutName::Bytes2K);
        // A process chooses one size.
        for name in [LayoutName::Numbers, LayoutName::Bytes4K, LayoutName::Bytes4K] {
            assert_eq!(with_layout!(name, L => L::name()), name);
            assert_eq!(with_layout!(name, L => L::page_words()), name.page_words());
        }
        let other = std::panic::catch_unwind(|| with_layout!(LayoutName::Bytes1K, L => L::name()));
        assert!(other.is_err(), "pages of one size would become pages of another");
    }

    #[test]
    fn a_layout_of_another_program_is_one_sentence() {
        for (keys, page_bytes) in [("u64", 2048), ("bytes", 8192), ("tuples", 1024)] {
            let said = LayoutName::new(keys, page_bytes).unwrap_err().to_string();
            let found = format!("no {keys} keys in pages of {page_bytes} bytes");
            assert!(said.contains(&found) && !said.contains('\n'), "{said}");
        }
        for (keys, page_bytes) in [("u64", 2048), ("bytes-blocks", 8192), ("tuples", 1024)] {
            let said = LayoutName::recorded(keys, page_bytes).unwrap_err().to_string();
            assert!(said.contains(&format!("no {keys} keys in pages")), "{said}");
        }
    }

    #[test]
    fn a_cluster_without_value_blocks_is_refused() {
        for page_bytes in [1024, 2048, 4096] {
            let said = LayoutName::recorded("bytes", page_bytes).unwrap_err().to_string();
            assert!(said.contains("made by an older version") && !said.contains('\n'), "{said}");
        }
    }
}
