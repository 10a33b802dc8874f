//! The objects of libibverbs, each owned by one value: a safe face for the rest of the crate.
//!
//! *Invariants*: J1. an object is destroyed before those that it was made of: each holds them. J2. a device touches only
//! registered memory, and what is registered is a [`Region`], whose words are atomics that nobody holds a `&[u8]`
//! over; a [`Registration`] keeps its region until the device has let go of it. So no request, however wrong, makes the device
//! touch anything else: keys are checked by the device. J3. each event of a completion queue is acknowledged when it is
//! taken, so destroying one never waits.
//!
//! *Thread safety*: any number of threads, as libibverbs promises.
#![expect(unsafe_code, reason = "the functions of a C library")]

use crate::ffi;
use farleaf_fabric::Region;
use farleaf_fabric::sync::Arc;
use std::ffi::{CStr, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};

/// libibverbs, loaded.
pub(crate) struct Library {
    functions: ffi::Functions,
    /// Never unloaded: its drivers leave things behind in the process.
    _library: ManuallyDrop<libloading::Library>,
}

/// What an `int` result of the library says.
fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// What a pointer result of the library says.
fn made<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

impl Library {
    /// Loads `name`, or says why that cannot be.
    pub(crate) fn load(name: &str) -> Result<Arc<Self>, String> {
        // SAFETY: what runs when libibverbs is loaded asks for nothing that a Rust program does not have.
        let library = unsafe { libloading::Library::new(name) };
        let library = library.map_err(|error| error.to_string())?;
        let functions = ffi::Functions::find(&library).map_err(|error| error.to_string())?;
        Ok(Arc::new(Self { functions, _library: ManuallyDrop::new(library) }))
    }

    /// Opens the device called `name`, or the first one; or the names of those that there are, if it is not among them.
    pub(crate) fn open(
        self: &Arc<Self>,
        name: Option<&str>,
    ) -> io::Result<Result<Context, Vec<String>>> {
        let mut count = 0;
        // SAFETY: the library writes the number of devices to where it is told.
        let list = unsafe { (self.functions.get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = io::Error::last_os_error();
            // A kernel that knows nothing of RDMA has no devices.
            return match error.raw_os_error() {
                Some(38) => Ok(Err(Vec::new())),
                _ => Err(error),
            };
        }
        let mut names = Vec::new();
        let mut opened = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has so many devices.
            let place = unsafe { list.add(index) };
            // SAFETY: the place is within the list, which has not been freed.
            let device = unsafe { *place };
            // SAFETY: the device is one of the list, which has not been freed.
            let found = unsafe { (self.functions.get_device_name)(device) };
            // SAFETY: it is the device's name, which lives as long as the list does.
            let found = unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned();
            if name.is_none_or(|name| name == found) {
                // SAFETY: the device is one of the list, which has not been freed.
                opened = Some((unsafe { (self.functions.open_device)(device) }, found));
                break;
            }
            names.push(found);
        }
        let error = io::Error::last_os_error();
        // SAFETY: the list is freed once; an open device outlives it.
        unsafe { (self.functions.free_device_list)(list) };
        let Some((raw, name)) = opened else { return Ok(Err(names)) };
        let raw = NonNull::new(raw).ok_or(error)?;
        Context::new(Arc::clone(self), raw, name).map(Ok)
    }
}

/// An open device, with the functions of its data path.
pub(crate) struct Context {
    library: Arc<Library>,
    raw: NonNull<ffi::Context>,
    pub(crate) name: String,
    poll_cq: ffi::PollCq,
    notify_cq: ffi::NotifyCq,
    post_srq_recv: ffi::PostSrq,
    post_send: ffi::PostSend,
    post_recv: ffi::PostRecv,
}

