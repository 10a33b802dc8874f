//! What moves the tasks of a client thread on: replies in the rings of its endpoints, and timers; and how the
//! thread sleeps until there is one of them.
//!
//! *Invariants*: D1. before the thread sleeps, each server that owes it a reply knows that it does, and no reply is
//! there. D2. it sleeps no longer than to the nearest deadline.
//!
//! *Thread safety*: one thread; the unparker may go anywhere.

use super::connection::Connection;
use super::endpoint::ShmFabric;
use super::process::Listening;
use super::{ShmError, socket};
use crate::executor::{Driver, Progress, Requests};
use crate::sync::Arc;
use crate::timers::Timers;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::task::{Wake, Waker};

/// The alarm among the events; connections have their place.
const ALARM: u64 = u64::MAX;
/// How often timers may be due before the sockets are looked at all the same.
const UNHEARD: u32 = 64;
/// Below this, a thread with nothing to do gives its core away instead of sleeping: timers are not finer.
const SHORT_WAIT_NS: u64 = 100_000;
/// Events that are taken at once.
const EVENTS: usize = 64;

/// The connections and timers of one client thread.
#[derive(Debug)]
pub(super) struct Reactor {
    pub(super) timers: Timers,
    epoll: OwnedFd,
    alarm: Arc<Alarm>,
    connections: RefCell<Vec<Weak<Connection>>>,
    /// Connections whose sockets have something, by their places.
    heard: RefCell<Vec<u64>>,
    /// How often timers were due since the sockets were looked at.
    unheard: Cell<u32>,
}

/// Rings when another thread wakes a task.
#[derive(Debug)]
struct Alarm(OwnedFd);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A counter that is full rings too.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Reactor {
    fn new(timers: Timers) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(ALARM);
        epoll::add(&epoll, &alarm, data, epoll::EventFlags::IN)?;
        Ok(Self {
            timers,
            epoll,
            alarm: Arc::new(Alarm(alarm)),
            connections: RefCell::default(),
            heard: RefCell::default(),
            unheard: Cell::new(0),
        })
    }

    /// Looks after a connection from now on, until it is dropped.
    pub(super) fn add(&self, connection: &Rc<Connection>) -> Result<(), Errno> {
        let mut connections = self.connections.borrow_mut();
        let vacant = connections.iter().position(|it| it.strong_count() == 0);
        let place = vacant.unwrap_or(connections.len());
        let data = epoll::EventData::new_u64(place as u64);
        epoll::add(&self.epoll, &connection.socket, data, epoll::EventFlags::IN)?;
        let weak = Rc::downgrade(connection);
        match vacant {
            Some(place) => connections[place] = weak,
            None => connections.push(weak),
        }
        Ok(())
    }

    fn connection(&self, place: usize) -> Option<Rc<Connection>> {
        self.connections.borrow().get(place)?.upgrade()
    }

    /// Whether `all` holds for every connection; all of them are asked.
    fn ask(&self, all: impl Fn(&Connection) -> bool) -> bool {
        let places = self.connections.borrow().len();
        let answers = (0..places).filter_map(|place| Some(all(&*self.connection(place)?)));
        answers.fold(true, |so_far, answer| so_far & answer)
    }

    /// Looks at the sockets, for `ns` at most.
    fn look(&self, ns: u64) {
        self.unheard.set(0);
        let mut events = Vec::with_capacity(EVENTS);
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, spare, Some(&socket::timespec(ns))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("waiting for sockets: {errno}"),
        }
        for event in events {
            match event.data.u64() {
                ALARM => {
                    let _ = rustix::io::read(&self.alarm.0, &mut [0; 8]);
                }
                place => self.heard.borrow_mut().push(place),
            }
        }
    }

    /// Attends to the sockets that had something; says whether one has come to its end.
    fn hear(&self) -> bool {
        let mut any_ended = false;
        for place in self.heard.take() {
            let connection = usize::try_from(place).ok().and_then(|place| self.connection(place));
            if let Some(connection) = connection
                && !connection.hear()
            {
                // Its end would be reported for ever.
                let _ = epoll::delete(&self.epoll, &connection.socket);
                any_ended = true;
            }
        }
        any_ended
    }
}

/// Drives the endpoints of one thread; give it to an [`crate::executor::Executor`].
#[derive(Debug)]
pub struct ShmDriver {
    reactor: Rc<Reactor>,
    process: Arc<Listening>,
}

impl ShmDriver {
    pub(super) fn new(process: &Arc<Listening>) -> Result<Self, ShmError> {
        let timers = Timers::new(process.clock.clone());
        Ok(Self { reactor: Rc::new(Reactor::new(timers)?), process: Arc::clone(process) })
    }

    /// Opens an endpoint of `compute_server`; `number` tells its random stream from those of others. It blocks its
    /// thread until each server has answered. A server that is gone does not keep the endpoint from being opened:
    /// what is sent to it ends as indeterminate.
    ///
    /// # Errors
    /// [`ShmError`] if a server that is there does not answer in time, or has no room.
    pub fn open(&self, compute_server: u16, number: usize) -> Result<ShmFabric, ShmError> {
        ShmFabric::open(&self.process, &self.reactor, compute_server, number)
    }
}

impl Driver for ShmDriver {
    fn requests(&self) -> Option<Requests> {
        None
    }

    fn progress(&self) -> Progress {
        let ended = self.reactor.hear();
        let quiet = self.reactor.ask(|connection| !connection.take_replies());
        match self.reactor.timers.progress() {
            Progress::Wait { .. } if ended || !quiet => Progress::Advanced,
            Progress::Wait { .. } if !self.reactor.ask(Connection::may_sleep) => Progress::Advanced,
            Progress::Advanced => {
                // Those who only ever yield must not keep the sockets waiting for ever.
                let unheard = self.reactor.unheard.get() + 1;
                self.reactor.unheard.set(unheard);
                if unheard >= UNHEARD {
                    self.reactor.look(0);
                }
                Progress::Advanced
            }
            progress => progress,
        }
    }

    fn unparker(&self) -> Option<Waker> {
        Some(Waker::from(Arc::clone(&self.reactor.alarm)))
    }

    fn wait(&self, ns: u64) {
        if ns < SHORT_WAIT_NS {
            #[expect(clippy::disallowed_methods, reason = "this is what waiting comes down to")]
            crate::sync::thread::yield_now();
            return self.reactor.look(0);
        }
        self.reactor.look(ns);
    }
}
