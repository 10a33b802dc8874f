//! The directory of an LSM index's shards: which process has a shard, which tables it consists of,
//! and which memory of this server belongs to it.
//!
//! A shard has one memory server for its owner and its tables. Every memory server knows the chunks
//! that it has given to each shard. What a process knows of a shard can be made again from these.
//!
//! *Invariants* (`docs/internals/lsm-tree.md`)
//! - lsm.V5. A change of the tables is made whole, and once: its number is above those of all
//!   changes before.
//! - lsm.H3. A request of an earlier epoch than the shard's is refused.
//! - lsm.H11. A shard is left by the process that has it, in its epoch, once. From then on, no
//!   request of that epoch is accepted.
//! - lsm.K4. No two tables of a shard have the same memory, and what they have of this server's is
//!   in chunks of the shard, or was borrowed with the table.
//!
//! *Thread safety*: any number of threads; a mutex that is never held across a wait.

use super::loans::{ListedSsTable, LoanPiece, SsTableLoans, words_of_pieces};
use crate::wire::{DirectoryRequest, LEFT, LISTED_CHUNKS, Refusal, Reply};
use farleaf_fabric::sync::{Mutex, lock};
use farleaf_fabric::{Cpu, GlobalAddr, ServerId};
use farleaf_page::Layout;
use farleaf_page::rules;
use farleaf_page::table::{KeyBuf, PlacedSsTable, VersionChange, take_key};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Maximum number of shards of a memory server.
const MAX_SHARDS: usize = 4_096;
/// Maximum number of compute servers that change a shard and are not known to be fenced: a reply
/// lists them all.
const MAX_JOINED: usize = 4_096;
/// Maximum number of words of all tables of a shard, and of one change.
const MAX_WORDS: usize = 1 << 24;
/// The same for all shards of a memory server: 512 MiB.
const MAX_WORDS_OF_ALL: usize = 1 << 26;
/// Words of one reply: 96 KiB.
const REPLY_WORDS: usize = 12 << 10;

/// The shards of a memory server.
#[derive(Debug, Default)]
pub(super) struct ShardDirectory {
    inner: Mutex<ShardDirectoryInner>,
}

#[derive(Debug, Default)]
struct ShardDirectoryInner {
    /// The shards whose tables this server lists.
    shards: BTreeMap<u64, DirectoryShard>,
    /// The chunks of this server, by shard.
    spaces: BTreeMap<u64, ShardMemory>,
    /// The shards that divisions have made here.
    pieces: BTreeMap<u64, LoanPiece>,
    /// What shards have lent one another.
    loans: SsTableLoans,
}

/// Memory of this server that a shard has.
#[derive(Debug, Default)]
struct ShardMemory {
    /// The latest epoch that has asked.
    epoch: u64,
    /// Sizes by address.
    chunks: BTreeMap<GlobalAddr, u64>,
}

#[derive(Debug, Default)]
struct DirectoryShard {
    epoch: u64,
    owner: u64,
    extent_bytes: u64,
    /// The compute servers that are not known to be fenced, with the epoch in which each joined.
    joined: BTreeMap<u16, u64>,
    /// The latest epoch that has fenced those before it.
    fenced: u64,
    /// The latest change and its outcome.
    edit: u64,
    outcome: Option<Refusal>,
    /// The change whose parts arrive.
    coming: AwaitedContent,
    /// Words of each table, by id.
    tables: BTreeMap<u64, ListedSsTable>,
    /// Of all tables.
    words: usize,
    highest_table: u64,
    /// Bytes of all pieces of tables, by address.
    used: BTreeMap<GlobalAddr, u64>,
    /// The tables that it has borrowed, with their lenders.
    borrowed: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct AwaitedContent {
    number: u64,
    parts: u32,
    words: Vec<u64>,
}

/// A part of a change.
struct EditPart<'r> {
    number: u64,
    part: u32,
    more: bool,
    words: &'r [u64],
    /// Whether to recognise a repeated change, so that it takes effect once only.
    once: bool,
}

