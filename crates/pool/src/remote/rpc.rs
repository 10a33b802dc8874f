//! RPCs to memory servers: encoding, bounded retries, and interpretation of outcomes.
//!
//! *Invariant*: every retry is bounded and counted.

use super::RemoteError;
use crate::wire::{Ask, PoolRequest, Refusal, Reply, Usage, encode};
use farleaf_fabric::{Fabric, FabricError, GlobalAddr, Message, ServerId};
use farleaf_page::{Layout, Superblock};
use std::fmt::Debug;
use std::marker::PhantomData;

/// Retries of a read of unknown outcome.
const READ_RETRIES: u32 = 4;
/// Retries of a request that was refused as contended, or that found the endpoint full.
const BUSY_RETRIES: u32 = 16;
/// The first wait before such a retry, in nanoseconds. It doubles with each retry, and half of it
/// is random.
const BACKOFF_NS: u64 = 2_000;

/// Requests and replies over one endpoint. *Thread safety*: the same as for the endpoint.
#[derive(Clone, Debug)]
pub struct RpcClient<F, L> {
    fabric: F,
    layout: PhantomData<L>,
}

impl<F: Fabric, L: Layout> RpcClient<F, L> {
    /// Creates a client over this endpoint.
    pub fn new(fabric: F) -> Self {
        Self { fabric, layout: PhantomData }
    }

    /// The endpoint.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Posts a request; [`RpcClient::finish`] waits for the reply.
    #[inline]
    pub fn post(&self, server: ServerId, request: &impl Ask<L>) -> F::Op<Message> {
        self.fabric.call(server, encode(request))
    }

    /// Sends one request and returns its reply. Retries, within bounds, if the server is busy,
    /// because it has done nothing in that case. Does not retry if the outcome is unknown: only the
    /// caller knows whether that is harmless.
    ///
    /// # Errors
    /// [`RemoteError`]; every variant but `Indeterminate` means that the server has changed
    /// nothing.
    #[inline]
    pub async fn ask(
        &self,
        server: ServerId,
        request: &impl Ask<L>,
    ) -> Result<Reply<L>, RemoteError> {
        let first = self.post(server, request);
        self.finish(server, first, request).await
    }

    /// Waits for the reply to a posted request, and retries if the server was busy.
    ///
    /// # Errors
    /// As [`RpcClient::ask`].
    #[inline]
    pub async fn finish(
        &self,
        server: ServerId,
        posted: F::Op<Message>,
        request: &impl Ask<L>,
    ) -> Result<Reply<L>, RemoteError> {
        match self.outcome(server, posted.await) {
            Err(error) if is_busy(&error) => self.ask_again(server, request).await,
            outcome => outcome,
        }
    }

    #[cold]
    async fn ask_again(
        &self,
        server: ServerId,
        request: &impl Ask<L>,
    ) -> Result<Reply<L>, RemoteError> {
        for retry in 0..BUSY_RETRIES {
            let wait = BACKOFF_NS << retry.min(10);
            self.fabric.sleep(wait / 2 + self.fabric.random() % (wait / 2 + 1)).await;
            self.fabric.counters().count_retry();
            let reply = self.post(server, request).await;
            match self.outcome(server, reply) {
                Err(error) if is_busy(&error) => {}
                outcome => return outcome,
            }
        }
        Err(RemoteError::Contended { retries: BUSY_RETRIES })
    }

    #[inline]
    fn outcome(
        &self,
        server: ServerId,
        reply: Result<Message, FabricError>,
    ) -> Result<Reply<L>, RemoteError> {
        match Reply::decode(&reply?) {
            Some(Reply::Refused(Refusal::OutOfMemory)) => Err(RemoteError::OutOfMemory { server }),
            Some(Reply::Refused(refusal)) => Err(RemoteError::Refused { server, refusal }),
            Some(reply) => Ok(reply),
            None => Err(RemoteError::BadReply { server }),
        }
    }

