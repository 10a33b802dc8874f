//! The index designs, behind one trait. No design uses another.

mod admin;
mod bulk;
pub mod coarse;
pub mod conformance;
mod design;
pub mod dex;
mod error;
pub mod fine;
pub mod hybrid;
pub mod one_sided;
mod range_index;
mod reshape;

pub use crate::page::{Action, Answer, LeafEdit};
pub use admin::{Background, IndexAdmin};
pub use bulk::{Ascending, check_fill};
pub use design::Design;
pub use error::IndexError;
pub use range_index::{Exchange, RangeIndex, Records, Scan};
pub use reshape::{KeyRange, Reshape, Reshaped};