impl ShardDirectory {
    /// The tables of a shard.
    pub(super) fn listed_tables(&self, shard: u64) -> Vec<PlacedSsTable> {
        let inner = lock(&self.inner);
        let tables = inner.shards.get(&shard).into_iter().flat_map(|shard| shard.tables.values());
        tables.filter_map(|table| PlacedSsTable::decode(&mut &table.words[..]).ok()).collect()
    }

    /// The epoch of a shard, 0 if no process has ever had it.
    pub(super) fn epoch_of(&self, shard: u64) -> u64 {
        lock(&self.inner).shards.get(&shard).map_or(0, |shard| shard.epoch)
    }

    /// Answers a request of compute server `client`. `allocate` allocates a chunk of at least so
    /// many bytes, for a request with this token.
    pub(super) fn answer<C: Cpu, L: Layout>(
        &self,
        cpu: &C,
        server: ServerId,
        client: u16,
        request: DirectoryRequest,
        allocate: impl FnOnce(u64, u64, u64) -> Result<(GlobalAddr, u64), Refusal>,
    ) -> Result<Reply<L>, Refusal> {
        let checks_epoch = !cpu.breaks(rules::SHARD_EPOCHS);
        let mut inner = lock(&self.inner);
        let ShardDirectoryInner { shards, spaces, pieces, loans } = &mut *inner;
        match request {
            DirectoryRequest::State { shard: id } => {
                let none = DirectoryShard::default();
                return Ok(shards.get(&id).unwrap_or(&none).describe(id, loans));
            }
            DirectoryRequest::Open { shard: id, owner, after, extent_bytes } => {
                if owner == 0 || extent_bytes == 0 || after == u64::MAX {
                    return Err(Refusal::Malformed);
                }
                let is_full = shards.len() >= MAX_SHARDS;
                let shard = match shards.entry(id) {
                    Entry::Occupied(shard) => shard.into_mut(),
                    Entry::Vacant(_) if after > 0 => return Err(Refusal::NoSuchShard),
                    Entry::Vacant(_) if is_full => return Err(Refusal::OutOfMemory),
                    Entry::Vacant(shard) => shard.insert(DirectoryShard::default()),
                };
                shard.open(client, owner, after, extent_bytes)?;
                return Ok(shard.describe(id, loans));
            }
            DirectoryRequest::Join { shard: id, owner } => {
                let shard = shards.get_mut(&id).ok_or(Refusal::NoSuchShard)?;
                if shard.owner != owner {
                    return Err(Refusal::OtherOwner);
                }
                shard.join(client)?;
                return Ok(shard.describe(id, loans));
            }
            DirectoryRequest::Fenced { shard: id, epoch } => {
                let shard = of_epoch(shards, id, epoch, true)?;
                shard.joined.retain(|_, joined| *joined >= epoch);
                // The processes that could READ them are fenced. A late copy of the request finds
                // tables that this epoch has borrowed, and may still READ.
                if std::mem::replace(&mut shard.fenced, epoch) < epoch {
                    shard.return_all_unlisted(id, loans);
                }
            }
            DirectoryRequest::Leave { shard: id, owner, epoch } => {
                let shard = shards.get_mut(&id).ok_or(Refusal::NoSuchShard)?;
                shard.leave(owner, epoch)?;
                shard.return_all_unlisted(id, loans);
            }
            DirectoryRequest::Divide { shard, owner, epoch, into, at } => {
                let mut words = &at[..];
                let at = take_key(&mut words).filter(|_| words.is_empty());
                let low = at.ok_or(Refusal::Malformed)?;
                let division = ShardDivision { shard, into, low };
                inner.divide(division, owner, epoch)?;
            }
            DirectoryRequest::Pieces { from } => {
                let (words, more) = part_of(words_of_pieces(pieces), from);
                return Ok(Reply::Tables { more, words });
            }
            DirectoryRequest::Loans { shard: id, epoch, from } => {
                let shard = of_epoch(shards, id, epoch, true)?;
                let (words, more) = loans.list(id, &shard.borrowed, from, REPLY_WORDS);
                return Ok(Reply::Tables { more, words });
            }
            DirectoryRequest::Return { shard: id, epoch, tables } => {
                let shard = of_epoch(shards, id, epoch, true)?;
                tables.into_iter().for_each(|table| shard.return_unlisted(id, table, loans));
            }
            DirectoryRequest::Edit { shard: id, epoch, number, part, more, words } => {
                let held: usize = shards.values().map(DirectoryShard::held_words).sum();
                if held + loans.words() + words.len() > MAX_WORDS_OF_ALL {
                    return Err(Refusal::OutOfMemory);
                }
                let shard = of_epoch(shards, id, epoch, checks_epoch)?;
                let once = !cpu.breaks(rules::EDITS_ONCE);
                let part = EditPart { number, part, more, words: &words, once };
                let space = spaces.entry(id).or_default();
                shard.edit(part, |table, lender, piece| match lender {
                    Some(lender) => loans.has(lender, table, piece),
                    None => {
                        let is_own = piece.0.server() != server || space.has(&piece);
                        is_own && !loans.overlaps(id, table, piece)
                    }
                })?;
            }
            DirectoryRequest::Tables { shard, epoch, from } => {
                let shard = of_epoch(shards, shard, epoch, true)?;
                let (words, more) = shard.list(usize::try_from(from).unwrap_or(usize::MAX));
                return Ok(Reply::Tables { more, words });
            }
            DirectoryRequest::Allocate { shard, epoch, bytes, least, token } => {
                let space = ShardMemory::of_epoch(spaces, shard, epoch)?;
                let (at, bytes) = allocate(bytes, least, token)?;
                space.chunks.insert(at, bytes);
                return Ok(Reply::Chunk { at, bytes });
            }
            DirectoryRequest::Chunks { shard, epoch, from } => {
                let space = ShardMemory::of_epoch(spaces, shard, epoch)?;
                let mut rest =
                    space.chunks.iter().skip(from as usize).map(|(at, size)| (*at, *size));
                let chunks = rest.by_ref().take(LISTED_CHUNKS).collect();
                return Ok(Reply::Chunks { more: rest.next().is_some(), chunks });
            }
        }
        Ok(Reply::Done)
    }
}

