//! The objects of libibverbs, each owned by one value: a safe interface for the rest of the crate.
//!
//! *Invariants*: J1. An object is destroyed before the objects that it was created from: each holds
//! a reference to them. J2. A device touches only registered memory, which is always a [`Region`]:
//! its words are atomics, and no code holds a `&[u8]` over them. A [`Registration`] keeps its
//! region until the device has released it. The device checks keys, so no request, however wrong,
//! makes it touch anything else. J3. Each event of a completion queue is acknowledged when it is
//! taken, so destroying a queue never waits.
//!
//! *Thread safety*: any number of threads, as libibverbs guarantees.
#![expect(unsafe_code, reason = "the functions of a C library")]

use crate::ffi;
use farleaf_fabric::Region;
use farleaf_fabric::sync::Arc;
use std::ffi::{CStr, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};

/// The loaded libibverbs.
pub(crate) struct VerbsLibrary {
    functions: ffi::Functions,
    /// Never unloaded, because its drivers keep state in the process.
    _library: ManuallyDrop<libloading::Library>,
}

/// Converts an `int` result of the library.
fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Converts a pointer result of the library.
fn made<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

impl VerbsLibrary {
    /// Loads `name`; the error states why that failed.
    pub(crate) fn load(name: &str) -> Result<Arc<Self>, String> {
        // SAFETY: the initializers of libibverbs need nothing that a Rust program does not have.
        let library = unsafe { libloading::Library::new(name) };
        let library = library.map_err(|error| error.to_string())?;
        let functions = ffi::Functions::find(&library).map_err(|error| error.to_string())?;
        Ok(Arc::new(Self { functions, _library: ManuallyDrop::new(library) }))
    }

    /// Opens the device called `name`, or the first one; the inner error has the names of all
    /// devices if there is no such device.
    pub(crate) fn open(
        self: &Arc<Self>,
        name: Option<&str>,
    ) -> io::Result<Result<DeviceContext, Vec<String>>> {
        let mut count = 0;
        // SAFETY: the library writes the number of devices to `count`.
        let list = unsafe { (self.functions.get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = io::Error::last_os_error();
            // 38 is ENOSYS: a kernel without RDMA support has no devices.
            return match error.raw_os_error() {
                Some(38) => Ok(Err(Vec::new())),
                _ => Err(error),
            };
        }
        let mut names = Vec::new();
        let mut opened = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let place = unsafe { list.add(index) };
            // SAFETY: the entry is within the list, which has not been freed.
            let device = unsafe { *place };
            // SAFETY: the device is from the list, which has not been freed.
            let found = unsafe { (self.functions.get_device_name)(device) };
            // SAFETY: the device's name is valid as long as the list.
            let found = unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned();
            if name.is_none_or(|name| name == found) {
                // SAFETY: the device is from the list, which has not been freed.
                opened = Some((unsafe { (self.functions.open_device)(device) }, found));
                break;
            }
            names.push(found);
        }
        let error = io::Error::last_os_error();
        // SAFETY: the list is freed only here; an open device outlives it.
        unsafe { (self.functions.free_device_list)(list) };
        let Some((raw, name)) = opened else { return Ok(Err(names)) };
        let raw = NonNull::new(raw).ok_or(error)?;
        DeviceContext::new(Arc::clone(self), raw, name).map(Ok)
    }
}

/// An open device, with the functions of its data path.
pub(crate) struct DeviceContext {
    library: Arc<VerbsLibrary>,
    raw: NonNull<ffi::IbvContext>,
    pub(crate) name: String,
    poll_cq: ffi::PollCq,
    notify_cq: ffi::NotifyCq,
    post_srq_recv: ffi::PostSrq,
    post_send: ffi::PostSend,
    post_recv: ffi::PostRecv,
}

impl DeviceContext {
    fn new(
        library: Arc<VerbsLibrary>,
        raw: NonNull<ffi::IbvContext>,
        name: String,
    ) -> io::Result<Self> {
        // SAFETY: the context is open, and its function table no longer changes.
        let table = unsafe { raw.as_ref() };
        let missing = || io::Error::from(io::ErrorKind::Unsupported);
        Ok(Self {
            library,
            raw,
            name,
            poll_cq: table.poll_cq.ok_or_else(missing)?,
            notify_cq: table.notify_cq.ok_or_else(missing)?,
            post_srq_recv: table.post_srq_recv.ok_or_else(missing)?,
            post_send: table.post_send.ok_or_else(missing)?,
            post_recv: table.post_recv.ok_or_else(missing)?,
        })
    }

