//! The state that all endpoints of this process share: the servers with their regions, one
//! connection per server for the whole process, and the thread that listens to these connections.
//!
//! The listening thread notices when a server is gone. It also stops endpoints at a server's
//! request, after their compute server has been fenced (F10). This works even if the endpoints' own
//! threads are busy elsewhere for a long time.
//!
//! *Invariants*: process.P1. An endpoint's gate is registered before its first verb; it is closed
//! from the start if the endpoint was fenced, or its server lost, before that. process.P2.
//! `Stopped` is only sent for gates that are closed and empty. process.P3. A server that was lost
//! stays lost.
//!
//! *Thread safety*: any thread.

use super::gate::VerbGate;
use super::socket::{self, SocketPacket};
use super::{ShmConfig, ShmError};
use crate::clock::ClusterClock;
use crate::handshake::Token;
use crate::listener::start_thread;
use crate::sync::{Arc, Mutex, lock, thread};
use crate::{Region, ServerId, Uncertainty};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::task::Waker;
use std::thread::JoinHandle;

/// This process's view of a memory server.
#[derive(Debug)]
pub(super) struct ShmServerView {
    pub(super) id: ServerId,
    pub(super) path: PathBuf,
    pub(super) region: Arc<Region>,
    /// The connection of the whole process.
    pub(super) socket: OwnedFd,
    /// This process's number at the server.
    pub(super) process: u64,
    /// The epoch that the server drew when it started.
    pub(super) epoch: u64,
}

#[derive(Debug)]
pub struct ShmProcess {
    pub(super) config: ShmConfig,
    pub(super) token: Token,
    pub(super) servers: Vec<ShmServerView>,
    pub(super) clock: ClusterClock,
    /// Stops the listening thread.
    pub(super) stop: OwnedFd,
    state: Mutex<ShmProcessState>,
}

#[derive(Debug, Default)]
struct ShmProcessState {
    gates: Vec<RegisteredEndpoint>,
    lost: Vec<bool>,
    /// By server and compute server: the first endpoint number that no fence covers.
    fenced_below: BTreeMap<(ServerId, u16), u64>,
    asked: BTreeMap<u64, FenceRequest>,
    next_request: u64,
}

#[derive(Debug)]
struct RegisteredEndpoint {
    server: ServerId,
    compute_server: u16,
    number: u64,
    gate: Arc<VerbGate>,
}

/// A requested fence.
#[derive(Debug)]
struct FenceRequest {
    server: ServerId,
    outcome: Option<Result<(), Uncertainty>>,
    waker: Option<Waker>,
}

/// Number of times that the listening thread yields to a verb in progress before it gives up on a
/// fence, whose requester then times out. A verb takes microseconds, unless its thread is
/// descheduled.
const MAX_YIELDS: usize = 100_000;

impl ShmProcess {
    pub(super) fn new(
        config: ShmConfig,
        token: Token,
        servers: Vec<ShmServerView>,
        clock: ClusterClock,
        stop: OwnedFd,
    ) -> Self {
        let state =
            ShmProcessState { lost: vec![false; servers.len()], ..ShmProcessState::default() };
        Self { config, token, servers, clock, stop, state: Mutex::new(state) }
    }

    /// Registers endpoint `number` of `compute_server` at `server`, and returns its gate.
    pub(super) fn register(
        &self,
        server: ServerId,
        compute_server: u16,
        number: u64,
    ) -> Arc<VerbGate> {
        let gate = Arc::new(VerbGate::default());
        let mut state = lock(&self.state);
        let fenced_below = state.fenced_below.get(&(server, compute_server));
        if state.lost[server.index()] || fenced_below.is_some_and(|below| number < *below) {
            gate.close();
        }
        state.gates.push(RegisteredEndpoint {
            server,
            compute_server,
            number,
            gate: Arc::clone(&gate),
        });
        gate
    }

    pub(super) fn unregister(&self, gate: &Arc<VerbGate>) {
        lock(&self.state).gates.retain(|registered| !Arc::ptr_eq(&registered.gate, gate));
    }

    pub(super) fn is_lost(&self, server: ServerId) -> bool {
        lock(&self.state).lost[server.index()]
    }

    /// Marks a server as gone: from now on, operations on it end as indeterminate.
    pub(super) fn lose(&self, server: ServerId) {
        let mut state = lock(&self.state);
        state.lost[server.index()] = true;
        for registered in state.gates.iter().filter(|registered| registered.server == server) {
            registered.gate.close();
        }
        for asked in state.asked.values_mut().filter(|asked| asked.server == server) {
            asked.answer(Err(Uncertainty::ConnectionLost));
        }
    }

