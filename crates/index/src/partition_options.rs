//! Options of designs whose compute servers own ranges of the keys.
//!
//! *Thread safety*: plain values.

use super::IndexError;
use crate::{design_options, named};
use std::fmt::Debug;

/// Where a bulk load puts the boundaries between compute servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boundaries {
    /// At [`PartitionOptions::boundaries`].
    #[default]
    Kept,
    /// At leaves, so that all servers get about the same number of records.
    EqualRecords,
}

named!(Boundaries, "keys or records", { Kept: "keys", EqualRecords: "records", });

design_options! {
    /// When to balance load among compute servers, for tasks that run a balancer.
    #[derive(Clone, Debug, PartialEq)]
    pub struct BalanceOptions {
        /// Each handle samples one in this many operations, separately for each compute server.
        pub one_in as "balance_one_in": u32 = 64, in 1..=1_000_000;
        /// Length of a window, in nanoseconds: loads are counted for this long before they are
        /// evaluated. 0 is for indexes without a balancer.
        pub window_ns as "balance_window_ns": u64 = 100_000_000, in 0..=86_400_000_000_000;
        /// Windows with fewer samples are ignored.
        pub least_samples as "balance_least_samples": u64 = 512;
        /// A server counts as overloaded above this multiple of the mean load.
        pub threshold as "balance_threshold": f64 = 1.3, in 1.0..=1000.0;
        /// Once balancing has begun, it continues until no server is above this multiple of the
        /// mean load.
        pub calm as "balance_calm": f64 = 1.15, in 1.0..=1000.0;
        /// Loads that cannot be evened out are left alone until some server's load has changed by
        /// more than this fraction of the mean.
        pub change as "balance_change": f64 = 0.25, in 0.0..=1000.0;
        /// A server must be overloaded in this many consecutive windows before keys move.
        pub windows as "balance_windows": u32 = 2, in 1..=1_000_000;
        /// A move must reduce the larger of the two loads by at least this fraction of the mean.
        pub least_gain as "balance_least_gain": f64 = 0.1, in 0.0..=1000.0;
        /// Ignore this many windows after a move.
        pub rest_windows as "balance_rest_windows": u32 = 1, in 0..=1_000_000;
        /// Move no keys back within this many windows after a move.
        pub no_return_windows as "balance_no_return_windows": u64 = 8, in 0..=1_000_000;
        /// Whether compute servers that own no keys take part. If not, balancing ignores them, as
        /// it ignores servers that have left.
        pub uses_spares as "balance_uses_spares": bool = true;
    }
}

impl BalanceOptions {
    /// Options for compute servers that are separate processes. A drained server stays without
    /// keys.
    pub fn for_processes() -> Self {
        Self { window_ns: 500_000_000, least_samples: 64, uses_spares: false, ..Self::default() }
    }
}

/// What partitioning needs from the options of a new index.
pub trait PartitionOptions<K>: Clone + Debug + Send + Sync {
    /// Options of one compute server, for example of its cache.
    type ServerOptions;

    /// The low ends of the compute servers' ranges, without the first one; strictly ascending.
    /// There is one fewer than there are compute servers.
    fn boundaries(&self) -> &[K];

    /// Further compute servers that own no keys at first.
    fn spare_compute_servers(&self) -> u16;

    /// Memory servers that hold nothing at first: the last ones of the fabric.
    fn spare_memory_servers(&self) -> u16;

    /// How to balance load among compute servers, if a balancer runs.
    fn balance(&self) -> &BalanceOptions;

    /// How a bulk load treats the boundaries.
    fn at_load(&self) -> Boundaries;

    /// The options of each compute server.
    fn server(&self) -> &Self::ServerOptions;

    /// Whether keys can move between compute servers with these options.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if they cannot.
    fn check_moves(&self) -> Result<(), IndexError>;
}
