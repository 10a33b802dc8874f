//! dLSM as an index, alone and in shards: the suite, what operations cost, full pools, directories,
//! moves and divisions of shards, and merges on memory servers.

#![cfg(not(any(loom, shuttle)))]

mod directory;
mod divisions;
mod full;
mod heads;
mod leases;
mod moves;
mod near;
mod paper;
mod records;
mod shards;
mod tree;
mod work;
