//! Bulk loads into the memory servers' own trees, for designs that use such trees.
//!
//! Each load has a unique number, and servers remember the latest numbers that they have closed. So
//! a request that arrives late, or is sent again, affects only the load that it was sent for.
//!
//! *Thread safety*: the same as for [`RpcClient`].

use super::{RemoteError, RpcClient};
use crate::wire::TreeRequest;
use farleaf_fabric::{Fabric, ServerId};
use farleaf_page::Layout;

impl<F: Fabric, L: Layout> RpcClient<F, L> {
    /// Starts load number `load` into the server's empty tree. Aborts an earlier load of this
    /// compute server.
    ///
    /// # Errors
    /// [`crate::wire::Refusal::Loading`] if another compute server is loading; others as
    /// [`RpcClient::ask`].
    pub async fn begin_load(
        &self,
        server: ServerId,
        load: u64,
        fill_permille: u16,
    ) -> Result<(), RemoteError> {
        self.expect_done_idempotent(server, &TreeRequest::LoadBegin { load, fill_permille }).await
    }

    /// Publishes the tree of a load.
    ///
    /// # Errors
    /// As [`RpcClient::ask`]. The load is then still open, except after
    /// [`RemoteError::Indeterminate`].
    pub async fn end_load(&self, server: ServerId, load: u64) -> Result<(), RemoteError> {
        let end = TreeRequest::LoadEnd { load };
        match self.expect_done(server, &end).await {
            // Repeat the request: the server publishes the tree now, or answers that it already
            // has. If it does not answer, or has closed the load, the first request may still have
            // succeeded.
            Err(RemoteError::Indeterminate(_)) => {
                let again = self.expect_done_idempotent(server, &end).await;
                again.map_err(|error| error.after_a_change(server))
            }
            outcome => outcome,
        }
    }

    /// Aborts a load, if it is open.
    ///
    /// # Errors
    /// As [`RpcClient::ask`].
    pub async fn abort_load(&self, server: ServerId, load: u64) -> Result<(), RemoteError> {
        self.expect_done_idempotent(server, &TreeRequest::LoadAbort { load }).await
    }

    /// Aborts the loads of a compute server that is dead, on all memory servers.
    ///
    /// # Errors
    /// As [`RpcClient::ask`]. The other memory servers have been asked even so.
    pub async fn abandon_loads(&self, compute_server: u16) -> Result<(), RemoteError> {
        let mut outcome = Ok(());
        for server in self.servers() {
            let abandon = TreeRequest::LoadAbandon { compute_server };
            outcome = outcome.and(self.expect_done_idempotent(server, &abandon).await);
        }
        outcome
    }
}
