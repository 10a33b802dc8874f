//! The limits of keys and values.
//!
//! *Thread safety*: plain values.

use thiserror::Error;

/// A key or a value that no page can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LengthError {
    /// The key is too long.
    #[error("the key has {bytes} bytes, and keys can have at most {most}")]
    Key {
        /// Its length.
        bytes: usize,
        /// The longest key.
        most: usize,
    },
    /// The value. A record lies within one page, so a longer key leaves less room for the value.
    #[error("the value has {bytes} bytes, and a value of this key can have at most {most}")]
    Value {
        /// Its length.
        bytes: usize,
        /// The longest value that fits with the same key.
        most: usize,
    },
}
