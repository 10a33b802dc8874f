//! The write-ahead log of a compute server: what it has answered and holds in its own memory alone,
//! in rings on the memory servers. Its next life, or the compute server that takes its keys over,
//! recovers that from the rings.
//!
//! ```text
//! ring    word 0 life, in the first ring only    1-7 zero    then batches
//! batch   word 0 sum of the others    1 [magic:16][records:16][words:32]    2 position    3 low
//!         then records
//! record  word 0 [kind:8][key bytes:24][value bytes:32]    1 number    key    (bound)    value
//! ```
//!
//! A *life* is a random number. The word with it, of the first ring, is the only one that decides:
//! sums are seeded with the life, so batches of other lives do not count. A *position* is the
//! number of words since the life began, and its place in the ring is the position modulo the
//! ring's size; no batch crosses the end of the ring. Records have *numbers*, in one order for the
//! whole compute server. All records with numbers below a *low* are in tables, or elsewhere in the
//! pool.
//!
//! A record is *durable* when the WRITE of its batch has completed. The durable bound is the
//! highest number up to which all records are; an answer waits for the number of what it reports.
//!
//! *Invariants* (`docs/internals/write-ahead-log.md`)
//! - log.L1. A number is announced until its record is in a batch, and the batch counts as pending
//!   until it is durable. So the durable bound stays below it.
//! - log.L2. Batches may become durable in any order, since an answer waits for the bound.
//! - log.L3. A batch counts only for its life, its ring and its position.
//! - log.L4. What is overwritten has numbers below a low that a durable batch has told. The latest
//!   durable batch of a ring is not overwritten.
//! - log.L5. Of each key the record with the highest number counts, if it is not below the low, and
//!   no barrier of its range has a higher bound.
//! - log.L6. Room is reserved before a record gets its number. Whoever waits for room waits for a
//!   bounded time.
//! - log.L7. A log ends when everything in it that counts is in the pool, and not before.
//!
//! `batch.rs` has the bytes, `log.rs` what the threads of a compute server share, `ring.rs` the
//! space of one ring, `rings.rs` the memory of all of them, `writer.rs` the writer of one endpoint,
//! `recovery.rs` the way back.

mod batch;
mod log;
mod recovery;
mod ring;
mod rings;
mod writer;

pub use batch::WalRecord;
pub use log::{Wal, WalSource};
pub use recovery::{RecoveredWal, end_wal, recover_wal};
pub use writer::{WalKeeper, WalRoom, WalWriter};

/// Words before the batches of a ring.
const RING_HEADER_WORDS: u64 = 8;
/// The word that ends a log: no life has this number.
const NO_LIFE: u64 = 0;
