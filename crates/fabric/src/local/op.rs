//! Posted operations of the local provider.

use crate::resources::EndpointResources;
use crate::sync::{Arc, lock};
use crate::{FabricError, Message, ServerId, Uncertainty};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::threads::ReplySlot;

/// A posted operation of the local provider.
#[derive(Debug)]
#[must_use = "an operation is only known to have happened once it is awaited"]
pub struct LocalOp<T> {
    pub(super) state: LocalOpState<T>,
}

#[derive(Debug)]
pub(super) enum LocalOpState<T> {
    /// Completed when posted.
    Ready(Option<Result<T, FabricError>>),
    /// Executed, but the completion is delayed until `due_ns`, and for at least one poll.
    HeldBack {
        result: Option<Result<T, FabricError>>,
        due_ns: u64,
        armed: bool,
        endpoint: Rc<EndpointResources>,
    },
    /// Being served by a server thread; `finish` turns the reply into the result.
    OnServer {
        slot: Arc<ReplySlot>,
        finish: fn(Message) -> T,
        server: ServerId,
        not_before_ns: u64,
        deadline_ns: u64,
        armed: bool,
        endpoint: Rc<EndpointResources>,
    },
}

impl<T> LocalOp<T> {
    pub(super) fn ready(result: Result<T, FabricError>) -> Self {
        Self { state: LocalOpState::Ready(Some(result)) }
    }
}

impl<T> Unpin for LocalOp<T> {}

impl<T> Future for LocalOp<T> {
    type Output = Result<T, FabricError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            LocalOpState::Ready(result) => Poll::Ready(take(result)),
            LocalOpState::HeldBack { result, due_ns, armed, endpoint } => {
                endpoint.close_batch();
                let due = *due_ns == 0 || endpoint.timers.now_ns() >= *due_ns;
                match (std::mem::replace(armed, true), due) {
                    (true, true) => return Poll::Ready(take(result)),
                    // Even after an executed operation, the thread's other tasks run first.
                    (false, true) => context.waker().wake_by_ref(),
                    (false, false) => endpoint.timers.wake_at(*due_ns, context.waker().clone()),
                    (true, false) => {}
                }
                Poll::Pending
            }
            LocalOpState::OnServer {
                slot,
                finish,
                server,
                not_before_ns,
                deadline_ns,
                armed,
                endpoint,
            } => {
                endpoint.close_batch();
                let now = endpoint.timers.now_ns();
                let mut held = lock(&slot.state);
                if now >= *not_before_ns
                    && let Some(reply) = held.reply.take()
                {
                    match &reply {
                        Ok(reply) => endpoint.counters.count_rpc_reply(reply.len()),
                        Err(FabricError::Indeterminate { .. }) => {
                            endpoint.counters.count_indeterminate();
                        }
                        Err(_) => {}
                    }
                    return Poll::Ready(reply.map(*finish));
                }
                if now >= *deadline_ns {
                    held.waker = None;
                    endpoint.counters.count_indeterminate();
                    let why = Uncertainty::TimedOut;
                    return Poll::Ready(Err(FabricError::Indeterminate { server: *server, why }));
                }
                held.waker = Some(context.waker().clone());
                let replied = held.reply.is_some();
                drop(held);
                if replied {
                    endpoint.timers.wake_at(*not_before_ns, context.waker().clone());
                } else if !std::mem::replace(armed, true) {
                    endpoint.timers.wake_at(*deadline_ns, context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

fn take<T>(result: &mut Option<Result<T, FabricError>>) -> Result<T, FabricError> {
    result.take().expect("a completed operation is not polled again")
}

impl<T> Drop for LocalOp<T> {
    fn drop(&mut self) {
        if let LocalOpState::HeldBack { endpoint, .. } | LocalOpState::OnServer { endpoint, .. } =
            &self.state
        {
            endpoint.leave();
        }
    }
}
