//! The threads of a local memory server: a bounded number of them over one bounded queue of
//! requests.
//!
//! They block on the queue. With as few cores as test machines have, a spinning server would starve
//! the client that it waits for.

use crate::handshake::PeerIdentity;
use crate::sync::{Arc, Mutex, ObjectArc, lock};
use crate::{
    CallTicket, Calls, FabricError, InlineCpu, LaterAnswers, MAX_MESSAGE_BYTES, Message, ReplySink,
    ServerId, ServiceCall, Uncertainty, now_or_never,
};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::io;
use std::task::Waker;
use std::thread::JoinHandle;

/// Limit on requests that wait for a thread of one memory server.
const QUEUE_DEPTH: usize = 4096;

/// Holds the reply of a server thread, or of the thread that answers later.
#[derive(Debug)]
pub(super) struct ReplySlot {
    server: ServerId,
    pub(super) state: Mutex<ReplyState>,
}

impl ReplySlot {
    /// A slot for a reply of `server`.
    pub(super) fn new(server: ServerId) -> Arc<Self> {
        Arc::new(Self { server, state: Mutex::new(ReplyState::default()) })
    }

    /// Creates a sink for a later answer.
    pub(super) fn sink(slot: &Arc<Self>) -> ReplySink {
        ReplySink::new(ObjectArc::new(LaterReply(Arc::clone(slot))), [0; 2])
    }

    /// Stores the reply, and wakes the task that waits for it. `None` makes the outcome
    /// indeterminate.
    fn answer(&self, reply: Option<Message>) {
        let result = match reply {
            Some(reply) if reply.len() > MAX_MESSAGE_BYTES => {
                Err(FabricError::MessageTooLarge { bytes: reply.len() })
            }
            Some(reply) => Ok(reply),
            None => {
                let why = Uncertainty::ConnectionLost;
                Err(FabricError::Indeterminate { server: self.server, why })
            }
        };
        let mut held = lock(&self.state);
        held.reply = Some(result);
        let waker = held.waker.take();
        drop(held);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[derive(Debug)]
struct LaterReply(Arc<ReplySlot>);

impl LaterAnswers for LaterReply {
    fn answer(&self, _ticket: CallTicket, reply: Option<Message>) {
        self.0.answer(reply);
    }
}

#[derive(Debug, Default)]
pub(super) struct ReplyState {
    pub(super) reply: Option<Result<Message, FabricError>>,
    pub(super) waker: Option<Waker>,
}

pub(super) struct ThreadRequest {
    peer: PeerIdentity,
    message: Message,
    slot: Arc<ReplySlot>,
}

/// The running threads. Dropping this serves the queued requests, and joins the threads.
#[derive(Debug)]
pub(super) struct ServerThreads {
    queue: Option<Sender<ThreadRequest>>,
    threads: Vec<JoinHandle<()>>,
}

impl ServerThreads {
    pub(super) fn start<S: Calls>(count: usize, service: &Arc<S>) -> io::Result<Self> {
        let (sender, receiver) = bounded(QUEUE_DEPTH);
        // If a thread cannot be started, dropping this ends the others.
        let mut all = Self { queue: Some(sender), threads: Vec::with_capacity(count) };
        for stripe in 0..count {
            let (service, receiver) = (Arc::clone(service), receiver.clone());
            let body = move || serve(&*service, &receiver, stripe);
            all.threads.push(std::thread::Builder::new().spawn(body)?);
        }
        Ok(all)
    }

    /// Queues a request; `None` if the queue is full.
    pub(super) fn post(
        &self,
        peer: PeerIdentity,
        server: ServerId,
        message: Message,
    ) -> Option<Arc<ReplySlot>> {
        let slot = ReplySlot::new(server);
        let request = ThreadRequest { peer, message, slot: Arc::clone(&slot) };
        match self.queue.as_ref()?.try_send(request) {
            Ok(()) => Some(slot),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => None,
        }
    }

    pub(super) const fn depth() -> usize {
        QUEUE_DEPTH
    }
}

impl Drop for ServerThreads {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve<S: Calls>(service: &S, requests: &Receiver<ThreadRequest>, stripe: usize) {
    let cpu = InlineCpu::new(stripe);
    while let Ok(ThreadRequest { peer, message, slot }) = requests.recv() {
        let (mut reply, mut is_later) = (Message::new(), false);
        let mut defer = || {
            is_later = true;
            ReplySlot::sink(&slot)
        };
        now_or_never(service.call(&cpu, ServiceCall::new(peer, &message, &mut reply, &mut defer)));
        if !is_later {
            slot.answer(Some(reply));
            now_or_never(service.after_answer(&cpu));
        }
    }
}
