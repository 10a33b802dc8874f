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
mod limits;
mod loads;
mod marks;
mod space;
mod suite;
mod worker;
