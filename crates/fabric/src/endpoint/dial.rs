//! A link that is brought up over a TCP socket: it adds the socket to a `ServerConnection`.
//!
//! *Invariants*: endpoint.K2. When the connection ends, the transport first releases all buffers;
//! then every unfinished operation that was posted over it ends. endpoint.K3. The transport gets
//! operations in the order in which they were posted (F3).
//!
//! *Thread safety*: an endpoint's thread.

use super::connection::{AttemptCounts, ConnectionPhase, HandshakeProgress, ServerConnection};
use super::{EndpointInner, LinkContext, OpSlots, Peers, ServerLink, Transport, lost};
use crate::handshake::{ExpectedPeer, HandshakeMessage, MessageAssembler};
use crate::sockets::{SocketRead, connect_socket, next_message};
use crate::{FabricError, ServerId};
use rustix::event::epoll::EventFlags;
use std::fmt::Debug;
use std::future::poll_fn;
use std::io::Write;
use std::net::TcpStream;

/// A transport whose connections are brought up over TCP sockets.
pub trait DialingTransport: Transport {
    /// The servers of its cluster.
    fn peers(&self) -> &Peers;
}

/// The state of a wire after a step of bringing it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BringUpState {
    /// Operations can use it.
    Now,
    /// The server has yet to answer.
    Later,
}

/// The connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLost;

/// A transport's use of the connection to one server, once it is brought up.
pub trait LinkCarrier<X: DialingTransport>: Debug {
    /// Queues a posted operation; returns whether the link should be driven now.
    fn enqueue(&mut self, id: u64, slots: &mut OpSlots<X::Progress>) -> bool;

    /// Whether anything is to be sent.
    fn has_work(&self) -> bool;

    /// The server has admitted us.
    ///
    /// # Errors
    /// The attempt has failed.
    fn welcomed(
        &mut self,
        socket: &mut TcpStream,
        context: &LinkContext<'_, X>,
    ) -> Result<BringUpState, ConnectionLost>;

    /// Handles the answer to the message of [`LinkCarrier::welcomed`], if there is one.
    ///
    /// # Errors
    /// The attempt has failed.
    fn answered(
        &mut self,
        message: &HandshakeMessage,
        context: &LinkContext<'_, X>,
    ) -> Result<BringUpState, ConnectionLost> {
        let _ = (message, context);
        Err(ConnectionLost)
    }

    /// Handles input on the socket of the open connection.
    ///
    /// # Errors
    /// The connection is lost.
    fn receive(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) -> Result<(), ConnectionLost>;

    /// Polls for completions that do not come over the socket; returns whether there were any.
    ///
    /// # Errors
    /// The connection is lost.
    fn poll(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) -> Result<bool, ConnectionLost> {
        let _ = (slots, context);
        Ok(false)
    }

    /// Sends the queued operations, as long as there is room.
    ///
    /// # Errors
    /// The connection is lost.
    fn send(
        &mut self,
        socket: &mut TcpStream,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) -> Result<(), ConnectionLost>;

    /// [`ServerLink::arm`], of an open connection.
    fn arm(&mut self) -> bool {
        false
    }

    /// [`ServerLink::disarm`], of an open connection.
    fn disarm(&mut self) {}

    /// [`ServerLink::is_busy`], of an open connection.
    fn is_busy(&self) -> bool {
        false
    }

    /// Releases the buffers of operations. The connection has ended, or is about to end.
    fn let_go_of_buffers(&mut self) {}

    /// Drops the queued operations.
    fn clear(&mut self);
}

/// A link that is brought up over a TCP socket.
#[derive(Debug)]
pub struct DialledLink<W> {
    connection: ServerConnection,
    // Declared before the socket, so that it is dropped first: the end of the socket tells the
    // server that this side is done.
    wire: W,
    /// `Some` unless the connection is closed.
    socket: Option<TcpStream>,
    gather: MessageAssembler,
}

impl<W> DialledLink<W> {
    /// A closed link.
    pub fn new(server: ServerId, wire: W) -> Self {
        Self {
            connection: ServerConnection::new(server),
            wire,
            socket: None,
            gather: MessageAssembler::default(),
        }
    }

    /// The transport's part of it.
    pub(crate) fn wire(&self) -> &W {
        &self.wire
    }

    /// Mutable access to [`DialledLink::wire`].
    pub(crate) fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    /// The socket, if operations can use it.
    pub(crate) fn open_socket(&self) -> Option<&TcpStream> {
        self.socket.as_ref().filter(|_| self.is_open())
    }

