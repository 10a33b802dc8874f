//! The life of a connection that is made when it is needed, lost, and made again: without a socket,
//! so that every transport can carry it.
//!
//! ```text
//!            wanted                told            let in             ready
//!  closed ──────────▶ connecting ──────▶ greeting ───────▶ preparing ──────▶ open
//!    ▲                     └────────────────┴─────────────────┴───────────────┤
//!    └──────────────── failed: the next attempt waits ◀───────────────────────┘ lost: the next one does not
//! ```
//!
//! *Invariants*: K1. it is opened when something is to be sent, or after a reset, and by nothing
//! else; each attempt has a deadline, and after one that failed the next waits, twice as long each
//! time up to a bound. K4. a WRITE that was lost with the connection keeps later verbs from going
//! over the next one, until the task that waits for it has learnt of it: nothing that was meant to
//! come after a WRITE comes without it (F3). K5. it opens only to a server of the epoch that the
//! cluster knows. K2 and K3 are those of its link ([`super::dial`]).
//!
//! *Thread safety*: an endpoint's thread.

use super::lost;
use super::slots::Slots;
use crate::handshake::{
    HandshakeError, HandshakeMessage, Identity, Initiator, InitiatorStep, NO_FENCES, Nonce,
    Refusal, Token, Wanted,
};
use crate::{FabricError, ServerId};
use std::io;
use std::task::{Context, Poll, Waker};

/// How long to wait after the first attempt that failed, and at most, in nanoseconds.
const FIRST_BACKOFF_NS: u64 = 1_000_000;
const LONGEST_BACKOFF_NS: u64 = 200_000_000;

/// Where a connection is in its life.
#[derive(Debug)]
enum State {
    Closed,
    Connecting { deadline_ns: u64 },
    Greeting { initiator: Box<Initiator> },
    Preparing { deadline_ns: u64 },
    Open,
}

/// The same, for those who look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is none.
    Closed,
    /// The socket is being connected.
    Connecting,
    /// The handshake is under way.
    Greeting,
    /// The server has let us in, and the transport has yet to be made ready.
    Preparing,
    /// Operations go over it.
    Open,
}

/// What came of a message of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Greeted {
    /// Send this.
    Send(HandshakeMessage),
    /// The server has let us in.
    Welcome,
}

/// How often a connection had opened, and failed to, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempts {
    opened: u64,
    failed: u64,
}

/// The life of a connection to one server.
#[derive(Debug)]
pub(super) struct Connection {
    server: ServerId,
    state: State,
    /// What the next hello says.
    fences: u64,
    /// A reset waits for it to open, though nothing is to be sent.
    wanted: bool,
    /// Attempts that failed in a row, and when the next one may be made.
    failures: u32,
    retry_at_ns: u64,
    /// WRITEs may have been lost whose tasks have not learnt of it (K4).
    is_tainted: bool,
    attempts: Attempts,
    last_error: Option<FabricError>,
    /// Why it will never open again.
    dead: Option<FabricError>,
    waiters: Vec<Waker>,
}

impl Connection {
    /// One that is closed.
    pub(super) fn new(server: ServerId) -> Self {
        Self {
            server,
            state: State::Closed,
            fences: NO_FENCES,
            wanted: false,
            failures: 0,
            retry_at_ns: 0,
            is_tainted: false,
            attempts: Attempts { opened: 0, failed: 0 },
            last_error: None,
            dead: None,
            waiters: Vec::new(),
        }
    }

    /// The server.
    pub(super) fn server(&self) -> ServerId {
        self.server
    }

