//! Scans: one leaf after another, with READs of the next leaves in flight.
//!
//! An ascending scan posts READs of its first leaf and of the following ones that the design can
//! name, and follows the siblings beyond them. A descending scan has no sibling pointers to follow:
//! it reads the leaves that the design names, then locates more. It checks the keys that each leaf
//! covers, so it misses none even if leaves are split or merged meanwhile.

use super::{FetchedLeaf, LeafLocator, TreeKey};
use farleaf_fabric::{Fabric, Work};
use farleaf_index::{IndexError, KeyedRecords, ScanRequest};
use farleaf_page::rules;
use farleaf_page::{DescentProbe, FencePosition, Layout, OwnedKey, OwnedValue, ScanWindow};
use farleaf_pool::remote::{LeafStream, MissCause, PageCopy};
use std::ops::Bound;

/// Maximum number of leaves in flight.
const MAX_AHEAD: usize = 64;

/// The progress of a scan.
struct ScanProgress<K> {
    /// Ascending: the lowest key not scanned yet. Descending: the lowest key scanned. `None` before
    /// the first leaf, where the scan starts at the end of its range.
    cursor: Option<K>,
    done: bool,
}

/// The records that a scan selects.
///
/// # Errors
/// As [`farleaf_index::RangeIndex::scan`].
pub async fn scan_all<I: LeafLocator>(
    index: &I,
    scan: &ScanRequest<OwnedKey<I::Layout>>,
) -> Result<KeyedRecords<OwnedKey<I::Layout>, OwnedValue<I::Layout>>, IndexError> {
    if scan.limit > 1 && index.pages().fabric().breaks(rules::LEAVES_READ_ONCE) {
        return scan_piecemeal(index, scan.clone()).await;
    }
    let mut records = KeyedRecords::new();
    let mut progress = ScanProgress { cursor: None, done: scan.limit == 0 };
    let mut backoff = index.pages().backoff();
    while !progress.done {
        let scanned = if scan.reverse {
            scan_down(index, scan, &mut progress, &mut records).await
        } else {
            scan_up(index, scan, &mut progress, &mut records).await
        };
        match scanned {
            Ok(()) => {}
            Err(MissCause::Failed(error)) => return Err(error.into()),
            Err(MissCause::Restart) => index.pages().before_retry(&mut backoff).await?,
        }
    }
    Ok(records)
}

/// The planted bug: one scan per record.
async fn scan_piecemeal<I: LeafLocator>(
    index: &I,
    mut scan: ScanRequest<OwnedKey<I::Layout>>,
) -> Result<KeyedRecords<OwnedKey<I::Layout>, OwnedValue<I::Layout>>, IndexError> {
    let mut records = KeyedRecords::new();
    let limit = std::mem::replace(&mut scan.limit, 1);
    while records.len() < limit
        && let Some(record) = Box::pin(scan_all(index, &scan)).await?.pop()
    {
        let behind = Bound::Excluded(record.0.clone());
        *(if scan.reverse { &mut scan.upper } else { &mut scan.lower }) = behind;
        records.push(record);
    }
    Ok(records)
}

/// Copies the selected records of a leaf. Returns whether the scan is complete.
async fn take_from<I: LeafLocator>(
    index: &I,
    leaf: &FetchedLeaf<I>,
    scan: &ScanRequest<OwnedKey<I::Layout>>,
    cursor: Option<&TreeKey<I>>,
    records: &mut KeyedRecords<OwnedKey<I::Layout>, OwnedValue<I::Layout>>,
) -> bool {
    let page = leaf.page();
    // The leaf may cover more than the rest of the scan, for example after a merge with the
    // previous one.
    let (mut lower, mut upper) =
        (scan.lower.as_ref().map(I::Layout::key), scan.upper.as_ref().map(I::Layout::key));
    match cursor {
        Some(cursor) if scan.reverse => upper = Bound::Excluded(cursor),
        // The scan may begin after the cursor: its bound may exclude the key itself.
        Some(cursor) if lower != Bound::Excluded(cursor) => lower = Bound::Included(cursor),
        _ => {}
    }
    let limit = scan.limit - records.len();
    let window = ScanWindow { lower, upper, reverse: scan.reverse, limit };
    let taken = I::Layout::leaf_collect(page, &window, records);
    index.pages().fabric().charge(Work::CopyRecords(taken as u32)).await;
    let beyond = if scan.reverse {
        scan.is_below(&I::Layout::low(page))
    } else {
        I::Layout::high(page).is_none_or(|high| scan.is_above(&high))
    };
    beyond || records.len() >= scan.limit
}

/// How many leaves to keep in flight for the records still wanted, if further leaves are as full as
/// those read so far.
fn window<I: LeafLocator>(index: &I, wanted: usize, leaves: usize, records: usize) -> usize {
    let per_leaf = records.checked_div(leaves).unwrap_or(I::Layout::capacity() / 2);
    let most = (index.pages().fabric().depth() / 4).clamp(1, MAX_AHEAD);
    (wanted / per_leaf.max(1)).saturating_add(1).min(most)
}

