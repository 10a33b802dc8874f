//! Whole clusters of real processes.

mod finding;
mod hostile;
mod launched;
mod rdma;
mod serving;
mod standing;
mod tools;
mod watching;
