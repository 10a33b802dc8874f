//! What other threads leave for an I/O thread: answers, sockets, the order to stop.
//!
//! *Invariants*: B1. who finds the inbox empty wakes the thread; who does not knows that it has been woken. So a burst of
//! answers costs one system call. B2. answers are bounded by the calls that are waiting, which each connection
//! bounds; sockets by the bound on connections.
//!
//! *Thread safety*: any number of threads push, the I/O thread takes.

use crate::sync::{Mutex, lock};
use crate::wake::WakeFd;
use crate::{Answers, Message, Ticket};
use std::net::TcpStream;

/// Which request of which connection an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The connection's slot.
    pub(super) slot: u32,
    /// The connection in the slot: a later one has another.
    pub(super) generation: u32,
    /// The request's id.
    pub(super) id: u64,
}

/// An answer that comes later; `None` if nobody answered.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) place: Place,
    pub(super) reply: Option<Message>,
}

impl Place {
    pub(super) fn ticket(self) -> Ticket {
        [u64::from(self.generation) << 32 | u64::from(self.slot), self.id]
    }

    fn of([connection, id]: Ticket) -> Self {
        Self { slot: connection as u32, generation: (connection >> 32) as u32, id }
    }
}

#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) answers: Vec<Late>,
    pub(super) sockets: Vec<TcpStream>,
    /// Connections have been shut out: look for them.
    pub(super) sweep: bool,
    pub(super) stop: bool,
    woken: bool,
}

#[derive(Debug)]
pub(super) struct Inbox {
    content: Mutex<Content>,
    pub(super) wake: WakeFd,
}

impl Answers for Inbox {
    fn answer(&self, ticket: Ticket, reply: Option<Message>) {
        let late = Late { place: Place::of(ticket), reply };
        self.change(|content| content.answers.push(late));
    }
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { content: Mutex::default(), wake: WakeFd::new()? })
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Content)) {
        let mut content = lock(&self.content);
        change(&mut content);
        if !std::mem::replace(&mut content.woken, true) {
            drop(content);
            self.wake.wake();
        }
    }

    /// Everything that has come; `spare` is left behind for what comes next.
    pub(super) fn take(&self, spare: Vec<Late>) -> Content {
        self.wake.clear();
        let fresh = Content { answers: spare, ..Content::default() };
        std::mem::replace(&mut lock(&self.content), fresh)
    }
}
