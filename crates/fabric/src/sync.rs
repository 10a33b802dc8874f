//! The only access to `std::sync`: with `--cfg loom` or `--cfg shuttle`, a model scheduler's types
//! replace it.
//!
//! All state shared between threads is built from the exports of this module, so the same code runs
//! under real threads and under a model scheduler. Loom tries every order of small models. Shuttle
//! tries random orders of whole operations over the local provider, all of them sequentially
//! consistent.

#[cfg(loom)]
pub use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    mpsc,
};

#[cfg(shuttle)]
pub use shuttle::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    mpsc,
};

#[cfg(not(any(loom, shuttle)))]
pub use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    mpsc,
};

/// Holds trait objects, which the model schedulers' own `Arc` cannot.
pub use std::sync::Arc as ObjectArc;

/// Threads and yielding. Under shuttle, a thread that waits for another one must yield.
pub mod thread {
    #[cfg(shuttle)]
    pub use shuttle::thread::{Scope, ScopedJoinHandle, scope, yield_now};

    #[cfg(not(shuttle))]
    pub use std::thread::{Scope, ScopedJoinHandle, scope, yield_now};

    /// Starts a thread of a scope.
    ///
    /// # Errors
    /// The operating system's error if there are too many threads.
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        scope: &'scope Scope<'scope, '_>,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
        #[cfg(shuttle)]
        return Ok(scope.spawn(body));
        #[cfg(not(shuttle))]
        std::thread::Builder::new().spawn_scoped(scope, body)
    }
}

/// Locks `mutex`, even if a thread panicked while holding it.
///
/// The data behind our mutexes (queues and free lists) is consistent at every step, so a poisoned
/// lock adds no information to the panic itself.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Loads a word that the caller is about to change by a read-modify-write.
///
/// Under loom, the load itself is a read-modify-write. Loom keeps only the last access to a word:
/// after a plain load, it would forget earlier loads by other threads, and never try the change
/// before one of those.
#[inline(always)]
pub fn load_to_change(word: &AtomicU64, order: Ordering) -> u64 {
    #[cfg(loom)]
    return match order {
        Ordering::Relaxed => word.fetch_add(0, Ordering::Relaxed),
        _ => word.fetch_add(0, Ordering::AcqRel),
    };
    #[cfg(not(loom))]
    word.load(order)
}
