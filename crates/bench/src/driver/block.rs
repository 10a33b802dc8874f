//! Operations drawn ahead of their execution, so that the cost of drawing is not measured.
//!
//! *Thread safety*: belongs to its client.

use crate::workload::{OperationStream, WorkloadOperation};
use std::ops::Range;

/// Number of operations drawn at a time, unless each must be drawn separately.
const BLOCK_OPERATIONS: usize = 128;

/// Operations that a client has drawn but not executed yet.
#[derive(Debug, Default)]
pub(super) struct OperationBlock {
    /// Each operation with its range of `keys`. `None` stands for an insertion into a full key
    /// space.
    drawn: Vec<(Option<WorkloadOperation>, Range<usize>)>,
    /// The keys of all [`WorkloadOperation::MultiGet`]s.
    keys: Vec<u64>,
    /// The position of the next operation.
    next: usize,
}

impl OperationBlock {
    /// Number of operations to draw if each call of the index has `batch` operations.
    pub(super) fn length(batch: usize) -> usize {
        BLOCK_OPERATIONS.next_multiple_of(batch)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.drawn.len()
    }

    /// Replaces an empty block with `count` operations that `draw` takes from the stream.
    pub(super) fn fill(
        &mut self,
        count: usize,
        stream: &mut OperationStream,
        mut draw: impl FnMut(&mut OperationStream) -> Option<WorkloadOperation>,
    ) {
        debug_assert!(self.is_empty(), "an operation would be lost");
        self.drawn.clear();
        self.keys.clear();
        self.next = 0;
        for _ in 0..count {
            let operation = draw(stream);
            let from = self.keys.len();
            if operation == Some(WorkloadOperation::MultiGet) {
                self.keys.extend_from_slice(stream.batch());
            }
            self.drawn.push((operation, from..self.keys.len()));
        }
    }

    /// Takes the next operation, and the keys of a [`WorkloadOperation::MultiGet`].
    pub(super) fn take(&mut self) -> Option<(Option<WorkloadOperation>, &[u64])> {
        let (operation, keys) = self.drawn.get(self.next)?;
        self.next += 1;
        Some((*operation, &self.keys[keys.clone()]))
    }

    /// Takes up to `most` operations from the front, stopping before the first that is not on a
    /// single key.
    pub(super) fn take_edits(&mut self, most: usize, edits: &mut Vec<WorkloadOperation>) {
        edits.clear();
        let rest = self.drawn[self.next..].iter().take(most);
        edits.extend(rest.map_while(|(operation, _)| operation.filter(|one| one.edit().is_some())));
        self.next += edits.len();
    }
}
