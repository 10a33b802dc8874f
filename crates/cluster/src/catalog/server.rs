//! The embedded catalog: [`CatalogStore`] behind a listener.
//!
//! The listener's threads must not wait for a disk. A separate thread answers requests in order of
//! arrival, and ends leases.
//!
//! *Invariants*: at most [`QUEUE`] requests wait; further requests are refused. Requests without
//! the token never reach the store.
//!
//! *Thread safety*: any number of threads may use the handle.

use super::messages::{CatalogAnswer, CatalogRequest, encode};
use super::store::CatalogStore;
use crate::clock::MonotonicClock;
use farleaf_fabric::handshake::{PeerRole, Token};
use farleaf_fabric::listener::start_thread;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::tcp::{TcpServer, TcpServerConfig};
use farleaf_fabric::{Calls, Cpu, Message, Region, ReplySink, ServiceCall};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of waiting requests.
const QUEUE: usize = 1024;
/// Pause before retrying to end leases after a write failed.
const RETRY: Duration = Duration::from_millis(200);

/// Options of an embedded catalog.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// The file that holds its state.
    pub state: PathBuf,
    /// Maximum number of connections.
    pub connections: usize,
}

#[derive(Debug)]
struct WaitingWatch {
    request: CatalogRequest,
    reply: ReplySink,
}

/// A running embedded catalog; dropping it stops it.
#[derive(Debug)]
pub struct EmbeddedCatalog {
    /// Stopped first, which drops the last sender, so that the thread ends.
    server: Option<TcpServer>,
    address: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Holds the lock on the state while the catalog runs.
    _lock: File,
}

/// Locks the state for this process.
fn lock_state(state: &Path) -> io::Result<File> {
    let path = state.with_added_extension("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            let text = format!("another process has the state {}", state.display());
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        Err(errno) => Err(errno.into()),
    }
}

impl EmbeddedCatalog {
    /// Reads the state and serves connections to `listener` that prove the token.
    ///
    /// # Errors
    /// The error of the operating system; [`io::ErrorKind::InvalidData`] if the file is not a
    /// catalog's state, [`io::ErrorKind::AlreadyExists`] if another process uses it.
    pub fn start(
        listener: TcpListener,
        token: &Token,
        config: &EmbeddedConfig,
    ) -> io::Result<Self> {
        let lock = lock_state(&config.state)?;
        let clock = MonotonicClock::start();
        let store = CatalogStore::open(&config.state, clock.now_ns())?;
        let (sender, receiver) = sync_channel(QUEUE);
        let thread = start_thread("catalog".into(), move || serve(store, &receiver, clock))?;
        let server = TcpServerConfig {
            role: PeerRole::Catalog,
            number: 0,
            accepts: &[PeerRole::Client],
            connections: config.connections,
            ..TcpServerConfig::default()
        };
        let server =
            TcpServer::start(listener, Arc::new(CatalogRequestHandler { sender }), token, server)?;
        let address = server.local_address();
        Ok(Self { server: Some(server), address, thread: Mutex::new(Some(thread)), _lock: lock })
    }

    /// The address that it listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for EmbeddedCatalog {
    fn drop(&mut self) {
        self.server = None;
        if let Some(thread) = lock(&self.thread).take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Receives requests on the listener's threads and queues them.
struct CatalogRequestHandler {
    sender: SyncSender<WaitingWatch>,
}

impl Calls for CatalogRequestHandler {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, _cpu: &C, call: ServiceCall<'_>) {
        let request = match serde_json::from_slice(call.request) {
            Ok(request) => request,
            Err(error) => {
                let refused = CatalogAnswer::Refused(format!("invalid request: {error}"));
                *call.reply = Message::from_vec(encode(&refused));
                return;
            }
        };
        let waiting = WaitingWatch { request, reply: call.later() };
        if let Err(TrySendError::Full(waiting) | TrySendError::Disconnected(waiting)) =
            self.sender.try_send(waiting)
        {
            let refused = CatalogAnswer::Refused("too many requests are waiting".to_owned());
            waiting.reply.send(Message::from_vec(encode(&refused)));
        }
    }
}

fn serve(mut store: CatalogStore, requests: &Receiver<WaitingWatch>, clock: MonotonicClock) {
    let mut again_ns: Option<u64> = None;
    loop {
        // A failed attempt writes the whole state, so the next one does not come with each request.
        if again_ns.is_none_or(|again_ns| clock.now_ns() >= again_ns) {
            let ended = store.expire(clock.now_ns());
            match &ended {
                Err(why) if again_ns.is_none() => {
                    tracing::error!("cannot record the end of a lease, retrying: {why}")
                }
                _ => {}
            }
            again_ns = ended.is_err().then(|| clock.now_ns() + RETRY.as_nanos() as u64);
        }
        let next = store.next_end_ns().map(|at_ns| at_ns.saturating_sub(clock.now_ns()));
        let wait = match next {
            _ if again_ns.is_some() => RETRY,
            Some(ns) => Duration::from_nanos(ns),
            None => Duration::from_secs(3600),
        };
        match requests.recv_timeout(wait) {
            Ok(WaitingWatch { request, reply }) => {
                // Expire leases first: those that ended while the queue was empty ended before this
                // request. A lease whose end cannot be recorded has not ended: its entries stay, it
                // may be kept alive, and everything can be read. On a full disk that is better than
                // no answer: clients of living servers come through.
                if again_ns.is_none() {
                    let _ = store.expire(clock.now_ns());
                }
                let answer = store.answer(request, clock.now_ns());
                reply.send(Message::from_vec(encode(&answer)));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
