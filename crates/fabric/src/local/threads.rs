//! The threads of a local memory server: a bounded number of them over one bounded queue of requests.
//!
//! They block on the queue: with as few cores as tests have, a server that spins starves the client
//! that it waits for.

use crate::sync::{Arc, Mutex, lock};
use crate::{FabricError, InlineCpu, MAX_MESSAGE_BYTES, Message, RpcService, now_or_never};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::task::Waker;
use std::thread::JoinHandle;

/// Requests that may wait for a thread of one memory server.
const QUEUE_DEPTH: usize = 4096;

/// Where a server thread leaves its reply.
#[derive(Debug, Default)]
pub(super) struct ReplySlot {
    pub(super) state: Mutex<ReplyState>,
}

#[derive(Debug, Default)]
pub(super) struct ReplyState {
    pub(super) reply: Option<Result<Message, FabricError>>,
    pub(super) waker: Option<Waker>,
}

pub(super) struct Request {
    client: u16,
    message: Message,
    slot: Arc<ReplySlot>,
}

/// The running threads; dropping them lets each finish what it has and joins it.
#[derive(Debug)]
pub(super) struct ServerThreads {
    queue: Option<Sender<Request>>,
    threads: Vec<JoinHandle<()>>,
}

impl ServerThreads {
    pub(super) fn start<S: RpcService>(count: usize, service: &Arc<S>) -> Self {
        let (sender, receiver) = bounded(QUEUE_DEPTH);
        let threads = (0..count)
            .map(|stripe| {
                let service = Arc::clone(service);
                let receiver = receiver.clone();
                std::thread::spawn(move || serve(&*service, &receiver, stripe))
            })
            .collect();
        Self { queue: Some(sender), threads }
    }

    /// Queues a request; `None` if the queue is full.
    pub(super) fn post(&self, client: u16, message: Message) -> Option<Arc<ReplySlot>> {
        let slot = Arc::new(ReplySlot::default());
        let request = Request { client, message, slot: Arc::clone(&slot) };
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

fn serve<S: RpcService>(service: &S, requests: &Receiver<Request>, stripe: usize) {
    let cpu = InlineCpu::new(stripe);
    while let Ok(request) = requests.recv() {
        let mut reply = Message::new();
        now_or_never(service.handle(&cpu, request.client, &request.message, &mut reply));
        let result = match reply.len() {
            bytes if bytes > MAX_MESSAGE_BYTES => Err(FabricError::MessageTooLarge { bytes }),
            _ => Ok(reply),
        };
        let mut held = lock(&request.slot.state);
        held.reply = Some(result);
        let waker = held.waker.take();
        drop(held);
        if let Some(waker) = waker {
            waker.wake();
        }
        now_or_never(service.after_reply(&cpu));
    }
}
