//! The handle on an embedded catalog in another process. It has one connection, sends one call at a
//! time, and reconnects after a failure.
//! *Invariants*: a call ends by its deadline. If an attempt fails on a connection that was open
//! before the call, the call is retried once over a new connection. A change of an entry is not
//! retried once any of its bytes may have been sent.
//!
//! *Thread safety*: any number of threads; their calls run one at a time.

use super::messages::{CatalogAnswer, CatalogRequest, encode};
use super::{Catalog, CatalogEntry, CatalogError, CatalogLease, EntryVersion, GrantedLease, check};
use crate::address::HostPort;
use crate::clock::MonotonicClock;
use farleaf_fabric::MAX_MESSAGE_BYTES;
use farleaf_fabric::handshake::{
    ExpectedPeer, HandshakeError, Initiator, InitiatorStep, MessageAssembler, NO_FENCES, Nonce,
    PeerIdentity, PeerRole, Token, draw_epoch,
};
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_fabric::tcp::frame::{self, Completion, DecodedFrame};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of one attempt, including connecting.
const ATTEMPT: Duration = Duration::from_secs(2);

/// A handle on an embedded catalog in another process.
#[derive(Debug)]
pub struct RemoteCatalog {
    address: HostPort,
    token: Token,
    link: Mutex<Option<CatalogLink>>,
}

/// The stage at which an attempt failed, which decides whether it may be retried.
enum AttemptFailure {
    /// Before any byte of the request was sent.
    Before(io::Error),
    /// After some bytes of the request may have been sent.
    After(io::Error),
    /// The catalog rejected the handshake.
    NotLetIn(HandshakeError),
}

impl RemoteCatalog {
    /// Creates a handle, which connects on its first call.
    pub fn new(address: impl Into<HostPort>, token: &Token) -> Self {
        Self { address: address.into(), token: token.clone(), link: Mutex::new(None) }
    }

    fn attempt(
        &self,
        link: &mut Option<CatalogLink>,
        request: &[u8],
    ) -> Result<Vec<u8>, AttemptFailure> {
        let deadline = AttemptDeadline { clock: MonotonicClock::start() };
        let open = match link {
            Some(open) => open,
            None => link.insert(CatalogLink::open(&self.address, &self.token, deadline)?),
        };
        let reply = open.call(request, deadline);
        if reply.is_err() {
            *link = None;
        }
        reply
    }

    fn call(&self, request: &CatalogRequest) -> Result<CatalogAnswer, CatalogError> {
        let bytes = encode(request);
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(CatalogError::Refused(
                "the request exceeds the maximum size of a message".to_owned(),
            ));
        }
        let changes =
            matches!(request, CatalogRequest::PutIf { .. } | CatalogRequest::DeleteIf { .. });
        let mut link = lock(&self.link);
        let was_open = link.is_some();
        let mut result = self.attempt(&mut link, &bytes);
        // A restart of the catalog may have broken an idle connection long ago.
        let again = match &result {
            Err(AttemptFailure::Before(_)) => was_open,
            Err(AttemptFailure::After(_)) => was_open && !changes,
            Err(AttemptFailure::NotLetIn(_)) | Ok(_) => false,
        };
        if again {
            result = self.attempt(&mut link, &bytes);
        }
        drop(link);
        let address = self.address.to_string();
        let reply = result.map_err(|failure| match failure {
            AttemptFailure::NotLetIn(why) => CatalogError::NotLetIn { address, why },
            AttemptFailure::After(error) if changes => {
                CatalogError::Indeterminate { address, why: error.to_string() }
            }
            AttemptFailure::Before(error) | AttemptFailure::After(error) => {
                CatalogError::Unreachable { address, why: error.to_string() }
            }
        })?;
        match serde_json::from_slice(&reply) {
            Ok(CatalogAnswer::Refused(why)) => Err(CatalogError::Refused(why)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.confused(error)),
        }
    }

    /// The error for an answer that does not match the request.
    fn confused(&self, why: impl std::fmt::Debug) -> CatalogError {
        let address = self.address.to_string();
        CatalogError::Indeterminate { address, why: format!("invalid answer: {why:?}") }
    }

    fn done(&self, request: &CatalogRequest) -> Result<bool, CatalogError> {
        match self.call(request)? {
            CatalogAnswer::Done(done) => Ok(done),
            other => Err(self.confused(other)),
        }
    }
}

