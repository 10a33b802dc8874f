//! Memory servers to which something may still be on its way although its operation has ended, and
//! has left no page to settle: a doubt of K4 that a reset alone settles (F9).
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use farleaf_fabric::{Fabric, ServerId};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The servers whose connection must be reset, each with how often that became necessary.
#[derive(Debug, Default)]
pub(super) struct UnresetServers(RefCell<BTreeMap<ServerId, u64>>);

impl UnresetServers {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Something is about to be posted to `server`.
    #[inline]
    pub(super) fn may_land(&self, server: ServerId) -> UnendedOperation<'_> {
        UnendedOperation { unreset: self, server: Some(server) }
    }

    /// Resets the connections. Those that cannot be reset stay.
    pub(super) async fn settle(&self, fabric: &impl Fabric) {
        let all = self.0.borrow().clone();
        for (server, times) in all {
            let is_reset = fabric.reset(server).await.is_ok();
            // Meanwhile something else may have been given up that the reset did not stop.
            self.0
                .borrow_mut()
                .extract_if(.., |at, now| is_reset && *at == server && *now == times)
                .for_each(drop);
        }
    }
}

/// An operation that has not ended. Dropping it leaves a doubt.
#[derive(Debug)]
pub struct UnendedOperation<'a> {
    unreset: &'a UnresetServers,
    server: Option<ServerId>,
}

impl UnendedOperation<'_> {
    /// It has landed, or never will.
    #[inline]
    pub fn landed(mut self) {
        self.server = None;
    }
}

impl Drop for UnendedOperation<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.server {
            *self.unreset.0.borrow_mut().entry(server).or_default() += 1;
        }
    }
}
