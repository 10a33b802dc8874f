//! `farleaf gateway`: serves a cluster of byte strings to clients of Redis.
//!
//! One thread accepts connections and gives them to the threads in turn; each serves its own on a
//! runtime of its own. All use one handle of the index.
//!
//! *Thread safety*: see `store`; nothing else is shared but the state of the sessions.

mod connection;
mod store;

use super::{ClusterLocation, CommonOptions, address, duration};
use anyhow::Context;
use clap::Args;
use connection::{READ_BYTES, ServingThread, serve};
use farleaf::ConnectOptions;
use farleaf_cluster::clock::MonotonicClock;
use farleaf_cluster::config::read_secret;
use farleaf_cluster::stop::StopSignal;
use farleaf_command_line::{units, usage};
use farleaf_fabric::handshake::{Token, draw_epoch};
use farleaf_pool::wire::MAX_VALUE_BYTES;
use farleaf_resp::{RespConfig, RespLimits, RespPassword, RespShared};
use futures_util::future::{Either, select};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::RefCell;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use store::IndexStore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How long connections have to end when the program ends.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nothing is accepted after the system had no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Files that the program has open besides connections.
const OTHER_FILES: u64 = 256;
/// How many operations of the gateway are in flight to a compute server.
const DEPTH: usize = 1024;

/// Options of `farleaf gateway`.
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "Example:\n  farleaf gateway --dir /tmp/farleaf --resp 127.0.0.1:6379\n  redis-cli -p 6379 set \
    user/ada Lovelace\n\nThe cluster needs --keys bytes. It prints `ready` when it serves, and ends on SIGTERM \
    and SIGINT after the commands that run. docs/clients.md has the commands and how they differ from those of Redis."
)]
pub(crate) struct GatewayArguments {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    place: ClusterLocation,
    /// Listen for clients that speak RESP2 or RESP3 at this host and port; port 0 lets the system
    /// choose
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379", value_parser = address)]
    resp: SocketAddr,
    /// Require the password in this file, which only its owner can read; needed to listen beyond
    /// this host
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Serve connections by this many threads
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::limited::<u16>(1, 1024))]
    threads: u16,
    /// Serve at most this many connections at the same time
    #[arg(long, value_name = "N", default_value = "10000", value_parser = units::limited::<usize>(1, 1_000_000))]
    max_connections: usize,
    /// Close a connection that has sent and taken nothing for this many seconds [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    idle_seconds: Option<Duration>,
    /// Give up an operation after this many seconds; shorter than clients wait
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = duration)]
    deadline_seconds: Duration,
}

impl GatewayArguments {
    fn password(&self) -> anyhow::Result<Option<RespPassword>> {
        let Some(path) = &self.password_file else {
            if self.resp.ip().is_loopback() {
                return Ok(None);
            }
            return usage(format!(
                "--resp {}: without --password-file a gateway listens only at addresses of this host, \
                 such as 127.0.0.1",
                self.resp
            ));
        };
        let secret = read_secret(path)?;
        // As for tokens, because it can be guessed at as fast as the network allows.
        if let Err(short) = Token::new(&secret) {
            return usage(format!("{}: {short}", path.display()));
        }
        Ok(Some(RespPassword::new(&secret)))
    }

    fn connect(&self) -> ConnectOptions {
        let options = match (&self.place.dir, &self.place.catalog, &self.place.token_file) {
            (Some(dir), ..) => ConnectOptions::new(dir),
            (None, Some(catalog), Some(token)) => {
                ConnectOptions::new(catalog.to_string()).token_file(token)
            }
            _ => ConnectOptions::new(""),
        };
        options
            .cluster(&self.place.cluster)
            .deadline(self.deadline_seconds)
            .depth(DEPTH)
            .connections(self.threads.into())
    }
}

/// Lets this process open enough files for its connections, and returns how many it then can have.
fn room_for(connections: usize) -> usize {
    let wanted = connections as u64 + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let mut current = limit.current.unwrap_or(u64::MAX);
    if current < wanted {
        let raised = wanted.min(maximum);
        let new = Rlimit { current: Some(raised), maximum: limit.maximum };
        if setrlimit(Resource::Nofile, new).is_ok() {
            current = raised;
        }
    }
    usize::try_from(current.saturating_sub(OTHER_FILES))
        .map_or(connections, |room| room.clamp(1, connections))
}

/// A connection that a thread is to serve.
type AcceptedConnection = (TcpStream, SocketAddr, OwnedSemaphorePermit);

