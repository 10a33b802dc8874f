//! The servers of a cluster from their clients' point of view: their addresses, the identity that
//! they must prove, and whether they have been restarted.
//!
//! *Thread safety*: any number of threads.

use crate::ServerId;
use crate::clock::ClusterClock;
use crate::handshake::{PeerRole, Token};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// How clients treat a restarted server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStarts {
    /// As a new server: its memory is lost.
    Once,
    /// As the same server: clients of compute servers keep no state that a restart invalidates.
    Again,
}

/// Client-side settings for the servers of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct PeersConfig {
    /// The role that they must prove.
    pub role: PeerRole,
    /// How to treat a restarted server.
    pub starts: ServerStarts,
    /// Time limit for connecting to a server, in nanoseconds.
    pub connect_timeout_ns: u64,
}

/// The servers of a cluster.
#[derive(Debug)]
pub struct Peers {
    /// Address of each server, used from the next connection on.
    addresses: Vec<Mutex<SocketAddr>>,
    /// The epoch of each server, 0 until an endpoint has connected to it.
    epochs: Vec<AtomicU64>,
    config: PeersConfig,
    token: Token,
    clock: ClusterClock,
}

impl Peers {
    /// Creates servers without connections, numbered in the order of `addresses`.
    pub fn new(addresses: Vec<SocketAddr>, token: &Token, config: PeersConfig) -> Self {
        Self {
            epochs: addresses.iter().map(|_| AtomicU64::new(0)).collect(),
            addresses: addresses.into_iter().map(Mutex::new).collect(),
            config,
            token: token.clone(),
            clock: ClusterClock::start(),
        }
    }

    /// The number of servers.
    pub fn count(&self) -> u16 {
        u16::try_from(self.addresses.len()).unwrap_or(ServerId::LIMIT)
    }

    /// The clients' settings.
    pub fn config(&self) -> &PeersConfig {
        &self.config
    }

    /// The token shared by clients and servers.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The cluster's clock.
    pub fn clock(&self) -> &ClusterClock {
        &self.clock
    }

    /// The address of a server.
    pub fn address(&self, server: ServerId) -> SocketAddr {
        *lock(&self.addresses[server.index()])
    }

    /// Records a server's new address, used from the next connection on.
    pub fn relocate(&self, server: ServerId, address: SocketAddr) {
        if let Some(place) = self.addresses.get(server.index()) {
            *lock(place) = address;
        }
    }

    /// Whether `epoch` is the known epoch of `server`. The first epoch seen becomes the known one.
    pub fn is_known(&self, server: ServerId, epoch: u64) -> bool {
        let known = &self.epochs[server.index()];
        if self.config.starts == ServerStarts::Again {
            known.store(epoch, Ordering::Release);
            return true;
        }
        match known.compare_exchange(0, epoch, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(known) => known == epoch,
        }
    }

    /// The known epoch of `server`, once an endpoint of this cluster has connected to it.
    pub fn known_epoch(&self, server: ServerId) -> Option<u64> {
        let epoch = self.epochs.get(server.index())?.load(Ordering::Acquire);
        (epoch != 0).then_some(epoch)
    }
}

/// Starts a server for each service in this process, on sockets of the loopback interface. Returns
/// the token and the servers.
///
/// # Errors
/// The operating system's error, or that of `start`, which receives each server's socket and
/// number.
pub fn start_on_loopback<S, T>(
    services: Vec<Arc<S>>,
    start: impl Fn(TcpListener, u16, Arc<S>, &Token) -> io::Result<T>,
) -> io::Result<(Token, Vec<T>)> {
    let token = Token::draw()?;
    let start = |(number, service)| {
        start(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, number, service, &token)
    };
    let servers = (0..).zip(services).map(start).collect::<io::Result<Vec<_>>>()?;
    Ok((token, servers))
}
