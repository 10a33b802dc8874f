//! The creation of an index: writes its first pages, then claims memory servers, which adds their
//! pools to the index.

use super::pages::READ_RETRIES;
use super::{PageClient, PageImage, RemoteError, RpcClient};
use crate::wire::{PoolRequest, Refusal};
use farleaf_fabric::{Fabric, FabricError, GlobalAddr, ServerId};
use farleaf_page::{DesignId, Layout, Superblock, SuperblockError};

/// The memory server that holds the root of an index, in designs that have one.
pub const ROOT_SERVER: ServerId = ServerId::new(0);

/// Pause before a number is entered again, in nanoseconds.
const ENTER_PAUSE_NS: u64 = 10_000;

impl<F: Fabric, L: Layout> PageClient<F, L> {
    /// Allocates a node on each of the first `servers` memory servers, and writes there the pages
    /// that `make` returns for these addresses. Call [`RpcClient::claim_all`] with the addresses
    /// next.
    ///
    /// # Errors
    /// [`RemoteError::Refused`] if one of these servers belongs to an index already.
    pub async fn write_roots<E: From<RemoteError>>(
        &self,
        servers: u16,
        make: impl AsyncFnOnce(&[GlobalAddr]) -> Result<Vec<PageImage<L>>, E>,
    ) -> Result<Vec<GlobalAddr>, E> {
        for number in (0..servers).rev() {
            self.rpc().check_unclaimed(ServerId::new(number)).await?;
        }
        let mut roots = Vec::new();
        for number in 0..servers {
            roots.push(self.take_node(ServerId::new(number)).await?);
        }
        for (root, image) in roots.iter().zip(make(&roots).await?) {
            let fresh = self.fresh_word(*root).await?;
            self.write_fresh(&[(*root, fresh, &image)]).await?;
        }
        Ok(roots)
    }
}

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

    /// Reads the superblock of a server that an index of `design` has claimed. Also returns the
    /// index's options.
    ///
    /// # Errors
    /// [`RemoteError::BadPool`] if there is no such index.
    pub async fn claimed(
        &self,
        server: ServerId,
        design: DesignId,
    ) -> Result<(Superblock, u64), RemoteError> {
        let found = self.superblock(server).await?;
        match found.options_of(design) {
            Ok(options) => Ok((found, options)),
            Err(error) => Err(RemoteError::BadPool { server, error }),
        }
    }

    /// Claims all servers for an index with these roots, [`ROOT_SERVER`] last. Until then there is
    /// no index to open. If two clients try at the same time, only one gets past the first claim.
    ///
    /// # Errors
    /// [`RemoteError`] if a server belongs to another index.
    pub async fn claim_all(&self, options: u64, roots: &[GlobalAddr]) -> Result<(), RemoteError> {
        self.claim_each(options, roots, async |_| Ok(())).await
    }

    /// Like [`RpcClient::claim_all`], but calls `claimed` for each server after its claim.
    ///
    /// # Errors
    /// [`RemoteError`] if a server belongs to another index; errors of `claimed`.
    pub async fn claim_each<E: From<RemoteError>>(
        &self,
        options: u64,
        roots: &[GlobalAddr],
        claimed: impl AsyncFn(ServerId) -> Result<(), E>,
    ) -> Result<(), E> {
        // A unique number distinguishes clients that create the same index, in any process, so each
        // of them can repeat a claim of unknown outcome.
        let options = options | self.fabric().unique() << 32;
        for number in (0..self.fabric().memory_servers()).rev() {
            let server = ServerId::new(number);
            let root = roots.get(server.index()).copied().unwrap_or(GlobalAddr::NULL);
            self.claim(server, options, root).await?;
            claimed(server).await?;
        }
        Ok(())
    }

    /// Marks the index as one whose values may be in blocks.
    ///
    /// # Errors
    /// [`RemoteError`]; the index may be marked all the same if the outcome is unknown.
    pub async fn mark_blocks(&self) -> Result<(), RemoteError> {
        let at = GlobalAddr::new(ROOT_SERVER, Superblock::BLOCKS_WORD as u64 * 8);
        let mut outcome = self.fabric().compare_swap(at, 0, 1).await;
        for _ in 0..READ_RETRIES {
            if !matches!(outcome, Err(FabricError::Indeterminate { .. })) {
                break;
            }
            // One that lands late changes nothing.
            self.fabric().counters().count_retry();
            outcome = self.fabric().compare_swap(at, 0, 1).await;
        }
        Ok(outcome.map(drop)?)
    }

    /// Sets the word at `at` from 0 to `number`, by a CAS that is repeated. Returns whether the
    /// word is `number` now; `false` means that another number was faster.
    ///
    /// # Errors
    /// [`RemoteError`]; the number may enter all the same if the outcome is unknown.
    pub async fn enter(&self, at: GlobalAddr, number: u64) -> Result<bool, RemoteError> {
        let mut outcome = Err(RemoteError::Contended { retries: READ_RETRIES });
        for _ in 0..READ_RETRIES {
            match self.fabric().compare_swap(at, 0, number).await {
                Ok(found) => return Ok(found == 0 || found == number),
                Err(error) => {
                    if let FabricError::Indeterminate { .. } = error {
                        // Otherwise the swap could land after the index has gone.
                        self.fabric().reset(at.server()).await?;
                    }
                    outcome = Err(error.into());
                }
            }
            self.fabric().counters().count_retry();
            self.fabric().sleep(ENTER_PAUSE_NS).await;
        }
        outcome
    }

    /// Checks that the index, if there is one, was created with value blocks, or without them; one
    /// READ for byte strings. Numbers are never in blocks.
    ///
    /// # Errors
    /// [`RemoteError::BadPool`] if it was created in the other way: its values would be taken for
    /// references, or its references for values.
    pub async fn check_blocks(&self, expected: bool) -> Result<(), RemoteError> {
        if !L::HAS_HEAP && !expected {
            return Ok(());
        }
        let (server, found) = (ROOT_SERVER, self.superblock(ROOT_SERVER).await?);
        // Without an index, the design says so.
        let is_claimed = found.options != 0 || !found.root.is_null();
        let error = match found.has_blocks {
            true if !expected => SuperblockError::HasBlocks,
            false if expected && is_claimed => SuperblockError::NoBlocks,
            _ => return Ok(()),
        };
        Err(RemoteError::BadPool { server, error })
    }

    async fn claim(
        &self,
        server: ServerId,
        options: u64,
        root: GlobalAddr,
    ) -> Result<(), RemoteError> {
        // A server whose pages have another layout would read this index's pages as its own.
        self.superblock(server).await?;
        self.expect_done_idempotent(server, &PoolRequest::Claim { options, root }).await
    }
}
