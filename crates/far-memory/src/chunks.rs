//! The chunks of a region: where on the memory servers their pages are kept. A chunk has no memory
//! there before its first page is written back.
//!
//! *Invariants*
//! - far.C1. A chunk that has a place keeps it until the region ends.
//! - far.C2. A copy of a chunk is whole until it misses a WRITE, and is not read after that. A
//!   chunk with a place has a whole copy.
//!
//! *Thread safety*: one thread.

use crate::space::ChunkSpace;
use crate::transfer::Transfers;
use crate::{FarConfig, FarError};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

/// Copies of a chunk at most.
const MAX_COPIES: usize = 2;

/// A copy of a chunk.
#[derive(Clone, Copy, Debug)]
struct ChunkCopy {
    at: GlobalAddr,
    /// It has missed no WRITE (C2).
    is_whole: bool,
}

impl ChunkCopy {
    fn new(at: GlobalAddr) -> Self {
        Self { at, is_whole: true }
    }
}

/// The places of all chunks.
#[derive(Debug)]
pub(crate) struct Chunks<S> {
    space: S,
    places: Vec<Cell<[Option<ChunkCopy>; MAX_COPIES]>>,
    mirrors: bool,
    lost_copies: Cell<u64>,
    chunk_bytes: u64,
    page_bytes: u64,
    chunk_pages: u32,
    /// One request for memory at a time.
    is_taking: Cell<bool>,
    /// That request waits for memory that may come back.
    is_waiting: Cell<bool>,
    /// Wakes it if the region ends.
    sleeper: RefCell<Option<Waker>>,
    is_ending: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    /// The last refusal, and until when no memory is asked for.
    refused: RefCell<Option<(FarError, u64)>>,
    rest_ns: u64,
}

impl<S> Chunks<S> {
    pub(crate) fn new(space: S, config: &FarConfig) -> Self {
        let count = config.region_bytes.div_ceil(config.chunk_bytes);
        Self {
            space,
            places: vec![Cell::default(); count],
            mirrors: config.mirror,
            lost_copies: Cell::new(0),
            chunk_bytes: config.chunk_bytes as u64,
            page_bytes: config.page_bytes as u64,
            chunk_pages: config.chunk_pages(),
            is_taking: Cell::new(false),
            is_waiting: Cell::new(false),
            sleeper: RefCell::default(),
            is_ending: Cell::new(false),
            waiting: RefCell::default(),
            refused: RefCell::default(),
            rest_ns: config.rest_ns,
        }
    }

    /// The chunk of `page`.
    pub(crate) fn chunk(&self, page: u32) -> u32 {
        page / self.chunk_pages
    }

    /// Where `page` is kept: the places of all whole copies, none if its chunk has no place.
    pub(crate) fn copies(&self, page: u32) -> impl Iterator<Item = GlobalAddr> + use<S> {
        let offset = u64::from(page % self.chunk_pages) * self.page_bytes;
        let copies = self.places[self.chunk(page) as usize].get().into_iter().flatten();
        copies.filter(|copy| copy.is_whole).map(move |copy| copy.at.plus(offset))
    }

    /// Where the first whole copy of `page` is, if its chunk has a place.
    pub(crate) fn find(&self, page: u32) -> Option<GlobalAddr> {
        self.copies(page).next()
    }

    /// Notes that the copy on `server` of the chunk of `page` is no longer whole, unless it is the
    /// last one (C2).
    pub(crate) fn lose_copy(&self, page: u32, server: ServerId) {
        let place = &self.places[self.chunk(page) as usize];
        let mut copies = place.get();
        if copies.iter().flatten().filter(|copy| copy.is_whole).count() < 2 {
            return;
        }
        for copy in copies.iter_mut().flatten() {
            if copy.at.server() == server && copy.is_whole {
                copy.is_whole = false;
                self.lost_copies.set(self.lost_copies.get() + 1);
            }
        }
        place.set(copies);
    }

    /// Copies that a chunk gets.
    pub(crate) fn copies_each(&self) -> usize {
        if self.mirrors { MAX_COPIES } else { 1 }
    }

    /// Number of second copies that chunks should have and do not.
    pub(crate) fn lost_copies(&self) -> u64 {
        self.lost_copies.get()
    }

    /// Whether memory was refused so recently that none is asked for now.
    pub(crate) fn is_refused(&self, now_ns: u64) -> bool {
        self.refused.borrow().as_ref().is_some_and(|(_, until_ns)| now_ns < *until_ns)
    }

