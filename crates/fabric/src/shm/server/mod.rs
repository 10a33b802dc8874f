//! A memory server for other processes of this host. It hands out its region as a memfd and serves
//! RPCs from rings.
//!
//! A bounded number of threads wait in one epoll instance for sockets: of the listener, of
//! connections that have not shown the token yet, of processes, and of endpoints. Each socket is
//! reported to one thread at a time, which rearms it when done. A thread serves a burst of requests
//! of one endpoint, then turns to the others, and sleeps when no ring has a request.
//!
//! *Invariants*: shm.S1. No peer gets a file before the handshake. shm.S2. Whatever a peer sends or
//! writes into a ring, the worst outcome is that its own connection is closed. shm.S3. No send and
//! no receive blocks on a peer. shm.S4. The number of connections is bounded, and those without a
//! token are also bounded in time. shm.S6. A thread accepts a bounded number of connections at a
//! time, and none for a while when the system has no descriptor for one. shm.S5. Lock order: a
//! thread that holds a connection's lock may
//! take the table's, never the reverse; the holder of a process connection's lock may take an
//! endpoint connection's.
//!
//! *Thread safety*: as described above; the value itself only starts and stops the server.

mod table;

use super::ShmError;
use super::ring::{BadRing, Consumer, FILE_BYTES, Producer, RingDirection, RingRecordKind};
use super::socket::{self, ReceivedPacket, SocketPacket};
use crate::clock::ClusterClock;
use crate::endpoint::timespec;
use crate::handshake::{
    HandshakeError, HandshakeRefusal, Nonce, PeerIdentity, PeerRole, Responder, ResponderStep,
    Token, draw_epoch,
};
use crate::listener::start_thread;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::{
    InlineCpu, MAX_MESSAGE_BYTES, Message, Region, RegionBacking, RpcService, now_or_never,
};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use table::EndpointTable;

/// Configuration of a memory server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmServerConfig {
    /// The server's number; clients of memory server `n` connect to path `n` of their list.
    pub number: u16,
    /// Threads that serve RPCs; at least one.
    pub threads: usize,
    /// Limit on open endpoints.
    pub max_endpoints: usize,
    /// Limit on processes that have the region mapped.
    pub max_processes: usize,
    /// Time in which a peer must show the token, in nanoseconds.
    pub handshake_ns: u64,
}

impl Default for ShmServerConfig {
    fn default() -> Self {
        Self {
            number: 0,
            threads: 1,
            max_endpoints: 1024,
            max_processes: 64,
            handshake_ns: 2_000_000_000,
        }
    }
}

/// Limit on connections that have not shown the token yet; more are refused.
const MAX_GREETINGS: usize = 64;
/// Requests of one endpoint that a thread serves before it turns to the others.
const BURST: usize = 64;
/// Limit on connections that a thread accepts before it turns to the others.
const ACCEPTS: usize = 64;
/// Pause in accepting after an error that reports a lack of resources, in nanoseconds.
const ACCEPT_PAUSE_NS: u64 = 20_000_000;
/// Interval of the check for late handshakes, in nanoseconds.
const EXPIRY_NS: u64 = 50_000_000;
/// Tokens of the stop signal and of the listener; connections are numbered from 0.
const STOP: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// Counters of a server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmServerCounters {
    /// Open connections of processes and endpoints, handshakes included.
    pub connections: u64,
    /// Connections that were admitted.
    pub welcomed: u64,
    /// Connections that were refused or too slow.
    pub refused: u64,
    /// RPCs. Verbs are executed by the clients themselves and not counted here.
    pub requests: u64,
}

/// The counters that the threads share with the handle.
#[derive(Debug, Default)]
struct ShmLiveCounters {
    connections: AtomicU64,
    welcomed: AtomicU64,
    refused: AtomicU64,
    requests: AtomicU64,
}

/// A running memory server; dropping it stops it.
#[derive(Debug)]
pub struct ShmServer {
    identity: PeerIdentity,
    tally: Arc<ShmLiveCounters>,
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
    path: PathBuf,
}

