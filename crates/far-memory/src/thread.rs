//! The pager's thread: it waits for faults, completions and requests together.
//!
//! *Invariants*
//! - far.D1. The thread accesses the region by the pager's view only, and runs no handlers of the
//!   program's signals, so it never waits for itself.
//! - far.D2. Faults and requests are read before the thread blocks, and everything that they post
//!   is sent.
//! - far.D3. The thread ends only when the region ends. If it panics, the process aborts: threads
//!   would wait for their pages forever.
//!
//! *Thread safety*: one thread; the requests come from any.

use crate::memory::PageAccessProvider;
use crate::pager::Pager;
use crate::reach::EndpointSource;
use crate::space::ChunkSpace;
use crate::stats::FarStats;
use crate::table::AccessKind;
use crate::{FarConfig, FarError};
use farleaf_fabric::executor::{Driver, Executor, TurnState};
use farleaf_fabric::provider::WakeFd;
use farleaf_fabric::sync::{Mutex, lock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::SyncSender;

/// Where a request's answer goes.
pub(crate) type AnswerSender<T> = SyncSender<T>;

/// What a thread of the program asks for.
#[derive(Debug)]
pub(crate) enum PagerRequest {
    Ensure(Vec<Range<u32>>, AnswerSender<Result<(), FarError>>),
    Hold(Range<u32>, AnswerSender<Result<(), FarError>>),
    Release(Range<u32>),
    Discard(Range<u32>, AnswerSender<Result<(), FarError>>),
    WillNeed(Range<u32>),
    Sequential(Range<u32>),
    Evict(Range<u32>, AnswerSender<()>),
    Stats(AnswerSender<FarStats>),
    Check(AnswerSender<()>),
    Stop,
}

/// Requests on their way to the pager's thread.
#[derive(Debug)]
pub(crate) struct PagerRequests {
    queue: Mutex<PagerQueue>,
    wake: WakeFd,
}

#[derive(Debug, Default)]
struct PagerQueue {
    requests: VecDeque<PagerRequest>,
    is_closed: bool,
}

impl PagerRequests {
    pub(crate) fn new() -> Result<Self, FarError> {
        let wake = WakeFd::new().map_err(|error| FarError::System {
            action: "make a descriptor for the pager",
            cause: error.to_string(),
        })?;
        Ok(Self { queue: Mutex::default(), wake })
    }

    /// Posts a request. If the thread has ended, it is dropped, and nothing answers it.
    pub(crate) fn post(&self, request: PagerRequest) {
        {
            let mut queue = lock(&self.queue);
            if queue.is_closed {
                return;
            }
            queue.requests.push_back(request);
        }
        self.wake.wake();
    }

    fn take(&self) -> VecDeque<PagerRequest> {
        std::mem::take(&mut lock(&self.queue).requests)
    }

    fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        queue.requests.clear();
    }
}

/// Where the thread hears of faults.
pub(crate) trait FaultSource: PageAccessProvider + 'static {
    /// Becomes readable when there are faults.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Passes the next faults to `report`. Returns whether there may be more.
    fn take(&self, report: &mut dyn FnMut(u32, AccessKind)) -> bool;

    /// The address of a page, for messages.
    fn address(&self, page: u32) -> usize;
}

/// Groups of the executor's tasks.
const PAGER: u32 = 0;
const TOUCHES: u32 = 1;
/// Polls of tasks between two looks for faults.
const POLLS: usize = 64;

/// Ends the process if the thread panics (D3).
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            abort_with("the pager of far memory has failed, aborting: threads would wait forever");
        }
    }
}

/// Runs the pager of one region until [`PagerRequest::Stop`]. `started` gets the outcome of the
/// start.
pub(crate) fn serve<R: EndpointSource, M: FaultSource, S: ChunkSpace<R::Fabric>>(
    config: FarConfig,
    (reach, memory, space): (R, M, S),
    requests: &PagerRequests,
    started: &AnswerSender<Result<(), FarError>>,
) {
    let _guard = AbortOnPanic;
    block_signals();
    let opened = reach.open().and_then(|(driver, fabric)| {
        let pager = Pager::new(config, fabric, memory, space)?;
        Ok((driver, pager))
    });
    match opened {
        Ok((driver, pager)) => {
            let _ = started.send(Ok(()));
            turn::<R, M, S>(&driver, &pager, requests);
        }
        Err(error) => drop(started.send(Err(error))),
    }
    requests.close();
}

