//! Scans: one server after another under range partitioning, all servers merged under hash
//! partitioning.

use super::CoarseIndex;
use farleaf_fabric::{Fabric, ServerId};
use farleaf_index::{IndexError, KeyedRecords, ScanRequest};
use farleaf_page::{Layout, OwnedKey, OwnedValue};
use farleaf_pool::remote::{RemoteError, ShareMap};
use farleaf_pool::wire::{Reply, Request, SCAN_REPLY_RECORDS, TreeRequest};
use std::collections::VecDeque;
use std::ops::Bound;

/// The records of one server that have been fetched and not yet used.
struct ServerRecords<L: Layout> {
    server: ServerId,
    fetched: VecDeque<(OwnedKey<L>, OwnedValue<L>)>,
    /// The rest of the scan; `None` once the server has no more records.
    rest: Option<ScanRequest<OwnedKey<L>>>,
}

impl<L: Layout> ServerRecords<L> {
    fn new(server: ServerId, scan: &ScanRequest<OwnedKey<L>>) -> Self {
        Self { server, fetched: VecDeque::new(), rest: Some(scan.clone()) }
    }

    fn request(&self, count: usize) -> Option<Request<L>> {
        let rest = self.rest.as_ref()?;
        let limit = count.min(rest.limit).min(SCAN_REPLY_RECORDS) as u32;
        let (lower, upper) = (rest.lower.clone(), rest.upper.clone());
        Some(TreeRequest::Scan { lower, upper, reverse: rest.reverse, limit }.into())
    }

    fn take_reply(&mut self, reply: Reply<L>) -> Result<(), IndexError> {
        let Reply::Records { records, more } = reply else {
            return Err(IndexError::BadReply { server: self.server });
        };
        self.rest = self.rest.take().filter(|_| more).and_then(|mut rest| {
            // Without a record there is no position to continue from, and the stream has ended.
            let last = Bound::Excluded(records.last()?.0.clone());
            if rest.reverse {
                rest.upper = last;
            } else {
                rest.lower = last;
            }
            Some(rest)
        });
        self.fetched.extend(records);
        Ok(())
    }
}

impl<F: Fabric, L: Layout> CoarseIndex<F, L> {
    pub(super) async fn scan_all(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
    ) -> Result<KeyedRecords<OwnedKey<L>, OwnedValue<L>>, IndexError> {
        scan.check::<L>()?;
        match &self.map {
            ShareMap::Hash { servers } => self.scan_merged(scan, usize::from(*servers)).await,
            ShareMap::Range { .. } => self.scan_in_turn(scan).await,
        }
    }

    async fn fetch(&self, stream: &mut ServerRecords<L>, count: usize) -> Result<(), IndexError> {
        let Some(request) = stream.request(count) else { return Ok(()) };
        let reply = self.client.ask_idempotent(stream.server, &request).await?;
        stream.take_reply(reply)
    }

    /// Scans under range partitioning, where the servers hold consecutive ranges.
    async fn scan_in_turn(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
    ) -> Result<KeyedRecords<OwnedKey<L>, OwnedValue<L>>, IndexError> {
        let mut records = KeyedRecords::new();
        let mut servers: Vec<ServerId> = self.servers_of(scan).collect();
        if scan.reverse {
            servers.reverse();
        }
        for server in servers {
            let mut stream = ServerRecords::new(server, scan);
            while stream.rest.is_some() && records.len() < scan.limit {
                self.fetch(&mut stream, scan.limit - records.len()).await?;
                records.extend(stream.fetched.drain(..));
            }
        }
        Ok(records)
    }

    /// The servers with ranges that overlap the scan.
    fn servers_of(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
    ) -> impl Iterator<Item = ServerId> + use<F, L> {
        let server = |bound: &Bound<OwnedKey<L>>, otherwise: u16| match bound {
            Bound::Unbounded => otherwise,
            Bound::Included(key) | Bound::Excluded(key) => {
                self.map.server_of::<L>(L::key(key)).number()
            }
        };
        let last = self.map.servers().next_back().map_or(0, ServerId::number);
        (server(&scan.lower, 0)..=server(&scan.upper, last)).map(ServerId::new)
    }

    /// Scans under hash partitioning, where every server holds part of every range. Asks all
    /// servers at once and merges their answers; asks a server again when its records are used up.
    async fn scan_merged(
        &self,
        scan: &ScanRequest<OwnedKey<L>>,
        servers: usize,
    ) -> Result<KeyedRecords<OwnedKey<L>, OwnedValue<L>>, IndexError> {
        // An even hash gives each server about an equal part; the margin covers deviations.
        let part = scan.limit.div_ceil(servers).saturating_add(scan.limit / servers / 4);
        let batch = part.saturating_add(8).min(scan.limit);
        let mut streams: Vec<ServerRecords<L>> =
            self.map.servers().map(|server| ServerRecords::new(server, scan)).collect();
        let mut posted = Vec::new();
        for stream in &streams {
            let request = stream.request(batch).ok_or(IndexError::InvalidArgument("empty scan"))?;
            posted.push((self.client.post(stream.server, &request), request));
        }
        for (stream, (operation, request)) in streams.iter_mut().zip(posted) {
            let reply = match self.client.finish(stream.server, operation, &request).await {
                Err(RemoteError::Indeterminate(_)) => {
                    self.client.ask_idempotent(stream.server, &request).await?
                }
                outcome => outcome?,
            };
            stream.take_reply(reply)?;
        }
        let mut records = KeyedRecords::new();
        while records.len() < scan.limit {
            for stream in &mut streams {
                if stream.fetched.is_empty() {
                    self.fetch(stream, batch).await?;
                }
            }
            let heads = streams.iter_mut().filter(|stream| !stream.fetched.is_empty());
            let next = if scan.reverse {
                heads.max_by(|a, b| a.fetched[0].0.cmp(&b.fetched[0].0))
            } else {
                heads.min_by(|a, b| a.fetched[0].0.cmp(&b.fetched[0].0))
            };
            let Some(record) = next.and_then(|stream| stream.fetched.pop_front()) else { break };
            records.push(record);
        }
        Ok(records)
    }
}
