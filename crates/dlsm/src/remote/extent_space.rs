//! The extents that the handles of one process share: pieces of one size of the memory servers'
//! memory, in which the tables of an LSM index lie.
//!
//! ```text
//! free ──▶ leased ──▶ resting ──▶ free
//!             │       for a grace period
//!             └──▶ lost: a WRITE may still land, and its handle is gone
//! ```
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.K1. An extent is free, in one lease, resting or lost. A table of which a compaction has
//!   taken a part shares its other extents with the lease of the whole table.
//! - lsm.K2. An extent rests for a grace period after its lease has ended, which is when no version
//!   in use has its table.
//!
//! - Extents are promised to the flushes of MemTables: reserved for them (lsm.S1). Compactions and
//!   bulk loads leave that many unused.
//!
//! Extents that a WRITE may still reach when their lease ends are lost; `ExtentClient::settle`
//! avoids that (lsm.K3). Those that a job may still write to stay leased until it is closed
//! (lsm.J3).
//!
//! The metadata is in this process, made from the shard's directory when the process opens it: the
//! chunks that the shard has, and the tables that lie in them.
//!
//! *Thread safety*: any number of threads; a mutex that is never held across a wait.

use farleaf_fabric::sync::{Arc, AtomicBool, Mutex, Ordering, lock};
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_page::NodeCarver;
use farleaf_pool::wire::{EPOCH_JOBS_LOG2, LANE_JOBS_LOG2};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the space holds, in extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentUsage {
    /// Extents in all chunks.
    pub all: u64,
    /// In leases.
    pub leased: u64,
    /// Given back, and not to be used yet.
    pub resting: u64,
    /// Given up.
    pub lost: u64,
}

/// The purpose that extents are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentUse {
    /// A flush. Its extents were promised.
    Flush,
    /// A compaction that gives back about as many extents at its end. It leaves those that a
    /// compaction in pieces needs, because concurrent compactions could take all.
    Merge,
    /// An output of a compaction in pieces, which then gives back what it has read.
    Piece,
    /// A bulk load, which leaves what compactions and flushes need.
    Load,
}

/// A compaction job: its memory server, the shard that it belongs to, and its number. The numbers
/// of later epochs are higher, so that a process can close all jobs of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobId {
    /// The memory server that runs it.
    pub server: ServerId,
    /// The shard.
    pub owner: u64,
    /// Its number.
    pub job: u64,
}

impl JobId {
    /// The number before all jobs of an epoch.
    pub(crate) fn first(server: ServerId, shard: u64, epoch: u64) -> Self {
        Self { server, owner: shard, job: epoch << EPOCH_JOBS_LOG2 }
    }

    /// Job `number` of a lane of this job's epoch, which is the number before all its jobs.
    pub(crate) fn in_lane(self, lane: u8, number: u32) -> Self {
        let job = self.job + (u64::from(lane) << LANE_JOBS_LOG2) + u64::from(number);
        Self { job, ..self }
    }
}

/// The extents of one process.
#[derive(Debug)]
pub struct ExtentSpace {
    extent_bytes: u64,
    /// Tables are on the first server that has room, from this one on, modulo the number of
    /// servers.
    together_from: Option<u64>,
    inner: Mutex<ExtentSpaceInner>,
}

#[derive(Debug, Default)]
struct ExtentSpaceInner {
    /// The shard, and the epoch in which this process has it.
    shard: (u64, u64),
    /// How often [`ExtentSpace::begin`] was called. Leases of earlier times are ignored.
    begun: u64,
    /// Where each extent lies, by its number.
    places: Vec<GlobalAddr>,
    by_place: BTreeMap<GlobalAddr, u32>,
    /// By server: extents that can be leased.
    free: Vec<BTreeSet<u32>>,
    /// Given back since the last lease. Their grace period begins at the next one.
    ended: Vec<u32>,
    /// Resting extents, each with the time from which it can be leased.
    resting: VecDeque<(u64, u32)>,
    /// Leased to jobs that were given up, and when the next attempt to close them is due.
    of_jobs: Vec<(JobId, Vec<u32>, u64)>,
    next_server: u16,
    /// Number of leased extents. An extent in several leases counts once.
    leased: u64,
    /// Of extents in several leases, how many leases there are beside the first.
    shared: BTreeMap<u32, u32>,
    /// Promised to flushes, and how many of these the flush under way has taken.
    promised: u64,
    flushing: u64,
    /// Number of extents left to compactions, and to what only shrinks the tree.
    kept: u64,
    /// Number of extents left to compactions in pieces.
    for_pieces: u64,
    lost: u64,
    /// Borrowed tables that no version in use has any more, and that were not returned yet.
    unused_loans: BTreeSet<u64>,
}

