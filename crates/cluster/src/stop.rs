//! A request to end the program. A signal or code raises it, and every wait of a program also waits
//! for it.
//!
//! *Thread safety*: any number of threads; clones share one request.

use crate::clock::Clock;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::Condvar;
use std::time::Duration;

#[derive(Debug, Default)]
struct Shared {
    is_raised: Mutex<bool>,
    raised: Condvar,
}

/// Whether the program should end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Shared>);

impl Stop {
    /// Creates a request that SIGTERM and SIGINT raise. From then on these signals have no other
    /// effect in this process.
    ///
    /// # Errors
    /// The error of the operating system if signals cannot be caught.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let raise = stop.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
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
        let clock = Clock::start();
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
