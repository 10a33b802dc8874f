//! The entrance of a server: the thread that lets endpoints in over TCP, connects their queue pairs, and shuts them.
//!
//! *Invariants*: E1. until a peer has proven itself, it costs one message of memory, and there is a bounded number of such.
//! E2. a gate that has been closed is one whose queue pair is gone, before anybody is told so (F9, F10). E3. what is no
//! message of this protocol closes its connection, and nothing else.
//!
//! *Thread safety*: one thread.

use crate::bring_up::{Control, End};
use crate::server::Shared;
use farleaf_fabric::handshake::{
    Gather, Identity, Nonce, Refusal, Responder, ResponderStep, draw_epoch,
};
use farleaf_fabric::provider::{Gate, Gates, Heard, next_message, prepare_socket};
use farleaf_fabric::sync::{Arc, Ordering};
use rustix::event::{Timespec, epoll};
use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
const EVENTS: usize = 64;
/// After an error that says that there is too little of something, nobody is accepted for so long.
const ACCEPT_PAUSE_NS: u64 = 20_000_000;

#[derive(Debug)]
enum Phase {
    Handshake(Box<Responder>),
    /// It is in, and has yet to say what to connect to.
    Welcomed(Arc<Gate>),
    /// Its queue pair is connected, or has been shut.
    Open {
        gate: Arc<Gate>,
        lane: usize,
        pair: u32,
    },
}

#[derive(Debug)]
struct Visitor {
    socket: TcpStream,
    gather: Gather,
    phase: Phase,
    deadline_ns: u64,
}

impl Visitor {
    fn gate(&self) -> Option<&Arc<Gate>> {
        match &self.phase {
            Phase::Handshake(_) => None,
            Phase::Welcomed(gate) | Phase::Open { gate, .. } => Some(gate),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }
}

#[derive(Debug)]
pub(crate) struct Entrance {
    epoll: OwnedFd,
    listener: TcpListener,
    /// When the listener is looked at again, if it is not.
    accept_again_ns: Option<u64>,
    shared: Arc<Shared>,
    gates: Gates,
    visitors: Vec<(u32, Option<Visitor>)>,
    next_lane: usize,
}

/// What has become of a visitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    Leaves,
}

