//! A client's bulk load: one compute server builds the tree, and all servers halt while it replaces
//! the empty one. If the client dies meanwhile, the servers resume by themselves after a timeout.

use super::{ClientIndex, RECORDS_TOGETHER, bad_reply};
use crate::index::{Ascending, IndexError, RangeIndex, Scan, check_fill};
use crate::page::{Layout, OwnedKey, OwnedValue};
use crate::together::all;
use crate::wire::{ClientRequest, ClientResponse, ErrorCode, RecordRoom, Refusal, check_sent};
use farleaf_fabric::{Fabric, ServerId};

impl<F: Fabric, L: Layout> ClientIndex<F, L> {
    pub(super) async fn load_all(
        &self,
        records: impl Iterator<Item = (OwnedKey<L>, OwnedValue<L>)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        let fill_permille = (fill * 1000.0).round() as u16;
        // Any compute server in service can build the tree.
        let builder = self.map().owners().first().copied().unwrap_or_default();
        self.ask_one(builder, &ClientRequest::LoadBegin { fill_permille }, false).await?;
        let outcome = self.send_all(records, builder).await;
        if outcome.is_err() {
            let _ = self.done(builder, &ClientRequest::LoadAbort).await;
        }
        outcome
    }

    async fn send_all(
        &self,
        records: impl Iterator<Item = (OwnedKey<L>, OwnedValue<L>)>,
        builder: u16,
    ) -> Result<u64, IndexError> {
        let mut order = Ascending::<L>::default();
        let mut together = Vec::with_capacity(RECORDS_TOGETHER);
        let mut room = RecordRoom::for_records(RECORDS_TOGETHER);
        for (key, value) in records {
            check_sent::<L>(L::key(&key), L::value(&value))?;
            order.ascends(&key)?;
            if !room.takes::<L>(L::key(&key), L::value(&value)) {
                let records = std::mem::take(&mut together);
                self.done(builder, &ClientRequest::LoadAppend { records }).await?;
                room = RecordRoom::for_records(RECORDS_TOGETHER);
                room.takes::<L>(L::key(&key), L::value(&value));
            }
            together.push((key, value));
        }
        if !together.is_empty() {
            self.done(builder, &ClientRequest::LoadAppend { records: together }).await?;
        }
        if !self.scan(&Scan::range(..).limit(1)).await?.is_empty() {
            let (server, refusal) = (ServerId::new(builder), Refusal::NotEmpty);
            return Err(IndexError::Refused { server, refusal });
        }
        let outcome = match self.tell_all(&ClientRequest::Halt).await {
            Ok(()) => self.loaded(builder).await,
            Err(error) => Err(error),
        };
        self.resume_all().await;
        // The load is complete; moving the boundaries only improves performance.
        let _ = self.move_boundaries(&outcome?).await;
        Ok(order.count())
    }

    /// Resumes every compute server that can be reached; the others resume by themselves. A failure
    /// here does not affect the load, so it must not become the load's outcome.
    async fn resume_all(&self) {
        let resumed = self.servers_that_matter();
        let resumed = resumed.map(|number| self.ask_one(number, &ClientRequest::Resume, true));
        all(resumed).await;
    }

    async fn done(&self, compute_server: u16, ask: &ClientRequest<L>) -> Result<(), IndexError> {
        match self.owners().ask(compute_server, ask).await? {
            ClientResponse::Done => Ok(()),
            _ => Err(bad_reply(compute_server)),
        }
    }

    /// Makes the builder replace the tree. Returns the boundaries that suit the loaded records.
    async fn loaded(&self, builder: u16) -> Result<Vec<OwnedKey<L>>, IndexError> {
        match self.owners().ask(builder, &ClientRequest::LoadEnd).await {
            Ok(ClientResponse::Loaded { boundaries }) => Ok(boundaries),
            Ok(_) => Err(bad_reply(builder)),
            Err(IndexError::NotServed { compute_server, code: ErrorCode::NotEmpty }) => {
                let (server, refusal) = (ServerId::new(compute_server), Refusal::NotEmpty);
                Err(IndexError::Refused { server, refusal })
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request to every compute server that may have a copy of the tree.
    async fn tell_all(&self, ask: &ClientRequest<L>) -> Result<(), IndexError> {
        let told = self.servers_that_matter().map(|number| self.done(number, ask));
        all(told).await.into_iter().collect()
    }

    /// All compute servers, including those that own nothing. A server that is absent and owns
    /// nothing is left out: it has no copy of the tree.
    fn servers_that_matter(&self) -> impl Iterator<Item = u16> {
        let map = self.map();
        let matters = move |number: &u16| {
            map.owners().contains(number) || !self.owners().directory.is_absent(*number)
        };
        (0..self.fabric().memory_servers()).filter(matters)
    }
}
