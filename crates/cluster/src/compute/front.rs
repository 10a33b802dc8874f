//! Receives the requests of a compute server's clients. They wait in queues, one per thread, until
//! a task of the thread that received them takes them.
//!
//! *Invariants*: F1. Every request is answered: by a task, or as unavailable if there is no thread
//! or its queue is full. F2. Waiting requests are bounded in number and in time.
//!
//! *Thread safety*: any number of threads.

use crate::clock::Clock;
use farleaf_core::page::Fixed8;
use farleaf_core::wire::{ClientRequest, ClientResponse, ErrorCode};
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Call, Calls, Cpu, Region, ReplySink};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::mpsc::Sender;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Maximum number of requests waiting for one thread.
const WAITING: usize = 8192;

/// The destination of an answer.
#[derive(Debug)]
pub(super) enum Reply {
    /// A client.
    Sink(ReplySink),
    /// Another thread of this program.
    Local(Sender<ClientResponse<Fixed8>>),
}

impl Reply {
    pub(super) fn send(self, told: ClientResponse<Fixed8>) {
        match self {
            Self::Sink(sink) => sink.send(told.encode()),
            // The receiver may have given up.
            Self::Local(sender) => _ = sender.send(told),
        }
    }
}

/// A request and the destination of its answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) ask: ClientRequest<Fixed8>,
    pub(super) reply: Reply,
    /// Runs since the request arrived.
    pub(super) since: Clock,
}

/// Age at which a request is refused unread: its client is taken to have given up by then.
const TOO_OLD: Duration = Duration::from_secs(10);

impl Asked {
    pub(super) fn new(ask: ClientRequest<Fixed8>, reply: Reply) -> Self {
        Self { ask, reply, since: Clock::start() }
    }

    /// Whether the request is so old that its client has given up.
    pub(super) fn is_too_old(&self) -> bool {
        self.since.elapsed() > TOO_OLD
    }

    pub(super) fn unavailable(self) {
        self.reply.send(ClientResponse::Error(ErrorCode::Unavailable));
    }
}

#[derive(Debug, Default)]
struct Waiting {
    asked: VecDeque<Asked>,
    /// Tasks that wait for a request.
    idle: Vec<Waker>,
    closed: bool,
}

/// Requests waiting for the tasks of one thread.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<Waiting>);

impl Queue {
    /// Queues a request, or answers it as unavailable.
    pub(super) fn push(&self, asked: Asked) {
        let mut waiting = lock(&self.0);
        if waiting.closed || waiting.asked.len() >= WAITING {
            drop(waiting);
            return asked.unavailable();
        }
        waiting.asked.push_back(asked);
        // One task at a time is on its way: it wakes the next one if there is more.
        let idle = match waiting.asked.len() {
            1 => waiting.idle.pop(),
            _ => None,
        };
        drop(waiting);
        idle.into_iter().for_each(Waker::wake);
    }

    /// Waits for the next request; `None` once the queue is closed.
    pub(super) async fn next(&self) -> Option<Asked> {
        poll_fn(|context| {
            let mut waiting = lock(&self.0);
            if let Some(asked) = waiting.asked.pop_front() {
                let next = match waiting.asked.is_empty() {
                    false => waiting.idle.pop(),
                    true => None,
                };
                drop(waiting);
                next.into_iter().for_each(Waker::wake);
                return Poll::Ready(Some(asked));
            }
            if waiting.closed {
                return Poll::Ready(None);
            }
            if !waiting.idle.iter().any(|idle| idle.will_wake(context.waker())) {
                waiting.idle.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Closes the queue: waiting requests are answered as unavailable, and the tasks end.
    pub(super) fn close(&self) {
        let (asked, idle) = {
            let mut waiting = lock(&self.0);
            waiting.closed = true;
            (std::mem::take(&mut waiting.asked), std::mem::take(&mut waiting.idle))
        };
        asked.into_iter().for_each(Asked::unavailable);
        idle.into_iter().for_each(Waker::wake);
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.0).closed
    }
}

/// The queues of all threads.
#[derive(Debug)]
pub(super) struct Queues {
    /// One queue per thread.
    pub(super) threads: Vec<Queue>,
    /// Bulk loads, which the first thread serves.
    pub(super) loads: Queue,
}

impl Queues {
    pub(super) fn new(threads: usize) -> Self {
        Self { threads: (0..threads).map(|_| Queue::default()).collect(), loads: Queue::default() }
    }

    /// Queues a request for the thread of this number.
    pub(super) fn push(&self, asked: Asked, thread: usize) {
        let is_load = matches!(
            asked.ask,
            ClientRequest::LoadBegin { .. }
                | ClientRequest::LoadAppend { .. }
                | ClientRequest::LoadEnd
                | ClientRequest::LoadAbort
        );
        if is_load {
            return self.loads.push(asked);
        }
        self.threads[thread % self.threads.len()].push(asked);
    }

    pub(super) fn close(&self) {
        self.threads.iter().for_each(Queue::close);
        self.loads.close();
    }
}

/// Passes clients' requests to the generation that is being served.
#[derive(Debug)]
pub(super) struct Front {
    /// The same queues for each thread, so that threads do not wait for each other here.
    serving: Box<[Mutex<Option<Arc<Queues>>>]>,
}

impl Front {
    /// A front for this many threads, which refuses every request.
    pub(super) fn new(threads: usize) -> Self {
        Self { serving: (0..threads.max(1)).map(|_| Mutex::default()).collect() }
    }

    /// From now on, passes requests to these queues, or refuses them if there are none.
    pub(super) fn set(&self, queues: Option<&Arc<Queues>>) {
        self.serving.iter().for_each(|serving| *lock(serving) = queues.cloned());
    }
}

impl Calls for Front {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, cpu: &C, call: Call<'_>) {
        let Some(ask) = ClientRequest::decode(call.request) else {
            call.reply
                .extend_from_slice(&ClientResponse::<Fixed8>::Error(ErrorCode::Malformed).encode());
            return;
        };
        let thread = cpu.stripe() % self.serving.len();
        let queues = lock(&self.serving[thread]).clone();
        match queues {
            Some(queues) => queues.push(Asked::new(ask, Reply::Sink(call.later())), thread),
            None => {
                call.reply.extend_from_slice(
                    &ClientResponse::<Fixed8>::Error(ErrorCode::Unavailable).encode(),
                );
            }
        }
    }
}
