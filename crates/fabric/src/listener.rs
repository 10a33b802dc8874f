//! The part that all listeners share: accept connections, run the handshake, bound both, and track
//! the admitted peers.
//!
//! The threads of a server share a [`Listener`]. Each thread has its own [`Acceptor`], with an
//! epoll instance and its share of the connections. A thread accepts connections if its acceptor
//! has the listening socket: either one thread has it and distributes the connections, or every
//! thread has it.
//!
//! *Invariants*: listener.A1. The number of connections, the number of unsettled ones, and the
//! memory of each are bounded: until a peer has proven itself, it costs one message. listener.A2.
//! Input that is not a message of the handshake closes its connection, and has no other effect.
//! listener.A3. A place names one connection: a late event for a connection that has ended finds
//! none.
//!
//! *Thread safety*: a [`Listener`] is for any number of threads, an [`Acceptor`] belongs to one.

use crate::clock::ClusterClock;
use crate::endpoint::timespec;
use crate::gates::{ConnectionGate, ServerGates};
use crate::handshake::{
    HandshakeRefusal, MessageAssembler, Nonce, PeerIdentity, PeerRole, Responder, ResponderStep,
    Token,
};
use crate::sockets::{SocketRead, next_message, prepare_socket};
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, lock, mpsc};
use crate::wake::WakeFd;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

/// Token of events from the listening socket, which belong to no connection.
pub const LISTENER: u64 = u64::MAX;
/// Token of events from the thread's [`WakeFd`].
pub const WAKE: u64 = u64::MAX - 1;
/// Limit on events, and on accepted connections, per turn.
const EVENTS: usize = 256;
/// Pause in accepting after an error that reports a lack of resources.
const ACCEPT_PAUSE_NS: u64 = 20_000_000;

/// The value of [`Acceptor::timeout`] for a deadline that has passed.
pub const PAST: u64 = 1;

/// Names a connection of an acceptor: its slot, and the generation of the slot's content.
pub type AcceptorPlace = (u32, u32);

/// The epoll token of a connection's events.
pub fn token_of((slot, generation): AcceptorPlace) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

/// The place of the connection that an event belongs to, if it belongs to one.
pub fn place_of(token: u64) -> AcceptorPlace {
    (token as u32, (token >> 32) as u32)
}

/// Which roles a listener accepts, and how many connections.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionBounds {
    /// The accepted roles.
    pub accepts: &'static [PeerRole],
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of unsettled connections of a thread. One more evicts the oldest.
    pub half_open: usize,
    /// Time a connection has to settle, in nanoseconds.
    pub handshake_timeout_ns: u64,
}

/// The state that the threads of a server share.
#[derive(Debug)]
pub struct Listener {
    /// The server's identity.
    pub identity: PeerIdentity,
    /// Gates of the admitted connections.
    pub gates: ServerGates,
    /// The server's clock.
    pub clock: ClusterClock,
    token: Token,
    bounds: AdmissionBounds,
    connections: AtomicUsize,
    welcomed: AtomicU64,
    refused: AtomicU64,
}

impl Listener {
    /// A listener without connections.
    pub fn new(identity: PeerIdentity, token: &Token, bounds: AdmissionBounds) -> Self {
        Self {
            identity,
            gates: ServerGates::default(),
            clock: ClusterClock::start(),
            token: token.clone(),
            bounds,
            connections: AtomicUsize::new(0),
            welcomed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Number of open connections, handshakes included.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed) as u64
    }

    /// Number of connections that were admitted.
    pub fn welcomed(&self) -> u64 {
        self.welcomed.load(Ordering::Relaxed)
    }

    /// Number of connections that were refused, evicted or too slow.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection with an admitted peer.
pub trait Admitted: Debug {
    /// Its right to have requests executed.
    fn gate(&self) -> &Arc<ConnectionGate>;

    /// Whether the connection has no deadline left to meet.
    fn is_settled(&self) -> bool {
        true
    }
}

#[derive(Debug)]
enum ListenerSlotState<C> {
    Handshake { responder: Box<Responder>, gather: MessageAssembler },
    Admitted(C),
}

#[derive(Debug)]
struct ListenerPeer<C> {
    socket: TcpStream,
    /// Deadline for the connection to settle.
    deadline_ns: u64,
    state: ListenerSlotState<C>,
}

#[derive(Debug)]
struct ListenerSlot<C> {
    generation: u32,
    peer: Option<ListenerPeer<C>>,
}

/// State of a connection after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GreetingState {
    /// The handshake continues.
    Pending,
    /// The peer has proven itself; the server must admit or refuse it. The number is its fence
    /// count.
    Proven(PeerIdentity, u64),
    /// The peer is admitted.
    Admitted,
    /// The connection has ended, now or earlier.
    Ended,
}

