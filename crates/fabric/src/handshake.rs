//! The handshake of every connection that leaves the process: who is there, in which version, and
//! whether both know the same token. On bytes alone, so that any transport can carry it.
//!
//! Four messages of 64 bytes, all numbers little-endian:
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
//! A proof is the HMAC-SHA256, keyed with the token, of the hello, the challenge and the proving
//! message's own header: so of both nonces, both roles, numbers and epochs, and of which side proves.
//!
//! *Epochs* tell a server that was restarted from the one before it; the epoch of an endpoint of a compute
//! server names that endpoint, so that a server knows its second connection from a second endpoint.
//! *Fences*: how often the server has fenced that compute server. A welcome says it, and the hello of each later
//! connection of that endpoint repeats it ([`NO_FENCES`] in the first): who is behind was fenced since, and stays out
//! (F10), without a list of endpoints.
//!
//! *Invariants*: H1. the initiator proves first, and a wrong proof is answered by a refusal that says
//! nothing else: nobody without the token sees a keyed hash that was made by the responder. H2. the two sides' proofs
//! differ in the kind of message that they cover, so neither can be sent back. H3. proofs are compared in
//! constant time. H4. whatever comes in, at most one message is kept, and after an error
//! the handshake is over. H5. it ends by its deadline.
//!
//! It authenticates the peer at the beginning; it neither hides nor seals what follows. Networks where somebody may
//! change packets on the way need a tunnel below.
//!
//! *Thread safety*: plain values.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;
use thiserror::Error;

/// The protocol's version: of the handshake and of everything that follows it.
pub const PROTOCOL_VERSION: u16 = 2;

/// The length of every message, in bytes.
pub const MESSAGE_BYTES: usize = 64;

/// One message.
pub type HandshakeMessage = [u8; MESSAGE_BYTES];

/// What a peer knows of fences before its first welcome.
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

/// Draws the epoch of a server that starts, or of an endpoint that is opened.
///
/// # Errors
/// What the operating system says if it has no entropy.
pub fn draw_epoch() -> io::Result<u64> {
    let mut bytes = [0; 8];
    draw(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A number that is used once, for one handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce([u8; PAYLOAD_BYTES]);

impl Nonce {
    /// A fresh one.
    ///
    /// # Errors
    /// What the operating system says if it has no entropy.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; PAYLOAD_BYTES];
        draw(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// This very one, for tests that repeat themselves.
    pub const fn from_bytes(bytes: [u8; PAYLOAD_BYTES]) -> Self {
        Self(bytes)
    }
}

/// The secret that all servers and clients of one cluster share. It is never sent, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<[u8]>);

/// A token is too short to keep anybody out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a token of {bytes} bytes: it must have {} at least", Token::MIN_BYTES)]
pub struct TokenTooShort {
    /// Its length.
    pub bytes: usize,
}

impl Token {
    /// The least length, in bytes. Who sees a handshake can try tokens on it at leisure: draw it at random.
    pub const MIN_BYTES: usize = 16;

    /// The token that consists of `bytes`.
    ///
    /// # Errors
    /// [`TokenTooShort`] if there are fewer than [`Token::MIN_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self, TokenTooShort> {
        if bytes.len() < Self::MIN_BYTES {
            return Err(TokenTooShort { bytes: bytes.len() });
        }
        Ok(Self(bytes.into()))
    }

    /// A fresh token of 32 random bytes.
    ///
    /// # Errors
    /// What the operating system says if it has no entropy.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; 32];
        draw(&mut bytes)?;
        Ok(Self(bytes.into()))
    }

    /// The keyed hash of what both sides said first and of the header of what proves it.
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

/// What a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Role {
    /// A program that uses compute servers.
    Client = 1,
    /// A compute server; towards memory servers, one endpoint of it.
    ComputeServer = 2,
    /// A memory server.
    MemoryServer = 3,
    /// The catalog of a cluster.
    Catalog = 4,
}

impl Role {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Client, Self::ComputeServer, Self::MemoryServer, Self::Catalog]
            .into_iter()
            .find(|role| *role as u8 == byte)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::ComputeServer => "compute server",
            Self::MemoryServer => "memory server",
            Self::Catalog => "catalog",
        })
    }
}

/// Who a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// What it is.
    pub role: Role,
    /// Its number among those of its role.
    pub number: u16,
    /// What it drew when it started ([`draw_epoch`]).
    pub epoch: u64,
}

