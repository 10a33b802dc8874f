//! A skiplist of keys that only grows.
//!
//! A node is `[link h-1] … [link 0] [head] [key …]`, and its place is that of its head: links are
//! below it, the key's words above. Every other node has a link on the next level. A link holds the
//! place of the next node and, in the bits that places do not need, that node's hint, which is made
//! from its key. So most steps of a search touch only the nodes that it passes through.
//!
//! *Invariants* (`docs/internals/memtable.md`)
//! - memtable.M3. On every level the keys ascend strictly, and a node that has been linked on a
//!   level stays there. Levels are linked from the lowest up, so a node on one level is also on all
//!   lower ones.
//! - memtable.M4. A key has one node: the lowest level is linked by a CAS that expects the link
//!   over the gap in which the key was missing.
//!
//! *Thread safety*: any number of threads search and insert. A CAS that fails means that another
//! insert into the same gap succeeded. Checked by `tests/loom/memtable.rs`.

use super::arena::{ArenaEnd, ArenaOffset, MemTableArena, NOWHERE};
use super::search_key::{CommonPrefix, KeyWords, SearchKey, key_words};
use super::versions::MemTableVersion;
use farleaf_fabric::sync::{Arc, AtomicU64, Ordering, load_to_change};
use farleaf_fabric::{Region, prefetch};
use std::cmp;

/// Levels of a full tower: enough for 2^24 keys; more make searches longer, but not wrong.
#[cfg(not(loom))]
pub(super) const MAX_LEVELS: usize = 24;
/// Fewer for the model checker, which tries every order of the loads during a descent.
#[cfg(loom)]
pub(super) const MAX_LEVELS: usize = 2;

/// The node before all keys: a full tower at the front of the arena, after the word that no place
/// names.
const START: ArenaOffset = MAX_LEVELS as ArenaOffset + 1;

/// A level on which a gap has some 64 keys: those close to the last one of a writer.
const NEAR_LEVEL: usize = 6;

/// How often an insert may lose the gap of its key to other inserts.
const MAX_LOST: u32 = 10_000;

/// The head of a node: `[key bytes:16][0:16][newest version:32]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SkipNodeHead(u64);

impl SkipNodeHead {
    /// The place of the newest version, or [`NOWHERE`].
    #[inline]
    pub(super) fn newest(self) -> ArenaOffset {
        self.0 as ArenaOffset
    }

    #[inline]
    fn key_bytes(self) -> usize {
        (self.0 >> 48) as usize
    }

    fn with(self, newest: ArenaOffset) -> Self {
        Self(self.0 & !0xffff_ffff | u64::from(newest))
    }
}

/// A link: `[hint of the next node:64 - b][place of the next node:b]`, 0 at the end. `b` is the
/// number of bits that places of the arena need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SkipListLink(u64);

/// The number of bits of a link that hold a place.
#[derive(Clone, Copy, Debug)]
struct PlaceBits(u64);

impl PlaceBits {
    fn of_words(words: usize) -> Self {
        Self((words as u64).next_power_of_two() - 1)
    }
}

impl SkipListLink {
    const END: Self = Self(0);

    fn new(node: ArenaOffset, hint: u64) -> Self {
        Self(hint | u64::from(node))
    }

    #[inline]
    fn node(self, bits: PlaceBits) -> ArenaOffset {
        (self.0 & bits.0) as ArenaOffset
    }

    #[inline]
    fn hint(self, bits: PlaceBits) -> u64 {
        self.0 & !bits.0
    }
}

/// A key to search for, and its hint: the bits that a link has of it.
#[derive(Clone, Copy, Debug)]
struct SearchTarget<'k> {
    key: &'k SearchKey,
    hint: u64,
    bits: PlaceBits,
}

/// The gap in which the last search of a writer ended, by level. Inserts of ascending keys start
/// there.
#[derive(Debug)]
pub(super) struct Splice {
    before: [ArenaOffset; MAX_LEVELS],
    behind: [SkipListLink; MAX_LEVELS],
}

