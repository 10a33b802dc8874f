//! An I/O thread's inbox: answers, sockets, and requests to stop or sweep, from other threads.
//!
//! *Invariants*: inbox.B1. The I/O thread sleeps only after it has announced that and found the
//! inbox empty. After that, the first thread that adds something wakes it; later ones know that it
//! is awake. So a burst of answers costs one system call, and an answer by the thread itself costs
//! none. inbox.B2. The waiting calls bound the answers, and each connection bounds its waiting
//! calls; the limit on connections bounds the sockets.
//!
//! *Thread safety*: any number of threads push, the I/O thread takes.

use crate::listener::{AcceptorPlace, place_of, token_of};
use crate::sync::{Mutex, lock};
use crate::wake::WakeFd;
use crate::{CallTicket, LaterAnswers, Message};
use std::net::TcpStream;

/// The connection and request that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerAddress {
    pub(super) place: AcceptorPlace,
    /// The request's id.
    pub(super) id: u64,
}

/// A later answer; `None` if the service dropped the request.
#[derive(Debug)]
pub(super) struct LateAnswer {
    pub(super) asked: AnswerAddress,
    pub(super) reply: Option<Message>,
}

impl AnswerAddress {
    pub(super) fn ticket(self) -> CallTicket {
        [token_of(self.place), self.id]
    }

    fn of([connection, id]: CallTicket) -> Self {
        Self { place: place_of(connection), id }
    }
}

#[derive(Debug, Default)]
pub(super) struct InboxContent {
    pub(super) answers: Vec<LateAnswer>,
    pub(super) sockets: Vec<TcpStream>,
    /// Whether gates have been closed: find and close their connections.
    pub(super) sweep: bool,
    /// Whether the thread must check something outside the inbox.
    pub(super) nudged: bool,
}

impl InboxContent {
    fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.sockets.is_empty() && !self.sweep && !self.nudged
    }
}

#[derive(Debug, Default)]
struct InboxState {
    content: InboxContent,
    /// Whether the I/O thread waits, or is about to.
    asleep: bool,
}

#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    pub(super) wake: WakeFd,
}

impl LaterAnswers for Inbox {
    fn answer(&self, ticket: CallTicket, reply: Option<Message>) {
        let late = LateAnswer { asked: AnswerAddress::of(ticket), reply };
        self.change(|content| content.answers.push(late));
    }
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { state: Mutex::default(), wake: WakeFd::new()? })
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut InboxContent)) {
        let mut state = lock(&self.state);
        change(&mut state.content);
        if std::mem::take(&mut state.asleep) {
            drop(state);
            self.wake.wake();
        }
    }

    /// Number of answers.
    pub(super) fn answers(&self) -> usize {
        lock(&self.state).content.answers.len()
    }

    /// Takes everything, if there is anything; `spare` becomes the new list of answers.
    pub(super) fn take(&self, spare: &mut Vec<LateAnswer>) -> Option<InboxContent> {
        let mut state = lock(&self.state);
        if state.content.is_empty() {
            return None;
        }
        let fresh = InboxContent { answers: std::mem::take(spare), ..InboxContent::default() };
        Some(std::mem::replace(&mut state.content, fresh))
    }

    /// Whether the I/O thread may wait: the inbox is empty, and any thread that adds something will
    /// wake it.
    pub(super) fn fall_asleep(&self) -> bool {
        let mut state = lock(&self.state);
        state.asleep = state.content.is_empty();
        state.asleep
    }

    /// Marks the I/O thread as awake.
    pub(super) fn wake_up(&self) {
        lock(&self.state).asleep = false;
    }
}
