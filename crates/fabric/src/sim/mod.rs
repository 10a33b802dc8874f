//! `sim`: a whole cluster on one thread, in virtual time.
//!
//! The simulated code is exactly the code that runs elsewhere. The simulator decides when messages
//! arrive, in which pieces they take effect, how long work takes, and which servers die. All of
//! this follows from [`SimConfig::seed`], so a failed run can be repeated.
//!
//! *Invariants*: nothing here reads a clock, an entropy source or an address; every iteration has a
//! fixed order. Between two events, only tasks and the executor run.
//!
//! `world.rs` owns the events, operations, endpoints and servers. The files that define these also
//! use `world.rs`, because each of them posts events to the world.
//!
//! *Thread safety*: a cluster and its clients live on one thread; a [`SimControl`] may go to any
//! thread.

mod config;
mod endpoint;
mod events;
mod network;
mod op;
mod sections;
mod server;
mod statistics;
mod tearing;
mod world;

pub use config::{Faults, LastWords, MAX_PORTS, NetworkModel, Outage, SimConfig, Slow, Verb};
pub(crate) use endpoint::Charge;
pub use endpoint::SimFabric;
pub use op::SimOp;
pub use statistics::{MemoryServerStatistics, NicStatistics, SimStatistics};

use crate::clients::ClientTask;
use crate::executor::{BoxTask, Driver, DriverProgress, Executor, ExecutorRequests};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::{Calls, ServerId};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use world::{ScheduledKill, SharedWorld, SimWorld, TaskGroup, WorldStep};

/// A simulated cluster. Virtual time, servers and messages in flight carry over from one run to the
/// next.
#[derive(Debug)]
pub struct SimCluster<S: Calls> {
    world: SharedWorld,
    services: Vec<Arc<S>>,
    /// By memory server and core.
    cores: Vec<Vec<CoreTask>>,
    control: SimControl,
}

impl<S: Calls> SimCluster<S> {
    /// Starts the memory servers.
    ///
    /// # Panics
    /// If the settings are invalid: a probability outside 0 to 1, message loss without a timeout,
    /// or no cores.
    pub fn start(config: SimConfig, services: Vec<Arc<S>>) -> Self {
        let cores = 0..config.cores_per_memory_server;
        let regions = services.iter().map(|service| service.memory().cloned()).collect();
        let world = Rc::new(RefCell::new(SimWorld::new(config, regions)));
        let run_core = |(server, service): (usize, &Arc<S>)| {
            let task = |core| {
                CoreTask::new(server::run_core(
                    Rc::clone(&world),
                    Arc::clone(service),
                    server,
                    core,
                ))
            };
            cores.clone().map(task).collect()
        };
        let cores = services.iter().enumerate().map(run_core).collect();
        Self { world, services, cores, control: SimControl::default() }
    }

    /// The memory servers' services, in the order of their numbers.
    pub fn services(&self) -> impl Iterator<Item = &Arc<S>> {
        self.services.iter()
    }

    /// The virtual time, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.world.borrow().events.now_ns()
    }

    /// The cluster's statistics so far.
    pub fn statistics(&self) -> SimStatistics {
        SimStatistics::of(&self.world.borrow())
    }

    /// A handle that kills servers, also from within a client.
    pub fn control(&self) -> SimControl {
        self.control.clone()
    }

    /// Kills a compute server: its clients end, and its messages in flight may or may not take
    /// effect.
    pub fn kill_compute_server(&self, server: u16) {
        self.control.kill_compute_server(server);
    }

    /// Kills compute servers together when one of them posts a WRITE, after they have posted
    /// `writes` other WRITEs.
    pub fn kill_compute_servers_at_write(
        &self,
        servers: Vec<u16>,
        writes: u64,
        last_words: LastWords,
    ) {
        self.world.borrow_mut().scheduled_kill =
            Some(ScheduledKill { servers, writes_left: writes, last_words });
    }

    /// Cancels a death scheduled by [`Self::kill_compute_servers_at_write`]. Returns the number of
    /// WRITEs that were left before it; `None` if no death was scheduled.
    pub fn call_off_death(&self) -> Option<u64> {
        self.world
            .borrow_mut()
            .scheduled_kill
            .take()
            .map(|scheduled_kill| scheduled_kill.writes_left)
    }

    /// Restarts a compute server, killing it first if it is alive, so that clients can be opened on
    /// it again. Nothing of its previous life remains except messages in flight, until it is
    /// fenced. Call this between two runs.
    pub fn restart_compute_server(&self, server: u16) {
        self.world.borrow_mut().restart_compute_server(server);
    }
}

