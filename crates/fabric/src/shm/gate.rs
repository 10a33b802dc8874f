//! The gate in front of the verbs of one endpoint to one server. A thread that closes the gate and
//! then finds it empty knows that no verb is in progress behind it, nor ever will be.
//!
//! The endpoint's thread sets `inside`, then checks `closed`. A closing thread sets `closed`, then
//! checks `inside`. All four accesses are sequentially consistent, so at least one of the threads
//! sees the other's flag.
//!
//! *Invariants*: shm.G1. A gate that was closed stays closed. shm.G2. Only the endpoint's thread is
//! ever inside, for one verb.
//!
//! *Thread safety*: `enter` by the endpoint's thread, the rest by any thread.

use crate::sync::{AtomicBool, Ordering};

/// On its own cache lines, because the endpoint's thread writes to it at each verb.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct VerbGate {
    inside: AtomicBool,
    closed: AtomicBool,
}

/// The right to execute one verb.
#[derive(Debug)]
pub(super) struct VerbPermit<'a>(&'a VerbGate);

impl VerbGate {
    /// Enters the gate, unless it is closed.
    #[inline]
    pub(super) fn enter(&self) -> Option<VerbPermit<'_>> {
        self.inside.store(true, Ordering::SeqCst);
        let inside = VerbPermit(self);
        (!self.closed.load(Ordering::SeqCst)).then_some(inside)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Admits no more verbs.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Whether no verb is inside; after [`VerbGate::close`], this is final.
    pub(super) fn is_empty(&self) -> bool {
        !self.inside.load(Ordering::SeqCst)
    }
}

impl Drop for VerbPermit<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64, thread};

    #[test]
    fn nobody_is_behind_a_closed_gate() {
        for _ in 0..200 {
            let (gate, word) = (VerbGate::default(), AtomicU64::new(0));
            thread::scope(|scope| {
                scope.spawn(|| {
                    while let Some(_inside) = gate.enter() {
                        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                    assert!(gate.is_empty());
                });
                while word.load(Ordering::Relaxed) == 0 {
                    std::hint::spin_loop();
                }
                gate.close();
                while !gate.is_empty() {
                    std::hint::spin_loop();
                }
                let last = word.load(Ordering::Relaxed);
                for _ in 0..100 {
                    std::hint::spin_loop();
                    assert_eq!(word.load(Ordering::Relaxed), last, "a verb behind a closed gate");
                }
            });
        }
    }
}
