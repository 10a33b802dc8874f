//! Bulk loading: pages are built in private memory, left to right and level by level, and written
//! round robin to the memory servers, with many WRITEs in flight. The root is written last, which
//! publishes them.
//!
//! *Invariants*
//! - blink.L1. Page `i` of a level is on server `i mod S`.
//! - blink.L2. Nothing reachable points to a loaded page before all of them are written.

use super::heads::{head_leaves, list_leaf, open_head};
use super::tree::BlinkTree;
use crate::entry_lock::EntryClient;
use farleaf_fabric::{Fabric, GlobalAddr, ServerId};
use farleaf_index::{AscendingCheck, IndexError, check_fill};
use farleaf_page::{CarriedEntry, Layout, NextPage, OwnedKey, OwnedValue, fill_end, filled_weight};
use farleaf_pool::remote::{FreshNode, FreshWriter, MissCause, PageChange, PageImage, RemoteError};
use farleaf_pool::wire::Refusal;

/// A page under construction.
struct OpenPage<F: Fabric, L: Layout> {
    node: FreshNode<F>,
    image: PageImage<L>,
    filling: L::Filling,
}

/// A head under construction.
struct OpenHead<F: Fabric, L: Layout> {
    node: FreshNode<F>,
    /// `None` before the leaf after it is known.
    image: Option<PageImage<L>>,
    /// The head had no room for the last leaf.
    full: bool,
}

impl<F: Fabric, L: Layout> OpenHead<F, L> {
    fn list(&mut self, low: &L::Key, leaf: GlobalAddr) {
        match &self.image {
            Some(image) => self.full = self.full || !list_leaf(image.page(), low, leaf),
            None => self.image = Some(open_head(self.node.at(), low, leaf)),
        }
    }
}

/// A load in progress.
struct OneSidedLoad<'a, F: Fabric, L: Layout> {
    writer: FreshWriter<'a, F, L>,
    memory_servers: u64,
    /// Target weight of a page.
    fill: usize,
    leaves_per_head: usize,
    /// The open page of each level, leaves first, and the number of pages of the level, including
    /// heads.
    levels: Vec<(OpenPage<F, L>, u64)>,
    head: Option<OpenHead<F, L>>,
    leaves_since_head: usize,
}

