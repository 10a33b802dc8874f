//! A simulated memory server: its cores, and the queue of requests before them.
//!
//! *Invariants*: S1. a core has one request from its dispatch to the end of the housekeeping after its
//! reply. S2. requests are taken in the order of their arrival. S3. the queue is bounded without a
//! bound of its own: a request in it holds its message, and no endpoint has more than `depth`
//! operations that it still waits for; requests beyond those are ones whose deadline has passed, at
//! most `depth` more per endpoint and timeout.

use super::events::Until;
use super::network::Nic;
use super::op::Op;
use super::world::Shared;
use crate::region::Region;
use crate::sync::Arc;
use crate::{Cpu, Message, RpcService, Rule, Work};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Debug)]
pub(super) struct MemoryServer {
    pub(super) alive: bool,
    pub(super) region: Arc<Region>,
    pub(super) nic: Nic,
    /// Compute servers that are shut out, each with the number of the newest endpoint concerned.
    pub(super) fenced: BTreeMap<u16, u64>,
    queue: VecDeque<Rc<Op>>,
    cores: Vec<Core>,
    pub(super) core_busy_ns: u64,
    pub(super) requests: u64,
    pub(super) longest_queue: usize,
}

#[derive(Debug, Default)]
struct Core {
    /// The request that the core has, until its reply is posted.
    serves: Option<Rc<Op>>,
    /// Of the core's task, while it waits for a request.
    idle: Option<Waker>,
}

impl MemoryServer {
    pub(super) fn new(region: Arc<Region>, cores: usize) -> Self {
        Self {
            alive: true,
            region,
            nic: Nic::default(),
            fenced: BTreeMap::new(),
            queue: VecDeque::new(),
            cores: (0..cores).map(|_| Core::default()).collect(),
            core_busy_ns: 0,
            requests: 0,
            longest_queue: 0,
        }
    }

    /// Queues a request; says whether a core that was idle will look at it.
    pub(super) fn enqueue(&mut self, op: Rc<Op>) -> bool {
        self.queue.push_back(op);
        self.longest_queue = self.longest_queue.max(self.queue.len());
        let idle = self.cores.iter_mut().find_map(|core| core.idle.take());
        idle.map(Waker::wake).is_some()
    }

    /// Everything that waits or is being served; none of it will be answered.
    pub(super) fn take_requests(&mut self) -> Vec<Rc<Op>> {
        let mut requests: Vec<_> = self.queue.drain(..).collect();
        for core in &mut self.cores {
            core.idle = None;
            requests.extend(core.serves.take());
        }
        requests
    }
}

/// A core of a memory server, as the service's code sees it.
#[derive(Debug)]
struct SimCpu {
    world: Shared,
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
        Until::new(&self.world, until_ns, None).await;
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

/// The life of core number `core` of memory server number `server`.
pub(super) async fn run_core<S: RpcService>(
    world: Shared,
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
        let mut reply = Message::new();
        service.handle(&cpu, op.endpoint.compute_server, &request, &mut reply).await;
        {
            let mut world = world.borrow_mut();
            world.memory[server].cores[core].serves = None;
            world.reply_to_call(&op, reply);
        }
        drop(op);
        service.after_reply(&cpu).await;
    }
}

async fn next_request(world: &Shared, server: usize, core: usize) -> Rc<Op> {
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
