//! Checks shared by all bulk loads.
//!
//! *Thread safety*: plain values.

use super::IndexError;
use farleaf_page::{Layout, OwnedKey, OwnedValue};

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

/// Counts the records of a load, and checks that each fits a page and that the keys ascend
/// strictly.
#[derive(Debug)]
pub struct AscendingCheck<L: Layout> {
    last: Option<OwnedKey<L>>,
    count: u64,
}

impl<L: Layout> Default for AscendingCheck<L> {
    fn default() -> Self {
        Self { last: None, count: 0 }
    }
}

impl<L: Layout> AscendingCheck<L> {
    /// Counts and checks the next record.
    ///
    /// # Errors
    /// [`IndexError::NotSorted`] if its key is not above the previous one;
    /// [`IndexError::TooLong`] if no page can hold it.
    pub fn take(&mut self, key: &OwnedKey<L>, value: &OwnedValue<L>) -> Result<(), IndexError> {
        L::check_record(L::key(key), L::value(value))?;
        self.ascends(key)
    }

    /// Counts the next record, whose lengths have been checked.
    ///
    /// # Errors
    /// [`IndexError::NotSorted`] if its key is not above the previous one.
    pub fn ascends(&mut self, key: &OwnedKey<L>) -> Result<(), IndexError> {
        if self.last.as_ref().is_some_and(|last| last >= key) {
            return Err(IndexError::NotSorted { position: self.count });
        }
        self.last = Some(key.clone());
        self.count += 1;
        Ok(())
    }

    /// The number of records taken.
    pub fn count(&self) -> u64 {
        self.count
    }
}
