//! The poll-mode executor: one thread, many tasks, woken one by one.
//!
//! A completion wakes the one task that waits for it, and only that task is polled. When no task is
//! ready, the executor asks its [`Driver`] for progress. A real provider checks its timers or
//! blocks until another thread wakes a task; the simulator advances virtual time to its next event.
//! A driver with sockets blocks on these itself ([`Driver::wait`]). A caller that has its own event
//! loop calls [`Executor::turn`] instead of running the executor.
//!
//! *Invariants*: X1. A task is polled only after it was spawned or woken. X2. Tasks that their own
//! thread woke are polled in that order; tasks that other threads woke follow soon after. X3. A
//! task of a killed group is dropped and never polled again.
//!
//! *Thread safety*: tasks stay on the executor's thread (they are `!Send`); wakers may go to any
//! thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Lets other tasks go on, once: those that are ready now are polled before the task goes on. For
/// any executor.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

// Wakers cross threads outside the code that the model checker covers, and need a condition
// variable.
type StdMutex<T> = std::sync::Mutex<T>;
type StdAtomicBool = std::sync::atomic::AtomicBool;

use std::sync::atomic::Ordering;

/// A task that a driver asks the executor to spawn.
pub type BoxTask = Pin<Box<dyn Future<Output = ()>>>;

/// A driver's requests to its executor.
#[derive(Default)]
pub struct ExecutorRequests {
    /// Tasks to spawn, each with its group.
    pub spawn: Vec<(u32, BoxTask)>,
    /// Groups to kill at once.
    pub kill: Vec<u32>,
}

impl std::fmt::Debug for ExecutorRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutorRequests")
            .field("spawn", &self.spawn.len())
            .field("kill", &self.kill)
            .finish()
    }
}

/// The result of asking a driver for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverProgress {
    /// Something happened; check for ready tasks.
    Advanced,
    /// Nothing yet: wait until another thread wakes a task or `ns` nanoseconds pass.
    Wait {
        /// The longest wait before asking again, in nanoseconds.
        ns: u64,
    },
    /// Nothing will ever happen again.
    Stuck,
}

/// The state in which [`Executor::turn`] leaves the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// Every task waits. Turn again after at most `ns` nanoseconds, or when the driver's descriptor
    /// becomes readable because of its own sockets or its [`Driver::unparker`].
    Idle {
        /// The longest wait before the next turn, in nanoseconds.
        ns: u64,
        /// Whether the driver made progress. If so, its sockets may have more.
        has_advanced: bool,
    },
    /// Tasks are ready, but the turn has used up its polls.
    Busy,
}

/// Makes progress when none of an executor's tasks is ready.
pub trait Driver {
    /// Called before each check for ready tasks; returns tasks to spawn and groups to kill.
    fn requests(&self) -> Option<ExecutorRequests>;

    /// Called when no task is ready.
    fn progress(&self) -> DriverProgress;

    /// Whether [`Driver::progress`] must be called even though tasks are ready, because other
    /// threads or peers wait for the effects of earlier polls. Checked between two polls by
    /// [`Executor::run`].
    fn is_due(&self) -> bool {
        false
    }

    /// A waker that ends a [`Driver::wait`] from any thread, or the next one if none is in
    /// progress. If a driver has none, the executor itself does the waiting.
    fn unparker(&self) -> Option<Waker> {
        None
    }

    /// Called after [`DriverProgress::Wait`] if there is a [`Driver::unparker`]: blocks for at most
    /// `ns`.
    fn wait(&self, _ns: u64) {}
}

thread_local! {
    /// The executor that runs on this thread, and its tasks that this thread has woken. Almost all
    /// wakes end up here and need no lock. Empty while no executor runs.
    static HERE: RefCell<CurrentExecutor> = const { RefCell::new(CurrentExecutor { queue: None, tasks: VecDeque::new() }) };
}

struct CurrentExecutor {
    queue: Option<Arc<ReadyQueue>>,
    tasks: VecDeque<Arc<TaskHandle>>,
}

/// An executor that runs on this thread, until it is dropped.
struct RunningExecutor {
    before: CurrentExecutor,
}

impl RunningExecutor {
    fn new(queue: &Arc<ReadyQueue>) -> Self {
        let mut state = lock_std(&queue.state);
        let tasks = std::mem::take(&mut state.tasks);
        queue.is_shared.store(false, Ordering::Release);
        drop(state);
        let here = CurrentExecutor { queue: Some(Arc::clone(queue)), tasks };
        Self { before: HERE.replace(here) }
    }
}

