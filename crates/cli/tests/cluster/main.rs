//! Whole clusters of real processes.

mod launched;
mod rdma;
mod serving;
mod standing;
