//! The servers of a cluster as its clients know them: where they are, what they prove to be, and
//! whether they have been restarted since.
//!
//! *Thread safety*: any number of threads.

use crate::ServerId;
use crate::clock::Clock;
use crate::handshake::{Role, Token};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// What a server that was restarted is to those who knew the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStarts {
    /// Another server: its memory is not what it was.
    Once,
    /// The same: clients of compute servers know nothing that a restart could make wrong.
    Again,
}

/// What the servers of a cluster are to its clients.
#[derive(Clone, Copy, Debug)]
pub struct PeersConfig {
    /// What they must prove to be.
    pub role: Role,
    /// What one is that was restarted.
    pub starts: ServerStarts,
    /// The longest that it may take to connect to one, in nanoseconds.
    pub connect_timeout_ns: u64,
}

/// The servers of a cluster.
#[derive(Debug)]
pub struct Peers {
    /// Where each server is, from the next connection on.
    addresses: Vec<Mutex<SocketAddr>>,
    /// The epoch of each server, 0 as long as nothing has connected to it.
    epochs: Vec<AtomicU64>,
    config: PeersConfig,
    token: Token,
    clock: Clock,
}

impl Peers {
    /// Servers that nothing has connected to yet, numbered in the order of their addresses.
    pub fn new(addresses: Vec<SocketAddr>, token: &Token, config: PeersConfig) -> Self {
        Self {
            epochs: addresses.iter().map(|_| AtomicU64::new(0)).collect(),
            addresses: addresses.into_iter().map(Mutex::new).collect(),
            config,
            token: token.clone(),
            clock: Clock::start(),
        }
    }

    /// How many there are.
    pub fn count(&self) -> u16 {
        u16::try_from(self.addresses.len()).unwrap_or(ServerId::LIMIT)
    }

    /// What they are to their clients.
    pub fn config(&self) -> &PeersConfig {
        &self.config
    }

    /// What both sides know.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The cluster's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Where a server is.
    pub fn address(&self, server: ServerId) -> SocketAddr {
        *lock(&self.addresses[server.index()])
    }

    /// Says that a server is at another address from the next connection on.
    pub fn relocate(&self, server: ServerId, address: SocketAddr) {
        if let Some(place) = self.addresses.get(server.index()) {
            *lock(place) = address;
        }
    }

    /// Whether `epoch` is that of the `server` that this cluster knows.
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

    /// The epoch of `server`, once something of this cluster has connected to it.
    pub fn known_epoch(&self, server: ServerId) -> Option<u64> {
        let epoch = self.epochs.get(server.index())?.load(Ordering::Acquire);
        (epoch != 0).then_some(epoch)
    }
}

/// Starts a server for each service in this process, on sockets of the loopback interface; the
/// token, and the servers.
///
/// # Errors
/// What the operating system says, or `start`, which is given the socket and the number of each.
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
