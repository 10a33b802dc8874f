//! Scans: leaf after leaf, with the READs of the next ones in flight.
//!
//! The parent of the first leaf names the leaves after it: those that the scan will want leave together with
//! the first. Past the parent's last child the scan follows the siblings, and reads ahead through the heads
//! that it meets. Downwards there are no siblings: the scan goes from parent to parent.

use super::FineIndex;
use crate::index::{IndexError, Records, Scan};
use crate::page::{Layout, Probe, Reach, ScanWindow};
use crate::remote::{LeafStream, Miss, PageCopy};
use farleaf_fabric::{Fabric, Work};
use std::ops::Bound;

/// Where the scan stands.
struct Progress<K> {
    /// The lowest key that is not scanned yet, ascending; or the lowest that is, descending. `None`: the end
    /// of the range is the start of the scan.
    cursor: Option<K>,
    done: bool,
}

impl<F: Fabric, L: Layout> FineIndex<F, L> {
    pub(super) async fn scan_all(
        &self,
        scan: &Scan<L::Key>,
    ) -> Result<Records<L::Key, L::Value>, IndexError> {
        let mut records = Records::new();
        let mut progress = Progress { cursor: None, done: scan.limit == 0 };
        let mut backoff = self.pages.backoff();
        while !progress.done {
            let scanned = if scan.reverse {
                self.scan_down(scan, &mut progress, &mut records).await
            } else {
                self.scan_up(scan, &mut progress, &mut records).await
            };
            match scanned {
                Ok(()) => {}
                Err(Miss::Failed(error)) => return Err(error.into()),
                Err(Miss::Restart) => self.pages.before_retry(&mut backoff).await?,
            }
        }
        Ok(records)
    }

    /// Copies what the scan wants of a leaf; says whether that was the last of it.
    async fn take_from(
        &self,
        leaf: &PageCopy<L>,
        scan: &Scan<L::Key>,
        cursor: Option<&L::Key>,
        records: &mut Records<L::Key, L::Value>,
    ) -> bool {
        // The leaf may cover more than what is left to scan: it may have been merged with what was before.
        let (mut lower, mut upper) = (scan.lower.as_ref(), scan.upper.as_ref());
        match cursor {
            Some(cursor) if scan.reverse => upper = Bound::Excluded(cursor),
            Some(cursor) => lower = Bound::Included(cursor),
            None => {}
        }
        // At the first leaf of an ascending scan the cursor is where the scan starts, or later.
        if let (Bound::Excluded(start), Bound::Included(at)) = (scan.lower.as_ref(), lower)
            && start == at
        {
            lower = Bound::Excluded(start);
        }
        let limit = scan.limit - records.len();
        let window = ScanWindow { lower, upper, reverse: scan.reverse, limit };
        let taken = L::leaf_collect(leaf.page(), &window, records);
        self.pages.fabric().charge(Work::CopyRecords(taken as u32)).await;
        let beyond = if scan.reverse {
            is_below(&L::low(leaf.page()), &scan.lower)
        } else {
            L::high(leaf.page()).is_none_or(|high| is_above(&high, &scan.upper))
        };
        beyond || records.len() >= scan.limit
    }

    /// How many leaves to have in flight for what is still wanted, if leaves are as full as those so far.
    fn window(&self, wanted: usize, leaves: usize, records: usize) -> usize {
        let per_leaf = records.checked_div(leaves).unwrap_or(L::CAPACITY / 2);
        let most = (self.pages.fabric().depth() / 4).clamp(1, 64);
        (wanted / per_leaf.max(1)).saturating_add(1).min(most)
    }

    async fn scan_up(
        &self,
        scan: &Scan<L::Key>,
        progress: &mut Progress<L::Key>,
        records: &mut Records<L::Key, L::Value>,
    ) -> Result<(), Miss> {
        let start = match (&progress.cursor, &scan.lower) {
            (Some(cursor), _) => cursor.clone(),
            (None, Bound::Included(key) | Bound::Excluded(key)) => key.clone(),
            (None, Bound::Unbounded) => L::min_key(),
        };
        let before = records.len();
        let mut stream = LeafStream::new(&self.pages);
        let mut leaf = self.first_leaf(&start, scan, &mut stream, records.len()).await?;
        let mut leaves = 0;
        loop {
            progress.done = self.take_from(&leaf, scan, progress.cursor.as_ref(), records).await;
            progress.cursor = L::high(leaf.page());
            leaves += 1;
            if progress.done {
                return Ok(());
            }
            let wanted = scan.limit - records.len();
            stream.set_window(self.window(wanted, leaves, records.len() - before));
            match stream.after(&leaf).await? {
                Some(next) => leaf = next,
                None => {
                    progress.done = true;
                    return Ok(());
                }
            }
        }
    }

