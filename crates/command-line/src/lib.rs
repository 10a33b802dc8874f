//! What the command lines of `farleaf` and `farleaf-lab` share.
//!
//! - [`exit`] has the exit codes, and errors of one line.
//! - [`output`] writes to stdout and stderr, and draws progress bars.
//! - [`units`] parses numbers as people write them.
//!
//! No function here is generic over a design: each program compiles those that it has.

#![forbid(unsafe_code)]

pub mod exit;
pub mod output;
pub mod units;

pub use exit::usage;
