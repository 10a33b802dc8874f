//! Single-key operations on leaves that are in no frame, by the part of the leaf that can have the
//! key: a lookup READs a window of records, and a new value is one WRITE of a word.
//!
//! *Invariants* (`docs/internals/cache.md`)
//! - C33. A leaf stays marked until no WRITE of a value in it, outside a frame, can land any more.
//!   If the outcome of the WRITE is unknown, the connection is reset first.
//!
//! *Thread safety*: belongs to its endpoint's thread; tasks of that thread share it.

use super::{
    CacheClient, FreeFrame, LeafRead, OptimisticRef, RemoteIoMark, Restart, WriteBackName,
};
use farleaf_fabric::{Buffer, Fabric, FabricError, GlobalAddr, ServerId};
use farleaf_index::{LiveCounters, OwnedRange, Ownership};
use farleaf_page::rules;
use farleaf_page::{
    DescentProbe, EditAnswer, Layout, LeafEdit, LeafOutcome, LeafOutline, OwnedKey, OwnedValue,
    Page, RecordEdit, WindowLookup,
};
use farleaf_pool::remote::RemoteError;
use std::cell::Cell;

/// The frame, the mark, and the answer of an edit if a window was enough for it.
type WindowAnswer<'a, L> = (FreeFrame<'a, L>, RemoteIoMark<'a>, Option<EditAnswer<OwnedValue<L>>>);

/// A WRITE of a value in a leaf that is in no frame. If this is dropped before the WRITE has ended,
/// the mark stays until the WRITE can no longer land (C33).
struct ValueWriteInFlight<'a, F: Fabric, L: Layout> {
    client: &'a CacheClient<F, L>,
    /// The id of the leaf's mark.
    id: u64,
    server: ServerId,
}

impl<'a, F: Fabric, L: Layout> ValueWriteInFlight<'a, F, L> {
    /// No part of the WRITE can still land. Returns the mark.
    fn has_ended(self) -> RemoteIoMark<'a> {
        let mark = self.client.cache().mapping().resume_io(self.id);
        std::mem::forget(self);
        mark
    }
}

impl<F: Fabric, L: Layout> Drop for ValueWriteInFlight<'_, F, L> {
    fn drop(&mut self) {
        let client = self.client;
        if client.fabric().breaks(rules::VALUE_WRITES_MARKED) {
            drop(client.cache().mapping().resume_io(self.id));
            return;
        }
        client.marked_writes.borrow_mut().push((self.id, self.server));
        client.pages().doubtful().set(true);
    }
}