/// Why a peer is not let in; the initiator is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum Refusal {
    /// It speaks another version.
    Version = 1,
    /// It has another token.
    Token = 2,
    /// A peer of its role has no business here.
    Role = 3,
    /// There are as many connections as there may be.
    Full = 4,
    /// Its compute server has been fenced since it came first (F10).
    Fenced = 5,
}

impl Refusal {
    fn from_number(number: u16) -> Option<Self> {
        [Self::Version, Self::Token, Self::Role, Self::Full, Self::Fenced]
            .into_iter()
            .find(|refusal| *refusal as u16 == number)
    }

    /// The message that says so.
    pub fn message(self) -> HandshakeMessage {
        let mut message = [0; MESSAGE_BYTES];
        message[..8].copy_from_slice(&MAGIC);
        message[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        message[10] = REFUSAL;
        message[14..16].copy_from_slice(&(self as u16).to_le_bytes());
        message
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "the versions differ",
            Self::Token => "the tokens differ",
            Self::Role => "this role has no business there",
            Self::Full => "it has as many connections as it may have",
            Self::Fenced => "this compute server was taken for dead and shut out",
        })
    }
}

/// How a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// What came is no message of this protocol, or not the one that was due.
    #[error("the peer does not speak this protocol")]
    Garbage,
    /// The peer speaks another version.
    #[error("the peer speaks version {theirs} of the protocol, this is version {PROTOCOL_VERSION}")]
    Version {
        /// The peer's.
        theirs: u16,
    },
    /// The peer's proof is not that of the token.
    #[error("the peer has another token")]
    Token,
    /// The peer is of a role that is not let in.
    #[error("a {0} has no business here")]
    Role(Role),
    /// The peer that answers is not the one that was looked for.
    #[error("there is {role} {number}, which is not what was looked for", role = .0.role, number = .0.number)]
    OtherPeer(Identity),
    /// The peer refused.
    #[error("the peer refused: {0}")]
    Refused(Refusal),
    /// The deadline has passed.
    #[error("the handshake took too long")]
    TimedOut,
}

impl HandshakeError {
    /// What the responder tells the peer before it closes; `None` is nothing at all.
    pub fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Version { .. } => Some(Refusal::Version),
            Self::Token => Some(Refusal::Token),
            Self::Role(_) => Some(Refusal::Role),
            _ => None,
        }
    }
}

/// What a message's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    kind: u8,
    identity: Identity,
    fences: u64,
}

impl Header {
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

    /// The header of a message that must be of `kind`.
    fn decode(message: &HandshakeMessage, kind: u8) -> Result<Self, HandshakeError> {
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u16::from_le_bytes([message[at], message[at + 1]]);
        if message[..8] != MAGIC {
            return Err(HandshakeError::Garbage);
        }
        // What a refusal looks like is the same in every version.
        if message[10] == REFUSAL && kind != HELLO && kind != PROOF {
            let refusal = Refusal::from_number(half(14)).ok_or(HandshakeError::Garbage)?;
            return Err(HandshakeError::Refused(refusal));
        }
        let theirs = half(8);
        if theirs != PROTOCOL_VERSION {
            return Err(HandshakeError::Version { theirs });
        }
        if message[10] != kind || half(14) != 0 {
            return Err(HandshakeError::Garbage);
        }
        let role = Role::from_byte(message[11]).ok_or(HandshakeError::Garbage)?;
        let identity = Identity { role, number: half(12), epoch: word(16) };
        Ok(Self { kind, identity, fences: word(24) })
    }
}

/// What the initiator looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The role of the peer.
    pub role: Role,
    /// Its number.
    pub number: u16,
}

/// How the initiator goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitiatorStep {
    /// Send this, and wait for the next message.
    Send(HandshakeMessage),
    /// The connection is open.
    Open {
        /// Who is on the other side.
        peer: Identity,
        /// What the next hello to the same server must say.
        fences: u64,
    },
}

/// The side that connects.
#[derive(Clone, Debug)]
pub struct Initiator {
    token: Token,
    wanted: Wanted,
    header: Header,
    hello: HandshakeMessage,
    challenge: Option<HandshakeMessage>,
    deadline_ns: u64,
}