/// A shard that begins where another one is divided.
struct ShardDivision {
    /// The one that is divided.
    shard: u64,
    /// The one that begins.
    into: u64,
    /// Its lowest key.
    low: KeyBuf,
}

impl ShardDirectoryInner {
    /// Ends an epoch as [`DirectoryShard::leave`] does, and divides the shard. Repeated, it changes
    /// nothing.
    fn divide(
        &mut self,
        ShardDivision { shard: id, into, low }: ShardDivision,
        owner: u64,
        epoch: u64,
    ) -> Result<(), Refusal> {
        let Self { shards, spaces, pieces, loans } = self;
        let piece = LoanPiece { from: id, low };
        let held: usize = shards.values().map(DirectoryShard::held_words).sum();
        let has_room = shards.len() < MAX_SHARDS;
        let is_taken = shards.contains_key(&into) || spaces.contains_key(&into);
        let shard = shards.get_mut(&id).ok_or(Refusal::NoSuchShard)?;
        if shard.owner == LEFT && Some(shard.epoch) == epoch.checked_add(1) {
            // The shard may have been left without a split.
            let is_repeated = pieces.get(&into) == Some(&piece);
            return if is_repeated { Ok(()) } else { Err(Refusal::OtherOwner) };
        }
        shard.check_leaver(owner, epoch)?;
        if is_taken || pieces.contains_key(&into) {
            return Err(Refusal::OtherOwner);
        }
        let (mut shared, mut gone) = (Vec::new(), Vec::new());
        for (table, listed) in &shard.tables {
            let placed =
                PlacedSsTable::decode(&mut &listed.words[..]).map_err(|_| Refusal::Malformed)?;
            if placed.meta.largest >= piece.low {
                shared.push(*table);
                gone.extend((placed.meta.smallest >= piece.low).then_some(*table));
            }
        }
        let words: usize = shared.iter().map(|table| shard.tables[table].words.len()).sum();
        if !has_room || held + loans.words() + 2 * words > MAX_WORDS_OF_ALL {
            return Err(Refusal::OutOfMemory);
        }
        let mut other = DirectoryShard {
            epoch: 1,
            owner: LEFT,
            extent_bytes: shard.extent_bytes,
            // New tables have other ids than those that are borrowed.
            highest_table: shard.highest_table,
            ..DirectoryShard::default()
        };
        for table in shared {
            let lender = shard.borrowed.get(&table).copied().unwrap_or(id);
            let listed = shard.tables[&table].clone();
            loans.lend(lender, table, &listed, into);
            other.borrowed.insert(table, lender);
            other.insert(table, listed);
        }
        gone.into_iter().for_each(|table| _ = shard.remove(table));
        shard.leave(owner, epoch)?;
        shard.return_all_unlisted(id, loans);
        shards.insert(into, other);
        pieces.insert(into, piece);
        Ok(())
    }
}

