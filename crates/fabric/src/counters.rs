//! Per-endpoint counters: what each index operation costs on the network.
//!
//! They are always on. An operation is counted when it is posted, whatever its outcome; a retry
//! counts again. Counters cover the payload, not the transport's headers; an RPC counts its request
//! and its reply.
//!
//! *Thread safety*: a set of counters belongs to one endpoint and one thread, and has its own cache
//! lines; other threads read a [`CounterSnapshot`].

use std::cell::Cell;
use std::ops::{AddAssign, Sub};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters of one endpoint.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters { $($name: Cell<u64>),* }

        /// Counter values at one moment, or a sum or difference of such values.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterSnapshot { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// The current values.
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.get()),* }
            }
        }

        impl AddAssign for CounterSnapshot {
            fn add_assign(&mut self, other: Self) { $(self.$name += other.$name;)* }
        }

        impl Sub for CounterSnapshot {
            type Output = Self;
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }
    };
}

counters! {
    /// One-sided READs.
    reads,
    /// One-sided WRITEs.
    writes,
    /// One-sided CAS and FETCH-ADD.
    atomics,
    /// Remote procedure calls.
    rpcs,
    /// Payload of READs, in bytes.
    bytes_read,
    /// Payload of WRITEs, in bytes.
    bytes_written,
    /// Requests and replies of RPCs, in bytes.
    rpc_bytes,
    /// Operations that the index retried, because of a conflict or an unknown outcome.
    retries,
    /// Doorbells: the operations posted between two waits are sent together and count once.
    doorbells,
    /// Operations that ended as indeterminate.
    indeterminate,
}

fn add(cell: &Cell<u64>, by: usize) {
    cell.set(cell.get() + by as u64);
}

impl Counters {
    /// Counts a READ of `bytes`.
    pub fn count_read(&self, bytes: usize) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }

    /// Counts a WRITE of `bytes`.
    pub fn count_write(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes);
    }

    /// Counts a CAS or a FETCH-ADD.
    pub fn count_atomic(&self) {
        add(&self.atomics, 1);
    }

    /// Counts an RPC and its request.
    pub fn count_rpc(&self, request_bytes: usize) {
        add(&self.rpcs, 1);
        add(&self.rpc_bytes, request_bytes);
    }

    /// Counts the reply of an RPC.
    pub fn count_rpc_reply(&self, reply_bytes: usize) {
        add(&self.rpc_bytes, reply_bytes);
    }

    /// Counts an operation that the index retries.
    pub fn count_retry(&self) {
        add(&self.retries, 1);
    }

    /// Counts a doorbell.
    pub fn count_doorbell(&self) {
        add(&self.doorbells, 1);
    }

    /// Counts an operation with an unknown outcome.
    pub fn count_indeterminate(&self) {
        add(&self.indeterminate, 1);
    }
}

impl CounterSnapshot {
    /// All remote operations: READs, WRITEs, atomics and RPCs.
    pub fn remote_operations(&self) -> u64 {
        self.reads + self.writes + self.atomics + self.rpcs
    }

    /// All payload bytes, in both directions. An atomic moves 8.
    pub fn bytes(&self) -> u64 {
        self.bytes_read + self.bytes_written + self.rpc_bytes + 8 * self.atomics
    }
}
