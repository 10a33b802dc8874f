//! What other threads leave for an I/O thread: answers, sockets, and requests to stop or sweep.
//!
//! *Invariants*: inbox.B1. the first thread that adds something after the I/O thread has emptied
//! the inbox wakes it; later ones know that it has been woken. So a burst of answers costs one
//! system call. inbox.B2. the calls that wait bound the answers, and each connection bounds its
//! waiting calls; the limit on connections bounds the sockets.
//!
//! *Thread safety*: any number of threads push, the I/O thread takes.

use crate::listener::{Place, place_of, token_of};
use crate::sync::{Mutex, lock};
use crate::wake::WakeFd;
use crate::{Answers, Message, Ticket};
use std::net::TcpStream;

/// The connection and request that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) place: Place,
    /// The request's id.
    pub(super) id: u64,
}

/// A later answer; `None` if the service dropped the request.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) asked: Asked,
    pub(super) reply: Option<Message>,
}

impl Asked {
    pub(super) fn ticket(self) -> Ticket {
        [token_of(self.place), self.id]
    }

    fn of([connection, id]: Ticket) -> Self {
        Self { place: place_of(connection), id }
    }
}

#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) answers: Vec<Late>,
    pub(super) sockets: Vec<TcpStream>,
    /// Gates have been closed: find and close their connections.
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
        let late = Late { asked: Asked::of(ticket), reply };
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

    /// Takes everything; `spare` becomes the new list of answers.
    pub(super) fn take(&self, spare: Vec<Late>) -> Content {
        self.wake.clear();
        let fresh = Content { answers: spare, ..Content::default() };
        std::mem::replace(&mut lock(&self.content), fresh)
    }
}