impl ExtentSpace {
    /// A space without chunks, of extents of `extent_bytes` bytes, rounded up to whole nodes.
    pub fn new(extent_bytes: u64) -> Self {
        let extent_bytes = extent_bytes.max(1).next_multiple_of(NodeCarver::NODE_ALIGN);
        Self { extent_bytes, together_from: None, inner: Mutex::default() }
    }

    /// The same, whose tables are on one server, as long as it has room: a memory server merges
    /// only tables of its own. `shard` selects the server.
    pub(crate) fn together(self, shard: u64) -> Self {
        Self { together_from: Some(shard), ..self }
    }

    /// The size of an extent, in bytes.
    pub(crate) fn extent_bytes(&self) -> u64 {
        self.extent_bytes
    }

    /// What it holds.
    pub fn usage(&self) -> ExtentUsage {
        let inner = lock(&self.inner);
        ExtentUsage {
            all: inner.places.len() as u64,
            leased: inner.leased,
            resting: (inner.ended.len() + inner.resting.len()) as u64,
            lost: inner.lost,
        }
    }

    /// The extents that are free or resting, ascending.
    pub(crate) fn unused(&self) -> Vec<u32> {
        let inner = lock(&self.inner);
        let free = inner.free.iter().flatten().copied();
        let resting = inner.resting.iter().map(|(_, extent)| *extent);
        let mut unused: Vec<u32> = free.chain(resting).chain(inner.ended.iter().copied()).collect();
        unused.sort_unstable();
        unused
    }

    /// The shard that the extents belong to, and the epoch in which this process has it; 0 if it
    /// has none.
    pub(super) fn shard(&self) -> (u64, u64) {
        lock(&self.inner).shard
    }

    /// Begins with the chunks that `shard` has, and nothing else.
    pub fn begin(&self, shard: (u64, u64), chunks: &[(GlobalAddr, u64)]) {
        let mut inner = lock(&self.inner);
        let (kept, for_pieces) = (inner.kept, inner.for_pieces);
        *inner = ExtentSpaceInner {
            shard,
            begun: inner.begun + 1,
            kept,
            for_pieces,
            ..ExtentSpaceInner::default()
        };
        drop(inner);
        chunks.iter().for_each(|&(at, bytes)| self.add_chunk(at, bytes));
    }

    /// Leases the extents of a table, given as pieces of adjacent memory. `None` if one of them is
    /// no extent, or is leased already.
    pub(crate) fn lease_at(space: &Arc<Self>, pieces: &[(GlobalAddr, u64)]) -> Option<ExtentLease> {
        let mut lease = ExtentLease::new(space);
        for &(at, bytes) in pieces {
            for number in 0..bytes.div_ceil(space.extent_bytes) {
                lease.add(space.take_at(at.plus(number * space.extent_bytes))?);
            }
        }
        Some(lease)
    }

    /// A lease of a table that the shard has borrowed: its memory belongs to another shard. Once it
    /// has ended, the table is to be returned (lsm.L2).
    pub(crate) fn borrow_at(
        space: &Arc<Self>,
        table: u64,
        pieces: &[(GlobalAddr, u64)],
    ) -> ExtentLease {
        let mut lease = ExtentLease::new(space);
        lease.borrowed = Some(table);
        for &(at, bytes) in pieces {
            let extents = 0..bytes.div_ceil(space.extent_bytes);
            lease.places.extend(extents.map(|number| at.plus(number * space.extent_bytes)));
        }
        lease
    }

    /// The borrowed tables that are to be returned, in the epoch of this process.
    pub(crate) fn unused_loans(&self, epoch: u64) -> Vec<u64> {
        let inner = lock(&self.inner);
        let loans = inner.unused_loans.iter().copied();
        if inner.shard.1 == epoch { loans.collect() } else { Vec::new() }
    }

    /// Forgets borrowed tables that have been returned.
    pub(crate) fn forget_loans(&self, epoch: u64, tables: &[u64]) {
        let mut inner = lock(&self.inner);
        if inner.shard.1 == epoch {
            tables.iter().for_each(|table| _ = inner.unused_loans.remove(table));
        }
    }

