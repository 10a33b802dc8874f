//! The handle on an embedded catalog in another process. It has one connection, sends one call at a
//! time, and reconnects after a failure.
//! *Invariants*: a call ends by its deadline. If an attempt fails on a connection that was open
//! before the call, the call is retried once over a new connection. A change of an entry is not
//! retried once any of its bytes may have been sent.
//!
//! *Thread safety*: any number of threads; their calls run one at a time.

use super::messages::{Answer, Request, encode};
use super::{Catalog, CatalogError, Entry, Granted, Lease, Version, check};
use crate::address::HostPort;
use crate::clock::Clock;
use farleaf_fabric::MAX_MESSAGE_BYTES;
use farleaf_fabric::handshake::{
    Gather, HandshakeError, Identity, Initiator, InitiatorStep, NO_FENCES, Nonce, Role, Token,
    Wanted, draw_epoch,
};
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_fabric::tcp::frame::{self, Completion, Decoded};
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
    link: Mutex<Option<Link>>,
}

/// The stage at which an attempt failed, which decides whether it may be retried.
enum Failure {
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

    fn attempt(&self, link: &mut Option<Link>, request: &[u8]) -> Result<Vec<u8>, Failure> {
        let deadline = Deadline { clock: Clock::start() };
        let open = match link {
            Some(open) => open,
            None => link.insert(Link::open(&self.address, &self.token, deadline)?),
        };
        let reply = open.call(request, deadline);
        if reply.is_err() {
            *link = None;
        }
        reply
    }

    fn call(&self, request: &Request) -> Result<Answer, CatalogError> {
        let bytes = encode(request);
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(CatalogError::Refused(
                "the request exceeds the maximum size of a message".to_owned(),
            ));
        }
        let changes = matches!(request, Request::PutIf { .. } | Request::DeleteIf { .. });
        let mut link = lock(&self.link);
        let was_open = link.is_some();
        let mut result = self.attempt(&mut link, &bytes);
        // A restart of the catalog may have broken an idle connection long ago.
        let again = match &result {
            Err(Failure::Before(_)) => was_open,
            Err(Failure::After(_)) => was_open && !changes,
            Err(Failure::NotLetIn(_)) | Ok(_) => false,
        };
        if again {
            result = self.attempt(&mut link, &bytes);
        }
        drop(link);
        let address = self.address.to_string();
        let reply = result.map_err(|failure| match failure {
            Failure::NotLetIn(why) => CatalogError::NotLetIn { address, why },
            Failure::After(error) if changes => {
                CatalogError::Indeterminate { address, why: error.to_string() }
            }
            Failure::Before(error) | Failure::After(error) => {
                CatalogError::Unreachable { address, why: error.to_string() }
            }
        })?;
        match serde_json::from_slice(&reply) {
            Ok(Answer::Refused(why)) => Err(CatalogError::Refused(why)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.confused(error)),
        }
    }

    /// The error for an answer that does not match the request.
    fn confused(&self, why: impl std::fmt::Debug) -> CatalogError {
        let address = self.address.to_string();
        CatalogError::Indeterminate { address, why: format!("invalid answer: {why:?}") }
    }

    fn done(&self, request: &Request) -> Result<bool, CatalogError> {
        match self.call(request)? {
            Answer::Done(done) => Ok(done),
            other => Err(self.confused(other)),
        }
    }
}

