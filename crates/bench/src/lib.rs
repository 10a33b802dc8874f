//! Measuring index designs: what is asked of them, who asks, and what it cost.
//!
//! [`keys`] says which keys are loaded and where new ones fall, [`workload`] what clients do with them,
//! [`driver`] runs the clients and counts, [`report`], [`table`] and [`timeline`] say what came out. [`trace`] replays
//! recorded requests instead, [`input`] loads records of a file. [`single_machine`] is the yardstick: the same
//! tree without a network. The simulator runs the same operation streams as the benchmark.

#![forbid(unsafe_code)]

mod columns;
pub mod driver;
pub mod input;
pub mod keys;
pub mod report;
pub mod single_machine;
pub mod table;
pub mod timeline;
pub mod trace;
pub mod workload;

pub use columns::InputError;
