//! What providers that run in real time are built of, for those that live in crates of their own.
//!
//! *Thread safety*: each says its own.

pub use crate::access::check_alignment;
pub use crate::clock::Clock;
pub use crate::gates::{Gate, Gates};
pub use crate::timers::Timers;
pub use crate::wake::WakeFd;
