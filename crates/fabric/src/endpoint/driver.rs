//! Drives the tasks of a client thread: its endpoints, the sockets of their links, and its timers.
//! It never spins for long.
//!
//! *Invariants*: endpoint.D1. Tasks are woken only by [`Driver::progress`], never while the thread
//! waits, so a wake by the thread itself costs no system call. endpoint.D2. Before the thread
//! waits, everything posted has been sent, as far as the transport accepts it, and every link that
//! expects something has been armed and then driven once more. endpoint.D3. The thread waits at
//! most until the nearest deadline.
//!
//! *Thread safety*: one thread; the unparker may go to any thread.

use super::{Endpoint, EndpointInner, Transport};
use crate::ServerId;
use crate::clients::{ClientTask, run_here, run_on_threads};
use crate::executor::{Driver, DriverProgress, ExecutorRequests};
use crate::sync::Arc;
use crate::timers::Timers;
use crate::wake::WakeFd;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::task::{Wake, Waker};

/// Tokens of events that do not belong to links.
const WAKE: u64 = u64::MAX;
const SOURCE: u64 = u64::MAX - 1;
/// Token of descriptors that a caller adds to [`EndpointDriver::descriptor`]. Their events end
/// waits and are reported by [`EndpointDriver::take_foreign`].
pub const FOREIGN: u64 = u64::MAX - 2;
const EVENTS: usize = 128;

/// How a thread whose tasks all wait polls for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollingPolicy {
    /// Number of polls before it blocks.
    pub before_waiting: u32,
    /// Whether completions appear in memory. If so, polling means driving the links, without a
    /// system call.
    pub in_memory: bool,
    /// Number of consecutive times that timers may be due before the sockets are polled regardless.
    pub unheard: u32,
    /// An idle thread yields its core instead of sleeping for less than this, in nanoseconds.
    pub short_wait_ns: u64,
}

struct EndpointUnparker(WakeFd);

impl Wake for EndpointUnparker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

/// The sockets and timers of one client thread.
pub struct ClientReactor<X: Transport> {
    /// The thread's epoll instance.
    pub epoll: OwnedFd,
    /// The transport's source of events other than sockets.
    pub source: X::Source,
    pub(super) timers: Rc<Timers>,
    unparker: Arc<EndpointUnparker>,
    endpoints: RefCell<Vec<Weak<EndpointInner<X>>>>,
    events: RefCell<[epoll::Event; EVENTS]>,
    /// Number of `events` that have not been handled.
    waiting_events: Cell<usize>,
    /// Number of times timers were due since the sockets were last polled.
    unheard: Cell<u32>,
    /// Whether there was an event of a [`FOREIGN`] descriptor.
    foreign: Cell<bool>,
}

impl<X: Transport> std::fmt::Debug for ClientReactor<X> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientReactor")
            .field("endpoints", &self.endpoints.borrow().len())
            .finish_non_exhaustive()
    }
}

/// A duration as a `Timespec`.
pub(crate) fn timespec(ns: u64) -> Timespec {
    let billion = 1_000_000_000;
    Timespec { tv_sec: (ns / billion).cast_signed(), tv_nsec: (ns % billion).cast_signed() }
}

