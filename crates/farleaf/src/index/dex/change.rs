//! Operations on single keys of the owned range.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::descend::Place;
use super::{DexIndex, edits};
use crate::cache::{Detour, Discipline, LeafOutcome, LiveCounters, mark_dirty};
use crate::index::Exchange;
use crate::page::{Layout, Page, Probe};
use crate::remote::RemoteError;
use farleaf_fabric::{Fabric, Work};

impl<F: Fabric, L: Layout, D: Discipline> DexIndex<F, L, D> {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`RemoteError`] if it cannot be found out.
    #[inline]
    pub async fn get(&self, key: &L::Key) -> Result<Option<L::Value>, RemoteError> {
        if self.uncached
            && let Some(found) = Box::pin(self.get_in_pool(key)).await
        {
            return Ok(found);
        }
        self.read_leaf(Probe::At(key), |page| L::leaf_get(page, key)).await
    }

    /// Adds a record; `false` if the key is there.
    ///
    /// # Errors
    /// [`RemoteError`]; nothing has changed then.
    pub async fn insert(&self, key: &L::Key, value: &L::Value) -> Result<bool, RemoteError> {
        self.change(key, |page| edits::insert::<L>(page, key, value)).await
    }

    /// Changes the value of a key that is there; says whether it is.
    ///
    /// # Errors
    /// As [`DexIndex::insert`].
    pub async fn update(&self, key: &L::Key, value: &L::Value) -> Result<bool, RemoteError> {
        self.change(key, |page| edits::update::<L>(page, key, value)).await
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// As [`DexIndex::insert`].
    pub async fn upsert(&self, key: &L::Key, value: &L::Value) -> Result<(), RemoteError> {
        self.change(key, |page| edits::upsert::<L>(page, key, value)).await.map(drop)
    }

    /// Sets the value of a key to `new` if it is `expected`.
    ///
    /// # Errors
    /// As [`DexIndex::insert`].
    pub async fn compare_exchange(
        &self,
        key: &L::Key,
        expected: &L::Value,
        new: &L::Value,
    ) -> Result<Exchange<L::Value>, RemoteError> {
        self.change(key, |page| edits::compare_exchange::<L>(page, key, expected, new)).await
    }

    /// Removes a key; says whether it was there.
    ///
    /// # Errors
    /// As [`DexIndex::insert`].
    pub async fn remove(&self, key: &L::Key) -> Result<bool, RemoteError> {
        let left = self.change(key, |page| edits::remove::<L>(page, key)).await?;
        if left.is_some_and(|left| left < super::merge::least::<L>()) {
            // The key is removed, whatever becomes of this; the next removal tries again.
            let _ = self.tidy(key).await;
        }
        Ok(left.is_some())
    }

    /// Applies `edit` to the leaf of `key`, making room as long as it finds none.
    async fn change<T>(
        &self,
        key: &L::Key,
        edit: impl Fn(Page<'_, L>) -> LeafOutcome<T>,
    ) -> Result<T, RemoteError> {
        let probe = Probe::At(key);
        let mut attempts = None;
        loop {
            let detour = match self.try_change(probe, &edit).await {
                Ok(LeafOutcome::Nothing(value) | LeafOutcome::Changed(value, _)) => {
                    return Ok(value);
                }
                Ok(LeafOutcome::Full) => self.try_make_room(probe).await.err(),
                Err(detour) => Some(detour),
            };
            let attempts = attempts.get_or_insert_with(|| self.attempts());
            self.after(attempts, detour.unwrap_or(Detour::Again), probe).await?;
        }
    }

    #[inline]
    async fn try_change<T>(
        &self,
        probe: Probe<'_, L::Key>,
        edit: &impl Fn(Page<'_, L>) -> LeafOutcome<T>,
    ) -> Result<LeafOutcome<T>, Detour> {
        if self.uncached
            && let Some(outcome) = Box::pin(self.change_in_pool(probe, edit)).await?
        {
            return Ok(outcome);
        }
        let _unsettled = self.unsettle();
        match self.find_leaf(probe).await? {
            Place::Hot(leaf) => {
                self.charge(Work::ChangeNode).await;
                let guard = leaf.lock().ok_or(Detour::Busy)?;
                let outcome = edit(leaf.page);
                if let LeafOutcome::Changed(_, words) = &outcome {
                    mark_dirty(leaf.page, words.clone());
                }
                drop(guard);
                LiveCounters::count(&self.client.counters.leaf_hits);
                self.client.mark_use(leaf.page);
                Ok(outcome)
            }
            Place::Elsewhere { parent, slot, address } => {
                self.client.bring_leaf(parent, slot, address, probe, edit).await
            }
        }
    }
}
