//! A request to end the program. A signal or code raises it, and every wait of a program also waits
//! for it.
//!
//! *Thread safety*: any number of threads; clones share one request.

use crate::clock::MonotonicClock;
use farleaf_fabric::listener::start_thread;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::Condvar;
use std::time::Duration;

#[derive(Debug, Default)]
struct StopShared {
    is_raised: Mutex<bool>,
    raised: Condvar,
}

/// Whether this process ignores a signal, because `nohup` or its service manager has set that.
/// `false` if the system does not tell.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Whether the program should end.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<StopShared>);

impl StopSignal {
    /// Creates a request that SIGTERM, SIGINT and SIGHUP raise. From then on these signals have no
    /// other effect in this process, however often they come. A SIGHUP that the process was started
    /// to ignore stays ignored.
    ///
    /// # Errors
    /// The error of the operating system if signals cannot be caught.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        let hang_up = if is_ignored(SIGHUP) { None } else { Some(SIGHUP) };
        let mut signals = Signals::new([SIGTERM, SIGINT].into_iter().chain(hang_up))?;
        let raise = stop.clone();
        start_thread("signals".into(), move || {
            for signal in signals.forever() {
                let name = match signal {
                    SIGINT => "SIGINT",
                    SIGHUP => "SIGHUP",
                    _ => "SIGTERM",
                };
                tracing::info!("{name}: ending");
                raise.raise();
            }
        })?;
        Ok(stop)
    }

    /// Requests that the program end.
    pub fn raise(&self) {
        *lock(&self.0.is_raised) = true;
        self.0.raised.notify_all();
    }

    /// Whether the end has been requested.
    pub fn is_raised(&self) -> bool {
        *lock(&self.0.is_raised)
    }

    /// Waits for this long, or until the end is requested; returns whether it has been.
    pub fn wait(&self, for_at_most: Duration) -> bool {
        let clock = MonotonicClock::start();
        let mut is_raised = lock(&self.0.is_raised);
        while !*is_raised {
            let Some(left) =
                for_at_most.checked_sub(clock.elapsed()).filter(|left| !left.is_zero())
            else {
                break;
            };
            is_raised = match self.0.raised.wait_timeout(is_raised, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        *is_raised
    }
}