    /// Sends an idempotent request, and repeats it if its outcome is unknown.
    ///
    /// # Errors
    /// As [`RpcClient::ask`].
    #[inline]
    pub async fn ask_idempotent(
        &self,
        server: ServerId,
        request: &impl Ask<L>,
    ) -> Result<Reply<L>, RemoteError> {
        match self.ask(server, request).await {
            Err(RemoteError::Indeterminate(_)) => self.ask_harmless_again(server, request).await,
            outcome => outcome,
        }
    }

    #[cold]
    async fn ask_harmless_again(
        &self,
        server: ServerId,
        request: &impl Ask<L>,
    ) -> Result<Reply<L>, RemoteError> {
        let mut outcome = Err(RemoteError::BadReply { server });
        for _ in 0..READ_RETRIES {
            self.fabric.counters().count_retry();
            outcome = self.ask(server, request).await;
            if !matches!(outcome, Err(RemoteError::Indeterminate(_))) {
                break;
            }
        }
        outcome
    }

    /// Sends a request that is answered by [`Reply::Done`].
    ///
    /// # Errors
    /// As [`RpcClient::ask`].
    pub async fn expect_done(
        &self,
        server: ServerId,
        request: &impl Ask<L>,
    ) -> Result<(), RemoteError> {
        match self.ask(server, request).await? {
            Reply::Done => Ok(()),
            _ => Err(RemoteError::BadReply { server }),
        }
    }

    /// [`RpcClient::expect_done`] for a request that is idempotent.
    ///
    /// # Errors
    /// As [`RpcClient::ask`].
    pub async fn expect_done_idempotent(
        &self,
        server: ServerId,
        request: &impl Ask<L>,
    ) -> Result<(), RemoteError> {
        match self.ask_idempotent(server, request).await? {
            Reply::Done => Ok(()),
            _ => Err(RemoteError::BadReply { server }),
        }
    }

    /// All memory servers.
    pub fn servers(&self) -> impl Iterator<Item = ServerId> + use<F, L> {
        (0..self.fabric.memory_servers()).map(ServerId::new)
    }

    /// How much of a server's memory is allocated, and how large its tree is.
    ///
    /// # Errors
    /// As [`RpcClient::ask`].
    pub async fn usage(&self, server: ServerId) -> Result<Usage, RemoteError> {
        match self.ask_idempotent(server, &PoolRequest::Usage).await? {
            Reply::Usage(usage) => Ok(usage),
            _ => Err(RemoteError::BadReply { server }),
        }
    }

    /// [`RpcClient::usage`] of every server.
    ///
    /// # Errors
    /// As [`RpcClient::ask`].
    pub async fn usages(&self) -> Result<Vec<Usage>, RemoteError> {
        let mut usages = Vec::new();
        for number in 0..self.fabric.memory_servers() {
            usages.push(self.usage(ServerId::new(number)).await?);
        }
        Ok(usages)
    }

    /// Reads the superblock of a server's pool, whose pages must have layout `L`; one READ.
    ///
    /// # Errors
    /// [`RemoteError::BadPool`] if they have a different layout.
    pub async fn superblock(&self, server: ServerId) -> Result<Superblock, RemoteError> {
        let at = GlobalAddr::new(server, 0);
        let mut outcome = self.fabric.read(at, self.fabric.buffer(Superblock::WORDS * 8)?).await;
        for _ in 0..READ_RETRIES {
            if !matches!(outcome, Err(FabricError::Indeterminate { .. })) {
                break;
            }
            self.fabric.counters().count_retry();
            outcome = self.fabric.read(at, self.fabric.buffer(Superblock::WORDS * 8)?).await;
        }
        let buffer = outcome?;
        Superblock::read::<L>(buffer.words())
            .map_err(|error| RemoteError::BadPool { server, error })
    }
}

/// Whether the operation certainly has not happened and may succeed on retry.
fn is_busy(error: &RemoteError) -> bool {
    matches!(
        error,
        RemoteError::Refused { refusal: Refusal::Contended, .. }
            | RemoteError::Fabric(FabricError::QueueFull { .. })
    )
}
