//! `manual`: a provider without faults. The program touches pages explicitly, before it reads or
//! writes them, and a forgotten touch is a panic. It is deterministic, so the same pager runs in
//! the simulator and under property tests.
//!
//! *Invariants*: far.M1. A page that is not accessible is filled with [`JUNK`] as soon as its
//! content is removed, so that reading what should have been read from a memory server is noticed.
//!
//! *Thread safety*: one thread.

use crate::memory::PageAccessProvider;
use crate::table::AccessKind;
use crate::{FarConfig, FarError};
use farleaf_fabric::Region;
use farleaf_fabric::sync::{Arc, Ordering};
use std::cell::Cell;
use std::ops::Range;

/// The word that removed pages are full of.
pub const JUNK: u64 = 0xdead_dead_dead_dead;

/// A region that is accessed through the pager only.
#[derive(Debug)]
pub struct ManualRegion {
    view: Arc<Region>,
    page_words: usize,
    rights: Vec<Cell<Option<AccessKind>>>,
}

impl ManualRegion {
    /// A region of `config`'s size. All of it is backed by local memory, whatever the buffer.
    ///
    /// # Errors
    /// [`FarError`] if the settings are wrong or there is no memory.
    pub fn new(config: &FarConfig) -> Result<Self, FarError> {
        config.check()?;
        let bytes = config.region_bytes;
        let view = Region::new(bytes).map_err(|error| FarError::System {
            action: "map a region",
            cause: error.to_string(),
        })?;
        let rights = (0..config.pages()).map(|_| Cell::new(None)).collect();
        let memory = Self { view: Arc::new(view), page_words: config.page_words(), rights };
        memory.remove(0..config.pages());
        Ok(memory)
    }

    /// The word at index `word` of the region.
    ///
    /// # Panics
    /// If its page may not be read now.
    pub fn load(&self, word: usize) -> u64 {
        assert!(self.allows(word, AccessKind::Read), "word {word} is read without a touch");
        self.view.words()[word].load(Ordering::Relaxed)
    }

    /// Sets the word at index `word` of the region.
    ///
    /// # Panics
    /// If its page may not be written now.
    pub fn store(&self, word: usize, value: u64) {
        assert!(self.allows(word, AccessKind::Write), "word {word} is written without a touch");
        self.view.words()[word].store(value, Ordering::Relaxed);
    }

    fn allows(&self, word: usize, access: AccessKind) -> bool {
        self.rights[word / self.page_words].get() >= Some(access)
    }

    fn fill(&self, page: u32, value: u64) {
        let first = page as usize * self.page_words;
        for word in &self.view.words()[first..first + self.page_words] {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn right(&self, page: u32) -> &Cell<Option<AccessKind>> {
        &self.rights[page as usize]
    }
}

impl PageAccessProvider for ManualRegion {
    fn view(&self) -> &Arc<Region> {
        &self.view
    }

    fn zero(&self, page: u32) {
        self.fill(page, 0);
    }

    fn is_allowed(&self, page: u32, access: AccessKind) -> bool {
        self.right(page).get() >= Some(access)
    }

    fn allow(&self, page: u32, access: AccessKind) {
        self.right(page).set(self.right(page).get().max(Some(access)));
    }

    fn protect(&self, pages: Range<u32>) {
        for page in pages {
            self.right(page).set(self.right(page).get().min(Some(AccessKind::Read)));
        }
    }

    fn hide(&self, page: u32) {
        self.right(page).set(None);
    }

    fn remove(&self, pages: Range<u32>) {
        for page in pages {
            self.right(page).set(None);
            self.fill(page, JUNK); // M1
        }
    }
}