impl ShmServer {
    /// Starts a memory server at `path`, a Unix socket that only this user can open. `service`'s
    /// region must be shared ([`RegionBacking::Shared`]). A socket left at `path` by a dead server
    /// is replaced.
    ///
    /// # Errors
    /// [`ShmError`] if the region is private, or the operating system refuses.
    pub fn start<S: RpcService>(
        path: &Path,
        service: Arc<S>,
        token: &Token,
        config: ShmServerConfig,
    ) -> Result<Self, ShmError> {
        if service.region().memfd().is_none() {
            return Err(ShmError::NotShared);
        }
        let epoch = draw_epoch()?.max(1);
        let listener = socket::listen_at(path)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &*stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), READABLE)?;
        let identity = PeerIdentity { role: PeerRole::MemoryServer, number: config.number, epoch };
        let tally = Arc::new(ShmLiveCounters::default());
        let reactor = Arc::new(ShmReactor {
            service,
            me: identity,
            tally: Arc::clone(&tally),
            token: token.clone(),
            clock: ClusterClock::start(),
            epoll,
            listener,
            table: Mutex::default(),
            expired_ns: AtomicU64::new(0),
            config: config.clone(),
        });
        let path = path.to_owned();
        // If a thread cannot be started, dropping this ends the others.
        let mut server = Self { identity, tally, stop, threads: Vec::new(), path };
        for stripe in 0..reactor.config.threads.max(1) {
            let reactor = Arc::clone(&reactor);
            let name = format!("shm-{}-{stripe}", config.number);
            server.threads.push(start_thread(name, move || reactor.run(stripe))?);
        }
        Ok(server)
    }

    /// Path of its socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its identity, with the epoch that it drew when it started.
    pub fn identity(&self) -> PeerIdentity {
        self.identity
    }

    /// A snapshot of its counters.
    pub fn counters(&self) -> ShmServerCounters {
        ShmServerCounters {
            connections: self.tally.connections.load(Ordering::Relaxed),
            welcomed: self.tally.welcomed.load(Ordering::Relaxed),
            refused: self.tally.refused.load(Ordering::Relaxed),
            requests: self.tally.requests.load(Ordering::Relaxed),
        }
    }
}

impl Drop for ShmServer {
    fn drop(&mut self) {
        // First, while the listener still has the path: afterwards, another server may have put its
        // socket there.
        let _ = std::fs::remove_file(&self.path);
        // No thread reads the counter, so the descriptor stays readable for every thread. Writing
        // only fails if the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Reports one event, then none until the socket is rearmed.
const READABLE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

#[derive(Debug)]
struct ShmServerConnection {
    id: u64,
    socket: OwnedFd,
    /// Deadline to show the token.
    deadline_ns: u64,
    greeting: AtomicBool,
    role: Mutex<ShmPeer>,
}

#[derive(Debug)]
enum ShmPeer {
    /// Has not shown the token yet.
    Greeting(Box<Responder>),
    /// Has shown the token, but has not stated what to open.
    Proven(PeerIdentity),
    /// A process that has the region mapped.
    Process { number: u64 },
    /// An endpoint being served.
    Endpoint(Box<ShmServerEndpoint>),
    /// An endpoint that was shut out, and whose client has not closed it yet.
    ShutOut,
}

#[derive(Debug)]
struct ShmServerEndpoint {
    compute_server: u16,
    requests: Consumer,
    replies: Producer,
    request: Message,
}

/// How to continue with a connection.
enum ConnectionStep {
    /// Wait for its socket.
    Arm,
    /// Serve more requests later.
    GoOn,
    Close,
}

struct ShmReactor<S> {
    service: Arc<S>,
    config: ShmServerConfig,
    me: PeerIdentity,
    tally: Arc<ShmLiveCounters>,
    token: Token,
    clock: ClusterClock,
    epoll: OwnedFd,
    listener: OwnedFd,
    table: Mutex<EndpointTable>,
    /// Time of the last check for late handshakes.
    expired_ns: AtomicU64,
}

impl<S: RpcService> ShmReactor<S> {
    fn run(&self, stripe: usize) {
        let cpu = InlineCpu::new(stripe);
        let mut unfinished = VecDeque::new();
        // When to accept again. Until then, no thread gets the listener's events.
        let mut accept_again_ns = None::<u64>;
        // With several threads, take one event at a time, because other threads cannot handle an
        // event taken here.
        let mut events = Vec::with_capacity(if self.config.threads > 1 { 1 } else { 32 });
        loop {
            let greetings = lock(&self.table).greetings > 0;
            let expiry_ns = if greetings { Some(EXPIRY_NS) } else { None };
            let pause_ns = accept_again_ns.map(|at_ns| at_ns.saturating_sub(self.clock.now_ns()));
            let timeout = match [expiry_ns, pause_ns].into_iter().flatten().min() {
                _ if !unfinished.is_empty() => Some(timespec(0)),
                at_most_ns => at_most_ns.map(timespec),
            };
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => panic!("waiting for sockets: {errno}"),
            }
            for event in &events {
                match event.data.u64() {
                    STOP => return,
                    LISTENER => accept_again_ns = self.accept(),
                    id => {
                        let found = lock(&self.table).connections.get(&id).cloned();
                        if let Some(connection) = found {
                            self.attend(&connection, true, &cpu, &mut unfinished);
                        }
                    }
                }
            }
            if let Some(connection) = unfinished.pop_front() {
                self.attend(&connection, false, &cpu, &mut unfinished);
            }
            if greetings {
                self.expire();
            }
            if accept_again_ns.is_some_and(|at_ns| at_ns <= self.clock.now_ns()) {
                accept_again_ns = None;
                self.arm(&self.listener, LISTENER);
            }
        }
    }

    /// Accepts connections; if the system lacks what another one needs, returns when the caller is
    /// to arm the listener again.
    fn accept(&self) -> Option<u64> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS {
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                // Such as no descriptor: the listener stays readable all the while.
                Err(_) => return Some(self.clock.now_ns().saturating_add(ACCEPT_PAUSE_NS)),
            };
            // On error, dropping the socket closes the connection.
            let Ok(nonce) = Nonce::draw() else { continue };
            let deadline_ns = self.clock.now_ns().saturating_add(self.config.handshake_ns);
            let accepts = &[PeerRole::Client, PeerRole::ComputeServer];
            let responder = Responder::new(&self.token, self.me, accepts, nonce, deadline_ns);
            let mut table = lock(&self.table);
            if table.greetings >= MAX_GREETINGS {
                self.tally.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let id = table.next_connection;
            table.next_connection += 1;
            let role = Mutex::new(ShmPeer::Greeting(Box::new(responder)));
            let greeting = AtomicBool::new(true);
            let connection =
                Arc::new(ShmServerConnection { id, socket, deadline_ns, greeting, role });
            let data = epoll::EventData::new_u64(id);
            if epoll::add(&self.epoll, &connection.socket, data, READABLE).is_ok() {
                table.greetings += 1;
                table.connections.insert(id, connection);
                self.count(&table);
            }
        }
        self.arm(&self.listener, LISTENER);
        None
    }

