//! The tasks of a thread of a compute server. Each takes requests from the thread's queue and
//! serves them.
//!
//! Operations on single keys that wait together are served as one group, in any order: their
//! clients have not seen any of the answers yet, so all of them are concurrent. The index takes a
//! group down its tree together ([`PartValues::execute_all`]). Each answer leaves as soon as it is
//! known. A request that waits alone is served by [`Worker::answer`].
//!
//! *Invariant*: answering.AW1. An operation of a group is answered as if it were served alone, but
//! operations that need new value blocks wait for the slowest of their WRITEs.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::queue::{GROUP, PendingRequest, TakenRequests};
use super::{ServedClients, ThreadQueue, Worker};
use crate::{PartValues, Partitioned, ValueForm};
use farleaf_fabric::Fabric;
use farleaf_fabric::executor::yield_now;
use farleaf_page::{EditAction, Layout, LeafEdit, OwnedKey, OwnedValue};
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode};
use smallvec::SmallVec;
use std::cell::Cell;

/// Maximum number of operations that the tasks of a thread execute concurrently. Each may have
/// several verbs posted, and an endpoint accepts only a limited number of verbs.
const OPERATIONS: usize = 64;
/// Number of requests that a task answers before it yields, if none of them has to wait.
const ANSWERS_AT_ONCE: usize = 8;
/// Number of records of a batch that are set before the thread turns to its other requests.
const RECORDS_AT_ONCE: usize = 32;

/// How many operations a request counts as.
fn operations<L: Layout>(ask: &ClientRequest<L>) -> usize {
    match ask {
        ClientRequest::UpsertAll { records } => records.len().clamp(1, RECORDS_AT_ONCE),
        _ => 1,
    }
}

/// Number of records that can be set together: those before the first repeated key.
fn distinct<K: Eq, V>(records: &[(K, V)]) -> usize {
    let most = records.len().min(RECORDS_AT_ONCE);
    let is_again = |at: &usize| records[..*at].iter().any(|(key, _)| *key == records[*at].0);
    (1..most).find(is_again).unwrap_or(most)
}

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> Worker<D, F, L, V> {
    /// Answers the requests of `queue` until it is closed. Any number of tasks may do so.
    pub async fn answer_all<C: ServedClients<L>>(
        &self,
        queue: &ThreadQueue<L, C::Reply>,
        clients: &C,
    ) {
        let under_way = self.under_way();
        let most = || OPERATIONS.saturating_sub(under_way.get()).min(GROUP);
        let (mut taken, mut answered) = (TakenRequests::new(), 0);
        loop {
            queue.take(most, &mut taken).await;
            if taken.is_empty() {
                return;
            }
            let operations: usize = taken.iter().map(|asked| operations(&asked.ask)).sum();
            under_way.set(under_way.get() + operations);
            answered += taken.len();
            self.answer_taken(&mut taken, clients).await;
            under_way.set(under_way.get() - operations);
            if answered >= ANSWERS_AT_ONCE {
                answered = 0;
                yield_now().await;
            }
        }
    }

    #[inline]
    async fn answer_taken<C: ServedClients<L>>(
        &self,
        taken: &mut TakenRequests<L, C::Reply>,
        clients: &C,
    ) {
        if taken.len() > 1 {
            return self.answer_group(taken, clients).await;
        }
        let Some(PendingRequest { ask, reply }) = taken.pop() else { return };
        let told = match clients.begin(&ask, &reply) {
            true => self.answer(ask).await,
            false => ClientResponse::Error(ErrorCode::Unavailable),
        };
        clients.answer(reply, told);
    }

    /// Answers operations on single keys.
    async fn answer_group<C: ServedClients<L>>(
        &self,
        taken: &mut TakenRequests<L, C::Reply>,
        clients: &C,
    ) {
        let no = |reply, code| clients.answer(reply, ClientResponse::Error(code));
        let entered = self.enter().await;
        let may_answer = self.may_answer();
        let can_change = self.server().detector().all_there();
        let mut edits = SmallVec::<[LeafEdit<OwnedKey<L>, OwnedValue<L>>; GROUP]>::new();
        let mut replies = SmallVec::<[Cell<Option<C::Reply>>; GROUP]>::new();
        for PendingRequest { ask, reply } in taken.drain(..) {
            let is_served = clients.begin(&ask, &reply)
                && entered.is_some()
                && may_answer
                && (can_change || !ask.is_change());
            if let Err(too_long) = ask.check(V::check) {
                no(reply, too_long.into());
                continue;
            }
            match ask {
                ClientRequest::Edit(edit) if is_served => match self.refusal(L::key(&edit.key)) {
                    Some(refusal) => clients.answer(reply, refusal),
                    None => {
                        edits.push(edit);
                        replies.push(Cell::new(Some(reply)));
                    }
                },
                _ => no(reply, ErrorCode::Unavailable),
            }
        }
        let edits: SmallVec<[_; GROUP]> = edits.iter().map(LeafEdit::as_ref).collect();
        let done = |place: usize, outcome| {
            let edit: &LeafEdit<&L::Key, &L::Value> = &edits[place];
            let told = self.certain(edit.changes(), self.edited(*edit, outcome));
            if let Some(reply) = replies[place].take() {
                clients.answer(reply, told);
            }
        };
        self.values().execute_all(self.index(), &edits, done).await;
    }

    /// Upserts the records of a request.
    pub(super) async fn upsert_all(
        &self,
        records: &[(OwnedKey<L>, OwnedValue<L>)],
    ) -> ClientResponse<L> {
        if let Some(refusal) = records.iter().find_map(|(key, _)| self.refusal(L::key(key))) {
            return refusal;
        }
        let mut rest = records;
        while !rest.is_empty() {
            let (some, others) = rest.split_at(distinct(rest));
            let upsert = |(key, value)| LeafEdit { key, action: EditAction::Upsert(value) };
            let edits: SmallVec<[_; RECORDS_AT_ONCE]> =
                some.iter().map(|(key, value)| upsert((L::key(key), L::value(value)))).collect();
            let failed = Cell::new(None);
            let done = |place: usize, outcome| {
                let told = self.edited(edits[place], outcome);
                if !matches!(told, ClientResponse::Changed { .. }) {
                    failed.set(Some(told));
                }
            };
            self.values().execute_all(self.index(), &edits, done).await;
            // Some of the records have been set. If keys have moved, the client sets them again at
            // the new owner.
            if let Some(told) = failed.take() {
                return told;
            }
            rest = others;
            if !rest.is_empty() {
                // Even if all nodes are cached.
                yield_now().await;
            }
        }
        self.upserted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_comes_again_waits_for_the_next_group() {
        let records = |keys: &[u64]| keys.iter().map(|key| (*key, 0_u64)).collect::<Vec<_>>();
        assert_eq!(distinct(&records(&[])), 0);
        assert_eq!(distinct(&records(&[5])), 1);
        assert_eq!(distinct(&records(&[5, 4, 5, 4])), 2);
        assert_eq!(distinct(&records(&[5, 5])), 1);
        assert_eq!(distinct(&records(&(0..40).collect::<Vec<_>>())), RECORDS_AT_ONCE);
    }
}
