//! A server thread with its queues, which serves the calls of the endpoints assigned to it.
//! One-sided verbs do not pass through it.
//!
//! *Invariants*: lane.N1. A place is lent to the device, in use by a call, or being sent from; it
//! changes state under the lock. lane.N2. There are places for all messages that the endpoints of
//! the lane may have in flight, and as many again for answers whose completion has not been seen.
//! lane.N3. A queue pair is destroyed only after it has been moved to the error state and its
//! completions have been taken; no completion of it is left when its number can be reused. lane.N4.
//! A call of a pair that is gone is not answered. lane.N5. When an endpoint has been shut out, the
//! lane's thread is not carrying out a call of it (F9, F10).
//!
//! *Thread safety*: [`ServerLane::serve`] runs on one thread; any thread may call the rest.

use crate::bring_up::ConnectionEnd;
use crate::device::{RdmaAdapter, RdmaUnavailable, RetryTimers};
use crate::ffi::Wc;
use crate::objects::{
    CompletionChannel, Completions, QueueCapacity, QueuePair, RequestBatch, RequestOperation,
    SharedReceives,
};
use crate::piece::{MessageKind, PIECE_BYTES, PieceHeader};
use crate::places::BufferPlaces;
use farleaf_fabric::provider::WakeFd;
use farleaf_fabric::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{InlineCpu, MAX_MESSAGE_BYTES, Message, RpcService, now_or_never};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Condvar;
use std::time::Duration;

/// Completions taken at a time.
const COMPLETIONS: usize = 32;
/// Limit on queued messages; at this many, the lane's thread takes no more completions.
const READY: usize = 256;
/// Maximum time to wait for a call of an endpoint that is shut out. If the call takes longer, its
/// thread has panicked.
const MAX_CALL: Duration = Duration::from_secs(5);
/// Bit that marks a SEND in a work request's id; without it, the id is that of a receive.
const SENT: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessagePlace {
    /// The device may put a message there.
    Lent,
    /// A thread is handling its message.
    Working,
    /// Its answer is being sent over this pair.
    Sending { pair: u32 },
}

#[derive(Debug)]
struct LaneSession {
    pair: QueuePair,
    /// Distinguishes the session from an earlier one with the same pair number.
    serial: u64,
    compute_server: u16,
    /// Answers without a completion yet.
    sending: usize,
    /// A request of which only some pieces have arrived.
    gathering: Option<(u64, Message)>,
    /// Replies with pieces that the client has not requested yet, oldest first.
    kept: VecDeque<(u64, Message)>,
}

/// A received message.
#[derive(Clone, Copy, Debug)]
struct ReceivedMessage {
    place: usize,
    pair: u32,
    bytes: usize,
}

/// A complete request.
#[derive(Debug)]
struct CompleteRequest {
    place: usize,
    pair: u32,
    serial: u64,
    compute_server: u16,
    id: u64,
    request: Message,
}

