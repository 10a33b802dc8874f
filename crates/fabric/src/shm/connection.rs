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
    /// How often it was reset.
    pub(super) resets: Cell<u64>,
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
            resets: Cell::new(0),
        })
    }

    /// Sends a request, or keeps it until there is room; where its reply will be, and its number.
    pub(super) fn call(&self, request: Message) -> Result<(u64, Rc<CallSlot>), FabricError> {
        if self.gate.is_closed() {
            return Err(self.lost());
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Provider;
    use crate::conformance::TestService;
    use crate::handshake::Refusal;
    use crate::shm::{ShmCluster, ShmConfig};

    fn me(role: Role) -> Identity {
        Identity { role, number: 3, epoch: 1 }
    }

    fn cluster() -> ShmCluster {
        ShmConfig::default().start(vec![TestService::new(4096)])
    }

    fn connection(cluster: &ShmCluster) -> Connection {
        Connection::open(&cluster.process, ServerId::new(0), me(Role::ComputeServer)).unwrap()
    }

    /// The outcome of a call.
    fn outcome(connection: &Connection, slot: &CallSlot) -> Result<Message, FabricError> {
        loop {
            connection.take_replies();
            if let Some(outcome) = slot.outcome.take() {
                return outcome;
            }
            if connection.may_sleep() && socket::wait_readable(&connection.socket, 1 << 40).unwrap()
            {
                connection.hear();
            }
        }
    }

    fn echo(connection: &Connection) -> Result<Message, FabricError> {
        let (_, slot) = connection.call(TestService::echo(b"hello"))?;
        outcome(connection, &slot)
    }

    /// Each of these costs the one who does it the connection, and nobody else anything.
    #[test]
    fn a_ring_that_makes_no_sense_closes_its_endpoint_and_no_other() {
        let cluster = cluster();
        let bystander = connection(&cluster);
        type Vandalism = fn(&mut Producer);
        let vandalisms: [(&str, Vandalism); 6] = [
            ("a tail far ahead", |ring| ring.push_raw(0, u64::MAX / 2)),
            ("a tail that goes back", |ring| ring.push_raw(0, u64::MAX)),
            ("an unknown kind", |ring| ring.push_raw(7 << 48, 2)),
            ("a reply among the requests", |ring| ring.push_raw(1 << 48, 2)),
            ("a request longer than any", |ring| {
                ring.push_raw(MAX_MESSAGE_BYTES as u64 + 1, 30_000)
            }),
            ("a request longer than the ring has", |ring| ring.push_raw(100, 3)),
        ];
        for (what, vandalism) in vandalisms {
            let vandal = connection(&cluster);
            assert_eq!(&echo(&vandal).unwrap()[..], b"hello");
            vandalism(&mut vandal.rings.borrow_mut().requests);
            socket::wake(&vandal.socket);
            // Whoever awaits a reply there learns of it.
            let slot = Rc::new(CallSlot::default());
            vandal.calls.borrow_mut().insert(u64::MAX, Rc::clone(&slot));
            assert_eq!(outcome(&vandal, &slot), Err(vandal.lost()), "{what}");
            assert!(vandal.gate.is_closed());
            assert_eq!(&echo(&bystander).unwrap()[..], b"hello", "after {what}");
        }
        // Whatever comes of this one, it is not the bystander's business.
        let vandal = connection(&cluster);
        for _ in 0..100 {
            vandal.rings.borrow().requests.flip_everything();
            socket::wake(&vandal.socket);
        }
        assert_eq!(&echo(&bystander).unwrap()[..], b"hello");
    }

    #[test]
    fn a_server_that_makes_no_sense_is_not_listened_to() {
        let cluster = cluster();
        let (connection, bystander) = (connection(&cluster), connection(&cluster));
        assert_eq!(&echo(&connection).unwrap()[..], b"hello");
        connection.rings.borrow().requests.flip_everything();
        assert!(connection.take_replies());
        assert!(connection.gate.is_closed());
        assert_eq!(echo(&connection), Err(connection.lost()));
        assert_eq!(&echo(&bystander).unwrap()[..], b"hello");
    }

    fn hello<'a>(cluster: &'a ShmCluster, role: Role) -> Hello<'a> {
        let server = &cluster.process.servers[0];
        let (path, token) = (&server.path, &cluster.process.token);
        Hello { server: server.id, path, token, me: me(role), timeout_ns: 1 << 40 }
    }

    #[test]
    fn packets_that_make_no_sense_close_their_connection_and_no_other() {
        let cluster = cluster();
        let process = cluster.process.servers[0].process;
        let bystander = connection(&cluster);
        let path = &cluster.process.servers[0].path;
        let closed = |socket: &OwnedFd| {
            // A refusal may come first.
            while socket::wait_readable(socket, 1 << 40).unwrap() {
                if socket::receive(socket).is_err() {
                    return;
                }
            }
        };
        let gone =
            |role, purpose| match greet(&hello(&cluster, role), purpose, &cluster.process.clock) {
                Ok(_) => panic!("{purpose:?} as {role}"),
                Err(error) => assert!(matches!(error, ShmError::Gone(_)), "{purpose:?}: {error}"),
            };
        for packet in [Packet::OpenProcess, Packet::Stopped { fence: 0 }] {
            let socket = socket::connect_to(path).unwrap();
            socket::send_packet(&socket, packet).unwrap();
            closed(&socket);
        }
        let socket = socket::connect_to(path).unwrap();
        socket::send_handshake(&socket, &Refusal::Full.message()).unwrap();
        closed(&socket);
        gone(Role::Client, Packet::OpenEndpoint { process });
        gone(Role::ComputeServer, Packet::OpenProcess);
        gone(Role::ComputeServer, Packet::OpenEndpoint { process: process + 1 });
        gone(Role::Client, Packet::Fence { request: 1, compute_server: 1 });
        let other =
            greet(&hello(&cluster, Role::Client), Packet::OpenProcess, &cluster.process.clock);
        let other = other.unwrap();
        socket::send_packet(&other.socket, Packet::Fenced { request: 1 }).unwrap();
        closed(&other.socket);
        assert_eq!(&echo(&bystander).unwrap()[..], b"hello");
        assert!(!cluster.process.is_lost(ServerId::new(0)));
    }

    /// Those who connect and say nothing are turned away in time, and keep nobody out for longer.
    #[test]
    fn silent_connections_are_bounded_in_number_and_time() {
        let mut config = ShmConfig::default();
        config.server.handshake_ns = 100_000_000;
        let cluster = config.start(vec![TestService::new(4096)]);
        let path = &cluster.process.servers[0].path;
        let silent: Vec<OwnedFd> = (0..100).map(|_| socket::connect_to(path).unwrap()).collect();
        for socket in &silent {
            assert!(socket::wait_readable(socket, 1 << 40).unwrap());
            assert!(socket::receive(socket).is_err(), "it is closed");
        }
        assert_eq!(&echo(&connection(&cluster)).unwrap()[..], b"hello");
    }
}
