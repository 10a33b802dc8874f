//! A client's bulk load: one compute server builds the tree, or each of them its own part if they
//! keep their keys, and all servers halt while the empty ones are replaced. If the client dies
//! meanwhile, the servers resume by themselves after a timeout.

use super::{ClientIndex, RECORDS_TOGETHER, bad_reply};
use crate::index::{Ascending, IndexError, RangeIndex, Scan, check_fill};
use crate::page::{Layout, OwnedKey, OwnedRecord, OwnedValue};
use crate::together::all;
use crate::wire::{ClientRequest, ClientResponse, ErrorCode, RecordRoom, Refusal, check_sent};
use farleaf_fabric::{Fabric, FabricError, ServerId, Uncertainty};

/// How often compute servers that have all their records are told to wait for the others.
const KEEP_WAITING_NS: u64 = 5_000_000_000;

/// The compute servers that build a part of a load: one builds all, unless they keep their keys.
struct Builders {
    all: Vec<u16>,
    /// Whether the first one has got records. The others have.
    is_first_used: bool,
    fill_permille: u16,
    /// When those that have all their records were last told to wait.
    waiting_since_ns: u64,
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
        // Any compute server in service can build the tree.
        let builder = self.map().owners().first().copied().unwrap_or_default();
        self.ask_one(builder, &ClientRequest::LoadBegin { fill_permille }, false).await?;
        let mut builders = Builders {
            all: vec![builder],
            is_first_used: false,
            fill_permille,
            waiting_since_ns: self.fabric().now_ns(),
        };
        let outcome = self.send_all(source, &mut builders).await;
        if outcome.is_err() {
            for builder in builders.all {
                let _ = self.done(builder, &ClientRequest::LoadAbort).await;
            }
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
        let append = ClientRequest::LoadAppend { records };
        let now_ns = self.fabric().now_ns();
        if now_ns.saturating_sub(builders.waiting_since_ns) > KEEP_WAITING_NS {
            builders.waiting_since_ns = now_ns;
            let others = &builders.all[..builders.all.len() - 1];
            let nothing = ClientRequest::LoadAppend { records: Vec::new() };
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
                self.ask_one(owner, &ClientRequest::LoadBegin { fill_permille }, false).await?;
                builders.all.push(owner);
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
        let mut order = Ascending::<L>::default();
        let map = self.map();
        let mut owner = None;
        let mut together = Vec::with_capacity(RECORDS_TOGETHER);
        let mut room = RecordRoom::for_records(RECORDS_TOGETHER);
        for record in source {
            let (key, value) = record?;
            check_sent::<L>(L::key(&key), L::value(&value))?;
            order.ascends(&key)?;
            // A request has the records of one owner.
            let is_other = owner
                .replace(map.owner_of(L::key(&key)))
                .is_some_and(|before| owner != Some(before));
            if is_other || !room.takes::<L>(L::key(&key), L::value(&value)) {
                self.send(std::mem::take(&mut together), builders).await?;
                room = RecordRoom::for_records(RECORDS_TOGETHER);
                room.takes::<L>(L::key(&key), L::value(&value));
            }
            together.push((key, value));
        }
        self.send(together, builders).await?;
        if !self.scan(&Scan::range(..).limit(1)).await?.is_empty() {
            let (server, refusal) = (ServerId::new(builders.now()), Refusal::NotEmpty);
            return Err(IndexError::Refused { server, refusal });
        }
        let outcome = match self.tell_all(&ClientRequest::Halt).await {
            Ok(()) => self.all_loaded(builders).await,
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

    /// Makes all builders replace the tree, or their parts of it. Returns the boundaries that suit
    /// the records of the last one.
    async fn all_loaded(&self, builders: &Builders) -> Result<Vec<OwnedKey<L>>, IndexError> {
        let mut boundaries = Vec::new();
        let mut has_records = false;
        for (place, &builder) in builders.all.iter().enumerate() {
            let loaded = async {
                if place > 0 {
                    // Replacing the trees before may have taken most of the time of a halt.
                    self.tell_all(&ClientRequest::Halt).await?;
                }
                self.loaded(builder).await
            };
            boundaries = match loaded.await {
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
