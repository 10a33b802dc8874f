//! `signal`: pages are made inaccessible by memory protection, and the handler of SIGSEGV reports
//! accesses to them, for machines where `userfaultfd` is not allowed.
//!
//! ```text
//! thread: access ─▶ SIGSEGV ─▶ handler: claim a seat, write both into the pipe, wait there
//! pager:                       read the pipe, touch the page, allow the access, wake the seat
//! thread:                      the handler returns, and the access is repeated
//! ```
//!
//! *Invariants*
//! - far.H1. The handler makes only system calls and atomic accesses, and takes no lock. The memory
//!   that it uses lives as long as the region.
//! - far.H2. A seat is claimed by one thread until that thread gives it up.
//! - far.H3. Every message ends in [`PageAccessProvider::allow`] for its page, which wakes all
//!   seats that wait for the page.
//!
//! A child process has copies of all this, but not the mapping: there, the handler passes the
//! signal on, which ends the child.
//!
//! A system call on an inaccessible page fails with `EFAULT` instead of waiting.
//!
//! *Thread safety*: faults come from any thread; [`SignalMemory`] belongs to the pager's thread.

use crate::arena::{ArenaMappings, refused};
use crate::memory::PageAccessProvider;
use crate::table::AccessKind;
use crate::{FarConfig, FarError};
use farleaf_fabric::Region;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, ProtFlags, mprotect};
use rustix::process::{Pid, getpid};
use rustix::thread::futex;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
// The kernel's futexes are words of 32 bits, which the fabric's types do not have.
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Regions of a process that use this provider at the same time.
const MAX_REGIONS: usize = 64;
/// Threads that wait for pages of one region at the same time; further ones try again and again.
const SEATS: usize = 256;
/// Most pages of the buffers of a process: every run of accessible pages is a mapping of its own
/// for the kernel, which allows 65,530.
const MAX_BUFFER_PAGES: u32 = 30_000;
/// Pages of the buffers of all regions of this process.
static BUFFER_PAGES: AtomicU32 = AtomicU32::new(0);

/// A region's part of [`BUFFER_PAGES`].
#[derive(Debug)]
struct BufferShare(u32);

impl BufferShare {
    fn take(pages: u32) -> Result<Self, FarError> {
        let add = |all: u32| all.checked_add(pages).filter(|all| *all <= MAX_BUFFER_PAGES);
        match BUFFER_PAGES.fetch_update(Ordering::AcqRel, Ordering::Acquire, add) {
            Ok(_) => Ok(Self(pages)),
            Err(others) => {
                let fault = format!(
                    "a buffer of {pages} pages with the provider `signal` beside {others} pages \
                     of other regions: use at most {MAX_BUFFER_PAGES} in a process"
                );
                Err(FarError::Config { fault })
            }
        }
    }
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        BUFFER_PAGES.fetch_sub(self.0, Ordering::AcqRel);
    }
}

/// The states of a seat.
const VACANT: u32 = 0;
const WAITING: u32 = 1;
const CALLED: u32 = 2;

/// An entry of the table by which the handler finds the region of an address.
struct HandlerEntry {
    start: AtomicUsize,
    end: AtomicUsize,
    region: AtomicPtr<SignalRange>,
}

static REGIONS: [HandlerEntry; MAX_REGIONS] = [const {
    HandlerEntry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        region: AtomicPtr::new(std::ptr::null_mut()),
    }
}; MAX_REGIONS];

/// Serializes changes of [`REGIONS`].
static CHANGES: OnceLock<Mutex<()>> = OnceLock::new();
/// The handler that was installed before.
static BEFORE: OnceLock<Result<libc::sigaction, i32>> = OnceLock::new();

/// A range of address space whose faults arrive by signals.
#[derive(Debug)]
pub(crate) struct SignalRange {
    arena: ArenaMappings,
    reader: OwnedFd,
    writer: OwnedFd,
    seats: Vec<AtomicU32>,
    /// The process that made the region. Its child processes have neither the mapping nor the
    /// pager.
    process: Pid,
    _share: BufferShare,
}

/// A page, a seat and whether the access is known to be a write.
type FaultMessage = [u8; 8];

fn encode(page: u32, seat: usize, writes: bool) -> FaultMessage {
    (u64::from(page) << 32 | (seat as u64) << 1 | u64::from(writes)).to_ne_bytes()
}

fn decode(message: FaultMessage) -> (u32, usize, bool) {
    let word = u64::from_ne_bytes(message);
    ((word >> 32) as u32, (word as u32 >> 1) as usize, word & 1 != 0)
}

