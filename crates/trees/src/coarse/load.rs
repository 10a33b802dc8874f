//! Bulk loading: records stream to the servers in batches. Each server builds its tree beside the
//! empty one, and publishes it when all records have arrived.

use super::CoarseIndex;
use farleaf_fabric::{Fabric, ServerId};
use farleaf_index::{AscendingCheck, IndexError, check_fill};
use farleaf_page::{Layout, OwnedKey, OwnedValue};
use farleaf_pool::wire::{RecordRoom, Reply, Request, TreeRequest};

/// Maximum number of small records in one message.
const BATCH_RECORDS: usize = 2048;

/// Records for one server, and the room left in their message.
struct LoadBatch<L: Layout> {
    records: Vec<(OwnedKey<L>, OwnedValue<L>)>,
    room: RecordRoom,
}

impl<L: Layout> Default for LoadBatch<L> {
    fn default() -> Self {
        Self { records: Vec::new(), room: RecordRoom::for_records(BATCH_RECORDS) }
    }
}

impl<F: Fabric, L: Layout> CoarseIndex<F, L> {
    pub(super) async fn load_all(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        let (load, fill_permille) = (self.client.fabric().unique(), (fill * 1000.0).round() as u16);
        let mut begun: Vec<ServerId> = Vec::new();
        let outcome = async {
            for server in self.map.servers() {
                begun.push(server);
                self.client.begin_load(server, load, fill_permille).await?;
            }
            let loaded = self.load_records(load, source).await?;
            let mut are_shown = false;
            for server in self.map.servers() {
                self.client.end_load(server, load).await.map_err(|error| match are_shown {
                    true => error.after_a_change(server),
                    false => error,
                })?;
                are_shown = true;
            }
            Ok(loaded)
        }
        .await;
        if outcome.is_err() {
            for server in begun {
                // Best effort: report the first error.
                let _ = self.client.abort_load(server, load).await;
            }
        }
        outcome
    }

    async fn load_records(
        &self,
        load: u64,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
    ) -> Result<u64, IndexError> {
        let mut batches: Vec<LoadBatch<L>> =
            self.map.servers().map(|_| LoadBatch::default()).collect();
        let mut order = AscendingCheck::<L>::default();
        for record in source {
            let (key, value) = record?;
            order.take(&key, &value)?;
            let server = self.map.server_of::<L>(L::key(&key));
            let batch = &mut batches[server.index()];
            if !batch.room.takes::<L>(L::key(&key), L::value(&value)) {
                self.load_batch(load, server, batch).await?;
                batch.room.takes::<L>(L::key(&key), L::value(&value));
            }
            batch.records.push((key, value));
        }
        for server in self.map.servers() {
            let batch = &mut batches[server.index()];
            if !batch.records.is_empty() {
                self.load_batch(load, server, batch).await?;
            }
        }
        Ok(order.count())
    }

    /// Sends a batch and empties it.
    async fn load_batch(
        &self,
        load: u64,
        server: ServerId,
        batch: &mut LoadBatch<L>,
    ) -> Result<(), IndexError> {
        let records = std::mem::take(&mut batch.records);
        let request = Request::from(TreeRequest::LoadAppend { load, records });
        let reply = self.client.ask(server, &request).await?;
        if let Request::Tree(TreeRequest::LoadAppend { records, .. }) = request {
            *batch = LoadBatch { records, ..LoadBatch::default() };
            batch.records.clear();
        }
        if matches!(reply, Reply::Done) { Ok(()) } else { Err(IndexError::BadReply { server }) }
    }
}
