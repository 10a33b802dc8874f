//! A bulk load at the compute server that builds the new tree.
//!
//! The new tree replaces the empty one in four steps. Each of them may be the last one of any
//! compute server's life, and each message may come late:
//!
//! 1. The builder completes the tree, and reads the version of the map record.
//! 2. The client halts every compute server for this version. They write everything back.
//! 3. The builder puts the replacement into the record, if it still has this version. A compute
//!    server that has begun a life, has resumed or has moved keys since step 1 has raised it
//!    (record.MR3). Then the builder halts them again, for a newer version: the client asks.
//! 4. The builder replaces the tree, and removes the replacement from the record. Until then no
//!    compute server reads anything of a tree (record.MR4).
//!
//! If the builder dies in step 4, its next incarnation finishes or undoes the change of the root,
//! and then removes the replacement. The others stay halted until then.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::worker::Worker;
use super::{MapState, PartitionMap, PutOutcome, Replacement};
use crate::{
    AscendingCheck, BuiltContent, BulkBuilder, IndexError, PartIndex, PartPool, PartValues,
    Partitioned, ValueForm, check_fill,
};
use farleaf_fabric::Fabric;
use farleaf_page::rules;
use farleaf_page::{BlockRef, Layout, OwnedKey, OwnedRecord};
use farleaf_pool::remote::ROOT_SERVER;
use farleaf_pool::wire::Refusal;

/// Attempts to find out whether a put of unknown outcome has begun the replacement.
const PUT_ATTEMPTS: u32 = 20;
/// Pause between them.
const PUT_PAUSE_NS: u64 = 1_000_000;

type BuilderOf<'w, D, F, L> = <<D as Partitioned>::Pool<F, L> as PartPool<F, L>>::Builder<'w>;
type BulkLoadContent<D, F, L> = <<D as Partitioned>::Pool<F, L> as PartPool<F, L>>::Built;

/// How an attempt to replace the tree ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadEnded<K> {
    /// The tree is replaced. These boundaries would give each owner about the same number of
    /// records; none if there are too few records, or if the boundaries are too long for a map.
    Loaded(Vec<K>),
    /// Nothing has changed, and all compute servers have to halt again, for a newer version.
    Again(IndexError),
    /// The load has failed, and nothing has changed.
    Failed(IndexError),
    /// The tree may have been replaced, or may still be.
    Unknown(IndexError),
}

/// A bulk load in progress. End it with [`BulkLoad::end`] or [`BulkLoad::abandon`].
pub struct BulkLoad<'w, D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> {
    worker: &'w Worker<D, F, L, V>,
    number: u64,
    /// The map by whose boundaries the leaves end.
    map: PartitionMap<OwnedKey<L>>,
    order: AscendingCheck<L>,
    builder: BuilderOf<'w, D, F, L>,
    built: Option<BulkLoadContent<D, F, L>>,
    blocks: Vec<BlockRef>,
}

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> std::fmt::Debug
    for BulkLoad<'_, D, F, L, V>
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BulkLoad").field("number", &self.number).finish_non_exhaustive()
    }
}

