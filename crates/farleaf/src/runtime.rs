//! Tasks of tokio runtimes that wait for a core: one for each runtime in which a caller has waited.
//!
//! The descriptor has its own task, because a future that waited for it directly would block all
//! others when its owner stops polling it. The task belongs to the caller's runtime, so it needs no
//! thread, and the runtime's timers and other tasks keep running.
//!
//! *Invariant*: runtime.A1. Each future ensures that its own runtime has the task, because a
//! runtime that is not running turns no core for others.
//!
//! *Thread safety*: any number of threads.

use crate::cores::{EnginePool, lock};
use crate::data::KeyKind;
use crate::error::Error;
use farleaf_fabric::executor::yield_now;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;

/// The runtimes that wait for one core.
#[derive(Debug, Default)]
pub(crate) struct Runtimes(Mutex<Vec<(Id, AbortHandle)>>);

impl Runtimes {
    /// Ends all tasks.
    pub(crate) fn end(&self) {
        for (_, task) in lock(&self.0).drain(..) {
            task.abort();
        }
    }
}

/// Ensures that a task of `runtime`, in which the caller runs, waits for the core.
///
/// # Panics
/// If the runtime cannot wait for descriptors: it was built without `enable_io`.
pub(crate) fn ensure_task<K: ?Sized + KeyKind>(
    runtime: &Handle,
    cores: &Arc<EnginePool<K>>,
    number: usize,
) -> Result<(), Error> {
    let core = cores.core(number);
    let mut tasks = lock(&core.runtimes.0);
    let id = runtime.id();
    if tasks.iter().any(|(of, task)| *of == id && !task.is_finished()) {
        return Ok(());
    }
    // Remove the tasks of runtimes that have ended.
    tasks.retain(|(_, task)| !task.is_finished());
    let watched = core.descriptor.try_clone().and_then(watch);
    let watched =
        watched.map_err(|error| Error::system("cannot wait for the connection", error))?;
    let task = runtime.spawn(drive(Arc::downgrade(cores), number, watched));
    tasks.push((id, task.abort_handle()));
    Ok(())
}

#[expect(
    deprecated,
    reason = "its successor is `unsafe` for types that may return another descriptor each time; an \
              `OwnedFd` returns its own, and owns it"
)]
fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

async fn drive<K: ?Sized + KeyKind>(
    cores: Weak<EnginePool<K>>,
    number: usize,
    descriptor: AsyncFd<OwnedFd>,
) {
    loop {
        let Ok(mut ready) = descriptor.readable().await else { return };
        let Some(cores) = cores.upgrade() else { return };
        let turned = cores.turn(number);
        drop(cores);
        if turned.is_idle && turned.is_quiet {
            // If something has arrived since the turn, tokio keeps the readiness.
            ready.clear_ready();
            continue;
        }
        // There may be more. Check again, but after the tasks that this turn has woken: polling
        // then does not delay them, because their next requests are already in flight.
        drop(ready);
        yield_now().await;
    }
}
