//! What every listener does before it serves: accepting, the handshake, the bounds on both, and who
//! is in.
//!
//! A [`Listener`] is what the threads of a server share; each has an [`Acceptor`] of its own, with
//! an epoll instance and the connections that fell to it. A thread accepts by itself if its
//! acceptor has the listening socket: one of them may have it and hand the connections out, or
//! each.
//!
//! *Invariants*: A1. connections, those among them that are not settled yet, and the memory of each
//! are bounded: until a peer has proven itself, it costs one message. A2. what is no message of the
//! handshake closes its connection, and nothing else. A3. a place names one connection: what comes
//! late for one that has ended finds none.
//!
//! *Thread safety*: a [`Listener`] is for any number of threads, an [`Acceptor`] belongs to one.

use crate::clock::Clock;
use crate::endpoint::timespec;
use crate::gates::{Gate, Gates};
use crate::handshake::{Gather, Identity, Nonce, Refusal, Responder, ResponderStep, Role, Token};
use crate::sockets::{Heard, next_message, prepare_socket};
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, lock};
use crate::wake::WakeFd;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// What events carry that are of no connection.
pub const LISTENER: u64 = u64::MAX;
/// The thread's [`WakeFd`].
pub const WAKE: u64 = u64::MAX - 1;
/// Events that are taken, and connections that are accepted, at a time.
const EVENTS: usize = 256;
/// After an error that says that there is too little of something, nothing is accepted for so long.
const ACCEPT_PAUSE_NS: u64 = 20_000_000;

/// Which connection of an acceptor: its slot, and the generation of what is in it.
pub type Place = (u32, u32);

/// What events of a connection carry.
pub fn token_of((slot, generation): Place) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

/// The place that an event is about, if it is about a connection.
pub fn place_of(token: u64) -> Place {
    (token as u32, (token >> 32) as u32)
}

/// Which roles a listener lets in, and how many connections.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The roles that it lets in.
    pub accepts: &'static [Role],
    /// How many connections there may be.
    pub connections: usize,
    /// How many of a thread's connections may be unsettled: one more closes the oldest.
    pub half_open: usize,
    /// The longest that it may take to settle, in nanoseconds.
    pub handshake_timeout_ns: u64,
}

/// What the threads of a server share.
#[derive(Debug)]
pub struct Listener {
    /// The server.
    pub identity: Identity,
    /// Who is in.
    pub gates: Gates,
    /// The server's clock.
    pub clock: Clock,
    token: Token,
    bounds: Bounds,
    connections: AtomicUsize,
    welcomed: AtomicU64,
    refused: AtomicU64,
}

impl Listener {
    /// One without connections.
    pub fn new(identity: Identity, token: &Token, bounds: Bounds) -> Self {
        Self {
            identity,
            gates: Gates::default(),
            clock: Clock::start(),
            token: token.clone(),
            bounds,
            connections: AtomicUsize::new(0),
            welcomed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Connections that are open now, handshakes included.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed) as u64
    }

    /// Connections that were let in.
    pub fn welcomed(&self) -> u64 {
        self.welcomed.load(Ordering::Relaxed)
    }

    /// Connections that were not: refused, evicted or too slow.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection whose peer was let in.
pub trait Admitted: Debug {
    /// Its right to have requests carried out.
    fn gate(&self) -> &Arc<Gate>;

    /// Whether nothing has to follow in time any more.
    fn is_settled(&self) -> bool {
        true
    }
}

#[derive(Debug)]
enum State<C> {
    Handshake { responder: Box<Responder>, gather: Gather },
    Admitted(C),
}

#[derive(Debug)]
struct Peer<C> {
    socket: TcpStream,
    /// When it must be settled.
    deadline_ns: u64,
    state: State<C>,
}

#[derive(Debug)]
struct Slot<C> {
    generation: u32,
    peer: Option<Peer<C>>,
}

/// Where a connection is that has something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// In its handshake.
    Pending,
    /// Its peer has proven itself, and is to be let in.
    Proven(Identity, u64),
    /// Let in.
    Admitted,
    /// It has ended, or had before.
    Ended,
}

