//! A whole cluster on one thread, in virtual time, and the checkers of what came of it.
//!
//! [`history`] keeps what every client asked for and got, [`checker`] decides whether an index could

#![forbid(unsafe_code)]

pub mod checker;
pub mod history;
