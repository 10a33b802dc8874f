//! The handle: all operations.

use crate::call::Call;
use crate::request::{Reply, Request};
use crate::scan::Scan;
use crate::shared::Shared;
use farleaf_core::index::{Exchange, LeafEdit};
use farleaf_core::page::Action;
use std::ops::RangeBounds;
use std::sync::Arc;

/// An open index of 64-bit keys and values. Keep it in a struct, clone it, and use it from any
/// number of tasks and threads.
///
/// Operations on one key are linearizable. All clones share one connection to each server; they are
/// in flight together, up to some hundreds. The last clone closes the connections.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

/// Whether a change's condition held.
fn applied(reply: Reply) -> Option<bool> {
    match reply {
        Reply::Answer(answer) => Some(answer.applied),
        _ => None,
    }
}

fn exchanged(reply: Reply) -> Option<Exchange<u64>> {
    match reply {
        Reply::Answer(answer) => Some(answer.into()),
        _ => None,
    }
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    fn edit<T>(&self, key: u64, action: Action<u64>, answer: fn(Reply) -> Option<T>) -> Call<T> {
        Call::new(&self.0, Request::Edit(LeafEdit { key, action }), answer)
    }

    /// The value of `key`.
    pub fn get(&self, key: u64) -> Call<Option<u64>> {
        Call::new(&self.0, Request::Get(key), |reply| match reply {
            Reply::Value(value) => Some(value),
            _ => None,
        })
    }

    /// Adds `key`. Returns `false`, and changes nothing, if it exists already.
    pub fn insert(&self, key: u64, value: u64) -> Call<bool> {
        self.edit(key, Action::Insert(value), applied)
    }

    /// Changes the value of `key`. Returns `false`, and changes nothing, if the key is absent.
    pub fn update(&self, key: u64, value: u64) -> Call<bool> {
        self.edit(key, Action::Update(value), applied)
    }

    /// Sets the value of `key`, whether the key exists or not.
    pub fn upsert(&self, key: u64, value: u64) -> Call<()> {
        self.edit(key, Action::Upsert(value), |reply| applied(reply).map(|_| ()))
    }

    /// Removes `key`. Returns `false` if it is absent.
    pub fn remove(&self, key: u64) -> Call<bool> {
        self.edit(key, Action::Remove, applied)
    }

    /// Sets the value of `key` to `new` if it is `expected`.
    pub fn compare_exchange(&self, key: u64, expected: u64, new: u64) -> Call<Exchange<u64>> {
        self.edit(key, Action::CompareExchange(expected, new), exchanged)
    }

    /// The values of `keys`, in their order. The lookups are in flight together; each by itself is
    /// linearizable.
    pub fn multi_get(&self, keys: impl IntoIterator<Item = u64>) -> Call<Vec<Option<u64>>> {
        let request = Request::MultiGet(keys.into_iter().collect());
        Call::new(&self.0, request, |reply| match reply {
            Reply::Values(values) => Some(values),
            _ => None,
        })
    }

    /// Returns when the memory servers have every change that was acknowledged before the call.
    pub fn flush(&self) -> Call<()> {
        Call::new(&self.0, Request::Flush, |reply| match reply {
            Reply::Done => Some(()),
            _ => None,
        })
    }

    /// The records with keys in `range`, ascending. Nothing is read before the first record is
    /// asked for.
    pub fn scan(&self, range: impl RangeBounds<u64>) -> Scan {
        Scan::new(&self.0, range)
    }
}