async fn scan_up<I: LeafLocator>(
    index: &I,
    scan: &ScanRequest<OwnedKey<I::Layout>>,
    progress: &mut ScanProgress<OwnedKey<I::Layout>>,
    records: &mut KeyedRecords<OwnedKey<I::Layout>, OwnedValue<I::Layout>>,
) -> Result<(), MissCause> {
    let start = match (&progress.cursor, &scan.lower) {
        (Some(cursor), _) => cursor.clone(),
        (None, Bound::Included(key) | Bound::Excluded(key)) => key.clone(),
        (None, Bound::Unbounded) => I::Layout::min_key(),
    };
    let before = records.len();
    let expected = window(index, scan.limit - before, 0, 0);
    let mut stream = LeafStream::new(index.pages());
    let (first, mut ahead) =
        index.locate_up(I::Layout::key(&start), scan, expected, &mut stream).await?;
    let mut leaf = match first {
        Some(leaf) => leaf,
        None => first_leaf(index, I::Layout::key(&start), &mut stream).await?,
    };
    let mut leaves = 0;
    loop {
        progress.done =
            take_from(index, &leaf, scan, progress.cursor.as_ref().map(I::Layout::key), records)
                .await;
        progress.cursor = I::Layout::high(leaf.page());
        leaves += 1;
        if progress.done {
            return Ok(());
        }
        let wanted = scan.limit - records.len();
        let window = window(index, wanted, leaves, records.len() - before);
        if !index.go_ahead(
            &mut ahead,
            window,
            progress.cursor.as_ref().map(I::Layout::key),
            &mut stream,
        ) {
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

/// The leaf that covers `start`: the first in flight, or one to the right of it that the design
/// does not know yet.
async fn first_leaf<I: LeafLocator>(
    index: &I,
    start: &TreeKey<I>,
    stream: &mut LeafStream<'_, I::Fabric, I::Layout>,
) -> Result<FetchedLeaf<I>, MissCause> {
    let mut leaf = stream.first().await?;
    index.pages().fabric().charge(Work::VisitNode).await;
    while I::Layout::reach(leaf.page(), DescentProbe::At(start)) == FencePosition::Beyond {
        leaf = stream.after(&leaf).await?.ok_or(MissCause::Restart)?;
    }
    if covers::<I>(&leaf, DescentProbe::At(start)) { Ok(leaf) } else { Err(MissCause::Restart) }
}

/// Whether a page is the leaf that covers the probe.
fn covers<I: LeafLocator>(copy: &PageCopy<I::Layout>, probe: DescentProbe<'_, TreeKey<I>>) -> bool {
    let page = copy.page();
    page.level() == 0 && !page.is_head() && I::Layout::reach(page, probe) == FencePosition::Inside
}

async fn scan_down<I: LeafLocator>(
    index: &I,
    scan: &ScanRequest<OwnedKey<I::Layout>>,
    progress: &mut ScanProgress<OwnedKey<I::Layout>>,
    records: &mut KeyedRecords<OwnedKey<I::Layout>, OwnedValue<I::Layout>>,
) -> Result<(), MissCause> {
    let pages = index.pages();
    let start = progress.cursor.clone();
    let upper = scan.upper.as_ref().map(I::Layout::key);
    let probe = match (start.as_ref().map(I::Layout::key), upper) {
        (Some(low), _) => DescentProbe::Before(low),
        (None, Bound::Included(key)) => DescentProbe::At(key),
        (None, Bound::Excluded(key)) => DescentProbe::Before(key),
        (None, Bound::Unbounded) => DescentProbe::Last,
    };
    if let DescentProbe::Before(key) = probe
        && key == I::Layout::key(&I::Layout::min_key())
    {
        progress.done = true;
        return Ok(());
    }
    let expected = window(index, scan.limit - records.len(), 0, 0);
    let mut posted = Vec::new();
    for (low, pointer) in index.locate_down(probe, expected).await? {
        match pages.post_together(pointer) {
            Ok(read) => posted.push(read),
            // Without a buffer for its first leaf, the scan cannot begin.
            Err(miss) if posted.is_empty() => return Err(miss),
            Err(_) => break,
        }
        if scan.is_below(&low) {
            break;
        }
    }
    for read in posted {
        let leaf = pages.finish_read(read).await?;
        pages.fabric().charge(Work::VisitNode).await;
        let cursor = progress.cursor.clone();
        let probe = cursor.as_ref().map(I::Layout::key).map_or(probe, DescentProbe::Before);
        let found = covers::<I>(&leaf, probe);
        // If not, the design does not know of a split or a merge yet: find this leaf by a descent.
        let leaf = if found { leaf } else { index.find(probe).await? };
        let low = I::Layout::low(leaf.page());
        let taken =
            take_from(index, &leaf, scan, cursor.as_ref().map(I::Layout::key), records).await;
        progress.done = taken || low == I::Layout::min_key();
        progress.cursor = Some(low);
        if progress.done || !found {
            return Ok(());
        }
    }
    Ok(())
}
