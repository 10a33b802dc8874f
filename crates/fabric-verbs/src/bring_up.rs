//! The messages, after the handshake, on the TCP connection that brings up an RDMA connection: 64
//! bytes each, all numbers little-endian. The TCP connection stays open as long as the RDMA
//! connection is in use: its end tells each side that the other is gone, and it carries fences.
//!
//! ```text
//!  0 kind  u8         4 lid    u16       16 gid   16 bytes
//!  1 link  u8         8 pair   u32       32 rkey  u32        of an answer
//!  2 mtu   u8        12 psn    u32       40 base  u64
//!  3 reads u8                            48 bytes u64
//!                     8 id     u64       of a fence, and of the answer to it
//!                    16 number u16       of a fence
//! ```
//!
//! *Thread safety*: plain values.

use farleaf_fabric::handshake::{HandshakeMessage, MESSAGE_BYTES};

/// The kind of network under a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NetworkKind {
    InfiniBand = 1,
    Ethernet = 2,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionEnd {
    pub(crate) link: NetworkKind,
    /// Code of the maximum packet size (MTU).
    pub(crate) mtu: u8,
    /// Number of READs and atomics that it serves at a time.
    pub(crate) reads: u8,
    pub(crate) lid: u16,
    pub(crate) pair: u32,
    /// Its first packet sequence number.
    pub(crate) psn: u32,
    pub(crate) gid: [u8; 16],
}

/// The memory that a server makes accessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessibleMemory {
    pub(crate) rkey: u32,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

/// A message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    /// An endpoint requests a connection.
    Offer(ConnectionEnd),
    /// The server's pair is connected and its memory is accessible.
    Answer(ConnectionEnd, AccessibleMemory),
    /// Fence `compute_server`.
    Fence { id: u64, compute_server: u16 },
    /// The fence is complete.
    Fenced { id: u64 },
}

const OFFER: u8 = 1;
const ANSWER: u8 = 2;
const FENCE: u8 = 3;
const FENCED: u8 = 4;

fn put_end(message: &mut HandshakeMessage, end: &ConnectionEnd) {
    message[1] = end.link as u8;
    message[2] = end.mtu;
    message[3] = end.reads;
    message[4..6].copy_from_slice(&end.lid.to_le_bytes());
    message[8..12].copy_from_slice(&end.pair.to_le_bytes());
    message[12..16].copy_from_slice(&end.psn.to_le_bytes());
    message[16..32].copy_from_slice(&end.gid);
}

fn take_end(message: &HandshakeMessage) -> Option<ConnectionEnd> {
    let link = match message[1] {
        1 => NetworkKind::InfiniBand,
        2 => NetworkKind::Ethernet,
        _ => return None,
    };
    let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().expect("4 bytes"));
    let (pair, psn) = (word(8), word(12));
    if pair >> 24 != 0 || psn >> 24 != 0 || !(1..=5).contains(&message[2]) {
        return None;
    }
    Some(ConnectionEnd {
        link,
        mtu: message[2],
        reads: message[3],
        lid: u16::from_le_bytes([message[4], message[5]]),
        pair,
        psn,
        gid: message[16..32].try_into().expect("16 bytes"),
    })
}

impl ControlMessage {
    pub(crate) fn encode(&self) -> HandshakeMessage {
        let mut message = [0; MESSAGE_BYTES];
        match self {
            Self::Offer(end) => {
                message[0] = OFFER;
                put_end(&mut message, end);
            }
            Self::Answer(end, lent) => {
                message[0] = ANSWER;
                put_end(&mut message, end);
                message[32..36].copy_from_slice(&lent.rkey.to_le_bytes());
                message[40..48].copy_from_slice(&lent.base.to_le_bytes());
                message[48..56].copy_from_slice(&lent.bytes.to_le_bytes());
            }
            Self::Fence { id, compute_server } => {
                message[0] = FENCE;
                message[8..16].copy_from_slice(&id.to_le_bytes());
                message[16..18].copy_from_slice(&compute_server.to_le_bytes());
            }
            Self::Fenced { id } => {
                message[0] = FENCED;
                message[8..16].copy_from_slice(&id.to_le_bytes());
            }
        }
        message
    }

    /// Decodes `message`; `None` if it is invalid.
    pub(crate) fn decode(message: &HandshakeMessage) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("8 bytes"));
        match message[0] {
            OFFER => take_end(message).map(Self::Offer),
            ANSWER => {
                let rkey = u32::from_le_bytes(message[32..36].try_into().expect("4 bytes"));
                let lent = AccessibleMemory { rkey, base: word(40), bytes: word(48) };
                // Addresses inside the memory must not wrap around.
                lent.base.checked_add(lent.bytes)?;
                take_end(message).map(|end| Self::Answer(end, lent))
            }
            FENCE => {
                let compute_server = u16::from_le_bytes([message[16], message[17]]);
                Some(Self::Fence { id: word(8), compute_server })
            }
            FENCED => Some(Self::Fenced { id: word(8) }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: ConnectionEnd = ConnectionEnd {
        link: NetworkKind::Ethernet,
        mtu: 5,
        reads: 16,
        lid: 0x1234,
        pair: 0x00ab_cdef,
        psn: 0x0012_3456,
        gid: [7; 16],
    };

    #[test]
    fn what_is_said_is_understood() {
        let lent = AccessibleMemory { rkey: 0x8765_4321, base: 0x7fff_0000_1000, bytes: 1 << 40 };
        for said in [
            ControlMessage::Offer(END),
            ControlMessage::Offer(ConnectionEnd { link: NetworkKind::InfiniBand, ..END }),
            ControlMessage::Answer(END, lent),
            ControlMessage::Fence { id: u64::MAX - 3, compute_server: 0xfedc },
            ControlMessage::Fenced { id: 77 },
        ] {
            assert_eq!(ControlMessage::decode(&said.encode()), Some(said));
        }
    }

    #[test]
    fn garbage_is_not_understood() {
        assert_eq!(ControlMessage::decode(&[0; MESSAGE_BYTES]), None);
        assert_eq!(ControlMessage::decode(&[0xff; MESSAGE_BYTES]), None);
        for (at, byte) in [(1, 0), (1, 3), (2, 0), (2, 6), (11, 1), (15, 1)] {
            let mut message = ControlMessage::Offer(END).encode();
            message[at] = byte;
            assert_eq!(ControlMessage::decode(&message), None, "byte {at}");
        }
        let lent = AccessibleMemory { rkey: 1, base: u64::MAX - 10, bytes: 4096 };
        assert_eq!(
            ControlMessage::decode(&ControlMessage::Answer(END, lent).encode()),
            None,
            "it wraps"
        );
    }
}
