//! Runs the client threads of clusters in real time: [`crate::Cluster::run`] for all such
//! providers.
//!
//! *Thread safety*: plain functions; the clients of a thread stay on it.

use crate::executor::{Driver, Executor};
use crate::sync::thread::{ScopedJoinHandle, scope};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

/// Runs a client for each of `compute_servers`, each on a thread of its own or all on the calling
/// thread. `run_thread` gets the numbers and compute servers of one thread's clients.
pub fn run_on_threads<T: Send>(
    compute_servers: &[u16],
    on_one_thread: bool,
    run_thread: impl Fn(&[(usize, u16)]) -> Vec<Option<T>> + Sync,
) -> Vec<Option<T>> {
    let clients: Vec<(usize, u16)> = compute_servers.iter().copied().enumerate().collect();
    if on_one_thread || clients.len() == 1 {
        return run_thread(&clients);
    }
    let run_thread = &run_thread;
    scope(|scope| {
        let threads: Vec<_> =
            clients.chunks(1).map(|client| scope.spawn(move || run_thread(client))).collect();
        let join = |thread: ScopedJoinHandle<'_, Vec<Option<T>>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    })
}

/// Runs the clients of one thread over the endpoints that `open` returns for compute server and
/// number.
///
/// # Panics
/// If an operation never ends.
pub fn run_here<F, T, Fut: Future<Output = T>>(
    driver: &impl Driver,
    clients: &[(usize, u16)],
    open: impl Fn(u16, usize) -> F,
    body: &impl Fn(F, usize) -> Fut,
) -> Vec<Option<T>> {
    let results: Vec<_> = clients.iter().map(|_| Rc::new(RefCell::new(None))).collect();
    let mut executor = Executor::new();
    for ((number, compute_server), result) in clients.iter().zip(&results) {
        let future = body(open(*compute_server, *number), *number);
        let result = Rc::clone(result);
        executor.spawn(0, async move {
            let value = future.await;
            *result.borrow_mut() = Some(value);
        });
    }
    assert!(executor.run(driver), "an operation did not end by its deadline");
    results.iter().map(|result| result.borrow_mut().take()).collect()
}
