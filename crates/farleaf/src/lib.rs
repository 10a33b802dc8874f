//! One crate for programs that use Farleaf: an ordered index, in this process or in a cluster.
//!
//! ```
//! use farleaf::{Embedded, EmbeddedOptions};
//!
//! # fn main() -> Result<(), farleaf::Error> {
//! let index = Embedded::open(EmbeddedOptions::default())?;
//! index.insert(42, 7).wait()?;
//! assert_eq!(index.get(42).wait()?, Some(7));
//! for record in index.scan(40..).limit(10) {
//!     let (key, value) = record?;
//!     println!("{key} = {value}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The same from async code, against the cluster that `farleaf cluster --dir /tmp/farleaf` runs:
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), farleaf::Error> {
//! let index = farleaf::connect("/tmp/farleaf")?;
//! index.upsert(42, 7).await?;
//! let value = index.get(42).await?;
//! let mut records = index.scan(..).reverse().limit(10).stream();
//! while let Some(record) = records.next().await {
//!     let (key, value) = record?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Embedded::open`] and [`connect()`] both return an [`Index`]: a handle that is `Send`, `Sync`
//! and cheap to clone. Keep one in a struct and use it from any number of threads and tasks. Every
//! method takes and returns plain values and gives an [`Operation`]: `.await` it in async code, or
//! call [`Operation::wait`] on a plain thread.
//!
//! # Byte strings
//! Keys and values are `u64`, or byte strings in an `Index<[u8]>`, which [`Embedded::open_bytes`]
//! and [`connect_bytes()`] open:
//!
//! ```
//! use farleaf::{Embedded, EmbeddedOptions, Index};
//!
//! # fn main() -> Result<(), farleaf::Error> {
//! let index: Index<[u8]> = Embedded::open_bytes(EmbeddedOptions::default())?;
//! index.upsert("user/ada", "Ada Lovelace").wait()?;
//! index.upsert(b"user/alan\x00", vec![0xff; 100]).wait()?;
//! assert_eq!(index.get("user/ada").wait()?, Some(b"Ada Lovelace".to_vec()));
//! for record in index.scan_prefix("user/").limit(10) {
//!     let (key, value) = record?;
//!     println!("{} has {} bytes", key.escape_ascii(), value.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Keys have at most 128 bytes in pages of 1 KiB, and 256 in larger ones. Values have at most 1 MiB
//! in an embedded index, and 60 KiB in a cluster. A key or a value that is too long ends an
//! operation in [`Error::Invalid`], which names the limit.
//!
//! # Guarantees
//! Operations on one key are linearizable, across all clients. A [`Scan`] is not a snapshot: it
//! returns every key that is present throughout, once and in order. An operation that fails has
//! certainly changed nothing, unless its error is [`Error::Indeterminate`]: then it may have
//! happened, or may still happen.
//!
//! # Threads and runtimes
//! No thread stands between a caller and the network: the thread or task that polls an operation
//! sends its request itself. In tokio, one task of the caller's own runtime then receives the
//! replies, so other tasks and timers keep running, and an operation that the program no longer
//! polls delays no other. Plain threads take turns waiting for the sockets. Other executors work as
//! well: for them, the handle starts one thread that waits for the sockets while operations are in
//! flight.
//!
//! A dropped operation that has been polled once continues; only its result is dropped. So
//! abandoning a change, for example by a timeout, leaves it unknown whether and when it happens. If
//! the runtime has ended meanwhile, it may happen only when the handle is next used.
//!
//! Inside, two groups of files use each other in a circle: an index creates scans, which ask the
//! index for their next page; and the waiters for an engine (tasks, threads and slots) belong to
//! the core that has the engine.

#![deny(missing_debug_implementations, missing_docs)]
#![deny(unsafe_code)]

mod alarm;
mod confined;
mod connect;
mod cores;
mod data;
mod embedded;
mod engine;
mod error;
mod index;
mod operation;
mod request;
mod runtime;
mod scan;
mod slot;
mod threads;

pub use connect::{ConnectOptions, connect, connect_bytes};
pub use data::{IntoKey, KeyKind};
pub use embedded::{Embedded, EmbeddedOptions};
pub use error::{Error, ErrorCause};
pub use farleaf_index::Exchange;
pub use index::Index;
pub use operation::Operation;
pub use scan::{Scan, ScanStream};
