//! The index for programs other than compute servers: a client that sends requests to compute
//! servers ([`crate::wire::ClientRequest`]).
//!
//! A client has a partition map, which may be outdated. It sends each operation to the owner of its
//! key. If that names another owner and epoch instead of answering, the client fetches the map and
//! retries there. It also retries operations of unknown outcome if they change nothing; a change of
//! unknown outcome ends as [`IndexError::Indeterminate`]. A compute server that does not answer may
//! have moved: a [`Directory`] has the new address, and the client retries there what was not sent.
//!
//! *Invariants*
//! - client.N1. Every operation ends by its deadline: it is retried only if another request can end
//!   before.
//! - client.N2. A change is sent again only if the compute server said that nothing had happened,
//!   or nothing was sent to it. The exception is [`ClientIndex::upsert_all`], which repeats upserts
//!   of unknown outcome.
//! - client.N3. A redirected client adopts the newer map of the compute server that redirected it.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

mod design;
mod directory;
mod load;
mod moves;
mod scan;

pub use design::Remote;
pub use directory::Directory;
pub use moves::drain_to;

use directory::Fixed;

use crate::index::{Answer, IndexAdmin, IndexError, LeafEdit, RangeIndex, Records, Scan};
use crate::page::{Action, Layout};
use crate::partition::PartitionMap;
use crate::rules;
use crate::together::all;
use crate::wire::{ClientRequest, ClientResponse, ErrorCode};
use farleaf_fabric::{Fabric, FabricError, ServerId, Uncertainty, Work};
use std::cell::RefCell;
use std::rc::Rc;

/// Options of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// The deadline of an operation, in nanoseconds.
    pub deadline_ns: u64,
    /// The timeout of one request, in nanoseconds, as set when the endpoint was opened. It must be
    /// less than the deadline for retries to be possible.
    pub request_ns: u64,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { deadline_ns: 5_000_000_000, request_ns: 2_000_000_000 }
    }
}

/// The first and the longest wait before a retry, in nanoseconds.
const SHORTEST_WAIT_NS: u64 = 100_000;
const LONGEST_WAIT_NS: u64 = 50_000_000;
/// The most lookups of one multi-get in flight.
const LOOKUPS_TOGETHER: usize = 64;

/// A client's handle. The servers of its endpoint are the compute servers, by number.
#[derive(Debug)]
pub struct ClientIndex<F: Fabric, L: Layout> {
    fabric: F,
    options: ClientOptions,
    route: RefCell<Rc<PartitionMap<L::Key>>>,
    directory: Rc<dyn Directory<L::Key>>,
}

/// The time left for an operation, and its next wait.
#[derive(Debug)]
struct Patience {
    until_ns: u64,
    wait_ns: u64,
}

fn not_served(compute_server: u16, code: ErrorCode) -> IndexError {
    let server = ServerId::new(compute_server);
    match code {
        ErrorCode::Indeterminate => {
            let why = Uncertainty::NotKnownThere;
            IndexError::Indeterminate(FabricError::Indeterminate { server, why })
        }
        ErrorCode::Contended => IndexError::Contended { retries: 0 },
        code => IndexError::NotServed { compute_server, code },
    }
}

/// Whether the server may have moved.
fn is_lost(error: &FabricError) -> bool {
    match error {
        FabricError::NotSent { .. } | FabricError::NotLetIn { .. } => true,
        FabricError::Indeterminate { why, .. } => *why != Uncertainty::NotKnownThere,
        _ => false,
    }
}

/// Whether a request had no effect, for a reason that may pass.
fn has_not_happened(error: &IndexError) -> bool {
    match error {
        IndexError::NotServed { code, .. } => {
            matches!(code, ErrorCode::Unavailable | ErrorCode::Absent)
        }
        IndexError::NotSent { .. } | IndexError::Fabric(FabricError::QueueFull { .. }) => true,
        _ => false,
    }
}

impl<F: Fabric, L: Layout> ClientIndex<F, L> {
    /// A client over this endpoint; fetches the map.
    ///
    /// # Errors
    /// [`IndexError`] if no compute server sends the map before the deadline.
    pub async fn open(fabric: F, options: ClientOptions) -> Result<Self, IndexError> {
        let nobody = PartitionMap::new::<L>(0, Vec::new())?;
        let index = Self::with_map(fabric, options, nobody, Rc::new(Fixed));
        let mut patience = index.patience();
        loop {
            let mut outcome = Err(IndexError::InvalidArgument("there are no compute servers"));
            for number in 0..index.fabric.memory_servers() {
                outcome = index.learn_map(number).await;
                if outcome.is_ok() {
                    return Ok(index);
                }
            }
            if !index.wait(&mut patience).await {
                return outcome.map(|_| index);
            }
        }
    }

