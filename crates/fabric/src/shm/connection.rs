//! An endpoint's connection to one memory server: the gate before its verbs, and the rings for its calls.
//!
//! *Invariants*: C1. a call in `calls` awaits its reply; one whose future was dropped does not, but its request goes on
//! all the same (F8). C2. requests that found the ring full wait in `backlog`, in order and at most as many as
//! the endpoint's depth; every reply makes room, so whoever handles replies sends them after. C3. a
//! connection that was lost stays lost: its gate is closed and its calls have ended.
//!
//! *Thread safety*: the endpoint's thread.

use super::ShmError;
use super::gate::Gate;
use super::process::Listening;
use super::ring::{Consumer, Direction, Garbage, Kind, Producer};
use super::socket::{self, Packet};
use crate::clock::Clock;
use crate::handshake::{
    HandshakeError, Identity, Initiator, InitiatorStep, NO_FENCES, Nonce, Role, Token, Wanted,
};
use crate::sync::Arc;
use crate::{FabricError, MAX_MESSAGE_BYTES, Message, Region, ServerId, Uncertainty};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::task::Waker;

/// What a connection begins with.
pub(super) struct Hello<'a> {
    pub(super) server: ServerId,
    pub(super) path: &'a Path,
    pub(super) token: &'a Token,
    pub(super) me: Identity,
    pub(super) timeout_ns: u64,
}

/// A connection that the server has let in.
pub(super) struct Opened {
    pub(super) socket: OwnedFd,
    pub(super) peer: Identity,
    pub(super) number: u64,
    pub(super) file: OwnedFd,
    pub(super) bytes: u64,
}

/// Connects, shows the token, and asks for what this connection is for. Blocks its thread, but not beyond the deadline.
pub(super) fn greet(hello: &Hello<'_>, purpose: Packet, clock: &Clock) -> Result<Opened, ShmError> {
    let server = hello.server;
    let deadline_ns = clock.now_ns().saturating_add(hello.timeout_ns);
    let gone = |errno: Errno| match errno {
        Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE | Errno::NOENT => {
            ShmError::Gone(server)
        }
        Errno::AGAIN => ShmError::TimedOut(server), // nobody accepts connections
        errno => errno.into(),
    };
    let wait = |socket: &OwnedFd| {
        let left_ns = deadline_ns.saturating_sub(clock.now_ns());
        if left_ns == 0 {
            return Err(ShmError::TimedOut(server));
        }
        socket::wait_readable(socket, left_ns).map_err(gone)
    };
    let socket = socket::connect_to(hello.path).map_err(gone)?;
    let wanted = Wanted { role: Role::MemoryServer, number: server.number() };
    let nonce = Nonce::draw()?;
    let mut initiator =
        Initiator::new(hello.token, hello.me, NO_FENCES, wanted, nonce, deadline_ns);
    socket::send_handshake(&socket, initiator.hello()).map_err(gone)?;
    let peer = loop {
        wait(&socket)?;
        let Some(received) = socket::receive(&socket).map_err(gone)? else { continue };
        let step = received.handshake().ok_or(HandshakeError::Garbage);
        let step = step.and_then(|message| initiator.receive(message, clock.now_ns()));
        match step.map_err(|error| ShmError::Handshake { server, error })? {
            InitiatorStep::Send(message) => {
                socket::send_handshake(&socket, &message).map_err(gone)?
            }
            InitiatorStep::Open { peer, .. } => break peer,
        }
    };
    socket::send_packet(&socket, purpose).map_err(gone)?;
    loop {
        wait(&socket)?;
        match socket::receive_file(&socket).map_err(gone)? {
            None => {}
            Some((Packet::Opened { number, bytes }, Some(file))) => {
                return Ok(Opened { socket, peer, number, file, bytes });
            }
            Some(_) => {
                return Err(ShmError::Handshake { server, error: HandshakeError::Garbage });
            }
        }
    }
}

/// Where a call finds its reply.
#[derive(Debug, Default)]
pub(super) struct CallSlot {
    pub(super) outcome: RefCell<Option<Result<Message, FabricError>>>,
    pub(super) waker: RefCell<Option<Waker>>,
}

impl CallSlot {
    fn end(&self, outcome: Result<Message, FabricError>) {
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) server: ServerId,
    pub(super) region: Arc<Region>,
    pub(super) gate: Arc<Gate>,
    process: Arc<Listening>,
    pub(super) socket: OwnedFd,
    rings: RefCell<Rings>,
    calls: RefCell<BTreeMap<u64, Rc<CallSlot>>>,
    next_call: Cell<u64>,
}

#[derive(Debug)]
struct Rings {
    requests: Producer,
    replies: Consumer,
    backlog: VecDeque<(u64, Message)>,
    most: usize,
}

