//! The life cycle of a connection that is opened on demand, lost, and reopened. It has no socket,
//! so every transport can use it.
//!
//! ```text
//!            wanted             connected         welcomed            ready
//!  closed ──────────▶ connecting ──────▶ greeting ───────▶ preparing ──────▶ open
//!    ▲                     └────────────────┴─────────────────┴───────────────┤
//!    └──── failed: back off before the next attempt; lost: reconnect at once ◀┘
//! ```
//!
//! *Invariants*: endpoint.K1. It is opened only when something is to be sent, or after a reset.
//! Each attempt has a deadline. After a failed attempt the next one waits, twice as long each time
//! up to a bound. endpoint.K4. If a WRITE was lost with the connection, later verbs cannot use the
//! next connection until the task that waits for the WRITE has seen its outcome: nothing that was
//! meant to follow a WRITE takes effect without it (F3). endpoint.K5. It opens only to a server
//! with the epoch that the cluster knows. endpoint.K2 and endpoint.K3 are those of its link
//! ([`super::dial`]).
//!
//! *Thread safety*: an endpoint's thread.

use super::lost;
use super::slots::OpSlots;
use crate::handshake::{
    ExpectedPeer, HandshakeError, HandshakeMessage, HandshakeRefusal, Initiator, InitiatorStep,
    NO_FENCES, Nonce, PeerIdentity, Token,
};
use crate::{FabricError, ServerId};
use std::io;
use std::task::{Context, Poll, Waker};

/// The pause after the first failed attempt, and the longest pause, in nanoseconds.
const FIRST_BACKOFF_NS: u64 = 1_000_000;
const MAX_BACKOFF_NS: u64 = 200_000_000;

/// State of a connection.
#[derive(Debug)]
enum ConnectionState {
    Closed,
    Connecting { deadline_ns: u64 },
    Greeting { initiator: Box<Initiator> },
    Preparing { deadline_ns: u64 },
    Open,
}

/// The kind of a `ConnectionState`, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// There is no connection.
    Closed,
    /// The socket is being connected.
    Connecting,
    /// The handshake is in progress.
    Greeting,
    /// The server has admitted us; the transport still has to be prepared.
    Preparing,
    /// Operations can use it.
    Open,
}

/// The result of a handshake message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HandshakeProgress {
    /// Send this reply.
    Send(HandshakeMessage),
    /// The server has admitted us.
    Welcome,
}

/// Numbers of successful and failed attempts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttemptCounts {
    opened: u64,
    failed: u64,
}

/// The life cycle of a connection to one server.
#[derive(Debug)]
pub(super) struct ServerConnection {
    server: ServerId,
    state: ConnectionState,
    /// The fence count for the next hello.
    fences: u64,
    /// Whether a reset waits for it to open, even if nothing is to be sent.
    wanted: bool,
    /// Consecutive failed attempts, and the time of the next one.
    failures: u32,
    retry_at_ns: u64,
    /// Whether WRITEs may have been lost whose tasks do not know it yet (endpoint.K4).
    is_tainted: bool,
    attempts: AttemptCounts,
    last_error: Option<FabricError>,
    /// The error that keeps it from ever opening again.
    dead: Option<FabricError>,
    waiters: Vec<Waker>,
}

impl ServerConnection {
    /// A closed connection.
    pub(super) fn new(server: ServerId) -> Self {
        Self {
            server,
            state: ConnectionState::Closed,
            fences: NO_FENCES,
            wanted: false,
            failures: 0,
            retry_at_ns: 0,
            is_tainted: false,
            attempts: AttemptCounts { opened: 0, failed: 0 },
            last_error: None,
            dead: None,
            waiters: Vec::new(),
        }
    }

    /// The server.
    pub(super) fn server(&self) -> ServerId {
        self.server
    }

    /// Its current phase.
    #[inline]
    pub(super) fn phase(&self) -> ConnectionPhase {
        match self.state {
            ConnectionState::Closed => ConnectionPhase::Closed,
            ConnectionState::Connecting { .. } => ConnectionPhase::Connecting,
            ConnectionState::Greeting { .. } => ConnectionPhase::Greeting,
            ConnectionState::Preparing { .. } => ConnectionPhase::Preparing,
            ConnectionState::Open => ConnectionPhase::Open,
        }
    }