/// As many words from word `from` on as a reply has, and whether there are more.
fn part_of(words: Vec<u64>, from: u64) -> (Vec<u64>, bool) {
    let begin = usize::try_from(from).unwrap_or(usize::MAX).min(words.len());
    let end = words.len().min(begin + REPLY_WORDS);
    (words[begin..end].to_vec(), end < words.len())
}

/// A shard of this epoch.
fn of_epoch(
    shards: &mut BTreeMap<u64, DirectoryShard>,
    shard: u64,
    epoch: u64,
    is_checked: bool,
) -> Result<&mut DirectoryShard, Refusal> {
    let shard = shards.get_mut(&shard).ok_or(Refusal::NoSuchShard)?;
    match shard.epoch == epoch || !is_checked {
        true => Ok(shard),
        false => Err(Refusal::OtherOwner), // H3
    }
}

impl ShardMemory {
    /// What `shard` has, for a process of this epoch. No earlier one gets chunks from now on.
    fn of_epoch(
        spaces: &mut BTreeMap<u64, Self>,
        shard: u64,
        epoch: u64,
    ) -> Result<&mut Self, Refusal> {
        if epoch == 0 {
            return Err(Refusal::Malformed);
        }
        if !spaces.contains_key(&shard) && spaces.len() >= MAX_SHARDS {
            return Err(Refusal::OutOfMemory);
        }
        let space = spaces.entry(shard).or_default();
        if epoch < space.epoch {
            return Err(Refusal::OtherOwner);
        }
        space.epoch = epoch;
        Ok(space)
    }

    /// Whether a piece is in one of the chunks, or in several that touch one another.
    fn has(&self, &(at, bytes): &(GlobalAddr, u64)) -> bool {
        let Some(end) = at.offset().checked_add(bytes) else { return false };
        let mut next = at.offset();
        while next < end {
            let here = GlobalAddr::new(at.server(), next);
            let chunk = self.chunks.range(..=here).next_back();
            match chunk.map(|(start, size)| start.offset() + size).filter(|end| *end > next) {
                Some(chunk_end) => next = chunk_end,
                None => return false,
            }
        }
        true
    }
}

impl DirectoryShard {
    fn describe<L: Layout>(&self, id: u64, loans: &SsTableLoans) -> Reply<L> {
        let unfenced = self.joined.iter().filter(|(_, joined)| **joined < self.epoch);
        Reply::Shard {
            epoch: self.epoch,
            owner: self.owner,
            edit: self.edit,
            highest_table: self.highest_table,
            extent_bytes: self.extent_bytes,
            loans: (self.borrowed.len() + loans.of(id).count()) as u64,
            unfenced: unfenced.map(|(compute_server, _)| *compute_server).collect(),
        }
    }

    /// Words in memory: of tables, and of parts of a change.
    fn held_words(&self) -> usize {
        self.words + self.coming.words.len()
    }

    fn open(
        &mut self,
        client: u16,
        owner: u64,
        after: u64,
        extent_bytes: u64,
    ) -> Result<(), Refusal> {
        let is_other_size = self.extent_bytes != extent_bytes && !self.tables.is_empty();
        if is_other_size {
            return Err(Refusal::Malformed);
        }
        let is_repeated = self.owner == owner && self.epoch == after + 1;
        if !is_repeated {
            if self.epoch != after {
                return Err(Refusal::OtherOwner);
            }
            self.check_joined(client)?;
            (self.epoch, self.owner, self.extent_bytes) = (after + 1, owner, extent_bytes);
            self.coming = AwaitedContent::default();
        }
        self.join(client)
    }