    /// The leaf that covers `start`, with those after it in flight.
    async fn first_leaf(
        &self,
        start: &L::Key,
        scan: &Scan<L::Key>,
        stream: &mut LeafStream<'_, F, L>,
        taken: usize,
    ) -> Result<PageCopy<L>, Miss> {
        if self.root_level.get() == 0 {
            let leaf = self.descend(Probe::At(start), 0).await?;
            if self.root_level.get() == 0 {
                return Ok(leaf);
            }
        }
        let parent = self.descend(Probe::At(start), 1).await?;
        let page = parent.page();
        let slot = L::inner_slot(page, Probe::At(start));
        let window = self.window(scan.limit - taken, 0, 0);
        for next in slot..page.count() {
            let beyond = next > slot
                && (next - slot > window || is_above(&L::inner_key(page, next), &scan.upper));
            if beyond {
                break;
            }
            stream.read_ahead(parent.pointer(L::inner_child(page, next)), true);
        }
        let mut leaf = stream.first().await?;
        self.pages.fabric().charge(Work::VisitNode).await;
        // Where the parent does not know of a split yet, the leaf is further on.
        while L::reach(leaf.page(), Probe::At(start)) == Reach::Beyond {
            leaf = stream.after(&leaf).await?.ok_or(Miss::Restart)?;
        }
        let is_leaf = leaf.page().level() == 0 && !leaf.page().is_head();
        if !is_leaf || L::reach(leaf.page(), Probe::At(start)) != Reach::Inside {
            return Err(Miss::Restart);
        }
        Ok(leaf)
    }

    async fn scan_down(
        &self,
        scan: &Scan<L::Key>,
        progress: &mut Progress<L::Key>,
        records: &mut Records<L::Key, L::Value>,
    ) -> Result<(), Miss> {
        let cursor = progress.cursor.clone();
        let probe = match (&cursor, &scan.upper) {
            (Some(low), _) => Probe::Before(low),
            (None, Bound::Included(key)) => Probe::At(key),
            (None, Bound::Excluded(key)) => Probe::Before(key),
            (None, Bound::Unbounded) => Probe::Last,
        };
        if let Probe::Before(key) = probe
            && *key == L::min_key()
        {
            progress.done = true;
            return Ok(());
        }
        if self.root_level.get() == 0 {
            let leaf = self.descend(probe, 0).await?;
            progress.done = self.take_from(&leaf, scan, cursor.as_ref(), records).await;
            progress.cursor = Some(L::low(leaf.page()));
            return Ok(());
        }
        let parent = self.descend(probe, 1).await?;
        let page = parent.page();
        let slot = L::inner_slot(page, probe);
        let window = self.window(scan.limit - records.len(), 0, 0);
        let mut posted = Vec::new();
        for number in (0..=slot).rev().take(window + 1) {
            // The child covers nothing below the next one's lowest key.
            let wanted = number == slot || !is_below(&L::inner_key(page, number + 1), &scan.lower);
            if !wanted {
                break;
            }
            match self.pages.post_together(parent.pointer(L::inner_child(page, number))) {
                Ok(read) => posted.push(read),
                Err(Miss::Restart) if !posted.is_empty() => break,
                Err(miss) => return Err(miss),
            }
        }
        for read in posted {
            let mut leaf = self.pages.finish_read(read).await?;
            self.pages.fabric().charge(Work::VisitNode).await;
            let cursor = progress.cursor.clone();
            let expected = match &cursor {
                Some(low) => Probe::Before(low),
                None => probe,
            };
            let fits = |leaf: &PageCopy<L>| {
                let page = leaf.page();
                let is_leaf = page.level() == 0 && !page.is_head();
                is_leaf && L::reach(page, expected) == Reach::Inside
            };
            if !fits(&leaf) {
                // The parent does not know of a split, or knows of what is gone: from the root, once.
                leaf = self.descend(expected, 0).await?;
            }
            let low = L::low(leaf.page());
            let cursor = cursor.as_ref();
            progress.done =
                self.take_from(&leaf, scan, cursor, records).await || low == L::min_key();
            progress.cursor = Some(low);
            if progress.done {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Whether all keys from `key` on are above the bound.
fn is_above<K: Ord>(key: &K, upper: &Bound<K>) -> bool {
    match upper {
        Bound::Unbounded => false,
        Bound::Included(bound) => key > bound,
        Bound::Excluded(bound) => key >= bound,
    }
}

/// Whether all keys below `key` are below the bound.
fn is_below<K: Ord>(key: &K, lower: &Bound<K>) -> bool {
    match lower {
        Bound::Unbounded => false,
        Bound::Included(bound) | Bound::Excluded(bound) => key <= bound,
    }
}
