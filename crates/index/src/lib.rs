//! What all index designs have in common: the traits that they implement, the partitioning of keys
//! among compute servers, and the client. The designs are in crates above.
//!
//! A key's way leads through [`partition`], or for other programs through [`client`], to a design.
//! `together` runs futures of one task concurrently, for scans and multi-gets.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod acknowledge;
mod admin;
mod bulk;
mod by_name;
mod cache_counters;
pub mod client;
mod design;
mod error;
mod memory_use;
mod object;
mod option_names;
pub mod option_schema;
mod owned_range;
pub mod partition;
mod partition_options;
mod partitioned;
mod range_index;
mod reshape;
pub mod together;
mod values;

pub use acknowledge::AcknowledgeName;
pub use admin::{Background, IndexAdmin};
pub use bulk::{AscendingCheck, check_fill};
pub use by_name::{ByName, NamesOfLayout, Naming};
pub use cache_counters::{CacheCounters, LiveCounters};
pub use design::Design;
pub use error::IndexError;
pub use farleaf_page::{EditAction, EditAnswer, Encoded, LeafEdit};
pub use memory_use::MemoryUse;
pub use object::{AnyCompute, AnyDesign, AnyIndex, AnyIndexOf, LoopStep, OperationLoop, perform};
pub use option_names::UnknownName;
pub use option_schema::{
    OptionBounds, OptionChange, OptionError, OptionField, OptionSchema, OptionType, OptionValue,
};
pub use owned_range::{OwnedRange, Ownership};
pub use partition_options::{BalanceOptions, Boundaries, PartitionOptions};
pub use partitioned::{
    BuiltContent, BulkBuilder, PartIndex, PartPool, PartState, Partitioned, ReleasedKeys,
};
pub use range_index::{
    Exchange, KeyedRecords, OPERATIONS_PER_BATCH, OwnedForm, RangeIndex, RecordOf, RecordsOf,
    ScanRequest, rounds,
};
pub use reshape::{KeyRange, Reshape, ReshapeCost};
pub use values::{InLeaves, InTables, PartValues, ReclaimOutcome, ScanEnd, ValueForm};

/// The default size of a compute server's cache, in bytes.
pub const DEFAULT_CACHE_BYTES: u64 = 64 << 20;