impl Connection {
    /// Opens the connection of an endpoint.
    pub(super) fn open(
        process: &Arc<Listening>,
        server: ServerId,
        me: Identity,
    ) -> Result<Self, ShmError> {
        let known = &process.servers[server.index()];
        let hello = Hello {
            server,
            path: &known.path,
            token: &process.token,
            me,
            timeout_ns: process.config.timeout_ns,
        };
        let purpose = Packet::OpenEndpoint { process: known.process };
        let opened = greet(&hello, purpose, &process.clock)?;
        if opened.peer.epoch != known.epoch {
            // Another server sits there now; the memory that we have mapped is nobody's.
            process.lose(server);
            return Err(ShmError::Gone(server));
        }
        let bytes = usize::try_from(opened.bytes).unwrap_or(usize::MAX);
        if bytes != super::ring::FILE_BYTES {
            return Err(ShmError::Handshake { server, error: HandshakeError::Garbage });
        }
        let file = Arc::new(Region::map_memfd(opened.file, bytes)?);
        let rings = Rings {
            requests: Producer::new(&file, Direction::Requests),
            replies: Consumer::new(&file, Direction::Replies),
            backlog: VecDeque::new(),
            most: process.config.depth,
        };
        Ok(Self {
            server,
            region: Arc::clone(&known.region),
            gate: process.register(server, me.number, opened.number),
            process: Arc::clone(process),
            socket: opened.socket,
            rings: RefCell::new(rings),
            calls: RefCell::default(),
            next_call: Cell::new(0),
        })
    }

    /// Sends a request, or keeps it until there is room; where its reply will be, and its number.
    pub(super) fn call(&self, request: Message) -> Result<(u64, Rc<CallSlot>), FabricError> {
        let mut rings = self.rings.borrow_mut();
        if rings.backlog.len() >= rings.most {
            return Err(FabricError::QueueFull { depth: rings.most });
        }
        let id = self.next_call.get();
        rings.backlog.push_back((id, request));
        let sent = rings.send(&self.socket);
        drop(rings);
        if sent.is_err() {
            self.lose();
            return Err(self.lost());
        }
        self.next_call.set(id + 1);
        let slot = Rc::new(CallSlot::default());
        self.calls.borrow_mut().insert(id, Rc::clone(&slot));
        Ok((id, slot))
    }

    /// Nobody waits for this call any more.
    pub(super) fn forget(&self, call: u64) {
        self.calls.borrow_mut().remove(&call);
    }

    /// Takes the replies that are there; says whether there were any.
    pub(super) fn take_replies(&self) -> bool {
        let mut any = false;
        let mut message = Message::new();
        let mut rings = self.rings.borrow_mut();
        let taken = loop {
            match rings.replies.pop(&mut message) {
                Ok(None) => break rings.after_replies(&self.socket, any),
                Err(garbage) => break Err(garbage),
                Ok(Some((id, kind))) => {
                    any = true;
                    let Some(slot) = self.calls.borrow_mut().remove(&id) else { continue };
                    slot.end(match kind {
                        Kind::Message => Ok(std::mem::take(&mut message)),
                        Kind::TooLarge(bytes) => Err(FabricError::MessageTooLarge {
                            bytes: bytes.max(MAX_MESSAGE_BYTES),
                        }),
                    });
                }
            }
        };
        drop(rings);
        if taken.is_err() {
            self.lose();
            return true;
        }
        any
    }

    /// Whether the thread may sleep, as far as this connection is concerned; the server knows then.
    pub(super) fn may_sleep(&self) -> bool {
        self.calls.borrow().is_empty() || self.rings.borrow().replies.may_sleep()
    }

    /// Looks at the socket, which has something to say; whether it will have more.
    pub(super) fn hear(&self) -> bool {
        match socket::receive(&self.socket) {
            Ok(_) => true,
            Err(_) => {
                // Replies that came before the end count.
                self.take_replies();
                self.lose();
                false
            }
        }
    }

    pub(super) fn lost(&self) -> FabricError {
        FabricError::Indeterminate { server: self.server, why: Uncertainty::ConnectionLost }
    }

    /// Nothing is sent any more, and nothing awaited.
    fn lose(&self) {
        self.gate.close();
        self.rings.borrow_mut().backlog.clear();
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        for slot in calls.into_values() {
            slot.end(Err(self.lost()));
        }
    }
}

impl Rings {
    /// Moves requests from the backlog to the ring, as many as fit.
    fn send(&mut self, socket: &OwnedFd) -> Result<(), Garbage> {
        let mut sent = false;
        while let Some((id, request)) = self.backlog.front() {
            if !self.requests.push(*id, Kind::Message, request)? {
                break;
            }
            sent = true;
            self.backlog.pop_front();
        }
        if sent && self.requests.must_wake() {
            socket::wake(socket);
        }
        Ok(())
    }

    fn after_replies(&mut self, socket: &OwnedFd, any: bool) -> Result<(), Garbage> {
        if any && self.replies.must_wake() {
            socket::wake(socket);
        }
        self.send(socket)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.process.unregister(&self.gate);
    }
}
