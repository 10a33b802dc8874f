//! The bytes after the handshake: requests one way, completions the other. Works on slices only.
//!
//! ```text
//!  0 length   u32, of what follows the header      a request's opcode; a completion's is the
//!  4 opcode   u8                                   request's | 0x80
//!  5 status   u8, 0 in requests                    the id is the requester's, and comes back
//!  6 zero     u16
//!  8 id       u64
//! 16 body
//!
//! request                                          completion
//! READ    at u64, whole u32, first u32, length u32, zero u32      the words
//! WRITE   at u64, whole u32, first u32, the words                 nothing
//! CAS     at u64, expected u64, new u64                           the value found, u64
//! ADD     at u64, delta u64                                       the value before, u64
//! CALL    the request                                             the reply
//! FENCE   compute server u64                                      nothing
//!
//! status  1 unaligned           2 out of bounds (region's bytes u64)    3 no such server
//!         4 too large (u64)     5 unanswered
//! ```
//!
//! A READ or WRITE of more than [`PIECE_BYTES`] travels in pieces, each a frame with the same id.
//! Every piece describes the whole verb, and the server checks all of it each time. So a verb is
//! refused as a whole or not at all (F5), and no buffer needs to hold more than a piece.
//!
//! *Invariants*: frame.W1. Bytes are not treated as a frame until their length has been checked
//! against the bounds of its opcode. frame.W2. Malformed bytes are never a frame; their connection
//! is closed. frame.W3. A decoded frame encodes to the same bytes again.
//!
//! *Thread safety*: plain functions.

use crate::{GlobalAddr, MAX_MESSAGE_BYTES};

/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 16;
/// Maximum payload of one READ or WRITE frame, in bytes.
pub const PIECE_BYTES: usize = 64 * 1024;
/// Maximum length of a frame, including its header.
pub const MAX_FRAME_BYTES: usize = HEADER_BYTES + MAX_MESSAGE_BYTES;

const READ: u8 = 1;
const WRITE: u8 = 2;
const CAS: u8 = 3;
const ADD: u8 = 4;
const CALL: u8 = 5;
const FENCE: u8 = 6;
const COMPLETION: u8 = 0x80;

const OK: u8 = 0;
const UNALIGNED: u8 = 1;
const OUT_OF_BOUNDS: u8 = 2;
const NO_SUCH_SERVER: u8 = 3;
const TOO_LARGE: u8 = 4;
const UNANSWERED: u8 = 5;

const WRITE_ARGUMENTS: usize = 16;
const _: () = assert!(WRITE_ARGUMENTS + PIECE_BYTES <= MAX_MESSAGE_BYTES);
const _: () = assert!(PIECE_BYTES.is_multiple_of(8));

/// The result of decoding received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedFrame<T> {
    /// The frame is incomplete.
    Incomplete,
    /// A complete frame.
    Frame {
        /// The request's id.
        id: u64,
        /// The decoded content.
        body: T,
        /// Length of the frame, in bytes.
        bytes: usize,
    },
    /// These bytes can never become a frame.
    Malformed,
}

/// One piece of a READ or a WRITE, and the whole verb that it belongs to. Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePiece {
    /// Start of the whole.
    pub at: GlobalAddr,
    /// Length of the whole.
    pub whole: u32,
    /// Offset of the piece in the whole.
    pub first: u32,
    /// Length of the piece.
    pub length: u32,
}

impl FramePiece {
    /// Whether the piece lies within the whole, consists of whole words, and is at most
    /// [`PIECE_BYTES`] long.
    fn is_sound(&self) -> bool {
        let within = self.first.checked_add(self.length).is_some_and(|end| end <= self.whole);
        let words = self.first.is_multiple_of(8) && self.length.is_multiple_of(8);
        within && words && self.length as usize <= PIECE_BYTES
    }
}

