//! Receives the requests of a compute server's clients. They wait in queues, one per thread, until
//! a task of the receiving thread takes them ([`farleaf_index::partition::ThreadQueue`]).
//!
//! *Invariants*: F1. Every request is answered: by a task, or as unavailable if there is no thread
//! or its queue is full. F2. Waiting requests are bounded in number (queue.QU3) and in time.
//!
//! *Thread safety*: any number of threads.

use crate::clock::MonotonicClock;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::{Calls, Cpu, Region, ReplySink, ServiceCall};
use farleaf_index::partition::{self, ThreadQueue};
use farleaf_page::Layout;
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The destination of an answer.
#[derive(Debug)]
enum AnswerTarget<L: Layout> {
    /// A client.
    Sink(ReplySink),
    /// Another thread of this program.
    Local(Sender<ClientResponse<L>>),
}

/// Where to send the answer to a request.
#[derive(Debug)]
pub(super) struct ReplyHandle<L: Layout> {
    to: AnswerTarget<L>,
    /// Measures the time since the request arrived.
    since: MonotonicClock,
}

/// Age at which a request is refused without being decoded, because its client has probably given
/// up.
const TOO_OLD: Duration = Duration::from_secs(10);

impl<L: Layout> ReplyHandle<L> {
    fn to_client(sink: ReplySink) -> Self {
        Self { to: AnswerTarget::Sink(sink), since: MonotonicClock::start() }
    }

    /// The reply to a request of another thread of this program.
    pub(super) fn to_thread(sender: Sender<ClientResponse<L>>) -> Self {
        Self { to: AnswerTarget::Local(sender), since: MonotonicClock::start() }
    }

    /// Whether the request is so old that its client has probably given up. Threads of this program
    /// wait as long as necessary.
    pub(super) fn is_too_old(&self) -> bool {
        matches!(self.to, AnswerTarget::Sink(_)) && self.since.elapsed() > TOO_OLD
    }

    pub(super) fn send(self, told: ClientResponse<L>) {
        match self.to {
            AnswerTarget::Sink(sink) => sink.send(told.encode()),
            // The receiver may have given up.
            AnswerTarget::Local(sender) => _ = sender.send(told),
        }
    }

    fn unavailable(self) {
        self.send(ClientResponse::Error(ErrorCode::Unavailable));
    }
}

/// The queues of all threads.
pub(super) struct GenerationQueues<L: Layout>(partition::RequestQueues<L, ReplyHandle<L>>);

impl<L: Layout> GenerationQueues<L> {
    pub(super) fn new(threads: usize) -> Self {
        Self(partition::RequestQueues::new(threads))
    }

    /// The requests for the thread of this number.
    pub(super) fn of_thread(&self, number: usize) -> &ThreadQueue<L, ReplyHandle<L>> {
        &self.0.threads[number]
    }

    /// Bulk loads, which the first thread serves.
    pub(super) fn loads(&self) -> &ThreadQueue<L, ReplyHandle<L>> {
        &self.0.loads
    }

    /// Queues a request for the thread of this number, or answers it as unavailable.
    pub(super) fn push(&self, ask: ClientRequest<L>, reply: ReplyHandle<L>, thread: usize) {
        if let Some(reply) = self.0.push(ask, reply, thread) {
            reply.unavailable();
        }
    }

    /// Closes the queues: waiting requests are answered as unavailable, and the tasks end.
    pub(super) fn close(&self) {
        self.0.close().into_iter().for_each(ReplyHandle::unavailable);
    }
}

/// The queues of the generation being served, if there is one.
type ServedQueues<L> = Option<Arc<GenerationQueues<L>>>;

/// Passes clients' requests to the generation that is being served.
pub(super) struct ComputeRequestHandler<L: Layout> {
    /// The same queues for each thread, so that threads do not wait for each other here.
    serving: Box<[Mutex<ServedQueues<L>>]>,
}

impl<L: Layout> ComputeRequestHandler<L> {
    /// A front for this many threads, which refuses every request.
    pub(super) fn new(threads: usize) -> Self {
        Self { serving: (0..threads.max(1)).map(|_| Mutex::default()).collect() }
    }

    /// From now on, passes requests to these queues, or refuses them if there are none.
    pub(super) fn set(&self, queues: Option<&Arc<GenerationQueues<L>>>) {
        self.serving.iter().for_each(|serving| *lock(serving) = queues.cloned());
    }
}

impl<L: Layout> Calls for ComputeRequestHandler<L> {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, cpu: &C, call: ServiceCall<'_>) {
        let Some(ask) = ClientRequest::decode(call.request) else {
            call.reply
                .extend_from_slice(&ClientResponse::<L>::Error(ErrorCode::Malformed).encode());
            return;
        };
        let thread = cpu.stripe() % self.serving.len();
        let queues = lock(&self.serving[thread]).clone();
        match queues {
            Some(queues) => queues.push(ask, ReplyHandle::to_client(call.later()), thread),
            None => {
                call.reply.extend_from_slice(
                    &ClientResponse::<L>::Error(ErrorCode::Unavailable).encode(),
                );
            }
        }
    }
}
