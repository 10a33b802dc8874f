//! The handshake of every connection that leaves the process. It tells each side the identity and
//! the protocol version of the other, and whether both hold the same token. It works on bytes
//! alone, so any transport can carry it.
//!
//! There are four messages of 64 bytes; all numbers are little-endian:
//!
//! ```text
//!  0 magic        "FARLEAF!"            16 epoch   the sender's, drawn when it started
//!  8 version      u16                   24 fences  what the sender knows, see below
//! 10 kind         u8                    32 payload 32 bytes: a nonce, or a proof
//! 11 role         u8
//! 12 number       u16
//! 14 reason       u16, of a refusal
//!
//! initiator                responder
//!     hello(nonce)     ─▶
//!                      ◀─  challenge(nonce)
//!     proof(HMAC)      ─▶
//!                      ◀─  welcome(HMAC)       or, at any point, a refusal
//! ```
//!
//! A proof is the HMAC-SHA256, keyed with the token, of the hello, the challenge and the header of
//! the proving message. It therefore covers both nonces, both roles, numbers and epochs, and the
//! side that proves.
//!
//! *Epochs* distinguish a restarted server from the previous one. The epoch of an endpoint of a
//! compute server identifies that endpoint, so a server can distinguish a second connection from a
//! second endpoint. *Fences*: the number of times the server has fenced that compute server. A
//! welcome has this count, and the hello of each later connection of that endpoint repeats it
//! ([`NO_FENCES`] in the first). An endpoint with a lower count has been fenced in the meantime and
//! is refused (F10); the server needs no list of endpoints.
//!
//! *Invariants*: handshake.H1. The initiator proves first, and the reply to a wrong proof is a
//! refusal that reveals nothing else: a peer without the token never sees a keyed hash made by the
//! responder. handshake.H2. The two sides' proofs cover different message kinds, so neither can be
//! reflected. handshake.H3. Proofs are compared in constant time. handshake.H4. Whatever arrives,
//! at most one message is kept, and an error ends the handshake. handshake.H5. The handshake ends
//! by its deadline.
//!
//! The handshake authenticates the peer when the connection opens. It neither encrypts nor
//! authenticates later traffic: a network on which an attacker can change packets needs a tunnel
//! below.
//!
//! *Thread safety*: plain values.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;
use thiserror::Error;

/// Version of the protocol, which covers the handshake and everything that follows it.
pub const PROTOCOL_VERSION: u16 = 5;

/// Length of every message, in bytes.
pub const MESSAGE_BYTES: usize = 64;

/// One message of the handshake.
pub type HandshakeMessage = [u8; MESSAGE_BYTES];

/// Fence count that a peer sends before its first welcome.
pub const NO_FENCES: u64 = u64::MAX;

const MAGIC: [u8; 8] = *b"FARLEAF!";
const HEADER_BYTES: usize = 32;
const PAYLOAD_BYTES: usize = MESSAGE_BYTES - HEADER_BYTES;

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const WELCOME: u8 = 4;
const REFUSAL: u8 = 5;

