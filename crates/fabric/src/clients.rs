//! Runs the client threads of clusters in real time: [`crate::Cluster::run`] for all such
//! providers.
//!
//! *Thread safety*: plain functions; the clients of a thread stay on it.

use crate::AnyFabric;
use crate::cluster::ClientTask;
use crate::executor::{Driver, Executor};
use crate::sync::thread::scope;

/// A client to run: its number and its compute server.
type Client = (usize, u16);

/// Runs a client for each of `compute_servers`: either each on its own thread, or all on the
/// calling thread. `run_thread` runs the clients of one thread.
pub fn run_on_threads(
    compute_servers: &[u16],
    on_one_thread: bool,
    run_thread: &(dyn Fn(&[Client]) + Sync),
) {
    let clients: Vec<Client> = compute_servers.iter().copied().enumerate().collect();
    if on_one_thread || clients.len() == 1 {
        return run_thread(&clients);
    }
    scope(|scope| {
        let threads: Vec<_> =
            clients.chunks(1).map(|client| scope.spawn(move || run_thread(client))).collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// Runs the clients of one thread, each over the endpoint that `open` returns for its compute
/// server and number.
///
/// # Panics
/// If an operation never ends.
pub fn run_here<'a>(
    driver: &impl Driver,
    clients: &[Client],
    open: impl Fn(u16, usize) -> AnyFabric,
    start: &'a (dyn Fn(AnyFabric, usize) -> ClientTask<'a> + Sync),
) {
    let mut executor = Executor::new();
    for (number, compute_server) in clients {
        executor.spawn_boxed(0, start(open(*compute_server, *number), *number));
    }
    assert!(executor.run(driver), "an operation did not end by its deadline");
}