    /// Checks whether an operation may be posted.
    ///
    /// # Errors
    /// The server has been restarted, or a verb could take effect without a WRITE that it must
    /// follow.
    #[inline]
    pub(super) fn admit<P: Default>(
        &mut self,
        is_verb: bool,
        slots: &OpSlots<P>,
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

    /// When it must be checked again if nothing else happens first.
    pub(super) fn deadline_ns(&self, has_work: bool) -> Option<u64> {
        match &self.state {
            ConnectionState::Closed if self.wanted || has_work => Some(self.retry_at_ns),
            ConnectionState::Connecting { deadline_ns }
            | ConnectionState::Preparing { deadline_ns } => Some(*deadline_ns),
            ConnectionState::Greeting { initiator } => Some(initiator.deadline_ns()),
            ConnectionState::Closed | ConnectionState::Open => None,
        }
    }

    /// Whether its deadline has passed, so that a closed connection must be opened, or an attempt
    /// has failed.
    pub(super) fn is_due(&self, has_work: bool, now_ns: u64) -> bool {
        self.deadline_ns(has_work).is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// Records that a socket is being connected.
    pub(super) fn connecting(&mut self, deadline_ns: u64) {
        self.state = ConnectionState::Connecting { deadline_ns };
    }

    /// Begins the handshake once the socket is connected; returns the first message.
    ///
    /// # Errors
    /// If there is no entropy.
    pub(super) fn greet(
        &mut self,
        token: &Token,
        me: PeerIdentity,
        wanted: ExpectedPeer,
    ) -> io::Result<HandshakeMessage> {
        let deadline_ns = self.deadline_ns(true).unwrap_or(0);
        let nonce = Nonce::draw()?;
        let initiator = Initiator::new(token, me, self.fences, wanted, nonce, deadline_ns);
        let hello = *initiator.hello();
        self.state = ConnectionState::Greeting { initiator: Box::new(initiator) };
        Ok(hello)
    }

    /// Handles a message of the handshake. `is_known` checks whether an epoch is the one that the
    /// cluster knows for the server.
    ///
    /// # Errors
    /// The attempt has failed.
    pub(super) fn greeted(
        &mut self,
        message: &HandshakeMessage,
        now_ns: u64,
        is_known: impl FnOnce(u64) -> bool,
    ) -> Result<HandshakeProgress, FabricError> {
        let server = self.server;
        let ConnectionState::Greeting { initiator } = &mut self.state else {
            return Err(lost(server));
        };
        match initiator.receive(message, now_ns) {
            Ok(InitiatorStep::Send(proof)) => Ok(HandshakeProgress::Send(proof)),
            Ok(InitiatorStep::Open { peer, fences }) => {
                if !is_known(peer.epoch) {
                    let error = FabricError::Restarted { server };
                    self.dead = Some(error.clone());
                    return Err(error);
                }
                self.fences = fences;
                Ok(HandshakeProgress::Welcome)
            }
            // A fenced endpoint is only told that it is cut off (F10).
            Err(HandshakeError::TimedOut | HandshakeError::Refused(HandshakeRefusal::Fenced)) => {
                Err(lost(server))
            }
            Err(why) => Err(FabricError::NotLetIn { server, why }),
        }
    }

    /// Records that the transport is being prepared.
    pub(super) fn preparing(&mut self, deadline_ns: u64) {
        self.state = ConnectionState::Preparing { deadline_ns };
    }

    /// Records that operations can use it.
    pub(super) fn open(&mut self) {
        self.state = ConnectionState::Open;
        self.failures = 0;
        self.attempts.opened += 1;
        self.wanted = false;
        self.waiters.drain(..).for_each(Waker::wake);
    }

    /// Records a loss or a failed attempt; after a failed attempt, the next one backs off.
    pub(super) fn fail(&mut self, now_ns: u64, error: &FabricError) {
        if matches!(self.state, ConnectionState::Open) {
            self.retry_at_ns = 0;
        } else {
            let backoff_ns = FIRST_BACKOFF_NS << self.failures.min(10);
            self.retry_at_ns = now_ns + backoff_ns.min(MAX_BACKOFF_NS);
            self.failures += 1;
            self.attempts.failed += 1;
            self.wanted = false;
            self.last_error = Some(error.clone());
            self.waiters.drain(..).for_each(Waker::wake);
        }
        self.close();
    }

    fn close(&mut self) {
        self.state = ConnectionState::Closed;
        self.is_tainted = true;
    }

    /// Closes it so that it is reopened, but does not block later verbs: a task that resets knows
    /// that posted operations may not have happened.
    pub(super) fn reset(&mut self) {
        self.close();
        self.is_tainted = false;
        self.wanted = self.dead.is_none();
    }

    /// The attempts so far, for use with [`Self::poll_opened`].
    ///
    /// # Errors
    /// It will never open again.
    pub(super) fn attempts(&self) -> Result<AttemptCounts, FabricError> {
        match &self.dead {
            Some(dead) => Err(dead.clone()),
            None => Ok(self.attempts),
        }
    }

    /// Whether it has opened since `before`, or the error if an attempt has failed since.
    pub(super) fn poll_opened(
        &mut self,
        before: AttemptCounts,
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

    /// Each failed attempt makes the next one wait longer, up to a bound; a lost connection is
    /// reopened at once.
    #[test]
    fn attempts_back_off() {
        let mut connection = ServerConnection::new(ServerId::new(0));
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