/// Fills `bytes` from the operating system's entropy.
fn draw(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Draws the epoch of a starting server or of an opened endpoint.
///
/// # Errors
/// The operating system's error if it cannot provide entropy.
pub fn draw_epoch() -> io::Result<u64> {
    let mut bytes = [0; 8];
    draw(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A number that is used for one handshake only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce([u8; PAYLOAD_BYTES]);

impl Nonce {
    /// Draws a random nonce.
    ///
    /// # Errors
    /// The operating system's error if it cannot provide entropy.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; PAYLOAD_BYTES];
        draw(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// A fixed nonce, for repeatable tests.
    pub const fn from_bytes(bytes: [u8; PAYLOAD_BYTES]) -> Self {
        Self(bytes)
    }
}

/// The secret shared by all servers and clients of one cluster. It is never sent and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<[u8]>);

/// A token is too short to be secure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a token of {bytes} bytes is too short; use at least {}", Token::MIN_BYTES)]
pub struct TokenTooShort {
    /// Length of the rejected token, in bytes.
    pub bytes: usize,
}

impl Token {
    /// Minimum length, in bytes. An eavesdropper can try tokens offline against a recorded
    /// handshake, so draw the token at random.
    pub const MIN_BYTES: usize = 16;

    /// Creates a token from `bytes`.
    ///
    /// # Errors
    /// [`TokenTooShort`] if there are fewer than [`Token::MIN_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self, TokenTooShort> {
        if bytes.len() < Self::MIN_BYTES {
            return Err(TokenTooShort { bytes: bytes.len() });
        }
        Ok(Self(bytes.into()))
    }

    /// Draws a token of 32 random bytes.
    ///
    /// # Errors
    /// The operating system's error if it cannot provide entropy.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; 32];
        draw(&mut bytes)?;
        Ok(Self(bytes.into()))
    }

    /// The keyed hash over the hello, the challenge and the header of the proving message.
    fn mac(
        &self,
        hello: &HandshakeMessage,
        challenge: &HandshakeMessage,
        header: &[u8],
    ) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0)
            .expect("HMAC takes a key of any length");
        mac.update(hello);
        mac.update(challenge);
        mac.update(header);
        mac
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// The kinds of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum PeerRole {
    /// A program that uses compute servers.
    Client = 1,
    /// A compute server; to a memory server, one endpoint of it.
    ComputeServer = 2,
    /// A memory server.
    MemoryServer = 3,
    /// The catalog of a cluster.
    Catalog = 4,
}

impl PeerRole {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Client, Self::ComputeServer, Self::MemoryServer, Self::Catalog]
            .into_iter()
            .find(|role| *role as u8 == byte)
    }
}

impl fmt::Display for PeerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::ComputeServer => "compute server",
            Self::MemoryServer => "memory server",
            Self::Catalog => "catalog",
        })
    }
}

/// Identity of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Its role.
    pub role: PeerRole,
    /// Its number among the peers of its role.
    pub number: u16,
    /// The epoch that it drew when it started ([`draw_epoch`]).
    pub epoch: u64,
}

/// Why a responder refuses a peer; sent to the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum HandshakeRefusal {
    /// The peer uses another version of the protocol.
    Version = 1,
    /// The peer has another token.
    Token = 2,
    /// The server does not accept peers of this role.
    Role = 3,
    /// The server has reached its limit of connections.
    Full = 4,
    /// The peer's compute server has been fenced since the peer's first connection (F10).
    Fenced = 5,
}

impl HandshakeRefusal {
    fn from_number(number: u16) -> Option<Self> {
        [Self::Version, Self::Token, Self::Role, Self::Full, Self::Fenced]
            .into_iter()
            .find(|refusal| *refusal as u16 == number)
    }

    /// Encodes the refusal as a message.
    pub fn message(self) -> HandshakeMessage {
        let mut message = [0; MESSAGE_BYTES];
        message[..8].copy_from_slice(&MAGIC);
        message[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        message[10] = REFUSAL;
        message[14..16].copy_from_slice(&(self as u16).to_le_bytes());
        message
    }
}

impl fmt::Display for HandshakeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "the versions differ",
            Self::Token => "the tokens differ",
            Self::Role => "it does not accept this role",
            Self::Full => "it has reached its limit of connections",
            Self::Fenced => "this compute server was declared dead and fenced",
        })
    }
}

/// How a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer sent something that is not a message of this protocol, or not the expected one.
    #[error("the peer does not speak this protocol")]
    Garbage,
    /// The peer uses another version of the protocol.
    #[error("the peer speaks version {theirs} of the protocol, this is version {PROTOCOL_VERSION}")]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// The peer's proof does not match the token.
    #[error("the peer has another token")]
    Token,
    /// This side does not accept peers of that role.
    #[error("connections from a {0} are not accepted here")]
    Role(PeerRole),
    /// The peer that answered is not the one that the initiator expected.
    #[error("{role} {number} answered instead of the expected peer; check the address", role = .0.role, number = .0.number)]
    OtherPeer(PeerIdentity),
    /// The peer refused.
    #[error("the peer refused: {0}")]
    Refused(HandshakeRefusal),
    /// The deadline has passed.
    #[error("the handshake took too long")]
    TimedOut,
}

impl HandshakeError {
    /// The refusal that the responder sends before it closes the connection; `None` to send
    /// nothing.
    pub fn refusal(self) -> Option<HandshakeRefusal> {
        match self {
            Self::Version { .. } => Some(HandshakeRefusal::Version),
            Self::Token => Some(HandshakeRefusal::Token),
            Self::Role(_) => Some(HandshakeRefusal::Role),
            _ => None,
        }
    }
}