    /// The extent at this place, if it is free.
    fn take_at(&self, at: GlobalAddr) -> Option<u32> {
        let mut inner = lock(&self.inner);
        let extent = inner.by_place.get(&at).copied()?;
        if !inner.free_on(at.server()).remove(&extent) {
            return None;
        }
        inner.leased += 1;
        Some(extent)
    }

    /// All of `servers` servers, from the next one in turn on, or from the one that keeps tables
    /// together.
    pub(super) fn servers(&self, servers: u16) -> impl Iterator<Item = ServerId> + use<> {
        let mut inner = lock(&self.inner);
        if let Some(from) = self.together_from {
            inner.next_server = (from % u64::from(servers.max(1))) as u16;
        }
        let first = inner.next_server % servers.max(1);
        inner.next_server = first + 1;
        (first..servers).chain(0..first).map(ServerId::new)
    }

    /// Cuts a chunk of `bytes` bytes into extents.
    pub(super) fn add_chunk(&self, at: GlobalAddr, bytes: u64) {
        let mut inner = lock(&self.inner);
        for number in 0..bytes / self.extent_bytes {
            let extent = inner.places.len() as u32;
            let place = at.plus(number * self.extent_bytes);
            inner.places.push(place);
            inner.by_place.insert(place, extent);
            inner.free_on(at.server()).insert(extent);
        }
    }

    /// Sets how many extents bulk loads, and compactions that are not in pieces, leave beside those
    /// that are promised (S2).
    pub(crate) fn keep(&self, (extents, for_pieces): (u64, u64)) {
        let mut inner = lock(&self.inner);
        (inner.kept, inner.for_pieces) = (extents, for_pieces);
    }

    /// Promises `extents` extents to flushes, in place of the former number, if `beside` further
    /// ones are available or `is_less`. Returns whether it has (S1).
    pub(crate) fn promise(&self, extents: u64, beside: u64, is_less: bool) -> bool {
        let mut inner = lock(&self.inner);
        let has_room = inner.available() + inner.flushing.min(extents) >= extents + beside;
        if has_room || is_less {
            inner.promised = extents;
        }
        has_room || is_less
    }

    /// A flush begins, or has ended: what it has taken is in tables, or was given back.
    pub(crate) fn turn_to_flush(&self) {
        lock(&self.inner).flushing = 0;
    }

    /// The extents that are free or resting, and how many of them are promised to flushes.
    pub(crate) fn available(&self) -> (u64, u64) {
        let inner = lock(&self.inner);
        (inner.available(), inner.still_promised())
    }

    /// An extent on `server`, if possible the one behind `before`. `None` if another chunk is
    /// needed. What was given back before this call rests for `grace_ns` from now on.
    pub(super) fn take(
        &self,
        (server, purpose): (ServerId, ExtentUse),
        before: Option<u32>,
        (now_ns, grace_ns): (u64, u64),
    ) -> Option<u32> {
        let mut inner = lock(&self.inner);
        if !inner.may_take(purpose) {
            return None;
        }
        inner.rest_until(now_ns + grace_ns);
        while let Some(&(due_ns, extent)) = inner.resting.front()
            && due_ns <= now_ns
        {
            inner.resting.pop_front();
            let server = inner.places[extent as usize].server();
            inner.free_on(server).insert(extent);
        }
        let free = inner.free_on(server);
        let next = before.map(|before| before + 1).filter(|next| free.contains(next));
        let extent = next.or(free.first().copied())?;
        free.remove(&extent);
        inner.leased += 1;
        inner.flushing += u64::from(purpose == ExtentUse::Flush);
        Some(extent)
    }

    /// When the first extent that is resting can be used; `None` if none is. What was given back
    /// before this call rests for `grace_ns` from now on.
    pub(super) fn first_rested_ns(&self, (now_ns, grace_ns): (u64, u64)) -> Option<u64> {
        let mut inner = lock(&self.inner);
        inner.rest_until(now_ns + grace_ns);
        inner.resting.front().map(|(due_ns, _)| *due_ns)
    }

    /// The leases of jobs that were given up, whose next attempt is due at `now_ns`.
    pub(super) fn take_of_jobs(space: &Arc<Self>, now_ns: u64) -> Vec<(JobId, ExtentLease)> {
        let is_due = |of_job: &mut (JobId, Vec<u32>, u64)| of_job.2 <= now_ns;
        let due: Vec<_> = lock(&space.inner).of_jobs.extract_if(.., is_due).collect();
        let lease = |extents: Vec<u32>| {
            let mut lease = ExtentLease::new(space);
            extents.into_iter().for_each(|extent| lease.add(extent));
            lease.set_settled(false);
            lease
        };
        due.into_iter().map(|(job, extents, _)| (job, lease(extents))).collect()
    }

