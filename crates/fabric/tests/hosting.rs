//! Threads that serve clients over tcp and are themselves clients of other servers
//! ([`farleaf_fabric::tcp::Hosting`]).
#![expect(clippy::disallowed_methods, reason = "tests wait for what real sockets do")]

use farleaf_fabric::conformance::TestService;
use farleaf_fabric::endpoint::{EndpointCluster, EndpointDriver};
use farleaf_fabric::executor::Executor;
use farleaf_fabric::handshake::{PeerRole, Token};
use farleaf_fabric::shm::ShmConfig;
use farleaf_fabric::sync::{Arc, Mutex, lock};
use farleaf_fabric::tcp::{
    Hosting, ServerThread, TcpCluster, TcpConfig, TcpServer, TcpServerConfig,
};
use farleaf_fabric::{
    Buffer, Calls, Cluster, Cpu, Fabric, GlobalAddr, Message, Provider, Region, ReplySink,
    ServerId, ServiceCall,
};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{Ipv4Addr, TcpListener};
use std::task::{Poll, Waker};
use std::time::Duration;

const MEMORY: ServerId = ServerId::new(0);
const HOST: ServerId = ServerId::new(0);
const THREADS: usize = 2;

/// The requests that a thread has received and not answered yet.
#[derive(Default)]
struct Waiting {
    asked: VecDeque<(u64, ReplySink)>,
    idle: Vec<Waker>,
    closed: bool,
}

/// Leaves each request to a task of the thread that received it.
#[derive(Default)]
struct Questions([Mutex<Waiting>; THREADS]);

impl Questions {
    fn change(&self, thread: usize, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = lock(&self.0[thread]);
        change(&mut waiting);
        let idle = std::mem::take(&mut waiting.idle);
        drop(waiting);
        idle.into_iter().for_each(Waker::wake);
    }

    fn close(&self) {
        (0..THREADS).for_each(|thread| self.change(thread, |waiting| waiting.closed = true));
    }

    async fn next(&self, thread: usize) -> Option<(u64, ReplySink)> {
        poll_fn(|context| {
            let mut waiting = lock(&self.0[thread]);
            match waiting.asked.pop_front() {
                Some(asked) => Poll::Ready(Some(asked)),
                None if waiting.closed => Poll::Ready(None),
                None => {
                    waiting.idle.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// Ends the hosting threads on drop, even if a check fails.
struct Ends<'a>(&'a Questions, &'a TcpServer);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.close();
        self.1.stop();
    }
}

impl Calls for Questions {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, cpu: &C, call: ServiceCall<'_>) {
        let offset = u64::from_le_bytes(call.request.try_into().expect("eight bytes"));
        let thread = cpu.stripe();
        let sink = call.later();
        self.change(thread, |waiting| waiting.asked.push_back((offset, sink)));
    }
}

/// Answers each request with the word at its offset, and the number of this thread. Every eighth
/// answer comes from another thread.
async fn answer<F: Fabric>(fabric: &F, questions: &Questions, thread: usize) {
    let mut answered = 0_u64;
    while let Some((offset, sink)) = questions.next(thread).await {
        let word: Buffer = fabric.buffer(8).unwrap();
        let word = fabric.read(GlobalAddr::new(MEMORY, offset), word).await.unwrap().get(0);
        let mut reply: Message = word.to_le_bytes().into_iter().collect();
        reply.extend_from_slice(&(thread as u64).to_le_bytes());
        answered += 1;
        match answered % 8 {
            0 => _ = std::thread::spawn(move || sink.send(reply)),
            _ => sink.send(reply),
        }
    }
}

fn host<C: EndpointCluster>(cluster: &C, io: &mut ServerThread<Questions>, questions: &Questions) {
    let driver = EndpointDriver::<C::Transport>::new(cluster.shared()).unwrap();
    let number = io.number();
    let fabric = driver.open(0, number).unwrap_or_else(|error| panic!("no endpoint: {error}"));
    {
        let driver = Hosting::new(&driver, io).unwrap();
        let mut executor = Executor::new();
        for _ in 0..4 {
            executor.spawn(0, answer(&fabric, questions, number));
        }
        assert!(executor.run(&driver), "a hosting thread never gets stuck");
    }
    // The thread keeps serving without an endpoint, because the connections belong to the server.
    while !io.is_stopped() {
        io.turn();
    }
    io.close_all();
}

fn answers_over<P: Provider>(memory: &P)
where
    P::Cluster<TestService>: EndpointCluster + Sync,
{
    let service = TestService::new(16_384);
    let cluster = memory.start(vec![service]);
    cluster.run_one(async |fabric| {
        for offset in 0..64 {
            let buffer = fabric.buffer(8).unwrap();
            buffer.set(0, offset * 3);
            fabric.write(GlobalAddr::new(MEMORY, offset * 8), buffer).await.unwrap();
        }
    });
    let token = Token::draw().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = TcpServerConfig {
        role: PeerRole::ComputeServer,
        accepts: &[PeerRole::Client],
        io_threads: THREADS,
        ..TcpServerConfig::default()
    };
    let questions = Arc::new(Questions::default());
    let (server, threads) =
        TcpServer::prepare(listener, Arc::clone(&questions), &token, config).unwrap();
    std::thread::scope(|scope| {
        let _ends = Ends(&questions, &server);
        for mut io in threads {
            let (cluster, questions) = (&cluster, &questions);
            scope.spawn(move || host(cluster, &mut io, questions));
        }
        let config = TcpConfig {
            role: PeerRole::Client,
            server_role: PeerRole::ComputeServer,
            ..TcpConfig::default()
        };
        let clients = TcpCluster::connect(vec![server.local_address()], &token, config);
        let heard = clients.run(&[0, 1, 2, 3], async |fabric, _| {
            let mut threads = Vec::new();
            for offset in (0..64_u64).cycle().take(500) {
                let asked = (offset * 8).to_le_bytes().into_iter().collect();
                let reply = fabric.call(HOST, asked).await.unwrap();
                let word = |at: usize| u64::from_le_bytes(reply[at..at + 8].try_into().unwrap());
                assert_eq!(word(0), offset * 3);
                threads.push(word(8));
            }
            threads.dedup();
            threads
        });
        let mut heard: Vec<Vec<u64>> = heard.into_iter().flatten().collect();
        heard.sort();
        let each = [vec![0], vec![0], vec![1], vec![1]];
        assert_eq!(heard, each, "a connection's requests are carried out by its own thread");
        // Idle threads notice that the clients are gone.
        while server.counters().connections > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn requests_are_carried_out_where_they_arrive_over_tcp() {
    answers_over(&TcpConfig::default());
}

#[test]
fn requests_are_carried_out_where_they_arrive_over_shm() {
    answers_over(&ShmConfig::default());
}