impl Entrance {
    pub(crate) fn new(listener: TcpListener, shared: &Arc<Shared>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&epoll, &shared.wake, epoll::EventData::new_u64(WAKE), readable)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), readable)?;
        Ok(Self {
            epoll,
            listener,
            accept_again_ns: None,
            shared: Arc::clone(shared),
            gates: Gates::default(),
            visitors: Vec::new(),
            next_lane: 0,
        })
    }

    pub(crate) fn run(&mut self) {
        let nothing =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; EVENTS];
        while !self.shared.stopped.load(Ordering::Acquire) {
            let timeout = self.timeout().map(|ns| Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as _,
            });
            let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => 0,
                Err(errno) => panic!("epoll fails: {errno}"),
            };
            for event in &events[..count] {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => self.shared.wake.clear(),
                    token => self.visit(token as u32 as usize, (token >> 32) as u32),
                }
            }
            self.expire();
        }
        for index in 0..self.visitors.len() {
            self.close(index);
        }
    }

    /// How long nothing needs to be done, in nanoseconds, if no socket has anything.
    fn timeout(&self) -> Option<u64> {
        let on_their_way = self.visitors.iter().filter_map(|(_, visitor)| visitor.as_ref());
        let deadlines = on_their_way.filter(|visitor| !visitor.is_open());
        let next =
            deadlines.map(|visitor| visitor.deadline_ns).chain(self.accept_again_ns).min()?;
        Some(next.saturating_sub(self.shared.clock.now_ns()) + 1)
    }

    fn expire(&mut self) {
        let now_ns = self.shared.clock.now_ns();
        for index in 0..self.visitors.len() {
            let visitor = self.visitors[index].1.as_ref();
            if visitor.is_some_and(|visitor| !visitor.is_open() && visitor.deadline_ns < now_ns) {
                self.refuse(index);
            }
        }
        if self.accept_again_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.accept_again_ns = None;
            self.watch_listener(epoll::EventFlags::IN);
        }
    }

    fn watch_listener(&self, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.epoll, &self.listener, data, flags);
    }

    fn accept(&mut self) {
        for _ in 0..EVENTS {
            match self.listener.accept() {
                Ok((socket, _)) => self.adopt(socket),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => {
                        self.watch_listener(epoll::EventFlags::empty());
                        self.accept_again_ns = Some(self.shared.clock.now_ns() + ACCEPT_PAUSE_NS);
                        return;
                    }
                },
            }
        }
    }

    fn adopt(&mut self, socket: TcpStream) {
        if socket.set_nonblocking(true).is_err() || prepare_socket(&socket).is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let config = &shared.config;
        if shared.connections.load(Ordering::Relaxed) >= config.connections {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            let _ = (&socket).write(&Refusal::Full.message());
            return;
        }
        let visitors = self.visitors.iter().enumerate();
        let waiting = visitors.filter_map(|(index, (_, visitor))| {
            let visitor = visitor.as_ref().filter(|visitor| !visitor.is_open())?;
            Some((visitor.deadline_ns, index))
        });
        let waiting: Vec<_> = waiting.collect();
        if waiting.len() >= config.half_open.max(1)
            && let Some((_, oldest)) = waiting.into_iter().min()
        {
            self.refuse(oldest);
        }
        let vacant = self.visitors.iter().position(|(_, visitor)| visitor.is_none());
        let index = vacant.unwrap_or_else(|| {
            self.visitors.push((0, None));
            self.visitors.len() - 1
        });
        let data = u64::from(self.visitors[index].0) << 32 | index as u64;
        let data = epoll::EventData::new_u64(data);
        let Ok(nonce) = Nonce::draw() else { return };
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_err() {
            return;
        }
        let deadline_ns = shared.clock.now_ns().saturating_add(config.handshake_timeout_ns);
        let responder =
            Responder::new(&shared.token, shared.identity, config.accepts, nonce, deadline_ns);
        let phase = Phase::Handshake(Box::new(responder));
        let visitor = Visitor { socket, gather: Gather::default(), phase, deadline_ns };
        self.visitors[index].1 = Some(visitor);
        shared.connections.fetch_add(1, Ordering::Relaxed);
    }

    fn refuse(&mut self, index: usize) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        self.close(index);
    }

    fn close(&mut self, index: usize) {
        let (generation, visitor) = &mut self.visitors[index];
        let Some(visitor) = visitor.take() else { return };
        *generation = generation.wrapping_add(1) & (u32::MAX >> 1);
        if let Phase::Open { lane, pair, .. } = visitor.phase {
            self.shared.lanes[lane].close(pair);
        }
        if let Some(gate) = visitor.gate() {
            self.gates.leave(gate);
        }
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes the connections whose gates have been closed, but for the one at `except`, whose queue pair alone goes.
    fn sweep(&mut self, except: usize) {
        for index in 0..self.visitors.len() {
            let Some(visitor) = &self.visitors[index].1 else { continue };
            if visitor.gate().is_none_or(|gate| gate.enter().is_some()) {
                continue;
            }
            if index != except {
                self.close(index);
            } else if let Phase::Open { lane, pair, .. } = visitor.phase {
                self.shared.lanes[lane].close(pair);
            }
        }
    }

    /// Something has happened on a visitor's socket.
    fn visit(&mut self, index: usize, generation: u32) {
        loop {
            let Some((of, Some(visitor))) = self.visitors.get_mut(index) else { return };
            if *of != generation {
                return;
            }
            let message = match next_message(&mut visitor.socket, &mut visitor.gather) {
                Heard::Message(message) => message,
                Heard::Nothing => return,
                Heard::End => return self.close(index),
            };
            let fate = match &mut visitor.phase {
                Phase::Handshake(responder) => {
                    let step = responder.receive(&message, self.shared.clock.now_ns());
                    match step {
                        Ok(ResponderStep::Send(answer)) => say(&mut visitor.socket, &answer),
                        Ok(ResponderStep::Proven { peer, fences }) => {
                            self.welcome(index, peer, fences)
                        }
                        Err(error) => {
                            if let Some(refusal) = error.refusal() {
                                let _ = visitor.socket.write(&refusal.message());
                            }
                            return self.refuse(index);
                        }
                    }
                }
                Phase::Welcomed(_) => match Control::decode(&message) {
                    Some(Control::Offer(end)) => self.connect(index, end),
                    _ => Fate::Leaves,
                },
                Phase::Open { .. } => match Control::decode(&message) {
                    Some(Control::Fence { id, compute_server }) => {
                        self.fence(index, id, compute_server)
                    }
                    _ => Fate::Leaves,
                },
            };
            if fate == Fate::Leaves {
                return self.close(index);
            }
        }
    }

    /// Lets a peer in that has proven itself.
    fn welcome(&mut self, index: usize, peer: Identity, fences: u64) -> Fate {
        let admitted = self.gates.admit(peer, fences);
        self.sweep(index);
        let Some(visitor) = &mut self.visitors[index].1 else { return Fate::Leaves };
        let Phase::Handshake(responder) = &visitor.phase else { return Fate::Leaves };
        match admitted {
            Ok((gate, fences)) => {
                let welcome = responder.welcome(fences);
                visitor.phase = Phase::Welcomed(gate);
                self.shared.welcomed.fetch_add(1, Ordering::Relaxed);
                say(&mut visitor.socket, &welcome)
            }
            Err(refusal) => {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                let _ = visitor.socket.write(&refusal.message());
                Fate::Leaves
            }
        }
    }

    /// Connects a queue pair to that of an endpoint that has been let in.
    fn connect(&mut self, index: usize, peer: End) -> Fate {
        let Some(visitor) = &mut self.visitors[index].1 else { return Fate::Leaves };
        let Phase::Welcomed(gate) = &visitor.phase else { return Fate::Leaves };
        let gate = Arc::clone(gate);
        let Ok(psn) = draw_epoch() else { return Fate::Leaves };
        let lane = self.next_lane % self.shared.lanes.len();
        self.next_lane = lane + 1;
        let psn = psn as u32 & 0x00ff_ffff;
        match self.shared.lanes[lane].open(peer, psn, gate.peer.number) {
            Ok(own) => {
                visitor.phase = Phase::Open { gate, lane, pair: own.pair };
                let answer = Control::Answer(own, self.shared.lent()).encode();
                say(&mut visitor.socket, &answer)
            }
            Err(_) => {
                let _ = visitor.socket.write(&Refusal::Full.message());
                Fate::Leaves
            }
        }
    }

    fn fence(&mut self, index: usize, id: u64, compute_server: u16) -> Fate {
        self.gates.fence(compute_server);
        self.sweep(index);
        let Some(visitor) = &mut self.visitors[index].1 else { return Fate::Leaves };
        let said = say(&mut visitor.socket, &Control::Fenced { id }.encode());
        match visitor.gate().is_some_and(|gate| gate.enter().is_none()) {
            true => Fate::Leaves,
            false => said,
        }
    }
}

/// Sends one message. A socket that has no room for it is one that is not read from: it is given up.
fn say(socket: &mut TcpStream, message: &[u8]) -> Fate {
    match socket.write_all(message) {
        Ok(()) => Fate::Stays,
        Err(_) => Fate::Leaves,
    }
}
