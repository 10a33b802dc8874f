//! The form of the driver's numbers in an index: numbers, or byte strings.
//!
//! *Thread safety*: plain values.

use crate::strings::StringForm;
use farleaf_index::{ByName, IndexAdmin};
use farleaf_page::{Bytes, Fixed8, Layout};

/// The form of keys and values in an index. The driver refers to them by number.
pub trait KeyValueForm: Clone + Send + Sync + 'static {
    /// The layout of the index's pages.
    type Layout: Layout;

    /// Wraps the index as one from numbers to numbers.
    fn by_number<I>(&self, index: I) -> impl IndexAdmin<Key = u64, Value = u64> + use<Self, I>
    where
        I: IndexAdmin<Key = <Self::Layout as Layout>::Key, Value = <Self::Layout as Layout>::Value>;
}

/// Numbers of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct NumberForm;

impl KeyValueForm for NumberForm {
    type Layout = Fixed8;

    fn by_number<I: IndexAdmin<Key = u64, Value = u64>>(
        &self,
        index: I,
    ) -> impl IndexAdmin<Key = u64, Value = u64> + use<I> {
        index
    }
}

impl<const WORDS: usize> KeyValueForm for StringForm<WORDS> {
    type Layout = Bytes<WORDS>;

    fn by_number<I: IndexAdmin<Key = [u8], Value = [u8]>>(
        &self,
        index: I,
    ) -> impl IndexAdmin<Key = u64, Value = u64> + use<WORDS, I> {
        ByName::with(index, self.clone())
    }
}
