//! A store in memory whose operations take a while, and a server's loop over it without sockets.
//!
//! *Thread safety*: none.

use farleaf_resp::{
    CommandTicket, RespConfig, RespLimits, RespPassword, RespReply, RespSession, RespShared,
    RespStore, StartedCommand, StoreCommand, StoreError, StoreExchange, StoreRange, StoredRecord,
    execute, execute_lookups,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The longest value.
pub(crate) const MAX_VALUE_BYTES: usize = 1000;

/// The longest key.
pub(crate) const MAX_KEY_BYTES: usize = 128;

fn check(key: &[u8]) -> Result<(), StoreError> {
    let bytes = key.len();
    match bytes <= MAX_KEY_BYTES {
        true => Ok(()),
        false => Err(StoreError::Invalid(format!("the key has {bytes} bytes"))),
    }
}

/// The store. Its clock advances with each operation.
pub(crate) struct MemoryStore {
    pub(crate) records: RefCell<BTreeMap<Vec<u8>, Vec<u8>>>,
    rng: RefCell<SmallRng>,
    most_waits: u32,
    pub(crate) now: Cell<u64>,
    /// How long an operation takes by the clock.
    pub(crate) operation_ms: Cell<u64>,
    /// Whether another command has the turn of every key.
    pub(crate) is_taken: Cell<bool>,
    /// The error of every change, if there is one.
    pub(crate) broken: RefCell<Option<StoreError>>,
    /// What it is after the next change.
    pub(crate) broken_next: RefCell<Option<StoreError>>,
}

struct Waits(u32);

impl Future for Waits {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl MemoryStore {
    /// A store whose operations wait up to so many polls before and after they take effect.
    pub(crate) fn new(seed: u64, most_waits: u32) -> Self {
        Self {
            records: RefCell::default(),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            most_waits,
            now: Cell::new(0),
            operation_ms: Cell::new(1),
            is_taken: Cell::new(false),
            broken: RefCell::new(None),
            broken_next: RefCell::new(None),
        }
    }

    fn waits(&self) -> Waits {
        Waits(self.rng.borrow_mut().random_range(0..=self.most_waits))
    }

    async fn act<T>(
        &self,
        act: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>) -> T,
    ) -> Result<T, StoreError> {
        self.now.set(self.now.get() + self.operation_ms.get());
        self.waits().await;
        let done = act(&mut self.records.borrow_mut());
        self.waits().await;
        Ok(done)
    }

    async fn change<T>(
        &self,
        act: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>) -> T,
    ) -> Result<T, StoreError> {
        let broken = self.broken.borrow().clone();
        if let Some(next) = self.broken_next.borrow_mut().take() {
            *self.broken.borrow_mut() = Some(next);
        }
        broken.map_or(Ok(()), Err)?;
        self.act(act).await
    }
}

impl RespStore for MemoryStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        check(key)?;
        self.act(|records| records.get(key).cloned()).await
    }

    async fn get_many(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.act(|records| keys.iter().map(|key| records.get(key).cloned()).collect()).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        let inserted = self.change(|records| {
            let is_absent = !records.contains_key(key);
            if is_absent {
                records.insert(key.to_vec(), value.to_vec());
            }
            is_absent
        });
        inserted.await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        let updated = self.change(|records| {
            records.get_mut(key).map(|former| *former = value.to_vec()).is_some()
        });
        updated.await
    }

    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        check(key)?;
        self.change(|records| drop(records.insert(key.to_vec(), value.to_vec()))).await
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, StoreError> {
        self.change(|records| records.remove(key).is_some()).await
    }

    async fn compare_exchange(
        &self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> Result<StoreExchange, StoreError> {
        let exchanged = self.change(|records| match records.get_mut(key) {
            Some(value) if value == expected => {
                *value = new.to_vec();
                StoreExchange::Exchanged
            }
            value => StoreExchange::Differs(value.cloned()),
        });
        exchanged.await
    }

    async fn scan(&self, range: StoreRange, limit: usize) -> Result<Vec<StoredRecord>, StoreError> {
        assert!(!range.is_empty());
        for bound in [&range.lower, &range.upper] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound {
                check(key)?;
            }
        }
        let scanned = self.act(|records| {
            let found = records.range((range.lower, range.upper));
            let record = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
            match range.is_reverse {
                true => found.rev().take(limit).map(record).collect(),
                false => found.take(limit).map(record).collect(),
            }
        });
        scanned.await
    }

    async fn clear(&self) -> Result<(), StoreError> {
        self.change(BTreeMap::clear).await
    }

    async fn turn(&self, _key: &[u8], timeout: Duration) -> Option<impl Sized> {
        let is_free = !self.is_taken.get();
        if !is_free {
            self.now.set(self.now.get() + timeout.as_millis() as u64);
        }
        is_free.then_some(())
    }

    fn max_value_bytes(&self) -> usize {
        MAX_VALUE_BYTES
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now.get())
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_700_000_000)
    }
}