    /// A client over this endpoint with a given map, and a directory of its servers.
    pub fn with_map(
        fabric: F,
        options: ClientOptions,
        map: PartitionMap<L::Key>,
        directory: Rc<dyn Directory<L::Key>>,
    ) -> Self {
        Self { fabric, options, route: RefCell::new(Rc::new(map)), directory }
    }

    /// The client's current map.
    pub fn map(&self) -> Rc<PartitionMap<L::Key>> {
        Rc::clone(&self.route.borrow())
    }

    /// The endpoint.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    fn patience(&self) -> Patience {
        let until_ns = self.fabric.now_ns().saturating_add(self.options.deadline_ns);
        Patience { until_ns, wait_ns: SHORTEST_WAIT_NS }
    }

    /// Waits before a retry; `false` if there is no time for one (client.N1).
    async fn wait(&self, patience: &mut Patience) -> bool {
        let wait_ns = patience.wait_ns / 2 + self.fabric.random() % (patience.wait_ns / 2 + 1);
        let asked_ns = self.fabric.now_ns().saturating_add(wait_ns);
        if asked_ns.saturating_add(self.options.request_ns) > patience.until_ns {
            return false;
        }
        self.fabric.counters().count_retry();
        self.fabric.sleep(wait_ns).await;
        patience.wait_ns = (patience.wait_ns * 2).min(LONGEST_WAIT_NS);
        true
    }

    /// Sends one request to one compute server and returns its reply.
    async fn ask(
        &self,
        compute_server: u16,
        ask: &ClientRequest<L>,
    ) -> Result<ClientResponse<L>, IndexError> {
        if self.directory.is_absent(compute_server) {
            self.directory.look_again();
            return Err(not_served(compute_server, ErrorCode::Absent));
        }
        let server = ServerId::new(compute_server);
        let reply = match self.fabric.call(server, ask.encode()).await {
            Ok(reply) => reply,
            Err(error) => {
                if is_lost(&error) {
                    self.directory.look_again();
                }
                return Err(match error {
                    FabricError::NotSent { .. } => IndexError::NotSent { compute_server },
                    error => error.into(),
                });
            }
        };
        match ClientResponse::decode(&reply) {
            Some(ClientResponse::Error(code)) => Err(not_served(compute_server, code)),
            Some(told) => Ok(told),
            None => Err(IndexError::BadReply { server }),
        }
    }

    /// Adopts the directory's map if it is newer.
    fn learn_elsewhere(&self) {
        let epoch = self.route.borrow().epoch();
        if let Some(map) = self.directory.newer_map(epoch) {
            *self.route.borrow_mut() = Rc::new(map);
        }
    }

    /// Adopts a map if it is newer.
    fn adopt(&self, map: PartitionMap<L::Key>) {
        if map.epoch() > self.route.borrow().epoch() {
            *self.route.borrow_mut() = Rc::new(map);
        }
    }

    /// Adopts a compute server's map if it is newer; returns whether it is.
    async fn learn_map(&self, compute_server: u16) -> Result<bool, IndexError> {
        match self.ask(compute_server, &ClientRequest::Map).await? {
            ClientResponse::Map { epoch, boundaries, owners } => {
                let newer = epoch > self.route.borrow().epoch();
                if newer && !self.fabric.breaks(rules::REDIRECTS_FOLLOWED) {
                    self.adopt(PartitionMap::from_owners::<L>(epoch, boundaries, owners)?);
                }
                Ok(newer)
            }
            _ => Err(IndexError::BadReply { server: ServerId::new(compute_server) }),
        }
    }

    /// Sends a request to the compute server that `owner` selects, and retries until one answers or
    /// no time is left. `is_harmless` permits retries after an unknown outcome.
    async fn ask_owner(
        &self,
        owner: impl Fn(&PartitionMap<L::Key>) -> u16,
        ask: &ClientRequest<L>,
        is_harmless: bool,
    ) -> Result<ClientResponse<L>, IndexError> {
        self.fabric.charge(Work::Client).await;
        let mut patience = None;
        loop {
            let asked = owner(&self.route.borrow());
            let outcome = self.ask(asked, ask).await;
            let error = match outcome {
                Ok(ClientResponse::NotOwner { owner, epoch }) => {
                    IndexError::NotOwner { owner, epoch }
                }
                Ok(told) => return Ok(told),
                Err(error) => error,
            };
            let again = match &error {
                IndexError::NotOwner { .. } => match self.learn_map(asked).await {
                    Ok(true) => continue,
                    _ => true, // that compute server will get a newer map soon
                },
                IndexError::Indeterminate(_) => is_harmless,
                error => has_not_happened(error),
            };
            // The deadline counts from the first failure, so the common case reads no clock.
            let patience = patience.get_or_insert_with(|| self.patience());
            if !again || !self.wait(patience).await {
                return Err(error);
            }
            self.learn_elsewhere();
        }
    }

    fn owner(&self, key: &L::Key) -> u16 {
        self.route.borrow().owner_of(key)
    }

    /// Upserts many keys, not atomically.
    ///
    /// # Errors
    /// [`IndexError`]; some of the keys may be set then.
    pub async fn upsert_all(&self, mut records: Vec<(L::Key, L::Value)>) -> Result<(), IndexError> {
        let mut patience = self.patience();
        while !records.is_empty() {
            // Group them by owner; the owners set theirs concurrently.
            let map = self.map();
            let mut parts: Vec<(u16, ClientRequest<L>)> = Vec::new();
            for (key, value) in records.drain(..) {
                let owner = map.owner_of(&key);
                match parts.iter_mut().find(|(other, _)| *other == owner) {
                    Some((_, ClientRequest::UpsertAll { records })) => records.push((key, value)),
                    _ => parts
                        .push((owner, ClientRequest::UpsertAll { records: vec![(key, value)] })),
                }
            }
            let outcomes = all(parts.iter().map(|(owner, ask)| self.ask(*owner, ask))).await;
            let mut last = None;
            for ((owner, ask), outcome) in parts.into_iter().zip(outcomes) {
                let error = match outcome {
                    Ok(ClientResponse::Done) => continue,
                    Ok(ClientResponse::NotOwner { owner, epoch }) => {
                        IndexError::NotOwner { owner, epoch }
                    }
                    Ok(_) => return Err(IndexError::BadReply { server: ServerId::new(owner) }),
                    // Setting a key twice has the same effect as setting it once.
                    Err(error @ IndexError::Indeterminate(_)) => error,
                    Err(error) if has_not_happened(&error) => error,
                    Err(error) => return Err(error),
                };
                if matches!(error, IndexError::NotOwner { .. }) {
                    let _ = self.learn_map(owner).await;
                }
                if let ClientRequest::UpsertAll { records: mut again } = ask {
                    records.append(&mut again);
                }
                last = Some(error);
            }
            if let Some(error) = last
                && !self.wait(&mut patience).await
            {
                return Err(error);
            }
            self.learn_elsewhere();
        }
        Ok(())
    }
}

