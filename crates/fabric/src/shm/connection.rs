//! An endpoint's connection to one memory server: the gate in front of its verbs, and the rings for
//! its calls.
//!
//! *Invariants*: shm.C1. A request proceeds whether or not its future waits (F8). shm.C2. Requests
//! that found the ring full wait in `backlog`, in order and at most as many as the endpoint's
//! depth; every reply makes room, so taking replies sends waiting requests. shm.C3. A connection
//! that was lost stays lost: its gate is closed and its calls have ended.
//!
//! *Thread safety*: the endpoint's thread.

use super::ShmError;
use super::endpoint::Shm;
use super::gate::VerbGate;
use super::process::ListeningProcess;
use super::ring::{BadRing, Consumer, Producer, RingDirection, RingRecordKind};
use super::socket::{self, SocketPacket};
use crate::body::OpBody;
use crate::clock::ClusterClock;
use crate::endpoint::{LinkContext, OpSlot, OpSlots, ServerLink, lost};
use crate::handshake::{
    ExpectedPeer, HandshakeError, Initiator, InitiatorStep, NO_FENCES, Nonce, PeerIdentity,
    PeerRole, Token,
};
use crate::sync::Arc;
use crate::{FabricError, MAX_MESSAGE_BYTES, Message, Region, ServerId};
use rustix::event::epoll;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Parameters of a new connection.
pub(super) struct ShmHello<'a> {
    pub(super) server: ServerId,
    pub(super) path: &'a Path,
    pub(super) token: &'a Token,
    pub(super) me: PeerIdentity,
    pub(super) timeout_ns: u64,
}

/// A connection that the server has admitted.
pub(super) struct AdmittedConnection {
    pub(super) socket: OwnedFd,
    pub(super) peer: PeerIdentity,
    pub(super) number: u64,
    pub(super) file: OwnedFd,
    pub(super) bytes: u64,
}

/// Connects, proves the token, and states the purpose of the connection. Blocks the calling thread,
/// at most until the deadline.
pub(super) fn greet(
    hello: &ShmHello<'_>,
    purpose: SocketPacket,
    clock: &ClusterClock,
) -> Result<AdmittedConnection, ShmError> {
    let server = hello.server;
    let deadline_ns = clock.now_ns().saturating_add(hello.timeout_ns);
    let gone = |errno: Errno| match errno {
        Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE | Errno::NOENT => {
            ShmError::Gone(server)
        }
        Errno::AGAIN => ShmError::TimedOut(server), // the server does not accept connections
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
    let wanted = ExpectedPeer { role: PeerRole::MemoryServer, number: server.number() };
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
            Some((SocketPacket::Opened { number, bytes }, Some(file))) => {
                return Ok(AdmittedConnection { socket, peer, number, file, bytes });
            }
            Some(_) => {
                return Err(ShmError::Handshake { server, error: HandshakeError::Garbage });
            }
        }
    }
}

/// An endpoint's access to one server's memory, for verbs.
#[derive(Debug)]
pub(super) struct ServerMemory {
    pub(super) region: Arc<Region>,
    pub(super) gate: Arc<VerbGate>,
    /// Number of times the connection was reset.
    pub(super) resets: Cell<u64>,
}

/// An endpoint's access to one server's service, for calls.
#[derive(Debug)]
pub(super) struct CallConnection {
    server: ServerId,
    gate: Arc<VerbGate>,
    process: Arc<ListeningProcess>,
    socket: OwnedFd,
    rings: ConnectionRings,
    /// Requests without a reply yet.
    awaited: usize,
}

#[derive(Debug)]
struct ConnectionRings {
    requests: Producer,
    replies: Consumer,
    backlog: VecDeque<(u64, Message)>,
    most: usize,
}

