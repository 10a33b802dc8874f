//! Futures of one task that run together.

/// The results of futures that run together, in their order.
pub(crate) use futures_util::future::join_all as all;
