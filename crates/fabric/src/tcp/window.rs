//! A bound on the payload in flight over a connection, for each direction: bytes of WRITEs that
//! have been sent but not acknowledged, and bytes of READs that have been requested but have not
//! arrived.
//!
//! Payload in flight occupies the socket buffers of both sides. Beyond the size of a processor's
//! cache, every additional byte there slows down each of its copies, and speeds up no transfer.
//!
//! *Invariants*: window.B1. A piece that counts is sent if it fits or if it is alone, so even a
//! piece larger than the window can be sent. window.B2. Each READ and WRITE frame has one entry, in
//! the order of the frames. A server completes the frames of each kind in order (served.V4), so the
//! oldest entry is that of the next completion, whether or not its operation still has a slot.
//! window.B3. Pieces of at most [`SMALL_BYTES`] neither count nor wait.
//!
//! *Thread safety*: an endpoint's thread.

use super::frame::{Completion, FrameKind};
use std::collections::VecDeque;

/// Largest piece that does not count, in bytes. The depth of an endpoint bounds how much of these
/// is in flight, and a page or a record must not wait for a bulk transfer.
pub(super) const SMALL_BYTES: usize = 4096;

/// Pieces in one direction.
#[derive(Debug, Default)]
pub(super) struct WindowSide {
    /// The counted bytes of each piece in flight, in the order in which they were sent.
    pieces: VecDeque<u32>,
    /// The sum of `pieces`.
    bytes: usize,
}

impl WindowSide {
    /// Whether a piece may be sent now.
    #[inline]
    pub(super) fn has_room(&self, piece_bytes: usize, window_bytes: usize) -> bool {
        piece_bytes <= SMALL_BYTES
            || self.bytes == 0
            || self.bytes.saturating_add(piece_bytes) <= window_bytes
    }

    /// Records that a piece is sent.
    #[inline]
    pub(super) fn add(&mut self, piece_bytes: usize) {
        let counted = if piece_bytes <= SMALL_BYTES { 0 } else { piece_bytes };
        self.pieces.push_back(counted as u32);
        self.bytes += counted;
    }

    /// Records the oldest piece's completion; returns whether there was one.
    #[inline]
    fn complete(&mut self) -> bool {
        let Some(counted) = self.pieces.pop_front() else { return false };
        self.bytes -= counted as usize;
        true
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
    }
}

/// The payload in flight over one connection.
#[derive(Debug, Default)]
pub(super) struct PayloadWindow {
    pub(super) reads: WindowSide,
    pub(super) writes: WindowSide,
}

impl PayloadWindow {
    /// Records a completion; returns whether it completes anything that was sent.
    #[inline]
    pub(super) fn complete(&mut self, completion: &Completion<'_>) -> bool {
        match completion {
            Completion::Read(_) | Completion::NotDone(FrameKind::Read, _) => self.reads.complete(),
            Completion::Written | Completion::NotDone(FrameKind::Write, _) => {
                self.writes.complete()
            }
            _ => true,
        }
    }

    /// Empties the window, because the connection has ended.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::frame::VerbRefusal;

    const WINDOW: usize = 100_000;

    #[test]
    fn pieces_go_while_they_fit_or_alone() {
        let mut way = WindowSide::default();
        assert!(way.has_room(60_000, WINDOW));
        way.add(60_000);
        assert!(way.has_room(40_000, WINDOW));
        assert!(!way.has_room(40_008, WINDOW));
        assert!(way.complete());
        assert!(way.has_room(WINDOW + 8, WINDOW), "a larger one goes alone");
        way.add(WINDOW + 8);
        assert!(!way.has_room(SMALL_BYTES + 8, WINDOW));
        assert!(way.has_room(SMALL_BYTES, WINDOW));
    }

    #[test]
    fn small_pieces_neither_count_nor_wait() {
        let mut way = WindowSide::default();
        for _ in 0..1000 {
            assert!(way.has_room(SMALL_BYTES, 0));
            way.add(SMALL_BYTES);
        }
        assert!(way.has_room(60_000, 0));
        way.add(60_000);
        assert!(!way.has_room(60_000, 0));
        (0..1000).for_each(|_| assert!(way.complete()));
        assert!(!way.has_room(60_000, 0), "the large one is still under way");
        assert!(way.complete() && way.has_room(60_000, 0));
    }

    #[test]
    fn directions_are_independent_and_refusals_count() {
        let mut window = PayloadWindow::default();
        assert!(!window.complete(&Completion::Written), "nothing was sent");
        window.writes.add(60_000);
        window.reads.add(60_000);
        assert!(window.complete(&Completion::NotDone(FrameKind::Write, VerbRefusal::Unaligned)));
        assert!(window.writes.has_room(60_000, 0) && !window.reads.has_room(60_000, 0));
        assert!(window.complete(&Completion::Swapped(1)) && !window.reads.has_room(60_000, 0));
        assert!(window.complete(&Completion::Read(&[])) && window.reads.has_room(60_000, 0));
        assert!(!window.complete(&Completion::Read(&[])));
    }
}
