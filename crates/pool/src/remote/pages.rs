//! Pages over one-sided verbs: reads that detect tearing, and the state a client keeps for its
//! changes.
//!
//! *Invariants*
//! - V1. A copy that [`PageClient::read`] returns is untorn, and was the content at its address at
//!   some moment between posting and completion. If the page is locked, the copy has the content
//!   before the holder's change, which no client has seen yet.
//! - V2. A page is discarded if its pointer was read more than [`GRACE_NS`] / 2 before the page
//!   arrived, and a freed node is not reused until [`GRACE_NS`] have passed. So the page that
//!   arrives is the one that the pointer meant, or that page marked as dead.
//! - V3. A page's version never decreases, whatever the node is used for.
//! - V4. Only copies of live pages are returned, so no caller can forget to check.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::commit::UnresolvedCommit;
use super::identity::{ClientIdentity, REGISTRAR};
use super::leaf_protocol::LeafHook;
use super::lock::UnresolvedLock;
use super::unreset::{UnendedOperation, UnresetServers};
use super::{
    Backoff, MissCause, NodeAllocator, PageCopy, PageImage, RemoteError, RpcClient, TimedPointer,
};
use crate::wire::OwnerRequest;
use farleaf_fabric::sync::{AtomicU64, Ordering};
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, ServerId};
use farleaf_page::rules;
use farleaf_page::{Layout, LockWord, NodeCarver};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::rc::Rc;

/// Grace period before a freed node is reused, in nanoseconds. It is far longer than a READ takes;
/// a client slower than half of it restarts at the root.
pub const GRACE_NS: u64 = 10_000_000;

/// Retries of a verb that changes nothing when its outcome is unknown.
pub const READ_RETRIES: u32 = 16;
/// READs of a page that fails validation before the caller restarts, and checks for a dead holder.
pub const REREADS: u32 = 24;
/// Attempts to settle a change of unknown outcome.
pub const SETTLES: u32 = 4 * READ_RETRIES;
/// Polls for a free buffer before giving up.
pub const BUSY_WAITS: u32 = 10_000;
/// Pause between two attempts to get a buffer, in nanoseconds.
pub const BUSY_WAIT_NS: u64 = 500;

/// One client's access to pages.
#[derive(Debug)]
pub struct PageClient<F: Fabric, L: Layout> {
    pub(super) rpc: RpcClient<F, L>,
    nodes: NodeAllocator<F, L>,
    pub(super) identity: ClientIdentity,
    /// Pages that operations of this client hold or may hold.
    pub(super) held: RefCell<BTreeSet<GlobalAddr>>,
    /// Pages that this client may hold without an operation that will unlock them.
    pub(super) doubts: RefCell<Vec<UnresolvedLock>>,
    /// Servers to which something may still be on its way whose operation has ended.
    pub(super) unreset: UnresetServers,
    /// What the design adds, if its leaves are not locked as pages are.
    pub(super) leaf_hook: Option<LeafHook<F, L>>,
    /// Commits that have begun but not finished (W4).
    pub(super) unfinished: RefCell<Vec<Rc<UnresolvedCommit<L>>>>,
    /// Whether a user of this client, such as a cache, may have an unsettled operation of its own.
    doubtful: Cell<bool>,
    /// Whether a task is settling doubts and finishing commits.
    pub(super) settling: Cell<bool>,
    /// When to try to settle them again.
    pub(super) doubts_due_ns: Cell<u64>,
    /// The last page that failed validation or was found locked, with its word 0.
    pub(super) suspect: Cell<Option<(GlobalAddr, LockWord)>>,
    /// The backoff that new operations start with.
    backoff: Cell<Backoff>,
    /// Whether a READ of a page comes between two READs of its word 0.
    by_versions: Cell<bool>,
}

impl<F: Fabric, L: Layout> Drop for PageClient<F, L> {
    /// Returns this client's number for reuse, if nothing can be done or recovered under it any
    /// more. This does not wait for the reply: if the request is lost, the number is lost too.
    fn drop(&mut self) {
        let Some(owner) = self.identity.owner() else { return };
        let is_at_rest = self.held.borrow().is_empty()
            && self.doubts.borrow().is_empty()
            && self.identity.is_at_rest()
            && self.fabric().counters().snapshot().indeterminate == 0;
        if is_at_rest || self.fabric().breaks(rules::NUMBERS_AT_REST) {
            drop(self.rpc.post(REGISTRAR, &OwnerRequest::Retire { owner }));
        }
    }
}