impl<F: Fabric, L: Layout> OneSidedLoad<'_, F, L> {
    /// A node for page `number` of a level.
    async fn node(&mut self, number: u64) -> Result<FreshNode<F>, RemoteError> {
        self.writer.take_on(ServerId::new((number % self.memory_servers) as u16)).await
    }

    /// Opens a new, empty page on `level`. Returns the page that was open before.
    async fn open(
        &mut self,
        level: usize,
        low: &L::Key,
    ) -> Result<Option<OpenPage<F, L>>, RemoteError> {
        let number = self.levels.get(level).map_or(0, |(_, pages)| *pages);
        let node = self.node(number).await?;
        let (at, image) = (node.at(), PageImage::<L>::empty());
        image.page().format_empty(at, level as u8, low, None);
        let open = OpenPage { node, image, filling: L::Filling::default() };
        if level == 0 {
            self.leaves_since_head += 1;
            if let Some(head) = &mut self.head {
                head.list(low, at);
            }
        }
        match self.levels.get_mut(level) {
            Some((held, pages)) => {
                *pages += 1;
                Ok(Some(std::mem::replace(held, open)))
            }
            None => {
                self.levels.push((open, 1));
                Ok(None)
            }
        }
    }

    /// Adds a record to the open leaf; `false` if the leaf is full.
    fn add_record(&mut self, record: (&L::Key, &L::Value)) -> bool {
        let (fill, OpenPage { image, filling, .. }) = (self.fill, &mut self.levels[0].0);
        L::fill_leaf(filling, image.page(), record, fill)
    }

    /// Adds a child to the open page of a level; `false` if the page is full.
    fn add_child(&mut self, level: usize, child: (&L::Key, GlobalAddr)) -> bool {
        let (fill, OpenPage { image, filling, .. }) = (self.fill, &mut self.levels[level].0);
        L::fill_inner(filling, image.page(), child, fill)
    }

    /// Adds the first or second child to the open page of a level.
    fn add_first(&mut self, level: usize, child: (&L::Key, GlobalAddr)) -> Result<(), RemoteError> {
        match self.add_child(level, child) {
            true => Ok(()),
            false => Err(RemoteError::Contended { retries: 0 }),
        }
    }

    async fn append(&mut self, key: &L::Key, value: &L::Value) -> Result<(), RemoteError> {
        if self.levels.is_empty() {
            self.open(0, L::key(&L::min_key())).await?;
        }
        // A leaf that begins with the last record of the previous one may have no room for this
        // record.
        for _ in 0..3 {
            if self.add_record((key, value)) {
                return Ok(());
            }
            let low = L::fill_separator(&self.levels[0].0.filling, key);
            self.next_leaf(L::key(&low)).await?;
        }
        match self.add_record((key, value)) {
            true => Ok(()),
            false => Err(RemoteError::Contended { retries: 0 }),
        }
    }

    /// Ends the open page of a level, as [`fill_end`] does.
    fn end(&mut self, level: usize, high: Option<&L::Key>) -> Option<NextPage<L>> {
        let OpenPage { image, filling, .. } = &mut self.levels[level].0;
        fill_end(filling, image.page(), high)
    }

    /// Ends the open leaf at `low` and opens the next one.
    async fn next_leaf(&mut self, low: &L::Key) -> Result<(), RemoteError> {
        // There is a head after every n-th leaf, and one where a scan reaches the end of a parent.
        let is_full = |OpenPage { image, filling, .. }: &OpenPage<F, L>| {
            L::is_filled(filling, image.page(), self.fill)
        };
        let ends_parent = self.levels.get(1).is_some_and(|(open, _)| is_full(open));
        let since = if ends_parent { 2 * self.leaves_since_head } else { self.leaves_since_head };
        let head_is_full = self.head.as_ref().is_some_and(|head| head.full);
        let wants_head =
            self.leaves_per_head > 0 && (since >= self.leaves_per_head || head_is_full);
        let mut link = None;
        if wants_head {
            self.close_head().await?;
            let number = self.levels[0].1;
            let node = self.node(number).await?;
            link = Some(node.at());
            self.levels[0].1 += 1;
            self.head = Some(OpenHead { node, image: None, full: false });
            self.leaves_since_head = 0;
        }
        match self.end(0, Some(low)) {
            Some(next) => self.open_next(0, next, link).await,
            None => Ok(()),
        }
    }

    /// Closes the ended page of a level and opens the next one; continues on the levels above while
    /// pages are full. `link` is the page's sibling, unless that is the next page.
    async fn open_next(
        &mut self,
        mut level: usize,
        (mut low, mut back): NextPage<L>,
        mut link: Option<GlobalAddr>,
    ) -> Result<(), RemoteError> {
        // The page that was opened on the level below.
        let mut below: Option<(OwnedKey<L>, GlobalAddr)> = None;
        loop {
            let full = self.open(level, L::key(&low)).await?.expect("the level has an open page");
            let opened = self.levels[level].0.node.at();
            let OpenPage { node, image, .. } = full;
            let full_at = node.at();
            image.page().set_sibling(link.take().unwrap_or(opened));
            self.writer.write(node, image).await?;
            match back {
                CarriedEntry::Nothing => {}
                CarriedEntry::Record(key, value) => {
                    if !self.add_record((L::key(&key), L::value(&value))) {
                        return Err(RemoteError::Contended { retries: 0 });
                    }
                }
                CarriedEntry::Child(child) => self.add_first(level, (L::key(&low), child))?,
            }
            if let Some((key, child)) = below.take() {
                self.add_first(level, (L::key(&key), child))?;
            }
            level += 1;
            if level == self.levels.len() {
                // The first page of a level begins with the leftmost page of the level below.
                let min = L::min_key();
                self.open(level, L::key(&min)).await?;
                self.add_first(level, (L::key(&min), full_at))?;
            }
            if self.add_child(level, (L::key(&low), opened)) {
                return Ok(());
            }
            let Some(next) = self.end(level, Some(L::key(&low))) else { return Ok(()) };
            below = Some((low, opened));
            (low, back) = next;
        }
    }

    async fn close_head(&mut self) -> Result<(), RemoteError> {
        let Some(OpenHead { node, image: Some(image), .. }) = self.head.take() else {
            return Ok(());
        };
        self.writer.write(node, image).await
    }

    /// Writes all open pages except the top one, whose content goes to the root. Waits for all
    /// WRITEs.
    async fn finish(&mut self) -> Result<Option<PageImage<L>>, RemoteError> {
        let mut level = 0;
        while level < self.levels.len() {
            match self.end(level, None) {
                Some(next) => self.open_next(level, next, None).await?,
                None => level += 1,
            }
        }
        self.close_head().await?;
        let levels = std::mem::take(&mut self.levels);
        let count = levels.len();
        let mut top = None;
        for (number, (open, _)) in levels.into_iter().enumerate() {
            let OpenPage { node, image, .. } = open;
            if number + 1 == count {
                top = Some(image);
                self.writer.release(node).await;
            } else {
                self.writer.write(node, image).await?;
            }
        }
        self.writer.finish().await?;
        Ok(top)
    }

    /// Discards the load.
    async fn abort(self) {
        for (open, _) in self.levels {
            open.node.settle().await;
        }
        if let Some(head) = self.head {
            head.node.settle().await;
        }
        self.writer.abort().await;
    }
}

