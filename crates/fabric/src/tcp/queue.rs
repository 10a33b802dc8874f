//! A queue of bytes between a socket and the frames, with fixed capacity, over one buffer.
//!
//! *Invariants*: queue.Q1. `start <= end <= capacity`; the bytes between `start` and `end` are
//! queued. queue.Q2. The capacity never changes; pages of the buffer that were never used take no
//! memory.
//!
//! *Thread safety*: one thread.

use std::io::{self, Read, Write};

/// The result of reading or writing a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketFlow {
    /// Nothing is left to do: everything has been sent, or everything received so far has been
    /// read.
    Drained,
    /// There may be more to read.
    More,
    /// The socket accepts no more for now.
    Blocked,
    /// The peer has closed the connection, or it broke.
    Closed,
}

#[derive(Debug)]
pub(super) struct ByteQueue {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl ByteQueue {
    pub(super) fn new(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity].into(), start: 0, end: 0 }
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Number of bytes that can still be queued.
    pub(super) fn space(&self) -> usize {
        self.bytes.len() - (self.end - self.start)
    }

    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Removes the first `bytes` bytes.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "cannot consume more bytes than are queued");
        if self.start == self.end {
            self.clear();
        }
    }

    /// Queues `bytes` bytes with arbitrary content, for the caller to fill in.
    ///
    /// # Panics
    /// If there is no space for them.
    pub(super) fn push(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < bytes {
            self.compact();
        }
        let from = self.end;
        self.end += bytes;
        &mut self.bytes[from..self.end]
    }

    fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Reads once, as much as there is space for.
    pub(super) fn receive(&mut self, socket: &mut impl Read) -> SocketFlow {
        if self.end == self.bytes.len() {
            self.compact();
        }
        let room = &mut self.bytes[self.end..];
        if room.is_empty() {
            return SocketFlow::More;
        }
        loop {
            return match socket.read(room) {
                Ok(0) => SocketFlow::Closed,
                Ok(bytes) => {
                    let full = bytes == room.len();
                    self.end += bytes;
                    if full { SocketFlow::More } else { SocketFlow::Drained }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => SocketFlow::Drained,
                Err(_) => SocketFlow::Closed,
            };
        }
    }

    /// Writes until the queue is empty or the socket accepts no more.
    pub(super) fn send(&mut self, socket: &mut impl Write) -> SocketFlow {
        while !self.is_empty() {
            match socket.write(&self.bytes[self.start..self.end]) {
                Ok(0) => return SocketFlow::Closed,
                Ok(bytes) => self.consume(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return SocketFlow::Blocked;
                }
                Err(_) => return SocketFlow::Closed,
            }
        }
        SocketFlow::Drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order() {
        let mut queue = ByteQueue::new(16);
        let (mut next_in, mut next_out) = (0_u8, 0_u8);
        for round in 0..200_usize {
            let bytes = round % 7;
            if queue.space() >= bytes {
                for byte in queue.push(bytes) {
                    *byte = next_in;
                    next_in = next_in.wrapping_add(1);
                }
            }
            let out = (round % 5).min(queue.filled().len());
            for byte in &queue.filled()[..out] {
                assert_eq!(*byte, next_out);
                next_out = next_out.wrapping_add(1);
            }
            queue.consume(out);
            assert_eq!(queue.space() + queue.filled().len(), 16);
        }
        assert!(next_out > 100);
    }

    #[test]
    fn a_full_queue_reads_no_more() {
        let mut queue = ByteQueue::new(8);
        let mut source: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        assert_eq!(queue.receive(&mut source), SocketFlow::More);
        assert_eq!(queue.receive(&mut source), SocketFlow::More);
        assert_eq!(queue.filled(), [1, 2, 3, 4, 5, 6, 7, 8]);
        queue.consume(4);
        assert_eq!(queue.receive(&mut source), SocketFlow::Drained);
        assert_eq!(queue.filled(), [5, 6, 7, 8, 9, 10]);
        assert_eq!(queue.receive(&mut source), SocketFlow::Closed);
    }
}
