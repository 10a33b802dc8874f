//! The one way to `std::sync`: under `--cfg loom` or `--cfg shuttle` the types of a model scheduler stand in.
//!
//! Everything that is shared between threads is built from what this module exports, so the same code
//! runs under real threads and under a model scheduler. Loom tries every order of small models; shuttle tries
//! random orders of whole operations, over the local provider, all of them sequentially consistent.

#[cfg(loom)]
pub use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(shuttle)]
pub use shuttle::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(any(loom, shuttle)))]
pub use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Holds trait objects, which the model schedulers' own `Arc` cannot.
pub use std::sync::Arc as ObjectArc;

/// Threads, and giving one's turn to others: under shuttle nothing else makes it look at who waits for whom.
pub mod thread {
    #[cfg(shuttle)]
    pub use shuttle::thread::{ScopedJoinHandle, scope, yield_now};

    #[cfg(not(shuttle))]
    pub use std::thread::{ScopedJoinHandle, scope, yield_now};
}

/// Locks `mutex`, whatever happened to a thread that held it before.
///
/// The data behind our mutexes is whole at every step (queues and free lists), so a poisoned lock
/// says nothing that the panic itself did not.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}
