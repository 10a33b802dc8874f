//! TCP sockets as providers want them: nothing waits to be sent, and who has vanished is found out.
//!
//! *Thread safety*: free functions.

use crate::handshake::{Gather, HandshakeMessage};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// What a connection must bear, idle or not, before its peer is taken for gone. Operations have deadlines of
/// their own; this is so that a connection which will never carry anything again does not stay.
const SILENCE: Duration = Duration::from_secs(20);

/// Sets a socket up: nothing waits for more to send, and a peer that vanished without a word is found out.
///
/// # Errors
/// What the operating system says.
pub fn prepare_socket(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE / 4)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32)?;
    Ok(())
}

/// Begins to connect, without waiting for it: the socket can be written to once it is connected, or has an error.
///
/// # Errors
/// What the operating system says at once.
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

/// What a socket had to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A whole message of the handshake, or of that length.
    Message(HandshakeMessage),
    /// No more for now.
    Nothing,
    /// Nothing ever again.
    End,
}

/// Reads until a message is whole.
pub fn next_message(mut socket: impl Read, gather: &mut Gather) -> Heard {
    loop {
        match socket.read(gather.missing()) {
            Ok(0) => return Heard::End,
            Ok(bytes) => {
                if let Some(message) = gather.arrived(bytes) {
                    return Heard::Message(message);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
            Err(_) => return Heard::End,
        }
    }
}
