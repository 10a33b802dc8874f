//! What moves the tasks of a client thread on: its sockets and its timers, and nothing that spins.
//!
//! *Invariants*: D1. tasks are woken only by [`Driver::progress`], never while the thread waits, so a wake of the
//! thread's own costs no system call. D2. before it waits, everything that was posted has been sent, as far as
//! sockets take it. D3. it waits no longer than to the nearest deadline.
//!
//! *Thread safety*: one thread; the unparker may go anywhere.

use super::cluster::Shared;
use super::endpoint::{Endpoint, TcpFabric};
use crate::executor::{Driver, Progress, Requests};
use crate::sync::Arc;
use crate::timers::Timers;
use crate::wake::WakeFd;
use rustix::event::{Timespec, epoll};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::task::{Wake, Waker};

const WAKE: u64 = u64::MAX;
const EVENTS: usize = 128;

struct Unparker(WakeFd);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

/// The sockets and timers of one client thread.
pub(super) struct Reactor {
    pub(super) epoll: OwnedFd,
    pub(super) timers: Timers,
    unparker: Arc<Unparker>,
    endpoints: RefCell<Vec<Weak<Endpoint>>>,
    events: RefCell<[epoll::Event; EVENTS]>,
    /// How many of `events` have not been looked at.
    waiting_events: Cell<usize>,
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor")
            .field("endpoints", &self.endpoints.borrow().len())
            .finish_non_exhaustive()
    }
}

impl Reactor {
    fn new(shared: &Shared) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let unparker = Arc::new(Unparker(WakeFd::new()?));
        let readable = epoll::EventFlags::IN;
        epoll::add(&epoll, &unparker.0, epoll::EventData::new_u64(WAKE), readable)?;
        let nothing =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        Ok(Self {
            epoll,
            timers: Timers::new(shared.clock.clone()),
            unparker,
            endpoints: RefCell::default(),
            events: RefCell::new([nothing; EVENTS]),
            waiting_events: Cell::new(0),
        })
    }

    /// Looks at the sockets, for `ns` at most.
    fn look(&self, ns: u64) {
        let timeout =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
        let mut events = self.events.borrow_mut();
        match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok(count) => self.waiting_events.set(count),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("epoll fails: {errno}"),
        }
    }

    /// Hands the events over to their endpoints; whether there were any.
    fn dispatch(&self) -> bool {
        let count = self.waiting_events.take();
        for event in &self.events.borrow()[..count] {
            let token = event.data.u64();
            if token == WAKE {
                self.unparker.0.clear();
            } else if let Some(endpoint) = self.endpoint((token >> 16) as usize) {
                endpoint.visit(token as u16);
            }
        }
        count > 0
    }

    fn endpoint(&self, index: usize) -> Option<Rc<Endpoint>> {
        self.endpoints.borrow().get(index)?.upgrade()
    }
}

/// Drives the endpoints of one thread; give it to an [`crate::executor::Executor`].
#[derive(Debug)]
pub struct TcpDriver {
    reactor: Rc<Reactor>,
    shared: Arc<Shared>,
}

impl TcpDriver {
    pub(super) fn new(shared: &Arc<Shared>) -> io::Result<Self> {
        Ok(Self { reactor: Rc::new(Reactor::new(shared)?), shared: Arc::clone(shared) })
    }

    /// Opens an endpoint of `compute_server`; `number` tells its random stream from those of others.
    /// It connects to a server when it first has something to send there.
    ///
    /// # Errors
    /// What the operating system says if it has no entropy or no memory.
    pub fn open(&self, compute_server: u16, number: usize) -> io::Result<TcpFabric> {
        let mut endpoints = self.reactor.endpoints.borrow_mut();
        let vacant = endpoints.iter().position(|endpoint| endpoint.strong_count() == 0);
        let index = vacant.unwrap_or(endpoints.len());
        let (shared, reactor) = (&self.shared, &self.reactor);
        let endpoint = Endpoint::new(shared, reactor, index, compute_server, number)?;
        let endpoint = Rc::new(endpoint);
        let weak = Rc::downgrade(&endpoint);
        match vacant {
            Some(index) => endpoints[index] = weak,
            None => endpoints.push(weak),
        }
        Ok(TcpFabric { endpoint })
    }
}

impl Driver for TcpDriver {
    fn requests(&self) -> Option<Requests> {
        None
    }

    fn progress(&self) -> Progress {
        let reactor = &*self.reactor;
        let mut advanced = reactor.dispatch();
        let mut nearest_ns = u64::MAX;
        for index in 0.. {
            let Some(endpoint) = reactor.endpoints.borrow().get(index).map(Weak::upgrade) else {
                break;
            };
            if let Some(endpoint) = endpoint {
                nearest_ns = nearest_ns.min(endpoint.drive());
            }
        }
        let timers = reactor.timers.progress();
        if timers == Progress::Advanced {
            // Those who only ever yield must not keep the sockets waiting.
            reactor.look(0);
            advanced = true;
        }
        match timers {
            Progress::Wait { ns } if !advanced => {
                let until_ns = nearest_ns.saturating_sub(reactor.timers.now_ns());
                Progress::Wait { ns: ns.min(until_ns) }
            }
            _ => Progress::Advanced,
        }
    }

    fn unparker(&self) -> Option<Waker> {
        Some(Waker::from(Arc::clone(&self.reactor.unparker)))
    }

    fn wait(&self, ns: u64) {
        for _ in 0..self.shared.config.looks_before_waiting {
            self.reactor.look(0);
            if self.reactor.waiting_events.get() > 0 {
                return;
            }
        }
        self.reactor.look(ns);
    }
}