/// A request from a client to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRequest<'a> {
    /// READ a piece.
    Read(FramePiece),
    /// WRITE a piece.
    Write(FramePiece, &'a [u8]),
    /// Compare and swap.
    CompareSwap {
        /// The word.
        at: GlobalAddr,
        /// The value it must have.
        expected: u64,
        /// The value to set.
        new: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// The word.
        at: GlobalAddr,
        /// The value to add.
        delta: u64,
    },
    /// A request to the service.
    Call(&'a [u8]),
    /// Fences a compute server.
    Fence {
        /// The compute server's number.
        compute_server: u16,
    },
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbRefusal {
    /// Address or length is not a multiple of 8, or the address is not in the pool.
    Unaligned,
    /// The access is not entirely inside the region.
    OutOfBounds {
        /// The region's length.
        region_bytes: u64,
    },
    /// The address names another memory server.
    NoSuchServer,
    /// The reply is too long.
    TooLarge {
        /// Its length.
        bytes: u64,
    },
    /// The service dropped the request without an answer: it is unknown whether it was carried out.
    Unanswered,
}

/// The completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion<'a> {
    /// The words of a READ.
    Read(&'a [u8]),
    /// A WRITE is done.
    Written,
    /// The value that a CAS found.
    Swapped(u64),
    /// The value that a FETCH-ADD found.
    Added(u64),
    /// The service's reply.
    Reply(&'a [u8]),
    /// A fence is complete.
    Fenced,
    /// The request of this kind failed.
    NotDone(FrameKind, VerbRefusal),
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A READ.
    Read = READ,
    /// A WRITE.
    Write = WRITE,
    /// A CAS.
    CompareSwap = CAS,
    /// A FETCH-ADD.
    FetchAdd = ADD,
    /// A call.
    Call = CALL,
    /// A fence.
    Fence = FENCE,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            READ => Self::Read,
            WRITE => Self::Write,
            CAS => Self::CompareSwap,
            ADD => Self::FetchAdd,
            CALL => Self::Call,
            FENCE => Self::Fence,
            _ => return None,
        })
    }

    /// The valid lengths of a request's body.
    fn request_bytes(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Read | Self::CompareSwap => 24..=24,
            Self::Write => WRITE_ARGUMENTS..=WRITE_ARGUMENTS + PIECE_BYTES,
            Self::FetchAdd => 16..=16,
            Self::Call => 0..=MAX_MESSAGE_BYTES,
            Self::Fence => 8..=8,
        }
    }

    /// The valid lengths of a completion's body.
    fn completion_bytes(self, status: u8) -> std::ops::RangeInclusive<usize> {
        match (status, self) {
            (OK, Self::Read) => 0..=PIECE_BYTES,
            (OK, Self::CompareSwap | Self::FetchAdd) | (OUT_OF_BOUNDS | TOO_LARGE, _) => 8..=8,
            (OK, Self::Call) => 0..=MAX_MESSAGE_BYTES,
            _ => 0..=0,
        }
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[inline]
fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// Decodes a header into the length of the body, the opcode, the status and the id.
#[inline]
fn header(input: &[u8]) -> Option<(usize, u8, u8, u64)> {
    let header = input.get(..HEADER_BYTES)?;
    // Map a header with nonzero reserved bytes to the invalid opcode 0.
    let opcode = if header[6] | header[7] == 0 { header[4] } else { 0 };
    Some((half(header, 0) as usize, opcode, header[5], word(header, 8)))
}

/// Decodes the request at the start of `input`.
#[inline]
pub fn decode_request(input: &[u8]) -> DecodedFrame<FrameRequest<'_>> {
    let Some((length, opcode, status, id)) = header(input) else { return DecodedFrame::Incomplete };
    let Some(kind) = FrameKind::from_byte(opcode) else { return DecodedFrame::Malformed };
    if status != OK || !kind.request_bytes().contains(&length) {
        return DecodedFrame::Malformed;
    }
    let bytes = HEADER_BYTES + length;
    let Some(body) = input.get(HEADER_BYTES..bytes) else { return DecodedFrame::Incomplete };
    let at = |at| GlobalAddr::from_bits(word(body, at));
    let body = match kind {
        FrameKind::Read => {
            let (whole, first, length) = (half(body, 8), half(body, 12), half(body, 16));
            let piece = FramePiece { at: at(0), whole, first, length };
            if !piece.is_sound() || half(body, 20) != 0 {
                return DecodedFrame::Malformed;
            }
            FrameRequest::Read(piece)
        }
        FrameKind::Write => {
            let (arguments, words) = body.split_at(WRITE_ARGUMENTS);
            let (whole, first) = (half(arguments, 8), half(arguments, 12));
            let piece = FramePiece { at: at(0), whole, first, length: words.len() as u32 };
            if !piece.is_sound() {
                return DecodedFrame::Malformed;
            }
            FrameRequest::Write(piece, words)
        }
        FrameKind::CompareSwap => {
            FrameRequest::CompareSwap { at: at(0), expected: word(body, 8), new: word(body, 16) }
        }
        FrameKind::FetchAdd => FrameRequest::FetchAdd { at: at(0), delta: word(body, 8) },
        FrameKind::Call => FrameRequest::Call(body),
        FrameKind::Fence => match u16::try_from(word(body, 0)) {
            Ok(compute_server) => FrameRequest::Fence { compute_server },
            Err(_) => return DecodedFrame::Malformed,
        },
    };
    DecodedFrame::Frame { id, body, bytes }
}

