//! Single-key operations within the owned range.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::DexIndex;
use super::descend::{LeafLocation, OffloadOffer};
use crate::cache::{Restart, UnwrittenChange, end_record_change};
use farleaf_fabric::{Fabric, Work};
use farleaf_index::LiveCounters;
use farleaf_page::{
    DescentProbe, EditAction, EditAnswer, Layout, LeafEdit, LeafOutcome, OwnedValue, Page,
};
use farleaf_pool::remote::RemoteError;

/// The outcome of an operation at its leaf, and the change that its answer waits for (ack.A1).
pub(super) type LeafAnswer<L> = (LeafOutcome<EditAnswer<OwnedValue<L>>>, Option<UnwrittenChange>);

/// The answer of an operation, whether its leaf is now sparse, and the change that the answer waits
/// for.
pub(super) type GivenAnswer<L> = (EditAnswer<OwnedValue<L>>, bool, Option<UnwrittenChange>);

/// The answer of an operation. `None` if the leaf had no room.
pub(super) fn answer_of<L: Layout>((outcome, unwritten): LeafAnswer<L>) -> Option<GivenAnswer<L>> {
    match outcome {
        LeafOutcome::Nothing(answer) => Some((answer, false, unwritten)),
        LeafOutcome::Changed { answer, sparse, .. } => Some((answer, sparse, unwritten)),
        LeafOutcome::Full => None,
    }
}

impl<F: Fabric, L: Layout> DexIndex<F, L> {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`RemoteError`] if the leaf cannot be read.
    #[inline]
    pub async fn get(&self, key: &L::Key) -> Result<Option<OwnedValue<L>>, RemoteError> {
        if self.uncached
            && let Some(found) = Box::pin(self.get_in_pool(key)).await
        {
            return Ok(found);
        }
        let cache = self.client.cache();
        if cache.records().is_some() {
            self.charge(Work::VisitNode).await;
            if let Some(found) = self.client.hot_value(key) {
                return Ok(Some(found));
            }
        }
        let read = |page: Page<'_, L>| L::leaf_get(page, key);
        if !self.offload.is_on() && !cache.reads_parts() {
            return self.read_leaf(DescentProbe::At(key), read).await;
        }
        let (answer, _) = self.run(LeafEdit { key, action: EditAction::Get }).await?;
        Ok(answer.found)
    }

    /// Executes any single-key operation.
    ///
    /// # Errors
    /// [`RemoteError`]; unless it is `Indeterminate`, nothing has changed.
    pub async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, RemoteError> {
        if !edit.changes() {
            return Ok(EditAnswer::from_lookup(self.get(edit.key).await?));
        }
        let record = self.client.begin_record_change(edit.key);
        let (answer, sparse) = self.run(edit).await?;
        end_record_change::<L>(record, &edit, &answer);
        if sparse {
            self.merge_sparse(edit.key).await;
        }
        Ok(answer)
    }

    /// Merges the leaf of a removed key.
    pub(super) async fn merge_sparse(&self, key: &L::Key) {
        // The key is removed even if this fails; the next removal tries again.
        let _ = Box::pin(self.merge_underfull(key)).await;
    }

    /// The steps before a change.
    #[inline]
    pub(super) async fn before_change(&self) {
        if self.client.cache().ages().is_behind() {
            Box::pin(self.help_to_write_back()).await;
        }
        if self.has_doubts() {
            Box::pin(self.settle_some()).await;
        }
    }

    /// Applies `edit` to the leaf of its key, splitting nodes until there is room. Also returns
    /// whether the leaf is now sparse and should be merged.
    async fn run(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<(EditAnswer<OwnedValue<L>>, bool), RemoteError> {
        if edit.changes() {
            self.before_change().await;
        }
        let probe = DescentProbe::At(edit.key);
        let mut attempts = None;
        let mut offer =
            if self.offload.is_on() { OffloadOffer::Edit } else { OffloadOffer::Nothing };
        loop {
            let restart = match self.try_run(probe, edit, offer).await {
                Ok(outcome) => match answer_of::<L>(outcome) {
                    Some((answer, sparse, unwritten)) => {
                        if let Some(unwritten) = unwritten {
                            Box::pin(self.client.await_written(unwritten)).await?;
                        }
                        return Ok((answer, sparse));
                    }
                    None => None,
                },
                Err(restart) => Some(restart),
            };
            let restart = match restart {
                Some(restart) => Some(restart),
                None => Box::pin(self.try_make_room(edit)).await.err(),
            };
            // The memory server refused: execute the operation here.
            if restart == Some(Restart::Here) {
                offer = OffloadOffer::Nothing;
            }
            let attempts = attempts.get_or_insert_with(|| self.attempts());
            let restart = restart.unwrap_or(Restart::Again);
            Box::pin(self.after(attempts, restart, probe)).await?;
        }
    }

    #[inline]
    async fn try_run(
        &self,
        probe: DescentProbe<'_, L::Key>,
        edit: LeafEdit<&L::Key, &L::Value>,
        offer: OffloadOffer,
    ) -> Result<LeafAnswer<L>, Restart> {
        if self.uncached
            && let Some(outcome) =
                Box::pin(self.change_in_pool(probe, &|page| edit.apply(page))).await?
        {
            return Ok((outcome, None));
        }
        let _unsettled = self.unsettle();
        let place = self.find_leaf(probe, offer).await?;
        self.run_at(place, probe, edit).await
    }

    /// Executes `edit` at the leaf or missing node where its descent ended. Also returns what the
    /// answer has to wait for (ack.A1).
    #[inline]
    pub(super) async fn run_at(
        &self,
        place: LeafLocation<'_, L>,
        probe: DescentProbe<'_, L::Key>,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<LeafAnswer<L>, Restart> {
        match place {
            LeafLocation::Hot(leaf) => {
                let answer = if edit.changes() {
                    self.charge(Work::ChangeNode).await;
                    let guard = leaf.lock().ok_or(Restart::Busy)?;
                    let outcome = edit.apply(leaf.page);
                    let unwritten = if let LeafOutcome::Changed { words, .. } = &outcome {
                        self.client.mark_changed(leaf, *words)
                    } else {
                        self.client.unwritten_seen(leaf)
                    };
                    drop(guard);
                    (outcome, unwritten)
                } else {
                    let outcome = edit.apply(leaf.page);
                    let unwritten = self.client.unwritten_seen(leaf);
                    if !leaf.is_valid() {
                        return Err(Restart::Busy);
                    }
                    (outcome, unwritten)
                };
                LiveCounters::count(&self.client.counters.leaf_hits);
                self.client.mark_use(leaf.page);
                Ok(answer)
            }
            LeafLocation::Elsewhere { parent, slot, address }
                if self.client.cache().reads_parts() =>
            {
                let outcome = self.client.run_in_pool((parent, slot), address, edit);
                Ok((Box::pin(outcome).await?, None))
            }
            LeafLocation::Elsewhere { parent, slot, address } => {
                let work = |page: Page<'_, L>| edit.apply(page);
                let outcome = self.client.fetch_leaf(parent, slot, address, probe, work).await?;
                Ok((outcome, None))
            }
            LeafLocation::Offered(missing) => {
                let answer = Box::pin(self.offload(missing, edit)).await?;
                Ok((LeafOutcome::Nothing(answer), None))
            }
        }
    }
}