/// Serves the clients of a cluster until a signal ends it.
pub(crate) fn run(arguments: &GatewayArguments) -> anyhow::Result<()> {
    let stop = arguments.common.start()?;
    let password = arguments.password()?;
    // Its errors name what is missing.
    arguments.place.find()?;
    let index = farleaf::connect_bytes(arguments.connect())?;
    let listener = TcpListener::bind(arguments.resp)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .with_context(|| format!("cannot listen at {}", arguments.resp))?;
    let at = listener.local_addr().context("the listener has no address")?;
    let max_clients = room_for(arguments.max_connections);
    if max_clients < arguments.max_connections {
        tracing::warn!("the limit of open files leaves {max_clients} connections");
    }
    let clock = MonotonicClock::start();
    let shared = Arc::new(RespShared::new(RespConfig {
        index_name: arguments.place.cluster.clone(),
        password,
        limits: RespLimits { argument_bytes: MAX_VALUE_BYTES, ..RespLimits::default() },
        version: env!("CARGO_PKG_VERSION"),
        port: at.port(),
        max_clients,
        seed: draw_epoch().context("the system has no random numbers")?,
        deadline: arguments.deadline_seconds,
    }));
    let store = Arc::new(IndexStore::new(index, arguments.place.clone(), clock));
    let permits = Arc::new(Semaphore::new(max_clients));
    let (end, ending) = watch::channel(false);
    std::thread::scope(|scope| {
        let mut senders = Vec::new();
        let mut threads = Vec::new();
        for number in 0..arguments.threads {
            let (sender, accepted) = unbounded_channel();
            senders.push(sender);
            let (store, shared) = (Arc::clone(&store), Arc::clone(&shared));
            let (ending, idle_timeout) = (ending.clone(), arguments.idle_seconds);
            let work = move || {
                let buffer = Rc::new(RefCell::new(vec![0; READ_BYTES].into_boxed_slice()));
                let thread = ServingThread { store, shared, buffer, idle_timeout, ending };
                serve_all(accepted, &thread)
            };
            let builder = std::thread::Builder::new().name(format!("resp-{number}"));
            threads.push(builder.spawn_scoped(scope, work).context("cannot start a thread")?);
        }
        let (shared_by_all, ending) = (Arc::clone(&shared), ending.clone());
        let accept = move || accept_all(listener, &senders, &permits, &shared_by_all, ending);
        let builder = std::thread::Builder::new().name("accept".to_owned());
        threads.push(builder.spawn_scoped(scope, accept).context("cannot start a thread")?);
        let said = say_ready(at);
        if said.is_ok() {
            watch_over(&stop, &shared, &clock);
        }
        // The threads may have failed already.
        let _ = end.send(true);
        for thread in threads {
            match thread.join() {
                Ok(served) => served?,
                Err(_) => anyhow::bail!("a thread of the gateway has failed"),
            }
        }
        said
    })
}

fn say_ready(at: SocketAddr) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready: RESP at {at}")
        .and_then(|()| out.flush())
        .context("cannot write to stdout")
}

/// Keeps the time of the sessions until the program is to end.
fn watch_over(stop: &StopSignal, shared: &RespShared, clock: &MonotonicClock) {
    while !stop.wait(Duration::from_secs(1)) {
        shared.set_uptime(clock.elapsed());
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start a runtime")
}

/// Gives connections to the threads in turn, until the program ends.
fn accept_all(
    listener: TcpListener,
    threads: &[UnboundedSender<AcceptedConnection>],
    permits: &Arc<Semaphore>,
    shared: &RespShared,
    mut ending: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut turns = threads.iter().cycle();
        let mut ended = pin!(ending.wait_for(|is_ending| *is_ending));
        let mut was_refused = false;
        loop {
            let accepted = match select(pin!(listener.accept()), ended.as_mut()).await {
                Either::Left((accepted, _)) => accepted,
                Either::Right(_) => return Ok(()),
            };
            match accepted {
                Ok((socket, address)) => {
                    was_refused = false;
                    let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
                        shared.count_rejected();
                        // It may not take even that.
                        let _ = socket.try_write(b"-ERR max number of clients reached\r\n");
                        continue;
                    };
                    let socket = socket.set_nodelay(true).and_then(|()| socket.into_std());
                    // A socket that its client has closed already fails here.
                    if let (Ok(socket), Some(thread)) = (socket, turns.next()) {
                        let _ = thread.send((socket, address, permit));
                    }
                }
                Err(error) => {
                    // Said once, and not for each of the many that may follow.
                    if !was_refused {
                        tracing::warn!("cannot accept a connection: {error}");
                    }
                    was_refused = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// Serves the connections of one thread, until no more come and all have ended.
fn serve_all(
    mut accepted: UnboundedReceiver<AcceptedConnection>,
    thread: &ServingThread,
) -> anyhow::Result<()> {
    let local = tokio::task::LocalSet::new();
    let runtime = runtime()?;
    local.block_on(&runtime, async {
        while let Some((socket, address, permit)) = accepted.recv().await {
            let Ok(socket) = tokio::net::TcpStream::from_std(socket) else { continue };
            // A client whose host has gone says nothing; the system finds that out.
            let _ = rustix::net::sockopt::set_socket_keepalive(&socket, true);
            let thread = thread.clone();
            tokio::task::spawn_local(async move {
                serve(socket, address, thread).await;
                drop(permit);
            });
        }
    });
    // The connections have been told; a client that does not read holds its own up.
    runtime.block_on(async { drop(tokio::time::timeout(END_TIMEOUT, local).await) });
    Ok(())
}
