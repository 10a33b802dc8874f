//! The kinds of keys in a comparison: numbers, or byte strings. Values have 8 bytes.
//!
//! *Thread safety*: plain values.

use farleaf_bench::keys::KeySpace;
use farleaf_bench::strings::StringForm;
use farleaf_index::Naming;
use farleaf_page::{Bytes, Fixed8, Layout, OwnedKey};
use std::borrow::Borrow;
use std::fmt::Debug;

/// Byte strings, in pages of 1 KiB.
pub(crate) type ByteKeys = StringForm<128>;

/// The loaded keys, by number.
pub(crate) trait LoadedKeys: Debug + Send + Sync + 'static {
    /// The layout of the designs' pages.
    type Layout: Layout<Key: Sync>;
    /// A value in the form that contenders return.
    type Value: Copy + Debug + PartialEq + Send + Sync + Borrow<InPage<Self>>;

    /// The value that marks a step as a lookup. No stream draws it.
    const LOOKUP: Self::Value;
    /// Lengths of the shortest and of the longest key, in bytes.
    const KEY_BYTES: (usize, usize);
    /// Steps per thread; a fast index repeats them several times in a round.
    const STEPS: usize;

    /// The numbers.
    fn space(&self) -> &KeySpace;

    /// The key of a number, loaded or new.
    fn key(&self, number: u64) -> OwnedKey<Self::Layout>;

    /// The value of a number.
    fn value(number: u64) -> Self::Value;

    /// Converts a value that an index has found; `None` if it does not have 8 bytes.
    fn found(value: &InPage<Self>) -> Option<Self::Value>;

    /// A key's bytes, in the order of keys.
    fn key_bytes(key: &BorrowedKey<Self>) -> impl AsRef<[u8]>;

    /// A generous estimate of the bytes of pages per record.
    fn most_bytes(&self) -> u64;
}

/// The type of keys, borrowed.
pub(crate) type BorrowedKey<K> = <<K as LoadedKeys>::Layout as Layout>::Key;
/// A value in the layout's form.
pub(crate) type InPage<K> = <<K as LoadedKeys>::Layout as Layout>::Value;
/// The type of keys, owned.
pub(crate) type OwnedLoadedKey<K> = OwnedKey<<K as LoadedKeys>::Layout>;

impl LoadedKeys for KeySpace {
    type Layout = Fixed8;
    type Value = u64;

    const LOOKUP: u64 = 0;
    const KEY_BYTES: (usize, usize) = (8, 8);
    const STEPS: usize = 1 << 21;

    fn space(&self) -> &KeySpace {
        self
    }

    fn key(&self, number: u64) -> u64 {
        number
    }

    fn value(number: u64) -> u64 {
        number
    }

    #[inline]
    fn found(value: &u64) -> Option<u64> {
        Some(*value)
    }

    #[inline]
    fn key_bytes(key: &u64) -> impl AsRef<[u8]> {
        key.to_be_bytes()
    }

    /// At a fill of 70%, records take 1.6 times their size; this is more.
    fn most_bytes(&self) -> u64 {
        32
    }
}

impl LoadedKeys for ByteKeys {
    type Layout = Bytes<128>;
    type Value = [u8; 8];

    const LOOKUP: [u8; 8] = [0; 8];
    const KEY_BYTES: (usize, usize) = (0, 128);
    /// Fewer, because each step also contains a key.
    const STEPS: usize = 1 << 20;

    fn space(&self) -> &KeySpace {
        self.keys()
    }

    fn key(&self, number: u64) -> Vec<u8> {
        self.key_named(number)
    }

    fn value(number: u64) -> [u8; 8] {
        number.to_le_bytes()
    }

    #[inline]
    fn found(value: &[u8]) -> Option<[u8; 8]> {
        value.try_into().ok()
    }

    #[inline]
    fn key_bytes(key: &[u8]) -> impl AsRef<[u8]> {
        key
    }

    /// Twice the size of a record and its slot, ignoring shared prefixes.
    fn most_bytes(&self) -> u64 {
        let (key, value) = self.record_bytes();
        2 * (key + value) as u64 + 32
    }
}