    /// Where `extent` lies.
    fn place(&self, extent: u32) -> GlobalAddr {
        lock(&self.inner).places[extent as usize]
    }

    fn end(&self, lease: &ExtentLease) {
        let mut inner = lock(&self.inner);
        if inner.begun != lease.begun {
            return; // another process may have them
        }
        inner.unused_loans.extend(lease.borrowed);
        for &extent in &lease.extents {
            if inner.is_still_shared(extent) {
                continue;
            }
            inner.leased -= 1;
            match lease.is_settled {
                true => inner.ended.push(extent),
                false => inner.lost += 1,
            }
        }
    }
}

impl ExtentSpaceInner {
    /// Lets what was given back rest until `due_ns`.
    fn rest_until(&mut self, due_ns: u64) {
        let ended = std::mem::take(&mut self.ended);
        self.resting.extend(ended.into_iter().map(|extent| (due_ns, extent)));
    }

    /// Free or resting.
    fn available(&self) -> u64 {
        let free: usize = self.free.iter().map(BTreeSet::len).sum();
        (free + self.resting.len() + self.ended.len()) as u64
    }

    /// Extents still promised to flushes: without those that the running flush has taken.
    fn still_promised(&self) -> u64 {
        self.promised.saturating_sub(self.flushing)
    }

    fn may_take(&self, purpose: ExtentUse) -> bool {
        match purpose {
            ExtentUse::Flush => true,
            ExtentUse::Merge => self.available() > self.still_promised() + self.for_pieces,
            ExtentUse::Piece => self.available() > self.still_promised(),
            ExtentUse::Load => self.available() > self.still_promised() + self.kept,
        }
    }

    /// Takes one lease of an extent away. Returns whether there is another one.
    fn is_still_shared(&mut self, extent: u32) -> bool {
        let Some(others) = self.shared.get_mut(&extent) else { return false };
        *others -= 1;
        if *others == 0 {
            self.shared.remove(&extent);
        }
        true
    }

    fn free_on(&mut self, server: ServerId) -> &mut BTreeSet<u32> {
        if self.free.len() <= server.index() {
            self.free.resize_with(server.index() + 1, BTreeSet::new);
        }
        &mut self.free[server.index()]
    }
}

/// The extents of one table, in order. Dropping it gives them back.
#[derive(Debug)]
pub struct ExtentLease {
    space: Arc<ExtentSpace>,
    /// [`ExtentSpaceInner::begun`].
    begun: u64,
    extents: Vec<u32>,
    /// Where each lies, so that readers need not ask the space.
    places: Vec<GlobalAddr>,
    /// Number of extents at the beginning of the table that were already given back (S3).
    without: usize,
    /// Whether no WRITE to the extents may still land.
    is_settled: bool,
    /// Whether the extents were given back.
    has_ended: AtomicBool,
    /// The table, if it was borrowed. Then it has places, and no extents of the space.
    borrowed: Option<u64>,
}

impl ExtentLease {
    /// No extents.
    pub(super) fn new(space: &Arc<ExtentSpace>) -> Self {
        Self {
            space: Arc::clone(space),
            begun: lock(&space.inner).begun,
            extents: Vec::new(),
            places: Vec::new(),
            without: 0,
            is_settled: true,
            has_ended: AtomicBool::new(false),
            borrowed: None,
        }
    }