impl<X: Transport> ClientReactor<X> {
    fn new(cluster: &X::Cluster) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let unparker = Arc::new(EndpointUnparker(WakeFd::new()?));
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &unparker.0, data, epoll::EventFlags::IN)?;
        let source = X::source(cluster, &epoll, SOURCE)?;
        let nothing =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        Ok(Self {
            epoll,
            source,
            timers: Rc::new(Timers::new(X::clock(cluster).clone())),
            unparker,
            endpoints: RefCell::default(),
            events: RefCell::new([nothing; EVENTS]),
            waiting_events: Cell::new(0),
            unheard: Cell::new(0),
            foreign: Cell::new(false),
        })
    }

    /// Polls for events, waiting at most `ns`.
    fn look(&self, ns: u64) {
        self.unheard.set(0);
        let mut events = self.events.borrow_mut();
        match epoll::wait(&self.epoll, &mut events[..], Some(&timespec(ns))) {
            Ok(count) => self.waiting_events.set(count),
            Err(Errno::INTR) => {}
            Err(errno) => panic!("epoll fails: {errno}"),
        }
    }

    /// Disarms the links for which the transport's source has events.
    pub fn take_told(&self) {
        while let Some(token) = X::told(&self.source) {
            if let Some(endpoint) = self.endpoint((token >> 16) as usize) {
                endpoint.disarm(token as u16);
            }
        }
    }

    /// Passes the events to their endpoints; returns whether there were any.
    fn dispatch(&self) -> bool {
        let count = self.waiting_events.take();
        for event in &self.events.borrow()[..count] {
            match event.data.u64() {
                WAKE => self.unparker.0.clear(),
                SOURCE => self.take_told(),
                FOREIGN => self.foreign.set(true),
                token => {
                    if let Some(endpoint) = self.endpoint((token >> 16) as usize) {
                        endpoint.visit(token as u16);
                    }
                }
            }
        }
        count > 0
    }

    fn endpoint(&self, index: usize) -> Option<Rc<EndpointInner<X>>> {
        self.endpoints.borrow().get(index)?.upgrade()
    }

    fn each(&self, mut visit: impl FnMut(&EndpointInner<X>)) {
        for index in 0.. {
            let Some(endpoint) = self.endpoints.borrow().get(index).map(Weak::upgrade) else {
                return;
            };
            if let Some(endpoint) = endpoint {
                visit(&endpoint);
            }
        }
    }

    /// Drives all endpoints; returns whether anything has arrived, and the nearest deadline.
    fn drive(&self) -> (bool, u64) {
        let (mut advanced, mut nearest_ns) = (false, u64::MAX);
        self.each(|endpoint| {
            let (came, next_ns) = endpoint.drive();
            advanced |= came;
            nearest_ns = nearest_ns.min(next_ns);
        });
        (advanced, nearest_ns)
    }

    fn arm(&self) -> bool {
        let mut armed = false;
        self.each(|endpoint| armed |= endpoint.arm());
        armed
    }
}

/// Drives the endpoints of one thread; give it to an [`crate::executor::Executor`].
#[derive(Debug)]
pub struct EndpointDriver<X: Transport> {
    reactor: Rc<ClientReactor<X>>,
    cluster: Arc<X::Cluster>,
    looks: PollingPolicy,
}

impl<X: Transport> EndpointDriver<X> {
    /// A driver without endpoints.
    ///
    /// # Errors
    /// The operating system's error if there are no more file descriptors.
    pub fn new(cluster: &Arc<X::Cluster>) -> io::Result<Self> {
        let reactor = Rc::new(ClientReactor::<X>::new(cluster)?);
        Ok(Self { reactor, looks: X::looks(cluster), cluster: Arc::clone(cluster) })
    }

    /// The epoll descriptor that becomes readable when the driver has something to do, apart from
    /// timers: for callers that wait in an event loop of their own ([`Executor::turn`]). They may
    /// add descriptors with the token [`FOREIGN`].
    ///
    /// [`Executor::turn`]: crate::executor::Executor::turn
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.reactor.epoll.as_fd()
    }

    /// Whether there was an event of a [`FOREIGN`] descriptor since the last call.
    pub fn take_foreign(&self) -> bool {
        self.reactor.foreign.take()
    }

    /// Opens an endpoint of `compute_server`; `number` selects its random stream.
    ///
    /// Over `tcp` and `verbs`, the endpoint connects to a server when it first has something to
    /// send there. Over `shm`, opening blocks the thread until each server has answered. A server
    /// that is gone does not prevent opening; operations on it end as indeterminate.
    ///
    /// # Errors
    /// If there is no entropy or not enough memory. Over `shm`, also if a running server does not
    /// answer in time, or has reached its limits.
    pub fn open(&self, compute_server: u16, number: usize) -> Result<Endpoint<X>, X::Error> {
        let mut endpoints = self.reactor.endpoints.borrow_mut();
        let vacant = endpoints.iter().position(|endpoint| endpoint.strong_count() == 0);
        let index = vacant.unwrap_or(endpoints.len());
        let (cluster, reactor) = (&self.cluster, &self.reactor);
        let inner = Rc::new(EndpointInner::new(cluster, reactor, index, compute_server, number)?);
        let weak = Rc::downgrade(&inner);
        match vacant {
            Some(index) => endpoints[index] = weak,
            None => endpoints.push(weak),
        }
        Ok(Endpoint(inner))
    }
}

