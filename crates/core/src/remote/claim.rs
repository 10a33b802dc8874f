//! Claims memory servers: makes their pools part of one index.

use super::{RemoteError, RpcClient};
use crate::page::Layout;
use crate::wire::{PoolRequest, Refusal, Reply};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};

/// The memory server that holds the root of an index, in designs that have one.
pub const ROOT_SERVER: ServerId = ServerId::new(0);

impl<F: Fabric, L: Layout> RpcClient<F, L> {
    /// Fails if a server's pool belongs to an index already; one READ.
    ///
    /// # Errors
    /// [`RemoteError::Refused`] if it does.
    pub async fn check_unclaimed(&self, server: ServerId) -> Result<(), RemoteError> {
        let found = self.superblock(server).await?;
        if found.options == 0 && found.root.is_null() {
            return Ok(());
        }
        Err(RemoteError::Refused { server, refusal: Refusal::TreeExists })
    }

    /// An index's options combined with a unique number. The number distinguishes two clients that
    /// create the same index, in any process, so each can repeat a claim of unknown outcome.
    pub fn own_options(&self, options: u64) -> u64 {
        options | self.fabric().unique() << 32
    }

    /// Claims all servers for an index, the root's server last. Until then there is no index to
    /// open, and of two clients that try, only one gets past the first claim.
    ///
    /// # Errors
    /// [`RemoteError`] if a server belongs to another index.
    pub async fn claim_all(&self, options: u64, root: GlobalAddr) -> Result<(), RemoteError> {
        let options = self.own_options(options);
        for number in (0..self.fabric().memory_servers()).rev() {
            let server = ServerId::new(number);
            let root = if server == ROOT_SERVER { root } else { GlobalAddr::NULL };
            self.claim(server, options, root).await?;
        }
        Ok(())
    }

    /// Claims one server, with options from [`RpcClient::own_options`].
    ///
    /// # Errors
    /// [`RemoteError`] if it belongs to another index.
    pub async fn claim(
        &self,
        server: ServerId,
        options: u64,
        root: GlobalAddr,
    ) -> Result<(), RemoteError> {
        match self.ask_harmless(server, &PoolRequest::Claim { options, root }.into()).await? {
            Reply::Done => Ok(()),
            _ => Err(RemoteError::BadReply { server }),
        }
    }
}