impl<F: Fabric, L: Layout> CacheClient<F, L> {
    /// Executes a single-key operation on the leaf at `address`. READs only a window of the leaf,
    /// and WRITEs only the value, if that is known to be enough, and if the leaf is not to be
    /// admitted (C29).
    ///
    /// # Errors
    /// [`Restart`]. Unless the outcome is unknown, nothing has changed.
    pub(crate) async fn run_in_pool(
        &self,
        (parent, slot): (OptimisticRef<'_, L>, usize),
        address: GlobalAddr,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<LeafOutcome<EditAnswer<OwnedValue<L>>>, Restart> {
        // A window does not show which leaf it is of. Below a shared node only the leaf's fences
        // do, because the copy of the node may be old (C29).
        let (low, high) = (L::low(parent.page), L::high(parent.page));
        let is_certain = self.cache().owned().of(&low, high.as_ref()) == Ownership::All;
        let (mut free, mut mark, keys) = self.begin_fetch(parent, slot, address).await?;
        let ticket = (!edit.changes()).then(|| self.record_ticket(edit.key)).flatten(); // C31
        let outlines = self.cache().outlines().filter(|_| is_certain);
        if let Some(LeafRead::Window(outline)) = outlines.map(|outlines| outlines.miss(address)) {
            let answer;
            (free, mark, answer) =
                self.try_window((free, mark), (address, &keys), outline, edit).await?;
            if let Some(answer) = answer {
                LiveCounters::count(&self.counters.leaf_misses);
                LiveCounters::count(&self.counters.leaf_windows);
                self.put_record(ticket, edit.key, answer.found.as_ref());
                drop(mark);
                self.keep(free);
                return Ok(LeafOutcome::Nothing(answer));
            }
        }
        let work = |page: Page<'_, L>| edit.apply(page);
        let (place, below) = ((address, &keys), Some((parent, slot)));
        let probe = DescentProbe::At(edit.key);
        let outcome = self.bring_marked_leaf((free, mark), below, place, probe, work).await?;
        if let LeafOutcome::Nothing(answer) = &outcome {
            self.put_record(ticket, edit.key, answer.found.as_ref());
        }
        Ok(outcome)
    }

    /// READs the window of a leaf that can have the key of `edit`, and WRITEs the new value if that
    /// is all that changes. Without an answer, the edit needs the leaf.
    async fn try_window<'a>(
        &'a self,
        (free, mark): (FreeFrame<'a, L>, RemoteIoMark<'a>),
        (address, keys): (GlobalAddr, &OwnedRange<OwnedKey<L>>),
        outline: LeafOutline,
        edit: LeafEdit<&L::Key, &L::Value>,
    ) -> Result<WindowAnswer<'a, L>, Restart> {
        let fences = (L::key(&keys.low), keys.high.as_ref().map(L::key));
        let slots = L::outlined_slots(outline, edit.key, fences);
        let free = self.read_into(free, address, L::slot_words(&slots)).await?;
        let held = match L::outlined_get(free.page(), outline, &slots, edit.key) {
            WindowLookup::Found(value) => Some(value),
            WindowLookup::Absent => None,
            WindowLookup::Unknown => return Ok((free, mark, None)),
        };
        let by_words = self.cache().options().write_back == WriteBackName::Words;
        let (value, word) = match edit.at_record::<L>(held) {
            RecordEdit::Nothing(answer) => return Ok((free, mark, Some(answer))),
            RecordEdit::NewValue(value) if by_words => {
                (value, L::window_value_word(free.page(), &slots, edit.key))
            }
            RecordEdit::NewValue(_) | RecordEdit::NeedsLeaf => return Ok((free, mark, None)),
        };
        let Some(word) = word else { return Ok((free, mark, None)) };
        let mark = self.write_value(mark, address.plus(word as u64 * 8), value).await?;
        LiveCounters::count(&self.counters.write_throughs);
        Ok((free, mark, Some(EditAnswer::from_change(true))))
    }

    /// WRITEs a value, which is one word, into a leaf that is in no frame.
    ///
    /// # Errors
    /// [`Restart`]. It is `Indeterminate` if the value may have been written.
    async fn write_value<'a>(
        &'a self,
        mark: RemoteIoMark<'a>,
        at: GlobalAddr,
        value: &L::Value,
    ) -> Result<RemoteIoMark<'a>, Restart> {
        let word = L::address_of_value(value).to_bits();
        let buffer = || -> Result<Buffer, Restart> {
            let buffer = self.fabric().buffer(8).map_err(|_| Restart::Busy)?;
            buffer.set(0, word);
            Ok(buffer)
        };
        let may_have_landed = Cell::new(false);
        let mut backoff = self.pages().backoff();
        let post = async || {
            // Other tasks of this handle reset the same connection, which ends this WRITE, too.
            if may_have_landed.get() {
                self.pages().before_retry(&mut backoff).await?;
            }
            let written = self.fabric().write(at, buffer()?).await.map(drop);
            if let Err(FabricError::Indeterminate { .. }) = written {
                may_have_landed.set(true);
            }
            Ok(written)
        };
        let under_way = ValueWriteInFlight { client: self, id: mark.keep(), server: at.server() };
        match self.write_to_the_end(at, post).await {
            Ok(()) => Ok(under_way.has_ended()),
            Err(restart) if !may_have_landed.get() => {
                drop(under_way.has_ended());
                Err(restart)
            }
            Err(restart) => {
                let error = match restart {
                    Restart::Failed(error) => error,
                    _ => RemoteError::Contended { retries: 0 },
                };
                Err(Restart::Failed(error.after_a_change(at.server())))
            }
        }
    }

    /// Ends the marks of the oldest `many` WRITEs of values whose leaves are on `server`. The
    /// connection to `server` has been reset.
    pub(super) fn end_marked_writes(&self, server: ServerId, many: usize) {
        let is_on = |write: &mut (u64, ServerId)| write.1 == server;
        let ended: Vec<_> = self.marked_writes.borrow_mut().extract_if(..many, is_on).collect();
        ended.into_iter().for_each(|(id, _)| drop(self.cache().mapping().resume_io(id)));
    }
}
