//! Lines on stderr that say what a long command is doing, where no terminal shows its bars.
//!
//! *Thread safety*: a heartbeat belongs to one thread, and has one of its own.

use farleaf_cluster::clock::MonotonicClock;
use farleaf_cluster::stop::StopSignal;
use farleaf_command_line::output::{bar, grouped, note};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use indicatif::ProgressBar;
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between the lines of a [`Heartbeat`].
const BEAT: Duration = Duration::from_secs(1);

/// Says once a second on stderr what a long command is doing, if stderr is no terminal: its bars
/// are hidden then.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    bar: Arc<Mutex<ProgressBar>>,
    stop: StopSignal,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Begins with work that has no steps to count; `what` is its name.
    pub(crate) fn begin(what: &str) -> Self {
        let bar = bar(what, None);
        let is_hidden = bar.is_hidden();
        let (bar, stop, clock) =
            (Arc::new(Mutex::new(bar)), StopSignal::default(), MonotonicClock::start());
        let (shared, ended) = (Arc::clone(&bar), stop.clone());
        let beat = move || {
            while !ended.wait(BEAT) {
                note(&line(clock.elapsed().as_secs(), &lock(&shared)));
            }
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        // Without the thread, the command is silent.
        let thread = is_hidden.then(|| thread.spawn(beat).ok()).flatten();
        Self { bar, stop, thread }
    }

    /// A bar for the next part of the work ([`bar`]).
    pub(crate) fn bar(&self, what: &str, total: Option<u64>) -> ProgressBar {
        let bar = bar(what, total);
        *lock(&self.bar) = bar.clone();
        bar
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The line of a heartbeat.
fn line(seconds: u64, bar: &ProgressBar) -> String {
    let what = bar.message();
    match bar.length() {
        Some(all) => {
            format!("{seconds} s: {what}, {} of {}", grouped(bar.position()), grouped(all))
        }
        None => format!("{seconds} s: {what}"),
    }
}