/// Decodes the completion at the start of `input`.
#[inline]
pub fn decode_completion(input: &[u8]) -> DecodedFrame<Completion<'_>> {
    let Some((length, opcode, status, id)) = header(input) else { return DecodedFrame::Incomplete };
    let kind = match opcode & COMPLETION {
        0 => None,
        _ => FrameKind::from_byte(opcode & !COMPLETION),
    };
    let Some(kind) = kind else { return DecodedFrame::Malformed };
    if status > UNANSWERED || !kind.completion_bytes(status).contains(&length) {
        return DecodedFrame::Malformed;
    }
    let bytes = HEADER_BYTES + length;
    let Some(body) = input.get(HEADER_BYTES..bytes) else { return DecodedFrame::Incomplete };
    let body = match (status, kind) {
        (OK, FrameKind::Read) if !length.is_multiple_of(8) => return DecodedFrame::Malformed,
        (OK, FrameKind::Read) => Completion::Read(body),
        (OK, FrameKind::Write) => Completion::Written,
        (OK, FrameKind::CompareSwap) => Completion::Swapped(word(body, 0)),
        (OK, FrameKind::FetchAdd) => Completion::Added(word(body, 0)),
        (OK, FrameKind::Call) => Completion::Reply(body),
        (OK, FrameKind::Fence) => Completion::Fenced,
        (UNALIGNED, kind) => Completion::NotDone(kind, VerbRefusal::Unaligned),
        (OUT_OF_BOUNDS, kind) => {
            let region_bytes = word(body, 0);
            Completion::NotDone(kind, VerbRefusal::OutOfBounds { region_bytes })
        }
        (NO_SUCH_SERVER, kind) => Completion::NotDone(kind, VerbRefusal::NoSuchServer),
        (TOO_LARGE, kind) => {
            Completion::NotDone(kind, VerbRefusal::TooLarge { bytes: word(body, 0) })
        }
        (_, kind) => Completion::NotDone(kind, VerbRefusal::Unanswered),
    };
    DecodedFrame::Frame { id, body, bytes }
}

fn put_header(out: &mut [u8], opcode: u8, status: u8, id: u64) {
    let length = (out.len() - HEADER_BYTES) as u32;
    out[..4].copy_from_slice(&length.to_le_bytes());
    out[4..8].copy_from_slice(&[opcode, status, 0, 0]);
    out[8..16].copy_from_slice(&id.to_le_bytes());
}

fn put_words(out: &mut [u8], words: &[u64]) {
    for (out, word) in out.chunks_exact_mut(8).zip(words) {
        out.copy_from_slice(&word.to_le_bytes());
    }
}

