//! Recovery by the next incarnation of a compute server, or by the one that takes its keys over:
//! before it serves, it completes the nodes that the previous life left half written.
//!
//! A page lands word by word, so a compute server that dies during a WRITE can leave a mixture of
//! two versions. A shared node is locked at that time, and the next client that needs it recovers
//! it. An exclusive node has no lock, and no other server writes it; its log entry completes it
//! (D9, and ack.A3 for leaves). But an old entry may name a page that has since been freed and
//! given to another compute server, so only pages that are reachable in the tree are completed. Of
//! these, only pages in the range that the compute server still owns are completed: keys were
//! clean when they moved away, and their new owner may be writing the page.
//!
//! *Thread safety*: private to one task.

use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::OwnedRange;
use farleaf_page::{DescentProbe, Layout, OwnedKey, Page};
use farleaf_pool::remote::{HalfWritten, MissCause, PageClient, RemoteError, TimedPointer};

/// Retries of a WRITE of unknown outcome.
const WRITE_RETRIES: u32 = 16;

/// Completes the nodes that `compute_server`, which is dead and fenced, left half written in the
/// tree below `root`, within the `range` that it owns. Returns the number of nodes completed.
///
/// # Errors
/// [`RemoteError`] if a memory server does not answer.
pub(super) async fn mend<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
    compute_server: u16,
    range: &OwnedRange<OwnedKey<L>>,
) -> Result<u64, RemoteError> {
    let mut mended = 0;
    // Upper levels first, so that the path to each node contains only complete ones.
    for page in pages.half_written(compute_server).await? {
        let image = page.image.page();
        let (low, high) = (L::low(image), L::high(image));
        if range.covers(&low, high.as_ref()) && is_in_tree(pages, root, page.at, image).await? {
            write(pages, &page).await?;
            mended += 1;
        }
    }
    Ok(mended)
}

/// Whether the page at `at` is reachable in the tree; `image` is its intended content.
async fn is_in_tree<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
    at: GlobalAddr,
    image: Page<'_, L>,
) -> Result<bool, RemoteError> {
    let (low, high) = (L::low(image), L::high(image));
    let last = high.as_ref().map(L::key).map_or(DescentProbe::Last, DescentProbe::Before);
    // Probe both ends, because the parents may not reflect yet that one of them has moved.
    for probe in [DescentProbe::At(L::key(&low)), last] {
        if at == root || leads_to(pages, root, (at, image.level()), probe).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn leads_to<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    root: GlobalAddr,
    (at, level): (GlobalAddr, u8),
    probe: DescentProbe<'_, L::Key>,
) -> Result<bool, RemoteError> {
    let (mut next, mut backoff) = (root, pages.backoff());
    loop {
        let copy = match pages.read(TimedPointer::fixed(next)).await {
            Ok(copy) => copy,
            Err(MissCause::Restart) => match pages.before_retry(&mut backoff).await {
                // The lock holder is changing the node, or is dead as well; in that case the retry
                // finishes its change.
                Ok(()) => {
                    next = root;
                    continue;
                }
                // Without its path nobody can tell whether a half-written leaf has to be completed,
                // and it is not served before (ack.A3). An inner node is met as damaged.
                Err(RemoteError::Contended { .. }) if level > 0 => return Ok(false),
                Err(error) => return Err(error),
            },
            Err(MissCause::Failed(error)) => return Err(error),
        };
        let page = copy.page();
        if page.level() <= level {
            return Ok(false);
        }
        next = L::inner_child(page, L::inner_slot(page, probe));
        if page.level() == level + 1 {
            return Ok(next == at);
        }
    }
}

async fn write<F: Fabric, L: Layout>(
    pages: &PageClient<F, L>,
    HalfWritten { at, image, mark }: &HalfWritten<L>,
) -> Result<(), RemoteError> {
    let mut outcome = Ok(());
    for _ in 0..WRITE_RETRIES {
        let written = match *mark {
            None => pages.post_page(*at, image).await?.await.map(drop),
            Some(mark) => match pages.post_marked(*at, image, 1..L::page_words(), mark) {
                Ok(posted) => posted.done().await,
                Err(error) => Err(error),
            },
        };
        outcome = match written {
            Ok(()) => return Ok(()),
            Err(error) => Err(error.into()),
        };
        pages.fabric().counters().count_retry();
        pages.fabric().reset(at.server()).await?;
    }
    outcome
}