impl Drop for RunningExecutor {
    fn drop(&mut self) {
        let nothing = CurrentExecutor { queue: None, tasks: VecDeque::new() };
        let before = std::mem::replace(&mut self.before, nothing);
        let CurrentExecutor { queue, mut tasks } = HERE.replace(before);
        if let Some(queue) = queue {
            let mut state = lock_std(&queue.state);
            tasks.append(&mut state.tasks);
            queue.is_shared.store(!tasks.is_empty(), Ordering::Release);
            state.tasks = tasks;
        }
    }
}

/// The ready tasks that other threads have woken, in that order. While no thread runs the executor,
/// all ready tasks are here.
struct ReadyQueue {
    state: StdMutex<ReadyTasks>,
    /// Whether `state` has tasks.
    is_shared: StdAtomicBool,
    woken: Condvar,
}

#[derive(Default)]
struct ReadyTasks {
    tasks: VecDeque<Arc<TaskHandle>>,
    /// Whether the executor's thread is blocked on `woken`. Notifying costs a system call, and
    /// almost every wake comes from the thread itself.
    sleeping: bool,
    /// Wakes a driver that does its own waiting.
    unparker: Option<Waker>,
}

struct TaskHandle {
    index: usize,
    generation: u64,
    queued: StdAtomicBool,
    queue: Arc<ReadyQueue>,
}

impl Wake for TaskHandle {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) || self.queue.push_here(self) {
            return;
        }
        let state = self.queue.push(Arc::clone(self));
        if state.sleeping {
            let unparker = state.unparker.clone();
            drop(state);
            match unparker {
                Some(unparker) => unparker.wake(),
                None => self.queue.woken.notify_one(),
            }
        }
    }
}

impl ReadyQueue {
    /// Adds a ready task if its executor is running on this thread.
    fn push_here(self: &Arc<Self>, task: &Arc<TaskHandle>) -> bool {
        let pushed = HERE.try_with(|here| {
            let mut here = here.borrow_mut();
            let is_here = here.queue.as_ref().is_some_and(|queue| Arc::ptr_eq(queue, self));
            if is_here {
                here.tasks.push_back(Arc::clone(task));
            }
            is_here
        });
        pushed == Ok(true)
    }

    /// Adds a ready task that another thread has woken, or that was woken between two runs.
    fn push(&self, task: Arc<TaskHandle>) -> std::sync::MutexGuard<'_, ReadyTasks> {
        let mut state = lock_std(&self.state);
        state.tasks.push_back(task);
        self.is_shared.store(true, Ordering::Release);
        state
    }

    /// Takes the next ready task of the executor that runs on this thread.
    fn pop(&self) -> Option<Arc<TaskHandle>> {
        if self.is_shared.load(Ordering::Acquire) {
            let mut state = lock_std(&self.state);
            let next = state.tasks.pop_front();
            self.is_shared.store(!state.tasks.is_empty(), Ordering::Release);
            if next.is_some() {
                return next;
            }
        }
        HERE.with_borrow_mut(|here| here.tasks.pop_front())
    }
}

/// Whether the executor that runs on this thread has no task that this thread has woken.
fn none_here() -> bool {
    HERE.with_borrow(|here| here.tasks.is_empty())
}

fn lock_std<T>(mutex: &StdMutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct SpawnedTask<'a> {
    group: u32,
    handle: Arc<TaskHandle>,
    waker: Waker,
    future: Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// Runs tasks on one thread.
pub struct Executor<'a> {
    tasks: Vec<Option<SpawnedTask<'a>>>,
    vacant: Vec<usize>,
    live: usize,
    generation: u64,
    queue: Arc<ReadyQueue>,
}

impl Default for Executor<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Executor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("live", &self.live).finish_non_exhaustive()
    }
}

/// Maximum sleep of an idle executor.
const MAX_WAIT_NS: u64 = 100_000_000;
/// An idle executor yields its core instead of sleeping for less than this.
const SHORT_WAIT_NS: u64 = 100_000;

impl<'a> Executor<'a> {
    /// An executor without tasks.
    pub fn new() -> Self {
        let queue = Arc::new(ReadyQueue {
            state: StdMutex::default(),
            is_shared: StdAtomicBool::new(false),
            woken: Condvar::new(),
        });
        Self { tasks: Vec::new(), vacant: Vec::new(), live: 0, generation: 0, queue }
    }

