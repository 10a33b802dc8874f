//! TCP sockets for providers: data is sent at once, and a vanished peer is detected.
//!
//! *Thread safety*: free functions.

use crate::handshake::{HandshakeMessage, MessageAssembler};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// How long a silent connection is kept, idle or not, before its peer is considered gone.
/// Operations have their own deadlines; this limit removes connections that will never carry
/// anything again.
const SILENCE: Duration = Duration::from_secs(20);

/// Sets up a socket: sends data at once, and detects a vanished peer.
///
/// # Errors
/// The operating system's error.
pub fn prepare_socket(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE / 4)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32)?;
    Ok(())
}

/// Begins to connect, without waiting: the socket becomes writable once it is connected or has an
/// error.
///
/// # Errors
/// The operating system's immediate error.
pub fn connect_socket(address: SocketAddr) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    prepare_socket(&socket)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(TcpStream::from(socket))
}

/// The result of reading a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketRead {
    /// A complete message of the handshake, or another of the same length.
    Message(HandshakeMessage),
    /// No complete message yet.
    Nothing,
    /// The connection has ended.
    End,
}

/// Reads until a message is complete.
pub fn next_message(mut socket: impl Read, gather: &mut MessageAssembler) -> SocketRead {
    loop {
        match socket.read(gather.missing()) {
            Ok(0) => return SocketRead::End,
            Ok(bytes) => {
                if let Some(message) = gather.arrived(bytes) {
                    return SocketRead::Message(message);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return SocketRead::Nothing,
            Err(_) => return SocketRead::End,
        }
    }
}
