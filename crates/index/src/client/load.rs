//! A client's bulk load: one compute server builds the tree, or each of them its own part if they
//! keep their keys, and all servers halt while the empty ones are replaced
//! (`crate::partition::BulkLoad`). If a compute server begins another life meanwhile, or resumes,
//! all of them halt again. If the client dies, the servers resume by themselves after a timeout.

use super::owners::has_not_happened;
use super::{ClientIndex, RECORDS_PER_BATCH, bad_reply};
use crate::together::all;
use crate::{AscendingCheck, IndexError, RangeIndex, ScanRequest, check_fill};
use farleaf_fabric::{Fabric, FabricError, ServerId, Uncertainty};
use farleaf_page::{Layout, OwnedKey, OwnedRecord, OwnedValue};
use farleaf_pool::wire::{
    ClientRequest, ClientResponse, ErrorCode, NO_LOAD, RecordRoom, Refusal, check_sent,
};

/// How often compute servers that have all their records are told to wait for the others.
const KEEP_WAITING_NS: u64 = 5_000_000_000;

/// The compute servers that build a part of a load: one builds all, unless they keep their keys.
struct Builders {
    /// The number of the load, the same at all of them.
    load: u64,
    all: Vec<u16>,
    /// Whether the first one has got records. The others have.
    is_first_used: bool,
    fill_permille: u16,
    /// When those that have all their records were last told to wait.
    waiting_since_ns: u64,
}

/// What a client knows of the end of a load.
struct LoadEnding {
    /// The version of an end without an answer, to be sent again.
    repeated: Option<u64>,
    /// The error of such an end.
    doubt: Option<IndexError>,
}

/// Whether another attempt to replace the tree may succeed.
fn may_succeed(error: &IndexError) -> bool {
    has_not_happened(error)
        || matches!(error, IndexError::Indeterminate(_) | IndexError::Contended { .. })
}

/// The error of a load that has not been told to replace the tree: it is no part of the index,
/// whatever became of the last request.
fn not_loaded(error: IndexError) -> IndexError {
    match error {
        IndexError::Indeterminate(FabricError::Indeterminate { server, .. }) => {
            IndexError::NotServed { compute_server: server.number(), code: ErrorCode::Unavailable }
        }
        error => error,
    }
}

impl Builders {
    /// The one that gets the next records.
    fn now(&self) -> u16 {
        self.all.last().copied().unwrap_or_default()
    }
}

impl<F: Fabric, L: Layout> ClientIndex<F, L> {
    pub(super) async fn load_all(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        let fill_permille = (fill * 1000.0).round() as u16;
        let load = self.fabric().unique().max(NO_LOAD + 1);
        // Any compute server in service can build the tree.
        let builder = self.map().owners().first().copied().unwrap_or_default();
        let mut builders = Builders {
            load,
            all: vec![builder],
            is_first_used: false,
            fill_permille,
            waiting_since_ns: self.fabric().now_ns(),
        };
        let outcome = async {
            let begin = ClientRequest::LoadBegin { load, fill_permille };
            self.ask_one(builder, &begin, true).await.map_err(not_loaded)?;
            self.send_all(source, &mut builders).await
        }
        .await;
        if outcome.is_err() {
            let aborted = builders.all.iter().map(async |builder| {
                let _ = self.done(*builder, &ClientRequest::LoadAbort { load }).await;
            });
            all(aborted).await;
        }
        outcome
    }

    /// Sends the next records to the compute server that builds the tree. If compute servers keep
    /// their keys, each builds its own part, from the first record of it on.
    async fn send(
        &self,
        records: Vec<OwnedRecord<L>>,
        builders: &mut Builders,
    ) -> Result<(), IndexError> {
        let Some((first, _)) = records.first() else { return Ok(()) };
        let owner = self.map().owner_of(L::key(first));
        let load = builders.load;
        let append = ClientRequest::LoadAppend { load, records };
        let now_ns = self.fabric().now_ns();
        if now_ns.saturating_sub(builders.waiting_since_ns) > KEEP_WAITING_NS {
            builders.waiting_since_ns = now_ns;
            let others = &builders.all[..builders.all.len() - 1];
            let nothing = ClientRequest::LoadAppend { load, records: Vec::new() };
            all(others.iter().map(|other| self.done(*other, &nothing)))
                .await
                .into_iter()
                .collect::<Result<(), _>>()?;
        }
        match self.done(builders.now(), &append).await {
            Err(IndexError::NotServed { code: ErrorCode::NotItsKeys, .. })
                if !builders.all.contains(&owner) =>
            {
                let fill_permille = builders.fill_permille;
                let begin = ClientRequest::LoadBegin { load, fill_permille };
                builders.all.push(owner);
                self.ask_one(owner, &begin, true).await?;
                self.done(owner, &append).await
            }
            outcome => {
                builders.is_first_used |= builders.all.len() == 1 && outcome.is_ok();
                outcome
            }
        }
    }

