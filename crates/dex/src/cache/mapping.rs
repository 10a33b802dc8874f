//! The mapping table: which frame holds a node, or whether an operation is fetching it.
//!
//! A bucket is one cache line with a lock and four entries; further entries go to an overflow list.
//! The key is an opaque 64-bit id other than 0; nodes use their address.
//!
//! *Invariants*
//! - C5. An id is in the table at most once.
//! - C6. Only the holder of an id's [`RemoteIoMark`] may fetch the node or work on it remotely. All
//!   other operations yield and start again. An operation that fetches a node sets the mark only
//!   while the parent still points to the node, and checks this under the table's lock. A new node
//!   is marked as soon as its page is allocated.
//!
//! *Thread safety*: any number of threads. `tests/loom.rs` checks it.

use super::FrameId;
use farleaf_fabric::sync::{AtomicU64, Mutex, Ordering, lock};
use farleaf_fabric::{prefetch, table};

const SLOTS: usize = 4;
const EMPTY: u64 = 0;
/// Values from this one on are marks, in two generations. In each generation, the lower values
/// count offloads and the highest one is an I/O mark.
const MARKS: u32 = 0xffff_0000;
const GENERATION: u32 = 0x8000;

/// Limit of frame numbers.
pub(super) const MAX_FRAMES: u32 = MARKS;

/// The values of marks of a generation (0 or 1).
fn marks(generation: u32) -> std::ops::RangeInclusive<u32> {
    let first = MARKS + generation * GENERATION;
    first..=first + (GENERATION - 1)
}

/// What the table knows about an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedNode {
    /// Nothing: the node is only in the pool.
    Absent,
    /// The node is marked: an operation is fetching it or working on it remotely.
    Io,
    /// The node is in this frame.
    Frame(FrameId),
}

impl MappedNode {
    fn of(value: u32) -> Self {
        if value >= MARKS { Self::Io } else { Self::Frame(FrameId::new(value)) }
    }
}

#[derive(Debug, Default)]
struct MappingEntries {
    ids: [u64; SLOTS],
    values: [u32; SLOTS],
    #[expect(clippy::box_collection, reason = "one word, so that the bucket is one cache line")]
    more: Option<Box<Vec<(u64, u32)>>>,
}

impl MappingEntries {
    fn find(&mut self, id: u64) -> Option<&mut u32> {
        if let Some(slot) = self.ids.iter().position(|held| *held == id) {
            return Some(&mut self.values[slot]);
        }
        let more = self.more.as_mut()?;
        more.iter_mut().find(|(held, _)| *held == id).map(|(_, value)| value)
    }

    fn add(&mut self, id: u64, value: u32) {
        match self.ids.iter().position(|held| *held == EMPTY) {
            Some(slot) => {
                self.ids[slot] = id;
                self.values[slot] = value;
            }
            None => self.more.get_or_insert_default().push((id, value)),
        }
    }

    fn remove(&mut self, id: u64) {
        if let Some(slot) = self.ids.iter().position(|held| *held == id) {
            self.ids[slot] = EMPTY;
            if let Some((id, value)) = self.more.as_mut().and_then(|more| more.pop()) {
                self.ids[slot] = id;
                self.values[slot] = value;
            }
        } else if let Some(more) = &mut self.more {
            more.retain(|(held, _)| *held != id);
        }
        if self.more.as_ref().is_some_and(|more| more.is_empty()) {
            self.more = None;
        }
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct MappingBucket(Mutex<MappingEntries>);

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<MappingBucket>() == 64);

/// The mapping table of one compute server.
pub struct MappingTable {
    buckets: Box<[MappingBucket]>,
    /// The generation of new marks.
    generation: AtomicU64,
}

impl MappingTable {
    /// Creates a table sized for about `nodes` nodes. It can hold more.
    pub fn new(nodes: usize) -> Self {
        let buckets = (nodes / 2).max(1).next_power_of_two();
        let buckets = table(buckets, |_| MappingBucket::default());
        Self { buckets, generation: AtomicU64::new(0) }
    }

    fn bucket(&self, id: u64) -> &Mutex<MappingEntries> {
        debug_assert_ne!(id, EMPTY, "0 is no id");
        &self.buckets[spread(id) as usize & (self.buckets.len() - 1)].0
    }

    /// Prefetches the bucket of `id`.
    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        prefetch(self.bucket(id));
    }

    /// Looks up `id`.
    pub fn get(&self, id: u64) -> MappedNode {
        lock(self.bucket(id)).find(id).map_or(MappedNode::Absent, |value| MappedNode::of(*value))
    }

