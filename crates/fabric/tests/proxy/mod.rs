//! A proxy between clients and a server that delays messages and cuts connections.
#![allow(dead_code, reason = "each test program uses a part of it")]

use farleaf_fabric::handshake::Token;
use farleaf_fabric::sync::Arc;
use farleaf_fabric::tcp::{TcpCluster, TcpConfig, TcpServer};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A proxy between clients and a server.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    inner: Mutex<ProxyInner>,
    changed: Condvar,
}

#[derive(Default)]
struct ProxyInner {
    /// Both ends of each connection, in the order in which they were accepted.
    connections: Vec<(TcpStream, TcpStream)>,
    /// Connections with a lower number forward nothing to the server.
    held_before: usize,
    /// Connections with a lower number forward nothing to the client.
    answers_held_before: usize,
    /// Number of bytes being held.
    holding: usize,
}

impl Proxy {
    fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ProxyState::default());
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(server) else { continue };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let mut inner = accepting.inner.lock().unwrap();
                let number = inner.connections.len();
                inner.connections.push(ends);
                drop(inner);
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let state = Arc::clone(&accepting);
                std::thread::spawn(move || forward(from, to, &state, number, true));
                let state = Arc::clone(&accepting);
                std::thread::spawn(move || forward(server, client, &state, number, false));
            }
        });
        Self { address, state }
    }

    /// Holds back what clients send over the existing connections.
    pub(crate) fn hold(&self) {
        let mut inner = self.state.inner.lock().unwrap();
        inner.held_before = inner.connections.len();
    }

    /// Holds back what the server sends over the existing connections.
    pub(crate) fn hold_answers(&self) {
        let mut inner = self.state.inner.lock().unwrap();
        inner.answers_held_before = inner.connections.len();
    }

    /// Waits until the proxy holds bytes.
    pub(crate) fn wait_until_holding(&self) {
        let inner = self.state.inner.lock().unwrap();
        let nothing = |inner: &mut ProxyInner| inner.holding == 0;
        let waited = self.state.changed.wait_timeout_while(inner, Duration::from_secs(30), nothing);
        assert!(waited.unwrap().0.holding > 0, "nothing was sent");
    }

    /// Forwards what was held back.
    pub(crate) fn release(&self) {
        let mut inner = self.state.inner.lock().unwrap();
        (inner.held_before, inner.answers_held_before) = (0, 0);
        drop(inner);
        self.state.changed.notify_all();
    }

    /// Cuts every connection, on both sides.
    pub(crate) fn cut(&self) {
        for (client, server) in self.state.inner.lock().unwrap().connections.drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    state: &ProxyState,
    number: usize,
    to_server: bool,
) {
    let mut bytes = vec![0; 65_536];
    loop {
        let count = from.read(&mut bytes).unwrap_or(0);
        let mut inner = state.inner.lock().unwrap();
        if to_server {
            inner.holding += count;
            state.changed.notify_all();
        }
        let is_held = |inner: &ProxyInner| match to_server {
            true => number < inner.held_before,
            false => number < inner.answers_held_before,
        };
        // Hold back the end of a connection too, so that the server notices it last.
        while is_held(&inner) {
            inner = state.changed.wait(inner).unwrap();
        }
        if to_server {
            inner.holding -= count;
        }
        drop(inner);
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
    }
}

/// Connects a client through a proxy.
pub(crate) fn over_proxy(
    server: &TcpServer,
    token: &Token,
    config: TcpConfig,
) -> (Proxy, TcpCluster) {
    let proxy = Proxy::start(server.local_address());
    let cluster = TcpCluster::connect(vec![proxy.address], token, config);
    (proxy, cluster)
}
