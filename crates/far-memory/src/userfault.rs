//! `userfaultfd`: the kernel reports accesses to missing and write-protected pages of a range over
//! a descriptor. The faulting thread sleeps in the kernel until its page is in place.
//!
//! Three kinds of faults are asked for. *Missing*: the page has no memory. *Minor*: it has memory,
//! which the pager has put there by its view, but the program has no access yet. *Write protect*:
//! the program may only read it. So a page is filled out of sight, and appears at once.
//!
//! *Invariants*
//! - far.U1. The program's mapping ends before the descriptor is closed. After closing, the kernel
//!   would answer faults with zeros.
//! - far.U2. Every fault that is read from the descriptor ends in [`PageAccessProvider::allow`] for
//!   its page, which wakes all threads that wait for the page.
//!
//! *Thread safety*: the descriptor and the arena are for any thread; [`UserfaultMemory`] belongs to
//! the pager's thread.

use crate::arena::{ArenaMappings, refused};
use crate::memory::PageAccessProvider;
use crate::table::AccessKind;
use crate::{FarConfig, FarError};
use farleaf_fabric::Region;
use farleaf_fabric::sync::Arc;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};
use rustix::mm::{Advice, ProtFlags, UserfaultfdFlags, userfaultfd};
use std::cell::Cell;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The kernel's structures, as in `linux/userfaultfd.h`.
mod kernel {
    use rustix::ioctl::{Opcode, opcode};

    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Api {
        pub(super) api: u64,
        pub(super) features: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub(super) struct UserfaultRange {
        pub(super) start: u64,
        pub(super) len: u64,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Register {
        pub(super) range: UserfaultRange,
        pub(super) mode: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub(super) struct WriteProtect {
        pub(super) range: UserfaultRange,
        pub(super) mode: u64,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Continue {
        pub(super) range: UserfaultRange,
        pub(super) mode: u64,
        /// Bytes done, or a negative error if none.
        pub(super) mapped: i64,
    }

    const TYPE: u8 = 0xaa;
    pub(super) const API: Opcode = opcode::read_write::<Api>(TYPE, 0x3f);
    pub(super) const REGISTER: Opcode = opcode::read_write::<Register>(TYPE, 0x00);
    pub(super) const WAKE: Opcode = opcode::read::<UserfaultRange>(TYPE, 0x02);
    pub(super) const WRITE_PROTECT: Opcode = opcode::read_write::<WriteProtect>(TYPE, 0x06);
    pub(super) const CONTINUE: Opcode = opcode::read_write::<Continue>(TYPE, 0x07);

    pub(super) const API_VERSION: u64 = 0xaa;
    /// Write protection, missing and minor faults in shared memory, and write protection there.
    pub(super) const FEATURES: u64 = 1 | 1 << 5 | 1 << 10 | 1 << 12;
    /// Missing, write protect and minor.
    pub(super) const REGISTER_MODES: u64 = 1 | 2 | 4;
    pub(super) const WRITE_PROTECTED: u64 = 1;
    pub(super) const CONTINUE_PROTECTED: u64 = 2;
    /// `UFFD_USER_MODE_ONLY`.
    pub(super) const USER_MODE_ONLY: u32 = 1;

    /// A message: an event, then flags and the address.
    pub(super) const MESSAGE_BYTES: usize = 32;
    pub(super) const PAGE_FAULT: u8 = 0x12;
    pub(super) const FAULT_FLAGS: usize = 8;
    pub(super) const FAULT_ADDRESS: usize = 16;
    /// The access was a write, or met write protection.
    pub(super) const WRITES: u64 = 1 | 2;

    const _: () = assert!(size_of::<Api>() == 24 && size_of::<Register>() == 32);
    const _: () = assert!(size_of::<WriteProtect>() == 24 && size_of::<Continue>() == 32);
}

/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`, with the flags of the system call.
struct NewDescriptor(UserfaultfdFlags);

// SAFETY: the opcode takes its flags by value, so the kernel reads and writes no memory of ours,
// and it returns a new descriptor.
unsafe impl Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(0xaa, 0x00)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0.bits() as usize)
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel has just made this descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(out as RawFd) })
    }
}

/// Faults read at a time.
const FAULTS: usize = 32;
/// Attempts at a call that the kernel refuses while it changes the address space.
const MAX_ATTEMPTS: u32 = 10_000;

/// A range of address space whose faults arrive at a descriptor.
#[derive(Debug)]
pub(crate) struct Userfault {
    // Dropped in this order (U1).
    arena: ArenaMappings,
    descriptor: OwnedFd,
    has_kernel_faults: bool,
}

impl Userfault {
    /// Reserves the range and registers it.
    pub(crate) fn new(config: &FarConfig) -> Result<Self, FarError> {
        let (descriptor, has_kernel_faults) = open()?;
        let mut api =
            kernel::Api { api: kernel::API_VERSION, features: kernel::FEATURES, ioctls: 0 };
        call::<{ kernel::API }, _>(descriptor.as_fd(), &mut api)
            .map_err(refused("use userfaultfd for shared memory; Linux 6.4 can"))?;
        let arena = ArenaMappings::new(config, ProtFlags::READ | ProtFlags::WRITE)?;
        let (start, bytes) = arena.span(&(0..config.pages()));
        let range = kernel::UserfaultRange { start: start.addr() as u64, len: bytes as u64 };
        let mut register = kernel::Register { range, mode: kernel::REGISTER_MODES, ioctls: 0 };
        call::<{ kernel::REGISTER }, _>(descriptor.as_fd(), &mut register)
            .map_err(refused("register far memory with userfaultfd"))?;
        let userfault = Self { arena, descriptor, has_kernel_faults };
        userfault.probe()?;
        Ok(userfault)
    }

    /// Whether system calls can wait for pages. Otherwise they fail with `EFAULT`.
    pub(crate) fn has_kernel_faults(&self) -> bool {
        self.has_kernel_faults
    }

    pub(crate) fn arena(&self) -> &ArenaMappings {
        &self.arena
    }

    /// Becomes readable when there are faults.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Passes the next faults to `report`. Returns whether there may be more.
    pub(crate) fn take(&self, mut report: impl FnMut(u32, AccessKind)) -> bool {
        let mut messages = [0; FAULTS * kernel::MESSAGE_BYTES];
        let read = match rustix::io::read(&self.descriptor, &mut messages) {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(errno) => panic!("cannot read faults of far memory: {errno}"),
        };
        for message in messages[..read].chunks_exact(kernel::MESSAGE_BYTES) {
            let word = |at: usize| {
                u64::from_ne_bytes(message[at..at + 8].try_into().expect("a message has this word"))
            };
            if message[0] != kernel::PAGE_FAULT {
                continue;
            }
            let writes = word(kernel::FAULT_FLAGS) & kernel::WRITES != 0;
            let access = if writes { AccessKind::Write } else { AccessKind::Read };
            let address = word(kernel::FAULT_ADDRESS) as usize;
            let page = self.arena.page_at(address).expect("faults are inside the region");
            report(page, access);
        }
        read == messages.len()
    }

    /// Checks that the kernel can show a page write-protected, on the first page, which no thread
    /// knows yet.
    fn probe(&self) -> Result<(), FarError> {
        self.arena.zero(0);
        let shown = self
            .show(&(0..1), true)
            .map_err(refused("show pages write-protected by userfaultfd, which needs Linux 6.4"));
        self.arena.remove(0..1);
        shown
    }

    fn range(&self, pages: &Range<u32>) -> kernel::UserfaultRange {
        let (start, bytes) = self.arena.span(pages);
        kernel::UserfaultRange { start: start.addr() as u64, len: bytes as u64 }
    }

    /// Lets the program see what has memory but is not mapped, and wakes it.
    fn show(&self, pages: &Range<u32>, is_protected: bool) -> Result<(), Errno> {
        let kernel::UserfaultRange { start, len } = self.range(pages);
        let end = start + len;
        let mode = if is_protected { kernel::CONTINUE_PROTECTED } else { 0 };
        let (mut at, mut attempts) = (start, 0);
        while at < end {
            let range = kernel::UserfaultRange { start: at, len: end - at };
            let mut request = kernel::Continue { range, mode, mapped: 0 };
            match call::<{ kernel::CONTINUE }, _>(self.descriptor(), &mut request) {
                Ok(()) => return Ok(()),
                // Another part of the page was mapped before, or is now.
                Err(Errno::EXIST) => at += crate::arena::SYSTEM_PAGE_BYTES as u64,
                Err(Errno::AGAIN) if attempts < MAX_ATTEMPTS => attempts += 1,
                Err(errno) => return Err(errno),
            }
            at += u64::try_from(request.mapped).unwrap_or(0);
        }
        Ok(())
    }

    /// Sets or ends write protection; ending it wakes the program.
    fn set_protection(&self, pages: &Range<u32>, is_protected: bool) -> Result<(), Errno> {
        let mode = if is_protected { kernel::WRITE_PROTECTED } else { 0 };
        let range = self.range(pages);
        for _ in 0..MAX_ATTEMPTS {
            let mut request = kernel::WriteProtect { range, mode };
            match call::<{ kernel::WRITE_PROTECT }, _>(self.descriptor(), &mut request) {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
        }
        Err(Errno::AGAIN)
    }

    fn wake(&self, pages: &Range<u32>) -> Result<(), Errno> {
        let mut range = self.range(pages);
        call::<{ kernel::WAKE }, _>(self.descriptor(), &mut range)
    }
}

/// A descriptor, and whether it also reports faults of system calls.
fn open() -> Result<(OwnedFd, bool), FarError> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    let new = |flags| {
        // SAFETY: the descriptor is used for ranges of our own only.
        unsafe { userfaultfd(flags) }
    };
    if let Ok(descriptor) = new(flags) {
        return Ok((descriptor, true));
    }
    if let Ok(device) = std::fs::File::options().read(true).write(true).open("/dev/userfaultfd") {
        // SAFETY: the device has this request, which takes flags by value.
        let opened = unsafe { ioctl(&device, NewDescriptor(flags)) };
        if let Ok(descriptor) = opened {
            return Ok((descriptor, true));
        }
    }
    let user_mode_only = UserfaultfdFlags::from_bits_retain(kernel::USER_MODE_ONLY);
    let descriptor = new(flags | user_mode_only).map_err(refused(
        "open userfaultfd; allow the system call or /dev/userfaultfd, or use another provider",
    ))?;
    Ok((descriptor, false))
}

/// A request that the kernel may change.
fn call<const OPCODE: Opcode, T>(
    descriptor: BorrowedFd<'_>,
    value: &mut T,
) -> rustix::io::Result<()> {
    // SAFETY: each opcode is used with its own structure, all of whose values are valid.
    let request = unsafe { Updater::<OPCODE, T>::new(value) };
    // SAFETY: the requests concern ranges of the arena only, which lives longer. They change
    // rights to access it, and no content.
    unsafe { ioctl(descriptor, request) }
}

/// The pager's side.
#[derive(Debug)]
pub(crate) struct UserfaultMemory {
    userfault: Arc<Userfault>,
    /// What each page has been allowed. The program can give up rights by itself, by `madvise`.
    rights: Vec<Cell<Option<AccessKind>>>,
}

impl UserfaultMemory {
    pub(crate) fn new(userfault: Arc<Userfault>, pages: u32) -> Self {
        Self { userfault, rights: (0..pages).map(|_| Cell::new(None)).collect() }
    }

    pub(crate) fn userfault(&self) -> &Arc<Userfault> {
        &self.userfault
    }

    fn limit(&self, pages: &Range<u32>, access: Option<AccessKind>) {
        for page in pages.clone() {
            let right = &self.rights[page as usize];
            right.set(right.get().min(access));
        }
    }
}

/// A call on the region's own pages fails only if the kernel breaks its contract, or has no memory
/// for page tables; the program could not go on.
fn must<T>(done: Result<T, Errno>, what: &str) -> T {
    done.unwrap_or_else(|errno| panic!("cannot {what} pages of far memory: {errno}"))
}

impl PageAccessProvider for UserfaultMemory {
    fn view(&self) -> &Arc<Region> {
        self.userfault.arena.view()
    }

    fn zero(&self, page: u32) {
        self.userfault.arena.zero(page);
    }

    fn is_allowed(&self, page: u32, access: AccessKind) -> bool {
        self.rights[page as usize].get() >= Some(access)
    }

    fn allow(&self, page: u32, access: AccessKind) {
        let (pages, right) = (page..page + 1, &self.rights[page as usize]);
        match right.get() {
            Some(AccessKind::Read) if access == AccessKind::Write => {
                must(self.userfault.set_protection(&pages, false), "unprotect");
            }
            // A page that was allowed before and faults again was unmapped by the program, or two
            // threads have met the same fault.
            before => {
                let is_protected = access == AccessKind::Read && before != Some(AccessKind::Write);
                must(self.userfault.show(&pages, is_protected), "show");
                must(self.userfault.wake(&pages), "wake threads for");
            }
        }
        right.set(right.get().max(Some(access)));
    }

    fn protect(&self, pages: Range<u32>) {
        must(self.userfault.set_protection(&pages, true), "protect");
        self.limit(&pages, Some(AccessKind::Read));
    }

    fn hide(&self, page: u32) {
        let pages = page..page + 1;
        self.limit(&pages, None);
        let hidden = self.userfault.arena.advise(pages, Advice::LinuxDontNeed);
        hidden.expect("pages of the region can be unmapped");
    }

    fn remove(&self, pages: Range<u32>) {
        self.limit(&pages, None);
        self.userfault.arena.remove(pages);
    }
}
