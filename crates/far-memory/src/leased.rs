//! Memory of memory servers that have an index, or could have one, in a lease.
//!
//! The invariants are those of [`Leases`], leases.L1 to L3.
//!
//! *Thread safety*: belongs to the pager's thread, and can move there from another.

use crate::{ChunkSpace, FarError};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_page::Layout;
use farleaf_pool::remote::{Leases, RemoteError, RpcClient};
use futures_util::future::{join_all, select};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::pin::pin;

/// The usual term of a lease: longer than a server pauses, and than the deadlines of several calls.
pub const TERM_MS: u32 = 60_000;

/// A request for memory waits at most this many quarters of the term for owners that may be dead:
/// the looks that end a lease, and some more.
const MAX_QUARTERS: u64 = 6;
/// Least time between two looks at the leases, in nanoseconds.
const MIN_POLL_INTERVAL_NS: u64 = 1_000_000;

/// A space in the pools of memory servers with pages of layout `L`. The region's chunks are in a
/// lease, which the pager's thread renews. It ends with the region; if the program dies, another
/// program that finds no room ends it when its term is over. A request that finds none waits for
/// that as long as an owner may be dead, for one and a half terms at most.
///
/// For that, the memory servers fence the whole compute server that the region's endpoint has. So
/// use a compute-server number that nothing else of value has, and a new one at each restart: a
/// region does not end leases of its own number.
pub struct Leased<L> {
    leases: Leases,
    /// By memory server: the chunks that the region has there.
    chunks: RefCell<BTreeMap<u16, u64>>,
    next_server: Cell<u16>,
    /// How long a request was told to wait so far.
    waited_ns: Cell<u64>,
    layout: PhantomData<fn() -> L>,
}

impl<L: Layout> Leased<L> {
    /// A space without chunks, with leases of this term in milliseconds, such as [`TERM_MS`]. A
    /// program that cannot run, or reach its memory servers, for that long may lose the content.
    ///
    /// # Errors
    /// [`FarError::Config`] if the term is zero.
    pub fn new(term_ms: u32) -> Result<Self, FarError> {
        if term_ms == 0 {
            let fault = "leases with a term of 0 ms: use some seconds".to_owned();
            return Err(FarError::Config { fault });
        }
        Ok(Self {
            leases: Leases::new(term_ms),
            chunks: RefCell::default(),
            next_server: Cell::new(0),
            waited_ns: Cell::new(0),
            layout: PhantomData,
        })
    }

    /// Some renewals may be lost, and the looks at the leases of others should be as frequent.
    fn quarter_ns(&self) -> u64 {
        u64::from(self.leases.term_ms()) * 1_000_000 / 4
    }

    /// Takes a chunk from the first server that may have it and has room, from the next one in turn
    /// on.
    async fn try_take<F: Fabric>(
        &self,
        rpc: &RpcClient<F, L>,
        bytes: u64,
        may_have: impl Fn(ServerId) -> bool,
    ) -> Result<GlobalAddr, FarError> {
        let servers = rpc.fabric().memory_servers();
        let first = self.next_server.get() % servers.max(1);
        let mut outcome = Err(FarError::NoSpace { bytes });
        let is_possible = |number: &u16| may_have(ServerId::new(*number));
        for number in (first..servers).chain(0..first).filter(is_possible) {
            match self.leases.take(rpc, ServerId::new(number), bytes).await {
                Ok(at) => {
                    *self.chunks.borrow_mut().entry(number).or_default() += 1;
                    return Ok(at);
                }
                Err(RemoteError::OutOfMemory { .. }) => {}
                // Others may have room.
                Err(error) => outcome = Err(refused(&error)),
            }
        }
        outcome
    }

    /// The next chunk begins at the next server. Second copies take no turns, or with two servers
    /// all first ones, which READs prefer, would be on the same.
    fn taken(&self, at: GlobalAddr) -> GlobalAddr {
        self.next_server.set(at.server().number() + 1);
        self.waited_ns.set(0);
        at
    }
}

fn refused(error: &RemoteError) -> FarError {
    FarError::System { action: "take a chunk of far memory", cause: error.to_string() }
}

impl<F: Fabric, L: Layout> ChunkSpace<F> for Leased<L> {
    async fn take(&self, fabric: &F, bytes: u64) -> Result<GlobalAddr, FarError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        let outcome = self.try_take(&rpc, bytes, |_| true).await;
        if let Ok(at) = outcome {
            return Ok(self.taken(at));
        }
        // Whatever the error was: one server may be down and another one full, or have too many
        // leases.
        let servers = (0..fabric.memory_servers()).map(ServerId::new);
        let freed = join_all(servers.map(|server| self.leases.reclaim(&rpc, server))).await;
        // A server that does not answer has no room either.
        let has_room = freed.into_iter().any(|bytes| bytes.is_ok_and(|bytes| bytes > 0));
        match has_room {
            true => self.try_take(&rpc, bytes, |_| true).await.map(|at| self.taken(at)),
            false => outcome,
        }
    }

    async fn take_first(
        &self,
        fabric: &F,
        bytes: u64,
        may_have: impl Fn(ServerId) -> bool,
    ) -> Result<GlobalAddr, FarError> {
        self.take_second(fabric, bytes, may_have).await.map(|at| self.taken(at))
    }

    async fn take_second(
        &self,
        fabric: &F,
        bytes: u64,
        may_have: impl Fn(ServerId) -> bool,
    ) -> Result<GlobalAddr, FarError> {
        let rpc = RpcClient::<F, L>::new(fabric.clone());
        self.try_take(&rpc, bytes, may_have).await
    }

    fn ask_again_ns(&self) -> Option<u64> {
        let waited_ns = self.waited_ns.get();
        let wait_ns = self.leases.look_again_ns();
        let wait_ns = wait_ns.filter(|_| waited_ns < MAX_QUARTERS * self.quarter_ns());
        let wait_ns = wait_ns.map(|ns| ns.max(MIN_POLL_INTERVAL_NS).min(self.quarter_ns()));
        self.waited_ns.set(wait_ns.map_or(0, |ns| waited_ns + ns));
        wait_ns
    }

    /// The chunk comes back to its memory server when the lease there ends.
    async fn give_back(&self, _fabric: &F, at: GlobalAddr, _bytes: u64) {
        let mut chunks = self.chunks.borrow_mut();
        *chunks.get_mut(&at.server().number()).expect("the chunk is from this space") -= 1;
    }

    async fn end(&self, fabric: &F) {
        let rpc = &RpcClient::<F, L>::new(fabric.clone());
        let mut servers = self.leases.servers();
        // A chunk that an operation may still reach keeps its lease, until its term ends.
        servers.retain(|it| self.chunks.borrow().get(&it.number()).is_none_or(|left| *left == 0));
        // Without an answer, a lease ends with its term, too.
        join_all(servers.into_iter().map(|server| self.leases.end(rpc, server))).await;
    }

    fn renew_every_ns(&self) -> Option<u64> {
        Some(self.quarter_ns())
    }

    async fn renew(&self, fabric: &F) {
        let rpc = &RpcClient::<F, L>::new(fabric.clone());
        // At the same time, and for a while: a server that does not answer must not cost the leases
        // on others. If one has ended, its server refuses the region's operations, too (leases.L1).
        let servers = self.leases.servers().into_iter();
        join_all(servers.map(async |server| {
            let renewal = pin!(self.leases.renew(rpc, server));
            select(renewal, pin!(fabric.sleep(self.quarter_ns()))).await;
        }))
        .await;
    }
}
