//! Encodes operations as frames, and turns completions into outcomes.
//!
//! *Thread safety*: an endpoint's thread.

use super::frame::{
    Completion, FrameKind, FramePiece, FrameRequest, PIECE_BYTES, VerbRefusal, write_frame,
    write_frame_bytes,
};
use super::queue::ByteQueue;
use super::window::PayloadWindow;
use crate::body::OpBody;
use crate::endpoint::OpSlot;
use crate::region::{load_bytes, store_bytes};
use crate::{Buffer, FabricError, GlobalAddr, ServerId, Uncertainty};

/// The effect of a completion on its operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CompletionEffect {
    /// More pieces are outstanding.
    InPart,
    Ended(Result<(), FabricError>),
    /// The completion does not match the operation.
    Mismatch,
}

/// Progress of an operation.
#[derive(Debug, Default)]
pub struct TcpProgress {
    /// Number of bytes of the buffer in encoded frames, and number of bytes that have been
    /// completed.
    sent: usize,
    arrived: usize,
    /// Whether all of its frames have been encoded.
    pub(super) is_sent: bool,
    /// Whether this is a READ that has waited for the window. No other operation waits for it.
    pub(super) is_aside: bool,
}

impl TcpProgress {
    /// Whether none of its frames has been encoded, so the server cannot have seen any.
    pub(super) fn is_unsent(&self) -> bool {
        self.sent == 0 && !self.is_sent
    }
}

/// How many frames of an operation have been encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncodedFrames {
    /// All of them.
    Whole,
    /// The queue has no space for the next one.
    NoSpace,
    /// The window has no room for the next one.
    NoRoom,
}

/// Encodes frames while the queue has space and the window has room for them.
pub(super) fn encode(
    slot: &mut OpSlot<TcpProgress>,
    id: u64,
    outgoing: &mut ByteQueue,
    window: &mut PayloadWindow,
    window_bytes: usize,
) -> EncodedFrames {
    let progress = &mut slot.progress;
    loop {
        let sent = progress.sent;
        let piece = |at: GlobalAddr, buffer: &Buffer| {
            let length = (buffer.bytes() - sent).min(PIECE_BYTES) as u32;
            FramePiece { at, whole: buffer.bytes() as u32, first: sent as u32, length }
        };
        let (request, piece, whole) = match &slot.body {
            OpBody::Write { at, from } => {
                let piece = piece(*at, from);
                let (length, bytes) = (piece.length as usize, from.bytes());
                if !window.writes.has_room(length, window_bytes) {
                    return EncodedFrames::NoRoom;
                }
                if outgoing.space() < write_frame_bytes(length) {
                    return EncodedFrames::NoSpace;
                }
                window.writes.add(length);
                let first = sent / 8;
                let frame = outgoing.push(write_frame_bytes(length));
                let words = &from.words()[first..first + length / 8];
                load_bytes(words, write_frame(id, piece, frame));
                progress.sent += length;
                if progress.sent == bytes {
                    progress.is_sent = true;
                    return EncodedFrames::Whole;
                }
                continue;
            }
            OpBody::Read { at, into } => {
                let piece = piece(*at, into);
                let length = piece.length as usize;
                if !window.reads.has_room(length, window_bytes) {
                    return EncodedFrames::NoRoom;
                }
                (FrameRequest::Read(piece), length, into.bytes())
            }
            OpBody::CompareSwap { at, expected, new } => {
                (FrameRequest::CompareSwap { at: *at, expected: *expected, new: *new }, 0, 0)
            }
            OpBody::FetchAdd { at, delta } => {
                (FrameRequest::FetchAdd { at: *at, delta: *delta }, 0, 0)
            }
            OpBody::Call(request) => (FrameRequest::Call(request), 0, 0),
            OpBody::Fence { compute_server } => {
                (FrameRequest::Fence { compute_server: *compute_server }, 0, 0)
            }
            OpBody::Found(_) | OpBody::Taken => return EncodedFrames::Whole,
        };
        if outgoing.space() < request.frame_bytes() {
            return EncodedFrames::NoSpace;
        }
        if matches!(request, FrameRequest::Read(_)) {
            window.reads.add(piece);
        }
        request.encode(id, outgoing.push(request.frame_bytes()));
        progress.sent += piece;
        if progress.sent == whole {
            progress.is_sent = true;
            return EncodedFrames::Whole;
        }
    }
}

/// Applies a completion to its operation.
pub(super) fn complete(
    slot: &mut OpSlot<TcpProgress>,
    completion: Completion<'_>,
) -> CompletionEffect {
    let (server, progress) = (slot.server, &mut slot.progress);
    match (&mut slot.body, completion) {
        (OpBody::Read { into, .. }, Completion::Read(bytes)) => {
            let due = (into.bytes() - progress.arrived).min(PIECE_BYTES);
            if bytes.len() != due || progress.arrived >= progress.sent.max(1) {
                return CompletionEffect::Mismatch;
            }
            let first = progress.arrived / 8;
            store_bytes(bytes, &into.words()[first..first + due / 8]);
            progress.arrived += due;
            if progress.arrived < into.bytes() {
                return CompletionEffect::InPart;
            }
        }
        (OpBody::Write { from, .. }, Completion::Written) => {
            progress.arrived += (from.bytes() - progress.arrived).min(PIECE_BYTES);
            if progress.arrived > progress.sent {
                return CompletionEffect::Mismatch;
            }
            if progress.arrived < from.bytes() {
                return CompletionEffect::InPart;
            }
        }
        (OpBody::CompareSwap { .. }, Completion::Swapped(found))
        | (OpBody::FetchAdd { .. }, Completion::Added(found)) => slot.body = OpBody::Found(found),
        (OpBody::Call(message), Completion::Reply(reply)) => {
            message.clear();
            message.extend_from_slice(reply);
        }
        (OpBody::Fence { .. }, Completion::Fenced) => {}
        (OpBody::Read { at, into: buffer }, Completion::NotDone(FrameKind::Read, why))
        | (OpBody::Write { at, from: buffer }, Completion::NotDone(FrameKind::Write, why)) => {
            return CompletionEffect::Ended(Err(not_done(why, *at, buffer.bytes(), server)));
        }
        (OpBody::CompareSwap { at, .. }, Completion::NotDone(FrameKind::CompareSwap, why))
        | (OpBody::FetchAdd { at, .. }, Completion::NotDone(FrameKind::FetchAdd, why)) => {
            return CompletionEffect::Ended(Err(not_done(why, *at, 8, server)));
        }
        (OpBody::Call(_), Completion::NotDone(FrameKind::Call, why)) => {
            return CompletionEffect::Ended(Err(not_done(why, GlobalAddr::NULL, 0, server)));
        }
        _ => return CompletionEffect::Mismatch,
    }
    CompletionEffect::Ended(Ok(()))
}

fn not_done(why: VerbRefusal, at: GlobalAddr, bytes: usize, server: ServerId) -> FabricError {
    match why {
        VerbRefusal::Unaligned => FabricError::Unaligned { at, bytes },
        VerbRefusal::OutOfBounds { region_bytes } => {
            let region_bytes = usize::try_from(region_bytes).unwrap_or(usize::MAX);
            FabricError::OutOfBounds { at, bytes, region_bytes }
        }
        VerbRefusal::NoSuchServer => FabricError::NoSuchServer(at.server()),
        VerbRefusal::TooLarge { bytes } => {
            FabricError::MessageTooLarge { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }
        }
        VerbRefusal::Unanswered => {
            FabricError::Indeterminate { server, why: Uncertainty::ConnectionLost }
        }
    }
}
