//! What each design guarantees beyond the suite of all designs (`conformance.rs`).
//!
//! They form one program because each test program compiles the designs that it uses again.

#![cfg(not(any(loom, shuttle)))]

mod chime;
mod client;
mod clients;
mod coarse;
mod dex;
mod dex_load;
mod dex_moves;
mod dex_records;
mod dex_windows;
mod dex_written;
mod dlsm_written;
mod failed_loads;
mod fine;
mod fresh_nodes;
mod hybrid;
mod other_pages;
mod queues;
mod sherman;
mod smart;
mod space;
mod tickets;
