//! The one way to `std::sync`: under `--cfg loom` the model checker's types stand in.
//!
//! Everything that is shared between threads is built from what this module exports, so the same code
//! runs under real threads and under a model scheduler.

#[cfg(loom)]
pub use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
pub use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
};

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
