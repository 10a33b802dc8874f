//! The form of the driver's numbers in an index: numbers, or byte strings.
//!
//! *Thread safety*: plain values.

use crate::strings::StringForm;
use farleaf_fabric::AnyFabric;
use farleaf_index::{AnyIndex, AnyIndexOf, ByName};
use farleaf_page::{Bytes, Fixed8, Layout};

/// The form of keys and values in an index. The driver refers to them by number.
pub trait KeyValueForm: Clone + Send + Sync + 'static {
    /// The layout of the index's pages.
    type Layout: Layout;

    /// Wraps the index of an endpoint as one from numbers to numbers.
    fn by_number(&self, index: AnyIndexOf<Self::Layout>, fabric: AnyFabric) -> AnyIndex<u64, u64>;
}

/// Numbers of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct NumberForm;

impl KeyValueForm for NumberForm {
    type Layout = Fixed8;

    fn by_number(&self, index: AnyIndex<u64, u64>, _fabric: AnyFabric) -> AnyIndex<u64, u64> {
        index
    }
}

impl<const WORDS: usize> KeyValueForm for StringForm<WORDS> {
    type Layout = Bytes<WORDS>;

    fn by_number(&self, index: AnyIndex<[u8], [u8]>, fabric: AnyFabric) -> AnyIndex<u64, u64> {
        AnyIndex::of(ByName::with(index, self.clone()), fabric)
    }
}
