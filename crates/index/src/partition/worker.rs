//! One thread of a compute server: it answers the requests of clients in other processes
//! ([`farleaf_pool::wire::ClientRequest`]).
//!
//! Any number of requests may be in flight, in tasks of this thread ([`Worker::answer_all`]). The
//! threads of a compute server share its cache and nothing else.
//!
//! *Invariant*: worker.WF1. A flush or a collection answers with an epoch only if the compute
//! server then serves exactly the range that the map of that epoch gives it. A giver no longer does
//! from the release on, which comes before the next map. So if all owners of a map answer with its
//! epoch, there was no newer map when they were asked.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::compute_server::{HaltOutcome, Incarnation, OperationInFlight, ResumeRight};
use super::part::OwnerHandle;
use super::probe::{probe, probe_all};
use super::router::behind;
use super::{ComputeServer, MapStore, PartitionMap, PutOutcome, SampledLoad};
use crate::CacheCounters;
use crate::together::all;
use crate::{
    InLeaves, IndexError, KeyedRecords, PartIndex, PartPool, PartValues, Partitioned,
    ReclaimOutcome, ScanEnd, ScanRequest, ValueForm,
};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, MAX_MESSAGE_BYTES, ServerId};
use farleaf_page::rules;
use farleaf_page::{EditAnswer, Layout, LeafEdit, OwnedKey, OwnedValue};
use farleaf_pool::remote::RemoteError;
use farleaf_pool::wire::{
    ClientRequest, ClientResponse, ErrorCode, NO_LOAD, RecordRoom, Refusal, Reply,
    SCAN_REPLY_RECORDS,
};
use std::cell::Cell;
use std::rc::Rc;

/// A halted compute server resumes by itself after this time.
const MAX_HALT_NS: u64 = 20_000_000_000;
/// Drain timeout and poll interval.
const MAX_DRAIN_NS: u64 = 8_000_000_000;
const DRAIN_POLL_INTERVAL_NS: u64 = 100_000;

/// Interval at which a thread without other background work settles unknown outcomes.
const SETTLE_NS: u64 = 50_000_000;
/// Interval at which memory servers are probed.
const MEMORY_POLL_INTERVAL_NS: u64 = 100_000_000;
/// A memory server has little memory left above this fraction of its region: it has handed out the
/// rest once, though nodes may have come back.
const LOW_MEMORY: f64 = 15.0 / 16.0;
/// While a memory server has little memory left, nodes are returned this often, and a thread keeps
/// so many on each.
const SHARE_NODES_NS: u64 = 1_000_000_000;
const KEPT_IN_LOW_MEMORY: usize = 16;
/// Pause between two steps of looking for memory of former incarnations, so that operations go on.
const RECLAIM_PAUSE_NS: u64 = 100_000;
/// The longest one, after steps that have failed: a step can write back all leaves.
const MAX_RECLAIM_PAUSE_NS: u64 = 200_000_000;

/// One thread of a compute server.
pub struct Worker<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L> = InLeaves> {
    pool: D::Pool<F, L>,
    part: OwnerHandle<D, F, L>,
    values: V::Values<F>,
    store: Rc<dyn MapStore<OwnedKey<L>>>,
    incarnation: Incarnation,
    /// Number of operations that its tasks are executing.
    under_way: Cell<usize>,
}

/// Maps an error to the code that is sent to a client.
pub(super) fn error_code(error: &IndexError) -> ErrorCode {
    match error {
        IndexError::Indeterminate(_) => ErrorCode::Indeterminate,
        IndexError::OutOfMemory { .. } => ErrorCode::OutOfMemory,
        IndexError::Contended { .. } => ErrorCode::Contended,
        IndexError::Fabric(_) => ErrorCode::NoMemoryServer,
        IndexError::NotServed { code, .. } => *code,
        IndexError::Refused { refusal: Refusal::NotEmpty, .. } => ErrorCode::NotEmpty,
        IndexError::NotSorted { .. } => ErrorCode::NotSorted,
        IndexError::NotItsKeys => ErrorCode::NotItsKeys,
        IndexError::InvalidArgument(_) => ErrorCode::Malformed,
        IndexError::TooLong(error) => (*error).into(),
        _ => ErrorCode::Damaged,
    }
}