    /// Adds a task of `group`, ready to be polled.
    pub fn spawn(&mut self, group: u32, future: impl Future<Output = ()> + 'a) {
        self.spawn_boxed(group, Box::pin(future));
    }

    /// Like [`Executor::spawn`], for a future that is already boxed.
    pub fn spawn_boxed(&mut self, group: u32, future: Pin<Box<dyn Future<Output = ()> + 'a>>) {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        self.generation += 1;
        let handle = Arc::new(TaskHandle {
            index,
            generation: self.generation,
            queued: StdAtomicBool::new(false),
            queue: Arc::clone(&self.queue),
        });
        let waker = Waker::from(Arc::clone(&handle));
        // Do not use the waker: between turns, it would also unpark the driver, but the caller will
        // turn the executor anyway.
        handle.queued.store(true, Ordering::Release);
        if !self.queue.push_here(&handle) {
            drop(self.queue.push(Arc::clone(&handle)));
        }
        self.tasks[index] = Some(SpawnedTask { group, handle, waker, future });
        self.live += 1;
    }

    /// Number of tasks that have not ended.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Runs ready tasks until all wait, and never blocks: for callers that wait elsewhere, such as
    /// in another executor's event loop. It sends what the tasks post; to receive what has arrived,
    /// call [`Driver::wait`] with 0 first. Ends after `most_polls` polls of tasks. After
    /// [`TurnState::Idle`], a wake by another thread unparks the driver.
    pub fn turn(&mut self, driver: &impl Driver, most_polls: usize) -> TurnState {
        let mut state = lock_std(&self.queue.state);
        state.sleeping = false;
        if state.unparker.is_none() {
            state.unparker = driver.unparker();
        }
        drop(state);
        let _running = RunningExecutor::new(&self.queue);
        let (mut polls_left, mut has_advanced) = (most_polls, false);
        loop {
            self.serve(driver);
            if polls_left == 0 {
                return TurnState::Busy;
            }
            if let Some(handle) = self.queue.pop() {
                self.poll(&handle);
                polls_left -= 1;
                continue;
            }
            let ns = match driver.progress() {
                DriverProgress::Advanced => {
                    has_advanced = true;
                    continue;
                }
                DriverProgress::Wait { ns } => ns,
                DriverProgress::Stuck => u64::MAX,
            };
            let mut state = lock_std(&self.queue.state);
            if state.tasks.is_empty() && none_here() {
                state.sleeping = true;
                return TurnState::Idle { ns, has_advanced };
            }
        }
    }

    /// Runs until no task of `group` is left. Returns `true` if all have ended or were killed,
    /// `false` if the rest can make no further progress.
    pub fn run_group(&mut self, group: u32, driver: &impl Driver) -> bool {
        self.run_groups(|of_task| of_task == group, driver)
    }

    /// Runs until no task of the groups selected by `groups` is left; returns `false` if the rest
    /// can make no further progress. Tasks of other groups run too, but need not end.
    pub fn run_groups(&mut self, groups: impl Fn(u32) -> bool, driver: &impl Driver) -> bool {
        self.run_while(driver, &|executor| {
            executor.tasks.iter().flatten().any(|task| groups(task.group))
        })
    }

    /// Runs until no task is left; returns `false` if the rest can make no further progress.
    pub fn run(&mut self, driver: &dyn Driver) -> bool {
        self.run_while(driver, &|executor| executor.live > 0)
    }