/// One thread's part of a listener.
#[derive(Debug)]
pub struct Acceptor<C> {
    epoll: OwnedFd,
    socket: Option<TcpListener>,
    /// When to accept again after a pause.
    accept_again_ns: Option<u64>,
    listener: Arc<Listener>,
    slots: Vec<ListenerSlot<C>>,
    vacant: Vec<u32>,
    /// Connections that have begun their handshake, oldest first; some have settled since.
    half_open: VecDeque<AcceptorPlace>,
}

impl<C: Admitted> Acceptor<C> {
    /// Creates an acceptor without connections. It accepts at `socket`, if given, and `wake` wakes
    /// it.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn new(
        listener: &Arc<Listener>,
        socket: Option<TcpListener>,
        wake: &WakeFd,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        if let Some(socket) = &socket {
            epoll::add(&epoll, socket, EventData::new_u64(LISTENER), EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            socket,
            accept_again_ns: None,
            listener: Arc::clone(listener),
            slots: Vec::new(),
            vacant: Vec::new(),
            half_open: VecDeque::new(),
        })
    }

    /// Readable when there is an event. [`Acceptor::wait`] makes it unreadable again.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Waits for an event for at most `most_ns` nanoseconds. Fills `events`: their tokens and
    /// flags.
    pub fn wait(&self, events: &mut Vec<(u64, EventFlags)>, most_ns: Option<u64>) {
        let timeout = most_ns.map(timespec);
        events.clear();
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS];
        match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((came, _)) => {
                events.extend(came.iter().map(|event| (event.data.u64(), event.flags)))
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("epoll fails: {errno}"),
        }
    }

    /// Time to the next deadline, in nanoseconds: [`PAST`] if it has passed, `None` if there is
    /// none.
    pub fn timeout(&self) -> Option<u64> {
        let deadline = self.half_open.front().and_then(|&place| self.deadline_ns(place));
        let next = [deadline, self.accept_again_ns].into_iter().flatten().min()?;
        Some(next.saturating_sub(self.listener.clock.now_ns()) + PAST)
    }

    fn peer(&self, (slot, generation): AcceptorPlace) -> Option<&ListenerPeer<C>> {
        let slot = self.slots.get(slot as usize)?;
        slot.peer.as_ref().filter(|_| slot.generation == generation)
    }

    fn peer_mut(&mut self, (slot, generation): AcceptorPlace) -> Option<&mut ListenerPeer<C>> {
        let slot = self.slots.get_mut(slot as usize)?;
        slot.peer.as_mut().filter(|_| slot.generation == generation)
    }

    /// The deadline of a connection that has not settled.
    fn deadline_ns(&self, place: AcceptorPlace) -> Option<u64> {
        let peer = self.peer(place)?;
        match &peer.state {
            ListenerSlotState::Admitted(admitted) if admitted.is_settled() => None,
            _ => Some(peer.deadline_ns),
        }
    }

    /// Refuses connections that missed their deadline, and resumes accepting after a pause.
    pub fn expire(&mut self) {
        while let Some(&place) = self.half_open.front() {
            match self.deadline_ns(place) {
                Some(deadline_ns) if deadline_ns >= self.listener.clock.now_ns() => break,
                Some(_) => self.refuse(place),
                None => {}
            }
            self.half_open.pop_front();
        }
        if self.accept_again_ns.is_some_and(|at_ns| at_ns <= self.listener.clock.now_ns()) {
            self.accept_again_ns = None;
            self.watch_listener(EventFlags::IN);
        }
    }

    fn watch_listener(&self, flags: EventFlags) {
        if let Some(socket) = &self.socket {
            let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(LISTENER), flags);
        }
    }

    /// Accepts connections and counts them. `keep` returns those that stay with this thread, and
    /// passes the others to other threads, which adopt them.
    pub fn accept(&mut self, mut keep: impl FnMut(TcpStream) -> Option<TcpStream>) {
        // Bounded, so that connected clients also get their turn.
        for _ in 0..EVENTS {
            let Some(socket) = &self.socket else { return };
            let socket = match socket.accept() {
                Ok((socket, _)) => socket,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => {
                        self.watch_listener(EventFlags::empty());
                        let now_ns = self.listener.clock.now_ns();
                        self.accept_again_ns = Some(now_ns + ACCEPT_PAUSE_NS);
                        return;
                    }
                },
            };
            if socket.set_nonblocking(true).is_err() {
                continue;
            }
            let before = self.listener.connections.fetch_add(1, Ordering::AcqRel);
            if before >= self.listener.bounds.connections {
                self.listener.connections.fetch_sub(1, Ordering::AcqRel);
                self.listener.count_refused();
                let _ = (&socket).write(&HandshakeRefusal::Full.message());
                continue;
            }
            if let Some(socket) = keep(socket) {
                self.adopt(socket);
            }
        }
    }

    /// Takes over a connection that has already been counted.
    pub fn adopt(&mut self, socket: TcpStream) {
        let most = self.listener.bounds.half_open.max(1);
        if self.half_open.len() >= most {
            let mut half_open = std::mem::take(&mut self.half_open);
            half_open.retain(|&place| self.deadline_ns(place).is_some());
            self.half_open = half_open;
            if self.half_open.len() >= most
                && let Some(oldest) = self.half_open.pop_front()
            {
                self.refuse(oldest);
            }
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(ListenerSlot { generation: 0, peer: None });
            self.slots.len() as u32 - 1
        });
        let place = (slot, self.slots[slot as usize].generation);
        let data = EventData::new_u64(token_of(place));
        let ready = prepare_socket(&socket).and_then(|()| {
            epoll::add(&self.epoll, &socket, data, EventFlags::IN)?;
            Nonce::draw()
        });
        let Ok(nonce) = ready else {
            self.vacant.push(slot);
            self.listener.connections.fetch_sub(1, Ordering::AcqRel);
            return;
        };
        let Listener { token, identity, bounds, clock, .. } = &*self.listener;
        let deadline_ns = clock.now_ns().saturating_add(bounds.handshake_timeout_ns);
        let responder = Responder::new(token, *identity, bounds.accepts, nonce, deadline_ns);
        let responder = Box::new(responder);
        let state = ListenerSlotState::Handshake { responder, gather: MessageAssembler::default() };
        self.slots[slot as usize].peer = Some(ListenerPeer { socket, deadline_ns, state });
        self.half_open.push_back(place);
    }

    fn refuse(&mut self, place: AcceptorPlace) {
        self.listener.count_refused();
        self.close(place);
    }

    /// Ends a connection; returns its state if its peer was admitted.
    pub fn close(&mut self, place: AcceptorPlace) -> Option<C> {
        self.peer(place)?;
        let slot = &mut self.slots[place.0 as usize];
        let peer = slot.peer.take()?;
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> 1);
        self.vacant.push(place.0);
        self.listener.connections.fetch_sub(1, Ordering::AcqRel);
        match peer.state {
            ListenerSlotState::Handshake { .. } => None,
            ListenerSlotState::Admitted(admitted) => {
                self.listener.gates.leave(admitted.gate());
                Some(admitted)
            }
        }
    }

    /// The places of all connections.
    pub fn places(&self) -> Vec<AcceptorPlace> {
        let slots = (0..).zip(&self.slots);
        slots.filter(|(_, it)| it.peer.is_some()).map(|(slot, it)| (slot, it.generation)).collect()
    }

    /// The connections whose gates are closed.
    pub fn shut_out(&self) -> Vec<AcceptorPlace> {
        let is_shut_out = |place: &AcceptorPlace| match self.peer(*place).map(|peer| &peer.state) {
            Some(ListenerSlotState::Admitted(admitted)) => admitted.gate().enter().is_none(),
            _ => false,
        };
        self.places().into_iter().filter(is_shut_out).collect()
    }

    /// Continues a connection's handshake after an event on its socket, if the handshake is not
    /// over.
    pub fn hear(&mut self, place: AcceptorPlace) -> GreetingState {
        loop {
            let now_ns = self.listener.clock.now_ns();
            let Some(peer) = self.peer_mut(place) else { return GreetingState::Ended };
            let ListenerSlotState::Handshake { responder, gather } = &mut peer.state else {
                return GreetingState::Admitted;
            };
            let message = match next_message(&mut peer.socket, gather) {
                SocketRead::Message(message) => message,
                SocketRead::Nothing => return GreetingState::Pending,
                SocketRead::End => break,
            };
            match responder.receive(&message, now_ns) {
                // The send buffer is empty, so it has room for a message. If not, close the
                // connection.
                Ok(ResponderStep::Send(answer)) => {
                    if peer.socket.write_all(&answer).is_err() {
                        break;
                    }
                }
                Ok(ResponderStep::Proven { peer, fences }) => {
                    return GreetingState::Proven(peer, fences);
                }
                Err(error) => {
                    // Count first: when a client reads the refusal, it must already be counted.
                    self.listener.count_refused();
                    if let (Some(refusal), Some(peer)) = (error.refusal(), self.peer_mut(place)) {
                        let _ = peer.socket.write(&refusal.message());
                    }
                    break;
                }
            }
        }
        self.close(place);
        GreetingState::Ended
    }

    /// Admits a peer that has proven itself. Returns its gate and the fence count for its welcome.
    /// By then, everything that an earlier connection of this peer sent has been applied or never
    /// will be. If the peer is refused, its connection has ended.
    pub fn admit(
        &mut self,
        place: AcceptorPlace,
        peer: PeerIdentity,
        fences: u64,
    ) -> Option<(Arc<ConnectionGate>, u64)> {
        match self.listener.gates.admit(peer, fences) {
            Ok(admitted) => Some(admitted),
            Err(refusal) => {
                self.listener.count_refused();
                if let Some(peer) = self.peer_mut(place) {
                    let _ = peer.socket.write(&refusal.message());
                }
                self.close(place);
                None
            }
        }
    }

    /// Sends the welcome to an admitted peer. Returns whether the connection is still open.
    pub fn welcome(&mut self, place: AcceptorPlace, fences: u64, admitted: C) -> bool {
        let welcome = match self.peer(place).map(|peer| &peer.state) {
            Some(ListenerSlotState::Handshake { responder, .. }) => responder.welcome(fences),
            _ => return false,
        };
        // Count before the client sees the welcome.
        self.listener.welcomed.fetch_add(1, Ordering::Relaxed);
        let Some(peer) = self.peer_mut(place) else { return false };
        let welcomed = peer.socket.write_all(&welcome).is_ok();
        peer.state = ListenerSlotState::Admitted(admitted);
        if !welcomed {
            self.close(place);
        }
        welcomed
    }

    /// A connection with an admitted peer.
    pub fn admitted(&mut self, place: AcceptorPlace) -> Option<(&mut TcpStream, &mut C)> {
        let peer = self.peer_mut(place)?;
        match &mut peer.state {
            ListenerSlotState::Handshake { .. } => None,
            ListenerSlotState::Admitted(admitted) => Some((&mut peer.socket, admitted)),
        }
    }

    /// Changes the events that a connection is watched for.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn watch_for(&self, place: AcceptorPlace, flags: EventFlags) -> io::Result<()> {
        let Some(peer) = self.peer(place) else { return Ok(()) };
        let data = EventData::new_u64(token_of(place));
        Ok(epoll::modify(&self.epoll, &peer.socket, data, flags)?)
    }
}