    /// Marks an id that is not in the table, if `is_there` returns true. `is_there` runs under the
    /// table's lock and checks that the node is still where the caller found it (C6).
    ///
    /// # Errors
    /// The table's entry for the id, or [`MappedNode::Absent`] if `is_there` returned false.
    pub fn begin_io(
        &self,
        id: u64,
        is_there: impl FnOnce() -> bool,
    ) -> Result<RemoteIoMark<'_>, MappedNode> {
        let mut entries = lock(self.bucket(id));
        let io = *self.marks_now().end();
        match entries.find(id) {
            Some(value) => Err(MappedNode::of(*value)),
            None if !is_there() => Err(MappedNode::Absent),
            None => {
                entries.add(id, io);
                Ok(RemoteIoMark { mapping: self, id })
            }
        }
    }

    /// Marks an id for a memory server's work below the node. Like [`MappingTable::begin_io`], but
    /// several offloads may hold the mark at the same time.
    ///
    /// # Errors
    /// As [`MappingTable::begin_io`].
    pub(crate) fn begin_offload(
        &self,
        id: u64,
        is_there: impl FnOnce() -> bool,
    ) -> Result<OffloadMark<'_>, MappedNode> {
        let mut entries = lock(self.bucket(id));
        let (first, io) = self.marks_now().into_inner();
        match entries.find(id) {
            // The count must stay below the I/O value. Offloads of the previous generation have to
            // end before new ones begin.
            Some(value) if !(first..io - 1).contains(value) => return Err(MappedNode::of(*value)),
            _ if !is_there() => return Err(MappedNode::Absent),
            Some(value) => *value += 1,
            None => entries.add(id, first),
        }
        Ok(OffloadMark { mapping: self, id })
    }

    /// Takes back the mark of `id` that the caller left in place with [`OffloadMark::keep`]. Call
    /// it once for each `keep`.
    pub(crate) fn resume(&self, id: u64) -> OffloadMark<'_> {
        OffloadMark { mapping: self, id }
    }

    /// Takes back the mark of `id` that the caller left in place with [`RemoteIoMark::keep`]. Call
    /// it once for each `keep`.
    pub(crate) fn resume_io(&self, id: u64) -> RemoteIoMark<'_> {
        RemoteIoMark { mapping: self, id }
    }

    /// The marks of the current generation. Call it under the bucket's lock and before `is_there`.
    fn marks_now(&self) -> std::ops::RangeInclusive<u32> {
        marks(self.generation.load(Ordering::Acquire) as u32)
    }

    /// The previous generation. An abandoned move may have left marks in it.
    pub(crate) fn last_generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire) as u32 ^ 1
    }

    /// Begins the next generation of marks and returns the number of the previous one. An operation
    /// that marks in the new generation sees every change made before this call. There are only two
    /// generation numbers: only one thread at a time may call this, and only when no mark of
    /// [`MappingTable::last_generation`] is left.
    pub(crate) fn next_generation(&self) -> u32 {
        self.generation.fetch_xor(1, Ordering::AcqRel) as u32
    }

    /// The ids that are marked in `old`, which is not the current generation.
    pub(crate) fn marked_in(&self, old: u32) -> Vec<u64> {
        let mut marked = Vec::new();
        for bucket in &self.buckets {
            let entries = lock(&bucket.0);
            let near = entries.ids.iter().zip(&entries.values).map(|(id, value)| (*id, *value));
            let far = entries.more.iter().flat_map(|more| more.iter().copied());
            let is_old = |(id, value): &(u64, u32)| *id != EMPTY && marks(old).contains(value);
            marked.extend(near.chain(far).filter(is_old).map(|(id, _)| id));
        }
        marked
    }

    /// Whether an id has a mark of `generation`.
    pub(crate) fn is_marked(&self, id: u64, generation: u32) -> bool {
        let mut entries = lock(self.bucket(id));
        entries.find(id).is_some_and(|value| marks(generation).contains(value))
    }

    /// Removes a node from the table if it is in `frame`. Returns whether it was.
    pub fn remove(&self, id: u64, frame: FrameId) -> bool {
        let mut entries = lock(self.bucket(id));
        let there = entries.find(id).is_some_and(|value| *value == frame.number());
        if there {
            entries.remove(id);
        }
        there
    }
}

/// The finaliser of MurmurHash3, a bijection in which every output bit depends on every input bit.
/// Node addresses differ in few bits, so they need it.
pub(super) fn spread(id: u64) -> u64 {
    let mut hash = (id ^ id >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// The exclusive right to work on a node remotely (C6). Dropping it removes the entry, so the node
/// is only in the pool.
#[must_use = "dropping the mark ends the I/O"]
pub struct RemoteIoMark<'a> {
    mapping: &'a MappingTable,
    id: u64,
}

impl RemoteIoMark<'_> {
    /// Ends the I/O: from now on the node is in `frame`.
    pub fn publish(self, frame: FrameId) {
        if let Some(value) = lock(self.mapping.bucket(self.id)).find(self.id) {
            *value = frame.number();
        }
        std::mem::forget(self);
    }

    /// Leaves the mark in place, because a WRITE of the node may still land. The caller ends it by
    /// [`MappingTable::resume_io`].
    pub(crate) fn keep(self) -> u64 {
        let id = self.id;
        std::mem::forget(self);
        id
    }
}