    fn lost(&self) -> FabricError {
        lost(self.connection.server())
    }

    fn is_open(&self) -> bool {
        self.connection.phase() == ConnectionPhase::Open
    }
}

impl<W> DialledLink<W> {
    fn connect<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) where
        W: LinkCarrier<X>,
    {
        let peers = context.transport.peers();
        let timeout_ns = peers.config().connect_timeout_ns;
        let address = peers.address(self.connection.server());
        let socket = connect_socket(address).and_then(|socket| {
            context.watch(&socket, EventFlags::IN | EventFlags::OUT)?;
            Ok(socket)
        });
        match socket {
            Ok(socket) => {
                self.socket = Some(socket);
                self.connection.connecting(context.now_ns.saturating_add(timeout_ns));
            }
            Err(_) => self.fail(slots, context, self.lost()),
        }
    }

    fn connected<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) where
        W: LinkCarrier<X>,
    {
        let Some(socket) = &mut self.socket else { return };
        if !matches!(socket.take_error(), Ok(None)) {
            return self.fail(slots, context, self.lost());
        }
        if socket.peer_addr().is_err() {
            return; // an event of an earlier socket
        }
        let peers = context.transport.peers();
        let number = self.connection.server().number();
        let wanted = ExpectedPeer { role: peers.config().role, number };
        let Ok(hello) = self.connection.greet(peers.token(), context.me, wanted) else {
            return self.fail(slots, context, self.lost());
        };
        self.gather = MessageAssembler::default();
        let watched = context.watch_for(socket, EventFlags::IN);
        // A full server sends a refusal and closes; the refusal can still be read.
        let _ = socket.write_all(&hello);
        if watched.is_err() {
            self.fail(slots, context, self.lost());
        }
    }

    /// Handles the server's messages until the connection is open.
    fn bring_up<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) where
        W: LinkCarrier<X>,
    {
        let error = loop {
            let Some(socket) = &mut self.socket else { return };
            let message = match next_message(socket, &mut self.gather) {
                SocketRead::Message(message) => message,
                SocketRead::Nothing => return,
                SocketRead::End => break self.lost(),
            };
            match self.heard(&message, context) {
                Ok(BringUpState::Later) => {}
                Ok(BringUpState::Now) => {
                    self.connection.open();
                    return self.send(slots, context);
                }
                Err(error) => break error,
            }
        };
        self.fail(slots, context, error);
    }

    fn heard<X: DialingTransport>(
        &mut self,
        message: &HandshakeMessage,
        context: &LinkContext<'_, X>,
    ) -> Result<BringUpState, FabricError>
    where
        W: LinkCarrier<X>,
    {
        let (server, error) = (self.connection.server(), self.lost());
        let Some(socket) = &mut self.socket else { return Err(error) };
        if self.connection.phase() == ConnectionPhase::Preparing {
            return self.wire.answered(message, context).map_err(|ConnectionLost| error);
        }
        let peers = context.transport.peers();
        let is_known = |epoch| peers.is_known(server, epoch);
        match self.connection.greeted(message, context.now_ns, is_known)? {
            HandshakeProgress::Send(proof) => {
                socket.write_all(&proof).map_err(|_| error)?;
                Ok(BringUpState::Later)
            }
            HandshakeProgress::Welcome => {
                let ready = self.wire.welcomed(socket, context).map_err(|ConnectionLost| error)?;
                let timeout_ns = peers.config().connect_timeout_ns;
                self.connection.preparing(context.now_ns.saturating_add(timeout_ns));
                Ok(ready)
            }
        }
    }

    /// Sends the queued operations over the open connection.
    fn send<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) where
        W: LinkCarrier<X>,
    {
        let Some(socket) = &mut self.socket else { return };
        if self.wire.send(socket, slots, context) == Err(ConnectionLost) {
            self.fail(slots, context, self.lost());
        }
    }

    fn receive<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) where
        W: LinkCarrier<X>,
    {
        let Some(socket) = &mut self.socket else { return };
        if self.wire.receive(socket, slots, context) == Err(ConnectionLost) {
            self.fail(slots, context, self.lost());
        }
    }

    /// Polls for completions that do not come over the socket; returns whether there were any.
    fn poll<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) -> bool
    where
        W: LinkCarrier<X>,
    {
        self.wire.poll(slots, context).unwrap_or_else(|ConnectionLost| {
            self.fail(slots, context, self.lost());
            true
        })
    }

    /// Handles a lost connection or a failed attempt.
    fn fail<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
        error: FabricError,
    ) where
        W: LinkCarrier<X>,
    {
        self.connection.fail(context.now_ns, &error);
        self.end(slots, context, &error);
    }

    /// Ends all operations that were posted over the connection, which is now closed.
    fn end<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
        error: &FabricError,
    ) where
        W: LinkCarrier<X>,
    {
        self.wire.let_go_of_buffers();
        self.wire.clear();
        self.socket = None;
        context.give_up_all(slots, self.connection.server(), error);
    }

    /// Takes everything that has arrived, closes the connection, ends its remaining operations, and
    /// reopens it.
    fn begin_reset<X: DialingTransport>(
        &mut self,
        slots: &mut OpSlots<X::Progress>,
        context: &LinkContext<'_, X>,
    ) -> Result<AttemptCounts, FabricError>
    where
        W: LinkCarrier<X>,
    {
        let before = self.connection.attempts()?;
        if self.is_open() {
            self.receive(slots, context);
        }
        if self.is_open() {
            self.poll(slots, context);
        }
        let error = self.lost();
        self.connection.reset();
        self.end(slots, context, &error);
        self.drive(slots, context);
        Ok(before)
    }
}

