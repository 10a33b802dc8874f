//! Which keys each shard has. The map of a new index lies in the pool of the first memory server,
//! and never changes there. What divisions of shards have added is in the directories of their
//! memory servers; no shard is ever joined with another one.
//!
//! ```text
//! word 0  magic      word 1  words in all      word 2  checksum of all words behind it
//! word 3  boundaries, of which each has a word with its length, and its bytes in whole words
//! ```
//!
//! *Thread safety*: plain values.

use crate::remote::{ExtentClient, ExtentSpace};
use farleaf_fabric::sync::Arc;
use farleaf_fabric::{Fabric, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_page::table::{KeyBuf, SsTableClip, take_key};
use farleaf_page::{Layout, sum_of};
use farleaf_pool::remote::{ROOT_SERVER, RemoteError};
use std::ops::Range;

const MAGIC: u64 = u64::from_le_bytes(*b"Shards\0\x01");
/// Words before the first boundary.
const HEAD_WORDS: usize = 4;
/// Maximum number of shards of an index.
pub const MAX_SHARDS: usize = 1_024;
/// Bytes of a boundary.
const MAX_KEY_BYTES: usize = 256;
/// Words of a map.
const MAX_WORDS: u64 = (HEAD_WORDS + MAX_SHARDS * (1 + MAX_KEY_BYTES / 8)) as u64;
/// Bytes that are READ first: most maps are not larger.
const FIRST_BYTES: u64 = 1_024;
/// The shard that the map's memory belongs to, and its epoch: none.
const NO_SHARD: (u64, u64) = (u64::MAX, 0);

/// Where shards begin, and their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardMap {
    /// The lowest keys of all shards but the first, ascending.
    lows: Vec<Vec<u8>>,
    /// The numbers of the shards, in the order of their keys.
    shards: Vec<usize>,
    /// The shards that the index was created with have numbers below this one.
    created: usize,
}

impl Default for ShardMap {
    fn default() -> Self {
        Self { lows: Vec::new(), shards: vec![0], created: 1 }
    }
}

impl ShardMap {
    /// The map of a new index with these boundaries.
    pub(super) fn new(lows: Vec<Vec<u8>>) -> Result<Self, IndexError> {
        let refused = |why| Err(IndexError::InvalidArgument(why));
        if lows.len() >= MAX_SHARDS {
            return refused("an index has at most 1,024 shards");
        }
        if lows.iter().any(|low| low.len() > MAX_KEY_BYTES) {
            return refused("a boundary between shards has at most 256 bytes");
        }
        let created = lows.len() + 1;
        match lows.windows(2).all(|pair| pair[0] < pair[1]) {
            true => Ok(Self { lows, shards: (0..created).collect(), created }),
            false => refused("the boundaries between shards must ascend"),
        }
    }

    /// The map with the shards that divisions have made: the number of each, and the words of its
    /// lowest key. `None` if they make no sense.
    pub(super) fn divided(&self, pieces: &[(u64, Vec<u64>)]) -> Option<Self> {
        let mut map = self.clone();
        for (number, words) in pieces {
            let mut rest = &words[..];
            let low = take_key(&mut rest).filter(|_| rest.is_empty())?.key().to_vec();
            let number = usize::try_from(*number).ok().filter(|number| *number < MAX_SHARDS)?;
            let place = map.lows.partition_point(|other| *other < low);
            if map.lows.get(place) == Some(&low) && map.shards[place + 1] == number {
                continue;
            }
            let is_new = !map.shards.contains(&number) && map.lows.get(place) != Some(&low);
            is_new.then_some(())?;
            map.lows.insert(place, low);
            map.shards.insert(place + 1, number);
        }
        Some(map)
    }

    /// Whether both are maps of the same index.
    pub(super) fn is_of_same_index(&self, other: &Self) -> bool {
        let created = |map: &Self| -> Vec<(usize, Vec<u8>)> {
            let shards = map.shards.iter().copied().skip(1).zip(map.lows.iter().cloned());
            shards.filter(|(shard, _)| *shard < map.created).collect()
        };
        self.created == other.created && created(self) == created(other)
    }

    /// The place of the shard that has `key`, in the order of the keys.
    #[inline]
    fn place_of(&self, key: &[u8]) -> usize {
        self.lows.partition_point(|low| &low[..] <= key)
    }

    /// The shard that has `key`.
    #[inline]
    pub(super) fn shard_of(&self, key: &[u8]) -> usize {
        self.shards[self.place_of(key)]
    }

    /// The numbers of the shards at these places.
    pub(super) fn shards(&self, places: Range<usize>) -> &[usize] {
        &self.shards[places]
    }