impl Splice {
    /// The splice of a list into which the writer has not inserted yet.
    pub(super) fn new() -> Self {
        Self { before: [START; MAX_LEVELS], behind: [SkipListLink::END; MAX_LEVELS] }
    }
}

/// How an insert ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertOutcome {
    /// The key's node is here. It is new, or was inserted by another thread.
    At(ArenaOffset),
    /// The arena has no room.
    Full,
    /// The insert lost too often to other inserts into the same gap.
    Contended,
}

/// The keys of one MemTable.
#[derive(Debug)]
pub(super) struct SkipList {
    arena: MemTableArena,
    bits: PlaceBits,
    prefix: CommonPrefix,
}

/// The word of a link.
#[inline]
fn link(words: &[AtomicU64], node: ArenaOffset, level: usize) -> &AtomicU64 {
    &words[node as usize - 1 - level]
}

/// The link of `node` on `level`.
#[inline]
fn behind(words: &[AtomicU64], node: ArenaOffset, level: usize) -> SkipListLink {
    SkipListLink(link(words, node, level).load(Ordering::Acquire))
}

/// Compares the key of `node` with `key`.
#[inline]
fn order(words: &[AtomicU64], node: ArenaOffset, key: &SearchKey) -> cmp::Ordering {
    let bytes = || SkipNodeHead(words[node as usize].load(Ordering::Relaxed)).key_bytes();
    key.order_of(&words[node as usize + 1..], bytes)
}

/// Compares the key of the next node with the sought one.
#[inline]
fn order_behind(
    words: &[AtomicU64],
    link: SkipListLink,
    sought: SearchTarget<'_>,
) -> cmp::Ordering {
    match link.hint(sought.bits).cmp(&sought.hint) {
        cmp::Ordering::Equal => order(words, link.node(sought.bits), sought.key),
        unequal => unequal,
    }
}

/// The last node below the sought key on a level, starting at `at`, and its link. `above` is known
/// not to be below the key.
#[inline]
fn gap_on(
    words: &[AtomicU64],
    mut at: ArenaOffset,
    above: ArenaOffset,
    level: usize,
    sought: SearchTarget<'_>,
) -> (ArenaOffset, SkipListLink) {
    loop {
        let next = behind(words, at, level);
        let node = next.node(sought.bits);
        let is_below = node != NOWHERE
            && node != above
            && order_behind(words, next, sought) == cmp::Ordering::Less;
        if !is_below {
            return (at, next);
        }
        at = node;
    }
}

fn is_key(node: &ArenaOffset) -> bool {
    *node != NOWHERE && *node != START
}

impl SkipList {
    /// An empty list in the first `words` words of `memory`, for keys with this prefix.
    pub(super) fn new(memory: Arc<Region>, words: usize, prefix: CommonPrefix) -> Self {
        let arena = MemTableArena::new(memory, words, START as usize + 1);
        for word in &arena.words()[..=START as usize] {
            word.store(0, Ordering::Relaxed);
        }
        Self { arena, bits: PlaceBits::of_words(words), prefix }
    }

    /// What its keys were expected to have in common.
    pub(super) fn prefix(&self) -> &CommonPrefix {
        &self.prefix
    }

    /// Returns the memory, for reuse by another list.
    pub(super) fn into_memory(self) -> Arc<Region> {
        self.arena.into_memory()
    }

    #[inline]
    pub(super) fn arena(&self) -> &MemTableArena {
        &self.arena
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        self.arena.words()
    }