    /// Whether the memory belongs to another shard.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.borrowed.is_some()
    }

    /// The numbers of the extents. A borrowed table has none.
    pub(crate) fn extents(&self) -> &[u32] {
        &self.extents
    }

    /// Where the first word lies; null without extents.
    pub fn place(&self) -> GlobalAddr {
        self.places.first().copied().unwrap_or(GlobalAddr::NULL)
    }

    /// Where each extent lies.
    pub(crate) fn places(&self) -> &[GlobalAddr] {
        &self.places
    }

    /// Its extents as runs of adjacent numbers.
    pub(crate) fn runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &extent in &self.extents {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == extent => *count += 1,
                _ => runs.push((extent, 1)),
            }
        }
        runs
    }

    /// Splits off a lease of the first `extents` extents, which this one loses. `None` if there are
    /// fewer.
    pub(crate) fn split_off_first(&mut self, extents: usize) -> Option<Self> {
        if extents > self.extents.len() {
            return None;
        }
        let mut first = Self::new(&self.space);
        first.is_settled = self.is_settled;
        first.extents = self.extents.drain(..extents).collect();
        first.places = self.places.drain(..extents).collect();
        Some(first)
    }

    /// A lease of the same extents but those that end within the first `bytes` bytes of the table:
    /// these are free once this lease has ended, and the others once both have (S3).
    #[must_use]
    pub(crate) fn behind(&self, bytes: u64) -> Self {
        let extents = (bytes / self.space.extent_bytes) as usize;
        let extents = extents.saturating_sub(self.without).min(self.extents.len());
        let mut rest = Self::new(&self.space);
        rest.extents = self.extents[extents..].to_vec();
        rest.places = self.places[extents..].to_vec();
        (rest.without, rest.begun) = (self.without + extents, self.begun);
        let mut inner = lock(&self.space.inner);
        if inner.begun == self.begun {
            rest.extents.iter().for_each(|extent| *inner.shared.entry(*extent).or_default() += 1);
        }
        drop(inner);
        rest
    }

    /// Notes that these extents hold the end of a table of `bytes` bytes. If they are too few for
    /// all of it, its first extents were given back (S3).
    pub(crate) fn holds_end_of(&mut self, bytes: u64) {
        let all = bytes.div_ceil(self.space.extent_bytes) as usize;
        self.without = all.saturating_sub(self.places.len());
    }

    /// Bytes of the table before the first one that is there.
    pub(crate) fn skipped_bytes(&self) -> u64 {
        self.without as u64 * self.space.extent_bytes
    }

    /// Bytes of all its memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.places.len() as u64 * self.space.extent_bytes
    }

    /// Adds an extent that was taken.
    pub(super) fn add(&mut self, extent: u32) {
        self.places.push(self.space.place(extent));
        self.extents.push(extent);
    }

    /// Whether no WRITE may still land.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// The servers that its extents are on.
    pub(super) fn servers(&self) -> BTreeSet<ServerId> {
        self.places.iter().map(|place| place.server()).collect()
    }

    /// Whether WRITEs may be under way.
    pub(super) fn set_settled(&mut self, is_settled: bool) {
        self.is_settled = is_settled;
    }

    /// Leaves the extents to the space until `job` is closed. The next attempt is due at `due_ns`.
    pub(super) fn leave_to_space(mut self, job: JobId, due_ns: u64) {
        self.places.clear();
        let extents = std::mem::take(&mut self.extents);
        lock(&self.space.inner).of_jobs.push((job, extents, due_ns));
    }

    /// Gives the extents back, once. Before it is dropped, this breaks lsm.K2.
    pub(crate) fn end(&self) {
        if !self.has_ended.swap(true, Ordering::AcqRel) {
            self.space.end(self);
        }
    }

    /// Where `words` words from word `first` of the table on lie, in pieces of adjacent memory,
    /// each of at most `most` words. Ends early if there are fewer extents. Without the first word
    /// there are none.
    pub(crate) fn pieces(&self, first: u64, words: u64, most: u64) -> Vec<(GlobalAddr, u64)> {
        let extent_words = self.space.extent_bytes / 8;
        let skipped = self.without as u64 * extent_words;
        let mut pieces: Vec<(GlobalAddr, u64)> = Vec::new();
        let Some(first) = first.checked_sub(skipped) else { return pieces };
        let (mut next, end) = (first, first + words);
        while next < end
            && let Some(&place) = self.places.get((next / extent_words) as usize)
        {
            let at = place.plus(next % extent_words * 8);
            let here = (extent_words - next % extent_words).min(end - next).min(most);
            match pieces.last_mut() {
                Some((begin, held)) if begin.plus(*held * 8) == at && *held < most => {
                    let here = here.min(most - *held);
                    *held += here;
                    next += here;
                }
                _ => {
                    pieces.push((at, here));
                    next += here;
                }
            }
        }
        pieces
    }
}

impl Drop for ExtentLease {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId::new(1);

    fn space(extents: u64) -> Arc<ExtentSpace> {
        let space = Arc::new(ExtentSpace::new(1024));
        space.add_chunk(GlobalAddr::new(SERVER, 4096), extents * 1024 + 512);
        space
    }

