//! A simulated memory server: its cores, and their queue of requests.
//!
//! *Invariants*: sim.S1. A core handles one request from its dispatch to the end of the
//! housekeeping after its reply. sim.S2. Requests are taken in the order of their arrival. sim.S3.
//! The queue is bounded without a limit of its own: a request in it holds its message, and no
//! endpoint waits for more than `depth` operations. Further requests are those past their
//! deadlines, at most `depth` per endpoint and timeout.

use super::events::UntilVirtualTime;
use super::network::Nic;
use super::op::SimOpHandle;
use super::world::SharedWorld;
use crate::handshake::{PeerIdentity, PeerRole};
use crate::region::Region;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};
use crate::{CallTicket, Calls, Cpu, LaterAnswers, Message, ReplySink, Rule, ServiceCall, Work};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Debug)]
pub(super) struct SimMemoryServer {
    pub(super) alive: bool,
    /// Whether another process, with empty memory, answers at the server's address.
    pub(super) restarted: bool,
    /// Whether an endpoint has reached that process. From then on, no endpoint uses it.
    pub(super) known_restarted: bool,
    /// `None` if the server exposes no memory to verbs.
    pub(super) region: Option<Arc<Region>>,
    pub(super) nic: Nic,
    /// Fenced compute servers, each with the number of its newest fenced endpoint.
    pub(super) fenced: BTreeMap<u16, u64>,
    queue: VecDeque<Rc<SimOpHandle>>,
    /// Requests that will be answered later, by ticket number.
    deferred: BTreeMap<u64, Rc<SimOpHandle>>,
    tickets: u64,
    cores: Vec<SimServerCore>,
    pub(super) core_busy_ns: u64,
    pub(super) requests: u64,
    pub(super) longest_queue: usize,
}

/// Answers that tasks have given to deferred requests. The world takes them before any other task
/// runs.
#[derive(Debug, Default)]
pub(super) struct LateAnswers {
    any: AtomicBool,
    given: Mutex<Vec<(CallTicket, Option<Message>)>>,
}

impl LateAnswers {
    pub(super) fn take(&self) -> Vec<(CallTicket, Option<Message>)> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut lock(&self.given))
    }
}

impl LaterAnswers for LateAnswers {
    fn answer(&self, ticket: CallTicket, reply: Option<Message>) {
        lock(&self.given).push((ticket, reply));
        self.any.store(true, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct SimServerCore {
    /// The core's current request, until its reply is posted.
    serves: Option<Rc<SimOpHandle>>,
    /// The waker of the core's task, while it waits for a request.
    idle: Option<Waker>,
}

impl SimMemoryServer {
    pub(super) fn new(region: Option<Arc<Region>>, cores: usize) -> Self {
        Self {
            alive: true,
            restarted: false,
            known_restarted: false,
            region,
            nic: Nic::default(),
            fenced: BTreeMap::new(),
            queue: VecDeque::new(),
            deferred: BTreeMap::new(),
            tickets: 0,
            cores: (0..cores).map(|_| SimServerCore::default()).collect(),
            core_busy_ns: 0,
            requests: 0,
            longest_queue: 0,
        }
    }

    /// Queues a request; returns whether this woke an idle core.
    pub(super) fn enqueue(&mut self, op: Rc<SimOpHandle>) -> bool {
        self.queue.push_back(op);
        self.longest_queue = self.longest_queue.max(self.queue.len());
        let idle = self.cores.iter_mut().find_map(|core| core.idle.take());
        idle.map(Waker::wake).is_some()
    }

    /// Records that a connection to the server broke: the next attempt reaches the new process.
    pub(super) fn notice(&mut self) {
        self.known_restarted |= self.restarted;
    }

    /// Takes all requests that wait or are being served. None of them will be answered.
    pub(super) fn take_requests(&mut self) -> Vec<Rc<SimOpHandle>> {
        let mut requests: Vec<_> = self.queue.drain(..).collect();
        for core in &mut self.cores {
            core.idle = None;
            requests.extend(core.serves.take());
        }
        requests.extend(std::mem::take(&mut self.deferred).into_values());
        requests
    }

    /// Keeps a request that will be answered later; returns its ticket number.
    fn defer(&mut self, op: &Rc<SimOpHandle>) -> u64 {
        self.tickets += 1;
        self.deferred.insert(self.tickets, Rc::clone(op));
        self.tickets
    }

    /// The request of a ticket, if it can still be answered.
    pub(super) fn take_deferred(&mut self, ticket: u64) -> Option<Rc<SimOpHandle>> {
        self.deferred.remove(&ticket)
    }
}

/// A core of a memory server, which runs the service's code.
#[derive(Debug)]
struct SimCpu {
    world: SharedWorld,
    server: usize,
    core: usize,
    broken: Option<Rule>,
}

impl Cpu for SimCpu {
    async fn charge(&self, work: Work) {
        let until_ns = {
            let mut world = self.world.borrow_mut();
            let ns = world.work_ns(work);
            if ns == 0 {
                return;
            }
            world.memory[self.server].core_busy_ns += ns;
            world.events.now_ns() + ns
        };
        UntilVirtualTime::new(&self.world, until_ns, None).await;
    }

    async fn pause(&self, _attempt: u32) {
        self.charge(Work::Spin).await;
    }

    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    fn stripe(&self) -> usize {
        self.core
    }
}

/// The task of core number `core` of memory server number `server`.
pub(super) async fn run_core<S: Calls>(
    world: SharedWorld,
    service: Arc<S>,
    server: usize,
    core: usize,
) {
    let broken = world.borrow().config.broken;
    let cpu = SimCpu { world: Rc::clone(&world), server, core, broken };
    loop {
        let op = next_request(&world, server, core).await;
        cpu.charge(Work::Dispatch).await;
        let request = op.take_request();
        let (mut reply, mut is_later) = (Message::new(), false);
        let mut defer = || {
            is_later = true;
            let mut world = world.borrow_mut();
            let ticket = [server as u64, world.memory[server].defer(&op)];
            ReplySink::new(world.late_answers(), ticket)
        };
        let number = op.endpoint.compute_server;
        let peer =
            PeerIdentity { role: PeerRole::ComputeServer, number, epoch: op.endpoint.number };
        service.call(&cpu, ServiceCall::new(peer, &request, &mut reply, &mut defer)).await;
        {
            let mut world = world.borrow_mut();
            world.memory[server].cores[core].serves = None;
            if !is_later {
                world.reply_to_call(&op, reply);
            }
        }
        drop(op);
        if !is_later {
            service.after_answer(&cpu).await;
        }
    }
}

async fn next_request(world: &SharedWorld, server: usize, core: usize) -> Rc<SimOpHandle> {
    poll_fn(|context| {
        let server = &mut world.borrow_mut().memory[server];
        let Some(op) = server.queue.pop_front() else {
            server.cores[core].idle = Some(context.waker().clone());
            return Poll::Pending;
        };
        server.requests += 1;
        server.cores[core].idle = None;
        server.cores[core].serves = Some(Rc::clone(&op));
        Poll::Ready(op)
    })
    .await
}
