//! The conformance suite of all providers, which checks the contract of [`crate::Fabric`] point by
//! point. A provider's tests call [`run`]; the checks are public so that a failure shows its name.
//!
//! No check waits for a real duration or asserts one: a slow provider is merely slow.

mod connection;
mod forward;
mod hostile;
mod limits;
mod rpc;
mod service;
mod verbs;

pub use connection::{a_fence_shuts_out_one_compute_server, a_reset_settles_what_was_posted};
pub use hostile::{mutate, random_bytes};
pub use limits::{
    bad_addresses_are_refused, batches_ring_once, counters_are_exact, depth_is_bounded,
    dropped_operations_still_happen, killed_server_is_indeterminate, randomness_follows_the_seed,
    time_passes,
};
pub use rpc::{
    answers_may_come_later, concurrent_calls_are_answered, messages_are_bounded,
    replies_match_requests,
};
pub use service::{LateService, NOT_A_REQUEST, TestService, word_of};
pub use verbs::{
    atomics_add_up, completed_writes_are_visible, many_operations_in_flight, posting_order_is_kept,
    what_is_written_is_read, words_are_never_torn,
};

use crate::sync::Arc;
use crate::{AnyFabric, Cluster, Fabric, FabricError, GlobalAddr, Provider, ServerId};

/// Runs every check on clusters that `provider` starts.
///
/// # Panics
/// If the provider breaks the contract.
pub fn run<P: Provider>(provider: &P) {
    what_is_written_is_read(provider);
    words_are_never_torn(provider);
    atomics_add_up(provider);
    posting_order_is_kept(provider);
    completed_writes_are_visible(provider);
    many_operations_in_flight(provider);
    bad_addresses_are_refused(provider);
    depth_is_bounded(provider);
    killed_server_is_indeterminate(provider);
    dropped_operations_still_happen(provider);
    batches_ring_once(provider);
    counters_are_exact(provider);
    replies_match_requests(provider);
    concurrent_calls_are_answered(provider);
    messages_are_bounded(provider);
    time_passes(provider);
    randomness_follows_the_seed(provider);
    a_reset_settles_what_was_posted(provider);
    a_fence_shuts_out_one_compute_server(provider);
}

/// The size of each test server's memory, in bytes.
const REGION_BYTES: usize = 16_384;

fn start<P: Provider>(provider: &P, servers: usize) -> P::Cluster<TestService> {
    provider.start((0..servers).map(|_| TestService::new(REGION_BYTES)).collect())
}

fn start_with<P: Provider>(provider: &P, service: &Arc<TestService>) -> P::Cluster<TestService> {
    provider.start(vec![Arc::clone(service)])
}

fn at(server: u16, offset: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId::new(server), offset)
}

/// WRITEs `words` words with `value` each.
fn fill<F: Fabric>(fabric: &F, at: GlobalAddr, words: usize, value: u64) -> F::Op<crate::Buffer> {
    let buffer = fabric.buffer(words * 8).expect("a scratch buffer");
    (0..words).for_each(|index| buffer.set(index, value));
    fabric.write(at, buffer)
}

/// READs the `words` words at `at`.
async fn read<F: Fabric>(
    fabric: &F,
    at: GlobalAddr,
    words: usize,
) -> Result<Vec<u64>, FabricError> {
    let buffer = fabric.read(at, fabric.buffer(words * 8)?).await?;
    Ok((0..words).map(|index| buffer.get(index)).collect())
}

/// Whether an operation can be in flight at all, instead of completing when it is posted.
async fn completes_later<F: Fabric>(fabric: &F) -> bool {
    let mut op = std::pin::pin!(fabric.fetch_add(at(0, 0), 0));
    let mut later = false;
    std::future::poll_fn(|context| {
        let polled = op.as_mut().poll(context);
        later |= polled.is_pending();
        polled
    })
    .await
    .expect("a good address");
    later
}

/// Sleeps in short turns until `done` returns true, which gives operations in flight time to
/// finish.
async fn wait_until<F: Fabric>(fabric: &F, what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..100_000 {
        if done().await {
            return;
        }
        fabric.sleep(200).await;
    }
    panic!("{what} did not happen");
}

/// Runs one client with the signature that single checks have.
fn alone<C: Cluster, Fut: Future<Output = ()>>(
    cluster: &C,
    body: impl Fn(AnyFabric) -> Fut + Sync,
) {
    cluster.run_one(body);
}
