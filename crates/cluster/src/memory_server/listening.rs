//! Serves a memory server's region over the configured transport. It never falls back to another
//! transport.
//!
//! *Thread safety*: any number of threads may use a listener.

use super::MemoryServerOptions;
use crate::config::{self, ConfigError};
use crate::error::ProgramError;
use crate::records::PoolTransport;
use farleaf_fabric::RegionBacking;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::shm::{ShmServer, ShmServerConfig, ShmServerCounters};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpServer, TcpServerConfig, TcpServerCounters};
#[cfg(feature = "verbs")]
use farleaf_fabric_verbs::{
    DeviceChoice, RdmaUnavailable, VerbsServer, VerbsServerConfig, VerbsServerCounters, probe,
};
use farleaf_page::Layout;
use farleaf_pool::server::MemoryServer;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

/// Counters of a listener.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListenerCounters {
    pub(super) connections: u64,
    pub(super) welcomed: u64,
    pub(super) refused: u64,
    pub(super) requests: u64,
}

/// A listener that serves a region over one transport.
pub(super) trait PoolListener: Send {
    /// The place where it listens, on this machine.
    fn place(&self) -> ListenAddress;
    /// The epoch that it sends in the handshake.
    fn epoch(&self) -> u64;
    fn counted(&self) -> ListenerCounters;
}

impl PoolListener for TcpServer {
    fn place(&self) -> ListenAddress {
        ListenAddress::Address(self.local_address())
    }

    fn epoch(&self) -> u64 {
        self.identity().epoch
    }

    fn counted(&self) -> ListenerCounters {
        let counters = self.counters();
        let TcpServerCounters { connections, welcomed, refused, requests } = counters;
        ListenerCounters { connections, welcomed, refused, requests }
    }
}

impl PoolListener for ShmServer {
    fn place(&self) -> ListenAddress {
        ListenAddress::Socket(self.path().to_owned())
    }

    fn epoch(&self) -> u64 {
        self.identity().epoch
    }

    fn counted(&self) -> ListenerCounters {
        let ShmServerCounters { connections, welcomed, refused, requests } = self.counters();
        ListenerCounters { connections, welcomed, refused, requests }
    }
}

#[cfg(feature = "verbs")]
impl PoolListener for VerbsServer {
    fn place(&self) -> ListenAddress {
        ListenAddress::QueuePairs(self.local_address())
    }

    fn epoch(&self) -> u64 {
        self.identity().epoch
    }

    fn counted(&self) -> ListenerCounters {
        let VerbsServerCounters { connections, welcomed, refused, requests } = self.counters();
        ListenerCounters { connections, welcomed, refused, requests }
    }
}

/// The place where a memory server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListenAddress {
    /// Over tcp; with port 0 the operating system chooses the port.
    Address(SocketAddr),
    /// Over shm.
    Socket(PathBuf),
    /// Over verbs: the TCP address used to set up connections.
    #[cfg(feature = "verbs")]
    QueuePairs(SocketAddr),
}

impl ListenAddress {
    /// The place that these options specify.
    ///
    /// # Errors
    /// [`ProgramError`]: this program was built without the transport, or this machine does not
    /// support it.
    pub(super) fn wanted(options: &MemoryServerOptions) -> Result<Self, ProgramError> {
        match (options.transport, &options.socket) {
            (PoolTransport::Tcp, _) => Ok(Self::Address(options.listen)),
            (PoolTransport::Shm, Some(path)) => Ok(Self::Socket(path.clone())),
            (PoolTransport::Shm, None) => {
                let text = "transport shm needs the path of a socket: --socket PATH";
                Err(ConfigError::Settings(text.to_owned()).into())
            }
            #[cfg(feature = "verbs")]
            (PoolTransport::Verbs, _) => {
                // Probing one page shows whether there is a device. Registering the pool will show
                // whether the pool can be locked.
                probe(&DeviceChoice::default(), 4096).map_err(ProgramError::transport)?;
                Ok(Self::QueuePairs(options.listen))
            }
            #[cfg(not(feature = "verbs"))]
            (PoolTransport::Verbs, _) => Err(config::without_verbs().into()),
        }
    }

    /// The address to publish for compute servers.
    pub(super) fn advertised(&self, options: &MemoryServerOptions) -> Result<String, ConfigError> {
        match self {
            Self::Address(address) => config::advertised(*address, options.advertise.as_deref()),
            #[cfg(feature = "verbs")]
            Self::QueuePairs(address) => config::advertised(*address, options.advertise.as_deref()),
            Self::Socket(path) => path
                .to_str()
                .map(str::to_owned)
                .ok_or_else(|| ConfigError::Settings(format!("{} is not UTF-8", path.display()))),
        }
    }

    /// The kind of memory that this transport can reach.
    pub(super) fn backing(&self) -> RegionBacking {
        match self {
            Self::Address(_) => RegionBacking::Private,
            Self::Socket(_) => RegionBacking::Shared { huge_pages: false },
            #[cfg(feature = "verbs")]
            Self::QueuePairs(_) => RegionBacking::Private,
        }
    }

    /// Serves `service` at this place.
    ///
    /// # Errors
    /// [`ProgramError`]: the address is in use, or the operating system or the device reports an
    /// error.
    pub(super) fn serve<L: Layout>(
        &self,
        options: &MemoryServerOptions,
        service: &Arc<MemoryServer<L>>,
        token: &Token,
    ) -> Result<Box<dyn PoolListener>, ProgramError> {
        let service = Arc::clone(service);
        let bind = |listen: &SocketAddr| {
            let what = format!("cannot listen at {listen}");
            TcpListener::bind(listen).map_err(ProgramError::system(what))
        };
        Ok(match self {
            Self::Address(listen) => {
                let config = TcpServerConfig {
                    number: options.number,
                    io_threads: options.threads,
                    connections: options.connections,
                    ..TcpServerConfig::default()
                };
                let server = TcpServer::start(bind(listen)?, service, token, config);
                Box::new(server.map_err(ProgramError::system("the listener"))?)
            }
            Self::Socket(path) => {
                let config = ShmServerConfig {
                    number: options.number,
                    threads: options.threads,
                    max_endpoints: options.connections,
                    ..ShmServerConfig::default()
                };
                let server = ShmServer::start(path, service, token, config);
                Box::new(server.map_err(|error| {
                    ProgramError::Failed(format!("cannot serve at {}: {error}", path.display()))
                })?)
            }
            #[cfg(feature = "verbs")]
            Self::QueuePairs(listen) => {
                let config = VerbsServerConfig {
                    number: options.number,
                    threads: options.threads,
                    connections: options.connections,
                    ..VerbsServerConfig::default()
                };
                let server = VerbsServer::start(bind(listen)?, service, token, config);
                Box::new(server.map_err(|error| match error.downcast::<RdmaUnavailable>() {
                    Ok(missing) => ProgramError::transport(missing),
                    Err(error) => ProgramError::system("the listener")(error),
                })?)
            }
        })
    }
}