/// The decoded header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandshakeHeader {
    kind: u8,
    identity: PeerIdentity,
    fences: u64,
}

impl HandshakeHeader {
    fn encode(&self, payload: &[u8; PAYLOAD_BYTES]) -> HandshakeMessage {
        let mut message = [0; MESSAGE_BYTES];
        message[..8].copy_from_slice(&MAGIC);
        message[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        message[10] = self.kind;
        message[11] = self.identity.role as u8;
        message[12..14].copy_from_slice(&self.identity.number.to_le_bytes());
        message[16..24].copy_from_slice(&self.identity.epoch.to_le_bytes());
        message[24..32].copy_from_slice(&self.fences.to_le_bytes());
        message[HEADER_BYTES..].copy_from_slice(payload);
        message
    }

    /// Decodes the header of a message that must be of `kind`.
    fn decode(message: &HandshakeMessage, kind: u8) -> Result<Self, HandshakeError> {
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u16::from_le_bytes([message[at], message[at + 1]]);
        if message[..8] != MAGIC {
            return Err(HandshakeError::Garbage);
        }
        // A refusal has the same encoding in every version, so decode it before comparing versions.
        if message[10] == REFUSAL && kind != HELLO && kind != PROOF {
            let refusal = HandshakeRefusal::from_number(half(14)).ok_or(HandshakeError::Garbage)?;
            return Err(HandshakeError::Refused(refusal));
        }
        let theirs = half(8);
        if theirs != PROTOCOL_VERSION {
            return Err(HandshakeError::Version { theirs });
        }
        if message[10] != kind || half(14) != 0 {
            return Err(HandshakeError::Garbage);
        }
        let role = PeerRole::from_byte(message[11]).ok_or(HandshakeError::Garbage)?;
        let identity = PeerIdentity { role, number: half(12), epoch: word(16) };
        Ok(Self { kind, identity, fences: word(24) })
    }
}

/// The peer that the initiator expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedPeer {
    /// The role of the expected peer.
    pub role: PeerRole,
    /// The number of the expected peer.
    pub number: u16,
}

/// The initiator's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitiatorStep {
    /// Send this, and wait for the next message.
    Send(HandshakeMessage),
    /// The connection is open.
    Open {
        /// Identity of the peer.
        peer: PeerIdentity,
        /// The fence count to send in the next hello to the same server.
        fences: u64,
    },
}

/// The side that connects.
#[derive(Clone, Debug)]
pub struct Initiator {
    token: Token,
    wanted: ExpectedPeer,
    header: HandshakeHeader,
    hello: HandshakeMessage,
    challenge: Option<HandshakeMessage>,
    deadline_ns: u64,
}

impl Initiator {
    /// Begins a handshake that must end by `deadline_ns`. `fences` is the count from this peer's
    /// last welcome, or [`NO_FENCES`].
    pub fn new(
        token: &Token,
        me: PeerIdentity,
        fences: u64,
        wanted: ExpectedPeer,
        nonce: Nonce,
        deadline_ns: u64,
    ) -> Self {
        let header = HandshakeHeader { kind: HELLO, identity: me, fences };
        let hello = header.encode(&nonce.0);
        Self { token: token.clone(), wanted, header, hello, challenge: None, deadline_ns }
    }

    /// The initiator's first message.
    pub fn hello(&self) -> &HandshakeMessage {
        &self.hello
    }

    /// Deadline of the handshake.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Processes the peer's next message.
    ///
    /// # Errors
    /// [`HandshakeError`]: close the connection.
    pub fn receive(
        &mut self,
        message: &HandshakeMessage,
        now_ns: u64,
    ) -> Result<InitiatorStep, HandshakeError> {
        if now_ns > self.deadline_ns {
            return Err(HandshakeError::TimedOut);
        }
        let Some(challenge) = &self.challenge else {
            let challenge = HandshakeHeader::decode(message, CHALLENGE)?;
            self.check_peer(challenge.identity)?;
            let proving = HandshakeHeader { kind: PROOF, ..self.header };
            let mut proof = proving.encode(&[0; PAYLOAD_BYTES]);
            let mac = self.token.mac(&self.hello, message, &proof[..HEADER_BYTES]);
            proof[HEADER_BYTES..].copy_from_slice(&mac.finalize().into_bytes());
            self.challenge = Some(*message);
            return Ok(InitiatorStep::Send(proof));
        };
        let welcome = HandshakeHeader::decode(message, WELCOME)?;
        let challenged = HandshakeHeader::decode(challenge, CHALLENGE)?;
        if welcome.identity != challenged.identity {
            return Err(HandshakeError::Garbage);
        }
        let mac = self.token.mac(&self.hello, challenge, &message[..HEADER_BYTES]);
        mac.verify_slice(&message[HEADER_BYTES..]).map_err(|_| HandshakeError::Token)?;
        Ok(InitiatorStep::Open { peer: welcome.identity, fences: welcome.fences })
    }

