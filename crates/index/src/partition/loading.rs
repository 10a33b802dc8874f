//! Serves the requests of bulk loads. Those of one load arrive one after the other, and one task
//! serves them.
//!
//! *Invariants*
//! - loading.BL1. A compute server serves one load at a time. A request with another number, or of
//!   a load that has ended, is refused: it may come late. A repeated end gets the outcome of the
//!   first.
//! - loading.BL2. A load is abandoned if its next request does not arrive in time. The time counts
//!   from the last request of the load itself; requests of other loads do not prolong it.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::bulk_load::{BulkLoad, LoadEnded};
use super::queue::{PendingRequest, ServedClients, ThreadQueue};
use super::worker::{Worker, error_code};
use crate::{IndexError, Partitioned, ValueForm};
use farleaf_fabric::Fabric;
use farleaf_page::{Layout, OwnedRecord};
use farleaf_pool::wire::{ClientRequest, ClientResponse, ErrorCode};
use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Timeout for the next step of a bulk load.
const LOAD_STEP_NS: u64 = 30_000_000_000;
/// Ended loads that a compute server remembers.
const ENDED_LOADS: usize = 64;

/// The loads that have ended in this life, and the answers to their ends.
struct EndedLoads<L: Layout>(VecDeque<(u64, ClientResponse<L>)>);

impl<L: Layout> EndedLoads<L> {
    fn add(&mut self, load: u64, told: ClientResponse<L>) {
        if self.0.len() >= ENDED_LOADS {
            self.0.pop_front();
        }
        self.0.push_back((load, told));
    }

    fn of(&self, load: u64) -> Option<&ClientResponse<L>> {
        self.0.iter().find(|(ended, _)| *ended == load).map(|(_, told)| told)
    }
}

/// The answer to a request of a load that is not in progress.
fn no_load<L: Layout>() -> ClientResponse<L> {
    ClientResponse::Error(ErrorCode::NoLoad)
}

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> Worker<D, F, L, V> {
    /// Serves the bulk loads of `queue`, one at a time, until it is closed. Passes each failure to
    /// `failed`.
    pub async fn serve_loads<C: ServedClients<L>>(
        &self,
        queue: &ThreadQueue<L, C::Reply>,
        clients: &C,
        failed: impl Fn(&IndexError),
    ) {
        let mut ended = EndedLoads(VecDeque::new());
        while let Some(PendingRequest { ask, reply }) = queue.next().await {
            let told = match ask {
                ClientRequest::LoadBegin { load, fill_permille } if ended.of(load).is_none() => {
                    match self.begin_load(load, f64::from(fill_permille) / 1000.0).await {
                        Ok(begun) => {
                            clients.answer(reply, ClientResponse::Done);
                            let told = self.serve_load(begun, queue, clients, &failed).await;
                            ended.add(load, told);
                            continue;
                        }
                        // Keys are moving, or another load is ending: again later.
                        Err(IndexError::Contended { .. }) => {
                            ClientResponse::Error(ErrorCode::Unavailable)
                        }
                        Err(error) => ClientResponse::Error(error_code(&error)),
                    }
                }
                ClientRequest::LoadEnd { load, .. } => {
                    ended.of(load).cloned().unwrap_or_else(no_load)
                }
                ClientRequest::LoadAbort { load } => {
                    if ended.of(load).is_none() {
                        ended.add(load, no_load());
                    }
                    ClientResponse::Done
                }
                _ => no_load(),
            };
            clients.answer(reply, told);
        }
    }

    /// Serves one load to its end. Returns the answer to its end.
    async fn serve_load<C: ServedClients<L>>(
        &self,
        mut load: BulkLoad<'_, D, F, L, V>,
        queue: &ThreadQueue<L, C::Reply>,
        clients: &C,
        failed: &impl Fn(&IndexError),
    ) -> ClientResponse<L> {
        let number = load.number();
        let is_foreign = |records: &[OwnedRecord<L>]| {
            let is_other = |key| self.server().accept(key).is_err();
            D::LOADS_OWN_KEYS && records.iter().any(|(key, _)| is_other(L::key(key)))
        };
        let mut last_ns = self.fabric().now_ns();
        loop {
            let until_ns = last_ns.saturating_add(LOAD_STEP_NS);
            let Some(PendingRequest { ask, reply }) = self.next_until(queue, until_ns).await else {
                failed(&IndexError::InvalidArgument("the bulk load was abandoned"));
                load.abandon().await;
                return no_load();
            };
            let outcome = match ask {
                ClientRequest::LoadBegin { load, .. } if load == number => Ok(ClientResponse::Done),
                // The load goes on without them.
                ClientRequest::LoadAppend { load, records }
                    if load == number && is_foreign(&records) =>
                {
                    Ok(ClientResponse::Error(ErrorCode::NotItsKeys))
                }
                ClientRequest::LoadAppend { load: of, records } if of == number => {
                    load.append(records).await.map(|()| ClientResponse::Done)
                }
                ClientRequest::LoadReady { load: of } if of == number => match load.ready().await {
                    Ok((version, epoch)) => Ok(ClientResponse::LoadReady { version, epoch }),
                    Err(IndexError::Contended { .. }) => {
                        Ok(ClientResponse::Error(ErrorCode::Unavailable))
                    }
                    Err(error) => Err(error),
                },
                ClientRequest::LoadEnd { load: of, version } if of == number => {
                    match load.end(version).await {
                        LoadEnded::Loaded(boundaries) => {
                            let told = ClientResponse::Loaded { boundaries };
                            clients.answer(reply, told.clone());
                            return told;
                        }
                        LoadEnded::Again(_) => Ok(ClientResponse::Error(ErrorCode::Unavailable)),
                        LoadEnded::Failed(error) => Err(error),
                        LoadEnded::Unknown(error) => {
                            failed(&error);
                            let told = ClientResponse::Error(ErrorCode::Indeterminate);
                            clients.answer(reply, told.clone());
                            return told;
                        }
                    }
                }
                ClientRequest::LoadAbort { load: of } if of == number => {
                    clients.answer(reply, ClientResponse::Done);
                    load.abandon().await;
                    return no_load();
                }
                // It does not belong to this load, so it is no sign of life of its client (BL2).
                ask => {
                    let is_begin = matches!(ask, ClientRequest::LoadBegin { .. });
                    let told = ClientResponse::Error(ErrorCode::Loading);
                    clients.answer(reply, if is_begin { told } else { no_load() });
                    continue;
                }
            };
            match outcome {
                Ok(told) => clients.answer(reply, told),
                Err(error) => {
                    failed(&error);
                    let told = ClientResponse::Error(error_code(&error));
                    clients.answer(reply, told.clone());
                    load.abandon().await;
                    return told;
                }
            }
            last_ns = self.fabric().now_ns();
        }
    }

    /// Waits for the next request, up to this time.
    async fn next_until<R>(
        &self,
        queue: &ThreadQueue<L, R>,
        until_ns: u64,
    ) -> Option<PendingRequest<L, R>> {
        let left_ns = until_ns.saturating_sub(self.fabric().now_ns());
        let mut next = pin!(queue.next());
        let mut late = pin!(self.fabric().sleep(left_ns));
        poll_fn(|context| match next.as_mut().poll(context) {
            Poll::Ready(asked) => Poll::Ready(asked),
            Poll::Pending => late.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}
