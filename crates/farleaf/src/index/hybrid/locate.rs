//! Finding leaves: one RPC to the memory server whose share it is, and to the right from there where the
//! server does not know of a split yet.

use super::{HybridIndex, Part};
use crate::index::IndexError;
use crate::page::{Layout, Probe, Step, step};
use crate::remote::{Miss, PageCopy, Pointer, RemoteError};
use crate::wire::{Reply, Request, TreeRequest};
use farleaf_fabric::{Fabric, GlobalAddr, Message, ServerId, Work};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Siblings that one search follows. More would mean that nobody tells the servers of splits.
const MAX_STEPS: usize = 10_000;

/// Leaves that a server has named, each with the key that it begins at.
pub(super) struct Named<K> {
    pub(super) leaves: Vec<(K, Pointer)>,
    /// Whether it may know of more in that direction.
    pub(super) more: bool,
}

/// A question to a server that has been posted.
pub(super) struct Asked<F: Fabric, L: Layout> {
    server: ServerId,
    request: Request<L>,
    /// What it names is as old as this.
    since_ns: u64,
    operation: F::Op<Message>,
}

impl<F: Fabric, L: Layout<Value = u64>> HybridIndex<F, L> {
    /// Whose share the probe is in.
    pub(super) fn server_of(&self, probe: Probe<'_, L::Key>) -> ServerId {
        let at_or_below = match probe {
            Probe::At(key) => self.parts.partition_point(|part| part.low <= *key),
            Probe::Before(key) => self.parts.partition_point(|part| part.low < *key),
            Probe::Last => self.parts.len(),
        };
        ServerId::new(at_or_below.saturating_sub(1) as u16)
    }

    pub(super) fn part(&self, server: ServerId) -> &Part<L::Key> {
        &self.parts[server.index()]
    }

    /// The first leaf of a server's share.
    pub(super) fn first_of(&self, server: ServerId) -> Pointer {
        Pointer::fixed(self.part(server).first)
    }

    /// Posts the question for `limit` leaves from the one that `probe` looks for downwards.
    pub(super) fn post_down(&self, probe: Probe<'_, L::Key>, limit: usize) -> Asked<F, L> {
        let upper = match probe {
            Probe::At(key) => Bound::Included(key.clone()),
            Probe::Before(key) => Bound::Excluded(key.clone()),
            Probe::Last => Bound::Unbounded,
        };
        self.post(self.server_of(probe), Bound::Unbounded, upper, true, limit)
    }

