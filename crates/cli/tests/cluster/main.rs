//! Whole clusters of real processes.

mod crashing;
mod door;
mod ending;
mod finding;
mod flushing;
mod gateway;
mod hostile;
mod launched;
mod launching;
mod long_values;
mod moving;
mod names;
mod rdma;
mod serving;
mod spreading;
mod standing;
mod strings;
mod taking_over;
mod tools;
mod torturing;
mod trees;
mod watching;
