//! A client's connection to compute servers in other processes: one request and one reply per
//! attempt.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::{ClientIndex, ClientOptions, ServerDirectory};
use crate::partition::{MapRoute, PartitionMap, RangeOwners, RetryPolicy, UnservedReason};
use crate::{EditAnswer, IndexError, KeyedRecords, LeafEdit, ScanRequest};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, FabricError, Message, ServerId, Uncertainty};
use farleaf_page::rules;
use farleaf_page::{EditAction, Layout, LengthError, OwnedKey, OwnedValue};
use farleaf_pool::wire::{
    ClientRequest, ClientResponse, ErrorCode, SCAN_REPLY_RECORDS, check_sent,
};
use std::ops::Bound;
use std::rc::Rc;

/// First and longest wait before a retry, in nanoseconds.
pub(super) const MIN_WAIT_NS: u64 = 100_000;
const MAX_WAIT_NS: u64 = 50_000_000;
/// Maximum number of operations in flight for one call.
const OPERATIONS_PER_BATCH: usize = 64;

/// The compute servers of a cluster. The servers of the endpoint are the compute servers, by
/// number.
pub struct RemoteOwners<F: Fabric, L: Layout> {
    pub(super) fabric: F,
    pub(super) options: ClientOptions,
    pub(super) directory: Rc<dyn ServerDirectory<OwnedKey<L>>>,
}

fn not_served(compute_server: u16, code: ErrorCode) -> IndexError {
    let server = ServerId::new(compute_server);
    match code {
        ErrorCode::Indeterminate => {
            let why = Uncertainty::NotKnownThere;
            IndexError::Indeterminate(FabricError::Indeterminate { server, why })
        }
        ErrorCode::Contended => IndexError::Contended { retries: 0 },
        ErrorCode::KeyTooLong { bytes, most } => {
            LengthError::Key { bytes: bytes as usize, most: most as usize }.into()
        }
        ErrorCode::ValueTooLong { bytes, most } => {
            LengthError::Value { bytes: bytes as usize, most: most as usize }.into()
        }
        code => IndexError::NotServed { compute_server, code },
    }
}

/// Whether the server may have a new address.
fn is_lost(error: &FabricError) -> bool {
    match error {
        FabricError::NotSent { .. } | FabricError::NotLetIn { .. } => true,
        FabricError::Indeterminate { why, .. } => *why != Uncertainty::NotKnownThere,
        _ => false,
    }
}

/// Whether a request had no effect and may succeed later.
pub(super) fn has_not_happened(error: &IndexError) -> bool {
    match error {
        IndexError::NotServed { code, .. } => {
            matches!(code, ErrorCode::Unavailable | ErrorCode::Absent)
        }
        IndexError::NotSent { .. } | IndexError::Fabric(FabricError::QueueFull { .. }) => true,
        _ => false,
    }
}

/// The error for a reply of an unexpected kind.
pub(super) fn bad_reply(compute_server: u16) -> IndexError {
    IndexError::BadReply { server: ServerId::new(compute_server) }
}

impl<F: Fabric, L: Layout> RemoteOwners<F, L> {
    /// Sends one request to one compute server and returns its reply.
    pub(super) async fn ask(
        &self,
        compute_server: u16,
        ask: &ClientRequest<L>,
    ) -> Result<ClientResponse<L>, IndexError> {
        self.send(compute_server, ask.encode()).await
    }

    async fn send(
        &self,
        compute_server: u16,
        message: Message,
    ) -> Result<ClientResponse<L>, IndexError> {
        if self.directory.is_absent(compute_server) {
            self.directory.look_again();
            return Err(not_served(compute_server, ErrorCode::Absent));
        }
        let server = ServerId::new(compute_server);
        let reply = match self.fabric.call(server, message).await {
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
            Some(told) => {
                if let ClientResponse::Changed { incarnation, .. }
                | ClientResponse::Upserted { incarnation } = &told
                {
                    self.directory.acknowledged().note(compute_server, *incarnation); // N6
                }
                Ok(told)
            }
            None => Err(IndexError::BadReply { server }),
        }
    }

    /// Sends one request to an owner. `is_harmless` permits another attempt after an unknown
    /// outcome (client.N2).
    pub(super) async fn ask_owner(
        &self,
        owner: u16,
        ask: Message,
        is_harmless: bool,
    ) -> Result<ClientResponse<L>, UnservedReason> {
        Err(match self.send(owner, ask).await {
            Ok(ClientResponse::NotOwner { owner, epoch }) => {
                UnservedReason::Elsewhere(IndexError::NotOwner { owner, epoch })
            }
            Ok(told) => return Ok(told),
            Err(error @ IndexError::Indeterminate(_)) if is_harmless => {
                UnservedReason::Again(error)
            }
            Err(error) if has_not_happened(&error) => UnservedReason::Again(error),
            Err(error) => UnservedReason::Failed(error),
        })
    }