impl FrameRequest<'_> {
    /// Length of the frame, in bytes.
    #[inline]
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES
            + match self {
                Self::Read(_) | Self::CompareSwap { .. } => 24,
                Self::Write(_, words) => WRITE_ARGUMENTS + words.len(),
                Self::FetchAdd { .. } => 16,
                Self::Call(request) => request.len(),
                Self::Fence { .. } => 8,
            }
    }

    /// Writes the frame into `out`.
    ///
    /// # Panics
    /// If `out` does not have the length [`FrameRequest::frame_bytes`].
    #[inline]
    pub fn encode(&self, id: u64, out: &mut [u8]) {
        assert_eq!(out.len(), self.frame_bytes(), "`out` has the length of the frame");
        let body = |out: &mut [u8], kind: FrameKind, words: &[u64]| {
            put_header(out, kind as u8, OK, id);
            put_words(&mut out[HEADER_BYTES..], words);
        };
        match *self {
            Self::Read(piece) => {
                let spans = u64::from(piece.first) << 32 | u64::from(piece.whole);
                body(out, FrameKind::Read, &[piece.at.to_bits(), spans, piece.length.into()]);
            }
            Self::Write(piece, words) => {
                write_frame(id, piece, out).copy_from_slice(words);
            }
            Self::CompareSwap { at, expected, new } => {
                body(out, FrameKind::CompareSwap, &[at.to_bits(), expected, new]);
            }
            Self::FetchAdd { at, delta } => body(out, FrameKind::FetchAdd, &[at.to_bits(), delta]),
            Self::Call(request) => {
                put_header(out, CALL, OK, id);
                out[HEADER_BYTES..].copy_from_slice(request);
            }
            Self::Fence { compute_server } => body(out, FrameKind::Fence, &[compute_server.into()]),
        }
    }
}

/// Length of the frame of a WRITE of `length` bytes.
pub const fn write_frame_bytes(length: usize) -> usize {
    HEADER_BYTES + WRITE_ARGUMENTS + length
}

/// Writes the frame of a WRITE into `out`, without its words; returns the space for these.
#[inline]
pub fn write_frame(id: u64, piece: FramePiece, out: &mut [u8]) -> &mut [u8] {
    put_header(out, WRITE, OK, id);
    let spans = u64::from(piece.first) << 32 | u64::from(piece.whole);
    let (arguments, words) = out[HEADER_BYTES..].split_at_mut(WRITE_ARGUMENTS);
    put_words(arguments, &[piece.at.to_bits(), spans]);
    words
}

/// Writes the frame of a READ's completion into `out`, without its words; returns the space for
/// these.
#[inline]
pub fn read_completion_frame(id: u64, out: &mut [u8]) -> &mut [u8] {
    put_header(out, READ | COMPLETION, OK, id);
    &mut out[HEADER_BYTES..]
}