/// One thread's part of a listener.
#[derive(Debug)]
pub struct Acceptor<C> {
    epoll: OwnedFd,
    socket: Option<TcpListener>,
    /// When the socket is looked at again, if it is not.
    accept_again_ns: Option<u64>,
    listener: Arc<Listener>,
    slots: Vec<Slot<C>>,
    vacant: Vec<u32>,
    /// Connections that began their handshake, the oldest first; some have settled since.
    half_open: VecDeque<Place>,
}

impl<C: Admitted> Acceptor<C> {
    /// One without connections, which accepts at `socket`, if it has one, and is woken by `wake`.
    ///
    /// # Errors
    /// What the operating system says.
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

    /// Waits until something happens or a deadline comes; what has happened, each with its token.
    pub fn wait(&self, events: &mut Vec<Event>) {
        let timeout = self.timeout().map(timespec);
        events.clear();
        events.reserve(EVENTS);
        let spare = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("epoll fails: {errno}"),
        }
    }

    /// How long nothing needs to be done, in nanoseconds, if no socket has anything.
    fn timeout(&self) -> Option<u64> {
        let deadline = self.half_open.front().and_then(|&place| self.deadline_ns(place));
        let next = [deadline, self.accept_again_ns].into_iter().flatten().min()?;
        Some(next.saturating_sub(self.listener.clock.now_ns()) + 1)
    }

    fn peer(&self, (slot, generation): Place) -> Option<&Peer<C>> {
        let slot = self.slots.get(slot as usize)?;
        slot.peer.as_ref().filter(|_| slot.generation == generation)
    }

    fn peer_mut(&mut self, (slot, generation): Place) -> Option<&mut Peer<C>> {
        let slot = self.slots.get_mut(slot as usize)?;
        slot.peer.as_mut().filter(|_| slot.generation == generation)
    }

    /// When a connection must be settled, if it is not.
    fn deadline_ns(&self, place: Place) -> Option<u64> {
        let peer = self.peer(place)?;
        match &peer.state {
            State::Admitted(admitted) if admitted.is_settled() => None,
            _ => Some(peer.deadline_ns),
        }
    }

    /// Closes what took too long, and looks at the listening socket again.
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

    /// Accepts connections and counts them. `keep` gives back those that stay with this thread, and
    /// hands over the others, to be adopted elsewhere.
    pub fn accept(&mut self, mut keep: impl FnMut(TcpStream) -> Option<TcpStream>) {
        // Not for ever: those who are connected already want their turn.
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
                let _ = (&socket).write(&Refusal::Full.message());
                continue;
            }
            if let Some(socket) = keep(socket) {
                self.adopt(socket);
            }
        }
    }

    /// Takes a connection that has been counted already.
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
            self.slots.push(Slot { generation: 0, peer: None });
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
        let state = State::Handshake { responder, gather: Gather::default() };
        self.slots[slot as usize].peer = Some(Peer { socket, deadline_ns, state });
        self.half_open.push_back(place);
    }

    fn refuse(&mut self, place: Place) {
        self.listener.count_refused();
        self.close(place);
    }

    /// Ends a connection; what it was, if its peer was in.
    pub fn close(&mut self, place: Place) -> Option<C> {
        self.peer(place)?;
        let slot = &mut self.slots[place.0 as usize];
        let peer = slot.peer.take()?;
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> 1);
        self.vacant.push(place.0);
        self.listener.connections.fetch_sub(1, Ordering::AcqRel);
        match peer.state {
            State::Handshake { .. } => None,
            State::Admitted(admitted) => {
                self.listener.gates.leave(admitted.gate());
                Some(admitted)
            }
        }
    }

    /// All connections.
    pub fn places(&self) -> Vec<Place> {
        let slots = (0..).zip(&self.slots);
        slots.filter(|(_, it)| it.peer.is_some()).map(|(slot, it)| (slot, it.generation)).collect()
    }

    /// The connections whose gates have been closed.
    pub fn shut_out(&self) -> Vec<Place> {
        let is_shut_out = |place: &Place| match self.peer(*place).map(|peer| &peer.state) {
            Some(State::Admitted(admitted)) => admitted.gate().enter().is_none(),
            _ => false,
        };
        self.places().into_iter().filter(is_shut_out).collect()
    }

    /// Something has happened on a socket: goes on with the handshake, if that is where the
    /// connection is.
    pub fn hear(&mut self, place: Place) -> Greeting {
        loop {
            let now_ns = self.listener.clock.now_ns();
            let Some(peer) = self.peer_mut(place) else { return Greeting::Ended };
            let State::Handshake { responder, gather } = &mut peer.state else {
                return Greeting::Admitted;
            };
            let message = match next_message(&mut peer.socket, gather) {
                Heard::Message(message) => message,
                Heard::Nothing => return Greeting::Pending,
                Heard::End => break,
            };
            match responder.receive(&message, now_ns) {
                // A socket that has sent nothing yet has room for a message: if not, it is closed.
                Ok(ResponderStep::Send(answer)) => {
                    if peer.socket.write_all(&answer).is_err() {
                        break;
                    }
                }
                Ok(ResponderStep::Proven { peer, fences }) => {
                    return Greeting::Proven(peer, fences);
                }
                Err(error) => {
                    // Counted first: who reads the refusal finds it counted.
                    self.listener.count_refused();
                    if let (Some(refusal), Some(peer)) = (error.refusal(), self.peer_mut(place)) {
                        let _ = peer.socket.write(&refusal.message());
                    }
                    break;
                }
            }
        }
        self.close(place);
        Greeting::Ended
    }

    /// Lets a peer in that has proven itself: its gate, and what its welcome says. Everything that
    /// an earlier connection of it brought has been applied or will never be. If it is refused, its
    /// connection has ended.
    pub fn admit(&mut self, place: Place, peer: Identity, fences: u64) -> Option<(Arc<Gate>, u64)> {
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

    /// Welcomes a peer that was let in. Whether its connection goes on.
    pub fn welcome(&mut self, place: Place, fences: u64, admitted: C) -> bool {
        let welcome = match self.peer(place).map(|peer| &peer.state) {
            Some(State::Handshake { responder, .. }) => responder.welcome(fences),
            _ => return false,
        };
        // Counted before anybody is told.
        self.listener.welcomed.fetch_add(1, Ordering::Relaxed);
        let Some(peer) = self.peer_mut(place) else { return false };
        let welcomed = peer.socket.write_all(&welcome).is_ok();
        peer.state = State::Admitted(admitted);
        if !welcomed {
            self.close(place);
        }
        welcomed
    }

    /// A connection whose peer was let in.
    pub fn admitted(&mut self, place: Place) -> Option<(&mut TcpStream, &mut C)> {
        let peer = self.peer_mut(place)?;
        match &mut peer.state {
            State::Handshake { .. } => None,
            State::Admitted(admitted) => Some((&mut peer.socket, admitted)),
        }
    }

    /// Has a connection reported for other reasons.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn watch_for(&self, place: Place, flags: EventFlags) -> io::Result<()> {
        let Some(peer) = self.peer(place) else { return Ok(()) };
        let data = EventData::new_u64(token_of(place));
        Ok(epoll::modify(&self.epoll, &peer.socket, data, flags)?)
    }
}

/// The threads of a server.
#[derive(Debug, Default)]
pub struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl Threads {
    /// Starts one.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn start(&self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        lock(&self.0).push(thread);
        Ok(())
    }

    /// Waits until all have ended, which they have been told to.
    ///
    /// # Panics
    /// If one of them has panicked, and the caller has not.
    pub fn join(&self) {
        for thread in lock(&self.0).drain(..) {
            if thread.join().is_err() && !std::thread::panicking() {
                panic!("a thread of a server has panicked");
            }
        }
    }
}