impl SignalRange {
    /// Reserves the range, inaccessible, and installs the handler if it is the first one.
    pub(crate) fn new(config: &FarConfig) -> Result<Arc<Self>, FarError> {
        let share = BufferShare::take(config.buffer_pages)?;
        install()?;
        let arena = ArenaMappings::new(config, ProtFlags::empty())?;
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(refused("make a pipe for faults"))?;
        rustix::io::ioctl_fionbio(&reader, true).map_err(refused("read a pipe without waiting"))?;
        let seats = (0..SEATS).map(|_| AtomicU32::new(VACANT)).collect();
        let process = getpid();
        let signals = Arc::new(Self { arena, reader, writer, seats, process, _share: share });
        let _changes = lock(CHANGES.get_or_init(Mutex::default));
        let entry = REGIONS.iter().find(|entry| entry.start.load(Ordering::Acquire) == 0);
        let entry = entry.ok_or_else(|| FarError::System {
            action: "add a region of far memory by signals",
            cause: format!("this process has {MAX_REGIONS} of them"),
        })?;
        let start = signals.arena.base().as_ptr().addr();
        entry.region.store(Arc::as_ptr(&signals).cast_mut(), Ordering::Release);
        entry.end.store(start + signals.arena.bytes(), Ordering::Release);
        entry.start.store(start, Ordering::Release);
        Ok(signals)
    }

    pub(crate) fn arena(&self) -> &ArenaMappings {
        &self.arena
    }

    /// Waits, in the handler, until the pager has dealt with an access to `page`.
    fn wait(&self, page: u32, writes: bool) {
        let claimed = loop {
            let claim = |seat: &AtomicU32| {
                let (relaxed, acquire) = (Ordering::Relaxed, Ordering::Acquire);
                seat.compare_exchange(VACANT, WAITING, acquire, relaxed).is_ok()
            };
            match self.seats.iter().position(claim) {
                Some(seat) => break seat,
                None => rustix::thread::sched_yield(),
            }
        };
        let message = encode(page, claimed, writes);
        let seat = &self.seats[claimed];
        // A write of so few bytes is never split. If it is refused, the access faults again.
        loop {
            match rustix::io::write(&self.writer, &message) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(_) => return seat.store(VACANT, Ordering::Release),
            }
        }
        while seat.load(Ordering::Acquire) == WAITING {
            // It ends early if the seat was called meanwhile, or by another signal.
            let _ = futex::wait(seat, futex::Flags::PRIVATE, WAITING, None);
        }
        seat.store(VACANT, Ordering::Release); // H2
    }

    fn call(&self, seat: usize) {
        self.seats[seat].store(CALLED, Ordering::Release);
        let _ = futex::wake(&self.seats[seat], futex::Flags::PRIVATE, 1);
    }

    fn set_rights(&self, pages: &Range<u32>, rights: MprotectFlags) {
        let (start, bytes) = self.arena.span(pages);
        // SAFETY: the range is inside the program's mapping, which is accessed through atomics or
        // pointers only, and an access that is not allowed waits in the handler.
        let done = unsafe { mprotect(start, bytes, rights) };
        // Without it, threads would write to pages that are on their way.
        done.unwrap_or_else(|errno| panic!("cannot protect pages of far memory: {errno}"));
    }
}

impl Drop for SignalRange {
    fn drop(&mut self) {
        let _changes = lock(CHANGES.get_or_init(Mutex::default));
        let start = self.arena.base().as_ptr().addr();
        for entry in REGIONS.iter().filter(|entry| entry.start.load(Ordering::Acquire) == start) {
            entry.start.store(0, Ordering::Release);
            entry.end.store(0, Ordering::Release);
        }
    }
}

/// Installs the handler, once in a process.
fn install() -> Result<(), FarError> {
    let installed = BEFORE.get_or_init(|| {
        // SAFETY: all fields of this structure of C may be zeros.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the handler does only what a handler may do (H1), and passes on what is not about
        // far memory.
        match unsafe { libc::sigaction(libc::SIGSEGV, &action, &mut before) } {
            0 => Ok(before),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    });
    installed
        .as_ref()
        .map(|_| ())
        .map_err(|errno| refused("handle SIGSEGV for far memory")(Errno::from_raw_os_error(*errno)))
}

extern "C" fn handle(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid structure.
    let info_ref = unsafe { &*info };
    // SAFETY: SIGSEGV has an address.
    let address = unsafe { info_ref.si_addr() }.addr();
    for entry in &REGIONS {
        let start = entry.start.load(Ordering::Acquire);
        let end = entry.end.load(Ordering::Acquire);
        let region = entry.region.load(Ordering::Acquire);
        let is_same = || entry.start.load(Ordering::Acquire) == start;
        if start == 0 || address < start || address >= end || !is_same() {
            continue;
        }
        // SAFETY: an entry changes its pointer only while its start is 0, so the pointer belongs to
        // this range. A program that accesses the range holds its region, so that it lives. (An
        // access to a region that ends meanwhile is undefined anyway.)
        let region = unsafe { &*region };
        if region.process == getpid()
            && let Some(page) = region.arena.page_at(address)
        {
            return region.wait(page, writes(context));
        }
    }
    // A signal that another process or thread has sent is not repeated by itself.
    let is_sent = info_ref.si_code <= 0;
    pass_on(number, info, context, is_sent);
}

/// Whether the access is known to be a write.
#[cfg(target_arch = "x86_64")]
fn writes(context: *mut c_void) -> bool {
    /// The bit of a page fault's error code that says so.
    const WRITE: i64 = 2;
    // SAFETY: the kernel passes this structure to handlers with `SA_SIGINFO`.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0
}

/// Whether the access is known to be a write: the pager finds out by its being repeated.
#[cfg(not(target_arch = "x86_64"))]
fn writes(_: *mut c_void) -> bool {
    false
}

/// Calls the handler that was there before, for a signal that is not about far memory.
fn pass_on(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_sent: bool) {
    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let before = match BEFORE.get() {
        Some(Ok(before)) if !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => before,
        Some(Ok(before)) if is_sent && before.sa_sigaction == libc::SIG_IGN => return,
        _ => {
            // SAFETY: all fields of this structure of C may be zeros, which is the default action.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the access is repeated when this handler returns, and then ends the process.
            unsafe { libc::sigaction(number, &default, std::ptr::null_mut()) };
            if is_sent {
                // SAFETY: it is blocked until this handler returns, and then ends the process.
                unsafe { libc::raise(number) };
            }
            return;
        }
    };
    // SAFETY: the value was a handler of this signal. One that wants no information gets arguments
    // that it ignores.
    let handler =
        unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(before.sa_sigaction) };
    handler(number, info, context);
    if !is_sent {
        return;
    }
    // SAFETY: all fields of this structure of C may be zeros.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads the action.
    unsafe { libc::sigaction(number, std::ptr::null(), &mut now) };
    if now.sa_sigaction == libc::SIG_DFL {
        // The handler of Rust's runtime expects the access to be repeated, and there is none.
        // SAFETY: it is blocked until this handler returns, and then ends the process.
        unsafe { libc::raise(number) };
    }
}

