//! The map record, which decides which compute server owns which keys when compute servers are
//! separate processes.
//!
//! A compute server changes the record only by replacing the version that it has read. So of two
//! conflicting changes one fails, and each server can read what was decided.
//!
//! *Invariants*
//! - record.MR1. Between the put that begins a move and the put that ends it, no compute server
//!   serves the moving keys: the giver has released them before the first put, and the taker serves
//!   them after the second.
//! - record.MR2. A compute server serves keys that it has released only after a put of its own has
//!   raised the record's version. So an earlier put of unknown outcome can no longer take effect.
//! - record.MR3. A bulk load replaces the tree only after its put has replaced the version that it
//!   had read before any compute server halted for it. A life that begins has raised the version,
//!   and so has a compute server that resumes while a load may still put. So at that put, every
//!   compute server has halted and has written everything back.
//! - record.MR4. Between the put that begins a replacement and the one that ends it, no compute
//!   server resumes, and no life begins but the builder's. The builder ends it once no WRITE of its
//!   replacement can land any more: after the replacement, or in its next incarnation.
//!
//! *Thread safety*: a [`MapStore`] belongs to one thread.

use super::PartitionMap;
use super::map::KeyMove;
use crate::IndexError;
use farleaf_fabric::Fabric;
use farleaf_page::rules;
use futures_util::future::LocalBoxFuture;
use std::fmt::Debug;

/// A move of keys that has begun: the giver has released them, and the taker may take them over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingMove<K> {
    /// A random number, so that two attempts with the same servers and boundary differ.
    pub id: u64,
    /// The compute server that has released the keys.
    pub from: u16,
    /// The compute server that takes them over.
    pub to: u16,
    /// The boundary between the keys that move and those that stay; `None` if all move.
    pub at: Option<K>,
    /// Whether `from` is dead and has released nothing: `to` takes over all of its keys.
    pub dead: bool,
}

/// A bulk load that is replacing the tree, or whose builder may have died meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// The number of the load.
    pub load: u64,
    /// The compute server that built the new tree.
    pub by: u16,
}

/// The content of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapState<K> {
    /// The owner of every key; while a move is pending, the owners before the move.
    pub map: PartitionMap<K>,
    /// The pending move. There is at most one at a time.
    pub moving: Option<PendingMove<K>>,
    /// The replacement of the tree that is going on. No keys move meanwhile.
    pub replacing: Option<Replacement>,
}

impl<K: Clone + Ord> MapState<K> {
    /// A map without a pending move and without a replacement.
    pub fn settled(map: PartitionMap<K>) -> Self {
        Self { map, moving: None, replacing: None }
    }

    /// The pending move with all its ranges.
    ///
    /// # Errors
    /// [`IndexError::InvalidArgument`] if the map does not allow it, so the record is damaged.
    pub fn planned(&self, pending: &PendingMove<K>) -> Result<KeyMove<K>, IndexError> {
        self.map.plan(pending.from, pending.to, pending.at.as_ref())
    }
}

/// The outcome of [`MapStore::put_if`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The record has the new content.
    Done,
    /// The record has another version. Nothing has changed.
    Changed,
    /// The record may have the new content, now or later, unless its version is raised first.
    Unknown,
}

/// Where the record is kept.
pub trait MapStore<K> {
    /// Whether the record has room for this content. Called before keys are released.
    fn takes(&self, state: &MapState<K>) -> bool {
        let _ = state;
        true
    }

    /// The record and its version; `None` if it cannot be read now.
    fn read(&self) -> LocalBoxFuture<'_, Option<(MapState<K>, u64)>>;

    /// Replaces the record if it still has this version.
    fn put_if<'a>(&'a self, version: u64, state: &'a MapState<K>)
    -> LocalBoxFuture<'a, PutOutcome>;
}

/// Pauses between attempts to read or replace the record, in nanoseconds.
const MIN_PAUSE_NS: u64 = 1_000_000;
const MAX_PAUSE_NS: u64 = 200_000_000;
/// Attempts to read or replace the record at the beginning of a life.
const ATTEMPTS: u32 = 100;

/// Begins the next incarnation of a compute server: cancels a move in which its previous life was
/// the giver, and raises the record's version, so that no put of the previous life can still take
/// effect (MR2), and no bulk load can replace the tree without this life (MR3). Returns the map to
/// serve by. Call it after the previous life has been fenced.
///
/// # Errors
/// [`IndexError::Contended`] if the record cannot be read or replaced, or while another compute
/// server is replacing the tree.
pub async fn begin_incarnation<K: Clone + Ord>(
    fabric: &impl Fabric,
    store: &dyn MapStore<K>,
    compute_server: u16,
) -> Result<PartitionMap<K>, IndexError> {
    let mut pause_ns = MIN_PAUSE_NS;
    for _ in 0..ATTEMPTS {
        if let Some((mut state, version)) = store.read().await {
            if fabric.breaks(rules::RECORD_RAISED) {
                return Ok(state.map);
            }
            let is_others = |replacing: &Replacement| replacing.by != compute_server;
            if state.replacing.as_ref().is_some_and(is_others)
                && !fabric.breaks(rules::REPLACEMENT_AWAITED)
            {
                // The tree that this life would read may be the former one (MR4).
                fabric.sleep(pause_ns).await;
                pause_ns = (pause_ns * 2).min(MAX_PAUSE_NS);
                continue;
            }
            if fabric.breaks(rules::REPLACEMENT_SETTLED) {
                state.replacing = None;
            }
            if state.moving.as_ref().is_some_and(|pending| pending.from == compute_server) {
                state.moving = None;
            }
            if store.put_if(version, &state).await == PutOutcome::Done {
                return Ok(state.map);
            }
        }
        fabric.sleep(pause_ns).await;
        pause_ns = (pause_ns * 2).min(MAX_PAUSE_NS);
    }
    Err(IndexError::Contended { retries: ATTEMPTS })
}
