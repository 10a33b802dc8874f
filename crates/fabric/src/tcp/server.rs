//! A listener that serves: a bounded number of I/O threads over nonblocking sockets.
//!
//! Each thread has an epoll of its own and the connections that fall to it; the first one also accepts. The threads carry the
//! verbs out themselves, by word-wise atomic access to the region, and answer as many requests as one
//! look at a socket brings by one write.
//!
//! *Invariants*: S1. connections, those among them that have not proven themselves, and the memory of each are
//! bounded. S2. a connection's end, whatever ended it, touches no other. S3. after `stop` no request is carried
//! out any more, and no thread is left.
//!
//! *Thread safety*: the handle is for any number of threads.

use super::inbox::{Content, Inbox, Late};
use super::served::{Around, Next, Served, Tally, Totals};
use crate::clock::Clock;
use crate::endpoint::timespec;
use crate::gates::Gates;
use crate::handshake::{Identity, Nonce, Refusal, Responder, Role, Token, draw_epoch};
use crate::sockets::prepare_socket;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, lock};
use crate::{Calls, InlineCpu};
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// What a server is like.
#[derive(Clone, Debug)]
pub struct TcpServerConfig {
    /// What it is.
    pub role: Role,
    /// Its number among those of its role.
    pub number: u16,
    /// Whom it lets in.
    pub accepts: &'static [Role],
    /// Threads that serve connections.
    pub io_threads: usize,
    /// How many connections there may be.
    pub connections: usize,
    /// How many of an I/O thread's connections may be in their handshake: one more closes the oldest.
    pub half_open: usize,
    /// The longest that a handshake may take, in nanoseconds.
    pub handshake_timeout_ns: u64,
    /// How many calls of one connection may wait for an answer that comes later.
    pub waiting_calls: usize,
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
        }
    }
}

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpServerCounters {
    /// Connections that are open now, handshakes included.
    pub connections: u64,
    /// Connections that were let in.
    pub welcomed: u64,
    /// Connections that were not: refused, evicted or too slow.
    pub refused: u64,
    /// Requests.
    pub requests: u64,
}

#[derive(Debug)]
struct Shared {
    config: TcpServerConfig,
    identity: Identity,
    token: Token,
    gates: Gates,
    clock: Clock,
    inboxes: Vec<Arc<Inbox>>,
    connections: AtomicUsize,
    totals: Totals,
    stopped: AtomicBool,
}

/// A server that runs; dropping it stops it.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl TcpServer {
    /// Serves what connects to `listener`.
    ///
    /// # Errors
    /// What the operating system says: no more threads or file descriptors, or no entropy.
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
        let shared = Arc::new(Shared {
            identity,
            token: token.clone(),
            gates: Gates::default(),
            clock: Clock::start(),
            inboxes: inboxes?,
            connections: AtomicUsize::new(0),
            totals: Totals::default(),
            stopped: AtomicBool::new(false),
            config,
        });
        let server = Self { address, shared, threads: Mutex::default() };
        let mut listener = Some(listener);
        for number in 0..server.shared.inboxes.len() {
            let (shared, service) = (Arc::clone(&server.shared), Arc::clone(&service));
            let mut thread = IoThread::new(number, listener.take(), shared, service)?;
            let name = format!("tcp-{}-{number}", identity.number);
            let thread = std::thread::Builder::new().name(name).spawn(move || thread.run())?;
            lock(&server.threads).push(thread);
        }
        Ok(server)
    }

    /// Where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Who it is, with the epoch that it drew when it started.
    pub fn identity(&self) -> Identity {
        self.shared.identity
    }

    /// What it has done so far.
    pub fn counters(&self) -> TcpServerCounters {
        let shared = &self.shared;
        TcpServerCounters {
            connections: shared.connections.load(Ordering::Relaxed) as u64,
            welcomed: shared.totals.welcomed.load(Ordering::Relaxed),
            refused: shared.totals.refused.load(Ordering::Relaxed),
            requests: shared.totals.requests.load(Ordering::Relaxed),
        }
    }

    /// Closes the listener and every connection, and waits until all threads have ended.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        for inbox in &self.shared.inboxes {
            inbox.change(|content| content.stop = true);
        }
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() && !std::thread::panicking() {
                panic!("an I/O thread of a server has panicked");
            }
        }
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop();
    }
}

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
const EVENTS: usize = 256;
/// After an error that says that there is too little of something, nobody is accepted for so long.
const ACCEPT_PAUSE_NS: u64 = 20_000_000;

#[derive(Debug)]
struct Slot {
    generation: u32,
    served: Option<Served>,
    interest: Next,
}

