//! Keys and values as byte strings, for designs that do not store them in pages.
//!
//! *Thread safety*: plain functions.

use std::borrow::Borrow;

/// A type of keys or values in its borrowed form. Keys have the order of their byte strings.
pub trait Encoded: ToOwned + 'static {
    /// Its byte string.
    type Bytes<'a>: AsRef<[u8]>;

    /// Its byte string.
    fn encoded(&self) -> Self::Bytes<'_>;

    /// What a byte string stands for. `None` if nothing has it.
    fn decoded(bytes: impl AsRef<[u8]> + Into<Vec<u8>>) -> Option<Self::Owned>;

    /// The byte string of the owned form.
    fn of_owned(owned: &Self::Owned) -> Vec<u8> {
        let borrowed: &Self = owned.borrow();
        borrowed.encoded().as_ref().to_vec()
    }
}

impl Encoded for [u8] {
    type Bytes<'a> = &'a [u8];

    #[inline]
    fn encoded(&self) -> &[u8] {
        self
    }

    #[inline]
    fn decoded(bytes: impl AsRef<[u8]> + Into<Vec<u8>>) -> Option<Vec<u8>> {
        Some(bytes.into())
    }
}

/// Eight bytes, the highest first.
impl Encoded for u64 {
    type Bytes<'a> = [u8; 8];

    #[inline]
    fn encoded(&self) -> [u8; 8] {
        self.to_be_bytes()
    }

    #[inline]
    fn decoded(bytes: impl AsRef<[u8]> + Into<Vec<u8>>) -> Option<u64> {
        Some(Self::from_be_bytes(bytes.as_ref().try_into().ok()?))
    }
}
