//! A TCP server: a bounded number of threads over nonblocking sockets.
//!
//! Each thread has its own [`Acceptor`] and its share of the connections. Either the first thread
//! accepts for all of them, or each accepts for itself ([`TcpServerConfig::each_thread_accepts`]).
//! The threads carry out verbs themselves, by word-wise atomic access to the region. They answer
//! all requests of one socket read with one write.
//!
//! The server starts the threads itself ([`TcpServer::start`]), or hands them out
//! ([`TcpServer::prepare`]) to threads that have other work as well ([`super::Hosting`]).
//!
//! *Invariants*: tcp.S2. The end of a connection, whatever its cause, does not affect other
//! connections. tcp.S3. After `stop`, no further request is carried out and no thread that the
//! server started is left. listener.A1 to listener.A3 are the acceptor's.
//!
//! *Thread safety*: the handle is for any number of threads, a [`ServerThread`] belongs to one.

use super::inbox::{Inbox, InboxContent, LateAnswer};
use super::served::{AwaitedEvent, ConnectionContext, ServedConnection, VisitTally};
use crate::handshake::{PeerIdentity, PeerRole, Token, draw_epoch};
use crate::listener::{
    Acceptor, AcceptorPlace, AdmissionBounds, GreetingState, LISTENER, Listener, ListenerThreads,
    PAST, WAKE, place_of,
};
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crate::{Calls, InlineCpu};
use rustix::event::epoll::EventFlags;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct TcpServerConfig {
    /// Its role.
    pub role: PeerRole,
    /// Its number among the servers of its role.
    pub number: u16,
    /// The roles of clients that it accepts.
    pub accepts: &'static [PeerRole],
    /// Threads that serve connections.
    pub io_threads: usize,
    /// Limit on connections.
    pub connections: usize,
    /// Limit on an I/O thread's connections in their handshake; one more closes the oldest.
    pub half_open: usize,
    /// Time limit of a handshake, in nanoseconds.
    pub handshake_timeout_ns: u64,
    /// Limit on one connection's calls that wait for a later answer.
    pub waiting_calls: usize,
    /// Each thread accepts connections and keeps them, instead of one thread that distributes them.
    pub each_thread_accepts: bool,
}

impl Default for TcpServerConfig {
    fn default() -> Self {
        Self {
            role: PeerRole::MemoryServer,
            number: 0,
            accepts: &[PeerRole::ComputeServer],
            io_threads: 1,
            connections: 1024,
            half_open: 64,
            handshake_timeout_ns: 5_000_000_000,
            waiting_calls: 1024,
            each_thread_accepts: false,
        }
    }
}

/// Counters of a server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpServerCounters {
    /// Open connections, handshakes included.
    pub connections: u64,
    /// Connections that were admitted.
    pub welcomed: u64,
    /// Connections that were refused, evicted or too slow.
    pub refused: u64,
    /// Requests of all kinds.
    pub requests: u64,
}

#[derive(Debug)]
struct TcpServerShared {
    config: TcpServerConfig,
    listener: Arc<Listener>,
    inboxes: Vec<Arc<Inbox>>,
    requests: AtomicU64,
    stopped: AtomicBool,
}

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    shared: Arc<TcpServerShared>,
    threads: ListenerThreads,
}

impl TcpServer {
    /// Serves the endpoints that connect to `listener`, on threads of its own.
    ///
    /// # Errors
    /// The operating system's error: no more threads or file descriptors, or no entropy.
    pub fn start<S: Calls>(
        listener: TcpListener,
        service: Arc<S>,
        token: &Token,
        config: TcpServerConfig,
    ) -> io::Result<Self> {
        let (server, threads) = Self::prepare(listener, service, token, config)?;
        for mut thread in threads {
            let name = format!("tcp-{}-{}", server.identity().number, thread.number);
            server.threads.start(name, move || thread.run())?;
        }
        Ok(server)
    }

