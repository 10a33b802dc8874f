//! Whole clusters of real processes.

mod crashing;
mod hostile;
mod launched;
mod rdma;
mod serving;
mod standing;
mod watching;
