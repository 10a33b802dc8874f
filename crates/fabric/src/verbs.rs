//! The trait for all remote operations, over which all code above the network is generic.

use crate::{Buffer, Counters, FabricError, GlobalAddr, Message, Rule, ServerId, Work};
use std::future::Future;

/// One endpoint of a compute server: verbs, RPC, time and randomness.
///
/// *Posting and completion are separate.* The call itself posts a verb, in the order of the calls;
/// the future it returns only waits for the completion. Verbs posted between two waits form one
/// batch and cost one doorbell:
///
/// ```ignore
/// let left = fabric.read(a, fabric.buffer(1024)?);
/// let right = fabric.read(b, fabric.buffer(1024)?);   // both are in flight now
/// let (left, right) = (left.await?, right.await?);
/// ```
///
/// # Contract, for every provider
/// - F1. READ and WRITE are atomic per aligned 8-byte word and nothing more.
/// - F2. CAS and FETCH-ADD are atomic against each other.
/// - F3. Operations posted by one endpoint to one server take effect in posting order for
///   WRITE→WRITE, WRITE→CAS, WRITE→FETCH-ADD and WRITE→READ. For any other pair, await the first.
/// - F4. Nothing is guaranteed across servers or across endpoints, except that a completed WRITE is
///   visible to every operation that any endpoint posts later.
/// - F5. Addresses are checked where the memory is: an address outside a region, or an unaligned
///   one, is an error to the caller and causes no access.
/// - F6. At most [`Fabric::depth`] operations are in flight; one more is refused, not queued.
/// - F7. An operation that ran into its deadline or lost its connection is `Indeterminate`: it may
///   have happened, and may still happen later. Every other error means that it did not happen.
/// - F8. Dropping a future does not cancel its operation, and the buffer stays with the operation
///   until that ends.
/// - F9. After [`Fabric::reset`], each verb that this endpoint posted to that server earlier has
///   taken effect (in part, if it is a WRITE) or never will. Calls are not covered.
/// - F10. After [`Fabric::fence`], nothing that the fenced compute server's endpoints of that
///   moment have posted to that memory server can still take effect.
///
/// *Thread safety*: a handle and its clones are one endpoint, used by one thread.
pub trait Fabric: Clone + 'static {
    /// A posted operation; resolves when it completes.
    type Op<T: 'static>: Future<Output = Result<T, FabricError>> + 'static;

    /// READs as many bytes as `into` holds, starting at `at`.
    fn read(&self, at: GlobalAddr, into: Buffer) -> Self::Op<Buffer>;

    /// WRITEs the whole of `from` to `at`, and returns the buffer.
    fn write(&self, at: GlobalAddr, from: Buffer) -> Self::Op<Buffer>;

    /// Sets the word at `at` to `new` if it is `expected`; resolves to the value found.
    fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Self::Op<u64>;

    /// Adds `delta` to the word at `at`, wrapping; resolves to the old value.
    fn fetch_add(&self, at: GlobalAddr, delta: u64) -> Self::Op<u64>;

    /// Sends `request` to `server`'s [`crate::RpcService`]; resolves to its reply.
    fn call(&self, server: ServerId, request: Message) -> Self::Op<Message>;

    /// Reconnects this endpoint to `server` (F9). Afterwards, a client that does not know the
    /// outcome of a verb can find out by reading. Operations in flight end, as indeterminate unless
    /// their completions have arrived.
    ///
    /// # Errors
    /// [`FabricError::Indeterminate`] if the server cannot be reached; then nothing is settled.
    fn reset(&self, server: ServerId) -> impl Future<Output = Result<(), FabricError>>;

    /// Permanently fences the current endpoints of `compute_server` at memory server `server`
    /// (F10). For a compute server that was declared dead: if it is alive after all, its operations
    /// there end as indeterminate, while endpoints that it opens later are served.
    ///
    /// # Errors
    /// [`FabricError::Indeterminate`] if the memory server cannot be reached.
    fn fence(
        &self,
        server: ServerId,
        compute_server: u16,
    ) -> impl Future<Output = Result<(), FabricError>>;

    /// A scratch buffer of `bytes` bytes, at most [`BUFFER_BYTES`](crate::BUFFER_BYTES), from the
    /// endpoint's registered memory.
    ///
    /// # Errors
    /// [`FabricError::NoBuffer`] if the size is not a positive multiple of 8, or no buffer is free.
    fn buffer(&self, bytes: usize) -> Result<Buffer, FabricError>;

    /// Accounts for compute time on this endpoint's thread. This takes time only in the simulator.
    fn charge(&self, work: Work) -> impl Future<Output = ()>;

    /// Waits while other tasks of the thread run; with 0, it only yields to them.
    fn sleep(&self, ns: u64) -> impl Future<Output = ()>;

    /// Nanoseconds since the cluster started; never decreases.
    fn now_ns(&self) -> u64;

    /// 64 random bits that follow from the cluster's seed: endpoints of different processes may
    /// draw the same ones.
    fn random(&self) -> u64;

    /// A number that no other call returns in any process, for globally unique names.
    ///
    /// # Panics
    /// If the operating system provides no entropy.
    fn unique(&self) -> u64;

    /// Hints that memory will be READ soon. If it is local, the processor prefetches it.
    #[inline]
    fn expect(&self, at: GlobalAddr, bytes: usize) {
        let _ = (at, bytes);
    }

    /// This endpoint's counters.
    fn counters(&self) -> &Counters;

    /// Number of memory servers; they are numbered from 0.
    fn memory_servers(&self) -> u16;

    /// The compute server that this endpoint belongs to, counted from 0.
    fn compute_server(&self) -> u16;

    /// Limit on operations in flight.
    fn depth(&self) -> usize;

    /// Whether the death of a sender may leave a WRITE half landed. If not, a WRITE lands whole or
    /// not at all, although a concurrent READ may see a part of it (F1).
    #[inline(always)]
    fn tears(&self) -> bool {
        true
    }

    /// Whether this endpoint's code breaks a rule on purpose. Only the simulator ever returns
    /// `true`, to show that its checkers detect the fault.
    #[inline(always)]
    fn breaks(&self, rule: Rule) -> bool {
        let _ = rule;
        false
    }
}
