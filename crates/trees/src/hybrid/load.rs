//! Bulk loading: leaves are built left to right in private memory and written round robin to the
//! memory servers, with many WRITEs in flight. Meanwhile the servers build their trees, which
//! readers cannot see. Then the content built for the first leaf of each share is written to it,
//! which links it to the other leaves. Finally the servers publish their trees.
//!
//! *Invariant*: hybrid.Z1. Nothing reachable points to a loaded leaf before all of them are
//! written.

use super::{HybridIndex, HybridShare, empty_leaf};
use farleaf_fabric::{Fabric, FabricError, GlobalAddr, ServerId, Uncertainty};
use farleaf_index::{AscendingCheck, IndexError, check_fill};
use farleaf_page::{DescentProbe, Layout, OwnedKey, OwnedValue, filled_weight};
use farleaf_pool::remote::{
    FreshNode, FreshWriter, MissCause, PageChange, PageCopy, PageImage, RemoteError,
};
use farleaf_pool::wire::{RecordRoom, Refusal, TreeRequest};

/// Maximum number of small records in one message.
const BATCH_RECORDS: usize = 2048;

/// A leaf under construction: the existing first leaf of its share, or a new one.
struct OpenLeaf<F: Fabric, L: Layout> {
    share: usize,
    node: Option<FreshNode<F>>,
    image: PageImage<L>,
    filling: L::Filling,
}

/// A load in progress.
struct HybridLoad<'a, F: Fabric, L: Layout> {
    index: &'a HybridIndex<F, L>,
    writer: FreshWriter<'a, F, L>,
    /// Target weight of a leaf.
    fill: usize,
    fill_permille: u16,
    /// The load's number.
    number: u64,
    open: Option<OpenLeaf<F, L>>,
    /// The new content of the first leaves, by share.
    firsts: Vec<(usize, PageImage<L>)>,
    /// The low ends and addresses of leaves of the current share that have not been sent to its
    /// server yet.
    batch: Vec<(OwnedKey<L>, OwnedValue<L>)>,
    /// The room left in the batch's message.
    room: RecordRoom,
    /// Servers that are building trees.
    begun: Vec<ServerId>,
}