fn turn<R: EndpointSource, M: FaultSource, S: ChunkSpace<R::Fabric>>(
    driver: &R::Driver,
    pager: &Pager<R::Fabric, M, S>,
    requests: &PagerRequests,
) {
    let mut executor = Executor::new();
    let task = pager.clone();
    executor.spawn(PAGER, async move { task.run().await });
    let mut is_stopping = false;
    loop {
        driver.wait(0);
        let more = pager.memory().take(&mut |page, access| {
            let pager = pager.clone();
            executor.spawn(TOUCHES, async move {
                if let Err(error) = pager.touch(page, access).await {
                    end_process(pager.memory().address(page), &error);
                }
            });
        });
        for request in requests.take() {
            is_stopping |= matches!(request, PagerRequest::Stop);
            begin(&mut executor, pager, request);
        }
        match executor.turn(driver, POLLS) {
            TurnState::Busy => {}
            TurnState::Idle { .. } if is_stopping && executor.live() == 0 => return,
            TurnState::Idle { ns, has_advanced } if !has_advanced && !more => {
                wait(R::descriptor(driver), pager.memory().descriptor(), &requests.wake, ns);
            }
            TurnState::Idle { .. } => {}
        }
    }
}

/// A thread has accessed a page whose content cannot be had, and no error can reach it.
fn end_process(address: usize, error: &FarError) {
    if *error == FarError::Stopped {
        return;
    }
    abort_with(&format!("access to far memory at {address:#x} failed, aborting: {error}"));
}

/// Writes a line and ends the process. It takes no lock of the standard library's streams: a thread
/// that waits for far memory may have it.
fn abort_with(message: &str) -> ! {
    let line = format!("farleaf: {message}\n");
    // SAFETY: the descriptor is used for one write. If the program has closed it, the write fails.
    let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    // Nothing more can be done if it is refused.
    let _ = rustix::io::write(stderr, line.as_bytes());
    std::process::abort();
}

/// Blocks the signals of the program in this thread (D1). A handler that ran here and accessed far
/// memory would wait for this thread. Signals of faults of its own still end the process.
fn block_signals() {
    // SAFETY: the set is filled by the next call.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid, here and below.
    unsafe { libc::sigfillset(&mut all) };
    for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&mut all, own) };
    }
    // SAFETY: as above; it concerns this thread alone, and cannot fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) };
}

fn begin<F, M, S>(executor: &mut Executor<'_>, pager: &Pager<F, M, S>, request: PagerRequest)
where
    F: farleaf_fabric::Fabric,
    M: PageAccessProvider + 'static,
    S: ChunkSpace<F>,
{
    let pager = pager.clone();
    // A program that no longer waits for an answer has closed its channel.
    match request {
        PagerRequest::Ensure(parts, answer) => executor.spawn(TOUCHES, async move {
            let mut outcome = Ok(());
            for pages in parts {
                outcome = pager.ensure(pages).await;
                if outcome.is_err() {
                    break;
                }
            }
            _ = answer.send(outcome);
        }),
        PagerRequest::Hold(pages, answer) => executor.spawn(TOUCHES, async move {
            let outcome = pager.hold(pages.clone()).await;
            let is_held = outcome.is_ok();
            if answer.send(outcome).is_err() && is_held {
                pager.release(pages);
            }
        }),
        PagerRequest::Release(pages) => pager.release(pages),
        PagerRequest::Discard(pages, answer) => {
            executor.spawn(TOUCHES, async move { _ = answer.send(pager.discard(pages).await) });
        }
        PagerRequest::WillNeed(pages) => pager.will_need(pages),
        PagerRequest::Sequential(pages) => pager.sequential(pages),
        PagerRequest::Evict(pages, answer) => {
            executor.spawn(TOUCHES, async move {
                pager.evict(pages).await;
                _ = answer.send(());
            });
        }
        PagerRequest::Stats(answer) => drop(answer.send(pager.stats())),
        PagerRequest::Check(answer) => {
            pager.check();
            let _ = answer.send(());
        }
        PagerRequest::Stop => pager.stop(),
    }
}

/// Blocks until there are faults, completions or requests, or until `ns` have passed.
fn wait(driver: Option<BorrowedFd<'_>>, faults: BorrowedFd<'_>, requests: &WakeFd, ns: u64) {
    let mut all = vec![
        PollFd::from_borrowed_fd(faults, PollFlags::IN),
        PollFd::from_borrowed_fd(requests.as_fd(), PollFlags::IN),
    ];
    all.extend(driver.map(|driver| PollFd::from_borrowed_fd(driver, PollFlags::IN)));
    let billion = 1_000_000_000;
    let limit = Timespec {
        tv_sec: (ns / billion).min(3600).cast_signed(),
        tv_nsec: (ns % billion).cast_signed(),
    };
    // An interruption only shortens the wait.
    let _ = poll(&mut all, Some(&limit));
    if !all[1].revents().is_empty() {
        requests.clear();
    }
}

impl FaultSource for crate::userfault::UserfaultMemory {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.userfault().descriptor()
    }

    fn take(&self, report: &mut dyn FnMut(u32, AccessKind)) -> bool {
        self.userfault().take(report)
    }

    fn address(&self, page: u32) -> usize {
        self.userfault().arena().span(&(page..page)).0.addr()
    }
}

impl FaultSource for crate::signal::SignalMemory {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }

    fn take(&self, report: &mut dyn FnMut(u32, AccessKind)) -> bool {
        self.take(report)
    }

    fn address(&self, page: u32) -> usize {
        self.arena().span(&(page..page)).0.addr()
    }
}
