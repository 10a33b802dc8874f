//! A memory server's side of the fabric: the RPC service and the processor that runs it.

use crate::Message;
use crate::region::Region;
use crate::sync::Arc;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A kind of compute work, charged by the code that does it. On real providers the work takes its
/// actual time; in the simulator, [`CostModel::ns`] passes in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// A client's work for one operation, beside what its index does. The driver that runs the
    /// operation charges it, once; no index does.
    Client,
    /// A server thread takes a request from its queue, decodes it, and posts the reply.
    Dispatch,
    /// A search in one node.
    VisitNode,
    /// A change of one record or separator in a node.
    ChangeNode,
    /// A node is split, merged or rebalanced with another.
    RestructureNode,
    /// Copying this many records out of or into leaves.
    CopyRecords(u32),
    /// A search in a MemTable of an LSM tree.
    SearchMemTable,
    /// Copying or checking this many bytes of records of any length.
    CopyBytes(u64),
    /// Merging this many records of sorted tables, apart from copying their bytes.
    MergeRecords(u32),
    /// Adding this many keys to the static function of a table's index.
    IndexKeys(u32),
    /// A wait for another thread's latch.
    Spin,
    /// A critical section, including the wait for other threads of the same server inside it.
    Enter(Section),
}

/// A critical section of a compute server, which one of its threads at a time can enter. Only
/// sections that the code shares among all threads have a name; other latches wait by
/// [`Work::Spin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Section {
    /// A queue of cooling frames behind one lock.
    CoolingQueue,
    /// The queue in which the writers of an LSM tree take turns.
    WriteQueue,
}

impl Section {
    /// Number of sections.
    pub(crate) const COUNT: usize = 2;

    /// The section's index, below [`Self::COUNT`].
    pub(crate) fn index(self) -> usize {
        match self {
            Self::CoolingQueue => 0,
            Self::WriteQueue => 1,
        }
    }
}

/// The cost of each kind of work, in nanoseconds; `docs/internals/cost-model.md` has the sources of
/// these figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// [`Work::Client`].
    pub client_ns: u64,
    /// [`Work::Dispatch`].
    pub dispatch_ns: u64,
    /// [`Work::VisitNode`].
    pub visit_node_ns: u64,
    /// [`Work::ChangeNode`].
    pub change_node_ns: u64,
    /// [`Work::RestructureNode`].
    pub restructure_node_ns: u64,
    /// [`Work::CopyRecords`], per record, in picoseconds.
    pub copy_record_ps: u64,
    /// [`Work::SearchMemTable`].
    pub search_memtable_ns: u64,
    /// [`Work::MergeRecords`], per record.
    pub merge_record_ns: u64,
    /// [`Work::IndexKeys`], per key.
    pub index_key_ns: u64,
    /// [`Work::Spin`].
    pub spin_ns: u64,
    /// [`Section::CoolingQueue`], if the previous thread inside was on the same socket.
    pub cooling_queue_ns: u64,
    /// [`Section::WriteQueue`], likewise.
    pub write_queue_ns: u64,
    /// The factor by which a thread stays longer in a section if the previous one was on another
    /// socket; 1 for a server with one socket. With a larger factor, a server has two sockets, and
    /// every other endpoint is on the second one.
    pub numa_factor: u64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl CostModel {
    /// The costs that scenarios and experiments begin with.
    pub const DEFAULT: Self = Self {
        client_ns: 150,
        dispatch_ns: 450,
        visit_node_ns: 105,
        change_node_ns: 60,
        restructure_node_ns: 500,
        copy_record_ps: 1_500,
        search_memtable_ns: 600,
        merge_record_ns: 130,
        index_key_ns: 110,
        spin_ns: 60,
        cooling_queue_ns: 0,
        write_queue_ns: 180,
        numa_factor: 1,
    };

    /// The cost of `work`, in nanoseconds. For a section, without waits and without `numa_factor`.
    pub fn ns(&self, work: Work) -> u64 {
        match work {
            Work::Client => self.client_ns,
            Work::Dispatch => self.dispatch_ns,
            Work::VisitNode => self.visit_node_ns,
            Work::ChangeNode => self.change_node_ns,
            Work::RestructureNode => self.restructure_node_ns,
            Work::CopyRecords(records) => (u64::from(records) * self.copy_record_ps).div_ceil(1000),
            Work::SearchMemTable => self.search_memtable_ns,
            // At the rate of `CopyRecords`, whose records have 16 bytes.
            Work::CopyBytes(bytes) => (bytes * self.copy_record_ps).div_ceil(16_000),
            Work::MergeRecords(records) => u64::from(records) * self.merge_record_ns,
            Work::IndexKeys(keys) => u64::from(keys) * self.index_key_ns,
            Work::Spin => self.spin_ns,
            Work::Enter(Section::CoolingQueue) => self.cooling_queue_ns,
            Work::Enter(Section::WriteQueue) => self.write_queue_ns,
        }
    }
}