impl<'a, F: Fabric, L: Layout> HybridLoad<'a, F, L> {
    fn part(&self, share: usize) -> &'a HybridShare<OwnedKey<L>> {
        &self.index.parts[share]
    }

    async fn append(&mut self, key: &L::Key, value: &L::Value) -> Result<(), RemoteError> {
        let share = self.index.server_of(DescentProbe::At(key)).index();
        match &self.open {
            Some(open) if open.share == share => {
                // A leaf that begins with the last record of the previous one may have no room for
                // this record.
                for _ in 0..3 {
                    if self.add((key, value)) {
                        return Ok(());
                    }
                    self.next_leaf(key).await?;
                }
            }
            _ => {
                self.end_share().await?;
                let HybridShare { low, high, first } = self.part(share);
                let image = empty_leaf::<L>(
                    *first,
                    L::key(low),
                    high.as_ref().map(L::key),
                    GlobalAddr::NULL,
                );
                let filling = L::Filling::default();
                self.open = Some(OpenLeaf { share, node: None, image, filling });
            }
        }
        match self.add((key, value)) {
            true => Ok(()),
            false => Err(RemoteError::Contended { retries: 0 }),
        }
    }

    /// Adds a record to the open leaf; `false` if the leaf is full.
    fn add(&mut self, record: (&L::Key, &L::Value)) -> bool {
        let fill = self.fill;
        self.open.as_mut().is_some_and(|OpenLeaf { image, filling, .. }| {
            L::fill_leaf(filling, image.page(), record, fill)
        })
    }

    /// Ends the open leaf before a record with key `next`, and opens the next one of its share.
    async fn next_leaf(&mut self, next: &L::Key) -> Result<(), RemoteError> {
        let Some(OpenLeaf { share, node, image, filling }) = self.open.take() else {
            return Ok(());
        };
        let low = L::fill_separator(&filling, next);
        let (low, back) = match L::fill_leaf_end(filling, image.page(), Some(L::key(&low))) {
            Some((early, record)) => (early, Some(record)),
            None => (low, None),
        };
        self.open_next((share, node, image), low, back).await
    }

    /// Opens the leaf after the one that has ended. It begins with `back`, if there is such a
    /// record.
    async fn open_next(
        &mut self,
        (share, before, content): (usize, Option<FreshNode<F>>, PageImage<L>),
        low: OwnedKey<L>,
        back: Option<(OwnedKey<L>, OwnedValue<L>)>,
    ) -> Result<(), RemoteError> {
        let low = L::key(&low);
        let node = self.writer.take().await?;
        content.page().set_sibling(node.at());
        let high = self.part(share).high.as_ref();
        let image = empty_leaf::<L>(node.at(), low, high.map(L::key), GlobalAddr::NULL);
        let value = L::value_of_address(node.at());
        if !self.room.takes::<L>(low, L::value(&value)) {
            self.send_batch(share).await?;
            self.room.takes::<L>(low, L::value(&value));
        }
        self.batch.push((low.to_owned(), value));
        let filling = L::Filling::default();
        self.open = Some(OpenLeaf { share, node: Some(node), image, filling });
        self.write(share, before, content).await?;
        match back {
            Some((key, value)) if !self.add((L::key(&key), L::value(&value))) => {
                Err(RemoteError::Contended { retries: 0 })
            }
            _ => Ok(()),
        }
    }

    /// Writes a leaf that has ended.
    async fn write(
        &mut self,
        share: usize,
        node: Option<FreshNode<F>>,
        image: PageImage<L>,
    ) -> Result<(), RemoteError> {
        match node {
            Some(node) => self.writer.write(node, image).await?,
            None => self.firsts.push((share, image)),
        }
        Ok(())
    }

    /// Closes the last leaf of a share, before the first of the next one.
    async fn end_share(&mut self) -> Result<(), RemoteError> {
        while let Some(OpenLeaf { share, node, image, filling }) = self.open.take() {
            let high = self.part(share).high.as_ref().map(L::key);
            if let Some((low, record)) = L::fill_leaf_end(filling, image.page(), high) {
                self.open_next((share, node, image), low, Some(record)).await?;
                continue;
            }
            if let Some(next) = self.index.parts.get(share + 1) {
                image.page().set_sibling(next.first);
            }
            self.send_batch(share).await?;
            self.write(share, node, image).await?;
        }
        Ok(())
    }

    /// Sends the batched leaves of a share to its server.
    async fn send_batch(&mut self, share: usize) -> Result<(), RemoteError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let server = ServerId::new(share as u16);
        let rpc = self.index.pages.rpc();
        if !self.begun.contains(&server) {
            self.begun.push(server);
            rpc.begin_load(server, self.number, self.fill_permille).await?;
        }
        let (load, records) = (self.number, std::mem::take(&mut self.batch));
        self.room = RecordRoom::for_records(BATCH_RECORDS);
        rpc.expect_done(server, &TreeRequest::LoadAppend { load, records }).await
    }

    /// Writes the content of the shares' first leaves. After an error other than
    /// [`RemoteError::Indeterminate`], none of them has its new content.
    async fn show(&self) -> Result<(), RemoteError> {
        for (number, (share, image)) in self.firsts.iter().enumerate() {
            let shown =
                self.index.pages.attempts(async || self.index.show_first(*share, image).await);
            let Err(error) = shown.await else { continue };
            if matches!(error, RemoteError::Indeterminate(_)) {
                return Err(error);
            }
            for (share, _) in &self.firsts[..number] {
                let hidden =
                    self.index.pages.attempts(async || self.index.hide_first(*share).await);
                if hidden.await.is_err() {
                    let server = ServerId::new(*share as u16);
                    let why = Uncertainty::ConnectionLost;
                    return Err(FabricError::Indeterminate { server, why }.into());
                }
            }
            return Err(error);
        }
        Ok(())
    }

    /// Makes all servers publish their trees, even if one fails. The loaded records are reachable
    /// by now, so a failure leaves the outcome unknown.
    async fn end(&mut self) -> Result<(), RemoteError> {
        let mut outcome = Ok(());
        for server in std::mem::take(&mut self.begun) {
            if let Err(error) = self.index.pages.rpc().end_load(server, self.number).await {
                self.abort_on(server).await;
                outcome = outcome.and(Err(error.after_a_change(server)));
            }
        }
        outcome
    }

    /// Best effort: callers report the error that made them abort.
    async fn abort_on(&self, server: ServerId) {
        let _ = self.index.pages.rpc().abort_load(server, self.number).await;
    }

    /// Makes the servers discard their trees.
    async fn abort_trees(&self) {
        for server in &self.begun {
            self.abort_on(*server).await;
        }
    }

    async fn abort(self) {
        self.abort_trees().await;
        if let Some(OpenLeaf { node: Some(node), .. }) = self.open {
            node.settle().await;
        }
        self.writer.abort().await;
    }
}