    /// Posts the question for `limit` leaves of a server that begin between the bounds.
    pub(super) fn post(
        &self,
        server: ServerId,
        lower: Bound<L::Key>,
        upper: Bound<L::Key>,
        reverse: bool,
        limit: usize,
    ) -> Asked<F, L> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let request = Request::from(TreeRequest::Scan { lower, upper, reverse, limit });
        let since_ns = self.pages.fabric().now_ns();
        let operation = self.pages.rpc().post(server, &request);
        Asked { server, request, since_ns, operation }
    }

    /// Waits for the answer.
    pub(super) async fn finish(&self, asked: Asked<F, L>) -> Result<Named<L::Key>, RemoteError> {
        let Asked { server, request, since_ns, operation } = asked;
        let reply = match self.pages.rpc().finish(server, operation, &request).await {
            Err(RemoteError::Indeterminate(_)) => {
                self.pages.rpc().ask_harmless(server, &request).await?
            }
            outcome => outcome?,
        };
        let Reply::Records { records, more } = reply else {
            return Err(RemoteError::BadReply { server });
        };
        let pointer = |(low, at)| (low, Pointer { at: GlobalAddr::from_bits(at), since_ns });
        Ok(Named { leaves: records.into_iter().map(pointer).collect(), more })
    }

    /// The leaf, as far as the server knows, that `probe` looks for: one RPC.
    #[inline]
    async fn locate(&self, probe: Probe<'_, L::Key>) -> Result<Pointer, RemoteError> {
        self.pages.fabric().charge(Work::Client).await;
        let asked = self.post_down(probe, 1);
        let server = asked.server;
        let named = self.finish(asked).await?;
        Ok(named.leaves.first().map_or(self.first_of(server), |(_, pointer)| *pointer))
    }

    /// The leaf that `probe` looks for: one RPC and one READ.
    #[inline]
    pub(super) async fn find(&self, probe: Probe<'_, L::Key>) -> Result<PageCopy<L>, Miss> {
        self.walk(self.locate(probe).await?, probe).await
    }

    /// The same from the leaf at `from`, or one left of it.
    pub(super) async fn walk(
        &self,
        from: Pointer,
        probe: Probe<'_, L::Key>,
    ) -> Result<PageCopy<L>, Miss> {
        let mut copy = self.pages.read(from).await?;
        for _ in 0..MAX_STEPS {
            self.pages.fabric().charge(Work::VisitNode).await;
            copy = match step(copy.page(), probe, 0) {
                Step::Here => return Ok(copy),
                Step::Right(to) => self.pages.read(copy.pointer(to)).await?,
                // Between the answer and the READ the leaf was merged or evened out.
                Step::Child(_) | Step::Lost => return Err(Miss::Restart),
            };
        }
        Err(Miss::Restart)
    }

    pub(super) async fn try_get(&self, key: &L::Key) -> Result<Option<L::Value>, Miss> {
        let leaf = self.find(Probe::At(key)).await?;
        Ok(L::leaf_get(leaf.page(), key))
    }

    /// The values of many keys: all RPCs are in flight together, then all READs, one for each leaf.
    pub(super) async fn get_all(
        &self,
        keys: &[L::Key],
    ) -> Result<Vec<Option<L::Value>>, IndexError> {
        let mut values = Vec::with_capacity(keys.len());
        // Others of this endpoint need buffers too.
        for window in keys.chunks((self.pages.fabric().depth() / 2).max(1)) {
            let found = self.get_together(window).await?;
            for (key, value) in window.iter().zip(found) {
                values.push(match value {
                    Some(value) => value,
                    // It met a change under way: once more, alone.
                    None => self.pages.attempts(async || self.try_get(key).await).await?,
                });
            }
        }
        Ok(values)
    }

    async fn get_together(
        &self,
        keys: &[L::Key],
    ) -> Result<Vec<Option<Option<L::Value>>>, IndexError> {
        self.pages.fabric().charge(Work::Client).await;
        let asked: Vec<_> = keys.iter().map(|key| self.post_down(Probe::At(key), 1)).collect();
        let mut leaves: BTreeMap<GlobalAddr, (Pointer, Vec<usize>)> = BTreeMap::new();
        for (number, asked) in asked.into_iter().enumerate() {
            let first = self.first_of(asked.server);
            let named = self.finish(asked).await?;
            let pointer = named.leaves.first().map_or(first, |(_, pointer)| *pointer);
            let known = leaves.entry(pointer.at).or_insert((pointer, Vec::new()));
            // Each answer may be older than the others: the oldest counts.
            known.0.since_ns = known.0.since_ns.min(pointer.since_ns);
            known.1.push(number);
        }
        let mut found = vec![None; keys.len()];
        let post = |(pointer, of)| Some((self.pages.post_read(pointer).ok()?, of));
        let posted: Vec<_> = leaves.into_values().filter_map(post).collect();
        for (read, of) in posted {
            let copy = match self.pages.finish_read(read).await {
                Ok(copy) => copy,
                Err(Miss::Restart) => continue,
                Err(Miss::Failed(error)) => return Err(error.into()),
            };
            for number in of {
                let key = &keys[number];
                self.pages.fabric().charge(Work::VisitNode).await;
                if step(copy.page(), Probe::At(key), 0) == Step::Here {
                    found[number] = Some(L::leaf_get(copy.page(), key));
                }
            }
        }
        Ok(found)
    }
}
