//! Futures of one task that run concurrently.

/// The results of futures that run concurrently, in their order.
pub use futures_util::future::join_all as all;

/// The results of two futures that run concurrently.
pub use futures_util::future::join;
