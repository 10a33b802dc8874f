//! The index designs on byte strings. One program, because each test program compiles the designs
//! that it uses anew.

#![cfg(not(any(loom, shuttle)))]

mod blocks;
mod crashes;
mod designs;
mod limits;
mod loads;
mod providers;
mod suite;
mod worker;