impl Initiator {
    /// Begins a handshake that must end by `deadline_ns`. `fences` is what the last welcome of this peer
    /// said, or [`NO_FENCES`].
    pub fn new(
        token: &Token,
        me: Identity,
        fences: u64,
        wanted: Wanted,
        nonce: Nonce,
        deadline_ns: u64,
    ) -> Self {
        let header = Header { kind: HELLO, identity: me, fences };
        let hello = header.encode(&nonce.0);
        Self { token: token.clone(), wanted, header, hello, challenge: None, deadline_ns }
    }

    /// The first message.
    pub fn hello(&self) -> &HandshakeMessage {
        &self.hello
    }

    /// When the handshake must have ended.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Takes the peer's next message.
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
            let challenge = Header::decode(message, CHALLENGE)?;
            self.check_peer(challenge.identity)?;
            let proving = Header { kind: PROOF, ..self.header };
            let mut proof = proving.encode(&[0; PAYLOAD_BYTES]);
            let mac = self.token.mac(&self.hello, message, &proof[..HEADER_BYTES]);
            proof[HEADER_BYTES..].copy_from_slice(&mac.finalize().into_bytes());
            self.challenge = Some(*message);
            return Ok(InitiatorStep::Send(proof));
        };
        let welcome = Header::decode(message, WELCOME)?;
        let challenged = Header::decode(challenge, CHALLENGE)?;
        if welcome.identity != challenged.identity {
            return Err(HandshakeError::Garbage);
        }
        let mac = self.token.mac(&self.hello, challenge, &message[..HEADER_BYTES]);
        mac.verify_slice(&message[HEADER_BYTES..]).map_err(|_| HandshakeError::Token)?;
        Ok(InitiatorStep::Open { peer: welcome.identity, fences: welcome.fences })
    }

    fn check_peer(&self, peer: Identity) -> Result<(), HandshakeError> {
        let looked_for = peer.role == self.wanted.role && peer.number == self.wanted.number;
        // Somebody who plays our own messages back to us.
        let myself =
            peer.role == self.header.identity.role && peer.epoch == self.header.identity.epoch;
        if !looked_for || myself {
            return Err(HandshakeError::OtherPeer(peer));
        }
        Ok(())
    }
}

/// How the responder goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderStep {
    /// Send this, and wait for the next message.
    Send(HandshakeMessage),
    /// The peer knows the token: let it in ([`Responder::welcome`]), or refuse it.
    Proven {
        /// Who it is.
        peer: Identity,
        /// What its hello said.
        fences: u64,
    },
}

/// The side that is connected to.
#[derive(Clone, Debug)]
pub struct Responder {
    token: Token,
    accepts: &'static [Role],
    challenge: HandshakeMessage,
    header: Header,
    hello: Option<HandshakeMessage>,
    deadline_ns: u64,
}

impl Responder {
    /// Awaits a hello from a peer of one of the roles that it `accepts`.
    pub fn new(
        token: &Token,
        me: Identity,
        accepts: &'static [Role],
        nonce: Nonce,
        deadline_ns: u64,
    ) -> Self {
        let header = Header { kind: CHALLENGE, identity: me, fences: 0 };
        let challenge = header.encode(&nonce.0);
        Self { token: token.clone(), accepts, challenge, header, hello: None, deadline_ns }
    }

    /// When the handshake must have ended.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Takes the peer's next message.
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
            let role = Header::decode(message, HELLO)?.identity.role;
            if !self.accepts.contains(&role) {
                return Err(HandshakeError::Role(role));
            }
            self.hello = Some(*message);
            return Ok(ResponderStep::Send(self.challenge));
        };
        let said = Header::decode(hello, HELLO)?;
        let proof = Header::decode(message, PROOF)?;
        if (Header { kind: HELLO, ..proof }) != said {
            return Err(HandshakeError::Garbage);
        }
        let mac = self.token.mac(hello, &self.challenge, &message[..HEADER_BYTES]);
        mac.verify_slice(&message[HEADER_BYTES..]).map_err(|_| HandshakeError::Token)?;
        Ok(ResponderStep::Proven { peer: said.identity, fences: said.fences })
    }

    /// The last message, after [`ResponderStep::Proven`]; `fences` comes back with the peer's next hello.
    ///
    /// # Panics
    /// If the peer has not even said hello.
    pub fn welcome(&self, fences: u64) -> HandshakeMessage {
        let hello = self.hello.as_ref().expect("a welcome comes after the proof");
        let header = Header { kind: WELCOME, fences, ..self.header };
        let mut message = header.encode(&[0; PAYLOAD_BYTES]);
        let mac = self.token.mac(hello, &self.challenge, &message[..HEADER_BYTES]);
        message[HEADER_BYTES..].copy_from_slice(&mac.finalize().into_bytes());
        message
    }
}

