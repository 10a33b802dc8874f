//! Bulk loading of an empty index. The new tree replaces the old one in a single change of the
//! root, and the caches of all compute servers drop the old tree. No other client may use the index
//! meanwhile.
//!
//! *Thread safety*: private to one task.

use super::{PartitionMap, RoutedIndex};
use crate::index::dex::{Boundaries, Builder, Built, equal_boundaries};
use crate::index::{Ascending, IndexError, RangeIndex, Scan, check_fill};
use crate::page::{Layout, Page, ScanWindow, clipped, narrowed, slot_range};
use crate::remote::{Change, Image, Miss, PageClient, Pointer, RemoteError};
use crate::wire::Refusal;
use farleaf_fabric::{Fabric, GlobalAddr};
use std::ops::Bound;

impl<F: Fabric, L: Layout> RoutedIndex<F, L> {
    pub(super) async fn load_all(
        &self,
        records: impl Iterator<Item = (L::Key, L::Value)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        // The new leaves end at the current boundaries, so these must not move.
        let mut patience = self.patience();
        let _moving = loop {
            match self.pool.begin_move(self.pages.fabric()) {
                Some(moving) => break moving,
                None => self.wait_for_map(&mut patience).await?,
            }
        };
        let options = self.pool.options();
        let boundaries = match options.at_load {
            Boundaries::Kept => self.pool.map().boundaries().to_vec(),
            Boundaries::EqualRecords => Vec::new(),
        };
        self.pages.use_servers(self.pool.memory().used(self.pages.fabric().memory_servers()));
        let mut builder = Builder::new(&self.pages, fill, options.placement_level, boundaries);
        let outcome = async {
            let mut order = Ascending::default();
            for (key, value) in records {
                order.take(&key)?;
                builder.append(&key, &value).await?;
            }
            self.check_empty().await?;
            let built = builder.finish().await?;
            self.show(built).await?;
            Ok(order.count())
        }
        .await;
        match outcome {
            Ok(count) => Ok(count),
            // The new nodes may be part of the index.
            Err(IndexError::Indeterminate(error)) => Err(IndexError::Indeterminate(error)),
            Err(error) => {
                builder.abort().await;
                Err(error)
            }
        }
    }

    async fn check_empty(&self) -> Result<(), IndexError> {
        if self.scan(&Scan::range(..).limit(1)).await?.is_empty() {
            return Ok(());
        }
        let server = self.root.server();
        Err(IndexError::Refused { server, refusal: Refusal::NotEmpty })
    }

    /// Replaces the tree.
    async fn show(&self, built: Built<L>) -> Result<(), IndexError> {
        let parts = self.parts.len();
        let boundaries = match self.pool.options().at_load {
            Boundaries::Kept => None,
            Boundaries::EqualRecords => {
                let equal = equal_boundaries(&built.leaves, built.records, parts);
                Some(equal.ok_or(IndexError::InvalidArgument(
                    "there are too few leaves to give each compute server one",
                ))?)
            }
        };
        for part in &self.parts {
            part.index.flush().await?;
        }
        let old = nodes_below(&self.pages, self.root).await?;
        replace_root(&self.pages, self.root, &built.root).await?;
        if let Some(boundaries) = boundaries {
            let epoch = self.pool.map().epoch() + 1;
            self.pool.publish(PartitionMap::new::<L>(epoch, boundaries)?);
            self.learn_map();
        }
        for part in &self.parts {
            part.index.forget().await?;
        }
        old.into_iter().for_each(|node| self.pages.give_back_unseen(node));
        Ok(())
    }
}

/// Replaces the root's content. Retries within bounds while others hold its lock.
pub(super) async fn replace_root<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
    content: &Image<L>,
) -> Result<(), RemoteError> {
    pages.attempts(async || try_replace_root(pages, root, content).await).await
}

async fn try_replace_root<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
    content: &Image<L>,
) -> Result<(), Miss> {
    let copy = pages.read(Pointer::fixed(root)).await?;
    let locked = pages.lock(&copy).await?;
    let image = Image::<L>::empty();
    let level = content.page().level();
    image.page().format_empty(root, level, &L::min_key(), None);
    image.page().copy_content(content.page());
    Ok(pages.commit(Change::new(locked, &copy, image)).await?)
}

/// A node and the key range for which its parents lead to it. Entries outside this range do not
/// count (D7).
type Led<K> = (GlobalAddr, (K, Option<K>));

/// The children of an inner page that hold some of `keys`, each with its part of them.
fn children<L: Layout>(
    page: Page<'_, L>,
    keys: &(L::Key, Option<L::Key>),
) -> impl Iterator<Item = Led<L::Key>> {
    (0..page.count()).filter_map(move |slot| {
        let keys = narrowed(slot_range(page, slot), keys.clone());
        let has_any = keys.1.as_ref().is_none_or(|high| keys.0 < *high);
        has_any.then(|| (L::inner_child(page, slot), keys))
    })
}

/// All nodes of the tree in the pool below the root.
pub(super) async fn nodes_below<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
) -> Result<Vec<GlobalAddr>, IndexError> {
    let mut nodes = Vec::new();
    let mut inner: Vec<Led<L::Key>> = vec![(root, (L::min_key(), None))];
    while let Some((at, keys)) = inner.pop() {
        let copy = match pages.read(Pointer::fixed(at)).await {
            Ok(copy) => copy,
            Err(Miss::Failed(error)) => return Err(error.into()),
            Err(Miss::Restart) => return Err(RemoteError::Contended { retries: 1 }.into()),
        };
        let page = copy.page();
        for child in children(page, &keys) {
            nodes.push(child.0);
            if page.level() > 1 {
                inner.push(child);
            }
        }
    }
    Ok(nodes)
}

/// Whether the tree in the pool holds no record. Call it only while no client changes the tree.
pub(super) async fn is_empty<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
) -> Result<bool, IndexError> {
    let mut nodes: Vec<Led<L::Key>> = vec![(root, (L::min_key(), None))];
    while let Some((at, keys)) = nodes.pop() {
        // A leaf that was written back in part has no valid checksum, but it has a stamp.
        let copy = pages.read_raw(at).await?;
        let page = copy.page();
        if page.level() > 0 {
            nodes.extend(children(page, &keys));
            continue;
        }
        if !page.stamp_fits() {
            return Err(RemoteError::Damaged { at }.into());
        }
        let unbounded = (Bound::Unbounded, Bound::Unbounded);
        let (lower, upper) = clipped(unbounded, (&keys.0, keys.1.as_ref()));
        let window = ScanWindow { lower, upper, reverse: false, limit: 1 };
        if L::leaf_collect(page, &window, &mut Vec::new()) > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
