//! The acceptor of a server: the thread that admits endpoints over TCP, and connects and destroys
//! their queue pairs.
//!
//! *Invariants*: acceptor.E2. The queue pair behind a closed gate is gone before any client is told
//! that the gate was closed (F9, F10). acceptor.E3. Input that is not a message of this protocol
//! closes its connection, and has no other effect.
//!
//! *Thread safety*: one thread.

use crate::bring_up::{AccessibleMemory, ConnectionEnd, ControlMessage};
use crate::lane::ServerLane;
use crate::objects::Registration;
use farleaf_fabric::handshake::{HandshakeRefusal, MessageAssembler, PeerIdentity, draw_epoch};
use farleaf_fabric::listener::{
    Acceptor, AcceptorPlace, Admitted, GreetingState, LISTENER, Listener, WAKE, place_of,
};
use farleaf_fabric::provider::{ConnectionGate, SocketRead, WakeFd, next_message};
use farleaf_fabric::sync::{Arc, AtomicBool, Ordering};
use std::io::{self, Write};
use std::net::TcpListener;

/// State that the acceptor shares with the handle of its server.
#[derive(Debug)]
pub(crate) struct AcceptorShared {
    pub(crate) listener: Arc<Listener>,
    pub(crate) lanes: Vec<ServerLane>,
    pub(crate) memory: Registration,
    pub(crate) wake: WakeFd,
    pub(crate) stopped: AtomicBool,
}

impl AcceptorShared {
    /// The region's key, address and size, which endpoints need to access it.
    pub(crate) fn lent(&self) -> AccessibleMemory {
        let memory = &self.memory;
        let bytes = memory.region().bytes() as u64;
        AccessibleMemory { rkey: memory.rkey, base: memory.address(), bytes }
    }
}

/// An admitted endpoint.
#[derive(Debug)]
struct AdmittedEndpoint {
    gate: Arc<ConnectionGate>,
    gather: MessageAssembler,
    /// Its lane and the number of its queue pair, once it has sent its offer.
    pair: Option<(usize, u32)>,
}

impl Admitted for AdmittedEndpoint {
    fn gate(&self) -> &Arc<ConnectionGate> {
        &self.gate
    }

    fn is_settled(&self) -> bool {
        self.pair.is_some()
    }
}

#[derive(Debug)]
pub(crate) struct QueuePairAcceptor {
    acceptor: Acceptor<AdmittedEndpoint>,
    shared: Arc<AcceptorShared>,
    next_lane: usize,
}

impl QueuePairAcceptor {
    pub(crate) fn new(socket: TcpListener, shared: &Arc<AcceptorShared>) -> io::Result<Self> {
        let acceptor = Acceptor::new(&shared.listener, Some(socket), &shared.wake)?;
        Ok(Self { acceptor, shared: Arc::clone(shared), next_lane: 0 })
    }

    pub(crate) fn run(&mut self) {
        let mut events = Vec::new();
        while !self.shared.stopped.load(Ordering::Acquire) {
            self.acceptor.wait(&mut events, self.acceptor.timeout());
            for (token, _) in &events {
                match *token {
                    LISTENER => self.acceptor.accept(Some),
                    WAKE => self.shared.wake.clear(),
                    token => self.visit(place_of(token)),
                }
            }
            self.acceptor.expire();
        }
        for place in self.acceptor.places() {
            self.close(place);
        }
    }

    fn close(&mut self, place: AcceptorPlace) {
        if let Some(AdmittedEndpoint { pair: Some((lane, pair)), .. }) = self.acceptor.close(place)
        {
            self.shared.lanes[lane].close(pair);
        }
    }

    /// Destroys the queue pairs behind closed gates, and closes their connections except the one at
    /// `except`.
    fn sweep(&mut self, except: AcceptorPlace) {
        for place in self.acceptor.shut_out() {
            if place != except {
                self.close(place);
            } else if let Some((_, guest)) = self.acceptor.admitted(place)
                && let Some((lane, pair)) = guest.pair.take()
            {
                self.shared.lanes[lane].close(pair);
            }
        }
    }

    /// Handles an event on a socket.
    fn visit(&mut self, place: AcceptorPlace) {
        match self.acceptor.hear(place) {
            GreetingState::Pending | GreetingState::Ended => return,
            GreetingState::Admitted => {}
            GreetingState::Proven(peer, fences) => {
                if !self.let_in(place, peer, fences) {
                    return;
                }
            }
        }
        while let Some((socket, guest)) = self.acceptor.admitted(place) {
            let message = match next_message(socket, &mut guest.gather) {
                SocketRead::Message(message) => message,
                SocketRead::Nothing => return,
                SocketRead::End => return self.close(place),
            };
            let stays = match (guest.is_settled(), ControlMessage::decode(&message)) {
                (false, Some(ControlMessage::Offer(end))) => self.connect(place, end),
                (true, Some(ControlMessage::Fence { id, compute_server })) => {
                    self.fence(place, id, compute_server)
                }
                _ => false,
            };
            if !stays {
                return self.close(place);
            }
        }
    }

    /// Admits a peer that has proven itself, after the queue pair of its last connection is gone.
    /// Returns whether its connection is still open.
    fn let_in(&mut self, place: AcceptorPlace, peer: PeerIdentity, fences: u64) -> bool {
        let Some((gate, fences)) = self.acceptor.admit(place, peer, fences) else { return false };
        self.sweep(place);
        self.acceptor.welcome(
            place,
            fences,
            AdmittedEndpoint { gate, gather: MessageAssembler::default(), pair: None },
        )
    }

    /// Sends one message. Returns whether the connection is still open. If a socket has no room for
    /// the message, its peer does not read, so the connection is closed.
    fn say(&mut self, place: AcceptorPlace, message: &[u8]) -> bool {
        let admitted = self.acceptor.admitted(place);
        admitted.is_some_and(|(socket, _)| socket.write_all(message).is_ok())
    }

    /// Connects a new queue pair to that of an admitted endpoint. Returns whether its connection is
    /// still open.
    fn connect(&mut self, place: AcceptorPlace, peer: ConnectionEnd) -> bool {
        let Some((_, guest)) = self.acceptor.admitted(place) else { return false };
        let Ok(psn) = draw_epoch() else { return false };
        let lane = self.next_lane % self.shared.lanes.len();
        self.next_lane = lane + 1;
        let psn = psn as u32 & 0x00ff_ffff;
        match self.shared.lanes[lane].open(peer, psn, guest.gate.peer.number) {
            Ok(own) => {
                guest.pair = Some((lane, own.pair));
                let answer = ControlMessage::Answer(own, self.shared.lent()).encode();
                self.say(place, &answer)
            }
            Err(_) => {
                self.say(place, &HandshakeRefusal::Full.message());
                false
            }
        }
    }

    /// Fences a compute server. Returns whether the requesting connection is still open.
    fn fence(&mut self, place: AcceptorPlace, id: u64, compute_server: u16) -> bool {
        self.shared.listener.gates.fence(compute_server);
        self.sweep(place);
        let said = self.say(place, &ControlMessage::Fenced { id }.encode());
        let guest = self.acceptor.admitted(place);
        said && guest.is_some_and(|(_, guest)| guest.gate.enter().is_some())
    }
}