    async fn send_all(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        builders: &mut Builders,
    ) -> Result<u64, IndexError> {
        let mut order = AscendingCheck::<L>::default();
        let map = self.map();
        let mut owner = None;
        let mut together = Vec::with_capacity(RECORDS_PER_BATCH);
        let mut room = RecordRoom::for_records(RECORDS_PER_BATCH);
        for record in source {
            let (key, value) = record?;
            check_sent::<L>(L::key(&key), L::value(&value))?;
            order.ascends(&key)?;
            // A request has the records of one owner.
            let is_other = owner
                .replace(map.owner_of(L::key(&key)))
                .is_some_and(|before| owner != Some(before));
            if is_other || !room.takes::<L>(L::key(&key), L::value(&value)) {
                self.send(std::mem::take(&mut together), builders).await.map_err(not_loaded)?;
                room = RecordRoom::for_records(RECORDS_PER_BATCH);
                room.takes::<L>(L::key(&key), L::value(&value));
            }
            together.push((key, value));
        }
        self.send(together, builders).await.map_err(not_loaded)?;
        if !self.scan(&ScanRequest::range(..).limit(1)).await?.is_empty() {
            let (server, refusal) = (ServerId::new(builders.now()), Refusal::NotEmpty);
            return Err(IndexError::Refused { server, refusal });
        }
        let outcome = self.all_loaded(builders).await;
        self.resume_all(builders.load).await;
        // The load is complete; moving the boundaries only improves performance.
        let _ = self.move_boundaries(&outcome?).await;
        Ok(order.count())
    }

    /// Resumes every compute server that can be reached; the others resume by themselves. A failure
    /// here does not affect the load, so it must not become the load's outcome.
    async fn resume_all(&self, load: u64) {
        let resume = ClientRequest::Resume { load };
        let resumed = self.servers_that_matter();
        let resumed = resumed.map(|number| self.ask_one(number, &resume, true));
        all(resumed).await;
    }

    async fn done(&self, compute_server: u16, ask: &ClientRequest<L>) -> Result<(), IndexError> {
        match self.owners().ask(compute_server, ask).await? {
            ClientResponse::Done => Ok(()),
            _ => Err(bad_reply(compute_server)),
        }
    }

    /// Makes all builders replace the tree, or their parts of it. Returns the boundaries that suit
    /// the records of the last one.
    async fn all_loaded(&self, builders: &Builders) -> Result<Vec<OwnedKey<L>>, IndexError> {
        let mut boundaries = Vec::new();
        let mut has_records = false;
        // All of them complete their parts before any compute server halts.
        let others = builders.all.iter().skip(1);
        let ready = others.map(|builder| self.ready(builders.load, *builder));
        for ready in all(ready).await {
            ready.or_else(|error| if may_succeed(&error) { Ok(0) } else { Err(error) })?;
        }
        for (place, &builder) in builders.all.iter().enumerate() {
            boundaries = match self.loaded(builders.load, builder).await {
                // Other parts have their records already.
                Err(error) if has_records && !matches!(error, IndexError::Indeterminate(_)) => {
                    let (server, why) = (ServerId::new(builder), Uncertainty::NotKnownThere);
                    return Err(FabricError::Indeterminate { server, why }.into());
                }
                loaded => loaded?,
            };
            has_records |= place > 0 || builders.is_first_used;
        }
        Ok(boundaries)
    }

    /// Makes the builder replace the tree. Returns the boundaries that suit the loaded records. If
    /// a compute server begins another life or resumes meanwhile, tries again.
    async fn loaded(&self, load: u64, builder: u16) -> Result<Vec<OwnedKey<L>>, IndexError> {
        let mut attempts = self.attempts();
        let mut end = LoadEnding { repeated: None, doubt: None };
        loop {
            let error = match self.try_loaded(load, builder, &mut end).await {
                Ok(boundaries) => return Ok(boundaries),
                Err(error) => error,
            };
            // The builder does not know it itself.
            let is_unknown = matches!(
                error,
                IndexError::Indeterminate(FabricError::Indeterminate {
                    why: Uncertainty::NotKnownThere,
                    ..
                })
            );
            if is_unknown || !may_succeed(&error) || !self.wait(&mut attempts).await {
                // A load that the builder has lost may have replaced the tree before.
                let is_lost = !matches!(error, IndexError::Refused { .. });
                let doubt = end.doubt.filter(|_| is_lost);
                return Err(doubt.unwrap_or_else(|| not_loaded(error)));
            }
        }
    }

    async fn try_loaded(
        &self,
        load: u64,
        builder: u16,
        end: &mut LoadEnding,
    ) -> Result<Vec<OwnedKey<L>>, IndexError> {
        let version = match end.repeated.take() {
            Some(version) => version,
            None => {
                let version = self.ready(load, builder).await?;
                self.tell_all(&ClientRequest::Halt { load, version }).await?;
                version
            }
        };
        match self.owners().ask(builder, &ClientRequest::LoadEnd { load, version }).await {
            Ok(ClientResponse::Loaded { boundaries }) => Ok(boundaries),
            Ok(_) => Err(bad_reply(builder)),
            Err(IndexError::NotServed { compute_server, code: ErrorCode::NotEmpty }) => {
                let (server, refusal) = (ServerId::new(compute_server), Refusal::NotEmpty);
                Err(IndexError::Refused { server, refusal })
            }
            Err(error) => {
                if matches!(error, IndexError::Indeterminate(_)) {
                    *end = LoadEnding { repeated: Some(version), doubt: Some(error.clone()) };
                }
                Err(error)
            }
        }
    }

    /// Makes the builder complete its tree. Returns the version of the map record at which the load
    /// may replace the empty one.
    async fn ready(&self, load: u64, builder: u16) -> Result<u64, IndexError> {
        match self.owners().ask(builder, &ClientRequest::LoadReady { load }).await? {
            ClientResponse::LoadReady { version, epoch } => {
                // The owners of that map have to halt.
                if self.map().epoch() != epoch {
                    let _ = self.learn_map(builder).await;
                }
                match self.map().epoch() == epoch {
                    true => Ok(version),
                    false => Err(IndexError::Contended { retries: 0 }),
                }
            }
            _ => Err(bad_reply(builder)),
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
