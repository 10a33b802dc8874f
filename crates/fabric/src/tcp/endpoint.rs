//! Endpoints over TCP: one connection to each server, with many operations in flight on each.
//!
//! *Thread safety*: one thread.

use super::cluster::{TcpClusterShared, TcpConfig};
use super::link::FrameQueue;
use super::op::TcpProgress;
use crate::body::OpBody;
use crate::clock::ClusterClock;
use crate::endpoint::dial::{DialingTransport, DialledLink, reset_link};
use crate::endpoint::{
    ClientReactor, Endpoint, EndpointDriver, EndpointInner, EndpointOp, EndpointSettings,
    NoHeldRead, OpSlot, Peers, PollingPolicy, Transport,
};
use crate::handshake::{PeerIdentity, PeerRole};
use crate::sync::Arc;
use crate::{FabricError, ServerId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Maximum time that a dropped endpoint waits for its posted operations, in nanoseconds.
const LINGER_NS: u64 = 1_000_000_000;

/// The transport: operations as frames over TCP.
#[derive(Debug)]
pub struct Tcp {
    shared: Arc<TcpClusterShared>,
}

/// One endpoint of a compute server, over TCP.
pub type TcpFabric = Endpoint<Tcp>;

/// A posted operation over TCP.
pub type TcpOp<T> = EndpointOp<T, Tcp>;

/// Drives the endpoints of one thread; give it to an [`crate::executor::Executor`].
pub type TcpDriver = EndpointDriver<Tcp>;

impl Transport for Tcp {
    type Cluster = TcpClusterShared;
    type Error = io::Error;
    type Source = ();
    type Progress = TcpProgress;
    type Link = DialledLink<FrameQueue>;
    type HeldRead = NoHeldRead;

    /// A memory server executes a WRITE when it has received all of it.
    const TEARS: bool = false;

    fn settings(shared: &TcpClusterShared) -> EndpointSettings {
        let TcpConfig { role, depth, timeout_ns, seed, .. } = shared.config;
        EndpointSettings { role, memory_servers: shared.peers.count(), depth, timeout_ns, seed }
    }

    fn looks(shared: &TcpClusterShared) -> PollingPolicy {
        let before_waiting = shared.config.looks_before_waiting;
        PollingPolicy { before_waiting, in_memory: false, unheard: 1, short_wait_ns: 0 }
    }

    fn clock(shared: &TcpClusterShared) -> &ClusterClock {
        shared.peers.clock()
    }

    fn source(_: &TcpClusterShared, _: &OwnedFd, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn open(
        shared: &Arc<TcpClusterShared>,
        _: &ClientReactor<Self>,
        _: PeerIdentity,
        _: u64,
    ) -> io::Result<(Self, Vec<DialledLink<FrameQueue>>)> {
        let window_bytes = shared.config.window_bytes;
        let link = |server| DialledLink::new(ServerId::new(server), FrameQueue::new(window_bytes));
        let links = (0..shared.peers.count()).map(link).collect();
        Ok((Self { shared: Arc::clone(shared) }, links))
    }

    fn begin(&self, body: &OpBody) -> Result<TcpProgress, FabricError> {
        // Frames have 32-bit lengths.
        match body {
            OpBody::Read { into: buffer, .. } | OpBody::Write { from: buffer, .. }
                if u32::try_from(buffer.bytes()).is_err() =>
            {
                Err(FabricError::MessageTooLarge { bytes: buffer.bytes() })
            }
            _ => Ok(TcpProgress::default()),
        }
    }

    /// Reports `NotSent` if nothing of the operation was sent. Only clients make this distinction:
    /// a compute server that is unsure of an operation on a memory server fences or rereads in
    /// either case.
    fn ended(&self, error: FabricError, slot: &OpSlot<TcpProgress>) -> FabricError {
        match error {
            FabricError::Indeterminate { server, .. }
                if self.shared.config.role == PeerRole::Client && slot.progress.is_unsent() =>
            {
                FabricError::NotSent { server }
            }
            error => error,
        }
    }

    fn breaks_off(&self, slot: &OpSlot<TcpProgress>) -> bool {
        !(slot.progress.is_sent || slot.progress.is_aside)
    }

    /// Also sends what waits for the window, and waits for the answers. If a socket is closed
    /// before they arrive, it answers them with a reset, which discards everything that it has yet
    /// to send.
    fn linger(endpoint: &EndpointInner<Self>) {
        for link in &mut endpoint.core.borrow_mut().links {
            link.wire_mut().lift_window();
        }
        let (_, mut nearest_ns) = endpoint.drive();
        if std::thread::panicking() {
            return;
        }
        let until_ns = endpoint.resources.now_ns().saturating_add(LINGER_NS);
        loop {
            let now_ns = endpoint.resources.now_ns();
            if now_ns >= until_ns {
                return;
            }
            let wait_ns = nearest_ns.min(until_ns).saturating_sub(now_ns);
            let Some(ready) = wait_for_answers(endpoint, wait_ns) else { return };
            ready.iter().for_each(|server| endpoint.visit(server.number()));
            (_, nearest_ns) = endpoint.drive();
        }
    }

    async fn reset(
        endpoint: &Rc<EndpointInner<Self>>,
        server: ServerId,
    ) -> Result<(), FabricError> {
        reset_link(endpoint, server).await
    }
}

/// Waits up to `wait_ns` until a socket can be used over which an operation other than a READ is
/// pending. Returns the servers of such sockets, which are none on a timeout; `None` if nothing is
/// pending. READs are not waited for, because no future will take their results.
fn wait_for_answers(endpoint: &EndpointInner<Tcp>, wait_ns: u64) -> Option<Vec<ServerId>> {
    let core = endpoint.core.borrow();
    let due =
        core.slots.iter_pending().filter(|(_, slot)| !matches!(slot.body, OpBody::Read { .. }));
    let mut servers: Vec<_> = due.map(|(_, slot)| slot.server).collect();
    servers.sort_unstable();
    servers.dedup();
    servers.retain(|server| core.links[server.index()].open_socket().is_some());
    if servers.is_empty() {
        return None;
    }
    let watch = |server: &ServerId| {
        let link = &core.links[server.index()];
        let out = if link.wire().is_blocked() { PollFlags::OUT } else { PollFlags::empty() };
        link.open_socket().map(|socket| PollFd::new(socket, PollFlags::IN | out))
    };
    let mut sockets: Vec<_> = servers.iter().filter_map(watch).collect();
    let seconds = wait_ns / 1_000_000_000;
    let wait = Timespec { tv_sec: seconds as i64, tv_nsec: (wait_ns % 1_000_000_000) as i64 };
    // An interruption only shortens the wait.
    let _ = poll(&mut sockets, Some(&wait));
    let is_ready = |socket: &PollFd<'_>| !socket.revents().is_empty();
    let ready = servers.iter().zip(&sockets).filter(|(_, socket)| is_ready(socket));
    Some(ready.map(|(server, _)| *server).collect())
}

impl DialingTransport for Tcp {
    fn peers(&self) -> &Peers {
        &self.shared.peers
    }
}
