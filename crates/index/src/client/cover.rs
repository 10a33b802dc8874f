//! Flushes and collections of a client: requests that every owner of keys has to serve.
//!
//! The client's map may be old, and it may change meanwhile. Each owner answers with the epoch of
//! its map (worker.WF1). As long as one of them has a newer map, the client fetches it and asks the
//! owners that it has not asked yet. It need not ask again those that it has asked: keys that have
//! left them since then were written back before.
//!
//! *Invariants*: client.N5 and client.N6, in the head of `client/mod.rs`.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::{ClientIndex, bad_reply};
use crate::IndexError;
use crate::partition::{OperationAttempts, UnservedReason};
use crate::together::all;
use farleaf_fabric::Fabric;
use farleaf_page::Layout;
use farleaf_page::rules;
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode};
use std::collections::BTreeSet;

/// An owner's answer.
struct OwnerAnswer {
    incarnation: u64,
    age_ns: u64,
    epoch: u64,
}

/// What came of asking one compute server.
enum AskOutcome {
    Covered(OwnerAnswer),
    /// It owns no keys any more, so it has nothing left that is not written back.
    OwnsNothing,
    /// It owns no keys and cannot be asked, although it has acknowledged changes.
    IsGone,
}

impl<F: Fabric, L: Layout> ClientIndex<F, L> {
    /// Writes back everything that was acknowledged before the call.
    ///
    /// # Errors
    /// [`IndexError::ChangesLost`] if a compute server has begun another incarnation since it
    /// acknowledged changes of this program that were not flushed, or since this call began. This
    /// is reported once. After any other error, some compute servers may not have written back.
    pub(super) async fn flush_all(&self) -> Result<(), IndexError> {
        let acknowledged = self.owners().directory.acknowledged();
        let (before, began_ns) = (acknowledged.before(), self.fabric().now_ns());
        let believes_all = self.fabric().breaks(rules::INCARNATIONS_COMPARED);
        let is_lost = |server, asked: &AskOutcome| match asked {
            _ if believes_all => false,
            AskOutcome::OwnsNothing => false,
            AskOutcome::IsGone => true,
            AskOutcome::Covered(covered) => {
                // Others' changes may have been lost since the flush began, unless this incarnation
                // has existed since then.
                let was_there = before.knows(server, covered.incarnation)
                    || covered.age_ns >= self.fabric().now_ns().saturating_sub(began_ns);
                !was_there || !before.are_all_of(server, covered.incarnation)
            }
        };
        let mut lost = Vec::new();
        let has_changes = before.unflushed().collect();
        let report = |server, asked: &AskOutcome| match is_lost(server, asked) {
            true => lost.push(server),
            false => acknowledged.settle(&before, server),
        };
        let covered = self.cover(&ClientRequest::Flush, &has_changes, report).await;
        // Nothing waits from here on, so a loss that is settled is reported.
        lost.iter().for_each(|server| acknowledged.settle(&before, *server));
        match lost.first() {
            // Before any other error, because no other flush reports it.
            Some(server) => Err(IndexError::ChangesLost { compute_server: *server }),
            None => covered,
        }
    }

    /// Collects deleted records everywhere.
    pub(super) async fn collect_all(&self) -> Result<(), IndexError> {
        self.cover(&ClientRequest::Collect, &BTreeSet::new(), |_, _| {}).await
    }

    /// Has `ask` served by all owners of the newest map (N5), and by the compute servers `also`.
    /// Reports what came of each.
    async fn cover(
        &self,
        ask: &ClientRequest<L>,
        also: &BTreeSet<u16>,
        mut report: impl FnMut(u16, &AskOutcome),
    ) -> Result<(), IndexError> {
        let attempts = self.attempts();
        let mut done = BTreeSet::new();
        loop {
            let map = self.map();
            let due: BTreeSet<u16> = map.owners().iter().chain(also).copied().collect();
            let due: Vec<u16> = due.difference(&done).copied().collect();
            if due.is_empty() {
                return Ok(());
            }
            let asked = due.iter().map(|server| self.ask_to_cover(*server, ask, also, &attempts));
            let (mut newest, mut failed) = ((map.epoch(), None), None);
            for (server, asked) in due.iter().zip(all(asked).await) {
                match asked {
                    Ok(asked) => {
                        if let AskOutcome::Covered(covered) = &asked {
                            newest = newest.max((covered.epoch, Some(*server)));
                        }
                        report(*server, &asked);
                        done.insert(*server);
                    }
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            let (epoch, server) = newest;
            if !self.fabric().breaks(rules::MAPS_COVERED) {
                self.learn_epoch(epoch, server, &attempts).await?;
            }
        }
    }

    /// Fetches a map of at least this epoch, which `server` has, if the client has none.
    async fn learn_epoch(
        &self,
        epoch: u64,
        server: Option<u16>,
        attempts: &OperationAttempts,
    ) -> Result<(), IndexError> {
        let mut attempts = attempts.clone();
        while let Some(server) = server.filter(|_| self.map().epoch() < epoch) {
            let learnt = self.learn_map(server).await;
            if self.map().epoch() < epoch && !self.wait(&mut attempts).await {
                return learnt.and(Err(IndexError::Contended { retries: 0 }));
            }
        }
        Ok(())
    }

    /// Asks one compute server until it answers, owns nothing, or no time is left.
    async fn ask_to_cover(
        &self,
        server: u16,
        ask: &ClientRequest<L>,
        also: &BTreeSet<u16>,
        attempts: &OperationAttempts,
    ) -> Result<AskOutcome, IndexError> {
        let mut attempts = attempts.clone();
        loop {
            let error = match self.owners().ask_owner(server, ask.encode(), true).await {
                Ok(ClientResponse::Covered { incarnation, age_ns, epoch }) => {
                    return Ok(AskOutcome::Covered(OwnerAnswer { incarnation, age_ns, epoch }));
                }
                Ok(_) => return Err(bad_reply(server)),
                Err(UnservedReason::Failed(error)) => return Err(error),
                Err(UnservedReason::Elsewhere(error) | UnservedReason::Again(error)) => error,
            };
            let has_time = self.wait(&mut attempts).await;
            let owns_keys = self.map().owners().contains(&server);
            let is_absent = matches!(error, IndexError::NotServed { code: ErrorCode::Absent, .. });
            let is_away = is_absent || (!has_time && matches!(error, IndexError::NotSent { .. }));
            match (owns_keys, also.contains(&server)) {
                (false, false) => return Ok(AskOutcome::OwnsNothing),
                // It was drained and has ended, or it has crashed before it was drained.
                (false, true) if is_away => return Ok(AskOutcome::IsGone),
                _ if !has_time => return Err(error),
                _ => {}
            }
        }
    }
}