#[derive(Debug)]
struct IoThread<S> {
    number: usize,
    epoll: OwnedFd,
    listener: Option<TcpListener>,
    /// When the listener is looked at again, if it is not.
    accept_again_ns: Option<u64>,
    accepted: usize,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    service: Arc<S>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Connections that began their handshake, the oldest first; some have ended it since.
    half_open: VecDeque<(u32, u32)>,
}

fn flags_of(next: Next) -> epoll::EventFlags {
    match next {
        Next::Readable => epoll::EventFlags::IN,
        Next::Writable => epoll::EventFlags::OUT,
        Next::Answers | Next::Close => epoll::EventFlags::empty(),
    }
}

fn token_of((slot, generation): (u32, u32)) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

impl<S: Calls> IoThread<S> {
    fn new(
        number: usize,
        listener: Option<TcpListener>,
        shared: Arc<Shared>,
        service: Arc<S>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let inbox = Arc::clone(&shared.inboxes[number]);
        let readable = epoll::EventFlags::IN;
        epoll::add(&epoll, &inbox.wake, epoll::EventData::new_u64(WAKE), readable)?;
        if let Some(listener) = &listener {
            epoll::add(&epoll, listener, epoll::EventData::new_u64(LISTENER), readable)?;
        }
        Ok(Self {
            number,
            epoll,
            listener,
            accept_again_ns: None,
            accepted: 0,
            shared,
            inbox,
            service,
            slots: Vec::new(),
            vacant: Vec::new(),
            half_open: VecDeque::new(),
        })
    }

