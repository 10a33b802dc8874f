//! Workloads: mixes of operations as data, distributions of keys, and the stream of operations that
//! both determine together with a seed.

mod distribution;
mod mix;
mod permutation;
mod stream;

pub use distribution::{Distribution, DistributionError};
pub use mix::{NAMED_MIXES, OperationKind, OperationMix, ScanLength, UnknownMix};
pub use permutation::Permutation;
pub use stream::{
    HarnessDeviations, InsertedCounts, OperationStream, StreamConfig, WorkloadOperation,
};
