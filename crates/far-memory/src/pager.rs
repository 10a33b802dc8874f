//! The pager: carries out what the page table decides, over the fabric.
//!
//! One task, [`Pager::run`], owns all transfers, so an access that is given up leaves none behind.
//! An access is a touch ([`Pager::touch`]); it waits until its page is in place. Touches that find
//! the buffer full wait in the order of their tickets.
//!
//! *Invariants*
//! - far.G1. A free slot goes to a touch only if all touches with older tickets also have one.
//! - far.G2. Pages leave ahead of demand: whenever fewer slots than the low water are free, or a
//!   touch waits for one, pages are leaving, unless none can.
//! - far.G3. A touch ends: with its page in place, or with an error after a bounded time.
//! - far.G4. WRITEs use at most half of the operations in flight, and READs ahead of demand begin
//!   only if no touch waits for a READ to begin.
//!
//! *Thread safety*: one thread. It never accesses the region as the program does.

mod moves;

use crate::chunks::Chunks;
use crate::memory::PageAccessProvider;
use crate::space::ChunkSpace;
use crate::stats::FarStats;
use crate::streams::AccessStreams;
use crate::table::{AccessKind, Discard, PageState, PageTable, Touch, Victim};
use crate::transfer::Transfers;
use crate::{FarConfig, FarError};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, ServerId};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A READ or a WRITE, and what follows.
type TransferJob = Pin<Box<dyn Future<Output = ()>>>;

/// Maximum number of remembered failures.
const MAX_FAILURES: usize = 4096;

/// A pager of one region; clones are the same pager.
pub struct Pager<F: Fabric, M, S>(Rc<PagerInner<F, M, S>>);

impl<F: Fabric, M, S> Clone for Pager<F, M, S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

struct PagerInner<F: Fabric, M, S> {
    config: FarConfig,
    memory: M,
    transfers: Transfers<F>,
    chunks: Chunks<S>,
    state: RefCell<PendingWork>,
}

/// Everything that waits.
struct PendingWork {
    table: PageTable,
    /// Filling pages whose READs have not begun.
    demand: VecDeque<u32>,
    streams: AccessStreams,
    /// Pages to be read ahead of their touch; their states are looked at later.
    ahead: VecDeque<u32>,
    /// Leaving pages whose WRITEs have not begun.
    leaving: VecDeque<Range<u32>>,
    reads: usize,
    writes: usize,
    /// Number of pages being filled whose READs were given up, but may still take effect.
    astray: u32,
    /// By memory server: bytes of WRITEs in flight. Without a place yet: [`UNPLACED`].
    write_bytes: BTreeMap<u32, usize>,
    waiting: BTreeMap<u32, Vec<Waker>>,
    /// By page: the touches that have had to wait and have not ended.
    touching: BTreeMap<u32, u32>,
    /// Touches without a slot, by ticket.
    room: BTreeMap<u64, Waker>,
    next_ticket: u64,
    /// By page: the number of its last failure, and the failure.
    failures: BTreeMap<u32, (u64, FarError)>,
    failure_count: u64,
    /// By memory server: why its pages are lost.
    gone: BTreeMap<u16, FabricError>,
    /// Why pages could not be written back the last time.
    stuck: Option<FarError>,
    /// Number of holds of pages; a page that is held twice counts twice.
    holds: u32,
    task: Option<Waker>,
    has_work: bool,
    is_stopping: bool,
    stats: FarStats,
}

const UNPLACED: u32 = u32::MAX;

/// Why a page is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TouchCause {
    /// The program accesses it, and a thread may wait for that.
    Access,
    /// The program has requested it, without an access.
    Request,
}

