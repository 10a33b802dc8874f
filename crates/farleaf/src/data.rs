//! The types of keys and values.
//!
//! *Thread safety*: plain functions.

use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}

    impl Sealed for u64 {}
    impl Sealed for [u8] {}
}

/// The keys and values of an [`crate::Index`]: `u64`, or byte strings, `[u8]`.
///
/// Byte strings are ordered byte by byte, with a prefix before any longer string, and may be empty.
/// Operations return them as `Vec<u8>`.
pub trait KeyKind:
    sealed::Sealed
    + Ord
    + Debug
    + ToOwned<Owned: Clone + Ord + Debug + Send + Sync + Unpin + 'static>
    + 'static
{
}

impl KeyKind for u64 {}
impl KeyKind for [u8] {}

/// A key or value argument of an operation: a `u64`, or anything that contains bytes, such as
/// `&[u8]`, `Vec<u8>`, `&str` and `b"bytes"`.
pub trait IntoKey<K: ?Sized + KeyKind> {
    /// The key or value.
    fn owned(self) -> K::Owned;
}

impl IntoKey<u64> for u64 {
    fn owned(self) -> u64 {
        self
    }
}

impl<T: AsRef<[u8]>> IntoKey<[u8]> for T {
    fn owned(self) -> Vec<u8> {
        self.as_ref().to_vec()
    }
}
