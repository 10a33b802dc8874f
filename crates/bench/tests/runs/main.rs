//! Runs of the benchmark's driver.
//!
//! One program, because each test program compiles the designs that it uses anew.

mod driver;
mod replay;
mod reshaping;
mod single_machine;
mod strings;