    /// The lowest key of the shard that has `key`, `None` for the first shard, and the first key
    /// above it, `None` for the last one.
    pub(super) fn ends(&self, key: &[u8]) -> (Option<&[u8]>, Option<&[u8]>) {
        self.ends_at(self.place_of(key))
    }

    /// The same, for the shard at this place.
    pub(super) fn ends_at(&self, place: usize) -> (Option<&[u8]>, Option<&[u8]>) {
        let low = place.checked_sub(1).map(|before| &self.lows[before][..]);
        (low, self.lows.get(place).map(Vec::as_slice))
    }

    /// The keys of a shard.
    pub(super) fn clip(&self, shard: usize) -> SsTableClip {
        let place = self.shards.iter().position(|number| *number == shard);
        let (lower, upper) = place.map_or((None, None), |place| self.ends_at(place));
        SsTableClip { lower: lower.map(KeyBuf::from_bytes), upper: upper.map(KeyBuf::from_bytes) }
    }

    /// A number for a shard that begins within `shard`, and whose tables the same one of `servers`
    /// memory servers lists. `None` if there is none, or if no shard can begin at `low`.
    pub(super) fn free_number(&self, shard: usize, low: &[u8], servers: u16) -> Option<usize> {
        let servers = usize::from(servers.max(1));
        let is_free =
            |number: &usize| number % servers == shard % servers && !self.shards.contains(number);
        let numbers = (self.created..MAX_SHARDS).find(is_free);
        numbers.filter(|_| low.len() <= MAX_KEY_BYTES)
    }

    /// The places of the shards from the one that begins at `low` to the one that ends at `high`;
    /// `None` in place of a key is the end of all keys. `None` if there is no boundary at one of
    /// them.
    pub(super) fn between(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> Option<Range<usize>> {
        let at = |key: &[u8]| self.lows.binary_search_by(|low| low[..].cmp(key)).ok();
        let first = low.map_or(Some(0), |low| at(low).map(|place| place + 1))?;
        let end = high.map_or(Some(self.lows.len() + 1), |high| at(high).map(|place| place + 1))?;
        Some(first..end)
    }

    fn encode(&self) -> Vec<u64> {
        let mut words = vec![MAGIC, 0, 0, self.lows.len() as u64];
        for low in &self.lows {
            words.push(low.len() as u64);
            words.extend(low.chunks(8).map(|part| {
                let mut bytes = [0; 8];
                bytes[..part.len()].copy_from_slice(part);
                u64::from_le_bytes(bytes)
            }));
        }
        words[1] = words.len() as u64;
        words[2] = sum_of(words[3..].iter().copied());
        words
    }

    fn decode(words: &[u64]) -> Option<Self> {
        let (head, mut rest) = words.split_at_checked(HEAD_WORDS)?;
        if head[0] != MAGIC || head[2] != sum_of(words[3..].iter().copied()) {
            return None;
        }
        let mut lows = Vec::new();
        while !rest.is_empty() {
            let (&bytes, others) = rest.split_first()?;
            let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= MAX_KEY_BYTES)?;
            let (words, others) = others.split_at_checked(bytes.div_ceil(8))?;
            let low = words.iter().flat_map(|word| word.to_le_bytes()).take(bytes);
            lows.push(low.collect());
            rest = others;
        }
        (lows.len() as u64 == head[3]).then_some(())?;
        Self::new(lows).ok()
    }

    /// Writes the map into memory that no index uses yet. Returns where it lies.
    pub(super) async fn write<F: Fabric, L: Layout>(
        &self,
        fabric: &F,
    ) -> Result<GlobalAddr, RemoteError> {
        let words = self.encode();
        // A root has the size of a page at least, or the claim of the pool is refused.
        let page_bytes = (L::page_words() as u64 * 8).next_multiple_of(FIRST_BYTES);
        let bytes = (words.len() as u64 * 8).next_multiple_of(FIRST_BYTES).max(page_bytes);
        let space = Arc::new(ExtentSpace::new(bytes).together(0));
        let client = ExtentClient::<F, L>::new(fabric.clone(), &space, bytes);
        let memory = client.allocate_unshared(ROOT_SERVER, bytes).await?;
        space.begin(NO_SHARD, &[memory]);
        let mut writer = client.writer();
        writer.append(&words).await?;
        Ok(writer.finish().await?.place())
    }

    /// READs the map of an index with this root. Without one, there is one shard.
    pub(super) async fn read<F: Fabric, L: Layout>(
        fabric: &F,
        root: GlobalAddr,
    ) -> Result<Self, IndexError> {
        if root.is_null() {
            return Ok(Self::default());
        }
        let damaged = IndexError::Damaged { at: root };
        let mut words = read_words::<F, L>(fabric, root, FIRST_BYTES / 8).await?;
        let count = words[1];
        if words[0] != MAGIC || !(HEAD_WORDS as u64..=MAX_WORDS).contains(&count) {
            return Err(damaged);
        }
        if count > FIRST_BYTES / 8 {
            words = read_words::<F, L>(fabric, root, count).await?;
        }
        Self::decode(&words[..count as usize]).ok_or(damaged)
    }
}

