//! Checks common to all bulk loads.
//!
//! *Thread safety*: plain values.

use super::IndexError;

/// Checks the fill of pages, a fraction.
///
/// # Errors
/// [`IndexError::InvalidArgument`] if `fill` is not between 0.1 and 1.0.
pub fn check_fill(fill: f64) -> Result<(), IndexError> {
    match (0.1..=1.0).contains(&fill) {
        true => Ok(()),
        false => Err(IndexError::InvalidArgument("the fill of pages must be between 0.1 and 1.0")),
    }
}

/// Counts the records of a load, and checks that they ascend strictly.
#[derive(Debug)]
pub struct Ascending<K> {
    last: Option<K>,
    count: u64,
}

impl<K> Default for Ascending<K> {
    fn default() -> Self {
        Self { last: None, count: 0 }
    }
}

impl<K: Clone + Ord> Ascending<K> {
    /// Counts and checks the next key.
    ///
    /// # Errors
    /// [`IndexError::NotSorted`] if it is not above the previous one.
    pub fn take(&mut self, key: &K) -> Result<(), IndexError> {
        if self.last.as_ref().is_some_and(|last| last >= key) {
            return Err(IndexError::NotSorted { position: self.count });
        }
        self.last = Some(key.clone());
        self.count += 1;
        Ok(())
    }

    /// The number of keys taken.
    pub fn count(&self) -> u64 {
        self.count
    }
}