    fn arm(&self, socket: &OwnedFd, id: u64) {
        // Modifying cannot fail while both are open; a connection closed meanwhile needs no events.
        let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(id), READABLE);
    }

    /// Closes the connections that did not show the token in time.
    fn expire(&self) {
        let now_ns = self.clock.now_ns();
        if now_ns < self.expired_ns.load(Ordering::Relaxed).saturating_add(EXPIRY_NS) {
            return;
        }
        self.expired_ns.store(now_ns, Ordering::Relaxed);
        let mut table = lock(&self.table);
        let late: Vec<u64> = (table.connections.values())
            .filter(|it| it.greeting.load(Ordering::Relaxed) && it.deadline_ns < now_ns)
            .map(|connection| connection.id)
            .collect();
        self.tally.refused.fetch_add(late.len() as u64, Ordering::Relaxed);
        late.into_iter().for_each(|id| table.remove(id));
        self.count(&table);
    }

    /// Handles a connection that is readable or has more requests to serve.
    fn attend(
        &self,
        connection: &Arc<ShmServerConnection>,
        readable: bool,
        cpu: &InlineCpu,
        unfinished: &mut VecDeque<Arc<ShmServerConnection>>,
    ) {
        let mut peer = lock(&connection.role);
        let received = if readable { socket::receive(&connection.socket) } else { Ok(None) };
        let next = match received {
            Err(_) => ConnectionStep::Close,
            Ok(received) => match &mut *peer {
                ShmPeer::Endpoint(endpoint) => {
                    match self.serve(&connection.socket, endpoint, cpu) {
                        Ok(next) => next,
                        Err(BadRing) => {
                            shut_out(connection, &mut peer);
                            ConnectionStep::Arm
                        }
                    }
                }
                ShmPeer::ShutOut => ConnectionStep::Arm,
                _ => match received {
                    Some(received) => {
                        self.hear(connection, &mut peer, &received).unwrap_or(ConnectionStep::Close)
                    }
                    None => ConnectionStep::Arm,
                },
            },
        };
        drop(peer);
        match next {
            ConnectionStep::Arm => self.arm(&connection.socket, connection.id),
            ConnectionStep::GoOn => unfinished.push_back(Arc::clone(connection)),
            ConnectionStep::Close => {
                let mut table = lock(&self.table);
                table.remove(connection.id);
                self.count(&table);
            }
        }
    }

    fn count(&self, table: &EndpointTable) {
        self.tally.connections.store(table.connections.len() as u64, Ordering::Relaxed);
    }

    /// Serves a burst of requests.
    fn serve(
        &self,
        socket: &OwnedFd,
        endpoint: &mut ShmServerEndpoint,
        cpu: &InlineCpu,
    ) -> Result<ConnectionStep, BadRing> {
        let mut served = 0;
        let next = self.serve_burst(socket, endpoint, cpu, &mut served);
        // Once per burst, because other threads update this counter too.
        self.tally.requests.fetch_add(served, Ordering::Relaxed);
        next
    }

    fn serve_burst(
        &self,
        socket: &OwnedFd,
        endpoint: &mut ShmServerEndpoint,
        cpu: &InlineCpu,
        served: &mut u64,
    ) -> Result<ConnectionStep, BadRing> {
        for _ in 0..BURST {
            if !endpoint.replies.has_room()? {
                return Ok(ConnectionStep::Arm); // the client wakes us once there is room
            }
            match endpoint.requests.pop(&mut endpoint.request)? {
                None if endpoint.requests.may_sleep() => return Ok(ConnectionStep::Arm),
                None => continue,
                Some((_, RingRecordKind::TooLarge(_))) => return Err(BadRing),
                Some((id, RingRecordKind::Message)) => {
                    *served += 1;
                    let (request, mut reply) = (&endpoint.request, Message::new());
                    now_or_never(self.service.handle(
                        cpu,
                        endpoint.compute_server,
                        request,
                        &mut reply,
                    ));
                    let bytes = reply.len();
                    let pushed = if bytes > MAX_MESSAGE_BYTES {
                        endpoint.replies.push(id, RingRecordKind::TooLarge(bytes), &[])?
                    } else {
                        endpoint.replies.push(id, RingRecordKind::Message, &reply)?
                    };
                    if !pushed {
                        return Err(BadRing); // there was room: the client has moved its head back
                    }
                    if endpoint.replies.must_wake() {
                        socket::wake(socket);
                    }
                    now_or_never(self.service.after_reply(cpu));
                }
            }
            if endpoint.requests.must_wake() {
                socket::wake(socket);
            }
        }
        Ok(ConnectionStep::GoOn)
    }

    /// Handles a packet on a connection that is not an endpoint's.
    fn hear(
        &self,
        connection: &Arc<ShmServerConnection>,
        peer: &mut ShmPeer,
        received: &ReceivedPacket,
    ) -> Option<ConnectionStep> {
        match peer {
            ShmPeer::Greeting(responder) => {
                let message = received.handshake()?;
                match responder.receive(message, self.clock.now_ns()) {
                    Ok(ResponderStep::Send(message)) => {
                        socket::send_handshake(&connection.socket, &message).ok()?;
                    }
                    Ok(ResponderStep::Proven { peer: identity, fences }) => {
                        if self.is_full(identity.role) {
                            self.tally.refused.fetch_add(1, Ordering::Relaxed);
                            let _ = socket::send_handshake(
                                &connection.socket,
                                &HandshakeRefusal::Full.message(),
                            );
                            return None;
                        }
                        self.tally.welcomed.fetch_add(1, Ordering::Relaxed);
                        let welcome = responder.welcome(fences);
                        socket::send_handshake(&connection.socket, &welcome).ok()?;
                        *peer = ShmPeer::Proven(identity);
                    }
                    Err(error) => {
                        self.tally.refused.fetch_add(1, Ordering::Relaxed);
                        if let Some(refusal) = HandshakeError::refusal(error) {
                            let _ = socket::send_handshake(&connection.socket, &refusal.message());
                        }
                        return None;
                    }
                }
                Some(ConnectionStep::Arm)
            }
            ShmPeer::Proven(identity) => {
                let identity = *identity;
                *peer = match (identity.role, received.packet()?) {
                    (PeerRole::Client, SocketPacket::OpenProcess) => {
                        self.open_process(connection)?
                    }
                    (PeerRole::ComputeServer, SocketPacket::OpenEndpoint { process }) => {
                        self.open_endpoint(connection, identity.number, process)?
                    }
                    _ => return None,
                };
                connection.greeting.store(false, Ordering::Relaxed);
                Some(ConnectionStep::Arm)
            }
            ShmPeer::Process { number } => {
                match received.packet()? {
                    SocketPacket::Fence { request, compute_server } => {
                        self.fence(connection, request, compute_server);
                    }
                    SocketPacket::Stopped { fence } => lock(&self.table).stopped(*number, fence),
                    _ => return None,
                }
                Some(ConnectionStep::Arm)
            }
            ShmPeer::Endpoint(_) | ShmPeer::ShutOut => Some(ConnectionStep::Arm),
        }
    }

    fn is_full(&self, role: PeerRole) -> bool {
        let table = lock(&self.table);
        match role {
            PeerRole::Client => table.processes.len() >= self.config.max_processes,
            _ => table.rings.len() >= self.config.max_endpoints,
        }
    }

    fn open_process(&self, connection: &Arc<ShmServerConnection>) -> Option<ShmPeer> {
        let region = self.service.region();
        let number = lock(&self.table).add_process(connection, self.config.max_processes)?;
        let opened = SocketPacket::Opened { number, bytes: region.bytes() as u64 };
        socket::send_file(&connection.socket, opened, region.memfd()?).ok()?;
        Some(ShmPeer::Process { number })
    }

    fn open_endpoint(
        &self,
        connection: &Arc<ShmServerConnection>,
        compute_server: u16,
        process: u64,
    ) -> Option<ShmPeer> {
        let backing = RegionBacking::Shared { huge_pages: false };
        let file = Arc::new(Region::with_backing(FILE_BYTES, backing).ok()?);
        let requests = Consumer::new(&file, RingDirection::Requests);
        let replies = Producer::new(&file, RingDirection::Replies);
        // Start asleep, so that the client's first request wakes us.
        requests.may_sleep();
        let number = lock(&self.table).add_endpoint(
            connection,
            process,
            compute_server,
            self.config.max_endpoints,
        )?;
        let opened = SocketPacket::Opened { number, bytes: FILE_BYTES as u64 };
        socket::send_file(&connection.socket, opened, file.memfd()?).ok()?;
        let request = Message::new();
        Some(ShmPeer::Endpoint(Box::new(ShmServerEndpoint {
            compute_server,
            requests,
            replies,
            request,
        })))
    }

    /// F10: stops serving the endpoints of a compute server, and tells their processes to stop
    /// them.
    fn fence(&self, asked_by: &Arc<ShmServerConnection>, request: u64, compute_server: u16) {
        let (fence, concerned) = lock(&self.table).begin_fence(asked_by, request, compute_server);
        for connection in concerned {
            // The connection's lock waits for the current burst; later bursts find the connection
            // shut out.
            shut_out(&connection, &mut lock(&connection.role));
        }
        lock(&self.table).order_fence(fence);
    }
}