impl Completion<'_> {
    /// Length of the frame, in bytes.
    #[inline]
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES
            + match self {
                Self::Read(bytes) | Self::Reply(bytes) => bytes.len(),
                Self::Swapped(_)
                | Self::Added(_)
                | Self::NotDone(
                    _,
                    VerbRefusal::OutOfBounds { .. } | VerbRefusal::TooLarge { .. },
                ) => 8,
                Self::Written | Self::Fenced | Self::NotDone(..) => 0,
            }
    }

    /// Writes the frame into `out`.
    ///
    /// # Panics
    /// If `out` does not have the length [`Completion::frame_bytes`].
    #[inline]
    pub fn encode(&self, id: u64, out: &mut [u8]) {
        assert_eq!(out.len(), self.frame_bytes(), "`out` has the length of the frame");
        let (kind, status) = match *self {
            Self::Read(_) => (FrameKind::Read, OK),
            Self::Written => (FrameKind::Write, OK),
            Self::Swapped(_) => (FrameKind::CompareSwap, OK),
            Self::Added(_) => (FrameKind::FetchAdd, OK),
            Self::Reply(_) => (FrameKind::Call, OK),
            Self::Fenced => (FrameKind::Fence, OK),
            Self::NotDone(kind, VerbRefusal::Unaligned) => (kind, UNALIGNED),
            Self::NotDone(kind, VerbRefusal::OutOfBounds { .. }) => (kind, OUT_OF_BOUNDS),
            Self::NotDone(kind, VerbRefusal::NoSuchServer) => (kind, NO_SUCH_SERVER),
            Self::NotDone(kind, VerbRefusal::TooLarge { .. }) => (kind, TOO_LARGE),
            Self::NotDone(kind, VerbRefusal::Unanswered) => (kind, UNANSWERED),
        };
        put_header(out, kind as u8 | COMPLETION, status, id);
        let body = &mut out[HEADER_BYTES..];
        match *self {
            Self::Read(bytes) | Self::Reply(bytes) => body.copy_from_slice(bytes),
            Self::Swapped(found) | Self::Added(found) => put_words(body, &[found]),
            Self::NotDone(_, VerbRefusal::OutOfBounds { region_bytes: word })
            | Self::NotDone(_, VerbRefusal::TooLarge { bytes: word }) => put_words(body, &[word]),
            Self::Written | Self::Fenced | Self::NotDone(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerId;

    fn at(offset: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId::new(3), offset)
    }

    fn requests() -> Vec<FrameRequest<'static>> {
        let piece = |first, length| FramePiece { at: at(64), whole: 200_000, first, length };
        vec![
            FrameRequest::Read(piece(65_536, 65_536)),
            FrameRequest::Write(piece(8, 16), &[7; 16]),
            FrameRequest::CompareSwap { at: at(8), expected: 1, new: u64::MAX },
            FrameRequest::FetchAdd { at: at(8), delta: 3 },
            FrameRequest::Call(b"call"),
            FrameRequest::Call(b""),
            FrameRequest::Fence { compute_server: u16::MAX },
        ]
    }

    fn completions() -> Vec<Completion<'static>> {
        vec![
            Completion::Read(&[9; 24]),
            Completion::Written,
            Completion::Swapped(5),
            Completion::Added(6),
            Completion::Reply(b"reply"),
            Completion::Fenced,
            Completion::NotDone(FrameKind::Read, VerbRefusal::Unaligned),
            Completion::NotDone(FrameKind::Write, VerbRefusal::OutOfBounds { region_bytes: 4096 }),
            Completion::NotDone(FrameKind::FetchAdd, VerbRefusal::NoSuchServer),
            Completion::NotDone(FrameKind::Call, VerbRefusal::TooLarge { bytes: 1 << 40 }),
            Completion::NotDone(FrameKind::Call, VerbRefusal::Unanswered),
        ]
    }

    #[test]
    fn frames_come_back_and_their_beginnings_wait() {
        for request in requests() {
            let mut bytes = vec![0; request.frame_bytes()];
            request.encode(77, &mut bytes);
            for cut in 0..bytes.len() {
                assert_eq!(decode_request(&bytes[..cut]), DecodedFrame::Incomplete, "{request:?}");
            }
            let whole = DecodedFrame::Frame { id: 77, body: request, bytes: bytes.len() };
            bytes.push(1);
            assert_eq!(decode_request(&bytes), whole);
            assert_eq!(decode_completion(&bytes), DecodedFrame::Malformed);
        }
        for completion in completions() {
            let mut bytes = vec![0; completion.frame_bytes()];
            completion.encode(78, &mut bytes);
            for cut in 0..bytes.len() {
                assert_eq!(decode_completion(&bytes[..cut]), DecodedFrame::Incomplete);
            }
            let whole = DecodedFrame::Frame { id: 78, body: completion, bytes: bytes.len() };
            assert_eq!(decode_completion(&bytes), whole);
            assert_eq!(decode_request(&bytes), DecodedFrame::Malformed);
        }
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_awaited() {
        for opcode in 0..=255 {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..4].copy_from_slice(&(MAX_MESSAGE_BYTES as u32 + 1).to_le_bytes());
            bytes[4] = opcode;
            assert_eq!(decode_request(&bytes), DecodedFrame::Malformed, "opcode {opcode}");
            assert_eq!(decode_completion(&bytes), DecodedFrame::Malformed, "opcode {opcode}");
        }
    }

    #[test]
    fn pieces_stay_in_the_whole() {
        let sound = FramePiece { at: at(0), whole: 128, first: 64, length: 64 };
        let pieces = [
            FramePiece { length: 72, ..sound },
            FramePiece { first: 60, ..sound },
            FramePiece { first: 72, length: 60, ..sound },
            FramePiece { first: u32::MAX - 7, length: 8, ..sound },
            FramePiece { whole: u32::MAX, length: PIECE_BYTES as u32 + 8, ..sound },
        ];
        for piece in pieces {
            let request = FrameRequest::Read(piece);
            let mut bytes = vec![0; request.frame_bytes()];
            request.encode(1, &mut bytes);
            assert_eq!(decode_request(&bytes), DecodedFrame::Malformed, "{piece:?}");
        }
    }
}
