//! Requests that wait at a compute server for the tasks of its threads, which run
//! [`Worker::answer_all`].
//!
//! *Invariants*
//! - queue.QU1. No request is lost: either a task takes it, or its reply is returned to the
//!   program, which answers it or closes the connection.
//! - queue.QU2. While requests wait, either a task is about to take them, or the thread's tasks are
//!   at their limit; in that case each of them checks the queue when it has finished.
//! - queue.QU3. The number of waiting requests is bounded.
//!
//! *Thread safety*: any number of threads.
//!
//! [`Worker::answer_all`]: super::Worker::answer_all

use farleaf_fabric::sync::{Mutex, lock};
use farleaf_page::Layout;
use farleaf_pool::wire::{ClientRequest, ClientResponse};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Maximum number of requests waiting in one queue.
const WAITING: usize = 8192;

/// Maximum number of requests that a task takes together.
pub(super) const GROUP: usize = 16;

/// The clients of a compute server, provided by its program.
pub trait ServedClients<L: Layout> {
    /// The destination of one answer.
    type Reply;

    /// Records that `ask` is about to be served. Returns whether its client is still waiting; if
    /// not, the request is answered as unavailable instead.
    fn begin(&self, ask: &ClientRequest<L>, reply: &Self::Reply) -> bool;

    /// Sends an answer.
    fn answer(&self, reply: Self::Reply, told: ClientResponse<L>);
}

/// A request and the destination of its answer.
pub(super) struct PendingRequest<L: Layout, R> {
    pub(super) ask: ClientRequest<L>,
    pub(super) reply: R,
}

impl<L: Layout, R> PendingRequest<L, R> {
    fn is_edit(&self) -> bool {
        matches!(self.ask, ClientRequest::Edit(_))
    }
}

/// Requests that a task has taken: one of any kind, or several operations on single keys.
pub(super) type TakenRequests<L, R> = SmallVec<[PendingRequest<L, R>; GROUP]>;

/// Requests waiting for the tasks of one thread.
pub struct ThreadQueue<L: Layout, R>(Mutex<WaitingRequests<L, R>>);

struct WaitingRequests<L: Layout, R> {
    asked: VecDeque<PendingRequest<L, R>>,
    /// Tasks that wait for a request.
    idle: Vec<Waker>,
    closed: bool,
}

impl<L: Layout, R> Default for ThreadQueue<L, R> {
    fn default() -> Self {
        let (asked, idle) = (VecDeque::new(), Vec::new());
        Self(Mutex::new(WaitingRequests { asked, idle, closed: false }))
    }
}

impl<L: Layout, R> ThreadQueue<L, R> {
    /// Queues a request. Returns its reply if the queue is full or closed.
    #[must_use]
    pub fn push(&self, ask: ClientRequest<L>, reply: R) -> Option<R> {
        let mut waiting = lock(&self.0);
        if waiting.closed || waiting.asked.len() >= WAITING {
            return Some(reply);
        }
        waiting.asked.push_back(PendingRequest { ask, reply });
        // Wake one task at a time. It wakes the next one if there are more requests.
        let idle = match waiting.asked.len() {
            1 => waiting.idle.pop(),
            _ => None,
        };
        drop(waiting);
        idle.into_iter().for_each(Waker::wake);
        None
    }

    /// Waits for the next request; `None` once the queue is closed.
    pub(super) async fn next(&self) -> Option<PendingRequest<L, R>> {
        let mut taken = TakenRequests::new();
        self.take(|| 1, &mut taken).await;
        taken.pop()
    }

    /// Waits for a request, and takes it. If it is an operation on a single key, also takes such
    /// operations behind it, up to `most()` in all. Takes nothing while `most()` is 0. Returns
    /// without a request once the queue is closed.
    pub(super) async fn take(&self, most: impl Fn() -> usize, taken: &mut TakenRequests<L, R>) {
        poll_fn(|context| {
            let (mut waiting, most) = (lock(&self.0), most());
            if most > 0
                && let Some(first) = waiting.asked.pop_front()
            {
                let is_edit = first.is_edit();
                taken.push(first);
                while is_edit
                    && taken.len() < most
                    && let Some(next) = waiting.asked.pop_front_if(|asked| asked.is_edit())
                {
                    taken.push(next);
                }
                let next = match waiting.asked.is_empty() {
                    false => waiting.idle.pop(),
                    true => None,
                };
                drop(waiting);
                next.into_iter().for_each(Waker::wake);
                return Poll::Ready(());
            }
            if waiting.closed {
                return Poll::Ready(());
            }
            if !waiting.idle.iter().any(|idle| idle.will_wake(context.waker())) {
                waiting.idle.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Closes the queue, which ends the tasks. Returns the replies of the waiting requests.
    pub fn close(&self) -> Vec<R> {
        let (asked, idle) = {
            let mut waiting = lock(&self.0);
            waiting.closed = true;
            (std::mem::take(&mut waiting.asked), std::mem::take(&mut waiting.idle))
        };
        idle.into_iter().for_each(Waker::wake);
        asked.into_iter().map(|asked| asked.reply).collect()
    }

    /// Whether the queue is closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.0).closed
    }
}

/// The queues of a compute server.
pub struct RequestQueues<L: Layout, R> {
    /// One queue per thread.
    pub threads: Vec<ThreadQueue<L, R>>,
    /// Bulk loads, which one thread serves.
    pub loads: ThreadQueue<L, R>,
}

impl<L: Layout, R> RequestQueues<L, R> {
    /// Queues for this many threads.
    pub fn new(threads: usize) -> Self {
        Self {
            threads: (0..threads).map(|_| ThreadQueue::default()).collect(),
            loads: ThreadQueue::default(),
        }
    }

    /// Queues a request for the thread of this number. Returns its reply if the queue is full or
    /// closed.
    #[must_use]
    pub fn push(&self, ask: ClientRequest<L>, reply: R, thread: usize) -> Option<R> {
        match ask.is_load() {
            true => self.loads.push(ask, reply),
            false => self.threads[thread % self.threads.len()].push(ask, reply),
        }
    }

    /// Closes all queues, which ends the tasks. Returns the replies of the waiting requests.
    pub fn close(&self) -> Vec<R> {
        let queues = self.threads.iter().chain([&self.loads]);
        queues.flat_map(ThreadQueue::close).collect()
    }
}