/// A READ of a page that is in flight.
pub struct PendingRead<F: Fabric> {
    pointer: TimedPointer,
    posted_ns: u64,
    operation: F::Op<Buffer>,
}

impl<F: Fabric> PendingRead<F> {
    /// The pointer that the READ follows.
    pub fn pointer(&self) -> TimedPointer {
        self.pointer
    }
}

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Bytes of a page.
    pub(super) fn page_bytes() -> usize {
        L::page_words() * 8
    }

    /// Creates a client that allocates memory in chunks of `chunk_bytes`.
    pub fn new(fabric: F, chunk_bytes: u64) -> Self {
        Self {
            nodes: NodeAllocator::new(fabric.clone(), chunk_bytes),
            identity: ClientIdentity::new(fabric.memory_servers()),
            rpc: RpcClient::new(fabric),
            held: RefCell::default(),
            doubts: RefCell::default(),
            unreset: UnresetServers::default(),
            leaf_hook: None,
            unfinished: RefCell::default(),
            doubtful: Cell::new(false),
            settling: Cell::new(false),
            doubts_due_ns: Cell::new(0),
            suspect: Cell::new(None),
            backoff: Cell::new(Backoff::default()),
            by_versions: Cell::new(false),
        }
    }

    /// The endpoint.
    #[inline]
    pub fn fabric(&self) -> &F {
        self.rpc.fabric()
    }

    /// A flag to set while a user of this client has an operation in doubt that others may be
    /// waiting for.
    pub fn doubtful(&self) -> &Cell<bool> {
        &self.doubtful
    }

    /// The backoff for a new operation.
    pub fn backoff(&self) -> Backoff {
        self.backoff.get()
    }

    /// Replaces the backoff of new operations; for experiments.
    pub fn set_backoff(&self, backoff: Backoff) {
        self.backoff.set(backoff);
    }

    /// Sets whether [`PageClient::read`] READs a page's word 0, the page, and word 0 again, one
    /// after the other, and trusts the page if the word is the same all three times. Designs
    /// without checksums do this. The checksum is still checked. For experiments.
    pub fn validate_by_versions(&self, by_versions: bool) {
        self.by_versions.set(by_versions);
    }

    /// RPCs over the same endpoint.
    pub fn rpc(&self) -> &RpcClient<F, L> {
        &self.rpc
    }

    /// Takes a scratch buffer. While other tasks of this endpoint use all of them, waits for a
    /// bounded time.
    ///
    /// # Errors
    /// [`RemoteError`] if none becomes free.
    pub async fn buffer(&self, bytes: usize) -> Result<Buffer, RemoteError> {
        self.buffers(|| self.fabric().buffer(bytes)).await
    }

    /// Takes all scratch buffers that `take` takes, or none while it waits for a bounded time (R5).
    ///
    /// # Errors
    /// As [`PageClient::buffer`].
    pub async fn buffers<T>(
        &self,
        take: impl Fn() -> Result<T, FabricError>,
    ) -> Result<T, RemoteError> {
        for _ in 0..BUSY_WAITS {
            match take() {
                Err(FabricError::NoBuffer { .. }) => self.fabric().sleep(BUSY_WAIT_NS).await,
                outcome => return Ok(outcome?),
            }
        }
        Ok(take()?)
    }

    /// Posts a READ of the page at `pointer`; [`PageClient::finish_read`] waits for it.
    ///
    /// # Errors
    /// [`MissCause`] if no buffer is free, or if `pointer` cannot be the address of a page.
    #[inline]
    pub fn post_read(&self, pointer: TimedPointer) -> Result<PendingRead<F>, MissCause> {
        let at = pointer.at;
        let sensible = !at.is_null()
            && !at.is_swizzled()
            && at.offset().is_multiple_of(NodeCarver::NODE_ALIGN)
            && at.server().number() < self.fabric().memory_servers();
        if !sensible {
            return Err(MissCause::Restart);
        }
        let buffer = self.fabric().buffer(Self::page_bytes())?;
        let posted_ns = self.fabric().now_ns();
        Ok(PendingRead { pointer, posted_ns, operation: self.fabric().read(at, buffer) })
    }

    /// Like [`PageClient::post_read`], for one of several READs in flight together: a missing
    /// buffer is a reason to retry.
    ///
    /// # Errors
    /// [`MissCause::Restart`] if no buffer is free, or if `pointer` cannot be the address of a
    /// page.
    #[inline]
    pub fn post_together(&self, pointer: TimedPointer) -> Result<PendingRead<F>, MissCause> {
        self.post_read(pointer).map_err(|miss| match miss {
            MissCause::Failed(RemoteError::Fabric(FabricError::NoBuffer { .. })) => {
                MissCause::Restart
            }
            miss => miss,
        })
    }

    /// Waits for a READ and validates the page (V1, V2, V4).
    ///
    /// # Errors
    /// [`MissCause::Restart`] if the pointer is too old, the page is dead, or the page keeps
    /// failing validation.
    #[inline]
    pub async fn finish_read(&self, pending: PendingRead<F>) -> Result<PageCopy<L>, MissCause> {
        let PendingRead { pointer, posted_ns, operation } = pending;
        match operation.await {
            Ok(buffer) => {
                let copy =
                    PageCopy { at: pointer.at, buffer, read_ns: posted_ns, layout: PhantomData };
                self.check_age(pointer)?;
                if self.is_sound(&copy) {
                    self.living(copy)
                } else {
                    self.read_again(pointer, Some(copy)).await
                }
            }
            Err(FabricError::Indeterminate { .. } | FabricError::QueueFull { .. }) => {
                self.read_again(pointer, None).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// READs the page at `pointer`: one READ, unless a concurrent WRITE tears it.
    ///
    /// # Errors
    /// As [`PageClient::finish_read`].
    #[inline]
    pub async fn read(&self, pointer: TimedPointer) -> Result<PageCopy<L>, MissCause> {
        if self.by_versions.get() {
            return self.read_by_versions(pointer).await;
        }
        self.read_once(pointer).await
    }

    #[cold]
    async fn read_by_versions(&self, pointer: TimedPointer) -> Result<PageCopy<L>, MissCause> {
        for _ in 0..REREADS {
            let before = self.read_words(pointer.at, 8).await?.get(0);
            let copy = self.read_once(pointer).await?;
            let after = self.read_words(pointer.at, 8).await?.get(0);
            if before == copy.word().to_bits() && after == before {
                return Ok(copy);
            }
            self.fabric().counters().count_retry();
        }
        Err(MissCause::Restart)
    }

    #[inline]
    async fn read_once(&self, pointer: TimedPointer) -> Result<PageCopy<L>, MissCause> {
        match self.post_read(pointer) {
            Err(MissCause::Failed(RemoteError::Fabric(FabricError::NoBuffer { .. }))) => {
                self.read_again(pointer, None).await
            }
            posted => self.finish_read(posted?).await,
        }
    }

    fn check_age(&self, pointer: TimedPointer) -> Result<(), MissCause> {
        let now_ns = self.fabric().now_ns();
        let is_old = now_ns.saturating_sub(pointer.since_ns) > GRACE_NS / 2;
        if is_old && !self.fabric().breaks(rules::POINTERS_AGE) {
            return Err(MissCause::Restart);
        }
        Ok(())
    }

    /// Notes that the page or the leaf at `at`, whose lock has `word`, is in an operation's way. If
    /// that lasts, the word's owner may be dead.
    pub fn note_suspect(&self, at: GlobalAddr, word: LockWord) {
        self.suspect.set(Some((at, word)));
    }

    /// Something is about to be posted to `server` that no page has a doubt about. If the guard is
    /// dropped before that has landed, the connection is in doubt (K4).
    #[inline]
    pub fn may_land(&self, server: ServerId) -> UnendedOperation<'_> {
        self.unreset.may_land(server)
    }

    /// What to look after if the page of this copy cannot be used: its entry lock, unless the whole
    /// page is locked.
    fn blocking_word(copy: &PageCopy<L>) -> LockWord {
        let (word, entries) = (copy.word(), copy.page().entry_lock());
        if entries.is_locked() && !word.is_locked() { entries } else { word }
    }

    #[inline]
    fn is_sound(&self, copy: &PageCopy<L>) -> bool {
        let page = copy.page();
        let word = page.lock_word();
        if word.is_locked() {
            // If the descent gets stuck below this page, its holder may have died half-way through
            // a change of several pages.
            self.suspect.set(Some((copy.at, word)));
        }
        let is_whole = page.is_of_one_piece()
            || self.fabric().breaks(rules::CHECKSUMS)
            || (page.has_whole_header() && self.fabric().breaks(rules::ENTRIES_CHECKED));
        is_whole && (page.address() == copy.at || self.fabric().breaks(rules::OWN_ADDRESS))
    }

    /// Returns the copy if its page is live (V4).
    #[inline]
    fn living(&self, copy: PageCopy<L>) -> Result<PageCopy<L>, MissCause> {
        match copy.page().is_dead() && !self.fabric().breaks(rules::DEAD_PAGES_REFUSED) {
            true => Err(MissCause::Restart),
            false => Ok(copy),
        }
    }

    #[cold]
    async fn read_again(
        &self,
        pointer: TimedPointer,
        mut last: Option<PageCopy<L>>,
    ) -> Result<PageCopy<L>, MissCause> {
        let mut backoff = Backoff::default();
        let mut unknown = 0;
        for _ in 0..REREADS {
            if let Some(copy) = last.take() {
                self.suspect.set(Some((copy.at, Self::blocking_word(&copy))));
            }
            backoff.count();
            self.fabric().counters().count_retry();
            backoff.wait(self.fabric()).await;
            let pending = match self.post_read(pointer) {
                Err(MissCause::Failed(RemoteError::Fabric(FabricError::NoBuffer { .. }))) => {
                    continue;
                }
                posted => posted?,
            };
            let read_ns = pending.posted_ns;
            let at = pointer.at;
            let copy = match pending.operation.await {
                Ok(buffer) => PageCopy { at, buffer, read_ns, layout: PhantomData },
                Err(FabricError::QueueFull { .. }) => continue,
                Err(error @ FabricError::Indeterminate { .. }) => {
                    unknown += 1;
                    if unknown == READ_RETRIES {
                        return Err(error.into());
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.check_age(pointer)?;
            if self.is_sound(&copy) {
                return self.living(copy);
            }
            last = Some(copy);
        }
        Err(MissCause::Restart)
    }

    /// Reads the pool's content of a page, without validation. Retries if the outcome is unknown,
    /// which is safe because a READ changes nothing.
    pub async fn read_raw(&self, at: GlobalAddr) -> Result<PageCopy<L>, RemoteError> {
        let buffer = self.read_words(at, Self::page_bytes()).await?;
        let read_ns = self.fabric().now_ns();
        Ok(PageCopy { at, buffer, read_ns, layout: PhantomData })
    }

    /// Reads `bytes` bytes at `at`. Retries if the outcome is unknown.
    pub async fn read_words(&self, at: GlobalAddr, bytes: usize) -> Result<Buffer, RemoteError> {
        let mut outcome = Err(RemoteError::Contended { retries: READ_RETRIES });
        for attempt in 0..READ_RETRIES {
            if attempt > 0 {
                self.fabric().counters().count_retry();
                self.fabric().sleep(BUSY_WAIT_NS).await;
            }
            let buffer = self.buffer(bytes).await?;
            match self.fabric().read(at, buffer).await {
                Err(FabricError::QueueFull { .. }) => {}
                Err(error @ FabricError::Indeterminate { .. }) => outcome = Err(error.into()),
                done => return Ok(done?),
            }
        }
        outcome
    }

    /// Posts a WRITE of `words`.
    ///
    /// # Errors
    /// [`RemoteError`] if no buffer becomes free.
    pub async fn post_write(
        &self,
        at: GlobalAddr,
        words: impl ExactSizeIterator<Item = u64>,
    ) -> Result<F::Op<Buffer>, RemoteError> {
        let buffer = self.buffer(words.len() * 8).await?;
        Ok(self.write_from(buffer, at, words))
    }

    /// Posts a WRITE of `words` from a buffer of their size.
    pub fn write_from(
        &self,
        buffer: Buffer,
        at: GlobalAddr,
        words: impl Iterator<Item = u64>,
    ) -> F::Op<Buffer> {
        words.enumerate().for_each(|(index, word)| buffer.set(index, word));
        self.fabric().write(at, buffer)
    }

    /// Posts two WRITEs for a page that this client holds: the body, then word 0, which unlocks the
    /// page. They take effect in this order (F3).
    ///
    /// A single WRITE would not be enough. A word that does not change could land last, and until
    /// then a reader would consider the page complete. Another client could lock and change the
    /// page, and the late word would overwrite that change.
    pub(super) async fn post_unlock(
        &self,
        at: GlobalAddr,
        image: &PageImage<L>,
    ) -> Result<[F::Op<Buffer>; 2], RemoteError> {
        // Get both buffers before the first post: no other verb may come between the two WRITEs.
        let fabric = self.fabric();
        let take = || Ok((fabric.buffer(Self::page_bytes() - 8)?, fabric.buffer(8)?));
        let (body, word) = self.buffers(take).await?;
        body.copy_from(&image.page().words()[1..]);
        word.set(0, image.page().lock_word().to_bits());
        if fabric.breaks(rules::UNLOCK_LAST) {
            let word = fabric.write(at, word);
            return Ok([fabric.write(at.plus(8), body), word]);
        }
        if fabric.breaks(rules::UNLOCK_ALONE) {
            let page = self.buffer(Self::page_bytes()).await?;
            page.copy_from(image.page().words());
            return Ok([fabric.write(at, page), fabric.read(at, word)]);
        }
        Ok([fabric.write(at.plus(8), body), fabric.write(at, word)])
    }

    /// WRITEs and unlocks a page that this client holds.
    pub(super) async fn write_unlock(
        &self,
        at: GlobalAddr,
        image: &PageImage<L>,
    ) -> Result<(), RemoteError> {
        let [body, word] = self.post_unlock(at, image).await?;
        let (body, word) = (body.await, word.await);
        body?;
        word?;
        Ok(())
    }

    /// Posts a WRITE of a whole page that no other client can reach yet.
    ///
    /// # Errors
    /// [`RemoteError`] if no buffer becomes free.
    pub async fn post_page(
        &self,
        at: GlobalAddr,
        image: &PageImage<L>,
    ) -> Result<F::Op<Buffer>, RemoteError> {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        self.post_write(at, image.words().iter().map(load)).await
    }

    /// Allocates a node on `server`. If the server is full, waits for a freed node of this client.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if there is no such node.
    pub async fn take_node(&self, server: ServerId) -> Result<GlobalAddr, RemoteError> {
        self.nodes.take(server).await
    }

    /// Allocates a node on the next server in turn that has room.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if no server has room.
    pub async fn take_node_anywhere(&self) -> Result<GlobalAddr, RemoteError> {
        self.nodes.take_anywhere().await
    }

    /// Restricts [`PageClient::take_node_anywhere`] to the first `servers` memory servers; at least
    /// one.
    pub fn use_servers(&self, servers: u16) {
        self.nodes.use_servers(servers);
    }

    /// The number of memory servers that [`PageClient::take_node_anywhere`] uses.
    pub fn used_servers(&self) -> u16 {
        self.nodes.used_servers()
    }

    /// The number of nodes that can be allocated on `server` without an RPC.
    pub fn available(&self, server: ServerId) -> usize {
        self.nodes.available(server)
    }

    /// The fraction of a memory server's pool that is allocated; `None` if the server does not
    /// answer.
    pub async fn used_part(&self, server: ServerId) -> Option<f64> {
        self.rpc.usage(server).await.ok().map(|usage| usage.used_part())
    }

    /// Frees a node that no other client has ever been able to reach, for immediate reuse.
    pub fn give_back_unseen(&self, node: GlobalAddr) {
        self.nodes.give_back(node);
    }

    /// Frees a node that no page points to. It is reused only after the grace period (V2).
    pub fn retire(&self, node: GlobalAddr) {
        let rest_ns = if self.fabric().breaks(rules::FREED_NODES_REST) { 0 } else { GRACE_NS };
        self.nodes.retire(node, rest_ns);
    }

    /// The number of freed nodes still in their grace period.
    pub fn resting_nodes(&self) -> usize {
        self.nodes.resting()
    }

    /// Returns freed nodes after their grace period to the memory servers for other clients,
    /// except those that this client is likely to need soon.
    ///
    /// # Errors
    /// [`RemoteError`] if a memory server does not accept them. In that case they stay with this
    /// client, unless the outcome is unknown, which means that they are lost.
    pub async fn share_free_nodes(&self) -> Result<(), RemoteError> {
        self.nodes.share_all(KEPT_NODES).await
    }

    /// As [`PageClient::share_free_nodes`], all nodes that nothing points to beyond `keep` on each
    /// server.
    ///
    /// # Errors
    /// As [`PageClient::share_free_nodes`].
    pub async fn share_unused_nodes(&self, keep: usize) -> Result<(), RemoteError> {
        self.nodes.share_unused(keep).await
    }

    /// As [`PageClient::share_free_nodes`], if there are many of them. Clients that free nodes may
    /// never need any themselves.
    ///
    /// # Errors
    /// As [`PageClient::share_free_nodes`].
    pub async fn share_many_free_nodes(&self) -> Result<(), RemoteError> {
        match self.nodes.has_free(2 * KEPT_NODES) {
            true => self.share_free_nodes().await,
            false => Ok(()),
        }
    }

    /// Word 0 of a newly allocated node. Its first image must have the next version (V3).
    ///
    /// # Errors
    /// [`RemoteError`] if it cannot be read.
    pub async fn fresh_word(&self, node: GlobalAddr) -> Result<LockWord, RemoteError> {
        Ok(LockWord::from_bits(self.read_words(node, 8).await?.get(0)))
    }

    /// Posts a READ of a newly allocated node's word 0, for callers that make many nodes.
    ///
    /// # Errors
    /// [`RemoteError`] if no buffer is free.
    pub fn post_fresh_word(&self, node: GlobalAddr) -> Result<F::Op<Buffer>, RemoteError> {
        Ok(self.fabric().read(node, self.fabric().buffer(8)?))
    }

    /// Seals the image of a node that no other client can reach yet, with the version after
    /// `found`, and posts its WRITE.
    ///
    /// # Errors
    /// [`RemoteError`] if no buffer becomes free.
    pub async fn post_fresh_page(
        &self,
        node: GlobalAddr,
        found: LockWord,
        image: &PageImage<L>,
    ) -> Result<F::Op<Buffer>, RemoteError> {
        let found = match self.fabric().breaks(rules::VERSIONS_GO_ON) {
            true => LockWord::from_bits(0),
            false => found,
        };
        image.page().seal(found.next_by(self.identity.owner().unwrap_or(0)));
        self.post_page(node, image).await
    }

    /// WRITEs nodes that no other client can reach yet, and retries until the WRITEs are known to
    /// have landed.
    ///
    /// # Errors
    /// [`RemoteError::Indeterminate`] if that stays unknown; only the nodes are lost.
    pub async fn write_fresh(
        &self,
        pages: &[(GlobalAddr, LockWord, &PageImage<L>)],
    ) -> Result<(), RemoteError> {
        let mut outcome = Ok(());
        for _ in 0..READ_RETRIES {
            let mut posted = Vec::with_capacity(pages.len());
            for (node, found, image) in pages {
                posted.push(self.post_fresh_page(*node, *found, image).await);
            }
            outcome = Ok(());
            for operation in posted {
                let done = match operation {
                    Ok(operation) => operation.await.map(drop).map_err(RemoteError::from),
                    Err(error) => Err(error),
                };
                outcome = outcome.and(done);
            }
            if outcome.is_ok() {
                return outcome;
            }
            // A late WRITE must not land after the node is reused, or over a later WRITE to it.
            self.fabric().counters().count_retry();
            for (node, ..) in pages {
                if !self.fabric().breaks(rules::FRESH_SETTLED) {
                    self.fabric().reset(node.server()).await?;
                }
            }
        }
        outcome
    }
}

/// Free nodes per server that a client keeps instead of returning them.
const KEPT_NODES: usize = 256;