/// A rule that a simulated cluster can be told to break. The code above the fabric assigns the
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule(u16);

impl Rule {
    /// The rule with this number.
    pub const fn new(number: u16) -> Self {
        Self(number)
    }
}

/// The processor that runs a memory server's code.
///
/// Server code never waits for the network or the clock: it charges its work, and waits only for
/// latches of its own server.
pub trait Cpu {
    /// Accounts for work. In the simulator, other threads of the server run meanwhile; elsewhere,
    /// this is free and never suspends.
    fn charge(&self, work: Work) -> impl Future<Output = ()>;

    /// Lets the holder of a latch run; `attempt` counts the waits for one latch from 0.
    fn pause(&self, attempt: u32) -> impl Future<Output = ()>;

    /// Whether this processor's code breaks a rule on purpose; see [`crate::Fabric::breaks`].
    #[inline(always)]
    fn breaks(&self, rule: Rule) -> bool {
        let _ = rule;
        false
    }

    /// A small number that distinguishes concurrent threads, used to spread counters over cache
    /// lines. Two threads may share it.
    fn stripe(&self) -> usize;
}

/// The calling thread as a memory server's processor: charges nothing and never suspends.
#[derive(Clone, Copy, Debug)]
pub struct InlineCpu {
    stripe: usize,
}

impl InlineCpu {
    /// The calling thread, with a number that distinguishes it from concurrent threads.
    pub const fn new(stripe: usize) -> Self {
        Self { stripe }
    }
}

impl Cpu for InlineCpu {
    #[inline(always)]
    async fn charge(&self, _work: Work) {}

    #[inline]
    async fn pause(&self, attempt: u32) {
        // The holder may be waiting for this core: after a few spins, yield it.
        if attempt < 16 {
            std::hint::spin_loop();
        } else {
            #[expect(
                clippy::disallowed_methods,
                reason = "a latch wait has no endpoint to wait through"
            )]
            crate::sync::thread::yield_now();
        }
    }

    #[inline]
    fn stripe(&self) -> usize {
        self.stripe
    }
}

/// A memory server's RPC service, and the memory it makes accessible.
///
/// *Thread safety*: `handle` runs on several server threads at once.
pub trait RpcService: Send + Sync + 'static {
    /// The memory that one-sided verbs access.
    fn region(&self) -> &Arc<Region>;

    /// Answers one request from compute server `client`. `reply` is empty at first. The request may
    /// be any bytes: the reply to an invalid request is an error.
    fn handle<C: Cpu>(
        &self,
        cpu: &C,
        client: u16,
        request: &[u8],
        reply: &mut Message,
    ) -> impl Future<Output = ()>;

    /// Housekeeping after a reply has been sent, on the thread that served it: a bounded amount of
    /// work, or none.
    fn after_reply<C: Cpu>(&self, cpu: &C) -> impl Future<Output = ()>;
}

/// Runs a future that never suspends, such as every future over [`InlineCpu`], and returns its
/// result.
///
/// # Panics
/// If the future suspends after all.
#[inline(always)]
pub fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a future that must not suspend did"),
    }
}
