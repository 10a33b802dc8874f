//! Access to the catalog's map record for the threads of a compute server.
//!
//! Calls to the catalog block, so one thread makes them for all threads of the compute server, in
//! order. It ends when the last [`CatalogMap`] is gone.
//!
//! *Thread safety*: a [`CatalogMap`] may go to any thread; each thread has its own.

use super::because;
use crate::catalog::{Catalog, CatalogError, EntryVersion, MAX_VALUE_BYTES};
use crate::error::ProgramError;
use crate::layouts::ClusterLayout;
use crate::records::{self, CatalogKeys, MapRecord};
use farleaf_fabric::listener::start_thread;
use farleaf_index::partition::{MapState, MapStore, PutOutcome};
use farleaf_page::OwnedKey;
use futures_util::future::LocalBoxFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;

type CatalogCall = Box<dyn FnOnce(&dyn Catalog, &str) + Send>;

/// Access to the map record of one generation of the index.
pub(super) struct CatalogMap<L> {
    calls: Sender<CatalogCall>,
    generation: u64,
    layout: PhantomData<fn() -> L>,
}

// Not derived: the derive would require `L: Clone`.
impl<L> Clone for CatalogMap<L> {
    fn clone(&self) -> Self {
        let Self { calls, generation, layout } = self;
        Self { calls: calls.clone(), generation: *generation, layout: *layout }
    }
}

impl<L: ClusterLayout> CatalogMap<L> {
    /// Starts the thread that calls the catalog.
    ///
    /// # Errors
    /// The operating system's error if the thread cannot be started.
    pub(super) fn start(
        catalog: Arc<dyn Catalog>,
        keys: &CatalogKeys,
        generation: u64,
    ) -> Result<Self, ProgramError> {
        let (calls, waiting) = channel::<CatalogCall>();
        let key = keys.map();
        let run = move || waiting.into_iter().for_each(|call| call(&*catalog, &key));
        start_thread("map".to_owned(), run).map_err(because)?;
        Ok(Self { calls, generation, layout: PhantomData })
    }

    /// Makes a call on the catalog's thread; `None` if that has ended.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Catalog, &str) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let call = Box::new(move |catalog: &dyn Catalog, key: &str| {
            let _ = sender.send(call(catalog, key));
        });
        self.calls.send(call).ok()?;
        receiver.await.ok()
    }
}

impl<L: ClusterLayout> MapStore<OwnedKey<L>> for CatalogMap<L> {
    fn takes(&self, state: &MapState<OwnedKey<L>>) -> bool {
        let record = MapRecord::new::<L>(state, Some(self.generation));
        serde_json::to_vec(&record).is_ok_and(|json| json.len() <= MAX_VALUE_BYTES)
    }

    fn read(&self) -> LocalBoxFuture<'_, Option<(MapState<OwnedKey<L>>, u64)>> {
        Box::pin(async {
            let read = self.call(records::get::<MapRecord>);
            let (record, version) = read.await?.ok()??;
            // A compute server moves only keys of its own generation.
            let is_current = record.generation.is_none_or(|other| other == self.generation);
            if !is_current {
                return None;
            }
            Some((record.state::<L>().ok()?, version.0))
        })
    }

    fn put_if<'a>(
        &'a self,
        version: u64,
        state: &'a MapState<OwnedKey<L>>,
    ) -> LocalBoxFuture<'a, PutOutcome> {
        let record = MapRecord::new::<L>(state, Some(self.generation));
        let put = self.call(move |catalog, key| {
            records::put_if(catalog, key, Some(EntryVersion(version)), &record, None)
        });
        Box::pin(async {
            match put.await {
                Some(Ok(true)) => PutOutcome::Done,
                Some(Ok(false)) => PutOutcome::Changed,
                // Nothing was sent.
                Some(Err(CatalogError::Unreachable { .. })) => PutOutcome::Changed,
                // If the catalog cannot write its file, it refuses, but it may have written it.
                Some(Err(_)) | None => PutOutcome::Unknown,
            }
        })
    }
}
