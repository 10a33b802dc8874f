//! What the driver's numbers are in an index: numbers, or byte strings.
//!
//! *Thread safety*: plain values.

use crate::strings::Strings;
use farleaf_core::index::{ByName, IndexAdmin, Naming};
use farleaf_core::page::{Bytes, Fixed8, Layout};

/// The form of keys and values in an index. The driver knows them by number.
pub trait Form: Clone + Send + Sync + 'static {
    /// The layout of the index's pages.
    type Layout: Layout;

    /// The index as one of numbers.
    fn by_number<I>(&self, index: I) -> impl IndexAdmin<Key = u64, Value = u64> + use<Self, I>
    where
        I: IndexAdmin<Key = <Self::Layout as Layout>::Key, Value = <Self::Layout as Layout>::Value>;
}

/// Numbers of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Numbers;

impl Form for Numbers {
    type Layout = Fixed8;

    fn by_number<I: IndexAdmin<Key = u64, Value = u64>>(
        &self,
        index: I,
    ) -> impl IndexAdmin<Key = u64, Value = u64> + use<I> {
        index
    }
}

impl<const WORDS: usize> Form for Strings<WORDS> {
    type Layout = Bytes<WORDS>;

    fn by_number<I: IndexAdmin<Key = [u8], Value = [u8]>>(
        &self,
        index: I,
    ) -> impl IndexAdmin<Key = u64, Value = u64> + use<WORDS, I> {
        ByName::with(index, self.clone())
    }
}

/// Byte strings in an index that may have other records too. Answers are not decoded, so any record
/// that is found counts as found.
#[derive(Clone, Debug)]
pub struct Undecoded<const WORDS: usize>(pub Strings<WORDS>);

/// The name of everything that is found.
const FOUND: Option<u64> = Some(0);

impl<const WORDS: usize> Naming<Bytes<WORDS>> for Undecoded<WORDS> {
    fn key_named(&self, name: u64) -> Vec<u8> {
        self.0.key_named(name)
    }

    fn name_of_key(&self, _key: &[u8]) -> Option<u64> {
        FOUND
    }

    fn value_named(&self, name: u64) -> Vec<u8> {
        self.0.value_named(name)
    }

    fn name_of_value(&self, _value: &[u8]) -> Option<u64> {
        FOUND
    }
}

impl<const WORDS: usize> Form for Undecoded<WORDS> {
    type Layout = Bytes<WORDS>;

    fn by_number<I: IndexAdmin<Key = [u8], Value = [u8]>>(
        &self,
        index: I,
    ) -> impl IndexAdmin<Key = u64, Value = u64> + use<WORDS, I> {
        ByName::with(index, self.clone())
    }
}
