//! A TCP server: a bounded number of I/O threads over nonblocking sockets.
//!
//! Each thread has its own [`Acceptor`] and its share of the connections. The first thread accepts
//! for all of them, or each for itself ([`TcpServerConfig::each_thread_accepts`]). The threads
//! carry out verbs themselves, by word-wise atomic access to the region. They answer all requests
//! of one socket read with one write.
//!
//! *Invariants*: tcp.S2. the end of a connection, whatever its cause, affects no other. tcp.S3.
//! after `stop`, no request is carried out any more and no thread is left. listener.A1 to
//! listener.A3 are the acceptor's.
//!
//! *Thread safety*: the handle is for any number of threads.

use super::inbox::{Content, Inbox, Late};
use super::served::{ConnectionContext, Next, Served, Tally};
use crate::handshake::{Identity, Role, Token, draw_epoch};
use crate::listener::{
    Acceptor, Bounds, Greeting, LISTENER, Listener, Place, Threads, WAKE, place_of,
};
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crate::{Calls, InlineCpu};
use rustix::event::epoll::EventFlags;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct TcpServerConfig {
    /// Its role.
    pub role: Role,
    /// Its number among the servers of its role.
    pub number: u16,
    /// The roles of clients that it accepts.
    pub accepts: &'static [Role],
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
            role: Role::MemoryServer,
            number: 0,
            accepts: &[Role::ComputeServer],
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
struct Shared {
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
    shared: Arc<Shared>,
    threads: Threads,
}

impl TcpServer {
    /// Serves the endpoints that connect to `listener`.
    ///
    /// # Errors
    /// The operating system's error: no more threads or file descriptors, or no entropy.
    pub fn start<S: Calls>(
        listener: TcpListener,
        service: Arc<S>,
        token: &Token,
        config: TcpServerConfig,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let inboxes: io::Result<Vec<_>> =
            (0..config.io_threads.max(1)).map(|_| Ok(Arc::new(Inbox::new()?))).collect();
        let identity =
            Identity { role: config.role, number: config.number, epoch: draw_epoch()?.max(1) };
        let bounds = Bounds {
            accepts: config.accepts,
            connections: config.connections,
            half_open: config.half_open,
            handshake_timeout_ns: config.handshake_timeout_ns,
        };
        let shared = Arc::new(Shared {
            listener: Arc::new(Listener::new(identity, token, bounds)),
            inboxes: inboxes?,
            requests: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            config,
        });
        let server = Self { address, shared, threads: Threads::default() };
        for number in 0..server.shared.inboxes.len() {
            let (shared, service) = (Arc::clone(&server.shared), Arc::clone(&service));
            let accepts = number == 0 || shared.config.each_thread_accepts;
            let socket = if accepts { Some(listener.try_clone()?) } else { None };
            let mut thread = IoThread::new(number, socket, shared, service)?;
            let name = format!("tcp-{}-{number}", identity.number);
            server.threads.start(name, move || thread.run())?;
        }
        Ok(server)
    }

    /// Address that it listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Its identity, with the epoch that it drew when it started.
    pub fn identity(&self) -> Identity {
        self.shared.listener.identity
    }

    /// A snapshot of its counters.
    pub fn counters(&self) -> TcpServerCounters {
        let Shared { listener, requests, .. } = &*self.shared;
        TcpServerCounters {
            connections: listener.connections(),
            welcomed: listener.welcomed(),
            refused: listener.refused(),
            requests: requests.load(Ordering::Relaxed),
        }
    }

    /// Closes the listener and every connection, and joins all threads.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        for inbox in &self.shared.inboxes {
            inbox.change(|content| content.stop = true);
        }
        self.threads.join();
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

#[derive(Debug)]
struct IoThread<S> {
    number: usize,
    acceptor: Acceptor<Served>,
    /// Number of connections that this thread has accepted.
    accepted: usize,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    service: Arc<S>,
}

fn flags_of(next: Next) -> EventFlags {
    match next {
        Next::Readable => EventFlags::IN,
        Next::Writable => EventFlags::OUT,
        Next::Answers | Next::Close => EventFlags::empty(),
    }
}

impl<S: Calls> IoThread<S> {
    fn new(
        number: usize,
        socket: Option<TcpListener>,
        shared: Arc<Shared>,
        service: Arc<S>,
    ) -> io::Result<Self> {
        let inbox = Arc::clone(&shared.inboxes[number]);
        let acceptor = Acceptor::new(&shared.listener, socket, &inbox.wake)?;
        Ok(Self { number, acceptor, accepted: 0, shared, inbox, service })
    }

    fn run(&mut self) {
        let (mut events, mut spare) = (Vec::new(), Vec::new());
        while !self.shared.stopped.load(Ordering::Acquire) {
            self.acceptor.wait(&mut events);
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => {
                        let content = self.inbox.take(std::mem::take(&mut spare));
                        spare = self.empty_inbox(content);
                    }
                    token => self.visit(place_of(token), event.flags),
                }
            }
            self.acceptor.expire();
        }
        for place in self.acceptor.places() {
            self.acceptor.close(place);
        }
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
    fn visit(&mut self, place: Place, flags: EventFlags) {
        loop {
            let next = match self.acceptor.hear(place) {
                Greeting::Ended => return,
                Greeting::Pending => Some(Next::Readable),
                Greeting::Proven(peer, fences) => {
                    if !self.let_in(place, peer, fences) {
                        return;
                    }
                    self.with(place, Served::serve)
                }
                Greeting::Admitted => self.with(place, Served::serve),
            };
            // Carry out the requests that arrived before the end.
            let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            match next {
                Some(Next::Readable) if ended => {}
                Some(_) if ended => {
                    self.acceptor.close(place);
                    return;
                }
                _ => return,
            }
        }
    }

    /// Admits a peer that has proven itself; returns whether its connection lives on.
    fn let_in(&mut self, place: Place, peer: Identity, fences: u64) -> bool {
        let Some((gate, fences)) = self.acceptor.admit(place, peer, fences) else { return false };
        let goes_on = self.acceptor.welcome(place, fences, Served::new(gate, place));
        // An earlier connection of the peer may belong to another thread.
        self.sweep();
        goes_on
    }

    /// Makes all threads close the connections behind closed gates.
    fn sweep(&self) {
        for inbox in &self.shared.inboxes {
            inbox.change(|content| content.sweep = true);
        }
    }

    /// Runs `act` on a connection and applies its result; returns `None` if the connection is gone.
    fn with(
        &mut self,
        place: Place,
        act: impl FnOnce(&mut Served, &mut TcpStream, &ConnectionContext<'_, S>, &mut Tally) -> Next,
    ) -> Option<Next> {
        let mut tally = Tally::default();
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
        let mut closed = next == Next::Close;
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
    fn empty_inbox(&mut self, content: Content) -> Vec<Late> {
        let Content { mut answers, sockets, sweep, .. } = content;
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
            self.with(place, Served::carry_on);
        }
        answers
    }
}
