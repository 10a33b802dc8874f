//! Endpoints over TCP: one connection to each server, with many operations in flight on each.
//!
//! *Thread safety*: one thread.

use super::cluster::{Shared, TcpConfig};
use super::link::Frames;
use super::op::Progress;
use crate::clock::Clock;
use crate::endpoint::dial::{Dialled, Dials, reset_link};
use crate::endpoint::{
    Body, Endpoint, EndpointDriver, Inner, Looks, NoHeldRead, Op, Peers, Reactor, Settings, Slot,
    Transport,
};
use crate::handshake::{Identity, Role};
use crate::sync::Arc;
use crate::{FabricError, ServerId};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// The transport: operations as frames over TCP.
#[derive(Debug)]
pub struct Tcp {
    shared: Arc<Shared>,
}

/// One endpoint of a compute server, over TCP.
pub type TcpFabric = Endpoint<Tcp>;

/// A posted operation over TCP.
pub type TcpOp<T> = Op<T, Tcp>;

/// Drives the endpoints of one thread; give it to an [`crate::executor::Executor`].
pub type TcpDriver = EndpointDriver<Tcp>;

impl Transport for Tcp {
    type Cluster = Shared;
    type Error = io::Error;
    type Source = ();
    type Progress = Progress;
    type Link = Dialled<Frames>;
    type HeldRead = NoHeldRead;

    fn settings(shared: &Shared) -> Settings {
        let TcpConfig { role, depth, timeout_ns, seed, .. } = shared.config;
        Settings { role, memory_servers: shared.peers.count(), depth, timeout_ns, seed }
    }

    fn looks(shared: &Shared) -> Looks {
        let before_waiting = shared.config.looks_before_waiting;
        Looks { before_waiting, in_memory: false, unheard: 1, short_wait_ns: 0 }
    }

    fn clock(shared: &Shared) -> &Clock {
        shared.peers.clock()
    }

    fn source(_: &Shared, _: &OwnedFd, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn open(
        shared: &Arc<Shared>,
        _: &Reactor<Self>,
        _: Identity,
        _: u64,
    ) -> io::Result<(Self, Vec<Dialled<Frames>>)> {
        let window_bytes = shared.config.window_bytes;
        let link = |server| Dialled::new(ServerId::new(server), Frames::new(window_bytes));
        let links = (0..shared.peers.count()).map(link).collect();
        Ok((Self { shared: Arc::clone(shared) }, links))
    }

    fn begin(&self, body: &Body) -> Result<Progress, FabricError> {
        // Frames have 32-bit lengths.
        match body {
            Body::Read { into: buffer, .. } | Body::Write { from: buffer, .. }
                if u32::try_from(buffer.bytes()).is_err() =>
            {
                Err(FabricError::MessageTooLarge { bytes: buffer.bytes() })
            }
            _ => Ok(Progress::default()),
        }
    }

    /// Reports `NotSent` if nothing of the operation was sent. Only clients make this distinction:
    /// a compute server that is unsure of an operation on a memory server fences or reads again in
    /// either case.
    fn ended(&self, error: FabricError, slot: &Slot<Progress>) -> FabricError {
        match error {
            FabricError::Indeterminate { server, .. }
                if self.shared.config.role == Role::Client && slot.progress.is_unsent() =>
            {
                FabricError::NotSent { server }
            }
            error => error,
        }
    }

    fn breaks_off(&self, slot: &Slot<Progress>) -> bool {
        !(slot.progress.is_sent || slot.progress.is_aside)
    }

    /// Sends what waits for the window too, as far as the sockets accept it.
    fn linger(endpoint: &Inner<Self>) {
        for link in &mut endpoint.core.borrow_mut().links {
            link.wire_mut().lift_window();
        }
        endpoint.drive();
    }

    async fn reset(endpoint: &Rc<Inner<Self>>, server: ServerId) -> Result<(), FabricError> {
        reset_link(endpoint, server).await
    }
}

impl Dials for Tcp {
    fn peers(&self) -> &Peers {
        &self.shared.peers
    }
}