impl Catalog for RemoteCatalog {
    fn get(&self, key: &str) -> Result<Option<Entry>, CatalogError> {
        match self.call(&Request::Get { key: key.to_owned() })? {
            Answer::Entry(entry) => Ok(entry),
            other => Err(self.confused(other)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, CatalogError> {
        let (mut all, mut after) = (Vec::<Entry>::new(), None);
        loop {
            match self.call(&Request::List { prefix: prefix.to_owned(), after })? {
                // A malformed empty page that announces more entries would make this loop endless.
                Answer::Page { entries, more } if !more || !entries.is_empty() => {
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
        expected: Option<Version>,
        value: &str,
        lease: Option<Lease>,
    ) -> Result<bool, CatalogError> {
        check(key, value)?;
        let (key, value) = (key.to_owned(), value.to_owned());
        self.done(&Request::PutIf { key, expected, value, lease })
    }

    fn delete_if(&self, key: &str, expected: Version) -> Result<bool, CatalogError> {
        self.done(&Request::DeleteIf { key: key.to_owned(), expected })
    }

    fn grant(&self, term: Duration) -> Result<Granted, CatalogError> {
        let term_ns = u64::try_from(term.as_nanos()).unwrap_or(u64::MAX);
        match self.call(&Request::Grant { term_ns })? {
            Answer::Granted(lease) => Ok(Granted { lease, term }),
            other => Err(self.confused(other)),
        }
    }

    fn keep_alive(&self, lease: Lease) -> Result<bool, CatalogError> {
        self.done(&Request::KeepAlive { lease })
    }

    fn revoke(&self, lease: Lease) -> Result<(), CatalogError> {
        match self.call(&Request::Revoke { lease })? {
            Answer::Revoked => Ok(()),
            other => Err(self.confused(other)),
        }
    }
}

/// The deadline of an attempt.
#[derive(Clone, Copy)]
struct Deadline {
    clock: Clock,
}

impl Deadline {
    fn left(&self) -> io::Result<Duration> {
        let left = ATTEMPT.checked_sub(self.clock.elapsed()).filter(|left| !left.is_zero());
        left.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "it took too long"))
    }
}

#[derive(Debug)]
struct Link {
    socket: TcpStream,
    next_id: u64,
    received: Vec<u8>,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Before(error)
    }
}

/// Reads at least one byte before the deadline.
fn read_some(socket: &mut TcpStream, into: &mut [u8], deadline: Deadline) -> io::Result<usize> {
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

impl Link {
    /// Connects to the first address of the host that accepts.
    fn connect(address: &HostPort, deadline: Deadline) -> io::Result<TcpStream> {
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

    fn open(address: &HostPort, token: &Token, deadline: Deadline) -> Result<Self, Failure> {
        let mut socket = Self::connect(address, deadline)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(ATTEMPT))?;
        let me = Identity { role: Role::Client, number: 0, epoch: draw_epoch()? };
        let wanted = Wanted { role: Role::Catalog, number: 0 };
        let mut initiator = Initiator::new(token, me, NO_FENCES, wanted, Nonce::draw()?, u64::MAX);
        socket.write_all(initiator.hello())?;
        let mut gather = Gather::default();
        loop {
            let bytes = read_some(&mut socket, gather.missing(), deadline)?;
            let Some(message) = gather.arrived(bytes) else { continue };
            match initiator.receive(&message, deadline.clock.now_ns()) {
                Ok(InitiatorStep::Send(proof)) => socket.write_all(&proof)?,
                Ok(InitiatorStep::Open { .. }) => {
                    return Ok(Self { socket, next_id: 1, received: Vec::new() });
                }
                Err(why) => return Err(Failure::NotLetIn(why)),
            }
        }
    }

    fn call(&mut self, request: &[u8], deadline: Deadline) -> Result<Vec<u8>, Failure> {
        let id = self.next_id;
        self.next_id += 1;
        let request = frame::Request::Call(request);
        let mut bytes = vec![0; request.frame_bytes()];
        request.encode(id, &mut bytes);
        self.socket.write_all(&bytes).map_err(Failure::After)?;
        self.receive(id, deadline).map_err(Failure::After)
    }

    /// Waits for the completion of call `id`; at most one call is in flight.
    fn receive(&mut self, id: u64, deadline: Deadline) -> io::Result<Vec<u8>> {
        let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let mut piece = [0; 16 * 1024];
        self.received.clear();
        loop {
            match frame::decode_completion(&self.received) {
                Decoded::Frame { id: whose, body: Completion::Reply(reply), .. } if whose == id => {
                    return Ok(reply.to_vec());
                }
                Decoded::Frame { body: Completion::NotDone(..), .. } => {
                    return invalid("no answer");
                }
                Decoded::Frame { .. } | Decoded::Malformed => return invalid("this is no answer"),
                Decoded::Incomplete => {}
            }
            let bytes = read_some(&mut self.socket, &mut piece, deadline)?;
            self.received.extend_from_slice(&piece[..bytes]);
        }
    }
}
