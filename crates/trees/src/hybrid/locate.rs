//! Locating leaves: one RPC to the memory server of the key's share, followed by steps to the right
//! if the server has not recorded a split yet.
//!
//! An ascending scan requests its first leaf and the following ones in one doorbell. Beyond the
//! leaves that the server has named, the scan follows the siblings to the end of the share.

use super::{HybridIndex, HybridShare};
use crate::one_sided::LeafLocator;
use farleaf_fabric::{Fabric, GlobalAddr, Message, ServerId, Work};
use farleaf_index::{IndexError, ScanRequest};
use farleaf_page::{DescentProbe, Layout, OverflowEntry, OwnedKey, OwnedValue, WalkStep, step};
use farleaf_pool::remote::{
    LeafStream, MissCause, PageClient, PageCopy, RemoteError, TimedPointer,
};
use farleaf_pool::wire::{Reply, Request, TreeRequest};
use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// A scan that wants this many leaves will probably want more: it requests several windows at once.
const LARGE_WINDOW: usize = 64;
const WINDOWS_AHEAD: usize = 4;

/// Leaves named by a server, each with its low key.
pub(super) struct NamedLeaves<K> {
    pub(super) leaves: Vec<(K, TimedPointer)>,
    /// Whether the server may have more in that direction.
    pub(super) more: bool,
}

/// A posted request to a server.
pub(super) struct PostedRequest<F: Fabric, L: Layout> {
    server: ServerId,
    request: Request<L>,
    /// When the request was posted. The pointers in the reply count as read at that time.
    since_ns: u64,
    operation: F::Op<Message>,
}

impl<F: Fabric, L: Layout> HybridIndex<F, L> {
    /// The memory server of the share that covers the probe.
    pub(super) fn server_of(&self, probe: DescentProbe<'_, L::Key>) -> ServerId {
        let at_or_below = match probe {
            DescentProbe::At(key) => self.parts.partition_point(|part| L::key(&part.low) <= key),
            DescentProbe::Before(key) => self.parts.partition_point(|part| L::key(&part.low) < key),
            DescentProbe::Last => self.parts.len(),
        };
        ServerId::new(at_or_below.saturating_sub(1) as u16)
    }

    pub(super) fn part(&self, server: ServerId) -> &HybridShare<OwnedKey<L>> {
        &self.parts[server.index()]
    }

    /// The first leaf of a server's share.
    pub(super) fn first_of(&self, server: ServerId) -> TimedPointer {
        TimedPointer::fixed(self.part(server).first)
    }

    /// Posts the request for `limit` leaves, descending from the one that covers the probe.
    pub(super) fn post_down(
        &self,
        probe: DescentProbe<'_, L::Key>,
        limit: usize,
    ) -> PostedRequest<F, L> {
        let upper = match probe {
            DescentProbe::At(key) => Bound::Included(key.to_owned()),
            DescentProbe::Before(key) => Bound::Excluded(key.to_owned()),
            DescentProbe::Last => Bound::Unbounded,
        };
        self.post(self.server_of(probe), Bound::Unbounded, upper, true, limit)
    }

    /// Posts the request for `limit` leaves of a server that begin between the bounds.
    pub(super) fn post(
        &self,
        server: ServerId,
        lower: Bound<OwnedKey<L>>,
        upper: Bound<OwnedKey<L>>,
        reverse: bool,
        limit: usize,
    ) -> PostedRequest<F, L> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let request = Request::from(TreeRequest::Scan { lower, upper, reverse, limit });
        let since_ns = self.pages.fabric().now_ns();
        let operation = self.pages.rpc().post(server, &request);
        PostedRequest { server, request, since_ns, operation }
    }

    /// Waits for the reply.
    pub(super) async fn finish(
        &self,
        asked: PostedRequest<F, L>,
    ) -> Result<NamedLeaves<OwnedKey<L>>, RemoteError> {
        let PostedRequest { server, request, since_ns, operation } = asked;
        let reply = match self.pages.rpc().finish(server, operation, &request).await {
            Err(RemoteError::Indeterminate(_)) => {
                self.pages.rpc().ask_idempotent(server, &request).await?
            }
            outcome => outcome?,
        };
        let Reply::Records { records, more } = reply else {
            return Err(RemoteError::BadReply { server });
        };
        let pointer = |(low, at)| {
            let at = L::address_of_value(L::value(&at));
            (low, TimedPointer { at, since_ns })
        };
        Ok(NamedLeaves { leaves: records.into_iter().map(pointer).collect(), more })
    }

    /// The leaf that covers the probe, according to the server: one RPC.
    #[inline]
    async fn locate(&self, probe: DescentProbe<'_, L::Key>) -> Result<TimedPointer, RemoteError> {
        let asked = self.post_down(probe, 1);
        let server = asked.server;
        let named = self.finish(asked).await?;
        Ok(named.leaves.first().map_or(self.first_of(server), |(_, pointer)| *pointer))
    }
}