impl<S: Calls> SimCluster<S> {
    /// [`crate::Cluster::run_clients`].
    ///
    /// # Panics
    /// If clients are left and nothing can ever wake them, or if they run beyond
    /// [`SimConfig::give_up_after_ns`].
    pub(crate) fn run_endpoints<'a>(
        &self,
        compute_servers: &[u16],
        start: &'a (dyn Fn(SimFabric, usize) -> ClientTask<'a> + Sync),
    ) {
        let driver = SimDriver { world: &self.world, control: &self.control, cores: &self.cores };
        let mut executor = Executor::new();
        // Handle servers killed between two runs.
        drop(driver.requests());
        self.world.borrow_mut().be_patient();
        for (server, cores) in (0..).zip(&self.cores) {
            for core in cores {
                executor.spawn(TaskGroup::Memory(server).number(), core.clone());
            }
        }
        for (number, server) in compute_servers.iter().enumerate() {
            if !self.world.borrow_mut().compute_server(*server).alive {
                continue;
            }
            let client = start(SimFabric::new(&self.world, *server), number);
            executor.spawn_boxed(TaskGroup::Compute(*server).number(), client);
        }
        let ended = executor.run_groups(|group| group < TaskGroup::FIRST_MEMORY, &driver);
        assert!(
            ended,
            "deadlock at {} ns of virtual time: no event can wake the remaining clients",
            self.now_ns()
        );
    }
}

impl<S: Calls> Drop for SimCluster<S> {
    fn drop(&mut self) {
        // Tasks hold the world, and the world's queues hold operations: break this reference cycle.
        for core in self.cores.iter().flatten() {
            core.stop();
        }
        self.world.borrow_mut().clear();
    }
}

/// Kills servers of a simulated cluster. Its orders take effect before any other task continues.
#[derive(Clone, Debug, Default)]
pub struct SimControl(Arc<SimOrders>);

#[derive(Debug, Default)]
struct SimOrders {
    /// Number of servers that have died.
    deaths: AtomicU64,
    any: AtomicBool,
    kill: Mutex<Vec<TaskGroup>>,
    progressed: AtomicBool,
}

impl SimControl {
    /// Stops a memory server for good.
    pub fn kill_memory_server(&self, server: ServerId) {
        self.order(TaskGroup::Memory(server.number()));
    }

    /// Stops a compute server, with all its clients.
    pub fn kill_compute_server(&self, server: u16) {
        self.order(TaskGroup::Compute(server));
    }

    /// Reports progress: restarts the time limit of [`SimConfig::give_up_after_ns`].
    pub fn progress(&self) {
        self.0.progressed.store(true, Ordering::Release);
    }

    /// Number of servers that have died so far, by any cause.
    pub fn deaths(&self) -> u64 {
        self.0.deaths.load(Ordering::Acquire)
    }

    fn order(&self, group: TaskGroup) {
        lock(&self.0.kill).push(group);
        self.0.any.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<TaskGroup> {
        if !self.0.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.0.any.store(false, Ordering::Release);
        std::mem::take(&mut lock(&self.0.kill))
    }
}

/// The task of a memory server's core. It outlives the executor of one run: each run spawns a
/// handle.
#[derive(Clone)]
struct CoreTask(Rc<RefCell<Option<BoxTask>>>);

impl CoreTask {
    fn new(task: impl Future<Output = ()> + 'static) -> Self {
        Self(Rc::new(RefCell::new(Some(Box::pin(task)))))
    }

    fn stop(&self) {
        let task = self.0.borrow_mut().take();
        drop(task);
    }
}

impl std::fmt::Debug for CoreTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoreTask").field("runs", &self.0.borrow().is_some()).finish()
    }
}

impl Future for CoreTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut *self.0.borrow_mut() {
            Some(task) => task.as_mut().poll(context),
            None => Poll::Ready(()),
        }
    }
}

struct SimDriver<'a> {
    world: &'a SharedWorld,
    control: &'a SimControl,
    cores: &'a [Vec<CoreTask>],
}

impl Driver for SimDriver<'_> {
    fn requests(&self) -> Option<ExecutorRequests> {
        let died = {
            let mut world = self.world.borrow_mut();
            world.take_late_answers();
            for group in self.control.take() {
                match group {
                    TaskGroup::Memory(server) => world.kill_memory_server(server),
                    TaskGroup::Compute(server) => world.kill_compute_server(server),
                }
            }
            if world.died.is_empty() {
                return None;
            }
            std::mem::take(&mut world.died)
        };
        self.control.0.deaths.fetch_add(died.len() as u64, Ordering::AcqRel);
        for group in &died {
            if let TaskGroup::Memory(server) = group {
                self.cores[usize::from(*server)].iter().for_each(CoreTask::stop);
            }
        }
        Some(ExecutorRequests {
            spawn: Vec::new(),
            kill: died.into_iter().map(TaskGroup::number).collect(),
        })
    }

    fn progress(&self) -> DriverProgress {
        let mut world = self.world.borrow_mut();
        loop {
            match world.step() {
                WorldStep::Quiet => {}
                WorldStep::Woke => return DriverProgress::Advanced,
                WorldStep::Empty => return DriverProgress::Stuck,
                WorldStep::Overdue if self.control.0.progressed.swap(false, Ordering::AcqRel) => {
                    world.be_patient();
                }
                WorldStep::Overdue => panic!(
                    "no progress for {} ns of virtual time (give_up_after_ns): an endless loop?",
                    world.config.give_up_after_ns
                ),
            }
        }
    }
}