/// Gathers one message from pieces of any size, and never more than that.
#[derive(Clone, Debug)]
pub struct Gather {
    bytes: HandshakeMessage,
    filled: usize,
}

impl Default for Gather {
    fn default() -> Self {
        Self { bytes: [0; MESSAGE_BYTES], filled: 0 }
    }
}

impl Gather {
    /// Where the next bytes go; never empty.
    pub fn missing(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Says that `bytes` bytes have come; the message, if it is whole now. Then it begins anew.
    ///
    /// # Panics
    /// If more have come than were missing.
    pub fn arrived(&mut self, bytes: usize) -> Option<HandshakeMessage> {
        self.filled += bytes;
        assert!(self.filled <= MESSAGE_BYTES, "no more than was asked for");
        (self.filled == MESSAGE_BYTES).then(|| {
            self.filled = 0;
            self.bytes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: Identity = Identity { role: Role::ComputeServer, number: 3, epoch: 77 };
    const SERVER: Identity = Identity { role: Role::MemoryServer, number: 1, epoch: 99 };
    const WANTED: Wanted = Wanted { role: Role::MemoryServer, number: 1 };
    const DEADLINE_NS: u64 = 1_000;

    fn token(byte: u8) -> Token {
        Token::new(&[byte; 32]).unwrap()
    }

    fn initiator(token: &Token) -> Initiator {
        Initiator::new(token, ENDPOINT, 5, WANTED, Nonce::from_bytes([1; 32]), DEADLINE_NS)
    }

    fn responder(token: &Token) -> Responder {
        let nonce = Nonce::from_bytes([2; 32]);
        Responder::new(token, SERVER, &[Role::ComputeServer], nonce, DEADLINE_NS)
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
        assert_eq!((error, error.refusal()), (HandshakeError::Token, Some(Refusal::Token)));
        // A server that lets everybody in is not believed either.
        assert_eq!(left.receive(&right.welcome(0), 0), Err(HandshakeError::Token));
        let refused = left.receive(&Refusal::Token.message(), 0);
        assert_eq!(refused, Err(HandshakeError::Refused(Refusal::Token)));
    }

    /// Every bit of every message counts: of what is changed on the way, nothing is believed.
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
        // Its own proof, as it is or dressed up as a welcome, is none of the other side.
        assert_eq!(left.receive(&proof, 0), Err(HandshakeError::Garbage));
        let mut dressed = challenge;
        dressed[10] = WELCOME;
        dressed[HEADER_BYTES..].copy_from_slice(&proof[HEADER_BYTES..]);
        assert_eq!(left.receive(&dressed, 0), Err(HandshakeError::Token));
        // A peer that looks for one of its own kind does not talk to itself.
        let wanted = Wanted { role: Role::ComputeServer, number: 3 };
        let mut alone = Initiator::new(&key, ENDPOINT, 0, wanted, Nonce::from_bytes([1; 32]), 9);
        let mut echo = *alone.hello();
        echo[10] = CHALLENGE;
        assert_eq!(alone.receive(&echo, 0), Err(HandshakeError::OtherPeer(ENDPOINT)));
    }

    #[test]
    fn versions_roles_peers_and_deadlines_are_checked() {
        let key = token(7);
        let mut other = *initiator(&key).hello();
        other[8] = 2;
        let error = responder(&key).receive(&other, 0).unwrap_err();
        assert_eq!(error, HandshakeError::Version { theirs: 2 });
        assert_eq!(error.refusal(), Some(Refusal::Version));
        let mut from_the_future = Refusal::Version.message();
        from_the_future[8] = 2;
        let refused = initiator(&key).receive(&from_the_future, 0);
        assert_eq!(refused, Err(HandshakeError::Refused(Refusal::Version)));

        let client = Identity { role: Role::Client, ..ENDPOINT };
        let nonce = Nonce::from_bytes([1; 32]);
        let hello = *Initiator::new(&key, client, 0, WANTED, nonce, 9).hello();
        let error = responder(&key).receive(&hello, 0).unwrap_err();
        assert_eq!(error, HandshakeError::Role(Role::Client));

        let wanted = Wanted { number: 2, ..WANTED };
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
        let message = Refusal::Full.message();
        let mut gather = Gather::default();
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