/// Leaves of a share that the server has named for an ascending scan and that have not been read
/// yet.
#[derive(Debug)]
pub struct FollowingLeaves<K> {
    leaves: VecDeque<TimedPointer>,
    /// Whether the server could name more.
    more: bool,
    /// Where the share ends.
    end: Option<K>,
}

impl<K> FollowingLeaves<K> {
    /// Posts READs until `window` are in flight: several per doorbell, whenever at most half of
    /// them are still in flight.
    fn post<F: Fabric, L: Layout>(&mut self, stream: &mut LeafStream<'_, F, L>, window: usize) {
        let mut posting = false;
        while (posting || stream.in_flight() <= window / 2)
            && stream.in_flight() < window
            && let Some(next) = self.leaves.pop_front()
        {
            stream.read_ahead(next, true);
            posting = true;
        }
    }
}

impl<F: Fabric, L: Layout> LeafLocator for HybridIndex<F, L> {
    type Fabric = F;
    type Layout = L;
    type Ahead = FollowingLeaves<OwnedKey<L>>;

    fn pages(&self) -> &PageClient<F, L> {
        &self.pages
    }

    /// Costs one RPC and one READ.
    #[inline]
    async fn find(&self, probe: DescentProbe<'_, L::Key>) -> Result<PageCopy<L>, MissCause> {
        self.find_from(self.locate(probe).await?, probe).await
    }

    async fn find_from(
        &self,
        from: TimedPointer,
        probe: DescentProbe<'_, L::Key>,
    ) -> Result<PageCopy<L>, MissCause> {
        let mut copy = self.pages.read(from).await?;
        loop {
            self.pages.fabric().charge(Work::VisitNode).await;
            let next = match step(copy.page(), probe, 0) {
                WalkStep::Here => return Ok(copy),
                WalkStep::Right(to) => self.pages.read(copy.pointer(to)).await?,
                // Between the reply and the READ, the leaf was merged or rebalanced.
                WalkStep::Child(_) | WalkStep::Lost => return Err(MissCause::Restart),
            };
            // A server that could not publish its tree knows only the first leaf, so any number of
            // steps may be right. Each must lead to the right, because the sibling may have been
            // reused.
            if L::low(next.page()) <= L::low(copy.page()) {
                return Err(MissCause::Restart);
            }
            copy = next;
        }
    }

