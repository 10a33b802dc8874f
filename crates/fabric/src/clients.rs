//! Runs the client threads of clusters in real time: [`crate::Cluster::run`] for all such
//! providers.
//!
//! *Thread safety*: plain functions; the clients of a thread stay on it.

use crate::executor::{Driver, Executor};
use crate::sync::thread::{scope, spawn_scoped};
use crate::sync::{Mutex, lock, mpsc};
use std::future::Future;
use std::io;
use std::pin::Pin;

/// A client of a cluster, to be polled on the thread that started it.
pub type ClientTask<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A client to run: its number and its compute server.
type ClientPlacement = (usize, u16);

/// Runs a client for each of `compute_servers`: either each on its own thread, or all on the
/// calling thread. `open` prepares the clients of one thread there, and `run` runs them. No client
/// runs unless all of them can.
///
/// # Errors
/// That of `open`, or the operating system's if there are too many threads.
pub fn run_on_threads<T>(
    compute_servers: &[u16],
    on_one_thread: bool,
    open: &(dyn Fn(&[ClientPlacement]) -> io::Result<T> + Sync),
    run: &(dyn Fn(T, &[ClientPlacement]) + Sync),
) -> io::Result<()> {
    let clients: Vec<ClientPlacement> = compute_servers.iter().copied().enumerate().collect();
    if on_one_thread || clients.len() == 1 {
        run(open(&clients)?, &clients);
        return Ok(());
    }
    // Clients wait for each other, so some of them alone could wait for ever.
    let may_run = Mutex::new(false);
    scope(|scope| {
        let (report, reports) = mpsc::channel();
        let mut gate = lock(&may_run);
        let mut threads = Vec::with_capacity(clients.len());
        let mut outcome = Ok(());
        for client in clients.chunks(1) {
            let (report, may_run) = (report.clone(), &may_run);
            let body = move || {
                let opened = match open(client) {
                    Ok(opened) => {
                        let _ = report.send(Ok(()));
                        Some(opened)
                    }
                    Err(error) => {
                        let _ = report.send(Err(error));
                        None
                    }
                };
                // The last one to be dropped ends the wait for reports.
                drop(report);
                let may_run = *lock(may_run);
                if let (Some(opened), true) = (opened, may_run) {
                    run(opened, client);
                }
            };
            match spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        drop(report);
        let mut ready = 0;
        while let Ok(reported) = reports.recv() {
            ready += usize::from(reported.is_ok());
            outcome = outcome.and(reported);
        }
        *gate = ready == clients.len();
        drop(gate);
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        outcome
    })
}

/// Runs the clients of one thread, each over its endpoint of `endpoints`.
///
/// # Panics
/// If an operation never ends.
pub fn run_here<'a, F>(
    driver: &impl Driver,
    clients: &[ClientPlacement],
    endpoints: Vec<F>,
    start: &'a (dyn Fn(F, usize) -> ClientTask<'a> + Sync),
) {
    let mut executor = Executor::new();
    for ((number, _), endpoint) in clients.iter().zip(endpoints) {
        executor.spawn_boxed(0, start(endpoint, *number));
    }
    assert!(executor.run(driver), "an operation did not end by its deadline");
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::{AtomicUsize, Ordering};

    /// A thread that got no file descriptors panicked, and the clients of the other threads waited
    /// for its client for ever.
    #[test]
    fn no_client_runs_unless_all_can() {
        let run = |refused: usize, on_one_thread| {
            let ran = AtomicUsize::new(0);
            let open = |clients: &[ClientPlacement]| {
                let is_refused = clients.iter().any(|(number, _)| *number == refused);
                match is_refused {
                    true => Err(io::Error::from_raw_os_error(24)),
                    false => Ok(clients.len()),
                }
            };
            let count = |opened, clients: &[ClientPlacement]| {
                assert_eq!(opened, clients.len());
                ran.fetch_add(opened, Ordering::Relaxed);
            };
            let outcome = run_on_threads(&[7; 5], on_one_thread, &open, &count);
            (outcome.map_err(|error| error.raw_os_error()), ran.into_inner())
        };
        for on_one_thread in [false, true] {
            for refused in 0..5 {
                assert_eq!(run(refused, on_one_thread), (Err(Some(24)), 0), "client {refused}");
            }
            assert_eq!(run(5, on_one_thread), (Ok(()), 5));
        }
    }
}