impl<X: Transport> Driver for EndpointDriver<X> {
    fn requests(&self) -> Option<ExecutorRequests> {
        None
    }

    fn progress(&self) -> DriverProgress {
        let (reactor, looks) = (&*self.reactor, self.looks);
        let mut advanced = reactor.dispatch();
        let (came, mut nearest_ns) = reactor.drive();
        advanced |= came;
        let DriverProgress::Wait { ns } = reactor.timers.progress() else {
            // Tasks that keep yielding must not starve the sockets.
            let unheard = reactor.unheard.get() + 1;
            reactor.unheard.set(unheard);
            if unheard >= looks.unheard {
                reactor.look(0);
            }
            return DriverProgress::Advanced;
        };
        if looks.in_memory {
            for _ in 0..looks.before_waiting {
                if advanced {
                    break;
                }
                (advanced, nearest_ns) = reactor.drive();
            }
        }
        if !advanced && reactor.arm() {
            (advanced, nearest_ns) = reactor.drive();
        }
        if advanced {
            return DriverProgress::Advanced;
        }
        let until_ns = nearest_ns.saturating_sub(reactor.timers.now_ns());
        DriverProgress::Wait { ns: ns.min(until_ns) }
    }

    fn unparker(&self) -> Option<Waker> {
        Some(Waker::from(Arc::clone(&self.reactor.unparker)))
    }

    fn wait(&self, ns: u64) {
        if ns < self.looks.short_wait_ns {
            #[expect(clippy::disallowed_methods, reason = "this is what waiting comes down to")]
            crate::sync::thread::yield_now();
            return self.reactor.look(0);
        }
        if !self.looks.in_memory {
            for _ in 0..self.looks.before_waiting {
                self.reactor.look(0);
                if self.reactor.waiting_events.get() > 0 {
                    return;
                }
            }
        }
        self.reactor.look(ns);
    }
}

/// A cluster that clients reach over endpoints of one transport. It defines everything needed to
/// implement [`crate::Cluster`].
pub trait EndpointCluster {
    /// The transport of the endpoints.
    type Transport: Transport<Error: Into<io::Error>>;

    /// The state that all endpoints share.
    fn shared(&self) -> &Arc<<Self::Transport as Transport>::Cluster>;

    /// Whether all clients of one call run on one thread, instead of one thread each.
    fn has_one_client_thread(&self) -> bool;

    /// [`crate::Cluster::kill_memory_server`].
    fn kill(&self, server: ServerId);
}

/// [`crate::Cluster::run_clients`].
pub(crate) fn run_endpoints<'a, C: EndpointCluster>(
    cluster: &C,
    compute_servers: &[u16],
    start: &'a (dyn Fn(Endpoint<C::Transport>, usize) -> ClientTask<'a> + Sync),
) -> io::Result<()> {
    let shared = cluster.shared();
    let open = |clients: &[(usize, u16)]| {
        let driver = EndpointDriver::<C::Transport>::new(shared)?;
        let endpoints = clients.iter().map(|(number, server)| driver.open(*server, *number));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>().map_err(Into::into)?;
        Ok((driver, endpoints))
    };
    let run = |(driver, endpoints), clients: &[_]| run_here(&driver, clients, endpoints, start);
    run_on_threads(compute_servers, cluster.has_one_client_thread(), &open, &run)
}
