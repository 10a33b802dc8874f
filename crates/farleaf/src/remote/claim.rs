//! Claiming memory servers: what makes their pools those of one index.

use super::{RemoteError, RpcClient};
use crate::page::Layout;
use crate::wire::{PoolRequest, Refusal, Reply};
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};

/// The memory server with the root of an index, in designs that have one.
pub const ROOT_SERVER: ServerId = ServerId::new(0);

impl<F: Fabric, L: Layout> RpcClient<F, L> {
    /// Refuses a pool that belongs to an index already: one READ.
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

    /// The options of an index with a random number, which tells apart two clients that make the same one:
    /// each can ask again what it does not know the outcome of.
    pub fn own_options(&self, options: u64) -> u64 {
        options | self.fabric().random() << 32
    }

    /// Claims all servers for an index, the root's last: until then there is nothing to open, and of two
    /// clients that try only one gets past the first.
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

    /// Claims one server with options as [`RpcClient::own_options`] returns them.
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