impl<F: Fabric, M: PageAccessProvider + 'static, S: ChunkSpace<F>> Pager<F, M, S> {
    /// A pager of an empty region in `memory`, over this endpoint. Nothing moves before
    /// [`Pager::run`] is polled.
    ///
    /// # Errors
    /// [`FarError::Config`] if the settings are wrong.
    pub fn new(config: FarConfig, fabric: F, memory: M, space: S) -> Result<Self, FarError> {
        config.check()?;
        if config.mirror && fabric.memory_servers() < 2 {
            let fault = "a mirror with one memory server: use two, or no mirror".to_owned();
            return Err(FarError::Config { fault });
        }
        let table = PageTable::new(config.pages(), config.buffer_pages, config.policy);
        let state = PendingWork {
            table,
            demand: VecDeque::new(),
            streams: AccessStreams::new(config.pages(), config.ahead_pages),
            ahead: VecDeque::new(),
            leaving: VecDeque::new(),
            reads: 0,
            writes: 0,
            astray: 0,
            write_bytes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            touching: BTreeMap::new(),
            room: BTreeMap::new(),
            next_ticket: 0,
            failures: BTreeMap::new(),
            failure_count: 0,
            gone: BTreeMap::new(),
            stuck: None,
            holds: 0,
            task: None,
            has_work: false,
            is_stopping: false,
            stats: FarStats::default(),
        };
        Ok(Self(Rc::new(PagerInner {
            transfers: Transfers::new(
                fabric,
                Arc::clone(memory.view()),
                config.patience_ns,
                config.rest_ns,
            ),
            chunks: Chunks::new(space, &config),
            memory,
            config,
            state: RefCell::new(state),
        })))
    }

    /// The local side of the region.
    pub fn memory(&self) -> &M {
        &self.0.memory
    }

    /// The settings.
    pub fn config(&self) -> &FarConfig {
        &self.0.config
    }

    /// The state of `page` at this moment.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn state(&self, page: u32) -> PageState {
        self.0.state.borrow().table.state(page)
    }

    /// The counts so far.
    pub fn stats(&self) -> FarStats {
        let state = self.0.state.borrow();
        FarStats {
            retries: self.0.transfers.retries(),
            remote_bytes: self.0.chunks.bytes(),
            lost_copies: self.0.chunks.lost_copies(),
            resident: state.table.resident(),
            peak_resident: state.table.peak(),
            buffer_pages: self.0.config.buffer_pages,
            held: state.table.held(),
            ..state.stats
        }
    }

    /// Checks the invariants of the page table, in time proportional to the region.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        self.0.state.borrow().table.check();
    }

    /// The pages of a range of bytes, all of which it touches.
    ///
    /// # Errors
    /// [`FarError::Outside`] if it is not inside the region.
    pub fn pages(&self, bytes: &Range<usize>) -> Result<Range<u32>, FarError> {
        pages_of(&self.0.config, bytes)
    }

    /// Makes `access` to `page` possible until the caller's next await.
    ///
    /// # Errors
    /// [`FarError`] if the content cannot be read, or no room can be made for it.
    ///
    /// # Panics
    /// If there is no such page.
    pub async fn touch(&self, page: u32, access: AccessKind) -> Result<(), FarError> {
        self.reach(page, Some(access), TouchCause::Access).await
    }

    /// Touches the page; without an access, touches it for reading and holds it.
    async fn reach(
        &self,
        page: u32,
        access: Option<AccessKind>,
        cause: TouchCause,
    ) -> Result<(), FarError> {
        let since = {
            let state = &mut *self.0.state.borrow_mut();
            state.stats.touches += 1;
            state.failure_count
        };
        let mut ticket =
            TouchTicket { state: &self.0.state, page, number: None, has_waited: false };
        poll_fn(|context| {
            let polled = self.poll_reach(context, page, (access, cause), since, &mut ticket);
            if polled.is_pending() && !std::mem::replace(&mut ticket.has_waited, true) {
                *self.0.state.borrow_mut().touching.entry(page).or_default() += 1;
            }
            polled
        })
        .await
    }

    fn poll_reach(
        &self,
        context: &Context<'_>,
        page: u32,
        (access, cause): (Option<AccessKind>, TouchCause),
        since: u64,
        ticket: &mut TouchTicket<'_>,
    ) -> Poll<Result<(), FarError>> {
        let inner = &*self.0;
        let state = &mut *inner.state.borrow_mut();
        if state.is_stopping {
            return Poll::Ready(Err(FarError::Stopped));
        }
        if let Some((number, error)) = state.failures.get(&page)
            && *number > since
        {
            return Poll::Ready(Err(error.clone()));
        }
        let older = state.room.range(..ticket.number.unwrap_or(u64::MAX)).count();
        let may_take_slot = state.table.free() as usize > older; // G1
        let was_ahead = state.table.take_ahead(page);
        let touch = state.table.touch(page, access.unwrap_or(AccessKind::Read), may_take_slot);
        state.stats.ahead_hits += u64::from(was_ahead);
        if was_ahead || touch == Touch::Fill {
            let pages = state.streams.fault(page);
            self.read_ahead(state, pages);
        }
        if touch != Touch::NoRoom
            && let Some(number) = ticket.number.take()
        {
            state.room.remove(&number);
            // If it needed no slot, the next touch may take the one that it was woken for.
            state.wake_room();
        }
        match touch {
            Touch::Allow(_)
                if access.is_none() && state.table.state(page) == PageState::Leaving =>
            {
                state.table.keep(page);
                state.wait_for(page, context);
            }
            Touch::Allow(allowed) => {
                // No thread waits for a page that was asked for, unless its own touch wakes it.
                if cause == TouchCause::Access || !inner.memory.is_allowed(page, allowed) {
                    inner.memory.allow(page, allowed);
                }
                return Poll::Ready(state.hold_if(access.is_none(), page));
            }
            Touch::Zero(allowed) => {
                inner.memory.zero(page);
                inner.memory.allow(page, allowed);
                state.stats.zero_fills += 1;
                // The task makes room: it could be this page's, before the program has used it.
                state.notify();
                return Poll::Ready(state.hold_if(access.is_none(), page));
            }
            Touch::Fill => {
                state.stats.fills += 1;
                state.demand.push_back(page);
                state.wait_for(page, context);
                state.notify();
                self.make_room(state);
            }
            Touch::Wait => state.wait_for(page, context),
            Touch::NoRoom => {
                if ticket.number.is_none() {
                    ticket.number = Some(state.next_ticket);
                    state.next_ticket += 1;
                    state.stats.waits_for_room += 1;
                }
                let number = ticket.number.expect("the touch has a ticket");
                state.room.insert(number, context.waker().clone());
                self.make_room(state);
                if state.table.free() == 0 && !state.is_moving() {
                    let cause = state.stuck.clone().unwrap_or(FarError::Stopped);
                    return Poll::Ready(Err(FarError::NoRoom { page, cause: Box::new(cause) }));
                }
                if state.table.free() as usize > older {
                    context.waker().wake_by_ref();
                }
                state.wait_for(page, context);
            }
            Touch::Lost => return Poll::Ready(Err(self.lost(state, page))),
        }
        Poll::Pending
    }

    fn lost(&self, state: &PendingWork, page: u32) -> FarError {
        let place = self.0.chunks.find(page).expect("a lost page was somewhere");
        let server = place.server();
        let cause = state.gone.get(&server.number()).cloned();
        let cause = cause.unwrap_or(FabricError::Restarted { server });
        FarError::Lost { page, server, cause }
    }

    /// Loads pages, so that touches of them succeed unless they leave again. More pages than can be
    /// held are loaded one part after the other.
    ///
    /// # Errors
    /// [`FarError`] of the first page that fails.
    pub async fn ensure(&self, pages: Range<u32>) -> Result<(), FarError> {
        let step = self.0.config.held_pages.max(1);
        let mut first = pages.start;
        while first < pages.end {
            let end = pages.end.min(first.saturating_add(step));
            let asked = |page| self.reach(page, Some(AccessKind::Read), TouchCause::Request);
            try_join_all((first..end).map(asked)).await?;
            first = end;
        }
        Ok(())
    }

    /// Loads pages and holds them in the buffer, until [`Pager::release`].
    ///
    /// # Errors
    /// [`FarError`] if there are too many, or one cannot be loaded; then none is held.
    pub async fn hold(&self, pages: Range<u32>) -> Result<(), FarError> {
        let (count, most) = (u64::from(pages.end - pages.start), self.0.config.held_pages);
        {
            let state = &mut *self.0.state.borrow_mut();
            let all = u64::from(state.holds) + count;
            if all > u64::from(most) {
                return Err(FarError::TooManyHeld { pages: all, most });
            }
            state.holds += count as u32;
        }
        let mut held =
            PendingHolds { state: &self.0.state, pages: pages.start..pages.start, count };
        self.ensure(pages.clone()).await?;
        for page in pages {
            self.reach(page, None, TouchCause::Request).await?;
            held.pages.end = page + 1;
        }
        held.count = 0;
        held.pages = 0..0;
        Ok(())
    }

    /// Ends a hold of these pages.
    ///
    /// # Panics
    /// If one is not held.
    pub fn release(&self, pages: Range<u32>) {
        let state = &mut *self.0.state.borrow_mut();
        state.holds -= pages.end - pages.start;
        pages.for_each(|page| state.table.release_hold(page));
        self.make_room(state);
    }

    /// Forgets the content of pages, which become zeros, without writing it back. Returns when
    /// that has happened.
    ///
    /// # Errors
    /// [`FarError::Held`] for the first page that is held; those before it are discarded.
    pub async fn discard(&self, pages: Range<u32>) -> Result<(), FarError> {
        for page in pages {
            let mut is_counted = false;
            poll_fn(|context| self.poll_discard(context, page, &mut is_counted)).await?;
        }
        Ok(())
    }

    fn poll_discard(
        &self,
        context: &Context<'_>,
        page: u32,
        is_counted: &mut bool,
    ) -> Poll<Result<(), FarError>> {
        let state = &mut *self.0.state.borrow_mut();
        if state.is_stopping {
            return Poll::Ready(Err(FarError::Stopped));
        }
        // If the page was marked and has been touched since, its content is younger.
        let outcome = match *is_counted {
            true if !matches!(state.table.state(page), PageState::Filling | PageState::Leaving) => {
                Discard::Done
            }
            _ => state.table.discard(page),
        };
        state.stats.discards += u64::from(!*is_counted && outcome != Discard::Held);
        *is_counted = true;
        match outcome {
            Discard::Held => return Poll::Ready(Err(FarError::Held { page })),
            Discard::Wait => {
                state.wait_for(page, context);
                return Poll::Pending;
            }
            Discard::Done => {}
            Discard::Remove { was_dirty } => {
                self.0.memory.remove(page..page + 1);
                state.stats.write_backs_saved += u64::from(was_dirty);
                state.wake_room();
            }
        }
        state.failures.remove(&page);
        Poll::Ready(Ok(()))
    }

    /// Lets pages leave the buffer now, whatever the policy, except held ones. Returns when they
    /// have left, or have been touched again.
    pub async fn evict(&self, pages: Range<u32>) {
        {
            let state = &mut *self.0.state.borrow_mut();
            let victims = pages.clone().filter_map(|page| state.table.evict_page(page)).collect();
            self.carry_out(state, victims);
        }
        for page in pages {
            poll_fn(|context| {
                let state = &mut *self.0.state.borrow_mut();
                if state.is_stopping || state.table.state(page) != PageState::Leaving {
                    return Poll::Ready(());
                }
                state.wait_for(page, context);
                Poll::Pending
            })
            .await;
        }
    }

    /// Reads pages ahead of their touch, as far as slots are free and no touch waits. Forgets the
    /// oldest such wishes if there are more than half of the buffer.
    pub fn will_need(&self, pages: Range<u32>) {
        self.read_ahead(&mut self.0.state.borrow_mut(), pages);
    }

    /// Announces that pages will be touched in order.
    pub fn sequential(&self, pages: Range<u32>) {
        let state = &mut *self.0.state.borrow_mut();
        let end = pages.end.min(pages.start.saturating_add(self.0.config.ahead_pages));
        state.streams.begin(pages.start, end);
        self.read_ahead(state, pages.start..end);
    }

    fn read_ahead(&self, state: &mut PendingWork, pages: Range<u32>) {
        if pages.is_empty() {
            return;
        }
        let most = self.0.config.buffer_pages as usize / 2;
        for page in pages.take(most) {
            if state.table.state(page) == PageState::Remote {
                state.ahead.push_back(page);
            }
        }
        let excess = state.ahead.len().saturating_sub(most);
        state.ahead.drain(..excess);
        state.notify();
    }

    /// Ends [`Pager::run`] when the operations in flight have ended. Everything that waits fails.
    pub fn stop(&self) {
        let state = &mut *self.0.state.borrow_mut();
        state.is_stopping = true;
        self.0.chunks.stop();
        std::mem::take(&mut state.waiting).into_values().flatten().for_each(Waker::wake);
        state.room.values().for_each(Waker::wake_by_ref);
        state.notify();
    }

    /// Moves pages until [`Pager::stop`]. Poll it beside the tasks that touch pages. At the end it
    /// gives back what the region has on memory servers, except memory that an operation of unknown
    /// outcome may still reach.
    pub async fn run(&self) {
        let mut jobs = FuturesUnordered::new();
        let mut keeping = pin!(self.0.chunks.keep(self.0.transfers.fabric()));
        loop {
            while let Some(job) = self.next_job() {
                jobs.push(job);
            }
            if jobs.is_empty() && self.0.state.borrow().is_stopping {
                break;
            }
            poll_fn(|context| {
                {
                    let state = &mut *self.0.state.borrow_mut();
                    if std::mem::take(&mut state.has_work) {
                        return Poll::Ready(());
                    }
                    state.task = Some(context.waker().clone());
                }
                let _: Poll<()> = keeping.as_mut().poll(context);
                match jobs.poll_next_unpin(context) {
                    Poll::Ready(Some(())) => Poll::Ready(()),
                    Poll::Ready(None) | Poll::Pending => Poll::Pending,
                }
            })
            .await;
        }
        let places: Vec<GlobalAddr> = self.0.chunks.places().collect();
        let mut unsettled = BTreeSet::new();
        for at in places {
            // A reset can take long to fail, so there is one for each server.
            let (server, transfers) = (at.server(), &self.0.transfers);
            if unsettled.contains(&server.number()) {
                continue;
            }
            if transfers.settle(server).await.is_err() || transfers.is_unsettled(server) {
                unsettled.insert(server.number());
                continue;
            }
            self.0.chunks.give_back(transfers.fabric(), at).await;
        }
        self.0.chunks.end(self.0.transfers.fabric()).await;
    }

    /// The next job that may begin (G4).
    fn next_job(&self) -> Option<TransferJob> {
        let state = &mut *self.0.state.borrow_mut();
        self.make_room(state);
        if state.table.free() == 0 && !state.is_moving() {
            // Touches without a slot must hear that none will become free (G3).
            state.room.values().for_each(Waker::wake_by_ref);
        } else {
            state.wake_room();
        }
        // Half of it is enough for one WRITE to all copies.
        let least = 2 * self.0.chunks.copies_each();
        let depth = self.0.config.depth.min(self.0.transfers.fabric().depth()).max(least);
        if state.is_stopping || state.reads + state.writes >= depth {
            return None;
        }
        if let Some(first) = state.demand.pop_front() {
            let mut run = first..first + 1;
            while state.demand.front() == Some(&run.end) && self.may_extend(&run) {
                state.demand.pop_front();
                run.end += 1;
            }
            return Some(self.fill(state, run));
        }
        if state.writes < depth / 2
            && let Some(place) =
                state.leaving.iter().position(|run| self.may_write(state, run, depth))
        {
            let run = state.leaving.remove(place).expect("the run was just found");
            return Some(self.leave(state, run));
        }
        self.next_ahead(state)
    }

    fn next_ahead(&self, state: &mut PendingWork) -> Option<TransferJob> {
        let mut run: Option<Range<u32>> = None;
        while state.table.free() > self.0.config.low_water_pages
            && state.room.is_empty()
            && let Some(&page) = state.ahead.front()
        {
            match &run {
                Some(run) if page != run.end || !self.may_extend(run) => break,
                _ => {}
            }
            state.ahead.pop_front();
            if state.table.state(page) != PageState::Remote {
                if run.is_some() {
                    break;
                }
                continue;
            }
            let touch = state.table.touch(page, AccessKind::Read, true);
            assert_eq!(touch, Touch::Fill, "a remote page is read if a slot is free");
            state.table.mark_ahead(page);
            state.stats.fills_ahead += 1;
            run = Some(run.map_or(page, |run| run.start)..page + 1);
        }
        run.map(|run| self.fill(state, run))
    }

    /// Whether the page behind `run` can go with it in one operation.
    fn may_extend(&self, run: &Range<u32>) -> bool {
        let chunks = &self.0.chunks;
        run.end - run.start < self.0.config.run_pages()
            && run.end < self.0.config.pages()
            && chunks.chunk(run.start) == chunks.chunk(run.end)
    }

    /// The place whose memory server decides about WRITEs of `page`: one that has not failed, if
    /// there is any.
    fn place_of(&self, page: u32) -> Option<GlobalAddr> {
        let mut copies = self.0.chunks.copies(page);
        let works = |at: &GlobalAddr| !self.0.transfers.has_failed(at.server());
        copies.find(works).or_else(|| self.0.chunks.find(page))
    }

    fn server_of(&self, page: u32) -> u32 {
        self.place_of(page).map_or(UNPLACED, |at| u32::from(at.server().number()))
    }

    fn run_bytes(&self, run: &Range<u32>) -> usize {
        (run.end - run.start) as usize * self.0.config.page_bytes
    }

    /// The memory servers that a WRITE of `page` goes to: those of its copies. One that rests is
    /// left out if there is another one that has not failed.
    fn targets(&self, page: u32) -> Vec<u32> {
        let (chunks, transfers) = (&self.0.chunks, &self.0.transfers);
        let tries_all = chunks.copies(page).all(|at| transfers.has_failed(at.server()));
        let copies = chunks.copies(page).map(|at| at.server());
        let tried = copies.filter(|server| tries_all || !transfers.rests(*server));
        let tried: Vec<_> = tried.map(|server| u32::from(server.number())).collect();
        if tried.is_empty() { vec![UNPLACED] } else { tried }
    }

    /// WRITEs of a run for these servers, at most: one without a place may get all copies.
    fn writes_to(&self, servers: &[u32]) -> usize {
        if servers == [UNPLACED] { self.0.chunks.copies_each() } else { servers.len() }
    }

    fn may_write(&self, state: &PendingWork, run: &Range<u32>, depth: usize) -> bool {
        let servers = self.targets(run.start);
        let writes = state.writes + self.writes_to(&servers);
        let bytes = self.run_bytes(run);
        let has_room = |&server: &u32| {
            let in_flight = state.write_bytes.get(&server).copied().unwrap_or(0);
            let has_room = in_flight + bytes <= self.0.config.write_back_bytes;
            // Those without a place could all wait for one, and keep the others from being written.
            in_flight == 0 || (has_room && server != UNPLACED && !self.has_failed(server))
        };
        writes <= depth / 2 && state.reads + writes <= depth && servers.iter().all(has_room)
    }

    /// Whether the last operation on a memory server, by its number, has failed. For [`UNPLACED`]:
    /// whether a request for memory waits.
    fn has_failed(&self, server: u32) -> bool {
        if server == UNPLACED {
            return self.0.chunks.is_waiting();
        }
        let number = u16::try_from(server);
        number.is_ok_and(|number| self.0.transfers.has_failed(ServerId::new(number)))
    }

    /// The memory of `run`.
    fn buffer(&self, run: &Range<u32>) -> Buffer {
        let words = self.0.config.page_words();
        let view = Arc::clone(self.0.memory.view());
        Buffer::over(view, run.start as usize * words, (run.end - run.start) as usize * words)
    }

    /// The memory servers that have failed and are tried again, and the pages that leave for them.
    fn probes(&self, state: &PendingWork) -> (BTreeSet<u32>, u32) {
        let begun = state.write_bytes.iter().map(|(&server, &bytes)| (server, bytes));
        let queued = state.leaving.iter();
        let queued = queued.map(|run| (self.server_of(run.start), self.run_bytes(run)));
        let (mut servers, mut pages) = (BTreeSet::new(), 0);
        for (server, bytes) in begun.chain(queued) {
            if bytes > 0 && self.has_failed(server) {
                servers.insert(server);
                pages += (bytes / self.0.config.page_bytes) as u32;
            }
        }
        (servers, pages)
    }

    /// Lets pages leave if too few slots are free (G2). A memory server that has failed is tried
    /// again with one page, which is not counted on to leave, nor are pages that wait for memory.
    fn make_room(&self, state: &mut PendingWork) {
        let config = &self.0.config;
        let (free, asked) = (state.table.free(), state.room.len() as u32);
        let ahead = (state.ahead.len() as u32).min(config.ahead_pages);
        let is_short = free < config.low_water_pages + ahead || asked > 0;
        if state.is_stopping || !is_short {
            return;
        }
        let wanted = config.high_water_pages.saturating_add(asked + ahead);
        let wanted = wanted.min(config.buffer_pages / 2);
        let is_waiting = self.0.chunks.is_waiting();
        let has_failures = self.0.transfers.has_failures() || is_waiting;
        let (probed, doubtful) = if has_failures { self.probes(state) } else { Default::default() };
        let probed = RefCell::new(probed);
        let leaving = state.table.leaving().saturating_sub(doubtful);
        let missing = wanted.saturating_sub(free + leaving);
        let mut victims = Vec::new();
        let now_ns = self.0.transfers.fabric().now_ns();
        let is_refused = self.0.chunks.is_refused(now_ns) || is_waiting;
        let spare = |page| match self.place_of(page) {
            Some(at) if has_failures => {
                let (transfers, server) = (&self.0.transfers, at.server());
                let number = u32::from(server.number());
                let is_probe = || probed.borrow_mut().insert(number);
                transfers.rests(server) || (transfers.has_failed(server) && !is_probe())
            }
            Some(_) => false,
            None => is_refused,
        };
        state.table.evict(missing, spare, &mut victims);
        self.carry_out(state, victims);
    }

    fn carry_out(&self, state: &mut PendingWork, victims: Vec<Victim>) {
        let (mut dropped, mut written) = (Vec::new(), Vec::new());
        for victim in victims {
            match victim {
                Victim::Drop(page) => dropped.push(page),
                Victim::Write(page) => written.push(page),
                Victim::Hide(page) => {
                    state.stats.passed_over += 1;
                    self.0.memory.hide(page);
                }
            }
        }
        state.stats.clean_evictions += dropped.len() as u64;
        for run in self.runs(dropped) {
            self.0.memory.remove(run);
            state.wake_room();
        }
        for run in self.runs(written) {
            self.0.memory.protect(run.clone());
            state.leaving.push_back(run);
            state.notify();
        }
    }

    /// Groups pages that can go together.
    fn runs(&self, mut pages: Vec<u32>) -> Vec<Range<u32>> {
        pages.sort_unstable();
        let mut runs: Vec<Range<u32>> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some(run) if run.end == page && self.may_extend(run) => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }
}

