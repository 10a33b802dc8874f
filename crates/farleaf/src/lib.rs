//! Farleaf: an ordered index of 64-bit keys and values in the memory of other machines.
//!
//! ```
//! use farleaf::{Embedded, EmbeddedOptions};
//!
//! let index = Embedded::open(EmbeddedOptions::default())?;
//! index.insert(42, 7).wait()?;
//! assert_eq!(index.get(42).wait()?, Some(7));
//! for record in index.scan(40..).limit(10) {
//!     let (key, value) = record?;
//!     println!("{key}: {value}");
//! }
//! # Ok::<(), farleaf::Error>(())
//! ```
//!
//! [`Embedded`] runs everything in this process. [`connect`] opens the index of a running cluster,
//! such as one of `farleaf cluster --dir my-cluster`. Both give a [`Handle`], which is `Send`,
//! `Sync` and `Clone`. Each operation is a future that works in a task of tokio, and on a plain
//! thread by [`Call::wait`]:
//!
//! ```no_run
//! # async fn example() -> Result<(), farleaf::Error> {
//! let index = farleaf::connect("my-cluster")?;
//! index.upsert(42, 8).await?;
//! let both = index.multi_get([42, 43]).await?;
//! let mut last = index.scan(..=42).reverse().limit(1);
//! while let Some(record) = last.next().await {
//!     println!("{:?}", record?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What an error means
//!
//! [`Error::nothing_happened`] tells whether a change certainly has not happened and will not. If
//! it returns `false`, it is unknown: look the key up, or repeat the change if that is harmless.
//! Operations that fail without effect are retried until the deadline of the handle.
//!
//! # Threads
//!
//! No thread stands behind a handle. Each caller that waits sends and receives for all: a task
//! registers the endpoint's descriptor with its runtime, and among plain threads one polls it. So a
//! call costs no switch to another thread, timers and other tasks of the runtime go on, and a
//! handle without callers costs nothing.
//!
//! Programs that measure, simulate, or run servers use the crates below this one: `farleaf-core`
//! for the designs, `farleaf-fabric` for transports, `farleaf-cluster` for the programs of a
//! cluster.

#![deny(missing_docs)]
#![deny(unsafe_code)]

mod call;
mod cluster;
#[expect(unsafe_code, reason = "what one thread at a time may use, for use behind a mutex")]
mod confined;
mod embedded;
mod error;
mod handle;
mod request;
mod scan;
mod shared;
mod waiting;

pub use call::Call;
pub use cluster::{ClusterOptions, connect};
pub use embedded::{Embedded, EmbeddedOptions};
pub use error::Error;
pub use farleaf_core::index::Exchange;
pub use handle::Handle;
pub use scan::{Records, Scan};