    /// Creates a server whose threads the caller runs. Connections wait until it does.
    ///
    /// # Errors
    /// The operating system's error: no more file descriptors, or no entropy.
    pub fn prepare<S: Calls>(
        listener: TcpListener,
        service: Arc<S>,
        token: &Token,
        config: TcpServerConfig,
    ) -> io::Result<(Self, Vec<ServerThread<S>>)> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let inboxes: io::Result<Vec<_>> =
            (0..config.io_threads.max(1)).map(|_| Ok(Arc::new(Inbox::new()?))).collect();
        let identity =
            PeerIdentity { role: config.role, number: config.number, epoch: draw_epoch()?.max(1) };
        let bounds = AdmissionBounds {
            accepts: config.accepts,
            connections: config.connections,
            half_open: config.half_open,
            handshake_timeout_ns: config.handshake_timeout_ns,
        };
        let shared = Arc::new(TcpServerShared {
            listener: Arc::new(Listener::new(identity, token, bounds)),
            inboxes: inboxes?,
            requests: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            config,
        });
        let threads = (0..shared.inboxes.len()).map(|number| {
            let accepts = number == 0 || shared.config.each_thread_accepts;
            let socket = accepts.then(|| listener.try_clone()).transpose()?;
            ServerThread::new(number, socket, Arc::clone(&shared), Arc::clone(&service))
        });
        let threads = threads.collect::<io::Result<_>>()?;
        Ok((Self { address, shared, threads: ListenerThreads::default() }, threads))
    }

    /// Address that it listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Its identity, with the epoch that it drew when it started.
    pub fn identity(&self) -> PeerIdentity {
        self.shared.listener.identity
    }

    /// A snapshot of its counters.
    pub fn counters(&self) -> TcpServerCounters {
        let TcpServerShared { listener, requests, .. } = &*self.shared;
        TcpServerCounters {
            connections: listener.connections(),
            welcomed: listener.welcomed(),
            refused: listener.refused(),
            requests: requests.load(Ordering::Relaxed),
        }
    }

    /// Closes the listener and every connection, and joins all threads that it started. Other
    /// threads are told to stop.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.nudge();
        self.threads.join();
    }

    /// Ends the threads' current wait, or their next one, so that they check for work outside the
    /// server.
    pub fn nudge(&self) {
        for inbox in &self.shared.inboxes {
            inbox.change(|content| content.nudged = true);
        }
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One thread's part of a server.
#[derive(Debug)]
pub struct ServerThread<S> {
    number: usize,
    acceptor: Acceptor<ServedConnection>,
    /// Number of connections that this thread has accepted.
    accepted: usize,
    shared: Arc<TcpServerShared>,
    inbox: Arc<Inbox>,
    service: Arc<S>,
    /// Kept for their memory.
    events: Vec<(u64, EventFlags)>,
    answers: Vec<LateAnswer>,
}

fn flags_of(next: AwaitedEvent) -> EventFlags {
    match next {
        AwaitedEvent::Readable => EventFlags::IN,
        AwaitedEvent::Writable => EventFlags::OUT,
        AwaitedEvent::Answers | AwaitedEvent::Close => EventFlags::empty(),
    }
}

impl<S: Calls> ServerThread<S> {
    fn new(
        number: usize,
        socket: Option<TcpListener>,
        shared: Arc<TcpServerShared>,
        service: Arc<S>,
    ) -> io::Result<Self> {
        let inbox = Arc::clone(&shared.inboxes[number]);
        let acceptor = Acceptor::new(&shared.listener, socket, &inbox.wake)?;
        let (events, answers) = (Vec::new(), Vec::new());
        Ok(Self { number, acceptor, accepted: 0, shared, inbox, service, events, answers })
    }

    /// Serves until the server is stopped.
    fn run(&mut self) {
        while !self.is_stopped() {
            self.turn();
        }
        self.close_all();
    }

    /// Its number among the server's threads: the [`crate::Cpu::stripe`] of its calls.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether the server has been stopped. If so, this thread closes its connections and ends.
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }

    /// Waits for events, answers or a nudge, and handles them.
    pub fn turn(&mut self) {
        let may_wait = self.inbox.fall_asleep();
        self.look(if may_wait { self.acceptor.timeout() } else { Some(0) });
        self.deliver();
    }

    /// Closes every connection of this thread.
    pub fn close_all(&mut self) {
        for place in self.acceptor.places() {
            self.acceptor.close(place);
        }
    }

    /// Waits for events, for `most_ns` nanoseconds at most, and handles them. Returns whether there
    /// were any.
    pub(super) fn look(&mut self, most_ns: Option<u64>) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.acceptor.wait(&mut events, most_ns);
        self.inbox.wake_up();
        for (token, flags) in &events {
            match *token {
                LISTENER => self.accept(),
                WAKE => self.inbox.wake.clear(),
                token => self.visit(place_of(token), *flags),
            }
        }
        self.acceptor.expire();
        let were_any = !events.is_empty();
        self.events = events;
        were_any
    }

    /// Handles what is in the inbox. Returns whether there was anything.
    pub(super) fn deliver(&mut self) -> bool {
        let Some(content) = self.inbox.take(&mut self.answers) else { return false };
        self.answers = self.empty_inbox(content);
        true
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.acceptor.descriptor()
    }

    pub(super) fn timeout_ns(&self) -> u64 {
        self.acceptor.timeout().unwrap_or(u64::MAX)
    }

    /// Whether a deadline has passed.
    pub(super) fn is_due(&self) -> bool {
        self.acceptor.timeout() == Some(PAST)
    }

    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Accepts connections and distributes them round robin, unless each thread accepts for itself.
    fn accept(&mut self) {
        let Self { acceptor, shared, accepted, number, .. } = self;
        acceptor.accept(|socket| {
            let thread = *accepted % shared.inboxes.len();
            *accepted += 1;
            if thread == *number || shared.config.each_thread_accepts {
                return Some(socket);
            }
            shared.inboxes[thread].change(|content| content.sockets.push(socket));
            None
        });
    }

    /// Handles an event on a socket.
    fn visit(&mut self, place: AcceptorPlace, flags: EventFlags) {
        loop {
            let next = match self.acceptor.hear(place) {
                GreetingState::Ended => return,
                GreetingState::Pending => Some(AwaitedEvent::Readable),
                GreetingState::Proven(peer, fences) => {
                    if !self.let_in(place, peer, fences) {
                        return;
                    }
                    self.with(place, ServedConnection::serve)
                }
                GreetingState::Admitted => self.with(place, ServedConnection::serve),
            };
            // Carry out the requests that arrived before the end of the connection.
            let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            match next {
                Some(AwaitedEvent::Readable) if ended => {}
                Some(_) if ended => {
                    self.acceptor.close(place);
                    return;
                }
                _ => return,
            }
        }
    }

    /// Admits a peer that has proven itself. Returns whether its connection is still open.
    fn let_in(&mut self, place: AcceptorPlace, peer: PeerIdentity, fences: u64) -> bool {
        let Some((gate, fences)) = self.acceptor.admit(place, peer, fences) else { return false };
        let goes_on = self.acceptor.welcome(place, fences, ServedConnection::new(gate, place));
        // An earlier connection of the peer may belong to another thread.
        self.sweep();
        goes_on
    }

    /// Makes all threads close the connections whose gates are closed.
    fn sweep(&self) {
        for inbox in &self.shared.inboxes {
            inbox.change(|content| content.sweep = true);
        }
    }

    /// Runs `act` on a connection and applies its result; returns `None` if the connection is gone.
    fn with(
        &mut self,
        place: AcceptorPlace,
        act: impl FnOnce(
            &mut ServedConnection,
            &mut TcpStream,
            &ConnectionContext<'_, S>,
            &mut VisitTally,
        ) -> AwaitedEvent,
    ) -> Option<AwaitedEvent> {
        let mut tally = VisitTally::default();
        let context = ConnectionContext {
            service: &*self.service,
            server: self.shared.listener.identity,
            gates: &self.shared.listener.gates,
            requests: &self.shared.requests,
            inbox: &self.inbox,
            waiting_calls: self.shared.config.waiting_calls,
            cpu: InlineCpu::new(self.number),
        };
        let (socket, served) = self.acceptor.admitted(place)?;
        let next = act(served, socket, &context, &mut tally);
        let mut closed = next == AwaitedEvent::Close;
        if !closed && next != served.interest {
            served.interest = next;
            closed = self.acceptor.watch_for(place, flags_of(next)).is_err();
        }
        if closed {
            self.acceptor.close(place);
        }
        if tally.shut_out {
            self.sweep();
        }
        (!closed).then_some(next)
    }

    /// Handles the content of the inbox; returns the emptied list of answers.
    fn empty_inbox(&mut self, content: InboxContent) -> Vec<LateAnswer> {
        let InboxContent { mut answers, sockets, sweep, .. } = content;
        for socket in sockets {
            self.acceptor.adopt(socket);
        }
        if sweep {
            for place in self.acceptor.shut_out() {
                self.acceptor.close(place);
            }
        }
        let mut touched = Vec::new();
        for late in answers.drain(..) {
            let place = late.asked.place;
            if let Some((_, served)) = self.acceptor.admitted(place) {
                served.answer(late);
                touched.push(place);
            }
        }
        // Send all answers for one connection together.
        touched.sort_unstable();
        touched.dedup();
        for place in touched {
            self.with(place, ServedConnection::carry_on);
        }
        answers
    }
}