#[derive(Debug, Default)]
struct LaneState {
    sessions: BTreeMap<u32, LaneSession>,
    /// Each chunk has the places of one session.
    chunks: Vec<BufferPlaces>,
    places: Vec<(u32, MessagePlace)>,
    /// Number of places that the sessions need.
    needed: usize,
    ready: VecDeque<ReceivedMessage>,
    batch: RequestBatch,
    serials: u64,
    /// The serial of the session whose call the lane's thread is executing.
    carried_out: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct ServerLane {
    adapter: Arc<RdmaAdapter>,
    channel: Arc<CompletionChannel>,
    completions: Arc<Completions>,
    receives: Arc<SharedReceives>,
    wake: WakeFd,
    /// Limit on an endpoint's messages in flight.
    window: usize,
    /// Limit on sessions.
    sessions: usize,
    retry_timers: RetryTimers,
    state: Mutex<LaneState>,
    /// Signalled when a call has been executed.
    ended: Condvar,
    stopped: AtomicBool,
    requests: AtomicU64,
}

impl ServerLane {
    /// Creates a lane for `sessions` endpoints, or for fewer if the device has no room for so many.
    pub(crate) fn new(
        adapter: &Arc<RdmaAdapter>,
        sessions: usize,
        window: usize,
        retry_timers: RetryTimers,
    ) -> io::Result<Self> {
        let window = window.max(1);
        let limits = adapter.limits;
        // Each place needs a receive and a completion for its answer.
        let places = limits.shared_receives.min(limits.completions / 2);
        let sessions = sessions.max(1).min(places / (2 * window));
        if sessions == 0 || limits.requests < 2 * window {
            return Err(io::Error::other(
                "the window is larger than the device's queues allow; configure a smaller one",
            ));
        }
        let places = sessions * 2 * window;
        let channel = CompletionChannel::new(adapter.context())?;
        let completions = Completions::new(&channel, 2 * places, 0)?;
        let receives = SharedReceives::new(&adapter.domain, places)?;
        Ok(Self {
            adapter: Arc::clone(adapter),
            channel,
            completions,
            receives,
            wake: WakeFd::new()?,
            window,
            sessions,
            retry_timers,
            state: Mutex::default(),
            ended: Condvar::new(),
            stopped: AtomicBool::new(false),
            requests: AtomicU64::new(0),
        })
    }

    /// Calls received so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Connects an endpoint to a new queue pair; returns the pair's end, for the endpoint.
    pub(crate) fn open(
        &self,
        peer: ConnectionEnd,
        psn: u32,
        compute_server: u16,
    ) -> io::Result<ConnectionEnd> {
        let mut state = lock(&self.state);
        if state.sessions.len() >= self.sessions {
            return Err(io::Error::other("the lane has reached its limit of endpoints"));
        }
        self.lend_more(&mut state)?;
        let room = QueueCapacity { sends: 2 * self.window, receives: 0 };
        let receives = Some(Arc::clone(&self.receives));
        let pair = QueuePair::new(&self.adapter.domain, &self.completions, receives, room)?;
        let own = self.adapter.end(&pair, psn);
        self.adapter.connect(&pair, own, peer, self.retry_timers, true)?;
        state.serials += 1;
        state.needed += 2 * self.window;
        let session = LaneSession {
            pair,
            serial: state.serials,
            compute_server,
            sending: 0,
            gathering: None,
            kept: VecDeque::new(),
        };
        state.sessions.insert(own.pair, session);
        Ok(own)
    }

    /// Adds places for one more session, unless there are enough already.
    fn lend_more(&self, state: &mut LaneState) -> Result<(), RdmaUnavailable> {
        let count = 2 * self.window;
        if state.places.len() >= state.needed + count {
            return Ok(());
        }
        state.chunks.push(BufferPlaces::new(&self.adapter, count)?);
        for _ in 0..count {
            state.places.push((0, MessagePlace::Working));
            self.lend(state, state.places.len() - 1);
        }
        Ok(())
    }

    /// Lends a place to the device.
    fn lend(&self, state: &mut LaneState, place: usize) {
        let (chunk, within) = (place / (2 * self.window), place % (2 * self.window));
        let (generation, holder) = &mut state.places[place];
        *generation = generation.wrapping_add(1) & (u32::MAX >> 1);
        *holder = MessagePlace::Lent;
        let posted = self.receives.post(state.chunks[chunk].whole(within), place as u64);
        // The queue has room for all places, and the memory is registered.
        debug_assert!(posted.is_ok(), "lending a place: {posted:?}");
    }

    /// Shuts an endpoint out. When this returns, its queue pair is gone, none of its waiting
    /// messages will be handled, and none is being handled (lane.N5).
    pub(crate) fn close(&self, pair: u32) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let Some(session) = state.sessions.get(&pair) else { return };
        let serial = session.serial;
        session.pair.fail();
        self.take_completions(state, usize::MAX);
        drop(state.sessions.remove(&pair));
        self.take_completions(state, usize::MAX);
        state.needed -= 2 * self.window;
        let ready = std::mem::take(&mut state.ready);
        let (gone, stay) = ready.into_iter().partition::<VecDeque<_>, _>(|r| r.pair == pair);
        state.ready = stay;
        gone.iter().for_each(|ready| self.lend(state, ready.place));
        for place in 0..state.places.len() {
            if state.places[place].1 == (MessagePlace::Sending { pair }) {
                self.lend(state, place);
            }
        }
        let is_under_way = |state: &mut LaneState| state.carried_out == Some(serial);
        drop(self.ended.wait_timeout_while(guard, MAX_CALL, is_under_way));
        self.wake.wake();
    }

