//! A cursor over a MemTable, in both directions, at a bound.
//!
//! *Thread safety*: it reads while others write. If its bound is settled, concurrent writes do not
//! change what it sees: newer versions are above the bound (Q7).

use super::arena::ArenaOffset;
use super::search_key::{KeyWords, SearchKey};
use super::skiplist::SkipList;
use super::versions::MemTableVersion;

/// A position in a MemTable, among the keys that have versions up to a bound.
#[derive(Clone, Copy, Debug)]
pub struct MemTableCursor<'t> {
    list: &'t SkipList,
    bound: u64,
    at: Option<(ArenaOffset, MemTableVersion<'t>)>,
}

impl<'t> MemTableCursor<'t> {
    /// A cursor on no key.
    pub(super) fn new(list: &'t SkipList, bound: u64) -> Self {
        Self { list, bound, at: None }
    }

    /// The key. `None` before the first move and beyond either end.
    pub fn key(&self) -> Option<KeyWords<'t>> {
        self.at.map(|(node, _)| self.list.key(node))
    }

    /// The key's newest version up to the bound.
    pub fn version(&self) -> Option<MemTableVersion<'t>> {
        self.at.map(|(_, version)| version)
    }

    /// Moves to the first key.
    pub fn seek_first(&mut self) {
        self.up_from(self.list.first());
    }

    /// Moves to the last key.
    pub fn seek_last(&mut self) {
        self.down_from(self.list.last());
    }

    /// Moves to the first key that is not below `key`.
    pub fn seek(&mut self, key: &SearchKey) {
        self.up_from(self.list.around(key).1);
    }

    /// Moves to the last key below `key`.
    pub fn seek_below(&mut self, key: &SearchKey) {
        self.down_from(self.list.around(key).0);
    }

    /// Moves to the next key. Without a current key, it does not move.
    pub fn next(&mut self) {
        if let Some((node, _)) = self.at {
            self.up_from(self.list.after(node));
        }
    }

    /// Moves to the previous key, by a search, because nodes have no backward links.
    pub fn prev(&mut self) {
        if let Some((node, _)) = self.at {
            self.down_from(self.before(node));
        }
    }

    fn before(&self, node: ArenaOffset) -> Option<ArenaOffset> {
        self.list.around(&self.list.key(node).to_search_key()).0
    }

    fn visible(&self, node: ArenaOffset) -> Option<MemTableVersion<'t>> {
        MemTableVersion::at(self.list.arena().words(), self.list.head(node).newest())?
            .up_to(self.bound)
    }

    fn up_from(&mut self, mut node: Option<ArenaOffset>) {
        self.at = None;
        while let Some(place) = node {
            if let Some(version) = self.visible(place) {
                self.at = Some((place, version));
                self.list.prefetch_behind(place);
                return;
            }
            node = self.list.after(place);
        }
    }

    fn down_from(&mut self, mut node: Option<ArenaOffset>) {
        self.at = None;
        while let Some(place) = node {
            if let Some(version) = self.visible(place) {
                self.at = Some((place, version));
                return;
            }
            node = self.before(place);
        }
    }
}