    fn functions(&self) -> &ffi::Functions {
        &self.library.functions
    }

    /// The device's attributes.
    pub(crate) fn attributes(&self) -> io::Result<ffi::DeviceAttr> {
        let mut found = std::mem::MaybeUninit::<ffi::DeviceAttr>::zeroed();
        let (raw, into) = (self.raw.as_ptr(), found.as_mut_ptr());
        // SAFETY: the context is open, and `into` has the size that the library writes.
        check(unsafe { (self.functions().query_device)(raw, into) })?;
        // SAFETY: all bytes are zero or written, and any bits are valid for its integers.
        Ok(unsafe { found.assume_init() })
    }

    /// The attributes of port `port`.
    pub(crate) fn port(&self, port: u8) -> io::Result<ffi::PortAttr> {
        let mut found = std::mem::MaybeUninit::<ffi::PortAttr>::zeroed();
        let (raw, into) = (self.raw.as_ptr(), found.as_mut_ptr());
        // SAFETY: the context is open, and `into` is no smaller than what the library writes.
        check(unsafe { (self.functions().query_port)(raw, port, into) })?;
        // SAFETY: all bytes are zero or written, and any bits are valid for its integers.
        Ok(unsafe { found.assume_init() })
    }

    /// The address at `index` of the port's table.
    pub(crate) fn gid(&self, port: u8, index: u32) -> io::Result<[u8; 16]> {
        let mut gid = [0; 16];
        let index = c_int::try_from(index).map_err(io::Error::other)?;
        let raw = self.raw.as_ptr();
        // SAFETY: the context is open, and an address has 16 bytes.
        check(unsafe { (self.functions().query_gid)(raw, port, index, &raw mut gid) })?;
        Ok(gid)
    }
}

impl Drop for DeviceContext {
    fn drop(&mut self) {
        // SAFETY: the context is open, and everything created from it is gone (J1).
        let _ = unsafe { (self.functions().close_device)(self.raw.as_ptr()) };
    }
}