impl<X: DialingTransport, W: LinkCarrier<X>> ServerLink<X> for DialledLink<W> {
    #[inline]
    fn admit(&mut self, is_verb: bool, slots: &OpSlots<X::Progress>) -> Result<(), FabricError> {
        self.connection.admit(is_verb, slots)
    }

    #[inline]
    fn enqueue(&mut self, id: u64, slots: &mut OpSlots<X::Progress>, context: &LinkContext<'_, X>) {
        if self.wire.enqueue(id, slots) {
            self.drive(slots, context);
        }
    }

    #[inline]
    fn drive(&mut self, slots: &mut OpSlots<X::Progress>, context: &LinkContext<'_, X>) -> bool {
        match self.connection.phase() {
            ConnectionPhase::Open => {
                let advanced = self.poll(slots, context);
                if self.is_open() {
                    self.send(slots, context);
                }
                return advanced;
            }
            ConnectionPhase::Closed => {
                if self.connection.is_due(self.wire.has_work(), context.now_ns) {
                    self.connect(slots, context);
                }
            }
            ConnectionPhase::Connecting
            | ConnectionPhase::Greeting
            | ConnectionPhase::Preparing => {
                if self.connection.is_due(true, context.now_ns) {
                    self.fail(slots, context, self.lost());
                }
            }
        }
        false
    }

    fn visit(&mut self, slots: &mut OpSlots<X::Progress>, context: &LinkContext<'_, X>) {
        match self.connection.phase() {
            ConnectionPhase::Closed => {}
            ConnectionPhase::Connecting => self.connected(slots, context),
            ConnectionPhase::Greeting | ConnectionPhase::Preparing => self.bring_up(slots, context),
            ConnectionPhase::Open => self.receive(slots, context),
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.connection.deadline_ns(self.wire.has_work())
    }

    fn arm(&mut self) -> bool {
        self.is_open() && self.wire.arm()
    }

    fn disarm(&mut self) {
        self.wire.disarm();
    }

    fn is_busy(&self) -> bool {
        self.is_open() && self.wire.is_busy()
    }

    fn let_go_of_buffers(&mut self) {
        self.wire.let_go_of_buffers();
    }

    fn break_off(&mut self, slots: &mut OpSlots<X::Progress>, context: &LinkContext<'_, X>) {
        self.fail(slots, context, self.lost());
    }
}

/// Implements [`crate::Fabric::reset`] for dialled links: closes the connection and opens it again.
/// The server readmits an endpoint only when no operation of its last connection can take effect
/// any more (F9).
pub async fn reset_link<X, W>(
    endpoint: &EndpointInner<X>,
    server: ServerId,
) -> Result<(), FabricError>
where
    X: DialingTransport<Link = DialledLink<W>>,
    W: LinkCarrier<X>,
{
    endpoint.resources.close_batch();
    let before =
        endpoint.with_link(server, |link, slots, context| link.begin_reset(slots, context))??;
    poll_fn(|context| {
        let link = &mut endpoint.core.borrow_mut().links[server.index()];
        link.connection.poll_opened(before, context)
    })
    .await
}
