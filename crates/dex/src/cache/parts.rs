//! Tables that are cleared in parts, so that no thread is busy for long.
//!
//! *Thread safety*: that of each table.

use std::ops::Range;

/// Buckets that are cleared without a pause: about a tenth of a millisecond.
const PART: usize = 4_096;

/// A table that can forget what it has, a part at a time.
pub trait ClearedInParts {
    /// Its number of buckets.
    fn buckets(&self) -> usize;

    /// Forgets what is in these buckets.
    fn clear_part(&self, part: Range<usize>);

    /// Its parts, each of which takes about a tenth of a millisecond to clear.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let buckets = self.buckets();
        (0..buckets).step_by(PART).map(move |from| from..(from + PART).min(buckets))
    }

    /// Forgets everything at once.
    fn clear(&self) {
        self.parts().for_each(|part| self.clear_part(part));
    }
}
