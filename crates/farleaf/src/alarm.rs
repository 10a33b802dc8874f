//! A timer with a descriptor, so that a single descriptor covers sockets, wakes and deadlines.
//!
//! *Invariant*: while the timer's descriptor is readable, `armed_ns` is in the past; so the next
//! [`TimerAlarm::clear`] reads it, and it does not keep ending waits.
//!
//! *Thread safety*: one thread at a time.

use farleaf_fabric::endpoint::FOREIGN;
use farleaf_fabric::provider::ClusterClock;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A timer in an epoll set.
#[derive(Debug)]
pub(crate) struct TimerAlarm {
    timer: OwnedFd,
    clock: ClusterClock,
    /// When it goes off; 0 if it is not set.
    armed_ns: u64,
}

impl TimerAlarm {
    /// Creates an alarm that makes `epoll` readable when it goes off.
    pub(crate) fn new(epoll: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let data = epoll::EventData::new_u64(FOREIGN);
        epoll::add(epoll, &timer, data, epoll::EventFlags::IN)?;
        Ok(Self { timer, clock: ClusterClock::start(), armed_ns: 0 })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Clears the alarm if it has gone off.
    pub(crate) fn clear(&mut self) {
        if self.armed_ns == 0 || self.clock.now_ns() < self.armed_ns {
            return;
        }
        // The kernel's timer may be a moment late; the next call tries again.
        if rustix::io::read(&self.timer, &mut [0; 8]).is_ok() {
            self.armed_ns = 0;
        }
    }

    /// Makes it go off within `ns` nanoseconds. An earlier alarm stays: setting the timer for every
    /// deadline would cost a system call for each operation, and going off early costs one turn.
    pub(crate) fn set(&mut self, ns: u64) {
        let ns = ns.max(1);
        let at_ns = self.clock.now_ns().saturating_add(ns);
        if self.armed_ns != 0 && self.armed_ns <= at_ns {
            return;
        }
        let billion = 1_000_000_000;
        let tv_sec = i64::try_from(ns / billion).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec, tv_nsec: (ns % billion).cast_signed() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval, it_value };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
        self.armed_ns = at_ns;
        debug_assert!(set.is_ok(), "a timer takes any time: {set:?}");
    }
}