/// Stops serving an endpoint, and signals its client. Its mapping stays in place, so the endpoint
/// counts until its client closes it.
fn shut_out(connection: &ShmServerConnection, peer: &mut ShmPeer) {
    *peer = ShmPeer::ShutOut;
    let _ = shutdown(&connection.socket, Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::TestService;
    use rustix::net::{AddressFamily, SocketType, socket_with};

    /// With no descriptor left, a connection that waits keeps the listener readable. The server
    /// armed it again at once, and so took a processor until its clients had gone. Here the
    /// listener is a socket that cannot accept, which is readable all the while, too.
    #[test]
    fn a_listener_that_cannot_accept_is_left_alone_for_a_while() {
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let listener = socket_with(family, SocketType::SEQPACKET, flags, None).unwrap();
        let reactor = ShmReactor {
            service: TestService::new(4096),
            me: PeerIdentity { role: PeerRole::MemoryServer, number: 0, epoch: 1 },
            tally: Arc::default(),
            token: Token::new(&[7; 32]).unwrap(),
            clock: ClusterClock::start(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
            listener,
            table: Mutex::default(),
            expired_ns: AtomicU64::new(0),
            config: ShmServerConfig::default(),
        };
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&reactor.epoll, &reactor.listener, data, READABLE).unwrap();
        let comes = || {
            let mut events = Vec::with_capacity(4);
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&reactor.epoll, spare, Some(&timespec(0))).unwrap();
            events.len()
        };
        assert_eq!(comes(), 1);
        let again_ns = reactor.accept().unwrap();
        assert!(again_ns >= ACCEPT_PAUSE_NS);
        assert_eq!(comes(), 0, "no thread is told of it during the pause");
        reactor.arm(&reactor.listener, LISTENER);
        assert_eq!(comes(), 1);
    }
}
