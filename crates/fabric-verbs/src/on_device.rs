//! Tests of requests that no endpoint would post, so that only the crate itself can make them. On a
//! host without a device, run them in a virtual machine: `scripts/soft-roce-vm` with the binary of
//! the unit tests and `--ignored`.

use crate::bring_up::AccessibleMemory;
use crate::device::{DeviceChoice, RdmaAdapter, RetryTimers};
use crate::lane::ServerLane;
use crate::objects::{CompletionChannel, LocalMemory, Registration, RequestOperation, address_of};
use crate::piece::{MessageKind, PieceHeader};
use crate::wire::{PollEvent, QueuePairWire};
use farleaf_fabric::Region;
use farleaf_fabric::sync::{Arc, Ordering};

const BYTES: u64 = 8192;

/// A server's memory and lane, and the information that an endpoint needs to reach them.
struct ServerAndLane {
    adapter: Arc<RdmaAdapter>,
    lane: ServerLane,
    memory: Registration,
    channel: Arc<CompletionChannel>,
    own: Registration,
}

impl ServerAndLane {
    fn new() -> Self {
        let adapter = Arc::new(RdmaAdapter::open(&DeviceChoice::default()).unwrap());
        let region = |bytes| Arc::new(Region::new(bytes).unwrap());
        let memory = adapter.register(region(BYTES as usize), true).unwrap();
        let own = adapter.register(region(4096), false).unwrap();
        let lane = ServerLane::new(&adapter, 16, 4, RetryTimers::default()).unwrap();
        let channel = CompletionChannel::new(adapter.context()).unwrap();
        Self { adapter, lane, memory, channel, own }
    }

    fn lent(&self) -> AccessibleMemory {
        AccessibleMemory { rkey: self.memory.rkey, base: self.memory.address(), bytes: BYTES }
    }

    fn connect(&self) -> QueuePairWire {
        self.connect_to().0
    }

    /// Also returns the number of the pair on the other side.
    fn connect_to(&self) -> (QueuePairWire, u32) {
        let mut wire = QueuePairWire::new(&self.adapter, &self.channel, 7, 64, 4, 1).unwrap();
        let peer = self.lane.open(wire.own(), 2, 0).unwrap();
        // A failed pair does not answer, so use few and short retries.
        let retry_timers = RetryTimers { acknowledgement_timer: 12, ..RetryTimers::default() };
        wire.connect(&self.adapter, peer, self.lent(), retry_timers).unwrap();
        (wire, peer.pair)
    }

    fn local(&self) -> LocalMemory {
        LocalMemory {
            address: address_of(self.own.region().words()),
            bytes: 64,
            lkey: self.own.lkey,
        }
    }

    fn write(&self, at: u64, rkey: u32) -> (RequestOperation, LocalMemory) {
        (RequestOperation::Write { at, rkey }, self.local())
    }
}

/// Polls until there are events, or the connection breaks.
fn next(wire: &mut QueuePairWire) -> Result<Vec<PollEvent>, String> {
    let mut events = Vec::new();
    while events.is_empty() {
        wire.poll(&mut events).map_err(|error| error.to_string())?;
    }
    Ok(events)
}

/// A request with a wrong key, or outside the region, breaks its connection and reaches no memory.
/// The next connection works as before, over the same memory.
#[test]
#[ignore = "needs an RDMA device"]
fn wrong_requests_reach_nothing() {
    let both = ServerAndLane::new();
    let (base, rkey) = (both.memory.address(), both.memory.rkey);
    both.own.region().words().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    for (at, key) in [
        (base, rkey ^ 0x55),
        (base, both.own.rkey),
        (base + BYTES - 32, rkey),
        (base - 64, rkey),
        (base + (1 << 40), rkey),
        (address_of(both.own.region().words()), both.own.rkey),
    ] {
        let mut wire = both.connect();
        let (wrong, local) = both.write(at, key);
        wire.push(1, wrong, local);
        wire.ring().unwrap();
        // Status 10: the peer's device refuses the access.
        assert_eq!(next(&mut wire), Err("status 10".into()), "{at:#x} by {key:#x}");
        // Later requests are not executed (status 5, flushed).
        let (right, local) = both.write(base, rkey);
        wire.push(2, right, local);
        if wire.ring().is_ok() {
            assert_eq!(next(&mut wire), Err("status 5".into()));
        }
        assert!(both.memory.region().words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
    let mut wire = both.connect();
    let (right, local) = both.write(base + 64, rkey);
    wire.push(3, right, local);
    wire.ring().unwrap();
    assert_eq!(next(&mut wire), Ok(vec![PollEvent::Done(3)]));
    let words = both.memory.region().words();
    assert!(words[8..16].iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX));
    assert_eq!(words[16].load(Ordering::Relaxed), 0);
}

/// The completion of a request also settles earlier unsignaled requests, in order; the queue fills
/// and empties.
#[test]
#[ignore = "needs an RDMA device"]
fn what_completes_settles_what_was_before() {
    let both = ServerAndLane::new();
    let mut wire = both.connect();
    let mut due = 0;
    for round in 0..20 {
        let mut posted = 0;
        while wire.has_room() {
            let at = both.memory.address() + 8 * posted;
            let local = LocalMemory { bytes: 8, ..both.local() };
            let add = RequestOperation::FetchAdd { at, rkey: both.memory.rkey, delta: 1 };
            wire.push(round * 1000 + posted, add, local);
            posted += 1;
        }
        assert_eq!(posted, 64 + 4, "all of the queue");
        wire.ring().unwrap();
        while due < posted {
            for event in next(&mut wire).unwrap() {
                assert_eq!(event, PollEvent::Done(round * 1000 + due));
                due += 1;
            }
        }
        due = 0;
        assert!(!wire.is_busy());
    }
    let words = both.memory.region().words();
    assert!(words[..68].iter().all(|word| word.load(Ordering::Relaxed) == 20));
}

/// A client that violates the protocol loses its connection; other clients keep theirs, and its
/// places can be lent again.
#[test]
#[ignore = "needs an RDMA device"]
fn garbage_costs_its_sender_the_connection() {
    let both = ServerAndLane::new();
    let service = farleaf_fabric::conformance::TestService::new(4096);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| both.lane.serve(&*service, 0));
        let mut good = both.connect();
        for round in 0..6 {
            let (mut bad, pair) = both.connect_to();
            let header = PieceHeader::bare(round, MessageKind::Reply);
            bad.push_message(&header, &[]);
            bad.ring().unwrap();
            let broken = loop {
                let (right, local) = both.write(both.memory.address(), both.memory.rkey);
                bad.push(round, right, local);
                if bad.ring().is_err() {
                    break "the queue is shut".into();
                }
                match next(&mut bad) {
                    Ok(events) => assert_eq!(events, [PollEvent::Done(round)]),
                    Err(error) => break error,
                }
            };
            assert!(!broken.is_empty());
            drop(bad);
            both.lane.close(pair);
            good.push_message(&PieceHeader::piece(round, MessageKind::Request, 1, 0), &[0]);
            good.ring().unwrap();
            let answer = loop {
                let events = next(&mut good).unwrap();
                if let Some(PollEvent::Message { place, bytes }) = events.first() {
                    break (*place, *bytes);
                }
            };
            let header = good.places.header(answer.0, answer.1).unwrap();
            assert_eq!((header.id, header.kind), (round, MessageKind::Reply));
            assert!(good.answered());
            good.give_back(answer.0).unwrap();
        }
        both.lane.stop();
        server.join().unwrap();
    });
}
