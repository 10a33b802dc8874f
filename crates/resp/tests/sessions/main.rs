//! Sessions over a store in memory: what each command replies, pipelines in any pieces and any
//! order of completion, other decoders as oracles, and hostile input.

mod memory;
mod pipelines;
mod replies;