impl<F: Fabric, L: Layout> BlinkTree<F, L> {
    /// Loads ascending records into the empty tree. A head follows every `leaves_per_head` leaves;
    /// with 0 there are none. With `entries`, leaves are changed under their entry locks.
    pub(crate) async fn load(
        &self,
        source: impl Iterator<Item = Result<(OwnedKey<L>, OwnedValue<L>), IndexError>>,
        fill: f64,
        leaves_per_head: u16,
        entries: Option<EntryClient<'_, F, L>>,
    ) -> Result<u64, IndexError> {
        check_fill(fill)?;
        self.pages.attempts(async || self.check_empty().await).await?;
        let permille = (fill * 1000.0).round() as usize;
        let mut load = OneSidedLoad {
            writer: FreshWriter::new(&self.pages),
            memory_servers: u64::from(self.pages.fabric().memory_servers()),
            fill: filled_weight::<L>(permille),
            leaves_per_head: usize::from(leaves_per_head).min(head_leaves::<L>()),
            levels: Vec::new(),
            head: None,
            leaves_since_head: 0,
        };
        let outcome = async {
            let mut order = AscendingCheck::<L>::default();
            for record in source {
                let (key, value) = record?;
                order.take(&key, &value)?;
                load.append(L::key(&key), L::value(&value)).await?;
            }
            if let Some(top) = load.finish().await? {
                self.pages.attempts(async || self.show(&top, entries).await).await?;
            }
            Ok(order.count())
        }
        .await;
        // Once the root may have been written, the nodes belong to the tree.
        if !matches!(outcome, Ok(_) | Err(IndexError::Indeterminate(_))) {
            load.abort().await;
        }
        outcome
    }

    async fn check_empty(&self) -> Result<(), MissCause> {
        let root = self.pages.read(self.root_pointer()).await?;
        if root.page().level() == 0 && root.page().live_count() == 0 {
            return Ok(());
        }
        let (server, refusal) = (self.root().server(), Refusal::NotEmpty);
        Err(RemoteError::Refused { server, refusal }.into())
    }

    /// Writes the content of the top page to the root.
    async fn show(
        &self,
        top: &PageImage<L>,
        entries: Option<EntryClient<'_, F, L>>,
    ) -> Result<(), MissCause> {
        let Some(entries) = entries else { return self.replace_root(top).await };
        // A change whose outcome its client does not know may still write an entry (entries.E3).
        let mut hold = entries.hold_entries(self.root()).await?;
        let shown = hold.rewriting(self.replace_root(top)).await;
        entries.end_entries(hold).await;
        shown
    }

    async fn replace_root(&self, top: &PageImage<L>) -> Result<(), MissCause> {
        self.check_empty().await?;
        let root = self.pages.read(self.root_pointer()).await?;
        let locked = self.pages.lock(&root).await?;
        let image = PageImage::<L>::of(root.page());
        if !(root.page().level() == 0 && root.page().live_count() == 0) {
            self.pages.release(locked).await;
            return Err(MissCause::Restart);
        }
        image.page().copy_content(top.page());
        self.set_root_level(top.page().level());
        self.pages.commit(PageChange::new(locked, &root, image)).await?;
        Ok(())
    }
}