    fn run(&mut self) {
        let nothing =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; EVENTS];
        let mut spare = Vec::new();
        while !self.shared.stopped.load(Ordering::Acquire) {
            let timeout = self.timeout().map(timespec);
            let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => 0,
                Err(errno) => panic!("epoll fails: {errno}"),
            };
            for event in &events[..count] {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => {
                        let content = self.inbox.take(std::mem::take(&mut spare));
                        spare = self.empty_inbox(content);
                    }
                    token => self.visit((token as u32, (token >> 32) as u32), event.flags),
                }
            }
            self.expire();
        }
        for slot in 0..self.slots.len() {
            self.close(slot as u32);
        }
    }

    /// How long nothing needs to be done, in nanoseconds, if no socket has anything.
    fn timeout(&self) -> Option<u64> {
        let deadline = self.half_open.front().and_then(|&place| self.handshake_deadline_ns(place));
        let next = [deadline, self.accept_again_ns].into_iter().flatten().min()?;
        Some(next.saturating_sub(self.shared.clock.now_ns()) + 1)
    }

    fn served(&mut self, (slot, generation): (u32, u32)) -> Option<&mut Served> {
        let slot = self.slots.get_mut(slot as usize)?;
        if slot.generation == generation { slot.served.as_mut() } else { None }
    }

    fn handshake_deadline_ns(&self, (slot, generation): (u32, u32)) -> Option<u64> {
        let slot = &self.slots[slot as usize];
        let served = slot.served.as_ref().filter(|_| slot.generation == generation)?;
        served.handshake_deadline_ns()
    }

    /// Closes handshakes that took too long, and looks at the listener again.
    fn expire(&mut self) {
        while let Some(&place) = self.half_open.front() {
            match self.handshake_deadline_ns(place) {
                Some(deadline_ns) if deadline_ns >= self.shared.clock.now_ns() => break,
                Some(_) => self.refuse(place.0),
                None => {}
            }
            self.half_open.pop_front();
        }
        if self.accept_again_ns.is_some_and(|at_ns| at_ns <= self.shared.clock.now_ns()) {
            self.accept_again_ns = None;
            self.watch_listener(epoll::EventFlags::IN);
        }
    }

    fn watch_listener(&self, flags: epoll::EventFlags) {
        if let Some(listener) = &self.listener {
            let _ =
                epoll::modify(&self.epoll, listener, epoll::EventData::new_u64(LISTENER), flags);
        }
    }

    fn accept(&mut self) {
        // Not for ever: those who are connected already want their turn.
        for _ in 0..EVENTS {
            let Some(listener) = &self.listener else { return };
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => {
                        self.watch_listener(epoll::EventFlags::empty());
                        self.accept_again_ns = Some(self.shared.clock.now_ns() + ACCEPT_PAUSE_NS);
                        return;
                    }
                },
            };
            if socket.set_nonblocking(true).is_err() {
                continue;
            }
            let before = self.shared.connections.fetch_add(1, Ordering::AcqRel);
            if before >= self.shared.config.connections {
                self.shared.connections.fetch_sub(1, Ordering::AcqRel);
                self.shared.totals.refused.fetch_add(1, Ordering::Relaxed);
                let _ = (&socket).write(&Refusal::Full.message());
                continue;
            }
            let thread = self.accepted % self.shared.inboxes.len();
            self.accepted += 1;
            if thread == self.number {
                self.adopt(socket);
            } else {
                self.shared.inboxes[thread].change(|content| content.sockets.push(socket));
            }
        }
    }

    /// Takes a connection that has been counted already.
    fn adopt(&mut self, socket: TcpStream) {
        if self.half_open.len() >= self.shared.config.half_open.max(1) {
            let mut half_open = std::mem::take(&mut self.half_open);
            half_open.retain(|&place| self.handshake_deadline_ns(place).is_some());
            self.half_open = half_open;
            if self.half_open.len() >= self.shared.config.half_open.max(1)
                && let Some((oldest, _)) = self.half_open.pop_front()
            {
                self.refuse(oldest);
            }
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, served: None, interest: Next::Readable });
            self.slots.len() as u32 - 1
        });
        let place = (slot, self.slots[slot as usize].generation);
        let flags = epoll::EventFlags::IN;
        let data = epoll::EventData::new_u64(token_of(place));
        let ready = prepare_socket(&socket).and_then(|()| {
            epoll::add(&self.epoll, &socket, data, flags)?;
            Nonce::draw()
        });
        let Ok(nonce) = ready else {
            self.vacant.push(slot);
            self.shared.connections.fetch_sub(1, Ordering::AcqRel);
            return;
        };
        let config = &self.shared.config;
        let deadline_ns = self.shared.clock.now_ns().saturating_add(config.handshake_timeout_ns);
        let responder = Responder::new(
            &self.shared.token,
            self.shared.identity,
            config.accepts,
            nonce,
            deadline_ns,
        );
        let slot = &mut self.slots[slot as usize];
        slot.served = Some(Served::new(socket, place, responder));
        slot.interest = Next::Readable;
        self.half_open.push_back(place);
    }

    fn refuse(&mut self, slot: u32) {
        self.shared.totals.refused.fetch_add(1, Ordering::Relaxed);
        self.close(slot);
    }

    fn close(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        if let Some(served) = slot.served.take() {
            served.leave(&self.shared.gates);
            slot.generation = slot.generation.wrapping_add(1);
            self.vacant.push(number);
            self.shared.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Something has happened on a socket.
    fn visit(&mut self, place: (u32, u32), flags: epoll::EventFlags) {
        loop {
            let next = self.with(place, |served, around, tally| served.serve(around, tally));
            // What came before the end is still carried out.
            let ended = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            match next {
                Some(Next::Readable) if ended => {}
                Some(_) if ended => return self.close(place.0),
                _ => return,
            }
        }
    }

    /// Does something with a connection and what follows from it; `None` if there is no such connection any more.
    fn with(
        &mut self,
        place: (u32, u32),
        act: impl FnOnce(&mut Served, &Around<'_, S>, &mut Tally) -> Next,
    ) -> Option<Next> {
        let mut tally = Tally::default();
        let around = Around {
            service: &*self.service,
            server: self.shared.identity,
            gates: &self.shared.gates,
            totals: &self.shared.totals,
            inbox: &self.inbox,
            waiting_calls: self.shared.config.waiting_calls,
            cpu: InlineCpu::new(self.number),
            now_ns: self.shared.clock.now_ns(),
        };
        let slot = self.slots.get_mut(place.0 as usize)?;
        let served = slot.served.as_mut().filter(|_| slot.generation == place.1)?;
        let next = act(served, &around, &mut tally);
        let mut closed = next == Next::Close;
        if !closed && next != slot.interest {
            slot.interest = next;
            let data = epoll::EventData::new_u64(token_of(place));
            closed = epoll::modify(&self.epoll, &served.socket, data, flags_of(next)).is_err();
        }
        if closed {
            self.close(place.0);
        }
        if tally.shut_out {
            for inbox in &self.shared.inboxes {
                inbox.change(|content| content.sweep = true);
            }
        }
        (!closed).then_some(next)
    }

    /// Does what others have left; gives the emptied list back.
    fn empty_inbox(&mut self, content: Content) -> Vec<Late> {
        let Content { mut answers, sockets, sweep, .. } = content;
        for socket in sockets {
            self.adopt(socket);
        }
        if sweep {
            for slot in 0..self.slots.len() as u32 {
                let generation = self.slots[slot as usize].generation;
                if self.served((slot, generation)).is_some_and(|served| served.is_shut_out()) {
                    self.close(slot);
                }
            }
        }
        let mut touched = Vec::new();
        for late in answers.drain(..) {
            let place = (late.place.slot, late.place.generation);
            if let Some(served) = self.served(place) {
                served.answer(late);
                touched.push(place);
            }
        }
        // All that came for one connection leaves together.
        touched.sort_unstable();
        touched.dedup();
        for place in touched {
            self.with(place, |served, around, tally| served.send_answers(around, tally));
        }
        answers
    }
}
