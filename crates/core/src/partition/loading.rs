//! Bulk loads at a compute server: the requests of one load arrive one after the other, and one
//! task serves them.
//!
//! *Invariant*: loading.BL1. A compute server serves one load at a time. A request that belongs to
//! no load is refused, and a load without a next request in time is given up.
//!
//! *Thread safety*: belongs to its endpoint's thread.

use super::worker::{Worker, error_code};
use crate::index::{IndexError, Partitioned};
use crate::page::Layout;
use crate::wire::{ClientRequest, ClientResponse, ErrorCode};
use farleaf_fabric::Fabric;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Timeout for the next step of a bulk load.
const LOAD_STEP_NS: u64 = 30_000_000_000;

/// Where the requests of bulk loads arrive.
pub trait LoadInbox<L: Layout> {
    /// Answers one request.
    type Reply: FnOnce(ClientResponse<L>);

    /// Waits for the next request; `None` once the compute server ends.
    fn next(&self) -> impl Future<Output = Option<(ClientRequest<L>, Self::Reply)>>;
}

impl<D: Partitioned, F: Fabric, L: Layout> Worker<D, F, L> {
    /// Serves bulk loads, one at a time, until `inbox` ends. Passes each failure to `failed`.
    pub async fn serve_loads<I: LoadInbox<L>>(&self, inbox: &I, failed: impl Fn(&IndexError)) {
        while let Some((ask, reply)) = inbox.next().await {
            match ask {
                ClientRequest::LoadBegin { fill_permille } => {
                    reply(ClientResponse::Done);
                    self.serve_load(f64::from(fill_permille) / 1000.0, inbox, &failed).await;
                }
                ClientRequest::LoadAbort => reply(ClientResponse::Done),
                _ => reply(ClientResponse::Error(ErrorCode::Loading)),
            }
        }
    }

    async fn serve_load<I: LoadInbox<L>>(
        &self,
        fill: f64,
        inbox: &I,
        failed: &impl Fn(&IndexError),
    ) {
        let given_up = IndexError::InvalidArgument("the bulk load was abandoned");
        // Answers the last request once its work is done.
        let pending: RefCell<Option<I::Reply>> = RefCell::new(None);
        let next = async || {
            if let Some(reply) = pending.take() {
                reply(ClientResponse::Done);
            }
            loop {
                let Some((ask, reply)) = self.next_within(inbox, LOAD_STEP_NS).await else {
                    return Err(given_up.clone());
                };
                match ask {
                    ClientRequest::LoadAppend { records } => {
                        pending.replace(Some(reply));
                        return Ok(Some(records));
                    }
                    ClientRequest::LoadEnd => {
                        pending.replace(Some(reply));
                        return Ok(None);
                    }
                    ClientRequest::LoadAbort => {
                        reply(ClientResponse::Done);
                        return Err(given_up.clone());
                    }
                    _ => reply(ClientResponse::Error(ErrorCode::Loading)),
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
            reply(told);
        }
    }

    /// Waits for the next request, up to `ns` nanoseconds.
    async fn next_within<I: LoadInbox<L>>(
        &self,
        inbox: &I,
        ns: u64,
    ) -> Option<(ClientRequest<L>, I::Reply)> {
        let mut next = pin!(inbox.next());
        let mut late = pin!(self.fabric().sleep(ns));
        poll_fn(|context| match next.as_mut().poll(context) {
            Poll::Ready(asked) => Poll::Ready(asked),
            Poll::Pending => late.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}
