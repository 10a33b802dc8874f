//! The index designs, behind one trait. No design uses another.

mod admin;
pub mod blocks;
mod bulk;
mod by_name;
pub mod chime;
pub mod coarse;
pub mod conformance;
mod design;
pub mod dex;
pub mod dlsm;
mod error;
pub mod fine;
pub mod hybrid;
mod memory_use;
pub mod one_sided;
mod partition_options;
mod partitioned;
mod range_index;
mod reshape;
pub mod sherman;
mod sides;
pub mod smart;
mod values;

pub use admin::{Background, IndexAdmin};
pub use bulk::{Ascending, check_fill};
pub use by_name::{ByName, NamesOfLayout, Naming};
pub use design::Design;
pub use error::IndexError;
pub use farleaf_page::{Action, Answer, Encoded, LeafEdit};
pub use memory_use::MemoryUse;
pub use partition_options::{BalanceOptions, Boundaries, PartitionOptions};
pub use partitioned::{Built, BulkBuilder, PartIndex, PartPool, PartState, Partitioned, Released};
pub use range_index::{Exchange, Owned, RangeIndex, RecordOf, Records, RecordsOf, Scan};
pub(crate) use range_index::{OPERATIONS_TOGETHER, rounds};
pub use reshape::{KeyRange, Reshape, Reshaped};
pub use values::{InLeaves, InTables, PartValues, Reclaimed, Scanned, ValueForm};
