//! What moves the tasks of a client thread on: completions, the sockets of connections that are brought up, timers; and
//! nothing that spins for long.
//!
//! *Invariants*: D1. tasks are woken only by [`Driver::progress`], never while the thread waits, so a wake of the thread's own
//! costs no system call. D2. before it waits, everything that was posted has gone to the device, as far as queues take it, and
//! every queue from which something is to come has been armed and then looked at once more. D3. it waits no longer than
//! to the nearest deadline.
//!
//! *Thread safety*: one thread; the unparker may go anywhere.

use crate::cluster::Shared;
use crate::endpoint::{Endpoint, VerbsFabric};
use crate::objects::Channel;
use farleaf_fabric::executor::{Driver, Progress, Requests};
use farleaf_fabric::provider::{Timers, WakeFd};
use farleaf_fabric::sync::Arc;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::task::{Wake, Waker};

const WAKE: u64 = u64::MAX;
const COMPLETIONS: u64 = u64::MAX - 1;
const EVENTS: usize = 64;

struct Unparker(WakeFd);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ }
}

/// The sockets, completions and timers of one client thread.
pub(crate) struct Reactor {
    pub(crate) epoll: OwnedFd,
    pub(crate) channel: Arc<Channel>,
    pub(crate) timers: Timers,
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
        let channel = Channel::new(shared.adapter.context())?;
        let unparker = Arc::new(Unparker(WakeFd::new()?));
        let readable = epoll::EventFlags::IN;
        epoll::add(&epoll, &unparker.0, epoll::EventData::new_u64(WAKE), readable)?;
        epoll::add(&epoll, &*channel, epoll::EventData::new_u64(COMPLETIONS), readable)?;
        let nothing =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        Ok(Self {
            epoll,
            channel,
            timers: Timers::new(shared.clock.clone()),
            unparker,
            endpoints: RefCell::default(),
            events: RefCell::new([nothing; EVENTS]),
            waiting_events: Cell::new(0),
        })
    }

    /// Looks at what can be waited for, for `ns` at most.
    fn look(&self, ns: u64) {
        let mut events = self.events.borrow_mut();
        match epoll::wait(&self.epoll, &mut events[..], Some(&timespec(ns))) {
            Ok(count) => self.waiting_events.set(count),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("epoll fails: {errno}"),
        }
    }

    /// Waits for a completion to be told, for `ns` at most.
    pub(crate) fn wait_for_completions(&self, ns: u64) {
        let mut fds = [PollFd::new(&*self.channel, PollFlags::IN)];
        // An interruption only makes the wait shorter.
        let _ = poll(&mut fds, Some(&timespec(ns)));
        self.take_told();
    }

    /// Notes which queues have told something.
    fn take_told(&self) {
        while let Some(token) = self.channel.next_event() {
            if let Some(endpoint) = self.endpoint((token >> 16) as usize) {
                endpoint.disarm(token as u16);
            }
        }
    }

    /// Hands the events over to their endpoints; whether there were any.
    fn dispatch(&self) -> bool {
        let count = self.waiting_events.take();
        for event in &self.events.borrow()[..count] {
            match event.data.u64() {
                WAKE => self.unparker.0.clear(),
                COMPLETIONS => self.take_told(),
                token => {
                    if let Some(endpoint) = self.endpoint((token >> 16) as usize) {
                        endpoint.visit(token as u16);
                    }
                }
            }
        }
        count > 0
    }

    fn endpoint(&self, index: usize) -> Option<Rc<Endpoint>> {
        self.endpoints.borrow().get(index)?.upgrade()
    }

    /// Calls `visit` for each endpoint.
    fn each(&self, mut visit: impl FnMut(&Endpoint)) {
        for index in 0.. {
            let Some(endpoint) = self.endpoints.borrow().get(index).map(Weak::upgrade) else {
                return;
            };
            if let Some(endpoint) = endpoint {
                visit(&endpoint);
            }
        }
    }

    /// Lets all endpoints go on; whether anything has come, and the nearest deadline.
    fn drive(&self) -> (bool, u64) {
        let (mut advanced, mut nearest_ns) = (false, u64::MAX);
        self.each(|endpoint| {
            let (came, next_ns) = endpoint.drive();
            advanced |= came;
            nearest_ns = nearest_ns.min(next_ns);
        });
        (advanced, nearest_ns)
    }
}

/// Drives the endpoints of one thread; give it to an [`farleaf_fabric::executor::Executor`].
#[derive(Debug)]
pub struct VerbsDriver {
    reactor: Rc<Reactor>,
    shared: Arc<Shared>,
}

impl VerbsDriver {
    pub(crate) fn new(shared: &Arc<Shared>) -> io::Result<Self> {
        Ok(Self { reactor: Rc::new(Reactor::new(shared)?), shared: Arc::clone(shared) })
    }

    /// Opens an endpoint of `compute_server`; `number` tells its random stream from those of others.
    /// It connects to a server when it first has something to send there.
    ///
    /// # Errors
    /// What the operating system says if it has no entropy or no memory.
    pub fn open(&self, compute_server: u16, number: usize) -> io::Result<VerbsFabric> {
        let mut endpoints = self.reactor.endpoints.borrow_mut();
        let vacant = endpoints.iter().position(|endpoint| endpoint.strong_count() == 0);
        let index = vacant.unwrap_or(endpoints.len());
        let (shared, reactor) = (&self.shared, &self.reactor);
        let endpoint = Rc::new(Endpoint::new(shared, reactor, index, compute_server, number)?);
        let weak = Rc::downgrade(&endpoint);
        match vacant {
            Some(index) => endpoints[index] = weak,
            None => endpoints.push(weak),
        }
        Ok(VerbsFabric { endpoint })
    }
}

impl Driver for VerbsDriver {
    fn requests(&self) -> Option<Requests> {
        None
    }

    fn progress(&self) -> Progress {
        let reactor = &*self.reactor;
        let mut advanced = reactor.dispatch();
        let (mut came, mut nearest_ns) = reactor.drive();
        advanced |= came;
        let timers = reactor.timers.progress();
        if timers == Progress::Advanced {
            // Those who only ever yield must not keep the sockets waiting.
            reactor.look(0);
            return Progress::Advanced;
        }
        let Progress::Wait { ns } = timers else { return timers };
        for _ in 0..self.shared.config.looks_before_waiting {
            if advanced {
                break;
            }
            (advanced, nearest_ns) = reactor.drive();
        }
        if !advanced {
            let mut armed = false;
            reactor.each(|endpoint| armed |= endpoint.arm());
            if armed {
                (came, nearest_ns) = reactor.drive();
                advanced = came;
            }
        }
        if advanced {
            return Progress::Advanced;
        }
        let until_ns = nearest_ns.saturating_sub(reactor.timers.now_ns());
        Progress::Wait { ns: ns.min(until_ns) }
    }

    fn unparker(&self) -> Option<Waker> {
        Some(Waker::from(Arc::clone(&self.reactor.unparker)))
    }

    fn wait(&self, ns: u64) {
        self.reactor.look(ns);
    }
}