    /// Asks `server` to fence a compute server. Returns the request's number for
    /// [`Self::fence_outcome`].
    pub(super) fn ask_fence(&self, server: ServerId, compute_server: u16) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.lost[server.index()] {
            return None;
        }
        let request = state.next_request;
        state.next_request += 1;
        let packet = SocketPacket::Fence { request, compute_server };
        socket::send_packet(&self.servers[server.index()].socket, packet).ok()?;
        state.asked.insert(request, FenceRequest { server, outcome: None, waker: None });
        Some(request)
    }

    /// The outcome of a fence. If there is none yet, stores `waker` and wakes it later.
    pub(super) fn fence_outcome(
        &self,
        request: u64,
        waker: &Waker,
    ) -> Option<Result<(), Uncertainty>> {
        let mut state = lock(&self.state);
        let asked = state.asked.get_mut(&request)?;
        if asked.outcome.is_none() {
            asked.waker = Some(waker.clone());
        }
        asked.outcome
    }

    pub(super) fn forget_fence(&self, request: u64) {
        lock(&self.state).asked.remove(&request);
    }

    /// Listens to the servers until it is told to stop.
    pub(super) fn listen(&self) {
        loop {
            let heard: Vec<&ShmServerView> =
                self.servers.iter().filter(|server| !self.is_lost(server.id)).collect();
            let mut polled: Vec<PollFd<'_>> = std::iter::once(&self.stop)
                .chain(heard.iter().map(|server| &server.socket))
                .map(|socket| PollFd::new(socket, PollFlags::IN))
                .collect();
            match poll(&mut polled, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => panic!("listening to memory servers: {errno}"),
            }
            if !polled[0].revents().is_empty() {
                return;
            }
            for (server, polled) in heard.iter().zip(&polled[1..]) {
                if !polled.revents().is_empty() {
                    self.hear(server);
                }
            }
        }
    }

    fn hear(&self, server: &ShmServerView) {
        let packet = match socket::receive(&server.socket) {
            Ok(None) => return,
            Ok(Some(received)) => received.packet(),
            Err(_) => None,
        };
        match packet {
            Some(SocketPacket::Stop { fence, compute_server, below }) => {
                if self.stop_endpoints(server.id, compute_server, below) {
                    // If sending fails, the server is gone or far behind, and the requester times
                    // out.
                    let _ = socket::send_packet(&server.socket, SocketPacket::Stopped { fence });
                }
            }
            Some(SocketPacket::Fenced { request }) => {
                if let Some(asked) = lock(&self.state).asked.get_mut(&request) {
                    asked.answer(Ok(()));
                }
            }
            // The connection has ended, or the server sent an invalid packet.
            _ => self.lose(server.id),
        }
    }

    /// Closes the gates of the endpoints; returns whether all of them became empty.
    fn stop_endpoints(&self, server: ServerId, compute_server: u16, below: u64) -> bool {
        let gates: Vec<Arc<VerbGate>> = {
            let mut state = lock(&self.state);
            let known = state.fenced_below.entry((server, compute_server)).or_default();
            *known = below.max(*known);
            let concerned = |it: &&RegisteredEndpoint| {
                it.server == server && it.compute_server == compute_server && it.number < below
            };
            state.gates.iter().filter(concerned).map(|it| Arc::clone(&it.gate)).collect()
        };
        gates.iter().for_each(|gate| gate.close());
        gates.iter().all(|gate| {
            (0..MAX_YIELDS).any(|_| {
                if !gate.is_empty() {
                    #[expect(clippy::disallowed_methods, reason = "no endpoint to wait through")]
                    thread::yield_now();
                }
                gate.is_empty()
            })
        })
    }
}

impl FenceRequest {
    fn answer(&mut self, outcome: Result<(), Uncertainty>) {
        self.outcome.get_or_insert(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A process with its listening thread, which ends when the last user drops this.
#[derive(Debug)]
pub struct ListeningProcess {
    process: Arc<ShmProcess>,
    thread: Option<JoinHandle<()>>,
}

impl ListeningProcess {
    pub(super) fn start(process: ShmProcess) -> Result<Self, ShmError> {
        let process = Arc::new(process);
        let listened = Arc::clone(&process);
        let thread = start_thread("shm-listener".into(), move || listened.listen())?;
        Ok(Self { process, thread: Some(thread) })
    }
}

impl Deref for ListeningProcess {
    type Target = ShmProcess;

    fn deref(&self) -> &ShmProcess {
        &self.process
    }
}

impl Drop for ListeningProcess {
    fn drop(&mut self) {
        let told = rustix::io::write(&self.process.stop, &1_u64.to_ne_bytes());
        if let (Ok(_), Some(thread)) = (told, self.thread.take()) {
            let _ = thread.join();
        }
    }
}