impl Context {
    fn new(library: Arc<Library>, raw: NonNull<ffi::Context>, name: String) -> io::Result<Self> {
        // SAFETY: the context is open, and its table of functions does not change after that.
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

    /// What the device can do.
    pub(crate) fn attributes(&self) -> io::Result<ffi::DeviceAttr> {
        let mut found = std::mem::MaybeUninit::<ffi::DeviceAttr>::zeroed();
        let (raw, into) = (self.raw.as_ptr(), found.as_mut_ptr());
        // SAFETY: the context is open, and `into` has the size that the library writes.
        check(unsafe { (self.functions().query_device)(raw, into) })?;
        // SAFETY: all of it was zeros or was written, and any bits are good for its integers.
        Ok(unsafe { found.assume_init() })
    }

    /// What its port `port` is like.
    pub(crate) fn port(&self, port: u8) -> io::Result<ffi::PortAttr> {
        let mut found = std::mem::MaybeUninit::<ffi::PortAttr>::zeroed();
        let (raw, into) = (self.raw.as_ptr(), found.as_mut_ptr());
        // SAFETY: the context is open, and `into` is no smaller than what the library writes.
        check(unsafe { (self.functions().query_port)(raw, port, into) })?;
        // SAFETY: all of it was zeros or was written, and any bits are good for its integers.
        Ok(unsafe { found.assume_init() })
    }

    /// The address at place `index` of its port's table.
    pub(crate) fn gid(&self, port: u8, index: u32) -> io::Result<[u8; 16]> {
        let mut gid = [0; 16];
        let index = c_int::try_from(index).map_err(io::Error::other)?;
        let raw = self.raw.as_ptr();
        // SAFETY: the context is open, and an address has 16 bytes.
        check(unsafe { (self.functions().query_gid)(raw, port, index, &raw mut gid) })?;
        Ok(gid)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is open, and everything that was made of it is gone (J1).
        let _ = unsafe { (self.functions().close_device)(self.raw.as_ptr()) };
    }
}

/// A protection domain: memory and queue pairs of one domain may meet.
pub(crate) struct Domain {
    context: Arc<Context>,
    raw: NonNull<ffi::Pd>,
}

impl Domain {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = made(unsafe { (context.functions().alloc_pd)(context.raw.as_ptr()) })?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: it is allocated, and nothing that was made of it is left (J1).
        let _ = unsafe { (self.context.functions().dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// A region that the device may reach.
pub(crate) struct Registration {
    domain: Arc<Domain>,
    raw: NonNull<ffi::Mr>,
    region: Arc<Region>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Registration {
    /// Registers all of `region`, for peers too if it is `shared`. Its pages stay in memory from now on.
    pub(crate) fn new(domain: &Arc<Domain>, region: Arc<Region>, shared: bool) -> io::Result<Self> {
        let remote = ffi::ACCESS_REMOTE_READ | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_ATOMIC;
        let access = ffi::ACCESS_LOCAL_WRITE | if shared { remote } else { 0 };
        let words = region.words().as_ptr().cast_mut();
        let (pd, bytes) = (domain.raw.as_ptr(), region.bytes());
        // SAFETY: the domain is allocated; the words are mapped, and stay so as long as the registration has its region (J2).
        let raw = unsafe { (domain.context.functions().reg_mr)(pd, words.cast(), bytes, access) };
        let raw = made(raw)?;
        // SAFETY: what was just made can be read.
        let found = unsafe { raw.as_ref() };
        let (lkey, rkey) = (found.lkey, found.rkey);
        Ok(Self { domain: Arc::clone(domain), raw, region, lkey, rkey })
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The address of its first byte, as the device knows it.
    pub(crate) fn address(&self) -> u64 {
        address_of(self.region.words())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it is registered, and this is the only time that it is given up. The region goes after it.
        let result = unsafe { (self.domain.context.functions().dereg_mr)(self.raw.as_ptr()) };
        if result != 0 {
            // The device may still reach the memory: it must not be used for anything else.
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}

/// Where words are, as the device knows it.
pub(crate) fn address_of(words: &[farleaf_fabric::sync::AtomicU64]) -> u64 {
    words.as_ptr().addr() as u64
}

/// Where completion queues tell that something has come; readable when they have.
pub struct Channel {
    context: Arc<Context>,
    raw: NonNull<ffi::CompChannel>,
}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        let functions = context.functions();
        // SAFETY: the context is open.
        let raw = made(unsafe { (functions.create_comp_channel)(context.raw.as_ptr()) })?;
        let channel = Arc::new(Self { context: Arc::clone(context), raw });
        let flags = rustix::fs::fcntl_getfl(channel.as_fd())?;
        rustix::fs::fcntl_setfl(channel.as_fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    /// The token of a queue that has told something, if one has.
    pub(crate) fn next_event(&self) -> Option<u64> {
        let (mut cq, mut token) = (null_mut(), null_mut());
        let functions = self.context.functions();
        // SAFETY: the channel is there, and does not block; the library writes two pointers.
        let result =
            unsafe { (functions.get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut token) };
        if result != 0 {
            return None;
        }
        // SAFETY: a queue that is being destroyed waits for its events that were taken to be acknowledged.
        unsafe { (functions.ack_cq_events)(cq, 1) };
        Some(token.addr() as u64)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel can be read.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it is there, and no queue tells it anything any more (J1).
        let _ = unsafe { (self.context.functions().destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue.
pub(crate) struct Completions {
    channel: Arc<Channel>,
    raw: NonNull<ffi::Cq>,
}

impl Completions {
    /// A queue with room for `room` completions; its events carry `token`.
    pub(crate) fn new(channel: &Arc<Channel>, room: usize, token: u64) -> io::Result<Arc<Self>> {
        let context = &channel.context;
        let room = c_int::try_from(room).map_err(io::Error::other)?;
        let token = std::ptr::without_provenance_mut(token as usize);
        let (raw_context, raw_channel) = (context.raw.as_ptr(), channel.raw.as_ptr());
        // SAFETY: the device is open and the channel there; the token is only ever handed back.
        let raw =
            unsafe { (context.functions().create_cq)(raw_context, room, token, raw_channel, 0) };
        Ok(Arc::new(Self { channel: Arc::clone(channel), raw: made(raw)? }))
    }

    /// Takes completions; how many there were.
    #[inline]
    pub(crate) fn poll(&self, into: &mut [ffi::Wc]) -> io::Result<usize> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        let first = into.as_mut_ptr();
        // SAFETY: the queue is there, and `into` has room for so many.
        let count = unsafe { (self.channel.context.poll_cq)(self.raw.as_ptr(), room, first) };
        usize::try_from(count).map_err(|_| io::Error::other("a completion queue is broken"))
    }

    /// Asks for an event when the next completion comes. What has come before tells nothing: poll again.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is there.
        check(unsafe { (self.channel.context.notify_cq)(self.raw.as_ptr(), 0) })
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: it is there, and no queue pair uses it any more (J1).
        let _ = unsafe { (self.channel.context.functions().destroy_cq)(self.raw.as_ptr()) };
    }
}

/// Registered memory that one request is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

impl Local {
    fn element(self) -> ffi::Sge {
        ffi::Sge { addr: self.address, length: self.bytes, lkey: self.lkey }
    }
}

fn receive(
    local: Local,
    id: u64,
    post: impl FnOnce(*mut ffi::RecvWr, *mut *mut ffi::RecvWr) -> c_int,
) -> io::Result<()> {
    let mut element = local.element();
    let mut request =
        ffi::RecvWr { wr_id: id, next: null_mut(), sg_list: &raw mut element, num_sge: 1 };
    let mut bad = null_mut();
    check(post(&raw mut request, &raw mut bad))
}

/// A queue of places for messages that any queue pair of a server thread receives.
pub(crate) struct SharedReceives {
    domain: Arc<Domain>,
    raw: NonNull<ffi::Srq>,
}

impl SharedReceives {
    pub(crate) fn new(domain: &Arc<Domain>, room: usize) -> io::Result<Arc<Self>> {
        let max_wr = u32::try_from(room).map_err(io::Error::other)?;
        let mut wanted =
            ffi::SrqInitAttr { srq_context: null_mut(), max_wr, max_sge: 1, srq_limit: 0 };
        let (functions, pd) = (domain.context.functions(), domain.raw.as_ptr());
        // SAFETY: the domain is allocated; the library reads and writes the attributes.
        let raw = made(unsafe { (functions.create_srq)(pd, &raw mut wanted) })?;
        Ok(Arc::new(Self { domain: Arc::clone(domain), raw }))
    }

    /// Lends a place for one message; its completion has `id`.
    pub(crate) fn post(&self, local: Local, id: u64) -> io::Result<()> {
        receive(local, id, |request, bad| {
            // SAFETY: the queue is there, and the library reads a list of one request, which does not move.
            unsafe { (self.domain.context.post_srq_recv)(self.raw.as_ptr(), request, bad) }
        })
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: it is there, and no queue pair uses it any more (J1).
        let _ = unsafe { (self.domain.context.functions().destroy_srq)(self.raw.as_ptr()) };
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send,
    Read { at: u64, rkey: u32 },
    Write { at: u64, rkey: u32 },
    CompareSwap { at: u64, rkey: u32, expected: u64, new: u64 },
    FetchAdd { at: u64, rkey: u32, delta: u64 },
}

/// Requests that are posted together.
#[derive(Default)]
pub(crate) struct Batch {
    requests: Vec<ffi::SendWr>,
    elements: Vec<ffi::Sge>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("requests", &self.requests.len()).finish()
    }
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request; its completion has `id`, if it is `told`.
    pub(crate) fn push(&mut self, id: u64, operation: Operation, local: Local, told: bool) {
        let (opcode, remote) = match operation {
            Operation::Send => (ffi::WR_SEND, ffi::SendWr::EMPTY.remote),
            Operation::Read { at, rkey } => (ffi::WR_RDMA_READ, rdma(at, rkey)),
            Operation::Write { at, rkey } => (ffi::WR_RDMA_WRITE, rdma(at, rkey)),
            Operation::CompareSwap { at, rkey, expected, new } => {
                (ffi::WR_CMP_AND_SWP, atomic(at, rkey, expected, new))
            }
            Operation::FetchAdd { at, rkey, delta } => {
                (ffi::WR_FETCH_AND_ADD, atomic(at, rkey, delta, 0))
            }
        };
        let send_flags = if told { ffi::SEND_SIGNALED } else { 0 };
        let request = ffi::SendWr { wr_id: id, opcode, send_flags, remote, ..ffi::SendWr::EMPTY };
        self.requests.push(request);
        self.elements.push(local.element());
    }

    /// Has the last one's completion told.
    pub(crate) fn tell_last(&mut self) {
        if let Some(last) = self.requests.last_mut() {
            last.send_flags |= ffi::SEND_SIGNALED;
        }
    }
}

fn rdma(addr: u64, rkey: u32) -> ffi::Remote {
    ffi::Remote { rdma: ffi::RemoteRdma { addr, rkey } }
}

fn atomic(addr: u64, rkey: u32, compare_add: u64, swap: u64) -> ffi::Remote {
    ffi::Remote { atomic: ffi::RemoteAtomic { addr, compare_add, swap, rkey } }
}

/// How many requests a queue pair may have on each side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) sends: usize,
    pub(crate) receives: usize,
}

/// A reliable connection's end.
pub(crate) struct QueuePair {
    domain: Arc<Domain>,
    raw: NonNull<ffi::Qp>,
    _completions: Arc<Completions>,
    _shared_receives: Option<Arc<SharedReceives>>,
    pub(crate) number: u32,
}

impl QueuePair {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        completions: &Arc<Completions>,
        shared_receives: Option<Arc<SharedReceives>>,
        room: Room,
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
        // SAFETY: the domain and both queues are there, and the pair keeps them (J1).
        let raw = made(unsafe { (functions.create_qp)(pd, &raw mut wanted) })?;
        // SAFETY: what was just made can be read, and its number does not change.
        let number = unsafe { raw.as_ref() }.qp_num;
        Ok(Self {
            domain: Arc::clone(domain),
            raw,
            _completions: Arc::clone(completions),
            _shared_receives: shared_receives,
            number,
        })
    }

    /// Sets the attributes that `mask` names.
    pub(crate) fn modify(&self, mut attributes: ffi::QpAttr, mask: c_int) -> io::Result<()> {
        let functions = self.domain.context.functions();
        // SAFETY: the pair is there; the library reads the attributes.
        check(unsafe { (functions.modify_qp)(self.raw.as_ptr(), &raw mut attributes, mask) })
    }

    /// Ends it: what is under way is given up, nothing more is received.
    pub(crate) fn fail(&self) {
        let attributes = ffi::QpAttr { qp_state: ffi::QPS_ERR, ..Default::default() };
        // A pair that cannot even fail is destroyed all the same.
        let _ = self.modify(attributes, ffi::QP_STATE);
    }

    /// Posts all of `batch`, by one doorbell, and empties it.
    ///
    /// After an error some of it may be under way: give the connection up.
    pub(crate) fn post(&self, batch: &mut Batch) -> io::Result<()> {
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
            // SAFETY: the pair is there, and the library reads a list that ends, of requests with one element each.
            posted = check(unsafe {
                (self.domain.context.post_send)(self.raw.as_ptr(), first, &raw mut bad)
            });
        }
        batch.requests.clear();
        batch.elements.clear();
        posted
    }

    /// Lends a place for one message; its completion has `id`.
    pub(crate) fn post_receive(&self, local: Local, id: u64) -> io::Result<()> {
        receive(local, id, |request, bad| {
            // SAFETY: the pair is there, and the library reads a list of one request, which does not move.
            unsafe { (self.domain.context.post_recv)(self.raw.as_ptr(), request, bad) }
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it is there, and this is the only time that it is destroyed.
        let _ = unsafe { (self.domain.context.functions().destroy_qp)(self.raw.as_ptr()) };
    }
}

macro_rules! any_thread {
    ($($name:ident)*) => {$(
        // SAFETY: libibverbs lets any thread use its objects; they are owned by this value alone.
        unsafe impl Send for $name {}
        // SAFETY: libibverbs locks what several threads use at once.
        unsafe impl Sync for $name {}

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

any_thread!(Context Domain Registration Channel Completions SharedReceives QueuePair);

// SAFETY: batches hold pointers only while one is being posted.
unsafe impl Send for Batch {}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}