impl Catalog for RemoteCatalog {
    fn get(&self, key: &str) -> Result<Option<CatalogEntry>, CatalogError> {
        match self.call(&CatalogRequest::Get { key: key.to_owned() })? {
            CatalogAnswer::Entry(entry) => Ok(entry),
            other => Err(self.confused(other)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<CatalogEntry>, CatalogError> {
        let (mut all, mut after) = (Vec::<CatalogEntry>::new(), None);
        loop {
            match self.call(&CatalogRequest::List { prefix: prefix.to_owned(), after })? {
                // A malformed empty page that announces more entries would make this loop endless.
                CatalogAnswer::Page { entries, more } if !more || !entries.is_empty() => {
                    all.extend(entries);
                    if !more {
                        return Ok(all);
                    }
                    after = all.last().map(|entry| entry.key.clone());
                }
                other => return Err(self.confused(other)),
            }
        }
    }

    fn put_if(
        &self,
        key: &str,
        expected: Option<EntryVersion>,
        value: &str,
        lease: Option<CatalogLease>,
    ) -> Result<bool, CatalogError> {
        check(key, value)?;
        let (key, value) = (key.to_owned(), value.to_owned());
        self.done(&CatalogRequest::PutIf { key, expected, value, lease })
    }

    fn delete_if(&self, key: &str, expected: EntryVersion) -> Result<bool, CatalogError> {
        self.done(&CatalogRequest::DeleteIf { key: key.to_owned(), expected })
    }

    fn grant(&self, term: Duration) -> Result<GrantedLease, CatalogError> {
        let term_ns = u64::try_from(term.as_nanos()).unwrap_or(u64::MAX);
        match self.call(&CatalogRequest::Grant { term_ns })? {
            CatalogAnswer::Granted(lease) => Ok(GrantedLease { lease, term }),
            other => Err(self.confused(other)),
        }
    }

    fn keep_alive(&self, lease: CatalogLease) -> Result<bool, CatalogError> {
        self.done(&CatalogRequest::KeepAlive { lease })
    }

    fn revoke(&self, lease: CatalogLease) -> Result<(), CatalogError> {
        match self.call(&CatalogRequest::Revoke { lease })? {
            CatalogAnswer::Revoked => Ok(()),
            other => Err(self.confused(other)),
        }
    }
}

/// The deadline of an attempt.
#[derive(Clone, Copy)]
struct AttemptDeadline {
    clock: MonotonicClock,
}

impl AttemptDeadline {
    fn left(&self) -> io::Result<Duration> {
        let left = ATTEMPT.checked_sub(self.clock.elapsed()).filter(|left| !left.is_zero());
        left.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "it took too long"))
    }
}

#[derive(Debug)]
struct CatalogLink {
    socket: TcpStream,
    next_id: u64,
    received: Vec<u8>,
}

impl From<io::Error> for AttemptFailure {
    fn from(error: io::Error) -> Self {
        Self::Before(error)
    }
}

/// Reads at least one byte before the deadline.
fn read_some(
    socket: &mut TcpStream,
    into: &mut [u8],
    deadline: AttemptDeadline,
) -> io::Result<usize> {
    loop {
        socket.set_read_timeout(Some(deadline.left()?))?;
        match socket.read(into) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it was closed")),
            Ok(bytes) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long"));
            }
            Err(error) => return Err(error),
        }
    }
}

impl CatalogLink {
    /// Connects to the first address of the host that accepts.
    fn connect(address: &HostPort, deadline: AttemptDeadline) -> io::Result<TcpStream> {
        let addresses = address.resolve(deadline.left()?)?;
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for (place, at) in addresses.iter().enumerate() {
            let share = u32::try_from(addresses.len() - place).unwrap_or(u32::MAX);
            match TcpStream::connect_timeout(at, deadline.left()? / share) {
                Ok(socket) => return Ok(socket),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn open(
        address: &HostPort,
        token: &Token,
        deadline: AttemptDeadline,
    ) -> Result<Self, AttemptFailure> {
        let mut socket = Self::connect(address, deadline)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(ATTEMPT))?;
        let me = PeerIdentity { role: PeerRole::Client, number: 0, epoch: draw_epoch()? };
        let wanted = ExpectedPeer { role: PeerRole::Catalog, number: 0 };
        let mut initiator = Initiator::new(token, me, NO_FENCES, wanted, Nonce::draw()?, u64::MAX);
        socket.write_all(initiator.hello())?;
        let mut gather = MessageAssembler::default();
        loop {
            let bytes = read_some(&mut socket, gather.missing(), deadline)?;
            let Some(message) = gather.arrived(bytes) else { continue };
            match initiator.receive(&message, deadline.clock.now_ns()) {
                Ok(InitiatorStep::Send(proof)) => socket.write_all(&proof)?,
                Ok(InitiatorStep::Open { .. }) => {
                    return Ok(Self { socket, next_id: 1, received: Vec::new() });
                }
                Err(why) => return Err(AttemptFailure::NotLetIn(why)),
            }
        }
    }

    fn call(
        &mut self,
        request: &[u8],
        deadline: AttemptDeadline,
    ) -> Result<Vec<u8>, AttemptFailure> {
        let id = self.next_id;
        self.next_id += 1;
        let request = frame::FrameRequest::Call(request);
        let mut bytes = vec![0; request.frame_bytes()];
        request.encode(id, &mut bytes);
        self.socket.write_all(&bytes).map_err(AttemptFailure::After)?;
        self.receive(id, deadline).map_err(AttemptFailure::After)
    }

    /// Waits for the completion of call `id`; at most one call is in flight.
    fn receive(&mut self, id: u64, deadline: AttemptDeadline) -> io::Result<Vec<u8>> {
        let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let mut piece = [0; 16 * 1024];
        self.received.clear();
        loop {
            match frame::decode_completion(&self.received) {
                DecodedFrame::Frame { id: whose, body: Completion::Reply(reply), .. }
                    if whose == id =>
                {
                    return Ok(reply.to_vec());
                }
                DecodedFrame::Frame { body: Completion::NotDone(..), .. } => {
                    return invalid("no answer");
                }
                DecodedFrame::Frame { .. } | DecodedFrame::Malformed => {
                    return invalid("this is no answer");
                }
                DecodedFrame::Incomplete => {}
            }
            let bytes = read_some(&mut self.socket, &mut piece, deadline)?;
            self.received.extend_from_slice(&piece[..bytes]);
        }
    }
}