    /// Ends [`ServerLane::serve`].
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Answers calls until the lane is stopped.
    pub(crate) fn serve<S: RpcService>(&self, service: &S, stripe: usize) {
        let cpu = InlineCpu::new(stripe);
        while let Some(call) = self.next() {
            let mut reply = Message::new();
            let (client, request) = (call.compute_server, &call.request);
            now_or_never(service.handle(&cpu, client, request, &mut reply));
            self.answer(&call, reply);
            now_or_never(service.after_reply(&cpu));
        }
    }

    /// The next call, or `None` once the lane has been stopped.
    fn next(&self) -> Option<CompleteRequest> {
        let mut armed = false;
        while !self.stopped.load(Ordering::Acquire) {
            let mut state = lock(&self.state);
            if state.ready.is_empty() {
                self.take_completions(&mut state, READY);
            }
            while let Some(ready) = state.ready.pop_front() {
                if let Some(call) = self.digest(&mut state, ready) {
                    self.requests.fetch_add(1, Ordering::Relaxed);
                    state.carried_out = Some(call.serial);
                    return Some(call);
                }
            }
            drop(state);
            // Messages that came before the queue was armed raise no event, so poll once more
            // before waiting.
            if armed {
                self.wait();
            } else {
                self.completions.arm().expect("a completion queue can be armed");
            }
            armed = !armed;
        }
        None
    }