impl Drop for RemoteIoMark<'_> {
    fn drop(&mut self) {
        lock(self.mapping.bucket(self.id)).remove(self.id);
    }
}

/// The right to let a memory server work below a node (C6), shared by any number of offloads.
/// Dropping the last one removes the entry, so the node is only in the pool.
#[must_use = "dropping the mark ends the offload"]
pub(crate) struct OffloadMark<'a> {
    mapping: &'a MappingTable,
    id: u64,
}

impl OffloadMark<'_> {
    /// Leaves the mark in place while a request is in flight, so that no other operation interferes
    /// with it. The caller ends it with [`MappingTable::resume`]; if the caller is dropped first,
    /// the mark stays forever.
    pub(crate) fn keep(self) -> u64 {
        let id = self.id;
        std::mem::forget(self);
        id
    }
}

impl Drop for OffloadMark<'_> {
    fn drop(&mut self) {
        let mut entries = lock(self.mapping.bucket(self.id));
        match entries.find(self.id) {
            // In both generations, the value of a single offload is a multiple of GENERATION.
            Some(value) if !value.is_multiple_of(GENERATION) => *value -= 1,
            _ => entries.remove(self.id),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn offloads_go_together_and_keep_others_off() {
        let mapping = MappingTable::new(8);
        let first = mapping.begin_offload(3, || true).unwrap();
        let second = mapping.begin_offload(3, || true).unwrap();
        assert_eq!(mapping.begin_offload(3, || false).err(), Some(MappedNode::Absent));
        assert_eq!(mapping.begin_io(3, || true).err(), Some(MappedNode::Io));
        drop(first);
        assert_eq!(mapping.get(3), MappedNode::Io);
        let kept = second.keep();
        assert_eq!(mapping.get(3), MappedNode::Io);
        drop(mapping.resume(kept));
        let mark = mapping.begin_io(3, || true).unwrap();
        assert_eq!(mapping.begin_offload(3, || true).err(), Some(MappedNode::Io));
        drop(mark);
        assert_eq!(mapping.get(3), MappedNode::Absent);
    }

    #[test]
    fn a_generation_of_marks_ends_though_others_begin() {
        let mapping = MappingTable::new(8);
        let (offload, io) =
            (mapping.begin_offload(3, || true).unwrap(), mapping.begin_io(4, || true));
        let old = mapping.next_generation();
        let mut marked = mapping.marked_in(old);
        marked.sort_unstable();
        assert_eq!(marked, [3, 4]);
        assert_eq!(
            mapping.begin_offload(3, || true).err(),
            Some(MappedNode::Io),
            "it would not end"
        );
        let newer = mapping.begin_offload(5, || true).unwrap();
        drop((offload, io));
        assert!(!mapping.is_marked(3, old) && !mapping.is_marked(4, old));
        assert!(!mapping.is_marked(5, old) && mapping.get(5) == MappedNode::Io);
        assert_eq!(mapping.last_generation(), old);
        assert_eq!(mapping.marked_in(mapping.next_generation()), [5]);
        drop(newer);
    }

    #[test]
    fn many_ids_in_few_buckets() {
        let mapping = MappingTable::new(8);
        let mut model = BTreeMap::new();
        for round in 0..3_000_u64 {
            let id = 1 + spread(round) % 40;
            match model.get(&id) {
                None => {
                    let mark = mapping.begin_io(id, || true).unwrap();
                    assert_eq!(mapping.get(id), MappedNode::Io);
                    assert_eq!(mapping.begin_io(id, || true).err(), Some(MappedNode::Io));
                    if round % 3 == 0 {
                        drop(mark);
                    } else {
                        mark.publish(FrameId::new(round as u32));
                        model.insert(id, round as u32);
                    }
                }
                Some(&frame) => {
                    assert!(!mapping.remove(id, FrameId::new(frame + 1)));
                    assert!(mapping.remove(id, FrameId::new(frame)));
                    model.remove(&id);
                }
            }
            for id in 1..=40 {
                let expected = model
                    .get(&id)
                    .map_or(MappedNode::Absent, |frame| MappedNode::Frame(FrameId::new(*frame)));
                assert_eq!(mapping.get(id), expected);
            }
        }
    }
}
