//! Backoff between attempts: randomised, exponential, with a cap.
//!
//! On a hot page, the holder's WRITE and the CAS of every waiting client queue at one NIC. A client
//! that retries at once lengthens that queue and mostly fails. A client that doubles its wait
//! without a cap starves behind newer clients. `docs/decisions/` has the measurements behind the
//! constants.

use farleaf_fabric::Fabric;

/// The window of the first wait, in nanoseconds: about one round trip, which is how long a lock is
/// held.
const FIRST_NS: u64 = 2_000;
/// The largest window, in nanoseconds.
const CAP_NS: u64 = 32_000;

/// The cap doubles after `PATIENT_AFTER` attempts and again after every `PATIENT_EVERY`, at most
/// `MAX_CAP_DOUBLINGS` times.
const PATIENT_AFTER: u32 = 256;
const PATIENT_EVERY: u32 = 64;
const MAX_CAP_DOUBLINGS: u32 = 5;

/// Attempts before an operation gives up, after about 0.8 s of these waits; the first 256 attempts
/// take 6 ms.
const MAX_ATTEMPTS: u32 = 1_500;

/// The failed attempts of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    attempts: u32,
    first_ns: u64,
    cap_ns: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::with_window(FIRST_NS, CAP_NS)
    }
}

impl Backoff {
    /// Creates a backoff whose window grows from `first_ns` to at most `cap_ns`. For experiments.
    pub const fn with_window(first_ns: u64, cap_ns: u64) -> Self {
        Self { attempts: 0, first_ns, cap_ns }
    }

    /// The number of failed attempts so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Counts a failed attempt; `false` if that was the last one.
    pub fn count(&mut self) -> bool {
        self.attempts += 1;
        self.attempts < MAX_ATTEMPTS
    }

    /// Waits for a random time that grows with the number of failed attempts.
    pub async fn wait<F: Fabric>(&self, fabric: &F) {
        let doublings = self.attempts.saturating_sub(1).min(16);
        let patience = self.attempts.saturating_sub(PATIENT_AFTER - PATIENT_EVERY) / PATIENT_EVERY;
        let cap_ns = self.cap_ns << patience.min(MAX_CAP_DOUBLINGS);
        let window_ns = (self.first_ns << doublings).min(cap_ns).max(2);
        fabric.sleep(window_ns / 4 + fabric.random() % window_ns).await;
    }
}
