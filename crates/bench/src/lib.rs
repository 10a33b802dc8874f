//! Measures index designs: workloads, clients, and the cost of their operations.
//!
//! - [`keys`] defines the loaded keys and where new ones fall.
//! - [`strings`] converts them to byte strings.
//! - [`workload`] generates the operations of clients.
//! - [`driver`] runs the clients and counts.
//! - [`report`], [`table`] and [`timeline`] present the results, with [`units`].
//! - [`trace`] replays recorded requests instead of a workload.
//! - [`input`] loads records from a file.
//! - [`sizing`] computes how much memory records need.
//! - [`single_machine`] is the baseline: the same tree without a network.
//!
//! The simulator runs the same operation streams as the benchmark.

#![forbid(unsafe_code)]

mod columns;
mod content;
pub mod driver;
pub mod input;
mod input_error;
pub mod keys;
pub mod report;
mod rows;
pub mod single_machine;
pub mod sizing;
pub mod strings;
pub mod table;
pub mod timeline;
pub mod trace;
pub mod units;
pub mod workload;
mod zstd;

pub use input_error::InputError;
