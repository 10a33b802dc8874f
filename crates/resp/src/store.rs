//! What a session's commands run on.
//!
//! *Thread safety*: whatever the store has; a session awaits its operations on one thread.

use crate::reply::RespReply;
use std::fmt;
use std::future::Future;
use std::ops::Bound;
use std::time::Duration;

/// A key with its value.
pub type StoredRecord = (Vec<u8>, Vec<u8>);

/// Why an operation of a store failed. Only after [`StoreError::Indeterminate`] may it have changed
/// something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It is unknown whether the operation has happened; it may still happen.
    Indeterminate(String),
    /// The servers are not serving now.
    Unavailable(String),
    /// It lost against concurrent operations until it gave up.
    Contended(String),
    OutOfMemory(String),
    /// A key or a value is too long.
    Invalid(String),
    Damaged(String),
}

impl StoreError {
    /// The code of the reply. Clients repeat a command after LOADING by themselves, and no client
    /// knows INDETERMINATE, so none repeats that.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Indeterminate(_) => "INDETERMINATE",
            Self::Unavailable(_) => "LOADING",
            Self::Contended(_) => "TRYAGAIN",
            Self::OutOfMemory(_) => "OOM",
            Self::Invalid(_) | Self::Damaged(_) => "ERR",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Indeterminate(why)
            | Self::Unavailable(why)
            | Self::Contended(why)
            | Self::OutOfMemory(why)
            | Self::Invalid(why)
            | Self::Damaged(why) => f.write_str(why),
        }
    }
}

impl From<StoreError> for RespReply {
    fn from(error: StoreError) -> Self {
        Self::Error(format!("{} {error}", error.code()).into())
    }
}

impl StoreError {
    /// The reply if the operation that failed changes nothing.
    pub(crate) fn of_read(self) -> RespReply {
        match self {
            Self::Indeterminate(why) => {
                Self::Unavailable(format!("no answer to a read, which changes nothing: {why}"))
                    .into()
            }
            error => error.into(),
        }
    }
}

/// The result of a conditional change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreExchange {
    Exchanged,
    /// The value that the key has instead; `None` if it is absent.
    Differs(Option<Vec<u8>>),
}

/// Which records a scan returns, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRange {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
    pub is_reverse: bool,
}

impl StoreRange {
    /// All records.
    pub const ALL: Self =
        Self { lower: Bound::Unbounded, upper: Bound::Unbounded, is_reverse: false };

    /// The records whose keys begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        // The first key after all that begin with the prefix.
        while end.last() == Some(&u8::MAX) {
            end.pop();
        }
        let upper = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        Self { lower: Bound::Included(prefix.to_vec()), upper, is_reverse: false }
    }

    /// The part of it that comes after `key` in the order of the scan.
    #[must_use]
    pub fn after(mut self, key: Vec<u8>) -> Self {
        match self.is_reverse {
            true => self.upper = Bound::Excluded(key),
            false => self.lower = Bound::Excluded(key),
        }
        self
    }

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (_, Bound::Excluded(upper)) if upper.is_empty() => true,
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (
                Bound::Included(lower) | Bound::Excluded(lower),
                Bound::Included(upper) | Bound::Excluded(upper),
            ) => lower >= upper,
        }
    }
}

/// An ordered index of byte strings. Operations on one key are linearizable; a scan is no snapshot,
/// but returns every key that is there throughout once and in order.
pub trait RespStore {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>>;

    /// The values of keys, each by itself.
    fn get_many(
        &self,
        keys: Vec<Vec<u8>>,
    ) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>, StoreError>>;

    /// Sets a key that is absent; returns whether it was.
    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, StoreError>>;

    /// Sets a key that exists; returns whether it did.
    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, StoreError>>;

    /// Sets a key.
    fn upsert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), StoreError>>;

    /// Removes a key; returns whether it existed.
    fn remove(&self, key: &[u8]) -> impl Future<Output = Result<bool, StoreError>>;

    /// Sets a key whose value is `expected`.
    fn compare_exchange(
        &self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> impl Future<Output = Result<StoreExchange, StoreError>>;

    /// The first records of a range that is not empty; fewer than `limit` only at its end.
    fn scan(
        &self,
        range: StoreRange,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<StoredRecord>, StoreError>>;

    /// Removes everything.
    fn clear(&self) -> impl Future<Output = Result<(), StoreError>>;

    /// Waits until no other command of this server reads and then changes this key, and keeps them
    /// waiting as long as the guard lives; `None` after `timeout`. Without it they disturb each
    /// other until one gives up.
    fn turn(&self, _key: &[u8], _timeout: Duration) -> impl Future<Output = Option<impl Sized>> {
        std::future::ready(Some(()))
    }

    /// The longest value.
    fn max_value_bytes(&self) -> usize;

    /// A clock that never goes back.
    fn now(&self) -> Duration;

    /// Time since 1970.
    fn unix_time(&self) -> Duration;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range() {
        let upper = |prefix: &[u8]| StoreRange::prefix(prefix).upper;
        assert_eq!(upper(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(upper(b"a\xff\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(upper(b"\xff"), Bound::Unbounded);
        assert_eq!(upper(b""), Bound::Unbounded);
        assert!(!StoreRange::prefix(b"").is_empty());
        assert!(StoreRange::prefix(b"a").after(b"b".to_vec()).is_empty());
    }
}