    /// Adopts a compute server's map if it is newer; returns whether it is.
    pub(super) async fn learn_map(
        &self,
        compute_server: u16,
        route: &MapRoute<OwnedKey<L>>,
    ) -> Result<bool, IndexError> {
        match self.ask(compute_server, &ClientRequest::Map).await? {
            ClientResponse::Map { epoch, boundaries, owners } => {
                let newer = epoch > route.epoch();
                if newer && !self.fabric.breaks(rules::REDIRECTS_FOLLOWED) {
                    let map = PartitionMap::from_owners::<L>(epoch, boundaries, owners)?;
                    route.adopt(Arc::new(map));
                }
                Ok(newer)
            }
            _ => Err(bad_reply(compute_server)),
        }
    }
}

impl<F: Fabric, L: Layout> RangeOwners for RemoteOwners<F, L> {
    type Fabric = F;
    type Layout = L;
    /// Unused: the owner checks the key against its own map.
    type Expected = ();

    fn fabric(&self) -> &F {
        &self.fabric
    }

    fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy {
            deadline_ns: self.options.deadline_ns,
            attempt_ns: self.options.request_ns,
            shortest_wait_ns: MIN_WAIT_NS,
            longest_wait_ns: MAX_WAIT_NS,
            varies: true,
        }
    }

    fn begins_ns(&self) -> Option<u64> {
        Some(self.fabric.now_ns())
    }

    /// A compute server keeps longer values in blocks beside the leaves.
    #[inline]
    fn check(key: &L::Key, value: &L::Value) -> Result<(), LengthError> {
        check_sent::<L>(key, value)
    }

    async fn get(&self, owner: u16, key: &L::Key) -> Result<Option<OwnedValue<L>>, UnservedReason> {
        Ok(self.execute(owner, LeafEdit { key, action: EditAction::Get }).await?.found)
    }

    async fn execute(
        &self,
        owner: u16,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<EditAnswer<OwnedValue<L>>, UnservedReason> {
        let ask = ClientRequest::<L>::encode_edit(edit);
        match self.ask_owner(owner, ask, !edit.changes()).await {
            Ok(ClientResponse::Edited(answer) | ClientResponse::Changed { answer, .. }) => {
                Ok(answer)
            }
            // The change may have been made although the reply is invalid.
            Ok(_) | Err(UnservedReason::Failed(IndexError::BadReply { .. })) if edit.changes() => {
                let (server, why) = (ServerId::new(owner), Uncertainty::NotKnownThere);
                let error = FabricError::Indeterminate { server, why };
                Err(UnservedReason::Failed(IndexError::Indeterminate(error)))
            }
            Ok(_) => Err(UnservedReason::Failed(bad_reply(owner))),
            Err(unserved) => Err(unserved),
        }
    }

    fn expected(&self, _map: &PartitionMap<OwnedKey<L>>, _owner: u16) {}

    async fn scan(
        &self,
        owner: u16,
        _expected: &(),
        scan: &ScanRequest<OwnedKey<L>>,
        out: &mut KeyedRecords<OwnedKey<L>, OwnedValue<L>>,
    ) -> Result<Option<Bound<OwnedKey<L>>>, UnservedReason> {
        let ask = ClientRequest::<L>::Scan {
            lower: scan.lower.clone(),
            upper: scan.upper.clone(),
            reverse: scan.reverse,
            limit: (scan.limit - out.len()).min(SCAN_REPLY_RECORDS) as u32,
        };
        let from = if scan.reverse { &scan.upper } else { &scan.lower };
        match self.ask_owner(owner, ask.encode(), true).await? {
            // Reject a part that is too long, or that makes no progress: the scan would loop.
            ClientResponse::Records { records, next }
                if records.len() <= scan.limit - out.len()
                    && (!records.is_empty() || next.as_ref() != Some(from)) =>
            {
                out.extend(records);
                Ok(next)
            }
            _ => Err(UnservedReason::Failed(bad_reply(owner))),
        }
    }

    /// Fetches the newer map from the compute server that redirected the client (client.N3), if
    /// that server has it already.
    async fn learn(&self, asked: u16, route: &MapRoute<OwnedKey<L>>) -> bool {
        matches!(self.learn_map(asked, route).await, Ok(true))
    }

    fn learn_known(&self, route: &MapRoute<OwnedKey<L>>) {
        if let Some(map) = self.directory.newer_map(route.epoch()) {
            route.adopt(Arc::new(map));
        }
    }

    fn operations_together(&self) -> usize {
        OPERATIONS_PER_BATCH.min(self.fabric.depth())
    }

    fn load(
        client: &ClientIndex<F, L>,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, IndexError>> {
        client.load_all(source, fill)
    }

    fn flush(client: &ClientIndex<F, L>) -> impl Future<Output = Result<(), IndexError>> {
        client.flush_all()
    }
}
