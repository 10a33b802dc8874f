//! The memory servers of this host, as used by another process.

use super::connection::{ShmHello, greet};
use super::endpoint::{Shm, ShmDriver};
use super::process::{ListeningProcess, ShmProcess, ShmServerView};
use super::server::{ShmServer, ShmServerConfig};
use super::socket::SocketPacket;
use super::{ShmConfig, ShmError};
use crate::clock::ClusterClock;
use crate::endpoint::EndpointCluster;
use crate::handshake::{PeerIdentity, PeerRole, Token, draw_epoch};
use crate::sync::{Arc, Mutex, lock};
use crate::{Region, RpcService, ServerId};
use rustix::event::{EventfdFlags, eventfd};
use std::path::{Path, PathBuf};

/// This process's connection to memory servers that are other processes of this host.
#[derive(Debug)]
pub struct ShmCluster {
    pub(super) process: Arc<ListeningProcess>,
    /// Memory servers that run in this process.
    own: Mutex<Vec<Option<ShmServer>>>,
    folder: Option<SocketFolder>,
}

impl ShmCluster {
    /// Connects to the memory servers at `paths`, numbered in their order, and maps their regions.
    ///
    /// # Errors
    /// [`ShmError`] if a server cannot be reached, refuses, or has another token or number.
    pub fn connect<P: AsRef<Path>>(
        paths: &[P],
        token: &Token,
        config: &ShmConfig,
    ) -> Result<Self, ShmError> {
        let clock = ClusterClock::start();
        let me = PeerIdentity { role: PeerRole::Client, number: 0, epoch: draw_epoch()? };
        let servers = (0..)
            .zip(paths)
            .map(|(number, path)| {
                Self::map(ServerId::new(number), path.as_ref(), token, me, &clock, config)
            })
            .collect::<Result<Vec<ShmServerView>, ShmError>>()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let process = ShmProcess::new(config.clone(), token.clone(), servers, clock, stop);
        let process = Arc::new(ListeningProcess::start(process)?);
        Ok(Self { process, own: Mutex::default(), folder: None })
    }

    fn map(
        id: ServerId,
        path: &Path,
        token: &Token,
        me: PeerIdentity,
        clock: &ClusterClock,
        config: &ShmConfig,
    ) -> Result<ShmServerView, ShmError> {
        let hello = ShmHello { server: id, path, token, me, timeout_ns: config.timeout_ns };
        let opened = greet(&hello, SocketPacket::OpenProcess, clock)?;
        let bytes = usize::try_from(opened.bytes).unwrap_or(usize::MAX);
        let region = Arc::new(Region::map_memfd(opened.file, bytes)?);
        Ok(ShmServerView {
            id,
            path: path.to_owned(),
            region,
            socket: opened.socket,
            process: opened.number,
            epoch: opened.peer.epoch,
        })
    }

    /// Starts a memory server in this process for each service, and connects to them.
    pub(crate) fn start<S: RpcService>(
        config: &ShmConfig,
        services: Vec<Arc<S>>,
    ) -> Result<Self, ShmError> {
        let folder = SocketFolder::new()?;
        let token = Token::draw()?;
        let paths: Vec<PathBuf> =
            (0..services.len()).map(|number| folder.0.join(format!("{number}.socket"))).collect();
        let own = (0..)
            .zip(services.into_iter().zip(&paths))
            .map(|(number, (service, path))| {
                let server = ShmServerConfig { number, ..config.server.clone() };
                ShmServer::start(path, service, &token, server).map(Some)
            })
            .collect::<Result<Vec<_>, ShmError>>()?;
        let mut cluster = Self::connect(&paths, &token, config)?;
        *lock(&cluster.own) = own;
        cluster.folder = Some(folder);
        Ok(cluster)
    }

    /// Creates a driver that opens and drives endpoints on the calling thread, for long-running
    /// programs that have their own [`crate::executor::Executor`].
    ///
    /// # Errors
    /// [`ShmError::System`] if there are no more file descriptors.
    pub fn driver(&self) -> Result<ShmDriver, ShmError> {
        Ok(ShmDriver::new(&self.process)?)
    }

    /// The epoch that `server` drew when it started. A server restarted at the same path has
    /// another epoch, and new memory.
    pub fn known_epoch(&self, server: ServerId) -> Option<u64> {
        Some(self.process.servers.get(server.index())?.epoch)
    }
}

impl EndpointCluster for ShmCluster {
    type Transport = Shm;

    fn shared(&self) -> &Arc<ListeningProcess> {
        &self.process
    }

    fn has_one_client_thread(&self) -> bool {
        self.process.config.one_client_thread
    }

    /// Stops a memory server of this process. A server of another process is only disconnected.
    fn kill(&self, server: ServerId) {
        if server.index() < self.process.servers.len() {
            self.process.lose(server);
        }
        let killed = lock(&self.own).get_mut(server.index()).and_then(Option::take);
        drop(killed);
    }
}

/// A temporary folder for sockets, removed on drop.
#[derive(Debug)]
struct SocketFolder(PathBuf);

impl SocketFolder {
    fn new() -> Result<Self, ShmError> {
        let name = format!("farleaf-{:016x}", draw_epoch()?);
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
