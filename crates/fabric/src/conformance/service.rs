//! The memory server that the suite uses: small, with one request of each kind.

use crate::region::Region;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::{
    Calls, Cpu, MAX_MESSAGE_BYTES, Message, RegionBacking, ReplySink, RpcService, ServiceCall, Work,
};

/// The service of the suite's memory servers.
///
/// *Thread safety*: its only state is the region.
#[derive(Debug)]
pub struct TestService {
    region: Arc<Region>,
}

/// The reply to an invalid request.
pub const NOT_A_REQUEST: &[u8] = b"not a request";

const ECHO: u8 = 1;
const READ_WORD: u8 = 2;
const ADD_WORD: u8 = 3;
const REPLY_OF: u8 = 4;
const WORK: u8 = 5;

/// Limits on a reply's length, in bytes, and on nodes to visit. Requests beyond them are invalid.
const MAX_REPLY: u64 = 2 * MAX_MESSAGE_BYTES as u64;
const MAX_WORK: u64 = 10_000;

impl TestService {
    /// A server with `bytes` bytes of zeroed memory, a multiple of 4096, which other processes can
    /// map.
    ///
    /// # Panics
    /// If the memory cannot be allocated.
    pub fn new(bytes: usize) -> Arc<Self> {
        let backing = RegionBacking::Shared { huge_pages: false };
        let region = Region::with_backing(bytes, backing).expect("a small region");
        Arc::new(Self { region: Arc::new(region) })
    }

    /// A request to echo `bytes`.
    pub fn echo(bytes: &[u8]) -> Message {
        let mut request = Message::from_slice(&[ECHO]);
        request.extend_from_slice(bytes);
        request
    }

    /// A request for the word at `offset`.
    pub fn read_word(offset: u64) -> Message {
        request(READ_WORD, &[offset])
    }

    /// A request to add `delta` to the word at `offset`; the reply is the old value.
    pub fn add_word(offset: u64, delta: u64) -> Message {
        request(ADD_WORD, &[offset, delta])
    }

    /// A request for a reply of `bytes` bytes.
    pub fn reply_of(bytes: u64) -> Message {
        request(REPLY_OF, &[bytes])
    }

    /// A request to visit `nodes` nodes; the reply is that number.
    pub fn work(nodes: u64) -> Message {
        request(WORK, &[nodes])
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.region.slice(offset, 1).map(|words| &words[0])
    }
}

fn request(kind: u8, arguments: &[u64]) -> Message {
    let mut request = Message::from_slice(&[kind]);
    for argument in arguments {
        request.extend_from_slice(&argument.to_le_bytes());
    }
    request
}

/// Decodes a reply of one word.
///
/// # Panics
/// If the reply has another length.
pub fn word_of(reply: &[u8]) -> u64 {
    u64::from_le_bytes(reply.try_into().expect("a reply of one word"))
}

impl RpcService for TestService {
    fn region(&self) -> &Arc<Region> {
        &self.region
    }

    async fn handle<C: Cpu>(&self, cpu: &C, _client: u16, request: &[u8], reply: &mut Message) {
        let (kind, arguments) = request.split_first().unwrap_or((&0, &[]));
        if *kind == ECHO {
            return reply.extend_from_slice(arguments);
        }
        let words: Vec<u64> = arguments.chunks_exact(8).map(word_of).collect();
        let answer = match (*kind, &words[..]) {
            (READ_WORD, [offset]) => self.word(*offset).map(|word| word.load(Ordering::Acquire)),
            (ADD_WORD, [offset, delta]) => {
                cpu.charge(Work::VisitNode).await;
                self.word(*offset).map(|word| word.fetch_add(*delta, Ordering::AcqRel))
            }
            (REPLY_OF, [bytes]) if *bytes <= MAX_REPLY => {
                return reply.resize(*bytes as usize, 7);
            }
            (WORK, [nodes]) if *nodes <= MAX_WORK => {
                for _ in 0..*nodes {
                    cpu.charge(Work::VisitNode).await;
                }
                cpu.pause(0).await;
                Some(*nodes)
            }
            _ => None,
        };
        match answer {
            Some(word) => reply.extend_from_slice(&word.to_le_bytes()),
            None => reply.extend_from_slice(NOT_A_REQUEST),
        }
    }

    async fn after_reply<C: Cpu>(&self, _cpu: &C) {}
}

/// A service without memory. It keeps requests until another request releases them.
#[derive(Debug, Default)]
pub struct LateService {
    kept: Mutex<Vec<(Message, ReplySink)>>,
}

const KEEP: u8 = 1;
const ANSWER: u8 = 2;

impl LateService {
    /// A request to be answered later, with `bytes`.
    pub fn keep(bytes: &[u8]) -> Message {
        let mut request = Message::from_slice(&[KEEP]);
        request.extend_from_slice(bytes);
        request
    }

    /// A request to answer all kept requests; the reply is their number.
    pub fn answer() -> Message {
        Message::from_slice(&[ANSWER])
    }

    /// A request to drop all kept requests without an answer; the reply is their number.
    pub fn forget() -> Message {
        Message::new()
    }
}

impl Calls for LateService {
    fn memory(&self) -> Option<&Arc<Region>> {
        None
    }

    async fn call<C: Cpu>(&self, cpu: &C, call: ServiceCall<'_>) {
        cpu.charge(Work::VisitNode).await;
        if let Some((&KEEP, answer)) = call.request.split_first() {
            let answer = Message::from_slice(answer);
            return lock(&self.kept).push((answer, call.later()));
        }
        let kept = std::mem::take(&mut *lock(&self.kept));
        call.reply.extend_from_slice(&(kept.len() as u64).to_le_bytes());
        if call.request.first() == Some(&ANSWER) {
            kept.into_iter().for_each(|(answer, sink)| sink.send(answer));
        }
    }
}
