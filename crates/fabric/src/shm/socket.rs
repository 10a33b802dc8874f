//! Unix sockets that preserve packet boundaries. They carry the handshake, hand over memory, wake
//! the other side, and show when it has gone.
//!
//! After the handshake (`crate::handshake`), a packet has four little-endian words,
//! [`SocketPacket`]. An endpoint's socket has only one other kind of packet: a single byte that
//! means "check the rings". A byte dropped because the socket's buffer is full is harmless, because
//! other bytes are ahead of it. Every send has the non-blocking flag, so no peer can make a send
//! block.
//!
//! *Thread safety*: a packet is sent and received as one, by any thread.

use crate::endpoint::timespec;
use crate::handshake::{HandshakeMessage, MESSAGE_BYTES};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, fchmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, recvmsg, send, sendmsg, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

const PACKET_BYTES: usize = 32;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A packet after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketPacket {
    /// Client: this connection belongs to a process. It serves for the mapping and for fences, and
    /// shows when the process ends.
    OpenProcess,
    /// Client: this connection belongs to an endpoint of the process with that number.
    OpenEndpoint { process: u64 },
    /// Server: opened. Carries the number of the process or endpoint, with a memfd of `bytes`
    /// bytes.
    Opened { number: u64, bytes: u64 },
    /// Client: fence all current endpoints of a compute server.
    Fence { request: u64, compute_server: u16 },
    /// Server: stop the verbs of the endpoints of that compute server with numbers below `below`.
    Stop { fence: u64, compute_server: u16, below: u64 },
    /// Client: these endpoints are stopped, and no verb of them is in progress.
    Stopped { fence: u64 },
    /// Server: the requested fence is complete.
    Fenced { request: u64 },
}

impl SocketPacket {
    fn encode(self) -> [u8; PACKET_BYTES] {
        let words = match self {
            Self::OpenProcess => [1, 0, 0, 0],
            Self::OpenEndpoint { process } => [2, process, 0, 0],
            Self::Opened { number, bytes } => [3, number, bytes, 0],
            Self::Fence { request, compute_server } => [4, request, compute_server.into(), 0],
            Self::Stop { fence, compute_server, below } => [5, fence, compute_server.into(), below],
            Self::Stopped { fence } => [6, fence, 0, 0],
            Self::Fenced { request } => [7, request, 0, 0],
        };
        let mut bytes = [0; PACKET_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&u64::to_le_bytes(word));
        }
        bytes
    }

    /// Returns `None` if the bytes are not a packet.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PACKET_BYTES] = bytes.try_into().ok()?;
        let word =
            |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("8 bytes"));
        let (first, second) = (word(1), u16::try_from(word(2)));
        Some(match word(0) {
            1 => Self::OpenProcess,
            2 => Self::OpenEndpoint { process: first },
            3 => Self::Opened { number: first, bytes: word(2) },
            4 => Self::Fence { request: first, compute_server: second.ok()? },
            5 => Self::Stop { fence: first, compute_server: second.ok()?, below: word(3) },
            6 => Self::Stopped { fence: first },
            7 => Self::Fenced { request: first },
            _ => return None,
        })
    }
}

/// A received packet. A longer one is truncated to this size and rejected.
#[derive(Debug)]
pub(super) struct ReceivedPacket {
    bytes: [u8; MESSAGE_BYTES],
    length: usize,
}

impl ReceivedPacket {
    pub(super) fn packet(&self) -> Option<SocketPacket> {
        SocketPacket::decode(&self.bytes[..self.length])
    }

    pub(super) fn handshake(&self) -> Option<&HandshakeMessage> {
        (self.length == MESSAGE_BYTES).then_some(&self.bytes)
    }
}

fn open_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A socket at `path` that only this user can connect to. A socket left by a dead server is
/// replaced.
pub(super) fn listen_at(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = open_socket()?;
    // Set the mode before binding, so that the file never has a different one.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    if let Err(errno) = bind(&socket, &address) {
        let is_socket =
            lstat(path).is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::Socket);
        let left_behind = errno == Errno::ADDRINUSE
            && is_socket
            && connect(open_socket()?, &address) == Err(Errno::CONNREFUSED);
        if !left_behind {
            return Err(errno);
        }
        unlink(path)?;
        bind(&socket, &address)?;
    }
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub(super) fn connect_to(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = open_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Never blocks and never raises a signal, whatever the peer has done to the socket.
const AT_ONCE: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

pub(super) fn send_handshake(socket: &OwnedFd, message: &HandshakeMessage) -> Result<(), Errno> {
    send(socket, message, AT_ONCE).map(|_| ())
}

pub(super) fn send_packet(socket: &OwnedFd, packet: SocketPacket) -> Result<(), Errno> {
    send(socket, &packet.encode(), AT_ONCE).map(|_| ())
}

/// Sends a packet together with a file.
pub(super) fn send_file(
    socket: &OwnedFd,
    packet: SocketPacket,
    file: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)), "there is space for one file");
    sendmsg(socket, &[IoSlice::new(&packet.encode())], &mut control, AT_ONCE).map(|_| ())
}

/// Wakes the other side of an endpoint's socket. If this fails, the other side is awake or gone.
pub(super) fn wake(socket: &OwnedFd) {
    let _ = send(socket, &[1], AT_ONCE);
}

/// The next packet; `Ok(None)` if there is none yet, an error if there never will be.
pub(super) fn receive(socket: &OwnedFd) -> Result<Option<ReceivedPacket>, Errno> {
    let mut bytes = [0; MESSAGE_BYTES];
    // `TRUNC` reports the full length of a truncated packet; the kernel drops any attached files.
    let received = recv(socket, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC);
    match received {
        Ok((_, 0)) => Err(Errno::CONNRESET),
        Ok((_, length)) if length > MESSAGE_BYTES => Err(Errno::MSGSIZE),
        Ok((_, length)) => Ok(Some(ReceivedPacket { bytes, length })),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The next packet and the attached file, if any.
pub(super) fn receive_file(
    socket: &OwnedFd,
) -> Result<Option<(SocketPacket, Option<OwnedFd>)>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; MESSAGE_BYTES];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let length = match received {
        Ok(message) if message.bytes == 0 => return Err(Errno::CONNRESET),
        Ok(message) => message.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let packet = SocketPacket::decode(&bytes[..length]).ok_or(Errno::PROTO)?;
    Ok(Some((packet, file)))
}

/// Waits up to `ns` nanoseconds for input; returns whether there is any.
pub(super) fn wait_readable(socket: &OwnedFd, ns: u64) -> Result<bool, Errno> {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut polled, Some(&timespec(ns))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back() {
        let packets = [
            SocketPacket::OpenProcess,
            SocketPacket::OpenEndpoint { process: 7 },
            SocketPacket::Opened { number: u64::MAX, bytes: 9 },
            SocketPacket::Fence { request: 1, compute_server: u16::MAX },
            SocketPacket::Stop { fence: 2, compute_server: 3, below: 4 },
            SocketPacket::Stopped { fence: 5 },
            SocketPacket::Fenced { request: 6 },
        ];
        for packet in packets {
            assert_eq!(SocketPacket::decode(&packet.encode()), Some(packet));
        }
        let mut wrong = SocketPacket::Fence { request: 1, compute_server: 1 }.encode();
        wrong[18] = 1; // a compute server of more than 16 bits
        assert_eq!(SocketPacket::decode(&wrong), None);
        assert_eq!(SocketPacket::decode(&[0; PACKET_BYTES]), None);
        assert_eq!(SocketPacket::decode(&[1]), None);
    }
}
