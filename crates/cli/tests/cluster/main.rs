//! Whole clusters of real processes.

mod hostile;
mod launched;
mod serving;
mod standing;
mod watching;