impl CallConnection {
    /// Opens the connection of an endpoint.
    pub(super) fn open(
        process: &Arc<ListeningProcess>,
        server: ServerId,
        me: PeerIdentity,
    ) -> Result<Self, ShmError> {
        let known = &process.servers[server.index()];
        let hello = ShmHello {
            server,
            path: &known.path,
            token: &process.token,
            me,
            timeout_ns: process.config.timeout_ns,
        };
        let purpose = SocketPacket::OpenEndpoint { process: known.process };
        let opened = greet(&hello, purpose, &process.clock)?;
        if opened.peer.epoch != known.epoch {
            // Another server listens there now; the memory that this process has mapped belongs to
            // no server.
            process.lose(server);
            return Err(ShmError::Gone(server));
        }
        let bytes = usize::try_from(opened.bytes).unwrap_or(usize::MAX);
        if bytes != super::ring::FILE_BYTES {
            return Err(ShmError::Handshake { server, error: HandshakeError::Garbage });
        }
        let file = Arc::new(Region::map_memfd(opened.file, bytes)?);
        let rings = ConnectionRings {
            requests: Producer::new(&file, RingDirection::Requests),
            replies: Consumer::new(&file, RingDirection::Replies),
            backlog: VecDeque::new(),
            most: process.config.depth,
        };
        let gate = process.register(server, me.number, opened.number);
        let process = Arc::clone(process);
        Ok(Self { server, gate, process, socket: opened.socket, rings, awaited: 0 })
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The state that the endpoint's verbs need.
    pub(super) fn reach(&self) -> ServerMemory {
        let region = Arc::clone(&self.process.servers[self.server.index()].region);
        ServerMemory { region, gate: Arc::clone(&self.gate), resets: Cell::new(0) }
    }

    /// Takes the replies in the ring; returns whether there were any.
    fn take_replies(&mut self, slots: &mut OpSlots<()>, context: &LinkContext<'_, Shm>) -> bool {
        let mut any = false;
        let mut message = Message::new();
        let taken = loop {
            match self.rings.replies.pop(&mut message) {
                Ok(None) => break self.rings.after_replies(&self.socket, any),
                Err(garbage) => break Err(garbage),
                Ok(Some((id, kind))) => {
                    any = true;
                    self.awaited = self.awaited.saturating_sub(1);
                    let slot = slots.pending(id).filter(|slot| slot.server == self.server);
                    let Some(OpSlot { body: OpBody::Call(reply), .. }) = slot else { continue };
                    let outcome = match kind {
                        RingRecordKind::Message => {
                            context.resources.counters.count_rpc_reply(message.len());
                            *reply = std::mem::take(&mut message);
                            Ok(())
                        }
                        RingRecordKind::TooLarge(bytes) => Err(FabricError::MessageTooLarge {
                            bytes: bytes.max(MAX_MESSAGE_BYTES),
                        }),
                    };
                    slots.end(id, outcome, context.resources);
                }
            }
        };
        if taken.is_err() {
            self.lose(slots, context);
            return true;
        }
        any
    }

    /// Ends the connection: drops waiting requests and fails outstanding calls.
    fn lose(&mut self, slots: &mut OpSlots<()>, context: &LinkContext<'_, Shm>) {
        self.gate.close();
        self.rings.backlog.clear();
        self.awaited = 0;
        context.give_up_all(slots, self.server, &lost(self.server));
    }
}

/// The link to a server.
#[derive(Debug)]
pub struct ShmLink {
    pub(super) server: ServerId,
    /// `None` if the server could not be reached.
    pub(super) connection: Option<CallConnection>,
}

impl ServerLink<Shm> for ShmLink {
    fn admit(&mut self, is_verb: bool, _: &OpSlots<()>) -> Result<(), FabricError> {
        debug_assert!(!is_verb, "verbs are carried out when they are posted");
        match &self.connection {
            Some(connection) if connection.gate.is_closed() => Err(lost(self.server)),
            Some(CallConnection { rings: ConnectionRings { backlog, most, .. }, .. })
                if backlog.len() >= *most =>
            {
                Err(FabricError::QueueFull { depth: *most })
            }
            Some(_) => Ok(()),
            None => Err(lost(self.server)),
        }
    }