    /// Runs `future`, and all other tasks, until no task is left; returns the future's result, or
    /// `None` if it can make no further progress.
    pub fn complete<T: 'a>(
        &mut self,
        driver: &dyn Driver,
        future: impl Future<Output = T> + 'a,
    ) -> Option<T> {
        let result = Rc::new(Cell::new(None));
        let to = Rc::clone(&result);
        self.spawn(0, async move { to.set(Some(future.await)) });
        self.run(driver);
        result.take()
    }

    fn run_while(&mut self, driver: &dyn Driver, go_on: &dyn Fn(&Self) -> bool) -> bool {
        lock_std(&self.queue.state).unparker = driver.unparker();
        let _running = RunningExecutor::new(&self.queue);
        let mut ended = true;
        loop {
            ended |= self.serve(driver);
            // Scanning the tasks is only worthwhile after one has ended.
            if ended && !go_on(self) {
                return true;
            }
            ended = false;
            if let Some(handle) = self.queue.pop() {
                ended = self.poll(&handle);
                if driver.is_due() {
                    driver.progress();
                }
                continue;
            }
            match driver.progress() {
                DriverProgress::Advanced => {}
                DriverProgress::Wait { ns } => self.idle(ns, driver),
                DriverProgress::Stuck => {
                    self.serve(driver);
                    if !go_on(self) {
                        return true;
                    }
                    if lock_std(&self.queue.state).tasks.is_empty() && none_here() {
                        return false;
                    }
                }
            }
            ended |= self.live == 0;
        }
    }

    /// Carries out the driver's requests; returns whether tasks may have been killed.
    fn serve(&mut self, driver: &dyn Driver) -> bool {
        let Some(requests) = driver.requests() else { return false };
        let killed = !requests.kill.is_empty();
        for group in requests.kill {
            self.kill(group);
        }
        for (group, task) in requests.spawn {
            self.spawn_boxed(group, task);
        }
        killed
    }

    /// Drops every task of `group`.
    pub fn kill(&mut self, group: u32) {
        for index in 0..self.tasks.len() {
            if self.tasks[index].as_ref().is_some_and(|task| task.group == group) {
                self.tasks[index] = None;
                self.vacant.push(index);
                self.live -= 1;
            }
        }
    }

    /// Polls the woken task; returns whether it ended.
    fn poll(&mut self, handle: &Arc<TaskHandle>) -> bool {
        let slot = &mut self.tasks[handle.index];
        let Some(task) = slot.as_mut() else { return false };
        if task.handle.generation != handle.generation {
            return false; // a late wake of a task that has ended
        }
        handle.queued.store(false, Ordering::Release);
        let polled = task.future.as_mut().poll(&mut Context::from_waker(&task.waker));
        if polled == Poll::Ready(()) {
            *slot = None;
            self.vacant.push(handle.index);
            self.live -= 1;
            return true;
        }
        false
    }

    fn idle(&self, ns: u64, driver: &dyn Driver) {
        if !none_here() {
            return;
        }
        let mut state = lock_std(&self.queue.state);
        if state.unparker.is_some() {
            if state.tasks.is_empty() {
                state.sleeping = true;
                drop(state);
                driver.wait(ns.min(MAX_WAIT_NS));
                lock_std(&self.queue.state).sleeping = false;
            }
            return;
        }
        drop(state);
        if ns < SHORT_WAIT_NS {
            #[expect(clippy::disallowed_methods, reason = "this is what waiting comes down to")]
            crate::sync::thread::yield_now();
            return;
        }
        let mut state = lock_std(&self.queue.state);
        if state.tasks.is_empty() {
            let wait = Duration::from_nanos(ns.min(MAX_WAIT_NS));
            state.sleeping = true;
            let woken = self.queue.woken.wait_timeout(state, wait);
            let (mut state, _) = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
            state.sleeping = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    struct IdleDriver;
    impl Driver for IdleDriver {
        fn requests(&self) -> Option<ExecutorRequests> {
            None
        }
        fn progress(&self) -> DriverProgress {
            DriverProgress::Stuck
        }
    }

    #[test]
    fn tasks_take_turns_in_wake_order() {
        let trace = Rc::new(RefCell::new(Vec::new()));
        let mut executor = Executor::new();
        for id in 0..3 {
            let trace = Rc::clone(&trace);
            executor.spawn(0, async move {
                for _ in 0..2 {
                    trace.borrow_mut().push(id);
                    yield_now().await;
                }
            });
        }
        assert!(executor.run(&IdleDriver));
        assert_eq!(*trace.borrow(), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_turn_never_blocks_and_ends_by_its_limit() {
        struct WaitingDriver(Arc<StdAtomicBool>);
        struct Unparked(Arc<StdAtomicBool>);
        impl Wake for Unparked {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Release);
            }
        }
        impl Driver for WaitingDriver {
            fn requests(&self) -> Option<ExecutorRequests> {
                None
            }
            fn progress(&self) -> DriverProgress {
                DriverProgress::Wait { ns: 7 }
            }
            fn unparker(&self) -> Option<Waker> {
                Some(Waker::from(Arc::new(Unparked(Arc::clone(&self.0)))))
            }
        }
        let unparked = Arc::new(StdAtomicBool::new(false));
        let (driver, ended) = (WaitingDriver(Arc::clone(&unparked)), Rc::new(Cell::new(0)));
        let (mut executor, waker) = (Executor::new(), Rc::new(RefCell::new(None)));
        let idle = TurnState::Idle { ns: 7, has_advanced: false };
        assert_eq!(executor.turn(&driver, 9), idle);
        let (ends, held) = (Rc::clone(&ended), Rc::clone(&waker));
        executor.spawn(0, async move {
            for _ in 0..3 {
                yield_now().await;
            }
            ends.set(1);
            std::future::poll_fn(|context| {
                match held.borrow_mut().replace(context.waker().clone()) {
                    Some(_) => Poll::Ready(()),
                    None => Poll::Pending,
                }
            })
            .await;
            ends.set(2);
        });
        assert!(!unparked.load(Ordering::Acquire), "spawning unparks nothing");
        assert_eq!(executor.turn(&driver, 2), TurnState::Busy);
        assert_eq!(ended.get(), 0);
        assert_eq!(executor.turn(&driver, 9), idle);
        assert_eq!((ended.get(), executor.live()), (1, 1));
        waker.borrow().as_ref().unwrap().wake_by_ref();
        assert!(unparked.load(Ordering::Acquire), "a wake between turns unparks");
        assert_eq!(executor.turn(&driver, 9), idle);
        assert_eq!((ended.get(), executor.live()), (2, 0));
    }

    #[test]
    fn a_task_that_nobody_can_wake_is_reported() {
        let mut executor = Executor::new();
        executor.spawn(0, std::future::pending());
        assert!(!executor.run(&IdleDriver));
    }

    #[test]
    fn a_killed_group_is_dropped() {
        let dropped = Rc::new(Cell::new(false));
        struct WakeFlag(Rc<Cell<bool>>);
        impl Drop for WakeFlag {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let flag = WakeFlag(Rc::clone(&dropped));
        let mut executor = Executor::new();
        executor.spawn(7, async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        });
        executor.kill(7);
        assert!(dropped.get());
        assert!(executor.run(&IdleDriver));
    }

    #[test]
    fn another_thread_can_wake() {
        struct Blocking;
        impl Driver for Blocking {
            fn requests(&self) -> Option<ExecutorRequests> {
                None
            }
            fn progress(&self) -> DriverProgress {
                DriverProgress::Wait { ns: u64::MAX }
            }
        }
        let (sender, receiver) = std::sync::mpsc::channel::<Waker>();
        let thread = std::thread::spawn(move || receiver.recv().unwrap().wake());
        let mut executor = Executor::new();
        let mut sent = false;
        executor.spawn(
            0,
            std::future::poll_fn(move |context| {
                if sent {
                    return Poll::Ready(());
                }
                sent = true;
                sender.send(context.waker().clone()).unwrap();
                Poll::Pending
            }),
        );
        assert!(executor.run(&Blocking));
        thread.join().unwrap();
    }

    #[test]
    fn a_driver_that_waits_itself_is_unparked() {
        use std::sync::mpsc::{Receiver, Sender, channel};
        struct ParkingDriver(Sender<()>, Receiver<()>);
        struct UnparkThread(Sender<()>);
        impl Wake for UnparkThread {
            fn wake(self: Arc<Self>) {
                self.0.send(()).unwrap();
            }
        }
        impl Driver for ParkingDriver {
            fn requests(&self) -> Option<ExecutorRequests> {
                None
            }
            fn progress(&self) -> DriverProgress {
                DriverProgress::Wait { ns: u64::MAX }
            }
            fn unparker(&self) -> Option<Waker> {
                Some(Waker::from(Arc::new(UnparkThread(self.0.clone()))))
            }
            fn wait(&self, _ns: u64) {
                self.1.recv_timeout(Duration::from_secs(30)).expect("the executor unparks it");
            }
        }
        let (unpark, parked) = channel();
        let (sender, receiver) = channel::<Waker>();
        let thread = std::thread::spawn(move || {
            receiver.iter().for_each(|waker| waker.wake());
        });
        let mut executor = Executor::new();
        let mut rounds = 0;
        executor.spawn(
            0,
            std::future::poll_fn(move |context| {
                rounds += 1;
                if rounds == 100 {
                    return Poll::Ready(());
                }
                sender.send(context.waker().clone()).unwrap();
                Poll::Pending
            }),
        );
        assert!(executor.run(&ParkingDriver(unpark, parked)));
        drop(executor);
        thread.join().unwrap();
    }
}