impl<F: Fabric, L: Layout> HybridIndex<F, L> {
    pub(super) async fn load_records(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        for share in 0..self.parts.len() {
            self.pages.attempts(async || self.check_empty(share).await.map(drop)).await?;
        }
        let fill_permille = (fill * 1000.0).round() as u16;
        let mut load = HybridLoad {
            index: self,
            writer: FreshWriter::new(&self.pages),
            fill: filled_weight::<L>(fill_permille.into()),
            fill_permille,
            number: self.pages.fabric().unique(),
            open: None,
            firsts: Vec::new(),
            batch: Vec::new(),
            room: RecordRoom::for_records(BATCH_RECORDS),
            begun: Vec::new(),
        };
        let mut is_shown = false;
        let outcome = async {
            let mut order = AscendingCheck::<L>::default();
            for record in source {
                let (key, value) = record?;
                order.take(&key, &value)?;
                load.append(L::key(&key), L::value(&value)).await?;
            }
            load.end_share().await?;
            load.writer.finish().await?;
            is_shown = true;
            load.show().await?;
            Ok(order.count())
        }
        .await;
        match outcome {
            Ok(count) => {
                load.end().await?;
                Ok(count)
            }
            // The leaves may be part of the index, so they stay. The trees do not: their records
            // may point to leaves that are not part of it.
            Err(error @ IndexError::Indeterminate(_)) if is_shown => {
                load.abort_trees().await;
                Err(error)
            }
            Err(error) => {
                load.abort().await;
                Err(error)
            }
        }
    }

    /// Checks that a share is in its initial state: a single, empty leaf, which is returned.
    async fn check_empty(&self, share: usize) -> Result<PageCopy<L>, MissCause> {
        let server = ServerId::new(share as u16);
        let first = self.pages.read(self.first_of(server)).await?;
        if first.page().live_count() == 0 && L::high(first.page()) == self.part(server).high {
            return Ok(first);
        }
        Err(RemoteError::Refused { server, refusal: Refusal::NotEmpty }.into())
    }

    async fn show_first(&self, share: usize, image: &PageImage<L>) -> Result<(), MissCause> {
        let first = self.check_empty(share).await?;
        self.replace(&first, image).await
    }

    /// Restores the first leaf of a share to its content before the load.
    async fn hide_first(&self, share: usize) -> Result<(), MissCause> {
        let HybridShare { low, high, first } = &self.parts[share];
        let next = self.parts.get(share + 1).map_or(GlobalAddr::NULL, |part| part.first);
        let empty = empty_leaf::<L>(*first, L::key(low), high.as_ref().map(L::key), next);
        let shown = self.pages.read(self.first_of(ServerId::new(share as u16))).await?;
        self.replace(&shown, &empty).await
    }

    /// Replaces the content of a leaf if it still equals the copy.
    async fn replace(&self, leaf: &PageCopy<L>, image: &PageImage<L>) -> Result<(), MissCause> {
        let locked = self.pages.lock(leaf).await?;
        let content = PageImage::<L>::of(leaf.page());
        content.page().copy_content(image.page());
        Ok(self.pages.commit(PageChange::new(locked, leaf, content)).await?)
    }
}