    fn enqueue(&mut self, id: u64, slots: &mut OpSlots<()>, context: &LinkContext<'_, Shm>) {
        let Some(connection) = &mut self.connection else { return };
        let body = slots.pending(id).map(|slot| &mut slot.body);
        let Some(OpBody::Call(request)) = body else { return };
        // The request is sent even if its deadline passes before the ring has room.
        connection.rings.backlog.push_back((id, std::mem::take(request)));
        connection.awaited += 1;
        if connection.rings.send(&connection.socket).is_err() {
            connection.lose(slots, context);
        }
    }

    fn drive(&mut self, slots: &mut OpSlots<()>, context: &LinkContext<'_, Shm>) -> bool {
        self.connection.as_mut().is_some_and(|connection| connection.take_replies(slots, context))
    }

    fn visit(&mut self, slots: &mut OpSlots<()>, context: &LinkContext<'_, Shm>) {
        let Some(connection) = &mut self.connection else { return };
        if socket::receive(&connection.socket).is_err() {
            // Replies that arrived before the end of the connection still count.
            connection.take_replies(slots, context);
            connection.lose(slots, context);
            // Otherwise epoll would keep reporting the end.
            let _ = epoll::delete(&context.reactor.epoll, &connection.socket);
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// If calls are outstanding, announces to the server that this thread is about to sleep.
    fn arm(&mut self) -> bool {
        let awaits = |connection: &&CallConnection| connection.awaited > 0;
        self.connection.as_ref().filter(awaits).is_some_and(|it| !it.rings.replies.may_sleep())
    }

    fn break_off(&mut self, _: &mut OpSlots<()>, _: &LinkContext<'_, Shm>) {}
}

impl ConnectionRings {
    /// Moves requests from the backlog to the ring, as many as fit.
    fn send(&mut self, socket: &OwnedFd) -> Result<(), BadRing> {
        let mut sent = false;
        while let Some((id, request)) = self.backlog.front() {
            if !self.requests.push(*id, RingRecordKind::Message, request)? {
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

    fn after_replies(&mut self, socket: &OwnedFd, any: bool) -> Result<(), BadRing> {
        if any && self.replies.must_wake() {
            socket::wake(socket);
        }
        self.send(socket)
    }
}

impl Drop for CallConnection {
    fn drop(&mut self) {
        self.process.unregister(&self.gate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::TestService;
    use crate::executor::Executor;
    use crate::handshake::HandshakeRefusal;
    use crate::shm::{ShmCluster, ShmConfig, ShmDriver, ShmFabric};
    use crate::{Fabric, Provider};

    const SERVER: ServerId = ServerId::new(0);

    fn me(role: PeerRole) -> PeerIdentity {
        PeerIdentity { role, number: 3, epoch: 1 }
    }

    fn cluster() -> ShmCluster {
        ShmConfig::default().start(vec![TestService::new(4096)])
    }

    struct ShmTestClient {
        driver: ShmDriver,
        fabric: ShmFabric,
    }

    impl ShmTestClient {
        fn of(cluster: &ShmCluster) -> Self {
            let driver = cluster.driver().unwrap();
            let fabric = driver.open(3, 0).unwrap();
            Self { driver, fabric }
        }

        fn echo(&self) -> Result<Message, FabricError> {
            let call = self.fabric.call(SERVER, TestService::echo(b"hello"));
            Executor::new().complete(&self.driver, call).unwrap()
        }

        fn with<T>(&self, act: impl FnOnce(&mut CallConnection) -> T) -> T {
            let with = |link: &mut ShmLink| act(link.connection.as_mut().unwrap());
            self.fabric.0.with_link(SERVER, |link, _, _| with(link)).unwrap()
        }

        fn is_closed(&self) -> bool {
            self.with(|connection| connection.gate.is_closed())
        }
    }

    /// Each of these faults closes the faulty endpoint, and affects no other.
    #[test]
    fn a_ring_that_makes_no_sense_closes_its_endpoint_and_no_other() {
        let cluster = cluster();
        let bystander = ShmTestClient::of(&cluster);
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
            let vandal = ShmTestClient::of(&cluster);
            assert_eq!(&vandal.echo().unwrap()[..], b"hello");
            vandal.with(|connection| {
                vandalism(&mut connection.rings.requests);
                socket::wake(&connection.socket);
                // Its tasks notice after the server has closed its gate.
                assert!(socket::wait_readable(&connection.socket, 1 << 40).unwrap());
            });
            assert_eq!(vandal.echo(), Err(lost(SERVER)), "{what}");
            assert!(vandal.is_closed());
            assert_eq!(&bystander.echo().unwrap()[..], b"hello", "after {what}");
        }
        // Whatever the outcome here, the bystander must not be affected.
        let vandal = ShmTestClient::of(&cluster);
        for _ in 0..100 {
            vandal.with(|connection| {
                connection.rings.requests.flip_everything();
                socket::wake(&connection.socket);
            });
        }
        assert_eq!(&bystander.echo().unwrap()[..], b"hello");
    }

    #[test]
    fn a_server_that_makes_no_sense_is_not_listened_to() {
        let cluster = cluster();
        let (client, bystander) = (ShmTestClient::of(&cluster), ShmTestClient::of(&cluster));
        assert_eq!(&client.echo().unwrap()[..], b"hello");
        client.with(|connection| connection.rings.requests.flip_everything());
        let (advanced, _) = client.fabric.0.drive();
        assert!(advanced && client.is_closed());
        assert_eq!(client.echo(), Err(lost(SERVER)));
        assert_eq!(&bystander.echo().unwrap()[..], b"hello");
    }

    fn hello<'a>(cluster: &'a ShmCluster, role: PeerRole) -> ShmHello<'a> {
        let server = &cluster.process.servers[0];
        let (path, token) = (&server.path, &cluster.process.token);
        ShmHello { server: server.id, path, token, me: me(role), timeout_ns: 1 << 40 }
    }

    #[test]
    fn packets_that_make_no_sense_close_their_connection_and_no_other() {
        let cluster = cluster();
        let process = cluster.process.servers[0].process;
        let bystander = ShmTestClient::of(&cluster);
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
        for packet in [SocketPacket::OpenProcess, SocketPacket::Stopped { fence: 0 }] {
            let socket = socket::connect_to(path).unwrap();
            socket::send_packet(&socket, packet).unwrap();
            closed(&socket);
        }
        let socket = socket::connect_to(path).unwrap();
        socket::send_handshake(&socket, &HandshakeRefusal::Full.message()).unwrap();
        closed(&socket);
        gone(PeerRole::Client, SocketPacket::OpenEndpoint { process });
        gone(PeerRole::ComputeServer, SocketPacket::OpenProcess);
        gone(PeerRole::ComputeServer, SocketPacket::OpenEndpoint { process: process + 1 });
        gone(PeerRole::Client, SocketPacket::Fence { request: 1, compute_server: 1 });
        let other = greet(
            &hello(&cluster, PeerRole::Client),
            SocketPacket::OpenProcess,
            &cluster.process.clock,
        );
        let other = other.unwrap();
        socket::send_packet(&other.socket, SocketPacket::Fenced { request: 1 }).unwrap();
        closed(&other.socket);
        assert_eq!(&bystander.echo().unwrap()[..], b"hello");
        assert!(!cluster.process.is_lost(ServerId::new(0)));
    }

    /// Silent connections are closed in time, and do not block other clients for longer.
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
        assert_eq!(&ShmTestClient::of(&cluster).echo().unwrap()[..], b"hello");
    }
}