    /// Ends an epoch whose process has settled everything. Repeated, it changes nothing (H11).
    fn leave(&mut self, owner: u64, epoch: u64) -> Result<(), Refusal> {
        let next = epoch.checked_add(1).ok_or(Refusal::Malformed)?;
        if self.owner == LEFT && self.epoch == next {
            return Ok(());
        }
        self.check_leaver(owner, epoch)?;
        // Those of earlier epochs, if they are not fenced, stay in the list.
        self.joined.retain(|_, joined| *joined < epoch);
        (self.epoch, self.owner) = (next, LEFT);
        self.coming = AwaitedContent::default();
        Ok(())
    }

    fn check_leaver(&self, owner: u64, epoch: u64) -> Result<(), Refusal> {
        match owner > LEFT && (self.owner, self.epoch) == (owner, epoch) {
            true => Ok(()),
            false => Err(Refusal::OtherOwner),
        }
    }

    /// Returns a table that was borrowed, if it is not in the list any more (L2).
    fn return_unlisted(&mut self, id: u64, table: u64, loans: &mut SsTableLoans) {
        if !self.tables.contains_key(&table)
            && let Some(lender) = self.borrowed.remove(&table)
        {
            loans.take_back(lender, table, id);
        }
    }

    /// Returns all borrowed tables that are not listed: no process of an earlier epoch READs them
    /// any more.
    fn return_all_unlisted(&mut self, id: u64, loans: &mut SsTableLoans) {
        let borrowed: Vec<u64> = self.borrowed.keys().copied().collect();
        borrowed.into_iter().for_each(|table| self.return_unlisted(id, table, loans));
    }

    /// Refuses a compute server for which the list has no room.
    fn check_joined(&self, client: u16) -> Result<(), Refusal> {
        match self.joined.len() < MAX_JOINED || self.joined.contains_key(&client) {
            true => Ok(()),
            false => Err(Refusal::TooManyClients),
        }
    }

    fn join(&mut self, client: u16) -> Result<(), Refusal> {
        self.check_joined(client)?;
        self.joined.insert(client, self.epoch);
        Ok(())
    }

    /// Takes a part of a change, and makes the change if it is the last one. `may_have` says
    /// whether a table, with its lender if it is borrowed, may lie in a piece of memory (K4, L1).
    fn edit(
        &mut self,
        EditPart { number, part, more, words, once }: EditPart<'_>,
        may_have: impl Fn(u64, Option<u64>, (GlobalAddr, u64)) -> bool,
    ) -> Result<(), Refusal> {
        match number {
            // Repeated.
            same if same == self.edit && same > 0 && once => {
                return self.outcome.map_or(Ok(()), Err);
            }
            late if late < self.edit || late == 0 => return Err(Refusal::LateEdit),
            _ => {}
        }
        let coming = &mut self.coming;
        if number > coming.number && part == 0 {
            *coming = AwaitedContent { number, ..AwaitedContent::default() };
        }
        if number != coming.number || part > coming.parts {
            return Err(Refusal::LateEdit);
        }
        if part < coming.parts {
            return Ok(()); // repeated
        }
        if coming.words.len() + words.len() > MAX_WORDS {
            return Err(Refusal::OutOfMemory);
        }
        coming.words.extend_from_slice(words);
        coming.parts += 1;
        if more {
            return Ok(());
        }
        let words = std::mem::take(&mut self.coming).words;
        let changed = VersionChange::decode(&words).ok_or(Refusal::Malformed);
        let changed = changed.and_then(|change| self.change(change, may_have));
        // Repeated, it gets the same answer, even if it would now succeed.
        (self.edit, self.outcome) = (number, changed.err());
        changed
    }