    /// The values of a few keys. All RPCs are in flight together, then all READs, one for each
    /// leaf.
    async fn get_together<Q: Borrow<L::Key>>(
        &self,
        keys: &[Q],
    ) -> Result<Vec<Option<Option<OwnedValue<L>>>>, IndexError> {
        let asked: Vec<_> =
            keys.iter().map(|key| self.post_down(DescentProbe::At(key.borrow()), 1)).collect();
        let mut leaves: BTreeMap<GlobalAddr, (TimedPointer, Vec<usize>)> = BTreeMap::new();
        for (number, asked) in asked.into_iter().enumerate() {
            let first = self.first_of(asked.server);
            let named = self.finish(asked).await?;
            let pointer = named.leaves.first().map_or(first, |(_, pointer)| *pointer);
            let known = leaves.entry(pointer.at).or_insert((pointer, Vec::new()));
            // The replies may differ in age: assume the age of the oldest.
            known.0.since_ns = known.0.since_ns.min(pointer.since_ns);
            known.1.push(number);
        }
        let mut found = vec![None; keys.len()];
        let post = |(pointer, of)| Some((self.pages.post_read(pointer).ok()?, of));
        let posted: Vec<_> = leaves.into_values().filter_map(post).collect();
        for (read, of) in posted {
            let copy = match self.pages.finish_read(read).await {
                Ok(copy) => copy,
                Err(MissCause::Restart) => continue,
                Err(MissCause::Failed(error)) => return Err(error.into()),
            };
            for number in of {
                let key = &keys[number];
                self.pages.fabric().charge(Work::VisitNode).await;
                if step(copy.page(), DescentProbe::At(key.borrow()), 0) == WalkStep::Here {
                    found[number] = Some(L::leaf_get(copy.page(), key.borrow()));
                }
            }
        }
        Ok(found)
    }

    async fn emptied(&self, key: &L::Key) -> Result<(), MissCause> {
        self.join_emptied(key).await?;
        Ok(self.pages.share_many_free_nodes().await?)
    }

    async fn split_and_add(
        &self,
        full: &PageCopy<L>,
        entry: &OverflowEntry<L>,
        spare: &mut Vec<GlobalAddr>,
    ) -> Result<(), MissCause> {
        self.split_leaf(full, entry, spare).await
    }

    async fn locate_up(
        &self,
        start: &L::Key,
        scan: &ScanRequest<OwnedKey<L>>,
        window: usize,
        stream: &mut LeafStream<'_, F, L>,
    ) -> Result<(Option<PageCopy<L>>, FollowingLeaves<OwnedKey<L>>), MissCause> {
        let server = self.server_of(DescentProbe::At(start));
        let HybridShare { low, high, .. } = self.part(server);
        let floor = (L::key(low) != start).then(|| self.post_down(DescentProbe::At(start), 1));
        let batch = if window < LARGE_WINDOW { window } else { WINDOWS_AHEAD * window };
        let rest = (window > 1).then(|| {
            self.post(server, Bound::Excluded(start.to_owned()), scan.upper.clone(), false, batch)
        });
        let mut first = self.first_of(server);
        if let Some(asked) = floor
            && let Some((_, pointer)) = self.finish(asked).await?.leaves.first()
        {
            first = *pointer;
        }
        let mut following =
            FollowingLeaves { leaves: VecDeque::new(), more: true, end: high.clone() };
        if let Some(asked) = rest {
            let NamedLeaves { leaves, more } = self.finish(asked).await?;
            following.leaves = leaves.into_iter().map(|(_, pointer)| pointer).collect();
            following.more = more;
        }
        stream.read_ahead(first, true);
        following.post(stream, window + 1);
        Ok((None, following))
    }

    fn go_ahead(
        &self,
        following: &mut FollowingLeaves<OwnedKey<L>>,
        window: usize,
        cursor: Option<&L::Key>,
        stream: &mut LeafStream<'_, F, L>,
    ) -> bool {
        following.post(stream, window);
        let unnamed = following.leaves.is_empty() && following.more;
        let ends_share = following.end.is_some() && cursor == following.end.as_ref().map(L::key);
        // A single leaf is one READ by its sibling pointer. For several, an RPC to the server pays
        // off.
        stream.in_flight() > 0 || window <= 1 || !(unnamed || ends_share)
    }

    async fn locate_down(
        &self,
        probe: DescentProbe<'_, L::Key>,
        window: usize,
    ) -> Result<Vec<(OwnedKey<L>, TimedPointer)>, MissCause> {
        let server = self.server_of(probe);
        let NamedLeaves { mut leaves, more } = self.finish(self.post_down(probe, window)).await?;
        if !more {
            leaves.push((self.part(server).low.clone(), self.first_of(server)));
        }
        Ok(leaves)
    }

    async fn load_all(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        self.load_records(source, fill).await
    }
}