/// A protection domain: requests of its queue pairs may only use memory of the same domain.
pub(crate) struct ProtectionDomain {
    context: Arc<DeviceContext>,
    raw: NonNull<ffi::Pd>,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Arc<DeviceContext>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = made(unsafe { (context.functions().alloc_pd)(context.raw.as_ptr()) })?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: the domain is allocated, and everything created from it is gone (J1).
        let _ = unsafe { (self.context.functions().dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// A region that the device may access.
pub(crate) struct Registration {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<ffi::Mr>,
    region: Arc<Region>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Registration {
    /// Registers all of `region`; with access for peers if `shared`. Its pages are pinned from now
    /// on.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        region: Arc<Region>,
        shared: bool,
    ) -> io::Result<Self> {
        let remote = ffi::ACCESS_REMOTE_READ | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_ATOMIC;
        let access = ffi::ACCESS_LOCAL_WRITE | if shared { remote } else { 0 };
        let words = region.words().as_ptr().cast_mut();
        let (pd, bytes) = (domain.raw.as_ptr(), region.bytes());
        // SAFETY: the domain is allocated; the words are mapped, and stay so as long as the
        // registration holds its region (J2).
        let raw = unsafe { (domain.context.functions().reg_mr)(pd, words.cast(), bytes, access) };
        let raw = made(raw)?;
        // SAFETY: the library has just returned this valid object.
        let found = unsafe { raw.as_ref() };
        let (lkey, rkey) = (found.lkey, found.rkey);
        Ok(Self { domain: Arc::clone(domain), raw, region, lkey, rkey })
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The address of its first byte, as used by the device.
    pub(crate) fn address(&self) -> u64 {
        address_of(self.region.words())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the memory is registered, and deregistered only here. The region is dropped after
        // it.
        let result = unsafe { (self.domain.context.functions().dereg_mr)(self.raw.as_ptr()) };
        if result != 0 {
            // The device may still access the memory, so leak it: it must never be reused.
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}

/// The address of words, as used by the device.
pub(crate) fn address_of(words: &[farleaf_fabric::sync::AtomicU64]) -> u64 {
    words.as_ptr().addr() as u64
}

/// The channel on which completion queues report events; its descriptor is readable while there are
/// any.
pub struct CompletionChannel {
    context: Arc<DeviceContext>,
    raw: NonNull<ffi::CompChannel>,
}

impl CompletionChannel {
    pub(crate) fn new(context: &Arc<DeviceContext>) -> io::Result<Arc<Self>> {
        let functions = context.functions();
        // SAFETY: the context is open.
        let raw = made(unsafe { (functions.create_comp_channel)(context.raw.as_ptr()) })?;
        let channel = Arc::new(Self { context: Arc::clone(context), raw });
        let flags = rustix::fs::fcntl_getfl(channel.as_fd())?;
        rustix::fs::fcntl_setfl(channel.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    /// The token of a queue with an event, if there is one.
    pub(crate) fn next_event(&self) -> Option<u64> {
        let (mut cq, mut token) = (null_mut(), null_mut());
        let functions = self.context.functions();
        // SAFETY: the channel exists and does not block; the library writes two pointers.
        let result =
            unsafe { (functions.get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut token) };
        if result != 0 {
            return None;
        }
        // SAFETY: the event has been taken but not acknowledged, so the queue has not been
        // destroyed.
        unsafe { (functions.ack_cq_events)(cq, 1) };
        Some(token.addr() as u64)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the channel exists, and no queue uses it any more (J1).
        let _ = unsafe { (self.context.functions().destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue.
pub(crate) struct Completions {
    channel: Arc<CompletionChannel>,
    raw: NonNull<ffi::Cq>,
}

impl Completions {
    /// Creates a queue with room for `room` completions; its events carry `token`.
    pub(crate) fn new(
        channel: &Arc<CompletionChannel>,
        room: usize,
        token: u64,
    ) -> io::Result<Arc<Self>> {
        let context = &channel.context;
        let room = c_int::try_from(room).map_err(io::Error::other)?;
        let token = std::ptr::without_provenance_mut(token as usize);
        let (raw_context, raw_channel) = (context.raw.as_ptr(), channel.raw.as_ptr());
        // SAFETY: device and channel exist; the library never dereferences the token.
        let raw =
            unsafe { (context.functions().create_cq)(raw_context, room, token, raw_channel, 0) };
        Ok(Arc::new(Self { channel: Arc::clone(channel), raw: made(raw)? }))
    }

    /// Takes completions; returns their number.
    #[inline]
    pub(crate) fn poll(&self, into: &mut [ffi::Wc]) -> io::Result<usize> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        let first = into.as_mut_ptr();
        // SAFETY: the queue exists, and `into` has room for `room` completions.
        let count = unsafe { (self.channel.context.poll_cq)(self.raw.as_ptr(), room, first) };
        usize::try_from(count).map_err(|_| io::Error::other("cannot poll a completion queue"))
    }

    /// Requests an event for the next completion. Earlier completions raise none: poll again.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists.
        check(unsafe { (self.channel.context.notify_cq)(self.raw.as_ptr(), 0) })
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue exists, and no queue pair uses it any more (J1).
        let _ = unsafe { (self.channel.context.functions().destroy_cq)(self.raw.as_ptr()) };
    }
}

/// The local memory of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalMemory {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

impl LocalMemory {
    fn element(self) -> ffi::Sge {
        ffi::Sge { addr: self.address, length: self.bytes, lkey: self.lkey }
    }
}

fn receive(
    local: LocalMemory,
    id: u64,
    post: impl FnOnce(*mut ffi::RecvWr, *mut *mut ffi::RecvWr) -> c_int,
) -> io::Result<()> {
    let mut element = local.element();
    let mut request =
        ffi::RecvWr { wr_id: id, next: null_mut(), sg_list: &raw mut element, num_sge: 1 };
    let mut bad = null_mut();
    check(post(&raw mut request, &raw mut bad))
}

/// A queue of places for messages, shared by the queue pairs of a server thread.
pub(crate) struct SharedReceives {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<ffi::Srq>,
}

impl SharedReceives {
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, room: usize) -> io::Result<Arc<Self>> {
        let max_wr = u32::try_from(room).map_err(io::Error::other)?;
        let mut wanted =
            ffi::SrqInitAttr { srq_context: null_mut(), max_wr, max_sge: 1, srq_limit: 0 };
        let (functions, pd) = (domain.context.functions(), domain.raw.as_ptr());
        // SAFETY: the domain is allocated; the library reads and writes the attributes.
        let raw = made(unsafe { (functions.create_srq)(pd, &raw mut wanted) })?;
        Ok(Arc::new(Self { domain: Arc::clone(domain), raw }))
    }

    /// Lends a place for one message; its completion has `id`.
    pub(crate) fn post(&self, local: LocalMemory, id: u64) -> io::Result<()> {
        receive(local, id, |request, bad| {
            // SAFETY: the queue exists, and the library reads a list of one request, which does not
            // move.
            unsafe { (self.domain.context.post_srq_recv)(self.raw.as_ptr(), request, bad) }
        })
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: the queue exists, and no queue pair uses it any more (J1).
        let _ = unsafe { (self.domain.context.functions().destroy_srq)(self.raw.as_ptr()) };
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestOperation {
    Send,
    Read { at: u64, rkey: u32 },
    Write { at: u64, rkey: u32 },
    CompareSwap { at: u64, rkey: u32, expected: u64, new: u64 },
    FetchAdd { at: u64, rkey: u32, delta: u64 },
}

/// Requests that are posted together.
#[derive(Default)]
pub(crate) struct RequestBatch {
    requests: Vec<ffi::SendWr>,
    elements: Vec<ffi::Sge>,
}

impl std::fmt::Debug for RequestBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestBatch").field("requests", &self.requests.len()).finish()
    }
}

impl RequestBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request. Its completion has `id`, and is only reported if `told`.
    pub(crate) fn push(
        &mut self,
        id: u64,
        operation: RequestOperation,
        local: LocalMemory,
        told: bool,
    ) {
        let (opcode, remote) = match operation {
            RequestOperation::Send => (ffi::WR_SEND, ffi::SendWr::EMPTY.remote),
            RequestOperation::Read { at, rkey } => (ffi::WR_RDMA_READ, rdma(at, rkey)),
            RequestOperation::Write { at, rkey } => (ffi::WR_RDMA_WRITE, rdma(at, rkey)),
            RequestOperation::CompareSwap { at, rkey, expected, new } => {
                (ffi::WR_CMP_AND_SWP, atomic(at, rkey, expected, new))
            }
            RequestOperation::FetchAdd { at, rkey, delta } => {
                (ffi::WR_FETCH_AND_ADD, atomic(at, rkey, delta, 0))
            }
        };
        let send_flags = if told { ffi::SEND_SIGNALED } else { 0 };
        let request = ffi::SendWr { wr_id: id, opcode, send_flags, remote, ..ffi::SendWr::EMPTY };
        self.requests.push(request);
        self.elements.push(local.element());
    }

    /// Requests a completion for the last request.
    pub(crate) fn tell_last(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.send_flags |= ffi::SEND_SIGNALED;
        }
    }
}

fn rdma(addr: u64, rkey: u32) -> ffi::RemoteAddress {
    ffi::RemoteAddress { rdma: ffi::RemoteRdma { addr, rkey } }
}

fn atomic(addr: u64, rkey: u32, compare_add: u64, swap: u64) -> ffi::RemoteAddress {
    ffi::RemoteAddress { atomic: ffi::RemoteAtomic { addr, compare_add, swap, rkey } }
}

/// Maximum number of requests of a queue pair on each side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueCapacity {
    pub(crate) sends: usize,
    pub(crate) receives: usize,
}

/// One end of a reliable connection.
pub(crate) struct QueuePair {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<ffi::Qp>,
    _completions: Arc<Completions>,
    _shared_receives: Option<Arc<SharedReceives>>,
    pub(crate) number: u32,
}

impl QueuePair {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<Completions>,
        shared_receives: Option<Arc<SharedReceives>>,
        room: QueueCapacity,
    ) -> io::Result<Self> {
        let cap = ffi::QpCap {
            max_send_wr: u32::try_from(room.sends).map_err(io::Error::other)?,
            max_recv_wr: u32::try_from(room.receives).map_err(io::Error::other)?,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut wanted = ffi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: completions.raw.as_ptr(),
            recv_cq: completions.raw.as_ptr(),
            srq: shared_receives.as_ref().map_or(null_mut(), |shared| shared.raw.as_ptr()),
            cap,
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        let (functions, pd) = (domain.context.functions(), domain.raw.as_ptr());
        // SAFETY: the domain and both queues exist, and the pair holds references to them (J1).
        let raw = made(unsafe { (functions.create_qp)(pd, &raw mut wanted) })?;
        // SAFETY: the library has just returned this valid object, and its number does not change.
        let number = unsafe { raw.as_ref() }.qp_num;
        Ok(Self {
            domain: Arc::clone(domain),
            raw,
            _completions: Arc::clone(completions),
            _shared_receives: shared_receives,
            number,
        })
    }

    /// Sets the attributes that `mask` selects.
    pub(crate) fn modify(&self, mut attributes: ffi::QpAttr, mask: c_int) -> io::Result<()> {
        let functions = self.domain.context.functions();
        // SAFETY: the pair exists; the library reads the attributes.
        check(unsafe { (functions.modify_qp)(self.raw.as_ptr(), &raw mut attributes, mask) })
    }

    /// Moves the pair to the error state: requests in flight are flushed, nothing more is received.
    pub(crate) fn fail(&self) {
        let attributes = ffi::QpAttr { qp_state: ffi::QPS_ERR, ..Default::default() };
        // If this fails, destroying the pair ends it anyway.
        let _ = self.modify(attributes, ffi::QP_STATE);
    }

    /// Posts all of `batch` with one doorbell, and empties it.
    ///
    /// After an error, some of the requests may be in flight: abandon the connection.
    pub(crate) fn post(&self, batch: &mut RequestBatch) -> io::Result<()> {
        let count = batch.requests.len();
        let (first, elements) = (batch.requests.as_mut_ptr(), batch.elements.as_mut_ptr());
        for (index, request) in batch.requests.iter_mut().enumerate() {
            request.sg_list = elements.wrapping_add(index);
            request.next = match index + 1 {
                next if next < count => first.wrapping_add(next),
                _ => null_mut(),
            };
        }
        let mut posted = Ok(());
        if count > 0 {
            let mut bad = null_mut();
            // SAFETY: the pair exists, and the library reads a null-terminated list of requests
            // with one element each.
            posted = check(unsafe {
                (self.domain.context.post_send)(self.raw.as_ptr(), first, &raw mut bad)
            });
        }
        batch.requests.clear();
        batch.elements.clear();
        posted
    }

    /// Lends a place for one message; its completion has `id`.
    pub(crate) fn post_receive(&self, local: LocalMemory, id: u64) -> io::Result<()> {
        receive(local, id, |request, bad| {
            // SAFETY: the pair exists, and the library reads a list of one request, which does not
            // move.
            unsafe { (self.domain.context.post_recv)(self.raw.as_ptr(), request, bad) }
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the pair exists, and is destroyed only here.
        let _ = unsafe { (self.domain.context.functions().destroy_qp)(self.raw.as_ptr()) };
    }
}

macro_rules! any_thread {
    ($($name:ident)*) => {$(
        // SAFETY: libibverbs allows its objects on any thread; this value alone owns the object.
        unsafe impl Send for $name {}
        // SAFETY: libibverbs locks what several threads use concurrently.
        unsafe impl Sync for $name {}

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

any_thread!(DeviceContext ProtectionDomain Registration CompletionChannel Completions SharedReceives QueuePair);

// SAFETY: a batch has valid pointers only while `QueuePair::post` runs.
unsafe impl Send for RequestBatch {}

impl std::fmt::Debug for VerbsLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsLibrary").finish_non_exhaustive()
    }
}
