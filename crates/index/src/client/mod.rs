//! The index for programs other than compute servers: a client that sends requests to compute
//! servers ([`farleaf_pool::wire::ClientRequest`]).
//!
//! A client is a [`Router`] over [`RemoteOwners`]: it has a partition map, which may be outdated,
//! and sends each operation to the owner of its key. If the server's reply names another owner and
//! epoch, the client fetches the map and retries there. It also retries operations of unknown
//! outcome if they change nothing; a change of unknown outcome ends as
//! [`IndexError::Indeterminate`]. A compute server that does not answer may have a new address: the
//! client looks it up in a [`ServerDirectory`] and resends there what was not sent.
//!
//! *Invariants*
//! - client.N1. Every operation ends by its deadline: it is retried only if another request can
//!   finish before then.
//! - client.N2. A change is sent again only if the compute server said that nothing had happened,
//!   or nothing was sent to it. The exception is [`ClientIndex::upsert_all`], which repeats upserts
//!   of unknown outcome.
//! - client.N3. A redirected client adopts the newer map of the compute server that redirected it.
//! - client.N5. A flush or a collection has been served by every owner of a map that was not older
//!   than any other when it began.
//! - client.N6. A flush succeeds only if each compute server has flushed in the incarnation that
//!   has acknowledged the unflushed changes of this program, and that existed when the flush began.
//!   An earlier incarnation may have lost what it acknowledged.
//!
//! *Thread safety*: belongs to its endpoint's thread; operations of one handle may overlap.

mod acknowledged;
mod cover;
mod design;
mod directory;
mod load;
mod moves;
mod owners;

pub use acknowledged::Acknowledged;
pub use design::RemoteDesign;
pub use directory::ServerDirectory;
pub use moves::drain_to;
pub use owners::RemoteOwners;

use directory::FixedDirectory;
use owners::{MIN_WAIT_NS, bad_reply};

use crate::partition::{PartitionMap, Router, UnservedReason};
use crate::together::all;
use crate::{IndexAdmin, IndexError};
use farleaf_fabric::Fabric;
use farleaf_fabric::sync::Arc;
use farleaf_page::{Layout, OwnedKey, OwnedValue};
use farleaf_pool::wire::{ClientRequest, ClientResponse, RecordRoom, check_sent};
use std::rc::Rc;

/// Maximum number of small records in one request; more might not fit a message.
const RECORDS_PER_BATCH: usize = 4096;

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

/// A client's handle. The servers of its endpoint are the compute servers, by number.
pub type ClientIndex<F, L> = Router<RemoteOwners<F, L>>;

impl<F: Fabric, L: Layout> ClientIndex<F, L> {
    /// Opens a client over this endpoint, and fetches the map.
    ///
    /// # Errors
    /// [`IndexError`] if no compute server sends the map before the deadline.
    pub async fn open(fabric: F, options: ClientOptions) -> Result<Self, IndexError> {
        let nobody = PartitionMap::new::<L>(0, Vec::new())?;
        let index = Self::with_map(fabric, options, nobody, Rc::new(FixedDirectory::default()));
        let mut attempts = index.attempts();
        loop {
            let mut outcome = Err(IndexError::InvalidArgument("there are no compute servers"));
            for number in 0..index.fabric().memory_servers() {
                outcome = index.learn_map(number).await;
                if outcome.is_ok() {
                    return Ok(index);
                }
            }
            if !index.wait(&mut attempts).await {
                return outcome.map(|_| index);
            }
        }
    }

    /// A client over this endpoint with a given map, and a directory of its servers.
    pub fn with_map(
        fabric: F,
        options: ClientOptions,
        map: PartitionMap<OwnedKey<L>>,
        directory: Rc<dyn ServerDirectory<OwnedKey<L>>>,
    ) -> Self {
        Self::new(RemoteOwners { fabric, options, directory }, Arc::new(map))
    }

    /// Adopts a compute server's map if it is newer; returns whether it is.
    async fn learn_map(&self, compute_server: u16) -> Result<bool, IndexError> {
        self.owners().learn_map(compute_server, self.route()).await
    }

    /// Sends a request to one compute server, and retries until it answers or no time is left.
    /// `is_harmless` permits retries after an unknown outcome.
    async fn ask_one(
        &self,
        compute_server: u16,
        ask: &ClientRequest<L>,
        is_harmless: bool,
    ) -> Result<ClientResponse<L>, IndexError> {
        let owners = self.owners();
        self.at_owner(
            |_| compute_server,
            |asked| owners.ask_owner(asked, ask.encode(), is_harmless),
        )
        .await
    }

    /// Upserts many keys, not atomically. Records with the same key keep their order. A request of
    /// unknown outcome is repeated, and its first copy may still take effect after this returns, so
    /// no other client should change these keys meanwhile.
    ///
    /// # Errors
    /// [`IndexError`]; some of the upserts may have taken effect.
    pub async fn upsert_all(
        &self,
        mut records: Vec<(OwnedKey<L>, OwnedValue<L>)>,
    ) -> Result<(), IndexError> {
        for (key, value) in &records {
            check_sent::<L>(L::key(key), L::value(value))?;
        }
        let mut attempts = self.attempts();
        while !records.is_empty() {
            // Group the records by owner; owners apply their groups concurrently. Records that do
            // not fit the current request wait for the next one, which preserves the order.
            let map = self.map();
            let mut parts: Vec<(u16, RecordRoom, Vec<_>)> = Vec::new();
            let mut rest = Vec::new();
            for (key, value) in records.drain(..) {
                let owner = map.owner_of(L::key(&key));
                let at = match parts.iter().position(|(other, ..)| *other == owner) {
                    Some(at) => at,
                    None => {
                        let room = RecordRoom::for_records(RECORDS_PER_BATCH);
                        parts.push((owner, room, Vec::new()));
                        parts.len() - 1
                    }
                };
                let (_, room, part) = &mut parts[at];
                match room.takes::<L>(L::key(&key), L::value(&value)) {
                    true => part.push((key, value)),
                    false => rest.push((key, value)),
                }
            }
            // Setting a key twice has the same effect as setting it once.
            let asked = parts.into_iter().map(async |(owner, _, records)| {
                let ask = ClientRequest::<L>::UpsertAll { records };
                let outcome = self.owners().ask_owner(owner, ask.encode(), true).await;
                (owner, ask, outcome)
            });
            let mut last = None;
            for (owner, ask, outcome) in all(asked).await {
                let error = match outcome {
                    Ok(ClientResponse::Upserted { .. }) => continue,
                    Ok(_) => return Err(bad_reply(owner)),
                    Err(UnservedReason::Elsewhere(error)) => {
                        let _ = self.learn_map(owner).await;
                        error
                    }
                    Err(UnservedReason::Again(error)) => error,
                    Err(UnservedReason::Failed(error)) => return Err(error),
                };
                if let ClientRequest::UpsertAll { records: mut again } = ask {
                    records.append(&mut again);
                }
                last = Some(error);
            }
            records.append(&mut rest);
            match last {
                Some(error) if !self.wait(&mut attempts).await => return Err(error),
                Some(_) => {}
                None => attempts = self.attempts(),
            }
        }
        Ok(())
    }
}

impl<F: Fabric, L: Layout> IndexAdmin for ClientIndex<F, L> {
    async fn collect(&self) -> Result<(), IndexError> {
        self.collect_all().await
    }

    fn compute_server_of(&self, key: &L::Key) -> Option<u16> {
        Some(self.owner_of(key))
    }
}
