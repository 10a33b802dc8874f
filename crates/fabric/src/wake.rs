//! An eventfd that ends another thread's wait in epoll.
//!
//! *Thread safety*: any number of threads.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd that wakes one thread.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// An eventfd that has not been signaled.
    ///
    /// # Errors
    /// The operating system's error if there are no more file descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the current wait, or the next one if there is none.
    pub fn wake(&self) {
        // Writing only fails if the counter is full, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Clears all wakes so far.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