/// Starts a thread, and waits until it runs.
///
/// # Errors
/// The operating system's error, which says that the process or its user has too many threads.
pub fn start_thread(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (begun, has_begun) = mpsc::channel::<()>();
    let begin = move || {
        drop(begun);
        body();
    };
    let thread = std::thread::Builder::new().name(name).spawn(begin).map_err(|error| {
        let text =
            format!("cannot start a thread: {error} (see the limits ulimit -u and pids.max)");
        io::Error::new(error.kind(), text)
    })?;
    // A new thread still needs memory before it runs, and ends the process if there is none. The
    // memory for another thread is much more, so the last one that can be started has enough.
    let _ = has_begun.recv();
    Ok(thread)
}

/// The threads of a server.
#[derive(Debug, Default)]
pub struct ListenerThreads(Mutex<Vec<JoinHandle<()>>>);

impl ListenerThreads {
    /// Starts a thread.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn start(&self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = start_thread(name, body)?;
        lock(&self.0).push(thread);
        Ok(())
    }

    /// Joins all threads; they must have been told to stop.
    ///
    /// # Panics
    /// If one of them has panicked, unless the caller is panicking already.
    pub fn join(&self) {
        for thread in lock(&self.0).drain(..) {
            if thread.join().is_err() && !std::thread::panicking() {
                panic!("a thread of a server has panicked");
            }
        }
    }
}
