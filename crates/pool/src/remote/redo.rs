//! Log entries: they record what a holder is about to write, so that other clients can finish it.
//!
//! ```text
//! word 0  checksum of the rest        word 1  [owner:16][pages:16][words:16][reserved:16]
//! then, for each page:  address,  [runs:16][version:48],  runs
//! a run:                [words:32][first word:32],  words
//! ```
//!
//! For each page, an entry has the version that the change makes and the words that it changes.
//! Applied to the page before the change, or to any mixture of before and after, it yields the page
//! after the change.
//!
//! *Invariants*
//! - R1. A complete entry is in the log before any word of its pages is written (contract F3, or an
//!   awaited WRITE).
//! - R2. It stays until all of its pages are written.
//! - R3. Its pages are in the order in which they must be written: those that lose keys before
//!   those that gain them.
//!
//! An entry that is larger than an endpoint's buffer is written in pieces (`pieces.rs`).
//!
//! *Thread safety*: plain values.

use super::PageImage;
use farleaf_fabric::GlobalAddr;
use farleaf_fabric::sync::Ordering;
use farleaf_page::{Layout, LockWord, Page, sum_of};

/// Maximum number of pages that one entry can cover.
pub(super) const MAX_PAGES: usize = 3;
/// The version in entries of leaves, which have none (`leaf_entry.rs`).
pub(super) const LEAF_VERSION: u64 = (1 << 48) - 1;
/// Two runs are joined if at most this many unchanged words lie between them.
const GAP_WORDS: usize = 1;
/// Mixed into the checksum, so that a slot of zeros is not an entry.
const SALT: u64 = 0x5ea1_ed10_9f00_d5a1;

/// One page of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedoPage {
    pub(super) at: GlobalAddr,
    /// The version that the change makes.
    pub(super) version: u64,
    /// Runs of changed words, each with the index of its first word.
    runs: Vec<(usize, Vec<u64>)>,
}

/// A decoded log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redo {
    pub(super) owner: u16,
    pub(super) pages: Vec<RedoPage>,
}

impl RedoPage {
    /// The difference between a page's content and its sealed image.
    pub(super) fn between<L: Layout>(
        at: GlobalAddr,
        before: Page<'_, L>,
        after: Page<'_, L>,
    ) -> Self {
        let mut runs: Vec<(usize, Vec<u64>)> = Vec::new();
        for (index, (old, new)) in before.words().iter().zip(after.words()).enumerate().skip(1) {
            let new = new.load(Ordering::Relaxed);
            if old.load(Ordering::Relaxed) == new {
                continue;
            }
            match runs.last_mut() {
                Some((first, words)) if *first + words.len() + GAP_WORDS >= index => {
                    let gap = *first + words.len()..index;
                    words.extend(gap.map(|gap| after.words()[gap].load(Ordering::Relaxed)));
                    words.push(new);
                }
                _ => runs.push((index, vec![new])),
            }
        }
        Self { at, version: after.lock_word().version(), runs }
    }

    /// The complete content of a sealed image, for a page whose words in the pool are unknown.
    pub(super) fn whole<L: Layout>(at: GlobalAddr, after: Page<'_, L>) -> Self {
        let words = after.words()[1..].iter().map(|word| word.load(Ordering::Relaxed));
        Self { at, version: after.lock_word().version(), runs: vec![(1, words.collect())] }
    }

    /// The complete content of a leaf that no client locks. Its word 5 is its stamp.
    pub(super) fn of_leaf<L: Layout>(at: GlobalAddr, after: Page<'_, L>) -> Self {
        Self { version: LEAF_VERSION, ..Self::whole(at, after) }
    }

    /// Whether it is about a leaf that no client locks.
    pub(super) fn is_of_leaf(&self) -> bool {
        self.version == LEAF_VERSION
    }

    fn overwrite<L: Layout>(&self, found: Page<'_, L>) -> Option<PageImage<L>> {
        let image = PageImage::of(found);
        for (first, words) in &self.runs {
            let place = image.words().get(*first..first.checked_add(words.len())?)?;
            place.iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        }
        Some(image)
    }

    /// The leaf of such an entry, which was found half written. Its word 0 is as found.
    pub(super) fn leaf<L: Layout>(&self, found: Page<'_, L>) -> Option<PageImage<L>> {
        let image = self.overwrite(found)?;
        let page = image.page();
        let whole = page.level() == 0 && page.stamp_fits() && page.address() == self.at;
        whole.then_some(image)
    }

    /// Applies the change to the page as found. `None` if the entry was made for other content.
    pub(super) fn apply<L: Layout>(&self, found: Page<'_, L>) -> Option<PageImage<L>> {
        let image = self.overwrite(found)?;
        image.words()[0].store(LockWord::from_bits(self.version).to_bits(), Ordering::Relaxed);
        let whole = image.page().is_of_one_piece() && image.page().address() == self.at;
        whole.then_some(image)
    }
}

impl Redo {
    /// Encodes the entry as the words of its slot. Word 0 is its checksum.
    pub(super) fn words(&self) -> Vec<u64> {
        let mut words = vec![0, 0];
        for page in &self.pages {
            words.push(page.at.to_bits());
            words.push((page.runs.len() as u64) << 48 | page.version);
            for (first, run) in &page.runs {
                words.push((run.len() as u64) << 32 | *first as u64);
                words.extend(run);
            }
        }
        let (owner, pages) = (u64::from(self.owner), self.pages.len() as u64);
        words[1] = owner << 48 | pages << 32 | (words.len() as u64) << 16;
        words[0] = sum_of(words[1..].iter().copied()) ^ SALT;
        words
    }

    /// The checksum of its words, word 0 of its slot.
    pub(super) fn sum(&self) -> u64 {
        self.words()[0]
    }

    /// Decodes the entry in a slot, if it is complete.
    pub(super) fn decode(slot: &[u64]) -> Option<Self> {
        let word = |index: usize| slot.get(index).copied();
        let head = word(1)?;
        let (owner, count) = ((head >> 48) as u16, (head >> 32) as u16 as usize);
        let length = (head >> 16) as u16 as usize;
        if length < 2 || length > slot.len() || count > MAX_PAGES {
            return None;
        }
        if word(0)? != sum_of((1..length).filter_map(word)) ^ SALT {
            return None;
        }
        let mut place = 2;
        let mut next = || {
            place += 1;
            (place <= length).then(|| word(place - 1)).flatten()
        };
        let mut pages = Vec::with_capacity(count);
        for _ in 0..count {
            let (at, meta) = (GlobalAddr::from_bits(next()?), next()?);
            let mut runs = Vec::new();
            for _ in 0..meta >> 48 {
                let run = next()?;
                let words = (0..run >> 32).map(|_| next()).collect::<Option<Vec<u64>>>()?;
                runs.push((run as u32 as usize, words));
            }
            pages.push(RedoPage { at, version: meta & ((1 << 48) - 1), runs });
        }
        Some(Self { owner, pages })
    }
}
