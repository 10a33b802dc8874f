//! An eventfd: what ends another thread's wait in epoll.
//!
//! *Thread safety*: any number of threads.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd that wakes one thread.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// One that wakes nobody yet.
    ///
    /// # Errors
    /// What the operating system says if there are no more file descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the wait, or the next one.
    pub fn wake(&self) {
        // It can only fail by being full, and then it wakes all the same.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets all wakes so far.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
