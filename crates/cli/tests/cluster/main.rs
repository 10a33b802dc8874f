//! Whole clusters of real processes.

mod launched;
mod serving;
mod standing;
