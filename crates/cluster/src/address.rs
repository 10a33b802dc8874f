//! Addresses as people write them: `HOST:PORT`, where the host is a name or an IP address.
//!
//! A name is resolved each time it is needed, so a server may come back at another IP address. The
//! resolver of the system has timeouts of its own, of many seconds: *Invariant* address.H1.
//! resolving takes no longer than the caller allows.
//!
//! *Thread safety*: plain values.

use farleaf_fabric::listener::start_thread;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Timeout for resolving the name of a server.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for trying one of several addresses of a name.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// `HOST:PORT`, not resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    text: String,
    port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = match text.parse::<SocketAddr>() {
            Ok(address) => Some(address.port()),
            Err(_) => text.rsplit_once(':').and_then(|(host, port)| {
                let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                let is_name = !host.is_empty() && host.len() <= 253 && host.bytes().all(in_name);
                // `parse` takes a sign, too.
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                if is_name && digits { port.parse().ok() } else { None }
            }),
        };
        let port = port.ok_or("expected a host and a port such as 10.0.0.6:7400 or db6:7400")?;
        Ok(Self { text: text.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self { text: address.to_string(), port: address.port() }
    }
}

impl HostPort {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same host with another port.
    pub fn with_port(&self, port: u16) -> Self {
        let host = self.text.rsplit_once(':').map_or(&*self.text, |(host, _)| host);
        Self { text: format!("{host}:{port}"), port }
    }

    /// All addresses of the host, at least one, in the order of the system's resolver.
    ///
    /// # Errors
    /// The error of the resolver, which names the host; [`io::ErrorKind::TimedOut`] after `within`.
    pub fn resolve(&self, within: Duration) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.text.parse() {
            return Ok(vec![address]);
        }
        let named = |kind, why: &dyn fmt::Display| {
            io::Error::new(kind, format!("cannot resolve {}: {why}", self.text))
        };
        let (sender, receiver) = channel();
        let text = self.text.clone();
        let ask = move || {
            // The caller may have given up.
            let _ = sender.send(text.to_socket_addrs().map(Iterator::collect::<Vec<_>>));
        };
        start_thread("resolver".into(), ask)?;
        match receiver.recv_timeout(within) {
            Ok(Ok(addresses)) if addresses.is_empty() => {
                Err(named(io::ErrorKind::NotFound, &"it has no address"))
            }
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(named(error.kind(), &error)),
            Err(RecvTimeoutError::Timeout) => {
                Err(named(io::ErrorKind::TimedOut, &"the resolver did not answer in time"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(named(io::ErrorKind::Other, &"the resolver failed"))
            }
        }
    }

    /// One address of the host: the first that accepts a connection, or the first of all if none
    /// does. A name often has an IPv4 and an IPv6 address, and servers listen at one of them.
    ///
    /// # Errors
    /// As for [`HostPort::resolve`].
    pub fn reach(&self) -> io::Result<SocketAddr> {
        let addresses = self.resolve(RESOLVE_TIMEOUT)?;
        let accepts = |at: &&SocketAddr| TcpStream::connect_timeout(at, PROBE_TIMEOUT).is_ok();
        let found = if addresses.len() > 1 { addresses.iter().find(accepts) } else { None };
        Ok(*found.unwrap_or(&addresses[0]))
    }

    /// The first address of the host that this machine can listen at.
    ///
    /// # Errors
    /// As for [`HostPort::resolve`]; otherwise the error of listening at the last address.
    pub fn local(&self) -> io::Result<SocketAddr> {
        let mut failure = None;
        for address in self.resolve(RESOLVE_TIMEOUT)? {
            // The port may be in use by a former incarnation of the program.
            match TcpListener::bind(SocketAddr::new(address.ip(), 0)) {
                Ok(_) => return Ok(address),
                Err(error) => failure = Some(error),
            }
        }
        let why = failure.map_or_else(String::new, |error| error.to_string());
        let text = format!("{} is no address of this machine: {why}", self.text);
        Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses() {
        for text in ["10.0.0.6:7400", "[::1]:7400", "localhost:1", "db-6.example.org:65535", "a:0"]
        {
            let found: HostPort = text.parse().unwrap();
            assert_eq!(found.to_string(), text);
            assert_eq!(found.with_port(7).to_string().rsplit_once(':').unwrap().1, "7", "{text}");
        }
        let wrong = [
            "",
            ":1",
            "a",
            "a:",
            "a:65536",
            "a:-1",
            "a:+1",
            "::1:7400",
            "a/b:1",
            "a b:1",
            "a:1:2",
            "http://a:1",
            "ü:1",
        ];
        for text in wrong {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
        let brackets: HostPort = "[::1]:7400".parse().unwrap();
        assert_eq!((brackets.port(), brackets.with_port(0).to_string()), (7400, "[::1]:0".into()));
    }

    #[test]
    fn names_are_resolved_to_an_address_that_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = listener.local_addr().unwrap();
        let name: HostPort = format!("localhost:{}", bound.port()).parse().unwrap();
        assert_eq!(name.reach().unwrap(), bound, "even if it resolves to ::1, too");
        let here: HostPort = "localhost:7400".parse().unwrap();
        assert!(here.local().unwrap().ip().is_loopback());
        let nowhere: HostPort = "no-such-host.invalid:1".parse().unwrap();
        let why = nowhere.resolve(RESOLVE_TIMEOUT).unwrap_err().to_string();
        assert!(why.contains("no-such-host.invalid:1"), "{why}");
        // Reserved for documentation: no machine has it.
        let other: HostPort = "192.0.2.1:7400".parse().unwrap();
        let why = other.local().unwrap_err().to_string();
        assert!(why.contains("no address of this machine"), "{why}");
    }
}