    /// Where it is in its life.
    #[inline]
    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Closed => Phase::Closed,
            State::Connecting { .. } => Phase::Connecting,
            State::Greeting { .. } => Phase::Greeting,
            State::Preparing { .. } => Phase::Preparing,
            State::Open => Phase::Open,
        }
    }

    /// Whether an operation may be posted.
    ///
    /// # Errors
    /// The server is another by now, or a verb could come without a WRITE that was to come before it.
    #[inline]
    pub(super) fn admit<P: Default>(
        &mut self,
        is_verb: bool,
        slots: &Slots<P>,
    ) -> Result<(), FabricError> {
        if let Some(dead) = &self.dead {
            return Err(dead.clone());
        }
        if is_verb && self.is_tainted {
            self.is_tainted = slots.has_unnoticed_write(self.server);
            if self.is_tainted {
                return Err(lost(self.server));
            }
        }
        Ok(())
    }

    /// When it must be looked at again, if nothing happens before.
    pub(super) fn deadline_ns(&self, has_work: bool) -> Option<u64> {
        match &self.state {
            State::Closed if self.wanted || has_work => Some(self.retry_at_ns),
            State::Connecting { deadline_ns } | State::Preparing { deadline_ns } => {
                Some(*deadline_ns)
            }
            State::Greeting { initiator } => Some(initiator.deadline_ns()),
            State::Closed | State::Open => None,
        }
    }

    /// Whether its deadline has come: a closed one is to be opened, one that is being opened has
    /// failed.
    pub(super) fn is_due(&self, has_work: bool, now_ns: u64) -> bool {
        self.deadline_ns(has_work).is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// A socket is being connected.
    pub(super) fn connecting(&mut self, deadline_ns: u64) {
        self.state = State::Connecting { deadline_ns };
    }

    /// The socket is connected: the message to begin with.
    ///
    /// # Errors
    /// There is no entropy.
    pub(super) fn greet(
        &mut self,
        token: &Token,
        me: Identity,
        wanted: Wanted,
    ) -> io::Result<HandshakeMessage> {
        let deadline_ns = self.deadline_ns(true).unwrap_or(0);
        let nonce = Nonce::draw()?;
        let initiator = Initiator::new(token, me, self.fences, wanted, nonce, deadline_ns);
        let hello = *initiator.hello();
        self.state = State::Greeting { initiator: Box::new(initiator) };
        Ok(hello)
    }

    /// Takes a message of the handshake. `is_known` says whether an epoch is that of the server
    /// that the cluster knows.
    ///
    /// # Errors
    /// The attempt has failed.
    pub(super) fn greeted(
        &mut self,
        message: &HandshakeMessage,
        now_ns: u64,
        is_known: impl FnOnce(u64) -> bool,
    ) -> Result<Greeted, FabricError> {
        let server = self.server;
        let State::Greeting { initiator } = &mut self.state else { return Err(lost(server)) };
        match initiator.receive(message, now_ns) {
            Ok(InitiatorStep::Send(proof)) => Ok(Greeted::Send(proof)),
            Ok(InitiatorStep::Open { peer, fences }) => {
                if !is_known(peer.epoch) {
                    let error = FabricError::Restarted { server };
                    self.dead = Some(error.clone());
                    return Err(error);
                }
                self.fences = fences;
                Ok(Greeted::Welcome)
            }
            // An endpoint that was fenced learns no more than that it is cut off (F10).
            Err(HandshakeError::TimedOut | HandshakeError::Refused(Refusal::Fenced)) => {
                Err(lost(server))
            }
            Err(why) => Err(FabricError::NotLetIn { server, why }),
        }
    }

    /// The transport is being made ready.
    pub(super) fn preparing(&mut self, deadline_ns: u64) {
        self.state = State::Preparing { deadline_ns };
    }

    /// Operations can go over it.
    pub(super) fn open(&mut self) {
        self.state = State::Open;
        self.failures = 0;
        self.attempts.opened += 1;
        self.wanted = false;
        self.waiters.drain(..).for_each(Waker::wake);
    }

    /// It is lost, or cannot be made: the next attempt waits in the second case.
    pub(super) fn fail(&mut self, now_ns: u64, error: &FabricError) {
        if matches!(self.state, State::Open) {
            self.retry_at_ns = 0;
        } else {
            let backoff_ns = FIRST_BACKOFF_NS << self.failures.min(10);
            self.retry_at_ns = now_ns + backoff_ns.min(LONGEST_BACKOFF_NS);
            self.failures += 1;
            self.attempts.failed += 1;
            self.wanted = false;
            self.last_error = Some(error.clone());
            self.waiters.drain(..).for_each(Waker::wake);
        }
        self.close();
    }

    /// It has ended.
    fn close(&mut self) {
        self.state = State::Closed;
        self.is_tainted = true;
    }

    /// It is to be closed and opened anew, with nothing lost: a task that resets knows that what
    /// was posted may not have happened.
    pub(super) fn reset(&mut self) {
        self.close();
        self.is_tainted = false;
        self.wanted = self.dead.is_none();
    }

    /// How often it has opened, and failed to, before a reset.
    ///
    /// # Errors
    /// It will never open again.
    pub(super) fn attempts(&self) -> Result<Attempts, FabricError> {
        match &self.dead {
            Some(dead) => Err(dead.clone()),
            None => Ok(self.attempts),
        }
    }

    /// Whether it has opened since `before`, or why not.
    pub(super) fn poll_opened(
        &mut self,
        before: Attempts,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), FabricError>> {
        if self.attempts.opened > before.opened {
            return Poll::Ready(Ok(()));
        }
        if self.attempts.failed > before.failed {
            return Poll::Ready(Err(self.last_error.clone().unwrap_or(lost(self.server))));
        }
        self.waiters.push(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each attempt that fails makes the next one wait longer, up to a bound; a lost connection is
    /// made again at once.
    #[test]
    fn attempts_back_off() {
        let mut connection = Connection::new(ServerId::new(0));
        let error = lost(ServerId::new(0));
        assert_eq!(connection.deadline_ns(false), None);
        assert!(connection.is_due(true, 0));
        let mut now_ns = 1000;
        let mut waits = Vec::new();
        for _ in 0..10 {
            connection.connecting(now_ns + 50);
            assert!(!connection.is_due(true, now_ns) && connection.is_due(false, now_ns + 50));
            connection.fail(now_ns, &error);
            let next_ns = connection.deadline_ns(true).unwrap();
            waits.push((next_ns - now_ns) / FIRST_BACKOFF_NS);
            now_ns = next_ns;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 200, 200]);
        connection.open();
        connection.fail(now_ns, &error);
        assert_eq!(connection.deadline_ns(true), Some(0));
    }
}
