//! The suites that every design passes on every provider. The tests of this crate run them, and
//! what concerns all crates: the layers, the documents, and the model checkers.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod conformance;
#[cfg(not(any(loom, shuttle)))]
pub mod providers;
#[cfg(not(any(loom, shuttle)))]
pub mod strings;
