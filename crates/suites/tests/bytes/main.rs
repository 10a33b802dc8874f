//! The index designs on byte strings. They form one program because each test program compiles the
//! designs that it uses again.

#![cfg(not(any(loom, shuttle)))]

mod block_batches;
mod block_chunks;
mod block_loads;
mod block_memory;
mod blocks;
mod crashes;
mod designs;
mod dlsm;
mod dlsm_directory;
mod dlsm_divisions;
mod dlsm_full;
mod dlsm_heads;
mod dlsm_moves;
mod dlsm_near;
mod dlsm_paper;
mod dlsm_records;
mod dlsm_shards;
mod dlsm_work;
mod leases;
mod limits;
mod loads;
mod marks;
mod providers;
mod space;
mod suite;
mod worker;
