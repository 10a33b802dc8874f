//! The versioned latch in word 0 of every page: `[locked:1][owner:15][version:48]`.
//!
//! Readers are optimistic: they take the version, read the words they need, and validate that the
//! version has not changed. A writer turns the version that it has read into a lock by one CAS, so
//! it locks a page only if the page has not changed since.
//!
//! *Invariants*
//! - L1. The version grows by one with every unlock and never decreases, whatever the page is
//!   reused for (48 bits: 2^48 changes of one page).
//! - L2. While the word is locked, only the holder writes to the page.
//! - L3. A validated read did not overlap with any change.
//!
//! The order of accesses (Boehm, *Can seqlocks get along with programming language memory models?*,
//! 2012): a reader loads the version `Acquire`, the words `Relaxed`, then fences `Acquire` and
//! loads the version `Relaxed`. A writer takes the lock with a CAS `Acquire`, fences `Release`,
//! stores the words `Relaxed`, and stores the new version `Release`.
//!
//! *Thread safety*: any number of threads. `tests/loom.rs` checks it.

use farleaf_fabric::sync::{AtomicU64, Ordering, fence};
use std::fmt;

const LOCKED: u64 = 1 << 63;
const OWNER_SHIFT: u32 = 48;
const VERSION_MASK: u64 = (1 << 48) - 1;

/// A version that was read while the lock was free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LatchVersion(u64);

impl LatchVersion {
    /// The version in a copy of a page's word 0, or `None` if the word is locked.
    pub fn from_word(word: u64) -> Option<Self> {
        (word & LOCKED == 0).then_some(Self(word))
    }

    /// The word that holds this version.
    pub fn to_word(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for LatchVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0 & VERSION_MASK)
    }
}

/// The latch over a page's word 0.
#[derive(Clone, Copy, Debug)]
pub struct Latch<'a> {
    word: &'a AtomicU64,
}

impl<'a> Latch<'a> {
    /// The latch in `word`.
    #[inline]
    pub fn new(word: &'a AtomicU64) -> Self {
        Self { word }
    }

    /// Starts an optimistic read: returns the version, or `None` while the lock is held.
    #[inline]
    pub fn optimistic(self) -> Option<LatchVersion> {
        LatchVersion::from_word(self.word.load(Ordering::Acquire))
    }

    /// Whether the lock has not been held since `version` was read. If so, everything read since
    /// then is consistent (L3).
    #[inline]
    #[must_use]
    pub fn validate(self, version: LatchVersion) -> bool {
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == version.0
    }

    /// Recovers the guard of a lock that was kept with [`ExclusiveLatch::keep`]. Only the owner of
    /// the kept lock may call this, once.
    pub fn resume(self) -> ExclusiveLatch<'a> {
        debug_assert!(self.optimistic().is_none(), "a kept lock is locked");
        ExclusiveLatch { word: self.word }
    }

    /// Takes the lock for `owner` (15 bits) if the page is still at `version`.
    #[inline]
    pub fn try_lock(self, version: LatchVersion, owner: u16) -> Option<ExclusiveLatch<'a>> {
        let locked =
            LOCKED | (u64::from(owner & 0x7fff) << OWNER_SHIFT) | (version.0 & VERSION_MASK);
        self.word.compare_exchange(version.0, locked, Ordering::Acquire, Ordering::Relaxed).ok()?;
        fence(Ordering::Release);
        Some(ExclusiveLatch { word: self.word })
    }
}

/// The right to change a page. Dropping it unlocks the page with the next version.
#[derive(Debug)]
#[must_use = "dropping the guard unlocks"]
pub struct ExclusiveLatch<'a> {
    word: &'a AtomicU64,
}

impl ExclusiveLatch<'_> {
    /// Keeps the lock without a guard. A frame that holds no page stays locked this way, so that a
    /// thread with a stale reference to it finds it locked. [`Latch::resume`] recovers the guard.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// The version that the page will have when this guard is dropped.
    pub fn next_version(&self) -> LatchVersion {
        LatchVersion((self.word.load(Ordering::Relaxed) + 1) & VERSION_MASK)
    }
}

impl Drop for ExclusiveLatch<'_> {
    #[inline]
    fn drop(&mut self) {
        let next = self.next_version();
        self.word.store(next.0, Ordering::Release);
    }
}
