//! Unfinished transfers of a handle's frames, why each frame still counts as being written, and
//! what answers wait for.
//!
//! *Thread safety*: plain values.

use super::{FrameChange, FrameId};
use farleaf_fabric::{GlobalAddr, ServerId};
use farleaf_page::PageWords;

/// A frame with a last WRITE that may still land. Until that is settled, the frame is flagged as
/// being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnresolvedFrame {
    pub(super) frame: FrameId,
    pub(super) at: GlobalAddr,
    pub(super) words: PageWords,
    /// When the words became dirty.
    pub(super) since_ns: u64,
}

/// A frame that is written only after its parent (C24). Until then it is flagged as being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct DependentFrame {
    pub(super) frame: FrameId,
    pub(super) parent: FrameId,
    pub(super) parent_at: GlobalAddr,
}

/// A change that an answer reports or has seen, and that the pool may lack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnwrittenChange {
    pub(super) frame: FrameId,
    pub(super) change: FrameChange,
    /// Whether the operation itself has made it. Then, if it cannot be written, the outcome is
    /// unknown.
    pub(super) is_own: bool,
    /// The memory server of the leaf.
    pub(super) server: ServerId,
}