impl<F: Fabric, L: Layout> RangeIndex for ClientIndex<F, L> {
    type Key = L::Key;
    type Value = L::Value;

    async fn get(&self, key: &L::Key) -> Result<Option<L::Value>, IndexError> {
        Ok(self.execute(LeafEdit { key, action: Action::Get }).await?.found)
    }

    async fn execute(
        &self,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<Answer<L::Value>, IndexError> {
        let ask = ClientRequest::Edit(edit.cloned());
        match self.ask_owner(|map| map.owner_of(edit.key), &ask, !edit.changes()).await? {
            ClientResponse::Edited(answer) => Ok(answer),
            _ => Err(IndexError::BadReply { server: ServerId::new(self.owner(edit.key)) }),
        }
    }

    async fn scan(&self, scan: &Scan<L::Key>) -> Result<Records<L::Key, L::Value>, IndexError> {
        self.scan_all(scan).await
    }

    fn lookups_together(&self) -> usize {
        LOOKUPS_TOGETHER.min(self.fabric.depth())
    }

    async fn bulk_load(
        &self,
        records: impl Iterator<Item = (L::Key, L::Value)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        self.load_all(records, fill).await
    }

    async fn flush(&self) -> Result<(), IndexError> {
        let owners = self.map().owners().to_vec();
        let flushed =
            owners.iter().map(|owner| self.ask_owner(|_| *owner, &ClientRequest::Flush, true));
        all(flushed).await.into_iter().try_for_each(|outcome| outcome.map(drop))
    }
}

impl<F: Fabric, L: Layout> IndexAdmin for ClientIndex<F, L> {
    async fn collect(&self) -> Result<(), IndexError> {
        let owners = self.map().owners().to_vec();
        for owner in owners {
            self.ask_owner(|_| owner, &ClientRequest::Collect, true).await?;
        }
        Ok(())
    }

    fn compute_server_of(&self, key: &L::Key) -> Option<u16> {
        Some(self.owner(key))
    }
}