    #[inline]
    fn sought<'k>(&self, key: &'k SearchKey) -> SearchTarget<'k> {
        let hint = self.prefix.hint(key) & !self.bits.0;
        SearchTarget { key, hint, bits: self.bits }
    }

    /// The head of `node`.
    #[inline]
    pub(super) fn head(&self, node: ArenaOffset) -> SkipNodeHead {
        SkipNodeHead(self.words()[node as usize].load(Ordering::Acquire))
    }

    /// The head of `node`, for [`SkipList::replace_head`].
    #[inline]
    pub(super) fn head_to_change(&self, node: ArenaOffset) -> SkipNodeHead {
        SkipNodeHead(load_to_change(&self.words()[node as usize], Ordering::Acquire))
    }

    /// Makes `newest` the newest version of `node` if its head is still `seen` (Q4).
    #[inline]
    pub(super) fn replace_head(
        &self,
        node: ArenaOffset,
        seen: SkipNodeHead,
        newest: ArenaOffset,
    ) -> bool {
        let head = &self.words()[node as usize];
        let new = seen.with(newest).0;
        head.compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The key of `node`.
    pub(super) fn key(&self, node: ArenaOffset) -> KeyWords<'_> {
        let bytes = self.head(node).key_bytes();
        let first = node as usize + 1;
        KeyWords::new(&self.words()[first..first + key_words(bytes)], bytes)
    }

    /// The node of `key`.
    #[inline]
    pub(super) fn find(&self, key: &SearchKey) -> Option<ArenaOffset> {
        let (words, sought) = (self.words(), self.sought(key));
        let (mut at, mut above) = (START, NOWHERE);
        for level in (0..MAX_LEVELS).rev() {
            loop {
                let next = behind(words, at, level);
                // The next node above the key on the previous level is often the next one here too.
                let node = next.node(self.bits);
                if node == NOWHERE || node == above {
                    break;
                }
                match order_behind(words, next, sought) {
                    cmp::Ordering::Less => at = node,
                    cmp::Ordering::Equal => return Some(node),
                    cmp::Ordering::Greater => {
                        above = node;
                        break;
                    }
                }
            }
        }
        None
    }

    /// The last node below `key`, and the first one that is not below it.
    pub(super) fn around(&self, key: &SearchKey) -> (Option<ArenaOffset>, Option<ArenaOffset>) {
        let (words, sought) = (self.words(), self.sought(key));
        let (mut at, mut next) = (START, SkipListLink::END);
        for level in (0..MAX_LEVELS).rev() {
            (at, next) = gap_on(words, at, next.node(self.bits), level, sought);
        }
        (Some(at).filter(is_key), Some(next.node(self.bits)).filter(is_key))
    }

    /// The first node.
    pub(super) fn first(&self) -> Option<ArenaOffset> {
        self.after(START)
    }

    /// The node after `node`.
    pub(super) fn after(&self, node: ArenaOffset) -> Option<ArenaOffset> {
        Some(behind(self.words(), node, 0).node(self.bits)).filter(is_key)
    }

    /// Asks the processor for what a cursor on `node` reads when it moves on. A cursor that has
    /// moved by one step has asked for the next node before, so only the first call waits for that.
    #[inline]
    pub(super) fn prefetch_behind(&self, node: ArenaOffset) {
        if cfg!(any(loom, shuttle)) {
            return; // these loads would only be more orders to try
        }
        let words = self.words();
        let Some(next) = self.after(node) else { return };
        if let Some(version) = MemTableVersion::at(words, self.head(next).newest()) {
            version.prefetch();
        }
        if let Some(then) = self.after(next) {
            prefetch(&words[then as usize - 1..=then as usize]);
        }
    }

    /// The last node.
    pub(super) fn last(&self) -> Option<ArenaOffset> {
        let words = self.words();
        let mut at = START;
        for level in (0..MAX_LEVELS).rev() {
            loop {
                let next = behind(words, at, level);
                if next == SkipListLink::END {
                    break;
                }
                at = next.node(self.bits);
            }
        }
        Some(at).filter(is_key)
    }

    /// Some nodes all over the list: at least `least` and at most four times as many, or none if
    /// there are fewer.
    pub(super) fn sample(&self, least: usize) -> Vec<ArenaOffset> {
        if cfg!(any(loom, shuttle)) {
            return Vec::new(); // these loads would only be more orders to try
        }
        let words = self.words();
        let next = |node, level| Some(behind(words, node, level).node(self.bits)).filter(is_key);
        let on_level = |level| {
            let nodes = std::iter::successors(next(START, level), |node| next(*node, level));
            nodes.take(4 * least).collect::<Vec<_>>()
        };
        let levels = (0..MAX_LEVELS).rev().map(on_level);
        levels.into_iter().find(|nodes| nodes.len() >= least).unwrap_or_default()
    }

    /// Whether the splice's gap on `level` spans the key and is still empty. If other threads have
    /// filled it, a search from there could be long.
    fn spans(&self, splice: &Splice, level: usize, sought: SearchTarget<'_>) -> bool {
        let words = self.words();
        let (before, next) = (splice.before[level], splice.behind[level]);
        behind(words, before, level) == next
            && (before == START || order(words, before, sought.key) == cmp::Ordering::Less)
            && (next == SkipListLink::END
                || order_behind(words, next, sought) == cmp::Ordering::Greater)
    }

    /// Finds the node of `key`, for a writer. If there is none, `splice` is its gap.
    pub(super) fn find_gap(&self, key: &SearchKey, splice: &mut Splice) -> Option<ArenaOffset> {
        let (words, sought) = (self.words(), self.sought(key));
        // Levels above the one where the last gap spans the key need no search.
        let spanning = [0, NEAR_LEVEL]
            .into_iter()
            .find(|&level| level < MAX_LEVELS && self.spans(splice, level, sought));
        let (mut at, mut next, searched) = match spanning {
            Some(level) => (splice.before[level], splice.behind[level], level + 1),
            None => (START, SkipListLink::END, MAX_LEVELS),
        };
        for level in (0..searched).rev() {
            (at, next) = gap_on(words, at, next.node(self.bits), level, sought);
            splice.before[level] = at;
            splice.behind[level] = next;
        }
        self.is(next, sought).then_some(next.node(self.bits))
    }

    #[inline]
    fn is(&self, link: SkipListLink, sought: SearchTarget<'_>) -> bool {
        link != SkipListLink::END
            && order_behind(self.words(), link, sought) == cmp::Ordering::Equal
    }

    /// Finds the node of `key`, or inserts one of `levels` levels without a version.
    pub(super) fn insert(
        &self,
        key: &SearchKey,
        splice: &mut Splice,
        levels: usize,
    ) -> InsertOutcome {
        if let Some(node) = self.find_gap(key, splice) {
            return InsertOutcome::At(node);
        }
        let (words, sought) = (self.words(), self.sought(key));
        let Some(first) = self.arena.take(levels + 1 + key.words(), ArenaEnd::Front) else {
            return InsertOutcome::Full;
        };
        let node = first + levels as ArenaOffset;
        words[node as usize].store((key.bytes() as u64) << 48, Ordering::Relaxed);
        key.store(&words[node as usize + 1..]);
        let own = SkipListLink::new(node, sought.hint);
        for level in 0..levels {
            let mut lost = 0;
            loop {
                let (before, next) = (splice.before[level], splice.behind[level]);
                link(words, node, level).store(next.0, Ordering::Relaxed);
                let gap = link(words, before, level);
                if gap.compare_exchange(next.0, own.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    // The next key is probably above this one.
                    splice.before[level] = node;
                    break;
                }
                lost += 1;
                if lost > MAX_LOST {
                    // Higher levels only make searches shorter.
                    return if level == 0 {
                        InsertOutcome::Contended
                    } else {
                        InsertOutcome::At(node)
                    };
                }
                let (before, next) = gap_on(words, before, NOWHERE, level, sought);
                splice.before[level] = before;
                splice.behind[level] = next;
                if level == 0 && self.is(next, sought) {
                    return InsertOutcome::At(next.node(self.bits));
                }
            }
        }
        InsertOutcome::At(node)
    }
}
