//! Bulk loads at a compute server. The requests of one load arrive one after the other, and one
//! task serves them.
//!
//! *Invariant*: loading.BL1. A compute server serves one load at a time. A request that belongs to
//! no load is refused, and a load is abandoned if its next request does not arrive in time.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::queue::{Asked, Clients, Queue};
use super::worker::{Worker, error_code};
use crate::index::{IndexError, Partitioned, ValueForm};
use crate::page::{Layout, OwnedRecord};
use crate::wire::{ClientRequest, ClientResponse, ErrorCode};
use farleaf_fabric::Fabric;
use std::cell::RefCell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Timeout for the next step of a bulk load.
const LOAD_STEP_NS: u64 = 30_000_000_000;

impl<D: Partitioned, F: Fabric, L: Layout, V: ValueForm<L>> Worker<D, F, L, V> {
    /// Serves the bulk loads of `queue`, one at a time, until it is closed. Passes each failure to
    /// `failed`.
    pub async fn serve_loads<C: Clients<L>>(
        &self,
        queue: &Queue<L, C::Reply>,
        clients: &C,
        failed: impl Fn(&IndexError),
    ) {
        while let Some(Asked { ask, reply }) = queue.next().await {
            match ask {
                ClientRequest::LoadBegin { fill_permille } => {
                    clients.answer(reply, ClientResponse::Done);
                    let fill = f64::from(fill_permille) / 1000.0;
                    self.serve_load(fill, queue, clients, &failed).await;
                }
                ClientRequest::LoadAbort => clients.answer(reply, ClientResponse::Done),
                _ => clients.answer(reply, ClientResponse::Error(ErrorCode::Loading)),
            }
        }
    }

    async fn serve_load<C: Clients<L>>(
        &self,
        fill: f64,
        queue: &Queue<L, C::Reply>,
        clients: &C,
        failed: &impl Fn(&IndexError),
    ) {
        let given_up = IndexError::InvalidArgument("the bulk load was abandoned");
        // Answers the last request once its work is done.
        let pending: RefCell<Option<C::Reply>> = RefCell::new(None);
        let next = async || {
            if let Some(reply) = pending.take() {
                clients.answer(reply, ClientResponse::Done);
            }
            loop {
                let Some(Asked { ask, reply }) = self.next_within(queue, LOAD_STEP_NS).await else {
                    return Err(given_up.clone());
                };
                let is_foreign = |records: &[OwnedRecord<L>]| {
                    let is_other = |key| self.server().accept(key).is_err();
                    D::LOADS_OWN_KEYS && records.iter().any(|(key, _)| is_other(L::key(key)))
                };
                match ask {
                    // The load goes on without them.
                    ClientRequest::LoadAppend { records } if is_foreign(&records) => {
                        clients.answer(reply, ClientResponse::Error(ErrorCode::NotItsKeys));
                    }
                    ClientRequest::LoadAppend { records } => {
                        pending.replace(Some(reply));
                        return Ok(Some(records));
                    }
                    ClientRequest::LoadEnd => {
                        pending.replace(Some(reply));
                        return Ok(None);
                    }
                    ClientRequest::LoadAbort => {
                        clients.answer(reply, ClientResponse::Done);
                        return Err(given_up.clone());
                    }
                    _ => clients.answer(reply, ClientResponse::Error(ErrorCode::Loading)),
                }
            }
        };
        let told = match self.load(fill, next).await {
            Ok(boundaries) => ClientResponse::Loaded { boundaries },
            Err(error) => {
                failed(&error);
                ClientResponse::Error(error_code(&error))
            }
        };
        if let Some(reply) = pending.take() {
            clients.answer(reply, told);
        }
    }

    /// Waits for the next request, up to `ns` nanoseconds.
    async fn next_within<R>(&self, queue: &Queue<L, R>, ns: u64) -> Option<Asked<L, R>> {
        let mut next = pin!(queue.next());
        let mut late = pin!(self.fabric().sleep(ns));
        poll_fn(|context| match next.as_mut().poll(context) {
            Poll::Ready(asked) => Poll::Ready(asked),
            Poll::Pending => late.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}
