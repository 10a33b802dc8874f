//! What a server answers: the memory that verbs reach, and calls that are answered at once or
//! later.
//!
//! [`Calls`] is *the* service of a server. An [`RpcService`] is the simple case, which answers
//! every call before its handler ends. A compute server cannot: it waits for the network, and
//! answers through a [`ReplySink`] from a thread of its own.
//!
//! *Thread safety*: [`Calls`] is called by every thread of its server; a [`ReplySink`] may go to
//! any thread.

use crate::handshake::Identity;
use crate::sync::{Arc, ObjectArc};
use crate::{Cpu, Message, Region, RpcService};
use std::fmt;
use std::future::Future;

/// What a server answers with, over the memory it lends, if any.
pub trait Calls: Send + Sync + 'static {
    /// The memory that verbs reach; without any, all of them are out of bounds.
    fn memory(&self) -> Option<&Arc<Region>>;

    /// Answers one request, whatever its bytes are: at once, by leaving the answer in
    /// [`Call::reply`], or later, through [`Call::later`]. Runs on a thread that serves others too:
    /// it must not block.
    fn call<C: Cpu>(&self, cpu: &C, call: Call<'_>) -> impl Future<Output = ()>;

    /// Housekeeping after an answer that was given at once has left, on the thread that served it:
    /// a bounded piece of work, or nothing.
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
    fn call<C: Cpu>(&self, cpu: &C, call: Call<'_>) -> impl Future<Output = ()> {
        self.handle(cpu, call.peer.number, call.request, call.reply)
    }

    #[inline]
    fn after_answer<C: Cpu>(&self, cpu: &C) -> impl Future<Output = ()> {
        self.after_reply(cpu)
    }
}

/// One request.
pub struct Call<'a> {
    /// The endpoint that asks.
    pub peer: Identity,
    /// What it asks.
    pub request: &'a [u8],
    /// The answer, empty at first; sent when the call returns, unless it is answered later.
    pub reply: &'a mut Message,
    defer: &'a mut dyn FnMut() -> ReplySink,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.request.len();
        f.debug_struct("Call")
            .field("peer", &self.peer)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    /// One that a host has received; `defer` is called if it is answered later, and says where to.
    #[inline]
    pub fn new(
        peer: Identity,
        request: &'a [u8],
        reply: &'a mut Message,
        defer: &'a mut dyn FnMut() -> ReplySink,
    ) -> Self {
        Self { peer, request, reply, defer }
    }

    /// The way to answer later, from any thread.
    pub fn later(self) -> ReplySink {
        (self.defer)()
    }
}

/// What takes the answers that come later, and brings them to those who asked.
pub trait Answers: fmt::Debug + Send + Sync {
    /// Takes the answer to the call of `ticket`, from any thread; `None` if there will be none.
    fn answer(&self, ticket: Ticket, reply: Option<Message>);
}

/// Which of a host's calls an answer belongs to: what the host makes of it.
pub type Ticket = [u64; 2];

/// Where the answer to one call goes. Dropped unanswered, it tells the caller that there will be no
/// answer: the caller does not know then whether its request was carried out.
#[derive(Debug)]
#[must_use = "a call waits for its answer"]
pub struct ReplySink {
    answers: ObjectArc<dyn Answers>,
    /// Taken when the answer is on its way.
    ticket: Option<Ticket>,
}

impl ReplySink {
    /// That of one call of a host.
    pub fn new(answers: ObjectArc<dyn Answers>, ticket: Ticket) -> Self {
        Self { answers, ticket: Some(ticket) }
    }

    /// Sends the answer. If the caller's connection is gone, so is the answer.
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
