//! One client's socket, with its session.
//!
//! *Invariants*: gateway.A1. A connection reads only while its session wants input, so that a
//! client that does not read its replies is no longer served, and costs bounded memory.
//!
//! *Thread safety*: each connection is a task of one thread.

use super::store::IndexStore;
use farleaf_resp::{
    CommandTicket, RespReply, RespSession, RespShared, StartedCommand, StoreCommand, execute,
    execute_lookups,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Sleep;

/// Size of the buffer that all connections of a thread read into.
pub(super) const READ_BYTES: usize = 32 << 10;

/// How many lookups of a connection go to the servers as one.
const MAX_GROUP: usize = 64;
/// How often a connection reads before the others of its thread have a turn.
const MAX_READS: usize = 1;

/// How long a client has to prove its password.
const PASSWORD_TIMEOUT: Duration = Duration::from_secs(10);

/// What all connections of a thread share.
#[derive(Clone)]
pub(super) struct ServingThread {
    pub(super) store: Arc<IndexStore>,
    pub(super) shared: Arc<RespShared>,
    pub(super) buffer: Rc<RefCell<Box<[u8]>>>,
    pub(super) idle_timeout: Option<Duration>,
    /// Changes when the program ends.
    pub(super) ending: watch::Receiver<bool>,
}

/// Commands that run as one.
enum StartedWork {
    Command(CommandTicket, StoreCommand),
    Lookups(Vec<(CommandTicket, Vec<u8>)>),
}

/// Their replies.
enum FinishedWork {
    Command(CommandTicket, RespReply),
    Lookups(Vec<(CommandTicket, RespReply)>),
}

impl StartedWork {
    async fn run(self, store: &IndexStore, shared: &RespShared) -> FinishedWork {
        match self {
            Self::Command(ticket, command) => {
                FinishedWork::Command(ticket, execute(store, shared, command).await)
            }
            Self::Lookups(mut lookups) => match (lookups.pop(), lookups.is_empty()) {
                (Some((ticket, key)), true) => {
                    let command = StoreCommand::Get(key);
                    FinishedWork::Command(ticket, execute(store, shared, command).await)
                }
                (last, _) => {
                    lookups.extend(last);
                    FinishedWork::Lookups(execute_lookups(store, lookups).await)
                }
            },
        }
    }
}

impl FinishedWork {
    fn reply(self, session: &mut RespSession) {
        match self {
            Self::Command(ticket, reply) => session.complete(ticket, reply),
            Self::Lookups(replies) => {
                replies.into_iter().for_each(|(ticket, reply)| session.complete(ticket, reply));
            }
        }
    }
}

/// Serves a client until one of both ends.
pub(super) async fn serve(socket: TcpStream, address: SocketAddr, thread: ServingThread) {
    let ServingThread { store, shared, buffer, idle_timeout, mut ending } = thread;
    let mut session = RespSession::new(Arc::clone(&shared), &address.to_string());
    let (store, shared) = (&*store, &*shared);
    let mut running = FuturesUnordered::new();
    let mut ended = pin!(async move { ending.wait_for(|is_ending| *is_ending).await.is_ok() });
    let mut has_ended = false;
    let mut idle = idle_timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
    let needs_password = !session.is_authenticated();
    let mut password = needs_password.then(|| Box::pin(tokio::time::sleep(PASSWORD_TIMEOUT)));
    let served: io::Result<()> = poll_fn(|context| {
        if !has_ended && ended.as_mut().poll(context).is_ready() {
            has_ended = true;
            session.end_input();
        }
        if session.is_authenticated() {
            password = None;
        }
        // Before anything is read, because a client may send all the time.
        if let Some(password) = &mut password
            && password.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Ok(()));
        }
        let mut reads = 0;
        loop {
            let mut has_advanced = false;
            while let Poll::Ready(Some(finished)) = running.poll_next_unpin(context) {
                FinishedWork::reply(finished, &mut session);
                has_advanced = true;
            }
            let mut lookups = Vec::new();
            while let Some(StartedCommand { ticket, command }) = session.start() {
                match command {
                    StoreCommand::Get(key) => lookups.push((ticket, key)),
                    command => {
                        running.push(StartedWork::Command(ticket, command).run(store, shared))
                    }
                }
                has_advanced = true;
            }
            while !lookups.is_empty() {
                let rest = lookups.split_off(lookups.len().min(MAX_GROUP));
                let group = std::mem::replace(&mut lookups, rest);
                running.push(StartedWork::Lookups(group).run(store, shared));
            }
            // More replies may be ready at once, and leave together.
            if has_advanced {
                continue;
            }
            let mut buffer = buffer.borrow_mut();
            let has_written = write(&socket, &mut session, context)?;
            has_advanced |= has_written;
            if session.is_over() {
                return Poll::Ready(Ok(()));
            }
            if reads == MAX_READS {
                // Others of this thread come first.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let has_read = read(&socket, &mut session, &mut buffer, context)?;
            // A client that reads a long reply is not idle.
            if (has_read || has_written)
                && let (Some(idle), Some(timeout)) = (&mut idle, idle_timeout)
            {
                idle.as_mut().reset(tokio::time::Instant::now() + timeout);
            }
            if !has_advanced && !has_read {
                break;
            }
            reads += usize::from(has_read);
        }
        match idle.as_mut().map(|idle: &mut Pin<Box<Sleep>>| idle.as_mut().poll(context)) {
            Some(Poll::Ready(())) if session.running() == 0 => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    })
    .await;
    let wrong = session.wrong_passwords();
    if wrong > 0 {
        tracing::warn!("{address}: {wrong} wrong passwords");
    }
    if let Err(error) = served {
        tracing::debug!("{address}: {error}");
    }
}

/// Writes as much as the socket takes; returns whether that is anything.
fn write(
    socket: &TcpStream,
    session: &mut RespSession,
    context: &mut Context<'_>,
) -> io::Result<bool> {
    let mut has_written = false;
    while !session.output().is_empty() {
        match socket.poll_write_ready(context) {
            Poll::Pending => break,
            Poll::Ready(ready) => ready?,
        }
        match socket.try_write(session.output()) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                session.consume_output(bytes);
                has_written = true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(has_written)
}

/// Reads what has arrived, if the session wants it; returns whether that is anything.
fn read(
    socket: &TcpStream,
    session: &mut RespSession,
    buffer: &mut [u8],
    context: &mut Context<'_>,
) -> io::Result<bool> {
    while session.wants_input() {
        match socket.poll_read_ready(context) {
            Poll::Pending => break,
            Poll::Ready(ready) => ready?,
        }
        match socket.try_read(buffer) {
            // It may still read the replies to what it has sent.
            Ok(0) => session.end_input(),
            Ok(bytes) => session.receive(&buffer[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        return Ok(true);
    }
    Ok(false)
}
