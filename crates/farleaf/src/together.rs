//! Futures of one task that run together.
//!
//! *Thread safety*: belongs to the task's thread.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The results of futures that run together, in their order.
pub(crate) async fn all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<Result<T, Pin<Box<_>>>> =
        futures.map(|future| Err(Box::pin(future))).collect();
    poll_fn(|context| {
        let mut pending = false;
        for place in &mut running {
            if let Err(future) = place {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *place = Ok(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().filter_map(Result::ok).collect()
}