    fn lease(space: &Arc<ExtentSpace>, extents: usize, now_ns: u64) -> Option<ExtentLease> {
        let mut lease = ExtentLease::new(space);
        for _ in 0..extents {
            lease.add(space.take(
                (SERVER, ExtentUse::Merge),
                lease.extents().last().copied(),
                (now_ns, 100),
            )?);
        }
        Some(lease)
    }

    #[test]
    fn an_extent_is_in_one_lease_and_rests_before_the_next() {
        let space = space(5);
        let (one, two) = (lease(&space, 2, 0).unwrap(), lease(&space, 3, 0).unwrap());
        assert_eq!((one.extents(), two.extents()), (&[0, 1][..], &[2, 3, 4][..]));
        assert!(space.take((SERVER, ExtentUse::Merge), None, (0, 100)).is_none());
        assert!(space.take((ServerId::new(0), ExtentUse::Merge), None, (0, 100)).is_none());
        drop(one);
        assert_eq!(space.usage(), ExtentUsage { all: 5, leased: 3, resting: 2, lost: 0 });
        assert!(
            space.take((SERVER, ExtentUse::Merge), None, (1_000, 100)).is_none(),
            "the grace period begins"
        );
        assert_eq!(space.first_rested_ns((1_000, 100)), Some(1_100));
        assert!(space.take((SERVER, ExtentUse::Merge), None, (1_099, 100)).is_none());
        let again = lease(&space, 2, 1_100).unwrap();
        assert_eq!(again.extents(), [0, 1]);
    }

    /// An allocation that found no memory once did not wait for extents that were given back while
    /// it looked.
    #[test]
    fn what_was_just_given_back_is_waited_for() {
        let space = space(1);
        let one = lease(&space, 1, 0).unwrap();
        assert!(space.take((SERVER, ExtentUse::Merge), None, (50, 100)).is_none());
        assert_eq!(space.first_rested_ns((50, 100)), None);
        drop(one);
        assert_eq!(space.first_rested_ns((60, 100)), Some(160));
        assert!(space.take((SERVER, ExtentUse::Merge), None, (160, 100)).is_some());
    }

    /// Another process may have had the shard between the two beginnings.
    #[test]
    fn a_lease_from_before_means_nothing() {
        let space = space(2);
        let before = lease(&space, 2, 0).unwrap();
        space.begin((7, 3), &[(GlobalAddr::new(SERVER, 4096), 2 * 1024)]);
        let now = lease(&space, 1, 0).unwrap();
        drop(before);
        assert_eq!(space.usage(), ExtentUsage { all: 2, leased: 1, resting: 0, lost: 0 });
        drop(now);
        assert_eq!(space.usage(), ExtentUsage { all: 2, leased: 0, resting: 1, lost: 0 });
    }

    #[test]
    fn an_extent_that_a_write_may_reach_is_lost() {
        let space = space(2);
        let mut one = lease(&space, 1, 0).unwrap();
        one.set_settled(false);
        drop(one);
        assert_eq!(space.usage(), ExtentUsage { all: 2, leased: 0, resting: 0, lost: 1 });
        drop(lease(&space, 1, 0));
        assert!(lease(&space, 2, 1_000).is_none());
        assert_eq!(lease(&space, 1, 2_000).unwrap().extents(), [1]);
    }

    #[test]
    fn pieces_are_adjacent_memory() {
        let space = space(6);
        let first = lease(&space, 2, 0).unwrap();
        let gap = lease(&space, 1, 0).unwrap();
        let mut table = lease(&space, 2, 0).unwrap();
        drop((first, gap));
        assert!(space.take((SERVER, ExtentUse::Merge), Some(4), (0, 0)).is_some(), "5 is behind 4");
        table.add(space.take((SERVER, ExtentUse::Merge), Some(5), (0, 0)).unwrap());
        assert_eq!(table.extents(), [3, 4, 0]);
        let at = |extent: u64, word: u64| GlobalAddr::new(SERVER, 4096 + extent * 1024 + word * 8);
        assert_eq!(table.pieces(3, 5, 100), [(at(3, 3), 5)]);
        assert_eq!(table.pieces(100, 60, 1_000), [(at(3, 100), 60)], "adjacent extents");
        assert_eq!(table.pieces(100, 60, 50), [(at(3, 100), 50), (at(4, 22), 10)], "at most 50");
        assert_eq!(table.pieces(250, 10, 100), [(at(4, 122), 6), (at(0, 0), 4)]);
        assert_eq!(table.pieces(380, 10, 100), [(at(0, 124), 4)], "there are no more extents");
    }
}
