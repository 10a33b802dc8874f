//! A template for an index design of your own: it implements [`Design`], [`RangeIndex`] and
//! [`IndexAdmin`].
//!
//! The design here is the simplest one over a network: all records are in the tree of memory server
//! 0, and every operation is one RPC to it.

use farleaf_fabric::{Fabric, ServerId};
use farleaf_index::{
    AscendingCheck, Design, EditAnswer, IndexAdmin, IndexError, KeyedRecords, LeafEdit, RangeIndex,
    ScanRequest, check_fill,
};
use farleaf_page::{EditAction, Layout, OwnedKey, OwnedValue};
use farleaf_pool::remote::RpcClient;
use farleaf_pool::wire::{
    AskEdit, RecordRoom, Refusal, Reply, SCAN_REPLY_RECORDS, TreeRequest, TreeShare,
};
use std::ops::Bound;

/// The design: a type without values that names its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneServer;

/// The server with all records.
const SERVER: ServerId = ServerId::new(0);
const BATCH_RECORDS: usize = 2048;
const BAD_REPLY: IndexError = IndexError::BadReply { server: SERVER };

impl<L: Layout> Design<L> for OneServer {
    const NAME: &'static str = "one-server";
    type Options = ();
    /// What the handles of a process share: nothing, as no node is cached.
    type Compute = ();
    type Index<F: Fabric> = OneServerIndex<F, L>;

    async fn create<F: Fabric>(fabric: &F, (): &()) -> Result<(), IndexError> {
        let share = TreeShare::Range { low: L::min_key(), high: None };
        let client = RpcClient::<F, L>::new(fabric.clone());
        Ok(client.expect_done(SERVER, &TreeRequest::Create { share }).await?)
    }

    fn compute((): &()) -> Result<(), IndexError> {
        Ok(())
    }

    async fn open_handle<F: Fabric>(fabric: F, (): &()) -> Result<Self::Index<F>, IndexError> {
        let client = RpcClient::<F, L>::new(fabric);
        match client.ask_idempotent(SERVER, &TreeRequest::Describe).await? {
            Reply::Description(Some(_)) => Ok(OneServerIndex { client }),
            _ => Err(IndexError::Refused { server: SERVER, refusal: Refusal::NoTree }),
        }
    }
}

/// One client's handle. It belongs to the thread of its endpoint.
#[derive(Debug)]
pub(crate) struct OneServerIndex<F: Fabric, L: Layout> {
    client: RpcClient<F, L>,
}

impl<F: Fabric, L: Layout> OneServerIndex<F, L> {
    async fn load(
        &self,
        load: u64,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
    ) -> Result<u64, IndexError> {
        let (mut order, mut batch) = (AscendingCheck::<L>::default(), Vec::new());
        let mut room = RecordRoom::for_records(BATCH_RECORDS);
        for record in source {
            let (key, value) = record?;
            order.take(&key, &value)?;
            if !room.takes::<L>(L::key(&key), L::value(&value)) {
                let records = std::mem::take(&mut batch);
                self.client.expect_done(SERVER, &TreeRequest::LoadAppend { load, records }).await?;
                room = RecordRoom::for_records(BATCH_RECORDS);
                room.takes::<L>(L::key(&key), L::value(&value));
            }
            batch.push((key, value));
        }
        let last = TreeRequest::LoadAppend { load, records: batch };
        self.client.expect_done(SERVER, &last).await?;
        self.client.end_load(SERVER, load).await?;
        Ok(order.count())
    }
}

/// The five functions from which `insert`, `update` and the like follow.
impl<F: Fabric, L: Layout> RangeIndex for OneServerIndex<F, L> {
    type Key = L::Key;
    type Value = L::Value;

    async fn get(&self, key: &L::Key) -> Result<Option<OwnedValue<L>>, IndexError> {
        L::check_key(key)?;
        let lookup = AskEdit(LeafEdit { key, action: EditAction::Get });
        match self.client.ask_idempotent(SERVER, &lookup).await? {
            Reply::Value(value) => Ok(value),
            _ => Err(BAD_REPLY),
        }
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, IndexError> {
        edit.check::<L>()?;
        // `ask` does not repeat a change of unknown outcome; it ends as indeterminate.
        let reply = self.client.ask(SERVER, &AskEdit(edit)).await?;
        reply.answer_to(edit).ok_or(BAD_REPLY)
    }

    async fn scan(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
    ) -> Result<KeyedRecords<OwnedKey<L>, OwnedValue<L>>, IndexError> {
        scan.check::<L>()?;
        let (mut found, mut rest) = (KeyedRecords::new(), scan.clone());
        while found.len() < scan.limit {
            let limit = (scan.limit - found.len()).min(SCAN_REPLY_RECORDS) as u32;
            let ScanRequest { lower, upper, reverse, .. } = rest.clone();
            let part = TreeRequest::Scan { lower, upper, reverse, limit };
            match self.client.ask_idempotent(SERVER, &part).await? {
                Reply::Records { records, more } => {
                    found.extend(records);
                    let Some((last, _)) = found.last().filter(|_| more) else { break };
                    let behind = Bound::Excluded(last.clone());
                    match reverse {
                        true => rest.upper = behind,
                        false => rest.lower = behind,
                    }
                }
                _ => return Err(BAD_REPLY),
            }
        }
        Ok(found)
    }

    async fn bulk_load_from(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        let (load, fill_permille) = (self.client.fabric().unique(), (fill * 1000.0) as u16);
        self.client.begin_load(SERVER, load, fill_permille).await?;
        let outcome = self.load(load, source).await;
        if outcome.is_err() {
            // Best effort: the first error counts.
            let _ = self.client.abort_load(SERVER, load).await;
        }
        outcome
    }

    async fn flush(&self) -> Result<(), IndexError> {
        Ok(())
    }
}

impl<F: Fabric, L: Layout> IndexAdmin for OneServerIndex<F, L> {
    async fn collect(&self) -> Result<(), IndexError> {
        Ok(self.client.expect_done(SERVER, &TreeRequest::Collect).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::OneServer;
    use farleaf_fabric::local::LocalConfig;
    use farleaf_index::AnyDesign;
    use farleaf_page::Fixed8;
    use farleaf_pool::server::MemoryServerConfig;
    use farleaf_sim::{RunOutcome, Scenario, run_design};
    use farleaf_suites::conformance::{self, SuiteSetup};

    /// Tiny pages make high trees from few keys.
    #[test]
    fn the_design_passes_the_suite() {
        let server = MemoryServerConfig { pool_bytes: 64 << 20, ..MemoryServerConfig::default() };
        let provider = &LocalConfig::default();
        let setup = SuiteSetup { provider, options: (), memory_servers: 1, server };
        conformance::run::<Fixed8<16>, OneServer, _>(&setup);
    }

    #[test]
    fn the_design_holds_in_the_simulator() {
        for name in ["coarse-churn", "coarse-faults", "coarse-client-dies"] {
            let scenario = Scenario::registered(name).unwrap();
            for seed in 1..20 {
                let report = run_design(&scenario, seed, &AnyDesign::of::<OneServer>(()));
                assert_eq!(report.outcome, RunOutcome::Ok, "{name}, seed {seed}");
                assert!(report.answered > 0, "{name}, seed {seed}");
            }
        }
    }
}