    /// Makes a change, whole or not at all.
    fn change(
        &mut self,
        change: VersionChange,
        may_have: impl Fn(u64, Option<u64>, (GlobalAddr, u64)) -> bool,
    ) -> Result<(), Refusal> {
        let mut removed = Vec::new();
        for id in change.removed {
            match self.remove(id) {
                Some(table) => removed.push((id, table)),
                None => {
                    self.roll_back(removed, &[]);
                    return Err(Refusal::NoSuchTable);
                }
            }
        }
        let mut added = Vec::new();
        for table in change.added {
            let id = table.meta.footer.table;
            let outcome = self.add(&table, &may_have);
            if let Err(refusal) = outcome {
                self.roll_back(removed, &added);
                return Err(refusal);
            }
            added.push(id);
        }
        self.highest_table = added.into_iter().fold(self.highest_table, u64::max);
        Ok(())
    }

    fn roll_back(&mut self, removed: Vec<(u64, ListedSsTable)>, added: &[u64]) {
        added.iter().for_each(|id| _ = self.remove(*id));
        for (id, table) in removed {
            self.insert(id, table);
        }
    }

    fn remove(&mut self, id: u64) -> Option<ListedSsTable> {
        let table = self.tables.remove(&id)?;
        self.words -= table.words.len();
        table.pieces.iter().for_each(|(at, _)| _ = self.used.remove(at));
        Some(table)
    }

    fn insert(&mut self, id: u64, table: ListedSsTable) {
        self.words += table.words.len();
        self.used.extend(table.pieces.iter().copied());
        self.tables.insert(id, table);
    }

    fn add(
        &mut self,
        table: &PlacedSsTable,
        may_have: impl Fn(u64, Option<u64>, (GlobalAddr, u64)) -> bool,
    ) -> Result<(), Refusal> {
        let (id, mut words) = (table.meta.footer.table, Vec::new());
        table.encode(&mut words);
        if self.words + words.len() > MAX_WORDS {
            return Err(Refusal::OutOfMemory);
        }
        if self.tables.contains_key(&id) {
            return Err(Refusal::Malformed);
        }
        let bytes = table.pieces.iter().fold(0_u64, |all, piece| all.saturating_add(piece.1));
        let footer = &table.meta.footer;
        // A compaction may have given back the extents before the first key that counts (S3).
        let least = match &table.meta.clip.lower {
            Some(_) => footer.table_words() - footer.data_words,
            None => footer.table_words(),
        };
        if bytes < u64::from(least) * 8 {
            return Err(Refusal::Malformed);
        }
        let lender = self.borrowed.get(&id).copied();
        let mut listed = ListedSsTable { words, pieces: Vec::new() };
        for &(at, bytes) in &table.pieces {
            let at = GlobalAddr::from_bits(at);
            let piece = (at, bytes);
            let is_sensible = !at.is_swizzled()
                && bytes > 0
                && bytes < GlobalAddr::OFFSET_LIMIT - at.offset()
                && bytes.is_multiple_of(self.extent_bytes);
            if !is_sensible || !may_have(id, lender, piece) || self.overlaps(piece) {
                // Undo the pieces inserted so far, because the table is not listed (K4).
                listed.pieces.iter().for_each(|(at, _)| _ = self.used.remove(at));
                return Err(Refusal::Malformed);
            }
            self.used.insert(at, bytes);
            listed.pieces.push(piece);
        }
        self.insert(id, listed);
        Ok(())
    }

    /// Whether a table has a part of this piece.
    fn overlaps(&self, (at, bytes): (GlobalAddr, u64)) -> bool {
        let end = at.plus(bytes);
        let before = self.used.range(..end).next_back();
        before.is_some_and(|(start, size)| start.plus(*size) > at && start.server() == at.server())
    }

    /// The words of all tables from word `from` on, as many as a reply has, and whether there are
    /// more.
    fn list(&self, from: usize) -> (Vec<u64>, bool) {
        let (mut words, mut before) = (Vec::new(), 0);
        for table in self.tables.values() {
            let skipped = from.saturating_sub(before).min(table.words.len());
            before += table.words.len();
            let rest = &table.words[skipped..];
            let room = REPLY_WORDS - words.len();
            words.extend_from_slice(&rest[..rest.len().min(room)]);
            if rest.len() > room {
                return (words, true);
            }
        }
        (words, false)
    }
}
