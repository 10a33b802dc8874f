//! A moving average of the most recent durations.
//!
//! *Thread safety*: used by the thread of one handle.

use std::cell::Cell;

/// Number of samples in the average. The paper uses 50 (Lu et al., §6.1).
const WINDOW: usize = 50;

/// The average of the last 50 samples, in nanoseconds.
#[derive(Debug)]
pub struct MovingAverage {
    samples: [Cell<u64>; WINDOW],
    taken: Cell<u64>,
    sum: Cell<u64>,
}

impl Default for MovingAverage {
    fn default() -> Self {
        let samples = std::array::from_fn(|_| Cell::new(0));
        Self { samples, taken: Cell::new(0), sum: Cell::new(0) }
    }
}

impl MovingAverage {
    /// Adds a sample.
    pub fn add(&self, ns: u64) {
        let taken = self.taken.get();
        let oldest = self.samples[(taken % WINDOW as u64) as usize].replace(ns);
        self.sum.set(self.sum.get() - oldest + ns);
        self.taken.set(taken + 1);
    }

    /// The average in nanoseconds. `None` before the first sample.
    pub fn ns(&self) -> Option<u64> {
        self.sum.get().checked_div(self.taken.get().min(WINDOW as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_samples_count() {
        let average = MovingAverage::default();
        assert_eq!(average.ns(), None);
        average.add(10);
        average.add(20);
        assert_eq!(average.ns(), Some(15));
        (0..WINDOW).for_each(|_| average.add(7));
        assert_eq!(average.ns(), Some(7));
    }
}
