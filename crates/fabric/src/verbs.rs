//! The trait that everything above the network is generic over.

use crate::{Buffer, Counters, FabricError, GlobalAddr, Message, Rule, ServerId, Work};
use std::future::Future;

/// One endpoint of a compute server: verbs, RPC, time and randomness.
///
/// *Posting and completion are separate.* A verb is posted by the call itself, in the order of the
/// calls; the future it returns only waits for the completion. What is posted between two waits is one
/// batch and costs one doorbell:
///
/// ```ignore
/// let left = fabric.read(a, fabric.buffer(1024)?);
/// let right = fabric.read(b, fabric.buffer(1024)?);   // both are in flight now
/// let (left, right) = (left.await?, right.await?);
/// ```
///
/// # Contract, whatever the provider
/// - F1. READ and WRITE are atomic per aligned 8-byte word and nothing more.
/// - F2. CAS and FETCH-ADD are atomic against each other.
/// - F3. What one endpoint posts to one server takes effect in posting order for WRITE→WRITE,
///   WRITE→CAS, WRITE→FETCH-ADD and WRITE→READ. For any other pair, await the first.
/// - F4. Nothing is promised across servers or across endpoints, but that a completed WRITE is visible
///   to every operation posted later, by anyone.
/// - F5. Addresses are checked where the memory is: outside a region, or unaligned, is an error to the
///   caller and no access.
/// - F6. At most [`Fabric::depth`] operations are in flight; one more is refused, not queued.
/// - F7. An operation that ran into its deadline or lost its connection is `Indeterminate`: it may have
///   happened, and may still happen later. Every other error says that it did not happen.
/// - F8. A dropped future does not take its operation back, and the buffer stays with the operation
///   until that ends.
/// - F9. After [`Fabric::reset`], each verb that this endpoint posted to that server before has taken
///   effect (in part, if it is a WRITE) or never will. Calls are not concerned.
/// - F10. After [`Fabric::fence`], nothing that the endpoints which that compute server had until then
///   ever posted to that memory server takes effect any more.
///
/// *Thread safety*: a handle and its clones are one endpoint, used by one thread.
pub trait Fabric: Clone + 'static {
    /// A posted operation; resolves when it completes.
    type Op<T: 'static>: Future<Output = Result<T, FabricError>> + 'static;

    /// READs as many bytes as `into` has from `at`.
    fn read(&self, at: GlobalAddr, into: Buffer) -> Self::Op<Buffer>;

    /// WRITEs the whole of `from` to `at`, and gives the buffer back.
    fn write(&self, at: GlobalAddr, from: Buffer) -> Self::Op<Buffer>;

    /// Sets the word at `at` to `new` if it is `expected`; resolves to the value found.
    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Self::Op<u64>;

    /// Adds `delta` to the word at `at`, wrapping; resolves to the value before.
    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> Self::Op<u64>;

    /// Sends `request` to `server`'s [`crate::RpcService`]; resolves to its reply.
    fn call(&self, server: ServerId, request: Message) -> Self::Op<Message>;

    /// Reconnects this endpoint to `server` (F9): whoever does not know what became of a verb can reset,
    /// look, and know. What is in flight ends, as indeterminate unless its completion is on its way.
    ///
    /// # Errors
    /// [`FabricError::Indeterminate`] if the server cannot be reached; nothing is settled then.
    fn reset(&self, server: ServerId) -> impl Future<Output = Result<(), FabricError>>;

    /// Shuts the endpoints that `compute_server` has now out of memory server `server`, for ever (F10).
    /// For a compute server that is taken for dead: if it lives after all, its operations there end as
    /// indeterminate, and those that it sends over endpoints that it opens later are served.
    ///
    /// # Errors
    /// [`FabricError::Indeterminate`] if the memory server cannot be reached.
    fn fence(
        &self,
        server: ServerId,
        compute_server: u16,
    ) -> impl Future<Output = Result<(), FabricError>>;

    /// A scratch buffer of `bytes` bytes from the endpoint's registered memory.
    ///
    /// # Errors
    /// [`FabricError::NoBuffer`] if the size is no positive multiple of 8, or all are lent.
    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError>;

    /// Accounts for compute time on this endpoint's thread. Only the simulator lets it pass.
    fn charge(&self, work: Work) -> impl Future<Output = ()>;

    /// Waits, letting other tasks of the thread go on; 0 only lets them go first.
    fn sleep(&self, ns: u64) -> impl Future<Output = ()>;

    /// Nanoseconds since the cluster started; never goes back.
    fn now_ns(&self) -> u64;

    /// 64 random bits, from the seed that the cluster was started with.
    fn random(&self) -> u64;

    /// What this endpoint has done so far.
    fn counters(&self) -> &Counters;

    /// How many memory servers there are; they are numbered from 0.
    fn memory_servers(&self) -> u16;

    /// The compute server that this endpoint belongs to, counted from 0.
    fn compute_server(&self) -> u16;

    /// How many operations may be in flight.
    fn depth(&self) -> usize;

    /// Whether this endpoint's code breaks a rule on purpose. Only the simulator ever says so, to show that its checkers notice.
    #[inline(always)]
    fn breaks(&self, rule: Rule) -> bool {
        let _ = rule;
        false
    }
}
