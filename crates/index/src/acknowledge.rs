//! When a compute server answers a change.
//!
//! *Thread safety*: plain values.

use crate::named;

/// When a change is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcknowledgeName {
    /// When it is in the compute server's memory. Its death loses changes that are not in the pool
    /// yet.
    #[default]
    Cached,
    /// When it is in the pool. The death of the compute server loses nothing that was answered.
    Written,
}

named!(AcknowledgeName, "cached or written", { Cached: "cached", Written: "written", });
