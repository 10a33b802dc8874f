//! The bytes of calls: messages of bounded size, each sent by a SEND into a place that the receiver
//! has lent.
//!
//! A request or a reply that is longer than one message travels in pieces. The server answers every
//! message of an endpoint with exactly one message. So the endpoint, which bounds its messages in
//! flight, bounds both directions, and neither side ever lacks a place for an incoming message.
//!
//! ```text
//!  0 id     u64   of the call, in every message about it
//!  8 kind   u8    and 3 zeros
//! 12 whole  u32   bytes of the whole request or reply
//! 16 first  u32   where the piece begins in it
//! 20 length u32   bytes of the piece, which follow
//!
//! endpoint                            server
//!     request, all pieces but the last ─▶ ◀─ go on
//!     request, the last piece          ─▶ ◀─ reply, its first piece   or: too large
//!     more (from `first` on)           ─▶ ◀─ reply, that piece        or: gone
//! ```
//!
//! *Thread safety*: plain values.

/// Size of a message, and of the place that holds it, in bytes.
pub(crate) const MESSAGE_BYTES: usize = 4096;
/// Bytes before the piece.
pub(crate) const HEADER_BYTES: usize = 24;
/// Maximum size of a piece, in bytes.
pub(crate) const PIECE_BYTES: usize = MESSAGE_BYTES - HEADER_BYTES;

const _: () = assert!(HEADER_BYTES.is_multiple_of(8) && MESSAGE_BYTES.is_multiple_of(8));

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MessageKind {
    Request = 1,
    More = 2,
    GoOn = 3,
    Reply = 4,
    TooLarge = 5,
    Gone = 6,
}

/// The fields before the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceHeader {
    pub(crate) id: u64,
    pub(crate) kind: MessageKind,
    pub(crate) whole: u32,
    pub(crate) first: u32,
    pub(crate) length: u32,
}

impl PieceHeader {
    /// The header of a message without a piece.
    pub(crate) fn bare(id: u64, kind: MessageKind) -> Self {
        Self { id, kind, whole: 0, first: 0, length: 0 }
    }

    /// The header of the piece at `first` of `whole` bytes.
    pub(crate) fn piece(id: u64, kind: MessageKind, whole: usize, first: usize) -> Self {
        let length = (whole - first).min(PIECE_BYTES);
        Self { id, kind, whole: whole as u32, first: first as u32, length: length as u32 }
    }

    /// End of the piece within the whole.
    pub(crate) fn end(&self) -> usize {
        self.first as usize + self.length as usize
    }

    pub(crate) fn encode(&self) -> [u64; HEADER_BYTES / 8] {
        [
            self.id,
            u64::from(self.kind as u8) | u64::from(self.whole) << 32,
            u64::from(self.first) | u64::from(self.length) << 32,
        ]
    }

    /// Decodes the header of a message of `bytes` bytes; `None` if it is invalid.
    pub(crate) fn decode(words: [u64; HEADER_BYTES / 8], bytes: usize) -> Option<Self> {
        let kind = match words[1] as u32 {
            1 => MessageKind::Request,
            2 => MessageKind::More,
            3 => MessageKind::GoOn,
            4 => MessageKind::Reply,
            5 => MessageKind::TooLarge,
            6 => MessageKind::Gone,
            _ => return None,
        };
        let (whole, first) = ((words[1] >> 32) as u32, words[2] as u32);
        let header = Self { id: words[0], kind, whole, first, length: (words[2] >> 32) as u32 };
        let length = header.length as usize;
        let fits = length <= PIECE_BYTES && bytes == HEADER_BYTES + length;
        let inside = header.length == 0 || header.end() <= whole as usize;
        (fits && inside).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        let sizes = [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 128 * 1024];
        for whole in sizes {
            let mut first = 0;
            loop {
                let header =
                    PieceHeader::piece(0xdead_beef_0000_0001, MessageKind::Request, whole, first);
                let bytes = HEADER_BYTES + header.length as usize;
                assert_eq!(PieceHeader::decode(header.encode(), bytes), Some(header));
                assert_eq!(PieceHeader::decode(header.encode(), bytes + 1), None);
                first = header.end();
                if first == whole {
                    break;
                }
            }
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let good = PieceHeader::piece(1, MessageKind::Reply, 100, 0);
        let words = good.encode();
        assert_eq!(PieceHeader::decode([words[0], words[1] & !0xff, words[2]], 124), None);
        assert_eq!(PieceHeader::decode([words[0], words[1] | 0xff00, words[2]], 124), None);
        let outside = PieceHeader { first: 60, ..good };
        assert_eq!(PieceHeader::decode(outside.encode(), 124), None);
        let huge = PieceHeader { whole: u32::MAX, length: u32::MAX - 5, ..good };
        assert_eq!(PieceHeader::decode(huge.encode(), 124), None);
    }
}
