//! Writing many new pages that no other client can reach yet: allocates nodes round robin and keeps
//! many WRITEs in flight.
//!
//! *Invariants*
//! - N1. Page `i` is on server `i mod S`.
//! - N2. After [`FreshWriter::finish`] every page is written; until then nothing may point to any
//!   of them.
//! - N3. A node returns to the allocator only when no operation in flight can land after its reuse.
//!
//! *Thread safety*: private to one task.

use super::{PageClient, PageImage, RemoteError};
use farleaf_fabric::{Buffer, Fabric, GlobalAddr, ServerId};
use farleaf_page::{Layout, LockWord};
use std::collections::VecDeque;

/// Retries of a WRITE of unknown outcome.
const WRITE_RETRIES: u32 = 16;

/// A WRITE in flight, with the image to write again if it fails.
struct FreshWrite<F: Fabric, L> {
    at: GlobalAddr,
    image: PageImage<L>,
    operation: F::Op<Buffer>,
}

/// A newly allocated node, and the READ of its word 0.
pub struct FreshNode<F: Fabric> {
    at: GlobalAddr,
    word: F::Op<Buffer>,
}

impl<F: Fabric> FreshNode<F> {
    /// The node's address.
    pub fn at(&self) -> GlobalAddr {
        self.at
    }

    /// Waits until the READ of its word 0 has ended.
    pub async fn settle(self) {
        drop(self.word.await);
    }
}

/// Writes new pages.
pub struct FreshWriter<'a, F: Fabric, L: Layout> {
    pages: &'a PageClient<F, L>,
    in_flight: VecDeque<FreshWrite<F, L>>,
    nodes: Vec<GlobalAddr>,
    /// Whether a WRITE that is no longer in flight may still land.
    in_doubt: bool,
}

impl<'a, F: Fabric, L: Layout> FreshWriter<'a, F, L> {
    /// Creates a writer that has allocated no node yet.
    pub fn new(pages: &'a PageClient<F, L>) -> Self {
        Self { pages, in_flight: VecDeque::new(), nodes: Vec::new(), in_doubt: false }
    }

    /// Allocates the next node (N1).
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if its server has none.
    pub async fn take(&mut self) -> Result<FreshNode<F>, RemoteError> {
        let servers = self.pages.fabric().memory_servers() as usize;
        self.take_on(ServerId::new((self.nodes.len() % servers) as u16)).await
    }

    /// Allocates a node on `server`.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if it has none.
    pub async fn take_on(&mut self, server: ServerId) -> Result<FreshNode<F>, RemoteError> {
        let at = self.pages.take_node(server).await?;
        self.fresh(at)
    }

    fn fresh(&mut self, at: GlobalAddr) -> Result<FreshNode<F>, RemoteError> {
        self.nodes.push(at);
        Ok(FreshNode { at, word: self.pages.post_fresh_word(at)? })
    }

    /// Allocates a node on `server`, or on another one if that server is full.
    ///
    /// # Errors
    /// [`RemoteError::OutOfMemory`] if no server has room.
    pub async fn take_near(&mut self, server: ServerId) -> Result<FreshNode<F>, RemoteError> {
        let at = match self.pages.take_node(server).await {
            Err(RemoteError::OutOfMemory { .. }) => self.pages.take_node_anywhere().await?,
            taken => taken?,
        };
        self.fresh(at)
    }

    /// Frees a node that is not needed after all.
    pub async fn release(&mut self, node: FreshNode<F>) {
        let at = node.at;
        node.settle().await;
        self.nodes.retain(|taken| *taken != at);
        self.pages.give_back_unseen(at);
    }

    /// Posts the WRITE of a complete page. Waits for older WRITEs while too many are in flight.
    ///
    /// # Errors
    /// [`RemoteError`] if an older page could not be written.
    pub async fn write(
        &mut self,
        node: FreshNode<F>,
        image: PageImage<L>,
    ) -> Result<(), RemoteError> {
        let FreshNode { at, word } = node;
        let most = (self.pages.fabric().depth() / 3).max(1);
        while self.in_flight.len() >= most {
            self.finish_oldest().await?;
        }
        let found = match word.await {
            Ok(buffer) => LockWord::from_bits(buffer.get(0)),
            Err(_) => self.pages.fresh_word(at).await?,
        };
        let operation = self.pages.post_fresh_page(at, found, &image).await?;
        self.in_flight.push_back(FreshWrite { at, image, operation });
        Ok(())
    }

    async fn finish_oldest(&mut self) -> Result<(), RemoteError> {
        let Some(FreshWrite { at, image, operation }) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let mut outcome = operation.await;
        for _ in 0..WRITE_RETRIES {
            if outcome.is_ok() {
                return Ok(());
            }
            self.pages.fabric().counters().count_retry();
            self.settle(at.server()).await?;
            outcome = self.pages.post_page(at, &image).await?.await;
        }
        if outcome.is_err() {
            self.settle(at.server()).await?;
        }
        outcome?;
        Ok(())
    }

    /// Ensures that a failed WRITE can no longer land, neither over a retry nor after its node is
    /// reused (N3).
    async fn settle(&mut self, server: ServerId) -> Result<(), RemoteError> {
        let settled = self.pages.fabric().reset(server).await;
        self.in_doubt |= settled.is_err();
        Ok(settled?)
    }

    /// Waits until all pages are written (N2).
    ///
    /// # Errors
    /// [`RemoteError`] if one could not be written.
    pub async fn finish(&mut self) -> Result<(), RemoteError> {
        while !self.in_flight.is_empty() {
            self.finish_oldest().await?;
        }
        Ok(())
    }

    /// Frees all nodes (N3), which no other client could reach. If a server's WRITEs cannot be
    /// settled, the nodes are lost.
    pub async fn abort(mut self) {
        let mut settled = !self.in_doubt;
        for FreshWrite { at, operation, .. } in std::mem::take(&mut self.in_flight) {
            if operation.await.is_err() {
                settled &= self.pages.fabric().reset(at.server()).await.is_ok();
            }
        }
        if settled {
            self.nodes.into_iter().for_each(|node| self.pages.give_back_unseen(node));
        }
    }
}