    fn check_peer(&self, peer: PeerIdentity) -> Result<(), HandshakeError> {
        let looked_for = peer.role == self.wanted.role && peer.number == self.wanted.number;
        // A peer with our own role and epoch is reflecting our messages.
        let myself =
            peer.role == self.header.identity.role && peer.epoch == self.header.identity.epoch;
        if !looked_for || myself {
            return Err(HandshakeError::OtherPeer(peer));
        }
        Ok(())
    }
}

/// The responder's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderStep {
    /// Send this, and wait for the next message.
    Send(HandshakeMessage),
    /// The peer holds the token: admit it ([`Responder::welcome`]) or refuse it.
    Proven {
        /// Identity of the peer.
        peer: PeerIdentity,
        /// The fence count from its hello.
        fences: u64,
    },
}

/// The side that accepts the connection.
#[derive(Clone, Debug)]
pub struct Responder {
    token: Token,
    accepts: &'static [PeerRole],
    challenge: HandshakeMessage,
    header: HandshakeHeader,
    hello: Option<HandshakeMessage>,
    deadline_ns: u64,
}

impl Responder {
    /// Waits for a hello from a peer of one of the roles in `accepts`.
    pub fn new(
        token: &Token,
        me: PeerIdentity,
        accepts: &'static [PeerRole],
        nonce: Nonce,
        deadline_ns: u64,
    ) -> Self {
        let header = HandshakeHeader { kind: CHALLENGE, identity: me, fences: 0 };
        let challenge = header.encode(&nonce.0);
        Self { token: token.clone(), accepts, challenge, header, hello: None, deadline_ns }
    }

    /// Deadline of the handshake.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Processes the peer's next message.
    ///
    /// # Errors
    /// [`HandshakeError`]: send its [`HandshakeError::refusal`], if any, and close the connection.
    pub fn receive(
        &mut self,
        message: &HandshakeMessage,
        now_ns: u64,
    ) -> Result<ResponderStep, HandshakeError> {
        if now_ns > self.deadline_ns {
            return Err(HandshakeError::TimedOut);
        }
        let Some(hello) = &self.hello else {
            let role = HandshakeHeader::decode(message, HELLO)?.identity.role;
            if !self.accepts.contains(&role) {
                return Err(HandshakeError::Role(role));
            }
            self.hello = Some(*message);
            return Ok(ResponderStep::Send(self.challenge));
        };
        let said = HandshakeHeader::decode(hello, HELLO)?;
        let proof = HandshakeHeader::decode(message, PROOF)?;
        if (HandshakeHeader { kind: HELLO, ..proof }) != said {
            return Err(HandshakeError::Garbage);
        }
        let mac = self.token.mac(hello, &self.challenge, &message[..HEADER_BYTES]);
        mac.verify_slice(&message[HEADER_BYTES..]).map_err(|_| HandshakeError::Token)?;
        Ok(ResponderStep::Proven { peer: said.identity, fences: said.fences })
    }

    /// The last message, sent after [`ResponderStep::Proven`]. The peer repeats `fences` in its
    /// next hello.
    ///
    /// # Panics
    /// If no hello has been received yet.
    pub fn welcome(&self, fences: u64) -> HandshakeMessage {
        let hello = self.hello.as_ref().expect("a welcome comes after the proof");
        let header = HandshakeHeader { kind: WELCOME, fences, ..self.header };
        let mut message = header.encode(&[0; PAYLOAD_BYTES]);
        let mac = self.token.mac(hello, &self.challenge, &message[..HEADER_BYTES]);
        message[HEADER_BYTES..].copy_from_slice(&mac.finalize().into_bytes());
        message
    }
}

/// Assembles one message from pieces of any size, and never buffers more than one.
#[derive(Clone, Debug)]
pub struct MessageAssembler {
    bytes: HandshakeMessage,
    filled: usize,
}

