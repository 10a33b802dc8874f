//! What a listener serves: the memory that verbs reach, and calls that are answered at once or later.
//!
//! *Thread safety*: [`Calls`] is called by every I/O thread of its server; a [`ReplySink`] may go to any
//! thread.

use super::inbox::{Inbox, Late, Place};
use crate::handshake::Identity;
use crate::sync::Arc;
use crate::{InlineCpu, Message, Region, RpcService, now_or_never};

/// What a listener answers with. Every [`RpcService`] is one, which answers at once.
pub trait Calls: Send + Sync + 'static {
    /// The memory that verbs reach; without any, all of them are out of bounds.
    fn memory(&self) -> Option<&Region>;

    /// Answers one request, whatever its bytes are: at once, by leaving the answer in [`Call::reply`],
    /// or later, through [`Call::later`]. Runs on an I/O thread: it must not block.
    fn call(&self, call: Call<'_>);

    /// Housekeeping after `replies` replies have left, on the I/O thread that served them.
    fn after_replies(&self, _io_thread: usize, _replies: usize) {}
}

/// One request.
pub struct Call<'a> {
    /// Who asks.
    pub peer: Identity,
    /// What it asks.
    pub request: &'a [u8],
    /// The answer, empty at first; sent when the call returns, unless it is answered later.
    pub reply: &'a mut Message,
    /// The number of the I/O thread that this runs on.
    pub io_thread: usize,
    pub(super) inbox: &'a Arc<Inbox>,
    pub(super) place: Place,
    pub(super) is_later: &'a mut bool,
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.request.len();
        f.debug_struct("Call")
            .field("peer", &self.peer)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}

impl Call<'_> {
    /// The way to answer later, from any thread.
    pub fn later(self) -> ReplySink {
        *self.is_later = true;
        ReplySink { inbox: Arc::clone(self.inbox), place: Some(self.place) }
    }
}

/// Where the answer to one call goes. Dropped unanswered, it tells the caller that nobody answered: the caller
/// does not know then whether its request was carried out.
#[derive(Debug)]
#[must_use = "a call waits for its answer"]
pub struct ReplySink {
    inbox: Arc<Inbox>,
    /// Taken when the answer is on its way.
    place: Option<Place>,
}

impl ReplySink {
    /// Sends the answer. If the caller's connection is gone, so is the answer.
    pub fn send(mut self, reply: Message) {
        if let Some(place) = self.place.take() {
            self.inbox.push(Late { place, reply: Some(reply) });
        }
    }
}

impl Drop for ReplySink {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.inbox.push(Late { place, reply: None });
        }
    }
}

impl<S: RpcService> Calls for S {
    fn memory(&self) -> Option<&Region> {
        Some(self.region())
    }

    #[inline]
    fn call(&self, call: Call<'_>) {
        let cpu = InlineCpu::new(call.io_thread);
        now_or_never(self.handle(&cpu, call.peer.number, call.request, call.reply));
    }

    fn after_replies(&self, io_thread: usize, replies: usize) {
        let cpu = InlineCpu::new(io_thread);
        for _ in 0..replies {
            now_or_never(self.after_reply(&cpu));
        }
    }
}
