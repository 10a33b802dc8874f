//! What a taker of keys needs of its program (`farleaf_index::partition::TakeoverHost`).
//!
//! Calls to the catalog block, and so does ending the life of a dead compute server, which takes
//! endpoints of that server. One thread does both, and ends when the last handle is gone.
//!
//! *Invariant*: only keys of a server whose right to answer is as long as this server's are taken
//! over. Another one, or one without takeovers, might answer for longer (over.T2).
//!
//! *Thread safety*: any number of threads.

use super::design::ClusterDesign;
use super::index;
use super::map_store::CatalogMap;
use super::reach::MemoryCluster;
use crate::catalog::Catalog;
use crate::error::ProgramError;
use crate::layouts::ClusterLayout;
use crate::records::{self, CatalogKeys, ComputeRecord};
use farleaf_fabric::listener::start_thread;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_index::IndexError;
use farleaf_index::partition::{DeadServer, TakeoverHost};
use farleaf_page::OwnedKey;
use futures_util::future::LocalBoxFuture;
use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;

/// What the thread works with.
struct HostContext<L> {
    catalog: Arc<dyn Catalog>,
    compute_prefix: String,
    cluster: Arc<MemoryCluster>,
    store: CatalogMap<L>,
    right_ms: u32,
    /// Servers whose keys cannot be taken over, until they are seen with the same right.
    others: BTreeSet<u16>,
}

type HostCall<L> = Box<dyn FnOnce(&mut HostContext<L>) + Send>;
type EndLife<L> = Arc<
    dyn Fn(&HostContext<L>, &DeadServer<OwnedKey<L>>) -> Result<(), ProgramError> + Send + Sync,
>;

/// The thread that works for takeovers, for one generation of the index.
pub(super) struct TakeoverThread<L: ClusterLayout> {
    calls: Mutex<Sender<HostCall<L>>>,
    end_life: EndLife<L>,
}

impl<L: ClusterLayout> TakeoverThread<L> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's error if it cannot be started.
    pub(super) fn start<D: ClusterDesign<L>>(
        catalog: Arc<dyn Catalog>,
        keys: &CatalogKeys,
        cluster: Arc<MemoryCluster>,
        store: CatalogMap<L>,
        (right_ms, options): (u32, D::ServerOptions),
    ) -> Result<Self, ProgramError> {
        let (compute_prefix, others) = (keys.compute_prefix(), BTreeSet::new());
        let mut context = HostContext { catalog, compute_prefix, cluster, store, right_ms, others };
        let (calls, waiting) = channel::<HostCall<L>>();
        let run = move || waiting.into_iter().for_each(|call| call(&mut context));
        start_thread("takeovers".to_owned(), run).map_err(super::because)?;
        let end_life: EndLife<L> = Arc::new(move |context, dead| {
            let HostContext { cluster, store, .. } = context;
            index::end_dead_incarnation::<L, D, _>(&**cluster, &options, store, dead)
        });
        Ok(Self { calls: Mutex::new(calls), end_life })
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut HostContext<L>) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let call: HostCall<L> = Box::new(move |context| {
            let _ = sender.send(call(context));
        });
        lock(&self.calls).send(call).ok()?;
        receiver.await.ok()
    }
}

impl<L: ClusterLayout> HostContext<L> {
    fn registered(&mut self) -> Option<BTreeSet<u16>> {
        let found: Vec<ComputeRecord> = records::list(&*self.catalog, &self.compute_prefix).ok()?;
        for record in &found {
            if record.right_ms == Some(self.right_ms) {
                self.others.remove(&record.number);
            } else if self.others.insert(record.number) {
                tracing::warn!(
                    "compute server {} has another --takeover or --right-ms: its keys are not \
                     taken over",
                    record.number
                );
            }
        }
        let found = found.iter().map(|record| record.number);
        Some(found.chain(self.others.iter().copied()).collect())
    }
}

impl<L: ClusterLayout> TakeoverHost<OwnedKey<L>> for TakeoverThread<L> {
    fn registered(&self) -> LocalBoxFuture<'_, Option<BTreeSet<u16>>> {
        Box::pin(async { self.call(HostContext::registered).await? })
    }

    fn end_life(
        &self,
        dead: DeadServer<OwnedKey<L>>,
    ) -> LocalBoxFuture<'_, Result<(), IndexError>> {
        let end_life = Arc::clone(&self.end_life);
        Box::pin(async move {
            tracing::warn!("compute server {} is dead: taking over its keys", dead.number);
            match self.call(move |context| end_life(context, &dead)).await {
                Some(Ok(())) => Ok(()),
                Some(Err(error)) => {
                    tracing::warn!("cannot take over the keys yet: {error}");
                    Err(IndexError::Contended { retries: 0 })
                }
                None => Err(IndexError::Contended { retries: 0 }),
            }
        })
    }

    fn reaches_memory(&self) -> LocalBoxFuture<'_, bool> {
        Box::pin(async {
            let reaches = |context: &mut HostContext<L>| {
                index::reaches_memory::<L, _>(&*context.cluster).is_ok()
            };
            self.call(reaches).await.unwrap_or(false)
        })
    }
}
