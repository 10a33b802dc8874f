//! A server's service: the memory that verbs access, and calls that are answered at once or later.
//!
//! [`Calls`] is *the* service of a server. An [`RpcService`] is the simple case, which answers
//! every call before its handler ends. A compute server cannot, because it waits for the network:
//! it answers through a [`ReplySink`] from one of its own threads.
//!
//! *Thread safety*: every thread of the server calls [`Calls`]; a [`ReplySink`] may go to any
//! thread.

use crate::handshake::PeerIdentity;
use crate::sync::{Arc, ObjectArc};
use crate::{Cpu, Message, Region, RpcService};
use std::fmt;
use std::future::Future;

/// A server's service, and the memory it makes accessible, if any.
pub trait Calls: Send + Sync + 'static {
    /// The memory that verbs access; `None` makes every verb out of bounds.
    fn memory(&self) -> Option<&Arc<Region>>;

    /// Answers one request, whatever its bytes: at once, by writing [`ServiceCall::reply`], or
    /// later, through [`ServiceCall::later`]. Must not block, because its thread serves other
    /// connections too.
    fn call<C: Cpu>(&self, cpu: &C, call: ServiceCall<'_>) -> impl Future<Output = ()>;

    /// Housekeeping after an immediate answer has been sent, on the thread that served it: a
    /// bounded amount of work, or none.
    fn after_answer<C: Cpu>(&self, cpu: &C) -> impl Future<Output = ()> {
        let _ = cpu;
        async {}
    }
}

impl<S: RpcService> Calls for S {
    #[inline]
    fn memory(&self) -> Option<&Arc<Region>> {
        Some(self.region())
    }

    #[inline]
    fn call<C: Cpu>(&self, cpu: &C, call: ServiceCall<'_>) -> impl Future<Output = ()> {
        self.handle(cpu, call.peer.number, call.request, call.reply)
    }

    #[inline]
    fn after_answer<C: Cpu>(&self, cpu: &C) -> impl Future<Output = ()> {
        self.after_reply(cpu)
    }
}

/// One request.
pub struct ServiceCall<'a> {
    /// The endpoint that sent it.
    pub peer: PeerIdentity,
    /// The bytes of the request.
    pub request: &'a [u8],
    /// The answer, empty at first. It is sent when the call returns, unless it will be answered
    /// later.
    pub reply: &'a mut Message,
    defer: &'a mut dyn FnMut() -> ReplySink,
}

impl fmt::Debug for ServiceCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.request.len();
        f.debug_struct("ServiceCall")
            .field("peer", &self.peer)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}

impl<'a> ServiceCall<'a> {
    /// Wraps a call that a host has received. `defer` creates the sink for a later answer.
    #[inline]
    pub fn new(
        peer: PeerIdentity,
        request: &'a [u8],
        reply: &'a mut Message,
        defer: &'a mut dyn FnMut() -> ReplySink,
    ) -> Self {
        Self { peer, request, reply, defer }
    }

    /// Defers the answer; it can be sent from any thread.
    pub fn later(self) -> ReplySink {
        (self.defer)()
    }
}

/// Takes later answers and delivers them to the callers.
pub trait LaterAnswers: fmt::Debug + Send + Sync {
    /// Takes the answer to the call of `ticket`, from any thread; `None` if there will be none.
    fn answer(&self, ticket: CallTicket, reply: Option<Message>);
}

/// Identifies one of a host's calls; the host defines its meaning.
pub type CallTicket = [u64; 2];

/// Takes the answer to one call. If it is dropped without an answer, the caller gets an error and
/// does not know whether its request was carried out.
#[derive(Debug)]
#[must_use = "a call waits for its answer"]
pub struct ReplySink {
    answers: ObjectArc<dyn LaterAnswers>,
    /// Taken once the answer has been handed over.
    ticket: Option<CallTicket>,
}

impl ReplySink {
    /// The sink of one call of a host.
    pub fn new(answers: ObjectArc<dyn LaterAnswers>, ticket: CallTicket) -> Self {
        Self { answers, ticket: Some(ticket) }
    }

    /// Sends the answer; it is discarded if the caller's connection is gone.
    pub fn send(mut self, reply: Message) {
        if let Some(ticket) = self.ticket.take() {
            self.answers.answer(ticket, Some(reply));
        }
    }
}

impl Drop for ReplySink {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.answers.answer(ticket, None);
        }
    }
}