/// Drops every second key until the rest fits a message.
fn thin_out<L: Layout>(keys: &mut Vec<OwnedKey<L>>) {
    while keys.iter().map(|key| L::key_bytes(L::key(key))).sum::<usize>() > MAX_MESSAGE_BYTES / 2 {
        let mut is_kept = false;
        keys.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
    }
}

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> Worker<D, F, L, V> {
    /// Opens a thread of `server` that reaches the memory servers over `fabric`, and the map record
    /// through `store`. All threads of the compute server have the same `values`.
    ///
    /// # Errors
    /// [`IndexError`] if the memory servers hold no index, or one with values in another form, or
    /// cannot be reached.
    pub async fn open(
        server: &Arc<ComputeServer<D, L>>,
        fabric: F,
        store: Rc<dyn MapStore<OwnedKey<L>>>,
        values: &V::Shared,
    ) -> Result<Self, IndexError> {
        V::check_index(&fabric).await?;
        let values = V::open(values, fabric.clone());
        let incarnation = server.incarnation(&fabric);
        if server.right().is_some() {
            // Connected now, so that a later fence cuts this endpoint off (over.T3).
            probe_all::<L>(&fabric).await?;
        }
        let pool = D::open_pool(fabric).await?;
        let part = OwnerHandle::open(server, &pool, server.sampled_one_in()).await?;
        Ok(Self { pool, part, values, store, incarnation, under_way: Cell::new(0) })
    }

    /// The cache's counters for this thread.
    pub fn cache_counters(&self) -> CacheCounters {
        let mut counters = self.part.index.cache_counters();
        counters += self.values.counters();
        counters
    }

    /// The endpoint that its thread posts verbs to.
    pub fn fabric(&self) -> &F {
        self.pool.fabric()
    }

    /// Until `ended` returns true, writes back nodes that have been dirty for a long time, if the
    /// cache has an age limit, and settles unknown outcomes.
    pub async fn write_back_by_age(&self, ended: &dyn Fn() -> bool) {
        self.part.index.write_back_by_age(ended).await;
        while !ended() {
            // Other threads may be waiting for this thread's unknown outcomes, which none of its
            // operations may be settling.
            self.part.index.settle_some().await;
            self.fabric().sleep(SETTLE_NS).await;
        }
    }

    /// Returns nodes that nothing points to: all of them once `ended` returns true, and those that
    /// this thread does not need soon while a memory server has little memory left. What it has
    /// when the process is killed is lost, so a pool would become smaller, life after life.
    pub async fn share_unused_nodes(&self, ended: &dyn Fn() -> bool) {
        let fabric = self.fabric();
        let mut due_ns = fabric.now_ns();
        while !ended() {
            if self.part.server.is_memory_low() && fabric.now_ns() >= due_ns {
                // If a memory server does not accept them, they stay here.
                let _ = self.part.index.share_unused_nodes(KEPT_IN_LOW_MEMORY).await;
                due_ns = fabric.now_ns() + SHARE_NODES_NS;
            }
            fabric.sleep(SETTLE_NS).await;
        }
        let _ = self.part.index.share_unused_nodes(0).await;
    }

    /// Looks for memory that former incarnations of the compute server have left and no leaf refers
    /// to, step by step, until it has found all of it, keys leave the range, or `ended` returns
    /// true. One task per compute server is enough.
    pub async fn reclaim(&self, ended: &dyn Fn() -> bool) {
        let mut pause_ns = RECLAIM_PAUSE_NS;
        while !ended() {
            let step = match self.enter().await {
                Some(_entered) => self.values.reclaim(self.index()).await,
                None => Ok(ReclaimOutcome::GoesOn),
            };
            match step {
                Ok(ReclaimOutcome::GoesOn) => pause_ns = RECLAIM_PAUSE_NS,
                // Not counted as in flight: it needs no range, and a halt need not wait for it.
                Ok(ReclaimOutcome::Found) => self.values.use_found().await,
                Ok(ReclaimOutcome::Ended) => return,
                Err(_) => pause_ns = (pause_ns * 2).min(MAX_RECLAIM_PAUSE_NS),
            }
            self.fabric().sleep(pause_ns).await;
        }
    }

    /// Probes every memory server repeatedly until `ended` returns true. One task per compute
    /// server is enough.
    pub async fn watch_memory_servers(&self, ended: &dyn Fn() -> bool) {
        let (fabric, detector) = (self.fabric(), self.part.server.detector());
        while !ended() {
            let round = detector.begin_round();
            let servers = (0..fabric.memory_servers()).map(ServerId::new);
            let answers = all(servers.map(|server| probe::<L, _>(fabric, server))).await;
            answers.iter().filter_map(|answer| answer.as_ref().err()).for_each(|error| {
                detector.learn(error);
            });
            if answers.iter().all(Result::is_ok) {
                detector.all_have_answered(round);
            }
            let is_low = answers.iter().flatten().any(|reply| match Reply::<L>::decode(reply) {
                Some(Reply::Usage(usage)) => usage.used_part() >= LOW_MEMORY,
                _ => false,
            });
            self.part.server.note_memory(is_low);
            fabric.sleep(MEMORY_POLL_INTERVAL_NS).await;
        }
    }

    fn map(&self) -> Arc<PartitionMap<OwnedKey<L>>> {
        self.part.server.map()
    }

    /// The compute server of this thread.
    pub(super) fn server(&self) -> &ComputeServer<D, L> {
        &self.part.server
    }

    /// This thread's handle on the compute server's part of the index.
    pub(super) fn index(&self) -> &D::Index<F, L> {
        &self.part.index
    }

    /// This thread's access to the values of that part.
    pub(super) fn values(&self) -> &V::Values<F> {
        &self.values
    }

    /// Operations that the tasks of this thread carry out now.
    pub(super) fn under_way(&self) -> &Cell<usize> {
        &self.under_way
    }

    /// The index in the memory pool.
    pub(super) fn pool(&self) -> &D::Pool<F, L> {
        &self.pool
    }

    /// The map record.
    pub(super) fn store(&self) -> &dyn MapStore<OwnedKey<L>> {
        &*self.store
    }

    /// The map, as a response.
    pub(super) fn map_told(&self) -> ClientResponse<L> {
        let map = self.map();
        let (boundaries, owners) = (map.boundaries().to_vec(), map.owners().to_vec());
        ClientResponse::Map { epoch: map.epoch(), boundaries, owners }
    }

    /// The response to an operation on a key that this server does not own.
    pub(super) fn refusal(&self, key: &L::Key) -> Option<ClientResponse<L>> {
        self.part.accept(key).is_err().then(|| self.not_owner(key))
    }

    fn not_owner(&self, key: &L::Key) -> ClientResponse<L> {
        let map = self.map();
        match map.owner_of(key) {
            // According to the map, this server owns the key, but it refused the operation: the key
            // is moving to or from it.
            owner if owner == self.part.server.number() => {
                ClientResponse::Error(ErrorCode::Unavailable)
            }
            owner => ClientResponse::NotOwner { owner, epoch: map.epoch() },
        }
    }

    /// Answers any request except those of bulk loads, which go to [`Worker::serve_loads`].
    pub async fn answer(&self, ask: ClientRequest<L>) -> ClientResponse<L> {
        if let Err(too_long) = ask.check(V::check) {
            return ClientResponse::Error(too_long.into());
        }
        match ask {
            ClientRequest::Map => return self.map_told(),
            ClientRequest::Halt { load, version } => {
                return self.told(self.halt_for(load, version).await);
            }
            ClientRequest::Resume { load } => {
                return match self.resume(load).await {
                    // Again later.
                    Err(IndexError::Contended { .. }) => {
                        ClientResponse::Error(ErrorCode::Unavailable)
                    }
                    resumed => self.told(resumed),
                };
            }
            _ => {}
        }
        let Some(_entered) = self.enter().await else {
            return ClientResponse::Error(ErrorCode::Unavailable);
        };
        let is_change = ask.is_change();
        if is_change && !self.part.server.detector().all_there() || !self.may_answer() {
            return ClientResponse::Error(ErrorCode::Unavailable);
        }
        let told = self.serve(ask).await;
        self.certain(is_change, told)
    }

    /// Counts a request as in flight, if the server is serving.
    #[inline]
    pub(super) async fn enter(&self) -> Option<OperationInFlight<'_>> {
        let server = &self.part.server;
        match server.enter() {
            None if self.resume_if_due().await => server.enter(),
            entered => entered,
        }
    }

    /// The response to a request that was served while a memory server may have been lost.
    pub(super) fn certain(&self, is_change: bool, told: ClientResponse<L>) -> ClientResponse<L> {
        match told {
            // The change is in this cache and may never reach the pool.
            ClientResponse::Edited(_)
            | ClientResponse::Changed { .. }
            | ClientResponse::Upserted { .. }
            | ClientResponse::Covered { .. }
                if is_change && !self.part.server.detector().all_there() =>
            {
                ClientResponse::Error(ErrorCode::Indeterminate)
            }
            ClientResponse::Error(_) => told,
            told if self.may_answer() => told,
            // Another server may serve these keys by now (over.T2).
            ClientResponse::Edited(_)
            | ClientResponse::Records { .. }
            | ClientResponse::Covered { .. }
                if !is_change =>
            {
                ClientResponse::Error(ErrorCode::Unavailable)
            }
            ClientResponse::Edited(_)
            | ClientResponse::Changed { .. }
            | ClientResponse::Upserted { .. }
            | ClientResponse::Covered { .. } => ClientResponse::Error(ErrorCode::Indeterminate),
            told => told,
        }
    }

    /// Whether the compute server knows that it was declared dead.
    pub fn was_declared_dead(&self) -> bool {
        self.part.server.was_declared_dead()
    }

    /// Whether this server has the right to answer now. For an answer that was read, ask after the
    /// read (over.T2).
    #[inline]
    pub(super) fn may_answer(&self) -> bool {
        let Some(right) = self.part.server.right() else { return true };
        right.holds(self.fabric().now_ns()) || self.fabric().breaks(rules::ANSWERED_BY_RIGHT)
    }

    async fn serve(&self, ask: ClientRequest<L>) -> ClientResponse<L> {
        match ask {
            ClientRequest::Edit(edit) => self.edit(edit.as_ref()).await,
            ClientRequest::Scan { lower, upper, reverse, limit } => {
                self.scan(ScanRequest { lower, upper, reverse, limit: limit as usize }).await
            }
            // Boxed, so that it does not enlarge the futures of single operations.
            ClientRequest::UpsertAll { records } => Box::pin(self.upsert_all(&records)).await,
            ClientRequest::Flush => self.covered(self.values.flush(self.index()).await),
            ClientRequest::Collect => self.covered(self.values.collect(self.index()).await),
            ClientRequest::Release { to, near } => {
                self.release(to, near.as_ref().map(L::key)).await
            }
            ClientRequest::TakeOver { from } => self.take_over(from).await,
            ClientRequest::Samples => {
                let SampledLoad { samples, mut keys } = self.server().samples().take();
                thin_out::<L>(&mut keys);
                ClientResponse::Samples { samples, keys }
            }
            ClientRequest::Fences { key } => match self.part.index.fences(L::key(&key)).await {
                Ok((low, high)) => ClientResponse::Fences { low, high },
                Err(RemoteError::Moved) => self.not_owner(L::key(&key)),
                Err(error) => self.no(&error.into()),
            },
            _ => ClientResponse::Error(ErrorCode::Malformed),
        }
    }

    fn told(&self, outcome: Result<(), IndexError>) -> ClientResponse<L> {
        match outcome {
            Ok(()) => ClientResponse::Done,
            Err(error) => self.no(&error),
        }
    }

    /// The response to a flush or a collection (WF1).
    fn covered(&self, outcome: Result<(), RemoteError>) -> ClientResponse<L> {
        // While shards leave, the range is not settled: a flush that forgets them would not be
        // believed.
        let is_broken = [rules::RANGES_SETTLED, rules::LEAVING_COVERED];
        let epoch = match is_broken.iter().any(|rule| self.fabric().breaks(*rule)) {
            true => Some(self.server().epoch()),
            false => self.server().settled_epoch(),
        };
        match (outcome, epoch) {
            (Ok(()), Some(epoch)) => {
                let Incarnation { number, began_ns } = self.incarnation;
                let age_ns = self.fabric().now_ns().saturating_sub(began_ns);
                ClientResponse::Covered { incarnation: number, age_ns, epoch }
            }
            (Ok(()), None) => ClientResponse::Error(ErrorCode::Unavailable),
            (Err(error), _) => self.no(&error.into()),
        }
    }

    /// Writes back every change that was acknowledged before the call, unless the server does not
    /// serve now or a memory server is missing; returns whether it has.
    pub async fn write_back(&self) -> bool {
        let Some(_entered) = self.enter().await else { return false };
        let detector = self.part.server.detector();
        detector.all_there()
            && self.values.flush(self.index()).await.is_ok()
            && detector.all_there()
    }

    /// The response to a batch whose keys are set.
    pub(super) fn upserted(&self) -> ClientResponse<L> {
        ClientResponse::Upserted { incarnation: self.incarnation.number }
    }

    /// The response to a request that failed.
    pub(super) fn no(&self, error: &IndexError) -> ClientResponse<L> {
        if let IndexError::Fabric(error) | IndexError::Indeterminate(error) = error {
            self.part.server.detector().learn(error);
        }
        ClientResponse::Error(error_code(error))
    }

    async fn edit(&self, edit: LeafEdit<&L::Key, &L::Value>) -> ClientResponse<L> {
        match self.refusal(edit.key) {
            Some(refusal) => refusal,
            None => self.edited(edit, self.values.execute(self.index(), edit).await),
        }
    }

    /// The response to an operation.
    #[inline]
    pub(super) fn edited(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
        outcome: Result<EditAnswer<OwnedValue<L>>, RemoteError>,
    ) -> ClientResponse<L> {
        match outcome {
            Ok(answer) if edit.changes() => {
                ClientResponse::Changed { incarnation: self.incarnation.number, answer }
            }
            Ok(answer) => ClientResponse::Edited(answer),
            Err(RemoteError::Moved) => self.not_owner(edit.key),
            Err(error) => self.no(&error.into()),
        }
    }

    async fn scan(&self, mut scan: ScanRequest<OwnedKey<L>>) -> ClientResponse<L> {
        let (map, me) = (self.map(), self.part.server.number());
        let owner = map.owner_of_start(&scan);
        if owner != me {
            return ClientResponse::NotOwner { owner, epoch: map.epoch() };
        }
        let mut room = RecordRoom::for_records(SCAN_REPLY_RECORDS);
        let (most, step) = (scan.limit.min(SCAN_REPLY_RECORDS), room.records_of_any_size::<L>());
        let mut records = KeyedRecords::new();
        // Scan in steps, so that little more is collected than fits the reply.
        loop {
            scan.limit = most.min(records.len() + step);
            let scanned = self.values.scan(self.index(), &scan, &mut room, &mut records).await;
            let ScanEnd { range, next, is_full } = match scanned {
                Ok(scanned) if scanned.range == map.range_of(me) => scanned,
                // The range belongs to a map that this thread has not seen yet.
                Ok(_) | Err(RemoteError::Moved) => {
                    return ClientResponse::Error(ErrorCode::Unavailable);
                }
                Err(error) => return self.no(&error.into()),
            };
            let Some(next) = next else {
                let next = behind(&scan, range, &L::min_key());
                return ClientResponse::Records { records, next };
            };
            if is_full || records.len() >= most {
                return ClientResponse::Records { records, next: Some(next) };
            }
            match scan.reverse {
                true => scan.upper = next,
                false => scan.lower = next,
            }
        }
    }

    /// Stops serving, waits for the operations in flight, and writes everything back, for a compute
    /// server that ends.
    ///
    /// # Errors
    /// As [`Worker::halt_for`].
    pub async fn halt(&self) -> Result<(), IndexError> {
        self.halt_for(NO_LOAD, 0).await
    }

    /// Stops serving, waits for the operations in flight, and writes everything back, so that
    /// `load` may replace the tree at this version of the map record.
    ///
    /// # Errors
    /// [`IndexError`] if something cannot be written, if operations or a resume in progress do not
    /// end in time, or if the record has another version. The compute server is halted even so,
    /// unless it was being resumed, is halted for another load, or the record has another version.
    pub async fn halt_for(&self, load: u64, version: u64) -> Result<(), IndexError> {
        let (fabric, server) = (self.fabric(), &self.part.server);
        let late_ns = fabric.now_ns().saturating_add(MAX_DRAIN_NS);
        let is_late = || fabric.now_ns() >= late_ns;
        loop {
            let now_ns = fabric.now_ns();
            match server.halt(load, version, now_ns, now_ns.saturating_add(MAX_HALT_NS)) {
                HaltOutcome::Halted if server.is_idle() || is_late() => break,
                HaltOutcome::Halted => {}
                HaltOutcome::Resumes if is_late() => break,
                HaltOutcome::Resumes => {}
                HaltOutcome::Another => {
                    let (compute_server, code) = (server.number(), ErrorCode::Loading);
                    return Err(IndexError::NotServed { compute_server, code });
                }
            }
            fabric.sleep(DRAIN_POLL_INTERVAL_NS).await;
        }
        // Do this even if an operation hangs, so that no acknowledged change is lost with it.
        self.values.flush(self.index()).await?;
        let has_halted = load == NO_LOAD || server.has_halted(load, version);
        if !server.is_idle() || !has_halted {
            return Err(IndexError::Contended { retries: 0 });
        }
        // The request may be late, and the load over: then nothing would resume this server soon.
        if load != NO_LOAD
            && let Some((_, newer)) = self.store.read().await
            && newer != version
        {
            let _ = self.resume(load).await;
            return Err(IndexError::Contended { retries: 0 });
        }
        Ok(())
    }

    /// Resumes serving after a halt for `load`, starting with an empty cache.
    ///
    /// # Errors
    /// [`IndexError`] if a load may still replace the tree and this cannot be prevented now, if
    /// dirty nodes cannot be written, or if the root cannot be read. The compute server then stays
    /// halted.
    pub async fn resume(&self, load: u64) -> Result<(), IndexError> {
        match self.part.server.begin_resume(Some(load), self.fabric().now_ns()) {
            Some(resuming) => self.finish_resume(resuming).await,
            None => Ok(()),
        }
    }

    async fn finish_resume(&self, resuming: ResumeRight<'_, D, L>) -> Result<(), IndexError> {
        if !self.fabric().breaks(rules::RESUMED_DECIDED) {
            self.decide_loads(resuming.halt.version).await?;
        }
        self.begin_anew().await?;
        resuming.serve();
        Ok(())
    }

    /// Makes sure that no load can replace the tree at `version` of the map record, or at an
    /// earlier one (record.MR3), and that none is replacing it now (record.MR4).
    async fn decide_loads(&self, version: u64) -> Result<(), IndexError> {
        let again = IndexError::Contended { retries: 0 };
        match self.store.read().await {
            Some((state, _)) if state.replacing.is_some() => Err(again),
            Some((_, read)) if read > version => Ok(()),
            Some((state, read)) if self.store.put_if(read, &state).await == PutOutcome::Done => {
                Ok(())
            }
            _ => Err(again),
        }
    }

    /// Drops the cached tree after writing it back, in case the preceding halt failed to do that.
    async fn begin_anew(&self) -> Result<(), RemoteError> {
        self.values.flush(self.index()).await?;
        self.part.index.forget().await
    }

    /// Resumes serving if the halt has lasted too long, because the client that requested it may be
    /// dead.
    async fn resume_if_due(&self) -> bool {
        match self.part.server.begin_resume(None, self.fabric().now_ns()) {
            Some(resuming) => self.finish_resume(resuming).await.is_ok(),
            None => false,
        }
    }
}
