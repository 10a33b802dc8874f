//! Where the memory behind a region comes from.
//!
//! *Thread safety*: a space belongs to the pager's thread.

use crate::FarError;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use std::cell::RefCell;
use std::future::Future;

/// Gives out memory of memory servers, in chunks.
pub trait ChunkSpace<F: Fabric>: 'static {
    /// Memory of exactly `bytes` bytes for this region alone.
    ///
    /// # Errors
    /// [`FarError::NoSpace`] if no memory server has that much, or any other error. The region asks
    /// again later.
    fn take(&self, fabric: &F, bytes: u64) -> impl Future<Output = Result<GlobalAddr, FarError>>;

    /// As [`ChunkSpace::take`], for the first of two copies of a chunk. Takes memory only on
    /// servers that `may_have` accepts, and does not wait for memory that others may return.
    ///
    /// # Errors
    /// As for [`ChunkSpace::take`].
    fn take_first(
        &self,
        fabric: &F,
        bytes: u64,
        may_have: impl Fn(ServerId) -> bool,
    ) -> impl Future<Output = Result<GlobalAddr, FarError>> {
        self.take_second(fabric, bytes, may_have)
    }

    /// As [`ChunkSpace::take`], for the second copy of a chunk. Takes memory only on servers that
    /// `may_have` accepts, and does not wait for memory that others may return.
    ///
    /// # Errors
    /// As for [`ChunkSpace::take`]; there is always one if the space has no second copies.
    fn take_second(
        &self,
        _fabric: &F,
        bytes: u64,
        _may_have: impl Fn(ServerId) -> bool,
    ) -> impl Future<Output = Result<GlobalAddr, FarError>> {
        std::future::ready(Err(FarError::NoSpace { bytes }))
    }

    /// After an error of [`ChunkSpace::take`]: in how many nanoseconds the region should ask again,
    /// while its page waits, because memory may come back by then. The space bounds how often.
    fn ask_again_ns(&self) -> Option<u64> {
        None
    }

    /// Takes memory back that the region no longer uses. No operation on it is in flight, and no
    /// earlier one can still take effect.
    fn give_back(&self, fabric: &F, at: GlobalAddr, bytes: u64) -> impl Future<Output = ()>;

    /// The region has ended, and has given back all memory but what an operation may still reach.
    fn end(&self, _fabric: &F) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// The time between two calls of [`ChunkSpace::renew`], in nanoseconds; `None` if it is not
    /// needed.
    fn renew_every_ns(&self) -> Option<u64> {
        None
    }

    /// Tells memory servers that the region still uses the memory. It may be given up half-way, and
    /// must not take longer than the time between two calls.
    fn renew(&self, _fabric: &F) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// Memory that this process has for itself: parts of the regions of memory servers, which nothing
/// else uses.
#[derive(Debug)]
pub struct Reserved {
    free: RefCell<Vec<(GlobalAddr, u64)>>,
}

impl Reserved {
    /// A space of these parts, each with its address and its length in bytes. Chunks come from the
    /// first part that has room.
    pub fn new(parts: Vec<(GlobalAddr, u64)>) -> Self {
        Self { free: RefCell::new(parts) }
    }

    /// The first `bytes` bytes of memory server 0.
    pub fn first(bytes: usize) -> Self {
        Self::new(vec![(GlobalAddr::new(ServerId::new(0), 0), bytes as u64)])
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> u64 {
        self.free.borrow().iter().map(|(_, bytes)| bytes).sum()
    }

    fn take_from(&self, bytes: u64, is_possible: impl Fn(ServerId) -> bool) -> Option<GlobalAddr> {
        let mut free = self.free.borrow_mut();
        let fits = |at: &GlobalAddr, left| left >= bytes && is_possible(at.server());
        let (at, left) = free.iter_mut().find(|(at, left)| fits(at, *left))?;
        let taken = *at;
        *left -= bytes;
        // The address behind the last byte of a part need not exist.
        if *left > 0 {
            *at = at.plus(bytes);
        }
        Some(taken)
    }
}

impl<F: Fabric> ChunkSpace<F> for Reserved {
    async fn take(&self, _fabric: &F, bytes: u64) -> Result<GlobalAddr, FarError> {
        self.take_from(bytes, |_| true).ok_or(FarError::NoSpace { bytes })
    }

    async fn take_second(
        &self,
        _fabric: &F,
        bytes: u64,
        may_have: impl Fn(ServerId) -> bool,
    ) -> Result<GlobalAddr, FarError> {
        self.take_from(bytes, may_have).ok_or(FarError::NoSpace { bytes })
    }

    async fn give_back(&self, _fabric: &F, at: GlobalAddr, bytes: u64) {
        self.free.borrow_mut().push((at, bytes));
    }
}
