//! Scans: the server whose share it is names the leaves, and their READs are in flight together.
//!
//! An ascending scan asks for the leaf that it starts in and for those after it in one doorbell. Where the
//! server has named all that it knows, the scan follows the siblings to the end of the share. Downwards there
//! are no siblings: the scan takes what the server names and asks again.

use super::HybridIndex;
use super::locate::Named;
use crate::index::{IndexError, Records, Scan};
use crate::page::{Layout, Probe, Reach, ScanWindow};
use crate::remote::{LeafStream, Miss, PageCopy, Pointer};
use farleaf_fabric::{Fabric, ServerId, Work};
use std::collections::VecDeque;
use std::ops::Bound;

/// A scan that has more to come than one window asks for so many windows at once.
const WINDOWS_AHEAD: usize = 4;
/// Leaves in flight at most.
const MAX_WINDOW: usize = 64;

/// Where the scan stands.
struct Progress<K> {
    /// The lowest key that is not scanned yet, ascending; or the lowest that is, descending. `None`: the end
    /// of the range is the start of the scan.
    cursor: Option<K>,
    done: bool,
}

/// Leaves that the server has named and that are still to be read.
struct Following {
    leaves: VecDeque<Pointer>,
    /// Whether the server would name more.
    more: bool,
}

impl<F: Fabric, L: Layout<Value = u64>> HybridIndex<F, L> {
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
            // The scan may begin behind the cursor: at the key itself, exclusive.
            Some(cursor) if scan.lower != Bound::Excluded(cursor.clone()) => {
                lower = Bound::Included(cursor);
            }
            _ => {}
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
        let most = (self.pages.fabric().depth() / 4).clamp(1, MAX_WINDOW);
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
        let mut window = self.window(scan.limit - before, 0, 0);
        let server = self.server_of(Probe::At(&start));
        let end = self.part(server).high.as_ref();
        let (floor, mut following) = self.ask_up(server, &start, scan, window).await?;
        let mut stream = LeafStream::new(&self.pages);
        stream.read_ahead(floor, true);
        let mut refill = |stream: &mut LeafStream<'_, F, L>, window| {
            let mut posting = false;
            // Several with one doorbell, as soon as half of them are in.
            while (posting || stream.in_flight() <= window / 2)
                && stream.in_flight() < window
                && let Some(next) = following.leaves.pop_front()
            {
                stream.read_ahead(next, true);
                posting = true;
            }
            following.leaves.is_empty() && following.more
        };
        refill(&mut stream, window + 1);
        let mut leaf = self.first_leaf(&start, &mut stream).await?;
        let mut leaves = 0;
        loop {
            progress.done = self.take_from(&leaf, scan, progress.cursor.as_ref(), records).await;
            progress.cursor = L::high(leaf.page());
            leaves += 1;
            if progress.done {
                return Ok(());
            }
            window = self.window(scan.limit - records.len(), leaves, records.len() - before);
            let unnamed = refill(&mut stream, window);
            let ends_share = end.is_some() && progress.cursor.as_ref() == end;
            // A single leaf is a READ by its sibling pointer; for several the server is worth asking.
            if stream.in_flight() == 0 && window > 1 && (unnamed || ends_share) {
                return Ok(());
            }
            match stream.after(&leaf).await? {
                Some(next) => leaf = next,
                None => {
                    progress.done = true;
                    return Ok(());
                }
            }
        }
    }

    /// The leaf of `start`, as far as the server knows, and those after it that the scan will want.
    async fn ask_up(
        &self,
        server: ServerId,
        start: &L::Key,
        scan: &Scan<L::Key>,
        window: usize,
    ) -> Result<(Pointer, Following), Miss> {
        self.pages.fabric().charge(Work::Client).await;
        let floor = (self.part(server).low != *start).then(|| self.post_down(Probe::At(start), 1));
        let batch = if window < MAX_WINDOW { window } else { WINDOWS_AHEAD * window };
        let rest = (window > 1).then(|| {
            self.post(server, Bound::Excluded(start.clone()), scan.upper.clone(), false, batch)
        });
        let mut first = self.first_of(server);
        if let Some(asked) = floor
            && let Some((_, pointer)) = self.finish(asked).await?.leaves.first()
        {
            first = *pointer;
        }
        let mut following = Following { leaves: VecDeque::new(), more: true };
        if let Some(asked) = rest {
            let Named { leaves, more } = self.finish(asked).await?;
            let leaves = leaves.into_iter().map(|(_, pointer)| pointer).collect();
            following = Following { leaves, more };
        }
        Ok((first, following))
    }

    /// The leaf that covers `start`: the first in flight, or one on the right of it that the server does not
    /// know yet.
    async fn first_leaf(
        &self,
        start: &L::Key,
        stream: &mut LeafStream<'_, F, L>,
    ) -> Result<PageCopy<L>, Miss> {
        let mut leaf = stream.first().await?;
        self.pages.fabric().charge(Work::VisitNode).await;
        while leaf.page().level() == 0 && L::reach(leaf.page(), Probe::At(start)) == Reach::Beyond {
            leaf = stream.after(&leaf).await?.ok_or(Miss::Restart)?;
        }
        if leaf.page().level() != 0 || L::reach(leaf.page(), Probe::At(start)) != Reach::Inside {
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
        let start = progress.cursor.clone();
        let probe = match (&start, &scan.upper) {
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
        self.pages.fabric().charge(Work::Client).await;
        let server = self.server_of(probe);
        let window = self.window(scan.limit - records.len(), 0, 0);
        let Named { mut leaves, more } = self.finish(self.post_down(probe, window)).await?;
        if !more {
            leaves.push((self.part(server).low.clone(), self.first_of(server)));
        }
        let mut posted = Vec::new();
        for (low, pointer) in leaves {
            match self.pages.post_together(pointer) {
                Ok(read) => posted.push(read),
                // Without a buffer for the first there is nothing to begin with.
                Err(miss) if posted.is_empty() => return Err(miss),
                Err(_) => break,
            }
            if is_below(&low, &scan.lower) {
                break;
            }
        }
        for read in posted {
            let leaf = self.pages.finish_read(read).await?;
            self.pages.fabric().charge(Work::VisitNode).await;
            let cursor = progress.cursor.clone();
            let expected = cursor.as_ref().map_or(probe, Probe::Before);
            let found =
                leaf.page().level() == 0 && L::reach(leaf.page(), expected) == Reach::Inside;
            // If not, the server does not know of a split, or knew of what is gone: for itself, once.
            let leaf = if found { leaf } else { self.find(expected).await? };
            let low = L::low(leaf.page());
            progress.done =
                self.take_from(&leaf, scan, cursor.as_ref(), records).await || low == L::min_key();
            progress.cursor = Some(low);
            if progress.done || !found {
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
