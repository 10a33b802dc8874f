//! The layouts that clusters can have. The layout is a setting of the cluster, from which each
//! program chooses its types once, by [`with_layout`](crate::with_layout).
//!
//! *Thread safety*: plain values.

use crate::config::ConfigError;
use crate::text::Textual;
use farleaf_core::page::{Bytes, Fixed8, Layout};
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

    /// The size of pages, in bytes.
    pub fn page_bytes(self) -> u64 {
        match self {
            Self::Numbers | Self::Bytes1K => 1024,
            Self::Bytes2K => 2048,
            Self::Bytes4K => 4096,
        }
    }
}

impl fmt::Display for LayoutName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys in pages of {} bytes", self.keys(), self.page_bytes())
    }
}

/// A layout that a cluster can have.
pub trait ClusterLayout: Layout<Key: Textual, Value: Textual> {
    const NAME: LayoutName;
}

impl ClusterLayout for Fixed8 {
    const NAME: LayoutName = LayoutName::Numbers;
}

impl ClusterLayout for Bytes<128> {
    const NAME: LayoutName = LayoutName::Bytes1K;
}

impl ClusterLayout for Bytes<256> {
    const NAME: LayoutName = LayoutName::Bytes2K;
}

impl ClusterLayout for Bytes<512> {
    const NAME: LayoutName = LayoutName::Bytes4K;
}

/// Evaluates an expression with the type of a [`LayoutName`] in place of `$layout`. Each use
/// compiles the code that it calls once per layout.
#[macro_export]
macro_rules! with_layout {
    ($name:expr, $layout:ident => $body:expr) => {
        match $name {
            $crate::layouts::LayoutName::Numbers => {
                type $layout = $crate::layouts::types::Numbers;
                $body
            }
            $crate::layouts::LayoutName::Bytes1K => {
                type $layout = $crate::layouts::types::Bytes1K;
                $body
            }
            $crate::layouts::LayoutName::Bytes2K => {
                type $layout = $crate::layouts::types::Bytes2K;
                $body
            }
            $crate::layouts::LayoutName::Bytes4K => {
                type $layout = $crate::layouts::types::Bytes4K;
                $body
            }
        }
    };
}

/// The types of the layouts, for [`with_layout`](crate::with_layout).
pub mod types {
    use farleaf_core::page::{Bytes, Fixed8};

    pub type Numbers = Fixed8;
    pub type Bytes1K = Bytes<128>;
    pub type Bytes2K = Bytes<256>;
    pub type Bytes4K = Bytes<512>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_type_of_its_name() {
        for name in LayoutName::ALL {
            assert_eq!(LayoutName::new(name.keys(), name.page_bytes()).unwrap(), name);
            assert_eq!(with_layout!(name, L => L::NAME), name);
            assert_eq!(with_layout!(name, L => L::page_words()) as u64 * 8, name.page_bytes());
        }
    }

    #[test]
    fn a_layout_of_another_program_is_one_sentence() {
        for (keys, page_bytes) in [("u64", 2048), ("bytes", 8192), ("tuples", 1024)] {
            let said = LayoutName::new(keys, page_bytes).unwrap_err().to_string();
            let found = format!("no {keys} keys in pages of {page_bytes} bytes");
            assert!(said.contains(&found) && !said.contains('\n'), "{said}");
        }
    }
}