/// The pager's side.
#[derive(Debug)]
pub(crate) struct SignalMemory {
    signals: Arc<SignalRange>,
    rights: Vec<Cell<Option<AccessKind>>>,
    /// By page: the seats that wait for it.
    waiting: RefCell<BTreeMap<u32, Vec<usize>>>,
}

impl SignalMemory {
    pub(crate) fn new(signals: Arc<SignalRange>, pages: u32) -> Self {
        let rights = (0..pages).map(|_| Cell::new(None)).collect();
        Self { signals, rights, waiting: RefCell::default() }
    }

    /// Becomes readable when there are faults.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.signals.reader.as_fd()
    }

    pub(crate) fn arena(&self) -> &ArenaMappings {
        &self.signals.arena
    }

    /// Passes the next faults to `report`. Returns whether there may be more.
    pub(crate) fn take(&self, report: &mut dyn FnMut(u32, AccessKind)) -> bool {
        let mut messages = [0; SEATS * size_of::<FaultMessage>()];
        let read = match rustix::io::read(&self.signals.reader, &mut messages) {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(errno) => panic!("cannot read faults of far memory: {errno}"),
        };
        for message in messages[..read].chunks_exact(size_of::<FaultMessage>()) {
            let (page, seat, writes) = decode(message.try_into().expect("8 bytes"));
            self.waiting.borrow_mut().entry(page).or_default().push(seat);
            // Reading was allowed, at least meanwhile: elsewhere than on x86-64, it is a write.
            let is_readable = self.rights[page as usize].get().is_some();
            let writes = writes || (is_readable && !cfg!(target_arch = "x86_64"));
            report(page, if writes { AccessKind::Write } else { AccessKind::Read });
        }
        read == messages.len()
    }

    /// Sets the rights of pages that have others.
    fn set(&self, pages: Range<u32>, access: Option<AccessKind>) {
        let rights = match access {
            None => MprotectFlags::empty(),
            Some(AccessKind::Read) => MprotectFlags::READ,
            Some(AccessKind::Write) => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        if pages.clone().any(|page| self.rights[page as usize].get() != access) {
            self.signals.set_rights(&pages, rights);
            pages.for_each(|page| self.rights[page as usize].set(access));
        }
    }
}

impl PageAccessProvider for SignalMemory {
    fn view(&self) -> &Arc<Region> {
        self.signals.arena.view()
    }

    fn zero(&self, page: u32) {
        self.signals.arena.zero(page);
    }

    fn is_allowed(&self, page: u32, access: AccessKind) -> bool {
        self.rights[page as usize].get() >= Some(access)
    }

    fn allow(&self, page: u32, access: AccessKind) {
        let right = self.rights[page as usize].get().max(Some(access));
        self.set(page..page + 1, right);
        let waiting = self.waiting.borrow_mut().remove(&page); // H3
        waiting.into_iter().flatten().for_each(|seat| self.signals.call(seat));
    }

    fn protect(&self, pages: Range<u32>) {
        self.set(pages, Some(AccessKind::Read));
    }

    fn hide(&self, page: u32) {
        self.set(page..page + 1, None);
    }

    fn remove(&self, pages: Range<u32>) {
        self.set(pages.clone(), None);
        self.signals.arena.remove(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_fields() {
        for page in [0, 7, (1 << 28) - 1] {
            for seat in [0, 1, SEATS - 1] {
                for writes in [false, true] {
                    assert_eq!(decode(encode(page, seat, writes)), (page, seat, writes));
                }
            }
        }
    }
}