    fn wait(&self) {
        let mut fds =
            [PollFd::new(&*self.channel, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("poll fails: {errno}"),
        }
        self.wake.clear();
        while self.channel.next_event().is_some() {}
    }

    /// Takes completions until none are left, or until `enough` messages wait.
    fn take_completions(&self, state: &mut LaneState, enough: usize) {
        let mut found = [Wc::default(); COMPLETIONS];
        while state.ready.len() < enough {
            let count =
                self.completions.poll(&mut found).expect("a completion queue can be polled");
            for done in &found[..count] {
                let place = done.wr_id as u32 as usize;
                if done.wr_id & SENT == 0 {
                    state.places[place].1 = MessagePlace::Working;
                    if done.status == 0 && state.sessions.contains_key(&done.qp_num) {
                        let (pair, bytes) = (done.qp_num, done.byte_len as usize);
                        state.ready.push_back(ReceivedMessage { place, pair, bytes });
                    } else {
                        self.lend(state, place);
                    }
                    continue;
                }
                let (generation, holder) = state.places[place];
                let is_current = u64::from(generation) == (done.wr_id & !SENT) >> 32;
                if let MessagePlace::Sending { pair } = holder
                    && is_current
                {
                    if let Some(session) = state.sessions.get_mut(&pair) {
                        session.sending -= 1;
                    }
                    self.lend(state, place);
                }
            }
            if count < found.len() {
                return;
            }
        }
    }

    /// Handles a message. Returns a complete request, or answers the message itself.
    fn digest(&self, state: &mut LaneState, ready: ReceivedMessage) -> Option<CompleteRequest> {
        let ReceivedMessage { place, pair, bytes } = ready;
        let (chunk, within) = (place / (2 * self.window), place % (2 * self.window));
        let places = &state.chunks[chunk];
        let Some(session) = state.sessions.get_mut(&pair) else {
            self.lend(state, place);
            return None;
        };
        let Some(header) = places.header(within, bytes) else {
            // A message without a valid header breaks its sender's connection and gets no answer.
            session.pair.fail();
            self.lend(state, place);
            return None;
        };
        let (whole, first) = (header.whole as usize, header.first as usize);
        let id = header.id;
        match header.kind {
            MessageKind::Request => {
                if first == 0 && whole <= MAX_MESSAGE_BYTES {
                    session.gathering = Some((id, Message::with_capacity(whole)));
                }
                let gathering = session.gathering.take();
                let Some((_, mut request)) =
                    gathering.filter(|(of, got)| *of == id && got.len() == first)
                else {
                    self.send(state, pair, place, &PieceHeader::bare(id, MessageKind::Gone), &[]);
                    return None;
                };
                places.append_to(within, &header, &mut request);
                if request.len() == whole {
                    let (serial, compute_server) = (session.serial, session.compute_server);
                    return Some(CompleteRequest {
                        place,
                        pair,
                        serial,
                        compute_server,
                        id,
                        request,
                    });
                }
                session.gathering = Some((id, request));
                self.send(state, pair, place, &PieceHeader::bare(id, MessageKind::GoOn), &[]);
            }
            MessageKind::More => {
                let found = session.kept.iter().position(|(of, _)| *of == id);
                let reply = found.and_then(|at| session.kept.remove(at));
                let Some((_, reply)) = reply.filter(|(_, reply)| first < reply.len()) else {
                    self.send(state, pair, place, &PieceHeader::bare(id, MessageKind::Gone), &[]);
                    return None;
                };
                let header = PieceHeader::piece(id, MessageKind::Reply, reply.len(), first);
                self.send(state, pair, place, &header, &reply);
                if header.end() < reply.len() {
                    self.keep(state, pair, id, reply);
                }
            }
            MessageKind::GoOn | MessageKind::Reply | MessageKind::TooLarge | MessageKind::Gone => {
                session.pair.fail();
                self.lend(state, place);
            }
        }
        None
    }

    /// Keeps a reply until the client has requested all of its pieces.
    fn keep(&self, state: &mut LaneState, pair: u32, id: u64, reply: Message) {
        if let Some(session) = state.sessions.get_mut(&pair) {
            if session.kept.len() >= self.window {
                session.kept.pop_front();
            }
            session.kept.push_back((id, reply));
        }
    }

    fn answer(&self, call: &CompleteRequest, reply: Message) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.carried_out = None;
        self.ended.notify_all();
        let CompleteRequest { place, pair, serial, id, .. } = *call;
        if state.sessions.get(&pair).is_none_or(|session| session.serial != serial) {
            return self.lend(state, place);
        }
        if reply.len() > MAX_MESSAGE_BYTES {
            let whole = u32::try_from(reply.len()).unwrap_or(u32::MAX);
            let header = PieceHeader { whole, ..PieceHeader::bare(id, MessageKind::TooLarge) };
            return self.send(state, pair, place, &header, &[]);
        }
        let header = PieceHeader::piece(id, MessageKind::Reply, reply.len(), 0);
        self.send(state, pair, place, &header, &reply);
        if reply.len() > PIECE_BYTES {
            self.keep(state, pair, id, reply);
        }
    }

    /// Sends an answer from the place that received the request.
    fn send(
        &self,
        state: &mut LaneState,
        pair: u32,
        place: usize,
        header: &PieceHeader,
        whole: &[u8],
    ) {
        let (chunk, within) = (place / (2 * self.window), place % (2 * self.window));
        let Some(session) = state.sessions.get_mut(&pair) else {
            return self.lend(state, place);
        };
        let local = state.chunks[chunk].put(within, header, whole);
        let generation = u64::from(state.places[place].0);
        let wr_id = SENT | generation << 32 | place as u64;
        // An endpoint that respects its window never has this many answers in flight (lane.N2).
        let is_within = session.sending < 2 * self.window;
        state.batch.push(wr_id, RequestOperation::Send, local, true);
        if is_within && session.pair.post(&mut state.batch).is_ok() {
            session.sending += 1;
            state.places[place].1 = MessagePlace::Sending { pair };
        } else {
            state.batch = RequestBatch::default();
            session.pair.fail();
            self.lend(state, place);
        }
    }
}