/// The pages of a range of bytes.
pub(crate) fn pages_of(config: &FarConfig, bytes: &Range<usize>) -> Result<Range<u32>, FarError> {
    let (from, region_bytes) = (bytes.start, config.region_bytes);
    if bytes.end > region_bytes || bytes.start > bytes.end {
        let bytes = bytes.end.saturating_sub(from);
        return Err(FarError::Outside { from, bytes, region_bytes });
    }
    let end = bytes.end.div_ceil(config.page_bytes) as u32;
    Ok(((from / config.page_bytes) as u32).min(end)..end)
}

impl PendingWork {
    fn notify(&mut self) {
        self.has_work = true;
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Wakes the touches for which there are slots.
    fn wake_room(&mut self) {
        let free = self.table.free() as usize;
        self.room.values().take(free).for_each(Waker::wake_by_ref);
    }

    fn wake(&mut self, page: u32) {
        self.waiting.remove(&page).into_iter().flatten().for_each(Waker::wake);
    }

    fn wait_for(&mut self, page: u32, context: &Context<'_>) {
        let waiting = self.waiting.entry(page).or_default();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }

    /// Whether slots will become free without anything new.
    fn is_moving(&self) -> bool {
        self.table.leaving() + self.table.filling() + self.table.awaited() > self.astray
    }

    fn fail(&mut self, page: u32, error: FarError) {
        if self.failures.len() >= MAX_FAILURES {
            // A touch that misses its failure retries.
            self.failures.clear();
        }
        self.failure_count += 1;
        self.failures.insert(page, (self.failure_count, error));
    }

    fn hold_if(&mut self, holds: bool, page: u32) -> Result<(), FarError> {
        if holds && !self.table.hold(page) {
            return Err(FarError::TooManyHeld { pages: 1 << 16, most: u32::from(u16::MAX) });
        }
        Ok(())
    }
}

/// A touch that may have to wait.
struct TouchTicket<'p> {
    state: &'p RefCell<PendingWork>,
    page: u32,
    /// Its place among those that wait for slots.
    number: Option<u64>,
    has_waited: bool,
}

impl Drop for TouchTicket<'_> {
    fn drop(&mut self) {
        if self.number.is_none() && !self.has_waited {
            return;
        }
        let state = &mut *self.state.borrow_mut();
        if let Some(number) = self.number {
            state.room.remove(&number);
            state.wake_room();
        }
        if !self.has_waited {
            return;
        }
        let touches = state.touching.get_mut(&self.page).expect("the touch was counted");
        *touches -= 1;
        if *touches == 0 {
            state.touching.remove(&self.page);
            if !matches!(state.table.state(self.page), PageState::Filling | PageState::Leaving) {
                // Touches that found no room have left their wakers, and nothing wakes them.
                state.waiting.remove(&self.page);
            }
            state.table.end_wait(self.page);
            state.notify();
        }
    }
}

/// Holds that are given up unless all of them are taken.
struct PendingHolds<'p> {
    state: &'p RefCell<PendingWork>,
    /// The pages held so far.
    pages: Range<u32>,
    /// The number of pages to be held in all.
    count: u64,
}

impl Drop for PendingHolds<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            let mut state = self.state.borrow_mut();
            state.holds -= self.count as u32;
            self.pages.clone().for_each(|page| state.table.release_hold(page));
        }
    }
}
