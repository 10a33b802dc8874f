//! Runs of the benchmark's driver.
//!
//! They form one program because each test program compiles the designs that it uses again.

mod driver;
mod replay;
mod reshaping;
mod single_machine;
mod strings;
mod traces;
mod virtual_time;
