//! Operations on single keys of the owned range.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::descend::{Offer, Place};
use crate::cache::{Detour, LiveCounters};
use crate::index::Exchange;
use crate::page::{Action, Answer, Layout, LeafEdit, LeafOutcome, Page, Probe};
use crate::remote::RemoteError;
use farleaf_fabric::{Fabric, Work};

impl<F: Fabric, L: Layout> DexIndex<F, L> {
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
        let read = |page: Page<'_, L>| L::leaf_get(page, key);
        if !self.offload.is_on() {
            return self.read_leaf(Probe::At(key), read).await;
        }
        let edit = LeafEdit { key: key.clone(), action: Action::Get };
        Ok(self.run(&edit).await?.found)
    }

    /// Adds a record; `false` if the key is there.
    ///
    /// # Errors
    /// [`RemoteError`]; nothing has changed then, unless it is `Indeterminate`.
    pub async fn insert(&self, key: &L::Key, value: &L::Value) -> Result<bool, RemoteError> {
        let action = Action::Insert(value.clone());
        Ok(self.run(&LeafEdit { key: key.clone(), action }).await?.applied)
    }

    /// Changes the value of a key that is there; says whether it is.
    ///
    /// # Errors
    /// As [`DexIndex::insert`].
    pub async fn update(&self, key: &L::Key, value: &L::Value) -> Result<bool, RemoteError> {
        let action = Action::Update(value.clone());
        Ok(self.run(&LeafEdit { key: key.clone(), action }).await?.applied)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// As [`DexIndex::insert`].
    pub async fn upsert(&self, key: &L::Key, value: &L::Value) -> Result<(), RemoteError> {
        let action = Action::Upsert(value.clone());
        self.run(&LeafEdit { key: key.clone(), action }).await.map(drop)
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
        let action = Action::CompareExchange(expected.clone(), new.clone());
        let answer = self.run(&LeafEdit { key: key.clone(), action }).await?;
        Ok(if answer.applied { Exchange::Exchanged } else { Exchange::Differs(answer.found) })
    }

    /// Removes a key; says whether it was there.
    ///
    /// # Errors
    /// As [`DexIndex::insert`].
    pub async fn remove(&self, key: &L::Key) -> Result<bool, RemoteError> {
        let answer = self.run(&LeafEdit { key: key.clone(), action: Action::Remove }).await?;
        if answer.sparse {
            // The key is removed, whatever becomes of this; the next removal tries again.
            let _ = self.tidy(key).await;
        }
        Ok(answer.applied)
    }

    /// Does an operation on one key, whichever it is.
    ///
    /// # Errors
    /// [`RemoteError`] if a node cannot be read or written.
    pub async fn edit(&self, edit: &LeafEdit<L>) -> Result<Answer<L::Value>, RemoteError> {
        let edited = |applied| Answer { applied, found: None, sparse: false };
        match edit.action {
            Action::Get => {
                let found = self.get(&edit.key).await?;
                Ok(Answer { found: found.clone(), ..edited(found.is_some()) })
            }
            Action::Remove => Ok(edited(self.remove(&edit.key).await?)),
            _ => self.run(edit).await,
        }
    }

    /// Does `edit` to the leaf of its key, making room as long as it finds none.
    async fn run(&self, edit: &LeafEdit<L>) -> Result<Answer<L::Value>, RemoteError> {
        if edit.changes() {
            if self.client.cache().ages().is_behind() {
                Box::pin(self.help_to_write_back()).await;
            }
            if self.has_doubts() {
                Box::pin(self.settle_some()).await;
            }
        }
        let probe = Probe::At(&edit.key);
        let mut attempts = None;
        let mut offer = if self.offload.is_on() { Offer::Edit } else { Offer::Nothing };
        loop {
            let detour = match self.try_run(probe, edit, offer).await {
                Ok(LeafOutcome::Nothing(answer) | LeafOutcome::Changed(answer, _)) => {
                    return Ok(answer);
                }
                Ok(LeafOutcome::Full) => self.try_make_room(probe).await.err(),
                Err(detour) => Some(detour),
            };
            // What a memory server will not do is done here.
            if detour == Some(Detour::Here) {
                offer = Offer::Nothing;
            }
            let attempts = attempts.get_or_insert_with(|| self.attempts());
            self.after(attempts, detour.unwrap_or(Detour::Again), probe).await?;
        }
    }

    #[inline]
    async fn try_run(
        &self,
        probe: Probe<'_, L::Key>,
        edit: &LeafEdit<L>,
        offer: Offer,
    ) -> Result<LeafOutcome<Answer<L::Value>>, Detour> {
        if self.uncached
            && let Some(outcome) =
                Box::pin(self.change_in_pool(probe, |page| edit.apply(page))).await?
        {
            return Ok(outcome);
        }
        let _unsettled = self.unsettle();
        match self.find_leaf(probe, offer).await? {
            Place::Hot(leaf) => {
                let outcome = if edit.changes() {
                    self.charge(Work::ChangeNode).await;
                    let guard = leaf.lock().ok_or(Detour::Busy)?;
                    let outcome = edit.apply(leaf.page);
                    if let LeafOutcome::Changed(_, words) = &outcome {
                        self.client.mark_dirty(leaf.frame, leaf.page, words.clone());
                    }
                    drop(guard);
                    outcome
                } else {
                    let outcome = edit.apply(leaf.page);
                    if !leaf.is_valid() {
                        return Err(Detour::Busy);
                    }
                    outcome
                };
                LiveCounters::count(&self.client.counters.leaf_hits);
                self.client.mark_use(leaf.page);
                Ok(outcome)
            }
            Place::Elsewhere { parent, slot, address } => {
                let work = |page: Page<'_, L>| edit.apply(page);
                self.client.bring_leaf(parent, slot, address, probe, work).await
            }
            Place::Offered(missing) => self.offload(missing, edit).await.map(LeafOutcome::Nothing),
        }
    }
}