async fn read_words<F: Fabric, L: Layout>(
    fabric: &F,
    at: GlobalAddr,
    words: u64,
) -> Result<Vec<u64>, RemoteError> {
    let bytes = (words * 8).next_multiple_of(FIRST_BYTES);
    let space = Arc::new(ExtentSpace::new(bytes));
    space.begin(NO_SHARD, &[(at, bytes)]);
    let damaged = RemoteError::Damaged { at };
    let lease = ExtentSpace::lease_at(&space, &[(at, bytes)]).ok_or(damaged)?;
    ExtentClient::<F, L>::new(fabric.clone(), &space, bytes).read(&lease, 0, words as u32).await
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use farleaf_page::table::push_key;

    fn map() -> ShardMap {
        ShardMap::new(vec![b"d".to_vec(), b"exactly8".to_vec(), b"more than eight".to_vec()])
            .unwrap()
    }

    #[test]
    fn a_map_is_read_as_it_was_written() {
        for map in [ShardMap::default(), map()] {
            let words = map.encode();
            assert_eq!(ShardMap::decode(&words).as_ref(), Some(&map));
            for place in 0..words.len() {
                let mut other = words.clone();
                other[place] ^= 1;
                // The number of all words has led here.
                assert!(place == 1 || ShardMap::decode(&other).is_none(), "word {place}");
                assert!(ShardMap::decode(&words[..place]).is_none(), "{place} words");
            }
        }
        assert!(ShardMap::new(vec![vec![1], vec![1]]).is_err());
        assert!(ShardMap::new(vec![vec![1; MAX_KEY_BYTES + 1]]).is_err());
    }

    #[test]
    fn shards_lie_between_boundaries() {
        let map = map();
        let shards = ["", "c", "d", "exactly8", "more", "more than eight", "z"];
        let found = shards.map(|key| map.shard_of(key.as_bytes()));
        assert_eq!(found, [0, 0, 1, 2, 2, 3, 3]);
        assert_eq!(map.ends(b"a"), (None, Some(&b"d"[..])));
        assert_eq!(map.ends(b"z"), (Some(&b"more than eight"[..]), None));
        assert_eq!(map.between(None, None), Some(0..4));
        assert_eq!(map.between(Some(b"d"), Some(b"more than eight")), Some(1..3));
        assert_eq!((map.between(Some(b"e"), None), map.between(None, Some(b"e"))), (None, None));
    }

    #[test]
    fn divisions_add_shards_between_others() {
        let base = map();
        let piece = |number: u64, low: &[u8]| {
            let mut words = Vec::new();
            push_key(&KeyBuf::from_bytes(low), &mut words);
            (number, words)
        };
        let pieces = [piece(6, b"m"), piece(5, b"a"), piece(9, b"zz")];
        let map = base.divided(&pieces).unwrap();
        let found = ["", "a", "d", "exactly8", "m", "more", "more than eight", "zz"]
            .map(|key| map.shard_of(key.as_bytes()));
        assert_eq!(found, [0, 5, 1, 2, 6, 6, 3, 9]);
        assert_eq!(map.divided(&pieces).as_ref(), Some(&map), "they are known");
        assert!(map.divided(&[piece(5, b"b")]).is_none(), "the number is taken");
        assert!(map.divided(&[piece(7, b"m")]).is_none(), "a shard begins there");
        assert!(map.divided(&[piece(1_024, b"n")]).is_none());
        assert!(base.is_of_same_index(&map) && map.is_of_same_index(&base));
        assert!(!map.is_of_same_index(&ShardMap::default()));
        let keys = |key: &[u8]| KeyBuf::from_bytes(key);
        assert_eq!(
            map.clip(6),
            SsTableClip { lower: Some(keys(b"m")), upper: Some(keys(b"more than eight")) }
        );
        assert_eq!(map.clip(0), SsTableClip { lower: None, upper: Some(keys(b"a")) });
        assert_eq!(map.shards(map.between(Some(b"exactly8"), None).unwrap()), [2, 6, 3, 9]);
        // 4 is free, and 5, 6 and 9 are not.
        assert_eq!(map.free_number(2, b"n", 2), Some(4));
        assert_eq!(map.free_number(6, b"n", 3), Some(12));
        assert_eq!(map.free_number(1, b"n", 2), Some(7));
        assert_eq!(map.free_number(1, &[1; 257], 2), None);
    }
}