impl Default for MessageAssembler {
    fn default() -> Self {
        Self { bytes: [0; MESSAGE_BYTES], filled: 0 }
    }
}

impl MessageAssembler {
    /// The space for the next bytes; never empty.
    pub fn missing(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Records that `bytes` more bytes have arrived. Returns the message once it is complete, and
    /// then starts over.
    ///
    /// # Panics
    /// If more bytes arrived than were missing.
    pub fn arrived(&mut self, bytes: usize) -> Option<HandshakeMessage> {
        self.filled += bytes;
        assert!(self.filled <= MESSAGE_BYTES, "more bytes arrived than the message was missing");
        (self.filled == MESSAGE_BYTES).then(|| {
            self.filled = 0;
            self.bytes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: PeerIdentity =
        PeerIdentity { role: PeerRole::ComputeServer, number: 3, epoch: 77 };
    const SERVER: PeerIdentity =
        PeerIdentity { role: PeerRole::MemoryServer, number: 1, epoch: 99 };
    const WANTED: ExpectedPeer = ExpectedPeer { role: PeerRole::MemoryServer, number: 1 };
    const DEADLINE_NS: u64 = 1_000;

    fn token(byte: u8) -> Token {
        Token::new(&[byte; 32]).unwrap()
    }

    fn initiator(token: &Token) -> Initiator {
        Initiator::new(token, ENDPOINT, 5, WANTED, Nonce::from_bytes([1; 32]), DEADLINE_NS)
    }

    fn responder(token: &Token) -> Responder {
        let nonce = Nonce::from_bytes([2; 32]);
        Responder::new(token, SERVER, &[PeerRole::ComputeServer], nonce, DEADLINE_NS)
    }

    fn sent(step: ResponderStep) -> HandshakeMessage {
        match step {
            ResponderStep::Send(message) => message,
            proven => panic!("{proven:?}"),
        }
    }

    fn proof(initiator: &mut Initiator, challenge: &HandshakeMessage) -> HandshakeMessage {
        match initiator.receive(challenge, 0).unwrap() {
            InitiatorStep::Send(message) => message,
            open => panic!("{open:?}"),
        }
    }

    #[test]
    fn both_sides_learn_who_the_other_is() {
        let (mut left, mut right) = (initiator(&token(7)), responder(&token(7)));
        let challenge = sent(right.receive(left.hello(), 0).unwrap());
        let proof = proof(&mut left, &challenge);
        let proven = right.receive(&proof, DEADLINE_NS).unwrap();
        assert_eq!(proven, ResponderStep::Proven { peer: ENDPOINT, fences: 5 });
        let open = left.receive(&right.welcome(6), DEADLINE_NS).unwrap();
        assert_eq!(open, InitiatorStep::Open { peer: SERVER, fences: 6 });
    }

    #[test]
    fn another_token_is_refused_by_either_side() {
        let (mut left, mut right) = (initiator(&token(7)), responder(&token(8)));
        let challenge = sent(right.receive(left.hello(), 0).unwrap());
        let proof = proof(&mut left, &challenge);
        let error = right.receive(&proof, 0).unwrap_err();
        assert_eq!(
            (error, error.refusal()),
            (HandshakeError::Token, Some(HandshakeRefusal::Token))
        );
        // The initiator does not trust a server that admits every peer.
        assert_eq!(left.receive(&right.welcome(0), 0), Err(HandshakeError::Token));
        let refused = left.receive(&HandshakeRefusal::Token.message(), 0);
        assert_eq!(refused, Err(HandshakeError::Refused(HandshakeRefusal::Token)));
    }

    /// Every bit of every message is covered: a change to any of them is detected.
    #[test]
    fn no_bit_can_be_changed() {
        let key = token(7);
        for bit in 0..MESSAGE_BYTES * 8 {
            let flip = |message: &HandshakeMessage| {
                let mut flipped = *message;
                flipped[bit / 8] ^= 1 << (bit % 8);
                flipped
            };
            for changed in 0..4 {
                let (mut left, mut right) = (initiator(&key), responder(&key));
                let change = |which, message: &HandshakeMessage| {
                    if which == changed { flip(message) } else { *message }
                };
                let mut whole = || {
                    let step = right.receive(&change(0, left.hello()), 0)?;
                    let step = left.receive(&change(1, &sent(step)), 0)?;
                    let InitiatorStep::Send(proof) = step else { panic!("too early") };
                    right.receive(&change(2, &proof), 0)?;
                    left.receive(&change(3, &right.welcome(6)), 0)
                };
                assert!(whole().is_err(), "bit {bit} of message {changed}");
            }
        }
    }

    #[test]
    fn what_a_side_says_cannot_be_said_back_to_it() {
        let key = token(7);
        let (mut left, mut right) = (initiator(&key), responder(&key));
        let challenge = sent(right.receive(left.hello(), 0).unwrap());
        let proof = proof(&mut left, &challenge);
        // Reflecting a peer's own proof, unchanged or disguised as a welcome, does not
        // authenticate.
        assert_eq!(left.receive(&proof, 0), Err(HandshakeError::Garbage));
        let mut dressed = challenge;
        dressed[10] = WELCOME;
        dressed[HEADER_BYTES..].copy_from_slice(&proof[HEADER_BYTES..]);
        assert_eq!(left.receive(&dressed, 0), Err(HandshakeError::Token));
        // A peer that expects another peer of its own role does not accept its own messages.
        let wanted = ExpectedPeer { role: PeerRole::ComputeServer, number: 3 };
        let mut alone = Initiator::new(&key, ENDPOINT, 0, wanted, Nonce::from_bytes([1; 32]), 9);
        let mut echo = *alone.hello();
        echo[10] = CHALLENGE;
        assert_eq!(alone.receive(&echo, 0), Err(HandshakeError::OtherPeer(ENDPOINT)));
    }

    #[test]
    fn versions_roles_peers_and_deadlines_are_checked() {
        let key = token(7);
        let mut other = *initiator(&key).hello();
        let theirs = PROTOCOL_VERSION + 1;
        other[8] = theirs as u8;
        let error = responder(&key).receive(&other, 0).unwrap_err();
        assert_eq!(error, HandshakeError::Version { theirs });
        assert_eq!(error.refusal(), Some(HandshakeRefusal::Version));
        let mut from_the_future = HandshakeRefusal::Version.message();
        from_the_future[8] = theirs as u8;
        let refused = initiator(&key).receive(&from_the_future, 0);
        assert_eq!(refused, Err(HandshakeError::Refused(HandshakeRefusal::Version)));

        let client = PeerIdentity { role: PeerRole::Client, ..ENDPOINT };
        let nonce = Nonce::from_bytes([1; 32]);
        let hello = *Initiator::new(&key, client, 0, WANTED, nonce, 9).hello();
        let error = responder(&key).receive(&hello, 0).unwrap_err();
        assert_eq!(error, HandshakeError::Role(PeerRole::Client));

        let wanted = ExpectedPeer { number: 2, ..WANTED };
        let mut lost = Initiator::new(&key, ENDPOINT, 0, wanted, nonce, 9);
        let challenge = sent(responder(&key).receive(lost.hello(), 0).unwrap());
        assert_eq!(lost.receive(&challenge, 0), Err(HandshakeError::OtherPeer(SERVER)));

        let late = responder(&key).receive(initiator(&key).hello(), DEADLINE_NS + 1);
        assert_eq!(late, Err(HandshakeError::TimedOut));
        let late = initiator(&key).receive(&challenge, DEADLINE_NS + 1);
        assert_eq!(late, Err(HandshakeError::TimedOut));
    }

    #[test]
    fn tokens_are_long_and_never_printed() {
        assert_eq!(Token::new(b"too short"), Err(TokenTooShort { bytes: 9 }));
        assert_eq!(format!("{:?}", Token::new(&[b'x'; 32]).unwrap()), "Token(secret)");
        assert!(!format!("{:?}", initiator(&token(b'x'))).contains("120, 120"));
        assert_ne!(Token::draw().unwrap(), Token::draw().unwrap());
    }

    #[test]
    fn messages_are_gathered_from_pieces() {
        let message = HandshakeRefusal::Full.message();
        let mut gather = MessageAssembler::default();
        for round in 0..3 {
            for (at, byte) in message.iter().enumerate() {
                gather.missing()[0] = *byte;
                let whole = gather.arrived(1);
                assert_eq!(whole.is_some(), at + 1 == MESSAGE_BYTES, "round {round}, byte {at}");
                assert!(whole.is_none_or(|whole| whole == message));
            }
        }
    }
}