    /// Whether a request for memory waits for some that may come back, which takes long.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.get()
    }

    /// From now on, no request for memory waits.
    pub(crate) fn stop(&self) {
        self.is_ending.set(true);
        self.sleeper.take().into_iter().for_each(Waker::wake);
    }

    /// Bytes that the region has on memory servers.
    pub(crate) fn bytes(&self) -> u64 {
        self.places().count() as u64 * self.chunk_bytes
    }

    /// The places of all copies, whole or not.
    pub(crate) fn places(&self) -> impl Iterator<Item = GlobalAddr> {
        self.places.iter().flat_map(Cell::get).flatten().map(|copy| copy.at)
    }

    /// Where `page` is to be kept; gives its chunk a place if it has none. If that has to wait for
    /// memory that may come back, `begins_to_wait` is called once.
    pub(crate) async fn place<F: Fabric>(
        &self,
        transfers: &Transfers<F>,
        page: u32,
        begins_to_wait: impl Fn(),
    ) -> Result<GlobalAddr, FarError>
    where
        S: ChunkSpace<F>,
    {
        let fabric = transfers.fabric();
        poll_fn(|context| {
            if self.find(page).is_none() && self.is_taking.get() {
                self.waiting.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        if let Some(at) = self.find(page) {
            return Ok(at);
        }
        if let Some((error, until_ns)) = &*self.refused.borrow()
            && fabric.now_ns() < *until_ns
        {
            return Err(error.clone());
        }
        self.is_taking.set(true);
        let mut taken = self.take_first(transfers).await;
        while taken.is_err()
            && let Some(ns) = self.space.ask_again_ns()
        {
            if !self.is_waiting.replace(true) {
                begins_to_wait();
            }
            self.pause(fabric, ns).await;
            if self.is_ending.get() {
                break;
            }
            taken = self.take_first(transfers).await;
        }
        self.is_waiting.set(false);
        if let Ok(at) = taken {
            let second = match self.mirrors {
                true => self.take_second(transfers, at.server()).await,
                false => None,
            };
            let is_missing = self.mirrors && second.is_none();
            self.lost_copies.set(self.lost_copies.get() + u64::from(is_missing));
            let place = &self.places[self.chunk(page) as usize];
            place.set([Some(ChunkCopy::new(at)), second.map(ChunkCopy::new)]);
        }
        self.is_taking.set(false);
        self.waiting.take().into_iter().for_each(Waker::wake);
        let until_ns = fabric.now_ns().saturating_add(self.rest_ns);
        match taken {
            Ok(_) => drop(self.refused.replace(None)),
            Err(error) => {
                self.refused.replace(Some((error.clone(), until_ns)));
                return Err(error);
            }
        }
        Ok(self.find(page).expect("the chunk has just got its place"))
    }

    /// Memory for the first copy of a chunk. If there is to be a second one, and a server has
    /// failed, it is on one that works: on a server that rests, the copy would miss the first
    /// WRITE, although a third server has room.
    async fn take_first<F: Fabric>(&self, transfers: &Transfers<F>) -> Result<GlobalAddr, FarError>
    where
        S: ChunkSpace<F>,
    {
        let (fabric, bytes) = (transfers.fabric(), self.chunk_bytes);
        if self.mirrors && transfers.has_failures() {
            let works = |server| !transfers.has_failed(server);
            let taken = self.space.take_first(fabric, bytes, works).await;
            if taken.is_ok() {
                return taken;
            }
        }
        self.space.take(fabric, bytes).await
    }

    /// Memory for the second copy of a chunk: on a server that works, or else on one that has
    /// failed and may be tried again. On one that rests, the copy would miss the first WRITE.
    async fn take_second<F: Fabric>(
        &self,
        transfers: &Transfers<F>,
        first: ServerId,
    ) -> Option<GlobalAddr>
    where
        S: ChunkSpace<F>,
    {
        let (fabric, bytes) = (transfers.fabric(), self.chunk_bytes);
        let works = |server| server != first && !transfers.has_failed(server);
        let taken = self.space.take_second(fabric, bytes, works).await;
        if taken.is_ok() || !transfers.has_failures() {
            return taken.ok();
        }
        let may_work = |server| server != first && !transfers.rests(server);
        self.space.take_second(fabric, bytes, may_work).await.ok()
    }

    /// Sleeps, unless the region ends.
    async fn pause<F: Fabric>(&self, fabric: &F, ns: u64) {
        let mut sleep = pin!(fabric.sleep(ns));
        poll_fn(|context| {
            if self.is_ending.get() {
                return Poll::Ready(());
            }
            self.sleeper.replace(Some(context.waker().clone()));
            sleep.as_mut().poll(context)
        })
        .await;
    }

    /// Renews the space's claim to the memory, for ever.
    pub(crate) async fn keep<F: Fabric>(&self, fabric: &F)
    where
        S: ChunkSpace<F>,
    {
        let Some(ns) = self.space.renew_every_ns() else { return std::future::pending().await };
        let mut due_ns = fabric.now_ns();
        loop {
            // The time that a renewal takes is part of the interval.
            due_ns = due_ns.saturating_add(ns).max(fabric.now_ns());
            fabric.sleep(due_ns - fabric.now_ns().min(due_ns)).await;
            self.space.renew(fabric).await;
        }
    }

    /// Tells the space that the region has given back what it could.
    pub(crate) async fn end<F: Fabric>(&self, fabric: &F)
    where
        S: ChunkSpace<F>,
    {
        self.space.end(fabric).await;
    }

    /// Gives back the memory at `at`, which was a chunk's.
    pub(crate) async fn give_back<F: Fabric>(&self, fabric: &F, at: GlobalAddr)
    where
        S: ChunkSpace<F>,
    {
        self.space.give_back(fabric, at, self.chunk_bytes).await;
    }
}