fn contended() -> IndexError {
    IndexError::Contended { retries: 0 }
}

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> Worker<D, F, L, V> {
    /// Begins the bulk load of this number.
    ///
    /// # Errors
    /// [`IndexError`] if the fill is out of range, if keys are moving, or if the record cannot be
    /// read.
    pub async fn begin_load(
        &self,
        number: u64,
        fill: f64,
    ) -> Result<BulkLoad<'_, D, F, L, V>, IndexError> {
        check_fill(fill)?;
        // This server's map may be a little older than the record.
        let Some((MapState { map, moving: None, replacing: None }, _)) = self.store().read().await
        else {
            return Err(contended());
        };
        let builder = self.pool().builder(fill, map.boundaries().to_vec());
        let (order, built, blocks) = (AscendingCheck::default(), None, Vec::new());
        Ok(BulkLoad { worker: self, number, map, order, builder, built, blocks })
    }

    /// Removes a replacement of this server from the record, once no WRITE of it can land any more:
    /// one of a former incarnation, which is finished before this life has opened the index, or one
    /// whose end could not be put at first (record.MR4).
    pub(super) async fn end_replacement(&self, state: &MapState<OwnedKey<L>>, version: u64) {
        let server = self.server();
        let is_mine =
            |replacing: &Replacement| replacing.by == server.number() && !server.is_replacing();
        if state.replacing.as_ref().is_some_and(is_mine) && !self.index().has_doubts() {
            let ended = MapState { replacing: None, ..state.clone() };
            let _ = self.store().put_if(version, &ended).await;
        }
    }
}

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> BulkLoad<'_, D, F, L, V> {
    /// The number of the load.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Appends records, with keys above all previous ones.
    ///
    /// # Errors
    /// [`IndexError`]; abandon the load then.
    pub async fn append(&mut self, mut records: Vec<OwnedRecord<L>>) -> Result<(), IndexError> {
        if self.built.is_some() {
            return Err(IndexError::InvalidArgument("the new tree is complete"));
        }
        for (key, value) in &records {
            V::check(L::key(key), L::value(value))?;
            self.order.ascends(key)?;
        }
        let worker = self.worker;
        worker.values().prepare(worker.index(), &mut records, &mut self.blocks).await?;
        for (key, value) in records {
            self.builder.append(L::key(&key), L::value(&value)).await?;
        }
        Ok(())
    }

    /// Completes the tree. Returns the version of the record at which all compute servers have to
    /// halt, and the epoch of its map. May be called again, for a later version.
    ///
    /// # Errors
    /// [`IndexError::Contended`] if the record cannot be read, or keys are moving or have moved.
    /// After any other error, abandon the load.
    pub async fn ready(&mut self) -> Result<(u64, u64), IndexError> {
        if self.built.is_none() {
            self.built = Some(self.builder.finish().await?);
        }
        match self.worker.store().read().await {
            Some((state, version)) if self.is_as_begun(&state) => Ok((version, self.map.epoch())),
            _ => Err(contended()),
        }
    }

    /// No key has moved since the leaves were built, and no other load is replacing the tree.
    fn is_as_begun(&self, state: &MapState<OwnedKey<L>>) -> bool {
        *state == MapState::settled(self.map.clone())
    }

    /// Replaces the empty tree, if the record still has the version that all compute servers have
    /// halted for.
    pub async fn end(&mut self, version: u64) -> LoadEnded<OwnedKey<L>> {
        let Some(built) = &self.built else {
            let what = "the new tree is not complete";
            return LoadEnded::Failed(IndexError::InvalidArgument(what));
        };
        let (worker, pool) = (self.worker, self.worker.pool());
        if !worker.server().has_halted(self.number, version) {
            let what = "halt the server before replacing its tree";
            return LoadEnded::Again(IndexError::InvalidArgument(what));
        }
        // These hold at the put, too: all compute servers have halted before, or the put fails.
        let prepared = async {
            if !pool.is_empty().await? {
                let (server, refusal) = (ROOT_SERVER, Refusal::NotEmpty);
                return Err(IndexError::Refused { server, refusal });
            }
            let former = pool.occupied().await?;
            // Leaves of all owners will refer to these blocks. This server need not be one of them:
            // its keys may have moved since the client chose it.
            if self.map.owners() != [worker.server().number()] {
                worker.values().share().await?;
            }
            Ok(former)
        };
        let former = match prepared.await {
            Ok(former) => former,
            Err(error @ (IndexError::Refused { .. } | IndexError::OutOfMemory { .. })) => {
                return LoadEnded::Failed(error);
            }
            // Another compute server may have begun another life since, and be at work.
            Err(error) => return LoadEnded::Again(error),
        };
        let Some(_replacing) = worker.server().begin_replacing() else {
            return LoadEnded::Again(contended());
        };
        let Some(begun) = self.begin_replacement(version).await else {
            return LoadEnded::Again(contended());
        };
        let replaced = pool.replace(built).await;
        if replaced.is_ok() {
            pool.give_back(former);
        }
        // While its outcome is unknown, a WRITE of the replacement may still land. `follow_map`
        // ends it once that is settled.
        if !worker.index().has_doubts() {
            let ended = MapState::settled(self.map.clone());
            let _ = worker.store().put_if(begun, &ended).await;
        }
        match replaced.map_err(IndexError::from) {
            Ok(()) => {}
            Err(error @ (IndexError::Indeterminate(_) | IndexError::BadReply { .. })) => {
                return LoadEnded::Unknown(error);
            }
            Err(error) => return LoadEnded::Failed(error),
        }
        let equal = built.equal_boundaries(self.map.owners().len()).unwrap_or_default();
        let fit = PartitionMap::new::<L>(self.map.epoch(), equal.clone()).is_ok();
        LoadEnded::Loaded(if fit { equal } else { Vec::new() })
    }

    /// Puts the replacement into the record. Returns the version of the record with it; `None` if
    /// the record has changed since `version`, or cannot be used.
    async fn begin_replacement(&self, version: u64) -> Option<u64> {
        let (worker, store) = (self.worker, self.worker.store());
        let (read, now) = store.read().await?;
        let is_same = now == version || worker.fabric().breaks(rules::LIVES_UNDO_LOADS);
        if !is_same || !self.is_as_begun(&read) {
            return None;
        }
        let replacing = Some(Replacement { load: self.number, by: worker.server().number() });
        let put = store.put_if(now, &MapState { replacing, ..read.clone() }).await;
        if put == PutOutcome::Changed {
            return None;
        }
        // The record has a version that this server does not know yet. If the put was lost, raising
        // the version makes it fail.
        for _ in 0..PUT_ATTEMPTS {
            if let Some((state, now)) = store.read().await {
                if state.replacing == replacing {
                    return Some(now);
                }
                if put == PutOutcome::Done || store.put_if(now, &state).await == PutOutcome::Done {
                    return None;
                }
            }
            worker.fabric().sleep(PUT_PAUSE_NS).await;
        }
        // If the put lands after all, `follow_map` ends the replacement.
        None
    }

    /// Gives up the load. Frees the new tree and its blocks.
    pub async fn abandon(self) {
        self.builder.abort().await;
        self.worker.values().give_back(self.blocks);
    }
}