/// The shared state of a server.
pub(crate) fn shared(password: Option<&str>, limits: RespLimits) -> Arc<RespShared> {
    Arc::new(RespShared::new(RespConfig {
        index_name: "default".to_owned(),
        password: password.map(|password| RespPassword::new(password.as_bytes())),
        limits,
        version: "0",
        port: 6379,
        max_clients: 10,
        seed: 1,
        deadline: Duration::from_secs(1),
    }))
}

type Running<'a> = Pin<Box<dyn Future<Output = Vec<(CommandTicket, RespReply)>> + 'a>>;

/// One client of a server, whose commands end in an order that a seed chooses.
pub(crate) struct Client<'a> {
    store: &'a MemoryStore,
    shared: &'a RespShared,
    pub(crate) session: RespSession,
    running: Vec<Running<'a>>,
    rng: SmallRng,
}

impl<'a> Client<'a> {
    pub(crate) fn new(store: &'a MemoryStore, shared: &'a Arc<RespShared>, seed: u64) -> Self {
        let session = RespSession::new(Arc::clone(shared), "127.0.0.1:1");
        let rng = SmallRng::seed_from_u64(seed);
        Self { store, shared, session, running: Vec::new(), rng }
    }

    /// Begins what can begin, and polls one command that runs. Returns whether there was anything.
    pub(crate) fn step(&mut self) -> bool {
        let (mut has_begun, mut lookups) = (false, Vec::new());
        let (store, shared) = (self.store, self.shared);
        while let Some(StartedCommand { ticket, command }) = self.session.start() {
            has_begun = true;
            match command {
                StoreCommand::Get(key) => lookups.push((ticket, key)),
                command => self.running.push(Box::pin(async move {
                    vec![(ticket, execute(store, shared, command).await)]
                })),
            }
        }
        if !lookups.is_empty() {
            self.running.push(Box::pin(execute_lookups(store, lookups)));
        }
        if self.running.is_empty() {
            return has_begun;
        }
        let chosen = self.rng.random_range(0..self.running.len());
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(replies) = self.running[chosen].as_mut().poll(&mut context) {
            drop(self.running.swap_remove(chosen));
            for (ticket, reply) in replies {
                self.session.complete(ticket, reply);
            }
        }
        true
    }

    /// Sends bytes in pieces of this size; returns all that comes back.
    pub(crate) fn send(&mut self, bytes: &[u8], piece: usize) -> Vec<u8> {
        let mut output = Vec::new();
        let mut pieces = bytes.chunks(piece.max(1));
        loop {
            if self.session.wants_input()
                && let Some(piece) = pieces.next()
            {
                self.session.receive(piece);
            }
            let is_busy = self.step() || !self.session.output().is_empty();
            output.extend_from_slice(self.session.output());
            self.session.consume_output(self.session.output().len());
            let is_read = pieces.len() == 0 || self.session.is_over();
            if !is_busy && is_read && self.session.running() == 0 {
                return output;
            }
        }
    }

    /// Sends one command as a line; returns its reply as text.
    pub(crate) fn line(&mut self, line: &str) -> String {
        let output = self.send(format!("{line}\r\n").as_bytes(), usize::MAX);
        let text = output.escape_ascii().to_string();
        text.replace("\\r\\n", " ").replace("\\'", "'").trim_end().to_owned()
    }
}

/// The bytes of a command.
pub(crate) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}
